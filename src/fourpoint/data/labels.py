"""What events are: their marks and, in our own files, the split of their sequence. Used by
:mod:`fourpoint.data.readers`.

In our own files whole numbers are the types 0 to M-1. In other tables they are that where they are
exactly those, and
names otherwise: types coded 1 to 5, or 404 and 500, are five types and two.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.columns import MOST_TYPES, Columns
from fourpoint.data.grouping import Numbered, number
from fourpoint.events import SPLITS, MarkSpace


def read_marks(
    columns: Columns, name: str | None, names: Ordered[str] | None, own: bool
) -> tuple[NDArray[np.int64], MarkSpace]:
    """Each row's mark, and the space of marks: that of ``names`` where given, else of what the
    column holds.

    Words are types in alphabetical order, and marks that are all 0 are no marks.
    """
    if name is None and not own and names is not None and len(names) > 1:
        raise columns.error(
            f"a column of types, for {len(names)} marks", "none", "Name it with mark= (--mark)."
        )
    if name is None:
        return np.zeros(len(columns), dtype=np.int64), MarkSpace.of(
            None if names is None else tuple(names)
        )
    if columns.is_text(name):
        return _named_marks(columns, *columns.labels(name, MOST_TYPES), names)
    values = columns.integers(name)
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if not own and (names is not None or not _are_types(values, low, high)):
        numbered = number(values)
        columns.check_count(name, len(numbered.distinct), MOST_TYPES)
        words = list(map(str, numbered.distinct.tolist()))
        return _named_marks(
            columns, numbered, words, sorted(words, key=int) if names is None else names
        )
    if names is None and low == high == 0:
        return np.zeros(len(values), dtype=np.int64), MarkSpace()
    limit = MOST_TYPES if names is None else len(names)
    if low < 0 or high >= limit:
        row = int(np.flatnonzero((values < 0) | (values >= limit))[0])
        remedy = (
            "Number the types from 0, or write them as text."
            if names is None
            else "Mend the mark, or name more types."
        )
        raise columns.error(
            f"marks from 0 to {limit - 1}", f"{values[row]} at {columns.table.place(row)}", remedy
        )
    return values.astype(np.int64, copy=False), MarkSpace.categorical(
        high + 1 if names is None else tuple(names)
    )


def read_splits(columns: Columns, name: str) -> tuple[NDArray[np.int32], NDArray[np.str_]]:
    """Each row's number among the splits that the column names, and those splits."""
    if not columns.is_text(name):
        raise columns.error(f"text in column {name!r}", "whole numbers", "Use train, dev and test.")
    numbered, words = columns.labels(name)
    odd = next((i for i, word in enumerate(words) if word not in SPLITS), None)
    if odd is not None:
        row = int(np.argmax(numbered.code() == odd))
        near = (
            ["dev"]
            if words[odd].lower().startswith("val")
            else get_close_matches(words[odd].lower(), SPLITS, n=1)
        )
        remedy = f"Rename it to {near[0]!r}." if near else "Rename the values of the split column."
        raise columns.error(
            "splits called train, dev or test",
            f"{words[odd]!r} at {columns.table.place(row)}",
            remedy,
        )
    return numbered.code(), np.array(words, dtype=np.str_)


def _are_types(values: NDArray[Any], low: int, high: int) -> bool:
    """Whether whole numbers from ``low`` to ``high`` are exactly 0 to M-1."""
    if low != 0 or high >= min(MOST_TYPES, max(len(values), 1)):
        return False
    return bool((np.bincount(values.astype(np.int64, copy=False)) > 0).all())


def _named_marks(
    columns: Columns, numbered: Numbered, words: list[str], names: Ordered[str] | None
) -> tuple[NDArray[np.int64], MarkSpace]:
    known = sorted(words) if names is None else names
    place = {word: i for i, word in enumerate(known)}
    odd = next((i for i, word in enumerate(words) if word not in place), None)
    if odd is not None:
        row = int(np.argmax(numbered.code() == odd))
        near = get_close_matches(words[odd], known, n=1)
        remedy = (
            f"Did you mean {near[0]!r}?"
            if near
            else f"Known marks are like {', '.join(map(repr, known[:3]))}."
        )
        raise columns.error(
            "marks that the file names", f"{words[odd]!r} at {columns.table.place(row)}", remedy
        )
    return np.array([place[word] for word in words], dtype=np.int64)[numbered.code()], MarkSpace.of(
        tuple(known) or None
    )
