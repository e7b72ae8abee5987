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


class Grouped(NamedTuple):
    """Events of one forecast type by type, and path by path in each."""

    times: np.ndarray
    paths: np.ndarray
    begin: np.ndarray  # (M + 1,): where each type begins
    longest: int  # the most events of one type on one path


class Tables(NamedTuple):
    """Space for F and B of :func:`best_matching` on one path, row by row."""

    ahead: np.ndarray
    behind: np.ndarray


class Chosen(NamedTuple):
    """The predictions of one forecast."""

    times: np.ndarray  # (M, steps + 1): of each type, in order
    size: np.ndarray  # (M,)
    pick_type: np.ndarray  # (steps,): the type of each prediction, in the order of their choice
    pick_time: np.ndarray  # (steps,)


class Candidates(NamedTuple):
    """Times at which one more prediction of each type may be put, and what it would gain."""

    times: np.ndarray  # (M, most)
    gains: np.ndarray  # (M, most)
    size: np.ndarray  # (M,)
    best_gain: np.ndarray  # (M,)
    best_place: np.ndarray  # (M,)
    wide_times: np.ndarray  # the candidates of one type and the neighbourhood of a prediction
    wide_gains: np.ndarray


class Loops(NamedTuple):
    """Functions of this file as machine code."""

    transport: Callable[..., None]
    coverage: Callable[..., None]
    values: Callable[..., None]


@cache
def load() -> Loops:
    """The three as machine code, cached on disk between runs if possible."""
    ordered = (slot_of, largest, keep_sorted, drop, place_candidates, surroundings)
    matching = (weight, best_matching, remaining_matching, add_gains, group_by_type)
    choosing = (add, remove, renew_gains, greedy, exchange, improve)
    helpers = (of_type, *ordered, *matching, *choosing)
    own = (sys.modules[__name__],)
    code = machine_code(own, (transport, coverage, values), helpers, fastmath=False)
    return Loops(**code)


@no_type_check  # here and below: numba has its own types
def transport(
    first,
    step,
    times,
    marks,
    offsets,
    paths,
    types,
    steps,
    reach,
    price,
    most,
    into_times,
    into_marks,
    counts,
    gains,
):
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
    widest = most + 2 * FINER + 1
    candidates = Candidates(
        np.empty((types, most)),
        np.empty((types, most)),
        np.zeros(types, dtype=np.int64),
        np.empty(types),
        np.zeros(types, dtype=np.int64),
        np.empty(widest),
        np.empty(widest),
    )
    chosen = Chosen(
        np.empty((types, steps + 1)),
        np.zeros(types, dtype=np.int64),
        np.empty(steps, dtype=np.int64),
        np.empty(steps),
    )
    for r in range(first, rows, step):
        events = group_by_type(times, marks, offsets, r, paths, types)
        room = (steps + 1) * (events.longest + 1)
        tables = Tables(np.empty(room), np.empty(room))
        for m in range(types):
            chosen.size[m] = 0
            begin = events.begin[m]
            end = events.begin[m + 1]
            candidates.size[m] = place_candidates(events.times, begin, end, candidates.times[m])
            renew_gains(m, reach, paths, events, chosen, candidates, tables)
        count, total = greedy(steps, reach, price, paths, events, chosen, candidates, tables)
        for _ in range(SWEEPS):
            improved, total = improve(
                count, total, reach, paths, events, chosen, candidates, tables
            )
            if not improved:
                break
        order = np.argsort(chosen.pick_time[:count])
        for k in range(count):
            into_times[r, k] = chosen.pick_time[order[k]]
            into_marks[r, k] = chosen.pick_type[order[k]]
        counts[r] = count
        gains[r] = total


@no_type_check
def add(m, time, chosen):
    """Add a prediction of type ``m``."""
    keep_sorted(chosen.times[m], chosen.size[m], time)
    chosen.size[m] += 1


@no_type_check
def remove(m, time, chosen):
    """Remove a prediction of type ``m``."""
    drop(chosen.times[m], chosen.size[m], time)
    chosen.size[m] -= 1


@no_type_check
def renew_gains(m, reach, paths, events, chosen, candidates, tables):
    """The gains of all candidates of type ``m``, and the largest of them."""
    n = candidates.size[m]
    gains = candidates.gains[m, :n]
    times = candidates.times[m, :n]
    own = chosen.times[m]
    add_gains(TRANSPORT, reach, m, events, own, chosen.size[m], times, tables, gains, paths)
    candidates.best_gain[m], candidates.best_place[m] = largest(gains)


@no_type_check
def greedy(steps, reach, price, paths, events, chosen, candidates, tables):
    """Add predictions one by one, each where the gain is largest. Returns their number and the mean
    of W.
    """
    count = 0
    total = 0.0
    while count < steps:
        gain, m = largest(candidates.best_gain)
        if gain < 0.0 or (price >= 0.0 and gain <= price):
            break
        time = candidates.times[m, candidates.best_place[m]]
        chosen.pick_type[count] = m
        chosen.pick_time[count] = time
        count += 1
        total += gain
        add(m, time, chosen)
        renew_gains(m, reach, paths, events, chosen, candidates, tables)
    return count, total


@no_type_check
def improve(count, total, reach, paths, events, chosen, candidates, tables):
    """Exchange each prediction for a better one where there is one. Returns whether that was so,
    and the mean of W.
    """
    improved = False
    for k in range(count):
        m = chosen.pick_type[k]
        time = chosen.pick_time[k]
        remove(m, time, chosen)
        worth, gain, new_type, new_time = exchange(
            m, time, reach, paths, events, chosen, candidates, tables
        )
        if gain <= worth + BETTER * reach:
            add(m, time, chosen)
            continue
        improved = True
        total += gain - worth
        chosen.pick_type[k] = new_type
        chosen.pick_time[k] = new_time
        add(new_type, new_time, chosen)
        renew_gains(m, reach, paths, events, chosen, candidates, tables)
        if new_type != m:
            renew_gains(new_type, reach, paths, events, chosen, candidates, tables)
    return improved, total


@no_type_check
def exchange(m, time, reach, paths, events, chosen, candidates, tables):
    """What a prediction of type ``m`` at ``time`` is worth beside the others, and the gain, the
    type and the time of the best one instead of it.

    It is compared with the same type at its time, in small steps up to the candidates on both
    sides, and at all candidates of all types.
    """
    n, place = surroundings(candidates.times[m], candidates.size[m], time, candidates.wide_times)
    times = candidates.wide_times[:n]
    gains = candidates.wide_gains[:n]
    own = chosen.times[m]
    add_gains(TRANSPORT, reach, m, events, own, chosen.size[m], times, tables, gains, paths)
    worth = gains[place]
    gain, place = largest(gains)
    new_type = m
    new_time = times[place]
    for other in range(len(candidates.best_gain)):
        if other != m and candidates.best_gain[other] > gain:
            gain = candidates.best_gain[other]
            new_type = other
            new_time = candidates.times[other, candidates.best_place[other]]
    return worth, gain, new_type, new_time


@no_type_check
def coverage(
    first,
    step,
    times,
    marks,
    offsets,
    paths,
    types,
    grid,
    reach,
    most,
    least,
    confidence,
):
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
        events = group_by_type(times, marks, offsets, r, paths, types)
        room = (most + 1) * (events.longest + 1)
        tables = Tables(np.empty(room), np.empty(room))
        for m in range(types):
            confidence[r, m, :] = 0.0
            size = 0
            while size < most and events.begin[m + 1] > events.begin[m]:
                add_gains(COVERAGE, reach, m, events, chosen, size, grid, tables, gain, paths)
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
    kind,
    reach,
    times,
    marks,
    offsets,
    other_times,
    other_marks,
    other_offsets,
    types,
    into,
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
            n = of_type(m, times, marks, offsets[s], offsets[s + 1], a)
            if n == 0:
                continue
            k = of_type(m, other_times, other_marks, other_offsets[s], other_offsets[s + 1], b)
            if k == 0:
                continue
            best_matching(kind, reach, a, n, b, 0, k, table)
            total += table[n * (k + 1) + k]
        into[s] = total


@no_type_check
def of_type(m, times, marks, low, high, into):
    """The times of events of type ``m`` from ``low`` to ``high``, into ``into``. Returns their
    number.
    """
    n = 0
    for i in range(low, high):
        if marks[i] == m:
            into[n] = times[i]
            n += 1
    return n


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
        above = (i - 1) * width
        row = i * width
        table[row] = 0.0
        for j in range(1, width):
            w = weight(kind, reach, abs(chosen[i - 1] - events[low + j - 1]))
            apart = max(table[above + j], table[row + j - 1])
            table[row + j] = max(apart, table[above + j - 1] + w)


@no_type_check
def remaining_matching(kind, reach, chosen, n, events, low, k, table):
    """B of ``n`` predictions and of ``k`` events from ``low`` on, into ``table``, row by row."""
    width = k + 1
    for j in range(width):
        table[n * width + j] = 0.0
    for i in range(n - 1, -1, -1):
        below = (i + 1) * width
        row = i * width
        table[row + k] = 0.0
        for j in range(k - 1, -1, -1):
            w = weight(kind, reach, abs(chosen[i] - events[low + j]))
            apart = max(table[below + j], table[row + j + 1])
            table[row + j] = max(apart, table[below + j + 1] + w)


@no_type_check
def add_gains(kind, reach, m, events, chosen, n, candidates, tables, into, count):
    """The mean over ``count`` paths of what each candidate adds to ``n`` chosen predictions of type
    ``m``, into ``into``.
    """
    times = events.times
    paths = events.paths
    ahead = tables.ahead
    behind = tables.behind
    for c in range(len(candidates)):
        into[c] = 0.0
    begin = events.begin[m]
    high = events.begin[m + 1]
    while begin < high:
        end = begin
        while end < high and paths[end] == paths[begin]:
            end += 1
        k = end - begin
        width = k + 1
        best_matching(kind, reach, chosen, n, times, begin, k, ahead)
        remaining_matching(kind, reach, chosen, n, times, begin, k, behind)
        now = ahead[n * width + k]
        first = times[begin] - reach
        last = times[end - 1] + reach
        c = slot_of(candidates, len(candidates), first)
        if c > 0 and candidates[c - 1] == first:
            c -= 1
        i = 0
        while c < len(candidates) and candidates[c] <= last:
            time = candidates[c]
            while i < n and chosen[i] <= time:
                i += 1
            row = i * width
            best = now
            for j in range(k):
                distance = abs(time - times[begin + j])
                if distance <= reach:
                    w = weight(kind, reach, distance)
                    best = max(best, ahead[row + j] + w + behind[row + j + 1])
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
        before = candidates[left - 1]
        for i in range(1, FINER):
            into[size] = before + (time - before) * i / FINER
            size += 1
    place = size
    into[size] = time
    size += 1
    if right < n:
        after = candidates[right]
        for i in range(1, FINER):
            into[size] = time + (after - time) * i / FINER
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
def group_by_type(times, marks, offsets, row, paths, types):
    """The events of one forecast as :class:`Grouped`."""
    first = row * paths
    low = offsets[first]
    high = offsets[first + paths]
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
        for i in range(offsets[first + p], offsets[first + p + 1]):
            m = marks[i]
            at = place[m]
            own_times[at] = times[i]
            own_paths[at] = p
            place[m] += 1
            if seen[m] != p:
                seen[m] = p
                run[m] = 0
            run[m] += 1
            longest = max(longest, run[m])
    return Grouped(own_times, own_paths, begin, longest)
