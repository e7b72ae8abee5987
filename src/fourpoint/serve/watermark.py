"""Events that come out of order, put in order by a watermark.

With a lateness L the watermark is the latest time seen less L. An event after it waits; once the
watermark passes it, it is scored, and so events leave in the order of their times however they came
within L. An event behind the watermark is handed on at once: it is scored if its entity has had no
later event, else it is late. Events are taken one by one, so that batches make no difference:

    W <- max(W, t - L),   then every waiting event with a time up to W leaves, the earliest first.
"""

from __future__ import annotations

import heapq
import math

from fourpoint.serve.store import StoredEvent


class Watermark:
    """Events that wait; ``frontier`` is the time up to which all have left.

    >>> def event(number: int, time: float) -> StoredEvent:
    ...     return StoredEvent(number, None, "a", time, time, 0, None, False)
    >>> watermark = Watermark(lateness=2.0)
    >>> [
    ...     e.time
    ...     for e in watermark.add([event(1, 1.0), event(2, 4.0), event(3, 3.0), event(4, 5.5)])
    ... ]
    [1.0, 3.0]
    >>> watermark.frontier, len(watermark)
    (3.5, 2)
    """

    def __init__(self, lateness: float, frontier: float | None = None) -> None:
        self.lateness = lateness
        self.frontier = -math.inf if frontier is None else frontier
        self._waiting: list[tuple[float, int, str, int, StoredEvent]] = []

    def __len__(self) -> int:
        """Events that wait."""
        return len(self._waiting)

    @property
    def first(self) -> int | None:
        """The least number of a waiting event; None: none waits."""
        return min((event.seq for *_, event in self._waiting), default=None)

    @property
    def latest(self) -> float:
        """The latest time of a waiting event; the frontier where none waits."""
        return max((event.moment for *_, event in self._waiting), default=self.frontier)

    def add(self, events: list[StoredEvent]) -> list[StoredEvent]:
        """Events in the order of arrival: those that are to be scored now, in order."""
        if self.lateness <= 0.0:
            self.frontier = max([self.frontier, *(event.moment for event in events)])
            return events
        leaving: list[StoredEvent] = []
        for event in events:
            if event.moment <= self.frontier:
                leaving.append(event)
                continue
            self.wait(event)
            leaving += self.advance(event.moment - self.lateness)
        return leaving

    def wait(self, event: StoredEvent) -> None:
        """An event more that waits."""
        # Events of one time are in the order of their ids, shorter ones first, so that the order
        # of delivery makes no difference; those without an id are in the order of arrival.
        id = event.id or ""
        heapq.heappush(self._waiting, (event.moment, len(id), id, event.seq, event))

    def advance(self, frontier: float) -> list[StoredEvent]:
        """Move the frontier forward: the events that leave."""
        self.frontier = max(self.frontier, frontier)
        leaving: list[StoredEvent] = []
        while self._waiting and self._waiting[0][0] <= self.frontier:
            leaving.append(heapq.heappop(self._waiting)[-1])
        return leaving
