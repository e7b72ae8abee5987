r"""DAPP's likelihood and its gradient, one sequence at a time in one sweep, for machine code
(numba).

With all heads' modes in one row j = 1..J, the read-out R_jm = w_j r_m exp(i psi_jm) and what an
event adds, U_jm = v_m exp(-i psi_jm),

    z_m(d) = sum_j Re[R_jm E_j(d) S_j],  S_j <- E_j(gap) S_j + U_jm,
        E_j(d) = exp((-gamma_j + i theta_j) d),

    value  = sum over events of log lambda_m - sum over gaps,
        nodes q and marks of cost lambda_m(d_q),  lambda = mu + g(z + ...).

A sequence goes up to its value and down again while its sinusoids E are in the processor's cache.
On the way down, with a_qm the gradient of the value in z_m(d_q), only two sums per mark are formed
over the nodes of a gap, W = sum_q a_q E(d_q) and V = sum_q a_q d_q E(d_q): they give the gradient
in S (conj R W), in R (conj S W) and in theta and gamma (Re and Im of R S V). Sinusoids come from
polynomials, since a call of sin or exp keeps a processor from taking several modes at a time:

    sin(pi u) = u P(u^2),  cos(pi u) = Q(u^2),  2^-r = 1 + r R(r),  |u|, |r| <= 1/2
        (least largest error; 2e-7 in float32)

with u the cycles theta d / 2 pi less the nearest whole number, and cos and sin of 2 pi u by those
of half the angle. The functions are plain Python, slow but correct as they stand, in float32 but
for times. They say the same as `ops.attention`; rates are in `kernels.numba_dapp_rate`, and
`kernels.dapp_loss` calls them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np

from fourpoint.kernels import numba_dapp_rate as dapp_rate_loops, numba_series as series_loops
from fourpoint.kernels.compiling import machine_code
from fourpoint.kernels.constants import FADED
from fourpoint.kernels.numba_dapp_rate import (
    HALF,
    ONE,
    ZERO,
    at_events,
    bent,
    curve,
    exponentials,
    extreme,
    f32,
    integral,
    scored,
    uncurve,
)
from fourpoint.kernels.numba_series import log_one_plus

LINKS = ("identity", "exp", "softplus")
FAINT = f32(-FADED / math.log(2))  # halvings that count as all of them
S0 = f32(3.141592502593994)
S1 = f32(-5.1677069664001465)
S2 = f32(2.5500316619873047)
S3 = f32(-0.5980464220046997)
S4 = f32(0.07722225040197372)
C0 = f32(0.9999999403953552)
C1 = f32(-4.934792995452881)
C2 = f32(4.058412075042725)
C3 = f32(-1.3318802118301392)
C4 = f32(0.2196968048810959)
P1 = f32(-0.6931472420692444)
P2 = f32(0.24022234976291656)
P3 = f32(-0.055503085255622864)
P4 = f32(0.009671873413026333)
P5 = f32(-0.0013407256919890642)
TWO = f32(2.0)


class Data(NamedTuple):
    """Sequences: (B, N + 2) edges of gaps, (B, N + 1, Q) draws from U[0, 1], (B, N) marks, (B,)
    lengths; what each value counts for.

    With ``inner`` = 1 the first event and what lies before it or after the last do not count. (B,)
    ``history`` events condition the rates but are not scored, nor are the gaps that end with them;
    (B, N + 1) ``exposure`` is the mean weight of time in a gap. (B, 2, M, (N + 1) (Q + 1))
    ``effects`` are added to log mu and inside the link at the nodes and the end of every gap;
    ``to_effects`` takes the gradients in them. Without effects their last axis is empty.
    """

    edges: np.ndarray
    draws: np.ndarray
    marks: np.ndarray
    lengths: np.ndarray
    share: np.float32
    inner: int
    history: np.ndarray
    exposure: np.ndarray
    effects: np.ndarray
    to_effects: np.ndarray


class Weights(NamedTuple):
    """What the value depends on, or its gradients, which have a first axis more: groups of
    sequences, each summed on its own.

    Cycles and halvings per unit of time, or the gradients in theta and gamma, (J,); R and U by
    mark, real and imaginary part, (M, 2, J), R of size (1, 2, 0) where it is 1 (of one mark alone:
    U is then what R U was, and its imaginary part has no gradient); (M,) bias and log_scale; the
    splines' coefficients, (M, C) of log mu, a constant where C = 1, and of the drift, none where C
    = 0.
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
    """The mean gap and the splines' length, in the user's unit; their intervals; the number of the
    link in LINKS.
    """

    scale: float
    length: float
    intervals: int
    link: int


class Workspace(NamedTuple):
    """Space for one sequence, or more than that. A row is a gap with one of its nodes or its end: G
    (Q + 1) of them.

    States at the gaps' beginnings (G, 2, J) and sinusoids at the rows (.., 2, J); z and then its
    gradient, by mark and row; by row the lag, the cost of a unit of rate, cell and four weights of
    the splines, and (6, ..) what the link needs; (4, 2, J) R S on the way up, and G, H, W and V on
    the way down. Axes of modes may be longer than J.
    """

    states: np.ndarray
    sinusoids: np.ndarray
    z: np.ndarray
    lags: np.ndarray
    cost: np.ndarray
    cells: np.ndarray
    parts: np.ndarray
    rows: np.ndarray
    sums: np.ndarray


@cache
def load() -> Callable[..., None]:
    """:func:`sweep` as machine code, cached on disk between runs if possible."""
    small = (
        sinusoid,
        product,
        move,
        read_out,
        move_back,
        clear,
        weigh,
        read_back,
        add_read,
        add_modes,
        exponentials,
        curve,
        uncurve,
        extreme,
    )
    large = (place, attend, bent, integral, at_events, scored, back)
    modules = (series_loops, dapp_rate_loops, sys.modules[__name__])
    return machine_code(modules, (sweep,), (*small, *large), (log_one_plus,))["sweep"]


# numba has its own types, and so none are given from here on.


@no_type_check
def sweep(first, step, size, data, weights, shape, workspace, values, gradients):
    """(B,) values of the sequences in groups first, first + step, ... of ``size`` each, and the
    gradients of share times their sum.
    """
    B = len(values)
    groups = len(gradients.bias)
    Q = data.draws.shape[2]
    splined = weights.base.shape[1] > 1 or weights.drift.shape[1] > 0
    for x in range(first, groups, step):
        for b in range(x * size, min(B, (x + 1) * size)):
            events = data.lengths[b]
            marks = data.marks[b]
            begin = max(data.inner, data.history[b])
            stop = events + 1 - data.inner
            place(
                data.edges[b],
                data.draws[b],
                data.exposure[b],
                begin,
                stop,
                shape,
                splined,
                workspace,
            )
            attend(marks, events, begin, stop, Q, weights, workspace)
            value = 0.0
            for m in range(len(weights.bias)):
                value += scored(
                    m,
                    x,
                    marks,
                    events,
                    begin,
                    stop,
                    Q,
                    data.share,
                    weights,
                    shape,
                    workspace,
                    gradients,
                    data.effects[b],
                    data.to_effects[b],
                )
            values[b] = value
            back(x, marks, events, begin, stop, Q, weights, workspace, gradients)


@no_type_check
def place(edges, draws, exposure, begin, stop, shape, splined, workspace):
    """Lags, costs and places on the splines of the rows of gaps ``begin`` to ``stop``, and lags of
    the ends of the gaps before. The end of a gap costs nothing.
    """
    Q = draws.shape[1]
    cells = workspace.cells
    parts = workspace.parts
    lags = workspace.lags
    cost = workspace.cost
    for g in range(1, min(begin, stop)):
        end = g * (Q + 1) + Q
        lags[end] = (edges[g + 1] - edges[g]) / shape.scale
    for g in range(begin, stop):
        width = edges[g + 1] - edges[g]
        since = edges[g] - edges[0]
        for q in range(Q + 1):
            r = g * (Q + 1) + q
            if q < Q:
                passed = width * (q + draws[g, q]) / Q
                cost[r] = exposure[g] * width / shape.scale / Q
            else:
                passed = width
                cost[r] = 0.0
            lags[r] = passed / shape.scale
            if splined:
                share = min(max((since + passed) / shape.length, 0.0), 1.0)
                at = share * shape.intervals
                cell = min(int(at), shape.intervals - 1)
                u = f32(at - cell)
                rest = ONE - u
                cells[r] = cell
                parts[r, 0] = rest * rest * rest * f32(1 / 6)
                parts[r, 1] = f32(2 / 3) - u * u * (ONE - HALF * u)
                parts[r, 3] = u * u * u * f32(1 / 6)
                parts[r, 2] = ONE - parts[r, 0] - parts[r, 1] - parts[r, 3]


@no_type_check
def attend(marks, events, begin, stop, Q, weights, workspace):
    """States at every gap's beginning, sinusoids at every row of gaps from ``begin`` on and at the
    ends of those before, and z. Before the first event all is 0.
    """
    states = workspace.states
    sinusoids = workspace.sinusoids
    z = workspace.z
    read = weights.read
    drive = weights.drive
    turned = workspace.sums
    lags = workspace.lags
    cycles = weights.cycles
    halvings = weights.halvings
    J = len(cycles)
    for m in range(len(read)):
        for r in range(min(stop, 1) * (Q + 1)):
            z[m, r] = ZERO
    if stop < 2:
        return
    opened = max(1, begin)
    for g in range(1, min(opened, stop)):
        end = g * (Q + 1) + Q
        sinusoid(end, end + 1, lags, cycles, halvings, sinusoids)
    unread = 1 if stop > events else 0
    sinusoid(opened * (Q + 1), stop * (Q + 1) - unread, lags, cycles, halvings, sinusoids)
    for k in range(2):
        for j in range(J):
            states[1, k, j] = drive[marks[0], k, j]
    for g in range(1, stop - 1):
        move(g, g * (Q + 1) + Q, marks[g], states, sinusoids, drive)
    for m in range(len(read)):
        for g in range(opened, stop):
            first = g * (Q + 1)
            last = first + (Q + 1 if g < events else Q)
            if read.shape[2] > 0:
                product(m, g, read, states, turned)
                read_out(J, m, first, last, sinusoids, turned, 0, z)
            else:
                read_out(J, m, first, last, sinusoids, states, g, z)
        if stop > events:
            z[m, events * (Q + 1) + Q] = ZERO


@no_type_check
def back(x, marks, events, begin, stop, Q, weights, workspace, gradients):
    """From the gradients in z to those in theta, gamma, R and U of group x.

    With G the gradient in the state after a gap, that in the state S before it is conj(E) G +
    conj(R W), and with H = gap conj(E) G + conj(R V) those in theta and gamma are the imaginary
    part of conj(S) H and less its real part.
    """
    states = workspace.states
    sinusoids = workspace.sinusoids
    z = workspace.z
    lags = workspace.lags
    sums = workspace.sums
    read = weights.read
    to_theta = gradients.cycles
    to_gamma = gradients.halvings
    to_read = gradients.read
    to_drive = gradients.drive
    has_read = read.shape[2] > 0
    parts = 2 if has_read else 1
    J = len(weights.cycles)
    for j in range(J):
        sums[0, 0, j] = ZERO
        sums[0, 1, j] = ZERO
    for g in range(stop - 1, 0, -1):
        first = g * (Q + 1)
        end = first + Q
        last = first + (Q + 1 if g < events else Q)
        gap = lags[end] if g + 1 < stop else ZERO
        move_back(J, gap, end, sinusoids, sums)
        if g < begin:  # a history period: no rates were asked for
            pass
        elif has_read:
            for m in range(len(read)):
                clear(J, sums)
                weigh(J, m, first, last, z, lags, sinusoids, sums, 2, ONE)
                read_back(m, read, sums)
                if to_read.shape[1] > 0:
                    add_read(x, m, g, states, sums, to_read)
        else:
            weigh(J, 0, first, last, z, lags, sinusoids, sums, 0, -ONE)
        add_modes(x, g, states, sums, to_theta, to_gamma)
        kind = marks[g - 1]
        for k in range(parts):
            for j in range(J):
                to_drive[x, kind, k, j] += sums[0, k, j]


@no_type_check
def sinusoid(first, last, lags, cycles, halvings, out):
    """E of all modes at the lags of rows ``first`` to ``last``. Rows of arrays are never taken out,
    here and below: each would be counted as in use, which takes as long as a loop.
    """
    for row in range(first, last):
        d = lags[row]
        for j in range(len(cycles)):
            u = d * cycles[j]
            u = u - np.rint(u)
            v = u * u
            s = S3 + v * S4
            s = S2 + v * s
            s = S1 + v * s
            s = u * (S0 + v * s)
            c = C3 + v * C4
            c = C2 + v * c
            c = C1 + v * c
            c = C0 + v * c
            h = d * halvings[j]
            h = FAINT if h > FAINT else h  # what is not a number stays so
            n = np.rint(h)
            r = h - n
            f = P4 + r * P5
            f = P3 + r * f
            f = P2 + r * f
            f = P1 + r * f
            f = ONE + r * f
            exponent = np.int32(127) - np.int32(n)
            bits = np.int32(exponent << np.int32(23))  # of 2^-n
            f *= bits.view(np.float32)
            t = TWO * s * f
            out[row, 0, j] = f - t * s
            out[row, 1, j] = t * c


@no_type_check
def move(g, end, kind, states, sinusoids, drive):
    """The next state, E S + U. Parts one by one here and below: where a loop writes to two of many
    arrays, no vectors are used.
    """
    J = drive.shape[2]
    for j in range(J):
        re = sinusoids[end, 0, j] * states[g, 0, j]
        im = sinusoids[end, 1, j] * states[g, 1, j]
        states[g + 1, 0, j] = re - im + drive[kind, 0, j]
    for j in range(J):
        re = sinusoids[end, 0, j] * states[g, 1, j]
        im = sinusoids[end, 1, j] * states[g, 0, j]
        states[g + 1, 1, j] = re + im + drive[kind, 1, j]


@no_type_check
def product(m, g, read, states, turned):
    """R S of all modes."""
    J = read.shape[2]
    for j in range(J):
        re = read[m, 0, j] * states[g, 0, j]
        im = read[m, 1, j] * states[g, 1, j]
        turned[0, 0, j] = re - im
    for j in range(J):
        re = read[m, 0, j] * states[g, 1, j]
        im = read[m, 1, j] * states[g, 0, j]
        turned[0, 1, j] = re + im


@no_type_check
def read_out(J, m, first, last, sinusoids, turned, at, z):
    """z of the rows of one gap: the real part of E times number ``at`` of ``turned``, R S, summed
    over the modes; four rows at a time.
    """
    r = first
    while r + 4 <= last:
        t0 = t1 = t2 = t3 = ZERO
        for j in range(J):
            a = turned[at, 0, j]
            b = turned[at, 1, j]
            t0 += sinusoids[r, 0, j] * a - sinusoids[r, 1, j] * b
            t1 += sinusoids[r + 1, 0, j] * a - sinusoids[r + 1, 1, j] * b
            t2 += sinusoids[r + 2, 0, j] * a - sinusoids[r + 2, 1, j] * b
            t3 += sinusoids[r + 3, 0, j] * a - sinusoids[r + 3, 1, j] * b
        z[m, r] = t0
        z[m, r + 1] = t1
        z[m, r + 2] = t2
        z[m, r + 3] = t3
        r += 4
    while r < last:
        total = ZERO
        for j in range(J):
            a = turned[at, 0, j]
            b = turned[at, 1, j]
            total += sinusoids[r, 0, j] * a - sinusoids[r, 1, j] * b
        z[m, r] = total
        r += 1


@no_type_check
def move_back(J, gap, end, sinusoids, sums):
    """G <- conj(E) G and H <- gap G. At a gap of no length nothing moves, and E is not looked
    at.
    """
    if gap > ZERO:
        for j in range(J):
            x = sums[0, 0, j]
            y = sums[0, 1, j]
            c = sinusoids[end, 0, j]
            s = sinusoids[end, 1, j]
            sums[0, 0, j] = c * x + s * y
            sums[0, 1, j] = c * y - s * x
    for k in range(2):
        for j in range(J):
            sums[1, k, j] = gap * sums[0, k, j]


@no_type_check
def clear(J, sums):
    """Set the sums of gradients to 0."""
    for i in range(2, 4):
        for k in range(2):
            for j in range(J):
                sums[i, k, j] = ZERO


@no_type_check
def weigh(J, m, first, last, z, lags, sinusoids, sums, at, sign):
    """W and V of one gap, their imaginary parts times ``sign``, added to numbers ``at`` and ``at``
    + 1 of ``sums``; z holds the gradient in z of every row. Four rows at a time, then one by one.
    """
    for k in range(2):
        turn = sign if k == 1 else ONE
        r = first
        while r + 4 <= last:
            a = turn * z[m, r]
            b = turn * z[m, r + 1]
            c = turn * z[m, r + 2]
            d = turn * z[m, r + 3]
            p = a * lags[r]
            q = b * lags[r + 1]
            s = c * lags[r + 2]
            t = d * lags[r + 3]
            for j in range(J):
                e = sinusoids[r, k, j]
                f = sinusoids[r + 1, k, j]
                g = sinusoids[r + 2, k, j]
                h = sinusoids[r + 3, k, j]
                sums[at, k, j] += a * e + b * f + c * g + d * h
                sums[at + 1, k, j] += p * e + q * f + s * g + t * h
            r += 4
        while r < last:
            a = turn * z[m, r]
            d = turn * z[m, r] * lags[r]
            for j in range(J):
                sums[at, k, j] += a * sinusoids[r, k, j]
                sums[at + 1, k, j] += d * sinusoids[r, k, j]
            r += 1


@no_type_check
def read_back(m, read, sums):
    """G += conj(R W) and H += conj(R V)."""
    J = read.shape[2]
    for k in range(2):
        for j in range(J):
            re = sums[2 + k, 0, j] * read[m, 0, j]
            im = sums[2 + k, 1, j] * read[m, 1, j]
            sums[k, 0, j] += re - im
        for j in range(J):
            re = sums[2 + k, 0, j] * read[m, 1, j]
            im = sums[2 + k, 1, j] * read[m, 0, j]
            sums[k, 1, j] -= re + im


@no_type_check
def add_read(x, m, g, states, sums, to_read):
    """The gradients in R, conj(S W)."""
    J = to_read.shape[3]
    for j in range(J):
        re = sums[2, 0, j] * states[g, 0, j]
        im = sums[2, 1, j] * states[g, 1, j]
        to_read[x, m, 0, j] += re - im
    for j in range(J):
        re = sums[2, 0, j] * states[g, 1, j]
        im = sums[2, 1, j] * states[g, 0, j]
        to_read[x, m, 1, j] -= re + im


@no_type_check
def add_modes(x, g, states, sums, to_theta, to_gamma):
    """The gradients in theta and gamma."""
    J = to_theta.shape[1]
    for j in range(J):
        re = states[g, 0, j] * sums[1, 1, j]
        im = states[g, 1, j] * sums[1, 0, j]
        to_theta[x, j] += re - im
    for j in range(J):
        re = states[g, 0, j] * sums[1, 0, j]
        im = states[g, 1, j] * sums[1, 1, j]
        to_gamma[x, j] -= re + im
