"""The time of an event as the model counts it, from what the log says: a number, a timestamp, an
epoch or a date.

    t = (timestamp - origin) / unit,

with the origin and the unit of the training data (:class:`~fourpoint.log_format.LogFormat`), in
whole nanoseconds up to the division, so that a row gives the very number that `fit` read from it.
Where the model was fitted to hours, days or weeks of the calendar, the origin is the start of the
window in which the timestamp lies, and the window's name says whose event it is. What contradicts
the training log (a timestamp where it had numbers, a zone where it had none) is an error.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from fourpoint.data.calendar_windows import CALENDAR, By, calendar_windows
from fourpoint.data.clocks import FIRST_EPOCH, Clock
from fourpoint.data.stamps import LONGEST, SPLIT_DATE, tidied
from fourpoint.events import UserError
from fourpoint.events.dates import SECONDS, Dates
from fourpoint.log_format import DATES, EPOCH, NUMBERS, LogFormat
from fourpoint.streaming.feed.plausibility import Calendar

NANO = 10**9
DATE_NUMBERS = (19000101, 22001231)
START = datetime(1970, 1, 1)
UTC_START = datetime(1970, 1, 1, tzinfo=UTC)
MIDNIGHT = START.time()
MICROSECOND = timedelta(microseconds=1)
FINE = re.compile(r"[.,]\d{6}(\d{1,3})")  # digits below the microsecond


class Contradiction(UserError):
    """A time that is written otherwise than in the training log: if the first is, all are."""


class Moment(NamedTuple):
    """When an event was: in its window, and on the clock of the whole feed. ``window`` names the
    calendar's window.
    """

    time: float
    at: float
    window: str | None = None


class TimeReader:
    """Reads times as the training log writes them. ``log`` is None where only numbers in the
    model's unit are known.

    >>> log = LogFormat(
    ...     "when", clock="stamps", zone="UTC", zoned=True, origin="2024-05-01T00:00:00"
    ... )
    >>> times = TimeReader(log, "hours")
    >>> (
    ...     times.text("2024-05-01T11:30:00+02:00").time,
    ...     times.number(9.5).time,
    ...     times.number(1714555800).time,
    ... )
    (9.5, 9.5, 9.5)
    """

    def __init__(self, log: LogFormat | None, unit: str) -> None:
        self.known = log is not None
        self.log = log or LogFormat("time")
        self.unit = unit
        self.calendar: By | None = next((by for by in CALENDAR if by == self.log.calendar), None)
        self._last: int | None = (
            None  # nanoseconds of the last time, by which repeated hours are told apart
        )
        self._window: tuple[int, int, str] = (0, 0, "")
        if not self.stamped:
            return
        if unit not in SECONDS:
            raise UserError(
                f"a unit of time among {', '.join(SECONDS)}",
                f"{unit!r} in the model",
                "Fit the model again.",
            )
        self._zone = ZoneInfo(self.log.zone) if self.log.zone and not self.log.zoned else None
        if self.calendar is None:
            if self.log.origin is None:
                remedy = (
                    "Fit it with one origin for all sequences (--window A B), or send numbers "
                    "since each start."
                )
                raise UserError(
                    "a model whose sequences share one origin",
                    "one fitted to windows of their own",
                    remedy,
                )
            self.origin = _nanoseconds(datetime.fromisoformat(self.log.origin), self.log.origin)

    @property
    def stamped(self) -> bool:
        """Whether the training log had timestamps."""
        return self.log.clock != NUMBERS

    def dates(self) -> Dates | None:
        """Converts times to dates; None where they are plain numbers, or count from the start of
        windows of the calendar, which their names date.
        """
        if self.stamped and self.calendar is None:
            return Dates(self.origin / NANO, self.unit, self.log.zone)
        return None

    def wall_clock(self) -> Calendar | None:
        """Where the feed's clock stands on the wall clock; None where times are plain numbers."""
        if not self.stamped:
            return None
        origin = 0 if self.calendar is not None else self.origin
        return Calendar(origin / NANO, SECONDS[self.unit])

    def number(self, value: float) -> Moment:
        """A time given as a number."""
        if not self.stamped:
            return Moment(float(value), float(value))
        nanoseconds = self._of_number(value)
        if nanoseconds is not None:
            return self._moment(nanoseconds)
        if self.calendar is not None:
            received = f"the number {value:.10g}"
            raise Contradiction(
                f"a timestamp, since the model was fitted to each {self.calendar}", received, _WRITE
            )
        return Moment(float(value), float(value))

    def text(self, text: str) -> Moment:
        """A time given as text."""
        if not self.stamped:
            remedy = "Send numbers in the model's unit, or fit the model to timestamps."
            raise Contradiction("a time as a number, as in training", _shown(text), remedy)
        if self.log.clock in (EPOCH, DATES):
            expected = f"a time as a number ({self.log.clock}), as in training"
            raise Contradiction(expected, _shown(text), "Write it as the training log does.")
        return self._moment(self._of_text(text))

    def _of_number(self, value: float) -> int | None:
        """A number as nanoseconds since 1970; None where it is one in the model's unit."""
        first, last = DATE_NUMBERS
        if self.log.clock == DATES and first <= value <= last:
            return self._of_date(int(value))
        if not FIRST_EPOCH <= value or not isfinite(value):
            return None
        if self.log.clock == EPOCH:
            return _of_epoch(value, self.log.per_second)
        if not self.log.zoned and self.log.zone is None:
            received = f"{value:.10g}, which may be an epoch in UTC"
            raise Contradiction("a timestamp without a zone, as in training", received, _WRITE)
        per_second = 1
        while per_second < NANO and value >= FIRST_EPOCH * 1000 * per_second:
            per_second *= 1000
        return _of_epoch(value, per_second)

    def _of_date(self, value: int) -> int:
        month, day = divmod(value % 10000, 100)
        try:
            date = datetime(value // 10000, month, day)
        except ValueError:
            raise UserError(
                "a date that exists", f"{value}", "Repair or remove the event."
            ) from None
        return _nanoseconds(self._localised(date, str(value)), "")

    def _of_text(self, text: str) -> int:
        if len(text) > LONGEST:
            raise UserError("a timestamp", _shown(text), _WRITE)
        moment = self._parsed(text)
        if (moment.tzinfo is not None) != self.log.zoned:
            if self.log.zoned:
                expected = "a timestamp with a zone, as in training"
            else:
                expected = "a timestamp without a zone, as in training"
            raise Contradiction(expected, _shown(text), "Write all times in one way.")
        return _nanoseconds(self._localised(moment, text), text)

    def _parsed(self, text: str) -> datetime:
        """Text as a date and time; the tidying of `data.stamps` is tried where it is not plain ISO
        8601.
        """
        split = SPLIT_DATE.match(text)
        if split is not None and self.log.day_first is not None:
            return _split_date(text, split, self.log.day_first)
        if text[:1].isdigit():
            for tidy in (str.strip, _tidied):
                try:
                    return datetime.fromisoformat(tidy(text))
                except ValueError:
                    continue
        raise UserError("a timestamp", _shown(text), _WRITE)

    def _localised(self, moment: datetime, text: str) -> datetime:
        """A local time of the log's zone in UTC; what clocks repeat is told apart by the order of
        the lines.
        """
        if self._zone is None:
            return moment
        first = moment.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        second = moment.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        if first.astimezone(self._zone).replace(tzinfo=None) != moment:
            raise UserError(
                f"a time that exists in {self.log.zone}",
                _shown(text),
                "Clocks skip it: repair the event.",
            )
        if second == first or self._last is None:
            return first
        if _nanoseconds(first, text) < self._last:
            return second
        return first

    def _moment(self, nanoseconds: int) -> Moment:
        self._last = nanoseconds
        if self.log.noon and _midnight(nanoseconds, self.log.zone):
            nanoseconds += NANO * 86_400 // 2
        if self.calendar is None:
            time = _quotient(nanoseconds - self.origin, self.unit)
            return Moment(time, time)
        start, stop, _ = self._window
        if not start <= nanoseconds < stop:
            self._window = _calendar_window(nanoseconds, self.calendar, self.log.zone)
        start, _, name = self._window
        return Moment(
            time=_quotient(nanoseconds - start, self.unit),
            at=_quotient(nanoseconds, self.unit),
            window=name,
        )


def _midnight(nanoseconds: int, zone: str | None) -> bool:
    """Whether a moment is the beginning of a day of local time."""
    seconds, rest = divmod(nanoseconds, NANO)
    if rest:
        return False
    if zone is None:
        return seconds % 86_400 == 0
    local = datetime.fromtimestamp(seconds, ZoneInfo(zone))
    return local.time() == MIDNIGHT


def _calendar_window(nanoseconds: int, by: By, zone: str | None) -> tuple[int, int, str]:
    """The window of the calendar around a moment: its edges in nanoseconds, and its name."""
    microsecond = nanoseconds // 1000
    clock = Clock(np.array([microsecond], dtype=np.int64), 1_000_000, zone)
    found = calendar_windows(clock, by)
    row = int(found.of(clock.ticks)[0])
    start = int(found.starts[row])
    stop = int(found.stops[row])
    return start * 1000, stop * 1000, found.ids[row]


def _quotient(nanoseconds: int, unit: str) -> float:
    """Nanoseconds in a unit of time, rounded once: `fit` divides whole microseconds where there are
    no finer ones.
    """
    whole, finer = divmod(nanoseconds, 1000)
    if finer:
        return nanoseconds / (SECONDS[unit] * NANO)
    return whole / (SECONDS[unit] * 1_000_000)


def _of_epoch(value: float, per_second: int) -> int:
    """An epoch number in nanoseconds; a fraction counts to the microsecond, as `fit` reads it."""
    if isinstance(value, int):
        return value * (NANO // per_second)
    finest = min(per_second, 1_000_000)
    microseconds = round(value * (1_000_000 / finest))
    return microseconds * (NANO // max(per_second, 1_000_000))


def _nanoseconds(moment: datetime, text: str) -> int:
    """Since 1970, in UTC where the time has a zone; digits below the microsecond are read off the
    text.
    """
    start = START if moment.tzinfo is None else UTC_START
    since: timedelta = moment - start
    nanoseconds = since // MICROSECOND * 1000
    if len(text) > 26:
        fine = FINE.search(text)
        if fine is not None:
            nanoseconds += int(fine[1].ljust(3, "0"))
    return nanoseconds


def _split_date(text: str, found: re.Match[str], day_first: bool) -> datetime:
    """A date such as 5/1/2024 9:30 PM."""
    between = found[1]
    year = found[2]
    clock = found[3] or "0:00"
    half = found[5]
    first, second, *_ = text.strip().split(between, 2)
    day, month = int(first), int(second)
    if not day_first:
        day, month = month, day
    hour, minute, seconds = (int(part) for part in f"{clock}:0".split(":")[:3])
    if half:
        hour %= 12
        if half.upper() == "PM":
            hour += 12
    full = int(year)
    if len(year) < 4:
        full += 2000 if full < 69 else 1900
    try:
        return datetime(full, month, day, hour, minute, seconds)
    except ValueError:
        raise UserError("a date that exists", _shown(text), "Repair or remove the event.") from None


def _tidied(text: str) -> str:
    return str(tidied(pa.chunked_array([[text]]))[0])


def _shown(text: str) -> str:
    if len(text) > 60:
        text = f"{text[:57]}..."
    return repr(text)


_WRITE = "Write it as the training log does, such as 2024-05-01T09:30:00."
