"""How the cost of a training step grows: in the length n of one sequence, in marks M, features D
and sequences in a batch.

    python benchmarks/scaling.py [--only n marks features batch deep] [--repeats 3]

A step is a redraw, the sampled log-likelihood (4 nodes per gap) and its gradient, as `fit` has
them: by compiled loops where DAPP has those for a batch (up to 16 marks, in sequences of up to
2,048 events), else by torch. It is on one thread, with freed memory kept as `fit` keeps it (pages
asked for anew at every step would cost more than linearly); seconds are of the processor, user and
system. One axis grows, the
rest stays: DAPP with K = 2 heads and D = 20 features on one sequence of n = 10^4 to 10^6 events; on
8 sequences of 32 events with up to
1,000 marks; on the same with up to 10,000 features; on 16 to 1,024 sequences of 32 events; and Deep
DAPP of its default size on one sequence. Each axis is a process of its own. After an untimed step
of every size all are measured in turn, in every repeat anew; marks, features and batches, whose
steps are short, have three times as many repeats. An exponent is the slope of log seconds against
log size: 1 is linear. Between small sizes the fixed cost of a step hides it, so that it is given
between neighbours and, for the bar, over the top decade. "MB added" is what the peak memory of the
process grew by over that before the first step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from records import ROOT, Record, exponent, figure, options

AXES: dict[str, dict[str, Any]] = {
    "n": dict(
        title="DAPP in n, events of one sequence",
        sizes=(10_000, 31_623, 100_000, 316_228, 1_000_000),
        quick=(3000, 10_000, 30_000),
    ),
    "marks": dict(
        title="DAPP in M, marks", sizes=(1, 10, 32, 100, 316, 1000), quick=(10, 32, 100), more=3
    ),
    "features": dict(
        title="DAPP in D, features",
        sizes=(20, 100, 316, 1000, 3162, 10_000),
        quick=(100, 316, 1000),
        more=3,
    ),
    "batch": dict(
        title="DAPP in sequences of a batch", sizes=(16, 64, 256, 1024), quick=(16, 64, 256), more=3
    ),
    "deep": dict(
        title="Deep DAPP in n, events of one sequence",
        sizes=(3162, 10_000, 31_623, 100_000),
        quick=(1000, 3162, 10_000),
    ),
}
PROMISED, MOST = ("n", "marks", "features", "deep"), 1.05
NODES, SEQUENCES, EVENTS = 4, 8, 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options(parser)
    given = parser.parse_args()
    if given.one:
        print(
            json.dumps(
                measure(
                    given.one, AXES[given.one]["quick" if given.quick else "sizes"], given.repeats
                )
            )
        )
        return
    record = Record(
        "scaling",
        "Processor seconds of one training step as one size grows, one thread.",
        given.quick,
    )
    for axis in given.only:
        repeats = given.repeats * AXES[axis].get("more", 1)
        again = [
            sys.executable,
            __file__,
            "--one",
            axis,
            "--repeats",
            str(repeats),
            *["--quick"] * given.quick,
        ]
        done = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True)
        report(record, axis, json.loads(done.stdout.splitlines()[-1]))
    print(f"wrote {record.write(given.results)}")


def report(record: Record, axis: str, found: list[dict[str, Any]]) -> None:
    """The table of one axis, and its bar: the exponent over the top decade, repeat by repeat."""
    title = AXES[axis]["title"]
    print(
        f"\n{title}\n{'size':>10}{'seconds':>10}{'least':>10}{'most':>10}"
        f"{'exponent':>10}{'MB added':>10}"
    )
    last: dict[str, Any] | None = None
    for row in found:
        seconds = figure(row["seconds"], "s")
        slope = (
            exponent(
                [last["size"], row["size"]], [figure(last["seconds"])["median"], seconds["median"]]
            )
            if last
            else None
        )
        record.row(
            title,
            f"{row['size']:,}",
            seconds=seconds,
            **{"exponent from the row above": slope, "MB added": row["mb"]},
        )
        said = "" if slope is None else f"{slope:.3f}"
        print(
            f"{row['size']:>10,}{seconds['median']:>10.4f}{seconds['min']:>10.4f}{seconds['max']:>10.4f}{said:>10}{row['mb']:>10.1f}"
        )
        last = row
    top = [row for row in found if row["size"] * 10.01 >= found[-1]["size"]]
    sizes = [row["size"] for row in top]
    slopes = [
        exponent(sizes, costs) for costs in zip(*(row["seconds"] for row in top), strict=True)
    ]
    text = f"{title}: exponent of time from {sizes[0]:,} to {sizes[-1]:,}"
    if axis in PROMISED:
        record.bar(text, figure(slopes), most=MOST)
    else:
        record.row(
            title,
            f"{sizes[0]:,} to {sizes[-1]:,}",
            **{"exponent from the row above": figure(slopes)},
        )
        print(f"{text}: {figure(slopes)['median']:.3f}")


def measure(axis: str, sizes: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Processor seconds of a step at every size, in turn, and the megabytes that the peak had grown
    by after it first ran.
    """
    import resource
    import time

    sys.path.insert(0, str(ROOT / "src"))
    import torch

    from fourpoint.training.fitting import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()  # as `fit` does

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    case(axis, sizes[0])()  # what is set up once is not timed
    before = peak()
    found: list[dict[str, Any]] = [dict(size=size, seconds=[]) for size in sizes]
    for row in found:  # smallest first, so that a peak is that of its size
        case(axis, row["size"])()
        row["mb"] = round((peak() - before) / 1024, 1)
    for _ in range(repeats):
        for row in found:
            step = case(axis, row["size"])
            began = time.process_time()
            step()
            row["seconds"].append(time.process_time() - began)
    return found


def case(axis: str, size: int) -> Any:
    """A training step at that size, as a function of nothing."""
    import numpy as np
    import torch

    from fourpoint.events import Dataset, Sequence
    from fourpoint.inference.likelihood import sampled_log_likelihood
    from fourpoint.models import DAPP, DeepDAPP

    sequences, events = {"n": (1, size), "deep": (1, size), "batch": (size, EVENTS)}.get(
        axis, (SEQUENCES, EVENTS)
    )
    marks, features = size if axis == "marks" else 1, size if axis == "features" else 20
    rng = np.random.default_rng(0)
    drawn = [np.cumsum(rng.exponential(size=events)) for _ in range(sequences)]
    data = Dataset.from_sequences(
        [
            Sequence(
                t, rng.integers(marks, size=events), start=0.0, stop=float(t[-1]) + 1, space=marks
            )
            for t in drawn
        ]
    )
    plain: dict[str, Any] = dict(heads=2, features=features, base="constant", drift="none")
    model = DeepDAPP(marks) if axis == "deep" else DAPP(marks, **plain)
    model.initialise(data)
    model.train()
    random, batch = torch.Generator().manual_seed(0), data.batch()

    def step() -> None:
        model.redraw(random)
        by_loops = model.gradients(batch, NODES, random, "window", -1 / data.events)
        if by_loops is None:
            (-sampled_log_likelihood(model, batch, NODES, random).sum() / data.events).backward()

    return step


if __name__ == "__main__":
    main()
