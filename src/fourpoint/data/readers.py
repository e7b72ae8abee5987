"""Event data in Parquet files: one row per event, with columns ``seq_id, t`` and optionally ``split, mark, start, stop``.

Rows that share a ``seq_id`` are one sequence, in file order. A file written by :func:`write` also carries, in its
metadata, the table ``fourpoint.windows`` (every sequence with its window, so that sequences without events survive) and
the list ``fourpoint.marks`` (the names of the types). Faults are :class:`EventDataError`, with the file and the row.
All work is on whole columns, so that tens of millions of rows are read in seconds.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fourpoint.data.columns import Columns, open_columns
from fourpoint.events import SPLITS, Dataset, EventDataError, MarkSpace, Ties, UserError

WINDOWS, MARKS = b"fourpoint.windows", b"fourpoint.marks"
MOST_TYPES = 1_000_000


def read(
    path: str | Path, *, ties: Ties = "keep", window: tuple[float, float] | None = None, sort: bool = False, unit: str = ""
) -> Dataset:
    """Read a Parquet file of events.

    A window ``[start, stop)`` comes from ``window`` if given (one for all sequences), else from the file's metadata, else
    from its columns ``start, stop``, else from the events: min(0, t_1) to t_N. Integer marks are types 0 to M-1, text
    marks are types in alphabetical order, and marks that are all 0 are no marks.

    Args:
        path: the file.
        ties: what to do with events of one sequence at one time: "keep", "error", "jitter" or "drop".
        window: (start, stop) in the unit of ``t``, instead of what the file says.
        sort: put the events of each sequence in order of time; without it unsorted times are an error.
        unit: a label for the time axis, such as "hours"; by default what the file says.

    Returns:
        The sequences in order of first appearance. Fails with :class:`EventDataError` on anything that is not event data.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> file = tempfile.mkdtemp() + "/calls.parquet"
    >>> pq.write_table(pa.table({"seq_id": ["mon", "mon", "tue"], "t": [9.5, 17.0, 8.25]}), file)
    >>> data = read(file, window=(0, 24))
    >>> data.ids, data[0].times.tolist(), data[1].stop
    (('mon', 'tue'), [9.5, 17.0], 24.0)
    """
    columns = open_columns(Path(path))
    times = columns.floats("t")
    known = _stored_windows(columns)
    if not len(times) and known is None:
        raise columns.error("at least one event", "a table without rows", "Check the query or program that wrote the file.")
    group = _group(columns, times if sort else None, known)
    times = group.arrange(times)
    marks, space = _marks(columns)
    starts, stops, inferred = _windows(columns, group, times, known, window)
    splits = _splits(columns, group, known)
    try:
        return Dataset(
            times,
            group.arrange(marks),
            group.offsets,
            starts,
            stops,
            space,
            ids=group.ids,
            splits=splits,
            inferred=inferred,
            unit=unit or (known.unit if known else ""),
            name=(known.name if known else "") or columns.source.stem,
        ).with_ties(ties)
    except EventDataError as error:
        raise columns.error(error.expected, error.received, error.remedy) from None


def describe_choices(data: Dataset, ties: Ties = "keep") -> list[str]:
    """What was decided on the user's behalf when ``data`` was read, one line each: windows read off events, and ties.

    >>> from fourpoint.events import Sequence
    >>> describe_choices(Dataset.from_sequences([Sequence([1.0, 1.0, 2.0], start=0, stop=3)]))
    ['50.0% of gaps are zero (ties kept; --ties error|jitter|drop)']
    """
    notices = []
    if data.inferred:
        notices.append(
            "no windows in the file: each sequence is taken as observed from min(0, first event) to its last event; --window A B overrides"
        )
        full = data.lengths > 0
        single = int((data.stops[full] > data.times[data.offsets[1:][full] - 1]).sum())
        if single:
            notices.append(f"{single:,} of {len(data):,} sequences have all events at the window's start: their windows are 1 long")
    if data.tied > 0 and ties == "keep":
        notices.append(f"{100 * data.tied:.1f}% of gaps are zero (ties kept; --ties error|jitter|drop)")
    return notices


def write(data: Dataset, path: str | Path) -> None:
    """Write ``data`` as Parquet so that :func:`read` gives it back exactly, with windows, names and empty sequences.

    The file appears whole or not at all: it is written under a temporary name and renamed. Fails with
    :class:`UserError` where the folder is missing or two sequences share an id.

    >>> import tempfile
    >>> from fourpoint.events import Sequence
    >>> file = tempfile.mkdtemp() + "/two.parquet"
    >>> write(Dataset.from_sequences([Sequence([0.5], start=0, stop=2, id="a"), Sequence([], start=0, stop=3, id="b")]), file)
    >>> [(s.id, s.times.tolist(), s.stop) for s in read(file)]
    [('a', [0.5], 2.0), ('b', [], 3.0)]
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise UserError("a path in an existing folder", f"{target}", "Make the folder first.")
    if target.is_dir():
        raise UserError("the path of a file", f"{target}, which is a folder", "Name a file in it, such as events.parquet.")
    if len(set(data.ids)) < len(data):
        raise EventDataError("sequences with distinct ids", f"{len(data)} sequences with {len(set(data.ids))} ids", "Give each its own id.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        _write_table(_table(data), _metadata(data), temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Known:
    """The table ``fourpoint.windows``: every sequence of a file, also those without events."""

    ids: tuple[str, ...]
    starts: NDArray[np.float64]
    stops: NDArray[np.float64]
    splits: NDArray[np.str_] | None
    inferred: bool
    unit: str
    name: str


@dataclass(frozen=True)
class _Group:
    """Rows put together by sequence: ``code`` numbers each row's sequence, in order; ``order`` is None if the file's."""

    ids: tuple[str, ...]
    code: NDArray[np.int64]
    offsets: NDArray[np.int64]
    order: NDArray[np.int64] | None

    def arrange(self, column: NDArray[Any]) -> NDArray[Any]:
        return column if self.order is None else column[self.order]

    def row(self, event: int) -> int:
        return event if self.order is None else int(self.order[event])


def _stored_windows(columns: Columns) -> _Known | None:
    text = columns.metadata(WINDOWS)
    if text is None:
        return None
    remedy = "Write the file again with fourpoint.write, or remove the metadata 'fourpoint.windows'."
    try:
        stored = json.loads(text)
        ids = tuple(str(i) for i in stored["ids"])
        splits = stored.get("splits")
        known = _Known(
            ids,
            # One number stands for all sequences.
            np.array(np.broadcast_to(np.array(stored["starts"], dtype=np.float64), len(ids))),
            np.array(np.broadcast_to(np.array(stored["stops"], dtype=np.float64), len(ids))),
            None if splits is None else np.array(np.broadcast_to(np.array(splits, dtype=np.str_), len(ids))),
            bool(stored.get("inferred", False)),
            str(stored.get("unit", "")),
            str(stored.get("name", "")),
        )
        events = int(stored.get("events", len(columns)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise columns.error("a table of windows in the metadata", f"a damaged one ({error!r})", remedy) from error
    if len(set(ids)) < len(ids):
        raise columns.error("one window for every sequence in the metadata", f"{len(ids)} windows for {len(set(ids))} ids", remedy)
    # A filtered table keeps its metadata, and its lost events would pass for silence.
    if events != len(columns):
        raise columns.error(f"{events:,} rows, as the file's table of windows says", f"{len(columns):,} rows", remedy)
    return known


def _group(columns: Columns, times: NDArray[np.float64] | None, known: _Known | None) -> _Group:
    """Rows by sequence, stable, and by time inside it where ``times`` are given."""
    columns.is_text("seq_id")
    code, values = columns.codes("seq_id")
    ids = tuple(map(str, values))
    if known is not None:
        place = {id: i for i, id in enumerate(known.ids)}
        lost = next((id for id in ids if id not in place), None)
        if lost is not None:
            remedy = "Write the file again with fourpoint.write, or remove the metadata 'fourpoint.windows'."
            raise columns.error("a window for every sequence", f"none for sequence {lost}", remedy)
        code, ids = np.array([place[id] for id in ids], dtype=np.int64)[code], known.ids
    step = np.diff(code)
    order = None
    if times is not None and bool(np.any((step < 0) | ((step == 0) & (np.diff(times) < 0)))):
        order = np.lexsort((times, code))
    elif bool(np.any(step < 0)):
        order = np.argsort(code, kind="stable")
    code = code if order is None else code[order]
    return _Group(ids, code, np.searchsorted(code, np.arange(len(ids) + 1)).astype(np.int64), order)


def _windows(
    columns: Columns, group: _Group, times: NDArray[np.float64], known: _Known | None, window: tuple[float, float] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Starts, stops, and whether they were read off the events."""
    count = len(group.ids)
    if window is not None:
        start, stop = (float(x) for x in window)
        if not (np.isfinite(start) and np.isfinite(stop) and start < stop):
            raise UserError("a window of two finite numbers, start < stop", f"({start}, {stop})", "Pass window=(0, 24), say.")
        return np.full(count, start), np.full(count, stop), False
    if known is not None:
        return known.starts, known.stops, known.inferred
    given = [name for name in ("start", "stop") if name in columns]
    if len(given) == 1:
        raise columns.error("columns 'start' and 'stop' together", f"only {given[0]!r}", "Add the other, or pass window=(start, stop).")
    if given:
        starts, stops = (_per_sequence(columns, group, columns.floats(name), name) for name in given)
        return starts, stops, False
    # As events.inferred_window, for all sequences at once; here each has an event.
    starts, stops = np.minimum(0.0, times[group.offsets[:-1]]), times[group.offsets[1:] - 1]
    return starts, np.where(stops > starts, stops, starts + 1.0), True


def _per_sequence(columns: Columns, group: _Group, column: NDArray[Any], name: str) -> NDArray[Any]:
    """The one value of ``column`` in each sequence, or an error that names a sequence with two."""
    values = group.arrange(column)
    first = values[group.offsets[:-1]]
    wrong = np.flatnonzero(values != np.repeat(first, np.diff(group.offsets)))
    if len(wrong):
        i = int(wrong[0])
        received = f"{first[group.code[i]]} and {values[i]} in sequence {group.ids[group.code[i]]} (row {group.row(i)})"
        raise columns.error(f"one value of column {name!r} in each sequence", received, "Give all rows of a sequence the same value.")
    return first


def _marks(columns: Columns) -> tuple[NDArray[np.int64], MarkSpace]:
    names = _stored_names(columns)
    if "mark" not in columns:
        return np.zeros(len(columns), dtype=np.int64), MarkSpace.of(names)
    if columns.is_text("mark"):
        return _text_marks(columns, names)
    values = columns.integers("mark")
    if names is None and not values.any():
        return np.zeros(len(values), dtype=np.int64), MarkSpace()
    limit = MOST_TYPES if names is None else len(names)
    bad = np.flatnonzero((values < 0) | (values >= limit))
    if len(bad):
        remedy = "Number the types from 0, or write them as text." if names is None else "Mend the mark, or name more types."
        raise columns.error(f"marks from 0 to {limit - 1}", f"{values[bad[0]]} at row {bad[0]}", remedy)
    return values.astype(np.int64), MarkSpace.categorical(int(values.max(initial=0)) + 1 if names is None else names)


def _stored_names(columns: Columns) -> list[str] | None:
    text = columns.metadata(MARKS)
    if text is None:
        return None
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not names or len(set(map(str, names))) < len(names):
        remedy = "Write a JSON list of distinct names, or remove that metadata."
        raise columns.error("a list of mark names in the metadata 'fourpoint.marks'", repr(text[:80]), remedy)
    return [str(name) for name in names]


def _text_marks(columns: Columns, names: list[str] | None) -> tuple[NDArray[np.int64], MarkSpace]:
    code, values = columns.codes("mark")
    names = sorted(values) if names is None else names
    place = {name: i for i, name in enumerate(names)}
    odd = next((i for i, value in enumerate(values) if value not in place), None)
    if odd is not None:
        row = int(np.argmax(code == odd))
        near = get_close_matches(values[odd], names, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"Known marks are like {', '.join(map(repr, names[:3]))}."
        raise columns.error("marks that the file names", f"{values[odd]!r} at row {row}", remedy)
    return np.array([place[value] for value in values], dtype=np.int64)[code], MarkSpace.of(names or None)


def _splits(columns: Columns, group: _Group, known: _Known | None) -> NDArray[np.str_] | None:
    if known is not None:
        return known.splits
    if "split" not in columns:
        return None
    if not columns.is_text("split"):
        raise columns.error("text in column 'split'", "whole numbers", "Use train, dev and test.")
    code, names = columns.codes("split")
    odd = next((i for i, name in enumerate(names) if name not in SPLITS), None)
    if odd is not None:
        row = int(np.argmax(code == odd))
        near = ["dev"] if names[odd].lower().startswith("val") else get_close_matches(names[odd].lower(), SPLITS, n=1)
        remedy = f"Rename it to {near[0]!r}." if near else "Rename the values of the split column."
        raise columns.error("splits called train, dev or test", f"{names[odd]!r} at row {row}", remedy)
    return _per_sequence(columns, group, np.array(names, dtype=np.str_)[code], "split")


def _table(data: Dataset) -> pa.Table:
    row = np.repeat(np.arange(len(data), dtype=np.int32), data.lengths)
    columns = {"seq_id": pa.DictionaryArray.from_arrays(row, pa.array(data.ids, pa.string())), "t": pa.array(data.times)}
    if data.marks.names:
        columns["mark"] = pa.array(data.mark_ids.astype(np.int32))
    if data.splits is not None:
        places = np.array([SPLITS.index(s) for s in data.splits.tolist()], dtype=np.int32)
        columns["split"] = pa.DictionaryArray.from_arrays(places[row], pa.array(SPLITS))
    return pa.table(columns)


def _metadata(data: Dataset) -> dict[bytes, str]:
    windows = {
        "ids": list(data.ids),
        "starts": _short(data.starts),
        "stops": _short(data.stops),
        "splits": None if data.splits is None else data.splits.tolist(),
        "inferred": data.inferred,
        "events": data.events,
        "unit": data.unit,
        "name": data.name,
    }
    stored = {WINDOWS: json.dumps(windows, separators=(",", ":"))}
    return stored | {MARKS: json.dumps(data.marks.names)} if data.marks.names else stored


def _short(values: NDArray[np.float64]) -> float | list[float]:
    """The values, or one number where all are the same."""
    return float(values[0]) if len(values) and bool((values == values[0]).all()) else values.tolist()


def _write_table(table: pa.Table, metadata: dict[bytes, str], path: Path) -> None:
    options = dict(compression="zstd", compression_level=19 if len(table) < 100_000 else 3)
    # Neighbouring times share their leading bytes, which compress well once the bytes are kept apart. The Arrow schema
    # is left out because it would repeat the metadata.
    coded = [name for name in ("seq_id", "mark", "split") if name in table.column_names]
    with pq.ParquetWriter(path, table.schema, use_dictionary=coded, use_byte_stream_split=["t"], store_schema=False, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
