"""Steps of AdamW by a direct call of torch's fused operation: exactly the optimiser's own."""

from __future__ import annotations

import torch
from torch import nn

from fourpoint.training.steps import AdamWSteps


def weights(kind: torch.dtype) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    shapes = ((3, 4), (7,), (), (2, 1, 5))
    return [nn.Parameter(torch.randn(shape, generator=random).to(kind)) for shape in shapes]


def optimiser(parts: list[nn.Parameter]) -> torch.optim.AdamW:
    """Two groups, and one without parameters."""
    settings = ((parts[:2], 0.1, 0.3), ([], 0.1, 0.0), (parts[2:], 0.02, 0.0))
    groups = [dict(params=some, lr=rate, weight_decay=decay) for some, rate, decay in settings]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)


def test_steps_are_exactly_those_of_the_optimiser() -> None:
    """Ten steps: one parameter never has a gradient, another lacks one once, gradients are new
    tensors in some steps only, rates change, and a saved state is taken over half way.
    """
    for kind in (torch.float32, torch.float64):
        ours, theirs = weights(kind), weights(kind)
        mine, plain = optimiser(ours), optimiser(theirs)
        steps = AdamWSteps(mine)
        random = torch.Generator().manual_seed(1)
        for step in range(10):
            for a, b in zip(ours[1:], theirs[1:], strict=True):
                drawn = torch.randn(a.shape, generator=random).to(kind)
                if a.grad is None or step % 3 == 0:
                    a.grad = drawn
                else:
                    a.grad.copy_(drawn)
                b.grad = drawn.clone()
            if step == 7:
                ours[3].grad = theirs[3].grad = None
            mine.param_groups[0]["lr"] = plain.param_groups[0]["lr"] = 0.1 / (1 + step)
            steps.take()
            plain.step()
            if step == 5:
                later = optimiser(ours)
                later.load_state_dict(mine.state_dict())
                mine, steps = later, AdamWSteps(later)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
            for key, value in plain.state[b].items():
                assert torch.equal(mine.state[a][key], value)
        assert mine.state[ours[1]]["step"] == 10 and mine.state[ours[3]]["step"] == 9
        assert ours[0] not in mine.state
