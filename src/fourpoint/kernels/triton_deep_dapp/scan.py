r"""The recursion of a layer of Deep DAPP on a CUDA device, from what the layer's matrices say to
its states.

    S_p = f_p exp((-gamma + i theta) r_{p-1} d_p) S_{p-1} + h_p (B u)_p,  f = sigmoid(kept),
        r = softplus(pace) or 1,

where d_p is the gap before position p and h_p whether the dropout of events keeps p. A program has
one sequence and a block of modes; it takes CHUNK positions at a time, forms all their factors side
by side and scans them. With C_p = conj(F_{p+1}) (g_{p+1} + C_{p+1}), g the gradient of the states,
the gradient of (B u)_p is h_p (g_p + C_p), and that of log F_{p+1} is conj(S_p) C_p: one scan from
the last position to the first. `deep_layer` is the plain version that it is tested against.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from fourpoint.kernels.triton_deep_dapp.maths import cos_sin, exp, in_turn, sigmoid, softplus

CHUNK = 16  # positions side by side
BLOCK = 32  # modes per program
WARPS = 4


def walk(
    joined: Tensor,
    width: Tensor,
    kept_events: Tensor | None,
    rescale: float,
    lengths: Tensor,
    modes: tuple[Tensor, ...],
    state: Tensor,
    pace: Tensor,
) -> None:
    """Writes states (R, 2J), real and imaginary parts in turn, and paces (R, J) at all R = B P
    positions; their rows may lie apart.

    ``joined`` (R, 4J or more) has the real and the imaginary drive, kept and pace; ``width`` (B, P)
    the gap after each position; ``modes`` are log decays, turns, first decays and which modes are
    steady; a position of ``kept_events`` counts ``rescale`` times.
    """
    (B, P), J = width.shape, len(modes[0])
    block = min(BLOCK, J)
    _walk[(B, triton.cdiv(J, block))](
        joined,
        width,
        kept_events,
        lengths,
        *modes,
        state,
        pace,
        P,
        J,
        joined.stride(0),
        state.stride(0),
        pace.stride(0),
        rescale,
        KEPT_EVENTS=kept_events is not None,
        CHUNK=CHUNK,
        BLOCK=block,
        num_warps=WARPS,
    )


def walk_back(
    joined: Tensor,
    width: Tensor,
    kept_events: Tensor | None,
    rescale: float,
    lengths: Tensor,
    modes: tuple[Tensor, ...],
    state: Tensor,
    of_state: Tensor,
    of_pace: Tensor,
    of_joined: Tensor,
    of_log_decay: Tensor,
    of_turns: Tensor,
) -> None:
    """Gradients: of the first 4J columns of ``joined`` into ``of_joined``, and each sequence's
    share of those of log decays and turns, (B, J), whose rows may lie apart.
    """
    (B, P), J = width.shape, len(modes[0])
    block = min(BLOCK, J)
    _walk_back[(B, triton.cdiv(J, block))](
        joined,
        width,
        kept_events,
        lengths,
        *modes,
        state,
        of_state,
        of_pace,
        of_joined,
        of_log_decay,
        of_turns,
        P,
        J,
        joined.stride(0),
        state.stride(0),
        of_state.stride(0),
        of_pace.stride(0),
        of_turns.stride(0),
        rescale,
        KEPT_EVENTS=kept_events is not None,
        CHUNK=CHUNK,
        BLOCK=block,
        num_warps=WARPS,
    )


@triton.jit(do_not_specialize=["P"])
@no_type_check  # triton has its own types
def _walk(
    joined,
    width,
    kept_events,
    lengths,
    log_decay,
    turns,
    first,
    steady,
    state,
    pace,
    P,
    J,
    wide,
    state_wide,
    pace_wide,
    rescale,
    KEPT_EVENTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = j < J
    n = tl.load(lengths + b).to(tl.int32)
    decay = exp(tl.load(log_decay + j, real, 0.0))
    frequency = tl.load(turns + j, real, 0.0) * tl.load(first + j, real, 0.0)
    even = tl.load(steady + j, real, 0) != 0
    re = tl.zeros([BLOCK], tl.float32)
    im = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, n + 1, CHUNK):
        p = begin + tl.arange(0, CHUNK)
        row = b * P + p
        ok = (p <= n)[:, None] & real[None, :]
        gap = tl.load(width + row - 1, (p > 0) & (p <= n), 0.0)
        at = joined + row[:, None] * wide + j[None, :]
        before = tl.load(at - wide + 3 * J, ok & (p > 0)[:, None], 0.0)
        lag = tl.where(even[None, :], 1.0, softplus(before)) * gap[:, None]
        fade = decay[None, :] * lag + softplus(-tl.load(at + 2 * J, ok, 0.0))
        size = exp(tl.maximum(-fade, -60.0))
        cosine, sine = cos_sin(frequency[None, :] * lag)
        u_re = tl.load(at, ok, 0.0)
        u_im = tl.load(at + J, ok, 0.0)
        if KEPT_EVENTS:
            weight = tl.load(kept_events + row, p <= n, 0).to(tl.float32) * rescale
            u_re = u_re * weight[:, None]
            u_im = u_im * weight[:, None]
        f_re, f_im, u_re, u_im = tl.associative_scan(
            (size * cosine, size * sine, u_re, u_im), 0, in_turn
        )
        s_re = u_re + f_re * re[None, :] - f_im * im[None, :]
        s_im = u_im + f_re * im[None, :] + f_im * re[None, :]
        to = row[:, None] * state_wide + 2 * j[None, :]
        tl.store(state + to, s_re, ok)
        tl.store(state + to + 1, s_im, ok)
        own = tl.where(even[None, :], 1.0, softplus(tl.load(at + 3 * J, ok, 0.0)))
        tl.store(pace + row[:, None] * pace_wide + j[None, :], own, ok)
        end = (p == begin + CHUNK - 1)[:, None]
        re = tl.sum(tl.where(end, s_re, 0.0), 0)
        im = tl.sum(tl.where(end, s_im, 0.0), 0)


@triton.jit(do_not_specialize=["P"])
@no_type_check
def _walk_back(
    joined,
    width,
    kept_events,
    lengths,
    log_decay,
    turns,
    first,
    steady,
    state,
    of_state,
    of_pace,
    of_joined,
    of_log_decay,
    of_turns,
    P,
    J,
    wide,
    own_wide,
    state_wide,
    pace_wide,
    modes_wide,
    rescale,
    KEPT_EVENTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = j < J
    n = tl.load(lengths + b).to(tl.int32)
    decay = exp(tl.load(log_decay + j, real, 0.0))
    scale = tl.load(first + j, real, 0.0)
    frequency = tl.load(turns + j, real, 0.0) * scale
    even = tl.load(steady + j, real, 0) != 0
    c_re = tl.zeros([BLOCK], tl.float32)
    c_im = tl.zeros([BLOCK], tl.float32)
    by_decay = tl.zeros([BLOCK], tl.float32)
    by_turns = tl.zeros([BLOCK], tl.float32)
    tl.store(of_joined + b * P * wide + 2 * J + j, tl.zeros([BLOCK], tl.float32), real)
    for begin in range(0, n + 1, CHUNK):
        p = n - begin - tl.arange(0, CHUNK)
        row = b * P + p
        ok = (p >= 0)[:, None] & real[None, :]
        on = ((p >= 0) & (p < n))[:, None] & real[None, :]  # one more comes after it
        gap = tl.load(width + row, (p >= 0) & (p < n), 0.0)
        at = row[:, None] * wide + j[None, :]
        raw = tl.load(joined + at + 3 * J, ok, 0.0)
        lag = tl.where(even[None, :], 1.0, softplus(raw)) * gap[:, None]
        kept = tl.load(joined + at + wide + 2 * J, on, 0.0)
        fade = decay[None, :] * lag + softplus(-kept)
        cosine, sine = cos_sin(frequency[None, :] * lag)
        size = tl.where(on, exp(tl.maximum(-fade, -60.0)), 0.0)
        f_re = size * cosine
        f_im = -size * sine
        of = row[:, None] * state_wide + 2 * j[None, :]
        n_re = tl.load(of_state + of + state_wide, on, 0.0)
        n_im = tl.load(of_state + of + state_wide + 1, on, 0.0)
        f_re, f_im, d_re, d_im = tl.associative_scan(
            (f_re, f_im, f_re * n_re - f_im * n_im, f_re * n_im + f_im * n_re), 0, in_turn
        )
        d_re = d_re + f_re * c_re[None, :] - f_im * c_im[None, :]
        d_im = d_im + f_re * c_im[None, :] + f_im * c_re[None, :]
        g_re = tl.load(of_state + of, ok, 0.0) + d_re
        g_im = tl.load(of_state + of + 1, ok, 0.0) + d_im
        if KEPT_EVENTS:
            weight = tl.load(kept_events + row, p >= 0, 0).to(tl.float32) * rescale
            g_re = g_re * weight[:, None]
            g_im = g_im * weight[:, None]
        tl.store(of_joined + at, g_re, ok)
        tl.store(of_joined + at + J, g_im, ok)
        own = row[:, None] * own_wide + 2 * j[None, :]
        s_re = tl.load(state + own, ok, 0.0)
        s_im = tl.load(state + own + 1, ok, 0.0)
        of_fade = tl.where(on & (fade < 60.0), -(s_re * d_re + s_im * d_im), 0.0)
        of_angle = tl.where(on, s_re * d_im - s_im * d_re, 0.0)
        tl.store(of_joined + at + wide + 2 * J, -of_fade * sigmoid(-kept), on)
        of_own = (of_fade * decay[None, :] + of_angle * frequency[None, :]) * gap[:, None]
        of_own += tl.load(of_pace + row[:, None] * pace_wide + j[None, :], ok, 0.0)
        tl.store(
            of_joined + at + 3 * J, tl.where((even == 0)[None, :], of_own * sigmoid(raw), 0.0), ok
        )
        by_decay += tl.sum(of_fade * lag, 0)
        by_turns += tl.sum(of_angle * lag, 0)
        end = (p == n - begin - CHUNK + 1)[:, None]
        c_re = tl.sum(tl.where(end, d_re, 0.0), 0)
        c_im = tl.sum(tl.where(end, d_im, 0.0), 0)
    tl.store(of_log_decay + b * modes_wide + j, by_decay * decay, real)
    tl.store(of_turns + b * modes_wide + j, by_turns * scale, real)
