"""Known truths: counts against analysis, simulations against their own integral, integrals against
quadrature.

Seeds are fixed; each KS test would fail a right simulator once in a thousand seeds, each count once
in 16,000.
"""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.stats import gamma, kstest

from fourpoint.data.synthetic import PROCESSES, Process, process, simulate
from fourpoint.events import Batch, UserError
from fourpoint.models.bumps import Bumps, FilteredBumps


def self_correcting_mean() -> float:
    """E[N(1)] from the master equation p_n' = exp(10 t - n + 1) p_{n-1} - exp(10 t - n) p_n."""
    n = np.arange(60)

    def change(t: float, p: np.ndarray) -> np.ndarray:
        flow = np.exp(10 * t - n) * p
        return np.concatenate([[0], flow[:-1]]) - flow

    return float(
        solve_ivp(change, (0, 1), np.eye(60)[0], method="LSODA", rtol=1e-9, atol=1e-12).y[:, -1] @ n
    )


def space_time_mean(
    mu: float = 5.0, alpha: float = 0.5, spread: float = 0.1, stop: float = 20.0
) -> float:
    """Generation by generation: mu alpha^n, times the share that stays in the square, times that
    born before the end.
    """
    x, w = np.polynomial.legendre.leggauss(120)
    x, w = (x + 1) / 2, w / 2
    step = np.exp(-(((x[:, None] - x) / spread) ** 2) / 2) / spread / np.sqrt(2 * np.pi) * w
    inside, total = np.ones(len(x)), 0.0
    for n in range(50):
        born = stop if n == 0 else stop * w @ gamma.cdf(stop * (1 - x), n)
        total += mu * alpha**n * (w @ inside) ** 2 * born
        inside = step @ inside
    return float(total)


NAMES = [*PROCESSES, "nonhomogeneous1-random", "nonhomogeneous2-random"]
EXPECTED = {
    "hawkes": 15.0,
    "self_correcting": self_correcting_mean(),
    "nonhomogeneous1": 38.29249,
    "nonhomogeneous2": 15.96064,
}
EXPECTED["space_time_hawkes"] = space_time_mean()


def integrals(p: Process, batch: Batch) -> torch.Tensor:
    """The truth's integral over every gap, (B, N + 1)."""
    model = p.truth()
    with torch.no_grad():
        return model.closed_integral(model.encode(batch), batch.edges[:, :-1], batch.edges[:, 1:])[
            ..., 0
        ]


@pytest.mark.parametrize("name", NAMES)
def test_mean_count(name: str) -> None:
    p = process(name)
    share = 0.5 if name.endswith("random") else 1.0
    assert p.mean_count == pytest.approx(share * EXPECTED[name.removesuffix("-random")], rel=1e-5)
    data = p.simulate(4000 if p.space.box is None else 600, seed=11)
    assert abs(data.lengths.mean() - p.mean_count) < 4 * data.lengths.std() / np.sqrt(len(data))
    some = data[:500] if p.space.box is None else data[:100]
    excess = (
        some.lengths - integrals(p, some.batch()).sum(1).numpy()
    )  # less its compensator, a count has mean 0
    assert abs(excess.mean()) < 4 * excess.std() / np.sqrt(len(some))


@pytest.mark.parametrize("name", NAMES)
def test_rescaled_by_its_own_integral_it_is_a_unit_poisson_process(name: str) -> None:
    p = process(name)
    batch = p.simulate(150 if p.space.box is None else 20, seed=7).batch()
    gaps = integrals(p, batch)
    real = torch.cat([torch.ones_like(batch.valid[:, :1]), batch.valid], 1)
    assert ((gaps == 0) | real).all()
    clock = gaps.flatten().cumsum(0).reshape(gaps.shape)  # all windows laid end to end
    unit = np.diff(clock[:, :-1][batch.valid].numpy(), prepend=0.0)
    assert kstest(unit, "expon").pvalue > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_integral_equals_quadrature(name: str) -> None:
    p = process(name)
    model, batch = p.truth(), p.simulate(3, seed=5).batch()
    history = model.encode(batch)
    a, b = batch.edges[:, :-1], batch.edges[:, 1:]
    x, w = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(24))
    nodes = (a + b)[..., None] / 2 + (b - a)[..., None] / 2 * x
    with torch.no_grad():
        numeric = (model.log_intensity(history, nodes).exp()[..., 0] * w).sum(-1) * (b - a) / 2
    assert torch.allclose(integrals(p, batch), numeric, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("nonhomogeneous")])
def test_encode_equals_repeated_extend_with_nan_in_the_padding(name: str) -> None:
    p = process(name)
    model, good = p.truth(), p.simulate(4, seed=2).batch()
    batch = Batch(
        torch.where(good.valid, good.times, torch.nan),
        good.marks,
        good.valid,
        good.start,
        good.stop,
    )
    whole = model.encode(batch)
    query = batch.stop[:, None, None].expand(-1, 1, 2)
    expected = model.log_intensity(whole, query, whole.lengths[:, None])
    assert expected.isfinite().all()
    step = model.encode(batch.columns(0, 0))
    for i in range(batch.times.shape[1]):
        step = model.extend(step, batch.times[:, i], batch.marks[:, i], batch.valid[:, i])
    assert torch.allclose(model.log_intensity(step, query), expected, rtol=1e-12)
    half = batch.times.shape[1] // 2
    later = model.encode(batch.columns(half, 999), model.encode(batch.columns(0, half)))
    assert torch.allclose(
        model.log_intensity(later, query, later.lengths[:, None]), expected, rtol=1e-12
    )


def test_filtered_rate_of_one_bump_is_a_mean_of_a_truncated_gamma() -> None:
    """With n events seen, U has density u^n exp(-u F) on [0, 1]; its mean by a fine sum."""
    bump = (100.0, 1.0, 0.5)
    fixed, filtered = Bumps([bump]), FilteredBumps([bump])
    batch = process("nonhomogeneous1", "random").simulate(5, seed=4).batch()
    times = batch.stop[:, None] * 0.8
    h = filtered.encode(batch)
    n = (batch.valid & (batch.times < 0.8)).sum(1, keepdim=True)
    F = fixed.closed_integral(fixed.encode(batch), batch.start[:, None], times)[..., 0]
    u = torch.linspace(0, 1, 200_001, dtype=torch.float64)[1:]
    weight = torch.softmax(n * u.log() - u * F, 1)
    expected = fixed.intensity(fixed.encode(batch), times)[..., 0] * (weight * u).sum(
        1, keepdim=True
    )
    assert torch.allclose(filtered.intensity(h, times)[..., 0], expected, rtol=1e-4)


def test_filtered_rate_before_any_event_is_below_half() -> None:
    """At the start E[U] = 1/2; silence lowers it."""
    p = process("nonhomogeneous2", "random")
    fixed, filtered = Bumps(p.bumps), FilteredBumps(p.bumps)
    batch = p.simulate(1).batch().columns(0, 0)
    times = torch.tensor([[0.0, 0.3, 0.9]], dtype=torch.float64)
    share = (
        filtered.intensity(filtered.encode(batch), times)
        / fixed.intensity(fixed.encode(batch), times)
    ).flatten()
    assert share[0].item() == pytest.approx(0.5, abs=1e-12)
    assert share[0] > share[1] and share[2] < 0.3


def test_simulation_is_a_function_of_its_seed() -> None:
    a, b, c = (
        simulate("hawkes", 20, seed=3),
        simulate("hawkes", 20, seed=3),
        simulate("hawkes", 20, seed=4),
    )
    assert np.array_equal(a.times, b.times) and not np.array_equal(a.times, c.times)
    assert a.name == "hawkes" and a.marks.count == 1 and not a.marks.names
    assert (a.starts == 0).all() and (a.stops == 1).all() and not a.inferred
    assert simulate("nonhomogeneous1", 5, amplitude="random").name == "nonhomogeneous1-random"


def test_a_longer_window() -> None:
    data = PROCESSES["hawkes"].simulate(2000, seed=1, stop=2.0)
    assert abs(data.lengths.mean() - 40.0) < 4 * data.lengths.std() / np.sqrt(2000)


def test_names() -> None:
    assert process("Self-Correcting") is PROCESSES["self_correcting"]
    assert process("nonhomogeneous2-random").name == process("non_homogeneous_2", "random").name
    with pytest.raises(UserError, match="received 'hawks'. Did you mean 'hawkes'?"):
        process("hawks")
    with pytest.raises(
        UserError,
        match=(
            "with amplitudes .nonhomogeneous1, nonhomogeneous2. for amplitude='random'; received "
            "'hawkes'"
        ),
    ):
        process("hawkes", "random")
    with pytest.raises(UserError, match="at least one sequence"):
        simulate("hawkes", 0)
