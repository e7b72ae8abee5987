r"""Scores of predictions up to a horizon, as the benchmark HoTPP 0.7 defines them.

**Transport distance (OTD).** n predicted and n true events are paired at the least total cost: a
pair of the same type costs min(|t - t'|, C) and any other one C, with C the cost of an insertion
plus that of a deletion. With unequal numbers the rest is inserted or deleted.

**T-mAP.** For each type m every prediction has a time and a score. Predictions and true events up
to the horizon are matched if |t - t'| <= delta, each at most once, such that the total score of the
matched ones is largest; those are true positives and the others are false ones. With all
predictions of a data set in order of their scores,

    AP_m = sum over true positives of precision(rank) / number of true events of type m,

and T-mAP is the mean of AP_m over types and over the given delta; types without a true positive, or
with nothing but true positives, count 0, as in HoTPP. The weighted form has weights in proportion
to the true events.

**Next event.** Mean absolute error and root mean squared error of its time, with errors cut at a
maximum, and the share of correct types.

**sMAPE** of counts per type, which HoTPP does not have, is that of HYPRO: the mean over forecasts
and types of 200 |n - n'| / (n + n'), 0 where both are 0.

Sources: Mei, Qin and Eisner, "Imputing missing events in continuous-time event streams" (2019);
Karpukhin, Shipilov and Savchenko, "HoTPP benchmark" (2024); Xue et al., "HYPRO" (2022).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint import kernels
from fourpoint.events import UserError
from fourpoint.kernels import numba_decoding
from fourpoint.kernels.numba_decoding import TRANSPORT

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class MeanPrecision(NamedTuple):
    """T-mAP, its form weighted by the frequency of types, and AP per delta and type, (D, M)."""

    mean: float
    weighted: float
    by_type: Floats


class NextErrors(NamedTuple):
    """Errors of the next event's time in the user's unit, and the share of correct types."""

    mae: float
    rmse: float
    accuracy: float


def transport_distances(
    times: Floats,
    marks: Integers,
    true_times: Floats,
    true_marks: Integers,
    insert: float = 1.0,
    delete: float = 1.0,
) -> Floats:
    """The transport distance of each of V forecasts.

    Args:
        times, marks: (V, S) predicted events; a NaN among the times is no event.
        true_times, true_marks: (V, K), what happened.
        insert, delete: what an event that was missed and one that was predicted in vain cost, in
            the unit of time.

    Raises :class:`UserError` where a cost is not positive or shapes differ.

    >>> times, marks = np.array([[1.0, 5.0]]), np.array([[0, 1]])
    >>> transport_distances(times, marks, np.array([[1.5, 2.0]]), np.array([[0, 0]])).tolist()
    [2.5]
    """
    if not (insert > 0 and delete > 0):
        raise UserError(
            "positive costs", f"insert={insert}, delete={delete}", "Pass insert=1.0, delete=1.0."
        )
    if times.shape != marks.shape or true_times.shape != true_marks.shape:
        raise UserError(
            "as many marks as times",
            f"{times.shape}, {marks.shape}, {true_times.shape}, {true_marks.shape}",
            "Pass arrays of (forecasts, events).",
        )
    types = 1 + int(max(marks.max(initial=0), true_marks.max(initial=0)))
    gain = np.empty(len(times))
    events = _flat(times, marks)
    truth = _flat(true_times, true_marks)
    loops = kernels.DECODING.choose()
    values = numba_decoding.values if loops is None else loops.values
    values(TRANSPORT, insert + delete, *events, *truth, types, gain)
    predicted = np.isfinite(times).sum(1)
    true = np.isfinite(true_times).sum(1)
    return np.asarray(insert * true + delete * predicted - gain)


def temporal_map(
    times: Floats,
    scores: Floats,
    true_times: Floats,
    true_marks: Integers,
    horizon: float,
    deltas: tuple[float, ...],
) -> MeanPrecision:
    """T-mAP of V forecasts of up to N events with a score for each of M types.

    Args:
        times: (V, N) predicted times since the beginning of the forecast; a NaN is no prediction.
        scores: (V, N, M), larger for what is more probable.
        true_times, true_marks: (V, K), what happened, since the beginning too; NaN for nothing.
        horizon: predictions and events from it on do not count.
        deltas: the largest distances in time of a match; the mean over them is taken.

    >>> times, scores = np.array([[1.0, 5.0]]), np.array([[[0.9], [0.2]]])
    >>> temporal_map(times, scores, np.array([[2.0]]), np.array([[0]]), 10.0, (1.5,)).mean
    1.0
    """
    if not deltas or min(deltas) < 0 or not horizon > 0:
        raise UserError(
            "a positive horizon and distances that are not negative",
            f"horizon={horizon}, deltas={deltas}",
            "Pass horizon=10.0, deltas=(2.0,), say.",
        )
    types = scores.shape[2]
    predicted = times < horizon  # NaN is not
    real = true_times < horizon
    totals = np.bincount(true_marks[real], minlength=types)
    order = np.argsort(-scores[predicted], axis=0, kind="stable")  # (predictions, M)
    found = np.zeros((len(deltas), types))
    for d, delta in enumerate(deltas):
        matched = _matched(times, predicted, scores, true_times, true_marks, real, delta)
        hits = np.take_along_axis(matched[predicted], order, axis=0)
        rank = np.arange(1, len(hits) + 1)[:, None]
        precision = np.cumsum(hits, axis=0) / rank
        counted = hits.any(0) & ~hits.all(0)
        total = (precision * hits).sum(0) / np.maximum(totals, 1)
        found[d] = np.where(counted, total, 0.0)
    share = totals / max(1, totals.sum())
    return MeanPrecision(float(found.mean()), float((found * share).sum(1).mean()), found)


def next_event_errors(
    times: Floats,
    marks: Integers,
    true_times: Floats,
    true_marks: Integers,
    most: float | None = None,
) -> NextErrors:
    """Errors of predictions of the next event. ``marks`` may be those at the predicted times or at
    the true times: HoTPP's accuracy is of the former. Errors of time are cut at ``most``.

    >>> next_event_errors(
    ...     np.array([1.0, 2.0]), np.array([0, 1]), np.array([1.0, 9.0]), np.array([0, 0]), most=4.0
    ... )
    NextErrors(mae=2.0, rmse=2.8284271247461903, accuracy=0.5)
    """
    error = np.abs(times - true_times)
    if most is not None:
        error = np.minimum(error, most)
    rmse = float(np.sqrt(np.square(error).mean()))
    return NextErrors(float(error.mean()), rmse, float((marks == true_marks).mean()))


def count_smape(counts: Floats, true_counts: NDArray[np.int64]) -> float:
    """sMAPE of predicted counts, in per cent from 0 to 200: the mean over all entries.

    >>> count_smape(np.array([[1.0, 0.0]]), np.array([[3, 0]]))
    50.0
    """
    size = np.abs(counts) + np.abs(true_counts)
    error = np.abs(counts - true_counts)
    return float(200 * np.divide(error, size, out=np.zeros(size.shape), where=size > 0).mean())


def _flat(times: Floats, marks: Integers) -> tuple[Floats, Integers, Integers]:
    """Times and marks of all forecasts in order of time, and where each forecast begins."""
    order = np.argsort(times, axis=1, kind="stable")  # NaN last
    times = np.take_along_axis(times, order, axis=1)
    marks = np.take_along_axis(marks, order, axis=1)
    real = np.isfinite(times)
    offsets = np.concatenate([[0], np.cumsum(real.sum(1))])
    return times[real], marks[real].astype(np.int64), offsets


def _matched(
    times: Floats,
    predicted: Flags,
    scores: Floats,
    true_times: Floats,
    true_marks: Integers,
    real: Flags,
    delta: float,
) -> Flags:
    """Which predictions are true positives, (V, N, M).

    All matches of a prediction have the same score, so that the sets of predictions which can be
    matched together are a matroid, and the best one is found by taking predictions in order of
    their scores wherever one more can be matched: by an augmenting path.
    """
    found = np.zeros(scores.shape, dtype=bool)
    for v in range(len(times)):
        own = np.flatnonzero(predicted[v])
        kinds = true_marks[v]
        for m in np.unique(kinds[real[v]]):
            events = true_times[v, real[v] & (kinds == m)]
            near = np.abs(times[v, own, None] - events) <= delta
            ranked = np.argsort(-scores[v, own, m], kind="stable")
            owner = np.full(len(events), -1)
            for i in ranked:
                if near[i].any() and _augment(int(i), near, owner, np.zeros(len(events), bool)):
                    found[v, own[i], m] = True
                    if (owner >= 0).all():
                        break
    return found


def _augment(i: int, near: Flags, owner: NDArray[np.int64], tried: Flags) -> bool:
    """Match prediction ``i``, moving others to other events if necessary; False if impossible."""
    for j in np.flatnonzero(near[i] & ~tried):
        if tried[j]:
            continue
        tried[j] = True
        if owner[j] < 0 or _augment(int(owner[j]), near, owner, tried):
            owner[j] = i
            return True
    return False
