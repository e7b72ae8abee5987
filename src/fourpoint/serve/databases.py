"""Connections to SQLite and to PostgreSQL with one interface, so that a store is written once.

Statements have ``?`` for values, and the types of columns are those of SQLite; a connection to
PostgreSQL translates both. A database that cannot be reached, read or written raises
:class:`StoreError`, an OSError, whatever the library calls it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from fourpoint.atomic import check_place, hold
from fourpoint.errors import UserError

CACHE = 64 * 1024  # KiB of pages that SQLite keeps in memory for the connection that writes
READER_CACHE = 4 * 1024  # and for one that reads
RECLAIMED = 1000  # free pages that are given back at once
BUSY = 30_000  # milliseconds to wait for a lock of SQLite
AT_ONCE = 500  # values in one question
LOCK_WAIT = 10.0  # seconds to wait for the lock of a process that has ended
LOCK = 0x666F7572706F696E  # of PostgreSQL's advisory locks: "fourpoin"
Values = Sequence[Any]


class StoreError(OSError):
    """A database that cannot be reached, read or written at present."""


class StoreFull(StoreError):
    """A database whose disk is full."""


class Connection(Protocol):
    """A connection of one thread to a database."""

    def execute(self, statement: str, values: Values = ()) -> list[Any]:
        """The rows of a statement."""

    def execute_many(self, statement: str, rows: Sequence[Values]) -> None:
        """One statement for each of many rows of values."""

    def among(self, column: str, values: Sequence[bytes]) -> list[tuple[str, Values]]:
        """Conditions, each with its values, that a column has one of ``values``."""

    def transaction(self) -> Any:
        """A context in which all that is written appears at once or not at all."""

    def close(self) -> None:
        """Let go of the database."""


class Database(Protocol):
    """Makes connections."""

    url: str

    def connect(self, *, cache: int = CACHE) -> Connection:
        """A new connection, with up to ``cache`` KiB of pages in memory; raises
        :class:`StoreError` if none is available.
        """

    def lock(self, connection: Connection) -> None:
        """Keep the database for this process as the only writer; raises :class:`UserError` where
        another process has it. The lock ends with the connection or the process.
        """

    def release(self) -> None:
        """Give the lock back."""

    def size(self, connection: Connection) -> int:
        """Bytes on disk."""

    def reclaim(self, connection: Connection) -> None:
        """Give the space of removed rows back to the file system."""


def database(url: str) -> Database:
    """The database that ``url`` names: ``sqlite:///FILE`` or ``postgresql://...``.

    >>> database("sqlite:///state.db").url
    'sqlite:///state.db'
    >>> database("mysql://localhost/x")
    Traceback (most recent call last):
      ...
    fourpoint.events.UserError: expected --store as sqlite:///FILE or postgresql://...; received ...
    """
    scheme = urlsplit(url).scheme
    if scheme == "sqlite" and url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SqliteDatabase(url)
    if scheme in ("postgresql", "postgres"):
        return PostgresDatabase(url)
    raise UserError(
        "--store as sqlite:///FILE or postgresql://USER@HOST/NAME",
        f"{without_password(url)!r}",
        "Type --store sqlite:///fourpoint.db, say.",
    )


def without_password(url: str) -> str:
    """A URL as it may be printed.

    >>> without_password("postgresql://me:secret@db/events")
    'postgresql://me:***@db/events'
    """
    hidden = re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&\s]*", r"\1***", hidden)


class SqliteDatabase:
    """One file of SQLite in WAL mode, in which a commit is on disk before it returns."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = Path(url.removeprefix("sqlite:///"))
        self._lock: int | None = None

    def connect(self, *, cache: int = CACHE) -> Connection:
        """A connection to the file, which is made where it is missing."""
        new = not self.path.exists()
        if new:
            check_place(self.path)
        with _sqlite_errors():
            inner = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=BUSY / 1000
            )
            try:
                if new:
                    inner.execute("PRAGMA auto_vacuum = INCREMENTAL")
                inner.execute("PRAGMA trusted_schema = OFF")
                inner.execute("PRAGMA journal_mode = WAL")
                inner.execute("PRAGMA synchronous = FULL")
                inner.execute(f"PRAGMA cache_size = -{cache}")
            except BaseException:
                inner.close()
                raise
        return SqliteConnection(inner)

    def lock(self, connection: Connection) -> None:
        """A lock beside the file, which ends with the process."""
        if self._lock is not None:
            return
        beside = self.path.with_name(f".{self.path.name}.lock")
        file = os.open(beside, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            hold(file, f"--store {self.url}", "End the other service, or choose another store.")
        except BaseException:
            os.close(file)
            raise
        self._lock = file

    def release(self) -> None:
        """Close the file of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def size(self, connection: Connection) -> int:
        """Of the file and its write-ahead log."""
        files = [self.path.with_name(self.path.name + end) for end in ("", "-wal")]
        return sum(file.stat().st_size for file in files if file.exists())

    def reclaim(self, connection: Connection) -> None:
        """Some free pages at the end of the file."""
        connection.execute(f"PRAGMA incremental_vacuum({RECLAIMED})")


class SqliteConnection:
    """A connection to SQLite."""

    def __init__(self, inner: sqlite3.Connection) -> None:
        self._inner = inner

    def execute(self, statement: str, values: Values = ()) -> list[Any]:
        """The rows of a statement."""
        with _sqlite_errors():
            return self._inner.execute(statement, values).fetchall()

    def execute_many(self, statement: str, rows: Sequence[Values]) -> None:
        """One statement for each of many rows of values."""
        with _sqlite_errors():
            self._inner.executemany(statement, rows)

    def among(self, column: str, values: Sequence[bytes]) -> list[tuple[str, Values]]:
        """Conditions with at most ``AT_ONCE`` values."""
        parts = [values[i : i + AT_ONCE] for i in range(0, len(values), AT_ONCE)]
        return [(f"{column} IN ({','.join('?' * len(part))})", tuple(part)) for part in parts]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        with _sqlite_errors():
            self._inner.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._inner.execute("COMMIT")
            except BaseException:
                if self._inner.in_transaction:
                    self._inner.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the file."""
        with _sqlite_errors():
            self._inner.close()


@contextmanager
def _sqlite_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        raise (StoreFull if full else StoreError)(f"{error} (SQLite)") from error


class PostgresDatabase:
    """A database of PostgreSQL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self, *, cache: int = CACHE) -> Connection:
        """A connection to the server, which has a cache of its own; raises
        :class:`UserError` without the extra ``postgres``.
        """
        try:
            import psycopg
        except ImportError:
            raise UserError(
                "the package psycopg for a store of PostgreSQL",
                "an installation without it",
                "Install fourpoint[postgres], or use --store sqlite:///FILE.",
            ) from None
        try:
            inner = psycopg.connect(self.url, autocommit=True, connect_timeout=10)
        except psycopg.Error as error:
            raise StoreError(f"{_first_line(error)} (PostgreSQL)") from None
        return PostgresConnection(inner)

    def lock(self, connection: Connection) -> None:
        """An advisory lock, which ends with the connection: of a process that was killed, as soon
        as the server has noticed.
        """
        until = time.monotonic() + LOCK_WAIT
        while not connection.execute("SELECT pg_try_advisory_lock(?)", (LOCK,))[0][0]:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            raise UserError(
                f"--store {without_password(self.url)} for this process alone",
                "one that another service is using",
                "End the other service, or choose another database.",
            )

    def release(self) -> None:
        """The lock ends with the connection."""

    def size(self, connection: Connection) -> int:
        """Of the whole database."""
        return int(connection.execute("SELECT pg_database_size(current_database())")[0][0])

    def reclaim(self, connection: Connection) -> None:
        """Left to the server's autovacuum."""


class PostgresConnection:
    """A connection to PostgreSQL; ``inner`` is psycopg's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def execute(self, statement: str, values: Values = ()) -> list[Any]:
        """The rows of a statement."""
        with _postgres_errors():
            cursor = self._inner.execute(_translated(statement), values)
            return list(cursor.fetchall()) if cursor.description else []

    def execute_many(self, statement: str, rows: Sequence[Values]) -> None:
        """One statement for each of many rows of values, sent together."""
        with _postgres_errors(), self._inner.cursor() as cursor:
            cursor.executemany(_translated(statement), rows)

    def among(self, column: str, values: Sequence[bytes]) -> list[tuple[str, Values]]:
        """One condition with an array."""
        return [(f"{column} = ANY(?)", (list(values),))] if values else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        with _postgres_errors(), self._inner.transaction():
            yield

    def close(self) -> None:
        """End the connection."""
        with _postgres_errors():
            self._inner.close()


def _translated(statement: str) -> str:
    """A statement in the language of PostgreSQL."""
    if statement.startswith("CREATE TABLE"):
        statement = (
            statement.replace("INTEGER", "BIGINT")
            .replace("REAL", "DOUBLE PRECISION")
            .replace("BLOB", "BYTEA")
        )
    return statement.replace("?", "%s")


@contextmanager
def _postgres_errors() -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise StoreFull(f"{_first_line(error)} (PostgreSQL)") from None
    except psycopg.Error as error:
        raise StoreError(f"{_first_line(error)} (PostgreSQL)") from None


def _first_line(error: BaseException) -> str:
    """An error without the details of a connection, which may hold its password."""
    lines = str(error).strip().splitlines()
    return without_password(lines[0]) if lines else type(error).__name__
