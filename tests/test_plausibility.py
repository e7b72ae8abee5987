"""Times that cannot be right: one event far in the future costs one line, not the rest of the
feed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.models import Hawkes
from fourpoint.storage.checkpoints import save

RUN = CliRunner()
CLAUSES = ("expected ", "; received ", ". ")


def hawkes_times(count: int, seed: int = 0) -> list[float]:
    """Times at two events per unit of time."""
    draw, now, times = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draw.expovariate(2.0)
        times.append(now)
    return times


def stream(
    folder: Path, times: list[float], *words: object, code: int, about: dict[str, Any] | None = None
) -> tuple[list[float], str]:
    """The times that were scored and what was printed on stderr, after checking the exit code."""
    save(
        Hawkes(baseline=1.5, branching=0.25, decay=2.0),
        folder / "model",
        about=about or {"start": 0.0},
    )
    feed, scores = folder / "feed.jsonl", folder / "scores.jsonl"
    feed.write_text(
        "".join(
            json.dumps({"time": time, "who": f"unit {i % 7}"}) + "\n"
            for i, time in enumerate(times)
        )
    )
    scores.unlink(missing_ok=True)
    line = [
        "stream",
        str(folder / "model"),
        "--input",
        str(feed),
        "-o",
        str(scores),
        *map(str, words),
    ]
    result = RUN.invoke(app, line)
    assert result.exit_code == code, f"{result.stderr}\n{result.exception!r}"
    assert "Traceback" not in result.stderr
    return [json.loads(row)["time"] for row in scores.read_text().splitlines()], result.stderr


@pytest.mark.parametrize("by", [(), ("--by", "who")])
@pytest.mark.parametrize("place", [2, 50, 199])
def test_milliseconds_for_seconds_cost_one_line(
    place: int, by: tuple[str, ...], tmp_path: Path
) -> None:
    times = hawkes_times(201)
    wrong = [*times[:place], 1000 * times[place], *times[place + 1 :]]
    scored, told = stream(tmp_path, wrong, *by, code=0)
    assert scored == [*times[:place], *times[place + 1 :]], (
        "the events after it are scored as if it had not come"
    )
    (line,) = [text for text in told.splitlines() if text.startswith(f"line {place + 1}: ")]
    assert all(clause in line for clause in CLAUSES) and "--max-gap" in line
    assert "200 events, 1 line skipped" in told


def test_the_check_can_be_switched_off_or_set(tmp_path: Path) -> None:
    times = [*hawkes_times(100), 60_000.0]
    assert len(stream(tmp_path, times, code=0)[0]) == 100
    assert len(stream(tmp_path, times, "--max-gap", "none", code=0)[0]) == 101
    assert len(stream(tmp_path, times, "--max-gap", 59_999, code=0)[0]) == 101
    assert (
        len(
            stream(
                tmp_path, [1.0, 2.0, 3.0, 6.5, 4.0], "--max-gap", 3, "--max-skipped", 0.2, code=0
            )[0]
        )
        == 4
    )
    for word in ("0", "-1", "nan", "soon"):
        told = RUN.invoke(
            app,
            [
                "stream",
                str(tmp_path / "model"),
                "--max-gap",
                word,
                "--input",
                str(tmp_path / "feed.jsonl"),
            ],
        )
        assert told.exit_code == 2 and "--max-gap as a positive number" in told.stderr


@pytest.mark.parametrize("by", [(), ("--by", "who")])
def test_a_feed_that_goes_on_after_a_long_outage_is_believed(
    by: tuple[str, ...], tmp_path: Path
) -> None:
    before, after = hawkes_times(400), [1e6 + time for time in hawkes_times(400, seed=1)]
    scored, told = stream(tmp_path, before + after, *by, code=0)
    assert scored == before + after[9:], "ten in a row are evidence enough"
    assert sum("in a row are accepted" in line for line in told.splitlines()) == 9


def test_one_source_of_five_in_another_unit_does_not_carry_the_feed_away(tmp_path: Path) -> None:
    draw = random.Random(2)
    times = hawkes_times(1000)
    mixed = [1000 * time if draw.random() < 0.2 and i > 3 else time for i, time in enumerate(times)]
    scored, told = stream(tmp_path, mixed, code=1)
    assert scored == [time for time, mine in zip(times, mixed, strict=True) if time == mine]
    assert "expected at most 5% of the lines to be skipped" in told


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_the_decision_does_not_depend_on_batches(batch: int) -> None:
    from fourpoint.streaming.feed.plausibility import TimeCheck

    draw = random.Random(3)
    times = [time * draw.choice((1, 1, 1, 1000)) for time in hawkes_times(300)] + [
        1e7 + time for time in hawkes_times(40)
    ]
    whole = TimeCheck(0.0, 0.0, rate=2.0)(times)
    parts = TimeCheck(0.0, 0.0, rate=2.0)
    pieces = [found for i in range(0, len(times), batch) for found in parts(times[i : i + batch])]
    assert [str(found) for found in pieces] == [str(found) for found in whole] and any(whole)


def test_a_restart_goes_on_with_the_same_doubts(tmp_path: Path) -> None:
    times = [*hawkes_times(30), *(1e6 + time for time in hawkes_times(30, seed=1))]
    unbroken, _ = stream(tmp_path, times, "--max-skipped", 1, code=0)
    state = tmp_path / "scores.state"
    save(Hawkes(baseline=1.5, branching=0.25, decay=2.0), tmp_path / "model", about={"start": 0.0})
    rows = (tmp_path / "feed.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "scores.jsonl").unlink()
    for there in (5, 33, 36, len(rows)):
        (tmp_path / "feed.jsonl").write_text("".join(rows[:there]))
        words = ["--state", str(state), "--max-skipped", "1", "-o", str(tmp_path / "scores.jsonl")]
        line = ["stream", str(tmp_path / "model"), "--input", str(tmp_path / "feed.jsonl"), *words]
        assert RUN.invoke(app, line).exit_code == 0
    assert [
        json.loads(row)["time"] for row in (tmp_path / "scores.jsonl").read_text().splitlines()
    ] == unbroken


def test_the_wall_clock_decides_where_times_have_a_calendar() -> None:
    from fourpoint.streaming.feed.plausibility import Calendar, TimeCheck

    day = 24.0
    check = TimeCheck(
        0.0,
        100.0,
        rate=50.0,
        calendar=Calendar(1000.0, 3600.0, now=lambda: 1000.0 + 3600.0 * 9000.0),
    )
    assert check([5000.0]) == [None], "a feed may begin any time before now"
    (fault,) = check([9000.0 + 1.1 * day])
    assert (
        fault is not None
        and "ahead of this machine's clock" in str(fault)
        and "1.1 days" in str(fault)
    )
    assert [check([9000.0 + 1.1 * day + i])[0] is None for i in range(30)] == [False] * 30, (
        "never believed"
    )
    assert check([5001.0, 7000.0])[1] is not None, "before now, and still too far"
    assert check([8990.0]) == [None], "now"


@pytest.mark.parametrize(
    ("bad", "share", "code"),
    [(0, 0.05, 0), (5, 0.05, 0), (6, 0.05, 1), (6, 0.06, 0), (1, 0, 1), (100, 1, 0)],
)
def test_skipped_lines_above_the_share_are_a_failure(
    bad: int, share: float, code: int, tmp_path: Path
) -> None:
    times = [*hawkes_times(100 - bad), *[-1.0] * bad]
    _, told = stream(
        tmp_path, times, *(("--max-skipped", share) if share != 0.05 else ()), code=code
    )
    message = (
        f"expected at most {100 * share:g}% of the lines to be skipped; received {bad} of 100 "
        f"lines ({bad}%). Repair"
    )
    assert (message in told) == bool(code)


def test_a_share_that_is_none_is_refused(tmp_path: Path) -> None:
    save(Hawkes(), tmp_path / "model")
    for share in ("-0.1", "1.5", "nan"):
        told = RUN.invoke(app, ["stream", str(tmp_path / "model"), "--max-skipped", share])
        assert told.exit_code == 2 and "--max-skipped as a share from 0 to 1" in told.stderr
