"""Quadrature: it converges, its error estimate is an upper one, random nodes are unbiased, and it
never gives up silently.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fourpoint.ops.quadrature import (
    END_CUTS,
    Unconverged,
    early,
    gauss_legendre,
    integrate,
    integrate_each,
    integrate_in_log_time,
    negligible,
    stratified,
    uniform,
)


def interval(a: float, b: float) -> tuple[Tensor, Tensor]:
    return torch.tensor([[a]], dtype=torch.float64), torch.tensor([[b]], dtype=torch.float64)


def assert_upper(f, exact: float, a: float, b: float, tolerance: float) -> None:
    """The reported error is under the tolerance and not under the true one, but for the rounding of
    the closed form.
    """
    value, error = integrate(lambda t, _: f(t), *interval(a, b), tolerance=tolerance)
    assert error.item() <= tolerance
    assert abs(value.item() - exact) <= error.item() + 1e-14


numbers = st.floats
tolerances = st.sampled_from([1e-3, 1e-4, 1e-6, 1e-9])


@settings(max_examples=150)
@given(
    numbers(0.1, 5),
    numbers(-20, 20).filter(lambda r: abs(r) > 1e-3),
    numbers(-3, 3),
    numbers(0.01, 4),
    tolerances,
)
def test_the_error_is_an_upper_estimate_for_exponentials(
    height: float, rate: float, a: float, length: float, tolerance: float
) -> None:
    exact = height * -math.expm1(-abs(rate) * length) / abs(rate)
    top = a + length if rate > 0 else a
    assert_upper(lambda t: height * torch.exp(rate * (t - top)), exact, a, a + length, tolerance)


@settings(max_examples=150)
@given(
    numbers(0.1, 5),
    numbers(0.01, 60),
    numbers(0, 6.3),
    numbers(-3, 3),
    numbers(0.01, 2),
    tolerances,
)
def test_the_error_is_an_upper_estimate_for_cosines(
    height: float, speed: float, phase: float, a: float, length: float, tolerance: float
) -> None:
    b = a + length
    middle, half = speed * (a + b) / 2 + phase, speed * (b - a) / 2
    exact = height * (b - a) * (1 + math.cos(middle) * math.sin(half) / half)
    assert_upper(lambda t: height * (1 + torch.cos(speed * t + phase)), exact, a, b, tolerance)


@settings(max_examples=150)
@given(numbers(0.1, 5), numbers(0.1, 3), numbers(-0.5, 1.5), tolerances)
def test_the_error_is_an_upper_estimate_for_bumps(
    height: float, width: float, centre: float, tolerance: float
) -> None:
    low, high = (math.erfc(-(x - centre) / width / math.sqrt(2)) / 2 for x in (0.0, 1.0))
    exact = height * (high - low) if centre > 0.5 else height * ((1 - low) - (1 - high))
    top = height / width / math.sqrt(2 * math.pi)
    assert_upper(
        lambda t: top * torch.exp(-(((t - centre) / width) ** 2) / 2), exact, 0.0, 1.0, tolerance
    )


@settings(max_examples=150)
@given(numbers(0.1, 1), numbers(0.1, 5), numbers(-1, 3), tolerances)
def test_the_error_is_an_upper_estimate_just_after_an_event(
    base: float, jump: float, digits: float, tolerance: float
) -> None:
    """A rise that is over after up to a thousandth of the interval, long before the first node of a
    coarse rule.
    """
    decay = 10**digits
    exact = base - jump * math.expm1(-decay) / decay
    assert_upper(lambda t: base + jump * torch.exp(-decay * t), exact, 0.0, 1.0, tolerance)


@pytest.mark.parametrize("width", [0.03, 1e-3, 2e-5])
def test_a_peak_at_the_end_of_an_interval_is_seen(width: float) -> None:
    a, b, height = (torch.tensor([[x]], dtype=torch.float64) for x in (0.0, 1.0, 0.7 / width))
    value, error = integrate(
        lambda t, _: 0.1 + height[..., None] * torch.exp(-(b[..., None] - t) / width),
        a,
        b,
        tolerance=1e-4,
    )
    exact = 0.1 + 0.7 * -math.expm1(-1 / width)
    assert abs(value.item() - exact) <= error.item() and error.item() <= 1e-4


def test_rates_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.arange(12, dtype=torch.float64).view(2, 6)
    most = []

    def rate(times: Tensor, which: Tensor) -> Tensor:
        most.append(times.numel())
        return (1 + which[..., None]) * times.sin().exp()

    whole = integrate(rate, a, a + 1, tolerance=1e-6)
    held = max(most)
    monkeypatch.setattr("fourpoint.ops.quadrature.TIMES", 40)
    most.clear()
    parts = integrate(rate, a, a + 1, tolerance=1e-6)
    assert all(torch.equal(x, y) for x, y in zip(whole, parts, strict=True)) and max(most) < held


def test_coarse_rules_that_agree_by_chance_are_not_believed() -> None:
    """Cosines whose integrals by n and by 2 n nodes are equal, and both wrong."""

    def rule(nodes: int, speed: float) -> float:
        x, w = gauss_legendre(nodes)
        return float((w * (1 + torch.cos(speed * x))).sum())

    for nodes in (2, 3, 4):
        speeds = np.linspace(5, 60, 2001)
        move = np.array([rule(nodes, s) - rule(2 * nodes, s) for s in speeds])
        for i in np.flatnonzero(move[:-1] * move[1:] < 0):
            low, high = speeds[i], speeds[i + 1]
            for _ in range(50):
                middle = (low + high) / 2
                low, high = (
                    (middle, high)
                    if (rule(nodes, middle) - rule(2 * nodes, middle)) * move[i] > 0
                    else (low, middle)
                )
            exact = 1 + math.sin(low) / low
            value, error = integrate(
                lambda t, _, s=low: 1 + torch.cos(s * t),
                *interval(0.0, 1.0),
                tolerance=1e-3,
                first=nodes,
            )
            assert abs(value.item() - exact) <= error.item()


def test_it_converges_in_many_intervals_at_once_and_refines_where_it_must() -> None:
    asked: list[int] = []
    a = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    speed = torch.tensor([[0.1, 0.5, 40.0], [0.1, 60.0, 1.0]], dtype=torch.float64)

    def rate(times: Tensor, which: Tensor) -> Tensor:
        asked.append(times.numel())
        return 1 + torch.cos(speed.gather(1, which)[..., None] * times)

    value, error = integrate(rate, a, a + 1, tolerance=1e-10)
    exact = 1 + (torch.sin(speed * (a + 1)) - torch.sin(speed * a)) / speed
    assert ((value - exact).abs() <= error + 1e-14).all() and error.sum() <= 1e-10
    whole = 6 * max(asked) // 2
    assert sum(asked) < whole


def test_what_is_narrow_is_cut_out() -> None:
    a, b = interval(0.0, 1.0)
    jump, peak = (
        lambda t, _: torch.where(t > 1 / math.pi, 3.0, 1.0).double(),
        lambda t, _: torch.exp(-0.5 * ((t - 0.3) / 0.003) ** 2),
    )
    with pytest.raises(Unconverged):
        integrate(jump, a, b, tolerance=1e-5, splits=0)
    value, error = integrate(jump, a, b, tolerance=1e-5)
    assert abs(value.item() - (3 - 2 / math.pi)) <= error.item() <= 1e-5
    value, error = integrate(
        peak, a, b, tolerance=1e-9, first=128
    )  # fewer nodes to begin with would miss it
    assert abs(value.item() - 0.003 * math.sqrt(2 * math.pi)) <= error.item() <= 1e-9


def test_rates_of_many_marks_are_integrated_together() -> None:
    a, b = interval(0.0, 2.0)
    value, error = integrate_each(
        lambda t, _: torch.stack([t, t.exp(), torch.sin(30 * t)], -1), a, b, tolerance=1e-9
    )
    exact = torch.tensor([2.0, math.exp(2) - 1, (1 - math.cos(60)) / 30], dtype=torch.float64)
    assert float((value[0, 0] - exact).abs().sum()) <= error.item() <= 1e-9


def test_pieces_that_never_settle_end_in_an_error() -> None:
    noise = torch.Generator().manual_seed(0)
    asked: list[int] = []

    def rate(times: Tensor, which: Tensor) -> Tensor:
        asked.append(times.numel())
        return 1 + torch.rand(times.shape, generator=noise, dtype=torch.float64)

    with pytest.raises(Unconverged):
        integrate(rate, *interval(0.0, 1.0), tolerance=1e-9)
    assert sum(asked) < 64 * 64 * 8


def test_a_float32_rate_settles_at_its_rounding_and_states_it() -> None:
    value, error = integrate(lambda t, _: t.float().exp(), *interval(0.0, 1.0), tolerance=1e-9)
    assert value.dtype == torch.float64
    assert abs(value.item() - (math.e - 1)) <= error.item() <= 1e-5


def test_integrals_of_float32_intervals_are_found_in_float64() -> None:
    value, error = integrate(
        lambda t, _: t.exp(), torch.zeros(1, 1), torch.ones(1, 1), tolerance=1e-9
    )
    assert abs(value.item() - (math.e - 1)) <= error.item() <= 1e-9


@pytest.mark.parametrize("amplitude", [1e-7, 1e-6, 1e-5])
def test_noise_of_the_order_of_rounding_is_stated_and_not_refined(amplitude: float) -> None:
    """Noise that no refinement resolves, as of sums of features with large phases."""
    asked: list[int] = []

    def rate(times: Tensor, which: Tensor) -> Tensor:
        asked.append(times.numel())
        return (2 + amplitude * torch.sin(1e12 * times)).float()

    value, error = integrate(rate, *interval(0.0, 1.0), tolerance=1e-9)
    assert abs(value.item() - 2) <= error.item() <= 1e-5 + 8 * amplitude
    assert sum(asked) < 1000


def test_late_times_state_their_resolution() -> None:
    """Nodes at 1e9 are rounded to 1e-7, which a rate that decays within 1e-6 turns into an
    error.
    """
    start, decay = 1e9, 1e5
    value, error = integrate(
        lambda t, _: torch.exp(-decay * (t - start)),
        *interval(start, start + 2**-10),
        tolerance=1e-9,
    )
    exact = -math.expm1(-decay * 2**-10) / decay
    assert abs(value.item() - exact) <= error.item() <= 1e-6


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("gap", [100.0, 200.0, 400.0, 1e3, 3e3, 1e4, 1e5, 1e6, 1e7, 1e8])
def test_a_hump_that_begins_at_zero_in_a_long_gap_is_seen(gap: float, tolerance: float) -> None:
    exact = 1 - (1 + gap) * math.exp(-gap)
    assert_upper(lambda t: t * torch.exp(-t), exact, 0.0, gap, tolerance)
    assert_upper(lambda t: 1 / gap + t * torch.exp(-t), 1 + exact, 0.0, gap, tolerance)


@pytest.mark.parametrize("digits", range(3, 13))
def test_a_known_shortest_time_finds_any_hump_and_spares_short_gaps(digits: int) -> None:
    asked: list[int] = []

    def hump(times: Tensor, which: Tensor) -> Tensor:
        asked.append(times.numel())
        return times * torch.exp(-times)

    one = torch.ones(1, 1, dtype=torch.float64)
    value, error = integrate(hump, *interval(0.0, 10.0**digits), tolerance=1e-4, shortest=one)
    assert abs(value.item() - 1) <= error.item() <= 1e-4
    asked.clear()
    integrate(lambda t, _: hump(0 * t, _), *interval(0.0, 100.0), tolerance=1e-4, shortest=one)
    assert sum(asked) == 8  # two nodes and both ends, then four nodes


def test_the_work_on_hopeless_integrals_is_bounded() -> None:
    noise = torch.Generator().manual_seed(0)
    a = torch.arange(256, dtype=torch.float64).view(8, 32)
    asked: list[int] = []

    def rate(times: Tensor, which: Tensor) -> Tensor:
        asked.append(times.numel())
        return 1 + torch.rand(times.shape, generator=noise, dtype=torch.float64)

    with pytest.raises(Unconverged):
        integrate(rate, a, a + 1, tolerance=1e-9)
    assert sum(asked) <= 2560 * a.numel() + 2**14


def test_more_nodes_converge_faster_than_any_power() -> None:
    errors = []
    for nodes in (2, 4, 8, 16):
        x, w = gauss_legendre(nodes)
        errors.append(abs(float((w * torch.exp(-5 * x)).sum()) - (1 - math.exp(-5)) / 5))
    assert (
        errors[0] > 1e-3
        and errors[1] < errors[0] ** 1.5
        and errors[2] < 1e-11
        and errors[3] < 1e-15
    )


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 48])
def test_gauss_legendre_is_exact_for_polynomials(nodes: int) -> None:
    x, w = gauss_legendre(nodes)
    for power in range(2 * nodes):
        assert float((w * x**power).sum()) == pytest.approx(1 / (power + 1), rel=1e-12)


def test_empty_intervals_cost_nothing() -> None:
    value, error = integrate(
        lambda t, _: t.exp(), torch.ones(2, 3).double(), torch.ones(2, 3).double(), tolerance=1e-9
    )
    assert (value == 0).all() and (error == 0).all()


def test_stratified_nodes_are_in_their_strata_and_unbiased() -> None:
    a, b = (
        torch.full((20_000,), 1.0, dtype=torch.float64),
        torch.full((20_000,), 3.0, dtype=torch.float64),
    )
    nodes = stratified(a, b, 4, torch.Generator().manual_seed(0))
    assert nodes.shape == (20_000, 4)
    stratum = ((nodes - 1) / 0.5).floor()
    assert torch.equal(stratum, torch.arange(4, dtype=torch.float64).expand(20_000, 4))
    for f, exact in (
        (torch.exp, math.exp(3) - math.exp(1)),
        (lambda t: torch.cos(30 * t), (math.sin(90) - math.sin(30)) / 30),
    ):
        estimates = 2 * f(nodes).mean(1)
        assert abs(float(estimates.mean()) - exact) <= 4 * float(estimates.std()) / math.sqrt(
            20_000
        )
    within = ((nodes - 1) / 0.5 - stratum).mean(0)
    assert ((within - 0.5).abs() <= 4 * math.sqrt(1 / 12 / 20_000)).all()


def test_early_nodes_are_unbiased_and_see_more_of_what_fades_fast() -> None:
    a, b = (
        torch.full((20_000,), 1.0, dtype=torch.float64),
        torch.full((20_000,), 3.0, dtype=torch.float64),
    )
    draws = uniform(a, 4, torch.Generator().manual_seed(0))
    nodes, weights = early(a, b, draws)
    assert (
        (nodes.diff(dim=1) > 0).all()
        and (nodes >= 1).all()
        and (nodes <= 3).all()
        and (weights > 0).all()
    )

    def decays(t: Tensor) -> Tensor:
        return torch.exp(-30 * (t - 1))

    for f, exact in (
        (torch.ones_like, 2.0),
        (torch.exp, math.exp(3) - math.exp(1)),
        (decays, (1 - math.exp(-60)) / 30),
    ):
        estimates = 2 * (weights * f(nodes)).sum(1)
        assert abs(float(estimates.mean()) - exact) <= 4 * float(estimates.std()) / math.sqrt(
            20_000
        )
    plain = stratified(a, b, 4, torch.Generator().manual_seed(0))
    assert float((weights * decays(nodes)).sum(1).std()) < 0.5 * float(decays(plain).mean(1).std())


def test_stratified_nodes_come_from_the_generator_alone() -> None:
    a, b = torch.zeros(3).double(), torch.ones(3).double()
    first, again, other = (stratified(a, b, 5, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_an_unsettled_integral_raises_with_its_numbers() -> None:
    a, b = (
        torch.tensor([[0.0, 1.0], [2.0, 3.0]]).double(),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double(),
    )

    def jump(times: Tensor, which: Tensor) -> Tensor:
        return torch.where(times > math.pi, 1000.0, 1.0).double()

    numbers = (
        r"received a summed change of [\d.e-]+ at 16 nodes, most of it \([\d.e-]+\) over \[3, "
        r"4\] of row 1\. Raise"
    )
    with pytest.raises(Unconverged, match=f"expected integrals settled to 1e-06; {numbers}"):
        integrate(jump, a, b, tolerance=1e-6, most=16, splits=0)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_rate_that_is_not_finite_raises_with_its_place(bad: float) -> None:
    a, b = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[1.0, 2.0]]).double()
    place = r"received (inf|nan) over \[1, 2\] of row 0\. The model's rate explodes"
    with pytest.raises(Unconverged, match=f"expected a finite integral of the intensity; {place}"):
        integrate(lambda t, _: torch.where(t > 1, bad, 1.0).double(), a, b, tolerance=1e-6)


@pytest.mark.parametrize("amplitude", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("density", [4.0, 8.0, 12.0, 16.0])
def test_one_rule_in_log_time_states_its_error(amplitude: float, density: float) -> None:
    """A rate with four turns per unit of u = log(1 + lag), under-resolved by the coarser rules."""
    since = torch.tensor([0.0, 5.0, 7.0, 100.0], dtype=torch.float64)
    left, right = since + 0.3, since + torch.tensor([0.4, 2.0, 30.0, 1e9], dtype=torch.float64)

    def rate(times: Tensor, which: Tensor) -> Tensor:
        u = torch.log1p(times - since[which, None])
        return torch.exp(amplitude * torch.cos(8 * math.pi * u) - u)

    value, error = integrate_in_log_time(rate, left, right, since, scale=1.0, density=density)
    low, high = (torch.log1p(x - since) for x in (left, right))
    x, w = gauss_legendre(2000)
    waves = torch.exp(
        amplitude * torch.cos(8 * math.pi * (low[:, None] + (high - low)[:, None] * x))
    )
    exact = (high - low) * (waves @ w)
    # twenty units of u take too many nodes of the denser rules
    assert (error[3] == torch.inf) == (density > 4)
    assert ((value - exact).abs() <= error + 1e-12)[:3].all()
    if density == 16.0 and amplitude <= 0.1:
        assert (error[:3] <= 1e-2).all()


@pytest.mark.parametrize(("peaks", "sharpness"), [(10, 30.0), (50, 30.0), (37, 100.0)])
def test_regular_peaks_are_not_lost_by_cutting(peaks: int, sharpness: float) -> None:
    def rate(times: Tensor, which: Tensor | None = None) -> Tensor:
        return 1 + torch.exp(sharpness * (torch.cos(2 * math.pi * peaks * times) - 1))

    x, w = gauss_legendre(4000)
    exact = float((w * rate(x)).sum())
    ends = interval(0.0, 1.0)
    value, error = integrate(rate, *ends, tolerance=1e-2, shortest=torch.ones_like(ends[0]))
    assert abs(value.item() - exact) <= error.item() <= 1e-2


def test_equal_errors_are_neglected_all_or_not_at_all() -> None:
    errors = torch.tensor([1.0, 1.0, 1.0, 0.25, 5.0], dtype=torch.float64)
    assert negligible(errors, 2.5) == 0.25
    assert negligible(errors, 3.25) == 1.0
    assert negligible(errors, 0.1) == -1.0
    assert negligible(errors, 10.0) == 5.0


def test_oscillations_are_cut_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pieces at the ends, which help against peaks there, would waste nodes."""
    asked: list[int] = []

    def nodes() -> int:
        asked.clear()
        for speed in range(80, 480, 20):

            def rate(times: Tensor, which: Tensor, speed: int = speed) -> Tensor:
                asked.append(times.numel())
                return 1 + torch.cos(speed * times)

            value, error = integrate(rate, *interval(0.0, 1.0), tolerance=1e-6, most=32)
            assert abs(value.item() - 1 - math.sin(speed) / speed) <= error.item() <= 1e-6
        return sum(asked)

    even = nodes()
    monkeypatch.setattr("fourpoint.ops.quadrature.EVEN_CUTS", END_CUTS)
    uneven = nodes()
    assert even < 0.95 * uneven, (even, uneven)
