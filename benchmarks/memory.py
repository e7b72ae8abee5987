"""What bounded memory costs: ODAPP beside DAPP and its exact stream, on the four processes with a known truth.

    python benchmarks/memory.py [--seconds 60] [--processes hawkes ...] [--json F]

DAPP is fitted for ``--seconds`` to 5,000 sequences. Then, for a memory of 10% to 100% of the longest sequence, two losses on 500
fresh sequences, in nats per event against that DAPP: the same weights with events forgotten (`model.keeping(eta)`), and an
ODAPP trained with its memory bounded, for the same time, where ``--train`` lists the share. The exact stream holds no
event at all, only the states of the modes, and its loss is that of rounding: it is scored event by event by `fp.Stream`.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

import fourpoint as fp
from fourpoint.data.synthetic import process
from fourpoint.events import Dataset
from fourpoint.likelihood import log_likelihood
from fourpoint.models import DAPP
from fourpoint.streaming.stream import Stream

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PROCESSES = ("hawkes", "self_correcting", "nonhomogeneous1", "nonhomogeneous2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="time to fit each model")
    parser.add_argument("--train", type=float, nargs="*", default=[0.5], help="shares for which an ODAPP is trained")
    parser.add_argument("--processes", nargs="+", default=PROCESSES)
    parser.add_argument("--sequences", type=int, default=500, help="test sequences")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'process':18}{'share':>6}{'eta':>5}{'loss, same weights':>20}{'loss, trained so':>18}   (nats per event against DAPP)")
    for name in options.processes:
        train, test = process(name).simulate(5000, seed=1), process(name).simulate(options.sequences, seed=99)
        model = DAPP()
        fp.fit(model, train, time_budget=options.seconds, progress=False)
        whole, longest = per_event(model, test), int(train.lengths.max())
        print(f"{name:18}{'exact stream':>11}{whole - streamed(model, test):>20.5f}")
        for share in SHARES:
            eta = max(1, math.ceil(share * longest))
            row = dict(process=name, share=share, eta=eta, loss=whole - per_event(model.keeping(eta).eval(), test))
            trained = ""
            if share in options.train:
                online = DAPP(keep=eta)
                fp.fit(online, train, time_budget=options.seconds, progress=False)
                row["loss_trained"] = whole - per_event(online, test)
                trained = f"{row['loss_trained']:.5f}"
            rows.append(row)
            print(f"{name:18}{share:>6.0%}{eta:>5}{row['loss']:>20.5f}{trained:>18}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def per_event(model: DAPP, data: Dataset) -> float:
    scores = [log_likelihood(model, data.batch(rows), tolerance=1e-4) for rows in data.batches(64)]
    return float(sum(s.value.sum() for s in scores)) / data.events


def streamed(model: DAPP, data: Dataset) -> float:
    total = 0.0
    for sequence in data:
        stream = Stream(model, start=sequence.start, alarms=None)
        for time, mark in zip(sequence.times.tolist(), sequence.marks.tolist(), strict=True):
            stream.observe(time, mark)
        stream.advance(sequence.stop)
        total += stream.log_likelihood
    return total / data.events


if __name__ == "__main__":
    main()
