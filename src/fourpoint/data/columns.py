"""Columns of a table, checked as a whole: each fault is an error with the file, the row or line,
and the value.

A column is read once and given up once it has become a numpy array, so that a large file is never
held twice. Rows are counted from 0, lines from 1.

Marks that are whole numbers are the types 0 to M-1 in our own files. In other tables they are that
where they are exactly those, and names otherwise: types coded 1 to 5, or 404 and 500, are five
types and two.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.expansion import Expansion
from fourpoint.data.grouping import Numbered, number
from fourpoint.data.opened import Table, flat, pieces, whole_numbers
from fourpoint.events import SPLITS, EventDataError, MarkSpace

MOST_TYPES = 1_000_000
HISTORY = "history"  # a split: events that condition and are not scored
# Numbers in text: with a decimal comma, with a comma that may separate thousands, with a point.
COMMA_NUMBER = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?$"
MAYBE_THOUSANDS = r"^[-+]?[1-9]\d{0,2},\d{3}$"
POINT_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
EXACT = 2**53  # whole numbers up to this are floats


@dataclass(frozen=True)
class Columns:
    """The columns of one table that are in use."""

    table: Table
    held: dict[str, pa.ChunkedArray]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def metadata(self, key: bytes) -> bytes | None:
        """What the file's metadata says under ``key``, or None."""
        metadata = self.table.schema.metadata
        if metadata is None:
            return None
        return metadata.get(key)

    def error(self, expected: str, received: str, remedy: str) -> EventDataError:
        """An error about this table."""
        return self.table.error(expected, received, remedy)

    def fault(
        self,
        name: str,
        expected: str,
        row: int,
        value: object,
        remedy: str,
    ) -> EventDataError:
        """An error about one row of a column."""
        shown = repr(value) if isinstance(value, str) else str(value)
        if len(shown) > 60:
            shown = f"{shown[:57]}..."
        return self.error(
            f"{expected} in column {name!r}",
            f"{shown} at {self.table.place(row)}",
            remedy,
        )

    def take(self, name: str) -> pa.ChunkedArray:
        """The Arrow column, without nulls; it is not held any longer."""
        column = self.held.pop(name)
        if column.null_count:
            row = int(pc.index(column.is_null(), True).as_py())
            raise self.error(
                f"a value in every row of column {name!r}",
                f"{column.null_count:,} null, the first at {self.table.place(row)}",
                "Remove or fill these rows.",
            )
        return column

    def type(self, name: str) -> pa.DataType:
        """The type of a column's values."""
        return value_type(self.held[name])

    def is_text(self, name: str) -> bool:
        """True if the column holds words (or true and false), False if whole numbers; anything else
        is refused.
        """
        kind = self.type(name)
        if is_words(kind) or pa.types.is_boolean(kind):
            return True
        if not (pa.types.is_integer(kind) or _whole(self.held[name])):
            if pa.types.is_binary(kind):
                row, value = _first_garbled(self.held[name])
                raise self.fault(name, "text in UTF-8", row, value, "Save the file as UTF-8.")
            raise self.error(
                f"whole numbers or text in column {name!r}",
                f"values of type {kind}",
                "Convert the column to one of them.",
            )
        return False

    def floats(
        self,
        name: str,
        remedy: str = "Convert it to numbers, or choose another column.",
    ) -> NDArray[np.float64]:
        """A column of finite numbers, also of text with decimal commas; ``remedy`` is what to do
        where it holds something else.
        """
        kind = self.type(name)
        column = self.take(name)
        if pa.types.is_decimal(kind):
            column = column.cast(pa.float64())
        elif is_words(kind):
            numbers = decimal_commas(column)
            if numbers is None:
                raise self._no_number(name, column, remedy)
            column = numbers
        elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise self.error(f"numbers in column {name!r}", f"values of type {kind}", remedy)
        decoded = _decoded(column)
        values: NDArray[np.float64] = flat(decoded, np.float64)
        if pa.types.is_integer(kind) and len(values) and float(np.abs(values).max()) > EXACT:
            self._check_exact(name, decoded, values)
        # A sum is finite where all parts are, and cheap; only where it is not do the parts have to
        # be looked at.
        with np.errstate(all="ignore"):
            total = values.sum()
        if not np.isfinite(total):
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise self.fault(
                    name,
                    "finite numbers",
                    int(bad[0]),
                    values[bad[0]],
                    "Remove or correct the row.",
                )
        return values

    def _no_number(self, name: str, column: pa.ChunkedArray, plain: str) -> EventDataError:
        """The error for words in place of numbers, with the first of them, or the first number with
        a comma where all are numbers, and with the ``plain`` remedy.
        """
        remedy = plain
        words = _decoded(column)
        point = pc.match_substring_regex(words, POINT_NUMBER)
        comma = pc.match_substring_regex(pc.utf8_trim_whitespace(words), COMMA_NUMBER)
        row = int(pc.index(pc.or_(point, comma), False).as_py())
        if row < 0:
            row = int(pc.index(point, False).as_py())
            remedy = (
                "Write all numbers with a decimal point and without separators of thousands, or "
                "choose another column."
            )
        if row < 0:
            return self.error(f"numbers in column {name!r}", f"values of type {words.type}", plain)
        value = words[row].as_py()
        return self.fault(name, "numbers", row, value, remedy)

    def _check_exact(self, name: str, column: pa.ChunkedArray, values: NDArray[np.float64]) -> None:
        """Refuse whole numbers that are no floats: neighbours would become one number, and their
        order would be lost.
        """
        first = 0
        for part in pieces(column):
            piece = values[first : first + len(part)]
            with np.errstate(invalid="ignore"):
                same = (np.abs(piece) < 2.0**63) & (piece.astype(np.int64) == part)
            bad = np.flatnonzero(~same & (np.abs(piece) > EXACT))
            if len(bad):
                i = int(bad[0])
                remedy = "Subtract a common start from all of them, or divide by a common unit."
                raise self.fault(
                    name,
                    f"whole numbers up to {EXACT:,}, which floats hold exactly,",
                    first + i,
                    part[i],
                    remedy,
                )
            first += len(part)

    def integers(self, name: str) -> NDArray[Any]:
        """A column of whole numbers, in the file's own integer type."""
        return flat(self._integers(name))

    def _integers(self, name: str) -> pa.ChunkedArray:
        column = _decoded(self.take(name))
        if pa.types.is_floating(column.type):
            return column.cast(pa.int64())
        return column

    def labels(self, name: str, most: int | None = None) -> tuple[Numbered, list[str]]:
        """Rows by the value they have, and the values as text in order of first appearance;
        ``most`` bounds their number.
        """
        if not self.is_text(name):
            numbered = self._numbered(name, pieces(self._integers(name)), most)
            return numbered, list(map(str, numbered.distinct.tolist()))
        column = self.take(name)
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.string())
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        elif any(chunk.dictionary.null_count for chunk in column.chunks):
            # A stored dictionary may hold values that no row has, in any order, and nulls.
            self.check_words(column)
            column = _decoded(column).dictionary_encode()
        encoded = column.unify_dictionaries()
        indices = [chunk.indices for chunk in encoded.chunks]
        codes = pa.chunked_array(indices, encoded.type.index_type)
        numbered = self._numbered(name, pieces(codes), most)
        words = pa.nulls(0, pa.string())
        if encoded.num_chunks:
            words = encoded.chunk(0).dictionary
        found = words.take(whole_numbers(numbered.distinct))
        return numbered, found.to_pylist()

    def _numbered(self, name: str, values: list[NDArray[Any]], most: int | None) -> Numbered:
        """Rows by the value they have, of which there are at most ``most``."""
        numbered = number(values)
        self.check_count(name, len(numbered.distinct), most)
        return numbered

    def check_words(self, column: pa.ChunkedArray, longest: int = sys.maxsize) -> None:
        """Refuse words that do not fit into memory once each row has its own; longer ones than
        ``longest`` are refused later.
        """
        size = min(decoded_size(column), longest * len(column))
        Expansion(self.table.label).check(size)

    def check_count(self, name: str, count: int, most: int | None) -> None:
        """Refuse more than ``most`` different values."""
        if most is not None and count > most:
            raise self.error(
                f"at most {most:,} types in column {name!r}",
                f"{count:,} different values in {len(self):,} rows",
                "Choose a column of types.",
            )


def open_columns(table: Table, names: list[str]) -> Columns:
    """Read the named columns of a table."""
    read = table.load(names)
    held = {name: _without_views(read[name]) for name in names}
    return Columns(table, held, int(read.num_rows))


def give_back() -> None:
    """Hand the memory of columns that are not held any longer back to the system."""
    pa.default_memory_pool().release_unused()


def value_type(column: pa.ChunkedArray) -> pa.DataType:
    """The type of the values, where they may be coded by a dictionary."""
    if pa.types.is_dictionary(column.type):
        return column.type.value_type
    return column.type


def is_words(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's types of text."""
    return any(
        test(kind)
        for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def decimal_commas(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Words such as "80,61" or "1.080,61" as numbers, if all of them have this form and at least
    one cannot have a comma between thousands, as "1,234" may; else None. Nulls stay.

    >>> decimal_commas(pa.chunked_array([["80,61", None, "1.080,5", "7"]])).to_pylist()
    [80.61, None, 1080.5, 7.0]
    >>> decimal_commas(pa.chunked_array([["1,234", "7"]])) is None
    True
    """
    words = pc.utf8_trim_whitespace(_decoded(column).cast(pa.string()))
    if not pc.all(pc.match_substring_regex(words, COMMA_NUMBER)).as_py():
        return None
    with_comma = words.filter(pc.match_substring(words, ","))
    if pc.all(pc.match_substring_regex(with_comma, MAYBE_THOUSANDS)).as_py() is not False:
        return None
    without = pc.replace_substring(words, ".", "")
    return pc.replace_substring(without, ",", ".").cast(pa.float64())


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def decoded_size(column: pa.ChunkedArray) -> int:
    """Bytes of all words of a column once each row has its own."""
    total = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            total += int(pc.sum(lengths, min_count=0).as_py())
        else:
            total += chunk.nbytes
    return total


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Views of strings, as polars has them, as strings: few of Arrow's functions take views."""
    if not pa.types.is_string_view(value_type(column)):
        return column
    words = pa.large_string()
    if not pa.types.is_dictionary(column.type):
        return column.cast(words)
    chunks = []
    for chunk in column.chunks:
        dictionary = chunk.dictionary.cast(words)
        chunks.append(pa.DictionaryArray.from_arrays(chunk.indices, dictionary))
    return pa.chunked_array(chunks, pa.dictionary(column.type.index_type, words))


def _first_garbled(column: pa.ChunkedArray) -> tuple[int, bytes]:
    """The first row whose bytes are not UTF-8, and those."""
    for row, value in enumerate(column):
        try:
            str(value.as_py() or b"", "utf-8")
        except UnicodeDecodeError:
            return row, value.as_py()
    return 0, b""


def _whole(column: pa.ChunkedArray) -> bool:
    """Whether a column of floats holds whole numbers alone, as a table with gaps in a column of
    integers may.
    """
    if not pa.types.is_floating(column.type) or not len(column):
        return False
    whole = pc.equal(column, pc.floor(column))
    exact = pc.less(pc.abs(column), 2.0**53)
    return bool(pc.all(whole).as_py()) and bool(pc.all(exact).as_py())


def read_marks(
    columns: Columns, name: str | None, names: Ordered[str] | None, own: bool
) -> tuple[NDArray[np.int64], MarkSpace]:
    """Each row's mark, and the space of marks: that of ``names`` where given, else of what the
    column holds.

    Words are types in alphabetical order, and marks that are all 0 are no marks.
    """
    if name is None:
        if names is not None and len(names) > 1 and not own:
            raise columns.error(
                f"a column of types, for {len(names)} marks",
                "none",
                "Name it with mark= (--mark).",
            )
        space = MarkSpace() if names is None else MarkSpace.of(tuple(names))
        return np.zeros(len(columns), dtype=np.int64), space
    if columns.is_text(name):
        numbered, words = columns.labels(name, MOST_TYPES)
        return _named_marks(columns, numbered, words, names)
    values = columns.integers(name)
    low = int(values.min()) if len(values) else 0
    high = int(values.max()) if len(values) else 0
    if not own and (names is not None or not _are_types(values, low, high)):
        numbered = number(values)
        columns.check_count(name, len(numbered.distinct), MOST_TYPES)
        words = list(map(str, numbered.distinct.tolist()))
        if names is None:
            names = sorted(words, key=int)
        return _named_marks(columns, numbered, words, names)
    if names is None and low == high == 0:
        return np.zeros(len(values), dtype=np.int64), MarkSpace()
    remedy = "Number the types from 0, or write them as text."
    limit = MOST_TYPES
    if names is not None:
        remedy = "Correct the mark, or name more types."
        limit = len(names)
    if low < 0 or high >= limit:
        outside = (values < 0) | (values >= limit)
        row = int(np.flatnonzero(outside)[0])
        raise columns.error(
            f"marks from 0 to {limit - 1}",
            f"{values[row]} at {columns.table.place(row)}",
            remedy,
        )
    space = MarkSpace.categorical(high + 1 if names is None else tuple(names))
    return values.astype(np.int64, copy=False), space


def read_splits(columns: Columns, name: str) -> tuple[NDArray[np.int32], NDArray[np.str_]]:
    """Each row's number among the splits that the column names, and those splits, of which one may
    be "history".
    """
    if not columns.is_text(name):
        raise columns.error(f"text in column {name!r}", "whole numbers", "Use train, dev and test.")
    numbered, words = columns.labels(name)
    known = (HISTORY, *SPLITS)
    odd = [i for i, word in enumerate(words) if word not in known]
    if odd:
        row = int(np.argmax(numbered.code() == odd[0]))
        word = words[odd[0]]
        near = get_close_matches(word.lower(), SPLITS, n=1)
        if word.lower().startswith("val"):
            near = ["dev"]
        remedy = f"Rename it to {near[0]!r}." if near else "Rename the values of the split column."
        raise columns.error(
            "splits called train, dev or test",
            f"{word!r} at {columns.table.place(row)}",
            remedy,
        )
    return numbered.code(), np.array(words, dtype=np.str_)


def _are_types(values: NDArray[Any], low: int, high: int) -> bool:
    """Whether whole numbers from ``low`` to ``high`` are exactly 0 to M-1."""
    if low != 0 or high >= min(MOST_TYPES, max(len(values), 1)):
        return False
    counts = np.bincount(values.astype(np.int64, copy=False))
    return bool((counts > 0).all())


def _named_marks(
    columns: Columns,
    numbered: Numbered,
    words: list[str],
    names: Ordered[str] | None,
) -> tuple[NDArray[np.int64], MarkSpace]:
    known = sorted(words) if names is None else names
    place = {word: i for i, word in enumerate(known)}
    odd = [i for i, word in enumerate(words) if word not in place]
    if odd:
        row = int(np.argmax(numbered.code() == odd[0]))
        word = words[odd[0]]
        near = get_close_matches(word, known, n=1)
        if near:
            remedy = f"Did you mean {near[0]!r}?"
        else:
            remedy = f"Known marks are like {', '.join(map(repr, known[:3]))}."
        raise columns.error(
            "marks that the file names",
            f"{word!r} at {columns.table.place(row)}",
            remedy,
        )
    marks = np.array([place[word] for word in words], dtype=np.int64)
    return marks[numbered.code()], MarkSpace.of(tuple(known) or None)
