"""Influence of types of events on each other: tests at the boundary, left-out events, edges, plots
and the command.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data.readers import write
from fourpoint.events import Dataset, MarkSpace, UserError
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.sampling import sample
from fourpoint.models import DAPP, NHP, Hawkes, MarkovModulated, Poisson
from fourpoint.models.hawkes_tests import designs_of, edge_tests
from fourpoint.ops.discovery import discoveries
from fourpoint.plots.influence import influence_graph, influence_map

BRANCHING = np.array([[0.4, 0.0, 0.0], [0.3, 0.2, 0.0], [0.0, 0.0, 0.3]])


@pytest.fixture(scope="module")
def data() -> Dataset:
    space = MarkSpace.categorical(["a", "b", "c"])
    table = np.maximum(BRANCHING, 1e-12).tolist()
    truth = Hawkes(space, baseline=0.4, branching=table, decay=2.0)
    return sample(truth, 0.0, 60.0, 40, seed=3)


@pytest.fixture(scope="module")
def fitted(data: Dataset) -> Hawkes:
    model = Hawkes(data.marks)
    model.maximum_likelihood(data)
    return model


def test_edges_of_a_hawkes_process_are_the_true_ones(data: Dataset, fitted: Hawkes) -> None:
    found = fp.influence(fitted, data)
    assert (found.edges == (BRANCHING > 0)).all()
    assert found.matrix == pytest.approx(fitted.estimates["branching"])
    limits = fitted.intervals()["branching"]
    assert found.low == pytest.approx(limits[..., 0]) and found.high == pytest.approx(
        limits[..., 1]
    )
    assert found.horizon == np.inf and not found.notes
    expected = np.linalg.inv(np.eye(3) - found.matrix) - np.eye(3)
    assert found.total == pytest.approx(expected)
    stricter = fp.influence(fitted, data, fdr=1e-200)
    assert not stricter.edges.any()


def test_designs_have_the_likelihood_of_the_model(data: Dataset, fitted: Hawkes) -> None:
    designs = designs_of(fitted, data)
    theta = np.concatenate([np.ones((3, 1)), fitted.estimates["branching"]], 1)
    whole = sum(
        float(log_likelihood(fitted, data.batch(rows)).value.sum()) for rows in data.batches(16)
    )
    found = designs.derivatives(theta)
    assert found.value == pytest.approx(whole, rel=1e-10)
    # At the maximum no coefficient can be raised, and those above 0 have no slope.
    inside = theta > 1e-9
    assert np.abs(found.gradient[inside]).max() < 0.1 and found.gradient[~inside].max() < 0.1


def test_designs_with_history_exposure_and_features(data: Dataset) -> None:
    from fourpoint.events import Context

    rng = np.random.default_rng(0)
    scored = replace(
        data,
        features=rng.normal(size=(data.events, 1)),
        feature_names=("size",),
        context=Context(scored_from=data.starts + 10.0),
    )
    model = Hawkes(data.marks)
    model.add_event_features(scored)
    model.maximum_likelihood(scored)
    theta = np.concatenate([np.ones((3, 1)), model.estimates["branching"]], 1)
    whole = sum(
        float(log_likelihood(model, scored.batch(rows)).value.sum()) for rows in scored.batches(16)
    )
    assert designs_of(model, scored).derivatives(theta).value == pytest.approx(whole, rel=1e-9)
    found = fp.influence(model, scored)
    assert (found.edges == (BRANCHING > 0)).all() and "event features" in found.notes[0]


def test_the_likelihood_ratio_is_that_of_a_fit_without_the_pair(
    data: Dataset, fitted: Hawkes
) -> None:
    """The ratio of one pair, maximised by another method."""
    tests = edge_tests(fitted, data)
    assert tests is not None and tests.gain == pytest.approx(0.0, abs=1e-2)
    designs = designs_of(fitted, data)
    theta = np.concatenate([np.ones((3, 1)), fitted.estimates["branching"]], 1)
    best = designs.derivatives(theta).values
    x, cost = designs.columns[1], designs.costs[1]
    kept = [0, 2, 3]  # without a

    from scipy.optimize import minimize

    def loss(v: np.ndarray) -> float:
        return float(v @ cost[kept] - np.log(v @ x[kept]).sum())

    bounds = [(1e-9, None)] * 3
    other = minimize(loss, theta[1, kept] + 0.1, bounds=bounds, method="L-BFGS-B")
    assert tests.deviance[1, 0] == pytest.approx(2 * (best[1] + other.fun), rel=1e-3)


def test_p_values_on_the_boundary_are_not_too_small() -> None:
    """Independent Poisson processes: half of the ratios are 0, and few p-values are small."""
    space = MarkSpace.categorical(["a", "b"])
    everything = sample(Poisson(space), 0.0, 60.0, 25, seed=1)
    small, ones, count = 0, 0, 0
    for k in range(25):
        model = Hawkes(space, decay=1.0, baseline=1.0, branching=1e-3)
        found = edge_tests(model, everything[k : k + 1])
        assert found is not None
        small += int((found.p_values < 0.05).sum())
        ones += int((found.p_values == 1).sum())
        count += found.p_values.size
    assert small <= 0.05 * count + 3 * np.sqrt(0.05 * 0.95 * count)
    assert 0.3 * count < ones < 0.75 * count


def test_a_model_that_was_fitted_to_other_events_says_so(data: Dataset, fitted: Hawkes) -> None:
    shuffled = replace(data, mark_ids=(data.mark_ids + 1) % 3)
    found = fp.influence(fitted, shuffled)
    assert any("not fitted to these events" in note for note in found.notes)


def test_types_that_never_happen_are_no_edges() -> None:
    space = MarkSpace.categorical(["a", "b"])
    few = sample(Hawkes(baseline=1.0, branching=0.4, decay=2.0), 0.0, 50.0, 10, seed=0)
    data = replace(few, marks=space)
    model = Hawkes(space)
    model.maximum_likelihood(data)
    found = fp.influence(model, data)
    assert found.edges.tolist() == [[True, False], [False, False]]
    assert np.isnan(found.p_values[1]).all() and np.isnan(found.p_values[:, 1]).all()
    assert json.loads(json.dumps(found.to_dict()["edges"])) == found.edges.tolist()


def test_leaving_out_events_finds_the_branching_ratios(data: Dataset) -> None:
    """A Hawkes process in the hands of the path for other models: each event's effect is its own
    excitation, whatever else happened.
    """
    from fourpoint.inference import influences

    table = np.maximum(BRANCHING, 1e-12).tolist()
    model = Hawkes(data.marks, baseline=0.4, branching=table, decay=2.0)
    chosen = influences._chosen_events(data, 3, 60, seed=0)
    effects = influences._effects(model, data, chosen, 20.0, progress=False)
    for a in range(3):
        mine = effects[chosen.marks == a]
        assert mine == pytest.approx(np.tile(BRANCHING[:, a], (len(mine), 1)), abs=1e-4)


@pytest.mark.parametrize("build", [DAPP, NHP])
def test_other_models_have_intervals_over_events(build: Any, data: Dataset) -> None:
    torch.manual_seed(0)
    model = build(data.marks)
    model.initialise(data)
    data = data[:6]
    found = fp.influence(model, data, events=6, horizon=5.0)
    assert found.matrix.shape == (3, 3) and np.isfinite(found.matrix).all()
    assert (found.low <= found.matrix).all() and (found.matrix <= found.high).all()
    assert (found.p_values >= 0).all() and (found.p_values <= 1).all()
    assert "parameters are treated as known" in found.notes[0]
    again = fp.influence(model, data, events=6, horizon=5.0)
    assert np.array_equal(found.matrix, again.matrix)


def test_uncertainty_of_parameters_widens_the_intervals(data: Dataset) -> None:
    model = DAPP(data.marks, heads=2, features=8, eval_features=32)
    model.initialise(data)
    few = data[:6]
    draws = fp.uncertainty(model, few, draws=4)
    known = fp.influence(model, few, events=6, horizon=5.0)
    found = fp.influence(model, few, events=6, horizon=5.0, uncertainty=draws)
    assert np.array_equal(found.matrix, known.matrix)
    assert (found.high - found.low > known.high - known.low).all()
    assert "uncertainty of parameters" in found.notes[0]


def test_a_poisson_process_has_no_influence(data: Dataset) -> None:
    model = Poisson(data.marks)
    model.maximum_likelihood(data)
    found = fp.influence(model, data, events=60)
    assert not found.edges.any() and not found.matrix.any() and (found.p_values == 1).all()


@pytest.mark.parametrize(
    ("build", "words"),
    [(fp.Frailty, "the rate of their sequence"), (MarkovModulated, "the hidden level of the rate")],
)
def test_events_that_show_a_rate_lead_to_no_others(build: Any, words: str, data: Dataset) -> None:
    """Patients with rates of their own: one admission more is a sign of a higher rate, and was
    listed as leading to .8 others, with all pairs of types as edges.
    """
    with pytest.raises(UserError, match=f"past events only show how high {words} is.*compare"):
        fp.influence(build(data.marks), data)


def test_false_discoveries_are_rare() -> None:
    """Independent tests with 20 true effects of 200, over many repetitions."""
    from scipy.special import ndtr

    rng = np.random.default_rng(0)
    shares = {"by": [], "bh": []}
    for _ in range(300):
        z = rng.normal(size=200)
        z[:20] += 3.5
        for correction, found in shares.items():
            chosen = discoveries(ndtr(-z), 0.1, correction)
            found.append(chosen[20:].sum() / max(1, chosen.sum()))
    assert 0.07 < np.mean(shares["bh"]) < 0.105 and np.mean(shares["by"]) < 0.03
    assert not discoveries(np.full(5, np.nan), 0.1).any()
    assert discoveries(np.array([0.01, np.nan]), 0.1, "bh").tolist() == [True, False]


def test_errors_have_three_clauses(data: Dataset, fitted: Hawkes) -> None:
    for given, words in (
        (dict(level=1.5), "level between 0 and 1; received 1.5"),
        (dict(fdr=0.0), "fdr between 0 and 1; received 0.0"),
        (dict(horizon=3.0), "no horizon for a Hawkes process"),
        (dict(correction="holm"), '"by" or "bh"'),
    ):
        with pytest.raises((UserError, TypeError), match=words):
            fp.influence(fitted, data, **given)
    with pytest.raises(UserError, match="no draws for a Hawkes process"):
        fp.influence(fitted, data, uncertainty=fp.uncertainty(fitted, data, draws=2))
    with pytest.raises(UserError, match="fitted Hawkes process"):
        fp.influence(Hawkes(data.marks), data)
    with pytest.raises(UserError, match="positive horizon"):
        fp.influence(Poisson(data.marks), data, horizon=-1.0)
    with pytest.raises(UserError, match="shape"):
        influence_map([[0.1]], ["a", "b"])


def test_plots_take_and_return_axes(data: Dataset, fitted: Hawkes) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.text import Annotation

    found = fp.influence(fitted, data)
    _, (left, right) = plt.subplots(1, 2)
    assert found.plot(left) is left and found.plot_graph(right) is right
    assert left.get_xlabel() and left.get_ylabel() and len(left.patches) == found.edges.sum()
    assert [text.get_text() for text in left.get_xticklabels()] == ["a", "b", "c"]
    arrows = [text for text in right.texts if isinstance(text, Annotation)]
    assert len(arrows) == 1 and right.get_xlabel()
    plt.close("all")
    signed = influence_map([[0.1, -0.2], [np.nan, 0.0]], ["a", "b"])
    assert signed.images[0].get_clim() == (-0.2, 0.2)
    influence_graph([[0.1, -0.2], [np.nan, 0.0]], ["$x", "b"]).figure.canvas.draw()
    plt.close("all")


def test_the_command(tmp_path: Path, data: Dataset) -> None:
    file, folder = tmp_path / "log.parquet", tmp_path / "model"
    write(data, file)
    runner = CliRunner()
    fit = runner.invoke(app, ["fit", str(file), "--model", "hawkes", "-o", str(folder)])
    assert fit.exit_code == 0, fit.output
    words = ["influence", str(folder), str(file)]
    picture, table = tmp_path / "influence.png", tmp_path / "influence.csv"
    shown = runner.invoke(app, [*words, "--plot", str(picture), "-o", str(table)])
    assert shown.exit_code == 0, shown.output
    assert "4 of 9 pairs of types are edges (false discovery rate 10%)" in shown.stdout
    assert "predictive influence, not cause and effect" in shown.stdout
    assert picture.read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    edges = {(row["from"], row["to"]) for row in rows if row["edge"] == "True"}
    assert len(rows) == 9 and edges == {("a", "a"), ("a", "b"), ("b", "b"), ("c", "c")}
    numbers = json.loads(runner.invoke(app, [*words, "--json", "--correction", "bh"]).stdout)
    assert numbers["types"] == ["a", "b", "c"] and numbers["horizon"] is None
    assert np.array(numbers["matrix"]).shape == (3, 3)
    for wrong in (["--plot", "x.gif"], ["-o", "x.xls"], ["--fdr", "2"], ["--correction", "holm"]):
        refused = runner.invoke(app, [*words, *wrong])
        assert refused.exit_code == 2 and "what to do" in refused.output, wrong


def test_the_command_uses_draws_beside_the_model(tmp_path: Path, data: Dataset) -> None:
    few = data[:4]
    file, folder = tmp_path / "log.parquet", tmp_path / "model"
    write(few, file)
    model = DAPP(few.marks, heads=1, features=4, eval_features=16)
    model.initialise(few)
    fp.save(model, folder)
    runner = CliRunner()
    words = ["influence", str(folder), str(file), "--horizon", "2", "--json"]
    known = runner.invoke(app, words)
    assert known.exit_code == 0 and "fourpoint uncertainty" in known.stderr, known.output
    assert "treated as known" in json.loads(known.stdout)["notes"][0]
    fp.uncertainty(model, few, draws=2).save(folder)
    found = runner.invoke(app, words)
    assert found.exit_code == 0, found.output
    assert "include the uncertainty" in json.loads(found.stdout)["notes"][0]


@pytest.fixture(scope="module")
def incident() -> tuple[Dataset, np.ndarray]:
    """Twenty services over 30 days with three true edges, and hours of an incident in which 15 of
    them have many events without one leading to another.
    """
    random = np.random.default_rng(1)
    types, days = 20, 30.0
    truth = np.zeros((types, types), dtype=bool)
    parts = []
    for kind in range(types):
        times = random.uniform(0.0, days, random.poisson(4.0 * days))
        if kind < 15:
            surge = 20.0 + random.uniform(0.0, 0.1, random.poisson(30.0))
            times = np.concatenate([times, surge])
        parts.append(times)
    for source, target in ((0, 10), (3, 5), (16, 2)):
        truth[target, source] = True
        led = parts[source][random.random(len(parts[source])) < 0.4]
        parts[target] = np.concatenate([parts[target], led + random.exponential(0.002, len(led))])
    times = np.concatenate(parts)
    marks = np.repeat(np.arange(types), [len(part) for part in parts])
    kept = times < days
    order = np.argsort(times[kept])
    space = MarkSpace.categorical([f"service {kind}" for kind in range(types)])
    log = fp.Sequence(times[kept][order], marks[kept][order], start=0.0, stop=days, space=space)
    return Dataset.from_sequences([log]), truth


def test_a_surge_of_many_types_gives_no_edges(incident: tuple[Dataset, np.ndarray]) -> None:
    data, truth = incident
    model = Hawkes(data.marks)
    model.maximum_likelihood(data)
    found = fp.influence(model, data)
    assert (found.edges == truth).all()
    assert any("all types share" in note for note in found.notes)
    alone = edge_tests(model, data)
    assert alone is not None
    without = discoveries(alone.p_values, 0.1)
    assert (without & ~truth).any()


def test_intervals_of_a_process_without_profiles(incident: tuple[Dataset, np.ndarray]) -> None:
    """As a process with a calendar and many types has: no standard errors of its own."""
    data, truth = incident
    model = Hawkes(data.marks)
    model.maximum_likelihood(data)
    by_profiles = fp.influence(model, data)
    model.profiles = {}
    found = fp.influence(model, data)
    assert (found.edges == by_profiles.edges).all()
    assert (found.low[truth] > 0).all() and (found.low <= found.matrix).all()
    assert found.high[truth] == pytest.approx(by_profiles.high[truth], rel=0.25)
