"""tick's events: a list of realisations, each a list with one array of times per type, in memory
and in ``.npz`` files.

    [[array([0.5, 2.0]), array([1.25])],  [array([]), array([0.75])]]

are two realisations of two types.

A realisation is observed from 0 to its end time, which tick keeps apart (``end_times``). tick has
no order between types, so events of different types at one time come back from it in the order of
the types. On disk tick has no format: ours has one entry per event in ``timestamps``,
``realisation`` and ``type``, in the order of the data, besides ``end_times`` and the annex. We read
as well what users save with ``np.savez(file, *timestamps)``, ``np.save`` and ``pickle.dump``.

Source: Bacry et al., "tick: a Python library for statistical learning", 2018.
"""

from __future__ import annotations

import io
import sys
import zipfile
import zlib
from collections.abc import Sequence as Ordered
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, NDArray

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import check_file, contents, unreadable, write_whole
from fourpoint.data.formats.annex import FIELD, Part, assemble, pack
from fourpoint.data.formats.pickles import bounded
from fourpoint.data.formats.rows import kind
from fourpoint.data.formats.unpickling import load, loads
from fourpoint.data.formats.unpickling_child import is_sound
from fourpoint.data.sample import Sample
from fourpoint.events import Dataset, EventDataError, MarkSpace, UserError
from fourpoint.events.batching import offsets_of

WHAT = "tick's realisations"
MAGIC = b"\x93NUMPY"
Realisations = list[list[NDArray[np.float64]]]


def to_tick(data: Dataset, shift: bool = False) -> tuple[Realisations, NDArray[np.float64]]:
    """The realisations and end times that tick's learners take.

    Args:
        data: the events; tick takes each window to start at 0.
        shift: count each sequence's times from its window's start, which otherwise must be 0.

    Returns: ``(timestamps, end_times)``, for ``learner.fit(timestamps, end_times=end_times)``.
        Fails with :class:`UserError` where a window starts elsewhere and ``shift`` is False: tick
        would take the time before it for silence.

    >>> from fourpoint.events import Sequence
    >>> timestamps, ends = to_tick(
    ...     Dataset.from_sequences([Sequence([0.5, 1.25, 2.0], [0, 1, 0], start=0, stop=3)])
    ... )
    >>> [t.tolist() for t in timestamps[0]], ends.tolist()
    ([[0.5, 2.0], [1.25]], [3.0])
    """
    late = np.flatnonzero(data.starts != 0)
    if len(late) and not shift:
        received = f"{data.starts[late[0]]:g} for sequence {data.ids[late[0]]}"
        raise UserError(
            "windows that start at 0, as tick takes them",
            received,
            "Pass shift=True to count times from each window's start.",
        )
    origin = data.starts if shift else np.zeros(len(data))
    row = np.repeat(np.arange(len(data)), data.lengths)
    types = data.marks.count
    cell = row * types + data.mark_ids
    order = np.argsort(cell, kind="stable")
    edges = offsets_of(np.bincount(cell, minlength=len(data) * types))
    times = (data.times - origin[row])[order]
    return [
        [times[edges[k] : edges[k + 1]] for k in range(i * types, (i + 1) * types)]
        for i in range(len(data))
    ], data.stops - origin


def from_tick(
    timestamps: Ordered[Any], end_times: ArrayLike | None = None, names: Ordered[str] | None = None
) -> Dataset:
    """A data set from tick's realisations, or from one realisation (a list of arrays).

    Args:
        timestamps: list (realisations) of lists (types) of arrays of times.
        end_times: the end of each window; without it a window ends at its last event, and is said
        to be inferred.
        names: the types' names; "0" to "M-1" by default.

    >>> from_tick([[np.array([0.5, 2.0]), np.array([1.25])]], end_times=[3.0])[0].marks.tolist()
    [0, 1, 0]
    """
    part = _nested(timestamps, Path("timestamps"), None)
    ends = None if end_times is None else np.atleast_1d(np.asarray(end_times, dtype=np.float64))
    return _with_ends(part, ends, names, "tick")


def matches(sample: Sample) -> bool:
    """Whether a file looks like arrays of numpy's."""
    return sample.head.startswith((b"PK\x03\x04", MAGIC))


def read(path: str | Path) -> Dataset:
    """Read an ``.npz`` (ours, or one array per type of one realisation), an ``.npy`` or a pickle of
    realisations.

    Fails with :class:`EventDataError` that names the file; no code of the file is run.
    """
    source = Path(path)
    with check_file(source, WHAT).open("rb") as file:
        packed = file.read(2) in (b"PK", b"\x93N")
    arrays, most = read_arrays(source, WHAT) if packed else _unpickled(source)
    if {"timestamps", "realisation", "type"} <= set(arrays):
        return _read_ours(arrays, source)
    ends = arrays.pop("end_times", None)
    held = [arrays[key] for key in sorted(arrays, key=lambda key: (len(key), key))]
    nested: object = held
    if len(held) == 1:
        only = held[0]
        is_vector = isinstance(only, np.ndarray) and only.ndim == 1
        nested = held if is_vector else only
    realisations = _nested(nested, source, most)
    return _with_ends(realisations, _numbers(ends, source), None, source.stem)


def write(data: Dataset, path: str | Path) -> list[str]:
    """Write an ``.npz`` that :func:`read` gives back exactly. Returns what tick itself will not
    see.
    """
    arrays: dict[str, Any] = {
        "timestamps": data.times,
        "realisation": np.repeat(np.arange(len(data)), data.lengths),
        "type": data.mark_ids,
        "types": np.array(data.marks.count),
        "end_times": data.stops,
        FIELD: np.array(pack(data)),
    }

    def save(draft: Path) -> None:
        with draft.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_whole(Path(path), save)
    notes = [
        (
            "tick takes a list of arrays per realisation: fourpoint.data.formats.tick.to_tick "
            "makes it from the data"
        )
    ]
    if (data.starts != 0).any():
        notes.append(
            "some windows do not start at 0, where tick takes them to start; to_tick(data, "
            "shift=True) moves them"
        )
    return notes


def _read_ours(arrays: dict[str, Any], source: Path) -> Dataset:
    times = _numbers(arrays["timestamps"], source)
    ends = _numbers(arrays.get("end_times"), source)
    rows, marks, types = (
        _numbers(arrays.get(name), source, "iu") for name in ("realisation", "type", "types")
    )
    shapes = [None if array is None else array.shape for array in (times, rows, marks)]
    expected = f"{WHAT}: equally long timestamps, realisation and type, besides types and end_times"
    error = EventDataError(expected, f"{source}: arrays of shapes {shapes}", "Write it again.")
    if times is None or rows is None or marks is None or types is None or ends is None:
        raise error
    columns = len(set(shapes)) == 1 and times.ndim == 1
    if not columns or types.size != 1 or ends.ndim != 1:
        raise error
    count = int(types.reshape(-1)[0])
    return _checked(times, rows, marks, count, ends, arrays.get(FIELD), source)


def _checked(
    times: NDArray[Any],
    rows: NDArray[Any],
    marks: NDArray[Any],
    types: int,
    ends: NDArray[Any],
    annex: object,
    source: Path,
) -> Dataset:
    inside = not len(rows) or (rows[0] >= 0 and rows[-1] < len(ends))
    if not inside or (rows[1:] < rows[:-1]).any():
        raise EventDataError(
            f"{WHAT}: realisations in order, from 0 to {len(ends) - 1}",
            f"{source}: others",
            "Write it again.",
        )
    offsets = np.searchsorted(rows, np.arange(len(ends) + 1)).astype(np.int64)
    part = Part(source, times.astype(np.float64), marks.astype(np.int64), offsets, types=types)
    if isinstance(annex, np.ndarray) and annex.dtype.kind == "U" and annex.size == 1:
        return assemble([replace(part, annex=str(annex.reshape(-1)[0]))], source.stem)
    return _with_ends(part, ends, None, source.stem)


def _unpickled(source: Path) -> tuple[dict[str, Any], int]:
    content, most = load(source)
    return {"arr_0": content}, most


def _nested(timestamps: object, source: Path, most: int | None) -> Part:
    """Nested lists of arrays, flat: of a file at most as many cells and times as it has bytes. One
    realisation may stand alone.
    """
    if not isinstance(timestamps, list | tuple | np.ndarray) or not len(timestamps):
        raise EventDataError(
            WHAT,
            f"{source}: {kind(timestamps)}",
            "Pass a list (realisations) of lists (types) of arrays.",
        )
    inner = list(timestamps)
    if all(_is_times(one) for one in inner) and any(len(one) for one in inner):
        inner = [inner]
    odd = next(
        (
            i
            for i, one in enumerate(inner)
            if not isinstance(one, list | tuple) or len(one) != len(inner[0]) or not len(one)
        ),
        None,
    )
    if odd is not None:
        if not isinstance(inner[odd], list | tuple):
            received = f"{source}: {kind(inner[odd])} at realisation {odd}"
        else:
            received = (
                f"{source}: {len(inner[odd])} types at realisation {odd} and {len(inner[0])} "
                "at realisation 0"
            )
        raise EventDataError(
            f"{WHAT} with equally many types",
            received,
            "Pass a list (realisations) of lists (types) of arrays.",
        )
    bounded(len(inner) * len(inner[0]), most or sys.maxsize, source)
    cells = [cell for one in inner for cell in one]
    bad = next((i for i, cell in enumerate(cells) if not _is_times(cell)), None)
    if bad is not None:
        place = f"type {bad % len(inner[0])} of realisation {bad // len(inner[0])}"
        raise EventDataError(
            f"{WHAT}: an array of times per type",
            f"{source}: {kind(cells[bad])} at {place}",
            "Convert it to numbers.",
        )
    bounded(sum(len(cell) for cell in cells), most or sys.maxsize, source)
    try:
        flat = [np.asarray(cell, dtype=np.float64) for cell in cells]
    except OverflowError as error:
        raise EventDataError(
            f"{WHAT}: times", f"{source}: one too large for a float ({error})", "Correct it."
        ) from error
    sizes = np.array([len(cell) for cell in flat], dtype=np.int64)
    types = len(inner[0])
    cell = np.repeat(np.arange(len(flat)), sizes)
    times = np.concatenate([np.zeros(0), *flat])
    order = np.lexsort((times, cell // types))  # equals stay in order of type
    offsets = offsets_of(sizes)[::types]
    return Part(source, times[order], (cell % types)[order], offsets, types=types)


def _is_times(value: object) -> bool:
    """True for an array or list of plain numbers."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iuf"
    return isinstance(value, list | tuple) and all(
        issubclass(one, int | float | np.integer | np.floating) and one is not bool
        for one in set(map(type, value))
    )


def _numbers(value: object, source: Path, kinds: str = "iuf") -> NDArray[Any] | None:
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
        raise EventDataError(
            f"{WHAT}: arrays of numbers", f"{source}: {kind(value)}", "Write it again."
        )
    return value


def _with_ends(
    part: Part, ends: NDArray[Any] | None, names: Ordered[str] | None, name: str
) -> Dataset:
    if ends is not None and ends.shape != (len(part),):
        raise part.error(
            "one end time per realisation",
            f"{ends.size} for {len(part)} realisations",
            "Pass as many as there are.",
        )
    data = assemble([part], name)
    try:
        if names is not None:
            data = replace(data, marks=MarkSpace.categorical(names))
        if ends is None:
            return data
        stops = ends.astype(np.float64)
        full = data.lengths > 0
        last = data.times[data.offsets[1:][full] - 1]
        at_the_end = bool(
            (last == stops[full]).any()
        )  # as where tick itself took the last event for the end
        return replace(data, starts=np.zeros(len(part)), stops=stops, inferred=at_the_end)
    except EventDataError as error:
        raise part.error(error.expected, error.received, error.remedy) from None


def read_arrays(path: Path, what: str) -> tuple[dict[str, Any], int]:
    """The arrays of an ``.npz`` by name, or that of an ``.npy`` under ``arr_0``, and how many bytes
    they take unpacked.

    An array of objects comes as a list.
    """
    check_file(path, what)
    with path.open("rb") as file:
        start = file.read(6)
    if start == MAGIC:
        data = contents(path, what)
        return {"arr_0": _array(data, path, what)}, len(data)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            Expansion(path, what).check(size)
            odd = next(
                (
                    m
                    for m in members
                    if m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                ),
                None,
            )
            if odd is not None:
                raise unreadable(
                    path, what, f"{odd.filename[:40]} is packed in a way that numpy does not use"
                )
            return {
                member.filename.removesuffix(".npy"): _array(archive.read(member), path, what)
                for member in members
            }, size
    except EventDataError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        KeyError,
    ) as error:
        raise unreadable(path, what, error) from error


def _array(data: bytes, path: Path, what: str) -> Any:
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = header(stream)
    except (ValueError, SyntaxError, TypeError, EOFError, RecursionError, MemoryError) as error:
        raise unreadable(path, what, error) from error
    body = data[stream.tell() :]
    if dtype.hasobject:
        return loads(body, path)
    if (
        dtype.kind not in "biufU"
        or not dtype.itemsize
        or not is_sound(shape)
        or len(body) != prod(shape) * dtype.itemsize
    ):
        raise unreadable(
            path, what, f"an array of {dtype} and shape {shape} in {len(body):,} bytes"
        )
    return np.frombuffer(body, dtype=dtype).reshape(shape, order="F" if fortran else "C")
