"""A model that follows the events of the service: its streams, its snapshots and its totals.

The live model is one; a shadow model beside it, and a refitted model that is about to replace it,
are others. Each has a slot in the store, with a snapshot of its entities after some batch. The
events of later batches bring it up to date.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fourpoint.models.base import PointProcess
from fourpoint.serve.settings import Scoring
from fourpoint.serve.store import Slot, SlotEntities, SqlStore, StoredEvent
from fourpoint.serve.watermark import Watermark
from fourpoint.streaming.entity_table import Changes
from fourpoint.streaming.feed.encoding import Scores
from fourpoint.streaming.feed.events import Columns, Entities
from fourpoint.streaming.feed.times import TimeReader
from fourpoint.streaming.state import Arrays, fingerprint

LIVE, SHADOW, CANDIDATE = "live", "shadow", "candidate"
AT_ONCE = 4096  # events in one call of the bank
BLOCK = 64  # events of a block whose mean difference counts as one value
Floats = NDArray[np.float64]


@dataclass
class Totals:
    """What a model has scored."""

    events: int = 0
    unscored: int = 0
    log_likelihood: float = 0.0
    waiting_from: int = 0  # the number of the first event that waited when the snapshot was made

    def count(self, densities: Sequence[float]) -> None:
        """Add up log-densities one after the other, so that batches make no difference."""
        total = self.log_likelihood
        for density in densities:
            total += -math.inf if math.isnan(density) else density
        self.log_likelihood = total
        self.events += len(densities)


@dataclass
class Paired:
    """How the log-densities of the shadow model differ from those of the live one, event by event:
    sums over events, and over blocks of 64 of them.
    """

    compared: int = 0
    difference: float = 0.0  # the sum of log-density less that of the live model
    block: float = 0.0  # of the block in hand
    blocks: int = 0
    squares: float = 0.0  # of the means of complete blocks
    means: float = 0.0

    def compare(self, own: Sequence[float], live: Sequence[float]) -> None:
        """Pairs of log-densities of the same events."""
        for mine, other in zip(own, live, strict=True):
            difference = mine - other
            if not math.isfinite(difference):
                continue
            self.compared += 1
            self.difference += difference
            self.block += difference
            if self.compared % BLOCK == 0:
                mean = self.block / BLOCK
                self.means += mean
                self.squares += mean * mean
                self.blocks += 1
                self.block = 0.0

    def gain(self) -> dict[str, float | int | None]:
        """The mean difference per event in nats, with a 95% interval from the means of blocks,
        which allows for the dependence of neighbouring events; None with fewer than 10 blocks.
        """
        mean = self.difference / self.compared if self.compared else None
        if self.blocks < 10 or mean is None:
            return {"gain": mean, "low": None, "high": None, "events": self.compared}
        centre = self.means / self.blocks
        variance = max(self.squares / self.blocks - centre**2, 0.0) * self.blocks
        error = math.sqrt(variance / (self.blocks - 1) / self.blocks)
        return {
            "gain": mean,
            "low": mean - 1.96 * error,
            "high": mean + 1.96 * error,
            "events": self.compared,
        }


@dataclass
class _Snapshot:
    """A snapshot that is being written."""

    slot: Slot
    changes: Changes
    rows: Iterator[tuple[str, dict[str, object], Arrays]]
    entities: int
    left: int


@dataclass
class Following:
    """A model, its slot, and its streams once the first event has come."""

    model: PointProcess
    slot: Slot
    store: SqlStore
    scoring: Scoring
    times: TimeReader
    totals: Totals = field(default_factory=Totals)
    entities: Entities | None = None

    def __post_init__(self) -> None:
        self.totals = Totals(**json.loads(self.slot.tally))
        self._view = SlotEntities(self.store, self.slot.slot, self.slot.version)
        self._snapshot: _Snapshot | None = None
        # Entities of complete snapshots, whose rows of former versions can go.
        self._stale: list[tuple[str, int]] = []
        self.since_snapshot = 0
        self.replayed = self.slot.batch  # the last batch that was replayed
        self._watermark: Watermark | None = None  # after that batch
        if self.slot.begin is not None:
            self._open(self.slot.begin, self.slot.head)

    @staticmethod
    def new_slot(number: int, role: str, model: PointProcess, batch: int) -> Slot:
        """The slot of a model that has seen nothing, and begins after ``batch``."""
        tally = json.dumps(asdict(Totals()))
        return Slot(number, role, fingerprint(model), None, 0, batch, None, tally)

    def become(self, slot: Slot) -> None:
        """Have another role from now on."""
        self.slot = slot
        if self._snapshot is not None:
            self._snapshot.slot = replace(self._snapshot.slot, role=slot.role)

    def begin(self, start: float) -> None:
        """Open the observation at ``start``; the slot must be written with the same batch."""
        self.slot = replace(self.slot, begin=start)
        self._open(start, None)

    def _open(self, start: float, head: bytes | None) -> None:
        calendar = self.times.calendar is not None
        self.entities = Entities(
            self.model,
            None,
            start,
            head,
            self._view,
            self.scoring.limit,
            alarms=self.scoring.alarms,
            fleet=not calendar,
            context=self.scoring.beside.context(self.times, start),
        )

    def __len__(self) -> int:
        """Entities seen."""
        return 0 if self.entities is None else len(self.entities.bank)

    def unknown(self, names: set[str]) -> set[str]:
        """Those of the names that no entity has, in memory or in the store."""
        if self.entities is None:
            return names
        absent = [name for name in names if name not in self.entities.bank.table.row]
        return set(absent) - set(self._view.read(absent))

    def score(self, events: Sequence[StoredEvent]) -> Scores:
        """Score events in this order."""
        found = Scores([], [], [], [], {})
        if self.entities is None:
            return found
        for first in range(0, len(events), AT_ONCE):
            part = self.entities.observe(_columns(events[first : first + AT_ONCE]))
            found.refused.update({first + place: why for place, why in part.refused.items()})
            found.log_density.extend(part.log_density)
            found.gap.extend(part.gap)
            found.rate.extend(part.rate)
            found.alarms.extend(part.alarms)
        kept = [d for i, d in enumerate(found.log_density) if i not in found.refused]
        self.totals.count(kept)
        self.totals.unscored += len(found.refused)
        self.since_snapshot += len(events)
        return found

    # ------------------------------------------------------------------ snapshots

    @property
    def has_more_to_write(self) -> bool:
        """Whether a snapshot is being written, or former ones are being removed."""
        return self._snapshot is not None or bool(self._stale)

    @property
    def is_saving(self) -> bool:
        """Whether a snapshot is being written."""
        return self._snapshot is not None

    @property
    def changed(self) -> int:
        """Entities that are not in the last snapshot as they are now."""
        return 0 if self.entities is None else self.entities.bank.changed

    def begin_snapshot(self, batch: int, watermark: Watermark) -> None:
        """Copy what has changed up to ``batch``, which was committed; :meth:`write_some` writes
        it.
        """
        if self.entities is None or self._snapshot is not None:
            return
        bank = self.entities.bank
        totals = asdict(self.totals) | {"waiting_from": watermark.first or 0}
        changes = bank.changes()
        slot = replace(
            self.slot,
            version=self.slot.version + 1,
            batch=batch,
            head=bank.head(),
            tally=json.dumps(totals),
        )
        self._snapshot = _Snapshot(slot, changes, changes.rows(), len(bank), len(changes.names))
        self.since_snapshot = 0

    def write_some(self, most: int) -> bool:
        """Write up to ``most`` rows in the transaction that is open; whether the snapshot is
        complete with it.
        """
        work = self._snapshot
        if self._stale:
            self.store.drop_states(self.slot.slot, self._stale[:most])
            del self._stale[:most]
        if work is None:
            return False
        rows = list(islice(work.rows, most))
        self.store.put_states(work.slot.slot, work.slot.version, rows)
        work.left -= len(rows)
        if work.left > 0:
            return False
        self.store.put_slot(work.slot)
        return True

    def snapshot_written(self) -> None:
        """The transaction in which the snapshot was completed is committed."""
        work = self._snapshot
        if work is None or self.entities is None:
            return
        self._snapshot = None
        self.slot = work.slot
        self._view.completed(work.slot.version, work.entities)
        self.entities.bank.written(work.changes, success=True)
        self._stale += [(name, work.slot.version) for name in work.changes.names]

    def replay(self, batches_at_once: int = 256) -> Watermark:
        """Bring the model up to date with the events that are stored after its snapshot, or after
        the last replay; the watermark then.
        """
        if self._watermark is None:
            self._watermark = self._watermark_of_snapshot()
        watermark = self._watermark
        while True:
            batches = self.store.batches(self.replayed, batches_at_once)
            if not batches:
                return watermark
            events = self.store.events(batches[0].first, max(b.last for b in batches))
            place = 0
            for batch in batches:
                own: list[StoredEvent] = []
                while place < len(events) and events[place].seq <= batch.last:
                    own.append(events[place])
                    place += 1
                self._replay_batch(own, batch.frontier, watermark)
            self.replayed = batches[-1].batch

    def _watermark_of_snapshot(self) -> Watermark:
        """The watermark, and the events that waited, when the snapshot was made."""
        lateness = float(self.store.text("lateness") or 0.0)
        before = self.store.batch(self.slot.batch)
        watermark = Watermark(lateness, None if before is None else before.frontier)
        if before is not None and self.totals.waiting_from:
            first = self.totals.waiting_from
            for event in self.store.pending(first, before.last, watermark.frontier):
                watermark.wait(event)
        return watermark

    def _replay_batch(
        self, events: list[StoredEvent], frontier: float | None, watermark: Watermark
    ) -> None:
        leaving = watermark.add([event for event in events if not event.late])
        if frontier is not None and frontier > watermark.frontier:
            leaving = leaving + watermark.advance(frontier)
        if leaving:
            self.score(leaving)


def _columns(events: Sequence[StoredEvent]) -> Columns:
    features = None
    if events and events[0].features is not None:
        features = [tuple(np.frombuffer(e.features or b"").tolist()) for e in events]
    return Columns(
        [event.time for event in events],
        [event.mark for event in events],
        [event.entity for event in events],
        features,
    )
