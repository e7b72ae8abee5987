"""Numbers over seeds: their mean, an interval for it, and who beats whom.

With n seeds the interval is mean +- t s / sqrt(n), t being Student's 97.5% quantile with n - 1
degrees of freedom. With one seed there is no interval, and a comparison says which is larger, not
that it would be so again. Two models are compared seed by seed, since they were trained on the same
data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fourpoint.reproduce.cells import DONE, FAILED, NO_DATA, Record


@dataclass(frozen=True)
class Tally:
    """One metric of one model on one data set: values by seed, and how the cells ended that have
    none.
    """

    values: dict[int, float]
    status: str

    @property
    def mean(self) -> float:
        """Over seeds; NaN where there is none."""
        return sum(self.values.values()) / len(self.values) if self.values else math.nan

    @property
    def half(self) -> float:
        """Half the width of the interval; NaN with fewer than two seeds."""
        return half_width(list(self.values.values()))

    def text(self, digits: int = 3) -> str:
        """The mean and its interval, or how it ended."""
        if not self.values:
            return self.status
        return number(self.mean, digits) + (
            "" if math.isnan(self.half) else f" \u00b1 {number(self.half, 2)}"
        )


def tally(records: Iterable[Record], model: str, data: str, metric: str) -> Tally:
    """The values of ``metric`` over the seeds of a fit."""
    mine = [r for r in records if r["kind"] == "fit" and r["model"] == model and r["data"] == data]
    found = {
        int(r["seed"]): float(r["metrics"][metric])
        for r in mine
        if r["status"] == DONE and metric in r.get("metrics", {})
    }
    ends = {r["status"] for r in mine}
    return Tally(found, next((end for end in (FAILED, NO_DATA) if end in ends), "not run"))


def difference(a: Tally, b: Tally) -> tuple[float, float]:
    """Mean and half-width of a - b, seed by seed; NaN where no seed has both."""
    gaps = [a.values[seed] - b.values[seed] for seed in a.values if seed in b.values]
    return (sum(gaps) / len(gaps), half_width(gaps)) if gaps else (math.nan, math.nan)


def half_width(values: list[float]) -> float:
    """t s / sqrt(n).

    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    n = len(values)
    if n < 2:
        return math.nan
    from scipy.stats import t

    mean = sum(values) / n
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return float(t.ppf(0.975, n - 1)) * spread / math.sqrt(n)


def number(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits, as people write it.

    >>> number(0.01234), number(12.3456), number(1672.3), number(0.0)
    ('0.0123', '12.3', '1,672', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "\u2013"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}".replace("-", "\u2212")
