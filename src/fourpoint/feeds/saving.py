"""The state of a feed of many entities, written in the background: only what has changed, all of it or none.

The loop hands over copies of the entities that have changed and the place of the feed that belongs to them, and goes on
scoring. A thread makes the output durable up to there, and then commits both to the store (`streaming.store`):

    output up to here (fsync)  ->  changed entities and the place of the feed, in one transaction

What failed is changed still, and is written with the next state.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from fourpoint.feeds.state import FEED, FeedState
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.seats import Changes
from fourpoint.streaming.store import Store


class EntitySaver:
    """Writes the states of a feed into ``store``, one at a time."""

    def __init__(self, bank: StreamBank, store: Store) -> None:
        self._bank, self._store = bank, store
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a state is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, state: FeedState, sync: Callable[[], None], *, wait: bool) -> None:
        """Write ``state`` and the entities that have changed; ``sync`` makes the output durable.

        Raises OSError where this state could not be written, if ``wait``, else where the one before could not.
        """
        try:
            self._finish()
        except OSError:
            if not wait:
                raise
        self._writing = self._thread.submit(self._write, self._bank.changes(), state.to_bytes(), sync)
        if wait:
            self._finish()

    def close(self) -> None:
        """End the thread, after the state in hand, and let go of the file."""
        self._thread.shutdown(wait=True)
        self._store.close()

    def _finish(self) -> None:
        """Wait for the state in hand."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        error = writing.exception()
        self._bank.written(success=error is None)
        if error is not None:
            raise error

    def _write(self, changes: Changes, state: bytes, sync: Callable[[], None]) -> None:
        sync()
        self._store.write(changes.rows(), {FEED: state})
