r"""DAPP's log-likelihood for evaluation, one sequence at a time in one sweep, compiled with numba.

With all heads' modes in one row j = 1..J, states S_j, a_j = -gamma_j + i theta_j and the read-out
R_jm = r_m w_j exp(i psi_jm),

    z_m(d) = sum_j Re[R_jm exp(a_j d) S_j],   lambda_m = exp(outside_m(t)) + g(inside_m(t) + z_m),

where outside_m and inside_m are the baseline, piecewise cubics of the time since the window's
start with any breakpoints.

After an event z_m is a Chebyshev series of the time d: in a stretch of width w,

    z_m = sum_n c_mn T_n(2 d / w - 1),   c_mn = sum_j Re[C_nj R_jm S_j],

and C, the coefficients of exp(a_j d), depends on the model alone. Modes are in order of their
speed, so that coefficient n takes only those modes that turn fast enough to have one
(:class:`Expansion`). One product of C with the states of several gaps replaces the states at all
nodes. States move on from one stretch to the next; stretches are longer where fast modes have
faded.

The total rate between two events is integrated in panels of eight equal steps. A panel
contains no breakpoint, and no step is longer than STEP times the shortest time in which a mode that
has not faded changes: a change of the rate between two nodes is seen at the nodes. Each panel has
two rules on the same nine nodes,

    value  the rule of Newton and Cotes that is exact for polynomials of degree 9,
    rough  twice that of Boole, exact for degree 5,
    error  = |value - rough| + (b - a) c f,  c the larger of the last two Legendre coefficients,

f being how much these fell over the two before, and EDGE in the first panel after an event, whose
first node alone may be raised. A panel is halved until its error is at most its share of the
tolerance by width, every gap having an even share, or until it is within the rounding of rates in
the model's precision. Rounding of rates and of times is added, as in `ops.quadrature`, and what the
series leaves out: d log(lambda_m) / dz is at most 1 for the exponential and the softplus.

All arithmetic is in float64. Times are in the model's unit. Axes: B sequences, N events, M marks, J
modes, P pieces of the baseline, and R = 1 or B baselines.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels import numba_dapp_stream as stream_loops
from fourpoint.kernels.compiling import machine_code, threads
from fourpoint.kernels.numba_dapp_stream import (
    FASTMATH,
    Sinusoids,
    double_turns,
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
TURNS = (4.0, 8.0, 16.0, 32.0)  # radians or e-foldings of the fastest mode in the first stretch
POINTS = 64  # at which Chebyshev coefficients are read off: more than a stretch ever needs
TILE = 4  # coefficients, and series, that are formed in one pass over the modes
LONGER = 4.0  # how much longer a stretch has to become to have coefficients of its own
GAPS, SERIES = 8, 32  # gaps whose series are formed together, at most, and series at most
MOST_STRETCHES = 2**12  # of a gap
FINEST = 1e-14  # of what a series may leave out of one mode, in units of the mode


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


class Expansion(NamedTuple):
    """exp(a_j d) as Chebyshev series in stretches of time, for L widths of them.

    Stretches of width l are used from ``begin[l]`` after an event on, when the modes before
    ``fastest[l]`` have faded. Coefficient n of width l is row first[l] + n of the table, which is 0
    from mode stop[first[l] + n] on.
    """

    begin: Floats  # (L,)
    width: Floats  # (L,): infinite last, where all modes have faded
    fastest: Integers  # (L,)
    first: Integers  # (L + 1,)
    stop: Integers  # (rows,)
    table: Floats  # (rows, 2, J): Re C, and -Im C
    turn: Floats  # (L, 2, J): exp(a_j w), real and imaginary parts
    error: float  # what is left out of a mode at most


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
    turning = (double_turns, exponential, log_one_plus)
    reading = (read_state, move, tile, expand, series, cubic, add_curves, log_rate)
    stepping = (longest_step, panel, stretch, follow, absorb)
    code = machine_code(
        (stream_loops, sys.modules[__name__]),
        (sweep,),
        loops=(*turning, *reading, *stepping),
        fastmath=FASTMATH,
    )
    compiled = code["sweep"]

    def run(
        data: Data,
        modes: Modes,
        expansion: Expansion,
        baseline: Baseline,
        link: Link,
        care: Care,
    ) -> Scored:
        return scored(compiled, data, modes, expansion, baseline, link, care)

    return run


def scored(
    loops: Callable[..., None],
    data: Data,
    modes: Modes,
    expansion: Expansion,
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
    given = (data, modes, expansion, baseline, link, care, _rule(), found)
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
    """From (J,) theta and gamma, (M, J) R and what events add, a constant and a trend; fast modes
    first.
    """
    order = np.argsort(-np.hypot(frequency, decay), kind="stable")
    frequency, decay = frequency[order], decay[order]
    read, constant, trend = (x[:, order] for x in (read, constant, trend))
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


def expansion_of(frequency: Floats, decay: Floats, longest: float, eps: float) -> Expansion:
    """Series of modes with (J,) theta and gamma, in gaps up to the ``longest``, for rates of
    precision ``eps``. The last few are kept, since the batches of a data set share them.

    The width of the first stretch is the one with the fewest coefficients in exponential gaps of
    mean 1.
    """
    reach = 4.0 ** math.ceil(math.log(max(longest, 1.0), 4))
    return _expansion(frequency.tobytes(), decay.tobytes(), reach, eps)


@lru_cache(maxsize=4)
def _expansion(frequencies: bytes, decays: bytes, longest: float, eps: float) -> Expansion:
    frequency, decay = np.frombuffer(frequencies), np.frombuffer(decays)
    speed = np.hypot(frequency, decay)
    order = np.argsort(-speed, kind="stable")
    speed = np.maximum(speed[order], 1e-9)
    power = (-decay + 1j * frequency)[order]
    allowed = max(eps / 16, FINEST)
    faded = np.maximum.accumulate(-math.log(allowed) / np.maximum(decay[order], 1e-300))
    widths = np.array(TURNS) / speed[0]
    terms = speed * widths[:, None] / 2 + 8
    turns = TURNS[int((terms.sum(1) / -np.expm1(-widths)).argmin())]
    begin, width, fastest = [0.0], [turns / speed[0]], [0]
    for j in range(1, len(speed)):
        if faded[j - 1] < longest and turns / speed[j] >= LONGER * width[-1]:
            begin, width, fastest = (
                [*begin, float(faded[j - 1])],
                [*width, turns / speed[j]],
                [*fastest, j],
            )
    tables, stops = [], []
    lost = 0.0
    for j, wide in zip(fastest, width, strict=True):
        table, stop, left_out = _series(power, j, wide, allowed)
        tables.append(table)
        stops.append(stop)
        lost = max(lost, left_out)
    if faded[-1] < longest:
        begin, width, fastest = [*begin, float(faded[-1])], [*width, math.inf], [*fastest, 0]
        tables.append(tables[0][:0])
        stops.append(stops[0][:0])
    lags = np.minimum(width, 1e300)
    turn = np.exp(np.real(power) * lags[:, None] + 1j * np.imag(power) * lags[:, None])
    return Expansion(
        np.array(begin),
        np.array(width),
        np.array(fastest, dtype=np.int64),
        np.cumsum([0, *map(len, tables)]),
        np.concatenate(stops),
        np.concatenate(tables),
        np.ascontiguousarray(np.stack([turn.real, turn.imag], 1)),
        lost + allowed,
    )


def _series(
    power: Complexes, fastest: int, width: float, allowed: float
) -> tuple[Floats, Integers, float]:
    """The table of the modes from ``fastest`` on, where its rows stop, and the largest sum of what
    it leaves out of a mode.
    """
    theta = (np.arange(POINTS) + 0.5) * math.pi / POINTS
    to_coefficients = np.cos(np.arange(POINTS)[:, None] * theta) * 2 / POINTS
    to_coefficients[0] /= 2
    values = np.exp(power[fastest:, None] * (width * (np.cos(theta) + 1) / 2))
    parts = np.stack([values.real @ to_coefficients.T, values.imag @ to_coefficients.T])
    tails = np.cumsum(np.hypot(*parts)[:, ::-1], 1)[:, ::-1]  # (modes, POINTS)
    needed = (tails > allowed).sum(1)
    rows = -(-int(needed.max()) // TILE) * TILE
    wanted = needed[:, None] > np.arange(rows)
    stop = np.where(wanted.any(0), len(power) - wanted[::-1].argmax(0), fastest)
    stop = np.maximum.accumulate(stop[::-1])[::-1]  # a row of a tile takes what later rows take
    table = np.zeros((rows, 2, len(power)))
    kept = np.arange(fastest, len(power)) < stop[:, None]
    table[:, 0, fastest:] = np.where(kept, parts[0].T[:rows], 0.0)
    table[:, 1, fastest:] = np.where(kept, -parts[1].T[:rows], 0.0)
    left_out = np.take_along_axis(np.pad(tails, ((0, 0), (0, 1))), needed[:, None], 1)
    return table, stop, float(left_out.max())


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
def sweep(first, step, data, modes, expansion, baseline, link, care, rule, found):
    """Sequences first, first + step, ..."""
    M, _, J = modes.read.shape
    together = max(1, min(GAPS, SERIES // M))
    N = 0
    for level in range(len(expansion.width)):
        N = max(N, expansion.first[level + 1] - expansion.first[level])
    states = np.empty((2, J))
    turn = np.empty((2, J))
    folded = np.empty((together * M, 2, J))
    terms = np.empty((together * M, max(N, 1)))
    work = np.empty((3, STEPS + 1))
    z = np.empty((M, STEPS + 1))
    total = np.empty(STEPS + 1)
    chosen = np.empty(together * M, dtype=np.int64)
    # of each gap: what has been integrated, the widest next panel, the baseline's piece, the size
    # of its series, the integral and its error
    gaps = np.empty((together, 6))
    for b in range(first, len(data.lengths), step):
        r = b if len(baseline.breaks) > 1 else 0
        for k in range(2):
            for j in range(J):
                states[k, j] = 0.0
        piece = 0
        for begin in range(0, data.lengths[b] + 1, together):
            count = min(together, data.lengths[b] + 1 - begin)
            for i in range(count):
                piece = follow(
                    b, r, begin + i, i, piece, data, modes, baseline, link, states, turn, folded,
                    gaps, z, found,
                )  # fmt: skip
            passed = 0.0
            level = 0
            stretches = 0
            settled = True
            while settled:
                while level + 1 < len(expansion.begin) and expansion.begin[level + 1] <= passed:
                    level += 1
                series_needed = 0
                waiting = False
                for i in range(count):
                    g = begin + i
                    if data.edges[b, g + 1] - data.edges[b, g] > passed and gaps[i, 0] == passed:
                        waiting = True
                        if g > 0:
                            for m in range(M):
                                chosen[series_needed] = i * M + m
                                series_needed += 1
                if not waiting:
                    break
                expand(series_needed, chosen, level, expansion, folded, terms)
                for i in range(count):
                    g = begin + i
                    whole = data.edges[b, g + 1] - data.edges[b, g]
                    if whole > passed and gaps[i, 0] == passed:
                        settled = settled and stretch(
                            b, r, g, i, whole, passed, level, data, modes, expansion, baseline,
                            link, care, rule, terms, work, z, total, gaps,
                        )  # fmt: skip
                stretches += 1
                passed += expansion.width[level]
                settled = settled and stretches < MOST_STRETCHES
                for i in range(count):
                    g = begin + i
                    if g > 0 and data.edges[b, g + 1] - data.edges[b, g] > passed:
                        for m in range(M):
                            move(i * M + m, level, expansion, folded)
            if not settled:
                found.settled[b] = False
                break
            for i in range(count):
                found.integral[b, begin + i] = gaps[i, 4]
                found.error[b, begin + i] = gaps[i, 5]


@no_type_check
def follow(
    b, r, g, i, piece, data, modes, baseline, link, states, turn, folded, gaps, z, found
):  # fmt: skip
    """R S of all marks at the beginning of gap ``g``, into rows i M to i M + M - 1 of ``folded``;
    the states at its end, with the event there, and the event's log rate. What comes back is the
    piece of the baseline at the end.
    """
    M, _, J = modes.read.shape
    begin = data.edges[b, g]
    at = data.edges[b, g + 1]
    while baseline.breaks[r, piece + 1] <= begin:
        piece += 1
    size = 0.0
    if g > 0:
        for m in range(M):
            row = i * M + m
            one = 0.0
            for j in range(J):
                p = modes.read[m, 0, j]
                q = modes.read[m, 1, j]
                x = states[0, j]
                y = states[1, j]
                u = p * x + q * y
                v = p * y - q * x
                folded[row, 0, j] = u
                folded[row, 1, j] = v
                one += abs(u) + abs(v)
            size = max(size, one)
    gaps[i, 0], gaps[i, 1], gaps[i, 2], gaps[i, 3] = 0.0, np.inf, piece, size
    gaps[i, 4], gaps[i, 5] = 0.0, 0.0
    if g == data.lengths[b]:
        return piece
    if g > 0 and at > begin:
        double_turns(at - begin, modes.sinusoids, 0, turn[0], turn[1])
        for j in range(J):
            x = states[0, j]
            y = states[1, j]
            states[0, j] = x * turn[0, j] - y * turn[1, j]
            states[1, j] = x * turn[1, j] + y * turn[0, j]
    mark = data.marks[b, g]
    while baseline.breaks[r, piece + 1] <= at:
        piece += 1
    value = read_state(mark, modes, states) if g > 0 else 0.0
    since = at - baseline.breaks[r, piece]
    found.logs[b, g] = log_rate(value, mark, r, piece, since, baseline, link)
    absorb(mark, at, modes, states)
    return piece


@no_type_check
def stretch(
    b, r, g, i, whole, passed, level, data, modes, expansion, baseline, link, care, rule, terms,
    work, z, total, gaps,
):  # fmt: skip
    """Add the integral over the part of gap ``g`` in the stretch that begins ``passed`` after its
    event to ``gaps``; whether it settles.
    """
    begin = data.edges[b, g]
    origin = passed
    end = whole
    if g > 0:
        end = min(whole, passed + expansion.width[level])
    widest = gaps[i, 1]
    piece = int(gaps[i, 2])
    panels = 0
    while passed < end:
        stop = min(end, baseline.breaks[r, piece + 1] - begin)
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
                r, piece, i, level, g > 0, passed, passed - origin, since, width,
                data.resolution[b], gaps[i, 3], expansion, baseline, link, care, rule, terms, work,
                z, total,
            )  # fmt: skip
            if doubt <= care.tolerance * width / whole or doubt <= NOISE * rounding:
                break
            if panels > MOST_PANELS or width < NARROWEST * whole or not value < np.inf:
                return False
            width /= 2
            widest = width
            last = False
        gaps[i, 4] += value
        gaps[i, 5] += doubt + rounding
        passed = stop if last else passed + width
        widest *= WIDER
    gaps[i, 0], gaps[i, 1], gaps[i, 2] = passed, widest, piece
    return True


@no_type_check
def panel(
    r, piece, i, level, past, passed, inside, since, width, resolution, size, expansion, baseline,
    link, care, rule, terms, work, z, total,
):  # fmt: skip
    """The integral over one panel, its discretisation error and its rounding error; the panel
    begins ``passed`` after the last event and ``inside`` after the beginning of the stretch.
    """
    M = len(z)
    step = width / STEPS
    if past:
        series(i, level, inside, step, expansion, terms, work, z)
    else:
        for m in range(M):
            for q in range(STEPS + 1):
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
    if past and passed == 0.0:
        falling = EDGE
    logs = max(
        abs(np.log(max(lowest, 1e-300)) - care.log_unit),
        abs(np.log(max(highest, 1e-300)) - care.log_unit),
    )
    rounding = ROUNDING * care.eps * width * mean * (1.0 + logs) + resolution * swing
    if past:
        slope = M if link.kind == 0 else mean
        rounding += expansion.error * size * slope * width
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
def read_state(m, modes, states):
    """z_m where the states are."""
    value = 0.0
    for j in range(states.shape[1]):
        value += states[0, j] * modes.read[m, 0, j] + states[1, j] * modes.read[m, 1, j]
    return value


@no_type_check
def absorb(mark, at, modes, states):
    """One event more, ``at`` so much after the window's start."""
    for k in range(2):
        for j in range(states.shape[1]):
            x = states[k, j]
            x = x if abs(x) > FAINT else 0.0
            states[k, j] = x + modes.constant[mark, k, j] + at * modes.trend[mark, k, j]


@no_type_check
def move(row, level, expansion, folded):
    """One row of R S, moved on by a stretch."""
    for j in range(expansion.fastest[level], folded.shape[2]):
        x = folded[row, 0, j]
        y = folded[row, 1, j]
        c = expansion.turn[level, 0, j]
        s = expansion.turn[level, 1, j]
        u = x * c - y * s
        v = x * s + y * c
        folded[row, 0, j] = u if abs(u) > FAINT else 0.0
        folded[row, 1, j] = v if abs(v) > FAINT else 0.0


@no_type_check
def expand(count, chosen, level, expansion, folded, terms):
    """The coefficients of the first ``count`` series that are ``chosen``, into ``terms``."""
    first = expansion.first[level]
    rows = expansion.first[level + 1] - first
    fastest = expansion.fastest[level]
    for c in range(0, count, TILE):
        r0 = chosen[c]
        r1 = chosen[min(c + 1, count - 1)]
        r2 = chosen[min(c + 2, count - 1)]
        r3 = chosen[min(c + 3, count - 1)]
        for n in range(0, rows, TILE):
            stop = expansion.stop[first + n]
            tile(first + n, n, r0, r1, r2, r3, fastest, stop, expansion.table, folded, terms)


@no_type_check
def tile(first, n, r0, r1, r2, r3, fastest, stop, table, folded, terms):
    """Coefficients n to n + 3 of four series, in one pass over the modes.

    Rows and modes have unsigned numbers. A signed one may be negative and count from the end, which
    the compiler would have to allow for: the loop would take one mode at a time.
    """
    r0, r1, r2, r3 = np.uint64(r0), np.uint64(r1), np.uint64(r2), np.uint64(r3)
    row0 = np.uint64(first)
    row1 = np.uint64(first + 1)
    row2 = np.uint64(first + 2)
    row3 = np.uint64(first + 3)
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = 0.0
    c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = 0.0
    for part in range(2):
        k = np.uint64(part)
        for mode in range(fastest, stop):
            j = np.uint64(mode)
            w = folded[r0, k, j]
            x = folded[r1, k, j]
            y = folded[r2, k, j]
            v = folded[r3, k, j]
            t0 = table[row0, k, j]
            t1 = table[row1, k, j]
            t2 = table[row2, k, j]
            t3 = table[row3, k, j]
            a0 += t0 * w
            a1 += t0 * x
            a2 += t0 * y
            a3 += t0 * v
            b0 += t1 * w
            b1 += t1 * x
            b2 += t1 * y
            b3 += t1 * v
            c0 += t2 * w
            c1 += t2 * x
            c2 += t2 * y
            c3 += t2 * v
            d0 += t3 * w
            d1 += t3 * x
            d2 += t3 * y
            d3 += t3 * v
    terms[r0, n], terms[r1, n], terms[r2, n], terms[r3, n] = a0, a1, a2, a3
    terms[r0, n + 1], terms[r1, n + 1], terms[r2, n + 1], terms[r3, n + 1] = b0, b1, b2, b3
    terms[r0, n + 2], terms[r1, n + 2], terms[r2, n + 2], terms[r3, n + 2] = c0, c1, c2, c3
    terms[r0, n + 3], terms[r1, n + 3], terms[r2, n + 3], terms[r3, n + 3] = d0, d1, d2, d3


@no_type_check
def series(i, level, inside, step, expansion, terms, work, z):
    """z of all marks at the nodes of a panel, by Clenshaw's recurrence."""
    M = len(z)
    rows = expansion.first[level + 1] - expansion.first[level]
    width = expansion.width[level]
    for q in range(STEPS + 1):
        work[0, q] = 4.0 * (inside + q * step) / width - 2.0
    for m in range(M):
        row = i * M + m
        for q in range(STEPS + 1):
            work[1, q] = 0.0
            work[2, q] = 0.0
        for n in range(rows - TILE, -1, -TILE):
            c0 = terms[row, n]
            c1 = terms[row, n + 1]
            c2 = terms[row, n + 2]
            c3 = terms[row, n + 3]
            for q in range(STEPS + 1):
                t = work[0, q]
                b3 = c3 + t * work[1, q] - work[2, q]
                b2 = c2 + t * b3 - work[1, q]
                b1 = c1 + t * b2 - b3
                work[2, q] = b1
                work[1, q] = c0 + t * b1 - b2
        for q in range(STEPS + 1):
            z[m, q] = work[1, q] - 0.5 * work[0, q] * work[2, q]


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
