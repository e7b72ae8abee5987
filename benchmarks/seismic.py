"""ETAS and the seismic DAPP on earthquake catalogues: what each correction gains on dev, and the
difference on the test years with a paired block-bootstrap interval.

    python benchmarks/seismic.py --data DIR [--catalogues sanjac_10 japan_25] [--split test|dev]
        [--csep DAYS]
    python benchmarks/seismic.py --sizes 12500 25000 50000 100000

DIR holds Parquet files NAME.parquet with times in days, x and y in km, magnitude, and a column
split of history, train, dev and test in the order of time. Both models are fitted to train; the
corrections are kept or dropped by dev; the scored part (``--split``) is looked at once. Scores are
those of EarthquakeNPP: log-likelihood per scored event in days and km^2, as temporal (of times)
plus spatial (of places given times), with all earlier events as history. The interval of the
difference is from a bootstrap over blocks of equal time. ``--csep DAYS`` tests as many daily
forecasts of both models by CSEP's tests, 100 simulated catalogues each.

With ``--sizes`` the seismic DAPP is fitted to simulated catalogues of about so many events instead,
the last tenth of their time being dev, and processor seconds are printed.
"""

from __future__ import annotations

import argparse
import os
import time
from copy import deepcopy
from pathlib import Path

import etas
import numpy as np
import torch
from records import Record, exponent, figure, options

import fourpoint as fp
from fourpoint.events import Box, Dataset, MarkSpace
from fourpoint.inference.csep import daily_tests
from fourpoint.inference.evaluation import score
from fourpoint.inference.likelihood import gap_log_likelihoods
from fourpoint.inference.sampling import sample
from fourpoint.models import ETAS, SeismicDAPP
from fourpoint.ops.pairing import Gain, paired_gain

BLOCKS = 24
CATALOGUES = ("sanjac_10", "japan_25")
PUBLISHED = {"sanjac_10": "EarthquakeNPP: ETAS -4.266, best neural -5.335"}
WANTED = 0.05  # nats per event above ETAS
CATALOGUES_A_DAY = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder of the catalogues")
    parser.add_argument("--catalogues", nargs="+", default=list(CATALOGUES))
    parser.add_argument("--split", choices=("dev", "test"), default="test")
    parser.add_argument("--models", type=Path, help="a folder in which to save the models")
    parser.add_argument("--sizes", type=int, nargs="+", help="events of simulated catalogues")
    parser.add_argument("--csep", type=int, help="daily forecasts for CSEP's tests, spread evenly")
    options(parser)
    given = parser.parse_args()
    record = Record("seismic", "ETAS and the seismic DAPP on earthquake catalogues.", given.quick)
    if given.sizes:
        speed(record, given.sizes)
        record.write(given.results)
        return
    names = ["simulated"] if given.quick else given.catalogues
    for name in names:
        file = None if given.data is None else given.data / f"{name}.parquet"
        if not given.quick and (file is None or not file.is_file()):
            record.missing(name, "seismic-dapp", f"no {name}.parquet in --data")
            continue
        parts = simulated() if given.quick or file is None else catalogue(file)
        run(record, name, parts, given.split, given.models, given.csep)
    record.write(given.results)


def speed(record: Record, sizes: list[int]) -> None:
    """Processor seconds of fits to growing catalogues that ETAS has made."""
    costs = []
    events = []
    for size in sizes:
        data = etas.catalogue(round(size * etas.FEWER), 1)
        stop = float(data.stops[0])
        train, dev = data.between(None, 0.9 * stop), data.between(0.9 * stop, None)
        model = SeismicDAPP(data.marks, background="uniform", taper=None)
        began, clock = time.process_time(), time.monotonic()
        found = fp.fit(model, train, dev, progress=False)
        costs.append(time.process_time() - began)
        passed = time.monotonic() - clock
        events.append(data.events)
        row = {"processor": figure([costs[-1]], "s"), "clock": figure([passed], "s")}
        record.row("fit of the seismic DAPP", f"{data.events:,} events", **row)
        print(
            f"fit of the seismic DAPP to {data.events:,} events: {costs[-1]:.0f} processor s, "
            f"{passed:.0f} s by the clock, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        for note in found.notes:
            print(f"    {note}", flush=True)
    if len(events) > 1:
        power = exponent(events, costs)
        record.row("fit of the seismic DAPP", "exponent of the cost", events=f"{power:.2f}")
        print(f"cost grows as events^{power:.2f}")


def catalogue(file: Path) -> tuple[Dataset, ...]:
    """Train, dev and test of a catalogue."""
    data = fp.read(file, place=("x", "y"), event_features=("magnitude",))
    assert data.log is not None  # what was read has a format
    return data.split_at(data.log.split_at)


def simulated() -> tuple[Dataset, ...]:
    """A small ETAS catalogue in three parts, on which nothing can be gained."""
    space = MarkSpace(box=Box(("x", "y"), (0, 0), (20, 20)))
    truth = ETAS(
        space,
        baseline=2.0,
        productivity=0.3,
        alpha=1.0,
        c=0.02,
        mc=1.0,
        b=1.0,
        background="uniform",
    )
    return sample(truth, 0.0, 120.0, 1, seed=1).split_at([60.0, 90.0])


def run(
    record: Record,
    name: str,
    parts: tuple[Dataset, ...],
    split: str,
    folder: Path | None,
    days: int | None = None,
) -> None:
    """Fit, score and compare; with ``days``, test as many daily forecasts of both models."""
    train, dev, test = parts
    scored = test if split == "test" else dev
    model = SeismicDAPP(train.marks)
    began = time.perf_counter()
    where = None if folder is None else folder / name
    found = fp.fit(model, train, dev, progress=False, folder=where)
    seconds = time.perf_counter() - began
    for note in found.notes:
        print(f"{name}: {note}", flush=True)
    start = deepcopy(model)
    start.correct(**model.stages["etas"])
    last = None
    for stage, value in model.stage_values.items():
        rise = 0.0 if last is None else value - last
        last = value
        record.row(f"{name}, dev", stage, **{"log-likelihood": value, "gain": rise})
        print(f"{name}, dev: {stage:28s} {value:.4f} ({rise:+.4f})", flush=True)
    for label, one in (("ETAS", start), ("seismic DAPP", model)):
        result = score(one, scored)["window"]
        spatial = (result.spatial or 0.0) / result.events
        figures = {
            "temporal": result.per_event - spatial,
            "spatial": spatial,
            "total": result.per_event,
        }
        record.row(f"{name}, {split}", label, **figures)
        said = ", ".join(f"{key} {value:.4f}" for key, value in figures.items())
        print(f"{name}, {split}: {label}: {said}", flush=True)
    gain = difference(model, start, scored)
    print(
        f"{name}, {split}: seismic DAPP less ETAS {gain.mean:+.4f} nats per event "
        f"({gain.low:+.4f} to {gain.high:+.4f}); fitted in {seconds:.0f} s. "
        f"{PUBLISHED.get(name, '')}",
        flush=True,
    )
    record.row(f"{name}, {split}", "difference", mean=gain.mean, low=gain.low, high=gain.high)
    for label, one in (("ETAS", start), ("seismic DAPP", model)) if days else ():
        tests = daily_tests(one, scored, catalogues=CATALOGUES_A_DAY, most=days)
        passed = {
            "number": tests.number,
            "spatial": tests.spatial,
            "magnitude": tests.magnitude,
            "pseudo-likelihood": tests.pseudo_likelihood,
        }
        record.row(f"{name}, CSEP tests passed of {tests.days} days, nominal 0.95", label, **passed)
        said = ", ".join(f"{key} {share:.3f}" for key, share in passed.items())
        print(f"{name}, {split}: {label}: CSEP tests of {tests.days} days: {said}", flush=True)
    if not record.quick:
        record.bar(f"gain over ETAS on {name}, {split}", gain.mean, least=WANTED)
        record.bar(f"lower end of its interval on {name}, {split}", gain.low, least=0.0)


@torch.no_grad()
def difference(first: SeismicDAPP, second: SeismicDAPP, data: Dataset) -> Gain:
    """The gain of ``first`` per event, bootstrapped over blocks of equal time."""
    sums, counts = np.zeros(BLOCKS), np.zeros(BLOCKS)
    for row in range(len(data)):
        batch = data.batch([row])
        terms = [gap_log_likelihoods(model, batch) for model in (first, second)]
        values = [(logs - integrals)[0].numpy() for logs, integrals in terms]
        ends = batch.edges[0, 1:].numpy()
        begin = float(ends[0])
        if data.context is not None and data.context.scored_from is not None:
            begin = float(data.context.scored_from[row])
        edges = np.linspace(begin, float(batch.stop[0]), BLOCKS + 1)
        block = np.clip(np.searchsorted(edges, ends, side="right") - 1, 0, BLOCKS - 1)
        sums += np.bincount(block, values[0] - values[1], BLOCKS)
        events = np.append(batch.scored[0].numpy(), False).astype(float)
        counts += np.bincount(block, events, BLOCKS)
    return paired_gain(sums, counts, seed=0)


if __name__ == "__main__":
    main()
