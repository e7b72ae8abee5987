"""Counts per hour of late departures from New York, forecast a day ahead at every midnight of the
last two months of 2013, beside Prophet, statsforecast and a Poisson GLM.

    python benchmarks/counts.py [--first 2013-11-01] [--last 2014-01-01] [--paths 12000]
    [--refit 7] [--ours ...] [--theirs ...] [--jobs 2] [--cache DIR] [--weather] [--dew-point]

All get the same: the events of ``nyc_delays_log`` before each midnight, and the calendar (time of
day, day of the week) in local time. Our models are fitted again every ``--refit`` days, and at
every midnight they carry on with the events since. ``Markov-modulated, pooled`` averages the
distributions of chains with 5, 6 and 8 states (``fourpoint forecast --pool``). The peers are
refitted at every midnight, since that is how they learn of recent counts. Days are shared out to
``--jobs`` processes, and a line on stderr says how many are done; ``--cache`` keeps the forecasts
of peers for the next run.

    Prophet       log(1 + count) by hour, daily and weekly seasonality
    MSTL          statsforecast on log(1 + count), seasons of 24 and 168 hours, AutoETS for the rest
    Poisson GLM   statsmodels; hour, weekday, and the logarithms of the counts of the last 3 hours
                  (also by hour until 4 in the morning), the last day, week and four weeks

Forecasts on the logarithmic scale are transformed back, cut at 0 and rounded to whole numbers,
which lowers their CRPS. Every forecast is 200 equally likely whole numbers per hour (the quantiles
at .0025, .0075, ...), and CRPS is exact for those. The 90% interval consists of whole numbers that
have a probability as near to 90% as can be (``fourpoint forecast --interval 0.9``), for all methods
alike. An interval between the quantiles at 5% and 95% is reported too: it holds more than 90% of
counts even if the forecast is right, since where a count of 0 has a probability above 5% nothing
lies below it. ``ideal`` is how often an interval would hold the count if the forecast were right:
at night, when 0 has a probability near 1, more than 90%.

``--dew-point`` also gives all methods that take covariates (all but MSTL) the dew point, as it was
last recorded before midnight: a covariate that is known when the forecast is made
(``--covariates-as-of 1d``).

``--weather`` also reports what the weather of the same hour, as known covariates, gains on the same
two months in nats per event. A peer that is not installed is shown as missing.

Models and settings were chosen on months before November 2013: ``--first 2013-09-01 --last
2013-11-01`` is the run for that.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from records import Record, options

import fourpoint as fp
from fourpoint.events import Dataset, MarkSpace
from fourpoint.inference.forecasts import count_interval, mid_quantile
from fourpoint.models import Hawkes, MarkovModulated, ModulatedHawkes, Poisson
from fourpoint.models.base import PointProcess

Floats = NDArray[np.float64]
LEVELS = (np.arange(200) + 0.5) / 200
LOW, HIGH = 0.05, 0.95
CALENDAR = ("hour", "week", "trend")
PART = "hourly counts, a day ahead at midnight"
HEADLINE = "Markov-modulated, pooled"
CHAINS = (5, 6, 8)  # states of the chains whose forecasts are pooled
SAMPLES = 4000  # of Prophet
CHUNK = 5  # days of a peer that a process forecasts at once
Forecaster = Callable[[int], Floats]  # quantiles (hours, levels) of a day, by number


@lru_cache(maxsize=1)
def log_of(first: str, last: str, dew_point: bool = False) -> Log:
    """The log with the days from ``first`` to before ``last``; read once in a process."""
    return Log(first, last, dew_point)


class Log:
    """The log without marks and weather, its days, and counts by hour."""

    def __init__(self, first: str, last: str, dew_point: bool) -> None:
        found = fp.load("nyc_delays_log")
        assert found.context is not None
        self.weather = replace(found, mark_ids=np.zeros_like(found.mark_ids), marks=MarkSpace())
        self.data = replace(self.weather, context=found.context.without("covariates"))
        if dew_point:
            self.data = with_dew_point(self.weather)
        dates = self.data.dates(0)
        assert dates is not None
        begin, end = np.datetime64(first, "D"), np.datetime64(last, "D")
        self.days = [str(day) for day in np.arange(begin, end)]
        edges = [round(dates.time(str(day))) for day in np.arange(begin, end + 1)]
        self.hours = [(edges[i], edges[i + 1]) for i in range(len(self.days))]
        self.counts = np.bincount(self.data.times.astype(np.int64), minlength=8760)
        self.local = dates.wall(np.arange(len(self.counts))).astype("datetime64[s]")
        self.hour = (self.local - self.local.astype("datetime64[D]")).astype(np.int64) // 3600
        self.weekday = (self.local.astype("datetime64[D]").astype(np.int64) + 3) % 7
        self.known: dict[str, Floats] = {}  # covariates by hour
        if dew_point and self.data.context is not None:
            steps = self.data.context.covariates
            assert steps is not None
            values = steps.at(0, np.arange(len(self.counts), dtype=np.float64))
            self.known = {"dew_point": values[:, 0]}

    def before(self, first: str, data: Dataset | None = None) -> tuple[Dataset, Dataset]:
        """What comes before a date, and what comes after it with the former as history."""
        early, late = (data or self.data).split_at([first])
        return early, late


def with_dew_point(data: Dataset) -> Dataset:
    """The data with one covariate: the dew point in degrees Fahrenheit, by the usual approximation
    T - 9/25 (100 - humidity), as it was last recorded before midnight.
    """
    context = data.context
    assert context is not None and context.covariates is not None
    steps = context.covariates
    temperature, humidity = (
        steps.values[:, steps.names.index(name)] for name in ("temperature", "humidity")
    )
    dew_point = temperature - 9 / 25 * (100 - humidity)
    covariates = replace(steps, names=("dew point",), values=dew_point[:, None])
    return fp.covariates_as_of(replace(data, context=replace(context, covariates=covariates)), "1d")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", default="2013-11-01", help="first day that is forecast")
    parser.add_argument("--last", default="2014-01-01", help="the day after the last one")
    parser.add_argument("--paths", type=int, default=12_000)
    parser.add_argument("--refit", type=int, default=7, help="days between fits of ours")
    defaults = [name for name in DEFAULTS if name in OURS]
    parser.add_argument("--ours", nargs="*", default=defaults, choices=OURS)
    parser.add_argument("--theirs", nargs="*", default=list(THEIRS), choices=THEIRS)
    parser.add_argument("--jobs", type=int, default=2, help="processes that forecast days")
    parser.add_argument("--cache", type=Path, help="folder that keeps the forecasts of peers")
    parser.add_argument("--weather", action="store_true")
    parser.add_argument("--dew-point", action="store_true", help="give all the dew point")
    options(parser)
    given = parser.parse_args()
    if given.quick:
        given.last = str(np.datetime64(given.first, "D") + 3)
    torch.set_num_threads(1)
    about = "Hourly counts a day ahead: CRPS and coverage of 90% intervals."
    record = Record("counts", about, given.quick)
    log = log_of(given.first, given.last, given.dew_point)
    hours = sum(b - a for a, b in log.hours)
    print(f"{len(log.days)} midnights from {given.first}, {hours} hours, {given.paths} paths")
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    found: dict[str, float] = {}
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for name in [*given.ours, *given.theirs]:
            if name in NEEDS and find_spec(NEEDS[name]) is None:
                reason = ImportError(f"No module named {NEEDS[name]!r}")
                print(f"{name:26}missing: {reason}")
                record.missing(PART, name, reason)
                continue
            began = time.monotonic()
            values = forecast_all(pool, log, name, given)
            found[name] = report(record, log, name, values, time.monotonic() - began)
    if HEADLINE in found:
        for name in THEIRS:
            share = None if name not in found else found[HEADLINE] / found[name]
            reason = "" if share is not None else "not measured"
            record.bar(f"CRPS of {HEADLINE} over {name}", share, most=0.95, reason=reason)
    if given.weather:
        weather(record, log, given.first)
    print(f"wrote {record.write(given.results)}")


def versions() -> dict[str, str]:
    """Versions of what is compared, where installed."""
    found = {}
    for name in ("fourpoint", "prophet", "statsforecast", "statsmodels"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


# ---------------------------------------------------------------------- forecasts


def forecast_all(
    pool: ProcessPoolExecutor, log: Log, name: str, given: argparse.Namespace
) -> list[Floats]:
    """The forecasts of all days, in their order; those of peers from the cache where it has
    them.
    """
    found: dict[int, Floats] = {}
    kept = Path()
    if given.cache is not None and name in THEIRS:
        version = versions().get(NEEDS[name], "")
        known = " dew point" if given.dew_point else ""
        kept = given.cache / f"{name} {version}{known}".replace(" ", "-")
        kept.mkdir(parents=True, exist_ok=True)
        files = {i: kept / f"{day}.npy" for i, day in enumerate(log.days)}
        found = {i: np.load(file) for i, file in files.items() if file.is_file()}
    left = [i for i in range(len(log.days)) if i not in found]
    size = given.refit if name in OURS else CHUNK
    chunks = [left[i : i + size] for i in range(0, len(left), size)]
    began = time.monotonic()
    tasks = {
        pool.submit(
            forecast_days,
            name,
            (given.first, given.last, given.dew_point),
            chunk,
            given.refit,
            given.paths,
        ): chunk
        for chunk in chunks
    }
    for task in as_completed(tasks):
        for day, values in zip(tasks[task], task.result(), strict=True):
            found[day] = values
            if kept != Path():
                np.save(kept / f"{log.days[day]}.npy", values)
        seconds = time.monotonic() - began
        progress = f"{name}: {len(found)} of {len(log.days)} days, {seconds:.0f} s"
        print(f"\r{progress:60}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    return [found[i] for i in range(len(log.days))]


def forecast_days(
    name: str, period: tuple[str, str, bool], days: list[int], refit: int, paths: int
) -> list[Floats]:
    """The forecasts of some days, in a process of its own."""
    torch.set_num_threads(1)
    log = log_of(*period)
    forecaster = ours(name, log, refit, paths) if name in OURS else THEIRS[name](log)
    return [forecaster(day) for day in days]


# ---------------------------------------------------------------------- scores


def report(record: Record, log: Log, name: str, forecasts: list[Floats], seconds: float) -> float:
    """Print the scores of the forecasts of all days, and return the CRPS."""
    part = f"{PART}, given the dew point at midnight" if log.known else PART
    scores, covered, widths, means, ideals, between = [], [], [], [], [], []
    for values, (a, b) in zip(forecasts, log.hours, strict=True):
        truth = log.counts[a:b]
        scores.append(crps(values, truth))
        ordered = values.astype(np.int32)
        q05, q95 = mid_quantile(ordered, LOW), mid_quantile(ordered, HIGH)
        between.append((q05 <= truth) & (truth <= q95))
        low, high = count_interval(ordered, HIGH - LOW)
        inside = (low[:, None] <= values) & (values <= high[:, None])
        ideals.append(inside.mean(1))
        covered.append((low <= truth) & (truth <= high))
        widths.append(high - low)
        means.append(values.mean(1))
    parts = (scores, covered, widths, means, ideals, between)
    score, coverage, width, mean, ideal, central = (
        float(np.concatenate(part).mean()) for part in parts
    )
    print(
        f"{name:26}CRPS {score:.4f}   90% intervals cover {coverage:.1%} (ideal {ideal:.1%}), "
        f"width {width:.2f}, q05 to q95 {central:.1%}   mean {mean:.2f}   {seconds:.0f} s",
        flush=True,
    )
    figures = {"CRPS": score, "coverage": coverage, "ideal": ideal, "width": width, "mean": mean}
    record.row(part, name, **figures, **{"q05 to q95": central})
    if name == HEADLINE:
        record.bar(f"coverage of {name}, at least", coverage, least=0.87)
        record.bar(f"coverage of {name}, at most", coverage, most=0.93)
    return score


def crps(values: Floats, truth: NDArray[np.int64]) -> Floats:
    """E|X - y| - E|X - X'| / 2 for equally likely ``values`` (hours, n), in rising order."""
    n = values.shape[1]
    weight = (2 * np.arange(1, n + 1) - n - 1) / n**2
    return np.abs(values - truth[:, None]).mean(1) - values @ weight


def weather(record: Record, log: Log, first: str) -> None:
    """What the weather of the same hour gains on the days that are forecast."""
    part = "nats per event"
    scores = {}
    for name, data in (("without weather", log.data), ("with weather", log.weather)):
        train, test = log.before(first, data)
        for label in ("Markov-modulated Poisson", "calendar Poisson"):
            [(kind, settings)] = OURS[label]
            fitted = trained(kind(train.marks, **settings), train)
            nats = fp.evaluate(fitted, test).scores["window"].per_event
            scores[label, name] = nats
            print(f"{label}, {name}: {nats:.4f} nats per event from {first} on", flush=True)
    for label in ("Markov-modulated Poisson", "calendar Poisson"):
        gain = scores[label, "with weather"] - scores[label, "without weather"]
        record.row(part, label, gain=gain)
        print(f"{label}: same-hour weather gains {gain:.4f} nats per event")


# ---------------------------------------------------------------------- ours


Kind = tuple[Callable[..., PointProcess], dict[str, int]]
OURS: dict[str, list[Kind]] = {
    "calendar Poisson": [(Poisson, {})],
    "Hawkes": [(Hawkes, {})],
    "modulated Hawkes": [(ModulatedHawkes, {"exponentials": 3})],
    "Markov-modulated Poisson": [(MarkovModulated, {})],
    HEADLINE: [(MarkovModulated, {"states": states}) for states in CHAINS],
}
DEFAULTS = ["calendar Poisson", "Hawkes", "Markov-modulated Poisson", HEADLINE]


def trained(model: PointProcess, train: Dataset) -> PointProcess:
    """The model, fitted to ``train`` with the calendar and the covariates it has."""
    fp.fit(model, train, calendar=CALENDAR, progress=False)
    return model


def ours(name: str, log: Log, refit: int, paths: int) -> Forecaster:
    """A model of ours, fitted every ``refit`` days to what came before."""
    models: list[PointProcess] = []

    def forecast(day: int) -> Floats:
        nonlocal models
        if day % refit == 0:
            train, _ = log.before(log.days[day])
            models = [
                trained(kind(train.marks, **settings), train) for kind, settings in OURS[name]
            ]
        table = fp.forecasts(
            models[0],
            log.data,
            horizon="1d",
            by="1h",
            at=log.days[day],
            paths=paths,
            seed=day,
            quantiles=LEVELS,
            whole=True,
            pooled=models[1:],
        )
        names = [name for name in table.column_names if name.startswith("q")]
        return np.stack([table.column(name).to_numpy() for name in names], 1).astype(np.float64)

    return forecast


# ---------------------------------------------------------------------- theirs


def prophet(log: Log) -> Forecaster:
    """Prophet, refitted at every midnight."""
    import pandas as pd
    from prophet import Prophet

    logging.getLogger("cmdstanpy").disabled = True

    def forecast(day: int) -> Floats:
        a, b = log.hours[day]
        known = {name: values[:a] for name, values in log.known.items()}
        coming = {name: values[a:b] for name, values in log.known.items()}
        past = pd.DataFrame({"ds": log.local[:a], "y": np.log1p(log.counts[:a]), **known})
        model = Prophet(
            daily_seasonality=True,
            weekly_seasonality=True,
            yearly_seasonality=False,
            uncertainty_samples=SAMPLES,
        )
        for name in known:
            model.add_regressor(name)
        np.random.seed(day)  # Prophet draws from the global generator
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(past, seed=day)
            future = pd.DataFrame({"ds": log.local[a:b], **coming})
            drawn = model.predictive_samples(future)["yhat"]
        return as_counts(np.quantile(drawn, LEVELS, axis=1, method="inverted_cdf").T)

    return forecast


def mstl(log: Log) -> Forecaster:
    """MSTL of statsforecast, refitted at every midnight, with its own normal intervals."""
    from scipy.stats import norm
    from statsforecast.models import MSTL, AutoETS

    def forecast(day: int) -> Floats:
        a, b = log.hours[day]
        model = MSTL(season_length=[24, 168], trend_forecaster=AutoETS(model="ZZN"))
        past = np.log1p(log.counts[:a]).astype(np.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = model.forecast(y=past, h=b - a, level=[80])
        spread = (found["hi-80"] - found["lo-80"]) / (2 * norm.ppf(0.9))
        return as_counts(found["mean"][:, None] + spread[:, None] * norm.ppf(LEVELS))

    return forecast


def glm(log: Log) -> Forecaster:
    """A Poisson regression on the calendar and lagged counts, refitted at every midnight."""
    import statsmodels.api as sm
    from scipy.stats import poisson

    table, hours = _glm_table(log)

    def forecast(day: int) -> Floats:
        a, b = log.hours[day]
        known = hours < a
        wanted = (hours >= a) & (hours < b)
        model = sm.GLM(log.counts[hours[known]], table[known], family=sm.families.Poisson())
        found = model.fit_regularized(alpha=1e-6, L1_wt=0.0)
        rates = np.exp(table[wanted] @ found.params)
        return poisson.ppf(LEVELS, rates[:, None])

    return forecast


def _glm_table(log: Log) -> tuple[Floats, NDArray[np.int64]]:
    """Hours whose lags are known, and their columns: calendar, and counts before midnight."""
    past = np.concatenate([[0], np.cumsum(log.counts)])
    midnights = np.flatnonzero(log.hour == 0)
    midnights = midnights[midnights >= 28 * 24]
    hours = np.arange(midnights[0], len(log.counts))
    origin = midnights[np.searchsorted(midnights, hours, side="right") - 1]

    def lag(length: int) -> Floats:
        return np.log1p((past[origin] - past[origin - length]) / max(1, length // 24))

    evening = lag(3)
    early = np.where(log.hour[hours] < 4, evening, 0.0)
    lags = np.stack([lag(24), lag(168), lag(672), evening, early], 1)
    of_day = np.eye(24)[log.hour[hours]]
    of_week = np.eye(7)[log.weekday[hours]][:, 1:]
    known = [(values[hours] - values.mean()) / values.std() for values in log.known.values()]
    return np.hstack([of_day, of_week, lags, *(column[:, None] for column in known)]), hours


def as_counts(logs: Floats) -> Floats:
    """Values of log(1 + count) as whole counts of at least 0, in rising order."""
    return np.sort(np.maximum(np.round(np.expm1(logs)), 0.0), axis=1)


# The module that each peer needs.
NEEDS = {
    "Prophet": "prophet",
    "statsforecast MSTL": "statsforecast",
    "Poisson GLM": "statsmodels",
}
THEIRS: dict[str, Callable[[Log], Forecaster]] = {
    "Prophet": prophet,
    "statsforecast MSTL": mstl,
    "Poisson GLM": glm,
}

if __name__ == "__main__":
    main()
