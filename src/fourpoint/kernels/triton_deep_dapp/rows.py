"""Which rows of a padded batch count, which program has which of them, and how programs' shares of
gradients become sums.

Tables have R = B P rows, one for each position of each sequence, P - 1 being the most events. Rows
beyond a sequence's last position are
neither written nor read: kernels go through a list of the others, so that their work grows with the
events there are.

Backwards, PROGRAMS programs go through all rows side by side. The gradient of a parameter is a sum
over rows; each program sums its own, leaves that in its line of one table with columns for all
parameters (:class:`Sums`), and one last kernel adds up the lines. All of it
goes in one order: the result is the same every time.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Integer
from torch import Tensor

PRECISION = "tf32"  # of all matrix products; "ieee" in tests
PROGRAMS = 132  # lines of the table: one for each multiprocessor of an H200
COLUMNS, LINES, WARPS = 64, 64, 4  # that a program adds up at a time
# columns of a parameter begin at a multiple of it: widths and modes are multiples too, so that
# those of like kind are one table
EDGE = 16


class Rows(NamedTuple):
    """The rows that count: those of positions 0 to ``lengths`` of each sequence."""

    place: Integer[Tensor, " R"]  # the first ``real`` of these are the rows, in order
    real: Integer[Tensor, " 1"]  # how many
    lengths: Integer[Tensor, " B"]
    P: int

    def tiles(self, rows: int, times: int = 1) -> int:
        """Tiles of ``rows`` that may be needed for all rows, each of which is ``times`` many."""
        return triton.cdiv(len(self.place) * times, rows)


def rows_of(lengths: Integer[Tensor, " B"], P: int) -> Rows:
    """The list, made on the device."""
    place = torch.empty(len(lengths) * P, dtype=torch.int32, device=lengths.device)
    count = place.new_empty(1)
    _list[(len(lengths),)](lengths, place, count, len(lengths), P, BLOCK=128, num_warps=4)
    return Rows(place, count, lengths, P)


class Sums:
    """Shares of gradients: one line for each program, with columns for parameters of the given
    sizes, one after another.

    >>> Sums({"a": 3, "b": 40}, torch.zeros(1))["b"].shape[1]
    40
    """

    def __init__(self, sizes: dict[str, int], like: Tensor) -> None:
        self.sizes, self.first, self.width = sizes, dict[str, int](), 0
        for name, size in sizes.items():
            self.first[name] = self.width
            self.width += -(-size // EDGE) * EDGE
        self.table = like.new_empty(PROGRAMS, self.width)

    def __getitem__(self, name: str) -> Float[Tensor, "G size"]:
        return self.table[:, self.first[name] : self.first[name] + self.sizes[name]]

    def total(self, more: Float[Tensor, "X C"]) -> dict[str, Tensor]:
        """The sums over all lines; to those of the first columns all lines of ``more`` are added.
        What lies between columns is left.
        """
        out = self.table.new_empty(self.width)
        for table, add in ((self.table, False), (more, True)):
            grid = (triton.cdiv(table.shape[1], COLUMNS),)
            _total[grid](
                table, out, *table.shape, ADD=add, COLUMNS=COLUMNS, LINES=LINES, num_warps=WARPS
            )
        return {name: out[first : first + self.sizes[name]] for name, first in self.first.items()}


@triton.jit
@no_type_check  # triton has its own types
def rows_in(tile, place, total, T: tl.constexpr, ROWS: tl.constexpr):
    """The row and the time of every line of a tile, T times for each of ``total`` rows, and whether
    it is one of them.
    """
    i = tile * ROWS + tl.arange(0, ROWS)
    ok = i // T < total
    return tl.load(place + i // T, ok, 0), i % T, ok


@triton.jit
@no_type_check
def tiles_of(total, ROWS: tl.constexpr):
    """The first of this program's tiles of ``total`` lines, and the one after its last."""
    tiles = tl.cdiv(total, ROWS)
    each = tl.cdiv(tiles, tl.num_programs(0))
    begin = tl.minimum(tl.program_id(0) * each, tiles)
    return begin, tl.minimum(begin + each, tiles)


@triton.jit(do_not_specialize=["B", "P"])
@no_type_check
def _list(lengths, place, count, B, P, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, b, BLOCK):
        before += tl.load(lengths + begin + k, begin + k < b, -1).to(tl.int32) + 1
    first = tl.sum(before, 0)
    n = tl.load(lengths + b).to(tl.int32)
    for begin in range(0, n + 1, BLOCK):
        tl.store(place + first + begin + k, b * P + begin + k, begin + k <= n)
    tl.store(count + k, first + n + 1 + k, (k == 0) & (b == B - 1))


@triton.jit(do_not_specialize=["lines"])
@no_type_check
def _total(table, out, lines, width, ADD: tl.constexpr, COLUMNS: tl.constexpr, LINES: tl.constexpr):
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, LINES)
    some = tl.zeros([LINES, COLUMNS], tl.float32)
    for begin in range(0, lines, LINES):
        there = (begin + i < lines)[:, None] & (c < width)[None, :]
        some += tl.load(table + (begin + i)[:, None] * width + c[None, :], there, 0.0)
    found = tl.sum(some, 0)
    if ADD:
        found += tl.load(out + c, c < width, 0.0)
    tl.store(out + c, found, c < width)
