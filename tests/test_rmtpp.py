"""The recurrent marked process: closed forms against quadrature, the loop's own gradient,
reductions, the sampler by inversion.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from fourpoint.events import Batch, Dataset, Sequence, UserError
from fourpoint.inference.goodness import goodness_of_fit
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.sampling import last_rates, remember, sample
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import mean_rates
from fourpoint.models.rmtpp import RMTPP, _log1p_over, _LogMeanExp, _Recurrence, _Score
from fourpoint.ops.quadrature import Unconverged
from fourpoint.ops.thinning import draw_marks
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
    time_weight: float | None = None,
    kind: torch.dtype = torch.float64,
) -> RMTPP:
    """A model with every parameter well off its first value, and w as wished."""
    model = RMTPP(marks, hidden=hidden)
    model.initialise(data(marks))
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.5)
        if time_weight is not None:
            model.time_weight.fill_(time_weight)
    exact = model.time_scale.clone()
    model.to(kind)
    model.time_scale = exact
    return model.eval()


# ---------------------------------------------------------------------- the equations


def test_the_intensity_equals_the_equations() -> None:
    model, batch = lively(), data().batch()
    history = model.encode(batch)
    times = (
        batch.edges[:, :-1, None]
        + (batch.edges[:, 1:, None] - batch.edges[:, :-1, None]) * torch.tensor([0.3, 0.9]).double()
    )
    found = model.log_intensity(history, times)
    h, edges = model.first.expand(4, -1), batch.edges
    for i in range(9):
        lag = (times[:, i] - edges[:, i, None]) / model.time_scale
        total = torch.exp((h @ model.readout[:, :1] + model.bias[0]) + model.time_weight * lag)
        expected = (
            total[..., None] * torch.softmax(h @ model.readout[:, 1:] + model.bias[1:], -1)[:, None]
        )
        if i == 0:
            expected = torch.exp(model.first_level + model.time_weight * lag[..., None])
        assert torch.allclose(found[:, i].exp(), expected / model.time_scale, rtol=1e-12)
        if i < 8:
            d = ((edges[:, i + 1] - edges[:, i]) / model.time_scale)[:, None]
            features = torch.cat([torch.log1p(d), d / (1 + d)], 1)
            h = torch.tanh(
                model.embedding[batch.marks[:, i]]
                + features @ model.gap_weight
                + h @ model.recurrent
            )


def plain_states(
    table: Tensor, marks: Tensor, features: Tensor, across: Tensor, first: Tensor, weight: Tensor
) -> Tensor:
    states = [first]
    for mark, feature in zip(marks, features, strict=True):
        states.append(torch.tanh(table[mark] + feature @ across + states[-1] @ weight))
    return torch.stack(states)


@pytest.mark.parametrize(("N", "M"), [(0, 2), (1, 1), (6, 1), (5, 3)])
def test_the_loop_equals_the_equations_and_so_does_its_gradient(N: int, M: int) -> None:
    random = torch.Generator().manual_seed(N)
    shapes = ((M, 4), (N, 3, 2), (2, 4), (3, 4), (4, 4))
    table, *rest = leaves = [
        torch.randn(*shape, generator=random, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    inputs = [table, torch.randint(0, M, (N, 3), generator=random), *rest]
    fast, slow = _Recurrence.apply(*inputs), plain_states(*inputs)
    assert torch.allclose(fast, slow, rtol=0, atol=1e-14)
    outside = torch.randn(fast.shape, generator=random, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad(y, leaves, outside, allow_unused=True) for y in (fast, slow)
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(
            one, torch.zeros_like(one) if other is None else other, rtol=0, atol=1e-13
        )
    if N:
        assert torch.autograd.gradcheck(_Recurrence.apply, inputs)


def test_the_score_has_its_gradient() -> None:
    random = torch.Generator().manual_seed(1)
    gaps = torch.randn(5, 3, generator=random, dtype=torch.float64).abs()
    gaps[2, 0] = 0.0
    fewer = torch.where(torch.rand(5, 3, generator=random) > 0.4, gaps, 0.0)
    valid = torch.rand(4, 3, generator=random) > 0.3
    for count in (1, 2):
        level, opening = (
            torch.randn(*shape, count, generator=random, dtype=torch.float64, requires_grad=True)
            for shape in ((5, 3), (3,))
        )
        marks = torch.randint(count, (4, 3), generator=random)
        for time_weight, own in (
            (-0.8, gaps),
            (0.0, gaps),
            (1e-4, gaps),
            (0.5, gaps),
            (0.5, fewer),
        ):
            w = torch.tensor(time_weight, dtype=torch.float64, requires_grad=True)
            assert torch.autograd.gradcheck(_Score.apply, (level, opening, w, marks, own, valid))


def test_a_constant_rate_between_events_where_w_is_0() -> None:
    model, batch = lively(time_weight=0.0), data().batch()
    times = (
        batch.edges[:, :-1, None]
        + (batch.edges[:, 1:, None] - batch.edges[:, :-1, None]) * torch.linspace(0, 1, 7).double()
    )
    logs = model.log_intensity(model.encode(batch), times)
    assert torch.equal(logs, logs[:, :, :1].expand_as(logs))
    assert float((logs[:, 0] - logs[:, 1]).detach().abs().max()) > 0.1


def test_a_poisson_process_without_memory() -> None:
    """With no weights on past, marks and gaps, h is one constant vector after any event; with w = 0
    the rate is too.
    """
    model, batch = lively(time_weight=0.0), data().batch()
    with torch.no_grad():
        for weight in (model.recurrent, model.embedding, model.gap_weight):
            weight.zero_()
        model.first_level.copy_(model.bias[0] + model.bias[1:].log_softmax(0))
    rate = model.intensity(
        model.encode(batch), batch.start[:, None] + torch.linspace(0, 12, 50).double()
    )
    expected = torch.exp(model.bias[0]) * torch.softmax(model.bias[1:], 0) / model.time_scale
    assert torch.allclose(rate, expected.expand_as(rate), rtol=1e-12)


def test_it_starts_at_the_mean_rates() -> None:
    for marks in (1, 3):
        train = data(marks, scale=100.0)
        model = RMTPP(marks, hidden=5).eval()
        assert model.initialise(train) == [
            f"time scale: {train.gaps.mean():.4g} time units (the mean gap)"
        ]
        batch = train.batch()
        rate = model.intensity(model.encode(batch), batch.stop[:, None])
        assert torch.allclose(rate.double(), mean_rates(train, model.marks), rtol=1e-5)


def test_an_event_never_changes_what_comes_at_or_before_it() -> None:
    model, base = lively(), data().batch()
    first = Batch(base.times[:1], base.marks[:1], base.valid[:1], base.start[:1], base.stop[:1])
    query = torch.stack([first.start[0] + 0.1, first.times[0, 0] + 0.01, first.times[0, 2]])[None]
    later = torch.arange(8) >= 2
    moved = torch.where(later, first.times + 0.8 * (first.stop - first.times), first.times)
    changed = Batch(
        moved,
        torch.where(later, (first.marks + 1) % 3, first.marks),
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


# ---------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("time_weight", [-2.0, -1e-5, 0.0, 1e-9, 0.4])
def test_the_closed_likelihood_equals_quadrature(time_weight: float) -> None:
    model, batch = lively(time_weight=time_weight), data().batch()
    exact = model.exact_log_likelihood(batch)
    history, edges = model.encode(batch), batch.edges
    nodes, weights = np.polynomial.legendre.leggauss(40)
    x, w = torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)
    width = edges.diff(dim=1)
    rates = model.log_intensity(history, edges[:, :-1, None] + width[..., None] * x).exp()
    integral = torch.einsum("bgqm,q,bg->bgm", rates, w, width)
    assert torch.allclose(
        model.closed_integral(history, edges[:, :-1], edges[:, 1:]), integral, rtol=1e-11
    )
    assert torch.allclose(exact, log_likelihood(model, batch).value, rtol=0, atol=1e-10)
    found = torch.autograd.grad(exact.sum(), list(model.parameters()))
    seen = torch.arange(8).expand(4, 8)
    own = model.log_intensity(history, batch.times[..., None], seen)[:, :, 0].gather(
        2, batch.marks[..., None]
    )[..., 0]
    expected = torch.autograd.grad(
        (torch.where(batch.valid, own, 0.0).sum() - integral.sum()), list(model.parameters())
    )
    assert all(
        torch.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(found, expected, strict=True)
    )


def test_integrals_of_part_of_a_gap_add_up() -> None:
    model, batch = lively(time_weight=-0.3), data().batch()
    history = model.encode(batch)
    a, b = batch.stop[:, None] + 1, batch.stop[:, None] + 4
    seen = batch.lengths[:, None]
    middle = (a + b) / 2
    parts = model.closed_integral(history, a, middle, seen) + model.closed_integral(
        history, middle, b, seen
    )
    assert torch.allclose(parts, model.closed_integral(history, a, b, seen), rtol=1e-12)


def test_helpers_near_0_and_far_away() -> None:
    values = [-700.0, -30.0, -1e-2, -1e-3, -1e-9, 0.0, 1e-12, 9e-4, 1.1e-3, 0.5, 30.0, 5000.0]
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    expected = [
        0.0 if v == 0 else (v if v > 0 else 0) + math.log(-math.expm1(-abs(v)) / abs(v))
        for v in x.tolist()
    ]
    assert torch.allclose(
        _LogMeanExp.apply(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15
    )
    assert torch.autograd.gradcheck(_LogMeanExp.apply, (x[:-1].detach().requires_grad_(),))
    y = torch.tensor([-0.999, -1e-3, -1e-5, 0.0, 1e-5, 2e-4, 7.0, 1e300], dtype=torch.float64)
    expected = [1.0 if v == 0 else math.log1p(v) / v for v in y.tolist()]
    assert torch.allclose(_log1p_over(y), torch.tensor(expected, dtype=torch.float64), rtol=1e-12)


@pytest.mark.parametrize("time_weight", [-0.7, -1e-8, 0.0, 1e-8, 0.3])
def test_the_inverse_undoes_the_integral(time_weight: float) -> None:
    model = lively(time_weight=time_weight)
    past = remember(model, data().batch())
    a = past.times[:, 0] + torch.tensor([0.0, 0.5, 1.0, 3.0]).double()
    for b in (a, a + 1e-6, a + 0.3, a + 5.0):
        mass = model.closed_integral(past, a[:, None], b[:, None], past.lengths[:, None]).sum(
            (1, 2)
        )
        assert torch.allclose(model.inverse(past, a, mass), b, rtol=0, atol=1e-9)


def test_a_falling_rate_may_never_reach_the_mass() -> None:
    model = lively(time_weight=-0.5)
    past = remember(model, data().batch())
    a = past.times[:, 0]
    whole = model.closed_integral(past, a[:, None], a[:, None] + 1e6, past.lengths[:, None]).sum(
        (1, 2)
    )
    assert model.inverse(past, a, whole * 1.001).isinf().all()
    assert model.inverse(past, a, whole * 0.999).isfinite().all()


def test_a_rate_without_end_is_told() -> None:
    model = lively(1, time_weight=1.0)
    history = model.encode(Sequence([1.0], start=0.0, stop=1e6).batch())
    words = r"expected a finite integral of the intensity; received inf over \[1, 1e\+06\] of row 0"
    with pytest.raises(Unconverged, match=words), torch.no_grad():
        model.closed_integral(history, history.times, torch.tensor([[1.0, 1e6]]).double())
    assert (
        model.exact_log_likelihood(Sequence([1.0], start=0.0, stop=1e6).batch()).item() == -math.inf
    )


def test_an_event_at_every_start_has_no_pull_on_the_rest() -> None:
    """Windows that all open with an event: the opening level may rise for ever, even beyond what a
    float can exponentiate.
    """
    model = lively(1, kind=torch.float32)
    batch = Sequence([0.0, 1.0, 1.0, 2.0], start=0.0, stop=3.0).batch()
    grads = []
    for level in (0.0, 1000.0):
        with torch.no_grad():
            model.first_level.fill_(level)
        score = model.exact_log_likelihood(batch)
        assert score.isfinite().all()
        grads.append(torch.autograd.grad(score.sum(), list(model.parameters())))
        with torch.no_grad():
            assert log_likelihood(model, batch).integral.isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


# ---------------------------------------------------------------------- samples


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize(("marks", "time_weight"), [(1, -0.5), (3, 0.2)])
def test_the_bound_dominates(marks: int, time_weight: float, kind: torch.dtype) -> None:
    model, random = (
        lively(marks, time_weight=time_weight, kind=kind),
        torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        past = remember(model, data(marks).batch())
        for _ in range(40):
            lag, width = (
                10.0 ** (4 * torch.rand(4, generator=random, dtype=torch.float64) - 3)
                for _ in range(2)
            )
            a = past.times[:, 0] + lag
            grid = a[:, None] + width[:, None] * torch.linspace(0, 1, 60, dtype=torch.float64)
            rate, top = (
                last_rates(model, past, grid).double().sum(-1),
                model.upper_bound(past, a, a + width),
            )
            assert (rate <= top[:, None] * (1 + 1e-9)).all() and (
                top <= rate.amax(1) * (1 + 1e-4)
            ).all()


def by_inverse(model: RMTPP, stop: float, paths: int, seed: int) -> Dataset:
    """Paths on [0, stop) by the closed inverse: the next event is where the integral reaches a unit
    exponential.
    """
    random = torch.Generator().manual_seed(seed)
    past = remember(model, Sequence([], start=0.0, stop=stop, space=model.marks.count).batch())
    known = {name: value for name, value in vars(past).items() if value is not None}
    past = replace(past, **{name: v.expand(paths, *v.shape[1:]) for name, v in known.items()})
    at = torch.zeros(paths, dtype=torch.float64)
    events: list[tuple[list[float], list[int]]] = [([], []) for _ in range(paths)]
    while bool((at < stop).any()):
        at = model.inverse(
            past, at, -torch.rand(paths, generator=random, dtype=torch.float64).log()
        )
        hit = at < stop
        marks = draw_marks(
            last_rates(model, past, torch.where(hit, at, stop)[:, None])[:, 0], random
        )
        past = model.extend(past, at, marks, hit)
        for i in torch.nonzero(hit)[:, 0].tolist():
            events[i][0].append(at[i].item())
            events[i][1].append(int(marks[i]))
    return Dataset.from_sequences(
        [Sequence(t, m, start=0.0, stop=stop, space=model.marks.count) for t, m in events]
    )


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


@pytest.mark.parametrize("time_weight", [-0.4, 0.15])
def test_thinning_and_both_inversions_draw_from_one_law_and_fit(time_weight: float) -> None:
    model = lively(2, time_weight=time_weight)
    with torch.no_grad():
        drawn = [
            by_inverse(model, 12.0, 500, 1),
            *(sample(model, 0.0, 12.0, 500, seed=7, method=m) for m in ("thinning", "inversion")),
        ]
    assert same_law(drawn[0], drawn[1]) and same_law(drawn[0], drawn[2])
    for paths in drawn:
        total = goodness_of_fit(model, paths).total
        assert (
            total.count > 300 and min(total.ks_p, total.uniform_p, total.ljung_box_p) > FALSE_ALARM
        )
        assert abs(total.count - total.expected) < 4 * np.sqrt(total.expected)


def test_going_on_from_rows_that_have_ended() -> None:
    model, batch = lively(), data().batch()
    whole = remember(model, batch)
    second = model.encode(batch.columns(3, 8), model.encode(batch.columns(0, 3)).latest()).latest()
    for row in (1, 3):  # 0 and 1 events
        assert torch.equal(second.state[row], whole.state[row]) and torch.equal(
            second.level[row], whole.level[row]
        )
        assert second.times[row] == whole.times[row]


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="expected a state of at least 1 number; received hidden=0"):
        RMTPP(hidden=0)


def test_it_learns_from_a_hawkes_process() -> None:
    """The rate is one exponential per gap, so that about half of what a Hawkes process has to tell
    is within reach.
    """
    truth = Hawkes(baseline=0.5, branching=0.5, decay=1.0)
    train, dev, test = (
        sample(truth, 0.0, 30.0, n, seed=s) for n, s in ((200, 1), (50, 2), (100, 3))
    )
    model = RMTPP(hidden=16)
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
    assert model.time_weight.item() < 0
    assert oracle - log_likelihood(model, test.batch()).per_event < 0.5 * (oracle - flat)
