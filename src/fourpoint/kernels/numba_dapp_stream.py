r"""The loops of `dapp_step` row by row, compiled where numba is installed (the extra ``fast``):
states moved, read and integrated.

They are plain Python functions, slow but correct as they stand, and tests hold them to the whole
arrays of `dapp_step`, which do the same. Those hold the states at all nodes of all rows, and are
limited by memory and by calls; here one row stays in the processor's cache from its first node to
its last, and the interpreter is not locked, so that threads share the rows. Waves are formed by
polynomials, since a call of sin or exp keeps a processor from taking several modes at a time:

    sin(2 pi u) = u P(u^2),  |u| <= 1/4,        2^-r = Q(r),  |r| <= 1/2,        (Taylor, to the last digit of the precision)

with u the cycles theta d / 2 pi less the nearest whole number, a difference that is not rounded.
Axes as in `dapp_step`.
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


class Loops(NamedTuple):
    """Functions of this file as machine code."""

    reach: Callable[..., int]
    absorb: Callable[..., None]
    scores: Callable[..., None]
    forget: Callable[..., None]
    follow: Callable[..., int]
    pending: Callable[..., int]


@cache
def compiled_loops() -> Loops | None:
    """The six as machine code, cached on disk between runs where possible; None without numba."""
    helpers = (
        single_turns,
        double_turns,
        turns,
        moved,
        read_out,
        eight,
        rates,
        log_rate,
        integrated,
        cut,
        workspace,
        integral_over,
        step,
    )
    entries = (reach, absorb, scores, forget, follow, pending)
    code = machine_code((sys.modules[__name__],), entries, helpers, fastmath=FASTMATH)
    return None if code is None else Loops(**code)


class Waves(NamedTuple):
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


def waves(frequency: NDArray[Any], decay: NDArray[Any], kind: Any) -> Waves:
    """Modes exp((-decay + i frequency) d), in precision ``kind``."""
    cycles, halvings = (
        np.ascontiguousarray(x, dtype=kind)
        for x in (frequency / (2 * math.pi), decay / math.log(2))
    )
    return Waves(cycles, halvings, -6.0 - float(np.finfo(kind).minexp))


@no_type_check  # here and below: numba has its own types
def reach(state, rows, since, gap, scale, waves, read, shape, care, after, logs, integral, fault):
    """Rows moved on by ``gap``: (R, J) after, (R, M) logs and (R,) integral come out, as from
    `dapp_step.Steps.reach`.

    ``rows`` says which of ``state`` they are. What comes back is -1, or the place among them of a
    rate that cannot be integrated, with left end, width and largest rate of the stretch in
    ``fault``.
    """
    space, z, total, stack = workspace(state, read, care)
    for r in range(len(rows)):
        own = state[rows[r]]
        value = integral[r : r + 1]
        if not step(
            own,
            since[r],
            gap[r],
            scale,
            waves,
            read,
            shape,
            care,
            space,
            z,
            total,
            stack,
            after[r],
            logs[r],
            value,
            fault,
        ):
            return r
    return -1


@no_type_check
def pending(state, rows, since, gap, scale, waves, read, shape, care, integral, fault):
    """The (R,) integral of :func:`reach` alone, in about half the time."""
    space, z, total, stack = workspace(state, read, care)
    for r in range(len(rows)):
        own, value = state[rows[r]], integral[r : r + 1]
        if not integral_over(
            own,
            since[r],
            gap[r],
            scale,
            waves,
            read,
            shape,
            care,
            space,
            z,
            total,
            stack,
            value,
            fault,
        ):
            return r
    return -1


@no_type_check
def follow(
    state,
    rows,
    at,
    pending,
    likelihood,
    count,
    start,
    times,
    marks,
    scale,
    waves,
    read,
    shape,
    care,
    constant,
    slope,
    largest,
    density,
    gap,
    rate,
    shares,
    logs,
    fault,
):
    """Score events one after the other and absorb each: (n,) density, gap and rate come out, and
    (n, M) shares of the types in the rate unless there is no room for them.

    Event i belongs to row ``rows[i]`` of ``state``, and of (R,) ``at``, the time of its last event
    or advance, ``pending``, the integral since its last event, ``likelihood`` and ``count``. What
    comes back is -1, or the place of an event that
    cannot be scored: its rate cannot be integrated (fault[3] is 0, and fault[:3] as from
    :func:`reach`), or a log-rate is not
    below ``largest`` or the integral not finite (fault[3] is 1, the integral is fault[0], and (M,)
    ``logs`` are the log-rates). Events before it have been absorbed.
    """
    space, z, total, stack = workspace(state, read, care)
    after, value = np.empty(state.shape[1], dtype=state.dtype), np.empty(1)
    for i in range(len(rows)):
        row, now, mark = rows[i], times[i], marks[i]
        own, first, more = state[row], constant[mark], slope[mark]
        width, since = now - at[row], at[row] - start
        if not step(
            own,
            since,
            width,
            scale,
            waves,
            read,
            shape,
            care,
            space,
            z,
            total,
            stack,
            after,
            logs,
            value,
            fault,
        ):
            fault[3] = 0.0
            return i
        rates, sound = 0.0, np.isfinite(value[0])
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
        d = first.real.dtype.type((now - start) / scale)
        for j in range(len(own)):
            own[j] = after[j] + first[j] + d * more[j]
        at[row], pending[row] = now, 0.0
        likelihood[row] += logs[mark] - value[0]
        count[row] += 1
    return -1


@no_type_check
def workspace(state, read, care):
    """Arrays that :func:`step` uses: six of J numbers, rates by mark and node, their sum, and
    stretches yet to be integrated.
    """
    nodes = PANEL * care.panels + 1
    space = np.empty((6, state.shape[1]), dtype=read.dtype)
    return space, np.empty((len(read), nodes)), np.empty(nodes), np.empty((DEEPEST + 2, 4))


@no_type_check
def step(
    own,
    since,
    gap,
    scale,
    waves,
    read,
    shape,
    care,
    space,
    z,
    total,
    stack,
    after,
    logs,
    integral,
    fault,
):
    """One row ``own`` moved on by ``gap``: (J,) after, (M,) logs and (1,) integral come out;
    whether that was possible.
    """
    M = len(read)
    x, y, a, b = space[0], space[1], space[2], space[3]
    moved(own, gap / scale, waves, x, y, a, b)
    for j in range(len(x)):
        after[j] = complex(x[j], y[j])
    for m in range(M):
        logs[m] = log_rate(read_out(x, y, read[m, 0], read[m, 1]), m, M, since + gap, shape)
    return integral_over(
        own, since, gap, scale, waves, read, shape, care, space, z, total, stack, integral, fault
    )


@no_type_check
def integral_over(
    own, since, gap, scale, waves, read, shape, care, space, z, total, stack, integral, fault
):
    """The (1,) integral of the rate of one row over the next ``gap``; whether it could be formed.

    A row of ``stack`` is a stretch: left end, width, allowed error, depth.
    """
    M = len(read)
    x, y, a, b, later_x, later_y = space[0], space[1], space[2], space[3], space[4], space[5]
    integral[0], waiting = 0.0, 1
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0.0, gap, care.allowed, 0.0
    while waiting > 0:
        left, width, allowed, depth = (
            stack[waiting - 1, 0],
            stack[waiting - 1, 1],
            stack[waiting - 1, 2],
            stack[waiting - 1, 3],
        )
        panels = int(np.ceil(min(max(width * care.speed * 2.0**depth, 1.0), care.panels)))
        if left > 0.0:
            moved(own, left / scale, waves, x, y, a, b)
        else:
            for j in range(len(x)):
                x[j], y[j] = own[j].real, own[j].imag
        turns(width / scale / (PANEL * panels), waves, 0, a, b)
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
        rates(z, PANEL * panels, since + left, width, shape, total)
        value, doubt = integrated(total, panels, width / scale, care)
        if doubt <= allowed + care.relative * value and value < np.inf:
            integral[0] += value
            waiting -= 1
            continue
        most = np.max(total[: PANEL * panels + 1])
        if not np.isfinite(most) or depth >= DEEPEST:
            fault[0], fault[1], fault[2] = since + left, width, most
            return False
        cut(stack, waiting - 1, since, shape)
        waiting += 1
    return True


@no_type_check
def absorb(state, rows, ahead, since, marks, constant, slope):
    """(R, J) ``ahead``, with what events at ``since`` (in the model's unit) of types ``marks`` add,
    becomes ``rows`` of ``state``.
    """
    for r in range(len(rows)):
        own, first, more = state[rows[r]], constant[marks[r]], slope[marks[r]]
        d = first.real.dtype.type(since[r])
        for j in range(len(own)):
            own[j] = ahead[r, j] + first[j] + d * more[j]


@no_type_check
def scores(lags, marks, mark, waves, weight, phase, found):
    """nu_k of an event of type ``mark`` on events of types (K, E) ``marks`` at ``lags``, in the
    model's unit, into ``found``.

    (K, D) weight; (K, M, 2, D) phase: cos and sin of psi_k(m).
    """
    features = weight.shape[1]
    space = np.empty((2, features), dtype=weight.dtype)
    x, y = space[0], space[1]
    for k in range(len(lags)):
        now = phase[k, mark]
        for e in range(lags.shape[1]):
            turns(lags[k, e], waves, k * features, x, y)
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
def forget(state, lags, marks, values, waves, phase):
    """What one event of each head adds to (J,) ``state`` after ``lags`` is taken off: (K,) lags,
    marks and values.
    """
    features = phase.shape[3]
    space = np.empty((2, features), dtype=phase.dtype)
    x, y = space[0], space[1]
    for k in range(len(lags)):
        turns(lags[k], waves, k * features, x, y)
        c, s, first = phase[k, marks[k], 0], phase[k, marks[k], 1], k * features
        for j in range(features):
            state[first + j] -= values[k] * complex(
                x[j] * c[j] + y[j] * s[j], y[j] * c[j] - x[j] * s[j]
            )


@no_type_check
def turns(d, waves, first, re, im):
    """exp(a d) of the modes from ``first`` on, as many as ``re`` and ``im`` have room for."""
    if waves.most < SINGLE_MOST:
        single_turns(d, waves, first, re, im)
    else:
        double_turns(d, waves, first, re, im)


@no_type_check
def single_turns(d, waves, first, re, im):
    """:func:`turns` to the last digit of a float32, which takes fewer terms; all numbers have 32
    bits, so that more fit a vector.
    """
    kind = waves.cycles.dtype.type
    s0, s1, s2, s3 = kind(SINE[0]), kind(SINE[1]), kind(SINE[2]), kind(SINE[3])
    s4, s5, s6, s7 = kind(SINE[4]), kind(SINE[5]), kind(SINE[6]), kind(SINE[7])
    p0, p1, p2, p3, p4 = (
        kind(POWER[0]),
        kind(POWER[1]),
        kind(POWER[2]),
        kind(POWER[3]),
        kind(POWER[4]),
    )
    p5, p6, p7, p8 = kind(POWER[5]), kind(POWER[6]), kind(POWER[7]), kind(POWER[8])
    lag, half, quarter, most, zero = kind(d), kind(0.5), kind(0.25), kind(waves.most), kind(0.0)
    for j in range(len(re)):
        u = lag * waves.cycles[first + j]
        u -= np.floor(u + half)
        c = quarter - abs(u)
        s = quarter - abs(c) if u > 0 else abs(c) - quarter
        v, w = c * c, s * s
        c *= s0 + v * (s1 + v * (s2 + v * (s3 + v * (s4 + v * (s5 + v * (s6 + v * s7))))))
        s *= s0 + w * (s1 + w * (s2 + w * (s3 + w * (s4 + w * (s5 + w * (s6 + w * s7))))))
        h = lag * waves.halvings[first + j]
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
def double_turns(d, waves, first, re, im):
    """:func:`turns` to the last digit of a float64."""
    kind = waves.cycles.dtype.type
    s0, s1, s2, s3, s4, s5 = (
        kind(SINE[0]),
        kind(SINE[1]),
        kind(SINE[2]),
        kind(SINE[3]),
        kind(SINE[4]),
        kind(SINE[5]),
    )
    s6, s7, s8, s9, s10 = kind(SINE[6]), kind(SINE[7]), kind(SINE[8]), kind(SINE[9]), kind(SINE[10])
    p0, p1, p2, p3, p4 = (
        kind(POWER[0]),
        kind(POWER[1]),
        kind(POWER[2]),
        kind(POWER[3]),
        kind(POWER[4]),
    )
    p5, p6, p7, p8, p9 = (
        kind(POWER[5]),
        kind(POWER[6]),
        kind(POWER[7]),
        kind(POWER[8]),
        kind(POWER[9]),
    )
    p10, p11, p12, p13 = kind(POWER[10]), kind(POWER[11]), kind(POWER[12]), kind(POWER[13])
    lag, half, quarter, most, zero = kind(d), kind(0.5), kind(0.25), kind(waves.most), kind(0.0)
    for j in range(len(re)):
        u = lag * waves.cycles[first + j]
        u -= np.floor(u + half)
        c = quarter - abs(u)
        s = quarter - abs(c) if u > 0 else abs(c) - quarter
        v, w = c * c, s * s
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
        h = lag * waves.halvings[first + j]
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
def moved(state, d, waves, x, y, a, b):
    """``state`` moved on by ``d`` into x + i y; a + i b is what it was multiplied by."""
    turns(d, waves, 0, a, b)
    tiny, zero = (
        x.dtype.type(1e-30),
        x.dtype.type(0.0),
    )  # left to fade, a mode would stay at numbers that are slow
    for j in range(len(x)):
        re, im = state[j].real, state[j].imag
        u, v = re * a[j] - im * b[j], re * b[j] + im * a[j]
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
        u, v, c, s, p, q = x[j], y[j], a[j], b[j], re[j], im[j]
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
def rates(z, steps, left, width, shape, total):
    """The rate of all marks at nodes 0..steps of [left, left + width], per unit of the model's
    time, into (Q,) ``total``; (M, Q) z.
    """
    M, first, step = len(z), left / shape.cell, width / shape.cell / steps
    for q in range(steps + 1):
        at = first + q * step
        cell = int(min(at, len(shape.cubics) - 1.0))
        u, rate = at - cell, 0.0
        for m in range(M):
            low, high = shape.cubics[cell, m], shape.cubics[cell, M + m]
            x = z[m, q] + shape.bias[m] + high[0] + u * (high[1] + u * (high[2] + u * high[3]))
            if shape.link == 1:
                x = np.exp(x)
            elif shape.link == 2:
                x = shape.size[m] * (max(x, 0.0) + np.log1p(np.exp(-abs(x))))
            rate += x + (
                np.exp(low[0] + u * (low[1] + u * (low[2] + u * low[3])))
                if shape.splined_base
                else shape.level[m]
            )
        total[q] = rate


@no_type_check
def log_rate(z, m, M, time, shape):
    """log lambda of mark ``m`` at ``time`` per unit of the user's time, formed before anything can
    overflow.
    """
    at = time / shape.cell
    cell = int(min(at, len(shape.cubics) - 1.0))
    u, low, high = at - cell, shape.cubics[cell, m], shape.cubics[cell, M + m]
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
        before, end = max(abs(c5), abs(c6)), max(abs(c7), abs(c8))
        falling = care.edge if p == 0 else (end / before if end < before else 1.0)
        value += mean
        doubt += end * falling
    return value * width / panels, doubt * width / panels


@no_type_check
def cut(stack, top, since, shape):
    """The stretch at ``top`` in two, at the first knot of a spline inside, else in the middle; the
    first of them comes on top.
    """
    left, width, allowed, depth = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
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
