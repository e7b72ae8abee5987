r"""DAPP's likelihood and its gradient, one sequence at a time in one sweep, for machine code (numba, the extra ``fast``).

With all heads' modes in one row j = 1..J, the read-out R_jm = w_j r_m exp(i psi_jm) and what an event adds, U_jm = v_m exp(-i psi_jm),

    z_m(d) = sum_j Re[R_jm E_j(d) S_j],     S_j <- E_j(gap) S_j + U_jm,     E_j(d) = exp((-gamma_j + i theta_j) d),

    value  = sum over events of log lambda_m - sum over gaps, nodes q and marks of cost lambda_m(d_q),     lambda = mu + g(z + ...).

A sequence goes up to its value and down again while its waves E are in the processor's cache. On the way down, with a_qm the slope of
the value in z_m(d_q), only two sums per mark are formed over the nodes of a gap, W = sum_q a_q E(d_q) and V = sum_q a_q d_q E(d_q): they
give the slope in S (conj R W), in R (conj S W) and in theta and gamma (Re and Im of R S V). Waves come from polynomials, since a call of
sin or exp keeps a processor from taking several modes at a time:

    sin(2 pi u) = u P(u^2),  |u| <= 1/4,        2^-r = Q(r),  |r| <= 1/2,        (least largest error; 2e-7 in float32)

with u the cycles theta d / 2 pi less the nearest whole number. The functions are plain Python, slow but correct as they stand, in
float32 but for times. They say the same as `maths.attention`; rates are in `models.dapp_rate_loops`, and `models.dapp_sweep`
calls them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np

from fourpoint.maths.fourier import FADED
from fourpoint.models import dapp_rate_loops
from fourpoint.models.dapp_rate_loops import HALF, ONE, ZERO, at_events, bent, curve, exponentials, f32, integral, scored, uncurve
from fourpoint.models.machine_code import machine_code

LINKS = ("identity", "exp", "softplus")
MOST = f32(-FADED / math.log(2))  # halvings that count as all of them
S0, S1, S2, S3, S4 = (
    f32(6.2831854820251465),
    f32(-41.34168243408203),
    f32(81.60248565673828),
    f32(-76.5813980102539),
    f32(39.76161575317383),
)
P1, P2, P3 = f32(-0.6931471824645996), f32(0.24022652208805084), f32(-0.05550327152013779)
P4, P5, P6 = f32(0.009617994539439678), f32(-0.001340043148957193), f32(0.00015478022396564484)
QUARTER = f32(0.25)


class Data(NamedTuple):
    """Sequences: (B, N + 2) edges of gaps, (B, N + 1, Q) draws from U[0, 1], (B, N) marks, (B,) lengths and weights of the values.

    With ``inner`` = 1 the first event and what lies before it or after the last do not count.
    """

    edges: np.ndarray
    draws: np.ndarray
    marks: np.ndarray
    lengths: np.ndarray
    share: np.ndarray
    inner: int


class Weights(NamedTuple):
    """What the value depends on, or its slopes, which have a first axis more: groups of sequences, each summed on its own.

    Cycles and halvings per unit of time, or the slopes in theta and gamma, (J,); R and U by mark, real and imaginary part, (M, 2, J); (M,)
    bias and log_scale; the splines' coefficients, (M, C) of log mu, a constant where C = 1, and of the drift, none where C = 0.
    """

    cycles: np.ndarray
    halvings: np.ndarray
    read: np.ndarray
    drive: np.ndarray
    bias: np.ndarray
    log_scale: np.ndarray
    base: np.ndarray
    drift: np.ndarray


class Shape(NamedTuple):
    """The mean gap and the splines' length, in the user's unit; their intervals; the number of the link in LINKS."""

    scale: float
    length: float
    intervals: int
    link: int


class Room(NamedTuple):
    """Space for one sequence. A row is a gap with one of its nodes or its end: G (Q + 1) of them.

    States at the gaps' beginnings (G, 2, J) and waves at the rows (.., 2, J); z and then its slope, by mark and row; by row the lag, the
    cost of a unit of rate, cell and four weights of the splines, and (5, ..) what the link needs; (4, 2, J) R S on the way up, and G, H,
    W and V on the way down.
    """

    states: np.ndarray
    waves: np.ndarray
    z: np.ndarray
    lags: np.ndarray
    cost: np.ndarray
    cells: np.ndarray
    parts: np.ndarray
    rows: np.ndarray
    sums: np.ndarray


@cache
def compiled_sweep() -> Callable[..., None] | None:
    """:func:`sweep` as machine code, kept on disk between runs where that can be; None without numba."""
    small = (wave, product, move, read_out, move_back, weigh, read_back, add_read, add_modes, exponentials, curve, uncurve)
    code = machine_code((dapp_rate_loops, sys.modules[__name__]), (*small, place, attend, bent, integral, at_events, scored, back, sweep))
    return None if code is None else code["sweep"]


# numba has its own types, and so none are given from here on.


@no_type_check
def sweep(first, step, size, data, weights, shape, room, values, slopes):
    """(B,) values of the sequences in groups first, first + step, ... of ``size`` each, and the slopes of share @ values by group."""
    B, groups, Q = len(values), len(slopes.bias), data.draws.shape[2]
    splined = weights.base.shape[1] > 1 or weights.drift.shape[1] > 0
    for x in range(first, groups, step):
        for b in range(x * size, min(B, (x + 1) * size)):
            events, begin, stop = data.lengths[b], data.inner, data.lengths[b] + 1 - data.inner
            place(data.edges[b], data.draws[b], begin, stop, shape, splined, room)
            attend(data.marks[b], events, stop, Q, weights, room)
            value = 0.0
            for m in range(len(weights.bias)):
                value += scored(m, x, data.marks[b], events, begin, stop, Q, data.share[b], weights, shape, room, slopes)
            values[b] = value
            back(x, data.marks[b], events, stop, Q, weights, room, slopes)


@no_type_check
def place(edges, draws, begin, stop, shape, splined, room):
    """Lags, costs and places on the splines of the rows of gaps ``begin`` to ``stop``. The end of a gap costs nothing."""
    Q, cells, parts = draws.shape[1], room.cells, room.parts
    for g in range(begin, stop):
        width, since = edges[g + 1] - edges[g], edges[g] - edges[0]
        for q in range(Q + 1):
            r = g * (Q + 1) + q
            passed = width * (q + draws[g, q]) / Q if q < Q else width
            room.lags[r] = passed / shape.scale
            room.cost[r] = width / shape.scale / Q if q < Q else 0.0
            if splined:
                at = min(max((since + passed) / shape.length, 0.0), 1.0) * shape.intervals
                cell = min(int(at), shape.intervals - 1)
                u = f32(at - cell)
                cells[r] = cell
                parts[r, 0] = (ONE - u) * (ONE - u) * (ONE - u) * f32(1 / 6)
                parts[r, 1] = f32(2 / 3) - u * u * (ONE - HALF * u)
                parts[r, 3] = u * u * u * f32(1 / 6)
                parts[r, 2] = ONE - parts[r, 0] - parts[r, 1] - parts[r, 3]


@no_type_check
def attend(marks, events, stop, Q, weights, room):
    """States at every gap's beginning, waves at every row, and z. Before the first event all is 0."""
    states, waves, z, read, drive, turned = room.states, room.waves, room.z, weights.read, weights.drive, room.sums
    for m in range(len(read)):
        for r in range(min(stop, 1) * (Q + 1)):
            z[m, r] = ZERO
    if stop < 2:
        return
    wave(Q + 1, stop * (Q + 1) - (1 if stop > events else 0), room.lags, weights.cycles, weights.halvings, waves)
    for j in range(states.shape[2]):
        states[1, 0, j] = drive[marks[0], 0, j]
        states[1, 1, j] = drive[marks[0], 1, j]
    for g in range(1, stop - 1):
        move(g, g * (Q + 1) + Q, marks[g], states, waves, drive)
    for m in range(len(read)):
        for g in range(1, stop):
            product(m, g, read, states, turned)
            read_out(m, g * (Q + 1), g * (Q + 1) + (Q + 1 if g < events else Q), waves, turned, z)
        if stop > events:
            z[m, events * (Q + 1) + Q] = ZERO


@no_type_check
def back(x, marks, events, stop, Q, weights, room, slopes):
    """From the slopes in z to those in theta, gamma, R and U of group x.

    With G the slope in the state after a gap, that in the state S before it is conj(E) G + conj(R W), and with
    H = gap conj(E) G + conj(R V) those in theta and gamma are the imaginary part of conj(S) H and less its real part.
    """
    states, waves, z, lags, sums, read = room.states, room.waves, room.z, room.lags, room.sums, weights.read
    to_theta, to_gamma, to_read, to_drive = slopes.cycles, slopes.halvings, slopes.read, slopes.drive
    for j in range(sums.shape[2]):
        sums[0, 0, j] = ZERO
        sums[0, 1, j] = ZERO
    for g in range(stop - 1, 0, -1):
        first = g * (Q + 1)
        move_back(lags[first + Q] if g + 1 < stop else ZERO, first + Q, waves, sums)
        for m in range(len(read)):
            weigh(m, first, first + (Q + 1 if g < events else Q), z, lags, waves, sums)
            read_back(m, read, sums)
            if to_read.shape[1] > 0:
                add_read(x, m, g, states, sums, to_read)
        add_modes(x, g, states, sums, to_theta, to_gamma)
        kind = marks[g - 1]
        for k in range(2):
            for j in range(sums.shape[2]):
                to_drive[x, kind, k, j] += sums[0, k, j]


@no_type_check
def wave(first, last, lags, cycles, halvings, out):
    """E of all modes at the lags of rows ``first`` to ``last``. Rows of arrays are never taken out, here and below: each would be counted
    as in use, which takes as long as a loop."""
    for row in range(first, last):
        d = lags[row]
        for j in range(len(cycles)):
            u = d * cycles[j]
            u = u - np.floor(u + HALF)
            size = abs(u)
            c, s = QUARTER - size, HALF - size
            s = size if size < s else s
            s = s if u > ZERO else -s
            cc, ss = c * c, s * s
            c *= S0 + cc * (S1 + cc * (S2 + cc * (S3 + cc * S4)))
            s *= S0 + ss * (S1 + ss * (S2 + ss * (S3 + ss * S4)))
            h = d * halvings[j]
            h = MOST if h > MOST else h  # what is not a number stays so
            n = np.floor(h + HALF)
            r = h - n
            f = ONE + r * (P1 + r * (P2 + r * (P3 + r * (P4 + r * (P5 + r * P6)))))
            f *= np.int32((np.int32(127) - np.int32(n)) << np.int32(23)).view(np.float32)
            out[row, 0, j] = f * c
            out[row, 1, j] = f * s


@no_type_check
def move(g, end, kind, states, waves, drive):
    """The next state, E S + U. Parts one by one here and below: where a loop writes to two of many arrays, no vectors are used."""
    for j in range(states.shape[2]):
        states[g + 1, 0, j] = waves[end, 0, j] * states[g, 0, j] - waves[end, 1, j] * states[g, 1, j] + drive[kind, 0, j]
    for j in range(states.shape[2]):
        states[g + 1, 1, j] = waves[end, 0, j] * states[g, 1, j] + waves[end, 1, j] * states[g, 0, j] + drive[kind, 1, j]


@no_type_check
def product(m, g, read, states, turned):
    """R S of all modes."""
    for j in range(states.shape[2]):
        turned[0, 0, j] = read[m, 0, j] * states[g, 0, j] - read[m, 1, j] * states[g, 1, j]
    for j in range(states.shape[2]):
        turned[0, 1, j] = read[m, 0, j] * states[g, 1, j] + read[m, 1, j] * states[g, 0, j]


@no_type_check
def read_out(m, first, last, waves, turned, z):
    """z of the rows of one gap: the real part of R S E, summed over the modes."""
    for r in range(first, last):
        total = ZERO
        for j in range(waves.shape[2]):
            total += waves[r, 0, j] * turned[0, 0, j] - waves[r, 1, j] * turned[0, 1, j]
        z[m, r] = total


@no_type_check
def move_back(gap, end, waves, sums):
    """G <- conj(E) G and H <- gap G. At a gap of no length nothing moves, and E is not looked at."""
    if gap > ZERO:
        for j in range(sums.shape[2]):
            x, y = sums[0, 0, j], sums[0, 1, j]
            sums[0, 0, j] = waves[end, 0, j] * x + waves[end, 1, j] * y
            sums[0, 1, j] = waves[end, 0, j] * y - waves[end, 1, j] * x
    for k in range(2):
        for j in range(sums.shape[2]):
            sums[1, k, j] = gap * sums[0, k, j]


@no_type_check
def weigh(m, first, last, z, lags, waves, sums):
    """W and V of one gap, z holding the slope in z of every row; two rows at a time."""
    for k in range(2):
        a, d = z[m, first], z[m, first] * lags[first]
        for j in range(sums.shape[2]):
            sums[2, k, j] = a * waves[first, k, j]
            sums[3, k, j] = d * waves[first, k, j]
        for r in range(first + 1, last - 1, 2):
            a, b = z[m, r], z[m, r + 1]
            c, d = a * lags[r], b * lags[r + 1]
            for j in range(sums.shape[2]):
                sums[2, k, j] += a * waves[r, k, j] + b * waves[r + 1, k, j]
                sums[3, k, j] += c * waves[r, k, j] + d * waves[r + 1, k, j]
        if (last - first) % 2 == 0:
            a, d = z[m, last - 1], z[m, last - 1] * lags[last - 1]
            for j in range(sums.shape[2]):
                sums[2, k, j] += a * waves[last - 1, k, j]
                sums[3, k, j] += d * waves[last - 1, k, j]


@no_type_check
def read_back(m, read, sums):
    """G += conj(R W) and H += conj(R V)."""
    for k in range(2):
        for j in range(read.shape[2]):
            sums[k, 0, j] += sums[2 + k, 0, j] * read[m, 0, j] - sums[2 + k, 1, j] * read[m, 1, j]
        for j in range(read.shape[2]):
            sums[k, 1, j] -= sums[2 + k, 0, j] * read[m, 1, j] + sums[2 + k, 1, j] * read[m, 0, j]


@no_type_check
def add_read(x, m, g, states, sums, to_read):
    """The slopes in R, conj(S W)."""
    for j in range(states.shape[2]):
        to_read[x, m, 0, j] += sums[2, 0, j] * states[g, 0, j] - sums[2, 1, j] * states[g, 1, j]
    for j in range(states.shape[2]):
        to_read[x, m, 1, j] -= sums[2, 0, j] * states[g, 1, j] + sums[2, 1, j] * states[g, 0, j]


@no_type_check
def add_modes(x, g, states, sums, to_theta, to_gamma):
    """The slopes in theta and gamma."""
    for j in range(states.shape[2]):
        to_theta[x, j] += states[g, 0, j] * sums[1, 1, j] - states[g, 1, j] * sums[1, 0, j]
    for j in range(states.shape[2]):
        to_gamma[x, j] -= states[g, 0, j] * sums[1, 0, j] + states[g, 1, j] * sums[1, 1, j]
