"""Search for settings under a budget."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import UserError
from fourpoint.ops.pairing import chosen_gain, paired_gain
from fourpoint.training import tuning

optuna = pytest.importorskip("optuna", reason="the extra tune is not installed")


@pytest.fixture(scope="module")
def parts():
    data = fp.simulate("hawkes", 60, seed=1)
    return data[:50], data[50:]


class Clock:
    """A clock on which each fit takes what its model is said to take."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def quick(monkeypatch):
    """Fits that take three seconds on a clock of their own, or all of their budget where their
    schedule is open, and few steps in fact. Each is noted with its budget and what it took.
    """
    clock = Clock()
    budgets = []
    real = tuning.fit

    def fit(model, train, dev, *, time_budget, folder, keep_going, epochs, **others):
        own = 3.0 if epochs is None else time_budget  # seconds of a whole schedule
        budgets.append((type(model).__name__, time_budget, min(own, time_budget)))
        clock.now += min(own, time_budget)
        others.pop("baselines")
        return real(
            *(model, train, dev),
            **others,
            steps=2,
            validate_every=1,
            baselines=False,
            folder=folder,
            keep_going=keep_going,
        )

    monkeypatch.setattr(tuning, "fit", fit)
    monkeypatch.setattr(tuning, "time", clock)
    return budgets


def test_the_first_fit_is_the_model_as_it_is_and_the_result_is_not_worse(parts, tmp_path, quick):
    found = fp.tune("rmtpp", *parts, budget=48.0, folder=tmp_path)
    assert found.tried[0].kind == "default" and found.tried[0].settings == {}
    assert found.best.score >= found.default.score and found.gain >= 0
    assert found.paired.mean == pytest.approx(found.gain, abs=1e-9)
    kinds = [one.kind for one in found.tried]
    assert kinds == ["default", *["trial"] * (len(kinds) - 2), "longer"]
    for place, one in enumerate(found.tried[1:-1], 1):
        before = found.tried[:place]
        changes = [len(one.settings.items() - other.settings.items()) for other in before]
        assert min(changes) <= tuning.CHANGES
    # Half for the first; trials with its schedule; three schedules are kept for the last one.
    budgets = [budget for _, budget, _ in quick]
    assert budgets[0] == 24.0 and set(budgets[1:-2]) == {4.5}
    assert sum(taken for _, _, taken in quick) == pytest.approx(48.0) and budgets[-1] >= 9.0
    kept = fp.restore(tmp_path / "model")
    score = fp.evaluate(kept, parts[1]).scores["window"].per_event
    assert score == pytest.approx(found.best.score, abs=1e-6)
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    assert len(lines) == len(found.tried) + 1


def test_the_choice_of_the_model_is_part_of_the_search(parts, tmp_path, quick, monkeypatch):
    """The second model is better here: trials and the last fit are of it."""
    monkeypatch.setattr(tuning, "AUTO", ("rmtpp", "nhp"))
    through = tuning.unit_log_likelihoods

    def scores(model, data):
        own, events = through(model, data)
        return own + events * isinstance(model, fp.NHP), events

    monkeypatch.setattr(tuning, "unit_log_likelihoods", scores)
    found = fp.tune("auto", *parts, budget=30.0, folder=tmp_path)
    kinds = [(one.kind, one.model) for one in found.tried]
    assert kinds[:3] == [("default", "rmtpp"), ("model", "nhp"), ("trial", "nhp")]
    assert kinds[-1] == ("longer", "nhp")
    assert found.default.model == "rmtpp" and found.best.model == "nhp"
    assert type(fp.restore(tmp_path / "model")) is fp.NHP
    assert 0 < found.corrected.low <= found.corrected.mean <= found.gain + 0.1
    assert "corrected for the choice among" in found.sentence


def test_time_for_one_more_schedule_goes_to_a_trial(parts, tmp_path, quick):
    found = fp.tune("rmtpp", *parts, budget=7.0, folder=tmp_path)
    assert [one.kind for one in found.tried] == ["default", "trial"]


def test_what_a_fit_took_beyond_its_budget_is_taken_from_the_next(parts, tmp_path, quick):
    """The first fit takes two seconds more than it is given."""
    search = tuning._Search("rmtpp", *parts, 9.0, tmp_path, "none", "cpu", 0, False)
    search._fit("default", "rmtpp", {}, 1.0)
    assert quick[-1][1] == 1.0 and search.over == 0.0
    search.over = 2.0
    search._fit("trial", "rmtpp", {}, 4.0)
    assert quick[-1][1] == 2.0


def test_a_fit_whose_paths_run_away_is_not_chosen(parts, tmp_path, quick, monkeypatch):
    through = tuning.fit

    def fit(model, *words, **settings):
        found = through(model, *words, **settings)
        found.explosive = "12 of 12 simulated paths" if isinstance(model, fp.NHP) else ""
        return found

    monkeypatch.setattr(tuning, "fit", fit)
    monkeypatch.setattr(tuning, "AUTO", ("rmtpp", "nhp"))
    found = fp.tune("auto", *parts, budget=8.0, folder=tmp_path)
    assert found.tried[1].model == "nhp" and found.tried[1].score is None
    assert found.tried[1].ended == "explosive: 12 of 12 simulated paths"
    assert found.best.model == "rmtpp"


def test_a_model_that_cannot_take_the_data_is_left_out(parts, tmp_path, quick, monkeypatch):
    through = tuning.fit

    def fit(model, *words, **settings):
        if isinstance(model, fp.NHP):
            raise UserError("a model with event features", "NHP", "Choose another.")
        return through(model, *words, **settings)

    monkeypatch.setattr(tuning, "fit", fit)
    monkeypatch.setattr(tuning, "AUTO", ("rmtpp", "nhp"))
    found = fp.tune("auto", *parts, budget=8.0, folder=tmp_path)
    assert found.tried[1].ended == "failed: NHP" and found.best.model == "rmtpp"
    monkeypatch.setattr(tuning, "AUTO", ("nhp", "rmtpp"))
    with pytest.raises(UserError, match="a model with event features"):
        fp.tune("auto", *parts, budget=8.0, folder=tmp_path / "other")


def test_a_gain_is_corrected_for_the_choice_of_the_best():
    """Twenty models of equal merit: the best has a gain by chance, and none after correction."""
    naive, corrected = [], []
    for seed in range(20):
        scores = np.random.default_rng(seed).normal(size=(20, 100))
        events = np.ones(100)
        best = int(scores.sum(1).argmax())
        naive.append(paired_gain(scores[best] - scores[0], events, seed).mean)
        corrected.append(chosen_gain(scores, events, 0, seed).mean)
    assert np.mean(naive) > 0.15
    assert abs(np.mean(corrected)) < 0.06  # three standard errors of a mean over twenty


def test_a_search_that_was_killed_goes_on(parts, tmp_path, quick, monkeypatch):
    """It is killed in its third fit; the first two are not repeated, their time counts."""
    through = tuning.fit
    calls = [0]

    def killed(*words, **settings):
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return through(*words, **settings)

    monkeypatch.setattr(tuning, "fit", killed)
    with pytest.raises(KeyboardInterrupt):
        fp.tune("rmtpp", *parts, budget=48.0, folder=tmp_path)
    first = list(quick)
    assert len(first) == 2 and (tmp_path / "model" / "model.json").exists()
    monkeypatch.setattr(tuning, "fit", through)
    found = fp.tune("rmtpp", *parts, budget=48.0, folder=tmp_path)
    assert [one.kind for one in found.tried][:2] == ["default", "trial"]
    assert sum(one.kind == "default" for one in found.tried) == 1
    assert sum(taken for _, _, taken in quick) == pytest.approx(48.0)
    settings = [tuple(one.settings.items()) for one in found.tried if one.kind == "trial"]
    assert len(set(settings)) == len(settings)
    again = fp.tune("rmtpp", *parts, budget=48.0, folder=tmp_path)
    assert len(again.tried) == len(found.tried)


def test_a_journal_of_another_search_is_refused(parts, tmp_path, quick):
    fp.tune("rmtpp", *parts, budget=4.0, folder=tmp_path)
    with pytest.raises(UserError, match="other training data"):
        fp.tune("rmtpp", parts[1], parts[1], budget=4.0, folder=tmp_path)
    with pytest.raises(UserError, match="a search with model rmtpp"):
        fp.tune("nhp", *parts, budget=4.0, folder=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "SCHEME", 99)
        with pytest.raises(UserError, match="a search of an earlier version"):
            fp.tune("rmtpp", *parts, budget=4.0, folder=tmp_path)


def test_a_trial_below_the_median_ends_early():
    curves = tuple((score,) * 20 for score in (0.0, 1.0, 2.0, 3.0))
    curve = []
    keep_going = tuning._noting(curve, curves)
    assert keep_going(0.1, -9.0)  # too early
    assert len(curve) == 3
    assert keep_going(0.5, 1.0)
    assert not keep_going(0.6, 0.5)
    few = tuning._noting([], curves[:1])
    assert few(0.5, -9.0)  # too few to compare with


@pytest.mark.parametrize("name", sorted(tuning.SPACES))
def test_every_proposal_builds_a_model(name, parts):
    """All values of every setting are ones that the model and `fit` take."""
    from fourpoint.training.fitting import RECIPE

    space = tuning.SPACES[name]
    for setting, choice in space.items():
        values = choice.values or (choice.low, choice.high)
        for value in values:
            if setting in RECIPE:
                assert value >= 0
            else:
                fp.MODELS[name](parts[0].marks, **{setting: value})


def test_what_cannot_be_tuned_is_refused(parts, tmp_path):
    with pytest.raises(UserError, match="a model to tune among"):
        fp.tune("poisson", *parts, budget=10.0, folder=tmp_path)
    with pytest.raises(UserError, match="a budget of at least a second"):
        fp.tune("dapp", *parts, budget=0.0, folder=tmp_path)


def test_training_can_be_stopped_from_outside(parts):
    seen = []

    def keep_going(share, score):
        seen.append((share, score))
        return len(seen) < 2

    model = fp.RMTPP(hidden=4)
    found = fp.fit(
        *(model, *parts),
        steps=10,
        validate_every=1,
        baselines=False,
        progress=False,
        keep_going=keep_going,
    )
    assert found.stopped == "stopped from outside"
    assert len(found.history) == len(seen) == 2
    assert 0 <= seen[0][0] < seen[1][0] < 1


def test_the_command(tmp_path, quick):
    run = CliRunner().invoke
    file = tmp_path / "h.parquet"
    assert run(app, ["simulate", "hawkes", "--sequences", "30", "-o", str(file)]).exit_code == 0
    folder = tmp_path / "tuned"
    words = ["--model", "rmtpp", "--budget", "1m", "-o", str(folder), "--json"]
    found = run(app, ["tune", str(file), *words])
    assert found.exit_code == 0, found.output
    numbers = json.loads(found.stdout)
    assert numbers["gain"] >= 0 and numbers["tried"][0]["kind"] == "default"
    assert numbers["paired"]["low"] <= numbers["gain"] <= numbers["paired"]["high"]
    page = (folder / "tune.html").read_text()
    assert "nats per event on dev" in page
    scored = run(app, ["evaluate", str(folder / "model"), str(file), "--split", "all", "--json"])
    assert scored.exit_code == 0, scored.output
    wrong = run(app, ["tune", str(file), "--budget", "soon", "-o", str(folder)])
    assert wrong.exit_code == 2
    shutil.rmtree(folder)
