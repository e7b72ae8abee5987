"""The commands with dates: options, cuts by time, tables beside the events, and later files for a
saved model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.checks import joined_values
from fourpoint.cli.main import app
from fourpoint.events import Dataset, EventDataError
from fourpoint.inference.forecasting import forecast
from fourpoint.models.poisson import Poisson
from fourpoint.storage.checkpoints import about

SPRING = np.datetime64("2025-03-01T00:00", "m")  # clocks change on 30 March
GAP = ("2025-03-10 12:00", "2025-03-11 06:00")


def write_log(path: Path, first: int = 0, last: int = 60, seed: int = 1) -> None:
    """Days ``first`` to ``last`` of a log with two types: about one event an hour, none in a gap
    and none in the hour that clocks skip.
    """
    rng = np.random.default_rng(seed)
    minutes = np.sort(rng.choice(60 * 24 * 60, 60 * 24, replace=False))
    stamps = SPRING + minutes.astype("timedelta64[m]")
    kinds = rng.choice(["call", "visit"], len(stamps))
    skipped = np.datetime64("2025-03-30T02:00"), np.datetime64("2025-03-30T03:00")
    gap = np.datetime64(GAP[0]), np.datetime64(GAP[1])
    day = minutes // 1440
    kept = (day >= first) & (day < last)
    for low, high in (skipped, gap):
        kept &= (stamps < low) | (stamps >= high)
    rows = zip(stamps[kept].astype(str), kinds[kept], strict=True)
    lines = [f"{stamp.replace('T', ' ')},{kind}" for stamp, kind in rows]
    path.write_text("\n".join(["when,what", *lines, ""]))


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, its tables and a Poisson process fitted to it."""
    folder = tmp_path_factory.mktemp("dates")
    write_log(folder / "log.csv")
    (folder / "gaps.csv").write_text(f"start,stop\n{GAP[0]},{GAP[1]}\n")
    options = ["--timezone", "Europe/Berlin", "--time-unit", "hours", "--sequence", "none"]
    options += ["--mark", "what"]
    options += ["--window", "2025-03-01", "2025-04-30", "--gaps", str(folder / "gaps.csv")]
    cuts = ["--split-at", "2025-04-10", "2025-04-20"]
    model = ["--model", "poisson", "-o", str(folder / "model")]
    found = run("fit", folder / "log.csv", *options, *cuts, *model)
    assert found.exit_code == 0, found.output
    assert "split: train until 2025-04-10 00:00" in found.output
    return folder


def test_a_fit_remembers_how_the_log_was_read_and_cut(fitted: Path) -> None:
    log = about(fitted / "model")["log"]
    assert log["split_at"] == ["2025-04-10T00:00:00+02:00", "2025-04-20T00:00:00+02:00"]
    assert log["zone"] == "Europe/Berlin" and log["origin"] == "2025-02-28T23:00:00"
    assert (log["time"], log["mark"]) == ("when", "what")


def test_evaluate_scores_the_part_that_fit_left_out(fitted: Path) -> None:
    whole = fp.read(
        fitted / "log.csv",
        timezone="Europe/Berlin",
        time_unit="hours",
        sequence="none",
        window=("2025-03-01", "2025-04-30"),
    )
    counts = [part.scored_events for part in whole.split_at(["2025-04-10", "2025-04-20"])]
    options = ["--window", "2025-03-01", "2025-04-30", "--no-fit-check", "--json"]
    for split, count in zip(("train", "dev", "test", None), [*counts, counts[2]], strict=True):
        words = [] if split is None else ["--split", split]
        found = run("evaluate", fitted / "model", fitted / "log.csv", *options, *words)
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["events"] == count
        assert f"{count:,} events of the {split or 'test'} part" in found.stderr
    # Data that begin after the cut are all test data.
    write_log(fitted / "late.csv", first=52)
    found = run("evaluate", fitted / "model", fitted / "late.csv", "--no-fit-check", "--json")
    assert found.exit_code == 0, found.output
    late = (fitted / "late.csv").read_text().count("\n") - 1
    assert json.loads(found.stdout)["events"] == late


def test_forecast_takes_and_gives_dates(fitted: Path) -> None:
    at = ["--at", "2025-04-22 14:00", "--horizon", "4h", "--windows", "2", "--paths", "20"]
    base = ["forecast", fitted / "model", fitted / "log.csv"]
    found = run(*base, *at, "--json")
    assert found.exit_code == 0, found.output
    numbers = json.loads(found.stdout)
    assert numbers["horizon"] == 4.0
    assert numbers["dates"] == {
        "at": "2025-04-22 14:00",
        "until": "2025-04-22 18:00",
        "zone": "Europe/Berlin",
        "unit": "hours",
    }
    assert numbers["counts"][1]["dates"] == {
        "start": "2025-04-22 16:00",
        "stop": "2025-04-22 18:00",
    }
    assert numbers["whole"]["dates"] == {"start": "2025-04-22 14:00", "stop": "2025-04-22 18:00"}
    parts = sum(part["total"]["mean"] for part in numbers["counts"])
    assert numbers["whole"]["total"]["mean"] == pytest.approx(parts)
    assert numbers["next_event"]["dates"]["median"].startswith("2025-04-22 14:")
    shown = run(*base, *at, "--plot", fitted / "next.png").stdout
    assert "Forecast from 2025-04-22 14:00 to 2025-04-22 18:00 (Europe/Berlin)" in shown
    assert "events in [2025-04-22 14:00, 16:00)" in shown


def test_a_later_file_is_read_with_the_clock_of_the_model(fitted: Path) -> None:
    write_log(fitted / "last.csv", first=40)
    words = ["--at", "2025-04-22 14:00", "--horizon", "1d", "--paths", "20", "--json"]
    first = json.loads(run("forecast", fitted / "model", fitted / "log.csv", *words).stdout)
    found = run("forecast", fitted / "model", fitted / "last.csv", *words)
    assert found.exit_code == 0, found.output
    second = json.loads(found.stdout)
    assert first["dates"] == second["dates"] and first["at"] == second["at"]


def test_explain_takes_and_gives_dates(fitted: Path) -> None:
    words = ["explain", fitted / "model", fitted / "log.csv", "--at", "2025-03-01 12:00"]
    found = run(*words, "--json")
    assert found.exit_code == 0, found.output
    numbers = json.loads(found.stdout)
    assert numbers["date"] == "2025-03-01 12:00"
    assert numbers["events"][0]["date"].startswith("2025-03-01 ")
    shown = run(*words, "--plot", fitted / "why.png")
    assert "The rate at 2025-03-01 12:00" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("at", "horizon", "message"),
    [
        ("2025-03-30 02:30", "4h", "a time that exists in Europe/Berlin"),
        ("2024-01-01", "4h", "a time inside the window [2025-03-01"),
        ("tomorrow", "4h", "a date or a time"),
        ("2025-04-01", "soon", "a duration"),
        ("2025-04-01", "4 fortnights", "a unit of time"),
        ("2025-04-01", "0h", "a positive horizon"),
    ],
)
def test_times_that_are_refused(fitted: Path, at: str, horizon: str, message: str) -> None:
    files = (fitted / "model", fitted / "log.csv")
    found = run("forecast", *files, "--at", at, "--horizon", horizon, "--paths", 5)
    assert found.exit_code == 2
    assert message in found.stderr


def test_cuts_by_share_and_at_one_date(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    base = ["fit", tmp_path / "log.csv", "--sequence", "none", "--model", "poisson"]
    base += ["--window", "2025-03-01", "2025-04-30"]
    found = run(*base, "--split-at", ".5", ".25", ".25", "-o", tmp_path / "a")
    assert found.exit_code == 0, found.output
    log = about(tmp_path / "a")["log"]
    assert log["split_at"] == ["2025-03-31T00:00:00", "2025-04-15T00:00:00"]
    found = run(*base, "--split-at", "2025-04-10", "-o", tmp_path / "b")
    assert found.exit_code == 0, found.output
    assert about(tmp_path / "b")["log"]["split_at"][1] == "2025-04-10T00:00:00"
    for words, message in (
        ((".5", ".2", ".2"), "three positive shares with the sum 1"),
        (("2025-04-10", "2025-04-01"), "rising times to cut at"),
        (("2026-04-10", "2026-05-01"), "inside the windows, from 2025-03-01"),
        (("soon",), "a date or a time"),
    ):
        found = run(*base, "--split-at", *words, "-o", tmp_path / "c")
        assert found.exit_code == 2 and message in found.stderr


def test_cuts_outside_the_data_are_refused_with_its_span(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    days = [f"2025-03-{day:02d} 12:00" for day in range(1, 31)]
    path.write_text("\n".join(["time", *days]))
    base = ["fit", path, "--model", "poisson", "-o", tmp_path / "m", "--split-at"]
    for words in (["2026-01-01"], ["2024-01-01", "2025-03-10"]):
        found = run(*base, *words)
        said = " ".join(found.stderr.split())
        assert found.exit_code == 2
        assert "inside the windows, from 2025-03-01 12:00 to 2025-03-30 12:00" in said
        assert f"received: --split-at {' '.join(words)}" in said
        assert "or shares such as --split-at .8 .1 .1" in said


def test_values_of_one_option_are_joined() -> None:
    words = ["fit", "--split-at", ".8", ".1", ".1", "7.csv", "-o", "5"]
    assert joined_values(words, "--split-at") == ["fit", "--split-at", ".8,.1,.1", *words[5:]]
    words = ["fit", "x.csv", "--split-at", "2025-05-01 12:00", "-o", "m"]
    assert joined_values(words, "--split-at") == words


def test_split_at_dates_in_days_of_their_own_origin(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    data = fp.read(tmp_path / "log.csv", sequence="day", timezone="Europe/Berlin")
    train, test = data.split_at(["2025-04-01 12:00"])
    assert (train.ids[-1], test.ids[0]) == ("2025-04-01", "2025-04-01")
    assert (train[-1].stop, test[0].stop) == (12.0, 24.0)
    assert train.scored_events + test.scored_events == data.events
    part = data.between("2025-04-01", "2025-04-03")
    assert part.ids == ("2025-04-01", "2025-04-02")
    with pytest.raises(EventDataError, match="from 2025-03-01 00:00 to 2025-04-30 00:00"):
        data.between("2025-06-01")


def covariate_files(folder: Path, columns: str = "temperature,sky") -> Path:
    path = folder / f"{columns.replace(',', '-')}.csv"
    values = {"temperature": lambda i: f"{i % 7}", "sky": lambda i: ("dry", "rain")[i % 2]}
    lines = [f"time,{columns}"]
    for day in range(60):
        stamp = str(SPRING + np.timedelta64(day, "D")).replace("T", " ")
        lines.append(",".join([stamp, *(values[name](day) for name in columns.split(","))]))
    path.write_text("\n".join([*lines, ""]))
    return path


def test_later_data_have_the_covariates_of_the_fit_in_its_order(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    both = covariate_files(tmp_path)
    base = ["--timezone", "Europe/Berlin", "--sequence", "none", "--window", "2025-03-01"]
    base += ["2025-04-30"]
    model = ["--model", "poisson", "-o", tmp_path / "model"]
    found = run("fit", tmp_path / "log.csv", *base, "--covariates", both, *model)
    assert found.exit_code == 0, found.output
    log = about(tmp_path / "model")["log"]
    assert log["covariates"] == ["temperature", "sky=rain"]
    assert log["levels"] == {"sky": ["dry", "rain"]}
    score = ["evaluate", tmp_path / "model", tmp_path / "log.csv", *base, "--no-fit-check"]
    score += ["--split", "all", "--json"]
    first = run(*score, "--covariates", both)
    assert first.exit_code == 0, first.output
    swapped = run(*score, "--covariates", covariate_files(tmp_path, "sky,temperature"))
    assert json.loads(swapped.stdout) == json.loads(first.stdout)
    for words in ([], ["--covariates", covariate_files(tmp_path, "temperature")]):
        found = run(*score, *words)
        assert found.exit_code == 2
        assert "covariates temperature, sky=rain, as the model was fitted to" in found.stderr


def test_zones_as_in_training(fitted: Path, tmp_path: Path) -> None:
    zoned = tmp_path / "zoned.csv"
    lines = (fitted / "log.csv").read_text().splitlines()
    rows = [f"{row.partition(',')[0]}Z,{row.partition(',')[2]}" for row in lines[1:]]
    zoned.write_text("\n".join([lines[0], *rows, ""]))
    # A model of local times takes times with a zone, which are exact.
    found = run("evaluate", fitted / "model", zoned, "--no-fit-check", "--json")
    assert found.exit_code == 0, found.output
    model: list[object] = ["--model", "poisson", "-o", tmp_path / "naive"]
    assert run("fit", fitted / "log.csv", "--sequence", "none", *model).exit_code == 0
    found = run("evaluate", tmp_path / "naive", zoned, "--no-fit-check")
    assert found.exit_code == 2 and "times without a zone, as in training" in found.stderr
    model[-1] = tmp_path / "zoned"
    assert run("fit", zoned, "--sequence", "none", *model).exit_code == 0
    found = run("evaluate", tmp_path / "zoned", fitted / "log.csv", "--no-fit-check")
    assert found.exit_code == 2 and "times with a zone, as in training" in found.stderr


def test_forecasts_of_the_library_take_dates() -> None:
    log = {"time": ["2025-10-25 08:00", "2025-10-25 12:00", "2025-10-26 12:00"]}
    data: Dataset = fp.read(log, sequence="none", time_unit="hours", timezone="Europe/Berlin")
    found = forecast(Poisson(), data, horizon="1d", at="2025-10-25 12:00", paths=10, windows=1)
    assert found.horizon == 25.0
    assert "from 2025-10-25 12:00 to 2025-10-26 12:00 (Europe/Berlin)" in str(found)


def test_simulated_sequences_have_dates_and_what_the_model_needs(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    table = covariate_files(tmp_path)
    base = ["--timezone", "Europe/Berlin", "--sequence", "none", "--window", "2025-03-01"]
    base += ["2025-04-30", "--time-unit", "hours", "--covariates", str(table)]
    model = ["--model", "poisson", "-o", tmp_path / "model"]
    assert run("fit", tmp_path / "log.csv", *base, *model).exit_code == 0
    words = ["simulate", tmp_path / "model", "--start", "2025-03-29", "--sequences", 2]
    words += ["-o", tmp_path / "drawn.parquet"]
    found = run(*words, "--stop", "2025-03-31", "--covariates", table)
    assert found.exit_code == 0, found.output
    drawn = fp.read(tmp_path / "drawn.parquet")
    assert drawn.durations.tolist() == [47.0, 47.0]  # clocks change in between
    dates = drawn[1].dates
    assert dates is not None and dates.text(drawn[1].start) == "2025-03-29 00:00"
    assert drawn.context is not None and drawn.context.covariates is not None
    found = run(*words)
    assert found.exit_code == 2
    assert "covariates temperature, sky=rain, as the model was fitted to" in found.stderr
    found = run(*words[:3], "soon", *words[4:])
    assert found.exit_code == 2 and "a date or a time" in found.stderr


def test_simulated_days_begin_at_a_date(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    options = ["--timezone", "Europe/Berlin", "--sequence", "day", "--model", "poisson"]
    found = run("fit", tmp_path / "log.csv", *options, "-o", tmp_path / "model")
    assert found.exit_code == 0, found.output
    words = ["simulate", tmp_path / "model", "--sequences", 2, "-o", tmp_path / "drawn.parquet"]
    found = run(*words, "--start", "2025-05-06")
    assert found.exit_code == 0, found.output
    drawn = fp.read(tmp_path / "drawn.parquet")
    dates = drawn[0].dates
    assert dates is not None and dates.text(0.0) == "2025-05-06 00:00"
    assert drawn[0].start == 0.0 and drawn.unit == "hours"


def test_covariates_that_end_before_the_horizon_are_carried_forward(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    table = covariate_files(tmp_path)  # until 2025-04-29
    base = ["--window", "2025-03-01", "2025-04-30", "--covariates", table]
    model = ["--sequence", "none", "--model", "poisson", "-o", str(tmp_path / "model")]
    assert run("fit", tmp_path / "log.csv", *base, *model).exit_code == 0
    words = ["forecast", tmp_path / "model", tmp_path / "log.csv", *base, "--paths", 5, "--json"]
    near = json.loads(run(*words, "--at", "2025-04-20", "--horizon", "1d").stdout)["notes"]
    far = json.loads(run(*words, "--at", "2025-04-29", "--horizon", "1w").stdout)["notes"]
    assert not any("carried forward" in note for note in near)
    said = "covariates are given until 2025-04-29 00:00; their last values are carried forward to"
    assert any(note.startswith(f"{said} 2025-05-06 00:00") for note in far)
