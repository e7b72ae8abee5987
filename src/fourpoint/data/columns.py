"""Columns of a Parquet file, checked as a whole: each fault is an error with the file, the row and the value.

Used by :mod:`fourpoint.data.readers`, which makes sequences of them. Rows are counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fourpoint.events import EventDataError

COLUMNS = ("seq_id", "t", "split", "mark", "start", "stop")
REQUIRED = {"seq_id": ("sequence", "sequence_id", "seq", "id", "seqid"), "t": ("time", "times", "timestamp", "ts")}


@dataclass(frozen=True)
class Columns:
    """The columns of one file that are ours, and its metadata."""

    source: Path
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self.table.column_names

    def metadata(self, key: bytes) -> bytes | None:
        """What the file's metadata says under ``key``, or None."""
        return (self.table.schema.metadata or {}).get(key)

    def is_text(self, name: str) -> bool:
        """True if the column holds text, False if whole numbers; anything else is refused."""
        kind = _value_type(self.table[name])
        text = any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
        if not text and not pa.types.is_integer(kind):
            raise self.error(f"whole numbers or text in column {name!r}", f"values of type {kind}", "Convert the column to one of them.")
        return text

    def floats(self, name: str) -> NDArray[np.float64]:
        """A column of finite numbers."""
        column = self._full(name)
        if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            remedy = "Convert it to numbers in one unit, such as hours since a common start."
            raise self.error(f"numbers in column {name!r}", f"values of type {column.type}", remedy)
        values = column.to_numpy().astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise self.error(f"finite numbers in column {name!r}", f"{values[bad[0]]} at row {bad[0]}", "Remove or mend the row.")
        return values

    def integers(self, name: str) -> NDArray[Any]:
        """A column of whole numbers, in the file's own integer type."""
        column = self._full(name)
        return np.asarray(column.cast(_value_type(column)).to_numpy())

    def codes(self, name: str) -> tuple[NDArray[np.int64], list[Any]]:
        """Each row's number among the distinct values of a column, and those values in order of first appearance."""
        column = self._full(name)
        # A stored dictionary may hold values that no row has, in any order.
        encoded = column.cast(_value_type(column)).dictionary_encode().unify_dictionaries()
        codes = [chunk.indices.to_numpy() for chunk in encoded.chunks]
        values = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
        return np.concatenate([np.zeros(0, dtype=np.int64), *codes]), values

    def error(self, expected: str, received: str, remedy: str) -> EventDataError:
        """An error about this file."""
        return EventDataError(expected, f"{self.source}: {received}", remedy)

    def _full(self, name: str) -> pa.ChunkedArray:
        column = self.table[name]
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            received = f"{column.null_count:,} null, the first at row {row}"
            raise self.error(f"a value in every row of column {name!r}", received, "Remove or fill these rows.")
        return column


def open_columns(source: Path) -> Columns:
    """Open a Parquet file of events and read our columns, or say why it is none."""
    expected = "a Parquet file"
    if source.is_dir():
        raise EventDataError(expected, f"{source}, which is a folder", "Name one file in it.")
    if not source.exists():
        here = {p.stem: p.name for p in sorted(source.parent.glob("*.parquet"))} if source.parent.is_dir() else {}
        near = [here[stem] for stem in get_close_matches(source.stem, here, n=2)]
        remedy = f"Did you mean {' or '.join(near)}?" if near else "Check the path."
        raise EventDataError(expected, f"{source}, which does not exist", remedy)
    if source.stat().st_size == 0:
        raise EventDataError(expected, f"{source}, which is empty (0 bytes)", "Write or download it again.")
    try:
        with pq.ParquetFile(source) as file:
            names = file.schema_arrow.names
            _require(source, names)
            return Columns(source, file.read(columns=[name for name in COLUMNS if name in names]))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")[:120]
        remedy = "Convert it, for example with pandas: pandas.read_csv(file).to_parquet('events.parquet')."
        raise EventDataError(expected, f"{source}, which cannot be read as one ({reason})", remedy) from error


def _require(source: Path, names: list[str]) -> None:
    for column, aliases in REQUIRED.items():
        if column not in names:
            near = [n for n in names if n.lower() in aliases] or get_close_matches(column, names, n=1, cutoff=0.5)
            remedy = f"Rename {near[0]!r} to {column!r}, if that is what it holds." if near else f"Add or rename a column {column!r}."
            received = f"{source}: no column {column!r} among {', '.join(map(repr, names)) or 'none'}"
            raise EventDataError("columns 'seq_id' and 't'", received, remedy)
    double = next((name for name in COLUMNS if names.count(name) > 1), None)
    if double:
        raise EventDataError(f"one column {double!r}", f"{source}: {names.count(double)} of them", "Rename or drop the others.")


def _value_type(column: pa.ChunkedArray) -> pa.DataType:
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type
