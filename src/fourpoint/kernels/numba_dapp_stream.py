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
    powers = (inverse_power, half_power)
    sines = (single_sine, single_half_power, sine)
    turning = (*powers, *sines, single_turns, double_turns, turns)
    reading = (moved, read_out, step, eight)
    expanding = (four, coefficients, negligible_from, series_values)
    smooth = (exponential, log_one_plus, softplus)
    rating = (*smooth, cell_of, cubic, curves, rates, log_rate)
    integrating = (integrated, cut, stepped_values, integral_over)
    following = (total_rate, all_below, moved_on, add_event, follow_rows)
    entries = (reach, absorb, scores, forget, follow)
    code = machine_code(
        (sys.modules[__name__],),
        entries,
        (workspace,),
        loops=(*turning, *reading, *expanding, *rating, *integrating, *following),
        fastmath=FASTMATH,
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

    # (intervals + 1, 2 M, 4): powers of log mu, then of the drift; the last ones are constant
    cubics: NDArray[np.float64]
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
    # (P, B): the row of the table in which the coefficients of a block begin, mark by mark
    first: NDArray[np.int64]
    table: NDArray[Any]  # (rows, 2, J / B): Re C, and -Im C
    error: float  # of the size of a mode


class Care(NamedTuple):
    """How integrals are formed and when they are good enough; `dapp_step` says how each is
    chosen.
    """

    # (5, PANEL + 1): to the mean of a panel and its last four Legendre coefficients
    rule: NDArray[np.float64]
    speed: float  # panels per unit of time
    panels: int  # the most of them
    edge: float
    allowed: float
    relative: float


class Model(NamedTuple):
    """The numbers of a model and of its integrals."""

    scale: float  # the model's unit of time, in the user's unit
    sinusoids: Sinusoids
    read: NDArray[Any]  # (M, 2, J): Re R, and -Im R
    series: Series
    shape: Shape
    care: Care


class Histories(NamedTuple):
    """Histories that are followed, one in each row of all arrays."""

    state: NDArray[Any]  # (R, J)
    at: NDArray[np.float64]  # time of the last event or advance
    pending: NDArray[np.float64]  # integral since the last event
    likelihood: NDArray[np.float64]
    seen: NDArray[np.int64]  # events so far
    ready: NDArray[np.int64]  # pieces of ``kept`` that are valid
    kept: NDArray[Any]  # (R, M, P', N): coefficients of :func:`coefficients`


class Workspace(NamedTuple):
    """Arrays that the loops share."""

    modes: NDArray[Any]  # (6, J)
    z: NDArray[np.float64]  # (M, Q): read-outs by mark and node
    total: NDArray[np.float64]  # (Q,): the rate of all marks by node
    stack: NDArray[np.float64]  # stretches to be integrated: left end, width, error, depth
    nodes: NDArray[np.float64]  # (3, Q)
    terms: NDArray[Any]  # (M, P, N): coefficients of a series by mark and piece
    x: NDArray[Any]  # (B, J / B): real parts of the states by blocks
    y: NDArray[Any]  # (B, J / B): imaginary parts


def sinusoids(frequency: NDArray[Any], decay: NDArray[Any], kind: Any) -> Sinusoids:
    """Modes exp((-decay + i frequency) d), in precision ``kind``."""
    cycles = np.ascontiguousarray(frequency / (2 * math.pi), dtype=kind)
    halvings = np.ascontiguousarray(decay / math.log(2), dtype=kind)
    smallest = float(np.finfo(kind).minexp)
    return Sinusoids(cycles, halvings, -6.0 - smallest)


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
    model = Model(scale, sinusoids, read, series, shape, care)
    work = workspace(state, read, series, care)
    ready = np.zeros(1, dtype=np.int64)
    kept = np.empty((1, len(read), 0, 0), dtype=read.dtype)
    x = work.modes[0]
    y = work.modes[1]
    for r in range(len(rows)):
        own = state[rows[r]]
        left = since[r]
        width = gap[r]
        value = integral[r : r + 1]
        ready[0] = 0
        pieces = coefficients(own, width / scale, series, work, ready, kept, 0)
        if not integral_over(own, left, width, pieces, model, work, value, fault):
            return r
        moved_on(own, left, width, model, work, logs[r])
        for j in range(len(x)):
            after[r, j] = complex(x[j], y[j])
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
    sinusoids,
    read,
    series,
    shape,
    care,
    constant,
    trend,
    largest,
    ready,
    kept,
    place,
    copied,
    old,
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
    model = Model(scale, sinusoids, read, series, shape, care)
    histories = Histories(state, at, pending, likelihood, count, ready, kept)
    work = workspace(state, read, series, care)
    return follow_rows(
        histories,
        rows,
        start,
        times,
        marks,
        model,
        constant,
        trend,
        largest,
        place,
        copied,
        old,
        density,
        gap,
        rate,
        shares,
        logs,
        fault,
        work,
        np.empty(1),
    )


@no_type_check
def follow_rows(
    histories,
    rows,
    start,
    times,
    marks,
    model,
    constant,
    trend,
    largest,
    place,
    copied,
    old,
    density,
    gap,
    rate,
    shares,
    logs,
    fault,
    work,
    value,
):
    """:func:`follow`, given a workspace.

    The series of the states after an event is formed at once, while they are in the processor's
    cache, up to the end of its first piece. The same call serves an event whose series is missing
    (after a restart, say) or too short: a second one would be other machine code, whose sums may
    differ in the last bit.
    """
    scale = model.scale
    at = histories.at
    pending = histories.pending
    i = 0
    absorbed = False
    while i < len(rows):
        row = rows[i]
        own = histories.state[row]
        width = 0.0 if absorbed else times[i] - at[row]
        pieces = coefficients(
            own, width / scale, model.series, work, histories.ready, histories.kept, row
        )
        if absorbed:
            absorbed = False
            i += 1
            continue
        now = times[i]
        mark = marks[i]
        since = at[row] - start
        if not integral_over(own, since, width, pieces, model, work, value, fault):
            fault[3] = 0.0
            return i
        if mark < 0:
            gap[i] = value[0]
            i += 1
            continue
        moved_on(own, since, width, model, work, logs)
        total = total_rate(logs)
        if not (np.isfinite(value[0]) and all_below(logs, largest)):
            fault[0] = value[0]
            fault[3] = 1.0
            return i
        gap[i] = pending[row] + value[0]
        rate[i] = total
        density[i] = logs[mark] - gap[i]
        for m in range(shares.shape[1]):
            shares[i, m] = np.exp(logs[m]) / total
        if place[i] >= 0:
            copied[place[i]] = True
            for j in range(len(own)):
                old[place[i], j] = own[j]
        since_start = (now - start) / scale
        add_event(own, since_start, constant[mark], trend[mark], work)
        histories.ready[row] = 0
        at[row] = now
        pending[row] = 0.0
        histories.likelihood[row] += logs[mark] - value[0]
        histories.seen[row] += 1
        absorbed = True
    return -1


@no_type_check
def total_rate(logs):
    """The sum of the rates of all marks."""
    total = 0.0
    for m in range(len(logs)):
        total += np.exp(logs[m])
    return total


@no_type_check
def all_below(logs, largest):
    """Whether every log-rate is less than ``largest``, and a number."""
    below = True
    for m in range(len(logs)):
        below = below and logs[m] < largest
    return below


@no_type_check
def add_event(own, since_start, constant, trend, work):
    """The states in the workspace, with what an event adds to them, become ``own``."""
    x = work.modes[0]
    y = work.modes[1]
    d = x.dtype.type(since_start)
    for j in range(len(own)):
        first = constant[j]
        more = trend[j]
        re = x[j] + first.real + d * more.real
        im = y[j] + first.imag + d * more.imag
        own[j] = complex(re, im)


@no_type_check
def workspace(state, read, series, care):
    """A :class:`Workspace` for the rows of ``state``."""
    marks = len(read)
    modes = state.shape[1]
    nodes = PANEL * care.panels + 1
    pieces, blocks = series.terms.shape
    most = 0
    for p in range(pieces):
        for b in range(blocks):
            most = max(most, series.terms[p, b])
    parts = np.empty((2, blocks, modes // blocks), dtype=read.dtype)
    return Workspace(
        np.empty((6, modes), dtype=read.dtype),
        np.empty((marks, nodes)),
        np.empty(nodes),
        np.empty((DEEPEST + 2, 4)),
        np.empty((3, nodes)),
        np.empty((marks, pieces, most), dtype=read.dtype),
        parts[0],
        parts[1],
    )


@no_type_check
def moved_on(own, since, gap, model, work, logs):
    """One row ``own`` moved on by ``gap``: its states come out in the workspace, and (M,) logs."""
    read = model.read
    marks = len(read)
    x = work.modes[0]
    y = work.modes[1]
    a = work.modes[2]
    b = work.modes[3]
    moved(own, gap / model.scale, model.sinusoids, x, y, a, b)
    for m in range(marks):
        z = read_out(x, y, read[m, 0], read[m, 1])
        logs[m] = log_rate(z, m, marks, since + gap, model.shape)


@no_type_check
def integral_over(own, since, gap, pieces, model, work, integral, fault):
    """The (1,) integral of the rate of one row over the next ``gap``; whether it could be formed.

    ``pieces`` of its series are in the workspace.
    """
    scale = model.scale
    care = model.care
    stack = work.stack
    total = work.total
    integral[0] = 0.0
    stack[0, 0] = 0.0
    stack[0, 1] = gap
    stack[0, 2] = care.allowed
    stack[0, 3] = 0.0
    waiting = 1
    while waiting > 0:
        top = waiting - 1
        left = stack[top, 0]
        width = stack[top, 1]
        allowed = stack[top, 2]
        depth = stack[top, 3]
        wanted = max(width * care.speed * 2.0**depth, 1.0)
        panels = int(np.ceil(min(wanted, care.panels)))
        steps = PANEL * panels
        if pieces > 0:
            series_values(left / scale, width / scale, steps, model.series, pieces, work)
        else:
            stepped_values(own, left / scale, width / scale, panels, model, work)
        rates(work.z, steps, since + left, width, model.shape, total, work.nodes)
        value, doubt = integrated(total, panels, width / scale, care)
        if doubt <= allowed + care.relative * value and value < np.inf:
            integral[0] += value
            waiting -= 1
            continue
        most = total[0]
        for q in range(steps + 1):
            if np.isfinite(most) and not total[q] <= most:
                most = total[q]
        if not np.isfinite(most) or depth >= DEEPEST:
            fault[0] = since + left
            fault[1] = width
            fault[2] = most
            return False
        cut(stack, top, since, model.shape)
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
        first = k * features
        turns(lags[k], sinusoids, first, x, y)
        c = phase[k, marks[k], 0]
        s = phase[k, marks[k], 1]
        for j in range(features):
            re = x[j] * c[j] + y[j] * s[j]
            im = y[j] * c[j] - x[j] * s[j]
            state[first + j] -= values[k] * complex(re, im)


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
    lag = kind(d)
    half = kind(0.5)
    quarter = kind(0.25)
    most = kind(sinusoids.most)
    zero = kind(0.0)
    for j in range(len(re)):
        u = lag * sinusoids.cycles[first + j]
        u -= np.floor(u + half)
        c = quarter - abs(u)
        if u > 0:
            s = quarter - abs(c)
        else:
            s = abs(c) - quarter
        h = lag * sinusoids.halvings[first + j]
        n = np.floor(h + half)
        f = single_half_power(h - n, kind)
        exponent = np.int32(127 - np.int32(min(n, most)))
        bits = np.int32(exponent << np.int32(23))  # of 2^-n, as a float32
        f = f * kind(bits.view(np.float32)) if n < most else zero
        re[j] = f * single_sine(c, kind)
        im[j] = f * single_sine(s, kind)


@no_type_check
def single_sine(u, kind):
    """sin(2 pi u) for |u| <= 1/4, to the last digit of a float32."""
    w = u * u
    value = kind(SINE[6]) + w * kind(SINE[7])
    value = kind(SINE[5]) + w * value
    value = kind(SINE[4]) + w * value
    value = kind(SINE[3]) + w * value
    value = kind(SINE[2]) + w * value
    value = kind(SINE[1]) + w * value
    value = kind(SINE[0]) + w * value
    return u * value


@no_type_check
def single_half_power(r, kind):
    """2^-r for |r| <= 1/2, to the last digit of a float32."""
    value = kind(POWER[7]) + r * kind(POWER[8])
    value = kind(POWER[6]) + r * value
    value = kind(POWER[5]) + r * value
    value = kind(POWER[4]) + r * value
    value = kind(POWER[3]) + r * value
    value = kind(POWER[2]) + r * value
    value = kind(POWER[1]) + r * value
    return kind(POWER[0]) + r * value


@no_type_check
def double_turns(d, sinusoids, first, re, im):
    """:func:`turns` to the last digit of a float64."""
    most = sinusoids.most
    for j in range(len(re)):
        u = d * sinusoids.cycles[first + j]
        u -= np.floor(u + 0.5)
        c = 0.25 - abs(u)
        if u > 0:
            s = 0.25 - abs(c)
        else:
            s = abs(c) - 0.25
        h = d * sinusoids.halvings[first + j]
        n = np.floor(h + 0.5)
        f = half_power(h - n)
        f = f * inverse_power(min(n, most)) if n < most else 0.0
        re[j] = f * sine(c)
        im[j] = f * sine(s)


@no_type_check
def sine(u):
    """sin(2 pi u) for |u| <= 1/4."""
    s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10 = SINE
    w = u * u
    value = s9 + w * s10
    value = s8 + w * value
    value = s7 + w * value
    value = s6 + w * value
    value = s5 + w * value
    value = s4 + w * value
    value = s3 + w * value
    value = s2 + w * value
    value = s1 + w * value
    value = s0 + w * value
    return u * value


@no_type_check
def half_power(r):
    """2^-r for |r| <= 1/2."""
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13 = POWER
    value = p12 + r * p13
    value = p11 + r * value
    value = p10 + r * value
    value = p9 + r * value
    value = p8 + r * value
    value = p7 + r * value
    value = p6 + r * value
    value = p5 + r * value
    value = p4 + r * value
    value = p3 + r * value
    value = p2 + r * value
    value = p1 + r * value
    return p0 + r * value


@no_type_check
def inverse_power(n):
    """2^-n for a whole number n; a table would be read one mode at a time."""
    exponent = np.int64(1023 - np.int32(n))
    bits = np.int64(exponent << np.int64(52))
    return bits.view(np.float64)


@no_type_check
def moved(state, d, sinusoids, x, y, a, b):
    """``state`` moved on by ``d`` into x + i y; a + i b is what it was multiplied by.

    A part that has faded is set to 0: it would stay at numbers that are slow.
    """
    turns(d, sinusoids, 0, a, b)
    tiny = x.dtype.type(1e-30)
    zero = x.dtype.type(0.0)
    for j in range(len(x)):
        re = state[j].real
        im = state[j].imag
        u = re * a[j] - im * b[j]
        v = re * b[j] + im * a[j]
        x[j] = u if abs(u) > tiny else zero
        y[j] = v if abs(v) > tiny else zero


@no_type_check
def read_out(x, y, re, im):
    """Re[(re - i im) (x + i y)], summed over the modes."""
    total = x.dtype.type(0.0)
    for j in range(len(x)):
        total += x[j] * re[j] + y[j] * im[j]
    return total


@no_type_check
def step(u, v, c, s, p, q, total):
    """u + i v times c + i s, and the sum of ``total`` and the read-out of the product."""
    later_u = u * c - v * s
    later_v = u * s + v * c
    total += later_u * p + later_v * q
    return later_u, later_v, total


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
        u, v, t1 = step(u, v, c, s, p, q, t1)
        u, v, t2 = step(u, v, c, s, p, q, t2)
        u, v, t3 = step(u, v, c, s, p, q, t3)
        u, v, t4 = step(u, v, c, s, p, q, t4)
        u, v, t5 = step(u, v, c, s, p, q, t5)
        u, v, t6 = step(u, v, c, s, p, q, t6)
        u, v, t7 = step(u, v, c, s, p, q, t7)
        u, v, t8 = step(u, v, c, s, p, q, t8)
        later_x[j] = u
        later_y[j] = v
    z[0] = t1
    z[1] = t2
    z[2] = t3
    z[3] = t4
    z[4] = t5
    z[5] = t6
    z[6] = t7
    z[7] = t8


@no_type_check
def stepped_values(own, left, width, panels, model, work):
    """Read-outs at the nodes of panels of [left, left + width], by multiplication from node to
    node, into (M, Q) ``z`` of the workspace.
    """
    read = model.read
    z = work.z
    x = work.modes[0]
    y = work.modes[1]
    a = work.modes[2]
    b = work.modes[3]
    later_x = work.modes[4]
    later_y = work.modes[5]
    if left > 0.0:
        moved(own, left, model.sinusoids, x, y, a, b)
    else:
        for j in range(len(x)):
            x[j] = own[j].real
            y[j] = own[j].imag
    turns(width / (PANEL * panels), model.sinusoids, 0, a, b)
    for m in range(len(read)):
        z[m, 0] = read_out(x, y, read[m, 0], read[m, 1])
    for p in range(panels):
        first = PANEL * p + 1
        for m in range(len(read)):
            values = z[m, first : first + PANEL]
            eight(x, y, a, b, read[m, 0], read[m, 1], later_x, later_y, values)
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
def coefficients(own, gap, series, work, ready, kept, row):
    """The coefficients of the pieces that a gap in the model's unit takes, into ``terms`` of the
    workspace; how many pieces, or 0 if the series do not reach so far.

    The first pieces are kept in (R, M, P', N) ``kept``, those of a ``row`` as long as ready[row]
    counts them.
    """
    x = work.x
    y = work.y
    c = work.terms
    marks, _, longest = c.shape
    most, blocks = series.terms.shape
    if most == 0 or not gap <= series.ends[most]:
        return 0
    pieces = 1
    while series.ends[pieces] < gap:
        pieces += 1
    have = min(ready[row], pieces)
    for m in range(marks):
        for p in range(have):
            for n in range(longest):
                c[m, p, n] = kept[row, m, p, n]
    if have == pieces:
        return pieces
    size = x.shape[1]
    for b in range(blocks):
        for j in range(size):
            mode = own[b * size + j]
            x[b, j] = mode.real
            y[b, j] = mode.imag
    for m in range(marks):
        for p in range(have, pieces):
            for n in range(longest):
                c[m, p, n] = 0.0
            for b in range(blocks):
                terms = series.terms[p, b]
                first = series.first[p, b] + m * terms
                for n in range(0, terms, GROUP):
                    four(b, x, y, first + n, series.table, c, m, p, n)
    keep = min(pieces, kept.shape[2])
    for m in range(marks):
        for p in range(have, keep):
            for n in range(longest):
                kept[row, m, p, n] = c[m, p, n]
    ready[row] = max(have, keep)
    return pieces


@no_type_check
def negligible_from(c, m, p, error):
    """The number of the first coefficient, a multiple of GROUP, from which on all of them together
    are below ``error``.
    """
    most = c.shape[2]
    rest = 0.0
    while most > GROUP and rest + abs(c[m, p, most - 1]) <= error:
        most -= 1
        rest += abs(c[m, p, most])
    return (most + GROUP - 1) // GROUP * GROUP


@no_type_check
def series_values(left, width, steps, series, pieces, work):
    """Read-outs at nodes 0..steps of [left, left + width], in the model's unit, by Clenshaw's
    recurrence, into (M, Q) ``z`` of the workspace.

    The last terms are left out where all of them together are below the error of the series. Four
    terms are added in one pass over the nodes.
    """
    c = work.terms
    nodes = work.nodes
    step = width / steps
    done = 0
    for p in range(pieces):
        begin = series.ends[p]
        end = series.ends[p + 1]
        half = (end - begin) / 2
        first = done
        while done <= steps and (p == pieces - 1 or left + done * step <= end):
            done += 1
        count = done - first
        for i in range(count):
            since = left + (first + i) * step - begin
            nodes[0, i] = 2.0 * (since / half - 1.0)
        for m in range(c.shape[0]):
            most = negligible_from(c, m, p, series.error)
            for i in range(count):
                nodes[1, i] = 0.0
                nodes[2, i] = 0.0
            for n in range(most - GROUP, -1, -GROUP):
                c0 = c[m, p, n]
                c1 = c[m, p, n + 1]
                c2 = c[m, p, n + 2]
                c3 = c[m, p, n + 3]
                for i in range(count):
                    t = nodes[0, i]
                    b4 = nodes[1, i]
                    b5 = nodes[2, i]
                    b3 = c3 + t * b4 - b5
                    b2 = c2 + t * b3 - b4
                    b1 = c1 + t * b2 - b3
                    nodes[2, i] = b1
                    nodes[1, i] = c0 + t * b1 - b2
            for i in range(count):
                work.z[m, first + i] = nodes[1, i] - 0.5 * nodes[0, i] * nodes[2, i]


@no_type_check
def exponential(x):
    """e^x as 2^-n 2^-r, without a call; 0 where the result would be too small to be a normal
    number.
    """
    v = x if x > LOWEST else LOWEST
    v = v if v < HIGHEST else HIGHEST
    h = -LOG2_E * v
    n = np.floor(h + 0.5)
    f = half_power(h - n) * inverse_power(n)
    f = f if x >= LOWEST else 0.0
    return f if x <= HIGHEST else x + np.inf  # infinite, or no number where x is none


@no_type_check
def log_one_plus(t):
    """log(1 + t) for t from 0 to 1, as 2 artanh(t / (2 + t)), without a call."""
    s = t / (2.0 + t)
    w = s * s
    f = 1 / 31 + w * (1 / 33)
    f = 1 / 29 + w * f
    f = 1 / 27 + w * f
    f = 1 / 25 + w * f
    f = 1 / 23 + w * f
    f = 1 / 21 + w * f
    f = 1 / 19 + w * f
    f = 1 / 17 + w * f
    f = 1 / 15 + w * f
    f = 1 / 13 + w * f
    f = 1 / 11 + w * f
    f = 1 / 9 + w * f
    f = 1 / 7 + w * f
    f = 1 / 5 + w * f
    f = 1 / 3 + w * f
    f = 1.0 + w * f
    return 2.0 * s * f


@no_type_check
def softplus(x):
    """log(1 + e^x), without a call."""
    rest = exponential(-abs(x))
    return max(x, 0.0) + log_one_plus(rest)


@no_type_check
def cell_of(at, shape):
    """The interval of the splines that holds ``at``, in units of their width."""
    last = len(shape.cubics) - 1.0
    return int(min(at, last))


@no_type_check
def cubic(low, u):
    """A cubic at ``u``, given its four coefficients."""
    value = low[2] + u * low[3]
    value = low[1] + u * value
    return low[0] + u * value


@no_type_check
def curves(curve, steps, first, step, shape, nodes):
    """A spline at nodes 0..steps, ``step`` apart from ``first`` on in units of its intervals, into
    row 0 of ``nodes``.
    """
    cell = cell_of(first, shape)
    if cell == cell_of(first + steps * step, shape):
        a0 = shape.cubics[cell, curve, 0]
        a1 = shape.cubics[cell, curve, 1]
        a2 = shape.cubics[cell, curve, 2]
        a3 = shape.cubics[cell, curve, 3]
        for q in range(steps + 1):
            u = first - cell + q * step
            nodes[0, q] = a0 + u * (a1 + u * (a2 + u * a3))
        return
    for q in range(steps + 1):
        at = first + q * step
        cell = cell_of(at, shape)
        u = at - cell
        nodes[0, q] = cubic(shape.cubics[cell, curve], u)


@no_type_check
def rates(z, steps, left, width, shape, total, nodes):
    """The rate of all marks at nodes 0..steps of [left, left + width], per unit of the model's
    time, into (Q,) ``total``; (M, Q) z.
    """
    marks = len(z)
    first = left / shape.cell
    step = width / shape.cell / steps
    for q in range(steps + 1):
        total[q] = 0.0
    for m in range(marks):
        bias = shape.bias[m]
        size = shape.size[m]
        level = shape.level[m]
        curves(marks + m, steps, first, step, shape, nodes)
        if shape.link == 0:
            for q in range(steps + 1):
                total[q] += nodes[0, q] + z[m, q] + bias
        elif shape.link == 1:
            for q in range(steps + 1):
                x = nodes[0, q] + z[m, q] + bias
                total[q] += exponential(x)
        else:
            for q in range(steps + 1):
                x = nodes[0, q] + z[m, q] + bias
                total[q] += size * softplus(x)
        if shape.splined_base:
            curves(m, steps, first, step, shape, nodes)
            for q in range(steps + 1):
                total[q] += exponential(nodes[0, q])
        else:
            for q in range(steps + 1):
                total[q] += level


@no_type_check
def log_rate(z, m, M, time, shape):
    """log lambda of mark ``m`` at ``time`` per unit of the user's time, formed before anything can
    overflow.
    """
    at = time / shape.cell
    cell = cell_of(at, shape)
    u = at - cell
    base = cubic(shape.cubics[cell, m], u)
    high = shape.cubics[cell, M + m]
    x = z + shape.bias[m] + high[0] + u * (high[1] + u * (high[2] + u * high[3]))
    if shape.link == 0:
        return np.log(np.exp(base) + x) - shape.log_unit
    if shape.link == 2:
        log_size = np.log(shape.size[m])
        if x < -36.0:  # where the logarithm of softplus is its argument
            bent = x
        else:
            rest = np.exp(-abs(x))
            bent = np.log(max(x, 0.0) + np.log1p(rest))
        x = log_size + bent
    rest = np.exp(-abs(base - x))
    return max(base, x) + np.log1p(rest) - shape.log_unit


@no_type_check
def integrated(total, panels, width, care):
    """The integral of a rate given at the nodes of panels, and its error, as `dapp_step` estimates
    it.
    """
    rule = care.rule
    value = doubt = 0.0
    for p in range(panels):
        mean = c5 = c6 = c7 = c8 = 0.0
        for i in range(PANEL + 1):
            rate = total[PANEL * p + i]
            mean += rule[0, i] * rate
            c5 += rule[1, i] * rate
            c6 += rule[2, i] * rate
            c7 += rule[3, i] * rate
            c8 += rule[4, i] * rate
        before = max(abs(c5), abs(c6))
        end = max(abs(c7), abs(c8))
        falling = 1.0
        if p == 0:
            falling = care.edge
        elif end < before:
            falling = end / before
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
        inside = 1e-9 * width < knot < width
        if inside and at + knot <= shape.length * (1 + 1e-12):
            first = knot
    share = allowed * first / width
    stack[top, 0] = left + first
    stack[top, 1] = width - first
    stack[top, 2] = allowed - share
    stack[top, 3] = depth + 1.0
    stack[top + 1, 0] = left
    stack[top + 1, 1] = first
    stack[top + 1, 2] = share
    stack[top + 1, 3] = depth + 1.0
