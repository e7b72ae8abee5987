"""Verdicts on fits and scores of predictions: compensators, calibration, and distances against
brute force.
"""

import json
from itertools import permutations
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from test_laws import BOXED, CASES, build, data
from variants import without_closed_form

from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.goodness import compensators, gap_integrals, goodness_of_fit
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.predictions import crps_of_sample, prediction_scores, transport_distance
from fourpoint.inference.sampling import sample
from fourpoint.models import Hawkes, Poisson

TRUE = Hawkes(baseline=10.0, branching=1.0, decay=1.0)


@pytest.mark.parametrize(("name", "marks"), CASES + BOXED)
def test_compensators_sum_to_the_likelihoods_integral(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    found = compensators(model, batch, tolerance=1e-8)
    assert found.shape == (*batch.edges[:, 1:].shape, marks) and bool((found >= 0).all())
    with torch.no_grad():
        integral = log_likelihood(model, batch, tolerance=1e-8).integral
    assert torch.allclose(found.sum((1, 2)), integral, rtol=1e-5)


@pytest.mark.parametrize(("name", "marks"), [("nhp", 2), ("deep", 3), ("hawkes", 2)])
def test_gaps_have_the_sum_of_their_marks_integrals(name: str, marks: int) -> None:
    model, batch = build(name, marks), data(marks, name=name).batch()
    value, error = gap_integrals(model, batch, tolerance=1e-6)
    exact = compensators(model, batch, tolerance=1e-9).sum(-1)
    assert ((value - exact).abs() <= error + 1e-9).all() and float(error.sum()) <= 1e-6 * int(
        batch.lengths.sum()
    )


def test_compensators_equal_the_closed_form() -> None:
    model, batch = build("hawkes", 3), data(3).batch()
    exact = compensators(model, batch)
    hidden: Any = without_closed_form(model)
    assert torch.allclose(compensators(hidden, batch, tolerance=1e-9), exact, atol=1e-9)


@pytest.mark.parametrize("name", ["hawkes", "sum", "spline-poisson"])
def test_blocks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build(name, 3), data(3).batch()
    whole = compensators(model, batch, tolerance=1e-9)
    monkeypatch.setattr("fourpoint.inference.likelihood.BLOCK", 3)
    assert torch.allclose(compensators(model, batch, tolerance=1e-9), whole, atol=1e-8)


def test_the_truth_passes_and_a_constant_fails() -> None:
    events = simulate("self_correcting", 300, seed=4)
    constant = Poisson()
    constant.initialise(events)
    assert goodness_of_fit(constant, events).total.ks_p < 1e-6
    hawkes = simulate("hawkes", 300, seed=4)
    total = goodness_of_fit(TRUE, hawkes).total
    assert min(total.ks_p, total.uniform_p, total.ljung_box_p) > 1e-3


def test_verdicts_per_mark() -> None:
    model = Hawkes(MarkSpace.categorical(["fire", "medical"]), baseline=2.0, branching=0.5)
    events = sample(model, 0.0, 5.0, 100, seed=2)
    found = goodness_of_fit(model, events)
    assert (
        list(found.marks) == ["fire", "medical"]
        and sum(v.count for v in found.marks.values()) == events.events
    )
    assert all(v.ks_p > 1e-3 for v in found.marks.values())
    assert sum(v.expected for v in found.marks.values()) == pytest.approx(found.total.expected)
    assert (
        len(found.residuals) == 100
        and sum(len(r) for r in found.residuals.values()) == events.events
    )
    assert (
        "medical" in str(found)
        and json.loads(json.dumps(found.to_dict()))["marks"]["fire"]["count"] > 0
    )
    for mark in (None, "fire"):
        plt.close(found.plot(mark).figure)


def test_predictions_of_a_poisson_process() -> None:
    model = Poisson()
    with torch.no_grad():
        model.log_rate.fill_(np.log(4.0))
    events = sample(model, 0.0, 200.0, 5, seed=3)
    scores = prediction_scores(model, events, events=2000, origins=20, paths=40)
    n = scores.next_event
    gaps = np.concatenate([np.diff(s.times, prepend=0.0) for s in events])
    # For an exponential law with mean 1/4: sd, mean distance from the median, and CRPS (half of
    # that about the mean).
    assert n.rmse == pytest.approx(gaps.std(), rel=0.05) and n.mae == pytest.approx(
        np.log(2) / 4, rel=0.08
    )
    assert n.crps == pytest.approx(0.125, rel=0.08) and n.coverage == pytest.approx(0.9, abs=0.03)
    assert n.accuracy is None and n.log_loss is None
    assert scores.horizon is not None and scores.horizon.horizon == pytest.approx(
        10 * 1000 / events.events
    )


def test_coverage_is_calibrated_on_short_windows() -> None:
    scores = prediction_scores(
        TRUE, simulate("hawkes", 400, seed=5), events=2500, origins=0
    ).next_event
    assert scores.coverage == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 2500))


def test_the_truth_predicts_better() -> None:
    model = Hawkes(2, baseline=0.4, branching=0.9, decay=4.0)
    with torch.no_grad():
        model.log_branching.copy_(torch.tensor([[0.85, 0.05], [0.05, 0.85]]).log())
    events = sample(model, 0.0, 50.0, 10, seed=6)
    constant = Poisson(2)
    constant.initialise(events)
    ours, theirs = (
        prediction_scores(m, events, events=800, origins=30, paths=30, horizon=2.0)
        for m in (model, constant)
    )
    assert (
        ours.next_event.crps < theirs.next_event.crps
        and ours.next_event.log_loss < theirs.next_event.log_loss
    )
    assert ours.next_event.accuracy > 0.7 > theirs.next_event.accuracy
    assert ours.horizon.count_crps.sum() < theirs.horizon.count_crps.sum()
    assert "mark log-loss" in str(ours) and set(ours.to_dict()) >= {
        "time_rmse",
        "coverage_90",
        "mark_accuracy",
        "count_crps",
        "otd",
    }


def test_predictions_ignore_the_future_and_ties_are_scored() -> None:
    tied = Dataset.from_sequences([Sequence([1.0, 1.0, 2.0], start=0.0, stop=3.0)])
    scores = prediction_scores(TRUE, tied, origins=0).next_event
    assert scores.events == 3 and np.isfinite(scores.crps)
    with torch.no_grad():
        whole = compensators(TRUE, tied.batch())
        early = compensators(TRUE, Dataset.from_sequences([tied[0].before(1.5)]).batch())
    assert torch.equal(whole[:, :2], early[:, :2])


def test_sample_crps_equals_its_definition() -> None:
    rng = np.random.default_rng(7)
    draws, truth = rng.normal(size=(30, 4)), rng.normal(size=4)
    pairs = np.abs(draws[:, None] - draws).sum((0, 1)) / (30 * 29)
    assert crps_of_sample(draws, truth) == pytest.approx(np.abs(draws - truth).mean(0) - pairs / 2)


def brute_force(a: np.ndarray, b: np.ndarray, cost: float) -> float:
    """All one-to-one matchings of one type."""
    best = cost * (len(a) + len(b))
    for k in range(1, min(len(a), len(b)) + 1):
        for left in permutations(range(len(a)), k):
            for right in permutations(range(len(b)), k):
                moved = sum(abs(a[i] - b[j]) for i, j in zip(left, right, strict=True))
                best = min(best, moved + cost * (len(a) + len(b) - 2 * k))
    return best


def test_transport_distance_is_the_least() -> None:
    rng = np.random.default_rng(8)
    for _ in range(30):
        a, b = (np.sort(rng.uniform(0, 4, rng.integers(0, 4))) for _ in range(2))
        one = np.zeros(9, dtype=int)
        assert transport_distance(a, one[: len(a)], b, one[: len(b)], 0.7) == pytest.approx(
            brute_force(a, b, 0.7)
        )
    a, marks = np.array([1.0, 2.0]), np.array([0, 1])
    assert transport_distance(a, marks, a, marks, 1.0) == 0
    assert transport_distance(a, marks, a, marks[::-1], 0.25) == pytest.approx(1.0)


def test_wrong_calls_are_refused() -> None:
    events = simulate("hawkes", 3)
    for score in (goodness_of_fit, prediction_scores):
        with pytest.raises(UserError, match="data with 2 types, .* received no marks"):
            score(Hawkes(2), events)
    with pytest.raises(UserError, match="a positive horizon; received -1"):
        prediction_scores(TRUE, events, horizon=-1.0)
    with pytest.raises(UserError, match="data with at least one event"):
        prediction_scores(TRUE, Dataset.from_sequences([Sequence([], start=0, stop=1)]))
    far = prediction_scores(TRUE, events, horizon=5.0)
    assert far.horizon is None and "origins" not in far.to_dict()
