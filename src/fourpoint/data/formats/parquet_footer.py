"""How much memory the columns of a Parquet file take, read from its footer before anything is
unpacked.

A page of zeros may stand for two thousand million of them in ten bytes, so that a file's size says
nothing of its content; its footer does. pyarrow reads footers too, but ends the whole process where
some parts of one are damaged, and so the few numbers are taken from the bytes here. The footer is a
struct in Thrift's compact protocol; the fields that matter are

    FileMetaData 4: row groups     RowGroup 1: columns     ColumnChunk 3: metadata     ColumnMetaData 3: path, 5: values, 6: bytes

Source: the Parquet format's ``parquet.thrift``, and Thrift's specification of the compact protocol.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fourpoint.data.expansion import NUMBER

MAGIC = b"PAR1"
DEEPEST = 32


def expanded_size(path: Path, columns: Collection[str]) -> int:
    """Bytes that these top-level columns take in memory, nested ones included: their pages, and a
    number for each value.

    Fails with ValueError where the file has no footer or a damaged one.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> file = Path(tempfile.mkdtemp()) / "a.parquet"
    >>> pq.write_table(pa.table({"id": [7, 8], "t": [[1.0, 2.0, 3.0], [4.0]]}), file)
    >>> expanded_size(file, ["t"]) > expanded_size(file, ["id"]) > 16
    True
    """
    total = 0
    try:
        for group in _struct(_footer(path), 0, 0)[0].get(4, []):
            for column in group.get(1, []):
                metadata = column[3]
                if metadata[3][0].decode("utf-8", "replace") in columns:
                    total += max(0, int(metadata[6])) + NUMBER * max(0, int(metadata[5]))
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a damaged footer: {type(error).__name__}") from error
    return total


def _footer(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if end[4:] != MAGIC or length > size - 8:
            raise ValueError("Parquet magic bytes not found in footer")
        file.seek(size - 8 - length)
        return file.read(length)


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """A struct as a dict from field numbers to values, and where it ends."""
    if depth > DEEPEST:
        raise ValueError("a footer nested too deep")
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _signed(data, at)
        kind = head & 15
        if kind in (1, 2):  # a truth is in the head itself
            fields[number] = kind == 1
        else:
            fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2, 3):
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _signed(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _varint(data, at)
        if size > len(data) - at:
            raise ValueError("a footer cut short")
        return data[at : at + size], at + size
    if kind in (9, 10):
        return _list(data, at, depth)
    if kind == 11:
        return _map(data, at, depth)
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise ValueError(f"a footer with a value of kind {kind}")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == 15:
        size, at = _varint(data, at)
    items = []
    for _ in range(size):  # each takes at least a byte, so that a false size ends with the bytes
        item, at = _value(data, at, kind, depth + 1)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, depth: int) -> tuple[None, int]:
    size, at = _varint(data, at)
    if size:
        kinds, at = data[at], at + 1
        for _ in range(size):
            _, at = _value(data, at, kinds >> 4, depth + 1)
            _, at = _value(data, at, kinds & 15, depth + 1)
    return None, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a footer with an endless number")
