"""Maps of a rate over space: arrays in, matplotlib Axes out, in the style of `plots.charts`.

map_plot      a rate over a rectangle, with past events drawn on it, the older the fainter
profile_plot  the same over one axis
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.events import UserError
from fourpoint.plots.charts import COLOURS, GROUND, INK, SOFT, axes_or_new, look
from fourpoint.sanitising import plot_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = ("#f7fafc", "#d3e4f3", "#9cc6e6", "#58a0d3", "#1f72b4", "#0b4c8c", "#072b57")
ORDERS = 100.0  # a rate that ranges over more than this is drawn on a logarithmic scale


def map_plot(
    x: ArrayLike,
    y: ArrayLike,
    rate: ArrayLike,
    *,
    places: ArrayLike | None = None,
    ages: ArrayLike | None = None,
    names: tuple[str, str] = ("x", "y"),
    label: str = "rate",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """The ``rate`` (X, Y) over a rectangle, at cell middles ``x`` (X,) and ``y`` (Y,), and events
    at ``places`` (N, 2).

    ``ages`` (N,) from 0, just now, to 1 make events fade. The colours are on a logarithmic scale
    where the rate spans more than two orders of magnitude, and then end at a thousandth of the
    largest rate. Fails where lengths differ.

    >>> ax = map_plot(
    ...     [0.25, 0.75],
    ...     [0.5],
    ...     [[1.0], [2.0]],
    ...     places=[[0.3, 0.4]],
    ...     names=("longitude", "latitude"),
    ... )
    >>> ax.get_xlabel(), ax.get_xlim()
    ('longitude', (np.float64(0.0), np.float64(1.0)))
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    a = np.asarray(x, float)
    b = np.asarray(y, float)
    z = np.asarray(rate, float)
    if z.shape != (len(a), len(b)):
        raise UserError(
            f"a rate of shape ({len(a)}, {len(b)})",
            f"{z.shape}",
            "Give one value for every x and y.",
        )
    left, right, low, high = *_ends(a), *_ends(b)
    wide = (right - left) / (high - low)
    alike = 0.4 < wide < 2.6  # axes of like length are taken to have one unit
    with look():
        ax = axes_or_new(ax, *_size(wide, alike))
        top = float(z.max())
        bottom = float(z.min())
        logarithmic = top > ORDERS * max(bottom, 0.0) and top > 0
        norm = Normalize(0.0, top or 1.0)
        if logarithmic:
            norm = LogNorm(max(bottom, top / 1000), top)
        cells = LinearSegmentedColormap.from_list("map", SHADES)
        picture = ax.imshow(
            z.T,
            origin="lower",
            extent=(left, right, low, high),
            cmap=cells,
            norm=norm,
            interpolation="bilinear",
            zorder=0,
        )
        ax.set_aspect("equal" if alike else "auto")
        _events(ax, places, ages)
        cut = logarithmic and bottom < top / 1000
        extend = "min" if cut else "neither"
        bar = ax.figure.colorbar(picture, ax=ax, fraction=0.04, pad=0.02, extend=extend)
        bar.set_label(plot_text(label))
        bar.outline.set_visible(False)
        ax.grid(False)
        ax.set(
            xlim=(left, right),
            ylim=(low, high),
            xlabel=plot_text(names[0]),
            ylabel=plot_text(names[1]),
            title=plot_text(title),
        )
        for spine in ax.spines.values():
            spine.set(visible=True, color=SOFT, linewidth=0.8)
    return ax


def profile_plot(
    x: ArrayLike,
    rate: ArrayLike,
    *,
    places: ArrayLike | None = None,
    name: str = "x",
    label: str = "rate",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """The ``rate`` (X,) along one axis, with past events as ticks below.

    >>> profile_plot([0.25, 0.75], [1.0, 2.0], places=[0.3], name="depth").get_xlabel()
    'depth'
    """
    a = np.asarray(x, float)
    z = np.asarray(rate, float)
    with look():
        ax = axes_or_new(ax, 8, 3.2)
        ax.fill_between(a, z, color=COLOURS[0], alpha=0.15, lw=0)
        ax.plot(a, z, color=COLOURS[0])
        if places is not None:
            where = np.asarray(places, float).reshape(-1)
            ground = np.zeros(len(where))
            ax.plot(where, ground, "|", color=INK, ms=9, alpha=0.5, clip_on=False)
        ax.set(
            xlim=_ends(a),
            ylim=(0, None),
            xlabel=plot_text(name),
            ylabel=plot_text(label),
            title=plot_text(title),
        )
    return ax


def _events(ax: Axes, places: ArrayLike | None, ages: ArrayLike | None) -> None:
    """Events as dots with a light rim, so that they show on any colour; old ones are small and
    faint.
    """
    if places is None:
        return
    where = np.asarray(places, float).reshape(-1, 2)
    if not len(where):
        return
    age = np.zeros(len(where)) if ages is None else np.clip(np.asarray(ages, float), 0, 1)
    order = np.argsort(-age)  # the latest are drawn last, on top
    fresh = (1 - age[order]) ** 2
    size = 10 + 26 * fresh
    if len(where) > 500:
        size = size / 2
    dots: dict[str, Any] = dict(s=size, alpha=0.25 + 0.75 * fresh, color=COLOURS[1], zorder=3)
    ax.scatter(*where[order].T, edgecolors=GROUND, linewidths=0.5, **dots)


def _size(wide: float, alike: bool) -> tuple[float, float]:
    """Width and height in inches of a map that is ``wide`` times as wide as it is high."""
    if not alike:
        return 8.4, 4.6
    if wide > 1:
        return 6.6, 6.2 / wide + 0.3
    return 6.2 * wide + 1.2, 6.2


def _ends(middles: NDArray[np.float64]) -> tuple[float, float]:
    half = (middles[1] - middles[0]) / 2 if len(middles) > 1 else 0.5
    return middles[0] - half, middles[-1] + half
