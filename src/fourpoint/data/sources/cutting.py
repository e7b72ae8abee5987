"""Days of trading as sequences, whole or cut into windows of equal length.

Windows are cut by the clock, never by the count of events: a window that ends at its fiftieth trade
ends because of the trade, and its likelihood is that of another process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Dataset, EventDataError, MarkSpace, UserError

MOST_WINDOWS = 10_000_000


@dataclass
class Days:
    """Events day by day, each with its observed window in seconds after midnight."""

    space: MarkSpace
    ids: list[str] = field(default_factory=list)
    times: list[NDArray[np.float64]] = field(default_factory=list)
    marks: list[NDArray[np.int64]] = field(default_factory=list)
    windows: list[tuple[float, float]] = field(default_factory=list)
    outside: int = 0

    def add(
        self,
        id: str,
        times: NDArray[np.float64],
        marks: NDArray[np.int64],
        start: float,
        stop: float,
    ) -> None:
        """One day's events in order of time; those outside its window are counted and left out."""
        inside = (times >= start) & (times < stop)
        self.outside += int((~inside).sum())
        self.ids.append(id)
        self.times.append(times[inside])
        self.marks.append(marks[inside])
        self.windows.append((start, stop))


def cut(
    days: Days, seconds: float, source: Path, name: str, notes: list[str]
) -> tuple[Dataset, list[str]]:
    """The days as a data set, in windows of ``seconds`` or whole where that is 0, and the notes
    with what was left out.

    The last window of a day may be shorter. Times stay seconds after midnight.

    >>> days = Days(MarkSpace())
    >>> days.add("monday", np.array([1.0, 2.5, 7.0]), np.zeros(3, int), 0.0, 8.0)
    >>> [
    ...     (s.id, s.start, s.stop, s.times.tolist())
    ...     for s in cut(days, 3.0, Path("x.csv"), "x", [])[0]
    ... ]
    [('monday 0', 0.0, 3.0, [1.0, 2.5]), ('monday 1', 3.0, 6.0, []), ('monday 2', 6.0, 8.0, [7.0])]
    """
    if not (np.isfinite(seconds) and seconds >= 0):
        raise UserError(
            "windows of a length in seconds, or 0 for whole days",
            f"{seconds}",
            "Use seconds=300, say.",
        )
    total = sum(1 if not seconds else (stop - start) / seconds for start, stop in days.windows)
    if total > MOST_WINDOWS:
        raise UserError(
            f"at most {MOST_WINDOWS:,} windows",
            f"{total:,.0f} of {seconds} seconds",
            "Take longer ones.",
        )
    if not sum(len(times) for times in days.times):
        raise EventDataError(
            "at least one event",
            f"{source}: none in {len(days.ids)} days",
            "Check the file and the session.",
        )
    edges = [_edges(start, stop, seconds) for start, stop in days.windows]
    offsets, base = [np.zeros(1, dtype=np.int64)], 0
    for times, edge in zip(days.times, edges, strict=True):
        offsets.append(base + np.searchsorted(times, edge[1:], side="left"))
        base += len(times)
    data = Dataset(
        np.concatenate(days.times),
        np.concatenate(days.marks),
        np.concatenate(offsets).astype(np.int64),
        np.concatenate([edge[:-1] for edge in edges]),
        np.concatenate([edge[1:] for edge in edges]),
        days.space,
        ids=tuple(
            id if len(edge) == 2 and not seconds else f"{id} {i}"
            for id, edge in zip(days.ids, edges, strict=True)
            for i in range(len(edge) - 1)
        ),
        unit="seconds",
        name=name,
    )
    left = (
        [f"{days.outside:,} events are outside the observed window and left out"]
        if days.outside
        else []
    )
    return data, notes + left


def _edges(start: float, stop: float, seconds: float) -> NDArray[np.float64]:
    if not seconds:
        return np.array([start, stop])
    edges = start + seconds * np.arange(int(np.ceil((stop - start) / seconds)))
    # Rounding may leave a last window of no length.
    return np.append(edges[edges < stop - 1e-6 * seconds], stop)
