"""Traffic congestion as road authorities record it: time, site and level of each event, one
sequence per day.

    time,site,level
    2017-06-01 07:42:00,I-75 N at 17th St,3

The paper has 15,663 events at 86 sites over 178 days from the Georgia Department of Transportation,
"partitioned by day". Times are hours since midnight by the clock of the file, and every window is
the whole day, [0, 24): a day is a day even when its last event is at noon. A day without any event
is not in the file, and cannot be told from a day without records.

Where such data comes from and under which terms: docs/sources/congestion.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.sources.sheets import Sheet, grouped, named, read_sheet
from fourpoint.events import Dataset, MarkSpace, UserError

WHAT = "a congestion file with columns time, site and level"
COLUMNS = {
    "time": ("timestamp", "datetime", "date_time", "start_time", "starttime", "recorded_at"),
    "site": (
        "station",
        "station_id",
        "site_id",
        "sensor",
        "sensor_id",
        "location",
        "segment",
        "id",
    ),
    "level": ("congestion_level", "congestion", "severity"),
}
DAY = 86_400_000_000  # in microseconds
Mark = Literal["site", "level", "site-level", "none"]


def read(path: str | Path, /, *, mark: Mark = "site") -> tuple[Dataset, list[str]]:
    """Read a congestion file, plain or gzip.

    Args:
        path: the file. Stamps are local and without a zone; for others use :func:`fourpoint.read`
        with ``timezone=``.
        mark: "site", "level", "site-level" (each pair that occurs is a type) or "none".

    Returns:
        One sequence per day that has an event, in order, in hours, and notes. Fails with
        :class:`EventDataError` that names the file and the line.
    """
    if mark not in get_args(Mark):
        raise UserError(f"mark {', '.join(get_args(Mark))}", f"{mark!r}", "Use one of them.")
    sheet = read_sheet(Path(path), WHAT, COLUMNS)
    stamps = sheet.stamps("time")
    days, codes = np.unique(stamps // DAY, return_inverse=True)
    times = (stamps - days[codes] * DAY) / (DAY / 24)
    order, offsets, late = grouped(codes, times, len(days))
    marks, space = _marks(sheet, mark)
    data = Dataset(
        times[order],
        marks[order],
        offsets,
        np.zeros(len(days)),
        np.full(len(days), 24.0),
        space,
        ids=tuple(str(np.datetime64(int(day), "D")) for day in days),
        unit="hours",
        name="congestion",
    )
    span = int(days[-1] - days[0]) + 1
    if late:
        notes = [f"{late:,} events came after a later one of the same day and were sorted by time"]
    else:
        notes = []
    if span > len(days):
        notes.append(
            f"{span - len(days):,} of {span:,} days from first to last have no event; they "
            "are left out, observed or not"
        )
    return data, notes


def _marks(sheet: Sheet, mark: Mark) -> tuple[NDArray[np.int64], MarkSpace]:
    if mark == "none":
        return np.zeros(len(sheet), dtype=np.int64), MarkSpace()
    if mark == "site-level":
        return named(pc.binary_join_element_wise(sheet.texts("site"), sheet.texts("level"), " "))
    return named(sheet.texts(mark))
