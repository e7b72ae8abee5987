"""Blocks of events: the same numbers, bit for bit, as the events one at a time, whatever the blocks
are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fourpoint.events import MarkSpace
from fourpoint.models import DAPP, RMTPP, Hawkes
from fourpoint.streaming.steppers import ByExcitation, ByHistory
from fourpoint.streaming.stream import Stream

MARKS = MarkSpace(("fire", "medical"))
BRANCHING = [[[0.2, 0.1], [0.05, 0.3]], [[0.1, 0.02], [0.0001, 0.1]]]


def models() -> dict[str, Any]:
    """Every kind of stepper."""
    torch.manual_seed(0)
    dapp = DAPP(MARKS, heads=2, eval_features=24).eval()
    hawkes = Hawkes(
        MARKS, baseline=[0.5, 0.3], branching=BRANCHING, decay=[1.0, 7.0], exponentials=2
    )
    return {
        "dapp": dapp,
        "odapp": dapp.keeping(5),
        "hawkes": hawkes,
        "rmtpp": RMTPP(MARKS, hidden=4).eval(),
    }


def events(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return np.cumsum(random.exponential(size=count).round(2)), random.integers(0, 2, count)


@pytest.mark.parametrize("name", ["dapp", "odapp", "hawkes", "rmtpp"])
def test_blocks_give_the_numbers_of_single_events(name: str) -> None:
    model, (times, marks) = models()[name], events(90)
    single, blocks = Stream(model, top=0, alarms=0.3), Stream(model, alarms=0.3)
    one = [single.observe(t, m) for t, m in zip(times.tolist(), marks.tolist(), strict=True)]
    parts = [
        blocks.observe_many(times[i:j], marks[i:j])
        for i, j in ((0, 1), (1, 8), (8, 8), (8, 70), (70, 90))
    ]
    for field in ("log_density", "gap", "rate"):
        assert np.concatenate([getattr(p, field) for p in parts]).tolist() == [
            getattr(o, field) for o in one
        ]
    assert [a for p in parts for a in p.alarms] == [o.alarms for o in one]
    if name == "odapp":
        assert blocks.log_likelihood == single.log_likelihood
        return
    restored = Stream.restore(model, blocks.state())
    assert (blocks.log_likelihood, blocks.count, blocks.time) == (
        single.log_likelihood,
        single.count,
        single.time,
    )
    assert (
        restored.observe(times[-1] + 1, 1).log_density
        == single.observe(times[-1] + 1, 1).log_density
    )
    assert (
        Stream.restore(model, single.state()).intensity(200.0).tolist()
        == single.intensity(200.0).tolist()
    )


@pytest.mark.parametrize("name", ["dapp", "hawkes"])
def test_refused_events_change_nothing(name: str) -> None:
    model = models()[name]
    times = np.array([1.0, 0.5, 2.0, np.nan, 2.0, 3.0, np.inf, 2.5, 4.0])
    marks = np.array([0, 0, 1, 0, 0, 7, 0, 0, 1])
    found, plain = Stream(model).observe_many(times, marks), Stream(model, top=0)
    assert sorted(found.refused) == [1, 3, 5, 6]
    assert "at least 1.0, the last one" in str(found.refused[1]) and "a mark that" in str(
        found.refused[5]
    )
    for i in (0, 2, 4, 7, 8):
        one = plain.observe(times[i], int(marks[i]))
        assert (one.log_density, one.gap, one.rate) == (
            found.log_density[i],
            found.gap[i],
            found.rate[i],
        )
    assert np.isnan(found.gap[[1, 3, 5, 6]]).all()


def test_an_exploding_rate_is_refused_and_the_rest_scored() -> None:
    model = Hawkes(baseline=1e307, branching=0.5, decay=2.0)
    found = Stream(model, alarms=None).observe_many([0.1, 0.2])
    assert sorted(found.refused) == [0, 1] and "a finite rate" in str(found.refused[0])


def test_hawkes_by_loops_has_the_numbers_of_the_model() -> None:
    model, (times, marks) = models()["hawkes"], events(60)
    fast, plain = Stream(model), Stream(model)
    assert isinstance(fast._stepper, ByExcitation)
    plain._stepper = ByHistory(model)
    assert fast.advance(0.001) == plain.advance(0.001)
    a, b = (
        stream.observe_many(times[times > 0.001], marks[times > 0.001]) for stream in (fast, plain)
    )
    for field in ("log_density", "gap", "rate"):
        np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fast.intensity(100.0), plain.intensity(100.0), rtol=1e-12)
    fast._stepper.load(plain._stepper.arrays())  # a state of the one is a state of the other
    np.testing.assert_allclose(fast.intensity(100.0), plain.intensity(100.0), rtol=1e-12)
    assert (
        fast.forecast(2.0, paths=8).to_dict()
        == Stream.restore(model, fast.state()).forecast(2.0, paths=8).to_dict()
    )


def test_dapp_by_its_kernel_has_the_numbers_of_the_plain_model() -> None:
    model, (times, marks) = models()["dapp"], events(60)
    fast, plain = Stream(model), Stream(model)
    plain._stepper = ByHistory(model)
    a, b = (stream.observe_many(times, marks) for stream in (fast, plain))
    for field in ("log_density", "gap", "rate"):
        np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-5, atol=1e-6)
