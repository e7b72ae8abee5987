"""Event features, which scale what an event triggers: laws, fit, storage, forecasts and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import Context, Dataset, Sequence, Steps, UserError
from fourpoint.inference.branching import branching_ratios
from fourpoint.inference.forecasts import plain_counts
from fourpoint.inference.likelihood import log_likelihood, sampled_log_likelihood
from fourpoint.inference.sampling import sample
from fourpoint.kernels.path_terms import Wanted
from fourpoint.models import DAPP, MODELS, Hawkes
from fourpoint.models.base import PointProcess
from fourpoint.models.event_features import MOST_ROWS, features_of
from fourpoint.storage.checkpoints import CheckpointError, restore, save

WEIGHT = 0.5  # of the standardised magnitude


def earthquakes(seed: int, stop: float = 2500.0) -> Dataset:
    """Events with magnitudes 3 + Exp(1) (standard deviation 1): exp(WEIGHT (x - 4)) times 0.3
    offspring on average, so that the mean branching ratio is 0.3 exp(-WEIGHT) / (1 - WEIGHT).
    """
    random = np.random.default_rng(seed)
    parents = random.uniform(0.0, stop, random.poisson(0.5 * stop))
    times, sizes = [], []
    while len(parents):
        magnitude = 3.0 + random.exponential(1.0, len(parents))
        times.append(parents)
        sizes.append(magnitude)
        offspring = random.poisson(0.3 * np.exp(WEIGHT * (magnitude - 4.0)))
        children = np.repeat(parents, offspring) + random.exponential(0.5, offspring.sum())
        parents = children[children < stop]
    order = np.argsort(np.concatenate(times))
    depth = random.normal(10.0, 2.0, len(order))  # without effect
    features = np.column_stack([np.concatenate(sizes)[order], depth])
    whole = Sequence(np.concatenate(times)[order], start=0.0, stop=stop, features=features)
    data = Dataset.from_sequences([whole], unit="days")
    return replace(data, feature_names=("magnitude", "depth"))


def two_types(seed: int = 0, sequences: int = 4) -> Dataset:
    """Sequences of two types, with features whose law depends on the type."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(sequences):
        n = int(random.integers(5, 12))
        marks = random.integers(0, 2, n)
        features = random.normal(size=(n, 2)) + marks[:, None]
        times = np.sort(random.uniform(0.0, 10.0, n))
        found.append(Sequence(times, marks, start=0.0, stop=10.0, space=2, features=features))
    return Dataset.from_sequences(found)


def hawkes(data: Dataset, *weights: float) -> Hawkes:
    """A stable model with the features of ``data`` and these weights."""
    model = Hawkes(data.marks, baseline=0.4, branching=0.4, decay=2.0)
    model.add_event_features(data)
    assert model.event_features is not None
    with torch.no_grad():
        model.event_features.weight.copy_(torch.tensor(weights, dtype=torch.float64))
    return model.eval()


def dapp(data: Dataset, *weights: float, **settings: Any) -> DAPP:
    """The same for a DAPP in float64, with every parameter away from its start."""
    sizes = dict(heads=2, features=6, eval_features=12, generator=(8,), seed=1)
    model = DAPP(data.marks, **{**sizes, "link": "softplus", **settings})
    model.initialise(data)
    model.add_event_features(data)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=random)
        assert model.event_features is not None
        model.event_features.weight.copy_(torch.tensor(weights, dtype=torch.float64))
    return model.double().eval()


def dense(data: Dataset, *weights: float) -> DAPP:
    return dapp(data, *weights, form="dense")


def affine(data: Dataset, *weights: float) -> DAPP:
    return dapp(data, *weights, values="affine")


every_model = pytest.mark.parametrize("build", [hawkes, dapp, dense, affine])


# ---------------------------------------------------------------------- laws


def test_the_rate_is_the_sum_over_events_times_their_factors() -> None:
    data = two_types()
    model = hawkes(data, 0.7, -0.3)
    assert model.event_features is not None and data.features is not None
    at = 10.0
    batch = data.batch()
    found = model.intensity(model.encode(batch), torch.full((len(data), 1), at).double())
    mean, scale = data.features.mean(0), data.features.std(0)
    for row, sequence in enumerate(data):
        assert sequence.features is not None
        factor = np.exp((sequence.features - mean) / scale @ np.array([0.7, -0.3]))
        faded = 2.0 * np.exp(-2.0 * (at - sequence.times))
        excited = 0.2 * float((factor * faded).sum())  # 0.4 offspring, half of them of each type
        assert found[row, 0].tolist() == pytest.approx([0.4 + excited] * 2, rel=1e-12)


@every_model
def test_the_future_does_not_change_the_past(build: Callable[..., PointProcess]) -> None:
    data = two_types()
    model = build(data, 0.7, -0.3)
    batch = data.batch()
    assert batch.features is not None
    before = model.encode(batch)
    changed = batch.features.clone()
    changed[:, 3:] += 5.0
    after = model.encode(replace(batch, features=changed))
    times = batch.times[:, :4]
    position = torch.arange(4).expand(len(times), 4)
    same = [model.log_intensity(h, times[..., None], position) for h in (before, after)]
    assert torch.equal(*same)
    later = [
        model.log_intensity(h, batch.stop[:, None, None], batch.lengths[:, None])
        for h in (before, after)
    ]
    assert not torch.allclose(*later)


@every_model
@torch.no_grad()
def test_encode_is_repeated_extend(build: Callable[..., PointProcess]) -> None:
    data = two_types()
    model = build(data, 0.7, -0.3)
    batch = data.batch()
    assert batch.features is not None
    whole = model.encode(batch)
    step = model.encode(batch.columns(0, 0))
    for j in range(batch.times.shape[1]):
        given = (batch.times[:, j], batch.marks[:, j], batch.valid[:, j])
        step = model.extend(step, *given, features=batch.features[:, j])
    after = batch.stop[:, None, None]
    rates = [model.log_intensity(h, after, h.lengths[:, None]) for h in (whole, step)]
    assert torch.allclose(*rates, atol=1e-10)
    unscaled = replace(batch, features=torch.zeros_like(batch.features))
    other = model.log_intensity(model.encode(unscaled), after, batch.lengths[:, None])
    assert not torch.allclose(rates[0], other, atol=1e-3)


@torch.no_grad()
def test_histories_go_on() -> None:
    data = two_types()
    for build in (hawkes, dapp):
        model: PointProcess = build(data, 0.7, -0.3)
        batch = data[0].batch()
        first = model.encode(batch.columns(0, 3)).latest()
        joined = model.encode(batch.columns(3, 99), first)
        after = batch.stop[:, None, None]
        parts = (joined, model.encode(batch))
        rates = [model.log_intensity(h, after, h.lengths[:, None]) for h in parts]
        assert torch.allclose(*rates, atol=1e-10)


@torch.no_grad()
def test_unknown_features_have_the_mean_factor_of_their_mark() -> None:
    data = two_types(sequences=200)
    model = hawkes(data, 0.7, -0.3)
    assert model.event_features is not None and data.features is not None
    empty = Sequence([], start=0.0, stop=1.0, space=2).batch()
    for mark in (0, 1):
        given = (torch.zeros(1).double(), torch.tensor([mark]))
        found = model.extend(model.encode(empty), *given).excitation[0, 0, 0, mark]
        own = torch.from_numpy(data.features[data.mark_ids == mark])
        assert float(found) == pytest.approx(
            float(model.event_features.factor(own).mean()), rel=1e-9
        )


def kernel_counts(model: PointProcess, history: Dataset, wanted: Wanted) -> np.ndarray:
    counts = model.draw_counts(history.batch(), wanted)
    assert counts is not None
    return counts[0, 0].sum(0)


def sampled_counts(model: PointProcess, history: Dataset, wanted: Wanted) -> np.ndarray:
    return plain_counts(model, history.batch(), wanted)[0, 0].sum(0)


@pytest.mark.parametrize("count", [kernel_counts, sampled_counts])
def test_mean_counts_are_those_of_the_closed_form(count: Callable[..., np.ndarray]) -> None:
    """With n the mean branching ratio, the mean rate after a history with excitation E solves
    m' = -beta (1 - n) (m - mu / (1 - n)).
    """
    training = earthquakes(0, 400.0)
    model = hawkes(training, 0.5, 0.2)
    assert training.features is not None
    big = np.array([[7.0, 10.0]])
    past = Sequence([4.8], start=0.0, stop=5.0, features=big)
    history = replace(Dataset.from_sequences([past]), feature_names=("magnitude", "depth"))
    paths = 4000
    wanted = Wanted(np.array([[5.0, 8.0]]), np.array([7], dtype=np.uint64), paths, 10_000)
    counts = count(model, history, wanted)
    assert model.event_features is not None
    n = model.spectral_radius
    now = float(
        model.intensity(model.encode(history.batch()), torch.tensor([[5.0]]).double()).detach()
    )
    slow = 2.0 * (1 - n)
    steady = 0.4 / (1 - n)
    expected = 3.0 * steady + (now - steady) * (1 - np.exp(-3.0 * slow)) / slow
    error = counts.std() / np.sqrt(paths)
    assert now > 1.5  # the large magnitude matters
    assert abs(counts.mean() - expected) < 4 * error


@every_model
def test_sampling_is_the_integral_with_features(build: Callable[..., PointProcess]) -> None:
    """The compensators of sampled paths, at the features that were drawn, are as large as their
    counts on average.
    """
    model = build(two_types(sequences=100), 0.5, 0.2)
    size, stop = (80, 5.0) if build is dense else (800, 10.0)
    paths = sample(model, 0.0, stop, size, seed=3)
    assert paths.features is not None and paths.feature_names == ("x1", "x2")
    found = log_likelihood(model, paths.batch())
    off = paths.lengths - found.integral.detach().numpy()
    assert abs(off.mean()) < 4 * off.std() / np.sqrt(len(off))


def test_features_of_sampled_events_explain_them() -> None:
    """A likelihood that ignores the features of sampled events is lower."""
    model = hawkes(two_types(sequences=100), 0.5, 0.2)
    paths = sample(model, 0.0, 20.0, 800, seed=3)
    without = Hawkes(2, baseline=0.4, branching=0.4, decay=2.0)
    plain = log_likelihood(without, replace(paths, features=None, feature_names=()).batch())
    found = log_likelihood(model, paths.batch())
    assert float(found.value.detach().mean()) > float(plain.value.detach().mean()) + 0.2


def test_training_has_gradients_in_the_weights_of_features() -> None:
    data = two_types()
    model = dapp(data, 0.4, -0.2)
    assert model.event_features is not None
    weight = model.event_features.weight
    batch = data.batch()
    model.train()
    model.redraw(torch.Generator().manual_seed(0))

    def value() -> torch.Tensor:
        random = torch.Generator().manual_seed(2)
        return sampled_log_likelihood(model, batch, 3, random).sum()

    assert model.gradients(batch, 3, torch.Generator(), "window", 1.0) is None
    (found,) = torch.autograd.grad(value(), weight)
    for f in range(2):
        around = []
        for shift in (1e-5, -1e-5):
            with torch.no_grad():
                weight[f] += shift
                around.append(float(value()))
                weight[f] -= shift
        assert float(found[f]) == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-4)


def test_a_hawkes_process_with_features_is_nearly_a_dapp() -> None:
    data = earthquakes(0, 300.0)
    closed = Hawkes()
    closed.add_event_features(data)
    closed.maximum_likelihood(data)
    model = DAPP()
    model.add_event_features(data)
    model.initialise(data)
    weights = model.embedded(closed)
    assert weights is not None
    model.load_state_dict(weights, strict=False)
    model.fix_features(256)
    scores = [
        fp.evaluate(one, data).to_dict()["log_likelihood_per_event"] for one in (closed, model)
    ]
    assert scores[1] == pytest.approx(scores[0], abs=0.02)


def test_a_saved_dapp_keeps_its_features(tmp_path: Path) -> None:
    data = two_types()
    model = dapp(data, 0.7, -0.3)
    again = restore(save(model, tmp_path))
    assert fp.evaluate(again, data).to_dict() == fp.evaluate(model, data).to_dict()
    table = fp.forecasts(again, data, horizon=1.0, paths=20)
    assert table.num_rows == 3 * len(data)


# ---------------------------------------------------------------------- fit, storage, forecasts


@pytest.fixture(scope="module")
def fitted() -> tuple[Hawkes, Dataset, Any]:
    data = earthquakes(1)
    model = Hawkes()
    found = fp.fit(model, data, progress=False)
    return model, data, found


def test_the_public_fit_recovers_productivity(fitted: tuple[Hawkes, Dataset, Any]) -> None:
    model, data, found = fitted
    ratios = {one.name: one for one in model.feature_ratios}
    assert ratios["magnitude"].low < np.exp(WEIGHT) < ratios["magnitude"].high
    assert ratios["magnitude"].high / ratios["magnitude"].low < 1.5
    assert ratios["depth"].low < 1.0 < ratios["depth"].high
    truth = 0.3 * np.exp(-WEIGHT) / (1 - WEIGHT)
    assert model.spectral_radius == pytest.approx(truth, abs=0.06)
    error = float(model.errors["branching"].item())
    assert abs(model.estimates["branching"].item() - 0.3) < 3 * error
    said = "\n".join(found.notes)
    assert "an event with one unit more of magnitude triggers 1.6" in said
    assert "is that of an event with the mean magnitude, depth; over all training events" in said
    shown = branching_ratios(model)
    assert shown is not None and shown.spectral_radius == pytest.approx(model.spectral_radius)
    constant = Hawkes()
    fp.fit(constant, replace(data, features=None, feature_names=()), progress=False)
    fresh = earthquakes(2, 1000.0)
    with_features, without = (fp.evaluate(one, fresh).to_dict() for one in (model, constant))
    gain = with_features["log_likelihood_per_event"] - without["log_likelihood_per_event"]
    assert gain > 0.005


def test_a_saved_model_scores_and_forecasts_the_same(
    fitted: tuple[Hawkes, Dataset, Any], tmp_path: Path
) -> None:
    model, data, _ = fitted
    again = restore(save(model, tmp_path))
    assert again.feature_ratios == model.feature_ratios
    assert fp.evaluate(again, data).to_dict() == fp.evaluate(model, data).to_dict()
    few = replace(data, ids=("a",)) if not data.ids else data
    tables = [fp.forecasts(one, few, horizon=2.0, paths=50) for one in (model, again)]
    assert tables[0].equals(tables[1])
    assert fp.forecast(again, data, horizon=2.0, paths=20).counts.total_mean.sum() > 0


def test_a_large_last_event_raises_the_forecast(fitted: tuple[Hawkes, Dataset, Any]) -> None:
    model, _, _ = fitted
    means = []
    for magnitude in (3.0, 8.0):
        last = Sequence([9.99], start=0.0, stop=10.0, features=[[magnitude, 10.0]])
        table = fp.forecasts(model, last, horizon=2.0, paths=1000)
        means.append(table.column("mean").to_pylist()[0])
    assert means[1] > means[0] + 1.0


@torch.no_grad()
def test_the_table_keeps_the_law_of_many_features() -> None:
    random = np.random.default_rng(0)
    values = random.exponential(size=(50_000, 1))
    times = np.sort(random.uniform(0.0, 1.0, len(values)))
    data = Dataset.from_sequences([Sequence(times, start=0.0, stop=1.0, features=values)])
    found = features_of(data)
    assert len(found.table) == MOST_ROWS
    with torch.no_grad():
        found.weight.fill_(0.4)
    whole = float(found.factor(torch.from_numpy(values)).mean())
    assert float(found.mean_factor()) == pytest.approx(whole, rel=0.02)


# ---------------------------------------------------------------------- errors


def test_hostile_event_features_are_refused(
    fitted: tuple[Hawkes, Dataset, Any], tmp_path: Path
) -> None:
    model, _, _ = fitted
    save(model, tmp_path)
    path = tmp_path / "model.json"
    good = json.loads(path.read_text())

    def refused(change: Callable[[dict[str, Any]], None], match: str) -> None:
        bad = json.loads(json.dumps(good))
        change(bad)
        path.write_text(json.dumps(bad))
        with pytest.raises(CheckpointError, match=match):
            restore(tmp_path)

    spec = good["event_features"]["spec"]
    entry = "event_features"
    refused(lambda bad: bad.update(event_features=3), "event features with 'spec'")
    refused(lambda bad: bad[entry].update(spec={**spec, "more": 1}), "known entries")
    refused(lambda bad: bad[entry]["spec"].update(scale=[0.0, 1.0]), "above 0")
    refused(lambda bad: bad[entry]["spec"].update(scale=[1.0]), "a mean and a scale")
    refused(lambda bad: bad[entry]["spec"].update(mean=["x", 1.0]), "mean of type float")
    refused(lambda bad: bad[entry]["spec"].update(names="magnitude"), "as a list")
    refused(lambda bad: bad[entry]["spec"].update(rows=[10**9]), "rows of event features")
    refused(lambda bad: bad[entry]["spec"].update(rows=[-1]), "rows of event features")
    refused(lambda bad: bad[entry]["spec"].update(rows=[500, 500]), "takes them")
    refused(lambda bad: bad[entry]["spec"].update(rows=[7]), "belong together")
    refused(lambda bad: bad[entry].update(ratios=[["a", "b"]]), "rate ratios")
    refused(lambda bad: bad.pop(entry), "belong together")
    refused(lambda bad: bad.update(model="poisson", settings={}, errors={}), "takes them")


def test_errors_have_three_clauses(fitted: tuple[Hawkes, Dataset, Any]) -> None:
    model, data, _ = fitted
    bare = replace(data, features=None, feature_names=())
    wanted = "expected the event features magnitude, depth, .*; received"
    with pytest.raises(UserError, match=wanted + " data without them. Pass"):
        fp.evaluate(model, bare)
    with pytest.raises(UserError, match=wanted + " events without them .sequence 0.. Pass"):
        fp.forecasts(model, bare, horizon=1.0)
    with pytest.raises(UserError, match=wanted + " events without them. Pass"):
        fp.forecast(model, bare, horizon=1.0)
    with pytest.raises(UserError, match=wanted + " the event features depth, magnitude"):
        fp.evaluate(model, replace(data, feature_names=("depth", "magnitude")))
    narrow = Sequence([1.0], start=0.0, stop=2.0, features=[[3.0]])
    with pytest.raises(UserError, match=wanted + " 1 event features"):
        fp.evaluate(model, narrow)
    huge = Sequence([1.0], start=0.0, stop=2.0, features=[[1e9, 10.0]])
    with pytest.raises(UserError, match="near those of the training .*; received magnitude = 1e"):
        fp.forecast(model, huge, horizon=1.0)
    with pytest.raises(UserError, match=wanted + " events without them"):
        fp.Stream(model).observe(1.0)
    flat = replace(data, features=np.ones((data.events, 1)), feature_names=("size",))
    with pytest.raises(UserError, match="event features that vary .*; received size = 1 in all"):
        fp.fit(Hawkes(), flat, progress=False)
    for name in sorted(set(MODELS) - {"hawkes"}):
        if "spatial" in name or name == "seismic-dapp":
            continue
        other = MODELS[name]()
        if not other.takes_event_features:
            with pytest.raises(UserError, match="event features scale what an event triggers"):
                fp.fit(other, data, progress=False)


def test_without_excitation_nothing_is_said_of_features() -> None:
    random = np.random.default_rng(5)
    times = np.arange(0.5, 300.0)  # regular: no event triggers another one soon
    features = random.normal(size=(len(times), 1))
    data = Dataset.from_sequences([Sequence(times, start=0.0, stop=300.0, features=features)])
    model = Hawkes()
    found = fp.fit(model, data, progress=False)
    assert model.feature_ratios == []
    assert any("no event triggers others" in note for note in found.notes)
    assert np.isfinite(fp.evaluate(model, data).to_dict()["log_likelihood_per_event"])


def test_gaps_are_filled_with_events_that_have_features() -> None:
    data = earthquakes(4, 300.0)
    assert data.features is not None
    seen = (data.times < 100.0) | (data.times >= 160.0)
    steps = Steps(
        ("e",), np.array([0.0, 100.0, 160.0]), np.array([[1.0], [0.0], [1.0]]), np.array([0, 3])
    )
    log = Sequence(
        data.times[seen],
        start=0.0,
        stop=300.0,
        features=data.features[seen],
        context=Context(exposure=steps),
    )
    holed = replace(Dataset.from_sequences([log]), feature_names=data.feature_names)
    model = Hawkes()
    found = fp.fit(model, holed, fill="sample", progress=False)
    assert any("events were imputed" in note for note in found.notes)
    assert [one.name for one in model.feature_ratios] == ["magnitude", "depth"]
    filled = fp.impute(model, holed, seed=1)
    assert filled.features is not None and filled.feature_names == data.feature_names
    inside = (filled.times >= 100.0) & (filled.times < 160.0)
    assert inside.sum() > 10
    drawn = {tuple(row) for row in filled.features[inside].tolist()}
    assert drawn <= {tuple(row) for row in data.features[seen].tolist()}
    assert np.array_equal(filled.features[~inside], data.features[seen])


def test_commands_read_the_features_of_the_training_log(tmp_path: Path) -> None:
    data = earthquakes(6, 400.0)
    assert data.features is not None
    begin = np.datetime64("2025-01-01T00:00:00", "ms")
    stamps = begin + (data.times * 86_400_000).astype("timedelta64[ms]")
    rows = zip(stamps.astype(str), data.features[:, 0], strict=True)
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["when,magnitude", *(f"{t},{x:.4f}" for t, x in rows), ""]))

    def run(*words: object) -> str:
        found = CliRunner().invoke(app, [str(word) for word in words])
        assert found.exit_code == 0, found.output
        return found.output

    model = tmp_path / "model"
    reading = ["--sequence", "none", "--time-unit", "days", "--event-features", "magnitude"]
    said = run("fit", log, *reading, "--model", "hawkes", "--calendar", "none", "-o", model)
    assert "an event with one unit more of magnitude triggers" in said
    named = run("evaluate", model, log, *reading, "--json")
    plain = run("evaluate", model, log, "--json")
    assert named[named.index("{") :] == plain[plain.index("{") :]
    out = tmp_path / "out.csv"
    run("forecast", model, log, "--horizon", "2d", "--by", "1d", "-o", out)
    # The rest of the day, a day from midnight to midnight, and the rest of the horizon.
    assert len(out.read_text().splitlines()) == 4
    bare = tmp_path / "bare.csv"
    bare.write_text(log.read_text().replace("magnitude", "size"))
    refused = CliRunner().invoke(app, ["evaluate", str(model), str(bare)])
    assert refused.exit_code == 2 and "data without magnitude" in refused.output
    own = tmp_path / "own.parquet"
    fp.write(data, own)
    assert fp.read(own).feature_names == ("magnitude", "depth")
    assert fp.read(own, event_features="none").features is None
