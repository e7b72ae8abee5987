"""Predictions with the least expected loss: decoders against brute force, paths of kernels, the
function and the command.
"""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv
from test_cli_forecast import call, refused

import fourpoint as fp
from fourpoint.events import Batch, Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.decoding import (
    least_transport,
    match_confidence,
    median_counts,
    smape_counts,
)
from fourpoint.inference.futures import Futures, draw_futures
from fourpoint.inference.horizon_metrics import count_smape, temporal_map, transport_distances
from fourpoint.inference.predicting import mean_gap
from fourpoint.inference.sampling import eval_mode
from fourpoint.kernels.path_terms import Wanted
from fourpoint.models import DAPP, RMTPP, Hawkes, Poisson
from fourpoint.models.base import PointProcess
from fourpoint.storage.checkpoints import save

MARKS = MarkSpace.categorical(["fire", "medical"])


def random_futures(seed: int, rows: int, paths: int, types: int, mean: float) -> Futures:
    rng = np.random.default_rng(seed)
    counts = rng.poisson(mean, rows * paths)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    times = np.concatenate([np.sort(rng.uniform(0, 10, n)) for n in counts])
    return Futures(times, rng.integers(0, types, len(times)), offsets, paths)


def padded(futures: Futures, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The paths of one forecast as (P, K) times and marks with NaN at the end."""
    first = row * futures.paths
    bounds = futures.offsets[first : first + futures.paths + 1]
    width = int(np.diff(bounds).max())
    times, marks = np.full((futures.paths, width), np.nan), np.zeros((futures.paths, width), int)
    for p, (low, high) in enumerate(itertools.pairwise(bounds)):
        times[p, : high - low] = futures.times[low:high]
        marks[p, : high - low] = futures.marks[low:high]
    return times, marks


def expected_distance(
    futures: Futures, row: int, times: np.ndarray, marks: np.ndarray, cost: float
) -> float:
    truth, kinds = padded(futures, row)
    own = (np.tile(times, (futures.paths, 1)), np.tile(marks, (futures.paths, 1)))
    return float(transport_distances(*own, truth, kinds, cost, cost).mean())


# ---------------------------------------------------------------------- decoders


def test_the_expected_distance_is_the_mean_over_paths_and_below_that_of_every_path() -> None:
    futures = random_futures(0, rows=4, paths=40, types=3, mean=6)
    found = least_transport(futures, 3, 5, 1.0, 1.0)
    for r in range(4):
        assert (np.diff(found.times[r]) >= 0).all()
        own = expected_distance(futures, r, found.times[r], found.marks[r], 1.0)
        assert own == pytest.approx(found.distance[r])
        truth, kinds = padded(futures, r)
        for p in range(40):
            five = slice(0, 5)
            other = expected_distance(futures, r, truth[p, five], kinds[p, five], 1.0)
            missing = np.isnan(truth[p, five]).sum()
            assert own <= other + missing + 1e-9


def test_the_events_found_are_close_to_the_best_of_all_sets() -> None:
    ratios = []
    for seed in range(6):
        futures = random_futures(seed, rows=1, paths=6, types=2, mean=2)
        pairs = sorted(set(zip(futures.times.tolist(), futures.marks.tolist(), strict=True)))
        best = np.inf
        for some in itertools.combinations(pairs, 2):
            times, marks = (np.array(x) for x in zip(*some, strict=True))
            best = min(best, expected_distance(futures, 0, times, marks, 1.0))
        found = least_transport(futures, 2, 2, 1.0, 1.0)
        ratios.append(found.distance[0] / best)
    # Times between those of events may be better still; an exchange may end in a local minimum.
    assert max(ratios) <= 1.05 and np.median(ratios) <= 1 + 1e-9


def test_an_event_is_predicted_only_if_it_lowers_the_expected_distance() -> None:
    # Type 0 comes on nine paths of ten at the same time, type 1 on one.
    times = np.array([2.0] * 9 + [5.0])
    futures = Futures(times, np.array([0] * 9 + [1]), np.arange(11), 10)
    found = least_transport(futures, 2, 3, 1.0, 1.0, exact=False)
    assert found.times[0, 0] == 2.0 and np.isnan(found.times[0, 1:]).all()
    assert found.distance[0] == pytest.approx((9 * 0 + 1 * 2) / 10)
    assert not np.isnan(least_transport(futures, 2, 3, 1.0, 1.0).times).any()


def test_a_confidence_is_the_share_of_paths_on_which_the_prediction_is_matched() -> None:
    futures = random_futures(3, rows=1, paths=50, types=2, mean=7)
    grid = (np.arange(10) + 0.5) * 1.0
    confidence = match_confidence(futures, 2, grid, 0.9)[0]
    truth, kinds = padded(futures, 0)
    from fourpoint.inference.horizon_metrics import _matched

    scores = np.tile(confidence.T, (50, 1, 1))
    predicted = np.ones((50, 10), dtype=bool)
    times = np.tile(grid, (50, 1))
    matched = _matched(times, predicted, scores, truth, kinds, ~np.isnan(truth), 0.9)
    positive = confidence.T > 0
    assert matched.mean(0)[positive] == pytest.approx(confidence.T[positive])
    assert (np.sort(confidence, axis=1)[:, -1] > 0.5).all()


def test_counts_minimise_their_losses() -> None:
    counts = np.random.default_rng(0).poisson([0.3, 2.0, 6.0], (3, 31, 3))
    for decoded, loss in (
        (median_counts(counts), lambda n, c: np.abs(n - c).mean()),
        (smape_counts(counts), lambda n, c: count_smape(np.full(n.shape, float(c)), n)),
    ):
        for r, m in itertools.product(range(3), range(3)):
            own = counts[r, :, m]
            losses = [loss(own, c) for c in range(own.max() + 1)]
            assert losses[decoded[r, m]] == pytest.approx(min(losses))


# ---------------------------------------------------------------------- paths


def models() -> dict[str, PointProcess]:
    dapp = DAPP(2, heads=2, features=5)
    dapp.initialise(marked())
    return {"hawkes": Hawkes(2, baseline=0.5, branching=0.3, decay=1.0), "dapp": dapp}


def marked() -> Dataset:
    rng = np.random.default_rng(1)
    return Dataset.from_sequences(
        [
            Sequence(np.sort(rng.uniform(0, 9, 12)), rng.integers(0, 2, 12), start=0, stop=9.5)
            for _ in range(4)
        ]
    )


@pytest.mark.parametrize("name", ["hawkes", "dapp"])
def test_events_of_a_kernel_are_those_that_it_counts(name: str) -> None:
    model = models()[name]
    batch = marked().batch()
    at = np.full(4, 9.5)
    wanted = Wanted(np.stack([at, at + 40.0], 1), np.arange(4, dtype=np.uint64), 20, 1000)
    with eval_mode(model):
        counts = model.draw_counts(batch, wanted)
        found = model.draw_events(batch, wanted, None)
        first = model.draw_events(batch, wanted, 3)
    assert counts is not None and found is not None and first is not None
    times, marks, numbers = found
    assert numbers.max() > 32  # more than there is room for at first
    futures = Futures(times, marks.astype(np.int64), np.concatenate([[0], numbers.cumsum()]), 20)
    assert (futures.counts(2).transpose(0, 2, 1) == counts[:, 0]).all()
    assert ((times > 0) & (times < 40)).all()
    begins = futures.offsets[:-1]
    three = np.concatenate(
        [np.arange(b, b + n) for b, n in zip(begins, first[2].flat, strict=True)]
    )
    assert (first[0] == times[three]).all() and (first[1] == marks[three]).all()
    assert (first[2] == np.minimum(numbers, 3)).all()


def test_paths_without_a_kernel_have_the_same_law() -> None:
    model = models()["hawkes"]
    batch: Batch = marked().batch()
    at = np.full(4, 9.5)
    keys = np.arange(4, dtype=np.uint64)
    with eval_mode(model):
        by_kernel = draw_futures(model, batch, at, at + 3.0, 500, keys)
        model.draw_events = lambda *given: None  # type: ignore[method-assign]
        plain = draw_futures(model, batch, at, at + 3.0, 500, keys)
        capped = draw_futures(model, batch, at, at + 3.0, 500, keys, most=2)
    for futures in (by_kernel, plain):
        assert futures.forecasts == 4 and len(futures.offsets) == 2001
    a, b = (futures.counts(2).mean(1) for futures in (by_kernel, plain))
    spread = by_kernel.counts(2).std(1) + 0.05
    assert (np.abs(a - b) < 5 * spread * np.sqrt(2 / 500)).all()
    assert np.diff(capped.offsets).max() == 2


# ---------------------------------------------------------------------- the function


def test_the_next_event_of_a_poisson_process() -> None:
    log = Sequence([0.5, 1.5], start=0.0, stop=2.0, id="a")
    median = fp.predict(Poisson(), log, "mae")
    mean = fp.predict(Poisson(), log, "rmse", at=1.6)
    assert median.to_pydict()["time"] == [pytest.approx(2 + np.log(2), abs=1e-4)]
    assert mean.to_pydict()["time"] == [pytest.approx(2.6, abs=1e-4)]
    assert mean.to_pydict()["probability"] == [pytest.approx(1.0)]


def test_decoding_beats_sampling_and_is_reproducible() -> None:
    model = Hawkes(2, baseline=[1.0, 0.2], branching=[[0.5, 0.1], [0.1, 0.3]], decay=2.0)
    data = fp.sample(model, 0.0, 30.0, 60, seed=1)
    known = 20.0
    table = fp.predict(model, data, "otd", steps=5, at=known, paths=200, insert=0.5, delete=0.5)
    again = fp.predict(model, data, "otd", steps=5, at=known, paths=200, insert=0.5, delete=0.5)
    assert table.equals(again) and table.num_rows == 300
    times = np.array(table["time"]).reshape(60, 5) - known
    marks = np.array([["0", "1"].index(m) if m else 0 for m in table["mark"].to_pylist()])
    true_times, true_marks = (np.zeros((60, 5)), np.zeros((60, 5), dtype=np.int64))
    sampled_times, sampled_marks = (np.zeros((60, 5)), np.zeros((60, 5), dtype=np.int64))
    with eval_mode(model):
        past = [sequence.until(known) for sequence in data]
        batch = Dataset.from_sequences(past).batch()
        at = np.full(60, known)
        keys = np.arange(60, dtype=np.uint64)
        drawn = draw_futures(model, batch, at, at + 500.0, 1, keys, most=5)
    for i, sequence in enumerate(data):
        after = sequence.times > known
        true_times[i] = sequence.times[after][:5] - known
        true_marks[i] = sequence.marks[after][:5]
        sampled_times[i] = drawn.times[drawn.offsets[i] : drawn.offsets[i + 1]]
        sampled_marks[i] = drawn.marks[drawn.offsets[i] : drawn.offsets[i + 1]]
    truth = (true_times, true_marks, 0.5, 0.5)
    decoded = transport_distances(times, marks.reshape(60, 5), *truth).mean()
    sampled = transport_distances(sampled_times, sampled_marks, *truth).mean()
    assert decoded < 0.9 * sampled


def test_confidences_are_calibrated_and_the_best_ranking() -> None:
    model = Hawkes(2, baseline=[0.6, 0.1], branching=0.6, decay=1.0)
    data = fp.sample(model, 0.0, 40.0, 150, seed=2)
    table = fp.predict(
        model, data, "tmap", horizon=5.0, delta=0.5, at=30.0, paths=200, slots=10, least=0.0
    )
    assert table.column_names == ["sequence", "time", "mark", "confidence"]
    place = {id: i for i, id in enumerate(data.ids)}
    rows = np.array([place[id] for id in table["sequence"].to_pylist()])
    kinds = np.array([data.marks.names.index(m) for m in table["mark"].to_pylist()])
    slot = np.rint((np.array(table["time"]) - 30.25) / 0.5).astype(int)
    scores = np.zeros((150, 10, 2))
    scores[rows, slot, kinds] = np.array(table["confidence"])
    times = np.tile(0.25 + 0.5 * np.arange(10), (150, 1))
    after = [(s.times[s.times > 30] - 30, s.marks[s.times > 30]) for s in data]
    width = max(len(t) for t, _ in after)
    true_times = np.full((150, width), np.nan)
    true_marks = np.zeros((150, width), dtype=np.int64)
    for i, (t, m) in enumerate(after):
        true_times[i, : len(t)] = t
        true_marks[i, : len(m)] = m
    from fourpoint.inference.horizon_metrics import _matched

    real = true_times < 5
    every = np.ones((150, 10), dtype=bool)
    matched = _matched(times, every, scores, true_times, true_marks, real, 0.5)
    for low, high in ((0.1, 0.3), (0.3, 0.5), (0.5, 1.0)):
        inside = (scores > low) & (scores <= high)
        error = matched[inside].mean() - scores[inside].mean()
        assert abs(error) < 4 * 0.5 / np.sqrt(inside.sum()) + 0.02
    own = temporal_map(times, scores, true_times, true_marks, 5.0, (0.5,)).mean
    rng = np.random.default_rng(0)
    noisy = scores * np.exp(rng.normal(0, 1, scores.shape))
    assert own > temporal_map(times, noisy, true_times, true_marks, 5.0, (0.5,)).mean


def test_a_time_budget_lowers_the_number_of_paths_and_not_that_of_predictions() -> None:
    model = models()["hawkes"]
    data = fp.sample(model, 0.0, 9.0, 30, seed=1)
    table = fp.predict(model, data, "counts", paths=100_000, time_budget=0.2, horizon=2.0)
    assert table.num_rows == 60 and set(table["stop"].to_pylist()) == {11.0}


@pytest.mark.parametrize(
    "wrong, expected",
    [
        (dict(score="best"), "a score out of otd, tmap"),
        (dict(steps=0), "at least one for steps; received steps=0"),
        (dict(paths=0), "at least one for paths"),
        (dict(insert=-1.0), "a positive insert; received insert=-1.0"),
        (dict(score="tmap", delta=float("nan")), "a positive delta"),
        (dict(score="tmap", least=1.0), "a confidence from 0 to below 1"),
        (dict(score="counts", horizon=0.0), "a positive horizon"),
        (dict(time_budget=0.0), "a positive time budget"),
        (dict(at=99.0), "a time inside the window"),
    ],
)
def test_what_cannot_be_right_is_refused(wrong: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        fp.predict(Hawkes(2), marked(), **({"score": "otd"} | wrong))  # type: ignore[arg-type]


def test_a_process_that_may_end_has_no_mean_time() -> None:
    model = RMTPP()
    with torch.no_grad():
        model.time_weight.fill_(-2.0)  # lambda = exp(-2 t): none comes with probability exp(-1/2)
    with pytest.raises(UserError, match="a next event with a finite mean"):
        fp.predict(model, Sequence([1.0], start=0.0, stop=2.0), "rmse")


def test_a_path_that_explodes_is_cut_and_an_explosive_process_is_refused() -> None:
    stable = Hawkes(baseline=1.0, branching=0.5, decay=1.0)
    explosive = Hawkes(baseline=1.0, branching=3.0, decay=5.0)
    log = Sequence(np.arange(1.0, 10.0), start=0.0, stop=10.0)
    assert fp.predict(stable, log, "counts", horizon=5.0, paths=50).num_rows == 1
    with pytest.raises(UserError, match="does not explode before the horizon; received .*paths"):
        fp.predict(explosive, log, "counts", horizon=5.0, paths=50)


def test_the_mean_gap_leaves_unobserved_time_out() -> None:
    data = marked()
    assert mean_gap(data) == pytest.approx(4 * 9.5 / 48)


# ---------------------------------------------------------------------- the command


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A log with dates, and a model of its kind."""
    rng = np.random.default_rng(0)
    hours = np.sort(rng.uniform(0, 300, 80))
    start = np.datetime64("2025-06-01T00:00:00")
    lines = ["when,kind"]
    for hour, kind in zip(hours, rng.integers(0, 2, 80), strict=True):
        when = start + np.timedelta64(int(hour * 3600), "s")
        lines.append(f"{when},{MARKS.names[kind]}")
    (tmp_path / "calls.csv").write_text("\n".join(lines) + "\n")
    about = {"unit": "hours", "start": 0.0, "stop": 300.0}
    save(Hawkes(MARKS, baseline=0.1, branching=0.2, decay=1.0), tmp_path / "model", about=about)
    return tmp_path


def test_the_command_writes_predictions_with_dates(place: Path) -> None:
    words = (place / "model", place / "calls.csv", "--time-unit", "hours")
    told = call("predict", *words, "--steps", "4", "--paths", "50", "-o", place / "out.csv")
    assert "4 rows, 1 sequences" in told.stdout.replace("\n", " ")
    assert "insertion costs" in told.stderr
    table = csv.read_csv(place / "out.csv").to_pydict()
    assert list(table) == ["sequence", "time", "mark"] and len(table["time"]) == 4
    assert all(isinstance(time, datetime) and time.year == 2025 for time in table["time"])
    assert set(table["mark"]) <= set(MARKS.names)
    shown = call("predict", *words, "--score", "tmap", "--horizon", "1d", "--paths", "50").stdout
    assert "confidence" in shown and "2025-06-" in shown
    found = json.loads(call("predict", *words, "--score", "mae", "--json").stdout)
    assert found["score"] == "mae" and found["predictions"][0]["time"].startswith("2025-06-1")


def test_the_scales_of_one_sequence_are_those_of_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = [
        Sequence(
            np.sort(rng.uniform(0, 10, n)), rng.integers(0, 2, n), start=0, stop=10, space=MARKS
        )
        for n in (4, 36)
    ]
    fp.write(Dataset.from_sequences(made, unit="hours"), tmp_path / "calls.parquet")
    about = {"unit": "hours", "start": 0.0, "stop": 10.0}
    save(Hawkes(MARKS, baseline=0.5, branching=0.2, decay=1.0), tmp_path / "model", about=about)
    words = (tmp_path / "model", tmp_path / "calls.parquet", "--paths", "20")
    one = call("predict", *words, "--sequence", "0").stderr
    assert "insertion costs 0.5 hours and deletion 0.5" in one
    assert one == call("predict", *words).stderr


def test_the_command_refuses_what_does_not_go_together(place: Path) -> None:
    words = (place / "model", place / "calls.csv")
    asked = {
        "a score out of otd": ("--score", "best"),
        "--score tmap for --delta": ("--delta", "2"),
        "a file with the extension": ("-o", place / "out.txt"),
        "at least one for steps": ("--steps", "0"),
    }
    for expected, more in asked.items():
        assert expected in " ".join(refused(place, "predict", *words, *more).split())


def test_the_table_has_the_arrow_interchange_protocol() -> None:
    table = fp.predict(Poisson(), Sequence([0.5], start=0.0, stop=2.0), "counts", horizon=2.0)
    assert isinstance(table, pa.Table) and hasattr(table, "__arrow_c_stream__")
