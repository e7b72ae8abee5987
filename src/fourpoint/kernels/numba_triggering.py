"""Sums over pairs of `ops.triggering` as loops, compiled with numba: value and derivatives of every
query in one pass.

The functions are plain Python, slow but correct as they stand. Queries are shared out among
Python's threads; every query is summed by one thread in the order of the sources, so that results
do not depend on their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels.compiling import threads

SCALARS = 6  # c, p, omega, l, gamma, q
CHUNKS = 8  # of queries per thread: late queries see more sources


@cache
def load() -> Callable[..., tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The sums as machine code, cached on disk between runs if possible."""
    from numba import njit

    options: dict[str, Any] = dict(nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
    try:
        loop = njit(cache=True, **options)(pair_sums)
    except RuntimeError:  # no folder to cache machine code in
        loop = njit(**options)(pair_sums)
    return partial(run, loop)


def run(
    loop: Callable[..., None],
    times: NDArray[np.float64],
    places: NDArray[np.float64],
    delta: NDArray[np.float64],
    features: NDArray[np.float64],
    at: NDArray[np.float64],
    where: NDArray[np.float64],
    seen: NDArray[np.int64],
    theta: NDArray[np.float64],
    differentiated: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values (J,) and derivatives (J, T), which are 0 unless ``differentiated``."""
    values = np.zeros(len(at))
    derivatives = np.zeros((len(at), len(theta)))
    weights = features @ theta[SCALARS:]
    given = (times, places, delta, weights, features, at, where, seen, theta, differentiated)
    workers = threads()
    edges = np.linspace(0, len(at), workers * CHUNKS + 1).astype(np.int64)
    parts = zip(edges[:-1], edges[1:], strict=True)
    if workers == 1:
        for first, last in parts:
            loop(first, last, *given, values, derivatives)
        return values, derivatives
    waiting = [
        pool(workers, os.getpid()).submit(loop, first, last, *given, values, derivatives)
        for first, last in reversed(list(parts))
    ]
    for one in waiting:
        one.result()
    return values, derivatives


@cache
def pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Threads of the process with this id; a child process has its own."""
    return ThreadPoolExecutor(workers)


@no_type_check  # numba has its own types
def pair_sums(
    first,
    last,
    times,
    places,
    delta,
    weights,
    features,
    at,
    where,
    seen,
    theta,
    differentiated,
    values,
    derivatives,
):
    """Fill ``values`` and ``derivatives`` of the queries from ``first`` to before ``last``."""
    c = theta[0]
    p = theta[1]
    omega = theta[2]
    level = theta[3]
    gamma = theta[4]
    q = theta[5]
    columns = features.shape[1]
    spatial = len(places) > 0
    extra = np.zeros(columns)
    for j in range(first, last):
        total = 0.0
        by_c = 0.0
        by_p = 0.0
        by_omega = 0.0
        by_level = 0.0
        by_gamma = 0.0
        by_q = 0.0
        extra[:] = 0.0
        for i in range(seen[j]):
            lag = at[j] - times[i]
            log_lag = np.log(lag + c)
            power = weights[i] - p * log_lag - omega * lag
            if spatial:
                log_width = level + gamma * delta[i]
                dx = where[j, 0] - places[i, 0]
                dy = where[j, 1] - places[i, 1]
                ratio = (dx * dx + dy * dy) * np.exp(-log_width)
                log_ratio = np.log1p(ratio)
                power -= log_width + q * log_ratio
            rate = np.exp(power)
            total += rate
            if differentiated:
                by_c -= rate * p / (lag + c)
                by_p -= rate * log_lag
                by_omega -= rate * lag
                if spatial:
                    wider = rate * (q * ratio / (1.0 + ratio) - 1.0)
                    by_level += wider
                    by_gamma += wider * delta[i]
                    by_q -= rate * log_ratio
                for f in range(columns):
                    extra[f] += rate * features[i, f]
        values[j] = total
        if differentiated:
            derivatives[j, 0] = by_c
            derivatives[j, 1] = by_p
            derivatives[j, 2] = by_omega
            derivatives[j, 3] = by_level
            derivatives[j, 4] = by_gamma
            derivatives[j, 5] = by_q
            for f in range(columns):
                derivatives[j, SCALARS + f] = extra[f]
