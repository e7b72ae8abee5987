r"""The total rate of Deep DAPP at many times after each of many positions, compiled with numba.

With S the states of all layers' modes at a position, c what its token adds, d the time since then
and F the features of d (`models.deep_layer.features`),

    h = c + T F(d) + W [exp(a_j r_j d) S_j],   q = gelu(h),
    z = w'q + (w'V_2) gelu(V_1 norm(q) + b),

z being the argument of the softplus. V_2 and w are one row of numbers here: the rates of single
marks would need V_2 alone, the total rate does not. A block of times stays in the processor's cache
from its states to z, so that nothing but z goes through memory. A block is filled with the times
of one position after the other, and its times are the last axis of all arrays, so that products of
matrices are sums of long rows. Exponentials, sinusoids, logarithms and the error function are
polynomials or quotients of such (float32), since a call keeps a processor from taking several
numbers at a time:

    gelu(x) = x (1 + erf(x / sqrt 2)) / 2,   erf(x) = x P(x^2) / Q(x^2),   |x| <= 4.

Times d and the angles of the modes are float64 up to whole turns: after fifty turns float32 has an
angle to 1e-5, and a rate with narrow peaks would be so rough that no integral of it settles.

The functions are plain Python, slow but correct as they stand. They say the same as
`DeepDAPP.log_total`. Axes: R positions, T times after each, J modes of all layers, H width of
tokens, U = 2 H, K scales of time and V octaves of sinusoids in its logarithm.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels import numba_dapp_loss as loss_loops, numba_series as series_loops
from fourpoint.kernels.compiling import machine_code, threads
from fourpoint.kernels.numba_dapp_loss import (
    C0,
    C1,
    C2,
    C3,
    C4,
    FAINT,
    P1,
    P2,
    P3,
    P4,
    P5,
    S0,
    S1,
    S2,
    S3,
    S4,
    TWO,
)
from fourpoint.kernels.numba_series import log_one_plus

f32, f64 = np.float32, np.float64
BLOCK = 256  # times taken together, at most
VECTOR = 16  # numbers in the widest registers
UNROLLED = 64  # times that a loop may take in one pass: blocks are multiples of it
Floats = NDArray[np.float32]
Lags = NDArray[np.float64]
HALF = f32(0.5)
ONE = f32(1.0)
ZERO = f32(0.0)
FOUR = np.uint64(4)
ROOT = f32(math.sqrt(0.5))
LOG2 = f32(math.log(2))
HALVINGS = f32(1 / math.log(2))  # in the time in which a mode falls by a factor of e
CYCLES = 1 / (2 * math.pi)  # per radian
TURN = f32(0.5)  # cycles of sin and cos of pi x for x = 1
FARTHEST = f32(4.0)  # erf is 1 to rounding from there on
A0 = f32(-1.60960333262415e-02)
A1 = f32(-2.95459980854025e-03)
A2 = f32(-7.34990630326855e-04)
A3 = f32(-5.69250639462346e-05)
A4 = f32(-2.10102402082508e-06)
A5 = f32(2.77068142495902e-08)
A6 = f32(-2.72614225801306e-10)
B0 = f32(-1.42647390514189e-02)
B1 = f32(-7.37332916720468e-03)
B2 = f32(-1.68282697438203e-03)
B3 = f32(-2.13374055278905e-04)
B4 = f32(-1.45660718464996e-05)


class Model(NamedTuple):
    """What the rate depends on. Matrices have a row for each of their inputs."""

    decay: Floats  # (J,)
    frequency: Floats  # (J,)
    read: Floats  # (2 J + K + 2 V, H): of the states' real parts, imaginary parts, and the features
    scales: Floats  # (K,)
    reach: np.float32  # the time past which features do not change
    norm: Floats  # (2, H): weight and bias
    norm_eps: np.float32
    up: Floats  # (H, U)
    up_bias: Floats  # (U,)
    rate: Floats  # (H,): w
    rate_up: Floats  # (U,): w'V_2
    rate_bias: np.float32


class Positions(NamedTuple):
    """What is known at each position."""

    real: Floats  # (R, J): states
    imaginary: Floats  # (R, J)
    pace: Floats  # (R, J)
    summary: Floats  # (R, H): c


class Moved(NamedTuple):
    """What is known at each position, at the T times of a block. Real and imaginary parts have
    arrays of their own: the compiler cannot tell that two parts of one array do not overlap, and
    would use no vectors.

    Rows are longer than needed, so that they are not a power of two apart: otherwise the numbers of
    a column would share a few lines of the cache.
    """

    real: Floats  # (T, J + VECTOR)
    imaginary: Floats  # (T, J + VECTOR)
    summary: Floats  # (T, H + VECTOR)


@cache
def load() -> Callable[[Model, Positions, Lags], Floats]:
    """:func:`arguments` with its loops as machine code, cached on disk between runs if possible."""
    states = (mode_speeds, moved_states, fill)
    elapsed = (logarithms, sines, add_features)
    products = (add_product, add_products)
    loops = (*states, *elapsed, *products, weighted_gelu, normalise)
    modules = (series_loops, loss_loops, sys.modules[__name__])
    compiled = machine_code(modules, (sweep,), (), (log_one_plus,), loops)["sweep"]

    def run(model: Model, positions: Positions, lags: Lags) -> Floats:
        return arguments(compiled, model, positions, lags)

    return run


def arguments(loops: Callable[..., None], model: Model, positions: Positions, lags: Lags) -> Floats:
    """z at (R, T) ``lags`` after each position. Threads share the positions."""
    found = np.empty(lags.shape, dtype=f32)
    count = max(1, min(threads(), len(lags)))
    bounds = np.linspace(0, len(lags), count + 1).astype(np.int64).tolist()
    given = (model, positions, lags, found)
    pool = _pool(count, os.getpid())
    waiting = []
    for first, last in pairwise(bounds[1:]):
        waiting.append(pool.submit(loops, first, last, *given))
    loops(bounds[0], bounds[1], *given)
    for part in waiting:
        part.result()
    return found


@cache
def _pool(count: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: one that was forked does not inherit them."""
    return ThreadPoolExecutor(count)


# numba has its own types, and so none are given from here on.


@no_type_check
def sweep(first, last, model, positions, lags, found):
    """z of the positions ``first`` to ``last``, in blocks of equally many times.

    The last time is repeated until its block is full, so that every time goes through the same
    instructions, however the times are shared out.
    """
    J = len(model.decay)
    T = lags.shape[1]
    H = len(model.rate)
    total = (last - first) * T
    blocks = max(1, -(-total // BLOCK))
    passes = -(-total // (blocks * UNROLLED))
    size = passes * UNROLLED
    row = np.empty(size, dtype=np.uint64)  # a signed number could count from the end
    column = np.empty(size, dtype=np.int64)
    own = np.empty(size, dtype=np.float64)
    cycles = np.empty(J, dtype=np.float64)
    halvings = np.empty(J, dtype=np.float32)
    moved = Moved(
        real=np.empty((size, J + VECTOR), dtype=np.float32),
        imaginary=np.empty((size, J + VECTOR), dtype=np.float32),
        summary=np.empty((size, H + VECTOR), dtype=np.float32),
    )
    inputs = np.empty((len(model.read), size), dtype=np.float32)
    hidden = np.empty((H, size), dtype=np.float32)
    inner = np.empty((len(model.rate_up), size), dtype=np.float32)
    mean = np.empty(size, dtype=np.float32)
    scale = np.empty(size, dtype=np.float32)
    z = np.empty(size, dtype=np.float32)
    for block in range(blocks if total else 0):
        for t in range(size):
            place = min(block * size + t, total - 1)
            row[t] = first + place // T
            column[t] = place % T
            own[t] = lags[row[t], column[t]]
            z[t] = model.rate_bias
        moved_states(model, positions, row, own, cycles, halvings, moved)
        fill(model, moved, inputs, hidden, inner)
        add_features(model, own, 2 * J, inputs)
        add_products(model.read, inputs, hidden)
        weighted_gelu(hidden, model.rate, z)
        normalise(hidden, model.norm, model.norm_eps, mean, scale)
        add_products(model.up, hidden, inner)
        weighted_gelu(inner, model.rate_up, z)
        for t in range(size):
            found[row[t], column[t]] = z[t]


@no_type_check
def moved_states(model, positions, row, lags, cycles, halvings, moved):
    """exp(a_j r_j d) S_j and c at every time.

    Sinusoids are those of `numba_dapp_loss.sinusoid`, with whole turns taken off in float64.
    """
    J = len(cycles)
    for t in range(len(lags)):
        r = row[t]
        if t == 0 or r != row[t - 1]:
            mode_speeds(model, positions, r, cycles, halvings)
        for i in range(len(model.rate)):
            moved.summary[t, i] = positions.summary[r, i]
        exact = lags[t]
        d = f32(exact)
        for j in range(J):
            turns = exact * cycles[j]
            u = f32(turns - np.rint(turns))
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
            rest = h - n
            f = P4 + rest * P5
            f = P3 + rest * f
            f = P2 + rest * f
            f = P1 + rest * f
            f = ONE + rest * f
            exponent = np.int32(127) - np.int32(n)
            power = np.int32(exponent << np.int32(23))
            f *= power.view(np.float32)
            y = TWO * s * f
            cosine = f - y * s
            sine = y * c
            real = positions.real[r, j]
            imaginary = positions.imaginary[r, j]
            moved.real[t, j] = cosine * real - sine * imaginary
            moved.imaginary[t, j] = cosine * imaginary + sine * real


@no_type_check
def mode_speeds(model, positions, r, cycles, halvings):
    """Cycles and halvings of the modes per unit of time."""
    for j in range(len(cycles)):
        frequency = f64(model.frequency[j])
        turning = frequency * f64(positions.pace[r, j])
        cycles[j] = turning * CYCLES
    for j in range(len(halvings)):
        fading = model.decay[j] * positions.pace[r, j]
        halvings[j] = fading * HALVINGS


@no_type_check
def fill(model, moved, inputs, hidden, inner):
    """The states with times as the last axis, and what the products are added to."""
    J = len(model.decay)
    T = inputs.shape[1]
    for j in range(J):
        for t in range(T):
            inputs[j, t] = moved.real[t, j]
    for j in range(J):
        for t in range(T):
            inputs[J + j, t] = moved.imaginary[t, j]
    for i in range(len(hidden)):
        for t in range(T):
            hidden[i, t] = moved.summary[t, i]
    for i in range(len(inner)):
        bias = model.up_bias[i]
        for t in range(T):
            inner[i, t] = bias


@no_type_check
def add_features(model, lags, first, inputs):
    """The features of all times, into the rows of ``inputs`` from number ``first`` on."""
    K = len(model.scales)
    for k in range(K):
        factor = ONE / model.scales[k]
        logarithms(first + k, lags, factor, model.reach, inputs)
    octaves = (len(inputs) - first - K) // 2
    turns_per_unit = TURN
    for v in range(octaves):
        cosine = first + K + v
        sines(first, cosine, cosine + octaves, turns_per_unit, inputs)
        turns_per_unit *= TWO
    for k in range(first, first + K):
        for t in range(len(lags)):
            inputs[k, t] -= ONE


@no_type_check
def logarithms(k, lags, factor, reach, inputs):
    """log(1 + d / s_k) into row k: the exponent of the number, and a series for the rest."""
    for t in range(len(lags)):
        d = min(f32(lags[t]), reach)
        x = ONE + d * factor
        bits = np.float32(x).view(np.int32)
        power = (bits >> np.int32(23)) - np.int32(127)
        mantissa = (bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)
        rest = np.int32(mantissa).view(np.float32)
        log_of_power = f32(power) * LOG2
        inputs[k, t] = log_of_power + log_one_plus(rest - ONE)


@no_type_check
def sines(logarithm, cosine, sine, cycles, inputs):
    """cos and sin of 2 pi ``cycles`` times the row ``logarithm``, into two rows."""
    for t in range(inputs.shape[1]):
        u = cycles * inputs[logarithm, t]
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
        inputs[cosine, t] = ONE - TWO * s * s
        inputs[sine, t] = TWO * s * c


@no_type_check
def add_products(matrix, factors, into):
    """The transpose of (N, C) ``matrix`` times (N, T) ``factors``, added to (C, T) ``into``; four
    rows of factors to four sums in one pass, so that each number is read once for four products.

    Rows have unsigned numbers. A signed one may be negative and count from the end, so that the
    compiler would have to check before every pass whether the rows overlap.
    """
    inputs = len(matrix)
    outputs = len(into)
    for block in range(outputs // 4):
        i0 = FOUR * np.uint64(block)
        i1 = i0 + np.uint64(1)
        i2 = i0 + np.uint64(2)
        i3 = i0 + np.uint64(3)
        for part in range(inputs // 4):
            k0 = FOUR * np.uint64(part)
            k1 = k0 + np.uint64(1)
            k2 = k0 + np.uint64(2)
            k3 = k0 + np.uint64(3)
            a0 = matrix[k0, i0]
            a1 = matrix[k1, i0]
            a2 = matrix[k2, i0]
            a3 = matrix[k3, i0]
            b0 = matrix[k0, i1]
            b1 = matrix[k1, i1]
            b2 = matrix[k2, i1]
            b3 = matrix[k3, i1]
            c0 = matrix[k0, i2]
            c1 = matrix[k1, i2]
            c2 = matrix[k2, i2]
            c3 = matrix[k3, i2]
            d0 = matrix[k0, i3]
            d1 = matrix[k1, i3]
            d2 = matrix[k2, i3]
            d3 = matrix[k3, i3]
            for t in range(into.shape[1]):
                x0 = factors[k0, t]
                x1 = factors[k1, t]
                x2 = factors[k2, t]
                x3 = factors[k3, t]
                into[i0, t] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                into[i1, t] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                into[i2, t] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
                into[i3, t] += d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3
    whole = outputs - outputs % 4
    for k in range(inputs - inputs % 4, inputs):
        for i in range(whole):
            add_product(matrix, factors, np.uint64(k), np.uint64(i), into)
    for k in range(inputs):
        for i in range(whole, outputs):
            add_product(matrix, factors, np.uint64(k), np.uint64(i), into)


@no_type_check
def add_product(matrix, factors, k, i, into):
    """The products of one weight with a row of factors, added to one row of sums."""
    weight = matrix[k, i]
    for t in range(into.shape[1]):
        into[i, t] += weight * factors[k, t]


@no_type_check
def weighted_gelu(x, weights, total):
    """gelu of x, in its place; the sums over its rows, times their ``weights``, join ``total``."""
    for i in range(len(x)):
        weight = weights[i]
        for t in range(len(total)):
            u = x[i, t] * ROOT
            u = min(max(u, -FARTHEST), FARTHEST)
            v = u * u
            top = A5 + v * A6
            top = A4 + v * top
            top = A3 + v * top
            top = A2 + v * top
            top = A1 + v * top
            top = A0 + v * top
            bottom = B3 + v * B4
            bottom = B2 + v * bottom
            bottom = B1 + v * bottom
            bottom = B0 + v * bottom
            erf = u * top / bottom
            y = HALF * x[i, t] * (ONE + erf)
            x[i, t] = y
            total[t] += weight * y


@no_type_check
def normalise(x, norm, eps, mean, scale):
    """Mean 0 and variance 1 at every time, times the weight, plus the bias; x becomes it."""
    width = f32(len(x))
    for t in range(len(mean)):
        mean[t] = ZERO
        scale[t] = ZERO
    for i in range(len(x)):
        for t in range(len(mean)):
            mean[t] += x[i, t]
    for t in range(len(mean)):
        mean[t] /= width
    for i in range(len(x)):
        for t in range(len(mean)):
            off = x[i, t] - mean[t]
            scale[t] += off * off
    for t in range(len(mean)):
        variance = scale[t] / width
        scale[t] = ONE / np.sqrt(variance + eps)
    for i in range(len(x)):
        weight = norm[0, i]
        bias = norm[1, i]
        for t in range(len(mean)):
            off = x[i, t] - mean[t]
            x[i, t] = off * scale[t] * weight + bias
