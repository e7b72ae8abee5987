"""Windows of sequences: whether they repeat each other, and how long ones are cut.

A million events in one sequence cannot be one training example. Pieces of it can: each has the last
events before it as a history period, which conditions the rates but is not scored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Context, Dataset
from fourpoint.events.batching import offsets_of


def repeated_windows(data: Dataset) -> bool:
    """Whether the sequences are repetitions of one window: several of them, all of one length.

    Only then does the time since the window's start mean the same in every sequence, and a curve of
    it can be used for new ones. In a single sequence it would be frozen after its end.
    """
    durations = data.durations
    return len(data) > 1 and bool(np.ptp(durations) <= 1e-9 * durations.max())


REMEMBERED = 4096  # events of a history period that validations keep


def beginning(data: Dataset, events: int, *, history: int = REMEMBERED) -> Dataset:
    """The data, with every sequence cut after its first ``events`` scored events; of a longer
    history period before them the last ``history`` events are kept.

    >>> from fourpoint.events import Sequence
    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 3.0], start=0.0, stop=9.0)])
    >>> [(len(s), s.stop) for s in beginning(data, 2)]
    [(2, 2.0)]
    """
    earlier = data.lengths - data.scored_lengths
    long = data.scored_lengths > events
    if not long.any() and int(earlier.max(initial=0)) <= history:
        return data
    first = data.offsets[:-1] + np.maximum(0, earlier - history)
    last = np.where(long, data.offsets[:-1] + earlier + events, data.offsets[1:])
    times = np.append(data.times, 0.0)
    starts = np.where(earlier > history, times[first - 1], data.starts)
    stops = np.where(long, times[last - 1], data.stops)
    if bool((stops <= starts).any()):
        return data
    return _pieces(data, np.arange(len(data)), first, last, starts, stops, None, data.ids)


def cut_long(data: Dataset, events: int, *, history: int = 0) -> Dataset:
    """The data with sequences of more than ``events`` events cut into pieces of so many events
    each.

    A piece is scored from the last event of the piece before it to its own last event, the last
    piece to the end of the window. It has the ``history`` events before that as its history period.
    With a history no piece begins between events of one time, and pieces that lie in a history
    period are left out. Without one, data in which a piece would have no extent, since all of its
    events share one time, stay as they are.

    >>> from fourpoint.events import Sequence
    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 3.0], start=0.0, stop=9.0)])
    >>> [(s.start, s.times.tolist(), s.stop) for s in cut_long(data, 2)]
    [(0.0, [1.0, 2.0], 2.0), (2.0, [3.0], 9.0)]
    >>> [(s.start, s.times.tolist(), s.stop) for s in cut_long(data, 2, history=1)]
    [(0.0, [1.0, 2.0], 2.0), (1.0, [2.0, 3.0], 9.0)]
    """
    if not len(data):
        return data
    pieces = np.maximum(1, -(-data.lengths // events))
    row = np.repeat(np.arange(len(data)), pieces)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = data.offsets[row] + nth * events
    if history:
        first = _past_ties(data, first, data.offsets[row + 1])
        kept = (nth == 0) | (first < data.offsets[row + 1])
        new_row = row[1:] != row[:-1]
        later = first[1:] > first[:-1]
        kept &= np.append(new_row | later, True)
        row = row[kept]
        first = first[kept]
        nth = nth[kept]
    is_end = np.append(row[1:] != row[:-1], True)
    last = np.where(is_end, data.offsets[row + 1], np.append(first[1:], 0))
    times = np.append(data.times, 0.0)  # an index past the end is never used, but has to exist
    starts = np.where(nth > 0, times[first - 1], data.starts[row])
    stops = np.where(is_end, data.stops[row], times[last - 1])
    if bool((stops <= starts).any()):
        return data
    ids = tuple(
        data.ids[r] if pieces[r] == 1 else f"{data.ids[r]}/{n}"
        for r, n in zip(row, nth, strict=True)
    )
    if not history:
        return _pieces(data, row, first, last, starts, stops, None, ids)
    # The event at the former start belongs to the piece before, and is not scored again.
    scored_from = np.where(nth > 0, np.nextafter(starts, np.inf), starts)
    if data.context is not None and data.context.scored_from is not None:
        scored_from = np.maximum(scored_from, data.context.scored_from[row])
    begin = np.maximum(first - history, data.offsets[row])
    starts = np.where(begin > data.offsets[row], times[begin - 1], data.starts[row])
    found = _pieces(data, row, begin, last, starts, stops, scored_from, ids)
    return found.select(np.flatnonzero(scored_from < stops))


def _past_ties(
    data: Dataset, first: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The first events at or after ``first`` whose time differs from that of the event before, or
    ``ends``.
    """
    apart = np.ones(data.events + 1, dtype=bool)
    apart[1:-1] = np.diff(data.times) != 0
    apart[data.offsets] = True
    heads = np.flatnonzero(apart)
    return np.minimum(heads[np.searchsorted(heads, first)], ends)


def _pieces(
    data: Dataset,
    row: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    starts: NDArray[np.float64],
    stops: NDArray[np.float64],
    scored_from: NDArray[np.float64] | None,
    ids: tuple[str, ...],
) -> Dataset:
    """Events ``first`` to ``last`` of the sequences ``row``, in windows of their own."""
    lengths = last - first
    offsets = offsets_of(lengths)
    moved = first - offsets[:-1]
    flat = np.repeat(moved, lengths) + np.arange(offsets[-1])
    context = None if data.context is None else data.context.select(row)
    if scored_from is not None:
        context = replace(context or Context(), scored_from=scored_from)
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
        context=context,
    )
