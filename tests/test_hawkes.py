"""The exponential Hawkes process: closed form against brute force, recovery, honest standard
errors, and odd data.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fourpoint.data.synthetic import _hawkes, simulate
from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.explaining import explain
from fourpoint.inference.goodness import goodness_of_fit
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.sampling import sample
from fourpoint.models import Hawkes, hawkes_fit
from fourpoint.ops.ages import timeline
from fourpoint.ops.excitation import derivatives, rows_of
from fourpoint.storage.checkpoints import restore, save

MU, ALPHA, BETA = 0.8, 0.6, 2.5


def simulated(
    sequences: int = 200, stop: float = 25.0, seed: int = 0, shift: float = 0.0
) -> Dataset:
    times, rows, *_ = _hawkes(np.random.default_rng(seed), sequences, stop, MU, ALPHA, BETA)
    order = np.lexsort((times, rows))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=sequences))])
    starts = np.full(sequences, shift)
    return Dataset(
        times[order] + shift, np.zeros(len(times), dtype=np.int64), offsets, starts, starts + stop
    )


def brute_force(s: Sequence, mu: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> float:
    """Equation by equation, over all pairs of events and all decays, in plain Python. alpha is (J,
    M, M).
    """
    total = -float(mu.sum()) * s.duration
    for i, (t, m) in enumerate(zip(s.times, s.marks, strict=True)):
        rate = float(mu[m])
        for a, b in zip(alpha, beta, strict=True):
            for u, n in zip(s.times[:i], s.marks[:i], strict=True):
                rate += float(a[m, n]) * b * math.exp(-b * (t - u))
            total -= float(a[:, m].sum()) * (1 - math.exp(-b * (s.stop - t)))
        total += math.log(rate)
    return total


def fit(data: Dataset, marks: int | None = None, exponentials: int = 1) -> tuple[Hawkes, list[str]]:
    model = Hawkes(marks, exponentials=exponentials)
    return model, model.maximum_likelihood(data)


@torch.no_grad()
def height(data: Dataset, model: Hawkes) -> float:
    """The log-likelihood of all of the data."""
    return sum(
        float(model.exact_log_likelihood(data.batch(rows)).sum()) for rows in data.batches(64)
    )


def clusters(events: int, seed: int, mu: float, alpha: float, beta: float) -> Dataset:
    """One sequence of about so many events, drawn as a branching process."""
    rng = np.random.default_rng(seed)
    stop = events * (1 - alpha) / mu
    born = rng.uniform(0, stop, rng.poisson(mu * stop))
    parts = [born]
    while len(born):
        children = rng.poisson(alpha, len(born))
        born = np.repeat(born, children) + rng.exponential(1 / beta, children.sum())
        parts.append(born := born[born < stop])
    return Dataset.from_sequences([Sequence(np.sort(np.concatenate(parts)), start=0.0, stop=stop)])


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
    gain = (
        log_likelihood(model, data.batch()).value - log_likelihood(truth, data.batch()).value
    ).sum()
    assert 0 <= gain < 12  # half a chi-squared of 3


def test_standard_errors_are_those_of_a_numerical_hessian(fitted: tuple[Dataset, Hawkes]) -> None:
    """Second differences of the likelihood in mu, alpha and beta themselves, not in their
    logarithms.
    """
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
            parts = [
                (a, b, loss(best + a * step * np.eye(3)[i] + b * step * np.eye(3)[j]))
                for a in (-1, 1)
                for b in (-1, 1)
            ]
            hessian[i, j] = sum(a * b * value for a, b, value in parts) / (4 * step[i] * step[j])
    numeric = np.sqrt(np.diag(np.linalg.inv(hessian)))
    errors = np.array([model.errors[n].item() for n in ("baseline", "branching", "decay")])
    assert errors == pytest.approx(numeric, rel=0.01)


def test_the_likelihood_is_the_closed_form() -> None:
    model = Hawkes(baseline=MU, branching=ALPHA, decay=BETA)
    data = simulated(8, seed=1, shift=100.0)
    expected = [
        brute_force(s, np.array([MU]), np.array([[[ALPHA]]]), np.array([BETA])) for s in data
    ]
    for found in (
        log_likelihood(model, data.batch()).value,
        model.exact_log_likelihood(data.batch()),
    ):
        assert found.tolist() == pytest.approx(expected, abs=1e-9, rel=0)


@pytest.mark.parametrize("exponentials", [1, 2])
def test_three_types_against_brute_force(exponentials: int) -> None:
    rng = np.random.default_rng(2)
    sequences = [
        Sequence(
            np.sort(rng.uniform(0, 9, n)), rng.integers(0, 3, n), start=0.0, stop=10.0, space=3
        )
        for n in (12, 0, 31, 1)
    ]
    data = Dataset.from_sequences(sequences)
    mu, alpha, beta = (
        rng.uniform(0.2, 1, 3),
        rng.uniform(0.05, 0.4, (exponentials, 3, 3)),
        np.array([1.7, 0.3])[:exponentials],
    )
    table, decay = (alpha[0], beta[0]) if exponentials == 1 else (alpha, beta)
    model = Hawkes(
        3,
        baseline=mu.tolist(),
        branching=table.tolist(),
        decay=decay.tolist(),
        exponentials=exponentials,
    )
    for name, value in (("baseline", mu), ("branching", table), ("decay", decay)):
        assert np.allclose(model.estimates[name], value) and model.estimates[
            name
        ].shape == np.shape(value)
    assert model.spectral_radius == pytest.approx(np.abs(np.linalg.eigvals(alpha.sum(0))).max())
    expected = [brute_force(s, mu, alpha, beta) for s in data]
    for found in (
        log_likelihood(model, data.batch()).value,
        model.exact_log_likelihood(data.batch()),
    ):
        assert found.tolist() == pytest.approx(expected, abs=1e-9, rel=0)


def test_three_types_are_fitted_with_errors_of_the_right_shapes() -> None:
    data = simulated(60, stop=10.0, seed=3)
    marks = np.random.default_rng(4).integers(0, 3, data.events)
    model = Hawkes(3)
    model.initialise(
        typed := Dataset(
            data.times, marks, data.offsets, data.starts, data.stops, marks=model.marks
        )
    )
    before = model.exact_log_likelihood(typed.batch()).sum().item()
    model.maximum_likelihood(typed)
    assert model.exact_log_likelihood(typed.batch()).sum().item() > before
    shapes = {name: error.shape for name, error in model.errors.items()}
    assert shapes == {"baseline": (3,), "branching": (3, 3), "decay": ()}
    assert all(np.isfinite(error).all() and (error > 0).all() for error in model.errors.values())
    total = model.estimates["branching"].sum(0).mean()
    assert total == pytest.approx(
        ALPHA, abs=0.12
    )  # types at random: an event's offspring of all types


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
    assert models[1].errors["baseline"] * 1000 == pytest.approx(
        models[0].errors["baseline"], rel=1e-2
    )


def test_an_explosive_fit_says_so() -> None:
    model = Hawkes()
    data = simulate("hawkes", 300, seed=6)
    model.initialise(data)
    notes = model.maximum_likelihood(data)
    said = any(
        "is 1 or more: forecasts beyond the training window explode" in note for note in notes
    )
    assert said == (model.spectral_radius >= 1)
    with torch.no_grad():
        model.log_branching.fill_(math.log(1.2))
    assert model.spectral_radius == pytest.approx(1.2)


def test_starting_values_must_be_positive() -> None:
    with pytest.raises(
        UserError,
        match=(
            "expected positive baseline, branching and decay; received 1.0, 0.0, 1.0. Raise them "
            "above 0"
        ),
    ):
        Hawkes(branching=0.0)
    with pytest.raises(
        UserError,
        match=(
            r"expected branching as one number or with the shape \(2, 2\); received the shape "
            r"\(3, 3\)"
        ),
    ):
        Hawkes(2, branching=np.full((3, 3), 0.1).tolist())
    with pytest.raises(
        UserError,
        match=(
            "expected at least one exponential; received exponentials=0. Pass exponentials=1, say"
        ),
    ):
        Hawkes(exponentials=0)
    with pytest.raises(
        UserError, match="expected data with 2 types, as the model has; received no marks"
    ):
        Hawkes(2).maximum_likelihood(simulated(2))
    with pytest.raises(
        UserError,
        match=(
            "expected at least one sequence; received a data set without any. Read or select some"
        ),
    ):
        Hawkes().maximum_likelihood(simulated(2)[:0])


# ---------------------------------------------------------------------- recovery


TABLE = [[0.35, 0.10, 0.05], [0.02, 0.30, 0.20], [0.25, 0.05, 0.15]]


def test_three_types_are_recovered_within_three_standard_errors() -> None:
    truth = Hawkes(3, baseline=[0.2, 0.3, 0.4], branching=TABLE, decay=1.5)
    model, notes = fit(sample(truth, 0.0, 40.0, 200, seed=11), 3)
    for name, value in truth.estimates.items():
        assert (np.abs(model.estimates[name] - value) <= 3 * model.errors[name]).all(), name
        assert (model.errors[name] > 0).all()
    assert model.spectral_radius == pytest.approx(truth.spectral_radius, abs=0.05)
    assert notes[0].startswith("baseline 0.") and len(notes) == 1


def test_two_exponentials_are_recovered_by_rising_decay() -> None:
    truth = Hawkes(baseline=0.5, branching=[[[0.3]], [[0.4]]], decay=[0.2, 5.0], exponentials=2)
    data = sample(truth, 0.0, 100.0, 100, seed=12)
    two, one = fit(data, exponentials=2)[0], fit(data)[0]
    for name, value in truth.estimates.items():
        assert two.estimates[name].shape == two.errors[name].shape == value.shape
        assert (np.abs(two.estimates[name] - value) <= 3 * two.errors[name]).all(), name
    assert height(data, two) > height(data, one) + 100
    assert two.spectral_radius == pytest.approx(two.estimates["branching"].sum())


def test_a_second_exponential_that_is_not_needed_does_no_harm() -> None:
    data = simulated(50, seed=13)
    one, two = fit(data)[0], fit(data, exponentials=2)[0]
    assert -1e-6 < height(data, two) - height(data, one) < 8


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Of 60 intervals of 1.96 standard errors 3 miss the truth, and 11 or more with a chance of 1
    in 6,000.
    """
    truth = dict(baseline=0.5, branching=0.5, decay=1.0)
    everything = sample(Hawkes(**truth), 0.0, 60.0, 60 * 20, seed=14)
    scores = []
    for study in range(60):
        model, _ = fit(everything[20 * study : 20 * study + 20])
        scores.append(
            [((model.estimates[name] - truth[name]) / model.errors[name]).item() for name in truth]
        )
    z = np.array(scores)
    assert np.isfinite(z).all()
    assert (np.sum(np.abs(z) > 1.96, 0) < 11).all()
    assert (np.abs(z.std(0) - 1) < 0.3).all() and (np.abs(z.mean(0)) < 0.5).all()


def test_samples_of_two_exponentials_pass_the_test_of_fit() -> None:
    model = Hawkes(2, baseline=0.6, branching=0.5, decay=1.0, exponentials=2)
    assert goodness_of_fit(model, sample(model, 0.0, 20.0, 200, seed=15)).total.ks_p > 0.01


def test_two_exponentials_go_step_by_step_as_at_once() -> None:
    model = Hawkes(2, exponentials=2)
    sequence = Sequence([0.5, 1.0, 1.0, 4.0], [0, 1, 1, 0], start=0.0, stop=6.0, space=2)
    whole, step = model.encode(sequence.batch()), model.encode(sequence.before(0.1).batch())
    for t, m in zip(sequence.times, sequence.marks, strict=True):
        step = model.extend(step, torch.tensor([t]), torch.tensor([m]))
    at = torch.tensor([[4.5, 6.0]], dtype=torch.float64)
    assert torch.allclose(model.intensity(step, at), model.intensity(whole, at), rtol=1e-13)
    assert step.excitation.shape == (1, 1, 2, 2)


def test_a_fitted_model_is_saved_and_restored(tmp_path: Path) -> None:
    for exponentials, folder in ((1, "one"), (2, "two")):
        model, _ = fit(simulated(20, seed=16), exponentials=exponentials)
        other = restore(save(model, tmp_path / folder))
        assert other.settings() == model.settings()
        for name, value in model.estimates.items():
            assert np.array_equal(other.estimates[name], value)


# ---------------------------------------------------------------------- the search


def test_no_other_start_ends_higher() -> None:
    """L-BFGS in the logarithms of mu, alpha and beta from far and wide, against the fit that takes
    no start at all.
    """
    from scipy.optimize import minimize

    data = simulated(30, seed=17)
    line = timeline(data.times, data.mark_ids, data.offsets, data.starts, data.stops, 1)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        here = derivatives(line, np.exp(x[None, :2]), x[2:], order=1)
        return -here.value, -here.gradient[0] * np.append(np.exp(x[:2]), 1)

    best = height(data, fit(data)[0])
    for alpha, beta in ((0.1, 0.01), (0.5, 1.0), (0.9, 30.0), (0.3, 300.0)):
        found = minimize(
            loss,
            np.log([1.0, alpha, beta]),
            jac=True,
            method="L-BFGS-B",
            options={"gtol": 1e-8, "ftol": 1e-15},
        )
        assert -found.fun <= best + 1e-6


def test_a_starting_value_makes_no_difference() -> None:
    data, found = simulated(20, seed=18), []
    for start in (
        dict(baseline=1e-3, branching=1e-3, decay=1e-6),
        dict(baseline=1e3, branching=3.0, decay=1e6),
    ):
        model = Hawkes(**start)
        model.maximum_likelihood(data)
        found.append([value.item() for value in model.estimates.values()])
    assert found[0] == found[1]


def test_a_search_on_a_part_of_the_events_ends_where_one_on_all_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = clusters(15_000, 19, MU, ALPHA, BETA)
    whole = fit(data)[0]
    monkeypatch.setattr(hawkes_fit, "SAMPLE", 2000)
    monkeypatch.setattr(hawkes_fit, "STRETCH", 500)
    part = fit(data)[0]
    for name, value in whole.estimates.items():
        assert part.estimates[name] == pytest.approx(value, rel=1e-4)
        assert part.errors[name] == pytest.approx(whole.errors[name], rel=1e-3)


def test_a_decay_too_slow_for_a_stretch_of_events_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fades take 400 mean gaps, and the search sees stretches of 100 events."""
    data = clusters(15_000, 20, 0.5, 0.5, 1 / 400)
    monkeypatch.setattr(hawkes_fit, "SAMPLE", 1000)
    monkeypatch.setattr(hawkes_fit, "STRETCH", 100)
    model, _ = fit(data)
    assert abs(model.estimates["decay"].item() - 1 / 400) <= 3 * model.errors["decay"].item()
    assert abs(model.estimates["branching"].item() - 0.5) <= 3 * model.errors["branching"].item()
    two, _ = fit(data, exponentials=2)
    assert height(data, two) >= height(data, model) - 1e-6


@pytest.mark.parametrize(("burst", "winner"), [(0.02, 0), (0.05, 1)])
def test_of_two_time_scales_the_one_that_explains_more_wins(burst: float, winner: int) -> None:
    """Bursts inside waves: the profile of the decay has two maxima, and each of them is the higher
    one in its turn.
    """
    scales = [0.03, 300.0]
    truth = Hawkes(baseline=0.2, branching=[[[0.7]], [[burst]]], decay=scales, exponentials=2)
    data = sample(truth, 0.0, 400.0, 30, seed=21)
    line = timeline(data.times, data.mark_ids, data.offsets, data.starts, data.stops, 1)
    span = hawkes_fit._Span(-15.0, 10.0, False)
    local = [
        hawkes_fit._climbed(line, np.array([[0.3, 0.4]]), np.log([scale]), span) for scale in scales
    ]
    assert (
        local[0].u[0] < local[1].u[0] - 5
        and local[winner].here.value > local[1 - winner].here.value + 10
    )
    model, _ = fit(data)
    assert model.estimates["decay"].item() == pytest.approx(np.exp(local[winner].u[0]), rel=1e-4)


def test_a_search_that_does_not_tell_types_apart_ends_at_the_same_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = sample(
        Hawkes(3, baseline=[0.2, 0.3, 0.4], branching=TABLE, decay=1.5), 0.0, 30.0, 30, seed=22
    )
    apart = fit(data, 3)[0]
    monkeypatch.setattr(hawkes_fit, "FEW", 0)
    pooled = fit(data, 3)[0]
    for name, value in apart.estimates.items():
        assert pooled.estimates[name] == pytest.approx(value, rel=1e-5, abs=1e-9), name


@pytest.mark.parametrize("types", [12, 40])
def test_types_with_fewer_events_than_parameters(types: int) -> None:
    """400 events of types at random, the first far more often: no number can be moved to a higher
    likelihood.
    """
    rng = np.random.default_rng(31)
    times = clusters(400, 32, 0.5, 0.5, 1.0)[0].times
    marks = (
        np.minimum(rng.geometric(0.15, len(times)) - 1, types - 1)
        if types == 12
        else rng.integers(0, types, len(times))
    )
    data = Dataset.from_sequences([Sequence(times, marks, start=0.0, stop=500.0, space=types)])
    found = hawkes_fit.estimate(data)
    line = timeline(data.times, data.mark_ids, data.offsets, data.starts, data.stops, types)
    theta = rows_of(np.where(line.counts > 0, found.baseline, 0.0), found.branching)
    here = derivatives(line, theta, np.log(found.decay))
    gradient = here.gradient[:, :-1]
    assert gradient.max() < 1e-3 and np.abs(np.where(theta > 0, gradient, 0.0)).max() < 1e-3
    assert abs(here.gradient[:, -1].sum()) < 1e-3
    assert (theta[:, 1:] == 0).mean() > 0.3


def test_many_types_are_fitted_without_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sample(
        Hawkes(3, baseline=[0.2, 0.3, 0.4], branching=TABLE, decay=1.5), 0.0, 30.0, 30, seed=22
    )
    newton = fit(data, 3)[0]
    for name in ("FEW", "WIDE"):
        monkeypatch.setattr(hawkes_fit, name, 0)
    wide, notes = fit(data, 3)
    assert height(data, wide) == pytest.approx(height(data, newton), abs=1e-2)
    assert notes[-1] == "3 types are too many for standard errors"
    assert {name: error.shape for name, error in wide.errors.items()} == {
        "baseline": (3,),
        "branching": (3, 3),
        "decay": (),
    }
    assert all(np.isnan(error).all() for error in wide.errors.values())


# ---------------------------------------------------------------------- odd data


def test_decays_are_said_as_delays_in_a_known_unit() -> None:
    data = replace(simulated(), unit="hours")
    notes = fit(data)[1]
    assert re.search(r"mean delay [\d.]+ \([\d.]+\) minutes; standard errors", notes[0])


def test_constant_rates_have_no_excitation_and_no_error_of_it() -> None:
    model, notes = fit(
        Dataset.from_sequences([Sequence(np.arange(1.0, 100.0), start=0.0, stop=100.0)])
    )
    assert (
        model.estimates["branching"].item() == pytest.approx(1e-12)
        and np.isnan(model.errors["branching"]).all()
    )
    assert model.estimates["baseline"].item() == pytest.approx(0.99)
    assert model.errors["baseline"].item() == pytest.approx(math.sqrt(99) / 100)
    assert np.isnan(model.errors["decay"]) and model.estimates["decay"].item() == pytest.approx(
        0.99 / 4
    )
    assert notes == [
        (
            "baseline 0.99 (0.099) per unit of time, branching ratio 0, decay 0.2475; standard "
            "errors in brackets"
        ),
        "no excitation found: the rates are constant, and the decay is not determined",
    ]


@pytest.mark.parametrize("exponentials", [1, 2])
def test_poisson_data_are_fitted_by_hardly_any_excitation(exponentials: int) -> None:
    rng = np.random.default_rng(23)
    data = Dataset.from_sequences(
        [
            Sequence(np.sort(rng.uniform(0, 100, rng.poisson(100))), start=0.0, stop=100.0)
            for _ in range(10)
        ]
    )
    model, _ = fit(data, exponentials=exponentials)
    assert model.spectral_radius < 0.1
    assert (
        0 <= height(data, model) - (data.events * math.log(data.events / 1000) - data.events) < 10
    )


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 1.2], [0.0, 3.0]])
def test_next_to_no_events(times: list[float]) -> None:
    data = Dataset.from_sequences(
        [Sequence(times, start=0.0, stop=4.0), Sequence([], start=0.0, stop=1.0)]
    )
    model, notes = fit(data)
    assert all(np.isfinite(value).all() and (value > 0).all() for value in model.estimates.values())
    assert math.isfinite(height(data, model))
    many = Dataset.from_sequences(
        [Sequence(times, [0] * len(times), start=0.0, stop=4.0, space=12)]
    )
    assert all(np.isfinite(value).all() for value in fit(many, 12, 2)[0].estimates.values())
    if len(times) < 2:
        assert model.estimates["baseline"].item() == pytest.approx(max(len(times), 0.5) / 5)
        assert notes[-1].startswith("no excitation found")


def test_a_type_that_never_happens_counts_as_half_an_event() -> None:
    data = simulated(20, seed=24)
    marks = 3 * (np.arange(data.events) % 2)
    five = Dataset(data.times, marks, data.offsets, data.starts, data.stops, MarkSpace.of(5))
    model, notes = fit(five, 5)
    expected = "3 of 5 types have no events: each is treated as half an event that excites nothing"
    assert expected in notes
    assert model.estimates["baseline"][[1, 2, 4]] == pytest.approx(0.5 / (20 * 25))
    assert (
        np.isnan(model.errors["branching"][:, [1, 2, 4]]).all()
        and np.isnan(model.errors["branching"][[1, 2, 4]]).all()
    )
    assert np.isfinite(model.errors["baseline"][[0, 3]]).all() and np.isfinite(
        model.errors["decay"]
    )
    assert math.isfinite(height(five, model))


def test_ties_do_not_lead_to_an_endless_decay() -> None:
    """Rounded to a tenth of the fade, 14% of the gaps are 0 and the likelihood has no maximum, but
    a local one near the truth.
    """
    data = sample(Hawkes(baseline=0.5, branching=0.6, decay=1.0), 0.0, 50.0, 100, seed=25)
    rounded = Dataset(
        np.floor(data.times * 10) / 10, data.mark_ids, data.offsets, data.starts, data.stops
    )
    assert rounded.tied > 0.05
    model, notes = fit(rounded)
    assert model.estimates["decay"].item() == pytest.approx(1.0, rel=0.25) and len(notes) == 1
    same = Dataset(np.floor(data.times), data.mark_ids, data.offsets, data.starts, data.stops)
    model, notes = fit(same)
    assert "is at the end of the searched range; " in notes[-1] and np.isnan(model.errors["decay"])


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_of_any_size(unit: float) -> None:
    data = simulated(20, seed=26, shift=3.0)
    scaled = Dataset(
        data.times * unit, data.mark_ids, data.offsets, data.starts * unit, data.stops * unit
    )
    one, other = fit(data)[0], fit(scaled)[0]
    assert other.estimates["branching"] == pytest.approx(one.estimates["branching"], rel=1e-6)
    for name, power in (("baseline", 1), ("decay", 1)):
        assert other.estimates[name] * unit**power == pytest.approx(one.estimates[name], rel=1e-6)
        assert other.errors[name] * unit**power == pytest.approx(one.errors[name], rel=1e-6)


def test_windows_of_different_lengths() -> None:
    """Cutting windows short takes events away but no truth."""
    long, short = simulated(60, seed=27), simulated(200, stop=6.0, seed=28)
    data = Dataset.from_sequences(
        [*long, *short, *(Sequence([], start=0.0, stop=0.01) for _ in range(3))]
    )
    model, _ = fit(data)
    for name, truth in (("baseline", MU), ("branching", ALPHA), ("decay", BETA)):
        assert abs(model.estimates[name].item() - truth) <= 3 * model.errors[name].item(), name


def test_rare_bursts_are_resolved() -> None:
    """The decay is a hundred times the mean rate."""
    data = sample(Hawkes(baseline=0.002, branching=0.8, decay=1.0), 0.0, 5000.0, 60, seed=29)
    model, _ = fit(data)
    assert abs(model.estimates["decay"].item() - 1.0) <= 3 * model.errors["decay"].item()


def test_an_explosive_process_is_fitted_and_announced() -> None:
    data = sample(Hawkes(baseline=2.0, branching=1.4, decay=1.0), 0.0, 4.0, 200, seed=30)
    model, notes = fit(data)
    assert model.spectral_radius > 1
    assert notes[-1] == (
        f"the branching ratio {model.spectral_radius:.3f} is 1 or more: forecasts beyond the "
        "training window explode"
    )


def test_effects_of_past_events_equal_encoding_without_each() -> None:
    model = Hawkes(
        MarkSpace.categorical(2),
        baseline=[0.5, 0.3],
        branching=[[[0.3, 0.2], [0.1, 0.4]], [[0.05, 0.1], [0.2, 0.02]]],
        decay=[2.0, 0.3],
        exponentials=2,
    )
    past = Sequence([0.5, 1.0, 1.0, 2.5, 4.0], [0, 1, 0, 1, 1], start=0.0, stop=6.0)
    whole = model.intensity(model.encode(past.batch()), torch.tensor([[5.0]]).double())[0, 0]
    found = explain(model, past, at=5.0)
    for i in range(len(past)):
        kept = np.arange(len(past)) != i
        fewer = past.piece(kept, 0.0, 6.0, inferred=False)
        rate = model.intensity(model.encode(fewer.batch()), torch.tensor([[5.0]]).double())[0, 0]
        np.testing.assert_allclose(found.effects[i], (whole - rate).detach().numpy(), rtol=1e-10)
    history = model.encode(past.batch())
    assert model.without(history, torch.tensor([[1.0, 5.0]]).double()) is not None
    # An event that is not seen is not left out.
    rates = model.without(history, torch.tensor([[0.7]]).double())
    assert rates is not None
    assert torch.equal(rates[0, 0, 1], rates[0, 0, 4]) and not torch.equal(
        rates[0, 0, 0], rates[0, 0, 1]
    )


def test_intervals_with_many_types_hold_the_truth() -> None:
    """Of 12 types, most of whose ratios are 0."""
    rng = np.random.default_rng(5)
    types = 12
    truth = np.diag(np.full(types, 0.15))
    truth[rng.permutation(types)[:5], rng.permutation(types)[:5]] = 0.5
    made = Hawkes(types, baseline=0.01, branching=np.maximum(truth, 1e-12).tolist(), decay=0.25)
    data = sample(made, 0.0, 20_000.0, 1, seed=3)
    model = Hawkes(data.marks)
    model.maximum_likelihood(data)
    found = model.intervals()
    low, high = np.moveaxis(found["branching"], -1, 0)
    estimate = model.estimates["branching"]
    inner = truth > 0.4
    assert (low[inner] < 0.95 * estimate[inner]).all()
    assert (high[inner] > 1.05 * estimate[inner]).all()
    held = (low <= truth) & (truth <= high)
    assert held[truth > 0].mean() > 0.85 and held[truth == 0].mean() > 0.9
    assert found["decay"][..., 0].item() < 0.25 < found["decay"][..., 1].item()
