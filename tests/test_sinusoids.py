"""Sinusoids on a box: the lattice, states against a loop, rules against integrals, and certified
largest values.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fourpoint.ops import sinusoids


@pytest.mark.parametrize(("dimension", "highest"), [(1, 5), (2, 4), (3, 2)])
def test_the_lattice_has_one_of_every_pair(dimension: int, highest: int) -> None:
    numbers = sinusoids.lattice(dimension, highest)
    rows = {tuple(row) for row in numbers.tolist()}
    assert len(rows) == len(numbers) and not any(numbers[0])
    grid = np.stack(np.meshgrid(*[np.arange(-highest, highest + 1)] * dimension), -1).reshape(
        -1, dimension
    )
    inside = {tuple(map(float, row)) for row in grid if (row**2).sum() <= highest**2}
    assert rows | {tuple(-x + 0.0 for x in row) for row in rows} == inside
    assert 2 * len(rows) - 1 == len(inside)


def test_a_gaussian_on_the_lattice_is_a_gaussian_in_space() -> None:
    """With the default number of sinusoids in two dimensions, a kernel of a tenth of the box is
    exact to a thousandth of its height.
    """
    numbers, s = sinusoids.lattice(2, 8), 0.1
    w = torch.exp(-((s * numbers * 2 * math.pi / sinusoids.PERIOD) ** 2).sum(1) / 2)
    w[1:] *= 2
    u = torch.linspace(0, 0.8, 81, dtype=torch.float64)
    off = torch.stack([u, 0.3 * u], 1)
    kernel = sinusoids.features(numbers, off)[:, : len(numbers)] @ (w / w.sum())
    assert (kernel - torch.exp(-(off**2).sum(1) / (2 * s * s))).abs().max() < 2e-3


@pytest.mark.parametrize("events", [0, 1, 5, 64, 150])
def test_states_equal_a_loop(events: int) -> None:
    random = torch.Generator().manual_seed(events)
    K, F = 3, 4
    decay = torch.tensor([0.0, 0.5, 40.0], dtype=torch.float64)
    gaps, values, phi = (
        torch.rand(2, events, *more, generator=random, dtype=torch.float64)
        for more in ((), (K,), (F,))
    )
    before = torch.rand(2, K, F, generator=random, dtype=torch.float64)
    found = sinusoids.fading_states(decay, gaps, values, phi, before)
    state, expected = before, [before]
    for i in range(events):
        state = (
            torch.exp(-decay * gaps[:, i, None])[..., None] * state
            + values[:, i, :, None] * phi[:, i, None]
        )
        expected.append(state)
    assert torch.allclose(found, torch.stack(expected, 2), rtol=1e-12, atol=1e-13)


def test_states_have_the_gradient_of_a_loop() -> None:
    random = torch.Generator().manual_seed(1)
    decay = torch.tensor([0.3, 2.0], dtype=torch.float64, requires_grad=True)
    gaps, values, phi = (
        torch.rand(1, 3, *more, generator=random, dtype=torch.float64, requires_grad=True)
        for more in ((), (2,), (2,))
    )
    before = torch.rand(1, 2, 2, generator=random, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sinusoids.fading_states, (decay, gaps, values, phi, before))


def test_scattered_places_have_one_in_every_cell_and_an_unbiased_mean() -> None:
    random = torch.Generator().manual_seed(0)
    draws = [sinusoids.scattered(2, 3, random) for _ in range(400)]
    assert all(len({tuple(cell) for cell in (d * 3).floor().tolist()}) == 9 for d in draws)
    means = torch.stack([torch.exp(2 * d[:, 0] - d[:, 1]).mean() for d in draws])
    exact = (math.exp(2) - 1) / 2 * (1 - math.exp(-1))
    assert abs(means.mean() - exact) < 4 * means.std() / 20


@pytest.mark.parametrize(("dimension", "cells"), [(1, 1), (1, 7), (2, 1), (2, 5), (3, 2)])
def test_the_largest_value_is_never_exceeded(dimension: int, cells: int) -> None:
    random = torch.Generator().manual_seed(dimension)
    numbers = sinusoids.lattice(dimension, 3)
    coefficients = torch.randn(5, 2 * len(numbers), generator=random, dtype=torch.float64)
    top = sinusoids.largest(numbers, coefficients, cells)
    assert top.shape == (5, cells**dimension)
    places = torch.rand(20_000, dimension, generator=random, dtype=torch.float64)
    values = sinusoids.features(numbers, places) @ coefficients.T
    index = torch.zeros(len(places), dtype=torch.int64)
    for axis in range(dimension):
        index = index * cells + (places[:, axis] * cells).long()
    assert (values <= top.T[index]).all()
    found = torch.stack(
        [torch.stack([values[index == c].amax(0) for c in range(cells**dimension)], 1)]
    )[0]
    assert (top - found < 0.35 * values.abs().amax(0)[:, None]).all(), "and it is close"
