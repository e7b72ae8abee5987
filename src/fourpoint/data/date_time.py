"""Times whose date and time of day stand in two columns, such as ``date`` and ``time``.

The two are one column called "date+time" for everything above `data.tables`: a table loads it as
text, the date, a space and the time of day, which is then parsed as any other timestamp is. Day and
month are told apart by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence as Ordered
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from fourpoint.data.opened import Table

SEPARATOR = "[+,]"
TIME_OF_DAY = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AaPp]\.?[Mm]\.?)?\s*")
DATE_ALONE = re.compile(
    r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})"
    r"([ T]+0?0:00(:00(\.0+)?)?)?\s*"
)
NAME = re.compile(r"(^|_)(time|clock|hour|tod|zeit|uhrzeit|heure|hora|ora|tijd|kl|klockslag)(_|$)")
# Lengths of time have the same form.
LENGTH = re.compile(r"duration|elapsed|dauer|length|wait|response|travel|until|durée|dur[ae]")
MIDNIGHT = r"[ T]+0?0:00(:00(\.0+)?)?\s*$"


def parts_of(names: Ordered[str], name: str) -> tuple[str, str] | None:
    """The columns of a date and a time of day that ``name`` joins, "date+time" or "date,time";
    None if it is the name of one column, or of columns that are not there.

    >>> parts_of(["date", "time", "what"], "date+time"), parts_of(["a+b"], "a+b")
    (('date', 'time'), None)
    """
    if name in names:
        return None
    for found in re.finditer(SEPARATOR, name):
        date = _column(names, name[: found.start()])
        time = _column(names, name[found.end() :])
        if date is not None and time is not None and date != time:
            return date, time
    return None


def joined_name(date: str, time: str) -> str:
    """The name of the column that joins the two."""
    return f"{date}+{time}"


def has_column(names: Ordered[str], name: str) -> bool:
    """Whether ``name`` is a column, or joins two that are there."""
    return name in names or parts_of(names, name) is not None


def with_joined_columns(table: Table) -> Table:
    """The table, which also loads columns that join a date and a time of day.

    >>> from fourpoint.data.tables import open_table
    >>> table = open_table({"date": ["1.5.2024"], "time": ["09:30"]})
    >>> table.load(["date+time"])["date+time"].to_pylist()
    ['1.5.2024 09:30']
    """

    def joining(load: Callable[[list[str]], pa.Table]) -> Callable[[list[str]], pa.Table]:
        def loaded(wanted: list[str]) -> pa.Table:
            names = table.schema.names  # names in a damaged file may not be UTF-8
            parts = {name: parts_of(names, name) or (name,) for name in wanted}
            if all(len(columns) == 1 for columns in parts.values()):
                return load(wanted)
            held = [column for name in wanted for column in parts[name]]
            read = load(list(dict.fromkeys(held)))
            found = {}
            for name, columns in parts.items():
                values = [read[column] for column in columns]
                found[name] = values[0] if len(values) == 1 else _joined(*values)
            return pa.table(found)

        return loaded

    return replace(table, head=joining(table.head), load=joining(table.load))


def is_date_alone(column: pa.ChunkedArray) -> bool:
    """Whether all values are dates without a time of day, or with midnight.

    >>> is_date_alone(pa.chunked_array([["2024-05-01", "2024-05-02"]]))
    True
    """
    some = _decoded(column).drop_null()
    if not len(some):
        return False
    if pa.types.is_date(some.type):
        return True
    if pa.types.is_timestamp(some.type):
        days = pc.floor_temporal(some, unit="day")
        return bool(pc.all(pc.equal(some, days)).as_py())
    return _all_match(DATE_ALONE, some)


def is_time_of_day(column: pa.ChunkedArray) -> bool:
    """Whether all values are times of day.

    >>> is_time_of_day(pa.chunked_array([["09:30", "9:45 PM"]]))
    True
    """
    some = _decoded(column).drop_null()
    if not len(some):
        return False
    if pa.types.is_time(some.type):
        return True
    return _all_match(TIME_OF_DAY, some)


def best_time_of_day(date: str, times: Ordered[str], plain: dict[str, str]) -> str | None:
    """Of the columns ``times``, which hold times of day, that which belongs to a column of dates;
    None where several could be meant. ``plain`` are the names in lower case with underscores.

    >>> plain = {name: name for name in ("start_date", "start_time", "end_time")}
    >>> best_time_of_day("start_date", ["start_time", "end_time"], plain)
    'start_time'
    """
    rest = re.sub(r"_?(date|day|datum|tag|fecha|jour|data)_?", "", plain[date])
    usual = []
    own = []
    for name in times:
        words = plain[name]
        if not NAME.search(words) or LENGTH.search(words):
            continue
        usual.append(name)
        if re.sub(f"_?{NAME.pattern}_?", "", words) == rest:
            own.append(name)
    for found in (own, usual):
        if len(found) == 1:
            return found[0]
    return None


def _all_match(form: re.Pattern[str], column: pa.ChunkedArray) -> bool:
    if not _is_text(column.type):
        return False
    try:
        words = column.slice(0, 50).to_pylist()  # enough to tell the form
    except UnicodeDecodeError:  # not UTF-8, which reading the column refuses
        return False
    return all(form.fullmatch(word) for word in words)


def _joined(date: pa.ChunkedArray, time: pa.ChunkedArray) -> pa.ChunkedArray:
    days = _decoded(date)
    hours = _decoded(time)
    if pa.types.is_integer(days.type):
        text = days.cast(pa.string())
        days = pc.replace_substring_regex(text, r"^(\d{4})(\d{2})(\d{2})$", r"\1-\2-\3")
    elif pa.types.is_timestamp(days.type) or pa.types.is_date(days.type):
        days = pc.strftime(days, "%Y-%m-%d")
    else:
        text = days.cast(pa.string())
        days = pc.replace_substring_regex(text, MIDNIGHT, "")
    days = pc.utf8_trim_whitespace(days)
    hours = pc.utf8_trim_whitespace(hours.cast(pa.string()))
    hours = pc.replace_substring_regex(hours, r"([AaPp])\.?([Mm])\.?$", r"\1\2")
    first = next(iter(days.slice(0, 1).to_pylist()), None)
    if re.match(r"\d{4}", first or ""):
        hours = _in_24_hours(hours)
    return pc.binary_join_element_wise(days, hours, " ")


def _in_24_hours(hours: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times such as 9:30 PM as 21:30, which ISO 8601 writes."""
    halves = pc.match_substring_regex(hours, r"[AaPp][Mm]$")
    if not pc.any(halves).as_py():
        return hours
    parts = pc.extract_regex(hours, r"^(?P<hour>\d{1,2})(?P<rest>:[^AaPp ]*)\s*(?P<half>[AaPp])")
    hour = pc.cast(pc.struct_field(parts, "hour"), pa.int64())
    rest = pc.struct_field(parts, "rest")
    half = pc.utf8_upper(pc.struct_field(parts, "half"))
    of_half = pc.if_else(pc.equal(hour, 12), 0, hour)
    noon = pc.if_else(pc.equal(half, "P"), 12, 0)
    of_day = pc.add(of_half, noon)
    text = pc.utf8_lpad(of_day.cast(pa.string()), 2, "0")
    shown = pc.binary_join_element_wise(text, rest, "")
    return pc.if_else(pc.fill_null(halves, False), shown, hours)


def _column(names: Ordered[str], wanted: str) -> str | None:
    wanted = wanted.strip()
    if wanted in names:
        return wanted
    same = [name for name in names if name.strip().lower() == wanted.lower()]
    if len(same) != 1:
        return None
    return same[0]


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
