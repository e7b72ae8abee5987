"""The neural baselines beside EasyTPP's, in one run: likelihood by one honest integral, and
training speed.

    python benchmarks/peers.py [--models rmtpp nhp sahp thp] [--epochs 20] [--repeats 1]

500 sequences of a Hawkes process (mu = .5, alpha = .5, beta = 1 on [0, 30]) train every model for
``--epochs`` epochs in batches of 64 with 32 hidden units; 500 others score it. Each library trains
in its own way: EasyTPP with its own loader, its own loop (`easytpp_training.py`: Adam at 1e-3, a
grid of 20 points in each gap); Fourpoint with `fp.fit` and the model's own recipe. Both maximise
the likelihood of events 2..N on [t_1, t_N], the `gaps` convention, and are scored on it by one
rule: Gauss-Legendre in every gap with twice the nodes until the sum settles to 1e-4 nats per event.
Speed is training events (all of them) per second of processor time on one thread, which other jobs
on the machine disturb least; Fourpoint's includes its one validation, on 100 sequences. What is
set up once is not timed. The oracle is the process itself.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from easytpp_training import Trainer, own_score
from records import Figure, Record, figure, options, ratios

import fourpoint as fp
from fourpoint.events import Dataset
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models import MODELS, Hawkes

BATCH, HIDDEN = 64, 32
SMALL: dict[str, dict[str, Any]] = {
    "rmtpp": dict(hidden=HIDDEN),
    "nhp": dict(hidden=HIDDEN, dropout=0.0),  # EasyTPP's has none
    "sahp": dict(hidden=HIDDEN, layers=2, heads=2),
    "thp": dict(hidden=HIDDEN, layers=2, heads=2),
}
COLUMNS = ("nats per event", "own loss says", "events/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(SMALL), choices=list(SMALL))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="runs of each, with seeds 0, 1, ...; medians are printed",
    )
    options(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = Record(
        "peers", "The neural baselines beside EasyTPP's after equally many epochs.", given.quick
    )
    truth = Hawkes(baseline=0.5, branching=0.5, decay=1.0)
    train, dev, test = (
        fp.sample(truth, 0.0, 30.0, n, seed=seed) for n, seed in ((500, 1), (100, 2), (500, 3))
    )
    oracle = score(truth, test)
    print(
        f"one thread, torch {torch.__version__}; {train.events:,} training events; oracle "
        f"{oracle:.4f} nats per event"
    )
    print(f"{'model':8}{'':12}{'nats per event':>15}{'own loss says':>15}{'events per second':>19}")
    part = f"{given.epochs} epochs, {HIDDEN} hidden units"
    record.row(part, "oracle", **{"nats per event": oracle})
    for name in given.models:
        compare(record, part, name, train, dev, test, given)
    print(f"wrote {record.write(given.results)}")


def compare(
    record: Record,
    part: str,
    name: str,
    train: Dataset,
    dev: Dataset,
    test: Dataset,
    given: argparse.Namespace,
) -> None:
    """One model in both libraries, in turn, since a machine is not equally fast all the time."""
    train_ours(name, train, dev, dev, 1, 0)  # what is set up once is not timed, here or there
    ours, theirs, missing = [], [], ""
    for seed in range(given.repeats):
        ours.append(train_ours(name, train, dev, test, given.epochs, seed))
        try:
            theirs.append(train_theirs(name.upper(), train, test, given.epochs, seed))
        except ImportError as error:
            missing = str(error)
    mine = report(record, part, name, "Fourpoint", ours)
    if missing:
        print(f"{name:8}{'EasyTPP':12}missing ({missing})")
        record.missing(part, f"EasyTPP {name}", missing)
        return
    other = report(record, part, name, "EasyTPP", theirs)
    faster = ratios(mine["events/s"], other["events/s"])["median"]
    verdict = (
        "ahead"
        if mine["nats per event"]["median"] >= other["nats per event"]["median"]
        else "BEHIND"
    )
    print(f"{'':20}{verdict}, {faster:.1f} times as fast")


def report(
    record: Record, part: str, name: str, library: str, runs: list[tuple[float, float, float]]
) -> dict[str, Figure]:
    found = {
        column: figure(values)
        for column, values in zip(COLUMNS, zip(*runs, strict=True), strict=True)
    }
    record.row(part, f"{library} {name}", **found)
    score, own, speed = (found[column]["median"] for column in COLUMNS)
    print(f"{name:8}{library:12}{score:15.4f}{own:15.4f}{speed:19,.0f}", flush=True)
    return found


def train_ours(
    name: str, train: Dataset, dev: Dataset, test: Dataset, epochs: int, seed: int
) -> tuple[float, float, float]:
    model = MODELS[name](train.marks, seed=seed, **SMALL[name])
    steps = epochs * len(train.batches(BATCH))
    began = time.process_time()
    terms: dict[str, Any] = dict(
        batch_size=BATCH, convention="gaps", seed=seed, baselines=False, progress=False
    )
    fp.fit(model, train, dev, steps=steps, validate_every=steps, **terms)
    speed = epochs * train.events / (time.process_time() - began)
    found = score(model, test)
    return found, found, speed


def train_theirs(
    name: str, train: Dataset, test: Dataset, epochs: int, seed: int
) -> tuple[float, float, float]:
    trainer = Trainer(name, train, seed=seed)
    began = time.process_time()
    for _ in range(epochs):
        trainer.epoch()
    speed = epochs * train.events / (time.process_time() - began)
    return trainer.score(test), own_score(trainer.model, test), speed


def score(model: Any, data: Dataset) -> float:
    parts = [
        log_likelihood(model, data.batch(rows), convention="gaps") for rows in data.batches(128)
    ]
    return float(sum(p.value.sum() for p in parts) / sum(p.events.sum() for p in parts))


if __name__ == "__main__":
    main()
