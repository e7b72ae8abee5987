"""How long cells take: rough costs to begin with, and what was seen once some have ended.

The longest cells have to start first, so that several workers end together, and where time is
limited none should start that cannot end. A cell's cost is in processor seconds of the full setting
on one thread; a setting or a machine that is slower or faster changes all of them by about one
factor, which is learned from the cells that have ended.
"""

from __future__ import annotations

from collections.abc import Mapping

from fourpoint.reproduce.plan import Cell

# Seconds of a fit with its scores on hawkes, times a factor for other data; and of an experiment.
MODELS: Mapping[str, float] = {
    "odapp-paper-nn": 3500,
    "dapp-paper-nn": 3200,
    "odapp": 240,
    "odapp-paper": 210,
    "dapp": 170,
    "dapp-paper": 160,
    "odapp-paper-dot": 80,
    "nhp": 45,
    "sahp": 42,
    "dapp-paper-dot": 34,
    "rmtpp": 5,
    "hawkes": 0.5,
    "spline-poisson": 0.3,
    "poisson": 0.1,
}
DATA: Mapping[str, float] = {
    "self_correcting": 0.5,
    "nonhomogeneous1": 2.1,
    "nonhomogeneous2": 1.1,
    "bookorder_w50": 1.5,
    "memetracker": 0.8,
    "pems_congestion": 2,
    "nyc_delays": 6,
    "nyc_times": 3,
    "readmission": 0.1,
    "calls911_208": 0.4,
}
PAIRS = (
    "odapp-paper-nn",
    "dapp-paper-nn",
    "odapp",
)  # models that look at all pairs of events: twice as long costs four times as much
MEMORY: Mapping[str, float] = {
    "dapp-paper": 60,
    "dapp": 13,
    "sahp": 5,
    "nhp": 4,
    "rmtpp": 0.4,
}  # per event in between
EXPERIMENTS: Mapping[str, float] = {
    "features": 20,
    "thinning": 13,
    "proposition2": 12,
    "proposition1": 2,
}


class Pace:
    """What cells are expected to take.

    >>> pace, slow, quick = (
    ...     Pace(),
    ...     Cell("fit", "odapp", "hawkes", 0),
    ...     Cell("fit", "poisson", "hawkes", 0),
    ... )
    >>> pace.cost(slow) > pace.cost(quick), pace.fits(slow, 1.0)  # nothing is known yet
    (True, True)
    >>> pace.learn(slow, 50.0)
    >>> (
    ...     pace.fits(slow, 1.0),
    ...     pace.fits(quick, 1.0),
    ...     round(pace.seconds(Cell("fit", "odapp", "hawkes", 1))),
    ... )
    (False, True, 50)
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], list[float]] = {}
        self._seconds = self._costs = 0.0

    def cost(self, cell: Cell) -> float:
        """Before anything is seen: processor seconds of the full setting, roughly."""
        if cell.kind == "theory" or not cell.model:
            return EXPERIMENTS[cell.data]
        if cell.data.startswith("memory-"):
            return MEMORY[cell.model] * (10 + float(cell.data.removeprefix("memory-")))
        return MODELS[cell.model] * DATA.get(cell.data, 1.0) ** (2 if cell.model in PAIRS else 1)

    def learn(self, cell: Cell, seconds: float) -> None:
        """A cell has ended after so many seconds."""
        self._seen.setdefault((cell.kind, cell.model, cell.data), []).append(seconds)
        self._seconds, self._costs = self._seconds + seconds, self._costs + self.cost(cell)

    def seconds(self, cell: Cell) -> float:
        """What it will take: as long as other seeds of it did, else by its cost; 0 while nothing is
        known.
        """
        alike = self._seen.get((cell.kind, cell.model, cell.data))
        if alike:
            return max(alike)
        return self.cost(cell) * self._seconds / self._costs if self._costs else 0.0

    def fits(self, cell: Cell, left: float) -> bool:
        """Whether it is expected to end within ``left`` seconds."""
        return left > 0 and self.seconds(cell) <= left
