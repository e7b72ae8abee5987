r"""Counts of events on paths of an exponential Hawkes process after a history, drawn by thinning
and compiled with numba.

With E_jm the part of the rate of type m that fades with beta_j, a time d after an event

    lambda_m = mu_m(t) + sum_j exp(-beta_j d) E_jm,

and an event of type n adds w beta_j alpha_jmn to E_jm, w being the factor of its features (1
without any), drawn from those of training events. Between events E falls, so that its value now
and the largest mu of a window bound the rate there. Axes: R rows (sequences), J decays, M marks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from fourpoint.kernels import path_terms
from fourpoint.kernels.compiling import machine_code
from fourpoint.kernels.path_terms import (
    ABOVE_BOUND,
    ALLOWANCE,
    CROWDED,
    EXPLOSIVE,
    GOLDEN,
    MANY,
    cubic,
    drawn_mark,
    largest_exposure,
    mixed,
    next_width,
    note_fault,
    piece_at,
    shorter_window,
    uniform,
    unit_exponential,
)


class Factors(NamedTuple):
    """What event features multiply jumps of the rate by: (events,) ``known`` of the events of a
    history, and (R,) ``values`` of training events, from which simulated events of mark m draw one
    of ``first[m]:last[m]``.
    """

    known: NDArray[np.float64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    values: NDArray[np.float64]


class Loops(NamedTuple):
    """Functions of this file as machine code."""

    history: Callable[..., None]
    draw: Callable[..., int]
    rates: Callable[..., None]


@cache
def load() -> Loops:
    """The three as machine code, cached on disk between runs if possible."""
    random = (mixed, uniform, unit_exponential)
    windows = (largest_exposure, next_width, shorter_window, note_fault)
    shared = (*random, piece_at, cubic, *windows, drawn_mark)
    helpers = (*shared, drawn_factor, largest_base, rates_at)
    modules = (path_terms, sys.modules[__name__])
    code = machine_code(modules, (history, draw, rates), helpers, fastmath=False)
    return Loops(**code)


@no_type_check  # here and below: numba has its own types
def history(first, step, times, marks, offsets, start, jump, decay, factors, into):
    """E at the start of rows ``first``, ``first + step``, ..., into (R, J, M) ``into``.

    Row r has the events ``offsets[r]:offsets[r + 1]``, all up to ``start[r]``; (N, J, M) ``jump``
    is what an event of type N adds, times its factor.
    """
    for r in range(first, len(start), step):
        own = into[r]
        own[:] = 0.0
        for i in range(offsets[r], offsets[r + 1]):
            later = times[i + 1] if i + 1 < offsets[r + 1] else start[r]
            for j in range(len(decay)):
                fade = math.exp(-decay[j] * (later - times[i]))
                for m in range(own.shape[1]):
                    own[j, m] = fade * (own[j, m] + factors.known[i] * jump[marks[i], j, m])


@no_type_check
def draw(first, step, wanted, past, jump, decay, factors, pieces, exposure, counts, kept, fault):
    """Count the events of the paths of rows ``first``, ``first + step``, ... into (R, W, M, paths)
    ``counts``, or keep the first of them if there is room in ``kept`` (:class:`path_terms.Kept`).

    (R, J, M) ``past`` is E at the start. What comes back is 0, or 1 with the reason in ``fault``.
    """
    R, J, M = past.shape
    windows = wanted.edges.shape[1] - 1
    rate = np.empty(M)
    own = np.empty((J, M))
    random = np.empty(1, dtype=np.uint64)
    for r in range(first, R, step):
        begin = wanted.edges[r, 0]
        horizon = wanted.edges[r, windows] - begin
        offset = begin - pieces.anchor[r]
        last_piece = pieces.first[pieces.which[r] + 1]
        last_step = exposure.first[r + 1]
        first_piece = piece_at(offset, pieces.first[pieces.which[r]], last_piece, pieces.left)
        first_step = piece_at(begin, exposure.first[r], last_step, exposure.left)
        for p in range(wanted.paths):
            random[0] = mixed(wanted.keys[r] + GOLDEN * np.uint64(p + 1))
            own[:] = past[r]
            now = 0.0
            width = horizon
            count = 0
            window = 0
            piece = first_piece
            exposed = first_step
            while now < horizon:
                piece = piece_at(offset + now, piece, last_piece, pieces.left)
                exposed = piece_at(begin + now, exposed, last_step, exposure.left)
                end = min(now + width, horizon)
                excited = 0.0
                for j in range(J):
                    for m in range(M):
                        excited += own[j, m]
                top = 0.0
                while True:
                    top = excited + largest_base(pieces, piece, last_piece, offset + end)
                    top *= 1.0 + ALLOWANCE
                    top *= largest_exposure(exposure, exposed, last_step, begin + end)
                    expected = top * (end - now)
                    if expected <= 2 * MANY:
                        break
                    end = shorter_window(now, end, expected)
                    if end == now:
                        return note_fault(fault, EXPLOSIVE, r, now, top)
                at = now
                seen = 0
                filled = 0.0
                total = 0.0
                hit = False
                while top > 0.0:
                    at += unit_exponential(random) / top
                    if not at < end:
                        break
                    total = rates_at(at - now, own, decay, pieces, piece, last_piece,
                                     offset + at, rate)  # fmt: skip
                    factor = exposure.value[piece_at(begin + at, exposed, last_step, exposure.left)]
                    if not factor * total <= top * (1.0 + ALLOWANCE):
                        return note_fault(fault, ABOVE_BOUND, r, at, total)
                    seen += 1
                    filled += factor * total / top
                    if uniform(random) * top < factor * total:
                        hit = True
                        break
                if seen > 0:
                    filled /= seen
                width = next_width(width, end - now, top, seen, filled)
                reached = at if hit else end
                for j in range(J):
                    fade = math.exp(-decay[j] * (reached - now))
                    for m in range(M):
                        own[j, m] *= fade
                now = reached
                if not hit:
                    continue
                mark = drawn_mark(rate, total, random)
                weight = drawn_factor(factors, mark, random)
                for j in range(J):
                    for m in range(M):
                        own[j, m] += weight * jump[mark, j, m]
                if kept.times.shape[2] > 0:
                    kept.times[r, p, count] = at
                    kept.marks[r, p, count] = mark
                    kept.counts[r, p] = count + 1
                    if count + 1 == kept.times.shape[2]:
                        break
                else:
                    while window + 1 < windows and wanted.edges[r, window + 1] <= begin + at:
                        window += 1
                    counts[r, window, mark, p] += 1
                count += 1
                if count >= wanted.limit:
                    return note_fault(fault, CROWDED, r, at, total)
    return 0


@no_type_check
def rates(row, at, start, past, decay, pieces, into):
    """The rates of one row at times ``at`` since its start, if nothing happens until then, into
    (Q, M) ``into``.
    """
    rate = np.empty(into.shape[1])
    offset = start - pieces.anchor[row]
    end = pieces.first[pieces.which[row] + 1]
    piece = pieces.first[pieces.which[row]]
    for q in range(len(at)):
        rates_at(at[q], past[row], decay, pieces, piece, end, offset + at[q], rate)
        for m in range(len(rate)):
            into[q, m] = rate[m]


@no_type_check
def drawn_factor(factors, mark, random):
    """The factor of a simulated event; without a random number if there is only one."""
    low = factors.first[mark]
    size = factors.last[mark] - low
    if size == 1:
        return factors.values[low]
    return factors.values[low + min(int(uniform(random) * size), size - 1)]


@no_type_check
def largest_base(pieces, piece, end, until):
    """A bound of the sum over types of mu from the left end of ``piece`` up to ``until``."""
    last = piece_at(until, piece, end, pieces.left)
    total = 0.0
    for m in range(pieces.outside.shape[1]):
        most = pieces.most_outside[piece, m]
        for other in range(piece + 1, last + 1):
            most = max(most, pieces.most_outside[other, m])
        total += math.exp(most)
    return total


@no_type_check
def rates_at(lag, excitation, decay, pieces, piece, end, time, rate):
    """The sum of the rates ``lag`` after the moment of (J, M) ``excitation``, and each of them into
    ``rate``; ``time`` is counted as the pieces are.
    """
    here = piece_at(time, piece, end, pieces.left)
    u = time - pieces.left[here]
    for m in range(len(rate)):
        rate[m] = math.exp(cubic(pieces.outside, here, m, u))
    for j in range(len(decay)):
        fade = math.exp(-decay[j] * lag)
        for m in range(len(rate)):
            rate[m] += fade * excitation[j, m]
    total = 0.0
    for m in range(len(rate)):
        total += rate[m]
    return total
