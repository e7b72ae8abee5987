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
    catalogue: NDArray[np.int64]
    count: int
    start: float
    stop: float

    def counts(self) -> NDArray[np.int64]:
        """Events of each catalogue."""
        return np.bincount(self.catalogue, minlength=self.count)

    def gridded(self, grid: Grid) -> NDArray[np.int64]:
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
        ends = zip(np.asarray(low).tolist(), np.asarray(high).tolist(), strict=True)
        x, y = (np.linspace(a, b, max(1, round((b - a) / size)) + 1) for a, b in ends)
        return Grid(x, y)

    @property
    def cells(self) -> int:
        """Number of cells."""
        return (len(self.x) - 1) * (len(self.y) - 1)

    def cell_of(self, places: Floats) -> NDArray[np.int64]:
        """The cell of each place, -1 outside."""
        index = []
        inside = np.ones(len(places), dtype=bool)
        for axis, edges in enumerate((self.x, self.y)):
            at = np.searchsorted(edges, places[:, axis], side="right") - 1
            at = np.where(places[:, axis] == edges[-1], len(edges) - 2, at)
            inside &= (at >= 0) & (at < len(edges) - 1)
            index.append(at)
        flat = index[0] * (len(self.y) - 1) + index[1]
        return np.where(inside, flat, -1)


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
    above = float((values >= observed).mean())
    return Quantiles(float(observed), above, float((values <= observed).mean()))


def number_test(forecast: Catalogues, observed: int) -> Quantiles:
    """The number of events."""
    return quantiles(forecast.counts(), observed)


def spatial_test(forecast: NDArray[np.int64], observed: NDArray[np.int64]) -> Quantiles | None:
    """The mean log density of cells at events: ``forecast`` are counts of each catalogue in each
    cell, ``observed`` counts in each cell. Cells in which no catalogue has events are left out of
    what is observed. None where nothing is observed or forecast.
    """
    total = forecast.mean(0)
    if not observed.sum() or not total.sum():
        return None
    density = total / total.sum()
    with np.errstate(divide="ignore"):
        logs = np.where(density > 0, np.log(density), 0.0)
    sizes = forecast.sum(1)
    simulated = (forecast @ logs)[sizes > 0] / sizes[sizes > 0]
    known = np.where(density > 0, observed, 0)
    if not known.sum():
        return None
    return quantiles(simulated, float(known @ logs) / float(known.sum()))


def pseudo_likelihood_test(
    forecast: NDArray[np.int64], observed: NDArray[np.int64]
) -> Quantiles | None:
    """sum of log mean counts of cells at events less the mean number, as in
    :func:`spatial_test`.
    """
    total = forecast.mean(0)
    known = np.where(total > 0, observed, 0)
    if not known.sum():
        return None
    with np.errstate(divide="ignore"):
        logs = np.where(total > 0, np.log(total), 0.0)
    expected = float(total.sum())
    return quantiles(forecast @ logs - expected, float(known @ logs) - expected)


def magnitude_test(forecast: Catalogues, observed: Floats, edges: Floats) -> Quantiles | None:
    """The sum over bins of squared differences of log10(1 + counts) from the histogram of all
    catalogues, scaled to the number observed; the last bin is open. None where nothing is observed
    or forecast.
    """
    if not len(observed) or not len(forecast.times):
        return None
    every = _histogram(forecast.magnitudes, edges)
    own = np.zeros((forecast.count, len(edges)))
    np.add.at(own, (forecast.catalogue, _bins(forecast.magnitudes, edges)), 1.0)
    size = len(observed)
    wanted = np.log10(every * size / every.sum() + 1)
    counts = own.sum(1)
    full = counts > 0
    scaled = np.log10(own[full] * (size / counts[full])[:, None] + 1)
    found = ((scaled - wanted) ** 2).sum(1)
    seen = ((np.log10(_histogram(observed, edges) + 1) - wanted) ** 2).sum()
    return quantiles(found, float(seen))


def _bins(magnitudes: Floats, edges: Floats) -> NDArray[np.int64]:
    return np.clip(np.searchsorted(edges, magnitudes + 1e-9, side="right") - 1, 0, len(edges) - 1)


def _histogram(magnitudes: Floats, edges: Floats) -> Floats:
    return np.bincount(_bins(magnitudes, edges), minlength=len(edges)).astype(np.float64)


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
    t = gain / error if error > 0 else math.inf * np.sign(gain)
    half = float(stats.t.ppf(0.975, size - 1)) * error
    z, p = _signed_ranks(change - shift)
    tail = 2 * float(stats.t.sf(abs(t), size - 1))
    return InformationGain(gain, gain - half, gain + half, float(t), tail, z, p, size)


def _signed_ranks(change: Floats) -> tuple[float, float]:
    """Wilcoxon's signed-rank test that the median is 0: z by the normal approximation with ties,
    and the two-sided p-value.
    """
    from scipy import stats

    change = change[change != 0]
    count = len(change)
    if not count:
        return 0.0, 1.0
    ranks = stats.rankdata(np.abs(change))
    smaller = min(ranks[change > 0].sum(), ranks[change < 0].sum())
    _, tied = np.unique(ranks, return_counts=True)
    mean = count * (count + 1) / 4
    variance = count * (count + 1) * (2 * count + 1) - (tied * (tied**2 - 1)).sum() / 2
    z = (smaller - mean) / math.sqrt(variance / 24)
    return float(z), float(2 * stats.norm.sf(abs(z)))


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
        starts = starts[np.linspace(0, len(starts) - 1, most).astype(int)]
    width = max(h - low for low, h in zip(model.box.low, model.box.high, strict=True))
    grid = Grid.over(model.box.low, model.box.high, width / 30 if cell is None else cell)
    magnitudes = None if one.features is None else one.features[:, model.magnitude_column]
    passed: dict[str, list[bool]] = {name: [] for name in ("number", "spatial", "size", "pseudo")}
    expected, observed = [], []
    expected_cells, observed_cells = np.zeros(grid.cells), np.zeros(grid.cells)
    with torch.no_grad():
        encoded = model.encode(one.batch())
    with bar("forecasts", len(starts), show=progress) as step:
        for k, start in enumerate(starts.tolist()):
            stop = start + length
            forecast = simulated_catalogues(model, one, start, stop, catalogues, seed + k, encoded)
            now = (one.times >= start) & (one.times < stop)
            own = np.bincount(_inside(grid.cell_of(one.places[now])), minlength=grid.cells)
            counts = forecast.gridded(grid)
            number = number_test(forecast, int(now.sum()))
            passed["number"].append(min(number.delta_1, number.delta_2) > LEVEL / 2)
            for name, found in (
                ("spatial", spatial_test(counts, own)),
                ("pseudo", pseudo_likelihood_test(counts, own)),
            ):
                if found is not None:
                    passed[name].append(found.delta_2 > LEVEL)
            if magnitudes is not None and now.any():
                edges = np.arange(float(model.mc), float(magnitudes.max()) + 0.1, 0.1)
                size = magnitude_test(forecast, magnitudes[now], edges)
                if size is not None:
                    passed["size"].append(size.delta_1 > LEVEL)
            expected_cells += counts.mean(0)
            observed_cells += own
            expected.append(len(forecast.times) / catalogues)
            observed.append(int(now.sum()))
            step(k + 1)
    shares = {name: float(np.mean(own)) if own else math.nan for name, own in passed.items()}
    return DailyTests(
        len(starts),
        shares["number"],
        shares["spatial"],
        len(passed["spatial"]),
        shares["size"],
        shares["pseudo"],
        float(np.mean(expected)) if expected else math.nan,
        float(np.mean(observed)) if observed else math.nan,
        grid,
        expected_cells,
        observed_cells,
    )


def _inside(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    return cells[cells >= 0]


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
    ticks = np.round(forecast.times * SECONDS[unit] * 1e6).astype("timedelta64[us]")
    stamps = np.datetime_as_string(origin.astype("datetime64[us]") + ticks, unit="us")
    order = np.lexsort((forecast.times, forecast.catalogue))
    lines = [HEADER]
    counts = forecast.counts()
    at = 0
    for number in range(forecast.count):
        if not counts[number]:
            lines.append(f",,,,,{number},")
        for k, i in enumerate(order[at : at + counts[number]]):
            lines.append(
                f"{longitude[i]:.6f},{latitude[i]:.6f},{forecast.magnitudes[i]:.4f},{stamps[i]},"
                f"0.0,{number},{k}"
            )
        at += counts[number]
    write_atomic(Path(path), "\n".join(lines) + "\n")
