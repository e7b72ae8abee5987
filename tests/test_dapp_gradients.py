"""DAPP's likelihood and gradients by a kernel: settings, threads, padding and faults.

That it agrees with the plain model in general is tested with all kernels (`test_kernels`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fourpoint as fp
from fourpoint.data.synthetic import simulate
from fourpoint.events import Batch, Context, Dataset, Sequence, Steps
from fourpoint.inference.likelihood import sampled_log_likelihood
from fourpoint.kernels import DAPP_LOSS, conditions
from fourpoint.kernels.constants import FADED
from fourpoint.kernels.dapp_spectrum import Networks, back, drawn
from fourpoint.kernels.numba_dapp_loss import sinusoid
from fourpoint.kernels.numba_dapp_rate import exponentials
from fourpoint.models.dapp import DAPP
from fourpoint.models.dapp_gradients import Values, sampled_gradients
from fourpoint.models.modes import Modes
from fourpoint.ops.quadrature import uniform

conventions = pytest.mark.parametrize("convention", ["window", "gaps"])


def events(marks: int, lengths: tuple[int, ...] = (5, 0, 18, 1, 16, 2, 9, 3, 7, 4)) -> Dataset:
    """Ragged, with ties, an empty sequence, and more of them than one group holds."""
    rng, out = np.random.default_rng(3), []
    for i, n in enumerate(lengths):
        t = np.sort(rng.uniform(i, 8 + i, n))
        t[3:5] = t[2] if n > 4 else t[3:5]
        out.append(
            Sequence(t, rng.integers(0, marks, n), start=float(i) - 0.5, stop=9.0 + i, space=marks)
        )
    return Dataset.from_sequences(out)


def lively(marks: int, size: float = 0.2, **settings: Any) -> DAPP:
    model = DAPP(marks, **{**dict(heads=2, features=5, generator=(6,)), **settings})
    model.initialise(events(marks))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn(parameter.shape, generator=random)
    return model.train()


def found(
    model: DAPP, batch: Batch, share: float, convention: Any, kind: torch.dtype, swept: bool = False
) -> list[Tensor]:
    """The sum of values and the gradients of ``share`` times it in all that is learned, with modes
    and nodes from one seed.
    """
    twin = DAPP(model.marks, **model.settings()).to(kind).train()
    twin.load_state_dict(model.state_dict())
    twin.redraw(torch.Generator().manual_seed(2))
    learned, random = (
        [p for p in twin.parameters() if p.requires_grad],
        torch.Generator().manual_seed(0),
    )
    if swept:
        both = twin.gradients(batch, 4, random, convention, share)
        assert both is not None and {id(p) for p, _ in both[1]} == {id(p) for p in learned}
        each = {id(p): torch.from_numpy(gradient) for p, gradient in both[1]}
        return [torch.tensor(both[0]), *(each[id(p)].double() for p in learned)]
    values = sampled_log_likelihood(twin, batch, 4, random, convention=convention)
    gradients = torch.autograd.grad(share * values.sum(), learned)
    return [x.detach().double() for x in (values.sum(), *gradients)]


def agree(
    model: DAPP, batch: Batch, share: float, convention: str, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether value and gradients of the sweep are those of the plain way in float64, but for 1e-4
    of the largest or, where sums cancel, for twice what the plain way loses to float32.
    """
    monkeypatch.setattr(conditions, "DAPP_WORK", 0)
    truth, plain = (
        found(model, batch, share, convention, kind) for kind in (torch.float64, torch.float32)
    )
    swept = found(model, batch, share, convention, torch.float32, swept=True)
    assert all((s != 0).any() for s in truth) and all(
        a.shape == b.shape for a, b in zip(swept, truth, strict=True)
    )
    worst = [
        (float((a - c).abs().max()), float((b - c).abs().max()), float(c.abs().max()))
        for a, b, c in zip(swept, plain, truth, strict=True)
    ]
    return all(own <= max(1e-4 * size, 2 * other) for own, other, size in worst)


@conventions
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize("decay", [True, False])
def test_the_sweep_is_the_plain_way(
    marks: int, decay: bool, convention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = lively(marks, decay=decay), events(marks).batch()
    assert agree(model, batch, -0.01, convention, monkeypatch)


@pytest.mark.parametrize(
    "settings",
    [
        dict(link="exp"),
        dict(link="identity"),
        dict(base="spline", drift="none"),
        dict(base="constant", drift="spline"),
        dict(learn_scale=False),
    ],
)
def test_so_it_is_with_every_link_and_base(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for marks in (1, 2):
        model = lively(marks, **settings)
        assert agree(model, events(marks).batch(), -1.0, "window", monkeypatch)


@conventions
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize("part", ["history", "exposure", "both"])
def test_so_it_is_with_history_periods_and_exposure(
    part: str, marks: int, convention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = events(marks)
    context = Context()
    if part != "exposure":
        context = replace(context, scored_from=data.starts + np.linspace(0, 11, len(data)))
    if part != "history":
        late = max(2.0, float(data.times.max()) - 3.0)
        levels, when = [[2.0], [0.5], [3.0]], [0.0, 6.0, late]
        one = Steps(("e",), np.array(when), np.array(levels), np.array([0, 3]))
        context = replace(context, exposure=one.select(np.zeros(len(data), dtype=np.int64)))
    batch = replace(data, context=context).batch()
    assert bool(batch.scored.any()) and batch.scored_exposure is not None
    for settings in (dict(base="spline", drift="spline"), dict(base="constant", drift="none")):
        assert agree(lively(marks, **settings), batch, -0.01, convention, monkeypatch)


def test_so_are_faded_modes_and_rates_far_below_their_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for decays, bias in (
        ((5.0, -1.0), 0.0),
        ((0.0, -1.0), -6.0),
    ):  # a head that fades in a hundredth of a gap; a rate like exp
        model = lively(1)
        with torch.no_grad():
            model.modes.log_decay.copy_(torch.tensor(decays))
            model.rate.log_scale.fill_(1.0)
            model.rate.bias.fill_(bias)
        assert agree(model, events(1).batch(), 1.0, "window", monkeypatch)


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "DAPP_WORK", 0)
    threads = torch.get_num_threads()
    for marks, convention in ((1, "gaps"), (3, "window")):
        model, batch, each = lively(marks), events(marks).batch(), []
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                each.append(found(model, batch, 1.0, convention, torch.float32, swept=True))
        finally:
            torch.set_num_threads(threads)
        assert all(
            torch.equal(a, b) for other in each[1:] for a, b in zip(each[0], other, strict=True)
        )


def test_a_sequence_is_worth_the_same_alone_and_among_others_and_padding_does_not_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conditions, "DAPP_WORK", 0)
    model, data = lively(2), events(2)
    batch = data.batch()
    dirty = Batch(
        torch.where(batch.valid, batch.times, torch.nan),
        torch.where(batch.valid, batch.marks, 99),
        batch.valid,
        batch.start,
        batch.stop,
    )
    together, clean = (
        found(model, some, 1.0, "window", torch.float32, swept=True) for some in (dirty, batch)
    )
    assert all(torch.equal(a, b) for a, b in zip(together, clean, strict=True))
    assert math.isclose(
        sum(alone(model, batch, i) for i in range(10)), float(together[0]), rel_tol=1e-6
    )


def alone(model: DAPP, batch: Batch, i: int) -> float:
    """The value of one sequence by itself, at the nodes that it has among the others."""
    n = int(batch.lengths[i])
    one = Batch(
        batch.times[i : i + 1, :n],
        batch.marks[i : i + 1, :n],
        batch.valid[i : i + 1, :n],
        batch.start[i : i + 1],
        batch.stop[i : i + 1],
    )
    draws = uniform(batch.edges[:, 1:], 4, torch.Generator().manual_seed(0))
    model.redraw(torch.Generator().manual_seed(2))
    assert isinstance(model.modes, Modes)
    values = Values(model.value_weight, model.value_readout, model.gain)
    own = draws[i : i + 1, : n + 1].contiguous()
    about = (model.rate, one, own, model.time_scale, False, 1.0, 8)
    return float(
        sampled_gradients(DAPP_LOSS.load(), model.modes, values, model.readout, *about)[0][0]
    )


def test_the_plain_model_is_used_if_the_kernel_does_not_pay_or_apply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def used(model: DAPP, batch: Batch) -> bool:
        found = model.gradients(batch, 2, torch.Generator().manual_seed(0), "window", 1.0)
        return found is not None

    batch = events(1).batch()
    assert not used(lively(1), batch)  # too little work
    monkeypatch.setattr(conditions, "DAPP_WORK", 0)
    assert used(lively(1), batch)
    assert not used(lively(1).eval(), batch)
    assert not used(lively(1).double(), batch)
    for settings in (
        dict(normalise="ratio"),
        dict(values="affine"),
        dict(keep=3),
        dict(form="dense"),
        dict(score="dot"),
    ):
        assert not used(lively(1, size=0.0, **settings), batch)
    assert not used(lively(20, size=0.0), events(20).batch())
    monkeypatch.setattr(conditions, "DAPP_MEMORY", 1)
    assert not used(lively(1), batch)


def test_a_fit_learns_the_same_with_it_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    data, scores = simulate("hawkes", 40), []
    for worth in (0, 2**62):
        monkeypatch.setattr(conditions, "DAPP_WORK", worth)
        model = DAPP(data.marks, heads=2, features=8, generator=(8,))
        done = fp.fit(
            model,
            data,
            data[:10],
            steps=15,
            epochs=0.0,
            batch_size=20,
            validate_every=5,
            progress=False,
        )
        scores.append([row["train_log_likelihood"] for row in done.history])
    assert scores[0] != scores[1] and np.allclose(*scores, atol=2e-3)


def test_a_weight_that_is_not_a_number_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "DAPP_WORK", 0)
    for name in (
        "modes.log_decay",
        "modes.log_frequency",
        "rate.baseline.log_base",
        "rate.baseline.bias",
        "value_weight",
    ):
        model = lively(1)
        with torch.no_grad():
            model.get_parameter(name).view(-1)[0] = math.nan
        with np.errstate(all="ignore"):
            both = model.gradients(
                events(1).batch(), 2, torch.Generator().manual_seed(0), "window", 1.0
            )
        assert both is not None and not math.isfinite(both[0])


@pytest.mark.parametrize("activation", ["tanh", "relu", "softplus"])
@pytest.mark.parametrize("decay", [True, False])
def test_networks_in_numpy_are_those_of_torch(activation: str, decay: bool) -> None:
    model = lively(3, activation=activation, decay=decay, generator=(6, 5), noise=2)
    modes = model.modes.requires_grad_(True)
    assert isinstance(modes, Modes)
    spectrum, noise = modes(), modes.noise_in_use().numpy()
    parts = (
        spectrum.frequency,
        torch.zeros_like(spectrum.frequency) if spectrum.decay is None else spectrum.decay,
        spectrum.shift,
    )
    outside = [torch.linspace(-1, 2, x.numel()).view(x.shape) for x in parts]
    learned = [
        modes.time_key,
        modes.mark_key,
        modes.log_frequency,
        modes.log_decay,
        *modes.generator.weights,
        *modes.generator.biases,
    ]
    truth = torch.autograd.grad(
        sum((x * y).sum() for x, y in zip(parts, outside, strict=True)), learned, allow_unused=True
    )
    arrays = [x.detach().numpy() for x in learned]
    given = Networks(*arrays[:4], arrays[4:])
    found = drawn(noise, decay, activation, given)
    gradients = back(found, decay, activation, given, *(x.numpy() for x in outside))
    for own, plain in zip(
        [*found[:3], *gradients[:4], *gradients.layers], [*parts, *truth], strict=True
    ):
        other = 0.0 if plain is None else plain.detach().numpy()
        assert np.allclose(own, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


def test_sinusoids_and_exponentials_to_the_last_digits() -> None:
    lags = np.array([0.0, 0.003, 0.7, 3.1, 40.0], dtype=np.float32)
    cycles, halvings = (
        np.linspace(-2, 2, 41).astype(np.float32),
        np.linspace(0, 5, 41).astype(np.float32),
    )
    out = np.empty((5, 2, 41), dtype=np.float32)
    sinusoid(0, 5, lags, cycles, halvings, out)
    fade = np.exp(np.maximum(-np.log(2) * np.outer(lags, halvings.astype(np.float64)), FADED))
    turn = np.exp(2j * np.pi * np.outer(lags, cycles.astype(np.float64)))
    rounding = 1e-6 * (
        1 + np.abs(np.outer(lags, cycles)) + np.outer(lags, halvings)
    )  # of angles and exponents, which grows with them
    assert (np.abs(out[:, 0] + 1j * out[:, 1] - fade * turn) <= rounding * fade).all()
    x = np.linspace(-86, 88, 999).astype(np.float32)
    y = x.copy()
    exponentials(y)
    assert np.allclose(y, np.exp(x.astype(np.float64)), rtol=1e-6, atol=0)
