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
from fourpoint.models.base import History, PointProcess
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
FEWEST = 256  # rows that are worth handing to a thread
PARTS = 4  # how often each thread comes back for more


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
    if isinstance(model, Hawkes):
        return ExcitationRows(model)
    return HistoryRows(model, start)


class StateRows:
    """The modes' states of a linear DAPP, in the model's own precision."""

    fixed = True
    follows = True
    reserves = True

    def __init__(self, model: DAPP, start: float, threads: int) -> None:
        single = model.readout.dtype == torch.float32
        self.steps = Steps(model, np.float32 if single else np.float64)
        self.start = start
        self.threads = max(1, threads)
        self.pool: ThreadPoolExecutor | None = None
        self.state = self.steps.blank(0)
        self._kept = self.steps.kept(0)
        self.spare = sum(array.nbytes for array in self.steps.kept(1))
        # Copies go to memory that is used again: new pages would take longer than the copies.
        self._room = self.steps.blank(0)
        self._touched: Rows = np.zeros(0, dtype=np.int64)
        self._before = Before(
            place=self._touched,
            copied=np.zeros(0, dtype=bool),
            state=self._room,
        )
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
        self.state = state
        self._kept = kept

    def clear(self, rows: Rows) -> None:
        self.state[rows] = 0
        self._kept.ready[rows] = 0

    def score(self, rows: Rows, at: Floats, times: Floats) -> tuple[Floats, Floats]:
        found: list[Reached] = self._each(self._reach, rows, at, times)
        self._ahead = [reached.state for reached in found]
        logs = np.concatenate([reached.logs for reached in found])
        integral = np.concatenate([reached.integral for reached in found])
        return logs, integral

    def integral(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return np.concatenate(self._each(self._integral, rows, at, times))

    def check(self, rows: Rows, times: Floats) -> None:
        pass  # there is no exposure

    def absorb(self, rows: Rows, at: Floats, events: Events) -> None:
        self._kept.ready[rows] = 0
        since = events.times - self.start
        parts = self._parts(len(rows))
        tasks = []
        for part, ahead in zip(parts, self._ahead, strict=True):
            tasks.append((rows[part], ahead, since[part], events.marks[part]))
        self._run(self._absorb, tasks)

    def follow(
        self, rows: Rows, numbers: Numbers, events: Events, into: Scored, first: Rows | None
    ) -> Stop | None:
        """Each thread has rows of its own, so that the events of a row stay in order; without
        ``first`` there is one thread.
        """
        if first is None:
            return self.steps.follow(
                self.state,
                rows,
                numbers,
                self.start,
                events,
                into,
                self._kept,
            )
        self._before.copied[:] = False
        count = len(first)
        if len(self._room) < count:
            self._room = self.steps.blank(2 * count)
        place = np.full(len(rows), -1)
        place[first] = np.arange(count)
        self._touched = rows[first]
        self._before = Before(
            place=place,
            copied=np.zeros(count, dtype=bool),
            state=self._room,
        )
        if self.threads == 1 or len(rows) < 2 * FEWEST:
            return self.steps.follow(
                self.state,
                rows,
                numbers,
                self.start,
                events,
                into,
                self._kept,
                self._before,
            )
        thread = rows % self.threads
        tasks = []
        for i in range(self.threads):
            share = np.flatnonzero(thread == i)
            tasks.append((share, rows, numbers, events, into))
        found: list[Stop | None] = self._run(self._follow, tasks)
        stops = [stop for stop in found if stop is not None]
        return min(stops, key=lambda stop: stop.done, default=None)

    def undo(self) -> None:
        before = self._before
        copied = np.flatnonzero(before.copied)
        rows = self._touched[copied]
        self.put(rows, {"state": before.state[copied]})
        before.copied[:] = False

    def _follow(
        self, share: Rows, rows: Rows, numbers: Numbers, events: Events, into: Scored
    ) -> Stop | None:
        """Events at the places ``share``."""
        found = Scored.empty(len(share), into.shares.shape[1])
        own = Events(events.times[share], events.marks[share])
        before = self._before
        stop = self.steps.follow(
            self.state,
            rows[share],
            numbers,
            self.start,
            own,
            found,
            self._kept,
            Before(before.place[share], before.copied, before.state),
        )
        for whole, part in zip(into, found, strict=True):
            whole[share] = part
        if stop is None:
            return None
        return Stop(int(share[stop.done]), stop.error)

    def move(self, rows: Rows, at: Floats, times: Floats) -> None:
        self.state[rows] = np.concatenate(self._ahead)
        self._kept.ready[rows] = 0

    def logs(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        state = self.steps.moved(self.state[rows], times - at)
        return self.steps.logs(state, times - self.start)

    def take(self, rows: Rows) -> Arrays:
        return {"state": self.state[rows]}

    def put(self, rows: Rows, arrays: Arrays) -> None:
        self.state[rows] = arrays["state"]
        self._kept.ready[rows] = 0

    def _parts(self, rows: int) -> list[slice]:
        """Several parts for each thread, so that all end together though one may be held up; one
        where there is little to do.
        """
        if rows == 0:
            return [slice(0)]
        size = rows
        if self.threads > 1:
            share = -(-rows // (PARTS * self.threads))
            size = max(FEWEST, share)
        return [slice(first, first + size) for first in range(0, rows, size)]

    def _each(
        self, work: Callable[[Rows, Floats, Floats], Any], rows: Rows, at: Floats, times: Floats
    ) -> list[Any]:
        """What ``work`` finds for each of :meth:`_parts`."""
        tasks = []
        for part in self._parts(len(rows)):
            tasks.append((rows[part], at[part], times[part]))
        return self._run(work, tasks)

    def _run(self, work: Callable[..., Any], tasks: list[Any]) -> list[Any]:
        """``work`` with the arguments of each task, by several threads if there are several."""
        if len(tasks) == 1:
            return [work(*tasks[0])]
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads)
        found = [self.pool.submit(work, *task) for task in tasks]
        wait(found)  # nothing goes on behind an error
        return [future.result() for future in found]

    def _reach(self, rows: Rows, at: Floats, times: Floats) -> Reached:
        return self.steps.reach(self.state, at - self.start, times - at, rows)

    def _integral(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return self.steps.integral(self.state, at - self.start, times - at, rows, self._kept)

    def _absorb(self, rows: Rows, ahead: NDArray[Any], since: Floats, marks: Rows) -> None:
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
        self._touched: Rows = np.zeros(0, dtype=np.int64)
        self._before = self.state

    def grow(self, rows: int) -> None:
        state = self.steps.blank(rows)
        state[: len(self.state)] = self.state
        self.state = state

    def clear(self, rows: Rows) -> None:
        self.state[rows] = 0

    def score(self, rows: Rows, at: Floats, times: Floats) -> tuple[Floats, Floats]:
        logs = self.logs(rows, at, times)
        integral = self.steps.integral(self.state[rows], times - at)
        return logs, integral

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
            self._touched = rows[first]
            self._before = self.state[self._touched]
        return self.steps.follow(self.state, rows, numbers, events, into)

    def undo(self) -> None:
        self.state[self._touched] = self._before

    def move(self, rows: Rows, at: Floats, times: Floats) -> None:
        self.state[rows] = self.steps.moved(self.state[rows], times - at)

    def logs(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        state = self.steps.moved(self.state[rows], times - at)
        return self.steps.logs(state)

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
        keeps_all = model.settings().get("keep") is None
        self.fixed = model.linear and keeps_all

    @torch.no_grad()
    def grow(self, rows: int) -> None:
        count = len(self.history.start)
        present = torch.arange(count)
        blank = torch.zeros(rows + 1 - count, dtype=torch.int64)
        self.history = select_rows(self.history, torch.cat([present, blank]))

    def clear(self, rows: Rows) -> None:
        self.put(rows, arrays_of(self._blank(len(rows))))

    def score(self, rows: Rows, at: Floats, times: Floats) -> tuple[Floats, Floats]:
        own = self._own(rows)
        logs = log_intensities(self.model, own, times)
        return logs, integrals(self.model, own, at, times)

    def integral(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return integrals(self.model, self._own(rows), at, times)

    @torch.no_grad()
    def absorb(self, rows: Rows, at: Floats, events: Events) -> None:
        index = torch.from_numpy(rows) + 1
        times = torch.from_numpy(events.times)
        marks = torch.from_numpy(events.marks)
        features = None
        if events.features is not None:
            features = torch.from_numpy(events.features)
        own = select_rows(self.history, index)
        extended = self.model.extend(own, times, marks, features=features)
        arrays = arrays_of(extended)
        kept = arrays_of(self.history)
        if all(kept[name].shape[1:] == arrays[name].shape[1:] for name in kept):
            self.put(rows, arrays)
            return
        # Rows have outgrown their room: all of them go through `extend`, which widens them alike.
        count = len(self.history.start)
        happened = torch.zeros(count, dtype=torch.bool)
        happened[index] = True
        all_times = torch.zeros(count, dtype=torch.float64)
        all_times[index] = times
        all_marks = torch.zeros(count, dtype=torch.int64)
        all_marks[index] = marks
        all_features = None
        if features is not None:
            all_features = torch.zeros(count, features.shape[1], dtype=torch.float64)
            all_features[index] = features
        self.history = self.model.extend(
            self.history,
            all_times,
            all_marks,
            happened,
            features=all_features,
        )

    def check(self, rows: Rows, times: Floats) -> None:
        check_recorded(self._own(rows), times)

    def follow(
        self, rows: Rows, numbers: Numbers, events: Events, into: Scored, first: Rows | None
    ) -> Stop | None:
        raise RuntimeError("histories are extended a round at a time")

    def undo(self) -> None:
        raise RuntimeError("histories are extended a round at a time")

    def move(self, rows: Rows, at: Floats, times: Floats) -> None:
        pass  # a history is read from its last event

    def logs(self, rows: Rows, at: Floats, times: Floats) -> Floats:
        return log_intensities(self.model, self._own(rows), times)

    def take(self, rows: Rows) -> Arrays:
        return arrays_of(self._own(rows))

    def put(self, rows: Rows, arrays: Arrays) -> None:
        kept = arrays_of(self.history)
        if any(_smaller(kept[name], array) for name, array in arrays.items()):
            # Only a bank that is restored comes here: rows are wider than any that it has, and all
            # of them are new.
            first = {name: array[:1] for name, array in arrays.items()}
            blank = history_from(self._blank(1), first)
            every = torch.zeros(len(self.history.start), dtype=torch.int64)
            self.history = select_rows(blank, every)
            kept = arrays_of(self.history)
        for name, array in arrays.items():
            own = kept[name]
            widths = array.shape[1:]
            if widths != own.shape[1:]:  # rows have been widened since
                own[rows + 1] = own[:1]
            corner: tuple[Any, ...] = tuple(slice(width) for width in widths)
            own[(rows + 1, *corner)] = array
        self.history = history_from(self.history, kept)

    def _own(self, rows: Rows) -> History:
        """The histories of these rows."""
        return select_rows(self.history, torch.from_numpy(rows) + 1)

    def _blank(self, rows: int) -> History:
        """So many histories without events."""
        return select_rows(self.history, torch.zeros(rows, dtype=torch.int64))


def _smaller(kept: NDArray[Any], array: NDArray[Any]) -> bool:
    widths = zip(kept.shape[1:], array.shape[1:], strict=True)
    return any(width < needed for width, needed in widths)
