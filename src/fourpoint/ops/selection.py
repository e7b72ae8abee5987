r"""Which past events stay when memory is bounded: the online attention of ODAPP.

Each head k remembers at most eta events, its active set A_k. When event x_i comes,

    w_j    = weight_k(x_i, x_j) over the active x_j   (what an unnormalised model counts is |score|)
    s_j, n_j  <-  s_j + w_j, n_j + 1                      running sum and count of each active event
    A_k   <-  A_k + {x_i}                           while it holds fewer than eta,
    A_k   <-  A_k + {x_i} - argmin_j s_j / n_j  once it is full;

x_i itself is never dropped, and of equals the oldest is.

This is Algorithm 3 of the paper with x_i kept and the minimum taken over active events only.
:func:`admit` does it for one event: a stream calls it event by event, :func:`run` calls it along
whole sequences and says when each event was dropped, which is all that training needs (as a mask;
no gradient flows through the choice).

Axes: B sequences, E slots of the active set, K heads, N events.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fourpoint.ops.attention import normalised

NEVER = 2**62  # a position that is not reached


@dataclass(frozen=True)
class Active:
    """The active set of every head: which events, in order of arrival, and the weights they have
    drawn so far.
    """

    index: Int[
        Tensor, "B E K"
    ]  # the event in each slot, counted from 0 as they came; -1 where the slot is empty
    total: Float[Tensor, "B E K"]
    count: Int[Tensor, "B E K"]

    @property
    def valid(self) -> Bool[Tensor, "B E K"]:
        """True where a slot holds an event."""
        return self.index >= 0

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Index, total and count."""
        return self.index, self.total, self.count


def empty(sequences: int, slots: int, heads: int, like: Tensor) -> Active:
    """Active sets without an event; totals have the dtype and device of ``like``."""
    shape = (sequences, slots, heads)
    index = torch.full(shape, -1, dtype=torch.int64, device=like.device)
    return Active(
        index, torch.zeros(shape, dtype=like.dtype, device=like.device), torch.zeros_like(index)
    )


def shares(
    scores: Float[Tensor, "B E K"], valid: Bool[Tensor, "B E K"], normalise: str
) -> Float[Tensor, "B E K"]:
    """The weights counted by the selection: normalised over the active set, or |score| where the
    model does not normalise.

    >>> shares(
    ...     torch.tensor([[[3.0], [1.0], [9.0]]]),
    ...     torch.tensor([[[True], [True], [False]]]),
    ...     "ratio",
    ... ).flatten().tolist()
    [0.75, 0.25, 0.0]
    """
    weights = normalised(scores.transpose(1, 2), valid.transpose(1, 2), normalise).transpose(1, 2)
    return weights.abs() if normalise == "none" else weights


def admit(
    active: Active,
    weights: Float[Tensor, "B E K"],
    index: Int[Tensor, " B"],
    happened: Bool[Tensor, " B"],
) -> tuple[Active, Int[Tensor, "B K"], Int[Tensor, "B K"]]:
    """The active sets after one event more, the slot it took, and the event dropped for it (-1 for
    none).

    ``weights`` are the new event's on each active one, ``index`` is its own number. Rows where
    nothing ``happened`` stay.

    >>> a, _, gone = admit(
    ...     Active(
    ...         torch.tensor([[[0], [1]]]),
    ...         torch.tensor([[[0.9], [0.2]]]),
    ...         torch.tensor([[[2], [1]]]),
    ...     ),
    ...     torch.tensor([[[0.3], [0.7]]]),
    ...     torch.tensor([2]),
    ...     torch.tensor([True]),
    ... )
    >>> gone.tolist(), a.index.flatten().tolist()  # means .4 and .45
    ([[0]], [2, 1])
    """
    valid = active.valid
    here = happened[:, None, None]
    total = torch.where(valid & here, active.total + weights, active.total)
    count = torch.where(valid & here, active.count + 1, active.count)
    mean = torch.where(valid, total / count.clamp(min=1), torch.inf)
    least = mean == mean.amin(1, keepdim=True)
    oldest = torch.where(least & valid, active.index, NEVER).argmin(1)
    full = valid.all(1)
    slot = torch.where(full, oldest, valid.to(torch.int8).argmin(1))
    in_slot = active.index.gather(1, slot[:, None])[:, 0]
    dropped = torch.where(full & happened[:, None], in_slot, -1)
    taken = (torch.arange(valid.shape[1], device=slot.device)[:, None] == slot[:, None]) & here
    after = Active(
        torch.where(taken, index[:, None, None], active.index),
        torch.where(taken, 0.0, total),
        torch.where(taken, 0, count),
    )
    return after, slot, dropped


def run(
    active: Active,
    scores: Float[Tensor, "B K N A"],
    valid: Bool[Tensor, "B N"],
    normalise: str,
    first: int = 0,
) -> tuple[Active, Int[Tensor, "B N K"]]:
    """N events in turn: the active sets at the end, and the event dropped for each of them (-1 for
    none).

    ``scores`` are of the new events on all A: the ``first`` ones were there before, the rest are
    the new events themselves; ``active.index`` numbers them all.
    """
    B, K, N, _ = scores.shape
    gone = torch.full((B, N, K), -1, dtype=torch.int64, device=scores.device)
    rows = torch.arange(B, device=scores.device)
    for i in range(N):
        drawn = scores[:, :, i].transpose(1, 2).gather(1, active.index.clamp(min=0))
        weights = shares(drawn, active.valid, normalise)
        active, _, gone[:, i] = admit(
            active, weights, torch.full_like(rows, first + i), valid[:, i]
        )
    return active, gone


def dropped_at(gone: Int[Tensor, "B N K"], events: int) -> Int[Tensor, "B A K"]:
    """The first position at which each of ``events`` is no longer seen; position p is the moment
    after p new events.

    >>> dropped_at(torch.tensor([[[-1], [0]]]), 2).flatten().tolist() == [2, NEVER]
    True
    """
    B, N, K = gone.shape
    table = torch.full((B, events + 1, K), NEVER, dtype=torch.int64, device=gone.device)
    positions = torch.arange(1, N + 1, device=gone.device)[:, None].expand(B, N, K)
    return table.scatter(1, torch.where(gone >= 0, gone, events), positions)[:, :events]
