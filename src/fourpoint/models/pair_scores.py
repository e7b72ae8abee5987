r"""The paper's two other scores, as parts of a model: a dot product of projected events, and a
network on them.

    dot      nu_k(x, x') = (W_u x)' (W_u x')              neural      nu_k(x, x') = net_k(W_u x, W_u x')

W_u x = w_t t + W_m m with t in windows, so that it stays of order 1; the network has the
generator's hidden layers and its activation. Both stand in for `models.modes` in DAPP: nothing is
drawn, so that there is nothing to redraw or to store.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fourpoint.ops.fourier import Generator
from fourpoint.ops.scores import Network, Projection


class PairScore(nn.Module):
    """K scores of one kind, "dot" or "neural"; other arguments are those of DAPP."""

    window: Tensor

    def __init__(
        self,
        kind: str,
        heads: int,
        marks: int,
        *,
        embedding: int,
        generator: Sequence[int],
        activation: str,
        seed: int,
    ) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.heads = heads
        self.time_key = nn.Parameter(
            torch.randn(heads, embedding, generator=random) / math.sqrt(embedding)
        )
        shifts = torch.randn(heads, embedding, marks, generator=random) / math.sqrt(embedding)
        self.mark_key = nn.Parameter(
            shifts if marks > 1 else torch.zeros_like(shifts), requires_grad=marks > 1
        )
        self.network = (
            Generator(heads, 2 * embedding, generator, 1, activation=activation, seed=seed)
            if kind == "neural"
            else None
        )
        self.register_buffer("window", torch.ones((), dtype=torch.float64))

    def forward(self, *, fixed: bool = False) -> Projection | Network:
        """The score in use; ``fixed`` changes nothing here."""
        plane = Projection(self.time_key / self.window.to(self.time_key), self.mark_key)
        if self.network is None:
            return plane
        return Network(
            plane, tuple(self.network.weights), tuple(self.network.biases), self.network.activation
        )

    def redraw(self, random: torch.Generator) -> None:
        """Nothing is drawn."""

    def store(self, features: int) -> None:
        """Nothing is stored."""

    @torch.no_grad()
    def spread(self, length: float) -> Float[Tensor, " K"]:
        """Take windows of ``length`` mean gaps as the unit of time. Returns one over it: every head
        looks at all of a window.
        """
        self.window.fill_(max(length, 1.0))
        return torch.full((self.heads,), 1 / max(length, 2.0)).to(self.time_key)
