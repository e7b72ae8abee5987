r"""Loops of the seismic DAPP whose cost grows with n log n: distant events in groups, and running
sums of exponentials. The loops of `kernels.numba_seismic`, which pass over all pairs, define them.

**Groups.** A query sums over events and groups of events, which `kernels.numba_trigger_tree` has
chosen for it with the ETAS kernel. A group contributes the kernel of its weight at its centroid
with the second-order term of ETAS, times the mean of v_j over its events, weighted by what ETAS has
them trigger far away. That mean, and the v_j in it, are found again when the group, or the event,
is older by a share of :data:`STALE` of its age. Events of a group that have a sizeable share of the
rate are found by going down the tree.

**The background.** Every event after training adds its kernel to the later events within its reach
(:class:`Later`), which a grid finds; the reach is that of `numba_seismic.background_at`.

**Running sums.** Rates and integrals over the region are sums of exponentials, whose coefficients

    S_k = sum_j f_j ground_jk exp(-(t - t_j) / tau_k)

are updated from event to event. f_j is v_j averaged over the time until the age of j has grown by
a factor of :data:`AGEING`, or until an event attends to j: then f_j is found again. Integrals from
the beginning to the end of such a time are exact; rates within it are off by the change of v_j.

In arrays of kernels the groups follow the N events.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels import installed, numba_seismic, report_missing
from fourpoint.kernels.compiling import machine_code
from fourpoint.kernels.numba_seismic import (
    FLOOR,
    INTEGRAL,
    NEGLIGIBLE,
    expected,
    fading,
    kernel_value,
)

STALE = 0.05  # share of the age after which means of v_j are found again
AGEING = 1.1  # growth of an event's age during which v_j is replaced by its mean
YOUNGEST = 0.1  # first such age, in units of the shortest time scale
DEEPEST = 200  # groups waiting to be looked at
MOST_CELLS = 512  # of the background's grid, on each axis

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class Later(NamedTuple):
    """The background's kernels of events after training, at the events that come later: their sum,
    how many of them it has, and their weight. ``order`` lists events by cells of a grid, each of
    which is a slice of it.
    """

    density: Array  # (N,)
    added: Index  # (1,)
    weight: Array  # (1,)
    order: Index
    offsets: Index
    corner: Array  # (2,) of the grid
    cell: float
    across: int
    up: int


def later(places: Array, fresh: int, variance: Array) -> Later:
    """Sums without kernels for events at ``places``, of which those from number ``fresh`` on have
    kernels of this ``variance``.
    """
    n = len(places)
    corner = places[fresh:].min(0, initial=np.inf)
    extent = places[fresh:].max(0, initial=-np.inf) - corner
    count = n - fresh
    if not count:
        corner, extent = np.zeros(2), np.zeros(2)
    cell = max(float(extent.max()) / MOST_CELLS, 1e-300)
    if count:
        cell = max(cell, float(np.sqrt(np.median(variance[fresh:, 0]))))
    index = ((places[fresh:] - corner) // cell).astype(np.int64)
    across, up = index.max(0, initial=0) + 1
    key = index[:, 0] * up + index[:, 1]
    order = np.argsort(key, kind="stable")
    offsets = np.searchsorted(key[order], np.arange(across * up + 1))
    return Later(
        density=np.zeros(n),
        added=np.array([fresh]),
        weight=np.zeros(1),
        order=order + fresh,
        offsets=offsets,
        corner=corner,
        cell=cell,
        across=int(across),
        up=int(up),
    )


class Loops(NamedTuple):
    """Functions of this file as machine code."""

    group_features: Callable[..., None]
    group_sweep: Callable[..., None]
    group_pairs: Callable[..., int]
    running: Callable[..., None]


@cache
def load() -> Loops:
    """The entries as machine code, cached on disk between runs if possible; as plain functions,
    with a warning, where numba is not installed.
    """
    if not installed("numba"):
        report_missing("numba")
        return plain()
    terms = (fading, kernel_value, expected)
    helpers = (*terms, _pair, _factor, _mean_factor, _enter, _scatter, _mean_over, _advance)
    entries = (group_features, group_sweep, group_pairs, running)
    code = machine_code((numba_seismic, sys.modules[__name__]), entries, helpers)
    return Loops(**code)


def plain() -> Loops:
    """The entries as they stand here."""
    return Loops(group_features, group_sweep, group_pairs, running)


@no_type_check  # here and below: numba has its own types
def group_features(
    which, low, high, offsets, entries, factors, times, moved, narrow, boost, fast, variances, found
):
    """As `numba_seismic.features`, of the events ``which[low:high]``."""
    count = len(fast)
    wide = len(variances)
    time_part, faded = np.zeros(count), np.zeros(count)
    for n in range(low, high):
        i = which[n]
        row = found[n]
        for entry in range(offsets[n], offsets[n + 1]):
            j = entries[entry]
            dx = moved[i, 0] - moved[j, 0]
            dy = moved[i, 1] - moved[j, 1]
            square = 0.5 * (dx * dx + dy * dy) * narrow[j]
            if square > NEGLIGIBLE * variances[wide - 1]:
                continue
            oldest = fading(times[i] - times[j], fast, faded)
            for k in range(oldest, count):
                time_part[k] = boost[j, k] * fast[k] * faded[k] * factors[entry]
            for scale in range(wide - 1, -1, -1):
                power = square / variances[scale]
                if power > NEGLIGIBLE:
                    break
                near = math.exp(-power) / (2 * math.pi * variances[scale]) * narrow[j]
                for k in range(oldest, count):
                    row[k * wide + scale] += time_part[k] * near


@no_type_check
def _pair(
    i, j, times, places, moved, kappa, spread, narrow, boost, etas, fast, variances, spectrum, faded
):
    """k_j at event i, and the result of :func:`fading`, or -1 if it was not needed."""
    dx = places[i, 0] - places[j, 0]
    dy = places[i, 1] - places[j, 1]
    ux = moved[i, 0] - moved[j, 0]
    uy = moved[i, 1] - moved[j, 1]
    return kernel_value(
        j,
        times[i] - times[j],
        dx * dx + dy * dy,
        0.5 * (ux * ux + uy * uy) * narrow[j],
        kappa,
        spread,
        narrow,
        boost,
        etas,
        fast,
        variances,
        spectrum,
        faded,
    )


@no_type_check
def _factor(j, lag, inside, ground, shape, given, counts, etas, tail, fast, oldest, faded):
    """v_j; ``oldest`` and ``faded`` as :func:`fading` left them for this lag."""
    due = expected(j, lag, inside, ground, etas, tail, fast, oldest, faded)
    return (shape[j] * given[j] + counts[j]) / (shape[j] + due)


@no_type_check
def _mean_factor(
    g,
    now,
    events,
    order,
    first,
    last,
    omega,
    held,
    looked,
    group_held,
    group_looked,
    times,
    inside,
    ground,
    shape,
    given,
    counts,
    etas,
    tail,
    fast,
    faded,
):
    """The mean of v_j over a group, weighted by omega; at most :data:`STALE` of the age old."""
    if now - group_looked[g] <= STALE * (now - times[events + g]):
        return group_held[g]
    total = 0.0
    weight = 0.0
    for place in range(first[g], last[g]):
        j = order[place]
        lag = now - times[j]
        if now - looked[j] > STALE * lag:
            held[j] = 1.0
            if shape[j] < np.inf:
                oldest = fading(lag, fast, faded)
                held[j] = _factor(
                    j, lag, inside, ground, shape, given, counts, etas, tail, fast, oldest, faded
                )
            looked[j] = now
        total += omega[j] * held[j]
        weight += omega[j]
    group_held[g] = total / weight if weight > 0 else 1.0
    group_looked[g] = now
    return group_held[g]


@no_type_check
def _enter(i, j, weight, owner, share):
    """Put a weight among the largest of event i."""
    n = owner.shape[1] - 1
    if weight <= share[i, n]:
        return
    while n > 0 and share[i, n - 1] < weight:
        share[i, n] = share[i, n - 1]
        owner[i, n] = owner[i, n - 1]
        n -= 1
    share[i, n] = weight
    owner[i, n] = j


@no_type_check
def _scatter(j, places, variance, origin, later):
    """Add the background's kernel of event j to the later events within its reach."""
    later.weight[0] += origin[j]
    wide = variance[j, 0]
    reach = math.sqrt(2.0 * NEGLIGIBLE * wide)
    x = places[j, 0] - later.corner[0]
    y = places[j, 1] - later.corner[1]
    first = max(int((x - reach) // later.cell), 0)
    last = min(int((x + reach) // later.cell), later.across - 1)
    bottom = max(int((y - reach) // later.cell), 0)
    top = min(int((y + reach) // later.cell), later.up - 1)
    if bottom > top:
        return
    peak = origin[j] / (2 * math.pi * wide * variance[j, 1])
    for column in range(first, last + 1):
        begin = later.offsets[column * later.up + bottom]
        end = later.offsets[column * later.up + top + 1]
        for place in range(begin, end):
            i = later.order[place]
            if i <= j:
                continue
            dx = places[i, 0] - places[j, 0]
            dy = places[i, 1] - places[j, 1]
            power = 0.5 * (dx * dx + dy * dy) / wide
            if power < NEGLIGIBLE:
                later.density[i] += peak * math.exp(-power)


@no_type_check
def group_sweep(
    begin,
    end,
    events,
    offsets,
    entries,
    factors,
    order,
    first,
    last,
    left,
    right,
    omega,
    held,
    looked,
    group_held,
    group_looked,
    times,
    places,
    moved,
    kappa,
    spread,
    narrow,
    boost,
    inside,
    ground,
    static,
    later,
    variance,
    base,
    shape,
    inherit,
    etas,
    tail,
    fast,
    variances,
    spectrum,
    rates,
    given,
    owner,
    share,
    origin,
    counts,
):
    """As `numba_seismic.sweep`, of the events from ``begin`` to before ``end``, whose entries are
    those from ``offsets[0]`` on.

    omega: weights of events in a group. held, looked and those of groups: v_j and their means as
    they were found last, and when.
    """
    faded = np.zeros(len(fast))
    room = 0
    for n in range(end - begin):
        room = max(room, offsets[n + 1] - offsets[n])
    value = np.zeros(room)
    waiting = np.zeros(DEEPEST, dtype=np.int64)
    attentive = len(shape) > 0 and shape[0] < np.inf
    for i in range(begin, end):
        now = times[i]
        low = offsets[i - begin]
        count = offsets[i - begin + 1] - low
        while later.added[0] < i:
            _scatter(later.added[0], places, variance, origin, later)
            later.added[0] += 1
        weight = base[2] + later.weight[0]
        background = base[0]
        if weight > 0:
            background += base[1] * (base[2] * static[i] + later.density[i]) / weight
        total = background
        for n in range(count):
            j = entries[low + n]
            own, oldest = _pair(
                i,
                j,
                times,
                places,
                moved,
                kappa,
                spread,
                narrow,
                boost,
                etas,
                fast,
                variances,
                spectrum,
                faded,
            )
            own *= factors[low + n]
            if own > 0 and attentive:
                if j < events:
                    lag = now - times[j]
                    if oldest < 0:
                        oldest = fading(lag, fast, faded)
                    own *= _factor(
                        j,
                        lag,
                        inside,
                        ground,
                        shape,
                        given,
                        counts,
                        etas,
                        tail,
                        fast,
                        oldest,
                        faded,
                    )
                else:
                    own *= _mean_factor(
                        j - events,
                        now,
                        events,
                        order,
                        first,
                        last,
                        omega,
                        held,
                        looked,
                        group_held,
                        group_looked,
                        times,
                        inside,
                        ground,
                        shape,
                        given,
                        counts,
                        etas,
                        tail,
                        fast,
                        faded,
                    )
            value[n] = own
            total += own
        rates[i] = total
        origin[i] = background / total
        for n in range(owner.shape[1]):
            owner[i, n] = -1
            share[i, n] = 0.0
        for n in range(count):
            if value[n] < FLOOR * total:
                continue
            j = entries[low + n]
            if j < events:
                _enter(i, j, value[n] / total, owner, share)
                continue
            waiting[0] = j - events
            open_groups = 1
            while open_groups > 0:
                open_groups -= 1
                g = waiting[open_groups]
                if left[g] >= 0:
                    for side in range(2):
                        child = left[g] if side == 0 else right[g]
                        own, oldest = _pair(
                            i,
                            events + child,
                            times,
                            places,
                            moved,
                            kappa,
                            spread,
                            narrow,
                            boost,
                            etas,
                            fast,
                            variances,
                            spectrum,
                            faded,
                        )
                        if own > 0 and attentive:
                            own *= _mean_factor(
                                child,
                                now,
                                events,
                                order,
                                first,
                                last,
                                omega,
                                held,
                                looked,
                                group_held,
                                group_looked,
                                times,
                                inside,
                                ground,
                                shape,
                                given,
                                counts,
                                etas,
                                tail,
                                fast,
                                faded,
                            )
                        if own >= FLOOR * total and open_groups < DEEPEST:
                            waiting[open_groups] = child
                            open_groups += 1
                    continue
                for place in range(first[g], last[g]):
                    parent = order[place]
                    own, oldest = _pair(
                        i,
                        parent,
                        times,
                        places,
                        moved,
                        kappa,
                        spread,
                        narrow,
                        boost,
                        etas,
                        fast,
                        variances,
                        spectrum,
                        faded,
                    )
                    if own > 0 and attentive:
                        lag = now - times[parent]
                        if oldest < 0:
                            oldest = fading(lag, fast, faded)
                        own *= _factor(
                            parent,
                            lag,
                            inside,
                            ground,
                            shape,
                            given,
                            counts,
                            etas,
                            tail,
                            fast,
                            oldest,
                            faded,
                        )
                    if own >= FLOOR * total:
                        _enter(i, parent, own / total, owner, share)
        logs = 0.0
        for n in range(owner.shape[1]):
            j = owner[i, n]
            if j < 0 or not attentive:
                continue
            lag = now - times[j]
            oldest = fading(lag, fast, faded)
            logs += share[i, n] * math.log(
                _factor(
                    j, lag, inside, ground, shape, given, counts, etas, tail, fast, oldest, faded
                )
            )
        for n in range(owner.shape[1]):
            if owner[i, n] >= 0:
                counts[owner[i, n]] += share[i, n]
                looked[owner[i, n]] = -np.inf
        given[i] = math.exp(inherit * logs)


@no_type_check
def group_pairs(
    begin,
    end,
    events,
    chosen,
    entries,
    factors,
    order,
    first,
    last,
    left,
    right,
    times,
    places,
    moved,
    kappa,
    spread,
    narrow,
    boost,
    inside,
    ground,
    background,
    etas,
    tail,
    fast,
    variances,
    spectrum,
    least,
    used,
    parents,
    values,
    dues,
    offsets,
    rest,
):
    """As `numba_seismic.pairs`, of the events from ``begin`` to before ``end``, whose entries are
    those from ``chosen[0]`` on, after ``used`` pairs. Groups above ``least`` of the rate are
    opened.
    """
    faded = np.zeros(len(fast))
    room = 0
    for n in range(end - begin):
        room = max(room, chosen[n + 1] - chosen[n])
    value = np.zeros(room)
    waiting = np.zeros(DEEPEST, dtype=np.int64)
    for i in range(begin, end):
        low = chosen[i - begin]
        count = chosen[i - begin + 1] - low
        total = background[i]
        for n in range(count):
            own, _ = _pair(
                i,
                entries[low + n],
                times,
                places,
                moved,
                kappa,
                spread,
                narrow,
                boost,
                etas,
                fast,
                variances,
                spectrum,
                faded,
            )
            value[n] = own * factors[low + n]
            total += value[n]
        rest[i] = 0.0
        for n in range(count):
            if value[n] < least * total:
                rest[i] += value[n]
                continue
            waiting[0] = entries[low + n]
            open_groups = 1
            while open_groups > 0:
                open_groups -= 1
                j = waiting[open_groups]
                own = value[n]
                if j != entries[low + n]:
                    own, _ = _pair(
                        i,
                        j,
                        times,
                        places,
                        moved,
                        kappa,
                        spread,
                        narrow,
                        boost,
                        etas,
                        fast,
                        variances,
                        spectrum,
                        faded,
                    )
                if own < least * total:
                    rest[i] += own
                elif j < events:
                    if used == len(parents):
                        return -1
                    parents[used] = j
                    values[used] = own
                    lag = times[i] - times[j]
                    oldest = fading(lag, fast, faded)
                    dues[used] = expected(j, lag, inside, ground, etas, tail, fast, oldest, faded)
                    used += 1
                elif left[j - events] >= 0:
                    waiting[open_groups] = events + left[j - events]
                    waiting[open_groups + 1] = events + right[j - events]
                    open_groups += 2
                else:
                    for place in range(first[j - events], last[j - events]):
                        waiting[open_groups] = order[place]
                        open_groups += 1
        offsets[i + 1] = used
    return used


@no_type_check
def _mean_over(j, begin, end, times, inside, ground, shape, given, counts, etas, tail, fast, faded):
    """The mean of v_j over [begin, end], weighted by what j triggers."""
    if shape[j] == np.inf:
        return 1.0
    oldest = fading(begin - times[j], fast, faded)
    low = expected(j, begin - times[j], inside, ground, etas, tail, fast, oldest, faded)
    oldest = fading(end - times[j], fast, faded)
    high = expected(j, end - times[j], inside, ground, etas, tail, fast, oldest, faded)
    more = (high - low) / (shape[j] + low)
    mean = 1.0
    if more > 1e-7:
        mean = math.log1p(more) / more
    return mean * (shape[j] * given[j] + counts[j]) / (shape[j] + low)


@no_type_check
def _advance(passed, sums, fast):
    """Let the running sums fade; the integral of their rate over the time ``passed``."""
    total = 0.0
    for k in range(len(fast)):
        change = math.expm1(-passed * fast[k])
        total -= sums[k] * change
        sums[k] += sums[k] * change
    return total


@no_type_check
def running(
    kind,
    asked,
    ends,
    seen,
    times,
    inside,
    ground,
    shape,
    given,
    etas,
    tail,
    fast,
    owner,
    share,
    counts,
    found,
):
    """Rates in the region at ``asked``, or integrals over [asked, ends], that events trigger:
    as `numba_seismic.answer` for queries in the order of time, without a kernel of ETAS.
    """
    if len(asked) == 0:
        return
    faded = np.zeros(len(fast))
    sums = np.zeros(len(fast))
    size = len(times)
    held = np.ones(size)
    until = np.zeros(size)
    now = asked[0]
    position = seen[0]
    youngest = YOUNGEST / fast[0]
    latest = max(asked[-1], ends[-1])
    for i in range(position):
        for n in range(owner.shape[1]):
            if owner[i, n] >= 0:
                counts[owner[i, n]] += share[i, n]
    waiting = [(np.inf, -1)]
    for j in range(position):
        age = now - times[j]
        until[j] = min(times[j] + max(AGEING * age, youngest), latest)
        held[j] = _mean_over(
            j, now, until[j], times, inside, ground, shape, given, counts, etas, tail, fast, faded
        )
        oldest = fading(age, fast, faded)
        for k in range(oldest, len(fast)):
            sums[k] += held[j] * ground[j, k] * faded[k]
        if shape[j] < np.inf and until[j] < latest:
            waiting.append((until[j], j))
    heapq.heapify(waiting)
    for query in range(len(asked)):
        total = 0.0
        # Up to the beginning of the query, with the events that it has seen, then to its end.
        for part in range(2):
            if part == 1 and kind != INTEGRAL:
                break
            goal = asked[query] if part == 0 else ends[query]
            while True:
                coming = position < seen[query]
                stop = goal
                if coming:
                    stop = min(stop, times[position])
                due = waiting[0][0] <= stop
                if due:
                    stop = waiting[0][0]
                if stop > now:
                    more = _advance(stop - now, sums, fast)
                    now = stop
                    if part == 1:
                        total += more
                if due:
                    _, j = heapq.heappop(waiting)
                    until[j] = times[j] + max(AGEING * (now - times[j]), youngest)
                    until[j] = min(until[j], latest)
                    fresh = _mean_over(
                        j,
                        now,
                        until[j],
                        times,
                        inside,
                        ground,
                        shape,
                        given,
                        counts,
                        etas,
                        tail,
                        fast,
                        faded,
                    )
                    oldest = fading(now - times[j], fast, faded)
                    for k in range(oldest, len(fast)):
                        sums[k] += (fresh - held[j]) * ground[j, k] * faded[k]
                    held[j] = fresh
                    if until[j] < latest and oldest < len(fast):
                        heapq.heappush(waiting, (until[j], j))
                    continue
                if not coming:
                    break
                i = position
                position += 1
                for n in range(owner.shape[1]):
                    j = owner[i, n]
                    if j < 0:
                        continue
                    counts[j] += share[i, n]
                    if shape[j] == np.inf:
                        continue
                    until[j] = max(until[j], now)
                    fresh = _mean_over(
                        j,
                        now,
                        until[j],
                        times,
                        inside,
                        ground,
                        shape,
                        given,
                        counts,
                        etas,
                        tail,
                        fast,
                        faded,
                    )
                    oldest = fading(now - times[j], fast, faded)
                    for k in range(oldest, len(fast)):
                        sums[k] += (fresh - held[j]) * ground[j, k] * faded[k]
                    held[j] = fresh
                until[i] = min(times[i] + youngest, latest)
                held[i] = _mean_over(
                    i,
                    now,
                    until[i],
                    times,
                    inside,
                    ground,
                    shape,
                    given,
                    counts,
                    etas,
                    tail,
                    fast,
                    faded,
                )
                for k in range(len(fast)):
                    sums[k] += held[i] * ground[i, k]
                if shape[i] < np.inf and until[i] < latest:
                    heapq.heappush(waiting, (until[i], i))
        if kind == INTEGRAL:
            found[query] = total
        else:
            for k in range(len(fast)):
                found[query] += sums[k] * fast[k]
