"""Trades: LOBSTER's message files, and plain files of time and side.

A LOBSTER message file is one trading day of one stock. It has no header and six columns: time
(seconds after midnight), type, order id, size, price (dollars times 10,000) and direction (1: a buy
order stands in the book, -1: a sell order). The types:

    1 submission           2 partial cancellation   3 deletion      4 execution, visible
    5 execution, hidden    6 cross trade            7 halt

A trade is an execution, 4 or 5. It removes a standing order, so that it was started by the other
side: direction -1 is a **buy**. Its name ``TICKER_DATE_START_END_message_LEVEL.csv`` says from when
to when it was recorded, in milliseconds after midnight, and that is the window.

A plain file has columns ``time`` and ``side``: stamps, or numbers since 1970 in milliseconds (the
paper's clock). Each day is a sequence, in seconds after midnight, and its window is the session, by
default New York's 9:30 to 16:00.

A day is one sequence, or is cut into windows of equal length. Windows are cut by the clock, never
by the count of events: a window that ends at its fiftieth trade ends because of the trade, and its
likelihood is that of another process.

Where such files come from and under which terms: docs/sources/transactions.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.sample import Sample
from fourpoint.data.sources.sheets import Sheet, read_sheet
from fourpoint.events import Dataset, EventDataError, MarkSpace, UserError

LOBSTER = "a LOBSTER message file"
MESSAGE = ("time", "type", "order_id", "size", "price", "direction")
NAME = re.compile(
    r"(?P<ticker>.+)_(?P<day>\d{4}-\d\d-\d\d)_(?P<start>\d+)_(?P<end>\d+)_message_\d+\.csv(\.gz)?$"
)
NEW_YORK = (34_200.0, 57_600.0)  # 9:30 to 16:00, in seconds after midnight
KINDS = {1: "submit", 2: "cancel", 3: "delete", 4: "trade", 5: "trade hidden"}
SIDES = {"buy": 0, "b": 0, "bid": 0, "1": 0, "+1": 0, "sell": 1, "s": 1, "ask": 1, "-1": 1}
PLAIN = "a file of trades with columns time and side"
COLUMNS = {
    "time": ("timestamp", "datetime", "date_time", "ts"),
    "side": ("action", "direction", "type", "buy_sell"),
}
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
Mark = Literal["side", "message"]
Clock = Literal["s", "ms", "us", "ns"]


def matches_lobster(sample: Sample) -> bool:
    """Whether a file or folder looks like LOBSTER's messages, by the names of its files."""
    if sample.names is not None:
        return any(NAME.search(name) for name in sample.names)
    return sample.is_text and NAME.search(sample.path.name) is not None


def read_lobster(
    path: str | Path, /, *, mark: Mark = "side", seconds: float = 0.0
) -> tuple[Dataset, list[str]]:
    """Read one LOBSTER message file, or a folder of them, each a sequence.

    Args:
        path: a file called ``TICKER_DATE_START_END_message_LEVEL.csv``, or a folder of such files.
        mark: "side" takes the trades alone, as buy and sell; "message" takes types 1 to 5, each by
        the side of its order.
        seconds: cut each day into windows of this length; 0 keeps whole days.

    Returns: The sequences, in seconds after midnight, and notes. Fails with
        :class:`EventDataError` that names the file and the line.
    """
    if mark not in get_args(Mark):
        raise UserError(f"mark {', '.join(get_args(Mark))}", f"{mark!r}", "Use one of them.")
    source = Path(path)
    files = [source]
    if source.is_dir():
        files = [file for file in sorted(source.iterdir()) if NAME.match(file.name)]
    if not files:
        raise EventDataError(
            f"{LOBSTER} such as AAPL_2012-06-21_34200000_57600000_message_10.csv",
            f"{source}, which holds none",
            "Check it.",
        )
    if mark == "side":
        names: tuple[str, ...] = ("buy", "sell")
    else:
        names = tuple(f"{kind} {side}" for kind in KINDS.values() for side in ("buy", "sell"))
    days = Days(MarkSpace.categorical(names))
    notes = []
    for file in files:
        notes += _add_messages(days, file, mark)
    return cut(days, seconds, source, "lobster", notes)


def read_trades(
    path: str | Path,
    /,
    *,
    clock: Clock = "ms",
    session: tuple[float, ...] = NEW_YORK,
    seconds: float = 0.0,
) -> tuple[Dataset, list[str]]:
    """Read a plain file of trades, plain or gzip: each day a sequence.

    Args:
        path: the file, with columns time and side (buy or sell, B or S, 1 or -1).
        clock: the unit of times that are numbers, since 1970 (or since midnight, for one day).
        session: the observed part of each day, in seconds after midnight; trades outside are left
        out, and counted.
        seconds: cut each session into windows of this length; 0 keeps whole sessions.
    """
    if len(session) != 2 or not 0 <= session[0] < session[1] <= 86_400:
        raise UserError(
            "a session of two times of day in seconds, such as 34200,57600",
            f"{session}",
            "Use 0,86400 for whole days.",
        )
    source = Path(path)
    sheet = read_sheet(source, PLAIN, COLUMNS)
    stamps, per_second = _stamps(sheet, clock)
    per_day = 86_400 * per_second
    day = stamps // per_day
    times = (stamps - day * per_day) / per_second
    marks = _sides(sheet)
    days = Days(MarkSpace.categorical(("buy", "sell")))
    order = np.lexsort((times, day))
    late = int((np.diff(stamps) < 0).sum())
    for one in np.unique(day):
        rows = order[slice(*np.searchsorted(day[order], [one, one + 1]))]
        days.add(
            str(np.datetime64(int(one), "D")),
            times[rows],
            marks[rows],
            float(session[0]),
            float(session[1]),
        )
    notes = [f"{late:,} trades came after a later one and were sorted by time"] if late else []
    return cut(days, seconds, source, "trades", notes)


def _add_messages(days: Days, file: Path, mark: Mark) -> list[str]:
    sheet = read_sheet(file, LOBSTER, dict.fromkeys(("time", "type", "direction"), ()), MESSAGE)
    times = sheet.numbers("time")
    kinds = sheet.numbers("type")
    directions = sheet.numbers("direction")
    odd = np.flatnonzero(~np.isin(kinds, range(1, 8)))
    if len(odd):
        row = int(odd[0])
        raise sheet.error("a type from 1 to 7", row, f"{kinds[row]:g}")
    trades = mark == "side"
    wanted = np.isin(kinds, (4, 5) if trades else tuple(KINDS))
    odd = np.flatnonzero(wanted & ~np.isin(directions, (-1, 1)))
    if len(odd):
        row = int(odd[0])
        raise sheet.error("a direction of 1 or -1", row, f"{directions[row]:g}")
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        row = int(back[0]) + 1
        raise sheet.error(f"times in order, at least {times[row - 1]}", row, f"{times[row]}")
    sell = directions[wanted] < 0
    # The order that a trade removes stood on the other side than the one that started the trade.
    if trades:
        marks = np.where(sell, 0, 1)
    else:
        kind = kinds[wanted].astype(np.int64)
        marks = 2 * (kind - 1) + sell
    told = NAME.match(file.name)
    notes = []
    if told:
        day = f"{told['ticker']} {told['day']}"
        start = int(told["start"]) / 1000
        stop = int(told["end"]) / 1000
    else:
        day = file.stem
        start, stop = NEW_YORK
        notes.append(
            f"{file.name} does not say from when to when it was recorded: taken as 9:30 to 16:00"
        )
    days.add(day, times[wanted], marks.astype(np.int64), start, stop)
    others = np.count_nonzero(~wanted)
    if others:
        what = "no trades" if trades else "of types 6 and 7"
        notes.append(f"{file.name}: {others:,} of {len(wanted):,} messages are {what}")
    halts = np.count_nonzero(kinds == 7)
    if halts:
        notes.append(
            f"{file.name}: {halts} messages of halts; the time in a halt counts as observed"
        )
    return notes


def _stamps(sheet: Sheet, clock: Clock) -> tuple[NDArray[np.int64], int]:
    """Stamps as whole numbers since 1970, and how many make a second."""
    texts = sheet.texts("time")
    if not bool(pc.all(pc.match_substring_regex(texts, r"^-?\d+$")).as_py()):
        return sheet.stamps("time"), PER_SECOND["us"]
    try:
        return np.array(pc.cast(texts, pa.int64())), PER_SECOND[clock]
    except (pa.ArrowInvalid, KeyError) as error:
        raise EventDataError(
            PLAIN,
            f"{sheet.source}: times too large, or the clock {clock!r} ({error})",
            "Use s, ms, us or ns.",
        ) from None


def _sides(sheet: Sheet) -> NDArray[np.int64]:
    encoded = pc.utf8_lower(sheet.texts("side")).dictionary_encode()
    codes = np.asarray(encoded.indices)
    sides = []
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        if name not in SIDES:
            row = int(np.argmax(codes == code))
            raise sheet.error("a side: buy or sell, B or S, 1 or -1", row, name)
        sides.append(SIDES[name])
    return np.array(sides, dtype=np.int64)[codes]


MOST_WINDOWS = 10_000_000


@dataclass
class Days:
    """Events day by day, each with its observed window in seconds after midnight."""

    space: MarkSpace
    ids: list[str] = field(default_factory=list)
    times: list[NDArray[np.float64]] = field(default_factory=list)
    marks: list[NDArray[np.int64]] = field(default_factory=list)
    windows: list[tuple[float, float]] = field(default_factory=list)
    outside: int = 0

    def add(
        self,
        id: str,
        times: NDArray[np.float64],
        marks: NDArray[np.int64],
        start: float,
        stop: float,
    ) -> None:
        """One day's events in order of time; those outside its window are counted and left out."""
        inside = (times >= start) & (times < stop)
        self.outside += int((~inside).sum())
        self.ids.append(id)
        self.times.append(times[inside])
        self.marks.append(marks[inside])
        self.windows.append((start, stop))


def cut(
    days: Days, seconds: float, source: Path, name: str, notes: list[str]
) -> tuple[Dataset, list[str]]:
    """The days as a data set, in windows of ``seconds`` or whole where that is 0, and the notes
    with what was left out.

    The last window of a day may be shorter. Times stay seconds after midnight.

    >>> days = Days(MarkSpace())
    >>> days.add("monday", np.array([1.0, 2.5, 7.0]), np.zeros(3, int), 0.0, 8.0)
    >>> [
    ...     (s.id, s.start, s.stop, s.times.tolist())
    ...     for s in cut(days, 3.0, Path("x.csv"), "x", [])[0]
    ... ]
    [('monday 0', 0.0, 3.0, [1.0, 2.5]), ('monday 1', 3.0, 6.0, []), ('monday 2', 6.0, 8.0, [7.0])]
    """
    if not (np.isfinite(seconds) and seconds >= 0):
        raise UserError(
            "windows of a length in seconds, or 0 for whole days",
            f"{seconds}",
            "Use seconds=300, say.",
        )
    total = sum(1 if not seconds else (stop - start) / seconds for start, stop in days.windows)
    if total > MOST_WINDOWS:
        raise UserError(
            f"at most {MOST_WINDOWS:,} windows",
            f"{total:,.0f} of {seconds} seconds",
            "Use longer ones.",
        )
    if not sum(len(times) for times in days.times):
        raise EventDataError(
            "at least one event",
            f"{source}: none in {len(days.ids)} days",
            "Check the file and the session.",
        )
    edges = [_edges(start, stop, seconds) for start, stop in days.windows]
    offsets = [np.zeros(1, dtype=np.int64)]
    base = 0
    for times, edge in zip(days.times, edges, strict=True):
        offsets.append(base + np.searchsorted(times, edge[1:], side="left"))
        base += len(times)
    data = Dataset(
        times=np.concatenate(days.times),
        mark_ids=np.concatenate(days.marks),
        offsets=np.concatenate(offsets).astype(np.int64),
        starts=np.concatenate([edge[:-1] for edge in edges]),
        stops=np.concatenate([edge[1:] for edge in edges]),
        marks=days.space,
        ids=tuple(
            id if len(edge) == 2 and not seconds else f"{id} {i}"
            for id, edge in zip(days.ids, edges, strict=True)
            for i in range(len(edge) - 1)
        ),
        unit="seconds",
        name=name,
    )
    if days.outside:
        left = f"{days.outside:,} events are outside the observed window and left out"
        notes = [*notes, left]
    return data, notes


def _edges(start: float, stop: float, seconds: float) -> NDArray[np.float64]:
    if not seconds:
        return np.array([start, stop])
    count = int(np.ceil((stop - start) / seconds))
    edges = start + seconds * np.arange(count)
    # Rounding may leave a last window of no length.
    kept = edges < stop - 1e-6 * seconds
    return np.append(edges[kept], stop)
