r"""How events of each type spread over a box when nothing else is known: a density that is constant
on the cells of a grid.

    f_m(x) = p_mc / volume of a cell,   x in cell c,        sum_c p_mc = 1

One cell is the uniform density 1 / volume. It integrates to 1 exactly, so that a rate per unit of
time times this density has the very integral of the rate. Used as the background of Poisson and
Hawkes processes with places.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fourpoint.events import Box, Dataset, UserError
from fourpoint.models.spatial.cells import Cells


class SpatialGrid(nn.Module):
    """Densities of M types on ``cells`` equal parts of every axis of ``box``; uniform until
    :meth:`count`.

    >>> grid = SpatialGrid(1, Box(("x", "y"), (0, 0), (2, 4)), cells=2)
    >>> grid.log_density(torch.tensor([[0.5, 3.9]]).double()).exp().round(decimals=6).tolist()
    [[0.125]]
    """

    def __init__(self, types: int, box: Box, cells: int = 1) -> None:
        super().__init__()
        if cells < 1:
            raise UserError(
                "at least one cell on every axis",
                f"cells={cells}",
                "Pass cells=16, say.",
            )
        self.box = box
        self.cells = cells
        count = cells**box.dimension
        uniform = torch.full((types, count), -math.log(count), dtype=torch.float64)
        self.log_share = nn.Parameter(uniform, requires_grad=cells > 1)

    def log_density(self, places: Float[Tensor, "*S k"]) -> Float[Tensor, "*S M"]:
        """log f_m at ``places``, in the box's own units."""
        return self.log_densities(self.log_share, places)

    def log_densities(
        self,
        log_share: Float[Tensor, "M C"],
        places: Float[Tensor, "*S k"],
    ) -> Float[Tensor, "*S M"]:
        """The same with other shares, which need not sum to 1 yet."""
        volume = math.log(self.box.volume / log_share.shape[1])
        log_shares = torch.log_softmax(log_share, 1).T
        return log_shares[self.cell(places)] - volume

    @torch.no_grad()
    def in_cells(self, cells: Cells) -> Float[Tensor, "C M"]:
        """The mean density of each type in the cells of a map, per unit of what it shows."""
        overlaps = []
        for axis, edges in zip(cells.shown, cells.edges, strict=True):
            low = self.box.low[axis]
            high = self.box.high[axis]
            own = torch.linspace(low, high, self.cells + 1, dtype=torch.float64)
            theirs = torch.from_numpy(edges)
            left = torch.maximum(own[:-1, None], theirs[None, :-1])
            right = torch.minimum(own[1:, None], theirs[None, 1:])
            common = (right - left).clamp(min=0)
            overlaps.append(common / own.diff()[:, None] / theirs.diff())
        shares = torch.softmax(self.log_share, 1)
        shape = (self.cells,) * self.box.dimension
        return cells.shares(shares.unflatten(1, shape), overlaps)

    @torch.no_grad()
    def draw(self, mark: Int[Tensor, " B"], random: torch.Generator) -> Float[Tensor, "B k"]:
        """A place of each type: a cell by its share, and anywhere in it."""
        share = torch.softmax(self.log_share, 1).cumsum(1)[mark]
        B, C = share.shape
        coin = torch.rand(B, 1, generator=random, dtype=torch.float64)
        cell = torch.searchsorted(share, coin * share[:, -1:], right=True)[:, 0]
        cell = cell.clamp(max=C - 1)
        inside = torch.rand(B, self.box.dimension, generator=random, dtype=torch.float64)
        for axis in reversed(range(self.box.dimension)):
            low = self.box.low[axis]
            high = self.box.high[axis]
            along = cell % self.cells + inside[:, axis]
            inside[:, axis] = low + (high - low) * along / self.cells
            cell = cell // self.cells
        return inside

    def cell(self, places: Float[Tensor, "*S k"]) -> Int[Tensor, "*S"]:
        """The number of the cell that each place lies in; the upper ends of the box belong to the
        last cells.
        """
        index = torch.zeros(places.shape[:-1], dtype=torch.int64, device=places.device)
        for axis, (low, high) in enumerate(zip(self.box.low, self.box.high, strict=True)):
            place = (places[..., axis] - low) / (high - low) * self.cells
            along = place.floor().long().clamp(0, self.cells - 1)
            index = index * self.cells + along
        return index

    @torch.no_grad()
    def count(self, data: Dataset) -> None:
        """The shares of the scored events of ``data``, with one event more, spread evenly over all
        cells, for every type.
        """
        if data.places is None:
            raise UserError("events with places", f"{data.marks}", "Read them with place=.")
        scored = data.scored
        cell = self.cell(torch.from_numpy(data.places[scored])).numpy()
        types, count = self.log_share.shape
        flat = data.mark_ids[scored] * count + cell
        events = np.bincount(flat, minlength=types * count)
        table = events.reshape(types, count) + 1 / count
        shares = table / table.sum(1, keepdims=True)
        self.log_share.copy_(torch.from_numpy(shares).log())
