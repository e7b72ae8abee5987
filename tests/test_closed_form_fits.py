"""Closed-form fits use all of the data, keep their standard errors, and show what they found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.data.readers import write
from fourpoint.data.synthetic import simulate
from fourpoint.events import Box, Context, Dataset, MarkSpace, Sequence, Steps
from fourpoint.inference.branching import branching_ratios
from fourpoint.inference.sampling import sample
from fourpoint.models import DAPP, Hawkes, Poisson, SelfCorrecting, SpatialHawkes, SplinePoisson
from fourpoint.models.effects import effects_of
from fourpoint.storage.checkpoints import about, restore, save
from fourpoint.training.closed_forms import CALENDAR, ClosedForm, simplest_as_good
from fourpoint.training.fitting import fit
from fourpoint.training.run import explosive

PLACE = Box(("x",), (0.0,), (1.0,))
TRUE = [[0.5, 0.05], [0.3, 0.2]]  # offspring of type a and b, from a and from b


@pytest.fixture(scope="module")
def two_types() -> Dataset:
    """Sequences of a Hawkes process whose branching ratios are known."""
    truth = Hawkes(MarkSpace(("a", "b")), baseline=[0.5, 0.3], branching=TRUE, decay=2.0)
    return sample(truth, 0.0, 50.0, 60, seed=3)


# ---------------------------------------------------------------------- all of the data


@pytest.mark.parametrize("build", [Poisson, SplinePoisson, Hawkes, SelfCorrecting])
def test_a_closed_form_is_fitted_to_all_of_the_data(build: Any) -> None:
    """A tenth was kept for an early stopping that there is not."""
    data = simulate("hawkes", 30, seed=1)
    fitted, direct = build(), build()
    done = fit(fitted, data, progress=False)
    direct.initialise(data)
    direct.maximum_likelihood(data)
    expected = direct.state_dict()
    for name, value in fitted.state_dict().items():
        assert np.array_equal(value.numpy(), expected[name].numpy()), name
    (row,) = done.history
    assert math.isnan(row["dev_log_likelihood"])
    assert done.best == row["train_log_likelihood"] and math.isfinite(done.best)


def test_a_failed_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that explains its training data far less well than a constant rate is no maximum."""
    data = simulate("hawkes", 30, seed=1)
    done = fit(Hawkes(), data, progress=False)
    assert not any("failed" in note for note in done.notes)

    def diverge(model: Hawkes, data: Dataset) -> list[str]:
        model.initialise(data)
        with torch.no_grad():
            model.log_baseline.add_(3.0)
        return []

    monkeypatch.setattr(Hawkes, "maximum_likelihood", diverge)
    done = fit(Hawkes(), data, progress=False)
    assert "the fit has failed: on its training data it scores" in done.notes[-1]
    assert "use --model poisson" in done.notes[-1]


@pytest.mark.parametrize("seed", range(3))
def test_busy_days_and_drifts_are_told_beside_branching_ratios(seed: int) -> None:
    """A promotion of two days and a rising rate are taken for excitation, of which there is none;
    clusters are neither.
    """
    rng = np.random.default_rng(seed)
    calm = 50 * rng.random(rng.poisson(40 * 50))
    promotion = 20 + 2 * rng.random(rng.poisson(5 * 40 * 2))
    busy = fit(
        Hawkes(),
        dated([np.sort(np.append(calm, promotion))], 50.0),
        calendar="hour",
        progress=False,
    )
    assert any("a level of its own for every day explains these data" in n for n in busy.notes)
    drift = calm[rng.random(len(calm)) < 0.5 + calm / 100]
    slow = fit(Hawkes(), dated([np.sort(drift)], 50.0), calendar="none", progress=False)
    assert any("more than a tenth of the log" in note for note in slow.notes)
    more = calm + rng.exponential(0.02, len(calm))
    both = np.sort(np.append(calm, more[rng.random(len(more)) < 0.5]))
    clustered = fit(Hawkes(), dated([both[both < 50]], 50.0), calendar="hour", progress=False)
    assert not any("fourpoint compare" in note for note in clustered.notes)


def test_a_dev_set_that_is_given_is_scored_and_not_trained_on() -> None:
    train, dev = simulate("hawkes", 30, seed=1), simulate("hawkes", 10, seed=2)
    model, alone = Poisson(), Poisson()
    done = fit(model, train, dev, progress=False)
    fit(alone, train, progress=False)
    assert float(model.log_rate.detach()) == float(alone.log_rate.detach())
    assert done.best == done.history[0]["dev_log_likelihood"]


def test_a_network_still_keeps_a_tenth() -> None:
    data = simulate("hawkes", 30, seed=1)
    model = DAPP(heads=1, features=2, eval_features=4, generator=(2,), knots=2)
    done = fit(model, data, steps=2, validate_every=1, progress=False)
    assert all(math.isfinite(row["dev_log_likelihood"]) for row in done.history)
    assert len(model.trained_on.train) == 27 and len(model.trained_on.dev) == 3


def dated(sequences: list[NDArray[np.float64]], days: float) -> Dataset:
    """Logs in days that begin on a Monday at midnight."""
    origin = np.full(len(sequences), 1_735_516_800.0)
    made = [Sequence(t, start=0.0, stop=days, id=f"s{i}") for i, t in enumerate(sequences)]
    data = Dataset.from_sequences(made, unit="days")
    return replace(data, context=Context(origin=origin))


def test_a_closed_form_that_is_returned_knows_the_last_days() -> None:
    """The last tenth was kept for the choice, and its level was missing from every forecast."""
    rng = np.random.default_rng(2)
    times = np.sort(rng.uniform(0, 40, 800))
    late = np.sort(np.concatenate([times, rng.uniform(36, 40, 400)]))
    data = dated([late], 40.0)
    model = DAPP(heads=1, features=2, eval_features=4, generator=(2,), knots=2)
    done = fit(model, data, steps=1, validate_every=1, calendar="none", progress=False)
    if not isinstance(done.model, Poisson | Hawkes):
        pytest.fail(f"a closed form was expected: {done.notes}")
    direct = type(done.model)()
    direct.maximum_likelihood(data)
    for name, value in done.model.state_dict().items():
        assert np.array_equal(value.numpy(), direct.state_dict()[name].numpy()), name
    assert any("fitted again to all of the data" in note for note in done.notes)
    assert done.model.trained_on is not None and len(done.model.trained_on.train) == 1


def test_models_are_chosen_on_dequantised_times() -> None:
    """In whole minutes a Hawkes process gained on dev by events that share a minute."""
    rng = np.random.default_rng(3)
    hours = np.arange(0.0, 45 * 24, 1 / 60)
    rate = 6 * np.exp(0.8 * np.cos(2 * np.pi * hours / 24)) / 60
    times = np.repeat(hours, rng.poisson(rate)) / 24
    model = DAPP(heads=1, features=2, eval_features=4, generator=(2,), knots=2)
    done = fit(model, dated([times], 45.0), steps=1, calendar="hour", progress=False)
    poisson, hawkes = done.closed_forms[CALENDAR], done.closed_forms["hawkes"]
    assert hawkes < poisson + 0.003  # 0.011 more before
    assert np.isfinite(poisson)
    assert done.name == CALENDAR  # there is no excitation


def test_a_complex_closed_form_has_to_gain_more_than_its_standard_error() -> None:
    def one(name: str, *scores: float) -> ClosedForm:
        return ClosedForm(name, Poisson(), [], torch.tensor(scores, dtype=torch.float64))

    plain, hawkes = one("poisson", 1.0, 2.0, 3.0, 4.0), one("hawkes", 1.3, 1.9, 3.2, 3.9)
    better = one("hawkes", 1.3, 2.2, 3.2, 4.1)
    assert simplest_as_good([plain, hawkes]) is plain
    assert simplest_as_good([plain, better]) is better
    worst = one("constant", 0.0, 1.0, 2.0, 3.0)
    assert simplest_as_good([worst, plain, hawkes]) is plain
    # One unit has no standard error.
    single = [one("poisson", 1.0), one("hawkes", 1.1)]
    assert simplest_as_good(single) is single[1]


@pytest.mark.parametrize("covariates", [False, True])
def test_a_calendar_or_covariates_of_short_sequences_are_not_explosive(covariates: bool) -> None:
    """The search for explosive paths had no dates and no covariates, and took the error for an
    explosion: a constant rate was returned.
    """
    rng = np.random.default_rng(4)
    day = [np.sort(rng.uniform(0.3, 0.7, 30)) for _ in range(28)]
    data = dated(day, 1.0)
    known = data.context
    assert known is not None
    if covariates:
        steps = Steps(("x",), np.zeros(28), rng.normal(size=(28, 1)), np.arange(29))
        data = replace(data, context=replace(known, covariates=steps))
    else:
        data = replace(data, context=Context(origin=known.origin + 86400.0 * np.arange(28)))
    model = Poisson()
    model.add_effects(effects_of(data, ("hour",)))
    model.maximum_likelihood(data)
    assert explosive(model, data) == ""


def test_the_command_fits_a_closed_form_to_all_of_the_data(tmp_path: Path) -> None:
    data = simulate("hawkes", 30, seed=1)
    file, folder = tmp_path / "data.parquet", tmp_path / "model"
    write(data, file)
    done = CliRunner().invoke(app, ["fit", str(file), "--model", "poisson", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    assert "early stopping" not in done.output
    fitted = restore(folder)
    assert isinstance(fitted, Poisson)
    rate = float(fitted.log_rate.detach().exp())
    assert rate == pytest.approx(data.events / data.durations.sum(), rel=1e-12)
    assert about(folder)["events"] == data.events


def test_the_dev_split_of_the_data_is_not_trained_on(tmp_path: Path) -> None:
    splits = np.array(["train"] * 20 + ["dev"] * 10)
    data = simulate("hawkes", 30, seed=1)
    data = Dataset(data.times, data.mark_ids, data.offsets, data.starts, data.stops, splits=splits)
    file, folder = tmp_path / "data.parquet", tmp_path / "model"
    write(data, file)
    words = ["fit", str(file), "--model", "poisson", "-o", str(folder)]
    assert CliRunner().invoke(app, words).exit_code == 0
    fitted = restore(folder)
    assert isinstance(fitted, Poisson)
    rate = float(fitted.log_rate.detach().exp())
    train = data.part("train")
    assert rate == pytest.approx(train.events / train.durations.sum(), rel=1e-12)


# ---------------------------------------------------------------------- standard errors


@pytest.mark.parametrize("exponentials", [1, 2])
def test_standard_errors_come_back_with_a_saved_model(
    exponentials: int, tmp_path: Path, two_types: Dataset
) -> None:
    model = Hawkes(two_types.marks, exponentials=exponentials)
    fit(model, two_types, folder=tmp_path, progress=False)
    assert set(model.errors) == {"baseline", "branching", "decay"}
    found = restore(tmp_path)
    assert isinstance(found, Hawkes)
    for name, error in model.errors.items():
        assert found.errors[name].shape == error.shape == found.estimates[name].shape
        assert np.array_equal(found.errors[name], error, equal_nan=True)
    for name, limits in model.intervals().items():
        assert limits.shape == (*model.estimates[name].shape, 2)
        assert found.intervals()[name] == pytest.approx(limits, rel=1e-12, nan_ok=True)
    again = Hawkes(two_types.marks, exponentials=exponentials)
    fit(again, two_types, folder=tmp_path, resume=True, progress=False)
    assert np.array_equal(again.errors["baseline"], model.errors["baseline"], equal_nan=True)
    assert again.intervals()["decay"] == pytest.approx(model.intervals()["decay"], nan_ok=True)


def test_errors_that_do_not_exist_stay_so(tmp_path: Path) -> None:
    model = Hawkes(2)
    save(model, tmp_path)
    assert restore(tmp_path).errors == {}
    model.errors = {"branching": np.array([[0.1, np.nan], [np.nan, 0.2]])}
    save(model, tmp_path)
    assert "NaN" not in (tmp_path / "model.json").read_text()
    found: Any = restore(tmp_path)
    assert np.array_equal(found.errors["branching"], model.errors["branching"], equal_nan=True)


# ---------------------------------------------------------------------- branching ratios


def test_the_command_prints_branching_ratios_that_are_near_the_truth(
    tmp_path: Path, two_types: Dataset
) -> None:
    file, folder = tmp_path / "data.parquet", tmp_path / "model"
    write(two_types, file)
    runner = CliRunner()
    done = runner.invoke(app, ["fit", str(file), "--model", "hawkes", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    found: Any = restore(folder)
    intervals = found.intervals()["branching"]
    rows = [
        f"{found.estimates['branching'][m, n]:.3g} ({intervals[m, n, 0]:.2g} to "
        f"{intervals[m, n, 1]:.2g})"
        for m in range(2)
        for n in range(2)
    ]
    assert "Branching ratios: events that one event leads to directly" in done.stdout
    assert "95% intervals in brackets" in done.stdout and "spectral radius" in done.stdout
    assert all(cell in done.stdout for cell in rows)
    judged = runner.invoke(app, ["evaluate", str(folder), str(file), "--no-fit-check"])
    assert judged.exit_code == 0 and all(cell in judged.stdout for cell in rows), judged.output
    shown = runner.invoke(app, ["explain", str(folder), str(file), "--sequence", two_types.ids[0]])
    assert shown.exit_code == 0 and all(cell in shown.stdout for cell in rows), shown.output
    words = ["evaluate", str(folder), str(file), "--no-fit-check", "--json"]
    numbers = json.loads(runner.invoke(app, words).stdout)["branching"]
    assert numbers["types"] == ["a", "b"]
    error = np.array(numbers["standard_errors"])
    assert (np.abs(np.array(numbers["ratios"]) - TRUE) < 4 * error).all() and (error < 0.1).all()
    assert np.array(numbers["intervals"]) == pytest.approx(intervals)


def test_of_many_types_the_largest_ratios_are_shown() -> None:
    table = np.full((30, 30), 0.001)
    table[3, 7] = 0.5
    text = str(branching_ratios(Hawkes(30, branching=table.tolist())))
    assert "Branching ratios, the 20 largest of 900: " in text and "standard errors" not in text
    first = next(line.split() for line in text.splitlines() if line.startswith("7"))
    assert first == ["7", "3", "0.5"] and len(text.splitlines()) == 23


def test_what_has_no_branching_ratios() -> None:
    assert branching_ratios(Poisson(2)) is None
    space = MarkSpace(("a",), box=PLACE)
    found = branching_ratios(SpatialHawkes(space, branching=0.4))
    assert found is not None and found.errors is None
    assert found.spectral_radius == pytest.approx(0.4)
    both = branching_ratios(Hawkes(2, exponentials=2, branching=0.4))
    assert both is not None and both.ratios.sum(0) == pytest.approx([0.4, 0.4])


def test_a_ratio_on_the_edge_has_no_error() -> None:
    data = Dataset.from_sequences([Sequence([1.0, 4.0, 7.0, 10.0], start=0.0, stop=12.0)])
    model = Hawkes()
    model.maximum_likelihood(data)
    found = branching_ratios(model)
    assert found is not None and "nan" not in str(found)
