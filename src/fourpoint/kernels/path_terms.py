r"""What the samplers of paths share: random numbers, terms of the rate that depend on time alone,
exposure, and how long a window of thinning is.

Every path has a key, and its k-th random number is a hash of the key and k (SplitMix64), so that
paths do not depend on each other, on the order in which they are drawn or on the number of threads:

    state_k = key + k * GOLDEN (mod 2^64),        bits_k = mix(state_k)

The terms are piecewise cubic in time, each piece with upper bounds (:class:`Pieces`); the exposure
is a step function. All functions are compiled by the modules that use them. They are not compiled
with ``fastmath``: a bound has to stay above a rate that is computed elsewhere from the same
numbers.

Source of the generator: Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
(2014).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels.compiling import threads

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST_MIX = np.uint64(0xBF58476D1CE4E5B9)
SECOND_MIX = np.uint64(0x94D049BB133111EB)
SHIFT_30, SHIFT_27, SHIFT_31, SHIFT_11 = (np.uint64(n) for n in (30, 27, 31, 11))
UNIT = 2.0**-53
ALLOWANCE = 1e-9  # relative, for the rounding of a rate and of its bound
FEW, MANY = 0.5, 4.0  # candidates expected in a window, at least and at most
TIGHT, LOOSE = 0.8, 0.6  # shares of the bound: windows grow above the first, shrink below the other
EXPLOSIVE, CROWDED, ABOVE_BOUND = 1.0, 2.0, 3.0  # kinds of faults
FAULT = 4  # numbers that describe one: kind, row, time since the row's start, rate


class Pieces(NamedTuple):
    """Terms of the rate that depend on time alone, piecewise cubic: log mu outside the link and
    what is added inside it.

    Row r uses the set ``which[r]``, the pieces ``first[which[r]]:first[which[r] + 1]``, and its
    times are counted from ``anchor[r]``. A piece reaches up to the next one, and the last one of a
    set goes on. Coefficients multiply powers 0 to 3 of the time since the left end of the piece.
    """

    which: Places  # (R,)
    anchor: Floats  # (R,)
    first: Places  # (sets + 1,)
    left: Floats  # (P,)
    outside: Floats  # (P, M, 4)
    inside: Floats  # (P, M, 4)
    most_outside: Floats  # (P, M): upper bounds
    most_inside: Floats  # (P, M)


class Exposure(NamedTuple):
    """A factor of the rate of every row that is piecewise constant: row r owns the steps
    ``first[r]:first[r + 1]``. The first value also holds before its time.
    """

    first: Places  # (R + 1,)
    left: Floats  # (J,), absolute times
    value: Floats  # (J,)


class Wanted(NamedTuple):
    """What is to be counted: ``paths`` paths of every row, from edges[r, 0] on, between
    neighbouring ``edges``.
    """

    edges: Floats  # (R, W + 1), rising absolute times
    keys: NDArray[np.uint64]  # (R,)
    paths: int
    limit: int  # events of a path that count as an explosion


class CountLaw(NamedTuple):
    """The law of counts between edges: Poisson numbers with these means, which in row r have one
    gamma factor of mean 1 and shape ``shape[r]`` in common unless the shape is infinite.
    """

    mean: Floats  # (B, W, M)
    shape: Floats  # (B,)

    def any_event(self, mean: Floats) -> Floats:
        """The probability of at least one event where ``mean`` (B, ...) are expected."""
        shape = self.shape.reshape(-1, *[1] * (mean.ndim - 1))
        with np.errstate(invalid="ignore"):
            gamma = shape * np.log1p(mean / shape)
        return -np.expm1(-np.where(np.isinf(shape), mean, gamma))


class Kept(NamedTuple):
    """Room for the first K events of every path; a path ends at its last one. K = 0 if none are
    kept, and then paths end at the last edge.
    """

    times: Floats  # (R, paths, K), since the row's first edge
    marks: NDArray[np.int32]  # (R, paths, K)
    counts: NDArray[np.int32]  # (R, paths)


def nothing_kept() -> Kept:
    """No room at all."""
    marks = np.zeros((0, 0, 0), dtype=np.int32)
    return Kept(np.zeros((0, 0, 0)), marks, np.zeros((0, 0), dtype=np.int32))


def every_row(rows: int, run: Callable[[int, int, Floats], object]) -> Floats | None:
    """Run ``run(first, step, fault)`` for all rows, shared out among threads; None, or the fault of
    the first row that has one.

    The threads are Python's, as in `kernels.dapp_loss`.
    """
    count = max(1, min(threads(), rows))
    faults = np.zeros((count, FAULT))
    pool = _pool(count - 1, os.getpid()) if count > 1 else None
    waiting = []
    if pool is not None:
        waiting = [pool.submit(run, first, count, faults[first]) for first in range(1, count)]
    run(0, count, faults[0])
    for one in waiting:
        one.result()
    broken = faults[faults[:, 0] > 0]
    if not len(broken):
        return None
    return np.asarray(broken[np.argmin(broken[:, 1])])


@cache
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: one that was forked does not inherit them."""
    return ThreadPoolExecutor(workers)


@no_type_check  # here and below: numba has its own types
def mixed(z):
    """A hash of 64 bits."""
    z = (z ^ (z >> SHIFT_30)) * FIRST_MIX
    z = (z ^ (z >> SHIFT_27)) * SECOND_MIX
    return z ^ (z >> SHIFT_31)


@no_type_check
def uniform(random):
    """A uniform number from 0 up to but not 1; (1,) ``random`` is the state of the generator."""
    random[0] += GOLDEN
    return np.float64(mixed(random[0]) >> SHIFT_11) * UNIT


@no_type_check
def unit_exponential(random):
    """A unit exponential."""
    return -math.log1p(-uniform(random))


@no_type_check
def piece_at(time, piece, end, left):
    """The piece that holds ``time``, which is not before ``piece``; ``end`` is that after the
    last.
    """
    while piece + 1 < end and left[piece + 1] <= time:
        piece += 1
    return piece


@no_type_check
def cubic(table, piece, mark, u):
    """A cubic of ``u``: that of a piece and a mark in (P, M, 4) ``table``."""
    high = table[piece, mark, 2] + u * table[piece, mark, 3]
    return table[piece, mark, 0] + u * (table[piece, mark, 1] + u * high)


@no_type_check
def largest_exposure(exposure, piece, end, time):
    """The largest exposure from that of ``piece`` up to ``time``."""
    most = exposure.value[piece]
    while piece + 1 < end and exposure.left[piece + 1] < time:
        piece += 1
        most = max(most, exposure.value[piece])
    return most


@no_type_check
def next_width(width, used, top, seen, filled):
    """The length of the next window: longer if the rate filled the bound or no candidate came,
    shorter if the bound was loose. ``filled`` is the mean share over the ``seen`` candidates.
    """
    if top <= 0.0:
        return 2.0 * max(width, used)
    factor = 1.0
    if seen == 0 or filled > TIGHT:
        factor = 1.5
    elif filled < LOOSE:
        factor = 0.6
    return min(max(used * factor, FEW / top), MANY / top)


@no_type_check
def shorter_window(now, end, expected):
    """An earlier end of the window from ``now`` to ``end``, in which the bound allows for
    ``expected`` candidates; ``now`` if there is no number in between.
    """
    share = 0.01
    if expected < np.inf:
        share = min(max(MANY / expected, 0.01), 0.5)
    shorter = now + (end - now) * share
    if now < shorter < end:
        return shorter
    return now


@no_type_check
def note_fault(fault, kind, row, time, rate):
    """Describe a fault in (FAULT,) ``fault``. Returns 1."""
    fault[0] = kind
    fault[1] = row
    fault[2] = time
    fault[3] = rate
    return 1


@no_type_check
def drawn_mark(rates, total, random):
    """A mark with probability in proportion to (M,) ``rates``, whose sum is ``total``."""
    left = uniform(random) * total
    for m in range(len(rates) - 1):
        left -= rates[m]
        if left < 0.0:
            return m
    return len(rates) - 1
