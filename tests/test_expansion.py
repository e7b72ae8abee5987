"""A packed file that expands without end is refused by every reader, with three clauses, before
memory is taken.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data.formats import FORMATS
from fourpoint.data.formats.lists import read_lists
from fourpoint.data.formats.unpickling import loads
from fourpoint.data.tables import open_table
from fourpoint.data.unpacked_sizes import unpacked_sizes
from fourpoint.events import EventDataError, UserError
from fourpoint.memory import free_memory, memory_limit, parse_size, require_memory, set_memory_limit

LIMIT = 4_000_000
ROWS = 300_000  # of 16 bytes or more each in memory


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    set_memory_limit(LIMIT)
    yield
    set_memory_limit(None)


def zeros(rows: int = ROWS) -> pa.RecordBatch:
    return pa.record_batch({"t": np.zeros(rows), "mark": np.zeros(rows, np.int64)})


def arrow(
    path: Path, door: Any, batches: list[pa.RecordBatch], packed: str | None = "zstd"
) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=packed)
    with (
        pa.OSFile(str(path), "wb") as sink,
        door(sink, batches[0].schema, options=options) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def opcodes(content: bytes) -> bytes:
    return b"\x80\x04(" + content + b"l."


def copies() -> bytes:
    """One array of 27 kB, whose bytes are named again and again."""
    # The bytes stand on the stack once, are remembered, and every further array is built from the
    # memo.
    head = b"\x80\x04" + b"B" + (27_000).to_bytes(4, "little") + bytes(27_000) + b"q\x000"
    one = b"cnumpy.core.numeric\n_frombuffer\n(h\x00cnumpy\ndtype\nX\x02\x00\x00\x00f8\x85RM" + (
        3375
    ).to_bytes(2, "little")
    one += b"\x85X\x01\x00\x00\x00CtR"
    return head + b"](" + one * 200 + b"e."


BOMBS: dict[str, Callable[[Path], Path]] = {
    "arrow file": lambda d: arrow(d / "a.arrow", pa.ipc.new_file, [zeros()]),
    "arrow stream": lambda d: arrow(d / "a.arrows", pa.ipc.new_stream, [zeros()]),
    "arrow in many batches": lambda d: arrow(
        d / "a.feather", pa.ipc.new_file, [zeros(10_000)] * 30, "lz4"
    ),
    "arrow dictionary": lambda d: arrow(
        d / "a.arrow",
        pa.ipc.new_file,
        [
            pa.record_batch(
                {
                    "t": np.zeros(9),
                    "mark": pa.DictionaryArray.from_arrays(np.zeros(9, np.int8), ["x" * 9_000_000]),
                }
            )
        ],
    ),
    "parquet by runs": lambda d: parquet(d / "a.parquet", zeros(), use_dictionary=True),
    "parquet by compression": lambda d: parquet(d / "a.parquet", zeros(), use_dictionary=False),
    "parquet of rows alone": lambda d: parquet(
        d / "a.parquet", pa.record_batch({"t": pa.array([False] * ROWS)})
    ),
    "csv.gz": lambda d: written(
        d / "a.csv.gz", gzip.compress(b"t,mark\n" + b"0,a\n" * 1_200_000, 1)
    ),
    "csv.bz2": lambda d: written(d / "a.csv.bz2", bz2.compress(b"t,mark\n" + b"0,a\n" * 1_200_000)),
    "csv.gz without an ending": lambda d: written(
        d / "log", gzip.compress(b"t,mark\n" + b"0,a\n" * 1_200_000, 1)
    ),
    "csv.gz of one line": lambda d: written(
        d / "a.csv.gz", gzip.compress(b't,mark\n0,"' + b"x" * 5_000_000, 1)
    ),
    "tsv.zst": lambda d: written(
        d / "a.tsv.zst", pa.compress(b"t\tmark\n" + b"0\ta\n" * 1_200_000, "zstd", asbytes=True)
    ),
    "jsonl.gz": lambda d: written(
        d / "a.jsonl.gz", gzip.compress(b'{"t":0,"mark":"a"}\n' * 300_000, 1)
    ),
    "csv of many short rows": lambda d: written(d / "a.csv", b"t,x\n" + b"0,\n" * ROWS),
}


def parquet(path: Path, batch: pa.RecordBatch, **options: Any) -> Path:
    pq.write_table(pa.Table.from_batches([batch]), path, compression="zstd", **options)
    return path


@pytest.mark.parametrize("name", list(BOMBS))
def test_a_table_that_expands_without_end_is_refused(name: str, tmp_path: Path) -> None:
    path = BOMBS[name](tmp_path)
    before = pa.total_allocated_bytes()
    with pytest.raises(
        EventDataError,
        match=(
            "expands into at most 4 MB; received .* expand into .* or more. If you trust it, raise"
        ),
    ):
        fp.read(path, time="t", mark="none" if "rows" in name else "mark", sequence="none")
    assert pa.total_allocated_bytes() - before < 3 * LIMIT


def lying(path: Path, column: pa.Array) -> Path:
    """A file with one page, whose header says that it takes 130 MB once it is unpacked."""
    whole: dict[str, Any] = dict(data_page_size=2**23, max_rows_per_page=10**6)
    pq.write_table(pa.table({"t": column}), path, use_dictionary=False, **whole)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    content, at = bytearray(path.read_bytes()), chunk.data_page_offset
    assert content[at : at + 3] == b"\x15\x00\x15", "a page of data, and its size unpacked"
    assert content[at + 6] < 128 <= content[at + 5], "as a number of four bytes"
    lie = 2 * 130_000_000
    content[at + 3 : at + 7] = bytes(
        [128 | lie & 127, 128 | lie >> 7 & 127, 128 | lie >> 14 & 127, lie >> 21]
    )
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("part", ["load", "head", "lists"])
def test_a_page_whose_header_claims_too_much_is_refused(part: str, tmp_path: Path) -> None:
    """The footer is true; Arrow would take what the page's header says before it unpacks it."""
    values = pa.array(np.random.default_rng(0).random(140_000))
    lists = pa.ListArray.from_arrays(np.array([0, 70_000, 140_000], np.int32), values)
    path = lying(tmp_path / "a.parquet", lists if part == "lists" else values)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(EventDataError, match="at most 4 MB; received .* expand into 13\\d MB"):
        if part == "lists":
            read_lists(path, "lists of times", ("t",))
        else:
            getattr(open_table(path), part)(["t"])
    assert pa.default_memory_pool().max_memory() <= max(before, 100_000_000)


FORMATTED: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "pickle of empty dicts": ("pickle", lambda d: written(d / "a.pkl", opcodes(b"}" * 100_000))),
    "pickle of empty lists, packed": (
        "pickle",
        lambda d: written(d / "a.pkl", gzip.compress(opcodes(b"]" * 100_000))),
    ),
    "pickle of copies": ("pickle", lambda d: written(d / "a.pkl", copies())),
    "packed text": ("pickle", lambda d: written(d / "a.pkl", gzip.compress(bytes(5_000_000)))),
    "tick archive": ("tick", lambda d: zipped(d / "a.npz")),
    "json of empty lists": (
        "easytpp",
        lambda d: written(d / "a.json", b"[" + b"[]," * 100_000 + b"[]]"),
    ),
    "json of empty objects, by line": (
        "easytpp",
        lambda d: written(d / "a.json", b"{}\n" * 30_000),
    ),
    "numbers of one digit": ("du", lambda d: pair(d)),
    "hotpp": ("hotpp", lambda d: hotpp(d)),
}


def zipped(path: Path) -> Path:
    array = io.BytesIO()
    np.save(array, np.zeros(1_000_000))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr_0.npy", array.getvalue())
    return path


def pair(folder: Path) -> Path:
    (folder / "event-train.txt").write_bytes(b"1 " * 200_000)
    return written(folder / "time-train.txt", b"1 " * 200_000)


def hotpp(folder: Path) -> Path:
    lists = pa.array([np.zeros(ROWS)])
    pq.write_table(
        pa.table({"id": [1], "timestamps": lists, "labels": pa.array([np.zeros(ROWS, np.int64)])}),
        folder / "a.parquet",
    )
    return folder / "a.parquet"


@pytest.mark.parametrize("name", list(FORMATTED))
def test_a_format_that_expands_without_end_is_refused(name: str, tmp_path: Path) -> None:
    kind, make = FORMATTED[name]
    path = make(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(
            EventDataError, match="expands into at most 4 MB; received .* expand into .* or more"
        ):
            FORMATS[kind].read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * LIMIT


def test_copies_in_a_pickle_are_counted_before_they_are_made() -> None:
    with pytest.raises(EventDataError, match="expands into at most 4 MB"):
        loads(copies(), Path("some.pkl"))
    set_memory_limit("1G")
    assert len(loads(copies(), Path("some.pkl"))) == 200


def test_ordinary_files_are_read_within_the_limit(tmp_path: Path) -> None:
    rows = 20_000
    times = np.sort(np.random.default_rng(0).uniform(0, 100, rows))
    batch = pa.record_batch({"t": times, "mark": pa.array(["a", "b"] * (rows // 2))})
    text = "t,mark\n" + "".join(f"{t!r},{'ab'[i % 2]}\n" for i, t in enumerate(times.tolist()))
    lines = "".join(
        json.dumps({"t": t, "mark": "ab"[i % 2]}) + "\n" for i, t in enumerate(times.tolist())
    )
    files = [
        arrow(tmp_path / "a.arrow", pa.ipc.new_file, [batch.slice(0, 9_000), batch.slice(9_000)]),
        arrow(
            tmp_path / "a.arrows", pa.ipc.new_stream, [batch.slice(0, 9_000), batch.slice(9_000)]
        ),
        arrow(tmp_path / "b.arrow", pa.ipc.new_file, [batch], None),
        parquet(tmp_path / "a.parquet", batch, row_group_size=7_000),
        written(tmp_path / "a.csv.gz", gzip.compress(text.encode())),
        written(tmp_path / "a.jsonl.gz", gzip.compress(lines.encode())),
    ]
    for file in files:
        data = fp.read(file, time="t", mark="mark", sequence="none", window=(0, 100))
        assert np.array_equal(data.times, times) and data.mark_ids[:3].tolist() == [0, 1, 0]


def test_the_sizes_of_batches_are_read_from_their_headers(tmp_path: Path) -> None:
    for door in (pa.ipc.new_file, pa.ipc.new_stream):
        for packed in ("zstd", "lz4", None):
            path = arrow(tmp_path / "a.arrow", door, [zeros(1000), zeros(2000)], packed)
            assert list(unpacked_sizes(path)) == [16_000, 32_000]


def test_a_damaged_arrow_file_is_no_traceback(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for door in (pa.ipc.new_file, pa.ipc.new_stream):
        whole = arrow(tmp_path / "a.arrow", door, [zeros(50)]).read_bytes()
        for _ in range(60):
            damaged = bytearray(whole)
            for at in rng.integers(0, len(whole), 4):
                damaged[at] = rng.integers(256)
            try:
                fp.read(
                    written(tmp_path / "b.arrow", bytes(damaged)),
                    time="t",
                    mark="none",
                    sequence="none",
                )
            except EventDataError:
                continue


def test_the_command_takes_a_limit_and_so_does_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = BOMBS["csv.gz"](tmp_path)
    words = ["data", "inspect", str(path), "--time", "t"]
    refused = CliRunner().invoke(app, ["--memory-limit", "1M", *words])
    assert refused.exit_code == 2 and "expands into at most 1 MB" in refused.stderr
    monkeypatch.setenv("FOURPOINT_MEMORY_LIMIT", "2M")
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2 and "expands into at most 2 MB" in refused.stderr
    assert CliRunner().invoke(app, ["--memory-limit", "1G", *words]).exit_code == 0
    wrong = CliRunner().invoke(app, ["--memory-limit", "much", *words])
    assert wrong.exit_code == 2 and "such as 500M or 16G" in wrong.stderr


def system(folder: Path, groups: str, files: dict[str, str], available: int = 8_000_000) -> Path:
    for name, text in {
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {available} kB\n",
        "proc/self/cgroup": groups,
        **files,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_least_of_machine_and_control_groups_is_free(tmp_path: Path) -> None:
    assert free_memory(system(tmp_path / "none", "0::/\n", {})) == 8_192_000_000
    two = {
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/memory.max": "1000000000\n",
        "sys/fs/cgroup/a/memory.current": "400000000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 100000000\n",
    }
    assert free_memory(system(tmp_path / "two", "0::/a/b\n", two)) == 700_000_000
    one = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "500000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "100000000\n",
    }
    groups = "4:memory:/docker/from-the-host\n1:cpu:/\n0::/\n"
    assert free_memory(system(tmp_path / "one", groups, one)) == 400_000_000
    endless = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert free_memory(system(tmp_path / "endless", groups, endless)) == 8_192_000_000


def test_sizes_and_the_default_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [parse_size(text, "x") for text in ("12", "1k", "1.5M", "2 GiB", "3gb")] == [
        12,
        1000,
        1_500_000,
        2**31,
        3 * 10**9,
    ]
    for wrong in ("", "0", "-1", "x", "1X", "nan", "1.5.5"):
        with pytest.raises(UserError, match="such as 500M or 16G"):
            parse_size(wrong, "x")
    set_memory_limit(None)
    monkeypatch.delenv("FOURPOINT_MEMORY_LIMIT", raising=False)
    assert 0 < memory_limit() <= free_memory()
    set_memory_limit(1000)
    with pytest.raises(
        UserError,
        match=(
            "a model that fits into 1 kB of memory; received one that needs 5 kB or more. Shrink "
            "it. Or raise"
        ),
    ):
        require_memory(5000, "a model", "Shrink it.")
