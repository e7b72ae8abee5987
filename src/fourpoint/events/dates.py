"""Units of time, durations, and the dates of a sequence.

A model's time is a number. Where it was read from timestamps, time t of a sequence is the moment

    origin + t * unit

in seconds since 1970 (UTC), and :class:`Dates` converts between the two. Timestamps without a zone
are taken as they stand, in days that always have 24 hours. In a zone with daylight saving an hour
of local time occurs twice in autumn: such a time is written with its offset from UTC, and must be
given so. An hour that never occurs, in spring, is refused.

Durations of hours and less are elapsed time. Whole days and weeks follow the calendar: a day after
noon is noon, also where clocks change in between.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.errors import UserError

SECONDS = {
    "nanoseconds": 1e-9,
    "microseconds": 1e-6,
    "milliseconds": 1e-3,
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
    "weeks": 604800.0,
}
SHORT = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "sec": "seconds",
    "secs": "seconds",
}
SHORT |= {
    "m": "minutes",
    "min": "minutes",
    "mins": "minutes",
    "h": "hours",
    "hr": "hours",
    "hrs": "hours",
    "d": "days",
    "w": "weeks",
}
UNEQUAL = {"months": 30, "mos": 30, "mons": 30, "quarters": 91}  # about, in days
UNEQUAL |= {"years": 365, "yrs": 365, "ys": 365}
Moment = float | str | dt.date  # a time as users write it: a number, text, a date or a datetime
Floats = NDArray[np.float64]
EPOCH = dt.datetime(1970, 1, 1)
PART = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]+)\s*")
DAY = 86_400_000_000  # in microseconds
FINE = 1e-3  # units below a second are shown to the millisecond
MOST_INTERVALS = 100_000
EXAMPLES = "Write it as 4h, 30d, 15min or 1w, or as a number in the data's unit of time."


def unit_named(text: str) -> str:
    """A unit of time by any of its names.

    >>> unit_named("h"), unit_named("Day")
    ('hours', 'days')
    """
    word = text.strip().lower()
    plural = word if word.endswith("s") else f"{word}s"
    unit = SHORT.get(word, plural)
    if unit in SECONDS:
        return unit
    if unit in UNEQUAL:
        days = UNEQUAL[unit]
        raise UserError(
            f"a unit of time of fixed length: {', '.join(SECONDS)}",
            f"{text!r}, which is not",
            f"Give the days, for example {days}d, or weeks (w).",
        )
    near = get_close_matches(unit, SECONDS, n=1)
    raise UserError(
        f"a unit of time: {', '.join(SECONDS)}",
        f"{text!r}",
        f"Did you mean {near[0]!r}?" if near else "Use one of them.",
    )


def unit_for(seconds: float) -> str:
    """The unit in which a span of time has a handy length.

    >>> unit_for(300), unit_for(86400), unit_for(3e7)
    ('seconds', 'hours', 'days')
    """
    if seconds <= 600:
        return "seconds"
    if seconds <= 36_000:
        return "minutes"
    if seconds <= 864_000:
        return "hours"
    return "days"


def span_words(length: float, unit: str, digits: int = 3) -> str:
    """A length of time in the unit that suits it, where its ``unit`` is a known one.

    >>> span_words(0.0006944, "days"), span_words(2.5, "rounds"), span_words(1.0, "hours")
    ('1 minute', '2.5 rounds', '1 hour')
    """
    if unit not in SECONDS:
        return f"{length:.{digits}g} {unit or 'units of time'}"
    name = suiting_unit(length, unit)
    suiting = length * SECONDS[unit] / SECONDS[name]
    number = f"{suiting:.{digits}g}"
    if number == "1":
        name = name.removesuffix("s")
    return f"{number} {name}"


def suiting_unit(length: float, unit: str) -> str:
    """The longest of days, hours, minutes, seconds and milliseconds that a length of time has at
    least one of, up to rounding.
    """
    total = length * SECONDS[unit]
    for name in ("days", "hours", "minutes", "seconds"):
        if total >= 0.999 * SECONDS[name]:
            return name
    return "milliseconds"


class Duration(NamedTuple):
    """A length of time: ``days`` of the calendar, and ``seconds`` of elapsed time."""

    days: int
    seconds: float

    @property
    def elapsed(self) -> float:
        """In seconds, with days of 24 hours."""
        return 86400.0 * self.days + self.seconds


def parse_duration(text: str) -> Duration:
    """A duration as it is typed: numbers with units of time.

    >>> parse_duration("4h"), parse_duration("1w 12h"), parse_duration("1.5 days")
    (Duration(days=0, seconds=14400.0), Duration(days=7, seconds=43200.0), ...seconds=129600.0))
    """
    days = 0
    seconds = 0.0
    place = 0
    while place < len(text):
        found = PART.match(text, place)
        if found is None:
            raise UserError("a duration", f"{text!r}", EXAMPLES)
        number = float(found[1])
        unit = unit_named(found[2])
        if unit in ("days", "weeks") and number.is_integer():
            length = 7 if unit == "weeks" else 1
            days += length * int(number)
        else:
            seconds += number * SECONDS[unit]
        place = found.end()
    if not text.strip():
        raise UserError("a duration", f"{text!r}", EXAMPLES)
    return Duration(days, seconds)


def in_units(duration: float | str, unit: str) -> float:
    """A duration in a data set's ``unit`` of time, with days of 24 hours; a number is one already.

    >>> in_units("90min", "hours"), in_units("2", "hours"), in_units(0.5, "")
    (1.5, 2.0, 0.5)
    """
    number = as_number(duration)
    if number is not None:
        return number
    length = parse_duration(str(duration))
    if unit not in SECONDS:
        raise _without_unit(duration, unit)
    return length.elapsed / SECONDS[unit]


def as_number(value: object) -> float | None:
    """A number, also in text; None for anything else.

    >>> as_number("17"), as_number("4h"), as_number(np.float32(2))
    (17.0, None, 2.0)
    """
    if isinstance(value, int | float | np.number):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


@dataclass(frozen=True)
class Dates:
    """The dates of one sequence: time 0 was ``origin`` seconds after 1970 (UTC), times are in
    ``unit``, and dates are those of ``zone``, an IANA name. Without one they are times that name no
    zone, and ``origin`` counts from 1970 in that unnamed zone.

    >>> dates = Dates(1748908800.0, "hours", "Europe/Berlin")
    >>> dates.text(13.5), dates.time("2025-06-03 15:30")
    ('2025-06-03 15:30', 13.5)
    """

    origin: float
    unit: str
    zone: str | None = None

    def text(self, time: float) -> str:
        """A time as a date in the log's zone; "never" where it is infinite."""
        return self.texts([time])[0]

    def texts(self, times: ArrayLike) -> list[str]:
        """Times as dates: to the minute where all are whole minutes, else to the second, and to the
        millisecond where the unit is shorter than a second. Local times that occur twice have
        their offset from UTC.

        >>> Dates(1761436800.0, "hours", "Europe/Berlin").texts([0.5, 1.5, 2.5])
        ['2025-10-26 02:30+02:00', '2025-10-26 02:30+01:00', '2025-10-26 03:30']
        """
        values = np.asarray(times, dtype=np.float64).reshape(-1)
        finite = np.isfinite(values)
        fine = SECONDS[self.unit] <= FINE
        step = 1000 if fine else 1_000_000
        steps = np.rint(self.microseconds(values[finite]) / step)
        rounded = steps.astype(np.int64) * step
        spec = "seconds"
        if fine:
            spec = "milliseconds"
        elif not (rounded % 60_000_000).any():
            spec = "minutes"
        moments = iter(rounded.tolist())
        texts = []
        for value in values.tolist():
            if math.isfinite(value):
                texts.append(self._written(next(moments), spec))
            else:
                texts.append(_unknown(value))
        return texts

    def iso(self, time: float) -> str:
        """A time as ISO 8601 to the microsecond, with the offset from UTC where there is a zone.

        >>> Dates(1748908800.0, "hours", "Europe/Berlin").iso(0.25)
        '2025-06-03T02:15:00+02:00'
        """
        moment = int(self.microseconds(time))
        if self.zone is None:
            return self._wall(moment).isoformat()
        return _local(moment, self.zone).isoformat()

    def microseconds(self, times: ArrayLike) -> NDArray[np.int64]:
        """Finite times as whole microseconds since 1970: UTC, or local where there is no zone."""
        seconds = np.asarray(times, dtype=np.float64) * SECONDS[self.unit]
        whole = math.floor(self.origin)
        fraction = self.origin - whole
        rest = np.rint((seconds + fraction) * 1e6)
        return rest.astype(np.int64) + whole * 1_000_000

    def wall(self, times: ArrayLike) -> NDArray[np.datetime64]:
        """Finite times as local time without a zone, as a clock on the wall shows it."""
        moments = self.microseconds(times)
        if self.zone is None:
            return moments.astype("datetime64[us]")
        walls = [self._wall(int(moment)) for moment in moments.reshape(-1)]
        found = np.array(walls, dtype="datetime64[us]")
        return found.reshape(moments.shape)

    def time(self, moment: Moment) -> float:
        """A date as a time of the sequence; a number, also in text, is one already.

        Text is ISO 8601 and local where it names no zone. Raises :class:`UserError` where it is no
        date, where local clocks skip it, and where they show it twice.
        """
        number = as_number(moment)
        if number is not None:
            return number
        return self._time_of(self._instant(_parsed(moment), moment))

    def first(self, wall: dt.datetime) -> float | None:
        """The first time at which local clocks show ``wall``; None where they never do."""
        if self.zone is None:
            return self._time_of(_since_1970(wall))
        found = _instants(wall, self.zone)
        if not found:
            return None
        return self._time_of(found[0])

    def later(self, time: float, duration: float | str) -> float:
        """The time a duration after ``time``: hours and less are elapsed time, whole days and weeks
        go by the calendar.

        >>> autumn = Dates(1761343200.0, "hours", "Europe/Berlin")  # 2025-10-25 00:00
        >>> autumn.later(12.0, "1d"), autumn.later(12.0, "24h"), autumn.later(12.0, 2.0)
        (37.0, 36.0, 14.0)
        """
        number = as_number(duration)
        if number is not None:
            return time + number
        length = parse_duration(str(duration))
        second = SECONDS[self.unit]
        if self.zone is None or not length.days:
            return time + length.elapsed / second
        now = self._wall(int(self.microseconds(time)))
        wall = now + dt.timedelta(days=length.days)
        day = self._time_of(_first_from(wall, self.zone))
        return day + length.seconds / second

    def edges(self, start: float, stop: float, by: float | str) -> Floats:
        """The ends of intervals of length ``by`` from ``start`` on; the last is cut at ``stop``.

        >>> Dates(0.0, "hours").edges(0.0, 2.5, "1h").tolist()
        [0.0, 1.0, 2.0, 2.5]
        """
        edges = [float(start)]
        end = stop - 1e-9 * (stop - start)
        for count in range(1, MOST_INTERVALS + 2):
            later = self._multiple(start, by, count)
            if not later > edges[-1]:
                raise UserError("intervals of positive length", f"{by!r}", EXAMPLES)
            if later >= end:
                return np.array([*edges, float(stop)])
            edges.append(later)
        raise _too_many(by)

    def clock_edges(self, start: float, stop: float, by: float | str) -> Floats | None:
        """The ends of intervals between times at which clocks show a multiple of ``by``: full hours
        for "1h", midnights for "1d", midnights before Mondays for "1w". The first interval begins
        at ``start`` and the last is cut at ``stop``. An hour of the day that occurs twice is two
        intervals, and one that clocks skip is none.

        None where ``by`` is a number, or not a whole number of days or weeks nor a part of a day.

        >>> Dates(0.0, "hours").clock_edges(0.75, 2.5, "1h").tolist()
        [0.75, 1.0, 2.0, 2.5]
        """
        if as_number(by) is not None:
            return None
        length = parse_duration(str(by))
        step = round(1e6 * length.seconds)
        if length.days:
            on_clock = step == 0
        else:
            on_clock = step > 0 and DAY % step == 0
        if not on_clock:
            return None
        if (stop - start) * SECONDS[self.unit] > MOST_INTERVALS * length.elapsed:
            raise _too_many(by)
        begin, end = self.microseconds([start, stop]).tolist()
        day = self._wall(begin).replace(hour=0, minute=0, second=0, microsecond=0)
        if length.days and length.days % 7 == 0:
            day -= dt.timedelta(days=day.weekday())
        in_day = range(0, DAY, step or DAY)
        moments: set[int] = set()
        reached = begin
        while reached < end:
            for since in in_day:
                wall = day + dt.timedelta(microseconds=since)
                found = self._moments(wall)
                moments.update(found)
                reached = max(reached, *found)
            day += dt.timedelta(days=length.days or 1)
        inside = sorted(moment for moment in moments if begin < moment < end)
        times = [self._time_of(moment) for moment in inside]
        return np.array([start, *times, stop])

    def _wall(self, moment: int) -> dt.datetime:
        """What a clock on the wall shows so many microseconds after 1970."""
        if self.zone is None:
            return EPOCH + dt.timedelta(microseconds=moment)
        return _local(moment, self.zone).replace(tzinfo=None)

    def _moments(self, wall: dt.datetime) -> list[int]:
        """When clocks show ``wall``, once or twice, or the first moment after it if they never
        do.
        """
        if self.zone is None:
            return [_since_1970(wall)]
        found = _instants(wall, self.zone)
        if found:
            return found
        return [_first_from(wall, self.zone)]

    def _multiple(self, start: float, by: float | str, count: int) -> float:
        """``count`` intervals after ``start``, without adding up rounding or cut days."""
        number = as_number(by)
        if number is not None:
            return start + count * number
        length = parse_duration(str(by))
        after = start
        if length.days:
            after = self.later(start, f"{count * length.days}d")
        return after + count * length.seconds / SECONDS[self.unit]

    def _written(self, moment: int, spec: str) -> str:
        wall = self._wall(moment)
        if self.zone is not None:
            twice = len(_instants(wall, self.zone)) > 1
            if twice:
                wall = _local(moment, self.zone)
        return wall.isoformat(" ", spec)

    def _instant(self, when: dt.date, given: object) -> int:
        """A date as microseconds since 1970."""
        day = not isinstance(when, dt.datetime)
        wall = when if isinstance(when, dt.datetime) else dt.datetime(*when.timetuple()[:3])
        if wall.tzinfo is not None:
            if self.zone is None:
                raise UserError(
                    "a time without a zone, as the data has",
                    f"{given!r}",
                    "Leave the zone out, or read the data with timezone= (--timezone).",
                )
            return _since_1970(wall.astimezone(dt.UTC).replace(tzinfo=None))
        if self.zone is None:
            return _since_1970(wall)
        found = _instants(wall, self.zone)
        if day and not found:
            return _first_from(wall, self.zone)
        if not found:
            raise UserError(
                f"a time that exists in {self.zone}",
                f"{given!r}, which clocks skip",
                "Choose another time, or name its offset from UTC, as in 2025-03-30T02:30+01:00.",
            )
        if len(found) > 1 and not day:
            local = [_local(moment, self.zone) for moment in found]
            both = [repr(one.isoformat(" ", "minutes")) for one in local]
            raise UserError(
                f"a time that occurs once in {self.zone}",
                f"{given!r}, which occurs twice",
                f"Write {' or '.join(both)}.",
            )
        return found[0]

    def _time_of(self, moment: int) -> float:
        """Microseconds since 1970 as a time; whole ones are subtracted before they are divided."""
        whole = math.floor(self.origin)
        fraction = self.origin - whole
        since = (moment - whole * 1_000_000) - fraction * 1e6
        return since / (SECONDS[self.unit] * 1e6)


def edges_of(
    dates: Dates | None,
    start: float,
    stop: float,
    by: float | str,
    unit: str = "",
    *,
    on_clock: bool = False,
) -> Floats:
    """As :meth:`Dates.edges`, or :meth:`Dates.clock_edges` where intervals are ``on_clock`` and can
    be; without dates ``by`` is a number, or a duration in ``unit``.
    """
    if dates is not None:
        edges = dates.clock_edges(start, stop, by) if on_clock else None
        if edges is not None:
            return edges
        return dates.edges(start, stop, by)
    width = in_units(by, unit)
    if not width > 0 or not math.isfinite(width):
        raise UserError("intervals of positive length", f"{by!r}", EXAMPLES)
    count = math.ceil((stop - start) / width * (1 - 1e-12))
    if count > MOST_INTERVALS:
        raise _too_many(by)
    return np.append(start + width * np.arange(count), stop)


def time_at(dates: Dates | None, moment: Moment) -> float:
    """A time that a user gives for a sequence: a number, or a date where the sequence has them."""
    number = as_number(moment)
    if number is not None:
        return number
    if dates is None:
        raise UserError(
            "a time as a number, since the data has no dates",
            f"{moment!r}",
            "Give the number, or read the events from timestamps.",
        )
    return dates.time(moment)


def length_after(dates: Dates | None, time: float, duration: float | str, unit: str = "") -> float:
    """How long a duration from ``time`` on is, in the data's unit."""
    if dates is None:
        return in_units(duration, unit)
    number = as_number(duration)
    if number is not None:
        return number
    return dates.later(time, duration) - time


def shown(dates: Dates | None, time: float) -> str:
    """A time as a date where there are dates, else as a number.

    >>> shown(None, 2.5), shown(Dates(0.0, "hours"), 2.5)
    ('2.5', '1970-01-01 02:30')
    """
    if dates is None:
        return f"{time:.6g}"
    return dates.text(time)


def _parsed(moment: Moment) -> dt.date:
    """A date, or a date and time, from text or as it is."""
    if isinstance(moment, dt.date):
        return moment
    text = str(moment).strip().replace("/", "-").replace(" UTC", "+00:00")
    for parse in (dt.date.fromisoformat, dt.datetime.fromisoformat):
        try:
            return parse(text)
        except ValueError:
            continue
    raise UserError(
        "a date or a time",
        f"{moment!r}",
        "Write it as 2025-06-03 or as '2025-06-03 14:00'.",
    )


def _local(moment: int, zone: str) -> dt.datetime:
    """Microseconds since 1970 in UTC as local time."""
    since = dt.timedelta(microseconds=moment)
    utc = EPOCH.replace(tzinfo=dt.UTC) + since
    return utc.astimezone(ZoneInfo(zone))


def _instants(wall: dt.datetime, zone: str) -> list[int]:
    """When local clocks show ``wall``, in microseconds since 1970: once, twice or never."""
    place = ZoneInfo(zone)
    found = []
    for fold in (0, 1):
        utc = wall.replace(tzinfo=place, fold=fold).astimezone(dt.UTC)
        if utc.astimezone(place).replace(tzinfo=None) == wall:
            found.append(_since_1970(utc.replace(tzinfo=None)))
    return sorted(set(found))


def _first_from(wall: dt.datetime, zone: str) -> int:
    """The first moment at which local clocks show ``wall``, or the first after it if they skip
    it.
    """
    found = _instants(wall, zone)
    if found:
        return found[0]
    # One of the two offsets puts a skipped time before the change of clocks and the other after it.
    place = ZoneInfo(zone)
    before = wall.replace(tzinfo=place, fold=0).utcoffset() or dt.timedelta(0)
    after = wall.replace(tzinfo=place, fold=1).utcoffset() or dt.timedelta(0)
    low = _since_1970(wall - max(before, after))
    high = _since_1970(wall - min(before, after))
    while high - low > 1:
        middle = (low + high) // 2
        local = _local(middle, zone).replace(tzinfo=None)
        if local >= wall:
            high = middle
        else:
            low = middle
    return high


def _since_1970(moment: dt.datetime) -> int:
    since = moment - EPOCH
    seconds = since.days * 86_400 + since.seconds
    return seconds * 1_000_000 + since.microseconds


def _unknown(value: float) -> str:
    return "never" if value > 0 else ""


def _without_unit(duration: object, unit: str) -> UserError:
    received = f"{duration!r}"
    if unit:
        received += f" for data in {unit}"
    return UserError(
        "a duration as a number, since the data's unit of time is not known",
        received,
        "Give a number, or name the unit of the data with --time-unit.",
    )


def _too_many(by: object) -> UserError:
    return UserError(
        f"at most {MOST_INTERVALS:,} intervals",
        f"more, of {by!r} each",
        "Use longer ones.",
    )
