"""Our own Parquet: columns ``seq_id, t`` and optionally ``split, mark, start, stop, place.NAME,
feature.NAME``, one row per event.

A file that :func:`write` made also carries, in its metadata, the table ``fourpoint.windows`` (every
sequence with its window, so that sequences without events survive), the list ``fourpoint.marks``
(the names of the types), the box ``fourpoint.box`` (names and bounds of the place's axes) and what
else is known of the sequences (:mod:`fourpoint.data.stored_context`).
:func:`fourpoint.data.readers.read` gives back exactly what was written.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fourpoint.data.columns import Columns
from fourpoint.data.expansion import Expansion
from fourpoint.data.files import write_whole
from fourpoint.data.known import DAMAGE, Known, describe, recall
from fourpoint.data.places import BOX, OWN, box_metadata
from fourpoint.data.stored_context import CONTEXT, context_metadata
from fourpoint.events import SPLITS, Dataset, EventDataError, UserError

FEATURE = "feature."  # what columns of event features begin with
WINDOWS, MARKS = b"fourpoint.windows", b"fourpoint.marks"
AGAIN = "Write the file again with fourpoint.write, or remove the metadata 'fourpoint.windows'."


def write(data: Dataset, path: str | Path) -> None:
    """Write ``data`` as Parquet, from which :func:`read` restores it exactly, with windows, names
    and empty sequences.

    The file appears complete or not at all: it is written under a temporary name and renamed.
    Raises :class:`UserError` if the folder is missing or two sequences share an id.

    >>> import tempfile
    >>> from fourpoint.data.readers import read
    >>> from fourpoint.events import Sequence
    >>> file = tempfile.mkdtemp() + "/two.parquet"
    >>> write(
    ...     Dataset.from_sequences(
    ...         [Sequence([0.5], start=0, stop=2, id="a"), Sequence([], start=0, stop=3, id="b")]
    ...     ),
    ...     file,
    ... )
    >>> [(s.id, s.times.tolist(), s.stop) for s in read(file)]
    [('a', [0.5], 2.0), ('b', [], 3.0)]
    """
    target = Path(path)
    if target.is_dir():
        raise UserError(
            "the path of a file",
            f"{target}, which is a folder",
            "Name a file in it, such as events.parquet.",
        )
    if len(set(data.ids)) < len(data):
        raise EventDataError(
            "sequences with distinct ids",
            f"{len(data)} sequences with {len(set(data.ids))} ids",
            "Give each its own id.",
        )
    write_whole(target, lambda draft: _write_table(_table(data), _metadata(data), draft))


def stored_windows(columns: Columns) -> Known | None:
    """The windows in a file's metadata, or None; damaged ones are refused."""
    text = columns.metadata(WINDOWS)
    if text is None:
        return None
    Expansion(columns.table.label).check_json(text)
    try:
        unsaid = {
            "splits": None,
            "inferred": False,
            "events": len(columns),
            "unit": "",
            "name": "",
            "marks": (),
        }
        known = recall(unsaid | json.loads(text))
    except DAMAGE as error:
        raise columns.error(
            "a table of windows in the metadata", f"a damaged one ({error!r})", AGAIN
        ) from error
    if len(set(known.ids)) < len(known.ids):
        received = f"{len(known.ids)} windows for {len(set(known.ids))} ids"
        raise columns.error("one window for every sequence in the metadata", received, AGAIN)
    # A filtered table keeps its metadata, and its lost events would pass for silence.
    if known.events != len(columns):
        raise columns.error(
            f"{known.events:,} rows, as the file's table of windows says",
            f"{len(columns):,} rows",
            AGAIN,
        )
    return known


def place_in(columns: Columns, known: Known, ids: list[str]) -> NDArray[np.int64]:
    """Where each of ``ids`` stands among the sequences that a file's metadata names."""
    place = {id: i for i, id in enumerate(known.ids)}
    lost = next((id for id in ids if id not in place), None)
    if lost is not None:
        raise columns.error("a window for every sequence", f"none for sequence {lost}", AGAIN)
    return np.array([place[id] for id in ids], dtype=np.int64)


def stored_names(columns: Columns) -> list[str] | None:
    """The names of the types in a file's metadata, or None."""
    text = columns.metadata(MARKS)
    if text is None:
        return None
    Expansion(columns.table.label).check_json(text)
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not names or len(set(map(str, names))) < len(names):
        remedy = "Write a JSON list of distinct names, or remove that metadata."
        raise columns.error(
            "a list of mark names in the metadata 'fourpoint.marks'", repr(text[:80]), remedy
        )
    return [str(name) for name in names]


def _table(data: Dataset) -> pa.Table:
    row = np.repeat(np.arange(len(data), dtype=np.int32), data.lengths)
    columns = {
        "seq_id": pa.DictionaryArray.from_arrays(row, pa.array(data.ids, pa.string())),
        "t": pa.array(data.times),
    }
    if data.marks.names:
        columns["mark"] = pa.array(data.mark_ids.astype(np.int32))
    if data.splits is not None:
        places = np.array([SPLITS.index(s) for s in data.splits.tolist()], dtype=np.int32)
        columns["split"] = pa.DictionaryArray.from_arrays(places[row], pa.array(SPLITS))
    if data.marks.box is not None and data.places is not None:
        columns |= {
            f"{OWN}{name}": pa.array(data.places[:, i])
            for i, name in enumerate(data.marks.box.names)
        }
    if data.features is not None:
        names = data.feature_names or tuple(f"x{i + 1}" for i in range(data.features.shape[1]))
        columns |= {
            f"{FEATURE}{name}": pa.array(data.features[:, i]) for i, name in enumerate(names)
        }
    return pa.table(columns)


def _metadata(data: Dataset) -> dict[bytes, str]:
    stored = {WINDOWS: json.dumps(describe(data), separators=(",", ":"))}
    if data.marks.box is not None:
        stored[BOX] = box_metadata(data.marks.box)
    if data.marks.names:
        stored[MARKS] = json.dumps(data.marks.names)
    context = context_metadata(data)
    if context is not None:
        stored[CONTEXT] = context
    return stored


def _write_table(table: pa.Table, metadata: dict[bytes, str], path: Path) -> None:
    level = 19 if len(table) < 100_000 else 3
    # Neighbouring times share their leading bytes, which compress well once the bytes are kept
    # apart. The Arrow schema is left out because it would repeat the metadata.
    coded = [name for name in ("seq_id", "mark", "split") if name in table.column_names]
    split = ["t", *(name for name in table.column_names if name.startswith((OWN, FEATURE)))]
    with pq.ParquetWriter(
        path,
        table.schema,
        use_dictionary=coded,
        use_byte_stream_split=split,
        store_schema=False,
        compression="zstd",
        compression_level=level,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
