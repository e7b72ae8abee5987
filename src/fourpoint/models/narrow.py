"""Verbs of models whose rates may have peaks far narrower than a gap, as where times are whole seconds.

No rule finds a peak between its nodes. What is known is where such peaks can be: at parts of the elapsed time that are the finer the less
has passed. So integrals are cut after every event at steps that grow with the elapsed time, which also saves nodes. Where ``narrow`` says
so, which `narrow_peaks` finds out, they begin with more nodes, and panels of `maths.compensator` are no longer than a part of such a step.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

GRAIN = 0.5  # pieces of an integral, in log(1 + d / shortest)
FEW_NODES, MANY_NODES = 8, 16  # of each piece to begin with


class NarrowPeaks:
    """For a model with a buffer ``narrow`` (bool) and the shortest and the longest time that matter, in the user's unit (``extent``).

    >>> class Model(NarrowPeaks):
    ...     narrow = torch.tensor(True)
    ...     def extent(self): return 1.0, 100.0
    >>> Model().first_nodes, Model().longest_panel(torch.tensor([0.0, 9.0])).tolist()
    (16, [0.125, 1.25])
    """

    narrow: Tensor

    @abstractmethod
    def extent(self) -> tuple[float, float]:
        """The shortest and the longest time that matter."""

    @property
    def first_nodes(self) -> int:
        """Nodes of each piece to begin with."""
        return MANY_NODES if self.narrow else FEW_NODES

    def longest_panel(self, elapsed: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """How much of the time after ``elapsed`` 16 nodes may see at once."""
        return GRAIN / 4 * (elapsed + self.extent()[0]) if self.narrow else torch.full_like(elapsed, torch.inf)

    def lags(self, device: torch.device) -> Float[Tensor, " E"]:
        """Times since the last event, ever farther apart, between which a rule has to look for itself."""
        shortest, longest = self.extent()
        count = math.ceil(math.log1p(longest / shortest) / GRAIN)
        return shortest * torch.expm1(GRAIN * torch.arange(1, count + 1, dtype=torch.float64, device=device))

    def cuts(self, history: Any) -> Float[Tensor, "B E"] | None:
        """Where integrals are cut: after every position, ever farther apart, up to the next one."""
        steps = self.lags(history.times.device)
        position = torch.arange(history.times.shape[1], device=steps.device)
        following = torch.nn.functional.pad(history.times[:, 1:], (0, 1), value=math.inf)
        following = torch.where(position < history.lengths[:, None], following, math.inf)
        return torch.minimum(history.times[..., None] + steps, following[..., None]).flatten(1)
