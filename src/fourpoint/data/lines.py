"""Text files as streams of bytes, compressed or not, and the numbers of their lines."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fourpoint.data.expansion import Expansion

BLOCK = 1 << 23  # bytes that are parsed at a time, hence the longest row
LINE_FEED = ord("\n")
CARRIAGE_RETURN = ord("\r")
QUOTE = ord('"')


class Readable(Protocol):
    """A stream of bytes, of Python's or of Arrow's."""

    def read(self, size: int | None = ..., /) -> bytes:
        """At most ``size`` bytes, all that are left if it is None, and none at the end."""


def open_stream(
    path: Path, codec: str | None, advance: Callable[[int], None] | None = None
) -> pa.NativeFile:
    """The bytes of a file, decompressed; ``advance`` is told how many were taken from the disk.

    A small file may unpack to any size: reading ends where
    :class:`fourpoint.data.expansion.Expansion` says so.
    """
    if advance is None:
        source = pa.OSFile(str(path))
    else:
        source = pa.PythonFile(_Counted(path, advance), "r")
    if codec is None:
        return source
    return pa.PythonFile(_Bounded(pa.CompressedInputStream(source, codec), Expansion(path)), "r")


def line_of_record(stream: Readable, record: int, separator: str | None) -> int:
    """The line (from 1) on which record number ``record`` (from 0, the header's) of a text begins;
    blank lines are no records.

    Line ends between quotes do not end a record; with ``separator`` None quotes mean nothing. Reads
    a block at a time.

    >>> line_of_record(io.BytesIO(b'a,b\\n\\n1,"x\\ny"\\n2,z\\n'), 2, ",")
    5
    """
    line = 1
    records = 0
    carried = b""
    while True:
        block = stream.read(BLOCK)
        data = np.frombuffer(carried + block, dtype=np.uint8)
        ends = _record_ends(data, separator)
        if not block:
            ends = np.append(ends, len(data))
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        full = np.flatnonzero(~_blank(data, starts, ends))
        found = records + len(full) > record
        if found or not block:
            if not len(ends):
                return line
            number = full[record - records] if found else len(ends) - 1
            return line + _line_ends(data[: starts[number]])
        records += len(full)
        used = int(ends[-1]) + 1 if len(ends) else 0
        line += _line_ends(data[:used])
        carried = data[used:].tobytes()
        if len(carried) > 2 * BLOCK:
            return line  # no parser takes a record as long as this


def _line_ends(data: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(data == LINE_FEED))


def _blank(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which pieces of text have no character, or a carriage return alone."""
    lengths = ends - starts
    blank = lengths == 0
    if len(data):
        last = len(data) - 1
        first = data[np.minimum(starts, last)]
        blank |= (lengths == 1) & (first == CARRIAGE_RETURN)
    return blank


def _record_ends(data: NDArray[np.uint8], separator: str | None) -> NDArray[np.int64]:
    """Positions of the line ends that end a record."""
    breaks = data == LINE_FEED
    quotes = data == QUOTE
    if separator is None or not quotes.any():
        return np.flatnonzero(breaks)
    edge = breaks | (data == CARRIAGE_RETURN) | (data == ord(separator))
    # A quote opens or closes a field where it stands beside a separator or line end; others are
    # letters.
    after_edge = np.append(True, edge[:-1])
    before_edge = np.append(edge[1:], True)
    marks = quotes & (after_edge | before_edge)
    inside = np.cumsum(marks) % 2 == 1
    return np.flatnonzero(breaks & ~inside)


class _Counted(io.FileIO):
    """A file that tells how many bytes were read."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        super().__init__(path)
        self.advance = advance

    def read(self, size: int | None = -1) -> bytes:
        if size is None:
            size = -1
        content = super().read(size) or b""
        self.advance(len(content))
        return content


class _Bounded(io.RawIOBase):
    """A stream that is counted while it is unpacked, together with what Arrow makes of it."""

    def __init__(self, stream: Readable, expansion: Expansion) -> None:
        self.stream = stream
        self.expansion = expansion

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size < 0:
            size = None
        content: bytes = self.stream.read(size)
        self.expansion.count(len(content))
        self.expansion.check_arrow()
        return content
