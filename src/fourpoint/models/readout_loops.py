r"""From the last states of one sequence to its likelihood, and the slope of that: the read-outs of SAHP and THP as loops over gaps.

    value = sum over events of log lambda_m - sum over gaps, nodes and marks of cost lambda_m,      lambda_m = r_m g_m(z_m)

with the link g of `neural_start`. Used by `models.attentive_loops`, whose room and weights they take, and compiled with it. Plain
Python, slow but correct as it stands. Here also are the products of matrices that both use.
"""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np

FAR_BELOW = np.float32(-80.0)  # log(log(1 + e^y)) is y from here down
MOST_MULTIPLIED = 2**18  # multiplications from which OpenBLAS sets threads to work on a product, which costs more than the product


@no_type_check
def straight(N, n, share, parts, turned, log_unit, room, slopes):
    """THP: the value of N positions, and in ``room.to_state`` the slope of their states. z = level + slope lag."""
    M, D, nodes = len(log_unit), parts.qkv.shape[2], room.lags.shape[1] - 1
    x, level, to_level = block(room.states[-1], D, n), block(room.read, M, n), block(room.to_read, M, n)
    product(parts.readout, x, level)
    value = 0.0
    for m in range(M):
        base, slope, low = parts.base[m], parts.slope[m], math.exp(-parts.log_scale[m])
        log_rate = parts.log_scale[m] + log_unit[m]
        rate = math.exp(log_rate)
        to_base, to_slope, to_scale = 0.0, 0.0, 0.0
        for i in range(N, n):
            to_level[m, i] = 0
        for i in range(N):
            total = 0.0
            for q in range(nodes + 1):
                if q == nodes and room.kinds[i] != m:
                    continue
                lag = room.lags[i, q]
                z = level[m, i] + base + slope * lag
                y = z * low
                e = math.exp(-abs(y))
                bent, steep = max(y, 0) + math.log1p(e), (1 if y > 0 else e) / (1 + e)
                if q < nodes:
                    part = -room.cost[i] * rate
                    value += part * bent
                    to_scale += part * bent
                    to_z = part * steep * low
                else:
                    value += (y if y < FAR_BELOW else math.log(bent)) + log_rate
                    to_scale += 1
                    to_z = low if y < FAR_BELOW else low * steep / bent
                total += to_z
                to_slope += to_z * lag
                to_scale -= to_z * z
            to_level[m, i] = total * share
            to_base += total
        slopes.base[m] += to_base * share
        slopes.slope[m] += to_slope * share
        slopes.log_scale[m] += to_scale * share
    back_to_states(to_level, n, turned, room, slopes)
    return value


@no_type_check
def curved(N, n, share, parts, turned, log_unit, room, slopes):
    """SAHP, likewise. z = mu + (eta - mu) exp(-gamma lag), with eta and mu by gelu and gamma by softplus."""
    M, D, nodes = len(log_unit), parts.qkv.shape[2], room.lags.shape[1] - 1
    x, read, to_read = block(room.states[-1], D, n), block(room.read, 3 * M, n), block(room.to_read, 3 * M, n)
    product(parts.readout, x, read)
    value = 0.0
    half, density = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
    for m in range(M):
        low = math.exp(-parts.log_scale[m])
        log_rate = parts.log_scale[m] + log_unit[m]
        rate, to_scale = math.exp(log_rate), 0.0
        for row in (m, M + m, 2 * M + m):
            for i in range(N, n):
                to_read[row, i] = 0
        for i in range(N):
            a, c, s = read[m, i] + parts.base[m], read[M + m, i] + parts.base[M + m], read[2 * M + m, i] + parts.base[2 * M + m]
            part_a, part_c, e = 0.5 * (1 + math.erf(a * half)), 0.5 * (1 + math.erf(c * half)), math.exp(-abs(s))
            mu, gamma = c * part_c, max(s, 0) + math.log1p(e)
            drop = a * part_a - mu
            to_eta, to_both, to_gamma = 0.0, 0.0, 0.0
            for q in range(nodes + 1):
                if q == nodes and room.kinds[i] != m:
                    continue
                lag = room.lags[i, q]
                fade = math.exp(-gamma * lag)
                z = mu + drop * fade
                y = z * low
                t = math.exp(-abs(y))
                bent, steep = max(y, 0) + math.log1p(t), (1 if y > 0 else t) / (1 + t)
                if q < nodes:
                    part = -room.cost[i] * rate
                    value += part * bent
                    to_scale += part * bent
                    to_z = part * steep * low
                else:
                    value += (y if y < FAR_BELOW else math.log(bent)) + log_rate
                    to_scale += 1
                    to_z = low if y < FAR_BELOW else low * steep / bent
                to_scale -= to_z * z
                to_both += to_z
                to_eta += to_z * fade
                to_gamma -= to_z * fade * lag * drop
            to_read[m, i] = share * to_eta * (part_a + a * density * math.exp(-0.5 * a * a))
            to_read[M + m, i] = share * (to_both - to_eta) * (part_c + c * density * math.exp(-0.5 * c * c))
            to_read[2 * M + m, i] = share * to_gamma * (1 if s > 0 else e) / (1 + e)
        slopes.log_scale[m] += to_scale * share
    for row in range(3 * M):
        total = 0.0
        for i in range(N):
            total += to_read[row, i]
        slopes.base[row] += total
    back_to_states(to_read, n, turned, room, slopes)
    return value


@no_type_check
def back_to_states(to_read, n, turned, room, slopes):
    """From the slope of what is read out to those of the read-out's weights and of the states."""
    D, rows = turned.readout.shape
    matrix = block(room.matrix, rows, D)
    product(to_read, block(room.states[-1], D, n).T, matrix)
    add(slopes.readout, matrix)
    product(turned.readout, to_read, block(room.to_state, D, n))


@no_type_check
def block(room, rows, columns):
    """A matrix at the beginning of a row of room."""
    return room[: rows * columns].reshape(rows, columns)


@no_type_check
def add(total, part):
    """total += part, both contiguous."""
    x, y = total.ravel(), part.ravel()
    for i in range(len(x)):
        x[i] += y[i]


@no_type_check
def product(a, b, out):
    """out = a b, all contiguous and b also as a transpose, in so many rows at a time that one thread does it."""
    rows = MOST_MULTIPLIED // max(b.size, 1)
    if rows >= len(a):
        np.dot(a, b, out)
        return
    rows = max(rows, 1)
    for first in range(0, len(a), rows):
        np.dot(a[first : first + rows], b, out[first : first + rows])
