r"""Events of a Hawkes process scored and absorbed one after the other, compiled with numba.

With R_jn the events of type n so far, each weighted by exp(-beta_j age), a moment d after an event

    lambda_m = mu_m + sum_jn beta_j alpha_jmn exp(-beta_j d) R_jn,
    int      = d sum_m mu_m + sum_jn (1 - exp(-beta_j d)) R_jn sum_m alpha_jmn.

A stream needs the rate of the event's own type and the total rate, so that an event costs O(J M).
The function is plain Python, slow but correct as it stands, and tests compare it with the methods
of the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import no_type_check

import numpy as np

from fourpoint.kernels.compiling import machine_code


@cache
def load() -> Callable[..., int]:
    """:func:`follow` as machine code, cached on disk between runs if possible."""
    return machine_code((sys.modules[__name__],), (follow,))["follow"]


@no_type_check  # numba has its own types
def follow(
    excitation,
    rows,
    at,
    pending,
    likelihood,
    count,
    times,
    marks,
    mu,
    alpha,
    beta,
    total,
    largest,
    density,
    gap,
    rate,
    shares,
    fault,
):
    """Score events one after the other and absorb each: (n,) density, gap and rate come out, as
    from `dapp_loops.follow`, and (n, M) shares of the types in the rate unless there is no room for
    them.

    (R, J, M) ``excitation`` is R at the times ``at``; (M,) mu, (J, M, M) alpha with the exciting
    type last, (J,) beta; (J, M) total is the sum of alpha over excited types. What comes back is
    -1, or the place of an event whose rate or
    integral is not finite: log-rate and integral are in ``fault``. Events before it have been
    absorbed.
    """
    base = 0.0
    for m in range(len(mu)):
        base += mu[m]
    for i in range(len(rows)):
        row = rows[i]
        mark = marks[i]
        own = excitation[row]
        width = times[i] - at[row]
        lost = width * base
        rates = base
        mine = mu[mark]
        for j in range(len(beta)):
            fade = np.exp(-beta[j] * width)
            gone = -np.expm1(-beta[j] * width)
            for n in range(len(mu)):
                lost += gone * own[j, n] * total[j, n]
                rates += beta[j] * fade * own[j, n] * total[j, n]
                mine += beta[j] * fade * own[j, n] * alpha[j, mark, n]
        log_rate = np.log(mine)
        if not (rates < np.exp(largest) and np.isfinite(lost)):
            fault[0], fault[1] = log_rate, lost
            return i
        gap[i], rate[i] = pending[row] + lost, rates
        density[i] = log_rate - gap[i]
        for m in range(shares.shape[1]):
            other = mu[m]
            for j in range(len(beta)):
                fade = np.exp(-beta[j] * width)
                for n in range(len(mu)):
                    other += beta[j] * fade * own[j, n] * alpha[j, m, n]
            shares[i, m] = other / rates
        for j in range(len(beta)):
            fade = np.exp(-beta[j] * width)
            for n in range(len(mu)):
                own[j, n] *= fade
            own[j, mark] += 1.0
        at[row], pending[row] = times[i], 0.0
        likelihood[row] += log_rate - lost
        count[row] += 1
    return -1
