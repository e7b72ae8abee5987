"""The paper's figures, each with the numbers behind it as CSV.

- *score-transformation*: the learned features of each head, the score they make, and the rate of
  one sequence. The paper's form with q = r = 2 and 10,000 features, fitted to 911 calls
  (`calls911_208` stands in for the paper's); without that file, to the times of `nyc_delays`.
- *score-visualization*: Fourier kernel, dot product and the true triggering on one sequence of the
  hawkes set.
- *intensity*: every model on one fresh sequence of each synthetic set, over the true rate.
- *learning-curves*: test log-likelihood per event against epochs, on each real stand-in.
- theory: unbiased estimates, the largest error against D with its bound, and what models remember.

Functions ``draw_*`` read records and models and return a figure; functions ``*_plot`` take arrays
and draw on Axes in the style of `fourpoint.plots.charts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Ordered
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fourpoint.data.synthetic import process
from fourpoint.events import Dataset, Sequence
from fourpoint.models import DAPP
from fourpoint.models.base import PointProcess, position_before
from fourpoint.models.dapp_history import require
from fourpoint.models.modes import Modes
from fourpoint.ops.scores import scores
from fourpoint.plots.charts import COLOURS, FAINT, INK, SOFT, look, time_label
from fourpoint.reproduce.cells import DONE, Record, write_table
from fourpoint.reproduce.fitting import rates
from fourpoint.reproduce.plan import (
    CURVES,
    LABELS,
    REMEMBERING,
    STANDS_FOR,
    SYNTHETIC,
    TRANSFORMED,
    Cell,
    Setting,
)
from fourpoint.reproduce.sets import NoData, parts_of
from fourpoint.reproduce.tabled import tabled
from fourpoint.reproduce.tables import tally
from fourpoint.sanitising import plot_text
from fourpoint.storage.checkpoints import restore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


POINTS = 401
OURS = ("dapp", "odapp", "spline-poisson", "poisson")
NOT_FITTED = " (not fitted)"


class Drawn(NamedTuple):
    """A figure with its name as a file, its title and its caption."""

    name: str
    title: str
    caption: str
    figure: Figure


def draw_transformation(
    output: Path, setting: Setting, records: list[Record], real: Path | None
) -> Drawn:
    """Six panels: for each head its spectrum and its score; the rate, and what it would be with one
    head alone.
    """
    data = TRANSFORMED
    model = kept_dapp(output, "dapp-paper", TRANSFORMED)
    if model is None:
        data = "nyc_times"
        model = kept_dapp(output, "dapp-paper", "nyc_times")
    if model is None:
        raise NoData(
            f"the paper's form fitted to {TRANSFORMED} or nyc_times",
            "neither",
            "Run `fourpoint reproduce figure score-transformation`.",
        )
    test = parts_of(data, setting, 0, real).test
    sequence = middle_sequence(test)
    clouds = generated_features(model)
    lags = np.linspace(0, float(test.durations.max()), 401)
    with torch.no_grad():
        kernel = model.kernel(torch.from_numpy(lags)).double().numpy()
    times = np.linspace(sequence.start, sequence.stop, 401)[1:]
    total, alone = head_rates(model, sequence, times)
    figure, panels = canvas(2, 3, 12, 7)
    unit = {"hours": "h"}.get(test.unit, test.unit)
    labels = (time_label(unit, "lag"), "score")
    for k, cloud in enumerate(clouds):
        head = f"head {k + 1}"
        cloud_plot(panels[k, 0], f"{head}: spectrum", cloud[:, 0], cloud[:, 1], COLOURS[k])
        lines_plot(panels[k, 1], f"{head}: score", lags, {head: kernel[k]}, labels)
    labels = (time_label(unit), "rate")
    events = sequence.times
    by_head = {f"head {k + 1}": rate for k, rate in enumerate(alone)}
    lines_plot(panels[0, 2], "rate of one sequence", times, {"both heads": total}, labels, events)
    lines_plot(panels[1, 2], "one head alone", times, by_head, labels, events)
    _write_transformation(output, clouds, lags, kernel, times, total, alone)
    which = "911 calls (`calls911_208`, the stand-in for the paper's)"
    if data != TRANSFORMED:
        which = "**no 911 data given**: the times of `nyc_delays` instead"
    caption = (
        f"The paper's form on {which}. Left: {clouds.shape[1]:,} features drawn from each head's "
        "learned spectrum. Middle: the score they make, against the lag. Right: the rate over the "
        "test sequence of median length, and what it would be with one head."
    )
    return Drawn("score-transformation", "Spectrum, score and intensity", caption, figure)


@torch.no_grad()
def generated_features(model: DAPP) -> NDArray[np.float64]:
    """The generated features omega, (K, D, 2)."""
    modes = model.modes
    if not isinstance(modes, Modes):
        raise TypeError(f"expected a spectrum of the paper's form; received {type(modes).__name__}")
    noise = modes.noise.to(modes.time_key)
    size = modes.time_key.shape[1]
    found = modes.generator(noise)[..., :size]
    return np.asarray(found.double().numpy())


@torch.no_grad()
def head_rates(
    model: DAPP, sequence: Sequence, times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The total rate (Q,) at ``times``, and with one head at a time (K, Q)."""
    history = model.encode(sequence.batch())
    asked = torch.from_numpy(times)[None]
    since = asked - history.start[:, None]
    seen = position_before(history, asked)
    attended = model.attend(history, asked[..., None], seen)[:, :, 0]
    heads = attended * model.readout_weights()  # (1, Q, K, M)

    def rate(z: torch.Tensor) -> NDArray[np.float64]:
        log_rate = model.rate.log_rate(z, since, history.parts.curves)
        log_unit = model.time_scale.log().to(z)
        total = (log_rate - log_unit).exp().sum(-1)
        return np.asarray(total[0].double().numpy())

    together = rate(heads.sum(2))
    alone = [rate(heads[:, :, k]) for k in range(heads.shape[2])]
    return together, np.stack(alone)


def _write_transformation(
    output: Path,
    clouds: NDArray[np.float64],
    lags: NDArray[np.float64],
    kernel: NDArray[np.float64],
    times: NDArray[np.float64],
    total: NDArray[np.float64],
    alone: NDArray[np.float64],
) -> None:
    rows: list[list[Any]] = []

    def add(part: str, head: str | int, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        for point in zip(x.tolist(), y.tolist(), strict=True):
            rows.append([part, head, *point])

    for k, cloud in enumerate(clouds):
        head = k + 1
        add("spectrum", head, cloud[:, 0], cloud[:, 1])
        add("score", head, lags, kernel[k])
        add("rate with this head", head, times, alone[k])
    add("rate", "all", times, total)
    write_table(output / "figures" / "score-transformation.csv", ["part", "head", "x", "y"], rows)


def draw_scores(output: Path, setting: Setting, records: list[Record], real: Path | None) -> Drawn:
    """Six panels: both heads of the Fourier and of the dot-product score, our default's effect, and
    the truth.
    """
    sequence = middle_sequence(parts_of("hawkes", setting, 0, None).test)
    lags = sequence.times[:, None] - sequence.times
    true = np.exp(-np.maximum(lags, 0))
    nothing = np.zeros_like(true)
    shown: list[tuple[str, NDArray[np.float64]]] = []
    for model, name in (("dapp-paper", "Fourier kernel"), ("dapp-paper-dot", "dot product")):
        fitted = kept_dapp(output, model, "hawkes")
        found = np.stack([nothing, nothing])
        note = NOT_FITTED
        if fitted is not None:
            found = pair_scores(fitted, sequence)
            note = ""
        for k in range(2):
            shown.append((f"{name}, head {k + 1}{note}", found[k]))
    ours = kept_dapp(output, "dapp", "hawkes")
    title = "our DAPP: effect inside the link"
    effect = nothing
    if ours is None:
        title += NOT_FITTED
    else:
        effect = effects(ours, sequence)
    shown.insert(2, (title, effect))
    shown.append(("truth: exp(\u2212(t \u2212 t'))", true))
    figure, panels = canvas(2, 3, 12, 7.4)
    rows: list[list[Any]] = []
    agreement = []
    below = np.tril_indices(len(sequence), -1)
    for (title, matrix), ax in zip(shown, panels.flat, strict=True):
        score_matrix_plot(ax, title, matrix)
        for n, i in zip(*below, strict=True):
            rows.append([title, int(n), int(i), float(matrix[n, i])])
        if title.startswith("truth"):
            continue
        rank = rank_correlation(matrix[below], true[below])
        agreement.append(f"{title}: {rank:+.2f}".replace("-", "\u2212"))
    header = ["score", "event", "past_event", "value"]
    write_table(output / "figures" / "score-visualization.csv", header, rows)
    caption = (
        "Scores of each event (row) on each past event (column), one sequence of hawkes. Rank "
        f"correlation with the true triggering, which fades with the lag: {'; '.join(agreement)}."
    )
    return Drawn("score-visualization", "Pairwise scores", caption, figure)


@torch.no_grad()
def pair_scores(model: DAPP, sequence: Sequence) -> NDArray[np.float64]:
    """nu_k(x_n, x_i) of every pair of events, (K, N, N)."""
    history = model.encode(sequence.batch())
    past = require(history.past)
    events = model.elapsed(past.times, history.start)[..., 0]
    marks = past.marks[..., 0]
    found = scores(history.parts.score, events, events, marks)[0, :, :, 0]
    return np.asarray(found.double().numpy())


@torch.no_grad()
def effects(model: DAPP, sequence: Sequence) -> NDArray[np.float64]:
    """What each past event adds inside the link at each event, (N, N)."""
    history = model.encode(sequence.batch())
    times = torch.tensor(sequence.times)[None]
    found = model.contributions(history, times)[0, :, :, 0]
    return np.asarray(found.double().numpy())


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's, without ties in mind; 0 where one of them is constant.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 25.0]))
    1.0
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    correlation = np.corrcoef(_ranks(a), _ranks(b))
    return float(correlation[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    order = np.argsort(values)
    return np.argsort(order).astype(np.float64)


def draw_intensity(
    output: Path, setting: Setting, records: list[Record], real: Path | None
) -> Drawn:
    """Eight panels: for each set the paper's models on the left and ours on the right."""
    figure, panels = canvas(len(SYNTHETIC), 2, 11, 13.5)
    rows: list[list[Any]] = []
    for data, (left, right) in zip(SYNTHETIC, panels, strict=True):
        sequence = middle_sequence(parts_of(data, setting, 0, None).test)
        events = sequence.times
        times = np.linspace(sequence.start, sequence.stop, POINTS)[1:]
        truth = rates(process(data).truth(), sequence, times)
        lines = {"truth": truth}
        ours = {}
        theirs = {}
        for model, label in LABELS.items():
            fitted = kept_model(output, model, data, sequence.duration)
            if fitted is None:
                continue
            lines[model] = rates(fitted, sequence, times)
            if model in OURS:
                ours[label] = lines[model]
            else:
                theirs[label] = lines[model]
        recovered_plot(left, f"{data}: the paper's models", times, theirs, truth, events)
        recovered_plot(right, f"{data}: ours, and Poisson", times, ours, truth, events)
        for name, y in lines.items():
            for point in zip(times.tolist(), y.tolist(), strict=True):
                rows.append([data, name, *point])
        for time in events.tolist():
            rows.append([data, "event", time, ""])
    one_legend(figure, list(panels.flat))
    write_table(output / "figures" / "intensity.csv", ["data", "line", "time", "rate"], rows)
    caption = (
        "Rates recovered on the fresh sequence of median length of each set, each computed from "
        "the events before it alone. The broad grey line is the truth; triangles are events."
    )
    return Drawn("intensity", "Recovered intensities", caption, figure)


def draw_curves(output: Path, setting: Setting, records: list[Record], real: Path | None) -> Drawn:
    """One panel per stand-in; HP, which is fitted without epochs, is a dotted line."""
    found = {(r["model"], r["data"]): r for r in records if _is_done(r, "curve")}
    first_seed = [r for r in records if r["seed"] == 0]
    with_curves = {data for _, data in found}
    sets = [data for data in STANDS_FOR if data in with_curves]
    rows_of_panels = (max(1, len(sets)) + 1) // 2
    figure, panels = canvas(rows_of_panels, 2, 11, 3.6 * rows_of_panels + 0.8)
    axes = list(panels.flat)
    rows: list[list[Any]] = []
    for data, ax in zip(sets, axes, strict=False):
        curves = {}
        for model in CURVES:
            record = found.get((model, data))
            if record is None:
                continue
            arrays = record["arrays"]
            epochs = arrays["epoch"]
            values = arrays["log_likelihood_per_event"]
            curves[LABELS[model]] = (epochs, values)
            for point in zip(epochs, values, strict=True):
                rows.append([data, model, *point])
        hawkes = tally(first_seed, "hawkes", data, "log_likelihood_per_event")
        level = {"HP": hawkes.mean} if hawkes.values else {}
        curves_plot(ax, f"{data} (stands in for {STANDS_FOR[data]})", curves, level)
    for ax in axes[len(sets) :]:
        ax.set_visible(False)
    one_legend(figure, axes[: len(sets)])
    header = ["data", "model", "epoch", "log_likelihood_per_event"]
    write_table(output / "figures" / "learning-curves.csv", header, rows)
    caption = (
        "Test log-likelihood while training, first seed: the fit of the tables trained again with "
        "nothing chosen by the test data. During training integrals have twelve nodes per gap and "
        "the paper's forms 128 features, so that the ends differ a little from the tables."
    )
    return Drawn("learning-curves", "Test likelihood against epochs", caption, figure)


def _is_done(record: Record, kind: str) -> bool:
    return bool(record["kind"] == kind and record["status"] == DONE)


def draw_propositions(output: Path, records: list[Record]) -> Drawn | None:
    """Proposition 1 on the left for two spectra, Proposition 2 on the right; None where they were
    not run.
    """
    done = {r["data"]: r for r in records if _is_done(r, "theory")}
    if "proposition1" not in done or "proposition2" not in done:
        return None
    one = done["proposition1"]["arrays"]
    two = done["proposition2"]["metrics"]["rows"]
    figure, panels = canvas(1, 3, 13, 4)
    left, middle, right = panels[0]
    for ax, spectrum in ((left, "gaussian"), (middle, "cauchy")):
        means = {}
        for phase in ("paired", "random"):
            name = f"{spectrum}_{phase}"
            means[f"{phase} phases"] = (one[f"{name}_mean"], one[f"{name}_standard_error"])
        title = f"Proposition 1: {spectrum} spectrum"
        means_plot(ax, title, one["lag"], one[f"{spectrum}_exact"], means)
    features = [row["features"] for row in two]
    bound = [np.nan if row["bound"] is None else row["bound"] for row in two]
    measured = {
        "paired phases": [row["paired_95"] for row in two],
        "random phases": [row["random_95"] for row in two],
    }
    error_plot(right, "Proposition 2", features, measured, bound)
    errors = [list(row.values()) for row in two]
    write_table(output / "figures" / "theory.csv", list(two[0]), errors)
    points = [list(row) for row in zip(*one.values(), strict=True)]
    write_table(output / "figures" / "theory-means.csv", list(one), points)
    caption = (
        "Left and middle: the mean of estimates with 20 features each, over the kernel it "
        "estimates. Right: the largest error over the window, 95% quantile over draws, for both "
        "phases, and the bound, which is stated for paired phases."
    )
    return Drawn("theory", "Propositions 1 and 2", caption, figure)


def draw_memory(output: Path, records: list[Record]) -> Drawn | None:
    """What each model remembers of the first event; None where it was not run."""
    found = {}
    for record in records:
        if _is_done(record, "claim") and record["data"].startswith("memory-"):
            metrics = record["metrics"]
            found[record["model"], int(metrics["events"])] = float(metrics["remembered"])
    if not found:
        return None
    counts = sorted({count for _, count in found})
    models = {model for model, _ in found}
    lines = {}
    for model in REMEMBERING:
        if model in models:
            lines[LABELS[model]] = [found.get((model, count), np.nan) for count in counts]
    figure, panels = canvas(1, 1, 8, 4)
    memory_plot(panels[0, 0], "A far event: who remembers it?", counts, lines)
    rows: list[list[Any]] = [[*key, value] for key, value in sorted(found.items())]
    write_table(output / "figures" / "memory.csv", ["model", "events_between", "remembered"], rows)
    caption = (
        "The first event is an A or a B; after it come events that tell nothing; and from .6 of "
        "the window on the rate of D depends on the first event alone. Shown is the log ratio of "
        "the two rates that a model gives, as a share of the true one: 1 is all of it, 0 is "
        "forgotten."
    )
    return Drawn("memory", "A far event", caption, figure)


DRAWINGS: dict[str, Callable[[Path, Setting, list[Record], Path | None], Drawn]] = {
    "score-transformation": draw_transformation,
    "score-visualization": draw_scores,
    "intensity": draw_intensity,
    "learning-curves": draw_curves,
}


def kept_plain(output: Path, model: str, data: str) -> PointProcess | None:
    """The model of the first seed, or None where it was not fitted."""
    folder = output / "models" / Cell("fit", model, data, 0).id
    if not (folder / "model.json").is_file():
        return None
    return restore(folder)


def kept_dapp(output: Path, model: str, data: str) -> DAPP | None:
    """The same for a form of DAPP."""
    found = kept_plain(output, model, data)
    if not isinstance(found, DAPP):
        return None
    return found


def kept_model(output: Path, model: str, data: str, longest: float) -> PointProcess | None:
    """The same, with tabled scores where that is of use for windows up to ``longest``."""
    found = kept_plain(output, model, data)
    if found is None:
        return None
    return tabled(found, longest)


def middle_sequence(data: Dataset) -> Sequence:
    """The sequence of median length, the first of equals."""
    order = np.argsort(data.lengths, kind="stable")
    middle = order[len(data) // 2]
    return data[int(middle)]


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
    """A figure of ``rows`` by ``columns`` panels in the style of `plots`; sizes of the whole in
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
    t = np.asarray(times, float)
    true = np.asarray(truth, float)
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
            low = float(np.quantile(values, 0.02))
            high = max(values)
            room = 0.06 * max(high - low, 1e-3)
            ax.set_ylim(low - 2 * room, high + room)
        ax.set_title(plot_text(title), loc="left")
        ax.set_xlabel("epochs")
        ax.set_ylabel("log-likelihood (nats per event)")
    return ax


def one_legend(figure: Figure, panels: Ordered[Axes]) -> None:
    """One legend for all panels, below them."""
    found: dict[str, Any] = {}
    for ax in panels:
        handles, labels = ax.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    order = [name for name in STYLES if name in found]
    order += [name for name in found if name not in STYLES]
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
