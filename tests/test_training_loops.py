"""AdamW as a loop: torch's own steps, weights and moments, to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fourpoint.kernels import numba_adamw as training_loops
from fourpoint.kernels.numba_adamw import Moves, adamw, compiled_adamw


def weights(seed: int = 0) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(shape, generator=random))
        for shape in ((3, 4), (7,), (), (2, 1, 5))
    ]


def optimiser(parts: list[nn.Parameter]) -> torch.optim.AdamW:
    """Two groups, and one of none."""
    groups = [
        dict(params=some, lr=lr, weight_decay=d)
        for some, lr, d in ((parts[:2], 0.1, 0.3), ([], 0.1, 0.0), (parts[2:], 0.02, 0.0))
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)


def compared(monkeypatch: pytest.MonkeyPatch, loop: Any) -> None:
    """Ten steps of both, one weight without slopes, another without one for once, rates that
    change; then a state taken over half way.
    """
    monkeypatch.setattr(training_loops, "compiled_adamw", lambda: loop)
    ours, theirs = weights(), weights()
    mine, plain = optimiser(ours), optimiser(theirs)
    moves, random = Moves(mine), torch.Generator().manual_seed(1)
    assert moves.able
    for step in range(10):
        for a, b in zip(ours[1:], theirs[1:], strict=True):
            a.grad = torch.randn(a.shape, generator=random)
            b.grad = a.grad.clone()
        for one in (mine, plain):
            one.param_groups[0]["lr"] = 0.1 / (1 + step)
            for part in (ours, theirs):
                part[3].grad = None if step == 7 else part[3].grad
        moves.take()
        plain.step()
        if step == 5:
            later = optimiser(ours)
            later.load_state_dict(mine.state_dict())
            mine, moves = later, Moves(later)
    assert len(moves.groups) == 2
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        for key, value in plain.state[b].items():
            assert torch.allclose(mine.state[a][key], value, rtol=1e-5, atol=1e-7)


def test_the_loop_is_torchs_step(monkeypatch: pytest.MonkeyPatch) -> None:
    compared(monkeypatch, adamw)


def test_so_is_its_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "numba", reason="numba is not installed (the extra `fast`): its machine code is not tested"
    )
    compared(monkeypatch, compiled_adamw())


def test_torch_takes_the_steps_where_the_loop_does_not_pay_or_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_loops, "compiled_adamw", lambda: adamw)
    assert Moves(optimiser(weights())).able
    assert not Moves(optimiser([nn.Parameter(p.double()) for p in weights()])).able
    assert not Moves(optimiser([nn.Parameter(torch.zeros(4, 4).T[:2]) for _ in range(3)])).able
    monkeypatch.setattr(training_loops, "LARGEST", 3)
    assert not Moves(optimiser(weights())).able
    monkeypatch.undo()
    monkeypatch.setattr(training_loops, "compiled_adamw", lambda: None)
    parts = weights()
    moves, before = Moves(optimiser(parts)), parts[1].detach().clone()
    for _ in range(2):
        parts[1].grad = torch.ones(7)
        moves.take()
    assert not moves.able and not moves.groups and not torch.equal(parts[1], before)
