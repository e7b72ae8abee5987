r"""The total rate of Deep DAPP at many times after each of many positions, compiled with numba.

With S the states of all layers' modes at a position, c what its token adds, d the time since then
and F the features of d (`models.deep_layer.features`),

    h = c + T F(d) + W [exp(a_j r_j d) S_j],   q = gelu(h),
    z = w'q + (w'V_2) gelu(V_1 norm(q) + b),

z being the argument of the softplus. V_2 and w are one row of numbers here: the rates of single
marks would need V_2 alone, the total rate does not. One time after the other stays in the
processor's cache from its states to z, so that nothing but z goes through memory. Exponentials,
sinusoids, logarithms and the error function are polynomials or quotients of such (float32), since a
call keeps a processor from taking several numbers at a time:

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
TIMES = 8  # taken together
Floats = NDArray[np.float32]
Lags = NDArray[np.float64]
HALF, ONE, ZERO = f32(0.5), f32(1.0), f32(0.0)
ROOT = f32(math.sqrt(0.5))
LOG2 = f32(math.log(2))
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


@cache
def load() -> Callable[[Model, Positions, Lags], Floats]:
    """:func:`arguments` with its loops as machine code, cached on disk between runs if possible."""
    rating = (add_products, weighted_gelu, normalise, some)
    loops = (turn, logarithms, sines, prepare, *rating)
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
    parts = list(zip(bounds[:-1], bounds[1:], strict=True))
    given = (model, positions, lags, found)
    waiting = [_pool(count, os.getpid()).submit(loops, *part, *given) for part in parts[1:]]
    loops(*parts[0], *given)
    for part in waiting:
        part.result()
    return found


@cache
def _pool(count: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: one that was forked does not inherit them."""
    return ThreadPoolExecutor(count - 1)


# numba has its own types, and so none are given from here on.


@no_type_check
def sweep(first, last, model, positions, lags, found):
    """z of the positions ``first`` to ``last``."""
    J = len(model.decay)
    T = lags.shape[1]
    wide = -(-T // TIMES) * TIMES
    cycles = np.empty(J, dtype=np.float64)
    halvings = np.empty(J, dtype=np.float32)
    turned = np.empty((wide, 2, J), dtype=np.float32)
    inputs = np.empty((len(model.read) - 2 * J, wide), dtype=np.float32)
    states = np.empty((TIMES, len(model.read)), dtype=np.float32)
    hidden = np.empty((TIMES, len(model.rate)), dtype=np.float32)
    inner = np.empty((TIMES, len(model.rate_up)), dtype=np.float32)
    own = np.empty(wide, dtype=np.float64)
    z = np.empty(TIMES, dtype=np.float32)
    for r in range(first, last):
        for t in range(wide):
            own[t] = lags[r, min(t, T - 1)]
        prepare(r, model, positions, own, cycles, halvings, inputs)
        turn(own, cycles, halvings, turned)
        for t in range(0, wide, TIMES):
            some(r, t, model, positions, turned, inputs, states, hidden, inner, z)
            for i in range(min(TIMES, T - t)):
                found[r, t + i] = z[i]


@no_type_check
def prepare(r, model, positions, lags, cycles, halvings, inputs):
    """Cycles and halvings of the modes per unit of time, and the features of all times."""
    K = len(model.scales)
    for j in range(len(cycles)):
        cycles[j] = f64(model.frequency[j]) * f64(positions.pace[r, j]) * (1 / (2 * math.pi))
    for j in range(len(halvings)):
        halvings[j] = model.decay[j] * positions.pace[r, j] * f32(1 / math.log(2))
    for k in range(K):
        logarithms(k, lags, ONE / model.scales[k], model.reach, inputs)
    octaves = (len(inputs) - K) // 2
    turns_per_unit = TURN
    for v in range(octaves):
        sines(K + v, K + octaves + v, turns_per_unit, inputs)
        turns_per_unit *= TWO
    for k in range(K):
        for t in range(len(lags)):
            inputs[k, t] -= ONE


@no_type_check
def turn(lags, cycles, halvings, out):
    """exp(a_j r_j d) of all modes at all lags: real parts, then imaginary parts.

    As `numba_dapp_loss.sinusoid`, with whole turns taken off in float64.
    """
    for t in range(len(lags)):
        exact = lags[t]
        d = f32(exact)
        for j in range(len(cycles)):
            turns = exact * cycles[j]
            u = f32(turns - np.rint(turns))
            v = u * u
            s = u * (S0 + v * (S1 + v * (S2 + v * (S3 + v * S4))))
            c = C0 + v * (C1 + v * (C2 + v * (C3 + v * C4)))
            h = d * halvings[j]
            h = FAINT if h > FAINT else h  # what is not a number stays so
            n = np.rint(h)
            rest = h - n
            f = ONE + rest * (P1 + rest * (P2 + rest * (P3 + rest * (P4 + rest * P5))))
            f *= np.int32((np.int32(127) - np.int32(n)) << np.int32(23)).view(np.float32)
            y = TWO * s * f
            out[t, 0, j] = f - y * s
            out[t, 1, j] = y * c


@no_type_check
def logarithms(k, lags, factor, reach, inputs):
    """log(1 + d / s_k) into row k: the exponent of the number, and a series for the rest."""
    for t in range(len(lags)):
        x = ONE + min(f32(lags[t]), reach) * factor
        bits = np.float32(x).view(np.int32)
        power = (bits >> np.int32(23)) - np.int32(127)
        rest = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(np.float32)
        inputs[k, t] = f32(power) * LOG2 + log_one_plus(rest - ONE)


@no_type_check
def sines(cosine, sine, cycles, inputs):
    """cos and sin of 2 pi ``cycles`` times the first row, into two rows."""
    for t in range(inputs.shape[1]):
        u = cycles * inputs[0, t]
        u = u - np.rint(u)
        v = u * u
        s = u * (S0 + v * (S1 + v * (S2 + v * (S3 + v * S4))))
        c = C0 + v * (C1 + v * (C2 + v * (C3 + v * C4)))
        inputs[cosine, t] = ONE - TWO * s * s
        inputs[sine, t] = TWO * s * c


@no_type_check
def some(r, first, model, positions, turned, inputs, states, hidden, inner, z):
    """z at TIMES times from number ``first`` on."""
    J = len(model.decay)
    for t in range(TIMES):
        for j in range(J):
            c = turned[first + t, 0, j]
            s = turned[first + t, 1, j]
            states[t, j] = c * positions.real[r, j] - s * positions.imaginary[r, j]
        for j in range(J):
            c = turned[first + t, 0, j]
            s = turned[first + t, 1, j]
            states[t, J + j] = c * positions.imaginary[r, j] + s * positions.real[r, j]
        for k in range(len(inputs)):
            states[t, 2 * J + k] = inputs[k, first + t]
        for i in range(hidden.shape[1]):
            hidden[t, i] = positions.summary[r, i]
        for i in range(inner.shape[1]):
            inner[t, i] = model.up_bias[i]
    add_products(states, model.read, hidden)
    for t in range(TIMES):
        z[t] = model.rate_bias + weighted_gelu(t, hidden, model.rate)
        normalise(t, hidden, model.norm, model.norm_eps)
    add_products(hidden, model.up, inner)
    for t in range(TIMES):
        z[t] += weighted_gelu(t, inner, model.rate_up)


@no_type_check
def add_products(factors, matrix, into):
    """(TIMES, N) ``factors`` times (N, C) ``matrix``, added to ``into``; four rows of the matrix in
    one pass, so that sums are read and written once for four products, and rows are read once for
    all times.

    Rows have unsigned numbers. A signed one may be negative and count from the end, so that the
    compiler would have to check before every pass whether the rows overlap with the sums.
    """
    n = factors.shape[1]
    for block in range(n // 4):
        k0 = np.uint64(4) * np.uint64(block)
        k1 = k0 + np.uint64(1)
        k2 = k0 + np.uint64(2)
        k3 = k0 + np.uint64(3)
        a0, a1, a2, a3 = factors[0, k0], factors[0, k1], factors[0, k2], factors[0, k3]
        b0, b1, b2, b3 = factors[1, k0], factors[1, k1], factors[1, k2], factors[1, k3]
        c0, c1, c2, c3 = factors[2, k0], factors[2, k1], factors[2, k2], factors[2, k3]
        d0, d1, d2, d3 = factors[3, k0], factors[3, k1], factors[3, k2], factors[3, k3]
        e0, e1, e2, e3 = factors[4, k0], factors[4, k1], factors[4, k2], factors[4, k3]
        f0, f1, f2, f3 = factors[5, k0], factors[5, k1], factors[5, k2], factors[5, k3]
        g0, g1, g2, g3 = factors[6, k0], factors[6, k1], factors[6, k2], factors[6, k3]
        h0, h1, h2, h3 = factors[7, k0], factors[7, k1], factors[7, k2], factors[7, k3]
        for i in range(into.shape[1]):
            w0 = matrix[k0, i]
            w1 = matrix[k1, i]
            w2 = matrix[k2, i]
            w3 = matrix[k3, i]
            into[0, i] += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
            into[1, i] += b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3
            into[2, i] += c0 * w0 + c1 * w1 + c2 * w2 + c3 * w3
            into[3, i] += d0 * w0 + d1 * w1 + d2 * w2 + d3 * w3
            into[4, i] += e0 * w0 + e1 * w1 + e2 * w2 + e3 * w3
            into[5, i] += f0 * w0 + f1 * w1 + f2 * w2 + f3 * w3
            into[6, i] += g0 * w0 + g1 * w1 + g2 * w2 + g3 * w3
            into[7, i] += h0 * w0 + h1 * w1 + h2 * w2 + h3 * w3
    for k in range(n - n % 4, n):
        for t in range(TIMES):
            for i in range(into.shape[1]):
                into[t, i] += factors[t, k] * matrix[k, i]


@no_type_check
def weighted_gelu(t, x, weights):
    """The sum of ``weights`` times gelu(x) of one time; x becomes gelu(x)."""
    total = ZERO
    for i in range(x.shape[1]):
        u = x[t, i] * ROOT
        u = min(max(u, -FARTHEST), FARTHEST)
        v = u * u
        top = A0 + v * (A1 + v * (A2 + v * (A3 + v * (A4 + v * (A5 + v * A6)))))
        bottom = B0 + v * (B1 + v * (B2 + v * (B3 + v * B4)))
        y = HALF * x[t, i] * (ONE + u * top / bottom)
        x[t, i] = y
        total += weights[i] * y
    return total


@no_type_check
def normalise(t, x, norm, eps):
    """Mean 0 and variance 1, times the weight, plus the bias; x becomes it."""
    n = f32(x.shape[1])
    mean = ZERO
    for i in range(x.shape[1]):
        mean += x[t, i]
    mean /= n
    variance = ZERO
    for i in range(x.shape[1]):
        variance += (x[t, i] - mean) * (x[t, i] - mean)
    scale = ONE / np.sqrt(variance / n + eps)
    for i in range(x.shape[1]):
        x[t, i] = (x[t, i] - mean) * scale * norm[0, i] + norm[1, i]
