r"""The networks inside Deep DAPP on a CUDA device: one kernel for norm, two matrices and what is
dropped between them.

    layer:   out = x + e * (V_2 (d * gelu(V_1 norm(x))))
    head:    q = gelu(x),   out = q + V_2 (d * gelu(V_1 norm(q))),   z = w'out + b

on rows of H numbers. The head has T rows for every position; here is the last of them, which is an
event's, and the nodes before it are `nodes`'s. Forwards, the 2H numbers inside come PART
at a time, so that all of a program's numbers fit into registers. Backwards, a program goes through
its rows once for every SUMS / H of them, and keeps the sums that are those columns' gradients,
which begin with what the nodes have left; what each part adds to the gradient of norm(x) waits in
the place of x's own gradient. With n the rows before scale and shift, the product of those columns'
gradient with 1 + n holds the gradients of V_1, its bias, scale and shift alike, since a row of n
has the sum 0. `deep_layer` and `deep_dapp` are the plain versions that it is tested against;
`rows` lists the rows.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.kernels.triton_deep_dapp import rows as deep_rows_cuda
from fourpoint.kernels.triton_deep_dapp.maths import gelu_derivative, normal_share, product
from fourpoint.kernels.triton_deep_dapp.norm import EPSILON, unit, unit_back
from fourpoint.kernels.triton_deep_dapp.rows import Rows, rows_in, tiles_of

ROWS, WARPS, REGISTERS, STAGES = (
    32,
    2,
    168,
    2,
)  # of a program, forwards; parts of the matrices on their way
BACK_ROWS, BACK_WARPS, BACK_REGISTERS, BACK_STAGES = 32, 8, 255, 2  # backwards
PART = 32  # numbers inside at a time
SUMS = 8192  # numbers of one matrix's gradient that a program keeps


class Network(NamedTuple):
    """What a network is made of; or, for their gradients, columns of a `rows.Sums`."""

    gamma: Tensor  # (H,)
    beta: Tensor
    up: Tensor  # (2H, H)
    up_bias: Tensor
    down: Tensor  # (H, 2H)
    down_bias: Tensor


class KeptActivations(NamedTuple):
    """Which activations dropout keeps, inside (R, 2H) and at the end (R, H), and the factor of
    those.
    """

    inner: Tensor | None
    outer: Tensor | None
    rescale: float


class NodeSums(NamedTuple):
    """What programs have summed over nodes, one line or several for each line of a
    `rows.Sums`.
    """

    up: Tensor  # (X, 2H H): of V_1's columns, with 1 + n
    inner: Tensor  # (X, 2H): the numbers inside, each times the gradient of z
    query: Tensor  # (X, H): and those before V_1
    z: Tensor  # (X, 1): the gradients of z


def mix(x: Tensor, rows: Rows, kept: KeptActivations, network: Network) -> Tensor:
    """A layer's network on tokens (R, H)."""
    out = torch.empty_like(x)
    _forward(x, rows, 1, kept, network, (None, None), out, None)
    return out


def mix_back(
    x: Tensor,
    rows: Rows,
    kept: KeptActivations,
    network: Network,
    of_out: Tensor,
    of_network: Network,
) -> Tensor:
    """The gradient of x; the network's go into ``of_network``."""
    of_x = torch.empty_like(x)
    _backward(
        x,
        rows,
        1,
        kept,
        network,
        (None, None),
        of_out,
        None,
        of_x,
        of_network,
        (None, None),
        None,
    )
    return of_x


def head(
    x: Tensor,
    rows: Rows,
    T: int,
    kept: KeptActivations,
    network: Network,
    rate: tuple[Tensor, Tensor],
    out: Tensor,
) -> Tensor:
    """The head's network on sums before its first gelu (R T, H): z (R, T) and ``out`` (R, H) at the
    last of the T times.

    ``rate`` are w (1, H) and b (1). z at the other times is left to `nodes`.
    """
    z = x.new_empty(len(out), T)
    _forward(x, rows, T, kept, network, rate, out, z)
    return z


def head_back(
    x: Tensor,
    rows: Rows,
    T: int,
    kept: KeptActivations,
    network: Network,
    rate: tuple[Tensor, Tensor],
    of_out: Tensor,
    of_z: Tensor,
    of_x: Tensor,
    of_network: Network,
    of_rate: tuple[Tensor, Tensor],
    nodes: NodeSums,
) -> None:
    """From the gradients of ``out`` (R, H) and of z (R) at the last of the T times: that of x goes
    into its rows of ``of_x`` (R T, H), and those of the parameters into their columns, with what
    the nodes have left.
    """
    _backward(x, rows, T, kept, network, rate, of_out, of_z, of_x, of_network, of_rate, nodes)


def part_of(H: int) -> int:
    """Of how many numbers inside a program keeps the sums, backwards."""
    return min(max(16, SUMS // H), 2 * H)


def _forward(
    x: Tensor,
    rows: Rows,
    T: int,
    kept: KeptActivations,
    network: Network,
    rate: tuple[Tensor | None, Tensor | None],
    out: Tensor,
    z: Tensor | None,
) -> None:
    H = x.shape[1]
    _mix[(rows.tiles(ROWS),)](
        x,
        rows.place,
        rows.real,
        *network,
        kept.inner,
        kept.outer,
        *rate,
        out,
        z,
        kept.rescale,
        HEAD=z is not None,
        INNER=kept.inner is not None,
        OUTER=kept.outer is not None,
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


def _backward(
    x: Tensor,
    rows: Rows,
    T: int,
    kept: KeptActivations,
    network: Network,
    rate: tuple[Tensor | None, Tensor | None],
    of_out: Tensor,
    of_z: Tensor | None,
    of_x: Tensor,
    of_network: Network,
    of_rate: tuple[Tensor | None, Tensor | None],
    nodes: NodeSums | None,
) -> None:
    H = x.shape[1]
    lines = len(of_network.up)
    _mix_back[(lines,)](
        x,
        rows.place,
        rows.real,
        *network,
        kept.inner,
        kept.outer,
        rate[0],
        of_out,
        of_z,
        of_x,
        *of_network,
        *of_rate,
        *(nodes or (None,) * 4),
        of_network.up.stride(0),
        kept.rescale,
        HEAD=nodes is not None,
        EACH=0 if nodes is None else len(nodes.z) // lines,
        INNER=kept.inner is not None,
        OUTER=kept.outer is not None,
        T=T,
        H=H,
        WIDE=2 * H,
        PART=part_of(H),
        ROWS=BACK_ROWS,
        EPSILON=EPSILON,
        PRECISION=deep_rows_cuda.PRECISION,
        num_warps=BACK_WARPS,
        num_stages=BACK_STAGES,
        maxnreg=BACK_REGISTERS,
    )


@triton.jit
@no_type_check  # triton has its own types
def inside(
    n,
    matrix,
    up_bias,
    inner,
    position,
    ok,
    c,
    rescale,
    INNER: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The numbers inside at columns c, from those rows of V_1, and their derivative by what that
    gives.
    """
    a = product(n, tl.trans(matrix), None, PRECISION) + tl.load(up_bias + c)[None, :]
    share = normal_share(a)
    gradient = gelu_derivative(a, share)
    h = a * share
    if INNER:
        kept = (
            tl.load(inner + position[:, None] * WIDE + c[None, :], ok[:, None], 0).to(tl.float32)
            * rescale
        )
        h = h * kept
        gradient = gradient * kept
    return h, gradient


@triton.jit
@no_type_check
def unit_of(x, at, ok, HEAD: tl.constexpr, H: tl.constexpr, EPSILON: tl.constexpr):
    """q, q with mean 0 and variance 1, by how much it was stretched for that, and the derivative of
    q.
    """
    v = tl.load(x + at, ok[:, None], 0.0)
    gradient = v
    if HEAD:
        share = normal_share(v)
        gradient = gelu_derivative(v, share)
        v = v * share
    n, steep = unit(v, H, EPSILON)
    return v, n, steep, gradient


@triton.jit
@no_type_check
def _mix(
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
    outer,
    rate,
    rate_bias,
    out,
    z,
    rescale,
    HEAD: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    T: tl.constexpr,
    H: tl.constexpr,
    WIDE: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """At the last of the T times."""
    total = tl.load(count)
    if tl.program_id(0) * ROWS < total:
        position, _, ok = rows_in(tl.program_id(0), place, total, 1, ROWS)
        col = tl.arange(0, H)
        row = position * T + (T - 1)
        v, n, steep, by_raw = unit_of(x, row[:, None] * H + col[None, :], ok, HEAD, H, EPSILON)
        n = n * tl.load(gamma + col)[None, :] + tl.load(beta + col)[None, :]
        y = tl.zeros([ROWS, H], tl.float32) + tl.load(down_bias + col)[None, :]
        for begin in range(0, WIDE, PART):
            c = begin + tl.arange(0, PART)
            matrix = tl.load(up + c[:, None] * H + col[None, :])
            h, gradient = inside(
                n, matrix, up_bias, inner, position, ok, c, rescale, INNER, WIDE, PRECISION
            )
            y = product(h, tl.trans(tl.load(down + col[:, None] * WIDE + c[None, :])), y, PRECISION)
        if OUTER:
            y = y * (
                tl.load(outer + position[:, None] * H + col[None, :], ok[:, None], 0).to(tl.float32)
                * rescale
            )
        y += v
        if HEAD:
            tl.store(z + row, tl.sum(y * tl.load(rate + col)[None, :], 1) + tl.load(rate_bias), ok)
        tl.store(out + position[:, None] * H + col[None, :], y, ok[:, None])


@triton.jit
@no_type_check
def _mix_back(
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
    outer,
    rate,
    of_out,
    of_z,
    of_x,
    of_gamma,
    of_beta,
    of_up,
    of_up_bias,
    of_down,
    of_down_bias,
    of_rate,
    of_rate_bias,
    nodes_up,
    nodes_h,
    nodes_v,
    nodes_z,
    line_wide,
    rescale,
    HEAD: tl.constexpr,
    EACH: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    T: tl.constexpr,
    H: tl.constexpr,
    WIDE: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    EPSILON: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """At the last of the T times: gradient of x, and in this program's line the parameters', with
    EACH lines of the nodes'.
    """
    total = tl.load(count)
    first, end = tiles_of(total, ROWS)
    line = tl.program_id(0) * line_wide
    col = tl.arange(0, H)
    stretch = tl.load(gamma + col)
    shift = tl.load(beta + col)
    by_gamma = tl.zeros([H], tl.float32)
    by_beta = tl.zeros([H], tl.float32)
    by_y = tl.zeros([ROWS, H], tl.float32)
    by_rate = tl.zeros([H], tl.float32)
    by_v = tl.zeros([ROWS, H], tl.float32)
    by_z = tl.zeros([ROWS], tl.float32)
    at_nodes = 0.0
    for i in tl.static_range(EACH):
        node = tl.program_id(0) * EACH + i
        at_nodes += tl.load(nodes_z + node)
        by_rate += tl.load(nodes_v + node * H + col)
    for begin in tl.static_range(0, WIDE, PART):
        c = begin + tl.arange(0, PART)
        across = col[:, None] * WIDE + c[None, :]
        by_up = tl.zeros([PART, H], tl.float32)
        by_down = tl.zeros([H, PART], tl.float32)
        by_h = tl.zeros([PART], tl.float32)
        for i in tl.static_range(EACH):
            node = tl.program_id(0) * EACH + i
            by_up += tl.load(nodes_up + node * (WIDE * H) + c[:, None] * H + col[None, :])
            by_h += tl.load(nodes_h + node * WIDE + c)
        if HEAD:
            by_down += tl.load(rate + col)[:, None] * by_h[None, :]
        matrix = tl.load(up + c[:, None] * H + col[None, :])  # both are rounded once for all tiles
        back = tl.load(down + across)
        for tile in range(first, end):
            position, _, ok = rows_in(tile, place, total, 1, ROWS)
            row = position * T + (T - 1)
            at = row[:, None] * H + col[None, :]
            beside = position[:, None] * H + col[None, :]
            v, n, steep, by_raw = unit_of(x, at, ok, HEAD, H, EPSILON)
            u = n * stretch[None, :] + shift[None, :]
            g = tl.load(of_out + beside, ok[:, None], 0.0)
            g_z = ok.to(tl.float32)
            if HEAD:
                g_z = tl.load(of_z + position, ok, 0.0)
                g += g_z[:, None] * tl.load(rate + col)[None, :]
            of_y = g
            if OUTER:
                of_y = g * (tl.load(outer + beside, ok[:, None], 0).to(tl.float32) * rescale)
            h, gradient = inside(
                u, matrix, up_bias, inner, position, ok, c, rescale, INNER, WIDE, PRECISION
            )
            by_down = product(tl.trans(of_y), h, by_down, PRECISION)
            of_a = gradient * product(of_y, back, None, PRECISION)
            by_up = product(tl.trans(of_a), n + 1.0, by_up, PRECISION)
            of_u = product(of_a, matrix, None, PRECISION)
            if begin > 0:
                of_u += tl.load(of_x + at, ok[:, None], 0.0)
            tl.store(of_x + at, of_u, ok[:, None])
            if HEAD:
                by_h += tl.sum(g_z[:, None] * h, 0)
            if (
                begin + PART == WIDE
                # read again, so that threads have whole rows as they have of x, which are not made
                # a second time
            ):
                tl.debug_barrier()
                of_u = tl.load(of_x + at, ok[:, None], 0.0)
                by_y += of_y
                of_u = g + unit_back(of_u * stretch[None, :], n, steep, H)
                if HEAD:
                    by_v += g_z[:, None] * v
                    by_z += g_z
                    of_u = of_u * by_raw
                tl.store(of_x + at, of_u, ok[:, None])
        of_scale, of_shift = _leave_up(
            by_up, up, stretch, shift, of_up + line, of_up_bias + line, c, H
        )
        by_gamma += of_scale
        by_beta += of_shift
        tl.store(of_down + line + across, by_down)
        if HEAD:  # z is linear in the numbers inside
            by_rate += tl.sum(tl.load(down + across) * by_h[None, :], 1)
    tl.store(of_gamma + line + col, by_gamma)
    tl.store(of_beta + line + col, by_beta)
    of_bias = tl.sum(by_y, 0)
    if HEAD:
        of_bias += tl.load(rate + col) * at_nodes
    tl.store(of_down_bias + line + col, of_bias)
    if HEAD:
        every = at_nodes + tl.sum(by_z, 0)
        tl.store(of_rate + line + col, by_rate + tl.sum(by_v, 0) + tl.load(down_bias + col) * every)
        tl.store(of_rate_bias + line, every)


@triton.jit
@no_type_check
def _leave_up(by_up, up, stretch, shift, of_up, of_up_bias, c, H: tl.constexpr):
    """From the sums with 1 + n: leaves the gradients of V_1 and its bias, and returns those of
    scale and shift.
    """
    at = c[:, None] * H + tl.arange(0, H)[None, :]
    bias = tl.sum(by_up, 1) / H
    by_up = by_up - bias[:, None]
    tl.store(of_up + at, by_up * stretch[None, :] + bias[:, None] * shift[None, :])
    tl.store(of_up_bias + c, bias)
    matrix = tl.load(up + at)
    return tl.sum(by_up * matrix, 0), tl.sum(bias[:, None] * matrix, 0)
