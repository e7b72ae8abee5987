"""Paired differences of two models on the same data, with a bootstrap interval over units.

A unit is what is taken to be independent of the others: a sequence, or a block of a long log. Where
a model was chosen among many by the same data, its gain is too high by the choice; the choice is
repeated on resampled units, and scored on those that were not drawn (Tsamardinos et al. 2018,
"Bootstrapping the out-of-sample predictions for efficient and accurate cross-validation").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 4000
LEVEL = 0.95
CHOICES = 1000  # resamples in which the best of several models is chosen again


@dataclass(frozen=True)
class Gain:
    """A difference per event, in nats or in the unit of a score, with its interval."""

    mean: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low > 0


def paired_gain(differences: Floats, events: Floats, seed: int) -> Gain:
    """The sum of ``differences`` over units per event, and a bootstrap interval over units at
    LEVEL.

    The interval of the percentiles is widened by the ratio of Student's quantile to the normal one
    and by sqrt(n / (n - 1)), since percentiles of few units are too close together.

    >>> found = paired_gain(np.array([1.0, 3.0, 2.0, 2.0]), np.full(4, 10.0), seed=0)
    >>> found.mean, found.clear
    (0.2, True)
    """
    from scipy.special import ndtri, stdtrit

    count = len(differences)
    total = max(float(events.sum()), 1.0)
    mean = float(differences.sum()) / total
    if count < 2:
        return Gain(mean, -np.inf, np.inf)
    drawn = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    sums = differences[drawn].sum(1)
    counts = np.maximum(events[drawn].sum(1), 1.0)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(sums / counts, [tail, 1 - tail])
    student = float(stdtrit(count - 1, 1 - tail) / ndtri(1 - tail))
    wider = student * np.sqrt(count / (count - 1))
    below = float(wider * (mean - low))
    above = float(wider * (high - mean))
    return Gain(mean, mean - below, mean + above)


def chosen_gain(scores: Floats, events: Floats, reference: int, seed: int) -> Gain:
    """The gain of the best of several models over the one at row ``reference``, corrected for the
    choice of the best by the same units.

    In each of CHOICES resamples of the units the model with the highest sum of ``scores`` (models,
    units) is chosen, and its difference from the reference is taken per event of the units that the
    resample left out. The gain is the mean over resamples, and the interval their percentiles at
    LEVEL.

    >>> scores = np.array([[0.0] * 10, [1.0] * 10, [0.5] * 10])
    >>> chosen_gain(scores, np.full(10, 4.0), 0, seed=0)
    Gain(mean=0.25, low=0.25, high=0.25)
    """
    count = len(events)
    if count < 2:
        return Gain(float("nan"), -np.inf, np.inf)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=CHOICES)
    best = (drawn @ scores.T).argmax(1)
    left_out = drawn == 0
    apart = ((scores - scores[reference])[best] * left_out).sum(1)
    counts = (left_out * events).sum(1)
    gains = apart[counts > 0] / counts[counts > 0]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(gains, [tail, 1 - tail])
    return Gain(float(gains.mean()), float(low), float(high))
