"""What is known of the data that a model was fitted to, and when the observation of a feed began.

The silence before the first event is evidence, so that a wrong begin raises alarms. With the
training window [a, b] and the first event of the feed at f, the observation is taken to begin

    at a    where f lies in the window: the feed is data like that of training,
    at b    where f comes after it: the feed goes on where training ended; or where the log ended
            from which the window was cut, of which the end was kept for early stopping, if f comes
            after that,

and if more than ten events of one entity were expected from there to f, the answer is refused: the
feed began later, and only the user knows when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fourpoint.events import UserError
from fourpoint.events.dates import shown
from fourpoint.log_format import LogFormat
from fourpoint.streaming.feed.events import Event
from fourpoint.streaming.feed.lines import LONGEST, Line, Lines
from fourpoint.streaming.feed.reading import EventReader
from fourpoint.streaming.feed.times import TimeReader

LARGEST = 1e300  # no window or count is as large
SILENT = 10.0  # events of one entity that may be expected before the first event of a feed


@dataclass(frozen=True)
class Trained:
    """The training window, the number of events and sequences in it, the unit of time and the
    columns of the log; ``until`` is the end of the log from which the window was cut.

    What was not saved is None.

    >>> trained = Trained(start=0.0, stop=10.0, events=600, sequences=20)
    >>> trained.rate(pooled=False), trained.rate(pooled=True)
    (3.0, 60.0)
    """

    start: float | None = None
    stop: float | None = None
    events: int | None = None
    sequences: int | None = None
    unit: str = ""
    log: LogFormat | None = None
    until: float | None = None

    @staticmethod
    def from_about(about: Mapping[str, Any]) -> Trained:
        """What `fit` saved beside the model."""
        numbers = {
            name: _number(about.get(name))
            for name in ("start", "stop", "events", "sequences", "until")
        }
        counts = {
            name: None if numbers[name] is None else int(numbers[name] or 0)
            for name in ("events", "sequences")
        }
        log = about.get("log")
        return Trained(
            numbers["start"],
            numbers["stop"],
            counts["events"],
            counts["sequences"],
            str(about.get("unit") or ""),
            None if log is None else LogFormat.from_dict(log),
            numbers["until"],
        )

    @property
    def ended(self) -> float | None:
        """When the data that were read for training ended; None if unknown."""
        if self.stop is None or self.until is None:
            return self.stop
        return max(self.stop, self.until)

    def shown(self, time: float) -> str:
        """A time as a date where the log has dates."""
        return shown(TimeReader(self.log, self.unit).dates(), time)

    def rate(self, *, pooled: bool) -> float | None:
        """Events per unit of time in one sequence, or of all together; None if unknown."""
        if self.start is None or self.stop is None or not self.events or not self.sequences:
            return None
        total = self.events / (self.stop - self.start) if self.stop > self.start else 0.0
        return (total if pooled else total / self.sequences) or None


def inferred_start(
    trained: Trained,
    first: float | None,
    rate: float,
    tell: Callable[[str], None],
    *,
    at_first: bool = False,
) -> float:
    """When the observation began, by the rule above; with ``at_first`` at the first event.

    ``first`` is the time of the first event, None if there is none; ``rate`` is that of one entity.
    """
    if at_first and first is not None:
        tell(f"the observation begins at {trained.shown(first)}, with the first event")
        return first
    begin = trained.start or 0.0
    why = "as in training"
    if first is not None and trained.stop is not None and first > trained.stop:
        begin = trained.stop
        why = "where the training window ended"
        if trained.ended is not None and first > trained.ended > trained.stop:
            begin = trained.ended
            why = "where the log ended that the model was fitted to"
    silent = 0.0 if first is None else (first - begin) * rate
    if silent > SILENT:
        raise UserError(
            (
                "--start TIME, since the observation cannot have begun at "
                f"{trained.shown(begin)}, {why}"
            ),
            (
                f"a first event at {trained.shown(first or 0.0)}, before which {silent:,.3g} "
                "events of one entity would have been missing"
            ),
            (
                "Type when the observation of this feed began, or --start first for the time of "
                "its first event."
            ),
        )
    tell(f"the observation begins at {trained.shown(begin)}, {why}; --start sets another time")
    return begin


def first_time(lines: Lines, reader: EventReader, told: Sequence[int]) -> float | None:
    """The time of the first event, which is not taken; None where the input ends, or a signal
    comes, before there is one.
    """
    tried = 0
    while not told:
        ahead = lines.ahead()
        for number, content in enumerate(ahead[tried:], start=tried + 1):
            event = reader(Line(number, content if len(content) <= LONGEST else None, len(content)))
            if isinstance(event, Event):
                return event.time
        tried = max(tried, len(ahead))
        if lines.ended or sum(map(len, ahead)) > LONGEST:
            return None
        lines.wait(0.1)
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        return None
    return float(value)
