"""The calibration of a model: levels at which its prediction regions cover as they promise.

`inference.calibration` finds them, a model keeps them as ``model.calibration``, forecasts and
streams use them, and `model.json` holds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fourpoint.ops.conformal import AdaptiveLevels, Levels, SplitLevels
from fourpoint.report.printing import Printed, text_table

if TYPE_CHECKING:
    from rich.table import Table

Floats = NDArray[np.float64]
Kind = Literal["central", "shortest", "pair"]
KINDS: tuple[Kind, ...] = ("central", "shortest", "pair")
REGIONS = ("next_time", "central", "shortest", "pair")
SHOWN = 0.9


@dataclass(frozen=True)
class CountLevels:
    """Levels of the number of events in each of W windows, which together are a horizon."""

    horizon: float
    windows: tuple[Levels, ...]


@dataclass(frozen=True, repr=False)
class Calibration(Printed):
    """What `calibrate` found: which levels to use so that regions cover as they promise."""

    next_time: Levels
    central: Levels
    shortest: Levels
    pair: Levels
    counts: tuple[CountLevels, ...]
    sequences: int
    events: int

    @property
    def method(self) -> str:
        """ "split" or "adaptive"."""
        return "split" if isinstance(self.next_time, SplitLevels) else "adaptive"

    def time_level(self, level: float) -> float:
        """The level at which to take a quantile of the next event's time instead of ``level``,
        between 0 and 1.
        """
        found = self.next_time
        raw = found.upper(level) if level >= 0.5 else found.lower(level)
        return min(1.0, max(0.0, raw))

    def region_level(self, kind: Kind, level: float) -> float:
        """The probability that a region has to have under the model to cover with ``level``."""
        levels = {"central": self.central, "shortest": self.shortest, "pair": self.pair}[kind]
        return min(1.0, max(0.0, levels.upper(level)))

    def count_levels(self, horizon: float, windows: int) -> tuple[Levels, ...] | None:
        """The levels for windows of this horizon; None if they were not calibrated."""
        for known in self.counts:
            same = math.isclose(known.horizon, horizon, rel_tol=1e-6)
            if same and len(known.windows) == windows:
                return known.windows
        return None

    def after(self, integrals: Iterable[float]) -> Calibration:
        """Adaptive levels of the time after further events, whose compensator grew by ``integrals``
        since the event before; split levels stay as they are.
        """
        if isinstance(self.next_time, SplitLevels) or isinstance(self.central, SplitLevels):
            return self
        u = np.array([-math.expm1(-gap) for gap in integrals])
        return replace(
            self,
            next_time=self.next_time.after(u),
            central=self.central.after(np.abs(2 * u - 1)),
            events=self.events + len(u),
        )

    def stream_levels(self) -> dict[str, Any]:
        """What a stream changes, for its state."""
        return {
            "events": self.events,
            "next_time": plain_levels(self.next_time),
            "central": plain_levels(self.central),
        }

    def with_stream_levels(self, found: Any) -> Calibration:
        """Itself with what :meth:`stream_levels` wrote; ValueError, TypeError or KeyError for
        anything else.
        """
        if set(found) != {"events", "next_time", "central"}:
            raise ValueError("other entries")
        time, central = (read_levels(found[name]) for name in ("next_time", "central"))
        if not isinstance(time, AdaptiveLevels) or not isinstance(central, AdaptiveLevels):
            raise ValueError("adaptive levels expected")
        events = _whole(found["events"])
        return replace(self, next_time=time, central=central, events=events)

    def guarantee(self) -> str:
        """What the levels promise, in a sentence."""
        if isinstance(self.next_time, AdaptiveLevels):
            return (
                "adaptive: over the log so far the share of covered events is within "
                f"{self.next_time.bound():.1%} of the stated probability, whatever the log"
            )
        return (
            f"split conformal from {self.sequences:,} sequences: an event of a new exchangeable "
            "sequence is covered with at least the stated probability"
        )

    def summary(self) -> dict[str, Any]:
        """The method and the levels for regions of 90%, as JSON can hold them."""
        levels = {kind: self.region_level(kind, SHOWN) for kind in KINDS}
        return {
            "method": self.method,
            "guarantee": self.guarantee(),
            "sequences": self.sequences,
            "events": self.events,
            "level": SHOWN,
            "levels": {"before": self.time_level(SHOWN)} | levels,
            "horizons": [one.horizon for one in self.counts],
        }

    def to_dict(self) -> dict[str, Any]:
        """As `model.json` holds it."""
        head = {"sequences": self.sequences, "events": self.events}
        regions = {name: plain_levels(getattr(self, name)) for name in REGIONS}
        counts = [
            {"horizon": one.horizon, "windows": [plain_levels(levels) for levels in one.windows]}
            for one in self.counts
        ]
        return head | regions | {"counts": counts}

    @classmethod
    def from_dict(cls, found: Any) -> Calibration:
        """What :meth:`to_dict` wrote; ValueError, TypeError or KeyError for anything else."""
        time, central, shortest, pair = (read_levels(found[name]) for name in REGIONS)
        if len({type(levels) for levels in (time, central, shortest, pair)}) > 1:
            raise ValueError("regions of one kind of calibration expected")
        counts = tuple(
            CountLevels(_positive(one["horizon"]), tuple(read_levels(w) for w in one["windows"]))
            for one in found["counts"]
        )
        looked_at = (_whole(found["sequences"]), _whole(found["events"]))
        return cls(time, central, shortest, pair, counts, *looked_at)

    def __rich__(self) -> Table:
        table = text_table(
            "Calibration", title_justify="left", box=None, pad_edge=False, show_header=False
        )
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        table.add_row("guarantee", self.guarantee())
        table.add_row("events", f"{self.events:,} of {self.sequences:,} sequences")
        levels = {
            "upper bound of the next time": self.time_level(SHOWN),
            "central interval": self.region_level("central", SHOWN),
            "shortest region": self.region_level("shortest", SHOWN),
            "region of time and mark": self.region_level("pair", SHOWN),
        }
        for name, level in levels.items():
            table.add_row(f"{SHOWN:.0%} {name}", f"has the model's probability {level:.4f}")
        for one in self.counts:
            parts = "one window" if len(one.windows) == 1 else f"{len(one.windows)} windows"
            table.add_row("counts", f"up to {one.horizon:g}, in {parts}")
        return table


# ---------------------------------------------------------------------- as JSON


def plain_levels(levels: Levels) -> dict[str, Any]:
    """Levels as JSON can hold them."""
    if isinstance(levels, AdaptiveLevels):
        return asdict(levels)
    return {
        "scores": levels.scores.tolist(),
        "shares": levels.shares.tolist(),
        "sequences": levels.sequences,
    }


def read_levels(found: Any) -> Levels:
    """What :func:`plain_levels` gave; ValueError, TypeError or KeyError for anything else."""
    if "at" in found:
        levels = _finite(found["levels"])
        at = _finite(found["at"])
        inside = bool(((levels > 0) & (levels < 1) & (np.diff(levels, prepend=0) > 0)).all())
        if len(levels) != len(at) or not inside:
            raise ValueError("one number for each level, in order")
        return AdaptiveLevels(tuple(levels.tolist()), tuple(at.tolist()), _whole(found["count"]))
    scores = _finite(found["scores"])
    shares = _finite(found["shares"])
    sequences = _whole(found["sequences"])
    sound = len(scores) == len(shares) > 0 and bool((np.diff(scores) >= 0).all())
    positive = bool(((shares > 0) & (shares <= 1)).all())
    if not (sound and positive and math.isclose(shares.sum(), sequences, rel_tol=1e-6)):
        raise ValueError("scores in ascending order, and shares that are 1 for each sequence")
    return SplitLevels(scores, shares, sequences)


def _finite(found: object) -> Floats:
    numbers = np.array(found, dtype=np.float64)
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError("a list of finite numbers")
    return numbers


def _whole(found: object) -> int:
    if type(found) is not int or not 0 <= found < 2**62:
        raise ValueError("a whole number")
    return found


def _positive(found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError("a number")
    if not (math.isfinite(found) and found > 0):
        raise ValueError("a positive number")
    return float(found)
