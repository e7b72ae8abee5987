"""Streams with covariates, an exposure, a calendar and event features equal the batch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from click.testing import Result
from test_event_features import dapp, dense, hawkes, two_types
from test_laws import build, data
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.events import Context, Dataset, Sequence, Steps, UserError
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models import Hawkes, Poisson
from fourpoint.models.base import PointProcess
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.stream import Stream

LEVELS = [(0.0, 1.0), (4.0, 0.5), (6.1, 2.0), (20.0, 0.0), (30.0, 1.0)]
NAMES = [
    ("poisson-calendar", 1),
    ("hawkes-calendar", 3),
    ("modulated-calendar", 1),
    ("sum-calendar", 3),
    ("spline-exp-calendar", 1),
    ("sum-dense-calendar", 1),
    ("keep-calendar", 1),
    ("deep-calendar", 3),
    ("poisson", 3),
    ("hawkes", 3),
    ("sum", 3),
]


def exposed(sequence: Sequence, every: int = 1) -> Sequence:
    """Each ``every``-th event under an exposure that changes, and is 0 after them."""
    times, values = np.array(LEVELS).T
    steps = Steps(("exposure",), times, values[:, None], np.array([0, len(LEVELS)]))
    return Sequence(
        sequence.times[::every],
        sequence.marks[::every],
        start=sequence.start,
        stop=sequence.stop,
        space=sequence.space,
        context=replace(sequence.context or Context(), exposure=steps),
    )


def exact(model: PointProcess, sequence: Sequence) -> tuple[float, float]:
    """The log-likelihood of the batch, and how near a stream has to come."""
    found = log_likelihood(model, sequence.batch(), tolerance=1e-8 / (1 + len(sequence)))
    allowed = 1e-6 * (1 + len(sequence) + float(found.integral)) + float(found.error)
    return float(found.value), allowed


@pytest.mark.parametrize(("name", "marks"), NAMES, ids=[f"{n}-{m}" for n, m in NAMES])
def test_a_stream_equals_the_batch_with_covariates_and_exposure(name: str, marks: int) -> None:
    model = build(name, marks)
    for sequence in map(exposed, data(marks, name=name)):
        stream = Stream(model, start=sequence.start, context=sequence.context)
        pairs = list(zip(sequence.times.tolist(), sequence.marks.tolist(), strict=True))
        middle = len(pairs) // 2
        found = [stream.observe(*pair) for pair in pairs[:middle]]
        again = Stream.restore(model, stream.state(), context=sequence.context)
        rest = again.observe_many(sequence.times[middle:], sequence.marks[middle:])
        again.advance(sequence.stop)
        expected, allowed = exact(model, sequence)
        assert again.log_likelihood == pytest.approx(expected, abs=allowed)
        assert again.count == len(sequence) and not rest.refused
        batch = sequence.batch()
        with torch.no_grad():
            rates = model.intensity(model.encode(batch), batch.times).sum(-1)[0]
        assert sequence.context is not None and sequence.context.exposure is not None
        factors = sequence.context.exposure.at(0, sequence.times)[:, 0]
        # Events at one time do not see each other in `intensity`.
        alone = np.diff(sequence.times, prepend=-np.inf) > 0
        streamed = np.concatenate([[one.rate for one in found], rest.rate])
        np.testing.assert_allclose(streamed[alone], (factors * rates.numpy())[alone], rtol=1e-9)


@pytest.mark.parametrize("name", ["poisson-calendar", "hawkes-calendar", "sum-calendar", "hawkes"])
def test_a_bank_equals_the_batch_with_covariates_and_exposure(name: str) -> None:
    model = build(name, 1)
    source = exposed(data(1, name=name)[2])
    other = exposed(data(1, name=name)[2], every=2)
    bank = StreamBank(model, start=source.start, context=source.context)
    both = Dataset.from_sequences([source, other])
    order = np.argsort(both.times, kind="stable")
    whose = np.repeat(["a", "b"], both.lengths)[order].tolist()
    first = len(order) // 2
    bank.observe(whose[:first], both.times[order][:first])
    bank = StreamBank.restore(model, bank.state(), context=source.context)
    rest = bank.observe_many(whose[first:], both.times[order][first:])
    bank.advance(source.stop)
    assert not rest.refused
    for entity, sequence in (("a", source), ("b", other)):
        expected, allowed = exact(model, sequence)
        assert bank.log_likelihood(entity) == pytest.approx(expected, abs=allowed)


@pytest.mark.parametrize("make", [hawkes, dapp, dense])
def test_streams_take_event_features(make: Callable[..., PointProcess]) -> None:
    log = two_types()
    model = make(log, 0.5, -0.3)
    assert log.features is not None
    for i in range(2):
        sequence = log[i]
        own = log.features[log.offsets[i] : log.offsets[i + 1]]
        stream = Stream(model, start=sequence.start)
        middle = len(sequence) // 2
        for k in range(middle):
            stream.observe(sequence.times[k], int(sequence.marks[k]), own[k])
        again = Stream.restore(model, stream.state())
        again.observe_many(sequence.times[middle:], sequence.marks[middle:], own[middle:])
        again.advance(sequence.stop)
        expected, allowed = exact(model, sequence)
        assert again.log_likelihood == pytest.approx(expected, abs=allowed)
        bank = StreamBank(model, start=sequence.start)
        bank.observe(["a"] * len(sequence), sequence.times, sequence.marks, own)
        bank.advance(sequence.stop)
        assert bank.log_likelihood("a") == pytest.approx(expected, abs=allowed)
    ahead = again.forecast(0.5, paths=5)
    assert np.isfinite(ahead.counts.mean).all()
    with pytest.raises(UserError, match="the event features .*; received events without them"):
        stream.observe(sequence.stop + 1, 0)
    before = stream.time
    refused = stream.observe_many(
        [sequence.stop + 1, sequence.stop + 2], [0, 0], [own[0], own[0] * np.nan]
    ).refused
    assert list(refused) == [1] and "a finite" in str(refused[1])
    assert stream.time == sequence.stop + 1 > before
    with pytest.raises(UserError, match="no event features, since .* without any; received some"):
        Stream(Hawkes()).observe(1.0, features=[2.0])


def test_events_while_nothing_is_recorded_are_refused() -> None:
    context = exposed(Sequence([], start=0.0, stop=1.0)).context
    model = Hawkes(baseline=0.5, branching=0.5, decay=1.0)
    stream = Stream(model, context=context)
    with pytest.raises(UserError, match="no event while the exposure is 0.*at 25.0. Correct"):
        stream.observe(25.0)
    assert (stream.time, stream.count) == (0.0, 0)
    found = stream.observe_many([1.0, 25.0, 31.0])
    assert list(found.refused) == [1] and stream.count == 2
    bank = StreamBank(model, context=context)
    found = bank.observe_many(["a", "a", "a"], [1.0, 25.0, 31.0])
    assert list(found.refused) == [1] and bank.count("a") == 2
    assert stream.intensity(40.0) > 0 and bank.intensity("a", 40.0) > 0


def test_forecasts_of_a_stream_have_its_exposure() -> None:
    steps = Steps(("exposure",), np.array([0.0, 10.0]), np.array([[1.0], [3.0]]), np.array([0, 2]))
    stream = Stream(Poisson(), start=0.0, context=Context(exposure=steps))
    stream.observe(9.0)
    stream.advance(10.0)
    found = stream.forecast(20.0, paths=400, seed=1)
    assert abs(float(found.counts.mean.sum()) - 60.0) < 4 * np.sqrt(60 / 400)
    assert any("carried forward" in note for note in found.notes)


def test_covariates_that_a_model_does_not_know_are_refused() -> None:
    model = build("hawkes-calendar", 1)
    known = data(1, name="hawkes-calendar")[0].context
    assert known is not None and known.covariates is not None
    with pytest.raises(UserError, match="the covariates temperature, .*; received no covariates"):
        Stream(model)
    other = replace(known, covariates=replace(known.covariates, names=("rain",)))
    with pytest.raises(UserError, match="the covariates temperature.*none called temperature"):
        StreamBank(model, context=other)
    with pytest.raises(UserError, match="no covariates, since .*a table with temperature. Leave"):
        Stream(Hawkes(), context=known)


# ---------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 12 days with timestamps in Berlin across the change of clocks, amounts, the weather
    of every six hours and a staff that changes twice, and Hawkes and Poisson models of them.
    """
    folder = tmp_path_factory.mktemp("logs")
    random = np.random.default_rng(0)
    first = datetime(2025, 3, 24, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    hours = np.sort(random.uniform(0, 24 * 12 - 1, 80))
    weather = np.arange(0, 24 * 12, 6.0)

    def stamp(hour: float) -> str:
        moment = datetime.fromtimestamp(first + 3600 * hour, ZoneInfo("Europe/Berlin"))
        return moment.strftime("%Y-%m-%d %H:%M:%S")

    amounts = random.exponential(10, len(hours)).round(2)
    rows = zip(map(stamp, hours), amounts, strict=True)
    (folder / "log.csv").write_text("when,amount\n" + "".join(f"{t},{a}\n" for t, a in rows))
    table = "".join(
        f"{stamp(h)},{x:.1f}\n" for h, x in zip(weather, random.normal(size=48), strict=True)
    )
    (folder / "weather.csv").write_text("when,temperature\n" + table)
    shifts = "".join(f"{stamp(h)},{n}\n" for h, n in ((0.0, 2), (50.0, 5), (170.0, 1)))
    (folder / "staff.csv").write_text("when,staff\n" + shifts)
    for model in ("hawkes", "poisson"):
        words = ["fit", "log.csv", "--timezone", "Europe/Berlin", "--sequence", "none"]
        words += ["--mark", "none", "--model", model, "--calendar", "hour", "-o", model]
        words += ["--covariates", "weather.csv", "--exposure", "staff.csv"]
        words += ["--window", "2025-03-24", "2025-04-05", "--time-unit", "hours"]
        if model == "hawkes":
            words += ["--event-features", "amount"]
        assert run(folder, *words).exit_code == 0
    return folder


def run(folder: Path, *words: str) -> Result:
    with contextlib.chdir(folder):
        return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.mark.parametrize("model", ["hawkes", "poisson"])
def test_the_command_scores_with_tables_and_features(logs: Path, model: str) -> None:
    tables = ["--covariates", "weather.csv", "--exposure", "staff.csv"]
    scored = run(logs, "stream", model, "log.csv", "-o", f"{model}.jsonl", *tables)
    assert scored.exit_code == 0, scored.output
    found = [json.loads(line) for line in (logs / f"{model}.jsonl").read_text().splitlines()]
    window = ["--window", "2025-03-24", "2025-04-05"]
    evaluated = run(
        logs, "evaluate", model, "log.csv", "--split", "all", *window, *tables, "--json"
    )
    assert evaluated.exit_code == 0, evaluated.output
    whole = json.loads(evaluated.stdout)
    # The window of `evaluate` goes on for a silent hour after the last event.
    total = whole["log_likelihood_per_event"] * whole["events"]
    assert len(found) == whole["events"] == 80
    assert 0 < sum(one["log_density"] for one in found) - total < 10


def test_a_feed_goes_on_with_tables_that_have_grown(logs: Path) -> None:
    """The first half with the weather known so far, the rest with the whole table: as in one go."""
    lines = (logs / "log.csv").read_text().splitlines(keepends=True)
    weather = (logs / "weather.csv").read_text().splitlines(keepends=True)
    (logs / "early.csv").write_text("".join(weather[:30]))
    (logs / "feed.csv").write_text("".join(lines[:41]))
    staff = ["--exposure", "staff.csv", "--state", "s.state", "-o", "s.jsonl"]
    first = run(logs, "stream", "hawkes", "feed.csv", "--covariates", "early.csv", *staff)
    assert first.exit_code == 0, first.output
    (logs / "feed.csv").write_text("".join(lines))
    second = run(logs, "stream", "hawkes", "feed.csv", "--covariates", "weather.csv", *staff)
    assert second.exit_code == 0, second.output
    tables = ["--covariates", "weather.csv", "--exposure", "staff.csv"]
    run(logs, "stream", "hawkes", "log.csv", "-o", "once.jsonl", *tables)
    assert (logs / "s.jsonl").read_text() == (logs / "once.jsonl").read_text()
    refused = run(logs, "stream", "hawkes", "feed.csv", "--covariates", "weather.csv", *staff[2:])
    assert refused.exit_code == 2 and "expected: --exposure, as when" in refused.output


def test_the_end_of_a_table_is_told(logs: Path) -> None:
    weather = (logs / "weather.csv").read_text().splitlines(keepends=True)
    (logs / "short.csv").write_text("".join(weather[:20]))
    tables = ["--covariates", "short.csv", "--exposure", "staff.csv"]
    found = run(logs, "stream", "poisson", "log.csv", "-o", "short.jsonl", *tables)
    assert found.exit_code == 0
    assert found.output.count("covariates: the table ends before the event at") == 1


def test_what_a_feed_lacks_is_said_in_three_clauses(logs: Path) -> None:
    found = run(logs, "stream", "poisson", "log.csv")
    assert found.exit_code == 2
    assert "expected: the covariates temperature" in found.output and "--covariates" in found.output
    tables = ["--covariates", "weather.csv", "--exposure", "staff.csv"]
    bare = [line.split(",")[0] for line in (logs / "log.csv").read_text().splitlines()]
    (logs / "bare.csv").write_text("\n".join(bare) + "\n")
    found = run(logs, "stream", "hawkes", "bare.csv", *tables)
    assert found.exit_code == 2 and "a column 'amount' in the header" in found.output
    words = '{"when": "2025-03-24 03:00:00", "amount": "x"}\n{"when": "2025-03-24 04:00:00"}\n'
    (logs / "odd.jsonl").write_text(words + '{"when": "2025-03-24 05:00:00", "amount": 3}\n')
    found = run(logs, "stream", "hawkes", "odd.jsonl", "-o", "odd.scores", "--start", "0", *tables)
    assert found.exit_code == 1  # two of three lines were skipped
    assert "line 1: expected \"amount\" as a number; received 'x'" in found.output
    assert 'line 2: expected "amount", an event feature' in found.output
    own = (logs / "weather.csv").read_text().replace("\n", ",a\n").replace("ture,a", "ture,seq_id")
    (logs / "own.csv").write_text(own)
    found = run(logs, "stream", "poisson", "log.csv", "--covariates", "own.csv")
    assert found.exit_code == 2 and "that holds for all streams" in found.output
    late = (logs / "weather.csv").read_text().splitlines(keepends=True)
    (logs / "late.csv").write_text("".join([late[0], *late[9:]]))
    found = run(logs, "stream", "poisson", "log.csv", "--covariates", "late.csv")
    assert found.exit_code == 2 and "covariates from the start of the window" in found.output
