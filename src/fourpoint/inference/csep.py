r"""Catalogue forecasts and their tests, as the Collaboratory for the Study of Earthquake
Predictability (CSEP) defines them.

A forecast is a set of simulated catalogues for a stretch of time. It is tested against the observed
events by the place of a statistic among those of the simulated catalogues: the number of events;
the mean log density of places in cells of a map (spatial); the squared difference of the
logarithmic histogram of magnitudes from that of all catalogues (magnitude); and the pseudo
log-likelihood of counts in cells. For a statistic s,

    delta_1 = share of catalogues with a statistic >= s,    delta_2 = share with one <= s.

Two models are compared by the information gain per event: the mean difference of log rates at
observed events less the difference of expected numbers per event, with Student's t-test and
Wilcoxon's signed-rank test. All statistics agree with pyCSEP's, which is not needed for them;
:func:`write_csep` writes forecasts that it reads.

Sources: Savran et al., "Pseudoprospective evaluation of UCERF3-ETAS forecasts during the 2019
Ridgecrest sequence" (2020); Rhoades et al., "Efficient testing of earthquake forecasting models"
(2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fourpoint.atomic import write_atomic
from fourpoint.events import Dataset, Sequence, UserError, only_sequence
from fourpoint.models.etas import ETAS, ETASHistory
from fourpoint.ops.regions import unproject
from fourpoint.report.printing import bar

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
HEADER = "lon,lat,M,time_string,depth,catalog_id,event_id"
LEVEL = 0.05  # of the tests


class Quantiles(NamedTuple):
    """Where an observed statistic lies among those of simulated catalogues."""

    observed: float
    delta_1: float  # share of catalogues with a statistic at least as large
    delta_2: float  # share with one at most as large


@dataclass(frozen=True)
class Catalogues:
    """Simulated catalogues from ``start`` to ``stop``, in the unit of time and km.

    Events stand in no order; ``catalogue`` says which of ``count`` each belongs to.
    """

    times: Floats
    places: Floats
    magnitudes: Floats
    catalogue: Integers
    count: int
    start: float
    stop: float

    def counts(self) -> Integers:
        """Events of each catalogue."""
        return np.bincount(self.catalogue, minlength=self.count)

    def gridded(self, grid: Grid) -> Integers:
        """Events of each catalogue in each cell, (count, cells); events outside are left out."""
        cell = grid.cell_of(self.places)
        kept = cell >= 0
        flat = self.catalogue[kept] * grid.cells + cell[kept]
        found = np.bincount(flat, minlength=self.count * grid.cells)
        return found.reshape(self.count, grid.cells)


@dataclass(frozen=True)
class Grid:
    """Cells of a map between edges along x and y.

    >>> Grid.over((0.0, 0.0), (2.0, 1.0), 1.0).cell_of(np.array([[1.5, 0.5], [3.0, 0.0]])).tolist()
    [1, -1]
    """

    x: Floats
    y: Floats

    @staticmethod
    def over(low: ArrayLike, high: ArrayLike, size: float) -> Grid:
        """Cells of about ``size`` by ``size`` over a box."""
        edges = []
        for a, b in zip(np.asarray(low).tolist(), np.asarray(high).tolist(), strict=True):
            cells = max(1, round((b - a) / size))
            edges.append(np.linspace(a, b, cells + 1))
        x, y = edges
        return Grid(x, y)

    @property
    def cells(self) -> int:
        """Number of cells."""
        columns = len(self.x) - 1
        rows = len(self.y) - 1
        return columns * rows

    def cell_of(self, places: Floats) -> Integers:
        """The cell of each place, -1 outside."""
        column = _interval_of(self.x, places[:, 0])
        row = _interval_of(self.y, places[:, 1])
        cell = column * (len(self.y) - 1) + row
        inside = (column >= 0) & (row >= 0)
        return np.where(inside, cell, -1)


def _interval_of(edges: Floats, values: Floats) -> Integers:
    """The interval between edges that each value lies in, -1 outside; the last one is closed."""
    last = len(edges) - 2
    found = np.searchsorted(edges, values, side="right") - 1
    found = np.where(values == edges[-1], last, found)
    return np.where(found > last, -1, found)


def simulated_catalogues(
    model: ETAS,
    history: Sequence | Dataset,
    start: float,
    stop: float,
    count: int,
    seed: int,
    encoded: ETASHistory | None = None,
) -> Catalogues:
    """``count`` catalogues on [start, stop) given the events of ``history`` before ``start``;
    ``encoded`` is ``history`` as the model encodes it, so that this is done once for many starts.

    Raises :class:`UserError` for a model without places, or a path that explodes.
    """
    known = only_sequence(history).before(start)
    random = torch.Generator().manual_seed(seed)
    drawn = model.draw_catalogues(known.batch(), start, stop, count, random, encoded)
    magnitudes = np.zeros(len(drawn.time))
    if drawn.features is not None:
        magnitudes = drawn.features[:, model.magnitude_column].numpy()
    return Catalogues(
        drawn.time.numpy(),
        drawn.place.numpy(),
        magnitudes,
        drawn.row.numpy(),
        count,
        start,
        stop,
    )


def quantiles(simulated: ArrayLike, observed: float) -> Quantiles:
    """Both shares.

    >>> quantiles([1, 2, 2, 3], 2)
    Quantiles(observed=2.0, delta_1=0.75, delta_2=0.75)
    """
    values = np.asarray(simulated, dtype=np.float64)
    if not len(values):
        return Quantiles(float(observed), math.nan, math.nan)
    at_least = values >= observed
    at_most = values <= observed
    return Quantiles(float(observed), float(at_least.mean()), float(at_most.mean()))


def number_test(forecast: Catalogues, observed: int) -> Quantiles:
    """The number of events."""
    return quantiles(forecast.counts(), observed)


def spatial_test(forecast: Integers, observed: Integers) -> Quantiles | None:
    """The mean log density of cells at events: ``forecast`` are counts of each catalogue in each
    cell, ``observed`` counts in each cell. Cells in which no catalogue has events are left out of
    what is observed. None where nothing is observed or forecast.
    """
    total = forecast.mean(0)
    if not observed.sum() or not total.sum():
        return None
    density = total / total.sum()
    known = np.where(density > 0, observed, 0)
    events = known.sum()
    if not events:
        return None
    logs = _logs(density)
    sizes = forecast.sum(1)
    some = sizes > 0
    simulated = (forecast @ logs)[some] / sizes[some]
    return quantiles(simulated, float(known @ logs) / float(events))


def pseudo_likelihood_test(forecast: Integers, observed: Integers) -> Quantiles | None:
    """sum of log mean counts of cells at events less the mean number, as in
    :func:`spatial_test`.
    """
    total = forecast.mean(0)
    known = np.where(total > 0, observed, 0)
    if not known.sum():
        return None
    logs = _logs(total)
    expected = float(total.sum())
    simulated = forecast @ logs - expected
    return quantiles(simulated, float(known @ logs) - expected)


def _logs(values: Floats) -> Floats:
    """Logarithms, 0 where a value is 0."""
    with np.errstate(divide="ignore"):
        return np.where(values > 0, np.log(values), 0.0)


def magnitude_test(forecast: Catalogues, observed: Floats, edges: Floats) -> Quantiles | None:
    """The sum over bins of squared differences of log10(1 + counts) from the histogram of all
    catalogues, scaled to the number observed; the last bin is open. None where nothing is observed
    or forecast.
    """
    if not len(observed) or not len(forecast.times):
        return None
    size = len(observed)
    union = _histogram(forecast.magnitudes, edges)
    wanted = np.log10(union * size / union.sum() + 1)
    each = np.zeros((forecast.count, len(edges)))
    np.add.at(each, (forecast.catalogue, _bins(forecast.magnitudes, edges)), 1.0)
    each = each[each.any(1)]
    factor = size / each.sum(1, keepdims=True)
    scaled = np.log10(each * factor + 1)
    simulated = ((scaled - wanted) ** 2).sum(1)
    own = np.log10(_histogram(observed, edges) + 1)
    distance = ((own - wanted) ** 2).sum()
    return quantiles(simulated, float(distance))


def _bins(magnitudes: Floats, edges: Floats) -> Integers:
    last = len(edges) - 1
    found = np.searchsorted(edges, magnitudes + 1e-9, side="right") - 1
    return np.clip(found, 0, last)


def _histogram(magnitudes: Floats, edges: Floats) -> Floats:
    counts = np.bincount(_bins(magnitudes, edges), minlength=len(edges))
    return counts.astype(np.float64)


@dataclass(frozen=True)
class InformationGain:
    """Of a model over another, in nats per event, with a 95% interval and the p-values of both
    tests.
    """

    gain: float
    low: float
    high: float
    t_statistic: float
    t_p: float
    w_statistic: float
    w_p: float
    events: int

    def __str__(self) -> str:
        return (
            f"information gain {self.gain:.4f} nats per event (95% {self.low:.4f} to "
            f"{self.high:.4f}), t-test p {self.t_p:.2g}, W-test p {self.w_p:.2g}, "
            f"{self.events:,} events"
        )


def information_gain(
    log_rates: Floats, other_log_rates: Floats, expected: float, other_expected: float
) -> InformationGain:
    """The gain of a model over another from log rates at the same N events and the expected
    numbers of events.

    Events count as independent; for blocks of a log see `fp.difference`. Raises
    :class:`UserError` for fewer than two events.

    >>> found = information_gain(np.log([2.0, 3.0, 2.5]), np.log([1.0, 1.0, 1.5]), 3.0, 3.0)
    >>> round(found.gain, 3)
    0.768
    """
    from scipy import stats

    size = len(log_rates)
    if size < 2 or len(other_log_rates) != size:
        raise UserError(
            "log rates of two models at the same two or more events",
            f"{size} and {len(other_log_rates)}",
            "Score both models on the same data.",
        )
    change = np.asarray(log_rates) - np.asarray(other_log_rates)
    shift = (expected - other_expected) / size
    gain = float(change.mean() - shift)
    error = float(change.std(ddof=1)) / math.sqrt(size)
    t = math.inf * np.sign(gain)
    if error > 0:
        t = gain / error
    half = float(stats.t.ppf(0.975, size - 1)) * error
    upper_tail = float(stats.t.sf(abs(t), size - 1))
    z, p = _signed_ranks(change - shift)
    return InformationGain(
        gain=gain,
        low=gain - half,
        high=gain + half,
        t_statistic=float(t),
        t_p=2 * upper_tail,
        w_statistic=z,
        w_p=p,
        events=size,
    )


def _signed_ranks(change: Floats) -> tuple[float, float]:
    """Wilcoxon's signed-rank test that the median is 0: z by the normal approximation with ties,
    and the two-sided p-value.
    """
    from scipy import stats

    change = change[change != 0]
    n = len(change)
    if not n:
        return 0.0, 1.0
    ranks = stats.rankdata(np.abs(change))
    up = ranks[change > 0].sum()
    down = ranks[change < 0].sum()
    mean = n * (n + 1) / 4
    _, tied = np.unique(ranks, return_counts=True)
    ties = (tied * (tied**2 - 1)).sum() / 2
    variance = n * (n + 1) * (2 * n + 1) - ties
    z = (min(up, down) - mean) / math.sqrt(variance / 24)
    p = 2 * stats.norm.sf(abs(z))
    return float(z), float(p)


@dataclass(frozen=True)
class DailyTests:
    """Tests of forecasts of successive stretches of time: which were passed at the level .05."""

    days: int
    number: float  # share passed, two-sided: both shares above .025
    spatial: float  # share passed, one-sided: delta_2 above .05; of the days with events
    spatial_days: int
    magnitude: float  # one-sided: delta_1 above .05
    pseudo_likelihood: float
    expected: float  # mean number of events in the forecasts
    observed: float
    grid: Grid
    expected_cells: Floats  # events expected in each cell, all forecasts together
    observed_cells: Floats

    def __str__(self) -> str:
        return (
            f"{self.days} forecasts, {self.expected:.2f} events expected and {self.observed:.2f} "
            f"observed per forecast: number test passed by {self.number:.1%}, spatial by "
            f"{self.spatial:.1%} of {self.spatial_days} with events, magnitude by "
            f"{self.magnitude:.1%}, pseudo-likelihood by {self.pseudo_likelihood:.1%} (nominal 95%)"
        )


def daily_tests(
    model: ETAS,
    data: Sequence | Dataset,
    *,
    length: float = 1.0,
    catalogues: int = 200,
    cell: float | None = None,
    most: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> DailyTests:
    """Forecast each stretch of ``length`` of the scored time given all events before it, and test
    it.

    Arguments
        data: one sequence, whose history period is not forecast.
        length: in the unit of time.
        catalogues: simulated for each forecast.
        cell: width of the cells of the map in km; a thirtieth of the region by default.
        most: at most so many stretches, spread evenly; all by default.
    """
    one = only_sequence(data)
    if one.places is None or model.box is None:
        raise UserError("events with places", "events without", "Read them with place=.")
    begin = one.start
    if one.context is not None and one.context.scored_from is not None:
        begin = float(one.context.scored_from[0])
    starts = np.arange(begin, one.stop - length * (1 - 1e-9), length)
    if most is not None and len(starts) > most:
        spread = np.linspace(0, len(starts) - 1, most)
        starts = starts[spread.astype(int)]
    low = model.box.low
    high = model.box.high
    if cell is None:
        cell = max(b - a for a, b in zip(low, high, strict=True)) / 30
    grid = Grid.over(low, high, cell)
    magnitudes = None
    if one.features is not None:
        magnitudes = one.features[:, model.magnitude_column]
    number: list[bool] = []
    spatial: list[bool] = []
    magnitude: list[bool] = []
    pseudo: list[bool] = []
    expected: list[float] = []
    observed: list[int] = []
    expected_cells = np.zeros(grid.cells)
    observed_cells = np.zeros(grid.cells)
    with torch.no_grad():
        encoded = model.encode(one.batch())
    with bar("forecasts", len(starts), show=progress) as step:
        for k, start in enumerate(starts.tolist()):
            stop = start + length
            forecast = simulated_catalogues(model, one, start, stop, catalogues, seed + k, encoded)
            now = (one.times >= start) & (one.times < stop)
            events = int(now.sum())
            counts = forecast.gridded(grid)
            cells = grid.cell_of(one.places[now])
            own = np.bincount(cells[cells >= 0], minlength=grid.cells)
            found = number_test(forecast, events)
            number.append(min(found.delta_1, found.delta_2) > LEVEL / 2)
            of_places = spatial_test(counts, own)
            if of_places is not None:
                spatial.append(of_places.delta_2 > LEVEL)
            of_counts = pseudo_likelihood_test(counts, own)
            if of_counts is not None:
                pseudo.append(of_counts.delta_2 > LEVEL)
            if magnitudes is not None and events:
                edges = np.arange(float(model.mc), float(magnitudes.max()) + 0.1, 0.1)
                of_sizes = magnitude_test(forecast, magnitudes[now], edges)
                if of_sizes is not None:
                    magnitude.append(of_sizes.delta_1 > LEVEL)
            expected_cells += counts.mean(0)
            observed_cells += own
            expected.append(len(forecast.times) / catalogues)
            observed.append(events)
            step(k + 1)
    return DailyTests(
        days=len(starts),
        number=_mean(number),
        spatial=_mean(spatial),
        spatial_days=len(spatial),
        magnitude=_mean(magnitude),
        pseudo_likelihood=_mean(pseudo),
        expected=_mean(expected),
        observed=_mean(observed),
        grid=grid,
        expected_cells=expected_cells,
        observed_cells=observed_cells,
    )


def _mean(values: Ordered[float]) -> float:
    """The mean, NaN of nothing."""
    if not values:
        return math.nan
    return float(np.mean(values))


def write_csep(
    forecast: Catalogues,
    path: str | Path,
    *,
    origin: np.datetime64,
    centre: tuple[float, float],
    unit: str = "days",
) -> None:
    """Write a forecast as CSV that pyCSEP reads (``csep.load_catalog_forecast``).

    Arguments
        origin: the date of time 0, UTC.
        centre: longitude and latitude about which places were projected (`ops.regions.project`).
        unit: of time.

    Catalogues without events are rows with a number alone. Depths are 0.
    """
    from fourpoint.events.dates import SECONDS

    longitude, latitude = unproject(forecast.places, centre)
    microseconds = np.round(forecast.times * SECONDS[unit] * 1e6)
    dates = origin.astype("datetime64[us]") + microseconds.astype("timedelta64[us]")
    stamps = np.datetime_as_string(dates, unit="us")
    order = np.lexsort((forecast.times, forecast.catalogue))
    lines = [HEADER]
    at = 0
    for number, count in enumerate(forecast.counts()):
        if not count:
            lines.append(f",,,,,{number},")
        for k, i in enumerate(order[at : at + count]):
            place = f"{longitude[i]:.6f},{latitude[i]:.6f}"
            magnitude = f"{forecast.magnitudes[i]:.4f}"
            lines.append(f"{place},{magnitude},{stamps[i]},0.0,{number},{k}")
        at += count
    write_atomic(Path(path), "\n".join(lines) + "\n")
