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
    dropped: (
        Int[Tensor, "B N K"] | None
    )  # the first that no longer does; None: all later ones see it

    def mask(self, seen: Int[Tensor, "B G"]) -> Bool[Tensor, "B G N *J"]:
        """True for the events that a group sees from position ``seen``."""
        there = self.arrival[:, None] <= seen[..., None]
        if self.dropped is None:
            return there
        return there[..., None] & (seen[..., None, None] < self.dropped[:, None])


def past_of(
    times: Float[Tensor, "B N"], marks: Int[Tensor, "B N"], values: Float[Tensor, "B N K"]
) -> Past:
    """Events of a batch, each seen from the position after it."""
    arrival = torch.arange(1, times.shape[1] + 1, device=times.device).expand(times.shape)
    return Past(times[..., None], marks[..., None], values, arrival, None)


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
    if int((lengths + happened).max()) > past.times.shape[1]:
        wider = {name: _widen(getattr(past, name)) for name in ("times", "marks", "values")}
        n = past.times.shape[1] + 1
        past = replace(
            past, **wider, arrival=torch.arange(1, n + 1, device=time.device).expand(len(time), n)
        )
    here = (
        (torch.arange(past.times.shape[1], device=time.device) == lengths[:, None])
        & happened[:, None]
    )[..., None]
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
        return Past(self.times, self.marks, self.values, torch.zeros_like(dropped[..., 0]), dropped)

    def by_age(self) -> Memory:
        """Slots in order of arrival, empty ones last, events numbered from 0."""
        order = torch.where(self.active.valid, self.active.index, NEVER).argsort(1)
        valid = self.active.valid.gather(1, order)
        index = torch.where(valid, torch.arange(valid.shape[1], device=order.device)[:, None], -1)
        active = Active(
            index, self.active.total.gather(1, order), self.active.count.gather(1, order)
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
        more = slots - self.times.shape[1]
        times, marks, values = (
            torch.cat([x, x.new_zeros(len(x), more, x.shape[2])], 1)
            for x in (self.times, self.marks, self.values)
        )
        extra = empty(len(self.times), more, self.times.shape[2], self.active.total)
        both = [
            torch.cat(pair, 1) for pair in zip(self.active.tensors(), extra.tensors(), strict=True)
        ]
        return Memory(times, marks, values, Active(*both))

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
        taken = (
            torch.arange(self.times.shape[1], device=slot.device)[:, None] == slot[:, None]
        ) & happened[:, None, None]
        return Memory(
            torch.where(taken, time[:, None, None], self.times),
            torch.where(taken, mark[:, None, None], self.marks),
            torch.where(taken, value[:, None], self.values),
            active,
        )


def joined(memory: Memory, new: Past) -> Past:
    """What was remembered, in slots by age, and then a batch's events: the past of the batch's
    positions.
    """
    K = memory.times.shape[2]
    pairs = ((memory.times, new.times), (memory.marks, new.marks), (memory.values, new.values))
    times, marks, values = (torch.cat([old, fresh.expand(-1, -1, K)], 1) for old, fresh in pairs)
    return Past(times, marks, values, torch.cat([memory.past().arrival, new.arrival], 1), None)


def memory_of(past: Past, active: Active) -> Memory:
    """The slots of an active set whose index numbers the events of ``past``."""
    index = active.index.clamp(min=0)
    K = index.shape[2]
    times, marks, values = (
        x.expand(-1, -1, K).gather(1, index) for x in (past.times, past.marks, past.values)
    )
    return Memory(times, marks, values, active)


def blank(times: Float[Tensor, "B N"], heads: int, like: Tensor) -> Memory:
    """A memory without a slot."""
    shape = (len(times), 0, heads)
    zeros = torch.zeros(shape, dtype=times.dtype, device=times.device)
    return Memory(zeros, zeros.long(), zeros.to(like), empty(*shape, like))


def _widen(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_zeros(x.shape[0], 1, *x.shape[2:])], 1)
