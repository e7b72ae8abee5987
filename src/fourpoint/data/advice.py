r"""What kind of event data a table holds, and how to cut it into sequences.

Windows of the calendar suit events that follow the calendar: then every day is another draw of the
same rhythm. Anything else is one long record: where an earthquake catalogue is cut at midnight, the
first events of a day lose the shocks before them. A rhythm of period P is looked for in the phases
of the events,

    V_d = sum over events of period d of exp(2 pi i k t / P),    z = |sum_d V_d|^2 / sum_d |V_d|^2,

for k = 1 and 2. If periods are independent and none prefers a phase, z is about a unit exponential,
however the events of one period cluster: a single burst is no rhythm.

The timestamp resolution is the greatest common divisor of all differences of times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fourpoint.data.calendar_windows import MONDAY, SPAN, By
from fourpoint.data.clocks import Clock
from fourpoint.events import Dataset
from fourpoint.ops.periodogram import COARSE, clock as tick_of_gaps, coarse_clock

PERIODS = 7  # of the calendar unit that a record has to cover
FEWEST = {"hour": 2.0, "day": 1.0, "week": 2.0}  # events per window, on average
HARMONICS = (1, 2)
STANDS_OUT = 6.0  # z of a rhythm: by chance in about one record of 200
AMPLITUDE = 0.1  # least share of the rate that rises and falls
FEW_EVENTS = 10  # in half of the sequences: many short ones
WORDS = {1e-9: "nanosecond", 1e-6: "microsecond", 1e-3: "millisecond", 1: "second"}
WORDS |= {60: "minute", 3600: "hour", 86400: "day"}


@dataclass(frozen=True)
class Rhythm:
    """How strongly the rate follows a unit of the calendar: z, and the relative amplitude."""

    unit: By
    z: float
    amplitude: float

    @property
    def found(self) -> bool:
        """Whether it is more than chance, and large enough to matter."""
        return self.z >= STANDS_OUT and self.amplitude >= AMPLITUDE


def rhythm(clock: Clock, unit: By) -> Rhythm:
    """The rhythm of the events of one record in a ``unit`` of the calendar.

    >>> office = np.concatenate([86400 * d + np.arange(32_400, 61_200, 600) for d in range(14)])
    >>> rhythm(Clock(office, 1, None), "day").found, rhythm(Clock(office, 1, None), "hour").found
    (True, False)
    """
    origin = MONDAY if unit == "week" else 0
    seconds = clock.ticks / clock.rate - origin
    period, phase = np.divmod(seconds / SPAN[unit], 1.0)
    _, place = np.unique(period, return_inverse=True)
    strongest = Rhythm(unit, 0.0, 0.0)
    for harmonic in HARMONICS:
        angles = 2 * np.pi * harmonic * phase
        real, imaginary = (np.bincount(place, part(angles)) for part in (np.cos, np.sin))
        power = float((real**2 + imaginary**2).sum())
        length = float(np.hypot(real.sum(), imaginary.sum()))
        z = length**2 / power if power > 1e-9 * len(angles) else 0.0
        strongest = max(strongest, Rhythm(unit, z, 2 * length / len(angles)), key=lambda r: r.z)
    return strongest


def calendar_unit(clock: Clock) -> By | None:
    """The unit of the calendar whose rhythm the events follow; None if they follow none.

    >>> steady = Clock(np.arange(0, 30 * 86400, 3511), 1, None)
    >>> print(calendar_unit(steady))
    None
    """
    span = (int(clock.ticks.max()) - int(clock.ticks.min())) / clock.rate
    for unit in ("day", "week", "hour"):
        long_enough = span >= PERIODS * SPAN[unit]
        if long_enough and len(clock.ticks) >= FEWEST[unit] * span / SPAN[unit]:
            if rhythm(clock, unit).found:
                return unit
    return None


def kind_of(data: Dataset, unit: By | None, by_column: bool) -> str:
    """The kind of data in words.

    >>> kind_of(Dataset.from_sequences([]), "day", False)
    'a log with a rhythm of the day'
    """
    if by_column and len(data) > 1:
        short = float(np.median(data.lengths)) < FEW_EVENTS
        return "many short sequences" if short else "several long sequences"
    if unit is not None:
        return f"a log with a rhythm of the {unit}"
    if data.marks.box is not None:
        return "a catalogue with places, one long sequence"
    return "one long log without a rhythm of the calendar"


def resolution(data: Dataset, clock: Clock | None) -> float:
    """What all times are multiples of, up to their origin; in seconds for stamps; 0 if nothing."""
    if clock is None:
        gaps = data.gaps[data.gaps > 0]
        return tick_of_gaps(gaps) if len(gaps) else 0.0
    steps = np.diff(np.unique(clock.ticks))
    return float(np.gcd.reduce(steps)) / clock.rate if len(steps) else 0.0


def resolution_in_words(data: Dataset, clock: Clock | None) -> str:
    """The timestamp resolution, and whether gaps are so short that it matters.

    >>> resolution_in_words(Dataset.from_sequences([]), Clock(np.array([0, 60, 300]), 1, None))
    '1 minute'
    """
    found = resolution(data, clock)
    if not found:
        return "none found"
    words = f"{found:.4g} {data.unit}".rstrip() if clock is None else _seconds(found)
    gaps = data.gaps[data.gaps > 0]
    if not coarse_clock(gaps):
        return words
    return f"{words}; a quarter of all gaps is at most {COARSE} times that: fit dequantises times"


def _seconds(length: float) -> str:
    """A length of time in its largest whole unit."""
    whole = [u for u in WORDS if u <= length * (1 + 1e-9) and _is_multiple(length, u)]
    unit = max(whole, default=1)
    count = round(length / unit)
    return f"{count:,} {WORDS[unit]}{'s' * (count > 1)}"


def _is_multiple(length: float, unit: float) -> bool:
    return abs(length / unit - round(length / unit)) < 1e-6
