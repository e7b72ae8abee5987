"""The plainest history: when each position begins, and how many events lie before it.

Position 0 is the window's start, position p the moment just after event p (see ``base.py``).
Models whose rate depends on the past through no more than the number of events (Poisson,
self-correcting) remember this and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fourpoint.events import Batch, BatchContext
from fourpoint.models.base import History, PointProcess


@dataclass(frozen=True, eq=False)
class Positions(History):
    """B sequences at P positions. Times are float64 in the user's unit."""

    earlier: Int[Tensor, " B"]  # events before position 0, no longer remembered


class FromPositions(PointProcess[Positions]):
    """A point process whose histories are :class:`Positions`; ``log_intensity`` and ``settings``
    are left to define.
    """

    linear = True

    def encode(self, batch: Batch, before: Positions | None = None) -> Positions:
        return positions_of(batch, before, self.known_context(batch, before))

    def extend(
        self,
        history: Positions,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> Positions:
        return extended(history, time, active)


def positions_of(
    batch: Batch, before: Positions | None = None, context: BatchContext | None = None
) -> Positions:
    """All positions of a batch; after the last real position of ``before``, where it is given.
    ``context`` is what the rate depends on besides.

    >>> from fourpoint.events import Sequence
    >>> h = positions_of(Sequence([1.0, 2.0], start=0.0, stop=3.0).batch())
    >>> h.times.tolist(), h.lengths.tolist(), counts(h).tolist()
    ([[0.0, 1.0, 2.0]], [2], [[0, 1, 2]])
    """
    if before is None:
        first = batch.start
        start = batch.start
        earlier = torch.zeros_like(batch.lengths)
    else:
        first = last_time(before)
        start = before.start
        earlier = before.earlier + before.lengths
    times = torch.cat([first[:, None], batch.times], 1)
    return Positions(times, start, batch.lengths, earlier, context=context)


def extended(
    history: Positions, time: Float[Tensor, " B"], active: Bool[Tensor, " B"] | None = None
) -> Positions:
    """The one position after an event at ``time``, or the last one of ``history`` again where not
    ``active``.
    """
    happened = torch.ones_like(history.start, dtype=torch.bool) if active is None else active
    at = torch.where(happened, time, last_time(history))
    return Positions(
        at[:, None],
        history.start,
        torch.zeros_like(history.lengths),
        history.earlier + history.lengths + happened,
        context=history.context,
    )


def counts(history: Positions, seen: Int[Tensor, "B G"] | None = None) -> Int[Tensor, "B G"]:
    """The number of events up to position ``seen``, or up to every position."""
    if seen is None:
        here = torch.arange(history.times.shape[1], device=history.times.device)[None]
    else:
        here = seen
    return history.earlier[:, None] + here


def last_time(history: Positions) -> Float[Tensor, " B"]:
    """When the last real position begins."""
    return history.times.gather(1, history.lengths[:, None])[:, 0]
