"""Plots of what comes next and of how well a model fits: arrays in, matplotlib Axes out, in the
style of `plots.charts`.

forecast_plot    the rate up to now, then its expected path with a band, and the next event
counts_plot      expected counts in the next windows, with intervals
qq_plot          residuals against the unit exponential, with an envelope
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.plots.charts import (
    COLOURS,
    FAINT,
    INK,
    SOFT,
    axes_or_new,
    colours,
    label_time,
    look,
    mark_ids,
    rate_label,
    singular,
    vector,
)
from fourpoint.sanitising import plot_name, plot_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fourpoint.events.dates import Dates


def forecast_plot(
    times: ArrayLike,
    mean: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    past_times: ArrayLike = (),
    past_rate: ArrayLike = (),
    events: ArrayLike = (),
    event_marks: ArrayLike | None = None,
    names: Sequence[str] = (),
    interval: tuple[float, float] | None = None,
    median: float | None = None,
    unit: str = "",
    dates: Dates | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The total rate in the past and its expected path in the future.

    ``times`` (Q,) from now on in ``unit``, with the ``mean`` rate over sampled paths and the band
    ``low`` to ``high``; ``past_times`` and ``past_rate`` lead up to now; ``events`` (N,) are ticks,
    coloured by ``event_marks``. ``interval`` and ``median`` of the next event's time are drawn as a
    bar under the axis. With ``dates`` the axis shows them.

    >>> t = np.linspace(5, 8, 20)
    >>> ax = forecast_plot(
    ...     t,
    ...     0 * t + 2,
    ...     0 * t + 1,
    ...     0 * t + 3,
    ...     events=[1.0, 4.5],
    ...     interval=(5.1, 6.5),
    ...     median=5.4,
    ...     unit="h",
    ... )
    >>> ax.get_xlabel()
    'time (h)'
    """
    t = vector(times)
    m = vector(mean)
    lo = vector(low)
    hi = vector(high)
    p = vector(past_times)
    r = vector(past_rate)
    e = vector(events)
    marks = mark_ids(event_marks, len(e))
    shades = colours(max(len(names), int(marks.max(initial=0)) + 1))
    now = t[0]
    with look():
        ax = axes_or_new(ax, 10, 3.4)
        highest = max(float(hi.max(initial=0)), float(r.max(initial=0)), 1e-12)
        top = 1.08 * highest
        below = -0.038 * top  # where the next event's interval is drawn
        ax.axvline(now, color=SOFT, lw=1)
        ax.fill_between(t, lo, hi, color=COLOURS[1], alpha=0.18, lw=0)
        ax.plot(t, m, color=COLOURS[1])
        if len(p):
            ax.plot(p, r, color=COLOURS[0])
        for k in np.unique(marks):
            ax.vlines(e[marks == k], -0.06 * top, -0.015 * top, color=shades[k], lw=1.1)
        if interval is not None:
            bar: dict[str, Any] = dict(lw=4, alpha=0.5, solid_capstyle="butt")
            ax.plot(interval, [below, below], color=COLOURS[1], **bar)
        if median is not None and np.isfinite(median):
            ax.plot([median], [below], marker="|", ms=9, mew=2, color=COLOURS[1], lw=0)
        note: dict[str, Any] = dict(
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
        )
        ax.annotate("now", (now, 1), (-4, -2), ha="right", weight="bold", color=INK, **note)
        band = "expected, with 90% of paths"
        ax.annotate(band, (now, 1), (5, -2), ha="left", color=COLOURS[1], **note)
        ax.axhline(0, color=SOFT, lw=0.8)
        ax.set_ylim(-0.08 * top, top)
        ax.set_yticks([v for v in ax.get_yticks() if 0 <= v <= top])
        ax.set_xlim(p[0] if len(p) else now, t[-1])
        label_time(ax, unit, dates)
        ax.set_ylabel(rate_label(unit))
    return ax


def counts_plot(
    edges: ArrayLike,
    mean: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    truth: ArrayLike | None = None,
    unit: str = "",
    dates: Dates | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Expected counts in W windows between W + 1 ``edges``, with their intervals, and the observed
    counts ``truth`` if they are known. With ``dates`` the axis shows dates.

    >>> ax = counts_plot([0, 1, 2], [3.0, 4.0], [1, 1], [6, 8], truth=[2, 5])
    >>> ax.get_ylabel()
    'events per interval'
    >>> counts_plot([0, 1, 2], [3.0, 4.0], [1, 1], [6, 8], unit="hours").get_ylabel()
    'events per hour'
    """
    x = vector(edges)
    m = vector(mean)
    lo = vector(low)
    hi = vector(high)
    widths = np.diff(x)
    middle = (x[1:] + x[:-1]) / 2
    with look():
        ax = axes_or_new(ax, 4.6, 3.0)
        ax.bar(middle, m, width=0.8 * widths, color=COLOURS[1], alpha=0.35, lw=0)
        ax.vlines(middle, lo, hi, color=COLOURS[1], lw=2)
        if truth is not None:
            size = 5 if len(middle) <= 40 else 2.5
            ax.plot(middle, np.asarray(truth, float), marker="o", color=INK, lw=0, ms=size)
        ax.set_xlim(x[0], x[-1])
        label_time(ax, unit, dates)
        ax.set_ylabel(_count_label(widths, unit if dates is None else dates.unit))
    return ax


def _count_label(widths: NDArray[np.float64], unit: str) -> str:
    """The label of an axis of counts in intervals of these widths."""
    if not unit or not np.allclose(widths, widths[:1]):
        return "events per interval"
    width = widths[0]
    if np.isclose(width, 1.0):
        return f"events per {plot_name(singular(unit))}"
    return f"events in {width:g} {plot_name(unit)}"


def qq_plot(
    theory: ArrayLike,
    observed: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Residuals against unit exponential quantiles, with their envelope: points outside show where
    the model is wrong.

    >>> q = np.linspace(0.1, 4, 30)
    >>> ax = qq_plot(q, 1.1 * q, 0.9 * q, 1.2 * q)
    >>> ax.get_xlabel()
    'quantiles of the unit exponential'
    """
    q = vector(theory)
    o = vector(observed)
    lo = vector(low)
    hi = vector(high)
    outside = (o < lo) | (o > hi)
    with look():
        ax = axes_or_new(ax, 3.6, 3.4)
        ax.grid(True, axis="x")
        ax.fill_between(q, lo, hi, color=FAINT, lw=0)
        ax.plot(q, q, color=SOFT, lw=1)
        for chosen, shade in ((~outside, COLOURS[0]), (outside, COLOURS[1])):
            ax.scatter(q[chosen], o[chosen], s=9, color=shade, lw=0)
        ax.set_title(plot_text(title))
        ax.set_xlabel("quantiles of the unit exponential")
        ax.set_ylabel("rescaled gaps")
    return ax
