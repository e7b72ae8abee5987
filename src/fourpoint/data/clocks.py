"""Times of day and date, read exactly: whole ticks since 1970 in UTC, and the zone whose calendar
they follow.

Understood are Arrow's timestamps and dates, ISO 8601 text with or without a zone
("2024-05-01T09:30:00+02:00", "2024-05-01 09:30"), dates written with slashes or dots where the data
tells day from month, whole numbers such as 20240501, 202405010930 and 20240501093000, and epoch
numbers in s, ms, us or ns, told apart by their size:

    seconds 1e8 to 1e11,  milliseconds to 1e14,  microseconds to 1e17,  nanoseconds above,

which are the years 1973 to 5138 each. Differences are elapsed real time. Stamps without a zone are
local times of ``timezone`` where it is given; then the hour that clocks repeat in autumn is told
apart by the order of the rows, and a time that clocks skip in spring is refused. Without
``timezone`` they are taken as they stand, in a day that always has 24 hours.

In autumn an hour of local time happens twice. Rows in order of time tell the two apart: where the
local time steps back inside that hour, the second begins. Where the order says nothing, the earlier
is taken, with a note. In spring an hour of local time never happens, and a stamp inside it is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.opened import flat, pieces
from fourpoint.data.stamps import Fault, parse_stamps
from fourpoint.events import UserError
from fourpoint.events.dates import unit_named

RATES = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
WRITTEN = (0, 4, 6)  # digits of the time of day behind a date that is written as one number
YEAR_1 = -62_135_596_800  # seconds since 1970
YEAR_10000 = 253_402_300_800
OFFSET = r":\d{2}(?:[.,]\d+)?\s*(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})?\s*$"
MOST_OFFSETS = 2000  # times whose offsets are looked at
# Zones with daylight saving time, one for each rule that is in wide use.
SEASONAL_TEXT = """
    Europe/London Europe/Berlin Europe/Athens America/New_York America/Chicago America/Denver
    America/Los_Angeles America/Anchorage America/Halifax America/St_Johns America/Santiago
    Australia/Sydney Australia/Adelaide Pacific/Auckland Asia/Jerusalem Africa/Cairo
"""
SEASONAL = SEASONAL_TEXT.split()
FIRST_EPOCH = (
    1e8  # as seconds, 1973; each unit's numbers are a thousand times those of the one before
)


@dataclass(frozen=True)
class Clock:
    """Times as ``ticks`` since 1970 in UTC, ``rate`` of them a second; ``zone`` is None for times
    that name none.

    ``notes`` say what was decided about them.
    """

    ticks: NDArray[np.int64]
    rate: int
    zone: str | None
    notes: tuple[str, ...] = ()

    def in_ticks_of(self, other: Clock) -> NDArray[np.int64]:
        """The times in another clock's ticks; what is finer than one of them is cut off."""
        if other.rate < self.rate:
            return self.ticks // (self.rate // other.rate)
        finer = other.rate // self.rate
        lowest = int(self.ticks.min(initial=0))
        highest = int(self.ticks.max(initial=0))
        if max(-lowest, highest) >= 2**63 // finer:
            farthest = highest if highest >= -lowest else lowest
            raise UserError(
                "times within some centuries of the others",
                self.text(farthest),
                "Use a nearer time, or coarser times than nanoseconds.",
            )
        return self.ticks * finer

    def text(self, tick: int) -> str:
        """A tick as a local time, to the second.

        >>> Clock(np.zeros(0, np.int64), 1, "Europe/Berlin").text(0)
        '1970-01-01 01:00:00 Europe/Berlin'
        """
        stamp = pa.array([tick // self.rate], pa.timestamp("s", self.zone))
        wall = flat(pc.local_timestamp(stamp))[0]
        shown = _iso(int(wall)).removesuffix(" 00:00:00")
        if not self.zone:
            return shown
        return f"{shown} {self.zone}"


def _iso(seconds: int) -> str:
    return str(np.datetime64(seconds, "s")).replace("T", " ")


def read_clock(
    column: pa.ChunkedArray,
    timezone: str | None,
    code: Callable[[], NDArray[np.int32]] | None,
    fault: Fault,
) -> Clock | None:
    """A column of times without nulls as a clock, or None where it holds plain numbers.

    Args:
        column: timestamps, dates, text or numbers.
        timezone: the zone of stamps that name none, and of the calendar; an IANA name such as
        "Europe/Berlin".
        code: gives the number of each row's sequence, by which repeated hours are told apart where
            the file as a whole is in no order; None if there is one sequence.
        fault: makes the error for a row; see :data:`fourpoint.data.stamps.Fault`.

    >>> clock = read_clock(
    ...     pa.chunked_array([["2024-05-01T09:30:00+02:00", "2024-05-01T09:00:00Z"]]),
    ...     None,
    ...     None,
    ...     fault=ValueError,
    ... )
    >>> clock.ticks.tolist(), clock.rate, clock.zone
    ([1714548600000000, 1714554000000000], 1000000, 'UTC')
    """
    if timezone is not None:
        check_zone(timezone)
    notes: list[str] = []
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    days = pa.types.is_date(kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = _epoch(column, notes, fault)
        if numbers is None:
            return None
        ticks, rate, zone = numbers
        days = rate == 0
    elif pa.types.is_timestamp(kind) or days:
        ticks, rate, zone = _ticks(column)
    else:
        ticks, rate, zone = _ticks(parse_stamps(column, notes, fault))
        if zone is not None and timezone is None:
            timezone = _zone_of_offsets(column, ticks // rate, notes)
    rate = max(rate, 1)
    _check_range(ticks, rate, fault)
    if zone is not None:
        return Clock(ticks, rate, timezone or zone, tuple(notes))
    if timezone is None:
        return Clock(ticks, rate, None, tuple(notes))
    ticks = localise(ticks, rate, timezone, days, code, notes, fault)
    return Clock(ticks, rate, timezone, tuple(notes))


def _zone_of_offsets(
    column: pa.ChunkedArray, seconds: NDArray[np.int64], notes: list[str]
) -> str | None:
    """The zone of SEASONAL whose offsets from UTC are those that stand in the text, at the times
    ``seconds`` since 1970; None where they do not change, or change in another way.

    An hour of the day is one of local time: in UTC a rhythm of the day would shift twice a year.
    """
    rows = np.unique(np.linspace(0, len(column) - 1, MOST_OFFSETS).astype(np.int64))
    text = column.take(pa.array(rows))
    if pa.types.is_dictionary(text.type):
        text = text.cast(text.type.value_type)
    offsets = _offsets(text)
    if not offsets.any():
        return None
    if (offsets != offsets[0]).any():
        utc = seconds[rows]
        instants = pa.array(utc)
        for zone in SEASONAL:
            local = pc.local_timestamp(instants.view(pa.timestamp("s", zone)))
            if np.array_equal(flat(local) - utc, offsets):
                notes.append(
                    f"offsets from UTC change as those of {zone} do: hours, days and weekdays are "
                    "taken in that zone (--timezone)"
                )
                return zone
    first = int(np.flatnonzero(offsets)[0])
    example = str(text[first]).strip()
    notes.append(
        f"times such as {example!r} have an offset from UTC: hours, days and weekdays are taken in "
        "UTC; --timezone names the zone to take them in, for example Europe/Berlin"
    )
    return None


def _offsets(text: pa.ChunkedArray) -> NDArray[np.int64]:
    """The offset from UTC that stands behind each time, in seconds; 0 where none does."""
    found = pc.extract_regex(text, OFFSET)
    size = 3600 * _whole_part(found, "hours") + 60 * _whole_part(found, "minutes")
    sign = pc.struct_field(found, "sign")
    is_negative = pc.fill_null(pc.equal(sign, "-"), False)
    negative = flat(pc.cast(is_negative, pa.int8())).astype(bool)
    return np.where(negative, -size, size)


def _whole_part(found: pa.ChunkedArray, name: str) -> NDArray[np.int64]:
    """A part of a regular expression as whole numbers, 0 where it is missing."""
    part = pc.struct_field(found, name)
    digits = pc.if_else(pc.equal(part, ""), "0", part)
    values = pc.cast(digits, pa.int64())
    return flat(pc.fill_null(values, 0))


def _check_range(ticks: NDArray[np.int64], rate: int, fault: Fault) -> None:
    """Refuse times that no calendar has, and times so far apart that their difference is no whole
    number of ticks.
    """
    if not len(ticks):
        return
    first = int(ticks.argmin())
    last = int(ticks.argmax())
    for row in (first, last):
        tick = int(ticks[row])
        if not YEAR_1 <= tick // rate < YEAR_10000:
            raise fault(
                "times from the year 1 to the year 9999",
                row,
                f"{tick} ticks of 1/{rate} s since 1970",
                "Correct or remove the row, or check the unit of the column.",
            )
    apart = int(ticks[last]) - int(ticks[first])
    if apart >= 2**63:
        raise fault(
            "times less than 292 years apart, as nanoseconds are counted",
            last,
            f"{apart:,} ns",
            "Write times in microseconds, which reach further.",
        )


def resolution_of(stamp: object, clock: Clock) -> int:
    """A moment that a user wrote, as a tick of ``clock``: text, a date or a datetime; without a
    zone it is local.

    >>> resolution_of("2024-05-01", Clock(np.zeros(0, np.int64), 1, "UTC"))
    1714521600
    """

    def fault(expected: str, row: int, value: object, remedy: str) -> UserError:
        return UserError(expected, f"{stamp!r}", remedy)

    try:
        column = pa.chunked_array([pa.array([stamp])])
    except (pa.ArrowException, TypeError, ValueError):
        column = pa.chunked_array([pa.array([str(stamp)])])
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)):
        raise UserError(
            "a date or a time", f"{stamp!r}", "Write it as 2024-05-01 or 2024-05-01T09:30."
        )
    found = read_clock(column, clock.zone, None, fault)
    if found is None or (found.zone is not None and clock.zone is None):
        raise UserError(
            "a time without a zone, as the data has",
            f"{stamp!r}",
            "Leave the zone out, or pass timezone=.",
        )
    return int(found.in_ticks_of(clock)[0])


def check_zone(name: str) -> None:
    """Refuse what is not the name of a time zone."""
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("s")), name)
    except pa.ArrowException as error:
        from zoneinfo import available_timezones

        places = {_place(zone): zone for zone in sorted(available_timezones())}
        wanted = _place(name).replace(" ", "_")
        near = get_close_matches(wanted, places, n=2, cutoff=0.7)
        remedy = "Use an IANA name such as 'Europe/Berlin', or 'UTC'."
        if near:
            remedy = f"Did you mean {' or '.join(repr(places[place]) for place in near)}?"
        raise UserError("the name of a time zone", f"{name!r}", remedy) from error


def _place(zone: str) -> str:
    """The last part of the name of a zone: "berlin" of "Europe/Berlin"."""
    return zone.rsplit("/", 1)[-1].strip().lower()


def _ticks(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], int, str | None]:
    values = flat(column).astype(np.int64, copy=False)
    kind = column.type
    if pa.types.is_date32(kind):
        return values * 86400, 1, None
    if pa.types.is_date64(kind):
        return values, 1000, None
    return values, RATES[kind.unit], kind.tz


def _epoch(
    column: pa.ChunkedArray, notes: list[str], fault: Fault
) -> tuple[NDArray[np.int64], int, str | None] | None:
    """Numbers as epochs (UTC), as dates such as 20240501 (no zone, rate 0) or as timestamps such as
    20240501093000 (no zone, rate 1), or None where they are none of these.
    """
    parts = pieces(column)
    if not parts:
        return None
    # numpy's least of all is NaN where any is, and then the numbers are left to be refused.
    low = float(np.min([part.min() for part in parts]))
    high = float(np.max([part.max() for part in parts]))
    if pa.types.is_integer(column.type):
        for digits in WRITTEN:
            if low // 10**digits >= 19000101 and high // 10**digits <= 22001231:
                values = flat(column).astype(np.int64)
                written = _written_stamps(values, digits, notes, fault)
                if written is not None or not digits:
                    return written
    edges = [min(FIRST_EPOCH * 1000**k, 2.0**63) for k in range(5)]
    bands = [k for k in range(4) if edges[k] <= low and high < edges[k + 1]]
    if not bands:
        return None
    unit, rate = list(RATES.items())[bands[0]]
    notes.append(
        f"numbers near {low:.3g} are read as {unit_named(unit)} since 1970 (--time-unit 'as "
        "given' leaves them)"
    )
    values = flat(column)
    if pa.types.is_floating(column.type):
        # A float of seconds resolves a quarter of a microsecond.
        finer = max(rate, 1_000_000)
        values = np.rint(values * (1_000_000 / min(rate, 1_000_000)))
        return values.astype(np.int64), finer, "UTC"
    return values.astype(np.int64), rate, "UTC"


def _written_stamps(
    values: NDArray[np.int64], digits: int, notes: list[str], fault: Fault
) -> tuple[NDArray[np.int64], int, str | None] | None:
    """Dates such as 20240501 with ``digits`` of a time of day behind them, or None where these are
    not the fields of a calendar and a clock.
    """
    date, time = np.divmod(values, 10**digits)
    year = date // 10000
    month = date // 100 % 100
    day = date % 100
    months = (year - 1970) * 12 + month - 1
    days = _first_days(months) + day - 1
    hour, minute, second = _time_of_day(time, digits)
    possible = (month >= 1) & (month <= 12)
    possible &= (day >= 1) & (day <= 31)
    possible &= (hour < 24) & (minute < 60) & (second < 60)
    if not possible.all():
        return None
    beyond = np.flatnonzero(days >= _first_days(months + 1))
    if len(beyond):
        row = int(beyond[0])
        raise fault("dates that exist", row, int(values[row]), "Mend or remove the row.")
    what = "timestamps" if digits else "dates"
    notes.append(f"numbers such as {values[0]} are read as {what}")
    seconds = days * 86400 + hour * 3600 + minute * 60 + second
    return seconds, 1 if digits else 0, None


def _time_of_day(
    time: NDArray[np.int64], digits: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Hour, minute and second of times such as 0930 and 093000, of 4 or 6 ``digits``; 0 without."""
    if digits == 6:
        return time // 10000, time // 100 % 100, time % 100
    return time // 100, time % 100, np.zeros_like(time)


def _first_days(months: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first day of each month; both are counted from January 1970."""
    dates = months.astype("datetime64[M]").astype("datetime64[D]")
    return dates.astype(np.int64)


def looks_like_time(text: str) -> bool:
    """Whether a piece of text could be a time: it begins as one does.

    >>> (
    ...     looks_like_time("2024-05-01 09:30"),
    ...     looks_like_time("5/1/2024"),
    ...     looks_like_time("42"),
    ...     looks_like_time("fire"),
    ... )
    (True, True, False, False)
    """
    date = r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})"
    return re.match(date, text) is not None


FOLD = 4 * 3600  # seconds that two local times of one fold are at most apart


def localise(
    wall: NDArray[np.int64],
    rate: int,
    zone: str,
    dates: bool,
    code: Callable[[], NDArray[np.int32]] | None,
    notes: list[str],
    fault: Fault,
) -> NDArray[np.int64]:
    """Ticks of local time, ``rate`` a second, as ticks in UTC.

    ``dates`` says that they are days, which begin at the first moment of the day whatever the
    clocks do. ``code`` gives each row's sequence, and is used where the rows as a whole are in no
    order.

    >>> half_past_one = np.array([1730597400, 1730597400 - 600])  # 2024-11-03 01:30 and then 01:20
    >>> notes = []
    >>> (
    ...     np.diff(
    ...         localise(half_past_one, 1, "America/New_York", False, None, notes, fault=ValueError)
    ...     ).tolist(),
    ...     notes,
    ... )
    ([3000], ['2 times lie in an hour that America/New_York has twice: told apart by ...'])
    """
    early, late = _both(wall, rate, zone)
    if dates:
        return early
    skipped = np.flatnonzero(late < early)
    if len(skipped):
        row = int(skipped[0])
        raise fault(
            f"times that exist in {zone}",
            row,
            _iso(int(wall[row] // rate)),
            "Clocks skip it in spring: perhaps the times are in UTC (timezone='UTC') or in "
            "standard time all year.",
        )
    twice = np.flatnonzero(late > early)
    if not len(twice):
        return early
    second, open_rows = _second(wall, rate, twice, code)
    later = twice[second]
    early = early.copy()
    early[later] = late[later]
    note = (
        f"{len(twice):,} times lie in an hour that {zone} has twice: told apart by the order of "
        "rows"
    )
    if open_rows:
        note = f"{note}; {open_rows:,} could not be and are taken as the earlier"
    notes.append(note)
    return early


def _both(
    wall: NDArray[np.int64], rate: int, zone: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The earlier and the later instant of each local time. For one that clocks skip the "later" is
    a tick before the other.
    """
    unit = {1: "s", 1000: "ms", 1_000_000: "us"}.get(rate, "ns")
    stamps = pa.array(wall).view(pa.timestamp(unit))
    early = pc.assume_timezone(stamps, zone, ambiguous="earliest", nonexistent="latest")
    late = pc.assume_timezone(stamps, zone, ambiguous="latest", nonexistent="earliest")
    return flat(early), flat(late)


def _second(
    wall: NDArray[np.int64],
    rate: int,
    twice: NDArray[np.int64],
    code: Callable[[], NDArray[np.int32]] | None,
) -> tuple[NDArray[np.bool_], int]:
    """Which of the rows ``twice`` are the second of the two, and how many could not be told."""
    falls = int((wall[1:] < wall[:-1]).sum())
    rises = int((wall[1:] > wall[:-1]).sum())
    if falls > rises + 1:  # the newest row first
        backwards = None if code is None else lambda: code()[::-1]
        rows = len(wall) - 1 - twice[::-1]
        second, left = _second(wall[::-1], rate, rows, backwards)
        return second[::-1], left
    count = len(twice)
    order = np.arange(count)
    change = np.zeros(max(count - 1, 0), dtype=bool)
    local = wall[twice]
    fold = local // (rate * FOLD)
    # Descents beyond one a fold mean that the rows are in order at most inside each sequence.
    if code is not None and falls > len(np.unique(fold)):
        own = code()[twice]
        order = np.argsort(own, kind="stable")
        change = np.diff(own[order]) != 0
    step = np.diff(local[order])
    far = np.abs(step) > rate * FOLD
    apart = change | far
    run = np.concatenate([[0], np.cumsum(apart)])
    back = np.concatenate([[False], (step < 0) & ~apart])
    steps_back = np.bincount(run, weights=back)
    told = steps_back[run] == 1
    passed_by = np.concatenate([[0], np.cumsum(back)])
    begins = np.searchsorted(run, np.arange(run[-1] + 1))
    before = passed_by[begins]
    passed = passed_by[1:] > before[run]
    second = np.zeros(count, dtype=bool)
    second[order] = passed & told
    return second, int(np.count_nonzero(~told))
