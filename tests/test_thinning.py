"""Thinning and inversion against rates whose mean next event is known, and what they do when the
bound is wrong.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from fourpoint.ops.compensator import next_event_law, reach
from fourpoint.ops.quadrature import Unconverged
from fourpoint.ops.thinning import (
    BoundViolated,
    ExplosiveRate,
    Tally,
    draw_marks,
    next_by_inversion,
    next_by_thinning,
)

DRAWS = 4000
Rate = Callable[[Tensor], Tensor]
Bound = Callable[[Tensor, Tensor], Tensor]


def bump(s: Tensor) -> Tensor:
    return 0.1 + 5 * torch.exp(-((s - 2) ** 2) / 0.1)


# Rate as a function of the time since the last event, its largest value on [a, b], and the mean of
# the next event.
KNOWN: dict[str, tuple[Rate, Bound, float]] = {
    "constant": (lambda s: 0 * s + 0.05, lambda a, b: 0 * a + 0.05, 20.0),
    "rising": (lambda s: 0.1 + s, lambda a, b: 0.1 + b, 1.159),
    "bump": (bump, lambda a, b: bump(torch.minimum(torch.maximum(a, 0 * a + 2), b)), 2.184),
    "fading": (
        lambda s: 0.1 + 3 * torch.exp(-3 * s),
        lambda a, b: 0.1 + 3 * torch.exp(-3 * a),
        3.836,
    ),
}


def zeros(count: int = DRAWS) -> Tensor:
    return torch.zeros(count, dtype=torch.float64)


def rates_of(rate: Rate) -> Rate:
    return lambda t: rate(t)[..., None]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("method", ["thinning", "inversion"])
def test_known_means(name: str, method: str) -> None:
    rate, bound, mean = KNOWN[name]
    random = torch.Generator().manual_seed(1)
    if method == "thinning":
        draws = next_by_thinning(
            rates_of(rate), bound, zeros(), zeros() + 1e4, zeros() + 1.0, random
        )
    else:
        draws = next_by_inversion(rates_of(rate), zeros(), zeros() + 1e4, zeros() + 0.25, random)
    assert bool(torch.isfinite(draws).all())
    assert abs(draws.mean().item() - mean) < 3 * draws.std().item() / np.sqrt(DRAWS)


@pytest.mark.parametrize("name", KNOWN)
def test_mean_of_the_law_is_exact(name: str) -> None:
    rate, _, mean = KNOWN[name]
    law = next_event_law(rates_of(rate), zeros(1), zeros(1) + 0.25)
    assert law.mean().item() == pytest.approx(mean, abs=6e-4)
    assert (law.weights * law.density).sum().item() == pytest.approx(1.0, abs=1e-5)
    assert law.integral_at(law.quantiles([0.5])).item() == pytest.approx(np.log(2), abs=1e-9)


def test_inversion_and_thinning_draw_from_one_law() -> None:
    rate, bound, _ = KNOWN["bump"]
    random = torch.Generator().manual_seed(2)
    thinned = next_by_thinning(rates_of(rate), bound, zeros(), zeros() + 1e4, zeros() + 1.0, random)
    inverted = next_by_inversion(rates_of(rate), zeros(), zeros() + 1e4, zeros() + 0.25, random)
    assert ks_2samp(thinned.numpy(), inverted.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("width", [1e-3, 0.3, 50.0])
def test_the_first_window_does_not_matter(width: float) -> None:
    rate, bound, mean = KNOWN["fading"]
    draws = next_by_thinning(
        rates_of(rate),
        bound,
        zeros(),
        zeros() + 1e4,
        zeros() + width,
        torch.Generator().manual_seed(3),
    )
    assert abs(draws.mean().item() - mean) < 4 * draws.std().item() / np.sqrt(DRAWS)


def test_paths_end_at_stop() -> None:
    tally, stop = Tally(), zeros() + 0.5
    draws = next_by_thinning(
        rates_of(KNOWN["rising"][0]),
        KNOWN["rising"][1],
        zeros(),
        stop,
        zeros() + 1,
        torch.Generator(),
        tally=tally,
    )
    came = torch.isfinite(draws)
    assert bool((draws[came] < 0.5).all())
    assert came.double().mean().item() == pytest.approx(1 - np.exp(-0.1 * 0.5 - 0.125), abs=0.03)
    assert (
        tally.accepted == int(came.sum())
        and tally.proposals >= tally.accepted
        and 0.5 < tally.acceptance <= 1
    )


def test_a_violated_bound_raises_with_its_numbers() -> None:
    with pytest.raises(
        BoundViolated, match=r"expected a rate of at most 1, .*; received \d"
    ) as caught:
        next_by_thinning(
            rates_of(KNOWN["rising"][0]),
            lambda a, b: 0 * a + 1,
            zeros(),
            zeros() + 99,
            zeros() + 1,
            torch.Generator(),
        )
    error = caught.value
    assert isinstance(error, ArithmeticError) and error.bound == 1 and error.rate > 1
    assert error.rate == pytest.approx(0.1 + error.time)


def test_explosions_are_refused() -> None:
    with pytest.raises(ExplosiveRate, match="received a bound of inf at time 0"):
        next_by_thinning(
            rates_of(lambda s: s),
            lambda a, b: a + torch.inf,
            zeros(2),
            zeros(2) + 9,
            zeros(2) + 1,
            torch.Generator(),
        )
    with pytest.raises(Unconverged, match="expected a finite rate; received inf"):
        reach(
            rates_of(lambda s: torch.exp(s * 1e4)),
            zeros(1),
            zeros(1) + 9,
            zeros(1) + 1e308,
            zeros(1) + 1,
        )
    with pytest.raises(Unconverged, match="rate jumps"):
        reach(
            rates_of(lambda s: (s > np.pi).double() * 9e18),
            zeros(1),
            zeros(1) + 9,
            zeros(1) + 5,
            zeros(1) + 1,
        )


def test_a_rate_that_dies_out_may_never_come() -> None:
    law = next_event_law(rates_of(lambda s: torch.exp(-s)), zeros(1), zeros(1) + 0.25)
    assert law.never.item() == pytest.approx(np.exp(-1), abs=1e-4) and law.mean().isinf().all()
    assert law.quantiles([0.5, 0.9]).isfinite().tolist() == [[True, False]]


def test_crps_equals_its_definition() -> None:
    rate = 2.0
    observed = torch.tensor([0.1, 0.5, 3.0], dtype=torch.float64)
    law = next_event_law(
        lambda t: torch.full((*t.shape, 1), rate, dtype=t.dtype),
        zeros(3),
        zeros(3) + 0.2,
        through=observed,
    )
    grid = torch.linspace(0, 20, 400_001, dtype=torch.float64)
    below = 1 - torch.exp(-rate * grid)
    for value, score in zip(observed, law.crps(observed), strict=True):
        direct = torch.trapezoid((below - (grid >= value).double()) ** 2, grid)
        assert score.item() == pytest.approx(direct.item(), abs=2e-4)


def test_marks_are_drawn_in_proportion() -> None:
    intensities = torch.tensor([[1.0, 0.0, 3.0]], dtype=torch.float64).expand(20_000, 3)
    share = (
        torch.bincount(draw_marks(intensities, torch.Generator().manual_seed(4)), minlength=3)
        / 20_000
    )
    assert share.tolist() == pytest.approx([0.25, 0.0, 0.75], abs=0.015)


@pytest.mark.parametrize(("start", "rate", "width"), [(1.7e9, 1e7, 5e-8), (1.7e15, 5.0, 0.1)])
def test_a_panel_shorter_than_the_rounding_of_times_goes_on(
    start: float, rate: float, width: float
) -> None:
    at, far, first, goal = (
        torch.tensor([x], dtype=torch.float64) for x in (start, np.inf, width, 10.0)
    )
    found = reach(
        lambda t: torch.full((*t.shape, 1), rate, dtype=torch.float64), at, far, goal, first
    )
    assert abs(float(found - at) - 10.0 / rate) <= 2 * float(torch.nextafter(at, far) - at)
