"""A norm of short rows and the matrix after it on a CUDA device.

    y = W u + b,     u = (x - mean) / sqrt(variance + 1e-5) * scale + shift = n * scale + shift

Backwards, one kernel makes the gradient of x and leaves 1 + n behind. A row of n has the sum 0, so that the product of the gradient of y
with 1 + n, summed over all rows, holds the gradients of W, b, scale and shift alike: no table is summed for its own sake. torch's own
norms are made for long rows; for rows of 64 numbers they take several times as long. Used by `deep_cuda`.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from fourpoint.models.deep_product_cuda import product

ROWS, WARPS = 32, 4  # of a program
EPSILON = 1e-5


class NormLinear(torch.autograd.Function):
    """W norm(x) + b, for x (R, H) with H a power of two, W (C, H) and b (C)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, matrix: Tensor, bias: Tensor) -> Float[Tensor, "R C"]:
        ctx.save_for_backward(x, scale, shift, matrix)
        return torch.addmm(bias, normed(x, scale, shift), matrix.T)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, scale, shift, matrix = ctx.saved_tensors
        of_x, of_scale, of_shift, of_matrix, of_bias, _ = norm_linear_back(x, scale, shift, matrix, grad.contiguous(), None)
        return of_x, of_scale, of_shift, of_matrix, of_bias


def normed(x: Float[Tensor, "R H"], scale: Float[Tensor, " H"], shift: Float[Tensor, " H"]) -> Float[Tensor, "R H"]:
    """u."""
    out = torch.empty_like(x)
    _norm[(triton.cdiv(len(x), ROWS),)](x, scale, shift, out, len(x), H=x.shape[1], ROWS=ROWS, EPSILON=EPSILON, num_warps=WARPS)
    return out


def norm_linear_back(
    x: Tensor, scale: Tensor, shift: Tensor, matrix: Tensor, of_y: Tensor, more: Tensor | None, begin: int = 0
) -> tuple[Tensor, ...]:
    """Gradients of x (plus ``more``), scale, shift, W and b, and H of b's from ``begin`` on again, in a place of their own."""
    (R, H), C = x.shape, len(matrix)
    of_x, around = torch.empty_like(x), torch.empty_like(x)
    _norm_back[(triton.cdiv(R, ROWS),)](
        x, scale, of_y @ matrix, more, of_x, around, R, MORE=more is not None, H=H, ROWS=ROWS, EPSILON=EPSILON, num_warps=WARPS
    )
    found = (torch.empty_like(scale), torch.empty_like(shift), torch.empty_like(matrix), x.new_empty(C), x.new_empty(H))
    _unfold[(1,)](product(of_y, around), scale, shift, matrix, *found, begin, C=C, WIDE=triton.next_power_of_2(C), H=H, num_warps=8)
    return of_x, *found


@triton.jit(do_not_specialize=["R"])
@no_type_check  # triton has its own types
def _norm(x, scale, shift, out, R, H: tl.constexpr, ROWS: tl.constexpr, EPSILON: tl.constexpr):
    r, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, H)
    at, real = r[:, None] * H + h[None, :], (r < R)[:, None]
    value = tl.load(x + at, real, 0.0)
    centred = value - (tl.sum(value, 1) / H)[:, None]
    size = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / H + EPSILON)
    tl.store(out + at, centred * size[:, None] * tl.load(scale + h)[None, :] + tl.load(shift + h)[None, :], real)


@triton.jit(do_not_specialize=["R"])
@no_type_check
def _norm_back(x, scale, of_u, more, of_x, around, R, MORE: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, EPSILON: tl.constexpr):
    r, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, H)
    at, real = r[:, None] * H + h[None, :], (r < R)[:, None]
    value = tl.load(x + at, real, 0.0)
    centred = value - (tl.sum(value, 1) / H)[:, None]
    size = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / H + EPSILON)
    n = centred * size[:, None]
    g = tl.load(of_u + at, real, 0.0) * tl.load(scale + h)[None, :]
    g = (g - (tl.sum(g, 1) / H)[:, None] - n * (tl.sum(g * n, 1) / H)[:, None]) * size[:, None]
    if MORE:
        g += tl.load(more + at, real, 0.0)
    tl.store(of_x + at, g, real)
    tl.store(around + at, n + 1.0, real)


@triton.jit
@no_type_check
def unfold(both, scale, shift, matrix, of_scale, of_shift, of_matrix, C: tl.constexpr, WIDE: tl.constexpr, H: tl.constexpr):
    """From the product (C, H) with 1 + n: stores the gradients of scale, shift and W, and returns that of b."""
    c, h = tl.arange(0, WIDE), tl.arange(0, H)
    at, real = c[:, None] * H + h[None, :], (c < C)[:, None]
    by = tl.load(both + at, real, 0.0)
    bias = tl.sum(by, 1) / H
    by -= bias[:, None]
    w = tl.load(matrix + at, real, 0.0)
    tl.store(of_scale + h, tl.sum(by * w, 0))
    tl.store(of_shift + h, tl.sum(bias[:, None] * w, 0))
    tl.store(of_matrix + at, by * tl.load(scale + h)[None, :] + bias[:, None] * tl.load(shift + h)[None, :], real)
    return bias


@triton.jit
@no_type_check
def _unfold(
    both, scale, shift, matrix, of_scale, of_shift, of_matrix, of_bias, again, begin, C: tl.constexpr, WIDE: tl.constexpr, H: tl.constexpr
):
    bias = unfold(both, scale, shift, matrix, of_scale, of_shift, of_matrix, C, WIDE, H)
    c = tl.arange(0, WIDE)
    tl.store(of_bias + c, bias, c < C)
    tl.store(again + c - begin, bias, (c >= begin) & (c < begin + H) & (c < C))
