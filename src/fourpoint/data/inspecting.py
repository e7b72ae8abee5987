"""A first look at a file of events: what its columns are taken for, how much there is and when, and
what to type next.

    fourpoint data inspect calls.csv

Rows need not be in order for a look; where they are not, it says so, and the command to run next
sorts them.

The look also says what kind of event data a table holds. A log without a column of sequences is one
long record, whether it follows the calendar or not: `fit` gives it terms of the calendar, which
continue past its end, while windows cut at midnight would lose the weekday, the events before
midnight, and every forecast beyond the day. A rhythm of period P is looked for in the phases of the
events,

    V_d = sum over events of period d of exp(2 pi i k t / P),    z = |sum_d V_d|^2 / sum_d |V_d|^2,

for k = 1 and 2. If periods are independent and none prefers a phase, z is about a unit exponential,
however the events of one period cluster: a single burst is no rhythm.

The timestamp resolution is the greatest common divisor of all differences of times.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence as Ordered
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fourpoint.data.calendar_windows import MONDAY, SPAN, By
from fourpoint.data.clocks import Clock, looks_like_time
from fourpoint.data.columns import open_columns, value_type
from fourpoint.data.date_time import joined_name, parts_of
from fourpoint.data.facts import facts, table_of
from fourpoint.data.readers import GUESS, Asked, Reading, listed, read_with_notes
from fourpoint.data.roles import NONE, plain_name
from fourpoint.data.tables import open_table
from fourpoint.events import Dataset
from fourpoint.events.dates import SECONDS, span_words
from fourpoint.ops.periodogram import COARSE, coarse_resolution, timestamp_resolution
from fourpoint.sanitising import console_text, plot_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

BARS = " ▁▂▃▄▅▆▇█"
BINS = 60
BUDGET = 60  # seconds of training that are recommended for a first fit
FEW_STEPS_BACK = 3  # where clocks may have been set back
MOST_LOOKED_AT = 1_000_000  # rows whose other columns are looked at
MOST_TYPES = 30  # values of a column of types
FEWEST_OF_TYPE = 20  # rows for each of them
AT_PEAKS = 2.0  # times as many copies by chance as at a constant rate, where the rate has a rhythm
MANY_TIES = 0.02  # share of zero gaps to remark on
TIMES_CHANCE = 10.0  # and times that of chance
TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?")
MAGNITUDES = ("magnitude", "mag")  # columns of an earthquake catalogue
ENTITIES_TEXT = """
    customer user client patient machine device account member store shop branch service server host
    node site sensor station vehicle post thread case employee student household
"""
ENTITIES = ENTITIES_TEXT.split()
# Columns of whole numbers that are codes of types, not amounts.
CODES = (
    "status status_code code response_code return_code error_code severity level priority state "
    "category_code type_code"
).split()


@dataclass(frozen=True)
class Histogram:
    """Counts between ``edges``, with words for the two ends."""

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]
    first: str
    last: str

    def line(self) -> str:
        """The counts as a row of blocks; a bin with anything in it is never blank.

        >>> Histogram(np.array([0, 1, 4, 8]), np.arange(5.0), "0", "4").line()
        ' ▁▄█'
        """
        highest = max(int(self.counts.max(initial=0)), 1)
        eighths = -(-self.counts * 8 // highest)
        return "".join(BARS[height] for height in eighths.tolist())


@dataclass(frozen=True)
class Inspection:
    """What :func:`inspect` found. Printed it is a table with pictures in blocks; ``plot`` draws it;
    ``command`` comes next.
    """

    source: str
    reading: Reading
    over_time: Histogram
    gaps: Histogram | None
    command: str
    kind: str

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for ``--json``."""
        data = self.reading.data
        roles = self.reading.roles
        counts = np.bincount(data.mark_ids, minlength=data.marks.count)
        box = data.marks.box
        bounds = None
        if box is not None:
            edges = zip(box.names, box.low, box.high, strict=True)
            bounds = {name: [low, high] for name, low, high in edges}
        return {
            "source": self.source,
            "columns": {
                "time": roles.time,
                "mark": roles.mark,
                "sequence": roles.calendar or roles.sequence,
                "place": list(roles.places),
                "guessed": list(roles.guessed),
            },
            "events": data.events,
            "sequences": len(data),
            "kind": self.kind,
            "unit": data.unit,
            "resolution": resolution_in_words(data, self.reading.clock),
            "span": [self.over_time.first, self.over_time.last],
            "origin": self.reading.origin,
            "tied": data.tied,
            "marks": {
                name: int(count) for name, count in zip(data.marks.names, counts, strict=False)
            },
            "box": bounds,
            "sorted": not self.reading.moved,
            "notes": list(self.reading.notes),
            "next": self.command,
        }

    def __rich__(self) -> Table:
        from rich.text import Text

        table = table_of(self.source, self._facts())
        for name, picture in (("over time", self.over_time), ("gaps", self.gaps)):
            if picture is None:
                continue
            room = max(1, len(picture.counts) - len(picture.first) - len(picture.last))
            ends = picture.first + " " * room + picture.last
            table.add_row("", "")
            table.add_row(name, Text(picture.line(), style="green"))
            table.add_row("", Text(console_text(ends), style="dim"))
        table.add_row("", "")
        for note in self.reading.notes:
            table.add_row("", Text(console_text(note), style="dim"))
        return table

    def _facts(self) -> list[tuple[str, str]]:
        """What the columns are, and what there is."""
        roles = self.reading.roles
        if roles.calendar:
            by = f"one per {roles.calendar}"
        elif roles.sequence:
            by = f"by {roles.sequence!r}"
        else:
            by = "no column"
        data = self.reading.data
        span = f"{self.over_time.first} to {self.over_time.last}"
        lines = [
            ("kind", self.kind),
            ("time", f"{roles.time!r}: {span}"),
            ("resolution", resolution_in_words(data, self.reading.clock)),
            *facts(data, by, roles.mark or ""),
        ]
        if self.reading.moved:
            lines.append(("order", _order(self.reading)))
        return lines

    def plot(self, ax: Axes | None = None) -> Axes:
        """Events over time and, in a figure of its own, the gaps on a logarithmic scale below."""
        import matplotlib.pyplot as plt

        from fourpoint.plots.charts import COLOURS, look

        data = self.reading.data
        picture = self.over_time
        with look():
            below = None
            if ax is None and self.gaps is None:
                ax = plt.subplots(figsize=(9, 2.8), layout="constrained")[1]
            elif ax is None:
                ax, below = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")[1]
            _bars(ax, picture, COLOURS[0])
            name = Path(self.source).name
            ax.set_title(f"{plot_name(name)}: {data.events:,} events")
            ends = [plot_name(picture.first), plot_name(picture.last)]
            ax.set_xticks(picture.edges[[0, -1]], ends)
            first, last = ax.get_xticklabels()
            first.set_horizontalalignment("left")
            last.set_horizontalalignment("right")
            ax.set_ylabel("events")
            if below is not None and self.gaps is not None:
                _bars(below, self.gaps, COLOURS[1])
                below.set_xscale("log")
                below.set_xlabel(f"gap ({plot_name(data.unit)})" if data.unit else "gap")
                below.set_ylabel("gaps")
        return ax


def inspect(source: object, asked: Asked = GUESS) -> Inspection:
    """Look at a file or table of events, as :func:`fourpoint.data.readers.read` does; but rows in
    any order are taken, and columns that look like a place on a map are taken for one.

    >>> found = inspect(
    ...     {
    ...         "When": ["2024-05-01 09:30", "2024-05-01 08:00", "2024-05-09"],
    ...         "Type": ["a", "b", "a"],
    ...     }
    ... )
    >>> print(found.command)
    fp.read(source, time='When', mark='Type', sequence='none', sort=True)
    """
    asked = replace(asked, sort=True)
    reading = read_with_notes(source, asked)
    if reading.roles.maybe_places:
        with_places = replace(asked, place=reading.roles.maybe_places)
        reading = read_with_notes(source, with_places)
    remarks = [*_suspicious_ties(reading), *_remarks(source, reading)]
    reading = replace(reading, notes=(*reading.notes, *remarks))
    data = reading.data
    label = data.name or "table"
    if isinstance(source, str | os.PathLike):
        label = str(source)
    roles = reading.roles
    cut = None
    if reading.clock is not None and not (roles.sequence or asked.sequence):
        cut = calendar_unit(reading.clock)
    return Inspection(
        source=label,
        reading=reading,
        over_time=_over_time(reading),
        gaps=_gap_histogram(data.gaps[data.gaps > 0], data.unit),
        command=_command(source, reading, _options(asked), _magnitude(source, reading)),
        kind=kind_of(data, roles.calendar or cut, roles.sequence is not None),
    )


def _options(asked: Asked) -> dict[str, Any]:
    """The options of reading that were given."""
    options: dict[str, Any] = {
        "timezone": asked.timezone,
        "time_unit": asked.time_unit,
        "window": asked.window,
        "ties": None if asked.ties == "keep" else asked.ties,
        "gaps": asked.gaps,
        "observed": asked.observed,
        "exposure": asked.exposure,
        "covariates": asked.covariates,
        "entities": asked.entities,
        "impute": asked.impute,
        "covariates_as_of": asked.covariates_as_of,
        "sequence_covariates": ",".join(listed(asked.sequence_covariates)) or None,
        "event_features": ",".join(listed(asked.event_features)) or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _order(reading: Reading) -> str:
    """That rows are not in order, and what may be the reason: clocks that were set back."""
    usual = "rows are not in order of time: --sort sorts them"
    clock = reading.clock
    if clock is None or clock.zone is not None or len(reading.data) != 1:
        return usual
    steps = np.diff(clock.ticks)
    back = np.flatnonzero(steps < 0)
    farthest = float(-steps[back].min())
    if len(back) > FEW_STEPS_BACK or farthest > 3600 * clock.rate:
        return usual
    when = clock.text(int(clock.ticks[back[0]]))
    return (
        f"times step back after {when}, by an hour at most: if clocks were set back there, "
        "name the zone with --timezone; --sort would mix the two hours"
    )


def _remarks(source: object, reading: Reading) -> list[str]:
    """What the other columns say about how the table is to be read."""
    roles = reading.roles
    log = reading.data.log
    if not isinstance(source, str | os.PathLike | Mapping):  # others may be read only once
        return []
    table = open_table(source)
    joined = parts_of(table.schema.names, roles.time) or ()
    used = [*roles.columns(), *joined]
    if log is not None:
        used += log.in_use
    names = [name for name in table.schema.names if name not in used]
    if roles.own or not names or reading.data.events > MOST_LOOKED_AT:
        return []
    columns = open_columns(table, list(dict.fromkeys([*roles.columns(), *names])))
    held = {}
    for name, column in columns.held.items():
        if pa.types.is_nested(column.type):
            return []
        held[name] = column.cast(value_type(column))
    found = []
    if log is not None and log.noon:
        found += _unused_times(roles.time, names, held)
    if roles.sequence is None and roles.calendar is None:
        for name in names:
            if name not in roles.unshared:
                found += _of_entities(name, held[name])
    constant: list[str] = []
    if roles.sequence is not None:
        constant = _constant_columns(roles.sequence, names, held)
        found += _of_sequences(reading, constant, held)
    if roles.mark is None:
        others = [name for name in names if name not in constant]
        found += _possible_types(others, held)
    found += _suspicious_copies(reading, held)
    return found


def _unused_times(time: str, names: list[str], held: Mapping[str, pa.ChunkedArray]) -> list[str]:
    """That columns hold times of day, where the column of times holds dates alone."""
    found = []
    for name in names:
        if _are_times_of_day(held[name]):
            joined = shlex.quote(joined_name(time, name))
            found.append(
                f"{name!r} holds times of day, which are not used: --time {joined} joins it "
                "with the date"
            )
    return found


def _of_entities(name: str, column: pa.ChunkedArray) -> list[str]:
    """That a column may hold magnitudes, or entities that could be followed by themselves."""
    found = []
    number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    if number and plain_name(name) in MAGNITUDES:
        found.append(
            f"{name!r} may be the magnitude of earthquakes: fit --model etas fits a model "
            "of aftershocks to it"
        )
    count = len(column.unique())
    if _is_entity(name) and 1 < count < len(column):
        found.append(
            f"{name!r} has {count:,} values: --sequence {shlex.quote(name)} follows each "
            "of them by itself"
        )
    return found


def _of_sequences(
    reading: Reading, constant: list[str], held: Mapping[str, pa.ChunkedArray]
) -> list[str]:
    """What columns that are constant in each sequence can be used for."""
    moments = [name for name in constant if _are_moments(held[name])]
    covariates = [name for name in constant if name not in moments]
    sequence = repr(reading.roles.sequence)
    found = []
    if moments:
        listed = " and ".join(map(repr, moments))
        verb = "is a time" if len(moments) == 1 else "are times"
        window = [*moments, _day_after(reading)][:2]
        found.append(
            f"{listed} {verb} of each {sequence}: if each is observed from or up to then, "
            f"say so with --window {shlex.join(window)}, for example"
        )
    if covariates:
        listed = " and ".join(map(repr, covariates))
        verb = "is" if len(covariates) == 1 else "are"
        option = f"--sequence-covariates {shlex.quote(','.join(covariates))}"
        found.append(f"{listed} {verb} constant for each {sequence}: {option} uses that")
    return found


def _suspicious_copies(reading: Reading, held: Mapping[str, pa.ChunkedArray]) -> list[str]:
    """That far more rows are copies of others than chance explains."""
    rows = pa.table({str(i): column for i, column in enumerate(held.values())})
    distinct = rows.group_by(rows.column_names).aggregate([])
    copies = len(rows) - len(distinct)
    time = list(held).index(reading.roles.time)
    described = rows.drop_columns([str(time)])
    by_chance = _copies_by_chance(reading, described)
    if copies <= AT_PEAKS * by_chance + 3 * by_chance**0.5:
        return []
    are = "row is an exact copy" if copies == 1 else "rows are exact copies"
    return [
        f"{copies:,} {are} of others: remove rows that were exported twice, since they would "
        "look like clustering"
    ]


def _possible_types(names: list[str], held: Mapping[str, pa.ChunkedArray]) -> list[str]:
    """That columns with few words, or few codes such as an HTTP status, could be the types of
    events; those that are called like entities come last.
    """
    few = []
    for name in names:
        column = held[name]
        code = pa.types.is_integer(column.type) and plain_name(name) in CODES
        if not (code or pa.types.is_string(column.type)):
            continue
        count = len(column.unique())
        if 2 <= count <= MOST_TYPES and count * FEWEST_OF_TYPE <= len(column):
            few.append((name, count))
    if not few:
        return []
    few.sort(key=lambda found: _is_entity(found[0]))
    some = [f"{name!r} ({count} values)" for name, count in few[:3]]
    listed = some[-1]
    if len(some) > 1:
        listed = f"{', '.join(some[:-1])} or {listed}"
    option = f"--mark {shlex.quote(few[0][0])}"
    return [f"{listed} could be types of events, for example with {option}"]


def _magnitude(source: object, reading: Reading) -> str | None:
    """The column of magnitudes of a catalogue of earthquakes, which has places and no types."""
    roles = reading.roles
    described = roles.mark or roles.sequence or roles.own or not roles.places
    if described or not isinstance(source, str | os.PathLike):
        return None
    schema = open_table(source).schema
    for field in schema:
        number = pa.types.is_floating(field.type) or pa.types.is_integer(field.type)
        if number and plain_name(field.name) in MAGNITUDES:
            return str(field.name)
    return None


def _constant_columns(
    sequence: str, names: list[str], held: Mapping[str, pa.ChunkedArray]
) -> list[str]:
    """The columns that are constant in each sequence and differ between sequences."""
    of = _codes(held[sequence])
    sequences = len(np.unique(of))
    found = []
    for name in names:
        value = _codes(held[name])
        distinct = len(np.unique(value))
        width = int(value.max(initial=0)) + 2
        pairs = len(np.unique(of * width + value + 1))
        constant = pairs == sequences
        shared = distinct < pairs or _are_moments(held[name])
        if constant and distinct > 1 and shared:
            found.append(name)
    return found


def _codes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """The number of each value of a column, -1 for null."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy()


def _copies_by_chance(reading: Reading, described: pa.Table) -> float:
    """How many rows are copies of others if events come independently at a constant rate: of n
    events with the same description in K ticks of the timestamps, n - K (1 - exp(-n / K)).
    """
    width = _tick(reading)
    if not width:
        return 0.0
    data = reading.data
    observed = float(data.durations.sum())
    if reading.roles.sequence is not None:  # the description names the sequence
        observed /= len(data)
    ticks = max(observed / width, 1.0)
    alike = np.array([len(data.times)])
    if described.column_names:
        grouped = described.group_by(described.column_names).aggregate([([], "count_all")])
        alike = grouped["count_all"].to_numpy()
    copies = alike + ticks * np.expm1(-alike / ticks)
    return float(copies.sum())


def _tick(reading: Reading) -> float:
    """The resolution of timestamps in the data's unit of time."""
    width = resolution(reading.data, reading.clock)
    if reading.clock is not None:
        width /= SECONDS.get(reading.data.unit, 1.0)
    return width


def _day_after(reading: Reading) -> str:
    """The day after the last event."""
    clock = reading.clock
    if clock is None:
        return "STOP"
    last = clock.text(int(clock.ticks.max()))
    day = np.datetime64(last[:10]) + 1
    return str(day)


def _are_moments(column: pa.ChunkedArray) -> bool:
    """Whether a column holds timestamps or dates."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    if not pa.types.is_string(kind):
        return False
    some = column.slice(0, 1000).drop_null()
    if not len(some):
        return False
    return looks_like_time(str(some[0]))


def _ties_by_chance(reading: Reading) -> float:
    """How many pairs of events have the same timestamp if events come independently: of n events in
    a window of length T, about n^2 r / 2T at a resolution r.
    """
    width = _tick(reading)
    if not width:
        return 0.0
    lengths = np.maximum(reading.data.durations, width)
    counts = reading.data.lengths.astype(np.float64)
    pairs = counts**2 * width / (2 * lengths)
    return float(pairs.sum())


def _suspicious_ties(reading: Reading) -> list[str]:
    """That far more events share a timestamp than chance explains."""
    data = reading.data
    gaps = max(1, data.events - len(data))
    by_chance = _ties_by_chance(reading) / gaps
    if data.tied < MANY_TIES or data.tied < TIMES_CHANCE * by_chance:
        return []
    return [
        f"{100 * data.tied:.1f}% of gaps are zero, where chance explains about "
        f"{100 * by_chance:.2g}%: events may have been recorded twice, or arrive in batches; "
        "--ties drop keeps one of those at the same time"
    ]


def _is_entity(name: str) -> bool:
    """Whether a column is called like something that has events of its own."""
    plain = plain_name(name).replace("_", "")
    endings = ("", "id", "no", "number")
    return any(plain == word + ending for word in ENTITIES for ending in endings)


def _are_times_of_day(column: pa.ChunkedArray) -> bool:
    """Whether a column holds times such as 09:30, without a date."""
    if pa.types.is_time(column.type):
        return True
    some = column.slice(0, 1000).drop_null().to_pylist()
    for value in some:
        if not isinstance(value, str) or not TIME_OF_DAY.fullmatch(value.strip()):
            return False
    return bool(some)


def _over_time(reading: Reading) -> Histogram:
    """Events on the calendar where there is one, else within the windows of all sequences
    together.
    """
    data = reading.data
    clock = reading.clock
    if clock is not None:
        low = int(clock.ticks.min())
        high = int(clock.ticks.max())
        length = max(high - low, 1) / clock.rate
        seconds = (clock.ticks - low) / clock.rate
        counts, edges = np.histogram(seconds, BINS, range=(0, length))
        return Histogram(counts, edges, clock.text(low), clock.text(high))
    start = float(data.starts.min())
    stop = float(data.stops.max())
    counts, edges = np.histogram(data.times, BINS, range=(start, stop))
    unit = f" {data.unit}" if data.unit else ""
    return Histogram(counts, edges, f"{start:.6g}", f"{stop:.6g}{unit}")


def _gap_histogram(gaps: NDArray[np.float64], unit: str) -> Histogram | None:
    """The positive gaps by their logarithm, or None where there are none."""
    if not len(gaps):
        return None
    low = float(gaps.min())
    high = float(gaps.max())
    if not high > low * 1.001:
        low = low / 2
        high = high * 2
    edges = np.geomspace(low, high, BINS + 1)
    edges[-1] = high * (1 + 1e-9)
    counts, _ = np.histogram(gaps, edges)
    first = f"{low:.3g}"
    last = f"{high:.3g} {unit}".rstrip()
    if unit in SECONDS:
        first = span_words(low, unit)
        last = span_words(high, unit)
    return Histogram(counts, edges, first, last)


def _command(
    source: object, reading: Reading, options: dict[str, Any], magnitude: str | None
) -> str:
    """What to type next: the roles spelled out, so that they are there to be changed. A catalogue
    with a ``magnitude`` is fitted with a model of aftershocks.
    """
    roles = reading.roles
    named: dict[str, Any] = {}
    if not roles.own:
        named["time"] = roles.time
        named["mark"] = roles.mark or "none"
        if roles.places:
            named["place"] = roles.places
        named["sequence"] = roles.calendar or roles.sequence or NONE
    if magnitude is not None:
        named["event_features"] = magnitude
    named |= options
    if not isinstance(source, str | os.PathLike):
        arguments = ["source"]
        arguments += [f"{name}={value!r}" for name, value in named.items()]
        if reading.moved:
            arguments.append("sort=True")
        return f"fp.read({', '.join(arguments)})"
    words = ["fourpoint", "fit", str(source)]
    for name, value in named.items():
        option = f"--{name.replace('_', '-')}"
        values: Ordered[Any] = value if isinstance(value, tuple) else (value,)
        if name == "place":
            for column in values:
                words += [option, column]
        else:
            words += [option, *map(str, values)]
    if reading.moved:
        words.append("--sort")
    if magnitude is not None:
        words += ["--model", "etas"]
    words += ["--time-budget", str(BUDGET), "-o", "model"]
    return shlex.join(words)


def _bars(ax: Axes, histogram: Histogram, shade: str) -> None:
    ax.bar(
        histogram.edges[:-1],
        histogram.counts,
        np.diff(histogram.edges),
        align="edge",
        color=shade,
        lw=0,
    )
    ax.set_xlim(float(histogram.edges[0]), float(histogram.edges[-1]))


PERIODS = 7  # of the calendar unit that a record has to cover
FEWEST = {"hour": 2.0, "day": 1.0, "week": 2.0}  # events per window, on average
HARMONICS = (1, 2)
PATTERNS = {"hour": "an hourly", "day": "a daily", "week": "a weekly"}
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
    count = len(phase)
    strongest = Rhythm(unit, 0.0, 0.0)
    for harmonic in HARMONICS:
        angles = 2 * np.pi * harmonic * phase
        real = np.bincount(place, np.cos(angles))
        imaginary = np.bincount(place, np.sin(angles))
        power = float((real**2 + imaginary**2).sum())
        length = float(np.hypot(real.sum(), imaginary.sum()))
        z = 0.0
        if power > 1e-9 * count:
            z = length**2 / power
        if z > strongest.z:
            strongest = Rhythm(unit, z, amplitude=2 * length / count)
    return strongest


def calendar_unit(clock: Clock) -> By | None:
    """The unit of the calendar whose rhythm the events follow; None if they follow none.

    >>> steady = Clock(np.arange(0, 30 * 86400, 3511), 1, None)
    >>> print(calendar_unit(steady))
    None
    """
    first = int(clock.ticks.min())
    last = int(clock.ticks.max())
    span = (last - first) / clock.rate
    coarse = _common_step(clock)
    for unit in ("day", "week", "hour"):
        period = SPAN[unit]
        if coarse >= period:  # such stamps say nothing about the time within it
            continue
        long_enough = span >= PERIODS * period
        enough_events = len(clock.ticks) >= FEWEST[unit] * span / period
        if long_enough and enough_events and rhythm(clock, unit).found:
            return unit
    return None


def kind_of(data: Dataset, unit: By | None, by_column: bool) -> str:
    """The kind of data in words.

    >>> kind_of(Dataset.from_sequences([]), "day", False)
    'a log with a daily pattern'
    """
    if by_column and len(data) > 1:
        short = float(np.median(data.lengths)) < FEW_EVENTS
        return "many short sequences" if short else "several long sequences"
    if unit is not None:
        return f"a log with {PATTERNS[unit]} pattern"
    if data.marks.box is not None:
        return "a catalogue with places, one long sequence"
    return "one long log without a calendar pattern"


def resolution(data: Dataset, clock: Clock | None) -> float:
    """What all times are multiples of, up to their origin; in seconds for stamps; 0 if nothing."""
    if clock is not None:
        return _common_step(clock)
    gaps = data.gaps[data.gaps > 0]
    if not len(gaps):
        return 0.0
    return timestamp_resolution(gaps)


def _common_step(clock: Clock) -> float:
    """The greatest common divisor of all differences of times, in seconds; 0 without any."""
    steps = np.diff(np.unique(clock.ticks))
    if not len(steps):
        return 0.0
    return float(np.gcd.reduce(steps)) / clock.rate


def resolution_in_words(data: Dataset, clock: Clock | None) -> str:
    """The timestamp resolution, and whether gaps are so short that it matters.

    >>> resolution_in_words(Dataset.from_sequences([]), Clock(np.array([0, 60, 300]), 1, None))
    '1 minute'
    """
    found = resolution(data, clock)
    if not found:
        return "none found"
    if clock is None:
        words = f"{found:.4g} {data.unit}".rstrip()
    else:
        words = _seconds(found)
    gaps = data.gaps[data.gaps > 0]
    if not coarse_resolution(gaps):
        return words
    return f"{words}; a quarter of all gaps is at most {COARSE} times that: fit dequantises times"


def _seconds(length: float) -> str:
    """A length of time in its largest whole unit."""
    unit = 1.0
    for candidate in sorted(WORDS):
        if candidate <= length * (1 + 1e-9) and _is_multiple(length, candidate):
            unit = candidate
    count = round(length / unit)
    plural = "s" if count > 1 else ""
    return f"{count:,} {WORDS[unit]}{plural}"


def _is_multiple(length: float, unit: float) -> bool:
    count = length / unit
    return abs(count - round(count)) < 1e-6
