r"""Both ends of Deep DAPP's likelihood on a CUDA device: from events to tokens, and from z to
log-likelihoods.

A token is that of its mark, T log(1 + d_p / s_k) - T and a bias, d_p the gap before it. Its
gradients are one matrix product with the features [which mark it has, log(1 + d_p / s_k) - 1 ...,
1], and need no scattered sums. At the other end a sequence's log-likelihood is

    sum_p [ log log(1 + e^z_p) + log s - log c + share_p ]  -  s sum_p d_{p+1} mean_q w_pq log(1 +
    e^z_pq),

z_p being z at the end of the gap after p, where the next event is, w_pq the weights of nodes,
share_p the log of its mark's share, softmax(R q_p + c)_m, and c the unit of time. Under the
convention "gaps" neither the first event nor the gaps before it and after the last count.
`rows` lists the positions.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import triton
import triton.language as tl
from torch import Tensor

from fourpoint.kernels.constants import REACH
from fourpoint.kernels.triton_deep_dapp import rows as deep_rows_cuda
from fourpoint.kernels.triton_deep_dapp.given import Events
from fourpoint.kernels.triton_deep_dapp.maths import (
    exp,
    feature,
    log_softplus,
    log_softplus_derivative,
    node_of,
    product,
    softplus,
)
from fourpoint.kernels.triton_deep_dapp.rows import Rows, rows_in, tiles_of

ROWS, WARPS = 32, 4  # positions of a program


class Tokens(NamedTuple):
    """The tokens' parameters, or columns of a `rows.Sums` for their gradients."""

    marks: Tensor | None  # (M + 2, H)
    gap: Tensor  # (H, K)
    bias: Tensor  # (H,)


class Seen(NamedTuple):
    """What a batch is, position by position."""

    # (R,): the mark that each has; the window's start has M, and one that is hidden M + 1
    own: Tensor
    after: Tensor  # (R,): that of the event after it
    width: Tensor  # (B, P): the gap after it, in units of ``time_scale``


def tokens(
    batch: Events,
    rows: Rows,
    hidden: Tensor | None,
    time_scale: Tensor,
    scales: Tensor,
    marks: int,
    parts: Tokens,
    *,
    few: bool,
) -> tuple[Tensor, Seen]:
    """Tokens (R, H), and what they are made of; marks of events that are ``hidden`` (B, N) are not
    seen.

    Where marks are not ``few``, all rows have marks, since they are looked up by others: those that
    do not count have M + 2 and 0.
    """
    R = len(rows.place)
    N = batch.times.shape[1]
    H = len(parts.bias)
    own, after = (
        batch.marks.new_empty(2, R)
        if few
        else (batch.marks.new_full((R,), marks + 2), batch.marks.new_zeros(R))
    )
    x = scales.new_empty(R, H)
    seen = Seen(own, after, scales.new_empty(len(rows.lengths), rows.P))
    _tokens[(rows.tiles(ROWS),)](
        batch.times.contiguous(),
        batch.marks.contiguous(),
        batch.start,
        batch.stop,
        rows.lengths,
        hidden,
        time_scale,
        scales,
        *parts,
        x,
        *seen,
        rows.place,
        rows.real,
        N,
        marks,
        HIDDEN=hidden is not None,
        TIMES=len(scales),
        K=parts.gap.shape[1],
        H=H,
        ROWS=ROWS,
        REACH=REACH,
        num_warps=WARPS,
    )
    return x, seen


def tokens_back(
    seen: Seen, rows: Rows, scales: Tensor, marks: int, of_x: Tensor, of: Tokens
) -> None:
    """Gradients, into their columns; that of the marks only where there are such."""
    first = 0 if of.marks is None else marks + 2
    K = of.gap.shape[1] // of_x.shape[1]
    _tokens_back[(len(of.gap),)](
        seen.own,
        seen.width,
        scales,
        of_x,
        *of,
        rows.place,
        rows.real,
        rows.P,
        first,
        of.gap.stride(0),
        MARKS=first > 0,
        TIMES=len(scales),
        K=K,
        H=of_x.shape[1],
        COLUMNS=max(16, triton.next_power_of_2(first + K + 1)),
        ROWS=ROWS,
        PRECISION=deep_rows_cuda.PRECISION,
        REACH=REACH,
        num_warps=WARPS,
        num_stages=1,
    )


def shares(q: Tensor, after: Tensor, matrix: Tensor, bias: Tensor, rows: Rows) -> Tensor:
    """The logs of the shares (R) of the marks ``after`` each position, from q (R, H), R (M, H) and
    c (M).
    """
    (M, H), share = matrix.shape, q.new_empty(len(q))
    _shares[(rows.tiles(ROWS),)](
        q,
        after,
        matrix,
        bias,
        share,
        rows.place,
        rows.real,
        M,
        MARKS=max(16, triton.next_power_of_2(M)),
        H=H,
        ROWS=ROWS,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=WARPS,
    )
    return share


def shares_back(
    q: Tensor,
    after: Tensor,
    matrix: Tensor,
    bias: Tensor,
    rows: Rows,
    of_share: Tensor,
    of_q: Tensor,
    of_matrix: Tensor,
    of_bias: Tensor,
) -> None:
    """Writes the gradient of q; those of R and c go into their columns."""
    M, H = matrix.shape
    _shares_back[(len(of_bias),)](
        q,
        after,
        matrix,
        bias,
        of_share,
        of_q,
        of_matrix,
        of_bias,
        rows.place,
        rows.real,
        M,
        of_bias.stride(0),
        MARKS=max(16, triton.next_power_of_2(M)),
        H=H,
        ROWS=ROWS,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=WARPS,
        num_stages=1,
    )


def score(
    z: Tensor,
    share: Tensor | None,
    log_scale: Tensor,
    time_scale: Tensor,
    width: Tensor,
    where: Tensor,
    lengths: Tensor,
    gaps: bool,
) -> tuple[Tensor, Tensor]:
    """Log-likelihoods (B) from z (R, T), the logs of the marks' shares (R) or None, and log s; and
    their derivatives by that.
    """
    (B, P), T = width.shape, z.shape[1]
    value = z.new_empty(B)
    by_scale = z.new_empty(B)
    _score[(B,)](
        z,
        share,
        log_scale,
        time_scale,
        width,
        where,
        lengths,
        value,
        by_scale,
        P,
        GAPS=gaps,
        SHARE=share is not None,
        T=T,
        WIDE=triton.next_power_of_2(T),
        ROWS=ROWS,
        num_warps=WARPS,
    )
    return value, by_scale


def score_back(
    z: Tensor,
    rows: Rows,
    gaps: bool,
    grad: Tensor | None,
    by_scale: Tensor,
    of_share: Tensor,
    of_scale: Tensor,
) -> Tensor:
    """The gradient of z at the ends of gaps (R), those of the log-likelihoods being ``grad`` (B),
    or 1 where that is None; writes that of the logs of shares (R), and that of log s into its
    column. The nodes' z have theirs already (`nodes`).
    """
    of_z = z.new_empty(len(z))
    _score_back[(len(of_scale),)](
        z,
        rows.lengths,
        grad,
        by_scale,
        of_z,
        of_share,
        of_scale,
        rows.place,
        rows.real,
        rows.P,
        len(by_scale),
        of_scale.stride(0),
        GAPS=gaps,
        EACH=grad is not None,
        T=z.shape[1],
        ROWS=ROWS,
        num_warps=WARPS,
    )
    return of_z


@triton.jit(do_not_specialize=["N"])
@no_type_check  # triton has its own types
def _tokens(
    times,
    marks,
    start,
    stop,
    lengths,
    hidden,
    time_scale,
    scales,
    by_mark,
    by_gap,
    bias,
    x,
    own,
    after,
    width,
    place,
    count,
    N,
    M,
    HIDDEN: tl.constexpr,
    TIMES: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    REACH: tl.constexpr,
):
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total:
        row, _, ok = rows_in(tl.program_id(0), place, total, 1, ROWS)
        b = row // (N + 1)
        p = row % (N + 1)
        event = b * N + p  # the one after position p
        n = tl.load(lengths + b, ok, 0)
        begin = tl.load(start + b, ok, 0.0)
        left = tl.where(p > 0, tl.load(times + event - 1, ok & (p > 0), 0.0), begin)
        earlier = tl.where(p > 1, tl.load(times + event - 2, ok & (p > 1), 0.0), begin)
        right = tl.where(
            p < n, tl.load(times + event, ok & (p < n), 0.0), tl.load(stop + b, ok, 0.0)
        )
        unit = tl.load(time_scale)
        tl.store(width + row, ((right - left) / unit).to(tl.float32), ok)
        mark = tl.load(marks + event - 1, ok & (p > 0), 0)
        if HIDDEN:
            mark = tl.where(tl.load(hidden + event - 1, ok & (p > 0), 0) != 0, M + 1, mark)
        mark = tl.where(p > 0, mark, M)
        tl.store(own + row, mark, ok)
        tl.store(after + row, tl.load(marks + event, ok & (p < n), 0), ok)
        gap = tl.minimum(
            ((left - earlier) / unit).to(tl.float32), REACH * tl.load(scales + TIMES - 1)
        )
        h = tl.arange(0, H)
        token = (
            tl.load(by_mark + mark[:, None] * H + h[None, :], ok[:, None], 0.0)
            + tl.load(bias + h)[None, :]
        )
        for k in tl.static_range(K):
            told = feature(
                tl.log(1.0 + gap / tl.load(scales + (k if k < TIMES else 0))),
                tl.full([1], k, tl.int32),
                TIMES,
                K,
            )
            token += told[:, None] * tl.load(by_gap + h * K + k)[None, :]
        tl.store(x + row[:, None] * H + h[None, :], token, ok[:, None])


@triton.jit(do_not_specialize=["P"])
@no_type_check
def _tokens_back(
    own,
    width,
    scales,
    of_x,
    of_mark,
    of_gap,
    of_bias,
    place,
    count,
    P,
    first,
    line_wide,
    MARKS: tl.constexpr,
    TIMES: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    REACH: tl.constexpr,
):
    total = tl.load(count)
    begin, end = tiles_of(total, ROWS)
    h = tl.arange(0, H)
    c = tl.arange(0, COLUMNS)
    k = c - first
    scale = tl.load(scales + tl.where((k >= 0) & (k < TIMES), k, 0))
    far = REACH * tl.load(scales + TIMES - 1)
    sums = tl.zeros([COLUMNS, H], tl.float32)
    for tile in range(begin, end):
        row, _, ok = rows_in(tile, place, total, 1, ROWS)
        gap = tl.minimum(tl.load(width + row - 1, ok & (row % P > 0), 0.0), far)
        features = feature(tl.log(1.0 + gap[:, None] / scale[None, :]), k[None, :], TIMES, K)
        if MARKS:
            mark = tl.load(own + row, ok, 0)
            features = tl.where(
                (k < 0)[None, :], (c[None, :] == mark[:, None]).to(tl.float32), features
            )
        g = tl.load(of_x + row[:, None] * H + h[None, :], ok[:, None], 0.0)
        sums = product(tl.trans(features), g, sums, PRECISION)
    line = tl.program_id(0) * line_wide
    if MARKS:
        tl.store(of_mark + line + c[:, None] * H + h[None, :], sums, (k < 0)[:, None])
    tl.store(of_gap + line + h[None, :] * K + k[:, None], sums, ((k >= 0) & (k < K))[:, None])
    tl.store(of_bias + line + h[None, :] + 0 * k[:, None], sums, (k == K)[:, None])


@triton.jit
@no_type_check
def _chances(
    q,
    after,
    matrix,
    bias,
    row,
    ok,
    M,
    MARKS: tl.constexpr,
    H: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """q and R, the logs of all marks' shares, and which mark comes after a position."""
    h = tl.arange(0, H)
    m = tl.arange(0, MARKS)
    said = tl.load(q + row[:, None] * H + h[None, :], ok[:, None], 0.0)
    weights = tl.load(matrix + m[:, None] * H + h[None, :], (m < M)[:, None], 0.0)
    logs = (
        product(said, tl.trans(weights), None, PRECISION)
        + tl.load(bias + m, m < M, float("-inf"))[None, :]
    )
    logs = logs - tl.max(logs, 1)[:, None]
    logs = logs - tl.log(tl.sum(exp(logs), 1))[:, None]
    return said, weights, logs, m[None, :] == tl.load(after + row, ok, 0)[:, None]


@triton.jit
@no_type_check
def _shares(
    q,
    after,
    matrix,
    bias,
    share,
    place,
    count,
    M,
    MARKS: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total:
        row, _, ok = rows_in(tl.program_id(0), place, total, 1, ROWS)
        said, weights, logs, own = _chances(q, after, matrix, bias, row, ok, M, MARKS, H, PRECISION)
        tl.store(share + row, tl.sum(tl.where(own, logs, 0.0), 1), ok)


@triton.jit
@no_type_check
def _shares_back(
    q,
    after,
    matrix,
    bias,
    of_share,
    of_q,
    of_matrix,
    of_bias,
    place,
    count,
    M,
    line_wide,
    MARKS: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    total = tl.load(count)
    begin, end = tiles_of(total, ROWS)
    h = tl.arange(0, H)
    m = tl.arange(0, MARKS)
    by_matrix = tl.zeros([MARKS, H], tl.float32)
    by_bias = tl.zeros([MARKS], tl.float32)
    for tile in range(begin, end):
        row, _, ok = rows_in(tile, place, total, 1, ROWS)
        said, weights, logs, own = _chances(q, after, matrix, bias, row, ok, M, MARKS, H, PRECISION)
        g = (own.to(tl.float32) - exp(logs)) * tl.load(of_share + row, ok, 0.0)[:, None]
        tl.store(
            of_q + row[:, None] * H + h[None, :], product(g, weights, None, PRECISION), ok[:, None]
        )
        by_matrix = product(tl.trans(g), said, by_matrix, PRECISION)
        by_bias += tl.sum(g, 0)
    line = tl.program_id(0) * line_wide
    tl.store(of_matrix + line + m[:, None] * H + h[None, :], by_matrix, (m < M)[:, None])
    tl.store(of_bias + line + m, by_bias, m < M)


@triton.jit(do_not_specialize=["P"])
@no_type_check
def _score(
    z,
    share,
    log_scale,
    time_scale,
    width,
    where,
    lengths,
    value,
    by_scale,
    P,
    GAPS: tl.constexpr,
    SHARE: tl.constexpr,
    T: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):
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
        rates = softplus(
            tl.load(
                z + row[:, None] * T + q[None, :], counted[:, None] & (q < T - 1)[None, :], -100.0
            )
        )
        lag, weight = node_of(tl.load(where + row, counted, 0.0)[:, None], q[None, :], T - 1)
        gap = tl.load(width + row, counted, 0.0)
        integral += tl.where(counted, gap * (tl.sum(weight * rates, 1) / (T - 1)), 0.0)
        logs = log_softplus(tl.load(z + row * T + T - 1, scored, 0.0)) + each
        if SHARE:
            logs += tl.load(share + row, scored, 0.0)
        own += tl.where(scored, logs, 0.0)
        events += scored.to(tl.float32)
    total = exp(log_s) * tl.sum(integral, 0)
    tl.store(value + b, tl.sum(own, 0) - total)
    tl.store(by_scale + b, tl.sum(events, 0) - total)


@triton.jit(do_not_specialize=["P", "B"])
@no_type_check
def _score_back(
    z,
    lengths,
    grad,
    by_scale,
    of_z,
    of_share,
    of_scale,
    place,
    count,
    P,
    B,
    line_wide,
    GAPS: tl.constexpr,
    EACH: tl.constexpr,
    T: tl.constexpr,
    ROWS: tl.constexpr,
):
    total = tl.load(count)
    first, end = tiles_of(total, ROWS)
    for tile in range(first, end):
        row, _, ok = rows_in(tile, place, total, 1, ROWS)
        p = row % P
        scored = ok & (p < tl.load(lengths + row // P, ok, 0))
        if GAPS:
            scored = scored & (p > 0)
        g = scored.to(tl.float32)
        if EACH:
            g = tl.load(grad + row // P, scored, 0.0)
        gradient = log_softplus_derivative(tl.load(z + row * T + T - 1, scored, 0.0))
        tl.store(of_z + row, tl.where(scored, g * gradient, 0.0), ok)
        tl.store(of_share + row, g, ok)
    some = tl.zeros([ROWS], tl.float32)
    for begin in range(tl.program_id(0) * ROWS, B, tl.num_programs(0) * ROWS):
        b = begin + tl.arange(0, ROWS)
        more = tl.load(by_scale + b, b < B, 0.0)
        if EACH:
            more = more * tl.load(grad + b, b < B, 0.0)
        some += more
    tl.store(of_scale + tl.program_id(0) * line_wide, tl.sum(some, 0))
