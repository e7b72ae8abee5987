r"""A DAPP's scores of recent events, read off a table: which past events an event attends to, without a sum over modes.

The score of an event at lag d is a sum of D waves per head; for 256 past events that is more work than all the rest of a
stream's step. So kappa_k and its derivative are tabulated on a grid of lags and read by cubic Hermite interpolation. On a cell
of width h from d on, its error is at most

    h^4 / 384 max |kappa''''|  <=  h^4 / 384 sum_j w_j |a_j|^4 exp(-gamma_j d),        a_j = -gamma_j + i theta_j,

and the grid is the widest that keeps this below ``ERROR`` = 1e-6, octave by octave of the lag, so that no test of it is needed.
Tables are made when a pair of marks first meets, within ``BYTES`` in all, and the lags they cover are bounded too: what lies
beyond is summed over the modes. Only reported weights are read here, never a rate or a likelihood. Used by `streaming`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.models.dapp import DAPP

Floats = NDArray[np.float64]
ERROR = 1e-6
OCTAVES = 40  # from the shortest lag on
CELLS = 2**14  # of a grid, at most
BYTES = 2**25  # of all tables, at most
PIECE = 2**20  # waves formed at once


class KernelTable:
    """Scores of the model in evaluation mode, as a function of lag, in the user's unit of time.

    >>> table = KernelTable(DAPP(heads=2, eval_features=32))
    >>> table.scores(np.array([0.0, 0.5]), np.array([0, 0]), 0).shape, table.scores(np.zeros(1), np.array([0]), 0).tolist()
    ((2, 2), [[1.0], [1.0]])
    """

    @torch.no_grad()
    def __init__(self, model: DAPP) -> None:
        s = model.spectrum(fixed=True)
        frequency, shift, weight = (x.detach().cpu().double().numpy() for x in (s.frequency, s.shift, s.weight))
        decay = np.zeros_like(frequency) if s.decay is None else s.decay.detach().cpu().double().numpy()
        self.rate: NDArray[Any] = -decay + 1j * frequency  # (K, D)
        self.shift: Floats = shift
        self.weight: Floats = weight
        self.scale = float(model.time_scale)
        self.heads = np.arange(len(weight))[:, None]
        self.grid = self._grid()
        marks = shift.shape[-1]
        self.slots = np.full((marks, marks), -1)
        self.tables: Floats = np.zeros((1, len(weight), len(self.grid) - 1, 4))  # per pair: each cell's cubic, from 0 to 1
        self.pairs = 0

    def scores(self, lags: Floats, marks: NDArray[np.int64], mark: int) -> Floats:
        """kappa_k of an event of type ``mark`` on past events of types ``marks`` at ``lags``, (K, N), within ``ERROR``."""
        d = lags / self.scale
        slot = self.slots[mark, marks]
        if (slot < 0).any():
            for other in np.unique(marks[slot < 0]).tolist():
                self._make(mark, other)
            slot = self.slots[mark, marks]
        cell = np.searchsorted(self.grid, d, side="right") - 1
        beyond = (slot < 0) | (cell >= len(self.grid) - 1)
        if beyond.any():
            found = np.empty((len(self.heads), len(d)))
            found[:, beyond] = self._summed(d[beyond], marks[beyond], mark)
            if not beyond.all():
                inside = ~beyond
                found[:, inside] = self._read(d[inside], slot[inside], cell[inside])
            return found
        return self._read(d, slot, cell)

    def _read(self, d: Floats, slot: NDArray[np.int64], cell: NDArray[np.int64]) -> Floats:
        left = self.grid[cell]
        u = (d - left) / (self.grid[cell + 1] - left)
        K, cells = len(self.heads), len(self.grid) - 1
        row = self.heads * cells + (slot * (K * cells) + cell)
        found = self.tables.reshape(-1, 4).take(row, axis=0)
        a0, a1, a2, a3 = found[..., 0], found[..., 1], found[..., 2], found[..., 3]
        return np.asarray(a0 + u * (a1 + u * (a2 + u * a3)))

    def _grid(self) -> Floats:
        """Lags at which the table stands, in the model's unit: from 0, each octave as fine as it needs to be."""
        speed = np.abs(self.rate).max(0).max()
        reach = 2.0 ** np.arange(OCTAVES) / max(speed, 1e-12)
        ends = np.concatenate([[0.0], reach])
        points, total = [np.zeros(1)], 0
        for left, right in zip(ends[:-1], ends[1:], strict=True):
            fourth = (self.weight * np.abs(self.rate) ** 4 * np.exp(self.rate.real * left)).sum(1).max()
            cells = max(1, int(np.ceil((right - left) * (fourth / (384 * ERROR)) ** 0.25)))
            total += cells
            if total > CELLS:
                break
            points.append(np.linspace(left, right, cells + 1)[1:])
        return np.concatenate(points)

    def _make(self, mark: int, other: int) -> None:
        if self.pairs == len(self.tables):
            if 2 * self.tables.nbytes > BYTES:
                return
            self.tables = np.concatenate([self.tables, np.zeros_like(self.tables)])
        value, slope = self._waves(self.grid, mark, other)
        h = np.diff(self.grid)
        rise, low, high = np.diff(value), h * slope[:, :-1], h * slope[:, 1:]
        self.tables[self.pairs] = np.stack([value[:, :-1], low, 3 * rise - 2 * low - high, low + high - 2 * rise], -1)
        self.slots[mark, other] = self.pairs
        self.pairs += 1

    def _waves(self, d: Floats, mark: int, other: int) -> tuple[Floats, Floats]:
        """sum_j w_j Re[exp(i psi_j(mark) - i psi_j(other)) exp(a_j d)] and its derivative in d, (K, N) each."""
        value, slope = np.empty((2, len(self.rate), len(d)))
        turn = self.weight * np.exp(1j * (self.shift[..., mark] - self.shift[..., other]))
        both = np.stack([turn, self.rate * turn], -1)  # (K, D, 2)
        rows = max(1, PIECE // self.rate.size)
        for i in range(0, len(d), rows):
            lag = d[i : i + rows, None]
            for k, rate in enumerate(self.rate):
                fade, angle = np.exp(lag * rate.real), lag * rate.imag
                found = (fade * np.cos(angle)) @ both[k].real - (fade * np.sin(angle)) @ both[k].imag
                value[k, i : i + rows], slope[k, i : i + rows] = found.T
        return value, slope

    def _summed(self, d: Floats, marks: NDArray[np.int64], mark: int) -> Floats:
        found = np.empty((len(self.heads), len(d)))
        for other in np.unique(marks).tolist():
            mine = marks == other
            found[:, mine] = self._waves(d[mine], mark, other)[0]
        return found
