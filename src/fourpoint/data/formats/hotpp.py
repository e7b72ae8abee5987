"""HoTPP's Parquet: one row per sequence, with columns ``id``, ``timestamps`` and ``labels``.

``timestamps`` and ``labels`` are lists; labels count from 0. There is one file per split
(``train``, ``val``, ``test``), or a folder of part files in its place, as Spark writes them. Other
columns are features and targets of HoTPP's and are left alone. Windows, names and splits are in the
file's metadata (see ``annex.py``), which HoTPP passes over.

Source: Karpukhin, Shipilov and Savchenko, "HoTPP Benchmark: Are We Good at the Long Horizon Events
Forecasting?", 2024, and
hotpp/data/dataset.py.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fourpoint.data.files import write_whole
from fourpoint.data.formats.annex import Part, assemble, pack, whole_numbers
from fourpoint.data.formats.folders import split_files, split_of, split_targets
from fourpoint.data.formats.lists import flat, read_lists
from fourpoint.data.sample import Sample
from fourpoint.events import Dataset, EventDataError

WHAT = "HoTPP's Parquet"
COLUMNS = ("id", "timestamps", "labels")
ANNEX = b"fourpoint.annex"


def matches(sample: Sample) -> bool:
    """Whether a file or folder looks like HoTPP's Parquet."""
    return {"timestamps", "labels"} <= sample.columns


def read(path: str | Path) -> Dataset:
    """Read one file, a folder with one file (or folder of part files) per split, or a folder of
    part files.

    Returns the sequences with their ids; windows are inferred and labels called by number unless we
    wrote the file. Fails with :class:`EventDataError` that names the file and the row.
    """
    source = Path(path)
    if not source.is_dir():
        return assemble([_read_part(source, split_of(source))], source.stem)
    if _part_files(source):
        return assemble(
            [_read_part(file, split_of(source)) for file in _part_files(source)], source.stem
        )
    found = split_files(source, (".parquet",), WHAT)
    return assemble(
        [_read_part(file, split) for split, one in found for file in _part_files(one) or [one]],
        source.stem,
    )


def write(data: Dataset, path: str | Path) -> list[str]:
    """Write Parquet: a file, or with a path that has no suffix a folder with ``train``, ``val`` and
    ``test``.
    """
    for target, part in split_targets(data, Path(path), ".parquet", {"dev": "val"}):
        if part.events < 2**31:
            offsets = pa.array(part.offsets.astype(np.int32))
        else:
            offsets = pa.array(part.offsets)
        lists = pa.ListArray if part.events < 2**31 else pa.LargeListArray
        columns = {
            "id": pa.array(part.ids, pa.string()),
            "timestamps": lists.from_arrays(offsets, pa.array(part.times)),
            "labels": lists.from_arrays(offsets, pa.array(part.mark_ids)),
        }
        table = pa.table(columns).replace_schema_metadata({ANNEX: pack(part)})
        write_whole(target, partial(pq.write_table, table, compression="zstd"))
    notes = [
        (
            "HoTPP reads only times and labels: windows and names of types are in the metadata, "
            "which only Fourpoint reads"
        )
    ]
    return notes + (
        ["HoTPP converts times to float32 when it reads them"] if _needs_doubles(data) else []
    )


def _part_files(folder: Path) -> list[Path]:
    """Spark's part files, in order; none if this is no folder of them."""
    return sorted(folder.glob("part-*.parquet")) if folder.is_dir() else []


def _read_part(path: Path, split: str | None) -> Part:
    table = read_lists(path, WHAT, COLUMNS)
    missing = next((name for name in COLUMNS if name not in table.column_names), None)
    if missing:
        raise EventDataError(
            f"{WHAT} with columns id, timestamps and labels",
            f"{path}: no column {missing!r}",
            "Check what it holds.",
        )
    times, offsets = flat(table, "timestamps", path)
    marks, of_marks = flat(table, "labels", path)
    counts = np.diff(offsets)
    others = np.diff(of_marks)
    bad = np.flatnonzero(counts != others)
    if len(bad):
        i = int(bad[0])
        received = f"{path}: {counts[i]} timestamps and {others[i]} labels at row {i}"
        raise EventDataError("one label per timestamp", received, "Make the lengths equal.")
    annex = (table.schema.metadata or {}).get(ANNEX)
    part = Part(path, times.astype(np.float64), np.zeros(0, dtype=np.int64), offsets)
    return Part(
        path,
        part.times,
        whole_numbers(part, marks, "labels"),
        offsets,
        ids=tuple(str(id) for id in table["id"].to_pylist()),
        split=split,
        annex=None if annex is None else annex.decode("utf-8", "replace"),
    )


def _needs_doubles(data: Dataset) -> bool:
    with np.errstate(over="ignore"):
        return bool((data.times.astype(np.float32).astype(np.float64) != data.times).any())
