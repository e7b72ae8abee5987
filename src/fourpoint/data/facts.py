"""A data set in a few lines: how many sequences and events, their windows, dates, rate, gaps, ties,
marks, places, event features, covariates, exposure and splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import SPLITS, Dataset, Steps
from fourpoint.events.dates import SECONDS, suiting_unit
from fourpoint.report.printing import text_table
from fourpoint.sanitising import console_text

if TYPE_CHECKING:
    from rich.table import Table

LISTED = 12  # marks that are named, the most frequent ones


def facts(data: Dataset, by: str = "", column: str = "") -> list[tuple[str, str]]:
    """What there is, as pairs of a word and a line. ``by`` says what tells sequences apart,
    ``column`` where marks come from.

    >>> from fourpoint.events import Sequence
    >>> for word, line in facts(
    ...     Dataset.from_sequences(
    ...         [Sequence([1.0, 1.0, 2.0], start=0, stop=3, id="a")], unit="hours"
    ...     )
    ... ):
    ...     print(word, "|", line)
    sequences | 1 (a)
    events | 3
    window | 3 hours
    rate | 1 events per hour
    gaps | median 30 minutes, 90% interval 3 to 57
    ties | 50.0% of gaps are zero
    marks | none
    """
    names = by or data.ids[0]
    events = f"{data.events:,}"
    if len(data) > 1:
        names = f"{by}: {data.ids[0]} ... {data.ids[-1]}".removeprefix(": ")
        low, middle, high = np.quantile(data.lengths, (0, 0.5, 1))
        events += f" ({low:.0f} to {high:.0f} a sequence, median {middle:.0f})"
    per_unit = data.unit.removesuffix("s") or "unit of time"
    rate = data.events / data.durations.sum()
    found = {}
    found["sequences"] = f"{len(data):,} ({names})"
    found["events"] = events
    found["window"] = _window(data)
    found["rate"] = f"{rate:.4g} events per {per_unit}"
    if len(data.gaps):
        found["gaps"] = _gaps(data)
        found["ties"] = f"{100 * data.tied:.1f}% of gaps are zero"
    found["marks"] = _marks(data, column)
    if data.marks.box is not None:
        found["places"] = str(data.marks.box)
    if data.features is not None:
        found["features"] = _features(data)
    found |= _context(data)
    if data.splits is not None:
        found["splits"] = _splits(data.splits)
    return list(found.items())


def _window(data: Dataset) -> str:
    lengths = data.durations
    span = _range(lengths.min(), lengths.max())
    if np.ptp(lengths) <= 1e-9 * lengths.max():
        span = f"{lengths.min():g}"
    if data.unit:
        span += f" {data.unit}"
    if data.inferred:
        span += " (inferred from the events)"
    return span


def _range(low: float, high: float) -> str:
    return f"{low:g} to {high:g}"


def _gaps(data: Dataset) -> str:
    """The median of the gaps and the interval of 90% of them, in the unit that suits them."""
    unit = data.unit
    quantiles = np.quantile(data.gaps, (0.05, 0.5, 0.95))
    low, median, high = quantiles
    if unit in SECONDS and high > 0:
        unit = suiting_unit(median or high, data.unit)
        low, median, high = quantiles * SECONDS[data.unit] / SECONDS[unit]
    named = f" {unit}" if unit else ""
    return f"median {median:.3g}{named}, 90% interval {low:.3g} to {high:.3g}"


def _splits(splits: NDArray[np.str_]) -> str:
    parts = []
    for name in SPLITS:
        count = int(np.count_nonzero(splits == name))
        if count:
            parts.append(f"{name} ({count:,})")
    return ", ".join(parts)


def _features(data: Dataset) -> str:
    names = data.feature_names
    values = data.features
    if values is None or not len(values):
        return ", ".join(names)
    if not names:
        names = tuple(f"x{i + 1}" for i in range(values.shape[1]))
    return ", ".join(_ranges(names, values))


def _ranges(names: tuple[str, ...], values: NDArray[np.float64]) -> list[str]:
    """The name, the lowest and the highest value of every column."""
    lowest = values.min(0).tolist()
    highest = values.max(0).tolist()
    found = []
    for name, low, high in zip(names, lowest, highest, strict=True):
        found.append(f"{name} ({_range(low, high)})")
    return found


def _context(data: Dataset) -> dict[str, str]:
    """What is known of the sequences besides their events."""
    context = data.context
    if context is None or not len(data):
        return {}
    lines = {}
    i = int(np.argmin(_since_first(data, data.starts)))
    j = int(np.argmax(_since_first(data, data.stops)))
    begin = data.dates(i)
    end = data.dates(j)
    if begin is not None and end is not None:
        zone = begin.zone or "no zone"
        first = begin.text(float(data.starts[i]))
        last = end.text(float(data.stops[j]))
        lines["dates"] = f"{first} to {last} ({zone})"
    if context.scored_from is not None:
        earlier = data.events - data.scored_events
        lines["history"] = f"{earlier:,} events that condition and are not scored"
    if context.covariates is not None:
        lines["covariates"] = _columns(context.covariates)
    if context.exposure is not None:
        lines["exposure"] = _exposure(data, context.exposure)
    return lines


def _since_first(data: Dataset, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """A time of each sequence in seconds since 1970, or since 0 where origins are not known."""
    seconds = times * SECONDS.get(data.unit, 0.0)
    if data.context is None or data.context.origin is None:
        return seconds
    return data.context.origin + seconds


def _columns(steps: Steps) -> str:
    listed = _ranges(steps.names, steps.values)
    sequences = len(steps.offsets) - 1
    changes = len(steps.times) / sequences
    often = f"{changes:,.0f} values a sequence"
    if changes == 1:
        often = "constant in each sequence"
    return f"{', '.join(listed[:LISTED])}; {often}"


def _exposure(data: Dataset, exposure: Steps) -> str:
    """How long and how often nothing was recorded, and the exposure otherwise."""
    lost = 0.0
    gaps = 0
    values = []
    for i in range(len(data)):
        own = exposure.row(i)
        times = exposure.times[own]
        level = exposure.values[own, 0]
        begins = np.maximum(times, data.starts[i])
        begins[0] = data.starts[i]
        ends = np.minimum(np.append(times[1:], np.inf), data.stops[i])
        inside = ends > begins
        silent = inside & (level == 0)
        silent_before = np.append(False, silent[:-1])
        lengths = ends - begins
        lost += float(lengths[silent].sum())
        gaps += int(np.count_nonzero(silent & ~silent_before))
        values.append(level[inside & (level > 0)])
    factor = "0"
    known = np.concatenate(values)
    if len(known):
        factor = f"{known.min():g}"
        if known.max() > known.min():
            factor = _range(known.min(), known.max())
    if not gaps:
        return factor
    share = 100 * lost / float(data.durations.sum())
    unit = f" {data.unit}" if data.unit else ""
    count = "1 gap" if gaps == 1 else f"{gaps:,} gaps"
    return f"{factor}, and 0 in {count} ({lost:.4g}{unit}, {share:.2g}% of the time)"


def table_of(title: str, lines: list[tuple[str, str]]) -> Table:
    """Words and lines as a table for the terminal."""
    table = text_table(
        console_text(title),
        title_style="bold",
        title_justify="left",
        box=None,
        pad_edge=False,
        show_header=False,
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for word, line in lines:
        table.add_row(word, line)
    return table


def _marks(data: Dataset, column: str) -> str:
    names = data.marks.names
    if not names:
        return "none"
    types = data.marks.count
    counts = np.bincount(data.mark_ids, minlength=types)
    order = np.argsort(-counts, kind="stable")[:LISTED]
    listed = ", ".join(f"{names[i]} ({counts[i]:,})" for i in order)
    if types > LISTED:
        listed += f" and {types - LISTED:,} more"
    if not column:
        return listed
    plural = "s" if types != 1 else ""
    return f"{column!r}, {types:,} type{plural}: {listed}"
