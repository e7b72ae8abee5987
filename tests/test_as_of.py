"""Covariates as they were known when a day began: what they are, that forecasts made then do not
depend on what came later, and that a model is not applied to other covariates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import Dataset, UserError

ZONE = "Europe/Berlin"
FIRST, LAST = np.datetime64("2025-01-06T00:00"), "2025-02-15"
DAYS, HOURS = 40, 24


class Fitted(NamedTuple):
    """A saved model, the files it was fitted to, the measurements, and how the log is read."""

    model: Path
    calls: Path
    table: Path
    values: np.ndarray
    reading: tuple[object, ...]


def weather(rng: np.random.Generator) -> np.ndarray:
    """A value for every hour, which wanders from day to day."""
    daily = np.zeros(DAYS + 1)
    for day in range(1, DAYS + 1):
        daily[day] = 0.5 * daily[day - 1] + rng.normal()
    return np.repeat(daily, HOURS)[: DAYS * HOURS] + 0.7 * rng.normal(size=DAYS * HOURS)


def known_at_midnight(values: np.ndarray) -> np.ndarray:
    """For every hour the value of the hour before the day began."""
    last = np.concatenate([values[:1], values[HOURS - 1 :: HOURS]])
    return np.repeat(last[:DAYS], HOURS)


def write_log(folder: Path, seed: int, effect: float) -> tuple[Path, Path, np.ndarray]:
    """Calls in whole minutes, whose rate depends on what was measured before midnight, and the
    hourly measurements; times are local, in a winter without a change of clocks.
    """
    rng = np.random.default_rng(seed)
    values = weather(rng)
    rhythm = 1 + 0.6 * np.sin(2 * np.pi * (np.arange(DAYS * HOURS) % HOURS - 6) / HOURS)
    counts = rng.poisson(2.0 * rhythm * np.exp(effect * known_at_midnight(values)))
    hours = np.repeat(np.arange(DAYS * HOURS), counts)
    minutes = np.sort(60 * hours + rng.integers(0, 60, len(hours)))
    calls, table = folder / "calls.csv", folder / "weather.csv"
    times = np.datetime_as_string(FIRST + minutes.astype("timedelta64[m]"))
    calls.write_text("time\n" + "\n".join(times) + "\n")
    write_table(table, values)
    return calls, table, values


def write_table(table: Path, values: np.ndarray) -> None:
    stamps = np.datetime_as_string(FIRST + np.arange(len(values)).astype("timedelta64[h]"))
    rows = (f"{stamp},{value:.6f}" for stamp, value in zip(stamps, values, strict=True))
    table.write_text("time,pressure\n" + "\n".join(rows) + "\n")


def run(*words: object) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return str(found.stdout)


def log(**options: Any) -> Dataset:
    """Four days around a change of clocks, with a value for every hour of UTC."""
    begin = np.datetime64("2025-03-29T00:00")
    stamps = [f"{begin + np.timedelta64(h, 'h')}Z" for h in range(-12, 72)]
    table = {"time": stamps, "x": np.arange(-12.0, 72.0)}
    events = {"time": ["2025-03-29T12:00Z", "2025-03-31T12:00Z"]}
    window = ("2025-03-29", "2025-04-01")
    given = dict(sequence="none", window=window, time_unit="hours", timezone=ZONE)
    return fp.read(events, covariates=table, **(given | options))


def at(data: Dataset, times: list[float]) -> list[float]:
    assert data.context is not None and data.context.covariates is not None
    return data.context.covariates.at(0, np.array(times))[:, 0].tolist()


def test_a_day_has_the_last_value_before_its_midnight_also_when_clocks_change() -> None:
    data = log(covariates_as_of="1d")
    assert data.context is not None and data.context.covariates is not None
    assert data.context.covariates.names == ("x as of 1d",)
    assert data.log is not None and data.log.as_of == "1d"
    # The window begins on 29 March at 00:00, which is 23:00 UTC the day before; the 30th has 23
    # hours. The value of the hour that begins at midnight is not known before it.
    assert at(data, [0.0, 23.9, 24.0, 46.9, 47.0, 70.0]) == [-2.0, -2.0, 22.0, 22.0, 45.0, 45.0]


def test_parts_of_the_day_and_weeks() -> None:
    hourly = log(covariates_as_of="1h")
    plain = log()
    assert at(hourly, [5.5, 30.2]) == [value - 1 for value in at(plain, [5.5, 30.2])]
    six = log(covariates_as_of="6h")
    assert at(six, [7.0, 11.9]) == at(plain, [5.0, 5.0])
    # No Monday lies in the window before the last day: the first value also holds before its time.
    assert at(log(covariates_as_of="1w"), [1.0, 60.0]) == [-12.0, 45.0]


def test_data_without_dates_have_multiples_of_a_number() -> None:
    table = {"time": [0.0, 9.0, 15.0], "x": [1.0, 2.0, 3.0], "y": ["a", "b", "a"]}
    data = fp.read({"time": [1.0, 19.0]}, window=(0, 20), covariates=table, covariates_as_of=10.0)
    assert data.context is not None and data.context.covariates is not None
    assert data.context.covariates.names == ("x as of 10", "y=b as of 10")
    assert at(data, [0.0, 9.9, 10.0, 19.9]) == [1.0, 1.0, 2.0, 2.0]


def test_covariates_of_sequences_stay_as_they_are(tmp_path: Path) -> None:
    events = {"time": [1.0, 4.0, 2.0], "shop": ["a", "a", "b"], "age": [40.0, 40.0, 25.0]}
    table = {"time": [0.0, 5.0], "discount": [0.0, 0.2]}
    data = fp.read(
        events, sequence="shop", window=(0, 10), covariates=table, sequence_covariates="age"
    )
    known = fp.covariates_as_of(data, 4.0)
    assert known.context is not None and known.context.covariates is not None
    assert known.context.covariates.names == ("age", "discount as of 4")
    assert known.context.covariates.at(1, np.array([5.0, 8.0])).tolist() == [[25, 0], [25, 0.2]]
    read = fp.read(
        events,
        sequence="shop",
        window=(0, 10),
        covariates=table,
        sequence_covariates="age",
        covariates_as_of=4.0,
    )
    assert read.context is not None and read.context.covariates is not None
    assert read.context.covariates.names == known.context.covariates.names
    # What was written stays as it is when it is read with the same period.
    fp.write(known, tmp_path / "known.parquet")
    again = fp.read(tmp_path / "known.parquet", covariates_as_of=4.0)
    assert again.context is not None and again.context.covariates is not None
    assert again.context.covariates.names == known.context.covariates.names


def test_stored_covariates_and_those_of_a_table_are_both_as_of(tmp_path: Path) -> None:
    fp.write(log(), tmp_path / "log.parquet")
    begin = np.datetime64("2025-03-28T12:00")
    stamps = [f"{begin + np.timedelta64(h, 'h')}Z" for h in range(84)]
    table = {"time": stamps, "y": np.arange(84.0)}
    data = fp.read(tmp_path / "log.parquet", covariates=table, covariates_as_of="1d")
    assert data.context is not None and data.context.covariates is not None
    assert data.context.covariates.names == ("x as of 1d", "y as of 1d")
    assert data.context.covariates.at(0, np.array([30.0])).tolist() == [[22.0, 34.0]]


def test_a_number_is_a_period_for_data_with_dates_too() -> None:
    number, text = log(covariates_as_of=6.0), log(covariates_as_of="6")
    assert at(number, [7.0, 13.0]) == at(text, [7.0, 13.0]) == at(log(), [5.0, 11.0])


@pytest.mark.parametrize("period", ["2d", "5h", "0h", "month"])
def test_periods_that_begin_at_no_fixed_time_are_refused(period: str) -> None:
    with pytest.raises(UserError, match="expected a (period|duration)"):
        log(covariates_as_of=period)


def test_a_log_without_covariates_of_time_is_refused() -> None:
    with pytest.raises(UserError, match="expected covariates of time.*received none"):
        fp.read({"time": [1.0, 2.0]}, window=(0, 4), covariates_as_of=1.0)


def test_the_effect_of_what_is_known_is_recovered(tmp_path: Path) -> None:
    """By the plain option of the command line; the weather of the same hour has less to say here,
    and a forecast of the next day would need to know it.
    """
    effect = 0.3
    for seed in range(2):
        calls, table, _ = write_log(tmp_path, seed, effect)
        given = dict(sequence="none", window=(str(FIRST), LAST), timezone="UTC")
        data = fp.read(calls, covariates=table, covariates_as_of="1d", **given)
        model = fp.Poisson(data.marks)
        fp.fit(model, data, calendar="hour", progress=False)
        [ratio] = model.rate_ratios
        assert ratio.name == "pressure as of 1d"
        error = np.log(ratio.high / ratio.low) / (2 * 1.96)
        assert abs(np.log(ratio.ratio) - effect) < 3 * error < 0.2


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """A model of the whole log, fitted by the command line to what is known at midnight."""
    folder = tmp_path_factory.mktemp("as-of")
    calls, table, values = write_log(folder, 1, 0.3)
    reading = ("--timezone", "UTC", "--time-unit", "days", "--window", FIRST, LAST)
    words = ("--model", "poisson", "--calendar", "hour", "--covariates-as-of", "1d")
    run("fit", calls, *words, *reading, "--covariates", table, "-o", folder / "model")
    return Fitted(folder / "model", calls, table, values, reading)


def test_a_forecast_at_midnight_knows_nothing_of_the_day(fitted: Fitted) -> None:
    model, calls, table, values, reading = fitted
    words = ("forecast", model, calls, *reading, "--covariates", table, "--paths", 200)
    when = ("--at", "2025-02-10", "--horizon", "1d", "--json")
    before = json.loads(run(*words, *when))  # the model remembers the period
    midnight = int((np.datetime64("2025-02-10T00:00") - FIRST) / np.timedelta64(1, "h"))
    later, earlier = values.copy(), values.copy()
    later[midnight : midnight + HOURS - 1] += 5.0
    earlier[midnight - 1] += 5.0
    write_table(table, later)
    assert json.loads(run(*words, *when)) == before
    write_table(table, earlier)
    changed = json.loads(run(*words, *when))
    means = [sum(part["total"]["mean"] for part in one["counts"]) for one in (before, changed)]
    assert means[1] > 2 * means[0]
    write_table(table, values)
    with pytest.raises(AssertionError, match="pressure as of 1d"):
        run(*words, *when, "--covariates-as-of", "6h")


def test_a_stream_takes_covariates_as_the_model_does(fitted: Fitted, tmp_path: Path) -> None:
    model, whole, table, _, _ = fitted
    calls, scores = tmp_path / "calls.csv", tmp_path / "scores.jsonl"
    calls.write_text("".join(whole.read_text().splitlines(keepends=True)[:200]))
    run(
        *("stream", model, calls, "--covariates", table, "--output", scores),
        *("--state", tmp_path / "state", "--start", FIRST),
    )
    streamed = [json.loads(line)["rate"] for line in scores.read_text().splitlines()]
    data = fp.read(
        calls,
        covariates=table,
        covariates_as_of="1d",
        sequence="none",
        window=(str(FIRST), LAST),
        timezone="UTC",
        time_unit="days",
    )
    saved, batch = fp.restore(model), data.batch()
    logs = saved.log_rates_at_events(saved.encode(batch), batch)[0].detach().numpy()
    np.testing.assert_allclose(np.log(streamed), logs.reshape(-1), rtol=1e-5)
