"""How often 95% intervals of Hawkes parameters hold the truth, over simulated data sets.

    python benchmarks/interval_coverage.py [--sets 200]

Each data set has 20 sequences on [0, 100): of one type with mu = .5, alpha = .5, beta = 1 (about
2,000 events), and of five types with 15 of 25 branching ratios above 0 (about 4,500 events). Every
set is fitted by maximum likelihood, and `model.intervals()` is compared with the truth: baselines,
branching ratios (those above 0, those of 0, and all of them) and decay. Beside them Wald intervals,
the estimate and 1.96 standard errors on either side, which do not exist for estimates of 0. Of 200
intervals with a level of 95%, between 92 and 98 percent hold the truth in 95 of 100 repetitions.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray
from records import Record, options

from fourpoint.inference.sampling import sample
from fourpoint.models import Hawkes

ZERO = 1e-12  # a branching ratio of 0, as the model stores it
SEQUENCES, STOP = 20, 100.0
ONE = Hawkes(baseline=0.5, branching=0.5, decay=1.0)
FIVE = Hawkes(
    5,
    baseline=[0.3, 0.2, 0.25, 0.2, 0.3],
    branching=[
        [0.3, 0.1, ZERO, ZERO, 0.05],
        [0.1, 0.2, 0.2, ZERO, ZERO],
        [ZERO, 0.05, 0.3, ZERO, 0.1],
        [0.2, ZERO, ZERO, 0.1, ZERO],
        [ZERO, 0.1, 0.1, 0.05, 0.2],
    ],
    decay=1.5,
)
Bools = NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=200, help="simulated data sets of each kind")
    options(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    about = "Coverage of 95% intervals of the parameters of a Hawkes process."
    record = Record("interval_coverage", about, given.quick)
    sets = 4 if given.quick else given.sets
    study(record, "one type", ONE, sets, seed=7)
    study(record, "five types", FIVE, sets, seed=8)
    print(f"wrote {record.write(given.results)}")


def study(record: Record, name: str, truth: Hawkes, sets: int, seed: int) -> None:
    """Fit ``sets`` data sets and count intervals that hold the truth."""
    everything = sample(truth, 0.0, STOP, sets * SEQUENCES, seed=seed)
    part = f"{name}: {sets:,} data sets of {everything.events / sets:,.0f} events"
    print(f"\n{part}")
    true = {key: np.where(x < 2 * ZERO, 0.0, x) for key, x in truth.estimates.items()}
    held: dict[str, list[Bools]] = {key: [] for key in true}
    wald: dict[str, list[Bools]] = {key: [] for key in true}
    began = time.perf_counter()
    for k in range(sets):
        model = Hawkes(truth.marks)
        model.maximum_likelihood(everything[k * SEQUENCES : (k + 1) * SEQUENCES])
        for key, limits in model.intervals().items():
            held[key].append((limits[..., 0] <= true[key]) & (true[key] <= limits[..., 1]))
            distance = np.abs(model.estimates[key] - true[key])
            wald[key].append(distance <= 1.96 * model.errors[key])
    print(f"{(time.perf_counter() - began) / sets * 1000:.0f} ms for each fit with its intervals")
    print(f"{'':22}{'intervals':>10}{'held':>8}{'Wald':>8}{'lowest':>8}{'highest':>9}")
    zero = true["branching"] == 0
    chosen = {
        "baseline": ("baseline", np.ones_like(true["baseline"], dtype=bool)),
        "branching": ("branching", np.ones_like(zero)),
        "decay": ("decay", np.ones_like(true["decay"], dtype=bool)),
    }
    if zero.any():
        chosen["branching above 0"] = ("branching", ~zero)
        chosen["branching of 0"] = ("branching", zero)
    for row, (key, which) in chosen.items():
        each = np.array(held[key])[:, which]
        naive = float(np.array(wald[key])[:, which].mean())
        share = float(each.mean())
        low, high = float(each.mean(0).min()), float(each.mean(0).max())
        figures = {"held": share, "Wald": naive, "lowest parameter": low}
        record.row(part, row, **figures, **{"highest parameter": high})
        print(f"{row:22}{each.size:>10,}{share:>8.1%}{naive:>8.1%}{low:>8.1%}{high:>9.1%}")
        if row != "branching of 0":
            record.bar(f"95% intervals of {row}, {name}", share, least=0.93)
            record.bar(f"95% intervals of {row}, {name}, not too wide", share, most=0.97)


if __name__ == "__main__":
    main()
