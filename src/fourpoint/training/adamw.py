"""Steps of AdamW with little overhead, for models whose step takes a few milliseconds.

``torch.optim.AdamW.step`` takes longer to prepare the call of its fused operation than that takes
on a small model. :func:`take_step` calls the operation directly on the optimiser's own state: the
results are bit for bit those of ``optimiser.step()``.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def take_step(optimiser: torch.optim.AdamW) -> None:
    """One step with the gradients that the parameters have.

    The optimiser's own method runs the first step of a parameter, which creates its moments, and
    all steps on other devices than the CPU.

    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimiser = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0, fused=True)
    >>> for _ in range(2):
    ...     weight.grad = torch.ones(3)
    ...     take_step(optimiser)
    >>> weight.detach()
    tensor([0.8000, 0.8000, 0.8000])
    """
    moved = [_with_gradients(group["params"]) for group in optimiser.param_groups]
    if not all(_prepared(optimiser, parameters) for parameters in moved):
        optimiser.step()
        return
    for group, parameters in zip(optimiser.param_groups, moved, strict=True):
        if not parameters:
            continue
        states = [optimiser.state[parameter] for parameter in parameters]
        counts = [state["step"] for state in states]
        beta1, beta2 = group["betas"]
        torch._foreach_add_(counts, 1)
        torch._fused_adamw_(
            list[Tensor](parameters),
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            counts,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def _with_gradients(parameters: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    return [parameter for parameter in parameters if parameter.grad is not None]


def _prepared(optimiser: torch.optim.AdamW, parameters: list[torch.nn.Parameter]) -> bool:
    """Whether all parameters are on the CPU and have moments."""
    return all(
        parameter.device.type == "cpu" and parameter in optimiser.state for parameter in parameters
    )
