"""Events of a feed, scored by one stream or by one stream per entity."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from fourpoint.events import Context, MarkSpace, UserError
from fourpoint.models.base import PointProcess
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.feed.encoding import Scores, as_json
from fourpoint.streaming.monitoring import Alarm
from fourpoint.streaming.store import EntityStore
from fourpoint.streaming.stream import Observations, Stream

ALARMS = 1e-3  # false alarms per 1,000 events, of all kinds
TOP = 3  # past events that are named per head
BUDGET = 2**29  # bytes of memory for entities by default
FEWEST = 1024  # entities that stay in memory at least
THREADS = 1  # handing a batch to several takes a quarter more of the processors' time


class Event(NamedTuple):
    """What a line says: when, the number of its mark, and whose event it is (None where there is
    one stream).

    ``at`` is the time on the clock of the whole feed. It differs from ``time`` where windows of the
    calendar begin at 0. ``features`` are those of a model with event features.
    """

    time: float
    mark: int
    entity: str | None
    at: float
    features: tuple[float, ...] = ()


class Columns(NamedTuple):
    """Events by columns: their times, the numbers of their marks, whose they are (None where
    there is one stream), and their features (None where the model has none).
    """

    times: list[float]
    marks: list[int]
    entities: list[str] | None
    features: list[tuple[float, ...]] | None = None

    @staticmethod
    def of(events: list[Event], *, many: bool) -> Columns:
        """Those of ``events``, which have entities where there are ``many``."""
        entities = [event.entity or "" for event in events] if many else None
        features = None
        if events and events[0].features:
            features = [event.features for event in events]
        return Columns(
            [event.time for event in events], [event.mark for event in events], entities, features
        )

    def events(self) -> list[Event]:
        """The events, of a feed with one clock."""
        whose: list[str] | list[None] = self.entities or [None] * len(self.times)
        return [
            Event(time, mark, entity, time)
            for time, mark, entity in zip(self.times, self.marks, whose, strict=True)
        ]


class Scorer(Protocol):
    """A stream, or many: what the loop of a feed asks of them."""

    batch: int  # lines to score at once, at most
    many: bool  # whether events have entities
    marks: dict[str, int]
    names: list[str]  # of the marks, as JSON

    @property
    def most_lines(self) -> int | None:
        """Lines that the next batch may have, so that none of them waits for long; None: any."""

    def observe(self, events: Columns) -> Scores:
        """What is to be said of events, in order. One that is refused changes nothing."""

    def state(self) -> bytes:
        """All that was learned of the past."""


class Single:
    """One stream for all events. With ``attended``, the past events with the largest weights are
    named, which takes its time.
    """

    batch = 4096
    many = False
    most_lines: int | None = None

    def __init__(
        self,
        model: PointProcess,
        keep: int | None,
        start: float,
        state: bytes | None,
        *,
        attended: bool = False,
        alarms: float | None = ALARMS,
        context: Context | None = None,
    ) -> None:
        self._space: MarkSpace = model.marks
        self.marks = {name: i for i, name in enumerate(self._space.names)}
        self.names = names_as_json(self._space)
        self._attended = attended
        top = TOP if attended else 0
        if keep is not None:
            _keeping(model, keep)
        if state is None:
            self._stream = Stream(
                model, start=start, keep=keep, top=top, alarms=alarms, context=context
            )
        else:
            self._stream = Stream.restore(model, state, context=context)
        self.state = self._stream.state

    def observe(self, events: Columns) -> Scores:
        if self._attended:
            return self._attending(events)
        times = np.array(events.times, dtype=np.float64)
        marks = np.array(events.marks, dtype=np.int64)
        found = self._stream.observe_many(times, marks, events.features)
        return _as_scores(found)

    def _attending(self, events: Columns) -> Scores:
        """The same event by event."""
        rows: list[dict[str, Any]] = []
        refused = dict[int, UserError]()
        for i, (time, mark) in enumerate(zip(events.times, events.marks, strict=True)):
            features = None if events.features is None else events.features[i]
            try:
                rows.append(self._stream.observe(time, mark, features).to_dict(self._space))
            except UserError as error:
                refused[i] = error
                rows.append(
                    {"log_density": None, "gap": None, "rate": None, "attended": [], "alarms": []}
                )
        density, gap, rate = (
            [_number(row[name]) for row in rows] for name in ("log_density", "gap", "rate")
        )
        attended = [row["attended"] for row in rows]
        return Scores(density, gap, rate, [row["alarms"] for row in rows], refused, attended)


class Entities:
    """One stream per entity, stepped together; what is attended to is not told.

    ``state`` is the head of a bank whose entities are in ``store``; None: a new one. Without a
    store, entities over the ``limit`` are in a temporary file. By default as many stay in memory as
    fit ``BUDGET``.
    """

    batch = 4096
    many = True

    def __init__(
        self,
        model: PointProcess,
        keep: int | None,
        start: float,
        state: bytes | None,
        store: EntityStore | None = None,
        limit: int | None = None,
        *,
        alarms: float | None = ALARMS,
        fleet: bool = True,
        context: Context | None = None,
    ) -> None:
        followed = model if keep is None else _keeping(model, keep)
        self.names = names_as_json(model.marks)
        self.marks = {name: i for i, name in enumerate(model.marks.names)}
        if store is not None and state is not None:
            self.bank = StreamBank.resume(followed, state, store, threads=THREADS, context=context)
        else:
            self.bank = StreamBank(
                followed,
                start=start,
                alarms=alarms,
                fleet=fleet,
                spill="" if store is None else None,
                store=store,
                threads=THREADS,
                context=context,
            )
        self.state = self.bank.head
        self.memory = self._bounded(limit)
        self.bank.catch_up()

    @property
    def most_lines(self) -> int | None:
        """As many as the bank may have with one slice of a look at the fleet."""
        return self.bank.most_events

    def _bounded(self, limit: int | None) -> str:
        """Bound the entities in memory, and say how much they take."""
        each = self.bank.bytes_per_entity
        size = f"about {each / 1000:.1f} kB of memory per entity"
        if not self.bank.fixed:
            if limit is not None:
                remedy = "Leave --limit out, or use a linear model."
                raise UserError(
                    "a model of constant memory for --limit", type(self.bank.model).__name__, remedy
                )
            return f"{size} at first, and more with every event: this model remembers all of them"
        most = max(FEWEST, BUDGET // each) if limit is None else limit
        self.bank.bound(most)
        return f"{size}; at most {most:,} entities stay in memory, the others on disk (--limit)"

    def observe(self, events: Columns) -> Scores:
        """The scores of events. The bank looks at all entities after a number of events that does
        not depend on batches.
        """
        parts = []
        done = 0
        count = len(events.times)
        entities = events.entities or [""] * count
        times = np.array(events.times, dtype=np.float64)
        marks = np.array(events.marks, dtype=np.int64)
        while done < count:
            some = slice(done, min(count, done + (self.bank.until_look or count)))
            features = None if events.features is None else events.features[some]
            parts.append(self.bank.observe_many(entities[some], times[some], marks[some], features))
            done = some.stop
        if not parts:
            return Scores([], [], [], [], {})
        return _as_scores(Observations.joined(parts))


def _keeping(model: PointProcess, keep: int) -> PointProcess:
    """The model with ``keep`` past events; an error names the option of the command."""
    try:
        return model.keeping(keep)
    except UserError as error:
        remedy = error.remedy.replace("Leave keep out", "Leave --keep out")
        raise UserError(error.expected, error.received, remedy) from None


def _as_scores(found: Observations) -> Scores:
    """What a stream or a bank has found, by columns."""
    columns = (found.log_density.tolist(), found.gap.tolist(), found.rate.tolist())
    return Scores(*columns, _as_dicts(found.alarms), found.refused)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _as_dicts(alarms: list[tuple[Alarm, ...]]) -> list[list[dict[str, Any]]]:
    """The alarms of each event as JSON can hold them."""
    if not any(alarms):
        return [[]] * len(alarms)
    return [[alarm.to_dict() for alarm in raised] for raised in alarms]


def names_as_json(space: MarkSpace) -> list[str]:
    """The marks' names as JSON, null for a model without marks."""
    return [as_json(name) for name in space.names] or ["null"]
