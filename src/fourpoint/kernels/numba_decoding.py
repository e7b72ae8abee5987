r"""The prediction with the least expected loss over sampled paths, compiled with numba.

A prediction is a set D of (time, type) pairs. Both losses compare it with a sequence of events by
matching pairs with events of their type, so that the gain of a prediction on a path is

    W(D) = sum over types of max over matchings of sum of w(|t - t'|),
        w(d) = max(0, reach - d)  (transport: reach is what a deletion and an insertion cost)
        w(d) = 1 where d <= reach  (coverage: reach is the tolerance of T-mAP).

For both weights two matched pairs that cross can be uncrossed without loss, so that a best matching
follows the order of time, and with F_ij the best of the first i predictions and the first j events
and B_ij the best of those after them,

    F_ij = max(F_i-1,j, F_i,j-1, F_i-1,j-1 + w_ij),
    W(D + t) - W(D) = max(0, max_j F_i,j-1 + w(|t - t_j|) + B_i,j - W(D))

for a time t after i of the predictions. The mean over paths of W is a monotone submodular function
of D: predictions are added one by one, each where the mean gain is largest, and for transport they
are then exchanged one by one for as long as that improves the mean.

Axes: R forecasts, P paths, M types, E events of all paths, laid end to end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np

from fourpoint.kernels.compiling import machine_code

TRANSPORT, COVERAGE = 0, 1  # kinds of weights
SWEEPS = 8  # of exchanges, at most
FINER = 8  # parts into which the time between two candidates is divided at the end
BETTER = 1e-9  # relative to the reach: smaller improvements are rounding


class Loops(NamedTuple):
    """Functions of this file as machine code."""

    transport: Callable[..., None]
    coverage: Callable[..., None]
    values: Callable[..., None]


@cache
def load() -> Loops:
    """The three as machine code, cached on disk between runs if possible."""
    ordered = (slot_of, largest, keep_sorted, drop, place_candidates, surroundings)
    helpers = (weight, *ordered, best_matching, add_gains, group_by_type)
    own = (sys.modules[__name__],)
    code = machine_code(own, (transport, coverage, values), helpers, fastmath=False)
    return Loops(**code)


@no_type_check  # here and below: numba has its own types
def transport(
    first, step, times, marks, offsets, paths, types, steps, reach, price, most, into_times,
    into_marks, counts, gains,
):  # fmt: skip
    """Predictions that minimise the expected transport distance, of forecasts ``first``,
    ``first + step``, ...

    Args:
        times, marks, offsets: events of path p of forecast r are those from
            ``offsets[r paths + p]`` on, in order of time.
        steps: predictions of a forecast, at most.
        price: the least gain of a prediction; negative if there have to be exactly ``steps``.
        most: candidate times of a type.
        into_times, into_marks: (R, steps), the predictions, of which ``counts`` (R,) are there.
        gains: (R,), the mean of W.
    """
    rows = (len(offsets) - 1) // paths
    table_gain = np.empty((types, most))
    table_time = np.empty((types, most))
    table_size = np.zeros(types, dtype=np.int64)
    best_gain = np.empty(types)
    best_place = np.zeros(types, dtype=np.int64)
    wide_time = np.empty(most + 2 * FINER + 1)
    wide_gain = np.empty(most + 2 * FINER + 1)
    chosen = np.empty((types, steps + 1))
    size = np.zeros(types, dtype=np.int64)
    pick_type = np.empty(steps, dtype=np.int64)
    pick_time = np.empty(steps)
    for r in range(first, rows, step):
        low = offsets[r * paths]
        high = offsets[(r + 1) * paths]
        own_times, own_paths, begin, longest = group_by_type(
            times, marks, offsets, r, paths, types, low, high
        )
        ahead = np.empty((steps + 1) * (longest + 1))
        behind = np.empty((steps + 1) * (longest + 1))
        for m in range(types):
            size[m] = 0
            table_size[m] = place_candidates(own_times, begin[m], begin[m + 1], table_time[m])
            n = table_size[m]
            add_gains(
                TRANSPORT, reach, own_times, own_paths, begin[m], begin[m + 1], chosen[m], 0,
                table_time[m, :n], ahead, behind, table_gain[m, :n], paths,
            )  # fmt: skip
            best_gain[m], best_place[m] = largest(table_gain[m, :n])
        count = 0
        total = 0.0
        while count < steps:
            gain, m = largest(best_gain)
            if gain < 0.0 or (price >= 0.0 and gain <= price):
                break
            time = table_time[m, best_place[m]]
            pick_type[count] = m
            pick_time[count] = time
            count += 1
            total += gain
            keep_sorted(chosen[m], size[m], time)
            size[m] += 1
            n = table_size[m]
            add_gains(
                TRANSPORT, reach, own_times, own_paths, begin[m], begin[m + 1], chosen[m], size[m],
                table_time[m, :n], ahead, behind, table_gain[m, :n], paths,
            )  # fmt: skip
            best_gain[m], best_place[m] = largest(table_gain[m, :n])
        for _ in range(SWEEPS):
            improved = False
            for k in range(count):
                m = pick_type[k]
                time = pick_time[k]
                drop(chosen[m], size[m], time)
                size[m] -= 1
                # What a prediction is worth beside the others: at the time of this one, in small
                # steps up to the candidates on both sides, and at all candidates.
                n, place = surroundings(table_time[m], table_size[m], time, wide_time)
                add_gains(
                    TRANSPORT, reach, own_times, own_paths, begin[m], begin[m + 1], chosen[m],
                    size[m], wide_time[:n], ahead, behind, wide_gain[:n], paths,
                )  # fmt: skip
                worth = wide_gain[place]
                new_gain, place = largest(wide_gain[:n])
                new_type = m
                new_time = wide_time[place]
                for other in range(types):
                    if other != m and best_gain[other] > new_gain:
                        new_gain = best_gain[other]
                        new_type = other
                        new_time = table_time[other, best_place[other]]
                if new_gain <= worth + BETTER * reach:
                    keep_sorted(chosen[m], size[m], time)
                    size[m] += 1
                    continue
                improved = True
                total += new_gain - worth
                pick_type[k] = new_type
                pick_time[k] = new_time
                keep_sorted(chosen[new_type], size[new_type], new_time)
                size[new_type] += 1
                changed = m
                while True:
                    n = table_size[changed]
                    add_gains(
                        TRANSPORT, reach, own_times, own_paths, begin[changed], begin[changed + 1],
                        chosen[changed], size[changed], table_time[changed, :n], ahead, behind,
                        table_gain[changed, :n], paths,
                    )  # fmt: skip
                    best_gain[changed], best_place[changed] = largest(table_gain[changed, :n])
                    if changed == new_type:
                        break
                    changed = new_type
            if not improved:
                break
        order = np.argsort(pick_time[:count])
        for k in range(count):
            into_times[r, k] = pick_time[order[k]]
            into_marks[r, k] = pick_type[order[k]]
        counts[r] = count
        gains[r] = total


@no_type_check
def coverage(
    first, step, times, marks, offsets, paths, types, grid, reach, most, least, confidence
):  # fmt: skip
    """The probability of each (type, time of ``grid``) to be matched, if those with more confidence
    are matched first, into (R, M, Q) ``confidence``; of forecasts ``first``, ``first + step``, ...

    Of each type at most ``most`` times are chosen, each where the probability of one more match is
    largest, until that is below ``least``; all others get 0. Events are those of
    :func:`transport`.
    """
    rows = (len(offsets) - 1) // paths
    gain = np.empty(len(grid))
    chosen = np.empty(most + 1)
    for r in range(first, rows, step):
        own_times, own_paths, begin, longest = group_by_type(
            times, marks, offsets, r, paths, types, offsets[r * paths], offsets[(r + 1) * paths]
        )
        ahead = np.empty((most + 1) * (longest + 1))
        behind = np.empty((most + 1) * (longest + 1))
        for m in range(types):
            confidence[r, m, :] = 0.0
            size = 0
            while size < most and begin[m + 1] > begin[m]:
                add_gains(
                    COVERAGE, reach, own_times, own_paths, begin[m], begin[m + 1], chosen, size,
                    grid, ahead, behind, gain, paths,
                )  # fmt: skip
                for q in range(len(grid)):
                    if confidence[r, m, q] > 0.0:
                        gain[q] = 0.0
                top, place = largest(gain)
                if top < least or top <= 0.0:
                    break
                confidence[r, m, place] = top
                keep_sorted(chosen, size, grid[place])
                size += 1


@no_type_check
def values(
    kind, reach, times, marks, offsets, other_times, other_marks, other_offsets, types, into
):
    """W of each of S predictions and its sequence of events, into (S,) ``into``; both in order of
    time.
    """
    longest = 0
    widest = 0
    for s in range(len(into)):
        longest = max(longest, other_offsets[s + 1] - other_offsets[s])
        widest = max(widest, offsets[s + 1] - offsets[s])
    a = np.empty(widest)
    b = np.empty(longest)
    table = np.empty((widest + 1) * (longest + 1))
    for s in range(len(into)):
        total = 0.0
        for m in range(types):
            n = 0
            for i in range(offsets[s], offsets[s + 1]):
                if marks[i] == m:
                    a[n] = times[i]
                    n += 1
            if n == 0:
                continue
            k = 0
            for j in range(other_offsets[s], other_offsets[s + 1]):
                if other_marks[j] == m:
                    b[k] = other_times[j]
                    k += 1
            if k == 0:
                continue
            best_matching(kind, reach, a, n, b, 0, k, table)
            total += table[n * (k + 1) + k]
        into[s] = total


@no_type_check
def weight(kind, reach, distance):
    """What a matched pair at this distance is worth."""
    if kind == COVERAGE:
        return 1.0 if distance <= reach else 0.0
    return max(0.0, reach - distance)


@no_type_check
def slot_of(ordered, n, time):
    """How many of the first ``n`` numbers are at most ``time``."""
    low = 0
    high = n
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] <= time:
            low = middle + 1
        else:
            high = middle
    return low


@no_type_check
def best_matching(kind, reach, chosen, n, events, low, k, table):
    """F of ``n`` predictions and of ``k`` events from ``low`` on, into ``table``, row by row."""
    width = k + 1
    for j in range(width):
        table[j] = 0.0
    for i in range(1, n + 1):
        table[i * width] = 0.0
        for j in range(1, width):
            best = max(table[(i - 1) * width + j], table[i * width + j - 1])
            w = weight(kind, reach, abs(chosen[i - 1] - events[low + j - 1]))
            table[i * width + j] = max(best, table[(i - 1) * width + j - 1] + w)


@no_type_check
def add_gains(
    kind, reach, times, paths, low, high, chosen, n, candidates, ahead, behind, into, count
):  # fmt: skip
    """The mean over ``count`` paths of what each candidate adds to ``n`` chosen predictions of a
    type, into ``into``; ``times`` and ``paths`` from ``low`` to ``high`` are the events of that
    type, path by path.
    """
    for c in range(len(candidates)):
        into[c] = 0.0
    begin = low
    while begin < high:
        end = begin
        while end < high and paths[end] == paths[begin]:
            end += 1
        k = end - begin
        width = k + 1
        best_matching(kind, reach, chosen, n, times, begin, k, ahead)
        for j in range(width):
            behind[n * width + j] = 0.0
        for i in range(n - 1, -1, -1):
            behind[i * width + k] = 0.0
            for j in range(k - 1, -1, -1):
                best = max(behind[(i + 1) * width + j], behind[i * width + j + 1])
                w = weight(kind, reach, abs(chosen[i] - times[begin + j]))
                behind[i * width + j] = max(best, behind[(i + 1) * width + j + 1] + w)
        now = ahead[n * width + k]
        c = slot_of(candidates, len(candidates), times[begin] - reach)
        if c > 0 and candidates[c - 1] == times[begin] - reach:
            c -= 1
        i = 0
        while c < len(candidates) and candidates[c] <= times[end - 1] + reach:
            time = candidates[c]
            while i < n and chosen[i] <= time:
                i += 1
            best = now
            for j in range(k):
                distance = abs(time - times[begin + j])
                if distance <= reach:
                    w = weight(kind, reach, distance)
                    best = max(best, ahead[i * width + j] + w + behind[i * width + j + 1])
            into[c] += best - now
            c += 1
        begin = end
    for c in range(len(candidates)):
        into[c] /= count


@no_type_check
def place_candidates(times, low, high, into):
    """Times of the events from ``low`` to ``high``, in order and without repetition; of many, as
    many quantiles as ``into`` has room for. Returns their number.
    """
    ordered = np.sort(times[low:high])
    n = len(ordered)
    wanted = min(n, len(into))
    size = 0
    for i in range(wanted):
        time = ordered[((2 * i + 1) * n) // (2 * wanted)]
        if size == 0 or time > into[size - 1]:
            into[size] = time
            size += 1
    return size


@no_type_check
def surroundings(candidates, n, time, into):
    """The first ``n`` candidates with ``time`` among them, and FINER - 1 times between it and its
    neighbour on either side, into ``into``. Returns their number and the place of ``time``.
    """
    right = slot_of(candidates, n, time)
    left = right
    while left > 0 and candidates[left - 1] == time:
        left -= 1
    size = 0
    for i in range(left):
        into[size] = candidates[i]
        size += 1
    if left > 0:
        for i in range(1, FINER):
            into[size] = candidates[left - 1] + (time - candidates[left - 1]) * i / FINER
            size += 1
    place = size
    into[size] = time
    size += 1
    if right < n:
        for i in range(1, FINER):
            into[size] = time + (candidates[right] - time) * i / FINER
            size += 1
    for i in range(right, n):
        into[size] = candidates[i]
        size += 1
    return size, place


@no_type_check
def largest(numbers):
    """The largest number and its place; -1 and 0 if there is none."""
    best = -1.0
    place = 0
    for i in range(len(numbers)):
        if numbers[i] > best:
            best = numbers[i]
            place = i
    return best, place


@no_type_check
def keep_sorted(ordered, n, time):
    """Insert a time among the first ``n`` of ``ordered``."""
    i = n
    while i > 0 and ordered[i - 1] > time:
        ordered[i] = ordered[i - 1]
        i -= 1
    ordered[i] = time


@no_type_check
def drop(ordered, n, time):
    """Remove a time from the first ``n`` of ``ordered``."""
    i = 0
    while ordered[i] != time:
        i += 1
    for j in range(i, n - 1):
        ordered[j] = ordered[j + 1]


@no_type_check
def group_by_type(times, marks, offsets, row, paths, types, low, high):
    """Events of one forecast type by type, and path by path in each: their times, their paths,
    where each type begins, and the most events of one type on one path.
    """
    begin = np.zeros(types + 1, dtype=np.int64)
    for i in range(low, high):
        begin[marks[i] + 1] += 1
    for m in range(types):
        begin[m + 1] += begin[m]
    place = begin[:-1].copy()
    own_times = np.empty(high - low)
    own_paths = np.empty(high - low, dtype=np.int64)
    run = np.zeros(types, dtype=np.int64)
    seen = np.full(types, -1, dtype=np.int64)
    longest = 0
    for p in range(paths):
        for i in range(offsets[row * paths + p], offsets[row * paths + p + 1]):
            m = marks[i]
            own_times[place[m]] = times[i]
            own_paths[place[m]] = p
            place[m] += 1
            if seen[m] != p:
                seen[m] = p
                run[m] = 0
            run[m] += 1
            longest = max(longest, run[m])
    return own_times, own_paths, begin, longest
