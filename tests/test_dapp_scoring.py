"""DAPP's evaluation by a kernel: the stated error is an upper one and below the tolerance, whatever
the time scales of modes, gaps and baseline.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fourpoint as fp
from fourpoint.events import Dataset, Sequence
from fourpoint.inference.likelihood import log_likelihoods
from fourpoint.kernels import conditions, numba_dapp_score
from fourpoint.models.dapp import DAPP
from fourpoint.models.dapp_history import DAPPHistory
from fourpoint.ops.fourier import Spectrum
from fourpoint.ops.quadrature import Unconverged, gauss_legendre


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs however small the batch."""
    monkeypatch.setattr(conditions, "SCORE_WORK", 0)


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own equation and `ops.quadrature` run instead."""
    monkeypatch.setattr(conditions, "SCORE_WORK", 2**60)


def clustered(marks: int, seed: int = 0, start: float = 5.0) -> Dataset:
    """Bursts with ties, gaps from a thousandth to thirty units, and a sequence without events."""
    rng = np.random.default_rng(seed)
    found = []
    for count in (12, 0, 1, 25, 6):
        gaps = 10.0 ** rng.uniform(-3, 1.5, count)
        gaps[2:4] = 0.0
        times = start + np.cumsum(gaps)
        stop = float(times[-1]) + 3.0 if count else start + 40.0
        kinds = rng.integers(0, marks, count)
        found.append(Sequence(times, kinds, start=start, stop=stop, space=marks))
    return Dataset.from_sequences(found)


def moved(data: Dataset, spread: float = 0.3, **settings: Any) -> DAPP:
    """A model whose weights are off their starting values."""
    sizes = dict(heads=2, features=6, eval_features=24, generator=(8,), knots=5)
    model = DAPP(data.marks, **{**sizes, **settings})
    model.initialise(data)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn(parameter.shape, generator=random)
    return model.eval()


SETTINGS: dict[str, dict[str, Any]] = {
    "softplus": dict(base="spline", drift="spline"),
    "exp": dict(link="exp", base="constant", drift="spline"),
    "identity": dict(link="identity", base="spline"),
    "identity-constant": dict(link="identity", base="constant"),
    "undamped": dict(decay=False, base="constant", drift="none"),
    "affine": dict(values="affine", base="spline", drift="none"),
    "linear": dict(values="linear", width=2, base="constant", drift="spline"),
}


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_stated_error_is_an_upper_one(
    name: str, marks: int, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = clustered(marks)
    model = moved(data, **SETTINGS[name]).double()
    found = log_likelihoods(model, data.batch(), tolerance=tolerance)
    plain(monkeypatch)
    exact = log_likelihoods(model, data.batch(), tolerance=1e-10)
    for convention, one in found.items():
        other = exact[convention]
        assert ((one.integral - other.integral).abs() <= one.error + other.error).all()
        assert ((one.value - other.value).abs() <= one.error + other.error).all()
        assert float(one.error.sum()) <= tolerance * int(one.events.sum()) + 1e-9
        assert torch.equal(one.events, other.events)


class Humped(DAPP):
    """The second head takes off what the first adds, and fades twice as fast: a rate that rises
    from its base and falls back within a few times 1 / ``speed``.
    """

    def __init__(self, speed: float) -> None:
        super().__init__(heads=2, eval_features=1, link="identity", base="constant")
        self.speed = speed

    def spectrum(self, *, fixed: bool = False) -> Spectrum:
        zero = torch.zeros(2, 1, dtype=torch.float64)
        decay = self.speed * torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        return Spectrum(zero, decay, zero[..., None], zero + 1, None)

    def readout_weights(self) -> Tensor:
        return torch.tensor([[1.0], [-1.0]], dtype=torch.float64)

    def event_values(self, elapsed: Tensor, marks: Tensor) -> Tensor:
        return torch.full((*marks.shape, 2), self.speed, dtype=torch.float64)


@pytest.mark.parametrize("speed", [1.0, 30.0, 1e3, 1e5])
def test_a_hump_far_shorter_than_a_gap_is_seen(speed: float) -> None:
    data = Dataset.from_sequences([Sequence([0.0, 10.0, 30.0], start=0.0, stop=50.0)])
    found = log_likelihoods(Humped(speed).double().eval(), data.batch())["window"]
    ages = speed * np.array([50.0, 40.0, 20.0])
    exact = 50.0 + float(np.sum(np.expm1(-2 * ages) / 2 - np.expm1(-ages)))
    assert abs(float(found.integral) - exact) <= float(found.error) <= 3.1e-4


def test_weights_in_float32_state_their_rounding() -> None:
    data = clustered(2, start=1e6)
    model = moved(data, base="spline", drift="spline")
    found = log_likelihoods(model, data.batch(), tolerance=1e-9)["window"]
    exact = log_likelihoods(model.double(), data.batch(), tolerance=1e-9)["window"]
    assert ((found.value - exact.value).abs() <= found.error + exact.error).all()
    assert float(found.error.sum()) > float(exact.error.sum())


def test_evaluation_does_not_form_the_states_of_all_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = clustered(2)
    model = moved(data)

    def refused(*given: object) -> DAPPHistory:
        raise AssertionError("the batch was encoded")

    monkeypatch.setattr(DAPP, "encode", refused)
    report = fp.evaluate(model, data)
    assert report.to_dict()["integral_error"] <= 1.1e-4


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    data = clustered(3)
    model = moved(data)
    before = torch.get_num_threads()
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(log_likelihoods(model, data.batch())["window"])
    torch.set_num_threads(before)
    assert all(torch.equal(found[0].value, one.value) for one in found)


def test_a_rate_that_explodes_is_left_to_the_plain_path_and_named() -> None:
    data = clustered(1)
    model = moved(data, link="exp", base="constant", drift="none")
    with torch.no_grad():
        model.rate.bias.fill_(1e4)
    with pytest.raises(Unconverged, match="The model's rate explodes there"):
        log_likelihoods(model, data.batch())


def test_panels_have_two_rules_on_the_same_nodes() -> None:
    rule = numba_dapp_score._rule()
    x = np.linspace(0, 1, numba_dapp_score.STEPS + 1)
    for power in range(10):
        assert rule[0] @ x**power == pytest.approx(1 / (power + 1), abs=1e-13)
        assert (abs(rule[1] @ x**power) < 1e-13) == (power < 6)
    fine, weights = gauss_legendre(40)
    exact = float((weights * torch.exp(-4 * fine)).sum())
    values = np.exp(-4 * x)
    assert abs(rule[0] @ values - exact) < abs(rule[1] @ values) / 10
