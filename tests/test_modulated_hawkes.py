"""A Hawkes process times the calendar: its likelihood, its fit, and its forecasts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fourpoint as fp
from fourpoint.events import Context, Dataset, Sequence, Steps
from fourpoint.inference.sampling import sample
from fourpoint.models import Hawkes, ModulatedHawkes
from fourpoint.models.effects import EffectsSpec, effects_of
from fourpoint.models.modulated_hawkes import _Fit, _Point

MIDNIGHT = 1704067200.0  # 2024-01-01, UTC
DAYS, SEQUENCES = 3, 24


def rhythmic(**settings: float) -> ModulatedHawkes:
    """A process with a rate that is about 7 times higher at noon than at midnight."""
    model = ModulatedHawkes(**settings)
    model.add_effects(EffectsSpec(("hour",), seconds=3600.0))
    assert model.effects is not None
    hours = torch.arange(24, dtype=torch.float64)
    with torch.no_grad():
        model.effects.weight[:, 0] = -torch.cos(2 * torch.pi * (hours - 1) / 24) - 0.236
    return model


@pytest.fixture(scope="module")
def simulated() -> tuple[ModulatedHawkes, Dataset]:
    truth = rhythmic(baseline=1.0, branching=0.6, decay=0.7)
    context = Context(origin=np.full(SEQUENCES, MIDNIGHT))
    empty = [Sequence([], start=0.0, stop=1e-9, id=str(i)) for i in range(SEQUENCES)]
    begin = replace(Dataset.from_sequences(empty), unit="hours", context=context)
    drawn = sample(truth, 1e-9, 24.0 * DAYS, SEQUENCES, seed=3, history=begin)
    return truth, replace(drawn, unit="hours", context=context)


def test_without_effects_it_is_a_hawkes_process(simulated: tuple[object, Dataset]) -> None:
    _, data = simulated
    settings = {"baseline": 1.0, "branching": 0.6, "decay": 0.7}
    scores = [fp.evaluate(m(**settings), data) for m in (ModulatedHawkes, Hawkes)]
    first, second = (score.scores["window"].per_event for score in scores)
    assert first == pytest.approx(second, abs=1e-12)


def test_the_fit_has_the_likelihood_of_the_model(
    simulated: tuple[ModulatedHawkes, Dataset],
) -> None:
    truth, data = simulated
    late = data.split_at([20.0])[1]
    steps = Steps.constant(("exposure",), [[0.5]] * 12 + [[1.0]] * 12)
    assert late.context is not None
    late = replace(late, context=replace(late.context, exposure=steps))
    assert truth.effects is not None
    fit = _Fit(late, truth.effects.spec, 1)
    inner = truth.hawkes
    weight = truth.effects.weight.detach().double()
    point = _Point(
        inner.log_baseline.detach(),
        inner.log_branching.detach()[None],
        inner.log_decay.detach()[None],
        weight,
    )
    centred = fit._centred(point)
    model = rhythmic()
    assert model.effects is not None
    with torch.no_grad():
        model.hawkes.log_baseline.copy_(centred.log_mu)
        model.hawkes.log_branching.copy_(centred.log_alpha[0])
        model.hawkes.log_decay.copy_(centred.log_beta[0])
        model.effects.weight.copy_(centred.weight)
    exact = fp.evaluate(model, late).scores["window"].log_likelihood
    penalty = float((weight * (fit.penalty @ weight)).sum()) / 2
    # The logarithm of the exposure at events is no part of the fit: it does not change.
    exposed = float(np.log(0.5) * late.scored[: late.offsets[12]].sum())
    found = float(fit.value(point)) + penalty + exposed
    assert found == pytest.approx(exact, abs=2e-4 * late.scored_events)


def test_parameters_are_recovered(simulated: tuple[ModulatedHawkes, Dataset]) -> None:
    truth, data = simulated
    model = ModulatedHawkes()
    model.add_effects(effects_of(data, ("hour",)))
    model.maximum_likelihood(data)
    found = model.estimates
    assert found["branching"].item() == pytest.approx(0.6, rel=0.1)
    assert found["decay"].item() == pytest.approx(0.7, rel=0.25)
    assert found["baseline"].item() == pytest.approx(1.0, rel=0.2)
    # The background alone follows the calendar in a Hawkes process, which explains less.
    other = Hawkes()
    other.add_effects(effects_of(data, ("hour",)))
    other.maximum_likelihood(data)
    scores = [fp.evaluate(m, data).scores["window"].per_event for m in (model, other, truth)]
    assert scores[0] > scores[1] + 0.005
    assert scores[0] > scores[2] - 1e-3


def test_counts_ahead_have_the_mean_of_the_process() -> None:
    model = rhythmic(baseline=1.0, branching=0.5, decay=1.0)
    context = Context(origin=np.array([MIDNIGHT]))
    data = replace(
        Dataset.from_sequences([Sequence([1.0, 2.0], start=0.0, stop=24.0)]),
        unit="hours",
        context=context,
    )
    table = fp.forecasts(model, data, horizon="1d", by="6h", paths=2000, seed=0)
    means = table.column("mean").to_numpy()
    assert means[1] > 4 * means[0] and means[2] > 2 * means[3]
