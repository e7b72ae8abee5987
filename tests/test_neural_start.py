"""The link of NHP, SAHP and THP: what a likelihood needs of it, with its gradient, and the models
that hand it their curves.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_laws import data
from torch import Tensor
from torch.autograd import gradcheck

from fourpoint.inference.likelihood import quick_log_likelihood
from fourpoint.models.base import PointProcess
from fourpoint.models.neural_start import ScaledSoftplus
from fourpoint.models.nhp import NHP
from fourpoint.models.sahp import SAHP, _Slide
from fourpoint.models.thp import THP

D64 = torch.float64


def link(*log_scales: float) -> ScaledSoftplus:
    made = ScaledSoftplus(len(log_scales)).double()
    with torch.no_grad():
        made.log_scale.copy_(torch.tensor(log_scales, dtype=D64))
    return made


@pytest.mark.parametrize("weights", [None, torch.tensor([0.2, 0.5, 0.3], dtype=D64)])
def test_rates_in_gaps_are_those_of_the_link(weights: Tensor | None) -> None:
    made, unit = link(0.3, -1.0), torch.tensor([0.5, -2.0], dtype=D64)
    z = 3 * torch.randn(2, 3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=D64)
    logs = made(z) + unit
    rates = logs[:, :, :-1].exp().sum(-1)
    mean, ends = made.in_gaps(z, unit, weights)
    assert torch.allclose(mean, rates.mean(-1) if weights is None else rates @ weights, rtol=1e-12)
    assert torch.allclose(ends, logs[:, :, -1], rtol=1e-12)

    def by(z: Tensor, scale: Tensor) -> Any:
        made.log_scale.requires_grad_(False)
        return torch.func.functional_call(
            Through(made), {"link.log_scale": scale}, (z, unit, weights)
        )

    assert gradcheck(by, (z.requires_grad_(), made.log_scale.detach().clone().requires_grad_()))


class Through(torch.nn.Module):
    """`in_gaps` as a forward pass."""

    def __init__(self, made: ScaledSoftplus) -> None:
        super().__init__()
        self.link = made

    def forward(self, *given: Any) -> Any:
        return self.link.in_gaps(*given)


@pytest.mark.parametrize("kind", [torch.float32, D64])
def test_far_below_and_far_above_nothing_is_lost(kind: torch.dtype) -> None:
    made, z = (
        link(0.0).to(kind),
        torch.tensor([-3000.0, -90.0, -81.0, -79.0, 300.0], dtype=kind)[:, None, None, None],
    )
    z = z.expand(5, 1, 2, 1).clone().requires_grad_()
    mean, ends = made.in_gaps(z, torch.zeros(1, dtype=kind), None)
    assert torch.allclose(
        ends.flatten().double(),
        torch.tensor([-3000.0, -90.0, -81.0, -79.0, 5.703782]).double(),
        rtol=1e-6,
    )
    (mean.sum() + ends.sum()).backward()
    assert (
        z.grad is not None
        and z.grad.isfinite().all()
        and torch.allclose(z.grad[:4, 0, 1], torch.ones(4, 1, dtype=kind))
    )
    assert made.log_scale.grad is not None and made.log_scale.grad.isfinite().all()


def test_a_slide_from_one_end_to_the_other_has_its_gradient() -> None:
    random = torch.Generator().manual_seed(0)
    eta, mu, gamma = (
        torch.randn(2, 3, 2, generator=random, dtype=D64).requires_grad_() for _ in range(3)
    )
    lag = torch.rand(2, 3, 4, generator=random, dtype=D64).requires_grad_()
    expected = mu[:, :, None] + (eta - mu)[:, :, None] * torch.exp(
        -gamma[:, :, None] * lag[..., None]
    )
    assert torch.allclose(_Slide.apply(eta, mu, gamma, lag), expected, rtol=1e-14)
    assert gradcheck(_Slide.apply, (eta, mu, gamma, lag))


@pytest.mark.parametrize("kind", [NHP, SAHP, THP])
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize("convention", ["window", "gaps"])
def test_the_likelihood_is_the_same_by_gaps_as_by_rates(
    kind: Any, marks: int, convention: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, random = kind(marks, hidden=8).double().eval(), torch.Generator().manual_seed(1)
    model.initialise(data(marks))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=random, dtype=D64)
    by_gaps = quick_log_likelihood(model, data(marks).batch(), convention=convention)
    monkeypatch.setattr(kind, "rates_in_gaps", PointProcess.rates_in_gaps)
    assert torch.allclose(
        by_gaps, quick_log_likelihood(model, data(marks).batch(), convention=convention), rtol=1e-12
    )
