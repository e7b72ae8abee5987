"""The hidden chain of the Markov-modulated Poisson process: its filter, and factors of blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import gammaln
from scipy.stats import nbinom

import fourpoint as fp
from fourpoint.events import Context, Dataset, Sequence
from fourpoint.models import MarkovModulated
from fourpoint.ops.chain import filtered, plain_filtered

LEVELS = np.arange(0.05, 1.0, 0.1)


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


def test_counts_of_blocks_are_negative_binomial() -> None:
    """The likelihood of a log is that of the counts of its blocks, times that of uniform times."""
    shape, level, counts = 3.0, 1.7, [2, 0, 4]
    model = MarkovModulated(states=1, block=1.0).eval()
    with torch.no_grad():
        model.log_shape.fill_(np.log(shape))
        model.log_level.fill_(np.log(level))
    times = np.concatenate([b + np.linspace(0.1, 0.9, n) for b, n in enumerate(counts)])
    score = fp.evaluate(model, Sequence(times, start=0.0, stop=3.0)).scores["window"]
    expected = 0.0
    for n in counts:
        chance = nbinom.logpmf(n, shape, shape / (shape + level))
        expected += chance + gammaln(n + 1)
    assert score.per_event * len(times) == pytest.approx(expected, abs=1e-9)


def overdispersed(shape: float | None, days: int = 150) -> Dataset:
    """Counts per block around 4, with a factor of gamma distribution for each block."""
    rng = np.random.default_rng(5)
    factor = np.ones(24 * days) if shape is None else rng.gamma(shape, 1 / shape, 24 * days)
    counts = rng.poisson(4.0 * factor)
    times = np.repeat(np.arange(len(counts)), counts) + rng.random(counts.sum())
    return Dataset.from_sequences([Sequence(np.sort(times), start=0.0, stop=24.0 * days)])


@pytest.mark.parametrize("shape", [1.5, None])
def test_the_shape_of_the_factors_is_recovered(shape: float | None) -> None:
    model = MarkovModulated(states=1, block=1.0)
    fp.fit(model, overdispersed(shape), progress=False)
    found = float(model.log_shape.detach().exp()[0])
    if shape is None:
        assert found > 50
    else:
        assert found == pytest.approx(shape, rel=0.12)


def test_days_with_independent_levels_are_forecast_better_than_by_a_poisson_process() -> None:
    """The likelihood of the last days, and forecasts of their counts by hour as quantiles."""
    days, known = 120, 100
    rng = np.random.default_rng(2)
    level = np.repeat(rng.gamma(3.0, 1 / 3.0, days), 24)
    counts = rng.poisson(2.0 * level)
    times = np.repeat(np.arange(24 * days), counts) + rng.random(counts.sum())
    origin = Context(origin=np.array([1_735_689_600.0]))
    log = Sequence(np.sort(times), start=0.0, stop=24.0 * days, context=origin)
    data = Dataset.from_sequences([log], unit="hours")
    train, _ = data.split_at([24.0 * known])
    score = {}
    for name in ("markov-modulated", "poisson"):
        model = fp.MODELS[name]()
        fp.fit(model, train, calendar="hour", progress=False)
        losses = []
        for day in range(known, days):
            table = fp.forecasts(
                model, data, 24.0, by=1.0, at=24.0 * day, paths=200, quantiles=LEVELS, whole=True
            )
            columns = [column for column in table.column_names if column.startswith("q")]
            values = np.stack([table.column(column).to_numpy() for column in columns], 1)
            error = counts[24 * day : 24 * day + 24, None] - values
            losses.append(np.maximum(LEVELS * error, (LEVELS - 1) * error).mean())
        score[name] = np.mean(losses)
    assert score["markov-modulated"] < score["poisson"]
