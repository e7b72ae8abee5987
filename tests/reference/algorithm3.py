"""Online attention, transcribed from the paper's Algorithm 3 event by event, with its correction:
x_i stays, and the minimum is taken over active events. Plain Python lists and float64 scalars; the
slow truth that `ops.selection` is held against.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable


def score(
    theta: list[float],
    gamma: list[float],
    psi: list[list[float]],
    now: tuple[float, int],
    past: tuple[float, int],
) -> float:
    """kappa(x, x') of one head: the mean over modes of exp(-gamma d) cos(theta d + psi(m) -
    psi(m')).
    """
    d = now[0] - past[0]
    modes = zip(theta, gamma, psi, strict=True)
    return sum(
        (cmath.exp((-g + 1j * t) * d + 1j * (p[now[1]] - p[past[1]]))).real for t, g, p in modes
    ) / len(theta)


def weights(raw: list[float], normalise: str) -> list[float]:
    """Weights over one active set from its scores."""
    if normalise == "none":
        return raw
    if normalise == "ratio":
        halves = [(1 + s) / 2 for s in raw]
        return [s / sum(halves) for s in halves]
    top = max(raw, default=0.0)
    powers = [math.exp(s - top) for s in raw]
    return [p / sum(powers) for p in powers]


def active_sets(
    events: list[tuple[float, int]], keep: int, nu: Callable[[int, int], float], normalise: str
) -> list[list[int]]:
    """The active set of one head after 0, 1, 2, ... events; nu(i, j) is the score of event i on
    event j.
    """
    sets: list[list[int]] = [[]]
    drawn: dict[int, list[float]] = {}
    for i in range(len(events)):
        active = list(sets[-1])
        for j, weight in zip(active, weights([nu(i, j) for j in active], normalise), strict=True):
            drawn[j].append(abs(weight) if normalise == "none" else weight)
        if i + 1 > keep:
            means = {j: sum(drawn[j]) / len(drawn[j]) for j in active}
            active.remove(min(active, key=lambda j: (means[j], j)))
        active.append(i)
        drawn[i] = []
        sets.append(active)
    return sets


def attention(
    events: list[tuple[float, int]],
    active: list[int],
    values: list[float],
    nu: Callable[[int], float],
    normalise: str,
) -> float:
    """sum_j weight_j v_j over one active set; nu(j) is the query's score on event j."""
    found = weights([nu(j) for j in active], normalise)
    return sum(w * values[j] for w, j in zip(found, active, strict=True))
