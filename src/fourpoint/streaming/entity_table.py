"""The entity table of a bank: which row each entity has, and what else is known of it; over a
limit, the others on disk.

A row holds a memory (`streaming.rows`), four numbers (its time, the integral since its last event,
its log-likelihood and its events) and perhaps a monitor. Over the limit the entities seen least
recently are evicted: their rows are blank again and free for others, and `streaming.store` has
them. A store that is the state of a feed is written only by :meth:`EntityTable.changes`, between
batches; then rows that it does not have yet stay in memory until it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import UserError
from fourpoint.streaming.monitor_table import MonitorCopies, MonitorTable
from fourpoint.streaming.monitoring import Monitor
from fourpoint.streaming.rows import Memories
from fourpoint.streaming.state import Arrays, check_arrays, damaged
from fourpoint.streaming.store import EntityStore, Row
from fourpoint.streaming.stream import restored_monitor

Rows = NDArray[np.int64]
FIRST = 64  # rows at the beginning
LARGE = 1024  # rows of a table that is costly to copy
RESERVED = 2**30  # bytes of address space that may be reserved for rows to come
MONITOR_BYTES = 3_500  # of a monitor with its window of gaps, in tables that grow by doubling
ENTRY_BYTES = 250  # of an entity's name and its places in the tables


@dataclass(frozen=True)
class Changes:
    """Entities that have changed since they were last written: copies, which another thread may
    write.
    """

    places: Rows  # their rows in the table
    names: list[str]
    arrays: Arrays
    monitors: MonitorCopies

    def rows(self) -> Iterator[tuple[str, dict[str, Any], Arrays]]:
        """Name, header and arrays of each."""
        for i, monitor in enumerate(self.monitors.states()):
            header: dict[str, Any] = {"monitor": None}
            arrays = {key: array[i : i + 1] for key, array in self.arrays.items()}
            if monitor is not None:
                header["monitor"], arrays["monitor"] = monitor
            yield self.names[i], header, arrays


class EntityTable:
    """Entities by name. ``limit`` of them, or as many as one call names, stay in memory; the others
    are in ``store``.

    ``held`` says that the store is written from outside, by :meth:`changes`.
    """

    def __init__(
        self,
        memories: Memories,
        start: float,
        limit: int | None,
        store: EntityStore | None,
        *,
        held: bool,
        marks: int,
        monitors: MonitorTable,
    ) -> None:
        self.memories = memories
        self.start = start
        self.limit = limit
        self.store = store
        self.held = held
        self.row: dict[str, int] = {}
        self.names: list[str] = []  # by row
        self.evictions = 0  # calls in which entities were evicted
        self._reached: str | None = None  # the last name that absent() has read
        self.monitors = monitors  # by row
        self.numbers: Arrays = {
            "at": np.zeros(0),
            "open": np.zeros(0),
            "likelihood": np.zeros(0),
            "count": np.zeros(0, dtype=np.int64),
        }
        # Rows that differ from what is in the store.
        self.changed: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        # In how many changes that are being written each row is.
        self._saving: NDArray[np.int16] = np.zeros(0, dtype=np.int16)
        self._free: list[int] = []
        self._used: Rows = np.zeros(0, dtype=np.int64)  # the call in which each row was last named
        self._calls = 0
        self._marks = marks
        self._count = 0 if store is None else len(store)
        self._grow(FIRST)
        self._like = self.take(np.array([0]))

    def __len__(self) -> int:
        """Entities in memory and on disk."""
        return self._count

    def __contains__(self, name: str) -> bool:
        if name in self.row:
            return True
        return self.store is not None and name in self.store

    @property
    def on_disk(self) -> list[str]:
        """The entities that are on disk alone, in order."""
        if self.store is None:
            return []
        return sorted(name for name in self.store.names() if name not in self.row)

    @property
    def bytes_per_entity(self) -> int:
        """Memory that an entity takes, about; a bound only for models of constant memory."""
        arrays = sum(array.nbytes for array in self._like.values())
        return arrays + self.memories.spare + MONITOR_BYTES + ENTRY_BYTES

    def names_of(self, rows: Rows) -> list[str]:
        """The entities in these rows."""
        return [self.names[row] for row in rows.tolist()]

    def assign(self, entities: Sequence[str]) -> tuple[Rows, list[str]]:
        """The row of each entity, read back or created where it has none; and the names of those
        created.

        Raises :class:`UserError` where the disk fails; then nobody has been created.
        """
        self._calls += 1
        found = list(map(self.row.get, entities))
        within = self.limit is None or len(self.row) <= self.limit
        if within and None not in found:
            return self._used_now(found), []
        self._used_now([row for row in found if row is not None])
        missing = [name for name in dict.fromkeys(entities) if name not in self.row]
        back = self.read(missing)
        self.make_room(len(missing))
        for name in missing:
            self._occupy(name)
        self._put_back(back)
        created = [name for name in missing if name not in back]
        self._count += len(created)
        return self._used_now([self.row[name] for name in entities]), created

    def _used_now(self, rows: Sequence[int | None]) -> Rows:
        """The rows as an array, noted as named in this call."""
        named = np.array(rows, dtype=np.int64)
        self._used[named] = self._calls
        return named

    def _occupy(self, name: str) -> None:
        """Give an entity a free row."""
        row = self._free.pop()
        self.row[name] = row
        self.names[row] = name

    def absent(self, most: int) -> list[str]:
        """Up to ``most`` entities that are on disk alone, in the order of their names."""
        found: list[str] = []
        if self.store is None:
            return found
        while len(found) < most:
            page = self.store.names_after(self._reached, most)
            found += [name for name in page if name not in self.row]
            if not page:
                self._reached = None
                break
            self._reached = page[-1]
        return found

    def remove(self, names: Sequence[str]) -> None:
        """Forget entities that :meth:`assign` has created."""
        if names:
            self._vacate(names)
            self._count -= len(names)

    def _vacate(self, names: Sequence[str]) -> None:
        """Make the rows of entities blank and free."""
        rows = np.array([self.row.pop(name) for name in names])
        self.memories.clear(rows)
        for key, values in self.numbers.items():
            values[rows] = self._initial(key)
        self.changed[rows] = False
        self._saving[rows] = 0
        self.monitors.clear(rows)
        self._free += rows.tolist()

    def _initial(self, key: str) -> float:
        """One of the numbers of an entity without events."""
        if key == "at":
            return self.start
        return 0

    def make_room(self, more: int, *, own: bool = True) -> None:
        """Room for ``more`` entities: those seen least recently are evicted, but for those of this
        call where ``own``.
        """
        needed = len(self.row) + more
        if self.limit is not None and needed > self.limit:
            idle = np.fromiter(self.row.values(), dtype=np.int64, count=len(self.row))
            if own:
                earlier = self._used[idle] < self._calls
                idle = idle[earlier]
            if self.held:
                in_store = ~self.changed[idle] & (self._saving[idle] == 0)
                idle = idle[in_store]
            oldest_first = np.argsort(self._used[idle], kind="stable")
            over = needed - self.limit
            self._evict(idle[oldest_first[:over]])
        if more > len(self._free):
            self._grow(self._capacity(len(self.row) + more))

    def _capacity(self, needed: int) -> int:
        """How many rows to have where ``needed`` are not there.

        Tables double, and are copied; large ones grow to the limit at once, where rows that are not
        used take no memory, so that a burst of new entities does not wait for large copies.
        """
        rows = max(2 * len(self._used), needed)
        if self.limit is None or rows <= LARGE or not self.memories.reserves:
            return rows
        at_limit = self.limit + LARGE
        reserved = RESERVED // self.bytes_per_entity
        return max(rows, min(at_limit, reserved))

    def take(self, rows: Rows) -> Arrays:
        """Memories and numbers of rows, copied."""
        found = dict(self.memories.take(rows))
        for key, values in self.numbers.items():
            found[key] = values[rows]
        return found

    def put(self, rows: Rows, arrays: Arrays, monitors: Sequence[Monitor | None] = ()) -> None:
        """What :meth:`take` gave, and monitors where there are any."""
        memories = dict(arrays)
        for key, values in self.numbers.items():
            values[rows] = memories.pop(key)
        self.memories.put(rows, memories)
        for row, monitor in zip(rows.tolist(), monitors, strict=False):
            self.monitors[row] = monitor

    def read(self, names: Sequence[str]) -> dict[str, tuple[Arrays, Monitor | None]]:
        """What is on disk of entities, checked; those that are not there are left out."""
        if self.store is None or not names:
            return {}
        try:
            rows = self.store.read(names)
        except OSError as error:
            raise UserError(
                "a file of entities that can be read",
                f"{error}",
                "Restore the bank from its last state.",
            ) from error
        return {name: self._checked(name, row) for name, row in rows.items()}

    def read_all(self) -> None:
        """Read every entity on disk, for models whose rows grow: the widest first, since the others
        fit into their room.
        """
        found = self.read(self.on_disk)

        def size(name: str) -> int:
            arrays, _ = found[name]
            return sum(array.nbytes for array in arrays.values())

        for name in sorted(found, key=size, reverse=True):
            self.make_room(1)
            self._occupy(name)
            self._put_back({name: found[name]})

    def number(self, key: str, entity: str) -> Any:
        """One of the numbers of an entity, wherever it is."""
        if entity in self.row:
            row = self.row[entity]
            return self.numbers[key][row]
        found = self.read([entity])
        if not found:
            raise UserError("an entity of this bank", f"{entity!r}", "See bank.entities.")
        arrays, _ = found[entity]
        return arrays[key][0]

    def changes(self) -> Changes:
        """Copies of all rows that differ from the store; :meth:`written` must follow for each, in
        order.
        """
        found = self.copies(np.flatnonzero(self.changed))
        self._saving[found.places] += 1
        self.changed[found.places] = False
        return found

    def written(self, changes: Changes, *, success: bool) -> None:
        """Whether what :meth:`changes` gave is in the store now."""
        self._saving[changes.places] -= 1
        if not success:
            self.changed[changes.places] = True

    def copies(self, rows: Rows) -> Changes:
        """Copies of rows, by whole arrays: work per entity is left to the thread that writes."""
        return Changes(
            places=rows,
            names=self.names_of(rows),
            arrays=self.take(rows),
            monitors=self.monitors.copied(rows),
        )

    def _evict(self, rows: Rows) -> None:
        if self.store is None or not len(rows):
            return
        names = self.names_of(rows)
        if not self.held:
            try:
                self.store.write(self.copies(rows[self.changed[rows]]).rows())
            except OSError as error:
                raise UserError(
                    "a folder to spill to with room for more",
                    f"{error}",
                    "Make room, or raise the limit.",
                ) from error
        self.evictions += 1
        self._vacate(names)

    def _put_back(self, back: dict[str, tuple[Arrays, Monitor | None]]) -> None:
        if not back:
            return
        rows = []
        parts = []
        monitors = []
        for name, (arrays, monitor) in back.items():
            rows.append(self.row[name])
            parts.append(arrays)
            monitors.append(monitor)
        whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        self.put(np.array(rows, dtype=np.int64), whole, monitors)

    def _checked(self, name: str, row: Row) -> tuple[Arrays, Monitor | None]:
        """The arrays and the monitor of an entity, which are those of a row of this bank."""
        header, arrays = row
        numbers = header.get("monitor")
        gaps = arrays.pop("monitor", None)
        monitor: Monitor | None = None
        try:
            self.check(arrays, 1)
            if numbers is not None or gaps is not None:
                monitor = restored_monitor(numbers, gaps)
        except UserError as error:
            raise UserError(
                f"{error.expected}, of entity {name[:40]!r}", error.received, error.remedy
            ) from None
        return arrays, monitor

    def check(self, arrays: Arrays, rows: int) -> None:
        """Refuse arrays of so many rows that the model cannot have."""
        totals = arrays.get("likelihood", np.zeros(0))
        # The log-likelihood of an event that could not happen is minus infinity.
        possible = np.where(totals == -np.inf, 0.0, totals)
        like = {key: np.repeat(array, rows, axis=0) for key, array in self._like.items()}
        check_arrays(
            {**arrays, "likelihood": possible},
            like,
            fixed=self.memories.fixed,
            marks=self._marks,
        )
        if any(len(array) != rows for array in arrays.values()):
            raise damaged(f"arrays of {rows:,} rows", "arrays of other lengths")
        negative = (arrays["count"] < 0) | (arrays["open"] < 0)
        early = arrays["at"] < self.start
        if (negative | early).any():
            raise damaged("counts and integrals of at least 0, and times after the start", "others")

    def _grow(self, rows: int) -> None:
        before = len(self._used)
        more = rows - before
        self.memories.grow(rows)
        for key, values in self.numbers.items():
            self.numbers[key] = _lengthened(values, more, self._initial(key))
        self.changed = _lengthened(self.changed, more)
        self._saving = _lengthened(self._saving, more)
        self._used = _lengthened(self._used, more)
        self.names += [""] * more
        self.monitors.grow(rows)
        self._free += range(rows - 1, before - 1, -1)


def _lengthened(values: NDArray[Any], more: int, value: float = 0) -> NDArray[Any]:
    """An array with so many more numbers, all equal to ``value``."""
    new = np.full(more, value, dtype=values.dtype)
    return np.concatenate([values, new])
