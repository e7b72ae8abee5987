"""Blocks of events that are scored and absorbed one after the other: what goes in, what comes out,
and where it stops.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import UserError
from fourpoint.ops.quadrature import Unconverged

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
LARGEST = 700.0  # log-rate; beyond it exp overflows


class Numbers(NamedTuple):
    """Per row: the time of its last event or advance, the integral since its last event,
    log-likelihood and events so far.
    """

    at: Floats
    pending: Floats
    likelihood: Floats
    seen: Counts


class Events(NamedTuple):
    """A block of events; ``features`` (N, F) where the model has event features."""

    times: Floats
    marks: Counts
    features: Floats | None = None

    def part(self, some: slice | NDArray[np.int64]) -> Events:
        """The events at the places ``some``."""
        features = None if self.features is None else self.features[some]
        return Events(self.times[some], self.marks[some], features)


class Scored(NamedTuple):
    """Per event: what it adds to the log-likelihood, the rescaled gap before it, the total rate
    just before, and the share that each of ``marks`` types has in it; without room for shares they
    are not computed.
    """

    density: Floats
    gap: Floats
    rate: Floats
    shares: Floats

    @staticmethod
    def empty(count: int, marks: int = 0) -> Scored:
        """Room for so many events, and for the shares of so many types; NaN where nothing is
        written.
        """
        density, gap, rate = np.full((3, count), np.nan)
        return Scored(density, gap, rate, np.full((count, marks), np.nan))


class Stop(NamedTuple):
    """How many events were absorbed before one that cannot be scored, and why it cannot."""

    done: int
    error: UserError | Unconverged


def not_finite(logs: list[float], integral: float, time: float) -> UserError:
    """The error of a rate that is too large, or not a number."""
    received = f"log-rates {logs[:4]} and the integral {integral} at {time!r}"
    return UserError(
        "a finite rate",
        received,
        "The model explodes at that time: fit it again, or reset the stream.",
    )
