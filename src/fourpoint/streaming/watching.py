r"""Watches over types and over a fleet of entities, beside the monitor of each stream, with one
stated rate of false alarms.

A change that is small for each entity is plain once all of them are looked at together:

    types    event i is of type m with probability p_m(t_i) = lambda_m / lambda. The likelihood
             ratios of twice and half the odds,
                 U <- max(0, U + 1{m_i = m} log 2 - log(1 + p_m))          more of type m
                 L <- max(0, L - 1{m_i = m} log 2 - log(1 - p_m / 2))      fewer of type m
    fleet    N events of all entities, of which A were expected: a Poisson process in A, whatever
             the entities' models are,
                 B <- max(0, B + dN log 2 - dA),    S <- max(0, S + dA / 2 - dN log 2)

A ratio has mean 1 under the true model, so that a sum which starts at some event ever passes h with
probability at most exp(-h), and 2 M such sums raise at most 2 M exp(-h) false alarms per event on
average (Lorden 1971). The thresholds of the fleet are those of `monitoring`, which hold for sums
that are looked at all the time, and so for these, which are looked at now and then.

When one type becomes more frequent the shares of all others fall. An alarm is raised only where the
rate of the type itself has moved in the same direction as its share: with n events since the sum
was last 0 where about a were expected, the log-likelihood ratio n log 2 - a, or a / 2 - n log 2,
must be at least h / 4. That can only take alarms away. A change is told once: the same watch is on
hold until its sum has fallen as far as it had risen.

An entity belongs to the fleet from its first event on, so that entities that have not been heard of
are not expected to do anything.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.events import MarkSpace
from fourpoint.streaming.monitoring import LOG2, PER, Alarm, thresholds

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
MOST_TYPES = 256  # types that are watched one by one; models with more are watched as a whole
CONFIRMED = 0.25  # of the threshold: evidence of the rate of a type, beside its share
KINDS = ("burst", "silence")


def families(marks: int, *, fleet: bool) -> int:
    """How many kinds of watch share the rate of false alarms: streams, types and the fleet."""
    types = 1 < marks <= MOST_TYPES
    return 1 + int(types) + int(fleet)


def type_watch(marks: MarkSpace, alarms: float) -> TypeWatch | None:
    """The watch over the types of a mark space; None if there is one type, or too many."""
    if 1 < marks.count <= MOST_TYPES:
        return TypeWatch(marks.names, alarms)
    return None


class TypeWatch:
    """Watches how often each type occurs among the events of a stream, or of all streams of a bank.

    ``alarms`` is the largest mean number of false alarms per 1,000 events, all types together.

    >>> watch = TypeWatch(("error", "login"), 1e-3)
    >>> shares = np.tile([0.2, 0.8], (60, 1))
    >>> found = watch.observe(
    ...     np.arange(60.0), np.zeros(60, dtype=np.int64), shares, np.full(60, 0.2)
    ... )
    >>> alarm = found[min(found)][0]
    >>> alarm.kind, alarm.of, alarm.name, alarm.size > 2
    ('burst', 'type', 'error', True)
    """

    def __init__(self, names: tuple[str, ...], alarms: float) -> None:
        M = len(names)
        each = (2, M)  # more of each type, and fewer
        self.names = names
        self.threshold = math.log(2 * M * PER / alarms)
        # Running sums of the log-likelihood ratios, never reset: batches change nothing.
        self._sums: Floats = np.zeros(each)
        self._lowest: Floats = np.zeros(each)  # the least of them since the last alarm
        self._highest: Floats = np.zeros(each)  # the largest since then, of those on hold
        self._held: Floats = np.zeros(each)  # 1 after an alarm, until the change is over
        self._totals: Floats = np.zeros(2 * M)  # per type events and expected events
        self._since: Floats = np.zeros((2, M, 2))  # the same of its own type when a sum was last 0

    def observe(
        self, times: Floats, kinds: Counts, shares: Floats, gaps: Floats
    ) -> dict[int, list[Alarm]]:
        """Events in order: their types, the (n, M) probability of each type, and the rescaled gaps.
        The alarms by place.
        """
        raised: dict[int, list[Alarm]] = {}
        first = 0
        while first < len(times):
            first = self._until_crossing(times, kinds, shares, gaps, first, raised)
        return raised

    def _until_crossing(
        self,
        times: Floats,
        kinds: Counts,
        shares: Floats,
        gaps: Floats,
        first: int,
        raised: dict[int, list[Alarm]],
    ) -> int:
        """Events from ``first`` on, up to the first at which a sum crosses; the place after it, or
        after the last.
        """
        p = shares[first:]
        own = np.zeros(p.shape)
        own[np.arange(len(own)), kinds[first:]] = 1.0
        evidence = own * LOG2
        twice = evidence - np.log1p(p)
        half = -evidence - np.log1p(-p / 2)
        steps = np.stack([twice, half], 1)
        sums = _accumulated(np.add, self._sums, steps)
        lowest = _accumulated(np.minimum, self._lowest, sums)
        highest = _accumulated(np.maximum, self._highest, sums)
        expected = p * gaps[first:, None]
        counted = np.concatenate([own, expected], 1)
        totals = _accumulated(np.add, self._totals, counted)
        height = np.where(self._held > 0, highest - sums, sums - lowest)
        over = height >= self.threshold
        crossed = np.flatnonzero(over.any((1, 2)))
        end = len(p) - 1
        if len(crossed):
            end = int(crossed[0])
        zero = sums[: end + 1] <= lowest[: end + 1]
        self._note_zeros(zero, totals[: end + 1])
        self._sums = sums[end].copy()
        self._totals = totals[end].copy()
        self._lowest = lowest[end].copy()
        self._highest = highest[end].copy()
        place = first + end
        for side, m in np.argwhere(over[end]).tolist():
            alarm = None
            if not self._held[side, m]:
                time = float(times[place])
                alarm = self._alarm(side, m, time, float(height[end, side, m]))
            if alarm is not None:
                raised.setdefault(place, []).append(alarm)
            self._held[side, m] = float(alarm is not None)
            self._lowest[side, m] = self._sums[side, m]
            self._highest[side, m] = self._sums[side, m]
            self._since[side, m] = self._now(m)
        return place + 1

    def _note_zeros(self, zero: NDArray[np.bool_], totals: Floats) -> None:
        """Remember the totals at the last event at which each sum was 0."""
        from_end = np.argmax(zero[::-1], axis=0)
        last = len(zero) - 1 - from_end
        side, m = np.nonzero(zero.any(0))
        row = last[side, m]
        self._since[side, m, 0] = totals[row, m]
        self._since[side, m, 1] = totals[row, len(self.names) + m]

    def _now(self, m: int) -> Floats:
        expected = len(self.names) + m
        return self._totals[[m, expected]]

    def _alarm(self, side: int, m: int, time: float, height: float) -> Alarm | None:
        counted = self._now(m) - self._since[side, m]
        own, expected = counted.tolist()
        if side == 0:
            evidence = own * LOG2 - expected
        else:
            evidence = expected / 2 - own * LOG2
        if evidence < CONFIRMED * self.threshold:
            return None
        return Alarm(
            time=time,
            kind=KINDS[side],
            size=(own + 1) / (expected + 1),
            statistic=height,
            threshold=self.threshold,
            of="type",
            name=self.names[m],
        )

    def state(self) -> Floats:
        """All there is to know, as one array."""
        return np.concatenate([part.reshape(-1) for part in self._parts()])

    def _parts(self) -> list[Floats]:
        return [
            self._sums,
            self._lowest,
            self._highest,
            self._held,
            self._totals,
            self._since,
        ]

    def load(self, state: Floats) -> None:
        """Go on from what :meth:`state` gave."""
        former = self._parts()
        ends = np.cumsum([part.size for part in former])
        sound = state.dtype == np.float64 and state.shape == (ends[-1],)
        if not sound or not np.isfinite(state).all():
            raise ValueError("not the numbers of a watch over these types")
        parts = []
        for part, numbers in zip(former, np.split(state, ends[:-1]), strict=True):
            parts.append(numbers.reshape(part.shape).copy())
        self._sums, self._lowest, self._highest, self._held, self._totals, self._since = parts


def _accumulated(combine: np.ufunc, before: Floats, values: Floats) -> Floats:
    """What there is after each of ``values`` (n, ...), one after the other, from ``before`` on."""
    every = np.concatenate([before[None], values])
    return combine.accumulate(every)[1:]


class FleetWatch:
    """Watches the number of events of all entities together against the number that their models
    expected.

    ``alarms`` is the largest probability of a false alarm in any 1,000 events of the fleet.

    >>> watch = FleetWatch(1e-3)
    >>> watch.add([0.9, 1.2])  # two events, and the rescaled gaps before them
    >>> watch.look(pending=0.4, time=1.0)
    ()
    >>> watch.add([0.1] * 60)
    >>> [(alarm.kind, alarm.of) for alarm in watch.look(pending=0.4, time=2.0)]
    [('burst', 'fleet')]
    """

    def __init__(self, alarms: float) -> None:
        limits = thresholds(2 * alarms)  # a quarter of it for each of the two sums that are used
        self.limits = (limits.burst, limits.silence)
        self._events = 0
        self._ended = 0.0  # the integrals over gaps that have ended
        self._at = np.zeros(2)  # events and integral at the last look
        self._sums = np.zeros(2)
        self._since = np.zeros((2, 2))  # events and integral when each sum was last 0
        self._held = np.zeros(2)  # 1 after an alarm, until the change is over
        self._known = False  # whether the last look saw all entities

    def add(self, gaps: ArrayLike) -> None:
        """More events, with the gaps before them; the first event of an entity is none of them."""
        new = np.asarray(gaps, dtype=np.float64)
        self._events += new.size
        # One after the other, so that batches change nothing.
        ended = np.add.accumulate(np.append(self._ended, new))
        self._ended = float(ended[-1])

    def forget(self) -> None:
        """Entities are out of sight: begin anew when all are seen again."""
        self._known = False

    def counted(self) -> tuple[int, float]:
        """Events so far, and the integrals over the gaps before them."""
        return self._events, self._ended

    def look(
        self, pending: float, time: float, counted: tuple[int, float] | None = None
    ) -> tuple[Alarm, ...]:
        """All entities up to ``time``, with the integrals since their last events in ``pending``:
        the alarms. ``counted`` is what :meth:`counted` was at that time, now by default.
        """
        if counted is None:
            counted = self.counted()
        seen, ended = counted
        now = np.array([float(seen), ended + pending])
        if not self._known:
            self._at = now
            self._sums = np.zeros(2)
            self._held = np.zeros(2)
            self._known = True
            self._since[:] = now
            return ()
        events, integral = (now - self._at).tolist()
        self._at = now
        steps = np.array([events * LOG2 - integral, integral / 2 - events * LOG2])
        steps = np.where(self._held > 0, -steps, steps)
        self._sums = np.maximum(self._sums + steps, 0.0)
        raised = []
        for side in range(2):
            height = float(self._sums[side])
            if height >= self.limits[side]:
                if not self._held[side]:
                    own, expected = (now - self._since[side]).tolist()
                    alarm = Alarm(
                        time=time,
                        kind=KINDS[side],
                        size=(own + 1) / (expected + 1),
                        statistic=height,
                        threshold=self.limits[side],
                        of="fleet",
                    )
                    raised.append(alarm)
                self._held[side] = 1.0 - self._held[side]
                self._sums[side] = 0.0
            if self._sums[side] <= 0.0:
                self._since[side] = now
        return tuple(raised)

    def state(self) -> dict[str, Any]:
        """All there is to know."""
        return {
            "events": self._events,
            "ended": self._ended,
            "known": self._known,
            "at": self._at.tolist(),
            "sums": self._sums.tolist(),
            "held": self._held.tolist(),
            "since": self._since.tolist(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        self._events = int(state["events"])
        self._ended = float(state["ended"])
        self._known = bool(state["known"])
        self._at = np.array(state["at"], dtype=np.float64)
        self._sums = np.array(state["sums"], dtype=np.float64)
        self._held = np.array(state["held"], dtype=np.float64)
        self._since = np.array(state["since"], dtype=np.float64)


class FleetLook:
    """A look at all entities of a bank at one time, made in slices while further events come.

    ``events`` and ``ended`` are what :meth:`FleetWatch.counted` was at ``time``. Each entity's
    integral from its last event before the look to ``time`` is ``pending``, by row, NaN where it is
    not known yet. An entity that has an event in the meantime is noted before that event is
    absorbed; together with the newcomers, which do not belong to the look, these are all that a
    state has to hold: the integrals of the others follow from their memories.
    """

    def __init__(
        self, time: float, events: int, ended: float, slices: int, evictions: int = 0
    ) -> None:
        self.time = time
        self.events = events
        self.ended = ended
        self.slices = slices
        self.evictions = evictions  # of the entity table when the look began
        self.done = 0  # slices
        self.restored = False  # whether the rows of noted entities and newcomers are to be found
        self.pending: Floats = np.zeros(0)
        self.passed: NDArray[np.bool_] = np.zeros(0, dtype=bool)  # noted entities and newcomers
        self.noted: dict[str, float] = {}
        self.newcomers: dict[str, None] = {}
        self.silences: tuple[Alarm, ...] = ()  # of noted entities

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` in all."""
        more = rows - len(self.pending)
        if more > 0:
            unknown = np.full(more, np.nan)
            self.pending = np.concatenate([self.pending, unknown])
            not_passed = np.zeros(more, dtype=bool)
            self.passed = np.concatenate([self.passed, not_passed])

    def add_noted(self, rows: Counts, names: list[str]) -> None:
        """Entities that have an event after the look began."""
        self.passed[rows] = True
        pending = self.pending[rows].tolist()
        self.noted.update(zip(names, pending, strict=True))

    def add_newcomers(self, rows: Counts, names: list[str]) -> None:
        """Entities whose first event came after the look began."""
        self.passed[rows] = True
        self.newcomers |= dict.fromkeys(names)

    def state(self) -> dict[str, Any]:
        """All but :meth:`noted_pending`."""
        return {
            "time": self.time,
            "events": self.events,
            "ended": self.ended,
            "slices": self.slices,
            "noted": list(self.noted),
            "newcomers": list(self.newcomers),
            "silences": [asdict(alarm) for alarm in self.silences],
        }

    def noted_pending(self) -> Floats:
        """The integrals of the noted entities."""
        return np.array(list(self.noted.values()), dtype=np.float64)

    @staticmethod
    def restore(state: dict[str, Any], pending: Floats) -> FleetLook:
        """The look whose :meth:`state` this is. Raises ValueError for what no look can be."""
        time = state["time"]
        events = state["events"]
        ended = state["ended"]
        slices = state["slices"]
        noted = state["noted"]
        newcomers = state["newcomers"]
        names = [*noted, *newcomers]
        sound = (
            all(isinstance(name, str) and name for name in names)
            and len(set(names)) == len(names)
            and pending.dtype == np.float64
            and pending.shape == (len(noted),)
            and bool((pending >= 0).all())
            and type(events) is int
            and type(slices) is int
            and events >= 0
            and slices >= 1
            and math.isfinite(time)
            and math.isfinite(ended)
        )
        if not sound:
            raise ValueError("not the numbers of a look")
        found = FleetLook(float(time), events, float(ended), slices)
        found.noted = dict(zip(noted, pending.tolist(), strict=True))
        found.newcomers = dict.fromkeys(newcomers)
        found.silences = tuple(Alarm(**alarm) for alarm in state["silences"])
        found.restored = True
        return found


def shares_of(logs: Floats) -> Floats:
    """The probability of each type from (n, M) log-rates.

    >>> shares_of(np.log([[1.0, 3.0]])).tolist()
    [[0.25, 0.75]]
    """
    largest = logs.max(1, keepdims=True)
    rates = np.exp(logs - largest)
    total = rates.sum(1, keepdims=True)
    return np.asarray(rates / total)
