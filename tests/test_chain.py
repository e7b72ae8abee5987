"""The hidden chain of the Markov-modulated Poisson process: its filter, and factors of blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import gammaln
from scipy.stats import ks_2samp, nbinom

import fourpoint as fp
from fourpoint.events import Context, Dataset, Sequence
from fourpoint.models import MarkovModulated
from fourpoint.ops.chain import filtered, plain_filtered


def test_the_filter_is_bayes_rule() -> None:
    """Against the sum over all paths of the chain."""
    random = torch.Generator().manual_seed(3)
    first = torch.rand(1, 2, generator=random, dtype=torch.float64).softmax(1)
    factors = torch.rand(1, 4, 2, generator=random, dtype=torch.float64)
    moves = torch.tensor([[1, -1, 0, 1]])
    T = torch.rand(2, 2, 2, generator=random, dtype=torch.float64).softmax(2)
    weight = torch.zeros(2, dtype=torch.float64)
    for path in np.ndindex(2, 2, 2, 2):
        # The state during the four steps, which stays where the chain does not move, and the last.
        for last in range(2):
            states = [*path, last]
            chance = first[0, states[0]]
            for s in range(4):
                now, then = states[s], states[s + 1]
                stays = 1.0 if now == then else 0.0
                d = int(moves[0, s])
                chance = chance * factors[0, s, now] * (T[d, now, then] if d >= 0 else stays)
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


def overdispersed(shape: float | None, days: int = 60) -> Dataset:
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


def test_independent_levels_of_days_are_forgotten_at_midnight() -> None:
    days = 80
    rng = np.random.default_rng(2)
    level = np.repeat(rng.choice([0.5, 5.0], days), 24)
    counts = rng.poisson(level)
    times = np.repeat(np.arange(24 * days), counts) + rng.random(counts.sum())
    context = Context(origin=np.array([1_735_689_600.0]))  # midnight
    log = Sequence(np.sort(times), start=0.0, stop=24.0 * days, context=context)
    model = MarkovModulated(states=2, block=3600.0, phases=24)
    fp.fit(model, Dataset.from_sequences([log], unit="hours"), calendar="hour", progress=False)
    forgets = model.chain.forgets.detach()
    assert forgets[23] > 0.5
    assert (forgets[:23] < 0.1).all()


def test_paths_from_hidden_states_have_the_law_of_thinning() -> None:
    """Counts, times and marks of paths that begin within a block, from a past that tells of it."""
    rng = np.random.default_rng(8)
    times = np.sort(rng.uniform(0, 24 * 30, 900))
    context = Context(origin=np.array([19723 * 86400.0 + 1800.0]))
    marks = rng.integers(0, 2, len(times))
    log = Sequence(times, marks, start=0.0, stop=720.0, context=context)
    model = MarkovModulated(marks=2, states=3, block=3600.0)
    fp.fit(model, Dataset.from_sequences([log], unit="hours"), calendar="hour", progress=False)
    with torch.no_grad():
        model.log_level += torch.tensor([-1.5, 0.0, 1.2])
        model.log_shape.fill_(np.log(2.0))
    paths = [
        fp.sample_paths(model, 720.3, 732.0, 2000, 5, history=log.until(720.0), method=method)
        for method in ("auto", "thinning")
    ]
    assert [one.method for one in paths] == ["hidden states first", "thinning"]
    drawn = [one.data for one in paths]
    counts = [one.lengths for one in drawn]
    gap = counts[0].mean() - counts[1].mean()
    assert abs(gap) < 4 * np.sqrt((counts[0].var() + counts[1].var()) / 2000)
    assert counts[0].std() == pytest.approx(counts[1].std(), rel=0.1)
    assert ks_2samp(drawn[0].times, drawn[1].times).pvalue > 1e-4
    early = [np.bincount(d.mark_ids[d.times < 721.0], minlength=2) / 2000 for d in drawn]
    assert early[0] == pytest.approx(early[1], abs=0.06)
    with pytest.warns(UserWarning, match="reached most=2"):
        assert fp.sample(model, 720.0, 732.0, 50, history=log, most=2).lengths.max() == 2
