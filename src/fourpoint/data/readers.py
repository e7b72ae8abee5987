"""Event data from anywhere: tables of one row per event, in files (CSV, TSV, JSON Lines, Parquet,
Arrow) or in memory.

    open the table -> choose its columns -> read times, marks and sequences -> lay events out in
    windows -> Dataset

What is decided on the user's behalf is reported in notes, each of which names the option to decide
otherwise. Our own Parquet (:mod:`fourpoint.data.stored`) is read as it says. Faults are
:class:`EventDataError`, with the file and the row or line. All work is on whole columns, so that
tens of millions of rows are read in seconds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from fourpoint.data.clocks import Clock, check_zone, read_clock
from fourpoint.data.columns import (
    Columns,
    decimal_commas,
    give_back,
    is_words,
    open_columns,
    read_marks,
    read_splits,
    value_type,
)
from fourpoint.data.context_tables import (
    Impute,
    Levels,
    Tables,
    UnrecordedEvent,
    checked_impute,
    encode,
    merged,
    with_tables,
)
from fourpoint.data.entities import (
    Entities,
    SequenceColumns,
    constant_rows,
    ids_in_common,
)
from fourpoint.data.grouping import Numbered
from fourpoint.data.known import Known
from fourpoint.data.layouts import (
    Edges,
    Layout,
    TimeSplits,
    Window,
    lay_calendar,
    lay_numbers,
    lay_stamps,
    split_times,
)
from fourpoint.data.opened import Table, reason
from fourpoint.data.parquet_files import are_files
from fourpoint.data.places import Bounds, Place, read_places, read_projected
from fourpoint.data.roles import Roles, choose_roles, named_columns
from fourpoint.data.stamps import LONGEST, SPLIT_DATE, has_zone
from fourpoint.data.stored import FEATURE, place_in, stored_names, stored_windows, write
from fourpoint.data.stored_context import stored_context
from fourpoint.data.tables import open_table
from fourpoint.events import Context, Dataset, EventDataError, Steps, Ties, UserError
from fourpoint.events.dates import unit_named
from fourpoint.log_format import DATES, EPOCH, STAMPS, LogFormat
from fourpoint.sanitising import console_text

__all__ = ["GUESS", "Asked", "Reading", "describe_choices", "read", "read_with_notes", "write"]

AS_GIVEN = "as given"
FAULTS_OF_FILES = (pa.ArrowException, OSError, UnicodeError)


def read(
    source: object,
    *,
    time: str | None = None,
    mark: str | None = None,
    sequence: str | None = None,
    place: Place | None = None,
    bounds: Bounds | None = None,
    window: Window | None = None,
    time_unit: str | None = None,
    timezone: str | None = None,
    ties: Ties = "keep",
    sort: bool = False,
    marks: Ordered[str] | None = None,
    unit: str = "",
    gaps: object = None,
    observed: object = None,
    exposure: object = None,
    covariates: object = None,
    sequence_covariates: str | Ordered[str] = (),
    event_features: str | Ordered[str] = (),
    impute: Impute | None = None,
    levels: Levels | None = None,
    project: bool | tuple[float, float] = False,
    entities: object = None,
    covariates_as_of: float | str | None = None,
) -> Dataset:
    """Read events, one per row, from a file or a table in memory.

    Args:
        source: a path to CSV or TSV (also .gz, .zst), JSON Lines, Parquet or Arrow; a folder or
            URL of Parquet files; a pandas or
            polars DataFrame; an Arrow table; anything with the Arrow or data frame interchange
            protocol; or a mapping from names to columns.
        time: the column of times: numbers, timestamps, dates, ISO 8601 text, or epochs. "date+time"
            (or "date,time") joins a column of dates with one of times of day. Guessed by default.
        mark: the column of types: text or whole numbers; "none" for no marks. Guessed by default.
        sequence: the column that says which sequence a row belongs to; "hour", "day" or "week" for
            one sequence per unit of the calendar; "none" for a single one. Guessed by default.
        place: the column of numbers, or the columns, that say where an event was: ("longitude",
            "latitude"), or also a magnitude.
        bounds: the box that was observed: {"longitude": (-180, 180), ...}, one pair for each column
            of the place, or a :class:`Box`, as that of a fitted model. What is not given is read
            off the events, with a note.
        window: the observed window: two numbers (in the unit of time, for every sequence), two
            times such as ("2024-01-01", "2025-01-01"), "all" (from the first event of the data to
            the last, for every sequence) or "each" (from the first event of a sequence to its
            last). A column with a value for each sequence may stand for either of the two:
            ("first_contact", "2025-01-01"). By default it is what the file says; else whole units
            of the calendar, "all" for stamps, and for numbers min(0, t_1) to t_N of each sequence;
            t_1 to t_N of a single log that is further from 0 than it is long.
        time_unit: the unit of the times that come back, for stamps ("hours"; by default by the
            length of the windows). For plain numbers it names the unit they are in; "as given" also
            keeps large numbers from being read as epochs.
        timezone: the zone of stamps that name none, and of the calendar, such as "Europe/Berlin".
        ties: what to do with events of one sequence at one time: "keep", "error", "jitter" or
            "drop".
        sort: put the events of each sequence in order of time; without it unsorted times are an
            error.
        marks: the names of the types in order, as a fitted model knows them; others are refused. By
            default those found. Our own files know theirs: what they store, or the numbers they
            hold, goes first.
        unit: a label for the time axis, where numbers have a unit of their own.
        gaps: a table (a path, or anything that ``source`` may be) of intervals in which nothing was
            recorded: columns ``start``, ``stop`` and optionally ``sequence``.
        observed: in place of gaps, a table of the intervals that were observed.
        exposure: a table of a known factor of the rate: columns ``time``, ``exposure`` and
            optionally ``sequence``; a value holds from its time on.
        covariates: a table of covariates of time: ``time``, columns of numbers or words, and
            optionally ``sequence``; values hold from their time on.
        sequence_covariates: columns of ``entities``, or of ``source`` if they are constant in each
            sequence (age, plan).
        event_features: columns of numbers known of each event (a magnitude, an amount); "none"
            leaves out those stored in our own files.
        impute: what stands for missing values of covariates: "previous" or "mean"; by default they
            are refused.
        levels: the values of each covariate of words in order, as a fitted model knows them
            (``data.log.levels``); by default those found.
        project: take ``place`` as longitude and latitude in degrees and project it to x and y in km
            by the azimuthal equidistant projection about the mean of the events, or about this
            longitude and latitude. Longitudes may wrap; bounds are in km.
        entities: a table of sequences, one row for each, with the column of sequences and any
            others, which ``window`` and ``sequence_covariates`` may name. Those without events are
            sequences too. Columns ``start`` and ``stop`` are the windows where none is given.
        covariates_as_of: use covariates of time as they were when the day ("1d"), the week ("1w")
            or a part of the day ("6h") began: what a forecast made then can know. See
            :func:`fourpoint.covariates_as_of`.

    Returns: The sequences in order of first appearance. What was guessed or decided is printed to
        stderr, except for our own files. Fails with :class:`EventDataError` on anything that is not
        event data.

    >>> data = read(
    ...     {"when": ["2024-05-01 09:30", "2024-05-03 17:00"], "what": ["fire", "flood"]},
    ...     time="when",
    ...     mark="what",
    ...     sequence="day",
    ... )
    >>> data.ids, data[0].times.tolist(), data[0].stop, data.unit, data.marks.names
    (('2024-05-01', '2024-05-02', '2024-05-03'), [9.5], 24.0, 'hours', ('fire', 'flood'))
    """
    found = read_with_notes(
        source,
        Asked(
            time,
            mark,
            sequence,
            place,
            bounds,
            window,
            time_unit,
            timezone,
            ties,
            sort,
            marks,
            unit,
            gaps,
            observed,
            exposure,
            covariates,
            sequence_covariates,
            event_features,
            impute,
            levels,
            project,
            entities,
            covariates_as_of,
        ),
    )
    if not found.roles.own:
        for note in found.notes:
            print(console_text(note), file=sys.stderr)
    return found.data


@dataclass(frozen=True)
class Asked:
    """What the user asks for: the arguments of :func:`read`, which says what each means. None is to
    be guessed.
    """

    time: str | None = None
    mark: str | None = None
    sequence: str | None = None
    place: Place | None = None
    bounds: Bounds | None = None
    window: Window | None = None
    time_unit: str | None = None
    timezone: str | None = None
    ties: Ties = "keep"
    sort: bool = False
    marks: Ordered[str] | None = None
    unit: str = ""
    gaps: object = None
    observed: object = None
    exposure: object = None
    covariates: object = None
    sequence_covariates: str | Ordered[str] = ()
    event_features: str | Ordered[str] = ()
    impute: Impute | None = None
    levels: Levels | None = None
    project: bool | tuple[float, float] = False
    entities: object = None
    covariates_as_of: float | str | None = None
    known_zone: str | None = None  # of times without one, where no timezone is asked for
    known_origin: str | None = None  # timestamp of time 0, as ISO 8601, where sequences share it
    known_noon: bool | None = None  # whether dates are read as noon, as in training

    def tables(self) -> Tables:
        """What is given beside the events."""
        return Tables(
            self.gaps,
            self.observed,
            self.exposure,
            self.covariates,
            self.impute,
            self.levels,
            self.timezone or self.known_zone,
            self.covariates_as_of,
        )


GUESS = Asked()


@dataclass(frozen=True)
class Reading:
    """A data set and how it came about. ``origin`` is when its time 0 was, ``moved`` whether rows
    had to be sorted.
    """

    data: Dataset
    notes: tuple[str, ...]
    roles: Roles
    clock: Clock | None
    origin: str | None
    moved: bool


def read_with_notes(source: object, asked: Asked = GUESS) -> Reading:
    """As :func:`read`, but what was decided comes back as notes instead of being printed.

    >>> for note in read_with_notes(
    ...     {"Time": [0.5, 0.5, 2.0], "Type": ["a", "b", "a"]}, Asked(window=(0, 3))
    ... ).notes:
    ...     print(note)
    columns: time 'Time', mark 'Type', one sequence (guessed; --time --mark --sequence to choose)
    50.0% of gaps are zero (ties kept; --ties error|jitter|drop)
    """
    if asked.timezone is not None:
        check_zone(asked.timezone)
    if are_files(source):
        from fourpoint.data.event_files import read_files

        return read_files(str(source), asked)
    table = open_table(source)
    try:
        sequence = asked.sequence or ids_in_common(table, asked.entities)
        roles = choose_roles(
            table,
            asked.time,
            asked.mark,
            sequence,
            asked.place,
            complete=asked.entities is None,
        )
    except FAULTS_OF_FILES as error:
        raise _damaged(table, error) from error
    return read_opened(table, roles, asked)


def read_opened(table: Table, roles: Roles, asked: Asked) -> Reading:
    """Read a table whose columns have been chosen."""
    try:
        return _read(table, roles, asked)
    except FAULTS_OF_FILES as error:
        raise _damaged(table, error) from error


def _damaged(table: Table, error: Exception) -> EventDataError:
    """Damage that shows only while columns are taken apart; faults of the data have their own
    words.
    """
    return table.error(
        "a table that can be read",
        f"a fault inside ({reason(error)})",
        "Write or download it again.",
    )


def describe_choices(data: Dataset, ties: Ties = "keep") -> list[str]:
    """What was decided on the user's behalf when ``data`` was read, one line each: windows read off
    events, and ties.

    >>> from fourpoint.events import Sequence
    >>> describe_choices(Dataset.from_sequences([Sequence([1.0, 1.0, 2.0], start=0, stop=3)]))
    ['50.0% of gaps are zero (ties kept; --ties error|jitter|drop)']
    """
    notices = []
    if data.inferred and len(data) == 1 and data.starts[0] > 0:
        notices.append(
            "no window in the file: events are further from 0 than from one another, so the log is "
            "taken as observed from its first event to its last; --window A B overrides"
        )
    elif data.inferred:
        full = data.lengths > 0
        first = data.times[data.offsets[:-1][full]]
        if (data.starts[full] == first).all() and (first != 0).any():
            begin = "its first event to its last"
        else:
            begin = "min(0, first event) to its last event"
        notices.append(
            f"no windows in the file: each sequence is taken as observed from {begin}; --window "
            "A B overrides"
        )
        last = data.times[data.offsets[1:][full] - 1]
        single = int((data.stops[full] > last).sum())
        if single:
            notices.append(
                f"{single:,} of {len(data):,} sequences have all events at the window's "
                "start: their windows are 1 long"
            )
    return notices + _tie_notices(data, ties)


def _tie_notices(data: Dataset, ties: Ties) -> list[str]:
    share = _tied(data) if ties == "keep" else 0.0
    if share:
        digits = ".1f" if share >= LEAST_SHOWN else ".1g"
        percent = format(100 * share, digits)
        return [f"{percent}% of gaps are zero (ties kept; --ties error|jitter|drop)"]
    return []


def _tied(data: Dataset) -> float:
    """As ``data.tied``, without an array of gaps."""
    cuts = data.offsets[:-1][data.lengths > 0][1:]
    equal = np.count_nonzero(data.times[1:] == data.times[:-1])
    between = np.count_nonzero(data.times[cuts] == data.times[cuts - 1])  # of two sequences
    if equal == between:
        return 0.0
    return float((equal - between) / (data.events - 1 - len(cuts)))


def _read(table: Table, roles: Roles, asked: Asked) -> Reading:
    wanted = None if asked.time_unit in (None, AS_GIVEN) else unit_named(str(asked.time_unit))
    entities = None if asked.entities is None else Entities(asked.entities, roles)
    of_sequences = SequenceColumns(table, entities)
    edges = _edges(of_sequences, roles, asked)
    constant = _constant_columns(of_sequences, asked)
    features = named_columns(table, _feature_columns(table, roles, asked), "event features")
    edge_columns = [] if edges is None else [name for name in edges.named if name is not None]
    wanted_columns = [*roles.columns(), *edge_columns, *constant, *features]
    of_events = [name for name in wanted_columns if not of_sequences.of_entities(name)]
    columns = open_columns(table, list(dict.fromkeys([*roles.columns(), *of_events])))
    # A column may have a role of its own as well, such as a magnitude that is also a place.
    twice = [name for name in (*constant, *features) if name in columns.held]
    extras = Columns(table, {name: columns.held[name] for name in twice}, len(columns))
    with_commas = [
        name
        for name in twice
        if is_words(extras.type(name)) and decimal_commas(extras.held[name]) is not None
    ]
    known = stored_windows(columns) if roles.own else None
    if not len(columns) and known is None:
        raise columns.error(
            "at least one event",
            "a table without rows",
            "Check the query or program that wrote the file.",
        )
    numbered, ids = _sequences(columns, roles, known)
    ids = ids if entities is None else entities.joined(ids)
    give_back()
    raw = columns.held[roles.time].slice(0, RAW)
    clock = _clock(columns, roles, numbered, asked) if known is None else None
    layout = _layout(columns, roles, numbered, ids, clock, asked, wanted, known, edges)
    mark_ids, space = read_marks(
        columns, roles.mark, _names(columns, roles, asked.marks), roles.own
    )
    splits, by_time = _splits(columns, roles, layout, known)
    mark_ids = layout.group.arrange(mark_ids)
    centre: tuple[float, float] | None = None
    if asked.project is False:
        places, box, of_places = read_places(columns, roles.places, asked.bounds, roles.own)
    else:
        known_centre = None if asked.project is True else asked.project
        places, box, of_places, centre = read_projected(
            columns, roles.places, asked.bounds, known_centre
        )
    give_back()
    context, log = _context(columns, roles, layout, raw, clock, known, bool(space.names))
    if edges is not None and asked.window is not None:
        log = replace(log, window=tuple(map(str, edges.pair)))
    if centre is not None:
        log = replace(log, projected=roles.places, centre=centre)
    if by_time is not None:
        context, log = _cut_by_time(by_time, context, log)
    feature_names = tuple(name.removeprefix(FEATURE) for name in features)
    of_features = _features(extras, features, layout)
    try:
        data = Dataset(
            layout.times,
            mark_ids,
            layout.group.offsets,
            layout.starts,
            layout.stops,
            space if box is None else replace(space, box=box),
            ids=layout.ids,
            splits=splits,
            inferred=layout.inferred,
            unit=asked.unit or layout.unit or (known.unit if known else wanted or ""),
            name=(known.name if known else "") or table.name,
            places=None if places is None else layout.group.arrange(places),
            log=_with_names(log, context, feature_names),
            context=context,
            features=of_features,
            feature_names=feature_names,
        )
    except EventDataError as error:
        raise _placed(columns, roles, layout, error) from None
    data = _with_constant(data, extras, constant, layout, roles, asked, of_sequences)
    try:
        data, of_tables = with_tables(data, asked.tables())
    except UnrecordedEvent as error:
        raise _placed(columns, roles, layout, error) from None
    if data.context is not context:
        data = replace(data, log=_with_names(data.log, data.context, data.feature_names))
    try:
        data = data if asked.ties == "keep" else data.with_ties(asked.ties)
    except EventDataError as error:
        raise _placed(columns, roles, layout, error) from None
    notes: list[str] = []
    if roles.guessed and not roles.own:
        notes = [roles.line(), *roles.unshared_lines()]
    notes += [*(clock.notes if clock else ()), *layout.notes, *of_places, *of_tables]
    if with_commas:
        listed_names = " and ".join(map(repr, with_commas))
        notes.append(f"numbers of {listed_names} are read with decimal commas")
    if roles.maybe_places:
        options = " ".join(
            f"--place {name!r}" if " " in name else f"--place {name}" for name in roles.maybe_places
        )
        notes.append(
            f"{' and '.join(map(repr, roles.maybe_places))} look like a place, which is not "
            f"used ({options})"
        )
    notes += describe_choices(data, asked.ties) if clock is None else _tie_notices(data, asked.ties)
    return Reading(data, tuple(notes), roles, clock, layout.origin, layout.moved)


def _edges(of: SequenceColumns, roles: Roles, asked: Asked) -> Edges | None:
    """The columns that say when each sequence was observed: those that the window names, else those
    of the table of entities, else those of the file. None where no column says it.
    """
    window = asked.window
    if window is None:
        own = None if of.entities is None else of.entities.window()
        pair = own or roles.window
        return None if pair is None else Edges(of, pair, pair)
    if isinstance(window, str) or len(window) != 2:
        return None
    named = (of.named(window[0]), of.named(window[1]))
    if named == (None, None):
        return None
    if roles.sequence is None:
        raise of.table.error(
            "a column of sequences, for windows of sequences",
            "calendar windows" if roles.calendar else "one sequence",
            "Name the column with sequence= (--sequence), or pass a window of two times.",
        )
    return Edges(of, window, named)


def _constant_columns(of: SequenceColumns, asked: Asked) -> tuple[str, ...]:
    """The columns of covariates of sequences, in the order in which they are asked for."""
    wanted = listed(asked.sequence_covariates)
    names = [of.named(name) or name for name in wanted]
    own = [name for name in names if not of.of_entities(name)]
    exact = dict(zip(own, named_columns(of.table, own, "sequence covariates"), strict=False))
    return tuple(dict.fromkeys(exact.get(name, name) for name in names))


def _context(
    columns: Columns,
    roles: Roles,
    layout: Layout,
    raw: pa.ChunkedArray,
    clock: Clock | None,
    known: Known | None,
    marked: bool,
) -> tuple[Context | None, LogFormat]:
    """When the sequences began, or what else our own file says of them, and how they were read."""
    log = log_format(roles, raw, clock, layout.origin_tick, marked=marked)
    log = replace(log, noon=layout.noon)
    if clock is not None and layout.origins is not None:
        return Context(origin=layout.origins), log
    if known is None:
        return None, log
    context, stored = stored_context(columns, len(known.ids))
    if stored is None:
        return context, log
    origins = None if context is None else context.origin
    origin = None
    if origins is not None and len(origins) and bool((origins == origins[0]).all()):
        origin = iso(round(float(origins[0]) * 1e6), 1_000_000)
    return context, replace(log, zone=stored.zone, levels=stored.levels, origin=origin)


def _with_names(
    log: LogFormat | None, context: Context | None, features: tuple[str, ...]
) -> LogFormat:
    """How the data were read, with the names of covariates and event features."""
    log = log or LogFormat("t")
    context = context or Context()
    covariates = () if context.covariates is None else context.covariates.names
    exposure = False
    if context.exposure is not None:
        exposure = bool((~np.isin(context.exposure.values, (0.0, 1.0))).any())
    return replace(log, covariates=covariates, features=features, exposure=exposure)


def listed(names: str | Ordered[str]) -> list[str]:
    """Names of columns, also where they are given as one text with commas.

    >>> listed("age, plan"), listed(["age"])
    (['age', 'plan'], ['age'])
    """
    if isinstance(names, str):
        return [name.strip() for name in names.split(",") if name.strip()]
    return list(names)


def _feature_columns(table: Table, roles: Roles, asked: Asked) -> list[str]:
    """The columns of event features: those named, and in our own files those stored."""
    names = table.schema.names
    wanted = listed(asked.event_features)
    if wanted == ["none"]:
        return []
    if not roles.own:
        return wanted
    if wanted:
        return [name if name in names else FEATURE + name for name in wanted]
    return [name for name in names if name.startswith(FEATURE)]


def _features(extras: Columns, names: tuple[str, ...], layout: Layout) -> np.ndarray | None:
    if not names:
        return None
    if not len(extras):
        return np.zeros((0, len(names)))
    return layout.group.arrange(np.column_stack([extras.floats(name) for name in names]))


def _with_constant(
    data: Dataset,
    extras: Columns,
    names: tuple[str, ...],
    layout: Layout,
    roles: Roles,
    asked: Asked,
    of_sequences: SequenceColumns,
) -> Dataset:
    """The data with covariates that are constant in each sequence."""
    if not names:
        return data
    checked_impute(asked.impute)
    if roles.sequence is None:
        raise extras.error(
            "a column of sequences, for covariates of sequences",
            "calendar windows" if roles.calendar else "one sequence",
            "Name the column with sequence= (--sequence), or give a table of covariates.",
        )
    labels: list[str] = []
    found = []
    levels = {} if data.log is None else dict(data.log.levels)
    for name in names:
        known = (asked.levels or {}).get(name)
        source = of_sequences.opened(name, extras)
        own, values, words = encode(source, name, known, asked.impute, None)
        if words:
            levels[name] = words
            shown = np.array(words)[(values @ np.arange(1, len(words))).astype(np.int64)]
        else:
            shown = values[:, 0]
        found.append(values[of_sequences.rows(name, shown, layout.group, layout.ids)])
        labels += own
    steps = Steps.constant(labels, np.column_stack(found))
    context = data.context or Context()
    if context.covariates is not None:
        steps = merged(context.covariates, steps)
    log = replace(data.log or LogFormat("t"), levels=levels, constant=names)
    return replace(data, context=replace(context, covariates=steps), log=log)


def _names(columns: Columns, roles: Roles, marks: Ordered[str] | None) -> Ordered[str] | None:
    """The names of the types, where they are known. Whole numbers in our own files are the types
    themselves.
    """
    if not roles.own:
        return marks
    stored = stored_names(columns)
    if stored is None and roles.mark is not None and columns.is_text(roles.mark):
        return marks
    return stored


def _sequences(
    columns: Columns, roles: Roles, known: Known | None
) -> tuple[Numbered, tuple[str, ...]]:
    """Rows by sequence, and the ids. Windows of the calendar are numbered later, once the times are
    known.
    """
    if roles.sequence is None:
        offsets = np.array([0, len(columns)])
        return Numbered(np.zeros(1), np.zeros(0, dtype=np.int32), offsets), ("0",)
    numbered, ids = columns.labels(roles.sequence)
    if known is None:
        return numbered, tuple(ids)
    return numbered.renumbered(place_in(columns, known, ids)), known.ids


def _clock(columns: Columns, roles: Roles, numbered: Numbered, asked: Asked) -> Clock | None:
    """The times as stamps, or None where they are plain numbers."""
    name = roles.time
    kind = columns.type(roles.time)
    timezone = asked.timezone
    as_given = asked.time_unit == AS_GIVEN
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    clock = None
    if number and (roles.own or as_given or pa.types.is_decimal(kind)):
        pass
    elif number or pa.types.is_timestamp(kind) or pa.types.is_date(kind) or is_words(kind):
        column = columns.take(name)
        if is_words(kind):
            columns.check_words(column, LONGEST)
        try:
            clock = read_clock(
                column,
                timezone or asked.known_zone,
                numbered.code if roles.sequence else None,
                partial(columns.fault, name),
            )
        except EventDataError as error:
            # In our own format a column of words is of the wrong type as a whole.
            if not (roles.own and error.expected.startswith("numbers or timestamps")):
                raise
        columns.held[name] = column if clock is None else column.slice(0, 0)
    if clock is None and (timezone is not None or roles.calendar is not None):
        option = (
            f"timezone={timezone!r}" if timezone is not None else f"sequence={roles.calendar!r}"
        )
        raise columns.error(
            f"timestamps in column {name!r}, for {option}",
            f"values of type {kind}",
            "Name a column of timestamps with time=.",
        )
    if clock is not None and as_given:
        raise UserError(
            "a unit of time for stamps", f"time_unit={AS_GIVEN!r}", "Pass time_unit='hours', say."
        )
    return clock


def _layout(
    columns: Columns,
    roles: Roles,
    numbered: Numbered,
    ids: tuple[str, ...],
    clock: Clock | None,
    asked: Asked,
    unit: str | None,
    known: Known | None,
    edges: Edges | None,
) -> Layout:
    window = asked.window
    sort = asked.sort
    if isinstance(window, str) and window not in ("each", "all"):
        raise UserError(
            "a window of two numbers or times, 'each' or 'all'",
            f"{window!r}",
            "Pass window=(0, 24), say.",
        )
    given = {"start", "stop"} & set(columns.table.schema.names)
    if roles.own and len(given) == 1 and window is None and known is None:
        received = f"only {given.pop()!r}"
        raise columns.error(
            "columns 'start' and 'stop' together",
            received,
            "Add the other, or pass window=(start, stop).",
        )
    if clock is None:
        return lay_numbers(columns, roles, numbered, ids, window, sort, known, edges)
    if roles.calendar is not None:
        return lay_calendar(clock, roles, window, sort, unit, columns)
    origin = asked.known_origin
    noon = asked.known_noon
    return lay_stamps(columns, roles, clock, numbered, ids, window, sort, unit, origin, noon, edges)


def _splits(
    columns: Columns, roles: Roles, layout: Layout, known: Known | None
) -> tuple[np.ndarray | None, TimeSplits | None]:
    """The split of every sequence, or where one long sequence is cut by time."""
    if known is not None:
        return known.splits, None
    if roles.split is None:
        return None, None
    code, names = read_splits(columns, roles.split)
    by_time = split_times(columns, layout, names[code], roles.split)
    if by_time is not None:
        return None, by_time
    split = names[code]
    rows = constant_rows(columns.table, layout.group, layout.ids, split, roles.split)
    return split[rows], None


def _cut_by_time(
    found: TimeSplits, context: Context | None, log: LogFormat
) -> tuple[Context | None, LogFormat]:
    """The history period in the context, and the other cuts in the log."""
    if found.scored_from is not None:
        context = replace(context or Context(), scored_from=np.array([found.scored_from]))
    return context, replace(log, split_at=found.cuts)


def _placed(
    columns: Columns, roles: Roles, layout: Layout, error: EventDataError
) -> EventDataError:
    """An error about an event, with the row or line it came from; our own files name sequence and
    event alone.
    """
    received = error.received
    remedy = error.remedy
    found = re.search(r"event (\d+) of sequence (.*)$", received, re.DOTALL)
    if found and not roles.own and found[2] in layout.ids:
        position = int(layout.group.offsets[layout.ids.index(found[2])]) + int(found[1])
        received = f"{received} ({columns.table.place(layout.group.row(position))})"
        remedy = remedy.replace("sort=True", "sort=True (--sort)")
    return columns.error(error.expected, received, remedy)


LEAST_SHOWN = 0.0005  # share that a tenth of a percent shows
RAW = 1000  # first values of the column of times that are looked at
DATE_NUMBERS = (19000101, 22001231)


def log_format(
    roles: Roles, raw: pa.ChunkedArray, clock: Clock | None, origin: int | None, *, marked: bool
) -> LogFormat:
    """The columns in use and the clock; ``raw`` are the first times as the table has them,
    ``origin`` the tick of time 0.

    Sequences of our own files are replicates, and their column names no entity.
    """
    mark = roles.mark if marked else None
    columns = LogFormat(roles.time, mark, None if roles.own else roles.sequence, roles.calendar)
    if clock is None:
        return columns
    kind = value_type(raw)
    zoned, per_second, name = False, 1, STAMPS
    if is_words(kind):
        zoned = has_zone(str(raw[0].as_py()))
    elif pa.types.is_timestamp(kind):
        zoned = kind.tz is not None
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        zoned, per_second, name = _epoch(float(raw[0].as_py()), clock)
    return replace(
        columns,
        clock=name,
        per_second=per_second,
        zone=clock.zone,
        zoned=zoned,
        day_first=_day_first(raw, clock) if is_words(kind) else None,
        origin=None if origin is None else iso(origin, clock.rate),
    )


def iso(tick: int, rate: int) -> str:
    """A tick since 1970 as ISO 8601, with as many digits as it needs.

    >>> iso(1714548600, 1), iso(1714548600250000, 1_000_000)
    ('2024-05-01T07:30:00', '2024-05-01T07:30:00.25')
    """
    unit = {1: "s", 1000: "ms", 1_000_000: "us", 1_000_000_000: "ns"}[rate]
    text = str(np.array(tick).astype(f"datetime64[{unit}]"))
    return text.rstrip("0").rstrip(".") if "." in text else text


def _epoch(first: float, clock: Clock) -> tuple[bool, int, str]:
    """Whether numbers name a moment in UTC, how many make a second, and their kind."""
    if DATE_NUMBERS[0] <= first <= DATE_NUMBERS[1]:
        return False, 1, DATES
    seconds = int(clock.ticks[0]) / clock.rate
    power = round(np.log10(first / seconds) / 3) if seconds else 0
    return True, 1000**power, EPOCH


def _day_first(raw: pa.ChunkedArray, clock: Clock) -> bool | None:
    """Whether dates such as 5/1/2024 were read with the day first: the first row in which that
    makes a difference tells.
    """
    for text, tick in zip(raw.to_pylist(), clock.ticks.tolist(), strict=False):
        found = SPLIT_DATE.match(text)
        if found is None:
            return None
        parts = [int(part) for part in text.strip().split(found[1], 2)[:2]]
        if parts[0] != parts[1]:
            day = int(clock.text(tick)[8:10])
            return parts[0] == day
    return None
