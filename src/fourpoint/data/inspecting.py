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
MOST_TYPES, FEWEST_OF_TYPE = 30, 20  # values of a column of types, and rows for each of them
AT_PEAKS = 2.0  # times as many copies by chance as at a constant rate, where the rate has a rhythm
MANY_TIES, TIMES_CHANCE = 0.02, 10.0  # share of zero gaps to remark on, and times that of chance
TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?")
MAGNITUDES = ("magnitude", "mag")  # columns of an earthquake catalogue
ENTITIES_TEXT = """
    customer user client patient machine device account member store shop branch service server host
    node site sensor station vehicle post thread case employee student household
"""
ENTITIES = ENTITIES_TEXT.split()


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
        top = max(int(self.counts.max(initial=0)), 1)
        return "".join(BARS[-(-int(count) * 8 // top)] for count in self.counts)


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
            if picture is not None:
                table.add_row("", "")
                table.add_row(name, Text(picture.line(), style="green"))
                room = max(1, len(picture.counts) - len(picture.first) - len(picture.last))
                table.add_row(
                    "",
                    Text(console_text(f"{picture.first}{' ' * room}{picture.last}"), style="dim"),
                )
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
        lines = [("kind", self.kind)]
        lines.append(("time", f"{roles.time!r}: {self.over_time.first} to {self.over_time.last}"))
        lines.append(("resolution", resolution_in_words(data, self.reading.clock)))
        lines += facts(data, by, roles.mark or "")
        if self.reading.moved:
            lines.append(("order", _order(self.reading)))
        return lines

    def plot(self, ax: Axes | None = None) -> Axes:
        """Events over time and, in a figure of its own, the gaps on a logarithmic scale below."""
        import matplotlib.pyplot as plt

        from fourpoint.plots.charts import COLOURS, look

        with look():
            below = None
            if ax is None and self.gaps is None:
                ax = plt.subplots(figsize=(9, 2.8), layout="constrained")[1]
            elif ax is None:
                ax, below = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")[1]
            _bars(ax, self.over_time, COLOURS[0])
            ax.set_title(
                f"{plot_name(Path(self.source).name)}: {self.reading.data.events:,} events"
            )
            ax.set_xticks(
                self.over_time.edges[[0, -1]],
                [plot_name(self.over_time.first), plot_name(self.over_time.last)],
            )
            for label, side in zip(ax.get_xticklabels(), ("left", "right"), strict=True):
                label.set_horizontalalignment(side)
            ax.set_ylabel("events")
            if below is not None and self.gaps is not None:
                _bars(below, self.gaps, COLOURS[1])
                below.set_xscale("log")
                unit = self.reading.data.unit
                below.set_xlabel(f"gap ({plot_name(unit)})" if unit else "gap")
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
        reading = read_with_notes(source, replace(asked, place=reading.roles.maybe_places))
    remarks = [*_suspicious_ties(reading), *_remarks(source, reading)]
    reading = replace(reading, notes=(*reading.notes, *remarks))
    label = str(source) if isinstance(source, str | os.PathLike) else reading.data.name or "table"
    ties = None if asked.ties == "keep" else asked.ties
    options: dict[str, Any] = {
        "timezone": asked.timezone,
        "time_unit": asked.time_unit,
        "window": asked.window,
        "ties": ties,
    }
    for name in ("gaps", "observed", "exposure", "covariates", "entities", "impute"):
        options[name] = getattr(asked, name)
    for name in ("sequence_covariates", "event_features"):
        options[name] = ",".join(listed(getattr(asked, name))) or None
    roles = reading.roles
    cut = None
    if reading.clock is not None and not (roles.sequence or asked.sequence):
        cut = calendar_unit(reading.clock)
    given = {name: value for name, value in options.items() if value is not None}
    gaps = reading.data.gaps
    return Inspection(
        label,
        reading,
        _over_time(reading),
        _gap_histogram(gaps[gaps > 0], reading.data.unit),
        _command(source, reading, given),
        kind_of(reading.data, roles.calendar or cut, roles.sequence is not None),
    )


def _order(reading: Reading) -> str:
    """That rows are not in order, and what may be the reason: clocks that were set back."""
    clock = reading.clock
    if clock is not None and clock.zone is None and len(reading.data) == 1:
        steps = np.diff(clock.ticks)
        back = np.flatnonzero(steps < 0)
        if len(back) <= FEW_STEPS_BACK and float(-steps[back].min()) <= 3600 * clock.rate:
            when = clock.text(int(clock.ticks[back[0]]))
            return (
                f"times step back after {when}, by an hour at most: if clocks were set back there, "
                "name the zone with --timezone; --sort would mix the two hours"
            )
    return "rows are not in order of time: --sort sorts them"


def _remarks(source: object, reading: Reading) -> list[str]:
    """What the other columns say about how the table is to be read."""
    roles = reading.roles
    if not isinstance(source, str | os.PathLike | Mapping):  # others may be read only once
        return []
    table = open_table(source)
    joined = parts_of(table.schema.names, roles.time) or ()
    used = [*roles.columns(), *joined, *(reading.data.log.in_use if reading.data.log else ())]
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
    if reading.data.log is not None and reading.data.log.noon:
        for name in names:
            if _are_times_of_day(held[name]):
                found.append(
                    f"{name!r} holds times of day, which are not used: --time "
                    f"{shlex.quote(joined_name(roles.time, name))} joins it with the date"
                )
    if roles.sequence is None and roles.calendar is None:
        for name in names:
            kind = held[name].type
            number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
            if number and plain_name(name) in MAGNITUDES:
                found.append(
                    f"{name!r} may be the magnitude of earthquakes: fit --model etas fits a model "
                    "of aftershocks to it"
                )
            count = len(held[name].unique())
            if _is_entity(name) and 1 < count < len(held[name]):
                found.append(
                    f"{name!r} has {count:,} values: --sequence {shlex.quote(name)} follows each "
                    "of them by itself"
                )
    constant = [] if roles.sequence is None else _constant_columns(roles.sequence, names, held)
    moments = [name for name in constant if _are_moments(held[name])]
    constant = [name for name in constant if name not in moments]
    if moments:
        listed = " and ".join(map(repr, moments))
        example = [*moments, _day_after(reading)][:2]
        verb = "is a time" if len(moments) == 1 else "are times"
        found.append(
            f"{listed} {verb} of each {roles.sequence!r}: if each is observed from or up to then, "
            f"say so with --window {shlex.join(example)}, for example"
        )
    if constant:
        verb = "is" if len(constant) == 1 else "are"
        option = f"--sequence-covariates {shlex.quote(','.join(constant))}"
        listed = " and ".join(map(repr, constant))
        found.append(f"{listed} {verb} constant for each {roles.sequence!r}: {option} uses that")
    if roles.mark is None:
        others = [name for name in names if name not in (*constant, *moments)]
        found += _possible_types(others, held)
    rows = pa.table({str(i): column for i, column in enumerate(held.values())})
    copies = len(rows) - len(rows.group_by(rows.column_names).aggregate([]))
    described = rows.drop_columns([str(list(held).index(roles.time))])
    by_chance = _copies_by_chance(reading, described)
    if copies > AT_PEAKS * by_chance + 3 * by_chance**0.5:
        found.append(
            f"{copies:,} {'row is an exact copy' if copies == 1 else 'rows are exact copies'} of "
            "others: remove rows that were exported twice, since they would look like clustering"
        )
    return found


def _possible_types(names: list[str], held: Mapping[str, pa.ChunkedArray]) -> list[str]:
    """That columns with few words could be the types of events."""
    words = [name for name in names if pa.types.is_string(held[name].type)]
    counts = {name: len(held[name].unique()) for name in words}
    few = {
        name: count
        for name, count in counts.items()
        if 2 <= count <= MOST_TYPES and count * FEWEST_OF_TYPE <= len(held[name])
    }
    if not few:
        return []
    some = [f"{name!r} ({count} values)" for name, count in list(few.items())[:3]]
    listed = ", ".join(some[:-1]) + " or " if len(some) > 1 else ""
    option = f"--mark {shlex.quote(next(iter(few)))}"
    return [f"{listed}{some[-1]} could be types of events, for example with {option}"]


def _constant_columns(
    sequence: str, names: list[str], held: Mapping[str, pa.ChunkedArray]
) -> list[str]:
    """The columns that are constant in each sequence and differ between sequences."""
    of = held[sequence].combine_chunks().dictionary_encode().indices.to_numpy()
    found = []
    for name in names:
        value = held[name].combine_chunks().dictionary_encode().indices
        numbers = value.fill_null(-1).to_numpy()
        pairs = len(np.unique(of * (int(numbers.max(initial=0)) + 2) + numbers + 1))
        distinct = len(np.unique(numbers))
        shared = distinct < pairs or _are_moments(held[name])
        if pairs == len(np.unique(of)) and distinct > 1 and shared:
            found.append(name)
    return found


def _copies_by_chance(reading: Reading, described: pa.Table) -> float:
    """How many rows are copies of others if events come independently at a constant rate: of n
    events with the same description in K ticks of the timestamps, n - K (1 - exp(-n / K)).
    """
    data = reading.data
    width = _tick(reading)
    if not width:
        return 0.0
    observed = float(data.durations.sum())
    if reading.roles.sequence is not None:  # the description names the sequence
        observed /= len(data)
    ticks = max(observed / width, 1.0)
    if described.column_names:
        grouped = described.group_by(described.column_names).aggregate([([], "count_all")])
        alike = grouped["count_all"].to_numpy()
    else:
        alike = np.array([len(reading.data.times)])
    return float((alike + ticks * np.expm1(-alike / ticks)).sum())


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
    return str(np.datetime64(clock.text(int(clock.ticks.max()))[:10]) + 1)


def _are_moments(column: pa.ChunkedArray) -> bool:
    """Whether a column holds timestamps or dates."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return True
    some = column.slice(0, 1000).drop_null()
    return bool(len(some)) and pa.types.is_string(column.type) and looks_like_time(str(some[0]))


def _ties_by_chance(reading: Reading) -> float:
    """How many pairs of events have the same timestamp if events come independently: of n events in
    a window of length T, about n^2 r / 2T at a resolution r.
    """
    data = reading.data
    width = _tick(reading)
    lengths = np.maximum(data.durations, width)
    if not width:
        return 0.0
    return float((data.lengths.astype(np.float64) ** 2 * width / (2 * lengths)).sum())


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
    return any(plain in (word, f"{word}id", f"{word}no", f"{word}number") for word in ENTITIES)


def _are_times_of_day(column: pa.ChunkedArray) -> bool:
    """Whether a column holds times such as 09:30, without a date."""
    if pa.types.is_time(column.type):
        return True
    some = [value for value in column.slice(0, 1000).to_pylist() if value is not None]
    return bool(some) and all(
        isinstance(value, str) and TIME_OF_DAY.fullmatch(value.strip()) for value in some
    )


def _over_time(reading: Reading) -> Histogram:
    """Events on the calendar where there is one, else within the windows of all sequences
    together.
    """
    data = reading.data
    clock = reading.clock
    if clock is not None:
        low = int(clock.ticks.min())
        high = int(clock.ticks.max())
        first = clock.text(low)
        last = clock.text(high)
        counts, edges = np.histogram(
            (clock.ticks - low) / clock.rate, BINS, range=(0, max(high - low, 1) / clock.rate)
        )
        return Histogram(counts, edges, first, last)
    low_time = float(data.starts.min())
    high_time = float(data.stops.max())
    counts, edges = np.histogram(data.times, BINS, range=(low_time, high_time))
    unit = f" {data.unit}" if data.unit else ""
    return Histogram(counts, edges, f"{low_time:.6g}", f"{high_time:.6g}{unit}")


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
    ends = (f"{low:.3g}", f"{high:.3g} {unit}".rstrip())
    if unit in SECONDS:
        ends = (span_words(low, unit), span_words(high, unit))
    return Histogram(np.histogram(gaps, edges)[0], edges, *ends)


def _command(source: object, reading: Reading, options: dict[str, Any]) -> str:
    """What to type next: the roles spelled out, so that they are there to be changed."""
    roles = reading.roles
    named: dict[str, Any] = {} if roles.own else {"time": roles.time, "mark": roles.mark or "none"}
    named |= {"place": roles.places} if roles.places and not roles.own else {}
    if not roles.own:
        named["sequence"] = roles.calendar or roles.sequence or NONE
    named = {name: value for name, value in (named | options).items() if value is not None}
    if not isinstance(source, str | os.PathLike):
        words = [f"{name}={value!r}" for name, value in named.items()] + [
            "sort=True"
        ] * reading.moved
        return f"fp.read({', '.join(['source', *words])})"
    words = ["fourpoint", "fit", str(source)]
    for name, value in named.items():
        values: Ordered[Any] = value if isinstance(value, tuple) else (value,)
        if name == "place":
            words += [word for column in values for word in ("--place", column)]
            continue
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    budget = ["--time-budget", str(BUDGET)]
    return shlex.join([*words, *["--sort"] * reading.moved, *budget, "-o", "model"])


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
    steps = np.diff(np.unique(clock.ticks))
    coarse = float(np.gcd.reduce(steps)) / clock.rate if len(steps) else 0.0
    for unit in ("day", "week", "hour"):
        if coarse >= SPAN[unit]:  # such stamps say nothing about the time within it
            continue
        long_enough = span >= PERIODS * SPAN[unit]
        enough_events = len(clock.ticks) >= FEWEST[unit] * span / SPAN[unit]
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
    if clock is None:
        gaps = data.gaps[data.gaps > 0]
        return timestamp_resolution(gaps) if len(gaps) else 0.0
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
    if not coarse_resolution(gaps):
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
