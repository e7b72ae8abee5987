"""The paper's figures: arrays in, Axes out, in the house look of `fourpoint.plots.charts`. Nothing here
knows a model or a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.plots.charts import COLOURS, FAINT, INK, SOFT, look
from fourpoint.sanitising import plot_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The paper's own form and ours are drawn strongly, the others faintly and with a dash of their own.
STYLES: Mapping[str, tuple[str, Any, float]] = {
    "HP": (COLOURS[2], "-", 1.2),
    "SAHP": (COLOURS[3], "-", 1.2),
    "NHP": (COLOURS[4], "-", 1.2),
    "RMTPP": (COLOURS[5], "-", 1.2),
    "DAPP+dot (paper)": (COLOURS[6], (0, (2, 2)), 1.1),
    "ODAPP+dot (paper)": (COLOURS[6], (0, (1, 2)), 1.1),
    "DAPP+NN (paper)": (COLOURS[7], (0, (2, 2)), 1.1),
    "ODAPP+NN (paper)": (COLOURS[7], (0, (1, 2)), 1.1),
    "DAPP (paper)": (COLOURS[1], "-", 1.8),
    "ODAPP (paper)": (COLOURS[1], (0, (4, 2)), 1.4),
    "DAPP (ours)": (COLOURS[0], "-", 2.2),
    "ODAPP (ours)": (COLOURS[0], (0, (4, 2)), 1.6),
    "Poisson": (SOFT, (0, (1, 3)), 1.0),
    "spline Poisson": (SOFT, (0, (5, 3)), 1.0),
}


def canvas(rows: int, columns: int, width: float, height: float) -> tuple[Figure, NDArray[Any]]:
    """A figure of ``rows`` by ``columns`` panels in the house look; sizes of the whole in
    inches.
    """
    import matplotlib.pyplot as plt

    with look():
        figure, panels = plt.subplots(
            rows, columns, figsize=(width, height), layout="constrained", squeeze=False
        )
    return figure, panels


def recovered_plot(
    ax: Axes,
    title: str,
    times: ArrayLike,
    lines: Mapping[str, ArrayLike],
    truth: ArrayLike,
    events: ArrayLike,
) -> Axes:
    """Recovered rates (Q,) of several models at ``times`` (Q,), the true one as a broad grey line,
    events as triangles below.

    >>> figure, panels = canvas(1, 1, 4, 3)
    >>> ax = recovered_plot(
    ...     panels[0, 0], "hawkes", [0.0, 1.0], {"HP": [10.0, 11.0]}, [10.0, 12.0], [0.5]
    ... )
    >>> ax.get_title(loc="left"), len(ax.lines)
    ('hawkes', 3)
    """
    t, true = np.asarray(times, float), np.asarray(truth, float)
    with look():
        ax.plot(t, true, color=FAINT, lw=6, zorder=1)
        for name, values in lines.items():
            shade, dash, width = STYLES.get(name, (INK, "-", 1.2))
            ax.plot(
                t,
                np.asarray(values, float),
                color=shade,
                ls=dash,
                lw=width,
                alpha=0.9,
                label=plot_text(name),
            )
        everything = np.concatenate([true, *(np.asarray(v, float) for v in lines.values())])
        top = 1.08 * float(np.quantile(everything[np.isfinite(everything)], 0.999))
        marks = np.asarray(events, float)
        ax.plot(
            marks,
            np.full(len(marks), -0.045 * top),
            marker="^",
            ms=4,
            lw=0,
            color=INK,
            clip_on=False,
        )
        ax.set_ylim(-0.09 * top, top)
        ax.set_xlim(t[0], t[-1])
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel("time")
        ax.set_ylabel("rate (events per unit of time)")
    return ax


def curves_plot(
    ax: Axes,
    title: str,
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    level: Mapping[str, float],
) -> Axes:
    """Test log-likelihood per event against epochs, one line per model; ``level`` are models
    without epochs, as dotted lines.

    >>> figure, panels = canvas(1, 1, 4, 3)
    >>> ax = curves_plot(panels[0, 0], "stock", {"NHP": ([1, 2], [-1.0, -0.5])}, {"HP": -0.4})
    >>> ax.get_xlabel(), len(ax.lines)
    ('epochs', 2)
    """
    with look():
        for name, value in level.items():
            ax.axhline(
                value,
                color=STYLES.get(name, (INK, "-", 1.0))[0],
                lw=1.1,
                ls=(0, (1, 2)),
                label=plot_text(name),
            )
        values: list[float] = list(level.values())
        for name, (epochs, scores) in curves.items():
            shade, dash, width = STYLES.get(name, (INK, "-", 1.2))
            y = np.asarray(scores, float)
            dots = "o" if len(y) < 6 else ""
            ax.plot(
                np.asarray(epochs, float),
                y,
                color=shade,
                ls=dash,
                lw=width,
                marker=dots,
                ms=3,
                label=plot_text(name),
            )
            values += y[len(y) // 4 :].tolist()
        if values:
            low, high = float(np.quantile(values, 0.02)), max(values)
            room = 0.06 * max(high - low, 1e-3)
            ax.set_ylim(low - 2 * room, high + room)
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel("epochs")
        ax.set_ylabel("log-likelihood (nats per event)")
    return ax


def one_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, below them."""
    found: dict[str, Any] = {}
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    order = [name for name in STYLES if name in found] + [
        name for name in found if name not in STYLES
    ]
    with look():
        figure.legend(
            [found[name] for name in order],
            order,
            loc="outside lower center",
            ncols=min(7, max(1, len(order))),
            frameon=False,
        )


def score_matrix_plot(ax: Axes, title: str, scores: ArrayLike) -> Axes:
    """Pairwise scores (N, N), row n looking back at column i < n, on a scale of their own; what
    does not exist stays blank.

    >>> figure, panels = canvas(1, 1, 3, 3)
    >>> score_matrix_plot(panels[0, 0], "truth", [[0.0, 0.0], [1.0, 0.0]]).get_xlabel()
    'past event'
    """
    from matplotlib.ticker import MaxNLocator

    w = np.asarray(scores, float)
    shown = np.ma.masked_where(np.triu(np.ones(w.shape, bool)), w)
    signed = bool((shown < 0).any())
    limit = float(np.abs(shown).max()) if shown.count() else 1.0
    with look():
        ax.grid(False)
        image = ax.imshow(
            shown,
            cmap="RdBu_r" if signed else "Blues",
            vmin=-limit if signed else 0,
            vmax=limit or 1.0,
            interpolation="nearest",
        )
        bar: Any = ax.figure.colorbar(image, ax=ax, shrink=0.75, pad=0.02)
        bar.outline.set_visible(False)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True))
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel("past event")
        ax.set_ylabel("event looking back")
    return ax


def cloud_plot(ax: Axes, title: str, x: ArrayLike, y: ArrayLike, shade: str) -> Axes:
    """A cloud of features in the plane (D,), the paper's picture of a spectrum.

    >>> figure, panels = canvas(1, 1, 3, 3)
    >>> cloud_plot(panels[0, 0], "head 1", [0.0, 1.0], [1.0, 0.0], COLOURS[0]).get_ylabel()
    'second feature'
    """
    with look():
        ax.grid(True, axis="both")
        ax.scatter(
            np.asarray(x, float),
            np.asarray(y, float),
            s=3,
            color=shade,
            alpha=0.15,
            lw=0,
            rasterized=True,
        )
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel("first feature")
        ax.set_ylabel("second feature")
    return ax


def lines_plot(
    ax: Axes,
    title: str,
    x: ArrayLike,
    lines: Mapping[str, ArrayLike],
    labels: tuple[str, str],
    events: ArrayLike = (),
) -> Axes:
    """Several lines (Q,) over ``x`` (Q,) with a legend inside, and events as triangles below.

    >>> figure, panels = canvas(1, 1, 3, 3)
    >>> lines_plot(
    ...     panels[0, 0], "score", [0.0, 1.0], {"head 1": [1.0, 0.5]}, ("lag", "score")
    ... ).get_xlabel()
    'lag'
    """
    marks = np.asarray(events, float)
    with look():
        for k, (name, values) in enumerate(lines.items()):
            ax.plot(
                np.asarray(x, float),
                np.asarray(values, float),
                color=COLOURS[k % len(COLOURS)],
                label=plot_text(name),
            )
        if len(marks):
            low, high = ax.get_ylim()
            ax.plot(
                marks,
                np.full(len(marks), low - 0.05 * (high - low)),
                marker="^",
                ms=4,
                lw=0,
                color=INK,
                clip_on=False,
            )
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel(plot_text(labels[0]))
        ax.set_ylabel(plot_text(labels[1]))
        if len(lines) > 1:
            ax.legend(frameon=False)
    return ax


def error_plot(
    ax: Axes, title: str, features: ArrayLike, measured: Mapping[str, ArrayLike], bound: ArrayLike
) -> Axes:
    """The largest error of the estimated kernel against D, on two logarithmic axes, with the bound
    dashed; NaN where it says nothing.

    >>> figure, panels = canvas(1, 1, 4, 3)
    >>> error_plot(
    ...     panels[0, 0], "errors", [20, 200], {"paired": [0.3, 0.1]}, [np.nan, 0.9]
    ... ).get_xscale()
    'log'
    """
    x = np.asarray(features, float)
    with look():
        for k, (name, values) in enumerate(measured.items()):
            ax.plot(
                x,
                np.asarray(values, float),
                color=COLOURS[k],
                marker="o",
                ms=3.5,
                label=plot_text(name),
            )
        ax.plot(
            x,
            np.asarray(bound, float),
            color=INK,
            ls=(0, (4, 2)),
            lw=1.2,
            label="bound of Proposition 2",
        )
        ax.axhline(2, color=SOFT, lw=0.8, ls=(0, (1, 2)), label="beyond 2 a bound says nothing")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel("features D")
        ax.set_ylabel("largest error of the kernel, 95% quantile")
        ax.legend(frameon=False)
    return ax


def means_plot(
    ax: Axes,
    title: str,
    lags: ArrayLike,
    exact: ArrayLike,
    means: Mapping[str, tuple[ArrayLike, ArrayLike]],
) -> Axes:
    """Means of an estimate with four standard errors, over the exact kernel.

    >>> figure, panels = canvas(1, 1, 4, 3)
    >>> means_plot(
    ...     panels[0, 0], "unbiased", [0, 1], [1, 0.5], {"paired": ([1, 0.5], [0, 0.01])}
    ... ).get_xlabel()
    'lag'
    """
    x = np.asarray(lags, float)
    with look():
        ax.plot(x, np.asarray(exact, float), color=FAINT, lw=6, label="exact kernel")
        for k, (name, (mean, error)) in enumerate(means.items()):
            spread = 4 * np.asarray(error, float)
            look_of: dict[str, Any] = dict(color=COLOURS[k], lw=0, elinewidth=1.2, marker="o", ms=3)
            ax.errorbar(x, np.asarray(mean, float), yerr=spread, label=plot_text(name), **look_of)
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel("lag")
        ax.set_ylabel("score: mean and four standard errors")
        ax.legend(frameon=False)
    return ax


def memory_plot(
    ax: Axes, title: str, events: ArrayLike, remembered: Mapping[str, ArrayLike]
) -> Axes:
    """What is remembered of the first event (1: all) against the number of events in between, one
    line per model.

    >>> figure, panels = canvas(1, 1, 4, 3)
    >>> memory_plot(panels[0, 0], "memory", [5, 20], {"NHP": [0.5, 0.1]}).get_ylabel()
    'share of the first event remembered'
    """
    with look():
        ax.axhline(1, color=FAINT, lw=4)
        ax.axhline(0, color=SOFT, lw=0.8)
        for name, values in remembered.items():
            shade, dash, width = STYLES.get(name, (INK, "-", 1.2))
            line: dict[str, Any] = dict(color=shade, ls=dash, lw=width, marker="o", ms=4)
            ax.plot(
                np.asarray(events, float), np.asarray(values, float), label=plot_text(name), **line
            )
        ax.set_xscale("log")
        ax.set_xticks(np.asarray(events, float), [f"{n:g}" for n in np.asarray(events, float)])
        ax.minorticks_off()
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel("events between the first one and the time it matters")
        ax.set_ylabel("share of the first event remembered")
        ax.legend(frameon=False, ncols=2)
    return ax
