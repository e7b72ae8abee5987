"""What bounded memory costs: ODAPP beside DAPP and its exact stream, on the four processes with a
known truth.

    python benchmarks/memory.py [--steps 1000] [--more 100] [--train .1 .3 .5] [--processes hawkes
    ...] [--sequences 500]

DAPP is fitted once to 5,000 sequences of each process, with ``--steps`` steps. Then, for a memory
of 10% to 100% of the longest sequence, two losses on 500 fresh sequences, in nats per event against
that DAPP's own likelihood by quadrature: with the same weights and events forgotten, and, for the
shares that ``--train`` lists, after ``--more`` steps of training that go on from those weights with
the memory bounded. All bounded models are scored as they are used, event by event, by `fp.Stream`;
that this is the likelihood of the batch is a law of the tests. So is the exact stream, which holds
no event at all, only the states of the modes: its loss is that of rounding. A quarter of an hour on
one core.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from records import Record, options

import fourpoint as fp
from fourpoint.data.synthetic import process
from fourpoint.events import Dataset
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models import DAPP
from fourpoint.streaming.stream import Stream

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PROCESSES = ("hawkes", "self_correcting", "nonhomogeneous1", "nonhomogeneous2")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="to fit each DAPP")
    parser.add_argument(
        "--more", type=int, default=100, help="steps with bounded memory that go on from there"
    )
    parser.add_argument(
        "--train",
        type=float,
        nargs="*",
        default=[0.1, 0.3, 0.5],
        help="shares for which they are taken",
    )
    parser.add_argument("--processes", nargs="+", choices=PROCESSES, default=PROCESSES)
    parser.add_argument("--sequences", type=int, default=500, help="test sequences")
    options(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    record, began = (
        Record("memory", "Nats per event lost by bounded memory.", given.quick),
        time.process_time(),
    )
    print(
        f"{'process':16}{'share':>8}{'eta':>5}{'loss, same weights':>20}{'loss, trained on':>18} "
        "  (nats per event against DAPP)"
    )
    for name in given.processes:
        train, test = (
            process(name).simulate(5000, seed=1),
            process(name).simulate(given.sequences, seed=99),
        )
        model = DAPP()
        fp.fit(model, train, steps=given.steps, baselines=False, progress=False)
        whole, longest = per_event(model, test), int(train.lengths.max())
        loss = whole - streamed(model, test)
        record.row(
            name, "exact stream", **{"DAPP, nats per event": whole, "loss, same weights": loss}
        )
        print(f"{name:16}{'exact':>8}{'':>5}{loss:>20.1e}{'':>18}   of {whole:.4f}", flush=True)
        for share in SHARES:
            eta = max(1, math.ceil(share * longest))
            loss = whole - streamed(model, test, eta)
            trained = (
                whole - streamed(trained_on(model, train, eta, given.more), test)
                if share in given.train
                else None
            )
            record.row(
                name,
                f"{share:.0%}",
                eta=eta,
                **{"loss, same weights": loss, "loss, trained on": trained},
            )
            said = "" if trained is None else f"{trained:.5f}"
            print(
                f"{name:16}{share:>8.0%}{eta:>5}{loss:>20.5f}{said:>18}".replace(
                    "-0.00000", " 0.00000"
                ),
                flush=True,
            )
    print(f"{time.process_time() - began:.0f} s of processor time")
    print(f"wrote {record.write(given.results)}")


def trained_on(model: DAPP, train: Dataset, eta: int, steps: int) -> DAPP:
    """The model trained further with ``eta`` events per head."""
    online = DAPP(**{**model.settings(), "keep": eta, "form": "auto"})
    online.initialise(train)
    online.load_state_dict(model.state_dict())
    online.initialise = lambda data: []  # fit would begin anew
    fp.fit(
        online,
        train,
        steps=steps,
        learning_rate=1e-3,
        validate_every=max(1, steps // 2),
        baselines=False,
        progress=False,
    )
    return online


def per_event(model: DAPP, data: Dataset) -> float:
    """The mean log-likelihood of an event, by quadrature."""
    scores = [log_likelihood(model, data.batch(rows), tolerance=1e-5) for rows in data.batches(64)]
    return float(sum(s.value.sum() for s in scores)) / data.events


def streamed(model: DAPP, data: Dataset, keep: int | None = None) -> float:
    """The same event by event, with nothing forgotten, or with ``keep`` events per head."""
    total, stream = 0.0, Stream(model, keep=keep, top=0, alarms=None)
    for sequence in data:
        stream.reset(sequence.start)
        for when, mark in zip(sequence.times.tolist(), sequence.marks.tolist(), strict=True):
            stream.observe(when, mark)
        stream.advance(sequence.stop)
        total += stream.log_likelihood
    return total / data.events


if __name__ == "__main__":
    main()
