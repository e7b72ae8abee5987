"""Calendar windows: whole days, weeks and hours, silent ones too, in zones whose clocks change."""

from __future__ import annotations

import csv
import datetime as dt
import json
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data.calendar_windows import By, calendar_windows
from fourpoint.data.clocks import Clock
from fourpoint.data.inspecting import inspect
from fourpoint.data.readers import Asked, read, read_with_notes
from fourpoint.events import EventDataError, UserError

ZONES = [
    None,
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
    "America/Havana",
]


def clock(*stamps: str, zone: str | None = "UTC", rate: int = 1) -> Clock:
    place = ZoneInfo(zone or "UTC")
    return Clock(
        np.array(
            [
                int(dt.datetime.fromisoformat(s).replace(tzinfo=place).timestamp()) * rate
                for s in stamps
            ]
        ),
        rate,
        zone,
    )


def test_a_day_is_a_day_even_when_its_last_event_is_at_noon(tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text(
        "received_at,type\n2024-05-01 22:00,a\n2024-05-04 09:00,b\n2024-05-04 12:00,a\n"
    )
    found = read_with_notes(tmp_path / "calls.csv", Asked(sequence="day"))
    data = found.data
    assert data.ids == (
        "2024-05-01",
        "2024-05-02",
        "2024-05-03",
        "2024-05-04",
    ) and data.lengths.tolist() == [1, 0, 0, 2]
    assert (
        data.starts.tolist() == [0] * 4
        and data.stops.tolist() == [24] * 4
        and not data.inferred
        and data.unit == "hours"
    )
    assert data[3].times.tolist() == [9, 12]
    assert found.notes[1:] == (
        (
            "times: hours since the start of each day as the times stand, which name no zone "
            "(--timezone, --time-unit)"
        ),
        (
            "windows: 4 days, 2024-05-01 to 2024-05-04, 2 without events; the first and the last "
            "are taken as observed whole (--window A B)"
        ),
    )


def test_days_survive_a_file_of_ours(tmp_path: Path) -> None:
    data = read(
        {"time": ["2024-03-09T12:00", "2024-03-11T12:00"]},
        sequence="day",
        timezone="America/New_York",
    )
    fp.write(data, tmp_path / "days.parquet")
    again = fp.read(tmp_path / "days.parquet")
    assert (
        again.ids == data.ids
        and again.stops.tolist() == [24, 23, 24]
        and again.unit == "hours"
        and again.times.tolist() == [12, 12]
    )


def test_days_of_23_and_25_hours() -> None:
    spring = calendar_windows(
        clock("2024-03-09T12:00", "2024-03-11T12:00", zone="America/New_York"), "day"
    )
    autumn = calendar_windows(
        clock("2024-11-02T12:00", "2024-11-04T12:00", zone="America/New_York"), "day"
    )
    assert ((spring.stops - spring.starts) / 3600).tolist() == [24, 23, 24] and spring.ids[
        1
    ] == "2024-03-10"
    assert ((autumn.stops - autumn.starts) / 3600).tolist() == [24, 25, 24]
    data = read(
        {"time": ["2024-03-10T01:00", "2024-03-10T04:00"]},
        sequence="day",
        timezone="America/New_York",
    )
    assert data.times.tolist() == [1, 3] and data.stops.tolist() == [23], "elapsed real time"


def test_weeks_begin_on_monday_and_are_named_by_iso() -> None:
    stamps = ["2020-12-31T12:00", "2021-01-03T23:59", "2021-01-04T00:00", "2024-12-30T00:00"]
    found = calendar_windows(clock(*stamps), "week")
    assert found.ids[:2] == ("2020-W53", "2021-W01") and found.ids[-1] == "2025-W01"
    assert list(found.ids) == [
        "{}-W{:02d}".format(*dt.datetime.fromtimestamp(int(s), dt.UTC).isocalendar()[:2])
        for s in found.starts
    ]
    assert (np.diff(found.starts) == 7 * 86400).all() and found.of(
        clock(*stamps).ticks
    ).tolist() == [0, 0, 1, len(found.ids) - 1]
    data = read({"time": stamps}, sequence="week")
    assert (
        data.unit == "days"
        and data.stops[0] == 7
        and data[0].times.tolist() == pytest.approx([3.5, 7 - 1 / 1440])
    )


def test_hours_that_happen_twice_or_never() -> None:
    autumn = calendar_windows(
        clock("2024-11-03T00:30", "2024-11-03T02:30", zone="America/New_York"), "hour"
    )
    assert autumn.ids == (
        "2024-11-03T00",
        "2024-11-03T01-04:00",
        "2024-11-03T01-05:00",
        "2024-11-03T02",
    )
    assert ((autumn.stops - autumn.starts) == 3600).all()
    spring = calendar_windows(
        clock("2024-03-10T01:30", "2024-03-10T03:30", zone="America/New_York"), "hour"
    )
    assert (
        spring.ids == ("2024-03-10T01", "2024-03-10T03")
        and ((spring.stops - spring.starts) == 3600).all()
    )
    assert (
        read({"time": ["2024-05-01T10:15", "2024-05-01T12:45"]}, sequence="hour").unit == "minutes"
    )


def test_a_day_that_the_calendar_skips() -> None:
    found = calendar_windows(
        clock("2011-12-29T12:00", "2011-12-31T12:00", zone="Pacific/Apia"), "day"
    )
    assert (
        found.ids == ("2011-12-29", "2011-12-31") and ((found.stops - found.starts) == 86400).all()
    )


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 40 * 86400), min_size=1, max_size=12),
    st.integers(1_000_000_000, 1_900_000_000),
    st.sampled_from(ZONES),
    st.sampled_from(["hour", "day", "week"]),
    st.sampled_from([1, 1000, 10**9]),
)
def test_windows_equal_those_of_zoneinfo(
    offsets: list[int], first: int, zone: str | None, by: By, rate: int
) -> None:
    instants = np.array(sorted(first + o for o in offsets))
    found = calendar_windows(Clock(instants * rate, rate, zone), by)
    code = found.of(instants * rate)
    assert len(set(found.ids)) == len(found.ids) and (found.starts[1:] == found.stops[:-1]).all(), (
        "distinct, and without holes"
    )
    assert (found.starts[code] <= instants * rate).all() and (
        instants * rate < found.stops[code]
    ).all()
    assert code[0] == 0 and code[-1] == len(found.ids) - 1
    place = ZoneInfo(zone or "UTC")
    for i, k in zip(instants.tolist(), code.tolist(), strict=True):
        moment = dt.datetime.fromtimestamp(i, place)
        label = {
            "day": f"{moment:%Y-%m-%d}",
            "hour": f"{moment:%Y-%m-%dT%H}",
            "week": "{}-W{:02d}".format(*moment.isocalendar()[:2]),
        }[by]
        assert found.ids[k].startswith(label)
    for edge in (*found.starts.tolist(), int(found.stops[-1])):
        before, after = (dt.datetime.fromtimestamp(edge // rate + d, place) for d in (-1, 0))
        if by == "day":
            assert before.date() != after.date()


def test_a_period_cuts_the_windows_at_its_ends_and_adds_silent_ones() -> None:
    rows = {"time": ["2024-05-02T13:00", "2024-05-03T01:00"]}
    data = read(rows, sequence="day", window=("2024-05-01", "2024-05-05T06:00"))
    assert data.ids == ("2024-05-01", "2024-05-02", "2024-05-03", "2024-05-04", "2024-05-05")
    assert data.stops.tolist() == [24, 24, 24, 24, 6] and data.times.tolist() == [13, 1]
    part = read(rows, sequence="day", window=("2024-05-02T12:00", "2024-05-03T12:00"))
    assert part.starts.tolist() == [12, 0] and part.stops.tolist() == [24, 12]
    with pytest.raises(
        EventDataError,
        match=(
            "received the table: '2024-05-02 13:00:00' at row 0. Widen the window or drop the "
            "events outside"
        ),
    ):
        read(rows, sequence="day", window=("2024-05-03", "2024-05-04"))


def test_hours_of_business_are_a_window_in_numbers() -> None:
    rows = {"time": ["2024-05-02T09:30", "2024-05-03T16:00"]}
    data = read(rows, sequence="day", window=(8, 18))
    assert (
        data.starts.tolist() == [8, 8]
        and data.stops.tolist() == [18, 18]
        and data.durations.tolist() == [10, 10]
    )
    with pytest.raises(
        EventDataError,
        match=(
            r"inside the window \[10.0, 18.0\); received the table: 9.5 at event 0 of sequence "
            r"2024-05-02 \(row 0\)"
        ),
    ):
        read(rows, sequence="day", window=(10, 18))
    with pytest.raises(UserError, match="a day is observed whole"):
        read(rows, sequence="day", window="each")


def test_too_many_windows_are_refused_with_the_times_at_fault() -> None:
    with pytest.raises(
        EventDataError,
        match=(
            "at most 1,000,000 windows; received the table: times from 1800-01-01 UTC to "
            "2200-01-01 UTC. Look for a"
        ),
    ):
        read({"time": ["1800-01-01T00:00:00Z", "2200-01-01T00:00:00Z"]}, sequence="hour")
    end = Clock(np.array([2**63 - 2]), 10**9, None)
    with pytest.raises(UserError, match="room for a window"):
        calendar_windows(end, "week")


def test_numbers_have_no_calendar_unless_they_are_epochs() -> None:
    with pytest.raises(
        EventDataError,
        match=(
            "expected timestamps in column 'time', for sequence='day'; received the table: "
            "values of type"
        ),
    ):
        read({"time": [1.0, 2.0]}, sequence="day")
    assert read({"time": [1714548600, 1714648600]}, sequence="day").ids == (
        "2024-05-01",
        "2024-05-02",
    )
    assert read({"time": [1.0, 2.0], "day": ["mon", "tue"]}, sequence="day").ids == (
        "mon",
        "tue",
    ), "a column of that name"


def test_rows_in_any_order_with_sort() -> None:
    rows = {
        "time": ["2024-05-02T13:00", "2024-05-01T11:00", "2024-05-01T10:00"],
        "type": ["a", "b", "c"],
    }
    with pytest.raises(
        EventDataError,
        match=(
            r"10.0 after 11.0 at event 1 of sequence 2024-05-01 \(row 2\). Sort the rows, or "
            r"read with sort=True \(--sort\)"
        ),
    ):
        read(rows, sequence="day")
    found = read_with_notes(rows, Asked(mark="type", sequence="day", sort=True))
    assert (
        found.moved
        and found.data.times.tolist() == [10, 11, 13]
        and found.data.mark_ids.tolist() == [2, 1, 0]
    )


def admissions(days: int) -> list[str]:
    """Dates of events, twelve on a weekday and four on Saturdays and Sundays, on average."""
    random = np.random.default_rng(0)
    found = []
    for day in range(days):
        date = dt.date(2024, 1, 1) + dt.timedelta(days=day)
        found += [str(date)] * int(random.poisson(4 if date.weekday() >= 5 else 12))
    return found


def test_dates_without_a_time_of_day_are_noon(tmp_path: Path) -> None:
    """Dequantised by half a day either way they stay on their day: counts a day ahead have the
    level of their weekday. At midnight half of the events of Saturday would be on Friday.
    """
    dates = admissions(140)
    data = fp.read({"date": dates}, time_unit="days")
    assert (data.times % 1 == 0.5).all() and (data.starts[0], data.stops[0]) == (0.0, 140.0)
    assert data.log is not None and data.log.noon
    log = tmp_path / "log.csv"
    log.write_text("date\n" + "\n".join(dates) + "\n")
    (tmp_path / "later.csv").write_text("date\n2024-05-20\n2024-05-20\n2024-05-21\n")
    folder = str(tmp_path / "model")
    words = ["fit", str(log), "--model", "poisson", "--calendar", "weekday", "-o", folder]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0 and "dates have no time of day" in ran.output
    table = tmp_path / "counts.csv"
    words = ["forecast", folder, str(log), "--all", "--horizon", "7d", "--by", "1d"]
    ran = CliRunner().invoke(app, [*words, "--paths", "400", "-o", str(table)])
    assert ran.exit_code == 0, ran.output
    means = [float(row["mean"]) for row in csv.DictReader(table.read_text().splitlines())]
    assert len(means) == 7  # from Monday 2024-05-20 on
    assert all(10 < mean < 14 for mean in means[:5]) and all(2.5 < mean < 5.5 for mean in means[5:])
    scores = tmp_path / "scores.jsonl"
    later = str(tmp_path / "later.csv")
    ran = CliRunner().invoke(app, ["stream", folder, later, "-o", str(scores)])
    assert ran.exit_code == 0, ran.output
    times = [json.loads(line)["time"] for line in scores.read_text().splitlines()]
    assert times == [140.5, 140.5, 141.5]


def test_dates_have_no_rhythm_of_the_day() -> None:
    found = inspect({"date": admissions(140)})
    assert found.kind == "a log with a weekly pattern" and "sequence='none'" in found.command
