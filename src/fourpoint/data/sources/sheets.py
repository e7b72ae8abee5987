"""Comma-separated files as their owners hand them out: named columns of text, stamps and numbers,
with the line of each fault.

The converters of this folder know their columns; :func:`fourpoint.read` takes any other table. All
work is on whole columns.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from numpy.typing import NDArray

from fourpoint.data.files import contents
from fourpoint.data.lines import line_of_record
from fourpoint.data.stamps import first_bad
from fourpoint.events import EventDataError, MarkSpace
from fourpoint.events.batching import offsets_of

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Sheet:
    """The columns of one file, all as text, under the names the converter asked for."""

    source: Path
    table: pa.Table
    header: bool  # whether a line with the names of the columns comes before the rows

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def texts(self, name: str) -> pa.Array:
        """A column as it is, without the spaces around."""
        return pc.utf8_trim_whitespace(self.table[name].combine_chunks())

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of finite numbers."""
        values = np.array(
            self._cast(name, lambda texts: pc.cast(texts, pa.float64()), "a finite number")
        )
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise self.error(
                f"a finite number in column {name!r}",
                int(bad[0]),
                self.texts(name)[int(bad[0])].as_py(),
            )
        return values

    def stamps(self, name: str) -> NDArray[np.int64]:
        """A column of dates and times without zone, such as ``2101-10-20 19:08:00``, as
        microseconds since 1970.
        """
        what = "a time such as 2101-10-20 19:08:00, without a zone,"
        return np.array(
            self._cast(
                name, lambda texts: pc.cast(pc.cast(texts, pa.timestamp("us")), pa.int64()), what
            )
        )

    def error(self, expected: str, row: int, received: str) -> EventDataError:
        """An error about one row of this file."""
        line = _line(self.source, row + self.header)
        return EventDataError(
            expected,
            f"{self.source}, line {line}: {str(received)[:60]!r}",
            "Remove or correct the row.",
        )

    def _cast(self, name: str, cast: Callable[[pa.Array], pa.Array], what: str) -> pa.Array:
        texts = self.texts(name)
        try:
            return cast(texts)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            row = first_bad(texts, cast)
        raise self.error(f"{what} in column {name!r}", row, texts[row].as_py()) from None


def read_sheet(
    path: Path,
    what: str,
    columns: Mapping[str, tuple[str, ...]],
    header: tuple[str, ...] | None = None,
) -> Sheet:
    """Read the columns that a converter needs.

    Args:
        path: the file, plain or gzip.
        what: what it should be, for errors.
        columns: the converter's name of each column, with the names it may have in the file, in any
            case; a name that ends with "?" may be missing.
        header: the names of the file's columns where it has no header line.
    """
    text = contents(path, what).removeprefix(BOM)
    try:
        names = list(header) if header else _header(text)
        # One thread, because only then does a fault name its row. A block must hold a whole line.
        read = csv.ReadOptions(column_names=header, use_threads=False, block_size=1 << 26)
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        )
        table = csv.read_csv(io.BytesIO(text), read, convert_options=convert)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _unparsed(path, what, error) from None
    found = _find(path, what, columns, table.column_names)
    if not len(table):
        raise EventDataError(what, f"{path}, which has no rows", "Write or download it again.")
    return Sheet(
        path, table.select(list(found.values())).rename_columns(list(found)), header is None
    )


def grouped(
    codes: NDArray[np.int64], times: NDArray[np.float64], groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The order that puts rows together by code and in order of time, the offsets of the groups,
    and how many rows were late.

    >>> order, offsets, late = grouped(np.array([1, 0, 1]), np.array([5.0, 1.0, 2.0]), 2)
    >>> order.tolist(), offsets.tolist(), late
    ([1, 2, 0], [0, 1, 3], 1)
    """
    order = np.lexsort((times, codes))
    offsets = offsets_of(np.bincount(codes, minlength=groups))
    by_file = np.argsort(codes, kind="stable")
    back = np.diff(times[by_file]) < 0
    return order, offsets, int((back & (np.diff(codes[by_file]) == 0)).sum())


def named(texts: pa.Array, most: int | None = None) -> tuple[NDArray[np.int64], MarkSpace]:
    """Marks of a column of text: types in alphabetical order, or the ``most`` frequent ones with
    all others as "other".
    """
    encoded = texts.dictionary_encode()
    codes = np.asarray(encoded.indices)
    names = [str(name) or "unknown" for name in encoded.dictionary.to_pylist()]
    counts = np.bincount(codes, minlength=len(names))
    kept = sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))[
        : len(names) if most is None else most
    ]
    chosen = sorted(names[i] for i in kept)
    rest = len(kept) < len(names)
    if rest and "other" not in chosen:
        chosen.append("other")
    place = {name: i for i, name in enumerate(chosen)}
    table = np.array([place.get(name, place.get("other", 0)) for name in names], dtype=np.int64)
    return table[codes], MarkSpace.categorical(chosen)


def _header(text: bytes) -> list[str]:
    """The names in the first line that is not empty."""
    first = text.lstrip(b"\r\n").split(b"\n", 1)[0]
    return list(
        csv.read_csv(io.BytesIO(first + b"\n"), csv.ReadOptions(block_size=1 << 26)).column_names
    )


def _find(
    path: Path, what: str, columns: Mapping[str, tuple[str, ...]], names: list[str]
) -> dict[str, str]:
    """Which of the file's columns is which."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    found = {}
    for wanted, aliases in columns.items():
        hit = next(
            (lower[alias] for alias in (wanted.rstrip("?"), *aliases) if alias in lower), None
        )
        if hit is not None:
            found[wanted.rstrip("?")] = hit
        elif not wanted.endswith("?"):
            near = get_close_matches(wanted, lower, n=1, cutoff=0.5)
            if near:
                remedy = f"Rename {near[0]!r} if that is what it holds."
            else:
                remedy = "Check that it is the file that the page of this source names."
            held = ", ".join(repr(name[:40]) for name in names[:20])
            raise EventDataError(
                f"{what} with a column {wanted!r}", f"{path}, line 1: columns {held}", remedy
            )
    return found


def _unparsed(path: Path, what: str, error: Exception) -> EventDataError:
    reason = str(error).splitlines()[0].strip()[:160]
    row = re.search(r"Row #(\d+)", reason)
    line = f", line {_line(path, int(row[1]) - 1)}" if row else ""
    return EventDataError(
        what, f"{path}{line}, which cannot be read as one ({reason})", "Remove or correct the row."
    )


def _line(path: Path, record: int) -> int:
    """The line of a record, from 1; quoted newlines do not occur in these files."""
    return line_of_record(io.BytesIO(contents(path, "a file that was read just now")), record, None)
