"""Windows of sequences: whether they repeat each other, and how long ones are cut.

A million events in one sequence cannot be one training example. Pieces of it can: what a piece
loses is the history before its start, which matters for as long as past events have an effect.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fourpoint.events import Dataset
from fourpoint.events.batching import offsets_of


def repeated_windows(data: Dataset) -> bool:
    """Whether the sequences are repetitions of one window: several of them, all of one length.

    Only then does the time since the window's start mean the same in every sequence, and a curve of
    it can be used for new ones. In a single sequence it would be frozen after its end.
    """
    durations = data.durations
    return len(data) > 1 and bool(np.ptp(durations) <= 1e-9 * durations.max())


def beginning(data: Dataset, events: int) -> Dataset:
    """The data, with every sequence cut after its first ``events`` events.

    >>> from fourpoint.events import Sequence
    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 3.0], start=0.0, stop=9.0)])
    >>> [(len(s), s.stop) for s in beginning(data, 2)]
    [(2, 2.0)]
    """
    if int(data.lengths.max(initial=0)) <= events:
        return data
    return cut_long(data, events, first_only=True)


def cut_long(data: Dataset, events: int, *, first_only: bool = False) -> Dataset:
    """The data with sequences of more than ``events`` events cut into pieces of so many events
    each.

    A piece is observed from the last event of the piece before it to its own last event, the last
    piece to the end of the window. The history before a piece is lost to it. Data in which a piece
    would have no extent, since all of its events share one time, stay as they are.

    >>> from fourpoint.events import Sequence
    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 3.0], start=0.0, stop=9.0)])
    >>> [(s.start, s.times.tolist(), s.stop) for s in cut_long(data, 2)]
    [(0.0, [1.0, 2.0], 2.0), (2.0, [3.0], 9.0)]
    """
    pieces = np.maximum(1, -(-data.lengths // events))
    if first_only:
        row = np.arange(len(data))
        nth = np.zeros(len(data), dtype=np.int64)
    else:
        row = np.repeat(np.arange(len(data)), pieces)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = data.offsets[row] + nth * events
    last = np.minimum(first + events, data.offsets[row + 1])
    is_end = nth == pieces[row] - 1
    times = np.append(data.times, 0.0)  # an index past the end is never used, but has to exist
    starts = np.where(nth > 0, times[first - 1], data.starts[row])
    stops = np.where(is_end, data.stops[row], times[last - 1])
    if bool((stops <= starts).any()):
        return data
    lengths = last - first
    offsets = offsets_of(lengths)
    flat = np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])
    ids = tuple(
        data.ids[r] if pieces[r] == 1 else f"{data.ids[r]}/{n}"
        for r, n in zip(row, nth, strict=True)
    )
    return replace(
        data,
        times=data.times[flat],
        mark_ids=data.mark_ids[flat],
        offsets=offsets,
        starts=starts,
        stops=stops,
        ids=ids,
        splits=None,
        inferred=True,
        places=None if data.places is None else data.places[flat],
        features=None if data.features is None else data.features[flat],
        context=None if data.context is None else data.context.select(row),
    )
