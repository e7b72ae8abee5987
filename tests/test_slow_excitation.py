"""The share of events that follow from earlier ones, in comparisons of logs with a known share."""

from __future__ import annotations

import numpy as np
import pytest

from fourpoint.events import Context, Dataset, Sequence
from fourpoint.models import Hawkes
from fourpoint.training.comparing import Comparison, Excitation, Step, compare

AMPLE = 600.0  # seconds, so that a slow machine gives the same answers
CLOSED = "poisson,calendar,hawkes"


def earthquakes(seed: int, days: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Days and magnitudes of an ETAS catalogue, and the share of aftershocks."""
    random = np.random.default_rng(seed)
    times = random.uniform(0.0, days, random.poisson(0.8 * days))
    magnitudes = 2.5 + random.exponential(1 / np.log(10), len(times))
    every = [(times, magnitudes)]
    while len(times):
        count = random.poisson(0.2 * np.exp(1.5 * (np.minimum(magnitudes, 7.5) - 2.5)))
        lag = 0.01 * (random.random(count.sum()) ** -5.0 - 1)  # Omori-Utsu decay, p = 1.2
        times = np.repeat(times, count) + lag
        times = times[times < days]
        magnitudes = 2.5 + random.exponential(1 / np.log(10), len(times))
        every.append((times, magnitudes))
    times, magnitudes = (np.concatenate(part) for part in zip(*every, strict=True))
    order = np.argsort(times)
    return times[order], magnitudes[order], 1 - len(every[0][0]) / len(times)


def busy_days(seed: int, days: int, share: float) -> np.ndarray:
    """Days of a log whose days have levels of their own, and whose events have ``share`` offspring
    each, on average 15 minutes later.
    """
    random = np.random.default_rng(seed)
    levels = random.gamma(4.0, 0.25, days)
    counts = random.poisson(12.0 * levels)
    times = np.repeat(np.arange(days), counts) + random.random(counts.sum())
    every = [times]
    while len(times):
        count = random.poisson(share, len(times))
        times = np.repeat(times, count) + random.exponential(0.01, count.sum())
        times = times[times < days]
        every.append(times)
    return np.sort(np.concatenate(every))


def dated(times: np.ndarray, days: float, magnitudes: np.ndarray | None = None) -> Dataset:
    """One log with dates, in days."""
    features = None if magnitudes is None else magnitudes[:, None]
    context = Context(origin=np.array([1.7e9]))
    log = Sequence(times, start=0.0, stop=float(days), features=features, context=context)
    return Dataset.from_sequences([log], unit="days")


@pytest.mark.parametrize("with_magnitudes", [False, True])
def test_the_share_of_aftershocks(with_magnitudes: bool) -> None:
    times, magnitudes, share = earthquakes(3, 800.0)
    data = dated(times, 800.0, magnitudes if with_magnitudes else None)
    found = compare(data, CLOSED, calendar="none", time_budget=AMPLE, progress=False)
    assert found.slow and found.clustering_beyond_calendar and not found.days
    assert 0.75 * share < found.branching < 1.25 * share
    half, most = found.lags
    assert 0 < half < found.lag < most
    said = " ".join(found.sentences)
    assert f"about {100 * found.branching:.0f}% of events are triggered" in said
    assert "nine in ten within" in said and found.to_dict()["slow"]


def test_levels_of_days_are_no_slow_excitation() -> None:
    data = dated(busy_days(1, 80, 0.3), 80.0)
    found = compare(data, CLOSED, calendar="none", time_budget=AMPLE, progress=False)
    assert found.days and not found.slow
    assert found.clustering_beyond_calendar
    assert 0.18 < found.branching < 0.4
    quiet = dated(busy_days(2, 80, 0.0), 80.0)
    found = compare(quiet, CLOSED, calendar="none", time_budget=AMPLE, progress=False)
    assert not found.clustering_beyond_calendar and not found.slow


def test_lags_of_a_sum_of_exponentials() -> None:
    model = Hawkes(branching=[[[0.2]], [[0.2]]], decay=[0.1, 10.0], exponentials=2)
    found = Excitation.of(model)
    assert found.share == pytest.approx(0.4) and found.lag == pytest.approx(5.05)
    decays = np.array([0.1, 10.0])
    for level, lag in zip((0.5, 0.9), found.lags, strict=True):
        assert np.mean(1 - np.exp(-decays * lag)) == pytest.approx(level)


def test_a_gain_of_nothing_is_no_explanation() -> None:
    steps = (
        Step("constant", "poisson", -1.0, 0.0, 0.0, 0.0),
        Step("frailty", "frailty", -1.0, -2e-6, -3e-6, -1e-6),
        Step("excitation", "hawkes", -1.0, 2e-6, 1e-6, 3e-6),
    )
    found = Comparison(
        steps, "constant", False, 0.0, 1.0, 0.0, (), "days", 90, 50, "sequences", 60.0, 1.0
    )
    said = found.sentences
    assert "does not clearly add more than chance" in said[0]
    assert "do not explain more than chance" in said[1]
