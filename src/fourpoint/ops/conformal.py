r"""Conformal calibration: levels at which prediction regions have to be taken to cover as promised.

A score s says how far out in the model's own predictive distribution an observation was: 0 in the
middle of it and 1 at its edge, or the probability of anything smaller. The region {y: s(y) <= q}
covers with the probability that the scores of new observations are at most q. Two ways to find q:

**Split conformal** (:class:`SplitLevels`), for exchangeable sequences. With K sequences of N_k
scores, each has the weight 1 / ((K + 1) N_k), and the new sequence has 1 / (K + 1) at infinity:

    q(p) = the smallest q with  sum_k (1 / N_k) sum_i 1{s_ki <= q} >= p (K + 1).

Then a random observation of a new sequence has s <= q(p) with a probability of at least p, for any
model and any distribution, however few the sequences are (q is infinite where they are too few).
Lower quantiles have the weight of the new sequence at minus infinity.

**Adaptive** (:class:`AdaptiveLevels`), for one long log whose past and future may differ. The level
follows the scores, q <- q + g_t (p - 1{s_t <= q}), and whatever the log is,

    | (share of s_t <= q_t) - p |  <=  (1 + g_1) / (T g_T)    after T scores between 0 and 1.

Steps are g_t = max(t^-3/5 / 2, 1/200).

Sources: Vovk, Gammerman and Shafer (2005); Lee, Barber and Willett, "Distribution-free inference
with hierarchical data" (2023); Gibbs and Candes (2021); Angelopoulos, Candes and Tibshirani (2023);
Angelopoulos, Barber and Bates, "Online conformal prediction with decaying step sizes" (2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
TRACKED = (0.005, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.995)
LEAST_STEP = 0.005
ROUNDING = 1e-9  # of sums of weights


@dataclass(frozen=True)
class SplitLevels:
    """Scores in ascending order and the share of their sequence that each is; K sequences."""

    scores: Floats
    shares: Floats
    sequences: int

    @classmethod
    def of(cls, scores: ArrayLike, sequence: ArrayLike) -> SplitLevels:
        """From scores and the number of the sequence that each belongs to.

        >>> levels = SplitLevels.of([0.1, 0.2, 0.3, 0.4], [0, 1, 2, 3])
        >>> levels.upper(0.8), levels.upper(0.9), levels.lower(0.2)
        (0.4, inf, 0.1)
        """
        values = np.asarray(scores, dtype=np.float64)
        _, which, counts = np.unique(np.asarray(sequence), return_inverse=True, return_counts=True)
        order = np.argsort(values, kind="stable")
        shares = (1 / counts)[which]
        return cls(values[order], shares[order], len(counts))

    def upper(self, level: float) -> float:
        """The smallest q that new scores do not exceed with a probability of at least ``level``."""
        wanted = level * (self.sequences + 1) - ROUNDING
        reached = np.cumsum(self.shares) >= wanted
        if not reached.any():
            return math.inf
        return float(self.scores[int(reached.argmax())])

    def lower(self, level: float) -> float:
        """The largest q below which new scores are with a probability of at most ``level``."""
        from_above = np.cumsum(self.shares[::-1])
        wanted = (1 - level) * (self.sequences + 1) - ROUNDING
        reached = from_above >= wanted
        if not reached.any():
            return -math.inf
        descending = self.scores[::-1]
        return float(descending[int(reached.argmax())])

    def smallest_sample(self, level: float) -> int:
        """The number of sequences from which on :meth:`upper` is finite.

        >>> SplitLevels.of([0.5], [0]).smallest_sample(0.9)
        9
        """
        return max(1, math.ceil(level / (1 - level) - ROUNDING))


@dataclass(frozen=True)
class AdaptiveLevels:
    """Levels that follow the scores of one log: ``at`` those of ``levels`` after ``count``."""

    levels: tuple[float, ...]
    at: tuple[float, ...]
    count: int

    @classmethod
    def new(cls, levels: tuple[float, ...] = TRACKED) -> AdaptiveLevels:
        """Before any score: each level as the model states it."""
        return cls(levels, levels, 0)

    @staticmethod
    def step(count: int) -> float:
        """g_t of the score number ``count``, which begins at 1."""
        return max(0.5 * count**-0.6, LEAST_STEP)

    def bound(self) -> float:
        """The most by which the share of covered scores differs from its level so far.

        >>> followed = AdaptiveLevels.new().after([0.3] * 4000)
        >>> round(followed.bound(), 4)
        0.075
        """
        if self.count == 0:
            return 1.0
        last_step = self.step(self.count)
        bound = (1 + self.step(1)) / (self.count * last_step)
        return min(1.0, bound)

    def after(self, scores: ArrayLike) -> AdaptiveLevels:
        """The levels after further scores, in their order.

        >>> round(AdaptiveLevels((0.5,), (0.5,), 0).after([0.2, 0.9]).at[0], 4)
        0.4149
        """
        levels = np.array(self.levels)
        at = np.array(self.at)
        count = self.count
        for score in np.asarray(scores, dtype=np.float64).tolist():
            count += 1
            covered = score <= at
            at += self.step(count) * (levels - covered)
        return replace(self, at=tuple(at.tolist()), count=count)

    def upper(self, level: float) -> float:
        """The level to use instead of ``level``, interpolated between those that are followed."""
        known = np.array([0.0, *self.levels, 1.0])
        found = np.maximum.accumulate(np.array([0.0, *self.at, 1.0]))
        return float(np.interp(level, known, found))

    lower = upper


Levels = SplitLevels | AdaptiveLevels


def count_score(ordered: Floats, count: int | float) -> float:
    """The mid-distribution function of draws in ascending order at ``count``, interpolated between
    their values, and beyond them 1 more, or less, for each standard deviation.

    >>> draws = np.array([0.0, 0.0, 1.0, 2.0])
    >>> [count_score(draws, n) for n in (0, 1, 2, 3)]
    [0.25, 0.625, 0.875, 2.0]
    """
    scale = max(1.0, float(ordered.std()))
    if count > ordered[-1]:
        return 1.0 + float(count - ordered[-1]) / scale
    if count < ordered[0]:
        return -float(ordered[0] - count) / scale
    values, middle = _mid_distribution(ordered)
    return float(np.interp(count, values, middle))


def _mid_distribution(ordered: Floats) -> tuple[Floats, Floats]:
    """The values of draws in ascending order and the mid-distribution function at each."""
    values, first, number = np.unique(ordered, return_index=True, return_counts=True)
    middle = (first + number / 2) / len(ordered)
    return values, middle


def count_quantile(ordered: Floats, score: float) -> float:
    """The count whose :func:`count_score` is ``score``; the smallest, or the largest, of the draws
    for scores between theirs and 0, or 1.

    >>> draws = np.array([0.0, 0.0, 1.0, 2.0])
    >>> [count_quantile(draws, s) for s in (0.1, 0.625, 0.9, 2.0)]
    [0.0, 1.0, 2.0, 3.0]
    """
    scale = max(1.0, float(ordered.std()))
    if score > 1:
        return float(ordered[-1]) + (score - 1) * scale
    if score < 0:
        return max(0.0, float(ordered[0]) + score * scale)
    values, middle = _mid_distribution(ordered)
    return float(np.interp(score, middle, values))
