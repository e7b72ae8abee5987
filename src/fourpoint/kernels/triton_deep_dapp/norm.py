"""A norm of short rows and the matrix after it on a CUDA device.

    y = W u + b,     u = (x - mean) / sqrt(variance + 1e-5) * scale + shift = n * scale + shift

Backwards, some programs make the gradients of x, scale and shift, and others, at the same time,
those of PART rows of W and b each.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from fourpoint.kernels.triton_deep_dapp import rows as deep_rows_cuda
from fourpoint.kernels.triton_deep_dapp.maths import product
from fourpoint.kernels.triton_deep_dapp.rows import Rows, rows_in, tiles_of

ROWS, WARPS = 32, 4  # of a program, forwards
BACK_ROWS, BACK_WARPS = 32, 4  # backwards
PART, STAGES = 64, 3  # rows of W at a time, and parts on their way
EPSILON = 1e-5


def norm_linear(
    x: Float[Tensor, "R H"],
    scale: Tensor,
    shift: Tensor,
    matrix: Float[Tensor, "C H"],
    bias: Float[Tensor, " C"],
    rows: Rows,
) -> Float[Tensor, "R C"]:
    """y; H is a power of two."""
    (C, H), y = matrix.shape, x.new_empty(len(x), len(matrix))
    _norm_linear[(rows.tiles(ROWS), triton.cdiv(C, PART))](
        x,
        scale,
        shift,
        matrix,
        bias,
        y,
        rows.place,
        rows.real,
        C,
        H=H,
        PART=PART,
        ROWS=ROWS,
        EPSILON=EPSILON,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=WARPS,
    )
    return y


def norm_linear_back(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    matrix: Tensor,
    of_y: Float[Tensor, "R C"],
    more: Tensor | None,
    rows: Rows,
    of_scale: Tensor,
    of_shift: Tensor,
    of_matrix: Tensor,
    of_bias: Tensor,
) -> Float[Tensor, "R H"]:
    """The gradient of x plus ``more``; those of the parameters go into their columns of a
    `rows.Sums`.
    """
    (C, H), of_x = matrix.shape, x.new_empty(x.shape)
    _norm_linear_back[(len(of_scale), 1 + triton.cdiv(C, PART))](
        x,
        scale,
        shift,
        matrix,
        of_y,
        more,
        of_x,
        of_scale,
        of_shift,
        of_matrix,
        of_bias,
        rows.place,
        rows.real,
        C,
        of_scale.stride(0),
        MORE=more is not None,
        H=H,
        PART=PART,
        ROWS=BACK_ROWS,
        EPSILON=EPSILON,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=BACK_WARPS,
        num_stages=STAGES,
    )
    return of_x


@triton.jit
@no_type_check  # triton has its own types
def unit(v, H: tl.constexpr, EPSILON: tl.constexpr):
    """Rows with mean 0 and variance 1, and by how much they were stretched for that."""
    centred = v - (tl.sum(v, 1) / H)[:, None]
    steep = tl.rsqrt(tl.sum(centred * centred, 1) / H + EPSILON)
    return centred * steep[:, None], steep


@triton.jit
@no_type_check
def unit_back(g, n, steep, H: tl.constexpr):
    """The gradient of v from that of ``unit(v)``."""
    return (g - (tl.sum(g, 1) / H)[:, None] - n * (tl.sum(g * n, 1) / H)[:, None]) * steep[:, None]


@triton.jit
@no_type_check
def _norm_linear(
    x,
    scale,
    shift,
    matrix,
    bias,
    y,
    place,
    count,
    C,
    H: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
):
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total:
        row, _, ok = rows_in(tl.program_id(0), place, total, 1, ROWS)
        h = tl.arange(0, H)
        c = tl.program_id(1) * PART + tl.arange(0, PART)
        w = tl.load(matrix + c[:, None] * H + h[None, :], (c < C)[:, None], 0.0)
        n, _ = unit(tl.load(x + row[:, None] * H + h[None, :], ok[:, None], 0.0), H, EPSILON)
        u = n * tl.load(scale + h)[None, :] + tl.load(shift + h)[None, :]
        out = product(u, tl.trans(w), None, PRECISION) + tl.load(bias + c, c < C, 0.0)[None, :]
        tl.store(y + row[:, None] * C + c[None, :], out, ok[:, None] & (c < C)[None, :])


@triton.jit
@no_type_check
def _norm_linear_back(
    x,
    scale,
    shift,
    matrix,
    of_y,
    more,
    of_x,
    of_scale,
    of_shift,
    of_matrix,
    of_bias,
    place,
    count,
    C,
    wide,
    MORE: tl.constexpr,
    H: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The programs whose second number is 0 have x, scale and shift, the others PART rows of W and
    b each.
    """
    total = tl.load(count)
    begin, end = tiles_of(total, ROWS)
    line = tl.program_id(0) * wide
    h = tl.arange(0, H)
    gamma = tl.load(scale + h)
    if tl.program_id(1) == 0:
        by_scale = tl.zeros([H], tl.float32)
        by_shift = tl.zeros([H], tl.float32)
        for tile in range(begin, end):
            row, _, ok = rows_in(tile, place, total, 1, ROWS)
            at = row[:, None] * H + h[None, :]
            n, steep = unit(tl.load(x + at, ok[:, None], 0.0), H, EPSILON)
            g = tl.zeros([ROWS, H], tl.float32)
            for first in range(0, C, PART):
                c = first + tl.arange(0, PART)
                some = tl.load(
                    of_y + row[:, None] * C + c[None, :], ok[:, None] & (c < C)[None, :], 0.0
                )
                w = tl.load(matrix + c[:, None] * H + h[None, :], (c < C)[:, None], 0.0)
                g = product(some, w, g, PRECISION)
            by_scale += tl.sum(g * n, 0)
            by_shift += tl.sum(g, 0)
            g = unit_back(g * gamma[None, :], n, steep, H)
            if MORE:
                g += tl.load(more + at, ok[:, None], 0.0)
            tl.store(of_x + at, g, ok[:, None])
        tl.store(of_scale + line + h, by_scale)
        tl.store(of_shift + line + h, by_shift)
    else:
        c = (tl.program_id(1) - 1) * PART + tl.arange(0, PART)
        beta = tl.load(shift + h)
        by_matrix = tl.zeros([PART, H], tl.float32)
        by_bias = tl.zeros([PART], tl.float32)
        for tile in range(begin, end):
            row, _, ok = rows_in(tile, place, total, 1, ROWS)
            n, _ = unit(tl.load(x + row[:, None] * H + h[None, :], ok[:, None], 0.0), H, EPSILON)
            g = tl.load(of_y + row[:, None] * C + c[None, :], ok[:, None] & (c < C)[None, :], 0.0)
            by_matrix = product(
                tl.trans(g), n * gamma[None, :] + beta[None, :], by_matrix, PRECISION
            )
            by_bias += tl.sum(g, 0)
        tl.store(of_matrix + line + c[:, None] * H + h[None, :], by_matrix, (c < C)[:, None])
        tl.store(of_bias + line + c, by_bias, c < C)
