"""What SAHP and THP share: where they begin, no leak, a bound that dominates, samples that follow
it, dropout that repeats.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from test_laws import data
from torch import Tensor

from fourpoint.events import Batch, Dataset, Sequence, UserError
from fourpoint.inference.goodness import goodness_of_fit
from fourpoint.inference.likelihood import sampled_log_likelihood
from fourpoint.inference.sampling import last_rates, remember, sample
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import mean_rates
from fourpoint.models.sahp import SAHP
from fourpoint.models.thp import THP
from fourpoint.training.fitting import fit

Attentive = type[SAHP] | type[THP]
FALSE_ALARM = 1e-3  # of each test of a p-value; seeds are fixed, so that a pass stays a pass
both = pytest.mark.parametrize("attentive", [SAHP, THP])


def lively(
    attentive: Attentive, marks: int = 3, kind: torch.dtype = torch.float64, size: float = 0.5
) -> SAHP | THP:
    """A model whose rates depend strongly on the past."""
    model = attentive(marks, hidden=8, heads=2)
    model.initialise(data(marks))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=random)
            parameter.data = parameter.data.to(kind)
    return model.eval()


def hawkes(sequences: int, seed: int) -> Dataset:
    return sample(Hawkes(baseline=0.5, branching=0.5, decay=1.0), 0.0, 30.0, sequences, seed=seed)


def rates_in_gaps(model: SAHP | THP, batch: Batch) -> Tensor:
    left, right = batch.edges[:, :-1, None], batch.edges[:, 1:, None]
    return model.log_intensity(
        model.encode(batch),
        left + (right - left) * torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64),
    )


@both
def test_it_begins_at_the_mean_rates(attentive: Attentive) -> None:
    model, events = attentive(3), data(3)
    notes = model.initialise(events)
    rate = model.eval().intensity(
        model.encode(events.batch()), torch.full((4, 1), 20.0, dtype=torch.float64)
    )
    assert torch.allclose(
        rate[:, 0].double(), mean_rates(events, model.marks).expand(4, 3), rtol=1e-5
    )
    assert notes == [f"time scale: {events.gaps.mean():.4g} time units (the mean gap)"]


@both
def test_changing_an_event_changes_what_comes_after_it_and_nothing_else(
    attentive: Attentive,
) -> None:
    model, batch = lively(attentive), data(3).batch()
    before = rates_in_gaps(model, batch)
    for i in range(int(batch.lengths[2])):
        here = (torch.arange(8) == i) & (torch.arange(4) == 2)[:, None]
        gap = batch.edges.diff(dim=1)[2, i + 1]
        for other in (
            Batch(
                torch.where(here, batch.times + 0.5 * gap, batch.times),
                batch.marks,
                batch.valid,
                batch.start,
                batch.stop,
            ),
            Batch(
                batch.times,
                torch.where(here, (batch.marks + 1) % 3, batch.marks),
                batch.valid,
                batch.start,
                batch.stop,
            ),
        ):
            if torch.equal(other.times, batch.times) and torch.equal(other.marks, batch.marks):
                continue
            history = model.encode(other)
            left, right = batch.edges[:, :-1, None], batch.edges[:, 1:, None]
            times = left + (right - left) * torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
            after = model.log_intensity(history, times)
            assert torch.equal(after[2, : i + 1], before[2, : i + 1])
            assert not torch.allclose(after[2, i + 1], before[2, i + 1], rtol=0, atol=1e-6)


@both
def test_no_gradient_reaches_an_event_from_its_own_score_or_an_earlier_one(
    attentive: Attentive,
) -> None:
    model, batch = lively(attentive), data(3).batch()
    leaf = batch.times.clone().requires_grad_()
    history = model.encode(Batch(leaf, batch.marks, batch.valid, batch.start, batch.stop))
    for i in range(8):  # event i is scored from position i, at its own time held fixed
        logs = model.log_intensity(history, batch.times[:, i, None, None], torch.full((4, 1), i))
        (gradient,) = torch.autograd.grad(logs[batch.valid[:, i]].sum(), leaf, retain_graph=True)
        assert (gradient[:, i:] == 0).all()
        assert i == 0 or (gradient[2, :i] != 0).any()


@both
def test_event_by_event_is_the_same(attentive: Attentive) -> None:
    model, batch = lively(attentive), data(3).batch()
    whole, step = model.encode(batch), model.encode(batch.columns(0, 0))
    for i in range(8):
        active = batch.valid[:, i]
        step = model.extend(
            step, torch.where(active, batch.times[:, i], torch.nan), batch.marks[:, i], active
        )
    times = (batch.stop[:, None] + torch.tensor([0.0, 5.0], dtype=torch.float64))[:, None]
    got, expected = (model.log_intensity(h, times, h.lengths[:, None]) for h in (step, whole))
    assert torch.allclose(got, expected, rtol=1e-11, atol=1e-11)


@both
def test_an_event_at_the_very_start_is_no_trouble(attentive: Attentive) -> None:
    sequence = Sequence([5.0, 5.0, 6.0], [0, 1, 2], start=5.0, stop=9.0, space=3)
    model = lively(attentive)
    score = sampled_log_likelihood(
        model.train(), sequence.batch(), 3, torch.Generator().manual_seed(0)
    ).sum()
    score.backward()
    assert score.isfinite() and all(
        p.grad is not None and p.grad.isfinite().all() for p in model.parameters()
    )


@both
def test_far_away_windows_are_seen_as_near_ones_are(attentive: Attentive) -> None:
    model = lively(attentive, kind=torch.float32)
    t = np.array([1.0, 1.25, 3.0, 4.5])
    near, far = (
        Sequence(t + a, [0, 1, 2, 0], start=a, stop=a + 6.0, space=3).batch()
        for a in (0.0, 2.0**30)
    )
    assert torch.allclose(rates_in_gaps(model, near), rates_in_gaps(model, far), rtol=0, atol=1e-5)


@both
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [0.3, 1.0])
def test_the_bound_dominates(attentive: Attentive, kind: torch.dtype, size: float) -> None:
    model, random = lively(attentive, kind=kind, size=size), torch.Generator().manual_seed(0)
    with torch.no_grad():
        past = remember(model, data(3).batch())
        last = past.last()
        for _ in range(60):
            lag, width = (
                10.0 ** (4 * torch.rand(4, generator=random, dtype=torch.float64) - 3)
                for _ in range(2)
            )
            a = last + lag * (torch.rand(1, generator=random) > 0.2)
            grid = a[:, None] + width[:, None] * torch.linspace(0, 1, 60, dtype=torch.float64)
            top = model.upper_bound(past, a, a + width)
            rates = last_rates(model, past, grid).sum(-1).double()
            assert bool((rates <= top[:, None]).all())
        short = (
            model.upper_bound(past, last + 0.5, last + 0.5 + 1e-6)
            / last_rates(model, past, (last + 0.5)[:, None]).sum((1, 2))
            - 1
        )
        assert float(short.abs().max()) < 1e-3


@both
def test_thinning_and_inversion_draw_from_one_law_and_pass_the_rescaling_test(
    attentive: Attentive,
) -> None:
    model = lively(attentive)
    thinned, inverted = (
        sample(model, 0.0, 8.0, 250, seed=7, method=method) for method in ("thinning", "inversion")
    )
    assert ks_2samp(thinned.times, inverted.times).pvalue > FALSE_ALARM
    assert ks_2samp(thinned.gaps, inverted.gaps).pvalue > FALSE_ALARM
    for drawn in (thinned, inverted):
        total = goodness_of_fit(model, drawn).total
        assert (
            total.count > 300 and min(total.ks_p, total.uniform_p, total.ljung_box_p) > FALSE_ALARM
        )
        assert abs(total.count - total.expected) < 4 * np.sqrt(total.expected)


@both
def test_training_with_dropout_is_repeatable(attentive: Attentive) -> None:
    train, dev = hawkes(40, 1), hawkes(10, 2)
    weights = []
    for disturbance in (0, 1):
        torch.manual_seed(disturbance)
        model = attentive(hidden=8, heads=2, dropout=0.3)
        fit(model, train, dev, steps=6, validate_every=3, progress=False)
        weights.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(*weights)
    other = attentive(hidden=8, heads=2)
    fit(other, train, dev, steps=6, validate_every=3, progress=False)
    assert not torch.equal(weights[0], torch.cat([p.flatten() for p in other.parameters()]))


@both
def test_going_on_from_a_history_is_refused(attentive: Attentive) -> None:
    model, batch = lively(attentive), data(3).batch()
    words = (
        "expected a linear form to go on from a history; received a model that attends to every "
        "event"
    )
    with pytest.raises(UserError, match=words):
        model.encode(batch.columns(3, 8), model.encode(batch.columns(0, 3)))
    with pytest.raises(UserError, match="hidden=9"):
        attentive(hidden=9)
