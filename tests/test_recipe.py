"""What `fit` returns: never worse on held-out data than a closed-form model, stable, within its
budget.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fourpoint as fp
from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, Sequence
from fourpoint.events.windows import beginning, cut_long, repeated_windows
from fourpoint.inference import sampling
from fourpoint.inference.sampling import sample_paths
from fourpoint.models import DAPP, MODELS, RMTPP, Hawkes, Poisson
from fourpoint.training import closed_forms, fitting as training, run as training_run, sources
from fourpoint.training.closed_forms import clearly_positive, fit_closed_forms, unit_scores
from fourpoint.training.run import explosive

TINY: dict[str, Any] = dict(heads=2, features=4, eval_features=16, generator=(4,), knots=3)


def poisson_sequences(count: int, events: int, seed: int) -> Dataset:
    """Sequences of a Poisson process of rate 1, observed up to their last event."""
    gaps = np.random.default_rng(seed).exponential(size=(count, events))
    return Dataset.from_sequences(
        [Sequence(np.cumsum(g), start=0.0, stop=float(g.sum()) + 0.5) for g in gaps]
    )


def long_log(events: int, seed: int = 0) -> Dataset:
    times = np.cumsum(np.random.default_rng(seed).exponential(size=events))
    return Dataset.from_sequences([Sequence(times, start=0.0, stop=float(times[-1]) + 1.0)])


# ---------------------------------------------------------------------- closed forms


def test_the_result_is_never_below_the_best_closed_form_on_dev(tmp_path: Path) -> None:
    """One step of training cannot beat a Hawkes process: the fit returns the Hawkes process and
    saves it.
    """
    train, dev = simulate("hawkes", 200, seed=1), simulate("hawkes", 100, seed=2)
    given = RMTPP(hidden=4)
    done = fp.fit(given, train, dev, steps=1, progress=False, folder=tmp_path)
    best = max(done.closed_forms.values())
    own = {
        name: float(unit_scores(done.model, dev, "window").sum()) / dev.events for name in ("it",)
    }["it"]
    assert own >= best - 1e-9 and done.best == pytest.approx(best)
    assert (
        done.name == "hawkes"
        and isinstance(done.model, Hawkes)
        and isinstance(fp.restore(tmp_path), Hawkes)
    )
    assert any("the closed-form model hawkes is better on dev" in note for note in done.notes)
    again = fp.fit(
        RMTPP(hidden=4), train, dev, steps=1, progress=False, folder=tmp_path, resume=True
    )
    assert isinstance(again.model, Hawkes)


def test_a_better_model_is_returned_itself() -> None:
    train, dev = simulate("self_correcting", 200, seed=1), simulate("self_correcting", 100, seed=2)
    model = DAPP(**TINY)
    done = fp.fit(model, train, dev, steps=150, progress=False)
    assert done.model is model and done.name == "" and done.best > max(done.closed_forms.values())


def test_the_closed_forms_suit_the_data() -> None:
    def names(data: Dataset) -> list[str]:
        found = fit_closed_forms(
            data.marks, data, lambda m: unit_scores(m, data, "window"), time_left=lambda: True
        )
        return [one.name for one in found]

    some = names(simulate("hawkes", 20, seed=0))
    assert some == ["poisson", "spline-poisson", "frailty", "hawkes"]
    several = names(poisson_sequences(5, 8, seed=0))
    assert several == ["poisson", "frailty", "hawkes"], "windows of many lengths"
    assert names(long_log(50)) == ["poisson", "hawkes"], "a single window"


def test_closed_forms_end_with_their_time() -> None:
    data = simulate("hawkes", 20, seed=0)
    found = fit_closed_forms(
        data.marks, data, lambda m: unit_scores(m, data, "window"), time_left=lambda: False
    )
    assert [one.name for one in found] == ["poisson"]


@pytest.mark.parametrize(
    ("process", "name"), [("hawkes", "hawkes"), ("nonhomogeneous2", "spline-poisson")]
)
def test_dapp_contains_the_closed_forms(process: str, name: str) -> None:
    """Each of them as weights of DAPP, whose score is then nearly the same."""
    train, dev = simulate(process, 200, seed=1), simulate(process, 100, seed=2)
    model = DAPP()
    model.initialise(train)
    found = fit_closed_forms(
        train.marks, train, lambda m: unit_scores(m, dev, "window"), time_left=lambda: True
    )
    for one in found:
        weights = model.embedded(one.model)
        if one.name == "frailty":  # a factor that a sequence's events reveal is no attention
            assert weights is None
            continue
        assert weights is not None
        model.load_state_dict(weights, strict=False)
        ours = float(unit_scores(model, dev, "window").sum())
        assert ours == pytest.approx(float(one.scores.sum()), abs=0.001 * dev.events), one.name
    assert max(found, key=lambda one: float(one.scores.sum())).name == name


def test_a_hawkes_process_is_not_traded_for_noise() -> None:
    """200 sequences of a Hawkes process, most of them without a clear sign of excitation: what is
    kept is as good as the closed form on new data.
    """
    train, test = simulate("hawkes", 200, seed=1), simulate("hawkes", 300, seed=99)
    for seed in (3, 6):
        model = DAPP(train.marks, seed=seed, features=8, eval_features=32)
        fp.fit(model, train, steps=150, seed=seed, progress=False)
        report = fp.evaluate(model, test, truth="hawkes").to_dict()
        assert report["regret_per_event"] < 0.002 and report["intensity_mse"] < 0.5


def test_units_are_sequences_or_blocks_of_gaps() -> None:
    model = Poisson()
    many, few = simulate("hawkes", 40, seed=0), simulate("hawkes", 3, seed=0)
    assert len(unit_scores(model, many, "window")) == 40
    blocks = unit_scores(model, few, "window")
    assert len(blocks) == sum(min(20, n + 1) for n in few.lengths.tolist())
    from fourpoint.inference.likelihood import quick_log_likelihood

    assert float(blocks.sum()) == pytest.approx(
        float(quick_log_likelihood(model, few.batch()).sum())
    )


def test_one_difference_decides_nothing() -> None:
    assert not clearly_positive(torch.tensor([100.0]))
    assert clearly_positive(torch.full((10,), 1.0) + 0.1 * torch.arange(10))


# ---------------------------------------------------------------------- small data


@pytest.mark.parametrize("name", ["rmtpp", "nhp", "sahp", "thp", "dapp", "deep-dapp"])
def test_small_data_do_not_lead_astray(name: str) -> None:
    """Three sequences of ten events: the model itself stays near the best closed form on new
    data.
    """
    train, test = poisson_sequences(3, 10, seed=5), poisson_sequences(200, 10, seed=6)
    model = MODELS[name](train.marks)
    done = fp.fit(model, train, steps=80, progress=False, seed=1)
    best = max(
        fp.evaluate(one.model, test).scores["window"].per_event
        for one in fit_closed_forms(
            train.marks, train, lambda m: unit_scores(m, train, "window"), time_left=lambda: True
        )
    )
    assert fp.evaluate(model, test).scores["window"].per_event > best - 0.3
    assert fp.evaluate(done.model, test).scores["window"].per_event > best - 0.3
    assert any("training events are few for a neural model" in note for note in done.notes)


# ---------------------------------------------------------------------- stability


def test_an_explosive_model_is_noticed_and_a_stable_one_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, dev = simulate("hawkes", 300, seed=1), simulate("hawkes", 300, seed=2)
    model = DAPP(**TINY)
    monkeypatch.setattr(
        training_run,
        "explosive",
        lambda one, *_: "12 of 12 simulated paths reach 99 events" if one is model else "",
    )
    original = training.fit_closed_forms
    monkeypatch.setattr(
        training, "fit_closed_forms", lambda *given, **more: original(*given, **more)[:1]
    )
    done = fp.fit(model, train, dev, steps=30, progress=False)
    assert done.name == "poisson" and done.model is not model
    assert any("the trained model is explosive: 12 of 12" in note for note in done.notes)


def test_a_closed_form_that_is_better_but_explosive_is_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, dev = simulate("hawkes", 100, seed=1), simulate("hawkes", 50, seed=2)
    model = RMTPP(hidden=4)
    monkeypatch.setattr(
        training_run, "explosive", lambda one, *_: "" if one is model else "12 of 12 paths"
    )
    done = fp.fit(model, train, dev, steps=2, progress=False)
    assert done.closed_forms["hawkes"] > done.best
    assert done.model is model and not done.name


def test_a_simulation_without_time_left_still_finds_paths_that_run_away() -> None:
    log, asked = long_log(2000), [0]

    def time_left() -> bool:
        asked[0] += 1
        return asked[0] % 400 != 0

    assert explosive(Hawkes(baseline=0.5, branching=0.5, decay=2.0), log, 0, lambda: False) == ""
    found = explosive(Hawkes(baseline=0.5, branching=3.0, decay=2.0), log, 0, time_left)
    assert asked[0] == 400 and "simulated paths reach" in found
    model = Hawkes(baseline=0.5, branching=0.5, decay=2.0)
    paths = sample_paths(model, 0.0, 100.0, 5, time_left=lambda: False)
    assert paths.unfinished.tolist() == [0, 1, 2, 3, 4] and not paths.data.events


def test_paths_that_run_away_are_explosive() -> None:
    data = simulate("hawkes", 50, seed=0)
    assert explosive(Hawkes(baseline=10.0, branching=1.0, decay=1.0), data) == ""
    assert "12 of 12 simulated paths reach" in explosive(
        Hawkes(baseline=10.0, branching=30.0, decay=1.0), data
    )
    log = long_log(2000)
    assert explosive(Hawkes(baseline=0.5, branching=0.5, decay=2.0), log) == ""
    assert "simulated paths reach" in explosive(Hawkes(baseline=0.5, branching=3.0, decay=2.0), log)


# ---------------------------------------------------------------------- long logs and budgets


def test_long_sequences_are_cut_and_nothing_is_lost() -> None:
    log = long_log(5000)
    pieces = cut_long(log, 2048)
    assert pieces.lengths.tolist() == [2048, 2048, 904]
    assert np.array_equal(pieces.times, log.times)
    assert pieces.starts[0] == log.starts[0] and pieces.stops[-1] == log.stops[-1]
    assert np.array_equal(pieces.starts[1:], pieces.stops[:-1])
    assert beginning(log, 100).events == 100 and beginning(log, 9999) is log
    assert not repeated_windows(log) and repeated_windows(simulate("hawkes", 3, seed=0))


def test_a_single_window_has_no_curve_of_time() -> None:
    """Such a curve would stay at its last value after the end of the log."""
    model = DAPP(**TINY)
    notes = model.initialise(long_log(500))
    assert (
        "base: constant (there is one window only)" in notes
        and not model.rate.baseline.splined_base
    )


def test_one_long_sequence_is_trained_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = training.Steps._take

    def taken(self: Any, step: int, chosen: Any) -> None:
        seen.append(chosen.scored)
        original(self, step, chosen)

    monkeypatch.setattr(training.Steps, "_take", taken)
    done = fp.fit(DAPP(**TINY), long_log(30_000), steps=30, progress=False)
    assert max(seen) <= sources.PIECE
    *_, last = done.history
    assert last["epoch"] == pytest.approx(30 / 27), "27,000 events in 27 pieces"
    assert last["train_log_likelihood"] == pytest.approx(-1.0, abs=0.1), "nats per event of a piece"


def test_a_budget_counts_from_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparation that takes the whole budget leaves time for one step only."""
    now, original = [0.0], closed_forms.Poisson.maximum_likelihood

    def slow(self: Any, data: Dataset) -> list[str]:
        now[0] += 100.0
        return original(self, data)

    monkeypatch.setattr(closed_forms.Poisson, "maximum_likelihood", slow)
    monkeypatch.setattr(
        training, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    )
    model = DAPP(**TINY, link="exp")  # begins at no Hawkes process, which would be kept as it is
    done = fp.fit(model, simulate("hawkes", 60, seed=1), time_budget=50.0, progress=False)
    assert list(done.closed_forms) == ["poisson"] and done.stopped == "time budget"
    assert [row["step"] for row in done.history if row["step"]] == [1]


def test_a_budget_holds_with_what_follows_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a step takes a second, a score of the development data two, and a round
    of the simulated paths three.
    """
    now = [0.0]

    def slowed(owner: Any, name: str, seconds: float) -> None:
        original = getattr(owner, name)

        def slow(*given: Any, **more: Any) -> Any:
            now[0] += seconds
            return original(*given, **more)

        monkeypatch.setattr(owner, name, slow)

    slowed(training.Steps, "take", 1.0)
    slowed(training_run.Run, "score", 2.0)
    slowed(sampling, "_round", 3.0)
    monkeypatch.setattr(
        training, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    )
    data = simulate("hawkes", 60, seed=1)
    done = fp.fit(
        RMTPP(hidden=4),
        data,
        steps=10**6,
        time_budget=100.0,
        patience=99,
        baselines=False,
        progress=False,
    )
    assert done.stopped == "time budget" and done.history[-1]["step"] > 20
    assert 90.0 <= now[0] <= 103.0, "one round more than the budget"
    assert (
        "the time budget ended the search for explosive paths before it was complete" in done.notes
    )
