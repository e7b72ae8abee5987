"""Effects of calendar and covariates: evaluation, bounds, breakpoints, and their fit."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

from fourpoint.events import BatchContext, Context, Dataset, Sequence, Steps, UserError
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models import hawkes_effects
from fourpoint.models.effects import (
    Effects,
    EffectsSpec,
    day_of_month,
    effects_of,
    zone_offsets,
)
from fourpoint.models.effects_fit import integral_nodes
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.hawkes_effects import estimate_with_effects
from fourpoint.models.poisson import Poisson
from fourpoint.models.time_pieces import constant_cubics, pieces_until
from fourpoint.serve.recent import calendar

ORIGIN = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
HOURS = 3600.0


def random_effects(
    calendar: tuple[str, ...], zone: str | None = None, covariates: int = 0, curves: int = 2
) -> Effects:
    names = tuple(f"x{i}" for i in range(covariates))
    spec = EffectsSpec(calendar, zone, HOURS, names, (0.5,) * covariates, (2.0,) * covariates)
    effects = Effects(spec, curves, torch.float64)
    with torch.no_grad():
        effects.weight.normal_(generator=torch.Generator().manual_seed(0))
    return effects


def context(covariates: int = 0, rows: int = 1) -> Context:
    steps = None
    if covariates:
        random = np.random.default_rng(1)
        each = Steps(
            tuple(f"x{i}" for i in range(covariates)),
            np.arange(0.0, 100.0, 5.0),
            random.normal(size=(20, covariates)),
            np.array([0, 20]),
        )
        steps = Steps.join([each] * rows)
    return Context(origin=np.full(rows, ORIGIN), covariates=steps)


def test_the_calendar_repeats_and_continues() -> None:
    effects = random_effects(("hour", "weekday", "week"))
    known = context().batch(np.arange(1))
    times = torch.linspace(0, 24 * 7, 300, dtype=torch.float64)[None]
    first = effects.values(times, known)
    assert torch.allclose(first, effects.values(times + 24 * 7 * 400, known), atol=1e-9)
    daily = random_effects(("hour",))
    assert torch.allclose(daily.values(times, known), daily.values(times + 24, known), atol=1e-9)


def test_local_time_follows_daylight_saving() -> None:
    """The clock is put back at 03:00 on 2025-10-26 in Berlin: the hour from 02:00 occurs twice, and
    both occurrences have the same effect. In spring the hour from 02:00 never occurs.
    """
    effects = random_effects(("hour",), "Europe/Berlin", curves=1)
    known = context().batch(np.arange(1))
    zone = ZoneInfo("Europe/Berlin")

    def hours(*moment: int, fold: int = 0) -> float:
        return (datetime(*moment, tzinfo=zone, fold=fold).timestamp() - ORIGIN) / HOURS

    pairs = [
        (hours(2025, 10, 26, 2, 30), hours(2025, 10, 26, 2, 30, fold=1)),
        (hours(2025, 10, 25, 9, 0), hours(2025, 10, 27, 9, 0)),
        (hours(2025, 3, 29, 9, 0), hours(2025, 3, 31, 9, 0)),
    ]
    assert pairs[0][1] - pairs[0][0] == 1 and pairs[1][1] - pairs[1][0] == 49
    assert pairs[2][1] - pairs[2][0] == 47
    for a, b in pairs:
        values = effects.values(torch.tensor([[a, b]], dtype=torch.float64), known)
        assert torch.allclose(values[0, 0], values[0, 1], atol=1e-9)
    before = hours(2025, 3, 30, 1, 59, 59) + 1 / HOURS
    local = effects.local_seconds(torch.tensor([[before]], dtype=torch.float64), known)
    assert float(local) / HOURS % 24 == pytest.approx(3.0)


def test_days_of_the_month_agree_with_the_library() -> None:
    days = np.random.default_rng(0).integers(-200_000, 200_000, 500)
    days = np.append(days, [0, 59, 789, 790, 11016, 11017])  # the end of February of 1972 and 2000
    local = torch.from_numpy(days * 86400.0 + 86399.0)
    expected = [(date(1970, 1, 1) + timedelta(days=int(day))).day for day in days]
    assert day_of_month(local).tolist() == expected


def test_the_day_of_the_month_is_that_of_local_time() -> None:
    effects = random_effects(("monthday",), "Asia/Tokyo", curves=1)
    known = context().batch(np.arange(1))
    before, after = 30 * 24 + 14.9, 30 * 24 + 15.1  # midnight before 1 February in Tokyo
    values = effects.values(torch.tensor([[before, after]], dtype=torch.float64), known)[0, :, 0]
    assert torch.allclose(values, effects.weight[[30, 0], 0])


def test_a_month_without_a_31st_has_a_lower_bound() -> None:
    """February and the first days of March contain no 31st, February and March contain one."""
    effects = random_effects(("monthday",), curves=1)
    with torch.no_grad():
        effects.weight.zero_()
        effects.weight[30] = 2.0
    known = context(rows=2).batch(np.arange(2))
    a = torch.full((2,), 31 * 24.0 + 1, dtype=torch.float64)
    b = a + 24 * torch.tensor([30.5, 62.0], dtype=torch.float64)
    bound = effects.upper_bound(a, b, known, torch.float64)
    assert bound[:, 0].tolist() == pytest.approx([0.0, 2.0], abs=1e-9)


def test_offsets_of_a_zone_agree_with_the_library() -> None:
    starts, offsets = zone_offsets("America/New_York")
    zone = ZoneInfo("America/New_York")
    for second in np.random.default_rng(0).integers(0, 4_000_000_000, 300).tolist():
        known = datetime.fromtimestamp(second, UTC).astimezone(zone).utcoffset()
        assert known is not None
        found = offsets[np.searchsorted(starts, second, side="right") - 1]
        assert found == known.total_seconds()


@pytest.mark.parametrize(
    "calendar", [("hour",), ("weekday",), ("week", "month"), ("monthday", "hour"), ()]
)
def test_bounds_are_never_below_the_effects(calendar: tuple[str, ...]) -> None:
    effects = random_effects(calendar, "Europe/Berlin", covariates=2)
    random = torch.Generator().manual_seed(3)
    rows = 60
    known = context(2, rows).batch(np.arange(rows))
    a = 7100 * torch.rand(rows, generator=random, dtype=torch.float64)
    width = torch.logspace(-2, 2.3, rows, dtype=torch.float64)
    share = torch.linspace(0, 1, 400, dtype=torch.float64)
    times = a[:, None] + width[:, None] * share
    highest = effects.values(times, known).amax(1)
    bound = effects.upper_bound(a, a + width, known, torch.float64)
    assert (bound >= highest).all()
    # Over a long time the bound is the sum of the largest values of each term, and no more.
    assert (bound <= random_largest(effects, known) + 1e-6).all()


def random_largest(effects: Effects, known: BatchContext) -> torch.Tensor:
    """The sum over terms of the largest weight, and over covariates of the largest value."""
    total = torch.zeros(effects.curves, dtype=torch.float64)
    for name, columns in effects.spec.columns.items():
        if name in effects.spec.calendar:
            total += effects.weight[columns].amax(0).detach()
    assert known.covariates is not None
    steps = (known.covariates.values[0] - 0.5) / 2.0 @ effects.weight[effects.fixed :]
    return total + steps.amax(0).detach()


def test_values_are_the_basis_times_the_weights() -> None:
    terms = ("hour", "weekday", "week", "month", "monthday")
    effects = random_effects(terms, "Asia/Tokyo", covariates=3)
    known = context(3).batch(np.arange(1))
    times = torch.linspace(0, 9000, 1000, dtype=torch.float64).reshape(1, 10, 100)
    basis = effects.basis(times, known)
    assert torch.allclose(basis @ effects.weight, effects.values(times, known), atol=1e-12)


def simulated(seed: int, days: int = 60) -> Dataset:
    """A log with a daily rhythm, quiet weekends, and two covariates with known effects."""
    random = np.random.default_rng(seed)
    stop = 24.0 * days
    when = np.arange(0.0, stop, 6.0)
    temperature = random.normal(10.0, 5.0, len(when))
    rain = (random.random(len(when)) < 0.3).astype(float)
    proposed = np.sort(random.random(random.poisson(60.0 * stop)) * stop)
    hour = proposed % 24
    weekday = (proposed // 24 + 2) % 7
    step = np.searchsorted(when, proposed, side="right") - 1
    log_rate = 0.8 * np.sin(2 * np.pi * (hour - 9) / 24) + np.where(weekday >= 5, -0.7, 0.1)
    log_rate += 0.05 * (temperature[step] - 10) - 0.3 * rain[step]
    kept = random.random(len(proposed)) * 60 < 5 * np.exp(log_rate)
    values = np.stack([temperature, rain], 1)
    steps = Steps(("temperature", "rain"), when, values, np.array([0, len(when)]))
    known = Context(origin=np.array([ORIGIN]), covariates=steps)
    sequence = Sequence(proposed[kept], start=0.0, stop=stop, context=known)
    return Dataset.from_sequences([sequence], unit="hours")


def test_rate_ratios_and_rhythm_are_recovered() -> None:
    """95% intervals of both covariates over ten seeds cover at least 90%, and the fitted rhythm is
    close to the truth.
    """
    truth = {"temperature": np.exp(0.05), "rain": np.exp(-0.3)}
    covered = []
    for seed in range(10):
        data = simulated(seed)
        model = Poisson()
        model.add_effects(effects_of(data, ("hour", "weekday")))
        model.maximum_likelihood(data)
        covered += [one.low <= truth[one.name] <= one.high for one in model.rate_ratios]
    assert len(covered) == 20 and np.mean(covered) >= 0.9
    assert model.effects is not None
    hours = torch.arange(24, dtype=torch.float64)[None] + 24 * 5
    basis = model.effects.basis(hours, data.batch().context)[0, :, : model.effects.fixed]
    fitted = (basis @ model.effects.weight[: model.effects.fixed])[:, 0].detach().numpy()
    expected = 0.8 * np.sin(2 * np.pi * (np.arange(24) - 9) / 24)
    off = (fitted - fitted.mean()) - (expected - expected.mean())
    assert np.abs(off).max() < 0.25


def two_marks(seed: int) -> Dataset:
    """720 hours in which a covariate raises the rate of a common type and not that of a rare one,
    of which there are about 36 events.
    """
    random = np.random.default_rng(seed)
    when = np.arange(0.0, 720.0, 6.0)
    x = random.normal(10.0, 5.0, len(when))
    times, marks = [], []
    for mark, (level, effect) in enumerate([(3.0, 0.05), (0.05, 0.0)]):
        counts = random.poisson(6 * level * np.exp(effect * (x - 10)))
        begins = np.repeat(when, counts)
        times.append(begins + 6 * random.random(len(begins)))
        marks.append(np.full(len(begins), mark))
    joined = np.concatenate(times)
    order = np.argsort(joined)
    steps = Steps(("x",), when, x[:, None], np.array([0, len(when)]))
    sequence = Sequence(
        joined[order],
        np.concatenate(marks)[order],
        start=0.0,
        stop=720.0,
        space=2,
        context=Context(covariates=steps),
    )
    return Dataset.from_sequences([sequence], unit="hours")


def test_rate_ratios_of_a_rare_mark_are_its_own() -> None:
    """95% intervals of each mark cover its ratio; shrunk to the pooled one those of the rare mark
    would cover 57%.
    """
    covered: dict[str, list[bool]] = {}
    for seed in range(20):
        data = two_marks(seed)
        model = Poisson(data.marks)
        model.add_effects(effects_of(data))
        model.maximum_likelihood(data)
        for one, effect in zip(model.rate_ratios, (0.05, 0.0), strict=True):
            covered.setdefault(one.mark, []).append(one.low <= np.exp(effect) <= one.high)
    assert [len(each) for each in covered.values()] == [20, 20]
    assert all(np.mean(each) >= 0.9 for each in covered.values())


def test_the_likelihood_of_a_fit_is_that_of_its_rate() -> None:
    data = simulated(0, days=20)
    model = Poisson()
    model.add_effects(effects_of(data, ("hour", "weekday")))
    model.maximum_likelihood(data)
    found = log_likelihood(model, data.batch())
    # At the maximum the expected number of events is the observed one, but for the penalty.
    assert float(found.integral) == pytest.approx(data.events, rel=1e-3)
    assert float(found.error) / data.events < 1e-4
    flat = Poisson()
    flat.maximum_likelihood(data)
    assert found.per_event > log_likelihood(flat, data.batch()).per_event + 0.1


def hawkes_with_rhythm(seed: int, *, branching: float = 0.5, feature: float = 0.0) -> Dataset:
    """A Hawkes process of decay 2 per hour whose immigrants follow a daily and weekly rhythm; with
    ``feature``, an event with feature x has exp(feature x) times the offspring of one with 0.
    """
    random = np.random.default_rng(seed)
    stop = 24.0 * 60
    proposed = np.sort(random.random(random.poisson(9.0 * stop)) * stop)
    weekend = (proposed // 24 + 2) % 7 >= 5
    log_rate = 0.8 * np.sin(2 * np.pi * (proposed - 9) / 24) + np.where(weekend, -0.5, 0.1)
    parents = proposed[random.random(len(proposed)) * 9.0 < 3.0 * np.exp(log_rate)]
    times, features = [], []
    while len(parents):
        x = random.normal(size=len(parents))
        times.append(parents)
        features.append(x)
        offspring = random.poisson(branching * np.exp(feature * x - feature**2 / 2))
        delay = random.exponential(0.5, offspring.sum())
        parents = np.repeat(parents, offspring) + delay
        parents = parents[parents < stop]
    order = np.argsort(np.concatenate(times))
    sequence = Sequence(
        np.concatenate(times)[order],
        start=0.0,
        stop=stop,
        features=np.concatenate(features)[order][:, None] if feature else None,
        context=context(),
    )
    return Dataset.from_sequences([sequence], unit="hours")


def test_branching_ratio_with_a_daily_rhythm_is_recovered() -> None:
    """With the rhythm in the baseline the branching ratio is within 10% and its 95% intervals cover
    the truth; a constant baseline explains the rhythm by excitation.
    """
    covered, ratios, biased = [], [], []
    for seed in range(10):
        data = hawkes_with_rhythm(seed)
        model = Hawkes()
        model.add_effects(effects_of(data, ("hour", "weekday")))
        model.maximum_likelihood(data)
        ratio = model.estimates["branching"].item()
        error = model.errors["branching"].item()
        ratios.append(ratio)
        covered.append(abs(ratio - 0.5) < 1.96 * error)
        if seed < 2:
            constant = Hawkes()
            constant.maximum_likelihood(data)
            biased.append(constant.estimates["branching"].item())
    assert np.mean(covered) >= 0.9
    assert abs(np.mean(ratios) - 0.5) < 0.05 and np.abs(np.array(ratios) - 0.5).max() < 0.075
    assert min(biased) > 0.7


def test_event_features_scale_what_events_trigger() -> None:
    covered = []
    for seed in range(10):
        data = hawkes_with_rhythm(seed, feature=0.6)
        found = estimate_with_effects(data, effects_of(data, ("hour", "weekday")))
        error = float(found.errors["feature_weight"][0])
        covered.append(abs(float(found.feature_weight[0]) - 0.6) < 1.96 * error)
    assert np.mean(covered) >= 0.9


def test_the_hawkes_fit_maximises_the_likelihood_of_the_model() -> None:
    """The sum that the fit climbs is the likelihood that the model itself states."""
    data = hawkes_with_rhythm(3)
    spec = effects_of(data, ("hour", "weekday"))
    found = estimate_with_effects(data, spec)
    model = Hawkes()
    model.add_effects(spec)
    model.maximum_likelihood(data)
    stated = log_likelihood(model, data.batch())
    assert found.value / data.events == pytest.approx(stated.per_event, abs=1e-5)
    assert float(stated.integral) == pytest.approx(data.events, rel=1e-3)
    assert model.effects is not None
    for shift in (-0.02, 0.02):
        moved = deepcopy(model)
        with torch.no_grad():
            moved.log_branching += shift
        assert log_likelihood(moved, data.batch()).per_event < stated.per_event


def trading_days(seed: int, days: int = 3) -> Dataset:
    """Trades of two types from 09:30 to 16:00, half of which follow another within .2 seconds on
    average; in hours, the nights between the days observed.
    """
    random = np.random.default_rng(seed)
    offspring_of = np.array([[0.4, 0.1], [0.1, 0.4]])
    times, marks = [], []
    for mark in range(2):
        count = random.poisson(50 * 6.5 * days)
        at = 6.5 * days * random.random(count)
        own = 9.5 + at % 6.5 + 24 * (at // 6.5)
        parents = [(own, np.full(count, mark))]
        while parents:
            at, of = parents.pop()
            times.append(at)
            marks.append(of)
            for child in range(2):
                number = random.poisson(offspring_of[child, of])
                if number.sum():
                    later = np.repeat(at, number) + random.exponential(0.2 / 3600, number.sum())
                    parents.append((later, np.full(len(later), child)))
    order = np.argsort(np.concatenate(times))
    log = Sequence(
        np.concatenate(times)[order],
        np.concatenate(marks)[order],
        start=9.5,
        stop=16.0 + 24 * (days - 1),
        context=context(),
    )
    return Dataset.from_sequences([log], unit="hours")


@pytest.mark.parametrize("broken", [(), ("start",), ("start", "curvature")])
def test_hours_outside_the_searched_part_do_not_run_away(
    monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...]
) -> None:
    """The search for decays sees a part of the first day, and with it no night, whose effects were
    any number afterwards: thousands of times as many events were expected. Start, climb and check
    of the fit each prevent that without those before it.
    """
    monkeypatch.setattr(hawkes_effects, "SEARCH", 1000)
    if "start" in broken:
        monkeypatch.setattr(hawkes_effects, "_on_all", lambda whole, theta, part: part)
    if "curvature" in broken:
        monkeypatch.setattr(hawkes_effects, "_of_integral", lambda problem, at: 0.0)
    data = trading_days(1, 2)
    spec = effects_of(data, ("hour",))
    model = Hawkes(data.marks)
    model.add_effects(spec)
    notes = model.maximum_likelihood(data)
    found = log_likelihood(model, data.batch())
    poisson = Poisson(data.marks)
    poisson.add_effects(spec)
    poisson.maximum_likelihood(data)
    assert found.per_event > log_likelihood(poisson, data.batch()).per_event + 0.5
    assert float(found.integral) == pytest.approx(data.events, rel=0.01)
    assert np.abs(model.estimates["branching"] - [[0.4, 0.1], [0.1, 0.4]]).max() < 0.06
    assert any("repeated" in note for note in notes) == ("curvature" in broken)


def test_a_fit_that_is_no_maximum_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """No climb on the whole log moves, and what begins there expects too many events."""
    data = trading_days(1, 2)
    climb = hawkes_effects._climb

    def stuck(problem: Any, at: Any, low: Any, high: Any, steps: int, *, held: bool = False) -> Any:
        if problem.events < data.events:
            return climb(problem, at, low, high, steps, held=held)
        at = replace(at, theta=at.theta + np.eye(len(at.theta))[:, :1])
        return at, hawkes_effects._evaluate(problem, at, second=False)[0]

    monkeypatch.setattr(hawkes_effects, "SEARCH", 1000)
    monkeypatch.setattr(hawkes_effects, "_climb", stuck)
    found = estimate_with_effects(data, effects_of(data, ("hour",)))
    assert "repeated from a fit without excitation" in found.notes[0]
    assert "the fit is not at its maximum: it expects" in found.notes[1]


def test_errors_have_three_clauses() -> None:
    numbers = Dataset.from_sequences([Sequence([1.0, 2.0], start=0, stop=3)])
    with pytest.raises(UserError, match="expected data with dates for a calendar; received"):
        effects_of(numbers, ("hour",))
    with pytest.raises(UserError, match="calendar terms among hour, .*; received 'hours'"):
        effects_of(numbers, ("hours",))
    steps = Steps.constant(("age",), [[40.0]])
    constant = Sequence([1.0], start=0, stop=3, context=Context(covariates=steps))
    with pytest.raises(UserError, match="covariates that vary in the training data; .* age = 40"):
        effects_of(Dataset.from_sequences([constant]))
    dated = Sequence([1.0], start=0, stop=3, context=context())
    with pytest.raises(UserError, match="a country .*; received holidays:XX"):
        effects_of(Dataset.from_sequences([dated], unit="hours"), ("holidays:XX",))
    with pytest.raises(UserError, match="a known time zone; received 'Mars/Olympus'"):
        zone_offsets("Mars/Olympus")
    from fourpoint.models import MODELS

    with pytest.raises(UserError, match="a model that takes calendar and covariates.*; received"):
        MODELS["nhp"]().add_effects(EffectsSpec(("hour",)))


def test_holidays_are_days_of_local_time() -> None:
    dated = Sequence([1.0], start=0, stop=24 * 300, context=context())
    data = Dataset.from_sequences([dated], unit="hours")
    spec = effects_of(data, ("holidays:US",), zone="America/New_York")
    effects = Effects(spec, 1, torch.float64)
    with torch.no_grad():
        effects.weight.fill_(1.0)
    zone = ZoneInfo("America/New_York")

    def hours(*moment: int) -> float:
        return (datetime(*moment, tzinfo=zone).timestamp() - ORIGIN) / HOURS

    days = [(2025, 7, 4, 0, 1), (2025, 7, 4, 23, 59), (2025, 7, 5, 0, 1), (2030, 12, 25, 12, 0)]
    times = torch.tensor([[hours(*day) for day in days]], dtype=torch.float64)
    assert effects.values(times, context().batch(np.arange(1))).flatten().tolist() == [1, 1, 0, 1]


def test_sequences_with_the_same_covariates_share_nodes() -> None:
    """Forty machines with one table of temperatures had forty times the nodes, and a fit of 932
    failures with a calendar took minutes. The estimates are those of nodes of their own.
    """
    random = np.random.default_rng(0)
    days = np.arange(30.0)
    table = np.column_stack([random.normal(size=30)])
    machines = 12
    failures = [np.sort(30 * random.random(20)) for _ in range(machines)]
    shared = Steps(
        ("temperature",),
        np.tile(days, machines),
        np.tile(table, (machines, 1)),
        30 * np.arange(machines + 1),
    )
    known = Context(origin=np.full(machines, 1_735_689_600.0), covariates=shared)
    made = [Sequence(t, start=0.0, stop=30.0, id=str(i)) for i, t in enumerate(failures)]
    data = replace(Dataset.from_sequences(made, unit="days"), context=known)
    spec = effects_of(data, ("hour",))
    effects = Effects(spec, 1, torch.float64)
    together, _, _ = integral_nodes(data, effects)
    alone, weights, owner = integral_nodes(data, effects, shared=False)
    assert len(alone) == machines * len(together)
    assert np.bincount(owner, weights) == pytest.approx(np.full(machines, 30.0))
    assert integral_nodes(data, effects)[1].sum() == pytest.approx(weights.sum())


def test_pieces_of_the_day_of_the_month_are_its_values() -> None:
    """Two months in Berlin, in which clocks change: paths are sampled on these pieces."""
    effects = random_effects(("monthday", "hour"), "Europe/Berlin")
    low, high = np.array([70.0 * 24]), np.array([130.0 * 24])
    sequence = Sequence([], start=0.0, stop=4000.0, context=context())
    batch = Dataset.from_sequences([sequence], unit="hours").batch()
    pieces = pieces_until(constant_cubics(torch.zeros(2)), effects, batch, low, high)
    times = torch.linspace(low[0], high[0] - 1e-6, 5000, dtype=torch.float64)[None]
    values = effects.values(times, context().batch(np.arange(1)))[0].detach().numpy()
    place = np.searchsorted(pieces.left, times[0].numpy(), side="right") - 1
    u = (times[0].numpy() - pieces.left[place])[:, None]
    c0, c1, c2, c3 = (pieces.outside[place][..., k] for k in range(4))
    assert np.abs(c0 + u * (c1 + u * (c2 + u * c3)) - values).max() < 1e-9


def test_the_dashboard_shows_the_levels_of_days_of_the_month() -> None:
    model = Poisson()
    model.add_effects(EffectsSpec(("hour", "monthday"), seconds=HOURS, origin=ORIGIN))
    assert model.effects is not None
    with torch.no_grad():
        model.effects.weight[model.effects.spec.columns["monthday"].start + 24] = np.log(5.0)
    found = calendar(model)["monthday"]
    assert len(found["values"]) == 31 and found["ratio"] == pytest.approx(5.0)
    assert int(np.argmax(found["values"])) == 24
