"""A model knows what it was trained on, and a score of training data says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import Dataset, Sequence
from fourpoint.models import Hawkes, Poisson
from fourpoint.storage.trained_on import TrainedOn, held_out, overlap

TRUTH = Hawkes(baseline=0.5, branching=0.5, decay=1.0)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return fp.sample(TRUTH, 0.0, 20.0, 40, seed=1)


def run(*words: str) -> tuple[dict[str, object], str]:
    found = CliRunner().invoke(app, [*words, "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout), found.stderr


@pytest.fixture
def file(data: Dataset, tmp_path: Path) -> Path:
    fp.write(data, tmp_path / "events.parquet")
    return tmp_path / "events.parquet"


NETWORK = ["--set", "hidden=2", "--set", "steps=1", "--set", "baselines=false"]


def fitted(file: Path, model: str = "rmtpp") -> str:
    """A model of the events in ``file``; a network keeps some of them for early stopping, a closed
    form none.
    """
    folder = str(file.with_name("model"))
    more = NETWORK if model == "rmtpp" else []
    found = CliRunner().invoke(app, ["fit", str(file), "--model", model, "-o", folder, *more])
    assert found.exit_code == 0, found.output
    return folder


def test_evaluate_scores_what_fit_held_out(data: Dataset, file: Path) -> None:
    folder = fitted(file)
    numbers, said = run("evaluate", folder, str(file), "--no-fit-check")
    _, dev = data.split((0.9, 0.1), by="sequence", seed=0)
    assert numbers["sequences"] == len(dev) == 4 and numbers["events"] == dev.events
    assert "trained_on" not in numbers and "warning" not in said
    assert (
        f"scored: {dev.events} of {data.events} events in 4 of 40 sequences, which were "
        "held out from training"
    ) in said
    again, _ = run("evaluate", folder, str(file), "--no-fit-check", "--split", "held-out")
    assert again == numbers


def test_evaluate_warns_of_data_that_were_trained_on(data: Dataset, file: Path) -> None:
    folder = fitted(file)
    numbers, said = run("evaluate", folder, str(file), "--no-fit-check", "--split", "all")
    train, _ = data.split((0.9, 0.1), by="sequence", seed=0)
    assert numbers["events"] == data.events and numbers["trained_on"] == {
        "sequences": 36,
        "events": train.events,
    }
    assert (
        f"warning: 36 of 40 scored sequences ({train.events} of {data.events} events) were "
        "in the training data"
    ) in said


def test_a_closed_form_was_trained_on_everything(data: Dataset, file: Path) -> None:
    folder = fitted(file, "poisson")
    numbers, said = run("evaluate", folder, str(file), "--no-fit-check")
    assert numbers["trained_on"] == {"sequences": 40, "events": data.events}
    assert "warning: 40 of 40 scored sequences" in said


def test_evaluate_of_other_data_says_nothing(file: Path) -> None:
    folder = fitted(file)
    fp.write(fp.sample(TRUTH, 0.0, 20.0, 5, seed=2), file.with_name("new.parquet"))
    numbers, said = run("evaluate", folder, str(file.with_name("new.parquet")), "--no-fit-check")
    assert numbers["sequences"] == 5 and "trained" not in said and "trained_on" not in numbers


def test_evaluate_refuses_held_out_where_nothing_is(file: Path) -> None:
    folder = fitted(file)
    fp.write(fp.sample(TRUTH, 0.0, 20.0, 5, seed=2), file.with_name("new.parquet"))
    found = CliRunner().invoke(
        app, ["evaluate", folder, str(file.with_name("new.parquet")), "--split", "held-out"]
    )
    assert found.exit_code == 2 and "data of which the model was trained on a part" in found.stderr


def test_own_splits_are_scored_as_before(data: Dataset, file: Path) -> None:
    parts = np.array(["train"] * 20 + ["dev"] * 10 + ["test"] * 10)
    fp.write(replace(data, splits=parts), file)
    folder = fitted(file)
    numbers, said = run("evaluate", folder, str(file), "--no-fit-check")
    assert numbers["events"] == data[30:].events and "training" not in said
    numbers, said = run("evaluate", folder, str(file), "--no-fit-check", "--split", "train")
    assert (
        numbers["trained_on"] == {"sequences": 20, "events": data[:20].events}
        and "warning: 20 of 20" in said
    )


def test_one_long_log_is_scored_after_what_was_trained_on(tmp_path: Path) -> None:
    log = fp.sample(TRUTH, 0.0, 400.0, 1, seed=3)
    fp.write(log, tmp_path / "log.parquet")
    folder = fitted(tmp_path / "log.parquet")
    numbers, said = run("evaluate", folder, str(tmp_path / "log.parquet"), "--no-fit-check")
    late = int((log.times >= 360.0).sum())
    assert (
        numbers["events"] == late
        and f"scored: {late} of {log.events} events in 1 of 1 sequences (the end of a sequence"
        in said
    )
    expected = fp.evaluate(fp.restore(folder), log.split_at([360.0])[1])
    assert numbers["log_likelihood_per_event"] == pytest.approx(
        expected.to_dict()["log_likelihood_per_event"], rel=1e-12
    )
    everything, said = run(
        "evaluate", folder, str(tmp_path / "log.parquet"), "--no-fit-check", "--split", "all"
    )
    assert (
        everything["trained_on"] == {"sequences": 1, "events": log.events - late}
        and "warning: 1 of 1" in said
    )


def test_last_event_of_an_inferred_window_is_scored(tmp_path: Path) -> None:
    times = fp.sample(TRUTH, 0.0, 200.0, 1, seed=5).times
    (tmp_path / "log.csv").write_text("\n".join(["t", *map(str, times.tolist())]) + "\n")
    folder = fitted(tmp_path / "log.csv")
    numbers, said = run("evaluate", folder, str(tmp_path / "log.csv"), "--no-fit-check")
    late = int((times >= 0.9 * times[-1]).sum())
    assert numbers["events"] == late and "held out from training" in said


def test_report_has_a_note(data: Dataset, tmp_path: Path) -> None:
    train, dev, test = data.split()
    model = Poisson()
    fp.fit(model, train, dev, progress=False)
    assert "note: 32 of 32 scored sequences" in " ".join(str(fp.evaluate(model, train)).split())
    assert "trained_on" not in fp.evaluate(model, test).to_dict() and "note" not in str(
        fp.evaluate(model, test)
    )
    kept = fp.restore(fp.save(model, tmp_path / "model"))
    assert fp.evaluate(kept, train).to_dict()["trained_on"] == {
        "sequences": 32,
        "events": train.events,
    }
    assert overlap(Poisson(), train) is None


def test_places_marks_and_ids_are_part_of_a_sequence(data: Dataset) -> None:
    known = TrainedOn.of(data[:1], data[1:2])
    model = Poisson()
    model.trained_on = known
    other = Sequence(data[0].times, stop=20.0, id="another")
    marked = Sequence(data[0].times, np.ones(len(data[0]), dtype=np.int64), stop=20.0, space=2)
    for sequence in (other, marked):
        assert overlap(model, Dataset.from_sequences([sequence])) is None
    assert overlap(model, data[:1]) is not None


def test_silent_sequences_of_training_are_not_held_out() -> None:
    """Of many customers without purchases nine in ten are trained on; held-out scores that counted
    all of them would be those of a group that buys less.
    """
    rows = [
        Sequence([1.0, 2.0], start=0.0, stop=5.0, id="a"),
        Sequence([], start=0.0, stop=5.0, id="b"),
    ]
    rows += [
        Sequence([], start=0.0, stop=5.0, id="c"),
        Sequence([3.0], start=0.0, stop=5.0, id="d"),
    ]
    data = Dataset.from_sequences(rows)
    model = Poisson()
    model.trained_on = TrainedOn.of(data[:2], data[3:])
    kept = held_out(model, data)
    assert kept is not None and kept.ids == ("c", "d")
    model.trained_on = TrainedOn.of(data, data)
    assert held_out(model, data) is None


def test_what_is_stored_is_read_again_and_damage_is_no_knowledge(data: Dataset) -> None:
    known = TrainedOn.of(data[:1], data[1:])
    again = TrainedOn.from_dict(json.loads(json.dumps(known.to_dict())))
    assert again is not None and again.beginnings == known.beginnings
    assert np.array_equal(again.train, known.train) and np.array_equal(again.dev, known.dev)
    for wrong in (
        None,
        {},
        [],
        {"train": "!", "dev": "", "beginnings": []},
        {"train": 1, "dev": 2, "beginnings": 3},
    ):
        assert TrainedOn.from_dict(wrong) is None
