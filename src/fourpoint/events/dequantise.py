"""Timestamps that were rounded to a resolution, as times in continuous time.

A density is unbounded on times that are multiples of a resolution: a rate can overfit the timestamp
resolution by concentrating there. So events are dequantised: an event at t with resolution r is
placed anywhere in [t - r/2, t + r/2), within its window. A date without a time of day is not a
rounded time: the event happened on that day, and is placed in [t, t + r), so that weekdays are not
blurred (:func:`stamped_ahead`). There are two laws for that place. The
uniform one is here, for training, which draws anew in every step; the conditional law of a model is
`inference.dequantising`, for goodness of fit. Order is kept in both. No event is moved across a
step of the exposure or out of a history period.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fourpoint.events.dates import SECONDS

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    from fourpoint.events.batching import Batch
    from fourpoint.events.sequences import Dataset


DAY = 86400.0  # seconds


def dequantised(data: Dataset, resolution: float, seed: int) -> Dataset:
    """The same events at uniformly drawn places within the resolution of their timestamps.

    >>> from fourpoint.events import Dataset, Sequence
    >>> whole = Dataset.from_sequences([Sequence([1.0, 2.0, 2.0], start=0.0, stop=3.0)])
    >>> bool((abs(dequantised(whole, 1.0, seed=0).times - whole.times) <= 0.5).all())
    True
    """
    low, high = ticks(data, resolution)
    random = np.random.default_rng(seed).random(data.events)
    moved = low + (high - low) * random
    row = np.repeat(np.arange(len(data)), data.lengths)
    order = np.lexsort((moved, row))
    return replace(data, times=moved[order])


def stamped_ahead(data: Dataset, resolution: float) -> bool:
    """Whether timestamps of this resolution are dates of whole days, at whose beginning they
    stand. Files of dates are read as noon, which is the middle of the day already.

    >>> from fourpoint.events import Context, Dataset, Sequence
    >>> days = Sequence([1.0, 2.0], start=0.0, stop=3.0, context=Context(origin=np.zeros(1)))
    >>> stamped_ahead(Dataset.from_sequences([days], unit="days"), 1.0)
    True
    """
    if data.log is not None and data.log.noon:
        return False
    if data.context is None or data.context.origin is None:
        return False
    seconds = resolution * SECONDS.get(data.unit, 0.0)
    return seconds >= DAY * (1 - 1e-9)


def ticks(data: Dataset, resolution: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """From where to where each event may be moved: within the resolution, its window, and the time
    in which the exposure is what it is at the event.
    """
    row = np.repeat(np.arange(len(data)), data.lengths)
    before = 0.0 if stamped_ahead(data, resolution) else resolution / 2
    earliest = data.times - before
    latest = earliest + resolution
    low = np.maximum(earliest, data.starts[row])
    high = np.minimum(latest, data.stops[row])
    weight = data.scored_exposure
    if weight is None:
        return low, high
    for i in range(len(data)):
        own = data.row(i)
        inner = weight.times[weight.row(i)][1:]
        edges = np.concatenate([[-np.inf], inner, [np.inf]])
        step = np.searchsorted(edges, data.times[own], side="right")
        until = np.nextafter(edges[step], -np.inf)
        low[own] = np.maximum(low[own], edges[step - 1])
        high[own] = np.minimum(high[own], until)
    return low, high


def dequantised_batch(
    batch: Batch,
    resolution: float,
    random: torch.Generator,
    *,
    ahead: bool = False,
) -> Batch:
    """The same for a batch, whose timestamps are dates of whole days if ``ahead``; padding stays as
    it is.
    """
    from fourpoint.events.draws import uniform_rows

    before = 0.0 if ahead else resolution / 2
    earliest = batch.times - before
    latest = earliest + resolution
    low = earliest.clamp(min=batch.start[:, None])
    high = latest.clamp(max=batch.stop[:, None])
    weight = batch.scored_exposure
    if weight is not None:
        begin, end = weight.around(batch.times)
        low = low.maximum(begin)
        high = high.minimum(end)
    share = uniform_rows(batch.times, random)
    moved = low + (high - low) * share
    times = moved.where(batch.valid, batch.times)
    return replace(batch, times=times.sort(1).values)


def dequantised_gaps(
    batch: Batch,
    resolution: float,
    random: torch.Generator,
) -> Float[Tensor, "B G"]:
    """The ends of all gaps, those with an event moved within the resolution but not before the
    event before; the past, which models see, stays as it is.
    """
    import torch

    from fourpoint.events.draws import uniform_rows

    left = batch.edges[:, :-1]
    right = batch.edges[:, 1:]
    shift = resolution * (uniform_rows(right, random) - 0.5)
    moved = left + (right - left + shift).abs()
    number = torch.arange(right.shape[1], device=right.device)
    is_event = number < batch.lengths[:, None]
    return moved.where(is_event, right)
