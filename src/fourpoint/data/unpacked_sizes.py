"""How much memory the columns of Parquet and Arrow files take, before anything is unpacked.

A page of zeros may stand for two thousand million of them in ten bytes, so that a file's size says
nothing of its content; its footer and the headers of its parts do. pyarrow reads them too, but ends
the whole process where some of them are damaged, and so the few numbers are taken from the bytes
here.

The footer of a Parquet file is a struct in Thrift's compact protocol; the fields that matter are

    FileMetaData 4: row groups     RowGroup 1: columns     ColumnChunk 3: metadata
    ColumnMetaData 3: path, 5: values, 6: bytes, 7: bytes in the file, 9 and 11: its first pages
    PageHeader 2: bytes, 3: bytes in the file, 5 and 8: header of a data page, whose 1 is its values

Arrow takes as much memory for a page as the page's own header says, whatever the footer says, and
so the headers are read too. They stand before the pages, and each says where the next one begins.

A batch of an Arrow file is a header and a body of buffers. Where buffers are compressed, each
begins with its length when unpacked, 8 bytes little-endian, or -1 where it is stored as it is. A
file ends with a footer that lists its batches; a stream is one batch after the other. Headers and
footer are flatbuffers, of which these fields are taken:

    Footer 2: dictionaries, 3: batches          Message 1: kind, 2: header, 3: length of the body
    RecordBatch 2: buffers, 3: compression

Source: the Parquet format's ``parquet.thrift`` and Thrift's specification of the compact protocol;
Arrow's ``Message.fbs`` and ``File.fbs`` and the specification of flatbuffers.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fourpoint.data.expansion import NUMBER

PARQUET = b"PAR1"
DEEPEST = 32
HEADER = 2**9  # bytes that are read of a page's header at first
LONGEST_HEADER = 2**24


class Chunk(NamedTuple):
    """One column of a row group: where its pages begin, their bytes in the file, and its values."""

    start: int
    size: int
    values: int


def expanded_size(path: Path, columns: Collection[str]) -> int:
    """Bytes that these top-level columns take in memory, nested ones included: their pages, by the
    footer or by their own headers if that is more, and a number for each value.

    Fails with ValueError where the file has no footer or a damaged one.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> file = Path(tempfile.mkdtemp()) / "a.parquet"
    >>> pq.write_table(pa.table({"id": [7, 8], "t": [[1.0, 2.0, 3.0], [4.0]]}), file)
    >>> expanded_size(file, ["t"]) > expanded_size(file, ["id"]) > 16
    True
    """
    total = 0
    chunks = []
    try:
        footer, _ = _struct(_footer(path), 0, 0)
        for group in footer.get(4, []):
            for column in group.get(1, []):
                metadata = column[3]
                name = metadata[3][0].decode("utf-8", "replace")
                if name in columns:
                    total += max(0, int(metadata[6]))
                    chunks.append(_chunk(metadata))
        unpacked = sum(sum(page_sizes(path, chunk)) for chunk in chunks)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a damaged footer: {type(error).__name__}") from error
    values = sum(chunk.values for chunk in chunks)
    return max(total, unpacked) + NUMBER * values


def _chunk(metadata: dict[int, Any]) -> Chunk:
    data = int(metadata[9])
    dictionary = int(metadata.get(11, 0))
    start = min(place for place in (data, dictionary) if place > 0)
    values = max(0, int(metadata[5]))
    return Chunk(start, int(metadata[7]), values)


def page_sizes(path: Path, chunk: Chunk) -> Iterator[int]:
    """Bytes that each page of a column takes in memory, by its own header.

    Fails with ValueError where a header is damaged.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> file = Path(tempfile.mkdtemp()) / "a.parquet"
    >>> pq.write_table(pa.table({"t": [1.0, 2.0]}), file, use_dictionary=False, compression="none")
    >>> chunk = pq.read_metadata(file).row_group(0).column(0)
    >>> list(page_sizes(file, Chunk(chunk.data_page_offset, chunk.total_compressed_size, 2)))
    [22]
    """
    at = chunk.start
    end = chunk.start + chunk.size
    seen = 0
    with path.open("rb") as file:
        while seen < chunk.values and at < end:
            header, length = _page_header(file, at)
            content = header.get(5) or header.get(8) or {}
            try:
                packed = int(header.get(3, -1))
                unpacked = int(header.get(2, 0))
                values = int(content.get(1, 0))
            except (TypeError, AttributeError, ValueError) as error:
                raise ValueError(f"a damaged header of a page at byte {at}") from error
            if packed < 0:
                raise ValueError(f"a page without a size at byte {at}")
            yield max(0, unpacked)
            seen += max(0, values)
            at += length + packed


def _page_header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The header of the page at byte ``at``, and its length."""
    size = HEADER
    while True:
        file.seek(at)
        data = file.read(size)
        try:
            return _struct(data, 0, 0)
        except (IndexError, ValueError, AttributeError) as error:
            if len(data) < size or size >= LONGEST_HEADER:
                raise ValueError(f"a damaged header of a page at byte {at}") from error
        size *= 32


def _footer(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        begin = size - 8 - length
        if end[4:] != PARQUET or begin < 0:
            raise ValueError("Parquet magic bytes not found in footer")
        file.seek(begin)
        return file.read(length)


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """A struct as a dict from field numbers to values, and where it ends."""
    if depth > DEEPEST:
        raise ValueError("a footer nested too deep")
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        step = head >> 4
        kind = head & 15
        if step:
            number += step
        else:
            number, at = _signed(data, at)
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
    size = data[at] >> 4
    kind = data[at] & 15
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
    if not size:
        return None, at
    key = data[at] >> 4
    value = data[at] & 15
    at += 1
    for _ in range(size):
        _, at = _value(data, at, key, depth + 1)
        _, at = _value(data, at, value, depth + 1)
    return None, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    sign = -(value & 1)
    return (value >> 1) ^ sign, at


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


ARROW = b"ARROW1"
CONTINUED = b"\xff\xff\xff\xff"  # before the length of a message
DICTIONARY = 2  # a kind of message
RECORDS = 3
BLOCK = struct.Struct("<qi4xq")
BUFFER = struct.Struct("<qq")
LARGEST_HEADER = 2**28


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Bytes that each dictionary and each batch of a file or stream takes once unpacked, in order.

    A damaged file ends the list early, and is left to Arrow to explain.

    >>> import tempfile, pyarrow as pa
    >>> file = Path(tempfile.mkdtemp()) / "a.arrow"
    >>> batch = pa.record_batch({"t": [0.0] * 1000})
    >>> packed = pa.ipc.IpcWriteOptions(compression="lz4")
    >>> with (
    ...     pa.OSFile(str(file), "wb") as sink,
    ...     pa.ipc.new_file(sink, batch.schema, options=packed) as writer,
    ... ):
    ...     writer.write_batch(batch)
    >>> list(unpacked_sizes(file))
    [8000]
    """
    with path.open("rb") as file:
        try:
            if file.read(6) == ARROW:
                yield from _of_file(file)
            else:
                yield from _of_stream(file)
        except (struct.error, IndexError, ValueError, OverflowError):
            return


def _of_file(file: BinaryIO) -> Iterator[int]:
    size = file.seek(0, io.SEEK_END)
    end = size - 10
    file.seek(max(0, end))
    length, magic = struct.unpack("<i6s", file.read(10))
    if magic != ARROW or not 0 < length <= end:
        return
    file.seek(end - length)
    footer = file.read(length)
    root = _root(footer)
    known: dict[int, int] = {}  # one batch may be listed again and again
    for field in (2, 3):
        for at in _vector(footer, root, field, BLOCK.size):
            offset, header, _ = BLOCK.unpack_from(footer, at)
            if offset not in known:
                file.seek(offset)
                message = _header(file)
                known[offset] = _unpacked(file, message, offset + header)
            yield known[offset]


def _of_stream(file: BinaryIO) -> Iterator[int]:
    at = 0
    while True:
        file.seek(at)
        header = _header(file)
        if not header:
            return
        body = file.tell()
        place = _field(header, _root(header), 3)
        length = struct.unpack_from("<q", header, place)[0] if place else 0
        if length < 0:
            return
        size = _unpacked(file, header, body)
        if size:
            yield size
        at = body + length


def _header(file: BinaryIO) -> bytes:
    """The header of the message that begins here; none at the end of a stream."""
    first = file.read(4)
    if first == CONTINUED:
        first = file.read(4)
    size = int.from_bytes(first, "little")
    if size > LARGEST_HEADER:
        raise ValueError("a header of impossible length")
    return file.read(size)


def _unpacked(file: BinaryIO, message: bytes, body: int) -> int:
    """Bytes of all buffers of a message whose body begins at ``body``."""
    root = _root(message)
    place = _field(message, root, 1)
    kind = message[place] if place else 0
    if kind not in (DICTIONARY, RECORDS):
        return 0
    batch = _follow(message, _field(message, root, 2))
    if kind == DICTIONARY:
        batch = _follow(message, _field(message, batch, 1))
    packed = _field(message, batch, 3) != 0
    total = 0
    for at in _vector(message, batch, 2, BUFFER.size):
        offset, length = BUFFER.unpack_from(message, at)
        size = max(0, length)
        if packed and length >= 8:
            file.seek(body + offset)
            (size,) = struct.unpack("<q", file.read(8))
            if size < 0:
                size = length - 8
        total += size
    return total


def _root(data: bytes) -> int:
    return int.from_bytes(data[:4], "little")


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table stands, or 0 where the table does not have it."""
    (back,) = struct.unpack_from("<i", data, table)
    names = table - back
    (size,) = struct.unpack_from("<H", data, names)
    entry = 4 + 2 * number
    if entry >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, names + entry)
    if not offset:
        return 0
    return table + offset


def _follow(data: bytes, at: int) -> int:
    if not at:
        raise ValueError("a header without a batch")
    (offset,) = struct.unpack_from("<I", data, at)
    return at + offset


def _vector(data: bytes, table: int, number: int, size: int) -> range:
    """Where the items of a vector stand; those beyond the bytes are left out."""
    place = _field(data, table, number)
    if not place:
        return range(0)
    length = _follow(data, place)
    (count,) = struct.unpack_from("<I", data, length)
    first = length + 4
    end = first + count * size
    return range(first, min(end, len(data)), size)
