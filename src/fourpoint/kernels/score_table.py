r"""A DAPP's scores of recent events, read off a table: which past events an event attends to,
without a sum over modes.

The score of an event at lag d is a sum of D sinusoids per head; for 256 past events that is more
work than all the rest of a stream's step. So kappa_k and its derivative are tabulated on a grid of
lags and read by cubic Hermite interpolation. On a cell of width h from d on, its error is at most

    h^4 / 384 max |kappa''''|  <=  h^4 / 384 sum_j w_j |a_j|^4 exp(-gamma_j d),
        a_j = -gamma_j + i theta_j,

and the grid is the widest that keeps this below ``ERROR`` = 1e-6, octave by octave of the lag, so
that no test of it is needed. Tables are made when a pair of marks first meets, within ``BYTES`` in
all, and the lags they cover are bounded too: what lies beyond is summed over the modes. Only
reported weights are read here, never a rate or a likelihood.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint import kernels
from fourpoint.kernels.compiling import machine_code

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Waves = NDArray[np.complex128]
ERROR = 1e-6
OCTAVES = 40  # from the shortest lag on
CELLS = 2**14  # of a grid, at most
BYTES = 2**25  # of all tables, at most
PIECE = 2**20  # sinusoids formed at once


class Grid(NamedTuple):
    """Lags in the model's unit: octave 0 from 0 to 1 / speed, each further one as long as all
    before, of equal cells.
    """

    speed: float
    left: Floats  # (O,)
    per_unit: Floats  # (O,): cells per unit
    first: Places  # (O + 1,): cells before each octave, and all of them


class ScoreTable:
    """Scores of K heads as a function of lag, in the user's unit of time ``scale``.

    (K, D) ``frequency``, ``decay`` and ``weight`` of the modes, (K, D, M) ``shift``.

    >>> modes = np.ones((2, 32)), np.ones((2, 32)), np.zeros((2, 32, 1)), np.full((2, 32), 1 / 32)
    >>> table = ScoreTable(*modes, 1.0)
    >>> table.scores(np.array([0.0, 0.5]), np.array([0, 0]), 0).round(3).tolist()
    [[1.0, 0.532], [1.0, 0.532]]
    """

    def __init__(
        self, frequency: Floats, decay: Floats, shift: Floats, weight: Floats, scale: float
    ) -> None:
        self.rate: Waves = -decay + 1j * frequency  # (K, D)
        self.shift: Floats = shift
        self.weight: Floats = weight
        self.scale = scale
        self.grid = self._grid()
        marks = shift.shape[-1]
        cells = int(self.grid.first[-1])
        self.slots = np.full((marks, marks), -1)
        # per pair: each cell's cubics, from 0 to 1
        self.tables: Floats = np.zeros((1, cells, len(weight), 4))
        self.pairs = 0

    def scores(self, lags: Floats, marks: Places, mark: int) -> Floats:
        """kappa_k of an event of type ``mark`` on past events of types ``marks`` at ``lags``, (K,
        N), within ``ERROR``.
        """
        d = lags / self.scale
        slot = self._slots(marks, mark)
        _, exponent = np.frexp(d * self.grid.speed)
        octave = np.maximum(exponent, 0).astype(np.int64)
        far = octave >= len(self.grid.left)
        beyond = far | (slot < 0)
        if not beyond.any():
            return self._read(d, slot, octave)
        heads = len(self.weight)
        found = np.empty((heads, len(d)))
        summed = self._summed(d[beyond], marks[beyond], mark)
        found[:, beyond] = summed
        inside = ~beyond
        read = self._read(d[inside], slot[inside], octave[inside])
        found[:, inside] = read
        return found

    def largest(self, lags: Floats, marks: Places, mark: int, top: int) -> tuple[Places, Floats]:
        """Where the ``top`` scores of the largest size are, and the scores, (K, top) or as many as
        there are, the largest first.
        """
        heads = len(self.weight)
        shape = (heads, min(top, len(lags)))
        places = np.empty(shape, dtype=np.int64)
        found = np.empty(shape)
        loop = kernels.SCORE_TABLE.choose()
        for _ in range(0 if loop is None else 2):  # the second time with tables that were missing
            tables = (self.grid, self.slots, self.tables)
            if loop(lags, marks, mark, self.scale, *tables, places, found):
                return places, found
            self._slots(marks, mark)
        return largest(self.scores(lags, marks, mark), top)

    def _slots(self, marks: Places, mark: int) -> Places:
        """The tables of each pair; those that are missing are made."""
        slot = self.slots[mark].take(marks)
        if len(slot) and slot.min() < 0:
            missing = marks[slot < 0]
            for other in np.unique(missing).tolist():
                self._make(mark, other)
            slot = self.slots[mark].take(marks)
        return slot

    def _read(self, d: Floats, slot: Places, octave: Places) -> Floats:
        grid = self.grid
        first = grid.first.take(octave)
        following = grid.first.take(octave + 1)
        last = following - first - 1
        lag = d - grid.left.take(octave)
        v = lag * grid.per_unit.take(octave)
        cell = np.minimum(v.astype(np.int64), last)
        u = (v - cell)[:, None]
        _, cells, heads, _ = self.tables.shape
        cubics = self.tables.reshape(-1, heads, 4)
        own = slot * cells + first + cell
        c = cubics.take(own, axis=0)
        value = c[..., 2] + u * c[..., 3]
        value = c[..., 1] + u * value
        value = c[..., 0] + u * value
        return np.asarray(value.T)

    def _grid(self) -> Grid:
        """Each octave as fine as it needs to be, as many of them as there is room for."""
        size = np.abs(self.rate)
        speed = max(float(size.max()), 1e-12)
        right = 2.0 ** np.arange(OCTAVES) / speed
        left = np.append(0.0, right[:-1])
        width = right - left
        exponents = self.rate.real * left[:, None, None]
        faded = np.exp(exponents)
        each = self.weight * size**4 * faded
        fourth = each.sum(2).max(1)
        fineness = (fourth / (384 * ERROR)) ** 0.25  # cells per unit of lag
        wanted = np.ceil(width * fineness)
        cells = np.maximum(1, wanted).astype(np.int64)
        before = np.cumsum(cells)
        count = int(np.searchsorted(before, CELLS, side="right"))
        per_unit = cells[:count] / width[:count]
        first = np.append(0, before[:count])
        return Grid(speed, left[:count], per_unit, first)

    def _make(self, mark: int, other: int) -> None:
        if self.pairs == len(self.tables):
            if 2 * self.tables.nbytes > BYTES:
                return
            room = np.zeros_like(self.tables)
            self.tables = np.concatenate([self.tables, room])
        grid = self.grid
        cells = np.diff(grid.first)
        points = []
        for left, count, per_unit in zip(grid.left, cells, grid.per_unit, strict=True):
            lags = np.arange(count) / per_unit
            points.append(left + lags)
            end = left + count / per_unit
        d = np.append(np.concatenate(points), end)
        value, derivative = self._sinusoids(d, mark, other)
        h = 1 / np.repeat(grid.per_unit, cells)
        rise = np.diff(value)
        low = h * derivative[:, :-1]
        high = h * derivative[:, 1:]
        square = 3 * rise - 2 * low - high
        third = low + high - 2 * rise
        start = value[:, :-1]
        cubic = np.stack([start, low, square, third], -1)  # (K, cells, 4)
        self.tables[self.pairs] = cubic.transpose(1, 0, 2)
        self.slots[mark, other] = self.pairs
        self.pairs += 1

    def _sinusoids(self, d: Floats, mark: int, other: int) -> tuple[Floats, Floats]:
        """sum_j w_j Re[exp(i psi_j(mark) - i psi_j(other)) exp(a_j d)] and its derivative in d, (K,
        N) each.
        """
        heads = len(self.rate)
        value = np.empty((heads, len(d)))
        derivative = np.empty((heads, len(d)))
        own = self.shift[..., mark]
        past = self.shift[..., other]
        turn = self.weight * np.exp(1j * (own - past))
        turning = self.rate * turn
        both = np.stack([turn, turning], -1)  # (K, D, 2)
        rows = max(1, PIECE // self.rate.size)
        for i in range(0, len(d), rows):
            some = slice(i, i + rows)
            lag = d[some, None]
            for k, rate in enumerate(self.rate):
                fade = np.exp(lag * rate.real)
                angle = lag * rate.imag
                cosine = fade * np.cos(angle)
                sine = fade * np.sin(angle)
                by_cosine = cosine @ both[k].real
                by_sine = sine @ both[k].imag
                found = by_cosine - by_sine
                value[k, some] = found[:, 0]
                derivative[k, some] = found[:, 1]
        return value, derivative

    def _summed(self, d: Floats, marks: Places, mark: int) -> Floats:
        found = np.empty((len(self.weight), len(d)))
        for other in np.unique(marks).tolist():
            mine = marks == other
            value, _ = self._sinusoids(d[mine], mark, other)
            found[:, mine] = value
        return found


def largest(scores: Floats, top: int) -> tuple[Places, Floats]:
    """Where the ``top`` scores (K, N) of the largest size are, and the scores, the largest first.

    >>> largest(np.array([[0.5, -2.0, 1.0]]), 2)
    (array([[1, 2]]), array([[-2.,  1.]]))
    """
    size = np.abs(scores)
    head = np.arange(len(scores))[:, None]
    if size.shape[1] > top:
        rising = np.argpartition(size, -top, axis=1)
        some = rising[:, -top:]
        sizes = size[head, some]
        order = np.argsort(-sizes, axis=1)
        places = some[head, order]
    else:
        places = np.argsort(-size, axis=1)
    return places, scores[head, places]


@cache
def load() -> Callable[..., bool]:
    """:func:`largest_read` as machine code, cached on disk between runs if possible."""
    modules = (sys.modules[__name__],)
    compiled = machine_code(modules, (largest_read,), fastmath=False)
    return compiled["largest_read"]


@no_type_check  # numba has its own types
def largest_read(lags, marks, mark, scale, grid, slots, tables, places, found):
    """:meth:`ScoreTable.largest` from the tables alone, into (K, top) ``places`` and ``found``;
    False where they do not suffice.
    """
    K, top = places.shape
    for n in range(len(lags)):
        d = lags[n] / scale
        slot = slots[mark, marks[n]]
        _, exponent = math.frexp(d * grid.speed)
        octave = max(exponent, 0)
        if slot < 0 or octave >= len(grid.left):
            return False
        first = grid.first[octave]
        cells = grid.first[octave + 1] - first
        lag = d - grid.left[octave]
        u = lag * grid.per_unit[octave]
        cell = min(int(u), cells - 1)
        u -= cell
        row = tables[slot, first + cell]
        for k in range(K):
            score = row[k, 2] + u * row[k, 3]
            score = row[k, 1] + u * score
            score = row[k, 0] + u * score
            size = abs(score)
            i = min(n, top)  # the place that it takes, from the end on
            while i > 0 and size > abs(found[k, i - 1]):
                before = i - 1
                if i < top:
                    places[k, i] = places[k, before]
                    found[k, i] = found[k, before]
                i = before
            if i < top:
                places[k, i] = n
                found[k, i] = score
    return True
