"""The engine of the service: events are checked, put in order, scored, stored, and acknowledged.

Everything that one batch of requests changes is one transaction:

    events, scores, alarms, offsets of the source, totals, a slice of the snapshot  ->  commit
    ->  acknowledgement

An engine belongs to one thread. Where a commit fails, the streams in memory are ahead of the store:
they are dropped and read back from it (:meth:`Engine.recover`), and the clients are told to send
their events again, which is safe for events with an id.
"""

from __future__ import annotations

import json
import math
import time as clocks
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fourpoint.events import UserError
from fourpoint.events.dates import Dates, in_units
from fourpoint.models.base import PointProcess
from fourpoint.serve.databases import StoreError
from fourpoint.serve.following import CANDIDATE, LIVE, SHADOW, Following, Paired
from fourpoint.serve.settings import Settings
from fourpoint.serve.store import Batch, Slot, SqlStore, StoredAlarm, StoredEvent
from fourpoint.serve.watermark import Watermark
from fourpoint.storage.checkpoints import about, restore
from fourpoint.streaming.bank import TooEarly
from fourpoint.streaming.feed.encoding import as_json
from fourpoint.streaming.feed.events import Event
from fourpoint.streaming.feed.feed import entity_column, time_check, usual_rate
from fourpoint.streaming.feed.plausibility import Reached, TimeCheck
from fourpoint.streaming.feed.reading import Asked, EventReader
from fourpoint.streaming.feed.times import TimeReader
from fourpoint.streaming.feed.training_window import Trained, inferred_start
from fourpoint.streaming.state import fingerprint

ALL = "all"  # the entity of a model without entities
RECENT = 20_000  # scored events that are kept in memory
SLICE = 64  # rows of a snapshot that are written with a batch at least
IDLE_SLICE = 512  # and where nothing else is to be done
INTEGRATED = 2048  # entities whose silences are looked at
DAY = 86_400.0  # seconds by which a live feed may be ahead of the clock or behind it
QUARTER = 900.0  # seconds of which the offsets of time zones are multiples
COMPACTED = 5000  # old events that are removed at once
REFIT = "fourpoint refit MODEL_DIR --store URL -o NEW_DIR"
Fields = dict[str, Any]


class Scored(NamedTuple):
    """A scored event, for questions about the recent past."""

    event: StoredEvent
    log_density: float
    gap: float
    rate: float


class Given(NamedTuple):
    """An event that has been read already, by the readers of files: it is not checked again."""

    id: str | None
    event: Event


@dataclass(frozen=True)
class Request:
    """Events that came together, as parsed JSON or :class:`Given`, and how far their source is
    read with them: ``offsets`` are (source, part, value).
    """

    events: Sequence[object]
    offsets: Sequence[tuple[str, str, str]] = ()


@dataclass
class Receipt:
    """What became of a request, once it is committed."""

    accepted: int = 0
    duplicates: int = 0
    late: int = 0
    refused: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


@dataclass
class Counters:
    """Totals since the store was made, which every transaction writes."""

    events: int = 0
    duplicates: int = 0
    late: int = 0
    refused: int = 0
    alarms: int = 0
    drifts: int = 0  # alarms of kind drift since the model was last replaced
    latest: float | None = None  # the latest time of an event
    wall: float = 0.0  # the latest time of the wall clock
    lag: float | None = None  # seconds by which the latest event was behind it when it came
    reached: dict[str, Any] = field(default_factory=dict)
    paired: dict[str, Any] = field(default_factory=dict)  # with the shadow model
    shadow: str = ""  # its fingerprint


@dataclass(frozen=True)
class Served:
    """A saved model with what is known of its training data."""

    folder: Path
    model: PointProcess
    trained: Trained

    @staticmethod
    def load(folder: Path) -> Served:
        """The model in ``folder``; raises :class:`UserError` where there is none."""
        return Served(folder, restore(folder), Trained.from_about(about(folder)))


@dataclass
class _Draft:
    """An event of a request on its way into the store."""

    receipt: Receipt
    index: int
    id: str | None
    event: Event
    is_given: bool


class Engine:
    """Scores events with a model and keeps all it knows in ``store``.

    >>> import tempfile
    >>> from fourpoint.models.hawkes import Hawkes
    >>> from fourpoint.serve.databases import database
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = SqlStore(database(f"sqlite:///{folder}/state.db"))
    ...     engine = Engine(Served(Path("model"), Hawkes(), Trained()), store, Settings())
    ...     first = engine.accept([Request([{"id": "a", "time": 1.0}, {"time": "noon"}])])[0]
    ...     again = engine.accept([Request([{"id": "a", "time": 1.0}])])[0]
    ...     store.close()
    >>> first.accepted, len(first.refused), again.accepted, again.duplicates
    (1, 1, 0, 1)
    """

    def __init__(
        self,
        served: Served,
        store: SqlStore,
        settings: Settings,
        *,
        shadow: Served | None = None,
        tell: Callable[[str], None] = lambda text: None,
        on_scored: Callable[[list[Scored], list[dict[str, Any]]], None] = lambda *_: None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.tell = tell
        self.on_scored = on_scored
        self.present: Callable[[], datetime] | None = None  # the clock of a log that is replayed
        self.recent: deque[Scored] = deque(maxlen=RECENT)
        self.degraded: str | None = None  # why the store cannot be written; None: it can
        self.replayed = 0  # events that were read back at the last start
        self._use(served)
        self.shadow_served = shadow
        self._check_log(served)
        if shadow is not None:
            self._check_log(shadow)
        self.lateness = in_units(settings.scoring.lateness, served.trained.unit)
        if not 0 <= self.lateness < math.inf:
            raise UserError(
                "a lateness of at least 0",
                f"{settings.scoring.lateness!r}",
                "Type --lateness 5min.",
            )
        retention = settings.keeping.retention
        self._retention = None if retention is None else in_units(retention, served.trained.unit)
        self.recover()

    def _use(self, served: Served) -> None:
        """Read times, marks and entities as the log did to which this model was fitted."""
        self.served = served
        scoring = self.settings.scoring
        log = served.trained.log
        self.times = TimeReader(log, served.trained.unit)
        self.by = entity_column(log, scoring.by, self.times, self.tell)
        if scoring.by is None and log is None and served.trained.sequences not in (None, 1):
            self.by = "entity"
        marks = {name: i for i, name in enumerate(served.model.marks.names)}
        features = served.model.event_features
        self.reader = EventReader(
            marks,
            Asked(by=self.by),
            self.times,
            features=() if features is None else features.spec.names,
        )
        self._clock_base = clocks.time() - clocks.monotonic()

    # ------------------------------------------------------------------ times

    def wall(self) -> float:
        """Seconds since 1970, which never go back, also where the machine's clock is moved back."""
        now = max(clocks.time(), self._clock_base + clocks.monotonic(), self.counters.wall)
        self.counters.wall = now
        return now

    @property
    def dates(self) -> Dates | None:
        """Converts times of the log to dates; None where they are plain numbers."""
        if not self.times.stamped:
            return None
        if self.times.calendar is not None:
            return Dates(0.0, self.times.unit, self.times.log.zone)
        return self.times.dates()

    def shown(self, moment: float | None) -> str | float | None:
        """A time of the log as the API writes it: ISO 8601, or a number."""
        if moment is None or not math.isfinite(moment):
            return None
        dates = self.dates
        return moment if dates is None else dates.iso(moment)

    def now(self) -> float | None:
        """The present on the clock of the log: the wall clock where events come as they happen,
        else the time of the latest event; None before the first.

        Events come as they happen where the latest one came within a day of its time. A log whose
        timestamps have no zone may be in local time: the quarters of an hour by which its events
        come too late or too early are taken for the offset of its zone.
        """
        latest = self.counters.latest
        if self.present is not None and self.dates is not None:
            return max(self.dates.time(self.present()), latest or -math.inf)
        clock = self.times.wall_clock()
        if clock is None or latest is None:
            return latest
        clock = replace(clock, now=self.wall)
        behind = -clock.ahead(latest)
        lag = self.counters.lag
        if lag is None:  # all events so far are of files
            return latest + behind / clock.seconds if 0.0 <= behind <= DAY else latest
        if abs(lag) > DAY:
            return latest
        offset = 0.0 if self._is_zoned else QUARTER * round(lag / QUARTER)
        return max(latest, latest + (behind - offset) / clock.seconds)

    @property
    def _is_zoned(self) -> bool:
        log = self.times.log
        return log.zoned or log.zone is not None

    @property
    def is_live(self) -> bool:
        """Whether events come as they happen, so that the time since the last one is a silence."""
        if self.present is not None:
            return self.dates is not None
        lag = self.counters.lag
        return self.times.wall_clock() is not None and lag is not None and abs(lag) <= DAY

    # ------------------------------------------------------------------ start and recovery

    def recover(self) -> None:
        """Read everything back from the store: the last snapshot, and the events after it."""
        self.store.reconnect()
        self._clear_unfinished()
        kept = self.store.text("engine")
        self.counters = Counters() if kept is None else Counters(**json.loads(kept))
        self.paired = Paired(**self.counters.paired)
        self.silent: list[str] = json.loads(self.store.text("silent") or "[]")
        last = self.store.last_batch()
        self._batch = 0 if last is None else last.batch
        self._sequence = self.store.last_sequence()
        self.live, self.watermark = self._followed(LIVE, self.served.model)
        self.shadow: Following | None = None
        if self.shadow_served is not None:
            self.shadow, _ = self._followed(SHADOW, self.shadow_served.model)
            if self.counters.shadow != self.shadow.slot.model:
                self.counters.shadow = self.shadow.slot.model
                self.paired = Paired()
        self._drop_other_slots()
        self._check = self._time_check()
        self._fill_recent()
        self._saved = clocks.monotonic()
        self._arrived = clocks.monotonic()
        self.degraded = None
        self._adopt_lateness()

    def _clear_unfinished(self) -> None:
        with self.store.transaction():
            for slot in self.store.slots():
                self.store.drop_unfinished(slot.slot, slot.version)

    def _followed(self, role: str, model: PointProcess) -> tuple[Following, Watermark]:
        """The model in its slot, up to date. A model that has none goes through all stored
        events.
        """
        own = fingerprint(model)
        slots = self.store.slots()
        of_model = [one for one in slots if one.model == own]
        slot = next((one for one in of_model if one.role == role), None)
        if slot is None and role == LIVE:
            slot = next(iter(of_model), None)  # a shadow that was promoted
        if slot is None:
            slot = self.new_slot(role, model)
            if self._batch:
                self.tell(f"the {role} model is a new one: it goes through the stored events")
        if slot.role != role or slot not in slots:
            slot = replace(slot, role=role)
            with self.store.transaction():
                self.store.put_slot(slot)
        following = self.follow(slot, model)
        watermark = following.replay()
        self.replayed = following.since_snapshot
        return following, watermark

    def new_slot(self, role: str, model: PointProcess) -> Slot:
        """A slot for a model that goes through all stored events; they begin where the observation
        began, or with the first event that is still stored.
        """
        slots = self.store.slots()
        number = 1 + max((one.slot for one in slots), default=0)
        slot = Following.new_slot(number, role, model, 0)
        begun = next((one.begin for one in slots if one.begin is not None), None)
        cut = self.store.text("compacted")
        if begun is not None and cut is not None and self.times.calendar is None:
            begun = max(begun, float(cut))
        return replace(slot, begin=begun)

    def follow(self, slot: Slot, model: PointProcess) -> Following:
        """The model in a slot, as its snapshot has it."""
        return Following(model, slot, self.store, self.settings.scoring, self.times)

    def _check_log(self, served: Served) -> None:
        """Refuse a model to which the stored times and types mean something else."""
        own = _clock_of(served)
        kept = self.store.text("log")
        if kept is None:
            with self.store.transaction():
                self.store.put_text("log", json.dumps(own))
            return
        before = json.loads(kept)
        marks = before.pop("marks")
        longer = own.pop("marks")
        if before == own and longer[: len(marks)] == marks:
            return
        differ = [name for name in own if own[name] != before.get(name)] or ["marks"]
        shown = {"marks": (marks, longer)} | {k: (before.get(k), own[k]) for k in own}
        raise UserError(
            f"a model of the log in the store, with {differ[0]} {shown[differ[0]][0]!r:.100}",
            f"{served.folder} with {shown[differ[0]][1]!r:.100}",
            "Choose another --store, or fit the model with fourpoint refit.",
        )

    # ------------------------------------------------------------------ life cycle of models

    def candidate(self, served: Served) -> Following | None:
        """A model that may replace the live one, in a slot of its own, before it has seen an event;
        None where it is the live one. :meth:`Following.replay` may run in another thread.
        """
        self._check_log(served)
        if fingerprint(served.model) == self.live.slot.model:
            return None
        slot = self.new_slot(CANDIDATE, served.model)
        with self.store.transaction():
            self.store.put_slot(slot)
        return self.follow(slot, served.model)

    def replace_live(self, served: Served, following: Following) -> None:
        """Follow another model from now on, which has gone through the stored events."""
        following.replay()
        self._adopt(served, following)

    def promote(self) -> Served:
        """Make the shadow model the live one, with the state that it has; there is no shadow model
        then. Its files must be saved as those of the live model by the caller.
        """
        if self.shadow is None or self.shadow_served is None:
            raise UserError(
                "a shadow model to promote", "a service without one", "Start it with --shadow DIR."
            )
        following = self.shadow
        served = replace(self.shadow_served, folder=self.served.folder)
        self.shadow = self.shadow_served = None
        self._adopt(served, following)
        return served

    def _adopt(self, served: Served, following: Following) -> None:
        old = self.live.slot.slot
        slot = replace(following.slot, role=LIVE)
        following.become(slot)
        self.counters.drifts = 0
        self.paired = Paired()
        self.counters.paired = {}
        with self.store.transaction():
            self.store.put_slot(slot)
            self.store.drop_slot(old)
            self.store.put_text("engine", json.dumps(asdict(self.counters)))
        self.live = following
        self._use(served)
        self._check = self._time_check()
        self.tell(f"the live model is {slot.model[:12]} of {served.folder} from now on")

    def _drop_other_slots(self) -> None:
        kept = {self.live.slot.slot}
        if self.shadow is not None:
            kept.add(self.shadow.slot.slot)
        others = [one.slot for one in self.store.slots() if one.slot not in kept]
        if others:
            with self.store.transaction():
                for slot in others:
                    self.store.drop_slot(slot)

    def _time_check(self) -> TimeCheck | None:
        max_gap = self.settings.scoring.max_gap
        if max_gap == "none":
            return None
        longest = None if max_gap == "auto" else in_units(max_gap, self.served.trained.unit)
        begin = self.live.slot.begin
        if begin is None:
            begin = self.served.trained.start or 0.0
        check = time_check(
            self.served.model,
            self.served.trained,
            self.times,
            begin,
            self.by,
            longest,
            Reached(**self.counters.reached) if self.counters.reached else None,
        )
        if check.calendar is not None:
            check.calendar = replace(check.calendar, now=self.wall)
        return check

    def _fill_recent(self) -> None:
        """The last scored events, from the store."""
        self.recent.clear()
        batches = []
        count = 0
        for batch in self.store.batches(None, most=RECENT // 10):
            size = 0 if batch.scores is None else len(batch.scores) // 32
            if count + size > RECENT:
                break
            count += size
            batches.append(batch)
        scores = [
            np.frombuffer(batch.scores).reshape(-1, 4)
            for batch in reversed(batches)
            if batch.scores
        ]
        if not scores:
            return
        rows = np.concatenate(scores)
        first, last = int(rows[:, 0].min()), int(rows[:, 0].max())
        known = {event.seq: event for event in self.store.events(first, last)}
        for seq, density, gap, rate in rows.tolist():
            event = known.get(int(seq))
            if event is not None:
                self.recent.append(Scored(event, density, gap, rate))

    def _adopt_lateness(self) -> None:
        """Where another lateness than before is asked for: score all that waits, and write a
        snapshot, so that no stored event is put in order by the new one.
        """
        before = self.store.text("lateness")
        if before is not None and float(before) != self.lateness:
            self._commit([], release=True)
            self.save()
            self.watermark.lateness = self.lateness
        if before is None or float(before) != self.lateness:
            with self.store.transaction():
                self.store.put_text("lateness", repr(self.lateness))
        self.watermark.lateness = self.lateness

    # ------------------------------------------------------------------ events

    def accept(self, requests: Sequence[Request]) -> list[Receipt]:
        """Check, score and store the events of requests in one transaction; what became of each.

        Raises :class:`~fourpoint.serve.databases.StoreError` where they could not be committed;
        then none of them counts.
        """
        if self.degraded is not None:
            self._try_again()
        try:
            return self._commit(requests)
        except BaseException as error:
            self.degraded = str(error) or type(error).__name__
            raise

    def _try_again(self) -> None:
        """After a failure: whether the store can be written again, and if so, read it back."""
        self.store.reconnect()
        with self.store.transaction():
            self.store.put_text("probe", repr(clocks.time()))
        self.recover()

    def _commit(self, requests: Sequence[Request], *, release: bool = False) -> list[Receipt]:
        receipts = [Receipt() for _ in requests]
        drafts = self._checked(requests, receipts)
        batch = self._batch + 1
        begun = self.live.slot.begin is not None
        if drafts and not begun:
            self._begin(drafts)
        events = [
            StoredEvent(
                self._sequence + 1 + i,
                draft.id,
                draft.event.entity or ALL,
                draft.event.time,
                draft.event.at,
                draft.event.mark,
                _packed(draft.event.features),
                False,
            )
            for i, draft in enumerate(drafts)
        ]
        leaving = self.watermark.add(events)
        if release:
            leaving = leaving + self.watermark.advance(self.watermark.latest)
        scored, alarms, late = self._score(leaving)
        for draft, event in zip(drafts, events, strict=True):
            draft.receipt.accepted += 1
            if event.seq in late:
                draft.receipt.late += 1
        alarms, ended = self._without_told(scored, alarms)
        self._count(receipts, events, alarms)
        if drafts and not drafts[0].is_given:
            self._note_lag(events)
        self.counters.paired = asdict(self.paired)
        stored = [replace(event, late=True) if event.seq in late else event for event in events]
        receipt_of = {e.seq: d.receipt for e, d in zip(events, drafts, strict=True)}
        numbered = self._numbered(alarms, receipt_of)
        frontier = self.watermark.frontier
        packed = np.array([(s.event.seq, s.log_density, s.gap, s.rate) for s in scored])
        row = Batch(
            batch,
            self._sequence + 1,
            self._sequence + len(events),
            frontier if math.isfinite(frontier) else None,
            self.counters.latest,
            packed.astype(np.float64).tobytes() if len(scored) else None,
        )
        with self.store.transaction():
            if not begun and self.live.slot.begin is not None:
                for following in self._all():
                    self.store.put_slot(following.slot)
            self.store.append(stored)
            self.store.put_batch(row)
            self.store.put_alarms(numbered)
            for request in requests:
                for offset in request.offsets:
                    self.store.put_offset(*offset)
            self.store.put_text("engine", json.dumps(asdict(self.counters)))
            if ended:
                self.store.put_text("silent", json.dumps(self.silent))
            complete = self._write_slices(max(SLICE, 2 * len(events)))
        for following in complete:
            following.snapshot_written()
        self._batch = batch
        self._sequence += len(events)
        self._arrived = clocks.monotonic()
        self.recent.extend(scored)
        self._snapshot_if_due()
        self.on_scored(scored, [self.alarm_fields(alarm) for alarm in numbered])
        return receipts

    def _checked(self, requests: Sequence[Request], receipts: Sequence[Receipt]) -> list[_Draft]:
        """The events of requests that are new, sound and plausible; the others are noted in the
        receipts.
        """
        drafts: list[_Draft] = []
        for request, receipt in zip(requests, receipts, strict=True):
            for index, fields in enumerate(request.events):
                found = self._read(fields)
                if isinstance(found, UserError):
                    receipt.refused.append({"index": index, "error": str(found)})
                else:
                    given = isinstance(fields, Given)
                    drafts.append(_Draft(receipt, index, *found, is_given=given))
        drafts = self._without_known(drafts)
        drafts = self._without_newcomers(self._plausible(drafts))
        return _without_repeats(drafts)

    def _plausible(self, drafts: list[_Draft]) -> list[_Draft]:
        if self._check is None or not drafts:
            return drafts
        if drafts[0].is_given:
            self._check.accept(min(draft.event.at for draft in drafts))
            self._check.accept(max(draft.event.at for draft in drafts))
            faults: list[UserError | None] = [None] * len(drafts)
        else:
            faults = self._check([draft.event.at for draft in drafts])
        kept = []
        for draft, fault in zip(drafts, faults, strict=True):
            if fault is None:
                kept.append(draft)
            else:
                draft.receipt.refused.append({"index": draft.index, "error": str(fault)})
        self.counters.reached = asdict(self._check.reached)
        return kept

    def _read(self, fields: object) -> tuple[str | None, Event] | UserError:
        """The id and the event of an object, by the rules of the readers."""
        if isinstance(fields, Given):
            return fields
        if not isinstance(fields, dict):
            return UserError(
                'an event such as {"id": "a1", "time": 12.5}',
                f"{type(fields).__name__} {fields!r:.60}",
                "Send objects.",
            )
        id = fields.get("id")
        if isinstance(id, int) and not isinstance(id, bool):
            id = str(id)
        longest = self.settings.limits.name
        if id is not None and not (isinstance(id, str) and 0 < len(id) <= longest):
            return UserError(
                f'"id" as a text of 1 to {longest} characters, or a whole number',
                f"{id!r:.60}",
                "Send a short text that no other event has, or leave it out.",
            )
        if self.by is not None and self.by not in fields and "entity" in fields:
            fields = {**fields, self.by: fields["entity"]}
        event = self.reader.event(fields)
        if isinstance(event, UserError):
            return event
        if event.entity is not None and len(event.entity) > longest:
            return UserError(
                f"an entity's name of at most {longest} characters",
                f"{len(event.entity):,} characters",
                "Shorten it.",
            )
        return id, event

    def _without_known(self, drafts: list[_Draft]) -> list[_Draft]:
        """Without the events whose ids are stored."""
        known = self.store.known([draft.id for draft in drafts if draft.id is not None])
        kept = []
        for draft in drafts:
            if draft.id in known:
                draft.receipt.duplicates += 1
            else:
                kept.append(draft)
        return kept

    def _without_newcomers(self, drafts: list[_Draft]) -> list[_Draft]:
        """Refuse events of new entities over the limit."""
        most = self.settings.limits.entities
        names = {draft.event.entity or ALL for draft in drafts}
        if self.by is None or len(self.live) + len(names) <= most:
            return drafts
        newcomers = self.live.unknown(names)
        allowed = set(sorted(newcomers)[: max(0, most - len(self.live))])
        refused = newcomers - allowed
        kept = []
        for draft in drafts:
            if draft.event.entity in refused:
                error = UserError(
                    f"at most {most:,} entities",
                    "an event of a further one",
                    "Raise --max-entities, or check the field that names entities.",
                )
                draft.receipt.refused.append({"index": draft.index, "error": str(error)})
            else:
                kept.append(draft)
        return kept

    def _begin(self, drafts: Sequence[_Draft]) -> None:
        """When the observation begins: as asked for, or by the first event."""
        asked = self.settings.scoring.start
        if self.times.calendar is not None:
            begin = 0.0
        elif asked not in (None, "first"):
            try:
                begin = float(asked or 0.0)
            except ValueError:
                begin = self.times.text(str(asked)).time
        else:
            begin = self._inferred_begin(drafts[0].event.at, at_first=asked == "first")
        for following in self._all():
            following.begin(begin)
        if self._check is not None and self.times.calendar is None:
            self._check.start = begin

    def _inferred_begin(self, first: float, *, at_first: bool) -> float:
        rate = usual_rate(self.served.model, self.served.trained, pooled=False)
        if not at_first:
            try:
                return min(inferred_start(self.served.trained, first, rate, self.tell), first)
            except UserError:
                pass
        begin = first - self.lateness
        self.tell(f"the observation begins at {self.shown(begin)}, with the first event")
        return begin

    def _all(self) -> list[Following]:
        return [self.live] if self.shadow is None else [self.live, self.shadow]

    def _score(
        self, events: list[StoredEvent]
    ) -> tuple[list[Scored], list[tuple[StoredEvent, dict[str, Any]]], set[int]]:
        """Score events in order: the scores, the alarms with their events, and the numbers of
        events that came too late.
        """
        found = self.live.score(events)
        scored: list[Scored] = []
        alarms: list[tuple[StoredEvent, dict[str, Any]]] = []
        late: set[int] = set()
        for i, event in enumerate(events):
            fault = found.refused.get(i)
            if fault is not None:
                if isinstance(fault, TooEarly):
                    late.add(event.seq)
                self.tell(
                    f"event {event.seq} of {event.entity!r} is stored and not scored: {fault}"
                )
                continue
            scored.append(Scored(event, found.log_density[i], found.gap[i], found.rate[i]))
            alarms += [(event, alarm) for alarm in found.alarms[i]]
        if self.shadow is not None:
            beside = self.shadow.score(events)
            both = [
                i for i in range(len(events)) if i not in found.refused and i not in beside.refused
            ]
            self.paired.compare(
                [beside.log_density[i] for i in both], [found.log_density[i] for i in both]
            )
        return scored, alarms, late

    def _count(
        self,
        receipts: Sequence[Receipt],
        events: Sequence[StoredEvent],
        alarms: Sequence[tuple[StoredEvent, dict[str, Any]]],
    ) -> None:
        counters = self.counters
        counters.events += len(events)
        counters.duplicates += sum(receipt.duplicates for receipt in receipts)
        counters.late += sum(receipt.late for receipt in receipts)
        counters.refused += sum(len(receipt.refused) for receipt in receipts)
        counters.drifts += sum(alarm["kind"] == "drift" for _, alarm in alarms)
        if events:
            latest = max(event.moment for event in events)
            counters.latest = latest if counters.latest is None else max(counters.latest, latest)
        self.wall()

    def _note_lag(self, events: Sequence[StoredEvent]) -> None:
        """How far behind the clock the latest of new events is, if it is the latest of all."""
        clock = self.times.wall_clock()
        latest = max(event.moment for event in events)
        if clock is not None and latest == self.counters.latest:
            self.counters.lag = -replace(clock, now=self.wall).ahead(latest)

    # ------------------------------------------------------------------ silences

    def note_silences(self) -> bool:
        """Raise the alarms of entities from which nothing has come for too long, while that lasts;
        whether there are any.

        The streams do not change, so that their state depends on the events alone. The event that
        ends such a silence does not raise its alarm again.
        """
        entities = self.live.entities
        now = self.now()
        if entities is None or now is None or self.settings.scoring.alarms is None:
            return False
        if self.degraded is not None or not self.is_live or self.times.calendar is not None:
            return False
        if len(entities.bank.table.row) > INTEGRATED:
            return False
        told = set(self.silent)
        found = [
            (self._last_of(name), alarm.to_dict())
            for name, alarm in entities.bank.silences(now - self.lateness)
            if name not in told
        ]
        if not found:
            return False
        rows = self._numbered(found, {})
        self.silent += [event.entity for event, _ in found]
        try:
            with self.store.transaction():
                self.store.put_alarms(rows)
                self.store.put_text("silent", json.dumps(self.silent))
                self.store.put_text("engine", json.dumps(asdict(self.counters)))
        except BaseException as error:
            self.degraded = str(error) or type(error).__name__
            raise
        self.on_scored([], [self.alarm_fields(alarm) for alarm in rows])
        return True

    def _last_of(self, entity: str) -> StoredEvent:
        """The last stored event of an entity; without a number where it was removed."""
        found = self.store.recent(1, entity)
        return found[0] if found else StoredEvent(0, None, entity, 0.0, 0.0, 0, None, False)

    def _without_told(
        self, scored: Sequence[Scored], alarms: list[tuple[StoredEvent, dict[str, Any]]]
    ) -> tuple[list[tuple[StoredEvent, dict[str, Any]]], set[int]]:
        """Alarms without those of silences that were told while they lasted, and the numbers of the
        events that end them.
        """
        if not self.silent:
            return alarms, set()
        ended = set()
        for one in scored:
            if one.event.entity in self.silent:
                self.silent.remove(one.event.entity)
                ended.add(one.event.seq)
        kept = [
            (event, alarm)
            for event, alarm in alarms
            if not (event.seq in ended and (alarm["kind"], alarm["of"]) == ("silence", "entity"))
        ]
        return kept, ended

    def _numbered(
        self,
        alarms: Sequence[tuple[StoredEvent, dict[str, Any]]],
        receipts: Mapping[int, Receipt],
    ) -> list[StoredAlarm]:
        """Alarms as rows, and in the receipts of the requests whose events raised them."""
        rows = []
        for event, alarm in alarms:
            self.counters.alarms += 1
            moment = alarm["time"]
            if self.times.calendar is not None:
                moment = event.moment + (moment - event.time)
            body = {**alarm, "event": event.seq, "entity": event.entity}
            row = StoredAlarm(
                self.counters.alarms, float(moment), str(alarm["kind"]), as_json(body), None
            )
            rows.append(row)
            receipt = receipts.get(event.seq)
            if receipt is not None:
                receipt.alarms.append(self.alarm_fields(row))
        return rows

    def alarm_fields(self, alarm: StoredAlarm) -> dict[str, Any]:
        """An alarm as the API writes it."""
        found = json.loads(alarm.body)
        found |= {"id": alarm.alarm, "time": self.shown(alarm.moment)}
        found["acknowledged"] = (
            None if alarm.acknowledged is None else json.loads(alarm.acknowledged)
        )
        if alarm.kind == "drift":
            found["suggestion"] = f"The model no longer fits: {REFIT}"
        return found

    def acknowledge(self, number: int, by: str) -> dict[str, Any] | None:
        """Note who has seen an alarm; its fields, or None where there is no such alarm."""
        if self.store.alarm(number) is None:
            return None
        with self.store.transaction():
            self.store.acknowledge(number, as_json({"by": by, "at": self.wall()}))
        found = self.store.alarm(number)
        return None if found is None else self.alarm_fields(found)

    # ------------------------------------------------------------------ snapshots

    def _snapshot_if_due(self) -> None:
        keeping = self.settings.keeping
        late = clocks.monotonic() - self._saved > keeping.snapshot_seconds
        for following in self._all():
            enough = following.since_snapshot >= keeping.snapshot_events
            if not following.is_saving and following.changed and (enough or late):
                following.begin_snapshot(self._batch, self.watermark)
                self._saved = clocks.monotonic()

    def _write_slices(self, most: int) -> list[Following]:
        """Some rows of snapshots that are being written, in the open transaction; the models whose
        snapshots are complete with it.
        """
        return [following for following in self._all() if following.write_some(most)]

    def idle(self) -> bool:
        """What is to be done while no events come: score what has waited for as long as events may
        be late, go on with snapshots, and forget old events. Whether there was anything.
        """
        if self.degraded is not None:
            self._try_again()
            return True
        if self._waited():
            self._commit([], release=True)
            return True
        self._snapshot_if_due()
        if any(following.has_more_to_write for following in self._all()):
            with self.store.transaction():
                complete = self._write_slices(IDLE_SLICE)
            for following in complete:
                following.snapshot_written()
            return True
        return self._compact()

    def _waited(self) -> bool:
        """Whether events wait though none has come for as long as they may be late."""
        clock = self.times.wall_clock()
        if not len(self.watermark) or clock is None:
            return False
        return clocks.monotonic() - self._arrived > self.lateness * clock.seconds

    def _compact(self) -> bool:
        latest = self.counters.latest
        if self._retention is None or latest is None:
            return False
        done = min(following.slot.batch for following in self._all())
        cut = latest - self._retention
        with self.store.transaction():
            removed = self.store.compact(done, cut, COMPACTED)
            if removed:
                self.store.put_text("compacted", repr(cut))
        if removed:
            self.store.reclaim()
        return removed > 0

    def save(self) -> None:
        """Write a snapshot of everything now."""
        for _ in range(2):  # one that was begun before may not have all
            for following in self._all():
                if following.changed:
                    following.begin_snapshot(self._batch, self.watermark)
            while any(following.is_saving for following in self._all()):
                with self.store.transaction():
                    complete = self._write_slices(IDLE_SLICE)
                for following in complete:
                    following.snapshot_written()

    def digest(self) -> str:
        """A hash of the state of all entities: the same as that of an uninterrupted run."""
        entities = self.live.entities
        return "" if entities is None else entities.bank.digest()

    def close(self) -> None:
        """Write a snapshot and let go of the store."""
        try:
            if self.degraded is None:
                self.save()
        except StoreError as error:
            self.tell(f"no snapshot at the end, the events are stored: {error}")
        finally:
            self.store.close()


def _without_repeats(drafts: list[_Draft]) -> list[_Draft]:
    """The first of several events with one id."""
    seen: set[str] = set()
    kept = []
    for draft in drafts:
        if draft.id in seen:
            draft.receipt.duplicates += 1
            continue
        if draft.id is not None:
            seen.add(draft.id)
        kept.append(draft)
    return kept


def _clock_of(served: Served) -> dict[str, Any]:
    """What stored times and types mean."""
    trained = served.trained
    log = trained.log
    names = list(served.model.marks.names)
    if log is None:
        return {"unit": trained.unit, "marks": names}
    return {
        "unit": trained.unit,
        "origin": log.origin,
        "zone": log.zone,
        "calendar": log.calendar,
        "clock": log.clock,
        "marks": names,
    }


def _packed(features: tuple[float, ...]) -> bytes | None:
    return np.array(features, dtype=np.float64).tobytes() if features else None
