r"""What a layer of Deep DAPP adds to its tokens, on a CUDA device.

    u = norm(x),     y = gelu(C S + D u) * sigmoid(G u),     x <- x + d * O y,    d dropout

where S are the states of `scan`, and B u, the gates, D u and G u lie side by side in one
table, ``joined`` (R, 4J + 2H), from `norm`. The backward pass writes the last 2H columns
of its gradient. `deep_layer` is the plain version.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.kernels.triton_deep_dapp import rows as deep_rows_cuda
from fourpoint.kernels.triton_deep_dapp.maths import gelu_derivative, normal_share, product, sigmoid
from fourpoint.kernels.triton_deep_dapp.rows import Rows, rows_in, tiles_of

ROWS, WARPS = 32, 4  # of a program, forwards
BACK_ROWS, BACK_WARPS = 32, 8  # backwards


def gated(
    x: Tensor,
    joined: Tensor,
    state: Tensor,
    read: Tensor,
    read_bias: Tensor,
    out: Tensor,
    out_bias: Tensor,
    kept: Tensor | None,
    rescale: float,
    rows: Rows,
) -> Tensor:
    """New tokens (R, H), from tokens and states (R, 2J), whose rows may lie apart; C (H, 2J) is
    ``read``, and O (H, H) ``out``.

    ``kept`` (R, H) says which activations are kept, which count ``rescale`` times.
    """
    new, (H, wide) = torch.empty_like(x), read.shape
    _gated[(rows.tiles(ROWS),)](
        x,
        joined,
        state,
        read,
        read_bias,
        out,
        out_bias,
        kept,
        new,
        rows.place,
        rows.real,
        joined.stride(0),
        state.stride(0),
        rescale,
        KEPT=kept is not None,
        H=H,
        STATE=wide,
        ROWS=ROWS,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=WARPS,
    )
    return new


def gated_back(
    joined: Tensor,
    state: Tensor,
    read: Tensor,
    read_bias: Tensor,
    out: Tensor,
    kept: Tensor | None,
    rescale: float,
    rows: Rows,
    of_new: Tensor,
    of_state: Tensor,
    of_joined: Tensor,
    of_read: Tensor,
    of_read_bias: Tensor,
    of_out: Tensor,
    of_out_bias: Tensor,
) -> None:
    """Gradients: adds that of the states to ``of_state``, and writes the last 2H columns of
    ``of_joined``; the parameters' go into their columns of a `rows.Sums`. That of x is
    ``of_new`` itself, but for what ``joined`` brings.
    """
    H, wide = read.shape
    _gated_back[(len(of_read),)](
        joined,
        state,
        read,
        read_bias,
        out,
        kept,
        of_new,
        of_state,
        of_joined,
        of_read,
        of_read_bias,
        of_out,
        of_out_bias,
        rows.place,
        rows.real,
        joined.stride(0),
        state.stride(0),
        of_state.stride(0),
        of_read.stride(0),
        rescale,
        KEPT=kept is not None,
        H=H,
        STATE=wide,
        ROWS=BACK_ROWS,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=BACK_WARPS,
        num_stages=1,
    )


@triton.jit
@no_type_check  # triton has its own types
def _gated(
    x,
    joined,
    state,
    read,
    read_bias,
    out,
    out_bias,
    kept,
    new,
    place,
    count,
    wide,
    state_wide,
    rescale,
    KEPT: tl.constexpr,
    H: tl.constexpr,
    STATE: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total:
        row, _, ok = rows_in(tl.program_id(0), place, total, 1, ROWS)
        h = tl.arange(0, H)
        s = tl.arange(0, STATE)
        at = row[:, None] * H + h[None, :]
        states = tl.load(state + row[:, None] * state_wide + s[None, :], ok[:, None], 0.0)
        beside = joined + row[:, None] * wide + 2 * STATE + h[None, :]
        a = product(
            states, tl.trans(tl.load(read + h[:, None] * STATE + s[None, :])), None, PRECISION
        )
        a += tl.load(read_bias + h)[None, :] + tl.load(beside, ok[:, None], 0.0)
        y = a * normal_share(a) * sigmoid(tl.load(beside + H, ok[:, None], 0.0))
        o = (
            product(y, tl.trans(tl.load(out + h[:, None] * H + h[None, :])), None, PRECISION)
            + tl.load(out_bias + h)[None, :]
        )
        if KEPT:
            o = o * (tl.load(kept + at, ok[:, None], 0).to(tl.float32) * rescale)
        tl.store(new + at, tl.load(x + at, ok[:, None], 0.0) + o, ok[:, None])


@triton.jit
@no_type_check
def _gated_back(
    joined,
    state,
    read,
    read_bias,
    out,
    kept,
    of_new,
    of_state,
    of_joined,
    of_read,
    of_read_bias,
    of_out,
    of_out_bias,
    place,
    count,
    wide,
    state_wide,
    of_wide,
    line_wide,
    rescale,
    KEPT: tl.constexpr,
    H: tl.constexpr,
    STATE: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    total = tl.load(count)
    begin, end = tiles_of(total, ROWS)
    h = tl.arange(0, H)
    s = tl.arange(0, STATE)
    by_read = tl.zeros([H, STATE], tl.float32)
    by_out = tl.zeros([H, H], tl.float32)
    by_read_bias = tl.zeros([H], tl.float32)
    by_out_bias = tl.zeros([H], tl.float32)
    for tile in range(begin, end):
        row, _, ok = rows_in(tile, place, total, 1, ROWS)
        at = row[:, None] * H + h[None, :]
        of_o = tl.load(of_new + at, ok[:, None], 0.0)
        if KEPT:
            of_o = of_o * (tl.load(kept + at, ok[:, None], 0).to(tl.float32) * rescale)
        states = tl.load(state + row[:, None] * state_wide + s[None, :], ok[:, None], 0.0)
        beside = row[:, None] * wide + 2 * STATE + h[None, :]
        matrix = tl.load(read + h[:, None] * STATE + s[None, :])
        a = product(states, tl.trans(matrix), None, PRECISION)
        a += tl.load(read_bias + h)[None, :] + tl.load(joined + beside, ok[:, None], 0.0)
        share = normal_share(a)
        open_ = sigmoid(tl.load(joined + beside + H, ok[:, None], 0.0))
        by_out = product(tl.trans(of_o), a * share * open_, by_out, PRECISION)
        by_out_bias += tl.sum(of_o, 0)
        g = product(of_o, tl.load(out + h[:, None] * H + h[None, :]), None, PRECISION) * open_
        tl.store(of_joined + beside + H, g * a * share * (1.0 - open_), ok[:, None])
        g = g * gelu_derivative(a, share)
        tl.store(of_joined + beside, g, ok[:, None])
        by_read = product(tl.trans(g), states, by_read, PRECISION)
        by_read_bias += tl.sum(g, 0)
        to = of_state + row[:, None] * of_wide + s[None, :]
        tl.store(to, product(g, matrix, tl.load(to, ok[:, None], 0.0), PRECISION), ok[:, None])
    line = tl.program_id(0) * line_wide
    tl.store(of_read + line + h[:, None] * STATE + s[None, :], by_read)
    tl.store(of_read_bias + line + h, by_read_bias)
    tl.store(of_out + line + h[:, None] * H + h[None, :], by_out)
    tl.store(of_out_bias + line + h, by_out_bias)
