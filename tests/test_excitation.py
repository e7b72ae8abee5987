"""The likelihood of a Hawkes process against a sum over all pairs of events, its derivatives
against autograd, in every form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fourpoint import kernels
from fourpoint.events import Steps
from fourpoint.kernels import conditions
from fourpoint.ops import ages, excitation
from fourpoint.ops.ages import Timeline, timeline
from fourpoint.ops.excitation import Derivatives, Design, derivatives, log_likelihood, rows_of
from fourpoint.ops.newton import Point, climb, standard_errors

SIZES = [(1, 1), (3, 1), (1, 2), (3, 2)]  # types, decays
Sequences = list[tuple[np.ndarray, np.ndarray, float, float]]  # times, marks, start, stop


def sequences(types: int, counts: tuple[int, ...] = (7, 0, 25, 1, 0, 40)) -> Sequences:
    """Windows that start anywhere, with ties, some of them empty."""
    rng = np.random.default_rng(3)
    found = []
    for i, n in enumerate(counts):
        times = np.sort(rng.uniform(100 * i, 100 * i + 20, n))
        times[3:5] = times[2:3] if n > 4 else times[3:5]
        found.append((times, rng.integers(0, types, n), 100.0 * i - 1, 100.0 * i + 21 + i))
    return found


def weight_of(parts: Sequences) -> Steps:
    """A weight of time in every window: 0 in a history period, then steps between events and beyond
    both ends, one of them 0 where nothing happened, and one at the time of an event.
    """
    found = []
    for times, _, start, stop in parts:
        levels = [(start - 3.0, 0.0), (start + 5.0, 2.0), (start + 11.3, 0.5), (stop + 1.0, 0.0)]
        later = times[times > start + 12]
        if len(later) > 3:
            middle = (later[1] + later[2]) / 2
            levels[3:3] = [(float(later[0]), 3.0), (middle, 0.0), (float(later[2]), 1.0)]
        when, values = np.array(levels).T
        found.append(Steps(("e",), when, values[:, None], np.array([0, len(levels)])))
    return Steps.join(found)


def laid(parts: Sequences, types: int, unit: float = 1.0, weight: Steps | None = None) -> Timeline:
    times, marks = (np.concatenate([p[k] for p in parts]) for k in (0, 1))
    offsets = np.concatenate([[0], np.cumsum([len(p[0]) for p in parts])])
    starts, stops = (np.array([p[k] for p in parts]) for k in (2, 3))
    return timeline(times, marks, offsets, starts, stops, types, unit, weight)


def numbers(types: int, decays: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(10 * types + decays)
    return (
        rng.uniform(0.2, 1, types),
        rng.uniform(0.05, 0.4, (decays, types, types)),
        np.array([1.3, 0.2, 6.0])[:decays],
    )


def brute_force(parts: Sequences, theta: Tensor, u: Tensor, weight: Steps | None = None) -> Tensor:
    """Equation by equation over all pairs of events, and over all pieces of time of one weight."""
    M, beta = len(theta), u.exp()
    mu, alpha = theta[:, 0], theta[:, 1:].reshape(M, len(u), M)
    total = torch.zeros((), dtype=torch.float64)
    for i, (times, marks, start, stop) in enumerate(parts):
        t, m = torch.from_numpy(times), torch.from_numpy(marks)
        ages = t[:, None] - t
        before = torch.arange(len(t)) < torch.arange(len(t))[:, None]
        kernel = torch.where(
            before[..., None],
            beta * torch.exp(-beta * torch.where(before, ages, 0.0)[..., None]),
            0.0,
        )
        rate = mu[m] + (alpha[m][:, :, m].permute(0, 2, 1) * kernel).sum((1, 2))
        if weight is None:
            kept = alpha[:, :, m].sum(0).T * -torch.expm1(-beta * (stop - t)[:, None])
            total = total + rate.log().sum() - mu.sum() * (stop - start) - kept.sum()
            continue
        total = total + rate.log()[torch.from_numpy(weight.at(i, times)[:, 0] > 0)].sum()
        steps = weight.times[weight.row(i)].clip(start, stop)
        edges = np.unique(np.concatenate([[start, stop], times, steps]))
        for a, b, e in zip(edges[:-1], edges[1:], weight.at(i, edges[:-1])[:, 0], strict=True):
            early = t <= a
            ages = a - t[early][:, None]
            fallen = torch.exp(-beta * ages) - torch.exp(-beta * (ages + b - a))
            kept = alpha[:, :, m[early]].sum(0).T * fallen
            total = total - e * (mu.sum() * (b - a) + kept.sum())
    return total


@pytest.fixture(params=["scans", "compiled loops"])
def way(request: pytest.FixtureRequest) -> bool:
    """Each form of the pass; what is handed out is the argument ``compiled``."""
    return bool(request.param != "scans")


@pytest.mark.parametrize(("types", "decays"), SIZES)
def test_the_value_is_the_sum_over_all_pairs(types: int, decays: int, way: bool) -> None:
    parts, (mu, alpha, beta) = sequences(types), numbers(types, decays)
    expected = brute_force(
        parts, torch.from_numpy(rows_of(mu, alpha)), torch.from_numpy(beta).log()
    ).item()
    assert log_likelihood(laid(parts, types), mu, alpha, beta, compiled=way) == pytest.approx(
        expected, abs=1e-9, rel=0
    )


@pytest.mark.parametrize("weighted", [False, True], ids=["all time", "weighted time"])
@pytest.mark.parametrize(("types", "decays"), SIZES)
def test_gradient_and_curvature_are_those_of_autograd(
    types: int, decays: int, weighted: bool, way: bool
) -> None:
    parts, (mu, alpha, beta) = sequences(types), numbers(types, decays)
    weight = weight_of(parts) if weighted else None
    theta, u, line = rows_of(mu, alpha), np.log(beta), laid(parts, types, weight=weight)
    W, V = theta.shape[1], theta.shape[1] + decays

    def loss(flat: Tensor) -> Tensor:
        own = flat[: theta.size].reshape(theta.shape)
        return brute_force(parts, own, flat[theta.size :], weight)

    flat = torch.from_numpy(np.append(theta, u))
    gradient = torch.autograd.functional.jacobian(loss, flat).numpy()
    curvature = torch.autograd.functional.hessian(loss, flat).numpy()
    for order in (1, 2):
        found = derivatives(line, theta, u, order=order, compiled=way)
        assert found.value == pytest.approx(loss(flat).item(), abs=1e-9, rel=0)
        assert np.append(found.gradient[:, :W], found.gradient[:, W:].sum(0)) == pytest.approx(
            gradient, rel=1e-9, abs=1e-9
        )
    joined = np.zeros_like(curvature)
    for m in range(types):
        place = np.append(np.arange(W) + m * W, np.arange(decays) + theta.size)
        joined[np.ix_(place, place)] += found.curvature[m]
    assert found.curvature.shape == (types, V, V)
    assert joined == pytest.approx(curvature, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("weighted", [False, True], ids=["all time", "weighted time"])
@pytest.mark.parametrize(("types", "decays"), SIZES)
def test_a_design_is_the_likelihood_at_fixed_decays(
    types: int, decays: int, weighted: bool
) -> None:
    parts, (mu, alpha, beta) = sequences(types), numbers(types, decays)
    line = laid(parts, types, weight=weight_of(parts) if weighted else None)
    theta, u = rows_of(mu, alpha), np.log(beta)
    W = theta.shape[1]
    fixed, free = Design(line, u).derivatives(theta), derivatives(line, theta, u, compiled=False)
    assert fixed.value == pytest.approx(free.value, abs=1e-9)
    assert fixed.gradient == pytest.approx(free.gradient[:, :W], abs=1e-9)
    assert fixed.curvature == pytest.approx(free.curvature[:, :W, :W], abs=1e-9)


@pytest.mark.parametrize(("types", "decays"), [(1, 1), (2, 2)])
def test_blocks_of_a_long_sequence_follow_each_other(
    types: int, decays: int, way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ages, "SCANNED", 2)  # blocks of 1,024 events
    monkeypatch.setattr(excitation, "LOOPED", 2)
    parts, (mu, alpha, beta) = sequences(types, (2500, 30, 1023)), numbers(types, decays)
    theta, u = rows_of(mu, alpha / 4), np.log(100 * beta)
    expected = brute_force(parts, torch.from_numpy(theta), torch.from_numpy(u)).item()
    found = derivatives(laid(parts, types), theta, u, compiled=way)
    assert found.value == pytest.approx(expected, abs=1e-9, rel=0)
    monkeypatch.undo()
    other = derivatives(laid(parts, types), theta, u, compiled=False)
    for one, two in zip(
        (found.gradient, found.curvature), (other.gradient, other.curvature), strict=True
    ):
        assert one == pytest.approx(two, rel=1e-10, abs=1e-9)


@pytest.mark.parametrize("decay", [1e-9, 1e9])
def test_the_slowest_and_the_fastest_decays_stay_finite(decay: float, way: bool) -> None:
    parts = sequences(1)
    theta, u = np.array([[0.7, 0.4]]), np.log([decay])
    expected = brute_force(parts, torch.from_numpy(theta), torch.from_numpy(u)).item()
    found = derivatives(laid(parts, 1), theta, u, compiled=way)
    assert found.value == pytest.approx(expected, abs=1e-9, rel=0)
    assert np.isfinite(found.gradient).all() and np.isfinite(found.curvature).all()


def test_an_event_without_a_rate_has_no_likelihood(way: bool) -> None:
    line = laid(sequences(2), 2)
    assert (
        derivatives(
            line, np.array([[0.5, 0.1, 0.1], [0.0, 0.0, 0.0]]), np.zeros(1), compiled=way
        ).value
        == -np.inf
    )


def test_nothing_happened(way: bool) -> None:
    found = derivatives(
        laid([(np.zeros(0), np.zeros(0, dtype=np.int64), 0.0, 5.0)], 1),
        np.array([[0.5, 0.3]]),
        np.zeros(1),
        compiled=way,
    )
    assert (
        found.value == -2.5
        and found.gradient.tolist() == [[-5.0, 0.0, 0.0]]
        and not found.curvature.any()
    )


def test_the_unit_of_time_only_shifts_the_value(way: bool) -> None:
    parts, (mu, alpha, beta) = sequences(3), numbers(3, 1)
    one, thousand = (
        log_likelihood(laid(parts, 3, unit), mu * unit, alpha, beta * unit, compiled=way)
        for unit in (1.0, 1000.0)
    )
    assert thousand - one == pytest.approx(sum(len(p[0]) for p in parts) * np.log(1000), abs=1e-9)


def test_little_work_is_not_worth_loading_a_compiler_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(kernels, "installed", lambda compiler: bool(calls.append(compiler)))
    line = laid(sequences(1), 1)
    derivatives(line, np.array([[0.5, 0.3]]), np.zeros(1))
    assert not calls
    monkeypatch.setattr(conditions, "EXCITATION_WORK", len(line.gaps))
    with pytest.warns(kernels.MissingCompiler):
        derivatives(line, np.array([[0.5, 0.3]]), np.zeros(1))
    assert calls == ["numba"]
    kernels.report_missing.cache_clear()


# ---------------------------------------------------------------------- Newton's method


def quadratic(
    top: np.ndarray, border: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], Derivatives]:
    """-|theta - top|^2 / 2 + theta B (u - 1) - 2 (u - 1)^2, of one row."""

    def likelihood(theta: np.ndarray, u: np.ndarray) -> Derivatives:
        off, turn = theta[0] - top, u[0] - 1
        value = -(off @ off) / 2 + (theta[0] @ border) * turn - 2 * turn**2
        gradient = np.append(-off + border * turn, theta[0] @ border - 4 * turn)
        curvature = -np.diag([1.0] * len(top) + [4.0])
        curvature[:-1, -1] = curvature[-1, :-1] = border
        return Derivatives(np.array([value]), gradient[None], curvature[None])

    return likelihood


def test_a_quadratic_is_climbed_in_one_step() -> None:
    likelihood = quadratic(np.array([2.0, 3.0]), np.array([0.5, -0.2]))
    calls = []
    at = climb(
        lambda t, u: calls.append(1) or likelihood(t, u),
        np.ones((1, 2)),
        np.array([0.9]),
        -5.0,
        5.0,
    )
    assert np.abs(at.here.gradient).max() < 1e-9 and len(calls) == 2
    errors, u_errors = standard_errors(at, -5.0, 5.0)
    expected = np.sqrt(np.linalg.inv(-at.here.curvature[0]).diagonal())
    assert np.append(errors, u_errors) == pytest.approx(expected)


def test_bounds_hold_and_what_lies_on_them_has_no_error() -> None:
    at = climb(
        quadratic(np.array([2.0, -3.0]), np.array([0.5, 0.5])),
        np.ones((1, 2)),
        np.array([0.0]),
        -5.0,
        0.8,
    )
    assert at.theta[0, 1] == 0.0 and at.u[0] == 0.8
    assert at.theta[0, 0] == pytest.approx(2 - 0.5 * 0.2)
    errors, u_errors = standard_errors(at, -5.0, 0.8)
    assert errors[0, 0] == pytest.approx(1.0) and np.isnan(errors[0, 1]) and np.isnan(u_errors[0])


def test_what_the_data_do_not_determine_has_no_error() -> None:
    """Only the sum of two numbers counts: neither has an error, the third has its own."""
    curvature = -np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 4.0]])
    at = Point(
        np.ones((1, 3)), np.zeros(0), Derivatives(np.zeros(1), np.zeros((1, 3)), curvature[None])
    )
    errors, _ = standard_errors(at, 0.0, 0.0)
    assert np.isnan(errors[0, :2]).all() and errors[0, 2] == pytest.approx(0.5)
