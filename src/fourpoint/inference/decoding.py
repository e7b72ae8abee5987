r"""From sampled futures to the one prediction with the least expected loss.

With exact paths x_1, ..., x_P of the model, the expected loss of a prediction D is the mean of
loss(D, x_p), and each score has its own minimiser:

    |t - t'|                 the median of the next event's time     (`inference.predicting`)
    (t - t')^2               its mean                                (`inference.predicting`)
    |n - n'|                 the median of the count
    |n - n'| / (n + n')      the count with the least mean           (sMAPE)
    transport distance       greedy choice and exchange of (time, type) pairs
    T-mAP                    for each type, times by the probability of one more match

The last two are those of `kernels.numba_decoding`. AP ranks the predictions of a type over all
forecasts, and its expectation is largest if they are ranked by the probability to be a true
positive. A prediction is one if it can be matched besides those with higher scores, so that its
confidence is the increase of the expected number of matches when it is added to them: greedy choice
yields both the times and the confidences.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint import kernels
from fourpoint.inference.futures import Futures
from fourpoint.kernels import numba_decoding
from fourpoint.kernels.path_terms import every_row

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
CANDIDATES = 24  # times of a type that are tried for a prediction
SLOTS = 32  # times at which T-mAP predicts, as many as HoTPP allows


class Events(NamedTuple):
    """Predicted events in order of time, (R, S); NaN and -1 where there are fewer, and the expected
    transport distance of each forecast, (R,).
    """

    times: Floats
    marks: Integers
    distance: Floats


def least_transport(
    futures: Futures, types: int, steps: int, insert: float, delete: float, exact: bool = True
) -> Events:
    """The events with the least expected transport distance to a path, found by greedy choice and
    exchange: a local minimum.

    Args:
        futures: sampled paths; times of the result are counted as theirs are.
        steps: how many events to predict, ``exact`` or at the most. If not exact, an event is
            predicted only if it lowers the expected distance.
        insert, delete: costs of an event that was missed and of one that was predicted in vain.

    >>> path = np.array([1.0, 4.0])
    >>> futures = Futures(np.tile(path, 3), np.array([0, 1] * 3), np.arange(0, 7, 2), 3)
    >>> found = least_transport(futures, types=2, steps=2, insert=1.0, delete=1.0)
    >>> found.times.tolist(), found.marks.tolist(), found.distance.tolist()
    ([[1.0, 4.0]], [[0, 1]], [0.0])
    """
    rows = futures.forecasts
    times = np.full((rows, steps), np.nan)
    marks = np.full((rows, steps), -1, dtype=np.int64)
    counts = np.zeros(rows, dtype=np.int64)
    gains = np.zeros(rows)
    price = -1.0 if exact else delete
    loops = kernels.DECODING.choose()
    transport = numba_decoding.transport if loops is None else loops.transport
    arguments = (
        futures.times,
        futures.marks,
        futures.offsets,
        futures.paths,
        types,
        steps,
        insert + delete,
        price,
        CANDIDATES,
        times,
        marks,
        counts,
        gains,
    )
    every_row(rows, lambda first, step, fault: transport(first, step, *arguments))
    events = np.diff(futures.offsets).reshape(rows, -1)
    expected = events.mean(1)
    distance = insert * expected + delete * counts - gains
    return Events(times, marks, distance)


def match_confidence(
    futures: Futures, types: int, grid: Floats, delta: float, least: float = 0.0
) -> Floats:
    """The confidence of a prediction of each type at each time of ``grid``, (R, M, Q): the
    probability that it is a true positive of T-mAP.

    Args:
        grid: rising times, counted as those of the paths are.
        delta: the largest distance of a match.
        least: predictions with less confidence get 0.

    >>> futures = Futures(np.array([1.0, 4.0, 1.2]), np.zeros(3, dtype=int), np.array([0, 2, 3]), 2)
    >>> match_confidence(futures, 1, np.array([1.0, 4.0]), delta=0.5).tolist()
    [[[1.0, 0.5]]]
    """
    rows = futures.forecasts
    confidence = np.zeros((rows, types, len(grid)))
    loops = kernels.DECODING.choose()
    coverage = numba_decoding.coverage if loops is None else loops.coverage
    arguments = (
        futures.times,
        futures.marks,
        futures.offsets,
        futures.paths,
        types,
        np.ascontiguousarray(grid),
        delta,
        len(grid),
        least,
        confidence,
    )
    every_row(rows, lambda first, step, fault: coverage(first, step, *arguments))
    return confidence


def median_counts(counts: Integers) -> Integers:
    """The count with the least expected absolute error for each forecast and type, from (R, P, M)
    counts of paths: the lower median.

    >>> median_counts(np.array([[[0], [1], [5]]])).tolist()
    [[1]]
    """
    ordered = np.sort(counts, axis=1)
    lower_middle = (counts.shape[1] - 1) // 2
    return np.asarray(ordered[:, lower_middle])


def smape_counts(counts: Integers) -> Integers:
    """The count with the least expected |n - n'| / (n + n') for each forecast and type, from
    (R, P, M) counts of paths; the smallest of several.

    A path without an event contributes 0 to the prediction 0 and 1 to any other one.

    >>> smape_counts(np.array([[[0], [0], [3]], [[1], [2], [9]]])).tolist()
    [[0], [2]]
    """
    rows, _, types = counts.shape
    best = np.zeros((rows, types), dtype=np.int64)
    least = (counts > 0).mean(1)
    most = int(counts.max(initial=0))
    for candidate in range(1, most + 1):
        error = np.abs(counts - candidate) / (counts + candidate)
        loss = error.mean(1)
        better = loss < least - 1e-12
        best = np.where(better, candidate, best)
        least = np.where(better, loss, least)
    return best
