"""Events at one time: kept in file order, refused, spread or dropped, as the user says and never
otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fourpoint.errors import EventDataError
from fourpoint.events.batching import known_rows, offsets_of
from fourpoint.events.validation import inner, place_of

if TYPE_CHECKING:
    from fourpoint.events import Dataset

Ties = Literal["keep", "error", "jitter", "drop"]


def apply_ties(data: Dataset, policy: Ties, seed: int) -> Dataset:
    """The data under a policy; see :meth:`fourpoint.events.Dataset.with_ties`."""
    if policy not in get_args(Ties):
        raise EventDataError(
            "a tie policy keep, error, jitter or drop",
            f"{policy!r}",
            "Use one of the four.",
        )
    tie = np.zeros(data.events, dtype=bool)
    tie[1:] = (np.diff(data.times) == 0) & inner(data)
    if policy == "keep" or not tie.any():
        return data
    if policy == "error":
        i = int(np.flatnonzero(tie)[0])
        received = f"a repeated time {data.times[i]} at {place_of(data, i)}"
        raise EventDataError("distinct times", received, "Use ties='keep', 'jitter' or 'drop'.")
    if policy == "jitter":
        return replace(data, times=_spread(data, tie, seed))
    kept = ~tie
    count = offsets_of(kept)
    return replace(
        data,
        times=data.times[kept],
        mark_ids=data.mark_ids[kept],
        offsets=count[data.offsets],
        places=known_rows(data.places, kept),
        features=known_rows(data.features, kept),
    )


def _spread(data: Dataset, tie: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    """Times with each run of equals spread, in order, over the time up to the next distinct
    event.
    """
    row = np.repeat(np.arange(len(data)), data.lengths)
    heads = np.flatnonzero(~tie)
    times = data.times[heads]
    own = row[heads]
    size = np.diff(np.append(heads, data.events))
    following = np.append(heads[1:], -1)
    same = (following >= 0) & (row[following] == own)
    limit = np.where(same, data.times[following], data.stops[own])
    # Equals at the end of an inferred window have nothing ahead: they take the second half of the
    # time behind them.
    follows = np.append(-1, own[:-1]) == own
    before = np.where(follows, data.times[heads - 1], data.starts[own])
    middle = (before + times) / 2
    stuck = (limit <= times) & (size > 1)
    next_stuck = np.append(stuck[1:], False)
    next_middle = np.append(middle[1:], 0.0)
    limit = np.where(next_stuck & same, next_middle, limit)
    end = np.where(stuck, middle, limit)
    room = np.repeat(end - times, size)
    # The position of each event in its run, from the end of runs that take time behind them.
    events = np.repeat(size, size)
    position = np.arange(data.events) - np.repeat(heads, size)
    backwards = np.repeat(stuck, size)
    position = np.where(backwards, events - 1 - position, position)
    random = np.random.default_rng(seed).random(data.events)
    share = (position + random * (position > 0)) / events
    return data.times + room * np.minimum(share, 1 - 1e-9)
