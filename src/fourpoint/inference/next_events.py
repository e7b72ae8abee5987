r"""The law of the next event at chosen events of a data set, and regions of high density in it.

The law is seen from the event before, as if nothing else happened (`ops.compensator`). The region
of the highest density that contains an observation y = (time, mark) has the probability

    s(y) = P( f(Y) > f(y) ),   f(t, m) = lambda_m(t) exp(-Lambda(t)),

under the model, which is the score of that observation; the smallest region of the probability p is
{y: s(y) <= p}. Probabilities are sums over the nodes of the law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch, Dataset
from fourpoint.inference.evaluation import device_of
from fourpoint.models.base import PointProcess
from fourpoint.ops.compensator import Law, Rates, next_event_law

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TOLERANCE = 1e-4  # of the integral on each panel


@dataclass(frozen=True)
class ChosenEvents:
    """Events of a batch, one row each (F rows, some of them padding), and the laws before them."""

    batch: Batch
    index: Int[Tensor, "B K"]
    real: Bool[Tensor, " F"]
    start: Float[Tensor, " F"]
    truth: Float[Tensor, " F"]
    marks: Int[Tensor, " F"]
    stop: Float[Tensor, " F"]
    rates: Rates
    law: Law


def laws_before(
    model: PointProcess, data: Dataset, rows: Integers, own: list[Integers]
) -> ChosenEvents:
    """The laws of events ``own[k]`` (places in their sequence) of the sequences ``rows[k]``."""
    batch = data.batch(rows).to(device_of(model))
    history = model.encode(batch)
    width = max(len(places) for places in own)
    padded = np.stack([np.resize(places, width) for places in own])
    real = np.stack([np.arange(width) < len(places) for places in own])
    index = torch.from_numpy(padded).to(batch.times.device)
    start = batch.edges.gather(1, index).flatten()
    truth = batch.times.gather(1, index).flatten()
    exposure = None if batch.context is None else batch.context.exposure

    def rates(times: Float[Tensor, "F Q"]) -> Float[Tensor, "F Q M"]:
        at = times.unflatten(0, index.shape)
        found = model.log_intensity(history, at, index).exp()
        if exposure is not None:
            found = found * exposure.at(at).to(found)
        return found.flatten(0, 1)

    now = rates(start[:, None]).sum((1, 2)).double()
    shortest = model.shortest_time(history)
    if shortest is not None:
        shortest = shortest.repeat_interleave(width)
    law = next_event_law(
        rates,
        start,
        0.25 / _positive(now),
        longest=model.longest_panel,
        shortest=shortest,
        through=truth,
        tolerance=TOLERANCE,
    )
    return ChosenEvents(
        batch=batch,
        index=index,
        real=torch.from_numpy(real).flatten(),
        start=start,
        truth=truth,
        marks=batch.marks.gather(1, index).flatten(),
        stop=batch.stop.repeat_interleave(width),
        rates=rates,
        law=law,
    )


def by_sequence(data: Dataset, chosen: Integers) -> tuple[Integers, list[Integers]]:
    """The sequences of the events ``chosen`` (flat, in order), and the places of these in each."""
    owner = np.searchsorted(data.offsets, chosen, side="right") - 1
    places = chosen - data.offsets[owner]
    rows, first = np.unique(owner, return_index=True)
    return rows, np.split(places, first[1:])


@dataclass(frozen=True)
class Placed:
    """Where each of F events fell in its law, given that it is seen before the end of its window:
    ``below`` is the probability of an earlier one, ``shortest`` and ``pair`` are s of its time, and
    of time and mark; padding is left out.
    """

    below: Floats
    shortest: Floats
    pair: Floats

    def scores(self, kind: str) -> Floats:
        """The score for a kind of region: "before" is ``below``, "central" abs(2 below - 1), the
        probability of the smallest central interval that contains the time.
        """
        return {
            "before": self.below,
            "central": np.abs(2 * self.below - 1),
            "shortest": self.shortest,
            "pair": self.pair,
        }[kind]


def place(events: ChosenEvents) -> Placed:
    """Where each event fell in its law."""
    law = events.law
    ends = torch.stack([events.truth, events.stop], 1)
    before, seen = (1 - torch.exp(-law.integral_at(ends))).unbind(1)
    below = (before / _positive(seen)).clamp(0.0, 1.0)
    survival = 1 - before
    rates = events.rates(events.truth[:, None])[:, 0].double()
    of_mark = rates.gather(1, events.marks[:, None])[:, 0]
    density = rates.sum(1) * survival
    shortest = _mass_above(law.density, _seen_weights(events), density)
    joint, weights = _pairs(events)
    pair = _mass_above(joint, weights, of_mark * survival)
    return Placed(
        below=_real(events, below),
        shortest=_real(events, shortest),
        pair=_real(events, pair),
    )


@dataclass(frozen=True)
class Sizes:
    """Lengths of regions in time: of central intervals and of shortest regions, and the sum over
    marks of those of time and mark.
    """

    central: Floats
    shortest: Floats
    pair: Floats

    def of(self, kind: str) -> Floats:
        """The sizes of a kind of region; NaN for "before", which has no begin."""
        if kind == "before":
            return np.full(len(self.central), np.nan)
        return {"central": self.central, "shortest": self.shortest, "pair": self.pair}[kind]


def region_sizes(events: ChosenEvents, central: float, shortest: float, pair: float) -> Sizes:
    """The sizes of the regions of these probabilities, of an event that is seen before the end of
    its window.
    """
    law = events.law
    seen = _seen_probability(events)
    low = law.quantiles_at(seen * (1 - central) / 2)
    high = law.quantiles_at(seen * (1 + central) / 2)
    width = (high - low).nan_to_num(nan=0.0, posinf=torch.inf)
    width = width.minimum(events.stop - events.start)
    own = _size_of(law.density, _seen_weights(events), shortest)
    joint, weights = _pairs(events)
    both = _size_of(joint, weights, pair)
    return Sizes(
        central=_real(events, width),
        shortest=_real(events, own),
        pair=_real(events, both),
    )


def _real(events: ChosenEvents, values: Float[Tensor, " F"]) -> Floats:
    kept = values.cpu()[events.real]
    return kept.double().numpy()


def _positive(values: Float[Tensor, " F"]) -> Float[Tensor, " F"]:
    """Values that can be divided by."""
    return values.clamp(min=torch.finfo(values.dtype).tiny)


def _seen_probability(events: ChosenEvents) -> Float[Tensor, " F"]:
    """That the next event comes before the end of the window."""
    integral = events.law.integral_at(events.stop[:, None])
    return 1 - torch.exp(-integral)[:, 0]


def _seen_weights(events: ChosenEvents) -> Float[Tensor, "F N"]:
    law = events.law
    seen = law.times < events.stop[:, None]
    return torch.where(seen, law.weights, 0.0)


def _pairs(events: ChosenEvents) -> tuple[Float[Tensor, "F NM"], Float[Tensor, "F NM"]]:
    """Density and weights of time and mark."""
    law = events.law
    density = law.intensities * law.survival[..., None]
    weights = _seen_weights(events)[..., None]
    weights = weights.expand_as(density)
    return density.flatten(1), weights.flatten(1)


def _mass_above(
    density: Float[Tensor, "F N"], weights: Float[Tensor, "F N"], own: Float[Tensor, " F"]
) -> Float[Tensor, " F"]:
    """The share of the probability that lies where the density is above ``own``."""
    mass = density * weights
    higher = density > own[:, None]
    above = torch.where(higher, mass, 0.0).sum(1)
    return above / _positive(mass.sum(1))


def _size_of(
    density: Float[Tensor, "F N"], weights: Float[Tensor, "F N"], level: float
) -> Float[Tensor, " F"]:
    """The length of the region of the highest density with the share ``level`` of the
    probability.
    """
    value, order = torch.sort(density, dim=1, descending=True)
    sizes = weights.gather(1, order)
    mass = value * sizes
    up_to = torch.cumsum(mass, 1)
    wanted = level * up_to[:, -1:]
    inside = up_to - mass <= wanted
    return torch.where(inside, sizes, 0.0).sum(1)


def density_threshold(
    density: Float[Tensor, " N"], weights: Float[Tensor, " N"], level: float
) -> float:
    """The density from which on a point is in the region of the probability ``level``; 0 where
    that is all.

    >>> even = torch.full((4,), 0.25)
    >>> density_threshold(torch.tensor([4.0, 3.0, 2.0, 1.0]) * 0.4, even, 0.5)
    1.2000000476837158
    """
    value, order = torch.sort(density, descending=True)
    mass = value * weights[order]
    up_to = torch.cumsum(mass, 0)
    wanted = level * min(1.0, float(up_to[-1]))
    beyond = up_to > wanted
    if level >= 1 or not bool(beyond.any()):
        return 0.0
    first = int(beyond.double().argmax())
    return float(value[first])


def intervals_above(times: Floats, density: Floats, threshold: float) -> list[tuple[float, float]]:
    """Where a density on a grid is at least ``threshold``, with ends interpolated between points.

    >>> grid = np.array([0.0, 1.0, 2.0, 3.0])
    >>> intervals_above(grid, np.array([2.0, 0.0, 2.0, 2.0]), 1.0)
    [(0.0, 0.5), (1.5, 3.0)]
    """
    inside = np.pad(density >= threshold, 1)
    changes = np.flatnonzero(inside[1:] != inside[:-1])
    ends = [_crossing(times, density, threshold, int(place) - 1) for place in changes]
    return list(zip(ends[::2], ends[1::2], strict=True))


def _crossing(times: Floats, density: Floats, threshold: float, before: int) -> float:
    """Where the density passes the threshold after the point ``before``, or the end of the grid."""
    if before < 0:
        return float(times[0])
    after = before + 1
    if after >= len(times):
        return float(times[-1])
    rise = density[after] - density[before]
    share = (threshold - density[before]) / rise
    gap = times[after] - times[before]
    return float(times[before] + share * gap)
