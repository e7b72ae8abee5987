"""Events of a feed, scored by one stream or by one stream per entity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fourpoint.events import MarkSpace, UserError

if TYPE_CHECKING:
    from fourpoint.streaming.monitoring import Alarm

ALARMS = 1e-3  # false alarms per 1,000 events of a stream


class Event(NamedTuple):
    """What a line says: when, the number of its mark, and whose event it is (None where there is one stream).

    ``at`` is the time on the clock of the whole feed. It differs from ``time`` where windows of the calendar begin at 0.
    """

    time: float
    mark: int
    entity: str | None
    at: float


class Scorer(Protocol):
    """A stream, or many: what the loop of a feed asks of them."""

    batch: int  # lines to score at once, at most
    marks: dict[str, int]

    def observe(self, events: list[Event]) -> list[dict[str, Any] | UserError]:
        """Per event, in order: the fields of its line, or why it was refused, which changes nothing."""

    def state(self) -> bytes:
        """All that was learned of the past."""


class Single:
    """One stream for all events."""

    batch = 1

    def __init__(self, model: Any, keep: int | None, start: float, state: bytes | None) -> None:
        from fourpoint.streaming.stream import Stream

        self._space: MarkSpace = model.marks
        self.marks = {name: i for i, name in enumerate(self._space.names)}
        self._stream = Stream(model, start=start, keep=keep, alarms=ALARMS) if state is None else Stream.restore(model, state)
        self.state = self._stream.state

    def observe(self, events: list[Event]) -> list[dict[str, Any] | UserError]:
        found: list[dict[str, Any] | UserError] = []
        for event in events:
            try:
                found.append(self._stream.observe(event.time, event.mark).to_dict(self._space))
            except UserError as error:
                found.append(error)
        return found


class Entities:
    """One stream per entity, stepped together; what is attended to is not told."""

    batch = 4096

    def __init__(self, model: Any, keep: int | None, start: float, state: bytes | None) -> None:
        from fourpoint.streaming.bank import StreamBank

        if keep is not None and not hasattr(model, "keeping"):
            raise UserError("a DAPP to bound the memory of", type(model).__name__, "Leave --keep out: this model has no attention.")
        followed = model if keep is None else model.keeping(keep)
        self._names: tuple[str | None, ...] = model.marks.names or (None,)
        self.marks = {name: i for i, name in enumerate(model.marks.names)}
        self._bank = StreamBank(followed, start=start, alarms=ALARMS) if state is None else StreamBank.restore(followed, state)
        self.state = self._bank.state

    def observe(self, events: list[Event]) -> list[dict[str, Any] | UserError]:
        """The bank takes all events or none: where it refuses them, the halves are tried until the culprits stand alone."""
        if not events:
            return []
        times, marks, entities, _ = zip(*events, strict=True)
        try:
            found = self._bank.observe(entities, np.array(times), np.array(marks))
        except UserError as error:
            half = len(events) // 2
            return [error] if not half else [*self.observe(events[:half]), *self.observe(events[half:])]
        numbers = zip(found.log_density.tolist(), found.gap.tolist(), found.rate.tolist(), found.alarms, strict=True)
        return [self._fields(event, *of_event) for event, of_event in zip(events, numbers, strict=True)]

    def _fields(self, event: Event, log_density: float, gap: float, rate: float, alarms: tuple[Alarm, ...]) -> dict[str, Any]:
        return {
            "time": event.time,
            "mark": self._names[event.mark],
            "entity": event.entity,
            "log_density": log_density,
            "gap": gap,
            "rate": rate,
            "alarms": [alarm.to_dict() for alarm in alarms],
        }
