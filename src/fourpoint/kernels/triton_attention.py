r"""Attention of whole sequences on a CUDA device: scan and read-out of all query times as one
Triton kernel, and its gradient.

A program walks along one sequence for one head with the states of all modes in registers. In gap g
it reads, at Q lags d,

    A_m(d) = sum_j Re[ R_jm exp(a_j d) S_j ],      a_j = -gamma_j + i theta_j,     R = w exp(i psi),

and at the gap's end it turns the states on and adds the event there, S_j <- exp(a_j gap) S_j + v
exp(-i psi_j(m)). States at the gaps' beginnings are written once, 8 bytes per mode, for the
gradient: a second walk, backwards, that forms the sinusoids again rather than keep them. Sums over
sequences are left to torch, so that nothing depends on the order of threads. Exponents below
`constants.FADED` count as that, as everywhere. :func:`attention.scan` and :func:`attention.read`
are the plain version that it is tested against.

Per event, mode and lag: an exponential, a cosine and a sine forward, the same again backward, and
about 40 other operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from fourpoint.kernels.autograd import Context
from fourpoint.kernels.constants import FADED


def load() -> Callable[..., Tensor]:
    """:func:`attended`, which Triton compiles at its first call."""
    return attended


def attended(
    frequency: Float[Tensor, "K D"],
    decay: Float[Tensor, "K D"],
    shift: Float[Tensor, "K D M"],
    weight: Float[Tensor, "K D"],
    lags: Float[Tensor, "B G Q"],
    gaps: Float[Tensor, "B N"],
    values: Float[Tensor, "B N K"],
    marks: Int[Tensor, "B N"],
) -> Float[Tensor, "B G Q K M"]:
    """A_k of every mark at ``lags`` after each of the G = N + 1 positions; with gradient in all but
    times and marks.
    """
    cosine = shift.cos()
    sine = shift.sin()
    read = torch.stack([weight[..., None] * cosine, weight[..., None] * sine])
    drive = torch.stack([cosine, -sine])
    return _Attended.apply(frequency, decay, read, drive, lags, gaps, values, marks)


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        frequency: Tensor,
        decay: Tensor,
        read: Tensor,
        drive: Tensor,
        lags: Tensor,
        gaps: Tensor,
        values: Tensor,
        marks: Tensor,
    ) -> Tensor:
        B, G, Q = lags.shape
        _, K, D, M = read.shape
        arrays = (frequency, decay, read, drive, lags, gaps, values, marks)
        given = tuple(x.contiguous() for x in arrays)
        out = lags.new_empty(B, G, Q, K, M)
        state = lags.new_empty(B, K, G, 2, D)
        if B:
            sizes = (G, Q, K, D, M)
            _walk[(B, K)](*given, out, state, *sizes, FADED, **_sizes(Q, D, M), num_warps=1)
        ctx.save_for_backward(*given, state)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        frequency, decay, read, drive, lags, gaps, values, marks, state = ctx.saved_tensors
        B, G, Q = lags.shape
        _, K, D, M = read.shape
        gradients = lags.new_zeros(B, K, 2 + 4 * M, D)
        d_values = torch.empty_like(values)
        if B:
            given = (frequency, decay, read, drive, lags, gaps, values, marks)
            _walk_back[(B, K)](
                *given,
                state,
                grad.contiguous(),
                gradients,
                d_values,
                G,
                Q,
                K,
                D,
                M,
                FADED,
                **_sizes(Q, D, M),
                num_warps=1,
            )
        total = gradients.sum(0)
        turns = total[:, 2:].unflatten(1, (4, M)).permute(1, 0, 3, 2)
        to_frequency = total[:, 0]
        to_decay = total[:, 1]
        return to_frequency, to_decay, turns[:2], turns[2:], None, None, d_values, None


def _sizes(lags: int, modes: int, marks: int) -> dict[str, int]:
    return dict(
        QB=triton.next_power_of_2(lags),
        DB=triton.next_power_of_2(modes),
        MB=triton.next_power_of_2(marks),
    )


@triton.jit
@no_type_check  # triton has its own types
def _walk(
    frequency,
    decay,
    read,
    drive,
    lags,
    gaps,
    values,
    marks,
    out,
    state,
    G,
    Q,
    K,
    D,
    M,
    FADED,
    QB: tl.constexpr,
    DB: tl.constexpr,
    MB: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1)
    q = tl.arange(0, QB)
    d = tl.arange(0, DB)
    some = q < Q
    mode = d < D
    theta = tl.load(frequency + k * D + d, mode, 0.0)
    gamma = tl.load(decay + k * D + d, mode, 0.0)
    re = tl.zeros([DB], tl.float32)
    im = tl.zeros([DB], tl.float32)
    for g in range(G):
        at = state + ((b * K + k) * G + g) * 2 * D + d
        tl.store(at, re, mode)
        tl.store(at + D, im, mode)
        lag = tl.load(lags + (b * G + g) * Q + q, some, 0.0)
        size = tl.exp(tl.maximum(-lag[:, None] * gamma[None, :], FADED))
        angle = lag[:, None] * theta[None, :]
        c = size * tl.cos(angle)
        s = size * tl.sin(angle)
        x = c * re[None, :] - s * im[None, :]
        y = s * re[None, :] + c * im[None, :]
        for m in range(M):
            r_re = tl.load(read + (k * D + d) * M + m, mode, 0.0)
            r_im = tl.load(read + K * D * M + (k * D + d) * M + m, mode, 0.0)
            total = tl.sum(x * r_re[None, :] - y * r_im[None, :], 1)
            place = out + (((b * G + g) * Q + q) * K + k) * M + m
            tl.store(place, total, some)
        if g < G - 1:
            n = b * (G - 1) + g
            gap = tl.load(gaps + n)
            value = tl.load(values + n * K + k)
            mark = tl.load(marks + n)
            size1 = tl.exp(tl.maximum(-gap * gamma, FADED))
            c1 = size1 * tl.cos(gap * theta)
            s1 = size1 * tl.sin(gap * theta)
            u_re = tl.load(drive + (k * D + d) * M + mark, mode, 0.0)
            u_im = tl.load(drive + K * D * M + (k * D + d) * M + mark, mode, 0.0)
            new = c1 * re - s1 * im + value * u_re
            im = s1 * re + c1 * im + value * u_im
            re = new


@triton.jit
@no_type_check
def _walk_back(
    frequency,
    decay,
    read,
    drive,
    lags,
    gaps,
    values,
    marks,
    state,
    grad,
    gradients,
    d_values,
    G,
    Q,
    K,
    D,
    M,
    FADED,
    QB: tl.constexpr,
    DB: tl.constexpr,
    MB: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1)
    q = tl.arange(0, QB)
    d = tl.arange(0, DB)
    kinds = tl.arange(0, MB)
    some = q < Q
    mode = d < D
    theta = tl.load(frequency + k * D + d, mode, 0.0)
    gamma = tl.load(decay + k * D + d, mode, 0.0)
    d_theta = tl.zeros([DB], tl.float32)
    d_gamma = tl.zeros([DB], tl.float32)
    # gradients of the two turns, per mark
    r_re = tl.zeros([MB, DB], tl.float32)
    r_im = tl.zeros([MB, DB], tl.float32)
    u_re = tl.zeros([MB, DB], tl.float32)
    u_im = tl.zeros([MB, DB], tl.float32)
    # of the state after the event at the gap's end
    g_re = tl.zeros([DB], tl.float32)
    g_im = tl.zeros([DB], tl.float32)
    for back in range(G):
        g = G - 1 - back
        at = state + ((b * K + k) * G + g) * 2 * D + d
        re = tl.load(at, mode, 0.0)
        im = tl.load(at + D, mode, 0.0)
        n_re = tl.zeros([DB], tl.float32)
        n_im = tl.zeros([DB], tl.float32)
        if g < G - 1:
            n = b * (G - 1) + g
            gap = tl.load(gaps + n)
            value = tl.load(values + n * K + k)
            mark = tl.load(marks + n)
            e_re = tl.load(drive + (k * D + d) * M + mark, mode, 0.0)
            e_im = tl.load(drive + K * D * M + (k * D + d) * M + mark, mode, 0.0)
            tl.store(d_values + n * K + k, tl.sum(e_re * g_re + e_im * g_im, 0))
            own = (kinds == mark)[:, None]
            u_re += tl.where(own, (value * g_re)[None, :], 0.0)
            u_im += tl.where(own, (value * g_im)[None, :], 0.0)
            size1 = tl.exp(tl.maximum(-gap * gamma, FADED))
            c1 = size1 * tl.cos(gap * theta)
            s1 = size1 * tl.sin(gap * theta)
            x1 = c1 * re - s1 * im
            y1 = s1 * re + c1 * im
            d_theta += gap * (x1 * g_im - y1 * g_re)
            d_gamma -= tl.where(-gap * gamma > FADED, gap * (x1 * g_re + y1 * g_im), 0.0)
            n_re = c1 * g_re + s1 * g_im
            n_im = c1 * g_im - s1 * g_re
        lag = tl.load(lags + (b * G + g) * Q + q, some, 0.0)
        size = tl.exp(tl.maximum(-lag[:, None] * gamma[None, :], FADED))
        angle = lag[:, None] * theta[None, :]
        c = size * tl.cos(angle)
        s = size * tl.sin(angle)
        x = c * re[None, :] - s * im[None, :]
        y = s * re[None, :] + c * im[None, :]
        dx = tl.zeros([QB, DB], tl.float32)
        dy = tl.zeros([QB, DB], tl.float32)
        for m in range(M):
            a = tl.load(grad + (((b * G + g) * Q + q) * K + k) * M + m, some, 0.0)[:, None]
            t_re = tl.load(read + (k * D + d) * M + m, mode, 0.0)
            t_im = tl.load(read + K * D * M + (k * D + d) * M + m, mode, 0.0)
            dx += a * t_re[None, :]
            dy -= a * t_im[None, :]
            own = (kinds == m)[:, None]
            r_re += tl.where(own, tl.sum(a * x, 0)[None, :], 0.0)
            r_im -= tl.where(own, tl.sum(a * y, 0)[None, :], 0.0)
        d_theta += tl.sum(lag[:, None] * (x * dy - y * dx), 0)
        d_gamma -= tl.sum(
            tl.where(-lag[:, None] * gamma[None, :] > FADED, lag[:, None] * (x * dx + y * dy), 0.0),
            0,
        )
        g_re = n_re + tl.sum(c * dx + s * dy, 0)
        g_im = n_im + tl.sum(c * dy - s * dx, 0)
    base = gradients + (b * K + k) * (2 + 4 * M) * D + d
    tl.store(base, d_theta, mode)
    tl.store(base + D, d_gamma, mode)
    table = base[None, :] + (2 + kinds[:, None]) * D
    real = (kinds < M)[:, None] & mode[None, :]
    tl.store(table, r_re, real)
    tl.store(table + M * D, r_im, real)
    tl.store(table + 2 * M * D, u_re, real)
    tl.store(table + 3 * M * D, u_im, real)
