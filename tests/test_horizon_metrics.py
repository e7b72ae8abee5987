"""Metrics of predictions up to a horizon: against HoTPP's own code where it is installed, and
against brute force everywhere.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from fourpoint.events import UserError
from fourpoint.inference.horizon_metrics import (
    count_smape,
    next_event_errors,
    temporal_map,
    transport_distances,
)

Arrays = dict[str, Any]


def random_forecasts(seed: int) -> Arrays:
    """Ten predicted and ten true events, and 16 predicted times with scores of 6 types beside 12
    true events, of 40 forecasts. All numbers are exact in float32, as HoTPP computes with them.
    """
    rng = np.random.default_rng(seed)

    def times(*shape: int) -> np.ndarray:
        return np.round(rng.uniform(0, 13, shape) * 1024) / 1024

    return {
        "times": times(40, 10),
        "marks": rng.integers(0, 6, (40, 10)),
        "true_times": times(40, 10),
        "true_marks": rng.integers(0, 6, (40, 10)),
        "costs": rng.integers(1, 9, 2) / 4,
        "map_times": times(40, 16),
        "scores": np.log(rng.permutation(40 * 16 * 6) + 1.0).reshape(40, 16, 6),
        "map_true_times": times(40, 12),
        "map_true_marks": rng.integers(0, 6, (40, 12)),
        "most": 4.0,
    }


def hotpp_metrics() -> Any:
    """HoTPP's metrics by the loader of the benchmarks; None where they are not installed."""
    file = Path(__file__).parents[1] / "benchmarks" / "hotpp_metrics.py"
    spec = importlib.util.spec_from_file_location("hotpp_metrics", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return module.load()
    except ImportError:
        return None


@pytest.mark.parametrize("seed", range(10))
def test_metrics_are_those_of_hotpp(seed: int) -> None:
    reason = "HoTPP's metrics are not installed: see benchmarks/hotpp_metrics.py"
    metrics = hotpp_metrics() or pytest.skip(reason)
    f = random_forecasts(seed)
    given = {k: torch.from_numpy(np.asarray(v)) for k, v in f.items()}
    insert, delete = f["costs"]
    distance = metrics.OTDMetric(insert, delete)
    distance.update(given["true_times"], given["true_marks"], given["times"], given["marks"])
    own = transport_distances(
        f["times"], f["marks"], f["true_times"], f["true_marks"], insert, delete
    )
    assert own.mean() == pytest.approx(distance.compute()["optimal-transport-distance"], abs=1e-6)
    deltas = (0.5, 2.0)
    precision = metrics.TMAPMetric(10.0, list(deltas))
    for some in torch.arange(40).split(16):
        precision.update(
            torch.zeros(len(some), dtype=torch.float64),
            torch.ones(len(some), 12, dtype=torch.bool),
            given["map_true_times"][some],
            given["map_true_marks"][some].clone(),
            torch.ones(len(some), 16, dtype=torch.bool),
            given["map_times"][some],
            given["scores"][some],
        )
    theirs = precision.compute()
    ours = temporal_map(
        f["map_times"], f["scores"], f["map_true_times"], f["map_true_marks"], 10.0, deltas
    )
    assert ours.mean == pytest.approx(theirs["T-mAP"], abs=1e-6)
    assert ours.weighted == pytest.approx(theirs["T-mAP-weighted"], abs=1e-6)
    following = metrics.NextItemMetric(max_time_delta=f["most"])
    mask = torch.ones(40, 10, dtype=torch.bool)
    logits = given["scores"][:, :10]
    following.update(
        mask, given["true_times"], given["true_marks"], given["times"], given["marks"], logits
    )
    theirs = following.compute()
    errors = next_event_errors(
        f["times"], f["marks"], f["true_times"], f["true_marks"], most=f["most"]
    )
    assert errors.mae == pytest.approx(theirs["next-item-mae"], abs=1e-6)
    assert errors.rmse == pytest.approx(theirs["next-item-rmse"], abs=1e-6)
    assert errors.accuracy == pytest.approx(theirs["next-item-accuracy"], abs=1e-6)


def test_transport_distance_is_the_cost_of_the_best_assignment() -> None:
    for seed in range(5):
        f = random_forecasts(seed)
        insert, delete = f["costs"]
        most = insert + delete
        f["times"][:, 7:] = np.nan  # three predictions fewer
        found = transport_distances(
            f["times"], f["marks"], f["true_times"], f["true_marks"], insert, delete
        )
        for v in range(40):
            apart = np.abs(f["times"][v, :7, None] - f["true_times"][v])
            other = f["marks"][v, :7, None] != f["true_marks"][v]
            cost = np.where(other, most, np.minimum(apart, most))
            rows, columns = linear_sum_assignment(cost)
            assert found[v] == pytest.approx(cost[rows, columns].sum() + 3 * insert)


def test_temporal_map_is_that_of_the_best_assignment() -> None:
    for seed in range(5):
        f = random_forecasts(seed)
        times, scores = f["map_times"], f["scores"]
        true_times, true_marks = f["map_true_times"], f["map_true_marks"]
        precisions = []
        for m in range(6):
            rows = []
            for v in range(40):
                inside = times[v] < 10
                real = (true_times[v] < 10) & (true_marks[v] == m)
                near = np.abs(times[v, inside, None] - true_times[v, real]) <= 2.0
                gain = np.where(near, 1 + scores[v, inside, m, None], 0.0)
                i, j = linear_sum_assignment(gain, maximize=True)
                hit = np.zeros(inside.sum(), dtype=bool)
                hit[i[gain[i, j] > 0]] = True
                rows += list(zip(-scores[v, inside, m], hit, strict=True))
            hits = np.array([hit for _, hit in sorted(rows)])
            total = ((true_times < 10) & (true_marks == m)).sum()
            rank = np.arange(1, len(hits) + 1)
            precisions.append((hits * hits.cumsum() / rank).sum() / total)
        found = temporal_map(times, scores, true_times, true_marks, 10.0, (2.0,))
        assert found.by_type[0] == pytest.approx(np.array(precisions))
        assert found.mean == pytest.approx(np.mean(precisions))


def test_types_without_a_match_or_with_nothing_else_count_zero() -> None:
    times, scores = np.array([[1.0, 2.0]]), np.zeros((1, 2, 3))
    found = temporal_map(times, scores, np.array([[1.0, 2.0]]), np.array([[0, 0]]), 5.0, (0.5,))
    assert found.by_type.tolist() == [[0.0, 0.0, 0.0]]  # all of type 0 match, as in HoTPP


def test_smape_counts_nothing_where_both_are_zero() -> None:
    assert count_smape(np.array([[0.0, 2.0], [1.0, 1.0]]), np.array([[0, 0], [1, 3]])) == 75.0


def test_costs_and_horizons_have_to_be_positive() -> None:
    none = np.zeros((1, 1))
    kinds = np.zeros((1, 1), dtype=np.int64)
    with pytest.raises(UserError, match="expected positive costs; received insert=0"):
        transport_distances(none, kinds, none, kinds, insert=0.0)
    with pytest.raises(UserError, match="expected as many marks as times"):
        transport_distances(none, kinds[:, :0], none, kinds)
    with pytest.raises(UserError, match="expected a positive horizon"):
        temporal_map(none, none[..., None], none, kinds, 0.0, (1.0,))
