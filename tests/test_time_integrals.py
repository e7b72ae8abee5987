"""Sequences that share a rate of time have one integral of it, which is that of each alone."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
import torch

from fourpoint.events import Context, Dataset, Sequence
from fourpoint.inference.likelihood import gap_log_likelihoods, log_likelihood
from fourpoint.models import poisson, time_integrals
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import Effects, effects_of
from fourpoint.models.frailty import Frailty
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson

ORIGIN = datetime(2025, 1, 6, tzinfo=UTC).timestamp()
TERMS = ("hour", "weekday", "week", "month")


def spanning(count: int = 6, later: float = 0.0) -> Dataset:
    """Sequences of 0 to 3 events in windows of some 20 days that overlap; those with an odd number
    begin ``later`` seconds later.
    """
    random = np.random.default_rng(1)
    sequences = []
    for i in range(count):
        start = float(i % 3)
        times = np.sort(start + random.random(i % 4) * 20)
        context = Context(origin=np.array([ORIGIN + later * (i % 2)]))
        sequences.append(Sequence(times, start=start, stop=start + 20.5, context=context))
    return Dataset.from_sequences(sequences, unit="days")


def with_effects(model: PointProcess, data: Dataset) -> PointProcess:
    model.add_effects(effects_of(data, TERMS, zone="Europe/Berlin"))
    assert isinstance(model.effects, Effects)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.effects.weight.copy_(
            torch.randn(model.effects.weight.shape, generator=random, dtype=torch.float64) / 2
        )
    return model.eval()


def models(data: Dataset) -> list[PointProcess]:
    return [
        with_effects(Poisson(), data),
        with_effects(Frailty(variance=0.6), data),
        with_effects(Hawkes(baseline=0.3, branching=0.4, decay=1.5), data),
    ]


@pytest.mark.parametrize("later", [0.0, 7200.0])
def test_the_likelihood_together_is_that_of_each_alone(later: float) -> None:
    data = spanning(later=later)
    for model in models(data):
        together = log_likelihood(model, data.batch(), tolerance=1e-9).value
        alone = [log_likelihood(model, one.batch(), tolerance=1e-9).value for one in data]
        torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-9)


def test_the_integrals_of_gaps_are_those_of_each_alone() -> None:
    data = spanning()
    for model in models(data):
        _, over_gaps = gap_log_likelihoods(model, data.batch(), tolerance=1e-9)
        for row, one in enumerate(data):
            _, alone = gap_log_likelihoods(model, one.batch(), tolerance=1e-9)
            found = over_gaps[row, : alone.shape[1]]
            torch.testing.assert_close(found, alone[0], rtol=0, atol=1e-9)


def test_many_sequences_need_as_many_rates_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand sequences over one window: a grid for each would be 500 times as long."""
    asked = 0
    plain = Effects.active

    def counted(self: Effects, local: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal asked
        asked += local.numel()
        return plain(self, local)

    monkeypatch.setattr(Effects, "active", counted)
    for index, number in enumerate((2, 1000)):
        data = spanning(number)
        counts = []
        for model in models(data):
            asked = 0
            log_likelihood(model, data.batch())
            counts.append(asked)
        if index == 0:
            few = counts
    events = spanning(1000).events
    for one, many in zip(few, counts, strict=True):
        assert many < 3 * one + 80 * events


def test_windows_far_apart_keep_grids_of_their_own() -> None:
    """One grid would run through the years between them."""
    context = Context(origin=np.array([ORIGIN]))
    near = Sequence([0.5], start=0.0, stop=1.0, context=context)
    far = Sequence([4000.5], start=4000.0, stop=4001.0, context=context)
    batch = Dataset.from_sequences([near, far], unit="days").batch()
    known = batch.context
    assert known is not None
    assert not time_integrals.cheaper_together(batch.edges[:, :-1], batch.edges[:, 1:], known)


def test_nodes_of_a_spline_with_effects_are_shared() -> None:
    """Their weights are those of the sequences of one start together: six starts, three grids."""
    data = spanning(6)
    spec = effects_of(data, TERMS, zone="Europe/Berlin")
    together = poisson._nodes_with_effects(data, spec, 20.5, 5)
    alone = [
        poisson._nodes_with_effects(data.select(np.array([row])), spec, 20.5, 5) for row in range(6)
    ]

    def mass(found: poisson._Nodes) -> torch.Tensor:
        of_effects = (found.share * torch.sin(found.index)).sum(1)
        return (found.weight * torch.exp(found.since / 9 + of_effects)).sum()

    every = torch.stack([mass(found) for found in alone]).sum()
    torch.testing.assert_close(mass(together), every, rtol=1e-12, atol=0)
    assert len(together.since) == sum(len(found.since) for found in alone[:3])
