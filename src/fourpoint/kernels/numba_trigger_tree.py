r"""The sums of `ops.triggering` with distant groups of events in place of single ones.

The past of a query is cut into at most log2 n blocks of 32, 64, 128 ... successive events, each of
which is a tree over time and place. A group that lies before a query contributes its
total weight at its centroid, with the second-order term of the Taylor expansion about it,

    sum_i w_i k(y_i) = W [k(ybar) + 1/2 tr(k''(ybar) C)] + ...,

C the weighted covariance of time and place. A group is opened unless its second-order term is below
``tolerance`` times the rate at the query, or its largest possible contribution is. Which groups a
query uses, and the factors of the second-order terms, form a *plan*; it is made at given
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

BLOCK = 32  # events of the smallest blocks
LONG = 8.0  # times its duration: extent of a block in time that equals the whole region in space
LEAF = 4  # events of a group that is not divided
NEGLIGIBLE = 30.0  # largest rate of a group that is not opened, in units of the tolerance
LEAST_GAMMA = 1e-6  # below, the width of a group of events is that of its mean magnitude
DEEPEST = 200  # groups waiting to be looked at


class Tree(NamedTuple):
    """Groups of events: ``order`` lists the events of each level of blocks so that each group is a
    slice of it.
    """

    order: NDArray[np.int64]
    first: NDArray[np.int64]  # (K,) where each group's slice begins
    last: NDArray[np.int64]  # (K,) and ends
    left: NDArray[np.int64]  # (K,) children; -1 for none
    right: NDArray[np.int64]
    roots: NDArray[np.int64]  # (L,) the group of the first block of each level
    radius: NDArray[np.float64]  # (K, 2) half extent in time and half diagonal in space


class Plan(NamedTuple):
    """Which sources each query sums over: events below N, groups from N on, and factors."""

    tree: Tree
    offsets: NDArray[np.int64]
    entries: NDArray[np.int32]
    factors: NDArray[np.float32]
    times: NDArray[np.float64]  # of events, then of groups
    places: NDArray[np.float64]
    delta: NDArray[np.float64]


class Events(NamedTuple):
    """Sources as arrays: times (N,), places (N, 2) or (0, 2), delta (N,) and features (N, F)."""

    times: NDArray[np.float64]
    places: NDArray[np.float64]
    delta: NDArray[np.float64]
    features: NDArray[np.float64]


class Asked(NamedTuple):
    """Queries as arrays, and a lower bound (J,) of each rate in the units of the sums."""

    at: NDArray[np.float64]
    where: NDArray[np.float64]
    seen: NDArray[np.int64]
    floor: NDArray[np.float64]


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
        helpers=[pair_rate],
        fastmath={"contract", "nsz"},
    )
    return Loops(*(built[one.__name__] for one in functions))


class Grouped(NamedTuple):
    """A tree of events, and the moments of its groups at certain parameters."""

    tree: Tree
    times: NDArray[np.float64]
    places: NDArray[np.float64]  # zeros where events have none
    width: NDArray[np.float64]  # D of events
    weights: NDArray[np.float64]
    stats: NDArray[np.float64]  # (K, 12), see `group_moments`
    delta: NDArray[np.float64]  # (K,) of an event as wide as the group is on average
    theta: NDArray[np.float64]
    spatial: bool


def group(loops: Loops, events: Events, theta: NDArray[np.float64]) -> Grouped:
    """Groups of events with their moments at the parameters ``theta``."""
    times, places, delta, features = events
    n = len(times)
    flat = places if len(places) else np.zeros((n, 2))
    tree = _tree(loops, times, flat)
    spatial = len(places) > 0
    width = np.exp(theta[3] + theta[4] * delta)
    weights = np.exp(_log_weights(features, delta, theta, spatial))
    groups = len(tree.first)
    stats = np.zeros((groups, 12))
    loops.moments(tree.order, tree.first, tree.last, times, flat, width, weights, stats)
    own = np.zeros(groups)
    if spatial and abs(theta[4]) > LEAST_GAMMA:
        own = (np.log(np.maximum(stats[:, 4], 1e-300)) - theta[3]) / theta[4]
    elif spatial:
        total, mean = np.zeros(groups), np.zeros((groups, 1))
        loops.group_sums(*tree[:5], weights, np.ascontiguousarray(delta[:, None]), total, mean)
        own = mean[:, 0]
    return Grouped(tree, times, flat, width, weights, stats, own, theta, spatial)


def choose(
    loops: Loops, grouped: Grouped, asked: Asked, tolerance: float
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Which events and groups each query sums over: offsets (J + 1,), entries and factors."""
    at, where, seen, floor = asked
    near = where if len(where) else np.zeros((len(at), 2))
    rates = np.array(floor)
    counts = np.zeros(len(at), dtype=np.int64)
    none_i, none_f = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.float32)
    offsets = np.zeros(len(at) + 1, dtype=np.int64)
    tree, times, flat, width, weights, stats, _, theta, spatial = grouped
    given = (*tree, times, flat, width, weights, stats, at, near, seen, theta, spatial)
    # A loose pass finds the rates, the next one counts, the last one fills in.
    loose = np.full(len(at), np.inf)
    _share_out(loops.choose, len(at), *given, loose, 0, offsets, none_i, none_f, counts, rates)
    limits = tolerance * rates
    _share_out(loops.choose, len(at), *given, limits, 1, offsets, none_i, none_f, counts, rates)
    offsets[1:] = np.cumsum(counts)
    entries = np.zeros(int(offsets[-1]), dtype=np.int32)
    factors = np.zeros(int(offsets[-1]), dtype=np.float32)
    _share_out(loops.choose, len(at), *given, limits, 2, offsets, entries, factors, counts, rates)
    return offsets, entries, factors


def make_plan(
    loops: Loops, events: Events, asked: Asked, theta: NDArray[np.float64], tolerance: float
) -> Plan:
    """The plan of queries at the parameters ``theta``."""
    return plan_of(loops, group(loops, events, theta), asked, tolerance, events.delta)


def plan_of(
    loops: Loops, grouped: Grouped, asked: Asked, tolerance: float, delta: NDArray[np.float64]
) -> Plan:
    """The plan of queries for groups of events of these magnitudes."""
    stats = grouped.stats
    none = np.zeros((0, 2))
    return Plan(
        grouped.tree,
        *choose(loops, grouped, asked, tolerance),
        np.concatenate([grouped.times, stats[:, 1]]),
        np.concatenate([grouped.places, stats[:, 2:4]]) if grouped.spatial else none,
        np.concatenate([delta, grouped.delta]),
    )


def run(
    loops: Loops,
    plan: Plan,
    features: NDArray[np.float64],
    at: NDArray[np.float64],
    where: NDArray[np.float64],
    theta: NDArray[np.float64],
    differentiated: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
    features: NDArray[np.float64],
    delta: NDArray[np.float64],
    theta: NDArray[np.float64],
    spatial: bool,
) -> NDArray[np.float64]:
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


def _tree(loops: Loops, times: NDArray[np.float64], places: NDArray[np.float64]) -> Tree:
    n = len(times)
    levels = max(0, int(np.log2(max(n, 1) / BLOCK)) + 1) if n >= BLOCK else 0
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
        first[at : at + count], last[at : at + count] = edges[:-1], edges[1:]
        at += count
        begin += events
    radius = np.zeros((size, 2))
    total = loops.build(
        times, places, order, first, last, left, right, radius, np.zeros(size), LONG, at
    )
    first, last, left, right = (one[:total] for one in integers)
    return Tree(order, first, last, left, right, roots, radius[:total])


@no_type_check  # numba has its own types
def build_tree(times, places, order, first, last, left, right, radius, span, long, count):
    """Divide the ``count`` blocks at the median of the axis of the largest extent: in space
    relative to the whole, in time to ``long`` times the ``span`` of the block, since queries see a
    block when about as much time has passed. The number of groups.
    """
    n = len(times)
    blocks = count
    whole = np.ones(3)
    if n:
        whole[1] = max(places[:, 0].max() - places[:, 0].min(), 1e-300)
        whole[2] = max(places[:, 1].max() - places[:, 1].min(), 1e-300)
        spread = max(whole[1], whole[2])
        whole[1] = spread
        whole[2] = spread
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
        if k < blocks:
            span[k] = max(high[0] - low[0], 1e-300)
        if b - a > LEAF:
            whole[0] = long * span[k]
            extent = (high - low) / whole
            axis = np.argmax(extent)
            if extent[axis] > 0.0:
                part = order[a:b].copy()
                if axis == 0:
                    keys = times[part]
                else:
                    keys = places[part, axis - 1]
                sorting = np.argsort(keys, kind="mergesort")
                order[a:b] = part[sorting]
                half = (a + b) // 2
                left[k] = count
                right[k] = count + 1
                span[count] = span[k]
                span[count + 1] = span[k]
                first[count] = a
                last[count] = half
                first[count + 1] = half
                last[count + 1] = b
                count += 2
        k += 1
    return count


@no_type_check
def group_moments(order, first, last, times, places, width, weights, stats):
    """Weight, centroid (t, x, y) and mean width, variance of t, covariances tx, ty, and xx, xy, yy,
    and the variance of the width of every group.
    """
    for k in range(len(first)):
        w = 0.0
        t = 0.0
        x = 0.0
        y = 0.0
        d = 0.0
        for at in range(first[k], last[k]):
            i = order[at]
            w += weights[i]
            t += weights[i] * times[i]
            x += weights[i] * places[i, 0]
            y += weights[i] * places[i, 1]
            d += weights[i] * width[i]
        if w <= 0.0:
            continue
        t /= w
        x /= w
        y /= w
        d /= w
        stats[k, 0] = w
        stats[k, 1] = t
        stats[k, 2] = x
        stats[k, 3] = y
        stats[k, 4] = d
        for at in range(first[k], last[k]):
            i = order[at]
            u = weights[i] / w
            dt = times[i] - t
            dx = places[i, 0] - x
            dy = places[i, 1] - y
            stats[k, 5] += u * dt * dt
            stats[k, 6] += u * dt * dx
            stats[k, 7] += u * dt * dy
            stats[k, 8] += u * dx * dx
            stats[k, 9] += u * dx * dy
            stats[k, 10] += u * dy * dy
            stats[k, 11] += u * (width[i] - d) ** 2


@no_type_check
def pair_rate(i, j, times, places, width, weights, at, where, spatial, c, p, omega, q):
    """What event i adds to the sum of query j."""
    lag = at[j] - times[i]
    rate = weights[i] * np.exp(-p * np.log(lag + c) - omega * lag)
    if spatial:
        dx = where[j, 0] - places[i, 0]
        dy = where[j, 1] - places[i, 1]
        rate *= np.exp(-q * np.log(width[i] + dx * dx + dy * dy))
    return rate


@no_type_check
def choose_groups(
    begin,
    end,
    order,
    first,
    last,
    left,
    right,
    roots,
    radius,
    times,
    places,
    width,
    weights,
    stats,
    at,
    where,
    seen,
    theta,
    spatial,
    limits,
    stage,
    offsets,
    entries,
    factors,
    counts,
    rates,
):
    """Go through the tree for the queries from ``begin`` to before ``end``: stage 0 adds rough
    rates to ``rates``, stage 1 counts the entries of the plan, stage 2 fills them in.
    """
    c = theta[0]
    p = theta[1]
    omega = theta[2]
    q = theta[5]
    narrowest = width.min()
    waiting = np.zeros(DEEPEST, dtype=np.int64)
    n = len(times)
    for j in range(begin, end):
        open_groups = 0
        covered = 0
        for level in range(len(roots) - 1, -1, -1):
            size_of_block = BLOCK << level
            if covered + size_of_block <= seen[j]:
                waiting[open_groups] = roots[level] + covered // size_of_block
                open_groups += 1
                covered += size_of_block
        number = 0
        rough = 0.0
        for i in range(covered, seen[j]):
            if stage == 0:
                rough += pair_rate(
                    i, j, times, places, width, weights, at, where, spatial, c, p, omega, q
                )
            elif stage == 2:
                entries[offsets[j] + number] = i
                factors[offsets[j] + number] = 1.0
            number += 1
        while open_groups > 0:
            open_groups -= 1
            k = waiting[open_groups]
            accepted = False
            factor = 1.0
            if last[k] - first[k] > 1:
                lag = at[j] - stats[k, 1]
                soon = lag + c
                fine = radius[k, 0] <= 0.7 * soon
                term = 0.5 * (
                    p * (p + 1.0) / (soon * soon) + 2.0 * p * omega / soon + omega * omega
                )
                second = term * stats[k, 5]
                size = second
                near = 1.0
                if fine and spatial:
                    dx = where[j, 0] - stats[k, 2]
                    dy = where[j, 1] - stats[k, 3]
                    near = stats[k, 4] + dx * dx + dy * dy
                    fine = radius[k, 1] * radius[k, 1] <= 0.49 * near
                    gx = 2.0 * q * dx / near
                    gy = 2.0 * q * dy / near
                    decline = p / soon + omega
                    curve = 2.0 * q * (q + 1.0) / (near * near)
                    bend = q / near
                    cx = curve * dx * dx - bend
                    cy = curve * dy * dy - bend
                    cross = 2.0 * curve * dx * dy
                    second += cx * stats[k, 8] + cy * stats[k, 10] + cross * stats[k, 9]
                    # d/dt_i of the time factor and d/dx_i of the spatial one have equal signs.
                    second += decline * (gx * stats[k, 6] + gy * stats[k, 7])
                    wide = 0.25 * curve * stats[k, 11]
                    second += wide
                    size += (2.0 * q * (q + 1.0) / near) * (stats[k, 8] + stats[k, 10]) + wide
                if fine:
                    rate = stats[k, 0] * np.exp(-p * np.log(soon) - omega * lag)
                    if spatial:
                        rate *= np.exp(-q * np.log(near))
                    if stage == 0:
                        accepted = size < 0.5
                        rough += rate if accepted else 0.0
                    else:
                        accepted = rate * size * min(1.0, 4.0 * size) < limits[j] and size < 0.5
                    factor = 1.0 + second
                if stage > 0 and not accepted:
                    # However wide, a group whose events can add next to nothing is not opened.
                    soonest = max(lag - 2.0 * radius[k, 0], 0.0)
                    rate = stats[k, 0] * np.exp(-p * np.log(soonest + c) - omega * soonest)
                    if spatial:
                        dx = where[j, 0] - stats[k, 2]
                        dy = where[j, 1] - stats[k, 3]
                        gap = max(np.sqrt(dx * dx + dy * dy) - 2.0 * radius[k, 1], 0.0)
                        rate *= np.exp(-q * np.log(narrowest + gap * gap))
                    accepted = rate < NEGLIGIBLE * limits[j]
                    factor = 1.0
            if accepted:
                if stage == 2:
                    entries[offsets[j] + number] = n + k
                    factors[offsets[j] + number] = factor
                number += 1
            elif left[k] >= 0:
                waiting[open_groups] = left[k]
                waiting[open_groups + 1] = right[k]
                open_groups += 2
            else:
                for place in range(first[k], last[k]):
                    i = order[place]
                    if stage == 0:
                        rough += pair_rate(
                            i, j, times, places, width, weights, at, where, spatial, c, p, omega, q
                        )
                    elif stage == 2:
                        entries[offsets[j] + number] = i
                        factors[offsets[j] + number] = 1.0
                    number += 1
        if stage == 0:
            rates[j] += rough
        elif stage == 1:
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
