"""How the scan grows with the length of one sequence: time and memory of one training step from 10^4 to 10^6 events.

    python benchmarks/scaling.py [--model dapp|deep-dapp] [--heads 2] [--features 20] [--nodes 4]
        [--lengths 10000 100000 1000000] [--json FILE]

``--heads`` and ``--features`` are DAPP's; Deep DAPP has its default size. Each length runs in a process of its own, so that its peak
memory is its own. A step is the sampled log-likelihood of one sequence and its gradient. Exponents are slopes between neighbouring
lengths on a log-log scale: 1 is linear. "MB added" is what the peak grew by over the process before the step.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("dapp", "deep-dapp"), default="dapp")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[10_000, 31_623, 100_000, 316_228, 1_000_000])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.model, options.heads, options.features, options.nodes, options.repeats)))
        return
    rows = []
    for n in options.lengths:
        command = [sys.executable, __file__, "--one", str(n)]
        for name in ("model", "heads", "features", "nodes", "repeats"):
            command += [f"--{name}", str(getattr(options, name))]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        show(rows, header=len(rows) == 1)
    first, last = rows[0], rows[-1]
    decades = math.log(last["events"] / first["events"])
    for name in ("seconds", "bytes"):
        print(f"exponent of {name} over the whole range: {math.log(last[name] / first[name]) / decades:.3f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def measure(n: int, name: str, heads: int, features: int, nodes: int, repeats: int) -> dict[str, float]:
    """Median seconds of a step on one sequence of ``n`` events, and the bytes its peak adds to the process."""
    import resource
    import statistics
    import time

    sys.path.insert(0, str(ROOT / "src"))
    import numpy as np
    import torch

    from fourpoint.events import Dataset, Sequence
    from fourpoint.likelihood import sampled_log_likelihood
    from fourpoint.models import DAPP, DeepDAPP

    times = np.cumsum(np.random.default_rng(0).exponential(size=n))
    data = Dataset.from_sequences([Sequence(times, start=0.0, stop=float(times[-1]) + 1)])
    model = DAPP(heads=heads, features=features, base="constant", drift="none") if name == "dapp" else DeepDAPP()
    model.initialise(data)
    random = torch.Generator().manual_seed(0)

    def step(batch: object) -> None:
        model.redraw(random)
        (-sampled_log_likelihood(model, batch, nodes, random).sum() / n).backward()

    step(Dataset.from_sequences([Sequence(times[:5000], start=0.0, stop=float(times[4999]) + 1)]).batch())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batch, seconds = data.batch(), []
    for _ in range(repeats):
        began = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - began)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"events": n, "seconds": statistics.median(seconds), "bytes": max(grown, 1), "spread": max(seconds) - min(seconds)}


def show(rows: list[dict[str, float]], header: bool) -> None:
    if header:
        print(f"{'events':>10} {'seconds':>9} {'spread':>8} {'events/s':>11} {'MB added':>9} {'time exp.':>9} {'memory exp.':>11}")
    row = rows[-1]
    slopes = ["", ""]
    if len(rows) > 1:
        grown = math.log(row["events"] / rows[-2]["events"])
        slopes = [f"{math.log(row[k] / rows[-2][k]) / grown:.2f}" for k in ("seconds", "bytes")]
    print(
        f"{row['events']:>10,} {row['seconds']:>9.3f} {row['spread']:>8.3f} {row['events'] / row['seconds']:>11,.0f}"
        f" {row['bytes'] / 1e6:>9.1f} {slopes[0]:>9} {slopes[1]:>11}",
        flush=True,
    )


if __name__ == "__main__":
    main()
