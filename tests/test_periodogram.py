"""Rhythms are found in busy and in sparse logs, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fourpoint.ops.periodogram import peaks


def daily(
    days: float, per_hour: float, seed: int, swing: float = 0.5, period: float = 24.0
) -> NDArray[np.float64]:
    """Hours of events whose rate rises and falls once in a ``period``, drawn by thinning."""
    random = np.random.default_rng(seed)
    count = random.poisson(24 * days * per_hour * (1 + swing))
    times = np.sort(random.uniform(0, 24 * days, count))
    height = 1 + swing * np.cos(2 * np.pi * (times - 7) / period)
    return times[random.uniform(0, 1 + swing, count) < height]


def bursts(events: int, seed: int) -> NDArray[np.float64]:
    """Clusters of events that fade, at the times of a Poisson process: no rhythm, but not Poisson
    either.
    """
    random = np.random.default_rng(seed)
    starts = random.uniform(0, events / 5, events // 10)
    times = np.concatenate(
        [starts, np.repeat(starts, 9) + random.exponential(1.0, 9 * len(starts))]
    )
    return np.sort(times)


def periods(*sequences: NDArray[np.float64]) -> list[float]:
    offsets = np.cumsum([0, *map(len, sequences)])
    return (2 * np.pi / peaks(np.concatenate(sequences), offsets)).tolist()


@pytest.mark.parametrize("resolution", [0.0, 1 / 3600])
def test_busy_log_has_its_day(resolution: float) -> None:
    times = daily(14, 300.0, seed=1)
    assert len(times) > 100_000
    if resolution:
        times = resolution * np.round(times / resolution)
    assert periods(times) == [pytest.approx(24, rel=0.005)]


def test_busy_log_with_a_faint_day_or_a_week() -> None:
    assert periods(daily(14, 300.0, seed=2, swing=0.1)) == [pytest.approx(24, rel=0.01)]
    week = periods(daily(140, 30.0, seed=3, period=168.0))
    assert week == [pytest.approx(168, rel=0.01)]


def test_several_busy_logs_of_different_lengths() -> None:
    assert periods(*(daily(8 + i, 60.0, seed=i) for i in range(6)))[0] == pytest.approx(
        24, rel=0.005
    )


@pytest.mark.parametrize(("days", "per_day"), [(400, 2.0), (60, 10.0), (20, 40.0)])
def test_sparse_log_has_its_day(days: int, per_day: float) -> None:
    assert periods(daily(days, per_day / 24, seed=1, swing=0.9))[0] == pytest.approx(24, rel=0.005)


@pytest.mark.parametrize("events", [300, 3000, 30_000, 100_000])
def test_poisson_log_has_no_rhythm(events: int) -> None:
    for seed in range(2):
        times = np.sort(np.random.default_rng(seed).uniform(0, 1000.0, events))
        assert not periods(times)
        assert not periods(0.01 * np.floor(100 * times))


def test_growth_and_bursts_are_no_rhythm() -> None:
    random = np.random.default_rng(5)
    assert not periods(np.sort(1000 * np.sqrt(random.uniform(size=50_000))))
    assert not any(periods(bursts(20_000, seed)) for seed in range(5))


def test_deep_dapp_begins_with_the_day_of_a_busy_log() -> None:
    import fourpoint as fp

    data = fp.Dataset.from_sequences(
        [fp.Sequence(daily(10, 100.0, seed=1), start=0.0, stop=240.0)], unit="hours"
    )
    notes = fp.DeepDAPP(width=8, modes=4, layers=1).initialise(data)
    assert any(line.startswith("periods found in the data") and " 24" in line for line in notes)
