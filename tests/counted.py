"""Work that is counted instead of timed: lines of Python, which are as many on a slow machine, or
on a busy one, as on any other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Count:
    """Lines of Python that were run."""

    lines = 0


@contextmanager
def counted() -> Iterator[Count]:
    """Counts the lines that this thread runs inside, each turn of a loop anew, comprehensions too;
    what others trace goes on afterwards.

    >>> with counted() as few:
    ...     _ = [i for i in range(10)]
    >>> with counted() as many:
    ...     _ = [i for i in range(1000)]
    >>> few.lines < 100 < 1000 <= many.lines < 1100
    True
    """
    count, before = Count(), sys.gettrace()

    def traced(frame: FrameType, what: str, given: Any) -> Any:
        count.lines += what == "line"
        return traced

    sys.settrace(traced)
    try:
        yield count
    finally:
        sys.settrace(before)
