"""Is an event's time plausible? One far in the future would make every later event "before the
last".

The bound follows from the feed and from the model. With the latest accepted time T, the first one
T_0 and the rate r of the training data, an event at time t is refused where

    t - T  >  max(T - T_0, 1000 / r),

a gap longer than all of the feed so far in which at least 1,000 events were expected. A feed that
goes on after a real outage must not be refused for ever: ten such events in a row, in order and
close to one another, are believed, and the last of them is the first that is accepted. Where times
have a calendar (`streaming.feed.training_window`), the wall clock decides before that: an event of
the last day is believed at once, and one more than a day ahead of the clock never.

The decision depends on the order of the events alone, not on how they are batched, so that a
restart repeats it.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from fourpoint.events import UserError

EXPECTED = 1000.0  # events expected in a gap that is too long to be believed
CONFIRM = 10  # implausible events in a row after which the feed is believed
SLACK = 86_400.0  # seconds by which clocks and zones may differ


@dataclass(frozen=True)
class Calendar:
    """Where time 0 is on the wall clock, in seconds since 1970, and how many seconds a unit of time
    has.
    """

    origin: float
    seconds: float
    now: Callable[[], float] = clocks.time

    def ahead(self, time: float) -> float:
        """Seconds by which ``time`` lies after now."""
        return self.origin + time * self.seconds - self.now()


@dataclass
class Reached:
    """How far a feed has come: its first and latest accepted times, and the implausible ones in a
    row.
    """

    first: float | None = None
    latest: float | None = None
    doubted: float | None = None
    doubts: int = 0


class TimeCheck:
    """Refuses implausible times.

    Args:
        start: when the observation began. Earlier times are left to the stream, which refuses them.
        since: from where the gap before the first event is counted: the end of the training window,
            say.
        rate: events per unit of time that are expected of the whole feed.
        most: the longest gap that is believed, in the model's unit of time; None: by the rule
            above.
        calendar: the wall clock, where times have one.
        reached: how far an earlier run came.

    >>> check = TimeCheck(0.0, 0.0, rate=2.0)
    >>> [found is None for found in check([1.0, 2.5, 2500.0, 3.0])]
    [True, True, False, True]
    """

    def __init__(
        self,
        start: float,
        since: float,
        rate: float,
        *,
        most: float | None = None,
        calendar: Calendar | None = None,
        reached: Reached | None = None,
    ) -> None:
        self.start = start
        self.since = max(start, since)
        self.most = most
        self.usual = EXPECTED / rate if rate > 0 else float("inf")
        self.calendar = calendar
        self.reached = reached or Reached()

    def __call__(self, times: list[float]) -> list[UserError | None]:
        """Per time, in order: None, or why it is refused."""
        if not times:
            return []
        if self._all_plausible(times):
            self.accept(max(times))
            return [None] * len(times)
        return [self._checked(time) for time in times]

    def _all_plausible(self, times: list[float]) -> bool:
        """Whether no time is beyond the bound of the first: the bound never shrinks, so all are
        accepted.
        """
        if self.reached.latest is None:
            return False
        last = max(times)
        return last <= self._bound() and not self._is_future(last)

    def _checked(self, time: float) -> UserError | None:
        if time < self.start:
            return None
        if self._is_future(time):
            return self._not_yet(time)
        if time <= self._bound() or self._is_now(time) or self._is_confirmed(time):
            self.accept(time)
            return None
        return self._too_far(time)

    def _bound(self) -> float:
        """The last time that is believed without more evidence."""
        reached = self.reached
        if reached.latest is None or reached.first is None:
            # The wall clock alone can tell how long after training a feed may begin.
            known = self.calendar is not None and self.most is None
            return float("inf") if known else self.since + self._longest(0.0)
        return reached.latest + self._longest(reached.latest - reached.first)

    def _longest(self, elapsed: float) -> float:
        return max(elapsed, self.usual) if self.most is None else self.most

    def accept(self, time: float) -> None:
        """Believe a time, whatever it is."""
        reached = self.reached
        reached.first = time if reached.first is None else reached.first
        reached.latest = time if reached.latest is None else max(reached.latest, time)
        reached.doubted, reached.doubts = None, 0

    def _is_future(self, time: float) -> bool:
        return self.calendar is not None and self.calendar.ahead(time) > SLACK

    def _is_now(self, time: float) -> bool:
        return self.calendar is not None and abs(self.calendar.ahead(time)) <= SLACK

    def _is_confirmed(self, time: float) -> bool:
        """Count an implausible time; whether enough of them in a row speak for it."""
        reached = self.reached
        follows = reached.doubted is not None and 0.0 <= time - reached.doubted <= self._longest(
            0.0
        )
        reached.doubts = reached.doubts + 1 if follows else 1
        reached.doubted = time
        return reached.doubts >= CONFIRM

    def _too_far(self, time: float) -> UserError:
        latest = self.reached.latest
        last = f"{latest:.10g} was the last" if latest is not None else "the feed has not begun"
        received = (
            f"{time:.10g}, after a gap in which about {self._expected(time):,.3g} events were "
            "expected"
        )
        remedy = (
            f"Check its unit; {CONFIRM} such lines in a row are accepted, and --max-gap changes "
            "the bound."
        )
        return UserError(f"a time of at most {self._bound():.10g} ({last})", received, remedy)

    def _expected(self, time: float) -> float:
        since = self.since if self.reached.latest is None else self.reached.latest
        expected = (time - since) * EXPECTED / self.usual
        return expected if isfinite(expected) else 0.0

    def _not_yet(self, time: float) -> UserError:
        days = 0.0 if self.calendar is None else self.calendar.ahead(time) / SLACK
        received = f"{time:.10g}, which is {days:,.3g} days ahead of this machine's clock"
        remedy = "Check its unit and the clock; --max-gap none accepts any time."
        return UserError("a time that has come", received, remedy)
