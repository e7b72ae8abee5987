"""The lowest point of a smooth function of a few numbers, by L-BFGS in float64 with exact
gradients.

Used for maximum likelihood where a model is small and its likelihood is smooth: quicker than
stochastic steps, without a learning rate, and the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


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
