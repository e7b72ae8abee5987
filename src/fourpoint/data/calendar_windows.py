"""Calendar windows: a stream of stamped events cut into days, weeks or hours of a zone's calendar.

A window is the whole unit, from local midnight to local midnight for a day, whether or not events
reach its ends: a day is a day even when its last event is at noon. Units between the first and the
last event that have none are windows without events, since silence is evidence. Time inside a
window is elapsed real time since its start. So in a zone with daylight saving one day a year has 23
hours and one has 25, and on those two days the hours after the change stand one off the wall clock;
rates and gaps are true on all days. A week begins on Monday and is named as ISO 8601 does
("2024-W18").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.clocks import Clock
from fourpoint.data.opened import flat
from fourpoint.events import UserError

By = Literal["hour", "day", "week"]
CALENDAR: tuple[By, ...] = ("hour", "day", "week")
SPAN = {"hour": 3600, "day": 86400, "week": 604800}
UNIT = {
    "hour": "minutes",
    "day": "hours",
    "week": "days",
}  # in which times inside a window are given by default
MONDAY = 4 * 86400  # 1970-01-05
MOST_WINDOWS = 1_000_000


@dataclass(frozen=True)
class CalendarWindows:
    """Windows in ticks of a clock. ``origins`` are where their units of the calendar begin;
    ``starts`` is later where cut.
    """

    ids: tuple[str, ...]
    origins: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def of(self, ticks: NDArray[np.int64]) -> NDArray[np.int32]:
        """The number of the window in which each tick lies; they must lie inside the whole."""
        after = np.searchsorted(self.origins, ticks, side="right")
        return (after - 1).astype(np.int32)


def calendar_windows(
    clock: Clock, by: By, period: tuple[int, int] | None = None
) -> CalendarWindows:
    """Cut the time that a clock covers into units of its zone's calendar.

    Args:
        clock: the events' times; at least one.
        by: "hour", "day" or "week".
        period: first and last tick observed; the windows at both ends are cut to it. By default the
            units of the first and of the last event are taken as observed whole.

    Fails with :class:`UserError` above a million windows, which a stray time causes more often than
    a long record.

    >>> clock = Clock(
    ...     np.array([1710053940, 1710140400]), 1, "America/New_York"
    ... )  # 2024-03-10 01:59 and 2024-03-11 03:00
    >>> windows = calendar_windows(clock, "day")
    >>> windows.ids, ((windows.stops - windows.starts) / 3600).tolist()
    (('2024-03-10', '2024-03-11'), [23.0, 24.0])
    """
    if period is None:
        first = int(clock.ticks.min())
        last = int(clock.ticks.max())
    else:
        first = period[0]
        last = period[1] - 1
    labels = _labels(_wall(first, clock), _wall(last, clock), by, clock)
    edges, names = _edges(labels, by, clock)
    origins = edges[:-1]
    starts = origins
    stops = edges[1:]
    if period is not None:
        starts = np.maximum(starts, period[0])
        stops = np.minimum(stops, period[1])
    full = stops > starts
    ids = tuple(names[i] for i in np.flatnonzero(full))
    return CalendarWindows(ids, origins[full], starts[full], stops[full])


def _wall(tick: int, clock: Clock) -> int:
    """The local time of a tick, in seconds."""
    seconds = pa.array([tick // clock.rate], pa.timestamp("s", clock.zone))
    local = flat(pc.local_timestamp(seconds))
    return int(local[0])


def _labels(first: int, last: int, by: By, clock: Clock) -> NDArray[np.int64]:
    """Local times at which units begin, in seconds, from the unit of ``first`` to the one after
    that of ``last``.
    """
    span = SPAN[by]
    zero = MONDAY if by == "week" else 0
    low = (first - zero) // span
    high = (last - zero) // span
    if high - low >= MOST_WINDOWS:
        begin = clock.text(int(clock.ticks.min()))
        end = clock.text(int(clock.ticks.max()))
        raise UserError(
            f"at most {MOST_WINDOWS:,} windows",
            f"times from {begin} to {end}",
            f"Look for an outlier, or cut by longer units than the {by}.",
        )
    return np.arange(low, high + 2) * span + zero


def _edges(labels: NDArray[np.int64], by: By, clock: Clock) -> tuple[NDArray[np.int64], list[str]]:
    """The ticks at which windows begin and end, and a name for each window."""
    if int(np.abs(labels).max()) > (2**63 - 1) // clock.rate:
        raise UserError(
            "times that leave room for a window around them",
            "a time at the end of what its type can hold",
            "Correct it.",
        )
    if clock.zone is None:
        return labels * clock.rate, _names(labels[:-1], by)
    stamps = pa.array(labels).view(pa.timestamp("s"))
    early = pc.assume_timezone(stamps, clock.zone, ambiguous="earliest", nonexistent="latest")
    late = pc.assume_timezone(stamps, clock.zone, ambiguous="latest", nonexistent="latest")
    edges = flat(early)
    second = flat(late)
    names = np.array(_names(labels, by), dtype=object)
    twice = np.flatnonzero(second > edges)
    if by == "hour" and len(twice):
        # An hour that happens twice is two windows, told apart by their distance from UTC.
        name = names[twice]
        first_offset = [_offset(seconds) for seconds in (labels - edges)[twice].tolist()]
        second_offset = [_offset(seconds) for seconds in (labels - second)[twice].tolist()]
        names[twice] = name + first_offset
        names = np.concatenate([names, name + second_offset])
        edges = np.concatenate([edges, second[twice]])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    names = names[order]
    # A unit that the calendar skips (Samoa had no 30 December 2011) begins where the next does.
    real = np.append(np.diff(edges) > 0, True)
    return edges[real] * clock.rate, names[real][:-1].tolist()


def _names(labels: NDArray[np.int64], by: By) -> list[str]:
    stamps = labels.astype("datetime64[s]")
    if by == "hour":
        return np.datetime_as_string(stamps, unit="h").tolist()
    if by == "day":
        return np.datetime_as_string(stamps, unit="D").tolist()
    # A week belongs to the year of its Thursday.
    thursday = (stamps + 3 * 86400).astype("datetime64[D]")
    year = thursday.astype("datetime64[Y]")
    day = (thursday - year.astype("datetime64[D]")).astype(np.int64)
    week = day // 7 + 1
    names = zip(year.astype(str).tolist(), week.tolist(), strict=True)
    return [f"{y}-W{n:02d}" for y, n in names]


def _offset(seconds: int) -> str:
    sign = "-" if seconds < 0 else "+"
    hours, minutes = divmod(abs(seconds) // 60, 60)
    return f"{sign}{hours:02d}:{minutes:02d}"
