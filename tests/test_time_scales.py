"""Laws of the next event, samples, scores and integrals see excitation on its own time scale,
however far they look.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from test_laws import boxed
from test_likelihood import SMALL, with_fitted_weights
from torch import Tensor

import fourpoint as fp
from fourpoint.events import Batch, MarkSpace
from fourpoint.inference.forecasting import LEVELS, _next_event
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.predictions import prediction_scores
from fourpoint.inference.sampling import last_rates, remember
from fourpoint.models import positions
from fourpoint.models.base import PointProcess
from fourpoint.models.positions import Positions
from fourpoint.models.spatial.dapp import SpatialDAPP
from fourpoint.models.spatial.hawkes import SpatialHawkes
from fourpoint.streaming import model_queries

HORIZONS = (1.0, 60.0, 600.0, 1e5)
LOW = 0.1


class Hump(PointProcess[Positions]):
    """A low rate, and after each event ``mass`` more in a hump that begins at zero and lasts
    ``scale``; nothing else is said of it.
    """

    linear = True

    def __init__(self, scale: float, mass: float = 0.8) -> None:
        super().__init__()
        self.marks, self.scale, self.mass = MarkSpace.of(None), scale, mass

    def encode(self, batch: Batch, before: Positions | None = None) -> Positions:
        return positions.positions_of(batch, before)

    def extend(
        self,
        history: Positions,
        time: Tensor,
        mark: Tensor,
        active: Tensor | None = None,
        place: Tensor | None = None,
    ) -> Positions:
        return positions.extended(history, time, active)

    def log_intensity(
        self,
        history: Positions,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Tensor:
        at = history.times if seen is None else history.times.gather(1, seen)
        lag = (times - at[..., None])[..., None] / self.scale
        return (LOW + self.mass / self.scale * lag * torch.exp(-lag)).log()

    def within(self, lag: float) -> float:
        """The integral up to ``lag``."""
        share = lag / self.scale
        return LOW * lag + self.mass * (1 - (1 + share) * math.exp(-share))


def three(**more: Any) -> fp.Sequence:
    """Three events, the last of which has just happened."""
    return fp.Sequence([1.0, 2.0, 3.0], start=0.0, stop=math.nextafter(3.0, 4.0), **more)


def law(model: Any, sequence: fp.Sequence, horizon: float) -> list[float]:
    """The quantiles of the time to the next event in a forecast, without its futures, of which
    there are many in a long horizon.
    """
    with torch.no_grad():
        here = remember(model, sequence.batch())
        found = _next_event(model, here, sequence.stop, horizon)
    return [found.quantiles[level] - sequence.stop for level in LEVELS]


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize("decay", [1.0, 1e3, 2e5, 1e7])
def test_the_next_event_of_a_hawkes_process_does_not_depend_on_the_horizon(
    decay: float, horizon: float
) -> None:
    model = fp.Hawkes(baseline=LOW, branching=0.8, decay=decay)
    found = law(model, three(), horizon)
    past = sum(math.exp(-decay * age) for age in (0, 1, 2))
    for level, time in zip(LEVELS, found, strict=True):
        integral = LOW * time - 0.8 * past * math.expm1(-decay * time)
        assert -math.expm1(-integral) == pytest.approx(level, abs=1e-4)


def fast(name: str) -> tuple[Any, fp.Sequence]:
    """A model whose excitation lasts about 1e-5, and three events for it."""
    if name not in BOXED:
        return with_fitted_weights(name, unit=1e-5), three()
    model = BOXED[name]()
    return model, three(places=[[0.5, 12.0]] * 3, space=model.marks)


def spatial_dapp() -> SpatialDAPP:
    model = SpatialDAPP(
        boxed(1), heads=2, frequencies=2, generator=(8,), order=8, base="constant", drift="none"
    ).eval()
    with torch.no_grad():
        model.time_scale.fill_(1e-5)
        model.rate.baseline.log_base.fill_(-8.0)
        model.rate.bias.fill_(-8.0)
        model.readout.fill_(2.0)
    return model


BOXED = {
    "spatial-hawkes": lambda: SpatialHawkes(boxed(1), baseline=LOW, branching=0.8, decay=1e5),
    "spatial-dapp": spatial_dapp,
}


@pytest.mark.parametrize("name", [*SMALL, *BOXED])
def test_the_next_event_of_a_fast_model_does_not_depend_on_the_horizon(name: str) -> None:
    """Against the integral of the same weights in float64 on a grid of all time scales."""
    model, sequence = fast(name)
    exact = copy.deepcopy(model).double()
    lags = torch.cat([torch.zeros(1), torch.logspace(-12, 6, 20_001)]).double()
    with torch.no_grad():
        here = remember(exact, sequence.batch())
        rates = last_rates(exact, here, (sequence.stop + lags)[None])[0].sum(-1)
    integral = torch.cat([torch.zeros(1), torch.cumulative_trapezoid(rates, lags)]).numpy()
    for horizon in HORIZONS:
        found = law(model, sequence, horizon)
        for level, time in zip(LEVELS, found, strict=True):
            reached = -math.expm1(-np.interp(time, lags.numpy(), integral))
            assert reached == pytest.approx(level, abs=2e-3)


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_a_hump_is_seen_without_a_word_from_the_model(scale: float, horizon: float) -> None:
    model = Hump(scale)
    for level, time in zip(LEVELS, law(model, three(), horizon), strict=True):
        assert -math.expm1(-model.within(time)) == pytest.approx(level, abs=1e-4)


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_samples_fall_into_a_hump_as_often_as_they_should(scale: float) -> None:
    history = fp.Sequence([3.0 - 1e-12], start=0.0, stop=3.0)
    drawn = fp.sample(
        Hump(scale), 3.0, 23.0, sequences=1000, seed=0, method="inversion", history=history
    )
    first = np.array([s.times[0] - 3.0 if len(s) else np.inf for s in drawn])
    for lag in (scale, 3 * scale, 10.0):
        expected = -math.expm1(-Hump(scale).within(lag))
        assert abs(np.mean(first <= lag) - expected) <= 4 * math.sqrt(
            expected * (1 - expected) / len(first)
        )


@pytest.mark.parametrize("scale", [1e-2, 1e-5])
def test_predictions_are_scored_by_the_law_with_its_hump(scale: float) -> None:
    """An event right after another is inside the interval in which the model expects it."""
    model = Hump(scale, mass=8.0)
    data = fp.Dataset.from_sequences([fp.Sequence([5.0, 5.0 + 2 * scale], start=0.0, stop=10.0)])
    scores = prediction_scores(model, data, origins=0).next_event
    assert scores.mae < 8  # of the first event, whose law has no hump before it
    late = prediction_scores(Hump(scale, mass=1e-9), data, origins=0).next_event
    assert scores.crps < late.crps - 1


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_integrals_state_no_less_than_the_error_of_a_hump(scale: float) -> None:
    model, times = Hump(scale), [1.0, 2.0, 50.0]
    found = log_likelihood(model, fp.Sequence(times, start=0.0, stop=100.0).batch())
    exact = sum(model.within(gap) for gap in (1.0, 1.0, 48.0, 50.0))
    assert abs(float(found.integral) - exact) <= float(found.error) <= 1e-3
    history = remember(model, fp.Sequence([3.0], start=0.0, stop=4.0).batch())
    stream = model_queries.integrals(model, history, np.array([3.0]), np.array([90.0]))
    assert stream[0] == pytest.approx(model.within(87.0), abs=1e-3)
