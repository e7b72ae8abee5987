"""Poisson processes: rates that know the clock but not the past.

    Poisson         lambda_m(t) = exp(log_rate_m)
    SplinePoisson   lambda_m(t) = exp(s_m(t - start)),   s_m a cubic spline on [0, length]

Effects f_m(t) of calendar and covariates (`models.effects`) are added inside both exponentials.
Where events have places, lambda_m(t, x) = lambda_m(t) f_m(x) with a density on the cells of a grid
(`models.spatial.grid`). They are what every other model has to beat: the first knows how often, the
second also when in the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, Context, Dataset, MarkSpace, UserError, check_marks
from fourpoint.kernels.path_terms import CountLaw, Wanted
from fourpoint.models.base import PointProcess, ScoredGaps, placed
from fourpoint.models.baseline import Baseline
from fourpoint.models.effects import Effects, EffectsSpec
from fourpoint.models.effects_fit import (
    alike,
    by_group,
    event_sums,
    exposed_segments,
    fit_cuts,
    fit_effects,
    nodes_of_group,
    penalty_of,
    rate_ratios,
)
from fourpoint.models.hawkes_effects import sparse_basis
from fourpoint.models.path_counts import poisson_counts, poisson_law
from fourpoint.models.positions import FromPositions, Positions
from fourpoint.models.spatial.cells import Cells
from fourpoint.models.spatial.grid import SpatialGrid
from fourpoint.models.time_integrals import scored_together
from fourpoint.models.time_pieces import baseline_cubics
from fourpoint.ops.minimise import minimise
from fourpoint.ops.quadrature import gauss_legendre
from fourpoint.ops.spline import spline, spline_knots, spline_max

MEAN_NODES = 8  # of the mean rate between two knots


class _OnGrid(FromPositions):
    """A rate that knows the clock but not the past, whose places have a density on a grid."""

    has_upper_bound = True
    fits_in_closed_form = True
    draws_places = True
    grid: SpatialGrid | None

    def log_intensity_at(
        self,
        history: Positions,
        times: Float[Tensor, "B G Q"],
        places: Float[Tensor, "B G Q k"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda_m(t, x), per unit of time and volume."""
        return self.log_intensity(history, times, seen) + placed(self.grid).log_density(places)

    def draw_places(
        self,
        history: Positions,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        random: torch.Generator,
    ) -> Float[Tensor, "B k"]:
        """Where events of known time and type are, drawn from their density."""
        return placed(self.grid).draw(mark, random)

    def expected_in_cells(
        self,
        history: Positions,
        paths: Dataset | None,
        a: float,
        b: float,
        cells: Cells,
    ) -> Float[Tensor, "C M"]:
        """The mean rate of every mark in the cells of a map over [a, b]; the past changes
        nothing.
        """
        return _mean_rates_over(self, history, a, b) * placed(self.grid).in_cells(cells)


class Poisson(_OnGrid):
    """A constant rate per mark, ``lambda_m(t) = exp(log_rate_m)``, in events per unit of time.

    For events in a box, ``cells`` is the number of intervals per axis of a piecewise constant
    spatial density; 1 is a uniform density.

    >>> from fourpoint.events import Sequence
    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 5.0], start=0.0, stop=6.0)])
    >>> model = Poisson()
    >>> notes = model.maximum_likelihood(data)
    >>> model.intensity(model.encode(data.batch()), torch.tensor([[4.0]]).double()).tolist()
    [[[0.5]]]
    """

    def __init__(self, marks: MarkSpace | int | None = None, cells: int = 1) -> None:
        super().__init__()
        self.marks = MarkSpace.of(marks)
        self.grid = _grid(self.marks, cells)
        self.baseline = Baseline(
            self.marks.count,
            base="constant",
            inside=False,
            dtype=torch.float64,
        )

    @property
    def log_rate(self) -> Float[Tensor, " M"]:
        """The logarithm of the rate of every mark."""
        return self.baseline.log_base[:, 0]

    def settings(self) -> dict[str, Any]:
        """Nothing but the marks, and the cells of a grid where events have places."""
        return {} if self.grid is None else {"cells": self.grid.cells}

    def shown(self) -> dict[str, Any]:
        """The rates, and the cells of a grid where events have places."""
        rates = self.log_rate.detach().exp()
        return {"rate": rates.cpu().numpy(), **self.settings()}

    def initialise(self, data: Dataset) -> list[str]:
        """Start at the mean rate of every mark."""
        rates = mean_rates(data, self.marks)
        with torch.no_grad():
            self.log_rate.copy_(rates.log())
        _count(self.grid, data)
        return [f"rate {float(rates.sum()):.4g} per unit of time, from the data"]

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """The best rates, events over time; a mark that never happens counts as half an event.

        With effects of calendar and covariates, their penalised maximum likelihood
        (`models.effects_fit`).
        """
        notes = self.initialise(data)
        if self.effects is None:
            return notes
        found = fit_effects(data, self.effects.spec)
        with torch.no_grad():
            self.log_rate.copy_(torch.from_numpy(found.level))
            self.effects.weight.copy_(torch.from_numpy(found.weight))
        self.rate_ratios = found.rate_ratios
        return [*notes, *found.notes]

    @property
    def effect_curves(self) -> int:
        """log of the rate of every mark."""
        return self.marks.count

    @property
    def has_closed_integral(self) -> bool:
        """Without effects of calendar and covariates."""
        return self.effects is None

    def log_intensity(
        self,
        history: Positions,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        flat = self.log_rate.expand(*times.shape, -1)
        if self.effects is None:
            return flat
        return flat + self.effects.values(times, history.context)

    def closed_integral(
        self,
        history: Positions,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """Expected events of every mark in [a, b]: ``(b - a) exp(log_rate)``."""
        return (b - a)[..., None] * self.log_rate.exp()

    def scored_gaps(self, batch: Batch, tolerance: float) -> ScoredGaps | None:
        """With effects, where sequences share the rate: one integral for all of them."""
        return scored_together(self, batch, tolerance, self.log_rate)

    def draw_counts(self, batch: Batch, wanted: Wanted) -> NDArray[np.int32] | None:
        """Poisson numbers with the integrals of the rate as means."""
        return poisson_counts(baseline_cubics(self.baseline), self.effects, batch, wanted)

    def count_law(self, batch: Batch, edges: NDArray[np.float64]) -> CountLaw:
        """Poisson numbers with the integrals of the rate as means."""
        return poisson_law(baseline_cubics(self.baseline), self.effects, batch, edges)

    @torch.no_grad()
    def upper_bound(
        self,
        history: Positions,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """The largest total rate on [a, b]: the rate itself, but for effects of the calendar."""
        if self.effects is None:
            total = self.log_rate.exp().sum()
            return total.expand_as(a)
        bound = self.effects.upper_bound(a, b, history.context, self.log_rate.dtype)
        return (self.log_rate + bound).exp().sum(-1)


class SplinePoisson(_OnGrid):
    """A rate per mark that depends on the time since the window's start,
    ``lambda_m(t) = exp(s_m(t - start))``.

    ``cells`` is the same as for :class:`Poisson`. ``knots`` is the number of equal intervals of the
    cubic spline. They cover the longest window seen by ``initialise``; past it the rate stays at
    its last value.

    >>> model = SplinePoisson(marks=2, knots=4)
    >>> model.coefficients.shape, model.settings()
    (torch.Size([2, 7]), {'knots': 4})
    """

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        knots: int = 20,
        cells: int = 1,
    ) -> None:
        super().__init__()
        if knots < 1:
            raise UserError(
                "at least one interval of the spline",
                f"knots={knots}",
                "Pass knots=20, say.",
            )
        self.marks = MarkSpace.of(marks)
        self.grid = _grid(self.marks, cells)
        self.intervals = knots
        self.baseline = Baseline(
            self.marks.count,
            base="spline",
            inside=False,
            knots=knots,
            dtype=torch.float64,
        )

    @property
    def coefficients(self) -> nn.Parameter:
        """The coefficients of the spline of every mark."""
        return self.baseline.log_base

    @property
    def length(self) -> Tensor:
        """The time that the splines cover."""
        return self.baseline.length

    def settings(self) -> dict[str, Any]:
        """The number of intervals, and the cells of a grid where events have places."""
        settings = {"knots": self.intervals}
        if self.grid is not None:
            settings["cells"] = self.grid.cells
        return settings

    def initialise(self, data: Dataset) -> list[str]:
        """Cover the longest window, and start flat at the mean rate of every mark."""
        rates = mean_rates(data, self.marks)
        log_rates = rates.log()[:, None]
        with torch.no_grad():
            self.length.fill_(float(data.durations.max()))
            self.coefficients.copy_(log_rates.expand_as(self.coefficients))
        _count(self.grid, data)
        return [
            f"rate {float(rates.sum()):.4g} per unit of time, from the data",
            (
                f"spline of {self.intervals} intervals over {float(self.length):g}, the longest "
                "window; constant after it"
            ),
        ]

    def maximum_likelihood(self, data: Dataset, ridge: float = 1.0) -> list[str]:
        """Fit by L-BFGS on the likelihood less a small ridge that keeps empty stretches finite,

            ridge / 2 * (sum of squared second differences of coefficients + 1/100 sum of squared
            first differences).

        A mark that never happens counts as half an event, spread evenly. The integral is by six
        Gauss-Legendre nodes between neighbouring knots and window ends.

        Effects of calendar and covariates are fitted together with the splines, with the penalties
        that a Poisson process with the same effects chooses.
        """
        notes = self.initialise(data)
        if self.effects is not None:
            return [*notes, *self._fit_with_effects(data, self.effects, ridge)]
        length = float(self.length)
        flat = self.coefficients.detach().cpu().double()
        happened = _basis_sums(data, flat, length)
        nodes, weights = _nodes(data, length, self.intervals)
        events = max(data.scored_events, 1)

        def loss(c: Tensor) -> Tensor:
            rates = spline(c, nodes, length).exp()
            integral = (weights[:, None] * rates).sum()
            bend = c.diff(n=2).square().sum()
            gradient = c.diff().square().sum()
            logs = (happened * c).sum()
            penalty = ridge / 2 * (bend + gradient / 100)
            return (integral - logs + penalty) / events

        found = minimise(loss, flat)
        with torch.no_grad():
            self.coefficients.copy_(found.point)
        fit = f"maximum likelihood with a ridge of {ridge:g} on second differences: {found}"
        return [*notes, fit]

    def _fit_with_effects(self, data: Dataset, effects: Effects, ridge: float) -> list[str]:
        spec = effects.spec
        alone = fit_effects(data, spec)
        penalty = torch.from_numpy(penalty_of(spec, alone.penalties)[1:, 1:])
        length = float(self.length)
        flat = self.coefficients.detach().cpu().double()
        happened = _basis_sums(data, flat, length)
        of_effects = torch.from_numpy(event_sums(data, spec)[:, 1:].T.copy())
        nodes = _nodes_with_effects(data, spec, length, self.intervals)
        start = torch.from_numpy(alone.weight.copy())
        sizes = [flat.numel(), start.numel()]
        events = max(data.scored_events, 1)

        def loss(point: Tensor) -> Tensor:
            coefficients, weights = point.split(sizes)
            c = coefficients.reshape(flat.shape)
            weight = weights.reshape(start.shape)
            f = nn.functional.embedding_bag(
                nodes.index,
                weight,
                mode="sum",
                per_sample_weights=nodes.share,
            )
            rates = (spline(c, nodes.since, length) + f).exp()
            integral = (nodes.weight[:, None] * rates).sum()
            logs = (happened * c).sum() + (of_effects * weight).sum()
            bend = c.diff(n=2).square().sum()
            gradient = c.diff().square().sum()
            shrunk = (weight * (penalty @ weight)).sum()
            penalties = ridge * (bend + gradient / 100) + shrunk
            return (integral - logs + penalties / 2) / events

        found = minimise(loss, torch.cat([flat.flatten(), start.flatten()]))
        coefficients, weights = found.point.split(sizes)
        with torch.no_grad():
            self.coefficients.copy_(coefficients.reshape(flat.shape))
            effects.weight.copy_(weights.reshape(start.shape))
        marks = tuple(data.marks.names) if len(alone.covariance) > 1 else ("",)
        weight = effects.weight.detach().numpy()[:, : len(marks)]
        self.rate_ratios = rate_ratios(spec, weight, alone.covariance, marks)
        notes = [f"maximum likelihood with calendar and covariates: {found}"]
        for ratio in self.rate_ratios[:20]:
            notes.append(f"rate ratio of {ratio}")
        return notes

    @property
    def effect_curves(self) -> int:
        """log of the rate of every mark."""
        return self.marks.count

    def log_intensity(
        self,
        history: Positions,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        since = times - history.start[:, None, None]
        found = self.baseline.values(since, self.baseline.curves()).log_base
        if self.effects is None:
            return found
        return found + self.effects.values(times, history.context)

    def draw_counts(self, batch: Batch, wanted: Wanted) -> NDArray[np.int32] | None:
        """Poisson numbers with the integrals of the rate as means."""
        return poisson_counts(baseline_cubics(self.baseline), self.effects, batch, wanted)

    def count_law(self, batch: Batch, edges: NDArray[np.float64]) -> CountLaw:
        """Poisson numbers with the integrals of the rate as means."""
        return poisson_law(baseline_cubics(self.baseline), self.effects, batch, edges)

    @torch.no_grad()
    def upper_bound(
        self,
        history: Positions,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """An upper bound of the total rate on [a, b], from the splines' Bezier points."""
        low = a - history.start
        high = b - history.start
        bound = spline_max(self.coefficients, low, high, self.length)
        if self.effects is not None:
            bound = bound + self.effects.upper_bound(a, b, history.context, bound.dtype)
        return bound.exp().sum(-1)

    def knots(self, history: Positions) -> Float[Tensor, "B knots"]:
        """Absolute times at which the rate is not smooth, where integrals are split."""
        return history.start[:, None] + spline_knots(self.length, self.intervals)


@torch.no_grad()
def _mean_rates_over(
    model: PointProcess,
    history: Positions,
    a: float,
    b: float,
) -> Float[Tensor, " M"]:
    """The mean over [a, b] of the rates, which depend on time alone; splines are cut at their
    knots.
    """
    if a == b:
        now = torch.tensor([[[a]]], dtype=torch.float64)
        logs = model.log_intensity(history, now, history.lengths[:, None])
        return logs[0, 0, 0].exp()
    inside = []
    if isinstance(model, SplinePoisson):
        knots = model.knots(history)[0].tolist()
        inside = [knot for knot in sorted(knots) if a < knot < b]
    edges = torch.tensor([a, *inside, b], dtype=torch.float64)
    width = edges.diff()
    x, weights = gauss_legendre(MEAN_NODES)
    times = edges[:-1, None] + width[:, None] * x
    seen = history.lengths[:, None].expand(1, len(width))
    rates = model.log_intensity(history, times[None], seen)[0].exp()
    return torch.einsum("h,q,hqm->m", width / (b - a), weights, rates)


def _grid(marks: MarkSpace, cells: int) -> SpatialGrid | None:
    """The density of places where there is a box; ``cells`` means nothing without one."""
    if marks.box is None:
        if cells != 1:
            raise UserError(
                "events with places for cells",
                f"cells={cells} with {marks}",
                "Leave cells out, or read with place=.",
            )
        return None
    return SpatialGrid(marks.count, marks.box, cells)


def _count(grid: SpatialGrid | None, data: Dataset) -> None:
    if grid is not None and grid.cells > 1:
        grid.count(data)


def mean_rates(data: Dataset, marks: MarkSpace) -> Float[Tensor, " M"]:
    """Scored events of every mark per unit of exposed time, in float64; a mark that never happens
    counts as half an event.

    >>> from fourpoint.events import Sequence
    >>> mean_rates(
    ...     Dataset.from_sequences([Sequence([1.0, 2.0], [0, 0], stop=4.0, space=2)]),
    ...     MarkSpace.of(2),
    ... ).tolist()
    [0.5, 0.125]
    """
    check_marks(marks.types, data.marks.types)
    happened = np.bincount(data.mark_ids[data.scored], minlength=marks.count)
    rates = np.maximum(happened, 0.5) / data.exposed_times.sum()
    return torch.from_numpy(rates)


def _basis_sums(data: Dataset, flat: Float[Tensor, "M C"], length: float) -> Float[Tensor, "M C"]:
    """The sum over events of each basis function: all that the likelihood knows of the events, as s
    is linear.
    """
    since = torch.from_numpy(data.times - np.repeat(data.starts, data.lengths))
    even = torch.linspace(0, length, 1001, dtype=torch.float64)
    sums = torch.zeros_like(flat)
    for m in range(len(flat)):
        c = flat[m : m + 1].clone().requires_grad_()
        own = (data.mark_ids == m) & data.scored
        x = since[torch.from_numpy(own)]
        with torch.enable_grad():
            if len(x):
                total = spline(c, x, length).sum()
            else:
                total = spline(c, even, length).mean() / 2
            (gradient,) = torch.autograd.grad(total, c)
        sums[m] = gradient[0]
    return sums


def _nodes(
    data: Dataset,
    length: float,
    intervals: int,
) -> tuple[Float[Tensor, " nodes"], Float[Tensor, " nodes"]]:
    """Gauss-Legendre nodes between knots, window ends and steps of the exposure, weighted by the
    exposure of all windows together there.
    """
    when, change = _exposure_changes(data)
    order = np.argsort(when, kind="stable")
    when = when[order]
    level = np.cumsum(change[order])
    knots = spline_knots(length, intervals).numpy()
    edges = np.unique(np.concatenate([knots, when]))
    x, w = np.polynomial.legendre.leggauss(6)
    half = np.diff(edges)[:, None] / 2
    middle = (edges[1:] + edges[:-1])[:, None] / 2
    last = np.searchsorted(when, middle, side="right") - 1
    exposure = np.where(last >= 0, level[last], 0.0).clip(min=0)
    nodes = (middle + half * x).ravel()
    weights = (half * w * exposure).ravel()
    return torch.from_numpy(nodes), torch.from_numpy(weights)


@dataclass(frozen=True)
class _Nodes:
    """Nodes of every window: the time since its start, the weight, and the basis functions of the
    effects that are not 0, with their values.
    """

    since: Float[Tensor, " nodes"]
    weight: Float[Tensor, " nodes"]
    index: Int[Tensor, "nodes L"]
    share: Float[Tensor, "nodes L"]


def _nodes_with_effects(
    data: Dataset,
    spec: EffectsSpec,
    length: float,
    intervals: int,
) -> _Nodes:
    """Gauss-Legendre nodes of every window, cut at knots of the spline and of the effects too.
    Sequences with one start, origin and covariates share their nodes.
    """
    effects = Effects(spec, 1, torch.float64)
    context = data.context or Context()
    left, right, factor, owner = exposed_segments(data)
    knots = spline_knots(length, intervals).numpy()
    keys = np.stack([alike(data).astype(np.float64), data.starts])
    _, group = np.unique(keys, axis=1, return_inverse=True)
    times, weights, rows = [], [], []
    for own in by_group(group.reshape(-1)[owner]):
        row = int(owner[own[0]])
        low = float(left[own].min())
        high = float(right[own].max())
        known = data.starts[row] + knots
        inside = known[(known > low) & (known < high)]
        cuts = np.concatenate([inside, fit_cuts(effects, context, row, low, high)])
        nodes, mass = nodes_of_group(left[own], right[own], factor[own], cuts)
        times.append(nodes)
        weights.append(mass)
        rows.append(np.full(nodes.size, row))
    at = np.concatenate(times)
    which = np.concatenate(rows)
    index, share = sparse_basis(effects, context, at, which)
    # The first column is the constant, which the spline has.
    return _Nodes(
        since=torch.from_numpy(at - data.starts[which]),
        weight=torch.from_numpy(np.concatenate(weights)),
        index=torch.from_numpy(index[:, 1:] - 1),
        share=torch.from_numpy(share[:, 1:].copy()),
    )


def _exposure_changes(data: Dataset) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times since the start of each window at which its exposure changes, from 0 before it to 0
    after it, and by how much.
    """
    weight = data.scored_exposure
    if weight is None:
        zero = np.zeros(len(data))
        one = np.ones(len(data))
        return np.concatenate([zero, data.durations]), np.concatenate([one, -one])
    firsts = weight.offsets[:-1]
    lasts = weight.offsets[1:] - 1
    owner = np.repeat(np.arange(len(data)), np.diff(weight.offsets))
    start = data.starts[owner]
    begins = weight.times.copy()
    begins[firsts] = data.starts  # the first value also holds before its time
    begins = np.clip(begins, start, data.stops[owner]) - start
    values = weight.values[:, 0]
    rises = np.diff(values, prepend=0.0)
    rises[firsts] = values[firsts]
    times = np.concatenate([begins, data.durations])
    changes = np.concatenate([rises, -values[lasts]])
    return times, changes
