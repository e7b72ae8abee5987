"""The pickles of the Neural Hawkes Process and the Transformer Hawkes Process, read without running
them.

    {"dim_process": 3, "train": [[{"idx_event": 1, "type_event": 2, "time_since_start": 0.5,
     "time_since_last_event": 0.5}, ...], ...], "dev": [], "test": []}

A file holds one or more splits, each a list of sequences, each a list of events, each a dict. Rows
as EasyTPP writes them (a dict of lists per sequence) are read too, and so are numpy's arrays and
scalars in their places. What a file may hold, and how it is read without being run, is in
``unpickling.py``. Windows, names and ids are one more key (see ``annex.py``).

Source: Mei and Eisner, "The Neural Hawkes Process", 2017; Zuo et al., "Transformer Hawkes Process",
2020.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import write_whole
from fourpoint.data.formats.annex import (
    ALIASES,
    FIELD,
    Part,
    assemble,
    pack,
    parts_of,
    whole_numbers,
)
from fourpoint.data.formats.easytpp import to_rows
from fourpoint.data.formats.folders import split_files, split_of, split_targets
from fourpoint.data.formats.rows import DIM, GAPS, TIMES, TYPES, kind, rows_part
from fourpoint.data.formats.unpickling import load
from fourpoint.data.sample import Sample
from fourpoint.events import SPLITS, Dataset, EventDataError
from fourpoint.events.batching import offsets_of

WHAT = "a pickle of splits, sequences and events"
ENDINGS = (".pkl", ".pickle")
EVENT = 48  # bytes of an event while lists become arrays


def matches(sample: Sample) -> bool:
    """Whether a file or folder looks like pickles."""
    if sample.names is not None:
        return sample.has_file(*ENDINGS)
    named = sample.path.suffix.lower() in ENDINGS and not sample.columns
    return named or re.match(rb"\x80[\x02-\x05]", sample.head) is not None


def read(path: str | Path) -> Dataset:
    """Read one pickle, or a folder with one per split (``train.pkl``, ``dev.pkl``, ``test.pkl``).

    Args:
        path: the file or folder.

    Returns: The sequences of all splits in it, in the order train, dev, test. Fails with
        :class:`EventDataError` that names the file, also where the pickle asks for anything that is
        not data; nothing of it is run.
    """
    source = Path(path)
    files = split_files(source, ENDINGS, WHAT) if source.is_dir() else [(split_of(source), source)]
    return assemble([part for split, file in files for part in _parts(file, split)], source.stem)


def write(data: Dataset, path: str | Path) -> list[str]:
    """Write a pickle with all splits, or with a path that has no suffix a folder with one file per
    split.

    Data without splits is written as "train". EasyTPP reads these files with ``data_format: pkl``.
    Returns what other readers will not see.
    """
    for target, part in split_targets(data, Path(path), ".pkl"):
        splits: dict[str, Any] = {split: [] for split in SPLITS}
        for split, some in parts_of(part).items():
            splits[split or "train"] = _events(some)
        # The annex follows the order of the splits, as the reader meets them.
        if part.splits is None:
            ordered = part
        else:
            ordered = part.select(
                np.argsort([SPLITS.index(s) for s in part.splits.tolist()], kind="stable")
            )
        content = {DIM: data.marks.count, **splits, FIELD: pack(ordered)}
        write_whole(target, pickle.dumps(content, protocol=4))
    return [
        (
            "other readers see only times and types: windows, names of types and ids are under "
            "an additional key, which only Fourpoint reads"
        )
    ]


def bounded(events: int, most: int, path: Path) -> None:
    """Refuse more events than bytes, which would have to be the same lists again and again, and
    more than fit into memory.
    """
    Expansion(path, WHAT).check(EVENT * events)
    if events > most:
        received = f"{path}: {events:,} events in {most:,} bytes, by repeating the same lists"
        raise EventDataError(
            "at most one event per byte of a pickle",
            received,
            "None of it was run. Do not trust the file.",
        )


def _parts(path: Path, split: str | None) -> list[Part]:
    content, most = load(path)
    if isinstance(content, list | tuple):
        return [_split_part(list(content), path, split, None, most)]
    if not isinstance(content, dict):
        raise EventDataError(WHAT, f"{path}: {kind(content)}", "Check what the file holds.")
    held = {
        key: value
        for key, value in content.items()
        if isinstance(value, list | tuple) and len(value)
    }
    odd = next((key for key in held if key not in ALIASES), None)
    if odd is not None or not held:
        if held:
            received = f"{_called(odd)} with {len(held[odd]):,} entries"
        else:
            received = f"keys {', '.join(map(_called, list(content)[:8]))}"
        raise EventDataError(
            "splits called train, dev or test with sequences in them",
            f"{path}: {received}",
            "Rename or remove the key.",
        )
    annex = content.get(FIELD) if isinstance(content.get(FIELD), str) else None
    ordered = sorted(held, key=lambda key: SPLITS.index(ALIASES[key]))
    parts = [
        _split_part(list(held[key]), path, ALIASES[key], content.get(DIM), most) for key in ordered
    ]
    return parts if annex is None else [_joined(parts, annex)]


def _split_part(
    sequences: list[Any], path: Path, split: str | None, types: object, most: int
) -> Part:
    """One split as flat arrays, of at most ``most`` events."""
    if sequences and all(isinstance(row, dict) for row in sequences):
        for name in (TIMES, TYPES, GAPS):
            bounded(
                sum(
                    len(row[name])
                    for row in sequences
                    if isinstance(row.get(name), list | tuple | np.ndarray)
                ),
                most,
                path,
            )
        part = rows_part(sequences, path, split)
        return replace(part, types=part.types or _count(types))
    odd = next(
        (i for i, sequence in enumerate(sequences) if not isinstance(sequence, list | tuple)), None
    )
    if odd is not None:
        raise EventDataError(
            "a list of events in every sequence",
            f"{path}: {kind(sequences[odd])} at sequence {odd}",
            "Check the file.",
        )
    lengths = [len(sequence) for sequence in sequences]
    bounded(sum(lengths), most, path)
    offsets = offsets_of(lengths)
    events = list(chain.from_iterable(sequences))
    part = Part(path, _column(events, TIMES, path, offsets), np.zeros(0, dtype=np.int64), offsets)
    marks = whole_numbers(part, _column(events, TYPES, path, offsets), TYPES)
    return Part(path, part.times, marks, offsets, types=_count(types), split=split)


def _column(
    events: list[Any], name: str, path: Path, offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """One value of every event, as floats."""
    try:
        values = [event[name] for event in events]
        if {*map(type, values)} <= {int, float}:
            return np.array(values, dtype=np.float64)
    except (KeyError, TypeError, IndexError, OverflowError):
        pass
    bad = next(
        i
        for i, event in enumerate(events)
        if not isinstance(event, dict) or not _is_number(event.get(name))
    )
    sequence = int(np.searchsorted(offsets, bad, side="right")) - 1
    if not isinstance(events[bad], dict):
        received = kind(events[bad])
    elif name in events[bad]:
        received = kind(events[bad][name])
    else:
        received = "none"
    place = f"event {bad - int(offsets[sequence])} of sequence {sequence}"
    raise EventDataError(
        f"a number {name!r} in every event",
        f"{path}: {received} at {place}",
        "Check what the file holds.",
    )


def _called(key: object) -> str:
    return repr(key[:40]) if isinstance(key, str) else kind(key)


def _count(types: object) -> int | None:
    return types if isinstance(types, int) and not isinstance(types, bool) else None


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1000)


def _joined(parts: list[Part], annex: str) -> Part:
    """The splits of a file that we wrote, end to end, in the order of its annex."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    offsets = offsets_of(lengths)
    times = np.concatenate([part.times for part in parts])
    marks = np.concatenate([part.marks for part in parts])
    return Part(parts[0].source, times, marks, offsets, types=parts[0].types, annex=annex)


def _events(data: Dataset) -> list[list[dict[str, Any]]]:
    """Sequences as lists of dicts: an object per event, because the format is one."""
    return [
        [
            {"idx_event": i, TYPES: mark, TIMES: time, GAPS: gap}
            for i, (mark, time, gap) in enumerate(
                zip(row[TYPES], row[TIMES], row[GAPS], strict=True), start=1
            )
        ]
        for row in to_rows(data)
    ]
