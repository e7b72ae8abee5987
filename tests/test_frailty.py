"""A gamma frailty per sequence: the marginal likelihood, partial pooling, and recovery."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import gammaln

from fourpoint.events import Context, Dataset, Sequence, Steps, UserError
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.sampling import sample
from fourpoint.models.effects import effects_of
from fourpoint.models.frailty import Frailty
from fourpoint.storage.checkpoints import restore, save

ORIGIN = datetime(2025, 1, 6, tzinfo=UTC).timestamp()


def customers(
    seed: int, count: int = 300, *, variance: float = 0.8, effect: float = 0.5
) -> Dataset:
    """Customers over 60 days whose rates have a gamma factor, a covariate, and quiet weekends."""
    random = np.random.default_rng(seed)
    sequences = []
    for i in range(count):
        plan = float(random.integers(0, 2))
        factor = random.gamma(1 / variance, variance)
        scale = factor * np.exp(effect * plan)
        times = np.sort(random.random(random.poisson(0.2 * scale * 60)) * 60)
        weekend = times % 7 >= 5
        drawn = times[random.random(len(times)) < np.exp(np.where(weekend, -0.8, 0.0))]
        context = Context(
            origin=np.array([ORIGIN]), covariates=Steps.constant(("plan=pro",), [[plan]])
        )
        sequences.append(Sequence(drawn, start=0.0, stop=60.0, id=f"c{i}", context=context))
    return Dataset.from_sequences(sequences, unit="days")


def poisson_mixture(seed: int, count: int, variance: float) -> Dataset:
    random = np.random.default_rng(seed)
    factors = random.gamma(1 / variance, variance, count)
    found = [np.sort(random.random(random.poisson(5 * u)) * 10) for u in factors]
    return Dataset.from_sequences(
        [Sequence(times, start=0.0, stop=10.0, id=str(i)) for i, times in enumerate(found)]
    )


def test_the_likelihood_is_that_of_the_mixture() -> None:
    """The product of conditional rates is the negative binomial mixture of Poisson processes."""
    data = poisson_mixture(0, 5, 0.7)
    model = Frailty(variance=0.7)
    with torch.no_grad():
        model.log_rate.fill_(np.log(0.5))
    found = log_likelihood(model, data.batch()).value.detach().numpy()
    a, n, expected = 1 / 0.7, data.lengths, 5.0
    marginal = gammaln(a + n) - gammaln(a) + a * np.log(a) - (a + n) * np.log(a + expected)
    assert np.allclose(found, marginal + n * np.log(0.5), atol=1e-9)


def test_the_integral_agrees_with_quadrature_under_exposure() -> None:
    exposure = Steps(
        ("exposure",), np.array([0.0, 2.0, 3.0]), np.array([[1.0], [0.0], [2.0]]), np.array([0, 3])
    )
    known = Context(origin=np.array([ORIGIN]), exposure=exposure)
    data = Dataset.from_sequences(
        [Sequence([0.5, 1.5, 3.5, 4.0], start=0.0, stop=6.0, context=known)], unit="days"
    )
    model = Frailty(variance=0.5)
    model.add_effects(effects_of(data, ("hour",)))
    assert model.effects is not None
    with torch.no_grad():
        model.effects.weight.normal_(generator=torch.Generator().manual_seed(1))
    history = model.encode(data.batch())
    grid = torch.linspace(3.5, 4.0, 20001, dtype=torch.float64)
    rates = model.log_intensity(history, grid[None, None], torch.tensor([[3]])).exp()[0, 0, :, 0]
    by_sum = torch.trapezoid(rates, grid).detach()
    ends = (torch.tensor([[x]], dtype=torch.float64) for x in (3.5, 4.0))
    closed = model.closed_integral(history, *ends, torch.tensor([[3]]))
    assert float(closed.sum().detach()) == pytest.approx(float(by_sum), rel=1e-6)


def test_sequences_with_one_origin_share_the_integral_of_the_population() -> None:
    """The rate of the population is integrated once for sequences with one clock; alone, each
    sequence has the same expected number of events.
    """
    random = np.random.default_rng(3)
    context = Context(origin=np.array([ORIGIN]))
    sequences = [
        Sequence([], start=float(n), stop=20.0 - n / 3, id=str(n), context=context)
        for n in (0, 3, 7)
    ]
    data = Dataset.from_sequences(sequences, unit="days")
    model = Frailty(variance=0.5)
    model.add_effects(effects_of(data, ["hour", "weekday"]))
    with torch.no_grad():
        model.effects.weight.copy_(torch.from_numpy(random.normal(size=(31, 1))))
    together = model._expected(data)
    alone = [model._expected(data.select(np.array([i])))[0] for i in range(3)]
    np.testing.assert_allclose(together, alone, rtol=1e-10)
    nodes: list[int] = []
    values = model.effects.values

    def counted(times: torch.Tensor, *rest: object, **more: object) -> torch.Tensor:
        nodes.append(times.numel())
        return values(times, *rest, **more)

    model.effects.values = counted
    model._expected(data)
    of_three, nodes[:] = sum(nodes), []
    model._expected(data.select(np.array([0])))
    assert of_three == pytest.approx(sum(nodes), rel=0.1)


def test_variance_is_recovered() -> None:
    covered = []
    for seed in range(10):
        model = Frailty()
        model.maximum_likelihood(poisson_mixture(seed, 400, 0.6))
        assert model.variance_interval is not None
        low, high = model.variance_interval
        covered.append(low <= 0.6 <= high)
    assert np.mean(covered) >= 0.9


def test_effects_and_frailty_are_recovered_together(tmp_path: Path) -> None:
    """Intervals of a covariate's rate ratio allow for the differences between sequences."""
    covered = []
    for seed in range(10):
        data = customers(seed, 150)
        model = Frailty()
        model.add_effects(effects_of(data, ("weekday",)))
        model.maximum_likelihood(data)
        assert model.variance_interval is not None
        ratio = model.rate_ratios[0]
        assert ratio.name == "plan=pro"
        covered.append(model.variance_interval[0] < 0.8 < model.variance_interval[1])
        covered.append(ratio.low < np.exp(0.5) < ratio.high)
    assert np.mean(covered) >= 0.9
    kept = restore(save(model, tmp_path / "model"))
    again, first = (log_likelihood(m, data.batch()).value.sum() for m in (kept, model))
    assert float(again) == pytest.approx(float(first), rel=1e-12)


def test_missing_sequences_without_events_are_told() -> None:
    """A log has no rows of entities without events, so that their rates look higher."""
    whole = poisson_mixture(1, 300, 0.6)
    assert (whole.lengths == 0).sum() > 10
    said = Frailty().maximum_likelihood(whole)
    assert not any("without events" in note for note in said)
    seen = whole.select(np.flatnonzero(whole.lengths > 0))
    said = Frailty().maximum_likelihood(seen)
    assert any("no sequence is without events, though about" in note for note in said)


def test_new_entities_have_the_populations_rate_and_busy_ones_more() -> None:
    data = poisson_mixture(1, 400, 0.6)
    model = Frailty()
    model.maximum_likelihood(data)
    never = model.encode(Sequence([], start=0.0, stop=1e-9).batch())
    now = torch.tensor([[1e-9]], dtype=torch.float64)
    population = model.log_rate.detach().exp().item()
    assert model.intensity(never, now).item() == pytest.approx(population, rel=1e-6)
    busy = model.encode(data.select([int(np.argmax(data.lengths))]).batch())
    quiet = model.encode(data.select([int(np.argmin(data.lengths))]).batch())
    end = torch.tensor([[10.0]], dtype=torch.float64)
    high, low = (model.intensity(history, end).item() for history in (busy, quiet))
    assert low < population < high < float(data.lengths.max()) / 10


def test_samples_are_a_mixture() -> None:
    """Counts of sampled sequences have the mean and the variance of the negative binomial."""
    model = Frailty(variance=0.5)
    with torch.no_grad():
        model.log_rate.fill_(np.log(0.8))
    counts = sample(model, 0.0, 5.0, 4000, seed=3).lengths
    assert counts.mean() == pytest.approx(4.0, abs=0.2)
    assert counts.var() == pytest.approx(4 + 0.5 * 16, rel=0.12)


def test_one_sequence_is_refused() -> None:
    with pytest.raises(UserError, match="at least two sequences for a frailty; received 1"):
        Frailty().maximum_likelihood(poisson_mixture(0, 1, 0.5))
