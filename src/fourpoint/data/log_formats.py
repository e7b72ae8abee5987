"""How a table was read, as :class:`~fourpoint.log_format.LogFormat`: from its first values and the
clock they became.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from fourpoint.data.clocks import Clock
from fourpoint.data.columns import is_words, value_type
from fourpoint.data.roles import Roles
from fourpoint.data.stamps import SPLIT_DATE, has_zone
from fourpoint.log_format import DATES, EPOCH, STAMPS, LogFormat

RAW = 1000  # first values of the column of times that are looked at
DATE_NUMBERS = (19000101, 22001231)


def log_format(
    roles: Roles, raw: pa.ChunkedArray, clock: Clock | None, origin: int | None, *, marked: bool
) -> LogFormat:
    """The columns in use and the clock; ``raw`` are the first times as the table has them,
    ``origin`` the tick of time 0.

    Sequences of our own files are replicates, and their column names no entity.
    """
    mark = roles.mark if marked else None
    columns = LogFormat(roles.time, mark, None if roles.own else roles.sequence, roles.calendar)
    if clock is None:
        return columns
    kind = value_type(raw)
    zoned, per_second, name = False, 1, STAMPS
    if is_words(kind):
        zoned = has_zone(str(raw[0].as_py()))
    elif pa.types.is_timestamp(kind):
        zoned = kind.tz is not None
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        zoned, per_second, name = _epoch(float(raw[0].as_py()), clock)
    return replace(
        columns,
        clock=name,
        per_second=per_second,
        zone=clock.zone,
        zoned=zoned,
        day_first=_day_first(raw, clock) if is_words(kind) else None,
        origin=None if origin is None else iso(origin, clock.rate),
    )


def iso(tick: int, rate: int) -> str:
    """A tick since 1970 as ISO 8601, with as many digits as it needs.

    >>> iso(1714548600, 1), iso(1714548600250000, 1_000_000)
    ('2024-05-01T07:30:00', '2024-05-01T07:30:00.25')
    """
    unit = {1: "s", 1000: "ms", 1_000_000: "us", 1_000_000_000: "ns"}[rate]
    text = str(np.array(tick).astype(f"datetime64[{unit}]"))
    return text.rstrip("0").rstrip(".") if "." in text else text


def _epoch(first: float, clock: Clock) -> tuple[bool, int, str]:
    """Whether numbers name a moment in UTC, how many make a second, and their kind."""
    if DATE_NUMBERS[0] <= first <= DATE_NUMBERS[1]:
        return False, 1, DATES
    seconds = int(clock.ticks[0]) / clock.rate
    power = round(np.log10(first / seconds) / 3) if seconds else 0
    return True, 1000**power, EPOCH


def _day_first(raw: pa.ChunkedArray, clock: Clock) -> bool | None:
    """Whether dates such as 5/1/2024 were read with the day first: the first row in which that
    makes a difference tells.
    """
    for text, tick in zip(raw.to_pylist(), clock.ticks.tolist(), strict=False):
        found = SPLIT_DATE.match(text)
        if found is None:
            return None
        parts = [int(part) for part in text.strip().split(found[1], 2)[:2]]
        if parts[0] != parts[1]:
            day = int(clock.text(tick)[8:10])
            return parts[0] == day
    return None
