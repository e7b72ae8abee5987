"""Feeds: every line scored once and in order, bad lines told and skipped, and no crash, full disk
or restart that shows in the output.

Run as a script, this file starts feeds in forked children and kills them: ``test_feeds.py FOLDER
random|points``.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fourpoint import atomic
from fourpoint.atomic import TEMPORARY
from fourpoint.events import MarkSpace, UserError
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson
from fourpoint.streaming import store
from fourpoint.streaming.feed import lines as feed_lines, loop as feed_loop
from fourpoint.streaming.feed.events import Single
from fourpoint.streaming.feed.feed import score_feed
from fourpoint.streaming.feed.lines import Block, Line, Lines
from fourpoint.streaming.feed.loop import Ended
from fourpoint.streaming.feed.plausibility import Reached
from fourpoint.streaming.feed.state import (
    TAIL,
    FeedState,
    Output,
    Tally,
    digest,
    locked_state,
    read_state,
    write_state,
)
from fourpoint.streaming.state import MAGIC

MARKS = MarkSpace.categorical(["fire", "médical"])
LIMIT = (
    600.0  # seconds: longer than any machine takes, so that only what never happens is a failure
)
CLAUSES = ("expected ", "; received ", ". ")


def model() -> Hawkes:
    return Hawkes(MARKS, baseline=1.0, branching=0.4, decay=2.0)


def feed_text(lines: int, seed: int = 0) -> str:
    """Lines of a feed with times, marks and entities, here and there a blank or a bad one."""
    draw, now, text = random.Random(seed), 0.0, []
    for i in range(lines):
        now += draw.expovariate(2.0)
        event = {"time": now, "mark": draw.choice(MARKS.names), "who": f"unit {draw.randrange(9)}"}
        text.append(
            ""
            if i % 31 == 30
            else '{"time": -1}'
            if i % 37 == 36
            else json.dumps(event, ensure_ascii=bool(i % 2))
        )
    return "\n".join(text) + "\n"


class Place:
    """A folder with a feed; :meth:`run` scores it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.input, self.output, self.state = (
            folder,
            folder / "feed.jsonl",
            folder / "scores.jsonl",
            folder / "scores.state",
        )
        self.told: list[str] = []

    def tell(self, text: str) -> None:
        """Note what is told, but for the memory that entities take."""
        if "of memory per entity" not in text:
            self.told.append(text)

    def run(self, **options: Any) -> Ended:
        self.told = []
        known = {"input": self.input, "output": self.output, "state": self.state, "tell": self.tell}
        return score_feed(model(), **{**known, "max_skipped": 1.0, **options})

    def scores(self) -> list[dict[str, Any]]:
        return [
            json.loads(line, parse_constant=pytest.fail)
            for line in self.output.read_text().splitlines()
        ]

    def unbroken(self, **options: Any) -> bytes:
        """What one run without a state writes for the same input."""
        file = self.folder / "unbroken.jsonl"
        file.unlink(missing_ok=True)
        self.run(output=file, state=None, **options)
        return file.read_bytes()

    def content(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(self.folder.iterdir())}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.input.write_text(feed_text(100))
    return found


class Clock:
    """The time of the loop, which passes where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(feed_loop, "time", SimpleNamespace(monotonic=lambda: self.now))


def line_of(path: Path) -> int:
    """The input line that the state has reached."""
    state = read_state(path)
    return -1 if state is None else state.line


def refused(place: Place, *words: str, **options: Any) -> None:
    """The run is refused in three clauses with these words, and no file is changed."""
    before = place.content()
    with pytest.raises(UserError) as caught:
        place.run(**options)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert place.content() == before, "something was written"


# ---------------------------------------------------------------------- what is written


def test_a_feed_is_scored_as_a_stream_scores_it(place: Place) -> None:
    from fourpoint.streaming.stream import Stream

    ended, stream, total = place.run(), Stream(model()), 0.0
    rows, expected = (
        place.scores(),
        [json.loads(line) for line in place.input.read_text().splitlines() if "who" in line],
    )
    assert len(rows) == len(expected) == ended.tally.events == 95
    for row, event in zip(rows, expected, strict=True):
        found = stream.observe(event["time"], event["mark"])
        assert list(row) == ["line", "time", "mark", "log_density", "gap", "rate", "alarms"]
        assert (row["time"], row["mark"]) == (event["time"], event["mark"])
        assert (row["log_density"], row["gap"], row["rate"]) == (
            found.log_density,
            found.gap,
            found.rate,
        )
        total += found.log_density
    numbers = [i for i, line in enumerate(place.input.read_text().splitlines(), 1) if "who" in line]
    assert [row["line"] for row in rows] == numbers
    assert ended.code == 0 and ended.tally.log_likelihood == total
    assert (
        place.told[-1] == str(ended)
        and f"{total / 95:.4f}" in str(ended)
        and "95 events, 2 lines skipped" in str(ended)
    )


def test_entities_have_streams_of_their_own(place: Place) -> None:
    from fourpoint.streaming.stream import Stream

    place.run(by="who", every=50)
    streams: dict[str, Any] = {}
    rows, events = (
        place.scores(),
        [json.loads(line) for line in place.input.read_text().splitlines() if "who" in line],
    )
    assert len(rows) == len(events)
    for row, event in zip(rows, events, strict=True):
        found = streams.setdefault(event["who"], Stream(model())).observe(
            event["time"], event["mark"]
        )
        assert list(row) == [
            "line",
            "time",
            "mark",
            "entity",
            "log_density",
            "gap",
            "rate",
            "alarms",
        ]
        assert (row["time"], row["mark"], row["entity"]) == (
            event["time"],
            event["mark"],
            event["who"],
        )
        assert row["log_density"] == pytest.approx(found.log_density, abs=1e-9)
        assert (row["gap"], row["rate"]) == (
            pytest.approx(found.gap, abs=1e-9),
            pytest.approx(found.rate, abs=1e-9),
        )
    assert len(streams) == 9


def test_entities_with_bounded_memory(place: Place) -> None:
    from fourpoint.models import DAPP
    from fourpoint.streaming.stream import Stream

    dapp = DAPP(MARKS, heads=2, features=4, generator=(4,), knots=4).double().eval()
    files: dict[str, Any] = {
        "input": place.input,
        "output": place.output,
        "state": place.state,
        "tell": place.told.append,
    }
    whole = place.input.read_bytes()
    for size in (2500, len(whole)):
        place.input.write_bytes(whole[:size])
        score_feed(dapp, by="who", keep=3, **files)
    streams: dict[str, Any] = {}
    for row in place.scores():
        found = streams.setdefault(row["entity"], Stream(dapp, keep=3)).observe(
            row["time"], row["mark"]
        )
        assert row["log_density"] == pytest.approx(found.log_density, abs=1e-5)
    assert len(streams) == 9 and max(stream.count for stream in streams.values()) > 8
    with pytest.raises(UserError, match="Leave --keep out"):
        place.run(by="who", keep=3, state=None, output=place.folder / "no")


def test_entities_may_be_numbers_and_each_has_its_own_clock(place: Place) -> None:
    place.input.write_text(
        '{"time": 5, "mark": "fire", "who": 7}\n{"time": 1, "mark": "fire", "who": '
        '"ü"}\n{"time": 4, "mark": "fire", "who": "7"}\n'
    )
    assert place.run(by="who").tally.skipped == 1
    assert [row["entity"] for row in place.scores()] == ["7", "ü"]
    assert (
        place.told[0].startswith("line 3: expected")
        and "5.0" in place.told[0]
        and "4.0" in place.told[0]
    )


def test_the_start_counts_as_evidence(place: Place) -> None:
    place.input.write_text('{"time": 10, "mark": "fire"}\n')
    place.run(start=8.0, state=None)
    assert place.scores()[0]["gap"] == pytest.approx(4.0), "two units at two events per unit"


def test_what_is_not_finite_is_null(place: Place) -> None:
    from fourpoint.streaming.feed.encoding import as_json

    assert json.loads(as_json({"a": float("-inf"), "b": [{"c": float("nan")}], "d": 1.5})) == {
        "a": None,
        "b": [{"c": None}],
        "d": 1.5,
    }


# ---------------------------------------------------------------------- lines that are no events

BAD: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"time,mark", "one JSON object"),
    "cut short": (b'{"time": 3.5, "mark": "fi', "one JSON object"),
    "two objects": (b'{"time": 1} {"time": 2}', "one JSON object"),
    "not an object": (b"[3.5]", "in braces"),
    "a number": (b"3.5", "in braces"),
    "no time": (b'{"mark": "fire", "who": "a"}', '"time"'),
    "empty object": (b"{}", "no field"),
    "time as text": (b'{"time": "3.5", "mark": "fire", "who": "a"}', "without quotes"),
    "time as truth": (b'{"time": true, "mark": "fire", "who": "a"}', "number"),
    "time null": (b'{"time": null, "mark": "fire", "who": "a"}', "number"),
    "NaN": (b'{"time": NaN, "mark": "fire", "who": "a"}', "finite"),
    "infinite": (b'{"time": -Infinity, "mark": "fire", "who": "a"}', "finite"),
    "out of range": (b'{"time": 1e999, "mark": "fire", "who": "a"}', "finite"),
    "a huge integer": (b'{"time": 1' + b"0" * 400 + b', "mark": "fire", "who": "a"}', "finite"),
    "a huger integer": (b'{"time": ' + b"9" * 5000 + b', "mark": "fire", "who": "a"}', "JSON"),
    "backwards": (b'{"time": 1.0, "mark": "fire", "who": "a"}', "at least 3.0"),
    "no mark": (b'{"time": 3.5, "who": "a"}', "among fire, m"),
    "unknown mark": (b'{"time": 3.5, "mark": "flood", "who": "a"}', "'flood'"),
    "mark of another kind": (b'{"time": 3.5, "mark": {"a": 1}, "who": "a"}', '"mark"'),
    "mark as truth": (b'{"time": 3.5, "mark": true, "who": "a"}', '"mark"'),
    "not UTF-8": (b'{"time": 3.5, "mark": "m\xe9dical", "who": "a"}', "byte 0xe9 at position 24"),
    "UTF-16": ('{"time": 3.5, "mark": "fire", "who": "a"}'.encode("utf-16-le"), "JSON"),
    "a million characters": (
        b'{"time": 3.5, "mark": "fire", "who": "' + b"a" * 10**6 + b'"}',
        "at most 65,536 bytes",
    ),
    "deep": (b"[" * 60_000, "JSON"),
    "control characters": (b'{"time": 3.5, "mark": "\x1b[31m", "who": "a"}', "JSON"),
}
BAD_ENTITY = {
    "no entity": (b'{"time": 3.5, "mark": "fire"}', '"who"'),
    "entity null": (b'{"time": 3.5, "mark": "fire", "who": null}', "none"),
    "entity empty": (b'{"time": 3.5, "mark": "fire", "who": ""}', '"who"'),
    "entity a fraction": (b'{"time": 3.5, "mark": "fire", "who": 1.5}', "whole number"),
    "half a character": (b'{"time": 3.5, "mark": "fire", "who": "\\ud800"}', "half character"),
}
GOOD = [b'{"time": %d, "mark": "fire", "who": "a"}' % when for when in (2, 3, 4)]


@pytest.mark.parametrize(
    ("fault", "by"),
    [*((fault, None) for fault in BAD), *((fault, "who") for fault in {**BAD, **BAD_ENTITY})],
)
def test_a_bad_line_is_told_skipped_and_counted(fault: str, by: str | None, place: Place) -> None:
    bad, word = {**BAD, **BAD_ENTITY}[fault]
    place.input.write_bytes(b"\n".join(GOOD) + b"\n")
    clean = place.unbroken(by=by)
    place.input.write_bytes(b"\n".join([GOOD[0], b"", GOOD[1], bad, b" \r", GOOD[2]]) + b"\n")
    ended = place.run(by=by)
    assert (ended.code, ended.tally.events, ended.tally.skipped) == (0, 3, 1)
    assert (
        len(place.told) == 2 and place.told[0].startswith("line 4: ") and len(place.told[0]) < 400
    )
    assert all(clause in place.told[0] for clause in CLAUSES) and word in place.told[0], place.told[
        0
    ]
    assert place.told[0].isprintable(), "a feed cannot write to the terminal"
    assert [row["line"] for row in place.scores()] == [1, 3, 6]
    same = [{**row, "line": 0} for row in place.scores()]
    assert same == [{**json.loads(line), "line": 0} for line in clean.splitlines()], (
        "a bad line left a trace in the scores"
    )


def test_a_model_without_marks_takes_none(place: Place) -> None:
    place.input.write_text('{"time": 1}\n{"time": 2, "mark": null}\n{"time": 3, "mark": "fire"}\n')
    ended = score_feed(Poisson(), input=place.input, output=place.output, tell=place.told.append)
    assert (ended.tally.events, ended.tally.skipped) == (
        2,
        1,
    ) and "the model has none" in place.told[0]
    assert [row["mark"] for row in place.scores()] == [None, None]


def test_a_whole_number_is_the_mark_that_is_spelled_so(place: Place) -> None:
    place.input.write_text(
        '{"time": 1, "mark": 20}\n{"time": 2, "mark": "10"}\n{"time": 3, "mark": 0}\n'
    )
    score_feed(
        Hawkes(MarkSpace.categorical(["10", "20"])),
        input=place.input,
        output=place.output,
        tell=place.told.append,
    )
    assert [row["mark"] for row in place.scores()] == ["20", "10"] and "line 3" in place.told[0]


def test_only_bad_lines_are_a_failure(place: Place) -> None:
    place.input.write_bytes(b"nonsense\n" * 3)
    ended = place.run(every=1, max_skipped=0.05)
    assert (ended.code, ended.tally.skipped) == (1, 3) and "log-likelihood per event none" in str(
        ended
    )
    assert "at most 5% of the lines to be skipped; received 3 of 3 lines (100%)" in place.told[-2]
    assert place.output.read_bytes() == b"" and line_of(place.state) == 3


def test_a_byte_order_mark_and_windows_line_ends_are_read(place: Place) -> None:
    place.input.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(GOOD) + b"\r\n")
    assert place.run().tally.events == 3


# ---------------------------------------------------------------------- lines from files


@given(
    st.lists(st.sampled_from([b"", b"a", b"bcd", b"e" * 30, b"f" * 200]), max_size=12),
    st.integers(1, 5),
    st.integers(0, 12),
    st.booleans(),
)
def test_lines_are_those_of_the_file_whatever_the_chunks(
    parts: list[bytes], limit: int, stop: int, end: bool
) -> None:
    import tempfile
    from unittest.mock import patch

    content = b"\n".join(parts) + b"\n" * end
    expected = content.split(b"\n")
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.multiple(feed_lines, LONGEST=100, CHUNK=7, TAIL=20, OVERLAP=8),
    ):
        file = Path(folder, "feed")
        file.write_bytes(content)
        found: list[Line] = []
        lines = Lines(file)
        while more := lines.take(limit):
            found += more
            assert lines.offset == sum(len(one) + 1 for one in expected[: lines.number])
            if len(found) >= stop:
                state = FeedState(
                    lines.number,
                    lines.offset,
                    digest(lines.tail()),
                    0,
                    "",
                    {},
                    Tally(),
                    Reached(),
                    None,
                    b"",
                )
                lines.close()
                lines = Lines(file)
                lines.resume(state)
                stop = 99
        rest = lines.unfinished()
        lines.close()
    assert [line.number for line in found] == list(range(1, len(expected)))
    for line, text in zip(found, expected, strict=False):
        assert line.size == len(text) and line.content == (text if len(text) <= 100 else None)
    assert (b"" if rest is None else rest.content) == (
        expected[-1] if len(expected[-1]) <= 100 else None
    )


def test_memory_does_not_grow_with_a_line(place: Place) -> None:
    with place.input.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * 2**20)
        file.write(b"\n" + GOOD[0] + b"\n")
    place.run(state=None, output=place.folder / "warm")
    tracemalloc.start()
    try:
        place.run()
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert "41,943,040 bytes" in place.told[0] and place.scores()[0]["line"] == 2


def test_a_last_line_without_end_is_an_event_once(place: Place) -> None:
    place.input.write_bytes(b"\n".join(GOOD[:2]))
    assert place.run().tally.events == 2
    assert place.run().tally.events == 2, "nothing new"
    with place.input.open("ab") as file:
        file.write(b"  \n" + GOOD[2] + b"\n")
    ended = place.run()
    assert (ended.tally.events, ended.events, ended.tally.skipped) == (
        3,
        1,
        0,
    ) and "3 events (1 in this run)" in str(ended)
    assert [row["line"] for row in place.scores()] == [1, 2, 3]
    assert place.output.read_bytes() == place.unbroken()


def test_a_last_line_that_is_half_written_is_left_for_the_next_run(place: Place) -> None:
    place.input.write_bytes(GOOD[0] + b"\n" + GOOD[1][:20])
    ended = place.run()
    assert (ended.tally.events, ended.tally.skipped) == (
        1,
        0,
    ) and "left for the next run" in place.told[0]
    with place.input.open("ab") as file:
        file.write(GOOD[1][20:] + b"\n")
    assert place.run().tally.events == 2 and place.output.read_bytes() == place.unbroken()
    place.input.write_bytes(GOOD[0] + b"\n" + GOOD[1][:20])
    assert place.run(output=place.folder / "other", state=None).tally.skipped == 1, (
        "without a state there is no next run"
    )


def test_a_line_that_goes_on_after_it_was_scored_is_told(place: Place) -> None:
    place.input.write_bytes(GOOD[0])
    place.run()
    with place.input.open("ab") as file:
        file.write(b" and more\n" + GOOD[1] + b"\n")
    ended = place.run()
    assert (ended.tally.events, ended.tally.skipped) == (
        2,
        1,
    ) and "line 1: expected nothing more" in place.told[1]
    assert [row["line"] for row in place.scores()] == [1, 2]


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize("by", [None, "who"])
def test_a_feed_that_grew_is_gone_on_with(by: str | None, place: Place) -> None:
    whole = place.input.read_bytes()
    for size in (0, 1, 2_500, 2_501, 4_500, len(whole)):
        place.input.write_bytes(whole[:size])
        place.run(by=by)
    assert len(place.scores()) == 95 and not [
        path for path in place.folder.iterdir() if path.name.startswith(".")
    ]
    if by is None:
        assert place.output.read_bytes() == place.unbroken()


def test_state_and_output_are_those_of_one_point(place: Place) -> None:
    place.run(every=10)
    state = read_state(place.state)
    assert state is not None and (state.line, state.offset) == (100, place.input.stat().st_size)
    assert (
        state.written == place.output.stat().st_size
        and state.tally.events == 95
        and state.tally.skipped == 2
    )
    chosen = {"start": 0.0, "max_gap": "auto", "alarms": 0.001}
    assert state.settings == {
        "keep": None,
        "by": None,
        "time": None,
        "mark": None,
        "attended": None,
        **chosen,
        "covariates": None,
        "exposure": None,
    }
    assert state.output_tail == digest(
        place.output.read_bytes()[-TAIL:]
    ) and state.input_tail == digest(place.input.read_bytes()[-TAIL:])


def test_output_that_the_state_does_not_know_is_cut(place: Place) -> None:
    place.run()
    known = place.output.read_bytes()
    place.output.write_bytes(known + b'{"line": 101, "time": 77.0}\n{"line": 102, "ti')
    assert place.run().events == 0 and place.output.read_bytes() == known


def test_each_step_is_on_disk_before_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(file: Any, *rest: Any) -> Any:
            path = Path(str(file))
            if isinstance(file, int):
                path = Path(f"/proc/self/fd/{file}").readlink()
            done.append((name, "draft" if TEMPORARY.fullmatch(path.name) else path.name))
            return real(file, *rest)

        return run

    place.input.write_bytes(GOOD[0] + b"\n")
    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    place.run()
    output, draft, folder = "scores.jsonl", "draft", place.folder.name
    state = [
        ("fsync", output),
        ("write", draft),
        ("fsync", draft),
        ("replace", draft),
        ("fsync", folder),
    ]
    assert done == [("fsync", folder), *state, ("write", output), *state]


def test_the_state_is_written_as_often_as_asked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: list[int] = []

    def noted(path: Path, state: FeedState) -> None:
        at.append(state.line)
        write_state(path, state)

    monkeypatch.setattr(feed_loop, "write_state", noted)
    place.run(every=30)
    assert at == [0, 30, 60, 90, 100]


@pytest.mark.parametrize(("cost", "apart"), [(0.0, 2), (0.03125, 5), (0.0625, 10), (0.125, 20)])
def test_states_that_are_slow_to_write_are_written_less_often(
    cost: float, apart: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most a twentieth of the time: by a clock on which a line takes an eighth of a second, and
    a state its ``cost``.
    """
    at: list[int] = []
    clock, take = Clock(monkeypatch), Lines.block

    def slow(path: Path, state: FeedState) -> None:
        at.append(state.line)
        clock.now += cost

    def taken(lines: Lines, limit: int) -> Block:
        found = take(lines, limit)
        clock.now += 0.125 * len(found.contents)
        return found

    monkeypatch.setattr(feed_loop, "write_state", slow)
    monkeypatch.setattr(feed_loop, "EVERY", 2)
    monkeypatch.setattr(Lines, "block", taken)
    monkeypatch.setattr(Single, "batch", 1)
    place.run()
    assert at == [*range(0, 101, apart), 100]


def test_a_pipe_that_is_sent_again_is_skipped_to_its_line(place: Place) -> None:
    """A named pipe: what was scored is read again, checked and passed over; another feed is
    refused.
    """
    feed, fifo = place.input.read_bytes(), place.folder / "fifo"
    os.mkfifo(fifo)

    def send(content: bytes) -> Ended:
        def write() -> None:
            with suppress(BrokenPipeError):  # one that is refused need not be read to its end
                fifo.write_bytes(content)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            return place.run(input=fifo)
        finally:
            thread.join()

    assert send(feed[:4000]).code == 0 and "left for the next run" in place.told[-2]
    ended = send(feed)
    assert (
        ended.tally.events == 95
        and 0 < ended.events < 95
        and place.output.read_bytes() == place.unbroken()
    )
    for other, word in (
        (feed[:100], "of 100 bytes"),
        (feed_text(100, seed=1).encode() + feed, "differs before there"),
    ):
        with pytest.raises(UserError, match=word):
            send(other)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut in the stream": lambda content: content[:-1],
    "cut in the head": lambda content: content[:120],
    "cut in the first line": lambda content: content[:20],
    "longer": lambda content: content + b"\0",
    "a bit": lambda content: content[:200] + bytes([content[200] ^ 4]) + content[201:],
    "text": lambda content: b"notes of a meeting\n" * 20,
    "noise": lambda content: random.Random(0).randbytes(5000),
    "version": lambda content: content[: len(MAGIC)] + b"\x03" + content[len(MAGIC) + 1 :],
    "an earlier version": lambda content: b"fourpoint-feed 2 0\n{}",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_or_foreign_state_is_refused(how: str, place: Place) -> None:
    place.run()
    place.state.write_bytes(DAMAGE[how](place.state.read_bytes()))
    refused(
        place, {"version": "version 3", "an earlier version": "version 2"}.get(how, "scores.state")
    )


def test_a_state_of_another_model_input_output_or_option_is_refused(place: Place) -> None:
    place.run(start=0.0)
    refused(place, "--start 0.0, as when", "--start 1.0", start=1.0)
    refused(place, "no --by, as when", "--by who", by="who")
    refused(place, "no --keep", "--keep 5", keep=5)
    other = place.folder / "other.jsonl"
    other.write_text(feed_text(100, seed=1))
    refused(place, "differs", "other.jsonl", input=other)
    other.write_bytes(place.input.read_bytes()[:-1])
    refused(place, "up to byte", "other.jsonl of", input=other)
    refused(place, "no file", output=place.folder / "new.jsonl")
    scores = place.output.read_bytes()
    place.output.write_bytes(scores[:-1])
    refused(place, f"at least the {len(scores):,} bytes", f"{len(scores) - 1:,} bytes")
    place.output.write_bytes(scores[:-2] + b" \n")
    refused(place, "other content there")
    place.output.write_bytes(scores)
    before = place.content()
    with pytest.raises(UserError, match="model"):
        score_feed(
            Hawkes(MARKS), input=place.input, output=place.output, state=place.state, tell=print
        )
    assert place.content() == before


def test_what_is_there_is_not_overwritten(place: Place) -> None:
    place.output.write_text("precious\n")
    refused(place, "new or empty", "9 bytes")
    refused(place, "new or empty", state=None)
    place.output.write_text("")
    assert place.run().tally.events == 95


def test_options_that_do_not_go_together_are_refused(place: Place) -> None:
    refused(place, "--output FILE with --state", "standard output", output=None)
    refused(place, "--output FILE with --state", output=Path("/dev/null"))
    refused(place, "different files", output=place.state)
    refused(place, "different files", output=place.input, state=None)
    refused(place, "an existing folder", state=place.folder / "no" / "state")
    refused(place, "an existing folder", output=place.folder)
    refused(place, "--keep of at least 1", keep=0)
    refused(place, "--every of at least 1", every=0)
    refused(place, "names an event's entity", by="time")
    refused(place, "a file for --input", input=place.folder)
    fifo = place.folder / "fifo"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)
    try:
        with pytest.raises(UserError, match="Leave --follow out"):
            place.run(input=fifo, follow=True)
    finally:
        os.close(writer)


def test_one_process_at_a_time(place: Place) -> None:
    with locked_state(place.state), pytest.raises(UserError, match="another process"):
        place.run()
    assert not place.output.exists() and place.run().code == 0
    held = Output(place.output, read_state(place.state))
    with pytest.raises(UserError, match="another process"):
        place.run()
    held.close()
    assert place.run().code == 0


def test_a_lock_that_was_removed_is_not_held(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening a lock and holding it, its owner may have removed it: then the one that is
    there now counts.
    """
    lock, real = place.folder / ".scores.state.lock", atomic.hold
    tries: list[str] = []

    def removed_meanwhile(file: int, what: str, remedy: str) -> None:
        if not tries:
            lock.unlink()
        tries.append(what)
        real(file, what, remedy)

    monkeypatch.setattr(atomic, "hold", removed_meanwhile)
    with locked_state(place.state):
        assert len(tries) == 2 and lock.exists()
        with pytest.raises(UserError), locked_state(place.state):
            pass
    assert not lock.exists()


# ---------------------------------------------------------------------- full disks


def fail(monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[[Any], bool]) -> None:
    """``os.name`` says that the disk is full where its first argument is such."""
    real = getattr(os, name)

    def full(*arguments: Any) -> Any:
        if when(arguments[0]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, name, full)


def is_draft(file: Any) -> bool:
    path = Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else Path(file)
    return TEMPORARY.fullmatch(path.name) is not None


@pytest.mark.parametrize("name", ["write", "fsync", "replace"])
def test_a_full_disk_while_writing_state_leaves_the_last_good_one(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = place.input.read_bytes()
    place.input.write_bytes(whole[:1500])
    place.run()
    good = place.state.read_bytes()
    place.input.write_bytes(whole)
    with monkeypatch.context() as patch:
        calls: list[Any] = []
        fail(patch, name, lambda file: is_draft(file) and not calls.append(file) and len(calls) > 1)
        ended = place.run(every=20)
    assert ended.code == 1 and len(calls) == 5, "tried again each time"
    assert len(place.scores()) == 95, "scoring goes on"
    assert sum("No space left" in text and "tried again" in text for text in place.told) == 3
    assert (
        "No space left" in place.told[-2]
        and "goes on from" in place.told[-2]
        and place.told[-1] == str(ended)
    )
    assert place.state.read_bytes() == good and not [
        path for path in place.folder.iterdir() if is_draft(path)
    ]
    assert place.run().code == 0 and place.output.read_bytes() == place.unbroken()


def test_a_state_that_fails_once_is_written_at_the_next_turn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    fail(
        monkeypatch,
        "replace",
        lambda file: is_draft(file) and not calls.append(file) and len(calls) == 2,
    )
    assert (
        place.run(every=40).code == 0
        and len([text for text in place.told if "tried again" in text]) == 1
    )
    assert line_of(place.state) == 100


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_full_disk_while_writing_output_ends_the_run(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = getattr(os, name), [9000]

    def full(file: int, content: Any = b"") -> Any:
        if Path(f"/proc/self/fd/{file}").readlink().name != "scores.jsonl":
            return real(file, content) if name == "write" else real(file)
        if name == "fsync":
            room[0] -= 4000
            if room[0] < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(file)
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(file, bytes(content)[: room[0]])  # the last line may be written in part
        room[0] -= done
        return done

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        ended = place.run(every=25)
    state = read_state(place.state)
    assert (
        ended.code == 1
        and state is not None
        and state.written < place.output.stat().st_size
        and state.line in (25, 50)
    )
    assert ("No space left" if name == "write" else "Input/output error") in place.told[-2]
    assert place.run().code == 0 and place.output.read_bytes() == place.unbroken()


@pytest.mark.parametrize("where", ["taken", "scored", "written"])
def test_an_interruption_between_taking_and_writing_a_line_saves_no_state(
    where: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C may come at any moment."""
    owner, name = {
        "taken": (Lines, "block"),
        "scored": (Output, "write"),
        "written": (feed_loop.Loop, "_count"),
    }[where]
    real, calls = getattr(owner, name), [0]

    def interrupted(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 90 and where == "scored":
            raise KeyboardInterrupt
        found = real(*arguments)
        if calls[0] == 90:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        patch.setattr(Single, "batch", 1)
        with pytest.raises(KeyboardInterrupt):
            place.run(every=25)
    assert line_of(place.state) == 75
    assert place.run().code == 0 and place.output.read_bytes() == place.unbroken()


def test_a_failure_of_the_model_writes_no_state(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fourpoint.streaming.stream import Stream

    real = Stream.observe_many

    def fails(self: Any, when: Any, mark: Any, features: Any) -> Any:
        found = real(self, when, mark, features)
        if self.count >= 60:
            raise ArithmeticError("an integral that does not settle")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "observe_many", fails)
        with pytest.raises(ArithmeticError):
            place.run(every=25)
    assert line_of(place.state) == 50
    assert place.run().code == 0 and place.output.read_bytes() == place.unbroken()


# ---------------------------------------------------------------------- files that grow


def follow(place: Place, *steps: Callable[[], object], **options: Any) -> str:
    """Follow the feed, and take one of ``steps`` whenever the loop waits, the last of which must
    end it; the error it ended with.

    A loop that waits has seen all that the step before did, however long that took.
    """
    left, real = list(steps), Lines.wait

    def wait(lines: Lines, seconds: float) -> None:
        if not left:
            pytest.fail("the loop waits for more after the step that should have ended it")
        left.pop(0)()
        real(lines, seconds)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError) as caught:
        patch.setattr(Lines, "wait", wait)
        place.run(follow=True, **options)
    assert not left, f"the loop ended {len(left)} steps before the last one"
    return str(caught.value)


def add(place: Place, content: bytes) -> Callable[[], None]:
    def step() -> None:
        with place.input.open("ab") as file:
            file.write(content)

    return step


def test_a_followed_file_is_read_as_it_grows_and_its_rotation_is_an_error(place: Place) -> None:
    place.input.write_bytes(GOOD[0] + b"\n" + GOOD[1][:9])
    seen: list[int] = []

    def look() -> None:
        seen.append(len(place.scores()))

    moved = place.folder / "feed.1"
    message = follow(
        place,
        look,
        add(place, GOOD[1][9:]),
        look,
        add(place, b"\n" + GOOD[2] + b"\n"),
        look,
        lambda: place.input.rename(moved) and None,
    )
    assert seen == [1, 1, 3] and "moved or replaced" in message
    assert line_of(place.state) == 3 and "3 events" in place.told[-1]
    assert place.run(input=moved).tally.events == 3, (
        "the old file can be finished under its new name"
    )


def test_truncation_and_rewriting_of_a_followed_file_are_errors(place: Place) -> None:
    place.input.write_bytes(b"\n".join(GOOD[:2]) + b"\n")
    assert "cut to fewer bytes" in follow(place, lambda: os.truncate(place.input, 10))
    assert line_of(place.state) == 2
    place.input.write_bytes(b"\n".join(GOOD[:2]) + b"\n")
    other = b"\n".join([b'{"time": 9}'] * 40)
    assert "rewritten" in follow(place, lambda: place.input.write_bytes(other))


@pytest.mark.parametrize("by", [None, "who"])
def test_a_replaced_file_is_noticed_after_the_last_lines_of_the_old_one(
    by: str | None, place: Place
) -> None:
    place.input.write_bytes(GOOD[0] + b"\n")

    def replace() -> None:
        new = place.folder / "new"
        new.write_bytes(GOOD[2] + b"\n")
        add(place, GOOD[1] + b"\n" + GOOD[1] + b"\n")()
        new.replace(place.input)

    assert "moved or replaced" in follow(place, replace, by=by)
    assert [row["time"] for row in place.scores()] == [2.0, 3.0, 3.0] and line_of(place.state) == 3


def test_a_quiet_feed_saves_its_state(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, as soon as it was quiet for longer than QUIET, counted from the last line."""
    seen: list[tuple[int, int]] = []
    clock, writes, write = Clock(monkeypatch), [0], write_state
    place.input.write_bytes(GOOD[0] + b"\n")

    def counted(path: Path, state: FeedState) -> None:
        writes[0] += 1
        write(path, state)

    def later(seconds: float) -> Callable[[], None]:
        def step() -> None:
            seen.append((line_of(place.state), writes[0]))
            clock.now += seconds

        return step

    monkeypatch.setattr(feed_loop, "write_state", counted)
    steps = [
        later(feed_loop.QUIET),
        add(place, GOOD[1] + b"\n"),
        later(feed_loop.QUIET),
        later(0.125),
        later(60.0),
        later(0.0),
    ]
    follow(place, *steps, place.input.unlink)
    assert seen == [(0, 1), (0, 1), (0, 1), (2, 2), (2, 2)]


ENDS = [
    (signal.SIGTERM, True, 0),
    (signal.SIGTERM, False, 143),
    (signal.SIGINT, True, 130),
    (signal.SIGINT, False, 130),
]


@pytest.mark.parametrize(("number", "followed", "code"), ENDS)
def test_signals_end_a_feed_that_waits_with_its_state_written(
    number: int, followed: bool, code: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is followed, or a pipe that stays open; the handlers that were there before are
    there again.
    """
    before = signal.getsignal(number)
    fifo = place.folder / "fifo"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)
    os.write(writer, place.input.read_bytes())

    waits, stop, real = threading.Event(), [0.0], Lines.wait

    def wait(lines: Lines, seconds: float) -> None:
        if not waits.is_set():
            stop[0] = time.monotonic() + LIMIT
            waits.set()
        assert time.monotonic() < stop[0], (
            f"the signal did not end the feed within {LIMIT:g} seconds"
        )
        real(lines, seconds)

    def end() -> None:
        if waits.wait(LIMIT):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Lines, "wait", wait)
    thread = threading.Thread(target=end)
    thread.start()
    try:
        ended = place.run(input=place.input if followed else fifo, follow=followed)
    finally:
        thread.join()
        os.close(writer)
    assert waits.is_set(), "it ended before it waited"
    assert ended.code == code and ended.tally.events == 95 and line_of(place.state) == 100
    assert signal.getsignal(number) == before


def test_a_terminal_gets_a_bar_with_the_notices_above_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pty

    ours, theirs = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        """All that is shown: the longer it takes, the more often the bar is drawn, and a terminal
        that nobody reads is full at last.
        """
        with suppress(OSError):  # which is how the end of a terminal is told
            while part := os.read(ours, 65_536):
                parts.append(part)

    thread = threading.Thread(target=read)
    thread.start()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        score_feed(model(), input=place.input, output=place.output)
    thread.join()
    os.close(ours)
    shown = b"".join(parts).decode()
    assert "scoring" in shown and "line 37: expected" in shown and "95 events" in shown


# ---------------------------------------------------------------------- killed at any moment


def test_a_hundred_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    assert "100 kills, none of which shows" in _killed(tmp_path, "random")


def test_no_point_of_a_crash_loses_or_repeats_anything(tmp_path: Path) -> None:
    assert "points of a crash, none of which shows" in _killed(tmp_path, "points")


def _killed(folder: Path, how: str) -> str:
    """This file as a script: a process of one thread, which can fork safely whatever runs the
    tests.
    """
    found = subprocess.run(
        [sys.executable, __file__, str(folder), how], capture_output=True, text=True, timeout=LIMIT
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def kill_at_random(folder: Path) -> None:
    """Fifty children and fifty more, each killed after a moment, go on from one another; whoever
    gets to the end ends right.

    The moment is as long as the machine needs: longer after a child that got nowhere, shorter after
    one that was done before its kill, and then the feed begins anew.
    """
    draw, place = random.Random(0), Place(folder)
    for by in (None, "who"):
        place.input.write_text(feed_text(2500, seed=1))
        expected = place.unbroken(by=by, every=7)
        kills, at_work, reached, moment = 0, 0, -1, 0.08
        while kills < 50 or at_work < 10:
            child = _child(place, by=by, every=7)
            time.sleep(draw.uniform(0.0, moment))
            os.kill(child, signal.SIGKILL)
            killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
            before, reached = reached, line_of(place.state)
            assert reached >= before, "a state went backwards"
            kills, at_work = kills + killed, at_work + (killed and before < reached < 2500)
            if reached <= before:
                moment *= 1.1
            if not killed:
                assert place.output.read_bytes() == expected, (
                    "lost or repeated by one of those before the last"
                )
                place.output.unlink()
                place.state.unlink()
                reached, moment = -1, moment / 2
        assert os.waitpid(_child(place, by=by, every=7 if by else None), 0)[1] == 0
        assert place.output.read_bytes() == expected, "lost or repeated"
        place.output.unlink()
        place.state.unlink()
    print("100 kills, none of which shows")


def kill_at_points(folder: Path) -> None:
    """One child for each call that changes a file, killed after it or with half of it written, and
    for each point of a transaction of the store; another finishes its work.

    What a killed process has written stays, on disk or not, so nobody waits for the disk here.
    """
    place, points = Place(folder), 0
    os.fsync = lambda file: None
    place.input.write_text(feed_text(12))
    for by in (None, "who"):
        expected = place.unbroken(by=by, every=3)
        calls = [("after", ("write", "fsync", "replace", "ftruncate")), ("half", ("write",))]
        calls += [("transaction", ())] if by else []
        for how, names in calls:
            died, call = True, 0
            while died:
                call += 1
                child = _child(
                    place,
                    lambda how=how, names=names, call=call: _die(how, names, call),
                    by=by,
                    every=3,
                )
                died = os.WIFSIGNALED(os.waitpid(child, 0)[1])
                assert os.waitpid(_child(place, by=by, every=3), 0)[1] == 0, (by, how, call)
                assert place.output.read_bytes() == expected, (by, how, call)
                left = {path.name for path in folder.iterdir()}
                assert left == {"feed.jsonl", "scores.jsonl", "scores.state", "unbroken.jsonl"}, (
                    left
                )
                place.output.unlink()
                place.state.unlink()
                points += died
    assert points > 80, points
    print(f"{points} points of a crash, none of which shows")


def _child(place: Place, before: Callable[[], None] = lambda: None, **options: Any) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        before()
        code = place.run(**options).code
    finally:
        os._exit(code)


def _die(how: str, names: tuple[str, ...], call: int) -> None:
    """Let this process die at the ``call``-th of the system calls with these names."""
    left, write = [call], os.write

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0]:
                return real(*arguments)
            if how == "half":
                write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            else:
                real(*arguments)
            return os.kill(os.getpid(), signal.SIGKILL)

        return run

    for name in names:
        setattr(os, name, dying(getattr(os, name)))
    if how == "transaction":
        store._transaction = _mortal(store._transaction, dying(lambda: None))


def _mortal(real: Callable[..., Any], die: Callable[[], None]) -> Callable[..., Any]:
    """A transaction of the store that may die before it begins, before it is committed and
    after.
    """

    @contextmanager
    def run(connection: Any) -> Iterator[None]:
        die()
        with real(connection):
            yield
            die()
        die()

    return run


if __name__ == "__main__":
    {"random": kill_at_random, "points": kill_at_points}[sys.argv[2]](Path(sys.argv[1]))
