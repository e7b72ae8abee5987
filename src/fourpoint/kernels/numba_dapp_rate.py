r"""From what attention says to one sequence's likelihood, and the gradient of that: DAPP's base,
drift and link as loops over rows.

    value = sum over events of log lambda_m - sum over gaps, nodes and marks of cost lambda_m,
        lambda_m = mu_m + g_m(z_m + b_m + drift_m)

A row is a gap with one of its nodes or its end. The loops belong to the sweep of
`kernels.numba_dapp_loss`, whose data, weights and workspace they take, and are compiled with it.
They are plain Python, slow but correct as they stand, in float32, and say the same as
`models.rate`.
"""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np

from fourpoint.kernels.numba_series import log_one_plus

f32 = np.float32
HALF = f32(0.5)
ONE = f32(1.0)
ZERO = f32(0.0)
LEAST, MOST = f32(1e-30), f32(1e30)  # rates between which nothing is lost
LOG2 = f32(1.44269504)
HIGHEST = f32(88.8)  # e^x is infinite there
LOWEST = f32(-87.0)  # e^x is about the smallest normal number there


@no_type_check
def scored(
    m,
    x,
    marks,
    events,
    begin,
    stop,
    Q,
    share,
    weights,
    shape,
    workspace,
    gradients,
    effects,
    to_effects,
):
    """What mark m adds to the value, and to the gradients of what is not attention; its z becomes
    the gradient in z.
    """
    first = begin * (Q + 1)
    last = stop * (Q + 1)
    z = workspace.z[m]
    inside = workspace.rows[0]
    g = workspace.rows[1]
    mu = workspace.rows[2]
    log_mu = workspace.rows[3]
    gradient = workspace.rows[4]
    base = weights.base
    drift = weights.drift
    cells = workspace.cells
    parts = workspace.parts
    log_scale = weights.log_scale[m] if shape.link == 2 else ZERO
    shift = weights.bias[m] - log_scale if shape.link > 0 else ZERO
    splined_base = base.shape[1] > 1
    splined_drift = drift.shape[1] > 0
    for r in range(first, last):
        log_mu[r] = curve(base, m, r, cells, parts) if splined_base else base[m, 0]
        attended = z[r] + shift
        added = curve(drift, m, r, cells, parts) if splined_drift else ZERO
        inside[r] = attended + added
    if effects.shape[2] > 0:
        for r in range(first, last):
            log_mu[r] += effects[0, m, r]
            if shape.link > 0:
                inside[r] += effects[1, m, r]
    for r in range(first, last):
        mu[r] = log_mu[r]
        g[r] = -abs(inside[r]) if shape.link == 2 else inside[r]
        gradient[r] = ONE
    exponentials(mu[first:last])
    if shape.link > 0:
        exponentials(g[first:last])
    if shape.link == 1:
        gradient[first:last] = g[first:last]
    if shape.link == 2:
        bent(inside[first:last], g[first:last], gradient[first:last], f32(math.exp(log_scale)))
    value = at_events(m, marks, events, begin, Q, share, log_scale, shape.link, workspace)
    value += integral(
        workspace.cost[first:last],
        g[first:last],
        gradient[first:last],
        mu[first:last],
        z[first:last],
        share,
    )
    for i in range(begin, events):
        if marks[i] == m:
            r = i * (Q + 1) + Q
            z[r] = inside[r]
            mu[r] = log_mu[r]
            gradient[r] = workspace.rows[5, r]
    if effects.shape[2] > 0:
        for r in range(first, last):
            to_effects[0, m, r] = mu[r]
            if shape.link > 0:
                to_effects[1, m, r] = z[r]
    to_bias = ZERO
    to_scale = ZERO
    to_base = ZERO
    for r in range(first, last):
        to_bias += z[r]
        to_base += mu[r]
        to_scale += gradient[r]
    if shape.link > 0:
        gradients.bias[x, m] += to_bias
    if shape.link == 2:
        gradients.log_scale[x, m] += to_scale
    if splined_base:
        for r in range(first, last):
            uncurve(x, m, r, mu[r], cells, parts, gradients.base)
    else:
        gradients.base[x, m, 0] += to_base
    if splined_drift:
        for r in range(first, last):
            uncurve(x, m, r, z[r], cells, parts, gradients.drift)
    return value


@no_type_check
def curve(coefficients, m, r, cells, parts):
    """Spline m at row r."""
    cell = cells[r]
    value = coefficients[m, cell] * parts[r, 0]
    value = value + coefficients[m, cell + 1] * parts[r, 1]
    value = value + coefficients[m, cell + 2] * parts[r, 2]
    return value + coefficients[m, cell + 3] * parts[r, 3]


@no_type_check
def bent(inside, small, gradient, size):
    """Softplus of ``inside`` / size times size, into ``small``, which holds e^-|inside|, and its
    gradient.
    """
    for r in range(len(inside)):
        t = small[r]
        y = inside[r]
        high = y > ZERO
        positive = y if high else ZERO
        steep = ONE if high else t
        small[r] = size * (positive + log_one_plus(t))
        gradient[r] = size * steep / (ONE + t)


@no_type_check
def integral(cost, rate, gradient, mu, to_z, share):
    """Less the sum of cost (mu + rate). Gradients: in z; ``mu`` becomes that in log mu, and
    ``gradient`` that in log s.
    """
    value = ZERO
    for r in range(len(cost)):
        value -= cost[r] * (mu[r] + rate[r])
    for r in range(len(cost)):
        part = -cost[r] * share
        to_z[r] = part * gradient[r]
        mu[r] = part * mu[r]
    for r in range(len(cost)):
        gradient[r] = -cost[r] * share * (rate[r] - gradient[r])
    return value


@no_type_check
def at_events(m, marks, events, begin, Q, share, log_scale, link, workspace):
    """The sum of log(mu + g) at events of mark m, that is at the ends of their gaps. Gradients as
    in :func:`integral`, but for their places: in z in that of what is inside the link, in log mu in
    its own, and in log s in the last row.
    """
    inside = workspace.rows[0]
    g = workspace.rows[1]
    mu = workspace.rows[2]
    log_mu = workspace.rows[3]
    gradient = workspace.rows[4]
    to_scale = workspace.rows[5]
    value = 0.0
    for i in range(begin, events):
        if marks[i] != m:
            continue
        r = i * (Q + 1) + Q
        rate = mu[r] + g[r]
        if LEAST < rate < MOST:
            value += math.log(rate)
            part = share / rate
            inside[r] = part * gradient[r]
            log_mu[r] = part * mu[r]
            to_scale[r] = part * (g[r] - gradient[r])
        else:
            value += extreme(r, share, log_scale, link, inside, log_mu, to_scale)
    return value


@no_type_check
def extreme(r, share, log_scale, link, inside, log_mu, to_scale):
    """The same for one event, by logarithms in float64, where rates are hardly to be told from 0 or
    infinite.
    """
    y = float(inside[r])
    low = float(log_mu[r])
    if link == 0:
        base = math.exp(low)
        rate = base + y
        inside[r] = share / rate
        log_mu[r] = share * base / rate
        return math.log(rate)
    steep = 1.0
    log_g = y
    if link == 2:
        t = math.exp(-abs(y))
        plus = max(y, 0.0) + math.log1p(t)
        if y > -36.0:  # below, the logarithm of softplus is its argument
            steep = (1.0 if y > 0 else t) / (1.0 + t) / plus
            log_g = math.log(plus)
        log_g += log_scale
    top = max(low, log_g)
    log_rate = top + math.log1p(math.exp(min(low, log_g) - top))
    part = math.exp(log_g - log_rate)
    inside[r] = share * part * steep
    log_mu[r] = share * math.exp(low - log_rate)
    to_scale[r] = share * part * (1.0 - steep)
    return log_rate


@no_type_check
def uncurve(x, m, r, gradient, cells, parts, gradients):
    """The gradient in the coefficients of one in the spline there."""
    for c in range(4):
        gradients[x, m, cells[r] + c] += parts[r, c] * gradient


@no_type_check
def exponentials(x):
    """e^x in place: 2^k e^r with r below log(2) / 2 in size, a polynomial (that of Cephes), and k
    put into the bits of a number.
    """
    for i in range(len(x)):
        v = LOWEST if x[i] < LOWEST else x[i]
        v = HIGHEST if v > HIGHEST else v
        k = np.floor(v * LOG2 + HALF)
        r = v - k * f32(0.693359375) - k * f32(-2.12194440e-4)
        p = f32(1.9875691500e-4) * r + f32(1.3981999507e-3)
        p = p * r + f32(8.3334519073e-3)
        p = p * r + f32(4.1665795894e-2)
        p = p * r + f32(1.6666665459e-1)
        p = p * r + f32(5.0000001201e-1)
        exponent = np.int32(k) + np.int32(127)
        bits = np.int32(exponent << np.int32(23))  # of 2^k
        x[i] = (p * r * r + r + ONE) * bits.view(np.float32)
