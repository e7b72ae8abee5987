"""Conformal calibration: coverage as stated, whatever the model."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import UserError
from fourpoint.inference.calibration import calibrate, coverage
from fourpoint.inference.next_events import (
    by_sequence,
    density_threshold,
    intervals_above,
    laws_before,
    place,
    region_sizes,
)
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.calibration import Calibration
from fourpoint.ops.conformal import AdaptiveLevels, SplitLevels, count_quantile, count_score

QUICK = ["--set", "heads=1", "--set", "steps=1", "--set", "baselines=false"]


@pytest.fixture(scope="module")
def two_parts():
    """Self-exciting sequences: one half to calibrate with, one to measure coverage on."""
    data = fp.simulate("hawkes", 600, seed=3)
    return data[:300], data[300:]


def wrong_model():
    """A constant rate for events that come in clusters."""
    model = fp.Poisson()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.log(2.0))
    return model


def log_of(count, seed, rate=2.0):
    """One long log with gaps that are gamma, not exponential."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.gamma(0.5, 2 / rate, size=count))
    return fp.Sequence(times, start=0.0, stop=float(times[-1] + 0.1))


# ---------------------------------------------------------------------- levels


@pytest.mark.parametrize("sequences", [9, 19, 50])
def test_split_levels_cover_at_least_as_stated_for_any_number_of_sequences(sequences):
    """Over new draws of everything; upper bounds by 1/(K + 1), and infinite ones cover."""
    rng = np.random.default_rng(sequences)
    upper = lower = 0
    trials = 1200
    for _ in range(trials):
        sizes = rng.integers(1, 6, size=sequences)
        means = rng.normal(size=sequences + 1)  # sequences differ
        scores = np.concatenate([rng.normal(m, 0.5, n) for m, n in zip(means, sizes, strict=False)])
        levels = SplitLevels.of(scores, np.repeat(np.arange(sequences), sizes))
        new = rng.normal(means[-1], 0.5)
        upper += new <= levels.upper(0.9)
        lower += new >= levels.lower(0.1)
    error = 3 * math.sqrt(0.09 / trials)
    assert 0.9 - error <= upper / trials <= 0.9 + 1 / (sequences + 1) + error
    assert 0.9 - error <= lower / trials <= 0.9 + 1 / (sequences + 1) + error


def test_split_levels_are_infinite_for_too_few_sequences():
    levels = SplitLevels.of([0.5] * 8, range(8))
    assert levels.upper(0.9) == math.inf
    assert levels.lower(0.1) == -math.inf
    assert levels.smallest_sample(0.9) == 9
    assert math.isfinite(SplitLevels.of([0.5] * 9, range(9)).upper(0.9))


@pytest.mark.parametrize("kind", ["constant", "jump", "against", "random"])
def test_adaptive_levels_keep_their_bound_on_any_log(kind):
    """Scores may even be chosen against the level: always just above it."""
    rng = np.random.default_rng(0)
    levels = AdaptiveLevels((0.9,), (0.9,), 0)
    hits = 0
    total = 3000
    for t in range(total):
        level = levels.at[0]
        score = {
            "constant": 0.3,
            "jump": 0.1 if t < 1500 else 0.95,
            "against": min(1.0, level + 1e-6) if level < 1 else 1.0,
            "random": float(rng.random()),
        }[kind]
        hits += score <= level
        levels = levels.after([score])
    assert abs(hits / total - 0.9) <= levels.bound() < 0.11


def test_adaptive_levels_approach_the_quantiles_of_steady_scores():
    scores = np.random.default_rng(1).beta(2, 5, size=20_000)
    levels = AdaptiveLevels.new().after(scores)
    for level in (0.1, 0.5, 0.9):
        share = (scores <= levels.upper(level)).mean()
        assert abs(share - level) < 0.05
    found = [levels.upper(level) for level in np.linspace(0, 1, 101)]
    assert (np.diff(found) >= 0).all()


def test_score_and_quantile_of_counts_are_inverse_to_each_other():
    rng = np.random.default_rng(2)
    for mean in (0.3, 4.0, 80.0):
        draws = np.sort(rng.poisson(mean, size=200)).astype(float)
        for count in range(int(draws[0]), int(draws[-1]) + 8):
            found = count_quantile(draws, count_score(draws, count))
            assert found == pytest.approx(count, abs=1e-9)
    assert count_quantile(draws, -1e9) == 0.0


# ---------------------------------------------------------------------- where events fall


def test_events_of_a_constant_rate_fall_where_the_exponential_law_has_them():
    """F is 1 - exp(-2 g), given an event before the window's end; the density falls, so that the
    shortest region begins at once, and the pair of time and mark has the same score.
    """
    times = np.array([0.2, 0.9, 1.0, 2.5])
    data = fp.Dataset.from_sequences([fp.Sequence(times, start=0.0, stop=3.0)])
    model = wrong_model()
    with eval_mode(model):
        events = laws_before(model, data, *by_sequence(data, np.arange(4)))
        found = place(events)
        sizes = region_sizes(events, 0.8, 0.8, 0.8)
    before = np.concatenate([[0.0], times[:-1]])
    seen = 1 - np.exp(-2 * (3.0 - before))
    u = (1 - np.exp(-2 * (times - before))) / seen
    np.testing.assert_allclose(found.below, u, atol=1e-6)
    np.testing.assert_allclose(found.scores("central"), np.abs(2 * u - 1), atol=1e-6)
    np.testing.assert_allclose(found.shortest, u, atol=0.05)  # sums over nodes
    np.testing.assert_allclose(found.pair, found.shortest, atol=1e-12)
    ends = [-np.log1p(-p * seen) / 2 for p in (0.1, 0.9, 0.8)]
    np.testing.assert_allclose(sizes.central, ends[1] - ends[0], atol=1e-6)
    np.testing.assert_allclose(sizes.shortest, ends[2], atol=0.1)


def test_regions_of_a_density_with_two_peaks():
    grid = np.linspace(0, 10, 1001)
    density = np.exp(-((grid - 2) ** 2)) + np.exp(-((grid - 7) ** 2))
    density /= density.sum() * 0.01
    weights = torch.full((1001,), 0.01, dtype=torch.float64)
    threshold = density_threshold(torch.from_numpy(density), weights, 0.68)
    found = intervals_above(grid, density, threshold)
    assert len(found) == 2
    # The normal law has 68% within one standard deviation, which is 1/sqrt(2) here.
    np.testing.assert_allclose(found[0], (2 - 0.707, 2 + 0.707), atol=0.02)
    assert density_threshold(torch.from_numpy(density), weights, 1.0) == 0.0
    assert intervals_above(grid, density, 0.0) == [(0.0, 10.0)]


# ---------------------------------------------------------------------- calibrated models


def test_a_wrong_model_covers_after_calibration(two_parts):
    model = wrong_model()
    found = calibrate(model, two_parts[0], events=10_000)
    assert found.method == "split"
    scores = coverage(model, two_parts[1])
    for kind, own in scores.regions.items():
        assert 0.87 <= own.coverage <= 0.93, kind
    assert not 0.87 <= scores.regions["central"].plain_coverage <= 0.93
    assert scores.to_dict()["regions"]["central"]["size"] > 0


def test_predictions_use_the_calibration(two_parts):
    model = wrong_model()
    before = fp.prediction_scores(model, two_parts[1], events=1500, origins=0)
    fp.calibrate(model, two_parts[0])
    after = fp.prediction_scores(model, two_parts[1], events=1500, origins=0)
    assert abs(after.next_event.coverage - 0.9) < 0.03 < abs(before.next_event.coverage - 0.9)
    assert after.next_event.crps == before.next_event.crps


def test_a_long_log_is_calibrated_adaptively_and_covers():
    model = wrong_model()
    found = calibrate(model, log_of(1500, seed=0), events=10_000)
    assert found.method == "adaptive"
    scores = coverage(model, log_of(1500, seed=1))
    for kind, own in scores.regions.items():
        assert abs(own.coverage - 0.9) < 0.02, kind


def test_counts_of_clustered_events_are_covered_after_calibration(two_parts):
    """A Poisson process has intervals that are too short for clustered counts."""
    dev, test = two_parts
    model = fp.Poisson()
    fp.fit(model, dev, dev)
    model.trained_on = None
    length = float(dev.stops[0]) / 2

    def covered():
        at = test.starts[0] + length / 2
        table = fp.forecasts(model, test, length, at=at, paths=300)
        low, high = (table.column(name).to_numpy() for name in ("q05", "q95"))
        inside = [((s.times > at) & (s.times <= at + length)).sum() for s in test]
        return np.mean((inside >= low) & (inside <= high))

    before = covered()
    fp.calibrate(model, dev, horizon=length, events=50, paths=300)
    after = covered()
    assert before < 0.85
    assert 0.86 <= after <= 0.95


def test_only_calibrated_horizons_change(two_parts):
    model = wrong_model()
    sequence = two_parts[1][0]
    plain = fp.forecast(model, sequence, horizon=0.5, paths=200, windows=2)
    fp.calibrate(model, two_parts[0][:60], horizon=0.5, windows=2, events=50, paths=100)
    same = fp.forecast(model, sequence, horizon=0.5, paths=200, windows=2)
    other = fp.forecast(model, sequence, horizon=0.6, paths=200, windows=2)
    assert any("and of counts are calibrated" in note for note in same.notes)
    assert any("not of counts" in note for note in other.notes)
    assert same.next_event.interval != plain.next_event.interval
    assert same.next_event.median == plain.next_event.median
    assert (same.counts.total_high >= plain.counts.total_high).all()
    table = fp.forecasts(model, sequence, 0.5, by=0.25)
    assert table.num_rows == 2


def test_regions_of_a_forecast_are_where_the_law_has_them():
    """Of a constant rate of 2: 90% before log(10)/2, which is the shortest region too."""
    found = fp.forecast(
        wrong_model(), fp.Sequence([0.5], start=0.0, stop=1.0), horizon=2.0, paths=50
    )
    own = found.next_event.regions
    assert own.before == pytest.approx(1 + math.log(10) / 2, abs=1e-5)
    assert own.central == pytest.approx((1 - math.log(0.95) / 2, 1 - math.log(0.05) / 2), abs=1e-5)
    assert len(own.shortest) == len(own.pairs[0]) == 1
    assert own.shortest[0] == pytest.approx((1.0, own.before), abs=0.1)  # sums over nodes
    assert not own.calibrated
    assert found.to_dict()["next_event"]["regions"]["calibrated"] is False


# ---------------------------------------------------------------------- kept with the model


def test_a_calibration_is_saved_and_restored(two_parts, tmp_path):
    for data in (two_parts[0][:40], log_of(200, 0)):
        model = wrong_model()
        found = fp.calibrate(model, data, events=100, horizon=1.0, origins=20, paths=20)
        fp.save(model, tmp_path / "model")
        again = fp.restore(tmp_path / "model").calibration
        assert again is not None
        assert again.to_dict() == found.to_dict()
        assert again.summary() == found.summary()


def test_a_new_fit_has_no_calibration_of_the_former_weights(two_parts):
    model = fp.Poisson()
    fp.calibrate(model, two_parts[0][:30], events=60)
    assert model.calibration is not None
    fp.fit(model, two_parts[1][:30], two_parts[1][30:40], progress=False)
    assert model.calibration is None


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [0.2, 0.1]},
        {"scores": [math.nan, 1.0]},
        {"shares": [1.0]},
        {"shares": [-1.0, 2.0]},
        {"sequences": -1},
        {"sequences": True},
        {"sequences": 7},
    ],
)
def test_a_tampered_calibration_is_refused(change):
    levels = {"scores": [0.1, 0.2], "shares": [1.0, 1.0], "sequences": 2}
    whole = dict.fromkeys(("next_time", "central", "shortest", "pair"), levels)
    whole |= {"counts": [], "sequences": 2, "events": 2}
    assert Calibration.from_dict(whole).method == "split"
    with pytest.raises((ValueError, TypeError, KeyError)):
        Calibration.from_dict(whole | {"pair": levels | change})


def test_a_stream_goes_on_adapting_and_keeps_its_levels(tmp_path):
    model = wrong_model()
    fp.calibrate(model, log_of(300, 0))
    stream = fp.Stream(model)
    later = log_of(400, 5)
    one_by_one = fp.Stream(model)
    for time in later.times[:50]:
        one_by_one.observe(float(time))
    stream.observe_many(later.times[:50])
    assert stream.calibration == one_by_one.calibration != model.calibration
    restored = fp.Stream.restore(model, stream.state())
    assert restored.calibration == stream.calibration
    stream.observe_many(later.times[50:])
    restored.observe_many(later.times[50:])
    assert restored.state() == stream.state()
    interval = stream.forecast(1.0, paths=10).next_event
    assert interval.regions.calibrated
    assert stream.calibration.events == model.calibration.events + 400


def test_a_state_with_levels_needs_a_calibrated_model():
    model = wrong_model()
    fp.calibrate(model, log_of(300, 0))
    state = fp.Stream(model).state()
    with pytest.raises(UserError, match="without calibration"):
        fp.Stream.restore(wrong_model(), state)


# ---------------------------------------------------------------------- refusals


def test_what_cannot_be_calibrated_is_refused(two_parts):
    model = wrong_model()
    dev = two_parts[0][:30]
    with pytest.raises(UserError, match="method to be one of"):
        fp.calibrate(model, dev, method="best")
    with pytest.raises(UserError, match="at least one event"):
        fp.calibrate(model, fp.Sequence([], start=0.0, stop=1.0))
    with pytest.raises(UserError, match="longer than the horizon"):
        fp.calibrate(model, dev, events=20, horizon=1e6)
    with pytest.raises(UserError, match="a positive horizon"):
        fp.calibrate(model, dev, events=20, horizon=-1.0)
    with pytest.raises(UserError, match="a calibrated model"):
        coverage(wrong_model(), dev)
    fitted = fp.Poisson()
    fp.fit(fitted, dev, two_parts[1][:5])
    with pytest.raises(UserError, match="not in training"):
        fp.calibrate(fitted, dev)


def test_the_command_calibrates_a_saved_model(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["customer,time"]
    for customer in range(120):
        times = np.sort(rng.uniform(0, 10, rng.integers(1, 12)))
        rows += [f"c{customer},{t:.4f}" for t in times]
    file = tmp_path / "visits.csv"
    file.write_text("\n".join(rows) + "\n")
    folder = tmp_path / "model"
    run = CliRunner().invoke
    common = [str(file), "--sequence", "customer", "--time", "time", "--window", "0", "10"]
    made = run(app, ["fit", *common, "--model", "dapp", *QUICK, "-o", str(folder)])
    assert made.exit_code == 0, made.output
    words = ["--split", "held-out", "--method", "split", "--json"]
    result = run(app, ["calibrate", str(folder), *common, *words])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["method"] == "split"
    assert set(found["levels"]) == {"before", "central", "shortest", "pair"}
    ahead = run(
        app,
        ["forecast", str(folder), str(file), "--group-by", "customer", "--time", "time"]
        + ["--window", "0", "10", "--sequence", "c3", "--horizon", "2", "--paths", "20", "--json"],
    )
    assert ahead.exit_code == 0, ahead.output
    assert json.loads(ahead.stdout)["next_event"]["regions"]["calibrated"] is True
    wrong = run(app, ["calibrate", str(folder), *common, "--method", "magic"])
    assert wrong.exit_code == 2
    assert "--method to be one of" in wrong.output
