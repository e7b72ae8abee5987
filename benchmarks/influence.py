"""Which type of event leads to which: edges of a Hawkes process found by Fourpoint, beside tick.

    python benchmarks/influence.py [--seeds 10] [--events 50000] [--types 20]

For each seed a matrix with 20 types and 40 of 400 branching ratios above 0, uniform on [.1, .4] and
scaled to a spectral radius of .7 where it is larger; one sequence of about 50,000 events is drawn
as a branching process (exact), with baselines uniform on [.5, 1.5] and a decay of 1. Fourpoint fits
all parameters, decay included, and `fp.influence` selects edges at a false discovery rate of 10%.
tick is given the true decay: `HawkesExpKern` (least squares, ridge penalty) and `HawkesADM4`
(low rank and sparse), with their default settings and with tenfold weaker penalties. It has no
test: an edge is a ratio above 0.01. AUROC ranks pairs by Fourpoint's test statistic and by tick's
ratios; FDR is the mean over seeds of the share of false ones among the edges, and power the share
of true edges found. What is not installed is shown as missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from records import Record, figure, options

import fourpoint as fp
from fourpoint.events import Dataset, Sequence
from fourpoint.models import Hawkes

EDGES_PER_TYPE, RADIUS, DECAY = 2, 0.7, 1.0
VISIBLE = 0.01  # a branching ratio that counts as an edge of tick's
RATE = 0.1  # false discovery rate
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Found(NamedTuple):
    """Scores (M, M) that rank pairs, excited type first, edges, and seconds."""

    scores: Floats
    edges: Bools
    seconds: float


class Truth(NamedTuple):
    """Branching ratios (M, M), excited type first, and a data set."""

    branching: Floats
    data: Dataset


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--types", type=int, default=20)
    options(parser)
    given = parser.parse_args()
    if given.quick:
        given.seeds, given.events, given.types = 1, 2_000, 4
    torch.set_num_threads(1)
    about = "Edges of a Hawkes process that are found, and how many of them are false."
    record = Record("influence", about, given.quick)
    truths = [drawn(given.types, given.events, seed) for seed in range(given.seeds)]
    events = np.mean([truth.data.events for truth in truths])
    part = f"{given.types} types, {events:,.0f} events, {given.seeds} seeds"
    print(part)
    print(f"{'':34}{'AUROC':>8}{'lowest':>8}{'FDR':>8}{'power':>8}{'seconds':>9}", flush=True)
    auroc: float | None = None
    for name, method in METHODS.items():
        try:
            found = [method(truth) for truth in truths]
        except ImportError as error:
            print(f"{name:34}missing ({error})")
            record.missing(part, name, error)
            continue
        pairs = list(zip(truths, found, strict=True))
        areas = [area(truth.branching > 0, one.scores) for truth, one in pairs]
        false = float(
            np.mean([false_share(truth.branching > 0, one.edges) for truth, one in pairs])
        )
        power = float(np.mean([one.edges[truth.branching > 0].mean() for truth, one in pairs]))
        seconds = figure([one.seconds for one in found], "s")
        figures = dict(AUROC=float(np.mean(areas)), lowest=min(areas), FDR=false, power=power)
        record.row(part, name, **figures, seconds=seconds)
        numbers = f"{np.mean(areas):>8.4f}{min(areas):>8.4f}{false:>8.1%}{power:>8.1%}"
        print(f"{name:34}{numbers}{seconds['median']:>9.2f}", flush=True)
        if name == OURS:
            auroc = float(np.mean(areas))
            record.bar("AUROC of edges", auroc, least=0.98)
            record.bar("false discovery rate of edges at nominal 10%", false, most=0.1)
    print(f"wrote {record.write(given.results)}")


# ---------------------------------------------------------------------- methods


def fourpoint(truth: Truth, correction: str) -> Found:
    began = time.perf_counter()
    model = Hawkes(truth.data.marks)
    model.maximum_likelihood(truth.data)
    found = fp.influence(model, truth.data, fdr=RATE, correction=correction)
    return Found(-found.p_values, found.edges, time.perf_counter() - began)


def exp_kern(truth: Truth, penalty: float) -> Found:
    from tick.hawkes import HawkesExpKern

    learner = HawkesExpKern(DECAY, C=penalty)
    return _learned(learner, truth)


def adm4(truth: Truth, penalty: float) -> Found:
    from tick.hawkes import HawkesADM4

    return _learned(HawkesADM4(DECAY, C=penalty), truth)


class Learner(Protocol):
    """A learner of tick."""

    adjacency: NDArray[np.float64]

    def fit(self, events: list[list[NDArray[np.float64]]]) -> object: ...


def _learned(learner: Learner, truth: Truth) -> Found:
    sequence = truth.data[0]
    types = len(truth.branching)
    times = [np.ascontiguousarray(sequence.times[sequence.marks == m]) for m in range(types)]
    began = time.perf_counter()
    learner.fit([times])
    ratios = np.asarray(learner.adjacency).reshape(types, types)
    return Found(ratios, ratios > VISIBLE, time.perf_counter() - began)


OURS = "Fourpoint, Benjamini-Yekutieli"
METHODS: dict[str, Callable[[Truth], Found]] = {
    OURS: lambda truth: fourpoint(truth, "by"),
    "Fourpoint, Benjamini-Hochberg": lambda truth: fourpoint(truth, "bh"),
    "tick HawkesExpKern, C = 1000": lambda truth: exp_kern(truth, 1e3),
    "tick HawkesExpKern, C = 10000": lambda truth: exp_kern(truth, 1e4),
    "tick HawkesADM4, C = 1000": lambda truth: adm4(truth, 1e3),
    "tick HawkesADM4, C = 10000": lambda truth: adm4(truth, 1e4),
}


# ---------------------------------------------------------------------- data and scores


def drawn(types: int, events: int, seed: int) -> Truth:
    """A sparse matrix and one sequence of about so many events."""
    rng = np.random.default_rng(seed)
    branching = np.zeros(types**2)
    chosen = rng.choice(types**2, EDGES_PER_TYPE * types, replace=False)
    branching[chosen] = rng.uniform(0.1, 0.4, len(chosen))
    branching = branching.reshape(types, types)
    radius = float(np.abs(np.linalg.eigvals(branching)).max())
    branching *= min(1.0, RADIUS / radius) if radius > 0 else 1.0
    mu = rng.uniform(0.5, 1.5, types)
    total = np.linalg.solve(np.eye(types) - branching, mu).sum()
    stop = events / float(total)
    counts = rng.poisson(mu * stop)
    marks = np.repeat(np.arange(types), counts)
    times = rng.uniform(0, stop, counts.sum())
    all_times, all_marks = [times], [marks]
    while len(times):
        children = rng.poisson(branching.T[marks])  # (events, excited type)
        parent, child = np.nonzero(children)
        repeat = children[parent, child]
        times = np.repeat(times[parent], repeat) + rng.exponential(1 / DECAY, repeat.sum())
        marks = np.repeat(child, repeat)
        times, marks = times[times < stop], marks[times < stop]
        all_times.append(times)
        all_marks.append(marks)
    when, what = np.concatenate(all_times), np.concatenate(all_marks)
    order = np.argsort(when, kind="stable")
    one = Sequence(when[order], what[order], start=0.0, stop=stop, space=types)
    return Truth(branching, Dataset.from_sequences([one]))


def area(true: Bools, scores: Floats) -> float:
    """The area under the ROC curve: the chance that an edge ranks above another pair."""
    above, below = scores[true], scores[~true]
    higher = (above[:, None] > below).mean()
    return float(higher + (above[:, None] == below).mean() / 2)


def false_share(true: Bools, edges: Bools) -> float:
    return float((edges & ~true).sum() / max(1, edges.sum()))


if __name__ == "__main__":
    main()
