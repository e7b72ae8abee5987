"""Plots of where one of two models is better: arrays in, matplotlib Axes out.

log_difference_plot       of one log: the cumulative difference of log-likelihood over time
sequence_difference_plot  of many sequences: the difference of each, in order
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fourpoint.plots.charts import COLOURS, SOFT, axes_or_new, label_time, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fourpoint.events.dates import Dates


def log_difference_plot(
    times: ArrayLike,
    gains: ArrayLike,
    *,
    unit: str = "",
    dates: Dates | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The running sum of ``gains`` (N,) in nats at ``times`` (N,) in ``unit``. Where the line rises
    the first model is better. With ``dates`` the axis shows them.

    >>> log_difference_plot([1.0, 2.0], [0.5, -0.2], unit="h").get_xlabel()
    'time (h)'
    """
    t = np.asarray(times, dtype=float)
    total = np.cumsum(np.asarray(gains, dtype=float))
    with look():
        ax = axes_or_new(ax, 6.4, 3.2)
        ax.axhline(0.0, color=SOFT, lw=0.8)
        ax.plot(t, total, color=COLOURS[0], lw=1.4)
        label_time(ax, unit, dates)
        ax.set_ylabel("first minus second (cumulative, nats)")
    return ax


def sequence_difference_plot(per_event: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Differences in nats per event, one for each sequence, in ascending order.

    >>> sequence_difference_plot([0.1, -0.3]).get_ylabel()
    'first minus second (nats per event)'
    """
    values = np.sort(np.asarray(per_event, dtype=float))
    place = (np.arange(len(values)) + 0.5) / len(values)
    better = values > 0
    with look():
        ax = axes_or_new(ax, 6.4, 3.2)
        ax.axhline(0.0, color=SOFT, lw=0.8)
        ax.vlines(place[better], 0.0, values[better], color=COLOURS[0], lw=1.0)
        ax.vlines(place[~better], 0.0, values[~better], color=COLOURS[1], lw=1.0)
        ax.set_xlim(0.0, 1.0)
        ax.set_xlabel("share of sequences")
        ax.set_ylabel("first minus second (nats per event)")
    return ax
