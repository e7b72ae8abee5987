"""Live streams: is memory and time per event flat, how fast is one stream and a bank of 10,000, and what are the alarms worth?

    python benchmarks/streaming.py [--events 100000] [--keep 64] [--keep-events 20000] [--seconds 10] [--only flat observe bank alarms]

**flat**: one stream of DAPP, with nothing forgotten and with ``keep``; at event 10^3, 10^4, ... the bytes of its state, the resident
memory of the process, and the median time of the last 1,000 events. **observe**: the median of one stream at the features that DAPP
settles on, and at 1,024. **bank**: events per second of 10,000 entities (2 heads, 64 features) on two cores. **alarms**: how many of
1,000 streams from the true model raise a false alarm within 1,000 events, and how soon a doubled rate is seen.
DAPP is fitted for ``--seconds`` to the paper's Hawkes process. Set OMP_NUM_THREADS=1: a stream needs one thread.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

from fourpoint.data.synthetic import process, simulate
from fourpoint.events import Dataset
from fourpoint.models import DAPP, Hawkes
from fourpoint.sampling import sample
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.monitoring import Alarm
from fourpoint.streaming.stream import Stream
from fourpoint.training import fit

LAST = 1000  # events whose median time is taken
PARTS = ("flat", "observe", "bank", "alarms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="events of the exact stream")
    parser.add_argument("--keep", type=int, default=64, help="events that each head of the bounded stream remembers")
    parser.add_argument("--keep-events", type=int, default=20_000, help="events of the bounded stream")
    parser.add_argument("--seconds", type=float, default=10.0, help="time to fit DAPP")
    parser.add_argument("--entities", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1000, help="streams from the true model")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = DAPP()
    if {"flat", "observe"} & set(options.only):
        fit(model, process("hawkes").simulate(300, stop=3.58), time_budget=options.seconds, progress=False)
        print(f"DAPP of {model.spectrum(fixed=True).weight.shape[0]} heads, {model.settings()['eval_features']} features, fitted to hawkes")
    if "flat" in options.only:
        flat("the exact stream", Stream(model), options.events, float(model.time_scale))
        flat(f"keep={options.keep}", Stream(model, keep=options.keep), options.keep_events, float(model.time_scale))
    if "observe" in options.only:
        observe(model)
    if "bank" in options.only:
        bank(options.entities)
    if "alarms" in options.only:
        alarms(options.streams)


def flat(name: str, stream: Stream, events: int, scale: float) -> None:
    """State, memory and time at every power of ten."""
    print(f"\n{name}\n{'event':>10} {'state, bytes':>13} {'resident, MB':>13} {'median, us':>11} {'nine in ten below':>18}")
    random, seconds, rows = np.random.default_rng(0), deque[float](maxlen=LAST), []
    now, began = 0.0, time.perf_counter()
    for i in range(1, events + 1):
        now += random.exponential() * scale
        start = time.perf_counter()
        stream.observe(now)
        seconds.append(time.perf_counter() - start)
        if i >= 1000 and (math.log10(i).is_integer() or i == events):
            last = 1e6 * np.array(seconds)
            rows.append((len(stream.state()), resident(), float(np.median(last))))
            print(f"{i:>10,} {rows[-1][0]:>13,} {rows[-1][1]:>13.1f} {rows[-1][2]:>11.0f} {np.quantile(last, 0.9):>18.0f}", flush=True)
    for label, column in (("state", 0), ("resident memory", 1), ("median time", 2)):
        values = [row[column] for row in rows]
        print(f"{label}: from {min(values):,.5g} to {max(values):,.5g}, {max(values) / min(values) - 1:.1%} apart")
    print(f"{events / (time.perf_counter() - began):,.0f} events per second in all")


def resident() -> float:
    """Resident memory of this process, in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def observe(model: DAPP) -> None:
    """The median time of one stream."""
    print()
    for features in (int(model.settings()["eval_features"]), 1024):
        model.settle(features)
        stream, random, now, seconds = Stream(model), np.random.default_rng(1), 0.0, []
        for _ in range(3000):
            now += random.exponential() * float(model.time_scale)
            start = time.perf_counter()
            stream.observe(now)
            seconds.append(time.perf_counter() - start)
        found = 1e6 * np.array(seconds[500:])
        spread = f"from {np.quantile(found, 0.1):.0f} to {np.quantile(found, 0.9):.0f} for eight in ten"
        print(f"observe at {features} features per head: median {np.median(found):.0f} us, {spread}")


def bank(entities: int) -> None:
    """Events per second of many entities, each with log-density, rescaled gap and rate."""
    print()
    random, names = np.random.default_rng(2), [f"entity {i}" for i in range(entities)]
    for label, settings in (("splines", {}), ("constant base, no drift", {"base": "constant", "drift": "none"})):
        model = DAPP(heads=2, eval_features=64, **settings)
        model.initialise(simulate("hawkes", 200))
        for threads in (1, 2):
            many, now, seconds = StreamBank(model.eval(), threads=threads), np.zeros(entities), []
            for _ in range(15):
                now += random.exponential(size=entities) * float(model.time_scale)
                order = random.permutation(entities)
                call, times = [names[i] for i in order], now[order]
                start = time.perf_counter()
                many.observe(call, times)
                seconds.append(time.perf_counter() - start)
            speed = entities / float(np.median(seconds[3:]))
            print(f"bank of {entities:,}, {label}, {threads} thread{'s' * (threads > 1)}: {speed:>10,.0f} events per second")


def alarms(streams: int) -> None:
    """False alarms of the true model, and the delay at a doubled rate, at three promised rates."""
    true, doubled = Hawkes(baseline=1.0, branching=0.4, decay=2.0), Hawkes(baseline=2.0, branching=0.8, decay=2.0)
    drawn = sample(true, 0.0, 800.0, streams, seed=1)
    before = sample(true, 0.0, 150.0, min(streams, 200), seed=2)
    after = sample(doubled, 150.0, 220.0, len(before), seed=3, history=before)  # given any past, twice the true model's rate
    print(f"\n{streams:,} streams from the true model, {int(drawn.lengths.min()):,} events or more, of which the first 1,000 count")
    for promised in (1e-3, 1e-2, 1e-1):
        false = {row for row, _ in watch(true, promised, drawn, most=1000)}
        seen: dict[int, int] = {}
        for row, alarm in watch(true, promised, joined(before, after), most=10**9):
            if alarm.kind == "burst" and alarm.time >= 150.0:
                seen.setdefault(row, int(np.searchsorted(after[row].times, alarm.time)) + 1)
        delay = f"after a median of {np.median(list(seen.values())):.0f} events ({len(seen)} of {len(before)} within the window)"
        print(
            f"promised at most {promised:g}: {len(false) / streams:.4f} of streams raised one; a doubled rate is seen {delay}", flush=True
        )


def watch(model: Hawkes, promised: float, data: Dataset, most: int) -> Iterator[tuple[int, Alarm]]:
    """The alarms of the first ``most`` events of every sequence, with the sequence's number."""
    many = StreamBank(model, alarms=promised)
    for i in range(min(most, int(data.lengths.max()))):
        rows = np.flatnonzero(data.lengths > i)
        found = many.observe([str(r) for r in rows], data.times[data.offsets[rows] + i])
        for row, raised in zip(rows.tolist(), found.alarms, strict=True):
            yield from ((row, alarm) for alarm in raised)


def joined(first: Dataset, second: Dataset) -> Dataset:
    """Sequences that go on from each other."""
    times = [np.concatenate([first[i].times, second[i].times]) for i in range(len(first))]
    offsets = np.concatenate([[0], np.cumsum([len(t) for t in times])]).astype(np.int64)
    flat_times = np.concatenate(times)
    return Dataset(flat_times, np.zeros(len(flat_times), dtype=np.int64), offsets, first.starts.copy(), second.stops.copy(), first.marks)


if __name__ == "__main__":
    main()
