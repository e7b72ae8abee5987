r"""The loops of `dapp_step` row by row, compiled with numba:
states moved, read and integrated.

They are plain Python functions, slow but correct as they stand, and tests compare
them with the model itself. One row stays in the processor's cache from its first node to its last,
and the interpreter is not locked, so that threads share the rows. Sinusoids are formed by
polynomials, since a call of sin or exp keeps a processor from taking several modes at a time:

    sin(2 pi u) = u P(u^2),  |u| <= 1/4,  2^-r = Q(r),  |r| <= 1/2,  (Taylor,
        to the last digit of the precision)

with u the cycles theta d / 2 pi less the nearest whole number, a difference that is not rounded.
Exponentials and logarithms of rates are polynomials for the same reason.

In float32 the read-outs after an event are Chebyshev series in time. Their coefficients are linear
in the states, so that the product of a matrix, which belongs to the model, with the states replaces
the states at all nodes (:class:`Series`). Axes as in `dapp_step`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels.compiling import machine_code

LINKS = ("identity", "exp", "softplus")
PANEL = 8  # steps of a panel
SINE = tuple(
    (-1) ** k * (2 * math.pi) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(11)
)
POWER = tuple((-math.log(2)) ** k / math.factorial(k) for k in range(14))  # of 2^-r
DEEPEST = 40  # cuts in two after which a rate counts as one that cannot be integrated
SINGLE_MOST = 500.0  # halvings: float32 has fewer, float64 more
FASTMATH = {"reassoc", "contract", "nsz"}
GROUP = 4  # coefficients of a series that are formed in one pass over the modes
LOG2_E = 1 / math.log(2)
LOWEST, HIGHEST = -708.0, 709.0  # between which exp is a normal number


class Loops(NamedTuple):
    """Functions of this file as machine code."""

    reach: Callable[..., int]
    absorb: Callable[..., None]
    scores: Callable[..., None]
    forget: Callable[..., None]
    follow: Callable[..., int]


@cache
def load() -> Loops:
    """The five as machine code, cached on disk between runs if possible."""
    turning = (single_turns, double_turns, turns, moved, read_out, eight)
    expanding = (four, coefficients, series_values)
    rating = (exponential, log_one_plus, curves, rates, log_rate, integrated, cut)
    loops = (*turning, *expanding, *rating, stepped_values, integral_over, moved_on, follow_rows)
    entries = (reach, absorb, scores, forget, follow)
    code = machine_code(
        (sys.modules[__name__],), entries, (workspace,), loops=loops, fastmath=FASTMATH
    )
    return Loops(**code)


class Sinusoids(NamedTuple):
    """Modes as :func:`turns` wants them: what each does per unit of time, in the precision that is
    meant.
    """

    cycles: NDArray[Any]  # (J,)
    halvings: NDArray[Any]  # (J,)
    most: float  # halvings that count as all, since numbers that are no longer normal are slow


class Shape(NamedTuple):
    """How rates follow from read-outs: splines, bias and link, in float64; (M,) where nothing is
    said.
    """

    cubics: NDArray[
        np.float64
    ]  # (intervals + 1, 2 M, 4): powers of log mu, then of the drift; the last ones are constant
    cell: float  # width of an interval, in the user's unit; infinite without splines
    length: float  # the last knot; 0 without splines
    splined_base: bool
    level: NDArray[np.float64]  # mu where it is no spline
    bias: NDArray[np.float64]
    size: NDArray[np.float64]
    link: int  # of LINKS
    log_unit: float


class Series(NamedTuple):
    """Read-outs of the states at an event as Chebyshev series in the time since then, a piece of
    time after the other.

    In piece p, z_m = sum_n c_n T_n(u) with u from -1 to 1 and c_n = sum_j Re[C_nj S_j]. The modes
    are blocks of equal size (heads), and those of block b take ``terms[p, b]`` coefficients, so
    that slow heads take few. Without pieces nothing is expanded.
    """

    ends: NDArray[np.float64]  # (P + 1,): where pieces begin and end, in the model's unit
    terms: NDArray[np.int64]  # (P, B): multiples of GROUP
    first: NDArray[
        np.int64
    ]  # (P, B): the row of the table in which the coefficients of a block begin, mark by mark
    table: NDArray[Any]  # (rows, 2, J / B): Re C, and -Im C
    error: float  # of the size of a mode


class Care(NamedTuple):
    """How integrals are formed and when they are good enough; `dapp_step` says how each is
    chosen.
    """

    rule: NDArray[
        np.float64
    ]  # (5, PANEL + 1): to the mean of a panel and its last four Legendre coefficients
    speed: float  # panels per unit of time
    panels: int  # the most of them
    edge: float
    allowed: float
    relative: float


def sinusoids(frequency: NDArray[Any], decay: NDArray[Any], kind: Any) -> Sinusoids:
    """Modes exp((-decay + i frequency) d), in precision ``kind``."""
    cycles, halvings = (
        np.ascontiguousarray(x, dtype=kind)
        for x in (frequency / (2 * math.pi), decay / math.log(2))
    )
    return Sinusoids(cycles, halvings, -6.0 - float(np.finfo(kind).minexp))


@no_type_check  # here and below: numba has its own types
def reach(
    state,
    rows,
    since,
    gap,
    scale,
    sinusoids,
    read,
    series,
    shape,
    care,
    after,
    logs,
    integral,
    fault,
):
    """Rows moved on by ``gap``: (R, J) after, (R, M) logs and (R,) integral come out, as from
    `dapp_step.Steps.reach`.

    ``rows`` says which of ``state`` they are. What comes back is -1, or the place among them of a
    rate that cannot be integrated, with left end, width and largest rate of the stretch in
    ``fault``.
    """
    space, z, total, stack, work = workspace(state, read, series, care)
    ready = np.zeros(1, dtype=np.int64)
    kept = np.empty((1, len(read), 0, 0), dtype=read.dtype)
    x = space[0]
    y = space[1]
    for r in range(len(rows)):
        own = state[rows[r]]
        value = integral[r : r + 1]
        left = since[r]
        width = gap[r]
        ready[0] = 0
        pieces = coefficients(own, width / scale, series, work[2], work[3], work[1], ready, kept, 0)
        if not integral_over(
            own, left, width, pieces, scale, sinusoids, read, series, shape, care, space, z, total,
            stack, work, value, fault,
        ):  # fmt: skip
            return r
        moved_on(own, left, width, scale, sinusoids, read, shape, space, logs[r])
        for j in range(len(x)):
            after[r, j] = complex(x[j], y[j])
    return -1


@no_type_check
def follow(
    state, rows, at, pending, likelihood, count, start, times, marks, scale, sinusoids, read,
    series, shape, care, constant, trend, largest, ready, kept, place, copied, old, density, gap,
    rate, shares, logs, fault,
):  # fmt: skip
    """Score events one after the other and absorb each: (n,) density, gap and rate come out, and
    (n, M) shares of the types in the rate unless there is no room for them.

    Event i belongs to row ``rows[i]`` of ``state``, and of (R,) ``at``, the time of its last event
    or advance, ``pending``, the integral since its last event, ``likelihood`` and ``count``. What
    comes back is -1, or the place of an event that cannot be scored: its rate cannot be integrated
    (fault[3] is 0, and fault[:3] as from :func:`reach`), or a log-rate is not below ``largest`` or
    the integral not finite (fault[3] is 1, the integral is fault[0], and (M,) ``logs`` are the
    log-rates). Events before it have been absorbed.

    Where a mark is negative there is no event: gap[i] becomes the integral from ``at`` to the time,
    and nothing else changes. ``ready`` and ``kept`` hold the coefficients of :func:`coefficients`
    from call to call. Integrals up to an event and up to any other time are formed by one piece of
    code, so that they are equal to the last bit, whether coefficients were kept or not. Where
    place[i] is not negative the states before event i become row place[i] of ``old``, and
    copied[place[i]] is true.
    """
    space, z, total, stack, work = workspace(state, read, series, care)
    return follow_rows(
        state, rows, at, pending, likelihood, count, start, times, marks, scale, sinusoids, read,
        series, shape, care, constant, trend, largest, ready, kept, place, copied, old, density,
        gap, rate, shares, logs, fault, space, z, total, stack, work, np.empty(1),
    )  # fmt: skip


@no_type_check
def follow_rows(
    state, rows, at, pending, likelihood, count, start, times, marks, scale, sinusoids, read,
    series, shape, care, constant, trend, largest, ready, kept, place, copied, old, density, gap,
    rate, shares, logs, fault, space, z, total, stack, work, value,
):  # fmt: skip
    """:func:`follow`, given a workspace.

    The series of the states after an event is formed at once, while they are in the processor's
    cache, up to the end of its first piece. The same call serves an event whose series is missing
    (after a restart, say) or too short: a second one would be other machine code, whose sums may
    differ in the last bit.
    """
    x = space[0]
    y = space[1]
    i = 0
    absorbed = False
    while i < len(rows):
        row = rows[i]
        own = state[row]
        width = 0.0 if absorbed else times[i] - at[row]
        pieces = coefficients(
            own, width / scale, series, work[2], work[3], work[1], ready, kept, row
        )
        if absorbed:
            absorbed = False
            i += 1
            continue
        now = times[i]
        mark = marks[i]
        since = at[row] - start
        if not integral_over(
            own, since, width, pieces, scale, sinusoids, read, series, shape, care, space, z,
            total, stack, work, value, fault,
        ):  # fmt: skip
            fault[3] = 0.0
            return i
        if mark < 0:
            gap[i] = value[0]
            i += 1
            continue
        moved_on(own, since, width, scale, sinusoids, read, shape, space, logs)
        rates = 0.0
        sound = np.isfinite(value[0])
        for m in range(len(logs)):
            rates += np.exp(logs[m])
            sound = sound and logs[m] < largest
        if not sound:
            fault[0], fault[3] = value[0], 1.0
            return i
        gap[i], rate[i] = pending[row] + value[0], rates
        density[i] = logs[mark] - gap[i]
        for m in range(shares.shape[1]):
            shares[i, m] = np.exp(logs[m]) / rates
        if place[i] >= 0:
            copied[place[i]] = True
            for j in range(len(own)):
                old[place[i], j] = own[j]
        d = x.dtype.type((now - start) / scale)
        for j in range(len(own)):
            first = constant[mark, j]
            more = trend[mark, j]
            own[j] = complex(x[j] + first.real + d * more.real, y[j] + first.imag + d * more.imag)
        ready[row] = 0
        at[row], pending[row] = now, 0.0
        likelihood[row] += logs[mark] - value[0]
        count[row] += 1
        absorbed = True
    return -1


@no_type_check
def workspace(state, read, series, care):
    """Arrays that the others use: six of J numbers, rates by mark and node, their sum, and
    stretches yet to be integrated; for series three of as many numbers as there are nodes,
    coefficients by mark and piece, and the states by blocks.
    """
    nodes = PANEL * care.panels + 1
    space = np.empty((6, state.shape[1]), dtype=read.dtype)
    most = 0
    for p in range(series.terms.shape[0]):
        for b in range(series.terms.shape[1]):
            most = max(most, series.terms[p, b])
    pieces, blocks = series.terms.shape
    parts = np.empty((2, blocks, state.shape[1] // blocks), dtype=read.dtype)
    work = (
        np.empty((3, nodes)),
        np.empty((len(read), pieces, most), dtype=read.dtype),
        parts[0],
        parts[1],
    )
    return space, np.empty((len(read), nodes)), np.empty(nodes), np.empty((DEEPEST + 2, 4)), work


@no_type_check
def moved_on(own, since, gap, scale, sinusoids, read, shape, space, logs):
    """One row ``own`` moved on by ``gap``: its states are space[0] + i space[1], and (M,) logs come
    out.
    """
    M = len(read)
    x = space[0]
    y = space[1]
    a = space[2]
    b = space[3]
    moved(own, gap / scale, sinusoids, x, y, a, b)
    for m in range(M):
        logs[m] = log_rate(read_out(x, y, read[m, 0], read[m, 1]), m, M, since + gap, shape)


@no_type_check
def integral_over(
    own, since, gap, pieces, scale, sinusoids, read, series, shape, care, space, z, total, stack,
    work, integral, fault,
):  # fmt: skip
    """The (1,) integral of the rate of one row over the next ``gap``; whether it could be formed.

    ``pieces`` of its series are in the workspace. A row of ``stack`` is a stretch: left end, width,
    allowed error, depth.
    """
    terms = work[1]
    integral[0], waiting = 0.0, 1
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0.0, gap, care.allowed, 0.0
    while waiting > 0:
        left = stack[waiting - 1, 0]
        width = stack[waiting - 1, 1]
        allowed = stack[waiting - 1, 2]
        depth = stack[waiting - 1, 3]
        panels = int(np.ceil(min(max(width * care.speed * 2.0**depth, 1.0), care.panels)))
        if pieces > 0:
            series_values(
                left / scale, width / scale, PANEL * panels, series, pieces, terms, work[0], z
            )
        else:
            stepped_values(own, left / scale, width / scale, panels, sinusoids, read, space, z)
        rates(z, PANEL * panels, since + left, width, shape, total, work[0])
        value, doubt = integrated(total, panels, width / scale, care)
        if doubt <= allowed + care.relative * value and value < np.inf:
            integral[0] += value
            waiting -= 1
            continue
        most = total[0]
        for q in range(PANEL * panels + 1):
            if np.isfinite(most) and not total[q] <= most:
                most = total[q]
        if not np.isfinite(most) or depth >= DEEPEST:
            fault[0], fault[1], fault[2] = since + left, width, most
            return False
        cut(stack, waiting - 1, since, shape)
        waiting += 1
    return True


@no_type_check
def absorb(state, rows, ahead, since, marks, constant, trend):
    """(R, J) ``ahead``, with what events at ``since`` (in the model's unit) of types ``marks`` add,
    becomes ``rows`` of ``state``.
    """
    for r in range(len(rows)):
        own = state[rows[r]]
        first = constant[marks[r]]
        more = trend[marks[r]]
        d = first.real.dtype.type(since[r])
        for j in range(len(own)):
            own[j] = ahead[r, j] + first[j] + d * more[j]


@no_type_check
def scores(lags, marks, mark, sinusoids, weight, phase, found):
    """nu_k of an event of type ``mark`` on events of types (K, E) ``marks`` at ``lags``, in the
    model's unit, into ``found``.

    (K, D) weight; (K, M, 2, D) phase: cos and sin of psi_k(m).
    """
    features = weight.shape[1]
    space = np.empty((2, features), dtype=weight.dtype)
    x = space[0]
    y = space[1]
    for k in range(len(lags)):
        now = phase[k, mark]
        for e in range(lags.shape[1]):
            turns(lags[k, e], sinusoids, k * features, x, y)
            total = 0.0
            if marks[k, e] == mark:
                for j in range(features):
                    total += weight[k, j] * x[j]
            else:
                then = phase[k, marks[k, e]]
                for j in range(features):
                    c = now[0, j] * then[0, j] + now[1, j] * then[1, j]
                    s = now[1, j] * then[0, j] - now[0, j] * then[1, j]
                    total += weight[k, j] * (x[j] * c - y[j] * s)
            found[k, e] = total


@no_type_check
def forget(state, lags, marks, values, sinusoids, phase):
    """What one event of each head adds to (J,) ``state`` after ``lags`` is taken off: (K,) lags,
    marks and values.
    """
    features = phase.shape[3]
    space = np.empty((2, features), dtype=phase.dtype)
    x = space[0]
    y = space[1]
    for k in range(len(lags)):
        turns(lags[k], sinusoids, k * features, x, y)
        c = phase[k, marks[k], 0]
        s = phase[k, marks[k], 1]
        first = k * features
        for j in range(features):
            state[first + j] -= values[k] * complex(
                x[j] * c[j] + y[j] * s[j], y[j] * c[j] - x[j] * s[j]
            )


@no_type_check
def turns(d, sinusoids, first, re, im):
    """exp(a d) of the modes from ``first`` on, as many as ``re`` and ``im`` have room for."""
    if sinusoids.most < SINGLE_MOST:
        single_turns(d, sinusoids, first, re, im)
    else:
        double_turns(d, sinusoids, first, re, im)


@no_type_check
def single_turns(d, sinusoids, first, re, im):
    """:func:`turns` to the last digit of a float32, which takes fewer terms; all numbers have 32
    bits, so that more fit a vector.
    """
    kind = sinusoids.cycles.dtype.type
    s0 = kind(SINE[0])
    s1 = kind(SINE[1])
    s2 = kind(SINE[2])
    s3 = kind(SINE[3])
    s4 = kind(SINE[4])
    s5 = kind(SINE[5])
    s6 = kind(SINE[6])
    s7 = kind(SINE[7])
    p0 = kind(POWER[0])
    p1 = kind(POWER[1])
    p2 = kind(POWER[2])
    p3 = kind(POWER[3])
    p4 = kind(POWER[4])
    p5 = kind(POWER[5])
    p6 = kind(POWER[6])
    p7 = kind(POWER[7])
    p8 = kind(POWER[8])
    lag = kind(d)
    half = kind(0.5)
    quarter = kind(0.25)
    most = kind(sinusoids.most)
    zero = kind(0.0)
    for j in range(len(re)):
        u = lag * sinusoids.cycles[first + j]
        u -= np.floor(u + half)
        c = quarter - abs(u)
        s = quarter - abs(c) if u > 0 else abs(c) - quarter
        v = c * c
        w = s * s
        c *= s0 + v * (s1 + v * (s2 + v * (s3 + v * (s4 + v * (s5 + v * (s6 + v * s7))))))
        s *= s0 + w * (s1 + w * (s2 + w * (s3 + w * (s4 + w * (s5 + w * (s6 + w * s7))))))
        h = lag * sinusoids.halvings[first + j]
        n = np.floor(h + half)
        r = h - n
        f = p0 + r * (p1 + r * (p2 + r * (p3 + r * (p4 + r * (p5 + r * (p6 + r * (p7 + r * p8)))))))
        bits = np.int32(
            np.int32(127 - np.int32(min(n, most))) << np.int32(23)
        )  # of 2^-n, as a float32
        f = f * kind(bits.view(np.float32)) if n < most else zero
        re[j] = f * c
        im[j] = f * s


@no_type_check
def double_turns(d, sinusoids, first, re, im):
    """:func:`turns` to the last digit of a float64."""
    kind = sinusoids.cycles.dtype.type
    s0 = kind(SINE[0])
    s1 = kind(SINE[1])
    s2 = kind(SINE[2])
    s3 = kind(SINE[3])
    s4 = kind(SINE[4])
    s5 = kind(SINE[5])
    s6 = kind(SINE[6])
    s7 = kind(SINE[7])
    s8 = kind(SINE[8])
    s9 = kind(SINE[9])
    s10 = kind(SINE[10])
    p0 = kind(POWER[0])
    p1 = kind(POWER[1])
    p2 = kind(POWER[2])
    p3 = kind(POWER[3])
    p4 = kind(POWER[4])
    p5 = kind(POWER[5])
    p6 = kind(POWER[6])
    p7 = kind(POWER[7])
    p8 = kind(POWER[8])
    p9 = kind(POWER[9])
    p10 = kind(POWER[10])
    p11 = kind(POWER[11])
    p12 = kind(POWER[12])
    p13 = kind(POWER[13])
    lag = kind(d)
    half = kind(0.5)
    quarter = kind(0.25)
    most = kind(sinusoids.most)
    zero = kind(0.0)
    for j in range(len(re)):
        u = lag * sinusoids.cycles[first + j]
        u -= np.floor(u + half)
        c = quarter - abs(u)
        s = quarter - abs(c) if u > 0 else abs(c) - quarter
        v = c * c
        w = s * s
        c *= s0 + v * (
            s1
            + v
            * (
                s2
                + v
                * (s3 + v * (s4 + v * (s5 + v * (s6 + v * (s7 + v * (s8 + v * (s9 + v * s10)))))))
            )
        )
        s *= s0 + w * (
            s1
            + w
            * (
                s2
                + w
                * (s3 + w * (s4 + w * (s5 + w * (s6 + w * (s7 + w * (s8 + w * (s9 + w * s10)))))))
            )
        )
        h = lag * sinusoids.halvings[first + j]
        n = np.floor(h + half)
        r = h - n
        f = p6 + r * (p7 + r * (p8 + r * (p9 + r * (p10 + r * (p11 + r * (p12 + r * p13))))))
        f = p0 + r * (p1 + r * (p2 + r * (p3 + r * (p4 + r * (p5 + r * f)))))
        bits = np.int64(1023 - np.int32(min(n, most))) << np.int64(
            52
        )  # of 2^-n; a table would be read one mode at a time
        f = f * kind(np.int64(bits).view(np.float64)) if n < most else zero
        re[j] = f * c
        im[j] = f * s


@no_type_check
def moved(state, d, sinusoids, x, y, a, b):
    """``state`` moved on by ``d`` into x + i y; a + i b is what it was multiplied by."""
    turns(d, sinusoids, 0, a, b)
    tiny, zero = (
        x.dtype.type(1e-30),
        x.dtype.type(0.0),
    )  # left to fade, a mode would stay at numbers that are slow
    for j in range(len(x)):
        re = state[j].real
        im = state[j].imag
        u = re * a[j] - im * b[j]
        v = re * b[j] + im * a[j]
        x[j], y[j] = u if abs(u) > tiny else zero, v if abs(v) > tiny else zero


@no_type_check
def read_out(x, y, re, im):
    """Re[(re - i im) (x + i y)], summed over the modes."""
    total = x.dtype.type(0.0)
    for j in range(len(x)):
        total += x[j] * re[j] + y[j] * im[j]
    return total


@no_type_check
def eight(x, y, a, b, re, im, later_x, later_y, z):
    """The same of once S, ..., once^8 S into (8,) ``z``, with S = x + i y and once = a + i b; the
    last of them is ``later``.

    All eight in one pass over the modes, so that nothing but the last goes through memory.
    """
    t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = x.dtype.type(0.0)
    for j in range(len(x)):
        u = x[j]
        v = y[j]
        c = a[j]
        s = b[j]
        p = re[j]
        q = im[j]
        u, v = u * c - v * s, u * s + v * c
        t1 += u * p + v * q
        u, v = u * c - v * s, u * s + v * c
        t2 += u * p + v * q
        u, v = u * c - v * s, u * s + v * c
        t3 += u * p + v * q
        u, v = u * c - v * s, u * s + v * c
        t4 += u * p + v * q
        u, v = u * c - v * s, u * s + v * c
        t5 += u * p + v * q
        u, v = u * c - v * s, u * s + v * c
        t6 += u * p + v * q
        u, v = u * c - v * s, u * s + v * c
        t7 += u * p + v * q
        u, v = u * c - v * s, u * s + v * c
        t8 += u * p + v * q
        later_x[j], later_y[j] = u, v
    z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7] = t1, t2, t3, t4, t5, t6, t7, t8


@no_type_check
def stepped_values(own, left, width, panels, sinusoids, read, space, z):
    """Read-outs at the nodes of panels of [left, left + width], by multiplication from node to
    node, into (M, Q) ``z``.
    """
    M = len(read)
    x = space[0]
    y = space[1]
    a = space[2]
    b = space[3]
    later_x = space[4]
    later_y = space[5]
    if left > 0.0:
        moved(own, left, sinusoids, x, y, a, b)
    else:
        for j in range(len(x)):
            x[j], y[j] = own[j].real, own[j].imag
    turns(width / (PANEL * panels), sinusoids, 0, a, b)
    for m in range(M):
        z[m, 0] = read_out(x, y, read[m, 0], read[m, 1])
    for p in range(panels):
        for m in range(M):
            eight(
                x,
                y,
                a,
                b,
                read[m, 0],
                read[m, 1],
                later_x,
                later_y,
                z[m, PANEL * p + 1 : PANEL * (p + 1) + 1],
            )
        x, y, later_x, later_y = later_x, later_y, x, y


@no_type_check
def four(block, x, y, row, table, c, m, p, n):
    """Four rows of ``table`` times a block of x and y, added to coefficients n to n + 3."""
    t1 = t2 = t3 = t4 = x.dtype.type(0.0)
    for j in range(x.shape[1]):
        u = x[block, j]
        v = y[block, j]
        t1 += u * table[row, 0, j] + v * table[row, 1, j]
        t2 += u * table[row + 1, 0, j] + v * table[row + 1, 1, j]
        t3 += u * table[row + 2, 0, j] + v * table[row + 2, 1, j]
        t4 += u * table[row + 3, 0, j] + v * table[row + 3, 1, j]
    c[m, p, n] += t1
    c[m, p, n + 1] += t2
    c[m, p, n + 2] += t3
    c[m, p, n + 3] += t4


@no_type_check
def coefficients(own, gap, series, x, y, c, ready, kept, row):
    """The coefficients of the pieces that a gap in the model's unit takes, into (M, P, N) ``c``;
    how many pieces, or 0 if the series do not reach so far. (B, J / B) x and y are scratch space.

    The first pieces are kept in (R, M, P', N) ``kept``, those of a ``row`` as long as ready[row]
    counts them.
    """
    most, blocks = series.terms.shape
    if most == 0 or not gap <= series.ends[most]:
        return 0
    pieces = 1
    while series.ends[pieces] < gap:
        pieces += 1
    have = min(ready[row], pieces)
    for m in range(c.shape[0]):
        for p in range(have):
            for n in range(c.shape[2]):
                c[m, p, n] = kept[row, m, p, n]
    if have == pieces:
        return pieces
    size = x.shape[1]
    for b in range(blocks):
        for j in range(size):
            x[b, j], y[b, j] = own[b * size + j].real, own[b * size + j].imag
    for m in range(c.shape[0]):
        for p in range(have, pieces):
            for n in range(c.shape[2]):
                c[m, p, n] = 0.0
            for b in range(blocks):
                terms = series.terms[p, b]
                first = series.first[p, b] + m * terms
                for n in range(0, terms, GROUP):
                    four(b, x, y, first + n, series.table, c, m, p, n)
    keep = min(pieces, kept.shape[2])
    for m in range(c.shape[0]):
        for p in range(have, keep):
            for n in range(c.shape[2]):
                kept[row, m, p, n] = c[m, p, n]
    ready[row] = max(have, keep)
    return pieces


@no_type_check
def series_values(left, width, steps, series, pieces, c, work, z):
    """Read-outs at nodes 0..steps of [left, left + width], in the model's unit, by Clenshaw's
    recurrence, into (M, Q) ``z``.

    The last terms are left out where all of them together are below the error of the series. Four
    terms are added in one pass over the nodes.
    """
    step = width / steps
    done = 0
    for p in range(pieces):
        begin = series.ends[p]
        end = series.ends[p + 1]
        first = done
        half = (end - begin) / 2
        while done <= steps and (p == pieces - 1 or left + done * step <= end):
            done += 1
        count = done - first
        for i in range(count):
            work[0, i] = 2.0 * ((left + (first + i) * step - begin) / half - 1.0)
        for m in range(c.shape[0]):
            most = c.shape[2]
            rest = 0.0
            while most > GROUP and rest + abs(c[m, p, most - 1]) <= series.error:
                most -= 1
                rest += abs(c[m, p, most])
            most = (most + GROUP - 1) // GROUP * GROUP
            for i in range(count):
                work[1, i], work[2, i] = 0.0, 0.0
            for n in range(most - GROUP, -1, -GROUP):
                c0 = c[m, p, n]
                c1 = c[m, p, n + 1]
                c2 = c[m, p, n + 2]
                c3 = c[m, p, n + 3]
                for i in range(count):
                    t = work[0, i]
                    b3 = c3 + t * work[1, i] - work[2, i]
                    b2 = c2 + t * b3 - work[1, i]
                    b1 = c1 + t * b2 - b3
                    work[2, i] = b1
                    work[1, i] = c0 + t * b1 - b2
            for i in range(count):
                z[m, first + i] = work[1, i] - 0.5 * work[0, i] * work[2, i]


@no_type_check
def exponential(x):
    """e^x as 2^-n 2^-r, without a call; 0 where the result would be too small to be a normal
    number.
    """
    v = x if x > LOWEST else LOWEST
    v = v if v < HIGHEST else HIGHEST
    h = -LOG2_E * v
    n = np.floor(h + 0.5)
    r = h - n
    f = POWER[6] + r * (
        POWER[7]
        + r
        * (
            POWER[8]
            + r * (POWER[9] + r * (POWER[10] + r * (POWER[11] + r * (POWER[12] + r * POWER[13]))))
        )
    )
    f = POWER[0] + r * (
        POWER[1] + r * (POWER[2] + r * (POWER[3] + r * (POWER[4] + r * (POWER[5] + r * f))))
    )
    bits = np.int64(1023 - np.int32(n)) << np.int64(52)  # of 2^-n
    f *= np.int64(bits).view(np.float64)
    f = f if x >= LOWEST else 0.0
    return f if x <= HIGHEST else x + np.inf  # infinite, or no number where x is none


@no_type_check
def log_one_plus(t):
    """log(1 + t) for t from 0 to 1, as 2 artanh(t / (2 + t)), without a call."""
    s = t / (2.0 + t)
    w = s * s
    f = 1 / 19 + w * (
        1 / 21
        + w * (1 / 23 + w * (1 / 25 + w * (1 / 27 + w * (1 / 29 + w * (1 / 31 + w * (1 / 33))))))
    )
    f = 1 / 9 + w * (1 / 11 + w * (1 / 13 + w * (1 / 15 + w * (1 / 17 + w * f))))
    return 2.0 * s * (1.0 + w * (1 / 3 + w * (1 / 5 + w * (1 / 7 + w * f))))


@no_type_check
def curves(curve, steps, first, step, shape, work, into):
    """A spline at nodes 0..steps, ``step`` apart from ``first`` on in units of its intervals, into
    a row of ``work``.
    """
    last = len(shape.cubics) - 1.0
    cell = int(min(first, last))
    if cell == int(min(first + steps * step, last)):
        a0 = shape.cubics[cell, curve, 0]
        a1 = shape.cubics[cell, curve, 1]
        a2 = shape.cubics[cell, curve, 2]
        a3 = shape.cubics[cell, curve, 3]
        for q in range(steps + 1):
            u = first - cell + q * step
            work[into, q] = a0 + u * (a1 + u * (a2 + u * a3))
        return
    for q in range(steps + 1):
        cell = int(min(first + q * step, last))
        a0 = shape.cubics[cell, curve, 0]
        a1 = shape.cubics[cell, curve, 1]
        a2 = shape.cubics[cell, curve, 2]
        a3 = shape.cubics[cell, curve, 3]
        u = first + q * step - cell
        work[into, q] = a0 + u * (a1 + u * (a2 + u * a3))


@no_type_check
def rates(z, steps, left, width, shape, total, work):
    """The rate of all marks at nodes 0..steps of [left, left + width], per unit of the model's
    time, into (Q,) ``total``; (M, Q) z.
    """
    M = len(z)
    first = left / shape.cell
    step = width / shape.cell / steps
    for q in range(steps + 1):
        total[q] = 0.0
    for m in range(M):
        bias = shape.bias[m]
        size = shape.size[m]
        level = shape.level[m]
        curves(M + m, steps, first, step, shape, work, 0)
        if shape.link == 0:
            for q in range(steps + 1):
                total[q] += work[0, q] + z[m, q] + bias
        elif shape.link == 1:
            for q in range(steps + 1):
                total[q] += exponential(work[0, q] + z[m, q] + bias)
        else:
            for q in range(steps + 1):
                x = work[0, q] + z[m, q] + bias
                total[q] += size * (max(x, 0.0) + log_one_plus(exponential(-abs(x))))
        if shape.splined_base:
            curves(m, steps, first, step, shape, work, 0)
            for q in range(steps + 1):
                total[q] += exponential(work[0, q])
        else:
            for q in range(steps + 1):
                total[q] += level


@no_type_check
def log_rate(z, m, M, time, shape):
    """log lambda of mark ``m`` at ``time`` per unit of the user's time, formed before anything can
    overflow.
    """
    at = time / shape.cell
    cell = int(min(at, len(shape.cubics) - 1.0))
    u = at - cell
    low = shape.cubics[cell, m]
    high = shape.cubics[cell, M + m]
    base = low[0] + u * (low[1] + u * (low[2] + u * low[3]))
    x = z + shape.bias[m] + high[0] + u * (high[1] + u * (high[2] + u * high[3]))
    if shape.link == 0:
        return np.log(np.exp(base) + x) - shape.log_unit
    if shape.link == 2:  # below -36 the logarithm of softplus is its argument
        x = np.log(shape.size[m]) + (
            x if x < -36.0 else np.log(max(x, 0.0) + np.log1p(np.exp(-abs(x))))
        )
    return max(base, x) + np.log1p(np.exp(-abs(base - x))) - shape.log_unit


@no_type_check
def integrated(total, panels, width, care):
    """The integral of a rate given at the nodes of panels, and its error, as `dapp_step` estimates
    it.
    """
    value = doubt = 0.0
    for p in range(panels):
        mean = c5 = c6 = c7 = c8 = 0.0
        for i in range(PANEL + 1):
            rate = total[PANEL * p + i]
            mean += care.rule[0, i] * rate
            c5 += care.rule[1, i] * rate
            c6 += care.rule[2, i] * rate
            c7 += care.rule[3, i] * rate
            c8 += care.rule[4, i] * rate
        before = max(abs(c5), abs(c6))
        end = max(abs(c7), abs(c8))
        falling = care.edge if p == 0 else (end / before if end < before else 1.0)
        value += mean
        doubt += end * falling
    return value * width / panels, doubt * width / panels


@no_type_check
def cut(stack, top, since, shape):
    """The stretch at ``top`` in two, at the first knot of a spline inside, else in the middle; the
    first of them comes on top.
    """
    left = stack[top, 0]
    width = stack[top, 1]
    allowed = stack[top, 2]
    depth = stack[top, 3]
    first = width / 2
    at = since + left
    if shape.length > 0.0:
        knot = (np.floor(at / shape.cell) + 1.0) * shape.cell - at
        if 1e-9 * width < knot < width and at + knot <= shape.length * (1 + 1e-12):
            first = knot
    share = allowed * first / width
    stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = (
        left + first,
        width - first,
        allowed - share,
        depth + 1.0,
    )
    stack[top + 1, 0], stack[top + 1, 1], stack[top + 1, 2], stack[top + 1, 3] = (
        left,
        first,
        share,
        depth + 1.0,
    )
