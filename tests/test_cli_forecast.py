"""The commands that look ahead and back: simulate from a folder, forecast, explain, and the new
blocks of evaluate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import csv
from typer.testing import CliRunner

import fourpoint
from fourpoint.cli import main as cli, reading as cli_reading
from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.explaining import explain
from fourpoint.models import CATALOGUE, DAPP, MODELS, Hawkes, Poisson
from fourpoint.storage.checkpoints import save

RUN = CliRunner()
MARKS = MarkSpace.categorical(["fire", "medical"])
WINDOW = {"unit": "hours", "start": 0.0, "stop": 10.0}


def call(*words: object, code: int = 0) -> Any:
    result = RUN.invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    return result


def refused(tmp_path: Path, *words: object) -> str:
    """The error, after checking that it has three clauses and exit code 2, and that nothing was
    written.
    """
    before = sorted(tmp_path.rglob("*"))
    result = call(*words, code=2)
    lines = result.stderr.strip().splitlines()
    assert [line.split(":")[0].strip() for line in lines[-3:]] == [
        "expected",
        "received",
        "what to do",
    ], result.stderr
    assert all(line.split(":", 1)[1].strip() for line in lines[-3:])
    assert (
        "Traceback" not in result.stderr
        and result.stdout == ""
        and sorted(tmp_path.rglob("*")) == before
    )
    return result.stderr


def strict(text: str) -> Any:
    """JSON without the words that only Python reads."""

    def fail(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=fail)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A marked data set, a Hawkes model of its kind, and models of other kinds."""
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.uniform(0, 10, 12)) for _ in range(20)]
    sequences = [
        Sequence(t, rng.integers(0, 2, len(t)), start=0, stop=10, space=MARKS, id=f"day-{i}")
        for i, t in enumerate(rows)
    ]
    fourpoint.write(Dataset.from_sequences(sequences, unit="hours"), tmp_path / "calls.parquet")
    save(Hawkes(MARKS, baseline=0.5, branching=0.2, decay=1.0), tmp_path / "model", about=WINDOW)
    save(Poisson(), tmp_path / "unmarked", about=WINDOW)
    save(Poisson(MarkSpace.categorical(["red", "green"])), tmp_path / "colours")
    return tmp_path


# ---------------------------------------------------------------------- simulate


def test_simulate_draws_from_a_fitted_model_in_its_training_window(place: Path) -> None:
    told = call(
        "simulate", place / "model", "--sequences", 30, "--seed", 2, "-o", place / "a.parquet"
    ).stdout
    drawn = fourpoint.read(place / "a.parquet")
    assert (
        len(drawn) == 30
        and drawn.marks == MARKS
        and drawn.unit == "hours"
        and "candidates accepted" in told
    )
    assert set(drawn.starts) == {0.0} and set(drawn.stops) == {10.0}
    call("simulate", place / "model", "--sequences", 30, "--seed", 2, "-o", place / "b.parquet")
    assert fourpoint.read(place / "b.parquet").times.tolist() == drawn.times.tolist()
    call(
        "simulate",
        place / "model",
        "--sequences",
        5,
        "--start",
        4,
        "--stop",
        24,
        "-o",
        place / "c.parquet",
    )
    assert (
        fourpoint.read(place / "c.parquet").starts[0] == 4
        and fourpoint.read(place / "c.parquet").stops[0] == 24
    )
    capped = call(
        "simulate", place / "model", "--sequences", 5, "--most", 2, "-o", place / "d.parquet"
    ).stdout
    assert "5 paths capped" in capped and fourpoint.read(place / "d.parquet").lengths.max() == 2


def test_simulate_takes_a_longer_window_for_a_process(tmp_path: Path) -> None:
    call("simulate", "hawkes", "--sequences", 5, "--stop", 3, "-o", tmp_path / "h.parquet")
    assert fourpoint.read(tmp_path / "h.parquet").stops[0] == 3


def test_simulate_refuses_what_it_would_ignore(place: Path) -> None:
    out = ["-o", place / "a.parquet"]
    assert "--most" in refused(place, "simulate", "hawkes", "--most", 3, *out)
    assert "--start" in refused(place, "simulate", "hawkes", "--start", 1, *out)
    assert "--amplitude" in refused(
        place, "simulate", place / "model", "--amplitude", "random", *out
    )
    assert "--start and --stop" in refused(place, "simulate", place / "colours", *out)
    assert "start < stop" in refused(place, "simulate", place / "model", "--stop", -1, *out)
    assert "fourpoint fit" in refused(place, "simulate", place / "nothing", *out)


# ---------------------------------------------------------------------- forecast


def test_forecast_prints_json_alone_a_table_or_a_picture(place: Path) -> None:
    words = [
        "forecast",
        place / "model",
        place / "calls.parquet",
        "--sequence",
        "day-3",
        "--at",
        6,
        "--horizon",
        2,
        "--paths",
        50,
    ]
    found = strict(call(*words, "--windows", 2, "--json").stdout)
    assert (found["at"], found["horizon"], found["paths"], len(found["counts"])) == (
        6.0,
        2.0,
        50,
        2,
    )
    assert sum(found["next_event"]["mark_probabilities"].values()) == pytest.approx(1)
    assert strict(call(*words, "--windows", 2, "--json").stdout) == found, (
        "the same seed, the same forecast"
    )
    data = fourpoint.read(place / "calls.parquet")
    own = fourpoint.forecast(
        fourpoint.restore(place / "model"), data.find("day-3"), 2.0, 50, at=6.0
    )
    assert found["next_event"]["median"] == pytest.approx(own.next_event.median)
    table = call(*words, "--plot", place / "f.png")
    assert "next event" in table.stdout and (place / "f.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(place.glob(".f*")), "a temporary name is left"


def test_events_after_now_are_not_looked_at(place: Path) -> None:
    past = fourpoint.read(place / "calls.parquet").find("day-3").before(6.0)
    cut = Sequence(past.times, past.marks, start=0, stop=10, space=MARKS, id="day-3")
    fourpoint.write(Dataset.from_sequences([cut], unit="hours"), place / "cut.parquet")
    words = ["--sequence", "day-3", "--at", 6, "--json"]
    for command, more in (("forecast", ["--horizon", 2, "--paths", 20]), ("explain", [])):
        whole, part = (
            call(command, place / "model", place / file, *words, *more).stdout
            for file in ("calls.parquet", "cut.parquet")
        )
        assert whole == part


def test_explanations_need_a_time_that_was_observed(place: Path) -> None:
    words = ("explain", place / "model", place / "calls.parquet", "--sequence", "day-3")
    assert "window [0, 10] of sequence day-3" in refused(place, *words, "--at", 10.5)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"--horizon": 0}, "positive horizon"),
        ({"--horizon": -2}, "positive horizon"),
        ({"--horizon": "nan"}, "positive horizon"),
        ({"--at": -1}, "window [0, 10] of sequence day-3"),
        ({"--at": "nan"}, "window [0, 10] of sequence day-3"),
        ({"--sequence": "day-99"}, "Ids here are like"),
        ({"--paths": 0}, "at least one path"),
        ({"--plot": "f.gif"}, ".png, .svg, .pdf"),
        ({"--plot": "no/f.png"}, "existing folder"),
        ({"model": "unmarked"}, "2 types"),
        ({"model": "colours"}, "'red', 'green'"),
        ({"model": "nothing"}, "fourpoint fit"),
    ],
)
@pytest.mark.parametrize("command", ["forecast", "explain"])
def test_what_cannot_be_answered_is_refused(
    command: str, change: dict[str, Any], word: str, place: Path
) -> None:
    if command == "explain" and {"--horizon", "--paths"} & set(change):
        return
    asked: dict[str, Any] = {"--sequence": "day-3", "--at": 6} | (
        {"--horizon": 2, "--paths": 5} if command == "forecast" else {}
    )
    asked |= change
    model, picture = place / asked.pop("model", "model"), asked.get("--plot")
    if picture:
        asked["--plot"] = place / picture
    assert word in refused(
        place, command, model, place / "calls.parquet", *(x for pair in asked.items() for x in pair)
    )


# ---------------------------------------------------------------------- explain


def test_explain_prints_effects_and_draws_them(place: Path) -> None:
    words = ["explain", place / "model", place / "calls.parquet", "--sequence", "day-3", "--at", 6]
    found = strict(call(*words, "--json").stdout)
    rate = found["rate"]
    assert rate["total"] == pytest.approx(sum(rate["marks"].values())) and set(rate["marks"]) == {
        "fire",
        "medical",
    }
    assert rate["total"] == pytest.approx(1.0 + sum(event["total"] for event in found["events"])), (
        "of a Hawkes process with baselines .5"
    )
    assert all(event["time"] < 6 for event in found["events"])
    table = call(*words, "--plot", place / "e.svg")
    shown = " ".join(table.stdout.split())
    assert "the rate minus the rate without" in shown and "<svg" in (place / "e.svg").read_text()
    first = strict(call(*words[:-1], 0, "--json").stdout)
    assert first["events"] == [] and first["at"] == 0


@pytest.mark.parametrize(
    "name", [name for name in MODELS if not name.startswith("spatial-") and name != "seismic-dapp"]
)
def test_every_model_is_explained(name: str) -> None:
    torch.manual_seed(0)
    small: dict[str, Any] = (
        {"features": 4, "heads": 1} if "dapp" in name and name != "deep-dapp" else {}
    )
    small |= {"keep": 2} if "odapp" in name else {}
    marks = MarkSpace() if name == "self-correcting" or name in CATALOGUE else MARKS
    model: Any = MODELS[name](marks, **small).eval()
    kinds = None if marks.count == 1 else [0, 1, 0]
    found = explain(model, Sequence([0.1, 0.4, 0.6], kinds, start=0.0, stop=1.0, space=marks), 0.8)
    assert found.effects.shape == (3, marks.count) and np.isfinite(found.effects).all()
    without = Sequence(
        [0.1, 0.6], None if kinds is None else [0, 0], start=0.0, stop=1.0, space=marks
    )
    np.testing.assert_allclose(
        found.effects[1], found.rate - fourpoint.intensity(model, without, [0.8])[0], atol=1e-5
    )
    assert "poisson" not in name or np.abs(found.effects).max() < 1e-6


def test_two_thousand_past_events_are_explained_in_pieces() -> None:
    times = np.arange(2000) / 200 + 0.001
    model = DAPP(MARKS, heads=1, features=4, eval_features=8)
    sequence = Sequence(times, np.arange(2000) % 2, start=0.0, stop=11.0, space=MARKS)
    found = explain(model, sequence)
    assert (
        found.effects.shape == (2000, 2)
        and np.isfinite(found.effects).all()
        and "1,985 weaker" in str(found)
    )


def test_events_without_an_effect_are_not_listed() -> None:
    model = Hawkes(baseline=1.0, branching=0.5, decay=2.0)
    times = np.append(np.arange(0.0, 100.0), 199.0)
    found = str(explain(model, Sequence(times, start=0.0, stop=200.0)))
    words = " ".join(found.split())
    assert "event at effect 199 +0.1353 100 past events have no effect on it" in words


def test_explain_refuses_other_marks_and_times_outside() -> None:
    with pytest.raises(UserError, match="inside the window"):
        explain(Poisson(), Sequence([1.0], start=0.0, stop=2.0), 3.0)
    with pytest.raises(UserError, match="2 types"):
        explain(Poisson(MARKS), Sequence([1.0], start=0.0, stop=2.0))


# ---------------------------------------------------------------------- evaluate


def test_evaluate_adds_goodness_and_predictions(place: Path) -> None:
    words = ["evaluate", place / "model", place / "calls.parquet"]
    plain = strict(call(*words, "--no-fit-check", "--json").stdout)
    assert "goodness" not in plain and "predictions" not in plain
    full = strict(call(*words, "--predictions", "--json").stdout)
    assert {key: full[key] for key in plain} == plain, "the keys of before are as before"
    assert full["goodness"]["events"] == 240 and set(full["goodness"]["marks"]) == {
        "fire",
        "medical",
    }
    assert 0 <= full["goodness"]["total"]["ks_p"] <= 1 and full["predictions"]["time_crps"] > 0
    table = call(*words, "--predictions", "--plot", place / "qq.png").stdout
    assert (
        "Goodness of fit" in table
        and "Predictions of the next event" in table
        and (place / "qq.png").stat().st_size > 1000
    )
    assert "Goodness" not in call(*words, "--no-fit-check").stdout


def test_what_is_not_a_number_is_null(place: Path) -> None:
    one = Dataset.from_sequences([Sequence([1.0], [0], start=0, stop=10, space=MARKS)])
    fourpoint.write(one, place / "one.parquet")
    found = strict(
        call("evaluate", place / "model", place / "one.parquet", "--predictions", "--json").stdout
    )
    assert found["events"] == 1 and None in found["goodness"]["marks"]["medical"].values()


def test_goodness_looks_at_a_seeded_part_of_big_data(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_reading, "CHECKED", 60)
    words = ["evaluate", place / "model", place / "calls.parquet", "--json"]
    result = call(*words)
    assert "60 of 240 events, 5 of 20 sequences, drawn with seed 0" in result.stderr
    assert strict(result.stdout)["goodness"]["sequences"] == 5
    monkeypatch.setattr(cli_reading, "CHECKED", 5)
    assert "of the window of sequence day-" in call(*words).stderr


def test_evaluate_refuses_other_names_and_pictures_of_nothing(place: Path) -> None:
    assert "'red', 'green'" in refused(
        place, "evaluate", place / "colours", place / "calls.parquet"
    )
    words = ["evaluate", place / "model", place / "calls.parquet", "--plot"]
    assert ".png" in refused(place, *words, place / "qq.jpeg2")
    assert "--plot" in refused(place, *words, place / "qq.png", "--no-fit-check")


def test_integrals_that_do_not_settle_end_in_three_clauses_and_code_2(tmp_path: Path) -> None:
    model = DAPP(link="exp", heads=1, features=4, eval_features=4, generator=(4,)).eval()
    with torch.no_grad():
        model.rate.bias.fill_(100.0)  # exp(100) is more than float32 can hold
    save(model, tmp_path / "explosive")
    fourpoint.write(
        Dataset.from_sequences([Sequence([1.0, 2.0], start=0.0, stop=3.0)]),
        tmp_path / "two.parquet",
    )
    text = refused(tmp_path, "evaluate", tmp_path / "explosive", tmp_path / "two.parquet")
    assert (
        "a finite integral of the intensity" in text
        and "inf over" in text
        and "The model's rate explodes" in text
    )


def test_forecasts_of_two_saved_models_are_pooled(place: Path) -> None:
    data = place / "calls.parquet"
    words = ["--horizon", 2, "--all", "--paths", 40]
    call("forecast", place / "model", data, *words, "-o", place / "one.csv")
    pooled = ["--pool", place / "model", "-o", place / "two.csv"]
    assert (
        "40 paths each, drawn from 2 models"
        in call("forecast", place / "model", data, *words, *pooled).stdout
    )
    one, two = (csv.read_csv(place / name) for name in ("one.csv", "two.csv"))
    assert two.column_names == one.column_names and two.num_rows == one.num_rows
    no_table = ["--horizon", 2, "--pool", place / "model"]
    assert "--pool" in refused(place, "forecast", place / "model", data, *no_table)
    missing = [*words, "-o", place / "three.csv", "--pool", place / "nothing"]
    assert "fourpoint fit" in refused(place, "forecast", place / "model", data, *missing)
