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
    half_power,
    inverse_power,
    log_one_plus,
    sine,
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
# columns of ``Workspace.gaps``: what has been integrated, the widest next panel, the baseline's
# piece, the size of the gap's series, the integral and its error
PASSED, WIDEST, PIECE, SIZE, INTEGRAL, ERROR = range(6)


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


class Model(NamedTuple):
    """All numbers of a model, and how its rate is integrated."""

    modes: Modes
    expansion: Expansion
    baseline: Baseline
    link: Link
    care: Care
    rule: Floats  # as from :func:`_rule`


class Workspace(NamedTuple):
    """Arrays that the loops share; G gaps have their series formed together."""

    states: Floats  # (2, J)
    turn: Floats  # (2, J)
    folded: Floats  # (G M, 2, J): R S of each gap and mark
    terms: Floats  # (G M, N): coefficients of the series
    chosen: Integers  # (G M,): rows of ``folded`` whose series are formed
    nodes: Floats  # (3, STEPS + 1)
    z: Floats  # (M, STEPS + 1)
    total: Floats  # (STEPS + 1,)
    gaps: Floats  # (G, 6)


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
    powers = (inverse_power, half_power, exponential)
    turning = (*powers, log_one_plus, sine, double_turns)
    reading = (read_state, move, fold, turn_states, tile, expand, series)
    rating = (cubic, add_curves, log_rate)
    stepping = (longest_step, panel, stretch, follow, absorb)
    selecting = (reaches, choose_series, move_all)
    code = machine_code(
        (stream_loops, sys.modules[__name__]),
        (sweep,),
        (workspace,),
        loops=(*turning, *reading, *rating, *stepping, *selecting),
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
        logs=np.zeros((B, N)),
        integral=np.zeros((B, N + 1)),
        error=np.zeros((B, N + 1)),
        settled=np.ones(B, dtype=np.bool_),
    )
    count = max(1, min(threads(), B))
    given = (data, modes, expansion, baseline, link, care, _rule(), found)
    waiting = []
    for i in range(1, count):
        pool = _pool(count, os.getpid())
        waiting.append(pool.submit(loops, i, count, *given))
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
    speed = np.hypot(frequency, decay)
    order = np.argsort(-speed, kind="stable")
    since, longest = _longest_steps(speed[order], decay[order])
    return Modes(
        sinusoids(frequency[order], decay[order], np.float64),
        _parts(read[:, order].conj()),
        _parts(constant[:, order]),
        _parts(trend[:, order]),
        since,
        longest,
    )


def _parts(values: Complexes) -> Floats:
    """Real and imaginary parts of (M, J) ``values``, (M, 2, J)."""
    return np.ascontiguousarray(np.stack([values.real, values.imag], 1))


def _longest_steps(speed: Floats, decay: Floats) -> tuple[Floats, Floats]:
    """Times since the last event, and the longest step from each on: STEP over the largest speed of
    the modes that have not faded by then.
    """
    order = np.argsort(-speed, kind="stable")
    gone = GONE / np.maximum(decay[order], 1e-300)  # when a mode has faded
    since = np.concatenate([[0.0], np.maximum.accumulate(gone)])
    slowest = np.concatenate([speed[order], [0.0]])
    last_of_equal = np.append(np.diff(since) > 0, True)
    kept = last_of_equal & (since < 1e290)
    longest = STEP / np.maximum(slowest[kept], 1e-300)
    return since[kept], longest


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
    frequency = np.frombuffer(frequencies)
    decay = np.frombuffer(decays)
    speed = np.hypot(frequency, decay)
    order = np.argsort(-speed, kind="stable")
    speed = np.maximum(speed[order], 1e-9)
    power = (-decay + 1j * frequency)[order]
    allowed = max(eps / 16, FINEST)
    lifetime = -math.log(allowed) / np.maximum(decay[order], 1e-300)
    faded = np.maximum.accumulate(lifetime)
    begin, width, fastest = _stretches(speed, faded, longest)
    tables = []
    stops = []
    lost = 0.0
    for j, wide in zip(fastest, width, strict=True):
        table, stop, left_out = _series(power, j, wide, allowed)
        tables.append(table)
        stops.append(stop)
        lost = max(lost, left_out)
    if faded[-1] < longest:
        begin.append(float(faded[-1]))
        width.append(math.inf)
        fastest.append(0)
        tables.append(tables[0][:0])
        stops.append(stops[0][:0])
    lags = np.minimum(width, 1e300)[:, None]
    turn = np.exp(np.real(power) * lags + 1j * np.imag(power) * lags)
    sizes = [len(table) for table in tables]
    return Expansion(
        begin=np.array(begin),
        width=np.array(width),
        fastest=np.array(fastest, dtype=np.int64),
        first=np.cumsum([0, *sizes]),
        stop=np.concatenate(stops),
        table=np.concatenate(tables),
        turn=_parts(turn),
        error=lost + allowed,
    )


def _stretches(
    speed: Floats, faded: Floats, longest: float
) -> tuple[list[float], list[float], list[int]]:
    """When stretches begin to have a width of their own, the widths, and the fastest mode in
    each.
    """
    widths = np.array(TURNS) / speed[0]
    terms = speed * widths[:, None] / 2 + 8
    cost = terms.sum(1) / -np.expm1(-widths)
    turns = TURNS[int(cost.argmin())]
    begin = [0.0]
    width = [turns / speed[0]]
    fastest = [0]
    for j in range(1, len(speed)):
        gone = float(faded[j - 1])
        wider = turns / speed[j]
        if gone < longest and wider >= LONGER * width[-1]:
            begin.append(gone)
            width.append(wider)
            fastest.append(j)
    return begin, width, fastest


def _series(
    power: Complexes, fastest: int, width: float, allowed: float
) -> tuple[Floats, Integers, float]:
    """The table of the modes from ``fastest`` on, where its rows stop, and the largest sum of what
    it leaves out of a mode.
    """
    modes = len(power)
    points = np.arange(POINTS)
    theta = (points + 0.5) * math.pi / POINTS
    to_coefficients = np.cos(points[:, None] * theta) * 2 / POINTS
    to_coefficients[0] /= 2
    lags = width * (np.cos(theta) + 1) / 2
    values = np.exp(power[fastest:, None] * lags)
    real = values.real @ to_coefficients.T
    imaginary = values.imag @ to_coefficients.T
    sizes = np.hypot(real, imaginary)
    tails = np.cumsum(sizes[:, ::-1], 1)[:, ::-1]  # (modes, POINTS)
    needed = (tails > allowed).sum(1)
    rows = -(-int(needed.max()) // TILE) * TILE
    wanted = needed[:, None] > np.arange(rows)
    last = modes - wanted[::-1].argmax(0)
    stop = np.where(wanted.any(0), last, fastest)
    stop = np.maximum.accumulate(stop[::-1])[::-1]  # a row of a tile takes what later rows take
    kept = np.arange(fastest, modes) < stop[:, None]
    table = np.zeros((rows, 2, modes))
    table[:, 0, fastest:] = np.where(kept, real.T[:rows], 0.0)
    table[:, 1, fastest:] = np.where(kept, -imaginary.T[:rows], 0.0)
    padded = np.pad(tails, ((0, 0), (0, 1)))
    left_out = np.take_along_axis(padded, needed[:, None], 1)
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
    model = Model(modes, expansion, baseline, link, care, rule)
    work = workspace(model)
    together, _ = work.gaps.shape
    for b in range(first, len(data.lengths), step):
        r = b if len(baseline.breaks) > 1 else 0
        for k in range(2):
            for j in range(work.states.shape[1]):
                work.states[k, j] = 0.0
        piece = 0
        gaps = data.lengths[b] + 1
        for begin in range(0, gaps, together):
            count = min(together, gaps - begin)
            for i in range(count):
                piece = follow(b, r, begin + i, i, piece, data, model, work, found)
            passed = 0.0
            level = 0
            stretches = 0
            settled = True
            while settled:
                while level + 1 < len(expansion.begin) and expansion.begin[level + 1] <= passed:
                    level += 1
                waiting, needed = choose_series(b, begin, count, passed, data, work)
                if not waiting:
                    break
                expand(needed, level, expansion, work)
                for i in range(count):
                    g = begin + i
                    whole = data.edges[b, g + 1] - data.edges[b, g]
                    if whole > passed and work.gaps[i, PASSED] == passed:
                        settled = settled and stretch(
                            b, r, g, i, whole, passed, level, data, model, work
                        )
                stretches += 1
                passed += expansion.width[level]
                settled = settled and stretches < MOST_STRETCHES
                move_all(b, begin, count, passed, level, data, expansion, work)
            if not settled:
                found.settled[b] = False
                break
            for i in range(count):
                found.integral[b, begin + i] = work.gaps[i, INTEGRAL]
                found.error[b, begin + i] = work.gaps[i, ERROR]


@no_type_check
def workspace(model):
    """A :class:`Workspace` for one thread."""
    M, _, J = model.modes.read.shape
    together = max(1, min(GAPS, SERIES // M))
    rows = together * M
    first = model.expansion.first
    longest = 1
    for level in range(len(first) - 1):
        longest = max(longest, first[level + 1] - first[level])
    nodes = STEPS + 1
    return Workspace(
        np.empty((2, J)),
        np.empty((2, J)),
        np.empty((rows, 2, J)),
        np.empty((rows, longest)),
        np.empty(rows, dtype=np.int64),
        np.empty((3, nodes)),
        np.empty((M, nodes)),
        np.empty(nodes),
        np.empty((together, 6)),
    )


@no_type_check
def reaches(b, g, passed, data):
    """Whether gap ``g`` is longer than ``passed``."""
    return data.edges[b, g + 1] - data.edges[b, g] > passed


@no_type_check
def choose_series(b, begin, count, passed, data, work):
    """Whether any gap is to be integrated from ``passed`` on, and how many series that takes; they
    are ``chosen`` in the workspace.
    """
    M = len(work.z)
    needed = 0
    waiting = False
    for i in range(count):
        g = begin + i
        if reaches(b, g, passed, data) and work.gaps[i, PASSED] == passed:
            waiting = True
            if g > 0:
                for m in range(M):
                    work.chosen[needed] = i * M + m
                    needed += 1
    return waiting, needed


@no_type_check
def move_all(b, begin, count, passed, level, data, expansion, work):
    """R S of the gaps that reach further than ``passed``, moved on by a stretch."""
    M = len(work.z)
    for i in range(count):
        g = begin + i
        if g > 0 and reaches(b, g, passed, data):
            for m in range(M):
                move(i * M + m, level, expansion, work.folded)


@no_type_check
def follow(b, r, g, i, piece, data, model, work, found):
    """R S of all marks at the beginning of gap ``g``, into rows i M to i M + M - 1 of ``folded``;
    the states at its end, with the event there, and the event's log rate. What comes back is the
    piece of the baseline at the end.
    """
    modes = model.modes
    breaks = model.baseline.breaks
    gaps = work.gaps
    begin = data.edges[b, g]
    at = data.edges[b, g + 1]
    while breaks[r, piece + 1] <= begin:
        piece += 1
    gaps[i, PASSED] = 0.0
    gaps[i, WIDEST] = np.inf
    gaps[i, PIECE] = piece
    gaps[i, SIZE] = fold(i, modes, work.states, work.folded) if g > 0 else 0.0
    gaps[i, INTEGRAL] = 0.0
    gaps[i, ERROR] = 0.0
    if g == data.lengths[b]:
        return piece
    if g > 0 and at > begin:
        turn_states(at - begin, modes, work.states, work.turn)
    mark = data.marks[b, g]
    while breaks[r, piece + 1] <= at:
        piece += 1
    value = read_state(mark, modes, work.states) if g > 0 else 0.0
    since = at - breaks[r, piece]
    found.logs[b, g] = log_rate(value, mark, r, piece, since, model.baseline, model.link)
    absorb(mark, at, modes, work.states)
    return piece


@no_type_check
def fold(i, modes, states, folded):
    """R S of all marks into rows i M to i M + M - 1 of ``folded``; the largest sum of their
    sizes.
    """
    M, _, J = modes.read.shape
    size = 0.0
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
    return size


@no_type_check
def turn_states(gap, modes, states, turn):
    """The states, moved on by ``gap``."""
    double_turns(gap, modes.sinusoids, 0, turn[0], turn[1])
    for j in range(states.shape[1]):
        x = states[0, j]
        y = states[1, j]
        c = turn[0, j]
        s = turn[1, j]
        states[0, j] = x * c - y * s
        states[1, j] = x * s + y * c


@no_type_check
def stretch(b, r, g, i, whole, passed, level, data, model, work):
    """Add the integral over the part of gap ``g`` in the stretch that begins ``passed`` after its
    event to ``gaps``; whether it settles.
    """
    breaks = model.baseline.breaks
    gaps = work.gaps
    begin = data.edges[b, g]
    past = g > 0
    origin = passed
    end = whole
    if past:
        end = min(whole, passed + model.expansion.width[level])
    tolerance = model.care.tolerance
    widest = gaps[i, WIDEST]
    piece = int(gaps[i, PIECE])
    panels = 0
    while passed < end:
        stop = min(end, breaks[r, piece + 1] - begin)
        if stop <= passed:
            piece += 1
            continue
        width = stop - passed
        longest = STEPS * longest_step(passed, model.modes) if past else np.inf
        longest = min(longest, widest)
        last = width <= longest
        if not last:
            width /= np.ceil(width / longest)
        while True:
            panels += 1
            since = begin + passed - breaks[r, piece]
            value, doubt, rounding = panel(
                r,
                piece,
                i,
                level,
                past,
                passed,
                passed - origin,
                since,
                width,
                data.resolution[b],
                gaps[i, SIZE],
                model,
                work,
            )
            if doubt <= tolerance * width / whole or doubt <= NOISE * rounding:
                break
            if panels > MOST_PANELS or width < NARROWEST * whole or not value < np.inf:
                return False
            width /= 2
            widest = width
            last = False
        gaps[i, INTEGRAL] += value
        gaps[i, ERROR] += doubt + rounding
        passed = stop if last else passed + width
        widest *= WIDER
    gaps[i, PASSED] = passed
    gaps[i, WIDEST] = widest
    gaps[i, PIECE] = piece
    return True


@no_type_check
def panel(
    r,
    piece,
    i,
    level,
    past,
    passed,
    inside,
    since,
    width,
    resolution,
    size,
    model,
    work,
):
    """The integral over one panel, its discretisation error and its rounding error; the panel
    begins ``passed`` after the last event and ``inside`` after the beginning of the stretch.
    """
    care = model.care
    rule = model.rule
    z = work.z
    total = work.total
    M = len(z)
    step = width / STEPS
    if past:
        series(i, level, inside, step, model.expansion, work)
    else:
        for m in range(M):
            for q in range(STEPS + 1):
                z[m, q] = 0.0
    for q in range(STEPS + 1):
        total[q] = 0.0
    for m in range(M):
        add_curves(m, r, piece, since, step, model.baseline, model.link, z, total)
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
    lowest_log = abs(np.log(max(lowest, 1e-300)) - care.log_unit)
    highest_log = abs(np.log(max(highest, 1e-300)) - care.log_unit)
    logs = max(lowest_log, highest_log)
    rounding = ROUNDING * care.eps * width * mean * (1.0 + logs) + resolution * swing
    if past:
        derivative = M if model.link.kind == 0 else mean
        rounding += model.expansion.error * size * derivative * width
    doubt = abs(rough) + end * falling
    return width * mean, width * doubt, rounding


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
            constant = modes.constant[mark, k, j]
            trend = modes.trend[mark, k, j]
            states[k, j] = x + constant + at * trend


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
def expand(count, level, expansion, work):
    """The coefficients of the first ``count`` series that are ``chosen``, into ``terms``."""
    chosen = work.chosen
    first = expansion.first[level]
    rows = expansion.first[level + 1] - first
    fastest = expansion.fastest[level]
    table = expansion.table
    last = count - 1
    for c in range(0, count, TILE):
        r0 = chosen[c]
        r1 = chosen[min(c + 1, last)]
        r2 = chosen[min(c + 2, last)]
        r3 = chosen[min(c + 3, last)]
        for n in range(0, rows, TILE):
            stop = expansion.stop[first + n]
            tile(first + n, n, r0, r1, r2, r3, fastest, stop, table, work.folded, work.terms)


@no_type_check
def tile(first, n, r0, r1, r2, r3, fastest, stop, table, folded, terms):
    """Coefficients n to n + 3 of four series, in one pass over the modes.

    Rows and modes have unsigned numbers. A signed one may be negative and count from the end, which
    the compiler would have to allow for: the loop would take one mode at a time.
    """
    r0 = np.uint64(r0)
    r1 = np.uint64(r1)
    r2 = np.uint64(r2)
    r3 = np.uint64(r3)
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
    terms[r0, n] = a0
    terms[r1, n] = a1
    terms[r2, n] = a2
    terms[r3, n] = a3
    terms[r0, n + 1] = b0
    terms[r1, n + 1] = b1
    terms[r2, n + 1] = b2
    terms[r3, n + 1] = b3
    terms[r0, n + 2] = c0
    terms[r1, n + 2] = c1
    terms[r2, n + 2] = c2
    terms[r3, n + 2] = c3
    terms[r0, n + 3] = d0
    terms[r1, n + 3] = d1
    terms[r2, n + 3] = d2
    terms[r3, n + 3] = d3


@no_type_check
def series(i, level, inside, step, expansion, work):
    """z of all marks at the nodes of a panel, by Clenshaw's recurrence."""
    nodes = work.nodes
    terms = work.terms
    z = work.z
    rows = expansion.first[level + 1] - expansion.first[level]
    width = expansion.width[level]
    for q in range(STEPS + 1):
        since = inside + q * step
        nodes[0, q] = 4.0 * since / width - 2.0
    for m in range(len(z)):
        row = i * len(z) + m
        for q in range(STEPS + 1):
            nodes[1, q] = 0.0
            nodes[2, q] = 0.0
        for n in range(rows - TILE, -1, -TILE):
            c0 = terms[row, n]
            c1 = terms[row, n + 1]
            c2 = terms[row, n + 2]
            c3 = terms[row, n + 3]
            for q in range(STEPS + 1):
                t = nodes[0, q]
                b4 = nodes[1, q]
                b5 = nodes[2, q]
                b3 = c3 + t * b4 - b5
                b2 = c2 + t * b3 - b4
                b1 = c1 + t * b2 - b3
                nodes[2, q] = b1
                nodes[1, q] = c0 + t * b1 - b2
        for q in range(STEPS + 1):
            z[m, q] = nodes[1, q] - 0.5 * nodes[0, q] * nodes[2, q]


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
            inside = a0 + d * (a1 + d * (a2 + d * a3))
            total[q] += z[m, q] + inside
    elif link.kind == 1:
        for q in range(STEPS + 1):
            d = since + q * step
            inside = a0 + d * (a1 + d * (a2 + d * a3))
            total[q] += exponential(z[m, q] + inside)
    else:
        for q in range(STEPS + 1):
            d = since + q * step
            inside = a0 + d * (a1 + d * (a2 + d * a3))
            x = z[m, q] + inside
            rest = log_one_plus(exponential(-abs(x)))
            total[q] += size * (max(x, 0.0) + rest)
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
            outside = a0 + d * (a1 + d * (a2 + d * a3))
            total[q] += exponential(outside)


@no_type_check
def log_rate(z, m, r, piece, since, baseline, link):
    """log lambda of mark m, formed before anything can overflow."""
    outside = cubic(baseline.outside, m, r, piece, since)
    x = z + cubic(baseline.inside, m, r, piece, since)
    if link.kind == 0:
        return np.log(np.exp(outside) + x)
    if link.kind == 2:
        if x < -36.0:  # where the logarithm of softplus is its argument
            bent = x
        else:
            rest = np.exp(-abs(x))
            bent = np.log(max(x, 0.0) + np.log1p(rest))
        x = link.log_scale[m] + bent
    rest = np.exp(-abs(outside - x))
    return max(outside, x) + np.log1p(rest)
