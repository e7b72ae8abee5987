"""From a file of one's own to a model, by commands alone: a messy CSV, a look at it, and the
options for its columns.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.cli.options import BESIDE, ReadingOptions
from fourpoint.cli.reading import asked

RUN = CliRunner()


def call(*words: object, code: int = 0) -> Any:
    result = RUN.invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    return result


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    """Three weeks of calls: a BOM, blank lines, headers of mixed case, stamps with zones, and many
    of them equal.
    """
    rng = np.random.default_rng(0)
    minutes = np.sort(rng.integers(0, 21 * 96, 600)) * 15
    stamps = (np.datetime64("2024-05-01T00:00") + minutes).astype(str)
    kinds = rng.choice(["Fire, small", "MEDICAL"], 600)
    lines = [
        f'{i},{stamp}:00-04:00,"{kind}"' + "\n" * (i % 50 == 0)
        for i, (stamp, kind) in enumerate(zip(stamps, kinds, strict=True))
    ]
    path = tmp_path / "city calls.csv"
    path.write_text(
        "\ufeff\nIncident Number,Received AT,CALL type\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )
    return path


def test_a_messy_csv_is_fitted_in_one_command(messy: Path, tmp_path: Path) -> None:
    said = call(
        "fit",
        messy,
        "--sequence",
        "day",
        "--timezone",
        "America/New_York",
        "--model",
        "poisson",
        "-o",
        tmp_path / "model",
    ).stderr
    assert (
        said.count(
            "columns: time 'Received AT', mark 'CALL type', one sequence per day (guessed; "
            "--time --mark to choose)"
        )
        == 1
    )
    assert said.count("ties kept; --ties error|jitter|drop") == 1, (
        "one line names the policy and the others"
    )
    following = next(line for line in said.splitlines() if line.startswith("next: fourpoint "))
    numbers = json.loads(call(*shlex.split(following)[2:], "--no-fit-check", "--json").stdout)
    assert numbers["events"] == 600 and numbers["sequences"] == 21
    later = [
        "--by",
        "day",
        "--timezone",
        "America/New_York",
        "--sequence",
        "2024-05-03",
        "--at",
        12,
        "--json",
    ]
    assert json.loads(
        call("forecast", tmp_path / "model", messy, *later, "--horizon", 2, "--paths", 10).stdout
    )
    assert json.loads(call("explain", tmp_path / "model", messy, *later).stdout)


def test_the_command_of_a_look_works_as_it_stands(messy: Path, tmp_path: Path) -> None:
    found = call("data", "inspect", messy, "--plot", tmp_path / "look.png")
    assert (
        "'CALL type', 2 types" in found.stdout
        and "over time" in found.stdout
        and (tmp_path / "look.png").exists()
    )
    command = next(
        line for line in found.stderr.splitlines() if line.startswith("next: fourpoint fit")
    )
    words = shlex.split(command)[2:]
    call(*words[:-1], tmp_path / "model", "--model", "poisson")
    assert json.loads(call("data", "inspect", messy, "--json").stdout)[
        "next"
    ] == command.removeprefix("next: ")


def test_a_model_keeps_its_unit_and_types(messy: Path, tmp_path: Path) -> None:
    call(
        "fit",
        messy,
        "--sequence",
        "day",
        "--time-unit",
        "minutes",
        "--model",
        "poisson",
        "-o",
        tmp_path / "model",
    )
    head = messy.read_text(encoding="utf-8-sig").strip().splitlines()
    short = tmp_path / "fires.csv"
    short.write_text("\n".join([head[0], *(line for line in head[1:40] if "Fire" in line)]))
    said = call(
        "evaluate", tmp_path / "model", short, "--sequence", "day", "--no-fit-check", "--json"
    )
    assert (
        "times: minutes since the start of each day" in said.stderr
        and json.loads(said.stdout)["sequences"] >= 1
    )


@pytest.mark.parametrize("command", [["data"], ["data", "summary"], ["data", "inspect"]])
def test_files_that_cannot_be_read_are_refused(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("time,mark\n1,a\n\n2\n")
    error = call(*command, tmp_path / "bad.csv", code=2).stderr
    assert "bad.csv: Expected 2 columns, got 1: 2 at line 4" in error and "what to do" in error


def test_each_sequence_may_have_its_own_window(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("who,when\na,1\na,3\nb,10\nb,15\n")
    words = ("data", "inspect", path, "--time", "when", "--sequence", "who", "--json", "--window")
    found = [json.loads(call(*words, word).stdout)["next"] for word in ("each", "all")]
    assert "--window each" in found[0] and "--window all" in found[1]
    shown = [call(*words[:2], *words[2:7], "--window", word).stdout for word in ("each", "all")]
    assert "0.5714 events" in shown[0]  # 4 events in 2 + 5
    assert "from its first event to its last" in " ".join(shown[0].split())
    assert "0.1333 events" in shown[1]  # 4 events in 15 + 15


def test_a_date_and_a_time_of_day_in_two_columns(tmp_path: Path) -> None:
    """The same minutes in the forms of four countries, with a text column, and a model of them."""
    rng = np.random.default_rng(0)
    minutes = np.sort(rng.choice(40 * 1440, 200, replace=False))
    stamps = np.datetime64("2024-03-01T00:00") + minutes
    moments = [stamp.item() for stamp in stamps]
    forms = {
        "iso": ("Date,Time", "%Y-%m-%d,%H:%M"),
        "us": ("date,time", "%m/%d/%Y,%I:%M %p"),
        "de": ("Datum;Uhrzeit", "%d.%m.%Y;%H:%M:%S"),
        "odd": ("start_date,end_time,start_time", "%Y-%m-%d,23:59,%I:%M:%S %p"),
    }
    read = {}
    for name, (header, form) in forms.items():
        separator = ";" if ";" in header else ","
        rows = [f"{moment.strftime(form)}{separator}x y" for moment in moments]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join([f"{header}{separator}note", *rows]) + "\n")
        words = ["--time", "Datum+Uhrzeit"] if name == "de" else []
        found = json.loads(call("data", "inspect", path, "--json", *words).stdout)
        assert found["span"] == [str(stamps[0]).replace("T", " ") + ":00"] + [
            str(stamps[-1]).replace("T", " ") + ":00"
        ], name
        read[name] = found["columns"]["time"]
    assert read == {
        "iso": "Date+Time",
        "us": "date+time",
        "de": "Datum+Uhrzeit",
        "odd": "start_date+start_time",
    }
    model = tmp_path / "model"
    call("fit", tmp_path / "iso.csv", "--time", "Date,Time", "--model", "poisson", "-o", model)
    ahead = call("forecast", model, tmp_path / "iso.csv", "--horizon", "1d", "--json")
    known = json.loads(ahead.stdout)["whole"]
    assert known["dates"]["start"] == str(stamps[-1]).replace("T", " ")
    assert known["total"]["mean"] == pytest.approx(5.0, abs=1.0)  # 200 events in 40 days


def test_days_and_months_of_two_columns_that_cannot_be_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("date,time\n03/04/2024,09:30\n05/06/2024,10:15\n")
    found = call("data", "inspect", path, code=2).stderr
    assert "day and month can be told apart" in found and "'date+time'" in found


def test_windows_in_times(messy: Path) -> None:
    summary = call(
        "data",
        messy,
        "--sequence",
        "day",
        "--timezone",
        "America/New_York",
        "--window",
        "2024-05-01",
        "2024-06-01",
    )
    assert "31 (2024-05-01 ... 2024-05-31)" in summary.stdout
    assert (
        "start is before its stop"
        in call("data", messy, "--window", "2024-06-01", "2024-05-01", code=2).stderr
    )
    assert "Leave --time" in call("data", "nyc_delays", "--sequence", "day", code=2).stderr
    assert (
        "a window in numbers"
        in call("data", "nyc_delays", "--window", "2024-05-01", "2024-06-01", code=2).stderr
    )


# ---------------------------------------------------------------------- one declaration per option

OPTIONS = ReadingOptions(
    ties="drop",
    window=("0", "24"),
    time="ts",
    mark="kind",
    sequence="day",
    place=["x", "y"],
    bounds=["x=0:1"],
    time_unit="hours",
    timezone="Europe/Berlin",
    sort=True,
    gaps="outages.csv",
    observed="shifts.csv",
    exposure="staff.csv",
    covariates="weather.csv",
    entities="customers.csv",
    sequence_covariates="age,plan",
    event_features="amount",
    impute="mean",
    covariates_as_of="1d",
)


def parameters_of(*names: str) -> dict[str, Any]:
    """The parameters of a command, by name, as click knows them."""
    found: Any = get_command(app)
    for name in names:
        found = found.commands[name]
    return {parameter.name: parameter for parameter in found.params}


@pytest.mark.parametrize(
    ("names", "absent", "grouped"),
    [
        (("fit",), set(), "sequence"),
        (("evaluate",), set(), "sequence"),
        (("forecast",), set(), "group_by"),
        (("explain",), set(), "group_by"),
        (("data", "summary"), set(), "sequence"),
        (("data", "inspect"), {"sort"}, "sequence"),
        (("stream",), {"ties", "window", "sequence", "place", "bounds", "sort", *BESIDE}, ""),
    ],
)
def test_every_command_takes_the_same_reading_options(
    names: tuple[str, ...], absent: set[str], grouped: str
) -> None:
    of_fit, here = parameters_of("fit"), parameters_of(*names)
    for field in fields(ReadingOptions):
        if field.name in absent:
            continue
        name = grouped if field.name == "sequence" else field.name
        ours, theirs = here[name], of_fit[field.name]
        flag = "--group-by" if name == "group_by" else theirs.opts[-1]
        assert flag in ours.opts, field.name
        assert ours.default == theirs.default == field.default, field.name
        assert (ours.metavar, ours.multiple) == (theirs.metavar, theirs.multiple), field.name
        assert ours.nargs == theirs.nargs, field.name
        assert names == ("stream",) or ours.help == theirs.help, field.name


def test_reading_options_are_written_as_they_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command recommends to type next is read back as the same options."""
    seen: list[ReadingOptions] = []
    monkeypatch.setattr(
        "fourpoint.cli.data.open_events", lambda source, options: seen.append(options) or exit(0)
    )
    assert CliRunner().invoke(app, ["data", "summary", "x", *OPTIONS.typed()]).exit_code == 0
    assert seen == [OPTIONS]


def test_every_reading_option_reaches_the_readers() -> None:
    plain, given = asked(ReadingOptions()), asked(OPTIONS)
    for field in fields(ReadingOptions):
        assert getattr(plain, field.name) != getattr(given, field.name), field.name
