"""What a dense attention looks at: the past events, and from which position to which each of them
is seen.

A :class:`Past` serves every position of a batch at once. Where memory is bounded
(`ops.selection`), each head has let go of other events, which is a mask over the same arrays; and
a stream holds only a :class:`Memory`, the slots of the active sets, which is a past of one
position.

Axes: B sequences, N events, K heads, E slots; H is 1 where all heads share the events, else K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fourpoint.ops.selection import NEVER, Active, empty

FIRST_SLOTS = 16  # of a memory that begins empty; it grows up to what is to be kept


@dataclass(frozen=True)
class Past:
    """Events in the user's time, with their values; ``arrival`` and ``dropped`` are positions."""

    times: Float[Tensor, "B N H"]
    marks: Int[Tensor, "B N H"]
    values: Float[Tensor, "B N K"]
    arrival: Int[Tensor, "B N"]  # the first position that sees the event
    # the first position that no longer sees it; None: all later ones do
    dropped: Int[Tensor, "B N K"] | None

    def mask(self, seen: Int[Tensor, "B G"]) -> Bool[Tensor, "B G N *J"]:
        """True for the events that a group sees from position ``seen``."""
        position = seen[..., None]
        there = self.arrival[:, None] <= position
        if self.dropped is None:
            return there
        not_yet_dropped = position[..., None] < self.dropped[:, None]
        return there[..., None] & not_yet_dropped


def past_of(
    times: Float[Tensor, "B N"],
    marks: Int[Tensor, "B N"],
    values: Float[Tensor, "B N K"],
) -> Past:
    """Events of a batch, each seen from the position after it."""
    position = torch.arange(1, times.shape[1] + 1, device=times.device)
    return Past(
        times=times[..., None],
        marks=marks[..., None],
        values=values,
        arrival=position.expand(times.shape),
        dropped=None,
    )


def appended(
    past: Past,
    lengths: Int[Tensor, " B"],
    time: Float[Tensor, " B"],
    mark: Int[Tensor, " B"],
    value: Float[Tensor, "B K"],
    happened: Tensor,
) -> Past:
    """One event more after the first ``lengths`` of each row, where it ``happened``; wider by one
    slot where needed.
    """
    N = past.times.shape[1]
    if int((lengths + happened).max()) > N:
        N += 1
        position = torch.arange(1, N + 1, device=time.device)
        past = replace(
            past,
            times=_widen(past.times),
            marks=_widen(past.marks),
            values=_widen(past.values),
            arrival=position.expand(len(time), N),
        )
    slots = torch.arange(N, device=time.device)
    here = (slots == lengths[:, None]) & happened[:, None]
    here = here[..., None]
    return replace(
        past,
        times=torch.where(here, time[:, None, None], past.times),
        marks=torch.where(here, mark[:, None, None], past.marks),
        values=torch.where(here, value[:, None], past.values),
    )


@dataclass(frozen=True)
class Memory:
    """The active sets at the last position: events, values, and how much attention each has
    drawn.
    """

    times: Float[Tensor, "B E K"]
    marks: Int[Tensor, "B E K"]
    values: Float[Tensor, "B E K"]
    active: Active

    def past(self) -> Past:
        """The same as a past of one position."""
        dropped = torch.where(self.active.valid, NEVER, 0)
        return Past(
            times=self.times,
            marks=self.marks,
            values=self.values,
            arrival=torch.zeros_like(dropped[..., 0]),
            dropped=dropped,
        )

    def by_age(self) -> Memory:
        """Slots in order of arrival, empty ones last, events numbered from 0."""
        order = torch.where(self.active.valid, self.active.index, NEVER).argsort(1)
        valid = self.active.valid.gather(1, order)
        number = torch.arange(valid.shape[1], device=order.device)
        active = Active(
            torch.where(valid, number[:, None], -1),
            self.active.total.gather(1, order),
            self.active.count.gather(1, order),
        )
        return Memory(
            self.times.gather(1, order),
            self.marks.gather(1, order),
            self.values.gather(1, order),
            active,
        )

    def widened(self, keep: int) -> Memory:
        """With room for another event: twice the slots, at most ``keep``, where some row has none
        left.
        """
        slots = self.times.shape[1]
        if slots >= keep or not bool(self.active.valid.all(1).any()):
            return self
        return self._resized(min(keep, max(FIRST_SLOTS, 2 * slots)))

    def _resized(self, slots: int) -> Memory:
        B, E, K = self.times.shape
        more = slots - E
        extra = empty(B, more, K, self.active.total)
        both = []
        for pair in zip(self.active.tensors(), extra.tensors(), strict=True):
            both.append(torch.cat(pair, 1))
        return Memory(
            times=_widen(self.times, more),
            marks=_widen(self.marks, more),
            values=_widen(self.values, more),
            active=Active(*both),
        )

    def admitted(
        self,
        active: Active,
        slot: Int[Tensor, "B K"],
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        value: Float[Tensor, "B K"],
        happened: Bool[Tensor, " B"],
    ) -> Memory:
        """The event written into the slot it took."""
        slots = torch.arange(self.times.shape[1], device=slot.device)[:, None]
        taken = (slots == slot[:, None]) & happened[:, None, None]
        return Memory(
            times=torch.where(taken, time[:, None, None], self.times),
            marks=torch.where(taken, mark[:, None, None], self.marks),
            values=torch.where(taken, value[:, None], self.values),
            active=active,
        )


def joined(memory: Memory, new: Past) -> Past:
    """What was remembered, in slots by age, and then a batch's events: the past of the batch's
    positions.
    """
    K = memory.times.shape[2]
    old = memory.past()
    return Past(
        times=torch.cat([old.times, new.times.expand(-1, -1, K)], 1),
        marks=torch.cat([old.marks, new.marks.expand(-1, -1, K)], 1),
        values=torch.cat([old.values, new.values.expand(-1, -1, K)], 1),
        arrival=torch.cat([old.arrival, new.arrival], 1),
        dropped=None,
    )


def memory_of(past: Past, active: Active) -> Memory:
    """The slots of an active set whose index numbers the events of ``past``."""
    index = active.index.clamp(min=0)
    K = index.shape[2]
    return Memory(
        times=past.times.expand(-1, -1, K).gather(1, index),
        marks=past.marks.expand(-1, -1, K).gather(1, index),
        values=past.values.expand(-1, -1, K).gather(1, index),
        active=active,
    )


def blank(times: Float[Tensor, "B N"], heads: int, like: Tensor) -> Memory:
    """A memory without a slot."""
    shape = (len(times), 0, heads)
    zeros = torch.zeros(shape, dtype=times.dtype, device=times.device)
    return Memory(
        times=zeros,
        marks=zeros.long(),
        values=zeros.to(like),
        active=empty(*shape, like),
    )


def _widen(x: Tensor, slots: int = 1) -> Tensor:
    """With zeros in so many slots more."""
    extra = x.new_zeros(x.shape[0], slots, *x.shape[2:])
    return torch.cat([x, extra], 1)
