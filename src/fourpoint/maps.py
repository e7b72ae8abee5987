r"""Where events are to be expected: the intensity over the box at a time, or its mean over a stretch of the future.

    intensity_map    lambda(t, x) = sum_m lambda_m(t, x) on a grid, given the events before t
    expected_map     (1 / horizon) E[ int lambda(t, x) dt ] over sampled futures

A box of more than two axes is shown over two of them, integrated over the others. Rates are per unit of time and of what is shown: area
for two axes, length for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch, Box, Sequence, UserError
from fourpoint.forecasting import Forecast
from fourpoint.maths.quadrature import gauss_legendre
from fourpoint.sampling import check_marks, remember, still

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
POINTS = 2**16  # places asked at once
HIDDEN = 8  # Gauss nodes on every axis that is not shown
FUTURES, MOMENTS = 32, 8  # paths, and times of each, that an expected map is the mean of


@dataclass(frozen=True)
class RateMap:
    """A rate over one or two axes of a box: ``edges`` are cell middles of each axis shown, ``rate`` has one value per cell."""

    at: float
    names: tuple[str, ...]
    middles: tuple[Floats, ...]
    rate: Floats
    places: Floats  # of past events, on the axes shown
    ages: Floats  # of those, in units of time
    title: str

    def plot(self, ax: Axes | None = None, unit: str = "") -> Axes:
        """A map, or for one axis a profile, with the past events of the last fifth of the window and fainter ones before."""
        from fourpoint.map_plots import map_plot, profile_plot

        per = f"events per {unit or 'unit of time'} and {'unit area' if len(self.names) == 2 else self.names[0]}"
        oldest = float(self.ages.max(initial=0.0)) or 1.0
        if len(self.names) == 1:
            return profile_plot(
                self.middles[0], self.rate, places=self.places[:, 0], name=self.names[0], label=per, title=self.title, ax=ax
            )
        return map_plot(
            self.middles[0], self.middles[1], self.rate, places=self.places, ages=self.ages / oldest,
            names=(self.names[0], self.names[1]), label=per, title=self.title, ax=ax,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Everything but the events, as JSON can hold it."""
        axes = {name: middles.tolist() for name, middles in zip(self.names, self.middles, strict=True)}
        return {"at": self.at, "axes": axes, "rate": self.rate.tolist()}


def intensity_map(
    model: Any,
    sequence: Sequence,
    at: float | None = None,
    *,
    cells: int = 96,
    axes: tuple[int, ...] | None = None,
    mark: int | None = None,
) -> RateMap:
    """The intensity over the box at time ``at`` (the end of the window by default), given the events of ``sequence`` before it.

    Arguments
        cells: points per axis shown.
        axes: which axes of the box to show, one or two; by default the first two.
        mark: the number of one type; all types together by default.

    Raises :class:`UserError` where the model has no box or ``at`` lies outside the window.

    >>> from fourpoint.events import MarkSpace
    >>> from fourpoint.models.hawkes_places import PlacedHawkes
    >>> square = MarkSpace(box=Box(("x", "y"), (0, 0), (1, 1)))
    >>> truth = PlacedHawkes(square, baseline=5.0, branching=0.5, decay=1.0, spread=0.1)
    >>> found = intensity_map(truth, Sequence([1.0], start=0, stop=2, space=square, places=[[0.5, 0.5]]), at=1.5, cells=50)
    >>> round(found.rate.mean(), 3)  # the integral over the square: 5 + .5 exp(-.5)
    np.float64(5.303)
    """
    box = _box_of(model)
    check_marks(model, sequence.space)
    if at is not None and not sequence.start <= at <= sequence.stop:
        expected = f"a time inside the window [{sequence.start:g}, {sequence.stop:g}] of sequence {sequence.id}"
        raise UserError(expected, f"at={at:g}", "Choose a time at which the sequence was observed.")
    now = float(sequence.stop if at is None else at)
    past, shown = sequence.before(now), _shown(box, axes)
    grid, weights, middles = _grid(box, shown, cells)
    with still(model):
        history = remember(model, past.batch())
        rate = _on(model, history, torch.tensor([[now]], dtype=torch.float64), grid, weights, mark)[0, 0]
    return _map(now, box, shown, middles, rate, past, f"Intensity at {now:g}")


def expected_map(
    model: Any, forecast: Forecast, *, cells: int = 64, axes: tuple[int, ...] | None = None, mark: int | None = None
) -> RateMap:
    """The mean rate over the horizon of ``forecast``, over the futures it sampled: the expected events of each place, per unit of time.

    It is the mean of the intensity over 32 futures at 8 times each, and so already smooth. Arguments as in
    :func:`intensity_map`.
    """
    box = _box_of(model)
    shown = _shown(box, axes)
    grid, weights, middles = _grid(box, shown, cells)
    futures = forecast.paths[: min(FUTURES, len(forecast.paths))]
    share = gauss_legendre(MOMENTS)
    total = torch.zeros(len(middles[0]) * (len(middles[1]) if len(shown) == 2 else 1), dtype=torch.float64)
    with still(model):
        for path in futures:
            history = model.encode(_together(forecast.past, path))
            times = forecast.at + forecast.horizon * share[0][None]
            total += (share[1] @ _on(model, history, times, grid, weights, mark)[0]) / len(futures)
    end = forecast.at + forecast.horizon
    return _map(forecast.at, box, shown, middles, total, forecast.past, f"Expected rate from {forecast.at:g} to {end:g}")


def plot_map(model: Any, sequence: Sequence, at: float | None = None, *, unit: str = "", ax: Axes | None = None) -> Axes:
    """Draw :func:`intensity_map`: the intensity over the box at ``at``, with the events before."""
    return intensity_map(model, sequence, at).plot(ax, unit)


def _on(
    model: Any, history: Any, times: Float[Tensor, "B T"], grid: Float[Tensor, "C S k"], weights: Float[Tensor, " S"], mark: int | None
) -> Float[Tensor, "B T C"]:
    """The rate at every time and cell of the grid, integrated over the axes that are not shown."""
    from fourpoint.models.protocol import position_before

    seen = position_before(history, times)
    flat, parts = grid.flatten(0, 1), []
    for some in flat.split(max(1, POINTS // max(1, times.numel()))):
        asked = times[..., None].expand(*times.shape, len(some))
        logs = model.log_intensity_at(history, asked, some.expand(*times.shape, -1, -1), seen)
        parts.append((logs if mark is None else logs[..., mark : mark + 1]).exp().sum(-1).double())
    return torch.cat(parts, 2).unflatten(2, grid.shape[:2]) @ weights


def _grid(box: Box, shown: tuple[int, ...], cells: int) -> tuple[Float[Tensor, "C S k"], Float[Tensor, " S"], tuple[Floats, ...]]:
    """Places of every cell with the Gauss nodes of the axes that are not shown, their weights, and the cells' middles."""
    hidden = [a for a in range(box.dimension) if a not in shown]
    middles = tuple(box.low[a] + (box.high[a] - box.low[a]) * (np.arange(cells) + 0.5) / cells for a in shown)
    x, w = (v.numpy() for v in gauss_legendre(HIDDEN))
    nodes = [box.low[a] + (box.high[a] - box.low[a]) * x for a in hidden]
    weights = [(box.high[a] - box.low[a]) * w for a in hidden]
    front = np.stack(np.meshgrid(*middles, indexing="ij"), -1).reshape(-1, len(shown))
    back = np.stack(np.meshgrid(*nodes, indexing="ij"), -1).reshape(-1, len(hidden)) if hidden else np.zeros((1, 0))
    weight = np.prod(np.meshgrid(*weights, indexing="ij"), 0).reshape(-1) if hidden else np.ones(1)
    grid = np.zeros((len(front), len(back), box.dimension))
    grid[..., list(shown)], grid[..., hidden] = front[:, None], back[None]
    return torch.from_numpy(grid), torch.from_numpy(weight), middles


def _map(at: float, box: Box, shown: tuple[int, ...], middles: tuple[Floats, ...], rate: Tensor, past: Sequence, title: str) -> RateMap:
    places = np.zeros((0, len(shown))) if past.places is None else past.places[:, list(shown)]
    values = rate.numpy().reshape([len(m) for m in middles])
    return RateMap(at, tuple(box.names[a] for a in shown), middles, values, places, at - past.times, title)


def _together(past: Sequence, path: Sequence) -> Batch:
    """The past and one future as one batch."""
    if past.places is None or path.places is None:
        raise UserError("events with places", "events without", "Read them with place=.")
    both = Sequence(
        np.concatenate([past.times, path.times]), np.concatenate([past.marks, path.marks]), start=past.start, stop=path.stop,
        space=path.space, places=np.concatenate([past.places, path.places]),
    )  # fmt: skip
    return both.batch()


def _shown(box: Box, axes: tuple[int, ...] | None) -> tuple[int, ...]:
    chosen = tuple(range(min(2, box.dimension))) if axes is None else tuple(axes)
    if not 1 <= len(chosen) <= 2 or len(set(chosen)) < len(chosen) or not all(0 <= a < box.dimension for a in chosen):
        raise UserError(f"one or two axes from 0 to {box.dimension - 1}", f"axes={axes}", f"They are {', '.join(box.names)}.")
    return chosen


def _box_of(model: Any) -> Box:
    if model.marks.box is None:
        raise UserError("a model of events with places", f"{model.marks}", "Fit one to data read with place=.")
    return model.marks.box
