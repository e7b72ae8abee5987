"""The state of a feed of many entities, written in the background: only what has changed, all of it
or none.

The loop hands over copies of the entities that have changed and the place of the feed that belongs
to them, and goes on scoring. A thread makes the output durable up to there, and then commits both
to the store (`streaming.store`):

    output up to here (fsync)  ->  changed entities and the place of the feed, in one transaction

What failed is changed still, and is written with the next state.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait as wait_for
from contextlib import contextmanager

from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.entity_table import Changes
from fourpoint.streaming.feed.state import FEED, FeedState
from fourpoint.streaming.store import Store

MOST_CHANGED = 1024  # entities after which a state is due, whatever the time
MOST_UNSAVED = 2 * MOST_CHANGED  # entities that may have changed before scoring waits for the disk
MOST_WAITING = 12  # states that may wait for the disk
PAUSE = 0.01  # seconds that a batch may wait for the disk, as long as there are fewer
FEW = 32  # lines of a batch while the disk is behind
TURN = 2e-4  # seconds that the interpreter stays with one thread while another waits


class EntitySaver:
    """Writes the states of a feed into ``store``, one after the other; a few may wait for the disk.

    To copy changed entities takes the time of the loop, so that not too many may gather between two
    states. Where entities change faster than the disk takes them, as after a burst of new ones,
    each batch waits for a moment (:meth:`has_room`) and is small (:attr:`most_lines`), so that no
    event waits for a whole state to be written.
    """

    def __init__(self, bank: StreamBank, store: Store) -> None:
        self._bank, self._store = bank, store
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[tuple[Future[None], Changes]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a state is being written."""
        return any(not writing.done() for writing, _ in self._waiting)

    @property
    def pressing(self) -> bool:
        """Whether so many entities have changed that they should be copied now."""
        return self._bank.changed >= MOST_CHANGED

    @property
    def _behind(self) -> bool:
        """Whether another state would have to wait."""
        return sum(not writing.done() for writing, _ in self._waiting) > MOST_WAITING

    @property
    def most_lines(self) -> int | None:
        """Lines that the next batch may have; None: any number."""
        return FEW if self.pressing and self._behind else None

    def has_room(self) -> bool:
        """Whether another state may be written now, after a wait of at most ``PAUSE``; also where
        so many entities have changed that it must be waited for.
        """
        if self._behind and self._bank.changed < MOST_UNSAVED:
            wait_for([self._waiting[0][0]], timeout=PAUSE)
            return not self._behind
        return True

    def save(self, state: FeedState, sync: Callable[[], None], *, wait: bool) -> None:
        """Write ``state`` and the entities that have changed; ``sync`` makes the output durable.

        Raises OSError where this state could not be written, if ``wait``, else where one before it
        could not.
        """
        try:
            self._finish(0 if wait else MOST_WAITING)
        except OSError:
            if not wait:
                raise
            self._finish(0)
        changes = self._bank.changes()
        self._waiting.append(
            (self._thread.submit(self._write, changes, state.to_bytes(), sync), changes)
        )
        if wait:
            self._finish(0)

    def close(self) -> None:
        """End the thread, after the state in hand, and let go of the file."""
        self._thread.shutdown(wait=True)
        self._store.close()

    def _finish(self, most: int) -> None:
        """Look at the states that are done, and wait until at most ``most`` are not; raises the
        last error among them.
        """
        error: BaseException | None = None
        while self._waiting and (len(self._waiting) > most or self._waiting[0][0].done()):
            writing, changes = self._waiting.popleft()
            fault = writing.exception()
            self._bank.written(changes, success=fault is None)
            error = fault or error
        if error is not None:
            raise error

    def _write(self, changes: Changes, state: bytes, sync: Callable[[], None]) -> None:
        sync()
        with _short_turns():
            self._store.write(changes.rows(), {FEED: state})


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let the threads of this process take short turns: one that scores waits for this one at each
    call of the system.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, TURN))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
