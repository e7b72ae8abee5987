"""One line of a feed as an event, and events scored by one stream or by one stream per entity.

    {"time": 12.5, "mark": "fire", "station": "north"}

``time`` is a number in the model's unit, ``mark`` one of the model's names, and with ``by="station"`` the field of that
name says whose event it is. Other fields are not looked at. All that can be wrong with a line is an error with three
clauses which the feed tells and goes on from; it is returned, not raised, since a feed may hold many such lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fourpoint.events import MarkSpace, UserError
from fourpoint.feeds.lines import LONGEST, Line

if TYPE_CHECKING:
    from fourpoint.streaming.monitoring import Alarm

ALARMS = 1e-3  # false alarms per 1,000 events of a stream


class Event(NamedTuple):
    """What a line says: when, the number of its mark, and whose event it is (None where there is one stream)."""

    time: float
    mark: int
    entity: str | None


def read_event(line: Line, marks: Mapping[str, int], by: str | None) -> Event | UserError | None:
    """The event of a line, the error in it, or None for a blank line. ``marks`` are the model's names (none: no marks).

    >>> read_event(Line(1, b'{"time": 2, "mark": "fire"}', 27), {"fire": 0, "medical": 1}, None)
    Event(time=2.0, mark=0, entity=None)
    >>> print(read_event(Line(1, b'{"time": "noon"}', 16), {}, None))
    expected "time" as a number; received 'noon'. Write it without quotes, in the model's unit.
    """
    if line.content is None:
        return UserError(f"a line of at most {LONGEST:,} bytes", f"{line.size:,} bytes", "Write one event per line.")
    if line.content.isspace() or not line.content:
        return None
    if line.rest:
        return UserError("nothing more in a line that has been scored", _shown(line.content), "Write each line at once.")
    try:
        found = json.loads(line.content.decode("utf-8-sig" if line.number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        where = f"byte 0x{line.content[error.start]:02x} at position {error.start}"
        return UserError("text in UTF-8", where, "Write the feed in UTF-8.")
    except (ValueError, RecursionError) as error:
        return UserError(_EXAMPLE, f"{_shown(line.content)} ({error})", "Write one JSON object per line.")
    if not isinstance(found, dict):
        return UserError(_EXAMPLE, _shown(line.content), "Write an object with a time, in braces.")
    try:
        return Event(_time(found), _mark(found, marks), None if by is None else _entity(found, by))
    except UserError as error:
        return error


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
        times, marks, entities = zip(*events, strict=True)
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


def _time(found: dict[str, Any]) -> float:
    if "time" not in found:
        raise UserError('a "time"', f"fields {_shown(', '.join(found))}" if found else "no field", "Give every event its time.")
    value = found["time"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError('"time" as a number', _shown(value), "Write it without quotes, in the model's unit.")
    try:
        time = float(value)
    except OverflowError:
        time = float("inf")
    if not isfinite(time):
        raise UserError('a finite "time"', str(time), "Repair or remove the event.")
    return time


def _mark(found: dict[str, Any], marks: Mapping[str, int]) -> int:
    """The number of the mark. A whole number stands for the name that is spelled so."""
    value = found.get("mark")
    if not marks:
        if value is not None:
            raise UserError("no mark, since the model has none", f"mark {_shown(value)}", 'Leave "mark" out, or fit a model with marks.')
        return 0
    known = marks.get(value if isinstance(value, str) else str(value)) if isinstance(value, str | int) else None
    if known is None or isinstance(value, bool):
        names = ", ".join(marks) if len(marks) <= 8 else f"{', '.join(list(marks)[:8])}, ... ({len(marks)} in all)"
        raise UserError(f'a "mark" among {names}', "none" if value is None else _shown(value), "Use the names the model was fitted with.")
    return known


def _entity(found: dict[str, Any], by: str) -> str:
    """The entity as text. A whole number and the text that spells it are one entity."""
    value = found.get(by)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (isinstance(value, str) and value)):
        received = "none" if value is None else _shown(value)
        raise UserError(f'"{by}" as a text or a whole number', received, "Say whose event it is, or leave --by out.")
    text = str(value)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f'"{by}" as text in Unicode', _shown(value), "Repair the half character in it.")
    return text


def _shown(value: Any) -> str:
    """A value in quotes, and no more of it than fits a message."""
    text = value[:4096].decode(errors="replace") if isinstance(value, bytes) else value
    text = repr(text)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text):,} characters)"


_EXAMPLE = 'one JSON object such as {"time": 12.5}'
