r"""One linear recursion over events: what every state of Fourier modes is made by.

    S_i = F_i S_{i-1} + U_i,        F_i = exp(-fade_i) (cos angle_i + i sin angle_i),     S_0 = 0

element by element along dimension 1, real or complex. Written out it is attention: U_j reaches S_i
with the weight F_{j+1} ... F_i. **recur** does it in O(n) work; its gradient is the same recursion,
run backwards. **pairwise** forms all the weights, n^2 of them, and is what the others are tested
against. On a CUDA device :func:`recur` is one kernel for the whole recursion
(`kernels.RECURRENCE`), elsewhere chunks of events run side by side (:func:`running`).
"""

from __future__ import annotations

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from fourpoint import kernels
from fourpoint.kernels.autograd import Context

CHUNK = 32  # positions scanned side by side before their ends are scanned in turn


def recur(factor: Tensor, driven: Tensor) -> Tensor:
    """S_i along dimension 1, with gradient.

    >>> recur(torch.full((1, 3), 0.5), torch.ones(1, 3)).tolist()
    [[1.0, 1.5, 1.75]]
    """
    return _Recursion.apply(factor.expand_as(driven), driven)


def pairwise(
    fade: Float[Tensor, "B N P"], angle: Float[Tensor, "B N P"], driven: Complex[Tensor, "B N P"]
) -> Complex[Tensor, "B N P"]:
    """The same from all pairs: sum over j <= i of exp(-(fades after j up to i) + i (angles after j
    up to i)) U_j.

    >>> zero, u = torch.zeros(1, 3, 1), torch.ones(1, 3, 1, dtype=torch.complex64)
    >>> pairwise(zero + 0.6931472, zero, u).real.flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    faded = fade.cumsum(1)
    turned = angle.cumsum(1)
    fade_between = faded[:, :, None] - faded[:, None]
    angle_between = turned[:, :, None] - turned[:, None]
    events = fade.shape[1]
    past = torch.ones(events, events, dtype=torch.bool, device=fade.device).tril()
    exponent = torch.where(past[None, :, :, None], -fade_between, -torch.inf)
    size = torch.exp(exponent)
    factor = torch.complex(size * angle_between.cos(), size * angle_between.sin())
    return torch.einsum("bijp,bjp->bip", factor, driven)


class _Recursion(torch.autograd.Function):
    """The recursion. Its gradient is the same recursion, run backwards."""

    @staticmethod
    def forward(ctx: Context, factor: Tensor, driven: Tensor) -> Tensor:
        state = _forward(factor, driven)
        ctx.save_for_backward(factor, state)
        return state

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor]:
        factor, state = ctx.saved_tensors
        no_factor = torch.zeros_like(factor[:, :1])
        one_on = torch.cat([factor[:, 1:], no_factor], 1)
        backwards = _Recursion.apply(one_on.conj().flip(1), grad.flip(1))
        total = backwards.flip(1)
        no_state = torch.zeros_like(state[:, :1])
        before = torch.cat([no_state, state[:, :-1]], 1)
        return before.conj() * total, total


def _forward(factor: Tensor, driven: Tensor) -> Tensor:
    states = kernels.RECURRENCE.choose(factor, driven)
    if states is None:
        return running(factor, driven)
    found: Tensor = states(factor, driven)
    return found


def running(factor: Tensor, driven: Tensor) -> Tensor:
    """Inclusive scan of x -> factor x + driven along dimension 1.

    Chunks of CHUNK positions run side by side, one position after the other; then their ends are
    scanned the same way.
    """
    n = driven.shape[1]
    if n <= CHUNK:
        states = driven.clone()
        for i in range(1, n):
            states[:, i] += factor[:, i] * states[:, i - 1]
        return states
    chunks = -(-n // CHUNK)
    room = chunks * CHUNK - n
    factor = _pad(factor, room, 1.0).unflatten(1, (chunks, CHUNK))
    driven = _pad(driven, room, 0.0).unflatten(1, (chunks, CHUNK))
    inside = running(factor.flatten(0, 1), driven.flatten(0, 1))
    inside = inside.unflatten(0, (-1, chunks))
    product = factor.cumprod(2)
    at_ends = running(product[:, :, -1], inside[:, :, -1])
    carried = _pad(at_ends, 1, 0.0, front=True)[:, :-1, None]
    return (inside + product * carried).flatten(1, 2)[:, :n]


def _pad(x: Tensor, count: int, fill: float, *, front: bool = False) -> Tensor:
    if not count:
        return x
    extra = torch.full_like(x[:, :1], fill).expand(-1, count, *x.shape[2:])
    parts = [extra, x] if front else [x, extra]
    return torch.cat(parts, 1)
