r"""Is the stream still what the model says? A running verdict on rescaled gaps, with a stated rate
of false alarms.

Under the true model the integrals of the rate between events are independent unit exponentials x_1,
x_2, ... Four statistics watch them:

    burst    S <- max(0, S + log 2 - x)       CUSUM of the log-likelihood ratio of twice the rate
    silence  R <- max(0, R + x / 2 - log 2)   the same for half the rate; a gap x that is not over
                                              yet counts R + x / 2
             x                                one gap alone, over or not
    drift    D = sup |F_n - F|                Kolmogorov-Smirnov distance of the last gaps from
                                              1 - exp(-x)

and each raises an alarm at its threshold, after which it starts anew. A silence is told as soon as
it is too long, not when it ends. The promise: in any 1,000 consecutive events of the true model the
probability of an alarm of any kind is at most ``alarms``, a quarter for each statistic. For the two
CUSUMs that probability is computed, not simulated: their steps are rounded against the promise to a
grid of log 2 / 256, which makes a Markov chain that lies above them, and the chain's largest
eigenvalue gives the chance of a crossing in any stretch. For one gap it is exact, and for the
distance it is Massart's inequality, P(D_n > d) <= 2 exp(-2 n d^2), summed over the checks.

Sources: Page, "Continuous inspection schemes" (1954); Massart, "The tight constant in the
Dvoretzky-Kiefer-Wolfowitz inequality" (1990).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import UserError

Floats = NDArray[np.float64]
Step = Callable[[Floats], Floats]
LOG2 = math.log(2.0)
PER = 1000  # events to which the promise refers
WINDOW = 256  # gaps from which the distance is computed, at most
FEWEST = 64  # and at least
STRIDE = 16  # events between two of its values
CELLS = 256  # of the grid, per log 2


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm: when it was raised and why.

    ``kind`` is "burst", "silence" or "drift". ``size`` is the estimated ratio of the observed to
    the modelled rate since the change, (events + 1) / (integral + 1) over the gaps since the CUSUM
    last was 0; for "drift" it is the distance itself. ``of`` says what was watched: one "stream", a
    "type" or the "fleet" of all entities, and ``name`` which one, the type's or the entity's.
    """

    time: float
    kind: str
    size: float
    statistic: float
    threshold: float
    of: str = "stream"
    name: str | None = None

    @property
    def direction(self) -> str | None:
        """ "more" or "fewer" events than expected; None for a drift, which has no direction."""
        return {"burst": "more", "silence": "fewer"}.get(self.kind)

    def to_dict(self) -> dict[str, float | str | None]:
        """As JSON can hold it."""
        return {
            "time": self.time,
            "of": self.of,
            "name": self.name,
            "kind": self.kind,
            "direction": self.direction,
            "size": self.size,
            "statistic": self.statistic,
            "threshold": self.threshold,
        }


class Thresholds(NamedTuple):
    """Of the two CUSUMs and of a gap alone, and the exponent 2 n d^2 at which the distance d of n
    gaps is too large.
    """

    burst: float
    silence: float
    gap: float
    drift: float


class Monitor:
    """Watches rescaled gaps one at a time.

    ``alarms`` is the largest probability, over any 1,000 consecutive events of the true model, that
    any alarm is raised; with other watches beside it, this monitor's ``share`` of it. Memory is
    bounded: two sums and the last 256 gaps, which are written to ``window`` if that is given.

    >>> monitor = Monitor(1e-3)
    >>> raised = [
    ...     a for i in range(60) for a in monitor.gap(0.3, time=float(i))
    ... ]  # events come three times too fast
    >>> raised[0].kind, raised[0].time, raised[0].size > 2
    ('burst', 33.0, True)
    >>> monitor.silence(16.0, time=100.0)[0].kind, monitor.silence(50.0, time=110.0)  # told once
    ('silence', ())
    """

    def __init__(
        self, alarms: float = 1e-3, share: float = 1.0, window: Floats | None = None
    ) -> None:
        if not 0 < alarms < 1:
            raise UserError(
                "a false-alarm probability per 1,000 events between 0 and 1",
                f"alarms={alarms}",
                "Pass alarms=0.001, say, or None for no monitoring.",
            )
        self.alarms = float(alarms)
        self.share = share
        self.level = self.alarms * share
        self.thresholds = thresholds(self.level)
        self._gaps: Floats = np.zeros(WINDOW) if window is None else window
        self.reset()

    def reset(self) -> None:
        """Forget all gaps."""
        self._burst = _Sum()
        self._silence = _Sum()
        self._told = False  # whether the gap now open has been called a silence
        self._seen = 0  # gaps since the window was last emptied

    def gap(self, gap: float, time: float) -> tuple[Alarm, ...]:
        """One gap more has ended, at ``time``: the alarms that it raises."""
        raised: tuple[Alarm, ...] = ()
        silence = self._silence
        limits = self.thresholds
        if self._told or silence.value + gap / 2 >= limits.silence or gap >= limits.gap:
            raised = self.silence(gap, time)
            self._told = False
            self._silence = _Sum()
        else:
            silence.add(gap / 2 - LOG2, gap)
        burst = self._burst.add(LOG2 - gap, gap)
        if burst >= limits.burst:
            raised += (Alarm(time, "burst", self._burst.ratio(), burst, limits.burst),)
            self._burst = _Sum()
        self._gaps[self._seen % WINDOW] = gap
        self._seen += 1
        if self._seen % STRIDE == 0 and self._seen >= FEWEST:
            raised += tuple(self._drift(time))
        return raised

    def silence(self, gap: float, time: float) -> tuple[Alarm, ...]:
        """No event up to ``time``, where the gap that is open has grown to ``gap``: an alarm if
        that is too long, once.
        """
        limits = self.thresholds
        statistic = self._silence.value + gap / 2
        threshold = limits.silence
        if statistic < threshold:
            statistic = gap
            threshold = limits.gap
        if self._told or statistic < threshold:
            return ()
        self._told = True
        ratio = self._silence.ratio(gap)
        return (Alarm(time, "silence", ratio, statistic, threshold),)

    def _drift(self, time: float) -> list[Alarm]:
        n = min(self._seen, WINDOW)
        above = np.negative(self._gaps[:n])
        above.sort()
        np.expm1(above, out=above)  # -F at each gap, the largest gap first
        above += _steps(n)  # the empirical distribution over F; below a gap it is 1 / n lower
        highest = float(np.maximum.reduce(above))
        lowest = float(np.minimum.reduce(above))
        distance = max(highest, 1 / n - lowest)
        limit = math.sqrt(self.thresholds.drift / (2 * n))
        if distance < limit:
            return []
        self._seen = 0
        return [Alarm(time, "drift", distance, distance, limit)]

    def state(self) -> tuple[dict[str, Any], Floats]:
        """Numbers and the window of gaps: all there is to know."""
        header = as_header(self.alarms, self.share, *self.numbers())
        count = min(self._seen, WINDOW)
        return header, self._gaps[:count].copy()

    def numbers(self) -> tuple[list[list[float]], bool, int]:
        """The sums of burst and silence (value, count, total), whether a silence was told, and the
        gaps in the window so far.
        """
        sums = [self._burst.numbers(), self._silence.numbers()]
        return sums, self._told, self._seen

    @property
    def window(self) -> Floats:
        """The last gaps, in a circle."""
        return self._gaps

    @staticmethod
    def of_numbers(
        alarms: float, share: float, sums: list[list[float]], told: bool, seen: int, window: Floats
    ) -> Monitor:
        """The monitor with these :meth:`numbers`; ``window`` is used as it is and not copied."""
        monitor = Monitor(alarms, share, window)
        monitor.load(sums, told, seen)
        return monitor

    @staticmethod
    def restore(numbers: dict[str, Any], gaps: Floats) -> Monitor:
        """The monitor whose :meth:`state` this is."""
        monitor = Monitor(numbers["alarms"], numbers["share"])
        monitor.load(numbers["sums"], bool(numbers["told"]), int(numbers["seen"]))
        monitor.window[: len(gaps)] = gaps
        return monitor

    def load(self, sums: list[list[float]], told: bool, seen: int) -> None:
        """Go on with what :meth:`numbers` gave; the window of gaps is left as it is."""
        burst, silence = sums
        self._burst = _Sum.of_numbers(*burst)
        self._silence = _Sum.of_numbers(*silence)
        self._told = told
        self._seen = seen


def as_header(
    alarms: float, share: float, sums: list[list[float]], told: bool, seen: int
) -> dict[str, Any]:
    """The settings of a monitor and its :meth:`Monitor.numbers`, as a header holds them."""
    whole = [[value, int(count), total] for value, count, total in sums]
    return {
        "alarms": alarms,
        "share": share,
        "sums": whole,
        "told": told,
        "seen": seen,
    }


@dataclass(slots=True)
class _Sum:
    """A CUSUM, with the number and the sum of the gaps since it last was 0."""

    value: float = 0.0
    count: int = 0
    total: float = 0.0

    def add(self, step: float, gap: float) -> float:
        value = self.value + step
        if value <= 0.0:
            self.value = 0.0
            self.count = 0
            self.total = 0.0
            return 0.0
        self.value = value
        self.count += 1
        self.total += gap
        return value

    def ratio(self, unfinished: float = 0.0) -> float:
        """Events per unit of integral, drawn towards 1 by one event in one unit: finite however few
        or close they are.
        """
        return (self.count + 1) / (self.total + unfinished + 1)

    def numbers(self) -> list[float]:
        """All there is to know."""
        return [self.value, float(self.count), self.total]

    @staticmethod
    def of_numbers(value: float, count: float, total: float) -> _Sum:
        """The sum with these :meth:`numbers`."""
        return _Sum(float(value), int(count), float(total))


@lru_cache(maxsize=WINDOW)
def _steps(count: int) -> Floats:
    """1, 1 - 1/n, ..., 1/n: the empirical distribution at n gaps, the largest first."""
    return 1 - np.arange(count) / count


@lru_cache(maxsize=64)
def thresholds(alarms: float, per: int = PER) -> Thresholds:
    """The lowest thresholds that keep the promise: ``alarms`` in any ``per`` events, a quarter for
    each statistic.

    >>> [round(x, 2) for x in thresholds(1e-3)]
    [13.19, 13.38, 15.2, 13.13]
    """
    share = alarms / 4
    # A likelihood ratio exceeds exp(h) with probability exp(-h) at most.
    bound = math.ceil(math.log(per / share) / LOG2 * CELLS) + CELLS
    levels = []
    for chain in (burst_chain, silence_chain):
        low = 2
        high = bound
        while high - low > 1:
            middle = (low + high) // 2
            if crossing(chain, middle, per) <= share:
                high = middle
            else:
                low = middle
        levels.append(high * LOG2 / CELLS)
    burst, silence = levels
    each = -math.expm1(math.log1p(-share) / per)  # exp(-x), of (1 - exp(-x))^per = 1 - share
    looks = math.ceil(per / STRIDE)
    return Thresholds(
        burst=burst,
        silence=silence,
        gap=-math.log(each),
        drift=math.log(2 * looks / share),
    )


def crossing(chain: Callable[[int], Step], height: int, per: int) -> float:
    """The chance that a chain crosses ``height`` cells within ``per`` steps, from where it is after
    a long time below.

    Under the chain that is killed at the crossing, survival shrinks by the largest eigenvalue at
    each step.
    """
    step = chain(height)
    alive = np.ones(height)
    lost = 0.0
    for i in range(20_000):
        alive = step(alive)
        before = lost
        lost = 1.0 - float(alive[0])
        alive /= alive[0]
        if i > 100 and abs(lost - before) <= 1e-6 * lost:
            break
    if lost >= 1:
        return 1.0
    return -math.expm1(per * math.log1p(-lost))


def burst_chain(height: int) -> Step:
    """alive -> E[alive(S + log 2 - x)] with x rounded down to the grid: geometric steps, so that
    one running sum serves all S.
    """
    cell = np.arange(height + CELLS)
    q = np.exp(-LOG2 / CELLS * cell)
    weight = (1 - q[1]) / q
    weight[0] = 1.0  # all that falls below 0 stays at 0
    crossed = np.zeros(CELLS)

    def step(alive: Floats) -> Floats:
        every = np.concatenate([alive, crossed])
        reached = q * np.cumsum(weight * every)
        return np.asarray(reached[CELLS:])

    return step


def silence_chain(height: int) -> Step:
    """alive -> E[alive(R + x / 2 - log 2); R + x / 2 below the height] with x / 2 rounded up to the
    grid.
    """
    peak = np.arange(1, height + 1)
    q = np.exp(-2 * LOG2 / CELLS * peak)
    weight = np.where(peak < height, (1 - q[0]) * q, 0.0)
    place = np.maximum(peak - CELLS, 0)

    def step(alive: Floats) -> Floats:
        mass = weight * alive[place]
        above = np.cumsum(mass[::-1])[::-1]
        return np.asarray(above / q)

    return step
