r"""The networks inside Deep DAPP on a CUDA device: one kernel for norm, two matrices and what is silenced between them.

    layer:   out = x + e * (V_2 (d * gelu(V_1 norm(x))))
    head:    q = gelu(x),   out = q + V_2 (d * gelu(V_1 norm(q))),   z = w'out + b,     d one draw for all T times of a gap

on rows of H numbers, T rows for every position. Only z leaves the head, and ``out`` at the last time of each position, which
is an event's. Forwards, the 2H numbers inside come PART at a time, so that all of a program's numbers fit into registers. Backwards, a
program goes through its rows once for every SUMS / H of them, and keeps the sums that are those columns' gradients; what each part adds
to the gradient of norm(x) waits in the place of x's own gradient. With n the rows before scale and shift, the product of those columns'
gradient with 1 + n holds the gradients of V_1, its bias, scale and shift alike, since a row of n has the sum 0. At the nodes of the head,
all times but the last, only w'out is wanted and its gradient a multiple of w, so that V_2 takes no product there (`_nodes`,
`_nodes_back`). `deep_layer` and `deep_dapp` are the plain versions that it is tested against; `deep_rows_cuda` lists the rows.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.models import deep_rows_cuda
from fourpoint.models.deep_maths_cuda import gelu_slope, normal_share, product
from fourpoint.models.deep_norm_cuda import EPSILON, unit, unit_back
from fourpoint.models.deep_rows_cuda import Rows, rows_in, tiles_of

ROWS, WARPS, REGISTERS, STAGES = 32, 2, 168, 2  # of a program, forwards; parts of the matrices on their way
BACK_ROWS, BACK_WARPS, BACK_REGISTERS, BACK_STAGES = 32, 8, 255, 2  # backwards, in layers and at events
NODE_ROWS, NODE_WARPS, NODE_REGISTERS, NODE_STAGES = 32, 8, 255, 2  # backwards, at nodes
PART = 32  # numbers inside at a time
SUMS = 8192  # numbers of one matrix's gradient that a program keeps


class Network(NamedTuple):
    """What a network is made of; or, for their gradients, columns of a `deep_rows_cuda.Sums`."""

    gamma: Tensor  # (H,)
    beta: Tensor
    up: Tensor  # (2H, H)
    up_bias: Tensor
    down: Tensor  # (H, 2H)
    down_bias: Tensor


class Silence(NamedTuple):
    """Which activations are kept, inside (R, 2H) and at the end (R, H), and by how much those are louder."""

    inner: Tensor | None
    outer: Tensor | None
    louder: float


def mix(x: Tensor, rows: Rows, silence: Silence, network: Network) -> Tensor:
    """A layer's network on tokens (R, H)."""
    out = torch.empty_like(x)
    _forward(x, rows, 1, silence, network, (None, None), out, None)
    return out


def mix_back(x: Tensor, rows: Rows, silence: Silence, network: Network, of_out: Tensor, of_network: Network) -> Tensor:
    """The gradient of x; the network's go into ``of_network``."""
    return _backward(x, rows, 1, silence, network, (None, None), of_out, None, of_network, (None, None))


def head(x: Tensor, rows: Rows, T: int, silence: Silence, network: Network, rate: tuple[Tensor, Tensor], out: Tensor) -> Tensor:
    """The head's network on sums before its first gelu (R T, H): z (R, T); writes ``out`` (R, H) at the last of the T times.

    ``rate`` are w (1, H) and b (1)."""
    z = x.new_empty(len(out), T)
    _forward(x, rows, T, silence, network, rate, out, z)
    return z


def head_back(
    x: Tensor, rows: Rows, T: int, silence: Silence, network: Network, rate: tuple[Tensor, Tensor], of_out: Tensor, of_z: Tensor,
    of_network: Network, of_rate: tuple[Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """The gradient of x; those of the parameters go into their columns."""
    return _backward(x, rows, T, silence, network, rate, of_out, of_z, of_network, of_rate)


def _forward(
    x: Tensor, rows: Rows, T: int, silence: Silence, network: Network, rate: tuple[Tensor | None, Tensor | None],
    out: Tensor, z: Tensor | None,
) -> None:  # fmt: skip
    H, part, inner = x.shape[1], min(PART, 2 * x.shape[1]), silence.inner is not None
    _mix[(rows.tiles(ROWS),)](
        x, rows.place, rows.real, *network, silence.inner, silence.outer, *rate, out, z, silence.louder,
        HEAD=z is not None, INNER=inner, OUTER=silence.outer is not None,
        T=T, H=H, WIDE=2 * H, PART=part, ROWS=ROWS, EPSILON=EPSILON, PRECISION=deep_rows_cuda.PRECISION,
        num_warps=WARPS, num_stages=STAGES, maxnreg=REGISTERS,
    )  # fmt: skip
    if z is not None:
        _nodes[(rows.tiles(ROWS, T - 1),)](
            x, rows.place, rows.real, *network, silence.inner, *rate, z, silence.louder, INNER=inner,
            T=T, H=H, WIDE=2 * H, PART=part, ROWS=ROWS, EPSILON=EPSILON, PRECISION=deep_rows_cuda.PRECISION,
            num_warps=WARPS, num_stages=STAGES, maxnreg=REGISTERS,
        )  # fmt: skip


def _backward(
    x: Tensor, rows: Rows, T: int, silence: Silence, network: Network, rate: tuple[Tensor | None, Tensor | None],
    of_out: Tensor, of_z: Tensor | None, of_network: Network, of_rate: tuple[Tensor | None, Tensor | None],
) -> Tensor:  # fmt: skip
    H, of_x, lines, inner = x.shape[1], torch.empty_like(x), len(of_network.up), silence.inner is not None
    part = min(max(16, SUMS // H), 2 * H)
    _mix_back[(lines,)](
        x, rows.place, rows.real, *network, silence.inner, silence.outer, rate[0], of_out, of_z, of_x, *of_network, *of_rate,
        of_network.up.stride(0), silence.louder, HEAD=of_z is not None, INNER=inner, OUTER=silence.outer is not None,
        T=T, H=H, WIDE=2 * H, PART=part, ROWS=BACK_ROWS, EPSILON=EPSILON, PRECISION=deep_rows_cuda.PRECISION,
        num_warps=BACK_WARPS, num_stages=BACK_STAGES, maxnreg=BACK_REGISTERS,
    )  # fmt: skip
    if of_z is not None:
        _nodes_back[(lines,)](
            x, rows.place, rows.real, *network, silence.inner, rate[0], of_z, of_x, *of_network, *of_rate,
            of_network.up.stride(0), silence.louder, INNER=inner,
            T=T, H=H, WIDE=2 * H, PART=part, ROWS=NODE_ROWS, EPSILON=EPSILON, PRECISION=deep_rows_cuda.PRECISION,
            num_warps=NODE_WARPS, num_stages=NODE_STAGES, maxnreg=NODE_REGISTERS,
        )  # fmt: skip
    return of_x


@triton.jit
@no_type_check  # triton has its own types
def _inside(
    n, up, up_bias, inner, position, ok, c, louder, INNER: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):
    """The numbers inside at columns c, and their derivative by what V_1 gives."""
    matrix = tl.load(up + c[:, None] * H + tl.arange(0, H)[None, :])
    a = product(n, tl.trans(matrix), None, PRECISION) + tl.load(up_bias + c)[None, :]
    share = normal_share(a)
    slope = gelu_slope(a, share)
    h = a * share
    if INNER:
        kept = tl.load(inner + position[:, None] * WIDE + c[None, :], ok[:, None], 0).to(tl.float32) * louder
        h = h * kept
        slope = slope * kept
    return h, slope, matrix


@triton.jit
@no_type_check
def _unit(x, at, ok, HEAD: tl.constexpr, H: tl.constexpr, EPSILON: tl.constexpr):
    """q, q with mean 0 and variance 1, and by how much it was stretched for that."""
    v = tl.load(x + at, ok[:, None], 0.0)
    if HEAD:
        v = v * normal_share(v)
    n, steep = unit(v, H, EPSILON)
    return v, n, steep


@triton.jit
@no_type_check
def _mix(
    x, place, count, gamma, beta, up, up_bias, down, down_bias, inner, outer, rate, rate_bias, out, z, louder,
    HEAD: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr, T: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr,
    PART: tl.constexpr, ROWS: tl.constexpr, EPSILON: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """At the last of the T times."""
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total:
        position, _, ok = rows_in(tl.program_id(0), place, total, 1, ROWS)
        col = tl.arange(0, H)
        row = position * T + (T - 1)
        v, n, steep = _unit(x, row[:, None] * H + col[None, :], ok, HEAD, H, EPSILON)
        n = n * tl.load(gamma + col)[None, :] + tl.load(beta + col)[None, :]
        y = tl.zeros([ROWS, H], tl.float32) + tl.load(down_bias + col)[None, :]
        for begin in range(0, WIDE, PART):
            c = begin + tl.arange(0, PART)
            h, slope, matrix = _inside(n, up, up_bias, inner, position, ok, c, louder, INNER, H, WIDE, PRECISION)
            y = product(h, tl.trans(tl.load(down + col[:, None] * WIDE + c[None, :])), y, PRECISION)
        if OUTER:
            y = y * (tl.load(outer + position[:, None] * H + col[None, :], ok[:, None], 0).to(tl.float32) * louder)
        y += v
        if HEAD:
            tl.store(z + row, tl.sum(y * tl.load(rate + col)[None, :], 1) + tl.load(rate_bias), ok)
        tl.store(out + position[:, None] * H + col[None, :], y, ok[:, None])


@triton.jit
@no_type_check
def _nodes(
    x, place, count, gamma, beta, up, up_bias, down, down_bias, inner, rate, rate_bias, z, louder,
    INNER: tl.constexpr, T: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr,
    PART: tl.constexpr, ROWS: tl.constexpr, EPSILON: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """z at all other times of the head, for which V_2 is no more than w'V_2."""
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total * (T - 1):
        position, time, ok = rows_in(tl.program_id(0), place, total, T - 1, ROWS)
        row = position * T + time
        col = tl.arange(0, H)
        w = tl.load(rate + col)
        v, n, steep = _unit(x, row[:, None] * H + col[None, :], ok, True, H, EPSILON)
        n = n * tl.load(gamma + col)[None, :] + tl.load(beta + col)[None, :]
        found = tl.sum((v + tl.load(down_bias + col)[None, :]) * w[None, :], 1) + tl.load(rate_bias)
        for begin in range(0, WIDE, PART):
            c = begin + tl.arange(0, PART)
            h, slope, matrix = _inside(n, up, up_bias, inner, position, ok, c, louder, INNER, H, WIDE, PRECISION)
            by_h = tl.sum(tl.load(down + col[:, None] * WIDE + c[None, :]) * w[:, None], 0)
            found += tl.sum(h * by_h[None, :], 1)
        tl.store(z + row, found, ok)


@triton.jit
@no_type_check
def _mix_back(
    x, place, count, gamma, beta, up, up_bias, down, down_bias, inner, outer, rate, of_out, of_z, of_x,
    of_gamma, of_beta, of_up, of_up_bias, of_down, of_down_bias, of_rate, of_rate_bias, line_wide, louder,
    HEAD: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr, T: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr,
    PART: tl.constexpr, ROWS: tl.constexpr, EPSILON: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """At the last of the T times: gradient of x, and in this program's line its share of the parameters'."""
    total = tl.load(count)
    first, end = tiles_of(total, ROWS)
    line = tl.program_id(0) * line_wide
    col = tl.arange(0, H)
    stretch = tl.load(gamma + col)
    shift = tl.load(beta + col)
    by_gamma = tl.zeros([H], tl.float32)
    by_beta = tl.zeros([H], tl.float32)
    by_y = tl.zeros([H], tl.float32)
    by_rate = tl.zeros([H], tl.float32)
    by_z = tl.zeros([ROWS], tl.float32)
    for begin in tl.static_range(0, WIDE, PART):
        c = begin + tl.arange(0, PART)
        across = col[:, None] * WIDE + c[None, :]
        by_up = tl.zeros([PART, H], tl.float32)
        by_down = tl.zeros([H, PART], tl.float32)
        by_h = tl.zeros([PART], tl.float32)
        for tile in range(first, end):
            position, _, ok = rows_in(tile, place, total, 1, ROWS)
            row = position * T + (T - 1)
            at = row[:, None] * H + col[None, :]
            beside = position[:, None] * H + col[None, :]
            v, n, steep = _unit(x, at, ok, HEAD, H, EPSILON)
            u = n * stretch[None, :] + shift[None, :]
            g = tl.load(of_out + beside, ok[:, None], 0.0)
            g_z = ok.to(tl.float32)
            if HEAD:
                g_z = tl.load(of_z + row, ok, 0.0)
                g += g_z[:, None] * tl.load(rate + col)[None, :]
            of_y = g
            if OUTER:
                of_y = g * (tl.load(outer + beside, ok[:, None], 0).to(tl.float32) * louder)
            h, slope, matrix = _inside(u, up, up_bias, inner, position, ok, c, louder, INNER, H, WIDE, PRECISION)
            by_down = product(tl.trans(of_y), h, by_down, PRECISION)
            of_a = slope * product(of_y, tl.load(down + across), None, PRECISION)
            by_up = product(tl.trans(of_a), n + 1.0, by_up, PRECISION)
            of_u = product(of_a, matrix, None, PRECISION)
            if HEAD:
                by_h += tl.sum(g_z[:, None] * h, 0)
            if begin > 0:
                of_u += tl.load(of_x + at, ok[:, None], 0.0)
            if begin + PART == WIDE:
                by_y += tl.sum(of_y, 0)
                of_u = g + unit_back(of_u * stretch[None, :], n, steep, H)
                if HEAD:
                    by_rate += tl.sum(g_z[:, None] * v, 0)
                    by_z += g_z
                    of_u = of_u * _raw_slope(x, at, ok)
            tl.store(of_x + at, of_u, ok[:, None])
        of_scale, of_shift = _leave_up(by_up, up, stretch, shift, of_up + line, of_up_bias + line, c, False, H)
        by_gamma += of_scale
        by_beta += of_shift
        tl.store(of_down + line + across, by_down)
        if HEAD:  # z is linear in the numbers inside
            by_rate += tl.sum(tl.load(down + across) * by_h[None, :], 1)
    tl.store(of_gamma + line + col, by_gamma)
    tl.store(of_beta + line + col, by_beta)
    tl.store(of_down_bias + line + col, by_y)
    if HEAD:
        every = tl.sum(by_z, 0)
        tl.store(of_rate + line + col, by_rate + tl.load(down_bias + col) * every)
        tl.store(of_rate_bias + line, every)


@triton.jit
@no_type_check
def _nodes_back(
    x, place, count, gamma, beta, up, up_bias, down, down_bias, inner, rate, of_z, of_x,
    of_gamma, of_beta, of_up, of_up_bias, of_down, of_down_bias, of_rate, of_rate_bias, line_wide, louder,
    INNER: tl.constexpr, T: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr,
    PART: tl.constexpr, ROWS: tl.constexpr, EPSILON: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same at all other times of the head; its share is added to what the line holds."""
    total = tl.load(count)
    first, end = tiles_of(total * (T - 1), ROWS)
    line = tl.program_id(0) * line_wide
    col = tl.arange(0, H)
    stretch = tl.load(gamma + col)
    shift = tl.load(beta + col)
    w = tl.load(rate + col)
    by_gamma = tl.zeros([H], tl.float32)
    by_beta = tl.zeros([H], tl.float32)
    by_rate = tl.zeros([H], tl.float32)
    by_z = tl.zeros([ROWS], tl.float32)
    for begin in tl.static_range(0, WIDE, PART):
        c = begin + tl.arange(0, PART)
        across = col[:, None] * WIDE + c[None, :]
        of_h = tl.sum(tl.load(down + across) * w[:, None], 0)  # of z
        by_up = tl.zeros([PART, H], tl.float32)
        by_h = tl.zeros([PART], tl.float32)
        for tile in range(first, end):
            position, time, ok = rows_in(tile, place, total, T - 1, ROWS)
            row = position * T + time
            at = row[:, None] * H + col[None, :]
            v, n, steep = _unit(x, at, ok, True, H, EPSILON)
            u = n * stretch[None, :] + shift[None, :]
            g_z = tl.load(of_z + row, ok, 0.0)
            h, slope, matrix = _inside(u, up, up_bias, inner, position, ok, c, louder, INNER, H, WIDE, PRECISION)
            of_a = slope * (g_z[:, None] * of_h[None, :])
            by_up = product(tl.trans(of_a), n + 1.0, by_up, PRECISION)
            of_u = product(of_a, matrix, None, PRECISION)
            by_h += tl.sum(g_z[:, None] * h, 0)
            if begin > 0:
                of_u += tl.load(of_x + at, ok[:, None], 0.0)
            if begin + PART == WIDE:
                by_rate += tl.sum(g_z[:, None] * v, 0)
                by_z += g_z
                of_u = (g_z[:, None] * w[None, :] + unit_back(of_u * stretch[None, :], n, steep, H)) * _raw_slope(x, at, ok)
            tl.store(of_x + at, of_u, ok[:, None])
        of_scale, of_shift = _leave_up(by_up, up, stretch, shift, of_up + line, of_up_bias + line, c, True, H)
        by_gamma += of_scale
        by_beta += of_shift
        _leave(of_down + line + across, w[:, None] * by_h[None, :], True)
        by_rate += tl.sum(tl.load(down + across) * by_h[None, :], 1)
    every = tl.sum(by_z, 0)
    _leave(of_gamma + line + col, by_gamma, True)
    _leave(of_beta + line + col, by_beta, True)
    _leave(of_down_bias + line + col, w * every, True)
    _leave(of_rate + line + col, by_rate + tl.load(down_bias + col) * every, True)
    _leave(of_rate_bias + line, every, True)


@triton.jit
@no_type_check
def _raw_slope(x, at, ok):
    """The derivative of the head's first gelu; x is read again, since registers are short."""
    raw = tl.load(x + at, ok[:, None], 0.0)
    return gelu_slope(raw, normal_share(raw))


@triton.jit
@no_type_check
def _leave_up(by_up, up, stretch, shift, of_up, of_up_bias, c, MORE: tl.constexpr, H: tl.constexpr):
    """From the sums with 1 + n: leaves the gradients of V_1 and its bias, and returns those of scale and shift."""
    at = c[:, None] * H + tl.arange(0, H)[None, :]
    bias = tl.sum(by_up, 1) / H
    by_up = by_up - bias[:, None]
    _leave(of_up + at, by_up * stretch[None, :] + bias[:, None] * shift[None, :], MORE)
    _leave(of_up_bias + c, bias, MORE)
    matrix = tl.load(up + at)
    return tl.sum(by_up * matrix, 0), tl.sum(bias[:, None] * matrix, 0)


@triton.jit
@no_type_check
def _leave(to, value, MORE: tl.constexpr):
    if MORE:
        value += tl.load(to)
    tl.store(to, value)
