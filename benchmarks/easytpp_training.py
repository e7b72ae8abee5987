"""EasyTPP's models as EasyTPP trains them: its loader, its loop, its loss; and scored by an honest
integral instead of its grid.

A :class:`Trainer` holds one model with the sizes that `ModelConfig` has by default (32 hidden
units, 2 layers, 2 heads, no dropout; S2P2 has no default number of modes and gets as many as hidden
units) and trains it epoch by epoch with `ModelWrapper.run_batch` (Adam). :func:`honest` scores it
in the `gaps` convention by Gauss-Legendre in every gap, doubled until the sum settles. Used by
`training.py`, `oracle.py` and `peers.py`. Everything that needs easy-tpp raises ImportError where
it is not installed.
"""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fourpoint.events import Batch, Dataset
from fourpoint.ops.quadrature import gauss_legendre

MODELS = ("RMTPP", "NHP", "SAHP", "THP", "S2P2", "AttNHP")
BATCH, HIDDEN, NODES, RATE = 64, 32, 20, 1e-3
SCORED = {
    "AttNHP": 16
}  # sequences scored at once: its query times attend to each other, which takes memory
MOST_NODES = 128


class Unsettled(ArithmeticError):
    """A score whose integral changes by more than the tolerance at the last doubling."""

    def __init__(self, score: float, change: float, tolerance: float) -> None:
        super().__init__(
            f"expected an integral that settles to {tolerance:g} nats per event; received a "
            f"change of {change:.2g} at {MOST_NODES} nodes "
            "per gap. Rates this rough need more nodes, or a looser tolerance."
        )
        self.score, self.change = score, change


class Trainer:
    """One EasyTPP model with its optimiser and loader."""

    def __init__(
        self, name: str, data: Dataset, *, nodes: int = NODES, rate: float = RATE, seed: int = 0
    ) -> None:
        from easy_tpp.config_factory import ModelConfig
        from easy_tpp.config_factory.model_config import TrainerConfig
        from easy_tpp.model.basemodel import BaseModel
        from easy_tpp.model_wrapper import ModelWrapper
        from easy_tpp.utils import RunnerPhase

        torch.manual_seed(seed)
        M, specs = data.marks.count, dict(P=HIDDEN) if name == "S2P2" else {}
        sizes = dict(
            hidden_size=HIDDEN,
            num_layers=2,
            num_heads=2,
            time_emb_size=16,
            model_specs=specs,
            training=True,
        )
        ends = dict(num_event_types=M, num_event_types_pad=M + 1, event_pad_index=M)
        config = ModelConfig(
            model_id=name, loss_integral_num_sample_per_step=nodes, **ends, **sizes
        )
        self.name, self.data, self._phase = name, data, RunnerPhase.TRAIN
        self.model = BaseModel.generate_model_from_config(config)
        self._wrapper = ModelWrapper(
            self.model,
            SimpleNamespace(model_id=name, specs={}),
            config,
            TrainerConfig(learning_rate=rate),
        )
        self._loader = loader(data)
        self._endless = (batch for _ in itertools.count() for batch in self._loader)

    def epoch(self) -> float:
        """Train through the data once; seconds by the clock."""
        self.model.train()
        began = time.perf_counter()
        for batch in self._loader:
            self._wrapper.run_batch(batch, self._phase)
        return time.perf_counter() - began

    def throughput(self, seconds: float) -> float:
        """Train for so long, one batch at least; events per second by the clock. An epoch of the
        slowest model takes most of a minute.
        """
        self.model.train()
        events, began = 0, time.perf_counter()
        while not events or time.perf_counter() - began < seconds:
            batch = next(self._endless)
            self._wrapper.run_batch(batch, self._phase)
            events += int(batch["seq_non_pad_mask"].sum())
        return events / (time.perf_counter() - began)

    def score(self, data: Dataset, tolerance: float = 1e-4) -> float:
        """Nats per event by an honest integral that has settled to ``tolerance``."""
        return honest(self.model.eval(), data, tolerance, SCORED.get(self.name, 128))


def loader(data: Dataset) -> Any:
    """EasyTPP's own loader: shuffled batches of 64, padded to their longest sequence."""
    from easy_tpp.config_factory.data_config import DataSpecConfig
    from easy_tpp.preprocess.dataset import TPPDataset, get_data_loader
    from easy_tpp.preprocess.event_tokenizer import EventTokenizer

    M = data.marks.count
    spec = DataSpecConfig(
        num_event_types=M, pad_token_id=M, padding_side="right", truncation_side="right"
    )
    kept = [s for s in data if len(s) > 1]
    columns = dict(
        time_seqs=[s.times.tolist() for s in kept],
        type_seqs=[s.marks.tolist() for s in kept],
        time_delta_seqs=[[0.0, *(s.times[1:] - s.times[:-1]).tolist()] for s in kept],
    )
    return get_data_loader(
        TPPDataset(columns), "torch", EventTokenizer(spec), batch_size=BATCH, shuffle=True
    )


@torch.no_grad()
def own_score(model: Any, data: Dataset) -> float:
    """What the library itself would report: its own grid."""
    parts = [
        model.loglike_loss(**inputs(data.batch(rows), data.marks.count))
        for rows in data.batches(128)
    ]
    return -sum(float(loss) for loss, _ in parts) / int((data.lengths - 1).clip(min=0).sum())


@torch.no_grad()
def honest(model: Any, data: Dataset, tolerance: float = 1e-4, size: int = 128) -> float:
    """EasyTPP's model under Gauss-Legendre rules, doubled until the score settles: its samples and
    sums are replaced, its rates are not.
    """
    found, nodes = float("nan"), 8
    while nodes <= MOST_NODES:
        last, found = found, _with_rule(model, data, nodes, size)
        if abs(found - last) < tolerance:
            return found
        nodes *= 2
    raise Unsettled(found, abs(found - last), tolerance)


def inputs(batch: Batch, marks: int) -> dict[str, Tensor]:
    """A batch as EasyTPP wants it: gaps beside times, padded marks out of range, and a causal mask
    (True is hidden).
    """
    times = batch.times.float()
    gaps = torch.where(
        batch.valid, torch.cat([torch.zeros_like(times[:, :1]), times.diff(dim=1)], 1), 0.0
    )
    kinds = torch.where(batch.valid, batch.marks, marks)
    n = times.shape[1]
    hidden = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)[None] | ~batch.valid[:, None]
    return dict(
        time_seqs=times,
        time_delta_seqs=gaps,
        type_seqs=kinds,
        seq_non_pad_mask=batch.valid,
        attention_mask=hidden,
    )


def _with_rule(model: Any, data: Dataset, nodes: int, size: int) -> float:
    x, w = (v.float() for v in gauss_legendre(nodes))

    def samples(gaps: Tensor) -> Tensor:
        return gaps[..., None] * x

    def sums(
        time_delta_seq: Tensor,
        lambda_at_event: Tensor,
        lambdas_loss_samples: Tensor,
        seq_mask: Tensor,
        type_seq: Tensor,
    ) -> Any:
        own = lambda_at_event.gather(
            -1, type_seq.clamp(max=lambda_at_event.shape[-1] - 1)[..., None]
        )[..., 0].log()
        integral = (lambdas_loss_samples.sum(-1) @ w) * time_delta_seq
        return (
            torch.where(seq_mask, own, 0.0),
            torch.where(seq_mask, integral, 0.0),
            int(seq_mask.sum()),
        )

    plain = model.make_dtime_loss_samples, model.compute_loglikelihood
    model.make_dtime_loss_samples, model.compute_loglikelihood = samples, sums
    try:
        parts = [
            model.loglike_loss(**inputs(data.batch(rows), data.marks.count))
            for rows in data.batches(size)
        ]
    finally:
        model.make_dtime_loss_samples, model.compute_loglikelihood = plain
    return -sum(float(loss) for loss, _ in parts) / sum(n for _, n in parts)
