r"""Effects of the calendar and of covariates on a rate: log-linear terms that depend on time alone.

    f_r(t) = sum over calendar terms of s_r(phase of t) + sum_c weight_cr (x_c(t) - mean_c) / sd_c

for R curves. Phases come from absolute local time, so that a term continues past the training
window, and across changes of daylight saving. The terms of the calendar are

    hour        a periodic cubic spline of the time of day, 24 intervals
    weekday     one number for each day of the week
    week        a periodic cubic spline of the time of the week, 56 intervals: rhythms of the day
                that differ between days
    month       a periodic cubic spline of the time of the year, 12 intervals
    quarterhour one number for each quarter of an hour of the day: opening hours and other jumps
    weekhour    one number for each hour of the week: the same, where days differ
    monthday    one number for each day of the month, 1 to 31: paydays, invoices
    trend       a cubic spline of time itself, an interval for about two weeks: a level that drifts;
                constant before and after the training time
    holidays:XX one number for public holidays of a country (package ``holidays``)

Covariates are the step functions of `events.context`. At every time f is a sparse sum of K basis
functions, which are piecewise cubic, so that bounds and breakpoints are exact.

Axes: B sequences, T any shape of times, K basis functions, R curves, L basis functions that are not
0 at one time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import BatchContext, BatchSteps, Context, Dataset, UserError
from fourpoint.events.dates import SECONDS

DAY = 86400.0
WEEK = 7 * DAY
YEAR = 365.2425 * DAY
MONDAY = 4 * DAY  # 1970-01-05, the first Monday after 1970-01-01
CUT = DAY / 4  # integrals are cut so often where a spline has a period of a day or a week
FIRST_YEAR, LAST_YEAR = 1970, 2100  # of the table of time zone offsets
FURTHER_YEARS = 20  # for which holidays are kept beyond the data


@dataclass(frozen=True)
class Periodic:
    """A term of the calendar: its period in seconds, its intervals, and whether it is a spline or a
    step function; phases count from ``origin``, in local seconds since 1970.
    """

    period: float
    intervals: int
    smooth: bool
    origin: float = 0.0

    @property
    def basis(self) -> int:
        """Basis functions that are not 0 at one time."""
        return 4 if self.smooth else 1


PERIODIC = {
    "hour": Periodic(DAY, 24, True),
    "weekday": Periodic(WEEK, 7, False, MONDAY),
    "week": Periodic(WEEK, 56, True, MONDAY),
    "month": Periodic(YEAR, 12, True),
    "quarterhour": Periodic(DAY, 96, False),
    "weekhour": Periodic(WEEK, 168, False, MONDAY),
}
MONTHDAY = "monthday"
MONTHDAYS = 31
HOLIDAYS = "holidays:"
TREND = "trend"
TREND_INTERVAL = 14 * DAY  # of its spline, about
MOST_INTERVALS = 26


@dataclass(frozen=True)
class EffectsSpec:
    """Which effects a model has, as JSON can hold it.

    Args:
        calendar: names of terms: hour, weekday, week, month, quarterhour, weekhour, monthday,
            trend, holidays:COUNTRY.
        zone: the time zone of local time; None: time as it is written.
        seconds: seconds in the data's unit of time.
        covariates: names of the columns of `Context.covariates`.
        mean, scale: what is subtracted from each covariate, and what it is then divided by.
        holidays: public holidays as days since 1970-01-01.
        origin: seconds from 1970 (UTC) to time 0 of all training sequences, by which a stream knows
            its dates; None if they have different ones.
        trend: first knot of the trend in local seconds since 1970, seconds between knots, and
            number of intervals.

    >>> EffectsSpec.from_dict(EffectsSpec(("hour",), seconds=60.0).to_dict()).calendar
    ('hour',)
    """

    calendar: tuple[str, ...] = ()
    zone: str | None = None
    seconds: float = 1.0
    covariates: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    holidays: tuple[int, ...] = field(default=(), repr=False)
    origin: float | None = None
    trend: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in self.calendar:
            check_term(name)
        if not _is_trend(self.trend, TREND in self.calendar):
            raise UserError(
                f"knots of a trend of 1 to {MOST_INTERVALS} intervals, and none without one",
                f"trend={self.trend} with the terms {', '.join(self.calendar)}",
                "Build the effects with effects_of.",
            )
        if not len(self.covariates) == len(self.mean) == len(self.scale):
            raise UserError(
                "a mean and a scale of every covariate",
                f"{len(self.covariates)}, {len(self.mean)} and {len(self.scale)}",
                "Build the effects with effects_of.",
            )
        if not self.seconds > 0:
            raise UserError("a unit of time in seconds", f"{self.seconds}", "Give a unit.")

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        found: dict[str, Any] = {}
        for name, value in asdict(self).items():
            found[name] = list(value) if isinstance(value, tuple) else value
        return found

    @staticmethod
    def from_dict(values: dict[str, Any]) -> EffectsSpec:
        """What :meth:`to_dict` gave."""
        arguments: dict[str, Any] = {}
        for name, value in values.items():
            arguments[name] = tuple(value) if isinstance(value, list) else value
        try:
            return EffectsSpec(**arguments)
        except TypeError as error:
            raise UserError(
                "the effects of a saved model",
                str(error),
                "Fit the model again.",
            ) from error

    def training_clock(self, rows: int) -> Context:
        """The context of ``rows`` sequences whose time 0 is that of the training data, and of which
        nothing else is known: streams, and samples from an empty past.
        """
        if self.covariates:
            raise UserError(
                "a model without covariates, since no values of them are known here",
                f"one with {', '.join(self.covariates)}",
                "Pass a history that has them, or fit a model without covariates.",
            )
        if self.calendar and self.origin is None:
            raise UserError(
                "a model with a calendar whose training sequences share one time 0",
                "one whose sequences begin at different times",
                "Pass a history with dates, fit to one long log, or use --calendar none.",
            )
        if self.origin is None:
            return Context(origin=None)
        return Context(origin=np.full(rows, self.origin))

    @property
    def empty(self) -> bool:
        """Whether there are no terms."""
        return not self.calendar and not self.covariates

    @property
    def columns(self) -> dict[str, slice]:
        """The basis functions of every term."""
        found: dict[str, slice] = {}
        first = 0
        for name in self.calendar:
            if name.startswith(HOLIDAYS):
                size = 1
            elif name == TREND:
                size = int(self.trend[2]) + 3
            elif name == MONTHDAY:
                size = MONTHDAYS
            else:
                size = PERIODIC[name].intervals
            found[name] = slice(first, first + size)
            first += size
        for name in self.covariates:
            found[name] = slice(first, first + 1)
            first += 1
        return found


def _is_trend(trend: tuple[float, ...], wanted: bool) -> bool:
    """Whether these are the knots of a trend, or none if there is not to be one."""
    if not wanted or len(trend) != 3:
        return not wanted and not trend
    first, width, intervals = trend
    whole = intervals == int(intervals) and 1 <= intervals <= MOST_INTERVALS
    return math.isfinite(first) and DAY <= width < math.inf and whole


@dataclass(frozen=True)
class RateRatio:
    """By what factor the rate changes with a covariate (per unit) or on holidays, with a 95%
    interval; ``mark`` is empty if it is shared by all marks.

    >>> print(RateRatio("rain", "", 0.74, 0.71, 0.77))
    rain: 0.74 (95% interval 0.71 to 0.77)
    """

    name: str
    mark: str
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        of = f" of {self.mark}" if self.mark else ""
        return f"{self.name}{of}: {self.ratio:.4g} (95% interval {self.low:.4g} to {self.high:.4g})"


def check_term(name: str) -> None:
    """Refuse a term of the calendar that does not exist."""
    if name in PERIODIC or name in (MONTHDAY, TREND):
        return
    if name.startswith(HOLIDAYS) and len(name) > len(HOLIDAYS):
        return
    terms = ", ".join([*PERIODIC, MONTHDAY, TREND])
    expected = f"calendar terms among {terms} and holidays:COUNTRY"
    raise UserError(expected, repr(name), "Choose among these, or auto.")


class Effects(nn.Module):
    """The effects of ``spec`` on ``curves`` curves; all weights are 0 at first.

    >>> import numpy as np
    >>> from fourpoint.events import Context
    >>> effects = Effects(EffectsSpec(("weekday",), seconds=3600.0), 1)
    >>> with torch.no_grad():
    ...     effects.weight[:, 0] = torch.arange(7.0)
    >>> context = Context(origin=np.zeros(1)).batch(np.arange(1))  # 1970-01-01 is a Thursday
    >>> effects.values(torch.tensor([[1.0, 25.0]], dtype=torch.float64), context).tolist()
    [[[3.0], [4.0]]]
    """

    def __init__(self, spec: EffectsSpec, curves: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.curves = curves
        self.size = sum(part.stop - part.start for part in spec.columns.values())
        kind = dtype or torch.get_default_dtype()
        self.weight = nn.Parameter(torch.zeros(self.size, curves, dtype=kind))

    @property
    def fixed(self) -> int:
        """How many basis functions belong to the calendar."""
        return self.size - len(self.spec.covariates)

    # ------------------------------------------------------------------ values

    def values(
        self,
        times: Float[Tensor, "B ..."],
        context: BatchContext | None,
        dtype: torch.dtype | None = None,
        weight: Float[Tensor, "K R"] | None = None,
    ) -> Float[Tensor, "B ... R"]:
        """f at ``times``, in the dtype of the weights or in ``dtype``; with other weights than the
        module's own if they are given.
        """
        kind = dtype or self.weight.dtype
        weight = self.weight if weight is None else weight
        weight = weight.to(kind)
        found = torch.zeros(*times.shape, self.curves, dtype=kind, device=times.device)
        if self.spec.calendar:
            local = self.local_seconds(times, context)
            index, share = self.active(local)
            flat = nn.functional.embedding_bag(
                index.reshape(-1, index.shape[-1]),
                weight[: self.fixed],
                mode="sum",
                per_sample_weights=share.reshape(-1, share.shape[-1]).to(kind),
            )
            found = flat.reshape(*times.shape, self.curves)
        if self.spec.covariates:
            covariates = self.covariates(times, context).to(kind)
            found = found + covariates @ weight[self.fixed :]
        return found

    def basis(
        self,
        times: Float[Tensor, "B ..."],
        context: BatchContext | None,
    ) -> Float[Tensor, "B ... K"]:
        """All basis functions at ``times``, float64."""
        found = torch.zeros(*times.shape, self.size, dtype=torch.float64, device=times.device)
        if self.spec.calendar:
            local = self.local_seconds(times, context)
            index, share = self.active(local)
            found.scatter_add_(-1, index, share)
        if self.spec.covariates:
            found[..., self.fixed :] = self.covariates(times, context)
        return found

    def local_seconds(
        self,
        times: Float[Tensor, "B ..."],
        context: BatchContext | None,
    ) -> Float[Tensor, "B ..."]:
        """Local time in seconds since 1970-01-01 00:00."""
        if context is None or context.origin is None:
            raise UserError(
                "data with dates for a model with a calendar",
                "times without an origin",
                "Read the log with its timestamps, or fit without --calendar.",
            )
        trailing = [1] * (times.ndim - 1)
        origin = context.origin.reshape(-1, *trailing)
        seconds = origin + times * self.spec.seconds
        if self.spec.zone is None:
            return seconds
        starts, offsets = self._zone
        starts = starts.to(times.device)
        offsets = offsets.to(times.device)
        place = torch.searchsorted(starts, seconds.contiguous(), right=True) - 1
        return seconds + offsets[place.clamp(min=0)]

    def active(
        self,
        local: Float[Tensor, "*T"],
    ) -> tuple[Int[Tensor, "*T L"], Float[Tensor, "*T L"]]:
        """The basis functions of the calendar that are not 0 at these local times, and their
        values.
        """
        indices: list[Tensor] = []
        shares: list[Tensor] = []
        for name, columns in self.spec.columns.items():
            if name in self.spec.covariates:
                continue
            if name.startswith(HOLIDAYS):
                days = torch.floor(local / DAY).to(torch.int64)
                index = torch.zeros_like(days)[..., None]
                share = self._is_holiday(days).to(torch.float64)[..., None]
            elif name == TREND:
                cell, place = located_in_trend(self.spec.trend, local)
                index = _four_from(cell)
                share = cubic_weights(place)
            elif name == MONTHDAY:
                index = day_of_month(local)[..., None] - 1
                share = torch.ones_like(local)[..., None]
            elif PERIODIC[name].smooth:
                cell, place = located(PERIODIC[name], local)
                index = _four_from(cell) % PERIODIC[name].intervals
                share = cubic_weights(place)
            else:
                cell, place = located(PERIODIC[name], local)
                index = cell[..., None]
                share = torch.ones_like(place)[..., None]
            indices.append(index + columns.start)
            shares.append(share)
        return torch.cat(indices, -1), torch.cat(shares, -1)

    def covariates(
        self,
        times: Float[Tensor, "B ..."],
        context: BatchContext | None,
    ) -> Float[Tensor, "B ... C"]:
        """The standardised covariates at ``times``."""
        if context is None or context.covariates is None:
            names = ", ".join(self.spec.covariates)
            raise UserError(
                f"data with the covariates {names}, as the model was fitted to",
                "data without covariates",
                "Pass the same tables as for the fit.",
            )
        found = context.covariates.at(times)
        mean = found.new_tensor(self.spec.mean)
        scale = found.new_tensor(self.spec.scale)
        return (found - mean) / scale

    # ------------------------------------------------------------------ bounds and breakpoints

    @torch.no_grad()
    def upper_bound(
        self,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
        context: BatchContext | None,
        dtype: torch.dtype,
    ) -> Float[Tensor, "B R"]:
        """An upper bound of f on [a, b], with an allowance for rounding."""
        weight = self.weight.to(torch.float64)
        bound = torch.zeros(len(a), self.curves, dtype=torch.float64, device=a.device)
        if self.spec.calendar:
            low = self.local_seconds(a, context)
            high = self.local_seconds(b, context)
            # Where clocks change in between, local time covers up to the change more on both sides.
            slack = ((high - low) - (b - a) * self.spec.seconds).abs()
            slack = slack + 1e-6 * (1 + slack)
            low = low - slack
            high = high + slack
            for name, columns in self.spec.columns.items():
                if name in self.spec.covariates:
                    continue
                own = weight[columns]
                if name.startswith(HOLIDAYS):
                    largest = own.clamp(min=0)
                elif name == TREND:
                    largest = largest_of_trend(self.spec.trend, own, low, high)
                elif name == MONTHDAY:
                    largest = largest_of_month(own, low, high)
                else:
                    largest = largest_periodic(PERIODIC[name], own, low, high)
                bound = bound + largest
        if self.spec.covariates and context is not None and context.covariates is not None:
            bound = bound + self._largest_of_covariates(a, b, context.covariates)
        allowance = 64 * torch.finfo(dtype).eps * (1 + weight.abs().amax())
        return bound + allowance

    def _largest_of_covariates(
        self,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
        steps: BatchSteps,
    ) -> Float[Tensor, "B R"]:
        """The largest sum of the terms of the covariates on [a, b]."""
        weight = self.weight.to(torch.float64)
        changes = steps.times[:, 1:]
        forever = torch.full_like(a[:, None], torch.inf)
        begins = torch.cat([-forever, changes], 1)
        until = torch.cat([changes, forever], 1)
        touched = (begins <= b[:, None]) & (until >= a[:, None])
        mean = a.new_tensor(self.spec.mean)
        scale = a.new_tensor(self.spec.scale)
        standardised = (steps.values - mean) / scale
        each = standardised @ weight[self.fixed :]
        return torch.where(touched[..., None], each, -torch.inf).amax(1)

    def cuts(
        self,
        low: Float[Tensor, " B"],
        high: Float[Tensor, " B"],
        context: BatchContext | None,
        finest: float = CUT,
    ) -> Float[Tensor, "B J"]:
        """Times between ``low`` and ``high`` at which integrals are cut: jumps, and splines of the
        day every ``finest`` seconds. Rows with fewer have infinite ones.
        """
        found = np.zeros((len(low), 0))
        if self.spec.calendar:
            assert context is not None and context.origin is not None  # `local_seconds` asks
            begin, end, origin = (x.numpy(force=True) for x in (low, high, context.origin))
            found = self._calendar_cuts(begin, end, origin, finest)
        cuts = torch.from_numpy(found).to(low)
        if self.spec.covariates and context is not None and context.covariates is not None:
            cuts = torch.cat([cuts, context.covariates.times], 1)
        return cuts

    def _calendar_cuts(
        self,
        low: Float[ndarray, " B"],
        high: Float[ndarray, " B"],
        origin: Float[ndarray, " B"],
        finest: float,
    ) -> Float[ndarray, "B J"]:
        """The cuts of every sequence: every day or part of one in local time, and where clocks
        change.
        """
        step = self._cut_length(finest)
        first = origin + low * self.spec.seconds
        last = origin + high * self.spec.seconds
        starts, offsets = (x.numpy() for x in self._zone)
        before = np.searchsorted(starts, first, side="right")
        changes = np.searchsorted(starts, last, side="left") > before
        # Where clocks do not change in a window, its cuts are one grid.
        shift = offsets[np.maximum(before - 1, 0)]
        lowest = np.ceil((first + shift) / step)
        highest = np.floor((last + shift) / step)
        count = np.where(changes, 0, np.maximum(highest - lowest + 1, 0))
        others = {
            i: _cuts_across_changes(first[i], last[i], step, starts, offsets)
            for i in np.flatnonzero(changes).tolist()
        }
        longest = max([int(count.max(initial=0)), *map(len, others.values())])
        number = np.arange(longest)
        seconds = (lowest[:, None] + number) * step - shift[:, None]
        seconds = np.where(number < count[:, None], seconds, np.inf)
        for i, own in others.items():
            seconds[i, : len(own)] = own
        return (seconds - origin[:, None]) / self.spec.seconds

    def _cut_length(self, finest: float) -> float:
        """Seconds between neighbouring cuts."""
        step = YEAR / 12
        for name in self.spec.calendar:
            term = PERIODIC.get(name)
            if term is None:  # holidays, days of the month, or a trend with knots at midnight
                step = min(step, DAY)
            elif not term.smooth:
                step = min(step, term.period / term.intervals)
            elif term.period < YEAR:
                step = min(step, finest)
        return step

    @cached_property
    def _zone(self) -> tuple[Tensor, Tensor]:
        starts, offsets = zone_offsets(self.spec.zone)
        return torch.from_numpy(starts), torch.from_numpy(offsets)

    def _is_holiday(self, days: Int[Tensor, "*T"]) -> Tensor:
        holidays = self.spec.holidays or [-1]
        table = torch.tensor(holidays, dtype=torch.int64, device=days.device)
        return torch.isin(days, table)


def _cuts_across_changes(
    first: float,
    last: float,
    step: float,
    starts: NDArray[np.float64],
    offsets: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Multiples of ``step`` in local time, and where clocks change, in seconds since 1970."""
    changes = starts[(starts > first) & (starts < last)]
    edges = np.concatenate([[first], changes, [last]])
    found = [changes]
    for a, b in zip(edges[:-1], edges[1:], strict=True):
        shift = offset_at(starts, offsets, a)
        lowest = math.ceil((a + shift) / step)
        highest = math.floor((b + shift) / step)
        grid = np.arange(lowest, highest + 1)
        found.append(grid * step - shift)
    return np.unique(np.concatenate(found))


# ---------------------------------------------------------------------- periodic splines


def located(
    term: Periodic,
    local: Float[Tensor, "*T"],
) -> tuple[Int[Tensor, "*T"], Float[Tensor, "*T"]]:
    """The interval of each local time, and the place inside it, from 0 to 1."""
    phase = torch.remainder(local - term.origin, term.period)
    place = phase / term.period * term.intervals
    cell = place.floor().clamp(max=term.intervals - 1)
    return cell.to(torch.int64), place - cell


def _four_from(cell: Int[Tensor, "*T"]) -> Int[Tensor, "*T 4"]:
    """The four splines that are not 0 in an interval, numbered before they are wrapped round."""
    return cell[..., None] + torch.arange(4, device=cell.device)


def cubic_weights(u: Float[Tensor, "*T"]) -> Float[Tensor, "*T 4"]:
    """The four cubic B-splines that are not 0 at the place ``u`` of an interval.

    >>> cubic_weights(torch.tensor([0.0, 1.0])).shape
    torch.Size([2, 4])
    """
    first = (1 - u) ** 3 / 6
    second = 2 / 3 - u**2 * (1 - u / 2)
    last = u**3 / 6
    return torch.stack([first, second, 1 - first - second - last, last], -1)


def located_in_trend(
    trend: Sequence[float],
    local: Float[Tensor, "*T"],
) -> tuple[Int[Tensor, "*T"], Float[Tensor, "*T"]]:
    """The interval of each local time, and the place inside it; the ends for times outside."""
    first, width, intervals = trend
    phase = ((local - first) / width).clamp(0.0, intervals)
    cell = phase.floor().clamp(max=intervals - 1)
    return cell.to(torch.int64), phase - cell


def bezier_peaks(
    c0: Float[Tensor, "K R"],
    c1: Float[Tensor, "K R"],
    c2: Float[Tensor, "K R"],
    c3: Float[Tensor, "K R"],
) -> Float[Tensor, "K R"]:
    """The largest Bezier point of each interval of a cubic B-spline with these coefficients."""
    points = (
        (c0 + 4 * c1 + c2) / 6,
        (2 * c1 + c2) / 3,
        (c1 + 2 * c2) / 3,
        (c1 + 4 * c2 + c3) / 6,
    )
    return torch.stack(points).amax(0)


def largest_of_trend(
    trend: Sequence[float],
    weight: Float[Tensor, "K R"],
    low: Float[Tensor, " B"],
    high: Float[Tensor, " B"],
) -> Float[Tensor, "B R"]:
    """An upper bound of a trend on local times [low, high]."""
    intervals = int(trend[2])
    coefficients = [weight[k : k + intervals] for k in range(4)]
    peaks = bezier_peaks(*coefficients)
    first, _ = located_in_trend(trend, low)
    last, _ = located_in_trend(trend, high)
    cell = torch.arange(intervals, device=low.device)
    touched = (cell >= first[:, None]) & (cell <= last[:, None])
    return torch.where(touched[..., None], peaks, -torch.inf).amax(1)


def largest_periodic(
    term: Periodic,
    weight: Float[Tensor, "K R"],
    low: Float[Tensor, " B"],
    high: Float[Tensor, " B"],
) -> Float[Tensor, "B R"]:
    """An upper bound of the curves of a term on local times [low, high]: splines lie below their
    Bezier points.
    """
    peaks = weight
    if term.smooth:
        coefficients = [weight.roll(-k, 0) for k in range(4)]
        peaks = bezier_peaks(*coefficients)
    width = term.period / term.intervals
    first = torch.floor((low - term.origin) / width)
    last = torch.floor((high - term.origin) / width)
    offset = torch.arange(term.intervals, device=low.device)
    index = torch.remainder(first[:, None] + offset, term.intervals)
    touched = offset <= (last - first)[:, None]
    peaks = peaks[index.to(torch.int64)]
    return torch.where(touched[..., None], peaks, -torch.inf).amax(1)


# ---------------------------------------------------------------------- days of the month


def day_of_month(local: Float[Tensor, "*T"]) -> Int[Tensor, "*T"]:
    """The day of the month, 1 to 31, of local seconds since 1970, in the Gregorian calendar.

    Days are counted from 1 March of year 0, so that a leap day is the last day of its year and the
    months before it have lengths that repeat every 153 days.

    >>> day_of_month(torch.tensor([0.0, 30 * DAY, 31 * DAY, -DAY], dtype=torch.float64)).tolist()
    [1, 31, 1, 31]
    """
    since = torch.floor(local / DAY).to(torch.int64) + 719_468
    of_era = torch.remainder(since, 146_097)  # 400 years
    leap_days = of_era // 1460 - of_era // 36_524 + of_era // 146_096
    year = (of_era - leap_days) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    return of_year - (153 * month + 2) // 5 + 1


def largest_of_month(
    weight: Float[Tensor, "K R"],
    low: Float[Tensor, " B"],
    high: Float[Tensor, " B"],
) -> Float[Tensor, "B R"]:
    """The largest level of a day of the month on local times [low, high]."""
    first = torch.floor(low / DAY)
    last = torch.floor(high / DAY)
    offset = torch.arange(MONTHDAYS, device=low.device)
    days = day_of_month((first[:, None] + offset) * DAY)
    touched = offset <= (last - first)[:, None]
    among = torch.where(touched[..., None], weight[days - 1], -torch.inf).amax(1)
    # 31 days need not contain a 31st.
    long = last - first >= MONTHDAYS
    return torch.where(long[:, None], weight.amax(0), among)


# ---------------------------------------------------------------------- time zones and holidays


@lru_cache(maxsize=16)
def zone_offsets(zone: str | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When the offset of local time from UTC changes, in seconds since 1970, and the offset from
    then on, in seconds. The first holds from the beginning.

    >>> starts, offsets = zone_offsets("Europe/Berlin")
    >>> sorted(set(offsets[-4:].tolist()))
    [3600.0, 7200.0]
    """
    if zone is None or zone == "UTC":
        return np.full(1, -np.inf), np.zeros(1)
    try:
        known = ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        raise UserError(
            "a known time zone",
            repr(zone),
            "Use a name such as Europe/Berlin.",
        ) from error

    def offset(second: int) -> int:
        moment = datetime.fromtimestamp(second, UTC).astimezone(known)
        shift = moment.utcoffset()
        return 0 if shift is None else int(shift.total_seconds())

    first = int(datetime(FIRST_YEAR, 1, 1, tzinfo=UTC).timestamp())
    last = int(datetime(LAST_YEAR, 1, 1, tzinfo=UTC).timestamp())
    low = first
    here = offset(first)
    starts = [-np.inf]
    offsets = [float(here)]
    step = int(DAY) * 4
    for high in range(first + step, last, step):
        there = offset(high)
        if there != here:
            # Bisection for the second at which the offset changes.
            a = low
            b = high
            while b - a > 1:
                middle = (a + b) // 2
                if offset(middle) == here:
                    a = middle
                else:
                    b = middle
            starts.append(float(b))
            offsets.append(float(there))
        low = high
        here = there
    return np.array(starts), np.array(offsets)


def offset_at(
    starts: NDArray[np.float64],
    offsets: NDArray[np.float64],
    second: float,
) -> float:
    """The offset of local time from UTC at ``second``, from the table of `zone_offsets`."""
    place = int(np.searchsorted(starts, second, side="right")) - 1
    return float(offsets[max(0, place)])


def holiday_days(country: str, first_year: int, last_year: int) -> tuple[int, ...]:
    """The public holidays of a country, or of a part of one (US-CA), as days since 1970-01-01."""
    try:
        import holidays
    except ImportError as error:
        raise UserError(
            "the package holidays for a calendar of holidays",
            "an environment without it",
            'Install it: pip install "fourpoint[calendar]".',
        ) from error
    name, _, part = country.partition("-")
    years = range(first_year, last_year + 1)
    try:
        found = holidays.country_holidays(name, subdiv=part or None, years=years)
    except NotImplementedError as error:  # what the package raises for a country it does not have
        raise UserError(
            "a country that the package holidays knows",
            f"{HOLIDAYS}{country}",
            "Use a code such as US, DE, GB or US-CA.",
        ) from error
    start = date(1970, 1, 1)
    return tuple(sorted((day - start) // timedelta(days=1) for day in found))


# ---------------------------------------------------------------------- from data


def effects_of(
    data: Dataset,
    calendar: Sequence[str] = (),
    *,
    covariates: bool = True,
    seconds: float | None = None,
    zone: str | None = None,
) -> EffectsSpec:
    """The effects that ``data`` allow: these terms of the calendar, and all covariates it has,
    standardised by their mean and standard deviation over the observed time.

    Raises :class:`UserError` if the calendar is asked for and the data have no dates, or if a
    covariate is constant.
    """
    for name in calendar:
        check_term(name)
    context = data.context
    if calendar and (context is None or context.origin is None):
        of_unit = f" of {data.unit}" if data.unit else ""
        raise UserError(
            "data with dates for a calendar",
            f"times as numbers{of_unit}",
            "Read a log with timestamps, or leave out --calendar.",
        )
    unit = seconds_per_unit(data) if seconds is None else seconds
    if zone is None and data.log is not None:
        zone = data.log.zone
    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    if covariates and context is not None and context.covariates is not None:
        names = context.covariates.names
        mean, scale = _moments(data)
    origin = None
    if calendar and context is not None and context.origin is not None and len(context.origin):
        same = bool(np.all(context.origin == context.origin[0]))
        origin = float(context.origin[0]) if same else None
    return EffectsSpec(
        calendar=tuple(calendar),
        zone=zone,
        seconds=unit,
        covariates=names,
        mean=mean,
        scale=scale,
        holidays=_holidays_of(data, calendar, unit),
        origin=origin,
        trend=trend_of(data, unit, zone) if TREND in calendar else (),
    )


def _holidays_of(data: Dataset, calendar: Sequence[str], unit: float) -> tuple[int, ...]:
    """The days of all holidays among the terms, from the year before the data on."""
    countries = [name.removeprefix(HOLIDAYS) for name in calendar if name.startswith(HOLIDAYS)]
    if not countries:
        return ()
    begin, end = _covered(data, unit)
    first = datetime.fromtimestamp(begin, UTC).year - 1
    last = datetime.fromtimestamp(end, UTC).year + FURTHER_YEARS
    days: set[int] = set()
    for country in countries:
        days.update(holiday_days(country, first, last))
    return tuple(sorted(days))


def _covered(data: Dataset, unit: float) -> tuple[float, float]:
    """The seconds since 1970 at which the first window begins and the last one ends."""
    assert data.context is not None and data.context.origin is not None
    origin = data.context.origin
    begin = float(np.min(origin + data.starts * unit))
    end = float(np.max(origin + data.stops * unit))
    return begin, end


def trend_of(data: Dataset, unit: float, zone: str | None) -> tuple[float, float, float]:
    """Knots of a trend over the time of ``data``, at local midnights: the first one, seconds
    between neighbours, and the number of intervals. The last knot is the last midnight in the data,
    so that the level of the last days continues.
    """
    begin, end = _covered(data, unit)
    starts, offsets = zone_offsets(zone)
    last = math.floor((end + offset_at(starts, offsets, end)) / DAY) * DAY
    days = max(1, math.floor((end - begin) / DAY))
    intervals = min(MOST_INTERVALS, max(1, round(days * DAY / TREND_INTERVAL)))
    width = max(1, math.floor(days / intervals)) * DAY
    return last - intervals * width, width, float(intervals)


def seconds_per_unit(data: Dataset) -> float:
    """Seconds in the data's unit of time, which must be one of seconds, minutes, hours, ..."""
    if data.unit not in SECONDS:
        if data.context is None or data.context.origin is None:
            return 1.0
        raise UserError(
            f"a unit of time among {', '.join(SECONDS)}",
            repr(data.unit),
            "Read the log with --time-unit.",
        )
    return SECONDS[data.unit]


def _moments(data: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every covariate over the observed time."""
    assert data.context is not None and data.context.covariates is not None
    steps = data.context.covariates
    row = np.repeat(np.arange(len(data)), np.diff(steps.offsets))
    ends = np.append(steps.times[1:], np.inf)
    ends[steps.offsets[1:] - 1] = np.inf
    begins = steps.times.copy()
    begins[steps.offsets[:-1]] = -np.inf
    low = np.maximum(begins, data.starts[row])
    high = np.minimum(ends, data.stops[row])
    weight = np.maximum(high - low, 0.0)
    weight = weight / weight.sum()
    mean = weight @ steps.values
    variance = weight @ (steps.values - mean) ** 2
    spread = np.sqrt(np.maximum(variance, 0.0))
    flat = np.flatnonzero(spread <= 1e-12 * (1 + np.abs(mean)))
    if len(flat):
        first = int(flat[0])
        name = steps.names[first]
        raise UserError(
            "covariates that vary in the training data",
            f"{name} = {mean[first]:g} throughout",
            f"Leave out {name}, or train on data in which it varies.",
        )
    return tuple(mean.tolist()), tuple(spread.tolist())
