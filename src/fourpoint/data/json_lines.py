"""JSON Lines: one object per line, of which only the fields that are asked for are kept.

Arrow parses a block of lines at a time, against the types that the first lines show. Its parser
trusts that each line is an object, and a bare ``null`` would end the process; so lines are looked
at before it sees them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from fourpoint.data.delimited import PEEK
from fourpoint.data.expansion import Expansion
from fourpoint.data.lines import BLOCK, line_of_record, open_stream
from fourpoint.data.opened import FAULTS, HEAD, Table, progress, reason
from fourpoint.events import EventDataError

EXPECTED = "a file of JSON Lines"
REMEDY = "Write one JSON object per line; other JSON is for `fourpoint data convert`."
OTHER = re.compile(rb"(?m)^[ \t\r]*[^{ \t\r\n]")  # a line that does not begin with a brace
BEHIND = re.compile(
    rb"\}[ \t\r]*[^]},\s]"
)  # something behind an object, or a brace inside a string
TYPES = {
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
            return _read(path, codec, types)
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
            return _read(path, codec, wide)

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
                EXPECTED, f"{path}: line {number} is not JSON ({reason(error)})", REMEDY
            ) from error
        if not isinstance(row, dict):
            raise EventDataError(
                EXPECTED, f"{path}: line {number} is no object but {_word(row)}", REMEDY
            )
        rows.append(row)
        if len(rows) == HEAD:
            break
    if not rows:
        received = (
            f"{path}: no whole line in its first {PEEK >> 20} MB"
            if b"".join(lines).strip()
            else f"{path}: blank lines alone"
        )
        raise EventDataError(EXPECTED, received, REMEDY)
    return rows


def _word(value: Any) -> str:
    return {list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


def _type(found: set[type]) -> pa.DataType:
    if not found:
        return pa.null()
    if found & {dict, list}:
        return pa.list_(pa.null())
    return TYPES.get(frozenset(found), pa.bool_() if found == {bool} else pa.string())


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind) or pa.types.is_null(kind):
        return pa.nulls(len(values))
    if pa.types.is_string(kind):
        values = [None if value is None else str(value) for value in values]
    try:
        return pa.array(values, kind)
    except FAULTS:
        return pa.array([None if value is None else float(value) for value in values])


def _read(path: Path, codec: str | None, types: pa.Schema) -> pa.Table:
    tables, expansion = [], Expansion(path, EXPECTED)
    with (
        progress(path.name, path.stat().st_size) as advance,
        open_stream(path, codec, advance) as stream,
    ):
        for line, block in _blocks(path, stream):
            tables.append(_parse(path, line, block, types))
            expansion.check_arrow()
    table = pa.concat_tables(tables) if tables else types.empty_table()
    expansion.check_rows(table.num_rows, len(types))
    return table


def _blocks(path: Path, stream: Any) -> Iterator[tuple[int, bytes]]:
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
            raise EventDataError(EXPECTED, received, REMEDY)


def _parse(path: Path, line: int, block: bytes, types: pa.Schema) -> pa.Table:
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
            EXPECTED, f"{path}: {reason(ValueError(what))} at {where}", "Mend or remove that line."
        ) from error


def _check_objects(path: Path, line: int, block: bytes) -> None:
    other = OTHER.search(block)
    if other:
        number = line + block.count(b"\n", 0, other.end())
        raise EventDataError(EXPECTED, f"{path}: line {number} does not begin with a brace", REMEDY)
    behind = BEHIND.search(block)
    while behind:
        start, stop = block.rfind(b"\n", 0, behind.start()) + 1, block.find(b"\n", behind.start())
        stop = stop if stop >= 0 else len(block)
        try:
            json.loads(block[start:stop])
        except (ValueError, RecursionError) as error:
            number = line + block.count(b"\n", 0, start)
            raise EventDataError(
                EXPECTED, f"{path}: line {number} is not one object ({reason(error)})", REMEDY
            ) from error
        behind = BEHIND.search(block, stop)


def _line_of(block: bytes, line: int, row: int) -> int:
    """The number of the line that holds object ``row`` of a block."""
    full = [i for i, text in enumerate(block.split(b"\n")) if text.strip()]
    return line + full[min(row, len(full) - 1)]
