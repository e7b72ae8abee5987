"""Axes of dates: ticks at round local times, while the plotted values stay the model's times.

Ticks are whole seconds, minutes, hours, days, months or years of the clock on the wall, so that
they stay at the same hours where clocks change. A time that occurs twice has its tick at the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import Formatter, Locator
from numpy.typing import NDArray

from fourpoint.events.dates import Dates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TICKS = 8
# Steps in seconds up to days, and then in months.
STEPS = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200)
DAYS = (86400, 2 * 86400, 7 * 86400, 14 * 86400)
MONTHS = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1200)
MONDAY = 4 * 86400  # 1970-01-05
FAR = 200 * 365 * 86400.0  # seconds; an axis that reaches further keeps its numbers


def show_dates(ax: Axes, dates: Dates) -> None:
    """Label the horizontal axis of ``ax``, whose values are times of a sequence, with its dates.

    >>> import matplotlib.pyplot as plt
    >>> ax = plt.subplots()[1]
    >>> _ = ax.set_xlim(0, 12)
    >>> show_dates(ax, Dates(1748908800.0, "hours", "Europe/Berlin"))
    >>> [label.get_text() for label in ax.get_xticklabels()][:2]
    ['02:00\\n3 Jun 2025', '04:00']
    """
    ax.xaxis.set_major_locator(DateLocator(dates))
    ax.xaxis.set_major_formatter(DateFormatter(dates))
    ax.set_xlabel(f"local time ({dates.zone})" if dates.zone else "time")


class DateLocator(Locator):
    """Ticks at round local times, at most ``MOST_TICKS`` of them."""

    def __init__(self, dates: Dates) -> None:
        self.dates = dates

    def __call__(self) -> list[float]:
        """The ticks of the axis as it is now."""
        if self.axis is None:
            return []
        low, high = self.axis.get_view_interval()
        return self.tick_values(float(low), float(high))

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """The ticks between two times."""
        low, high = sorted((vmin, vmax))
        if not np.isfinite([low, high]).all() or high <= low:
            return []
        walls = self.dates.wall(np.array([low, high])).astype("datetime64[s]")
        first, last = walls.astype(np.int64).tolist()
        found = []
        for wall in _round_walls(first, last):
            time = self.dates.first(wall.item())
            if time is not None and low <= time <= high:
                found.append(time)
        return found


class DateFormatter(Formatter):
    """Times of day, with the date below at the first tick and where the day changes; or days, with
    the year below.
    """

    def __init__(self, dates: Dates) -> None:
        self.dates = dates

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The date of one time, as it is shown under the pointer."""
        return self.dates.text(x)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of all ticks."""
        if not len(values):
            return []
        times = np.asarray(values, dtype=np.float64)
        walls = self.dates.wall(times).astype("datetime64[s]")
        days = walls.astype("datetime64[D]")
        minutes = walls.astype("datetime64[m]")
        clock = "%H:%M"
        if (walls != minutes).any():
            clock = "%H:%M:%S"
        if (walls == days).all():
            clock = ""
        labels = []
        last: Any = None
        for wall in walls:
            stamp: Any = wall.item()
            day = f"{stamp.day} {stamp:%b}"
            new_day = last is None or stamp.date() != last.date()
            new_year = last is None or stamp.year != last.year
            last = stamp
            if not clock:
                labels.append(f"{day}\n{stamp.year}" if new_year else day)
                continue
            lines = [format(stamp, clock)]
            if new_day:
                lines.append(f"{day} {stamp.year}" if new_year else day)
            labels.append("\n".join(lines))
        return labels


def _round_walls(first: int, last: int) -> NDArray[np.datetime64]:
    """Round local times from ``first`` to ``last``, in seconds since 1970."""
    span = max(last - first, 1)
    if span > FAR:
        return np.zeros(0, dtype="datetime64[s]")
    for step in (*STEPS, *DAYS):
        if span / step <= MOST_TICKS:
            origin = MONDAY if step % (7 * 86400) == 0 else 0
            low = -(-(first - origin) // step) * step + origin
            return np.arange(low, last + 1, step).astype("datetime64[s]")
    ends = np.array([first, last]).astype("datetime64[s]")
    first_month, last_month = ends.astype("datetime64[M]").astype(np.int64).tolist()
    for step in MONTHS:
        if (last_month - first_month) / step <= MOST_TICKS:
            break
    low = -(-first_month // step) * step
    months = np.arange(low, last_month + 1, step).astype("datetime64[M]")
    found = months.astype("datetime64[s]")
    return found[found.astype(np.int64) >= first]
