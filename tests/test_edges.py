"""Every public function with every model, on data at the edges: nothing observed, ties at the
start, an event at the very end.

Models are as small as they can be, and have not been fitted: what is tested is that each answer is
there and finite. Where no answer exists, it is refused in three clauses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import fourpoint as fp
from fourpoint.models import CATALOGUE, MODELS

BOX = fp.Box(("x", "y"), (0.0, 0.0), (1.0, 1.0))
PAPER: dict[str, Any] = dict(features=4, eval_features=8, generator=(4,), width=2)
TINY: dict[str, dict[str, Any]] = {
    "dapp": dict(heads=2, features=4, eval_features=8, generator=(4,), knots=2),
    "odapp": dict(heads=2, features=4, eval_features=8, generator=(4,), knots=2, keep=2),
    **{name: PAPER for name in MODELS if name.startswith("dapp-paper")},
    **{name: {**PAPER, "keep": 2} for name in MODELS if name.startswith("odapp-paper")},
    "spatial-dapp": dict(heads=2, frequencies=2, generator=(4,), knots=2, order=8, cells=2),
    "deep-dapp": dict(layers=1, width=4, modes=2, rhythms=1, sinusoids=1),
    "nhp": dict(hidden=4, embedding=2),
    "rmtpp": dict(hidden=4),
    "sahp": dict(hidden=4, layers=1, heads=1),
    "thp": dict(hidden=4, layers=1, heads=1),
    "spline-poisson": dict(knots=2),
}
TIMES: dict[str, tuple[list[float], float | None]] = {
    "empty": ([], 3.0),
    "one event": ([1.0], 3.0),
    "ties at the start": ([0.0, 0.0, 0.0, 1.5], 3.0),
    "events at the stop": ([1.0, 3.0, 3.0], None),
}
NOTHING = 1e-3  # a horizon in which nothing happens


@cache
def tiny(name: str) -> Any:
    """A small model of that name for two types of events, with places where it needs them."""
    if name == "self-correcting":
        return MODELS[name]().eval()  # it has one type
    if name in CATALOGUE:
        return MODELS[name](fp.MarkSpace(box=BOX), distance=0.1).eval()
    space = fp.MarkSpace(("a", "b"), box=BOX if name.startswith("spatial-") else None)
    return MODELS[name](marks=space, **TINY.get(name, {})).eval()


def sequence(name: str, case: str) -> fp.Sequence:
    times, stop = TIMES[case]
    model = tiny(name)
    marks = np.arange(len(times)) % model.marks.count
    places = np.linspace(0.2, 0.8, 2 * len(times)).reshape(-1, 2) if model.marks.box else None
    return fp.Sequence(times, marks, start=0.0, stop=stop, space=model.marks, places=places)


def finite(*values: Any) -> bool:
    return all(bool(np.isfinite(np.asarray(value, dtype=float)).all()) for value in values)


def evaluated(model: Any, events: fp.Sequence) -> None:
    report = fp.evaluate(model, fp.Dataset.from_sequences([events] * 3))
    assert finite(*(score.log_likelihood for score in report.scores.values()))
    assert str(report)


def scored(model: Any, events: fp.Sequence) -> None:
    for convention in ("window", "gaps"):
        found = fp.log_likelihood(model, events.batch(), convention=convention)
        assert finite(found.value, found.integral, found.error)


def asked(model: Any, events: fp.Sequence) -> None:
    rate = fp.intensity(model, events, [events.start, 1.0, events.stop])
    assert rate.shape == (3, model.marks.count)
    assert finite(rate)
    assert (rate >= 0).all()
    assert fp.intensity(model, events, []).shape == (0, model.marks.count)


def sampled(model: Any, events: fp.Sequence) -> None:
    for span in (NOTHING, 0.1):
        drawn = fp.sample(model, events.stop, events.stop + span, 3, history=events)
        assert len(drawn) == 3


def forecast(model: Any, events: fp.Sequence) -> None:
    tied = len(events) > 1 and events.times[0] == events.start
    found = fp.forecast(model, events, NOTHING, paths=3, at=events.start if tied else None)
    assert finite(found.rate.mean, found.counts.mean)
    assert len(found.past) == (events.times <= found.at).sum()
    assert str(found)
    assert found.to_dict()["at"] == found.at


def explained(model: Any, events: fp.Sequence) -> None:
    for at in (events.start, 1.0, None):
        found = fp.explain(model, events, at)
        known = int((events.times <= found.at).sum())
        assert found.effects.shape == (known, model.marks.count)
        assert finite(found.rate, found.effects)
        assert str(found)
        assert found.to_dict()["at"] == found.at


def checked(model: Any, events: fp.Sequence) -> None:
    found = fp.goodness_of_fit(model, fp.Dataset.from_sequences([events, events]))
    assert finite(found.total.expected)
    assert str(found)


def ticked(model: Any, events: fp.Sequence) -> None:
    data = fp.Dataset.from_sequences([events, events])
    assert finite(fp.resolution_score(model, data, resolution=0.5))


def predicted(model: Any, events: fp.Sequence) -> None:
    data = fp.Dataset.from_sequences([events, events])
    if not len(events):
        with pytest.raises(fp.UserError, match="at least one event"):
            fp.prediction_scores(model, data)
        return
    found = fp.prediction_scores(model, data, events=1, horizon=0.1, origins=1, paths=2)
    assert finite(found.next_event.coverage)
    assert str(found)


def streamed(model: Any, events: fp.Sequence) -> None:
    if model.marks.box is not None:
        return  # streams take no places
    stream = fp.Stream(model, start=events.start)
    for time, mark in zip(events.times, events.marks, strict=True):
        assert finite(stream.observe(float(time), int(mark)).gap)
    stream.advance(events.stop)
    assert finite(stream.log_likelihood, stream.intensity(events.stop))
    assert finite(stream.forecast(NOTHING, paths=3).counts.mean)
    assert fp.Stream.restore(model, stream.state()).log_likelihood == stream.log_likelihood


def banked(model: Any, events: fp.Sequence) -> None:
    if model.marks.box is not None:
        return  # streams take no places
    bank = fp.StreamBank(model, start=events.start)
    for time, mark in zip(events.times, events.marks, strict=True):
        bank.observe(["one"], [float(time)], [int(mark)])


def mapped(model: Any, events: fp.Sequence) -> None:
    if model.marks.box is None:
        return
    for at, horizon in ((events.start, 0.1), (None, NOTHING)):
        assert finite(fp.intensity_map(model, events, at, cells=4).rate)
        found = fp.forecast(model, events, horizon, paths=3, at=at)
        assert finite(fp.expected_map(model, found, cells=4).rate)


# Forecasts cost most: each of these has the cases in which it has gone wrong, and one more.
SLOW: dict[Callable[[Any, fp.Sequence], None], tuple[str, ...]] = {
    forecast: ("empty", "ties at the start", "events at the stop"),
    streamed: ("empty", "events at the stop"),
    predicted: ("empty", "events at the stop"),
}
CALLS = (
    evaluated,
    scored,
    asked,
    sampled,
    forecast,
    explained,
    checked,
    ticked,
    predicted,
    streamed,
    banked,
    mapped,
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_every_function_answers_at_the_edges(
    call: Callable[[Any, fp.Sequence], None], name: str
) -> None:
    for case in SLOW.get(call, TIMES):
        call(tiny(name), sequence(name, case))
