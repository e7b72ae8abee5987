r"""The monitors of many entities as arrays, one row each, and the gaps of a block of events in one
compiled loop.

The loop does what :meth:`~fourpoint.streaming.monitoring.Monitor.gap` does, operation by operation,
as long as nothing is to be told. It stops before an event that may raise an alarm, which the
monitor itself then decides. For the drift that is where a bound reaches the threshold: with n gaps
in B bins of equal probability,

    sup |F_n - F| <= max_b |F_n(b / B) - b / B| + 1 / B,

so that gaps need not be sorted. Sums are formed without ``fastmath``, since states must not depend
on whether numba is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import no_type_check

import numpy as np

from fourpoint.kernels.compiling import machine_code

BINS = 64


@cache
def load() -> Callable[..., int]:
    """:func:`watch` as machine code, cached on disk between runs if possible."""
    modules = (sys.modules[__name__],)
    return machine_code(modules, (watch,), (drifted,), fastmath=False)["watch"]


@no_type_check  # numba has its own types
def watch(
    first,
    rows,
    gaps,
    sums,
    told,
    seen,
    windows,
    bins,
    log2,
    burst_limit,
    silence_limit,
    gap_limit,
    drift_limit,
    rule,
):
    """Gaps from place ``first`` on into the monitors of ``rows``; the place of the first that may
    raise an alarm, or their number.

    Per row of the table: (2, 3) ``sums`` of burst and silence (value, count, total), ``told``,
    ``seen`` and the window of
    gaps. ``rule`` holds the numbers of gaps that the drift needs and of those between two looks;
    ``bins`` is scratch space.
    """
    fewest, stride = rule
    length = windows.shape[1]
    for i in range(first, len(rows)):
        # Elements and no views: to count the views of a row takes as long as the arithmetic.
        row = rows[i]
        gap = gaps[i]
        if told[row] or sums[row, 1, 0] + gap / 2 >= silence_limit or gap >= gap_limit:
            return i
        risen = sums[row, 0, 0] + (log2 - gap)
        if risen >= burst_limit:
            return i
        more = seen[row] + 1
        place = seen[row] % length
        if more % stride == 0 and more >= fewest:
            before = windows[row, place]
            windows[row, place] = gap
            if drifted(windows[row, : min(more, length)], bins, drift_limit):
                windows[row, place] = before
                return i
        windows[row, place] = gap
        seen[row] = more
        fallen = sums[row, 1, 0] + (gap / 2 - log2)
        if fallen <= 0.0:
            sums[row, 1, 0], sums[row, 1, 1], sums[row, 1, 2] = 0.0, 0.0, 0.0
        else:
            sums[row, 1, 0] = fallen
            sums[row, 1, 1] += 1.0
            sums[row, 1, 2] += gap
        if risen <= 0.0:
            sums[row, 0, 0], sums[row, 0, 1], sums[row, 0, 2] = 0.0, 0.0, 0.0
        else:
            sums[row, 0, 0] = risen
            sums[row, 0, 1] += 1.0
            sums[row, 0, 2] += gap
    return len(rows)


@no_type_check
def drifted(window, bins, drift_limit):
    """Whether the distance of the gaps in ``window`` from unit exponentials may reach
    sqrt(drift_limit / 2 n).
    """
    n = len(window)
    B = len(bins)
    bins[:] = 0
    for x in window:
        bins[min(int(-np.expm1(-x) * B), B - 1)] += 1
    below, largest = 0, 0.0
    for b in range(B):
        below += bins[b]
        largest = max(largest, abs(below / n - (b + 1) / B))
    limit = np.sqrt(drift_limit / (2 * n))
    return not largest + 1 / B < limit * (1 - 1e-9)
