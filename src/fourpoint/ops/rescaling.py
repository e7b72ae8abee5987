r"""Time rescaling: does the model's clock make the events look like a Poisson process of rate 1?

If lambda is the true rate, the compensators Lambda(t_i) = int_start^{t_i} lambda are a Poisson
process of rate 1, so that their gaps are independent unit exponentials (Meyer's theorem). Pooling
the gaps of many short windows is biased, since the last one of every window is cut off. Hence all
windows are laid end to end on one axis: event i of sequence s stands at Lambda_s(t_i) + sum_{r < s}
Lambda_r(stop), and the gaps between neighbours there are unit exponentials again, but for the last.
Three questions are asked of them:

    exponential    Kolmogorov and Smirnov's distance of the gaps from 1 - exp(-x)
    uniform      the same distance of the places on the whole axis from a uniform law: a drift in
                 the residual rate
    independent  Ljung and Box's statistic of the gaps' normal scores:
                 Q = n (n + 2) sum_l r_l^2 / (n - l)

and a QQ plot shows where they differ, inside an envelope that each point leaves with probability 5%
under the model. Plain numpy; scipy is imported where it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LAGS = 10
POINTS = 200  # of a QQ plot


@dataclass(frozen=True)
class QQ:
    """Quantiles of the unit exponential, those of the residuals, and the 95% envelope of each
    point.
    """

    theory: Floats
    observed: Floats
    low: Floats
    high: Floats

    @property
    def outside(self) -> float:
        """The share of points outside the envelope; near 5% for a true model."""
        out = (self.observed < self.low) | (self.observed > self.high)
        if not len(out):
            return math.nan
        return float(out.mean())


@dataclass(frozen=True)
class Verdict:
    """Statistics and p-values of one set of residuals; NaN where there are too few."""

    count: int
    expected: float  # the compensator of all windows: the events that the model expected
    ks: float
    ks_p: float
    uniform: float
    uniform_p: float
    ljung_box: float
    ljung_box_p: float
    qq: QQ

    def to_dict(self) -> dict[str, Any]:
        """The numbers, without the QQ plot's points."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "qq"}
        return out | {"qq_outside": self.qq.outside}


def judge(places: Floats, rows: NDArray[np.int64], totals: Floats) -> Verdict:
    """The verdict on events at compensators ``places`` of windows ``rows`` whose whole compensators
    are ``totals``.

    ``places`` (E,) count from their own window's start and are sorted inside each window; ``rows``
    (E,) do not decrease.

    >>> rng = np.random.default_rng(0)
    >>> totals = np.full(300, 10.0)
    >>> events = [np.sort(rng.uniform(0, 10, rng.poisson(10))) for _ in totals]
    >>> v = judge(
    ...     np.concatenate(events), np.repeat(np.arange(300), [len(e) for e in events]), totals
    ... )
    >>> v.ks_p > 0.01, v.uniform_p > 0.01, v.ljung_box_p > 0.01
    (True, True, True)
    """
    residuals = end_to_end(places, rows, totals)
    whole = float(totals.sum())
    ks, ks_p = ks_test(-np.expm1(-residuals))
    places_on_axis = np.cumsum(residuals) / whole if whole > 0 else residuals
    uniform, uniform_p = ks_test(places_on_axis)
    ljung_box, ljung_box_p = ljung_box_test(residuals)
    return Verdict(
        count=len(residuals),
        expected=whole,
        ks=ks,
        ks_p=ks_p,
        uniform=uniform,
        uniform_p=uniform_p,
        ljung_box=ljung_box,
        ljung_box_p=ljung_box_p,
        qq=qq_points(residuals),
    )


def without_p_values(verdict: Verdict) -> Verdict:
    """The same statistics where their laws are not known."""
    return replace(verdict, ks_p=math.nan, uniform_p=math.nan, ljung_box_p=math.nan)


def end_to_end(places: Floats, rows: NDArray[np.int64], totals: Floats) -> Floats:
    """Gaps between the events of all windows laid end to end, the first counted from 0.

    >>> end_to_end(
    ...     np.array([1.0, 2.5, 0.5]), np.array([0, 0, 2]), np.array([3.0, 1.0, 2.0])
    ... ).tolist()
    [1.0, 1.5, 2.0]
    """
    before = np.cumsum(totals) - totals
    return np.diff(before[rows] + places, prepend=0.0)


def per_sequence(places: Floats, rows: NDArray[np.int64]) -> Floats:
    """Gaps between the events of each window alone, the first counted from its start."""
    first = np.ones(len(rows), dtype=bool)
    first[1:] = rows[1:] != rows[:-1]
    gaps = np.diff(places, prepend=0.0)
    return np.where(first, places, gaps)


def ks_test(uniforms: Floats) -> tuple[float, float]:
    """Kolmogorov and Smirnov's distance of ``uniforms`` from the uniform law on [0, 1], and its
    p-value.

    The p-value is the limit law's at D (sqrt(n) + .12 + .11 / sqrt(n)), Stephens' form, within .01
    for n > 10.

    >>> ks_test((np.arange(100) + 0.5) / 100)
    (0.005..., 1.0)
    """
    n = len(uniforms)
    if n < 2:
        return math.nan, math.nan
    from scipy.special import kolmogorov

    u = np.sort(uniforms)
    steps = np.arange(n + 1) / n
    above = (steps[1:] - u).max()
    below = (u - steps[:-1]).max()
    distance = float(max(above, below))
    root = np.sqrt(n)
    scaled = distance * (root + 0.12 + 0.11 / root)
    return distance, float(kolmogorov(scaled))


def ljung_box_test(residuals: Floats, lags: int = LAGS) -> tuple[float, float]:
    """Ljung and Box's statistic over ``lags`` of the normal scores of unit exponentials, and its
    p-value.
    """
    n = len(residuals)
    if n < 5 * lags:
        return math.nan, math.nan
    from scipy.special import gammaincc, ndtri

    uniforms = -np.expm1(-residuals)
    score = ndtri(np.clip(uniforms, 1e-12, 1 - 1e-12))
    score = score - score.mean()
    each = np.arange(1, lags + 1)
    products = np.array([(score[k:] * score[:-k]).sum() for k in each])
    r = products / np.square(score).sum()
    weighted = r**2 / (n - each)
    statistic = n * (n + 2) * float(weighted.sum())
    return statistic, float(gammaincc(lags / 2, statistic / 2))


def qq_points(residuals: Floats, points: int = POINTS) -> QQ:
    """Sorted residuals against unit exponential quantiles; the i-th of n lies in a Beta(i, n + 1 -
    i) envelope.

    Half of the ``points`` are even in rank and half even in value, so that both the bulk and the
    tail are seen.
    """
    n = len(residuals)
    if not n:
        none = np.zeros(0)
        return QQ(none, none, none, none)
    from scipy.special import betaincinv

    bulk = np.linspace(1, n, points // 2)
    tail = n + 1 - np.exp(np.linspace(np.log(n), 0, points // 2))
    ranks = np.round(np.concatenate([bulk, tail])).clip(1, n)
    i = np.unique(ranks.astype(np.int64))
    low = -np.log1p(-betaincinv(i, n + 1 - i, 0.025))
    high = -np.log1p(-betaincinv(i, n + 1 - i, 0.975))
    expected = -np.log1p(-i / (n + 1))
    observed = np.sort(residuals)[i - 1]
    return QQ(expected, observed, low, high)
