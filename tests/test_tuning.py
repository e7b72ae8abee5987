"""Search for settings under a budget."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import UserError
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
    """Fits that take all of their budget on a clock of their own, and few steps in fact."""
    clock = Clock()
    budgets = []
    real = tuning.fit

    def fit(model, train, dev, *, time_budget, folder, keep_going, **others):
        budgets.append(time_budget)
        clock.now += time_budget
        others.pop("baselines")
        others.pop("epochs")
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
    kinds = [one.kind for one in found.tried]
    assert found.tried[1].kind == "trial" and found.tried[1].settings == {}
    for one in found.tried[2:-1]:
        others = [other.settings for other in found.tried[1 : found.tried.index(one)]]
        changes = [len(one.settings.items() - other.items()) for other in others]
        assert min(changes) <= tuning.CHANGES
    assert kinds.count("trial") >= 4 and kinds.count("final") == 1 and kinds[-1] == "final"
    # A third for the first, a sixteenth for each trial, the rest for the last; never more in all.
    assert quick[0] == 16.0 and set(quick[1:-1]) == {3.0}
    assert sum(quick) == pytest.approx(48.0)
    kept = fp.restore(tmp_path / "model")
    score = fp.evaluate(kept, parts[1]).scores["window"].per_event
    assert score == pytest.approx(found.best.score, abs=1e-6)
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    assert len(lines) == len(found.tried) + 1
    assert not (tmp_path / "fit").exists()


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
    assert sum(quick) == pytest.approx(48.0)
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


def test_a_trial_below_the_median_ends_early(parts, tmp_path, quick):
    curves = tuple((score,) * 20 for score in (0.0, 1.0, 2.0, 3.0))
    curve = []
    keep_going = tuning._promising(curve, curves)
    assert keep_going(0.1, 2.5)
    assert len(curve) == 3
    assert not keep_going(0.5, 1.5)
    few = tuning._promising([], curves[:3])
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
    page = (folder / "tune.html").read_text()
    assert "nats per event on dev" in page
    scored = run(app, ["evaluate", str(folder / "model"), str(file), "--split", "all", "--json"])
    assert scored.exit_code == 0, scored.output
    wrong = run(app, ["tune", str(file), "--budget", "soon", "-o", str(folder)])
    assert wrong.exit_code == 2
    shutil.rmtree(folder)
