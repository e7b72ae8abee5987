"""Training throughput: events per second of Fourpoint's models and EasyTPP's, on the same data, in
turns.

    python benchmarks/training.py [--rounds 5] [--seconds 1] [--threads 1 2] [--ours dapp ...]
    [--theirs THP ...]

500 sequences of a Hawkes process (mu = .5, alpha = .5, beta = 1 on [0, 30], about 30 events each)
in batches of 64, the `gaps` convention. Fourpoint trains with `fp.fit`, whose own count of events
per second (steps only, no validation) is taken; EasyTPP with its own loader and loop
(`easytpp_training.py`). Two settings: **default**, those of each library (Fourpoint: 64 hidden
units, 2 to 8 random nodes per gap by model; EasyTPP: 32 hidden units, a grid of 20 points), and
**equal**, 32 hidden units and 10 nodes per gap everywhere (RMTPP's integral has a closed form here
and needs none). Every round trains every model for about ``--seconds`` (Fourpoint's for whole
epochs, EasyTPP's for whole batches), one after the other, so that what else the machine does meets
all alike; times are by the clock. Ratios are medians of the rounds' ratios. An untimed run of each
comes first: compiling and what is set up once is not counted. The equal setting runs on as many
threads as the last default one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import easytpp_training
import torch
from records import Figure, Record, figure, options, ratios

import fourpoint as fp
from fourpoint.events import Dataset
from fourpoint.models import MODELS, Hawkes

BATCH, NODES = 64, 10
BARS = ("SAHP", "THP")
PAPER_SIZE: dict[str, Any] = dict(heads=2, features=20)
SMALL: dict[str, dict[str, Any]] = {
    "dapp": {},
    "deep-dapp": dict(width=32),
    "rmtpp": dict(hidden=32),
    "nhp": dict(hidden=32, dropout=0.0),  # EasyTPP's has none
    "sahp": dict(hidden=32, layers=2, heads=2),
    "thp": dict(hidden=32, layers=2, heads=2),
}
Run = Callable[[float], float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of training in each round")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ours", nargs="*", default=list(SMALL), choices=list(SMALL))
    parser.add_argument(
        "--theirs",
        nargs="*",
        default=list(easytpp_training.MODELS),
        choices=easytpp_training.MODELS,
    )
    options(parser)
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds, given.threads = 2, 0.1, given.threads[-1:]
        given.ours, given.theirs = ["dapp", "sahp", "thp"], list(BARS)
    record = Record(
        "training",
        "Events per second of training on Hawkes data, batches of 64, in turns.",
        given.quick,
    )
    data = fp.sample(Hawkes(baseline=0.5, branching=0.5, decay=1.0), 0.0, 30.0, 500, seed=1)
    for threads in given.threads:
        torch.set_num_threads(threads)
        compare(record, data, threads, False, given)
    compare(record, data, threads, True, given)
    print(f"wrote {record.write(given.results)}")


def compare(
    record: Record, data: Dataset, threads: int, equal: bool, given: argparse.Namespace
) -> None:
    """One table: rounds in which every model trains in turn."""
    part = (
        f"{'equal sizes and 10 nodes per gap' if equal else 'default settings'}, {threads} "
        f"thread{'s' * (threads > 1)}"
    )
    print(f"\n{part}; {data.events:,} events in {len(data)} sequences")
    runs = contenders(record, part, data, equal, given)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(0.0)
    for round_ in range(given.rounds):
        for name, run in runs.items():
            found[name].append(run(given.seconds))
        print(f"round {round_ + 1} of {given.rounds}", flush=True)
    speeds = {name: figure(values, "events/s") for name, values in found.items()}
    lead = speeds.get("Fourpoint dapp")
    for name, speed in speeds.items():
        beside = ratios(lead, speed) if lead else None
        record.row(part, name, **{"events/s": speed, "Fourpoint dapp is N times faster": beside})
        print(
            f"{name:26}{speed['median']:12,.0f} events/s ({speed['min']:,.0f} to "
            f"{speed['max']:,.0f}){told(beside)}"
        )
    if not equal:
        for name in BARS:
            check(record, speeds, name, threads)


def check(record: Record, speeds: dict[str, Figure], name: str, threads: int) -> None:
    text = (
        f"DAPP trains so many times the events per second of EasyTPP's {name} (defaults, "
        f"{threads} thread{'s' * (threads > 1)})"
    )
    ours, theirs = speeds.get("Fourpoint dapp"), speeds.get(f"EasyTPP {name}")
    both = ours is not None and theirs is not None
    record.bar(
        text,
        ratios(ours, theirs) if both else None,
        least=5,
        reason="" if both else "one of the two is missing",
    )


def contenders(
    record: Record, part: str, data: Dataset, equal: bool, given: argparse.Namespace
) -> dict[str, Run]:
    """Every model as a function that trains for so many seconds and gives events per second."""
    found = {
        f"Fourpoint {name}": fourpoint(
            name, data, SMALL[name] if equal else {}, NODES if equal else None
        )
        for name in given.ours
    }
    if "dapp" in given.ours:
        found["Fourpoint dapp, K=2, D=20"] = fourpoint(
            "dapp", data, PAPER_SIZE, NODES if equal else None
        )
    for name in given.theirs:
        try:
            found[f"EasyTPP {name}"] = easy_tpp(
                name, data, NODES if equal else easytpp_training.NODES
            )
        except ImportError as error:
            print(f"EasyTPP {name:18}missing ({error})")
            record.missing(part, f"EasyTPP {name}", error)
    return found


def fourpoint(name: str, data: Dataset, settings: dict[str, Any], nodes: int | None) -> Run:
    """As many epochs as the time is long enough for by the last count, one at least."""
    last = 0.0

    def run(seconds: float) -> float:
        nonlocal last
        model = MODELS[name](data.marks, **settings)
        steps = max(1, round(seconds * last / data.events)) * len(data.batches(BATCH))
        terms: dict[str, Any] = dict(
            steps=steps, epochs=0.0, batch_size=BATCH, nodes=nodes, validate_every=steps
        )
        done = fp.fit(
            model, data, data[:8], **terms, convention="gaps", baselines=False, progress=False
        )
        last = done.history[-1]["events_per_second"]
        return last

    return run


def easy_tpp(name: str, data: Dataset, nodes: int) -> Run:
    return easytpp_training.Trainer(name, data, nodes=nodes).throughput


def told(beside: Figure | None) -> str:
    return (
        (
            f"; dapp is {beside['median']:.1f} times as fast ({beside['min']:.1f} to "
            f"{beside['max']:.1f})"
        )
        if beside
        else ""
    )


if __name__ == "__main__":
    main()
