"""The neural baselines beside EasyTPP's, in one run: likelihood by one honest integral, and training speed.

    python benchmarks/peers.py [--models rmtpp nhp sahp thp] [--epochs 20] [--repeats 1] [--json F]

500 sequences of a Hawkes process (mu = .5, alpha = .5, beta = 1 on [0, 30]) train every model for ``--epochs`` epochs in batches of 64
with 32 hidden units; 500 others score it. Each library trains in its own way: EasyTPP with its own loader, its own loop
(`ModelWrapper.run_batch`, Adam at 1e-3, a grid of 20 points in each gap); Fourpoint with `fp.fit` and the model's own recipe. Both
maximise the likelihood of events 2..N on [t_1, t_N], the `gaps` convention, and are scored on it by one rule: Gauss-Legendre in every
gap with twice the nodes until the sum settles to 1e-4 nats per event. Speed is training events (all of them) per second of
processor time on one thread, which other jobs on the machine disturb least; Fourpoint's includes its one validation, on 100
sequences. SAHP and THP train by compiled loops where numba is installed (the extra ``fast``); compiling, like everything that is set up
once, is not timed. The oracle is the process itself.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import fourpoint as fp
from fourpoint.events import Batch, Dataset
from fourpoint.likelihood import log_likelihood
from fourpoint.maths.quadrature import gauss_legendre
from fourpoint.models import MODELS, Hawkes

BATCH, HIDDEN = 64, 32
SMALL: dict[str, dict[str, Any]] = {
    "rmtpp": dict(hidden=HIDDEN),
    "nhp": dict(hidden=HIDDEN, dropout=0.0),  # EasyTPP's has none
    "sahp": dict(hidden=HIDDEN, layers=2, heads=2),
    "thp": dict(hidden=HIDDEN, layers=2, heads=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SMALL), choices=list(SMALL))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, with seeds 0, 1, ...; medians are printed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    truth = Hawkes(baseline=0.5, branching=0.5, decay=1.0)
    train, dev, test = (fp.sample(truth, 0.0, 30.0, n, seed=seed) for n, seed in ((500, 1), (100, 2), (500, 3)))
    print(f"one thread, torch {torch.__version__}; {train.events:,} training events; oracle {score(truth, test):.4f} nats per event")
    print(f"{'model':8}{'':12}{'nats per event':>15}{'own loss says':>15}{'events per second':>19}")
    rows = []
    for name in options.models:
        train_ours(name, train, dev, dev, 1, 0)  # what is set up once is not timed, here or there
        ours, theirs = [], []
        for seed in range(options.repeats):  # in turn, since a machine is not equally fast all the time
            ours.append(train_ours(name, train, dev, test, options.epochs, seed))
            try:
                theirs.append(train_theirs(name.upper(), train, test, options.epochs, seed))
            except ImportError as error:
                missing = str(error)
        rows.append(report(name, "Fourpoint", ours))
        if not theirs:
            print(f"{name:8}{'EasyTPP':12}missing ({missing})")
            continue
        rows.append(report(name, "EasyTPP", theirs))
        ours_now, theirs_now = rows[-2:]
        verdict = "ahead" if ours_now["score"] >= theirs_now["score"] else "BEHIND"
        print(f"{'':20}{verdict}, {ours_now['speed'] / theirs_now['speed']:.1f} times as fast")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def report(name: str, library: str, runs: list[tuple[float, float, float]]) -> dict[str, Any]:
    score, own, speed = (float(torch.tensor(column).median()) for column in zip(*runs, strict=True))
    print(f"{name:8}{library:12}{score:15.4f}{own:15.4f}{speed:19,.0f}", flush=True)
    return dict(model=name, library=library, score=score, own=own, speed=speed)


def train_ours(name: str, train: Dataset, dev: Dataset, test: Dataset, epochs: int, seed: int) -> tuple[float, float, float]:
    model = MODELS[name](train.marks, seed=seed, **SMALL[name])
    steps = epochs * len(train.batches(BATCH))
    began = time.process_time()
    fp.fit(model, train, dev, steps=steps, batch_size=BATCH, validate_every=steps, convention="gaps", seed=seed, progress=False)
    speed = epochs * train.events / (time.process_time() - began)
    found = score(model, test)
    return found, found, speed


def score(model: Any, data: Dataset) -> float:
    parts = [log_likelihood(model, data.batch(rows), convention="gaps") for rows in data.batches(128)]
    return float(sum(p.value.sum() for p in parts) / sum(p.events.sum() for p in parts))


# ---------------------------------------------------------------------- EasyTPP


def train_theirs(name: str, train: Dataset, test: Dataset, epochs: int, seed: int) -> tuple[float, float, float]:
    from easy_tpp.config_factory.model_config import TrainerConfig
    from easy_tpp.model_wrapper import ModelWrapper
    from easy_tpp.utils import RunnerPhase

    torch.manual_seed(seed)
    model, config = easy_tpp(name, train.marks.count)
    wrapper = ModelWrapper(model, SimpleNamespace(model_id=name, specs={}), config, TrainerConfig(learning_rate=1e-3))
    loader = easy_loader(train)
    began = time.process_time()
    for _ in range(epochs):
        for batch in loader:
            wrapper.run_batch(batch, RunnerPhase.TRAIN)
    speed = epochs * train.events / (time.process_time() - began)
    return honest(model.eval(), test), own_score(model, test), speed


def easy_tpp(name: str, marks: int) -> tuple[Any, Any]:
    from easy_tpp.config_factory import ModelConfig
    from easy_tpp.model.basemodel import BaseModel

    sizes = dict(hidden_size=HIDDEN, num_layers=2, num_heads=2, time_emb_size=16, loss_integral_num_sample_per_step=20, training=True)
    config = ModelConfig(model_id=name, num_event_types=marks, num_event_types_pad=marks + 1, event_pad_index=marks, **sizes)
    return BaseModel.generate_model_from_config(config), config


def easy_loader(data: Dataset) -> Any:
    """EasyTPP's own loader: shuffled batches of 64, padded to their longest sequence."""
    from easy_tpp.config_factory.data_config import DataSpecConfig
    from easy_tpp.preprocess.dataset import TPPDataset, get_data_loader
    from easy_tpp.preprocess.event_tokenizer import EventTokenizer

    M = data.marks.count
    spec = DataSpecConfig(num_event_types=M, pad_token_id=M, padding_side="right", truncation_side="right")
    kept = [s for s in data if len(s) > 1]
    columns = dict(
        time_seqs=[s.times.tolist() for s in kept],
        type_seqs=[s.marks.tolist() for s in kept],
        time_delta_seqs=[[0.0, *(s.times[1:] - s.times[:-1]).tolist()] for s in kept],
    )
    return get_data_loader(TPPDataset(columns), "torch", EventTokenizer(spec), batch_size=BATCH, shuffle=True)


def easy_inputs(batch: Batch, marks: int) -> dict[str, Tensor]:
    """A batch as EasyTPP wants it: gaps beside times, padded marks out of range, and a causal mask (True is hidden)."""
    times = batch.times.float()
    gaps = torch.where(batch.valid, torch.cat([torch.zeros_like(times[:, :1]), times.diff(dim=1)], 1), 0.0)
    kinds = torch.where(batch.valid, batch.marks, marks)
    n = times.shape[1]
    hidden = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)[None] | ~batch.valid[:, None]
    return dict(time_seqs=times, time_delta_seqs=gaps, type_seqs=kinds, seq_non_pad_mask=batch.valid, attention_mask=hidden)


@torch.no_grad()
def own_score(model: Any, data: Dataset) -> float:
    """What the library itself would report: its own grid."""
    parts = [model.loglike_loss(**easy_inputs(data.batch(rows), data.marks.count)) for rows in data.batches(128)]
    return -sum(float(loss) for loss, _ in parts) / int((data.lengths - 1).clip(min=0).sum())


@torch.no_grad()
def honest(model: Any, data: Dataset, tolerance: float = 1e-4) -> float:
    """EasyTPP's model under Gauss-Legendre rules, doubled until the score settles: its samples and sums are replaced, its rates are not."""
    found, nodes = float("nan"), 8
    while nodes <= 128:
        last, found = found, _with_rule(model, data, nodes)
        if abs(found - last) < tolerance:
            return found
        nodes *= 2
    raise ArithmeticError(
        f"expected an integral that settles to {tolerance}; received a change of {found - last:.2g} at {nodes // 2} nodes"
    )


def _with_rule(model: Any, data: Dataset, nodes: int) -> float:
    x, w = (v.float() for v in gauss_legendre(nodes))

    def samples(gaps: Tensor) -> Tensor:
        return gaps[..., None] * x

    def sums(time_delta_seq: Tensor, lambda_at_event: Tensor, lambdas_loss_samples: Tensor, seq_mask: Tensor, type_seq: Tensor) -> Any:
        own = lambda_at_event.gather(-1, type_seq.clamp(max=lambda_at_event.shape[-1] - 1)[..., None])[..., 0].log()
        integral = (lambdas_loss_samples.sum(-1) @ w) * time_delta_seq
        return torch.where(seq_mask, own, 0.0), torch.where(seq_mask, integral, 0.0), int(seq_mask.sum())

    plain = model.make_dtime_loss_samples, model.compute_loglikelihood
    model.make_dtime_loss_samples, model.compute_loglikelihood = samples, sums
    try:
        parts = [model.loglike_loss(**easy_inputs(data.batch(rows), data.marks.count)) for rows in data.batches(128)]
    finally:
        model.make_dtime_loss_samples, model.compute_loglikelihood = plain
    return -sum(float(loss) for loss, _ in parts) / sum(n for _, n in parts)


if __name__ == "__main__":
    main()
