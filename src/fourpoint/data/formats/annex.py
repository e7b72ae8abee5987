"""From what a file says to a :class:`Dataset`, and what its format cannot hold.

The formats of the field hold times and numbered types, and little else: no observation windows, no
names of types, no splits, no ids. What we write therefore carries an **annex**, one JSON text in a
place that the format's own readers ignore (an extra field, a key, metadata, or a file beside the
data). With it a round trip is exact; without it windows are taken from the events (start = min(0,
t_1), stop = t_N) and types are called by their numbers.

A :class:`Part` is one file's events, flat and unchecked; :func:`assemble` lays parts end to end and
checks them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.expansion import Expansion
from fourpoint.data.known import DAMAGE, Known, describe, recall
from fourpoint.events import SPLITS, Dataset, EventDataError, MarkSpace
from fourpoint.events.batching import offsets_of

MOST_TYPES = 1_000_000
FIELD = "fourpoint"  # the name under which a format that has fields carries the annex
ALIASES = {
    "train": "train",
    "dev": "dev",
    "test": "test",
    "valid": "dev",
    "validation": "dev",
    "val": "dev",
}


@dataclass(frozen=True)
class Part:
    """Events of one file (or of one split of it): sequence i owns ``times[offsets[i]:offsets[i +
    1]]``.

    ``marks`` are numbers as the file has them, the first type being number ``first``; ``types`` is
    how many the file says there are, or None. ``annex`` is the text that we wrote, or None.
    """

    source: Path
    times: NDArray[np.float64]
    marks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    types: int | None = None
    first: int = 0
    ids: tuple[str, ...] | None = None
    split: str | None = None
    annex: str | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def error(self, expected: str, received: str, remedy: str) -> EventDataError:
        """An error about this part's file."""
        return EventDataError(expected, f"{self.source}: {received}", remedy)

    def place(self, event: int) -> str:
        """Where flat event number ``event`` stands, in words."""
        i = int(np.searchsorted(self.offsets, event, side="right")) - 1
        number = event - int(self.offsets[i])
        return f"event {number} of sequence {i}"


def pack(data: Dataset) -> str:
    """The annex of a data set, as text.

    >>> from fourpoint.events import Sequence
    >>> pack(Dataset.from_sequences([Sequence([1.0], start=0, stop=2, id="a")]))[:44]
    '{"ids":["a"],"starts":0.0,"stops":2.0,"split'
    """
    known = describe(data) | {"marks": data.marks.names}
    return json.dumps(known, separators=(",", ":"))


def parts_of(data: Dataset) -> dict[str, Dataset]:
    """The data by split, in the order train, dev, test; all of it under "" where there are no
    splits.
    """
    if not len(data):
        raise EventDataError(
            "at least one sequence to write",
            "a data set without any",
            "Check how it was made.",
        )
    if data.splits is None:
        return {"": data}
    return {split: data.part(split) for split in SPLITS if (data.splits == split).any()}


def assemble(parts: list[Part], name: str) -> Dataset:
    """Lay parts end to end, with their annexes if they have them, and check everything.

    Fails with :class:`EventDataError` naming the file where a time is not finite or not in order, a
    mark is not among the types, an annex does not fit, or there is nothing at all.
    """
    _check_times(parts)
    known = [_unpacked(part) for part in parts]
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    lost = ""
    if not len(lengths):
        lost = "no sequences"
    elif not lengths.any() and None in known:
        lost = "only empty sequences, without windows"
    if lost:
        raise parts[0].error("at least one event", lost, "Check the program that wrote the file.")
    marks, space = _marks(parts, known)
    windows = [_windows(part, annex) for part, annex in zip(parts, known, strict=True)]
    annexes = [annex for annex in known if annex is not None]
    unit = ""
    if annexes:
        unit = annexes[0].unit
        name = annexes[0].name or name
    try:
        return Dataset(
            times=np.concatenate([part.times for part in parts]),
            mark_ids=marks,
            offsets=offsets_of(lengths),
            starts=np.concatenate([start for start, _ in windows]),
            stops=np.concatenate([stop for _, stop in windows]),
            marks=space,
            ids=_ids(parts, known),
            splits=_splits(parts, known),
            inferred=len(annexes) < len(parts) or any(annex.inferred for annex in annexes),
            unit=unit,
            name=name,
        )
    except EventDataError as error:
        files = ", ".join(dict.fromkeys(str(part.source) for part in parts))
        remedy = error.remedy
        if "non-decreasing" in error.expected:
            remedy = "Put the events of each sequence in order of time."
        raise EventDataError(error.expected, f"{files}: {error.received}", remedy) from None


def whole_numbers(part: Part, values: NDArray[Any], what: str) -> NDArray[np.int64]:
    """Values that must be whole, as integers; a number such as 2.0 is whole.

    >>> whole_numbers(
    ...     Part(Path("x"), np.zeros(2), np.zeros(2, int), np.array([0, 2])),
    ...     np.array([1.0, 2.5]),
    ...     "types",
    ... )
    Traceback (most recent call last):
      ...
    fourpoint.events.EventDataError: expected whole numbers for types; received x: 2.5 at ...
    """
    if values.dtype.kind not in "iuf":
        raise part.error(
            f"whole numbers for {what}",
            f"values of type {values.dtype}",
            "Number the types from 0.",
        )
    largest = 2.0**62
    with np.errstate(invalid="ignore"):
        inside = (values >= -largest) & (values <= largest)
        whole = inside & (values == np.floor(values))
    bad = np.flatnonzero(~whole)
    if len(bad):
        i = int(bad[0])
        raise part.error(
            f"whole numbers for {what}",
            f"{values[i]} at {part.place(i)}",
            "Number the types from 0.",
        )
    return values.astype(np.int64)


def _check_times(parts: list[Part]) -> None:
    for part in parts:
        if len(part.marks) != len(part.times):
            raise part.error(
                "one mark per time",
                f"{len(part.times):,} times and {len(part.marks):,} marks",
                "Make the lengths equal.",
            )
        bad = np.flatnonzero(~np.isfinite(part.times))
        if len(bad):
            i = int(bad[0])
            received = f"{part.times[i]} at {part.place(i)}"
            raise part.error("finite times", received, "Remove or correct the event.")


def _unpacked(part: Part) -> Known | None:
    if part.annex is None:
        return None
    remedy = (
        "Write the file again with fourpoint, or remove the annex to read windows and names off "
        "the events."
    )
    Expansion(part.source, "an annex that fourpoint wrote").check_json(part.annex)
    try:
        known = recall(json.loads(part.annex))
    except DAMAGE as error:
        raise part.error(
            "an annex that fourpoint wrote", f"a damaged one ({str(error)[:80]!r})", remedy
        ) from None
    # A filtered file may keep its annex, and its lost events would pass for silence.
    if (
        len(known.ids) != len(part)
        or known.events != len(part.times)
        or len(set(known.ids)) < len(known.ids)
    ):
        received = f"{len(part):,} sequences with {len(part.times):,} events"
        raise part.error(
            f"{len(known.ids):,} sequences with {known.events:,} events, as the annex says",
            received,
            remedy,
        )
    return known


def _marks(parts: list[Part], known: list[Known | None]) -> tuple[NDArray[np.int64], MarkSpace]:
    """Marks from 0, and the space: the annex's names, else numbers; one type alone is no mark."""
    named = {annex.marks for annex in known if annex is not None}
    if len(named) > 1 or (named and None in known):
        raise parts[0].error(
            "one list of mark names in all files",
            f"{len(named)} lists in {len(parts)} files",
            "Write them again.",
        )
    names = next(iter(named), None)
    stated = {part.types for part in parts if part.types is not None}
    if len(stated) > 1:
        raise parts[0].error(
            "one number of types in all files",
            f"{sorted(stated)}",
            "Correct dim_process.",
        )
    first = parts[0].first
    if names is not None:
        types = len(names) or 1
    elif stated:
        types = stated.pop()
    else:
        highest = max(int(part.marks.max(initial=first)) for part in parts)
        types = highest - first + 1
    if not 1 <= types <= MOST_TYPES:
        raise parts[0].error(
            f"between 1 and {MOST_TYPES:,} types",
            f"{types:,}",
            "Number the types from 0 or 1, without holes.",
        )
    end = first + types
    for part in parts:
        bad = np.flatnonzero((part.marks < first) | (part.marks >= end))
        if len(bad):
            i = int(bad[0])
            raise part.error(
                f"marks from {first} to {end - 1}",
                f"{part.marks[i]} at {part.place(i)}",
                "Correct the mark, or state more types.",
            )
    marks = np.concatenate([part.marks for part in parts]) - first
    if names is not None:
        return marks, MarkSpace.of(names or None)
    if types == 1:
        return marks, MarkSpace()
    return marks, MarkSpace.categorical([str(number) for number in range(first, end)])


def _windows(part: Part, annex: Known | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Starts and stops: the annex's, else as :func:`fourpoint.events.inferred_window`, for all
    sequences at once.
    """
    if annex is not None:
        return annex.starts, annex.stops
    full = np.diff(part.offsets) > 0
    heads = part.offsets[:-1][full]
    tails = part.offsets[1:][full] - 1
    starts = np.zeros(len(part))
    stops = np.ones(len(part))
    starts[full] = np.minimum(0.0, part.times[heads])
    stops[full] = part.times[tails]
    stops = np.where(stops > starts, stops, starts + 1.0)
    return starts, stops


def _ids(parts: list[Part], known: list[Known | None]) -> tuple[str, ...]:
    """The annex's ids, else the file's, with the split before them where two files use the same;
    else running numbers.
    """
    ids: list[str] = []
    with_split: list[str] = []
    for part, annex in zip(parts, known, strict=True):
        given = part.ids if annex is None else annex.ids
        if given is None:
            return _numbers(parts)
        ids += given
        with_split += [f"{part.split}-{id}" for id in given]
    for found in (ids, with_split):
        if len(set(found)) == len(found):
            return tuple(found)
    return _numbers(parts)


def _numbers(parts: list[Part]) -> tuple[str, ...]:
    """Running numbers of all sequences, as ids."""
    count = sum(len(part) for part in parts)
    return tuple(str(i) for i in range(count))


def _splits(parts: list[Part], known: list[Known | None]) -> NDArray[np.str_] | None:
    """The annex's splits, else those that the files' names or keys say; None unless every sequence
    has one.
    """
    found: list[NDArray[np.str_]] = []
    for part, annex in zip(parts, known, strict=True):
        if annex is not None and annex.splits is not None:
            found.append(annex.splits)
        elif annex is None and part.split is not None:
            found.append(np.full(len(part), part.split))
        else:
            return None
    return np.concatenate(found)
