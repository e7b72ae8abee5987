"""Where alarms are sent: a stream of Redis, a topic of Kafka, or a webhook.

    redis://HOST:6379/0?stream=alarms      kafka://HOST:9092/alarms      https://example.org/alarms

An alarm is written to the store with the events that raised it, and with it that it has to be sent
(the outbox); it is taken out of the outbox when it has arrived. A sink that is away gets it later:
after 1, 2, 4, ... seconds and at most every five minutes, without an end. No alarm is lost, and one
may arrive twice if a process is killed between sending it and noting that; its ``id`` is the same.
In a stream of Redis, which remembers the ids of alarms for a week, it is written once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit, urlunsplit

from fourpoint.errors import UserError
from fourpoint.serve.brokers.group_store import OUTBOX, Delivery, GroupStore
from fourpoint.serve.brokers.kafka_source import client_module
from fourpoint.serve.brokers.redis_source import connect
from fourpoint.serve.brokers.webhook import Webhook
from fourpoint.serve.databases import StoreError

LONGEST_WAIT = 300.0  # seconds between two attempts, at most
POLL = 0.5  # seconds between two looks at the outbox
AT_ONCE = 100  # alarms that are sent before the worker goes on
REMEMBERED = 7 * 86_400  # seconds for which Redis knows the id of an alarm that was sent
# The id is noted and the alarm appended together, or not at all.
ONCE = """
if redis.call('SET', KEYS[1] .. ':sent:' .. ARGV[1], '1', 'NX', 'EX', ARGV[3]) then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', 100000, '*', 'id', ARGV[1], 'alarm', ARGV[2])
end
"""


class Sink(Protocol):
    """Somewhere to send alarms."""

    def send(self, id: str, body: bytes) -> None:
        """Send one alarm; raises OSError where it did not arrive."""

    def close(self) -> None:
        """End the connection."""


class RedisSink:
    """Appends alarms to a stream, each of them once."""

    def __init__(self, url: str, stream: str) -> None:
        self._client = connect(url)
        self._stream = stream

    def send(self, id: str, body: bytes) -> None:
        """Append one alarm, unless it is there."""
        import redis

        try:
            self._client.eval(ONCE, 1, self._stream, id, body, REMEMBERED)
        except redis.RedisError as error:
            raise OSError(f"{error} (Redis)") from None

    def close(self) -> None:
        """End the connection."""
        self._client.close()


class KafkaSink:
    """Sends alarms to a topic, with their ids as keys."""

    def __init__(self, servers: str, topic: str, options: Mapping[str, str] | None = None) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "message.timeout.ms": 10_000,
            "log_level": 0,
        }
        self._producer = client_module().Producer({**settings, **(options or {})})
        self._topic = topic

    def send(self, id: str, body: bytes) -> None:
        """Send one alarm, and wait until the broker has it."""
        failed: list[str] = []

        def note(error: object, message: object) -> None:
            if error is not None:
                failed.append(str(error))

        self._producer.produce(self._topic, key=id, value=body, on_delivery=note)
        left = self._producer.flush(15.0)
        if failed or left:
            raise OSError(f"{failed[0] if failed else 'no answer'} (Kafka)")

    def close(self) -> None:
        """Nothing waits between two alarms."""


def sink_at(url: str, secret: bytes | None) -> Sink:
    """The sink that a URL names; ``secret`` signs what is sent to a webhook."""
    parts = urlsplit(url)
    if parts.scheme in ("redis", "rediss", "unix"):
        asked = parse_qs(parts.query)
        stream = asked.pop("stream", [""])[-1]
        if not stream:
            raise UserError(
                "a stream for alarms", f"{url!r}", "Type redis://HOST:6379/0?stream=alarms, say."
            )
        server = urlunsplit((parts.scheme, parts.netloc, parts.path, "", parts.fragment))
        return RedisSink(server, stream)
    if parts.scheme == "kafka":
        topic = parts.path.strip("/")
        if not parts.netloc or not topic:
            raise UserError("a topic for alarms", f"{url!r}", "Type kafka://HOST:9092/TOPIC, say.")
        return KafkaSink(parts.netloc, topic)
    return Webhook(url, secret)


class Outbox:
    """Sends the alarms of a group in a thread of its own; ``sinks`` by the names in the store.

    Of all workers of a group the one that has the lease of the outbox sends. ``store`` is for the
    thread alone.
    """

    def __init__(
        self, store: GroupStore, sinks: Mapping[str, Sink], worker: str, lease: float
    ) -> None:
        self._store, self._sinks = store, sinks
        self._worker, self._lease = worker, lease
        self._ended = Event()
        self._thread = Thread(target=self._run, name="alarms", daemon=True)
        self.error: BaseException | None = None  # why the thread has ended

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(POLL):
                if self._store.claim([OUTBOX], self._worker, self._lease):
                    self.send_due()
        except BaseException as error:
            self.error = error

    def send_due(self) -> int:
        """Send alarms that are due: how many have arrived."""
        arrived = 0
        for delivery in self._store.due(AT_ONCE):
            sink = self._sinks.get(delivery.sink)
            if sink is None:  # of a worker with other options
                self._store.postpone(delivery, LONGEST_WAIT, "no worker with this sink")
                continue
            try:
                sink.send(delivery.alarm.id, _body(delivery))
            except OSError as error:
                wait = min(LONGEST_WAIT, 2.0**delivery.attempts)
                self._store.postpone(delivery, wait, str(error))
            else:
                self._store.sent(delivery)
                arrived += 1
        return arrived

    def close(self) -> None:
        """Try once to send what is due, and end."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self.error is None:
            with suppress(StoreError):
                self.send_due()
        for sink in self._sinks.values():
            sink.close()
        self._store.close()


def _body(delivery: Delivery) -> bytes:
    return json.dumps({"id": delivery.alarm.id, **delivery.alarm.body}).encode()
