"""A worker of a consumer group: it owns some partitions, scores their messages, and commits.

Any number of workers share the partitions of a source. With Kafka the group protocol says who owns
what. With Redis, which knows no partitions, workers agree through the store: each gives a sign of
life every third of a lease, the live workers in order are w_0, ..., w_(n-1), and partition p
belongs to

    w_(p mod n).

A worker gives up what is no longer its own after a commit, and takes what is its own as soon as it
is free or its lease has run out. What a killed worker had scored since its last commit is not in
the store, neither the states nor the scores; the next owner goes on from the committed position.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fourpoint.serve.brokers.group_store import GroupStore
from fourpoint.serve.brokers.kafka_source import KafkaSource
from fourpoint.serve.brokers.partition import Messages, Partition, Scoring
from fourpoint.serve.brokers.redis_source import RedisSource

LEASE = 10.0  # seconds without a sign of life after which a partition may be taken over
POLL = 0.1  # seconds to wait for messages
SHARE = 0.2  # of the time that commits may take; else they are made less often
LEAST = 0.2  # seconds between two commits at least
HUNG = 10  # leases after which a worker that does nothing counts as dead
SHOWN = 10.0  # seconds between two lines about progress


class Source(Protocol):
    """Messages of partitions: Redis Streams or Kafka."""

    name: str

    def open(self, part: int, position: str | None) -> None:
        """Read a partition after a position."""

    def close_partition(self, part: int) -> None:
        """Read no more of a partition."""

    def poll(self, seconds: float) -> list[Messages]:
        """Messages that are there, after at most so many seconds."""

    def ends(self) -> dict[int, str | None]:
        """The last position of each partition at present."""

    def is_done(self, position: str | None, end: str | None) -> bool:
        """Whether a position is at or after an end."""

    def committed(self, positions: Mapping[int, str]) -> None:
        """Partitions are done up to these positions."""

    def close(self) -> None:
        """End the connection."""


@dataclass
class Progress:
    """What a worker has done: events that are committed, messages refused, alarms, and the seconds
    that it ran.
    """

    events: int = 0
    refused: int = 0
    alarms: int = 0
    seconds: float = 0.0
    commits: int = 0
    taken: int = 0  # partitions that it has owned, those that it owned twice counted twice

    def __str__(self) -> str:
        rate = self.events / max(self.seconds, 1e-9)
        return (
            f"{self.events:,} events in {self.commits:,} commits, {self.refused:,} messages "
            f"refused, {self.alarms:,} alarms; {rate:,.0f} events per second"
        )


def worker_name() -> str:
    """A name that no other worker has.

    >>> worker_name() != worker_name()
    True
    """
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Heart:
    """Gives signs of life of a worker, in a thread of its own, so that a long batch or commit costs
    it no lease.

    ``store`` is for the thread alone. Where the worker has not called :meth:`turned` for ten
    leases it hangs, and its partitions are left to others.
    """

    def __init__(self, store: GroupStore, name: str, lease: float) -> None:
        self.tokens: dict[int, int] = {}  # of the partitions that the worker owns
        self._store, self._name, self._lease = store, name, lease
        self._live: list[str] = []
        self._lost: dict[int, int] = {}
        self._error: BaseException | None = None
        self._turned = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)

    def start(self) -> None:
        """Give the first sign of life, and go on."""
        self._beat()
        self._thread.start()

    def turned(self) -> None:
        """The worker is at work; raises where its signs of life cannot be given."""
        self._turned = time.monotonic()
        if self._error is not None:
            raise self._error

    def live(self) -> list[str]:
        """The workers that are alive, in order."""
        return self._live

    def lost(self) -> set[int]:
        """Partitions that others have taken over."""
        return {part for part, token in self._lost.items() if self.tokens.get(part) == token}

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._store.close()

    def _run(self) -> None:
        try:
            while not self._ended.wait(min(1.0, self._lease / 4)):
                if time.monotonic() < self._turned + HUNG * self._lease:
                    self._beat()
        except BaseException as error:
            self._error = error

    def _beat(self) -> None:
        tokens = self.tokens
        self._live, lost = self._store.beat(self._name, self._lease, tokens)
        self._lost = {part: tokens[part] for part in lost}


class Worker:
    """Scores the partitions that it owns until it is told to end.

    Arguments
        store: the shared store of the group.
        source: where messages come from.
        scoring: how they are scored, the same for all workers.
        sinks: names of the sinks that alarms are sent to.
        lease: seconds without a sign of life after which others take its partitions over.
        every: seconds between two commits, at least; more where commits would take more than a
            fifth of the time.
        tell: what to do with notices.
    """

    def __init__(
        self,
        store: GroupStore,
        source: RedisSource | KafkaSource,
        scoring: Scoring,
        *,
        sinks: Sequence[str] = (),
        name: str | None = None,
        lease: float = LEASE,
        every: float = LEAST,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name = name or worker_name()
        self.progress = Progress()
        self.owned: dict[int, Partition] = {}
        self._store = store
        self._source: Source = source
        self._scoring = scoring
        self._sinks = sinks
        self._lease = lease
        self._every = every
        self._tell = tell
        self._partitions: int | None = None
        self._heart = Heart(store.beside(), self.name, lease)
        self._pause = min(0.5, lease / 10)  # seconds between two looks at who owns what
        self._looked = -self._pause
        self._committed = time.monotonic()
        self._cost = 0.0  # seconds that the last commit took
        self._failed: BaseException | None = None  # in a callback of Kafka
        if isinstance(source, KafkaSource):
            source.subscribe(self._assigned, self._revoked, self._lost)
        else:
            self._partitions = source.partitions

    def run(self, told: Sequence[int] = (), *, until_end: bool = False) -> Progress:
        """Work until ``told`` has an element; with ``until_end`` until all messages that are there
        now are scored, by whichever workers.
        """
        began = time.monotonic()
        shown = began
        try:
            ends = self._source.ends() if until_end else {}
            self._heart.start()
            while not told:
                self._share()
                self._score(self._source.poll(POLL))
                if self._failed is not None:
                    raise self._failed
                self._commit_if_due()
                if until_end and self._is_done(ends):
                    break
                self.progress.seconds = time.monotonic() - began
                if time.monotonic() > shown + SHOWN:
                    shown = time.monotonic()
                    self._tell(str(self.progress))
            self._commit()
        finally:
            self.progress.seconds = time.monotonic() - began
            self._end()
        return self.progress

    def _end(self) -> None:
        """Leave the group; what is not committed is left for others."""
        self.owned.clear()
        self._heart.stop()
        try:
            self._store.leave(self.name)
        finally:
            self._source.close()

    def _is_done(self, ends: dict[int, str | None]) -> bool:
        """Whether all partitions are committed up to their ends."""
        is_done = self._source.is_done
        mine = {part: own.position for part, own in self.owned.items()}
        if not all(is_done(position, ends.get(part)) for part, position in mine.items()):
            return False
        self._commit()
        positions = self._store.positions()
        return all(is_done(positions.get(part), end) for part, end in ends.items())

    # ------------------------------------------------------------------ who owns what

    def _share(self) -> None:
        """Own what belongs to this worker, where workers agree on that themselves."""
        self._heart.turned()
        for part in self._heart.lost() & set(self.owned):
            self._drop(part)
        now = time.monotonic()
        if self._partitions is None or now < self._looked + self._pause:
            return
        self._looked = now
        live = self._heart.live()
        if self.name not in live:
            return
        place = live.index(self.name)
        mine = {part for part in range(self._partitions) if part % len(live) == place}
        surplus = set(self.owned) - mine
        if surplus:
            self._give_up(surplus)
        missing = sorted(mine - set(self.owned))
        if missing:
            self._own(missing, force=False)

    def _own(self, parts: list[int], *, force: bool) -> None:
        for part, held in self._store.claim(parts, self.name, self._lease, force=force).items():
            self.owned[part] = Partition(self._scoring, self._store, part, held)
            self._source.open(part, held.position)
            self.progress.taken += 1
        self._show_tokens()

    def _show_tokens(self) -> None:
        self._heart.tokens = {part: own.held.token for part, own in self.owned.items()}

    def _give_up(self, parts: set[int]) -> None:
        """Commit, and let others own partitions."""
        self._commit()
        tokens = {part: self.owned[part].held.token for part in parts if part in self.owned}
        for part in tokens:
            self._drop(part)
        self._store.release(tokens)

    def _drop(self, part: int) -> None:
        """Forget a partition, and what was not committed of it."""
        self.owned.pop(part, None)
        self._source.close_partition(part)
        self._show_tokens()

    def _assigned(self, parts: list[int]) -> None:
        """Kafka has assigned partitions to this worker."""
        self._caught(lambda: self._own(parts, force=True))

    def _revoked(self, parts: list[int]) -> None:
        """Kafka takes partitions back, and waits until this returns."""
        self._caught(lambda: self._give_up(set(parts) & set(self.owned)))

    def _lost(self, parts: list[int]) -> None:
        """Kafka has given partitions to others already."""
        for part in parts:
            self._drop(part)

    def _caught(self, work: Callable[[], None]) -> None:
        """Errors in callbacks are raised by :meth:`run`."""
        try:
            work()
        except BaseException as error:
            self._failed = self._failed or error

    # ------------------------------------------------------------------ scores and commits

    def _score(self, found: list[Messages]) -> None:
        for messages in found:
            own = self.owned.get(messages.part)
            if own is not None:
                own.score(messages)

    def _commit_if_due(self) -> None:
        wait = max(self._every, self._cost * (1 / SHARE - 1))
        if time.monotonic() - self._committed >= wait:
            self._commit()

    def _commit(self) -> None:
        """Commit what was scored, in one transaction; partitions that others own now are
        dropped.
        """
        began = time.monotonic()
        commits = [own.commit() for own in self.owned.values() if own.uncommitted]
        if commits:
            fenced = self._store.commit(commits, self._sinks)
            positions: dict[int, str] = {}
            for commit in commits:
                if commit.part in fenced:
                    self._tell(f"partition {commit.part} belongs to another worker now")
                    self._drop(commit.part)
                    continue
                self.owned[commit.part].committed(commit)
                positions[commit.part] = commit.position
                self.progress.events += commit.events
                self.progress.refused += len(commit.refusals)
                self.progress.alarms += len(commit.alarms)
                for refusal in commit.refusals:
                    self._tell(f"partition {commit.part}, {refusal.position}: {refusal.reason}")
            self.progress.commits += 1
            self._source.committed(positions)
        self._committed = time.monotonic()
        self._cost = self._committed - began
