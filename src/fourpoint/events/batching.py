"""Sequences padded into tensors, and which of them go together.

Padding never multiplies: ``valid`` marks the real events, and a padded slot holds numbers that are
harmless to compute with. torch is imported when the first batch is made.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fourpoint.events import Dataset
    from fourpoint.events.context import BatchContext, BatchSteps


def offsets_of(lengths: ArrayLike) -> NDArray[np.int64]:
    """Where pieces of these lengths begin when they are laid end to end, and where the last ends.

    >>> offsets_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def flat_places(
    first: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of pieces of flat arrays, which begin at ``first`` and have these lengths, and
    the offsets of the pieces laid end to end.

    >>> places, offsets = flat_places(np.array([5, 0]), np.array([2, 3]))
    >>> places.tolist(), offsets.tolist()
    ([5, 6, 0, 1, 2], [0, 2, 5])
    """
    offsets = offsets_of(lengths)
    moved = first - offsets[:-1]
    places = np.arange(offsets[-1]) + np.repeat(moved, lengths)
    return places, offsets


def known_rows(
    values: NDArray[np.float64] | None, rows: slice | NDArray[np.int64] | NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """Rows of an array; None where it is not known.

    >>> known_rows(np.array([[1.0], [2.0]]), slice(1)).tolist()
    [[1.0]]
    """
    if values is None:
        return None
    return values[rows]


def shares(order: NDArray[np.int64], fractions: Ordered[float]) -> list[NDArray[np.int64]]:
    """Rows in this order divided into parts: the first takes what the others, which have their
    fraction and at least one row each, leave.

    >>> [part.tolist() for part in shares(np.arange(10), (0.8, 0.1, 0.1))]
    [[0, 1, 2, 3, 4, 5, 6, 7], [8], [9]]
    """
    count = len(order)
    later = np.array(fractions[1:])
    sizes = np.round(later * count).astype(int)
    sizes = np.maximum(1, sizes)
    after = np.cumsum(sizes[::-1])[::-1]
    return np.split(order, count - after)


@overload
def known_at(times: NDArray[np.float64], at: float) -> NDArray[np.bool_]: ...
@overload
def known_at(times: Tensor, at: float | Tensor) -> Tensor: ...
def known_at(times: NDArray[np.float64] | Tensor, at: float | Tensor) -> NDArray[np.bool_] | Tensor:
    """Which events are known at time ``at``: those up to and including it; what is still to come
    lies strictly after.

    The one rule for everything that looks ahead of or back from a moment: forecasts, explanations,
    maps, predictions and streams. Arrays and tensors alike; shapes broadcast.

    >>> known_at(np.array([1.0, 2.0, 3.0]), 2.0).tolist()
    [True, True, False]
    """
    return times <= at


@dataclass(frozen=True, eq=False)
class Batch:
    """B sequences padded to N events. ``valid`` is True for real events; padded slots hold
    ``stop``, mark 0 and place 0.

    Construction overwrites whatever the padding held, so that a NaN there cannot reach a sum.

    >>> import fourpoint as fp
    >>> batch = fp.Sequence([0.5, 1.5], start=0.0, stop=2.0).batch()
    >>> batch.times.tolist(), batch.valid.tolist()
    ([[0.5, 1.5]], [[True, True]])
    """

    times: Tensor  # (B, N) float64, the user's unit
    marks: Tensor  # (B, N) int64
    valid: Tensor  # (B, N) bool
    start: Tensor  # (B,) float64
    stop: Tensor  # (B,) float64
    places: Tensor | None = None  # (B, N, k) float64, where the mark space has a box
    features: Tensor | None = None  # (B, N, F) float64, numbers known of every event
    context: BatchContext | None = None  # what else is known of the sequences

    def __post_init__(self) -> None:
        import torch

        extras = {"places": self.places, "features": self.features}
        for name, extra in extras.items():
            if extra is not None:
                values = torch.where(self.valid[..., None], extra, 0.0)
                object.__setattr__(self, name, values)
        times = torch.where(self.valid, self.times, self.stop[:, None])
        marks = torch.where(self.valid, self.marks, 0)
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "marks", marks)

    @property
    def lengths(self) -> Tensor:
        """Events per sequence, (B,)."""
        return self.valid.sum(1)

    @property
    def scored(self) -> Tensor:
        """Which events are scored, (B, N): the real ones that are not before ``scored_from``."""
        if self.context is None or self.context.scored_from is None:
            return self.valid
        begin = self.context.scored_from[:, None]
        return self.valid & (self.times >= begin)

    @property
    def scored_exposure(self) -> BatchSteps | None:
        """The weight of time in the likelihood: the exposure, and 0 before ``scored_from``; None
        where all time counts once.
        """
        if self.context is None:
            return None
        return self.context.scored_exposure()

    @property
    def edges(self) -> Tensor:
        """start, t_1, ..., t_N, stop: the N + 1 gaps lie between neighbours, (B, N + 2); padded
        gaps have length 0.
        """
        import torch

        start = self.start[:, None]
        stop = self.stop[:, None]
        return torch.cat([start, self.times, stop], 1)

    def columns(self, first: int, stop: int) -> Batch:
        """Events ``first:stop`` of every sequence, watched from the event before the first up to
        the last of them.

        So neighbouring blocks of columns share out the window; the last block goes on to the
        window's end.
        """
        width = self.times.shape[1]
        last = min(stop, width)
        start = self.start
        if first:
            start = self.times[:, first - 1]
        end = self.stop
        if stop < width:
            end = self.times[:, last - 1]
        own = slice(first, last)
        places = self.places
        if places is not None:
            places = places[:, own]
        features = self.features
        if features is not None:
            features = features[:, own]
        return replace(
            self,
            times=self.times[:, own],
            marks=self.marks[:, own],
            valid=self.valid[:, own],
            start=start,
            stop=end,
            places=places,
            features=features,
        )

    def until(self, at: Tensor) -> Batch:
        """The events that are known at the times ``at`` (B,), observed until then."""
        known = known_at(self.times, at[:, None])
        return replace(self, valid=self.valid & known, stop=at)

    def to(self, device: str | torch.device) -> Batch:
        """The same batch on another device."""
        if self.times.device == device:
            return self
        moved = {}
        for name, value in vars(self).items():
            if value is not None:
                moved[name] = value.to(device)
        return replace(self, **moved)


def pad(data: Dataset, rows: NDArray[np.int64], columns: int = 0) -> Batch:
    """The sequences of ``data`` at ``rows``, padded to one length, which is at least
    ``columns``.
    """
    import torch

    first = data.offsets[rows][:, None]
    length = data.offsets[rows + 1][:, None] - first
    column = np.arange(int(length.max(initial=columns)))
    valid = column < length
    flat = np.where(valid, first + column, 0)
    times = np.zeros(flat.shape)
    marks = np.zeros(flat.shape, dtype=np.int64)
    if data.events:
        times = data.times[flat]
        marks = data.mark_ids[flat]

    def per_event(values: NDArray[np.float64] | None) -> Tensor | None:
        if values is None:
            return None
        if not data.events:
            return torch.zeros(*flat.shape, values.shape[1], dtype=torch.float64)
        return torch.from_numpy(values[flat])

    context = None
    if data.context is not None:
        context = data.context.batch(rows)
    return Batch(
        times=torch.from_numpy(times),
        marks=torch.from_numpy(marks),
        valid=torch.from_numpy(valid),
        start=torch.from_numpy(data.starts[rows]),
        stop=torch.from_numpy(data.stops[rows]),
        places=per_event(data.places),
        features=per_event(data.features),
        context=context,
    )


def group_by_length(
    lengths: NDArray[np.int64], size: int, padded: int, seed: int | None, mixed: bool
) -> list[NDArray[np.int64]]:
    """Rows of each batch; see :meth:`fourpoint.events.Dataset.batches`.

    >>> [
    ...     rows.tolist()
    ...     for rows in group_by_length(
    ...         np.array([3, 1, 2]), size=2, padded=100, seed=None, mixed=False
    ...     )
    ... ]
    [[1, 2], [0]]
    """
    rng = np.random.default_rng(seed)
    count = len(lengths)
    key = lengths.astype(np.float64)
    if seed is not None:
        key += rng.random(count) * (1 + 0.1 * lengths)
    if mixed and seed is not None:
        order = rng.permutation(count)
    else:
        order = np.argsort(key, kind="stable")
    batches = []
    first = 0
    while first < count:
        rows = order[first : first + size]
        while len(rows) > 1 and _slots(lengths[rows]) > padded:
            half = max(1, len(rows) // 2)
            rows = rows[:half]
        batches.append(rows)
        first += len(rows)
    if seed is None:
        return batches
    return [batches[i] for i in rng.permutation(len(batches))]


def _slots(lengths: NDArray[np.int64]) -> int:
    """The gaps of sequences of these lengths when they are padded to the longest."""
    return len(lengths) * (1 + int(lengths.max()))
