r"""DAPP's log-likelihood for evaluation, one sequence at a time in one sweep, compiled with numba.

With all heads' modes in one row j = 1..J, states S_j, a_j = -gamma_j + i theta_j and the read-out
R_jm = r_m w_j exp(i psi_jm),

    z_m(d) = sum_j Re[R_jm exp(a_j d) S_j],   lambda_m = exp(outside_m(t)) + g(inside_m(t) + z_m),

where outside_m and inside_m are the baseline, piecewise cubics of the time since the window's
start with any breakpoints. The total rate between two events is integrated in panels of eight equal
steps, so that the states at all nodes follow from one exponential by multiplication. A panel
contains no breakpoint, and no step is longer than STEP times the shortest time in which a mode that
has not faded changes: a change of the rate between two nodes is seen at the nodes. Each panel has
two rules on the same nine nodes,

    value  the rule of Newton and Cotes that is exact for polynomials of degree 9,
    rough  twice that of Boole, exact for degree 5,
    error  = |value - rough| + (b - a) c f,  c the larger of the last two Legendre coefficients,

f being how much these fell over the two before, and EDGE in the first panel after an event, whose
first node alone may be raised. A panel is halved until its error is at most its share of the
tolerance by width, every gap having an even share, or until it is within the rounding of rates in
the model's precision. Rounding of rates and of times is added, as in `ops.quadrature`.

All arithmetic is in float64. Times are in the model's unit. Axes: B sequences, N events, M marks, J
modes, P pieces of the baseline, and R = 1 or B baselines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels import numba_dapp_stream as stream_loops
from fourpoint.kernels.compiling import machine_code, threads
from fourpoint.kernels.numba_dapp_stream import (
    FASTMATH,
    Sinusoids,
    double_turns,
    eight,
    exponential,
    log_one_plus,
    sinusoids,
)

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.int64]
STEPS = 8  # of a panel
STEP = 2.0  # radians or e-foldings of the fastest mode in one step, at most
GONE = 6.0  # e-foldings after which a mode does not limit the steps
EDGE = 1.1  # error of a panel whose first rate alone is off, in units of its last coefficient
WIDER = 4.0  # how much wider than the last panel the next may be, after one was halved
NARROWEST = 2.0**-40  # of a gap: panels that are not halved further
MOST_PANELS = 2**14  # of a gap
ROUNDING, NOISE = 4.0, 4.0  # as in `ops.quadrature`
FAINT = 1e-200  # states below it are 0: numbers that are no longer normal are slow


class Data(NamedTuple):
    """Sequences: times of edges since the window's start, marks, lengths, and the largest rounding
    error of a time.
    """

    edges: Floats  # (B, N + 2): the start, the events, the end of the window in what remains
    marks: Integers  # (B, N)
    lengths: Integers  # (B,)
    resolution: Floats  # (B,)


class Modes(NamedTuple):
    """All heads' modes: their sinusoids, R, what an event adds to the states, and the longest
    steps.
    """

    sinusoids: Sinusoids  # (J,)
    read: Floats  # (M, 2, J): Re R, and -Im R
    constant: Floats  # (M, 2, J): what an event of a mark adds, real and imaginary parts
    trend: Floats  # (M, 2, J): the same, per unit of time since the window's start
    since: Floats  # (L,): times since the last event, from 0 on,
    longest: Floats  # (L,): from which on a step may be so long


class Baseline(NamedTuple):
    """Piecewise cubics of the time since the window's start: one row for all sequences, or one for
    each.
    """

    breaks: Floats  # (R, P + 1): where pieces begin, at most 0 first, and infinity
    outside: Floats  # (R, P, M, 4): log mu, in powers of the time since the piece's beginning
    inside: Floats  # (R, P, M, 4): what is added to z, less log s


class Link(NamedTuple):
    """g: 0 identity, 1 exponential, 2 softplus of scale s."""

    kind: int
    log_scale: Floats  # (M,): log s, or 0


class Care(NamedTuple):
    """What is asked of the integrals."""

    tolerance: float  # of one gap
    eps: float  # precision of the rates
    log_unit: float  # log of the model's unit of time


class Scored(NamedTuple):
    """log lambda of the own mark at every event, per model time; the integral over every gap and
    its error; whether all integrals of a sequence settled.
    """

    logs: Floats  # (B, N)
    integral: Floats  # (B, N + 1)
    error: Floats  # (B, N + 1)
    settled: NDArray[np.bool_]  # (B,)


@cache
def load() -> Callable[..., Scored]:
    """:func:`scored` with its loops as machine code, cached on disk between runs if possible."""
    turning = (double_turns, eight, exponential, log_one_plus)
    reading = (read_state, walk, dots, cubic, add_curves, log_rate)
    stepping = (longest_step, panel, gap, absorb)
    code = machine_code(
        (stream_loops, sys.modules[__name__]),
        (sweep,),
        loops=(*turning, *reading, *stepping),
        fastmath=FASTMATH,
    )
    compiled = code["sweep"]

    def run(data: Data, modes: Modes, baseline: Baseline, link: Link, care: Care) -> Scored:
        return scored(compiled, data, modes, baseline, link, care)

    return run


def scored(
    loops: Callable[..., None],
    data: Data,
    modes: Modes,
    baseline: Baseline,
    link: Link,
    care: Care,
) -> Scored:
    """All sequences, shared out among threads. Each is computed in one of them, so that results do
    not depend on their number.
    """
    B, N = data.marks.shape
    found = Scored(
        np.zeros((B, N)), np.zeros((B, N + 1)), np.zeros((B, N + 1)), np.ones(B, dtype=np.bool_)
    )
    count = max(1, min(threads(), B))
    given = (data, modes, baseline, link, care, _rule(), found)
    waiting = [_pool(count, os.getpid()).submit(loops, i, count, *given) for i in range(1, count)]
    loops(0, count, *given)
    for one in waiting:
        one.result()
    return found


@cache
def _pool(count: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: one that was forked does not inherit them."""
    return ThreadPoolExecutor(count - 1)


def modes_of(
    frequency: Floats, decay: Floats, read: Complexes, constant: Complexes, trend: Complexes
) -> Modes:
    """From (J,) theta and gamma, (M, J) R and what events add, a constant and a trend."""
    since, longest = _longest_steps(np.hypot(frequency, decay), decay)
    return Modes(
        sinusoids(frequency, decay, np.float64),
        np.ascontiguousarray(np.stack([read.real, -read.imag], 1)),
        np.ascontiguousarray(np.stack([constant.real, constant.imag], 1)),
        np.ascontiguousarray(np.stack([trend.real, trend.imag], 1)),
        since,
        longest,
    )


def _longest_steps(speed: Floats, decay: Floats) -> tuple[Floats, Floats]:
    """Times since the last event, and the longest step from each on: STEP over the largest speed of
    the modes that have not faded by then.
    """
    order = np.argsort(-speed, kind="stable")
    gone = GONE / np.maximum(decay[order], 1e-300)  # when a mode has faded
    since = np.concatenate([[0.0], np.maximum.accumulate(gone)])
    slowest = np.concatenate([speed[order], [0.0]])
    kept = np.append(np.diff(since) > 0, True) & (since < 1e290)
    return since[kept], STEP / np.maximum(slowest[kept], 1e-300)


@cache
def _rule() -> Floats:
    """What maps rates at the nodes of a panel to their mean, to its difference from that of Boole's
    rule, and to the last four Legendre coefficients, (6, STEPS + 1).
    """
    nodes = np.linspace(-1, 1, STEPS + 1)
    inverse = np.linalg.inv(np.polynomial.legendre.legvander(nodes, STEPS))
    boole = np.array([7, 32, 12, 32, 14, 32, 12, 32, 7]) / 180
    return np.concatenate([inverse[:1], inverse[:1] - boole, inverse[-4:]])


# numba has its own types, and so none are given from here on.


@no_type_check
def sweep(first, step, data, modes, baseline, link, care, rule, found):
    """Sequences first, first + step, ..."""
    M, _, J = modes.read.shape
    states = np.empty((2, 2, J))
    turn = np.empty((2, J))
    walked = np.empty((STEPS if M > 1 else 0, 2, J))
    z = np.empty((M, STEPS + 1))
    total = np.empty(STEPS + 1)
    answer = np.empty(2)
    for b in range(first, len(data.lengths), step):
        r = b if len(baseline.breaks) > 1 else 0
        for k in range(2):
            for j in range(J):
                states[0, k, j] = 0.0
        current = 0
        piece = 0
        for g in range(data.lengths[b] + 1):
            current, piece = gap(
                b, r, g, current, piece, data, modes, baseline, link, care, rule, states, turn,
                walked, z, total, answer,
            )  # fmt: skip
            found.integral[b, g] = answer[0]
            found.error[b, g] = answer[1]
            if current < 0:
                found.settled[b] = False
                break
            if g < data.lengths[b]:
                at = data.edges[b, g + 1]
                mark = data.marks[b, g]
                while baseline.breaks[r, piece + 1] <= at:
                    piece += 1
                since = at - baseline.breaks[r, piece]
                found.logs[b, g] = log_rate(z[mark, 0], mark, r, piece, since, baseline, link)
                absorb(current, mark, at, modes, states)


@no_type_check
def gap(
    b, r, g, current, piece, data, modes, baseline, link, care, rule, states, turn, walked, z,
    total, answer,
):  # fmt: skip
    """The integral over gap ``g`` and its error, into ``answer``; z at its end, into z[:, 0]. What
    comes back: which of the two ``states`` is the one at the end, or -1 if the integral does not
    settle, and the piece of the baseline there.
    """
    begin = data.edges[b, g]
    whole = data.edges[b, g + 1] - begin
    answer[0], answer[1] = 0.0, 0.0
    while baseline.breaks[r, piece + 1] <= begin:
        piece += 1
    for m in range(len(z)):
        z[m, 0] = read_state(m, current, modes, states) if g > 0 else 0.0
    passed = 0.0
    widest = np.inf
    panels = 0
    while passed < whole:
        stop = min(whole, baseline.breaks[r, piece + 1] - begin)
        if stop <= passed:
            piece += 1
            continue
        width = stop - passed
        longest = STEPS * longest_step(passed, modes) if g > 0 else np.inf
        longest = min(longest, widest)
        last = width <= longest
        if not last:
            width /= np.ceil(width / longest)
        while True:
            panels += 1
            since = begin + passed - baseline.breaks[r, piece]
            value, doubt, rounding = panel(
                r, piece, current, g > 0, passed == 0.0, since, width, data.resolution[b], modes,
                baseline, link, care, rule, states, turn, walked, z, total,
            )  # fmt: skip
            if doubt <= care.tolerance * width / whole or doubt <= NOISE * rounding:
                break
            if panels > MOST_PANELS or width < NARROWEST * whole or not value < np.inf:
                return -1, piece
            width /= 2
            widest = width
            last = False
        answer[0] += value
        answer[1] += doubt + rounding
        passed = stop if last else passed + width
        widest *= WIDER
        for m in range(len(z)):
            z[m, 0] = z[m, STEPS]
        if g > 0:
            current = 1 - current
    return current, piece


@no_type_check
def panel(
    r, piece, current, past, early, since, width, resolution, modes, baseline, link, care, rule,
    states, turn, walked, z, total,
):  # fmt: skip
    """The integral over one panel, its discretisation error and its rounding error. The states at
    its end come into the other one of ``states``, and z at the nodes into ``z``.
    """
    M = len(z)
    step = width / STEPS
    if past:
        double_turns(step, modes.sinusoids, 0, turn[0], turn[1])
        if M == 1:
            eight(
                states[current, 0], states[current, 1], turn[0], turn[1], modes.read[0, 0],
                modes.read[0, 1], states[1 - current, 0], states[1 - current, 1], z[0, 1:],
            )  # fmt: skip
        else:
            walk(current, states, turn, walked)
            for m in range(M):
                dots(m, modes, walked, z)
    else:
        for m in range(M):
            for q in range(1, STEPS + 1):
                z[m, q] = 0.0
    for q in range(STEPS + 1):
        total[q] = 0.0
    for m in range(M):
        add_curves(m, r, piece, since, step, baseline, link, z, total)
    mean = rough = c5 = c6 = c7 = c8 = swing = 0.0
    lowest = highest = total[0]
    for q in range(STEPS + 1):
        rate = total[q]
        mean += rule[0, q] * rate
        rough += rule[1, q] * rate
        c5 += rule[2, q] * rate
        c6 += rule[3, q] * rate
        c7 += rule[4, q] * rate
        c8 += rule[5, q] * rate
        lowest = min(lowest, rate)
        highest = max(highest, rate)
    for q in range(STEPS):
        swing += abs(total[q + 1] - total[q])
    before = max(abs(c5), abs(c6))
    end = max(abs(c7), abs(c8))
    falling = end / before if end < before else 1.0
    if early and past:
        falling = EDGE
    size = max(
        abs(np.log(max(lowest, 1e-300)) - care.log_unit),
        abs(np.log(max(highest, 1e-300)) - care.log_unit),
    )
    rounding = ROUNDING * care.eps * width * mean * (1.0 + size) + resolution * swing
    return width * mean, width * (abs(rough) + end * falling), rounding


@no_type_check
def longest_step(passed, modes):
    """The longest step from ``passed`` after the last event on."""
    low = 0
    high = len(modes.since)
    while high - low > 1:
        middle = (low + high) // 2
        if modes.since[middle] <= passed:
            low = middle
        else:
            high = middle
    return modes.longest[low]


@no_type_check
def read_state(m, current, modes, states):
    """z_m where the states are."""
    value = 0.0
    for j in range(states.shape[2]):
        value += (
            states[current, 0, j] * modes.read[m, 0, j]
            + states[current, 1, j] * modes.read[m, 1, j]
        )
    return value


@no_type_check
def absorb(current, mark, at, modes, states):
    """One event more, ``at`` so much after the window's start."""
    for k in range(2):
        for j in range(states.shape[2]):
            x = states[current, k, j]
            x = x if abs(x) > FAINT else 0.0
            states[current, k, j] = x + modes.constant[mark, k, j] + at * modes.trend[mark, k, j]


@no_type_check
def walk(current, states, turn, walked):
    """The states after 1 to STEPS steps, and the last of them as the other one of ``states``."""
    J = states.shape[2]
    for j in range(J):
        u = states[current, 0, j]
        v = states[current, 1, j]
        c = turn[0, j]
        s = turn[1, j]
        for q in range(STEPS):
            u, v = u * c - v * s, u * s + v * c
            walked[q, 0, j] = u
            walked[q, 1, j] = v
        states[1 - current, 0, j] = u
        states[1 - current, 1, j] = v


@no_type_check
def dots(m, modes, walked, z):
    """z_m after 1 to STEPS steps."""
    t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = 0.0
    for j in range(walked.shape[2]):
        p = modes.read[m, 0, j]
        q = modes.read[m, 1, j]
        t1 += walked[0, 0, j] * p + walked[0, 1, j] * q
        t2 += walked[1, 0, j] * p + walked[1, 1, j] * q
        t3 += walked[2, 0, j] * p + walked[2, 1, j] * q
        t4 += walked[3, 0, j] * p + walked[3, 1, j] * q
        t5 += walked[4, 0, j] * p + walked[4, 1, j] * q
        t6 += walked[5, 0, j] * p + walked[5, 1, j] * q
        t7 += walked[6, 0, j] * p + walked[6, 1, j] * q
        t8 += walked[7, 0, j] * p + walked[7, 1, j] * q
    z[m, 1], z[m, 2], z[m, 3], z[m, 4] = t1, t2, t3, t4
    z[m, 5], z[m, 6], z[m, 7], z[m, 8] = t5, t6, t7, t8


@no_type_check
def cubic(curves, m, r, piece, since):
    """One curve at ``since`` the beginning of its piece."""
    a3 = curves[r, piece, m, 3]
    a2 = curves[r, piece, m, 2] + since * a3
    a1 = curves[r, piece, m, 1] + since * a2
    return curves[r, piece, m, 0] + since * a1


@no_type_check
def add_curves(m, r, piece, since, step, baseline, link, z, total):
    """The rates of mark m at the nodes, added to ``total``."""
    size = np.exp(link.log_scale[m])
    a0 = baseline.inside[r, piece, m, 0]
    a1 = baseline.inside[r, piece, m, 1]
    a2 = baseline.inside[r, piece, m, 2]
    a3 = baseline.inside[r, piece, m, 3]
    if link.kind == 0:
        for q in range(STEPS + 1):
            d = since + q * step
            total[q] += z[m, q] + (a0 + d * (a1 + d * (a2 + d * a3)))
    elif link.kind == 1:
        for q in range(STEPS + 1):
            d = since + q * step
            total[q] += exponential(z[m, q] + (a0 + d * (a1 + d * (a2 + d * a3))))
    else:
        for q in range(STEPS + 1):
            d = since + q * step
            x = z[m, q] + (a0 + d * (a1 + d * (a2 + d * a3)))
            total[q] += size * (max(x, 0.0) + log_one_plus(exponential(-abs(x))))
    a0 = baseline.outside[r, piece, m, 0]
    a1 = baseline.outside[r, piece, m, 1]
    a2 = baseline.outside[r, piece, m, 2]
    a3 = baseline.outside[r, piece, m, 3]
    if a1 == 0.0 and a2 == 0.0 and a3 == 0.0:
        level = np.exp(a0)
        for q in range(STEPS + 1):
            total[q] += level
    else:
        for q in range(STEPS + 1):
            d = since + q * step
            total[q] += exponential(a0 + d * (a1 + d * (a2 + d * a3)))


@no_type_check
def log_rate(z, m, r, piece, since, baseline, link):
    """log lambda of mark m, formed before anything can overflow."""
    base = cubic(baseline.outside, m, r, piece, since)
    x = z + cubic(baseline.inside, m, r, piece, since)
    if link.kind == 0:
        return np.log(np.exp(base) + x)
    if link.kind == 2:  # below -36 the logarithm of softplus is its argument
        x = link.log_scale[m] + (
            x if x < -36.0 else np.log(max(x, 0.0) + np.log1p(np.exp(-abs(x))))
        )
    return max(base, x) + np.log1p(np.exp(-abs(base - x)))
