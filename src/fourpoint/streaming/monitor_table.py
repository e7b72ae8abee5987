"""Monitors of a bank's entities in a table: a row of arrays each, so that a block of gaps is one
compiled loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint import kernels
from fourpoint.kernels.numba_monitor import BINS
from fourpoint.streaming.monitoring import (
    FEWEST,
    LOG2,
    STRIDE,
    WINDOW,
    Alarm,
    Monitor,
    as_header,
)

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


class MonitorTable:
    """Rows of monitors, each of which may be absent.

    ``alarms`` and ``share`` are those of :class:`~fourpoint.streaming.monitoring.Monitor`; None:
    nothing is watched.

    >>> table = MonitorTable(1e-3)
    >>> table.grow(2)
    >>> table.observe(np.array([0, 1, 0]), np.array([0.5, 20.0, 0.7]), np.array([0.5, 3.0, 1.2]))[
    ...     1
    ... ][0].kind
    'silence'
    >>> table[0].state()[0]["seen"], table[1].state()[0]["seen"]
    (2, 1)
    """

    def __init__(self, alarms: float | None, share: float = 1.0) -> None:
        self.alarms, self.share = alarms, share
        self.limits = None if alarms is None else Monitor(alarms, share).thresholds
        self.present: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.sums: Floats = np.zeros((0, 2, 3))  # burst and silence: value, count, total
        self.told: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.seen: Rows = np.zeros(0, dtype=np.int64)
        self.windows: Floats = np.zeros((0, WINDOW))
        self._bins: Rows = np.zeros(BINS, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.present)

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` in all; new ones have no monitor."""
        self.present = _longer(self.present, rows)
        self.told = _longer(self.told, rows)
        self.seen = _longer(self.seen, rows)
        self.sums = _longer(self.sums, rows)
        if self.alarms is not None:
            self.windows = _longer(self.windows, rows)

    def clear(self, rows: Rows) -> None:
        """Take the monitors of rows away."""
        self.present[rows] = False
        self.told[rows] = False
        self.seen[rows] = 0
        self.sums[rows] = 0.0

    def copied(self, rows: Rows) -> MonitorCopies:
        """The monitors of ``rows``, in this order. Of their windows no more is copied than the
        longest of them has.
        """
        seen = self.seen[rows]
        longest = min(int(seen.max(initial=0)), WINDOW)
        return MonitorCopies(
            self.alarms or 0.0,
            self.share,
            self.present[rows],
            self.sums[rows],
            self.told[rows],
            seen,
            self.windows[:, :longest][rows] if self.alarms is not None else self.windows,
        )

    def __getitem__(self, row: int) -> Monitor | None:
        """The monitor of a row. What becomes of it counts once it is put back."""
        if not self.present[row]:
            return None
        return self._monitor(row)

    def __setitem__(self, row: int, monitor: Monitor | None) -> None:
        if monitor is None or self.alarms is None:
            self.clear(np.array([row]))
            return
        self.present[row] = True
        self.sums[row], self.told[row], self.seen[row] = monitor.numbers()
        self.windows[row] = monitor.window

    def _monitor(self, row: int) -> Monitor:
        sums = self.sums[row].tolist()
        return Monitor.of_numbers(
            self.alarms or 0.0,
            self.share,
            sums,
            bool(self.told[row]),
            int(self.seen[row]),
            self.windows[row],
        )

    def observe(self, rows: Rows, gaps: Floats, times: Floats) -> dict[int, tuple[Alarm, ...]]:
        """Gaps of rows that have ended, in order: the alarms that they raise, by place. Rows
        without a monitor get one.
        """
        if self.limits is None:
            return {}
        loop = kernels.MONITOR.choose()
        if loop is None:
            return self.observe_one_by_one(rows, gaps, times)
        self.present[rows] = True
        raised: dict[int, tuple[Alarm, ...]] = {}
        table = (self.sums, self.told, self.seen, self.windows, self._bins, LOG2)
        rule = (FEWEST, STRIDE)
        place = 0
        while True:
            place = loop(place, rows, gaps, *table, *self.limits, rule)
            if place == len(rows):
                return raised
            row = int(rows[place])
            monitor = self._monitor(row)
            found = monitor.gap(float(gaps[place]), float(times[place]))
            self[row] = monitor
            if found:
                raised[place] = found
            place += 1

    def observe_one_by_one(
        self, rows: Rows, gaps: Floats, times: Floats
    ) -> dict[int, tuple[Alarm, ...]]:
        """The same without numba: every monitor is taken out and put back once."""
        monitors = {row: self._monitor(row) for row in np.unique(rows).tolist()}
        raised: dict[int, tuple[Alarm, ...]] = {}
        for place, (row, gap, time) in enumerate(
            zip(rows.tolist(), gaps.tolist(), times.tolist(), strict=True)
        ):
            found = monitors[row].gap(gap, time)
            if found:
                raised[place] = found
        for row, monitor in monitors.items():
            self[row] = monitor
        return raised

    def silences(self, rows: Rows, gaps: Floats, time: float) -> dict[int, tuple[Alarm, ...]]:
        """No event of ``rows`` up to ``time``, where their gaps have grown to ``gaps``: alarms of
        those that are too long, by place; each is told once.
        """
        if self.limits is None:
            return {}
        self.present[rows] = True
        raised: dict[int, tuple[Alarm, ...]] = {}
        for place in self._too_long(rows, gaps):
            row = int(rows[place])
            monitor = self._monitor(row)
            raised[place] = monitor.silence(float(gaps[place]), time)
            self[row] = monitor
        return raised

    def open_silences(self, rows: Rows, gaps: Floats, time: float) -> dict[int, tuple[Alarm, ...]]:
        """The alarms that :meth:`silences` would raise; nothing changes."""
        return {
            place: self._monitor(int(rows[place])).silence(float(gaps[place]), time)
            for place in self._too_long(rows, gaps)
        }

    def _too_long(self, rows: Rows, gaps: Floats) -> list[int]:
        """The places of ``rows`` whose gaps are too long, and were not told yet."""
        if self.limits is None:
            return []
        long = (self.sums[rows, 1, 0] + gaps / 2 >= self.limits.silence) | (gaps >= self.limits.gap)
        return [int(place) for place in np.flatnonzero(long & ~self.told[rows])]


@dataclass(frozen=True)
class MonitorCopies:
    """Rows of a table of monitors, copied, which another thread may read."""

    alarms: float
    share: float
    present: NDArray[np.bool_]
    sums: Floats
    told: NDArray[np.bool_]
    seen: Rows
    windows: Floats

    def states(self) -> Iterator[tuple[dict[str, Any], Floats] | None]:
        """What :meth:`~fourpoint.streaming.monitoring.Monitor.state` gives, row by row; None where
        there is no monitor.
        """
        columns = (self.present, self.sums, self.told, self.seen)
        for i, (present, *numbers) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            if not present:
                yield None
                continue
            window = self.windows[i, : min(int(self.seen[i]), WINDOW)]
            yield as_header(self.alarms, self.share, *numbers), window


def _longer(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """The same with ``rows`` rows; the new ones are zero."""
    found = np.zeros((rows, *array.shape[1:]), dtype=array.dtype)
    found[: len(array)] = array
    return found
