"""What users see of results and hand to functions: text and HTML, one sequence for a data set and
back, conventions, progress.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

import fourpoint as fp
from fourpoint.inference.evaluation import Report
from fourpoint.inference.explaining import explain
from fourpoint.models import MODELS
from fourpoint.report import printing
from fourpoint.report.printing import bar

NAMES = ("<b>one</b>", "two")
SPACE = fp.MarkSpace(NAMES)
HAWKES = fp.Hawkes(SPACE, baseline=1.0, branching=0.5, decay=2.0)
EVENTS = fp.Sequence([0.5, 1.0, 2.0], [0, 1, 0], start=0.0, stop=3.0, space=SPACE, id="C00007")
ONE = fp.Dataset.from_sequences([EVENTS])
TWO = fp.Dataset.from_sequences(
    [EVENTS, fp.Sequence([0.5], [0], start=0.0, stop=3.0, space=SPACE, id="C00008")]
)


def test_a_data_set_of_one_sequence_stands_for_it() -> None:
    ours, theirs = (fp.forecast(HAWKES, x, 1.0, paths=5).to_dict() for x in (ONE, EVENTS))
    assert ours == theirs
    assert fp.explain(HAWKES, ONE).to_dict() == fp.explain(HAWKES, EVENTS).to_dict()
    assert fp.intensity(HAWKES, ONE, [1.5]).tolist() == fp.intensity(HAWKES, EVENTS, [1.5]).tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda data: fp.forecast(HAWKES, data, 1.0),
        lambda data: fp.explain(HAWKES, data),
        lambda data: fp.intensity(HAWKES, data, [1.0]),
    ],
)
def test_more_sequences_than_one_are_refused_with_their_ids(call: Any) -> None:
    with pytest.raises(
        fp.UserError,
        match=r"expected one sequence; received a data set of 2 .*'C00007'.*\. Choose one",
    ):
        call(TWO)
    with pytest.raises(
        fp.UserError, match="expected one sequence; received a data set of 0 sequences. Choose one"
    ):
        call(TWO[:0])
    with pytest.raises(fp.UserError, match=r"expected a sequence of events; received list\. Pass"):
        call([1.0, 2.0])


def test_a_sequence_is_taken_where_a_data_set_is() -> None:
    assert fp.evaluate(HAWKES, EVENTS).to_dict() == fp.evaluate(HAWKES, ONE).to_dict()
    assert str(fp.goodness_of_fit(HAWKES, EVENTS)) == str(fp.goodness_of_fit(HAWKES, ONE))
    assert fp.resolution_score(HAWKES, EVENTS, 0.5) == fp.resolution_score(HAWKES, ONE, 0.5)
    small = dict(events=2, horizon=0.5, origins=1, paths=2)
    assert (
        fp.prediction_scores(HAWKES, EVENTS, **small).to_dict()
        == fp.prediction_scores(HAWKES, ONE, **small).to_dict()
    )
    for call in (fp.evaluate, fp.goodness_of_fit, fp.resolution_score, fp.prediction_scores):
        with pytest.raises(fp.UserError, match="expected a data set or a sequence; received list"):
            call(HAWKES, [1.0, 2.0])


def test_sequences_by_their_ids() -> None:
    assert TWO["C00007"].times.tolist() == EVENTS.times.tolist()
    with pytest.raises(fp.EventDataError, match="the id of a sequence; received 'C7'"):
        TWO["C7"]


def test_the_convention_of_an_evaluation() -> None:
    report = fp.evaluate(HAWKES, TWO, convention="gaps")
    assert report.to_dict() == fp.evaluate(HAWKES, TWO).to_dict("gaps")
    assert report.to_dict()["convention"] == "gaps"
    assert fp.evaluate(HAWKES, TWO).to_dict()["convention"] == "window"
    wrong: Any = "gap"
    with pytest.raises(fp.UserError, match="convention 'window' or 'gaps'; received 'gap'"):
        fp.evaluate(HAWKES, TWO, convention=wrong)
    with pytest.raises(fp.UserError, match="convention 'window' or 'gaps'"):
        report.to_dict(wrong)


def test_results_in_notebooks_and_shells() -> None:
    found = fp.forecast(HAWKES, EVENTS, 1.0, paths=5)
    scores = fp.prediction_scores(HAWKES, EVENTS, events=2, horizon=0.5, origins=1, paths=2)
    for one in (
        found,
        fp.explain(HAWKES, EVENTS),
        fp.evaluate(HAWKES, ONE),
        fp.goodness_of_fit(HAWKES, ONE),
        scores,
    ):
        assert repr(one) == str(one)
        assert len(repr(one)) < 3000
        page = one._repr_html_()
        assert page.startswith("<pre>")
        assert "<b>" not in page
    assert "&lt;b&gt;one&lt;/b&gt;" in found._repr_html_()
    assert isinstance(fp.evaluate(HAWKES, ONE), Report)


@pytest.mark.parametrize("name", MODELS)
def test_models_in_notebooks_and_shells(name: str) -> None:
    of_catalogues = name in ("etas", "seismic-dapp")  # parameters by the letters of the formula
    placed = name.startswith("spatial-") or of_catalogues
    box = fp.Box(("<i>x", "y"), (0, 0), (1, 1)) if placed else None
    one_type = name == "self-correcting" or of_catalogues
    space = fp.MarkSpace((), box) if one_type else fp.MarkSpace(NAMES, box)
    small: dict[str, Any] = {"eval_features": 8} if "paper" in name else {}
    model = MODELS[name](marks=space, **small)
    shown = repr(model)
    assert shown.startswith(type(model).__name__ + "(")
    assert "\n" not in shown and len(shown) < 1000
    assert str(space) in shown
    for key in model.shown() if of_catalogues else model.settings():
        assert f"{key}=" in shown
    page = model._repr_html_()
    assert page.startswith("<pre>") and "<i>" not in page


def test_a_hawkes_process_shows_its_parameters() -> None:
    assert repr(fp.Hawkes(baseline=1.25, branching=0.5, decay=2.0)) == (
        "Hawkes(no marks, baseline=1.25, branching=0.5, decay=2, exponentials=1)"
    )
    fitted = fp.Hawkes()
    fitted.maximum_likelihood(fp.simulate("hawkes", 20))
    assert f"baseline={float(fitted.estimates['baseline'][0]):.4g}" in repr(fitted)


def test_the_package_lists_its_public_names_alone() -> None:
    listed = [name for name in dir(fp) if not name.startswith("__")]
    assert set(listed) <= set(fp.__all__)
    assert not {"Any", "TYPE_CHECKING", "annotations"} & set(dir(fp))
    assert {"forecast", "Hawkes", "__version__", "__doc__"} <= set(dir(fp))


def test_a_forecast_prints_counts_of_every_type() -> None:
    model = fp.Poisson(fp.MarkSpace(("fire", "flood")))
    with torch.no_grad():
        model.log_rate.copy_(torch.tensor([3.0, 1.0]).log())
    found = fp.forecast(
        model, fp.Sequence([], start=0.0, stop=1.0, space=model.marks), 10.0, paths=400, windows=2
    )
    rows = [
        line.strip()
        for line in str(found).splitlines()
        if "fire" in line and "flood" in line and "%" not in line
    ]
    for row, mean in zip(rows, [*found.whole.mean, *found.counts.mean], strict=True):
        assert row == f"fire {mean[0]:.2f}, flood {mean[1]:.2f}"
    many = fp.Poisson(12)
    text = str(
        fp.forecast(many, fp.Sequence([], start=0.0, stop=1.0, space=12), 10.0, paths=20, windows=1)
    )
    assert "4 more" in text


def test_effects_below_rounding_are_zero() -> None:
    """The rate with and without an event differs by rounding alone where the event no longer
    matters.
    """
    model = fp.Hawkes(baseline=0.1, branching=0.5, decay=3.0)
    times = [
        *np.linspace(8.0, 9.0, 11),
        20.0,
        20.3,
    ]  # the first are worth 1e-16 to 1e-15 of the rate
    found = explain(model, fp.Sequence(times, start=0.0, stop=20.5), 20.5)
    assert found.effects[:11].tolist() == [[0.0]] * 11
    assert found.effects[11:].min() > 0.1
    single = fp.DAPP(
        features=4, eval_features=8, form="dense", base="constant", drift="none"
    ).eval()
    assert single.readout.dtype == torch.float32
    with torch.no_grad():
        single.value_weight.mul_(1e-9)
    none = explain(single, fp.Sequence(times, start=0.0, stop=20.5), 20.5)
    assert not np.any(none.effects)
    assert "e-" not in str(none)


def test_bars_are_shown_on_stderr_and_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "SOON", 0.0)
    told: list[float] = []
    real = printing._drawn

    def recorded(what: str, total: float) -> Any:
        drawn = real(what, total)
        update = drawn.update

        def updated(task: Any, **more: Any) -> None:
            told.append(more["completed"] / total)
            update(task, **more)

        monkeypatch.setattr(drawn, "update", updated)
        return drawn

    monkeypatch.setattr(printing, "_drawn", recorded)
    data = fp.Dataset.from_sequences([EVENTS] * 3)
    nhp = fp.NHP(SPACE, hidden=4, embedding=2)
    calls = {
        "forecast": lambda progress: fp.forecast(HAWKES, EVENTS, 1.0, paths=5, progress=progress),
        "explain": lambda progress: fp.explain(nhp, EVENTS, progress=progress),
        "evaluate": lambda progress: fp.evaluate(HAWKES, data, progress=progress),
        "goodness": lambda progress: fp.goodness_of_fit(HAWKES, data, progress=progress),
        "sample": lambda progress: fp.sample(HAWKES, 0.0, 1.0, 5, progress=progress),
        "predictions": lambda progress: fp.prediction_scores(
            HAWKES, data, events=2, horizon=0.5, origins=2, paths=2, progress=progress
        ),
    }
    for name, call in calls.items():
        told.clear()
        call(False)
        assert not told, name
        call(True)
        assert told and max(told) == pytest.approx(1.0) and min(told) >= 0, name
        assert capsys.readouterr().out == "", name


def test_a_bar_ends_also_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), bar("work", 2, show=True) as step:
        step(1)
        raise ZeroDivisionError
    assert sys.stderr is not None
