"""Text in columns: CSV and TSV, compressed or not, with whatever separator, byte order mark and
blank lines it has.

The first bytes give the encoding, the separator and the header; Arrow's parser does the rest on all
cores. Rows are named in errors by their line in the file, which is counted only when there is an
error to report: blank lines and lines inside quotes make it differ from the row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from fourpoint.data.expansion import Expansion
from fourpoint.data.lines import BLOCK, line_of_record, open_stream
from fourpoint.data.opened import FAULTS, HEAD, Table, progress, reason
from fourpoint.events import EventDataError

PEEK = 1 << 21  # bytes in which the header and a row must end
QUICK = 1 << 20  # bytes that are parsed at a time where that does
SAMPLE = 1 << 17  # bytes that are looked at for types, where lines are of usual length
MOST_COLUMNS = 10_000
SEPARATORS = (",", "\t", ";", "|")
MARKS = {b"\xef\xbb\xbf": "utf8", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True)
class _Dialect:
    path: Path
    codec: str | None
    encoding: str
    separator: str
    quoted_lines: bool = False

    @property
    def expected(self) -> str:
        return "a TSV file" if self.separator == "\t" else "a CSV file"


def open_delimited(path: Path, codec: str | None, tabs: bool) -> Table:
    """Open a file of text in columns; ``codec`` names its compression, and ``tabs`` says that
    columns are parted by them.
    """
    with open_stream(path, codec) as stream:
        first = stream.read(PEEK)
    encoding = next((name for mark, name in MARKS.items() if first.startswith(mark)), "utf8")
    whole = len(first) < PEEK
    few = first.find(b"\n", SAMPLE) if encoding == "utf8" else -1
    if few >= 0:
        first, whole = first[: few + 1], True
    text = first.decode("utf-8-sig" if encoding == "utf8" else encoding, errors="replace")
    header = next((line for line in text.splitlines() if line.strip()), "")
    if not header or (len(first) == PEEK and not re.search(rb"[\r\n]", first)):
        received = f"no line end in the first {PEEK >> 20} MB" if header else "blank lines alone"
        raise EventDataError(
            "a header line",
            f"{path}: {received}",
            "Put the names of the columns into the first line.",
        )
    dialect = _Dialect(path, codec, encoding, "\t" if tabs else separator_of(header))
    names = _names(dialect, text)
    sample = _sample(dialect, first if whole else first[: first.rfind(b"\n") + 1], names)
    types = dict(zip(sample.schema.names, sample.schema.types, strict=True))
    schema = pa.schema([(name, types.get(name, pa.null())) for name in names])
    words = [
        name
        for name, kind in types.items()
        if kind == pa.string() and 2 * len(sample[name].unique()) <= len(sample) + 2
    ]
    # Words that repeat are kept once each, which takes a quarter of the memory.
    types |= dict.fromkeys(words, pa.dictionary(pa.int32(), pa.string()))

    def place(row: int) -> str:
        if encoding != "utf8":
            return f"row {row}"
        with open_stream(path, codec) as stream:
            return f"line {line_of_record(stream, row + 1, dialect.separator)}"

    def load(columns: list[str]) -> pa.Table:
        return _load(dialect, {name: types.get(name, pa.null()) for name in columns}, place)

    return Table(str(path), path.name.split(".")[0], schema, sample.select, load, place)


def _names(dialect: _Dialect, text: str) -> list[str]:
    try:
        names = next(
            (
                row
                for row in csv.reader(io.StringIO(text, newline=None), delimiter=dialect.separator)
                if row
            ),
            [],
        )
    except csv.Error as error:
        raise EventDataError(
            dialect.expected, f"{dialect.path}: {reason(error)} in line 1", "Mend the header line."
        ) from error
    if len(names) > MOST_COLUMNS:
        received = f"{dialect.path}: {len(names):,} columns in line 1"
        raise EventDataError(
            f"at most {MOST_COLUMNS:,} columns",
            received,
            "Check what the file is, and its separator.",
        )
    if all(re.fullmatch(r"[-+.\d:/ TZ]*\d[-+.\d:/ TZ]*", name.strip()) for name in names):
        received = f"{dialect.path}: values such as {names[0]!r} in line 1"
        raise EventDataError(
            "a header line", received, "Put the names of the columns into the first line."
        )
    return names


def separator_of(header: str) -> str:
    """The separator that the header has most of, outside quotes."""
    bare = re.sub(r'"[^"]*"', "", header)
    return max(SEPARATORS, key=bare.count)


def _sample(dialect: _Dialect, first: bytes, names: list[str]) -> pa.Table:
    """The first rows, parsed; without types where they cannot be, since reading the file will say
    why.
    """
    try:
        table = _parse(replace(dialect, quoted_lines=True), pa.BufferReader(first), None, {}).slice(
            0, HEAD
        )
        return (
            table
            if len(set(names)) == len(names)
            else table.select([names.index(name) for name in dict.fromkeys(names)])
        )
    except FAULTS:
        return pa.table({name: pa.nulls(0) for name in dict.fromkeys(names)})


def _load(
    dialect: _Dialect, types: dict[str, pa.DataType], place: Callable[[int], str]
) -> pa.Table:
    columns = list(types)
    known = {name: kind for name, kind in types.items() if not pa.types.is_null(kind)}
    try:
        # With types given Arrow need not keep the text to try others, and small blocks stay in the
        # processor's cache.
        return _read(dialect, columns, known, QUICK)
    except EventDataError:
        raise
    except FAULTS:
        # a row of another type, longer than a block, or with a line end between quotes: more
        # slowly, but it may do
        pass
    words = {name: kind for name, kind in known.items() if pa.types.is_dictionary(kind)}
    careful = replace(dialect, quoted_lines=True)
    try:
        return _read(careful, columns, words, BLOCK)
    except EventDataError:
        raise
    except FAULTS as error:
        raise _explained(careful, columns, words, error, place) from error


def _read(
    dialect: _Dialect, columns: list[str], types: dict[str, pa.DataType], block: int
) -> pa.Table:
    with (
        progress(dialect.path.name, dialect.path.stat().st_size) as advance,
        open_stream(dialect.path, dialect.codec, advance) as stream,
    ):
        table = _parse(dialect, stream, columns, types, block)
    Expansion(dialect.path, dialect.expected).check_rows(table.num_rows, len(columns))
    return table


def _parse(
    dialect: _Dialect,
    stream: Any,
    columns: list[str] | None,
    types: dict[str, pa.DataType],
    block: int = BLOCK,
    threads: bool = True,
) -> pa.Table:
    return pc.read_csv(
        stream,
        pc.ReadOptions(use_threads=threads, block_size=block, encoding=dialect.encoding),
        pc.ParseOptions(delimiter=dialect.separator, newlines_in_values=dialect.quoted_lines),
        pc.ConvertOptions(
            include_columns=columns, column_types=types, null_values=[""], strings_can_be_null=True
        ),
        # Arrow's own allocator takes memory in large pages, and several threads then wait for one
        # another to clear them.
        memory_pool=pa.system_memory_pool(),
    )


def _explained(
    dialect: _Dialect,
    columns: list[str],
    types: dict[str, pa.DataType],
    error: BaseException,
    place: Callable[[int], str],
) -> EventDataError:
    """Why a file cannot be read, and in which line: one thread more slowly tells the number of the
    record.
    """
    try:
        with open_stream(dialect.path, dialect.codec) as stream:
            _parse(dialect, stream, columns, types, threads=False)
    except FAULTS as again:
        error = again
    found = re.search(r"Row #(\d+): (.*)", str(error), re.DOTALL)
    if found:
        what, where = found[2], f" at {place(int(found[1]) - 2)}"
    else:
        what, where = str(error), ""
    if "straddl" in what:
        what = f"a row longer than {BLOCK >> 20} MB, or a quote that is never closed"
    if "UTF8" in what or isinstance(error, UnicodeDecodeError):
        what = "text that is not UTF-8"
    remedy = (
        "Save the file as UTF-8."
        if "UTF-8" in what
        else "Mend or remove that line."
        if where
        else "Check the file, or write it again."
    )
    return EventDataError(
        dialect.expected, f"{dialect.path}: {reason(ValueError(what))}{where}", remedy
    )
