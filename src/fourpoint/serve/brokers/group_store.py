"""What the workers of a consumer group share: who owns which partition, and all that belongs to it.

    partitions   owner, lease and fencing token; version, position in the broker, and head of a bank
    entities     the states of the entities of each partition
    scores       the scored events of each commit, as JSON Lines
    refusals     messages that are no events of the model, with the reason
    alarms       alarms, and `outbox`, where each of them still has to be sent
    event_ids    ids of events, where producers give them one

A partition has one owner, which holds a fencing token. Whoever takes a partition over increases the
token, and a commit is accepted only if

    token in the store = token of the worker   and   version in the store = version it began from,

so that a worker which was thought dead, and is not, cannot write any more. Position, states,
scores, refusals and alarms of a commit appear in one transaction: each message counts once, in
whichever order workers come and go. Leases, which need a clock, only decide when a partition may be
taken over; a wrong clock delays that and harms nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from fourpoint.errors import UserError
from fourpoint.serve.databases import Connection, StoreError, database
from fourpoint.streaming.store import (
    Row,
    entity_key,
    entity_name,
    pack_entity,
    unpack_entity,
)

T = TypeVar("T")
Value = str | int | float | None
RETRY = 30.0  # seconds for which a database that fails is tried again
PAUSE = 0.2  # seconds between two attempts
OUTBOX = -1  # the number of the partition whose owner sends alarms
TABLES = (
    "CREATE TABLE IF NOT EXISTS group_settings (grp TEXT NOT NULL, name TEXT NOT NULL, "
    "value TEXT NOT NULL, PRIMARY KEY (grp, name))",
    "CREATE TABLE IF NOT EXISTS group_workers (grp TEXT NOT NULL, worker TEXT NOT NULL, "
    "seen REAL NOT NULL, PRIMARY KEY (grp, worker))",
    "CREATE TABLE IF NOT EXISTS group_partitions (grp TEXT NOT NULL, part INTEGER NOT NULL, "
    "owner TEXT, token INTEGER NOT NULL, expires REAL NOT NULL, version INTEGER NOT NULL, "
    "position TEXT, head BLOB, PRIMARY KEY (grp, part))",
    "CREATE TABLE IF NOT EXISTS group_entities (grp TEXT NOT NULL, name BLOB NOT NULL, "
    "part INTEGER NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL, PRIMARY KEY (grp, name))",
    "CREATE TABLE IF NOT EXISTS group_scores (grp TEXT NOT NULL, part INTEGER NOT NULL, "
    "version INTEGER NOT NULL, position TEXT NOT NULL, events INTEGER NOT NULL, "
    "lines BLOB NOT NULL, PRIMARY KEY (grp, part, version))",
    "CREATE TABLE IF NOT EXISTS group_refusals (grp TEXT NOT NULL, part INTEGER NOT NULL, "
    "line INTEGER NOT NULL, position TEXT NOT NULL, content BLOB NOT NULL, reason TEXT NOT NULL, "
    "PRIMARY KEY (grp, part, line))",
    "CREATE TABLE IF NOT EXISTS group_alarms (grp TEXT NOT NULL, id TEXT NOT NULL, "
    "body TEXT NOT NULL, PRIMARY KEY (grp, id))",
    "CREATE TABLE IF NOT EXISTS group_outbox (grp TEXT NOT NULL, id TEXT NOT NULL, "
    "sink TEXT NOT NULL, attempts INTEGER NOT NULL, due REAL NOT NULL, error TEXT, "
    "PRIMARY KEY (grp, id, sink))",
    "CREATE TABLE IF NOT EXISTS group_event_ids (grp TEXT NOT NULL, part INTEGER NOT NULL, "
    "id BLOB NOT NULL, PRIMARY KEY (grp, part, id))",
)
INDEXES = (
    "CREATE INDEX IF NOT EXISTS group_entities_part ON group_entities (grp, part, name)",
    "CREATE INDEX IF NOT EXISTS group_outbox_due ON group_outbox (grp, due)",
)


class Lease(NamedTuple):
    """Who owns a partition, with which token, and until when without a sign of life."""

    owner: str | None
    token: int
    expires: float


class Held(NamedTuple):
    """A partition as its owner finds it: the token, how often it was committed, up to where it is
    done, and the head of its bank (None before the first commit).
    """

    token: int
    version: int
    position: str | None
    head: bytes | None


class Refusal(NamedTuple):
    """A message that was not scored: its number in the partition, where it is, and why."""

    line: int
    position: str
    content: bytes
    reason: str


class GroupAlarm(NamedTuple):
    """An alarm with the id by which its receivers know it again."""

    id: str
    body: dict[str, Any]


@dataclass
class Commit:
    """All that becomes true of one partition at once, after ``held``."""

    part: int
    held: Held
    position: str
    head: bytes
    entities: Iterable[tuple[str, dict[str, Any], dict[str, Any]]] = ()
    total: int | None = None  # entities of the partition, where there are new ones
    lines: bytes = b""
    events: int = 0
    refusals: Sequence[Refusal] = ()
    alarms: Sequence[GroupAlarm] = ()
    ids: Sequence[bytes] = ()
    packed: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)

    def after(self) -> Held:
        """The partition once this is committed."""
        return Held(self.held.token, self.held.version + 1, self.position, self.head)


class Delivery(NamedTuple):
    """An alarm that has to be sent to a sink, after so many attempts."""

    alarm: GroupAlarm
    sink: str
    attempts: int


class GroupStore:
    """The shared store of one consumer group, in SQLite or PostgreSQL (``url``).

    A database that is away is tried again for ``retry`` seconds, and then raises
    :class:`~fourpoint.serve.databases.StoreError`. One thread at a time may use it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = GroupStore(f"sqlite:///{place}/group.db", "watch")
    ...     one = store.claim([0], "worker 1", 10.0)[0]
    ...     two = store.claim([0], "worker 2", 10.0, force=True)[0]
    ...     fenced = store.commit([Commit(0, one, "5", b"")])
    ...     done = store.commit([Commit(0, two, "5", b"")])
    ...     position = store.held(0).position
    ...     store.close()
    >>> fenced, done, position
    ({0}, set(), '5')
    """

    def __init__(
        self,
        url: str,
        group: str,
        *,
        retry: float = RETRY,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.group = group
        self.url = url
        self._retry = retry
        self._tell = tell
        self._source = database(url)
        self._connection: Connection | None = None
        self._attempt(self._make_tables)

    def beside(self) -> GroupStore:
        """The same store with a connection of its own, for another thread."""
        return GroupStore(self.url, self.group, retry=self._retry, tell=self._tell)

    def close(self) -> None:
        """Let go of the database."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def now(self) -> float:
        """Seconds since 1970 by this machine's clock."""
        return time.time()

    # ------------------------------------------------------------------ settings

    def settle(self, settings: dict[str, Value]) -> dict[str, Value]:
        """The settings that the whole group has: those that were settled first count, and are
        returned.
        """

        def put(connection: Connection) -> dict[str, Value]:
            with connection.transaction():
                connection.execute_many(
                    "INSERT INTO group_settings (grp, name, value) VALUES (?, ?, ?) "
                    "ON CONFLICT (grp, name) DO NOTHING",
                    [(self.group, name, json.dumps(value)) for name, value in settings.items()],
                )
            return self._settings(connection)

        return self._attempt(put)

    def settings(self) -> dict[str, Value]:
        """All settings of the group; empty before its first worker."""
        return self._attempt(self._settings)

    def _settings(self, connection: Connection) -> dict[str, Value]:
        rows = connection.execute(
            "SELECT name, value FROM group_settings WHERE grp = ?", (self.group,)
        )
        return {name: json.loads(value) for name, value in rows}

    # ------------------------------------------------------------------ workers and leases

    def beat(
        self, worker: str, lease: float, tokens: Mapping[int, int] | None = None
    ) -> tuple[list[str], set[int]]:
        """A sign of life of ``worker``, which keeps its partitions (``tokens``) for ``lease``
        seconds more: the workers of which there was one within ``lease`` seconds, in order, and the
        partitions that are no longer held with these tokens.
        """
        kept = tokens or {}

        def put(connection: Connection) -> tuple[list[str], set[int]]:
            with connection.transaction():
                now = self.now()
                connection.execute(
                    "INSERT INTO group_workers (grp, worker, seen) VALUES (?, ?, ?) "
                    "ON CONFLICT (grp, worker) DO UPDATE SET seen = excluded.seen",
                    (self.group, worker, now),
                )
                connection.execute(
                    "DELETE FROM group_workers WHERE grp = ? AND (seen < ? OR seen > ?)",
                    (self.group, now - lease, now + lease),
                )
                connection.execute_many(
                    "UPDATE group_partitions SET expires = ? "
                    "WHERE grp = ? AND part = ? AND token = ?",
                    [(now + lease, self.group, part, token) for part, token in kept.items()],
                )
                live = connection.execute(
                    "SELECT worker FROM group_workers WHERE grp = ?", (self.group,)
                )
                found = connection.execute(
                    "SELECT part, token FROM group_partitions WHERE grp = ?", (self.group,)
                )
            held = {int(part): int(token) for part, token in found}
            lost = {part for part, token in kept.items() if held.get(part) != token}
            return sorted(row[0] for row in live), lost

        return self._attempt(put)

    def leave(self, worker: str) -> None:
        """``worker`` ends; its partitions are free."""

        def put(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(
                    "DELETE FROM group_workers WHERE grp = ? AND worker = ?", (self.group, worker)
                )
                connection.execute(
                    "UPDATE group_partitions SET owner = NULL, expires = 0 "
                    "WHERE grp = ? AND owner = ?",
                    (self.group, worker),
                )

        self._attempt(put)

    def leases(self) -> dict[int, Lease]:
        """The owners of all partitions that ever had one."""
        rows = self._ask(
            "SELECT part, owner, token, expires FROM group_partitions WHERE grp = ?", (self.group,)
        )
        return {
            int(part): Lease(owner, int(token), expires) for part, owner, token, expires in rows
        }

    def claim(
        self, parts: Sequence[int], worker: str, lease: float, *, force: bool = False
    ) -> dict[int, Held]:
        """Own partitions for ``lease`` seconds and more: what their new owner finds. Those that
        another worker owns, whose lease has not run out, are left out.

        With ``force`` they are taken over whoever owns them, for sources whose brokers assign
        partitions.
        """
        now = self.now()

        def put(connection: Connection) -> dict[int, Held]:
            with connection.transaction():
                connection.execute_many(
                    "INSERT INTO group_partitions (grp, part, token, expires, version) "
                    "VALUES (?, ?, 0, 0, 0) ON CONFLICT (grp, part) DO NOTHING",
                    [(self.group, part) for part in parts],
                )
                expires = self.now() + lease
                # A lease that ends later than any could was written by a clock that is wrong.
                connection.execute_many(
                    "UPDATE group_partitions SET owner = ?, expires = ?, token = token + 1 "
                    "WHERE grp = ? AND part = ? AND (owner IS NULL OR owner = ? OR expires < ? "
                    "OR expires > ? OR ? = 1)",
                    [
                        (worker, expires, self.group, part, worker, now, now + 3 * lease)
                        + (int(force),)
                        for part in parts
                    ],
                )
                rows = connection.execute(
                    "SELECT part FROM group_partitions WHERE grp = ? AND owner = ?",
                    (self.group, worker),
                )
                mine = {int(row[0]) for row in rows}
                return {part: self._held(connection, part) for part in parts if part in mine}

        return self._attempt(put)

    def held(self, part: int) -> Held:
        """A partition as it was last committed, whoever owns it."""
        return self._attempt(lambda connection: self._held(connection, part))

    def _held(self, connection: Connection, part: int) -> Held:
        rows = connection.execute(
            "SELECT token, version, position, head FROM group_partitions "
            "WHERE grp = ? AND part = ?",
            (self.group, part),
        )
        if not rows:
            return Held(0, 0, None, None)
        token, version, position, head = rows[0]
        return Held(int(token), int(version), position, None if head is None else bytes(head))

    def release(self, tokens: dict[int, int]) -> None:
        """Let go of partitions, which others may own now."""

        def put(connection: Connection) -> None:
            with connection.transaction():
                connection.execute_many(
                    "UPDATE group_partitions SET owner = NULL, expires = 0 "
                    "WHERE grp = ? AND part = ? AND token = ?",
                    [(self.group, part, token) for part, token in tokens.items()],
                )

        self._attempt(put)

    # ------------------------------------------------------------------ commits

    def commit(self, commits: Sequence[Commit], sinks: Sequence[str] = ()) -> set[int]:
        """Write what partitions have done, all of it in one transaction: the partitions that are
        fenced off, of which nothing was written.

        ``sinks`` are where alarms are to be sent. A commit may be tried again after the connection
        was lost in the middle of it: what was written already is not written twice. Raises
        :class:`UserError` where events of one entity are in two partitions.
        """
        for one in commits:
            one.packed = [pack_entity(*row) for row in one.entities]
            one.entities = ()
        return self._attempt(lambda connection: self._committed(connection, commits, sinks))

    def _committed(
        self, connection: Connection, commits: Sequence[Commit], sinks: Sequence[str]
    ) -> set[int]:
        fenced: set[int] = set()
        with connection.transaction():
            for one in sorted(commits, key=lambda one: one.part):
                before = one.held
                after = one.after()
                rows = connection.execute(
                    "UPDATE group_partitions SET version = ?, position = ?, head = ? "
                    "WHERE grp = ? AND part = ? AND token = ? AND version = ? RETURNING part",
                    (after.version, after.position, after.head, self.group, one.part)
                    + (before.token, before.version),
                )
                if rows:
                    self._write(connection, one, sinks)
                    continue
                found = self._held(connection, one.part)
                if (found.token, found.version) != (after.token, after.version):
                    fenced.add(one.part)
        return fenced

    def _write(self, connection: Connection, one: Commit, sinks: Sequence[str]) -> None:
        group, part = self.group, one.part
        connection.execute_many(
            "INSERT INTO group_entities (grp, name, part, digest, body) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (grp, name) DO UPDATE SET digest = excluded.digest, body = excluded.body "
            "WHERE group_entities.part = excluded.part",
            [(group, key, part, digest, body) for key, digest, body in one.packed],
        )
        if one.total is not None:
            self._check_total(connection, part, one.total)
        if one.events:
            connection.execute(
                "INSERT INTO group_scores (grp, part, version, position, events, lines) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (group, part, one.after().version, one.position, one.events, one.lines),
            )
        connection.execute_many(
            "INSERT INTO group_refusals (grp, part, line, position, content, reason) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(group, part, *refusal) for refusal in one.refusals],
        )
        connection.execute_many(
            "INSERT INTO group_event_ids (grp, part, id) VALUES (?, ?, ?)",
            [(group, part, id) for id in one.ids],
        )
        connection.execute_many(
            "INSERT INTO group_alarms (grp, id, body) VALUES (?, ?, ?)",
            [(group, alarm.id, json.dumps(alarm.body)) for alarm in one.alarms],
        )
        connection.execute_many(
            "INSERT INTO group_outbox (grp, id, sink, attempts, due) VALUES (?, ?, ?, 0, 0)",
            [(group, alarm.id, sink) for alarm in one.alarms for sink in sinks],
        )

    def _check_total(self, connection: Connection, part: int, total: int) -> None:
        """Refuse entities of which another partition had an event first."""
        rows = connection.execute(
            "SELECT count(*) FROM group_entities WHERE grp = ? AND part = ?", (self.group, part)
        )
        if int(rows[0][0]) != total:
            raise UserError(
                "all events of an entity in one partition",
                f"{total - int(rows[0][0]):,} entities of partition {part} with events in others",
                "Choose the partition of a message by its entity, always in the same way.",
            )

    def elsewhere(self, part: int, names: Sequence[str]) -> dict[str, int]:
        """Those of the entities that belong to another partition, and to which."""

        def ask(connection: Connection) -> dict[str, int]:
            found: dict[str, int] = {}
            for condition, values in connection.among("name", [entity_key(n) for n in names]):
                rows = connection.execute(
                    f"SELECT name, part FROM group_entities WHERE grp = ? AND {condition} "
                    "AND part <> ?",
                    (self.group, *values, part),
                )
                found |= {entity_name(bytes(key)): int(other) for key, other in rows}
            return found

        return self._attempt(ask)

    def known_ids(self, part: int, ids: Sequence[bytes]) -> set[bytes]:
        """Those of the ids that events of the partition have already."""

        def ask(connection: Connection) -> set[bytes]:
            found: set[bytes] = set()
            for condition, values in connection.among("id", ids):
                rows = connection.execute(
                    f"SELECT id FROM group_event_ids WHERE grp = ? AND part = ? AND {condition}",
                    (self.group, part, *values),
                )
                found.update(bytes(row[0]) for row in rows)
            return found

        return self._attempt(ask)

    # ------------------------------------------------------------------ what was done

    def positions(self) -> dict[int, str]:
        """Up to where each partition is done."""
        rows = self._ask(
            "SELECT part, position FROM group_partitions WHERE grp = ? AND position IS NOT NULL",
            (self.group,),
        )
        return {int(part): position for part, position in rows}

    def events(self) -> int:
        """Events scored so far."""
        rows = self._ask("SELECT sum(events) FROM group_scores WHERE grp = ?", (self.group,))
        return int(rows[0][0] or 0)

    def refused(self) -> int:
        """Messages refused so far."""
        rows = self._ask("SELECT count(*) FROM group_refusals WHERE grp = ?", (self.group,))
        return int(rows[0][0])

    def workers(self) -> list[str]:
        """The workers of which there was a sign of life lately."""
        rows = self._ask(
            "SELECT worker FROM group_workers WHERE grp = ? ORDER BY worker", (self.group,)
        )
        return [row[0] for row in rows]

    def scores(self) -> Iterator[tuple[int, bytes]]:
        """The partition and the lines of every commit, by partition and in their order."""
        keys = self._ask(
            "SELECT part, version FROM group_scores WHERE grp = ? ORDER BY part, version",
            (self.group,),
        )
        for part, version in keys:
            rows = self._ask(
                "SELECT lines FROM group_scores WHERE grp = ? AND part = ? AND version = ?",
                (self.group, part, version),
            )
            yield int(part), bytes(rows[0][0])

    def refusals(self) -> list[tuple[int, Refusal]]:
        """Messages that were not scored, with their partitions."""
        rows = self._ask(
            "SELECT part, line, position, content, reason FROM group_refusals WHERE grp = ? "
            "ORDER BY part, line",
            (self.group,),
        )
        return [
            (int(part), Refusal(int(line), position, bytes(content), reason))
            for part, line, position, content, reason in rows
        ]

    def alarms(self) -> list[GroupAlarm]:
        """All alarms, by their ids."""
        rows = self._ask(
            "SELECT id, body FROM group_alarms WHERE grp = ? ORDER BY id", (self.group,)
        )
        return [GroupAlarm(id, json.loads(body)) for id, body in rows]

    # ------------------------------------------------------------------ alarms to be sent

    def due(self, most: int) -> list[Delivery]:
        """Up to ``most`` alarms that are to be sent now."""
        rows = self._ask(
            "SELECT o.id, a.body, o.sink, o.attempts FROM group_outbox o "
            "JOIN group_alarms a ON a.grp = o.grp AND a.id = o.id "
            "WHERE o.grp = ? AND o.due <= ? ORDER BY o.due, o.id LIMIT ?",
            (self.group, self.now(), most),
        )
        return [
            Delivery(GroupAlarm(id, json.loads(body)), sink, int(attempts))
            for id, body, sink, attempts in rows
        ]

    def sent(self, delivery: Delivery) -> None:
        """An alarm has arrived."""
        self._put(
            "DELETE FROM group_outbox WHERE grp = ? AND id = ? AND sink = ?",
            (self.group, delivery.alarm.id, delivery.sink),
        )

    def postpone(self, delivery: Delivery, seconds: float, error: str) -> None:
        """An alarm has not arrived, and is to be sent again after so many seconds."""
        self._put(
            "UPDATE group_outbox SET attempts = attempts + 1, due = ?, error = ? "
            "WHERE grp = ? AND id = ? AND sink = ?",
            (self.now() + seconds, error, self.group, delivery.alarm.id, delivery.sink),
        )

    def unsent(self) -> list[tuple[str, str, int, str | None]]:
        """Alarms that have not arrived: id, sink, attempts and the last error."""
        rows = self._ask(
            "SELECT id, sink, attempts, error FROM group_outbox WHERE grp = ? ORDER BY id, sink",
            (self.group,),
        )
        return [(id, sink, int(attempts), error) for id, sink, attempts, error in rows]

    # ------------------------------------------------------------------ entities of a partition

    def entity_rows(self, part: int, names: Sequence[str]) -> dict[str, Row]:
        """The rows of those entities of a partition that are there."""

        def ask(connection: Connection) -> dict[str, Row]:
            found: dict[str, Row] = {}
            for condition, values in connection.among("name", [entity_key(n) for n in names]):
                rows = connection.execute(
                    f"SELECT name, digest, body FROM group_entities WHERE grp = ? AND {condition} "
                    "AND part = ?",
                    (self.group, *values, part),
                )
                for key, digest, body in rows:
                    row = unpack_entity(bytes(key), bytes(digest), bytes(body))
                    found[entity_name(bytes(key))] = row
            return found

        return self._attempt(ask)

    def entity_names(self, part: int, after: str = "", most: int | None = None) -> list[str]:
        """Names of a partition's entities after a name, in order."""
        limit = "" if most is None else f" LIMIT {most}"
        rows = self._ask(
            "SELECT name FROM group_entities WHERE grp = ? AND part = ? AND name > ? "
            f"ORDER BY name{limit}",
            (self.group, part, entity_key(after)),
        )
        return [entity_name(bytes(row[0])) for row in rows]

    def part_of(self, name: str) -> int | None:
        """The partition of an entity; None if it is unknown."""
        rows = self._ask(
            "SELECT part FROM group_entities WHERE grp = ? AND name = ?",
            (self.group, entity_key(name)),
        )
        return int(rows[0][0]) if rows else None

    def names(self, after: str, most: int) -> list[str]:
        """Names of entities of all partitions after a name, in order."""
        rows = self._ask(
            "SELECT name FROM group_entities WHERE grp = ? AND name > ? ORDER BY name LIMIT ?",
            (self.group, entity_key(after), most),
        )
        return [entity_name(bytes(row[0])) for row in rows]

    def total_entities(self) -> int:
        """Entities of all partitions."""
        rows = self._ask("SELECT count(*) FROM group_entities WHERE grp = ?", (self.group,))
        return int(rows[0][0])

    def entity_count(self, part: int) -> int:
        """How many entities a partition has."""
        rows = self._ask(
            "SELECT count(*) FROM group_entities WHERE grp = ? AND part = ?", (self.group, part)
        )
        return int(rows[0][0])

    # ------------------------------------------------------------------ the database

    def _make_tables(self, connection: Connection) -> None:
        with connection.transaction():
            for statement in (*TABLES, *INDEXES):
                connection.execute(statement)

    def _ask(self, question: str, values: Sequence[Any]) -> list[Any]:
        return self._attempt(lambda connection: connection.execute(question, values))

    def _put(self, statement: str, values: Sequence[Any]) -> None:
        self._attempt(lambda connection: connection.execute(statement, values))

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        """Do ``work`` with a connection; where the database fails, again with a new one."""
        until = time.monotonic() + self._retry
        told = False
        while True:
            try:
                if self._connection is None:
                    self._connection = self._source.connect()
                return work(self._connection)
            except StoreError as error:
                with _ignored():
                    self.close()
                if time.monotonic() > until:
                    raise
                if not told:
                    self._tell(f"the store does not respond ({error}), and will be tried again")
                    told = True
                time.sleep(PAUSE)


@contextmanager
def _ignored() -> Iterator[None]:
    """A connection that is lost cannot always be closed."""
    try:
        yield
    except StoreError:
        return


class PartitionEntities:
    """The entities of one partition, for a bank (`streaming.store.EntityStore`). They are written
    by :meth:`GroupStore.commit` alone.
    """

    def __init__(self, store: GroupStore, part: int) -> None:
        self._store, self._part = store, part
        self._count: int | None = None

    def committed(self, entities: int) -> None:
        """The partition has so many entities now."""
        self._count = entities

    def __len__(self) -> int:
        if self._count is None:
            self._count = self._store.entity_count(self._part)
        return self._count

    def __contains__(self, name: str) -> bool:
        return bool(self.read([name]))

    def names(self) -> Iterable[str]:
        """All names."""
        return self._store.entity_names(self._part)

    def names_after(self, name: str | None, most: int) -> list[str]:
        """The first ``most`` names after ``name``."""
        return self._store.entity_names(self._part, name or "", most)

    def read(self, names: Sequence[str]) -> dict[str, Row]:
        """The rows of those names that are there; raises :class:`UserError` for an entity of
        another partition, whose past would be lost.
        """
        if not names:
            return {}
        found = self._store.entity_rows(self._part, names) if len(self) else {}
        unknown = [name for name in names if name not in found]
        elsewhere = self._store.elsewhere(self._part, unknown)
        if elsewhere:
            name, other = next(iter(elsewhere.items()))
            raise UserError(
                "all events of an entity in one partition",
                f"events of {name!r} in partitions {other} and {self._part}",
                "Choose the partition of a message by its entity, always in the same way.",
            )
        return found

    def write(self, rows: Iterable[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
        """Refused: entities are written with the position of their partition."""
        raise UserError(
            "entities written by a commit", "a bank that writes them", "Please report this error."
        )

    def clear(self) -> None:
        """Refused, as :meth:`write`."""
        self.write([])
