"""The exponential Hawkes process: closed form against brute force, recovery, and honest standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fourpoint.data.synthetic import _hawkes, simulate
from fourpoint.events import Dataset, Sequence, UserError
from fourpoint.likelihood import log_likelihood
from fourpoint.models import Hawkes

MU, ALPHA, BETA = 0.8, 0.6, 2.5


def simulated(sequences: int = 200, stop: float = 25.0, seed: int = 0, shift: float = 0.0) -> Dataset:
    times, rows = _hawkes(np.random.default_rng(seed), sequences, stop, MU, ALPHA, BETA)
    order = np.lexsort((times, rows))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=sequences))])
    starts = np.full(sequences, shift)
    return Dataset(times[order] + shift, np.zeros(len(times), dtype=np.int64), offsets, starts, starts + stop)


def brute_force(s: Sequence, mu: np.ndarray, alpha: np.ndarray, beta: float) -> float:
    """Equation by equation, over all pairs of events, in plain Python."""
    total = -float(mu.sum()) * s.duration
    for i, (t, m) in enumerate(zip(s.times, s.marks, strict=True)):
        rate = float(mu[m])
        for u, n in zip(s.times[:i], s.marks[:i], strict=True):
            rate += float(alpha[m, n]) * beta * math.exp(-beta * (t - u))
        total += math.log(rate) - float(alpha[:, m].sum()) * (1 - math.exp(-beta * (s.stop - t)))
    return total


@pytest.fixture(scope="module")
def fitted() -> tuple[Dataset, Hawkes]:
    data, model = simulated(), Hawkes()
    model.initialise(data)
    model.maximum_likelihood(data)
    return data, model


def test_recovery_within_three_standard_errors(fitted: tuple[Dataset, Hawkes]) -> None:
    _, model = fitted
    for name, truth in (("baseline", MU), ("branching", ALPHA), ("decay", BETA)):
        error = model.errors[name].item()
        assert 0 < error < 0.15 * truth
        assert abs(model.estimates[name].item() - truth) <= 3 * error, name
    assert model.spectral_radius == pytest.approx(model.estimates["branching"].item())


def test_the_fit_is_a_maximum(fitted: tuple[Dataset, Hawkes]) -> None:
    data, model = fitted
    model.zero_grad()
    model.exact_log_likelihood(data.batch()).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.abs().max() < 1e-4 * data.events
    model.zero_grad()
    truth = Hawkes(baseline=MU, branching=ALPHA, decay=BETA)
    gain = (log_likelihood(model, data.batch()).value - log_likelihood(truth, data.batch()).value).sum()
    assert 0 <= gain < 12  # half a chi-squared of 3


def test_standard_errors_are_those_of_a_numerical_hessian(fitted: tuple[Dataset, Hawkes]) -> None:
    """Second differences of the likelihood in mu, alpha and beta themselves, not in their logarithms."""
    data, model = fitted
    batch = data.batch()
    best = np.array([model.estimates[n].item() for n in ("baseline", "branching", "decay")])

    def loss(x: np.ndarray) -> float:
        other = Hawkes(baseline=x[0], branching=x[1], decay=x[2])
        return -float(log_likelihood(other, batch).value.sum())

    step = 2e-3 * best
    hessian = np.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            parts = [(a, b, loss(best + a * step * np.eye(3)[i] + b * step * np.eye(3)[j])) for a in (-1, 1) for b in (-1, 1)]
            hessian[i, j] = sum(a * b * value for a, b, value in parts) / (4 * step[i] * step[j])
    numeric = np.sqrt(np.diag(np.linalg.inv(hessian)))
    errors = np.array([model.errors[n].item() for n in ("baseline", "branching", "decay")])
    assert errors == pytest.approx(numeric, rel=0.01)


def test_the_likelihood_is_the_closed_form() -> None:
    model = Hawkes(baseline=MU, branching=ALPHA, decay=BETA)
    data = simulated(8, seed=1, shift=100.0)
    expected = [brute_force(s, np.array([MU]), np.array([[ALPHA]]), BETA) for s in data]
    for found in (log_likelihood(model, data.batch()).value, model.exact_log_likelihood(data.batch())):
        assert found.tolist() == pytest.approx(expected, abs=1e-8, rel=0)


def test_three_types_against_brute_force() -> None:
    rng = np.random.default_rng(2)
    sequences = [
        Sequence(np.sort(rng.uniform(0, 9, n)), rng.integers(0, 3, n), start=0.0, stop=10.0, space=3) for n in (12, 0, 31, 1)
    ]
    data, model = Dataset.from_sequences(sequences), Hawkes(3, decay=1.7)
    mu, alpha = rng.uniform(0.2, 1, 3), rng.uniform(0.05, 0.4, (3, 3))
    with torch.no_grad():
        model.log_baseline.copy_(torch.from_numpy(np.log(mu)))
        model.log_branching.copy_(torch.from_numpy(np.log(alpha)))
    assert np.allclose(model.estimates["branching"], alpha)
    assert model.spectral_radius == pytest.approx(np.abs(np.linalg.eigvals(alpha)).max())
    expected = [brute_force(s, mu, alpha, 1.7) for s in data]
    assert log_likelihood(model, data.batch()).value.tolist() == pytest.approx(expected, abs=1e-8, rel=0)


def test_three_types_are_fitted_with_errors_of_the_right_shapes() -> None:
    data = simulated(60, stop=10.0, seed=3)
    marks = np.random.default_rng(4).integers(0, 3, data.events)
    model = Hawkes(3)
    model.initialise(typed := Dataset(data.times, marks, data.offsets, data.starts, data.stops, marks=model.marks))
    before = model.exact_log_likelihood(typed.batch()).sum().item()
    model.maximum_likelihood(typed)
    assert model.exact_log_likelihood(typed.batch()).sum().item() > before
    shapes = {name: error.shape for name, error in model.errors.items()}
    assert shapes == {"baseline": (3,), "branching": (3, 3), "decay": ()}
    assert all(np.isfinite(error).all() and (error > 0).all() for error in model.errors.values())
    total = model.estimates["branching"].sum(0).mean()
    assert total == pytest.approx(ALPHA, abs=0.12)  # types at random: an event's offspring of all types


def test_the_unit_of_time_does_not_matter() -> None:
    data = simulated(40, seed=5)
    slow = Dataset(data.times * 1000, data.mark_ids, data.offsets, data.starts, data.stops * 1000)
    models = []
    for d in (data, slow):
        models.append(Hawkes())
        models[-1].initialise(d)
        models[-1].maximum_likelihood(d)
    one, thousand = (m.estimates for m in models)
    assert thousand["branching"] == pytest.approx(one["branching"], rel=1e-3)
    assert thousand["decay"] * 1000 == pytest.approx(one["decay"], rel=1e-3)
    assert models[1].errors["baseline"] * 1000 == pytest.approx(models[0].errors["baseline"], rel=1e-2)


def test_an_explosive_fit_says_so() -> None:
    model = Hawkes()
    data = simulate("hawkes", 300, seed=6)
    model.initialise(data)
    notes = model.maximum_likelihood(data)
    said = any("is 1 or more: forecasts beyond the training window explode" in note for note in notes)
    assert said == (model.spectral_radius >= 1)
    with torch.no_grad():
        model.log_branching.fill_(math.log(1.2))
    assert model.spectral_radius == pytest.approx(1.2)


def test_starting_values_must_be_positive() -> None:
    with pytest.raises(UserError, match="expected positive baseline, branching and decay; received 1.0, 0.0, 1.0. Raise them above 0"):
        Hawkes(branching=0.0)
