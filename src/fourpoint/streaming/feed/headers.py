"""The header of a feed in columns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Header:
    """The first line of a feed in columns: its separator, the line, and where the columns are;
    empty for JSON Lines.
    """

    separator: str = ""
    line: str = ""
    width: int = 0
    time: int = 0
    mark: int | None = None
    by: int | None = None
