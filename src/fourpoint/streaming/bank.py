"""Many streams at once, one per entity (a customer, a machine, a station), stepped as one batch.

Every entity has a window of its own that opens at the bank's ``start``, and is a
:class:`~fourpoint.streaming.stream.Stream` in all but attention: each event is scored from its
entity's past alone, before it is absorbed. Entities are created on first sight. With ``limit``
those seen least recently are written to a file in ``spill``, and come back as they were when they
are seen again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.events import Context, UserError
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.base import PointProcess
from fourpoint.models.following import LARGEST, Events, Numbers, Scored, Stop
from fourpoint.ops.quadrature import Unconverged
from fourpoint.streaming.entity_table import Changes, EntityTable
from fourpoint.streaming.model_queries import stream_context
from fourpoint.streaming.monitor_table import MonitorTable
from fourpoint.streaming.monitoring import Alarm, Monitor
from fourpoint.streaming.rows import memories
from fourpoint.streaming.state import (
    FAULTS,
    Arrays,
    damaged,
    fingerprint,
    number,
    pack,
    unpack,
    whole,
)
from fourpoint.streaming.store import EntityStore, Row, Store, pack_entity
from fourpoint.streaming.stream import (
    Observations,
    finite,
    known_features,
    known_mark,
    restored_monitor,
    unknown_feature,
)
from fourpoint.streaming.watching import (
    FleetLook,
    FleetWatch,
    TypeWatch,
    families,
    shares_of,
    type_watch,
)

FEWEST_LOOK = 64  # events between two looks at a fleet, or as many as it has entities
SLICE = 1024  # entities that one slice of a look integrates
SLICE_EVENTS = 128  # events between two slices of a look
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class BankObservation:
    """Per event, in the order given: what :class:`~fourpoint.streaming.stream.Observation` says of
    one.
    """

    log_density: Floats
    gap: Floats
    rate: Floats
    alarms: list[tuple[Alarm, ...]]


class TooEarly(UserError):
    """A time before the last one of its entity."""


class _Order(NamedTuple):
    """Events sorted by entity, those of each in the order given."""

    places: Rows  # of the events, sorted
    first: NDArray[np.bool_]  # whether each of the sorted events is the first of its entity
    firsts: Rows  # the places of those
    error: UserError | None  # of an event before the last one of its entity; None: there is none


@dataclass
class _Block:
    """Events of one call of :meth:`StreamBank.observe_many`, and what became of them."""

    rows: Rows
    events: Events
    found: Scored
    alarms: list[tuple[Alarm, ...]]
    refused: dict[int, UserError] = field(default_factory=dict)

    def add(self, places: Rows, found: Scored, alarms: list[tuple[Alarm, ...]]) -> None:
        """The scores and alarms of the events at ``places``."""
        if len(places) == len(self.rows):
            self.found = found
            self.alarms = alarms
            return
        for own, values in zip(self.found, found, strict=True):
            own[places] = values
        for place, raised in zip(places.tolist(), alarms, strict=True):
            self.alarms[place] = raised


class StreamBank:
    """Streams of many entities, scored by one fitted model. The model must not be changed
    meanwhile.

    Args:
        model: any model. A linear DAPP is stepped in its own precision, with integrals to 1e-6
            absolute and 1e-6 relative (4e-6 in float32); others by their own methods in float64.
        start: the start of all windows, in the user's time unit.
        limit: the number of entities that stay in memory (at least those of one call); None for
            all. It requires ``spill`` and a model of constant memory.
        spill: a folder for the other entities of this bank alone; "" for a temporary file.
        alarms: largest number of false alarms per 1,000 events of all entities together, on average
            and of all kinds: of entities, of types and of the fleet, an equal share each; None: no
            monitoring.
        fleet: whether entities share one time axis and remain present, so that they can be
            monitored together. They are evaluated after every 64 events, or after as many events as
            there are entities if that is more, which also detects silences of entities. An
            evaluation is made in slices of 1,024 entities, one every 128 events, so that no call
            has to integrate all of them.
        threads: how many share the work of a call.
        store: instead of ``spill``, a store that is written by :meth:`changes`; entities in it
            belong to the bank.
        context: what is known besides events, as of :class:`~fourpoint.streaming.stream.Stream`;
            it holds for all entities.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> bank = StreamBank(Hawkes(baseline=1.0, branching=0.5, decay=2.0))
    >>> found = bank.observe(["a", "b", "a"], [0.5, 0.7, 1.0])
    >>> found.gap.round(4).tolist(), len(bank)  # of a: .5 and then .5 + .5 (1 - exp(-1))
    ([0.5, 0.7, 0.8161], 2)
    """

    def __init__(
        self,
        model: PointProcess,
        *,
        start: float = 0.0,
        limit: int | None = None,
        spill: Path | str | None = None,
        alarms: float | None = None,
        fleet: bool = False,
        threads: int = 2,
        store: EntityStore | None = None,
        context: Context | None = None,
    ) -> None:
        if limit is not None and (limit < 1 or (spill is None and store is None)):
            received = f"limit={limit}, spill={spill}"
            raise UserError(
                "a limit of at least 1 and a folder to spill to", received, "Pass both, or neither."
            )
        self.model = model
        self.limit = limit
        self.alarms = alarms
        self.threads = threads
        self.context = stream_context(model, context)
        self.fleet = fleet and alarms is not None
        self._share = 1 / families(model.marks.count, fleet=self.fleet)
        self._owner = fingerprint(model)
        self._held = store is not None
        self._store: EntityStore | None = store if spill is None else _spill(spill)
        self._names = {name: i for i, name in enumerate(model.marks.names)}
        self._begin(start)
        if limit is not None and not self._memories.fixed:
            raise UserError(
                "a model of constant memory to spill",
                type(model).__name__,
                "Leave limit out, or use a linear model.",
            )

    def reset(self, start: float = 0.0) -> None:
        """Forget all entities, also those on disk, and begin anew at ``start``."""
        begin = finite(start)
        if self._store is not None:
            self._store.clear()
        self._begin(begin)

    def _begin(self, start: float) -> None:
        self.start = finite(start)
        with eval_mode(self.model):
            self._memories = memories(self.model, self.start, self.threads, self.context)
        marks = self.model.marks.count
        monitors = MonitorTable(self.alarms, self._share)
        self.table = EntityTable(
            self._memories,
            self.start,
            self.limit,
            self._store,
            held=self._held,
            marks=marks,
            monitors=monitors,
        )
        self._types: TypeWatch | None = None
        self._fleet: FleetWatch | None = None
        if self.alarms is not None:
            level = Monitor(self.alarms, self._share).level
            self._types = type_watch(self.model.marks, level)
            self._fleet = FleetWatch(level) if self.fleet else None
        self._since_look = 0  # events since the last look at the fleet began
        self._latest = self.start  # the latest time of any event
        self._look: FleetLook | None = None

    @property
    def until_look(self) -> int | None:
        """Events until the next slice of a look at the fleet, in the call that has the last of
        them; None if it is not watched.
        """
        if self._fleet is None:
            return None
        if self._look is not None:
            return max(1, self._look.done * SLICE_EVENTS - self._since_look)
        return max(1, max(FEWEST_LOOK, len(self.table)) - self._since_look)

    @property
    def most_events(self) -> int | None:
        """Events that the next call may have so that it integrates at most about one slice of the
        fleet; None: any number, since the fleet is small or not watched.
        """
        return self.until_look if len(self.table) > SLICE else None

    def __len__(self) -> int:
        """Entities seen so far."""
        return len(self.table)

    def __contains__(self, entity: str) -> bool:
        return entity in self.table

    @property
    def entities(self) -> list[str]:
        """Their names; those in memory first."""
        return [*self.table.row, *self.table.on_disk]

    @property
    def bytes_per_entity(self) -> int:
        """Memory that an entity takes, about."""
        return self.table.bytes_per_entity

    @property
    def fixed(self) -> bool:
        """Whether an entity takes the same memory for ever, so that there may be a limit."""
        return self._memories.fixed

    def observe(
        self,
        entities: Sequence[str],
        times: ArrayLike,
        marks: Sequence[int | str] | NDArray[Any] | None = None,
        features: ArrayLike | None = None,
    ) -> BankObservation:
        """Score events and remember them; several of one entity are taken in the order given.

        Arguments are of one length: whose events, when, of which mark (None where the model has
        one), and their features (N, F) where the model has event features. Raises
        :class:`UserError` where a time of an entity is before its last one or not finite, for an
        unknown mark, while the exposure is 0, and where a rate explodes; then nothing at all has
        changed.
        """
        events = self._checked(entities, times, marks, features)
        when, kinds, _ = events
        self.catch_up()
        rows, new = self.table.assign(entities)
        try:
            order = self._in_order(rows, when)
            if order.error is not None:
                raise order.error
            earlier = self._not_first(rows, order.firsts)
            newcomers = self._note_in_look(rows[order.firsts])
            if self._memories.follows:
                found = self._followed(rows, events, order.firsts)
            else:
                found = self._in_rounds(rows, events, _rounds(order))
        except BaseException:
            self.table.remove(new)
            raise
        self.table.changed[rows] = True
        self._add_newcomers(newcomers)
        return BankObservation(
            found.density, found.gap, found.rate, self._watched(rows, when, kinds, found, earlier)
        )

    def observe_many(
        self,
        entities: Sequence[str],
        times: ArrayLike,
        marks: Sequence[int | str] | NDArray[Any] | None = None,
        features: ArrayLike | None = None,
    ) -> Observations:
        """Score events as :meth:`observe` does, but refuse single events instead of all.

        An event that would be refused alone changes nothing, and is among ``refused`` of what is
        returned; the events after it are scored. No state is copied to be restored, which is
        faster. It runs in one thread.
        """
        self.catch_up()
        try:
            events = self._checked(entities, times, marks, features)
            if not self._memories.follows:
                found = self.observe(entities, *events)
                return Observations(found.log_density, found.gap, found.rate, found.alarms, {})
            rows, new = self.table.assign(entities)
        except UserError as error:
            return self._observe_halves(entities, times, marks, features, error)
        nothing = Scored.empty(len(rows), self._watched_types)
        block = _Block(rows, events, nothing, [()] * len(rows))
        done = 0
        while done < len(rows):
            done = self._observe_until_stopped(block, done)
        if block.refused and new:
            count = self.table.numbers["count"]
            self.table.remove([name for name in new if not count[self.table.row[name]]])
        scored = block.found
        return Observations(scored.density, scored.gap, scored.rate, block.alarms, block.refused)

    def _observe_halves(
        self,
        entities: Sequence[str],
        times: ArrayLike,
        marks: Sequence[int | str] | NDArray[Any] | None,
        features: ArrayLike | None,
        error: UserError,
    ) -> Observations:
        """Events that were refused together, each half by itself, until the culprits are alone."""
        when = np.asarray(times, dtype=np.float64).reshape(-1)
        count = len(entities)
        known = None if features is None else np.asarray(features)
        lengths = [count if one is None else len(one) for one in (marks, known)]
        if not count == len(when) == lengths[0] == lengths[1]:
            raise error
        if count == 1:
            density, gap, rate = np.full((3, 1), np.nan)
            return Observations(density, gap, rate, [()], {0: error})
        half = count // 2
        parts = [
            self.observe_many(
                entities[some],
                when[some],
                None if marks is None else marks[some],
                None if known is None else known[some],
            )
            for some in (slice(half), slice(half, count))
        ]
        return Observations.joined(parts)

    def _observe_until_stopped(self, block: _Block, begin: int) -> int:
        """Events from ``begin`` on, up to the next one whose rate cannot be scored; the place after
        it, or after the last.
        """
        rows = block.rows
        events = block.events
        places = np.arange(begin, len(rows))
        refused: dict[int, UserError] = {}
        order = self._in_order(rows[places], events.times[places])
        if order.error is not None:
            places, refused = self._acceptable(block, begin)
            order = self._in_order(rows[places], events.times[places])
        if len(places) < len(rows):
            rows = rows[places]
            events = events.part(places)
        earlier = self._not_first(rows, order.firsts)
        newcomers = self._note_in_look(rows[order.firsts])
        found = Scored.empty(len(rows), self._watched_types)
        stop = self._memories.follow(rows, self._numbers(), events, found, None)
        done = len(rows)
        if stop is not None:
            done = stop.done
        absorbed = slice(done)
        self.table.changed[rows[absorbed]] = True
        counts = self.table.numbers["count"]
        self._add_newcomers(newcomers[counts[newcomers] > 0])
        scored = Scored(*(values[absorbed] for values in found))
        alarms = self._watched(
            rows[absorbed],
            events.times[absorbed],
            events.marks[absorbed],
            scored,
            earlier[absorbed],
        )
        block.add(places[absorbed], scored, alarms)
        if stop is None:
            block.refused |= refused
            return len(block.rows)
        # The time of its entity stays as it was, so that the events after it are checked anew.
        last = int(places[done])
        for place, error in refused.items():
            if place < last:
                block.refused[place] = error
        block.refused[last] = self._refusal(stop, self.table.names[rows[done]])
        return last + 1

    def _acceptable(self, block: _Block, begin: int) -> tuple[Rows, dict[int, UserError]]:
        """The places from ``begin`` on of events that are not before the last of their entities,
        and the errors of the others.
        """
        at = self.table.numbers["at"]
        rows = block.rows.tolist()
        times = block.events.times.tolist()
        refused: dict[int, UserError] = {}
        latest: dict[int, float] = {}
        places = []
        for place in range(begin, len(rows)):
            row = rows[place]
            time = times[place]
            last = latest.get(row, float(at[row]))
            if time < last:
                refused[place] = _too_early(self.table.names[row], last, time)
            else:
                latest[row] = time
                places.append(place)
        return np.array(places, dtype=np.int64), refused

    def _add_newcomers(self, rows: Rows) -> None:
        """Entities whose first events came during a look, which do not belong to it."""
        if self._look is not None:
            self._look.add_newcomers(rows, self.table.names_of(rows))

    # ------------------------------------------------------------------ looks at the fleet

    def _look_if_due(self, when: Floats) -> tuple[Alarm, ...]:
        """Count events, and do the slices of a look that are due with the last of them: the alarms
        of a look that has ended.
        """
        self._latest = max(self._latest, float(when.max()))
        self._since_look += len(when)
        raised = self._go_on_with_look()
        if self._look is None and self._since_look >= max(FEWEST_LOOK, len(self.table)):
            self._since_look = 0
            self._begin_look()
            raised += self._go_on_with_look()
        return raised

    def _begin_look(self) -> None:
        """Fix the time of a look and the entities that belong to it."""
        if self._fleet is None:
            return
        count = len(self.table)
        slices = max(1, -(-count // SLICE))
        newest = count + (slices - 1) * SLICE_EVENTS  # entities that there can be at its end
        if self.limit is not None and newest > self.limit:
            self._fleet.forget()
            return
        events, ended = self._fleet.counted()
        self._look = FleetLook(
            self._latest,
            events,
            ended,
            slices,
            evictions=self.table.evictions,
        )

    def _go_on_with_look(self) -> tuple[Alarm, ...]:
        look = self._look
        if look is None:
            return ()
        due = min(look.slices, self._since_look // SLICE_EVENTS + 1)
        while look.done < due:
            look.done += 1
            self._integrate_in_look(look, SLICE)
        if look.done < look.slices:
            return ()
        self._integrate_in_look(look, None)
        self._look = None
        return self._end_look(look)

    def _integrate_in_look(self, look: FleetLook, most: int | None) -> None:
        """Integrate up to ``most`` further entities to the time of the look; None: all of them."""
        table = self.table
        rows = self._waiting(look)[:most]
        absent = len(table) - len(table.row)
        if absent and (most is None or len(rows) < most):
            # Entities that a restart has left on disk.
            if most is None:
                names = table.on_disk
            else:
                names = table.absent(most - len(rows))
            table.assign(names)
            rows = self._waiting(look)[:most]
        look.pending[rows] = self._pending(rows, look.time)

    def _waiting(self, look: FleetLook) -> Rows:
        """The rows of entities that the look has not reached yet."""
        counts = self.table.numbers["count"]
        look.grow(len(counts))
        members = (counts > 0) & ~look.passed
        return np.flatnonzero(members & np.isnan(look.pending))

    def _pending(self, rows: Rows, time: float) -> Floats:
        """The integrals of rows since their last events up to ``time``, infinite where there is
        none.
        """
        if not len(rows):
            return np.zeros(0)
        at = self.table.numbers["at"][rows]
        until = np.maximum(time, at)
        try:
            integral = self._memories.integral(rows, at, until)
        except Unconverged:
            if len(rows) == 1:
                return np.array([np.inf])
            each = [self._pending(row, time) for row in np.split(rows, len(rows))]
            return np.concatenate(each)
        pending = self.table.numbers["open"][rows] + integral
        return np.where(np.isfinite(pending), pending, np.inf)

    def _note_in_look(self, rows: Rows) -> Rows:
        """Note what a look needs of rows before they change: rows that have no event yet, which do
        not belong to it.
        """
        look = self._look
        if look is None:
            return rows[:0]
        if look.evictions != self.table.evictions:
            self._drop_look()
            return rows[:0]
        counts = self.table.numbers["count"]
        look.grow(len(counts))
        rows = rows[~look.passed[rows]]
        has_events = counts[rows] > 0
        members = rows[has_events]
        unknown = np.isnan(look.pending[members])
        missing = members[unknown]
        look.pending[missing] = self._pending(missing, look.time)
        self._note_silences(look, members)
        look.add_noted(members, self.table.names_of(members))
        return rows[~has_events]

    def _note_silences(self, look: FleetLook, rows: Rows) -> None:
        """Entities that were silent for too long at the time of the look."""
        known = np.isfinite(look.pending[rows])
        rows = rows[known]
        found = self.table.monitors.silences(rows, look.pending[rows], look.time)
        for place, alarms in found.items():
            row = int(rows[place])
            self.table.changed[row] = True
            look.silences += _of_entity(self.table.names[row], alarms)

    def _end_look(self, look: FleetLook) -> tuple[Alarm, ...]:
        """The alarms of the fleet, and of entities that were silent for too long."""
        if self._fleet is None:
            return ()
        members = np.flatnonzero(~np.isnan(look.pending))
        pending = look.pending[members]
        raised: tuple[Alarm, ...] = ()
        if np.isfinite(pending).all():
            # An exact sum, so that the order of rows, which a restart changes, has no effect.
            total = math.fsum(pending.tolist())
            raised = self._fleet.look(total, look.time, (look.events, look.ended))
            passed = look.passed[members]
            self._note_silences(look, members[~passed])
        else:
            # An entity whose rate cannot be integrated raises an error at its next event.
            self._fleet.forget()
        by_name = sorted(look.silences, key=lambda alarm: str(alarm.name))
        return (*raised, *by_name)

    def _drop_look(self) -> None:
        """Entities are out of reach: the fleet is not watched until all can be seen again."""
        self._look = None
        if self._fleet is not None:
            self._fleet.forget()

    def catch_up(self) -> None:
        """After a restart in the middle of a look: read all entities and integrate those that the
        look had reached. Called by :meth:`observe`; before that, it keeps the first event from
        waiting.
        """
        look = self._look
        if look is None or not look.restored:
            return
        if self.limit is not None and len(self.table) > self.limit:
            self._drop_look()
            return
        self.table.assign(self.table.on_disk)
        look.evictions = self.table.evictions
        row = self.table.row
        unknown = [name for name in (*look.noted, *look.newcomers) if name not in row]
        if unknown:
            raise damaged("a look at entities of this bank", f"entity {unknown[0][:40]!r}")
        look.grow(len(self.table.names))
        for name, pending in look.noted.items():
            look.pending[row[name]] = pending
            look.passed[row[name]] = True
        for name in look.newcomers:
            look.passed[row[name]] = True
        look.restored = False
        self._integrate_in_look(look, None)

    # ------------------------------------------------------------------ silence and rates

    def advance(self, time: float) -> list[tuple[str, Alarm]]:
        """No event of any entity until ``time``: the alarms that this silence raises, with the
        entities' names.

        Entities on disk are not looked at: their silence counts when they come back.
        """
        when = finite(time)
        self.catch_up()
        rows = np.array(list(self.table.row.values()), dtype=np.int64)
        if not len(rows):
            return []
        numbers = self.table.numbers
        at = numbers["at"][rows]
        latest = int(at.argmax())
        if when < at[latest]:
            raise _too_early(self.table.names[rows[latest]], float(at[latest]), when)
        times = np.full(len(rows), when)
        self._note_in_look(rows)
        _, integral = self._scored(rows, times)
        self._memories.move(rows, at, times)
        numbers["at"][rows] = when
        numbers["open"][rows] += integral
        numbers["likelihood"][rows] -= integral
        self.table.changed[rows] = True
        if self.alarms is None:
            return []
        found = self.table.monitors.silences(rows, numbers["open"][rows], when)
        return self._by_entity(rows, found)

    def silences(self, time: float) -> list[tuple[str, Alarm]]:
        """The alarms of silences of entities in memory that are too long at ``time``, if nothing
        has happened until then; unlike :meth:`advance` it changes nothing.
        """
        rows = np.array(list(self.table.row.values()), dtype=np.int64)
        earlier = self.table.numbers["at"][rows] <= finite(time)
        rows = rows[earlier]
        gaps = self._pending(rows, time)
        known = np.isfinite(gaps)
        rows = rows[known]
        found = self.table.monitors.open_silences(rows, gaps[known], time)
        return self._by_entity(rows, found)

    def _by_entity(
        self, rows: Rows, found: dict[int, tuple[Alarm, ...]]
    ) -> list[tuple[str, Alarm]]:
        """The alarms of ``rows`` by place, with the names of their entities."""
        named = []
        for place, alarms in found.items():
            name = self.table.names[rows[place]]
            for alarm in _of_entity(name, alarms):
                named.append((name, alarm))
        return named

    def intensity(self, entity: str, time: float) -> Floats:
        """lambda per mark of one entity at ``time``, as if nothing more happened until then; (M,).
        A new one has no past.
        """
        when = finite(time)
        rows, new = self.table.assign([entity])
        try:
            at = self.table.numbers["at"][rows]
            if when < at[0]:
                raise _too_early(entity, float(at[0]), when)
            return self.rates(rows, np.array([when]))[0]
        finally:
            self.table.remove(new)

    def rates(self, rows: Rows, times: Floats) -> Floats:
        """lambda per mark of entities in memory, given by their rows in the table, each at its
        time, which is not before its last event; (n, M).
        """
        at = self.table.numbers["at"][rows]
        logs = self._memories.logs(rows, at, times)
        return np.asarray(np.exp(logs))

    def surprise(self, rows: Rows, time: float | None = None) -> Floats:
        """How close each of the entities in ``rows`` is to an alarm: the largest of its watches'
        statistics over its threshold, so that 1 raises one.

        With ``time`` the gap that is open until then counts too. 0 where nothing is watched.
        """
        monitors = self.table.monitors
        limits = monitors.limits
        if limits is None:
            return np.zeros(len(rows))
        burst = monitors.sums[rows, 0, 0]
        silence = monitors.sums[rows, 1, 0].copy()
        open_gap = np.zeros(len(rows))
        if time is not None:
            pending = self._pending(rows, time)
            open_gap = np.where(np.isfinite(pending), pending, 0.0)
            silence += open_gap / 2
        shares = [
            burst / limits.burst,
            silence / limits.silence,
            open_gap / limits.gap,
        ]
        return np.maximum.reduce(shares)

    def log_likelihood(self, entity: str) -> float:
        """The running total of one entity, silences advanced over included."""
        return float(self.table.number("likelihood", entity))

    def count(self, entity: str) -> int:
        """The events of one entity."""
        return int(self.table.number("count", entity))

    # ------------------------------------------------------------------ state

    def state(self) -> bytes:
        """The whole bank as bytes, entities on disk included."""
        table = self.table
        rows = list(table.row.values())
        names = list(table.row)
        parts = [table.take(np.array(rows, dtype=np.int64))]
        monitors = [table.monitors[row] for row in rows]
        for name, (arrays, monitor) in table.read(table.on_disk).items():
            names.append(name)
            parts.append(arrays)
            monitors.append(monitor)
        stacked = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        numbers: list[dict[str, Any] | None] = []
        gaps: list[Floats] = [np.zeros(0)]
        sizes = []
        for monitor in monitors:
            own = None
            size = 0
            if monitor is not None:
                own, own_gaps = monitor.state()
                gaps.append(own_gaps)
                size = len(own_gaps)
            numbers.append(own)
            sizes.append(size)
        stacked["monitors"] = np.concatenate(gaps)
        header = {
            **self._settings(),
            "entities": names,
            "monitors": numbers,
            "sizes": sizes,
        }
        return pack("bank", self._owner, header, stacked | self._watch_arrays())

    @staticmethod
    def restore(
        model: PointProcess,
        state: bytes,
        *,
        limit: int | None = None,
        spill: Path | str | None = None,
        threads: int = 2,
        context: Context | None = None,
    ) -> StreamBank:
        """The bank whose :meth:`state` this is; ``limit``, ``spill`` and ``context`` are given
        anew. Raises as `Stream.restore` does.
        """
        header, arrays = unpack("bank", fingerprint(model), state)
        start, alarms, fleet = _settings_of(header)
        names = _entity_names(header)
        bank = StreamBank(
            model,
            start=start,
            limit=limit,
            spill=spill,
            alarms=alarms,
            fleet=fleet,
            threads=threads,
            context=context,
        )
        bank.load_watches(header, arrays)
        monitors = _monitors(header, arrays.pop("monitors", np.zeros(0)), len(names))
        bank.table.check(arrays, len(names))
        rows = bank.table.assign(names)[0]
        try:
            bank.table.put(rows, arrays, monitors)
        except FAULTS as error:
            raise damaged(
                "the memories of this model", f"others ({type(error).__name__})"
            ) from None
        bank.table.changed[rows] = True
        bank.table.make_room(0, own=False)
        return bank

    def head(self) -> bytes:
        """All of the bank but its entities, which are in the store, for :meth:`resume`."""
        return self._head(self._settings(), self._watch_arrays())

    def _head(self, settings: dict[str, Any], arrays: Arrays) -> bytes:
        header = {**settings, "entities": len(self)}
        return pack("bank head", self._owner, header, arrays)

    def digest(self) -> str:
        """A hash of all that the bank knows. Banks that have seen the same events have the same
        one, in whatever batches they came, and however often the bank was restored in between.
        """
        settings = self._settings()
        arrays = self._watch_arrays()
        look = self._look
        if look is not None:
            noted = sorted(look.noted)
            settings["fleet"]["look"] |= {"noted": noted, "newcomers": sorted(look.newcomers)}
            pending = [look.noted[name] for name in noted]
            arrays["look"] = np.array(pending, dtype=np.float64)
        found = hashlib.sha256(self._head(settings, arrays))
        table = self.table
        on_disk = set(table.on_disk)
        names = sorted([*table.row, *on_disk])
        for first in range(0, len(names), SLICE):
            some = names[first : first + SLICE]
            absent = [name for name in some if name in on_disk]
            stored: dict[str, Row] = {}
            if self._store is not None:
                stored = self._store.read(absent)
            rows = [table.row[name] for name in some if name not in on_disk]
            for name, header, kept in table.copies(np.array(rows, dtype=np.int64)).rows():
                stored[name] = (header, kept)
            for name in some:
                header, kept = stored[name]
                _, digest, _ = pack_entity(name, header, kept)
                found.update(digest)
        return found.hexdigest()

    @staticmethod
    def resume(
        model: PointProcess,
        head: bytes,
        store: EntityStore,
        *,
        limit: int | None = None,
        threads: int = 2,
        context: Context | None = None,
    ) -> StreamBank:
        """The bank whose :meth:`head` this is, with the entities in ``store``, which are read when
        they are named.
        """
        header, arrays = unpack("bank head", fingerprint(model), head)
        start, alarms, fleet = _settings_of(header)
        bank = StreamBank(
            model,
            start=start,
            limit=limit,
            alarms=alarms,
            fleet=fleet,
            threads=threads,
            store=store,
            context=context,
        )
        bank.load_watches(header, arrays)
        expected = whole(header, "entities")
        if len(store) != expected:
            raise damaged(f"{expected:,} entities", f"{len(store):,}")
        if not bank.fixed:
            bank.table.read_all()
        return bank

    def bound(self, limit: int) -> None:
        """Keep at most ``limit`` entities in memory from now on; the bank must have a store, and a
        model of constant memory.
        """
        self.limit = limit
        self.table.limit = limit

    def changes(self) -> Changes:
        """Copies of the entities that have changed since they were last written; :meth:`written`
        must follow.
        """
        return self.table.changes()

    @property
    def changed(self) -> int:
        """How many entities have changed since they were last written."""
        return int(np.count_nonzero(self.table.changed))

    def written(self, changes: Changes, *, success: bool) -> None:
        """Whether what :meth:`changes` gave is in the store now."""
        self.table.written(changes, success=success)

    def _settings(self) -> dict[str, Any]:
        watch: dict[str, Any] | None = None
        if self._fleet is not None:
            watch = {
                "counted": self._since_look,
                "latest": self._latest,
                **self._fleet.state(),
                "look": None,
            }
            if self._look is not None:
                watch["look"] = self._look.state()
        return {
            "start": self.start,
            "alarms": self.alarms,
            "fleet": watch,
        }

    def _watch_arrays(self) -> Arrays:
        found: Arrays = {}
        if self._types is not None:
            found["types"] = self._types.state()
        if self._look is not None:
            found["look"] = self._look.noted_pending()
        return found

    def load_watches(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Go on with the watches over types and the fleet as they were."""
        try:
            if self._types is not None:
                self._types.load(arrays.pop("types"))
            if self._fleet is not None:
                watch = header["fleet"]
                self._since_look = whole(watch, "counted")
                self._latest = number(watch, "latest")
                self._fleet.load(watch)
                if watch.get("look") is not None:
                    self._look = FleetLook.restore(watch["look"], arrays.pop("look"))
                    self._look.done = self._since_look // SLICE_EVENTS + 1
        except FAULTS as error:
            raise damaged(
                "the watches over types and the fleet", f"others ({type(error).__name__})"
            ) from None

    # ------------------------------------------------------------------ events

    def _checked(
        self,
        entities: Sequence[str],
        times: ArrayLike,
        marks: Sequence[int | str] | NDArray[Any] | None,
        features: ArrayLike | None,
    ) -> Events:
        """Times, marks and features as arrays, each of them possible."""
        try:
            when = np.array(times, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError) as error:
            raise UserError(
                "numbers for times", f"{str(times)[:80]!r}", "Convert the times to numbers."
            ) from error
        count = self.model.marks.count
        if marks is not None:
            kinds = self._numbered(marks)
        else:
            if count > 1:
                known_mark(self.model.marks, self._names, None)
            kinds = np.zeros(len(when), dtype=np.int64)
        if not len(entities) == len(when) == len(kinds):
            received = f"{len(entities)} entities, {len(when)} times and {len(kinds)} marks"
            raise UserError("one time and one mark per event", received, "Make the lengths equal.")
        infinite = np.flatnonzero(~np.isfinite(when))
        if len(infinite):
            place = infinite[0]
            raise UserError(
                "finite times",
                f"{when[place]} at event {place} of the call",
                "Correct or leave out the event.",
            )
        unknown = np.flatnonzero((kinds < 0) | (kinds >= count))
        if len(unknown):
            known_mark(self.model.marks, self._names, int(kinds[unknown[0]]))
        known = known_features(self.model, features, len(when))
        if known is not None:
            missing = np.flatnonzero(~np.isfinite(known).all(1))
            if len(missing):
                raise unknown_feature(self.model, known[missing[0]])
        return Events(when, kinds.astype(np.int64), known)

    def _numbered(self, marks: Sequence[int | str] | NDArray[Any]) -> Rows:
        found = np.asarray(marks)
        if found.dtype.kind in "iu":
            return found
        numbers = [known_mark(self.model.marks, self._names, mark) for mark in marks]
        return np.array(numbers, dtype=np.int64)

    def _in_order(self, rows: Rows, when: Floats) -> _Order:
        """Events by entity, in the order given."""
        order = np.argsort(rows, kind="stable")
        mine = rows[order]
        times = when[order]
        first = np.ones(len(rows), dtype=bool)
        first[1:] = mine[1:] != mine[:-1]
        before = np.empty(len(rows))
        before[1:] = times[:-1]
        before[first] = self.table.numbers["at"][mine[first]]
        is_early = times < before
        error: UserError | None = None
        if is_early.any():
            i = int(is_early.argmax())
            name = self.table.names[mine[i]]
            error = _too_early(name, float(before[i]), float(times[i]))
        return _Order(order, first, order[first], error)

    def _not_first(self, rows: Rows, firsts: Rows) -> NDArray[np.bool_]:
        """Whether each event is not the first of its entity; ``firsts`` are those of this call."""
        counts = self.table.numbers["count"]
        found = np.ones(len(rows), dtype=bool)
        found[firsts] = counts[rows[firsts]] > 0
        return found

    def _numbers(self) -> Numbers:
        numbers = self.table.numbers
        return Numbers(
            at=numbers["at"],
            pending=numbers["open"],
            likelihood=numbers["likelihood"],
            seen=numbers["count"],
        )

    def _followed(self, rows: Rows, events: Events, first: Rows) -> Scored:
        """Events scored and absorbed one after the other; where one cannot be, all rows are as they
        were.

        ``first`` are the places of the first events of entities.
        """
        numbers = self.table.numbers
        found = Scored.empty(len(rows), self._watched_types)
        touched = rows[first]
        kept = {key: values[touched] for key, values in numbers.items()}
        try:
            stop = self._memories.follow(rows, self._numbers(), events, found, first)
            if stop is not None:
                raise self._refusal(stop, self.table.names[rows[stop.done]])
        except BaseException:
            self._memories.undo()
            for key, values in kept.items():
                numbers[key][touched] = values
            raise
        return found

    def _refusal(self, stop: Stop, entity: str) -> UserError:
        if isinstance(stop.error, Unconverged):
            return _unintegrable(stop.error)
        received = f"{stop.error.received} of {entity!r}"
        return UserError(
            "finite rates",
            received,
            "The model explodes at that time: fit it again, or reset the bank.",
        )

    def _in_rounds(self, rows: Rows, events: Events, rounds: list[Rows]) -> Scored:
        """The same a round at a time, in which every entity has one event at most."""
        found = Scored.empty(len(rows), self._watched_types)
        numbers = self.table.numbers
        several = rows[:0]
        if len(rounds) > 1:
            several = np.unique(rows)
        kept = self.table.take(several)
        try:
            for some in rounds:
                mine = rows[some]
                these = events.part(some)
                self._memories.check(mine, these.times)
                logs, integral = self._scored(mine, these.times)
                log_rate = logs[np.arange(len(mine)), these.marks]
                gap = numbers["open"][mine] + integral
                found.density[some] = log_rate - gap
                found.gap[some] = gap
                found.rate[some] = np.exp(logs).sum(1)
                if found.shares.shape[1]:
                    found.shares[some] = shares_of(logs)
                self._memories.absorb(mine, numbers["at"][mine], these)
                numbers["at"][mine] = these.times
                numbers["open"][mine] = 0.0
                numbers["likelihood"][mine] += log_rate - integral
                numbers["count"][mine] += 1
        except BaseException:  # a later round may fail where an earlier one was taken in
            self.table.put(several, kept)
            raise
        return found

    @property
    def _watched_types(self) -> int:
        if self._types is None:
            return 0
        return len(self._types.names)

    def _watched(
        self, rows: Rows, when: Floats, kinds: Rows, found: Scored, earlier: NDArray[np.bool_]
    ) -> list[tuple[Alarm, ...]]:
        """The alarms that each event raises; events of an entity are in their order. ``earlier``:
        not the first of its entity.
        """
        raised: list[tuple[Alarm, ...]] = [()] * len(rows)
        if self.alarms is None:
            return raised
        names = self.table.names
        of_entities = self.table.monitors.observe(rows, found.gap, when)
        for place, own in of_entities.items():
            raised[place] = _of_entity(names[rows[place]], own)
        if self._types is not None:
            of_types = self._types.observe(when, kinds, found.shares, found.gap)
            for place, alarms in of_types.items():
                raised[place] += tuple(alarms)
        if self._fleet is not None and len(rows):
            self._fleet.add(found.gap[earlier])
            raised[-1] += self._look_if_due(when)
        return raised

    def _scored(self, rows: Rows, times: Floats) -> tuple[Floats, Floats]:
        at = self.table.numbers["at"][rows]
        try:
            logs, integral = self._memories.score(rows, at, times)
        except Unconverged as error:
            raise _unintegrable(error) from error
        possible = (logs < LARGEST).all(1) & np.isfinite(integral)
        lost = np.flatnonzero(~possible)
        if len(lost):
            i = lost[0]
            rates = f"log-rates {logs[i].tolist()[:4]} and the integral {integral[i]}"
            raise UserError(
                "finite rates",
                f"{rates} of {self.table.names[rows[i]]!r} at {times[i]}",
                "The model explodes at that time: fit it again, or reset the bank.",
            )
        return logs, integral


def _rounds(order: _Order) -> list[Rows]:
    """Events that can be taken together: the first of each entity, then the second, and so on."""
    count = len(order.places)
    if not count:
        return []
    place = np.arange(count)
    if order.first.all():
        return [place]
    begin = np.where(order.first, place, 0)
    rank = place - np.maximum.accumulate(begin)
    most = int(rank.max())
    return [np.sort(order.places[rank == r]) for r in range(most + 1)]


def _unintegrable(error: Unconverged) -> UserError:
    return UserError(
        "rates that can be integrated",
        str(error).rstrip("."),
        "Fit the model again, or reset the bank.",
    )


def _spill(folder: Path | str) -> Store:
    """A new store in ``folder``; what another bank left there is replaced."""
    if not str(folder):
        return Store("", durable=False)
    path = Path(folder) / "entities.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for end in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        return Store(path, durable=False)
    except OSError as error:
        raise UserError(
            "a folder to spill to", f"{error}", "Choose a folder that can be written to."
        ) from error


def _settings_of(header: dict[str, Any]) -> tuple[float, float | None, bool]:
    start = number(header, "start")
    alarms: float | None = None
    if header.get("alarms") is not None:
        alarms = number(header, "alarms", least=1e-300, most=1 - 1e-12)
    fleet = header.get("fleet") is not None
    return start, alarms, fleet


def _entity_names(header: dict[str, Any]) -> list[str]:
    names = header.get("entities")
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise damaged("names of entities", f"{names!r}"[:80])
    distinct = len(set(names))
    if distinct < len(names):
        received = f"{len(names):,} names, {distinct:,} of them distinct"
        raise damaged("distinct names of entities", received)
    return names


def _monitors(header: dict[str, Any], gaps: NDArray[Any], count: int) -> list[Monitor | None]:
    """The monitors of a bank's entities, whose gaps lie end to end."""
    numbers = header.get("monitors")
    sizes = header.get("sizes")
    if not (
        isinstance(numbers, list)
        and isinstance(sizes, list)
        and len(numbers) == len(sizes) == count
    ):
        raise damaged(f"a monitor or none for each of {count:,} entities", "other lists")
    sound = all(type(size) is int and size >= 0 for size in sizes)
    if not sound or gaps.ndim != 1 or sum(sizes) != len(gaps):
        raise damaged("the gaps of every monitor", f"{len(gaps):,} gaps")
    found: list[Monitor | None] = []
    end = 0
    for own, size in zip(numbers, sizes, strict=True):
        begin = end
        end += size
        monitor = None
        if own is not None:
            monitor = restored_monitor(own, gaps[begin:end])
        found.append(monitor)
    return found


def _of_entity(name: str, alarms: tuple[Alarm, ...]) -> tuple[Alarm, ...]:
    own = [replace(alarm, of="entity", name=name) for alarm in alarms]
    return tuple(own)


def _too_early(entity: str, last: float, time: float) -> TooEarly:
    expected = f"a time of at least {last!r}, the last one of {entity!r}"
    return TooEarly(expected, f"{time!r}", "Sort the events of each entity.")
