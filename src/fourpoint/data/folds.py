"""Local times to instants, where clocks are put back and forward.

In autumn an hour of local time happens twice. Rows in order of time tell the two apart: where the
local time steps back inside that hour, the second begins. Where the order says nothing, the earlier
is taken and said aloud. In spring an hour of local time never happens, and a stamp inside it is
refused. Used by :mod:`fourpoint.data.clocks`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.opened import flat
from fourpoint.data.stamps import Fault

FOLD = 4 * 3600  # seconds that two local times of one fold are at most apart


def localise(
    wall: NDArray[np.int64],
    rate: int,
    zone: str,
    dates: bool,
    code: Callable[[], NDArray[np.int32]] | None,
    notes: list[str],
    fault: Fault,
) -> NDArray[np.int64]:
    """Ticks of local time, ``rate`` a second, as ticks in UTC.

    ``dates`` says that they are days, which begin at the first moment of the day whatever the
    clocks do. ``code`` gives each row's sequence, and is used where the rows as a whole are in no
    order.

    >>> half_past_one = np.array([1730597400, 1730597400 - 600])  # 2024-11-03 01:30 and then 01:20
    >>> notes = []
    >>> (
    ...     np.diff(
    ...         localise(half_past_one, 1, "America/New_York", False, None, notes, fault=ValueError)
    ...     ).tolist(),
    ...     notes,
    ... )
    ([3000], ['2 times lie in an hour that America/New_York has twice: told apart by the order of rows'])
    """
    early, late = _both(wall, rate, zone)
    skipped = np.flatnonzero(late < early)
    if len(skipped) and not dates:
        row = int(skipped[0])
        value = str(np.datetime64(int(wall[row] // rate), "s")).replace("T", " ")
        remedy = (
            "Clocks skip it in spring: perhaps the times are in UTC (timezone='UTC') or in "
            "standard time all year."
        )
        raise fault(f"times that exist in {zone}", row, value, remedy)
    twice = np.flatnonzero(late > early)
    if not len(twice) or dates:
        return early
    second, open_rows = _second(wall, rate, twice, code)
    early = early.copy()
    early[twice[second]] = late[twice[second]]
    note = (
        f"{len(twice):,} times lie in an hour that {zone} has twice: told apart by the order of "
        "rows"
    )
    notes.append(
        note
        if not open_rows
        else f"{note}; {open_rows:,} could not be and are taken as the earlier"
    )
    return early


def _both(
    wall: NDArray[np.int64], rate: int, zone: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The earlier and the later instant of each local time. For one that clocks skip the "later" is
    a tick before the other.
    """
    unit = {1: "s", 1000: "ms", 1_000_000: "us"}.get(rate, "ns")
    stamps = pa.array(wall).view(pa.timestamp(unit))
    chosen = (("earliest", "latest"), ("latest", "earliest"))
    early, late = (
        flat(pa.chunked_array([pc.assume_timezone(stamps, zone, ambiguous=a, nonexistent=b)]))
        for a, b in chosen
    )
    return early, late


def _second(
    wall: NDArray[np.int64],
    rate: int,
    twice: NDArray[np.int64],
    code: Callable[[], NDArray[np.int32]] | None,
) -> tuple[NDArray[np.bool_], int]:
    """Which of the rows ``twice`` are the second of the two, and how many could not be told."""
    falls, rises = int((wall[1:] < wall[:-1]).sum()), int((wall[1:] > wall[:-1]).sum())
    if falls > rises + 1:  # the newest row first
        second, left = _second(
            wall[::-1],
            rate,
            len(wall) - 1 - twice[::-1],
            None if code is None else lambda: code()[::-1],
        )
        return second[::-1], left
    order = np.arange(len(twice))
    fold = wall[twice] // (rate * FOLD)
    # Descents beyond one a fold mean that the rows are in order at most inside each sequence.
    if code is not None and falls > len(np.unique(fold)):
        own = code()[twice]
        order = np.argsort(own, kind="stable")
        change = own[order][1:] != own[order][:-1]
    else:
        change = np.zeros(max(len(twice) - 1, 0), dtype=bool)
    local = wall[twice][order]
    far = np.abs(np.diff(local)) > rate * FOLD
    run = np.concatenate([[0], np.cumsum(change | far)])
    back = np.concatenate([[False], (np.diff(local) < 0) & ~change & ~far])
    steps = np.bincount(run, weights=back)
    told = steps[run] == 1
    before = np.concatenate([[0], np.cumsum(back)])[np.searchsorted(run, np.arange(run[-1] + 1))]
    passed = np.cumsum(back) > before[run]
    second = np.zeros(len(twice), dtype=bool)
    second[order] = passed & told
    return second, int((~told).sum())
