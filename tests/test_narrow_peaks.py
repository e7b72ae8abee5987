"""Rates with peaks far narrower than a gap: found, integrated, sampled and predicted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import fourpoint as fp
from fourpoint.events import Batch, MarkSpace
from fourpoint.inference.goodness import compensators
from fourpoint.inference.likelihood import log_likelihoods
from fourpoint.models import positions
from fourpoint.models.base import longest_panel
from fourpoint.models.deep_dapp import DeepDAPP
from fourpoint.models.narrow import NarrowPeaks
from fourpoint.models.positions import Positions
from fourpoint.ops.compensator import next_event_law
from fourpoint.streaming import model_queries
from fourpoint.training.run import look_for_narrow_peaks

LOW, WIDTH, TICKS = 0.05, 0.01, (1.0, 2.0, 4.0)
PEAKS = pytest.mark.parametrize(
    ("width", "tick"), [(WIDTH, 0.0), (5e-4, 1.0)], ids=["narrow", "on a clock"]
)


class Ticking(NarrowPeaks[Positions]):
    """A low rate, and ``mass`` more around 1, 2 and 4 ticks after the last event in peaks of
    ``width``; ``tick`` tells it of the clock.
    """

    linear = True

    def __init__(self, mass: float = 0.7, width: float | None = None, tick: float = 0.0) -> None:
        super().__init__()
        self.marks, self.mass, self.width = (
            MarkSpace.of(None),
            mass,
            WIDTH if width is None else width,
        )
        self.register_buffer("narrow", torch.zeros((), dtype=torch.bool))
        self.register_buffer("tick", torch.tensor(tick, dtype=torch.float64))

    def extent(self) -> tuple[float, float]:
        return 0.5, 100.0

    def encode(self, batch: Batch, before: Positions | None = None) -> Positions:
        return positions.positions_of(batch, before)

    def extend(
        self,
        history: Positions,
        time: Tensor,
        mark: Tensor,
        active: Tensor | None = None,
        place: Tensor | None = None,
    ) -> Positions:
        return positions.extended(history, time, active)

    def log_intensity(
        self,
        history: Positions,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Tensor:
        at = history.times if seen is None else history.times.gather(1, seen)
        lag = (times - at[..., None])[..., None]
        peak = torch.exp(-0.5 * ((lag - torch.tensor(TICKS)) / self.width) ** 2) / (
            self.width * math.sqrt(2 * math.pi)
        )
        return (LOW + self.mass * peak.sum(-1, keepdim=True)).log()

    def within(self, lag: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """The integral up to ``lag``."""
        shares = [
            0.5 * (1 + torch.erf((lag - tick) / (self.width * math.sqrt(2)))) for tick in TICKS
        ]
        return LOW * lag + self.mass * sum(shares)


class Blind(Ticking):
    """The same, integrated as any other rate."""

    first_nodes = 2

    def cuts(self, history: Positions) -> None:
        return None


def data(model: Ticking) -> fp.Dataset:
    """Sequences of 20 events at whole ticks, drawn from about the model's law."""
    rng = np.random.default_rng(0)
    chances = np.array(
        [1 - math.exp(-model.mass), math.exp(-model.mass) * (1 - math.exp(-model.mass)), 0.0]
    )
    chances[2] = 1 - chances.sum()
    times = [np.cumsum(rng.choice(TICKS, 20, p=chances)) for _ in range(30)]
    return fp.Dataset.from_sequences(
        [fp.Sequence(t.tolist(), start=0.0, stop=float(t[-1]) + 7.3) for t in times]
    )


@PEAKS
def test_peaks_that_no_rule_finds_are_found(width: float, tick: float) -> None:
    model = Ticking(width=width, tick=tick).double()
    events = data(model)
    assert look_for_narrow_peaks(model, events) and bool(model.narrow)
    batch = events.batch()
    gaps = batch.edges.diff(dim=1)
    exact = torch.where(gaps > 0, model.within(gaps), 0.0)
    found = log_likelihoods(model, batch)["window"]
    assert (found.integral - exact.sum(1)).abs().max() <= 1e-3
    assert (found.integral - exact.sum(1)).abs().sum() <= found.error.sum() + 1e-9
    assert torch.allclose(compensators(model, batch)[..., 0], exact, atol=1e-4)
    missed = log_likelihoods(Blind(width=width).double(), batch)["window"]
    assert (missed.integral - exact.sum(1)).abs().sum() > 1  # or there would be nothing to find


@pytest.mark.parametrize("ticks", [TICKS, (1.37, 2.61, 4.45)])
def test_peaks_that_follow_no_clock_are_not_lost_by_cutting(
    ticks: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_narrow_peaks.TICKS", ticks)
    model = Ticking(width=0.01).double()
    model.narrow.fill_(True)
    gaps = np.random.default_rng(0).uniform(0.5, 6.0, 100)
    batch = fp.Sequence(np.cumsum(gaps), start=0.0, stop=float(gaps.sum()) + 1).batch()
    widths = batch.edges.diff(dim=1)
    found = log_likelihoods(model, batch)["window"]
    assert (
        abs(float(found.integral - (model.within(widths) - model.within(torch.zeros(()))).sum()))
        <= float(found.error) + 1e-6
    )


@pytest.mark.parametrize(("offset", "gap"), [(1.7e9, 1e-4), (1.7e15, 3.0)])
def test_integrals_far_from_zero_lose_no_piece(offset: float, gap: float) -> None:
    gaps = np.random.default_rng(0).integers(1, 9, 60) * gap
    times = offset + np.cumsum(gaps)
    far = fp.Sequence(times, start=offset, stop=float(times[-1]) + gap)
    near = fp.Sequence(times - offset, start=0.0, stop=float(times[-1]) + gap - offset)
    model = DeepDAPP(width=8, modes=4).eval()
    model.initialise(fp.Dataset.from_sequences([near]))
    with torch.no_grad():
        here, there = (
            log_likelihoods(model, s.batch(), tolerance=1e-3)["window"].integral.item()
            for s in (near, far)
        )
    assert there == pytest.approx(here, rel=1e-3)


def test_a_rate_without_them_costs_nothing_more() -> None:
    model = Ticking(mass=0.0).double()
    assert look_for_narrow_peaks(model, data(Ticking())) == [] and not bool(model.narrow)
    assert model.first_nodes == 8
    assert torch.isinf(model.longest_panel(torch.zeros(2))).all()


@PEAKS
def test_the_next_event_lies_in_a_peak(width: float, tick: float) -> None:
    model = Ticking(width=width, tick=tick).double()
    model.narrow.fill_(True)
    history = model.encode(fp.Sequence([3.0], start=0.0, stop=9.0).batch())

    def rates(times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        return model.log_intensity(history, times[:, None], torch.ones(1, 1, dtype=torch.int64))[
            :, 0
        ].exp()

    for passed in (0.0, 0.37):  # since the last event
        start = torch.tensor([3.0 + passed], dtype=torch.float64)
        law = next_event_law(
            rates,
            start,
            start.new_tensor([40.0]),
            longest=longest_panel(model, history, start),
        )
        for lag in (0.5, 1.2, 3.0, 20.0):
            exact = model.within(torch.tensor(lag)) - model.within(torch.tensor(passed))
            assert law.integral_at(torch.tensor([[3.0 + lag]]).double()).item() == pytest.approx(
                exact.item(), abs=1e-4
            )
    start = torch.tensor([3.0], dtype=torch.float64)
    blind = next_event_law(
        rates, start, start.new_tensor([40.0]), shortest=start.new_tensor([40.0])
    )
    assert (
        blind.integral_at(start[:, None] + 3.0).item()
        < 0.5 * model.within(torch.tensor(3.0)).item()
    )


@PEAKS
def test_samples_fall_into_peaks_as_often_as_they_should(width: float, tick: float) -> None:
    model = Ticking(width=width, tick=tick).double()
    model.narrow.fill_(True)
    drawn = fp.sample(model, 0.0, 40.0, sequences=40, seed=0, method="inversion")
    gaps = drawn.gaps
    first = np.abs(gaps - 1) < 5 * width
    share = 1 - math.exp(-model.mass)  # of those that come so far
    expected = math.exp(-LOW) * share
    assert abs(first.mean() - expected) < 4 * math.sqrt(expected * (1 - expected) / len(gaps))


@PEAKS
def test_a_stream_integrates_over_peaks(width: float, tick: float) -> None:
    model = Ticking(width=width, tick=tick).double()
    model.narrow.fill_(True)
    history = model.extend(
        model.encode(fp.Sequence([], start=0.0, stop=9.0).batch()),
        torch.tensor([3.0]).double(),
        torch.zeros(1).long(),
    )
    found = model_queries.integrals(model, history, np.array([3.0]), np.array([7.3]))
    assert found[0] == pytest.approx(model.within(torch.tensor(4.3)).item(), abs=1e-4)


def test_deep_dapp_is_looked_at_when_it_is_fitted_and_remembers() -> None:
    model = DeepDAPP(width=16, modes=16)
    with_clock = data(Ticking())
    found = fp.fit(
        model, with_clock, with_clock, steps=3, epochs=0, validate_every=3, progress=False
    )
    assert not bool(model.narrow) and not any(
        "narrow" in note for note in found.notes
    )  # three steps make no peaks
    model.narrow.fill_(True)
    assert "narrow" in model.state_dict()
    history = model.encode(with_clock.batch([0]))
    cuts = model.cuts(history)
    assert cuts is not None
    inside = cuts[0][(cuts[0] > 0) & (cuts[0] < float(with_clock.stops[0]))]
    assert torch.isfinite(inside).all() and len(inside.unique()) > 3 * 20


def test_a_rate_stays_as_it_is_far_after_the_last_event() -> None:
    model = DeepDAPP(width=16, modes=16).eval()
    model.initialise(fp.simulate("hawkes", 20))
    with torch.no_grad():
        model.since.weight.add_(
            torch.randn(model.since.weight.shape, generator=torch.Generator().manual_seed(0))
        )
        history = model.encode(fp.Sequence([0.3], start=0.0, stop=1.0).batch())
        far = model.intensity(history, torch.tensor([[1e6, 1e9, 1e12]], dtype=torch.float64))[
            0, :, 0
        ]
    assert float(far[0]) > 0 and torch.allclose(far, far[:1].expand(3), rtol=1e-4)
