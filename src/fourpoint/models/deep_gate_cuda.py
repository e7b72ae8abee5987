r"""What a layer of Deep DAPP adds to its tokens, on a CUDA device.

    u = norm(x),       y = gelu(C S + D u) * sigmoid(G u),      x <- x + d * O y,       d what is silenced

where S are the states of `deep_walk_cuda`, and B u, the gates, D u and G u come side by side from one matrix product. The backward
pass writes the gradient of that product in place: no piece of it is copied. `deep_layer` is the plain version.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourpoint.models.deep_maths_cuda import gelu_slope, normal_share
from fourpoint.models.deep_norm_cuda import norm_linear_back, normed
from fourpoint.models.deep_product_cuda import product
from fourpoint.models.deep_walk_cuda import walk, walk_back

BLOCK = 1024  # numbers of a program


class Heard(torch.autograd.Function):
    """New tokens (R, H), states (R, 2J) and paces (R, J).

    Arguments
        x (R, H), scale, shift (H): tokens and their norm.
        matrix (4J + 2H, H), bias: drive, gates and both skips, one below the other.
        read (H, 2J), said_bias (H); out (H, H), out_bias (H): C and O.
        log_decay, turns, first, steady (J): the modes, as in `deep_walk_cuda.walk`.
        width (B, P), lengths (B): gaps, and the last position of each sequence.
        heard (R) or None, louder: which positions leave a trace, and how much more; kept (R, H) or None, more: what is not silenced.
        to: where states and paces are written, (R, 2J) and (R, J).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, matrix: Tensor, bias: Tensor, read: Tensor, said_bias: Tensor, out: Tensor,
        out_bias: Tensor, log_decay: Tensor, turns: Tensor, first: Tensor, steady: Tensor, width: Tensor, lengths: Tensor,
        heard: Tensor | None, louder: float, kept: Tensor | None, more: float, to: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        state, pace = to
        joined = torch.addmm(bias, normed(x, scale, shift), matrix.T)
        walk(joined, width, heard, louder, lengths, (log_decay, turns, first, steady), state, pace)
        said = torch.addmm(said_bias, state, read.T)
        y, new, H = torch.empty_like(said), torch.empty_like(x), len(read)
        grid = (triton.cdiv(y.numel(), BLOCK),)
        _gate[grid](said, joined, y, y.numel(), joined.stride(0), 2 * state.shape[1], H=H, BLOCK=BLOCK)
        o = torch.addmm(out_bias, y, out.T)
        _add[grid](x, o, kept, new, x.numel(), more, ADD=True, KEPT=kept is not None, BLOCK=BLOCK)
        ctx.save_for_backward(
            x, scale, shift, matrix, read, out, log_decay, turns, first, steady, width, lengths, heard, kept, joined, state, said, y
        )
        ctx.louder, ctx.more = louder, more
        return new, state, pace

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, of_state: Tensor, of_pace: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, shift, matrix, read, out, *modes, width, lengths, heard, kept, joined, state, said, y = ctx.saved_tensors
        of_o = grad = grad.contiguous()
        grid = (triton.cdiv(y.numel(), BLOCK),)
        if kept is not None:
            of_o = torch.empty_like(grad)
            _add[grid](grad, grad, kept, of_o, grad.numel(), ctx.more, ADD=False, KEPT=True, BLOCK=BLOCK)
        of_joined, (H, wide) = torch.empty_like(joined), read.shape
        _gate_back[grid](said, joined, of_o @ out, of_joined, said.numel(), joined.stride(0), 2 * wide, H=H, BLOCK=BLOCK)
        of_said = of_joined[:, 2 * wide : 2 * wide + H]
        of_state = torch.addmm(of_state, of_said, read)
        of_modes = walk_back(joined, width, heard, ctx.louder, lengths, tuple(modes), state, of_state, of_pace, of_joined)
        of_x, *of_first, of_said_bias = norm_linear_back(x, scale, shift, matrix, of_joined, grad, 2 * wide)
        of_later = (product(of_said, state), of_said_bias, product(of_o, y), of_o.sum(0))
        return of_x, *of_first, *of_later, of_modes[0], of_modes[1], *[None] * 9


@triton.jit(do_not_specialize=["count"])
@no_type_check  # triton has its own types
def _gate(said, joined, y, count, wide, skip, H: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    at = joined + (i // H) * wide + skip + i % H
    a = tl.load(said + i, ok, 0.0) + tl.load(at, ok, 0.0)
    tl.store(y + i, a * normal_share(a) * tl.sigmoid(tl.load(at + H, ok, 0.0)), ok)


@triton.jit(do_not_specialize=["count"])
@no_type_check
def _gate_back(said, joined, of_y, of_joined, count, wide, skip, H: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    at = (i // H) * wide + skip + i % H
    a = tl.load(said + i, ok, 0.0) + tl.load(joined + at, ok, 0.0)
    open_ = tl.sigmoid(tl.load(joined + at + H, ok, 0.0))
    g = tl.load(of_y + i, ok, 0.0)
    share = normal_share(a)
    tl.store(of_joined + at, g * open_ * gelu_slope(a, share), ok)
    tl.store(of_joined + at + H, g * a * share * open_ * (1.0 - open_), ok)


@triton.jit(do_not_specialize=["count"])
@no_type_check
def _add(x, o, kept, out, count, louder, ADD: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    y = tl.load(o + i, ok, 0.0)
    if KEPT:
        y = y * (tl.load(kept + i, ok, 0).to(tl.float32) * louder)
    if ADD:
        y += tl.load(x + i, ok, 0.0)
    tl.store(out + i, y, ok)
