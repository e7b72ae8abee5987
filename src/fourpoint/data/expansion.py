"""One limit on what a file may expand into, for every reader, checked while it is read.

A packed file says nothing of its content: 50 kB may stand for gigabytes, by compression, by
dictionaries and runs, or by naming one thing again and again. Readers count what they unpack and
ask :class:`Expansion` before they go on; the limit is :func:`fourpoint.memory.memory_limit`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from fourpoint.events import EventDataError
from fourpoint.memory import VARIABLE, memory_limit, readable_size

NUMBER = 8  # bytes of a value in a column of numbers


class Expansion:
    """The memory that one file may take. ``count`` adds to it, and ``check`` compares a total that
    is known.
    """

    def __init__(self, source: object, what: str = "a file of events") -> None:
        self.source, self.what = source, what
        self.limit = memory_limit()
        self.total = 0
        self._pools = (pa.default_memory_pool(), pa.system_memory_pool())
        self._held = self._allocated()

    def count(self, size: int) -> None:
        """So many bytes more are about to be taken."""
        self.total += size
        self.check(self.total)

    def check(self, total: float) -> None:
        """Refuse a total above the limit."""
        if total > self.limit:
            raise self.error(total)

    def check_arrow(self) -> None:
        """Compare what Arrow has allocated since this object was made with the limit."""
        self.check(self._allocated() - self._held)

    def check_rows(self, rows: int, columns: int) -> None:
        """Refuse more rows than fit: each takes a number per column, and its sequence and place
        among the others.
        """
        self.check(NUMBER * rows * (columns + 2))

    def check_json(self, text: bytes | str) -> None:
        """Refuse JSON whose objects, lists and values would not fit: an empty list of two
        characters takes a hundred bytes.
        """
        total = len(text)
        for mark, size in (("{", 240), ("[", 64), (",", 48), (":", 48)):
            total += size * (
                text.count(mark) if isinstance(text, str) else text.count(mark.encode())
            )
        self.check(total)

    def error(self, total: float) -> EventDataError:
        """The error for a file that expands into ``total`` bytes, or more."""
        size = _size(self.source)
        packed = f", whose {readable_size(size)}" if size else ", which"
        received = (
            f"{self.source}{packed} expand{'' if size else 's'} into {readable_size(total)} or more"
        )
        remedy = (
            f"If you trust it, raise the limit with --memory-limit or {VARIABLE}; otherwise "
            "split it, or do not read it."
        )
        return EventDataError(
            f"{self.what} that expands into at most {readable_size(self.limit)}", received, remedy
        )

    def _allocated(self) -> int:
        return sum(pool.bytes_allocated() for pool in self._pools)


def _size(source: object) -> int:
    try:
        return Path(str(source)).stat().st_size
    except (OSError, ValueError):
        return 0
