r"""From the last states of one sequence to its likelihood, and the slope of that: the read-outs of
SAHP and THP as loops over gaps.

    value = sum over events of log lambda_m - sum over gaps, nodes and marks of cost lambda_m,      lambda_m = r_m g_m(z_m)

with the link g of `neural_start`. Used by `models.attentive_loops`, whose room and weights they
take, and compiled with it. Plain Python, slow but correct as it stands, in float32. Here also are
the products of matrices that both use.
"""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np

from fourpoint.kernels.numba_series import log_one_plus

f32 = np.float32  # of numbers that stand alone too: others would make everything they meet float64
FAR_BELOW = f32(-80.0)  # log(log(1 + e^y)) is y from here down
LOWEST = f32(-87.0)  # e^x is about the smallest number that is not rounded coarsely
MOST_MULTIPLIED = (
    2**18
    # multiplications from which OpenBLAS sets threads to work on a product, which costs more than
    # the product
)


@no_type_check
def straight(share, parts, turned, log_unit, room, slopes):
    """THP: the value of a sequence, and in ``room.to_state`` the slope of its states. z = level +
    slope lag.
    """
    M, n, nodes = len(log_unit), len(room.cost), len(room.lags) - 1
    level, to_level, y = room.read, room.to_read, room.rows[0]
    product(parts.readout, room.states[-1], level)
    value = 0.0
    for m in range(M):
        base, slope, low = parts.base[m], parts.slope[m], math.exp(-parts.log_scale[m])
        to_base, to_slope = f32(0), f32(0)
        for i in range(n):
            to_level[m, i] = 0
        for q in range(nodes + 1):
            lag = room.lags[q]
            for i in range(n):
                y[i] = (level[m, i] + base + slope * lag[i]) * low
            value += scored(m, q == nodes, n, share, parts, log_unit, room, slopes)
            for i in range(n):
                to_z = room.rows[2, i]
                to_level[m, i] += to_z
                to_base += to_z
                to_slope += to_z * lag[i]
        slopes.base[m] += to_base
        slopes.slope[m] += to_slope
    back_to_states(turned, room, slopes)
    return value


@no_type_check
def curved(share, parts, turned, log_unit, room, slopes):
    """SAHP, likewise. z = mu + (eta - mu) exp(-gamma lag), with eta and mu by gelu and gamma by
    softplus.
    """
    M, n, nodes, read, to_read = (
        len(log_unit),
        len(room.cost),
        len(room.lags) - 1,
        room.read,
        room.to_read,
    )
    y, fade, mu, drop, gamma = room.rows[0], room.rows[3], room.rows[4], room.rows[5], room.rows[6]
    product(parts.readout, room.states[-1], read)
    for row in range(3 * M):
        for i in range(n):
            read[row, i] += parts.base[row]
            to_read[row, i] = 0
    half, density = f32(math.sqrt(0.5)), f32(1 / math.sqrt(2 * math.pi))
    value = 0.0
    for m in range(M):
        low = math.exp(-parts.log_scale[m])
        for i in range(n):
            a, c, s = read[m, i], read[M + m, i], read[2 * M + m, i]
            part_a, part_c = (
                f32(0.5) * (f32(1) + math.erf(a * half)),
                f32(0.5) * (f32(1) + math.erf(c * half)),
            )
            mu[i], gamma[i] = c * part_c, max(s, f32(0)) + math.log1p(math.exp(-abs(s)))
            drop[i] = a * part_a - mu[i]
            read[m, i] = part_a + a * density * math.exp(
                f32(-0.5) * a * a
            )  # from here on, the slopes of eta, mu and gamma
            read[M + m, i] = part_c + c * density * math.exp(f32(-0.5) * c * c)
            read[2 * M + m, i] = f32(1) / (f32(1) + math.exp(-s)) if s > FAR_BELOW else f32(0)
        for q in range(nodes + 1):
            lag = room.lags[q]
            for i in range(n):
                fade[i] = -gamma[i] * lag[i]
            exponentials(fade, n, room.bits, room.power)
            for i in range(n):
                y[i] = (mu[i] + drop[i] * fade[i]) * low
            value += scored(m, q == nodes, n, share, parts, log_unit, room, slopes)
            for i in range(n):
                to_z = room.rows[2, i]
                faded = to_z * fade[i]
                to_read[m, i] += faded
                to_read[M + m, i] += to_z - faded
                to_read[2 * M + m, i] -= faded * lag[i] * drop[i]
    for row in range(3 * M):
        total = f32(0)
        for i in range(n):
            value_i = to_read[row, i] * read[row, i]
            to_read[row, i] = value_i
            total += value_i
        slopes.base[row] += total
    back_to_states(turned, room, slopes)
    return value


@no_type_check
def scored(m, ends, n, share, parts, log_unit, room, slopes):
    """What z_m / s_m in ``room.rows[0]`` adds to the value, at one node of every gap or at their
    ends. ``room.rows[2]`` takes the slope in z, and the slope in log s is added; both are
    multiplied by ``share``.
    """
    y, bent, to_z = room.rows[0], room.rows[1], room.rows[2]
    low, log_rate = math.exp(-parts.log_scale[m]), parts.log_scale[m] + log_unit[m]
    rate = math.exp(log_rate)
    for i in range(n):
        bent[i] = -abs(y[i])
    exponentials(bent, n, room.bits, room.power)
    for i in range(n):
        t = bent[i]
        bent[i] = max(y[i], f32(0)) + log_one_plus(t)
        to_z[i] = (f32(1) if y[i] > 0 else t) / (f32(1) + t)
    value, to_scale = f32(0), f32(0)
    if ends:
        for i in range(n):
            if room.kinds[i] == m:
                far = y[i] < FAR_BELOW
                steep = f32(1) if far else to_z[i] / bent[i]
                value += (y[i] if far else math.log(bent[i])) + log_rate
                to_scale += f32(1) - steep * y[i]
                to_z[i] = steep * low * share
            else:
                to_z[i] = 0
    else:
        for i in range(n):
            part = -room.cost[i] * rate
            value += part * bent[i]
            to_scale += part * (bent[i] - to_z[i] * y[i])
            to_z[i] *= part * low * share
    slopes.log_scale[m] += to_scale * share
    return value


@no_type_check
def exponentials(x, n, bits, power):
    """e^x in place for x up to 0: 2^k e^r with r below log(2) / 2 in size, a polynomial (that of
    Cephes), and k put into the bits of a number.
    """
    for i in range(n):
        v = x[i] if x[i] > LOWEST else LOWEST
        k = np.floor(v * f32(1.44269504) + f32(0.5))
        bits[i] = (np.int32(k) + np.int32(127)) << np.int32(23)
        r = v - k * f32(0.693359375) - k * f32(-2.12194440e-4)
        p = f32(1.9875691500e-4) * r + f32(1.3981999507e-3)
        p = p * r + f32(8.3334519073e-3)
        p = p * r + f32(4.1665795894e-2)
        p = p * r + f32(1.6666665459e-1)
        p = p * r + f32(5.0000001201e-1)
        x[i] = p * r * r + r + f32(1)
    for i in range(n):
        x[i] *= power[i]


@no_type_check
def back_to_states(turned, room, slopes):
    """From the slope of what is read out to those of the read-out's weights and of the states."""
    product(room.to_read, room.states[-1].T, room.readout)
    add(slopes.readout, room.readout)
    product(turned.readout, room.to_read, room.to_state)


@no_type_check
def add(total, part):
    """total += part, both contiguous."""
    x, y = total.ravel(), part.ravel()
    for i in range(len(x)):
        x[i] += y[i]


@no_type_check
def product(a, b, out):
    """out = a b, all contiguous and b also as a transpose, in so many rows at a time that one
    thread does it.
    """
    rows = MOST_MULTIPLIED // max(b.size, 1)
    if rows >= len(a):
        np.dot(a, b, out)
        return
    rows = max(rows, 1)
    for first in range(0, len(a), rows):
        np.dot(a[first : first + rows], b, out[first : first + rows])
