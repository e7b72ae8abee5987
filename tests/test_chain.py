"""The hidden chain of the Markov-modulated Poisson process: its filter, and its slow levels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fourpoint as fp
from fourpoint.events import Sequence, UserError
from fourpoint.models import MarkovModulated
from fourpoint.ops.chain import filtered, plain_filtered


def test_the_filter_is_bayes_rule() -> None:
    """Against the sum over all paths of the chain."""
    random = torch.Generator().manual_seed(3)
    first = torch.rand(1, 2, generator=random, dtype=torch.float64).softmax(1)
    factors = torch.rand(1, 4, 2, generator=random, dtype=torch.float64)
    moves = torch.tensor([[True, False, True, True]])
    T = torch.rand(2, 2, generator=random, dtype=torch.float64).softmax(1)
    weight = torch.zeros(2, dtype=torch.float64)
    for path in np.ndindex(2, 2, 2, 2):
        # The state during the four steps, which stays where the chain does not move, and the last.
        for last in range(2):
            states = [*path, last]
            chance = first[0, states[0]]
            for s in range(4):
                now, then = states[s], states[s + 1]
                stays = 1.0 if now == then else 0.0
                chance = chance * factors[0, s, now] * (T[now, then] if moves[0, s] else stays)
            weight[last] += chance
    found = filtered(first, factors, moves, T)
    assert torch.allclose(found[0, -1], weight / weight.sum())
    assert torch.equal(found, plain_filtered(first, factors, moves, T))


def rate_after(model: MarkovModulated, per_block: float) -> float:
    """The rate after 400 blocks of length 1 with so many events each."""
    times = np.arange(0.25, 400.0, 1 / per_block)
    history = model.encode(Sequence(times, start=0.0, stop=400.0).batch())
    at = torch.tensor([[400.0 - 1e-9]], dtype=torch.float64)
    return float(model.intensity(history, at).detach()[0, 0, 0])


def test_a_slow_level_follows_the_last_weeks_and_returns_to_the_mean(tmp_path: Path) -> None:
    model = MarkovModulated(states=1, block=1.0, slow=7).eval()
    assert rate_after(model, 2.0) == pytest.approx(2.0, rel=0.15)
    assert rate_after(model, 0.5) == pytest.approx(0.5, rel=0.15)
    assert rate_after(MarkovModulated(states=1, block=1.0), 2.0) == pytest.approx(1.0)
    transition = model.transition.detach()
    assert torch.allclose(transition.sum(1), torch.ones(7, dtype=torch.float64))
    step = torch.linalg.matrix_power(transition, 100_000)[6]
    assert torch.allclose(step, torch.full_like(step, 1 / 7), atol=1e-6)
    fp.save(model, tmp_path)
    again = fp.restore(tmp_path)
    assert rate_after(again, 2.0) == rate_after(model, 2.0)
    with pytest.raises(UserError, match="1 to 64 slow levels"):
        MarkovModulated(slow=0)


def test_levels_and_slow_levels_are_found_together() -> None:
    """A level that doubles half way: slow levels explain it, and the chain need not."""
    rng = np.random.default_rng(5)
    rate = np.repeat([1.0, 2.0], 600)
    times = np.repeat(np.arange(1200.0), rng.poisson(rate))
    times = np.sort(times + rng.uniform(size=len(times)))
    data = fp.Dataset.from_sequences([Sequence(times, start=0.0, stop=1200.0)])
    scores = []
    for slow in (1, 7):
        model = MarkovModulated(states=1, block=1.0, slow=slow)
        fp.fit(model, data, progress=False)
        scores.append(fp.evaluate(model, data).scores["window"].per_event)
    assert scores[1] > scores[0] + 0.03
