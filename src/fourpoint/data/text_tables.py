"""Text files of tables: CSV, TSV and JSON Lines, compressed or not.

CSV and TSV may have any separator, a byte order mark and blank lines.

The first bytes give the encoding, the separator and the header; Arrow's parser does the rest on all
cores. Rows are named in errors by their line in the file, which is counted only when there is an
error to report: blank lines and lines inside quotes make it differ from the row.

JSON Lines have one object per line, of which only the fields that are asked for are kept. Arrow
parses a block of lines at a time, against the types that the first lines show. Its parser trusts
that each line is an object, and a bare ``null`` would end the process; so lines are looked at
before it sees them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj

from fourpoint.data.expansion import Expansion
from fourpoint.data.lines import BLOCK, Readable, line_of_record, open_stream
from fourpoint.data.opened import FAULTS, HEAD, Table, progress, reason
from fourpoint.events import EventDataError

PEEK = 1 << 21  # bytes in which the header and a row must end
QUICK = 1 << 20  # bytes that are parsed at a time where that does
BEGINNING = 1 << 22  # bytes that are looked at where the first rows leave a doubt
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
        first = first[: few + 1]
        whole = True
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
    whole_lines = first if whole else first[: first.rfind(b"\n") + 1]
    sample = _sample(dialect, whole_lines, names, {})
    types = dict(zip(sample.schema.names, sample.schema.types, strict=True))
    # Arrow would convert times with offsets to UTC, and the zone that they were written in is lost.
    zoned = [name for name, kind in types.items() if pa.types.is_timestamp(kind) and kind.tz]
    if zoned:
        types |= dict.fromkeys(zoned, pa.string())
        sample = _sample(dialect, whole_lines, names, dict.fromkeys(zoned, pa.string()))
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

    def beginning(columns: list[str]) -> pa.Table:
        with open_stream(path, codec) as stream:
            lines = stream.read(BEGINNING)
        known = {name: types.get(name, pa.null()) for name in names}
        found = _sample(dialect, lines[: lines.rfind(b"\n") + 1], names, known, columns)
        return found.select(columns)

    name = path.name.split(".")[0]
    return Table(str(path), name, schema, sample.select, load, place, beginning)


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
            dialect.expected,
            f"{dialect.path}: {reason(error)} in line 1",
            "Correct the header line.",
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


def _sample(
    dialect: _Dialect,
    first: bytes,
    names: list[str],
    types: dict[str, pa.DataType],
    columns: list[str] | None = None,
) -> pa.Table:
    """The first rows, parsed; without types where they cannot be, since reading the file will say
    why. With ``columns`` these alone, and all rows.
    """
    try:
        careful = replace(dialect, quoted_lines=True)
        table = _parse(careful, pa.BufferReader(first), columns, types)
        if columns is not None:
            return table
        table = table.slice(0, HEAD)
        if len(set(names)) == len(names):
            return table
        return table.select([names.index(name) for name in dict.fromkeys(names)])
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
    words = {
        name: kind
        for name, kind in known.items()
        if pa.types.is_dictionary(kind) or pa.types.is_string(kind)
    }
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
    stream: pa.NativeFile,
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
        what = found[2]
        where = f" at {place(int(found[1]) - 2)}"
    else:
        what = str(error)
        where = ""
    if "straddl" in what:
        what = f"a row longer than {BLOCK >> 20} MB, or a quote that is never closed"
    if "UTF8" in what or isinstance(error, UnicodeDecodeError):
        what = "text that is not UTF-8"
    if "UTF-8" in what:
        remedy = "Save the file as UTF-8."
    elif where:
        remedy = "Correct or remove that line."
    else:
        remedy = "Check the file, or write it again."
    return EventDataError(
        dialect.expected, f"{dialect.path}: {reason(ValueError(what))}{where}", remedy
    )


JSON_LINES = "a file of JSON Lines"
JSON_REMEDY = (
    "Write one JSON object per line, for example with jq -c '.[]'; formats of other libraries "
    "are for `fourpoint data convert`."
)
OTHER = re.compile(rb"(?m)^[ \t\r]*[^{ \t\r\n]")  # a line that does not begin with a brace
BEHIND = re.compile(
    rb"\}[ \t\r]*[^]},\s]"
)  # something behind an object, or a brace inside a string
JSON_TYPES = {
    frozenset({int}): pa.int64(),
    frozenset({int, float}): pa.float64(),
    frozenset({float}): pa.float64(),
}


def open_json_lines(path: Path, codec: str | None) -> Table:
    """Open a file of JSON Lines; ``codec`` names its compression."""
    with open_stream(path, codec) as stream:
        first = stream.read(PEEK)
    lines = first.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = _rows(path, lines if len(first) < PEEK else lines[:-1])
    # By field and not by row: of many fields each may stand in few rows.
    fields: dict[str, dict[int, Any]] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            held = fields.setdefault(name, {})
            if value is not None:
                held[number] = value
    schema = pa.schema(
        [(name, _type({*map(type, held.values())})) for name, held in fields.items()]
    )

    def head(columns: list[str]) -> pa.Table:
        # Only rows that have one of the fields, so that the cost is that of the fields in the file.
        numbers = sorted(set().union(*(fields[name] for name in columns)))
        return pa.table(
            {
                name: _column([fields[name].get(i) for i in numbers], schema.field(name).type)
                for name in columns
            }
        )

    def place(row: int) -> str:
        with open_stream(path, codec) as stream:
            return f"line {line_of_record(stream, row, None)}"

    def load(columns: list[str]) -> pa.Table:
        types = pa.schema([schema.field(name) for name in columns])
        try:
            return _read_json(path, codec, types)
        except EventDataError:
            # Whole numbers at first, and others later: all are numbers.
            wide = pa.schema(
                [
                    (field.name, pa.float64() if field.type == pa.int64() else field.type)
                    for field in types
                ]
            )
            if wide == types:
                raise
            return _read_json(path, codec, wide)

    return Table(str(path), path.name.split(".")[0], schema, head, load, place)


def _rows(path: Path, lines: list[bytes]) -> list[dict[str, Any]]:
    """The first objects, parsed one by one."""
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise EventDataError(
                JSON_LINES, f"{path}: line {number} is not JSON ({reason(error)})", JSON_REMEDY
            ) from error
        if not isinstance(row, dict):
            raise EventDataError(
                JSON_LINES, f"{path}: line {number} is not an object but {_word(row)}", JSON_REMEDY
            )
        rows.append(row)
        if len(rows) == HEAD:
            break
    if not rows:
        if b"".join(lines).strip():
            received = f"{path}: no whole line in its first {PEEK >> 20} MB"
        else:
            received = f"{path}: blank lines alone"
        raise EventDataError(JSON_LINES, received, JSON_REMEDY)
    return rows


def _word(value: object) -> str:
    return {list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


def _type(found: set[type]) -> pa.DataType:
    if not found:
        return pa.null()
    if found & {dict, list}:
        return pa.list_(pa.null())
    return JSON_TYPES.get(frozenset(found), pa.bool_() if found == {bool} else pa.string())


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind) or pa.types.is_null(kind):
        return pa.nulls(len(values))
    if pa.types.is_string(kind):
        values = [None if value is None else str(value) for value in values]
    try:
        return pa.array(values, kind)
    except FAULTS:
        return pa.array([None if value is None else float(value) for value in values])


def _read_json(path: Path, codec: str | None, types: pa.Schema) -> pa.Table:
    tables = []
    expansion = Expansion(path, JSON_LINES)
    with (
        progress(path.name, path.stat().st_size) as advance,
        open_stream(path, codec, advance) as stream,
    ):
        for line, block in _blocks(path, stream):
            tables.append(_parse_json(path, line, block, types))
            expansion.check_arrow()
    table = pa.concat_tables(tables) if tables else types.empty_table()
    expansion.check_rows(table.num_rows, len(types))
    return table


def _blocks(path: Path, stream: Readable) -> Iterator[tuple[int, bytes]]:
    """Whole lines, some megabytes at a time, each block with the number of its first line."""
    line, carried = 1, b""
    while True:
        block = stream.read(BLOCK)
        text = carried + block
        if line == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        cut = text.rfind(b"\n") + 1 if block else len(text)
        if text[:cut].strip():
            yield line, text[:cut]
        if not block:
            return
        line += text.count(b"\n", 0, cut)
        carried = text[cut:]
        if len(carried) > BLOCK:
            received = f"{path}: line {line} is longer than {BLOCK >> 20} MB"
            raise EventDataError(JSON_LINES, received, JSON_REMEDY)


def _parse_json(path: Path, line: int, block: bytes, types: pa.Schema) -> pa.Table:
    """A block of lines as columns. Faults name the line."""
    _check_objects(path, line, block)
    try:
        return pj.read_json(
            pa.BufferReader(block),
            pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pj.ParseOptions(explicit_schema=types, unexpected_field_behavior="ignore"),
        )
    except FAULTS as error:
        found = re.search(r"in row (\d+)$", str(error).strip())
        where = f"line {_line_of(block, line, int(found[1]))}" if found else f"near line {line}"
        what = re.sub(r"^JSON parse error: |\.? in row \d+$", "", str(error).strip())
        what = re.sub(
            r"Column\(/(.*)\) changed from (\w+) to (\w+)",
            r"\3 in column '\1', where there was \2 before",
            what,
        )
        raise EventDataError(
            JSON_LINES,
            f"{path}: {reason(ValueError(what))} at {where}",
            "Correct or remove that line.",
        ) from error


def _check_objects(path: Path, line: int, block: bytes) -> None:
    other = OTHER.search(block)
    if other:
        number = line + block.count(b"\n", 0, other.end())
        raise EventDataError(
            JSON_LINES, f"{path}: line {number} does not begin with a brace", JSON_REMEDY
        )
    behind = BEHIND.search(block)
    while behind:
        start = block.rfind(b"\n", 0, behind.start()) + 1
        stop = block.find(b"\n", behind.start())
        stop = stop if stop >= 0 else len(block)
        try:
            json.loads(block[start:stop])
        except (ValueError, RecursionError) as error:
            number = line + block.count(b"\n", 0, start)
            raise EventDataError(
                JSON_LINES,
                f"{path}: line {number} is not one object ({reason(error)})",
                JSON_REMEDY,
            ) from error
        behind = BEHIND.search(block, stop)


def _line_of(block: bytes, line: int, row: int) -> int:
    """The number of the line that holds object ``row`` of a block."""
    full = [i for i, text in enumerate(block.split(b"\n")) if text.strip()]
    return line + full[min(row, len(full) - 1)]
