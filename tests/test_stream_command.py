"""The command `fourpoint stream` as users run it: files, pipes, signals, kills, a reader that goes
away, a disk that is full.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.models import DAPP, Hawkes
from fourpoint.storage.checkpoints import save
from fourpoint.streaming.feed.state import read_state

RUN = CliRunner()
LIMIT = (
    600.0  # seconds: longer than any machine takes, so that only what never happens is a failure
)


def call(*words: object, code: int = 0) -> Any:
    result = RUN.invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    return result


def refused(tmp_path: Path, *words: object) -> str:
    """The error, after checking that it has three clauses, exit code 2, no traceback, and that
    nothing was written.
    """
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = call("stream", *words, code=2)
    lines = result.stderr.strip().splitlines()
    assert [line.split(":")[0].strip() for line in lines[-3:]] == [
        "expected",
        "received",
        "what to do",
    ], result.stderr
    assert all(line.split(":", 1)[1].strip() for line in lines[-3:])
    assert "Traceback" not in result.stderr and result.stdout == ""
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, (
        "something was written"
    )
    return result.stderr


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process of its own, with pipes; it is killed if it is still there in the
    end.
    """
    line = [sys.executable, "-m", "fourpoint.cli.main", "stream", *map(str, words)]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def event(i: int) -> bytes:
    return json.dumps({"time": i / 2, "who": "ab"[i % 2]}).encode() + b"\n"


def until(process: subprocess.Popen[bytes], what: str, check: Callable[[], bool]) -> None:
    """Wait for ``what``, which the process does in its own time; one that ends before is a failure
    at once.
    """
    stop = time.monotonic() + LIMIT
    while not check():
        assert process.poll() is None, (
            f"expected {what}; the process ended with code {process.returncode}"
        )
        assert time.monotonic() < stop, f"expected {what}; it did not happen in {LIMIT:g} seconds"
        time.sleep(0.01)


def lines_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that was trained from time 0 on, and a feed of 1,000 events."""
    save(Hawkes(baseline=1.0, branching=0.4, decay=2.0), tmp_path / "model", about={"start": 0.0})
    (tmp_path / "feed.jsonl").write_bytes(b"".join(event(i) for i in range(1, 1001)))
    return tmp_path


def files(folder: Path) -> list[object]:
    return [
        folder / "model",
        "--input",
        folder / "feed.jsonl",
        "-o",
        folder / "scores.jsonl",
        "--state",
        folder / "scores.state",
    ]


# ---------------------------------------------------------------------- in one process


def test_a_file_is_scored_and_gone_on_with(folder: Path) -> None:
    result = call("stream", *files(folder))
    assert result.stdout == "" and "begins at 0, as in training" in result.stderr
    assert (
        "1,000 events, 0 lines skipped" in result.stderr
        and "log-likelihood per event" in result.stderr
    )
    rows = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert [row["line"] for row in rows] == list(range(1, 1001)) and rows[0][
        "log_density"
    ] == pytest.approx(-0.5)
    with (folder / "feed.jsonl").open("ab") as file:
        file.write(b"what\n" + event(1001))
    again = call("stream", *files(folder))
    assert (
        "continuing after line 1,000" in again.stderr
        and "line 1001: expected one JSON object" in again.stderr
    )
    assert "1,001 events (1 in this run), 1 line skipped" in again.stderr


def test_entities_memory_and_start_are_options(folder: Path) -> None:
    save(DAPP(heads=1, features=4, generator=(4,), knots=4), folder / "dapp")
    small = folder / "small.jsonl"
    small.write_bytes(b"".join(event(i) for i in range(10, 40)))
    call(
        "stream",
        folder / "dapp",
        "--input",
        small,
        "-o",
        folder / "kept",
        "--keep",
        5,
        "--start",
        4,
        "--attended",
    )
    rows = [json.loads(line) for line in (folder / "kept").read_text().splitlines()]
    assert len(rows) == 30 and len(rows[-1]["attended"]) == 1 and len(rows[-1]["attended"][0]) == 3
    call("stream", folder / "model", "--input", small, "-o", folder / "each", "--by", "who")
    rows = [json.loads(line) for line in (folder / "each").read_text().splitlines()]
    assert [row["entity"] for row in rows] == ["a", "b"] * 15


def test_what_cannot_be_done_is_refused(folder: Path) -> None:
    model, feed, scores, state = (
        folder / "model",
        folder / "feed.jsonl",
        folder / "scores.jsonl",
        folder / "scores.state",
    )
    assert "fourpoint fit" in refused(folder, folder / "no", "--input", feed, "-o", scores)
    assert "no.jsonl" in refused(
        folder, model, "--input", folder / "no.jsonl", "-o", scores, "--state", state
    )
    assert "existing folder" in refused(
        folder, model, "--input", feed, "-o", folder / "no" / "scores", "--state", state
    )
    assert "existing folder" in refused(
        folder, model, "--input", feed, "-o", scores, "--state", folder / "no" / "state"
    )
    assert "--output FILE with --state" in refused(folder, model, "--input", feed, "--state", state)
    assert "--keep of at least 1" in refused(
        folder, model, "--input", feed, "-o", scores, "--keep", 0
    )
    assert "finite" in refused(folder, model, "--input", feed, "-o", scores, "--start", "nan")
    state.write_bytes(b"fourpoint-feed 2 0\n{}")
    assert "a state in safetensors" in refused(folder, *files(folder))


# ---------------------------------------------------------------------- in a process of its own


def test_pipes_answer_each_line_at_once_and_end_with_their_writer(folder: Path) -> None:
    with started(folder / "model", "--max-skipped", 0.25) as process:
        assert process.stdin and process.stdout and process.stderr
        for i in (1, 2, 3):
            process.stdin.write(event(i) if i != 2 else b"\xff\n")
            if i != 2:
                assert json.loads(process.stdout.readline())["line"] == i, (
                    "before the next line is written"
                )
        process.stdin.write(event(4)[:-1])
        process.stdin.close()
        assert json.loads(process.stdout.read())["line"] == 4 and process.wait() == 0
        told = process.stderr.read().decode()
    assert (
        "line 2: expected text in UTF-8; received byte 0xff" in told
        and "3 events, 1 line skipped" in told
    )


def test_a_followed_file_is_ended_by_sigterm(folder: Path) -> None:
    scores = folder / "scores.jsonl"
    with started(*files(folder), "--follow") as process:
        assert process.stderr
        until(process, "the scores of what is there", lambda: lines_of(scores) == 1000)
        with (folder / "feed.jsonl").open("ab") as file:
            file.write(event(1001))
        until(process, "the score of the line that was added", lambda: lines_of(scores) == 1001)
        process.terminate()
        assert process.wait(LIMIT) == 0
        told = process.stderr.read().decode()
    found = read_state(folder / "scores.state")
    assert (
        found is not None
        and found.line == 1001
        and "1,001 events" in told
        and "Traceback" not in told
    )


def test_a_killed_process_is_gone_on_with(folder: Path) -> None:
    """It follows a part of the feed, and so cannot be done before it is killed; its state is less
    than seven lines behind its scores.
    """
    call("stream", folder / "model", "--input", folder / "feed.jsonl", "-o", folder / "unbroken")
    feed, scores = folder / "feed.jsonl", folder / "scores.jsonl"
    whole = feed.read_bytes().splitlines(keepends=True)
    for there in (300, 705):
        feed.write_bytes(b"".join(whole[:there]))
        with started(*files(folder), "--every", 7, "--follow") as process:
            until(
                process,
                f"the scores of {there} lines",
                lambda there=there: lines_of(scores) == there,
            )
            process.kill()
            assert process.wait(LIMIT) == -signal.SIGKILL
        found = read_state(folder / "scores.state")
        assert found is not None and there - 7 < found.line <= there
    feed.write_bytes(b"".join(whole))
    call("stream", *files(folder))
    assert scores.read_bytes() == (folder / "unbroken").read_bytes()


def test_a_reader_that_goes_away_and_a_full_disk_are_told(folder: Path) -> None:
    with started(folder / "model", "--input", folder / "feed.jsonl") as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(LIMIT) == 1
        told = process.stderr.read().decode()
    assert (
        "expected a process that reads the output; received a pipe that was closed" in told
        and "Traceback" not in told
    )
    if Path("/dev/full").exists():
        full = call(
            "stream", folder / "model", "--input", folder / "feed.jsonl", "-o", "/dev/full", code=1
        )
        assert "No space left on device" in full.stderr and full.stderr.splitlines()[-1].startswith(
            "0 events"
        )
