"""The self-correcting process: its integral in closed form, its history of counts, and its maximum
likelihood.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fourpoint as fp
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
    assert model.base.item() == pytest.approx(0.0, abs=0.15)


@pytest.mark.parametrize("unit", [1.0, 3600.0, 1e-3])
def test_maximum_likelihood_is_a_maximum_in_any_unit(unit: float) -> None:
    data = simulate("self_correcting", 100, seed=3)
    scaled = replace(data, times=data.times * unit, stops=data.stops * unit)
    model = SelfCorrecting()
    model.maximum_likelihood(scaled)
    parameters = [model.base, model.drift, model.correction]
    gradients = torch.autograd.grad(log_likelihood(model, scaled), parameters)
    largest = max(abs(g.item()) / s for g, s in zip(gradients, (1, unit, 1), strict=True))
    assert largest < 1e-6 * data.events


def regular(seed: int, unit: float = 1.0) -> Dataset:
    """Machines that fail about every 20 days, more regularly than at random."""
    random = np.random.default_rng(seed)
    sequences = []
    for _ in range(10):
        times = np.cumsum(22.4 * random.weibull(3.0, 40))
        kept = times[times < 400]
        sequences.append(Sequence(unit * kept, start=0.0, stop=unit * 400.0))
    return Dataset.from_sequences(sequences)


def test_a_fit_does_not_depend_on_the_unit_of_time() -> None:
    per_day, per_second = SelfCorrecting(), SelfCorrecting()
    per_day.maximum_likelihood(regular(0))
    per_second.maximum_likelihood(regular(0, 86400.0))
    assert per_second.correction.item() == pytest.approx(per_day.correction.item(), rel=1e-6)
    assert 86400 * per_second.drift.item() == pytest.approx(per_day.drift.item(), rel=1e-6)
    shift = per_day.base.item() - per_second.base.item()
    assert shift == pytest.approx(np.log(86400), rel=1e-6)
    scores = [
        log_likelihood(per_day, regular(0)).item(),
        log_likelihood(per_second, regular(0, 86400.0)).item(),
    ]
    events = regular(0).events
    assert scores[0] - scores[1] == pytest.approx(events * np.log(86400), rel=1e-9)


def test_a_fit_expects_the_events_and_beats_a_constant_rate() -> None:
    """Without a base the rate began at 1 per day, and 2.5 events were expected for each."""
    data = regular(1)
    model = SelfCorrecting()
    model.maximum_likelihood(data)
    batch = data.batch()
    expected = model.closed_integral(model.encode(batch), batch.edges[:, :-1], batch.edges[:, 1:])
    assert expected.sum().item() == pytest.approx(data.events, rel=1e-6)
    constant = data.events * (np.log(data.events / data.durations.sum()) - 1)
    assert log_likelihood(model, data).item() > constant + 20
    assert model.correction.item() > 0 and model.drift.item() > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_fit_is_never_below_a_constant_rate(seed: int) -> None:
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(5.0, 6.0, seed))  # none, one, and bursts
    data = Dataset.from_sequences(
        [Sequence(times, start=0.0, stop=100.0), Sequence([], start=0.0, stop=3.0)]
    )
    model = SelfCorrecting()
    model.maximum_likelihood(data)
    rate = max(data.events, 0.5) / 103
    constant = data.events * np.log(rate) - 103 * rate
    assert log_likelihood(model, data).item() >= constant - 1e-9


def test_models_that_were_saved_without_a_base_have_a_base_of_0(tmp_path: Path) -> None:
    fp.save(SelfCorrecting(drift=2.0, correction=0.5, base=0.7), tmp_path)
    info = json.loads((tmp_path / "model.json").read_text())
    assert fp.restore(tmp_path).settings() == {"drift": 2.0, "correction": 0.5, "base": 0.7}
    folder = Path(__file__).parent / "reference" / "models" / "self-correcting"
    before = json.loads((folder / "model.json").read_text())["settings"]
    assert "base" not in before and "base" in info["settings"]
    assert fp.restore(folder).settings() == before | {"base": 0.0}


def test_initialise_balances_the_mean_rate() -> None:
    model = SelfCorrecting(correction=2.0)
    model.initialise(Dataset.from_sequences([Sequence([1.0, 2.0, 3.0], start=0, stop=6)]))
    assert model.settings() == {"drift": 1.0, "correction": 2.0, "base": np.log(0.5)}
