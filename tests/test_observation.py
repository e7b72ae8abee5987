"""Laws of what was observed: history periods, exposure and recording gaps, for models of every
kind.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_laws as laws
import torch
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import Context, Dataset, EventDataError, Sequence, Steps, UserError
from fourpoint.events.dequantise import dequantised, dequantised_batch
from fourpoint.events.windows import beginning, cut_long
from fourpoint.inference.likelihood import (
    CONVENTIONS,
    log_likelihoods,
    quick_log_likelihood,
    sampled_log_likelihood,
)
from fourpoint.models.base import PointProcess
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson, SplinePoisson, mean_rates
from fourpoint.training.closed_forms import unit_scores

MODELS = [
    ("poisson", 1),
    ("hawkes", 3),
    ("sum", 1),
    ("sum", 3),
    ("spline-base", 1),
    ("keep-softmax", 1),
    ("deep", 1),
    ("deep", 3),
    ("spline-poisson", 1),
    ("self-correcting", 1),
    ("rmtpp", 3),
    ("nhp", 1),
    ("thp", 1),
    ("hawkes-box", 1),
    ("dapp-box", 1),
]
models = pytest.mark.parametrize(("name", "marks"), MODELS, ids=[f"{n}-{m}" for n, m in MODELS])
TOLERANCE = 1e-7


def steps(*levels: tuple[float, float]) -> Steps:
    """An exposure that has each value from its time on."""
    times, values = np.array(levels, dtype=np.float64).T
    return Steps(("exposure",), times, values[:, None], np.array([0, len(levels)]))


def exposed(data: Dataset, exposure: Steps) -> Dataset:
    """The data, all sequences with one exposure."""
    own = exposure.select(np.zeros(len(data), dtype=np.int64))
    return replace(data, context=replace(data.context or Context(), exposure=own))


def scores(model: PointProcess, data: Dataset) -> dict[str, tuple[float, float, float]]:
    """Log-likelihood, integral and error of all sequences by convention."""
    found = log_likelihoods(model, data.batch(), tolerance=TOLERANCE)
    return {
        name: (float(f.value.sum()), float(f.integral.sum()), float(f.error.sum()))
        for name, f in found.items()
    }


@models
def test_parts_with_their_history_have_the_likelihood_of_the_whole(name: str, marks: int) -> None:
    model = laws.build(name, marks)
    data = laws.data(marks, name=name)
    parts = data.split_at([4.7, 8.0])
    whole, *each = (scores(model, one)["window"] for one in (data, *parts))
    assert sum(part.scored_events for part in parts) == data.events
    allowed = whole[2] + sum(one[2] for one in each) + 1e-9
    assert abs(whole[0] - sum(one[0] for one in each)) <= allowed


def integral_between(model: Any, data: Dataset, low: float, high: float) -> float:
    """The integral of the total rate over [low, high] of all windows, by a fine rule."""
    x, w = np.polynomial.legendre.leggauss(8)
    edges = np.linspace(low, high, 101)
    half = np.diff(edges)[:, None] / 2
    times = ((edges[:-1, None] + half) + half * x).ravel()
    weights = torch.from_numpy((half * w).ravel())
    total = 0.0
    for s in data:
        if s.start < low and s.stop > high:
            history = model.encode(s.batch())
            rates = model.intensity(history, torch.from_numpy(times)[None])[0].sum(-1)
            total += float(rates.double() @ weights)
    return total


@models
@torch.no_grad()
def test_a_recording_gap_takes_its_integral_out_of_the_likelihood(name: str, marks: int) -> None:
    model = laws.build(name, marks)
    data = laws.data(marks, name=name)
    low, high = 8.9, 9.4
    assert not ((data.times >= low) & (data.times < high)).any()
    holed = exposed(data, steps((0.0, 1.0), (low, 0.0), (high, 1.0)))
    whole, part = scores(model, data)["window"], scores(model, holed)["window"]
    gap = integral_between(model, data, low, high)
    allowed = whole[2] + part[2] + 1e-6
    assert gap > 0.01
    assert part[0] - whole[0] == pytest.approx(gap, abs=allowed)
    assert whole[1] - part[1] == pytest.approx(gap, abs=allowed)


@models
def test_an_exposure_multiplies_the_rate(name: str, marks: int) -> None:
    model = laws.build(name, marks)
    data = laws.data(marks, name=name)
    plain = scores(model, data)
    doubled = scores(model, exposed(data, steps((0.0, 2.0))))
    for convention, events in (("window", data.events), ("gaps", data.events - 3)):
        value, integral, error = plain[convention]
        expected = value - integral + events * np.log(2.0)
        assert doubled[convention][0] == pytest.approx(expected, abs=1e-9 + 3 * error)


@models
@torch.no_grad()
def test_training_estimates_the_same_likelihood(name: str, marks: int) -> None:
    """With many nodes in every gap the sampled likelihood and the quick one are next to exact."""
    model = laws.build(name, marks)
    data = exposed(laws.data(marks, name=name), steps((0.0, 1.0), (6.1, 0.5), (8.9, 0), (9.4, 2)))
    later = data.split_at([5.5])[1].batch()
    for convention in CONVENTIONS:
        exact = log_likelihoods(model, later, tolerance=1e-5)[convention].value
        random = torch.Generator().manual_seed(1)
        sampled = sampled_log_likelihood(model, later, 400, random, convention=convention)
        assert torch.allclose(sampled.double(), exact, atol=5e-3, rtol=1e-3)
        quick = quick_log_likelihood(model, later, convention=convention)
        assert torch.allclose(quick.double(), exact, atol=2e-2, rtol=1e-2)


def test_blocks_of_history_are_only_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long sequence goes block by block, and gives the same numbers as in one block."""
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 300, 250))
    data = Dataset.from_sequences([Sequence(times, start=0.0, stop=300.0)])
    later = exposed(data, steps((0.0, 1.0), (150.0, 3.0))).split_at([200.0])[1]
    model = laws.dapp()(1)
    model.initialise(data)
    model.double().eval()
    found = scores(model, later), float(quick_log_likelihood(model, later.batch()).sum())
    monkeypatch.setattr("fourpoint.inference.likelihood.BLOCK", 64)
    again = scores(model, later), float(quick_log_likelihood(model, later.batch()).sum())
    for convention in CONVENTIONS:
        assert again[0][convention][0] == pytest.approx(found[0][convention][0], abs=1e-5)
    assert again[1] == pytest.approx(found[1], abs=1e-5)


def test_pieces_of_a_long_sequence_have_the_likelihood_of_the_whole() -> None:
    rng = np.random.default_rng(5)
    times = np.round(np.sort(rng.uniform(0, 100, 90)), 0)
    data = Dataset.from_sequences([Sequence(times, start=-1.0, stop=101.0)])
    pieces = cut_long(data, 20, history=90)
    model = laws.build("hawkes", 1)
    assert 4 <= len(pieces) <= 5 and pieces.scored_events == data.events
    assert scores(model, pieces)["window"][0] == pytest.approx(scores(model, data)["window"][0])
    few = cut_long(data, 20, history=5)
    assert few.lengths.max() <= 25 + 9 and few.scored_events == data.events
    later = cut_long(data.split_at([50.0])[1], 20, history=90)
    expected = scores(model, data.split_at([50.0])[1])["window"][0]
    assert scores(model, later)["window"][0] == pytest.approx(expected)
    assert beginning(data.split_at([50.0])[1], 10).scored_events == 10


def test_splits_of_a_lone_sequence_keep_its_past() -> None:
    data = Dataset.from_sequences([Sequence([1.0, 2.0, 4.0, 7.0], start=0.0, stop=8.0)])
    train, dev, test = data.split((0.5, 0.25, 0.25), by="time")
    assert [len(part[0]) for part in (train, dev, test)] == [2, 3, 4]
    assert [part.scored_events for part in (train, dev, test)] == [2, 1, 1]
    assert test.context is not None and test.context.scored_from is not None
    assert test.context.scored_from.tolist() == [6.0]
    assert test.exposed_times.tolist() == [2.0] and dev.durations.tolist() == [6.0]
    with pytest.raises(EventDataError, match="expected times to cut at inside the windows"):
        data.split_at([9.0])
    with pytest.raises(EventDataError, match="expected one or more rising times"):
        data.split_at([5.0, 4.0])


def test_exposed_time_of_history_gaps_and_steps() -> None:
    exposure = steps((2.0, 1.0), (4.0, 0.0), (5.0, 3.0))
    sequence = Sequence([1.0, 5.5], start=0.0, stop=7.0, context=Context(exposure=exposure))
    data = Dataset.from_sequences([sequence.scored_after(3.0)])
    assert data.exposed_times.tolist() == [1.0 + 3.0 * 2]
    weight = data.batch().scored_exposure
    assert weight is not None
    asked = torch.tensor([[0.0, 2.9, 3.0, 4.0, 4.9, 5.0, 9.0]]).double()
    assert weight.at(asked)[0, :, 0].tolist() == [0, 0, 1, 0, 0, 3, 3]
    time = weight.exposed_time(data.batch().start, data.batch().stop)
    assert time.until(asked[:, :-1])[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert time.inverse(torch.tensor([[0.5, 4.0]]).double())[0].tolist() == [3.5, 6.0]


def test_closed_form_rates_are_per_exposed_time() -> None:
    """By hand: the history period and the recording gap are no part of the time."""
    exposure = steps((0.0, 1.0), (4.0, 0.0), (5.0, 3.0))
    one = Sequence([0.5, 1.0, 3.5, 6.0], start=0.0, stop=7.0, context=Context(exposure=exposure))
    data = Dataset.from_sequences([one.scored_after(1.0)])
    assert data.exposed_times.tolist() == [3.0 + 6.0] and data.scored_events == 3
    assert mean_rates(data, data.marks).tolist() == [3 / 9]


@torch.no_grad()
def test_a_spline_of_an_exposed_rate_is_flat() -> None:
    """Events come in proportion to the exposure, so that the rate per exposure is constant."""
    rng = np.random.default_rng(0)
    levels = ((0.0, 1.0), (4.0, 4.0), (8.0, 0.0), (9.0, 0.5))
    sequences = []
    for _ in range(60):
        draws = rng.uniform(0, 12, rng.poisson(12 * 20))
        keep = rng.random(len(draws)) * 4 < steps(*levels).at(0, draws)[:, 0]
        context = Context(exposure=steps(*levels))
        sequences.append(Sequence(np.sort(draws[keep]), start=0.0, stop=12.0, context=context))
    model = SplinePoisson(knots=8)
    data = Dataset.from_sequences(sequences)
    model.maximum_likelihood(data)
    history = model.encode(data.batch([0]))
    rates = model.intensity(history, torch.linspace(0.1, 11.9, 40).double()[None]).flatten()
    assert torch.allclose(rates, torch.full_like(rates, 5.0), rtol=0.15)
    blind = SplinePoisson(knots=8)
    blind.maximum_likelihood(replace(data, context=None))
    found = blind.intensity(blind.encode(data.batch([0])), torch.tensor([[2.0, 6.0]]).double())
    assert float(found[0, 1, 0] / found[0, 0, 0]) > 3


def test_dequantised_events_stay_in_their_exposure() -> None:
    exposure = steps((0.0, 1.0), (4.0, 0.0), (6.0, 1.0))
    one = Sequence([1.0, 4.0 - 1e-9, 6.0, 8.0], start=0.0, stop=9.0)
    data = exposed(Dataset.from_sequences([one.scored_after(1.0)]), exposure)
    for seed in range(20):
        moved = dequantised(data, 1.0, seed)
        assert moved.scored_events == 4 and abs(moved.times - data.times).max() <= 0.5
        random = torch.Generator().manual_seed(seed)
        batch = dequantised_batch(data.batch(), 1.0, random)
        assert batch.times[0, 1] < 4.0 and batch.times[0, 2] >= 6.0 and batch.times[0, 0] >= 1.0


# Sampling, goodness of fit and scores of predictions

SAMPLED = [("poisson", 1), ("hawkes", 3), ("sum", 1), ("deep", 1), ("rmtpp", 1), ("nhp", 1)]
LEVELS = ((0.0, 1.0), (3.0, 0.0), (4.0, 2.0), (7.0, 0.5))


def past(marks: int) -> Sequence:
    """Two events before time 2, with an exposure that goes on after it."""
    kinds = [0, marks - 1]
    context = Context(exposure=steps(*LEVELS))
    return Sequence([0.5, 1.5], kinds, start=0.0, stop=2.0, space=marks, context=context)


@pytest.mark.parametrize(("name", "marks"), SAMPLED, ids=[n for n, _ in SAMPLED])
def test_sampled_events_are_as_many_as_the_exposed_integral(name: str, marks: int) -> None:
    """Mean count and mean integral agree within four standard errors; rescaled events are those of
    a Poisson process of rate 1; nothing happens in the gap.
    """
    model = laws.build(name, marks)
    history = past(marks)
    paths = 100 if name == "deep" else 300
    drawn = fp.sample(model, 2.0, 9.0, paths, seed=4, history=history)
    assert drawn.context is not None and not ((drawn.times >= 3.0) & (drawn.times < 4.0)).any()
    whole = []
    for path in drawn:
        times = np.concatenate([history.times, path.times])
        kinds = np.concatenate([history.marks, path.marks])
        one = Sequence(times, kinds, start=0.0, stop=9.0, space=marks, context=path.context)
        whole.append(one.scored_after(2.0))
    data = Dataset.from_sequences(whole)
    assert data.scored_events == drawn.events > paths
    found = log_likelihoods(model, data.batch(), tolerance=1e-3)["window"]
    difference = found.events.double() - found.integral
    error = float(difference.std()) / np.sqrt(len(data))
    assert abs(float(difference.mean())) < 4 * error
    verdict = fp.goodness_of_fit(model, data, tolerance=1e-3).total
    assert verdict.count == drawn.events and verdict.ks_p > 1e-3 and verdict.uniform_p > 1e-3
    assert verdict.expected == pytest.approx(float(found.integral.sum()), rel=1e-3)


def test_the_future_does_not_change_the_past_with_exposure_and_history() -> None:
    data = exposed(laws.data(1), steps((0.0, 1.0), (6.1, 0.5), (8.9, 0), (9.4, 2)))
    early = data.split_at([8.0])[0]
    changed = exposed(data, steps((0.0, 1.0), (6.1, 0.5), (8.9, 5.0))).split_at([8.0])[0]
    for name in ("poisson", "hawkes", "sum", "deep"):
        model = laws.build(name, 1)
        assert scores(model, early)["window"] == scores(model, changed)["window"]


def test_clusters_in_a_box_are_thinned_by_the_exposure() -> None:
    model = laws.build("hawkes-box", 1)
    empty = Sequence(
        [], start=0.0, stop=1.0, space=model.marks, context=Context(exposure=steps(*LEVELS))
    )
    drawn = fp.sample(model, 1.0, 9.0, 40, seed=1, history=empty)
    assert drawn.events and not ((drawn.times >= 3.0) & (drawn.times < 4.0)).any()
    found = log_likelihoods(model, drawn.batch(), tolerance=1e-3)["window"]
    difference = found.events.double() - found.integral
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / np.sqrt(len(drawn))


def test_forecasts_have_the_exposure_that_is_to_come() -> None:
    model = Poisson()
    found = fp.forecast(model, past(1), horizon=7.0, paths=400, windows=7)
    exposure = [1.0, 0.0, 2.0, 2.0, 2.0, 0.5, 0.5]
    means = found.counts.mean[:, 0]
    assert np.allclose(means, exposure, atol=0.3) and means[1] == 0.0
    assert found.next_event.median == pytest.approx(2.0 - np.log(0.5), abs=1e-3)
    late = found.next_event.quantiles[0.75]  # 1 of the mass lies before the gap
    assert late == pytest.approx(4.0 + (np.log(4.0) - 1) / 2, abs=1e-3)
    scored = fp.resolution_score(model, past(1), resolution=0.5)
    mass = np.exp(-0.75) - np.exp(-1.25)
    assert scored == pytest.approx(np.log(mass), abs=1e-6)


def test_scores_of_one_part_look_at_its_events_only() -> None:
    rng = np.random.default_rng(2)
    times = np.sort(rng.uniform(0, 200, 200))
    later = Dataset.from_sequences([Sequence(times, start=0.0, stop=200.0)]).split_at([150.0])[1]
    found = fp.prediction_scores(Poisson(), later, events=1000, origins=5, paths=5)
    assert found.next_event.events == later.scored_events < 80
    verdict = fp.goodness_of_fit(Poisson(), later)
    assert verdict.total.count == later.scored_events
    assert verdict.total.expected == pytest.approx(50.0)
    assert len(verdict.residuals["0"]) == later.scored_events


# Imputation


def with_gaps(log: Dataset, gaps: list[tuple[float, float]]) -> Dataset:
    """The log without what happened in the gaps, which were not recorded."""
    levels = [(float(log.starts[0]) - 1, 1.0)]
    kept = np.ones(log.events, dtype=bool)
    for start, stop in gaps:
        levels += [(start, 0.0), (stop, 1.0)]
        kept &= (log.times < start) | (log.times >= stop)
    context = Context(exposure=steps(*levels))
    one = log[0]
    seen = Sequence(
        one.times[kept], one.marks[kept], start=one.start, stop=one.stop, context=context
    )
    return Dataset.from_sequences([seen])


def test_imputed_events_lie_in_the_gaps_and_nothing_else_changes() -> None:
    truth = Hawkes(baseline=0.5, branching=0.6, decay=1.0)
    log = fp.sample(truth, 0.0, 60.0, 1, seed=3)
    holed = with_gaps(log, [(0.0, 2.0), (20.0, 25.0), (55.0, 60.0)])
    filled = fp.impute(truth, holed, seed=1)
    again = fp.impute(truth, holed, seed=1)
    assert filled.times.tolist() == again.times.tolist() and filled.events > holed.events
    new = np.setdiff1d(filled.times, holed.times)
    inside = (new < 2) | ((new >= 20) & (new < 25)) | (new >= 55)
    assert len(new) == filled.events - holed.events and inside.all()
    assert np.isin(holed.times, filled.times).all()
    assert filled.exposed_times.tolist() == [60.0]
    assert fp.impute(truth, log) is log
    later = holed.split_at([40.0])[1]
    assert fp.impute(truth, later, seed=1).scored_events >= later.scored_events
    features = replace(holed, features=np.ones((holed.events, 1)))
    with pytest.raises(UserError, match="expected events without features to impute; received"):
        fp.impute(truth, features)


def test_imputed_events_of_a_poisson_process_are_as_many_as_expected() -> None:
    """Nothing around a gap says anything of what is in it: the mean count is rate times length."""
    rng = np.random.default_rng(0)
    log = Dataset.from_sequences([Sequence(np.sort(rng.uniform(0, 50, 50)), start=0.0, stop=50.0)])
    holed = with_gaps(log, [(10.0, 14.0), (30.0, 34.0)])
    filled = [fp.impute(Poisson(), holed, seed=k, futures=4) for k in range(15)]
    counts = [one.events - holed.events for one in filled]
    assert abs(np.mean(counts) - 8) < 4 * np.sqrt(8 / 15)


def test_what_follows_a_gap_chooses_what_is_in_it() -> None:
    """A burst right after the gap is likelier after events at its end."""
    model = Hawkes(baseline=0.2, branching=0.8, decay=0.5)
    log = Sequence([1.0, *np.linspace(20.05, 21.0, 6)], start=0.0, stop=30.0)
    holed = with_gaps(Dataset.from_sequences([log]), [(10.0, 20.0)])
    late = []
    for futures in (1, 16):
        drawn = [fp.impute(model, holed, seed=k, futures=futures) for k in range(12)]
        late.append(np.mean([((d.times >= 17) & (d.times < 20)).sum() for d in drawn]))
    assert late[1] > 1.5 * late[0]


def test_a_fit_fills_the_gaps_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What that does to the bias is measured in the documentation."""
    monkeypatch.setattr("fourpoint.training.filling.ROUNDS", 2)
    truth = Hawkes(baseline=0.4, branching=0.6, decay=0.5)
    log = fp.sample(truth, 0.0, 300.0, 1, seed=102)
    holed = with_gaps(log, [(50.0, 60.0), (150.0, 160.0), (250.0, 260.0)])
    model = Hawkes()
    found = fp.fit(model, holed, progress=False, fill="sample")
    assert any("events were imputed into 3 recording gaps of 30" in note for note in found.notes)
    assert abs(float(model.estimates["branching"].sum()) - 0.6) < 0.25
    assert model.trained_on is not None
    assert fp.evaluate(model, holed).trained_on is not None  # the data as they were observed
    unknown: Any = "mean"
    with pytest.raises(UserError, match="expected fill 'none' or 'sample'; received 'mean'"):
        fp.fit(Hawkes(), holed, progress=False, fill=unknown)


@pytest.mark.parametrize("kind", ["poisson", "hawkes"])
def test_fits_recover_their_parameters_under_an_exposure(kind: str) -> None:
    """With e in {1, 2, 0.5} the estimates lie within three standard errors of the truth; a fit that
    does not know the exposure is off by more.
    """
    cycle = (1.0, 2.0, 0.5, 0.0)
    levels = [(20.0 * k, cycle[k % 4]) for k in range(20)]
    empty = Sequence([], start=0.0, stop=1e-6, context=Context(exposure=steps(*levels)))
    if kind == "poisson":
        log = fp.sample(Poisson(), 1e-6, 400.0, 1, seed=2, history=empty)
        model: Poisson | Hawkes = Poisson()
        model.maximum_likelihood(log)
        expected = float(log.exposed_times.sum())
        assert expected == pytest.approx(350.0, abs=1e-3)
        log_rate = float(model.log_rate.detach())
        assert np.exp(log_rate) == pytest.approx(log.events / expected)
        assert abs(log_rate) < 3 / np.sqrt(log.events)
        return
    truth = Hawkes(baseline=1.0, branching=0.3, decay=2.0)
    log = fp.sample(truth, 1e-6, 400.0, 1, seed=2, history=empty)
    model = Hawkes()
    model.maximum_likelihood(log)
    for name, value in truth.estimates.items():
        off = np.abs(model.estimates[name] - value)
        assert (off < 3 * model.errors[name]).all(), name
    blind = Hawkes()
    blind.maximum_likelihood(replace(log, context=None))
    assert float(blind.estimates["branching"].sum()) > 0.5


def test_the_marginal_likelihood_of_a_process_without_memory_is_that_of_observed_time() -> None:
    rng = np.random.default_rng(0)
    log = Dataset.from_sequences([Sequence(np.sort(rng.uniform(0, 50, 60)), start=0.0, stop=50.0)])
    holed = with_gaps(log, [(0.0, 2.0), (10.0, 14.0), (30.0, 34.0), (48.0, 50.0)])
    parts = [holed, *holed.split_at([20.0]), *holed.split_at([32.0])]
    for part in parts:
        found = fp.marginal_log_likelihood(Poisson(), part, futures=3)
        assert found.log_likelihood == pytest.approx(-float(part.exposed_times.sum()), abs=1e-9)
        assert found.events == part.scored_events
    assert fp.marginal_log_likelihood(Poisson(), log).gaps == 0
    with pytest.raises(UserError, match="expected at least one future; received futures=0"):
        fp.marginal_log_likelihood(Poisson(), holed, futures=0)


def test_the_marginal_likelihood_prefers_the_truth_to_a_fit_that_ignores_gaps() -> None:
    """A decay of 0.1 and gaps of length 10: given the observed events alone, the fit that was made
    so scores higher than the truth; with the unknown events integrated out the truth does.
    """
    truth = {"baseline": 0.4, "branching": 0.6, "decay": 0.1}
    gaps = [(100.0 * k + 50, 100.0 * k + 60) for k in range(20)]
    times = thinned_hawkes(2, 2000.0, truth)
    holed = with_gaps(Dataset.from_sequences([Sequence(times, start=0.0, stop=2000.0)]), gaps)
    right, blind = Hawkes(**truth), Hawkes()
    blind.maximum_likelihood(holed)
    plain = [fp.evaluate(model, holed).scores["window"].log_likelihood for model in (right, blind)]
    marginal = [
        fp.marginal_log_likelihood(model, holed, futures=16).log_likelihood
        for model in (right, blind)
    ]
    assert plain[1] > plain[0] + 5 and marginal[0] > marginal[1] + 0.5
    assert marginal[0] > plain[0] + 5


def test_the_commands_fill_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourpoint.training.filling.ROUNDS", 2)
    monkeypatch.chdir(tmp_path)
    times = thinned_hawkes(102, 300.0, {"baseline": 0.4, "branching": 0.6, "decay": 0.5})
    kept = times[(times < 50) | (times >= 60)]
    Path("log.csv").write_text("time\n" + "".join(f"{t:.6f}\n" for t in kept))
    Path("gaps.csv").write_text("start,stop\n50,60\n")
    beside = ["--gaps", "gaps.csv", "--window", "0", "300"]

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, [*words, *beside], catch_exceptions=False)

    fitted = run("fit", "log.csv", "--model", "hawkes", "-o", "model", "--fill", "sample")
    assert fitted.exit_code == 0 and "imputed into 1 recording gaps of 10" in fitted.output
    assert "--gaps gaps.csv" in fitted.output and "--fill sample" in fitted.output
    found = run("evaluate", "model", "log.csv", "--split", "all", "--fill", "sample")
    assert found.exit_code == 0
    assert "the unknown events of 1 recording gaps integrated out" in found.output
    words = ["evaluate", "model", "log.csv", "--split", "all", "--fill", "sample", "--json"]
    numbers = json.loads(run(*words).stdout)
    off = numbers["marginal"]["log_likelihood_per_event"] - numbers["log_likelihood_per_event"]
    assert numbers["marginal"]["gaps"] == 1 and 0 < abs(off) < 0.1
    refused = run("fit", "log.csv", "--model", "hawkes", "-o", "other", "--fill", "mean")
    assert refused.exit_code == 2 and "--fill" in refused.output


def thinned_hawkes(
    seed: int, stop: float, truth: dict[str, float], exposure: Steps | None = None
) -> np.ndarray:
    """Events of a Hawkes process observed at the rate e(t) lambda(t), by thinning."""
    rng = np.random.default_rng(seed)
    highest = 1.0 if exposure is None else float(exposure.values.max())
    jump = truth["branching"] * truth["decay"]
    time, excitation = 0.0, 0.0
    times = []
    while True:
        bound = highest * (truth["baseline"] + excitation)
        gap = rng.exponential(1 / bound)
        time += gap
        excitation *= np.exp(-truth["decay"] * gap)
        if time > stop:
            return np.array(times)
        here = 1.0 if exposure is None else float(exposure.at(0, np.array([time]))[0, 0])
        if rng.random() * bound < here * (truth["baseline"] + excitation):
            times.append(time)
            excitation += jump


def coverage(model: Hawkes, truth: dict[str, float], covered: dict[str, list[bool]]) -> None:
    """Note for every parameter whether its 95% interval covers the truth."""
    for name, value in truth.items():
        off = abs(model.estimates[name].item() - value)
        covered.setdefault(name, []).append(off < 1.96 * model.errors[name].item())


def test_intervals_cover_the_rate_under_an_exposure() -> None:
    """Exposures of 1, 2, 0.5 and 0 in turn: the rate of a Poisson process (100 seeds, since its fit
    costs nothing) and the parameters of a Hawkes process (ten seeds) lie in at least 90% of their
    95% intervals.
    """
    cycle = (1.0, 2.0, 0.5, 0.0)
    exposure = steps(*[(20.0 * k, cycle[k % 4]) for k in range(60)])
    context = Context(exposure=exposure)
    truth = {"baseline": 1.0, "branching": 0.3, "decay": 2.0}
    covered: dict[str, list[bool]] = {}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        proposed = np.sort(rng.uniform(0, 1200, rng.poisson(2.0 * 1200)))
        kept = 2 * rng.random(len(proposed)) < exposure.at(0, proposed)[:, 0]
        even = Sequence(proposed[kept], start=0.0, stop=1200.0, context=context)
        poisson = Poisson()
        poisson.maximum_likelihood(Dataset.from_sequences([even]))
        error = 1 / np.sqrt(even.times.size)
        covered.setdefault("rate", []).append(abs(poisson.log_rate.item()) < 1.96 * error)
    for seed in range(10):
        times = thinned_hawkes(seed, 1200.0, truth, exposure)
        log = Sequence(times, start=0.0, stop=1200.0, context=context)
        model = Hawkes()
        model.maximum_likelihood(Dataset.from_sequences([log]))
        coverage(model, truth, covered)
    assert [len(each) for each in covered.values()] == [100, 10, 10, 10]
    assert all(np.mean(each) >= 0.9 for each in covered.values()), covered


@pytest.mark.parametrize("decay", [1.0, 5.0])
def test_intervals_cover_the_branching_ratio_with_a_tenth_removed(decay: float) -> None:
    """Ten seeds, 20 gaps of length 10 in 2,000. Where an event is remembered for as long as a gap
    (a decay of 0.1), gaps have to be imputed: the documentation measures that.
    """
    truth = {"baseline": 0.4, "branching": 0.6, "decay": decay}
    gaps = [(100.0 * k + 50, 100.0 * k + 60) for k in range(20)]
    covered: dict[str, list[bool]] = {}
    for seed in range(10):
        times = thinned_hawkes(seed, 2000.0, truth)
        whole = Dataset.from_sequences([Sequence(times, start=0.0, stop=2000.0)])
        model = Hawkes()
        model.maximum_likelihood(with_gaps(whole, gaps))
        coverage(model, truth, covered)
    assert all(len(each) == 10 for each in covered.values()) and len(covered) == 3
    assert all(np.mean(each) >= 0.9 for each in covered.values()), covered


def test_the_kernel_scores_what_comes_after_a_history_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DAPP's kernel and the plain way agree, also where an event lies at the end of the period."""
    model = laws.build("sum", 3)
    data = laws.data(3)
    parts = [data.split_at([4.7])[1], data.split_at([float(data[2].times[3])])[1]]
    values = []
    for work in (0, 2**40):
        monkeypatch.setattr("fourpoint.kernels.conditions.SCORE_WORK", work)
        used = model.scored_gaps(parts[0].batch(), 1e-6) is not None
        assert used == (work == 0)
        values.append([scores(model, part)[c] for part in parts for c in CONVENTIONS])
    for fast, plain in zip(*values, strict=True):
        assert abs(fast[0] - plain[0]) <= fast[2] + plain[2] + 1e-9
        assert abs(fast[1] - plain[1]) <= fast[2] + plain[2] + 1e-9


def test_units_of_a_comparison_are_blocks_of_scored_gaps() -> None:
    """A long history period leaves no empty units, which would feign certainty."""
    rng = np.random.default_rng(1)
    times = np.sort(rng.uniform(0, 1000, 1000))
    later = Dataset.from_sequences([Sequence(times, start=0.0, stop=1000.0)]).split_at([900.0])[1]
    found = unit_scores(Poisson(), later, "window")
    assert len(found) == 60 and bool((found != 0).all())
    assert float(found.sum()) == pytest.approx(-100.0, abs=1e-6)  # a rate of 1
