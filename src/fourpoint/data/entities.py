"""Values of sequences: columns of the table of entities, or of the events.

A log has one row per event. What is known of a customer, a patient or a machine as a whole (its
plan, when it was first seen, until when it was followed) is in a table of entities, one row for
each,

    customer,plan,first_contact
    c1,basic,2024-01-03
    c2,pro,2024-02-11

which also lists those without any event: they belong to the data, since without them rates are too
high. Where there is no such table, a column of the events serves whose value is the same in all
rows of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.columns import Columns, open_columns
from fourpoint.data.grouping import Group
from fourpoint.data.opened import Table
from fourpoint.data.roles import Roles, plain_name
from fourpoint.data.tables import open_table
from fourpoint.events import UserError

IDS = ("seq_id", "sequence", "sequence_id", "id")  # where it is not called as in the events
WINDOWS = (("start", "stop"), ("start", "end"), ("window_start", "window_stop"))


class Entities:
    """A table with one row for each sequence: ``ids`` of its rows, and columns by name.

    Raises :class:`EventDataError` if it has no column of ids, or an id has two rows.
    """

    def __init__(self, source: object, roles: Roles) -> None:
        if roles.own or roles.sequence is None:
            what = "a file in our own format" if roles.own else "events without such a column"
            raise UserError(
                "events with a column of sequences, for a table of entities",
                what,
                "Name the column with sequence= (--sequence), or leave out entities= (--entities).",
            )
        self.table = open_table(source)
        self.names = list(self.table.schema.names)
        wanted = [plain_name(roles.sequence), *IDS]
        found = [name for word in wanted for name in self.names if plain_name(name) == word]
        if not found:
            raise self.table.error(
                f"a column {roles.sequence!r} in the table of entities, as the events have",
                f"{', '.join(map(repr, self.names)) or 'no columns'}",
                "Rename the column of ids.",
            )
        self.id = found[0]
        numbered, self.ids = open_columns(self.table, [self.id]).labels(self.id)
        code = numbered.code()
        counts = np.bincount(code, minlength=len(self.ids))
        if (counts > 1).any():
            twice = int(np.argmax(counts > 1))
            row = int(np.flatnonzero(code == twice)[1])
            raise self.table.error(
                f"one row for each value of {self.id!r} in the table of entities",
                f"{self.ids[twice]!r} again at {self.table.place(row)}",
                "Keep one row; values that change with time are a table of covariates "
                "(covariates=, --covariates).",
            )

    def joined(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        """The sequences of the events, then those without events. Each needs a row."""
        known = set(self.ids)
        for id in ids:
            if id not in known:
                raise self.table.error(
                    "a row in the table of entities for each sequence of the events",
                    f"none for {id!r}",
                    "Add a row, or leave its events out.",
                )
        seen = set(ids)
        others = [id for id in self.ids if id not in seen]
        return (*ids, *others)

    def window(self) -> tuple[str, str] | None:
        """The columns that are called start and stop, if there are any."""
        place = {plain_name(name): name for name in self.names}
        for start, stop in WINDOWS:
            if start in place and stop in place:
                return place[start], place[stop]
        return None


def ids_in_common(events: Table, entities: object) -> str | None:
    """The column of ``events`` that is called like the first column of a table of entities; None
    without such a table or column.
    """
    if entities is None:
        return None
    names = open_table(entities).schema.names
    if not names:
        return None
    first = plain_name(names[0])
    for name in events.schema.names:
        if plain_name(name) == first:
            return name
    return None


@dataclass(frozen=True)
class SequenceColumns:
    """Columns that have one value for each sequence: those of the table of entities, then those of
    the events.
    """

    table: Table
    entities: Entities | None = None

    def named(self, wanted: object) -> str | None:
        """The column that is called so, in any spelling; None if there is none."""
        if not isinstance(wanted, str):
            return None
        of_entities = [] if self.entities is None else self.entities.names
        for names in (of_entities, self.table.schema.names):
            if wanted in names:
                return wanted
            same = [name for name in names if plain_name(name) == plain_name(wanted)]
            if len(same) == 1:
                return same[0]
        return None

    def of_entities(self, name: str) -> bool:
        """Whether a column is one of the table of entities."""
        if self.entities is None:
            return False
        return name in self.entities.names

    def opened(self, name: str, events: Columns) -> Columns:
        """Where a column is to be taken from: the table of entities, or the ``events``."""
        if self.entities is None or not self.of_entities(name):
            return events
        return open_columns(self.entities.table, [name])

    def rows(
        self, name: str, column: NDArray[Any], group: Group, ids: tuple[str, ...]
    ) -> NDArray[np.int64]:
        """The row of its table that has the value of each sequence in ``column``."""
        if self.entities is not None and self.of_entities(name):
            place = {id: row for row, id in enumerate(self.entities.ids)}
            return np.array([place[id] for id in ids], dtype=np.int64)
        return constant_rows(self.table, group, ids, column, name)


def constant_rows(
    table: Table, group: Group, ids: tuple[str, ...], column: NDArray[Any], name: str
) -> NDArray[np.int64]:
    """The first row of each sequence, whose value of ``column`` all of its rows have.

    Raises :class:`EventDataError` with a sequence that has two values, or no row.
    """
    begins = group.offsets[:-1]
    lengths = np.diff(group.offsets)
    if (lengths == 0).any():
        empty = int(np.argmin(lengths))
        raise table.error(
            f"a value of column {name!r} for each sequence",
            f"none for sequence {ids[empty]}, which has no events",
            "Add the column to the table of entities (entities=, --entities).",
        )
    values = group.arrange(column)
    first = values[begins]
    wrong = np.flatnonzero(values != np.repeat(first, lengths))
    if len(wrong):
        i = int(wrong[0])
        sequence = group.sequence(i)
        raise table.error(
            f"one value of column {name!r} in each sequence",
            f"{first[sequence]} and {values[i]} in sequence {ids[sequence]} "
            f"({table.place(group.row(i))})",
            "Give all rows of a sequence the same value.",
        )
    rows = group.arrange(np.arange(len(column)))
    return rows[begins]
