"""Deep DAPP: its forms are one model, integrals never touch the marks, and it finds rhythms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, Sequence, UserError
from fourpoint.inference.explaining import explain
from fourpoint.inference.likelihood import quick_log_likelihood, sampled_log_likelihood
from fourpoint.inference.sampling import sample
from fourpoint.models import DeepDAPP
from fourpoint.models.deep_layer import features
from fourpoint.models.narrow import NarrowPeaks
from fourpoint.ops.periodogram import peaks, timestamp_resolution
from fourpoint.ops.recurrence import pairwise, recur
from fourpoint.training.fitting import fit

RUNG = 0.03


def days(sequences: int, marks: int = 1) -> Dataset:
    """Events that come a little after noon, on some days, to people with noons of their own."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(sequences):
        times = (
            np.sort(random.permutation(40)[:20] + random.normal(0, 0.03, 20)) + random.random() + 1
        )
        found.append(
            Sequence(times, random.integers(marks, size=20), start=0.0, stop=43.0, space=marks)
        )
    return Dataset.from_sequences(found)


def rungs(sequences: int, seed: int) -> Dataset:
    """Gaps of 1, 2 or 4, within 3% each."""
    random, found = np.random.default_rng(seed), []
    for _ in range(sequences):
        times = np.cumsum(
            random.choice([1.0, 2.0, 4.0], 20) * np.exp(RUNG * random.normal(size=20))
        )
        found.append(Sequence(times, start=0.0, stop=times[-1] + 1))
    return Dataset.from_sequences(found)


@pytest.mark.parametrize(("marks", "sinusoids"), [(1, 0), (3, 3)])
def test_scan_and_dense_are_one_model(marks: int, sinusoids: int) -> None:
    scan, dense = (
        DeepDAPP(marks, layers=3, width=8, modes=5, sinusoids=sinusoids, form=form).double().eval()
        for form in ("scan", "dense")
    )
    data = days(4, marks)
    for model in (scan, dense):
        model.initialise(data)
        for parameter, seed in zip(
            model.parameters(), range(100), strict=False
        ):  # gates away from where they begin
            parameter.data.add_(
                0.1
                * torch.randn(
                    parameter.shape,
                    generator=torch.Generator().manual_seed(seed),
                    dtype=torch.float64,
                )
            )
    batch = data.batch()
    times = torch.linspace(0.5, 42.0, 50, dtype=torch.float64).expand(4, -1)
    rates = [model.intensity(model.encode(batch), times) for model in (scan, dense)]
    assert torch.allclose(rates[0], rates[1], rtol=1e-10)


def test_recursion_equals_all_pairs() -> None:
    random = torch.Generator().manual_seed(0)
    fade, angle = (torch.rand(2, 70, 3, generator=random, dtype=torch.float64) for _ in range(2))
    driven = torch.randn(2, 70, 3, generator=random, dtype=torch.complex128)
    factor = torch.polar((-fade).exp(), angle)
    assert torch.allclose(recur(factor, driven), pairwise(fade, angle, driven), rtol=1e-10)


def test_the_total_rate_is_the_sum_over_marks() -> None:
    data = days(3, marks=4)
    model = DeepDAPP(4, width=8, modes=4).double().eval()
    model.initialise(data)
    history = model.encode(data.batch())
    times = torch.linspace(0.5, 42.0, 9, dtype=torch.float64).expand(3, 21, 9)
    times = torch.maximum(times, history.times[..., None])
    assert torch.allclose(
        model.log_total(history, times), model.log_intensity(history, times).logsumexp(-1)
    )


def test_own_marks_in_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = days(3, marks=4)
    model = DeepDAPP(4, width=8, modes=4).double().eval()
    model.initialise(data)
    batch, found = data.batch(), []
    for size in (2**22, 28):
        monkeypatch.setattr("fourpoint.models.deep_dapp.PIECE", size)
        model.zero_grad()
        own = model.log_rates_at_events(model.encode(batch), batch)
        own.sum().backward()
        found.append((own.detach(), model.share.weight.grad.clone()))
    assert torch.equal(found[0][0], found[1][0]) and torch.allclose(found[0][1], found[1][1])
    whole = model.log_intensity(
        model.encode(batch), batch.times[..., None], torch.arange(20).expand(3, 20)
    )[:, :, 0]
    assert torch.allclose(whole.gather(2, batch.marks[..., None])[..., 0], found[0][0])


def test_explain_names_modes_by_what_the_rate_loses_without_them() -> None:
    data = days(3, marks=2)
    model = DeepDAPP(2, width=8, modes=4).double().eval()
    model.initialise(data)
    found = explain(model, data[0], at=30.0)
    assert len(found.modes) == 8 and [abs(m["effect"]) for m in found.modes] == sorted(
        (abs(m["effect"]) for m in found.modes), reverse=True
    )
    history = model.encode(data[0].before(30.0).batch())
    first = model.mode_effects(history, 30.0)[5]  # mode 2 of layer 2
    at = history.latest()
    at.state[:, :, 1, 1] = 0
    now = torch.tensor([[30.0]], dtype=torch.float64)
    assert found.rate.sum() - model.intensity(at, now).sum().item() == pytest.approx(
        first["effect"], abs=1e-12
    )
    assert first["layer"] == 2 and "half-life" in str(found)


def test_elapsed_times_are_told_by_logarithms_and_sinusoids_of_them() -> None:
    gaps, scales = (
        torch.tensor([0.0, 0.3, 2.5], dtype=torch.float64),
        torch.tensor([0.5, 7.0], dtype=torch.float64),
    )
    found = features(gaps, scales, 3)
    for row, gap in zip(found, gaps.tolist(), strict=True):
        log = math.log1p(gap / 0.5)
        angles = [math.pi * log, 2 * math.pi * log, 4 * math.pi * log]
        wanted = [
            log - 1,
            math.log1p(gap / 7.0) - 1,
            *map(math.cos, angles),
            *map(math.sin, angles),
        ]
        assert row.tolist() == pytest.approx(wanted, abs=1e-12)
    assert torch.allclose(features(60 * gaps, 60 * scales, 3), found)  # whatever the unit
    assert torch.equal(features(gaps, scales, 0), found[:, :2])


def test_sinusoids_begin_silent_and_leave_the_rest_as_it_is_without() -> None:
    model, plain = DeepDAPP(width=8, modes=4, sinusoids=4), DeepDAPP(width=8, modes=4, sinusoids=0)
    for part, without in ((model.gap, plain.gap), (model.since, plain.since)):
        times = without.weight.shape[1]
        assert part.weight.shape == (8, times + 8) and not part.weight[:, times:].any()
        assert (
            0.7 < part.weight[:, :times].abs().max().item() * math.sqrt(times) <= 1
        )  # the largest of many from U[-1, 1]


def test_waves_find_what_happens_within_a_small_share_of_the_elapsed_time() -> None:
    train, dev = rungs(100, 0), rungs(40, 1)
    model = DeepDAPP(width=16, modes=8, layers=1, sinusoids=4, dropout=0.0, event_dropout=0.0)
    fit(
        model,
        train,
        dev,
        steps=150,
        epochs=0,
        learning_rate=1e-2,
        validate_every=50,
        convention="gaps",
        progress=False,
    )
    score = float(quick_log_likelihood(model, dev.batch(), 160, convention="gaps").sum()) / (
        dev.events - len(dev)
    )
    truth = (
        -math.log(3) - math.log(RUNG) - math.log(2) - 0.5 * math.log(2 * math.pi * math.e)
    )  # log 2: the mean of log 1, log 2 and log 4
    assert truth - 0.15 < score < truth + 0.1  # 0.30 below it without sinusoids


@pytest.mark.parametrize("sinusoids", [0, 4])
def test_it_begins_at_the_mean_rates(sinusoids: int) -> None:
    data = days(20, marks=3)
    model = DeepDAPP(3, width=8, modes=4, sinusoids=sinusoids, seed=1).eval()
    model.initialise(data)
    found = float(quick_log_likelihood(model, data.batch()).sum()) / data.events
    rates = np.bincount(data.mark_ids, minlength=3) / data.durations.sum()
    constant = float((np.log(rates)[data.mark_ids]).mean()) - 1
    assert found == pytest.approx(constant, abs=0.15)


def test_noise_is_drawn_from_the_generator_alone() -> None:
    data = days(3, marks=2)
    model = DeepDAPP(2, width=8, modes=4).train()
    model.initialise(data)

    def value(seed: int) -> float:
        random = torch.Generator().manual_seed(seed)
        model.redraw(random)
        return float(
            sampled_log_likelihood(model, data.batch(), 2, torch.Generator().manual_seed(0))
            .detach()
            .sum()
        )

    assert value(1) == value(1) != value(2)
    noisy = value(1)
    model.eval()
    assert value(1) != noisy


def test_a_daily_rhythm_is_found_and_used() -> None:
    train, dev = days(150), days(150).select(np.arange(100, 150))
    model = DeepDAPP(width=16, modes=8, layers=1, dropout=0.0, event_dropout=0.0)
    said = model.initialise(train)
    assert 2 * np.pi / peaks(train.times, train.offsets)[0] == pytest.approx(1, abs=1e-3)
    assert any(line.startswith("periods found") for line in said)
    fit(
        model,
        train.select(np.arange(100)),
        dev,
        steps=150,
        epochs=0,
        learning_rate=1e-2,
        validate_every=50,
        progress=False,
    )
    score = float(quick_log_likelihood(model, dev.batch(), 40).sum()) / dev.events
    assert (
        score > math.log(20 / 43) - 1 + 0.3
    )  # a constant rate, and what the hour of the day tells beyond it


def test_peaks_stay_below_half_the_clock() -> None:
    random = np.random.default_rng(1)
    times = np.concatenate(
        [np.sort(random.choice(4000, 60, replace=False)) / 1000 for _ in range(50)]
    )
    assert timestamp_resolution(np.array([0.002, 0.003, 0.001])) == 0.001
    assert not len(
        peaks(times, np.arange(0, 3001, 60))
    )  # the clock of .001 is no rhythm of the events


def test_no_rhythm_in_poisson_data_and_none_without_events() -> None:
    data = simulate("hawkes", 200)
    assert len(peaks(data.times, data.offsets)) <= 1
    assert not len(peaks(np.zeros(0), np.zeros(3, dtype=np.int64)))


@pytest.mark.parametrize(
    "settings",
    [dict(width=0), dict(dropout=1.0), dict(rhythms=-1), dict(sinusoids=-1), dict(form="quick")],
)
def test_bad_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match="expected"):
        DeepDAPP(**settings)


def test_panels_follow_the_sinusoids_of_elapsed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels as long as a window are tried in vain where the rate has sinusoids: fewer times are
    asked for, and the paths are the same.
    """
    data = simulate("hawkes", 40, seed=1)
    model = DeepDAPP(width=16, modes=8, layers=1, seed=1)
    model.initialise(data)
    with torch.no_grad():
        model.since.weight[:, -8:] = 0.1 * torch.randn(
            16, 8, generator=torch.Generator().manual_seed(0)
        )
    asked, original = [0, 0], DeepDAPP.log_total

    def counted(self: DeepDAPP, history: Any, times: Tensor, seen: Any = None) -> Tensor:
        asked[-1] += times.numel()
        return original(self, history, times, seen)

    monkeypatch.setattr(DeepDAPP, "log_total", counted)
    paths = sample(model, 0.0, 1.0, 5, seed=1)
    asked.append(0)
    monkeypatch.setattr(DeepDAPP, "longest_panel", NarrowPeaks.longest_panel)
    without = sample(model, 0.0, 1.0, 5, seed=1)
    assert np.array_equal(paths.lengths, without.lengths)
    assert np.allclose(paths.times, without.times, atol=1e-5)
    assert asked[1] < 0.7 * asked[2]


def test_former_names_of_settings_are_taken_with_a_warning() -> None:
    words = "is now called (sinusoids|event_dropout|mark_dropout); the old name will be removed"
    with pytest.warns(DeprecationWarning, match=words) as caught:
        model = DeepDAPP(width=8, modes=4, waves=2, unheard=0.2, unmarked=0.3)
    assert len(caught) == 3
    now = DeepDAPP(width=8, modes=4, sinusoids=2, event_dropout=0.2, mark_dropout=0.3)
    assert model.settings() == now.settings()
    assert not {"waves", "unheard", "unmarked"} & set(model.settings())
    with pytest.raises(TypeError, match="ripples"):
        DeepDAPP(ripples=3)


def test_the_kernel_keeps_angles_after_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of narrow peaks are sums of fast modes: with angles in float32 they are rough."""
    monkeypatch.setattr("fourpoint.kernels.conditions.RATE_WORK", 0)
    model = DeepDAPP(width=8, modes=4).eval()
    with torch.no_grad():
        for layer in model._stack():
            layer.first_decay.fill_(1.0)
            layer.log_decay.fill_(-20.0)
            layer.turns.fill_(2.0**14)
            layer.steady.fill_(True)
        model.read.weight.mul_(2.0)
    batch = Sequence([], start=0.0, stop=20.0).batch()
    times = torch.linspace(10.0, 10.001, 32, dtype=torch.float64)[None, None]
    with torch.no_grad():
        found = model.log_total(model.encode(batch), times)
        exact = model.double().log_total(model.encode(batch), times)
    assert float(exact.std()) > 1e-2
    assert torch.allclose(found.double(), exact, rtol=0, atol=1e-5)


def test_the_kernel_rates_many_times_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """37 positions with 11 times each fill one block and a part of another."""
    monkeypatch.setattr("fourpoint.kernels.conditions.RATE_WORK", 0)
    model = DeepDAPP(width=10, modes=3).eval()
    random = torch.Generator().manual_seed(0)
    batch = Sequence(np.arange(1.0, 37.0), start=0.0, stop=40.0).batch()
    lags = torch.rand((1, 37, 11), generator=random, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=random)
        history = model.encode(batch)
        found = model.log_total(history, history.times[..., None] + lags)
        model = model.double()
        history = model.encode(batch)
        exact = model.log_total(history, history.times[..., None] + lags)
    assert torch.allclose(found.double(), exact, rtol=1e-4, atol=1e-4)
