r"""Where events are to be expected: the intensity over the box at a time, or its mean over a
stretch of the future.

    intensity_map  lambda(t, x) = sum_m lambda_m(t, x) on a grid,
        given the events up to and including t
    expected_map     (1 / horizon) E[ int lambda(t, x) dt ] over sampled futures

A box of more than two axes is shown over two of them, integrated over the others. Rates are per
unit of time and of what is shown: area for two axes, length for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Box, Dataset, Sequence, UserError, check_marks, only_sequence
from fourpoint.events.dates import Moment, shown
from fourpoint.inference.forecasting import Forecast, follow
from fourpoint.inference.sampling import eval_mode, remember
from fourpoint.models.base import History, PointProcess, position_before
from fourpoint.models.spatial.cells import Cells
from fourpoint.report.printing import bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
POINTS = 2**16  # places asked at once
PATHS = 64  # paths encoded at once
MOMENTS, FEWEST_MOMENTS = (
    4096,
    4,
)  # of all paths together, and of each, at which an expected map reads the rate
GOLDEN = (5**0.5 - 1) / 2  # shifts the moments of one path against those of the next


@dataclass(frozen=True)
class RateMap:
    """A rate over one or two axes of a box: ``edges`` are cell middles of each axis shown, ``rate``
    has one value per cell.
    """

    at: float
    names: tuple[str, ...]
    middles: tuple[Floats, ...]
    rate: Floats
    places: Floats  # of past events, on the axes shown
    ages: Floats  # of those, in units of time
    title: str

    def plot(self, ax: Axes | None = None, unit: str = "") -> Axes:
        """A map, or for one axis a profile, with the past events of the last fifth of the window
        and fainter ones before.
        """
        from fourpoint.plots.charts import singular
        from fourpoint.plots.maps import map_plot, profile_plot

        per = (
            f"events per {singular(unit or 'unit of time')} and "
            f"{'unit area' if len(self.names) == 2 else self.names[0]}"
        )
        oldest = float(self.ages.max(initial=0.0)) or 1.0
        if len(self.names) == 1:
            return profile_plot(
                self.middles[0],
                self.rate,
                places=self.places[:, 0],
                name=self.names[0],
                label=per,
                title=self.title,
                ax=ax,
            )
        return map_plot(
            self.middles[0],
            self.middles[1],
            self.rate,
            places=self.places,
            ages=self.ages / oldest,
            names=(self.names[0], self.names[1]),
            label=per,
            title=self.title,
            ax=ax,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the events, as JSON can hold it."""
        axes = {
            name: middles.tolist() for name, middles in zip(self.names, self.middles, strict=True)
        }
        return {"at": self.at, "axes": axes, "rate": self.rate.tolist()}


def intensity_map(
    model: PointProcess,
    sequence: Sequence | Dataset,
    at: Moment | None = None,
    *,
    cells: int = 96,
    axes: tuple[int, ...] | None = None,
    mark: int | None = None,
) -> RateMap:
    """The intensity over the box at time ``at``, the end of the window by default, given the events
    up to and including it.

    It is the mean over each cell for Poisson and Hawkes processes, and for others the value in its
    middle.

    Args:
        cells: cells per axis shown.
        axes: which axes of the box to show, one or two; by default the first two.
        mark: the number of one type; all types together by default.

    Raises :class:`UserError` where the model has no box or ``at`` lies outside the window.

    >>> from fourpoint.events import MarkSpace
    >>> from fourpoint.models.spatial.hawkes import SpatialHawkes
    >>> square = MarkSpace(box=Box(("x", "y"), (0, 0), (1, 1)))
    >>> truth = SpatialHawkes(square, baseline=5.0, branching=0.5, decay=1.0, spread=0.1)
    >>> found = intensity_map(
    ...     truth,
    ...     Sequence([1.0], start=0, stop=2, space=square, places=[[0.5, 0.5]]),
    ...     at=1.5,
    ...     cells=50,
    ... )
    >>> round(found.rate.mean(), 3)  # the integral over the square: 5 + .5 exp(-.5)
    np.float64(5.303)
    """
    box = _box_of(model)
    sequence = only_sequence(sequence)
    check_marks(model.marks, sequence.space)
    past = sequence.until(at)
    grid = Cells(box, _shown(box, axes), cells)
    now = past.stop
    with eval_mode(model):
        rates = _at_now(model, remember(model, past.batch()), now, grid)
    when = shown(past.dates, now)
    return _map(now, grid, _of_mark(rates, mark), past, f"Intensity at {when}")


def expected_map(
    model: PointProcess,
    forecast: Forecast,
    *,
    cells: int = 64,
    axes: tuple[int, ...] | None = None,
    mark: int | None = None,
    progress: bool = False,
) -> RateMap:
    """The mean rate over the horizon of ``forecast``: the expected events of each place, per unit
    of time.

    It is the mean of the conditional intensity over all paths that were sampled: in closed form
    over time and place for Poisson and Hawkes processes, at 4,096 moments or more for others, at
    least 4 of every path. Other arguments as in :func:`intensity_map`; ``progress`` shows a bar on
    stderr.

    >>> import fourpoint as fp
    >>> square = fp.MarkSpace(box=Box(("x", "y"), (0, 0), (1, 1)))
    >>> truth = fp.SpatialHawkes(square, baseline=5.0, branching=0.5, decay=1.0, spread=0.1)
    >>> past = Sequence([1.0], start=0, stop=2, space=square, places=[[0.5, 0.5]])
    >>> ahead = fp.forecast(truth, past, horizon=1.0, at=1.5, paths=50)
    >>> expected_map(truth, ahead, cells=8).rate.shape
    (8, 8)
    """
    box = _box_of(model)
    grid = Cells(box, _shown(box, axes), cells)
    with eval_mode(model):
        rates = _over_paths(model, forecast, grid, progress)
    end = forecast.at + forecast.horizon
    first, last = (shown(forecast.dates, edge) for edge in (forecast.at, end))
    title = f"Expected rate from {first} to {last}"
    return _map(forecast.at, grid, _of_mark(rates, mark), forecast.past, title)


def plot_map(
    model: PointProcess,
    sequence: Sequence | Dataset,
    at: Moment | None = None,
    *,
    unit: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw :func:`intensity_map`: the intensity over the box at ``at``, with the events before.

    >>> import fourpoint as fp
    >>> square = fp.MarkSpace(box=Box(("x", "y"), (0, 0), (1, 1)))
    >>> truth = fp.SpatialHawkes(square, baseline=5.0, branching=0.5, decay=1.0, spread=0.1)
    >>> past = Sequence([1.0], start=0, stop=2, space=square, places=[[0.5, 0.5]])
    >>> ax = plot_map(truth, past, at=1.5, unit="days")
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('x', 'y')
    """
    return intensity_map(model, sequence, at).plot(ax, unit)


def _at_now(
    model: PointProcess, history: History, now: float, cells: Cells
) -> Float[Tensor, "C M"]:
    """The rate of each type in every cell at ``now``, seen from the last position of a history of
    one row.
    """
    closed = model.expected_in_cells(history, None, now, now, cells)
    if closed is not None:
        return closed
    times = torch.tensor([[now]], dtype=torch.float64)
    return _in_cells(model, history, times, history.lengths[:, None], cells)


def _over_paths(
    model: PointProcess, forecast: Forecast, cells: Cells, progress: bool
) -> Float[Tensor, "C M"]:
    """The rate of each type in every cell, as the mean over the paths and the horizon of
    ``forecast``.

    Models with a closed form give it at once. Others are asked at moments of every path, evenly
    apart and shifted from path to path, so that together they cover the horizon densely.
    """
    past = forecast.past
    paths = forecast.paths
    begin = forecast.at
    history = remember(model, past.batch())
    closed = model.expected_in_cells(history, paths, begin, begin + forecast.horizon, cells)
    if closed is not None:
        return closed
    moments = max(FEWEST_MOMENTS, -(-MOMENTS // len(paths)))
    total = torch.zeros(len(cells), model.marks.count, dtype=torch.float64)
    groups = paths.batches(PATHS)
    with bar("map", len(groups), show=progress) as step:
        for done, rows in enumerate(groups):
            shift = torch.from_numpy((rows + 0.5) * GOLDEN % 1.0)
            share = (torch.arange(moments, dtype=torch.float64) + shift[:, None]) / moments
            times = begin + forecast.horizon * share
            ahead = follow(model, history, past, paths, rows)
            mean = _in_cells(model, ahead, times, position_before(ahead, times), cells)
            total += mean * (len(rows) / len(paths))
            step(done + 1)
    return total


def _in_cells(
    model: PointProcess,
    history: History,
    times: Float[Tensor, "B T"],
    seen: Int[Tensor, "B T"],
    cells: Cells,
) -> Float[Tensor, "C M"]:
    """The mean over all rows and times of the rate of each type in every cell."""
    found = model.in_cells(history, times, seen, cells)
    if found is not None:
        return found
    places, weights = cells.places
    parts = []
    for some in places.flatten(0, 1).split(max(1, POINTS // max(1, times.numel()))):
        asked = times[..., None].expand(*times.shape, len(some))
        logs = model.log_intensity_at(history, asked, some.expand(*times.shape, -1, -1), seen)
        parts.append(logs.exp().double().mean((0, 1)))
    return torch.einsum("csm,s->cm", torch.cat(parts).unflatten(0, places.shape[:2]), weights)


def _of_mark(rates: Float[Tensor, "C M"], mark: int | None) -> Float[Tensor, " C"]:
    return rates.sum(1) if mark is None else rates[:, mark]


def _map(at: float, cells: Cells, rate: Float[Tensor, " C"], past: Sequence, title: str) -> RateMap:
    shown = list(cells.shown)
    places = np.zeros((0, len(shown))) if past.places is None else past.places[:, shown]
    values = rate.numpy().reshape([cells.count] * len(shown))
    names = tuple(cells.box.names[axis] for axis in shown)
    return RateMap(at, names, cells.middles, values, places, at - past.times, title)


def _shown(box: Box, axes: tuple[int, ...] | None) -> tuple[int, ...]:
    chosen = tuple(range(min(2, box.dimension))) if axes is None else tuple(axes)
    if (
        not 1 <= len(chosen) <= 2
        or len(set(chosen)) < len(chosen)
        or not all(0 <= a < box.dimension for a in chosen)
    ):
        raise UserError(
            f"one or two axes from 0 to {box.dimension - 1}",
            f"axes={axes}",
            f"They are {', '.join(box.names)}.",
        )
    return chosen


def _box_of(model: PointProcess) -> Box:
    if model.marks.box is None:
        raise UserError(
            "a model of events with places", f"{model.marks}", "Fit one to data read with place=."
        )
    return model.marks.box
