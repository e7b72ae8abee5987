r"""Loops of the seismic DAPP over pairs of an event and the events before it, compiled with numba.

With s the lag, r the distance and u the distance after the linear map of the anisotropy, in units
of exp(gamma delta_j / 2), event j contributes

    k_j(s, x) = kappa_j [ w_0 g(s) f(r; m_j)
                          + sum_kl W_kl b_jk e^(-s / tau_k) / tau_k  N(u; variance_l) ]
    Lambda_j(s) = int_0^s int over the region of k_j
    v_j(t) = (a_j p_j + N_j(t)) / (a_j + Lambda_j(t - t_j))

to the rate k_j v_j. N_j is the attention that later events have paid to j: event i distributes the
weights k_j v_j / lambda(t_i, x_i) over the events before it, the largest of them are kept and added
to N_j. Without frailty (infinite a_j) v_j is 1. ``etas`` holds w_0, c, p, q, 1 / tau and g(0), and
``tail`` decays and masses of the mixture of exponentials that g is integrated as. Exponents beyond
:data:`NEGLIGIBLE` count as infinite.

Axes: N events, K time scales, L spatial scales, R attention weights that are kept, J queries.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np

from fourpoint.kernels import installed, path_terms, report_missing
from fourpoint.kernels.compiling import machine_code
from fourpoint.kernels.path_terms import mixed, uniform, unit_exponential

NEGLIGIBLE = 32.0  # exp(-32) is 1.3e-14
FLOOR = 1e-3  # attention weights below are not kept
AT_PLACE, IN_REGION, INTEGRAL = 0, 1, 2  # what :func:`answer` is asked for
BLOCK = 128  # events whose bounds are summed


class Loops(NamedTuple):
    """Functions of this file as machine code."""

    features: Callable[..., None]
    sweep: Callable[..., None]
    answer: Callable[..., None]
    pairs: Callable[..., int]
    replay: Callable[..., float]
    simulate: Callable[..., int]


@cache
def load() -> Loops:
    """The entries as machine code, cached on disk between runs if possible; as plain functions,
    with a warning, where numba is not installed.
    """
    if not installed("numba"):
        report_missing("numba")
        return plain()
    terms = (fading, kernel_value, expected, ground_rate, background_at, integral_over, attend)
    drawing = (inside_polygon, share_inside, at_source, current_rate, normal_pair, put_bound)
    helpers = (mixed, uniform, unit_exponential, *terms, *drawing, draw_place)
    entries = (features, sweep, answer, pairs, replay, simulate)
    code = machine_code((path_terms, sys.modules[__name__]), entries, helpers)
    return Loops(**code)


def plain() -> Loops:
    """The entries as they stand here."""
    return Loops(features, sweep, answer, pairs, replay, simulate)


@no_type_check  # here and below: numba has its own types
def features(which, times, moved, narrow, boost, fast, variances, found):
    """sum_j kappa_j b_jk exp(-s / tau_k) / tau_k N(u; variance_l) at the events of these numbers,
    into a row of (J, K L) ``found`` for each.
    """
    count = len(fast)
    wide = len(variances)
    time_part, faded = np.zeros(count), np.zeros(count)
    for n in range(len(which)):
        i = which[n]
        row = found[n]
        for j in range(i):
            dx = moved[i, 0] - moved[j, 0]
            dy = moved[i, 1] - moved[j, 1]
            square = 0.5 * (dx * dx + dy * dy) * narrow[j]
            if square > NEGLIGIBLE * variances[wide - 1]:
                continue
            oldest = fading(times[i] - times[j], fast, faded)
            for k in range(oldest, count):
                time_part[k] = boost[j, k] * fast[k] * faded[k]
            for scale in range(wide - 1, -1, -1):
                power = square / variances[scale]
                if power > NEGLIGIBLE:
                    break
                near = math.exp(-power) / (2 * math.pi * variances[scale]) * narrow[j]
                for k in range(oldest, count):
                    row[k * wide + scale] += time_part[k] * near


@no_type_check
def fading(lag, fast, faded):
    """exp(-s / tau_k) of the slow time scales, into ``faded``; the number of the first of them, the
    faster ones being negligible. ``fast`` is 1 / tau_k, descending.
    """
    oldest = len(fast)
    while oldest > 0 and lag * fast[oldest - 1] < NEGLIGIBLE:
        oldest -= 1
        faded[oldest] = math.exp(-lag * fast[oldest])
    return oldest


@no_type_check
def kernel_value(
    j, lag, plain, square, kappa, spread, narrow, boost, etas, fast, variances, spectrum, faded
):
    """k_j at a ``lag``, with the ``plain`` squared distance and half the ``square`` of u; and the
    result of :func:`fading`, or -1 if it was not needed.
    """
    total = 0.0
    if etas[0] > 0:
        q = etas[3]
        logs = -etas[2] * math.log1p(lag / etas[1]) - etas[4] * lag
        logs -= q * math.log1p(plain / spread[j])
        peak = etas[5] * (q - 1) / (math.pi * spread[j])
        total = etas[0] * kappa[j] * peak * math.exp(logs)
    count = len(fast)
    wide = len(variances)
    if wide == 0 or square > NEGLIGIBLE * variances[wide - 1]:
        return total, -1
    oldest = fading(lag, fast, faded)
    for scale in range(wide - 1, -1, -1):
        power = square / variances[scale]
        if power > NEGLIGIBLE:
            break
        weight = 0.0
        for k in range(oldest, count):
            weight += faded[k] * boost[j, k] * fast[k] * spectrum[k, scale]
        total += weight * math.exp(-power) / (2 * math.pi * variances[scale]) * narrow[j]
    return total, oldest


@no_type_check
def expected(j, lag, inside, ground, etas, tail, fast, oldest, faded):
    """Lambda_j; ``oldest`` and ``faded`` as :func:`fading` left them for this lag."""
    total = 0.0
    if etas[0] > 0:
        for k in range(len(tail)):
            total -= tail[k, 1] * math.expm1(-lag * tail[k, 0])
        total *= etas[0] * inside[j]
    for k in range(oldest):
        total += ground[j, k]
    for k in range(oldest, len(fast)):
        total += ground[j, k] * (1.0 - faded[k])
    return total


@no_type_check
def ground_rate(j, lag, inside, ground, etas, tail, fast, oldest, faded):
    """The derivative of Lambda_j."""
    total = 0.0
    if etas[0] > 0:
        for k in range(len(tail)):
            total += tail[k, 1] * tail[k, 0] * math.exp(-lag * tail[k, 0])
        total *= etas[0] * inside[j]
    for k in range(oldest, len(fast)):
        total += ground[j, k] * fast[k] * faded[k]
    return total


@no_type_check
def background_at(x, y, end, static, places, fresh, variance, origin, base):
    """mu(x, t): the uniform part, and the density of training events (``static``) and of the
    ones from number ``fresh`` to before ``end``, each with its probability of being background.
    ``variance`` has the variance of each kernel and its share in the region.

    base: the uniform density, the rate of the kernels and the weight of the training events.
    """
    weight = base[2]
    total = base[2] * static
    for j in range(fresh, end):
        dx = x - places[j, 0]
        dy = y - places[j, 1]
        power = 0.5 * (dx * dx + dy * dy) / variance[j, 0]
        weight += origin[j]
        if power < NEGLIGIBLE:
            total += origin[j] * math.exp(-power) / (2 * math.pi * variance[j, 0] * variance[j, 1])
    return base[0] + (base[1] * total / weight if weight > 0 else 0.0)


@no_type_check
def integral_over(
    a, b, end, times, inside, ground, shape, given, counts, etas, tail, fast, faded, reached, until
):
    """The integral over time and region of what events before number ``end`` trigger. ``reached``
    is Lambda_j at the time ``until``, which is kept for the next interval, and becomes that at b.
    """
    total = 0.0
    for j in range(end):
        if a != until or j == end - 1:
            oldest = fading(a - times[j], fast, faded)
            reached[j] = expected(j, a - times[j], inside, ground, etas, tail, fast, oldest, faded)
        oldest = fading(b - times[j], fast, faded)
        after = expected(j, b - times[j], inside, ground, etas, tail, fast, oldest, faded)
        more = after - reached[j]
        if shape[j] == np.inf:
            total += more
        else:
            own = shape[j] * given[j] + counts[j]
            total += own * math.log1p(more / (shape[j] + reached[j]))
        reached[j] = after
    return total


@no_type_check
def attend(
    i,
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
    fresh,
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
    value,
    faded,
):
    """The rate at event ``i``, its attention, prior and background probability; the attention is
    added to ``counts``. ``static`` is the density of the background's kernels there.
    """
    kept = owner.shape[1]
    x, y = places[i, 0], places[i, 1]
    background = background_at(x, y, i, static, places, min(fresh, i), variance, origin, base)
    total = background
    largest = 0.0
    for j in range(i):
        dx = x - places[j, 0]
        dy = y - places[j, 1]
        ux = moved[i, 0] - moved[j, 0]
        uy = moved[i, 1] - moved[j, 1]
        lag = times[i] - times[j]
        own, oldest = kernel_value(
            j,
            lag,
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
        if own > 0 and shape[j] < np.inf:
            if oldest < 0:
                oldest = fading(lag, fast, faded)
            due = expected(j, lag, inside, ground, etas, tail, fast, oldest, faded)
            own *= (shape[j] * given[j] + counts[j]) / (shape[j] + due)
        value[j] = own
        total += own
        largest = max(largest, own)
    rates[i] = total
    origin[i] = background / total
    for n in range(kept):
        owner[i, n] = -1
        share[i, n] = 0.0
    if largest >= FLOOR * total:
        for j in range(i):
            weight = value[j] / total
            if weight < FLOOR or weight <= share[i, kept - 1]:
                continue
            n = kept - 1
            while n > 0 and share[i, n - 1] < weight:
                share[i, n] = share[i, n - 1]
                owner[i, n] = owner[i, n - 1]
                n -= 1
            share[i, n] = weight
            owner[i, n] = j
    logs = 0.0
    for n in range(kept):
        j = owner[i, n]
        if j < 0 or shape[j] == np.inf:
            continue
        lag = times[i] - times[j]
        oldest = fading(lag, fast, faded)
        due = expected(j, lag, inside, ground, etas, tail, fast, oldest, faded)
        factor = (shape[j] * given[j] + counts[j]) / (shape[j] + due)
        logs += share[i, n] * math.log(factor)
    for n in range(kept):
        if owner[i, n] >= 0:
            counts[owner[i, n]] += share[i, n]
    given[i] = math.exp(inherit * logs)


@no_type_check
def sweep(
    begin,
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
    fresh,
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
    """Rates at the events from number ``begin`` on, their attention (``owner`` -1 where there is
    none), priors ``given`` and background probabilities ``origin``; ``counts`` is N_j.
    """
    faded = np.zeros(len(fast))
    value = np.zeros(len(times))
    for i in range(begin, len(times)):
        attend(
            i,
            times,
            places,
            moved,
            kappa,
            spread,
            narrow,
            boost,
            inside,
            ground,
            static[i],
            fresh,
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
            value,
            faded,
        )


@no_type_check
def answer(
    kind,
    asked,
    ends,
    where,
    moved_where,
    static_where,
    seen,
    times,
    places,
    moved,
    kappa,
    spread,
    narrow,
    boost,
    inside,
    ground,
    fresh,
    variance,
    base,
    shape,
    etas,
    tail,
    fast,
    variances,
    spectrum,
    given,
    owner,
    share,
    origin,
    counts,
    found,
):
    """Rates per km^2 at places, rates in the region, or integrals over [asked, ends], of queries in
    the order of ``seen``, into (J,) ``found``. The background's part of the last two is left out.
    """
    faded = np.zeros(len(fast))
    reached = np.zeros(len(times))
    position = 0
    until = -np.inf
    for query in range(len(asked)):
        while position < seen[query]:
            for n in range(owner.shape[1]):
                if owner[position, n] >= 0:
                    counts[owner[position, n]] += share[position, n]
            position += 1
        if kind == INTEGRAL:
            found[query] = integral_over(
                asked[query],
                ends[query],
                position,
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
                reached,
                until,
            )
            until = ends[query]
            continue
        total = 0.0
        if kind == AT_PLACE:
            total = background_at(
                where[query, 0],
                where[query, 1],
                position,
                static_where[query],
                places,
                min(fresh, position),
                variance,
                origin,
                base,
            )
        for j in range(position):
            lag = asked[query] - times[j]
            if kind == IN_REGION:
                oldest = fading(lag, fast, faded)
                own = ground_rate(j, lag, inside, ground, etas, tail, fast, oldest, faded)
            else:
                dx = where[query, 0] - places[j, 0]
                dy = where[query, 1] - places[j, 1]
                ux = moved_where[query, 0] - moved[j, 0]
                uy = moved_where[query, 1] - moved[j, 1]
                own, oldest = kernel_value(
                    j,
                    lag,
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
            if own > 0 and shape[j] < np.inf:
                if oldest < 0:
                    oldest = fading(lag, fast, faded)
                due = expected(j, lag, inside, ground, etas, tail, fast, oldest, faded)
                own *= (shape[j] * given[j] + counts[j]) / (shape[j] + due)
            total += own
        found[query] = total


@no_type_check
def pairs(
    first,
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
    parents,
    values,
    dues,
    offsets,
    rest,
):
    """The pairs whose k_j is at least ``least`` of the rate without frailty, event by event from
    number ``first`` on: parents, k_j and Lambda_j; the sum of the others goes into ``rest``. The
    number of pairs, or -1 where they do not fit into ``parents``.
    """
    faded = np.zeros(len(fast))
    events = len(times)
    value = np.zeros(events)
    used = 0
    for i in range(first, events):
        total = background[i]
        for j in range(i):
            dx = places[i, 0] - places[j, 0]
            dy = places[i, 1] - places[j, 1]
            ux = moved[i, 0] - moved[j, 0]
            uy = moved[i, 1] - moved[j, 1]
            value[j], _ = kernel_value(
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
            total += value[j]
        rest[i] = 0.0
        for j in range(i):
            if value[j] < least * total:
                rest[i] += value[j]
                continue
            if used == len(parents):
                return -1
            parents[used] = j
            values[used] = value[j]
            lag = times[i] - times[j]
            oldest = fading(lag, fast, faded)
            dues[used] = expected(j, lag, inside, ground, etas, tail, fast, oldest, faded)
            used += 1
        offsets[i + 1] = used
    return used


@no_type_check
def replay(
    first,
    scored,
    parents,
    values,
    dues,
    offsets,
    rest,
    background,
    level,
    delta,
    final,
    early,
    strength,
    growth,
    inherit,
    scale,
    given,
    counts,
    rates,
):
    """The integral of the triggered rate over the scored time, from pairs of :func:`pairs`; rates
    at events go into ``rates``. Events before ``first`` pay no attention; those before ``scored``
    are not scored.

    final, early: Lambda_j at the end and at the beginning of the scored time, 0 for later events.
    strength, growth: a_j = strength exp(growth delta_j). scale: of all k_j; level: of background.
    """
    events = len(rates)
    total = 0.0
    for j in range(events):
        given[j] = 1.0
        counts[j] = 0.0
    for i in range(first, events):
        rate = level * background[i] + scale * rest[i]
        for n in range(offsets[i], offsets[i + 1]):
            j = parents[n]
            a = strength * math.exp(growth * delta[j])
            rate += scale * values[n] * (a * given[j] + counts[j]) / (a + scale * dues[n])
        rates[i] = rate
        logs = 0.0
        for n in range(offsets[i], offsets[i + 1]):
            j = parents[n]
            a = strength * math.exp(growth * delta[j])
            factor = (a * given[j] + counts[j]) / (a + scale * dues[n])
            weight = scale * values[n] * factor / rate
            if weight < FLOOR:
                continue
            logs += weight * math.log(factor)
            counts[j] += weight
            low = dues[n]
            if i < scored:
                low = early[j]
            total += weight * math.log1p(scale * (final[j] - low) / (a + scale * low))
        given[i] = math.exp(inherit * logs)
    for j in range(events):
        a = strength * math.exp(growth * delta[j])
        more = scale * (final[j] - early[j])  # log1p: a may be so large that a + more is a
        total += a * given[j] * math.log1p(more / (a + scale * early[j]))
    return total


@no_type_check
def inside_polygon(x, y, corners):
    """Whether a place lies in a polygon."""
    within = False
    last = len(corners) - 1
    for v in range(len(corners)):
        ax, ay = corners[last, 0], corners[last, 1]
        bx, by = corners[v, 0], corners[v, 1]
        if (ay > y) != (by > y) and x < ax + (y - ay) * (bx - ax) / (by - ay):
            within = not within
        last = v
    return within


@no_type_check
def share_inside(x, y, width, q, corners, nodes):
    """`ops.regions.mass` at one place: of the power law, or of a normal density where q is 0."""
    total = 0.0
    for v in range(len(corners)):
        w = (v + 1) % len(corners)
        ex = corners[w, 0] - corners[v, 0]
        ey = corners[w, 1] - corners[v, 1]
        length = math.sqrt(ex * ex + ey * ey)
        ex /= length
        ey /= length
        ox = x - corners[v, 0]
        oy = y - corners[v, 1]
        begin = -(ox * ex + oy * ey)
        h = ex * oy - ey * ox
        scale = math.sqrt(width + h * h)
        low = math.asinh(begin / scale)
        high = math.asinh((begin + length) / scale)
        edge = 0.0
        for k in range(len(nodes)):
            u = low + (high - low) * nodes[k, 0]
            along = scale * math.sinh(u)
            square = max(h * h + along * along, 1e-300)
            if q == 0:
                within = -math.expm1(-0.5 * square / width)
            else:
                within = -math.expm1((1 - q) * math.log1p(square / width))
            edge += nodes[k, 1] * h * within / square * scale * math.cosh(u)
        total += edge * (high - low)
    return total / (2 * math.pi)


@no_type_check
def at_source(x, y, sources, peaks):
    """The density of the background's kernels at a place, and the variance of the nearest one."""
    density = 0.0
    nearest = np.inf
    variance = 1.0
    for k in range(len(sources)):
        dx = x - sources[k, 0]
        dy = y - sources[k, 1]
        square = dx * dx + dy * dy
        power = 0.5 * square / sources[k, 2]
        if power < NEGLIGIBLE:
            density += peaks[k] * math.exp(-power)
        if square < nearest:
            nearest = square
            variance = sources[k, 2]
    return density, variance


@no_type_check
def current_rate(j, time, times, inside, ground, shape, given, counts, etas, tail, fast, faded):
    """The rate in the region that event j triggers at a time."""
    lag = time - times[j]
    oldest = fading(lag, fast, faded)
    rate = ground_rate(j, lag, inside, ground, etas, tail, fast, oldest, faded)
    if shape[j] < np.inf:
        due = expected(j, lag, inside, ground, etas, tail, fast, oldest, faded)
        rate *= (shape[j] * given[j] + counts[j]) / (shape[j] + due)
    return rate


@no_type_check
def normal_pair(random):
    """Two independent standard normal numbers."""
    radius = math.sqrt(2 * unit_exponential(random))
    angle = 2 * math.pi * uniform(random)
    return radius * math.cos(angle), radius * math.sin(angle)


@no_type_check
def put_bound(j, value, bounds, blocks):
    """Set the bound of event j and the sum of its block."""
    blocks[j // BLOCK] += value - bounds[j]
    bounds[j] = value


@no_type_check
def draw_place(
    j,
    lag,
    size,
    places,
    spread,
    narrow,
    inside,
    ground,
    fresh,
    variance,
    origin,
    base,
    etas,
    tail,
    fast,
    variances,
    spectrum,
    sources,
    passed,
    back,
    corners,
    faded,
    random,
):
    """A place in the region: of an offspring of event j at a ``lag``, or of the background (-1)."""
    if j < 0:
        low_x, high_x = corners[0, 0], corners[0, 0]
        low_y, high_y = corners[0, 1], corners[0, 1]
        for v in range(1, len(corners)):
            low_x, high_x = min(low_x, corners[v, 0]), max(high_x, corners[v, 0])
            low_y, high_y = min(low_y, corners[v, 1]), max(high_y, corners[v, 1])
        uniform_share = base[3] / (base[3] + base[1])
        if len(sources) == 0 or uniform(random) < uniform_share:
            while True:
                x = low_x + (high_x - low_x) * uniform(random)
                y = low_y + (high_y - low_y) * uniform(random)
                if inside_polygon(x, y, corners):
                    return x, y
        newer = 0.0
        for k in range(fresh, size):
            newer += origin[k]
        level = uniform(random) * (base[2] + newer)
        if level < base[2]:
            index = min(np.searchsorted(passed, level / base[2] * passed[-1]), len(sources) - 1)
            cx, cy, width = sources[index, 0], sources[index, 1], sources[index, 2]
        else:
            level -= base[2]
            index = fresh
            while index < size - 1 and level >= origin[index]:
                level -= origin[index]
                index += 1
            cx, cy, width = places[index, 0], places[index, 1], variance[index, 0]
        while True:
            a, b = normal_pair(random)
            x = cx + math.sqrt(width) * a
            y = cy + math.sqrt(width) * b
            if inside_polygon(x, y, corners):
                return x, y
    oldest = fading(lag, fast, faded)
    power = 0.0
    if etas[0] > 0:
        for k in range(len(tail)):
            power += tail[k, 1] * tail[k, 0] * math.exp(-lag * tail[k, 0])
        power *= etas[0] * inside[j]
    total = power
    for k in range(oldest, len(fast)):
        total += ground[j, k] * fast[k] * faded[k]
    level = uniform(random) * total - power
    scale = -1
    if level >= 0:
        scale = min(oldest, len(fast) - 1)
        while scale < len(fast) - 1:
            level -= ground[j, scale] * fast[scale] * faded[scale]
            if level < 0:
                break
            scale += 1
    while True:
        a, b = normal_pair(random)
        if scale < 0:
            square = spread[j] * math.expm1(unit_exponential(random) / (etas[3] - 1))
            norm = math.sqrt(square / (a * a + b * b))
            dx, dy = a * norm, b * norm
        else:
            whole = 0.0
            for n in range(len(variances)):
                whole += spectrum[scale, n]
            level = uniform(random) * whole
            n = 0
            while n < len(variances) - 1 and level >= spectrum[scale, n]:
                level -= spectrum[scale, n]
                n += 1
            deviation = math.sqrt(variances[n] / narrow[j])
            dx = deviation * (back[0, 0] * a + back[0, 1] * b)
            dy = deviation * (back[1, 0] * a + back[1, 1] * b)
        x = places[j, 0] + dx
        y = places[j, 1] + dy
        if inside_polygon(x, y, corners):
            return x, y


@no_type_check
def simulate(
    keys,
    start,
    stop,
    known,
    times,
    places,
    moved,
    kappa,
    spread,
    narrow,
    boost,
    inside,
    ground,
    fresh,
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
    drawn,
    stretch,
    back,
    corners,
    moved_corners,
    sources,
    peaks,
    passed,
    nodes,
    rows,
    found,
    chosen,
):
    """Paths after a common history of ``known`` events, whose arrays have room for more, by
    thinning with a bound for every event: its rate falls until another event attends to it.

    drawn: magnitude above m_c (0), kappa (1), D (2), exp(-gamma delta) (3), a_j (4) and exp(beta_k
    delta) (5 on) of the events that simulated ones take their features from; ``chosen`` says which.
    base: as in :func:`background_at`, and the rate of the uniform background. Rows of paths, times
    and places go into ``rows`` and ``found``. The number of events, or -1 if there are too many.
    """
    room = len(times)
    first_counts = counts.copy()
    faded = np.zeros(len(fast))
    value = np.zeros(room)
    bounds = np.zeros(room)
    blocks = np.zeros(room // BLOCK + 1)
    random = np.zeros(1, dtype=np.uint64)
    quiet = base[3] + base[1]
    used = 0
    begun = np.nan
    opening = np.zeros(known)
    for path in range(len(keys)):
        random[0] = keys[path]
        time = start[path]
        size = known
        counts[:] = first_counts
        if time != begun:
            begun = time
            for j in range(known):
                opening[j] = current_rate(
                    j, time, times, inside, ground, shape, given, counts, etas, tail, fast, faded
                )
        blocks[:] = 0.0
        for j in range(known):
            bounds[j] = opening[j] * (1 + 1e-9)
            blocks[j // BLOCK] += bounds[j]
        while True:
            total = quiet
            last = (size + BLOCK - 1) // BLOCK
            for n in range(last):
                total += blocks[n]
            time += unit_exponential(random) / total
            if time >= stop[path]:
                break
            level = uniform(random) * total - quiet
            parent = -1
            if level >= 0:
                n = 0
                while n < last - 1 and level >= blocks[n]:
                    level -= blocks[n]
                    n += 1
                parent = n * BLOCK
                final = min(size, parent + BLOCK) - 1
                while parent < final and level >= bounds[parent]:
                    level -= bounds[parent]
                    parent += 1
                rate = current_rate(
                    parent,
                    time,
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
                accepted = uniform(random) * bounds[parent] < rate
                put_bound(parent, rate * (1 + 1e-9), bounds, blocks)
                if not accepted:
                    continue
            if size == room or used == len(rows):
                return -1
            lag = 0.0
            if parent >= 0:
                lag = time - times[parent]
            x, y = draw_place(
                parent,
                lag,
                size,
                places,
                spread,
                narrow,
                inside,
                ground,
                min(fresh, size),
                variance,
                origin,
                base,
                etas,
                tail,
                fast,
                variances,
                spectrum,
                sources,
                passed,
                back,
                corners,
                faded,
                random,
            )
            row = min(int(uniform(random) * len(drawn)), len(drawn) - 1)
            rows[used] = path
            found[used, 0], found[used, 1], found[used, 2] = time, x, y
            chosen[used] = row
            used += 1
            times[size] = time
            places[size, 0], places[size, 1] = x, y
            moved[size, 0] = stretch[0, 0] * x + stretch[0, 1] * y
            moved[size, 1] = stretch[1, 0] * x + stretch[1, 1] * y
            kappa[size] = drawn[row, 1]
            spread[size] = drawn[row, 2]
            narrow[size] = drawn[row, 3]
            shape[size] = drawn[row, 4]
            inside[size] = 0.0
            if etas[0] > 0:
                inside[size] = kappa[size] * share_inside(
                    x, y, spread[size], etas[3], corners, nodes
                )
            for k in range(len(fast)):
                boost[size, k] = kappa[size] * drawn[row, 5 + k]
                ground[size, k] = 0.0
            for n in range(len(variances)):
                mass = share_inside(
                    moved[size, 0],
                    moved[size, 1],
                    variances[n] / narrow[size],
                    0.0,
                    moved_corners,
                    nodes,
                )
                for k in range(len(fast)):
                    ground[size, k] += boost[size, k] * mass * spectrum[k, n]
            density, own = at_source(x, y, sources, peaks)
            variance[size, 0] = own
            variance[size, 1] = share_inside(x, y, own, 0.0, corners, nodes)
            counts[size] = 0.0
            attend(
                size,
                times,
                places,
                moved,
                kappa,
                spread,
                narrow,
                boost,
                inside,
                ground,
                density,
                fresh,
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
                value,
                faded,
            )
            for n in range(owner.shape[1]):
                j = owner[size, n]
                if j >= 0:
                    rate = current_rate(
                        j,
                        time,
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
                    put_bound(j, rate * (1 + 1e-9), bounds, blocks)
            size += 1
            rate = current_rate(
                size - 1,
                time,
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
            bounds[size - 1] = 0.0
            put_bound(size - 1, rate * (1 + 1e-9), bounds, blocks)
    return used
