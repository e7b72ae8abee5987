"""Verbs of models whose rates may have peaks far narrower than a gap, as where times are whole
seconds.

No rule finds a peak between its nodes. What is known is where such peaks can be: at parts of the
elapsed time that are the finer the less has passed, and at the ticks of the clock by which times
were taken. So integrals are cut after every event at steps that grow with the elapsed time, which
also saves nodes. Where ``narrow`` says so, which `narrow_peaks` finds out, they are cut at ticks
too, since a rule looks at both ends of a piece, and cut again before they take many nodes. Panels
of `ops.compensator` are then no longer than a part of such a step, and the shorter the nearer a
tick is.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from fourpoint.models.base import H, PointProcess
from fourpoint.ops.quadrature import MOST

GRAIN = 0.5  # pieces of an integral, in log(1 + d / shortest)
FEW_NODES, MANY_NODES = 8, 16  # of each piece to begin with
# before a piece between ticks is cut: what a peak at its end does to one rule it does to those with
# more nodes
MOST_NODES = 16
TICKS = 128  # since the last event, at which integrals are cut
NEAR, CLOSEST = (
    0.8,
    1e-4,
    # how much of the way to a tick a panel goes at most, and half of what one takes across it, in
    # ticks
)


class NarrowPeaks(PointProcess[H]):
    """For a model with buffers ``narrow`` (bool) and ``tick`` (of the clock, in the user's unit; 0
    for none), and the shortest and the longest time that matter, in that unit too (``extent``).

    >>> from fourpoint.models.deep_dapp import DeepDAPP
    >>> model = DeepDAPP()
    >>> model.narrow.fill_(True).item(), model.first_nodes
    (True, 16)
    """

    narrow: Tensor
    tick: Tensor

    @abstractmethod
    def extent(self) -> tuple[float, float]:
        """The shortest and the longest time that matter."""

    def shortest_time(self, history: H) -> Float[Tensor, " B"]:
        """The shortest time that matters."""
        return torch.full_like(history.start, self.extent()[0])

    @property
    def first_nodes(self) -> int:
        """Nodes of each piece to begin with."""
        return MANY_NODES if self.narrow and not self.tick else FEW_NODES

    @property
    def most_nodes(self) -> int:
        """Nodes of a piece before it is cut."""
        if not self.narrow:
            return MOST
        return MOST_NODES if self.tick else 2 * MOST_NODES

    def longest_panel(self, elapsed: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """How much of the time after ``elapsed`` 16 nodes may see at once."""
        if not self.narrow:
            return torch.full_like(elapsed, torch.inf)
        most = GRAIN / 4 * (elapsed + self.extent()[0])
        return torch.minimum(most, self._to_tick(elapsed)) if self.tick else most

    def _to_tick(self, elapsed: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """So much of the way to the next tick, and no more than some times the way from the last; a
        little across a tick.
        """
        ticks = elapsed / self.tick
        past = ticks - ticks.floor()
        to_next = NEAR * (1 - past)
        from_last = NEAR / (1 - NEAR) * past
        part = torch.minimum(to_next, from_last).clamp(min=2 * CLOSEST)
        return torch.where(ticks < TICKS, self.tick * part, torch.inf)

    def cut_lags(self, device: torch.device) -> Float[Tensor, " E"]:
        """Times since the last event, ever farther apart, between which a rule has to look for
        itself; and ticks, for narrow peaks.
        """
        shortest, longest = self.extent()
        count = math.ceil(math.log1p(longest / shortest) / GRAIN)
        steps = shortest * torch.expm1(
            GRAIN * torch.arange(1, count + 1, dtype=torch.float64, device=device)
        )
        if not (self.narrow and self.tick):
            return steps
        return (
            torch.cat(
                [steps, self.tick * torch.arange(1, TICKS + 1, dtype=torch.float64, device=device)]
            )
            .sort()
            .values
        )

    def cuts(self, history: H) -> Float[Tensor, "B E"] | None:
        """Where integrals are cut: after every position, ever farther apart, up to the next one."""
        steps = self.cut_lags(history.times.device)
        position = torch.arange(history.times.shape[1], device=steps.device)
        following = torch.nn.functional.pad(history.times[:, 1:], (0, 1), value=math.inf)
        following = torch.where(position < history.lengths[:, None], following, math.inf)
        return torch.minimum(history.times[..., None] + steps, following[..., None]).flatten(1)
