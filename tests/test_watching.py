"""Alarms for types and fleets: named, with a direction, soon, rarely false; and when the
observation of a feed began.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import poisson
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import UserError
from fourpoint.log_format import LogFormat
from fourpoint.streaming.bank import SLICE
from fourpoint.streaming.feed.events import Columns, Entities, Single
from fourpoint.streaming.feed.feed import score_feed
from fourpoint.streaming.feed.training_window import Trained, inferred_start
from fourpoint.streaming.monitoring import Alarm
from fourpoint.streaming.rows import ExcitationRows
from fourpoint.streaming.state import fingerprint, pack, unpack
from fourpoint.streaming.watching import FleetWatch, TypeWatch, shares_of

NAMES = ("login", "error", "query", "deploy")
SPACE = fp.MarkSpace.categorical(list(NAMES))
Row = tuple[float, str, str]


def services(scale: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> fp.Hawkes:
    """Four types per service and hour; ``scale`` multiplies their backgrounds."""
    baseline = (np.array([0.5, 0.5, 0.4, 0.3]) * scale).tolist()
    return fp.Hawkes(
        SPACE,
        baseline=baseline,
        branching=(np.full((4, 4), 0.02) + 0.1 * np.eye(4)).tolist(),
        decay=4.0,
    )


def day(model: fp.Hawkes, seed: int, begin: float = 0.0, hours: float = 12.0) -> list[Row]:
    """Events of 40 services from ``begin`` on, as they come."""
    data = fp.sample(model, 0.0, hours, 40, seed=seed)
    rows = [
        (begin + t, NAMES[m], f"s{i}")
        for i, s in enumerate(data)
        for t, m in zip(s.times.tolist(), s.marks.tolist(), strict=True)
    ]
    return sorted(rows)


def watched(
    rows: list[Row], model: fp.Hawkes, alarms: float = 1e-3, part: int | None = None
) -> list[Alarm]:
    """The alarms of a bank that sees rows as they come."""
    bank = fp.StreamBank(model, alarms=alarms, fleet=True)
    raised: list[Alarm] = []
    while rows:
        size = min(part or len(rows), bank.until_look or 1)
        some, rows = rows[:size], rows[size:]
        times, marks, entities = ([row[i] for row in some] for i in range(3))
        raised += [alarm for own in bank.observe(entities, times, marks).alarms for alarm in own]
    return raised


NORMAL = day(services(), seed=1)


def test_a_raised_type_is_named_within_an_hour_and_told_once() -> None:
    raised = watched(NORMAL + day(services((1.0, 6.0, 1.0, 1.0)), seed=2, begin=12.0), services())
    assert raised and min(alarm.time for alarm in raised) >= 12.0
    of_types = [alarm for alarm in raised if alarm.of == "type"]
    first = of_types[0]
    assert (
        (first.name, first.direction) == ("error", "more")
        and first.time < 13.0
        and first.size > 1.8
    )
    assert {(alarm.name, alarm.direction) for alarm in of_types} == {("error", "more")} and len(
        of_types
    ) == 1
    assert [alarm.direction for alarm in raised if alarm.of == "fleet"] == ["more"]


def test_a_type_that_stops_is_named() -> None:
    stopped = [row for row in day(services(), seed=3, begin=12.0) if row[1] != "login"]
    first = next(alarm for alarm in watched(NORMAL + stopped, services()) if alarm.of == "type")
    assert (
        (first.name, first.direction) == ("login", "fewer")
        and 12.0 < first.time < 15.0
        and first.size < 0.2
    )


def test_an_entity_that_stops_is_named_though_no_event_of_it_comes() -> None:
    stopped = [row for row in day(services(), seed=4, begin=12.0, hours=24.0) if row[2] != "s7"]
    raised = watched(NORMAL + stopped, services())
    assert [(alarm.of, alarm.name, alarm.direction) for alarm in raised] == [
        ("entity", "s7", "fewer")
    ]


def test_a_fleet_that_falls_silent_is_told_by_the_few_that_are_left() -> None:
    left = [row for row in day(services(), seed=5, begin=12.0) if int(row[2][1:]) % 3 == 0]
    raised = [alarm for alarm in watched(NORMAL + left, services()) if alarm.of == "fleet"]
    assert (
        [alarm.direction for alarm in raised] == ["fewer"]
        and raised[0].time < 14.0
        and 0.1 < raised[0].size < 0.7
    )


def test_false_alarms_are_as_rare_as_stated() -> None:
    level, count, events = 0.3, 0, 0
    for seed in range(10, 13):
        rows = day(services(), seed)
        events += len(rows)
        count += len(watched(rows, services(), alarms=level))
    assert count <= poisson.ppf(0.999, level * events / 1000)


def test_false_alarms_of_types_and_fleets_alone() -> None:
    rng, level, n = np.random.default_rng(0), 0.5, 20_000
    shares = rng.dirichlet(np.full(4, 2.0), n)
    kinds = (shares.cumsum(1) < rng.random((n, 1))).sum(1)
    gaps = rng.exponential(size=n)
    found = TypeWatch(NAMES, level).observe(gaps.cumsum(), kinds, shares, gaps)
    assert sum(map(len, found.values())) <= poisson.ppf(0.999, level * n / 1000)
    fleet, count = FleetWatch(level), 0
    for part in np.split(gaps, 500):
        fleet.add(part.tolist())
        count += len(fleet.look(0.0, 0.0))
    assert count <= poisson.ppf(0.999, level * n / 1000)


def test_batches_and_restarts_change_nothing() -> None:
    rows, model = (
        NORMAL + day(services((1.0, 6.0, 1.0, 1.0)), seed=2, begin=12.0, hours=2.0),
        services(),
    )
    whole = watched(rows, model)
    assert whole and whole == watched(rows, model, part=7)
    bank, raised = fp.StreamBank(model, alarms=1e-3, fleet=True), []
    for first in range(0, len(rows), 61):
        some = rows[first : first + 61]
        while some:
            size = bank.until_look or 1
            times, marks, entities = ([row[i] for row in some[:size]] for i in range(3))
            raised += [
                alarm for own in bank.observe(entities, times, marks).alarms for alarm in own
            ]
            bank, some = fp.StreamBank.restore(model, bank.state()), some[size:]
    assert raised == whole


def in_slices(monkeypatch: pytest.MonkeyPatch, entities: int, events: int) -> None:
    monkeypatch.setattr("fourpoint.streaming.bank.SLICE", entities)
    monkeypatch.setattr("fourpoint.streaming.bank.SLICE_EVENTS", events)


def test_a_look_in_slices_raises_the_alarms_of_a_look_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = [row for row in day(services(), seed=4, begin=12.0) if int(row[2][1:]) % 3 == 0]
    back = day(services(), seed=5, begin=24.0, hours=2.0)
    rows, model = NORMAL + quiet + back, services()

    def sorted_alarms(alarms: list[Alarm]) -> list[Alarm]:
        return sorted(alarms, key=lambda alarm: (alarm.time, alarm.of, str(alarm.name)))

    at_once = sorted_alarms(watched(rows, model))
    assert {alarm.of for alarm in at_once} >= {"entity", "fleet"}
    in_slices(monkeypatch, 3, 4)
    whole = watched(rows, model)
    assert sorted_alarms(whole) == at_once, "the time of a look is that of its first slice"
    assert whole == watched(rows, model, part=1) == watched(rows, model, part=5)
    bank, raised = fp.StreamBank(model, alarms=1e-3, fleet=True), []
    halfway = 0
    for place, (time, mark, entity) in enumerate(rows):
        raised += bank.observe([entity], [time], [mark]).alarms[0]
        if place % 7 == 0:
            halfway += bank._look is not None and bool(bank._look.noted)
            bank = fp.StreamBank.restore(model, bank.state())
    assert raised == whole and halfway > 50


def test_no_call_integrates_the_whole_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fp.Hawkes(baseline=1.0, branching=0.2, decay=4.0)
    scorer = Entities(model, None, 0.0, None)
    integral, integrated = ExcitationRows.integral, [0]

    def counted(rows: ExcitationRows, some: np.ndarray, *times: np.ndarray) -> np.ndarray:
        integrated[0] += len(some)
        return integral(rows, some, *times)

    monkeypatch.setattr(ExcitationRows, "integral", counted)
    count = 5000
    burst = Columns(
        np.linspace(0.1, 0.2, count).tolist(), [0] * count, [f"e{i}" for i in range(count)]
    )
    scorer.observe(burst)
    per_call = []
    for i in range(6000):
        integrated[0] = 0
        scorer.observe(Columns([0.3 + i * 1e-4], [0], [f"e{i * 7 % count}"]))
        per_call.append(integrated[0])
    assert max(per_call) <= SLICE + 1, "a slice, and the entity of the event"
    assert sum(per_call) >= count, "all of them are looked at in the end"


def test_a_batch_of_lines_has_one_slice_of_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    in_slices(monkeypatch, 10, 4)
    scorer = Entities(services(), None, 0.0, None)
    most = set()
    for time, mark, entity in NORMAL[:400]:
        most.add(scorer.most_lines)
        scorer.observe(Columns([time], [NAMES.index(mark)], [entity]))
    assert {1, 2, 3, 4, None} <= most
    assert Single(services(), None, 0.0, None).most_lines is None


@pytest.mark.parametrize(
    "change",
    [
        {"time": float("nan")},
        {"events": -1},
        {"slices": 0},
        {"noted": ["s1", "s1"]},
        {"noted": [7]},
        {"newcomers": ["nobody"]},
        {"newcomers": "s1"},
        {"silences": [{"time": 1.0}]},
        {"silences": 3},
    ],
)
def test_a_tampered_look_is_refused(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_slices(monkeypatch, 3, 4)
    bank = fp.StreamBank(services(), alarms=1e-3, fleet=True)
    for time, mark, entity in NORMAL[:66]:
        bank.observe([entity], [time], [mark])
    header, arrays = unpack("bank", fingerprint(services()), bank.state())
    assert header["fleet"]["look"]["noted"]
    header["fleet"]["look"] |= change
    own = {key: value for key, value in header.items() if key not in ("kind", "model")}
    state = pack("bank", fingerprint(services()), own, arrays)
    with pytest.raises(fp.UserError, match="expected"):
        fp.StreamBank.restore(services(), state).observe(["s1"], [500.0], ["login"])


def test_one_stream_names_its_types_too() -> None:
    model = fp.Hawkes(SPACE, baseline=[5.0, 5.0, 4.0, 3.0], branching=0.3, decay=4.0)
    changed = fp.Hawkes(SPACE, baseline=[5.0, 30.0, 4.0, 3.0], branching=0.3, decay=4.0)
    before, after = (fp.sample(m, 0.0, 20.0, 1, seed=6)[0] for m in (model, changed))
    times, marks = (
        np.concatenate([before.times, 20.0 + after.times]),
        np.concatenate([before.marks, after.marks]),
    )
    stream = fp.Stream(model)
    raised = [alarm for own in stream.observe_many(times, marks).alarms for alarm in own]
    first = next(alarm for alarm in raised if alarm.of == "type")
    assert (first.name, first.direction) == ("error", "more") and 20.0 < first.time < 23.0
    slow = fp.Stream(model, top=0)
    one_by_one = []
    for place, (time, mark) in enumerate(zip(times.tolist(), marks.tolist(), strict=True)):
        one_by_one += slow.observe(time, mark).alarms
        if place % 200 == 0:
            slow = fp.Stream.restore(model, slow.state())
    assert [(a.time, a.of, a.name, a.kind) for a in one_by_one] == [
        (a.time, a.of, a.name, a.kind) for a in raised
    ]


def test_shares_are_those_of_the_rates() -> None:
    assert shares_of(np.log([[1.0, 3.0], [2.0, 2.0]])) == pytest.approx(
        np.array([[0.25, 0.75], [0.5, 0.5]])
    )


def write_feed(path: Path, rows: list[Row]) -> Path:
    path.write_text(
        "".join(json.dumps({"time": t, "mark": m, "service": s}) + "\n" for t, m, s in rows)
    )
    return path


def saved(folder: Path) -> Path:
    about = {"start": 0.0, "stop": 100.0, "events": 40 * 100 * 2, "sequences": 40, "unit": "hours"}
    return fp.save(services(), folder, about=about)


def run_stream(model: Path, feed: Path, *options: str) -> tuple[int, str, list[dict]]:
    output = feed.with_suffix(".scores")
    output.unlink(missing_ok=True)
    found = CliRunner().invoke(
        app, ["stream", str(model), str(feed), "-o", str(output), "--by", "service", *options]
    )
    lines = output.read_text().splitlines() if output.exists() else []
    return (
        found.exit_code,
        found.output,
        [alarm for line in lines for alarm in json.loads(line)["alarms"]],
    )


def test_the_command_infers_the_start_from_the_training_window(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    goes_on = write_feed(tmp_path / "on.jsonl", day(services(), seed=7, begin=100.0, hours=4.0))
    code, said, alarms = run_stream(model, goes_on)
    assert code == 0 and "begins at 100, where the training window ended" in said and alarms == []
    far = write_feed(tmp_path / "far.jsonl", day(services(), seed=7, begin=5000.0, hours=4.0))
    code, said, alarms = run_stream(model, far)
    words = " ".join(said.split())
    assert (
        code == 2
        and "expected: --start TIME" in words
        and "received: a first event at 5000" in words
        and "--start first" in words
    )
    code, said, alarms = run_stream(model, far, "--start", "first")
    assert code == 0 and alarms == []
    within = write_feed(tmp_path / "within.jsonl", day(services(), seed=7, begin=0.0, hours=4.0))
    code, said, alarms = run_stream(model, within)
    assert code == 0 and "begins at 0, as in training" in said and alarms == []


def test_a_feed_goes_on_where_the_log_ended_whose_end_was_kept_for_early_stopping() -> None:
    log = LogFormat.from_dict({"time": "time", "clock": "stamps", "origin": "2024-01-01T00:00:00"})
    trained = Trained(0.0, 90.0, 900, 1, "days", log, until=100.0)
    told: list[str] = []
    assert inferred_start(trained, 100.2, 10.0, told.append) == 100.0
    assert told[0].startswith(
        "the observation begins at 2024-04-10 00:00, where the log ended that"
    )
    assert inferred_start(trained, 90.1, 10.0, told.append) == 90.0  # the part that was kept
    with pytest.raises(
        UserError, match="a first event at 2024-04-20 00:00, before which 100 events"
    ):
        inferred_start(trained, 110.0, 10.0, told.append)


def test_the_command_has_one_level_for_all_alarms(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    rows = day(services(), seed=8, begin=100.0, hours=4.0) + day(
        services((1.0, 6.0, 1.0, 1.0)), seed=9, begin=104.0, hours=4.0
    )
    feed = write_feed(tmp_path / "feed.jsonl", rows)
    code, _, alarms = run_stream(model, feed)
    first = next(alarm for alarm in alarms if alarm["of"] == "type")
    assert (
        code == 0
        and (first["name"], first["direction"]) == ("error", "more")
        and 104.0 < first["time"] < 105.0
    )
    assert run_stream(model, feed, "--alarms", "none")[2] == []
    eager = run_stream(model, feed, "--alarms", "0.5")[2]
    assert next(a for a in eager if a["name"] == "error")["time"] < first["time"]
    code, said, _ = run_stream(model, feed, "--alarms", "2")
    assert code == 2 and "--alarms as a number of false alarms per 1,000 events" in " ".join(
        said.split()
    )


@pytest.mark.parametrize("slices", [None, (3, 4)])
def test_a_killed_feed_raises_the_same_alarms(
    slices: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slices is not None:
        in_slices(monkeypatch, *slices)
    rows = day(services(), seed=8, hours=4.0) + day(
        services((1.0, 6.0, 1.0, 1.0)), seed=9, begin=4.0, hours=2.0
    )
    lines = write_feed(tmp_path / "all.jsonl", rows).read_text().splitlines(keepends=True)
    model, feed, output, state = (
        services(),
        tmp_path / "feed.jsonl",
        tmp_path / "scores",
        tmp_path / "state",
    )
    score_feed(
        model,
        input=tmp_path / "all.jsonl",
        output=tmp_path / "whole",
        by="service",
        tell=lambda text: None,
    )
    for end in (300, 501, 520, 523, 560, 571, 580, 590, 600, len(lines)):
        feed.write_text("".join(lines[:end]))
        score_feed(
            model, input=feed, output=output, state=state, by="service", tell=lambda text: None
        )
    alarms = []
    for path in (output, tmp_path / "whole"):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        alarms.append(
            [(row["line"], a["of"], a["name"], a["kind"]) for row in found for a in row["alarms"]]
        )
    assert output.read_bytes() == (tmp_path / "whole").read_bytes()
    assert alarms[0] == alarms[1] and ("type", "error", "burst") in {
        alarm[1:] for alarm in alarms[0]
    }
