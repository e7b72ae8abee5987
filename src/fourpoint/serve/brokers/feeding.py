"""A broker as a source of the service, and its alarms sent to sinks.

    poll messages  ->  Service.submit(events, offsets)  ->  one transaction: events, scores, offsets

The position of each partition is committed with its events, so that each of them counts once: after
a restart, or after a commit that failed, reading goes on from the positions in the store. Alarms
are numbered by the service. Each sink has the number of the last alarm that has arrived there, and
gets those after it in order.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from fourpoint.errors import UserError
from fourpoint.serve.brokers.kafka_source import KafkaSource
from fourpoint.serve.brokers.partition import Messages
from fourpoint.serve.brokers.redis_source import RedisSource
from fourpoint.serve.brokers.sinks import LONGEST_WAIT, Sink
from fourpoint.serve.engine import Engine, Receipt
from fourpoint.serve.service import Busy, Service
from fourpoint.streaming.feed.encoding import loader

POLL = 0.1  # seconds to wait for messages
AGAIN = 1.0  # seconds after a failure before it is tried again
AT_ONCE = 100  # alarms that are read at once


class BrokerFeed:
    """Hands the messages of a broker to ``service``, in a thread of its own.

    ``name`` is that of the source among the offsets in the store. ``make`` connects to the broker.
    What is no event is told, as other refused events are, and counted by the service.
    """

    def __init__(
        self,
        service: Service,
        name: str,
        make: Callable[[], RedisSource | KafkaSource],
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.events = 0  # accepted so far
        self.error: str | None = None  # why nothing is read at present
        self._service = service
        self._name = name
        self._make = make
        self._tell = tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """End, after what was handed over is committed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Read until the end; after a failure, again from the positions in the store."""
        while not self._ended.is_set():
            try:
                source = self._make()
                try:
                    self._read(source)
                finally:
                    source.close()
            except Exception as error:
                if str(error) != self.error:
                    self._tell(f"the broker is not read at present: {error}")
                self.error = str(error)
                self._ended.wait(AGAIN)

    def _read(self, source: RedisSource | KafkaSource) -> None:
        positions = self._service.store.offsets(self._name)
        for part in source.parts():
            source.open(part, positions.get(str(part)))
        source.assign()
        handed: tuple[Future[Receipt], list[Messages]] | None = None
        while not self._ended.is_set():
            found = source.poll(POLL)
            events = [_parsed(content) for messages in found for content in messages.contents]
            # Messages are read while those before them are committed, but not handed over: where
            # the commit fails they must not be committed either.
            if handed is not None:
                self._finish(source, *handed)
            handed = (self._submit(events, found), found) if found else None
            self.error = None
        if handed is not None:
            self._finish(source, *handed)

    def _submit(self, events: list[object], found: list[Messages]) -> Future[Receipt]:
        offsets = [(self._name, str(one.part), one.positions[-1]) for one in found]
        while True:
            try:
                return self._service.submit(events, offsets)
            except Busy:
                if self._ended.wait(POLL):
                    raise

    def _finish(
        self, source: RedisSource | KafkaSource, future: Future[Receipt], found: list[Messages]
    ) -> None:
        receipt = future.result()
        self.events += receipt.accepted
        places = [
            f"partition {one.part}, {position}" for one in found for position in one.positions
        ]
        for refusal in receipt.refused:
            self._tell(f"{places[refusal['index']]}: {refusal['error']}")
        source.committed({one.part: one.positions[-1] for one in found})


def _parsed(content: bytes) -> object:
    """A message as JSON; its text where it is none, which is refused as an event."""
    try:
        return loader()(content)
    except (ValueError, RecursionError):
        return content[:80].decode(errors="replace")


class AlarmSender:
    """Sends the alarms of ``service`` to ``sinks``, by their names in the store, in a thread of its
    own. A sink that is new gets the alarms from then on.
    """

    def __init__(
        self,
        service: Service,
        sinks: Mapping[str, Sink],
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._service = service
        self._sinks = sinks
        self._tell = tell
        self._due = dict.fromkeys(sinks, 0.0)
        self._attempts = dict.fromkeys(sinks, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)

    def start(self) -> None:
        """Begin to send, what is raised from now on to a sink that is new."""
        for name in self._sinks:
            self.send(name)
        self._thread.start()

    def close(self) -> None:
        """Try once more to send what is due, and end."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for sink in self._sinks.values():
            sink.close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(POLL)
            for name in self._sinks:
                try:
                    self.send(name)
                except (OSError, UserError) as error:  # of the store, which is tried again
                    self._tell(f"alarms are not sent at present: {error}")
                    self._ended.wait(AGAIN)

    def send(self, name: str) -> int:
        """Send the alarms that one sink has not got, if it is time to: how many have arrived."""
        if time.monotonic() < self._due[name]:
            return 0
        key = f"alarms sent to {name}"
        kept = self._service.store.text(key)
        if kept is None:
            self._note(key, self._service.engine.counters.alarms)
            return 0
        arrived = 0
        for row in self._service.store.alarms_after(int(kept), AT_ONCE):
            fields = self._service.engine.alarm_fields(row)
            body = {**fields, "id": f"alarm-{row.alarm}"}
            try:
                self._sinks[name].send(str(body["id"]), json.dumps(body).encode())
            except OSError as error:
                if not self._attempts[name]:
                    self._tell(f"alarm {row.alarm} was not sent to {name}: {error}")
                wait = min(LONGEST_WAIT, 2.0 ** self._attempts[name])
                self._attempts[name] += 1
                self._due[name] = time.monotonic() + wait
                break
            self._attempts[name] = 0
            self._note(key, row.alarm)
            arrived += 1
        return arrived

    def _note(self, key: str, number: int) -> None:
        def put(engine: Engine) -> None:
            with engine.store.transaction():
                engine.store.put_text(key, str(number))

        self._service.call(put).result()
