"""Evaluation, start-up and memory: events per second of the honest log-likelihood, seconds until
the command answers, peaks of training.

    python benchmarks/costs.py [--only evaluation mixed start memory] [--repeats 5] [--device cuda]

**evaluation**: 500 sequences of a Hawkes process (about 30 events each) scored by
`fp.evaluation.score`, whose integrals are doubled until
they settle to 1e-4 nats per event (Hawkes has a closed form); processor time on one thread. The
models have learned for 100 steps.
**mixed**: Deep DAPP, fitted for 150 steps to 241 types in sequences of about 80 events whose times
are whole hours or whole minutes, scored on the device given; its rate has peaks at those times.
By the clock on all threads of torch (set OMP_NUM_THREADS), with the peak of memory.
**start**: `fourpoint --help` and `import fourpoint` in fresh processes, by the clock; the import
must not load torch.
**memory**: the peak that one epoch of training in batches of 64 adds to a process of its own that
has imported everything and built the
model (500 Hawkes sequences, defaults of each library, one thread). Loops that are compiled or
loaded on the way count.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from records import ROOT, Record, figure, options

PARTS = ("evaluation", "mixed", "start", "memory")
SCORED = ("dapp", "deep-dapp", "hawkes")
TRAINED = ("dapp", "deep-dapp", "rmtpp", "nhp", "sahp", "thp")
PEERS = ("RMTPP", "NHP", "SAHP", "THP", "S2P2", "AttNHP")
LONGEST_START = 0.5
STEPS = 100  # of training before a model is scored
# of the part mixed: sequences to train on and to score, steps of training, events per sequence
MIXED, MIXED_QUICK = (200, 50, 150, 80), (4, 2, 2, 8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="where the part mixed is scored")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options(parser)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(peak_of(given.one)))
        return
    if given.quick:
        given.repeats = 2
    record = Record(
        "costs", "Evaluation, start-up, and the memory that training takes.", given.quick
    )
    if "start" in given.only:
        start(record, given.repeats)
    if "memory" in given.only:
        memory(record, given.quick)
    if "evaluation" in given.only:
        evaluation(record, given.repeats, 100 if given.quick else 500)
    if "mixed" in given.only:
        mixed(record, given.device, *(MIXED_QUICK if given.quick else MIXED))
    print(f"wrote {record.write(given.results)}")


def mixed(record: Record, device: str, training: int, scored: int, steps: int, events: int) -> None:
    """Deep DAPP on many types and timestamps of mixed resolution: events per second, and memory."""
    import torch

    import fourpoint as fp
    from fourpoint.inference.evaluation import score

    train = mixed_resolution_data(training, 1, events=events)
    test = mixed_resolution_data(scored, 3, events=events)
    model = fp.DeepDAPP(train.marks)
    fp.fit(
        model,
        train,
        train[:20],
        steps=steps,
        epochs=0.0,
        validate_every=steps,
        baselines=False,
        progress=False,
    )
    model = model.to(device).eval()
    on_cuda = torch.device(device).type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    found = score(model, test)["window"]
    seconds = time.perf_counter() - began
    held = torch.cuda.max_memory_allocated(device) / 2**20 if on_cuda else peak()
    speed = test.events / seconds
    error = found.error / found.events
    record.row(
        "mixed",
        f"Fourpoint deep-dapp on {device}",
        **{"events/s": round(speed, 1), "peak MB": round(held, 1), "error per event": error},
    )
    print(
        f"mixed, {test.events:,} events of {test.marks.count} types on {device}: {speed:,.0f} "
        f"events/s, {16_000 / speed:,.0f} s per 16,000 events, {held:,.0f} MB at most, "
        f"integral error {error:.1e} nats per event, narrow peaks: {bool(model.narrow)}",
        flush=True,
    )


def evaluation(record: Record, repeats: int, sequences: int) -> None:
    """The honest log-likelihood, events per second."""
    import torch

    import fourpoint as fp
    from fourpoint.inference.evaluation import score
    from fourpoint.models import MODELS

    torch.set_num_threads(1)
    train, test = hawkes_data(500, 1), hawkes_data(sequences, 3)
    for name in SCORED:
        model = MODELS[name](train.marks)
        fp.fit(
            model,
            train,
            train[:50],
            steps=STEPS,
            epochs=0.0,
            validate_every=STEPS,
            baselines=False,
            progress=False,
        )
        score(model, test[:50])
        found = []
        for _ in range(repeats):
            began = time.process_time()
            score(model, test)
            found.append(test.events / (time.process_time() - began))
        speed = figure(found, "events/s")
        record.row("evaluation", f"Fourpoint {name}", **{"events/s": speed})
        print(
            (
                f"evaluation, {name:12}{speed['median']:12,.0f} events/s ({speed['min']:,.0f} to "
                f"{speed['max']:,.0f})"
            ),
            flush=True,
        )


def start(record: Record, repeats: int) -> None:
    """Seconds by the clock until a fresh process has answered."""
    calls = {
        "fourpoint --help": [sys.executable, "-m", "fourpoint.cli.main", "--help"],
        "import fourpoint": [
            sys.executable,
            "-c",
            "import fourpoint, sys; print('torch' in sys.modules)",
        ],
        "python, nothing imported": [sys.executable, "-c", "print()"],
    }
    for name, words in calls.items():
        found = []
        for repeat in range(repeats + 1):
            began = time.perf_counter()
            done = subprocess.run(
                words, check=True, capture_output=True, text=True, cwd=ROOT / "src"
            )
            if repeat:  # the first one may have to compile bytecode
                found.append(time.perf_counter() - began)
        seconds = figure(found, "s")
        torch_too = done.stdout.strip() if name == "import fourpoint" else None
        record.row(
            "start-up",
            name,
            seconds=seconds,
            **{"torch imported": {"True": "yes", "False": "no"}.get(torch_too or "")},
        )
        print(
            f"{name:26}{seconds['median']:7.3f} s ({seconds['min']:.3f} to {seconds['max']:.3f})",
            flush=True,
        )
        if name == "fourpoint --help":
            record.bar(
                "fourpoint --help answers within so many seconds", seconds, most=LONGEST_START
            )
        if torch_too:
            record.bar(
                "import fourpoint loads torch (1) or not (0)", float(torch_too == "True"), most=0
            )


def memory(record: Record, quick: bool) -> None:
    """The peak of one epoch of training, each model in a process of its own."""
    ours, theirs = (TRAINED[:1], PEERS[3:4]) if quick else (TRAINED, PEERS)
    for name in [*(f"Fourpoint {n}" for n in ours), *(f"EasyTPP {n}" for n in theirs)]:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        if "missing" in found:
            record.missing("memory", name, found["missing"])
            continue
        record.row(
            "memory",
            name,
            **{"MB added by training": found["added"], "MB of the whole process": found["peak"]},
        )
        print(
            f"memory, {name:22}{found['added']:9.1f} MB added, {found['peak']:9.1f} MB in all",
            flush=True,
        )


def peak_of(name: str) -> dict[str, Any]:
    """Megabytes that one epoch of training adds to the peak of this process, and that peak."""
    import torch

    torch.set_num_threads(1)
    library, model = name.split()
    try:
        epoch = (fourpoint_epoch if library == "Fourpoint" else easytpp_epoch)(
            model, hawkes_data(500, 1)
        )
    except ImportError as error:
        return dict(missing=str(error))
    before = peak()
    epoch()
    return dict(added=round(peak() - before, 1), peak=round(peak(), 1))


def fourpoint_epoch(name: str, data: Any) -> Callable[[], object]:
    import fourpoint as fp
    from fourpoint.models import MODELS

    fit, model, steps = fp.fit, MODELS[name](data.marks), len(data.batches(64))
    terms = dict(
        steps=steps,
        epochs=0.0,
        batch_size=64,
        validate_every=steps,
        baselines=False,
        progress=False,
    )
    return lambda: fit(model, data, data[:8], **terms)


def easytpp_epoch(name: str, data: Any) -> Callable[[], object]:
    from easytpp_training import Trainer

    return Trainer(name, data).epoch


def hawkes_data(sequences: int, seed: int) -> Any:
    import fourpoint as fp
    from fourpoint.models import Hawkes

    return fp.sample(
        Hawkes(baseline=0.5, branching=0.5, decay=1.0), 0.0, 30.0, sequences, seed=seed
    )


def mixed_resolution_data(sequences: int, seed: int, types: int = 241, events: int = 80) -> Any:
    """Sequences of about 80 events of 241 types with bursts, in hours. Every other type is recorded
    by the whole hour and the others by the minute, as in records that several systems keep.
    """
    import numpy as np

    import fourpoint as fp

    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, types + 1)
    popularity /= popularity.sum()
    marks_of = fp.MarkSpace.of(types)
    found = []
    for _ in range(sequences):
        count = max(2, int(rng.poisson(events)))
        within_burst = rng.random(count) < 0.5
        gaps = np.where(within_burst, rng.exponential(0.1, count), rng.exponential(3.0, count))
        times = np.cumsum(gaps)
        marks = rng.choice(types, count, p=popularity)
        steps_per_hour = np.where(marks % 2 == 0, 1, 60)
        times = np.floor(times * steps_per_hour) / steps_per_hour
        order = np.argsort(times, kind="stable")
        stop = float(times.max()) + 1.0
        found.append(fp.Sequence(times[order], marks[order], start=0.0, stop=stop, space=marks_of))
    return fp.Dataset.from_sequences(found)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
