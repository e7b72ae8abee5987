"""How often bands of DAPP's rate hold the true rate, on simulated Hawkes data.

    python benchmarks/bands.py [--sets 10] [--methods laplace bootstrap] [--steps 300]

Each set has 30 sequences on [0, 100) of a Hawkes process with mu = .5, alpha = .5, beta = 1 (about
3,000 events). DAPP is fitted (closed-form models are not put in its place), `fp.uncertainty` draws
its parameters, and the 90% band of the rate is compared with the truth at 60 times of each of five
other sequences.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from records import Record, figure, options

import fourpoint as fp
from fourpoint.inference.sampling import sample
from fourpoint.models import DAPP, Hawkes

TRUTH = Hawkes(baseline=0.5, branching=0.5, decay=1.0)
SEQUENCES, STOP, LEVEL, TIMES = 30, 100.0, 0.9, 60
REFITS = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=["laplace"])
    parser.add_argument("--steps", type=int, default=300, help="of the fits")
    options(parser)
    given = parser.parse_args()
    sets, sequences, draws = given.sets, SEQUENCES, None
    if given.quick:
        sets, sequences, draws = 1, 4, 8
    torch.set_num_threads(1)
    record = Record("bands", "Coverage of 90% bands of DAPP's rate.", given.quick)
    part = f"{sets} data sets of {sequences} sequences of a Hawkes process, {given.steps} steps"
    held: dict[str, list[float]] = {method: [] for method in given.methods}
    seconds: dict[str, list[float]] = {method: [] for method in given.methods}
    widths: dict[str, list[float]] = {method: [] for method in given.methods}
    other = sample(TRUTH, 0.0, STOP, 5, seed=999)
    times = np.linspace(2.0, STOP - 2.0, TIMES)
    true = [fp.intensity(TRUTH, one, times) for one in other]
    for k in range(sets):
        data = sample(TRUTH, 0.0, STOP, sequences, seed=k)
        model = DAPP(data.marks)
        fp.fit(model, data, steps=given.steps, baselines=False, progress=False)
        for method in given.methods:
            began = time.perf_counter()
            settings = {"steps": given.steps} if method == "bootstrap" else {}
            count = REFITS if method == "bootstrap" and draws is None else draws
            found = fp.uncertainty(model, data, method, draws=count, seed=k, **settings)
            seconds[method].append(time.perf_counter() - began)
            bands = [found.intensity(model, one, times, level=LEVEL) for one in other]
            pairs = list(zip(bands, true, strict=True))
            inside = [(band.low <= rate) & (rate <= band.high) for band, rate in pairs]
            held[method].append(float(np.mean(inside)))
            widths[method].append(float(np.mean([np.log(band.high / band.low) for band in bands])))
            print(f"set {k}, {method}: {held[method][-1]:.1%} held", flush=True)
    for method in given.methods:
        share = float(np.mean(held[method]))
        figures = {"held": share, "mean log width": float(np.mean(widths[method]))}
        record.row(part, f"DAPP, {method}", **figures, seconds=figure(seconds[method], "s"))
        print(f"DAPP, {method}: {share:.1%} of true rates in 90% bands")
        record.bar(f"90% bands of DAPP's rate, {method}", share, least=0.85)
        record.bar(f"90% bands of DAPP's rate, {method}, not too wide", share, most=0.95)
    print(f"wrote {record.write(given.results)}")


if __name__ == "__main__":
    main()
