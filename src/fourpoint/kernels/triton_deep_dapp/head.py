r"""Deep DAPP's states at every time of every gap on a CUDA device, and what they say together.

    before(p, t) = W [F_1(t) S_1, ..., F_L(t) S_L] + U norm(x_p) + T features(t - t_p) + b,
        F(t) = exp((-gamma + i theta) r_p (t - t_p))

at T times after each position p: Q nodes, which lie at the given shares of the gap's strata, and
the gap's end, where the next event
is. A program has ROWS positions and goes through the T times one by one, so that the gradient of a
position's state, a sum over its times, stays in registers; so do, backwards, the gradients of W and
T, sums over all positions that a program has. With D that of F S, the gradient of S is the sum of
conj(F) D, and those of gamma, theta and r are made of the sum of (t - t_p) conj(F) D once all times
are through; where F is as small as e^-60 and held there, that is no longer told from 0. The L
layers' modes lie side by side. `deep_dapp` is the plain version that it is tested against;
`rows` lists the positions.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.kernels.conditions import DEEP_FEATURES
from fourpoint.kernels.constants import REACH
from fourpoint.kernels.triton_deep_dapp import rows as deep_rows_cuda
from fourpoint.kernels.triton_deep_dapp.maths import cos_sin, exp, feature, node_of, product
from fourpoint.kernels.triton_deep_dapp.rows import Rows, rows_in, tiles_of

ROWS, WARPS, REGISTERS = 16, 4, 168  # of a program, forwards: three of them on a multiprocessor
BACK_ROWS, BACK_WARPS, BACK_REGISTERS = 16, 8, 255  # backwards


class Given(NamedTuple):
    """What the sums are made of, for R positions and J modes, those of all layers together."""

    state: Tensor  # (R, 2J), real and imaginary parts in turn
    pace: Tensor  # (R, J)
    context: Tensor  # (R, H): what else is known at a position
    read: Tensor  # (H, 2J): W
    bias: Tensor  # (H,)
    since: Tensor  # (H, K): T
    log_decay: Tensor  # (J,): gamma = exp(log_decay)
    turns: Tensor  # (J,): theta = turns * first
    first: Tensor  # (J,)
    scales: Tensor  # (K,): of the features
    width: Tensor  # (B, P): the gap after each position
    where: Tensor  # (R,): where in their strata the nodes lie, from 0 to 1 (`node_of`)


class Gradients(NamedTuple):
    """Where gradients of parameters go: columns of a `rows.Sums`."""

    read: Tensor
    bias: Tensor
    since: Tensor
    log_decay: Tensor
    turns: Tensor


def turn(given: Given, rows: Rows, Q: int) -> Tensor:
    """``before`` at all times, (R T, H), Q nodes in each gap and its end."""
    (R, H), J = given.context.shape, len(given.turns)
    before = given.context.new_empty(R * (Q + 1), H)
    _turn[(rows.tiles(ROWS),)](
        *given,
        before,
        rows.place,
        rows.real,
        Q=Q,
        TIMES=len(given.scales),
        K=given.since.shape[1],
        J=J,
        MODES=triton.next_power_of_2(J),
        H=H,
        ROWS=ROWS,
        FEATURES=DEEP_FEATURES,
        PRECISION=deep_rows_cuda.PRECISION,
        REACH=REACH,
        num_warps=WARPS,
        maxnreg=REGISTERS,
    )
    return before


def turn_back(
    given: Given, rows: Rows, Q: int, of_before: Tensor, of: Gradients
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of states, paces and context; those of the parameters go into their columns."""
    H = given.context.shape[1]
    J = len(given.turns)
    found = (
        torch.empty_like(given.state),
        torch.empty_like(given.pace),
        torch.empty_like(given.context),
    )
    _turn_back[(len(of.read),)](
        *given,
        of_before,
        *found,
        *of,
        rows.place,
        rows.real,
        of.read.stride(0),
        Q=Q,
        TIMES=len(given.scales),
        K=given.since.shape[1],
        J=J,
        MODES=triton.next_power_of_2(J),
        H=H,
        ROWS=BACK_ROWS,
        FEATURES=DEEP_FEATURES,
        PRECISION=deep_rows_cuda.PRECISION,
        REACH=REACH,
        num_warps=BACK_WARPS,
        num_stages=1,
        maxnreg=BACK_REGISTERS,
    )
    return found


@triton.jit
@no_type_check  # triton has its own types
def _features(lag, far, per, k, TIMES: tl.constexpr, K: tl.constexpr):
    """log(1 + lag / s_k) - 1, sinusoids, and a 1 for the bias."""
    return feature(tl.log(1.0 + tl.minimum(lag, far)[:, None] * per[None, :]), k[None, :], TIMES, K)


@triton.jit
@no_type_check
def _pairs(table, row, ok, J: tl.constexpr, MODES: tl.constexpr):
    """Rows of a table (ROWS, 2 MODES) in which real and imaginary parts come in turn, 0 beyond
    J.
    """
    c = tl.arange(0, 2 * MODES)
    return tl.load(
        table + row[:, None] * (2 * J) + c[None, :], ok[:, None] & (c < 2 * J)[None, :], 0.0
    )


@triton.jit
@no_type_check
def _leave_pairs(table, row, ok, pairs, J: tl.constexpr, MODES: tl.constexpr):
    """Writes them."""
    c = tl.arange(0, 2 * MODES)
    tl.store(table + row[:, None] * (2 * J) + c[None, :], pairs, ok[:, None] & (c < 2 * J)[None, :])


@triton.jit
@no_type_check
def _turn(
    state,
    pace,
    context,
    read,
    bias,
    since,
    log_decay,
    turns,
    first,
    scales,
    width,
    where,
    before,
    place,
    count,
    Q: tl.constexpr,
    TIMES: tl.constexpr,
    K: tl.constexpr,
    J: tl.constexpr,
    MODES: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    PRECISION: tl.constexpr,
    REACH: tl.constexpr,
):
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total:
        row, _, ok = rows_in(tl.program_id(0), place, total, 1, ROWS)
        j = tl.arange(0, MODES)
        col = tl.arange(0, H)
        k = tl.arange(0, FEATURES)
        real = j < J
        some = ok[:, None] & real[None, :]
        decay = exp(tl.load(log_decay + j, real, 0.0))
        frequency = tl.load(turns + j, real, 0.0) * tl.load(first + j, real, 0.0)
        per = 1.0 / tl.load(scales + tl.where(k < TIMES, k, 0))
        far = REACH * tl.load(scales + TIMES - 1)
        gap = tl.load(width + row, ok, 0.0)
        drawn = tl.load(where + row, ok, 0.0)
        speed = tl.load(pace + row[:, None] * J + j[None, :], some, 0.0)
        s_re, s_im = tl.split(tl.reshape(_pairs(state, row, ok, J, MODES), [ROWS, MODES, 2]))
        known = tl.load(context + row[:, None] * H + col[None, :], ok[:, None], 0.0)
        w_re, w_im = tl.split(tl.reshape(_pairs(read, col, col >= 0, J, MODES), [H, MODES, 2]))
        matrix = tl.load(since + col[None, :] * K + k[:, None], (k < K)[:, None], 0.0)
        matrix += tl.where((k == K)[:, None], tl.load(bias + col)[None, :], 0.0)
        for q in range(Q + 1):
            share, weight = node_of(drawn, q, Q)
            lag = gap * tl.where(q < Q, share, 1.0)
            own = speed * lag[:, None]
            size = exp(tl.maximum(-decay[None, :] * own, -60.0))
            cosine, sine = cos_sin(frequency[None, :] * own)
            f_re = size * cosine
            f_im = size * sine
            sums = product(_features(lag, far, per, k, TIMES, K), matrix, known, PRECISION)
            sums = product(f_re * s_re - f_im * s_im, tl.trans(w_re), sums, PRECISION)
            sums = product(f_re * s_im + f_im * s_re, tl.trans(w_im), sums, PRECISION)
            tl.store(before + (row * (Q + 1) + q)[:, None] * H + col[None, :], sums, ok[:, None])


@triton.jit
@no_type_check
def _turn_back(
    state,
    pace,
    context,
    read,
    bias,
    since,
    log_decay,
    turns,
    first,
    scales,
    width,
    where,
    of_before,
    of_state,
    of_pace,
    of_context,
    of_read,
    of_bias,
    of_since,
    of_log_decay,
    of_turns,
    place,
    count,
    line_wide,
    Q: tl.constexpr,
    TIMES: tl.constexpr,
    K: tl.constexpr,
    J: tl.constexpr,
    MODES: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    PRECISION: tl.constexpr,
    REACH: tl.constexpr,
):
    total = tl.load(count)
    begin, end = tiles_of(total, ROWS)
    j = tl.arange(0, MODES)
    col = tl.arange(0, H)
    k = tl.arange(0, FEATURES)
    real = j < J
    decay = exp(tl.load(log_decay + j, real, 0.0))
    scale = tl.load(first + j, real, 0.0)
    frequency = tl.load(turns + j, real, 0.0) * scale
    per = 1.0 / tl.load(scales + tl.where(k < TIMES, k, 0))
    far = REACH * tl.load(scales + TIMES - 1)
    w = _pairs(read, col, col >= 0, J, MODES)
    by_read = tl.zeros([H, 2 * MODES], tl.float32)
    by_features = tl.zeros([H, FEATURES], tl.float32)
    by_decay = tl.zeros([MODES], tl.float32)
    by_turns = tl.zeros([MODES], tl.float32)
    for tile in range(begin, end):
        row, _, ok = rows_in(tile, place, total, 1, ROWS)
        some = ok[:, None] & real[None, :]
        g_context = tl.zeros([ROWS, H], tl.float32)
        g_re = tl.zeros([ROWS, MODES], tl.float32)
        g_im = tl.zeros([ROWS, MODES], tl.float32)
        late_re = tl.zeros([ROWS, MODES], tl.float32)
        late_im = tl.zeros([ROWS, MODES], tl.float32)
        speed = tl.load(pace + row[:, None] * J + j[None, :], some, 0.0)
        gap = tl.load(width + row, ok, 0.0)
        drawn = tl.load(where + row, ok, 0.0)
        s_re, s_im = tl.split(tl.reshape(_pairs(state, row, ok, J, MODES), [ROWS, MODES, 2]))
        for q in range(Q + 1):
            share, weight = node_of(drawn, q, Q)
            lag = gap * tl.where(q < Q, share, 1.0)
            own = (speed + 0.0 * g_re) * lag[
                :, None
            ]  # adds nothing, but all from here on stays with the threads that have the products
            size = exp(tl.maximum(-decay[None, :] * own, -60.0))
            cosine, sine = cos_sin(frequency[None, :] * own)
            f_re = size * cosine
            f_im = size * sine
            p_re = f_re * s_re - f_im * s_im
            p_im = f_re * s_im + f_im * s_re
            g = tl.load(
                of_before + (row * (Q + 1) + q)[:, None] * H + col[None, :], ok[:, None], 0.0
            )
            g_context += g
            turned = tl.trans(g)
            by_read = product(
                turned, tl.reshape(tl.join(p_re, p_im), [ROWS, 2 * MODES]), by_read, PRECISION
            )
            by_features = product(
                turned, _features(lag, far, per, k, TIMES, K), by_features, PRECISION
            )
            d_re, d_im = tl.split(tl.reshape(product(g, w, None, PRECISION), [ROWS, MODES, 2]))
            e_re = f_re * d_re + f_im * d_im
            e_im = f_re * d_im - f_im * d_re
            g_re += e_re
            g_im += e_im
            late_re += e_re * lag[:, None]
            late_im += e_im * lag[:, None]
        tl.store(of_context + row[:, None] * H + col[None, :], g_context, ok[:, None])
        _leave_pairs(
            of_state, row, ok, tl.reshape(tl.join(g_re, g_im), [ROWS, 2 * MODES]), J, MODES
        )
        fading = -(s_re * late_re + s_im * late_im)
        turning = s_re * late_im - s_im * late_re
        tl.store(
            of_pace + row[:, None] * J + j[None, :],
            fading * decay[None, :] + turning * frequency[None, :],
            some,
        )
        by_decay += tl.sum(fading * speed, 0)
        by_turns += tl.sum(turning * speed, 0)
    line = tl.program_id(0) * line_wide
    _leave_pairs(of_read + line, col, col >= 0, by_read, J, MODES)
    tl.store(of_since + line + col[:, None] * K + k[None, :], by_features, (k < K)[None, :])
    tl.store(of_bias + line + col, tl.sum(tl.where((k == K)[None, :], by_features, 0.0), 1))
    tl.store(of_log_decay + line + j, by_decay * decay, real)
    tl.store(of_turns + line + j, by_turns * scale, real)
