"""Tables beside the events: gaps in the recording, exposure, and covariates of time.

    gaps         start, stop [, sequence]       nothing was recorded in [start, stop)
    observed     start, stop [, sequence]       nothing was recorded outside these intervals
    exposure     time, value [, sequence]       a known factor of the rate, from each time on
    covariates   time, columns... [, sequence]  values that hold from each time on

Without a column of sequences a table holds for all of them. Times are written as those of the
events: timestamps where the events have timestamps, in the same zone, and numbers otherwise. Words
become indicator columns: of a column "plan" with the values basic and pro, "plan=pro" is 1 where it
is pro, and the first value in alphabetical order is the reference. :func:`with_tables` adds what
the tables say to the context of a data set (:mod:`fourpoint.events.context`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Ordered
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.as_of import changing_covariates, covariates_as_of, period_text, steps_as_of
from fourpoint.data.clocks import Clock, read_clock
from fourpoint.data.columns import Columns, decimal_commas, is_words, open_columns, value_type
from fourpoint.data.opened import flat
from fourpoint.data.roles import guess_time, plain_name
from fourpoint.data.tables import open_table
from fourpoint.events import Context, Dataset, EventDataError, Steps, UserError
from fourpoint.events.batching import offsets_of
from fourpoint.events.dates import SECONDS, shown
from fourpoint.log_format import LogFormat

Impute = Literal["previous", "mean"]
Levels = Mapping[str, Ordered[str]]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
INTERVALS = (("start", "stop"), ("start", "end"), ("begin", "end"), ("from", "to"))
SEQUENCES = ("seq_id", "sequence", "sequence_id", "seq")
MICROSECONDS = Clock(np.zeros(0, np.int64), 1_000_000, None)
MOST_LEVELS = 1000
EXPOSURE = "exposure"


class UnrecordedEvent(EventDataError):
    """An event at a time when nothing was recorded."""


@dataclass(frozen=True)
class Tables:
    """What a user gives beside the events: paths or tables in memory, or None.

    Args:
        gaps, observed: intervals; at most one of the two.
        exposure: a factor of the rate.
        covariates: columns of time.
        impute: what stands for missing values of covariates: the "previous" one or the "mean".
        levels: the values of each column of words in order, as a fitted model knows them.
        timezone: the zone of times without one, if the user has named it.
        covariates_as_of: a period at whose beginning covariates of time are known, those of a table
            or those that the data has.
    """

    gaps: object = None
    observed: object = None
    exposure: object = None
    covariates: object = None
    impute: Impute | None = None
    levels: Levels | None = None
    timezone: str | None = None
    covariates_as_of: float | str | None = None


def with_tables(data: Dataset, tables: Tables) -> tuple[Dataset, list[str]]:
    """``data`` with what the tables say in its context, and notes about it.

    >>> from fourpoint.events import Sequence
    >>> log = Dataset.from_sequences([Sequence([1.0, 7.0], start=0, stop=10)])
    >>> found, _ = with_tables(log, Tables(gaps={"start": [2.0], "stop": [5.0]}))
    >>> found.context.exposure.at(0, np.array([1.0, 2.0, 4.9, 5.0]))[:, 0].tolist()
    [1.0, 0.0, 0.0, 1.0]
    """
    checked_impute(tables.impute)
    if tables.gaps is not None and tables.observed is not None:
        raise UserError(
            "either gaps or the intervals that were observed",
            "both",
            "Leave out gaps= or observed= (--gaps, --observed).",
        )
    notes: list[str] = []
    read = partial(_Beside, data=data, timezone=tables.timezone)
    period = tables.covariates_as_of
    if period is not None and (tables.covariates is None or changing_covariates(data)):
        data = covariates_as_of(data, period)
    if tables.covariates is not None:
        table = read(tables.covariates, what="covariates")
        data = _with_covariates(data, table, tables, notes)
    if tables.observed is not None:
        table = read(tables.observed, what="observed")
        observed = table.intervals()
        notes += table.unknown()
        data, between = _around(data, observed)
        data = _times_exposure(data, _recorded(data, between))
    if tables.gaps is not None:
        gaps = read(tables.gaps, what="gaps").intervals()
        by_sequence = [gaps.of(i) for i in range(len(data))]
        data = _times_exposure(data, _recorded(data, by_sequence))
    if tables.exposure is not None:
        table = read(tables.exposure, what=EXPOSURE)
        data = _times_exposure(data, _exposure(data, table, notes))
    return data, notes


def sequence_column(source: object, log: LogFormat) -> str | None:
    """The column of a table beside the events that says which sequence a row is about.

    >>> sequence_column({"time": [0.0], "seq_id": ["a"], "rain": [1]}, LogFormat("time"))
    'seq_id'
    """
    names = open_table(source).schema.names
    return _sequence_column(names, log)


def _sequence_column(names: list[str], log: LogFormat) -> str | None:
    plain = {plain_name(name): name for name in names}
    for word in (log.sequence or "", *SEQUENCES):
        found = plain.get(plain_name(word))
        if found is not None:
            return found
    return None


def checked_impute(impute: str | None) -> Impute | None:
    """The imputation of this name; refuses one that there is not.

    >>> checked_impute("mean")
    'mean'
    """
    if impute is None:
        return None
    known: dict[str, Impute] = {"previous": "previous", "mean": "mean"}
    if impute in known:
        return known[impute]
    raise UserError(
        f"an imputation: {' or '.join(known)}",
        f"{impute!r}",
        "Name one of them, or leave it out to refuse missing values.",
    )


def encode(
    columns: Columns,
    name: str,
    levels: Ordered[str] | None,
    impute: Impute | None,
    groups: Integers | None = None,
) -> tuple[list[str], Floats, tuple[str, ...]]:
    """A column as numbers (rows, K), with the names of the K columns and the levels of words.
    Words that are all numbers with decimal commas are numbers, unless ``levels`` are known.

    ``groups`` numbers the rows by sequence: a previous value is taken from the same one.
    """
    kind = columns.type(name)
    column = columns.held.pop(name)
    missing = _missing(column)
    if missing.any() and impute is None:
        row = int(np.argmax(missing))
        raise columns.error(
            f"a value in every row of column {name!r}",
            f"{int(missing.sum()):,} missing, the first at {columns.table.place(row)}",
            "Fill them in, or name an imputation: impute='previous' or 'mean' (--impute).",
        )
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
        kind = pa.int8()
    if is_words(kind) and levels is None:
        numbers = decimal_commas(_blank_as_null(column))
        if numbers is not None:
            column = numbers
            kind = pa.float64()
    if is_words(kind):
        return _indicators(columns, name, column, levels, missing, impute, groups)
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        raise columns.error(
            f"numbers or words in column {name!r}",
            f"values of type {kind}",
            "Convert the column, or leave it out of the table.",
        )
    values = flat(_decoded(column).cast(pa.float64()).fill_null(0.0), np.float64).copy()
    bad = np.flatnonzero(~np.isfinite(values) & ~missing)
    if len(bad):
        row = int(bad[0])
        raise columns.fault(name, "finite numbers", row, values[row], "Correct or remove the row.")
    if impute == "mean" and missing.any():
        if missing.all():
            raise columns.error(
                f"a value in column {name!r}", "none", "Leave the column out of the table."
            )
        values[missing] = values[~missing].mean()
    elif missing.any():
        values = values[_previous(columns, name, missing, groups)]
    return [name], values[:, None], ()


def _indicators(
    columns: Columns,
    name: str,
    column: pa.ChunkedArray,
    levels: Ordered[str] | None,
    missing: NDArray[np.bool_],
    impute: Impute | None,
    groups: Integers | None,
) -> tuple[list[str], Floats, tuple[str, ...]]:
    """Words as indicator columns, one for every level but the first."""
    if impute == "mean" and missing.any():
        raise columns.error(
            f"a value in every row of column {name!r}, since words have no mean",
            f"{int(missing.sum()):,} missing",
            "Fill them in, or use impute='previous' (--impute previous).",
        )
    words = np.asarray(_decoded(column).fill_null("").to_pylist(), dtype=object)
    if missing.any():
        words = words[_previous(columns, name, missing, groups)]
    found = sorted(set(words.tolist()))
    known = tuple(found if levels is None else levels)
    if len(known) > MOST_LEVELS:
        raise columns.error(
            f"at most {MOST_LEVELS:,} different words in column {name!r}",
            f"{len(known):,}",
            "Leave the column out of the table, or group its values.",
        )
    odd = [word for word in found if word not in known]
    if odd:
        row = int(np.flatnonzero(words == odd[0])[0])
        raise columns.fault(
            name,
            f"one of {', '.join(map(repr, known[:8]))}, as in training,",
            row,
            odd[0],
            "Correct the value, or fit the model again with data that have it.",
        )
    if len(known) < 2:
        raise columns.error(
            f"at least two different values in column {name!r}",
            f"{known[0]!r} in every row" if known else "none",
            "Leave the column out: what does not vary explains nothing.",
        )
    names = [f"{name}={level}" for level in known[1:]]
    values = np.column_stack([words == level for level in known[1:]]).astype(np.float64)
    return names, values, known


def _missing(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Which values are null, NaN or empty text."""
    plain = _decoded(column)
    missing = _as_bool(plain.is_null(nan_is_null=True))
    if is_words(plain.type):
        text = pc.utf8_trim_whitespace(plain)
        blank = pc.equal(text, "").fill_null(True)
        missing = missing | _as_bool(blank)
    return missing


def _blank_as_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Words with null in place of empty ones."""
    words = _decoded(column).cast(pa.string())
    blank = pc.equal(pc.utf8_trim_whitespace(words), "")
    return pc.if_else(blank, pa.scalar(None, pa.string()), words)


def _as_bool(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    values = column.to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=bool)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column
    return column.cast(value_type(column))


def _previous(
    columns: Columns, name: str, missing: NDArray[np.bool_], groups: Integers | None
) -> Integers:
    """For every row, the last row with a value, of the same sequence."""
    rows = np.arange(len(missing))
    source = np.maximum.accumulate(np.where(missing, -1, rows))
    if groups is not None:
        order = np.argsort(groups, kind="stable")
        inside = np.maximum.accumulate(np.where(missing[order], -1, rows))
        known = np.maximum(inside, 0)
        own = np.where(inside >= 0, order[known], -1)
        source = np.empty_like(own)
        source[order] = own
        elsewhere = groups[np.maximum(source, 0)] != groups
        source[(source >= 0) & elsewhere] = -1
    lost = np.flatnonzero(source < 0)
    if len(lost):
        first = int(lost[0])
        raise columns.error(
            f"a previous value for every missing one in column {name!r}",
            f"none before {columns.table.place(first)}",
            "Fill in the first value, or use impute='mean' (--impute mean).",
        )
    return source


Moments = Integers | Floats  # microseconds since 1970, or numbers in the unit of the data


@dataclass(frozen=True)
class _Origins:
    """When time 0 of each sequence was, in whole microseconds since 1970, and how many make a unit
    of time. Without dates both are None, and times are those of the table.
    """

    zeros: Integers | None
    per: float | None

    @staticmethod
    def of(data: Dataset) -> _Origins:
        dated = data.dates(0) if len(data) else None
        context = data.context
        if dated is None or context is None or context.origin is None:
            return _Origins(None, None)
        microseconds = np.rint(context.origin * 1e6)
        zeros = microseconds.astype(np.int64)
        return _Origins(zeros, SECONDS[data.unit] * 1e6)

    @property
    def differ(self) -> bool:
        """Whether sequences have origins of their own."""
        if self.zeros is None:
            return False
        return bool((self.zeros != self.zeros[0]).any())

    def times(self, i: int, moments: Moments) -> Floats:
        """Moments in the time of sequence ``i``; whole microseconds are subtracted before they are
        divided, as readers do with events, so that equal moments are equal times.
        """
        if self.zeros is None or self.per is None:
            return np.asarray(moments, dtype=np.float64)
        since = moments - self.zeros[i]
        return since / self.per


@dataclass(frozen=True)
class _Intervals:
    """Intervals in the time of each sequence: ``of(i)`` gives starts and stops in order."""

    starts: Moments
    stops: Moments
    rows: list[Integers] | None  # by sequence; None where all sequences have them all
    origins: _Origins

    def of(self, i: int) -> tuple[Floats, Floats]:
        own: slice | Integers = slice(None)
        if self.rows is not None:
            own = self.rows[i]
        starts = self.origins.times(i, self.starts[own])
        stops = self.origins.times(i, self.stops[own])
        return starts, stops


class _Beside:
    """A table beside the events, opened: its columns by role, and its times in the time of the
    sequences.
    """

    def __init__(self, source: object, *, what: str, data: Dataset, timezone: str | None) -> None:
        self.what = what
        self.data = data
        self.timezone = timezone
        self.log = data.log or LogFormat("time")
        self.origins = _Origins.of(data)
        self.table = open_table(source)
        self.names = list(self.table.schema.names)
        twice = next((name for name in self.names if self.names.count(name) > 1), None)
        if twice is not None:
            raise self.table.error(f"one column {twice!r}", "several", "Rename or drop the others.")
        self.plain = {plain_name(name): name for name in self.names}
        self.sequence = _sequence_column(self.names, self.log)

    def intervals(self) -> _Intervals:
        """The columns of starts and stops, checked."""
        pairs = [(a, b) for a, b in INTERVALS if a in self.plain and b in self.plain]
        if not pairs:
            raise self.table.error(
                f"columns 'start' and 'stop' of {self.what}",
                f"{', '.join(map(repr, self.names)) or 'no columns'}",
                "Rename the columns.",
            )
        first, last = pairs[0]
        start = self.plain[first]
        stop = self.plain[last]
        columns = self._open([start, stop])
        starts = self._moments(columns, start)
        stops = self._moments(columns, stop)
        wrong = np.flatnonzero(stops <= starts)
        if len(wrong):
            row = int(wrong[0])
            raise self.table.error(
                f"intervals of {self.what} whose start is before their stop",
                self._interval(starts, stops, row),
                "Correct the row.",
            )
        rows = self._rows(columns)
        parts = _parts(starts, rows)
        ordered = [part[np.argsort(starts[part], kind="stable")] for part in parts]
        for part in ordered:
            self._check_apart(starts[part], stops[part], part)
        if rows is not None:
            return _Intervals(starts, stops, ordered, self.origins)
        order = ordered[0]
        return _Intervals(starts[order], stops[order], None, self.origins)

    def _check_apart(self, starts: Moments, stops: Moments, rows: Integers) -> None:
        """Refuse intervals, in the order of their starts and from these rows, that overlap."""
        late = np.flatnonzero(starts[1:] < stops[:-1])
        if not len(late):
            return
        one = int(late[0])
        first = self._interval(starts, stops, one, int(rows[one]))
        second = self._interval(starts, stops, one + 1, int(rows[one + 1]))
        raise self.table.error(
            f"intervals of {self.what} that do not overlap",
            f"{first} and {second}",
            "Join them into one row, or correct one of them.",
        )

    def _interval(
        self, starts: Moments, stops: Moments, number: int, row: int | None = None
    ) -> str:
        """Interval ``number`` and its place in the table, by default the row of that number."""
        start = self._shown(starts[number])
        stop = self._shown(stops[number])
        place = self.table.place(number if row is None else row)
        return f"{start} to {stop} at {place}"

    def steps(
        self, impute: Impute | None, levels: Levels, value: bool = False, earlier: bool = False
    ) -> tuple[Steps, dict[str, tuple[str, ...]], list[str]]:
        """The columns of values as step functions of every sequence, the levels of words, and
        notes. With ``value`` there is one column, that of an exposure; with ``earlier`` also those
        rows are kept that no longer hold when a window begins.
        """
        time = self._time()
        names = [name for name in self.names if name not in (time, self.sequence)]
        if value:
            names = self._value(names)
        if not names:
            raise self.table.error(
                f"a column of {self.what} beside the times",
                f"only {time!r}",
                "Add one.",
            )
        columns = self._open([time, *names])
        if not len(columns):
            raise self.table.error(
                f"at least one row of {self.what}",
                "a table without rows",
                "Check the file.",
            )
        moments = self._moments(columns, time)
        rows = self._rows(columns)
        groups = None
        if rows is not None:
            groups = np.full(len(moments), -1, dtype=np.int64)
            for i, part in enumerate(rows):
                groups[part] = i
        moments = self._told_apart(moments, rows)
        self._check_rising(moments, rows)
        found: list[Floats] = []
        labels: list[str] = []
        known: dict[str, tuple[str, ...]] = {}
        for name in names:
            own, values, words = encode(columns, name, levels.get(name), impute, groups)
            labels += own
            found.append(values)
            if words:
                known[name] = words
        steps, notes = self._laid(moments, np.column_stack(found), labels, rows, earlier)
        return steps, known, notes

    def _laid(
        self,
        moments: Moments,
        values: Floats,
        labels: list[str],
        rows: list[Integers] | None,
        earlier: bool,
    ) -> tuple[Steps, list[str]]:
        """Step functions of every sequence: rows from the last one before its window on, or with
        ``earlier`` all before it too. Where sequences have origins of their own, rows far after the
        window are left out.
        """
        data = self.data
        times = [np.zeros(0)]
        found = [np.zeros((0, len(labels)))]
        offsets = [0]
        early = 0
        for i in range(len(data)):
            own: slice | Integers = slice(None)
            if rows is not None:
                own = rows[i]
            when = self.origins.times(i, moments[own])
            first = self._first(i, when)
            last = len(when)
            start = float(data.starts[i])
            stop = float(data.stops[i])
            if last > 1:
                spacing = np.median(np.diff(when))
                early += bool(when[-1] + spacing < stop)
            if self.origins.differ:
                needed = int(np.searchsorted(when, 2 * stop - start))
                last = max(first + 1, needed)
            first = 0 if earlier else first
            times.append(when[first:last])
            found.append(values[own][first:last])
            offsets.append(offsets[-1] + len(times[-1]))
        steps = Steps(
            names=tuple(labels),
            times=np.concatenate(times),
            values=np.concatenate(found),
            offsets=np.array(offsets, dtype=np.int64),
        )
        notes = []
        if early:
            notes.append(
                f"{self.what}: the table ends before the window of {early:,} of {len(data):,} "
                "sequences does; its last values are carried forward"
            )
        return steps, notes

    def _first(self, i: int, when: Floats) -> int:
        """The row that holds at the start of the window of sequence ``i``."""
        start = float(self.data.starts[i])
        first = int(np.searchsorted(when, start, side="right")) - 1
        if first >= 0:
            return first
        dates = self.data.dates(i)
        begins = "nowhere"
        if len(when):
            begins = shown(dates, float(when[0]))
        raise self.table.error(
            f"{self.what} from the start of the window, {shown(dates, start)}, on",
            f"a table that begins at {begins} for sequence {self.data.ids[i]}",
            "Add a row with the value at the start, or begin the window later (window=).",
        )

    def _time(self) -> str:
        if self.log.time in self.names:
            return self.log.time
        return guess_time(self.table)

    def _value(self, names: list[str]) -> list[str]:
        if len(names) == 1:
            return names
        usual = [name for name in names if plain_name(name) in (EXPOSURE, "value")]
        if len(usual) == 1:
            return usual
        raise self.table.error(
            "one column of exposure, called 'exposure' or 'value'",
            f"{', '.join(map(repr, names)) or 'none'}",
            "Rename or drop columns.",
        )

    def _open(self, names: list[str]) -> Columns:
        wanted = list(names)
        if self.sequence and self.sequence not in wanted:
            wanted.append(self.sequence)
        return open_columns(self.table, wanted)

    def _rows(self, columns: Columns) -> list[Integers] | None:
        """The rows of each sequence, in file order; None where the table is for all of them."""
        if self.sequence is None:
            return None
        numbered, ids = columns.labels(self.sequence)
        place = {id: i for i, id in enumerate(ids)}
        known = [place.get(id, -1) for id in self.data.ids]
        if all(number < 0 for number in known):
            raise self.table.error(
                f"ids of sequences in column {self.sequence!r}, such as {self.data.ids[0]!r}",
                f"{', '.join(map(repr, ids[:3])) or 'no rows'}",
                "Correct the ids, or leave the column out if the table holds for all sequences.",
            )
        code = numbered.code()
        order = np.argsort(code, kind="stable")
        edges = np.searchsorted(code[order], np.arange(1, len(ids)))
        rows = np.split(order, edges)
        rows.append(np.zeros(0, dtype=np.int64))  # number -1: of sequences that the table lacks
        return [rows[number] for number in known]

    def unknown(self) -> list[str]:
        """A note on sequences of the table that have no events."""
        if self.sequence is None:
            return []
        _, ids = open_columns(self.table, [self.sequence]).labels(self.sequence)
        lost = sorted(set(ids) - set(self.data.ids))
        if not lost:
            return []
        return [
            f"{self.what}: {len(lost):,} of its sequences, such as {lost[0]}, have no events and "
            "are left out, so that rates are too high; --entities with a table of all sequences "
            "adds them"
        ]

    def _moments(self, columns: Columns, name: str) -> Moments:
        """A column of times: microseconds since 1970 where the events have dates, else numbers."""
        dated = self.data.dates(0) if len(self.data) else None
        kind = columns.type(name)
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if dated is None:
            if not (number or pa.types.is_decimal(kind)):
                raise self.table.error(
                    f"numbers in column {name!r}, as the times of the events are",
                    f"values of type {kind}",
                    "Write the times in the unit of the events, or read those from timestamps.",
                )
            return columns.floats(name)
        column = columns.take(name)
        fault = partial(columns.fault, name)
        clock = read_clock(column, dated.zone, None, fault)
        if clock is None:
            raise self.table.error(
                f"timestamps in column {name!r}, as the events have",
                f"values of type {kind}",
                "Write the times as the events' are, such as 2025-06-03 14:00.",
            )
        if clock.zone is not None and dated.zone is None:
            raise self.table.error(
                f"times without a zone in column {name!r}, as the events have",
                f"times with one, such as {str(column[0])!r}",
                "Write all times in one way, or name the zone of the events with timezone= "
                "(--timezone).",
            )
        if self.log.zoned and self.timezone is None and not self._zoned(column, number):
            raise self.table.error(
                f"times with a zone in column {name!r}, as the events have",
                f"times without one, such as {str(column[0])!r}",
                "Write all times in one way, or name the zone with timezone= (--timezone).",
            )
        return clock.in_ticks_of(MICROSECONDS)

    def _zoned(self, column: pa.ChunkedArray, number: bool) -> bool:
        """Whether a column of timestamps names its zone."""
        from fourpoint.data.stamps import has_zone

        kind = value_type(column)
        if pa.types.is_timestamp(kind):
            return kind.tz is not None
        if is_words(kind):
            return not len(column) or has_zone(str(column[0].as_py()))
        return number

    def _told_apart(self, moments: Moments, rows: list[Integers] | None) -> Moments:
        """Moments in which the second of two equal local times is that of the hour that clocks
        repeat: rows of such a table rise.
        """
        zone = self.data.log.zone if self.data.log else None
        if self.origins.zeros is None or not zone:
            return moments
        stamps = pa.array(moments.astype(np.int64)).view(pa.timestamp("us", zone))
        wall = pc.local_timestamp(stamps)
        late = pc.assume_timezone(wall, zone, ambiguous="latest", nonexistent="latest")
        later = flat(late)
        found = moments.copy()
        for part in _parts(moments, rows):
            repeated = np.diff(moments[part]) == 0
            again = part[1:][repeated]
            found[again] = later[again]
        return found

    def _check_rising(self, moments: Moments, rows: list[Integers] | None) -> None:
        for part in _parts(moments, rows):
            own = moments[part]
            back = np.flatnonzero(np.diff(own) <= 0)
            if not len(back):
                continue
            i = int(back[0])
            first = self._shown(own[i])
            second = self._shown(own[i + 1])
            raise self.table.error(
                f"rising times of {self.what}",
                f"{second} at {self.table.place(int(part[i + 1]))} after {first}",
                "Sort the rows, and keep one for each time.",
            )

    def _shown(self, moment: float) -> str:
        """A moment of this table as a date where the events have dates."""
        times = self.origins.times(0, np.asarray([moment]))
        return shown(self.data.dates(0), float(times[0]))


def _parts(moments: Moments, rows: list[Integers] | None) -> list[Integers]:
    """The rows of each sequence; all rows in one part where all sequences have them all."""
    if rows is None:
        return [np.arange(len(moments))]
    return rows


def _with_covariates(data: Dataset, table: _Beside, tables: Tables, notes: list[str]) -> Dataset:
    period = tables.covariates_as_of
    earlier = period is not None
    steps, levels, said = table.steps(tables.impute, tables.levels or {}, earlier=earlier)
    notes += said
    if period is not None:
        steps = steps_as_of(steps, data, period)
    context = data.context or Context()
    covariates = steps
    if context.covariates is not None:
        covariates = merged(context.covariates, steps)
    context = replace(context, covariates=covariates)
    log = data.log or LogFormat("time")
    log = replace(log, levels={**log.levels, **levels})
    if period is not None:
        log = replace(log, as_of=period_text(period))
    return replace(data, context=context, log=log)


def merged(first: Steps, second: Steps) -> Steps:
    """The columns of two step functions of the same sequences in one.

    >>> both = merged(
    ...     Steps.constant(["age"], [[40.0]]),
    ...     Steps(("x",), np.array([0.0, 2.0]), np.array([[1.0], [5.0]]), np.array([0, 2])),
    ... )
    >>> both.names, both.values.tolist()
    (('age', 'x'), [[40.0, 1.0], [40.0, 5.0]])
    """
    shared = [name for name in first.names if name in second.names]
    if shared:
        raise EventDataError(
            "covariates with different names",
            f"{shared[0]!r} twice",
            "Rename one of the columns, or leave one out.",
        )
    times = []
    values = []
    for i in range(len(first.offsets) - 1):
        when = np.union1d(first.times[first.row(i)], second.times[second.row(i)])
        # The first value of either also holds before its time: one row at the earliest suffices.
        times.append(when)
        values.append(np.hstack([first.at(i, when), second.at(i, when)]))
    return Steps(
        names=(*first.names, *second.names),
        times=np.concatenate(times),
        values=np.concatenate(values),
        offsets=offsets_of([len(when) for when in times]),
    )


def _exposure(data: Dataset, table: _Beside, notes: list[str]) -> Steps:
    """The exposure of a table."""
    steps, _, said = table.steps(None, {}, value=True)
    notes += said
    exposure = steps.values[:, 0]
    negative = np.flatnonzero(exposure < 0)
    if len(negative):
        j = int(negative[0])
        i = int(np.searchsorted(steps.offsets, j, side="right")) - 1
        begin = shown(data.dates(i), float(steps.times[j]))
        raise table.table.error(
            "an exposure of at least 0",
            f"{exposure[j]:g} from {begin} on",
            "Correct the value.",
        )
    return replace(steps, names=(EXPOSURE,))


def _times_exposure(data: Dataset, steps: Steps) -> Dataset:
    """The data with its exposure, if it has one, times another; events where it is 0 are
    refused.
    """
    context = data.context or Context()
    if context.exposure is not None:
        known = replace(context.exposure, names=("known",))
        both = merged(known, steps)
        product = both.values[:, :1] * both.values[:, 1:]
        steps = replace(both, names=(EXPOSURE,), values=product)
    _check_unrecorded(data, steps)
    context = replace(context, exposure=steps)
    return replace(data, context=context)


def _recorded(data: Dataset, gaps: list[tuple[Floats, Floats]]) -> Steps:
    """An exposure of 0 in the gaps of each sequence and of 1 elsewhere."""
    times = []
    values = []
    for i, (starts, stops) in enumerate(gaps):
        begin = float(data.starts[i])
        edges = np.unique(np.concatenate([[begin], starts, stops]))
        gap = np.searchsorted(starts, edges, side="right") - 1
        inside = gap >= 0
        inside[inside] = edges[inside] < stops[gap[inside]]
        recorded = 1.0 - inside
        changes = np.append(True, np.diff(recorded) != 0)
        times.append(edges[changes])
        values.append(recorded[changes])
    return Steps(
        names=(EXPOSURE,),
        times=np.concatenate(times),
        values=np.concatenate(values)[:, None],
        offsets=offsets_of([len(when) for when in times]),
    )


def _around(data: Dataset, observed: _Intervals) -> tuple[Dataset, list[tuple[Floats, Floats]]]:
    """The data, and the gaps of each sequence around the intervals that were observed. A window
    that was read off the events becomes that from the sequence's first interval to its last; where
    times are numbers, 0 stays their origin.
    """
    gaps = []
    dated = observed.origins.zeros is not None
    starts = data.starts.copy()
    stops = data.stops.copy()
    for i in range(len(data)):
        begins, ends = observed.of(i)
        if not len(begins):
            raise EventDataError(
                "intervals that were observed for every sequence",
                f"none for sequence {data.ids[i]}",
                "Add a row for it, or leave the sequence out.",
            )
        if data.inferred:
            _check_observed(data, i, begins[0], ends[-1])
            starts[i] = begins[0] if dated else min(0.0, begins[0])
            stops[i] = ends[-1]
        left = np.append(starts[i], ends)
        right = np.append(begins, stops[i])
        some = right > left
        gaps.append((left[some], right[some]))
    data = replace(data, starts=starts, stops=stops, inferred=False)
    return data, gaps


def _check_observed(data: Dataset, i: int, begin: float, end: float) -> None:
    """Refuse events of sequence ``i`` before or after the time in which it was observed."""
    own = data.times[data.row(i)]
    outside = np.flatnonzero((own < begin) | (own > end))
    if not len(outside):
        return
    event = int(outside[0])
    dates = data.dates(i)
    raise UnrecordedEvent(
        f"events from {shown(dates, begin)} to {shown(dates, end)}, when the sequence was observed",
        f"{shown(dates, float(own[event]))} at event {event} of sequence {data.ids[i]}",
        "Mend the interval, or drop the event.",
    )


def _check_unrecorded(data: Dataset, exposure: Steps) -> None:
    """Refuse events at times of exposure 0, with the date and the interval."""
    for i in range(len(data)):
        own = data.times[data.row(i)]
        lost = np.flatnonzero(exposure.at(i, own)[:, 0] == 0)
        if not len(lost):
            continue
        event = int(lost[0])
        steps = exposure.times[exposure.row(i)]
        step = int(np.searchsorted(steps, own[event], side="right")) - 1
        dates = data.dates(i)
        begin = shown(dates, float(steps[max(step, 0)]))
        end = "the end"
        if step + 1 < len(steps):
            end = shown(dates, float(steps[step + 1]))
        raise UnrecordedEvent(
            f"no event from {begin} to {end}, when nothing was recorded (exposure 0)",
            f"{shown(dates, float(own[event]))} at event {event} of sequence {data.ids[i]}",
            "Correct the interval or the exposure, or drop the event.",
        )
