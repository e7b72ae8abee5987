"""Splines: a partition of unity, local, constant outside, differentiable, and bounded from
above.
"""

import pytest
import torch
from scipy.interpolate import BSpline

from fourpoint.ops.spline import spline, spline_knots, spline_max


def random_coefficients(curves: int = 3, intervals: int = 6) -> torch.Tensor:
    return torch.randn(
        curves, intervals + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def test_agrees_with_scipy() -> None:
    c, x = random_coefficients(), torch.linspace(0, 2.4, 101, dtype=torch.float64)
    knots = torch.arange(-3, 10, dtype=torch.float64) * 0.4
    theirs = BSpline(knots.numpy(), c.T.numpy(), 3)(x.numpy())
    assert torch.allclose(spline(c, x, 2.4), torch.from_numpy(theirs), atol=1e-13)


def test_basis_is_a_partition_of_unity() -> None:
    basis = spline(
        torch.eye(9, dtype=torch.float64), torch.linspace(-1, 4, 57, dtype=torch.float64), 3.0
    )
    assert (basis >= 0).all()
    assert torch.allclose(basis.sum(-1), torch.ones(57, dtype=torch.float64), atol=1e-15)
    assert (basis > 0).sum(-1).max() <= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_coefficients_give_exactly_their_value(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 5, 997, dtype=torch.float64)
    value = torch.tensor(0.1, dtype=dtype)
    c = value.expand(2, 11)
    assert (spline(c, x, 3.3) == value).all()
    assert (spline_max(c, x, x + 1, 3.3) == value).all()
    assert spline(c, x, 3.3).dtype == dtype


def test_constant_outside() -> None:
    c, x = random_coefficients(), torch.tensor([-5.0, 0.0, 2.0, 7.0], dtype=torch.float64)
    y = spline(c, x, torch.tensor(2.0))
    assert torch.equal(y[0], y[1]) and torch.equal(y[2], y[3])


def test_any_shape_and_one_interval() -> None:
    c = random_coefficients(2, 1)
    x = torch.rand(4, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert spline(c, x, 1.0).shape == (4, 5, 6, 2)
    assert torch.equal(spline(c, x[1, 2, 3], 1.0), spline(c, x, 1.0)[1, 2, 3])
    assert spline(c, x[:0], 1.0).shape == (0, 5, 6, 2)


def test_gradient() -> None:
    c = random_coefficients(2, 4).requires_grad_()
    x = torch.tensor([-0.5, 0.0, 0.3, 1.0, 1.77, 2.0, 2.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda c: spline(c, x, 2.0), (c,))


def test_bound_dominates_and_is_near() -> None:
    c = random_coefficients(3, 8)
    ends = (
        torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        .mul(3)
        .sub(0.5)
        .sort(-1)
        .values
    )
    a, b = ends.unbind(-1)
    grid = a[:, None] + (b - a)[:, None] * torch.linspace(0, 1, 301, dtype=torch.float64)
    top = spline(c, grid, 2.0).amax(1)
    bound = spline_max(c, a, b, 2.0)
    assert (bound >= top - 1e-12).all()
    assert (bound <= c.amax(-1) + 1e-12).all()
    whole = spline_max(
        c, torch.zeros(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64), 2.0
    )[0]
    assert (
        whole - spline(c, torch.linspace(0, 2, 999, dtype=torch.float64), 2.0).amax(0) < 0.5
    ).all()


def test_knots() -> None:
    assert torch.allclose(
        spline_knots(torch.tensor(24.0), 20), torch.arange(21, dtype=torch.float64) * 1.2
    )
