r"""The sums of `ops.triggering` with distant events in groups, whose cost grows with n log n.

The past of a query is cut into at most log2 n blocks of 32, 64, 128 ... successive events, each of
which is a tree over time and place. A group that lies before a query enters in one of two ways:

- at its centroid, with the second-order term of the Taylor expansion about it,

      sum_i w_i k(y_i) = W [k(ybar) + 1/2 tr(k''(ybar) C)] + ...,

  W the total weight and C the weighted covariance of time and place, if the group is small for its
  distance and the fourth-order term is below ``tolerance`` times the rate at the query;
- by one event, drawn with a known probability and divided by it, if the largest possible
  contribution of the group is below ``share`` times the rate. The draw goes down the tree in
  proportion to the largest possible contributions of the parts. The estimate has no bias, neither
  have its derivatives, and it is never above that largest contribution.

Any other group is opened. A query opens those groups of a block in which a few events could add a
``share`` of its rate: their number is bounded whatever the size of the block, because the kernel
is, and it falls with the age of the block. The draws follow a fixed sequence, so that sums are the
same in every run. Their errors are independent from query to query: the log-likelihood per event
of n events is off by about that of one log rate over the square root of n, and estimates are off
by the same share of their standard errors whatever n.

Which events and groups a query uses, and their factors, form a *plan*; it is made at given
parameters, and its sums are then smooth functions of the parameters with exact gradients. The error
is measured against full sums at some queries (`ops.triggering.tree_error`).

The functions are plain Python, slow but correct as they stand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels.compiling import machine_code, threads
from fourpoint.kernels.numba_triggering import CHUNKS, SCALARS, pool

Array = NDArray[np.float64]
Index = NDArray[np.int64]

BLOCK = 32  # events of the smallest blocks
LONG = 8.0  # times its duration: extent of a block in time that equals the whole region in space
LEAF = 4  # events of a group that is not divided
ROUGHLY = 0.1  # ``share`` where only the size of the rate is wanted
LEAST_GAMMA = 1e-6  # below, the width of a group of events is that of its mean magnitude
DEEPEST = 200  # groups waiting to be looked at
GOLDEN = 0.5 * (5.0**0.5 - 1.0)  # steps of the sequence of draws from query to query
SILVER = 2.0**0.5 - 1.0  # and from group to group
SIZES, COUNTS, ENTRIES = 0, 1, 2  # what a pass over the tree finds


class Tree(NamedTuple):
    """Groups of events: ``order`` lists the events of each level of blocks so that each group is a
    slice of it.
    """

    order: Index
    first: Index  # (K,) where each group's slice begins
    last: Index  # (K,) and ends
    left: Index  # (K,) children; -1 for none
    right: Index
    roots: Index  # (L,) the group of the first block of each level
    radius: Array  # (K, 2) half extent in time and half diagonal in space
    bounds: Array  # (K, 5) last time, and least and largest x and y


class Events(NamedTuple):
    """Sources as arrays: times (N,), places (N, 2) or (0, 2), delta (N,) and features (N, F)."""

    times: Array
    places: Array
    delta: Array
    features: Array


class Points(NamedTuple):
    """Sources at certain parameters: ``width`` is D, and places are zeros where there are none."""

    times: Array
    places: Array
    width: Array
    weights: Array


class Moments(NamedTuple):
    """Weighted moments of groups. ``spread`` has the variance of t, the covariances tx, ty, xx, xy
    and yy, and the variance of the width.
    """

    weight: Array  # (K,)
    time: Array
    place: Array  # (K, 2)
    width: Array
    narrowest: Array
    spread: Array  # (K, 7)


class Law(NamedTuple):
    """The kernel (s + c)^-p exp(-omega s) (D + r^2)^-q; without the last factor unless
    ``spatial``.
    """

    c: float
    p: float
    omega: float
    q: float
    spatial: bool


class Asked(NamedTuple):
    """Queries as arrays, and a lower bound (J,) of each rate in the units of the sums."""

    at: Array
    where: Array
    seen: Index
    floor: Array


class Plan(NamedTuple):
    """Which sources each query sums over: events below N, groups from N on, and factors."""

    tree: Tree
    offsets: Index
    entries: NDArray[np.int32]
    factors: NDArray[np.float32]
    times: Array  # of events, then of groups
    places: Array
    delta: Array


class Loops(NamedTuple):
    """The compiled loops."""

    build: Callable[..., Any]
    moments: Callable[..., Any]
    choose: Callable[..., Any]
    group_sums: Callable[..., Any]
    sums: Callable[..., Any]


@cache
def load() -> Loops:
    """The loops as machine code, cached on disk between runs if possible."""
    functions = (build_tree, group_moments, choose_groups, group_sums, plan_sums)
    built = machine_code(
        [sys.modules[__name__]],
        functions,
        helpers=[pair_rate, group_rate, largest_rate, is_small, draw_event],
        fastmath={"contract", "nsz"},
    )
    return Loops(*(built[one.__name__] for one in functions))


class Grouped(NamedTuple):
    """A tree of events, and the moments of its groups at certain parameters."""

    tree: Tree
    points: Points
    moments: Moments
    delta: Array  # (K,) of an event as wide as the group is on average
    law: Law


def group(loops: Loops, events: Events, theta: Array) -> Grouped:
    """Groups of events with their moments at the parameters ``theta``."""
    times, places, delta, features = events
    n = len(times)
    spatial = len(places) > 0
    flat = places if spatial else np.zeros((n, 2))
    tree = _tree(loops, times, flat)
    width = np.exp(theta[3] + theta[4] * delta)
    weights = np.exp(_log_weights(features, delta, theta, spatial))
    points = Points(times, flat, width, weights)
    law = Law(float(theta[0]), float(theta[1]), float(theta[2]), float(theta[5]), spatial)
    groups = len(tree.first)
    scalars = [np.zeros(groups) for _ in range(4)]
    weight, time, mean_width, narrowest = scalars
    moments = Moments(
        weight, time, np.zeros((groups, 2)), mean_width, narrowest, np.zeros((groups, 7))
    )
    loops.moments(tree, points, moments)
    own = np.zeros(groups)
    if spatial and abs(theta[4]) > LEAST_GAMMA:
        own = (np.log(np.maximum(moments.width, 1e-300)) - theta[3]) / theta[4]
    elif spatial:
        total = np.zeros(groups)
        mean = np.zeros((groups, 1))
        loops.group_sums(*tree[:5], weights, np.ascontiguousarray(delta[:, None]), total, mean)
        own = mean[:, 0]
    return Grouped(tree, points, moments, own, law)


def choose(
    loops: Loops, grouped: Grouped, asked: Asked, tolerance: float, share: float
) -> tuple[Index, NDArray[np.int32], NDArray[np.float32]]:
    """Which events and groups each query sums over: offsets (J + 1,), entries and factors."""
    count = len(asked.at)
    if not len(asked.where):
        asked = Asked(asked.at, np.zeros((count, 2)), asked.seen, asked.floor)
    tree, points, moments, _, law = grouped
    rates = np.array(asked.floor)
    counts = np.zeros(count, dtype=np.int64)
    offsets = np.zeros(count + 1, dtype=np.int64)
    given = (tree, points, moments, asked, law, rates, tolerance, share)
    none = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.float32)
    _share_out(loops.choose, count, SIZES, *given, offsets, *none, counts)
    rates[:] += asked.floor
    _share_out(loops.choose, count, COUNTS, *given, offsets, *none, counts)
    offsets[1:] = np.cumsum(counts)
    entries = np.zeros(int(offsets[-1]), dtype=np.int32)
    factors = np.zeros(int(offsets[-1]), dtype=np.float32)
    _share_out(loops.choose, count, ENTRIES, *given, offsets, entries, factors, counts)
    return offsets, entries, factors


def make_plan(
    loops: Loops,
    events: Events,
    asked: Asked,
    theta: Array,
    tolerance: float,
    share: float,
) -> Plan:
    """The plan of queries at the parameters ``theta``."""
    return plan_of(loops, group(loops, events, theta), asked, tolerance, share, events.delta)


def plan_of(
    loops: Loops,
    grouped: Grouped,
    asked: Asked,
    tolerance: float,
    share: float,
    delta: Array,
) -> Plan:
    """The plan of queries for groups of events of these magnitudes."""
    moments = grouped.moments
    places = np.zeros((0, 2))
    if grouped.law.spatial:
        places = np.concatenate([grouped.points.places, moments.place])
    return Plan(
        grouped.tree,
        *choose(loops, grouped, asked, tolerance, share),
        times=np.concatenate([grouped.points.times, moments.time]),
        places=places,
        delta=np.concatenate([delta, grouped.delta]),
    )


def run(
    loops: Loops,
    plan: Plan,
    features: Array,
    at: Array,
    where: Array,
    theta: Array,
    differentiated: bool,
) -> tuple[Array, Array]:
    """Values (J,) and derivatives (J, T) of the sums of a plan, which are 0 unless
    ``differentiated``.
    """
    n = len(features)
    spatial = len(plan.places) > 0
    logs = _log_weights(features, plan.delta[:n], theta, spatial)
    columns = np.column_stack([plan.delta[:n], features])
    groups = len(plan.tree.first)
    weight = np.zeros(groups)
    mean = np.zeros((groups, columns.shape[1]))
    largest = logs.max(initial=-np.inf)
    loops.group_sums(*plan.tree[:5], np.exp(logs - largest), columns, weight, mean)
    every = np.concatenate([logs, np.log(weight) + largest])
    means = np.concatenate([columns, mean])
    values = np.zeros(len(at))
    derivatives = np.zeros((len(at), len(theta)))
    _share_out(
        loops.sums,
        len(at),
        plan.offsets,
        plan.entries,
        plan.factors,
        plan.times,
        plan.places,
        plan.delta,
        every,
        means,
        np.exp(theta[3] + theta[4] * plan.delta),
        at,
        where,
        theta,
        differentiated,
        values,
        derivatives,
    )
    return values, derivatives


def _log_weights(
    features: Array,
    delta: Array,
    theta: Array,
    spatial: bool,
) -> Array:
    """log of exp(a' z) D^(q-1): what is left of an event far away."""
    logs = features @ theta[SCALARS:]
    return logs + (theta[5] - 1.0) * (theta[3] + theta[4] * delta) if spatial else logs


def _share_out(loop: Callable[..., None], count: int, *given: Any) -> None:
    """Run ``loop`` on slices of ``count`` queries, in threads."""
    workers = threads()
    edges = np.linspace(0, count, workers * CHUNKS + 1).astype(np.int64)
    parts = list(zip(edges[:-1], edges[1:], strict=True))
    if workers == 1:
        for first, last in parts:
            loop(first, last, *given)
        return
    waiting = [pool(workers, os.getpid()).submit(loop, a, b, *given) for a, b in reversed(parts)]
    for one in waiting:
        one.result()


def _tree(loops: Loops, times: Array, places: Array) -> Tree:
    n = len(times)
    levels = 0
    if n >= BLOCK:
        levels = int(np.log2(n / BLOCK)) + 1
    counts = [n // (BLOCK << level) for level in range(levels)]
    covered = [count * (BLOCK << level) for level, count in enumerate(counts)]
    order = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(m) for m in covered)])
    size = 4 * (len(order) // LEAF + sum(counts) + 2)
    integers = [np.full(size, -1, dtype=np.int64) for _ in range(4)]
    first, last, left, right = integers
    roots = np.zeros(levels, dtype=np.int64)
    at = begin = 0
    for level, (count, events) in enumerate(zip(counts, covered, strict=True)):
        roots[level] = at
        edges = begin + np.arange(count + 1) * (BLOCK << level)
        first[at : at + count] = edges[:-1]
        last[at : at + count] = edges[1:]
        at += count
        begin += events
    radius = np.zeros((size, 2))
    bounds = np.zeros((size, 5))
    whole = Tree(order, first, last, left, right, roots, radius, bounds)
    total = loops.build(times, places, whole, np.zeros(size), LONG, at)
    first, last, left, right = (one[:total] for one in integers)
    return Tree(order, first, last, left, right, roots, radius[:total], bounds[:total])


@no_type_check  # numba has its own types
def build_tree(times, places, tree, span, long, count):
    """Divide the ``count`` blocks at the median of the axis of the largest extent: in space
    relative to the whole, in time to ``long`` times the ``span`` of the block, since queries see a
    block when about as much time has passed. The number of groups.
    """
    order, first, last, left, right, _, radius, bounds = tree
    blocks = count
    whole = np.ones(3)
    if len(times):
        across = places[:, 0].max() - places[:, 0].min()
        up = places[:, 1].max() - places[:, 1].min()
        whole[1:] = max(across, up, 1e-300)
    k = 0
    while k < count:
        a = first[k]
        b = last[k]
        low = np.full(3, np.inf)
        high = np.full(3, -np.inf)
        for at in range(a, b):
            i = order[at]
            low[0] = min(low[0], times[i])
            high[0] = max(high[0], times[i])
            for axis in range(2):
                low[axis + 1] = min(low[axis + 1], places[i, axis])
                high[axis + 1] = max(high[axis + 1], places[i, axis])
        if b > a:
            radius[k, 0] = 0.5 * (high[0] - low[0])
            radius[k, 1] = 0.5 * np.hypot(high[1] - low[1], high[2] - low[2])
            bounds[k, 0] = high[0]
            bounds[k, 1] = low[1]
            bounds[k, 2] = high[1]
            bounds[k, 3] = low[2]
            bounds[k, 4] = high[2]
        if k < blocks:
            span[k] = max(high[0] - low[0], 1e-300)
        if b - a > LEAF:
            whole[0] = long * span[k]
            extent = (high - low) / whole
            axis = np.argmax(extent)
            if extent[axis] > 0.0:
                part = order[a:b].copy()
                keys = times[part]
                if axis > 0:
                    keys = places[part, axis - 1]
                sorting = np.argsort(keys, kind="mergesort")
                order[a:b] = part[sorting]
                half = (a + b) // 2
                left[k] = count
                right[k] = count + 1
                span[count : count + 2] = span[k]
                first[count] = a
                last[count] = half
                first[count + 1] = half
                last[count + 1] = b
                count += 2
        k += 1
    return count


@no_type_check
def group_moments(tree, points, moments):
    """Fill in the ``moments`` of every group."""
    times, places, width, weights = points
    for k in range(len(tree.first)):
        w = 0.0
        t = 0.0
        x = 0.0
        y = 0.0
        d = 0.0
        narrowest = np.inf
        for at in range(tree.first[k], tree.last[k]):
            i = tree.order[at]
            w += weights[i]
            t += weights[i] * times[i]
            x += weights[i] * places[i, 0]
            y += weights[i] * places[i, 1]
            d += weights[i] * width[i]
            narrowest = min(narrowest, width[i])
        if w <= 0.0:
            continue
        t /= w
        x /= w
        y /= w
        d /= w
        moments.weight[k] = w
        moments.time[k] = t
        moments.place[k, 0] = x
        moments.place[k, 1] = y
        moments.width[k] = d
        moments.narrowest[k] = narrowest
        spread = moments.spread[k]
        for at in range(tree.first[k], tree.last[k]):
            i = tree.order[at]
            u = weights[i] / w
            dt = times[i] - t
            dx = places[i, 0] - x
            dy = places[i, 1] - y
            spread[0] += u * dt * dt
            spread[1] += u * dt * dx
            spread[2] += u * dt * dy
            spread[3] += u * dx * dx
            spread[4] += u * dx * dy
            spread[5] += u * dy * dy
            spread[6] += u * (width[i] - d) ** 2


@no_type_check
def pair_rate(i, j, points, asked, law):
    """What event i adds to the sum of query j."""
    lag = asked.at[j] - points.times[i]
    rate = points.weights[i] * np.exp(-law.p * np.log(lag + law.c) - law.omega * lag)
    if law.spatial:
        dx = asked.where[j, 0] - points.places[i, 0]
        dy = asked.where[j, 1] - points.places[i, 1]
        rate *= np.exp(-law.q * np.log(points.width[i] + dx * dx + dy * dy))
    return rate


@no_type_check
def group_rate(k, j, moments, asked, law):
    """What group k would add to the sum of query j if all its events were at the centroid, the
    second-order term relative to it, and a bound of the size of that term.
    """
    lag = asked.at[j] - moments.time[k]
    soon = lag + law.c
    rate = moments.weight[k] * np.exp(-law.p * np.log(soon) - law.omega * lag)
    decline = law.p / soon + law.omega
    spread = moments.spread[k]
    second = 0.5 * (decline * decline + law.p / (soon * soon)) * spread[0]
    size = second
    if law.spatial:
        dx = asked.where[j, 0] - moments.place[k, 0]
        dy = asked.where[j, 1] - moments.place[k, 1]
        near = moments.width[k] + dx * dx + dy * dy
        rate *= np.exp(-law.q * np.log(near))
        bend = law.q / near
        curve = 2.0 * (law.q + 1.0) * bend / near
        along_x = (curve * dx * dx - bend) * spread[3]
        along_y = (curve * dy * dy - bend) * spread[5]
        across = 2.0 * curve * dx * dy * spread[4]
        # d/dt_i of the time factor and d/dx_i of the spatial one have equal signs.
        mixed = 2.0 * bend * decline * (dx * spread[1] + dy * spread[2])
        wide = 0.25 * curve * spread[6]
        second += along_x + along_y + across + mixed + wide
        size += curve * near * (spread[3] + spread[5]) + wide
    return rate, second, size


@no_type_check
def largest_rate(k, j, tree, moments, asked, law):
    """What group k would add to the sum of query j if all its events were as late, as near and as
    narrow as one of them can be.
    """
    bounds = tree.bounds[k]
    lag = asked.at[j] - bounds[0]
    rate = moments.weight[k] * np.exp(-law.p * np.log(lag + law.c) - law.omega * lag)
    if law.spatial:
        x = asked.where[j, 0]
        y = asked.where[j, 1]
        dx = max(bounds[1] - x, x - bounds[2], 0.0)
        dy = max(bounds[3] - y, y - bounds[4], 0.0)
        rate *= np.exp(-law.q * np.log(moments.narrowest[k] + dx * dx + dy * dy))
    return rate


@no_type_check
def is_small(k, j, tree, moments, asked, law):
    """Whether group k is small for its distance from query j, and its events alike in width, so
    that a Taylor expansion holds.
    """
    soon = asked.at[j] - moments.time[k] + law.c
    small = tree.radius[k, 0] <= 0.7 * soon
    if small and law.spatial:
        dx = asked.where[j, 0] - moments.place[k, 0]
        dy = asked.where[j, 1] - moments.place[k, 1]
        square = dx * dx + dy * dy
        near = moments.width[k] + square
        small = tree.radius[k, 1] * tree.radius[k, 1] <= 0.49 * near
        small = small and moments.narrowest[k] + square > 0.5 * near
    return small


@no_type_check
def draw_event(k, j, tree, points, moments, asked, law):
    """An event of group k and one over the probability with which it is drawn: down the tree in
    proportion to the largest contributions of the two parts, and in proportion to the rate among
    the last few events.
    """
    level = (asked.seen[j] * GOLDEN + k * SILVER) % 1.0
    factor = 1.0
    while tree.left[k] >= 0:
        left = largest_rate(tree.left[k], j, tree, moments, asked, law)
        right = largest_rate(tree.right[k], j, tree, moments, asked, law)
        share = 0.5
        if left + right > 0.0:
            share = left / (left + right)
        if level < share:
            k = tree.left[k]
            level /= share
            factor /= share
        else:
            k = tree.right[k]
            level = (level - share) / (1.0 - share)
            factor /= 1.0 - share
    total = 0.0
    for place in range(tree.first[k], tree.last[k]):
        total += pair_rate(tree.order[place], j, points, asked, law)
    i = tree.order[tree.first[k]]
    own = 0.0
    passed = 0.0
    for place in range(tree.first[k], tree.last[k]):
        i = tree.order[place]
        own = pair_rate(i, j, points, asked, law)
        passed += own
        if passed > level * total:
            break
    if own > 0.0:
        factor *= total / own
    return i, factor


@no_type_check
def choose_groups(
    begin,
    end,
    stage,
    tree,
    points,
    moments,
    asked,
    law,
    rates,
    tolerance,
    share,
    offsets,
    entries,
    factors,
    counts,
):
    """Go through the tree for the queries from ``begin`` to before ``end``: stage SIZES finds rough
    values of the sums for ``rates``, stage COUNTS the number of entries of the plan at these rates,
    and stage ENTRIES fills them in.
    """
    n = len(points.times)
    waiting = np.zeros(DEEPEST, dtype=np.int64)
    for j in range(begin, end):
        open_groups = 0
        covered = 0
        for level in range(len(tree.roots) - 1, -1, -1):
            size_of_block = BLOCK << level
            if covered + size_of_block <= asked.seen[j]:
                waiting[open_groups] = tree.roots[level] + covered // size_of_block
                open_groups += 1
                covered += size_of_block
        number = 0
        rough = 0.0
        for i in range(covered, asked.seen[j]):
            if stage == SIZES:
                rough += pair_rate(i, j, points, asked, law)
            elif stage == ENTRIES:
                entries[offsets[j] + number] = i
                factors[offsets[j] + number] = 1.0
            number += 1
        while open_groups > 0:
            open_groups -= 1
            k = waiting[open_groups]
            rate, second, size = group_rate(k, j, moments, asked, law)
            most = largest_rate(k, j, tree, moments, asked, law)
            if stage == SIZES:
                accepted = most < ROUGHLY * (asked.floor[j] + rough)
                if not accepted and size < 0.5:
                    accepted = is_small(k, j, tree, moments, asked, law)
                if accepted:
                    rough += rate
                    continue
            else:
                drawn = most < share * rates[j]
                error = rate * size * min(1.0, 4.0 * size)
                expanded = size < 0.5 and error < tolerance * rates[j]
                if expanded:
                    expanded = is_small(k, j, tree, moments, asked, law)
                if drawn or expanded:
                    if stage == ENTRIES:
                        source = n + k
                        factor = 1.0 + second
                        if not expanded:
                            source, factor = draw_event(k, j, tree, points, moments, asked, law)
                        entries[offsets[j] + number] = source
                        factors[offsets[j] + number] = factor
                    number += 1
                    continue
            if tree.left[k] >= 0:
                waiting[open_groups] = tree.left[k]
                waiting[open_groups + 1] = tree.right[k]
                open_groups += 2
                continue
            for place in range(tree.first[k], tree.last[k]):
                i = tree.order[place]
                if stage == SIZES:
                    rough += pair_rate(i, j, points, asked, law)
                elif stage == ENTRIES:
                    entries[offsets[j] + number] = i
                    factors[offsets[j] + number] = 1.0
                number += 1
        if stage == SIZES:
            rates[j] = rough
        elif stage == COUNTS:
            counts[j] = number


@no_type_check
def group_sums(order, first, last, left, right, each, columns, weight, mean):
    """The weight of every group, and the weighted mean of the columns: children first."""
    for k in range(len(first) - 1, -1, -1):
        if left[k] >= 0:
            weight[k] = weight[left[k]] + weight[right[k]]
            for f in range(columns.shape[1]):
                mean[k, f] = mean[left[k], f] + mean[right[k], f]
        else:
            for at in range(first[k], last[k]):
                i = order[at]
                weight[k] += each[i]
                for f in range(columns.shape[1]):
                    mean[k, f] += each[i] * columns[i, f]
    for k in range(len(first)):
        weight[k] = max(weight[k], 1e-300)
        for f in range(columns.shape[1]):
            mean[k, f] /= weight[k]


@no_type_check
def plan_sums(
    begin,
    end,
    offsets,
    entries,
    factors,
    times,
    places,
    delta,
    weights,
    columns,
    width,
    at,
    where,
    theta,
    differentiated,
    values,
    derivatives,
):
    """Fill ``values`` and ``derivatives`` of the queries from ``begin`` to before ``end``."""
    c = theta[0]
    p = theta[1]
    omega = theta[2]
    level = theta[3]
    gamma = theta[4]
    q = theta[5]
    features = columns.shape[1] - 1
    spatial = len(places) > 0
    extra = np.zeros(features)
    for j in range(begin, end):
        total = 0.0
        by_c = 0.0
        by_p = 0.0
        by_omega = 0.0
        by_level = 0.0
        by_gamma = 0.0
        by_q = 0.0
        extra[:] = 0.0
        for entry in range(offsets[j], offsets[j + 1]):
            i = entries[entry]
            lag = at[j] - times[i]
            log_lag = np.log(lag + c)
            power = weights[i] - p * log_lag - omega * lag
            near = 1.0
            log_near = 0.0
            if spatial:
                dx = where[j, 0] - places[i, 0]
                dy = where[j, 1] - places[i, 1]
                near = width[i] + dx * dx + dy * dy
                log_near = np.log(near)
                power -= q * log_near
            rate = np.exp(power) * factors[entry]
            total += rate
            if differentiated:
                by_c -= rate * p / (lag + c)
                by_p -= rate * log_lag
                by_omega -= rate * lag
                if spatial:
                    inner = q * width[i] / near
                    by_level += rate * (q - 1.0 - inner)
                    by_gamma += rate * ((q - 1.0) * columns[i, 0] - inner * delta[i])
                    by_q += rate * (level + gamma * columns[i, 0] - log_near)
                for f in range(features):
                    extra[f] += rate * columns[i, f + 1]
        values[j] = total
        if differentiated:
            derivatives[j, 0] = by_c
            derivatives[j, 1] = by_p
            derivatives[j, 2] = by_omega
            if spatial:
                derivatives[j, 3] = by_level
                derivatives[j, 4] = by_gamma
                derivatives[j, 5] = by_q
            for f in range(features):
                derivatives[j, SCALARS + f] = extra[f]
