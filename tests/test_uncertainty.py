"""Draws of parameters: Laplace approximation, bootstrap, bands, forecasts and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data.readers import write
from fourpoint.events import Context, Dataset, Sequence, UserError
from fourpoint.events.context import Steps
from fourpoint.inference import forecasting
from fourpoint.inference.sampling import sample
from fourpoint.inference.uncertainties import Uncertainty, event_effect
from fourpoint.models import DAPP, NHP, DeepDAPP, Hawkes, Poisson
from fourpoint.models.effects import EffectsSpec
from fourpoint.plots.charts import intensity_plot, kernel_plot
from fourpoint.storage.checkpoints import left_by_a_fit, save
from fourpoint.training.uncertainty import _jacobian, blocks

TRUTH = Hawkes(baseline=0.8, branching=0.5, decay=2.0)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return sample(TRUTH, 0.0, 40.0, 30, seed=2)


@pytest.fixture(scope="module")
def fitted(data: Dataset) -> Hawkes:
    model = Hawkes()
    model.maximum_likelihood(data)
    return model


def small_dapp(data: Dataset) -> DAPP:
    model = DAPP(data.marks, heads=2, features=8, eval_features=32)
    model.initialise(data)
    return model.eval()


def test_laplace_of_a_hawkes_process_has_its_standard_errors(data: Dataset, fitted: Hawkes) -> None:
    found = fp.uncertainty(fitted, data, draws=2000)
    for name, short in (("log_branching", "branching"), ("log_decay", "decay")):
        spread = found.draws[name].std(0).item()
        error = fitted.errors[short].item() / fitted.estimates[short].item()
        assert spread == pytest.approx(error, rel=0.12)
    mu = found.draws["baseline.log_base"].std(0).item()
    assert mu == pytest.approx(
        (fitted.errors["baseline"] / fitted.estimates["baseline"])[0], rel=0.12
    )
    assert "2000 draws of 3 parameters by laplace" in repr(found)
    again = fp.uncertainty(fitted, data, draws=2000)
    assert all(torch.equal(found.draws[name], again.draws[name]) for name in found.draws)


def test_bands_of_a_hawkes_process_cover_the_truth() -> None:
    times = np.linspace(1.0, 38.0, 30)
    other = sample(TRUTH, 0.0, 40.0, 2, seed=77)
    held = []
    for seed in range(4):
        some = sample(TRUTH, 0.0, 40.0, 20, seed=seed)
        model = Hawkes()
        model.maximum_likelihood(some)
        found = fp.uncertainty(model, some, draws=30)
        for one in other:
            band = found.intensity(model, one, times, level=0.9)
            rate = fp.intensity(TRUTH, one, times)
            held.append(((band.low <= rate) & (rate <= band.high)).mean())
    assert 0.7 < np.mean(held) <= 1.0


@pytest.mark.parametrize("kind", ["dapp", "deep-dapp"])
def test_derivatives_are_those_of_autograd(kind: str, data: Dataset) -> None:
    few = data[:2]
    model = small_dapp(few) if kind == "dapp" else DeepDAPP(few.marks, width=8, layers=1).eval()
    if kind == "deep-dapp":
        model.initialise(few)
    names = list(model.laplace_parameters)
    assert names
    found = _jacobian(model, few, names, False).sum(0)
    exact = model.double()
    batch = few.batch()
    total = exact.log_rates_at_events(exact.encode(batch), batch)[batch.scored].sum()
    own = dict(exact.named_parameters())
    grads = torch.autograd.grad(total, [own[name] for name in names], allow_unused=True)
    flat = [
        torch.zeros_like(own[name]).flatten() if g is None else g.flatten()
        for name, g in zip(names, grads, strict=True)
    ]
    assert found.numpy() == pytest.approx(torch.cat(flat).numpy(), rel=1e-2, abs=1e-2)


def test_bands_of_dapp(data: Dataset) -> None:
    model = small_dapp(data)
    found = fp.uncertainty(model, data[:6], draws=12)
    assert set(found.draws) == set(model.laplace_parameters)
    times = [5.0, 10.0]
    before = fp.intensity(model, data[0], times)
    band = found.intensity(model, data[0], times)
    assert band.low.shape == (2, 1) and (band.low < band.high).all() and (band.low > 0).all()
    assert np.array_equal(fp.intensity(model, data[0], times), before)
    kernel = found.kernel(model, [0.1, 1.0])
    assert kernel.low.shape == (2, 1) and (kernel.low <= kernel.high).all()
    wide, narrow = (found.intensity(model, data[0], times, level=x) for x in (0.9, 0.5))
    assert (wide.high - wide.low >= narrow.high - narrow.low).all()


def test_a_bootstrap_of_sequences_and_of_blocks(data: Dataset, fitted: Hawkes) -> None:
    found = fp.uncertainty(fitted, data, "bootstrap", draws=12)
    assert len(found) == 12 and "30" not in found.notes[0] and "sequences" in found.notes[0]
    spread = found.draws["log_branching"].exp().std().item()
    assert 0.3 < spread / fitted.errors["branching"].item() < 2.5
    one = data[:2]
    parts = blocks(one, 10)
    assert len(parts) == 10 and parts.scored_events == one.events
    whole = float(fp.log_likelihood(fitted, one.batch()).value.sum())
    # Each block is scored given the time before it alone, so that the sum is nearly the whole.
    pieces = float(fp.log_likelihood(fitted, parts.batch()).value.sum())
    assert pieces == pytest.approx(whole, rel=0.01)
    from_blocks = fp.uncertainty(fitted, one, "bootstrap", draws=3)
    assert "blocks of time" in from_blocks.notes[0]


def test_a_bootstrap_fits_networks_again(data: Dataset) -> None:
    few = data[:4]
    model = NHP(few.marks, hidden=4)
    model.initialise(few)
    found = fp.uncertainty(model, few, "bootstrap", draws=2, steps=1)
    assert len(found) == 2
    for member in found.members(model):
        assert np.isfinite(fp.intensity(member, few[0], [3.0])).all()


def test_forecasts_with_uncertainty_are_wider(data: Dataset, fitted: Hawkes) -> None:
    scale = torch.linspace(-1.0, 1.0, 25, dtype=torch.float64)
    value = fitted.state_dict()["baseline.log_base"]
    found = Uncertainty("laplace", {"baseline.log_base": value + scale[:, None, None]})
    plain = fp.forecast(fitted, data[0], horizon=10.0, paths=200, windows=1)
    mixed = fp.forecast(fitted, data[0], horizon=10.0, paths=200, windows=1, uncertainty=found)
    assert np.ptp([mixed.counts.total_low[0], mixed.counts.total_high[0]]) > np.ptp(
        [plain.counts.total_low[0], plain.counts.total_high[0]]
    )
    assert (mixed.rate.high - mixed.rate.low).mean() > (plain.rate.high - plain.rate.low).mean()
    assert any("uncertainty of parameters" in note for note in mixed.notes)
    assert mixed.next_event.median == plain.next_event.median and len(mixed.paths) == 200


def test_explosive_draws_are_left_out(
    data: Dataset, fitted: Hawkes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasting, "MOST", 300)
    value = fitted.state_dict()["log_branching"]
    shifts = torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64)[:, None, None]
    found = Uncertainty("laplace", {"log_branching": value + shifts})
    mixed = fp.forecast(fitted, data[0], horizon=20.0, paths=6, uncertainty=found)
    assert "1 of 3 draws of parameters explode and are left out" in mixed.notes
    only = Uncertainty("laplace", {"log_branching": value + shifts[2:].expand(2, 1, 1)})
    with pytest.raises(UserError, match="do not explode"):
        fp.forecast(fitted, data[0], horizon=20.0, paths=6, uncertainty=only)


def test_bands_of_covariates(data: Dataset) -> None:
    covariates = Steps.constant(("age",), np.arange(30.0)[:, None])
    known = replace(data, context=Context(covariates=covariates))
    model = Hawkes()
    model.add_effects(EffectsSpec(covariates=("age",), mean=(15.0,), scale=(8.0,)))
    model.maximum_likelihood(known)
    found = fp.uncertainty(model, known, draws=30)
    band = found.calendar(model, known[3], [1.0, 2.0])
    assert band.low.shape == (2, 1) and (band.low < band.high).all()
    with pytest.raises(UserError, match="calendar or covariates"):
        fp.uncertainty(Hawkes(), data, draws=2).calendar(Hawkes(), data[0], [1.0])


def test_draws_are_saved_beside_the_model(tmp_path: Path, data: Dataset, fitted: Hawkes) -> None:
    found = fp.uncertainty(fitted, data, draws=5)
    with pytest.raises(UserError, match="folder with a model"):
        found.save(tmp_path)
    save(fitted, tmp_path)
    with pytest.raises(UserError, match="none in"):
        Uncertainty.restore(tmp_path)
    found.save(tmp_path)
    again = Uncertainty.restore(tmp_path)
    assert again.method == "laplace" and again.notes == found.notes
    assert all(torch.equal(again.draws[name], x) for name, x in found.draws.items())
    (tmp_path / "model.json").rename(tmp_path / "training.json")
    assert left_by_a_fit(tmp_path)
    (tmp_path / "training.json").rename(tmp_path / "model.json")
    save(Hawkes(baseline=3.0), tmp_path)
    with pytest.raises(UserError, match="another model"):
        Uncertainty.restore(tmp_path)


def test_the_commands(tmp_path: Path, data: Dataset) -> None:
    file, folder = tmp_path / "log.parquet", tmp_path / "model"
    write(data, file)
    runner = CliRunner()
    fit = runner.invoke(app, ["fit", str(file), "--model", "hawkes", "-o", str(folder)])
    assert fit.exit_code == 0, fit.output
    ahead = ["forecast", str(folder), str(file), "--sequence", data.ids[0], "--horizon", "5"]
    ahead += ["--paths", "50"]
    refused = runner.invoke(app, [*ahead, "--uncertainty"])
    assert refused.exit_code == 2 and "fourpoint uncertainty" in refused.output, refused.output
    done = runner.invoke(app, ["uncertainty", str(folder), str(file), "--draws", "20"])
    assert done.exit_code == 0 and "20 draws of 3 parameters by laplace" in done.stdout, done.output
    shown = runner.invoke(app, [*ahead, "--uncertainty"])
    assert shown.exit_code == 0 and "include the uncertainty of parameters" in shown.stdout
    wrong = runner.invoke(app, ["uncertainty", str(folder), str(file), "--method", "guess"])
    assert wrong.exit_code == 2 and "what to do" in wrong.output


def test_errors_have_three_clauses(data: Dataset, fitted: Hawkes) -> None:
    with pytest.raises(UserError, match="hawkes, dapp, odapp or deep-dapp; received Poisson"):
        fp.uncertainty(Poisson(), data)
    with pytest.raises(UserError, match="two draws; received 1"):
        fp.uncertainty(fitted, data, draws=1)
    with pytest.raises(UserError, match="bootstrap"):
        fp.uncertainty(fitted, data, steps=3)
    with pytest.raises(UserError, match="draws of this model's parameters; received log_branching"):
        list(fp.uncertainty(fitted, data, draws=2).members(Poisson()))
    with pytest.raises(UserError, match="between 0 and 1"):
        fp.uncertainty(fitted, data, draws=2).intensity(fitted, data[0], [1.0], level=2.0)
    covariates = Steps.constant(("age",), np.zeros((2, 1)))
    few = replace(data[:2], context=Context(covariates=covariates))
    with pytest.raises(UserError, match="30 sequences or more"):
        fp.uncertainty(fitted, few, "bootstrap", draws=2)


def test_plots_shade_bands(data: Dataset, fitted: Hawkes) -> None:
    import matplotlib.pyplot as plt

    found = fp.uncertainty(fitted, data, draws=20)
    times = np.linspace(0.0, 40.0, 50)
    band = found.intensity(fitted, data[0], times)
    rate = fp.intensity(fitted, data[0], times)
    ax = intensity_plot(times, rate, band=(band.low, band.high))
    assert len(ax.collections) >= 1 and ax.get_ylim()[1] >= band.high.max()
    lags = np.linspace(0.0, 3.0, 20)
    kernel = found.kernel(fitted, lags)
    drawn = kernel_plot(lags, event_effect(fitted, lags).T, band=(kernel.low.T, kernel.high.T))
    assert len(drawn.collections) == 1
    with pytest.raises(UserError, match="limits of every line"):
        intensity_plot(times, rate, band=(np.zeros((50, 2)), np.ones((50, 2))))
    plt.close("all")


def test_a_sequence_without_events_has_a_band(data: Dataset, fitted: Hawkes) -> None:
    found = fp.uncertainty(fitted, data, draws=20)
    band = found.intensity(fitted, Sequence([], start=0.0, stop=2.0), [1.0])
    assert 0 < band.low.item() < band.high.item()
