"""EasyTPP's rows: one row per sequence, in JSON files, Parquet files and Hugging Face data sets.

    {"dim_process": 3, "seq_idx": 0, "seq_len": 2, "time_since_start": [0.5, 2.0],
     "time_since_last_event": [0.5, 1.5], "type_event": [2, 0]}

A JSON file is a list of such rows, or one row per line; there is one file per split. Only
``time_since_start`` and ``type_event`` are needed. ``time_since_last_event`` says the same as the
times and is checked against them, apart from its first entry, which some write as 0. Rows have no
windows and no names: what we write carries them in one more field (see ``annex.py``), which
EasyTPP's loader passes over.

Source: Xue et al., "EasyTPP: Towards Open Benchmarking Temporal Point Processes", 2024, and
easy_tpp/preprocess/data_loader.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence as Ordered
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import contents, unreadable, write_whole
from fourpoint.data.formats.annex import ALIASES, FIELD, Part, assemble, pack
from fourpoint.data.formats.folders import split_files, split_of, split_targets
from fourpoint.data.formats.lists import read_lists
from fourpoint.data.formats.rows import (
    COLUMNS,
    DIM,
    GAPS,
    INDEX,
    LENGTH,
    TIMES,
    TYPES,
    kind,
    rows_part,
    table_part,
)
from fourpoint.data.sample import Sample
from fourpoint.events import Dataset, EventDataError

WHAT = "EasyTPP's rows"


def matches(sample: Sample) -> bool:
    """Whether a file or folder looks like EasyTPP's rows."""
    if sample.names is not None:
        return sample.has_file(".json", ".jsonl") or TIMES in sample.columns
    in_json = sample.head.lstrip()[:1] in (b"[", b"{") and TIMES.encode() in sample.head
    return in_json or TIMES in sample.columns


def read(path: str | Path) -> Dataset:
    """Read one file (``.json``, ``.jsonl`` or ``.parquet``) or a folder with one per split.

    Args:
        path: the file or folder. A file called train, dev, valid or test is that split.

    Returns: The sequences, with windows and names from the annex if we wrote the file; else windows
        are inferred and types are called "0" to "M-1". Fails with :class:`EventDataError` that
        names the file and the row.
    """
    source = Path(path)
    if source.is_dir():
        files = split_files(source, (".json", ".jsonl", ".parquet"), WHAT)
    else:
        files = [(split_of(source), source)]
    return assemble([_read_part(file, split) for split, file in files], source.stem)


def write(data: Dataset, path: str | Path) -> list[str]:
    """Write JSON, one row a line: a file, or with a path that has no suffix a folder with one file
    per split.

    Returns what the format's own readers will not see. Times are written as ``time_since_start``
    unchanged, and the first gap is counted from the window's start.
    """
    for target, part in split_targets(data, Path(path), ".json"):
        # One row a line: of a JSON list Hugging Face's loader, which EasyTPP uses, rounds times to
        # ten decimals.
        write_whole(target, "".join(json.dumps(row) + "\n" for row in to_rows(part)).encode())
    return _losses(data, Path(path))


def from_rows(rows: object, name: str = "rows") -> Dataset:
    """A data set from rows in memory: a list of dicts, a table, a Hugging Face ``Dataset``, or a
    dict of them by split.

    >>> data = from_rows([{"time_since_start": [0.5, 2.0], "type_event": [1, 0], "dim_process": 3}])
    >>> data[0].times.tolist(), data[0].marks.tolist(), data.marks.names
    ([0.5, 2.0], [1, 0], ('0', '1', '2'))
    """
    source = Path(name)
    if isinstance(rows, Mapping) and TIMES not in rows:
        odd = next((key for key in rows if str(key) not in ALIASES), None)
        if odd is not None:
            raise EventDataError(
                "splits called train, dev or test", f"{name}: {str(odd)[:80]!r}", "Rename it."
            )
        return assemble(
            [_in_memory(part, source, ALIASES[str(split)]) for split, part in rows.items()], name
        )
    return assemble([_in_memory(rows, source, None)], name)


def to_rows(data: Dataset) -> list[dict[str, Any]]:
    """The rows of a data set, ready for ``json.dump`` or ``datasets.Dataset.from_list``; the first
    carries the annex.

    >>> from fourpoint.events import Sequence
    >>> row = to_rows(Dataset.from_sequences([Sequence([0.5, 2.0], [1, 0], start=0, stop=3)]))[0]
    >>> row["time_since_start"], row["time_since_last_event"], row["type_event"], row["dim_process"]
    ([0.5, 2.0], [0.5, 1.5], [1, 0], 2)
    """
    before = np.concatenate([[0.0], data.times])[:-1]
    full = data.lengths > 0
    before[data.offsets[:-1][full]] = data.starts[full]
    gaps = data.times - before
    annex = pack(data)
    return [
        {
            DIM: data.marks.count,
            INDEX: i,
            LENGTH: int(b - a),
            TIMES: data.times[a:b].tolist(),
            GAPS: gaps[a:b].tolist(),
            TYPES: data.mark_ids[a:b].tolist(),
            FIELD: None if i else annex,
        }
        for i, (a, b) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True))
    ]


def _read_part(path: Path, split: str | None) -> Part:
    if path.suffix.lower() == ".parquet":
        return table_part(read_lists(path, WHAT, COLUMNS), path, split)
    return rows_part(_parsed(path, contents(path, f"{WHAT} as JSON")), path, split)


def _parsed(path: Path, text: bytes) -> list[Any]:
    """A JSON list of rows, or one row per line."""
    what = f"{WHAT} as JSON"
    Expansion(path, what).check_json(text)
    try:
        if text.lstrip()[:1] == b"[":
            return list(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise unreadable(path, what, error) from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise unreadable(path, what, f"line {number}: {error}") from error
    return rows


@runtime_checkable
class _HuggingFace(Protocol):
    """A Hugging Face data set, whose rows are an Arrow table."""

    def with_format(self, type: str) -> Ordered[pa.Table]: ...


def _in_memory(rows: object, source: Path, split: str | None) -> Part:
    if isinstance(rows, _HuggingFace):
        rows = rows.with_format("arrow")[:]
    if isinstance(rows, Mapping):
        rows = pa.table({str(name): rows[name] for name in rows})
    if not isinstance(rows, pa.Table) and hasattr(rows, "__arrow_c_stream__"):
        rows = pa.table(rows)
    if isinstance(rows, pa.Table):
        return table_part(rows, source, split)
    if not isinstance(rows, Iterable):
        raise EventDataError(
            "rows, a table or a Hugging Face data set",
            f"{source}: {kind(rows)}",
            "Pass a list of dicts.",
        )
    return rows_part(list(rows), source, split)


def _losses(data: Dataset, path: Path) -> list[str]:
    notes = [
        (
            "EasyTPP reads only times and types: windows, names of types and ids are in an "
            "additional field, which only Fourpoint reads"
        )
    ]
    if data.splits is not None and path.suffix:
        notes.append(
            "EasyTPP takes a file as one split: for a file each, give a folder (a name "
            "without .json)"
        )
    if (data.lengths == 0).any():
        notes.append(
            f"{int((data.lengths == 0).sum()):,} sequences have no events, which EasyTPP's "
            "models cannot take"
        )
    return notes
