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
    unit = f" {data.unit}" if data.unit else ""
    per_unit = data.unit.removesuffix("s") or "unit of time"
    names = by or data.ids[0]
    events = f"{data.events:,}"
    if len(data) > 1:
        names = f"{by}: {data.ids[0]} ... {data.ids[-1]}".removeprefix(": ")
        low, middle, high = np.quantile(data.lengths, (0, 0.5, 1))
        events += f" ({low:.0f} to {high:.0f} a sequence, median {middle:.0f})"
    lengths = data.durations
    if np.ptp(lengths) <= 1e-9 * lengths.max():
        span = f"{lengths.min():g}"
    else:
        span = f"{lengths.min():g} to {lengths.max():g}"
    span += unit
    if data.inferred:
        span += " (inferred from the events)"
    found = [
        ("sequences", f"{len(data):,} ({names})"),
        ("events", events),
        ("window", span),
        ("rate", f"{data.events / lengths.sum():.4g} events per {per_unit}"),
    ]
    if len(data.gaps):
        a, b, c = np.quantile(data.gaps, (0.05, 0.5, 0.95))
        suiting = data.unit
        if data.unit in SECONDS and c > 0:
            suiting = suiting_unit(b or c, data.unit)
            a, b, c = (x * SECONDS[data.unit] / SECONDS[suiting] for x in (a, b, c))
        named = f" {suiting}" if suiting else ""
        found += [
            ("gaps", f"median {b:.3g}{named}, 90% interval {a:.3g} to {c:.3g}"),
            ("ties", f"{100 * data.tied:.1f}% of gaps are zero"),
        ]
    found.append(("marks", _marks(data, column)))
    if data.marks.box is not None:
        found.append(("places", str(data.marks.box)))
    if data.features is not None:
        found.append(("features", _features(data)))
    found += _context(data)
    if data.splits is not None:
        counts = {name: int((data.splits == name).sum()) for name in SPLITS}
        parts = [f"{name} ({count:,})" for name, count in counts.items() if count]
        found.append(("splits", ", ".join(parts)))
    return found


def _features(data: Dataset) -> str:
    values = data.features
    if values is None or not len(values):
        return ", ".join(data.feature_names)
    names = data.feature_names or tuple(f"x{i + 1}" for i in range(values.shape[1]))
    return ", ".join(_ranges(names, values))


def _ranges(names: tuple[str, ...], values: NDArray[np.float64]) -> list[str]:
    """The name, the lowest and the highest value of every column."""
    lowest = values.min(0).tolist()
    highest = values.max(0).tolist()
    columns = zip(names, lowest, highest, strict=True)
    return [f"{name} ({low:g} to {high:g})" for name, low, high in columns]


def _context(data: Dataset) -> list[tuple[str, str]]:
    """What is known of the sequences besides their events."""
    lines: list[tuple[str, str]] = []
    context = data.context
    if context is None or not len(data):
        return lines
    ends = [(data.dates(i), i) for i in (_first(data), _last(data))]
    (begin, i), (end, j) = ends
    if begin is not None and end is not None:
        zone = begin.zone or "no zone"
        first = begin.text(float(data.starts[i]))
        last = end.text(float(data.stops[j]))
        lines.append(("dates", f"{first} to {last} ({zone})"))
    if context.scored_from is not None:
        earlier = data.events - data.scored_events
        lines.append(("history", f"{earlier:,} events that condition and are not scored"))
    if context.covariates is not None:
        lines.append(("covariates", _columns(context.covariates)))
    if context.exposure is not None:
        lines.append(("exposure", _exposure(data, context.exposure)))
    return lines


def _first(data: Dataset) -> int:
    return int(np.argmin(_zeros(data) + data.starts * SECONDS.get(data.unit, 0.0)))


def _last(data: Dataset) -> int:
    return int(np.argmax(_zeros(data) + data.stops * SECONDS.get(data.unit, 0.0)))


def _zeros(data: Dataset) -> NDArray[np.float64]:
    origin = None if data.context is None else data.context.origin
    return np.zeros(len(data)) if origin is None else origin


def _columns(steps: Steps) -> str:
    listed = _ranges(steps.names, steps.values)
    changes = len(steps.times) / (len(steps.offsets) - 1)
    often = "constant in each sequence" if changes == 1 else f"{changes:,.0f} values a sequence"
    return f"{', '.join(listed[:LISTED])}; {often}"


def _exposure(data: Dataset, exposure: Steps) -> str:
    """How long and how often nothing was recorded, and the exposure otherwise."""
    lost, gaps, values = 0.0, 0, []
    for i in range(len(data)):
        own = exposure.row(i)
        begins = np.maximum(exposure.times[own], data.starts[i])
        begins[0] = data.starts[i]
        ends = np.minimum(np.append(exposure.times[own][1:], np.inf), data.stops[i])
        level = exposure.values[own, 0]
        inside = ends > begins
        silent = inside & (level == 0)
        lost += float((ends - begins)[silent].sum())
        gaps += int((silent & ~np.append(False, silent[:-1])).sum())
        values.append(level[inside & (level > 0)])
    known = np.concatenate(values)
    low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    factor = f"{low:g}" if low == high else f"{low:g} to {high:g}"
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
    if not data.marks.names:
        return "none"
    counts = np.bincount(data.mark_ids, minlength=data.marks.count)
    order = np.argsort(-counts, kind="stable")[:LISTED]
    listed = ", ".join(f"{data.marks.names[i]} ({counts[i]:,})" for i in order)
    if data.marks.count > LISTED:
        listed += f" and {data.marks.count - LISTED:,} more"
    if not column:
        return listed
    return f"{column!r}, {data.marks.count:,} type{'s' * (data.marks.count != 1)}: {listed}"
