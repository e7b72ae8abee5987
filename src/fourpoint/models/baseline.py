r"""The part of a rate that depends on time alone: base rate and drift, as constants or splines.

    log mu_m(t)                 outside the link
    b_m + drift_m(t)            inside the link, where it is added to what the past contributes

Times count from the window's start. A curve is a constant per mark or a cubic spline, constant
beyond the end of its length. The drift is one curve for all marks plus one for each. Models combine
these values with their history part; kernels receive them as arrays (values at the requested times,
or the cubics of a spline), so that a new term of the baseline changes this module only.

Axes: T any shape of times, M marks, R curves, J intervals of a spline, C = J + 3 coefficients.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fourpoint.ops.spline import cubics, evaluate, largest, peaks, spline_knots


class Splines(NamedTuple):
    """R curves of time: log mu of each mark if it is a spline, then the drift of each mark if there
    is one.
    """

    coefficients: Float[Tensor, "R C"]


class Curves(Splines):
    """Splines, and what every query needs of them, computed once."""

    @cached_property
    def cubics(self) -> Float[Tensor, "J R 4"]:
        """The cubic of every interval."""
        return cubics(self.coefficients)

    @cached_property
    def peaks(self) -> Float[Tensor, "J R"]:
        """An upper bound of each, with an allowance for rounding."""
        eps = torch.finfo(self.coefficients.dtype).eps
        return peaks(self.coefficients) + 16 * eps * self.coefficients.abs().amax()


class BaselineValues(NamedTuple):
    """The baseline at some times, or upper bounds of it: log mu, and what is added inside the link
    (None if the model has no link).
    """

    log_base: Float[Tensor, "*T M"]
    inside: Float[Tensor, "*T M"] | None


def added(values: BaselineValues, effects: BaselineValues | None) -> BaselineValues:
    """The baseline with effects of calendar and covariates added to its parts."""
    if effects is None:
        return values
    inside = values.inside
    if inside is not None and effects.inside is not None:
        inside = inside + effects.inside
    return BaselineValues(values.log_base + effects.log_base, inside)


def parted(values: Float[Tensor, "... R"], marks: int) -> BaselineValues:
    """Curves of effects as the parts of a baseline: those of log mu, then those inside the link if
    there are as many more.
    """
    if values.shape[-1] == marks:
        return BaselineValues(values, None)
    outside, inside = values.split(marks, -1)
    return BaselineValues(outside, inside)


class Baseline(nn.Module):
    """Base rate and drift of ``marks`` marks.

    Args:
        base: "constant" or "spline", or "auto" until :meth:`build` is called.
        drift: "none" or "spline", or "auto" until then.
        inside: whether there is a part inside the link.
        knots: intervals of the splines.
        trained: whether the bias inside the link is learned.
        dtype: of the parameters; that of torch by default.

    >>> baseline = Baseline(2, base="constant")
    >>> baseline.values(torch.zeros(3, dtype=torch.float64), baseline.curves()).log_base.shape
    torch.Size([3, 2])
    """

    length: Tensor  # of the splines, in the user's unit

    def __init__(
        self,
        marks: int,
        *,
        base: str,
        drift: str = "none",
        inside: bool = True,
        knots: int = 12,
        trained: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.marks = marks
        self.intervals = knots
        self.dtype = dtype or torch.get_default_dtype()
        self.bias: nn.Parameter | None = None
        if inside:
            self.bias = nn.Parameter(torch.zeros(marks, dtype=dtype), requires_grad=trained)
        self.register_buffer("length", torch.ones((), dtype=torch.float64))
        self.build(base, drift)

    def build(self, base: str, drift: str) -> None:
        """Create the parameters that these kinds of base and drift need."""
        self.splined_base = base == "spline"
        self.splined_drift = drift == "spline"
        like = torch.zeros((), dtype=self.dtype) if self.bias is None else self.bias
        wide = self.intervals + 3
        columns = wide if self.splined_base else 1
        self.log_base = nn.Parameter(like.new_zeros(self.marks, columns))
        if self.splined_drift:
            self.drift = nn.Parameter(like.new_zeros(1, wide))
            own = like.new_zeros(self.marks, wide)
            self.mark_drift = nn.Parameter(own, requires_grad=self.marks > 1)

    def curves(self) -> Curves | None:
        """The splines as they are now; None if there are none."""
        rows: list[Tensor] = []
        if self.splined_base:
            rows.append(self.log_base)
        if self.splined_drift:
            rows.append(self.drift + self.mark_drift)
        return Curves(torch.cat(rows)) if rows else None

    def values(
        self,
        since: Float[Tensor, "*T"],
        curves: Curves | None,
        dtype: torch.dtype | None = None,
    ) -> BaselineValues:
        """The baseline at times ``since`` the window's start, in the precision of the parameters or
        in ``dtype``.
        """
        if curves is None:
            return self._joined((), since)
        kind = self.log_base.dtype if dtype is None else dtype
        found = evaluate(curves.cubics, since.to(kind), self.length.to(kind))
        return self._joined(found.split(self.marks, -1), since)

    @torch.no_grad()
    def upper_bound(
        self,
        low: Float[Tensor, " B"],
        high: Float[Tensor, " B"],
        curves: Curves | None,
        dtype: torch.dtype,
    ) -> BaselineValues:
        """Upper bounds of both parts on [low, high] since the window's start: splines lie below
        their control points, and rounding has an allowance.
        """
        parts: tuple[Tensor, ...] = ()
        if curves is not None:
            parts = largest(curves.peaks, low, high, self.length.to(dtype)).split(self.marks, -1)
        found = self._joined(parts, low)
        if self.bias is None or found.inside is None:
            return found
        allowance = 16 * torch.finfo(dtype).eps * self.bias.abs()
        return BaselineValues(found.log_base, found.inside + allowance)

    def knots(self, start: Float[Tensor, " B"]) -> Float[Tensor, "B J"] | None:
        """Times at which the third derivative of a spline jumps; None for constants."""
        if not (self.splined_base or self.splined_drift):
            return None
        return start[:, None] + spline_knots(self.length, self.intervals).to(start)

    def _joined(self, parts: tuple[Tensor, ...], since: Float[Tensor, "*T"]) -> BaselineValues:
        """Both parts; ``parts`` are the curves' values in the order of :class:`Splines`."""
        log_base = parts[0] if self.splined_base else self.log_base[:, 0].expand(*since.shape, -1)
        if self.bias is None:
            return BaselineValues(log_base, None)
        if self.splined_drift:
            return BaselineValues(log_base, self.bias + parts[-1])
        return BaselineValues(log_base, self.bias.expand(*since.shape, -1))
