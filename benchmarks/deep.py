"""Deep DAPP beside EasyTPP's S2P2 at an equal number of parameters: events per second of training
on public data, on one thread.

    python benchmarks/deep.py --data DIR [--sets taxi stackoverflow_easytpp] [--rounds 3] [--batch
    256]

DIR holds NAME.parquet with a split `train`. Deep DAPP has its default size (about 115,000
parameters); S2P2 has width 64, 64 modes and 4 layers (about 127,000; complex numbers count twice).
A step of either is the same: the sampled log-likelihood of 256 sequences of mixed lengths (8 random
nodes per gap, the `gaps` convention), its gradient and AdamW; EasyTPP's model runs in EasyTPP's own
code (`easytpp_models.py`). Both take the same batches in turn, one untimed first. Seconds are of
the processor, on one thread.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import easytpp_models
import numpy as np
import torch
from records import Record, figure, options, ratios

import fourpoint as fp
from fourpoint.events import Dataset
from fourpoint.inference.likelihood import sampled_log_likelihood
from fourpoint.models import MODELS

SETS = ("taxi", "stackoverflow_easytpp")
NODES = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of Parquet files")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    options(parser)
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.batch = 2, 32
    torch.set_num_threads(1)
    record = Record(
        "deep",
        "Deep DAPP and EasyTPP's S2P2 of equal size in training, one thread, processor time.",
        given.quick,
    )
    for name in given.sets:
        file = given.data / f"{name}.parquet" if given.data else None
        if file is None or not file.is_file():
            reason = "no data given" if file is None else f"no {file.name} in the folder"
            print(f"{name}: {reason}")
            for model in ("Fourpoint deep-dapp", "EasyTPP S2P2"):
                record.missing(name, model, reason)
            record.bar(bar(name), None, least=5, reason=reason)
            continue
        compare(record, name, fp.read(file).part("train"), given)
    print(f"wrote {record.write(given.results)}")


def bar(name: str) -> str:
    return f"Deep DAPP trains so many times the events per second of EasyTPP's S2P2 (CPU, {name})"


def compare(record: Record, name: str, data: Dataset, given: argparse.Namespace) -> None:
    """Both models on the same batches in turn."""
    deep = MODELS["deep-dapp"](data.marks)
    deep.initialise(data)
    models: dict[str, Any] = {"Fourpoint deep-dapp": deep}
    try:
        models["EasyTPP S2P2"] = easytpp_models.build("easytpp-s2p2", data, 0)[0]
    except ImportError as error:
        record.missing(name, "EasyTPP S2P2", error)
        record.bar(bar(name), None, least=5, reason=str(error))
    steppers = {model: Stepper(part) for model, part in models.items()}
    batches = data.batches(given.batch, seed=0, mixed=True)
    found: dict[str, list[float]] = {model: [] for model in models}
    for round_ in range(given.rounds + 1):
        rows = batches[round_ % len(batches)]
        for model, stepper in steppers.items():
            speed = stepper.step(data, rows, round_)
            if round_:
                found[model].append(speed)
    speeds = {model: figure(values, "events/s") for model, values in found.items()}
    for model, speed in speeds.items():
        size = parameters(models[model])
        beside = ratios(speeds["Fourpoint deep-dapp"], speed)
        record.row(
            name,
            model,
            **{"events/s": speed, "parameters": size, "deep-dapp is N times faster": beside},
        )
        print(
            f"{name:24}{model:22}{size:>9,} parameters{speed['median']:>10,.0f} events/s "
            f"({speed['min']:,.0f} to {speed['max']:,.0f})"
        )
    if len(speeds) > 1:
        record.bar(
            bar(name), ratios(speeds["Fourpoint deep-dapp"], speeds["EasyTPP S2P2"]), least=5
        )


class Stepper:
    """A model with its optimiser."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.optimiser = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=1e-4
        )

    def step(self, data: Dataset, rows: np.ndarray, seed: int) -> float:
        """One step; events per second of processor time."""
        self.model.train()
        events, random = int(data.lengths[rows].sum()), torch.Generator().manual_seed(seed)
        began = time.process_time()
        self.model.redraw(random)
        loss = (
            -sampled_log_likelihood(
                self.model, data.batch(rows), NODES, random, convention="gaps"
            ).sum()
            / events
        )
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return events / (time.process_time() - began)


def parameters(model: Any) -> int:
    """Real numbers that are learned."""
    return sum(
        p.numel() * (2 if p.is_complex() else 1) for p in model.parameters() if p.requires_grad
    )


if __name__ == "__main__":
    main()
