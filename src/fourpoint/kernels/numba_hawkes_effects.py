r"""The likelihood of a Hawkes process whose baseline and event weights vary, its gradient and its
information, in one sweep over the events, compiled with numba.

    lambda_m(t) = mu_m(t) + sum_jn alpha_jmn beta_j R_jn(t),
    R_jn(t) = sum over past events i of type n of w_i exp(-beta_j (t - t_i)),
    log mu_m(t) = sum_k basis_k(t) theta_km,      log w_i = sum_f gamma_f x_if,     u_j = log beta_j

The sweep goes over points: events, and boundaries at which the exposure of the time that follows
changes (0 where time is not scored or was not observed). It sums log lambda over scored events less
the integral of the excitation; the integral of mu does not depend on events and is added outside.
The information is the sum over scored events of the outer product of the gradient of log lambda.

The function is plain Python, slow but correct as it stands.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np

from fourpoint.kernels.compiling import machine_code


class Points(NamedTuple):
    """All sequences end to end: (S + 1,) offsets of points; by point (P,) its time, its mark (-1:
    no event), the exposure of the time up to the next point, whether it is scored; basis functions
    that are not 0 there and their values, (P, L), and features (P, F).
    """

    offsets: np.ndarray
    times: np.ndarray
    marks: np.ndarray
    exposure: np.ndarray
    scored: np.ndarray
    active: np.ndarray
    share: np.ndarray
    features: np.ndarray


@cache
def load() -> Callable[..., float]:
    """:func:`sweep` as machine code, cached on disk between runs if possible."""
    return machine_code((sys.modules[__name__],), (sweep,))["sweep"]


@no_type_check  # numba has its own types
def sweep(points, theta, alpha, beta, gamma, gradient, information):
    """The log-likelihood but for the integral of mu; (P,) its gradient in (theta, alpha, u, gamma),
    each flattened in C order, is added to ``gradient``, and the information to ``information``
    unless it is empty.
    """
    K, M = theta.shape
    J = len(beta)
    F = len(gamma)
    L = points.active.shape[1]
    after_theta = K * M
    after_alpha = after_theta + J * M * M
    after_beta = after_alpha + J
    wanted = len(information) > 0
    state = np.zeros((J, M))
    by_u = np.zeros((J, M))
    by_gamma = np.zeros((F, J, M))
    where = np.zeros(L + J * M + J + F, dtype=np.int64)
    part = np.zeros(L + J * M + J + F)
    value = 0.0
    for s in range(len(points.offsets) - 1):
        state[:] = 0.0
        by_u[:] = 0.0
        by_gamma[:] = 0.0
        end = points.offsets[s + 1]
        for p in range(points.offsets[s], end):
            m = points.marks[p]
            if m >= 0:
                if points.scored[p]:
                    log_mu = 0.0
                    for c in range(L):
                        basis = points.active[p, c]
                        log_mu += points.share[p, c] * theta[basis, m]
                    mu = math.exp(min(log_mu, 700.0))
                    rate = mu
                    for j in range(J):
                        for n in range(M):
                            rate += alpha[j, m, n] * beta[j] * state[j, n]
                    value += math.log(rate)
                    count = 0
                    for c in range(L):
                        basis = points.active[p, c]
                        where[count] = basis * M + m
                        part[count] = points.share[p, c] * mu / rate
                        count += 1
                    for j in range(J):
                        row = after_theta + (j * M + m) * M
                        for n in range(M):
                            where[count] = row + n
                            part[count] = beta[j] * state[j, n] / rate
                            count += 1
                    for j in range(J):
                        moved = 0.0
                        for n in range(M):
                            moved += alpha[j, m, n] * beta[j] * (state[j, n] + by_u[j, n])
                        where[count] = after_alpha + j
                        part[count] = moved / rate
                        count += 1
                    for f in range(F):
                        moved = 0.0
                        for j in range(J):
                            for n in range(M):
                                moved += alpha[j, m, n] * beta[j] * by_gamma[f, j, n]
                        where[count] = after_beta + f
                        part[count] = moved / rate
                        count += 1
                    for a in range(count):
                        gradient[where[a]] += part[a]
                    if wanted:
                        for a in range(count):
                            if part[a] == 0.0:
                                continue
                            row = where[a]
                            for b in range(count):
                                information[row, where[b]] += part[a] * part[b]
                weight = 0.0
                for f in range(F):
                    weight += gamma[f] * points.features[p, f]
                weight = math.exp(min(weight, 700.0))
                for j in range(J):
                    state[j, m] += weight
                    for f in range(F):
                        by_gamma[f, j, m] += weight * points.features[p, f]
            if p + 1 == end:
                continue
            width = points.times[p + 1] - points.times[p]
            exposure = points.exposure[p]
            for j in range(J):
                kept = math.exp(-beta[j] * width)
                lost = -math.expm1(-beta[j] * width)
                turned = beta[j] * width * kept
                for n in range(M):
                    if state[j, n] == 0.0:
                        continue
                    if exposure > 0.0:
                        mass = exposure * lost * state[j, n]
                        by_decay = exposure * (turned * state[j, n] + lost * by_u[j, n])
                        for other in range(M):
                            jump = alpha[j, other, n]
                            place = after_theta + (j * M + other) * M + n
                            value -= jump * mass
                            gradient[place] -= mass
                            gradient[after_alpha + j] -= jump * by_decay
                            for f in range(F):
                                by_weight = jump * exposure * lost * by_gamma[f, j, n]
                                gradient[after_beta + f] -= by_weight
                    by_u[j, n] = kept * by_u[j, n] - turned * state[j, n]
                    state[j, n] *= kept
                    for f in range(F):
                        by_gamma[f, j, n] *= kept
    return value
