"""The innermost loop of `dapp_step`, compiled where numba is installed (the extra ``fast``): states at many nodes, read on the way.

It is a plain Python function, slow but correct as it stands. Whole arrays would hold the states at all nodes of all rows, and
are then limited by memory; the loop holds those of one row at one node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, no_type_check

import numpy as np


@cache
def compiled_nodes() -> Callable[..., None] | None:
    """:func:`nodes` as machine code, kept on disk between runs where that can be; None without numba."""
    try:
        from numba import njit
    except ImportError:
        return None
    options: dict[str, Any] = dict(nogil=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
    try:
        return njit(cache=True, **options)(nodes)
    except RuntimeError:  # no folder to keep machine code in
        return njit(**options)(nodes)


@no_type_check  # numba has its own types
def nodes(state, once, after, carried, read, z):
    """z (Q, R, M) at Q nodes: the real read-outs of S, once S, ..., once^(Q-2) S, and at last of ``after``.

    (R, J) state, once and after, complex; (M, 2, J) read for real and imaginary parts. Where ``carried``, ``after`` is not given
    but comes out, as once^(Q-1) S.
    """
    steps, modes = len(z) - 1, state.shape[1]
    x, y = np.empty(modes, dtype=read.dtype), np.empty(modes, dtype=read.dtype)
    a, b = np.empty(modes, dtype=read.dtype), np.empty(modes, dtype=read.dtype)
    for r in range(len(state)):
        for j in range(modes):
            x[j], y[j] = state[r, j].real, state[r, j].imag
            a[j], b[j] = once[r, j].real, once[r, j].imag
        for q in range(steps):
            for m in range(len(read)):
                total = x[0] * 0
                for j in range(modes):
                    total += x[j] * read[m, 0, j] + y[j] * read[m, 1, j]
                z[q, r, m] = total
            for j in range(modes):
                turned = x[j] * a[j] - y[j] * b[j]
                y[j] = x[j] * b[j] + y[j] * a[j]
                x[j] = turned
        for j in range(modes):
            if carried:
                after[r, j] = complex(x[j], y[j])
            else:
                x[j], y[j] = after[r, j].real, after[r, j].imag
        for m in range(len(read)):
            total = x[0] * 0
            for j in range(modes):
                total += x[j] * read[m, 0, j] + y[j] * read[m, 1, j]
            z[steps, r, m] = total
