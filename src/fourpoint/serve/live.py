"""Messages to everyone who watches: scored events, alarms and the status, as server-sent events.

The last messages are kept, so that a client that lost its connection can ask for those after the
last one it has. Their numbers begin with a text that differs from one start of the service to the
next: after a restart a client gets what is new.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

from fourpoint.strict_json import dumps

KEPT = 512  # messages that a client may ask for again
WAITING = 256  # messages that may wait for a slow client before it is disconnected
QUIET = 15.0  # seconds after which a comment keeps a connection open


class Message(NamedTuple):
    """One message: its number, its kind and its data as JSON."""

    id: str
    event: str
    data: str

    def text(self) -> str:
        """As a server-sent event."""
        return f"id: {self.id}\nevent: {self.event}\ndata: {self.data}\n\n"


class Live:
    """Hands messages from the engine's thread to the clients of an event loop.

    >>> live = Live()
    >>> live.publish("alarm", {"id": 1})
    >>> [message.event for message in live.after(None)], live.after(live.last_id)
    (['alarm'], [])
    """

    def __init__(self) -> None:
        self._start = secrets.token_hex(4)
        self._count = 0
        self._kept: deque[Message] = deque(maxlen=KEPT)
        self._clients: dict[asyncio.Queue[Message | None], asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Clients that are connected."""
        return len(self._clients)

    @property
    def last_id(self) -> str:
        """The number of the last message."""
        return f"{self._start}-{self._count}"

    def publish(self, event: str, data: object) -> None:
        """Send a message to all clients, from any thread."""
        with self._lock:
            self._count += 1
            message = Message(self.last_id, event, dumps(data))
            self._kept.append(message)
            clients = list(self._clients.items())
        for client, loop in clients:
            loop.call_soon_threadsafe(_put, client, message)

    def after(self, last: str | None) -> list[Message]:
        """The kept messages after the one with the number ``last``; all of them for a number of
        another start of the service.
        """
        with self._lock:
            kept = list(self._kept)
        start, _, number = (last or "").rpartition("-")
        if start != self._start or not number.isdigit():
            return kept
        return [m for m in kept if int(m.id.rpartition("-")[2]) > int(number)]

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            clients = list(self._clients.items())
        for client, loop in clients:
            loop.call_soon_threadsafe(_put, client, None)

    async def listen(self, last: str | None) -> AsyncIterator[str]:
        """Messages as they come, those that were missed first; ends where a client is too slow."""
        client: asyncio.Queue[Message | None] = asyncio.Queue(WAITING)
        with self._lock:
            self._clients[client] = asyncio.get_running_loop()
        try:
            yield "retry: 1000\n\n"
            sent = 0
            if last is not None:
                for message in self.after(last):
                    sent = int(message.id.rpartition("-")[2])
                    yield message.text()
            while True:
                try:
                    message_or_end = await asyncio.wait_for(client.get(), QUIET)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if message_or_end is None:
                    return
                if int(message_or_end.id.rpartition("-")[2]) > sent:
                    yield message_or_end.text()
        finally:
            with self._lock:
                self._clients.pop(client, None)


def _put(client: asyncio.Queue[Message | None], message: Message | None) -> None:
    """A message for a client; one that is too slow is disconnected."""
    if client.full():
        while not client.empty():
            client.get_nowait()
        message = None
    client.put_nowait(message)
