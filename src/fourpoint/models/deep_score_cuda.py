r"""Both ends of Deep DAPP's likelihood on a CUDA device: from events to tokens' features, and from z to log-likelihoods.

The features of position p are [which mark it has, log(1 + d_p / s_k) - 1 ...], d_p the gap before it, so that a token is one matrix times
them and its gradient needs no scattered sums. At the other end a sequence's log-likelihood is

    sum_p [ log log(1 + e^z_p) + log s - log c + share_p ]  -  s sum_p d_{p+1} mean_q log(1 + e^z_pq),

z_p being z at the end of the gap after p, where the next event is, share_p the log of its mark's share, and c the unit of time.
Under the convention "gaps" neither the first event nor the gaps before it and after the last count.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.events import Batch
from fourpoint.models.deep_maths_cuda import log_softplus, log_softplus_slope, softplus

ROWS = 32  # positions of a program
TILE = 2048  # features of a program


def tokens(
    batch: Batch, lengths: Tensor, hidden: Tensor | None, time_scale: Tensor, scales: Tensor, marks: int, *, spread: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features (R, M + 2 + K or K), the mark that each position has (R), that of the event after it (R), and the gaps after them (B, P).

    Gaps are in units of ``time_scale``. The window's start has mark M, and one that is ``hidden`` (B, N) has M + 1. Without
    ``spread`` the features are those of the gap alone.
    """
    B, N = batch.times.shape
    P, K = N + 1, len(scales)
    first = marks + 2 if spread else 0
    width = scales.new_empty(B, P)
    features = scales.new_empty(B * P, first + K)
    own, after = (torch.empty(B * P, dtype=torch.int64, device=scales.device) for _ in range(2))
    columns = triton.next_power_of_2(first + K)
    rows = max(1, TILE // columns)
    _tokens[(triton.cdiv(B * P, rows),)](
        batch.times.contiguous(), batch.marks.contiguous(), batch.start, batch.stop, lengths, hidden, time_scale, scales,
        features, own, after, width, B * P, N, marks, first, first + K,
        HIDDEN=hidden is not None, ROWS=rows, COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return features, own, after, width


class Score(torch.autograd.Function):
    """Log-likelihoods (B) from z (R, T), the logs of the marks' shares (R) or None, and log s."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, share: Tensor | None, log_scale: Tensor, time_scale: Tensor, width: Tensor, lengths: Tensor, gaps: bool
    ) -> Tensor:
        (B, P), T = width.shape, z.shape[1]
        value, of_scale = z.new_empty(B), z.new_empty(B)
        _score[(B,)](
            z, share, log_scale, time_scale, width, lengths, value, of_scale, P,
            GAPS=gaps, SHARE=share is not None, T=T, WIDE=triton.next_power_of_2(T), ROWS=ROWS, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(z, log_scale, width, lengths, of_scale)
        ctx.gaps, ctx.share = gaps, share is not None
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, log_scale, width, lengths, of_scale = ctx.saved_tensors
        (B, P), T = width.shape, z.shape[1]
        of_z, of_share = torch.empty_like(z), z.new_empty(len(z)) if ctx.share else None
        _score_back[(triton.cdiv(B * P, ROWS),)](
            z, log_scale, width, lengths, grad.contiguous(), of_z, of_share, B * P, P,
            GAPS=ctx.gaps, SHARE=ctx.share, T=T, WIDE=triton.next_power_of_2(T), ROWS=ROWS, num_warps=4,
        )  # fmt: skip
        return of_z, of_share, torch.dot(grad, of_scale).view_as(log_scale), None, None, None, None


@triton.jit(do_not_specialize=["R", "N"])
@no_type_check  # triton has its own types
def _tokens(
    times, marks, start, stop, lengths, hidden, time_scale, scales, features, own, after, width, R, N, M, first, wide,
    HIDDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < R
    b = row // (N + 1)
    p = row % (N + 1)
    n = tl.load(lengths + b, there, 0)
    ok = there & (p <= n)
    event = b * N + p  # the one after position p
    begin = tl.load(start + b, ok, 0.0)
    left = tl.where(p > 0, tl.load(times + event - 1, ok & (p > 0), 0.0), begin)
    earlier = tl.where(p > 1, tl.load(times + event - 2, ok & (p > 1), 0.0), begin)
    right = tl.where(p < n, tl.load(times + event, ok & (p < n), 0.0), tl.load(stop + b, ok, 0.0))
    unit = tl.load(time_scale)
    tl.store(width + row, ((right - left) / unit).to(tl.float32), there)
    mark = tl.load(marks + event - 1, ok & (p > 0), 0)
    if HIDDEN:
        mark = tl.where(tl.load(hidden + event - 1, ok & (p > 0), 0) != 0, M + 1, mark)
    mark = tl.where(p > 0, mark, M)
    tl.store(own + row, mark, there)
    tl.store(after + row, tl.load(marks + event, ok & (p < n), 0), there)
    c = tl.arange(0, COLUMNS)
    gap = ((left - earlier) / unit).to(tl.float32)
    scale = tl.load(scales + c - first, (c >= first) & (c < wide), 1.0)
    value = tl.where((c < first)[None, :], (c[None, :] == mark[:, None]).to(tl.float32), tl.log(1.0 + gap[:, None] / scale[None, :]) - 1.0)
    tl.store(features + row[:, None] * wide + c[None, :], tl.where(ok[:, None], value, 0.0), there[:, None] & (c < wide)[None, :])


@triton.jit(do_not_specialize=["P"])
@no_type_check
def _score(
    z, share, log_scale, time_scale, width, lengths, value, of_scale, P,
    GAPS: tl.constexpr, SHARE: tl.constexpr, T: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    n = tl.load(lengths + b).to(tl.int32)
    log_s = tl.load(log_scale)
    each = log_s - tl.log(tl.load(time_scale).to(tl.float32))
    q = tl.arange(0, WIDE)
    own = tl.zeros([ROWS], tl.float32)
    integral = tl.zeros([ROWS], tl.float32)
    events = tl.zeros([ROWS], tl.float32)
    for begin in range(0, n + 1, ROWS):
        p = begin + tl.arange(0, ROWS)
        row = b * P + p
        counted = (p <= n) & (p >= 0)
        if GAPS:
            counted = (p < n) & (p > 0)
        scored = counted & (p < n)
        rates = softplus(tl.load(z + row[:, None] * T + q[None, :], counted[:, None] & (q < T - 1)[None, :], -100.0))
        gap = tl.load(width + row, counted, 0.0)
        integral += tl.where(counted, gap * (tl.sum(rates, 1) / (T - 1)), 0.0)
        logs = log_softplus(tl.load(z + row * T + T - 1, scored, 0.0)) + each
        if SHARE:
            logs += tl.load(share + row, scored, 0.0)
        own += tl.where(scored, logs, 0.0)
        events += scored.to(tl.float32)
    total = tl.exp(log_s) * tl.sum(integral, 0)
    tl.store(value + b, tl.sum(own, 0) - total)
    tl.store(of_scale + b, tl.sum(events, 0) - total)


@triton.jit(do_not_specialize=["R", "P"])
@no_type_check
def _score_back(
    z, log_scale, width, lengths, grad, of_z, of_share, R, P,
    GAPS: tl.constexpr, SHARE: tl.constexpr, T: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < R
    p = row % P
    n = tl.load(lengths + row // P, there, 0)
    counted = there & (p <= n)
    if GAPS:
        counted = there & (p < n) & (p > 0)
    scored = counted & (p < n)
    g = tl.load(grad + row // P, there, 0.0)
    q = tl.arange(0, WIDE)
    at = row[:, None] * T + q[None, :]
    x = tl.load(z + at, counted[:, None] & (q < T)[None, :], 0.0)
    gap = tl.load(width + row, counted, 0.0)
    inside = -tl.exp(tl.load(log_scale)) * (gap / (T - 1))[:, None] * tl.sigmoid(x)
    end = tl.where(scored[:, None], log_softplus_slope(x), 0.0)
    slope = tl.where((q < T - 1)[None, :], inside, end)
    tl.store(of_z + at, tl.where(counted[:, None], g[:, None] * slope, 0.0), there[:, None] & (q < T)[None, :])
    if SHARE:
        tl.store(of_share + row, tl.where(scored, g, 0.0), there)
