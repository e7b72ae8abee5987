"""Lines of a feed as events: JSON objects, or rows of CSV or TSV below a header.

    {"time": 12.5, "mark": "fire", "station": "north"}                when,what,station
                                                                      2024-05-01T09:30:00,fire,north

The first line that is not blank shows which of the two it is. Columns have the names that were
asked for, else those of the training log, else "time" and "mark"; with ``by="station"`` the column
of that name says whose event it is. Other columns are not looked at. All that can be wrong with a
line is an error with three clauses which the feed tells and goes on from; it is returned, not
raised, since a feed may hold many such lines. What is wrong with every line (a header without the
columns, timestamps for a model of numbers) is raised.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import repeat
from math import isfinite, nan
from operator import contains, itemgetter
from typing import Any

from fourpoint.data.clocks import looks_like_time
from fourpoint.data.roles import MARKS, TIMES, plain_name
from fourpoint.data.text_tables import separator_of
from fourpoint.events import UserError
from fourpoint.streaming.feed.encoding import loader
from fourpoint.streaming.feed.events import Columns, Event
from fourpoint.streaming.feed.lines import LONGEST, Line
from fourpoint.streaming.feed.state import Header
from fourpoint.streaming.feed.times import Contradiction, Moment, TimeReader

PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"SQLite": "SQLite",
}
TABLES = (".csv", ".tsv")


@dataclass(frozen=True)
class Asked:
    """The columns that the user names; None: as in the training log."""

    time: str | None = None
    mark: str | None = None
    by: str | None = None


class EventReader:
    """Turns lines into events.

    Args:
        marks: the model's names with their numbers; empty where it has no marks.
        asked: columns that the user names.
        times: how times are read, with the training log where that is known.
        name: of the input, whose ending may say that it is a table.
        header: of a feed that is gone on with; None where its first line has not been read.
        features: the columns of event features that the model needs.

    >>> reader = EventReader({"fire": 0, "medical": 1}, Asked(), TimeReader(None, ""))
    >>> reader(Line(1, b'{"time": 2, "mark": "fire"}', 27))
    Event(time=2.0, mark=0, entity=None, at=2.0, features=())
    >>> print(reader(Line(2, b'{"time": "noon", "mark": "fire"}', 16)))
    expected "time" as a number; received 'noon'. Write it without quotes, in the model's unit.
    """

    def __init__(
        self,
        marks: Mapping[str, int],
        asked: Asked,
        times: TimeReader,
        name: str = "",
        header: Header | None = None,
        features: tuple[str, ...] = (),
    ) -> None:
        self.marks = marks
        self.times = times
        self.name = name
        self.header = header
        self.by = None if times.calendar is not None else asked.by
        self.features = features
        self._asked = asked
        self._time = _names(asked.time, times.log.time, "time")
        self._mark = _names(asked.mark, times.log.mark, "mark")
        # A model fitted to a log without types takes lines of that log, whatever else they hold.
        self._unmarked = not marks and times.known and asked.mark is None
        self._begun = header is not None

    def __call__(self, line: Line) -> Event | UserError | None:
        """The event of a line, the error in it, or None for a blank line and for the header.

        Raises where the first event contradicts the training log, since all others will.
        """
        found = self._read(line)
        if isinstance(found, Contradiction) and not self._begun:
            raise found
        self._begun = self._begun or isinstance(found, Event)
        return found

    @property
    def _plain(self) -> bool:
        """Whether lines are objects whose times are numbers in the model's unit, without event
        features.
        """
        if self.features or not self._begun or self.times.stamped:
            return False
        return not (self.header and self.header.separator)

    def columns(self, contents: list[bytes]) -> Columns | None:
        """The events of lines that are all plain objects, parsed at once; None if any is not, and
        must be read by itself.

        The lines become one array of JSON. It has an object per line, since each has one pair of
        braces, at its ends, and no text goes on over a line end, which JSON forbids.
        """
        if not self._plain or not contents:
            return None
        joined = b"\n,".join(contents)
        count = len(contents)
        whole = (
            joined.startswith(b"{")
            and joined.endswith(b"}")
            and joined.count(b"}\n,{") == count - 1
        )
        if not whole or joined.count(b"{") != count or joined.count(b"}") != count:
            return None
        try:
            objects = loader()(b"[" + joined + b"]")
            times = _numbers(list(map(itemgetter(self._time[0]), objects)))
            marks = self._marks_of(objects)
            entities = None if self.by is None else _texts(list(map(itemgetter(self.by), objects)))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return Columns(times, marks, entities)

    def _marks_of(self, objects: list[dict[str, Any]]) -> list[int]:
        """The numbers of the marks of plain objects; raises KeyError where one has none, or one too
        many.
        """
        if self.marks:
            name = self._mark[0]
            marks = self.marks
            values = [fields[name] for fields in objects]
            return [marks[str(value) if type(value) is int else value] for value in values]
        if not self._unmarked:
            for name in self._mark:
                if any(map(contains, objects, repeat(name))):
                    raise KeyError(name)
        return [0] * len(objects)

    def read(self, lines: list[Line]) -> list[Event | UserError | None]:
        """Each line as by calling the reader. Objects with numbers as times, which most lines are,
        are read by a shorter way.
        """
        found: list[Event | UserError | None] = (
            list(self._plain_objects(lines)) if self._plain else [None] * len(lines)
        )
        return [
            self(line) if event is None else event for line, event in zip(lines, found, strict=True)
        ]

    def _plain_objects(self, lines: list[Line]) -> Iterator[Event | None]:
        """The events of JSON objects whose fields have the names and types that they should have;
        None for all other lines.

        A fast parser may read very large whole numbers as floats: such lines are among the others.
        This loop runs once per event, and is written for speed: names are local, and a tuple is
        made without the call of a constructor in Python.
        """
        loads = loader()
        new = tuple.__new__
        by = self.by
        marks = self.marks
        time_name = self._time[0]
        mark_name = self._mark[0]
        unmarked = 0 if self._unmarked or self.marks else None
        for _, content, _, rest in lines:
            try:
                fields: Any = loads(content) if content and not rest else None
                time = fields[time_name]
                mark: Any = unmarked
                if marks:
                    value = fields.get(mark_name)
                    mark = marks.get(str(value) if type(value) is int else value)
                elif mark is None:
                    mark = None if any(name in fields for name in self._mark) else 0
                entity = None if by is None else fields.get(by)
                when = float(time) if type(time) is float or type(time) is int else nan
            except (
                ValueError,
                KeyError,
                TypeError,
                IndexError,
                AttributeError,
                OverflowError,
                RecursionError,
            ):
                yield None
                continue
            if by is not None:
                entity = str(entity) if type(entity) is int else entity
                mark = mark if type(entity) is str and entity and entity.isascii() else None
            if mark is not None and isfinite(when):
                yield new(Event, (when, mark, entity, when, ()))
            else:
                yield None

    def _read(self, line: Line) -> Event | UserError | None:
        if line.content is None:
            return UserError(
                f"a line of at most {LONGEST:,} bytes",
                f"{line.size:,} bytes",
                "Write one event per line.",
            )
        if line.content.isspace() or not line.content:
            return None
        if line.rest:
            return UserError(
                "nothing more in a line that has been scored",
                _shown(line.content),
                "Write each line at once.",
            )
        if self.header is None:
            self._refuse_packed(line.content)
        try:
            text = line.content.decode("utf-8-sig" if line.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            where = f"byte 0x{line.content[error.start]:02x} at position {error.start}"
            return UserError("text in UTF-8", where, "Write the feed in UTF-8.")
        if self.header is None:
            self.header = self._found_header(text)
        if self.header.separator:
            return self._row(text)
        return self._object(text, line.content)

    def is_whole(self, line: Line) -> bool:
        """Whether a line without its end is an event already: nothing but blanks can follow a whole
        JSON object.
        """
        content = (line.content or b"").lstrip(b"\xef\xbb\xbf \t")
        return content.startswith(b"{") and not isinstance(self._read(line), UserError)

    def _object(self, text: str, content: bytes) -> Event | UserError:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            return UserError(
                _EXAMPLE, f"{_shown(content)} ({error})", "Write one JSON object per line."
            )
        if not isinstance(found, dict):
            return UserError(_EXAMPLE, _shown(content), "Write an object with a time, in braces.")
        return self.event(found)

    def event(self, found: dict[str, Any]) -> Event | UserError:
        """The event of a JSON object that has been parsed, or the error in it."""
        try:
            moment = self._moment(found)
            mark = 0 if self._unmarked else _mark(_first(found, self._mark), self.marks)
            entity = moment.window if self.by is None else _entity(found.get(self.by), self.by)
            features = tuple(_feature(found.get(name), name) for name in self.features)
        except UserError as error:
            return error
        return Event(moment.time, mark, entity, moment.at, features)

    def _moment(self, found: dict[str, Any]) -> Moment:
        name = next((name for name in self._time if name in found), None)
        if name is None:
            received = f"fields {_shown(', '.join(found))}" if found else "no field"
            raise UserError(f'a "{self._time[0]}"', received, "Give every event its time.")
        value = found[name]
        if isinstance(value, str) and (
            self.times.stamped or (self.times.known and looks_like_time(value))
        ):
            return self.times.text(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(
                f'"{name}" as a number',
                _shown(value),
                "Write it without quotes, in the model's unit.",
            )
        return self._number(value, name)

    def _number(self, value: float, name: str) -> Moment:
        try:
            finite = isfinite(value)
            shown = str(value)
        except OverflowError:
            finite, shown = False, "inf"
        if not finite:
            raise UserError(f'a finite "{name}"', shown, "Repair or remove the event.")
        return self.times.number(value)

    def _row(self, text: str) -> Event | UserError | None:
        header = self.header or Header()
        if text.rstrip("\r\n") == header.line:
            return None
        try:
            cells = _cells(text, header.separator)
            if len(cells) != header.width:
                raise UserError(
                    f"{header.width} columns, as in the header",
                    f"{len(cells)} in {_shown(text)}",
                    "Repair the line.",
                )
            moment = self._cell_moment(cells[header.time].strip())
            if header.mark is None:
                mark = 0
            else:
                mark = _mark(_cell_mark(cells[header.mark], self.marks), self.marks)
            entity = (
                moment.window if header.by is None else _entity(cells[header.by], self.by or "")
            )
            columns = zip(header.features, self.features, strict=True)
            features = tuple(_feature_cell(cells[place], name) for place, name in columns)
        except UserError as error:
            return error
        return Event(moment.time, mark, entity, moment.at, features)

    def _cell_moment(self, text: str) -> Moment:
        try:
            value: float = int(text) if text.lstrip("+-").isdigit() else float(text)
        except ValueError:
            return self.times.text(text)
        return self._number(value, "time")

    def _found_header(self, text: str) -> Header:
        """The header that the first line is; that of JSON Lines where it is none."""
        line = text.strip("\r\n")
        if line.lstrip().startswith("{"):
            return Header()
        separator = separator_of(line)
        try:
            names = [name.strip() for name in _cells(line, separator)]
        except UserError:
            return Header()
        time = (
            _place(names, self._time) if self._asked.time else _place(names, (*self._time, *TIMES))
        )
        table = self.name.lower().endswith(TABLES) or self._asked.time is not None
        if time is None and not table:
            return Header()
        if time is None:
            raise self._missing(self._time[0], "time", names)
        mark = None
        if self.marks:
            if self._asked.mark or self.times.known:
                mark = _place(names, self._mark)
            else:
                mark = _place(names, (*self._mark, *MARKS))
            if mark is None:
                raise self._missing(self._mark[0], "mark", names)
        by = None if self.by is None else _place(names, (self.by,))
        if self.by is not None and by is None:
            raise self._missing(self.by, "by", names)
        features = []
        for name in self.features:
            place = _place(names, (name,))
            if place is None:
                raise self._missing(name, None, names)
            features.append(place)
        return Header(separator, line, len(names), time, mark, by, tuple(features))

    def _missing(self, wanted: str, option: str | None, names: list[str]) -> UserError:
        near = get_close_matches(wanted, names, n=1)
        if option is None:
            remedy = "The model was fitted with this event feature: add the column."
        elif near:
            remedy = f"Did you mean --{option} {near[0]!r}?"
        else:
            remedy = f"Name it with --{option}."
        listed = ", ".join(map(_shown, names[:8])) + (", ..." if len(names) > 8 else "")
        return UserError(
            f"a column {wanted!r} in the header of {self.name or 'the feed'}",
            f"only {listed}",
            remedy,
        )

    def _refuse_packed(self, content: bytes) -> None:
        kind = next((name for magic, name in PACKED.items() if content.startswith(magic)), None)
        if kind is not None:
            programs = {"gzip": "zcat", "zstd": "zstdcat"}
            unpacked = programs.get(kind, "a program that prints its rows as CSV")
            remedy = f"Send it through a pipe: {unpacked} ... | fourpoint stream DIR."
            raise UserError(
                "lines of text: CSV, TSV or JSON Lines", f"{kind} in {self.name}", remedy
            )


def _numbers(values: list[Any]) -> list[float]:
    """Finite numbers as floats; raises ValueError for others."""
    kinds = set(map(type, values))
    if not kinds <= {float, int}:
        raise ValueError("not numbers")
    numbers: list[float] = list(map(float, values)) if int in kinds else values
    if not isfinite(sum(numbers)):  # a sum that overflows is rare, and costs no more than time
        raise ValueError("not finite")
    return numbers


def _texts(values: list[Any]) -> list[str]:
    """Names of entities, which are text in ASCII or whole numbers; raises ValueError for others."""
    kinds = set(map(type, values))
    if not kinds <= {str, int}:
        raise ValueError("not text")
    texts: list[str] = [str(value) for value in values] if int in kinds else values
    if not all(texts) or not "".join(texts).isascii():
        raise ValueError("not text in ASCII")
    return texts


def _names(asked: str | None, known: str | None, usual: str) -> tuple[str, ...]:
    """The names that a column may have, the likeliest first."""
    if asked is not None:
        return (asked,)
    return tuple(dict.fromkeys(name for name in (known, usual) if name))


def _first(found: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value under the first of the names that is there."""
    return next((found[name] for name in names if name in found), None)


def _cells(text: str, separator: str) -> list[str]:
    if '"' not in text:
        return text.rstrip("\r\n").split(separator)
    try:
        rows = list(csv.reader([text], delimiter=separator, strict=True))
    except csv.Error as error:
        raise UserError(
            "a row of columns in one line", f"{_shown(text)} ({error})", "Repair the quotes in it."
        ) from None
    return rows[0] if rows else []


def _place(names: list[str], wanted: tuple[str, ...]) -> int | None:
    """Where the first of the wanted names stands in a header, in any spelling; exact names go
    first.
    """
    for name in wanted:
        if name in names:
            return names.index(name)
    plain = [plain_name(name) for name in names]
    return next(
        (plain.index(plain_name(name)) for name in wanted if plain_name(name) in plain), None
    )


def _cell_mark(text: str, marks: Mapping[str, int]) -> str | None:
    """A mark in a cell as its name: whole numbers and truth values as the reader of tables spells
    them.
    """
    if text in marks or not text:
        return text or None
    bare = text.strip()
    if bare.lstrip("+-").isdigit():
        return str(int(bare))
    return bare.lower() if bare.lower() in ("true", "false") else bare


def _mark(value: object, marks: Mapping[str, int]) -> int:
    """The number of the mark. A whole number stands for the name that is spelled so."""
    if not marks:
        if value is not None:
            raise UserError(
                "no mark, since the model has none",
                f"mark {_shown(value)}",
                'Leave "mark" out, or fit a model with marks.',
            )
        return 0
    known: int | None = None
    if isinstance(value, str):
        known = marks.get(value)
    elif isinstance(value, int):
        known = marks.get(str(value).lower())
    if known is None:
        names = ", ".join(list(marks)[:8])
        if len(marks) > 8:
            names += f", ... ({len(marks)} in all)"
        raise UserError(
            f'a "mark" among {names}',
            "none" if value is None else _shown(value),
            "Use the names the model was fitted with.",
        )
    return known


def _entity(value: object, by: str) -> str:
    """The entity as text. A whole number and the text that spells it are one entity."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (isinstance(value, str) and value)):
        received = "none" if value is None else _shown(value)
        raise UserError(
            f'"{by}" as a text or a whole number',
            received,
            "Say whose event it is, or type --by none.",
        )
    text = str(value)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(
            f'"{by}" as text in Unicode', _shown(value), "Repair the half character in it."
        )
    return text


def _feature(value: object, name: str) -> float:
    """The event feature of a JSON object, which must be a finite number."""
    if value is None:
        raise UserError(
            f'"{name}", an event feature that the model was fitted with',
            "none",
            "Give every event its features.",
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f'"{name}" as a number', _shown(value), "Write it without quotes.")
    try:
        number = float(value)
    except OverflowError:
        number = nan
    if not isfinite(number):
        raise UserError(f'a finite "{name}"', _shown(value), "Repair or remove the event.")
    return number


def _feature_cell(text: str, name: str) -> float:
    """The event feature in a cell; a decimal comma is read as in the tables that `fit` reads."""
    bare = text.strip()
    if not bare:
        return _feature(None, name)
    try:
        return _feature(float(bare.replace(",", ".")), name)
    except ValueError:
        raise UserError(f'"{name}" as a number', _shown(text), "Repair the line.") from None


def _shown(value: object) -> str:
    """A value in quotes, and no more of it than fits a message."""
    text = value[:4096].decode(errors="replace") if isinstance(value, bytes) else value
    text = repr(text)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text):,} characters)"


_EXAMPLE = 'one JSON object such as {"time": 12.5}'
