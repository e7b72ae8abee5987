"""Times as dates and back: zones, hours that occur twice or never, durations, and the origin that
readers leave with the data.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

import fourpoint as fp
from fourpoint.events import UserError
from fourpoint.events.dates import Dates, edges_of, in_units, parse_duration, time_at

BERLIN = Dates(1748736000.0, "hours", "Europe/Berlin")  # 2025-06-01 02:00 local


def at(text: str, unit: str = "hours", zone: str | None = "Europe/Berlin") -> Dates:
    start = Dates(0.0, "seconds", zone).time(text)
    return Dates(start, unit, zone)


def test_times_and_dates_convert_both_ways() -> None:
    assert BERLIN.text(0.0) == "2025-06-01 02:00"
    assert BERLIN.texts([0.0, 1 / 3600]) == ["2025-06-01 02:00:00", "2025-06-01 02:00:01"]
    times = [0.0, 13.25, -500.5, 4000.0]
    assert [BERLIN.time(text) for text in BERLIN.texts(times)] == pytest.approx(times)
    assert BERLIN.time(dt.datetime(2025, 6, 1, 3)) == 1.0
    assert BERLIN.time(dt.date(2025, 6, 2)) == 22.0
    assert BERLIN.time("2025-06-01T00:30:00Z") == 0.5
    assert BERLIN.time("7.5") == 7.5
    assert BERLIN.texts([np.inf, np.nan]) == ["never", ""]
    assert Dates(1e9, "milliseconds").text(1.0) == "2001-09-09 01:46:40.001"


def test_an_hour_that_occurs_twice() -> None:
    autumn = at("2025-10-26")
    assert autumn.texts([2.5, 3.5, 4.5]) == [
        "2025-10-26 02:30+02:00",
        "2025-10-26 02:30+01:00",
        "2025-10-26 03:30",
    ]
    assert autumn.time("2025-10-26 02:30+01:00") == 3.5
    with pytest.raises(UserError, match=r"occurs once in Europe/Berlin.*02:30\+02:00' or '2025"):
        autumn.time("2025-10-26 02:30")


def test_an_hour_that_never_occurs() -> None:
    spring = at("2025-03-30")
    assert spring.texts([1.5, 2.5]) == ["2025-03-30 01:30", "2025-03-30 03:30"]
    with pytest.raises(UserError, match="exists in Europe/Berlin.*which clocks skip"):
        spring.time("2025-03-30 02:30")
    # In Sao Paulo the day itself began at one o'clock.
    brazil = at("2018-11-03", zone="America/Sao_Paulo")
    assert brazil.text(brazil.time("2018-11-04")) == "2018-11-04 01:00"
    assert brazil.text(brazil.later(0.0, "1d")) == "2018-11-04 01:00"


def test_days_follow_the_calendar_and_hours_the_clock() -> None:
    autumn = at("2025-10-25 12:00")
    assert autumn.later(0.0, "1d") == 25.0
    assert autumn.later(0.0, "24h") == 24.0
    assert autumn.later(0.0, "1w 12h") == 7 * 24 + 1 + 12
    assert autumn.edges(0.0, 73.0, "1d").tolist() == [0.0, 25.0, 49.0, 73.0]
    spring = at("2025-03-29")
    assert spring.edges(0.0, 72.0, "1d").tolist() == [0.0, 24.0, 47.0, 71.0, 72.0]
    # A step to a time that clocks skip goes to the first after it.
    assert spring.text(spring.later(2.5, "1d")) == "2025-03-30 03:00"
    assert spring.edges(1.0, 2.0, "15min").tolist() == [1.0, 1.25, 1.5, 1.75, 2.0]


def clock(dates: Dates, start: float, stop: float, by: str) -> list[str]:
    edges = dates.clock_edges(start, stop, by)
    assert edges is not None and edges[0] == start and edges[-1] == stop
    return [text[-5:] if "+" not in text else text[11:] for text in dates.texts(edges)]


def test_intervals_of_the_clock() -> None:
    june = at("2025-06-03 22:30")  # a Tuesday
    assert clock(june, 0.0, 3.0, "1h") == ["22:30", "23:00", "00:00", "01:00", "01:30"]
    assert clock(june, 0.0, 0.75, "15min") == ["22:30", "22:45", "23:00", "23:15"]
    assert june.texts(june.clock_edges(0.0, 48.0, "1d")) == [
        "2025-06-03 22:30",
        "2025-06-04 00:00",
        "2025-06-05 00:00",
        "2025-06-05 22:30",
    ]
    weeks = june.clock_edges(0.0, 14 * 24.0, "1w")
    assert june.texts(weeks)[1:-1] == ["2025-06-09 00:00", "2025-06-16 00:00"]
    # From a full hour on they are the intervals from the start.
    assert np.array_equal(june.clock_edges(0.5, 4.5, "1h"), june.edges(0.5, 4.5, "1h"))
    # What does not divide a day has no place on the clock, and numbers count from the start.
    for by in ("7h", "1d 1h", "1.5 days", "0h", "2"):
        assert june.clock_edges(0.0, 3.0, by) is None
    with pytest.raises(UserError, match="at most 100,000 intervals"):
        june.clock_edges(0.0, 1e4, "1s")
    plain = Dates(0.0, "minutes")
    assert plain.clock_edges(50.0, 130.0, "1h").tolist() == [50.0, 60.0, 120.0, 130.0]


def test_intervals_of_the_clock_when_clocks_change() -> None:
    autumn = at("2025-10-26 01:30")  # three o'clock becomes two o'clock
    hours = ["01:30", "02:00+02:00", "02:00+01:00", "03:00", "03:30"]
    assert clock(autumn, 0.0, 3.0, "1h") == hours
    assert np.diff(autumn.clock_edges(0.0, 30.0, "6h")).tolist() == [5.5, 6.0, 6.0, 6.0, 6.0, 0.5]
    spring = at("2025-03-30 00:30")  # two o'clock becomes three o'clock
    assert clock(spring, 0.0, 3.0, "1h") == ["00:30", "01:00", "03:00", "04:00", "04:30"]
    assert np.diff(spring.clock_edges(0.0, 6.5, "6h")).tolist() == [4.5, 2.0]
    # In Sao Paulo the day itself began at one o'clock, on Lord Howe clocks change by half an hour.
    brazil = at("2018-11-03 12:30", zone="America/Sao_Paulo")
    assert brazil.texts(brazil.clock_edges(0.0, 20.0, "1d"))[1] == "2018-11-04 01:00"
    island = at("2025-10-05 01:30", zone="Australia/Lord_Howe")
    assert clock(island, 0.0, 2.0, "1h") == ["01:30", "02:30", "03:00", "04:00"]


@pytest.mark.parametrize(
    ("text", "hours"),
    [("4h", 4), ("30d", 720), ("15min", 0.25), ("1w", 168), ("2h30min", 2.5), ("1.5 days", 36)],
)
def test_durations_in_the_unit_of_the_data(text: str, hours: float) -> None:
    assert in_units(text, "hours") == hours
    assert BERLIN.later(1.0, text) - 1.0 == hours


def test_durations_that_are_none() -> None:
    for text in ("", "soon", "4", "4 h and more"):
        with pytest.raises(UserError, match="a duration|unit of time"):
            parse_duration(text)
    with pytest.raises(UserError, match="a unit of time.*'month'"):
        in_units("1 month", "hours")
    with pytest.raises(UserError, match="unit of time is not known.*'4h'"):
        in_units("4h", "")
    with pytest.raises(UserError, match="intervals of positive length"):
        edges_of(None, 0.0, 4.0, 0.0)
    with pytest.raises(UserError, match="at most 100,000 intervals"):
        edges_of(None, 0.0, 4.0, 1e-9)
    with pytest.raises(UserError, match="the data has no dates.*2025"):
        time_at(None, "2025-06-01")
    with pytest.raises(UserError, match="a time without a zone"):
        Dates(0.0, "hours").time("2025-06-01T00:00Z")
    with pytest.raises(UserError, match="a date or a time"):
        BERLIN.time("noon")
    assert edges_of(None, 1.0, 4.5, 2.0).tolist() == [1.0, 3.0, 4.5]


def table(*stamps: str, **columns: list[str]) -> dict[str, list[str]]:
    return {"time": list(stamps), **columns}


def test_readers_leave_the_origin() -> None:
    log = table("2025-06-01 08:00", "2025-06-01 09:30", "2025-06-03 10:00")
    data = fp.read(log, sequence="none", time_unit="hours", timezone="Europe/Berlin")
    dates = data[0].dates
    assert dates is not None and dates.texts(data[0].times) == log["time"]
    assert dates.zone == "Europe/Berlin"
    assert data.context is not None and data.context.origin is not None
    assert data.context.origin.tolist() == [1748757600.0]


def test_calendar_windows_have_their_own_origins() -> None:
    log = table("2025-10-25 08:00", "2025-10-26 09:30", "2025-10-27 10:00")
    data = fp.read(log, sequence="day", timezone="Europe/Berlin")
    found = [one.dates.text(float(one.times[0])) for one in data if one.dates is not None]
    assert found == log["time"]
    assert data[1].times.tolist() == [10.5]  # a day of 25 hours


def test_windows_of_each_sequence_have_their_own_origins() -> None:
    log = table("2025-06-01 08:00", "2025-06-02 09:00", "2025-06-03 10:00", user=["a", "b", "b"])
    data = fp.read(log, sequence="user", window="each", time_unit="hours")
    assert data.context is not None and data.context.origin is not None
    assert np.diff(data.context.origin).tolist() == [25 * 3600.0]
    second = data["b"]
    assert second.dates is not None and second.dates.zone is None
    assert second.dates.texts(second.times) == log["time"][1:]


def test_numbers_have_no_dates() -> None:
    data = fp.read({"time": [1.0, 2.0]}, time_unit="hours")
    assert data.context is None and data[0].dates is None


def test_a_time_outside_the_window_is_named_by_its_date() -> None:
    log = table("2025-06-01 08:00", "2025-06-03 10:00")
    data = fp.read(log, sequence="none", time_unit="hours")
    assert len(data[0].until("2025-06-02")) == 1
    with pytest.raises(UserError, match="2025-06-01 08:00, 2025-06-03 10:00.*at=2025-07-01 00:00"):
        data[0].until("2025-07-01")


@pytest.mark.parametrize(("text", "days"), [("1month", "30d"), ("2 years", "365d"), ("1mo", "30d")])
def test_units_without_a_fixed_length_are_refused_with_days(text: str, days: str) -> None:
    with pytest.raises(UserError, match=rf"minutes, hours, days, weeks.*{days}"):
        parse_duration(text)
