r"""Events regrouped into files of our own, so that the rows of a sequence stand together.

Logs are usually written by time: a day in a file, all users in it. Training needs them by sequence.
:func:`partition` moves every row to one of K buckets by a hash of its sequence, then reads each
bucket by itself, sorts it and writes it as a file of our own:

    files by time -> K buckets by hash(sequence) mod K -> K files by sequence

Only one bucket, and the rows that wait to be written to the others, are in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fourpoint.atomic import new_folder
from fourpoint.data.event_files import columns_of_files, in_frame
from fourpoint.data.opened import Table, row_number
from fourpoint.data.parquet_files import Store
from fourpoint.data.readers import GUESS, Asked, read_opened
from fourpoint.data.stored import write
from fourpoint.errors import UserError
from fourpoint.events import EventDataError

BUCKET = 1_000_000  # rows of a file, about
MOST_BUCKETS = 4096
WAITING = 4_000_000  # rows that wait in memory to be written


@dataclass(frozen=True)
class Partition:
    """What was written."""

    files: int
    sequences: int
    events: int
    notes: tuple[str, ...] = ()


def partition(
    source: str | Path,
    folder: str | Path,
    asked: Asked = GUESS,
    *,
    files: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Partition:
    """Regroup the Parquet files of a folder or URL by sequence, into a new folder of files of our
    own, which `fourpoint.scan` reads.

    Args:
        source: a folder, a file or a URL of Parquet files.
        folder: the folder to make. It appears whole or not at all.
        asked: how columns are read, as in :func:`fourpoint.read`.
        files: how many to write; as many as have about a million rows each by default.

    Raises :class:`UserError` where the folder exists, and :class:`EventDataError` where there is no
    column of sequences or the events cannot be read.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> for day in range(2):
    ...     rows = {"user": ["a", "b"], "time": [day + 0.25, day + 0.5]}
    ...     pq.write_table(pa.table(rows), place / f"day{day}.parquet")
    >>> partition(place, place / "grouped", Asked(sequence="user")).sequences
    2
    """
    target = Path(folder)
    if target.exists():
        raise UserError("a new folder", f"{target}, which exists", "Choose another with -o.")
    if not target.absolute().parent.is_dir():
        raise UserError("a path in an existing folder", f"{target}", "Make the folder first.")
    store = Store.open(str(source))
    shared = columns_of_files(store, asked)
    if shared.roles.sequence is None:
        raise EventDataError(
            "a column of sequences to group by",
            f"{source}, read as one sequence",
            "Name the column with --sequence.",
        )
    count = files or max(1, min(MOST_BUCKETS, -(-store.rows // BUCKET)))
    if not 1 <= count <= MOST_BUCKETS:
        raise UserError(f"from 1 to {MOST_BUCKETS} files", f"{count}", "Choose another number.")
    with new_folder(target) as draft:
        columns = shared.columns(store)
        buckets = _Buckets(draft, count)
        for number in range(len(store.groups)):
            table = store.group(number, columns)
            buckets.add(table, _bucket_of(table[shared.roles.sequence], count))
            if progress is not None:
                progress(table.num_rows)
        buckets.close()
        sequences, events = 0, 0
        for number in buckets.written():
            path = buckets.path(number)
            held = pq.read_table(path)
            path.unlink()
            table = Table(str(source), "", held.schema, held.select, held.select, row_number)
            reading = read_opened(table, shared.roles, replace(shared.asked, sort=True))
            data = in_frame(reading.data, shared.frame)
            write(data, draft / f"part-{number:05d}.parquet")
            sequences += len(data)
            events += data.events
    return Partition(len(buckets.written()), sequences, events, shared.notes)


@dataclass
class _Buckets:
    """Rows by bucket, in files that grow."""

    folder: Path
    count: int
    waiting: dict[int, list[pa.Table]] = field(default_factory=dict)
    rows: int = 0
    writers: dict[int, pq.ParquetWriter] = field(default_factory=dict)

    def path(self, number: int) -> Path:
        return self.folder / f"bucket-{number:05d}"

    def add(self, table: pa.Table, bucket: NDArray[np.int64]) -> None:
        """Keep the rows of a table until there are enough to be written."""
        order = np.argsort(bucket, kind="stable")
        grouped = table.take(pa.array(order))
        edges = np.searchsorted(bucket[order], np.arange(self.count + 1))
        for number in np.flatnonzero(np.diff(edges)).tolist():
            first, last = int(edges[number]), int(edges[number + 1])
            self.waiting.setdefault(number, []).append(grouped.slice(first, last - first))
        self.rows += table.num_rows
        if self.rows >= WAITING:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        for number, parts in self.waiting.items():
            table = pa.concat_tables(parts, promote_options="permissive")
            if number not in self.writers:
                self.writers[number] = pq.ParquetWriter(self.path(number), table.schema)
            self.writers[number].write_table(table.cast(self.writers[number].schema))
        self.waiting, self.rows = {}, 0

    def close(self) -> None:
        self.flush()
        for writer in self.writers.values():
            writer.close()

    def written(self) -> list[int]:
        """The buckets that have rows."""
        return sorted(self.writers)


def _bucket_of(column: pa.ChunkedArray, count: int) -> NDArray[np.int64]:
    """The bucket of each row, by a hash of its value that is the same in every file."""
    if column.null_count:
        raise EventDataError(
            "a sequence for every row", f"{column.null_count:,} rows without one", "Leave them out."
        )
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    if not isinstance(encoded, pa.DictionaryArray):
        encoded = pc.dictionary_encode(encoded)
    places = np.array([_hash(str(value)) % count for value in encoded.dictionary.to_pylist()])
    return places.astype(np.int64)[encoded.indices.to_numpy()]


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
