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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import (
    Batch,
    Dataset,
    MarkSpace,
    Sequence,
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
        n = self.next_event
        edges = dates.texts(self.counts.edges)
        for w, counts in enumerate(found["counts"]):
            counts["dates"] = {"start": edges[w], "stop": edges[w + 1]}
        found["whole"]["dates"] = {"start": edges[0], "stop": edges[-1]}
        quantiles = zip(n.quantiles, dates.texts(list(n.quantiles.values())), strict=True)
        found["next_event"]["dates"] = {
            "mean": dates.text(n.mean),
            "median": dates.text(n.median),
            "quantiles": {f"{p:g}": text for p, text in quantiles},
        }
        found["rate"]["dates"] = dates.texts(self.rate.times)
        now, until = dates.texts([self.at, self.at + self.horizon])
        zone = {"zone": dates.zone, "unit": dates.unit}
        return found | {"dates": {"at": now, "until": until, **zone}}

    def _by_mark(self, mean: Floats) -> str:
        """Expected events of each type, the most first, and the rest in one number."""
        first = np.argsort(-mean, kind="stable")[:SHOWN]
        parts = [f"{self.marks.names[m]} {mean[m]:.2f}" for m in first]
        if len(mean) > SHOWN:
            others = mean.sum() - mean[first].sum()
            parts.append(f"{len(mean) - SHOWN} more {others:.2f}")
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
        n = self.next_event
        c = self.counts
        dates = self.dates
        first = float(c.edges[0])
        if dates is None:
            title = f"Forecast from {first:g} to {self.at + self.horizon:g}"
        else:
            begin, end = dates.texts([first, self.at + self.horizon])
            title = f"Forecast from {begin} to {end}" + (f" ({dates.zone})" if dates.zone else "")
        table = text_table(title, title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        table.add_row("events in all", _expected(self.whole, 0))
        if len(self.marks.names) > 1:
            table.add_row("", self._by_mark(self.whole.mean[0]))
        low, high = (shown(dates, edge) for edge in n.interval)
        middle, mean = (shown(dates, time) for time in (n.median, n.mean))
        table.add_row("next event", f"median {middle}, mean {mean}, 90% interval {low} to {high}")
        if self.marks.names:
            best = np.argsort(-n.marks)[:5]
            table.add_row(
                "its mark", ", ".join(f"{self.marks.names[m]} {n.marks[m]:.1%}" for m in best)
            )
        edges = [f"{edge:.6g}" for edge in c.edges.tolist()]
        if dates is not None:
            edges = dates.texts(c.edges)
        parts = len(c.total_mean)
        for w in range(parts if parts > 1 else 0):
            end = edges[w + 1]
            if dates is not None and end[:DATE] == edges[w][:DATE]:
                end = end[DATE:]
            span = f"[{edges[w]}, {end})"
            table.add_row(f"events in {span}", _expected(c, w))
            if len(self.marks.names) > 1:
                table.add_row("", self._by_mark(c.mean[w]))
        for note in self.notes:
            table.add_row("note", note)
        return table


def _count_dict(counts: Counts, window: int, names: tuple[str, ...]) -> dict[str, Any]:
    """The counts of one window as JSON can hold them."""
    c, w = counts, window
    return {
        "start": c.edges[w],
        "stop": c.edges[w + 1],
        "total": {"mean": c.total_mean[w], "low": c.total_low[w], "high": c.total_high[w]},
        "marks": {
            k: {"mean": c.mean[w, m], "low": c.low[w, m], "high": c.high[w, m]}
            for m, k in enumerate(names)
        },
    }


def _expected(counts: Counts, window: int) -> str:
    """The mean and the interval of all events of a window."""
    low, high = counts.total_low[window], counts.total_high[window]
    return f"{counts.total_mean[window]:.2f} expected, 90% interval {low:.0f} to {high:.0f}"


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
) -> Forecast:
    """As :func:`forecast`, from ``now`` and the model's history ``here`` of one row: what a stream
    has.

    ``past`` are the events that a picture shows, and ``earlier`` times and total rates before now;
    a model that cannot go on from a history needs all of its events in ``past``. Events are counted
    in ``windows`` equal parts of the horizon, or between the times that ``windows`` holds.
    """
    parts = windows if isinstance(windows, int) else len(windows) - 1
    _check(horizon, paths, parts)
    end = now + horizon
    edges = np.linspace(now, end, parts + 1) if isinstance(windows, int) else windows
    begin = float(edges[0])
    with eval_mode(model):
        notes = _notes(model, here, end, past.dates) + carried_forward(past, end)
        if begin > now:
            notes.append(simulated_until(past.dates, now, begin))
        try:
            law, following = _next_event(model, here, now, horizon, calibration)
        except Unconverged as error:
            raise UserError(
                "a rate that can be integrated", str(error).rstrip("."), "Fit the model again."
            ) from error
        if law.never[0] > 1e-6:
            notes.append(f"with probability {float(law.never[0]):.3g} no further event comes")
        limit = path_limit(len(past), now - past.start, end - now)
        drawn = _futures(model, here, now, end, paths, seed, progress, limit)
        band = _band(model, here, past, drawn.data, now, end, progress)
    levels = _count_levels(calibration, now, float(horizon), edges)
    counts = _counts(drawn.data, edges, levels)
    whole = _whole(drawn.data, edges, calibration, now, float(horizon))
    if calibration is not None:
        notes.append(_calibrated(calibration, levels is not None))
    head = (now, float(horizon), model.marks, following, counts, band)
    return Forecast(*head, drawn.data, drawn.acceptance, tuple(notes), past, *earlier, whole)


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
    start, stop = (torch.full_like(many.start, x) for x in (now, end))
    try:
        with bar("sampling futures", 1.0, show=progress) as step:
            return advance(
                model,
                many,
                start,
                stop,
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
    return int(min(max(MOST, FACTOR * events / span * length), LARGEST_LIMIT))


def _check(horizon: float, paths: int, windows: int) -> None:
    if not (np.isfinite(horizon) and horizon > 0):
        raise UserError(
            "a positive horizon", f"{horizon}", "Pass horizon=2.0, say, in the data's unit of time."
        )
    if paths < 1 or windows < 1:
        raise UserError(
            "at least one path and one window", f"paths={paths}, windows={windows}", "Raise them."
        )


def _places(past: Sequence, rows: int) -> Float[Tensor, "B N k"] | None:
    """The places of past events, once for every row; None where they have none."""
    if past.places is None:
        return None
    return torch.from_numpy(np.array(past.places)).expand(rows, -1, -1)


def _notes(model: PointProcess, here: History, end: float, dates: Dates | None) -> list[str]:
    knots = model.knots(here)
    if knots is None or end <= float(knots[0, -1]) + 1e-9:
        return []
    last = float(knots[0, -1])
    when = f"{last:g}" if dates is None else dates.text(last)
    return [f"the model's functions of time end at {when}; after it they keep their last value"]


def simulated_until(dates: Dates | None, known: float, begin: float) -> str:
    """What to say where a forecast begins after the end of what is known.

    >>> simulated_until(None, 2.0, 3.0)
    'events are known until 2; what happens between then and 3 is simulated'
    """
    until, then = shown(dates, known), shown(dates, begin)
    return f"events are known until {until}; what happens between then and {then} is simulated"


def carried_forward(past: Sequence, end: float) -> list[str]:
    """What to say where covariates or the exposure of a sequence are not known until ``end``.

    A value is taken to be known for as long as the values before it held, by their median.

    >>> from fourpoint.events import Context, Steps
    >>> hourly = Steps(("x",), np.arange(3.0), np.ones((3, 1)), np.array([0, 3]))
    >>> past = Sequence([0.5], start=0, stop=2, context=Context(covariates=hourly))
    >>> carried_forward(past, 3.0), carried_forward(past, 8.0)
    ([], ['covariates are given until 2; their last values are carried forward to 8'])
    """
    context = past.context
    if context is None:
        return []
    found = []
    for name, steps in (("covariates", context.covariates), ("exposure", context.exposure)):
        if steps is None or len(steps.times) < 2:
            continue
        if name == "exposure" and np.isin(steps.values, (0.0, 1.0)).all():
            continue  # gaps in the recording, which say nothing of what follows
        last = float(steps.times[-1])
        if end > last + float(np.median(np.diff(steps.times))) * (1 + 1e-9):
            verb, value = ("are", "their last values are")
            if name == "exposure":
                verb, value = ("is", "its last value is")
            until = shown(past.dates, last)
            horizon = shown(past.dates, end)
            found.append(f"{name} {verb} given until {until}; {value} carried forward to {horizon}")
    return found


def _next_event(
    model: PointProcess,
    here: History,
    now: float,
    horizon: float,
    calibration: Calibration | None = None,
) -> tuple[Law, NextEvent]:
    start = torch.tensor([now], dtype=torch.float64)

    def rates(times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        return exposed_rates(here, times, last_rates(model, here, times))

    typical = 0.25 / rates(start[:, None]).sum((1, 2)).to(start.dtype).clamp(
        min=torch.finfo(start.dtype).tiny
    )
    law = next_event_law(
        rates,
        start,
        torch.minimum(typical, start.new_tensor(horizon / 64)),
        longest=longest_panel(model, here, start),
        shortest=model.shortest_time(here),
    )
    median, far = law.quantiles([0.5, FAR])[0].tolist()
    own = list(LEVELS)
    if calibration is not None:
        own = [calibration.time_level(level) for level in LEVELS]
    times = law.quantiles(own)[0].tolist()
    quantiles = dict(zip(LEVELS, times, strict=True))
    grid = _density_grid(law, now, far if np.isfinite(far) else now + horizon)
    per_mark = rates(grid).double() * torch.exp(-law.integral_at(grid))[..., None]
    regions = _regions(law, grid[0].numpy(), per_mark[0].numpy(), calibration)
    mean = float(law.mean()[0])
    marks = law.marks()[0].numpy()
    return law, NextEvent(
        mean,
        median,
        quantiles,
        grid[0].numpy(),
        per_mark[0].sum(-1).numpy(),
        marks,
        float(law.never[0]),
        regions,
    )


def _regions(law: Law, times: Floats, density: Floats, calibration: Calibration | None) -> Regions:
    """Where the next event lies with probability 90%, from the density per mark on a grid."""
    before, central, shortest, pair = REGION, REGION, REGION, REGION
    if calibration is not None:
        before = calibration.time_level(REGION)
        central = calibration.region_level("central", REGION)
        shortest = calibration.region_level("shortest", REGION)
        pair = calibration.region_level("pair", REGION)
    weights = law.weights[0]
    threshold = density_threshold(law.density[0], weights, shortest)
    joint = (law.intensities * law.survival[..., None])[0]
    every = weights[:, None].expand_as(joint)
    joint_threshold = density_threshold(joint.flatten(), every.flatten(), pair)
    bound, low, high = law.quantiles([before, (1 - central) / 2, (1 + central) / 2])[0].tolist()
    return Regions(
        bound,
        (low, high),
        intervals_above(times, density.sum(-1), threshold),
        [intervals_above(times, density[:, m], joint_threshold) for m in range(density.shape[1])],
        calibration is not None,
    )


def _density_grid(law: Law, now: float, far: float) -> Float[Tensor, "1 Q"]:
    """Times for the density: some evenly spaced up to ``far``, some where the next event is likely,
    and some ever farther apart, so that every time scale of the law is seen.
    """
    few = GRID // 4
    even = torch.linspace(now, far, GRID - 2 * few, dtype=torch.float64)
    levels = torch.linspace(0, FAR, few + 2, dtype=torch.float64)[1:-1]
    likely = law.quantiles(levels.tolist())[0].clamp(max=far)
    widths = [float(panel.width[0]) for panel in law.panels]
    first = min(width for width in widths if width > 0) / 16
    shortest = math.log10(min(first, (far - now) / 16))
    longest = math.log10(far - now)
    apart = now + torch.logspace(shortest, longest, few, dtype=torch.float64)
    return torch.cat([even, likely, apart.clamp(max=far)]).sort().values[None]


def _count_levels(
    calibration: Calibration | None, now: float, horizon: float, edges: Floats
) -> tuple[Levels, ...] | None:
    """The calibrated levels of the intervals between ``edges``; None if there are none for them."""
    if calibration is None or edges[0] > now or not nearly_equal(np.diff(edges)):
        return None
    return calibration.count_levels(horizon, len(edges) - 1)


def nearly_equal(lengths: Floats) -> bool:
    """Whether intervals have equal lengths but for changes of the clock."""
    return bool(lengths.max() <= 1.1 * lengths.min())


def _counts(paths: Dataset, edges: Floats, levels: tuple[Levels, ...] | None) -> Counts:
    counts = window_counts(paths, edges)
    low, high = np.quantile(counts, (0.05, 0.95), axis=0, method="inverted_cdf")
    total = counts.sum(2)
    total_low, total_high = np.quantile(total, (0.05, 0.95), axis=0, method="inverted_cdf")
    if levels is not None:
        ordered = np.sort(total, axis=0).astype(np.float64)
        ends = [
            (
                math.ceil(count_quantile(ordered[:, w], own.lower(0.05))),
                math.floor(count_quantile(ordered[:, w], own.upper(0.95))),
            )
            for w, own in enumerate(levels)
        ]
        total_low, total_high = np.array(ends, dtype=np.float64).T
    return Counts(edges, counts.mean(0), low, high, total.mean(0), total_low, total_high)


def _whole(
    paths: Dataset, edges: Floats, calibration: Calibration | None, now: float, horizon: float
) -> Counts:
    """Counts in all windows together. Intervals of counts in parts do not add up to it."""
    ends = edges[[0, -1]]
    return _counts(paths, ends, _count_levels(calibration, now, horizon, ends))


def window_counts(data: Dataset, edges: Floats) -> NDArray[np.int64]:
    """Events of every sequence per window between ``edges`` and per mark, (S, W, M)."""
    windows = len(edges) - 1
    M = data.marks.count
    row = np.repeat(np.arange(len(data)), data.lengths)
    window = np.searchsorted(edges, data.times, side="right") - 1
    inside = (window >= 0) & (window < windows)
    flat = ((row * windows + window) * M + data.mark_ids)[inside]
    return np.bincount(flat, minlength=len(data) * windows * M).reshape(len(data), windows, M)


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
            found = model.intensity(history, grid.expand(len(rows), -1)).double()
            parts.append(exposed_rates(here, grid[None], found))
            step(done + 1)
    return grid, torch.cat(parts)


def _rate_band(grid: Float[Tensor, " Q"], rate: Float[Tensor, "B Q M"]) -> RateBand:
    low, high = np.quantile(rate.sum(2).numpy(), (0.05, 0.95), axis=0)
    return RateBand(grid.numpy(), rate.mean(0).numpy(), low, high)


def follow(
    model: PointProcess, here: History, past: Sequence, paths: Dataset, rows: NDArray[np.int64]
) -> Any:
    """The history of the paths at ``rows``: gone on with from ``here`` (one row) where the model
    can, else from all events of the past.
    """
    batch = paths.batch(rows)
    if model.linear:
        return model.encode(batch, select_rows(here, torch.zeros(len(rows), dtype=torch.int64)))
    return model.encode(_joined(past, batch))


def _joined(past: Sequence, batch: Batch) -> Batch:
    """The past events before those of each path."""
    B = len(batch.start)
    n = len(past)
    times, marks = (torch.from_numpy(np.array(x)).expand(B, n) for x in (past.times, past.marks))
    valid = torch.cat([torch.ones(B, n, dtype=torch.bool), batch.valid], 1)
    start = torch.full_like(batch.start, past.start)
    own = _places(past, B)
    places = None if own is None or batch.places is None else torch.cat([own, batch.places], 1)
    features = None
    if past.features is not None and batch.features is not None:
        known = torch.from_numpy(np.array(past.features)).expand(B, -1, -1)
        features = torch.cat([known, batch.features], 1)
    return Batch(
        torch.cat([times, batch.times], 1),
        torch.cat([marks, batch.marks], 1),
        valid,
        start,
        batch.stop,
        places,
        features,
        context=batch.context,
    )


def _past_rate(
    model: PointProcess, past: Sequence, now: float, horizon: float
) -> tuple[Floats, Floats]:
    """The total rate on the stretch before now that a picture shows; only recent events are encoded
    anew.
    """
    whole = past.batch()
    first = max(0, len(past) - RECENT) if model.linear else 0
    before = remember(model, whole.columns(0, first)) if first else None
    history = model.encode(whole.columns(first, len(past)) if first else whole, before)
    begin = max(past.start, now - 2 * horizon, float(history.times[0, 0]))
    if begin >= now:
        return np.zeros(0), np.zeros(0)
    grid = torch.linspace(begin, now, 2 * STEPS, dtype=torch.float64)[None]
    rates = model.intensity(history, grid).double()
    exposure = None if whole.context is None else whole.context.exposure
    if exposure is not None:
        rates = rates * exposure.at(grid)
    return grid[0].numpy(), rates[0].sum(-1).numpy()
