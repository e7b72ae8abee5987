r"""What happens next, and how sure the model is: forecasts from the user's own history.

The next event's law comes from the model's own survival function, by quadrature and not by samples,

    P(T > t) = exp(-int_at^t lambda),  density lambda(t) P(T > t),
        P(mark m) = int lambda_m(t) P(T > t) dt,

with lambda seen from the history, as if nothing more happened. What comes after it has no such
formula: counts per window and the expected rate are means and intervals over exactly sampled paths
(`sampling`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.data.as_of import is_as_of
from fourpoint.events import (
    Batch,
    Dataset,
    MarkSpace,
    Sequence,
    Steps,
    UserError,
    check_marks,
    only_sequence,
)
from fourpoint.events.dates import Dates, Moment, edges_of, length_after, shown, time_at
from fourpoint.inference.next_events import density_threshold, intervals_above
from fourpoint.inference.sampling import (
    Paths,
    advance,
    eval_mode,
    exposed_rates,
    last_rates,
    remember,
    select_rows,
)
from fourpoint.models.base import History, PointProcess, longest_panel
from fourpoint.ops.compensator import Law, next_event_law
from fourpoint.ops.conformal import Levels, count_quantile
from fourpoint.ops.quadrature import Unconverged
from fourpoint.report.printing import Printed, bar, text_table
from fourpoint.strict_json import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

    from fourpoint.inference.uncertainties import Uncertainty
    from fourpoint.models.calibration import Calibration

Floats = NDArray[np.float64]
SEVERAL = 3  # times as long as usual that a covariate is carried forward: a note says so
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
GRID = 200  # points of a density
FAR = 0.995  # the probability up to which a density is shown
REGION = 0.9  # the probability of the regions of the next event
STEPS = 100  # points of a rate path
MOST = 10_000  # events of one sampled path, at which a process counts as explosive,
FACTOR = 10.0  # or this many times the number expected from the past rate
LARGEST_LIMIT = 1_000_000
RECENT = 2048  # past events whose rate is drawn
DATE = len("2025-06-03 ")
SHOWN = 8  # types in a row of the printed table
BAND = 256  # paths whose rates make the band
CHUNK = 64  # of those computed at once
LATER = 100  # paths up to a later beginning, over which the law of the next event is a mean
POOLED = 128  # quantiles of the law of each of them
MEMBERS = 25  # draws of parameters from which paths are drawn


@dataclass(frozen=True)
class Regions:
    """Where the next event lies with probability 90%, as intervals of time: up to ``before``; in
    ``central``, with equal tails; in ``shortest``, which are the shortest in all; with its mark in
    ``pairs``, one list per mark.

    Levels are those of the model's calibration where ``calibrated``, else as the model has them.
    """

    before: float
    central: tuple[float, float]
    shortest: list[tuple[float, float]]
    pairs: list[list[tuple[float, float]]]
    calibrated: bool


@dataclass(frozen=True)
class NextEvent:
    """The law of the next event. Times are absolute, in the user's unit; ``never`` is the chance
    that none comes at all. ``quantiles`` are at the levels of the model's calibration, if any.
    """

    mean: float
    median: float
    quantiles: dict[float, float]
    times: Floats
    density: Floats
    marks: Floats  # probability of each mark
    never: float
    regions: Regions

    @property
    def interval(self) -> tuple[float, float]:
        """The time lies in it with probability 90%."""
        return self.regions.central


@dataclass(frozen=True)
class Counts:
    """Events per window and mark: means and 90% intervals, (W, M), and the same for all marks
    together, (W,).
    """

    edges: Floats
    mean: Floats
    low: Floats
    high: Floats
    total_mean: Floats
    total_low: Floats
    total_high: Floats


@dataclass(frozen=True)
class RateBand:
    """The rate on a grid of times: its mean over paths, per mark (Q, M), and a 90% band of the
    total (Q,).
    """

    times: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, repr=False)
class Forecast(Printed):
    """What :func:`forecast` found. Prints as a table; :meth:`to_dict` is for machines, :meth:`plot`
    for eyes.
    """

    at: float
    horizon: float
    marks: MarkSpace
    next_event: NextEvent
    counts: Counts
    rate: RateBand
    paths: Dataset
    acceptance: float
    notes: tuple[str, ...]
    past: Sequence
    past_times: Floats
    past_rate: Floats
    whole: Counts  # events in all windows together: one window

    @property
    def dates(self) -> Dates | None:
        """Converts times to dates, where the events were read from timestamps."""
        return self.past.dates

    def to_dict(self) -> dict[str, Any]:
        """Everything but the paths, as JSON can hold it. Where the events have dates, times are
        numbers in the user's unit and stand again, as dates, under "dates".
        """
        names = self.marks.names or ("event",)
        n = self.next_event
        c = self.counts
        whole = _count_dict(self.whole, 0, names)
        counts = [_count_dict(c, w, names) for w in range(len(c.mean))]
        following = {
            "mean": n.mean,
            "median": n.median,
            "quantiles": {f"{p:g}": t for p, t in n.quantiles.items()},
            "times": n.times,
            "density": n.density,
            "never": n.never,
            "regions": {
                "level": REGION,
                "calibrated": n.regions.calibrated,
                "before": n.regions.before,
                "central": n.regions.central,
                "shortest": n.regions.shortest,
                "pairs": dict(zip(names, n.regions.pairs, strict=True)),
            },
        }
        following["mark_probabilities"] = dict(zip(names, n.marks, strict=True))
        rate = {
            "times": self.rate.times,
            "mean": self.rate.mean.sum(1),
            "low": self.rate.low,
            "high": self.rate.high,
        }
        rate["marks"] = {k: self.rate.mean[:, m] for m, k in enumerate(names)}
        head = {
            "at": self.at,
            "horizon": self.horizon,
            "paths": len(self.paths),
            "acceptance": self.acceptance,
            "notes": self.notes,
        }
        found = head | {"whole": whole, "next_event": following, "counts": counts, "rate": rate}
        return plain(found if self.dates is None else self._with_dates(found, self.dates))

    def _with_dates(self, found: dict[str, Any], dates: Dates) -> dict[str, Any]:
        """The same with dates beside the times."""
        edges = dates.texts(self.counts.edges)
        for w, counts in enumerate(found["counts"]):
            counts["dates"] = {"start": edges[w], "stop": edges[w + 1]}
        found["whole"]["dates"] = {"start": edges[0], "stop": edges[-1]}
        n = self.next_event
        texts = dates.texts(list(n.quantiles.values()))
        quantiles = {f"{p:g}": text for p, text in zip(n.quantiles, texts, strict=True)}
        found["next_event"]["dates"] = {
            "mean": dates.text(n.mean),
            "median": dates.text(n.median),
            "quantiles": quantiles,
        }
        found["rate"]["dates"] = dates.texts(self.rate.times)
        now, until = dates.texts([self.at, self.at + self.horizon])
        found["dates"] = {
            "at": now,
            "until": until,
            "zone": dates.zone,
            "unit": dates.unit,
        }
        return found

    def _by_mark(self, mean: Floats) -> str:
        """Expected events of each type, the most first, and the rest in one number."""
        largest = np.argsort(-mean, kind="stable")[:SHOWN]
        parts = [f"{self.marks.names[m]} {mean[m]:.2f}" for m in largest]
        more = len(mean) - SHOWN
        if more > 0:
            others = mean.sum() - mean[largest].sum()
            parts.append(f"{more} more {others:.2f}")
        return ", ".join(parts)

    def plot(self, ax: Axes | None = None, unit: str = "") -> Axes:
        """The rate up to now, its expected path with a band, and the next event's interval."""
        from fourpoint.plots.forecast import forecast_plot

        shown = self.past.times >= (self.past_times[0] if len(self.past_times) else self.at)
        return forecast_plot(
            self.rate.times,
            self.rate.mean.sum(1),
            self.rate.low,
            self.rate.high,
            past_times=self.past_times,
            past_rate=self.past_rate,
            events=self.past.times[shown],
            event_marks=self.past.marks[shown],
            names=self.marks.names,
            interval=(
                self.next_event.interval[0],
                min(self.next_event.interval[1], self.at + self.horizon),
            ),
            median=self.next_event.median,
            unit=unit or ("" if self.dates is None else self.dates.unit),
            dates=self.dates,
            ax=ax,
        )

    def __rich__(self) -> Table:
        c = self.counts
        dates = self.dates
        marks = self.marks.names
        first = float(c.edges[0])
        end = self.at + self.horizon
        if dates is None:
            title = f"Forecast from {first:g} to {end:g}"
        else:
            start, stop = dates.texts([first, end])
            title = f"Forecast from {start} to {stop}"
            if dates.zone:
                title += f" ({dates.zone})"
        table = text_table(title, title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        table.add_row("events in all", _expected(self.whole, 0))
        if len(marks) > 1:
            table.add_row("", self._by_mark(self.whole.mean[0]))
        n = self.next_event
        median = f"median {shown(dates, n.median)}, mean {shown(dates, n.mean)}"
        low, high = n.interval
        interval = f"90% interval {shown(dates, low)} to {shown(dates, high)}"
        table.add_row("next event", f"{median}, {interval}")
        if marks:
            likeliest = np.argsort(-n.marks)[:5]
            chances = [f"{marks[m]} {n.marks[m]:.1%}" for m in likeliest]
            table.add_row("its mark", ", ".join(chances))
        windows = len(c.total_mean)
        if windows > 1:
            for w, span in enumerate(self._spans()):
                table.add_row(f"events in {span}", _expected(c, w))
                if len(marks) > 1:
                    table.add_row("", self._by_mark(c.mean[w]))
        for note in self.notes:
            table.add_row("note", note)
        return table

    def _spans(self) -> list[str]:
        """The windows of the counts in words; the date of an end is left out if it is that of the
        begin.
        """
        if self.dates is None:
            edges = [f"{edge:.6g}" for edge in self.counts.edges.tolist()]
        else:
            edges = self.dates.texts(self.counts.edges)
        spans = []
        for begin, end in pairwise(edges):
            if self.dates is not None and begin[:DATE] == end[:DATE]:
                end = end[DATE:]
            spans.append(f"[{begin}, {end})")
        return spans


def _count_dict(counts: Counts, window: int, names: tuple[str, ...]) -> dict[str, Any]:
    """The counts of one window as JSON can hold them."""
    c = counts
    w = window
    marks = {}
    for m, name in enumerate(names):
        marks[name] = {
            "mean": c.mean[w, m],
            "low": c.low[w, m],
            "high": c.high[w, m],
        }
    return {
        "start": c.edges[w],
        "stop": c.edges[w + 1],
        "total": {
            "mean": c.total_mean[w],
            "low": c.total_low[w],
            "high": c.total_high[w],
        },
        "marks": marks,
    }


def _expected(counts: Counts, window: int) -> str:
    """The mean and the interval of all events of a window."""
    mean = counts.total_mean[window]
    low = counts.total_low[window]
    high = counts.total_high[window]
    return f"{mean:.2f} expected, 90% interval {low:.0f} to {high:.0f}"


def forecast(
    model: PointProcess,
    sequence: Sequence | Dataset,
    horizon: float | str,
    paths: int = 1000,
    seed: int = 0,
    *,
    at: Moment | None = None,
    windows: int = 4,
    by: float | str | None = None,
    uncertainty: Uncertainty | None = None,
    progress: bool = False,
) -> Forecast:
    """Forecast the events from ``at`` to ``at + horizon``, given the events of ``sequence`` up to
    and including ``at``; both times may lie after the end of the sequence.

    Args:
        horizon: how far to look, in the user's unit of time, or a duration such as "4h" where the
            sequence has dates.
        paths: how many futures to sample; ``seed`` of those.
        at: now, as a number, or as a date where the sequence has dates; the end of the sequence's
            window by default. An event at that very time is known; later ones are not looked at. If
            it lies after the end of the window, events are counted from then on, what happens
            before is part of the sampled futures, and ``Forecast.at`` is the end of the window.
        windows: equal parts of the horizon in which events are counted.
        by: length of intervals in which they are counted instead (:func:`fourpoint.forecasts`):
            full hours of the clock for "1h", where the sequence has dates and ``at`` is None.
        uncertainty: draws of the model's parameters (`fp.uncertainty`). Paths are then drawn from
            the model with each of several draws, so that counts and the band of the rate include
            the uncertainty of what was learned; the next event's law is that of the estimate.
        progress: whether to show bars on stderr.

    A data set stands for its sequence where it has exactly one.

    Raises :class:`UserError` where the horizon is not positive, ``at`` lies before the sequence's
    window, the marks are not the model's, or the model explodes before the horizon.

    >>> from fourpoint.models.poisson import Poisson
    >>> f = forecast(
    ...     Poisson(), Sequence([0.5, 1.5], start=0.0, stop=2.0), horizon=8.0, paths=200
    ... )  # a rate of 1
    >>> round(f.next_event.mean, 6), round(f.next_event.median, 4), f.counts.edges.tolist()
    (3.0, 2.6931, [2.0, 4.0, 6.0, 8.0, 10.0])
    """
    sequence = only_sequence(sequence)
    check_marks(model.marks, sequence.space)
    begin = sequence.stop if at is None else time_at(sequence.dates, at)
    past = sequence.until(min(begin, sequence.stop) if math.isfinite(begin) else begin)
    now = past.stop
    length = length_after(past.dates, begin, horizon)
    _check(length, paths, windows)
    edges = np.linspace(begin, begin + length, windows + 1)
    if by is not None:
        unit = "" if past.dates is None else past.dates.unit
        edges = edges_of(past.dates, begin, begin + length, by, unit, on_clock=at is None)
    length += begin - now
    with eval_mode(model):
        here = remember(model, past.batch())
        earlier = _past_rate(model, past, now, length)
    found = forecast_from(
        *(model, here, past, earlier, now, length, paths, seed, edges, progress),
        calibration=model.calibration,
        after=begin if begin > now else None,
    )
    if uncertainty is None:
        return found
    return _with_uncertainty(found, model, uncertainty, paths, seed)


def _with_uncertainty(
    found: Forecast,
    model: PointProcess,
    uncertainty: Uncertainty,
    paths: int,
    seed: int,
) -> Forecast:
    """The same with counts and rates of paths from the model with several draws of its parameters.

    Draws that explode before the horizon are left out, and a note says so.
    """
    now, end = found.at, found.at + found.horizon
    members = min(MEMBERS, len(uncertainty), paths)
    each = -(-paths // members)
    limit = path_limit(len(found.past), now - found.past.start, end - now)
    drawn: list[Sequence] = []
    rates: list[Float[Tensor, "B Q M"]] = []
    refused = 0
    for k, member in enumerate(uncertainty.members(model, members)):
        with eval_mode(member):
            here = remember(member, found.past.batch())
            try:
                futures = _futures(member, here, now, end, each, seed + k, False, limit).data
            except UserError:
                refused += 1
                continue
            few = futures[: max(1, BAND // members)]
            grid, rate = _rates_of_paths(member, here, found.past, few, now, end, False)
            drawn += list(futures)
            rates.append(rate)
    if not drawn:
        raise UserError(
            "draws of parameters that do not explode before the horizon",
            f"{refused} that do",
            "Shorten the horizon, or forecast without uncertainty.",
        )
    everything = Dataset.from_sequences(drawn)
    notes = [*found.notes, "counts and rates include the uncertainty of parameters"]
    if refused:
        notes.append(f"{refused} of {members} draws of parameters explode and are left out")
    edges = found.counts.edges
    levels = _count_levels(model.calibration, now, found.horizon, edges)
    counts = _counts(everything, edges, levels)
    whole = _whole(everything, edges, model.calibration, now, found.horizon)
    band = _rate_band(grid, torch.cat(rates))
    return replace(
        found, counts=counts, whole=whole, rate=band, paths=everything, notes=tuple(notes)
    )


def forecast_from(
    model: PointProcess,
    here: History,
    past: Sequence,
    earlier: tuple[Floats, Floats],
    now: float,
    horizon: float,
    paths: int = 1000,
    seed: int = 0,
    windows: int | Floats = 4,
    progress: bool = False,
    calibration: Calibration | None = None,
    after: float | None = None,
) -> Forecast:
    """As :func:`forecast`, from ``now`` and the model's history ``here`` of one row: what a stream
    has.

    ``past`` are the events that a picture shows, and ``earlier`` times and total rates before now;
    a model that cannot go on from a history needs all of its events in ``past``. Events are counted
    in ``windows`` equal parts of the horizon, or between the times that ``windows`` holds. The
    next event is the first one ``after`` a time later than ``now``, if one is given.
    """
    parts = windows if isinstance(windows, int) else len(windows) - 1
    _check(horizon, paths, parts)
    end = now + horizon
    edges = np.linspace(now, end, parts + 1) if isinstance(windows, int) else windows
    begin = float(edges[0])
    with eval_mode(model):
        notes = _notes(model, here, end, past.dates)
        notes += carried_forward(past, end)
        if begin > now:
            notes.append(simulated_until(past.dates, now, begin))
        limit = path_limit(len(past), now - past.start, end - now)
        drawn = _futures(model, here, now, end, paths, seed, progress, limit)
        try:
            if after is None:
                following = _next_event(model, here, now, horizon, calibration)
            else:
                following = _next_event_from(model, here, past, drawn.data, after, end - after)
        except Unconverged as error:
            raise UserError(
                "a rate that can be integrated", str(error).rstrip("."), "Fit the model again."
            ) from error
        if following.never > 1e-6:
            notes.append(f"with probability {following.never:.3g} no further event comes")
        band = _band(model, here, past, drawn.data, now, end, progress)
    levels = _count_levels(calibration, now, float(horizon), edges)
    if calibration is not None:
        if after is not None:
            notes.append("intervals are not calibrated, since events are known until earlier")
        else:
            notes.append(_calibrated(calibration, levels is not None))
    past_times, past_rate = earlier
    return Forecast(
        at=now,
        horizon=float(horizon),
        marks=model.marks,
        next_event=following,
        counts=_counts(drawn.data, edges, levels),
        rate=band,
        paths=drawn.data,
        acceptance=drawn.acceptance,
        notes=tuple(notes),
        past=past,
        past_times=past_times,
        past_rate=past_rate,
        whole=_whole(drawn.data, edges, calibration, now, float(horizon)),
    )


def _calibrated(calibration: Calibration, counts: bool) -> str:
    """Which of the forecast's intervals are calibrated, and what that promises."""
    which = "of the next event and of counts" if counts else "of the next event, not of counts,"
    return f"intervals {which} are calibrated ({calibration.guarantee()})"


def _futures(
    model: PointProcess,
    here: History,
    now: float,
    end: float,
    paths: int,
    seed: int,
    progress: bool,
    limit: int,
) -> Paths:
    """Paths from now to the end; an explosion, ``limit`` events of one path, is refused."""
    many = select_rows(here, torch.zeros(paths, dtype=torch.int64))
    try:
        with bar("sampling futures", 1.0, show=progress) as step:
            return advance(
                model,
                many,
                torch.full_like(many.start, now),
                torch.full_like(many.start, end),
                torch.Generator().manual_seed(seed),
                limit=limit,
                step=step,
            )
    except UserError as error:
        expected = "a process that does not explode before the horizon"
        raise UserError(
            expected, error.received, "Shorten the horizon, or fit the model again."
        ) from error


def path_limit(events: int, span: float, length: float) -> int:
    """How many events of a path of ``length`` count as an explosion: 10,000, or ten times as many
    as expected at the rate of a past with ``events`` in a ``span`` of time.

    >>> path_limit(2500, 2000.0, 24.0), path_limit(2500, 2000.0, 10_000.0)
    (10000, 125000)
    """
    if not span > 0:
        return MOST
    generous = FACTOR * events / span * length
    return int(min(max(MOST, generous), LARGEST_LIMIT))


def _check(horizon: float, paths: int, windows: int) -> None:
    if not (np.isfinite(horizon) and horizon > 0):
        raise UserError(
            "a positive horizon", f"{horizon}", "Pass horizon=2.0, say, in the data's unit of time."
        )
    if paths < 1 or windows < 1:
        raise UserError(
            "at least one path and one window", f"paths={paths}, windows={windows}", "Raise them."
        )


def _notes(model: PointProcess, here: History, end: float, dates: Dates | None) -> list[str]:
    knots = model.knots(here)
    if knots is None:
        return []
    last = float(knots[0, -1])
    if end <= last + 1e-9:
        return []
    when = shown(dates, last)
    return [f"the model's functions of time end at {when}; after it they keep their last value"]


def simulated_until(dates: Dates | None, known: float, begin: float) -> str:
    """What to say where a forecast begins after the end of what is known.

    >>> simulated_until(None, 2.0, 3.0)
    'events are known until 2; what happens between then and 3 is simulated'
    """
    until = shown(dates, known)
    then = shown(dates, begin)
    return f"events are known until {until}; what happens between then and {then} is simulated"


def carried_forward(past: Sequence, end: float) -> list[str]:
    """What to say where covariates or the exposure of a sequence are not known until ``end``.

    A value is taken to be known for as long as the values before it held, by their median. Where
    the last ones have to hold for several times as long, the note names the option of `fit` that
    uses only what is known beforehand.

    >>> from fourpoint.events import Context, Steps
    >>> hourly = Steps(("x",), np.arange(3.0), np.ones((3, 1)), np.array([0, 3]))
    >>> past = Sequence([0.5], start=0, stop=2, context=Context(covariates=hourly))
    >>> carried_forward(past, 3.0), carried_forward(past, 8.0)
    ([], ['covariates are given until 2; their last values are carried forward to 8; a fit with
    covariates_as_of= (--covariates-as-of 1d) uses only what is known before'])
    """
    context = past.context
    if context is None:
        return []
    horizon = shown(past.dates, end)
    found = []
    last = _known_until(context.covariates, end)
    if last is not None:
        given = f"covariates are given until {shown(past.dates, last)}"
        note = f"{given}; their last values are carried forward to {horizon}"
        if _changed_often(context.covariates, end - last):
            note += (
                "; a fit with covariates_as_of= (--covariates-as-of 1d) uses only what is known "
                "before"
            )
        found.append(note)
    exposure = context.exposure
    if exposure is not None and np.isin(exposure.values, (0.0, 1.0)).all():
        return found  # gaps in the recording say nothing of what follows
    last = _known_until(exposure, end)
    if last is not None:
        given = f"exposure is given until {shown(past.dates, last)}"
        found.append(f"{given}; its last value is carried forward to {horizon}")
    return found


def _changed_often(steps: Steps | None, length: float) -> bool:
    """Whether values usually hold for less than a third of ``length``, and are not yet those that
    are known when a period begins.
    """
    if steps is None or any(map(is_as_of, steps.names)):
        return False
    return length > SEVERAL * float(np.median(np.diff(steps.times)))


def _known_until(steps: Steps | None, end: float) -> float | None:
    """The last time of a table whose values are not known until ``end``; None where they are."""
    if steps is None or len(steps.times) < 2:
        return None
    last = float(steps.times[-1])
    usual = float(np.median(np.diff(steps.times)))
    if end > last + usual * (1 + 1e-9):
        return last
    return None


def _next_event(
    model: PointProcess,
    here: History,
    now: float,
    horizon: float,
    calibration: Calibration | None = None,
) -> NextEvent:
    start = torch.tensor([now], dtype=torch.float64)
    law, rates = _law_of_next(model, here, start, horizon)
    median, far = law.quantiles([0.5, FAR])[0].tolist()
    if not np.isfinite(far):
        far = now + horizon
    levels = list(LEVELS)
    if calibration is not None:
        levels = [calibration.time_level(level) for level in LEVELS]
    quantiles = law.quantiles(levels)[0].tolist()
    grid = _density_grid(law, now, far)
    survival = torch.exp(-law.integral_at(grid))
    density = rates(grid).double() * survival[..., None]
    times = grid[0].numpy()
    by_mark = density[0]
    return NextEvent(
        mean=float(law.mean()[0]),
        median=median,
        quantiles=dict(zip(LEVELS, quantiles, strict=True)),
        times=times,
        density=by_mark.sum(-1).numpy(),
        marks=law.marks()[0].numpy(),
        never=float(law.never[0]),
        regions=_regions(law, times, by_mark.numpy(), calibration),
    )


def _law_of_next(
    model: PointProcess, history: History, start: Float[Tensor, " B"], horizon: float
) -> tuple[Law, Callable[[Float[Tensor, "B Q"]], Float[Tensor, "B Q M"]]]:
    """The law of the next event after ``start`` of every row, and its rate while none comes."""

    def rates(times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        return exposed_rates(history, times, last_rates(model, history, times))

    rate = rates(start[:, None]).sum((1, 2)).to(start.dtype)
    typical = 0.25 / rate.clamp(min=torch.finfo(start.dtype).tiny)
    law = next_event_law(
        rates,
        start,
        torch.minimum(typical, start.new_tensor(horizon / 64)),
        longest=longest_panel(model, history, start),
        shortest=model.shortest_time(history),
    )
    return law, rates


def _next_event_from(
    model: PointProcess,
    here: History,
    past: Sequence,
    paths: Dataset,
    begin: float,
    horizon: float,
) -> NextEvent:
    """The next event after ``begin``, where events are known until earlier: the mean of its laws
    after simulated ``paths`` up to there.
    """
    until = paths[:LATER].between(None, begin)
    rows = np.arange(len(until))
    history = follow(model, here, past, until, rows)
    law, rates = _law_of_next(model, history, torch.full((len(until),), begin).double(), horizon)
    shares = (np.arange(POOLED) + 0.5) / POOLED
    pooled = np.sort(law.quantiles(shares.tolist()).numpy().ravel())

    def quantile(level: float) -> float:
        place = round(level * len(pooled) - 0.5)
        return float(pooled[min(max(place, 0), len(pooled) - 1)])

    far = quantile(FAR)
    if not np.isfinite(far):
        far = begin + horizon
    likely = [quantile(level) for level in np.linspace(0, FAR, GRID // 2 + 1)[1:].tolist()]
    even = np.linspace(begin, far, GRID // 2)
    times = np.unique(np.concatenate([even, np.minimum(likely, far)]))
    grid = torch.from_numpy(times).expand(len(until), -1)
    survival = torch.exp(-law.integral_at(grid))
    by_mark = (rates(grid).double() * survival[..., None]).mean(0).numpy()
    density = by_mark.sum(-1)
    weights = torch.from_numpy(np.gradient(times))
    threshold = density_threshold(torch.from_numpy(density), weights, REGION)
    of_pairs = torch.from_numpy(by_mark)
    joint_weights = weights[:, None].expand_as(of_pairs)
    joint_threshold = density_threshold(of_pairs.flatten(), joint_weights.flatten(), REGION)
    tail = (1 - REGION) / 2
    comes = 1 - law.never
    marks = (law.marks() * comes[:, None]).sum(0) / comes.sum()
    return NextEvent(
        mean=float(law.mean().mean()),
        median=quantile(0.5),
        quantiles={level: quantile(level) for level in LEVELS},
        times=times,
        density=density,
        marks=marks.numpy(),
        never=float(law.never.mean()),
        regions=Regions(
            before=quantile(REGION),
            central=(quantile(tail), quantile(1 - tail)),
            shortest=intervals_above(times, density, threshold),
            pairs=[intervals_above(times, own, joint_threshold) for own in by_mark.T],
            calibrated=False,
        ),
    )


def _regions(law: Law, times: Floats, density: Floats, calibration: Calibration | None) -> Regions:
    """Where the next event lies with probability 90%, from the density per mark on a grid."""
    before = REGION
    central = REGION
    shortest = REGION
    pair = REGION
    if calibration is not None:
        before = calibration.time_level(REGION)
        central = calibration.region_level("central", REGION)
        shortest = calibration.region_level("shortest", REGION)
        pair = calibration.region_level("pair", REGION)
    weights = law.weights[0]
    threshold = density_threshold(law.density[0], weights, shortest)
    joint = (law.intensities * law.survival[..., None])[0]
    joint_weights = weights[:, None].expand_as(joint)
    joint_threshold = density_threshold(joint.flatten(), joint_weights.flatten(), pair)
    by_mark = [intervals_above(times, own, joint_threshold) for own in density.T]
    tail = (1 - central) / 2
    bound, low, high = law.quantiles([before, tail, (1 + central) / 2])[0].tolist()
    return Regions(
        bound,
        (low, high),
        intervals_above(times, density.sum(-1), threshold),
        by_mark,
        calibration is not None,
    )


def _density_grid(law: Law, now: float, far: float) -> Float[Tensor, "1 Q"]:
    """Times for the density: some evenly spaced up to ``far``, some where the next event is likely,
    and some ever farther apart, so that every time scale of the law is seen.
    """
    few = GRID // 4
    even = torch.linspace(now, far, GRID - 2 * few, dtype=torch.float64)
    levels = torch.linspace(0, FAR, few + 2, dtype=torch.float64)
    likely = law.quantiles(levels[1:-1].tolist())[0]
    widths = [float(panel.width[0]) for panel in law.panels]
    narrowest = min(width for width in widths if width > 0)
    reach = far - now
    shortest = min(narrowest / 16, reach / 16)
    gaps = torch.logspace(math.log10(shortest), math.log10(reach), few, dtype=torch.float64)
    apart = now + gaps
    times = torch.cat([even, likely.clamp(max=far), apart.clamp(max=far)])
    return times.sort().values[None]


def _count_levels(
    calibration: Calibration | None, now: float, horizon: float, edges: Floats
) -> tuple[Levels, ...] | None:
    """The calibrated levels of the intervals between ``edges``; None if there are none for them."""
    if calibration is None or edges[0] > now:
        return None
    lengths = np.diff(edges)
    if not nearly_equal(lengths):
        return None
    return calibration.count_levels(horizon, len(lengths))


def nearly_equal(lengths: Floats) -> bool:
    """Whether intervals have equal lengths but for changes of the clock."""
    return bool(lengths.max() <= 1.1 * lengths.min())


def _counts(paths: Dataset, edges: Floats, levels: tuple[Levels, ...] | None) -> Counts:
    counts = window_counts(paths, edges)
    low, high = np.quantile(counts, (0.05, 0.95), axis=0, method="inverted_cdf")
    total = counts.sum(2)
    total_low, total_high = np.quantile(total, (0.05, 0.95), axis=0, method="inverted_cdf")
    if levels is not None:
        total_low = np.empty(len(levels))
        total_high = np.empty(len(levels))
        ordered = np.sort(total, axis=0).astype(np.float64)
        for w, own in enumerate(levels):
            draws = ordered[:, w]
            total_low[w] = math.ceil(count_quantile(draws, own.lower(0.05)))
            total_high[w] = math.floor(count_quantile(draws, own.upper(0.95)))
    return Counts(edges, counts.mean(0), low, high, total.mean(0), total_low, total_high)


def _whole(
    paths: Dataset, edges: Floats, calibration: Calibration | None, now: float, horizon: float
) -> Counts:
    """Counts in all windows together. Intervals of counts in parts do not add up to it."""
    ends = edges[[0, -1]]
    levels = _count_levels(calibration, now, horizon, ends)
    return _counts(paths, ends, levels)


def window_counts(data: Dataset, edges: Floats) -> NDArray[np.int64]:
    """Events of every sequence per window between ``edges`` and per mark, (S, W, M)."""
    windows = len(edges) - 1
    marks = data.marks.count
    row = np.repeat(np.arange(len(data)), data.lengths)
    window = np.searchsorted(edges, data.times, side="right") - 1
    inside = (window >= 0) & (window < windows)
    cell = (row * windows + window) * marks + data.mark_ids
    counts = np.bincount(cell[inside], minlength=len(data) * windows * marks)
    return counts.reshape(len(data), windows, marks)


def _band(
    model: PointProcess,
    here: History,
    past: Sequence,
    paths: Dataset,
    now: float,
    end: float,
    progress: bool,
) -> RateBand:
    """The rate of some paths on a grid."""
    return _rate_band(*_rates_of_paths(model, here, past, paths[:BAND], now, end, progress))


def _rates_of_paths(
    model: PointProcess,
    here: History,
    past: Sequence,
    paths: Dataset,
    now: float,
    end: float,
    progress: bool,
) -> tuple[Float[Tensor, " Q"], Float[Tensor, "B Q M"]]:
    """Times of a grid, and the rate of every path there."""
    grid = torch.linspace(now, end, STEPS + 1, dtype=torch.float64)[1:]
    parts = []
    groups = paths.batches(CHUNK)
    with bar("rates of futures", len(groups), show=progress) as step:
        for done, rows in enumerate(groups):
            history = follow(model, here, past, paths, rows)
            times = grid.expand(len(rows), -1)
            rates = model.intensity(history, times).double()
            parts.append(exposed_rates(here, grid[None], rates))
            step(done + 1)
    return grid, torch.cat(parts)


def _rate_band(grid: Float[Tensor, " Q"], rate: Float[Tensor, "B Q M"]) -> RateBand:
    total = rate.sum(2).numpy()
    low, high = np.quantile(total, (0.05, 0.95), axis=0)
    mean = rate.mean(0).numpy()
    return RateBand(grid.numpy(), mean, low, high)


def follow(
    model: PointProcess, here: History, past: Sequence, paths: Dataset, rows: NDArray[np.int64]
) -> Any:
    """The history of the paths at ``rows``: gone on with from ``here`` (one row) where the model
    can, else from all events of the past.
    """
    batch = paths.batch(rows)
    if not model.linear:
        return model.encode(_joined(past, batch))
    own = select_rows(here, torch.zeros(len(rows), dtype=torch.int64))
    return model.encode(batch, own)


def _joined(past: Sequence, batch: Batch) -> Batch:
    """The past events before those of each path."""
    B = len(batch.start)

    def rows_of(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(values))[None].expand(B, *values.shape)

    places = None
    if past.places is not None and batch.places is not None:
        places = torch.cat([rows_of(past.places), batch.places], 1)
    features = None
    if past.features is not None and batch.features is not None:
        features = torch.cat([rows_of(past.features), batch.features], 1)
    known = torch.ones(B, len(past), dtype=torch.bool)
    return Batch(
        times=torch.cat([rows_of(past.times), batch.times], 1),
        marks=torch.cat([rows_of(past.marks), batch.marks], 1),
        valid=torch.cat([known, batch.valid], 1),
        start=torch.full_like(batch.start, past.start),
        stop=batch.stop,
        places=places,
        features=features,
        context=batch.context,
    )


def _past_rate(
    model: PointProcess, past: Sequence, now: float, horizon: float
) -> tuple[Floats, Floats]:
    """The total rate on the stretch before now that a picture shows; only recent events are encoded
    anew.
    """
    whole = past.batch()
    recent = whole
    before = None
    first = len(past) - RECENT
    if model.linear and first > 0:
        before = remember(model, whole.columns(0, first))
        recent = whole.columns(first, len(past))
    history = model.encode(recent, before)
    begin = max(past.start, now - 2 * horizon, float(history.times[0, 0]))
    if begin >= now:
        return np.zeros(0), np.zeros(0)
    grid = torch.linspace(begin, now, 2 * STEPS, dtype=torch.float64)[None]
    rates = model.intensity(history, grid).double()
    context = whole.context
    if context is not None and context.exposure is not None:
        rates = rates * context.exposure.at(grid)
    total = rates[0].sum(-1)
    return grid[0].numpy(), total.numpy()
