r"""Omori-Utsu decay, and its form as a mixture of exponentials.

    g(s) = (p - 1) c^(p-1) (s + c)^-p,        G(s) = int_0^s g = 1 - (1 + s / c)^(1-p)

A Lomax density is a gamma mixture of exponentials. With b = c beta,

    (1 + s / c)^-p = 1 / Gamma(p) int_0^inf b^(p-1) exp(-b) exp(-b s / c) db,

and the trapezoidal rule in log b, with steps of h, replaces the integral by a sum over J
exponentials. Its relative error is of the order exp(-pi^2 / h) for lags from 0 to the longest that
the smallest b covers, and is measured by :func:`mixture_error`. Sums over events then cost O(J) per
event. A taper exp(-s / tau) adds 1 / tau to every decay; the density is normalised by the sum.

Axes: J exponentials.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

STEP = 0.5  # of log b
EXPONENTIALS = 80
LARGEST = 40.0  # of b: exp(-40) is 4e-18


def mixture(
    p: Float[Tensor, ""], c: Float[Tensor, ""], taper: Float[Tensor, ""] | None = None
) -> tuple[Float[Tensor, " J"], Float[Tensor, " J"]]:
    """Weights and decays of exponentials with g(s) = sum_j weight_j exp(-decay_j s).

    Arguments
        p: the exponent, above 1 where there is no taper.
        c: in the unit of time.
        taper: tau in the unit of time; None for no taper.

    >>> p, c = torch.tensor(1.2).double(), torch.tensor(0.01).double()
    >>> weights, decays = mixture(p, c)
    >>> lag = torch.tensor([0.0, 1.0, 1000.0]).double()
    >>> by_sum = (weights * torch.exp(-decays * lag[:, None])).sum(1)
    >>> bool(torch.allclose(by_sum, density(lag, p, c), rtol=1e-7))
    True
    """
    index = torch.arange(EXPONENTIALS, dtype=torch.float64, device=c.device)
    b = LARGEST * torch.exp(-STEP * index)
    shape = torch.exp(p * b.log() - b - torch.lgamma(p)) * STEP
    if taper is None:
        return shape * (p - 1) / c, b / c
    decays = b / c + 1 / taper
    return shape / (shape / decays).sum(), decays


def log_normaliser(
    p: Float[Tensor, ""], c: Float[Tensor, ""], taper: Float[Tensor, ""] | None = None
) -> Float[Tensor, ""]:
    """log A of g(s) = A (s + c)^-p exp(-s / tau), a density on s > 0."""
    if taper is None:
        return (p - 1).log() + (p - 1) * c.log()
    weights, _ = mixture(p, c, taper)
    return weights.sum().log() + p * c.log()


def density(
    lag: Float[Tensor, "*S"],
    p: Float[Tensor, ""],
    c: Float[Tensor, ""],
    taper: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "*S"]:
    """g at ``lag`` >= 0, per unit of time."""
    logs = log_normaliser(p, c, taper) - p * (lag + c).log()
    if taper is not None:
        logs = logs - lag / taper
    return logs.exp()


def cumulative(
    lag: Float[Tensor, " S"],
    p: Float[Tensor, ""],
    c: Float[Tensor, ""],
    taper: Float[Tensor, ""] | None = None,
) -> Float[Tensor, " S"]:
    """G at ``lag`` >= 0: closed, or with a taper from the mixture.

    >>> one = torch.ones(1).double()
    >>> round(cumulative(one, torch.tensor(2.0).double(), torch.tensor(1.0).double()).item(), 6)
    0.5
    """
    if taper is None:
        return -torch.expm1((1 - p) * torch.log1p(lag / c))
    weights, decays = mixture(p, c, taper)
    return -torch.expm1(-decays * lag[:, None]) @ (weights / decays)


def inverse(
    share: Float[Tensor, " S"],
    p: Float[Tensor, ""],
    c: Float[Tensor, ""],
    taper: Float[Tensor, ""] | None = None,
) -> Float[Tensor, " S"]:
    """The lag at which G reaches ``share``, from 0 to below 1; with a taper by bisection."""
    if taper is None:
        return c * torch.expm1(-torch.log1p(-share) / (p - 1))
    low = torch.zeros_like(share)
    high = torch.full_like(share, 100.0 * float(taper))
    for _ in range(100):
        middle = (low + high) / 2
        below = cumulative(middle, p, c, taper) < share
        low = torch.where(below, middle, low)
        high = torch.where(below, high, middle)
    return (low + high) / 2


@torch.no_grad()
def mixture_error(p: Float[Tensor, ""], c: Float[Tensor, ""], longest: float) -> float:
    """The largest relative error of the mixture at lags from 0 to ``longest``, of 400 that are
    dense in the logarithm.

    >>> mixture_error(torch.tensor(1.1).double(), torch.tensor(0.01).double(), 1e4) < 1e-7
    True
    """
    high = math.log1p(longest / float(c))
    lag = c * torch.expm1(torch.linspace(0.0, high, 400, dtype=torch.float64))
    weights, decays = mixture(p, c)
    found = torch.exp(-decays * lag[:, None]) @ weights
    return float((found / density(lag, p, c) - 1).abs().max())
