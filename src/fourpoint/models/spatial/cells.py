"""Cells of a map: a regular grid over one or two axes of a box, with the other axes integrated
over.

Models give the mean of their rate in every cell rather than its value in the middle, so that a
kernel narrower than a cell is neither missed nor exaggerated. Rates are per unit of what is shown:
area for two axes, length for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Box
from fourpoint.ops.quadrature import gauss_legendre

HIDDEN = 8  # Gauss nodes on every axis that is not shown


@dataclass(frozen=True)
class Cells:
    """``count`` equal cells along each of the axes ``shown`` of a box; the first axis shown varies
    slowest.

    >>> cells = Cells(Box(("x", "y"), (0, 0), (1, 4)), shown=(1,), count=2)
    >>> cells.edges[0].tolist(), cells.middles[0].tolist(), len(cells)
    ([0.0, 2.0, 4.0], [1.0, 3.0], 2)
    """

    box: Box
    shown: tuple[int, ...]
    count: int

    def __len__(self) -> int:
        return self.count ** len(self.shown)

    @property
    def hidden(self) -> tuple[int, ...]:
        """The axes that are integrated over."""
        return tuple(axis for axis in range(self.box.dimension) if axis not in self.shown)

    @cached_property
    def edges(self) -> tuple[NDArray[np.float64], ...]:
        """The ends of the cells along each axis shown."""
        ends = ((self.box.low[axis], self.box.high[axis]) for axis in self.shown)
        return tuple(np.linspace(low, high, self.count + 1) for low, high in ends)

    @cached_property
    def middles(self) -> tuple[NDArray[np.float64], ...]:
        """The middles of the cells along each axis shown."""
        return tuple((edges[1:] + edges[:-1]) / 2 for edges in self.edges)

    @cached_property
    def places(self) -> tuple[Float[Tensor, "C S k"], Float[Tensor, " S"]]:
        """The middle of every cell with Gauss nodes on the axes not shown, and their weights; (1,)
        without such axes.
        """
        x, w = (part.numpy() for part in gauss_legendre(HIDDEN))
        spans = [
            (self.box.low[axis], self.box.high[axis] - self.box.low[axis]) for axis in self.hidden
        ]
        front = _product(list(self.middles))
        back = _product([low + width * x for low, width in spans])
        weights = _product([width * w for _, width in spans]).prod(1)
        found = np.zeros((len(front), len(back), self.box.dimension))
        found[..., list(self.shown)] = front[:, None]
        found[..., list(self.hidden)] = back[None]
        return torch.from_numpy(found), torch.from_numpy(weights)

    def shares(
        self, density: Float[Tensor, "M ..."], overlaps: list[Float[Tensor, "g n"]]
    ) -> Float[Tensor, "C M"]:
        """A table with one axis per axis of the box, contracted with ``overlaps`` along those shown
        and summed over the others.
        """
        for axis in range(self.box.dimension):
            along = density.movedim(axis + 1, -1)
            if axis in self.shown:
                along = along @ overlaps[self.shown.index(axis)]
            else:
                along = along.sum(-1, keepdim=True)
            density = along.movedim(-1, axis + 1)
        order = [0, *(axis + 1 for axis in self.shown), *(axis + 1 for axis in self.hidden)]
        return density.permute(order).flatten(1).T


def _product(columns: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """All combinations of one value from each column, the first varying slowest: (n, columns)."""
    if not columns:
        return np.zeros((1, 0))
    return np.stack(np.meshgrid(*columns, indexing="ij"), -1).reshape(-1, len(columns))
