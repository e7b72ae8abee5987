"""SAHP and THP in one compiled sweep: the same likelihood and gradient as the plain way, and the
plain way where that is due.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fourpoint.events import Batch, Dataset, Sequence
from fourpoint.inference.likelihood import sampled_log_likelihood
from fourpoint.models import attentive_sweep, readout_loops
from fourpoint.models.attentive_loops import compiled_sweep, soft_max, soft_max_back, sweep
from fourpoint.models.attentive_room import Parts, room_for, turned, whole_registers
from fourpoint.models.sahp import SAHP
from fourpoint.models.thp import THP

Attentive = type[SAHP] | type[THP]
both = pytest.mark.parametrize("attentive", [SAHP, THP])


def events(marks: int, lengths: tuple[int, ...] = (5, 0, 18, 1, 16)) -> Dataset:
    """Ragged, with ties, an empty sequence, and lengths on both sides of a whole register."""
    rng, out = np.random.default_rng(3), []
    for i, n in enumerate(lengths):
        t = np.sort(rng.uniform(i, 8 + i, n))
        t[3:5] = t[2] if n > 4 else t[3:5]
        out.append(
            Sequence(t, rng.integers(0, marks, n), start=float(i) - 0.5, stop=9.0 + i, space=marks)
        )
    return Dataset.from_sequences(out)


def lively(attentive: Attentive, marks: int, size: float = 0.4, **settings: Any) -> SAHP | THP:
    model = attentive(marks, **{**dict(hidden=8, heads=2), **settings})
    model.initialise(events(marks))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=random)
    return model.train()


def errors_agree(
    model: SAHP | THP,
    batch: Batch,
    weights: Tensor,
    convention: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> bool:
    """Whether values and slopes by the sweep are as near to those of float64 as the plain way's in
    float32 are, rounding apart.
    """
    found = []
    for worth, kind in ((0, torch.float32), (2**62, torch.float32), (2**62, torch.float64)):
        monkeypatch.setattr(attentive_sweep, "WORTH_COMPILING", worth)
        copy = type(model)(model.marks, **model.settings()).to(kind).train()
        copy.load_state_dict(model.state_dict())
        values = sampled_log_likelihood(
            copy, batch, 3, torch.Generator().manual_seed(0), convention=convention
        )
        slopes = torch.autograd.grad((values * weights.to(values)).sum(), list(copy.parameters()))
        assert all((s != 0).any() for s in slopes)
        found.append([x.detach().double() for x in (values, *slopes)])
    worst = [
        (float((a - c).abs().max()), float((b - c).abs().max()), float(c.abs().max()))
        for a, b, c in zip(*found, strict=True)
    ]
    return all(swept <= 2 * plain + 3e-6 * (size + 0.1) for swept, plain, size in worst)


@both
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize("inner", [0, 12])
@pytest.mark.parametrize("convention", ["window", "gaps"])
def test_the_sweep_is_the_plain_way(
    attentive: Attentive, marks: int, inner: int, convention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attentive_sweep, "compiled_sweep", lambda: sweep)
    model, batch = lively(attentive, marks, inner=inner), events(marks).batch()
    for weights in (torch.full((5,), -0.01), torch.linspace(-1, 1, 5)):
        assert errors_agree(model, batch, weights, convention, monkeypatch)


@both
def test_so_are_wilder_models_of_other_sizes(
    attentive: Attentive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates from far below their scale, weights that are all on one key, one head, one layer and
    three.
    """
    monkeypatch.setattr(attentive_sweep, "compiled_sweep", lambda: sweep)
    for settings in (dict(layers=1, heads=1), dict(layers=3, heads=4, hidden=16)):
        model = lively(attentive, 2, **settings)
        with torch.no_grad():
            model.encoder.qkv *= 4.0
            model.link.log_scale.copy_(torch.tensor([-4.0, 1.0]))
            model.readout *= 2.0
        assert errors_agree(model, events(2).batch(), torch.ones(5), "window", monkeypatch)


def test_so_is_its_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    assert compiled_sweep() is not None
    for attentive in (SAHP, THP):
        for marks, inner in ((1, 0), (3, 12)):
            model = lively(attentive, marks, inner=inner)
            assert errors_agree(
                model, events(marks).batch(), torch.linspace(-1, 1, 5), "gaps", monkeypatch
            )


def test_the_plain_way_is_taken_where_the_sweep_does_not_pay_or_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def spy(*given: Any) -> None:
        calls.append(1)
        sweep(*given)

    def asked(model: SAHP | THP, batch: Batch) -> bool:
        calls.clear()
        assert (
            sampled_log_likelihood(model, batch, 2, torch.Generator().manual_seed(0))
            .isfinite()
            .all()
        )
        return bool(calls)

    monkeypatch.setattr(attentive_sweep, "compiled_sweep", lambda: spy)
    batch = events(1).batch()
    assert not asked(lively(THP, 1), batch)  # too small
    monkeypatch.setattr(attentive_sweep, "WORTH_COMPILING", 0)
    assert asked(lively(THP, 1), batch) and asked(lively(SAHP, 1, dropout=0.2).eval(), batch)
    assert not asked(lively(SAHP, 1, dropout=0.2), batch) and not asked(
        lively(THP, 1).double(), batch
    )
    assert not asked(lively(THP, 1, hidden=2 * attentive_sweep.WIDEST, size=0.0), batch)
    assert not asked(lively(THP, 1, size=0.0), events(1, (300,)).batch())
    leaf = batch.times.clone().requires_grad_()
    assert not asked(lively(THP, 1), Batch(leaf, batch.marks, batch.valid, batch.start, batch.stop))
    with torch.no_grad():
        assert not asked(lively(THP, 1), batch)
    monkeypatch.setattr(attentive_sweep, "compiled_sweep", lambda: None)
    assert not asked(lively(THP, 1), batch)


def test_weights_are_those_of_a_causal_softmax_and_never_too_small_for_quick_arithmetic() -> None:
    rng, n = np.random.default_rng(0), 16
    scores = (rng.normal(size=(n, n)) * np.linspace(0.1, 60, n)[:, None]).astype(
        np.float32
    )  # key by query
    later = np.tril(np.ones((n, n), dtype=bool), -1)
    expected = torch.softmax(
        torch.from_numpy(np.where(later, -np.inf, scores).astype(np.float64)), 0
    ).numpy()
    bits = np.empty(n, dtype=np.int32)
    weights = scores.copy()
    soft_max(
        weights,
        bits,
        bits.view(np.float32),
        np.empty(n, dtype=np.float32),
        np.empty(n, dtype=np.float32),
    )
    assert np.allclose(weights, expected, rtol=1e-5, atol=1e-20) and (weights[later] == 0).all()
    assert weights[weights > 0].min() > 1e-22 and (expected[expected > 0] < 1e-30).any()
    outside = rng.normal(size=(n, n)).astype(np.float32)
    leaf = torch.from_numpy(np.where(later, -np.inf, scores).astype(np.float64)).requires_grad_()
    (slope,) = torch.autograd.grad((torch.softmax(leaf, 0) * torch.from_numpy(outside)).sum(), leaf)
    soft_max_back(weights, outside, np.empty(n, dtype=np.float32))
    assert np.allclose(outside, slope.numpy(), atol=1e-5)


def test_large_products_go_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenBLAS would set threads to work on them, which costs far more than it saves."""
    rng, sizes, dot = np.random.default_rng(0), list[int](), np.dot

    def spy(a: Any, b: Any, out: Any) -> None:
        sizes.append(a.size * b.shape[1])
        dot(a, b, out)

    monkeypatch.setattr(np, "dot", spy)
    a, b, c = (
        rng.normal(size=shape).astype(np.float32) for shape in ((100, 64), (64, 96), (96, 64))
    )
    out = np.empty((100, 96), dtype=np.float32)
    for right in (b, c.T):
        readout_loops.product(a, right, out)
        assert np.allclose(out, a @ right, atol=1e-4)
    assert len(sizes) > 2 and max(sizes) <= readout_loops.MOST_MULTIPLIED


def test_room_is_used_again_and_fits() -> None:
    parts = Parts(*(p.detach().numpy() for p in _weights(lively(THP, 3))))
    room = room_for(32, 2, parts, 2)
    assert room is room_for(32, 2, parts, 2) and room is not room_for(48, 2, parts, 2)
    assert room.states.shape == (3, 8, 32) and np.shares_memory(room.bits, room.power)
    assert whole_registers(np.array([0, 1, 16, 17])).tolist() == [16, 16, 16, 32]
    assert turned(parts).qkv.shape == (2, 8, 24) and np.array_equal(
        turned(parts).down[1], parts.down[1].T
    )


def _weights(model: Any) -> tuple[Tensor, ...]:
    e = model.encoder
    read = (model.readout, model.base, model.slope, model.link.log_scale)
    return (e.first, model.tokens, e.qkv, e.out, e.up, e.up_shift, e.down, *read)
