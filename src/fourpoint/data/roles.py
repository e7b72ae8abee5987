"""Which column is what: the time, the mark, the sequence, and in our own files the split and the
window.

A user names them, or they are guessed from names (in any case, "Received At" as "received_at") and
from what the first rows hold; a guess is reported by :meth:`Roles.line`. A file with columns
``seq_id`` and ``t`` is in our own format and is read as it says.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.calendar_windows import CALENDAR, By
from fourpoint.data.clocks import looks_like_time
from fourpoint.data.date_time import (
    best_time_of_day,
    is_date_alone,
    is_time_of_day,
    joined_name,
    parts_of,
)
from fourpoint.data.opened import Table, flat
from fourpoint.data.places import OWN, Place, guessed_places, place_names
from fourpoint.events import SPLITS, EventDataError

NONE = "none"  # what a user writes where there is no such column
# Names of columns, the likeliest first.
TIMES_TEXT = """
    t time times timestamp timestamps time_stamp datetime date_time event_time event_timestamp
    event_datetime ts when epoch unix_time occurred_at received_at created_at reported_at started_at
    start_time time_since_start date event_date
"""
MARKS_TEXT = """
    mark marks type event_type type_event types kind label labels category class event event_name
    action activity reason topic call_type incident_type complaint_type crime_type primary_type
    eventtype alert alarm fault typ art kategorie ereignis tipo categoria categoría catégorie
    service channel side signal sensor
"""
SEQUENCES_TEXT = """
    seq_id seq sequence sequence_id seqid seq_idx series series_id entity entity_id user user_id
    userid customer_id client_id account_id patient patient_id subject subject_id person_id session
    session_id device device_id machine machine_id sensor_id station_id vehicle_id case_id trace_id
    stream stream_id
"""
TIMES, MARKS, SEQUENCES = (text.split() for text in (TIMES_TEXT, MARKS_TEXT, SEQUENCES_TEXT))
TIME_NAME = re.compile(r"(^|_)(at|time|date|datetime|timestamp|ts|on)$|^(time|date)_")
MARK_NAME = re.compile(r"_(type|kind|category|class|label|mark|event)$")
SURE_MARK = re.compile(r"(^|_)(marks?|types?|kind|category|class|labels?)(_|$)")
VALUE = re.compile(r"\s*[-+]?\d+([.,]\d+)?\s*")  # a number in place of a column's name
SEQUENCE_NAME = re.compile(r"^id$|_id$")
# Sequences with several events, and events beyond the first of their sequences, from which a column
# with one value in each sequence is taken for a property of the sequences.
DESCRIBED = 5
REPEATS = 20
# A column groups events if a twentieth of its rows repeat a value, or one value comes back often;
# fewer rows than the least say nothing.
LEAST_ROWS = 20
LEAST_SHARED = 1 / 20
SOME_EVENTS = 3


@dataclass(frozen=True)
class Roles:
    """The columns in use, by role. ``calendar`` is set instead of ``sequence`` where windows are
    cut from the calendar.
    """

    time: str
    mark: str | None
    sequence: str | None
    calendar: By | None
    split: str | None
    window: tuple[str, str] | None
    own: bool
    guessed: tuple[str, ...]
    others: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    maybe_places: tuple[str, ...] = ()  # columns that look like a place and were not asked for
    unshared: tuple[str, ...] = ()  # columns called like sequences whose values do not come back

    def columns(self) -> list[str]:
        """All columns that have to be read."""
        wanted = [
            self.time,
            self.mark,
            self.sequence,
            self.split,
            *(self.window or ()),
            *self.places,
        ]
        return list(dict.fromkeys(name for name in wanted if name is not None))

    def line(self) -> str:
        """One line that says which column is what, and how to say otherwise."""
        sequence = "one sequence"
        if self.calendar:
            sequence = f"one sequence per {self.calendar}"
        elif self.sequence:
            sequence = f"sequence {self.sequence!r}"
        parts = [
            f"time {self.time!r}",
            f"mark {self.mark!r}" if self.mark else "no mark",
            sequence,
        ]
        if self.split:
            parts.append(f"split {self.split!r}")
        if self.window:
            start, stop = self.window
            parts.append(f"window {start!r} to {stop!r}")
        if self.places:
            parts.append(f"place {', '.join(map(repr, self.places))}")
        options = " ".join(f"--{role}" for role in self.guessed)
        rivals = ""
        if self.others:
            rivals = f"; other times are {', '.join(map(repr, self.others))}"
        return f"columns: {', '.join(parts)} (guessed; {options} to choose{rivals})"

    def unshared_lines(self) -> list[str]:
        """Why columns that are called like sequences were not taken for the sequence."""
        return [
            f"column {name!r} is different in almost every row, so it does not group events: pass "
            f"--sequence {shlex.quote(name)} if each is an entity"
            for name in self.unshared
        ]


def choose_roles(
    table: Table,
    time: str | None = None,
    mark: str | None = None,
    sequence: str | None = None,
    place: Place | None = None,
    *,
    complete: bool = True,
) -> Roles:
    """Give each role a column of ``table``: the one named, or the best guess.

    ``mark`` and ``sequence`` may be "none"; ``sequence`` may be "hour", "day" or "week" for
    calendar windows. ``place`` names columns of numbers and is never guessed; "none" leaves out
    even those of our own files. A column that is different in almost every row is not guessed to
    be the sequence; that is not asked of a ``table`` that is not ``complete``, since it may be the
    beginning of one in which values come back later. Fails with :class:`EventDataError` where no
    column can be the time, or a named one is missing.

    >>> from fourpoint.data.tables import open_table
    >>> roles = choose_roles(
    ...     open_table(
    ...         {
    ...             "ID": [1, 2],
    ...             "Received At": ["2024-05-01", "2024-05-02"],
    ...             "Call Type": ["fire", "fire"],
    ...         }
    ...     )
    ... )
    >>> roles.line()
    "columns: time 'Received At', mark 'Call Type', one sequence (guessed; ...)"
    """
    names = table.schema.names
    if {"seq_id", "t"} <= set(names) and time is None and mark is None and sequence is None:
        return _own(table, names, place)
    guess = _Guess(table, complete=complete)
    chosen_time = guess.time() if time is None else _named(table, time, "time")
    places = tuple(_named(table, name, "place") for name in place_names(place))
    joined = parts_of(names, chosen_time) or ()
    taken = {chosen_time, *joined, *places}
    calendar = _calendar(sequence, guess, chosen_time)
    unshared: tuple[str, ...] = ()
    if sequence is None:
        chosen_sequence, unshared = guess.sequence(taken)
    else:
        chosen_sequence = (
            None if calendar or _is_none(sequence, names) else _named(table, sequence, "sequence")
        )
    taken |= {chosen_sequence} if chosen_sequence else set()
    if mark is None:
        chosen_mark = guess.mark(taken, chosen_sequence)
    elif _is_none(mark, names):
        chosen_mark = None
    else:
        chosen_mark = _named(table, mark, "mark")
    guessed = tuple(
        role
        for role, given in (("time", time), ("mark", mark), ("sequence", sequence))
        if given is None
    )
    others = guess.rivals(chosen_time) if time is None else ()
    in_use = {chosen_time, *joined, chosen_mark, chosen_sequence, *places}
    split = guess.split()
    window = guess.window() if chosen_sequence else None
    split = None if split in in_use else split
    window = None if window is not None and in_use & set(window) else window
    if places or place is not None:
        maybe: tuple[str, ...] = ()
    else:
        maybe = guess.places({chosen_time, *joined, chosen_mark, chosen_sequence})
    roles = Roles(
        chosen_time,
        chosen_mark,
        chosen_sequence,
        calendar,
        split,
        window,
        False,
        guessed,
        others,
        places,
        maybe,
        unshared,
    )
    _check_once(table, [*roles.columns(), *joined])
    _check_different(table, roles)
    return roles


def guess_time(table: Table) -> str:
    """The column of ``table`` that looks like its times."""
    return _Guess(table).time()


def named_columns(table: Table, names: Ordered[str], role: str) -> tuple[str, ...]:
    """The columns that a user names for a role, in any spelling, each once."""
    found = [_named(table, name, role) for name in names]
    once = tuple(dict.fromkeys(found))
    _check_once(table, list(once))
    return once


def _own(table: Table, names: list[str], place: Place | None) -> Roles:
    mark = "mark" if "mark" in names else None
    split = "split" if "split" in names else None
    window = None
    if "start" in names and "stop" in names:
        window = ("start", "stop")
    if place is None:
        places = tuple(name for name in names if name.startswith(OWN))
    else:
        asked = [name if name in names else OWN + name for name in place_names(place)]
        places = tuple(_named(table, name, "place") for name in asked)
    roles = Roles("t", mark, "seq_id", None, split, window, True, (), places=places)
    _check_once(table, roles.columns())
    return roles


def _check_once(table: Table, columns: list[str]) -> None:
    for name in columns:
        count = table.schema.names.count(name)
        if count > 1:
            raise table.error(
                f"one column {name!r}", f"{count} of them", "Rename or drop the others."
            )


def _check_different(table: Table, roles: Roles) -> None:
    """Refuse one column in two roles: times are no types, and types do not tell sequences apart."""
    named = [
        ("time", roles.time),
        ("mark", roles.mark),
        ("sequence", roles.sequence),
        *(("place", name) for name in roles.places),
    ]
    first: dict[str, str] = {}
    for role, name in named:
        if name is None:
            continue
        if name in first:
            expected = f"different columns for the {first[name]} and the {role}"
            raise table.error(
                expected,
                f"{name!r} for both",
                f"Name another with {first[name]}= or {role}= (--{first[name]}, --{role}).",
            )
        first[name] = role


def _named(table: Table, wanted: str, role: str) -> str:
    """The column a user means: by its exact name, else in any spelling of it."""
    names = table.schema.names
    if wanted in names:
        return wanted
    plain = plain_name(wanted)
    same = [name for name in names if plain_name(name) == plain]
    if len(same) == 1:
        return same[0]
    if role == "time":
        pair = parts_of(names, wanted)
        if pair is not None:
            return joined_name(*pair)
    words = [*names, *CALENDAR] if role == "sequence" else names
    lower = [name.lower() for name in words]
    near = same or get_close_matches(wanted.lower(), lower, n=2, cutoff=0.5)
    near = [name for name in words if name in near or name.lower() in near]
    remedy = f"Name one of them with {role}=."
    if near:
        remedy = f"Did you mean {' or '.join(map(repr, near))}?"
    raise table.error(
        f"a column {wanted!r} for the {role}",
        f"only {_listed(names) or 'no columns'}",
        remedy,
    )


def _listed(names: list[str]) -> str:
    """The first names, and whether there are more."""
    listed = ", ".join(map(repr, names[:12]))
    if len(names) > 12:
        listed += ", ..."
    return listed


def _is_none(word: str, names: list[str]) -> bool:
    return word == NONE and NONE not in names


def _calendar(sequence: str | None, guess: _Guess, time: str) -> By | None:
    """The unit of the calendar that ``sequence`` names. A column of that name is meant where times
    are plain numbers.
    """
    for unit in CALENDAR:
        if unit == sequence:
            is_column = unit in guess.names and guess.kind(time) == "number"
            return None if is_column else unit
    return None


def plain_name(name: str) -> str:
    """A name in lower case, words joined by underscores: "Received At", "receivedAt" and
    "RECEIVED_AT" are one.
    """
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.strip())
    return re.sub(r"[\W_]+", "_", words).strip("_").lower()


class _Guess:
    """Guesses over one table; its first rows are read once, when they are first needed."""

    def __init__(self, table: Table, *, complete: bool = True) -> None:
        self.table = table
        self.complete = complete
        self.names = table.schema.names
        self.counts = Counter(self.names)
        self.types = dict(
            zip(reversed(self.names), reversed(table.schema.types), strict=True)
        )  # of equal names the first
        self.plain = {name: plain_name(name) for name in self.names}
        self.kinds: dict[str, str] = {}
        self.rows: dict[str, pa.ChunkedArray] = {}

    def head(self, name: str) -> pa.ChunkedArray:
        """The first rows of a column."""
        if name not in self.rows:
            self.rows[name] = self.table.head([name])[name].drop_null()
        return self.rows[name]

    def kind(self, name: str) -> str:
        """What a column holds: "clock", "number", "text", "flag", "nothing" yet, or "other"."""
        if parts_of(self.names, name) is not None:
            return "clock"
        if name not in self.kinds:
            self.kinds[name] = self._kind(name)
        return self.kinds[name]

    def _kind(self, name: str) -> str:
        kind = self.types[name]
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return "clock"
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return "number"
        if pa.types.is_null(kind):
            return "nothing"
        if pa.types.is_boolean(kind):
            return "flag"
        if pa.types.is_binary(kind):  # words that are not UTF-8, which reading the column refuses
            return "text"
        if not (
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_string_view(kind)
        ):
            return "other"
        rows: Any = self.head(name) if self.counts[name] == 1 else ()
        return "clock" if len(rows) and looks_like_time(str(rows[0])) else "text"

    def time(self) -> str:
        """The column of times: by a usual name, else by what it holds."""
        usable = [name for name in self.names if self.kind(name) in ("clock", "number", "nothing")]
        by_name = [name for word in TIMES for name in usable if self.plain[name] == word]
        clocks = [name for name in self.names if self.kind(name) == "clock"]
        like = [name for name in clocks if TIME_NAME.search(self.plain[name])]
        numbers = [name for name in usable if TIME_NAME.search(self.plain[name])]
        found = by_name or like or clocks or numbers
        # A word in a column of times is better named with its line than as a missing column.
        found = found or [
            name
            for word in TIMES
            for name in self.names
            if self.plain[name] == word and self.kind(name) == "text"
        ]
        if found and looks_like_time(found[0]):
            raise self._no_header(found[0])
        # A title above the header looks like one column, whose rows have another number of them.
        if not found and len(self.names) > 1 and not self.table.head(self.names[:1]).num_rows:
            raise self.table.error(
                "at least one event",
                "a table without rows",
                "Check the query or program that wrote the file.",
            )
        if not found:
            value = next((name for name in self.names if VALUE.fullmatch(name)), None)
            if value is not None:
                raise self._no_header(value)
            listed = _listed(self.names)
            near = usable or self.names
            if len(self.names) == 1 and self.kind(self.names[0]) != "number":
                remedy = "Remove what stands above the header line, or check the separator."
            elif near:
                remedy = f"Name it, for example with time={near[-1]!r} (--time)."
            else:
                remedy = "Add a column of times."
            raise self.table.error(
                "a column of times", f"none among {listed or 'no columns'} looks like one", remedy
            )
        return self._with_time_of_day(found[0])

    def _with_time_of_day(self, time: str) -> str:
        """A column of dates joined with that of the time of day, where there is one."""
        if self.counts[time] != 1 or not is_date_alone(self.head(time)):
            return time
        times = [
            name
            for name in self.names
            if name != time and self.counts[name] == 1 and self._may_be_time_of_day(name)
        ]
        found = best_time_of_day(time, times, self.plain)
        return time if found is None else joined_name(time, found)

    def _may_be_time_of_day(self, name: str) -> bool:
        kind = self.types[name]
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_time(kind):
            return True
        return self.kind(name) == "text" and is_time_of_day(self.head(name))

    def _no_header(self, value: str) -> EventDataError:
        """The error for a table whose first row was taken for the names of its columns."""
        return self.table.error(
            "a header line",
            f"{value!r} as the name of a column",
            "Put the names of the columns into the first line, or name the column of times with "
            "time= (--time).",
        )

    def rivals(self, time: str) -> tuple[str, ...]:
        """Other columns that hold stamps."""
        used = (time, *(parts_of(self.names, time) or ()))
        found = []
        for name in self.names:
            if name not in used and self.kind(name) == "clock":
                found.append(name)
        return tuple(found[:3])

    def sequence(self, taken: set[str]) -> tuple[str | None, tuple[str, ...]]:
        """The column that says which sequence a row belongs to, and those that are called so but
        do not group events. A number that each row has for itself is none.
        """
        usable = [name for name in self.names if name not in taken and self._is_label(name)]
        strong = [name for word in SEQUENCES for name in usable if self.plain[name] == word]
        weak = [
            name
            for name in usable
            if SEQUENCE_NAME.search(self.plain[name]) and self._repeats(name)
        ]
        unshared: list[str] = []
        for name in strong + weak:
            if self._groups(name):
                return name, tuple(unshared)
            unshared.append(name)
        return None, tuple(unshared)

    def _groups(self, name: str) -> bool:
        """Whether rows share values of a column. The first rows of a long log may come from
        different sequences each, so that all rows are looked at before it is denied.
        """
        if self.counts[name] > 1 or not self.complete:
            return True
        rows = self.head(name)
        if len(rows) < LEAST_ROWS or _shares_values(rows):
            return True
        beginning = self.table.beginning
        if beginning is not None and _has_frequent_value(beginning([name])[name]):
            return True
        return _shares_values(self.table.load([name])[name].drop_null())

    def mark(self, taken: set[str], sequence: str | None = None) -> str | None:
        """The column of types. Text that is different in every row is none, and neither is a
        property of the sequences, such as the type of each machine.
        """
        usable = [name for name in self.names if name not in taken and self._may_be_mark(name)]
        strong = [name for word in MARKS for name in usable if self.plain[name] == word]
        weak = [name for name in usable if MARK_NAME.search(self.plain[name])]
        return next(
            (
                name
                for name in strong + weak
                if self._repeats(name, sure=bool(SURE_MARK.search(self.plain[name])))
                and not self._describes(sequence, name)
            ),
            None,
        )

    def _describes(self, sequence: str | None, name: str) -> bool:
        """Whether a column has one value in each sequence, and different ones in different
        sequences, in so many of the first rows that this is hardly chance.
        """
        if sequence is None or self.counts[sequence] > 1 or self.counts[name] > 1:
            return False
        rows = self.table.head([sequence, name])
        sequences, values = (_codes(rows[column]) for column in (sequence, name))
        sizes = np.bincount(sequences)
        pairs = np.unique(np.stack([sequences, values], 1), axis=0)
        constant = len(pairs) == len(sizes)
        differs = bool((values != values[:1]).any())
        often = (sizes > 1).sum() >= DESCRIBED and len(values) - len(sizes) >= REPEATS
        return constant and differs and often

    def split(self) -> str | None:
        """A column "split" whose words are ours."""
        named = [
            name for name in self.names if self.plain[name] == "split" and self.kind(name) == "text"
        ]
        return next(
            (
                name
                for name in named
                if set(map(str, pc.unique(self.head(name)).to_pylist())) <= set(SPLITS)
            ),
            None,
        )

    def window(self) -> tuple[str, str] | None:
        """Columns with the window of each sequence."""
        place = {plain: name for name, plain in self.plain.items()}
        pairs = (("start", "stop"), ("window_start", "window_stop"), ("window_start", "window_end"))
        for start, stop in pairs:
            if start in place and stop in place:
                return place[start], place[stop]
        return None

    def places(self, taken: set[str | None]) -> tuple[str, ...]:
        """Two columns of numbers that look like a place on a map."""
        found = guessed_places(
            {
                name: word
                for name, word in self.plain.items()
                if name not in taken and self.kind(name) == "number"
            }
        )
        return tuple(found)

    def _is_label(self, name: str) -> bool:
        return self.kind(name) == "text" or (
            self.kind(name) == "number" and not pa.types.is_floating(self.types[name])
        )

    def _may_be_mark(self, name: str) -> bool:
        # A column called so is meant, and is refused with its type where it holds fractions.
        meant = self.plain[name] == "mark" and self.kind(name) == "number"
        return meant or self._is_label(name) or self.kind(name) == "flag"

    def _repeats(self, name: str, sure: bool = False) -> bool:
        """Whether values come back in the first rows; of a name that leaves little doubt that is
        asked of longer tables alone.
        """
        rows = self.head(name)
        fewest = 20 if sure else 2
        if len(rows) < fewest:
            return True
        distinct = len(pc.unique(rows))
        return 2 * distinct <= len(rows) + 1


def _shares_values(column: pa.ChunkedArray) -> bool:
    """Whether a twentieth of the rows repeat a value, or one value comes back often.

    >>> _shares_values(pa.chunked_array([list(range(100))]))
    False
    >>> _shares_values(pa.chunked_array([[*range(95), 1, 2, 3, 4, 5]]))
    True
    """
    sizes = np.bincount(_codes(column))
    repeated = len(column) - len(sizes)
    often = int(sizes.max(initial=0)) > SOME_EVENTS
    return often or repeated >= LEAST_SHARED * len(column)


def _has_frequent_value(column: pa.ChunkedArray) -> bool:
    """Whether one value comes back often.

    >>> _has_frequent_value(pa.chunked_array([[1, 2, None, None, None, None]]))
    False
    >>> _has_frequent_value(pa.chunked_array([[1, 2, 1, 1, 1]]))
    True
    """
    sizes = np.bincount(_codes(column.drop_null()))
    return int(sizes.max(initial=0)) > SOME_EVENTS


def _codes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Numbers from 0 for the distinct values of a column, of which a null is one.

    ``Table.group_by`` and ``Array.to_numpy`` would import pandas.

    >>> _codes(pa.chunked_array([["a", None, "b", "a"]])).tolist()
    [0, 1, 2, 0]
    """
    whole = column.combine_chunks()
    if isinstance(whole, pa.DictionaryArray):
        whole = whole.dictionary_decode()
    encoded = pc.dictionary_encode(whole, null_encoding="encode")
    return flat(encoded.indices, np.int64)
