"""A data set in a few lines: how many sequences and events, their windows, rate, gaps, ties, marks,
places and splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fourpoint.events import SPLITS, Dataset
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
    gaps | median 0.5 hours, nine in ten from 0.05 to 0.95
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
        found += [
            ("gaps", f"median {b:.3g}{unit}, nine in ten from {a:.3g} to {c:.3g}"),
            ("ties", f"{100 * data.tied:.1f}% of gaps are zero"),
        ]
    found.append(("marks", _marks(data, column)))
    if data.marks.box is not None:
        found.append(("places", str(data.marks.box)))
    if data.splits is not None:
        counts = {name: int((data.splits == name).sum()) for name in SPLITS}
        parts = [f"{name} ({count:,})" for name, count in counts.items() if count]
        found.append(("splits", ", ".join(parts)))
    return found


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
    return f"{column!r}, {data.marks.count:,} types: {listed}"
