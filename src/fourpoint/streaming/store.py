"""Memories of entities on disk: one SQLite file, in which each entity is a row that is written only
when it has changed.

A row holds the entity's name, its arrays as safetensors (`streaming.state`) and a SHA-256 of both.
A file may also hold a text under a key, such as the place of a feed, and rows and texts of one
:meth:`Store.write` appear together or not at all: SQLite's write-ahead log makes it so, also where
the process is killed in the middle. Other programs find nothing in the file that could run; a file
whose tables are not exactly these is refused.

``read`` and ``write`` have a connection each, so that a thread may write while another reads what
was written before.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fourpoint.atomic import write_atomic
from fourpoint.events import UserError
from fourpoint.streaming.state import Arrays, damaged, from_tensors, to_tensors

MAGIC = b"SQLite format 3\0"
TABLES = {
    "entities": (
        "CREATE TABLE entities (name BLOB PRIMARY KEY, digest BLOB NOT NULL, body BLOB NOT NULL)"
    ),
    "texts": "CREATE TABLE texts (name TEXT PRIMARY KEY, body BLOB NOT NULL)",
}
PAGE = 16_384  # bytes; a row of some kilobytes fits one page
AT_ONCE = 500  # names in one question

Row = tuple[dict[str, Any], Arrays]  # header and arrays of one entity


class EntityStore(Protocol):
    """Where a bank finds the entities that are not in memory: a :class:`Store`, or a part of a
    database that several processes share.
    """

    def __len__(self) -> int: ...

    def __contains__(self, name: str) -> bool: ...

    def names(self) -> Iterable[str]:
        """All names, in no order."""

    def names_after(self, name: str | None, most: int) -> list[str]:
        """The first ``most`` names after ``name``, in order; None: from the first one."""

    def read(self, names: Sequence[str]) -> dict[str, Row]:
        """The rows of those names that are there."""

    def write(self, rows: Iterable[tuple[str, dict[str, Any], Arrays]]) -> None:
        """Replace the rows of the same names, all of them or none."""

    def clear(self) -> None:
        """Forget all entities."""


class Store:
    """Entities in the file ``path``, which is made at the first :meth:`write`; "" for a file that
    ends with the process.

    ``durable`` says that what is written must survive a loss of power. Raises :class:`UserError`
    for a file that is not such a store, and OSError where the disk fails.

    >>> import numpy as np
    >>> store = Store("", durable=False)
    >>> store.write([("a", {"seen": 2}, {"x": np.arange(2.0)})])
    >>> store.read(["a", "b"])["a"][1]["x"].tolist(), len(store), "b" in store
    ([0.0, 1.0], 1, False)
    """

    def __init__(self, path: Path | str, *, durable: bool) -> None:
        self.path, self.durable = path, durable
        self._reading: sqlite3.Connection | None = None
        self._writing: sqlite3.Connection | None = None
        if not str(path):
            self._reading = self._writing = _connected("", durable=False)
            _make_tables(self._writing)
        elif Path(path).exists():
            self._open()

    def __len__(self) -> int:
        if self._reading is None:
            return 0
        with _disk_errors():
            return int(self._reading.execute("SELECT count(*) FROM entities").fetchone()[0])

    def __contains__(self, name: str) -> bool:
        return self._reading is not None and bool(
            self._rows("SELECT 1 FROM entities WHERE name IN (?)", [entity_key(name)])
        )

    def names(self) -> Iterable[str]:
        """All names, in no order."""
        return (entity_name(row[0]) for row in self._rows("SELECT name FROM entities", []))

    def names_after(self, name: str | None, most: int) -> list[str]:
        """The first ``most`` names after ``name``, in order; None: from the first one."""
        question = "SELECT name FROM entities WHERE name > ? ORDER BY name LIMIT ?"
        return [entity_name(row[0]) for row in self._rows(question, [entity_key(name or ""), most])]

    def read(self, names: Sequence[str]) -> dict[str, Row]:
        """The rows of those names that are there."""
        if self._reading is None:
            return {}
        found: dict[str, Row] = {}
        for i in range(0, len(names), AT_ONCE):
            keys = [entity_key(name) for name in names[i : i + AT_ONCE]]
            marks = ",".join("?" * len(keys))
            for key, digest, body in self._rows(
                f"SELECT name, digest, body FROM entities WHERE name IN ({marks})", keys
            ):
                found[entity_name(key)] = unpack_entity(key, digest, body)
        return found

    def text(self, name: str) -> bytes | None:
        """A text, or None where there is none."""
        rows = self._rows("SELECT body FROM texts WHERE name IN (?)", [name])
        return bytes(rows[0][0]) if rows else None

    def write(
        self,
        rows: Iterable[tuple[str, dict[str, Any], Arrays]],
        texts: dict[str, bytes] | None = None,
    ) -> None:
        """Replace the rows and texts of the same names, all of them or none."""
        packed = [pack_entity(*row) for row in rows]
        if self._writing is None:
            write_atomic(
                self.path, lambda draft: _create(draft, packed, texts or {}), sync=self.durable
            )
            self._open()
            return
        with _disk_errors():
            _put(self._writing, packed, texts or {})

    def clear(self) -> None:
        """Forget all entities."""
        if self._writing is not None:
            with _disk_errors(), _transaction(self._writing):
                self._writing.execute("DELETE FROM entities")

    def close(self) -> None:
        """Put all that was written into the file itself, and let go of it."""
        reading = self._reading
        writing = self._writing
        self._reading = self._writing = None
        for connection in (reading, writing):  # a temporary file has one, which may close twice
            if connection is not None:
                with _disk_errors():
                    connection.close()

    def _open(self) -> None:
        """Connect to the file, once its tables are known to be ours."""
        try:
            with _disk_errors():
                self._writing = _connected(str(self.path), durable=self.durable)
                _check_tables(self._writing, str(self.path))
                self._writing.execute("PRAGMA journal_mode = WAL")
                self._reading = _connected(str(self.path), durable=self.durable)
        except BaseException:
            self.close()
            raise

    def _rows(self, question: str, values: Sequence[object]) -> list[Any]:
        if self._reading is None:
            return []
        with _disk_errors():
            return self._reading.execute(question, values).fetchall()


def is_store(path: Path) -> bool:
    """Whether a file is an SQLite file."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _connected(path: str, *, durable: bool) -> sqlite3.Connection:
    # One thread writes and another reads, each with a connection of its own.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    return connection


def _create(path: Path, packed: list[tuple[bytes, bytes, bytes]], texts: dict[str, bytes]) -> None:
    with _disk_errors(), closing(_connected(str(path), durable=True)) as connection:
        # No process reads the file before it is renamed.
        connection.execute("PRAGMA journal_mode = MEMORY")
        _make_tables(connection)
        _put(connection, packed, texts)


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE}")
    for statement in TABLES.values():
        connection.execute(statement)


def _check_tables(connection: sqlite3.Connection, path: str) -> None:
    """Refuse tables, views and triggers that are not ours."""
    found = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()
    if found != sorted(TABLES.items()):
        remedy = "Check the path; remove the file to start again."
        raise UserError(
            "a file of entities written by Fourpoint", f"{path}, which holds other tables", remedy
        )


def _put(
    connection: sqlite3.Connection,
    packed: list[tuple[bytes, bytes, bytes]],
    texts: dict[str, bytes],
) -> None:
    with _transaction(connection):
        connection.executemany("INSERT OR REPLACE INTO entities VALUES (?, ?, ?)", packed)
        connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?)", list(texts.items()))


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Any:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _disk_errors() -> Any:
    """SQLite's errors as those of the rest: OSError where the disk fails, :class:`UserError` where
    the file is damaged.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(f"{error} (SQLite)") from error
    except (sqlite3.DatabaseError, sqlite3.ProgrammingError) as error:
        raise damaged("pages that SQLite can read", f"{error}") from error


def pack_entity(name: str, header: dict[str, Any], arrays: Arrays) -> tuple[bytes, bytes, bytes]:
    """An entity as a row: its key, the hash of both, and header and arrays as safetensors."""
    key = entity_key(name)
    body = to_tensors(header, arrays)
    return key, _digest(key, body), body


def unpack_entity(key: object, digest: object, body: object) -> Row:
    """What :func:`pack_entity` was given; raises :class:`UserError` where bytes have changed."""
    if not (isinstance(key, bytes) and isinstance(digest, bytes) and isinstance(body, bytes)):
        raise damaged(
            "rows of bytes",
            f"{type(key).__name__}, {type(digest).__name__} and {type(body).__name__}",
        )
    if _digest(key, body) != digest:
        raise damaged(
            f"entity {entity_name(key)[:40]!r} with its own hash",
            "another hash: bytes in it have changed",
        )
    return from_tensors(body)


def _digest(key: bytes, body: bytes) -> bytes:
    return hashlib.sha256(len(key).to_bytes(8, "little") + key + body).digest()


def entity_key(name: str) -> bytes:
    """A name as it stands in a store."""
    return name.encode("utf-8", "surrogatepass")


def entity_name(key: object) -> str:
    """The name under a key; raises :class:`UserError` where it cannot be one."""
    expected = "names of entities in UTF-8"
    if not isinstance(key, bytes):
        raise damaged(expected, f"{key!r}"[:80])
    try:
        return key.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise damaged(expected, f"{key!r}"[:80]) from None
