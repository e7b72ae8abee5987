"""Time rescaling: exact samples pass, wrong models fail, and each statistic equals its
reference.
"""

import numpy as np
import pytest
from scipy import stats

from fourpoint.ops.rescaling import (
    end_to_end,
    judge,
    ks_test,
    ljung_box_test,
    per_sequence,
    qq_points,
)


def unit_poisson(
    windows: int, length: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, rows and totals of exact unit-rate processes on many windows."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(length, windows)
    places = np.concatenate([np.sort(rng.uniform(0, length, n)) for n in counts])
    return places, np.repeat(np.arange(windows), counts), np.full(windows, length)


def test_windows_laid_end_to_end() -> None:
    places, rows, totals = (
        np.array([0.5, 1.5, 0.25]),
        np.array([0, 0, 2]),
        np.array([2.0, 4.0, 1.0]),
    )
    assert end_to_end(places, rows, totals).tolist() == [0.5, 1.0, 4.75]
    assert per_sequence(places, rows).tolist() == [0.5, 1.0, 0.25]
    assert per_sequence(np.zeros(0), np.zeros(0, dtype=int)).tolist() == []


def test_pooled_gaps_are_censored_and_end_to_end_is_not() -> None:
    """With a mean of three events a window, plain pooled gaps of an exact process fail; laid end to
    end they pass.
    """
    places, rows, totals = unit_poisson(4000, 3.0, seed=1)
    assert ks_test(-np.expm1(-per_sequence(places, rows)))[1] < 1e-10
    verdict = judge(places, rows, totals)
    assert min(verdict.ks_p, verdict.uniform_p, verdict.ljung_box_p) > 1e-3
    assert verdict.qq.outside < 0.2 and verdict.count == len(places) and verdict.expected == 12_000


def test_p_values_are_uniform_under_the_model() -> None:
    found = [judge(*unit_poisson(30, 8.0, seed)) for seed in range(200)]
    for name in ("ks_p", "uniform_p", "ljung_box_p"):
        assert stats.kstest([getattr(v, name) for v in found], "uniform").pvalue > 1e-3


@pytest.mark.parametrize("wrong", ["rate", "trend", "clusters"])
def test_wrong_models_fail(wrong: str) -> None:
    places, rows, totals = unit_poisson(300, 10.0, seed=2)
    if wrong == "rate":
        verdict = judge(1.2 * places, rows, 1.2 * totals)
        assert verdict.ks_p < 1e-6 and verdict.expected == pytest.approx(1.2 * 3000)
    elif wrong == "trend":
        scale = np.linspace(0.6, 1.4, 300)
        assert judge(places * scale[rows], rows, totals * scale).uniform_p < 1e-6
    else:
        gaps = np.random.default_rng(3).exponential(size=3000)
        slow = np.repeat(np.array([0.5, 1.5] * 150), 10)
        assert (
            judge(
                np.cumsum(gaps * slow), np.zeros(3000, dtype=int), np.array([(gaps * slow).sum()])
            ).ljung_box_p
            < 1e-6
        )


def test_statistics_equal_their_references() -> None:
    x = np.random.default_rng(4).exponential(size=400)
    distance, p = ks_test(-np.expm1(-x))
    reference = stats.kstest(x, "expon")
    assert distance == pytest.approx(reference.statistic) and p == pytest.approx(
        reference.pvalue, abs=0.01
    )
    score = stats.norm.ppf(-np.expm1(-x))
    centred = score - score.mean()
    r = [np.sum(centred[k:] * centred[:-k]) / np.sum(centred**2) for k in range(1, 11)]
    q = 400 * 402 * sum(r[k - 1] ** 2 / (400 - k) for k in range(1, 11))
    assert ljung_box_test(x) == pytest.approx((q, stats.chi2.sf(q, 10)))


def test_qq_envelope_holds_most_points() -> None:
    rng = np.random.default_rng(5)
    shares = [qq_points(rng.exponential(size=500)).outside for _ in range(100)]
    assert np.mean(shares) == pytest.approx(0.05, abs=0.03)
    qq = qq_points(rng.exponential(size=500))
    assert 100 < len(qq.theory) <= 200 and bool(
        (qq.low < qq.theory).all() and (qq.theory < qq.high).all()
    )


def test_few_events_are_no_verdict() -> None:
    verdict = judge(np.array([0.5]), np.array([0]), np.array([2.0]))
    assert np.isnan(verdict.ks_p) and np.isnan(verdict.ljung_box_p) and verdict.count == 1
    nothing = judge(np.zeros(0), np.zeros(0, dtype=int), np.array([2.0]))
    assert nothing.count == 0 and np.isnan(nothing.qq.outside)
