"""The log-probability of ticks: by hand, for closed forms and for peaks; and what it cannot be
raised by.
"""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from test_narrow_peaks import PEAKS, Ticking, data

import fourpoint as fp
from fourpoint.events import MarkSpace
from fourpoint.events.dequantise import dequantised, dequantised_batch
from fourpoint.inference.likelihood import sampled_log_likelihood
from fourpoint.inference.resolution import resolution_of, resolution_score
from fourpoint.models import MODELS, positions
from fourpoint.models.base import PointProcess
from fourpoint.models.deep_dapp import DeepDAPP


def by_hand(model: Ticking, events: fp.Dataset, tick: float) -> float:
    """From the integral that is known."""
    gaps = torch.from_numpy(np.concatenate([np.diff(events[i].times) for i in range(len(events))]))
    low, high = model.within((gaps - tick / 2).clamp(min=0)), model.within(gaps + tick / 2)
    start = model.within(torch.zeros(()))
    return float((-(low - start) + torch.log(-torch.expm1(low - high))).mean())


@PEAKS
def test_it_is_the_probability_of_the_cell_around_the_tick(width: float, tick: float) -> None:
    model = Ticking(width=width, tick=tick).double()
    model.narrow.fill_(True)
    events = data(model)
    assert resolution_of(events) == 1.0
    assert resolution_score(model, events) == pytest.approx(by_hand(model, events, 1.0), abs=1e-4)
    assert resolution_score(model, events, 0.3) == pytest.approx(
        by_hand(model, events, 0.3), abs=1e-4
    )


def test_narrower_peaks_raise_the_likelihood_and_not_this(monkeypatch: pytest.MonkeyPatch) -> None:
    events, densities, ticks = data(Ticking()), [], []
    for width in (0.04, 0.02):
        monkeypatch.setattr("test_narrow_peaks.WIDTH", width)
        model = Ticking().double()
        model.narrow.fill_(True)
        densities.append(fp.log_likelihood(model, events.batch(), convention="gaps").per_event)
        ticks.append(resolution_score(model, events))
    assert densities[1] > densities[0] + 0.5 and abs(ticks[1] - ticks[0]) < 1e-3


def test_no_model_does_better_than_the_law_of_the_ticks() -> None:
    rng = np.random.default_rng(0)
    times = [np.cumsum(rng.geometric(0.4, 60)).astype(float) for _ in range(40)]
    events = fp.Dataset.from_sequences(
        [fp.Sequence(t.tolist(), start=0.0, stop=float(t[-1]) + 1) for t in times]
    )
    law = float(np.mean([np.log(0.4 * 0.6 ** (np.diff(t) - 1)) for t in times]))
    for rate in (0.3, 0.5, 0.8):
        assert resolution_score(fp.Hawkes(baseline=rate, branching=0.01), events) < law


class Spread(PointProcess[positions.Positions]):
    """A rate of 1 that says where it was asked."""

    linear = True

    def __init__(self, tick: float) -> None:
        super().__init__()
        self.marks, self.tick, self.asked = (
            MarkSpace.of(None),
            tick,
            list[tuple[torch.Tensor, torch.Tensor]](),
        )

    def gap_resolution(self) -> float:
        return self.tick

    def encode(
        self, batch: fp.Batch, before: positions.Positions | None = None
    ) -> positions.Positions:
        return positions.positions_of(batch, None)

    def log_intensity(
        self, history: positions.Positions, times: torch.Tensor, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.asked.append((times[:, :, :-1], times[:, :, -1]))
        return torch.zeros(*times.shape, 1, dtype=torch.float64)


def test_events_are_moved_about_inside_their_ticks_and_nothing_else_is() -> None:
    """Also events at the time of the one before, which cannot come earlier; padding and the
    windows' ends stay.
    """
    sequences = [fp.Sequence(t, start=0.0, stop=10.0) for t in ([2.0, 2.0, 3.0, 7.0], [1.0], [])]
    batch, model, random = (
        fp.Dataset.from_sequences(sequences).batch(),
        Spread(1.0),
        torch.Generator().manual_seed(0),
    )
    values = torch.stack([sampled_log_likelihood(model, batch, 3, random) for _ in range(400)])
    nodes, ends = (torch.stack(part) for part in zip(*model.asked, strict=True))
    left, right = batch.edges[:, :-1], batch.edges[:, 1:]
    events = torch.arange(right.shape[1]) < batch.lengths[:, None]
    shift = (ends - right)[:, events]
    assert (
        float(shift.max()) > 0.49
        and float(shift.max()) <= 0.5
        and float(shift.min()) < -0.49
        and float(shift.min()) >= -0.5
    )
    assert bool((ends >= left).all()) and torch.equal(
        ends[:, ~events], right[~events].expand(400, -1)
    )
    assert bool((nodes >= left[..., None]).all()) and bool((nodes <= ends[..., None]).all())
    assert torch.allclose(shift[:, 1], shift[:, 1].abs())  # tied with the one before
    torch.testing.assert_close(values, -(ends - left).sum(2))
    lone = fp.Sequence(
        [0.0], start=0.0, stop=7.0
    ).batch()  # under "gaps" nothing is scored, nor is what was moved there
    assert float(sampled_log_likelihood(model, lone, 3, random, convention="gaps")) == 0.0
    assert torch.equal(
        sampled_log_likelihood(Spread(0.0), batch, 3, random),
        -torch.tensor([10.0, 10.0, 10.0], dtype=torch.float64),
    )


def test_batches_are_spread_in_order_and_evenly() -> None:
    times = ([0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 9.0], [4.0, 4.0], [])
    sequences = [
        fp.Sequence(t, list(range(len(t))), start=0.0, stop=9.2, space=MarkSpace.of(7))
        for t in times
    ]
    batch, random = fp.Dataset.from_sequences(sequences).batch(), torch.Generator().manual_seed(0)
    drawn = [dequantised_batch(batch, 1.0, random) for _ in range(3000)]
    for found in drawn[:100]:
        assert torch.equal(found.marks, batch.marks) and torch.equal(found.valid, batch.valid)
        assert bool((found.times.diff(dim=1) >= 0).all()) and bool(
            (found.times[~found.valid] == 9.2).all()
        )
    found = torch.stack([d.times for d in drawn])
    low, high = (batch.times - 0.5).clamp(min=0.0), (batch.times + 0.5).clamp(max=9.2)
    share = ((found - low) / (high - low))[:, batch.valid]
    assert float(share.min()) >= 0 and float(share.max()) <= 1
    wanted = torch.tensor(
        [1 / 4, 2 / 4, 3 / 4, 1 / 2, 1 / 3, 2 / 3, 1 / 2, 1 / 3, 2 / 3]
    )  # three of one tick in order, one, two, ...
    assert torch.allclose(share.mean(0), wanted.double(), atol=0.02)
    data = fp.Dataset.from_sequences(sequences)
    found = torch.stack([dequantised(data, 1.0, seed).batch().times for seed in range(3000)])
    share = ((found - low) / (high - low))[:, batch.valid]
    assert bool((found.diff(dim=2) >= 0).all()) and torch.allclose(
        share.mean(0), wanted.double(), atol=0.02
    )


@pytest.mark.parametrize("name", ["dapp", "hawkes"])
def test_events_of_one_tick_are_no_reason_for_more_at_once(name: str) -> None:
    """Calls at random, read from a clock of six minutes: taken as they stand, an event would raise
    the rate tenfold for seconds.
    """
    rng = np.random.default_rng(3)
    days = [
        fp.Sequence(np.round(10 * np.sort(rng.uniform(0, 8, 60))) / 10, start=-0.05, stop=8.05)
        for _ in range(40)
    ]
    data, rates, ticks = fp.Dataset.from_sequences(days), [], []
    for spread in (True, False):
        model = MODELS[name](data.marks)
        found = fp.fit(model, data, steps=60, validate_every=20, dequantise=spread, progress=False)
        assert any("events are dequantised in training" in note for note in found.notes) == spread
        history = model.encode(fp.Sequence([1.0, 2.0, 2.0], start=-0.05, stop=8.05).batch())
        rates.append(
            float(
                model.intensity(history, torch.tensor([[2.0001]], dtype=torch.float64))
                .detach()
                .sum()
            )
        )
        ticks.append(resolution_score(model, data))
    assert 3 < rates[0] < 15 and rates[1] > 30  # the truth is 7.5
    assert ticks[0] > ticks[1] + 0.05


def test_the_tick_is_read_again_wherever_a_model_has_been() -> None:
    model = DeepDAPP(width=8, modes=4)
    for tick in (0.0, 2.0, 3.0):
        model.tick.fill_(tick)
        assert model.train().gap_resolution() == tick and model.eval().gap_resolution() == 0.0
    for tick in range(40):  # new buffers, which may lie where old ones lay
        model._apply(torch.clone)
        model.tick.fill_(float(tick))
        model._apply(torch.clone)
        assert deepcopy(model).train().gap_resolution() == model.train().gap_resolution() == tick
    with torch.inference_mode():
        assert deepcopy(model).eval().gap_resolution() == 0.0


def test_deep_dapp_learns_how_likely_ticks_are_and_not_to_aim() -> None:
    rng = np.random.default_rng(2)
    times = [np.cumsum(1 + rng.poisson(0.8, 25)).astype(float) for _ in range(60)]
    events = fp.Dataset.from_sequences(
        [fp.Sequence(t, start=0.0, stop=float(t[-1]) + 1) for t in times]
    )
    scored = events.select(range(12))
    gaps = np.concatenate([np.diff(t) for t in times[:12]]) - 1
    law = float(np.mean(gaps * np.log(0.8) - 0.8 - np.array([math.lgamma(g + 1) for g in gaps])))
    ticks, densities = [], []
    for spread in (True, False):
        model = DeepDAPP(width=16, modes=8, layers=1, dropout=0.0, event_dropout=0.0, rhythms=0)
        found = fp.fit(
            model,
            events,
            events,
            steps=200,
            epochs=0,
            learning_rate=1e-2,
            validate_every=50,
            convention="gaps",
            dequantise=spread,
            progress=False,
        )
        assert any(
            ("are dequantised" in note) == spread for note in found.notes if "resolution" in note
        )
        ticks.append(resolution_score(model, scored, tolerance=1e-2))
        densities.append(
            fp.log_likelihood(model, scored.batch(), convention="gaps", tolerance=1e-2).per_event
        )
    assert law - 0.1 < ticks[0] < law + 0.02
    assert ticks[1] < ticks[0] - 0.05 and densities[1] > densities[0] + 0.5


def test_a_clock_does_not_speak_against_the_true_model() -> None:
    """Events at random, 7.5 an hour, read from a clock of six minutes; and against a wrong one it
    speaks still.
    """
    rng = np.random.default_rng(5)
    exact = [np.sort(rng.uniform(0, 8, rng.poisson(60))) for _ in range(40)]
    data = fp.Dataset.from_sequences(
        [fp.Sequence(np.round(10 * t) / 10, start=-0.05, stop=8.05) for t in exact]
    )
    model = MODELS["poisson"]()
    fp.fit(model, data, progress=False)
    fits = fp.goodness_of_fit(model, data)
    assert (
        fits.tick == pytest.approx(0.1)
        and fits.total.ks_p > 0.01
        and "dequantised uniformly" in " ".join(str(fits).split())
    )
    assert fits.to_dict()["tick"] == fits.tick
    wrong = fp.goodness_of_fit(fp.Hawkes(baseline=3.0, branching=0.5, decay=20.0), data)
    assert wrong.total.ks_p < 1e-6
    unrounded = fp.Dataset.from_sequences([fp.Sequence(t, start=-0.05, stop=8.05) for t in exact])
    assert fp.goodness_of_fit(model, unrounded).tick == 0.0


class Rare(PointProcess[positions.Positions]):
    """A rate of exp(-150) in float32, which is 0 once exp is taken, of each of two marks."""

    linear = True

    def __init__(self) -> None:
        super().__init__()
        self.marks, self.weight = MarkSpace.of(2), torch.nn.Parameter(torch.zeros(1))

    def encode(self, batch: fp.Batch, before: None = None) -> positions.Positions:
        return positions.positions_of(batch, None)

    def log_intensity(
        self, history: positions.Positions, times: torch.Tensor, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.full((*times.shape, 2), -150.0)


def test_events_that_were_all_but_impossible_have_a_number() -> None:
    events = fp.Dataset.from_sequences(
        [fp.Sequence([1.0, 3.0, 3.0], [0, 1, 0], start=0.0, stop=4.0, space=MarkSpace.of(2))]
    )
    assert resolution_score(Rare(), events, 2.0) == pytest.approx(
        -150 + 0.5 * math.log(2)
    )  # half of the second tick is before it begins


def test_marks_count_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    sequences = [
        fp.Sequence(
            np.cumsum(rng.integers(0, 4, n)).astype(float),
            rng.integers(0, 3, n),
            start=0.0,
            stop=99.0,
            space=MarkSpace.of(3),
        )
        for n in (9, 30, 1, 0)
    ]
    events = fp.Dataset.from_sequences(sequences)
    model = DeepDAPP(3, width=16, modes=16)
    model.initialise(events)
    whole = resolution_score(model, events, 1.0)
    assert whole < 0 and math.isfinite(whole)
    monkeypatch.setattr("fourpoint.inference.likelihood.BLOCK", 7)
    assert resolution_score(model, events, 1.0) == pytest.approx(whole, abs=1e-5)


def test_times_without_a_resolution_are_refused() -> None:
    with pytest.raises(
        fp.UserError,
        match=(
            "expected the resolution of the timestamps; received gaps that are not multiples of a "
            "common resolution. Pass resolution="
        ),
    ):
        resolution_score(fp.Poisson(), fp.simulate("hawkes", 3))
    with pytest.raises(fp.UserError, match="received -1"):
        resolution_score(fp.Poisson(), fp.simulate("hawkes", 3), -1.0)
