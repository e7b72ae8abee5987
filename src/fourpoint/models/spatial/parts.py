"""What a DAPP with places remembers and shares between sequences, and which choices it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fourpoint.events import UserError
from fourpoint.models.base import History
from fourpoint.models.baseline import Curves
from fourpoint.ops import sinusoids as waves

ENVELOPE = {1: 64, 2: 32, 3: 10}  # cells per axis with bounds of their own, by dimension
# times as many nodes per axis for the background as for attention: it costs once, not at every time
FINER = 4


class Fields(NamedTuple):
    """What all sequences of a history share: spectrum, splines in time, background in space."""

    weight: Float[Tensor, "K F"]
    curves: Curves | None
    background: Float[Tensor, "M F"] | None
    numbers: Float[Tensor, "D k"]


class Shared(Fields):
    """The same, with what is found once: the background's largest values and its integrals."""

    @cached_property
    def tops(self) -> Float[Tensor, "M C"]:
        """Upper bounds of the background in every cell of the box, with an allowance for rounding;
        0 where there is none.
        """
        field = self.background
        if field is None:
            return torch.zeros(1, 1, dtype=torch.float64)
        room = (
            64
            * torch.finfo(field.dtype).eps
            * waves.amplitudes(field.double()).sum(1, keepdim=True)
        )
        return waves.largest(self.numbers, field, ENVELOPE[self.numbers.shape[1]]) + room.detach()

    @cached_property
    def top_rates(self) -> Float[Tensor, "M C"]:
        """The exponentials of ``tops``."""
        return self.tops.exp()

    @cached_property
    def _tilts(self) -> dict[int, Tensor]:
        return {}

    def tilt(self, order: int) -> Float[Tensor, " M"]:
        """The mean of exp(f_m) over the box, by a rule of FINER times ``order`` nodes per axis."""
        if self.background is None:
            return self.weight.new_ones(1)
        if order not in self._tilts:
            places, weights = waves.box_rule(self.numbers.shape[1], FINER * order)
            phi = waves.features(self.numbers.double(), places).to(self.weight)
            self._tilts[order] = torch.exp(phi @ self.background.T).T @ weights.to(self.weight)
        return self._tilts[order]


@dataclass(frozen=True)
class PlacedDAPPHistory(History):
    """States of all waves at each position, real: cosines and sines."""

    shared: Shared
    state: Float[Tensor, "B K P F"]

    def latest(self) -> PlacedDAPPHistory:
        """The last position alone: all that is needed to go on."""
        return replace(
            self,
            times=self.times[:, -1:],
            lengths=torch.zeros_like(self.lengths),
            state=self.state[:, :, -1:],
        )


def last_time(history: PlacedDAPPHistory) -> Float[Tensor, " B"]:
    """When the last real position begins."""
    return history.times.gather(1, history.lengths[:, None])[:, 0]


def check_choices(s: dict[str, Any]) -> None:
    """Raise :class:`UserError` for an unknown choice or a number that is too small."""
    allowed = {
        "link": ("softplus", "exp"),
        "base": ("auto", "constant", "spline"),
        "drift": ("auto", "none", "spline"),
        "background": ("waves", "constant"),
    }
    for name, choices in allowed.items():
        if s[name] not in choices:
            raise UserError(
                f"{name} to be one of {', '.join(choices)}", f"{s[name]!r}", "Choose one of them."
            )
    for name, least in (("heads", 1), ("frequencies", 1), ("knots", 1), ("order", 2), ("cells", 1)):
        if s[name] < least:
            raise UserError(f"{name} of at least {least}", f"{s[name]}", "Raise it.")
