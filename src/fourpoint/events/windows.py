"""Windows of sequences: whether they repeat each other, and how long ones are cut.

A million events in one sequence cannot be one training example. Pieces of it can: each has the last
events before it as a history period, which conditions the rates but is not scored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Context, Dataset
from fourpoint.events.batching import flat_places, known_rows

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def repeated_windows(data: Dataset) -> bool:
    """Whether the sequences are repetitions of one window: several of them, all of one length.

    Only then does the time since the window's start mean the same in every sequence, and a curve of
    it can be used for new ones. In a single sequence it would be frozen after its end.
    """
    if len(data) < 2:
        return False
    shortest = data.durations.min()
    longest = data.durations.max()
    return bool(longest - shortest <= 1e-9 * longest)


REMEMBERED = 4096  # events of a history period that validations keep


def beginning(data: Dataset, events: int, *, history: int = REMEMBERED) -> Dataset:
    """The data, with every sequence cut after its first ``events`` scored events; of a longer
    history period before them the last ``history`` events are kept.

    >>> from fourpoint.events import Sequence
    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 3.0], start=0.0, stop=9.0)])
    >>> [(len(s), s.stop) for s in beginning(data, 2)]
    [(2, 2.0)]
    """
    scored = data.scored_lengths
    earlier = data.lengths - scored
    long = scored > events
    forgotten = earlier - history
    if not long.any() and int(forgotten.max(initial=0)) <= 0:
        return data
    first = data.offsets[:-1] + np.maximum(0, forgotten)
    cut = data.offsets[:-1] + earlier + events
    last = np.where(long, cut, data.offsets[1:])
    times = np.append(data.times, 0.0)
    starts = np.where(forgotten > 0, times[first - 1], data.starts)
    stops = np.where(long, times[last - 1], data.stops)
    if bool((stops <= starts).any()):
        return data
    row = np.arange(len(data))
    return _pieces(data, row, first, last, starts, stops, None, data.ids)


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
    row, nth, first = _cuts(data, events)
    ends = data.offsets[1:]
    if history:
        first = _past_ties(data, first, ends[row])
        begins_inside = first < ends[row]
        new_row = row[1:] != row[:-1]
        later = first[1:] > first[:-1]
        kept = (nth == 0) | begins_inside
        kept &= np.append(new_row | later, True)
        row = row[kept]
        nth = nth[kept]
        first = first[kept]
    is_end = np.append(row[1:] != row[:-1], True)
    next_first = np.append(first[1:], 0)
    last = np.where(is_end, ends[row], next_first)
    times = np.append(data.times, 0.0)  # an index past the end is never used, but has to exist
    starts = np.where(nth > 0, times[first - 1], data.starts[row])
    stops = np.where(is_end, data.stops[row], times[last - 1])
    if bool((stops <= starts).any()):
        return data
    ids = _piece_ids(data, row, nth, events)
    if not history:
        return _pieces(data, row, first, last, starts, stops, None, ids)
    # The event at the former start belongs to the piece before, and is not scored again.
    scored_from = np.where(nth > 0, np.nextafter(starts, np.inf), starts)
    if data.context is not None and data.context.scored_from is not None:
        scored_from = np.maximum(scored_from, data.context.scored_from[row])
    earliest = data.offsets[row]
    begin = np.maximum(first - history, earliest)
    starts = np.where(begin > earliest, times[begin - 1], data.starts[row])
    found = _pieces(data, row, begin, last, starts, stops, scored_from, ids)
    some_scored = scored_from < stops
    return found.select(np.flatnonzero(some_scored))


def _count(data: Dataset, events: int) -> Integers:
    """How many pieces of at most ``events`` events each sequence gives; at least one."""
    return np.maximum(1, -(-data.lengths // events))


def _cuts(data: Dataset, events: int) -> tuple[Integers, Integers, Integers]:
    """For every piece: the number of its sequence, its number there, and its first event."""
    pieces = _count(data, events)
    row = np.repeat(np.arange(len(data)), pieces)
    before = np.cumsum(pieces) - pieces
    nth = np.arange(len(row)) - before[row]
    first = data.offsets[row] + nth * events
    return row, nth, first


def _piece_ids(data: Dataset, row: Integers, nth: Integers, events: int) -> tuple[str, ...]:
    """Names of pieces: the id of the sequence, with a number where it has several."""
    pieces = _count(data, events)
    ids = []
    for i, n in zip(row, nth, strict=True):
        id = data.ids[i]
        if pieces[i] > 1:
            id = f"{id}/{n}"
        ids.append(id)
    return tuple(ids)


def _past_ties(data: Dataset, first: Integers, ends: Integers) -> Integers:
    """The first events at or after ``first`` whose time differs from that of the event before, or
    ``ends``.
    """
    apart = np.ones(data.events + 1, dtype=bool)
    apart[1:-1] = np.diff(data.times) != 0
    apart[data.offsets] = True
    heads = np.flatnonzero(apart)
    following = heads[np.searchsorted(heads, first)]
    return np.minimum(following, ends)


def _pieces(
    data: Dataset,
    row: Integers,
    first: Integers,
    last: Integers,
    starts: Floats,
    stops: Floats,
    scored_from: Floats | None,
    ids: tuple[str, ...],
) -> Dataset:
    """Events ``first`` to ``last`` of the sequences ``row``, in windows of their own."""
    flat, offsets = flat_places(first, last - first)
    context = data.context
    if context is not None:
        context = context.select(row)
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
        places=known_rows(data.places, flat),
        features=known_rows(data.features, flat),
        context=context,
    )
