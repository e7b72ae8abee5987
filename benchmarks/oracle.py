"""Seconds of training until a model comes within .01 nats per event of the process that made the
data.

    python benchmarks/oracle.py [--limit 60] [--repeats 3] [--threads 2] [--ours dapp ...] [--theirs
    RMTPP ...]

500 sequences of a Hawkes process (mu = .5, alpha = .5, beta = 1 on [0, 30]) train every model in
batches of 64; 200 others score it now and then in the `gaps` convention, and so they score the
oracle, which is the process itself. Only training is timed, by the clock; scoring, compiling and
setting up are not, on either side. Training that has not arrived after ``--limit`` seconds is given
up. Fourpoint's models train by `fp.fit` and their own recipe, in a process of their own that is
watched through its `history.csv`. Where events excite each other DAPP has a first guess before its
first step, a fitted Hawkes process, and these data are one: what its steps alone take stands in a
row of its own. EasyTPP's train in EasyTPP's loop at the learning rates 1e-3 (its default) and 1e-2,
and the better one counts. The score of EasyTPP's models is the honest integral (Gauss-Legendre,
doubled until it settles to 1e-3), that of Fourpoint's is `fit`'s own (12 Gauss-Legendre nodes in
each gap), and the weights that arrive are then scored by the honest one, which the table shows.
What a model learns from the data before its first step (`initialise`) counts as training. The
`gaps` convention leaves out the time after the last event, so that a model that knows the clock can
come out above the process itself; the last column shows the score of the same weights on whole
windows, where it cannot.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import easytpp_training
import torch
from records import Figure, Record, figure, options

import fourpoint as fp
from fourpoint.events import Dataset
from fourpoint.inference.likelihood import Convention, log_likelihood
from fourpoint.models import MODELS, Hawkes
from fourpoint.storage import checkpoints

BATCH, WITHIN, RATES = 64, 0.01, (1e-3, 1e-2)
STEPS_ALONE = "dapp, without its first guess"
OURS = ("dapp", STEPS_ALONE, "deep-dapp", "rmtpp", "nhp", "sahp", "thp")
POLL = 0.2
STEPS: int | None = None  # of `fit` at most; None: as many as the model's recipe has


class Arrival(NamedTuple):
    """Seconds of training until it was there (None: never), the score then or the best one, and all
    seconds of training.

    ``window`` is how far the arriving weights are below the oracle on whole windows, where that is
    known.
    """

    reached: float | None
    score: float
    seconds: float
    epochs: int
    window: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        help="seconds of training after which a model is given up",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="seeds 0, 1, ... of each; a model that never arrives has one",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ours", nargs="*", default=list(OURS), choices=list(OURS))
    parser.add_argument(
        "--theirs",
        nargs="*",
        default=list(easytpp_training.MODELS),
        choices=easytpp_training.MODELS,
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options(parser)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        name, seed, folder = given.one
        train_ours(name, int(seed), Path(folder))
        return
    if given.quick:
        given.limit, given.repeats, given.ours, given.theirs = 5.0, 1, ["dapp", "sahp"], ["NHP"]
    record = Record(
        "oracle",
        f"Seconds of training to within {WITHIN} nats per event of the oracle.",
        given.quick,
    )
    train, test = sets()
    oracle = honest(truth(), test)
    print(
        f"oracle {oracle:.4f} nats per event on {test.events:,} events; {given.threads} "
        f"threads, given up after {given.limit:g} s"
    )
    mine, theirs = dict[str, float | None](), dict[str, float | None]()
    for name in given.ours:
        mine[name] = repeated(
            record, f"Fourpoint {name}", oracle, given, lambda s, n=name: ours(n, s, oracle, given)
        )
    for name in given.theirs:
        for rate in RATES:
            label = f"EasyTPP {name}, rate {rate:g}"
            try:
                theirs[label] = repeated(
                    record,
                    label,
                    oracle,
                    given,
                    lambda s, n=name, r=rate: peer(n, r, s, train, test, oracle, given),
                )
            except ImportError as error:
                record.missing("time to the oracle", label, error)
    verdict(record, mine, theirs, given)
    print(f"wrote {record.write(given.results)}")


def repeated(
    record: Record,
    label: str,
    oracle: float,
    given: argparse.Namespace,
    once: Callable[[int], Arrival],
) -> float | None:
    """Runs with other seeds, one row of the table; the median seconds where every run arrived. One
    failure at once is enough.
    """
    runs = [once(0)]
    runs += [once(seed) for seed in range(1, given.repeats if runs[0].reached is not None else 1)]
    there = [run for run in runs if run.reached is not None]
    took = figure([run.reached for run in there if run.reached is not None], "s") if there else {}
    seconds: Figure | str = took if len(there) == len(runs) else missed(runs, oracle)
    below = figure([oracle - run.score for run in runs], "nats per event")
    windows = [run.window for run in there if run.window is not None]
    whole = figure(windows) if windows else None
    epochs = max(run.epochs for run in runs)
    told = {
        "seconds": seconds,
        "below the oracle": below,
        "epochs": epochs,
        "below the oracle, whole windows": whole,
    }
    record.row("time to the oracle", label, **told)
    said = (
        seconds
        if isinstance(seconds, str)
        else f"{took['median']:.2f} s ({took['min']:.2f} to {took['max']:.2f}), {epochs} epochs"
    )
    print(f"{label:32}{said}", flush=True)
    return None if isinstance(seconds, str) else took["median"]


def missed(runs: list[Arrival], oracle: float) -> str:
    """What is said of a model that did not arrive in every run."""
    late = max((run for run in runs if run.reached is None), key=lambda run: run.score)
    best = f"best {oracle - late.score:.4f} below the oracle after {late.seconds:.0f} s of training"
    share = (
        ""
        if len(runs) == 1
        else f" by {sum(run.reached is None for run in runs)} of {len(runs)} runs"
    )
    return f"not reached{share}: {best}"


def verdict(
    record: Record,
    ours_: dict[str, float | None],
    theirs: dict[str, float | None],
    given: argparse.Namespace,
) -> None:
    """DAPP beside the fastest EasyTPP model at its better rate."""
    text = "DAPP's seconds to the oracle - .01 as a share of the fastest EasyTPP model's"
    mine = {name: s for name, s in ours_.items() if name == "dapp" and s is not None}
    there = {name: s for name, s in theirs.items() if s is not None}
    if not theirs or not mine:
        record.bar(
            text,
            None,
            most=0.1,
            reason="EasyTPP is missing" if not theirs else "DAPP did not arrive",
        )
        return
    if there:
        name, quick = min(there, key=there.__getitem__), min(mine, key=mine.__getitem__)
        record.bar(f"{text} ({quick} beside {name})", mine[quick] / there[name], most=0.1)
        return
    share = min(mine.values()) / given.limit
    record.bar(
        f"{text} (no EasyTPP model arrived in {given.limit:g} s: share of that limit)",
        share,
        most=0.1,
    )


# ---------------------------------------------------------------------- Fourpoint


def ours(name: str, seed: int, oracle: float, given: argparse.Namespace) -> Arrival:
    """Start `fit` in a process of its own, and end it once its history says that it has arrived or
    used up its time.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable,
            "-W",
            "ignore",
            __file__,
            "--threads",
            str(given.threads),
            "--one",
            name,
            str(seed),
            folder,
        ]
        process = subprocess.Popen(words)
        try:
            found = watched(process, Path(folder), oracle, given.limit)
        finally:
            process.terminate()
            process.wait()
        if found.reached is None:
            return found
        model, test = checkpoints.restore(Path(folder)).eval(), sets()[1]
        window = honest(truth(), test, "window") - honest(model, test, "window")
        return found._replace(score=honest(model, test), window=window)


def watched(process: subprocess.Popen[bytes], folder: Path, oracle: float, limit: float) -> Arrival:
    """The history of a run until it arrives."""
    train, test = sets()
    gaps = int((test.lengths - 1).clip(min=0).sum())
    while True:
        over = process.poll() is not None
        if over and process.returncode:
            raise RuntimeError(
                f"expected a fit that ends well; received exit code {process.returncode}. "
                "See what it printed."
            )
        seconds, best, rows = started(folder), -math.inf, history(folder)
        for epoch, row in enumerate(rows, 1):  # one row is one epoch, so that its events are known
            seconds += (
                train.events / row["events_per_second"] if row["step"] else 0.0
            )  # step 0 is a first guess
            score = (
                row["dev_log_likelihood"] * test.events / gaps
            )  # fit divides by all events, the convention by those it scores
            best = max(best, score)
            if score >= oracle - WITHIN and seconds <= limit:
                return Arrival(seconds, score, seconds, epoch)
        if over or seconds > limit:
            return Arrival(None, best, seconds, len(rows))
        time.sleep(POLL)


def started(folder: Path) -> float:
    """Seconds that the model took to learn from the data before its first step."""
    file = folder / "initialise.txt"
    return float(file.read_text() or 0) if file.is_file() else 0.0


def history(folder: Path) -> list[dict[str, float]]:
    file = folder / "history.csv"
    text = file.read_text() if file.is_file() else ""
    return [
        {name: float(value) for name, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


def train_ours(name: str, seed: int, folder: Path) -> None:
    build, (train, test) = MODELS[name.split(",")[0]], sets()
    with tempfile.TemporaryDirectory() as other:  # compiles and loads
        few = dict(
            steps=2, epochs=0.0, folder=other, convention="gaps", baselines=False, progress=False
        )
        fp.fit(build(train.marks), train[:BATCH], test[:8], **few)
    build(train.marks).initialise(train[:BATCH])
    fresh = build(train.marks, seed=seed)
    began = time.perf_counter()
    fresh.initialise(train)
    (folder / "initialise.txt").write_text(str(time.perf_counter() - began))
    each: dict[str, Any] = dict(
        batch_size=BATCH,
        validate_every=len(train.batches(BATCH)),
        patience=10**6,
        convention="gaps",
        seed=seed,
        baselines=False,
        progress=False,
    )
    model = build(train.marks, seed=seed)
    if name == STEPS_ALONE:
        model.initialise = without_guess(model)
    fp.fit(model, train, test, folder=folder, steps=STEPS, **each)


def without_guess(model: Any) -> Callable[[Dataset], list[str]]:
    """The model's `initialise`, after which it has no first guess."""
    original = model.initialise

    def initialise(data: Dataset) -> list[str]:
        notes = original(data)
        model.first_guess = None
        return notes

    return initialise


# ---------------------------------------------------------------------- EasyTPP


def peer(
    name: str,
    rate: float,
    seed: int,
    train: Dataset,
    test: Dataset,
    oracle: float,
    given: argparse.Namespace,
) -> Arrival:
    """EasyTPP's loop, scored after every epoch at first and after every tenth more of them
    later.
    """
    easytpp_training.Trainer(name, train[:BATCH], rate=rate).epoch()
    trainer = easytpp_training.Trainer(name, train, rate=rate, seed=seed)
    seconds, best, due, epochs = 0.0, -math.inf, 1, 0
    while seconds < given.limit:
        seconds, epochs = seconds + trainer.epoch(), epochs + 1
        if epochs < due and seconds < given.limit:
            continue
        due = epochs + max(1, epochs // 10)
        try:
            score = trainer.score(test, WITHIN / 10)
        except easytpp_training.Unsettled as rough:
            score = rough.score - rough.change
        best = max(best, score)
        if score >= oracle - WITHIN:
            return Arrival(seconds, score, seconds, epochs)
    return Arrival(None, best, seconds, epochs)


# ---------------------------------------------------------------------- the data and its score


def truth() -> Hawkes:
    return Hawkes(baseline=0.5, branching=0.5, decay=1.0)


def sets() -> tuple[Dataset, Dataset]:
    """What trains, and what scores."""
    return fp.sample(truth(), 0.0, 30.0, 500, seed=1), fp.sample(truth(), 0.0, 30.0, 200, seed=3)


def honest(model: Any, data: Dataset, convention: Convention = "gaps") -> float:
    """Nats per event by an integral that settles to 1e-4."""
    parts = [
        log_likelihood(model, data.batch(rows), convention=convention) for rows in data.batches(128)
    ]
    return float(sum(p.value.sum() for p in parts) / sum(p.events.sum() for p in parts))


if __name__ == "__main__":
    main()
