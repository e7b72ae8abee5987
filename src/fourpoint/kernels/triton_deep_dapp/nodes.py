r"""Deep DAPP's head at the nodes of the integral on a CUDA device: z there and, where a gradient is
wanted, all gradients in the same kernel.

    loss = -g_b s (d / Q) w_q log(1 + e^z),   so that   of z = -g_b s (d / Q) w_q / (1 + e^-z)

at node q of Q in a gap of width d in sequence b, w_q its weight, s the scale of all rates and g_b
how much is made of the sequence's log-likelihood. z needs w'out alone and its gradient is a
multiple of w, so that V_2 takes no product here, and since nothing comes back from the end of the
likelihood but g_b, a node is gone through once. What it leaves of the parameters' gradients are
sums in which `mix` begins those at events. With n the rows before scale and shift, the
product of the inner columns' gradient with 1 + n holds the gradients of V_1, its bias, scale and
shift alike, since a row of n has the sum 0.

A program keeps SUMS numbers of that product. Where those are not all of it, a program goes through
its rows once for each part; z is then made before, and what a part adds to the gradient of norm(x)
waits where x's own gradient will be. `deep_dapp` is the plain version that it is tested against;
`rows` lists the rows.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.kernels.triton_deep_dapp import mix as deep_mix_cuda, rows as deep_rows_cuda
from fourpoint.kernels.triton_deep_dapp.maths import exp, node_of, product, sigmoid
from fourpoint.kernels.triton_deep_dapp.mix import (
    KeptActivations,
    Network,
    NodeSums,
    inside,
    unit_of,
)
from fourpoint.kernels.triton_deep_dapp.norm import EPSILON, unit_back
from fourpoint.kernels.triton_deep_dapp.rows import Rows, rows_in, tiles_of

ROWS, WARPS, REGISTERS, STAGES = 32, 2, 168, 2  # of a program that makes z alone
BACK_ROWS, BACK_WARPS, BACK_REGISTERS, BACK_STAGES = 16, 4, 255, 2  # with gradients
TOGETHER = 2  # such programs on a multiprocessor
PART = 32  # numbers inside at a time, for z alone


class Integral(NamedTuple):
    """What the integral is made of besides z, and how much is made of it."""

    width: Tensor  # (B, P): the gap after each position
    where: Tensor  # (R,): where in their strata the nodes lie, from 0 to 1 (`maths.node_of`)
    log_scale: Tensor  # log s
    gaps: bool  # whether the gaps before the first event and after the last do not count
    grad: Tensor | None = None  # (B,): of the log-likelihoods; None where all are 1


def nodes(
    x: Tensor,
    rows: Rows,
    kept: KeptActivations,
    network: Network,
    rate: tuple[Tensor, Tensor],
    z: Tensor,
) -> None:
    """Writes z (R, T) at all times but the last, from sums before the head's first gelu (R T, H);
    ``rate`` are w (1, H) and b (1).
    """
    H = x.shape[1]
    T = z.shape[1]
    _nodes[(rows.tiles(ROWS, T - 1),)](
        x,
        rows.place,
        rows.real,
        *network,
        kept.inner,
        *rate,
        z,
        kept.rescale,
        INNER=kept.inner is not None,
        T=T,
        H=H,
        WIDE=2 * H,
        PART=min(PART, 2 * H),
        ROWS=ROWS,
        EPSILON=EPSILON,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=WARPS,
        num_stages=STAGES,
        maxnreg=REGISTERS,
    )


def nodes_and_gradients(
    x: Tensor,
    rows: Rows,
    kept: KeptActivations,
    network: Network,
    rate: tuple[Tensor, Tensor],
    integral: Integral,
    z: Tensor,
) -> tuple[Tensor, NodeSums]:
    """Writes z as well; the gradient of x at these rows, and where those at events go (R T, H), and
    what programs have summed.
    """
    (H, T), of_x, part = (
        (x.shape[1], z.shape[1]),
        torch.empty_like(x),
        deep_mix_cuda.part_of(x.shape[1]),
    )
    if part < 2 * H:
        nodes(x, rows, kept, network, rate, z)
    lines = TOGETHER * deep_rows_cuda.PROGRAMS
    sums = NodeSums(*(x.new_empty(lines, size) for size in (2 * H * H, 2 * H, H, 1)))
    _nodes_back[(lines,)](
        x,
        rows.place,
        rows.real,
        *network,
        kept.inner,
        *rate,
        integral.width,
        integral.where,
        rows.lengths,
        integral.log_scale,
        integral.grad,
        z,
        of_x,
        *sums,
        rows.P,
        kept.rescale,
        MADE=part < 2 * H,
        GAPS=integral.gaps,
        EACH=integral.grad is not None,
        INNER=kept.inner is not None,
        T=T,
        H=H,
        WIDE=2 * H,
        PART=part,
        ROWS=BACK_ROWS,
        EPSILON=EPSILON,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=BACK_WARPS,
        num_stages=BACK_STAGES,
        maxnreg=BACK_REGISTERS,
    )
    return of_x, sums


@triton.jit
@no_type_check  # triton has its own types
def _nodes(
    x,
    place,
    count,
    gamma,
    beta,
    up,
    up_bias,
    down,
    down_bias,
    inner,
    rate,
    rate_bias,
    z,
    rescale,
    INNER: tl.constexpr,
    T: tl.constexpr,
    H: tl.constexpr,
    WIDE: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
):
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total * (T - 1):
        position, time, ok = rows_in(tl.program_id(0), place, total, T - 1, ROWS)
        row = position * T + time
        col = tl.arange(0, H)
        w = tl.load(rate + col)
        v, n, steep, by_raw = unit_of(x, row[:, None] * H + col[None, :], ok, True, H, EPSILON)
        n = n * tl.load(gamma + col)[None, :] + tl.load(beta + col)[None, :]
        found = tl.sum((v + tl.load(down_bias + col)[None, :]) * w[None, :], 1) + tl.load(rate_bias)
        for begin in range(0, WIDE, PART):
            c = begin + tl.arange(0, PART)
            matrix = tl.load(up + c[:, None] * H + col[None, :])
            h, gradient = inside(
                n, matrix, up_bias, inner, position, ok, c, rescale, INNER, WIDE, PRECISION
            )
            by_h = tl.sum(tl.load(down + col[:, None] * WIDE + c[None, :]) * w[:, None], 0)
            found += tl.sum(h * by_h[None, :], 1)
        tl.store(z + row, found, ok)


@triton.jit(do_not_specialize=["P"])
@no_type_check
def _nodes_back(
    x,
    place,
    count,
    gamma,
    beta,
    up,
    up_bias,
    down,
    down_bias,
    inner,
    rate,
    rate_bias,
    width,
    where,
    lengths,
    log_scale,
    grad,
    z,
    of_x,
    all_up,
    all_h,
    all_v,
    all_z,
    P,
    rescale,
    MADE: tl.constexpr,
    GAPS: tl.constexpr,
    EACH: tl.constexpr,
    INNER: tl.constexpr,
    T: tl.constexpr,
    H: tl.constexpr,
    WIDE: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """z, unless that is MADE, the gradient of x, and this program's sums."""
    total = tl.load(count)
    first, end = tiles_of(total * (T - 1), ROWS)
    line = tl.program_id(0)
    col = tl.arange(0, H)
    stretch = tl.load(gamma + col)
    shift = tl.load(beta + col)
    w = tl.load(rate + col)
    least = tl.sum(tl.load(down_bias + col) * w, 0) + tl.load(rate_bias)  # z where all else is 0
    s = exp(tl.load(log_scale)) / (T - 1)
    by_v = tl.zeros([ROWS, H], tl.float32)
    by_z = tl.zeros([ROWS], tl.float32)
    for begin in tl.static_range(0, WIDE, PART):
        c = begin + tl.arange(0, PART)
        of_h = tl.sum(tl.load(down + col[:, None] * WIDE + c[None, :]) * w[:, None], 0)  # of z
        matrix = tl.load(up + c[:, None] * H + col[None, :])  # rounded once for all tiles
        by_up = tl.zeros([PART, H], tl.float32)
        by_h = tl.zeros([ROWS, PART], tl.float32)
        for tile in range(first, end):
            position, time, ok = rows_in(tile, place, total, T - 1, ROWS)
            row = position * T + time
            at = row[:, None] * H + col[None, :]
            _, weight = node_of(tl.load(where + position, ok, 0.0), time, T - 1)
            g = -s * tl.load(width + position, ok, 0.0) * weight
            if EACH:
                g = g * tl.load(grad + position // P, ok, 0.0)
            if GAPS:
                p = position % P
                g = tl.where((p > 0) & (p < tl.load(lengths + position // P, ok, 0)), g, 0.0)
            v, n, steep, by_raw = unit_of(x, at, ok, True, H, EPSILON)
            u = n * stretch[None, :] + shift[None, :]
            h, gradient = inside(
                u, matrix, up_bias, inner, position, ok, c, rescale, INNER, WIDE, PRECISION
            )
            of_a = (
                gradient * of_h[None, :]
            )  # as if that of z were 1, so that no product waits for z
            of_u = product(of_a, matrix, None, PRECISION)
            if begin > 0:
                of_u += tl.load(of_x + at, ok[:, None], 0.0)
            tl.store(of_x + at, of_u, ok[:, None])
            if (
                begin + PART == WIDE
                # read again, so that threads have whole rows as they have of x, which are not made
                # a second time
            ):
                tl.debug_barrier()
                of_u = tl.load(of_x + at, ok[:, None], 0.0)
            if MADE:
                found = tl.load(z + row, ok, 0.0)
            else:
                found = tl.sum(h * of_h[None, :], 1) + (tl.sum(v * w[None, :], 1) + least)
                tl.store(z + row, found, ok)
            of_z = g * sigmoid(found)
            by_h += of_z[:, None] * h
            g = tl.gather(of_z, tl.arange(0, ROWS), 0)  # the same, for the threads that have x
            by_up = product(tl.trans(of_a), (n + 1.0) * g[:, None], by_up, PRECISION)
            if begin + PART == WIDE:
                by_v += g[:, None] * v
                by_z += of_z
                of_u = (w[None, :] + unit_back(of_u * stretch[None, :], n, steep, H)) * (
                    g[:, None] * by_raw
                )
                tl.store(of_x + at, of_u, ok[:, None])
        tl.store(all_up + line * (WIDE * H) + c[:, None] * H + col[None, :], by_up)
        tl.store(all_h + line * WIDE + c, tl.sum(by_h, 0))
    tl.store(all_v + line * H + col, tl.sum(by_v, 0))
    tl.store(all_z + line, tl.sum(by_z, 0))
