"""Bounded memory: the selection against a literal transcription, in batch and in a stream; and
ODAPP against DAPP.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference import algorithm3
from torch import Tensor

from fourpoint.events import Dataset, Sequence, UserError
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models import DAPP, MODELS
from fourpoint.ops import selection
from fourpoint.training.fitting import fit

SCORES = ("fourier", "dot", "neural")


def events(seed: int, n: int, marks: int) -> Sequence:
    rng = np.random.default_rng(seed)
    return Sequence(
        np.sort(rng.uniform(0, 10, n)), rng.integers(0, marks, n), start=0.0, stop=11.0, space=marks
    )


def build(heads: int, normalise: Any, keep: int, marks: int, **settings: Any) -> DAPP:
    model = DAPP(
        marks,
        heads=heads,
        normalise=normalise,
        keep=keep,
        features=5,
        eval_features=7,
        generator=(6,),
        base="constant",
        drift="none",
        seed=heads,
        **settings,
    )
    model.initialise(Dataset.from_sequences([events(99, 30, marks)]))
    model.double()
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        model.value_weight.copy_(
            torch.randn(model.value_weight.shape, generator=random, dtype=torch.float64)
        )
        model.modes.mark_key.copy_(
            torch.randn(model.modes.mark_key.shape, generator=random, dtype=torch.float64)
        )
    return model.eval()


class Transcribed:
    """One sequence through the transcription, with the numbers of ``model``."""

    def __init__(self, model: DAPP, sequence: Sequence) -> None:
        scale = float(model.time_scale)
        self.model, self.normalise = model, model.settings()["normalise"]
        self.events = [
            (float(t) / scale, int(m)) for t, m in zip(sequence.times, sequence.marks, strict=True)
        ]
        modes = model.modes()
        self.heads = [
            (modes.frequency[k].tolist(), modes.decay[k].tolist(), modes.shift[k].tolist())
            for k in range(len(modes.frequency))
        ]
        elapsed = torch.from_numpy(sequence.times / scale)[None]
        self.values = model.event_values(elapsed, torch.from_numpy(sequence.marks.copy())[None])[
            0
        ].T.tolist()
        keep = int(model.settings()["keep"])
        self.sets = [
            algorithm3.active_sets(
                self.events, keep, lambda i, j, h=h: self.nu(h, self.events[i], j), self.normalise
            )
            for h in self.heads
        ]

    def nu(self, head: Any, now: tuple[float, int], j: int) -> float:
        return algorithm3.score(*head, now, self.events[j])

    def log_intensity(self, position: int, time: float) -> Tensor:
        marks, model = self.model.marks.count, self.model
        z = torch.zeros(marks, dtype=torch.float64)
        for k, head in enumerate(self.heads):
            for m in range(marks):
                now = (time / float(model.time_scale), m)
                found = algorithm3.attention(
                    self.events,
                    self.sets[k][position],
                    self.values[k],
                    lambda j, head=head, now=now: self.nu(head, now, j),
                    self.normalise,
                )
                z[m] += found * model.readout[k, m].detach()
        return (
            model.rate.log_rate(z, torch.tensor(time, dtype=torch.float64), None).detach()
            - model.time_scale.log()
        )


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("normalise", ["none", "ratio", "softmax"])
@pytest.mark.parametrize("keep", [1, 4, 11])
def test_batch_and_stream_agree_with_the_transcription(
    heads: int, normalise: str, keep: int
) -> None:
    for seed, marks in ((1, 1), (2, 3)):
        model, sequence = build(heads, normalise, keep, marks), events(seed, 25, marks)
        truth = Transcribed(model, sequence)
        whole = model.encode(sequence.batch())
        step = model.encode(Sequence([], start=0.0, stop=11.0, space=marks).batch())
        for p in range(len(sequence) + 1):
            time = float(sequence.times[p] if p < len(sequence) else 11.0)
            expected = truth.log_intensity(p, time)
            at, here = torch.tensor([[[time]]], dtype=torch.float64), torch.tensor([[p]])
            assert torch.allclose(
                model.log_intensity(whole, at, here)[0, 0, 0], expected, rtol=0, atol=1e-10
            )
            assert torch.allclose(
                model.log_intensity(step, at, step.lengths[:, None])[0, 0, 0],
                expected,
                rtol=0,
                atol=1e-10,
            )
            seen = whole.past.mask(here)[0, 0]
            for k in range(heads):
                assert set(torch.nonzero(seen[:, k])[:, 0].tolist()) == set(truth.sets[k][p])
                held = step.memory.times[0, :, k][step.memory.active.valid[0, :, k]]
                assert sorted(held.tolist()) == sorted(sequence.times[truth.sets[k][p]].tolist())
            if p < len(sequence):
                step = model.extend(
                    step,
                    torch.tensor([time], dtype=torch.float64),
                    torch.tensor([int(sequence.marks[p])]),
                )


@pytest.mark.parametrize(
    ("score", "normalise"),
    [("fourier", "ratio"), *((s, n) for s in SCORES for n in ("none", "softmax"))],
)
def test_keeping_everything_changes_nothing(score: str, normalise: str) -> None:
    kept = (
        build(2, normalise, 25, 3, score=score) if score == "fourier" else _pair(score, normalise)
    )
    batch = Dataset.from_sequences([events(5, 25, 3), events(6, 12, 3)]).batch()
    plain = DAPP(3, **{**kept.settings(), "keep": None}).double().eval()
    plain.load_state_dict(kept.state_dict())
    times = batch.edges[:, 1:, None]
    assert torch.equal(
        kept.log_intensity(kept.encode(batch), times),
        plain.log_intensity(plain.encode(batch), times),
    )
    both = [log_likelihood(model, batch, tolerance=1e-11).value.sum() for model in (kept, plain)]
    assert float(both[0]) == pytest.approx(float(both[1]), abs=1e-12)


def _pair(score: Any, normalise: Any) -> DAPP:
    model = DAPP(
        3,
        heads=2,
        normalise=normalise,
        keep=25,
        score=score,
        generator=(6,),
        base="constant",
        drift="none",
    )
    model.initialise(Dataset.from_sequences([events(99, 30, 3)]))
    return model.double().eval()


def test_the_worst_mean_goes_and_of_equals_the_oldest() -> None:
    active = selection.empty(1, 2, 1, torch.zeros(0, dtype=torch.float64))
    yes = torch.tensor([True])
    gone = []
    for i, weights in enumerate(([0.0, 0.0], [0.5, 0.0], [0.5, 0.5], [0.1, 0.9])):
        w = torch.tensor(weights, dtype=torch.float64)[None, :, None]
        active, _, dropped = selection.admit(active, w, torch.tensor([i]), yes)
        gone.append(int(dropped))
    assert (
        gone == [-1, -1, 0, 2]
        # event 0 (mean .5) and 1 (mean .5) tie: the oldest goes; then event 2 (.1) beside event 1
        # (.7)
    )
    still, _, dropped = selection.admit(active, w, torch.tensor([9]), torch.tensor([False]))
    assert int(dropped) == -1 and all(
        torch.equal(a, b) for a, b in zip(still.tensors(), active.tensors(), strict=True)
    )


def test_the_choice_has_no_gradient_and_what_is_kept_has() -> None:
    model = build(2, "softmax", 3, 1).train()
    sequence = events(7, 20, 1)
    model.log_intensity(
        model.encode(sequence.batch()), sequence.batch().edges[:, 1:, None]
    ).sum().backward()
    assert model.value_weight.grad is not None and model.value_weight.grad.abs().sum() > 0
    assert not model.encode(sequence.batch()).memory.active.total.requires_grad


def test_a_share_is_rounded_up_and_stored() -> None:
    model = DAPP(keep=0.5)
    with pytest.raises(
        UserError, match="expected keep as a number of events; received the share 0.5"
    ):
        model.encode(events(1, 5, 1).batch())
    notes = model.initialise(Dataset.from_sequences([events(1, 7, 1), events(2, 3, 1)]))
    assert (
        model.settings()["keep"] == 4
        and "keep: 4 events per head (0.5 of the longest sequence's 7)" in notes
    )


def test_a_long_stream_stays_of_one_size() -> None:
    model = build(2, "none", 6, 1)
    history = model.encode(Sequence([], start=0.0, stop=1.0).batch())
    sizes = []
    for i in range(40):
        history = model.extend(
            history,
            torch.tensor([float(i)], dtype=torch.float64),
            torch.zeros(1, dtype=torch.int64),
        )
        sizes.append(history.memory.times.shape[1])
    assert max(sizes) == 6 and int(history.memory.active.valid.sum()) == 12


def test_keeping_shares_weights() -> None:
    model = DAPP(features=4, eval_features=8)
    model.initialise(Dataset.from_sequences([events(1, 7, 1)]))
    bounded = model.keeping(3)
    assert (
        bounded.linear
        and not bounded.scanned
        and model.scanned
        and model.settings()["keep"] is None
    )
    with torch.no_grad():
        model.value_weight.mul_(2.0)
    assert torch.equal(bounded.value_weight, model.value_weight)


@pytest.mark.parametrize("keep", [0, -3, 0.0, 1.5])
def test_a_foolish_keep_is_refused(keep: float) -> None:
    with pytest.raises(UserError, match="expected keep as a number of events from 1, or a share"):
        DAPP(keep=keep)


@pytest.mark.parametrize(
    "settings",
    [
        dict(score="dot", normalise="ratio"),
        dict(score="neural", link="identity"),
        dict(score="dot", form="scan"),
        dict(keep=3, form="scan"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="score"):
        DAPP(**settings)


@pytest.mark.parametrize(
    "name",
    [
        "odapp",
        "odapp-paper",
        "dapp-paper-dot",
        "dapp-paper-nn",
        "odapp-paper-dot",
        "odapp-paper-nn",
    ],
)
def test_every_online_and_ablated_model_trains_by_its_name(name: str) -> None:
    data = Dataset.from_sequences([events(seed, 12, 2) for seed in range(8)])
    small: dict[str, Any] = dict(features=4, eval_features=8, generator=(4,))
    model = MODELS[name](data.marks, **small)
    fit(model, data, steps=4, batch_size=4, progress=False)
    settings = model.settings()
    assert settings["keep"] == (6 if name.startswith("odapp") else None)
    assert settings["score"] == {"dot": "dot", "nn": "neural"}.get(
        name.rsplit("-", 1)[-1], "fourier"
    )
    assert np.isfinite(log_likelihood(model.eval(), data.batch()).per_event)
