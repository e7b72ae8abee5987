r"""The networks inside Deep DAPP on a CUDA device: one kernel for norm, two matrices and what is silenced between them.

    layer:   out = x + e * (V_2 (d * gelu(V_1 norm(x))))
    head:    q = gelu(x),   out = q + V_2 (d * gelu(V_1 norm(q))),   z = w'out + b,     d one draw for all T times of a gap

on rows of H numbers, T rows for every position. Only z leaves the head, and ``out`` at the last time of each position, which
is an event's. The 2H numbers inside come PART at a time, so that all of a program's numbers fit into registers. Backwards, the same
pass makes the gradient of x and leaves behind what the gradients of the matrices are products of. In the head the gradient of ``out`` is a
multiple of w but at events, so that V_2's needs the numbers inside at events alone, and sums. All sums go in one order: the
result is the same every time. Rows of positions beyond a sequence's last are skipped, and hold zeros wherever something is written.
`deep_layer` and `deep_dapp` are the plain versions that it is tested against.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.models.deep_maths_cuda import gelu_slope, normal_share
from fourpoint.models.deep_norm_cuda import unfold
from fourpoint.models.deep_product_cuda import product

PRECISION = "tf32"  # of the matrix products: "ieee", "tf32x3" or "tf32"
ROWS, WARPS, REGISTERS = 64, 4, 255  # of a program, forwards
BACK_ROWS, BACK_WARPS, BACK_REGISTERS = 32, 4, 255  # backwards
PART = BACK_PART = 64  # numbers inside at a time
STAGES = 2  # parts of the matrices on their way
STORED = "float32"  # what the matrices' gradients are products of: "float32" or "bfloat16"
EPS = 1e-5  # of the norm
ROOM = 16  # the last numbers of a program's sums, one of them in use: the next program's begin on a boundary


class Network(NamedTuple):
    """What a network is made of."""

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


class Mix(torch.autograd.Function):
    """A layer's network on tokens (R, H), R = B P positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tensor, P: int, silence: Silence, *parts: Tensor) -> Tensor:
        out = torch.empty_like(x)
        _forward(x, lengths, P, 1, silence, Network(*parts), None, None, out, None)
        ctx.save_for_backward(x, lengths, *parts)
        ctx.P, ctx.silence = P, silence
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, lengths, *parts = ctx.saved_tensors
        of_x, of_parts, _ = _backward(x, lengths, ctx.P, 1, ctx.silence, Network(*parts), None, grad.contiguous(), None)
        return of_x, None, None, None, *of_parts


class Head(torch.autograd.Function):
    """The head's network on sums before its first gelu (R T, H): z (R, T), and ``out`` (R, H) at the last of the T times."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lengths: Tensor, P: int, T: int, silence: Silence, rate: Tensor, rate_bias: Tensor, *parts: Tensor
    ) -> tuple[Tensor, Tensor]:
        H = x.shape[1]
        out, z = x.new_empty(len(x) // T, H), x.new_empty(len(x) // T, T)
        _forward(x, lengths, P, T, silence, Network(*parts), rate, rate_bias, out, z)
        ctx.save_for_backward(x, lengths, rate, *parts)
        ctx.P, ctx.T, ctx.silence = P, T, silence
        return z, out

    @staticmethod
    def backward(ctx: Any, of_z: Tensor, of_out: Tensor) -> tuple[Tensor | None, ...]:
        x, lengths, rate, *parts = ctx.saved_tensors
        of_x, of_parts, (of_rate, of_bias) = _backward(
            x, lengths, ctx.P, ctx.T, ctx.silence, Network(*parts), rate, of_out.contiguous(), of_z.contiguous()
        )
        return of_x, None, None, None, None, of_rate, of_bias, *of_parts


def _forward(
    x: Tensor, lengths: Tensor, P: int, T: int, silence: Silence, network: Network,
    rate: Tensor | None, rate_bias: Tensor | None, out: Tensor, z: Tensor | None,
) -> None:  # fmt: skip
    positions, H = len(x) // T, x.shape[1]
    _mix[(triton.cdiv(len(x), ROWS),)](
        x, lengths, *network, silence.inner, silence.outer, rate, rate_bias, out, z, positions, P, silence.louder, EPS,
        HEAD=z is not None, INNER=silence.inner is not None, OUTER=silence.outer is not None,
        T=T, H=H, WIDE=2 * H, PART=min(PART, 2 * H), ROWS=ROWS, PRECISION=PRECISION, num_warps=WARPS, num_stages=STAGES, maxnreg=REGISTERS,
    )  # fmt: skip


def _backward(
    x: Tensor, lengths: Tensor, P: int, T: int, silence: Silence, network: Network,
    rate: Tensor | None, of_out: Tensor, of_z: Tensor | None,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """Gradients of x, of the network's parts, and for the head of w (1, H) and b (1)."""
    (rows, H), head = x.shape, of_z is not None
    positions, stored = rows // T, getattr(torch, STORED)
    of_x = torch.empty_like(x)
    inside, ends = x.new_empty(rows, 2 * H, dtype=stored), x.new_empty(positions, 2 * H, dtype=stored)
    unit, of_ends = x.new_empty(rows, H, dtype=stored), None if head else x.new_empty(positions, H, dtype=stored)
    tiles, sizes = triton.cdiv(rows, BACK_ROWS), [H, 2 * H, H, 1, ROOM - 1] if head else [H]
    sums = x.new_empty(tiles, sum(sizes))
    _mix_back[(tiles,)](
        x, lengths, *network[:-1], silence.inner, silence.outer, rate, of_out, of_z,
        of_x, inside, ends, unit, of_ends, sums, positions, P, silence.louder, EPS,
        HEAD=head, INNER=silence.inner is not None, OUTER=silence.outer is not None, T=T, H=H, WIDE=2 * H, PART=min(BACK_PART, 2 * H),
        ROWS=BACK_ROWS, ROOM=ROOM, PRECISION=PRECISION, num_warps=BACK_WARPS, num_stages=STAGES, maxnreg=BACK_REGISTERS,
    )  # fmt: skip
    sums = sums.sum(0)
    of_up, of_down = product(inside, unit), product(ends, of_out.to(stored) if of_ends is None else of_ends)
    found = Network(*map(torch.empty_like, network))
    of_rate = x.new_empty(1, H) if head else None
    _finish[(1,)](of_up, of_down, sums, *network, rate, *found[:-1], of_rate, HEAD=head, H=H, WIDE=2 * H, num_warps=8)
    return of_x, [*found[:-1], sums[:H]], [of_rate, sums[4 * H : 4 * H + 1]] if of_rate is not None else []


@triton.jit
@no_type_check  # triton has its own types
def _rows(tile, lengths, positions, P, T: tl.constexpr, ROWS: tl.constexpr):
    """The position and the time of every row of a tile, whether it exists, and whether it counts."""
    row = tile * ROWS + tl.arange(0, ROWS)
    position = row // T
    there = position < positions
    return position, row % T, there, there & (position % P <= tl.load(lengths + position // P, there, 0))


@triton.jit
@no_type_check
def _unit(x, at, ok, eps, HEAD: tl.constexpr, H: tl.constexpr):
    """q, q with mean 0 and variance 1, and by how much it was stretched for that."""
    v = tl.load(x + at, ok[:, None], 0.0)
    if HEAD:
        v = v * normal_share(v)
    centred = v - (tl.sum(v, 1) / H)[:, None]
    steep = tl.rsqrt(tl.sum(centred * centred, 1) / H + eps)
    return v, centred * steep[:, None], steep


@triton.jit
@no_type_check
def _given(
    of_out, of_z, rate, outer, position, time, ok, louder, HEAD: tl.constexpr, OUTER: tl.constexpr, T: tl.constexpr, H: tl.constexpr
):
    """The gradients of ``out``, of what V_2 adds to it, and of z."""
    col = tl.arange(0, H)
    at = position[:, None] * H + col[None, :]
    g = tl.load(of_out + at, (ok & (time == T - 1))[:, None], 0.0)
    g_z = ok.to(tl.float32)
    if HEAD:
        g_z = tl.load(of_z + position * T + time, ok, 0.0)
        g += g_z[:, None] * tl.load(rate + col)[None, :]
    of_y = g
    if OUTER:
        of_y = g * (tl.load(outer + at, ok[:, None], 0).to(tl.float32) * louder)
    return g, of_y, g_z


@triton.jit
@no_type_check
def _inside(
    n, up, up_bias, inner, position, ok, c, louder, INNER: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):
    """The numbers inside at columns c, and their derivative by what V_1 gives."""
    matrix = tl.load(up + c[:, None] * H + tl.arange(0, H)[None, :])
    a = tl.dot(n, tl.trans(matrix), input_precision=PRECISION) + tl.load(up_bias + c)[None, :]
    share = normal_share(a)
    slope = gelu_slope(a, share)
    h = a * share
    if INNER:
        kept = tl.load(inner + position[:, None] * WIDE + c[None, :], ok[:, None], 0).to(tl.float32) * louder
        h = h * kept
        slope = slope * kept
    return h, slope, matrix


@triton.jit(do_not_specialize=["P", "positions"])
@no_type_check
def _mix(
    x, lengths, gamma, beta, up, up_bias, down, down_bias, inner, outer, rate, rate_bias, out, z, positions, P, louder, eps,
    HEAD: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position, time, there, ok = _rows(tl.program_id(0), lengths, positions, P, T, ROWS)
    col = tl.arange(0, H)
    last = (there & (time == T - 1))[:, None]
    if tl.sum(ok.to(tl.int32), 0) > 0:
        v, n, steep = _unit(x, (position * T + time)[:, None] * H + col[None, :], ok, eps, HEAD, H)
        n = n * tl.load(gamma + col)[None, :] + tl.load(beta + col)[None, :]
        y = tl.zeros([ROWS, H], tl.float32) + tl.load(down_bias + col)[None, :]
        for begin in range(0, WIDE, PART):
            c = begin + tl.arange(0, PART)
            h, slope, matrix = _inside(n, up, up_bias, inner, position, ok, c, louder, INNER, H, WIDE, PRECISION)
            y = tl.dot(h, tl.trans(tl.load(down + col[:, None] * WIDE + c[None, :])), y, input_precision=PRECISION)
        if OUTER:
            y = y * (tl.load(outer + position[:, None] * H + col[None, :], ok[:, None], 0).to(tl.float32) * louder)
        y = tl.where(ok[:, None], v + y, 0.0)
        if HEAD:
            score = tl.sum(y * tl.load(rate + col)[None, :], 1) + tl.load(rate_bias)
            tl.store(z + position * T + time, tl.where(ok, score, 0.0), there)
        tl.store(out + position[:, None] * H + col[None, :], y, last)
    else:
        if HEAD:
            tl.store(z + position * T + time, tl.zeros([ROWS], tl.float32), there)
        tl.store(out + position[:, None] * H + col[None, :], tl.zeros([ROWS, H], tl.float32), last)


@triton.jit(do_not_specialize=["P", "positions"])
@no_type_check
def _mix_back(
    x, lengths, gamma, beta, up, up_bias, down, inner, outer, rate, of_out, of_z,
    of_x, inside, ends, around, of_ends, sums, positions, P, louder, eps,
    HEAD: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr, T: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr,
    PART: tl.constexpr, ROWS: tl.constexpr, ROOM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of x; that of what V_1 gives (``inside``); the numbers inside at events (``ends``); 1 + norm(q) with neither scale nor
    shift (``around``); for a layer the gradient of what V_2 adds (``of_ends``); and ``sums`` over the tile's rows."""
    position, time, there, ok = _rows(tl.program_id(0), lengths, positions, P, T, ROWS)
    col = tl.arange(0, H)
    row = position * T + time
    at = row[:, None] * H + col[None, :]
    last = there & (time == T - 1)
    SIZE: tl.constexpr = 4 * H + ROOM if HEAD else H  # H + 2H + H and a 1
    to = sums + tl.program_id(0) * SIZE
    if tl.sum(ok.to(tl.int32), 0) > 0:
        v, unit, steep = _unit(x, at, ok, eps, HEAD, H)
        tl.store(around + at, unit + 1.0, there[:, None])
        n = unit * tl.load(gamma + col)[None, :] + tl.load(beta + col)[None, :]
        g, of_y, g_z = _given(of_out, of_z, rate, outer, position, time, ok, louder, HEAD, OUTER, T, H)
        tl.store(to + col, tl.sum(of_y, 0))
        if HEAD:
            tl.store(to + H + WIDE + col, tl.sum(g_z[:, None] * v, 0))
            tl.store(to + H + WIDE + H, tl.sum(g_z, 0))
        else:
            tl.store(of_ends + at, of_y, there[:, None])
        of_n = tl.zeros([ROWS, H], tl.float32)
        for begin in range(0, WIDE, PART):
            c = begin + tl.arange(0, PART)
            h, slope, matrix = _inside(n, up, up_bias, inner, position, ok, c, louder, INNER, H, WIDE, PRECISION)
            tl.store(ends + position[:, None] * WIDE + c[None, :], tl.where(ok[:, None], h, 0.0), last[:, None])
            if HEAD:
                tl.store(to + H + c, tl.sum(g_z[:, None] * h, 0))
            of_a = slope * tl.dot(of_y, tl.load(down + col[:, None] * WIDE + c[None, :]), input_precision=PRECISION)
            tl.store(inside + row.to(tl.int64)[:, None] * WIDE + c[None, :], of_a, there[:, None])
            of_n = tl.dot(of_a, matrix, of_n, input_precision=PRECISION)
        of_n = of_n * tl.load(gamma + col)[None, :]
        g += (of_n - (tl.sum(of_n, 1) / H)[:, None] - unit * (tl.sum(of_n * unit, 1) / H)[:, None]) * steep[:, None]
        if HEAD:
            raw = tl.load(x + at, ok[:, None], 0.0)
            g = g * gelu_slope(raw, normal_share(raw))
        tl.store(of_x + at, tl.where(ok[:, None], g, 0.0), there[:, None])
    else:
        none = tl.zeros([ROWS, H], tl.float32)
        tl.store(of_x + at, none, there[:, None])
        tl.store(around + at, none, there[:, None])
        wide = tl.arange(0, WIDE)
        more = tl.zeros([ROWS, WIDE], tl.float32)
        tl.store(inside + row.to(tl.int64)[:, None] * WIDE + wide[None, :], more, there[:, None])
        tl.store(ends + position[:, None] * WIDE + wide[None, :], more, last[:, None])
        tl.store(to + col, tl.zeros([H], tl.float32))
        if HEAD:
            tl.store(to + H + wide, tl.zeros([WIDE], tl.float32))
            tl.store(to + H + WIDE + col, tl.zeros([H], tl.float32))
            tl.store(to + H + WIDE + H, 0.0)
        else:
            tl.store(of_ends + at, none, there[:, None])


@triton.jit
@no_type_check
def _finish(
    both, other, sums, gamma, beta, up, up_bias, down, down_bias, rate,
    of_gamma, of_beta, of_up, of_up_bias, of_down, of_rate, HEAD: tl.constexpr, H: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The parts' gradients from the two products (2H, H), the first of them with 1 + norm(q)."""
    c = tl.arange(0, WIDE)
    col = tl.arange(0, H)
    tl.store(of_up_bias + c, unfold(both, gamma, beta, up, of_gamma, of_beta, of_up, WIDE, WIDE, H))
    by = tl.load(other + c[:, None] * H + col[None, :])
    across = col[None, :] * WIDE + c[:, None]
    if HEAD:
        of_h = tl.load(sums + H + c)
        by += of_h[:, None] * tl.load(rate + col)[None, :]
        said = tl.sum(tl.load(down + across) * of_h[:, None], 0)
        said += tl.load(sums + H + WIDE + col) + tl.load(down_bias + col) * tl.load(sums + H + WIDE + H)
        tl.store(of_rate + col, said)
    tl.store(of_down + across, by)
