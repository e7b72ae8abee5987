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

from collections.abc import Callable, Sequence as Ordered
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.errors import EventDataError
from fourpoint.events.batching import flat_places, offsets_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Part = TypeVar("Part")
Result = TypeVar("Result")


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
    offsets: Integers  # (S + 1,)

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
        return Steps(
            names=tuple(names),
            times=np.zeros(count),
            values=table,
            offsets=np.arange(count + 1),
        )

    def row(self, index: int) -> slice:
        """The steps of one sequence."""
        first = int(self.offsets[index])
        end = int(self.offsets[index + 1])
        return slice(first, end)

    def at(self, index: int, times: Floats) -> Floats:
        """The values of sequence ``index`` at ``times`` (T,): (T, K)."""
        own = self.row(index)
        after = np.searchsorted(self.times[own], times, side="right")
        step = np.maximum(after - 1, 0)
        return self.values[own][step]

    def at_each(self, rows: Integers, times: Floats) -> Floats:
        """The values of sequence ``rows[i]`` at ``times[i]``: (T, K).

        >>> steps = Steps.constant(("age",), [[40.0], [25.0]])
        >>> steps.at_each(np.array([1, 0]), np.array([0.0, 9.0])).tolist()
        [[25.0], [40.0]]
        """
        found = np.empty((len(times), len(self.names)))
        order = np.argsort(rows, kind="stable")
        known, begins = np.unique(rows[order], return_index=True)
        parts = np.split(order, begins[1:])
        for row, part in zip(known.tolist(), parts, strict=True):
            found[part] = self.at(row, times[part])
        return found

    def select(self, rows: Integers) -> Steps:
        """The step functions of the sequences at ``rows``."""
        first = self.offsets[rows]
        lengths = np.diff(self.offsets)[rows]
        flat, offsets = flat_places(first, lengths)
        return Steps(
            names=self.names,
            times=self.times[flat],
            values=self.values[flat],
            offsets=offsets,
        )

    @staticmethod
    def join(parts: Ordered[Steps]) -> Steps:
        """The step functions of several data sets, one after the other. They must have the same
        columns.
        """
        if len({part.names for part in parts}) > 1:
            received = " and ".join(str(list(part.names)) for part in parts[:2])
            raise EventDataError("the same columns everywhere", received, "Give all the same.")
        lengths = [np.diff(part.offsets) for part in parts]
        return Steps(
            names=parts[0].names,
            times=np.concatenate([part.times for part in parts]),
            values=np.concatenate([part.values for part in parts]),
            offsets=offsets_of(np.concatenate(lengths)),
        )

    def integrals(self, starts: Floats, stops: Floats) -> Floats:
        """The integral of the first column of each sequence from its start to its stop, (S,).

        >>> Steps.constant(("e",), [[2.0]]).integrals(np.array([1.0]), np.array([4.0])).tolist()
        [6.0]
        """
        owner = self._owner()
        first = starts[owner]
        last = stops[owner]
        left, right = self._spans()
        low = np.clip(left, first, last)
        high = np.clip(right, first, last)
        integral = self.values[:, 0] * (high - low)
        total = np.zeros(len(starts))
        np.add.at(total, owner, integral)
        return total

    def _owner(self) -> Integers:
        """The number of the sequence that each step belongs to."""
        lengths = np.diff(self.offsets)
        return np.repeat(np.arange(len(lengths)), lengths)

    def _spans(self) -> tuple[Floats, Floats]:
        """From when until when each value holds."""
        first = self.offsets[:-1]
        last = self.offsets[1:] - 1
        left = self.times.copy()
        left[first] = -np.inf
        right = np.append(self.times[1:], np.inf)
        right[last] = np.inf
        return left, right

    def zero_before(self, times: Floats) -> Steps:
        """The same, but 0 before the time ``times`` (S,) of each sequence."""
        owner = self._owner()
        left, right = self._spans()
        kept = right > times[owner]
        owner = owner[kept]
        first = np.concatenate([[True], np.diff(owner) > 0])
        begins = np.where(first, times[owner], left[kept])
        lengths = np.bincount(owner, minlength=len(times))
        places = np.cumsum(lengths) - lengths
        before = np.nextafter(times, -np.inf)
        return Steps(
            names=self.names,
            times=np.insert(begins, places, before),
            values=np.insert(self.values[kept], places, 0.0, axis=0),
            offsets=offsets_of(lengths + 1),
        )

    def batch(self, rows: Integers) -> BatchSteps:
        """The step functions of the sequences at ``rows``, padded to one length."""
        import torch

        first = self.offsets[rows][:, None]
        length = np.diff(self.offsets)[rows][:, None]
        column = np.arange(int(length.max(initial=1)))
        last = first + length - 1
        flat = np.minimum(first + column, last)
        times = np.where(column < length, self.times[flat], np.inf)
        values = self.values[flat]
        return BatchSteps(torch.from_numpy(times), torch.from_numpy(values))


@dataclass(frozen=True, eq=False)
class BatchSteps:
    """Step functions of B sequences as tensors; times of padding are infinite."""

    times: Tensor  # (B, J) float64
    values: Tensor  # (B, J, K) float64

    def at(self, times: Tensor) -> Tensor:
        """The values at ``times`` (B, ...): (B, ..., K).

        >>> import torch
        >>> steps = Steps(("x",), np.array([0.0, 2.0]), np.array([[1.0], [5.0]]), np.array([0, 2]))
        >>> steps.batch(np.array([0])).at(torch.tensor([[1.0, 2.0]]).double()).flatten().tolist()
        [1.0, 5.0]
        """
        import torch

        columns = self.values.shape[2]
        shape = (*times.shape, columns)
        flat = times.reshape(len(times), -1).contiguous()
        begins = self.times[0] if self.shared else self.times
        step = torch.searchsorted(begins.contiguous(), flat, right=True) - 1
        step = step.clamp(min=0)
        if self.shared:
            return self.values[0][step].reshape(shape)
        index = step[..., None].expand(-1, -1, columns)
        return self.values.gather(1, index).reshape(shape)

    @property
    def shared(self) -> bool:
        """Whether all rows are views of one, as in paths that begin with one past."""
        rows = len(self.times)
        return rows == 1 or (rows > 1 and self.times.stride(0) == 0)

    def _begins(self) -> Tensor:
        """When each value begins to hold: -inf, the times of the steps, inf; (B, J + 1)."""
        import torch

        endless = torch.full_like(self.times[:, :1], torch.inf)
        return torch.cat([-endless, self.times[:, 1:], endless], 1)

    def next_step(self, times: Tensor) -> Tensor:
        """The time of the first step after ``times`` (B,); infinite where there is none."""
        import torch

        edges = self._begins()
        last = edges.shape[1] - 1
        step = torch.searchsorted(edges, times[:, None].contiguous(), right=True)
        step = step.clamp(max=last)
        return edges.gather(1, step)[:, 0]

    def around(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the last time at which the values are those at ``times`` (B, N)."""
        import torch

        edges = self._begins()
        last = edges.shape[1] - 1
        step = torch.searchsorted(edges, times.contiguous(), right=True)
        step = step.clamp(max=last)
        first = edges.gather(1, step - 1)
        following = edges.gather(1, step)
        downwards = torch.full_like(following, -torch.inf)
        return first, torch.nextafter(following, downwards)

    def exposed_time(self, start: Tensor, stop: Tensor) -> ExposedTime:
        """The integral of the first column from ``start`` (B,) on, for times up to ``stop``."""
        import torch

        first = start[:, None]
        last = stop[:, None]
        inside = self.times.clamp(first, last)
        times = torch.cat([first, inside, last], 1)
        values = self.at(times[:, :-1])[..., 0]
        passed = (values * times.diff(dim=1)).cumsum(1)
        from_zero = torch.nn.functional.pad(passed, (1, 0))
        return ExposedTime(times, values, from_zero)

    def select(self, rows: Tensor) -> BatchSteps:
        """The step functions at ``rows``; views of one where all rows are."""
        if not self.shared:
            return BatchSteps(self.times[rows], self.values[rows])
        count = len(rows)
        times = self.times[:1].expand(count, -1)
        values = self.values[:1].expand(count, -1, -1)
        return BatchSteps(times, values)

    def to(self, device: str | torch.device) -> BatchSteps:
        """The same on another device."""
        times = self.times.to(device)
        values = self.values.to(device)
        return BatchSteps(times, values)


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


def _if_known(function: Callable[[Part], Result], part: Part | None) -> Result | None:
    """``function`` of a part of a context; None if the part is not known."""
    if part is None:
        return None
    return function(part)


@dataclass(frozen=True, eq=False)
class Context:
    """What is known of S sequences besides their events; None for what is not known."""

    origin: Floats | None = None  # (S,) seconds since 1970, UTC
    scored_from: Floats | None = None  # (S,) in the user's unit
    covariates: Steps | None = None
    exposure: Steps | None = None

    def select(self, rows: Integers) -> Context:
        """The context of the sequences at ``rows``."""

        def at_rows(times: Floats) -> Floats:
            return times[rows]

        def of_rows(steps: Steps) -> Steps:
            return steps.select(rows)

        return Context(
            origin=_if_known(at_rows, self.origin),
            scored_from=_if_known(at_rows, self.scored_from),
            covariates=_if_known(of_rows, self.covariates),
            exposure=_if_known(of_rows, self.exposure),
        )

    @staticmethod
    def join(parts: Ordered[Context | None]) -> Context | None:
        """The contexts of several sequences or data sets, one after the other; what one of them
        lacks, all must lack.
        """
        if all(part is None for part in parts):
            return None
        known = [part or Context() for part in parts]
        origins = _of_all("origin", [part.origin for part in known])
        scored_from = _of_all("scored_from", [part.scored_from for part in known])
        covariates = _of_all("covariates", [part.covariates for part in known])
        exposures = _of_all("exposure", [part.exposure for part in known])
        return Context(
            origin=_if_known(np.concatenate, origins),
            scored_from=_if_known(np.concatenate, scored_from),
            covariates=_if_known(Steps.join, covariates),
            exposure=_if_known(Steps.join, exposures),
        )

    def batch(self, rows: Integers) -> BatchContext:
        """The context of the sequences at ``rows`` as tensors."""
        import torch

        def padded(steps: Steps) -> BatchSteps:
            return steps.batch(np.arange(len(rows)))

        own = self.select(rows)
        return BatchContext(
            origin=_if_known(torch.from_numpy, own.origin),
            scored_from=_if_known(torch.from_numpy, own.scored_from),
            covariates=_if_known(padded, own.covariates),
            exposure=_if_known(padded, own.exposure),
        )

    def scored_exposure(self, count: int) -> Steps | None:
        """The exposure of ``count`` sequences where they are scored, 0 in their history periods:
        the weight of time in their likelihood. None where all time counts once.
        """
        if self.scored_from is None:
            return self.exposure
        exposure = self.exposure
        if exposure is None:
            exposure = Steps.constant(("exposure",), np.ones((count, 1)))
        return exposure.zero_before(self.scored_from)

    def at_each(self, rows: Integers, times: Floats) -> BatchContext:
        """The context of sequence ``rows[i]`` at ``times[i]`` alone: its origin, and covariates
        that are constant. It does not grow with the number of steps, as :meth:`batch` does.
        """
        import torch

        origin = None
        if self.origin is not None:
            origin = torch.from_numpy(self.origin[rows])
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

    origin: Tensor | None = None  # (B,) float64
    scored_from: Tensor | None = None  # (B,) float64
    covariates: BatchSteps | None = None
    exposure: BatchSteps | None = None

    def select(self, rows: Tensor) -> BatchContext:
        """The context of the sequences at ``rows``, which may repeat."""

        def at_rows(times: Tensor) -> Tensor:
            return times[rows]

        def of_rows(steps: BatchSteps) -> BatchSteps:
            return steps.select(rows)

        return self._map(at_rows, of_rows)

    def to(self, device: str | torch.device) -> BatchContext:
        """The same on another device."""

        def moved(times: Tensor) -> Tensor:
            return times.to(device)

        def moved_steps(steps: BatchSteps) -> BatchSteps:
            return steps.to(device)

        return self._map(moved, moved_steps)

    def _map(
        self,
        of_times: Callable[[Tensor], Tensor],
        of_steps: Callable[[BatchSteps], BatchSteps],
    ) -> BatchContext:
        """The same with a function of each tensor of times and of each step function."""
        return BatchContext(
            origin=_if_known(of_times, self.origin),
            scored_from=_if_known(of_times, self.scored_from),
            covariates=_if_known(of_steps, self.covariates),
            exposure=_if_known(of_steps, self.exposure),
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
            zero = torch.zeros_like(begin)
            one = torch.ones_like(begin)
            times = torch.cat([never, begin], 1)
            return BatchSteps(times, torch.stack([zero, one], 1))
        # The first value also holds before its time. Of several steps that are moved to the begin
        # of scoring the last one holds there.
        later = torch.maximum(self.exposure.times[:, 1:], begin)
        times = torch.cat([never, begin, later], 1)
        exposure = self.exposure.values
        nothing = torch.zeros_like(exposure[:, :1])
        return BatchSteps(times, torch.cat([nothing, exposure], 1))


@dataclass(frozen=True, eq=False)
class ExposedTime:
    """W(t) = int_start^t w, the exposed time of B sequences, and its inverse.

    Between ``times`` w is constant, with these ``values``; ``passed`` is W at ``times``.
    """

    times: Tensor  # (B, J + 1)
    values: Tensor  # (B, J)
    passed: Tensor  # (B, J + 1)

    def until(self, times: Tensor) -> Tensor:
        """W at ``times`` (B, ...)."""
        flat = times.reshape(len(times), -1).contiguous()
        step = self._step(self.times, flat)
        since = flat - self.times.gather(1, step)
        before = self.passed.gather(1, step)
        found = before + since * self.values.gather(1, step)
        return found.reshape(times.shape)

    def inverse(self, passed: Tensor) -> Tensor:
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
        step = self._step(self.passed, flat)
        value = self.values.gather(1, step)
        rises = value > 0
        more = flat - self.passed.gather(1, step)
        divisor = torch.where(rises, value, 1.0)
        later = torch.where(rises, more / divisor, 0.0)
        times = self.times.gather(1, step) + later
        return times.reshape(passed.shape)

    def _step(self, edges: Tensor, values: Tensor) -> Tensor:
        """The step that begins at the last of ``edges`` (B, J + 1) not above ``values``."""
        import torch

        last = self.values.shape[1] - 1
        step = torch.searchsorted(edges.contiguous(), values, right=True) - 1
        return step.clamp(0, last)
