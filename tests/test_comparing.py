"""Comparisons find what a log was made from, and say so in words, JSON and a page."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import Context, Dataset, Sequence, UserError
from fourpoint.events.context import Steps
from fourpoint.inference.likelihood import gap_log_likelihoods, log_likelihood
from fourpoint.models import DAPP, Hawkes, Poisson
from fourpoint.models.effects import effects_of
from fourpoint.ops.pairing import paired_gain
from fourpoint.training import comparing
from fourpoint.training.closed_forms import fit_closed_forms, unit_scores
from fourpoint.training.comparing import LADDER, Comparison, compare
from fourpoint.training.comparison_words import number
from fourpoint.training.held_out import Fold, Scores, between, folds_of, local_variation, z_score

CLOSED = "poisson,calendar,hawkes"
AMPLE = 600.0  # seconds, so that a slow machine gives the same answers
MONDAY = datetime.datetime(2025, 1, 6)


def log_times(
    seed: int, days: int, *, excite: float = 0.0, per_hour: float = 4.0, lag: float = 10.0
) -> np.ndarray:
    """Minutes of events of a log with a daily rhythm; each event has ``excite`` offspring, on
    average ``lag`` minutes later.
    """
    random = np.random.default_rng(seed)
    end = days * 1440.0
    top = per_hour / 60 * np.e
    times = random.random(random.poisson(top * end)) * end
    rhythm = np.sin(2 * np.pi * (times / 1440.0 - 0.4))
    kept = random.random(len(times)) * top < per_hour / 60 * np.exp(rhythm) * (1 - excite)
    parents = times[kept]
    every = [parents]
    while excite and len(parents):
        offspring = random.poisson(excite, len(parents))
        parents = np.repeat(parents, offspring) + random.exponential(lag, offspring.sum())
        parents = parents[parents < end]
        every.append(parents)
    return np.sort(np.concatenate(every))


def log_of(times: np.ndarray, days: int, marks: np.ndarray | None = None) -> Dataset:
    """A log with dates, in hours, whose times are whole minutes."""
    origin = (MONDAY - datetime.datetime(1970, 1, 1)).total_seconds()
    sequence = Sequence(
        np.floor(times) / 60,
        marks,
        start=0.0,
        stop=days * 24.0,
        context=Context(origin=np.array([origin])),
    )
    return Dataset.from_sequences([sequence], unit="hours")


@pytest.fixture(scope="module")
def rhythm_only() -> Comparison:
    return compare(
        log_of(log_times(3, 14, per_hour=2.0), 14), CLOSED, time_budget=AMPLE, progress=False
    )


@pytest.fixture(scope="module")
def clustered() -> Comparison:
    return compare(
        log_of(log_times(4, 14, excite=0.4, per_hour=2.0), 14),
        CLOSED,
        time_budget=AMPLE,
        progress=False,
    )


def test_a_rhythm_is_no_clustering(rhythm_only: Comparison) -> None:
    assert [step.name for step in rhythm_only.steps] == ["constant", "calendar", "excitation"]
    assert rhythm_only.step("calendar").gain_low > 0.1
    assert rhythm_only.step("excitation").gain < 0.002
    assert not rhythm_only.clustering_beyond_calendar
    assert rhythm_only.recommended == "calendar"


def test_clustering_beyond_the_rhythm_is_found(clustered: Comparison) -> None:
    assert clustered.clustering_beyond_calendar
    assert clustered.recommended == "excitation"
    assert clustered.step("excitation").gain_low > 0.005
    assert 0.25 < clustered.branching < 0.55
    assert 0.08 < clustered.lag < 0.3  # hours; the truth is 10 minutes


def test_gains_are_differences_of_scores(clustered: Comparison) -> None:
    for before, after in zip(clustered.steps[:-1], clustered.steps[1:], strict=True):
        assert after.gain == pytest.approx(after.nats_per_event - before.nats_per_event)
        assert after.gain_low <= after.gain <= after.gain_high
    first = clustered.steps[0]
    assert (first.gain, first.gain_low, first.gain_high) == (0.0, 0.0, 0.0)


def test_sentences_say_what_was_found(rhythm_only: Comparison, clustered: Comparison) -> None:
    said = " ".join(rhythm_only.sentences)
    assert "The calendar (hour, weekday) explains +0." in said
    assert "Past events do not explain more than chance beyond the calendar" in said
    assert "no clustering beyond the calendar" in said
    assert "Use: calendar" in said
    assert "times as probable" in said
    said = " ".join(clustered.sentences)
    assert "There is clustering beyond the calendar: about" in said
    assert "minutes later" in said
    assert "Use: excitation" in said


def test_the_same_seed_gives_the_same_numbers(rhythm_only: Comparison) -> None:
    again = compare(
        log_of(log_times(3, 14, per_hour=2.0), 14), CLOSED, time_budget=AMPLE, progress=False
    )
    assert again.steps == rhythm_only.steps


def test_types_that_excite_each_other() -> None:
    random = np.random.default_rng(0)
    days = 6
    first = random.random(300) * days * 1440
    second = first + random.exponential(5.0, len(first))  # every event of type 0 has one of type 1
    times = np.concatenate([first, second])
    marks = np.repeat([0, 1], len(first))
    inside = times < days * 1440
    order = np.argsort(times[inside])
    found = compare(
        log_of(times[inside][order], days, marks[inside][order]),
        CLOSED,
        time_budget=AMPLE,
        progress=False,
    )
    assert [step.name for step in found.steps][-1] == "cross-excitation"
    assert found.recommended == "cross-excitation"
    assert found.clustering_beyond_calendar
    assert "Excitation that depends on the types adds" in " ".join(found.sentences)


def test_patients_whose_rates_differ_do_not_cluster() -> None:
    """Independent visits, but a factor of 0.2 to 3 between patients: a Hawkes process alone found
    that 30% of visits follow from earlier ones, a year later.
    """
    random = np.random.default_rng(2)
    rates = random.gamma(1.0, 4.0, 250)
    visits = [
        Sequence(np.sort(2.0 * random.random(random.poisson(2.0 * rate))), start=0.0, stop=2.0)
        for rate in rates
    ]
    data = Dataset.from_sequences(visits)
    found = compare(data, "poisson,hawkes", time_budget=AMPLE, progress=False)
    assert [step.name for step in found.steps] == ["constant", "frailty", "excitation"]
    assert found.recommended == "frailty" and not found.clustering_beyond_calendar
    said = " ".join(found.sentences)
    assert "A separate rate for every sequence adds +" in said
    assert "no clustering beyond chance and the differences between sequences" in said
    drawn = fp.sample(fp.Hawkes(baseline=2.0, branching=0.5, decay=20.0), 0.0, 2.0, 250, seed=1)
    again = compare(drawn, "poisson,frailty,hawkes", time_budget=AMPLE, progress=False)
    assert again.recommended == "excitation" and again.clustering_beyond_calendar


def test_a_few_shops_with_levels_of_their_own_do_not_cluster() -> None:
    random = np.random.default_rng(6)
    sales = [
        Sequence(np.sort(20.0 * random.random(random.poisson(20.0 * level))), start=0.0, stop=20.0)
        for level in random.gamma(3.0, 2.0, 12)
    ]
    data = Dataset.from_sequences(sales)
    found = compare(data, "poisson,hawkes", time_budget=AMPLE, progress=False)
    assert [step.name for step in found.steps] == ["constant", "frailty", "excitation"]
    assert found.recommended == "frailty" and not found.clustering_beyond_calendar
    shown, dev = data[:10], data[10:]
    fitted = fit_closed_forms(
        data.marks,
        shown,
        lambda model: unit_scores(model, dev, "window"),
        time_left=lambda: True,
    )
    assert max(fitted, key=lambda one: float(one.scores.sum())).name == "frailty"


@pytest.mark.parametrize("triggered", [0.0, 0.15])
def test_days_with_levels_of_their_own_are_no_clustering(triggered: float) -> None:
    """Without triggered events the busy days are told; with them, their share and lag."""
    random = np.random.default_rng(2)
    levels = random.gamma(8, 1 / 8, 42)
    counts = random.poisson(60 * (1 - triggered) * levels)
    first = np.repeat(24.0 * np.arange(42), counts) + 24 * random.random(counts.sum())
    second = first[random.random(len(first)) < triggered]
    times = np.concatenate([first, second + random.exponential(0.1, len(second))])
    context = Context(origin=np.array([19723 * 86400.0]))
    log = Sequence(np.sort(times[times < 1008]), start=0.0, stop=1008.0, context=context)
    data = Dataset.from_sequences([log], unit="hours")
    found = compare(data, "calendar,hawkes", calendar="hour", progress=False)
    assert found.clustering_beyond_calendar == (triggered > 0)
    assert abs(found.days - levels.std()) < 0.1
    assert [step.name for step in found.steps] == ["constant", "calendar", "days", "excitation"]
    if triggered:
        assert abs(found.branching - 0.13) < 0.06 and 0.04 < found.lag < 0.3
        assert "beyond the calendar and the levels of days: about" in found.sentences[3]
    else:
        assert "some days are busier than others" in found.sentences[3]
        assert found.recommended == "days" and found.step("days").model == "markov-modulated"
        assert "hidden Markov chain" in found.sentences[4]


def test_a_drift_of_the_level_is_no_clustering() -> None:
    """A Hawkes process explains a slow change of the rate by excitation after many days; clusters
    of minutes in the same log are still found, and their share and delay.
    """
    random = np.random.default_rng(1)
    end = 18 * 1440.0
    times = random.random(2000) * end
    level = 0.5 + 0.25 * (times / end - 0.5)
    kept = np.sort(times[random.random(len(times)) < level])
    log = log_of(kept, 18)
    found = compare(log, CLOSED, calendar="hour", time_budget=AMPLE, progress=False)
    assert found.drifting and not found.clustering_beyond_calendar
    assert found.lag > 0.1 * 18 * 24 and found.step("excitation").gain_low > 0
    assert found.recommended == "constant" and found.to_dict()["drifting"]
    assert any("is not told apart from a level of the rate" in one for one in found.sentences)
    assert any("and slow changes of the rate." in one for one in found.sentences)
    again = kept[random.random(len(kept)) < 0.2]
    both = np.sort(np.concatenate([kept, again + random.exponential(10, len(again))]))
    log = log_of(both[both < end], 18)
    found = compare(log, CLOSED, calendar="hour", time_budget=AMPLE, progress=False)
    assert found.clustering_beyond_calendar and not found.drifting
    assert abs(found.branching - 1 / 6) < 0.08 and 0.05 < found.lag < 0.5


def test_events_that_were_recorded_twice_are_told() -> None:
    random = np.random.default_rng(5)
    minutes = np.unique(random.integers(0, 4 * 1440, 240)).astype(float)
    twice = np.sort(np.concatenate([minutes, minutes[::4]]))
    found = compare(log_of(twice, 4), CLOSED, time_budget=AMPLE, progress=False)
    assert found.clustering_beyond_calendar
    assert any("may have been recorded twice" in note for note in found.notes)


def test_covariates_are_a_step_of_their_own() -> None:
    random = np.random.default_rng(1)
    hours = np.arange(240.0)
    rain = np.repeat(random.random(40) < 0.5, 6).astype(np.float64)
    counts = random.poisson(3.0 * np.exp(1.0 * rain))
    times = np.sort(np.repeat(hours, counts) + random.random(counts.sum()))
    steps = Steps(("rain",), hours, rain[:, None], np.array([0, len(hours)]))
    context = Context(origin=np.array([0.0]), covariates=steps)
    sequence = Sequence(times, start=0.0, stop=240.0, context=context)
    data = Dataset.from_sequences([sequence], unit="hours")
    found = compare(data, CLOSED, time_budget=AMPLE, progress=False)
    names = [step.name for step in found.steps]
    assert names == ["constant", "calendar", "covariates", "excitation"]
    assert found.step("covariates").gain_low > 0.02
    assert found.recommended == "covariates"
    assert any(said.startswith("Covariates add +0.") for said in found.sentences)
    assert not found.clustering_beyond_calendar


def test_many_windows_without_dates_have_the_time_of_the_window() -> None:
    found = compare(
        fp.simulate("nonhomogeneous2", 200, seed=1), CLOSED, time_budget=AMPLE, progress=False
    )
    assert [step.name for step in found.steps] == ["constant", "time", "frailty", "excitation"]
    assert found.recommended == "time"
    assert found.unit_name == "sequences"
    assert not found.clustering_beyond_calendar


def test_a_split_column_is_used() -> None:
    data = fp.simulate("hawkes", 60, seed=1)
    splits = np.array(["train"] * 40 + ["test"] * 20)
    found = compare(
        replace(data, splits=splits), "poisson,hawkes", time_budget=AMPLE, progress=False
    )
    assert found.units == 20


def test_the_library_has_it() -> None:
    assert fp.compare is compare


def test_a_short_log_with_dates_has_both_steps() -> None:
    times = np.sort(np.random.default_rng(0).random(60)) * 600
    found = compare(log_of(times, 1), CLOSED, time_budget=AMPLE, progress=False)
    names = [step.name for step in found.steps]
    assert names == ["constant", "calendar", "excitation"]
    assert found.step("calendar").gain == 0.0


def test_a_neural_model_is_a_step_or_a_note() -> None:
    data = log_of(log_times(3, 3), 3)
    found = compare(data, "dapp", time_budget=8.0, progress=False)
    names = [step.name for step in found.steps]
    assert names[:3] == ["constant", "calendar", "excitation"]
    if "dapp" in names:
        assert np.isfinite(found.step("dapp").gain)
    else:  # a slow machine has no time left for it, and the answer says so
        assert any("dapp is left out" in note for note in found.notes)


def test_too_little_time_leaves_neural_models_out() -> None:
    data = log_of(log_times(3, 4), 4)
    found = compare(data, LADDER, time_budget=1.0, progress=False)
    assert {"calendar", "excitation"} <= {step.name for step in found.steps}
    assert any("dapp is left out" in note for note in found.notes)


def test_bursts_without_a_rhythm_are_clustering_and_no_calendar() -> None:
    """A calendar that predicts worse than a constant rate would hide excitation: with it 38% of
    events seemed to follow from others.
    """
    random = np.random.default_rng(5)
    parents = random.random(random.poisson(1.2 * 24 * 30)) * 1440 * 30
    every = [parents]
    while len(parents):
        offspring = random.poisson(0.6, len(parents))
        parents = np.repeat(parents, offspring) + random.exponential(10.0, offspring.sum())
        parents = parents[parents < 1440 * 30]
        every.append(parents)
    found = compare(
        log_of(np.sort(np.concatenate(every)), 30), CLOSED, time_budget=AMPLE, progress=False
    )
    assert found.clustering_beyond_calendar and found.recommended == "excitation"
    assert found.step("calendar").gain < 0 and abs(found.branching - 0.6) < 0.08
    gained = found.step("excitation").nats_per_event - found.step("constant").nats_per_event
    assert found.harmful and found.step("excitation").gain == pytest.approx(gained)
    said = " ".join(found.sentences)
    assert "predicts worse than a constant rate, -0.0" in said
    assert "left out of the later steps. Past events explain +0." in said
    assert "beyond the calendar" not in said and "There is clustering beyond chance" in said


def test_regular_events_are_told() -> None:
    """Gaps of a gamma distribution with shape 25 vary by a fifth of their mean."""
    random = np.random.default_rng(6)
    minutes = np.cumsum(random.gamma(25.0, 360 / 25, 300))
    found = compare(log_of(minutes, 90), CLOSED, time_budget=AMPLE, progress=False)
    assert found.regular and found.local_variation < 0.1 and not found.clustering_beyond_calendar
    said = " ".join(found.sentences)
    assert "Events are spaced more evenly than independent ones" in said
    assert "a model of the time since the last event (rmtpp) can" in said


def test_the_local_variation_of_independent_events_is_1() -> None:
    random = np.random.default_rng(6)
    gaps = random.exponential(1.0 + np.sin(np.arange(4000) / 300) ** 2)
    several = [Sequence(np.cumsum(part)) for part in np.split(gaps, 40)]
    for sequences in ([Sequence(np.cumsum(gaps))], several):
        value, error = local_variation(Dataset.from_sequences(sequences))
        assert abs(value - 1) < 3 * error and error < 0.03


class PretendedTime:
    """A clock that stands still but for the work that it is told of; under a load everything takes
    so many times longer.
    """

    def __init__(self, load: float) -> None:
        self.load = load
        self.worked = 0.0

    def work(self, seconds: float) -> None:
        self.worked += seconds

    def clock(self, budget: float) -> comparing._Clock:
        return comparing._Clock(
            0.0, budget, now=lambda: self.load * self.worked, worked=lambda: self.worked
        )


@pytest.mark.parametrize("load", [1.0, 3.0, 8.0, 20.0])
def test_a_time_budget_is_kept_on_a_busy_machine(
    load: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fit takes 0.2 s and 1 ms per event, and a neural model what it is allowed and 10% more."""
    time = PretendedTime(load)
    fitted, scores = comparing._Ladder._fitted, Fold.scores

    def slow_fit(self: Any, model: Any, spec: Any, data: Dataset) -> Any:
        time.work(0.2 + 1e-3 * data.scored_events)
        return fitted(self, model, spec, data)

    def slow_scores(self: Fold, model: Any) -> Scores:
        time.work(1e-3 * float(self.events.sum()))
        return scores(self, model)

    def neural(model: Any, data: Dataset, *, time_budget: float, **_: Any) -> None:
        time.work(1.1 * time_budget / load)
        model.maximum_likelihood(data)

    monkeypatch.setattr(comparing._Ladder, "_fitted", slow_fit)
    monkeypatch.setattr(Fold, "scores", slow_scores)
    monkeypatch.setattr(comparing, "fit", neural)
    monkeypatch.setattr(comparing, "MODELS", {"dapp": Poisson})
    monkeypatch.setattr(comparing, "PILOT", 200)
    monkeypatch.setattr(comparing, "WARM_UP", 50)
    data = log_of(log_times(3, 20, per_hour=2.0), 20)
    assert 800 < data.events < 1300
    names = ("poisson", "calendar", "hawkes", "dapp")
    clock = time.clock(60.0)
    found = comparing._ladder(data, names, "hour", "none", 0, clock).climb()
    assert found.seconds <= 60.0
    assert {"constant", "calendar", "excitation"} <= {step.name for step in found.steps}
    said = " ".join(found.notes)
    if load == 1.0:  # everything fits
        assert found.steps[-1].name == "dapp" and found.held_out == data.events and not said
    if load >= 8.0:
        assert "events are compared, as the time budget allows" in said
        assert "dapp is left out" in said


def test_opening_hours_are_no_clustering() -> None:
    """A rate that jumps at the hour, which a spline of the day smooths."""
    random = np.random.default_rng(2)
    days = 25
    hours = np.arange(days * 24)
    is_open = (hours % 24 >= 8) & (hours % 24 < 18)
    counts = random.poisson(np.where(is_open, 12.0, 0.3))
    times = np.sort(60 * (np.repeat(hours, counts) + random.random(counts.sum())))
    data = log_of(times, days)
    found = compare(data, CLOSED, time_budget=AMPLE, progress=False)
    assert found.calendar == ("hour", "weekday", "weekhour", "quarterhour")
    assert not found.clustering_beyond_calendar
    assert found.recommended == "calendar"
    splines = compare(data, CLOSED, calendar="hour,weekday", time_budget=AMPLE, progress=False)
    assert found.step("calendar").gain > splines.step("calendar").gain + 0.005


def test_an_outage_is_no_clustering() -> None:
    times = log_times(7, 14, per_hour=4.0)
    times = times[(times < 4.6 * 1440) | (times > 6.1 * 1440)]
    found = compare(log_of(times, 14), CLOSED, time_budget=AMPLE, progress=False)
    assert any("treated as not recorded" in note for note in found.notes)
    assert not found.clustering_beyond_calendar


# ---------------------------------------------------------------------- held-out data


def test_gap_terms_add_up_to_the_likelihood() -> None:
    data = log_of(log_times(5, 2, per_hour=1.0), 2)
    later = between(data, np.array([20.0]), np.array([40.0]))
    spec = effects_of(data, ["hour"])
    hawkes = Hawkes(data.marks, baseline=4.0, branching=0.3, decay=2.0)
    hawkes.add_effects(spec)
    for model in (Poisson(data.marks), hawkes, DAPP(data.marks)):
        for part in (data, later):
            batch = part.batch()
            whole = log_likelihood(model.eval(), batch, tolerance=1e-5).value
            logs, integrals = gap_log_likelihoods(model, batch, tolerance=1e-5)
            assert logs.shape == integrals.shape == (1, part.events + 1)
            assert float((logs - integrals).sum()) == pytest.approx(float(whole.sum()), abs=1e-3)


def test_folds_hold_every_event_out_once() -> None:
    data = log_of(log_times(5, 6), 6)
    folds = folds_of(data, seed=0)
    assert sum(fold.test.scored_events for fold in folds) == data.events
    for fold in folds:
        assert fold.train.scored_events + fold.test.scored_events == data.events
        assert fold.events.sum() == fold.test.scored_events
        scores = fold.scores(Poisson(data.marks)).total
        whole = log_likelihood(Poisson(data.marks), fold.test.batch()).value
        assert scores.sum() == pytest.approx(float(whole.sum()))
        assert len(scores) == len(fold.events)


def test_intervals_of_paired_gains_cover() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for seed in range(200):
        differences = random.normal(0.5, 2.0, 25)
        gain = paired_gain(differences, np.full(25, 10.0), seed)
        hits += gain.low <= 0.05 <= gain.high
    assert 180 <= hits <= 199
    assert paired_gain(np.array([1.0]), np.array([3.0]), 0).low == -np.inf


def test_first_order_evidence_is_centred_and_doubled() -> None:
    """Of a true simple model its mean is 0; of a true other one about twice the gain."""
    random = np.random.default_rng(0)
    simple, other = np.full(400, 10.0), 10.0 * np.exp(random.normal(0.0, 0.1, 400))
    for truth, gains in ((simple, False), (other, True)):
        unit = np.repeat(np.arange(400), random.poisson(truth))
        one, two = (
            Scores(np.log(rate)[unit].sum() - rate, rate, np.log(rate)[unit], unit)
            for rate in (simple, other)
        )
        score = z_score(two.first_order(one))
        assert (score > 3) == gains
        difference = np.bincount(unit, two.logs - one.logs, 400) - (other - simple)
        assert score > z_score(difference)


def test_numbers_in_sentences() -> None:
    assert number(float("nan")) == "unknown"


# ---------------------------------------------------------------------- refusals and the command


def test_refusals() -> None:
    data = log_of(log_times(3, 4), 4)
    with pytest.raises(UserError, match="models among poisson, calendar"):
        compare(data, "poisson,arima", progress=False)
    with pytest.raises(UserError, match="at least 20 events"):
        compare(between(data, np.array([0.0]), np.array([0.5])), progress=False)
    with pytest.raises(UserError, match="a positive time budget"):
        compare(data, time_budget=0, progress=False)
    with pytest.raises(UserError, match="calendar terms among"):
        compare(data, CLOSED, calendar="minute", progress=False)
    undated = Dataset.from_sequences([Sequence(np.arange(40.0), start=0.0, stop=40.0)])
    with pytest.raises(UserError, match="data with dates"):
        compare(undated, CLOSED, calendar="hour", progress=False)


@pytest.fixture(scope="module")
def csv_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("compare") / "calls.csv"
    minutes = log_times(6, 12, per_hour=2.0)
    stamps = [MONDAY + datetime.timedelta(minutes=int(m)) for m in minutes]
    file.write_text("time\n" + "\n".join(f"{s:%Y-%m-%d %H:%M}" for s in stamps) + "\n")
    return file


def test_the_command_prints_json(csv_log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["compare", str(csv_log), "--models", CLOSED, "--json", "-o", str(page)]
    words += ["--time-budget", "600"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    numbers = json.loads(result.stdout)
    keys = ["steps", "recommended", "clustering_beyond_calendar"]
    assert list(numbers)[:3] == keys
    wanted = ["name", "model", "nats_per_event", "gain", "gain_low", "gain_high"]
    assert all(list(step) == wanted for step in numbers["steps"])
    assert [step["name"] for step in numbers["steps"]] == ["constant", "calendar", "excitation"]
    assert numbers["clustering_beyond_calendar"] is False
    assert numbers["recommended"] == "calendar"
    assert "at most 600 seconds" in result.stderr
    text = page.read_text()
    assert "What explains calls.csv?" in text
    assert "no clustering beyond the calendar" in text
    assert "<svg" in text


def test_the_command_prints_sentences_and_fills_a_folder(csv_log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cmp"
    words = ["--models", CLOSED, "--time-budget", "600", "-o", str(folder)]
    result = CliRunner().invoke(app, ["compare", str(csv_log), *words])
    assert result.exit_code == 0, result.output
    assert "Use: calendar" in result.stdout
    assert "95% interval" in result.stdout
    assert "next: fourpoint fit" in result.stderr
    assert "What explains calls.csv?" in (folder / "report.html").read_text()
    numbers = json.loads((folder / "comparison.json").read_text())
    assert numbers["recommended"] == "calendar"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "prophet"], "models among poisson"),
        (["-o", "page.pdf"], "a page with the extension .html"),
        (["--time-budget", "-1"], "a positive --time-budget"),
        (["--calendar", "fortnight"], "calendar terms among"),
        (["--outages", "maybe"], "--outages to be one of auto, none"),
    ],
)
def test_the_command_refuses(csv_log: Path, words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["compare", str(csv_log), *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert "what to do:" in result.stderr


def test_a_page_is_not_written_over_a_file_of_another_kind(csv_log: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    result = CliRunner().invoke(app, ["compare", str(csv_log), "-o", str(tmp_path / "notes")])
    assert result.exit_code == 2
    assert "which is a file" in result.stderr.replace("\n", " ")
    assert (tmp_path / "notes").read_text() == "mine"
