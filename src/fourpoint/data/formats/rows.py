"""EasyTPP's rows as flat arrays, from dicts or from an Arrow table, with the checks that both
share.

They come from files, from pickles or from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fourpoint.data.formats.annex import FIELD, Part, whole_numbers
from fourpoint.data.formats.lists import flat
from fourpoint.events import EventDataError
from fourpoint.events.batching import offsets_of

TIMES = "time_since_start"
GAPS = "time_since_last_event"
TYPES = "type_event"
DIM = "dim_process"
INDEX = "seq_idx"
LENGTH = "seq_len"
COLUMNS = (TIMES, GAPS, TYPES, DIM, INDEX, LENGTH, FIELD)
# share of a sequence's span by which gaps and differences of times may differ: float32 is far below
# it
DISAGREE = 1e-3
Flat = tuple[NDArray[Any], NDArray[np.int64]]  # values end to end, and the offsets of the rows


def rows_part(rows: list[Any], source: Path, split: str | None) -> Part:
    """Rows that are dicts, as JSON and pickles give them."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise EventDataError(
                f"a list of rows with {TIMES} and {TYPES}",
                f"{source}: {kind(row)} at row {number}",
                "Check what the file holds.",
            )
    columns = {name: [row.get(name) for row in rows] for name in COLUMNS}
    lists = {name: _flattened(columns[name], name, source) for name in (TIMES, TYPES)}
    if any(gaps is not None for gaps in columns[GAPS]):
        lists[GAPS] = _flattened(columns[GAPS], GAPS, source)
    return _checked(source, split, lists, columns)


def table_part(table: pa.Table, source: Path, split: str | None) -> Part:
    """Rows of an Arrow table, as Parquet and Hugging Face give them: no Python object per event."""
    known = table.column_names
    for name in (TIMES, TYPES):
        if name not in known:
            raise EventDataError(
                f"columns {TIMES!r} and {TYPES!r}",
                f"{source}: no {name!r}",
                "Check that it holds EasyTPP's rows.",
            )
    lists = {name: flat(table, name, source) for name in (TIMES, TYPES)}
    if GAPS in known and not table[GAPS].null_count:
        lists[GAPS] = flat(table, GAPS, source)
    plain: dict[str, list[Any]] = {}
    for name in (DIM, INDEX, LENGTH, FIELD):
        plain[name] = table[name].to_pylist() if name in known else []
    return _checked(source, split, lists, plain)


def kind(value: object) -> str:
    """What a value is, in words; never the value itself, which may be anything."""
    return f"a value of type {type(value).__name__}"


def _checked(
    source: Path,
    split: str | None,
    lists: dict[str, Flat],
    plain: dict[str, list[Any]],
) -> Part:
    times, offsets = lists[TIMES]
    part = Part(source, times.astype(np.float64), np.zeros(0, dtype=np.int64), offsets)
    for name, (_, lengths) in lists.items():
        _same_lengths(part, lengths, name)
    _same_lengths(part, _stated_lengths(plain[LENGTH], part), LENGTH)
    if GAPS in lists:
        gaps, _ = lists[GAPS]
        _check_gaps(part, gaps.astype(np.float64))
    types, _ = lists[TYPES]
    annexes = [text for text in plain[FIELD] if isinstance(text, str)]
    return Part(
        source,
        part.times,
        whole_numbers(part, types, TYPES),
        offsets,
        types=_one(plain[DIM], DIM, source),
        ids=_row_ids(plain[INDEX]),
        split=split,
        annex=annexes[0] if len(annexes) == 1 else None,
    )


def _flattened(lists: list[Any], name: str, source: Path) -> Flat:
    """Lists of numbers, end to end, and their offsets."""
    for row, one in enumerate(lists):
        if not isinstance(one, list | tuple | np.ndarray):
            found = "no such field" if one is None else kind(one)
            raise EventDataError(
                f"a list {name!r} in every row",
                f"{source}: {found} at row {row}",
                "Check that it holds EasyTPP's rows.",
            )
    offsets = offsets_of([len(one) for one in lists])
    if lists and all(_is_vector(one) for one in lists):
        return np.concatenate(lists), offsets
    if not _are_numbers(chain.from_iterable(lists)):
        row = next(i for i, one in enumerate(lists) if not _are_numbers(one))
        value = next(value for value in lists[row] if not _are_numbers([value]))
        raise EventDataError(
            f"numbers in {name!r}",
            f"{source}: {kind(value)} at row {row}",
            "Convert the values to numbers.",
        )
    values = chain.from_iterable(lists)
    try:
        return np.fromiter(values, dtype=np.float64, count=int(offsets[-1])), offsets
    except OverflowError as error:
        raise EventDataError(
            f"numbers in {name!r}",
            f"{source}: one too large for a float ({error})",
            "Correct it.",
        ) from error


def _is_vector(values: object) -> bool:
    """Whether something is an array of numbers with one axis."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "iuf" and values.ndim == 1


def _are_numbers(values: Iterable[object]) -> bool:
    return all(
        issubclass(one, int | float | np.integer | np.floating) and one is not bool
        for one in set(map(type, values))
    )


def _same_lengths(part: Part, offsets: NDArray[np.int64], name: str) -> None:
    counts = np.diff(offsets)
    own = np.diff(part.offsets)
    bad = np.flatnonzero(counts != own)
    if len(bad):
        i = int(bad[0])
        raise part.error(
            f"{name!r} to agree with the number of times",
            f"{counts[i]} for {own[i]} times at row {i}",
            "Make the lengths equal.",
        )


def _stated_lengths(values: list[Any], part: Part) -> NDArray[np.int64]:
    """Offsets by ``seq_len`` where every row states it as a plain number, else the part's own."""
    if len(values) != len(part):
        return part.offsets
    for value in values:
        if type(value) is not int or not 0 <= value < 2**40:
            return part.offsets
    return offsets_of(values)


def _check_gaps(part: Part, gaps: NDArray[np.float64]) -> None:
    """Refuse gaps that contradict the times, as after rescaling or sorting only one of the two. The
    first may be anything.
    """
    lengths = np.diff(part.offsets)
    full = lengths > 0
    heads = part.offsets[:-1][full]
    tails = part.offsets[1:][full] - 1
    inner = np.ones(len(gaps), dtype=bool)
    inner[heads] = False
    span = np.zeros(len(part))
    with np.errstate(invalid="ignore", over="ignore"):
        span[full] = np.abs(part.times[tails] - part.times[heads])
        steps = np.diff(part.times, prepend=0.0)
        allowed = DISAGREE * np.repeat(span, lengths)
        bad = np.flatnonzero(inner & (np.abs(steps - gaps) > allowed))
    if len(bad):
        i = int(bad[0])
        step = part.times[i] - part.times[i - 1]
        raise part.error(
            f"{GAPS!r} to be the differences of {TIMES!r}",
            f"{gaps[i]} where the times differ by {step}, at {part.place(i)}",
            f"Correct the one that is wrong, or remove {GAPS!r} to use the times alone.",
        )


def _one(values: list[Any], name: str, source: Path) -> int | None:
    """The one number that all rows state, or None."""
    stated = set()
    for value in values:
        if isinstance(value, int | float | np.integer) and not isinstance(value, bool):
            stated.add(value)
    if not all(1 <= value < 2**53 and value == int(value) for value in stated):
        raise EventDataError(
            f"a whole number from 1 for {name!r}",
            f"{source}: another",
            "Correct the rows.",
        )
    if len(stated) > 1:
        raise EventDataError(
            f"one value of {name!r} in all rows",
            f"{source}: {sorted(stated)[:5]}",
            "Correct the rows.",
        )
    if not stated:
        return None
    return int(stated.pop())


def _row_ids(values: list[Any]) -> tuple[str, ...] | None:
    """The rows' own numbers or names as ids, where all have one and no two the same."""
    for value in values:
        is_id = isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**63)
        if not is_id:
            return None
    ids = tuple(str(value) for value in values)
    if not ids or len(set(ids)) < len(ids):
        return None
    return ids
