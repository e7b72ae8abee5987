"""The automatic choice of calendar terms, and outages of the recorder."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import fourpoint as fp
from fourpoint.events import Context, Dataset, MarkSpace, Sequence
from fourpoint.events.dequantise import dequantised, dequantised_batch
from fourpoint.models.effects import EffectsSpec, effects_of
from fourpoint.training.calendar import (
    begun_or_ended,
    choose_effects,
    recurs_monthly,
    timestamp_step,
    tried_terms,
)
from fourpoint.training.outages import find_outages, without

ORIGIN = datetime(2025, 1, 6, tzinfo=UTC).timestamp()  # a Monday


def call_log(
    seed: int, *, hour: float = 0.9, weekend: float = -0.5, days: int = 60, outage: bool = False
) -> Dataset:
    """Independent calls in whole minutes with a rhythm of the day and of the week."""
    random = np.random.default_rng(seed)
    stop = 24.0 * days
    proposed = np.sort(random.random(random.poisson(20.0 * stop)) * stop)
    quiet = proposed // 24 % 7 >= 5
    log_rate = hour * np.sin(2 * np.pi * (proposed - 9) / 24) + np.where(quiet, weekend, 0.0)
    times = proposed[random.random(len(proposed)) * 20 < 6 * np.exp(log_rate)]
    if outage:
        times = times[(times < 490) | (times > 519)]
    minutes = np.floor(times * 60) / 60
    known = Context(origin=np.array([ORIGIN]))
    sequence = Sequence(minutes, start=0.0, stop=stop, context=known)
    return Dataset.from_sequences([sequence], unit="hours")


@pytest.mark.parametrize("seed", range(3))
def test_terms_that_are_there_are_chosen_and_no_others(seed: int) -> None:
    def chosen(data: Dataset) -> tuple[str, ...]:
        train, dev = data.split((0.85, 0.15), by="time")
        return choose_effects(train, dev, "auto").spec.calendar

    assert chosen(call_log(seed)) == ("hour", "weekday")
    assert chosen(call_log(seed, weekend=0.0)) == ("hour",)
    assert chosen(call_log(seed, hour=0.0, weekend=0.0)) == ()


def test_days_with_levels_of_their_own_are_no_weekdays() -> None:
    """The level of a day must not be learned from another part of the same day."""
    random = np.random.default_rng(5)
    counts = random.poisson(150 * random.gamma(8, 1 / 8, 16))
    times = np.sort(np.repeat(24.0 * np.arange(16), counts) + 24 * random.random(counts.sum()))
    context = Context(origin=np.array([ORIGIN]))
    sequence = Sequence(times, start=0.0, stop=384.0, context=context)
    data = Dataset.from_sequences([sequence], unit="hours")
    assert choose_effects(data, data.select([]), "auto").spec.calendar == ()


def test_types_that_begin_or_end_within_a_log_are_told() -> None:
    """A mean over the whole window is no forecast of a type that has ended."""
    random = np.random.default_rng(0)
    ends = {"always": (0.0, 960.0), "new": (500.0, 960.0), "old": (0.0, 400.0)}
    times = [random.uniform(a, b, 300) for a, b in ends.values()]
    order = np.argsort(np.concatenate(times))
    marks = np.repeat(np.arange(3), 300)[order]
    context = Context(origin=np.array([ORIGIN]))
    space = MarkSpace(tuple(ends))
    log = Sequence(
        np.concatenate(times)[order], marks, start=0.0, stop=960.0, space=space, context=context
    )
    said = begun_or_ended(Dataset.from_sequences([log], unit="hours"))
    assert [note.split(" is ")[0] for note in said] == [
        "the first event of new",
        "the last event of old",
    ]


def test_fine_terms_need_events_of_each_type() -> None:
    """With 8 types and 550 events of each the calendar of a comparison gained nothing, while the
    hour alone gained .04 nats per event.
    """
    data = call_log(0, days=40)
    assert {"weekhour", "quarterhour"} <= set(tried_terms(data))
    types = MarkSpace(tuple("abcdefgh"))
    ids = np.random.default_rng(0).integers(0, 8, data.events).astype(data.mark_ids.dtype)
    many = replace(data, marks=types, mark_ids=ids)
    assert tried_terms(many) == ["hour", "weekday", "week", "trend"]


def test_an_outage_is_found_and_nothing_else() -> None:
    for seed in range(5):
        data = call_log(seed, outage=True)
        found = find_outages(data, effects_of(data, ("hour", "weekday")))
        assert len(found) == 1
        _, start, stop, expected = found[0]
        assert 488 < start < 493 and 516 < stop < 521 and expected > 50
        whole = call_log(seed)
        assert find_outages(whole, effects_of(whole, ("hour", "weekday"))) == []


def test_clustered_events_are_no_outages() -> None:
    random = np.random.default_rng(4)
    parents = np.sort(random.random(1500) * 5000)
    times = [parents]
    while len(parents):
        offspring = random.poisson(0.7, len(parents))
        parents = np.repeat(parents, offspring) + random.exponential(0.5, offspring.sum())
        times.append(parents)
    every = np.sort(np.concatenate(times))
    log = Sequence(every[every < 5000], start=0.0, stop=5000.0)
    data = Dataset.from_sequences([log])
    assert data.events > 3000 and find_outages(data, EffectsSpec()) == []


def test_an_outage_is_not_taken_for_clustering() -> None:
    """Without the exposure of 0 a fitted Hawkes process explains an outage by excitation."""
    data = call_log(1, outage=True)
    model = fp.MODELS["hawkes"]()
    notes = fp.fit(model, data, progress=False).notes
    assert any("where about" in note and "treated as not recorded" in note for note in notes)
    assert model.estimates["branching"].item() < 0.06
    blind = fp.MODELS["hawkes"]()
    fp.fit(blind, data, outages="none", progress=False)
    assert blind.estimates["branching"].item() > 0.12


def test_masked_time_is_not_exposed() -> None:
    data = call_log(0, outage=True)
    masked = without(data, [(0, 492.0, 517.0, 99.0)])
    assert masked.context is not None and masked.context.exposure is not None
    steps = masked.context.exposure
    assert steps.at(0, np.array([491.0, 500.0, 517.0]))[:, 0].tolist() == [1.0, 0.0, 1.0]


def test_dates_without_times_of_day_get_no_rhythm_of_the_day() -> None:
    """A time of day that is always midnight would have a likelihood without bound."""
    random = np.random.default_rng(0)
    days = np.sort(random.integers(0, 200, 600)).astype(float)
    known = Context(origin=np.array([ORIGIN]))
    log = Sequence(days, start=0.0, stop=200.0, context=known)
    data = Dataset.from_sequences([log], unit="days")
    assert timestamp_step(data) == 86400.0 and timestamp_step(call_log(0)) == 0.0
    train, dev = data.split((0.85, 0.15), by="time")
    assert choose_effects(train, dev, "auto").spec.calendar == ()
    assert "hour" not in tried_terms(data) and "weekday" in tried_terms(data)


@pytest.mark.parametrize("name", ["poisson", "hawkes"])
def test_dates_without_times_of_day_keep_their_weekday(name: str, tmp_path: Path) -> None:
    """A date says on which day an event was, not that it was near midnight."""
    random = np.random.default_rng(0)
    days = np.arange(np.datetime64("2024-01-01"), np.datetime64("2024-12-30"))
    weekday = (days.astype(np.int64) + 3) % 7
    counts = random.poisson(np.array([8.0, 6.0, 6.0, 6.0, 6.0, 1.0, 1.0])[weekday])
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["time", *map(str, np.repeat(days, counts))]) + "\n")
    data = fp.read(log, window=("2024-01-01", "2024-12-30"))
    model = fp.MODELS[name]()
    fp.fit(model, data, calendar="weekday", progress=False)
    weight = model.effects.weight.detach().numpy()[:, 0]
    found = np.exp(weight) / np.exp(weight).sum()
    truth = np.bincount(weekday, counts) / counts.sum()
    assert np.abs(found - truth).max() < 0.03
    assert found[5:].max() < 0.06 and found[4] > 0.13


def test_a_date_is_dequantised_within_its_day() -> None:
    known = Context(origin=np.array([ORIGIN]))
    days = np.repeat(np.arange(50.0), 2)
    log = Sequence(days, start=0.0, stop=50.0, context=known)
    data = Dataset.from_sequences([log], unit="days")
    moved = dequantised(data, 1.0, seed=1).times
    assert (np.floor(moved) == days).all() and np.ptp(moved - days) > 0.9
    batch = dequantised_batch(data.batch(), 1.0, torch.Generator().manual_seed(1), ahead=True)
    assert (batch.times[0].floor().numpy() == days).all()
    minutes = Dataset.from_sequences([log], unit="minutes")  # which may have been rounded
    assert (dequantised(minutes, 1.0, seed=1).times - days).min() < -0.4


def payday_log(seed: int, *, factor: float, days: int, per_day: float = 20.0) -> Dataset:
    """Independent events with rhythms of day and week, ``factor`` times as many on two days of
    every month.
    """
    random = np.random.default_rng(seed)
    first = datetime(2022, 1, 1, tzinfo=UTC)
    dates = [first + timedelta(days=day) for day in range(days)]
    level = np.array([factor if date.day in (25, 26) else 1.0 for date in dates])
    level *= np.array([0.6 if date.weekday() >= 5 else 1.16 for date in dates])
    most = per_day * 2 * level.max()
    proposed = np.sort(random.random(random.poisson(most * days)) * days)
    rate = per_day * (1 + 0.8 * np.sin(2 * np.pi * (proposed - 0.3)))
    rate *= level[proposed.astype(np.int64)]
    times = proposed[random.random(len(proposed)) * most < rate]
    known = Context(origin=np.array([first.timestamp()]))
    sequence = Sequence(24.0 * times, start=0.0, stop=24.0 * days, context=known)
    return Dataset.from_sequences([sequence], unit="hours")


@pytest.mark.parametrize(("factor", "days", "ahead"), [(5.0, 243, 88.0), (2.0, 365, 46.4)])
def test_paydays_are_found(factor: float, days: int, ahead: float) -> None:
    """Blocks of a few days would hold out the same days of all months of a year together."""
    data = payday_log(0, factor=factor, days=days)
    assert recurs_monthly(data)
    model = fp.fit(fp.Poisson(), data, calendar="hour,weekday,monthday", progress=False).model
    assert model.effects is not None
    weight = model.effects.weight[model.effects.spec.columns["monthday"], 0].detach()
    others = torch.cat([weight[:24], weight[26:]]).mean()
    ratio = (weight[24:26].mean() - others).exp()
    assert float(ratio) == pytest.approx(factor, rel=0.12)
    found = fp.forecast(model, data[0], horizon=30 * 24.0, windows=30, paths=300)
    expected = found.counts.mean.sum(-1)  # of the 1st to the 30th
    assert expected[24:26].mean() == pytest.approx(ahead, rel=0.12)


def test_the_days_of_the_month_are_chosen_by_auto() -> None:
    data = payday_log(1, factor=5.0, days=150, per_day=6.0)  # four months to train on
    train, dev = data.split((0.85, 0.15), by="time")
    chosen = choose_effects(train, dev, "auto")
    assert "monthday" in chosen.spec.calendar
    assert "monthday (+0." in chosen.notes[0]


def test_days_of_the_month_are_not_found_by_chance() -> None:
    """At a level of 0.5% one of ten logs without paydays is an exception."""
    found = [recurs_monthly(payday_log(seed, factor=1.0, days=365)) for seed in range(10)]
    assert sum(found) <= 1


def test_the_days_of_the_month_need_some_months() -> None:
    assert "monthday" not in tried_terms(payday_log(0, factor=5.0, days=80))
