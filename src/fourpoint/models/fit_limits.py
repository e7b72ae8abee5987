"""Time limit and progress of a fit without gradient steps.

`PointProcess.maximum_likelihood` and `keep_best` take data alone. Fits that may take long ask
:func:`current` how much time is left and report how far they are; `training.run` sets both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class FitLimits:
    """When a fit should end, by `time.monotonic`, and where it reports its progress: what it does,
    and the share that is done.
    """

    until: float = math.inf
    report: Callable[[str, float], None] = lambda text, share: None

    @property
    def left(self) -> float:
        """Seconds left, infinite without a limit."""
        return self.until - time.monotonic()

    @contextmanager
    def part(self, first: float, last: float, share: float = 1.0) -> Iterator[FitLimits]:
        """Limits of a part of the work, which has ``share`` of the time left and whose progress
        runs from ``first`` to ``last`` of the whole.
        """
        until = self.until
        if share < 1 and math.isfinite(until):
            until = time.monotonic() + share * max(0.0, self.left)

        def report(text: str, done: float) -> None:
            self.report(text, first + (last - first) * done)

        with limited(FitLimits(until, report)) as inner:
            yield inner


_limits: ContextVar[FitLimits | None] = ContextVar("fit_limits", default=None)


def current() -> FitLimits:
    """The limits that are set; none by default.

    >>> current().left
    inf
    """
    return _limits.get() or FitLimits()


@contextmanager
def limited(limits: FitLimits) -> Iterator[FitLimits]:
    """Set the limits meanwhile."""
    token = _limits.set(limits)
    try:
        yield limits
    finally:
        _limits.reset(token)
