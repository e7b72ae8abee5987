"""What ended in a traceback or in a number that is none: closed streams, damaged archives, extreme
times, many types and fields.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data.inspecting import inspect
from fourpoint.events import EventDataError, UserError
from fourpoint.inference.likelihood import check_memory
from fourpoint.memory import set_memory_limit
from fourpoint.models import CATALOGUE, MODELS
from fourpoint.ops.periodogram import coarse_resolution


def refused(*words: object) -> str:
    """The message of a command that ends with exit code 2 and three clauses."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    assert all(clause in result.stderr for clause in ("expected:", "received:", "what to do:"))
    return result.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log.csv"
    file.write_text("t,mark,split\n1,a,x\n2,b,x\n3,a,x\n")
    return file


# ---------------------------------------------------------------------- standard streams


def shell(line: str, folder: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a shell's command line; `fourpoint` is this Python's."""
    line = line.replace("fourpoint", f"{sys.executable} -m fourpoint")
    here = os.environ | {"PYTHONPATH": str(Path(fp.__file__).absolute().parents[1])}
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, cwd=folder, timeout=120, env=here
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a shell that closes streams is needed")
def test_closed_standard_streams_are_no_traceback(log: Path, tmp_path: Path) -> None:
    code, out, err = shell(
        "fourpoint data log.csv 2>&-; fourpoint data none.csv 2>&- <&-; echo $?", tmp_path
    )
    assert "a (2), b (1)" in out and out.endswith("2\n") and not err
    code, out, err = shell("fourpoint data log.csv >&-", tmp_path)
    assert code == 2 and "a standard output for results" in err and "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_is_no_traceback(log: Path, tmp_path: Path) -> None:
    code, _, err = shell("fourpoint data log.csv > /dev/full", tmp_path)
    assert (
        code == 2
        and "No space left" in err
        and "Traceback" not in err
        and "Exception ignored" not in err
    )
    code, _, err = shell("(fourpoint data log.csv; echo $? >&2) | true", tmp_path)
    assert (
        err.rstrip().endswith(("0", "1"))
        and "Traceback" not in err
        and "Exception ignored" not in err
    )


def test_lack_of_memory_is_told_in_three_clauses(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (
        MemoryError("Unable to allocate 9 TiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"),
    ):

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr("fourpoint.data.readers.read_with_notes", fail)
        assert "that fit into memory" in refused("data", log)


# ---------------------------------------------------------------------- files and columns


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"t,mark\n" + b"1,a\n" * 1000)[:25],
        gzip.compress(b"t,mark\n" + b"1,a\n" * 1000)[:12] + b"\xff\xff\xff" + bytes(40),
        bz2.compress(b"t,mark\n1,a\n")[:20],
        b"BZh9 no archive",
        b"\x28\xb5\x2f\xfd" + b"junk" * 9,
        b"\x04\x22\x4d\x18" + b"junk" * 9,
        b"\x1f\x8b",
    ],
    ids=["cut gzip", "damaged gzip", "cut bz2", "no bz2", "no zstd", "no lz4", "two bytes"],
)
@pytest.mark.parametrize("name", ["log", "log.of.events", "log.gz"])
def test_a_damaged_archive_of_unknown_kind_is_refused(
    content: bytes, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in refused("data", tmp_path / name)


@pytest.mark.parametrize(
    "words, roles",
    [
        (("--time", "t", "--mark", "t"), "the time and the mark"),
        (("--mark", "t"), "the time and the mark"),
        (("--time", "t", "--sequence", "t"), "the time and the sequence"),
        (("--mark", "mark", "--sequence", "mark"), "the mark and the sequence"),
        (("--time", "t", "--place", "t"), "the time and the place"),
        (("--mark", "mark", "--place", "mark"), "the mark and the place"),
        (("--sequence", "mark", "--place", "mark"), "the sequence and the place"),
    ],
)
def test_one_column_in_two_roles_is_refused(words: tuple[str, ...], roles: str, log: Path) -> None:
    assert f"different columns for {roles}" in refused("data", log, *words)


def test_a_named_column_is_not_guessed_for_another_role(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("time,id,split,start,stop\n1,1,train,0,9\n2,1,dev,0,9\n")
    data = fp.read(tmp_path / "log.csv", mark="split", sequence="id")
    assert data.marks.names == ("dev", "train") and data.splits is None
    windows = {"time": [1.0, 2.0], "id": [1, 1], "start": [0, 0], "stop": [9, 9]}
    assert (
        fp.read(windows, mark="start", sequence="id").inferred
        and not fp.read(windows, sequence="id").inferred
    )


def test_many_fields_in_json_lines_are_not_searched_one_by_one(tmp_path: Path) -> None:
    fields = 5_000
    row = {f"k{i}": i for i in range(fields)}
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps({"time": i, "mark": "a", **row}) + "\n" for i in range(2)))
    searches = 0

    def watch(frame: Any, event: str, called: Any) -> None:
        nonlocal searches
        if event == "c_call" and isinstance(getattr(called, "__self__", None), list):
            searches += called.__name__ in ("index", "count")

    sys.setprofile(watch)
    try:
        data = fp.read(file)
    finally:
        sys.setprofile(None)
    # A search through all fields for each of them takes time that grows with the square of their
    # number.
    assert data.events == 2 and searches < 100


# ---------------------------------------------------------------------- extreme times


@pytest.mark.parametrize(
    "times, message",
    [
        (
            [2**63 - 4, 2**63 - 3, 2**63 - 1],
            "whole numbers up to 9,007,199,254,740,992, which floats hold exactly",
        ),
        ([-(2**63) + 1, -(2**63) + 2], "whole numbers up to"),
        ([0.0, 5e-324, 1e-323], "windows of at least 1e-30 units of time"),
        ([5e-324], "windows of at least 1e-30"),
        ([1e300, 2e300, 3e300], r"times from -1e\+30 to 1e\+30"),
        ([-1.7e308, 0.0, 1.7e308], r"times from -1e\+30 to 1e\+30"),
    ],
)
def test_times_that_floats_or_models_cannot_hold_are_refused(
    times: list[float], message: str
) -> None:
    for look in (fp.read, inspect):
        with pytest.raises(EventDataError, match=message):
            look({"time": times, "mark": ["a"] * len(times)})


def test_whole_numbers_that_floats_hold_are_read(tmp_path: Path) -> None:
    data = fp.read(
        {"time": pa.array([2**60, 2**60 + 512, 2**61], pa.uint64())}, time_unit="as given"
    )
    assert data.times.tolist() == [2.0**60, 2.0**60 + 512, 2.0**61]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_stamps_at_the_ends_of_their_type_are_refused(unit: str) -> None:
    stamps = pa.array([-(2**63) + 1, 0, 2**63 - 1], pa.int64()).cast(pa.timestamp(unit))
    expected = (
        "times less than 292 years apart"
        if unit == "ns"
        else "times from the year 1 to the year 9999"
    )
    for sequence in ("none", "day", "week"):
        with pytest.raises(EventDataError, match=expected):
            fp.read(pa.table({"time": stamps}), sequence=sequence)


def test_constant_gaps_have_the_right_score_in_any_unit_that_is_taken() -> None:
    scores = []
    for unit in (1.0, 1e-29, 1e28):
        days = [
            fp.Sequence(np.arange(1, 10) * unit, start=0.0, stop=10 * unit, id=str(i))
            for i in range(4)
        ]
        data = fp.Dataset.from_sequences(days)
        model = fp.Poisson()
        fp.fit(model, data, data, progress=False)
        scores.append(
            fp.evaluate(model, data).to_dict("window")["log_likelihood_per_event"] + np.log(unit)
        )
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-9)
    with pytest.raises(EventDataError, match="Use another unit of time"):
        fp.Sequence(np.arange(1, 10) * 1e300, start=0.0, stop=1e301)


def test_a_box_that_models_cannot_hold_is_refused() -> None:
    for low, high in ((0.0, 1e300), (-1e308, 1e308), (0.0, 5e-324)):
        with pytest.raises(EventDataError, match="bounds within 1e"):
            fp.Box(("x",), (low,), (high,))


def test_gaps_below_the_rounding_of_times_are_no_decay_and_no_clock() -> None:
    assert coarse_resolution(np.array([5e-324, 1.0, 2.0])) == 0.0
    rng = np.random.default_rng(0)
    days = [np.sort(np.r_[0.0, 5e-324, 1e-310, 1e-30, rng.uniform(0, 10, 8)]) for _ in range(4)]
    data = fp.Dataset.from_sequences(
        [fp.Sequence(day, start=0.0, stop=10.0, id=str(i)) for i, day in enumerate(days)]
    )
    model = fp.Hawkes()
    fp.fit(model, data, data, progress=False)
    assert np.isfinite(fp.evaluate(model, data).to_dict("window")["log_likelihood_per_event"])
    deep = fp.DeepDAPP()
    deep.initialise(data)
    assert deep.extent()[0] > 0


# ---------------------------------------------------------------------- many types


@pytest.fixture
def little_memory() -> Any:
    set_memory_limit("300M")
    yield
    set_memory_limit(None)


@pytest.mark.parametrize("name", ["hawkes", "spatial-hawkes"])
def test_branching_ratios_of_all_pairs_are_refused_before_they_are_made(
    name: str, little_memory: None
) -> None:
    space = fp.MarkSpace(
        tuple(map(str, range(100_000))),
        fp.Box(("x",), (0,), (1,)) if name == "spatial-hawkes" else None,
    )
    with pytest.raises(
        UserError,
        match=(
            r"100,000 x 100,000 branching ratios .* received "
            r"one that needs 240 GB or more. Merge"
        ),
    ):
        MODELS[name](marks=space)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in MODELS
        if "hawkes" not in name and name not in ("self-correcting", "deep-dapp", *CATALOGUE)
    ],
)
def test_rates_of_all_types_are_refused_before_they_are_computed(
    name: str, little_memory: None
) -> None:
    types, count = 60_000, 3_000
    box = fp.Box(("x",), (0,), (1,)) if "spatial" in name else None
    space = fp.MarkSpace(tuple(map(str, range(types))), box)
    places = np.full((count, 1), 0.5) if box else None
    times = np.linspace(0, 9, count)
    data = fp.Dataset.from_sequences(
        [fp.Sequence(times, np.arange(count), start=0, stop=10, space=space, places=places)]
    )
    with pytest.raises(
        UserError,
        match=(
            f"the rates of {types:,} types at .* MB of memory; received one that needs .* or more"
        ),
    ):
        fp.fit(MODELS[name](marks=space), data, data, steps=1, progress=False)


def test_models_that_sum_over_types_as_they_go_are_not_refused(little_memory: None) -> None:
    check_memory(fp.DeepDAPP(30_000), 10_000, 8)
