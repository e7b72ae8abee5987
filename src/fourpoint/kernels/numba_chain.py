"""The forward filter of `ops.chain`, compiled with numba.

The function is plain Python, slow but correct as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, no_type_check

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

FLOOR = 1e-300


@cache
def load() -> Callable[..., Tensor]:
    """The filter as machine code, cached on disk between runs if possible."""
    from numba import njit

    try:
        loop = njit(cache=True, nogil=True, error_model="numpy")(sweep)
    except RuntimeError:  # no folder to cache machine code in
        loop = njit(nogil=True, error_model="numpy")(sweep)
    return partial(run, loop)


def run(
    loop: Callable[..., Any], first: Tensor, factors: Tensor, moves: Tensor, T: Tensor
) -> Tensor:
    """As `ops.chain.plain_filtered`, without gradient."""
    import torch

    given = (part.detach().contiguous().numpy() for part in (first, factors, moves, T))
    B, S, K = factors.shape
    found = np.empty((B, S + 1, K))
    loop(*given, found)
    return torch.from_numpy(found)


@no_type_check  # numba has its own types
def sweep(first, factors, moves, T, found):
    """Write the distribution of the state at every position to ``found``."""
    B, S, K = factors.shape
    for b in range(B):
        for k in range(K):
            found[b, 0, k] = first[b, k]
        for s in range(S):
            total = 0.0
            for k in range(K):
                found[b, s + 1, k] = found[b, s, k] * factors[b, s, k]
                total += found[b, s + 1, k]
            total = max(total, FLOOR)
            for k in range(K):
                found[b, s + 1, k] /= total
            d = moves[b, s]
            if d >= 0:
                now = found[b, s + 1].copy()
                for k in range(K):
                    found[b, s + 1, k] = 0.0
                for j in range(K):
                    for k in range(K):
                        found[b, s + 1, k] += now[j] * T[d, j, k]


def examples() -> list[tuple[Tensor, ...]]:
    """Arguments for the comparison with the plain function."""
    import torch

    random = torch.Generator().manual_seed(0)
    first = torch.rand(2, 5, generator=random, dtype=torch.float64).softmax(1)
    factors = torch.rand(2, 300, 5, generator=random, dtype=torch.float64)
    moves = torch.randint(-1, 3, (2, 300), generator=random)
    T = torch.rand(3, 5, 5, generator=random, dtype=torch.float64).softmax(2)
    return [(first, factors, moves, T)]
