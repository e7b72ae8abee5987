"""Rows to sequences in their windows: from plain numbers, or from stamps on the calendar.

Plain numbers keep their unit and origin. Stamps become elapsed time in ``unit`` since the start of
their window: the unit of the calendar, the period that the user names, or the stretch from the
first event to the last, which all sequences share because they share a clock.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.calendar_windows import UNIT, calendar_windows
from fourpoint.data.clocks import Clock, read_clock, resolution_of
from fourpoint.data.columns import HISTORY, Columns
from fourpoint.data.entities import SequenceColumns
from fourpoint.data.grouping import Group, Numbered, group
from fourpoint.data.opened import flat
from fourpoint.data.roles import Roles
from fourpoint.data.stored import Known
from fourpoint.events import SPLITS, UserError
from fourpoint.events.dates import SECONDS, unit_for

Stamp = float | str | datetime.date
Window = tuple[Stamp, Stamp] | Literal["each", "all"]
DAY = 86400.0  # seconds
FEWEST_FAR = 20  # events of a log whose start is read off them
MANY_DATES = 20  # events that are all stamped with a date alone: no chance


@dataclass(frozen=True)
class Layout:
    """Events in sequences: ``times`` by position in ``group``, and the window of each sequence, all
    in ``unit``.
    """

    ids: tuple[str, ...]
    group: Group
    times: NDArray[np.float64]
    starts: NDArray[np.float64]
    stops: NDArray[np.float64]
    inferred: bool
    unit: str = ""
    origin: str | None = None
    origin_tick: int | None = None  # of the clock, where all sequences share it
    moved: bool = False
    notes: tuple[str, ...] = ()
    origins: NDArray[np.float64] | None = None  # seconds since 1970 at time 0 of each sequence
    noon: bool = False  # dates without a time of day are read as noon of the day


@dataclass(frozen=True)
class Edges:
    """Where the window of each sequence begins and ends: names of columns with a value for each
    sequence (``named``), or moments that hold for all.
    """

    of: SequenceColumns
    pair: tuple[Stamp, Stamp]
    named: tuple[str | None, str | None]

    @property
    def words(self) -> str:
        """From where to where, as a note says it."""
        return " ".join(
            f"{word} {edge if name is None else repr(name)}"
            for word, edge, name in zip(("from", "to"), self.pair, self.named, strict=True)
        )

    def numbers(
        self, edge: int, columns: Columns, rows: Group, ids: tuple[str, ...]
    ) -> NDArray[np.float64]:
        """The starts (``edge`` 0) or stops (1) in numbers."""
        name = self.named[edge]
        if name is None:
            try:
                return np.full(len(ids), float(str(self.pair[edge])))
            except ValueError:
                raise UserError(
                    "a number or a column for each edge of the window, as the times are numbers",
                    f"{self.pair[edge]!r}",
                    "Pass window=('first_seen', 100), say.",
                ) from None
        values = self.of.opened(name, columns).floats(name)
        return values[self.of.rows(name, values, rows, ids)]

    def ticks(
        self, edge: int, columns: Columns, rows: Group, ids: tuple[str, ...], clock: Clock
    ) -> NDArray[np.int64]:
        """The starts or stops as ticks of ``clock``."""
        name = self.named[edge]
        if name is None:
            return np.full(len(ids), resolution_of(self.pair[edge], clock))
        source = self.of.opened(name, columns)
        column = source.take(name)
        found = read_clock(column, clock.zone, None, partial(source.fault, name))
        if found is None:
            raise source.error(
                f"stamps in column {name!r}, as the times are",
                f"values of type {column.type}",
                "Pass window= instead.",
            )
        values = found.in_ticks_of(clock)
        return values[self.of.rows(name, values, rows, ids)]


def lay_numbers(
    columns: Columns,
    roles: Roles,
    numbered: Numbered,
    ids: tuple[str, ...],
    window: Window | None,
    sort: bool,
    known: Known | None,
    edges: Edges | None = None,
) -> Layout:
    """Sequences whose times are numbers in the user's unit; ``known`` are the windows in the
    metadata of our own file, ``edges`` those of each sequence.
    """
    times = columns.floats(
        roles.time, "Convert it to numbers in one unit, such as hours since a common start."
    )
    rows, moved = group(numbered, len(ids), times if sort else None)
    times = rows.arrange(times)
    layout = partial(Layout, ids, rows, times, moved=moved)
    if edges is not None and known is None:
        starts, stops = (edges.numbers(edge, columns, rows, ids) for edge in (0, 1))
        return layout(starts, stops, False)
    given = None if window is None or isinstance(window, str) else _numbers(window)
    if given is not None:
        return layout(np.full(len(ids), given[0]), np.full(len(ids), given[1]), False)
    if not (window is None or isinstance(window, str)):
        raise UserError(
            "a window in numbers, as the times are", f"{window}", "Pass window=(0, 24), say."
        )
    if known is not None:
        return layout(known.starts, known.stops, known.inferred)
    empty = np.flatnonzero(np.diff(rows.offsets) == 0)
    if len(empty):
        raise columns.error(
            "a window for sequences without events",
            f"none for {len(empty):,} of them, such as {ids[int(empty[0])]}",
            "Pass window=(0, 24), say, or add columns start and stop to the table of entities.",
        )
    # As events.inferred_window, for all sequences at once; here each has an event.
    firsts = times[rows.offsets[:-1]]
    from_first = window == "each" or (len(ids) == 1 and far_from_zero(times))
    starts = firsts.copy() if from_first else np.minimum(0.0, firsts)
    stops = times[rows.offsets[1:] - 1]
    if window == "all":
        starts = np.full(len(ids), starts.min())
        stops = np.full(len(ids), stops.max())
    return layout(starts, np.where(stops > starts, stops, starts + 1.0), True)


def far_from_zero(times: NDArray[np.float64]) -> bool:
    """Whether a log does not begin at 0: its events are further from 0 than from one another, as
    Julian days, serial dates of a spreadsheet and decimal years are.

    >>> far_from_zero(np.arange(45_000.0, 45_100.0)), far_from_zero(np.arange(5.0, 105.0))
    (True, False)
    """
    if len(times) < FEWEST_FAR:
        return False
    first = float(times[0])
    length = float(times[-1] - times[0])
    return first > length


def lay_calendar(
    clock: Clock,
    roles: Roles,
    window: Window | None,
    sort: bool,
    unit: str | None,
    columns: Columns,
) -> Layout:
    """One sequence per hour, day or week."""
    by = roles.calendar or "day"
    if isinstance(window, str):
        raise UserError(
            "a window of two times, or two numbers",
            f"{window!r}",
            f"Leave it out: a {by} is observed whole.",
        )
    given = None if window is None else _numbers(window)
    period = (
        None if window is None or given is not None else _period(window, clock, columns, roles.time)
    )
    try:
        cut = calendar_windows(clock, by, period)
    except UserError as error:
        raise columns.error(error.expected, error.received, error.remedy) from error
    rows, moved = group(
        Numbered(np.arange(len(cut.ids)), cut.of(clock.ticks), None),
        len(cut.ids),
        clock.ticks if sort else None,
    )
    unit = unit or UNIT[by]
    per = SECONDS[unit] * clock.rate
    times = (rows.arrange(clock.ticks) - np.repeat(cut.origins, np.diff(rows.offsets))) / per
    starts = (cut.starts - cut.origins) / per
    stops = (cut.stops - cut.origins) / per
    if given is not None:
        starts = np.full(len(cut.ids), given[0])
        stops = np.full(len(cut.ids), given[1])
    empty = int((np.diff(rows.offsets) == 0).sum())
    zone = f"in {clock.zone}" if clock.zone else "as the times stand, which name no zone"
    windows = (
        f"windows: {len(cut.ids):,} {by}{'s' * (len(cut.ids) != 1)}, {cut.ids[0]} to "
        f"{cut.ids[-1]}, {empty:,} without events"
    )
    if window is None:
        windows += "; the first and the last are taken as observed whole (--window A B)"
    notes = (
        f"times: {unit} since the start of each {by} {zone} (--timezone, --time-unit)",
        windows,
    )
    return Layout(
        cut.ids,
        rows,
        times,
        starts,
        stops,
        False,
        unit,
        cut.ids[0],
        None,
        moved,
        notes,
        cut.origins / clock.rate,
    )


def lay_stamps(
    columns: Columns,
    roles: Roles,
    clock: Clock,
    numbered: Numbered,
    ids: tuple[str, ...],
    window: Window | None,
    sort: bool,
    unit: str | None,
    known_origin: str | None = None,
    noon: bool | None = None,
    edges: Edges | None = None,
) -> Layout:
    """Sequences that share a calendar: times since the first event of all, or since the start of
    the window given or of the first of the ``edges``, or since the origin of a model that the
    events are for.

    An event that is stamped with its date alone happened at some time of the day: it is read as
    noon (``noon``; None: where all of many stamps are dates), and the last day is observed to its
    end. At midnight, which rounding would put it half into the day before, the rhythm of the week
    would be off by half a day.
    """
    rows, moved = group(numbered, len(ids), clock.ticks if sort else None)
    ticks = rows.arrange(clock.ticks)
    if noon is None:
        noon = len(ticks) >= MANY_DATES and window != "each"
    noon = noon and are_dates(clock)
    given = None if window is None or isinstance(window, str) else _numbers(window)
    origins: Any = int(ticks.min())
    starts: Any = origins
    stops: Any = int(ticks.max())
    inferred = False
    if edges is not None:
        starts, stops = (edges.ticks(edge, columns, rows, ids, clock) for edge in (0, 1))
        origins = int(starts.min())
        observed = f"observed {edges.words}"
    elif not (window is None or isinstance(window, str) or given is not None):
        origins, stops = _period(window, clock, columns, roles.time)
        starts, observed = origins, "observed in the window given"
    elif given is not None:
        observed = "observed in the window given"
    elif window == "each":
        origins = ticks[rows.offsets[:-1]]
        stops = ticks[rows.offsets[1:] - 1]
        starts = origins
        inferred = True
        observed = "each observed from its first event to its last (--window A B)"
    else:
        inferred = True
        observed = "observed from the first event of all to the last (--window A B)"
        if noon:
            stops += round(DAY * clock.rate)
            observed = "observed from the day of the first event to that of the last (--window A B)"
    if known_origin is not None and not np.ndim(origins):
        origins = _known_tick(known_origin, clock)
    longest = float(np.max(stops - starts)) / clock.rate
    unit = unit or unit_for(longest)
    per = SECONDS[unit] * clock.rate
    times = (
        ticks - (np.repeat(origins, np.diff(rows.offsets)) if np.ndim(origins) else origins)
    ) / per
    if noon:
        times = times + DAY / 2 / SECONDS[unit]
    begin, end = (
        np.broadcast_to((edge - origins) / per, len(ids)).astype(np.float64)
        for edge in (starts, stops)
    )
    if given is not None:
        begin = np.full(len(ids), given[0])
        end = np.full(len(ids), given[1])
    if inferred:
        if longest == 0 and window != "each":
            observed = (
                f"taken as observed for 1 {unit.removesuffix('s')}, since all events have one "
                "time: --window A B states the period, without which rates mean nothing"
            )
        end = np.where(end > begin, end, begin + 1.0)
    origin = clock.text(int(np.min(origins)))
    since = "the first event of each sequence" if window == "each" else origin
    whose = "sequences are" if len(ids) > 1 else "the sequence is"
    notes: tuple[str, ...] = (f"times: {unit} since {since} (--time-unit); {whose} {observed}",)
    if noon:
        notes += ("dates have no time of day: events are read as at noon, give or take half a day",)
    shared = None if np.ndim(origins) else int(origins)
    since_1970 = np.broadcast_to(np.asarray(origins) / clock.rate, len(ids)).astype(np.float64)
    return Layout(
        ids, rows, times, begin, end, inferred, unit, origin, shared, moved, notes, since_1970, noon
    )


def are_dates(clock: Clock) -> bool:
    """Whether all times are midnight in the clock's zone: dates without a time of day.

    >>> are_dates(Clock(np.array([0, 86400, 86400]), 1, None))
    True
    """
    step = round(DAY * clock.rate)
    if clock.zone is None:
        return not (clock.ticks % step).any()
    seconds, rest = np.divmod(clock.ticks, clock.rate)
    if rest.any():
        return False
    stamps = pa.array(seconds).view(pa.timestamp("s", clock.zone))
    wall = flat(pc.local_timestamp(stamps))
    return not (wall % round(DAY)).any()


def _known_tick(origin: str, clock: Clock) -> int:
    """A timestamp in UTC, or without a zone, as a tick of ``clock``."""
    nanoseconds = int(np.datetime64(origin, "ns").astype(np.int64))
    per_tick = 1_000_000_000 // clock.rate
    return nanoseconds // per_tick


@dataclass(frozen=True)
class TimeSplits:
    """Where a single long log is cut: from when on it is scored, and when dev and test begin."""

    scored_from: float | None
    cuts: tuple[float, ...]


def split_times(
    columns: Columns, layout: Layout, values: NDArray[np.str_], name: str
) -> TimeSplits | None:
    """The cuts of one sequence whose rows are of several splits, in the order history, train, dev
    and test; None where every sequence is of one split.

    A cut is the roundest number after the last event of a part, and not after the first one of the
    next. Fails with :class:`EventDataError` where splits of a log are not in that order.
    """
    order = (HISTORY, *SPLITS)
    parts = layout.group.arrange(values)
    if len(layout.ids) != 1 or len(set(values.tolist())) < 2:
        if HISTORY in values:
            raise columns.error(
                f"{HISTORY!r} in column {name!r} for the first events of one sequence",
                f"{len(layout.ids):,} sequences",
                "Leave these rows out, or read one sequence (--sequence none).",
            )
        return None
    rank = np.array([order.index(part) for part in parts.tolist()])
    back = np.flatnonzero(np.diff(rank) < 0)
    if len(back):
        i = int(back[0]) + 1
        raise columns.error(
            f"splits of one sequence in the order {', '.join(order)}",
            f"{parts[i]} after {parts[i - 1]} ({columns.table.place(layout.group.row(i))})",
            "Cut the log at times (--split-at), or leave the column out.",
        )
    begins = {}
    for part in order[1:]:
        first = int(np.searchsorted(rank, order.index(part)))
        begins[part] = float(layout.stops[0])
        if first < len(rank):
            low = float(layout.times[first - 1]) if first else float(layout.starts[0])
            begins[part] = roundest(low, float(layout.times[first]))
    known = HISTORY in parts
    cuts = (begins["dev"], begins["test"])
    return TimeSplits(begins["train"] if known else None, cuts if cuts[0] < cuts[1] else ())


def roundest(low: float, high: float) -> float:
    """The multiple of the highest power of 10 that is above ``low`` and at most ``high``;
    ``high`` where there is none down to a millionth.

    >>> roundest(2191.96, 2192.08), roundest(728.9, 731.9), roundest(0.5, 0.5000001)
    (2192.0, 730.0, 0.5000001)
    """
    for power in range(6, -7, -1):
        step = 10.0**power
        found = float(np.floor(high / step) * step)
        if low < found <= high:
            return found
    return high


def _numbers(window: tuple[Stamp, Stamp]) -> tuple[float, float] | None:
    """The two numbers of a window, or None where it is made of stamps."""
    edges = [float(edge) for edge in window if isinstance(edge, int | float | np.number)]
    if len(window) != 2 or len(edges) != 2:
        return None
    start, stop = edges
    if not (np.isfinite(start) and np.isfinite(stop) and start < stop):
        raise UserError(
            "a window of two finite numbers, start < stop",
            f"({start}, {stop})",
            "Pass window=(0, 24), say.",
        )
    return start, stop


def _period(
    window: tuple[Stamp, Stamp], clock: Clock, columns: Columns, name: str
) -> tuple[int, int]:
    """The ticks of a window in stamps; no event may lie outside it."""
    if len(window) != 2:
        raise UserError(
            "a window of two times", f"{window}", "Pass window=('2024-01-01', '2025-01-01'), say."
        )
    start, stop = (resolution_of(edge, clock) for edge in window)
    if start >= stop:
        raise UserError(
            "a window whose start is before its stop",
            f"{window[0]} to {window[1]}",
            "Swap them.",
        )
    outside = np.flatnonzero((clock.ticks < start) | (clock.ticks >= stop))
    if len(outside):
        row = int(outside[0])
        value = clock.text(int(clock.ticks[row]))
        remedy = f"Widen the window or drop the events outside it ({len(outside):,})."
        raise columns.fault(
            name, f"times from {window[0]} to before {window[1]}", row, value, remedy
        )
    return start, stop
