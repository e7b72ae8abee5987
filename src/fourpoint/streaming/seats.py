"""Who sits where: the rows of a bank's entities, and what else is known of each; over a limit, those seen least recently on disk.

A row holds a memory (`streaming.rows`), four numbers (its time, the integral since its last event, its log-likelihood and its events)
and perhaps a monitor. Rows of entities that leave are blank again and free for others. Used by `streaming.bank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import UserError
from fourpoint.streaming.monitoring import Monitor
from fourpoint.streaming.rows import Memories
from fourpoint.streaming.spill import Spill
from fourpoint.streaming.state import Arrays

Rows = NDArray[np.int64]
FIRST = 64  # rows at the beginning


class Seats:
    """Entities by name. ``limit`` of them, or as many as one call names, stay in memory; the others are in ``spill``."""

    def __init__(self, memories: Memories, start: float, limit: int | None, spill: Spill | None) -> None:
        self.memories, self.start, self.limit, self.spill = memories, start, limit, spill
        self.row: dict[str, int] = {}
        self.names: list[str] = []  # by row
        self.monitors: list[Monitor | None] = []  # by row
        self.numbers: Arrays = {"at": np.zeros(0), "open": np.zeros(0), "likelihood": np.zeros(0), "count": np.zeros(0, dtype=np.int64)}
        self._free: list[int] = []
        self._used: Rows = np.zeros(0, dtype=np.int64)  # the call in which each row was last named
        self._calls = 0
        self._grow(FIRST)

    @property
    def away(self) -> set[str]:
        """The entities on disk."""
        return self.spill.names if self.spill is not None else set()

    def seat(self, entities: Sequence[str]) -> tuple[Rows, list[str]]:
        """The row of each entity, read back or created where it has none; and the names of those created.

        Raises :class:`UserError` where the disk fails; then nobody has been created.
        """
        self._calls += 1
        found = list(map(self.row.get, entities))
        if None not in found and (self.limit is None or len(self.row) <= self.limit):
            rows = np.array(found, dtype=np.int64)
            self._used[rows] = self._calls
            return rows, []
        self._used[[r for r in found if r is not None]] = self._calls
        missing = [e for e in dict.fromkeys(entities) if e not in self.row]
        back = {e: self.read(e) for e in missing if e in self.away}
        self.make_room(len(missing))
        for name in missing:
            self.row[name] = self._free.pop()
            self.names[self.row[name]] = name
        for name, (arrays, monitor) in back.items():
            self.put(np.array([self.row[name]]), arrays, [monitor])
            if self.spill is not None:
                self.spill.forget(name)
        rows = np.array([self.row[e] for e in entities], dtype=np.int64)
        self._used[rows] = self._calls
        return rows, [e for e in missing if e not in back]

    def unseat(self, names: Sequence[str]) -> None:
        """Forget entities that are in memory."""
        if not names:
            return
        rows = np.array([self.row.pop(name) for name in names])
        self.memories.clear(rows)
        for key, values in self.numbers.items():
            values[rows] = self.start if key == "at" else 0
        for row in rows.tolist():
            self.monitors[row] = None
            self._free.append(row)

    def make_room(self, more: int, *, own: bool = True) -> None:
        """Room for ``more`` entities: those seen least recently are written away, but for those of this call where ``own``."""
        taken = np.array(list(self.row.values()), dtype=np.int64)
        over = 0 if self.limit is None else len(taken) + more - self.limit
        if over > 0:
            idle = taken[self._used[taken] < self._calls] if own else taken
            for row in idle[np.argsort(self._used[idle], kind="stable")][:over].tolist():
                self._write_away(row)
        if more > len(self._free):
            self._grow(max(2 * len(self._used), len(self.row) + more))

    def take(self, rows: Rows) -> Arrays:
        """Memories and numbers of rows, copied."""
        return {**self.memories.take(rows), **{key: values[rows] for key, values in self.numbers.items()}}

    def put(self, rows: Rows, arrays: Arrays, monitors: Sequence[Monitor | None] = ()) -> None:
        """What :meth:`take` gave, and monitors where there are any."""
        for key, values in self.numbers.items():
            values[rows] = arrays[key]
        self.memories.put(rows, {key: a for key, a in arrays.items() if key not in self.numbers})
        for row, monitor in zip(rows.tolist(), monitors, strict=False):
            self.monitors[row] = monitor

    def read(self, name: str) -> tuple[Arrays, Monitor | None]:
        """What is on disk of an entity."""
        if self.spill is None:
            raise UserError("a folder to spill to", "none", "Pass spill=.")
        header, arrays = self.spill.read(name)
        gaps = arrays.pop("monitor", None)
        return arrays, None if gaps is None else Monitor.restore(header["monitor"], gaps)

    def number(self, key: str, entity: str) -> Any:
        """One of the numbers of an entity, wherever it is."""
        if entity in self.away:
            return self.read(entity)[0][key][0]
        if entity not in self.row:
            raise UserError("an entity of this bank", f"{entity!r}", "Look at bank.entities.")
        return self.numbers[key][self.row[entity]]

    def _write_away(self, row: int) -> None:
        if self.spill is None:
            return
        header, arrays, monitor = {}, self.take(np.array([row])), self.monitors[row]
        if monitor is not None:
            header["monitor"], arrays["monitor"] = monitor.state()
        self.spill.write(self.names[row], header, arrays)
        self.unseat([self.names[row]])

    def _grow(self, rows: int) -> None:
        have = len(self._used)
        self.memories.grow(rows)
        for key, values in self.numbers.items():
            more = np.full(rows - have, self.start if key == "at" else 0, dtype=values.dtype)
            self.numbers[key] = np.concatenate([values, more])
        self._used = np.concatenate([self._used, np.zeros(rows - have, dtype=np.int64)])
        self.names += [""] * (rows - have)
        self.monitors += [None] * (rows - have)
        self._free += range(rows - 1, have - 1, -1)
