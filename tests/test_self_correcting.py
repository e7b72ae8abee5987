"""The self-correcting process: its integral in closed form, its history of counts, and its maximum
likelihood.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fourpoint.data.synthetic import process, simulate
from fourpoint.events import Dataset, Sequence, UserError
from fourpoint.models.self_correcting import SelfCorrecting


def test_marks_are_refused() -> None:
    with pytest.raises(UserError, match="expected a single type of event; received 3 types"):
        SelfCorrecting(marks=3)


@pytest.mark.parametrize("drift", [10.0, 1e-5, 0.0, -2.0])
def test_integral_equals_quadrature_with_gradient(drift: float) -> None:
    model = SelfCorrecting(drift=drift, correction=0.7)
    batch = simulate("self_correcting", 6, seed=1).batch()
    history = model.encode(batch)
    a, b = batch.edges[:, :-1], batch.edges[:, 1:]
    x, w = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(30))
    nodes = (a + b)[..., None] / 2 + (b - a)[..., None] / 2 * x
    numeric = (model.log_intensity(history, nodes).exp()[..., 0] * w).sum(-1) * (b - a) / 2
    closed = model.closed_integral(history, a, b)[..., 0]
    assert torch.allclose(closed, numeric, rtol=1e-12, atol=1e-14)
    for parameter in model.parameters():
        gradients = [
            torch.autograd.grad(v.sum(), parameter, retain_graph=True)[0] for v in (closed, numeric)
        ]
        assert torch.allclose(*gradients, rtol=1e-10)


def test_encode_equals_repeated_extend() -> None:
    model = SelfCorrecting(drift=3.0, correction=0.5)
    batch = simulate("self_correcting", 5, seed=2).batch()
    whole = model.encode(batch)
    query = batch.stop[:, None, None].expand(-1, 1, 2)
    step = model.encode(batch.columns(0, 0))
    for i in range(batch.times.shape[1]):
        step = model.extend(step, batch.times[:, i], batch.marks[:, i], batch.valid[:, i])
    expected = model.log_intensity(whole, query, whole.lengths[:, None])
    assert torch.equal(model.log_intensity(step, query), expected)
    later = model.encode(batch.columns(4, 99), model.encode(batch.columns(0, 4)))
    assert torch.equal(model.log_intensity(later, query, later.lengths[:, None]), expected)
    assert torch.equal(model.intensity(whole, batch.stop[:, None])[:, 0], expected[:, 0, 0].exp())


def test_tied_events_do_not_see_themselves() -> None:
    model = SelfCorrecting(drift=1.0, correction=1.0)
    batch = Sequence([2.0, 2.0, 2.0], start=1.0, stop=4.0).batch()
    own = model.log_intensity(model.encode(batch), batch.times[..., None], torch.arange(3)[None])
    assert own.flatten().tolist() == [1.0, 0.0, -1.0]


def log_likelihood(model: SelfCorrecting, data: Dataset) -> torch.Tensor:
    batch = data.batch()
    history = model.encode(batch)
    own = torch.arange(batch.times.shape[1]).expand_as(batch.times)
    logs = model.log_intensity(history, batch.times[..., None], own)[..., 0, 0]
    return (
        torch.where(batch.valid, logs, 0.0).sum()
        - model.closed_integral(history, batch.edges[:, :-1], batch.edges[:, 1:]).sum()
    )


def test_maximum_likelihood_recovers() -> None:
    data = process("self_correcting").simulate(400, seed=3, stop=2.0)
    model = SelfCorrecting()
    notes = model.maximum_likelihood(data)
    assert "by maximum likelihood" in notes[0]
    assert model.drift.item() == pytest.approx(10.0, abs=0.25)
    assert model.correction.item() == pytest.approx(1.0, abs=0.025)


@pytest.mark.parametrize("unit", [1.0, 3600.0, 1e-3])
def test_maximum_likelihood_is_a_maximum_in_any_unit(unit: float) -> None:
    data = simulate("self_correcting", 100, seed=3)
    scaled = replace(data, times=data.times * unit, stops=data.stops * unit)
    model = SelfCorrecting()
    model.maximum_likelihood(scaled)
    gradients = torch.autograd.grad(log_likelihood(model, scaled), [model.drift, model.correction])
    assert (
        abs(gradients[0].item()) / unit < 1e-4 * data.events
        and abs(gradients[1].item()) < 1e-4 * data.events
    )


def test_initialise_balances_the_mean_rate() -> None:
    model = SelfCorrecting(correction=2.0)
    model.initialise(Dataset.from_sequences([Sequence([1.0, 2.0, 3.0], start=0, stop=6)]))
    assert model.settings() == {"drift": 1.0, "correction": 2.0}
