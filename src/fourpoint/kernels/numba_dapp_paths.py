r"""Counts of events on paths of a linear DAPP after a history, drawn by thinning and compiled with
numba.

The sum inside the link has one part from the history and one from every event of the path,

    z_m(t) = z0_m(t - start) + sum_i phi_{m, m_i}(t - t_i),
        phi_mn(d) = sum_j Re[r_jm exp(a_j d) v_jn],

and both are sums of exponentials exp(a_j d) with constant weights: those of z0 are the states of
the modes at the start. Up to the horizon they are represented by polynomials of degree DEGREE on
the cells of one grid of lags (:class:`Grid`), so that a rate costs one polynomial for each event of
the path, and no state is carried. Cells are so small that interpolation in the Chebyshev nodes
changes a mode of size 1 by at most ERROR in the mean over a head.

Bounds are of the polynomials themselves. A polynomial lies below the largest of its Bernstein
coefficients, which are taken on FINE parts of each cell; the largest over any range of parts comes
from a table of maxima over 1, 2, 4, ... neighbours. The rate is monotone in z, in the terms of time
and in the exposure, so that the bound of a window follows from the bounds of all of them, and the
candidates of a Poisson process of that rate are thinned (`ops.thinning`). Paths are exact draws
from the rate above.

Axes: R rows (sequences), C cells, F = FINE C parts, M marks, J modes, L levels of the maxima.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels import numba_dapp_stream, path_terms
from fourpoint.kernels.compiling import machine_code
from fourpoint.kernels.numba_dapp_stream import double_turns, half_power, inverse_power, sine
from fourpoint.kernels.path_terms import (
    ABOVE_BOUND,
    ALLOWANCE,
    CROWDED,
    EXPLOSIVE,
    GOLDEN,
    MANY,
    Pieces,
    cubic,
    drawn_mark,
    largest_exposure,
    mixed,
    next_width,
    note_fault,
    piece_at,
    shorter_window,
    uniform,
    unit_exponential,
)

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
DEGREE = 7
TERMS = DEGREE + 1
FINE = 8  # parts of a cell with a bound of their own
ERROR = 1e-9
FASTMATH = {"reassoc", "contract", "nsz"}
LINKS = ("identity", "exp", "softplus")


class Grid(NamedTuple):
    """Lags from 0 to the horizon: octave 0 from 0 to 1 / speed, each further one as long as all
    before, of equal cells.
    """

    speed: float
    left: Floats  # (O,)
    per_unit: Floats  # (O,): cells per unit of time
    first: Places  # (O + 1,): cells before each octave, and all of them


class Kernel(NamedTuple):
    """phi of every exciting mark N, as polynomials on the cells, and bounds of them."""

    coefficients: Floats  # (N, C, M, TERMS): powers of u from -1 to 1 in the cell
    most: Floats  # (N, L, F, M): bounds of 2^level neighbouring parts


class Link(NamedTuple):
    """lambda_m = exp(outside_m) + factor_m g(inside_m + z_m)."""

    kind: int  # of LINKS
    factor: Floats  # (M,)


class Model(NamedTuple):
    """What rates depend on other than history."""

    grid: Grid
    kernel: Kernel
    link: Link
    pieces: Pieces


class Path(NamedTuple):
    """The first ``length`` events of a path: times since the row's start, and marks."""

    times: Floats
    marks: Places
    length: int


class Span(NamedTuple):
    """Where a row begins in time, and which pieces of the baseline and of the exposure it may
    use.
    """

    begin: float
    offset: float  # the same, from the anchor of its pieces on
    last_piece: int
    last_step: int


class Workspace(NamedTuple):
    """Arrays that the loops share."""

    most: Floats  # (L, F, M): bounds of z0
    z: Floats  # (M,)
    rate: Floats  # (M,)


class Loops(NamedTuple):
    """Functions of this file as machine code."""

    history: Callable[..., None]
    draw: Callable[..., int]
    rates: Callable[..., None]


@cache
def load() -> Loops:
    """The three as machine code, cached on disk between runs if possible."""
    own = sys.modules[__name__]
    turning = (inverse_power, half_power, sine, double_turns)
    fast = machine_code((numba_dapp_stream, own), (history,), turning, fastmath=FASTMATH)
    random = (mixed, uniform, unit_exponential)
    windows = (largest_exposure, next_width, shorter_window, note_fault)
    shared = (*random, piece_at, cubic, *windows, drawn_mark)
    polynomials = (cell_at, part_at, add_polynomials, add_largest, bound_parts)
    rating = (linked, rates_at, bound_over)
    drawing = (bounded_window, first_event, keep_event, count_event, draw_path)
    modules = (path_terms, own)
    loops = (*shared, *polynomials, *rating, *drawing)
    exact = machine_code(modules, (draw, rates), loops=loops, fastmath=False)
    return Loops(fast["history"], exact["draw"], exact["rates"])


def grid_of(power: NDArray[np.complex128], weight: Floats, horizon: float) -> Grid:
    """The coarsest grid on which interpolation is good enough for modes exp(power d), (K, D), of
    weights (K, D).

    On a cell of width h from d on the error of a mode is at most (h / 2)^TERMS |a|^TERMS
    exp(-gamma d) / (2^DEGREE TERMS!).
    """
    tiny = np.finfo(float).tiny
    size = np.abs(power)
    speed = max(float(size.max(initial=0.0)), 1 / horizon)
    octaves = 1 + max(0, math.ceil(math.log2(horizon * speed) - 1e-12))
    right = np.minimum(2.0 ** np.arange(octaves) / speed, horizon)
    left = np.concatenate([[0.0], right[:-1]])
    share = weight / np.maximum(weight.sum(1, keepdims=True), tiny)
    faded = np.exp(np.minimum(power.real * left[:, None, None], 0.0))
    derivatives = share * size**TERMS * faded
    derivative = derivatives.sum(2).max(1)
    allowed = ERROR * 2.0**DEGREE * math.factorial(TERMS)
    width = 2 * (allowed / np.maximum(derivative, tiny)) ** (1 / TERMS)
    cells = np.maximum(1, np.ceil((right - left) / width)).astype(np.int64)
    span = np.maximum(right - left, tiny)
    first = np.concatenate([[0], np.cumsum(cells)])
    return Grid(speed, left, cells / span, first)


def cell_powers(grid: Grid, power: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Coefficients of exp(power d) on every cell, (C, TERMS, J), for (J,) ``power``."""
    cells = np.diff(grid.first)
    half = np.repeat(0.5 / grid.per_unit, cells)
    first = np.repeat(grid.first[:-1], cells)
    index = np.arange(grid.first[-1]) - first
    middle = np.repeat(grid.left, cells) + (2 * index + 1) * half
    terms = np.arange(TERMS)
    nodes = np.cos((terms + 0.5) * math.pi / TERMS)
    to_powers = np.linalg.inv(nodes[:, None] ** terms)
    lags = middle[:, None] + half[:, None] * nodes  # (C, TERMS)
    values = np.exp(power * lags[..., None])
    return np.asarray(np.einsum("nq,cqj->cnj", to_powers, values))


@cache
def parts_matrix() -> Floats:
    """From the coefficients of a cell to the Bernstein coefficients of each of its parts, (FINE,
    TERMS, TERMS).
    """
    found = np.zeros((FINE, TERMS, TERMS))
    powers = np.arange(TERMS)
    binomial = np.array([[math.comb(i, k) for k in powers] for i in powers], dtype=float)
    lower = powers <= powers[:, None]
    to_bernstein = np.where(lower, binomial / binomial[-1], 0.0)
    width = 2 / FINE
    for part in range(FINE):
        low = 2 * part / FINE - 1
        moved = np.zeros((TERMS, TERMS))  # powers of v in u = low + width v
        for n in range(TERMS):
            for k in range(n + 1):
                moved[k, n] = math.comb(n, k) * low ** (n - k) * width**k
        found[part] = to_bernstein @ moved
    found.setflags(write=False)
    return found


def levels_of(parts: int) -> int:
    """Levels of a table of maxima over ``parts``."""
    return max(1, int(parts).bit_length())


def kernel_of(coefficients: Floats) -> Kernel:
    """The tables of phi from its polynomials, (N, C, M, TERMS)."""
    N, C, M, _ = coefficients.shape
    most = np.empty((N, levels_of(FINE * C), FINE * C, M))
    bernstein = np.einsum("fin,acmn->acfmi", parts_matrix(), coefficients).max(-1)
    most[:, 0] = bernstein.reshape(N, FINE * C, M)
    for level in range(1, most.shape[1]):
        step = 1 << (level - 1)
        below = most[:, level - 1]
        most[:, level] = below
        most[:, level, :-step] = np.maximum(below[:, :-step], below[:, step:])
    return Kernel(np.ascontiguousarray(coefficients), most)


@no_type_check  # here and below: numba has its own types
def history(first, step, times, marks, offsets, start, scale, sinusoids, drive, read, into):
    """z0 of rows ``first``, ``first + step``, ... as polynomials, into (R, C, M, TERMS) ``into``.

    Row r has the events ``offsets[r]:offsets[r + 1]``, all up to ``start[r]``. ``sinusoids`` are
    the modes per unit of ``scale``, (M, 2, J) ``drive`` what an event adds to their states, and
    (C, M, TERMS, 2, J) ``read`` the coefficients of each mode.
    """
    cells, M, _, _, J = read.shape
    x = np.empty(J)
    y = np.empty(J)
    re = np.empty(J)
    im = np.empty(J)
    for r in range(first, len(start), step):
        for j in range(J):
            x[j] = 0.0
            y[j] = 0.0
        end = offsets[r + 1]
        for i in range(offsets[r], end):
            later = times[i + 1] if i + 1 < end else start[r]
            double_turns((later - times[i]) / scale, sinusoids, 0, re, im)
            added = drive[marks[i]]
            for j in range(J):
                a = x[j] + added[0, j]
                b = y[j] + added[1, j]
                x[j] = a * re[j] - b * im[j]
                y[j] = a * im[j] + b * re[j]
        for c in range(cells):
            for m in range(M):
                for n in range(TERMS):
                    total = 0.0
                    for j in range(J):
                        total += read[c, m, n, 0, j] * x[j] + read[c, m, n, 1, j] * y[j]
                    into[r, c, m, n] = total


@no_type_check
def draw(
    first,
    step,
    wanted,
    past,
    grid,
    kernel,
    link,
    pieces,
    exposure,
    to_parts,
    counts,
    kept,
    fault,
):
    """Count the events of the paths of rows ``first``, ``first + step``, ... into (R, W, M, paths)
    ``counts``, or keep the first of them if there is room in ``kept`` (:class:`path_terms.Kept`).

    (R, C, M, TERMS) ``past`` is z0. What comes back is 0, or 1 with the reason in ``fault``.
    """
    R, C, M, _ = past.shape
    model = Model(grid, kernel, link, pieces)
    most = np.empty((kernel.most.shape[1], FINE * C, M))
    work = Workspace(most, np.empty(M), np.empty(M))
    times = np.empty(wanted.limit)
    marks = np.empty(wanted.limit, dtype=np.int64)
    random = np.empty(1, dtype=np.uint64)
    for r in range(first, R, step):
        bound_parts(past[r], to_parts, most)
        begin = wanted.edges[r, 0]
        span = Span(
            begin,
            begin - pieces.anchor[r],
            pieces.first[pieces.which[r] + 1],
            exposure.first[r + 1],
        )
        for p in range(wanted.paths):
            random[0] = mixed(wanted.keys[r] + GOLDEN * np.uint64(p + 1))
            faults = draw_path(
                r,
                p,
                times,
                marks,
                wanted,
                past[r],
                span,
                model,
                exposure,
                counts,
                kept,
                work,
                random,
                fault,
            )
            if faults > 0:
                return 1
    return 0


@no_type_check
def draw_path(
    r,
    p,
    times,
    marks,
    wanted,
    past,
    span,
    model,
    exposure,
    counts,
    kept,
    work,
    random,
    fault,
):
    """One path of row ``r``, as :func:`draw` counts or keeps it; 0, or 1 with the reason in
    ``fault``.
    """
    pieces = model.pieces
    begin = span.begin
    horizon = wanted.edges[r, wanted.edges.shape[1] - 1] - begin
    piece = pieces.first[pieces.which[r]]
    exposed = exposure.first[r]
    now = 0.0
    width = horizon
    count = 0
    window = 0
    while now < horizon:
        path = Path(times, marks, count)
        piece = piece_at(span.offset + now, piece, span.last_piece, pieces.left)
        exposed = piece_at(begin + now, exposed, span.last_step, exposure.left)
        end = min(now + width, horizon)
        explodes, end, top = bounded_window(
            now, end, path, piece, exposed, span, model, exposure, work
        )
        if explodes:
            return note_fault(fault, EXPLOSIVE, r, now, top)
        hit, at, total, seen, filled = first_event(
            now, end, top, path, past, piece, exposed, span, model, exposure, work, random
        )
        if seen < 0:
            return note_fault(fault, ABOVE_BOUND, r, at, total)
        width = next_width(width, end - now, top, seen, filled)
        if not hit:
            now = end
            continue
        now = at
        mark = drawn_mark(work.rate, total, random)
        if kept.times.shape[2] > 0:
            keep_event(kept, r, p, count, at, mark)
            if count + 1 == kept.times.shape[2]:
                break
        else:
            window = count_event(counts, wanted, r, p, window, begin + at, mark)
        if count + 1 >= wanted.limit:
            return note_fault(fault, CROWDED, r, at, total)
        times[count] = at
        marks[count] = mark
        count += 1
    return 0


@no_type_check
def bounded_window(now, end, path, piece, exposed, span, model, exposure, work):
    """The end of a window from ``now`` to at most ``end`` in which few candidates are expected, and
    a bound of the rate in it, after whether the window would have to be too short.
    """
    while True:
        top = bound_over(now, end, path, piece, span, model, work)
        top *= largest_exposure(exposure, exposed, span.last_step, span.begin + end)
        expected = top * (end - now)
        if expected <= 2 * MANY:
            return False, end, top
        end = shorter_window(now, end, expected)
        if end == now:
            return True, end, top


@no_type_check
def first_event(
    now,
    end,
    top,
    path,
    past,
    piece,
    exposed,
    span,
    model,
    exposure,
    work,
    random,
):
    """The first event between ``now`` and ``end`` by thinning: whether there is one, its time, the
    sum of the rates there, how many candidates there were, or -1 if a rate is above the bound
    ``top``, and the mean share of the bound that they filled.
    """
    at = now
    seen = 0
    filled = 0.0
    total = 0.0
    hit = False
    while top > 0.0:
        at += unit_exponential(random) / top
        if not at < end:
            break
        total = rates_at(at, path, past, piece, span, model, work)
        factor = exposure.value[piece_at(span.begin + at, exposed, span.last_step, exposure.left)]
        if not factor * total <= top * (1.0 + ALLOWANCE):
            return False, at, total, -1, filled
        seen += 1
        filled += factor * total / top
        if uniform(random) * top < factor * total:
            hit = True
            break
    if seen > 0:
        filled /= seen
    return hit, at, total, seen, filled


@no_type_check
def keep_event(kept, r, p, count, at, mark):
    """Event number ``count`` of a path into ``kept``."""
    kept.times[r, p, count] = at
    kept.marks[r, p, count] = mark
    kept.counts[r, p] = count + 1


@no_type_check
def count_event(counts, wanted, r, p, window, time, mark):
    """Count an event of a path. Returns its window, which is not before ``window``."""
    edges = wanted.edges
    windows = edges.shape[1] - 1
    while window + 1 < windows and edges[r, window + 1] <= time:
        window += 1
    counts[r, window, mark, p] += 1
    return window


@no_type_check
def rates(row, times, marks, at, start, past, grid, kernel, link, pieces, into):
    """The rates of one row at times ``at`` since its start, given events of a path at ``times``
    before all of them, into (Q, M) ``into``.
    """
    M = into.shape[1]
    which = pieces.which[row]
    piece = pieces.first[which]
    model = Model(grid, kernel, link, pieces)
    path = Path(times, marks, len(times))
    span = Span(start, start - pieces.anchor[row], pieces.first[which + 1], 0)
    work = Workspace(np.empty((0, 0, M)), np.empty(M), np.empty(M))
    for q in range(len(at)):
        rates_at(at[q], path, past[row], piece, span, model, work)
        for m in range(M):
            into[q, m] = work.rate[m]


@no_type_check
def cell_at(d, grid):
    """The cell of a lag, and the place in it from 0 to 1."""
    exponent = (np.float64(d * grid.speed).view(np.int64) >> 52) - 1022  # as math.frexp gives it
    octave = min(max(exponent, 0), len(grid.left) - 1)
    first = grid.first[octave]
    last = grid.first[octave + 1] - first - 1
    v = (d - grid.left[octave]) * grid.per_unit[octave]
    cell = min(int(v), last)
    return first + cell, v - cell


@no_type_check
def part_at(d, grid):
    """The part of a cell that holds a lag."""
    cell, v = cell_at(d, grid)
    return FINE * cell + min(int(FINE * v), FINE - 1)


@no_type_check
def add_polynomials(coefficients, v, z):
    """The polynomials of one cell, (M, TERMS), are added to ``z``."""
    u = 2.0 * v - 1.0
    for m in range(len(z)):
        own = coefficients[m]
        value = own[DEGREE]
        for n in range(DEGREE - 1, -1, -1):
            value = own[n] + u * value
        z[m] += value


@no_type_check
def add_largest(most, first, last, z):
    """The largest bounds over the parts ``first`` to ``last``, from (L, F, M) ``most``, are added
    to ``z``.
    """
    level = 0
    while (2 << level) <= last - first + 1:
        level += 1
    other = last + 1 - (1 << level)
    for m in range(len(z)):
        z[m] += max(most[level, first, m], most[level, other, m])


@no_type_check
def linked(x, kind, factor):
    """factor g(x)."""
    if kind == 0:
        return factor * max(x, 0.0)
    if kind == 1:
        return factor * math.exp(x)
    rest = math.exp(-abs(x))
    return factor * (max(x, 0.0) + math.log1p(rest))


@no_type_check
def rates_at(at, path, past, piece, span, model, work):
    """The sum of the rates at a time since the start; each of them is in the workspace."""
    z = work.z
    link = model.link
    pieces = model.pieces
    cell, v = cell_at(at, model.grid)
    for m in range(len(z)):
        z[m] = 0.0
    add_polynomials(past[cell], v, z)
    for i in range(path.length):
        cell, v = cell_at(at - path.times[i], model.grid)
        add_polynomials(model.kernel.coefficients[path.marks[i], cell], v, z)
    here = piece_at(span.offset + at, piece, span.last_piece, pieces.left)
    u = span.offset + at - pieces.left[here]
    total = 0.0
    for m in range(len(z)):
        outside = math.exp(cubic(pieces.outside, here, m, u))
        inside = z[m] + cubic(pieces.inside, here, m, u)
        work.rate[m] = outside + linked(inside, link.kind, link.factor[m])
        total += work.rate[m]
    return total


@no_type_check
def bound_over(now, until, path, piece, span, model, work):
    """A bound of the sum of the rates from ``now`` to ``until`` while nothing happens."""
    z = work.z
    grid = model.grid
    link = model.link
    pieces = model.pieces
    for m in range(len(z)):
        z[m] = 0.0
    add_largest(work.most, part_at(now, grid), part_at(until, grid), z)
    for i in range(path.length):
        begin = part_at(now - path.times[i], grid)
        end = part_at(until - path.times[i], grid)
        add_largest(model.kernel.most[path.marks[i]], begin, end, z)
    last = piece_at(span.offset + until, piece, span.last_piece, pieces.left)
    total = 0.0
    for m in range(len(z)):
        outside = pieces.most_outside[piece, m]
        inside = pieces.most_inside[piece, m]
        for other in range(piece + 1, last + 1):
            outside = max(outside, pieces.most_outside[other, m])
            inside = max(inside, pieces.most_inside[other, m])
        total += math.exp(outside) + linked(z[m] + inside, link.kind, link.factor[m])
    return total * (1.0 + ALLOWANCE)


@no_type_check
def bound_parts(past, to_parts, most):
    """Bounds of the polynomials of one row, (C, M, TERMS), into (L, F, M) ``most``."""
    C, M, _ = past.shape
    for c in range(C):
        for m in range(M):
            for part in range(FINE):
                largest = -np.inf
                for i in range(TERMS):
                    value = 0.0
                    for n in range(TERMS):
                        value += to_parts[part, i, n] * past[c, m, n]
                    largest = max(largest, value)
                most[0, FINE * c + part, m] = largest
    parts = FINE * C
    for level in range(1, len(most)):
        step = 1 << (level - 1)
        for f in range(parts):
            other = min(f + step, parts - 1)
            for m in range(M):
                most[level, f, m] = max(most[level - 1, f, m], most[level - 1, other, m])
