"""One layer of Deep DAPP on a CUDA device, forwards and backwards: which kernels it calls, and what
it keeps in between.

    joined = [B u, gates, D u, G u],  u = norm(x)         `norm`
    states and paces from the first 4J columns of it      `scan`
    middle = x + d * O [gelu(C S + D u) * sigmoid(G u)]   `gate`
    out = middle + MLP(norm(middle))                      `mix`

`deep_layer` is the plain version.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fourpoint.kernels.triton_deep_dapp.gate import gated, gated_back
from fourpoint.kernels.triton_deep_dapp.given import Model
from fourpoint.kernels.triton_deep_dapp.mix import KeptActivations, Network, mix, mix_back
from fourpoint.kernels.triton_deep_dapp.norm import norm_linear, norm_linear_back
from fourpoint.kernels.triton_deep_dapp.rows import Rows, Sums
from fourpoint.kernels.triton_deep_dapp.scan import walk, walk_back

SIDE_BY_SIDE = ("drive", "gates", "skip")  # matrices that are one


class KeptParts(NamedTuple):
    """What dropout keeps in a layer; None where it keeps all."""

    events: Tensor | None  # (R,): events that leave a trace
    more: float  # by how much those count more
    gate: Tensor | None  # (R, H): activations at the gate, with the factor of those of the network
    network: KeptActivations


class Moments(NamedTuple):
    """States (R, 2J) and paces (R, J) of one layer, or their gradients: columns of tables that hold
    all layers'.
    """

    state: Tensor
    pace: Tensor


class Modes(NamedTuple):
    """Of one layer, (J) each, or each sequence's share of their gradients, (B, J)."""

    log_decay: Tensor
    turns: Tensor


class Pass:
    """Forward and backward pass of a layer of ``model``, whose parameters are called ``name`` and
    on.

    ``matrix`` (4J + 2H, H) and ``bias`` are the layer's drive, gates and skip one below the other;
    ``width`` (B, P) are the gaps after all positions, and ``moments`` is where states and paces are
    written.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        matrix: Tensor,
        bias: Tensor,
        modes: Modes,
        moments: Moments,
        kept: KeptParts,
        width: Tensor,
        rows: Rows,
    ) -> None:
        self.model, self.name = model, name
        self.matrix, self.bias = matrix, bias
        self.moments, self.kept, self.rows = moments, kept, rows
        recursion = (*modes, self._own("first_decay"), self._own("steady"))
        self.times = (width, kept.events, kept.more, rows.lengths, recursion)
        self.network = Network(
            *self._affine("inner_norm"), *self._affine("up"), *self._affine("down")
        )

    def _own(self, part: str) -> Tensor:
        """A parameter or buffer of the layer."""
        return self.model[self.name + part]

    def _affine(self, part: str) -> tuple[Tensor, Tensor]:
        """Weight and bias of a norm or a matrix of the layer."""
        return self._own(f"{part}.weight"), self._own(f"{part}.bias")

    def forward(self, x: Tensor) -> Tensor:
        """New tokens (R, H)."""
        kept = self.kept
        self.x = x
        self.joined = norm_linear(x, *self._affine("norm"), self.matrix, self.bias, self.rows)
        walk(self.joined, *self.times, *self.moments)
        self.middle = gated(
            x,
            self.joined,
            self.moments.state,
            *self._affine("read"),
            *self._affine("out"),
            kept.gate,
            kept.network.rescale,
            self.rows,
        )
        return mix(self.middle, self.rows, kept.network, self.network)

    def backward(self, of_out: Tensor, of_moments: Moments, of_modes: Modes, sums: Sums) -> Tensor:
        """The gradient of x; ``of_moments`` is added to, and the parameters' go into their columns
        of ``sums``.
        """
        kept = self.kept
        of_joined = torch.empty_like(self.joined)
        read, before = (
            [sums[self.name + part] for part in parts]
            for parts in (
                ("read.weight", "read.bias", "out.weight", "out.bias"),
                (
                    "norm.weight",
                    "norm.bias",
                    f"{SIDE_BY_SIDE[0]}.weight",
                    f"{SIDE_BY_SIDE[0]}.bias",
                ),  # the others' columns follow
            )
        )
        of_middle = mix_back(
            self.middle,
            self.rows,
            kept.network,
            self.network,
            of_out,
            network_of(sums, f"{self.name}inner_norm", self.name),
        )
        gated_back(
            self.joined,
            self.moments.state,
            *self._affine("read"),
            self._own("out.weight"),
            kept.gate,
            kept.network.rescale,
            self.rows,
            of_middle,
            of_moments.state,
            of_joined,
            *read,
        )
        walk_back(self.joined, *self.times, self.moments.state, *of_moments, of_joined, *of_modes)
        return norm_linear_back(
            self.x,
            *self._affine("norm"),
            self.matrix,
            of_joined,
            of_middle,
            self.rows,
            *before,
        )


def network_of(sums: Sums, norm: str, name: str) -> Network:
    """Where the gradients of a network go whose norm and matrices have these names."""
    return Network(
        *(
            sums[part]
            for part in (
                f"{norm}.weight",
                f"{norm}.bias",
                *(f"{name}{x}.{y}" for x in ("up", "down") for y in ("weight", "bias")),
            )
        )
    )
