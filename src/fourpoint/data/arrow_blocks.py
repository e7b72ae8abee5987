"""How large the batches of an Arrow file are once unpacked, read from their headers before anything
is unpacked.

A batch is a header and a body of buffers. Where buffers are compressed, each begins with its length
when unpacked, 8 bytes little-endian, or -1 where it is stored as it is. A file ends with a footer
that lists its batches; a stream is one batch after the other. Headers and footer are flatbuffers,
of which the few fields that matter are taken from the bytes here:

    Footer 2: dictionaries, 3: batches     Message 1: kind, 2: header, 3: length of the body     RecordBatch 2: buffers, 3: compression

Source: Arrow's ``Message.fbs`` and ``File.fbs``, and the specification of flatbuffers.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAGIC = b"ARROW1"
DICTIONARY, RECORDS = 2, 3  # kinds of messages
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
            yield from _of_file(file) if file.read(6) == MAGIC else _of_stream(file)
        except (struct.error, IndexError, ValueError, OverflowError):
            return


def _of_file(file: BinaryIO) -> Iterator[int]:
    end = file.seek(0, io.SEEK_END)
    file.seek(max(0, end - 10))
    length, magic = struct.unpack("<i6s", file.read(10))
    if magic != MAGIC or not 0 < length <= end - 10:
        return
    file.seek(end - 10 - length)
    footer = file.read(length)
    root = _root(footer)
    known: dict[int, int] = {}  # one batch may be listed again and again
    for field in (2, 3):
        for at in _vector(footer, root, field, BLOCK.size):
            offset, header, _ = BLOCK.unpack_from(footer, at)
            if offset not in known:
                file.seek(offset)
                known[offset] = _unpacked(file, _header(file), offset + header)
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
    size = int.from_bytes(file.read(4) if first == b"\xff\xff\xff\xff" else first, "little")
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
        if packed and length >= 8:
            file.seek(body + offset)
            stated = struct.unpack("<q", file.read(8))[0]
            total += length - 8 if stated < 0 else stated
        else:
            total += max(0, length)
    return total


def _root(data: bytes) -> int:
    return int.from_bytes(data[:4], "little")


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table stands, or 0 where the table does not have it."""
    names = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, names)[0]
    if 4 + 2 * number >= size:
        return 0
    offset = struct.unpack_from("<H", data, names + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _follow(data: bytes, at: int) -> int:
    if not at:
        raise ValueError("a header without a batch")
    return at + int(struct.unpack_from("<I", data, at)[0])


def _vector(data: bytes, table: int, number: int, size: int) -> range:
    """Where the items of a vector stand; those beyond the bytes are left out."""
    place = _field(data, table, number)
    if not place:
        return range(0)
    first = _follow(data, place)
    count = struct.unpack_from("<I", data, first)[0]
    return range(first + 4, min(first + 4 + count * size, len(data)), size)
