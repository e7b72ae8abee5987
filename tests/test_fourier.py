"""Fourier kernels: positive definite, unbiased in both phases, equal to the slow loop, with the
right gradients.
"""

from __future__ import annotations

import math

import pytest
import torch
from reference.attention_loop import score
from scipy.stats import kstest
from torch import Tensor

from fourpoint.ops import fourier
from fourpoint.ops.fourier import (
    Generator,
    Spectrum,
    even_noise,
    fourier_scores as scores,
    independent_noise,
    kernel,
    non_negative,
    with_constant,
)


def spectrum(
    heads: int = 2,
    modes: int = 5,
    marks: int = 3,
    decay: bool = True,
    phase: bool = False,
    seed: int = 0,
) -> Spectrum:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    return Spectrum(
        2 * draw(heads, modes),
        0.5 * draw(heads, modes).abs() if decay else None,
        draw(heads, modes, marks),
        torch.softmax(draw(heads, modes), 1),
        2 * math.pi * torch.rand(heads, modes, generator=random, dtype=torch.float64)
        if phase
        else None,
    )


def points(n: int = 20, marks: int = 3) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    times = (10 * torch.rand(2, n, generator=random, dtype=torch.float64)).sort(1).values
    return times, torch.randint(0, marks, (2, n), generator=random)


@pytest.mark.parametrize("decay", [False, True])
def test_a_paired_kernel_is_one_at_lag_zero(decay: bool) -> None:
    s = spectrum(decay=decay)
    for mark in range(3):
        assert torch.allclose(
            kernel(s, torch.zeros(1), mark, mark),
            torch.ones(2, 1, dtype=torch.float64),
            rtol=0,
            atol=1e-15,
        )
    lags = torch.linspace(0, 30, 301)
    assert all((kernel(s, lags, m, n).abs() <= 1 + 1e-15).all() for m in range(3) for n in range(3))


@pytest.mark.parametrize(
    "change",
    [lambda s: s, with_constant, non_negative],
    ids=["plain", "with_constant", "non_negative"],
)
@pytest.mark.parametrize("decay", [False, True])
def test_kernel_matrices_are_positive_semidefinite(decay: bool, change) -> None:
    s = change(spectrum(decay=decay))
    times, marks = points()
    n = times.shape[1]
    below = scores(s, times[:1], times[:1], marks[:1])[
        0
    ]  # (K, n, M, n), right for events before the query
    own = below[:, torch.arange(n), marks[0]]
    for matrix in own:
        low = matrix.tril(-1)
        assert torch.allclose(matrix.diagonal(), torch.ones(n, dtype=torch.float64), atol=1e-13)
        whole = low + low.T + torch.eye(n, dtype=torch.float64)
        assert torch.linalg.eigvalsh(whole).min() > -1e-12


@pytest.mark.parametrize("draw", [independent_noise, even_noise])
@pytest.mark.parametrize("phase", [False, True], ids=["paired", "random"])
def test_both_phases_are_unbiased(phase: bool, draw) -> None:
    """Frequencies N(0, 1) have the kernel exp(-d^2 / 2), whatever the number of modes."""
    random = torch.Generator().manual_seed(2)
    draws, modes = 4000, 6
    theta = draw(draws, modes, 1, random)[..., 0].double()
    b = (
        2 * math.pi * torch.rand(draws, modes, generator=random, dtype=torch.float64)
        if phase
        else None
    )
    s = Spectrum(
        theta, None, torch.zeros_like(theta)[..., None], torch.full_like(theta, 1 / modes), b
    )
    query, events = torch.tensor([[3.0]]).double(), torch.tensor([[0.5, 2.0, 2.8, 3.0]]).double()
    estimates = scores(s, query, events, torch.zeros(1, 4, dtype=torch.long))[0, :, 0, 0]
    exact = torch.exp(-((query - events) ** 2) / 2)[0]
    allowed = 4 * estimates.std(0) / math.sqrt(draws) + 1e-12
    assert ((estimates.mean(0) - exact).abs() <= allowed).all()
    if not phase:
        assert torch.allclose(estimates[:, -1], torch.ones(draws, dtype=torch.float64))


def test_the_kernel_of_random_phases_is_their_expectation() -> None:
    s = spectrum(phase=True)
    random = torch.Generator().manual_seed(3)
    query, events, marks = (
        torch.tensor([[4.0]]).double(),
        torch.tensor([[1.0, 3.5]]).double(),
        torch.tensor([[2, 0]]),
    )
    draws = []
    for _ in range(3000):
        b = 2 * math.pi * torch.rand(s.frequency.shape, generator=random, dtype=torch.float64)
        draws.append(scores(s._replace(phase=b), query, events, marks)[0, :, 0])
    found = torch.stack(draws)
    for i, (lag, past) in enumerate(((3.0, 2), (0.5, 0))):
        for m in range(3):
            exact = kernel(s, torch.tensor([lag]), m, past)[:, 0]
            here = found[:, :, m, i]
            assert ((here.mean(0) - exact).abs() <= 4 * here.std(0) / math.sqrt(len(draws))).all()


@pytest.mark.parametrize("phase", [False, True], ids=["paired", "random"])
@pytest.mark.parametrize("decay", [False, True])
def test_scores_equal_the_loop(decay: bool, phase: bool) -> None:
    s = spectrum(decay=decay, phase=phase)
    events, marks = points(6)
    query = events + 0.3
    fast = scores(s, query, events, marks)
    assert fast.shape == (2, 2, 6, 3, 6)
    for b in range(2):
        for q in range(6):
            for i in range(6):
                if events[b, i] <= query[b, q]:
                    slow = score(
                        query[b, q],
                        events[b, i],
                        int(marks[b, i]),
                        s.frequency,
                        s.decay,
                        s.shift,
                        s.weight,
                        s.phase,
                    )
                    assert torch.allclose(fast[b, :, q, :, i], slow, rtol=1e-12, atol=1e-12)


def test_the_kernel_is_the_score() -> None:
    s = spectrum()
    found = scores(
        s, torch.tensor([[5.0]]).double(), torch.tensor([[2.0]]).double(), torch.tensor([[1]])
    )
    for m in range(3):
        assert torch.allclose(
            kernel(s, torch.tensor([3.0]), m, 1)[:, 0], found[0, :, 0, m, 0], rtol=1e-13, atol=1e-14
        )


@pytest.mark.parametrize("phase", [False, True], ids=["paired", "random"])
def test_features_equal_pairs_where_nothing_decays(phase: bool) -> None:
    s = spectrum(decay=False, phase=phase)
    events, marks = points(8)
    query = events[:, -1:] + torch.tensor([0.0, 0.5, 7.0]).double()
    features = fourier._by_features(s, query, events[..., None], marks[..., None])
    for still in (None, torch.zeros_like(s.frequency)):
        pairs = fourier._by_pairs(
            s._replace(decay=still), query, events[..., None], marks[..., None]
        )
        assert torch.allclose(features, pairs, rtol=1e-12, atol=1e-12)


def test_features_keep_their_digits_far_from_the_start() -> None:
    s = spectrum(decay=False)
    single = Spectrum(s.frequency.float(), None, s.shift.float(), s.weight.float(), None)
    exact = Spectrum(
        single.frequency.double(), None, single.shift.double(), single.weight.double(), None
    )
    events, marks = points(8)
    events = events + 1e6
    truth, found = (scores(x, events[:, -1:], events, marks) for x in (exact, single))
    assert torch.allclose(found.double(), truth, atol=2e-6)


@pytest.mark.parametrize("decay", [False, True])
def test_a_constant_makes_the_kernel_non_negative(decay: bool) -> None:
    s = spectrum(decay=decay, modes=1)
    lags = torch.linspace(0, 20, 400)
    for m, n in ((0, 0), (1, 2)):
        plain, half, each = (kernel(x, lags, m, n) for x in (s, with_constant(s), non_negative(s)))
        assert plain.min() < -0.1
        assert torch.allclose(half, (1 + plain) / 2, atol=1e-14)
        assert half.min() >= -1e-15 and each.min() >= -1e-15
    for change in (with_constant, non_negative):
        assert change(s).weight.sum(1).tolist() == pytest.approx([1, 1])


def test_non_negative_modes_keep_their_decay() -> None:
    s = spectrum(modes=3)
    lags = torch.linspace(0, 5, 50, dtype=torch.float64)
    slow = torch.zeros(2, 50, dtype=torch.float64)
    for j in range(3):
        angle = s.frequency[:, j, None] * lags + s.shift[:, j, 1, None] - s.shift[:, j, 2, None]
        slow += (
            s.weight[:, j, None]
            * torch.exp(-s.decay[:, j, None] * lags)
            * (1 + torch.cos(angle))
            / 2
        )
    assert torch.allclose(kernel(non_negative(s), lags, 1, 2), slow, atol=1e-14)
    still = non_negative(Spectrum(0 * s.frequency, s.decay, 0 * s.shift, s.weight, None))
    assert torch.allclose(
        kernel(still, lags),
        torch.einsum("kd,kdl->kl", s.weight, torch.exp(-s.decay[..., None] * lags)),
        atol=1e-14,
    )


def test_even_noise_is_normal_point_by_point_and_even_together() -> None:
    draws = even_noise(3000, 8, 2, torch.Generator().manual_seed(4)).double()
    assert draws.shape == (3000, 8, 2) and draws.isfinite().all()
    for j in range(8):
        for q in range(2):
            assert kstest(draws[:, j, q].numpy(), "norm").pvalue > 1e-4 / 16
    even = torch.special.ndtr(draws[:, :, 0]).sort(1).values
    assert (torch.histc(even[0], 8, 0, 1) == 1).all() or (
        even.diff(dim=1) - 1 / 8
    ).abs().max() < 1e-3
    spread = [
        draw(2000, 16, 1, torch.Generator().manual_seed(5)).cos().mean(1).std()
        for draw in (even_noise, independent_noise)
    ]
    assert spread[0] < spread[1] / 4


def test_noise_comes_from_its_generator_alone() -> None:
    for draw in (even_noise, independent_noise):
        first, again, other = (draw(2, 8, 3, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
        assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("activation", list(fourier.ACTIVATIONS))
@pytest.mark.parametrize("widths", [(), (16,), (32, 64, 32)])
def test_a_generator_starts_standardised(widths: tuple[int, ...], activation: str) -> None:
    made = Generator(3, 2, widths, 5, activation=activation, seed=6)
    with torch.no_grad():
        out = made(torch.randn(3, 20_000, 2, generator=torch.Generator().manual_seed(7)))
    assert out.mean(1).abs().max() < 0.2 and (out.std(1) - 1).abs().max() < 0.15


def test_a_generator_has_separate_heads_and_its_own_seed() -> None:
    z = torch.randn(1, 4, 1, generator=torch.Generator().manual_seed(8)).expand(2, -1, -1)
    one, same, other = (Generator(2, 1, (8,), 2, seed=s)(z) for s in (0, 0, 1))
    assert (
        torch.equal(one, same)
        and not torch.equal(one, other)
        and not torch.allclose(one[0], one[1])
    )


@pytest.mark.parametrize("phase", [False, True], ids=["paired", "random"])
@pytest.mark.parametrize("decay", [False, True])
def test_gradients_of_scores(decay: bool, phase: bool) -> None:
    s = spectrum(heads=1, modes=2, marks=2, decay=decay, phase=phase)
    parts = [x.requires_grad_() for x in s if x is not None]
    events, query = (
        torch.tensor([[0.5, 1.7]]).double().requires_grad_(),
        torch.tensor([[2.5]]).double().requires_grad_(),
    )

    def by(*inputs: Tensor) -> Tensor:
        *given, q, e = inputs
        fill = iter(given)
        return scores(
            Spectrum(*(None if x is None else next(fill) for x in s)), q, e, torch.tensor([[0, 1]])
        )

    assert torch.autograd.gradcheck(by, [*parts, query, events])


def test_gradients_of_the_kernel() -> None:
    s = spectrum(heads=1, modes=2, marks=2)
    parts = [x.requires_grad_() for x in s[:4]]
    lags = torch.tensor([0.3, 2.0]).double().requires_grad_()
    for change in (lambda x: x, with_constant, non_negative):
        assert torch.autograd.gradcheck(
            lambda *x, change=change: kernel(change(Spectrum(*x[:4], None)), x[4], 1, 0),
            [*parts, lags],
        )
