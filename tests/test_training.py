"""Training: it learns, repeats itself, survives being killed, and stops aloud where it cannot go
on.
"""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fourpoint.data.synthetic import simulate
from fourpoint.events import Batch, Dataset, Sequence, UserError
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models import DAPP, RMTPP, DeepDAPP, Hawkes, Poisson
from fourpoint.storage import checkpoints
from fourpoint.training import fitting as training, run as training_run, steps as training_steps
from fourpoint.training.cuda import CapturedSteps, Resident
from fourpoint.training.fitting import (
    RECIPE,
    Fit,
    TrainingError,
    _batch_for,
    _groups,
    _in_full,
    fit,
)
from fourpoint.training.run import COLUMNS, Recipe, Run
from fourpoint.training.sources import InMemory
from fourpoint.training.steps import Steps

SMALL: dict[str, Any] = dict(heads=2, features=4, eval_features=8, generator=(4,), knots=3)
SHORT: dict[str, Any] = dict(
    steps=12,
    batch_size=16,
    learning_rate=1e-2,
    warmup=2,
    nodes=2,
    validate_every=3,
    patience=99,
    seed=5,
    progress=False,
    baselines=False,
)


def data() -> Dataset:
    return simulate("hawkes", 60, seed=1)


def _counted(recipe: Recipe, train: Dataset) -> Recipe:
    source = InMemory(train, recipe.batch_size, recipe.mixed, seed=3)
    return _in_full(recipe, source, often=True)


def tiny(**settings: Any) -> DAPP:
    return DAPP(**{**SMALL, **settings})


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.fixture(scope="module")
def unbroken() -> tuple[DAPP, Fit]:
    model = tiny()
    return model, fit(model, data(), **SHORT)


# ---------------------------------------------------------------------- it learns


def test_fit_improves_on_its_start() -> None:
    train, test = simulate("hawkes", 300, seed=2), simulate("hawkes", 100, seed=3).batch()
    model = tiny(base="constant", drift="none", eval_features=32)
    model.initialise(train)
    before = log_likelihood(model.eval(), test).per_event
    done = fit(
        model,
        train,
        steps=200,
        batch_size=32,
        learning_rate=5e-2,
        warmup=20,
        validate_every=50,
        progress=False,
    )
    assert log_likelihood(model, test).per_event > before + 0.005
    assert not model.training and done.stopped == "all steps done"


def test_the_history_has_its_columns_and_the_folder_its_files(tmp_path: Path) -> None:
    done = fit(tiny(), data(), folder=tmp_path, **SHORT)
    rows = list(csv.DictReader((tmp_path / "history.csv").read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert COLUMNS == (
        "step",
        "epoch",
        "seconds",
        "train_log_likelihood",
        "dev_log_likelihood",
        "events_per_second",
        "learning_rate",
    )
    assert [int(r["step"]) for r in rows] == [3, 6, 9, 12] == [r["step"] for r in done.history]
    assert all(math.isfinite(float(value)) for row in rows for value in row.values())
    assert (tmp_path / "history.csv").read_text() == done.csv()
    assert sorted(p.name.split("-")[0] for p in tmp_path.iterdir()) == [
        "history.csv",
        "model",
        "model.json",
    ]


def shared_out(per_event: float, data: Dataset) -> torch.Tensor:
    """Scores of the sequences that add up to ``per_event``, all alike."""
    return torch.full((len(data),), per_event * data.events / len(data), dtype=torch.float64)


def test_a_draw_goes_to_the_later_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A score within half a standard error of the best is a draw; one below that is not."""
    plans = iter([(-1.0, 0.0), (-1.001, 1.0), (-3.0, 0.0)])

    def score(_: torch.nn.Module, data: Dataset, *rest: Any) -> torch.Tensor:
        value, spread = next(plans)
        noise = torch.linspace(-spread, spread, len(data), dtype=torch.float64)
        return shared_out(value, data) + noise

    monkeypatch.setattr(training_run, "unit_scores", score)
    done = fit(tiny(), data(), **{**SHORT, "steps": 9, "patience": 9})
    assert [row["step"] for row in done.history] == [3, 6, 9]
    assert done.best == pytest.approx(-1.0) and done.best_step == 6


def test_best_weights_are_kept_and_patience_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    scores = iter([-1.0, -0.5, -2.0, -0.7, -9.0])

    def score(model: torch.nn.Module, data: Dataset, *rest: Any) -> torch.Tensor:
        seen.append({k: v.detach().clone() for k, v in model.named_parameters()})
        return shared_out(next(scores), data)

    monkeypatch.setattr(training_run, "unit_scores", score)
    model = tiny()
    done = fit(model, data(), **{**SHORT, "steps": 99, "patience": 2})
    assert done.stopped == "no better validation" and len(done.history) == 4
    assert done.best_step == 6 and done.best == pytest.approx(-0.5)
    assert all(
        torch.equal(parameter, seen[1][name]) for name, parameter in model.named_parameters()
    )


def test_a_time_budget_ends_the_run_and_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each step takes a second."""
    now, take = [0.0], Steps.take

    def taken(*inputs: Any) -> Any:
        now[0] += 1.0
        return take(*inputs)

    monkeypatch.setattr(Steps, "take", taken)
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now[0]))
    done = fit(tiny(), data(), **{**SHORT, "steps": 10**7, "time_budget": 5.5, "device": "cpu"})
    assert done.stopped == "time budget"
    assert [(row["step"], row["seconds"]) for row in done.history] == [
        (n, float(n)) for n in range(1, 7)
    ], "a 40th of the time apart"
    pace = [
        (0.5 if n == 0 else 1.0) * (1 + math.cos(math.pi * n / (0.92 * 5.5))) / 2 for n in range(6)
    ]  # two steps of warm-up
    assert [row["learning_rate"] for row in done.history] == pytest.approx(
        [1e-2 * share for share in pace]
    )


def test_direct_maximum_likelihood_takes_no_steps(tmp_path: Path) -> None:
    for model in (Poisson(), Hawkes()):
        done = fit(model, data(), folder=tmp_path / type(model).__name__, progress=False)
        assert done.stopped == "maximum likelihood" and len(done.history) == 1
        assert same(checkpoints.restore(tmp_path / type(model).__name__), model)


def test_the_bar_can_be_shown(capfd: pytest.CaptureFixture[str]) -> None:
    shown = tiny()
    fit(shown, data(), **{**SHORT, "progress": True})
    assert capfd.readouterr().out == ""


# ---------------------------------------------------------------------- it repeats itself


def test_one_seed_gives_one_result(unbroken: tuple[DAPP, Fit]) -> None:
    again, other = tiny(), tiny()
    history = fit(again, data(), **SHORT).history
    fit(other, data(), **{**SHORT, "seed": 6})
    assert same(again, unbroken[0]) and not same(other, unbroken[0])
    for name in ("train_log_likelihood", "dev_log_likelihood", "learning_rate"):
        assert [r[name] for r in history] == [r[name] for r in unbroken[1].history]


KILLED = """
import os, signal
from fourpoint.training import fitting as training, run as training_run
from fourpoint.data.synthetic import simulate
from fourpoint.models import DAPP

validate, calls = training_run.Run.validate, []

def then_die(self, *inputs):
    validate(self, *inputs)
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

training_run.Run.validate = then_die
training.fit(DAPP(**{small}), simulate("hawkes", 60, seed=1), folder={folder!r}, **{short})
"""


def test_a_killed_run_goes_on_to_the_same_weights(
    tmp_path: Path, root: Path, unbroken: tuple[DAPP, Fit]
) -> None:
    script = KILLED.format(small=SMALL, short=SHORT, folder=str(tmp_path))
    path = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
    died = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=300,
    )
    assert died.returncode == -9, died.stderr.decode()
    assert (tmp_path / "training.json").is_file()
    checkpoints.restore(tmp_path)
    model = tiny()
    done = fit(model, data(), folder=tmp_path, resume=True, **SHORT)
    assert "resumed at step 6" in done.notes
    assert same(model, unbroken[0])
    assert [r["dev_log_likelihood"] for r in done.history] == [
        r["dev_log_likelihood"] for r in unbroken[1].history
    ]
    assert [r["train_log_likelihood"] for r in done.history] == [
        r["train_log_likelihood"] for r in unbroken[1].history
    ]
    assert done.best_step == unbroken[1].best_step and not (tmp_path / "training.json").exists()


class Stop(BaseException):
    """Stands for a kill at a moment of our choice."""


def interrupted(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Any, **settings: Any
) -> None:
    """Fit until ``owner.name`` is called with arguments for which ``when`` holds."""
    original = getattr(owner, name)

    def stop(*inputs: Any, **named: Any) -> Any:
        if when(*inputs):
            raise Stop
        return original(*inputs, **named)

    with monkeypatch.context() as m:
        m.setattr(owner, name, stop)
        with pytest.raises(Stop):
            fit(tiny(), data(), **{**SHORT, **settings})


def test_killed_between_the_first_model_and_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: tuple[DAPP, Fit]
) -> None:
    """Then there is a model but no step to go on from: the run starts again, and is not taken for a
    finished one.
    """

    def at_the_first_state(
        folder: Path, name: str, tensors: dict[str, torch.Tensor], info: Any
    ) -> bool:
        return name == "training" and bool(tensors)

    interrupted(monkeypatch, checkpoints, "write_tensors", at_the_first_state, folder=tmp_path)
    assert (tmp_path / "model.json").is_file() and json.loads(
        (tmp_path / "training.json").read_text()
    )["step"] == 0
    model = tiny()
    done = fit(model, data(), folder=tmp_path, resume=True, **SHORT)
    assert (
        same(model, unbroken[0])
        and done.notes.count("nothing to resume: starting from the beginning") == 1
    )


def test_killed_after_patience_ran_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that had only to finish does not learn any further."""
    dev = iter([-1.0, -2.0, -3.0, 0.0, 0.0])
    monkeypatch.setattr(
        training_run, "unit_scores", lambda _, data, *__: shared_out(next(dev), data)
    )
    interrupted(
        monkeypatch, training_run.Run, "finish", lambda *_: True, folder=tmp_path, patience=2
    )
    model = tiny()
    done = fit(model, data(), folder=tmp_path, resume=True, **{**SHORT, "patience": 2})
    assert done.stopped == "no better validation" and done.best_step == 3 and len(done.history) == 3


def test_a_finished_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    for name, build in (
        ("fixed", tiny),
        ("settled", lambda: tiny(eval_features=None)),
        ("hawkes", Hawkes),
    ):
        first, second = build(), build()
        fit(first, data(), folder=tmp_path / name, **SHORT)
        done = fit(second, data(), folder=tmp_path / name, resume=True, **SHORT)
        assert same(first, second) and first.settings() == second.settings() and not second.training
        assert (
            "nothing to resume: the run in this folder had ended" in done.notes
            and done.history == []
        )


def test_resuming_nothing_starts_from_the_beginning(
    tmp_path: Path, unbroken: tuple[DAPP, Fit]
) -> None:
    model = tiny()
    done = fit(model, data(), folder=tmp_path / "new", resume=True, **SHORT)
    assert "nothing to resume: starting from the beginning" in done.notes and same(
        model, unbroken[0]
    )


def test_the_running_mean_is_kept_and_a_killed_run_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {**SHORT, "average": 0.9}
    whole, halved = tiny(), tiny()
    fit(whole, data(), **short)
    interrupted(
        monkeypatch,
        training_run.Run,
        "stale",
        lambda self: len(self.fit.history) == 2,
        folder=tmp_path,
        average=0.9,
    )
    fit(halved, data(), folder=tmp_path, resume=True, **short)
    assert same(whole, halved)
    plain = tiny()
    fit(plain, data(), **SHORT)
    assert not same(whole, plain)


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.5), ("steps", 99), ("seed", 6), ("batch_size", 7)]
)
def test_resuming_with_another_recipe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    interrupted(
        monkeypatch, training_run.Run, "stale", lambda self: bool(self.fit.history), folder=tmp_path
    )
    message = (
        rf"expected {name}={SHORT[name]}, as in the run to resume; received {value}\. Repeat the "
        r"first call"
    )
    with pytest.raises(TrainingError, match=message):
        fit(tiny(), data(), folder=tmp_path, resume=True, **{**SHORT, name: value})
    fit(tiny(), data(), folder=tmp_path, resume=True, **SHORT)
    with pytest.raises(TrainingError, match=f"expected {name}="):
        fit(tiny(), data(), folder=tmp_path, resume=True, **{**SHORT, name: value})


def test_resuming_with_another_model_is_refused(tmp_path: Path) -> None:
    fit(tiny(), data(), folder=tmp_path, **SHORT)
    with pytest.raises(TrainingError, match="expected model=.*, as in the run to resume"):
        fit(tiny(heads=3), data(), folder=tmp_path, resume=True, **SHORT)


# ---------------------------------------------------------------------- it stops aloud


def test_a_loss_that_is_not_finite_names_step_sequences_and_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = training_steps.sampled_log_likelihood, []

    def poisoned(model: Any, *inputs: Any, **more: Any) -> torch.Tensor:
        calls.append(1)
        value = original(model, *inputs, **more)
        return value + model.modes.log_decay.sum() * math.nan if len(calls) == 8 else value

    monkeypatch.setattr(training_steps, "sampled_log_likelihood", poisoned)
    with pytest.raises(TrainingError) as caught:
        fit(tiny(), data(), folder=tmp_path, **SHORT)
    message = str(caught.value)
    assert message.startswith("expected a finite loss; received nan at step 7 on sequences ")
    assert (
        "; the gradient of modes.log_decay is not finite. Lower learning_rate" in message
        and "the best model so far is kept" in message
    )
    kept = checkpoints.restore(tmp_path)
    assert all(p.isfinite().all() for p in kept.parameters())
    assert math.isfinite(log_likelihood(kept, data().batch()).per_event)
    monkeypatch.undo()
    assert fit(tiny(), data(), folder=tmp_path, resume=True, **SHORT).stopped == "all steps done"


def test_the_named_sequences_are_those_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Dataset.from_sequences(
        [
            Sequence([0.1, 0.2], start=0, stop=1, id="monday"),
            Sequence([0.3], start=0, stop=1, id="tuesday"),
        ]
    )
    monkeypatch.setattr(
        training_steps, "sampled_log_likelihood", lambda model, *_, **__: model.rate.bias * math.inf
    )
    with pytest.raises(
        TrainingError, match=r"at step 0 on sequences (monday, tuesday|tuesday, monday);"
    ):
        fit(tiny(), one, one, **SHORT)


def test_data_that_cannot_be_fitted_is_refused() -> None:
    empty = Dataset.from_sequences([Sequence([], start=0, stop=1)])
    with pytest.raises(
        TrainingError,
        match="expected training data with events; received 1 sequences without one. Check",
    ):
        fit(tiny(), empty)
    with pytest.raises(
        UserError,
        match="expected data with 3 types, as the model has; received no marks. Use data of the",
    ):
        fit(DAPP(3, **SMALL), data())
    with pytest.raises(
        TrainingError,
        match="expected positive steps, batch_size and time_budget; received 0, 64, None. Raise",
    ):
        fit(tiny(), data(), steps=0, batch_size=64)
    with pytest.raises(
        TrainingError,
        match="expected positive steps, batch_size and time_budget; received 9, 0, None. Raise",
    ):
        fit(tiny(), data(), steps=9, batch_size=0)


def test_resident_data_give_the_batches_of_the_data_set() -> None:
    whole = simulate("hawkes", 20, seed=3)
    held, rows = Resident(whole, torch.device("cpu")), [4, 0, 19]
    ours, plain = held.batch(torch.tensor([*rows, len(whole)]), 64), whole.batch(rows)
    n = plain.times.shape[1]
    for name in ("times", "marks", "valid"):
        assert torch.equal(getattr(ours, name)[:3, :n], getattr(plain, name))
    assert torch.equal(ours.stop[:3], plain.stop)
    assert not ours.valid[3].any() and ours.start[3] == ours.stop[3]
    assert not ours.valid[:, n:].any()


def test_steps_on_resident_data_are_plain_steps() -> None:
    """Steps of `training_cuda`, as they run before they are recorded, move the weights of a model
    that draws nothing as plain ones do.
    """
    found = []
    for kind in (Steps, CapturedSteps):
        model, train = RMTPP(hidden=4), data()
        model.initialise(train)
        recipe = _counted(Recipe(**{**RECIPE, "batch_size": 16, "steps": 6}), train)
        run = Run(model, train, train, None, 3, recipe, dict(convention="window"))
        steps = kind(
            run,
            torch.optim.AdamW(_groups(model, recipe), betas=(0.9, 0.99), fused=True),
            recipe,
            "window",
        )
        for step in range(6):
            steps.take(step, 0.01)
        found.append((steps.drain(), [p.detach().clone() for p in model.parameters()]))
        assert steps.drain() == []
    assert len(found[0][0]) == 6
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    for ours, theirs in zip(*(weights for _, weights in found), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_batches_are_smaller_where_sequences_are_long() -> None:
    """On a processor by the events of a step; on an accelerator also by the steps of an epoch."""

    def batches(sequences: int, events: int) -> list[int]:
        times = [float(t) for t in range(1, events + 1)]
        few = Dataset.from_sequences([Sequence(times, start=0.0, stop=events + 1.0)] * sequences)
        return [_batch_for(few, 600, torch.device(kind)) for kind in ("cpu", "cuda")]

    assert batches(300, 5) == [64, 64]
    assert batches(300, 50) == [12, 64]
    assert batches(50, 50) == [12, 64]
    assert batches(12, 2000) == [1, 3]
    assert batches(3, 3000) == [1, 1]


def test_a_time_budget_that_ends_training_early_is_said() -> None:
    found = fit(RMTPP(hidden=4), data(), steps=100_000, time_budget=0.2, progress=False)
    assert found.stopped == "time budget" and any(
        "of 100,000 steps: a longer budget may improve the result" in note for note in found.notes
    )


@pytest.mark.parametrize("kind", [Steps, CapturedSteps])
def test_steps_show_events_inside_their_ticks(
    kind: type[Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anew in every step, and the same again from the same seed."""
    sequences = [
        Sequence([1.0, 1.0, 4.0, 9.0], start=0.0, stop=10.0),
        Sequence([2.0, 3.0], start=0.0, stop=10.0),
    ]
    train, shown = Dataset.from_sequences(sequences), list[torch.Tensor]()
    original = training_steps.sampled_log_likelihood

    def seen(model: Any, batch: Any, *rest: Any, **more: Any) -> torch.Tensor:
        shown.append(batch.times[batch.valid].sort().values)
        return original(model, batch, *rest, **more)

    monkeypatch.setattr(training_steps, "sampled_log_likelihood", seen)
    for tick in (1.0, 1.0, 0.0):
        model = RMTPP(hidden=4)
        model.initialise(train)
        recipe = _counted(Recipe(**{**RECIPE, "batch_size": 2, "steps": 2}), train)
        run = Run(model, train, train, None, 3, recipe, dict(convention="window"))
        run.resolution = tick
        steps = kind(run, torch.optim.AdamW(_groups(model, recipe), fused=True), recipe, "window")
        for step in range(2):
            steps.take(step, 0.01)
    first, second, again, more, *plain = shown
    raw = torch.tensor([1.0, 1.0, 2.0, 3.0, 4.0, 9.0], dtype=torch.float64)
    assert (
        torch.equal(first, again) and torch.equal(second, more) and not torch.equal(first, second)
    )
    assert all(torch.equal(times, raw) for times in plain)
    assert bool(((first - raw).abs() <= 0.5).all()) and float((first - raw).abs().max()) > 0.1


def test_a_loss_on_resident_data_that_is_not_finite_names_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, train = RMTPP(hidden=4), data()
    recipe = _counted(Recipe(**{**RECIPE, "batch_size": 16, "steps": 6}), train)
    run = Run(model, train, train, None, 3, recipe, dict(convention="window"))
    steps = CapturedSteps(
        run, torch.optim.AdamW(_groups(model, recipe), fused=True), recipe, "window"
    )
    steps.take(4, 0.01)
    original = training_steps.sampled_log_likelihood
    monkeypatch.setattr(
        training_steps, "sampled_log_likelihood", lambda *a, **k: math.nan * original(*a, **k)
    )
    steps.take(5, 0.01)
    with pytest.raises(TrainingError, match="nan at step 5"):
        steps.drain()


def test_a_first_guess_is_kept_where_training_finds_nothing_better(tmp_path: Path) -> None:
    train, dev = simulate("hawkes", 1000, seed=1), simulate("hawkes", 300, seed=2)
    short: dict[str, Any] = dict(
        steps=4,
        batch_size=8,
        learning_rate=1.0,
        warmup=1,
        nodes=2,
        validate_every=2,
        baselines=False,
        progress=False,
    )
    model = DAPP(**SMALL)
    done = fit(model, train, dev, folder=tmp_path, **short)
    assert done.history[0]["step"] == 0 and done.best_step == 0
    assert any("initial fit, which is kept" in note for note in done.notes)
    fresh = DAPP(**SMALL)
    fresh.initialise(train)
    assert fresh.first_guess is not None
    for name, ours in model.named_parameters():
        assert torch.equal(ours, fresh.first_guess[name])


def test_a_first_guess_is_left_for_something_better() -> None:
    model, train = DAPP(**SMALL), simulate("hawkes", 1000, seed=1)
    original = model.initialise

    def spoiled(data: Dataset) -> list[str]:
        notes = original(data)
        assert model.first_guess is not None
        model.first_guess["rate.baseline.log_base"] += 3.0
        return notes

    model.initialise = spoiled
    done = fit(
        model,
        train,
        steps=40,
        batch_size=64,
        warmup=2,
        nodes=2,
        validate_every=20,
        baselines=False,
        progress=False,
    )
    assert done.best_step > 0


def test_a_step_too_large_for_the_device_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model, train = RMTPP(hidden=4), data()
    recipe = _counted(Recipe(**{**RECIPE, "batch_size": 16, "steps": 6}), train)
    run = Run(model, train, train, None, 3, recipe, dict(convention="window"))
    steps = CapturedSteps(
        run, torch.optim.AdamW(_groups(model, recipe), fused=True), recipe, "window"
    )

    def full(*given: object, **more: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(training_steps, "sampled_log_likelihood", full)
    with pytest.raises(
        TrainingError,
        match="expected steps that fit .* one sequence at a time .* Choose a smaller model",
    ):
        steps.take(0, 0.01)


def test_a_batch_that_does_not_fit_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    train, whole, largest = data(), training_steps.sampled_log_likelihood, []

    def after_steps(most: int) -> tuple[list[torch.Tensor], list[float], list[str]]:
        def room_for_few(model: Any, batch: Batch, *given: Any, **more: Any) -> torch.Tensor:
            if len(batch.times) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            largest.append(len(batch.times))
            return whole(model, batch, *given, **more)

        monkeypatch.setattr(training_steps, "sampled_log_likelihood", room_for_few)
        model = RMTPP(hidden=4, seed=0)
        model.initialise(train)
        recipe = _counted(Recipe(**{**RECIPE, "batch_size": 16, "steps": 6}), train)
        run = Run(model, train, train, None, 3, recipe, dict(convention="window"))
        steps = CapturedSteps(
            run, torch.optim.AdamW(_groups(model, recipe), fused=True), recipe, "window"
        )
        for step in range(3):
            steps.take(step, 0.01)
        return [p.detach().clone() for p in model.parameters()], steps.drain(), steps.close()

    at_once, losses, _ = after_steps(1000)
    in_parts, same, notes = after_steps(3)
    assert max(largest[-4:]) <= 3 and any("in up to 8 parts" in note for note in notes)
    assert losses == pytest.approx(same, rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(at_once, in_parts, strict=True))


@pytest.mark.parametrize("name", ["THP", "SAHP"])
def test_weights_do_not_depend_on_the_number_of_threads(name: str) -> None:
    """With dropout these models train by torch's own operations, whose sums are shared out among
    threads.
    """
    import fourpoint.models as models

    data, before, found = simulate("hawkes", 80), torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            model = getattr(models, name)(dropout=0.1)
            fit(model, data, steps=3, batch_size=64, progress=False, baselines=False)
            assert torch.get_num_threads() == threads
            found.append(model.state_dict())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_steps_of_deep_dapp_do_not_depend_on_the_number_of_threads() -> None:
    """Its steps may have several threads; the gradients of tokens and of layer normalisation must
    not show how many.
    """
    train, before, found = simulate("hawkes", 80), torch.get_num_threads(), []
    recipe = _counted(Recipe(**{**RECIPE, "batch_size": 80, "steps": 2}), train)
    for threads in (1, 2):
        model = DeepDAPP(layers=1, width=32, modes=8)
        model.initialise(train)
        run = Run(model, train, train, None, 0, recipe, dict(convention="window"))
        steps = Steps(run, torch.optim.AdamW(_groups(model, recipe), fused=True), recipe, "window")
        torch.set_num_threads(threads)
        try:
            steps.take(0, 0.01)
            steps.take(1, 0.01)
        finally:
            torch.set_num_threads(before)
        found.append(model)
    assert same(*found)
