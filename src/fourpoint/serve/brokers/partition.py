"""One partition of a consumer group: its entities, scored message by message.

A partition is a feed of its own. Everything that scoring it needs, the states of its entities, the
watches over its types and its fleet and how far its times have come, is either in the store or
follows from the messages after the committed position. Scores of an entity depend on its own events
alone, so that they do not depend on the number of partitions or on who scores them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fourpoint.errors import UserError
from fourpoint.events import Context
from fourpoint.events.dates import Dates
from fourpoint.models.base import PointProcess
from fourpoint.serve.brokers.group_store import (
    Commit,
    GroupAlarm,
    GroupStore,
    Held,
    PartitionEntities,
    Refusal,
)
from fourpoint.streaming.entity_table import Changes
from fourpoint.streaming.feed.encoding import Scores, loader, rows_of
from fourpoint.streaming.feed.events import Columns, Entities, Event
from fourpoint.streaming.feed.lines import LONGEST, Line
from fourpoint.streaming.feed.plausibility import Reached, TimeCheck
from fourpoint.streaming.feed.reading import EventReader
from fourpoint.streaming.state import damaged, pack, unpack, whole

KIND = "partition"
DAMAGED = "the state of a partition"


class Messages(NamedTuple):
    """Messages of one partition that follow each other: where each is, and what it says."""

    part: int
    positions: list[str]
    contents: list[bytes]


@dataclass(frozen=True)
class Scoring:
    """How the partitions of a group are scored: the same for all workers.

    ``reader`` makes a reader of messages, and ``check`` the check of times of a partition that has
    come as far as given (None: any time is believed). ``start`` says when the observation began,
    given the time of the first event that any worker has seen. ``id`` is the field with the id
    that the producer gives each event, None if there is none.
    """

    model: PointProcess
    reader: Callable[[], EventReader]
    check: Callable[[float, Reached], TimeCheck | None]
    start: Callable[[float], float]
    alarms: float | None
    keep: int | None = None
    limit: int | None = None
    id: str | None = None
    dates: Dates | None = None
    context: Context | None = None
    keep_scores: bool = True


@dataclass
class _Pending:
    """What was scored since the last commit."""

    position: str | None = None
    lines: list[str] = field(default_factory=list)
    events: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    alarms: list[GroupAlarm] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)


class Partition:
    """A partition that this worker owns, as ``held`` describes it."""

    def __init__(self, scoring: Scoring, store: GroupStore, part: int, held: Held) -> None:
        self.part = part
        self.held = held
        self._scoring = scoring
        self._store = store
        self._entities = PartitionEntities(store, part)
        self._reader = scoring.reader()
        self._pending = _Pending()
        self._recent_ids: set[bytes] = set()
        self._changes: Changes | None = None
        self._scorer: Entities | None = None
        self._plausible: TimeCheck | None = None
        self.line = 0  # messages of the partition so far
        if held.head is not None:
            self._resume(held.head)

    def _resume(self, head: bytes) -> None:
        values, arrays = unpack(KIND, "", head)
        self.line = whole(values, "line")
        reached = values.get("reached")
        if not isinstance(reached, dict) or "bank" not in arrays:
            raise damaged(DAMAGED, "another")
        bank = arrays["bank"].tobytes()
        if bank:
            self._open(float(values["start"]), bank, Reached(**reached))

    def _open(self, start: float, head: bytes | None, reached: Reached) -> None:
        scoring = self._scoring
        self._scorer = Entities(
            scoring.model,
            scoring.keep,
            start,
            head,
            self._entities,
            scoring.limit,
            alarms=scoring.alarms,
            context=scoring.context,
        )
        self._plausible = scoring.check(start, reached)

    @property
    def position(self) -> str | None:
        """Up to where messages are scored; None before the first."""
        return self._pending.position or self.held.position

    @property
    def uncommitted(self) -> bool:
        """Whether there is anything to commit."""
        return self._pending.position is not None

    @property
    def entities(self) -> int:
        """Entities seen so far."""
        return 0 if self._scorer is None else len(self._scorer.bank)

    @property
    def changed(self) -> int:
        """Entities that a commit would write."""
        return 0 if self._scorer is None else self._scorer.bank.changed

    def score(self, messages: Messages) -> tuple[int, int]:
        """Score messages: how many were events, and how many were refused."""
        first = self.line + 1
        pairs = list(enumerate(messages.contents, start=first))
        repeated = self._repeated(messages.contents)
        kept = [pair for pair in pairs if pair[0] - first not in repeated]
        columns, found = self._events_of(kept)
        scores = self._observed(columns)
        faults: dict[int, UserError] = {}
        numbers = [number for number, _ in kept]
        if found is not None or scores.refused:
            each: Sequence[Any] = columns.events() if found is None else found
            faults, numbers = _faults(kept, each, scores.refused)
        refused = [
            Refusal(number, messages.positions[number - first], content, str(faults[number]))
            for number, content in kept
            if number in faults
        ]
        events = self._add(numbers, columns, scores)
        pending = self._pending
        pending.refusals += refused
        pending.position = messages.positions[-1]
        self.line += len(messages.contents)
        return events, len(refused)

    def _events_of(
        self, kept: list[tuple[int, bytes]]
    ) -> tuple[Columns, list[Event | UserError | None] | None]:
        """The events of messages. Where some are none, or have a time that cannot be right, also
        what each message is.
        """
        contents = [content for _, content in kept]
        longest = max(map(len, contents), default=0)
        columns = None if longest > LONGEST else self._reader.columns(contents)
        found: list[Event | UserError | None]
        if columns is None:
            lines = [_line(number, content) for number, content in kept]
            found = self._plausible_of(self._reader.read(lines))
        else:
            self._begin(columns.times)
            faults = [] if self._plausible is None else self._plausible(columns.times)
            if not any(faults):
                return columns, None
            found = [fault or event for fault, event in zip(faults, columns.events(), strict=True)]
        return Columns.of([one for one in found if isinstance(one, Event)], many=True), found

    def _begin(self, times: Sequence[float]) -> None:
        """Open the bank at the first event."""
        if self._scorer is None and times:
            self._open(self._scoring.start(times[0]), None, Reached())

    def _plausible_of(
        self, found: list[Event | UserError | None]
    ) -> list[Event | UserError | None]:
        events = [one for one in found if isinstance(one, Event)]
        self._begin([event.time for event in events])
        if self._plausible is None:
            return found
        faults = self._plausible([event.at for event in events])
        checked = iter([fault or event for fault, event in zip(faults, events, strict=True)])
        return [next(checked) if isinstance(one, Event) else one for one in found]

    def _observed(self, columns: Columns) -> Scores:
        if self._scorer is None:
            return Scores([], [], [], [], {})
        return self._scorer.observe(columns)

    def _add(self, numbers: list[int], columns: Columns, scores: Scores) -> int:
        """Note the lines and alarms of events that were scored: how many these are."""
        pending = self._pending
        if self._scorer is None or not numbers:
            return 0
        dates = self._scoring.dates
        for place, raised in enumerate(scores.alarms):
            for k, alarm in enumerate(raised):
                if dates is not None:
                    alarm["date"] = dates.text(float(alarm["time"]))
                name = f"{self._store.group}-{self.part}-{numbers[place]}-{k}"
                pending.alarms.append(GroupAlarm(name, alarm))
        rows = rows_of(
            numbers, columns.times, columns.marks, columns.entities, scores, self._scorer.names
        )
        if scores.refused:
            rows = [row for place, row in enumerate(rows) if place not in scores.refused]
        pending.events += len(rows)
        if self._scoring.keep_scores:
            pending.lines += rows
        return len(rows)

    def _repeated(self, contents: list[bytes]) -> set[int]:
        """The places of messages whose ids were there before."""
        name = self._scoring.id
        if name is None:
            return set()
        ids = [_id_of(content, name) for content in contents]
        asked = [id for id in ids if id is not None]
        known = self._store.known_ids(self.part, asked) | self._recent_ids
        repeated: set[int] = set()
        for place, id in enumerate(ids):
            if id is None:
                continue
            if id in known:
                repeated.add(place)
            else:
                known.add(id)
                self._recent_ids.add(id)
                self._pending.ids.append(id)
        return repeated

    # ------------------------------------------------------------------ commits

    def commit(self) -> Commit:
        """What is to be written of all that was scored since the last commit;
        :meth:`committed` must follow.
        """
        pending = self._pending
        scorer = self._scorer
        changes = None if scorer is None else scorer.bank.changes()
        self._changes = changes
        reached = Reached() if self._plausible is None else self._plausible.reached
        header = {
            "line": self.line,
            "start": 0.0 if scorer is None else scorer.bank.start,
            "reached": asdict(reached),
        }
        bank = np.frombuffer(b"" if scorer is None else scorer.state(), dtype=np.uint8)
        is_new = self.entities != len(self._entities)
        return Commit(
            self.part,
            self.held,
            pending.position or "",
            pack(KIND, "", header, {"bank": bank}),
            entities=() if changes is None else changes.rows(),
            total=self.entities if is_new else None,
            lines="".join(pending.lines).encode(),
            events=pending.events,
            refusals=pending.refusals,
            alarms=pending.alarms,
            ids=pending.ids,
        )

    def committed(self, commit: Commit) -> None:
        """What :meth:`commit` gave is in the store."""
        if self._scorer is not None and self._changes is not None:
            self._scorer.bank.written(self._changes, success=True)
        self._entities.committed(self.entities)
        self.held = commit.after()
        self._pending = _Pending()
        self._recent_ids = set()


def _line(number: int, content: bytes) -> Line:
    return Line(number, content if len(content) <= LONGEST else None, len(content))


def _faults(
    kept: list[tuple[int, bytes]], found: Sequence[Any], refused: dict[int, UserError]
) -> tuple[dict[int, UserError], list[int]]:
    """The errors of messages by their numbers, and the numbers of those that are events."""
    faults: dict[int, UserError] = {}
    numbers: list[int] = []
    for (number, content), event in zip(kept, found, strict=True):
        if isinstance(event, Event):
            fault = refused.get(len(numbers))
            numbers.append(number)
        elif event is None:
            fault = _empty(content)
        else:
            fault = event
        if fault is not None:
            faults[number] = fault
    return faults, numbers


def _empty(content: bytes) -> UserError:
    return UserError("an event", f"a message of {len(content)} blanks", "Leave it out.")


def _id_of(content: bytes, name: str) -> bytes | None:
    """The id of an event; None where it has none."""
    try:
        found = loader()(content)
    except ValueError:
        return None
    value = found.get(name) if isinstance(found, dict) else None
    return str(value).encode("utf-8", "surrogatepass") if isinstance(value, str | int) else None
