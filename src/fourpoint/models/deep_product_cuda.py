"""Gradients of matrices on a CUDA device: products of two tables with many rows and few columns. Used by `deep_cuda`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

PIECES = 128  # of the rows at most, about one for each multiprocessor
SHORTEST = 32  # rows of a piece


def product(a: Float[Tensor, "R A"], b: Float[Tensor, "R B"]) -> Float[Tensor, "A B"]:
    """The sum over rows r of a_r b_r', in float32, also of numbers that are stored shorter.

    A matrix product whose result is small keeps few multiprocessors busy: pieces of the rows are done side by side and then summed,
    always in one order. Rows whose number has no large divisor are one piece.
    """
    pieces = next(n for n in range(max(1, min(PIECES, len(a) // SHORTEST)), 0, -1) if len(a) % n == 0)
    if a.dtype != torch.float32 and not a.is_cuda:
        a, b = a.float(), b.float()
    a, b = a.view(pieces, -1, a.shape[1]).transpose(1, 2), b.view(pieces, -1, b.shape[1])
    parts = torch.bmm(a, b) if a.dtype == torch.float32 else torch.bmm(a, b, out_dtype=torch.float32)
    return parts.sum(0) if pieces > 1 else parts[0]
