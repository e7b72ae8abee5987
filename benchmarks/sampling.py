"""How fast paths are sampled: DAPP beside EasyTPP's multi-step prediction, Hawkes beside tick, all
in this one run.

    python benchmarks/sampling.py [--paths 1000] [--seconds 20] [--repeats 3]

DAPP (two heads) is fitted for ``--seconds`` to the paper's Hawkes process on a window that holds
about 100 events, and then draws ``--paths`` paths. EasyTPP's models are asked for 100 events per
sequence with their own defaults (500 candidates for each event), untrained, since their cost does
not depend on the weights. What is not installed is shown as missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from records import Figure, Record, figure, options, ratios

from fourpoint.data.synthetic import process
from fourpoint.inference.sampling import sample_paths
from fourpoint.models import DAPP, Hawkes
from fourpoint.training.fitting import fit

STOP = 3.58  # the paper's Hawkes process has 100 events on [0, 3.58) on average
STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paths", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="time to fit DAPP")
    parser.add_argument("--theirs", type=int, default=64, help="sequences in EasyTPP's batch")
    parser.add_argument("--repeats", type=int, default=3)
    options(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"one thread, torch {torch.__version__}")
    record = Record(
        "sampling", "Events per second of sampled paths, one thread, by the clock.", given.quick
    )
    model = DAPP(heads=2)
    fit(
        model, process("hawkes").simulate(300, stop=STOP), time_budget=given.seconds, progress=False
    )
    sample_paths(model, 0.0, STOP / 20, given.paths)
    heads, modes = model.spectrum().weight.shape
    exact = Hawkes(baseline=10.0, branching=1.0, decay=1.0)
    contests: dict[str, dict[str, Callable[[], tuple[int, float]]]] = {
        "neural models": {
            f"Fourpoint DAPP, K = {heads}, D = {modes}": lambda: ours(model, given.paths)
        }
        | {
            f"EasyTPP {name}": lambda name=name: easy_tpp(name, given.theirs)
            for name in ("NHP", "THP", "SAHP")
        },
        "Hawkes": {
            "Fourpoint Hawkes": lambda: ours(exact, 20 * given.paths),
            "tick SimuHawkesExpKernels": tick,
        },
    }
    for part, measures in contests.items():
        compare(record, part, measures, given.repeats)
    print(f"wrote {record.write(given.results)}")


def compare(
    record: Record, part: str, measures: dict[str, Callable[[], tuple[int, float]]], repeats: int
) -> None:
    """Rounds in which everything is measured in turn; the first of ``measures`` is ours."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name in list(found):
            try:
                events, seconds = measures[name]()
            except ImportError as error:
                print(f"{name:32}missing ({error})")
                record.missing(part, name, error)
                del found[name]
                continue
            found[name].append(events / seconds)
    speeds: dict[str, Figure] = {name: figure(values, "events/s") for name, values in found.items()}
    first = next(iter(speeds.values()))
    for name, speed in speeds.items():
        beside = ratios(first, speed)
        record.row(part, name, **{"events/s": speed, "Fourpoint is N times faster": beside})
        print(
            (
                f"{name:32}{speed['median']:>12,.0f} events per second; ours "
                f"{beside['median']:,.1f} times as fast"
            ),
            flush=True,
        )


def ours(model: DAPP | Hawkes, paths: int) -> tuple[int, float]:
    """Events drawn, and seconds."""
    began = time.perf_counter()
    drawn = sample_paths(model, 0.0, STOP, paths, seed=1)
    return drawn.data.events, time.perf_counter() - began


def tick() -> tuple[int, float]:
    import numpy as np
    from tick.hawkes import SimuHawkesExpKernels

    began, events = time.perf_counter(), 0
    for seed in range(1000):
        options = dict(end_time=STOP, verbose=False, seed=seed, force_simulation=True)
        one = SimuHawkesExpKernels(
            np.array([[1.0]]), np.array([[1.0]]), np.array([10.0]), **options
        )
        one.simulate()
        events += one.n_total_jumps
    return events, time.perf_counter() - began


def easy_tpp(name: str, sequences: int) -> tuple[int, float]:
    from easy_tpp.config_factory import ModelConfig
    from easy_tpp.model.basemodel import BaseModel

    settings = dict(
        model_id=name,
        num_event_types=1,
        num_event_types_pad=2,
        event_pad_index=1,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
    )
    config = ModelConfig(**settings, thinning=dict(num_sample=1, num_exp=500, num_step_gen=STEPS))
    model = BaseModel.generate_model_from_config(config).eval()
    gaps = torch.rand(sequences, STEPS + 2) * 0.06
    gaps[:, 0] = 0
    marks, valid = (
        torch.zeros(sequences, STEPS + 2, dtype=torch.long),
        torch.ones(sequences, STEPS + 2, dtype=torch.bool),
    )
    inputs = dict(
        time_seqs=gaps.cumsum(1), time_delta_seqs=gaps, type_seqs=marks, seq_non_pad_mask=valid
    )
    with torch.no_grad():
        began = time.perf_counter()
        model.predict_multi_step_since_last_event(**inputs)
    return sequences * STEPS, time.perf_counter() - began


if __name__ == "__main__":
    main()
