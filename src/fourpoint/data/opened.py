"""A table that is open but not yet read: its columns by name and type, its first rows, and the way
to read some of them.

:mod:`fourpoint.data.tables` makes one of anything tabular, :mod:`fourpoint.data.roles` chooses
columns by it, and :mod:`fourpoint.data.columns` reads those. Nothing else of a file is ever held in
memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from fourpoint.events import EventDataError
from fourpoint.report.printing import plain_console, text_column
from fourpoint.sanitising import console_text

HEAD = 1000  # rows that are looked at before a table is read
BEGINNING = 1 << 18  # rows that are looked at where these leave a doubt, before all rows are
FAULTS = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    NotImplementedError,
)


@dataclass(frozen=True)
class Table:
    """Something tabular. ``place`` says where a row stands, in words: "row 3", or "line 5" of a
    text file.
    """

    label: str  # as errors call it
    name: str  # without folders and endings
    schema: pa.Schema
    head: Callable[[list[str]], pa.Table]  # the first rows of these columns
    load: Callable[[list[str]], pa.Table]  # all rows of these columns
    place: Callable[[int], str]
    # many of the first rows of these columns; None where that is as much work as all of them
    beginning: Callable[[list[str]], pa.Table] | None = None

    def error(self, expected: str, received: str, remedy: str) -> EventDataError:
        """An error about this table."""
        return EventDataError(expected, f"{self.label}: {received}", remedy)


def row_number(row: int) -> str:
    """Where a row stands in a table without lines; rows are counted from 0."""
    return f"row {row}"


def reason(error: BaseException) -> str:
    """The first sentence or so of what another library says."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:120]


def pieces(column: pa.ChunkedArray) -> list[NDArray[Any]]:
    """The chunks of a column of numbers, dates or times without nulls as numpy arrays, without a
    copy.
    """
    bare = pa.int64() if column.type.bit_width == 64 else pa.int32()
    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    found = []
    for chunk in column.chunks:
        if len(chunk):
            numbers = chunk if plain else chunk.view(bare)
            found.append(np.from_dlpack(numbers))
    return found


def flat(column: pa.ChunkedArray | pa.Array, kind: DTypeLike | None = None) -> NDArray[Any]:
    """Such a column as one array, without a copy where it is one piece already.

    >>> flat(pa.chunked_array([[1, 2], [3]]), np.float64).tolist()
    [1.0, 2.0, 3.0]
    """
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    parts = pieces(column)
    found = parts[0].dtype if parts else np.dtype(np.int64)
    dtype = found if kind is None else np.dtype(kind)
    if len(parts) == 1 and found == dtype:
        return parts[0]
    whole = np.empty(len(column), dtype=dtype)
    first = 0
    for part in parts:
        last = first + len(part)
        whole[first:last] = part
        first = last
    return whole


def whole_numbers(values: NDArray[np.int64]) -> pa.Array:
    """Whole numbers for pyarrow, without a copy. Its own conversion, ``pa.array``, imports pandas.

    >>> whole_numbers(np.array([2, 0])).to_pylist()
    [2, 0]
    """
    found = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(found), [None, pa.py_buffer(found)])


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal once reading has taken a second; called with the bytes or rows just read.
    None without a terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (text_column(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=plain_console(stderr=True), transient=True)
    task = bar.add_task(f"reading {console_text(label)}", total=total)
    began = time.monotonic()

    def advance(amount: int) -> None:
        bar.update(task, advance=amount)
        if not bar.live.is_started and time.monotonic() - began > 1:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
