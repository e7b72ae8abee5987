"""Stamps against Python's own datetime and zoneinfo: text, epochs, zones, and the hours that clocks
repeat or skip.
"""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from counted import counted
from hypothesis import given, settings, strategies as st

from fourpoint.data.clocks import Clock, read_clock, resolution_of
from fourpoint.data.readers import read, read_with_notes
from fourpoint.events import EventDataError, UserError
from fourpoint.events.dates import unit_for, unit_named

ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
    "Africa/Casablanca",
]
UTC = dt.UTC


def fault(expected: str, row: int, value: object, remedy: str) -> UserError:
    return UserError(expected, f"{value!r} in row {row}", remedy)


def clock_of(values: Any, timezone: str | None = None, kind: pa.DataType | None = None) -> Clock:
    found = read_clock(pa.chunked_array([pa.array(values, kind)]), timezone, None, fault)
    assert found is not None
    return found


def seconds(clock: Clock) -> list[float]:
    return (clock.ticks / clock.rate).tolist()


# Text

SAME = 1714548600.0  # 2024-05-01T07:30:00Z
WRITTEN = [
    "2024-05-01T07:30:00Z",
    "2024-05-01T09:30:00+02:00",
    "2024-05-01 09:30:00+0200",
    "2024-05-01 09:30+02",
    "2024-05-01T07:30:00.000000000Z",
    "2024-05-01T07:30:00,000Z",
    "2024-05-01 07:30:00 UTC",
    "2024-05-01 07:30:00 GMT",
    "2024-05-01 09:30:00 +02:00",
    " 2024-05-01T07:30:00Z ",
    "2024/05/01 07:30:00Z",
    "2024-5-1 7:30Z",
]
PLAIN = [
    "2024-05-01T07:30:00",
    "2024-05-01 07:30",
    "2024/5/1 7:30",
    "2024-05-01 07:30:00.000",
    "05/01/2024 07:30:00 AM",
    "5/1/2024 7:30am",
    "01.05.2024 07:30",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_text_with_a_zone(text: str) -> None:
    clock = clock_of([text])
    assert seconds(clock) == [SAME] and clock.zone == "UTC"
    assert clock_of([text], "Asia/Tokyo").zone == "Asia/Tokyo" and seconds(
        clock_of([text], "Asia/Tokyo")
    ) == [SAME]


@pytest.mark.parametrize("text", PLAIN)
def test_text_without_a_zone(text: str) -> None:
    clock = clock_of([text])
    assert seconds(clock) == [SAME] and clock.zone is None
    assert seconds(clock_of([text], "America/New_York")) == [SAME + 4 * 3600]


def test_one_column_may_mix_precisions_and_offsets() -> None:
    mixed = [
        "2024-05-01T07:30:00Z",
        "2024-05-01T03:30:00.5-04:00",
        "2024-05-01T07:30:01.123456789Z",
    ]
    assert np.allclose(
        seconds(clock_of(mixed)), [SAME, SAME + 0.5, SAME + 1.123456789], rtol=0, atol=1e-6
    )
    assert clock_of(mixed).ticks.tolist()[2] == 1714548601123456789


@settings(max_examples=100)
@given(
    st.lists(
        st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2250, 1, 1)), min_size=1, max_size=8
    ),
    st.sampled_from(ZONES),
)
def test_iso_text_equals_datetime(times: list[dt.datetime], zone: str) -> None:
    aware = [time.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)) for time in times]
    whole = [a for a in aware if (a.utcoffset() or dt.timedelta()).total_seconds() % 60 == 0]
    if whole:
        clock = clock_of([a.isoformat() for a in whole])
        expected = [
            (a - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(microseconds=1) for a in whole
        ]
        assert clock.in_ticks_of(Clock(clock.ticks, 1_000_000, None)).tolist() == expected


def test_day_and_month_are_told_apart_by_the_data() -> None:
    assert seconds(clock_of(["5/1/2024", "5/31/2024"]))[0] == 1714521600
    assert seconds(clock_of(["1/5/2024", "31/5/2024"]))[0] == 1714521600
    with pytest.raises(
        UserError,
        match=(
            "expected dates in which day and month can be told apart; received '5/1/2024' in row "
            "0. Write"
        ),
    ):
        clock_of(["5/1/2024", "6/2/2024"])
    assert clock_of(["5/1/2024 1:00 PM"]).notes == (
        "times such as '5/1/2024 1:00 PM' are read month first, as with AM and PM",
    )
    with pytest.raises(UserError, match="expected dates that exist; received '31/2/2024' in row 1"):
        clock_of(["31/1/2024", "31/2/2024"])
    with pytest.raises(
        UserError,
        match="expected times all written as '5/31/2024' is; received '2024-06-01' in row 1",
    ):
        clock_of(["5/31/2024", "2024-06-01"])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            ["2024-05-01T09:30Z"] * 5000 + ["never"],
            "expected a time as ISO 8601 writes it; received 'never' in row 5000",
        ),
        (["2024-05-01", "2024-02-30"], "received '2024-02-30' in row 1"),
        (["2024-05-01 25:00"], "received '2024-05-01 25:00' in row 0"),
        (
            ["2024-05-01T09:30Z", "2024-05-01T09:30"],
            "a zone at every time, or at none: the first is '2024-05-01T09:30Z'; received '2024",
        ),
        (["2024-05-01 09:30", "2024-05-01 09:30+02:00"], "a zone at every time, or at none"),
        (["noon"], "expected numbers or timestamps; received 'noon' in row 0"),
        (["1.5", "2", "x"], "expected numbers; received 'x' in row 2"),
    ],
)
def test_bad_text_is_named_with_its_row(values: list[str], text: str) -> None:
    with pytest.raises(UserError) as caught:
        clock_of(values)
    assert text in str(caught.value)


# Numbers


@pytest.mark.parametrize(
    ("rate", "word"),
    [(1, "seconds"), (10**3, "milliseconds"), (10**6, "microseconds"), (10**9, "nanoseconds")],
)
@pytest.mark.parametrize("kind", [int, float])
def test_epochs_are_known_by_their_size_and_said(rate: int, word: str, kind: Any) -> None:
    clock = clock_of([kind(SAME * rate), kind((SAME + 60) * rate)])
    assert np.allclose(seconds(clock), [SAME, SAME + 60]) and clock.zone == "UTC"
    assert len(clock.notes) == 1 and f"read as {word} since 1970" in clock.notes[0]


def test_a_float_of_seconds_keeps_its_microseconds() -> None:
    assert clock_of([SAME + 0.123456, SAME + 1]).ticks.tolist() == [
        1714548600123456,
        1714548601000000,
    ]


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 5.0],
        [99999999, 2 * 10**8],
        [-5, 3],
        [10**9, 10**12],
        [float("nan"), 1.7e9],
        [24.5],
        [1e30],
    ],
)
def test_other_numbers_are_numbers(values: list[float]) -> None:
    assert read_clock(pa.chunked_array([values]), None, None, fault) is None


def test_a_nan_among_epochs_is_refused_in_any_chunk() -> None:
    column = pa.chunked_array([[1.7e9, 1.8e9], [1.75e9, float("nan")], [1.7e9]])
    assert read_clock(column, None, None, fault) is None
    with pytest.raises(
        EventDataError,
        match="expected finite numbers in column 'time'; received the table: nan at row 3",
    ):
        read(pa.table({"time": column}))


def test_dates_written_as_numbers() -> None:
    clock = clock_of([20240501, 20241231])
    assert (
        seconds(clock) == [1714521600, 1735603200]
        and clock.zone is None
        and clock.notes == ("numbers such as 20240501 are read as dates",)
    )
    assert read_clock(pa.chunked_array([[20240501, 20241332]]), None, None, fault) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([20240501093000, 20241231235959], [1714555800, 1735689599]),
        ([202405010930, 202412312359], [1714555800, 1735689540]),
    ],
)
def test_timestamps_written_as_numbers(values: list[int], expected: list[int]) -> None:
    clock = clock_of(values)
    assert seconds(clock) == expected and clock.zone is None
    assert clock.notes == (f"numbers such as {values[0]} are read as timestamps",)


def test_epochs_that_are_no_calendar_fields_stay_epochs() -> None:
    # Milliseconds of the year 1976 have as many digits as dates with hours and minutes.
    clock = clock_of([202405010930, 202405019999])
    assert clock.notes[0].startswith("numbers near 2.02e+11 are read as milliseconds")


@pytest.mark.parametrize("values", [[20240229, 20240231], [20240229093000, 20240230093000]])
def test_a_written_date_that_does_not_exist_is_refused(values: list[int]) -> None:
    with pytest.raises(UserError, match=f"dates that exist.*{values[1]}"):
        clock_of(values)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Sydney"])
def test_offsets_that_change_with_the_season_name_the_zone(zone: str) -> None:
    days = [dt.datetime(2024, 1, 1, 9, 30, tzinfo=UTC) + dt.timedelta(days=n) for n in range(366)]
    text = [day.astimezone(ZoneInfo(zone)).isoformat(sep=" ") for day in days]
    clock = clock_of(text)
    assert clock.zone == zone and seconds(clock) == [day.timestamp() for day in days]
    assert clock.notes[0].startswith(f"offsets from UTC change as those of {zone} do: hours, days")
    assert clock_of(pa.array(text).dictionary_encode()).zone == zone
    assert clock_of(text, "Asia/Kathmandu").zone == "Asia/Kathmandu"


def test_offsets_that_name_no_zone_are_said() -> None:
    for text in (
        ["2024-01-01T00:24:00+01:00", "2024-07-01T00:24:00.5+0100"],
        ["2024-01-01T00:24:00Z", "2024-01-02T00:24:00+01:00", "2024-01-03T00:24:00-05:30"],
    ):
        clock = clock_of(text)
        assert clock.zone == "UTC" and "taken in UTC; --timezone names" in clock.notes[0]
    assert clock_of(["2024-01-01T00:24:00+00:00", "2024-07-01 00:24:00 UTC"]).notes == ()


def test_arrow_types() -> None:
    day = dt.date(2024, 5, 1)
    assert seconds(clock_of([day])) == [1714521600] and seconds(
        clock_of([day], kind=pa.date64())
    ) == [1714521600]
    assert seconds(clock_of([day], "America/New_York")) == [1714521600 + 4 * 3600]
    for unit in ("s", "ms", "us", "ns"):
        stamps = pa.array([1714548600], pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp(unit))
        assert seconds(clock_of(stamps)) == [SAME]
        aware = stamps.cast(pa.timestamp(unit, "Europe/Berlin"))
        assert (
            clock_of(aware).zone == "Europe/Berlin"
            and clock_of(aware, "Asia/Tokyo").zone == "Asia/Tokyo"
        )


# Zones


def local(instants: np.ndarray, zone: str) -> list[str]:
    """Wall times that name no zone."""
    return [
        dt.datetime.fromtimestamp(int(i), ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")
        for i in instants
    ]


FALL = {
    "America/New_York": 1730610000,
    "Europe/Berlin": 1729990800,
    "Australia/Lord_Howe": 1712415600,
}  # the clocks go back


@pytest.mark.parametrize("zone", FALL)
@pytest.mark.parametrize("order", ["rising", "falling"])
def test_the_repeated_hour_is_told_apart_by_the_order(zone: str, order: str) -> None:
    instants = np.arange(FALL[zone] - 5400, FALL[zone] + 5400, 420)
    instants = instants if order == "rising" else instants[::-1]
    clock = clock_of(local(instants, zone), zone)
    assert seconds(clock) == instants.tolist()
    assert (
        len(clock.notes) == 1
        and f"hour that {zone} has twice: told apart by the order of rows" in clock.notes[0]
    )


def test_the_repeated_hour_is_told_apart_inside_sequences() -> None:
    zone = "America/New_York"
    instants = np.arange(FALL[zone] - 5400, FALL[zone] + 5400, 420)
    rows = {
        "user": np.repeat(["a", "b", "c"], len(instants)),
        "time": local(np.tile(instants, 3), zone),
    }
    data = read(rows, timezone=zone, time_unit="s")
    assert all((np.diff(s.times) == 420).all() for s in data) and len(data) == 3


def test_what_cannot_be_told_is_the_earlier_and_said() -> None:
    clock = clock_of(
        ["2024-11-03 01:30:00", "2024-11-03 01:40:00", "2024-11-03 03:00:00"], "America/New_York"
    )
    assert seconds(clock)[0] == 1730611800
    assert clock.notes[0].endswith("2 could not be and are taken as the earlier")


def test_folds_of_two_years_are_told_apart_alone() -> None:
    zone = "America/New_York"
    first, second = FALL[zone], 1762063200  # 2024 and 2025
    instants = np.concatenate([np.arange(a - 5400, a + 5400, 600) for a in (first, second)])
    assert seconds(clock_of(local(instants, zone), zone)) == instants.tolist()


def test_a_time_that_clocks_skip_is_refused(tmp_path: Any) -> None:
    with pytest.raises(
        UserError,
        match=(
            "expected times that exist in America/New_York; received '2024-03-10 02:30:00' in "
            "row 1. Clocks skip"
        ),
    ):
        clock_of(["2024-03-10 01:30:00", "2024-03-10 02:30:00"], "America/New_York")
    (tmp_path / "a.csv").write_text("time\n\n2024-03-10 01:30:00\n2024-03-10 02:30:00\n")
    with pytest.raises(
        EventDataError,
        match=(
            "exist in America/New_York in column 'time'; received .*a.csv: '2024-03-10 02:30:00' "
            "at line 4"
        ),
    ):
        read(tmp_path / "a.csv", timezone="America/New_York")


def test_a_date_begins_when_its_day_does() -> None:
    # Clocks in Sao Paulo went forward at midnight: 2018-11-04 began at 01:00.
    assert seconds(clock_of([dt.date(2018, 11, 4)], "America/Sao_Paulo")) == [1541300400]


@settings(max_examples=100)
@given(st.integers(0, 2**31), st.sampled_from(ZONES))
def test_local_times_equal_zoneinfo(instant: int, zone: str) -> None:
    moment = dt.datetime.fromtimestamp(instant, ZoneInfo(zone))
    other = moment.replace(fold=1 - moment.fold)
    if moment.utcoffset() == other.utcoffset():
        assert seconds(clock_of([moment.replace(tzinfo=None).isoformat()], zone)) == [instant]


def test_unknown_zones_are_refused() -> None:
    with pytest.raises(
        UserError,
        match=(
            "expected the name of a time zone; received 'Europe/Berln'. Did you mean "
            "'Europe/Berlin'"
        ),
    ):
        read({"time": ["2024-05-01"]}, timezone="Europe/Berln")
    with pytest.raises(UserError, match="received 'Mars'. Use an IANA name"):
        read({"time": ["2024-05-01"]}, timezone="Mars")
    assert "New_York" in str(
        pytest.raises(UserError, read, {"time": ["2024-05-01"]}, timezone="new york").value
    )
    with pytest.raises(
        EventDataError,
        match=(
            "timestamps in column 'time', for timezone='UTC'; received the table: values of type "
            "double"
        ),
    ):
        read({"time": [1.5]}, timezone="UTC")


# Units, windows, moments


def test_units() -> None:
    assert [unit_named(u) for u in ("s", "Minutes", "hr", "day", "w", "ms")] == [
        "seconds",
        "minutes",
        "hours",
        "days",
        "weeks",
        "milliseconds",
    ]
    with pytest.raises(
        UserError,
        match="expected a unit of time: nanoseconds, .*; received 'hurs'. Did you mean 'hours'",
    ):
        unit_named("hurs")
    assert [unit_for(s) for s in (1, 601, 7200, 86400, 1e6)] == [
        "seconds",
        "minutes",
        "minutes",
        "hours",
        "days",
    ]


def test_stamps_become_time_since_the_first_event_in_a_unit_that_is_said() -> None:
    rows = {
        "time": ["2024-05-01T00:00Z", "2024-05-01T12:00Z", "2024-05-03T00:00Z"],
        "user": ["a", "b", "a"],
    }
    found = read_with_notes(rows)
    assert (
        found.data.unit == "hours"
        and [s.times.tolist() for s in found.data] == [[0, 48], [12]]
        and found.data.stops.tolist() == [48, 48]
    )
    assert found.data.inferred and found.origin == "2024-05-01 UTC"
    assert found.notes[1] == (
        "times: hours since 2024-05-01 UTC (--time-unit); sequences are observed from the "
        "first event of all to the last (--window A B)"
    )
    assert read(rows, time_unit="days").times.tolist() == [0, 2, 0.5]
    each = read(rows, window="each")
    assert [s.times.tolist() for s in each] == [[0, 48], [0]] and each.stops.tolist() == [48, 1]


def test_a_period_is_the_window_of_all() -> None:
    rows = {"time": ["2024-05-01T06:00", "2024-05-01T12:00"]}
    data = read(rows, window=("2024-05-01", dt.datetime(2024, 5, 2)))
    assert data.times.tolist() == [6, 12] and (
        data.starts[0],
        data.stops[0],
        data.inferred,
        data.unit,
    ) == (0, 24, False, "hours")
    assert read(rows, window=(0, 24), time_unit="h").times.tolist() == [0, 6]
    with pytest.raises(
        EventDataError,
        match=(
            "times from 2024-05-01T07:00 to before 2024-05-02 in column 'time'; .*'2024-05-01 "
            "06:00:00' at row 0"
        ),
    ):
        read(rows, window=("2024-05-01T07:00", "2024-05-02"))
    with pytest.raises(UserError, match="start is before its stop"):
        read(rows, window=("2024-05-02", "2024-05-01"))
    with pytest.raises(UserError, match="a time without a zone, as the data has"):
        read(rows, window=("2024-05-01T00:00Z", "2024-05-02T00:00Z"))
    with pytest.raises(UserError, match="expected a unit of time for stamps"):
        read(rows, time_unit="as given")


def test_windows_in_columns_may_be_stamps() -> None:
    rows = {
        "user": ["a", "a", "b"],
        "time": ["2024-05-01T06:00", "2024-05-01T12:00", "2024-05-02"],
        "start": ["2024-05-01"] * 2 + ["2024-05-01T12:00"],
        "stop": ["2024-05-02"] * 2 + ["2024-05-03"],
    }
    data = read(rows)
    assert data.starts.tolist() == [0, 12] and data.stops.tolist() == [24, 48] and not data.inferred
    assert [s.times.tolist() for s in data] == [[6, 12], [24]]


def test_moments() -> None:
    berlin = Clock(np.zeros(0, np.int64), 1000, "Europe/Berlin")
    assert (
        resolution_of("2024-05-01", berlin)
        == 1714514400_000
        == resolution_of(dt.date(2024, 5, 1), berlin)
    )
    assert (
        resolution_of(dt.datetime(2024, 5, 1, tzinfo=UTC), berlin)
        == 1714521600_000
        == resolution_of("2024-05-01T00:00Z", berlin)
    )
    for odd in ("soon", 7, [1], None):
        with pytest.raises(UserError):
            resolution_of(odd, berlin)


def test_stamps_are_read_without_a_loop() -> None:
    instants = pa.array(np.arange(1_700_000_000, 1_700_200_000), pa.timestamp("s", "UTC"))
    text = pa.chunked_array([instants.cast(pa.string())])
    with counted() as work:
        clock = read_clock(text, "America/New_York", None, fault)
    assert (
        clock is not None and clock.ticks[-1] == 1_700_199_999 * clock.rate and work.lines < 50_000
    ), "none for each stamp"
