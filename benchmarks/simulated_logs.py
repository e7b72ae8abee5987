"""Figures of the how-to guides that come from simulated logs with a known truth.

    python benchmarks/simulated_logs.py [--parts features silent rounding gaps scores]

- `features`: the factor by which one unit of magnitude multiplies the offspring of an event.
- `silent`: the rate ratio of two plans from a log that lacks customers without purchases.
- `rounding`: how often the test of the fit rejects the true Hawkes process at 5% where its times
  are rounded to whole units, for five decays.
- `gaps`: the branching ratio from a log with recording gaps: as observed silence, with exposure 0,
  and with imputed events, less that from the complete log of the same seed.
- `scores`: the log-likelihoods of four of these logs, with the unknown events integrated out and of
  the observed time given the observed events; fits with exposure 0 in the gaps less fits with
  imputed events.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch
from records import Record, options

import fourpoint as fp
from fourpoint.events import Context, Dataset, Sequence, Steps

PARTS = ("features", "silent", "rounding", "gaps", "scores")
WEIGHT = 0.7  # log of the factor for one unit of magnitude
STOP, GAPS, LENGTH = 2000.0, 20, 10.0  # of the logs with recording gaps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = Record("simulated_logs", "Figures from simulated logs.", given.quick)
    for part in given.parts:
        globals()[part](record, given.quick)
    print(f"wrote {record.write(given.results)}")


def features(record: Record, quick: bool) -> None:
    """Offspring in proportion to exp(WEIGHT times magnitude), magnitudes 3 + Exp(mean 1/4)."""
    random = np.random.default_rng(1)
    stop = 200.0 if quick else 4000.0
    parents = random.uniform(0.0, stop, random.poisson(stop))
    times, sizes = [], []
    while len(parents):
        magnitude = 3.0 + random.exponential(0.25, len(parents))
        times.append(parents)
        sizes.append(magnitude)
        offspring = random.poisson(0.35 * np.exp(WEIGHT * (magnitude - 3.25)))
        children = np.repeat(parents, offspring) + random.exponential(0.5, offspring.sum())
        parents = children[children < stop]
    table = {"time": np.concatenate(times), "magnitude": np.concatenate(sizes)}
    data = fp.read(
        table, sequence="none", window=(0.0, stop), event_features="magnitude", sort=True
    )
    model = fp.Hawkes(data.marks)
    fp.fit(model, data, progress=False, calendar="none")
    ratio = model.feature_ratios[0]
    truth = float(np.exp(WEIGHT))
    record.row("features", "magnitude", factor=ratio.ratio, low=ratio.low, high=ratio.high)
    print(f"{data.events:,} events, true factor {truth:.2f}: {ratio}")


def silent(record: Record, quick: bool) -> None:
    """Customers of two plans whose rates vary; those without purchases are not in the log."""
    random = np.random.default_rng(2)
    customers, stop = (100, 100.0) if quick else (3000, 100.0)
    plan = random.integers(0, 2, customers)
    means = 3.0 * 2.0**plan * random.gamma(1.0, 1.0, customers)
    counts = random.poisson(means)
    every = [Sequence(np.sort(random.uniform(0.0, stop, n)), start=0.0, stop=stop) for n in counts]
    share = float(np.mean(counts == 0))
    for name, rows in (("all", np.arange(customers)), ("seen", np.flatnonzero(counts > 0))):
        columns = Steps.constant(("plan",), plan[rows][:, None].astype(float))
        data = Dataset.from_sequences([every[i] for i in rows])
        model = fp.MODELS["frailty"](data.marks)
        data = replace(data, context=Context(covariates=columns))
        fp.fit(model, data, progress=False, calendar="none")
        ratio = model.rate_ratios[0]
        record.row("silent", name, ratio=ratio.ratio, low=ratio.low, high=ratio.high)
        print(f"{name}, {len(rows):,} customers, {share:.0%} without purchases: {ratio}, truth 2")


def rounding(record: Record, quick: bool) -> None:
    """Sets of 40 windows of ten units: the share of p-values of the true process below 5%."""
    sets = 2 if quick else 200
    for decay in (0.25, 1.0, 2.0, 5.0, 10.0):
        truth = fp.Hawkes(baseline=0.5, branching=0.5, decay=decay)
        exact = fp.sample(truth, 0.5, 10.5, 40 * sets, seed=2)
        data = replace(exact, times=np.round(exact.times))
        p = [fp.goodness_of_fit(truth, data[40 * i : 40 * (i + 1)]).total.ks_p for i in range(sets)]
        share = float(np.mean(np.array(p) < 0.05))
        record.row("rounding", f"decay {decay:g}", share=share, events=data.events / sets)
        print(f"decay {decay:g}, {data.events / sets:.0f} events: {share:.1%} of p below 5%")


def gaps(record: Record, quick: bool) -> None:
    """Fits to logs of which a tenth of the time is missing, less the fit to the complete log."""
    for decay in (0.1, 1.0):
        found: dict[str, list[float]] = {}
        for seed in range(1 if quick else 10):
            complete, observed, silence = log_with_gaps(decay, seed, quick)
            whole = branching(complete)
            found.setdefault("complete log", []).append(whole)
            for name, data, choices in (
                ("gaps as observed silence", silence, {}),
                ("exposure 0 in the gaps", observed, {}),
                ("gaps imputed", observed, {"fill": "sample"}),
            ):
                found.setdefault(name, []).append(branching(data, **choices) - whole)
        for name, values in found.items():
            mean = float(np.mean(values))
            error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
            farthest = float(np.abs(values).max())
            record.row(f"decay {decay:g}", name, mean=mean, error=error, largest=farthest)
            print(f"decay {decay:g}, {name}: {mean:+.3f} +- {error:.3f}, largest {farthest:.3f}")


def scores(record: Record, quick: bool) -> None:
    """Nats of a whole log, exposure 0 in the gaps less imputed events."""
    for seed in range(1 if quick else 4):
        _, observed, _ = log_with_gaps(0.1, seed, quick)
        ignored = fitted(observed)
        imputed = fitted(observed, fill="sample")
        marginal = [
            fp.marginal_log_likelihood(model, observed, seed=seed).log_likelihood
            for model in (ignored, imputed)
        ]
        plain = [
            fp.evaluate(model, observed).scores["window"].log_likelihood
            for model in (ignored, imputed)
        ]
        integrated = marginal[0] - marginal[1]
        given_observed = plain[0] - plain[1]
        row = {"integrated out": integrated, "given the observed": given_observed}
        record.row("scores of logs with gaps", f"seed {seed}", **row)
        print(
            f"seed {seed}: exposure 0 less imputed, nats of the log: {integrated:+.2f} with the "
            f"unknown events integrated out, {given_observed:+.2f} given the observed ones",
            flush=True,
        )


def log_with_gaps(decay: float, seed: int, quick: bool) -> tuple[Dataset, Dataset, Dataset]:
    """The complete log, the log with gaps, and the latter without its gaps being known."""
    stop = STOP / 10 if quick else STOP
    truth = fp.Hawkes(baseline=0.4, branching=0.6, decay=decay)
    times = fp.sample(truth, 0.0, stop, 1, seed=seed)[0].times
    every = stop / GAPS
    begins = np.arange(GAPS) * every + (every - LENGTH) / 2 if not quick else np.array([50.0])
    inside = ((times[:, None] >= begins) & (times[:, None] < begins + LENGTH)).any(1)
    table = {"start": begins, "stop": begins + LENGTH}
    reading = dict(sequence="none", window=(0.0, stop))
    complete = fp.read({"time": times}, **reading)
    observed = fp.read({"time": times[~inside]}, gaps=table, **reading)
    return complete, observed, fp.read({"time": times[~inside]}, **reading)


def branching(data: Dataset, **choices: str) -> float:
    """The branching ratio of a fitted Hawkes process."""
    return fitted(data, **choices).spectral_radius


def fitted(data: Dataset, **choices: str) -> fp.Hawkes:
    """A Hawkes process fitted to ``data``."""
    model = fp.Hawkes(data.marks)
    fp.fit(model, data, progress=False, calendar="none", **choices)
    return model


if __name__ == "__main__":
    main()
