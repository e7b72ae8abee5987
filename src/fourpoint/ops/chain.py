r"""The forward filter of a hidden Markov chain that is observed step by step.

    b_0 = first,    b_{s+1} = normalised(b_s * factor_s) T[moves_s]

``factor_s`` is the likelihood of what step s observes, by state, up to a constant; the chain moves
by the transition matrix with the number ``moves_s`` after step s, and stays where that is -1. With
the steps in reverse order and the transposed matrices, the same recursion gives the likelihood of
what follows.

Axes: B sequences, S steps, P = S + 1 positions, D matrices, K states.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fourpoint import kernels

FLOOR = 1e-300


def filtered(
    first: Float[Tensor, "B K"],
    factors: Float[Tensor, "B S K"],
    moves: Int[Tensor, "B S"],
    T: Float[Tensor, "D K K"],
) -> Float[Tensor, "B P K"]:
    """The distribution of the state at first and after every step.

    >>> first, stay = torch.tensor([[0.5, 0.5]]), torch.tensor([[[0.9, 0.1], [0.1, 0.9]]])
    >>> seen = torch.tensor([[[1.0, 0.0]]])  # only in the first state
    >>> filtered(first, seen, torch.tensor([[0]]), stay)[0, 1].tolist()
    [0.8999999761581421, 0.10000000149011612]
    """
    given = (first, factors, T)
    differentiated = torch.is_grad_enabled() and any(part.requires_grad for part in given)
    loop = kernels.CHAIN.choose(
        factors.numel(), factors.device.type, str(factors.dtype), differentiated=differentiated
    )
    if loop is None:
        return plain_filtered(first, factors, moves, T)
    found: Tensor = loop(first, factors, moves, T)
    return found


def plain_filtered(
    first: Float[Tensor, "B K"],
    factors: Float[Tensor, "B S K"],
    moves: Int[Tensor, "B S"],
    T: Float[Tensor, "D K K"],
) -> Float[Tensor, "B P K"]:
    """As :func:`filtered`, with gradients."""
    belief = first
    found = [belief]
    for factor, move in zip(factors.unbind(1), moves.unbind(1), strict=True):
        belief = belief * factor
        belief = belief / belief.sum(-1, keepdim=True).clamp(min=FLOOR)
        moved = torch.einsum("bk,bkl->bl", belief, T[move.clamp(min=0)])
        belief = torch.where((move >= 0)[:, None], moved, belief)
        found.append(belief)
    return torch.stack(found, 1)
