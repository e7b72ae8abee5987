"""What a model's folder says of the data that it was fitted to, as far as a feed needs it: rate,
unit, origin and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fourpoint.log_format import LogFormat

LARGEST = 1e300  # no window or count is as large


@dataclass(frozen=True)
class Trained:
    """The training window, the number of events and sequences in it, the unit of time and the
    columns of the log.

    What was not saved is None.

    >>> trained = Trained(start=0.0, stop=10.0, events=600, sequences=20)
    >>> trained.rate(pooled=False), trained.rate(pooled=True)
    (3.0, 60.0)
    """

    start: float | None = None
    stop: float | None = None
    events: int | None = None
    sequences: int | None = None
    unit: str = ""
    log: LogFormat | None = None

    @staticmethod
    def from_about(about: Mapping[str, Any]) -> Trained:
        """What `fit` saved beside the model."""
        numbers = {
            name: _number(about.get(name)) for name in ("start", "stop", "events", "sequences")
        }
        return Trained(
            numbers["start"],
            numbers["stop"],
            None if numbers["events"] is None else int(numbers["events"]),
            None if numbers["sequences"] is None else int(numbers["sequences"]),
            str(about.get("unit") or ""),
            None if about.get("log") is None else LogFormat.from_dict(about["log"]),
        )

    def rate(self, *, pooled: bool) -> float | None:
        """Events per unit of time in one sequence, or of all of them together; None where
        unknown.
        """
        if self.start is None or self.stop is None or not self.events or not self.sequences:
            return None
        total = self.events / (self.stop - self.start) if self.stop > self.start else 0.0
        return (total if pooled else total / self.sequences) or None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        return None
    return float(value)
