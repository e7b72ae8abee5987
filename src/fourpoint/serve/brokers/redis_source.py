"""Events from Redis Streams.

A stream has no partitions, so that a group reads P streams ``events:0`` to ``events:P-1``, and a
producer appends each event to the one that its entity's name chooses:

    XADD events:(crc32(entity) mod P) * event '{"time": 12.5, "mark": "fire", "station": "north"}'

With P = 1 it is the stream ``events`` itself. An entry has one field ``event`` with a JSON object,
or the fields of the event themselves. Entries are read by their ids from a position on that the
store of the group keeps. The consumer group in Redis of the same name is set to what was committed,
so that ``XINFO GROUPS`` shows how far behind the group is; nothing is read from it.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fourpoint.errors import UserError
from fourpoint.serve.brokers.partition import Messages
from fourpoint.serve.databases import without_password

T = TypeVar("T")
FIELD = b"event"  # the field of an entry that holds a whole event
BEGIN = "0-0"
AWAY = 30.0  # seconds for which a server that does not answer is tried again
PAUSE = 0.2  # seconds between two attempts


def partition_of(entity: str, partitions: int) -> int:
    """The partition of an entity's events: CRC-32 of its name in UTF-8, modulo their number.

    >>> partition_of("north", 16)
    2
    """
    return zlib.crc32(entity.encode()) % partitions


def connect(url: str) -> Any:
    """A client of the server at ``url``; raises :class:`UserError` without the extra ``redis``, and
    for a URL that is none.
    """
    try:
        import redis
    except ImportError:
        raise UserError(
            "the package redis for events from Redis Streams",
            "an installation without it",
            "Install fourpoint[redis].",
        ) from None
    try:
        return redis.Redis.from_url(url, socket_timeout=30.0, socket_connect_timeout=5.0)
    except ValueError as error:
        raise UserError(
            "a server of Redis as redis://HOST:PORT/NUMBER",
            f"{without_password(url)!r} ({error})",
            "Type --redis redis://localhost:6379/0, say.",
        ) from None


class RedisSource:
    """Reads ``partitions`` streams called ``stream`` of the server at ``url``.

    ``group`` is the name of the consumer group that shows progress, ``count`` the entries of each
    stream that are read at once, and ``latest`` says that a partition without a position is read
    from its end on, not from its begin. A server that does not answer is tried again for ``away``
    seconds, and then raises OSError.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        partitions: int,
        group: str,
        *,
        count: int = 500,
        latest: bool = False,
        away: float = AWAY,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.partitions = partitions
        self.name = f"{without_password(url)} {stream}"
        self._client = connect(url)
        self._stream = stream
        self._group = group
        self._count = count
        self._latest = latest
        self._away = away
        self._tell = tell
        self._positions: dict[int, str] = {}
        self._read: dict[int, int] = {}  # entries of each stream up to its position
        self._keys = {self.key(part).encode(): part for part in range(partitions)}

    def key(self, part: int) -> str:
        """The name of a partition's stream."""
        return self._stream if self.partitions == 1 else f"{self._stream}:{part}"

    def open(self, part: int, position: str | None) -> None:
        """Read a partition after ``position``; None: from its begin, or its end (``latest``)."""
        key = self.key(part)
        self._attempt(lambda: self._make_group(key))
        about = self._attempt(lambda: self._client.xinfo_stream(key))
        added = int(about.get("entries-added", 0))
        if position is None:
            position = self._attempt(lambda: self._end(key)) if self._latest else BEGIN
            self._read[part] = added if self._latest else 0
        else:
            self._read[part] = self._attempt(lambda: self._entries_read(key)) or 0
            self._check_deleted(key, position, about, self._read[part])
        self._positions[part] = position

    def assign(self) -> None:
        """Nothing more is needed to read what was opened."""

    def parts(self) -> list[int]:
        """The numbers of the streams."""
        return list(range(self.partitions))

    def close_partition(self, part: int) -> None:
        """Read no more of a partition."""
        self._positions.pop(part, None)

    def poll(self, seconds: float) -> list[Messages]:
        """Messages of the partitions that are open, after at most about so many seconds."""
        if not self._positions:
            time.sleep(seconds)
            return []
        asked = {self.key(part): position for part, position in self._positions.items()}
        found = self._attempt(
            lambda: self._client.xread(asked, count=self._count, block=max(1, int(1000 * seconds)))
        )
        messages = []
        for key, entries in _streams(found):
            part = self._keys[key]
            positions = [id.decode() for id, _ in entries]
            contents = [_content(fields) for _, fields in entries]
            self._positions[part] = positions[-1]
            self._read[part] += len(positions)
            messages.append(Messages(part, positions, contents))
        return messages

    def ends(self) -> dict[int, str | None]:
        """The last position of each partition at present; None where there is no message."""
        ends = {part: self._attempt(partial(self._end, key)) for key, part in self._keys.items()}
        return {part: None if end == BEGIN else end for part, end in ends.items()}

    def is_done(self, position: str | None, end: str | None) -> bool:
        """Whether ``position`` is at or after ``end``."""
        return end is None or (position is not None and _id(position) >= _id(end))

    def committed(self, positions: Mapping[int, str]) -> None:
        """Show in Redis how far partitions are done."""
        import redis

        with suppress(redis.RedisError):  # it is shown with the next commit
            pipe = self._client.pipeline(transaction=False)
            for part, position in positions.items():
                read = self._read.get(part)
                pipe.xgroup_setid(self.key(part), self._group, position, entries_read=read)
            pipe.execute(raise_on_error=False)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _make_group(self, key: str) -> None:
        import redis

        try:
            self._client.xgroup_create(key, self._group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise UserError(
                    f"a stream of Redis called {key!r}",
                    f"{error}",
                    "Choose another name with --topic.",
                ) from None

    def _end(self, key: str | bytes) -> str:
        last = self._client.xrevrange(key, count=1)
        return last[0][0].decode() if last else BEGIN

    def _entries_read(self, key: str) -> int | None:
        """How many entries of a stream the group has read, as Redis was told; None if unknown."""
        groups = self._client.xinfo_groups(key)
        mine = [group for group in groups if group["name"].decode() == self._group]
        return mine[0].get("entries-read") if mine else None

    def _check_deleted(self, key: str, position: str, about: dict[str, Any], read: int) -> None:
        """Say that entries were deleted before they were read."""
        first = about.get("first-entry")
        is_before = first is not None and _id(first[0].decode()) <= _id(position)
        lost = int(about.get("entries-added", 0)) - int(about["length"]) - read
        if lost > 0 and read and not is_before:
            self._tell(
                f"warning: {lost:,} entries of {key} after {position} were deleted before they "
                "were read; keep more of the stream (XADD ... MAXLEN)"
            )

    def _attempt(self, work: Callable[[], T]) -> T:
        """Do ``work``; where the server does not answer, again."""
        import redis

        until = time.monotonic() + self._away
        told = False
        while True:
            try:
                return work()
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if isinstance(error, redis.AuthenticationError):
                    raise UserError(
                        "a password that Redis accepts", str(error), "Put it into the URL."
                    ) from None
                if time.monotonic() > until:
                    raise OSError(f"{error} (Redis)") from None
                if not told:
                    self._tell(f"Redis does not respond ({error}), and will be tried again")
                    told = True
                time.sleep(PAUSE)


def publish(
    client: Any, stream: str, partitions: int, by: str, events: list[dict[str, Any]]
) -> None:
    """Append events to the streams that their entities choose, in the order given.

    ``by`` is the field with the entity, and ``client`` a client of the package redis.
    """
    pipe = client.pipeline(transaction=False)
    for event in events:
        part = partition_of(str(event[by]), partitions)
        key = stream if partitions == 1 else f"{stream}:{part}"
        pipe.xadd(key, {FIELD: json.dumps(event)})
    pipe.execute()


def _streams(found: Any) -> list[tuple[bytes, Any]]:
    """The answer to XREAD, by RESP 2 and by RESP 3."""
    if not found:
        return []
    if isinstance(found, dict):
        return [
            (key, entries[0] if len(entries) == 1 and _nested(entries) else entries)
            for key, entries in found.items()
        ]
    return list(found)


def _nested(entries: list[Any]) -> bool:
    """Whether entries are in a list of their own."""
    return bool(entries[0]) and isinstance(entries[0][0], tuple | list)


def _content(fields: dict[bytes, bytes] | None) -> bytes:
    """An entry as a JSON object."""
    if not fields:
        return b""
    whole = fields.get(FIELD)
    if whole is not None:
        return whole
    object = {key.decode("utf-8", "replace"): _value(value) for key, value in fields.items()}
    return json.dumps(object).encode()


def _value(value: bytes) -> str | float | int:
    """A field of an entry: Redis keeps text alone, so that a number is what looks like one."""
    text = value.decode("utf-8", "replace")
    try:
        number = float(text)
    except ValueError:
        return text
    is_whole = text.lstrip("-").isdigit()
    return int(text) if is_whole else number


def _id(position: str) -> tuple[int, int]:
    """An id of an entry, for comparison."""
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number or 0)
