"""The neural Hawkes process: the loop's own gradient, closed forms it reduces to, its start, its
bound, and what it can learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor
from torch.nn.functional import softplus

from fourpoint.events import Batch, Dataset, Sequence, UserError
from fourpoint.inference.goodness import goodness_of_fit
from fourpoint.inference.likelihood import log_likelihood, sampled_log_likelihood
from fourpoint.inference.sampling import last_rates, remember, sample
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.nhp import NHP, NHPHistory, _Cells, _Output
from fourpoint.models.poisson import mean_rates
from fourpoint.training.fitting import fit

FALSE_ALARM = 1e-3


def data(marks: int = 3, scale: float = 1.0) -> Dataset:
    """Ragged sequences with ties, an empty one, and windows that start anywhere."""
    rng = np.random.default_rng(7)
    sequences = []
    for i, n in enumerate((5, 0, 8, 1)):
        t = np.sort(rng.uniform(2 + i, 9 + i, n))
        t[3:5] = t[2] if n > 4 else t[3:5]
        sequences.append(
            Sequence(
                scale * t,
                rng.integers(0, marks, n),
                start=scale * (1.5 + i),
                stop=scale * (10.0 + 2 * i),
                space=marks,
            )
        )
    return Dataset.from_sequences(sequences)


def lively(
    marks: int = 3,
    hidden: int = 6,
    *,
    seed: int = 3,
    spread: float = 0.6,
    kind: torch.dtype = torch.float64,
    **other: Any,
) -> NHP:
    """A model with every parameter well off its first value."""
    model = NHP(marks, hidden=hidden, embedding=4, **other)
    model.initialise(data(marks))
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=spread)
    exact = model.time_scale.clone()
    model.to(kind)
    model.time_scale = exact
    return model.eval()


def plain_cells(
    table: Tensor, marks: Tensor, gaps: Tensor, first: Tensor, weight: Tensor, kept: Tensor
) -> Tensor:
    """The equations as they are printed, one event after another."""
    (c, target, o, delta), states = first.chunk(4, -1), [first]
    for mark, gap in zip(marks, gaps, strict=True):
        left = target + (c - target) * torch.exp(-delta * gap[:, None])
        i, i_, f, f_, o, delta, z = (table[mark] + (o * torch.tanh(left)) @ weight).chunk(7, -1)
        o, delta, z = o.sigmoid() * kept, softplus(delta), z.tanh()
        c, target = f.sigmoid() * left + i.sigmoid() * z, f_.sigmoid() * target + i_.sigmoid() * z
        states.append(torch.cat([c, target, o, delta], -1))
    return torch.stack(states)


def cell_inputs(N: int, B: int, H: int, M: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(N + M)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).requires_grad_()

    marks = torch.randint(0, M, (N, B), generator=random)
    gaps = draw(N, B).detach().abs().requires_grad_()
    first = torch.cat([draw(B, 2 * H), draw(B, 2 * H).detach().abs()], -1).detach().requires_grad_()
    kept = (torch.rand(B, H, generator=random, dtype=torch.float64) > 0.3) / 0.7
    return [draw(M, 7 * H), marks, gaps, first, draw(H, 7 * H), kept]


@pytest.mark.parametrize(("N", "M"), [(0, 2), (1, 1), (5, 1), (6, 3)])
def test_the_loop_equals_the_equations_and_so_does_its_gradient(N: int, M: int) -> None:
    inputs = cell_inputs(N, 3, 4, M)
    fast, slow = _Cells.apply(*inputs), plain_cells(*inputs)
    assert torch.allclose(fast, slow, rtol=0, atol=1e-14)
    outside = torch.randn(
        fast.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    leaves = [x for x in inputs if x.requires_grad]
    found, expected = (
        torch.autograd.grad(y, leaves, outside, allow_unused=True) for y in (fast, slow)
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(
            one, torch.zeros_like(one) if other is None else other, rtol=0, atol=1e-12
        )


def test_gradients_by_differences() -> None:
    inputs = cell_inputs(4, 2, 3, 2)
    assert torch.autograd.gradcheck(_Cells.apply, inputs)
    state = inputs[3].detach()[:, None].repeat(1, 3, 1).requires_grad_()
    lag = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_Output.apply, (state, lag))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (gradient,) = torch.autograd.grad(
            _Output.apply(state, lag).square().sum(), state, create_graph=True
        )
        gradient.sum().backward()


def test_the_intensity_equals_the_equations() -> None:
    """log_intensity at any time against the paper's formulas, by one slow loop."""
    model, batch = lively(), data().batch()
    history = model.encode(batch)
    times = (
        batch.edges[:, :-1, None]
        + (batch.edges[:, 1:, None] - batch.edges[:, :-1, None]) * torch.tensor([0.3, 0.9]).double()
    )
    found = model.log_intensity(history, times)
    c, target, o, slow = model.first.expand(4, -1).chunk(4, -1)
    first = torch.cat([c, target, o.sigmoid(), softplus(slow)], -1)
    table = model.embedding @ model.input + model.bias
    anchors = batch.edges[:, :-1]
    gaps = anchors.diff(dim=1).T / model.time_scale
    states = plain_cells(
        table, batch.marks.T, gaps, first, model.recurrent, torch.ones(4, 6)
    ).transpose(0, 1)
    c, target, o, delta = states[:, :, None].chunk(4, -1)
    lag = ((times - anchors[..., None]) / model.time_scale)[..., None]
    h = o * torch.tanh(target + (c - target) * torch.exp(-delta * lag))
    scale = model.link.log_scale.exp()
    rate = scale * softplus((h @ model.readout.T + model.base) / scale) / model.time_scale
    assert torch.allclose(found.exp(), rate, rtol=1e-12)


def test_constant_gates_give_a_closed_form() -> None:
    """Without U and W every event does the same: c jumps to f c(t) + i z, and c' to f' c' + i' z.

    After n events the target is the geometric sum i' z (1 - f'^n) / (1 - f') + f'^n c'_0; the cell
    follows by hand.
    """
    model = lively(1)
    with torch.no_grad():
        model.recurrent.zero_()
        model.input.zero_()
    i, i_, f, f_, o, delta, z = model.bias.detach().chunk(7)
    i, i_, f, f_, o, delta, z = (
        i.sigmoid(),
        i_.sigmoid(),
        f.sigmoid(),
        f_.sigmoid(),
        o.sigmoid(),
        softplus(delta),
        z.tanh(),
    )
    times, start = [1.0, 2.5, 4.0], 0.5
    history = model.encode(Sequence(times, start=start, stop=6.0).batch())
    c0, target0, first_o, first_slow = model.first.detach().chunk(4)
    scale = model.time_scale
    c = target0 + (c0 - target0) * torch.exp(-softplus(first_slow) * (times[0] - start) / scale)
    for n in range(1, 4):
        c = f * c + i * z
        target = f_**n * target0 + i_ * z * (1 - f_**n) / (1 - f_)
        query = torch.tensor([[[times[n - 1] + 0.7]]], dtype=torch.float64)
        h = o * torch.tanh(target + (c - target) * torch.exp(-delta * 0.7 / scale))
        s = model.link.log_scale.exp()
        expected = (s * softplus((model.readout @ h + model.base) / s) / scale).item()
        assert model.log_intensity(
            history, query, torch.tensor([[n]])
        ).exp().item() == pytest.approx(expected, rel=1e-12)
        if n < 3:
            c = target + (c - target) * torch.exp(-delta * (times[n] - times[n - 1]) / scale)
    assert first_o.shape == o.shape


def test_it_starts_at_the_mean_rates() -> None:
    train = data(scale=100.0)
    model = NHP(3, hidden=5).eval()
    assert model.initialise(train) == [
        f"time scale: {train.gaps.mean():.4g} time units (the mean gap)"
    ]
    batch = train.batch()
    rate = model.intensity(model.encode(batch), batch.stop[:, None])
    assert torch.allclose(rate.double(), mean_rates(train, model.marks), rtol=1e-5)


def test_time_before_the_first_event_is_seen() -> None:
    """Two windows that open at different times before the same events: the learned start state
    tells them apart.
    """
    model = lively(1)
    late, early = (Sequence([5.0], start=start, stop=9.0).batch() for start in (4.9, 0.0))
    query = torch.tensor([[4.95, 6.0]], dtype=torch.float64)
    rates = [model.intensity(model.encode(b), query) for b in (late, early)]
    assert ((rates[0] - rates[1]).abs() > 1e-3).all()


def test_an_event_never_changes_what_comes_at_or_before_it() -> None:
    model, base = lively(), data().batch()
    moment = base.times[0, 2]
    query = (
        torch.tensor([1.6, 2.2, float(moment)], dtype=torch.float64).clamp(min=1.5).expand(1, -1)
    )
    first = Batch(base.times[:1], base.marks[:1], base.valid[:1], base.start[:1], base.stop[:1])
    changed = Batch(
        torch.where(
            torch.arange(8) >= 2, first.times + 0.8 * (first.stop - first.times), first.times
        ),
        torch.where(torch.arange(8) >= 2, (first.marks + 1) % 3, first.marks),
        first.valid,
        first.start,
        first.stop,
    )
    assert torch.equal(
        model.intensity(model.encode(first), query), model.intensity(model.encode(changed), query)
    )
    leaf = first.times.clone().requires_grad_()
    history = model.encode(Batch(leaf, first.marks, first.valid, first.start, first.stop))
    (gradient,) = torch.autograd.grad(
        model.log_intensity(history, query[:, None], torch.tensor([[2]])).sum(), leaf
    )
    assert (gradient[:, 2:] == 0).all() and (gradient[:, :2] != 0).all()


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("marks", [1, 3])
def test_the_bound_dominates_and_is_tight_on_short_windows(marks: int, kind: torch.dtype) -> None:
    model, random = (
        lively(marks, hidden=16, spread=1.5, kind=kind),
        torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        past = remember(model, data(marks).batch())
        last = past.times[:, 0]
        for _ in range(60):
            lag, width = (
                10.0 ** (4 * torch.rand(4, generator=random, dtype=torch.float64) - 3)
                for _ in range(2)
            )
            a = last + lag * (torch.rand(1, generator=random) > 0.2)
            grid = a[:, None] + width[:, None] * torch.linspace(0, 1, 60, dtype=torch.float64)
            rate = last_rates(model, past, grid).double().sum(-1)
            top = model.upper_bound(past, a, a + width)
            assert (rate <= top[:, None] * (1 + 1e-9)).all()
            slack = model.upper_bound(past, a, a + 1e-5) / rate[:, 0] - 1
            assert (slack < 1e-3).all()


def same_law(one: Dataset, other: Dataset) -> bool:
    """Two-sample tests of what is independent from path to path: how many events, when the first,
    and when the last.
    """

    def told(d: Dataset) -> list[list[float]]:
        first, last = ([s.times[i] if len(s) else s.start for s in d] for i in (0, -1))
        return [[float(n) for n in d.lengths], first, last]

    return all(
        ks_2samp(a, b).pvalue > FALSE_ALARM for a, b in zip(told(one), told(other), strict=True)
    )


def test_thinning_and_inversion_draw_from_one_law_and_fit() -> None:
    model = lively(2, seed=5)
    thinned, inverted = (
        sample(model, 0.0, 12.0, 150, seed=7, method=method) for method in ("thinning", "inversion")
    )
    assert same_law(thinned, inverted)
    for drawn in (thinned, inverted):
        total = goodness_of_fit(model, drawn).total
        assert (
            total.count > 300 and min(total.ks_p, total.uniform_p, total.ljung_box_p) > FALSE_ALARM
        )
        assert abs(total.count - total.expected) < 4 * np.sqrt(total.expected)


def test_going_on_from_rows_that_have_ended() -> None:
    """A row without events in a later block keeps the state after its last event."""
    model, batch = lively(), data().batch()
    whole = remember(model, batch)
    first = model.encode(batch.columns(0, 3))
    second = model.encode(batch.columns(3, 8), first.latest())
    for row in (1, 3):  # 0 and 1 events
        assert torch.equal(second.latest().state[row], whole.state[row])
        assert second.latest().times[row] == whole.times[row]
    assert isinstance(first.latest(), NHPHistory) and first.latest().times.shape == (4, 1)


def test_dropout_is_drawn_by_redraw_and_off_in_evaluation() -> None:
    model, batch, random = lively(dropout=0.5), data().batch(), torch.Generator()

    def score(seed: int) -> float:
        model.train().redraw(torch.Generator().manual_seed(seed))
        return sampled_log_likelihood(model, batch, 2, random.manual_seed(0)).sum().item()

    assert score(1) == score(1) != score(2)
    model.redraw(torch.Generator().manual_seed(1))
    history = model.encode(batch)
    silent = history.state.chunk(4, -1)[2] == 0
    assert (silent == silent[:, :1]).all() and 0 < silent[:, 0].double().mean() < 1
    assert (model.eval().encode(batch).state.chunk(4, -1)[2] > 0).all()


def test_large_values_stay_finite() -> None:
    model, batch = lively(1), Sequence([1.0, 1.0, 1e6], start=0.0, stop=1e9).batch()
    with torch.no_grad():
        model.bias.mul_(1e3)
        model.readout.mul_(1e3)
    leaf = model.bias
    logs = model.log_intensity(model.encode(batch), batch.edges[:, 1:, None])
    assert logs.isfinite().all()
    assert torch.autograd.grad(logs.sum(), leaf)[0].isfinite().all()


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(
        UserError, match="expected hidden and embedding of at least 1; received 0 and 32"
    ):
        NHP(hidden=0)
    with pytest.raises(UserError, match="expected dropout from 0 to below 1; received 1.0"):
        NHP(dropout=1.0)


def test_it_learns_a_hawkes_process() -> None:
    truth = Hawkes(baseline=0.5, branching=0.5, decay=1.0)
    train, dev, test = (
        sample(truth, 0.0, 30.0, n, seed=s) for n, s in ((200, 1), (50, 2), (100, 3))
    )
    model = NHP(hidden=16)
    model.initialise(train)
    flat = log_likelihood(model.eval(), test.batch()).per_event
    fit(
        model,
        train,
        dev,
        steps=120,
        learning_rate=2e-2,
        warmup=10,
        validate_every=40,
        progress=False,
    )
    oracle = log_likelihood(truth, test.batch()).per_event
    assert oracle - log_likelihood(model, test.batch()).per_event < 0.25 * (oracle - flat)
