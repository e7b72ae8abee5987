"""Sequences padded into tensors, and which of them go together.

Padding never multiplies: ``valid`` marks the real events, and a padded slot holds numbers that are
harmless to compute with. torch is imported when the first batch is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import torch

    from fourpoint.events import Dataset
    from fourpoint.events.context import BatchContext, BatchSteps


def offsets_of(lengths: ArrayLike) -> NDArray[np.int64]:
    """Where pieces of these lengths begin when they are laid end to end, and where the last ends.

    >>> offsets_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


@overload
def known_at(times: NDArray[np.float64], at: float) -> NDArray[np.bool_]: ...
@overload
def known_at(times: torch.Tensor, at: float | torch.Tensor) -> torch.Tensor: ...
def known_at(
    times: NDArray[np.float64] | torch.Tensor, at: float | torch.Tensor
) -> NDArray[np.bool_] | torch.Tensor:
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

    times: torch.Tensor  # (B, N) float64, the user's unit
    marks: torch.Tensor  # (B, N) int64
    valid: torch.Tensor  # (B, N) bool
    start: torch.Tensor  # (B,) float64
    stop: torch.Tensor  # (B,) float64
    places: torch.Tensor | None = None  # (B, N, k) float64, where the mark space has a box
    features: torch.Tensor | None = None  # (B, N, F) float64, numbers known of every event
    context: BatchContext | None = None  # what else is known of the sequences

    def __post_init__(self) -> None:
        import torch

        for name, extra in (("places", self.places), ("features", self.features)):
            if extra is not None:
                object.__setattr__(self, name, torch.where(self.valid[..., None], extra, 0.0))
        times = torch.where(self.valid, self.times, self.stop[:, None])
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "marks", torch.where(self.valid, self.marks, 0))

    @property
    def lengths(self) -> torch.Tensor:
        """Events per sequence, (B,)."""
        return self.valid.sum(1)

    @property
    def scored(self) -> torch.Tensor:
        """Which events are scored, (B, N): the real ones that are not before ``scored_from``."""
        context = self.context
        if context is None or context.scored_from is None:
            return self.valid
        return self.valid & (self.times >= context.scored_from[:, None])

    @property
    def scored_exposure(self) -> BatchSteps | None:
        """The weight of time in the likelihood: the exposure, and 0 before ``scored_from``; None
        where all time counts once.
        """
        return None if self.context is None else self.context.scored_exposure()

    @property
    def edges(self) -> torch.Tensor:
        """start, t_1, ..., t_N, stop: the N + 1 gaps lie between neighbours, (B, N + 2); padded
        gaps have length 0.
        """
        import torch

        return torch.cat([self.start[:, None], self.times, self.stop[:, None]], 1)

    def columns(self, first: int, stop: int) -> Batch:
        """Events ``first:stop`` of every sequence, watched from the event before the first up to
        the last of them.

        So neighbouring blocks of columns share out the window; the last block goes on to the
        window's end.
        """
        last = min(stop, self.times.shape[1])
        start = self.times[:, first - 1] if first else self.start
        end = self.times[:, last - 1] if stop < self.times.shape[1] else self.stop
        places = None if self.places is None else self.places[:, first:last]
        features = None if self.features is None else self.features[:, first:last]
        return replace(
            self,
            times=self.times[:, first:last],
            marks=self.marks[:, first:last],
            valid=self.valid[:, first:last],
            start=start,
            stop=end,
            places=places,
            features=features,
        )

    def until(self, at: torch.Tensor) -> Batch:
        """The events that are known at the times ``at`` (B,), observed until then."""
        return replace(self, valid=self.valid & known_at(self.times, at[:, None]), stop=at)

    def to(self, device: str | torch.device) -> Batch:
        """The same batch on another device."""
        if self.times.device == device:
            return self
        held = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: value.to(device) for name, value in held.items()})


def pad(data: Dataset, rows: NDArray[np.int64], columns: int = 0) -> Batch:
    """The sequences of ``data`` at ``rows``, padded to one length, which is at least
    ``columns``.
    """
    import torch

    lengths = data.offsets[rows + 1] - data.offsets[rows]
    column = np.arange(int(lengths.max(initial=columns)))
    valid = column < lengths[:, None]
    flat = np.where(valid, data.offsets[rows][:, None] + column, 0)
    times = data.times[flat] if data.events else np.zeros(flat.shape)
    marks = data.mark_ids[flat] if data.events else np.zeros(flat.shape, dtype=np.int64)

    def per_event(values: NDArray[np.float64] | None) -> torch.Tensor | None:
        if values is None:
            return None
        if not data.events:
            return torch.zeros(*flat.shape, values.shape[1], dtype=torch.float64)
        return torch.from_numpy(values[flat])

    start, stop = (torch.from_numpy(a[rows]) for a in (data.starts, data.stops))
    return Batch(
        torch.from_numpy(times),
        torch.from_numpy(marks),
        torch.from_numpy(valid),
        start,
        stop,
        per_event(data.places),
        per_event(data.features),
        None if data.context is None else data.context.batch(rows),
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
    key = lengths.astype(np.float64)
    if seed is not None:
        key += rng.random(len(lengths)) * (1 + 0.1 * lengths)
    if mixed and seed is not None:
        order = rng.permutation(len(lengths))
    else:
        order = np.argsort(key, kind="stable")
    batches = []
    first = 0
    while first < len(order):
        stop = min(first + size, len(order))
        while stop - first > 1 and (stop - first) * (1 + lengths[order[first:stop]].max()) > padded:
            stop = first + max(1, (stop - first) // 2)
        batches.append(order[first:stop])
        first = stop
    return [batches[i] for i in rng.permutation(len(batches))] if seed is not None else batches
