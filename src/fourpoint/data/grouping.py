"""Rows to sequences: which rows belong together, in the order of first appearance, without a step
of Python per row.

Rows that share a value are one sequence. Most files are already grouped (all rows of a sequence are
neighbours), and
then nothing is moved: :func:`number` sees it from the runs of equal values. Otherwise values are
numbered by a table or a hash, and rows are moved by a stable radix sort of these numbers, 16 bits
at a time, in time proportional to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fourpoint.events.batching import offsets_of

DIGIT = 65536  # numpy sorts 16-bit integers by radix
BLOCK = 1 << 20
NONE = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class Numbered:
    """Rows with the number of their sequence, as ``codes``; or as ``offsets``, where sequences
    follow one another row by row.
    """

    distinct: NDArray[Any]
    codes: NDArray[np.int32]
    offsets: NDArray[np.int64] | None

    def code(self) -> NDArray[np.int32]:
        """The number of each row's sequence."""
        if self.offsets is None:
            return self.codes
        lengths = np.diff(self.offsets)
        return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

    def renumbered(self, place: NDArray[np.int64]) -> Numbered:
        """The same rows where sequence i is called ``place[i]``: numbers that no row has are
        sequences without events.
        """
        count = int(place.max(initial=-1)) + 1
        numbers = np.arange(count)
        in_order = bool((np.diff(place) > 0).all())
        if self.offsets is not None and in_order:
            lengths = np.zeros(count, dtype=np.int64)
            lengths[place] = np.diff(self.offsets)
            return Numbered(numbers, NONE, offsets_of(lengths))
        codes = place.astype(np.int32)[self.code()]
        return Numbered(numbers, codes, None)


@dataclass(frozen=True)
class Group:
    """Rows laid sequence by sequence: sequence i owns positions ``offsets[i]:offsets[i + 1]``, and
    position k is row ``order[k]``.

    ``order`` is None where rows stand as in the file.
    """

    offsets: NDArray[np.int64]
    order: NDArray[np.int64] | None

    def arrange(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of the file, row by row, in the order of positions."""
        if self.order is None:
            return column
        return column[self.order]

    def row(self, position: int) -> int:
        """The row of the file at a position."""
        if self.order is None:
            return position
        return int(self.order[position])

    def sequence(self, position: int) -> int:
        """The number of the sequence that owns a position."""
        after = np.searchsorted(self.offsets, position, side="right")
        return int(after) - 1


def number(pieces: NDArray[Any] | list[NDArray[Any]]) -> Numbered:
    """Number distinct integers (N,), given whole or in pieces, by first appearance.

    >>> number(np.array([7, 7, 3])).offsets.tolist()
    [0, 2, 3]
    >>> n = number(np.array([7, 3, 7]))
    >>> n.distinct.tolist(), n.code().tolist(), n.offsets
    ([7, 3], [0, 1, 0], None)
    """
    pieces = pieces if isinstance(pieces, list) else [pieces]
    runs = _runs([piece for piece in pieces if len(piece)])
    if runs is not None:
        return runs
    values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    low = int(values.min())
    high = int(values.max())
    if high - low <= 4 * len(values) + DIGIT:
        return _by_table(values, low, high)
    encoded = pa.array(values).dictionary_encode()
    distinct = np.from_dlpack(encoded.dictionary)
    codes = np.from_dlpack(encoded.indices)
    return Numbered(distinct, np.asarray(codes, dtype=np.int32), None)


def group(
    numbered: Numbered, count: int, times: NDArray[np.float64] | NDArray[np.int64] | None = None
) -> tuple[Group, bool]:
    """Lay the rows of ``count`` sequences side by side, stably; where ``times`` are given also by
    time inside a sequence.

    Returns the rows' arrangement, and whether any had to move within its sequence to be in order of
    time.

    >>> arrangement, moved = group(number(np.array([7, 3, 7])), 2, np.array([2.0, 5.0, 1.0]))
    >>> arrangement.offsets.tolist(), arrangement.order.tolist(), moved
    ([0, 2, 3], [2, 0, 1], True)
    """
    if numbered.offsets is not None:
        empty = count + 1 - len(numbered.offsets)
        offsets = np.pad(numbered.offsets, (0, empty), mode="edge")
        order = None
    else:
        code = numbered.code()
        offsets = offsets_of(np.bincount(code, minlength=count))
        order = None if _rising(code) else stable_order(code, count)
    found = Group(offsets, order)
    if times is None or _in_order(found.arrange(times), offsets):
        return found, False
    by_time = np.argsort(times, kind="stable")
    code = numbered.code()[by_time]
    return Group(offsets, by_time[stable_order(code, count)]), True


def stable_order(code: NDArray[Any], count: int) -> NDArray[np.int64]:
    """The stable order of integers in 0..count-1, by radix.

    >>> stable_order(np.array([1, 0, 1, 0]), 2).tolist()
    [1, 3, 0, 2]
    """
    if count <= DIGIT:
        return np.argsort(code.astype(np.uint16), kind="stable")
    low = (code % DIGIT).astype(np.uint16)
    order = np.argsort(low, kind="stable")
    high = (code // DIGIT)[order]
    digits = -(-count // DIGIT)
    return order[stable_order(high, digits)]


def _runs(pieces: list[NDArray[Any]]) -> Numbered | None:
    """The runs of equal values, if no value has two."""
    if not pieces:
        return Numbered(np.zeros(0, dtype=np.int64), NONE, np.zeros(1, dtype=np.int64))
    heads = []
    distinct = []
    first = 0
    last = None
    for piece in pieces:
        change = np.empty(len(piece), dtype=bool)
        change[0] = last is None or piece[0] != last
        np.not_equal(piece[1:], piece[:-1], out=change[1:])
        # Where most neighbours differ, rows are not grouped, or each is alone; only rising values
        # are worth a look then.
        changes = int(np.count_nonzero(change))
        if changes > max(len(piece) // 4, 1000) and not _rising(piece):
            return None
        start = np.flatnonzero(change)
        heads.append(start + first)
        distinct.append(piece[start])
        first += len(piece)
        last = piece[-1]
    values = np.concatenate(distinct)
    if not _strictly_rising(values):
        most = max(first // 4, 1000)
        if len(values) > most or len(np.unique(values)) < len(values):
            return None
    offsets = np.append(np.concatenate(heads), first)
    return Numbered(values, NONE, offsets)


def _by_table(values: NDArray[Any], low: int, high: int) -> Numbered:
    """Numbers by a table over low..high. Written backwards, each place of the table ends with its
    first row.
    """
    n = len(values)
    width = high - low + 1
    if values.dtype == np.uint64:
        key = (values - np.uint64(low)).astype(np.int64)
    else:
        key = values.astype(np.int64, copy=False)
        if low:
            key = key - low
    first = np.full(width, n, dtype=np.int64)
    for stop in range(n, 0, -BLOCK):
        start = max(stop - BLOCK, 0)
        backwards = key[start:stop][::-1]
        first[backwards] = np.arange(stop - 1, start - 1, -1)
    present = np.flatnonzero(first < n)
    order = np.argsort(first[present], kind="stable")
    present = present[order]
    rank = np.zeros(width, dtype=np.int32)
    rank[present] = np.arange(len(present), dtype=np.int32)
    return Numbered(present + low, rank[key], None)


def _rising(values: NDArray[Any]) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def _strictly_rising(values: NDArray[Any]) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _in_order(times: NDArray[Any], offsets: NDArray[np.int64]) -> bool:
    falls = times[1:] < times[:-1]
    back = np.flatnonzero(falls) + 1
    return bool(np.isin(back, offsets).all())
