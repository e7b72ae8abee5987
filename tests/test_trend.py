"""A level that drifts: the term ``trend`` of the calendar in fits, in `auto` and in `compare`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import Context, Dataset, Sequence, UserError
from fourpoint.models import MarkovModulated, Poisson, SplinePoisson
from fourpoint.models.effects import DAY, Effects, EffectsSpec, effects_of
from fourpoint.models.time_pieces import constant_cubics, pieces_until
from fourpoint.training.calendar import choose_effects, drifts, tried_terms
from fourpoint.training.comparing import compare

ORIGIN = 1736121600.0  # a Monday
CLOSED = "poisson,calendar,hawkes"
AMPLE = 600.0  # seconds, so that a slow machine gives the same answers


def drifting(
    seed: int, *, growth: float = 2.0, excite: float = 0.0, days: int = 90, per_hour: float = 2.0
) -> Dataset:
    """A log in whole minutes with a rhythm of the day and a level that grows by this factor."""
    random = np.random.default_rng(seed)
    stop = 24.0 * days
    most = per_hour * np.e * growth
    proposed = random.random(random.poisson(most * stop)) * stop
    log_rate = np.sin(2 * np.pi * (proposed - 9) / 24) + np.log(growth) * proposed / stop
    parents = proposed[random.random(len(proposed)) * most < per_hour * np.exp(log_rate)]
    every = [parents]
    while excite and len(parents):
        offspring = random.poisson(excite, len(parents))
        parents = np.repeat(parents, offspring) + random.exponential(0.2, offspring.sum())
        every.append(parents)
    times = np.sort(np.concatenate(every))
    minutes = np.floor(times[times < stop] * 60) / 60
    known = Context(origin=np.array([ORIGIN]))
    log = Sequence(minutes, start=0.0, stop=stop, context=known)
    return Dataset.from_sequences([log], unit="hours")


def test_a_drifting_level_is_chosen_and_is_no_clustering() -> None:
    data = drifting(0, growth=3.0, per_hour=0.18)
    train, dev = data.split((0.85, 0.15), by="time")
    assert choose_effects(train, dev, "auto").spec.calendar == ("hour", "trend")
    flat = drifting(0, growth=1.0, per_hour=0.3)
    train, dev = flat.split((0.85, 0.15), by="time")
    assert choose_effects(train, dev, "auto").spec.calendar == ("hour",)
    assert drifts(data)
    found = compare(data, CLOSED, time_budget=AMPLE, progress=False)
    assert "trend" in found.calendar
    assert not found.clustering_beyond_calendar


def test_clustering_beside_a_drift_is_found() -> None:
    found = compare(
        drifting(1, excite=0.3, per_hour=0.15), CLOSED, time_budget=AMPLE, progress=False
    )
    assert found.clustering_beyond_calendar and 0.2 < found.branching < 0.4


def test_a_trend_follows_the_level_and_stays_at_its_last_value() -> None:
    data = drifting(2, growth=3.0, per_hour=6.0)
    model = Poisson()
    fp.fit(model, data, calendar="hour,trend", progress=False)
    assert data.context is not None
    context = data.context.batch(np.arange(1))
    noon = torch.arange(3.0, 110.0, dtype=torch.float64)[None] * 24 + 12.0
    with torch.no_grad():
        found = model.effects.values(noon, context)[0, :, 0].numpy()
    truth = np.log(3.0) * np.minimum(noon[0].numpy(), 2160.0) / 2160.0
    error = found - found[:87].mean() - (truth - truth[:87].mean())
    assert np.abs(error[:87]).max() < 0.15
    assert np.ptp(found[88:]) < 1e-12 and abs(found[88] - found[86]) < 0.1


def test_bounds_and_pieces_of_a_trend_are_those_of_its_values() -> None:
    data = drifting(3, days=40)
    spec = effects_of(data, ("trend", "weekday"))
    effects = Effects(spec, 2, torch.float64)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        effects.weight.copy_(torch.randn(effects.weight.shape, generator=random).double())
    assert data.context is not None
    low, high = torch.tensor([30.0 * 24]).double(), torch.tensor([60.0 * 24]).double()
    times = torch.linspace(30.0 * 24, 60.0 * 24 - 1e-6, 5000, dtype=torch.float64)[None]
    values = effects.values(times, data.context.batch(np.arange(1))).detach()
    bound = effects.upper_bound(low, high, data.context.batch(np.arange(1)), torch.float64)
    assert (values[0] <= bound[0]).all() and (bound[0] - values[0].amax(0) < 1.5).all()
    batch = data.batch()
    pieces = pieces_until(
        constant_cubics(torch.zeros(2)), effects, batch, low.numpy(), high.numpy()
    )
    place = np.searchsorted(pieces.left, times[0].numpy(), side="right") - 1
    u = (times[0].numpy() - pieces.left[place])[:, None]
    c0, c1, c2, c3 = (pieces.outside[place][..., k] for k in range(4))
    assert np.abs(c0 + u * (c1 + u * (c2 + u * c3)) - values[0].numpy()).max() < 1e-9


def test_knots_of_a_trend_are_checked() -> None:
    for trend in ((), (0.0, DAY, 1e9), (0.0, 0.0, 3.0), (0.0, DAY, 2.5)):
        with pytest.raises(UserError, match="knots of a trend"):
            EffectsSpec(("trend",), trend=trend)
    with pytest.raises(UserError, match="none without one"):
        EffectsSpec(("hour",), trend=(0.0, DAY, 2.0))


def test_jumps_of_the_rate_are_tried_and_chosen() -> None:
    """One list of terms for `fit --calendar auto` and `compare`."""
    random = np.random.default_rng(2)
    hours = np.arange(25 * 24)
    is_open = (hours % 24 >= 8) & (hours % 24 < 18)
    counts = random.poisson(np.where(is_open, 12.0, 0.3))
    times = np.sort(np.repeat(hours, counts) + random.random(counts.sum()))
    known = Context(origin=np.array([ORIGIN]))
    log = Sequence(np.floor(times * 60) / 60, start=0.0, stop=600.0, context=known)
    data = Dataset.from_sequences([log], unit="hours")
    assert tried_terms(data) == ["hour", "weekday", "weekhour", "quarterhour"]
    train, dev = data.split((0.85, 0.15), by="time")
    chosen = choose_effects(train, dev, "auto").spec.calendar
    assert {"weekhour", "quarterhour"} & set(chosen)


def test_levels_of_a_hidden_chain_are_recovered() -> None:
    """Calm days and busy ones: rates of .5 and 3 per hour, each of which lasts two days."""
    random = np.random.default_rng(4)
    days, stays = 120, 1 - 1 / 48
    state = np.zeros(24 * days, dtype=int)
    for h in range(1, len(state)):
        state[h] = state[h - 1] if random.random() < stays else 1 - state[h - 1]
    counts = random.poisson(np.array([0.5, 3.0])[state])
    times = np.sort(np.repeat(np.arange(len(state)), counts) + random.random(counts.sum()))
    log = Sequence(times, start=0.0, stop=24.0 * days)
    data = Dataset.from_sequences([log])
    model = MarkovModulated(states=2, block=1.0)
    fp.fit(model, data, progress=False)
    rates = np.sort((model.log_rate + model.log_level[0]).exp().detach().numpy())
    assert np.allclose(rates, [0.5, 3.0], rtol=0.15)
    assert np.allclose(model.chain.transition.detach().diagonal().numpy(), stays, atol=0.012)
    hawkes = fp.MODELS["hawkes"]()
    fp.fit(hawkes, data, progress=False)
    scores = [fp.evaluate(one, data).scores["window"].per_event for one in (model, hawkes)]
    assert scores[0] > scores[1] + 0.02


def test_a_spline_within_windows_and_the_weekday_are_told_apart() -> None:
    """Days as sequences: a shape within the day, and weekends with a third of the events."""
    random = np.random.default_rng(5)
    days = []
    for day in range(140):
        most = 6.0 * np.e
        proposed = random.random(random.poisson(most * 24.0)) * 24.0
        log_rate = np.sin(2 * np.pi * (proposed - 9) / 24)
        size = 2.0 if day % 7 >= 5 else 6.0
        kept = random.random(len(proposed)) * most < size * np.exp(log_rate)
        known = Context(origin=np.array([ORIGIN + DAY * day]))
        days.append(Sequence(np.sort(proposed[kept]), start=0.0, stop=24.0, context=known))
    data = Dataset.from_sequences(days, unit="hours")
    model = SplinePoisson(knots=8)
    fp.fit(model, data, calendar="weekday", progress=False)
    weight = model.effects.weight.detach()[:, 0].numpy()
    ratios = np.exp(weight - weight[:5].mean())
    assert np.allclose(ratios, [1, 1, 1, 1, 1, 1 / 3, 1 / 3], rtol=0.12)
    hours = torch.arange(1.0, 24.0, dtype=torch.float64)[None, None]
    history = model.encode(data.select([0]).batch())
    with torch.no_grad():
        logs = model.log_intensity(history, hours, torch.zeros(1, 1, dtype=torch.int64))
    found = logs[0, 0, :, 0].numpy()
    truth = np.log(6.0) + np.sin(2 * np.pi * (hours[0, 0].numpy() - 9) / 24)
    assert np.abs(found - truth).max() < 0.15


def test_hidden_levels_and_intervals_from_the_command_line(tmp_path: Path) -> None:
    data = drifting(6, growth=1.0, days=30, per_hour=1.0)
    stamps = np.datetime64("2025-01-06T00:00") + np.round(data.times * 60).astype("timedelta64[m]")
    log, table = tmp_path / "log.csv", tmp_path / "out.csv"
    log.write_text("\n".join(["time", *map(str, stamps)]) + "\n")
    reading = ["--time-unit", "hours", "--window", "2025-01-06", "2025-02-05"]
    model = ["--model", "markov-modulated", "--set", "states=2", "--calendar", "hour,trend"]
    saved = str(tmp_path / "model")
    done = CliRunner().invoke(app, ["fit", str(log), *reading, *model, "-o", saved])
    assert done.exit_code == 0, done.output
    how = ["--horizon", "2d", "--by", "1h", "--interval", "0.9", "--paths", "400", "-o", str(table)]
    done = CliRunner().invoke(app, ["forecast", saved, str(log), *reading, *how])
    assert done.exit_code == 0, done.output
    lines = table.read_text().replace('"', "").splitlines()
    names = lines[0].split(",")
    assert names == "sequence,mark,start,stop,mean,q05,q50,q95,low,high,p_any".split(",")
    rows = np.array([line.split(",")[4:] for line in lines[1:]], dtype=float)
    mean, low, high = rows[:, 0], rows[:, 4], rows[:, 5]
    assert len(rows) == 48 and (low <= high).all() and (high == np.floor(high)).all()
    # The rhythm of the day continues: rates of exp(1) and exp(-1) per hour at its ends.
    assert mean[15] > 3 * mean[3] and abs(mean.sum() / 48 - 1.266) < 0.35
    wrong = [*how[:5], "1.5", *how[6:]]
    done = CliRunner().invoke(app, ["forecast", saved, str(log), *reading, *wrong])
    assert done.exit_code == 2 and "between 0 and 1" in done.output
