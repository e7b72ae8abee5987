"""Plots of point processes: arrays in, matplotlib Axes out.

Every function draws into ``ax``, or into a new figure where it is None, and returns the Axes. They
share one style, :data:`LOOK`: a light background, a faint grid, eight colours that colour-blind
readers can tell apart (after Okabe and Ito), and names beside the lines rather than in a legend.
:data:`DARK` gives the counterpart of each colour on a dark background, and :func:`plot_style`
chooses letters, lines and sizes for papers or slides.

    intensity_plot        lambda(t), with the events as ticks below
    kernel_plot           kappa(d) against the lag d, one line per head
    spectrum_plot         where the kernel's frequencies and decays lie
    learning_curve_plot   log-likelihood per event against steps
    attention_plot        what each past event adds at one time, or a lower triangle of weights
    comparison_plot       log-likelihood per event, model by model
    gains_plot            what each explanation adds to those before, with intervals
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.events import UserError
from fourpoint.events.dates import SECONDS
from fourpoint.sanitising import plot_name, plot_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fourpoint.events.dates import Dates

INK = "#1d2733"
SOFT = "#5c6875"
FAINT = "#dfe4ea"
GROUND = "#ffffff"
COLOURS = ("#0068b8", "#d65a00", "#00926c", "#b8578e", "#c78a00", "#3fa3dd", "#6a55b5", "#7d8894")
_BRIGHT = ("#58a9f0", "#ff9046", "#3dc79d", "#e68cbc", "#efb93c", "#8ad0f7", "#a797ef", "#a3aeba")
DARK: Mapping[str, str] = {
    INK: "#e8edf3",
    SOFT: "#9aa7b5",
    FAINT: "#2c3744",
    GROUND: "#141b24",
} | dict(zip(COLOURS, _BRIGHT, strict=True))
LEGEND_ROWS = 5  # of a legend above the axes
CHARACTERS_PER_INCH = 13
ANY_UNIT = "unit of time"
LOOK: Mapping[str, Any] = {
    "figure.facecolor": GROUND,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.facecolor": GROUND,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


Style = Literal["screen", "paper", "slides"]
# What differs from LOOK, and the width in inches of a new figure with its least height.
STYLES: Mapping[Style, Mapping[str, Any]] = {
    "screen": {},
    "paper": {
        "font.family": "serif",
        "font.serif": ["Times New Roman", "Nimbus Roman", "Liberation Serif", "DejaVu Serif"],
        "mathtext.fontset": "stix",
        "font.size": 8,
        "axes.labelsize": 8,
        "axes.titlesize": 8.5,
        "lines.linewidth": 1.1,
        "savefig.dpi": 300,
        "pdf.fonttype": 42,
    },
    "slides": {
        "font.size": 17,
        "axes.labelsize": 17,
        "axes.titlesize": 20,
        "axes.linewidth": 1.2,
        "lines.linewidth": 3.0,
        "xtick.major.size": 5,
    },
}
SIZES: Mapping[Style, tuple[float, float]] = {"paper": (3.4, 2.3), "slides": (11.0, 5.4)}
_style: ContextVar[Style] = ContextVar("style", default="screen")


@contextmanager
def plot_style(style: Style) -> Iterator[None]:
    """A context manager in which all plots of this package are drawn in one style.

    Args:
        style: "paper" (a column of 3.4 inches, serif letters of 8 points, fonts embedded in PDF),
            "slides" (11 inches, letters of 17 points, thick lines) or "screen", the default.

    Raises :class:`UserError` for another name.

    >>> with plot_style("paper"):
    ...     ax = learning_curve_plot([0, 100], [-2.0, -1.5], [-2.1, -1.7])
    >>> float(ax.figure.get_size_inches()[0]), ax.xaxis.label.get_size()
    (3.4, 8.0)
    """
    if style not in STYLES:
        known = ", ".join(STYLES)
        raise UserError(f"a style among {known}", f"{style!r}", "Choose one of them.")
    before = _style.set(style)
    try:
        with look():
            yield
    finally:
        _style.reset(before)


@contextmanager
def look() -> Iterator[None]:
    """Draw in the style of this package inside this block.

    >>> with look():
    ...     axes = learning_curve_plot([0, 100], [-2.0, -1.5], [-2.1, -1.7])
    """
    import matplotlib

    settings: dict[Any, Any] = {**LOOK, **STYLES[_style.get()]}
    with matplotlib.rc_context(settings):
        yield


def colours(count: int) -> list[str]:
    """One colour for each of ``count`` things: those of ``COLOURS``, or an even ramp where there
    are too few.

    >>> colours(2)
    ['#0068b8', '#d65a00']
    """
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    import matplotlib
    from matplotlib.colors import to_hex

    places = np.linspace(0.05, 0.9, count)
    return [to_hex(colour) for colour in matplotlib.colormaps["viridis"](places)]


def intensity_plot(
    times: ArrayLike,
    rate: ArrayLike,
    *,
    events: ArrayLike = (),
    event_marks: ArrayLike | None = None,
    names: Sequence[str] = (),
    truth: ArrayLike | None = None,
    truth_name: str = "truth",
    window: tuple[float, float] | None = None,
    band: tuple[ArrayLike, ArrayLike] | None = None,
    stacked: bool = False,
    unit: str = "",
    dates: Dates | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The rate over time, with the events as ticks below.

    ``times`` (Q,) in ``unit``; ``rate`` (Q,) for the total or (Q, M) per mark, in events per
    ``unit``, as lines or, with ``stacked``, as areas that add up to the total; ``events`` (N,) with
    ``event_marks`` (N,) in 0..M-1 get one row of ticks per mark. ``truth`` (Q,) is a dashed line
    called ``truth_name``; ``window`` shades a stretch, a forecast's say; ``band`` are lower and
    upper limits in the shape of ``rate``, shaded around it. With ``dates`` the axis shows them.
    Fails where lengths differ.

    >>> t = np.linspace(0, 24, 97)
    >>> ax = intensity_plot(t, 2 + np.sin(t), events=[1.0, 5.5], unit="h")
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('time (h)', 'rate (events per h)')
    """
    t = vector(times)
    e = vector(events)
    y = np.asarray(rate, float)
    if y.ndim == 1:
        y = y[:, None]
    _same(len(t), len(y), "one rate per time")
    lines = y.shape[1]
    marks = mark_ids(event_marks, len(e))
    rows = max(len(names), lines, int(marks.max(initial=0)) + 1)
    shades = colours(rows)
    with look():
        ax = axes_or_new(ax, 10, 3.2 + 0.16 * rows)
        if window is not None:
            ax.axvspan(*window, color=FAINT, alpha=0.55, lw=0, zorder=0)
        if stacked:
            total = y.sum(1)
            highest = float(total.max())
            ax.stackplot(t, y.T, colors=shades, alpha=0.85, lw=0)
            ax.plot(t, total, color=INK, lw=1.1)
        else:
            highest_band = _shaded(ax, t, y, band, shades)
            highest = max(float(y.max()), highest_band)
            for k in range(lines):
                ax.plot(t, y[:, k], color=shades[k])
        if truth is not None:
            true = vector(truth)
            highest = max(highest, float(true.max()))
            ax.plot(t, true, color=INK, ls=(0, (4, 2)), lw=1.2)
            _note(ax, truth_name, (t[-1], true[-1]), (5, 0), va="center")
        top = 1.06 * max(highest, 1e-12)
        shown_rows = rows if len(e) or names else 0
        _event_rows(ax, e, marks, shown_rows, top, shades, names)
        ax.set_xlim(t[0], t[-1])
        label_time(ax, unit, dates)
        low, high = ax.get_ylim()
        middle = 1 - 0.5 * high / (high - low)  # of the part above the ticks of events
        ax.set_ylabel(rate_label(unit), y=middle)
    return ax


def kernel_plot(
    lags: ArrayLike,
    values: ArrayLike,
    *,
    names: Sequence[str] = (),
    label: str = "kernel",
    band: tuple[ArrayLike, ArrayLike] | None = None,
    unit: str = "",
    ax: Axes | None = None,
) -> Axes:
    """The kernel's value against the lag, one line per head.

    ``lags`` (L,) in ``unit``; ``values`` (L,) or (K, L), dimensionless; ``names`` of the K heads
    ("head 1" by default); ``label`` of the values, where they are an effect rather than the kernel
    itself; ``band`` are lower and upper limits in the shape of ``values``.

    >>> lags = np.linspace(0, 5, 50)
    >>> ax = kernel_plot(lags, [np.exp(-lags), np.cos(lags)], unit="h")
    >>> [text.get_text() for text in ax.texts]
    ['head 1', 'head 2']
    """
    x = vector(lags)
    y = np.atleast_2d(np.asarray(values, float))
    _same(len(x), y.shape[1], "one value per lag and head")
    with look():
        ax = axes_or_new(ax, 4.6, 3.0)
        ax.axhline(0, color=SOFT, lw=0.8)
        shades = colours(len(y))
        _shaded(ax, x, y.T, _turned(band), shades)
        for row, shade in zip(y, shades, strict=True):
            ax.plot(x, row, color=shade)
        ax.set_xlim(x[0], x[-1])
        ax.set_xlabel(time_label(unit, "time since the past event"))
        ax.set_ylabel(plot_text(label))
        last = y[:, -1].tolist()
        ends = list(zip(_heads(names, len(y)), last, shades, strict=True))
        _end_labels(ax, float(x[-1]), ends)
    return ax


def spectrum_plot(
    frequencies: ArrayLike,
    decays: ArrayLike | None = None,
    *,
    names: Sequence[str] = (),
    unit: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Where a learned kernel keeps its spectrum: frequency against decay for each feature, or the
    density of frequencies.

    ``frequencies`` (D,) or (K, D) in cycles per ``unit`` (their sign is dropped: a cosine has
    none); ``decays`` likewise, per ``unit``. Without decays, or where all are 0, one density per
    head is drawn instead.

    >>> ax = spectrum_plot([[0.1, 0.2, 0.4]], [[1.0, 2.0, 0.5]], unit="h")
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('frequency (cycles per h)', 'decay (per h)')
    """
    f = np.abs(np.atleast_2d(np.asarray(frequencies, float)))
    g = None if decays is None else np.atleast_2d(np.asarray(decays, float))
    if g is not None:
        _same(f.size, g.size, "one decay per frequency")
    shades = colours(len(f))
    per = plot_name(unit or ANY_UNIT)
    with look():
        ax = axes_or_new(ax, 4.6, 3.0)
        _legend_line(ax, _heads(names, len(f)), shades)
        if g is None or not g.any():
            for row, shade in zip(f, shades, strict=True):
                _density(ax, row, shade)
            ax.set_ylim(bottom=0)
            ax.set_ylabel("density")
        else:
            ax.grid(True, axis="x")
            for x, y, shade in zip(f, g, shades, strict=True):
                ax.scatter(x, y, s=15, color=shade, alpha=0.6, lw=0)
            _log_where_wide(ax, f, g)
            ax.set_ylabel(f"decay (per {per})")
        ax.set_xlabel(f"frequency (cycles per {per})")
    return ax


def learning_curve_plot(
    steps: ArrayLike,
    train: ArrayLike,
    dev: ArrayLike | None = None,
    *,
    best_step: int | None = None,
    references: Mapping[str, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Log-likelihood per event (nats) against optimiser steps, with the best step marked.

    ``steps`` (S,), ``train`` and ``dev`` (S,), NaN where not measured; ``references`` are other
    models' values on the same dev data, drawn as dotted lines.

    >>> ax = learning_curve_plot([0, 50, 100], [-3.0, -2.2, -2.0], [-3.0, -2.3, -2.4], best_step=50)
    >>> "best at step 50" in [text.get_text() for text in ax.texts]
    True
    """
    x = vector(steps)
    curves = {"train": vector(train)}
    if dev is not None:
        curves["dev"] = vector(dev)
    others = references or {}
    shades = {"train": COLOURS[5], "dev": COLOURS[0]}
    widths = {"train": 1.2, "dev": 1.9}
    with look():
        ax = axes_or_new(ax, 4.6, 3.0)
        ends: list[tuple[str, float, str]] = []
        for label, value in others.items():
            ax.axhline(value, color=SOFT, lw=1.1, ls=(0, (1, 2)))
            ends.append((label, value, SOFT))
        for label, y in curves.items():
            _same(len(x), len(y), f"one {label} value per step")
            there = np.isfinite(y)
            if not there.any():
                continue
            known = y[there]
            shade = shades[label]
            ax.plot(x[there], known, color=shade, lw=widths[label])
            ends.append((label, float(known[-1]), shade))
        if best_step is not None and dev is not None:
            _mark_best(ax, x, curves["dev"], best_step)
        everything = np.concatenate([*curves.values(), list(others.values())])
        right = max(x[-1], x[0] + 1)
        ax.set_ylim(*_robust_range(everything))
        ax.set_xlim(x[0], right)
        ax.set_xlabel("optimiser steps")
        ax.set_ylabel("log-likelihood (nats per event)")
        _end_labels(ax, float(right), ends)
    return ax


def attention_plot(
    times: ArrayLike,
    weights: ArrayLike,
    *,
    at: float | None = None,
    event_marks: ArrayLike | None = None,
    names: Sequence[str] = (),
    label: str = "contribution",
    unit: str = "",
    dates: Dates | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What each past event contributes at one time, as stems; or, for a square of weights, a
    lower-triangular heat map.

    ``times`` (N,) of past events in ``unit``; ``weights`` (N,) or (N, N) with row i looking at
    columns j < i; ``at`` is the query time, drawn as a line; ``event_marks`` (N,) colour the stems;
    ``label`` names the weight. With ``dates`` the axis shows them.

    >>> ax = attention_plot([1.0, 2.0, 2.5], [0.1, 0.3, 0.6], at=3.0, unit="h")
    >>> ax.get_ylabel()
    'contribution'
    """
    t = vector(times)
    w = np.asarray(weights, float)
    _same(len(t), w.shape[-1], "one weight per past event")
    if w.ndim == 2:
        return _heat_map(w, label, ax)
    marks = mark_ids(event_marks, len(t))
    present = np.unique(marks).tolist()
    shades = colours(max(len(names), max(present, default=0) + 1))
    with look():
        ax = axes_or_new(ax, 10, 3.2)
        ax.axhline(0, color=SOFT, lw=0.8)
        for m in present:
            own_times = t[marks == m]
            own_weights = w[marks == m]
            ax.vlines(own_times, 0, own_weights, color=shades[m], lw=1.5, alpha=0.9)
            ax.scatter(own_times, own_weights, s=16, color=shades[m], lw=0, zorder=3)
        if at is not None:
            ax.axvline(at, color=INK, lw=1.1)
            above = ("data", "axes fraction")
            _note(ax, "now", (at, 1), (-4, -2), above, ha="right", va="top", weight="bold")
        if names:
            _legend_line(ax, [names[m] for m in present], [shades[m] for m in present])
        label_time(ax, unit, dates)
        ax.set_ylabel(plot_text(label))
    return ax


def comparison_plot(
    names: Sequence[str],
    values: ArrayLike,
    *,
    baseline: str | None = None,
    highlight: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Log-likelihood per event by model, as horizontal bars with their values, best on top.

    A log-likelihood has no natural zero, so bars start at the ``baseline`` model (the lowest where
    None) and their length is the gain over it. ``values`` (K,) in nats per event; ``highlight`` is
    drawn in the accent colour (the best where None).

    >>> ax = comparison_plot(["Poisson", "DAPP"], [-1.40, -1.10])
    >>> [text.get_text() for text in ax.texts]
    ['−1.400', '−1.100  (+0.300)']
    """
    y = vector(values)
    _same(len(names), len(y), "one value per model")
    order = np.argsort(y)
    by_name = dict(zip(names, y, strict=True))
    start = float(by_name.get(baseline or "", y.min()))
    best = highlight if highlight in names else names[int(order[-1])]
    with look():
        ax = axes_or_new(ax, 10, 0.7 + 0.44 * len(y))
        ax.grid(False, axis="y")
        ax.grid(True, axis="x")
        for row, i in enumerate(order):
            gain = y[i] - start
            shade = COLOURS[7]
            alpha = 0.75
            weight = "normal"
            if names[i] == best:
                shade = COLOURS[0]
                alpha = 1.0
                weight = "bold"
            ax.barh(row, gain, left=start, height=0.58, color=shade, alpha=alpha)
            text = f"{y[i]:.3f}"
            if gain != 0:
                text += f"  ({gain:+.3f})"
            end = max(y[i], start)
            minus = text.replace("-", "\u2212")
            _note(ax, minus, (end, row), (7, 0), va="center", weight=weight)
        low = min(y.min(), start)
        high = max(y.max(), start)
        span = max(float(high - low), 1e-9)
        ax.set_yticks(range(len(y)), [plot_name(names[i]) for i in order], color=INK)
        ax.set_xlim(low - 0.04 * span, high + 0.28 * span)
        ax.axvline(start, color=SOFT, lw=0.9)
        ax.set_xlabel("log-likelihood on unseen data (nats per event; further right is better)")
    return ax


def gains_plot(
    names: Sequence[str],
    gains: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Gains in nats per event as dots with their intervals, the first on top. The accent colour
    marks intervals that lie above 0.

    The axis is linear around 0 and logarithmic further out, so that gains of different sizes can
    be seen together.

    >>> ax = gains_plot(["calendar", "excitation"], [0.2, 0.0], [0.19, -0.001], [0.21, 0.001])
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['calendar', 'excitation']
    """
    y = vector(gains)
    lower = vector(low)
    upper = vector(high)
    _same(len(names), len(y), "one gain per step")
    finite = np.isfinite(lower) & np.isfinite(upper)
    everything = np.concatenate([y, lower[finite], upper[finite]])
    largest = float(np.max(np.abs(everything), initial=0.0))
    with look():
        ax = axes_or_new(ax, 10, 1.0 + 0.5 * len(y))
        ax.grid(False, axis="y")
        ax.grid(True, axis="x")
        for row, gain in enumerate(y):
            shade = COLOURS[7]
            if lower[row] > 0:
                shade = COLOURS[0]
            if finite[row]:
                ax.plot([lower[row], upper[row]], [row, row], color=shade, lw=3.0)
            ax.plot([gain], [row], "o", color=shade, ms=7)
            text = f"{gain:+.4f}".replace("-", "\u2212")
            _note(ax, text, (gain, row), (0, 9), ha="center")
        ax.axvline(0.0, color=SOFT, lw=0.9)
        ax.set_xscale("symlog", linthresh=max(0.002, largest / 100))
        ax.set_yticks(range(len(y)), [plot_name(name) for name in names], color=INK)
        ax.set_ylim(len(y) - 0.5, -0.7)
        ax.set_xlabel("gain on unseen data over the explanation before (nats per event)")
    return ax


def axes_or_new(ax: Axes | None, width: float, height: float) -> Axes:
    """``ax``, or the axes of a new figure with this size in inches, or that of the style."""
    if ax is not None:
        return ax
    size = SIZES.get(_style.get())
    if size is not None:
        wide, least = size
        height = max(least, wide * height / width)
        width = wide
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def mark_ids(marks: ArrayLike | None, events: int) -> NDArray[np.int_]:
    """The mark of each of so many events; 0 for all where None."""
    if marks is None:
        return np.zeros(events, int)
    found = np.asarray(marks, int).reshape(-1)
    _same(events, len(found), "one mark per event")
    return found


def time_label(unit: str, what: str = "time") -> str:
    """The label of an axis of times.

    >>> time_label("h"), time_label("")
    ('time (h)', 'time')
    """
    if not unit:
        return what
    return f"{what} ({plot_name(unit)})"


def label_time(ax: Axes, unit: str, dates: Dates | None) -> None:
    """Label the horizontal axis: with dates where there are some, else with the unit of time."""
    if dates is None:
        ax.set_xlabel(time_label(unit))
        return
    from fourpoint.plots.dates import show_dates

    show_dates(ax, dates)


def rate_label(unit: str) -> str:
    """The label of an axis of rates.

    >>> rate_label("hours"), rate_label("h")
    ('rate (events per hour)', 'rate (events per h)')
    """
    per = singular(unit or ANY_UNIT)
    return f"rate (events per {plot_name(per)})"


def singular(unit: str) -> str:
    """One unit of time: "hour" for "hours".

    >>> singular("days"), singular("ms")
    ('day', 'ms')
    """
    if unit not in SECONDS:
        return unit
    return unit.removesuffix("s")


def vector(values: ArrayLike) -> NDArray[np.float64]:
    """Values as one row of float64.

    >>> vector([[1, 2], [3, 4]]).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _same(expected: int, received: int, what: str) -> None:
    if expected != received:
        raise UserError(
            f"{what} ({expected} of them)",
            f"{received}",
            "Pass arrays of one length.",
        )


def _turned(
    band: tuple[ArrayLike, ArrayLike] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Limits with one column for each line."""
    if band is None:
        return None
    low, high = band
    lower = np.atleast_2d(np.asarray(low, float))
    upper = np.atleast_2d(np.asarray(high, float))
    return lower.T, upper.T


def _shaded(
    ax: Axes,
    x: NDArray[np.float64],
    lines: NDArray[np.float64],
    band: tuple[ArrayLike, ArrayLike] | None,
    shades: Sequence[str],
) -> float:
    """Shade between the limits of each line (a column); returns the highest limit."""
    if band is None:
        return 0.0
    count = lines.shape[1]
    low, high = (np.asarray(limit, float).reshape(len(x), -1) for limit in band)
    for limit in (low, high):
        _same(count, limit.shape[1], "limits of every line")
    for k in range(count):
        ax.fill_between(x, low[:, k], high[:, k], color=shades[k], alpha=0.22, lw=0)
    return float(high.max())


def _heads(names: Sequence[str], count: int) -> list[str]:
    if len(names) == count:
        return list(names)
    return [f"head {k + 1}" for k in range(count)]


def _event_rows(
    ax: Axes,
    events: NDArray[np.float64],
    marks: NDArray[np.int_],
    rows: int,
    top: float,
    shades: list[str],
    names: Sequence[str],
) -> None:
    """Rows of ticks below zero, the share of the height growing with the number of rows; no y tick
    is printed there.
    """
    depth = 0.0
    if rows:
        depth = top * min(0.09 * rows + 0.05, 0.5)
    ax.set_ylim(-depth, top)
    if not rows:
        return
    step = depth / (rows + 0.4)
    half = 0.38 * step
    for m in range(rows):
        y = -(m + 0.75) * step
        shade = shades[m]
        ax.vlines(events[marks == m], y - half, y + half, color=shade, lw=1.1, alpha=0.9)
        if names:
            beside = ("axes fraction", "data")
            _note(ax, names[m], (1, y), (6, 0), beside, va="center", size=8.5, color=shade)
    ax.axhline(0, color=SOFT, lw=0.8)
    ax.set_yticks([v for v in ax.get_yticks() if 0 <= v <= top])
    ax.set_ylim(-depth, top)


def _note(
    ax: Axes,
    text: str,
    spot: tuple[float, float],
    shift: tuple[float, float],
    system: str | tuple[str, str] = "data",
    **style: Any,
) -> None:
    """Text beside a spot, ``shift`` points away."""
    ax.annotate(plot_name(text), spot, shift, system, textcoords="offset points", **style)


def _end_labels(ax: Axes, x: float, ends: Sequence[tuple[str, float, str]]) -> None:
    """Names at the right end of their lines, pushed apart so that none covers another."""
    low, high = ax.get_ylim()
    room = 0.075 * (high - low)
    values = [value for _, value, _ in ends]
    spots: dict[int, float] = {}
    floor = low
    for i in np.argsort(values, kind="stable").tolist():
        spots[i] = max(min(values[i], high), floor)
        floor = spots[i] + room
    over = max(0.0, floor - room - high)
    for i, (label, _, shade) in enumerate(ends):
        spot = (x, spots[i] - over)
        _note(ax, label, spot, (6, 0), va="center", color=shade, weight="bold")


def _density(ax: Axes, values: NDArray[np.float64], shade: str) -> None:
    """A smoothed density on [0, inf), reflected at 0."""
    count = len(values)
    highest = float(values.max())
    silverman = 1.06 * float(values.std()) * count**-0.2
    width = max(silverman, 1e-3 * highest, 1e-9)
    x = np.linspace(0, highest + 3 * width, 300)
    mirrored = np.concatenate([values, -values])
    distance = (x[:, None] - mirrored) / width
    bumps = np.exp(-0.5 * distance**2)
    norm = count * width * np.sqrt(2 * np.pi)
    y = bumps.sum(1) / norm
    ax.fill_between(x, y, color=shade, alpha=0.15, lw=0)
    ax.plot(x, y, color=shade)


def _log_where_wide(ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    """A logarithmic axis where positive values span more than 30 to 1 (linear around 0 where zeros
    occur).
    """
    scales = (
        (x, ax.set_xscale, ax.xaxis),
        (y, ax.set_yscale, ax.yaxis),
    )
    for values, set_scale, axis in scales:
        there = values[values > 0]
        if there.size < 2:
            continue
        low, high = np.quantile(there, (0.05, 0.95))
        if high < 30 * low:
            continue
        if (values <= 0).any():
            set_scale("symlog", linthresh=float(low))
        else:
            set_scale("log")
        axis.set_major_formatter(lambda value, _: f"{value:g}")


def _legend_line(ax: Axes, labels: Sequence[str], shades: Sequence[str]) -> None:
    """Names in their colours above the axes: a legend without a box, of at most ``LEGEND_ROWS``
    lines that fit the width.
    """
    from matplotlib.lines import Line2D

    names = [plot_name(label) for label in labels]
    longest = max(map(len, names), default=0)
    characters = CHARACTERS_PER_INCH * float(ax.figure.bbox.width) / ax.figure.dpi
    columns = int(characters / (longest + 3))
    columns = max(1, min(len(names), 6, columns))
    room = LEGEND_ROWS * columns
    if len(names) > room:
        more = len(names) - room + 1
        names = [*names[: room - 1], f"and {more} more"]
        shades = [*shades[: room - 1], SOFT]
    handles = []
    for name, shade in zip(names, shades, strict=True):
        handles.append(Line2D([], [], color=shade, marker="o", ms=5, lw=0, label=name))
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        handletextpad=0.1,
        columnspacing=1.2,
        borderaxespad=0.2,
        labelcolor="linecolor",
    )


def _mark_best(ax: Axes, steps: NDArray[np.float64], dev: NDArray[np.float64], best: int) -> None:
    there = np.isfinite(dev)
    nearest = np.abs(steps[there] - best).argmin()
    y = float(dev[there][nearest])
    ax.plot([best], [y], marker="o", ms=7, mfc=GROUND, mec=COLOURS[1], mew=2, lw=0, zorder=5)
    side = "left"
    shift = 6
    if best > steps[0] + 0.6 * (steps[-1] - steps[0]):
        side = "right"
        shift = -6
    _note(
        ax,
        f"best at step {best:,}",
        (best, y),
        (shift, -15),
        ha=side,
        color=COLOURS[1],
        bbox={"facecolor": GROUND, "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
    )


def _robust_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """A range that leaves out the lowest 3%, so that the first steep steps do not hide the rest."""
    there = values[np.isfinite(values)]
    low = float(np.quantile(there, 0.03))
    high = float(there.max())
    margin = 0.08 * max(high - low, 1e-6)
    return low - margin, high + 1.5 * margin


def _heat_map(weights: NDArray[np.float64], label: str, ax: Axes | None) -> Axes:
    above_diagonal = np.triu(np.ones(weights.shape, bool))
    shown = np.ma.masked_where(above_diagonal, weights)
    limit = 1.0
    if shown.count():
        limit = float(np.abs(shown).max())
    lowest = 0.0
    colour_map = "Blues"
    if (shown < 0).any():
        lowest = -limit
        colour_map = "RdBu_r"
    with look():
        ax = axes_or_new(ax, 4.8, 4.0)
        ax.grid(False)
        image = ax.imshow(
            shown,
            cmap=colour_map,
            vmin=lowest,
            vmax=limit,
            interpolation="nearest",
        )
        bar = ax.figure.colorbar(image, ax=ax, shrink=0.8, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label(plot_text(label))
        ax.set_xlabel("past event")
        ax.set_ylabel("event looking back")
    return ax
