"""What a model was trained on: a fingerprint of every training sequence, kept with the model.

The likelihood of training data says little about new data. So `fit` leaves with the model a hash
of each training sequence and of each one that it held out for early stopping (of id, times,
marks and places; not of the window, which a user may state later), and :func:`overlap` counts how
much of a data set was seen in training. A lone sequence is not drawn but cut: the model has then
seen its first events, and the hash of that many events recognises them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Dataset, Sequence
from fourpoint.models.base import PointProcess

MOST_CUT = 3  # `Dataset.split` cuts sequences only where there are fewer of them than parts
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class TrainedOn:
    """Sorted hashes of the sequences that a model was trained on, and of those for early stopping.

    ``beginnings`` are the number of events and the end of the window of each training sequence that
    may have been cut from a longer one.
    """

    train: Hashes
    dev: Hashes
    beginnings: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, train: Dataset, dev: Dataset) -> TrainedOn:
        """The fingerprints of both parts."""
        beginnings = []
        if len(train) <= MOST_CUT:
            beginnings = [(len(s), s.stop) for s in train if len(s)]
        every = np.ones(len(train), dtype=bool)
        seen = np.unique(_hashes(train, every))
        of_dev = np.unique(sequence_hashes(dev))
        return cls(seen, of_dev, tuple(beginnings))

    def to_dict(self) -> dict[str, Any]:
        """For `model.json`: hashes of 8 bytes, little-endian, in base64."""
        return {
            "train": _text(self.train),
            "dev": _text(self.dev),
            "beginnings": [list(pair) for pair in self.beginnings],
        }

    @classmethod
    def from_dict(cls, found: object) -> TrainedOn | None:
        """What :meth:`to_dict` wrote; None for models that were saved without it."""
        if not isinstance(found, dict):
            return None
        try:
            train = _numbers(found["train"])
            dev = _numbers(found["dev"])
            beginnings = tuple((int(count), float(stop)) for count, stop in found["beginnings"])
        except (TypeError, KeyError, ValueError, binascii.Error):
            return None
        return cls(train, dev, beginnings)


@dataclass(frozen=True)
class Overlap:
    """How much of a data set was in the training data."""

    sequences: int
    events: int
    of_sequences: int
    of_events: int

    def __str__(self) -> str:
        return (
            f"{self.sequences:,} of {self.of_sequences:,} scored sequences ({self.events:,} of "
            f"{self.of_events:,} events) were in the training data: their score says little about "
            "new data"
        )


def overlap(model: PointProcess, data: Dataset) -> Overlap | None:
    """How much of ``data`` the model was trained on; None where that is nothing, or is not known.

    >>> from fourpoint.models.poisson import Poisson
    >>> both = [Sequence([1.0, 2.0], stop=3.0, id="a"), Sequence([0.5], stop=3.0, id="b")]
    >>> data = Dataset.from_sequences(both)
    >>> model = Poisson()
    >>> model.trained_on = TrainedOn.of(data[:1], data[1:])
    >>> found = overlap(model, data)
    >>> found.sequences, found.events, found.of_events
    (1, 2, 3)
    """
    known = model.trained_on
    if known is None:
        return None
    # A history period is no part of the score, and may well have been in training.
    history = data.lengths - data.scored_lengths
    seen = np.maximum(0, _seen(known, data) - history)
    if not seen.any():
        return None
    return Overlap(
        sequences=int(np.count_nonzero(seen)),
        events=int(seen.sum()),
        of_sequences=len(data),
        of_events=data.scored_events,
    )


def held_out(model: PointProcess, data: Dataset) -> Dataset | None:
    """The part of ``data`` that was not in training; None unless the rest was.

    Of a sequence whose beginning was in training it is the remainder: what was in training is its
    history period.
    """
    known = model.trained_on
    if known is None:
        return None
    seen = _seen(known, data)
    empty = data.lengths == 0
    whole = (seen == data.lengths) & ~empty
    whole[empty] = np.isin(_hashes(data, empty), known.train)
    if not seen.any() or (whole | empty).all():
        return None
    rows = np.flatnonzero(~whole)
    history = data.lengths - data.scored_lengths
    cut = seen[rows] > history[rows]
    if not cut.any():
        return data.select(rows) if whole.any() else None
    stops = dict(known.beginnings)
    kept = []
    for i in rows.tolist():
        sequence = data[i]
        begin = sequence.start
        if seen[i]:
            begin = stops[int(seen[i])]
        kept.append(sequence.scored_after(begin))
    rest = Dataset.from_sequences(kept, unit=data.unit, name=data.name)
    return replace(rest, log=data.log, feature_names=data.feature_names)


def chose_weights(model: PointProcess, data: Dataset) -> bool:
    """Whether any sequence of ``data`` was among those by which `fit` chose when to stop."""
    known = model.trained_on
    if known is None:
        return False
    chosen = np.isin(sequence_hashes(data), known.dev)
    return bool(chosen.any())


def _seen(known: TrainedOn, data: Dataset) -> NDArray[np.int64]:
    """Events of each sequence that were in the training data."""
    lengths = data.lengths
    seen = np.zeros(len(data), dtype=np.int64)
    full = np.flatnonzero(lengths > 0)
    same = np.isin(sequence_hashes(data), known.train)
    whole = full[same]
    seen[whole] = lengths[whole]
    for count, stop in known.beginnings:
        longer = (lengths > count) & (seen < count) & (data.stops >= stop)
        for i in np.flatnonzero(longer).tolist():
            if np.isin(np.uint64(_hash_of_first(data[i], count)), known.train):
                seen[i] = count
    return seen


def sequence_hashes(data: Dataset) -> Hashes:
    """One hash for each sequence with events."""
    return _hashes(data, data.lengths > 0)


def _hashes(data: Dataset, which: NDArray[np.bool_]) -> Hashes:
    """Of the sequences ``which``, each with all of its events."""
    columns = _columns(data.times, data.mark_ids, data.places)
    offsets = data.offsets.tolist()
    found = []
    for i in np.flatnonzero(which).tolist():
        found.append(_hash(data.ids[i], columns, offsets[i], offsets[i + 1]))
    return np.array(found, dtype=np.uint64)


def _hash_of_first(sequence: Sequence, count: int) -> int:
    """Of the id and the first ``count`` events."""
    columns = _columns(sequence.times, sequence.marks, sequence.places)
    return _hash(sequence.id, columns, 0, count)


def _columns(
    times: NDArray[Any], marks: NDArray[Any], places: NDArray[Any] | None
) -> list[NDArray[Any]]:
    """Times, marks and places, if any, as they are hashed on every machine."""
    found = [np.ascontiguousarray(times, "<f8"), np.ascontiguousarray(marks, "<i8")]
    if places is not None:
        found.append(np.ascontiguousarray(places, "<f8"))
    return found


def _hash(name: str, columns: list[NDArray[Any]], first: int, stop: int) -> int:
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8)
    for column in columns:
        digest.update(column[first:stop].data)
    return int.from_bytes(digest.digest(), "little")


def _bytes(values: NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def _text(hashes: Hashes) -> str:
    content = _bytes(hashes, "<u8")
    return base64.b64encode(content).decode("ascii")


def _numbers(text: str) -> Hashes:
    content = base64.b64decode(text, validate=True)
    return np.frombuffer(content, dtype="<u8").astype(np.uint64)
