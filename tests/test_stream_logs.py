"""`fourpoint stream` reads the log that `fit` read: the same columns, timestamps, origin and unit,
and the very same times.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.data.readers import Asked, read_with_notes
from fourpoint.events import UserError
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.log_format import LogFormat
from fourpoint.storage.checkpoints import about, restore
from fourpoint.streaming.feed.times import TimeReader

RUN = CliRunner()
KINDS = ("fire", "médical, urgent", "flood")


def call(*words: object, code: int = 0) -> Any:
    result = RUN.invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    assert "Traceback" not in result.stderr
    return result


def piped(fifo: Path, text: str, *words: object) -> Any:
    """Stream what a pipe sends."""
    os.mkfifo(fifo)
    thread = threading.Thread(target=fifo.write_text, args=(text,))
    thread.start()
    try:
        return call("stream", *words, "--input", fifo)
    finally:
        thread.join()


def moments(count: int, seed: int = 0) -> list[tuple[dt.datetime, str, str]]:
    """Times in March 2024 over a change of the clocks, with types and stations."""
    draw, now = random.Random(seed), dt.datetime(2024, 3, 29, 22, 15, 3)
    found = []
    for _ in range(count):
        now += dt.timedelta(microseconds=int(3.6e9 * draw.expovariate(4.0)))
        found.append((now, draw.choice(KINDS), draw.choice("abc")))
    return found


def quoted(word: str) -> str:
    return f'"{word}"' if "," in word else word


def csv_text(
    rows: list[tuple[dt.datetime, str, str]],
    write: Callable[[dt.datetime], str],
    header: bool = True,
) -> str:
    lines = [
        f"{i},{quoted(write(when))},{quoted(kind)},{who}"
        for i, (when, kind, who) in enumerate(rows)
    ]
    return "\n".join((["Row,Received At,Call Type,Station"] if header else []) + lines) + "\n"


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_csv_with_timestamps_and_its_later_rows_are_scored_as_fit_read_them(
    tmp_path: Path,
) -> None:
    rows, log, scores = moments(400), tmp_path / "log.csv", tmp_path / "scores"
    log.write_text(csv_text(rows[:300], lambda when: when.isoformat() + "+02:00"))
    options = ["--time", "Received At", "--mark", "Call Type", "--sequence", "none"]
    call("fit", log, "--model", "hawkes", "-o", tmp_path / "model", *options)
    call("stream", tmp_path / "model", log, "-o", scores)
    read = read_with_notes(log, Asked("Received At", "Call Type", "none")).data
    assert [row["time"] for row in rows_of(scores)] == read.times.tolist(), (
        "the very numbers that fit read"
    )
    assert [row["mark"] for row in rows_of(scores)] == [kind for _, kind, _ in rows[:300]]
    whole = log_likelihood(restore(tmp_path / "model"), read.batch())
    assert sum(row["log_density"] for row in rows_of(scores)) == pytest.approx(
        float(whole.value.sum()), abs=1e-6
    )

    later = csv_text(rows[300:], lambda when: (when - dt.timedelta(hours=2)).isoformat() + "Z")
    told = piped(
        tmp_path / "pipe",
        later,
        tmp_path / "model",
        "--start",
        read.times[-1],
        "-o",
        tmp_path / "later",
    ).stderr
    log.write_text(csv_text(rows, lambda when: when.isoformat() + "+02:00"))
    both = read_with_notes(log, Asked("Received At", "Call Type", "none", time_unit=read.unit)).data
    assert [row["time"] for row in rows_of(tmp_path / "later")] == both.times[300:].tolist()
    assert "100 events, 0 lines skipped" in told

    lines = "".join(
        json.dumps({"Received At": when.isoformat() + "+02:00", "Call Type": kind}) + "\n"
        for when, kind, _ in rows[300:]
    )
    piped(
        tmp_path / "pipe of JSON",
        lines,
        tmp_path / "model",
        "--start",
        read.times[-1],
        "-o",
        tmp_path / "json",
    )
    assert [{**row, "line": 0} for row in rows_of(tmp_path / "json")] == [
        {**row, "line": 0} for row in rows_of(tmp_path / "later")
    ]


def test_a_log_of_entities_has_a_stream_for_each_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    rows, log = moments(200), tmp_path / "log.csv"
    log.write_text(csv_text(rows, str))
    call(
        "fit",
        log,
        "--model",
        "poisson",
        "-o",
        tmp_path / "model",
        "--mark",
        "Call Type",
        "--by",
        "Station",
    )
    whole = log.read_bytes()
    files = [tmp_path / "model", log, "-o", tmp_path / "scores", "--state", tmp_path / "state"]
    for size in (20, 5000, len(whole)):
        log.write_bytes(whole[:size])
        told = call("stream", *files).stderr
    assert "one stream per 'Station', as in training" in told
    assert [row["entity"] for row in rows_of(tmp_path / "scores")] == [who for _, _, who in rows]
    read = read_with_notes(log, Asked(mark="Call Type", sequence="Station")).data
    for who in "abc":
        mine = [row["time"] for row in rows_of(tmp_path / "scores") if row["entity"] == who]
        assert mine == read.find(who).times.tolist()
    call("stream", tmp_path / "model", log, "--by", "none", "-o", tmp_path / "pooled")
    assert "entity" not in rows_of(tmp_path / "pooled")[0]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_days_of_the_calendar_are_windows_of_their_own(zone: str | None, tmp_path: Path) -> None:
    rows, log = moments(300), tmp_path / "log.csv"
    real = [
        row for row in rows if not (row[0].month == 3 and row[0].day == 31 and row[0].hour == 2)
    ]
    log.write_text(csv_text(real, str))
    options = ["--timezone", zone] if zone else []
    call(
        "fit",
        log,
        "--model",
        "poisson",
        "-o",
        tmp_path / "model",
        "--mark",
        "Call Type",
        "--sequence",
        "day",
        *options,
    )
    call("stream", tmp_path / "model", log, "-o", tmp_path / "scores")
    read = read_with_notes(log, Asked(mark="Call Type", sequence="day", timezone=zone)).data
    assert len(read) > 3
    for i, day in enumerate(read.ids):
        mine = [row["time"] for row in rows_of(tmp_path / "scores") if row["entity"] == day]
        assert mine == read[i].times.tolist(), day
    refused = call("stream", tmp_path / "model", log, "--by", "Station", code=2)
    assert "--by day, since the model was fitted to each day" in refused.stderr


CLOCKS: dict[str, tuple[Callable[[dt.datetime], str], dict[str, Any]]] = {
    "ISO": (str, {}),
    "ISO with a zone": (lambda when: when.isoformat() + "+02:00", {}),
    "UTC": (lambda when: f"{when} UTC", {}),
    "nanoseconds": (lambda when: f"{when:%Y-%m-%dT%H:%M:%S.%f}123", {}),
    "slashes": (lambda when: f"{when.year}/{when.month}/{when.day} {when:%H:%M:%S}", {}),
    "day first": (lambda when: f"{when:%d.%m.%Y %H:%M}", {}),
    "month first": (lambda when: f"{when.month}/{when.day}/{when.year} {when:%I:%M %p}", {}),
    "local": (lambda when: f"{when:%Y-%m-%d %H:%M:%S}", {"timezone": "America/New_York"}),
    "epoch": (lambda when: f"{when.timestamp():.0f}", {}),
    "epoch with a fraction": (lambda when: f"{when.timestamp():.6f}", {}),
    "epoch in milliseconds": (lambda when: f"{when.timestamp() * 1000:.0f}", {}),
    "date numbers": (lambda when: f"{when:%Y%m%d}", {}),
    "days": (lambda when: f"{when:%Y-%m-%d}", {}),
    "numbers": (lambda when: f"{(when - dt.datetime(2024, 3, 1)).total_seconds() / 3600:.5f}", {}),
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_every_way_to_write_a_time_gives_the_number_that_fit_read(
    clock: str, tmp_path: Path
) -> None:
    from fourpoint.streaming.feed.lines import Line
    from fourpoint.streaming.feed.reading import Asked as Columns, EventReader

    write, options = CLOCKS[clock]
    log = tmp_path / "log.csv"
    log.write_text(csv_text(moments(80), write))
    read = read_with_notes(log, Asked(sequence="none", mark="Call Type", **options)).data
    marks = {name: i for i, name in enumerate(read.marks.names)}
    reader = EventReader(marks, Columns(), TimeReader(read.log, read.unit), str(log))
    lines = [
        Line(i, text, len(text)) for i, text in enumerate(log.read_bytes().splitlines(), start=1)
    ]
    events = [event for event in map(reader, lines) if event is not None]
    assert [getattr(event, "time", event) for event in events] == read.times.tolist()
    assert [
        event.mark for event in events if not isinstance(event, UserError)
    ] == read.mark_ids.tolist()


def test_the_repeated_hour_in_autumn_is_told_apart_by_order() -> None:
    log = LogFormat("when", clock="stamps", zone="Europe/Berlin", origin="2024-10-26T22:00:00")
    times = TimeReader(log, "hours")
    hours = [
        times.text(f"2024-10-27 {text}").time
        for text in ("01:30", "02:15", "02:45", "02:10", "03:00")
    ]
    assert hours == pytest.approx([1.5, 2.25, 2.75, 3 + 1 / 6, 4.0])
    with pytest.raises(UserError, match="a time that exists in Europe/Berlin"):
        times.text("2024-03-31 02:30")


def test_what_is_saved_with_the_model(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(csv_text(moments(50), lambda when: when.isoformat() + "Z"))
    call(
        "fit",
        log,
        "--model",
        "poisson",
        "-o",
        tmp_path / "model",
        "--time-unit",
        "minutes",
        "--by",
        "Station",
    )
    found = about(tmp_path / "model")
    assert found["unit"] == "minutes" and found["events"] == 50 and found["sequences"] == 3
    log_format = LogFormat.from_dict(found["log"])
    assert (log_format.time, log_format.mark, log_format.sequence) == (
        "Received At",
        "Call Type",
        "Station",
    )
    first = moments(1)[0][0]
    assert log_format.origin == first.isoformat() and log_format.zoned and log_format.zone == "UTC"


def fitted(folder: Path, text: str, *words: str) -> Path:
    (folder / "log.csv").write_text(text)
    call("fit", folder / "log.csv", "--model", "poisson", "-o", folder / "model", *words)
    return folder / "model"


def refused(folder: Path, *words: object) -> str:
    """The error, after checking its three clauses, its exit code and that nothing was written."""
    before = sorted(folder.rglob("*"))
    result = call("stream", *words, code=2)
    assert all(
        f"{clause}:" in result.stderr for clause in ("expected", "received", "what to do")
    ), result.stderr
    assert sorted(folder.rglob("*")) == before and result.stdout == ""
    return str(result.stderr)


def test_contradictions_are_refused_in_three_clauses(tmp_path: Path) -> None:
    stamped = fitted(
        tmp_path,
        csv_text(moments(60), str),
        "--mark",
        "Call Type",
        "--sequence",
        "none",
        "--time-unit",
        "hours",
    )
    feed, out = tmp_path / "feed.csv", ["-o", tmp_path / "scores", "--state", tmp_path / "state"]

    def refusal(text: str, *words: object) -> str:
        feed.write_text(text)
        return refused(tmp_path, stamped, feed, *out, *words)

    good = csv_text(moments(60), str)
    assert "--time-unit hours, as in training" in refusal(good, "--time-unit", "days")
    assert "no --timezone, as in training" in refusal(good, "--timezone", "Europe/Berlin")
    assert "without a zone, as in training" in refusal(
        csv_text(moments(60), lambda when: f"{when}+01:00")
    )
    assert "a column 'Received At' in the header" in refusal(
        good.replace("Received At", "Dispatched")
    )
    assert "a column 'Call Type' in the header" in refusal(good.replace("Call Type", "Kind of it"))
    assert "Did you mean --time 'Received At'?" in refusal(good, "--time", "Received")
    assert "a column 'Where' in the header" in refusal(good, "--by", "Where")
    assert "one input" in refused(tmp_path, stamped, feed, "--input", feed)
    assert call("stream", stamped, feed, "--time-unit", "h", *out).exit_code == 0

    (tmp_path / "other").mkdir()
    numbers = fitted(
        tmp_path / "other",
        "t,kind\n" + "".join(f"{i / 2},{'ab'[i % 2]}\n" for i in range(40)),
        "--sequence",
        "none",
    )
    feed.write_text(good.replace("Received At", "t").replace("Call Type", "kind"))
    assert "a time as a number, as in training" in refused(tmp_path, numbers, feed)
    feed.write_text(json.dumps({"t": "2024-05-01T00:00:00", "kind": "a"}) + "\n")
    assert "a time as a number, as in training" in refused(tmp_path, numbers, feed)


def test_a_packed_file_is_refused_with_the_way_to_read_it(tmp_path: Path) -> None:
    import gzip

    text = csv_text(moments(60), str)
    model = fitted(tmp_path, text)
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert "zcat" in refused(tmp_path, model, packed, "-o", tmp_path / "scores")


def test_bad_rows_are_told_and_skipped(tmp_path: Path) -> None:
    rows = moments(60)
    model = fitted(tmp_path, csv_text(rows, str), "--mark", "Call Type", "--sequence", "none")
    good = csv_text(rows[:40], str)
    bad = [
        '1,2024-04-30 12:00:00,"fire',
        "1,2024-04-30 12:00:00,fire",
        "1,soon,fire,a",
        "1,,fire,a",
        "1,2024-04-30,,a",
        "1,2024-04-30,x,a",
    ]
    bad += [
        "1,2024-02-30,fire,a",
        f"1,{'9' * 400},fire,a",
        "1,nan,fire,a",
        f"1,2024-{'0' * 200},fire,a",
    ]
    (tmp_path / "feed.csv").write_text(good + "\n".join(bad) + "\n\n" + csv_text(rows[40:], str))
    told = call(
        "stream", model, tmp_path / "feed.csv", "-o", tmp_path / "scores", "--max-skipped", 1
    ).stderr
    assert f"60 events, {len(bad)} lines skipped" in told, (
        "the header of the second part is no event and no fault"
    )
    lines = [line for line in told.splitlines() if line.startswith("line ")]
    assert len(lines) == len(bad) and all(
        "expected " in line and "; received " in line for line in lines
    )


@pytest.mark.parametrize(
    "change",
    [
        {"time": 3},
        {"time": ""},
        {"clock": "sundial"},
        {"per_second": 0},
        {"per_second": True},
        {"zoned": "yes"},
        {"origin": 5},
        {"more": 1},
        {"mark": ["a"]},
    ],
)
def test_a_damaged_description_of_the_log_is_refused(change: dict[str, Any]) -> None:
    good = LogFormat("when", "what", clock="stamps", origin="2024-05-01T00:00:00").to_dict()
    assert LogFormat.from_dict(good).to_dict() == good
    with pytest.raises(UserError):
        LogFormat.from_dict({**good, **change})
    with pytest.raises(UserError):
        LogFormat.from_dict([change])


def test_times_of_random_moments_equal_those_of_the_reader() -> None:
    rng = np.random.default_rng(0)
    ticks = np.sort(rng.integers(0, 4 * 10**15, 200))
    texts = [str(np.datetime64(int(tick), "us")) for tick in ticks]
    for unit in ("seconds", "minutes", "hours", "days", "weeks", "milliseconds"):
        read = read_with_notes({"when": texts}, Asked(time_unit=unit)).data
        times = TimeReader(read.log, read.unit)
        assert [times.text(text).time for text in texts] == read.times.tolist(), unit


def test_alarms_have_dates_where_the_log_has_them(tmp_path: Path) -> None:
    hours = [f"2025-06-{1 + k // 8:02d} {9 + k % 8:02d}:00" for k in range(80)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["time", *hours, ""]))
    options = ["--sequence", "none", "--timezone", "Europe/Berlin", "--model", "poisson"]
    options += ["--calendar", "none"]
    call("fit", log, *options, "-o", tmp_path / "model")
    burst = [f"2025-06-11 09:{k:02d}" for k in range(40)]
    log.write_text("\n".join(["time", *hours, *burst, ""]))
    call("stream", tmp_path / "model", log, "-o", tmp_path / "scores", "--alarms", "0.5")
    alarms = [alarm for row in rows_of(tmp_path / "scores") for alarm in row["alarms"]]
    assert any(alarm["date"].startswith("2025-06-11 09:") for alarm in alarms)
