"""The memories of many entities, one row each, stepped together: the states of a linear DAPP, or
any model's history.

Rows are numbers from 0 on; room for more is made by doubling. :meth:`score` looks at rows without
changing them, :meth:`absorb` and :meth:`move` follow it for the same rows. :class:`StateRows` steps
the modes' states with `models.dapp_step`, in the model's own precision and on two threads;
:class:`HistoryRows` calls the methods of the model, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Context
from fourpoint.inference.sampling import select_rows
from fourpoint.models.base import PointProcess
from fourpoint.models.dapp import DAPP
from fourpoint.models.dapp_step import Before, Reached, Steps, supports
from fourpoint.models.following import Events, Numbers, Scored, Stop
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.hawkes_step import HawkesSteps
from fourpoint.streaming.model_queries import (
    check_recorded,
    empty_history,
    in_float64,
    integrals,
    log_intensities,
)
from fourpoint.streaming.state import Arrays, arrays_of, history_from

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
FEWEST, PARTS = (
    256,
    4,
)  # rows that are worth handing to a thread, and how often each thread comes back for more


class Memories(Protocol):
    """What a bank asks of its rows."""

    spare: int  # bytes per row besides what take() gives
    fixed: bool  # whether every row takes the same room for ever
    follows: bool  # whether blocks of events can be followed
    reserves: bool  # whether rows that are not used take no memory

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` in all; new ones are blank."""

    def clear(self, rows: Rows) -> None:
        """Make rows blank again."""

    def score(self, rows: Rows, at: Floats, times: Floats) -> tuple[Floats, Floats]:
        """log lambda per mark just before ``times``, (R, M), and the integral of the rate from
        ``at`` to them, (R,).
        """

    def integral(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        """The integral of :meth:`score` alone, (R,); what was scored last does not change."""

    def absorb(self, rows: Rows, at: Floats, events: Events) -> None:
        """Events in the rows that were scored last."""

    def check(self, rows: Rows, times: Floats) -> None:
        """Refuse events at times when nothing is recorded."""

    def follow(
        self, rows: Rows, numbers: Numbers, events: Events, into: Scored, first: Rows | None
    ) -> Stop | None:
        """Score events of ``rows`` one after the other and absorb each; None, or where that
        stopped, with rows left as they are then.

        ``numbers`` are those of all rows, and ``first`` says which events are the first of their
        rows. Where it is None nothing can be undone, and events before the stop have been absorbed.
        """

    def undo(self) -> None:
        """Make the rows that :meth:`follow` has changed in its last call what they were before."""

    def move(self, rows: Rows, at: Floats, times: Floats) -> None:
        """The rows that were scored last are now at ``times``, with no event in between."""

    def logs(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        """log lambda per mark just before ``times``, (R, M)."""

    def take(self, rows: Rows) -> Arrays:
        """All that rows remember."""

    def put(self, rows: Rows, arrays: Arrays) -> None:
        """Remember what :meth:`take` gave."""


def memories(
    model: PointProcess, start: float, threads: int, context: Context | None = None
) -> Memories:
    """The faster of the ways that ``model`` allows, for windows that open at ``start``, with what
    is known besides events.
    """
    # Compiled rows know no calendar, exposure or event features.
    if context is not None or model.event_features is not None:
        return HistoryRows(model, start, context)
    if isinstance(model, DAPP) and supports(model):
        return StateRows(model, start, threads)
    return ExcitationRows(model) if isinstance(model, Hawkes) else HistoryRows(model, start)


class StateRows:
    """The modes' states of a linear DAPP, in the model's own precision."""

    fixed = True
    follows = True
    reserves = True

    def __init__(self, model: DAPP, start: float, threads: int) -> None:
        kind = np.float32 if model.readout.dtype == torch.float32 else np.float64
        self.steps = Steps(model, kind)
        self.start = start
        self.threads = max(1, threads)
        self.pool: ThreadPoolExecutor | None = None
        self.state = self.steps.blank(0)
        self._kept = self.steps.kept(0)
        self.spare = sum(array.nbytes for array in self.steps.kept(1))
        # Copies go to memory that is used again: new pages would take longer than the copies.
        self._room = self.steps.blank(0)
        no_row = np.zeros(0, dtype=np.int64)
        self._touched, self._before = no_row, Before(no_row, np.zeros(0, dtype=bool), self._room)
        self._ahead: list[NDArray[Any]] = []

    def grow(self, rows: int) -> None:
        # The rows that are new are zeros that no one has written: they take no time and no memory
        # before they are used.
        state = self.steps.blank(rows)
        kept = self.steps.kept(rows)
        count = len(self.state)
        state[:count] = self.state
        for new, old in zip(kept, self._kept, strict=True):
            new[:count] = old
        self.state, self._kept = state, kept

    def clear(self, rows: Rows) -> None:
        self.state[rows] = 0
        self._kept.ready[rows] = 0

    def score(self, rows: Rows, at: Floats, times: Floats) -> tuple[Floats, Floats]:
        found = self._each(
            self._reach, [(rows[p], at[p], times[p]) for p in self._parts(len(rows))]
        )
        self._ahead = [f.state for f in found]
        return np.concatenate([f.logs for f in found]), np.concatenate([f.integral for f in found])

    def integral(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        parts = self._parts(len(rows))
        return np.concatenate(
            self._each(self._integral, [(rows[p], at[p], times[p]) for p in parts])
        )

    def check(self, rows: Rows, times: Floats) -> None:
        pass  # there is no exposure

    def absorb(self, rows: Rows, at: Floats, events: Events) -> None:
        times, marks, _ = events
        self._kept.ready[rows] = 0
        parts = zip(self._parts(len(rows)), self._ahead, strict=True)
        self._each(
            self._absorb, [(rows[p], ahead, times[p] - self.start, marks[p]) for p, ahead in parts]
        )

    def follow(
        self, rows: Rows, numbers: Numbers, events: Events, into: Scored, first: Rows | None
    ) -> Stop | None:
        """Each thread has rows of its own, so that the events of a row stay in order; without
        ``first`` there is one thread.
        """
        if first is None:
            return self.steps.follow(
                self.state, rows, numbers, self.start, events, into, self._kept
            )
        self._before.copied[:] = False
        if len(self._room) < len(first):
            self._room = self.steps.blank(2 * len(first))
        place = np.full(len(rows), -1)
        place[first] = np.arange(len(first))
        self._touched = rows[first]
        self._before = Before(place, np.zeros(len(first), dtype=bool), self._room)
        threads = self.threads if len(rows) >= 2 * FEWEST else 1
        if threads == 1:
            return self.steps.follow(
                self.state, rows, numbers, self.start, events, into, self._kept, self._before
            )
        shares = [np.flatnonzero(rows % threads == i) for i in range(threads)]
        stops = self._each(self._follow, [(share, rows, numbers, events, into) for share in shares])
        return min(
            (stop for stop in stops if stop is not None), key=lambda stop: stop.done, default=None
        )

    def undo(self) -> None:
        copied = np.flatnonzero(self._before.copied)
        self.put(self._touched[copied], {"state": self._before.state[copied]})
        self._before.copied[:] = False

    def _follow(
        self, share: Rows, rows: Rows, numbers: Numbers, events: Events, into: Scored
    ) -> Stop | None:
        """Events at the places ``share``."""
        found = Scored.empty(len(share), into.shares.shape[1])
        own = Events(events.times[share], events.marks[share])
        kept = self._before
        before = Before(kept.place[share], kept.copied, kept.state)
        stop = self.steps.follow(
            self.state, rows[share], numbers, self.start, own, found, self._kept, before
        )
        for whole, part in zip(into, found, strict=True):
            whole[share] = part
        return None if stop is None else Stop(int(share[stop.done]), stop.error)

    def move(self, rows: Rows, at: Floats, times: Floats) -> None:
        self.state[rows] = np.concatenate(self._ahead)
        self._kept.ready[rows] = 0

    def logs(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return self.steps.logs(self.steps.moved(self.state[rows], times - at), times - self.start)

    def take(self, rows: Rows) -> Arrays:
        return {"state": self.state[rows]}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self.state[rows] = arrays["state"]
        self._kept.ready[rows] = 0

    def _parts(self, rows: int) -> list[slice]:
        """Several parts for each thread, so that all end together though one may be held up; one
        where there is little to do.
        """
        size = rows if self.threads == 1 else max(FEWEST, -(-rows // (PARTS * self.threads)))
        return [slice(i, i + size) for i in range(0, rows, max(1, size))] or [slice(0)]

    def _each(self, work: Callable[..., Any], parts: list[Any]) -> list[Any]:
        if len(parts) == 1:
            return [work(*parts[0])]
        self.pool = self.pool or ThreadPoolExecutor(self.threads)
        found = [self.pool.submit(work, *p) for p in parts]
        wait(found)  # nothing goes on behind an error
        return [f.result() for f in found]

    def _reach(self, rows: Rows, at: Floats, times: Floats) -> Reached:
        return self.steps.reach(self.state, at - self.start, times - at, rows)

    def _integral(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return self.steps.integral(self.state, at - self.start, times - at, rows, self._kept)

    def _absorb(
        self, rows: Rows, ahead: NDArray[Any], since: Floats, marks: NDArray[np.int64]
    ) -> None:
        self.steps.absorb(self.state, rows, ahead, since, marks)


class ExcitationRows:
    """The sums R of a Hawkes process, in float64, each at the time of its row."""

    fixed = True
    spare = 0
    follows = True
    reserves = True

    def __init__(self, model: Hawkes) -> None:
        self.steps = HawkesSteps(model)
        self.state = self.steps.blank(0)
        self._before = np.zeros(0, dtype=np.int64), self.state

    def grow(self, rows: int) -> None:
        state = self.steps.blank(rows)
        state[: len(self.state)] = self.state
        self.state = state

    def clear(self, rows: Rows) -> None:
        self.state[rows] = 0

    def score(self, rows: Rows, at: Floats, times: Floats) -> tuple[Floats, Floats]:
        return self.logs(rows, at, times), self.steps.integral(self.state[rows], times - at)

    def integral(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return self.steps.integral(self.state[rows], times - at)

    def check(self, rows: Rows, times: Floats) -> None:
        pass  # there is no exposure

    def absorb(self, rows: Rows, at: Floats, events: Events) -> None:
        self.move(rows, at, events.times)
        self.state[rows, :, events.marks] += 1.0

    def follow(
        self, rows: Rows, numbers: Numbers, events: Events, into: Scored, first: Rows | None
    ) -> Stop | None:
        if first is not None:
            self._before = rows[first], self.state[rows[first]]
        return self.steps.follow(self.state, rows, numbers, events, into)

    def undo(self) -> None:
        rows, state = self._before
        self.state[rows] = state

    def move(self, rows: Rows, at: Floats, times: Floats) -> None:
        self.state[rows] = self.steps.moved(self.state[rows], times - at)

    def logs(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return self.steps.logs(self.steps.moved(self.state[rows], times - at))

    def take(self, rows: Rows) -> Arrays:
        return {"excitation": self.state[rows]}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self.state[rows] = arrays["excitation"]


class HistoryRows:
    """Any model's history, a row per entity; row numbers are one less than the history's, whose row
    0 stays blank.
    """

    spare = 0
    follows = False
    reserves = False

    def __init__(self, model: PointProcess, start: float, context: Context | None = None) -> None:
        self.model = in_float64(model)
        self.history = empty_history(self.model, start, context=context)
        self.fixed = model.linear and model.settings().get("keep") is None

    @torch.no_grad()
    def grow(self, rows: int) -> None:
        present = torch.arange(len(self.history.start))
        blank = torch.zeros(rows + 1 - len(present), dtype=torch.int64)
        self.history = select_rows(self.history, torch.cat([present, blank]))

    def clear(self, rows: Rows) -> None:
        blank = arrays_of(select_rows(self.history, torch.zeros(len(rows), dtype=torch.int64)))
        self.put(rows, blank)

    def score(self, rows: Rows, at: Floats, times: Floats) -> tuple[Floats, Floats]:
        own = select_rows(self.history, torch.from_numpy(rows) + 1)
        return log_intensities(self.model, own, times), integrals(self.model, own, at, times)

    def integral(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return integrals(
            self.model, select_rows(self.history, torch.from_numpy(rows) + 1), at, times
        )

    @torch.no_grad()
    def absorb(self, rows: Rows, at: Floats, events: Events) -> None:
        index = torch.from_numpy(rows) + 1
        when = torch.from_numpy(events.times)
        kind = torch.from_numpy(events.marks)
        known = None if events.features is None else torch.from_numpy(events.features)
        own = select_rows(self.history, index)
        arrays = arrays_of(self.model.extend(own, when, kind, features=known))
        if all(
            a.shape[1:] == arrays[name].shape[1:] for name, a in arrays_of(self.history).items()
        ):
            self.put(rows, arrays)
            return
        # Rows have outgrown their room: all of them go through `extend`, which widens them alike.
        happened = torch.zeros(len(self.history.start), dtype=torch.bool)
        happened[index] = True
        all_times = torch.zeros(len(happened), dtype=torch.float64)
        all_marks = torch.zeros(len(happened), dtype=torch.int64)
        all_times[index], all_marks[index] = when, kind
        all_features = None
        if known is not None:
            all_features = torch.zeros(len(happened), known.shape[1], dtype=torch.float64)
            all_features[index] = known
        self.history = self.model.extend(
            self.history, all_times, all_marks, happened, features=all_features
        )

    def check(self, rows: Rows, times: Floats) -> None:
        check_recorded(select_rows(self.history, torch.from_numpy(rows) + 1), times)

    def follow(
        self, rows: Rows, numbers: Numbers, events: Events, into: Scored, first: Rows | None
    ) -> Stop | None:
        raise RuntimeError("histories are extended a round at a time")

    def undo(self) -> None:
        raise RuntimeError("histories are extended a round at a time")

    def move(self, rows: Rows, at: Floats, times: Floats) -> None:
        pass  # a history is read from its last event

    def logs(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return log_intensities(
            self.model, select_rows(self.history, torch.from_numpy(rows) + 1), times
        )

    def take(self, rows: Rows) -> Arrays:
        return arrays_of(select_rows(self.history, torch.from_numpy(rows) + 1))

    def put(self, rows: Rows, arrays: Arrays) -> None:
        kept = arrays_of(self.history)
        if any(_smaller(kept[name], a) for name, a in arrays.items()):
            # Only a bank that is restored comes here: rows are wider than any that it has, and all
            # of them are new.
            blank = history_from(
                select_rows(self.history, torch.zeros(1, dtype=torch.int64)),
                {n: a[:1] for n, a in arrays.items()},
            )
            self.history = select_rows(
                blank, torch.zeros(len(self.history.start), dtype=torch.int64)
            )
            kept = arrays_of(self.history)
        for name, a in arrays.items():
            if a.shape[1:] != kept[name].shape[1:]:  # rows have been widened since
                kept[name][rows + 1] = kept[name][:1]
            corner: tuple[Any, ...] = (rows + 1, *(slice(n) for n in a.shape[1:]))
            kept[name][corner] = a
        self.history = history_from(self.history, kept)


def _smaller(kept: NDArray[Any], array: NDArray[Any]) -> bool:
    return any(size < need for size, need in zip(kept.shape[1:], array.shape[1:], strict=True))
