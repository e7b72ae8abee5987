"""Confidence intervals of Hawkes parameters: exact cases, the boundary, and coverage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.sampling import sample
from fourpoint.models import Hawkes, hawkes_fit
from fourpoint.ops.excitation import derivatives, third_derivatives
from fourpoint.ops.newton import Point, information, profile_directions
from fourpoint.ops.profiles import Profile

QUANTILE = 3.841458820694124  # of chi-squared with one degree of freedom, at 95%


def profile(estimate: float, gradient: float, curvature: float, third: float) -> Profile:
    return Profile(*(np.array(x) for x in (estimate, gradient, curvature, third)))


@pytest.mark.parametrize("events", [3, 30, 3000])
def test_the_profile_of_a_poisson_rate_is_exact(events: int) -> None:
    rate = events / 10.0
    found = profile(rate, 0.0, events / rate**2, 2 * events / rate**3)
    for limit in found.interval():
        ratio = 2 * (events * np.log(rate / limit) - 10 * (rate - limit))
        assert ratio == pytest.approx(QUANTILE, rel=1e-8)
    assert found.deviance(1.3 * rate) == pytest.approx(2 * events * (0.3 - np.log(1.3)), rel=1e-6)


def test_without_skewness_the_interval_is_walds() -> None:
    found = profile(2.0, 0.0, 4.0, 0.0)
    assert found.interval(0.9) == pytest.approx(2 + np.array([-1, 1]) * 1.6448536 / 2, rel=1e-6)
    assert found.deviance(0.0) == pytest.approx(16.0)
    log = Profile(*(np.array(x) for x in (2.0, 0.0, 4.0, 0.0)), logarithmic=True)
    assert log.interval() == pytest.approx(2 * np.exp(np.array([-1, 1]) * 1.959964 / 2), rel=1e-6)


def test_on_the_edge_the_interval_begins_at_0_and_is_shorter() -> None:
    inside, edge = profile(0.0, 0.0, 100.0, 0.0), profile(0.0, -20.0, 100.0, 0.0)
    assert inside.interval()[0] == edge.interval()[0] == 0.0
    assert 0 < edge.interval()[1] < inside.interval()[1] == pytest.approx(0.1959964, rel=1e-6)
    unknown = profile(0.5, 0.0, np.nan, 0.0)
    assert np.isnan(unknown.interval()).all() and np.isnan(unknown.deviance())


def test_third_derivatives_are_differences_of_curvatures() -> None:
    """Along the profile of a branching ratio of one type, with its decay."""
    data = sample(Hawkes(baseline=0.5, branching=0.5, decay=1.0), 0.0, 200.0, 4, seed=3)
    line = hawkes_fit._line(data, 1.0)
    found = hawkes_fit.estimate(data)
    theta = np.array([[found.baseline[0], found.branching[0, 0, 0]]])
    u = np.log(found.decay)
    at = Point(theta, u, derivatives(line, theta, u))
    inverse = information(at, -20.0, 20.0, beyond=True)
    assert inverse is not None
    ways = profile_directions(at, inverse)
    for k in (0, 1):
        way = ways.rows[0, k]
        step = 1e-3 / np.sqrt(ways.curvature[0, k])

        def bend(x: float, way: np.ndarray = way) -> float:
            here = derivatives(line, theta + x * way[:2], u + x * way[2:])
            return float(way @ here.curvature[0] @ way)

        numeric = (bend(step) - bend(-step)) / (2 * step)
        exact = third_derivatives(line, theta, u, ways.rows)[0, k]
        # What is left out has mean 0; it is small beside what skewness is for.
        scale = ways.curvature[0, k] ** 1.5
        assert exact / scale == pytest.approx(numeric / scale, abs=0.05)


def test_intervals_are_those_of_the_likelihood_ratio() -> None:
    """With one type and few events: the profile, maximised over the others by simplex steps."""
    data = sample(Hawkes(baseline=0.5, branching=0.5, decay=1.0), 0.0, 200.0, 3, seed=5)
    model = Hawkes()
    model.maximum_likelihood(data)
    line = hawkes_fit._line(data, 1.0)
    mu, alpha, beta = (model.estimates[name].item() for name in ("baseline", "branching", "decay"))

    def height(log_mu: float, log_beta: float, ratio: float) -> float:
        theta = np.array([[np.exp(log_mu), ratio]])
        return derivatives(line, theta, np.array([log_beta]), order=0).value

    start = np.log([mu, beta])
    for limit in model.intervals()["branching"].ravel().tolist():
        found = minimize(lambda x, at=limit: -height(*x, at), start, method="Nelder-Mead", tol=1e-3)
        drop = height(*start, alpha) + found.fun
        assert 2 * drop == pytest.approx(QUANTILE, rel=0.1)


def test_intervals_cover_the_truth() -> None:
    """12 data sets of three types with zeros; binomial limits of 1 in 1,000."""
    branching = np.array([[0.4, 0.0, 0.1], [0.2, 0.3, 0.0], [0.0, 0.0, 0.2]])
    truth = Hawkes(3, baseline=0.4, branching=np.maximum(branching, 1e-12).tolist(), decay=2.0)
    everything = sample(truth, 0.0, 60.0, 12 * 8, seed=2)
    held = []
    for k in range(12):
        model = Hawkes(3)
        model.maximum_likelihood(everything[8 * k : 8 * k + 8])
        limits = model.intervals()["branching"]
        held.append((limits[..., 0] <= branching) & (branching <= limits[..., 1]))
        assert (limits[..., 0] <= model.estimates["branching"]).all()
        assert (model.estimates["branching"] <= limits[..., 1]).all()
    each = np.array(held)
    assert 0.84 <= each[:, branching > 0].mean() <= 1.0
    assert 0.88 <= each[:, branching == 0].mean() <= 1.0


def test_what_the_data_do_not_determine_has_no_interval() -> None:
    space = MarkSpace.categorical(["a", "b"])
    times = np.cumsum(np.random.default_rng(0).exponential(size=60))
    one = Sequence(times, np.zeros(60, dtype=np.int64), start=0.0, stop=80.0, space=space)
    model = Hawkes(space)
    model.maximum_likelihood(Dataset.from_sequences([one]))
    found = model.intervals()
    assert np.isfinite(found["baseline"][0]).all() and np.isnan(found["baseline"][1]).all()
    assert np.isnan(found["branching"][:, 1]).all() and np.isnan(found["branching"][1]).all()


def test_errors_have_three_clauses() -> None:
    with pytest.raises(UserError, match="fitted Hawkes process.*which has none.*Fit it"):
        Hawkes(2).intervals()
    model = Hawkes()
    model.maximum_likelihood(simulate("hawkes", 20, seed=1))
    with pytest.raises(UserError, match="between 0 and 1; received 95"):
        model.intervals(95.0)


def test_covariates_leave_intervals() -> None:
    from fourpoint.events import Context
    from fourpoint.events.context import Steps
    from fourpoint.models.effects import EffectsSpec

    plain = sample(Hawkes(baseline=2.0, branching=0.5, decay=3.0), 0.0, 40.0, 5, seed=4)
    covariates = Steps.constant(("age",), np.arange(5.0)[:, None])
    data = replace(plain, context=Context(covariates=covariates))
    model = Hawkes()
    model.add_effects(EffectsSpec(covariates=("age",), mean=(2.0,), scale=(1.5,)))
    model.maximum_likelihood(data)
    bare = Hawkes()
    bare.maximum_likelihood(plain)
    for name, limits in model.intervals().items():
        value = model.estimates[name].item()
        assert limits.ravel()[0] < value < limits.ravel()[1]
        width, other = (np.ptp(one.intervals()[name]) for one in (model, bare))
        assert width == pytest.approx(other, rel=0.25)
