"""What the service must not lose: events, states of entities, alarms and the offsets of sources.

    events     every accepted event in the order of arrival, numbered 1, 2, ...
    batches    the events of each transaction, and how far the watermark had come after it
    slots      one per followed model: its last complete snapshot, after which batch, and its head
    states     the entities of snapshots, in versions
    alarms, offsets, texts

All of one :meth:`SqlStore.transaction` appears at once. A snapshot is written in slices, with the
batches of later events, so that no batch waits for all entities: rows of version v count once the
slot says that v is complete; until then those before it count. A state is therefore

    snapshot of batch b  +  the events of batches b + 1, b + 2, ...  in the same batches.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, TypeVar

from fourpoint.errors import UserError
from fourpoint.serve.databases import READER_CACHE, Connection, Database, StoreError
from fourpoint.streaming.state import Arrays
from fourpoint.streaming.store import Row, entity_key, entity_name, pack_entity, unpack_entity

T = TypeVar("T")
Changed = Iterable[tuple[str, dict[str, Any], Arrays]]  # names, headers and arrays
SCHEMA = 1
TABLES = (
    "CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, id BLOB UNIQUE, "
    "entity BLOB NOT NULL, time REAL NOT NULL, moment REAL NOT NULL, mark INTEGER NOT NULL, "
    "features BLOB, late INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS batches (batch INTEGER PRIMARY KEY, first INTEGER NOT NULL, "
    "last INTEGER NOT NULL, frontier REAL, moment REAL, scores BLOB)",
    "CREATE TABLE IF NOT EXISTS slots (slot INTEGER PRIMARY KEY, role TEXT NOT NULL, "
    "model TEXT NOT NULL, begin REAL, version INTEGER NOT NULL, batch INTEGER NOT NULL, "
    "head BLOB, tally TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS states (slot INTEGER NOT NULL, name BLOB NOT NULL, "
    "version INTEGER NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL, "
    "PRIMARY KEY (slot, name, version))",
    "CREATE TABLE IF NOT EXISTS alarms (alarm INTEGER PRIMARY KEY, moment REAL NOT NULL, "
    "kind TEXT NOT NULL, body TEXT NOT NULL, acknowledged TEXT)",
    "CREATE TABLE IF NOT EXISTS offsets (source TEXT NOT NULL, part TEXT NOT NULL, "
    "value TEXT NOT NULL, PRIMARY KEY (source, part))",
    "CREATE TABLE IF NOT EXISTS texts (name TEXT PRIMARY KEY, body TEXT NOT NULL)",
)
INDEXES = ("CREATE INDEX IF NOT EXISTS events_entity ON events (entity, seq)",)
EVENT = "seq, id, entity, time, moment, mark, features, late"
READERS = 4  # connections that are kept for questions


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it is stored.

    ``time`` is in its window and ``moment`` on the clock of the whole log; they differ where the
    model was fitted to windows of the calendar. ``late`` says that it came too late to be scored.
    """

    seq: int
    id: str | None
    entity: str
    time: float
    moment: float
    mark: int
    features: bytes | None
    late: bool


class Batch(NamedTuple):
    """The events ``first`` to ``last`` of one transaction (none where ``last`` is less), after
    which all events up to ``frontier`` were scored. ``moment`` is the latest time among all events
    so far, and ``scores`` are those of the events that were scored.
    """

    batch: int
    first: int
    last: int
    frontier: float | None
    moment: float | None
    scores: bytes | None


@dataclass(frozen=True)
class Slot:
    """A followed model: its fingerprint, when its observation ``begin``s, and its last complete
    snapshot, ``version``, which belongs to the state after ``batch``.
    """

    slot: int
    role: str
    model: str
    begin: float | None
    version: int
    batch: int
    head: bytes | None
    tally: str


class StoredAlarm(NamedTuple):
    """An alarm: its number, its time on the clock of the log, its kind, its fields as JSON, and
    who acknowledged it when, as JSON; None: nobody has.
    """

    alarm: int
    moment: float
    kind: str
    body: str
    acknowledged: str | None


class SqlStore:
    """A store in SQLite or PostgreSQL: the same statements serve both, through the interface of
    `serve.databases`. Writing belongs to one thread, inside :meth:`transaction`; questions may come
    from any thread.

    >>> import tempfile
    >>> from fourpoint.serve.databases import database
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = SqlStore(database(f"sqlite:///{folder}/state.db"))
    ...     with store.transaction():
    ...         store.append([StoredEvent(1, "a", "north", 2.5, 2.5, 0, None, False)])
    ...     found = store.known(["a", "b"]), store.counts()["events"]
    ...     store.close()
    >>> found
    ({'a'}, 1)
    """

    def __init__(self, source: Database, *, writable: bool = True) -> None:
        self.url = source.url
        self._source = source
        self._writable = writable
        self._closed = False
        self._writing = source.connect()
        self._readers: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        try:
            if writable:
                source.lock(self._writing)
                with self._writing.transaction():
                    for statement in (*TABLES, *INDEXES):
                        self._writing.execute(statement)
            self._check_schema()
        except BaseException:
            self.close()
            raise

    def _check_schema(self) -> None:
        found = self.text("schema")
        if found is None and self._writable:
            with self.transaction():
                self.put_text("schema", str(SCHEMA))
        elif found != str(SCHEMA):
            raise UserError(
                f"a store of version {SCHEMA}",
                f"version {found}",
                "Use the version of Fourpoint that wrote it, or another --store.",
            )

    def reconnect(self) -> None:
        """Connect anew after an error; raises :class:`StoreError` while that is not possible."""
        try:
            self._writing.execute("SELECT 1")
        except StoreError:
            self._writing.close()
            writing = self._source.connect()
            try:
                self._source.lock(writing)
            except BaseException:
                writing.close()
                raise
            self._writing = writing

    def close(self) -> None:
        """Let go of the database."""
        self._closed = True
        self._writing.close()
        self._drop_readers()
        self._source.release()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._with_reader(self._source.size)

    # ------------------------------------------------------------------ writing, by one thread

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        with self._writing.transaction():
            yield

    def append(self, events: Sequence[StoredEvent]) -> None:
        """New events."""
        self._writing.execute_many(
            f"INSERT INTO events ({EVENT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    event.seq,
                    None if event.id is None else entity_key(event.id),
                    entity_key(event.entity),
                    event.time,
                    event.moment,
                    event.mark,
                    event.features,
                    int(event.late),
                )
                for event in events
            ],
        )

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that events have already."""
        keys = [entity_key(id) for id in ids]
        found: set[str] = set()
        for condition, values in self._writing.among("id", keys):
            rows = self._writing.execute(f"SELECT id FROM events WHERE {condition}", values)
            found.update(entity_name(row[0]) for row in rows)
        return found

    def put_batch(self, batch: Batch) -> None:
        """A batch."""
        self._writing.execute(
            "INSERT INTO batches (batch, first, last, frontier, moment, scores) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            tuple(batch),
        )

    def put_states(self, slot: int, version: int, changes: Changed) -> None:
        """Entities of a snapshot, which count once :meth:`put_slot` has named its version."""
        rows = [(slot, key, version, *rest) for key, *rest in (pack_entity(*c) for c in changes)]
        self._writing.execute_many(
            "INSERT INTO states (slot, name, version, digest, body) VALUES (?, ?, ?, ?, ?)", rows
        )

    def drop_states(self, slot: int, versions: Sequence[tuple[str, int]]) -> None:
        """Forget the rows of entities before the version of each."""
        self._writing.execute_many(
            "DELETE FROM states WHERE slot = ? AND name = ? AND version < ?",
            [(slot, entity_key(name), version) for name, version in versions],
        )

    def drop_unfinished(self, slot: int, version: int) -> None:
        """Forget the rows of a snapshot that was not completed."""
        self._writing.execute("DELETE FROM states WHERE slot = ? AND version > ?", (slot, version))

    def put_slot(self, slot: Slot) -> None:
        """A slot, instead of the one with this number."""
        self._writing.execute(
            "INSERT INTO slots (slot, role, model, begin, version, batch, head, tally) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (slot) DO UPDATE SET "
            "role = excluded.role, model = excluded.model, begin = excluded.begin, "
            "version = excluded.version, batch = excluded.batch, head = excluded.head, "
            "tally = excluded.tally",
            astuple(slot),
        )

    def drop_slot(self, slot: int) -> None:
        """Forget a model that is no longer followed, with its entities."""
        self._writing.execute("DELETE FROM slots WHERE slot = ?", (slot,))
        self._writing.execute("DELETE FROM states WHERE slot = ?", (slot,))

    def put_alarms(self, alarms: Sequence[StoredAlarm]) -> None:
        """New alarms."""
        self._writing.execute_many(
            "INSERT INTO alarms (alarm, moment, kind, body, acknowledged) VALUES (?, ?, ?, ?, ?)",
            [tuple(alarm) for alarm in alarms],
        )

    def acknowledge(self, alarm: int, by: str) -> None:
        """Note on an alarm who has seen it, as JSON."""
        self._writing.execute("UPDATE alarms SET acknowledged = ? WHERE alarm = ?", (by, alarm))

    def put_offset(self, source: str, part: str, value: str) -> None:
        """How far a source has been read."""
        self._writing.execute(
            "INSERT INTO offsets (source, part, value) VALUES (?, ?, ?) "
            "ON CONFLICT (source, part) DO UPDATE SET value = excluded.value",
            (source, part, value),
        )

    def put_text(self, name: str, body: str) -> None:
        """A text under a name."""
        self._writing.execute(
            "INSERT INTO texts (name, body) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET body = excluded.body",
            (name, body),
        )

    def compact(self, batch: int, moment: float, most: int) -> int:
        """Forget up to ``most`` events of batches up to ``batch`` that are older than ``moment``;
        how many they were.
        """
        rows = self._writing.execute(
            "SELECT seq FROM events WHERE moment < ? AND seq <= "
            "(SELECT max(last) FROM batches WHERE batch <= ?) ORDER BY seq LIMIT ?",
            (moment, batch, most),
        )
        if not rows:
            return 0
        self._writing.execute_many("DELETE FROM events WHERE seq = ?", rows)
        oldest = self._writing.execute("SELECT min(seq) FROM events")[0][0]
        self._writing.execute(
            "DELETE FROM batches WHERE batch <= ? AND last < ?",
            (batch, rows[-1][0] + 1 if oldest is None else oldest),
        )
        return len(rows)

    def reclaim(self) -> None:
        """Give the space of removed rows back to the file system."""
        self._source.reclaim(self._writing)

    # ------------------------------------------------------------------ questions, of any thread

    def _with_reader(self, question: Callable[[Connection], T]) -> T:
        """The answer to a question, by a connection that is kept for the next ones. A connection
        that the server has closed meanwhile is replaced.
        """
        if self._closed:
            raise StoreError("the store is closed")
        try:
            connection = self._readers.get_nowait()
        except queue.Empty:
            connection = self._source.connect(cache=READER_CACHE)
        try:
            answer = question(connection)
        except StoreError:
            connection.close()
            self._drop_readers()
            connection = self._source.connect(cache=READER_CACHE)
            try:
                answer = question(connection)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            connection.close()
            raise
        if self._readers.qsize() < READERS:
            self._readers.put(connection)
        else:
            connection.close()
        return answer

    def _drop_readers(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()

    def _ask(self, question: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._with_reader(lambda connection: connection.execute(question, values))

    def text(self, name: str) -> str | None:
        """A text."""
        rows = self._ask("SELECT body FROM texts WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    def offset(self, source: str, part: str) -> str | None:
        """How far a source was read; None: nothing of it."""
        rows = self._ask("SELECT value FROM offsets WHERE source = ? AND part = ?", (source, part))
        return rows[0][0] if rows else None

    def offsets(self, source: str) -> dict[str, str]:
        """How far each part of a source was read."""
        return dict(self._ask("SELECT part, value FROM offsets WHERE source = ?", (source,)))

    def slots(self) -> list[Slot]:
        """All slots."""
        rows = self._ask(
            "SELECT slot, role, model, begin, version, batch, head, tally FROM slots ORDER BY slot"
        )
        return [Slot(*row) for row in rows]

    def last_batch(self) -> Batch | None:
        """The last batch; None before the first."""
        rows = self.batches(None, most=1)
        return rows[0] if rows else None

    def batch(self, number: int) -> Batch | None:
        """One batch; None where there is none with this number."""
        found = self.batches(number - 1, most=1)
        return found[0] if found and found[0].batch == number else None

    def batches(self, after: int | None, most: int) -> list[Batch]:
        """Up to ``most`` batches after the number ``after``, in order; None: the last of all,
        the latest first.
        """
        columns = "batch, first, last, frontier, moment, scores"
        if after is None:
            question = f"SELECT {columns} FROM batches ORDER BY batch DESC LIMIT ?"
            return [Batch(*row) for row in self._ask(question, (most,))]
        question = f"SELECT {columns} FROM batches WHERE batch > ? ORDER BY batch LIMIT ?"
        return [Batch(*row) for row in self._ask(question, (after, most))]

    def last_sequence(self) -> int:
        """The number of the last event; 0 before the first."""
        found = self._ask("SELECT max(last) FROM batches")[0][0]
        return 0 if found is None else int(found)

    def events(self, first: int, last: int) -> list[StoredEvent]:
        """Events by their numbers, both included, in order."""
        question = f"SELECT {EVENT} FROM events WHERE seq >= ? AND seq <= ? ORDER BY seq"
        return [_event(row) for row in self._ask(question, (first, last))]

    def pending(self, first: int, last: int, frontier: float) -> list[StoredEvent]:
        """Events from the number ``first`` to ``last`` that wait to be scored: those after
        ``frontier``.
        """
        question = (
            f"SELECT {EVENT} FROM events WHERE seq >= ? AND seq <= ? AND moment > ? AND late = 0 "
            "ORDER BY seq"
        )
        return [_event(row) for row in self._ask(question, (first, last, frontier))]

    def recent(self, most: int, entity: str | None = None) -> list[StoredEvent]:
        """The last ``most`` events, of one entity or of all, in the order of arrival."""
        if entity is None:
            question = f"SELECT {EVENT} FROM events ORDER BY seq DESC LIMIT ?"
            rows = self._ask(question, (most,))
        else:
            question = f"SELECT {EVENT} FROM events WHERE entity = ? ORDER BY seq DESC LIMIT ?"
            rows = self._ask(question, (entity_key(entity), most))
        return [_event(row) for row in rows[::-1]]

    def late(self, most: int) -> list[StoredEvent]:
        """The last events that came too late to be scored."""
        question = f"SELECT {EVENT} FROM events WHERE late = 1 ORDER BY seq DESC LIMIT ?"
        return [_event(row) for row in self._ask(question, (most,))]

    def alarms(
        self, most: int, before: int | None = None, *, unseen: bool = False
    ) -> list[StoredAlarm]:
        """The last alarms before the number ``before``, the latest first; ``unseen``: only those
        that nobody has acknowledged.
        """
        limits = "alarm < ?" + (" AND acknowledged IS NULL" if unseen else "")
        question = (
            "SELECT alarm, moment, kind, body, acknowledged FROM alarms "
            f"WHERE {limits} ORDER BY alarm DESC LIMIT ?"
        )
        rows = self._ask(question, (2**62 if before is None else before, most))
        return [StoredAlarm(*row) for row in rows]

    def alarms_after(self, number: int, most: int) -> list[StoredAlarm]:
        """Up to ``most`` alarms after a number, in order."""
        rows = self._ask(
            "SELECT alarm, moment, kind, body, acknowledged FROM alarms WHERE alarm > ? "
            "ORDER BY alarm LIMIT ?",
            (number, most),
        )
        return [StoredAlarm(*row) for row in rows]

    def alarm(self, number: int) -> StoredAlarm | None:
        """One alarm; None where there is none with this number."""
        found = self.alarms(1, number + 1)
        return found[0] if found and found[0].alarm == number else None

    def counts(self) -> dict[str, int]:
        """Rows of the main tables."""
        names = ("events", "alarms")
        return {name: int(self._ask(f"SELECT count(*) FROM {name}")[0][0]) for name in names}

    # ------------------------------------------------------------------ entities of a snapshot

    def state_rows(self, slot: int, version: int, names: Sequence[str]) -> dict[str, Row]:
        """The rows of entities in the snapshot ``version``; those that are not there are left
        out.
        """
        found: dict[str, Row] = {}
        for condition, values in self._writing.among("name", [entity_key(n) for n in names]):
            rows = self._ask(
                f"SELECT name, digest, body FROM states WHERE slot = ? AND version <= ? "
                f"AND {condition} ORDER BY version",
                (slot, version, *values),
            )
            for key, digest, body in rows:
                found[entity_name(key)] = unpack_entity(key, digest, body)
        return found

    def state_names(self, slot: int, version: int, after: str = "", most: int = -1) -> list[str]:
        """The names of entities in the snapshot ``version`` after a name, in order."""
        limit = f" LIMIT {int(most)}" if most >= 0 else ""
        rows = self._ask(
            "SELECT DISTINCT name FROM states WHERE slot = ? AND version <= ? AND name > ? "
            f"ORDER BY name{limit}",
            (slot, version, entity_key(after)),
        )
        return [entity_name(row[0]) for row in rows]


class SlotEntities:
    """The entities of a slot's last complete snapshot, for a bank
    (:class:`~fourpoint.streaming.store.EntityStore`). A bank never writes to it: snapshots are
    written with batches.
    """

    def __init__(self, store: SqlStore, slot: int, version: int) -> None:
        self._store, self._slot, self.version = store, slot, version
        self._count = len(store.state_names(slot, version))

    def completed(self, version: int, entities: int) -> None:
        """A later snapshot is complete, and has so many entities in all."""
        self.version, self._count = version, entities

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return bool(self.read([name]))

    def names(self) -> Iterable[str]:
        """All names."""
        return self._store.state_names(self._slot, self.version)

    def names_after(self, name: str | None, most: int) -> list[str]:
        """The first ``most`` names after ``name``."""
        return self._store.state_names(self._slot, self.version, name or "", most)

    def read(self, names: Sequence[str]) -> dict[str, Row]:
        """The rows of those names that are there."""
        return self._store.state_rows(self._slot, self.version, names)

    def write(self, rows: Changed) -> None:
        """Refused: entities are written by the service."""
        raise UserError(
            "entities that the service writes",
            "a bank that writes them",
            "Please report this error.",
        )

    def clear(self) -> None:
        """Refused, as :meth:`write`."""
        self.write([])


def _event(row: Sequence[Any]) -> StoredEvent:
    seq, id, entity, time, moment, mark, features, late = row
    return StoredEvent(
        int(seq),
        None if id is None else entity_name(bytes(id)),
        entity_name(bytes(entity)),
        float(time),
        float(moment),
        int(mark),
        None if features is None else bytes(features),
        bool(late),
    )
