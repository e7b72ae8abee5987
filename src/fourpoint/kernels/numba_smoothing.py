"""Sums of normal kernels of `ops.smoothing` by cells of a grid, compiled with numba: every kernel
is added to the places in the cells that it reaches.

The functions are plain Python, slow but correct as they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, no_type_check

import numpy as np
from numpy.typing import NDArray

MOST_CELLS = 512  # on each axis


@cache
def load() -> Callable[..., NDArray[np.float64]]:
    """The sums as machine code, cached on disk between runs if possible."""
    from numba import njit

    try:
        loop = njit(cache=True, nogil=True, error_model="numpy")(scatter)
    except RuntimeError:  # no folder to cache machine code in
        loop = njit(nogil=True, error_model="numpy")(scatter)
    return partial(run, loop)


def run(
    loop: Callable[..., Any],
    places: NDArray[np.float64],
    centres: NDArray[np.float64],
    variances: NDArray[np.float64],
    weights: NDArray[np.float64],
    reach: float,
) -> NDArray[np.float64]:
    """sum_i weight_i N(x; x_i, variance_i) at ``places``; kernels end at ``reach`` deviations."""
    found = np.zeros(len(places))
    if not len(places) or not len(centres):
        return found
    low = places.min(0)
    width = float(max((places.max(0) - low).max(), 1e-300))
    cell = max(width / MOST_CELLS, float(np.sqrt(np.median(variances))))
    columns = (places - low) // cell
    index = columns.astype(np.int64)
    counts = index.max(0) + 1
    key = index[:, 0] * counts[1] + index[:, 1]
    order = np.argsort(key, kind="stable")
    offsets = np.searchsorted(key[order], np.arange(counts[0] * counts[1] + 1))
    sorted_places = np.ascontiguousarray(places[order])
    sums = np.zeros(len(places))
    loop(
        sorted_places,
        offsets,
        counts[0],
        counts[1],
        low,
        cell,
        centres,
        variances,
        weights,
        reach,
        sums,
    )
    found[order] = sums
    return found


@no_type_check  # numba has its own types
def scatter(places, offsets, across, up, low, cell, centres, variances, weights, reach, sums):
    """Add every kernel to ``sums`` of the places within its reach."""
    for i in range(len(centres)):
        far = reach * np.sqrt(variances[i])
        peak = weights[i] / (2.0 * np.pi * variances[i])
        half = -0.5 / variances[i]
        limit = far * far
        first = max(int(np.floor((centres[i, 0] - far - low[0]) / cell)), 0)
        last = min(int(np.floor((centres[i, 0] + far - low[0]) / cell)), across - 1)
        bottom = max(int(np.floor((centres[i, 1] - far - low[1]) / cell)), 0)
        top = min(int(np.floor((centres[i, 1] + far - low[1]) / cell)), up - 1)
        if bottom > top:
            continue
        for column in range(first, last + 1):
            begin = offsets[column * up + bottom]
            end = offsets[column * up + top + 1]
            for j in range(begin, end):
                dx = places[j, 0] - centres[i, 0]
                dy = places[j, 1] - centres[i, 1]
                apart = dx * dx + dy * dy
                if apart < limit:
                    sums[j] += peak * np.exp(half * apart)
