"""What is known of sequences besides their events: when time 0 was, covariates, exposure, and from
when on a sequence is scored.

A :class:`Context` holds it for the S sequences of a data set, a :class:`BatchContext` as tensors
for the B sequences of a batch. Covariates and exposure are step functions: a value holds from its
time on until the next one. The first value also holds before its time and the last one after it.

    origin        seconds from 1970-01-01 00:00 UTC to time 0 of each sequence
    scored_from   events and time before it condition the rates but are not scored
    covariates    K named columns
    exposure      a known factor e(t) of the rate; 0 where nothing was recorded
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.errors import EventDataError

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class Steps:
    """Step functions of time with K columns, one for each of S sequences, stored flat: sequence i
    owns the steps ``offsets[i]:offsets[i + 1]``, at least one.

    >>> steps = Steps.constant(("age",), [[40.0], [25.0]])
    >>> steps.at(1, np.array([0.0, 9.0])).tolist()
    [[25.0], [25.0]]
    """

    names: tuple[str, ...]
    times: Floats  # (J,) when each value begins to hold
    values: Floats  # (J, K)
    offsets: NDArray[np.int64]  # (S + 1,)

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.times), len(self.names)):
            raise EventDataError(
                f"{len(self.times)} rows of {len(self.names)} values",
                f"values of shape {self.values.shape}",
                "Give every time a value.",
            )
        if (np.diff(self.offsets) < 1).any():
            raise EventDataError(
                "at least one value for every sequence",
                f"none for sequence number {int(np.argmax(np.diff(self.offsets) < 1))}",
                "Add a row for it.",
            )
        back = np.flatnonzero(np.diff(self.times) <= 0)
        inside = back[~np.isin(back + 1, self.offsets)]
        if len(inside):
            i = int(inside[0])
            raise EventDataError(
                "rising times of values",
                f"{self.times[i + 1]:g} after {self.times[i]:g}",
                "Sort the rows, and keep one value for each time.",
            )

    @staticmethod
    def constant(names: Ordered[str], values: ArrayLike) -> Steps:
        """Columns that do not change: ``values`` (S, K)."""
        table = np.asarray(values, dtype=np.float64)
        count = len(table)
        return Steps(tuple(names), np.zeros(count), table, np.arange(count + 1))

    def row(self, index: int) -> slice:
        """The steps of one sequence."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def at(self, index: int, times: Floats) -> Floats:
        """The values of sequence ``index`` at ``times`` (T,): (T, K)."""
        own = self.row(index)
        found = np.searchsorted(self.times[own], times, side="right") - 1
        return self.values[own][np.maximum(found, 0)]

    def at_each(self, rows: NDArray[np.int64], times: Floats) -> Floats:
        """The values of sequence ``rows[i]`` at ``times[i]``: (T, K).

        >>> steps = Steps.constant(("age",), [[40.0], [25.0]])
        >>> steps.at_each(np.array([1, 0]), np.array([0.0, 9.0])).tolist()
        [[25.0], [40.0]]
        """
        found = np.empty((len(times), len(self.names)))
        order = np.argsort(rows, kind="stable")
        known, begins = np.unique(rows[order], return_index=True)
        for row, part in zip(known.tolist(), np.split(order, begins[1:]), strict=True):
            found[part] = self.at(row, times[part])
        return found

    def select(self, rows: NDArray[np.int64]) -> Steps:
        """The step functions of the sequences at ``rows``."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        moved = self.offsets[rows] - offsets[:-1]
        flat = np.arange(offsets[-1]) + np.repeat(moved, lengths)
        return Steps(self.names, self.times[flat], self.values[flat], offsets)

    @staticmethod
    def join(parts: Ordered[Steps]) -> Steps:
        """The step functions of several data sets, one after the other. They must have the same
        columns.
        """
        if len({part.names for part in parts}) > 1:
            received = " and ".join(str(list(part.names)) for part in parts[:2])
            raise EventDataError("the same columns everywhere", received, "Give all the same.")
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        return Steps(
            parts[0].names,
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([[0], np.cumsum(lengths)]),
        )

    def integrals(self, starts: Floats, stops: Floats) -> Floats:
        """The integral of the first column of each sequence from its start to its stop, (S,).

        >>> Steps.constant(("e",), [[2.0]]).integrals(np.array([1.0]), np.array([4.0])).tolist()
        [6.0]
        """
        owner = np.repeat(np.arange(len(starts)), np.diff(self.offsets))
        left, right = self._spans()
        low = np.clip(left, starts[owner], stops[owner])
        high = np.clip(right, starts[owner], stops[owner])
        total = np.zeros(len(starts))
        np.add.at(total, owner, self.values[:, 0] * (high - low))
        return total

    def _spans(self) -> tuple[Floats, Floats]:
        """From when until when each value holds."""
        left = self.times.copy()
        left[self.offsets[:-1]] = -np.inf
        right = np.append(self.times[1:], np.inf)
        right[self.offsets[1:] - 1] = np.inf
        return left, right

    def zero_before(self, times: Floats) -> Steps:
        """The same, but 0 before the time ``times`` (S,) of each sequence."""
        count = len(times)
        owner = np.repeat(np.arange(count), np.diff(self.offsets))
        left, right = self._spans()
        kept = right > times[owner]
        first = np.concatenate([[True], np.diff(owner[kept]) > 0])
        begins = np.where(first, times[owner[kept]], left[kept])
        lengths = np.bincount(owner[kept], minlength=count)
        places = np.cumsum(lengths) - lengths
        return Steps(
            self.names,
            np.insert(begins, places, np.nextafter(times, -np.inf)),
            np.insert(self.values[kept], places, 0.0, axis=0),
            np.concatenate([[0], np.cumsum(lengths + 1)]),
        )

    def batch(self, rows: NDArray[np.int64]) -> BatchSteps:
        """The step functions of the sequences at ``rows``, padded to one length."""
        import torch

        lengths = np.diff(self.offsets)[rows]
        column = np.arange(int(lengths.max(initial=1)))
        last = self.offsets[rows] + lengths - 1
        flat = np.minimum(self.offsets[rows][:, None] + column, last[:, None])
        times = np.where(column < lengths[:, None], self.times[flat], np.inf)
        return BatchSteps(torch.from_numpy(times), torch.from_numpy(self.values[flat]))


@dataclass(frozen=True, eq=False)
class BatchSteps:
    """Step functions of B sequences as tensors; times of padding are infinite."""

    times: torch.Tensor  # (B, J) float64
    values: torch.Tensor  # (B, J, K) float64

    def at(self, times: torch.Tensor) -> torch.Tensor:
        """The values at ``times`` (B, ...): (B, ..., K).

        >>> import torch
        >>> steps = Steps(("x",), np.array([0.0, 2.0]), np.array([[1.0], [5.0]]), np.array([0, 2]))
        >>> steps.batch(np.array([0])).at(torch.tensor([[1.0, 2.0]]).double()).flatten().tolist()
        [1.0, 5.0]
        """
        import torch

        flat = times.reshape(len(times), -1).contiguous()
        if self.shared:
            found = torch.searchsorted(self.times[0].contiguous(), flat, right=True) - 1
            return self.values[0][found.clamp(min=0)].reshape(*times.shape, self.values.shape[2])
        found = torch.searchsorted(self.times.contiguous(), flat, right=True) - 1
        index = found.clamp(min=0)[..., None].expand(-1, -1, self.values.shape[2])
        return self.values.gather(1, index).reshape(*times.shape, self.values.shape[2])

    @property
    def shared(self) -> bool:
        """Whether all rows are views of one, as in paths that begin with one past."""
        rows = len(self.times)
        return rows == 1 or (rows > 1 and self.times.stride(0) == 0)

    def next_step(self, times: torch.Tensor) -> torch.Tensor:
        """The time of the first step after ``times`` (B,); infinite where there is none."""
        import torch

        endless = torch.full_like(self.times[:, :1], torch.inf)
        edges = torch.cat([self.times[:, 1:], endless], 1).contiguous()
        step = torch.searchsorted(edges, times[:, None].contiguous(), right=True)
        return edges.gather(1, step.clamp(max=edges.shape[1] - 1))[:, 0]

    def around(self, times: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The first and the last time at which the values are those at ``times`` (B, N)."""
        import torch

        endless = torch.full_like(self.times[:, :1], torch.inf)
        edges = torch.cat([-endless, self.times[:, 1:], endless], 1)
        step = torch.searchsorted(edges.contiguous(), times.contiguous(), right=True)
        step = step.clamp(max=edges.shape[1] - 1)
        last = torch.nextafter(edges.gather(1, step), -endless)
        return edges.gather(1, step - 1), last

    def exposed_time(self, start: torch.Tensor, stop: torch.Tensor) -> ExposedTime:
        """The integral of the first column from ``start`` (B,) on, for times up to ``stop``."""
        import torch

        inside = self.times.clamp(start[:, None], stop[:, None])
        times = torch.cat([start[:, None], inside, stop[:, None]], 1)
        values = self.at(times[:, :-1])[..., 0]
        total = (values * times.diff(dim=1)).cumsum(1)
        return ExposedTime(times, values, torch.nn.functional.pad(total, (1, 0)))

    def select(self, rows: torch.Tensor) -> BatchSteps:
        """The step functions at ``rows``; views of one where all rows are."""
        if self.shared:
            count = len(rows)
            return BatchSteps(
                self.times[:1].expand(count, -1), self.values[:1].expand(count, -1, -1)
            )
        return BatchSteps(self.times[rows], self.values[rows])

    def to(self, device: str | torch.device) -> BatchSteps:
        """The same on another device."""
        return BatchSteps(self.times.to(device), self.values.to(device))


def _of_all(name: str, values: list[Part | None]) -> list[Part] | None:
    """One part of several contexts: None if no context has it; an error if only some have it."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) < len(values):
        raise EventDataError(
            f"the {name} of every sequence, or of none",
            "some with and some without",
            "Give it for all of them.",
        )
    return known


@dataclass(frozen=True, eq=False)
class Context:
    """What is known of S sequences besides their events; None for what is not known."""

    origin: Floats | None = None  # (S,) seconds since 1970, UTC
    scored_from: Floats | None = None  # (S,) in the user's unit
    covariates: Steps | None = None
    exposure: Steps | None = None

    def select(self, rows: NDArray[np.int64]) -> Context:
        """The context of the sequences at ``rows``."""
        origin = None if self.origin is None else self.origin[rows]
        scored_from = None if self.scored_from is None else self.scored_from[rows]
        covariates = None if self.covariates is None else self.covariates.select(rows)
        exposure = None if self.exposure is None else self.exposure.select(rows)
        return Context(origin, scored_from, covariates, exposure)

    @staticmethod
    def join(parts: Ordered[Context | None]) -> Context | None:
        """The contexts of several sequences or data sets, one after the other; what one of them
        lacks, all must lack.
        """
        if all(part is None for part in parts):
            return None
        known = [Context() if part is None else part for part in parts]
        origins = _of_all("origin", [part.origin for part in known])
        scored_from = _of_all("scored_from", [part.scored_from for part in known])
        covariates = _of_all("covariates", [part.covariates for part in known])
        exposures = _of_all("exposure", [part.exposure for part in known])
        return Context(
            origin=None if origins is None else np.concatenate(origins),
            scored_from=None if scored_from is None else np.concatenate(scored_from),
            covariates=None if covariates is None else Steps.join(covariates),
            exposure=None if exposures is None else Steps.join(exposures),
        )

    def batch(self, rows: NDArray[np.int64]) -> BatchContext:
        """The context of the sequences at ``rows`` as tensors."""
        import torch

        own = self.select(rows)
        every = np.arange(len(rows))
        return BatchContext(
            None if own.origin is None else torch.from_numpy(own.origin),
            None if own.scored_from is None else torch.from_numpy(own.scored_from),
            None if own.covariates is None else own.covariates.batch(every),
            None if own.exposure is None else own.exposure.batch(every),
        )

    def scored_exposure(self, count: int) -> Steps | None:
        """The exposure of ``count`` sequences where they are scored, 0 in their history periods:
        the weight of time in their likelihood. None where all time counts once.
        """
        if self.scored_from is None:
            return self.exposure
        known = self.exposure
        if known is None:
            known = Steps.constant(("exposure",), np.ones((count, 1)))
        return known.zero_before(self.scored_from)

    def at_each(self, rows: NDArray[np.int64], times: Floats) -> BatchContext:
        """The context of sequence ``rows[i]`` at ``times[i]`` alone: its origin, and covariates
        that are constant. It does not grow with the number of steps, as :meth:`batch` does.
        """
        import torch

        origin = None if self.origin is None else torch.from_numpy(self.origin[rows])
        covariates = None
        if self.covariates is not None:
            values = torch.from_numpy(self.covariates.at_each(rows, times))
            begin = torch.full((len(values), 1), -torch.inf, dtype=torch.float64)
            covariates = BatchSteps(begin, values[:, None])
        return BatchContext(origin, covariates=covariates)

    def without(self, *names: str) -> Context:
        """The same without the parts ``names``."""
        return replace(self, **dict.fromkeys(names))


@dataclass(frozen=True, eq=False)
class BatchContext:
    """The context of B sequences as tensors."""

    origin: torch.Tensor | None = None  # (B,) float64
    scored_from: torch.Tensor | None = None  # (B,) float64
    covariates: BatchSteps | None = None
    exposure: BatchSteps | None = None

    def select(self, rows: torch.Tensor) -> BatchContext:
        """The context of the sequences at ``rows``, which may repeat."""
        return BatchContext(
            None if self.origin is None else self.origin[rows],
            None if self.scored_from is None else self.scored_from[rows],
            None if self.covariates is None else self.covariates.select(rows),
            None if self.exposure is None else self.exposure.select(rows),
        )

    def to(self, device: str | torch.device) -> BatchContext:
        """The same on another device."""
        return BatchContext(
            None if self.origin is None else self.origin.to(device),
            None if self.scored_from is None else self.scored_from.to(device),
            None if self.covariates is None else self.covariates.to(device),
            None if self.exposure is None else self.exposure.to(device),
        )

    def scored_exposure(self) -> BatchSteps | None:
        """The exposure where sequences are scored, and 0 in their history periods: the weight of
        time in the likelihood. None where all time counts once.
        """
        import torch

        if self.scored_from is None:
            return self.exposure
        begin = self.scored_from[:, None]
        never = torch.full_like(begin, -torch.inf)
        if self.exposure is None:
            ones = torch.ones_like(begin)
            values = torch.stack([torch.zeros_like(begin), ones], 1)
            return BatchSteps(torch.cat([never, begin], 1), values)
        # The first value also holds before its time. Of several steps that are moved to the begin
        # of scoring the last one holds there.
        later = torch.maximum(self.exposure.times[:, 1:], begin)
        nothing = torch.zeros_like(self.exposure.values[:, :1])
        return BatchSteps(
            torch.cat([never, begin, later], 1), torch.cat([nothing, self.exposure.values], 1)
        )


@dataclass(frozen=True, eq=False)
class ExposedTime:
    """W(t) = int_start^t w, the exposed time of B sequences, and its inverse.

    Between ``times`` w is constant, with these ``values``; ``passed`` is W at ``times``.
    """

    times: torch.Tensor  # (B, J + 1)
    values: torch.Tensor  # (B, J)
    passed: torch.Tensor  # (B, J + 1)

    def until(self, times: torch.Tensor) -> torch.Tensor:
        """W at ``times`` (B, ...)."""
        import torch

        flat = times.reshape(len(times), -1).contiguous()
        step = torch.searchsorted(self.times.contiguous(), flat, right=True) - 1
        step = step.clamp(0, self.values.shape[1] - 1)
        since = flat - self.times.gather(1, step)
        found = self.passed.gather(1, step) + since * self.values.gather(1, step)
        return found.reshape(times.shape)

    def inverse(self, passed: torch.Tensor) -> torch.Tensor:
        """The times at which W reaches ``passed`` (B, ...), the latest ones where w is 0.

        >>> import torch
        >>> steps = Steps(("e",), np.array([0.0, 2.0]), np.array([[1.0], [4.0]]), np.array([0, 2]))
        >>> zero = torch.zeros(1).double()
        >>> time = steps.batch(np.array([0])).exposed_time(zero, zero + 5)
        >>> time.until(zero[:, None] + 3).item(), time.inverse(zero[:, None] + 6).item()
        (6.0, 3.0)
        """
        import torch

        flat = passed.reshape(len(passed), -1).contiguous()
        step = torch.searchsorted(self.passed.contiguous(), flat, right=True) - 1
        step = step.clamp(0, self.values.shape[1] - 1)
        value = self.values.gather(1, step)
        more = flat - self.passed.gather(1, step)
        later = torch.where(value > 0, more / torch.where(value > 0, value, 1.0), 0.0)
        return (self.times.gather(1, step) + later).reshape(passed.shape)
