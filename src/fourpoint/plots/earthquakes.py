"""Charts of an earthquake catalogue and of an ETAS model: arrays in, matplotlib Axes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fourpoint.plots.charts import COLOURS, axes_or_new, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def catalogue_plot(
    places: ArrayLike, magnitudes: ArrayLike, *, label: str = "km", ax: Axes | None = None
) -> Axes:
    """Events at ``places`` (N, 2), larger for larger ``magnitudes`` (N,).

    >>> catalogue_plot([[0.0, 1.0]], [3.0]).get_xlabel()
    'x (km)'
    """
    where = np.asarray(places, dtype=np.float64).reshape(-1, 2)
    size = np.asarray(magnitudes, dtype=np.float64)
    order = np.argsort(size)
    x, y = where[order].T
    above = size[order] - size.min(initial=np.inf)
    area = 0.6 * np.exp(1.2 * above)
    with look():
        ax = axes_or_new(ax, 6.0, 5.0)
        ax.scatter(x, y, s=area, color=COLOURS[0], alpha=0.35, lw=0)
        ax.set(xlabel=f"x ({label})", ylabel=f"y ({label})")
        ax.set_aspect("equal")
    return ax


def decay_plot(
    lags: ArrayLike,
    fitted: ArrayLike,
    middles: ArrayLike,
    found: ArrayLike,
    *,
    unit: str = "days",
    ax: Axes | None = None,
) -> Axes:
    """The fitted decay at ``lags`` and the declustered one at ``middles``, on logarithmic axes.

    >>> decay_plot([1.0, 2.0], [1.0, 0.5], [1.5], [0.7]).get_xscale()
    'log'
    """
    with look():
        ax = axes_or_new(ax, 5.0, 4.0)
        ax.plot(np.asarray(lags), np.asarray(fitted), color=COLOURS[0], label="fitted")
        ax.plot(np.asarray(middles), np.asarray(found), "o", ms=3, color=COLOURS[1])
        ax.set(xscale="log", yscale="log", xlabel=f"time since the parent ({unit})")
        ax.set_ylabel(f"density of offspring (per {unit.rstrip('s')})")
    return ax


def productivity_plot(
    magnitudes: ArrayLike,
    fitted: ArrayLike,
    middles: ArrayLike,
    found: ArrayLike,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Mean direct offspring by magnitude: fitted, and declustered at ``middles``.

    >>> productivity_plot([2.0, 3.0], [0.1, 1.0], [2.5], [0.4]).get_yscale()
    'log'
    """
    with look():
        ax = axes_or_new(ax, 5.0, 4.0)
        ax.plot(np.asarray(magnitudes), np.asarray(fitted), color=COLOURS[0])
        ax.plot(np.asarray(middles), np.asarray(found), "o", ms=3, color=COLOURS[1])
        ax.set(yscale="log", xlabel="magnitude", ylabel="direct offspring per event")
    return ax


def residual_plot(
    times: ArrayLike, expected: ArrayLike, *, unit: str = "days", ax: Axes | None = None
) -> Axes:
    """Events observed less expected since the first of ``times`` (N,), given the ``expected``
    number up to each event.

    >>> residual_plot([0.0, 1.0], [0.5, 2.0]).get_ylabel()
    'observed minus expected events'
    """
    when = np.asarray(times, dtype=np.float64)
    total = np.asarray(expected, dtype=np.float64)
    count = np.arange(1, len(when) + 1)
    band = 1.96 * np.sqrt(np.maximum(total, 0.0))
    with look():
        ax = axes_or_new(ax, 6.0, 3.5)
        ax.fill_between(when, -band, band, color=COLOURS[7], alpha=0.2, lw=0)
        ax.plot(when, count - total, color=COLOURS[0])
        ax.axhline(0.0, color=COLOURS[7], lw=0.8)
        ax.set(xlabel=f"time ({unit})", ylabel="observed minus expected events")
    return ax
