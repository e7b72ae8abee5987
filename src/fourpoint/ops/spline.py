"""Uniform cubic B-splines: smooth curves of time for base rates and drifts.

On [0, length], cut into J equal intervals, a curve is a sum of J + 3 bumps, each four intervals
wide and together 1 everywhere,

    s(x) = sum_c coefficient_c B_c(x),        B_c >= 0,   sum_c B_c = 1,

so that on interval j it is a cubic of the coefficients j..j+3 alone. Arguments outside [0, length]
are moved to the
nearer end: there the curve is constant. Equal coefficients give exactly their common value.

Axes: S any shape of arguments, M curves, C = J + 3 coefficients.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fourpoint.ops.lookup import looked_up


def spline(
    coefficients: Float[Tensor, "M C"], x: Float[Tensor, "*S"], length: Tensor | float
) -> Float[Tensor, "*S M"]:
    """The curves at ``x``: the cubic of one interval, by Horner's rule.

    ``x`` and ``length`` (positive) share a unit. The answer has the coefficients' dtype and is
    differentiable in them; the place inside an interval is found in the dtype of ``x``.

    >>> spline(torch.full((1, 7), 2.5), torch.tensor([-1.0, 0.3, 9.0]), 4.0).flatten().tolist()
    [2.5, 2.5, 2.5]
    >>> line = torch.arange(7.0)[None] - 1.0  # coefficients on a line give that line
    >>> spline(line, torch.tensor([0.0, 1.5, 4.0]), 4.0).flatten().tolist()
    [0.0, 1.5, 4.0]
    """
    return evaluate(cubics(coefficients), x, length)


def evaluate(
    table: Float[Tensor, "J M 4"], x: Float[Tensor, "*S"], length: Tensor | float
) -> Float[Tensor, "*S M"]:
    """The same from :func:`cubics`, for curves that are asked many times."""
    cell, place = _locate(x, length, len(table))
    f = place.to(table.dtype)[..., None]
    a0, a1, a2, a3 = looked_up(table, cell).unbind(-1)
    value = torch.addcmul(a2, f, a3)
    value = torch.addcmul(a1, f, value)
    return torch.addcmul(a0, f, value)


def spline_knots(length: Tensor | float, intervals: int) -> Float[Tensor, " knots"]:
    """The J + 1 ends of the intervals, where a third derivative jumps: cut integrals there.

    >>> spline_knots(2.0, 4).tolist()
    [0.0, 0.5, 1.0, 1.5, 2.0]
    """
    end = torch.as_tensor(length, dtype=torch.float64)
    shares = torch.linspace(0, 1, intervals + 1, dtype=torch.float64, device=end.device)
    return shares * end


def spline_max(
    coefficients: Float[Tensor, "M C"],
    a: Float[Tensor, "*S"],
    b: Float[Tensor, "*S"],
    length: Tensor | float,
) -> Float[Tensor, "*S M"]:
    """An upper bound of the curves on every [a, b] with a <= b.

    On an interval a cubic lies below the largest of its four Bezier points, each a mean of the
    coefficients; the bound is the largest over the intervals that [a, b] touches. It is never below
    the curve but for rounding.

    >>> c = torch.tensor([[0.0, 1.0, 5.0, 1.0, 0.0]])
    >>> bound = spline_max(c, torch.tensor([0.0]), torch.tensor([2.0]), 2.0)
    >>> bool(bound >= spline(c, torch.linspace(0, 2, 99), 2.0).max())
    True
    """
    return largest(peaks(coefficients), a, b, length)


def largest(
    peaks: Float[Tensor, "J M"],
    a: Float[Tensor, "*S"],
    b: Float[Tensor, "*S"],
    length: Tensor | float,
) -> Float[Tensor, "*S M"]:
    """The same from :func:`peaks`, for curves that are asked many times."""
    intervals = len(peaks)
    first, _ = _locate(a, length, intervals)
    last, _ = _locate(b, length, intervals)
    j = torch.arange(intervals, device=first.device)
    touched = (first[..., None] <= j) & (j <= last[..., None])
    return torch.where(touched[..., None], peaks, -torch.inf).amax(-2)


def cubics(coefficients: Float[Tensor, "M C"]) -> Float[Tensor, "J M 4"]:
    """Powers 0..3 of every interval's cubic, as differences of coefficients, which vanish where all
    are equal.
    """
    c0, c1, c2, c3 = coefficients.unfold(-1, 4, 1).unbind(-1)
    rise = c2 - c1
    bend = rise - (c1 - c0)
    constant = c1 + bend / 6
    linear = (c2 - c0) / 2
    cubic = (c3 - c0) / 6 - rise / 2
    powers = [constant, linear, bend / 2, cubic]
    return torch.stack(powers, -1).transpose(0, 1)


def peaks(coefficients: Float[Tensor, "M C"]) -> Float[Tensor, "J M"]:
    """The largest of the four Bezier points of every interval's cubic."""
    c0, c1, c2, c3 = coefficients.unfold(-1, 4, 1).unbind(-1)
    before = c1 - c0
    rise = c2 - c1
    after = c3 - c2
    left = c1 + (rise - before) / 6
    right = c2 + (after - rise) / 6
    third = rise / 3
    points = [left, c1 + third, c2 - third, right]
    return torch.stack(points, -1).amax(-1).T


def _locate(
    x: Float[Tensor, "*S"], length: Tensor | float, intervals: int
) -> tuple[Int[Tensor, "*S"], Float[Tensor, "*S"]]:
    """The interval of each argument and the place inside it, from 0 to 1."""
    u = (x / length).clamp(0, 1) * intervals
    cell = u.detach().floor().long().clamp(0, intervals - 1)
    return cell, u - cell
