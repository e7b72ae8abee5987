"""Covariates as they were known at the beginning of every day, or of every other period.

Tomorrow's weather is not known today. A model that is fitted with the weather of the same hour
learns what that explains, and its forecast needs the weather of the hours to come; where the last
value is carried forward instead, the effect that was learned is too strong for it. Here a covariate
x of time becomes

    x(t as of a period) = the last value that was recorded before the period of t began,

so that a fit learns what a forecast can know: with the period "1d", everything recorded until
midnight for the day to come.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Dataset, Steps, UserError
from fourpoint.events.batching import offsets_of
from fourpoint.events.dates import SECONDS, Dates, as_number, in_units, parse_duration

Floats = NDArray[np.float64]


def covariates_as_of(data: Dataset, period: float | str) -> Dataset:
    """The data with every covariate of time as it was when the present period began.

    Args:
        data: a data set with covariates of time.
        period: "1d" (from midnight), "1w" (from Monday), a part of the day such as "1h" or "6h" in
            local time, or a number in the data's unit of time, whose multiples are the beginnings.

    A column "rain" becomes "rain as of 1d", so that a model fitted to one is not applied to the
    other. Columns that are constant in every sequence stay as they are. Raises :class:`UserError`
    where there are no covariates of time, and for other periods.

    >>> from fourpoint.events import Context, Sequence
    >>> rain = Steps(
    ...     ("rain",), np.array([0.0, 9.0, 15.0]), np.array([[0.0], [2.0], [1.0]]), np.array([0, 3])
    ... )
    >>> log = Dataset.from_sequences(
    ...     [Sequence([1.0], start=0.0, stop=20.0, context=Context(covariates=rain))]
    ... )
    >>> known = covariates_as_of(log, 10.0).context.covariates
    >>> known.names, known.at(0, np.array([5.0, 9.5, 10.0, 16.0, 20.0]))[:, 0].tolist()
    (('rain as of 10',), [0.0, 0.0, 2.0, 2.0, 1.0])
    """
    steps = None if data.context is None else data.context.covariates
    changing = changing_covariates(data)
    if data.context is None or steps is None or not changing:
        raise UserError(
            "covariates of time, to take as of the beginning of a period",
            "none" if steps is None else f"only covariates of sequences: {', '.join(steps.names)}",
            "Give a table with covariates= (--covariates), or leave the option out.",
        )
    wanted = [i for i in changing if not is_as_of(steps.names[i])]
    if not wanted:
        return data
    known = steps_as_of(steps, data, period)
    names = [known.names[i] if i in wanted else name for i, name in enumerate(steps.names)]
    kept = [i for i in range(len(names)) if i not in wanted]
    values = known.values.copy()
    for i in range(len(data)):
        part = known.row(i)
        values[part, kept] = steps.at(i, known.times[part])[:, kept]
    found = replace(known, names=tuple(names), values=values)
    log = data.log
    if log is not None:
        log = replace(log, covariates=tuple(names), as_of=period_text(period))
    return replace(data, context=replace(data.context, covariates=found), log=log)


def steps_as_of(steps: Steps, data: Dataset, period: float | str) -> Steps:
    """Step functions of the sequences of ``data`` that change only where a period begins, to the
    last value that began to hold before; the first value also holds before its time.
    """
    begins = _Beginnings(data, period)
    times = []
    values = []
    for i in range(len(data)):
        own = steps.row(i)
        end = max(float(data.stops[i]), float(steps.times[own][-1]))
        edges = begins.between(i, float(data.starts[i]), end)
        last = np.searchsorted(steps.times[own], edges, side="left") - 1
        times.append(edges)
        values.append(steps.values[own][np.maximum(last, 0)])
    return Steps(
        names=tuple(name + suffix(period) for name in steps.names),
        times=np.concatenate(times),
        values=np.concatenate(values),
        offsets=offsets_of([len(part) for part in times]),
    )


def suffix(period: float | str) -> str:
    """What follows the name of a covariate.

    >>> suffix("1d"), suffix(24.0)
    (' as of 1d', ' as of 24')
    """
    return f" as of {period_text(period)}"


def is_as_of(name: str) -> bool:
    """Whether a covariate of this name is one as of the beginning of a period.

    >>> is_as_of("rain as of 1d"), is_as_of("rain")
    (True, False)
    """
    return " as of " in name


def period_text(period: float | str) -> str:
    """A period as it is written.

    >>> period_text(" 1d "), period_text(24.0)
    ('1d', '24')
    """
    return period.strip() if isinstance(period, str) else f"{period:g}"


def changing_covariates(data: Dataset) -> list[int]:
    """The columns of covariates that change within a sequence."""
    steps = None if data.context is None else data.context.covariates
    if steps is None:
        return []
    same = np.ones(len(steps.names), dtype=bool)
    for i in range(len(steps.offsets) - 1):
        own = steps.values[steps.row(i)]
        same &= (own == own[0]).all(axis=0)
    return np.flatnonzero(~same).tolist()


class _Beginnings:
    """When periods begin, in the time of each sequence; found once for sequences that share a time
    0.
    """

    def __init__(self, data: Dataset, period: float | str) -> None:
        self.data = data
        self.period = period
        self._known: dict[float | None, tuple[float, float, Floats]] = {}

    def between(self, row: int, start: float, end: float) -> Floats:
        """From the last one at or before ``start`` to the first one after ``end``."""
        dates = self.data.dates(row)
        origin = None if dates is None else dates.origin
        low, high, edges = self._known.get(origin, (np.inf, -np.inf, np.zeros(0)))
        if start < low or end > high:
            low, high = min(start, low), max(end, high)
            edges = _beginnings(dates, low, high, self.period, self.data.unit)
            self._known[origin] = (low, high, edges)
        first = int(np.searchsorted(edges, start, side="right")) - 1
        last = int(np.searchsorted(edges, end, side="right"))
        return edges[first : last + 1]


def _beginnings(
    dates: Dates | None, start: float, end: float, period: float | str, unit: str
) -> Floats:
    """Beginnings of periods from before ``start`` to after ``end``."""
    if dates is None or as_number(period) is not None:
        width = in_units(period, unit)
        if not (0 < width < np.inf):
            raise _unusable(period)
        return width * np.arange(np.floor(start / width), np.floor(end / width) + 2)
    length = parse_duration(str(period))
    width = length.elapsed / SECONDS[unit]
    edges = None
    if length.days in (0, 1, 7) and width > 0:
        edges = dates.clock_edges(start - 2 * width, end + 2 * width, period)
    if edges is None:
        raise _unusable(period)
    return edges[1:-1]


def _unusable(period: float | str) -> UserError:
    return UserError(
        "a period that begins at fixed times of the clock: 1d, 1w, or a part of a day such as 6h",
        f"{period!r}",
        "Choose one of these, or a positive number for data without dates.",
    )
