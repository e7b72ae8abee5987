r"""Deep DAPP's states at every time of every gap on a CUDA device, and what they say together.

    before(p, t) = W [F_1(t) S_1, ..., F_L(t) S_L] + U norm(x_p) + T features(t - t_p) + b,   F(t) = exp((-gamma + i theta) r_p (t - t_p))

at T times after each position p: Q nodes, which lie at the given shares of the gap's strata, and the gap's end, where the next event
is. A program has ROWS positions and goes through the T times one by one, so that the gradient of a position's state, a sum over
its times, stays in registers; the turned states F S and the features are left behind, and the gradients of W and T are
products of them. The L layers' modes lie side by side. `deep_dapp` is the plain version that it is tested against.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.models import deep_mix_cuda
from fourpoint.models.deep_maths_cuda import cos_sin
from fourpoint.models.deep_product_cuda import product

ROWS, WARPS, REGISTERS = 16, 4, 168  # of a program, forwards: three of them on a multiprocessor
BACK_ROWS, BACK_WARPS, BACK_REGISTERS = 16, 4, 255  # backwards
FEATURES = 16  # of a time: those of the model, a 1 for the bias, and zeros


class Modes(torch.autograd.Function):
    """L log decays and L turns, (J) each, as log decays and turns of all layers side by side, (L J), and of every layer by itself."""

    @staticmethod
    def forward(ctx: Any, *learned: Tensor) -> tuple[Tensor, ...]:
        L = len(learned) // 2
        log_decay, turns = torch.cat(learned).chunk(2)
        return log_decay, turns, *[part.detach() for pair in zip(log_decay.chunk(L), turns.chunk(L), strict=True) for part in pair]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        L = len(grads) // 2 - 1
        of = torch.cat([grads[0], grads[1], *grads[2::2], *grads[3::2]]).view(2, 2, -1).sum(0)
        return tuple(of.view(2 * L, -1))


class Turn(torch.autograd.Function):
    """``before`` at all times, (R T, H), for R = B P positions.

    Arguments
        together: the layers' states (R, 2 L J) and paces (R, L J) at each position; context (R, H): what else is known there.
        read (H, 2 L J), bias (H), since (H, K): the matrices W and T, and b.
        log_decay, turns, first (L J): gamma = exp(log_decay), theta = turns * first.
        scales (K): of the features.
        width (B, P): the gap after each position; nodes (R, Q): where in its stratum each node lies, from 0 to 1.
        lengths (B): the last position of each sequence.
        moments: (R, 2J) and (R, J) of each layer, which lie in ``together``: what the gradients of those are for.
    """

    @staticmethod
    def forward(
        ctx: Any, together: tuple[Tensor, Tensor], context: Tensor, read: Tensor, bias: Tensor, since: Tensor, log_decay: Tensor,
        turns: Tensor, first: Tensor, scales: Tensor, width: Tensor, nodes: Tensor, lengths: Tensor, *moments: Tensor,
    ) -> Tensor:  # fmt: skip
        given = (*together, context, read, bias, since, log_decay, turns, first, scales, width, nodes, lengths)
        (R, H), Q = context.shape, nodes.shape[1]
        before = context.new_empty(R * (Q + 1), H)
        _turn[(triton.cdiv(R, ROWS),)](
            *given, before, R, width.shape[1], Q=Q, K=len(scales), J=len(turns), MODES=triton.next_power_of_2(len(turns)),
            H=H, ROWS=ROWS, FEATURES=FEATURES, PRECISION=deep_mix_cuda.PRECISION, num_warps=WARPS, maxnreg=REGISTERS,
        )  # fmt: skip
        ctx.save_for_backward(*given)
        ctx.layers = len(moments) // 2
        return before

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        state, pace, context, read, _, since, _, turns, _, scales, width, nodes, _ = ctx.saved_tensors
        (R, H), J, K = context.shape, len(turns), len(scales)
        tiles, grad = triton.cdiv(R, BACK_ROWS), grad.contiguous()
        of_state, of_pace, of_context = torch.empty_like(state), torch.empty_like(pace), torch.empty_like(context)
        moved, sums = state.new_empty(len(grad), 2 * J + FEATURES), state.new_empty(tiles, 2 * J)
        _turn_back[(tiles,)](
            *ctx.saved_tensors, grad, of_state, of_pace, of_context, moved, sums, R, width.shape[1], Q=nodes.shape[1], K=K, J=J,
            MODES=triton.next_power_of_2(J), H=H, ROWS=BACK_ROWS, FEATURES=FEATURES, PRECISION=deep_mix_cuda.PRECISION,
            num_warps=BACK_WARPS, maxnreg=BACK_REGISTERS,
        )  # fmt: skip
        both, of_modes = product(grad, moved), sums.sum(0)
        of_read = both[:, : 2 * J].view(H, 2, J).transpose(1, 2).reshape(read.shape)
        of_matrices = (of_read, both[:, 2 * J + K], both[:, 2 * J : 2 * J + K])
        each = zip(of_state.chunk(ctx.layers, 1), of_pace.chunk(ctx.layers, 1), strict=True)
        of_moments = [part for moment in each for part in moment]
        return None, of_context, *of_matrices, of_modes[:J], of_modes[J:], *[None] * 5, *of_moments


@triton.jit
@no_type_check  # triton has its own types
def _features(lag, at, k, K: tl.constexpr):
    """log(1 + lag / s_k) - 1, and a 1 for the bias."""
    return tl.where((k < K)[None, :], tl.log(1.0 + lag[:, None] / at[None, :]) - 1.0, tl.where((k == K)[None, :], 1.0, 0.0))


@triton.jit(do_not_specialize=["R", "P"])
@no_type_check
def _turn(
    state, pace, context, read, bias, since, log_decay, turns, first, scales, width, nodes, lengths, before, R, P,
    Q: tl.constexpr, K: tl.constexpr, J: tl.constexpr, MODES: tl.constexpr, H: tl.constexpr,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < R
    ok = there & (row % P <= tl.load(lengths + row // P, there, 0))
    if tl.sum(ok.to(tl.int32), 0) > 0:
        j = tl.arange(0, MODES)
        col = tl.arange(0, H)
        k = tl.arange(0, FEATURES)
        real = j < J
        some = ok[:, None] & real[None, :]
        decay = tl.exp(tl.load(log_decay + j, real, 0.0))
        frequency = tl.load(turns + j, real, 0.0) * tl.load(first + j, real, 0.0)
        at = tl.load(scales + k, k < K, 1.0)
        gap = tl.load(width + row, ok, 0.0)
        speed = tl.load(pace + row[:, None] * J + j[None, :], some, 0.0)
        s_re = tl.load(state + row[:, None] * (2 * J) + 2 * j[None, :], some, 0.0)
        s_im = tl.load(state + row[:, None] * (2 * J) + 2 * j[None, :] + 1, some, 0.0)
        known = tl.load(context + row[:, None] * H + col[None, :], ok[:, None], 0.0)
        w_re = tl.trans(tl.load(read + col[:, None] * (2 * J) + 2 * j[None, :], real[None, :], 0.0))
        w_im = tl.trans(tl.load(read + col[:, None] * (2 * J) + 2 * j[None, :] + 1, real[None, :], 0.0))
        matrix = tl.load(since + col[None, :] * K + k[:, None], (k < K)[:, None], 0.0)
        matrix += tl.where((k == K)[:, None], tl.load(bias + col)[None, :], 0.0)
        for q in range(Q + 1):
            node = tl.load(nodes + row * Q + q, ok & (q < Q), 0.0)
            lag = gap * tl.where(q < Q, (node + q) / Q, 1.0)
            own = speed * lag[:, None]
            size = tl.exp(tl.maximum(-decay[None, :] * own, -60.0))
            cosine, sine = cos_sin(frequency[None, :] * own)
            f_re = size * cosine
            f_im = size * sine
            total = tl.dot(_features(lag, at, k, K), matrix, known, input_precision=PRECISION)
            total = tl.dot(f_re * s_re - f_im * s_im, w_re, total, input_precision=PRECISION)
            total = tl.dot(f_re * s_im + f_im * s_re, w_im, total, input_precision=PRECISION)
            tl.store(before + (row * (Q + 1) + q)[:, None] * H + col[None, :], total, ok[:, None])


@triton.jit(do_not_specialize=["R", "P"])
@no_type_check
def _turn_back(
    state, pace, context, read, bias, since, log_decay, turns, first, scales, width, nodes, lengths,
    of_before, of_state, of_pace, of_context, moved, sums, R, P,
    Q: tl.constexpr, K: tl.constexpr, J: tl.constexpr, MODES: tl.constexpr, H: tl.constexpr,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``moved`` (R T, 2 L J + FEATURES) has real parts, imaginary parts and features; ``sums`` are over a tile's positions."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < R
    ok = there & (row % P <= tl.load(lengths + row // P, there, 0))
    j = tl.arange(0, MODES)
    col = tl.arange(0, H)
    k = tl.arange(0, FEATURES)
    real = j < J
    fits = there[:, None] & real[None, :]
    to = row[:, None] * (2 * J) + 2 * j[None, :]
    left = moved + (row * (Q + 1)).to(tl.int64)[:, None] * (2 * J + FEATURES)
    if tl.sum(ok.to(tl.int32), 0) > 0:
        some = ok[:, None] & real[None, :]
        decay = tl.exp(tl.load(log_decay + j, real, 0.0))
        scale = tl.load(first + j, real, 0.0)
        frequency = tl.load(turns + j, real, 0.0) * scale
        at = tl.load(scales + k, k < K, 1.0)
        g_context = tl.zeros([ROWS, H], tl.float32)
        g_re = tl.zeros([ROWS, MODES], tl.float32)
        g_im = tl.zeros([ROWS, MODES], tl.float32)
        fading = tl.zeros([ROWS, MODES], tl.float32)
        turning = tl.zeros([ROWS, MODES], tl.float32)
        speed = tl.load(pace + row[:, None] * J + j[None, :], some, 0.0)
        gap = tl.load(width + row, ok, 0.0)
        s_re = tl.load(state + to, some, 0.0)
        s_im = tl.load(state + to + 1, some, 0.0)
        w_re = tl.load(read + col[:, None] * (2 * J) + 2 * j[None, :], real[None, :], 0.0)
        w_im = tl.load(read + col[:, None] * (2 * J) + 2 * j[None, :] + 1, real[None, :], 0.0)
        for q in range(Q + 1):
            node = tl.load(nodes + row * Q + q, ok & (q < Q), 0.0)
            lag = gap * tl.where(q < Q, (node + q) / Q, 1.0)
            own = speed * lag[:, None]
            fade = decay[None, :] * own
            size = tl.exp(tl.maximum(-fade, -60.0))
            cosine, sine = cos_sin(frequency[None, :] * own)
            f_re = size * cosine
            f_im = size * sine
            p_re = f_re * s_re - f_im * s_im
            p_im = f_re * s_im + f_im * s_re
            here = left + q * (2 * J + FEATURES)
            tl.store(here + j[None, :], p_re, fits)
            tl.store(here + J + j[None, :], p_im, fits)
            tl.store(here + 2 * J + k[None, :], _features(lag, at, k, K), there[:, None])
            g = tl.load(of_before + (row * (Q + 1) + q)[:, None] * H + col[None, :], ok[:, None], 0.0)
            g_context += g
            d_re = tl.dot(g, w_re, input_precision=PRECISION)
            d_im = tl.dot(g, w_im, input_precision=PRECISION)
            g_re += f_re * d_re + f_im * d_im
            g_im += f_re * d_im - f_im * d_re
            fading -= tl.where(fade < 60.0, p_re * d_re + p_im * d_im, 0.0) * lag[:, None]
            turning += (p_re * d_im - p_im * d_re) * lag[:, None]
        tl.store(of_context + row[:, None] * H + col[None, :], g_context, there[:, None])
        tl.store(of_state + to, g_re, fits)
        tl.store(of_state + to + 1, g_im, fits)
        tl.store(of_pace + row[:, None] * J + j[None, :], fading * decay[None, :] + turning * frequency[None, :], fits)
        tl.store(sums + tl.program_id(0) * (2 * J) + j, tl.sum(fading * speed, 0) * decay, real)
        tl.store(sums + tl.program_id(0) * (2 * J) + J + j, tl.sum(turning * speed, 0) * scale, real)
    else:
        none = tl.zeros([ROWS, MODES], tl.float32)
        for q in range(Q + 1):
            here = left + q * (2 * J + FEATURES)
            tl.store(here + j[None, :], none, fits)
            tl.store(here + J + j[None, :], none, fits)
            tl.store(here + 2 * J + k[None, :], tl.zeros([ROWS, FEATURES], tl.float32), there[:, None])
        tl.store(of_context + row[:, None] * H + col[None, :], tl.zeros([ROWS, H], tl.float32), there[:, None])
        tl.store(of_state + to, none, fits)
        tl.store(of_state + to + 1, none, fits)
        tl.store(of_pace + row[:, None] * J + j[None, :], none, fits)
        tl.store(sums + tl.program_id(0) * (2 * J) + j, tl.zeros([MODES], tl.float32), real)
        tl.store(sums + tl.program_id(0) * (2 * J) + J + j, tl.zeros([MODES], tl.float32), real)
