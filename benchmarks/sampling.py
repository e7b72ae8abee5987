"""How fast paths are sampled: DAPP beside EasyTPP's multi-step prediction, Hawkes beside tick, all in this one run.

    python benchmarks/sampling.py [--paths 1000] [--seconds 20]

DAPP (two heads) is fitted for ``--seconds`` to the paper's Hawkes process on a window that holds about 100 events, and
then draws ``--paths`` paths. EasyTPP's models are asked for 100 events per sequence with their own defaults (500 candidates
for each event), untrained, since their cost does not depend on the weights. What is not installed is shown as missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from fourpoint.data.synthetic import process
from fourpoint.models import DAPP, Hawkes
from fourpoint.sampling import sample_paths
from fourpoint.training import fit

STOP = 3.58  # the paper's Hawkes process has 100 events on [0, 3.58) on average
STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="time to fit DAPP")
    parser.add_argument("--theirs", type=int, default=64, help="sequences in EasyTPP's batch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"one thread, torch {torch.__version__}")
    model = DAPP(heads=2)
    fit(model, process("hawkes").simulate(300, stop=STOP), time_budget=options.seconds, progress=False)
    ours = dapp(model, options.paths)
    for name in ("NHP", "THP", "SAHP"):
        theirs = attempt(f"EasyTPP {name}", easy_tpp, name, options.theirs)
        if theirs:
            print(f"{'':28}DAPP is {ours / theirs:,.0f} times faster")
    hawkes(options.paths)
    attempt("tick SimuHawkesExpKernels", tick)


def dapp(model: DAPP, paths: int) -> float:
    sample_paths(model, 0.0, STOP / 20, paths)
    began = time.perf_counter()
    drawn = sample_paths(model, 0.0, STOP, paths, seed=1)
    speed = report("Fourpoint DAPP", drawn.data.events, time.perf_counter() - began)
    heads, modes = model.spectrum().weight.shape
    print(f"{'':28}K = {heads}, D = {modes}; {drawn.acceptance:.0%} of candidates accepted")
    return speed


def hawkes(paths: int) -> None:
    model = Hawkes(baseline=10.0, branching=1.0, decay=1.0)
    for repeats in (1, 20):
        began = time.perf_counter()
        drawn = sample_paths(model, 0.0, STOP, paths * repeats, seed=1)
        report(f"Fourpoint Hawkes x {paths * repeats:,}", drawn.data.events, time.perf_counter() - began)
    print(f"{'':28}{drawn.acceptance:.0%} of candidates accepted")


def tick() -> float:
    import numpy as np
    from tick.hawkes import SimuHawkesExpKernels

    began, events = time.perf_counter(), 0
    for seed in range(1000):
        options = dict(end_time=STOP, verbose=False, seed=seed, force_simulation=True)
        one = SimuHawkesExpKernels(np.array([[1.0]]), np.array([[1.0]]), np.array([10.0]), **options)
        one.simulate()
        events += one.n_total_jumps
    return report("tick x 1,000", events, time.perf_counter() - began)


def easy_tpp(name: str, sequences: int) -> float:
    from easy_tpp.config_factory import ModelConfig
    from easy_tpp.model.basemodel import BaseModel

    settings = dict(model_id=name, num_event_types=1, num_event_types_pad=2, event_pad_index=1, hidden_size=32, num_layers=2, num_heads=2)
    config = ModelConfig(**settings, thinning=dict(num_sample=1, num_exp=500, num_step_gen=STEPS))
    model = BaseModel.generate_model_from_config(config).eval()
    gaps = torch.rand(sequences, STEPS + 2) * 0.06
    gaps[:, 0] = 0
    marks, valid = torch.zeros(sequences, STEPS + 2, dtype=torch.long), torch.ones(sequences, STEPS + 2, dtype=torch.bool)
    inputs = dict(time_seqs=gaps.cumsum(1), time_delta_seqs=gaps, type_seqs=marks, seq_non_pad_mask=valid)
    with torch.no_grad():
        began = time.perf_counter()
        model.predict_multi_step_since_last_event(**inputs)
    return report(f"EasyTPP {name} x {sequences}", sequences * STEPS, time.perf_counter() - began)


def attempt(name: str, measure: Callable[..., float], *arguments: Any) -> float | None:
    try:
        return measure(*arguments)
    except ImportError as error:
        print(f"{name:28}missing ({error})")
        return None


def report(name: str, events: int, seconds: float) -> float:
    print(f"{name:28}{events:>10,} events in {seconds:7.2f} s: {events / seconds:>12,.0f} events per second")
    return events / seconds


if __name__ == "__main__":
    main()
