"""The passes of `ops.excitation` as loops over events, compiled with numba.

They are plain Python functions, slow but correct as they stand. What is quicker over whole arrays
stays outside: the exponentials of the gaps come in as ``fade`` and the rates go out, to have their
logarithms taken. Sums are added to what ``gradient``, ``curvature`` and ``left`` hold, and
``state`` is left as it is after the last event, so that blocks of events follow each other. An
event without a rate adds nothing: its logarithm will say so. An event that is not scored adds
nothing, and its rate is given as 1. Letters and columns are those of `ops.excitation`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np


class Loops(NamedTuple):
    """The compiled loops."""

    one_type: Callable[..., None]
    many_types: Callable[..., None]


@cache
def load() -> Loops:
    """:func:`one_type` and :func:`many_types` as machine code, cached on disk between runs if
    possible.
    """
    from numba import njit

    try:
        build = njit(cache=True, error_model="numpy")
        return Loops(build(one_type), build(many_types))
    except RuntimeError:  # no folder to cache machine code in
        build = njit(error_model="numpy")
        return Loops(build(one_type), build(many_types))


@no_type_check  # numba has its own types
def one_type(
    fade,
    ages,
    ends,
    tails,
    changes,
    scored,
    mu,
    alpha,
    beta,
    state,
    rates,
    gradient,
    curvature,
    left,
):
    """All sums for one type and one decay, in registers.

    (n,) fade exp(-beta gap), 0 for the first of a window, and ages beta gap. (P,) ends: places of
    the last events before probes, tails: the time since then, changes: kappa. (n,) scored. (3,)
    state and left: moments R, R', R''. (3,) gradient and (3, 3) curvature in mu, alpha, u. (n,)
    rates come out.
    """
    a = state[0]
    b = state[1]
    c = state[2]
    s0 = s1 = s2 = h00 = h01 = h02 = h11 = h12 = h22 = 0.0
    begin = 0
    for p in range(len(ends) + 1):
        end = ends[p] + 1 if p < len(ends) else len(fade)
        for i in range(begin, end):
            e = fade[i]
            d = ages[i]
            a += 1.0
            c = e * (c + d * (2.0 * b + d * a))
            b = e * (b + d * a)
            a = e * a
            rate = mu + alpha * beta * a
            w = 1.0 / rate if rate > 0.0 else 0.0
            if not scored[i]:
                rate = 1.0
                w = 0.0
            rates[i] = rate
            x = w * beta * a
            y = w * beta * (a - b)
            v = alpha * y
            s0 += w
            s1 += x
            s2 += v
            h00 += w * w
            h01 += w * x
            h02 += w * v
            h11 += x * x
            h12 += x * v - y
            h22 += v * v - alpha * w * beta * (a - 3.0 * b + c)
        begin = end
        if p < len(ends):
            d = beta * tails[p]
            e = changes[p] * np.exp(-d)
            left[0] += e * (a + 1.0)
            left[1] += e * (b + d * (a + 1.0))
            left[2] += e * (c + d * (2.0 * b + d * (a + 1.0)))
    state[0], state[1], state[2] = a, b, c
    gradient[0] += s0
    gradient[1] += s1
    gradient[2] += s2
    curvature[0, 0] -= h00
    curvature[0, 1] -= h01
    curvature[0, 2] -= h02
    curvature[1, 1] -= h11
    curvature[1, 2] -= h12
    curvature[2, 2] -= h22
    curvature[1, 0] = curvature[0, 1]
    curvature[2, 0] = curvature[0, 2]
    curvature[2, 1] = curvature[1, 2]


@no_type_check
def many_types(
    fade,
    ages,
    ends,
    tails,
    changes,
    scored,
    source,
    marks,
    theta,
    beta,
    order,
    state,
    rates,
    gradient,
    curvature,
    left,
):
    """The same for J decays and M types: (J, n) fade and ages; (n,) source and marks; (M, W) theta;
    (3, J, M) state and left; (M, V) gradient and (M, V, V) curvature, which are left alone below
    their ``order``.
    """
    J, M = state.shape[1:]
    W = theta.shape[1]
    V = W + J
    z = np.empty(V)
    curve = np.empty(J)
    p = 0
    for i in range(len(marks)):
        m = marks[i]
        s = source[i]
        rate = theta[m, 0]
        for j in range(J):
            e = fade[j, i]
            d = ages[j, i]
            first = 1 + j * M
            a = state[0, j]
            b = state[1, j]
            c = state[2, j]
            a[s] += 1.0
            for k in range(M):
                c[k] = e * (c[k] + d * (2.0 * b[k] + d * a[k]))
                b[k] = e * (b[k] + d * a[k])
                a[k] = e * a[k]
            rise = steep = bend = 0.0
            for k in range(M):
                rise += theta[m, first + k] * a[k]
                steep += theta[m, first + k] * b[k]
                bend += theta[m, first + k] * c[k]
            rate += beta[j] * rise
            z[W + j] = beta[j] * (rise - steep)
            curve[j] = beta[j] * (rise - 3.0 * steep + bend)
        rates[i] = rate if scored[i] else 1.0
        while p < len(ends) and i == ends[p]:
            for j in range(J):
                d = beta[j] * tails[p]
                e = changes[p] * np.exp(-d)
                for k in range(M):
                    a = state[0, j, k]
                    b = state[1, j, k]
                    c = state[2, j, k]
                    if k == m:
                        a += 1.0
                    left[0, j, k] += e * a
                    left[1, j, k] += e * (b + d * a)
                    left[2, j, k] += e * (c + d * (2.0 * b + d * a))
            p += 1
        if order == 0 or rate <= 0.0 or not scored[i]:
            continue
        w = 1.0 / rate
        z[0] = w
        for j in range(J):
            for k in range(M):
                z[1 + j * M + k] = w * beta[j] * state[0, j, k]
            z[W + j] *= w
        for f in range(V):
            gradient[m, f] += z[f]
        if order == 1:
            continue
        for f in range(V):
            for g in range(V):
                curvature[m, f, g] -= z[f] * z[g]
        for j in range(J):
            for k in range(M):
                f = 1 + j * M + k
                mixed = w * beta[j] * (state[0, j, k] - state[1, j, k])
                curvature[m, f, W + j] += mixed
                curvature[m, W + j, f] += mixed
            curvature[m, W + j, W + j] += w * curve[j]
