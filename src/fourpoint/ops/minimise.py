"""The lowest point of a smooth function of a few numbers, by L-BFGS or Newton's method in float64
with exact derivatives.

Used for maximum likelihood where a model is small and its likelihood is smooth: quicker than
stochastic steps, without a learning rate, and the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

RIDGE = 1e-10  # of the diagonal of a curvature, so that a flat direction can be solved for
SUFFICIENT = 1e-4  # of the decrease that the gradient promises
SHORTEST = 1e-8  # a step, by Newton's one
ENOUGH = 1e-15  # decrease, by the size of the value, below which rounding decides


@dataclass(frozen=True)
class Minimum:
    """Where the search ended, the value there, its steps, and the largest partial derivative
    left.
    """

    point: Tensor
    value: float
    steps: int
    gradient: float

    def __str__(self) -> str:
        return f"{self.steps} steps of L-BFGS, largest gradient left {self.gradient:.1e}"


def minimise(
    objective: Callable[[Tensor], Tensor], first: Float[Tensor, "*S"], steps: int = 500
) -> Minimum:
    """Minimise ``objective``, a scalar of order 1 of a tensor shaped like ``first``, from
    ``first``.

    It does not fail: look at ``gradient``, which is below 1e-5 where the search converged.

    >>> found = minimise(lambda x: (x - torch.tensor([1.0, 2.0])).square().sum(), torch.zeros(2))
    >>> found.point.round(decimals=6).tolist()
    [1.0, 2.0]
    """
    from scipy.optimize import minimize

    def value_and_gradient(flat: object) -> tuple[float, object]:
        x = torch.as_tensor(flat, dtype=torch.float64).reshape(first.shape).requires_grad_()
        with torch.enable_grad():
            value = objective(x)
            (gradient,) = torch.autograd.grad(value, x)
        return value.item(), gradient.flatten().numpy()

    start = first.detach().cpu().double().flatten().numpy()
    options = {"maxiter": steps, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    point = torch.as_tensor(found.x, dtype=torch.float64).reshape(first.shape)
    return Minimum(point, float(found.fun), int(found.nit), float(abs(found.jac).max(initial=0.0)))


def newton_minimum(
    objective: Callable[[Tensor], Tensor], first: Float[Tensor, " P"], steps: int = 100
) -> Minimum:
    """Minimise ``objective``, a convex scalar of order 1 of a few numbers, from ``first`` by
    Newton's method; steps are halved until the value falls, so that it never ends above where it
    began.

    It does not fail: look at ``gradient``.

    >>> first = torch.zeros(2, dtype=torch.float64)
    >>> sums = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> found = newton_minimum(lambda x: x.exp().sum() - x @ sums, first)
    >>> found.point.exp().round(decimals=9).tolist()
    [1.0, 2.0]
    """

    def gradient_at(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(objective(x), x)[0]

    point = first.detach()
    value = float(objective(point))
    gradient = gradient_at(point)
    done = 0
    while done < steps:
        curvature = torch.autograd.functional.hessian(objective, point)
        ridge = RIDGE * curvature.diagonal().abs() + torch.finfo(torch.float64).tiny ** 0.5
        step = -torch.linalg.solve(curvature + torch.diag(ridge), gradient)
        promised = -float(gradient @ step)
        if not promised > ENOUGH * (1 + abs(value)):
            break
        length = 1.0
        while length > SHORTEST:
            lower = float(objective(point + length * step))
            if math.isfinite(lower) and lower <= value - SUFFICIENT * length * promised:
                break
            length /= 2
        else:
            break
        point = point + length * step
        value = lower
        gradient = gradient_at(point)
        done += 1
    return Minimum(point, value, done, float(gradient.abs().max()))
