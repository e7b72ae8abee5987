r"""Hawkes processes in time and space: every event raises the rate around its own place, for a
while.

    lambda_m(t, x) = mu_m f_m(x) + sum_{t_i < t} alpha_{m m_i} beta exp(-beta (t - t_i)) prod_a
    phi((x_a - x_ia) / s_a) / s_a

phi is the standard normal density and f_m the background's (`models.spatial.grid`). The box is all
that is observed: what an event would trigger outside it is not seen and triggers nothing, so that
this is the rate inside, whatever lies beyond. Its integral over the box is closed, with the share
of event i's triggering that falls inside,

    mass_i = prod_a (Phi((high_a - x_ia) / s_a) - Phi((low_a - x_ia) / s_a)),
    lambda_m(t) = mu_m + sum_i alpha_{m m_i} mass_i beta exp(-beta (t - t_i)).

Effects g_m(t) of calendar and covariates (`models.effects`) multiply the background by exp(g_m(t)).
Its integral over time is then a sum over nodes between the breakpoints of g.

The rate at a place compares it with every event before: O(N) each. It is the truth of
`space_time_hawkes` and what a DAPP with places
has to beat. Source: Ogata, "Space-time point-process models for earthquake occurrences" (1998),
with an exponential for Omori's law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fourpoint.events import Batch, BatchContext, Box, Dataset, MarkSpace, UserError
from fourpoint.memory import require_memory
from fourpoint.models.base import (
    History,
    PointProcess,
    box_of,
    exposed_pieces,
    log_exposure,
    place_or_nothing,
    places_of,
)
from fourpoint.models.baseline import Baseline
from fourpoint.models.effects import Effects
from fourpoint.models.effects_fit import (
    centred,
    fit_effects,
    integral_design,
    penalty_of,
    rate_ratios,
    ratio_notes,
)
from fourpoint.models.poisson import mean_rates
from fourpoint.models.spatial.cells import Cells
from fourpoint.models.spatial.grid import SpatialGrid
from fourpoint.ops.attention import scan
from fourpoint.ops.minimise import minimise
from fourpoint.ops.quadrature import gauss_legendre
from fourpoint.ops.thinning import draw_marks

PAIRS = 2**22  # pairs of a query and an event that are compared at once without gradient
EVENTS = 2**15  # whose kernels are integrated over all cells at once
SHORT = 64  # sequences of a batch while fitting
NODES = 8  # of the mean of the background over time, between neighbouring cuts
MOST_OTHERS = 24  # parameters of triggering that standard errors of effects take into account
DIFFERENCE = 1e-4  # of their logarithms, for derivatives
LOOKED = 256  # sequences, and events of each, that the first guess of the spread looks at


@dataclass(frozen=True)
class Strengths:
    """The parameters as they enter the rate, in the user's units."""

    baseline: Float[Tensor, " M"]
    branching: Float[Tensor, "M M"]
    decay: Float[Tensor, ""]
    spread: Float[Tensor, " k"]
    log_share: Float[Tensor, "M C"]
    weight: Float[Tensor, "K M"] | None = None  # of calendar and covariates


@dataclass(frozen=True)
class SpatialHawkesHistory(History):
    """Positions with the excitation that falls inside the box, by exciting type, and the events
    themselves.
    """

    excitation: Float[Tensor, "B P M"]
    when: Float[Tensor, "B N"]
    marks: Int[Tensor, "B N"]
    places: Float[Tensor, "B N k"]


class Clusters(NamedTuple):
    """Events of several paths, in no order: which path, when, of what type and where."""

    row: Int[Tensor, " E"]
    time: Float[Tensor, " E"]
    mark: Int[Tensor, " E"]
    place: Float[Tensor, "E k"]
    features: Float[Tensor, "E F"] | None = None

    @staticmethod
    def joined(parts: list[Clusters]) -> Clusters:
        """All of them, with features if all parts have some."""
        columns = zip(*(part[:4] for part in parts), strict=True)
        features = [part.features for part in parts if part.features is not None]
        every = torch.cat(features) if features and len(features) == len(parts) else None
        row, time, mark, place = (torch.cat(column) for column in columns)
        return Clusters(row, time, mark, place, every)


class SpatialHawkes(PointProcess[SpatialHawkesHistory]):
    """Exponential Hawkes process whose events trigger others around them, normally distributed in
    space.

    Args:
        marks: a mark space with a box.
        baseline: mu, events per unit of time in the whole box, one number per type or for all.
        branching: alpha, the offspring of one event before any is lost outside, shared out evenly
            over types.
        decay: beta per unit of time.
        spread: s, the standard deviation of where offspring fall: as a share of each axis of the
            box.
        cells: parts of every axis on which the background has a density of its own; 1 is a uniform
            background.

    They are starting values; :meth:`maximum_likelihood` estimates all of them.

    >>> square = MarkSpace(box=Box(("x", "y"), (0, 0), (1, 1)))
    >>> from fourpoint.events import Sequence
    >>> model = SpatialHawkes(square, baseline=5.0, branching=0.5, decay=1.0, spread=0.1)
    >>> batch = Sequence([1.0], start=0.0, stop=2.0, space=square, places=[[0.5, 0.5]]).batch()
    >>> history, now = model.encode(batch), torch.tensor([[[1.0 + 1e-9]]]).double()
    >>> round(
    ...     model.log_intensity_at(
    ...         history, now, torch.full((1, 1, 1, 2), 0.5).double(), torch.tensor([[1]])
    ...     )
    ...     .exp()
    ...     .item(),
    ...     3,
    ... )
    12.958
    """

    linear = False
    has_upper_bound = True
    fits_in_closed_form = True
    draws_places = True
    draws_clusters = True

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        baseline: float = 1.0,
        branching: float = 0.3,
        decay: float = 1.0,
        spread: float = 0.1,
        cells: int = 1,
    ) -> None:
        super().__init__()
        self.marks = MarkSpace.of(marks)
        self.box = box_of(self.marks, "spatial-hawkes")
        if min(baseline, branching, decay, spread) <= 0:
            raise UserError(
                "positive numbers",
                f"{baseline}, {branching}, {decay}, {spread}",
                "Raise them above 0.",
            )
        M = self.marks.count
        width = torch.tensor(self.box.high).double() - torch.tensor(self.box.low).double()
        remedy = (
            "Merge rare types, or use --model spatial-dapp, which has no parameter for every pair."
        )
        require_memory(
            3 * 8 * M * M, f"a Hawkes process with {M:,} x {M:,} branching ratios", remedy
        )
        self.grid = SpatialGrid(M, self.box, cells)
        self.baseline = Baseline(M, base="constant", inside=False, dtype=torch.float64)
        nn.init.constant_(self.baseline.log_base, math.log(baseline))
        self.log_branching = nn.Parameter(
            torch.full((M, M), math.log(branching / M), dtype=torch.float64)
        )
        self.log_decay = nn.Parameter(torch.tensor(math.log(decay), dtype=torch.float64))
        self.log_spread = nn.Parameter((spread * width).log())
        self._settings = dict(
            baseline=baseline, branching=branching, decay=decay, spread=spread, cells=cells
        )

    @property
    def log_baseline(self) -> Float[Tensor, " M"]:
        """The logarithm of the baseline of every type."""
        return self.baseline.log_base[:, 0]

    @property
    def effect_curves(self) -> int:
        """log of the background of every type."""
        return self.marks.count

    @property
    def has_closed_integral(self) -> bool:
        """Without effects of calendar and covariates."""
        return self.effects is None

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    def shown(self) -> dict[str, Any]:
        """The parameters as they are now; ``spread`` in the units of the box."""
        s = self._strengths()
        found = dict(baseline=s.baseline, branching=s.branching, decay=s.decay, spread=s.spread)
        return {name: value.detach().cpu().numpy() for name, value in found.items()} | {
            "cells": self.grid.cells
        }

    @torch.no_grad()
    def initialise(self, data: Dataset) -> list[str]:
        """Half of the mean rate per type as baseline, a branching ratio of .3, one fade per four
        mean gaps; offspring as far away as the nearest earlier event usually is; the background by
        counts.
        """
        gaps = data.gaps
        if len(gaps) and gaps.mean() > 0:
            gap = float(gaps.mean())
        else:
            gap = float(data.exposed_times.sum()) / max(data.scored_events, 1)
        self.log_baseline.copy_((mean_rates(data, self.marks) / 2).log())
        self.log_branching.fill_(math.log(0.3 / self.marks.count))
        self.log_decay.fill_(-math.log(4 * gap))
        near = _nearest(data, self.box)
        if near > 0:
            width = torch.tensor(self.box.high).double() - torch.tensor(self.box.low).double()
            self.log_spread.copy_((near * width).log())
        if self.grid.cells > 1:
            self.grid.count(data)
        return []

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit everything to ``data`` by L-BFGS from :meth:`initialise`; in a background of several
        cells each of them counts for one event more, spread over all cells, so that empty ones keep
        a density.
        """
        self.initialise(data)
        batches = [data.batch(rows) for rows in data.batches(SHORT, padded=2**14)]
        like = [self.log_baseline, self.log_branching, self.log_decay, self.log_spread]
        free = [*like, self.grid.log_share] if self.grid.cells > 1 else like
        background = None
        if self.effects is not None:
            background = _Background(data, self.effects)
            free = [*free, self.effects.weight]

        def strengths(point: Tensor) -> Strengths:
            values = [
                x.reshape(p.shape)
                for x, p in zip(point.split([p.numel() for p in free]), free, strict=True)
            ]
            weight = None if background is None else values.pop()
            share = values[4] if len(values) > 4 else self.grid.log_share.detach()
            baseline, branching, decay, spread = (v.exp() for v in values[:4])
            return Strengths(baseline, branching, decay, spread, share, weight)

        def loss(point: Tensor) -> Tensor:
            s = strengths(point)
            total = sum(
                (
                    checkpoint(self._log_likelihood, batch, s, use_reentrant=False).sum()
                    for batch in batches
                ),
                torch.zeros(()),
            )
            if background is not None:
                total = total - background.integral(s) - background.penalised(s)
            prior = torch.log_softmax(s.log_share, 1).mean(1).sum()
            return (-total - prior) / max(1, data.scored_events)

        found = minimise(loss, torch.cat([p.detach().flatten() for p in free]), steps=200)
        with torch.no_grad():
            for value, parameter in zip(
                found.point.split([p.numel() for p in free]), free, strict=True
            ):
                parameter.copy_(value.reshape(parameter.shape))
        said: list[str] = []
        if background is not None and self.effects is not None:
            covariance = self._covariance(batches, background)
            background.centre(self.log_baseline, self.effects.weight)
            weight = self.effects.weight.detach().numpy()
            names = tuple(self.marks.names) or ("",)
            self.rate_ratios = rate_ratios(self.effects.spec, weight, covariance, names)
            said = ratio_notes(self.rate_ratios)
        s = self._detached()
        ratio = float(torch.linalg.eigvals(s.branching).abs().max())
        where = ", ".join(
            f"{name} {float(x):.4g}" for name, x in zip(self.box.names, s.spread, strict=True)
        )
        line = (
            f"baseline {float(s.baseline.sum()):.4g} per unit of time, branching ratio "
            f"{ratio:.3g}, decay {float(s.decay):.4g}"
        )
        notes = [f"{line}, spread {where}", f"maximum likelihood: {found}", *said]
        if ratio >= 1:
            return [*notes, f"the branching ratio {ratio:.3f} is 1 or more: forecasts explode"]
        return notes

    def _covariance(self, batches: list[Batch], background: _Background) -> Float[ndarray, "M P P"]:
        """The covariance of the level and the weights of every type, from the outer products of the
        gradients of log lambda at the events. The other parameters are taken into account if they
        are few.
        """
        s = self._detached()
        logs, share, rows, marks = self._shares(batches, s)
        names = ("branching", "decay", "spread")
        sizes = [getattr(s, name).numel() for name in names]
        others = np.zeros((len(logs), sum(sizes) if sum(sizes) <= MOST_OTHERS else 0))
        for column in range(others.shape[1]):
            ends = []
            for side in (DIFFERENCE, -DIFFERENCE):
                moved = {name: getattr(s, name).clone() for name in names}
                place = column
                for name, size in zip(names, sizes, strict=True):
                    if 0 <= place < size:
                        moved[name].view(-1)[place] *= math.exp(side)
                    place -= size
                ends.append(self._shares(batches, replace(s, **moved))[0])
            others[:, column] = (ends[0] - ends[1]) / (2 * DIFFERENCE)
        inverses, crosses = [], []
        rest = others.T @ others + 1e-9 * np.eye(others.shape[1])
        for m in range(self.marks.count):
            own = marks == m
            gradient = share[own, None] * rows[own]
            level = np.zeros_like(background.penalty)
            level[0, 0] = 1e-9  # a type without background
            inverse = np.linalg.inv(gradient.T @ gradient + background.penalty + level)
            cross = inverse @ (gradient.T @ others[own])
            rest = rest - (others[own].T @ gradient) @ cross
            inverses.append(inverse)
            crosses.append(cross)
        remaining = np.linalg.pinv(rest)
        return np.stack(
            [
                inverse + cross @ remaining @ cross.T
                for inverse, cross in zip(inverses, crosses, strict=True)
            ]
        )

    @torch.no_grad()
    def _shares(
        self, batches: list[Batch], s: Strengths
    ) -> tuple[ndarray, ndarray, ndarray, ndarray]:
        """log lambda at every scored event, the share of the background in it, the level and the
        basis functions there, and the type.
        """
        assert self.effects is not None
        logs, shares, rows, marks = [], [], [], []
        for batch in batches:
            history = self._encode(batch, s)
            times = batch.times[..., None]
            places = history.places[:, :, None]
            position = torch.arange(batch.times.shape[1]).expand(len(batch.times), -1)
            own = batch.marks[..., None]
            total = self._local(history, times, places, position, s)[:, :, 0]
            total = total.gather(2, own)[..., 0]
            alone = self._log_background(times, places, history.context, s)[:, :, 0]
            alone = alone.gather(2, own)[..., 0]
            basis = self.effects.basis(batch.times, batch.context)
            scored = batch.scored
            logs.append(total[scored])
            shares.append((alone - total)[scored].exp())
            rows.append(torch.cat([torch.ones_like(basis[..., :1]), basis], -1)[scored])
            marks.append(batch.marks[scored])
        found = (torch.cat(part).numpy() for part in (logs, shares, rows, marks))
        one, two, three, four = found
        return one, two, three, four

    def training_log_likelihood(
        self, batch: Batch, nodes: int, random: torch.Generator, convention: str
    ) -> Float[Tensor, " B"] | None:
        """The exact log-likelihood; None with effects of calendar and covariates."""
        return None if self.effects is not None else self.exact_log_likelihood(batch, convention)

    def exact_log_likelihood(self, batch: Batch, convention: str = "window") -> Float[Tensor, " B"]:
        """The closed form, with gradient, for a model without effects of calendar and covariates;
        "gaps" leaves out the first event and both ends of the window.
        """
        return self._log_likelihood(batch, self._strengths(), convention)

    # ------------------------------------------------------------------ the verbs

    def encode(
        self, batch: Batch, before: SpatialHawkesHistory | None = None
    ) -> SpatialHawkesHistory:
        """Excitation at every position, and the events."""
        if before is not None:
            raise UserError(
                "a linear form to go on from a history",
                "a Hawkes process with places",
                "Encode the whole sequence.",
            )
        return self._encode(batch, self._strengths())

    def extend(
        self,
        history: SpatialHawkesHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> SpatialHawkesHistory:
        """One event more; all events stay, since the rate at a place compares it with every one."""
        happened = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        where = place_or_nothing(place, happened, self.box.dimension)
        row = torch.arange(len(time))
        s = self._strengths()
        h = history
        n = int((h.lengths + happened).max())
        if n > h.when.shape[1]:
            h = replace(
                h,
                times=torch.cat([h.times, h.times[:, -1:]], 1),
                excitation=torch.cat([h.excitation, h.excitation[:, -1:]], 1),
                when=_wider(h.when),
                marks=_wider(h.marks),
                places=_wider(h.places),
            )
        slot = torch.where(happened, h.lengths, 0)
        at = torch.where(happened, time, h.times[row, h.lengths])
        fresh = s.decay.new_zeros(len(time), self.marks.count).scatter(
            1, mark[:, None], self._mass(where, s)[:, None]
        )
        new = (
            torch.exp(-s.decay * (at - h.times[row, h.lengths]))[:, None]
            * h.excitation[row, h.lengths]
            + fresh
        )
        here = (torch.arange(h.when.shape[1]) == slot[:, None]) & happened[:, None]
        after = (torch.arange(h.times.shape[1]) > h.lengths[:, None]) & happened[:, None]
        return SpatialHawkesHistory(
            torch.where(after, at[:, None], h.times),
            h.start,
            h.lengths + happened,
            torch.where(after[..., None], new[:, None], h.excitation),
            torch.where(here, at[:, None], h.when),
            torch.where(here, mark[:, None], h.marks),
            torch.where(here[..., None], where[:, None], h.places),
            context=h.context,
        )

    def log_intensity(
        self,
        history: SpatialHawkesHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log of the rate of every type in the whole box."""
        return self._ground(history, times, seen, self._strengths()).log()

    def log_intensity_at(
        self,
        history: SpatialHawkesHistory,
        times: Float[Tensor, "B G Q"],
        places: Float[Tensor, "B G Q k"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda_m(t, x), per unit of time and volume."""
        return self._local(history, times, places, seen, self._strengths())

    def closed_integral(
        self,
        history: SpatialHawkesHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b over the whole box, per type, in closed form."""
        return self._integral(history, a, b, seen, self._strengths())

    @torch.no_grad()
    def shortest_time(self, history: SpatialHawkesHistory) -> Float[Tensor, " B"]:
        """One over the decay."""
        return torch.full_like(history.start, 1 / float(self.log_decay.exp()))

    def upper_bound(
        self, history: SpatialHawkesHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """The largest rate in the box on [a, b] seen from the last position: what events trigger
        fades, so that it is the rate at a, but for effects of the calendar on the background.
        """
        s = self._strengths()
        at, seen = a[:, None, None], history.lengths[:, None]
        triggered = self._faded(history, at, seen, s)[:, 0, 0]
        background = s.baseline.log()
        if self.effects is not None:
            bound = self.effects.upper_bound(a, b, history.context, s.baseline.dtype)
            background = background + bound
        return (background.exp() + triggered).sum(-1) * (1 + 1e-12)

    @torch.no_grad()
    def draw_places(
        self,
        history: SpatialHawkesHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        random: torch.Generator,
    ) -> Float[Tensor, "B k"]:
        """Where events of known time and type are: from the background, or around one of the events
        before, as far as the box goes.
        """
        s = self._strengths()
        h = history
        seen = torch.arange(h.when.shape[1]) < h.lengths[:, None]
        age = torch.where(seen, time[:, None] - h.when, 0.0)
        pull = (
            s.branching[mark[:, None], h.marks]
            * s.decay
            * torch.exp(-s.decay * age)
            * self._mass(h.places, s)
        )
        base = self._log_base(time[:, None], h.context, s)[:, 0].gather(1, mark[:, None]).exp()
        shares = torch.cat([base, torch.where(seen, pull, 0.0)], 1).cumsum(1)
        coin = torch.rand(len(mark), 1, generator=random, dtype=torch.float64) * shares[:, -1:]
        parent = (
            torch.searchsorted(shares, coin, right=True)[:, 0].clamp(max=shares.shape[1] - 1) - 1
        )
        if h.places.shape[1]:
            centre = h.places[torch.arange(len(mark)), parent.clamp(min=0)]
        else:
            centre = self.grid.draw(mark, random)
        low, high = (centre.new_tensor(edge) for edge in (self.box.low, self.box.high))
        below, above = (torch.special.ndtr((edge - centre) / s.spread) for edge in (low, high))
        level = below + (above - below) * torch.rand(
            centre.shape, generator=random, dtype=torch.float64
        )
        near = torch.minimum(
            torch.maximum(centre + s.spread * torch.special.ndtri(level), low), high
        )  # the last bit may be outside
        return torch.where((parent >= 0)[:, None], near, self.grid.draw(mark, random))

    @torch.no_grad()
    def draw_clusters(
        self,
        history: SpatialHawkesHistory,
        start: Float[Tensor, " B"],
        stop: Float[Tensor, " B"],
        random: torch.Generator,
        limit: int,
    ) -> Clusters | None:
        """All events on [start, stop) of one path per row, generation by generation; None where a
        path has more than ``limit``.

        The first generation comes from the background and from the events before ``start``. Each
        event then has a Poisson number of offspring; those that fall outside the box are not
        observed and have none. The order in which events are drawn is not that of time, but their
        law is exactly the one that thinning draws from.
        """
        s = self._strengths()
        rows = torch.arange(len(start))
        known = torch.arange(history.when.shape[1]) < history.lengths[:, None]
        owner = rows[:, None].expand_as(known)[known]
        parents = Clusters(owner, history.when[known], history.marks[known], history.places[known])
        immigrants = self._immigrants(history, start, stop, s, random)
        newest = Clusters.joined([immigrants, self._offspring(parents, start, stop, s, random)])
        found = [newest]
        count = torch.bincount(newest.row, minlength=len(start))
        while len(newest.row) and int(count.max()) <= limit:
            newest = self._offspring(newest, start, stop, s, random)
            count = count + torch.bincount(newest.row, minlength=len(start))
            found.append(newest)
        return Clusters.joined(found) if int(count.max()) <= limit else None

    def _immigrants(
        self,
        history: SpatialHawkesHistory,
        start: Tensor,
        stop: Tensor,
        s: Strengths,
        random: torch.Generator,
    ) -> Clusters:
        """Events of the background: those of its upper bound, thinned."""
        bound = s.baseline.log().expand(len(start), -1)
        if self.effects is not None:
            bound = bound + self.effects.upper_bound(start, stop, history.context, bound.dtype)
        total = bound.exp().sum(1)
        own = torch.poisson(total * (stop - start), generator=random).long()
        rows = torch.arange(len(start)).repeat_interleave(own)
        times = start[rows] + (stop - start)[rows] * _uniform(len(rows), random)
        rates = s.baseline.expand(len(rows), -1)
        if self.effects is not None:
            first = torch.cumsum(own, 0) - own
            column = torch.arange(len(rows)) - first[rows]
            padded = start[:, None].repeat(1, max(1, int(own.max())))
            padded[rows, column] = times
            rates = self._log_base(padded, history.context, s)[rows, column].exp()
            kept = _uniform(len(rows), random) * total[rows] < rates.sum(1)
            rows, times, rates = rows[kept], times[kept], rates[kept]
        marks = draw_marks(rates, random)
        return Clusters(rows, times, marks, self.grid.draw(marks, random))

    def _offspring(
        self, parents: Clusters, start: Tensor, stop: Tensor, s: Strengths, random: torch.Generator
    ) -> Clusters:
        """The direct offspring of ``parents`` inside the box and the window of their row."""
        begin = torch.maximum(parents.time, start[parents.row])
        waited = begin - parents.time
        ahead = stop[parents.row] - begin
        reached = torch.exp(-s.decay * waited) * -torch.expm1(-s.decay * ahead)
        each = s.branching.sum(0)[parents.mark] * reached
        index = torch.arange(len(begin)).repeat_interleave(
            torch.poisson(each, generator=random).long()
        )
        marks = draw_marks(s.branching.T[parents.mark[index]], random)
        share = -torch.expm1(-s.decay * ahead[index]) * _uniform(len(index), random)
        times = begin[index] - torch.log1p(-share) / s.decay
        away = torch.randn(len(index), self.box.dimension, dtype=torch.float64, generator=random)
        places = parents.place[index] + s.spread * away
        low, high = (places.new_tensor(edge) for edge in (self.box.low, self.box.high))
        inside = ((places >= low) & (places <= high)).all(1) & (times < stop[parents.row[index]])
        return Clusters(parents.row[index][inside], times[inside], marks[inside], places[inside])

    @torch.no_grad()
    def expected_in_cells(
        self, history: SpatialHawkesHistory, paths: Dataset | None, a: float, b: float, cells: Cells
    ) -> Float[Tensor, "C M"]:
        """The mean rate of every type in the cells of a map over [a, b], given the events of
        ``history`` (one row) and, on average over ``paths``, those that follow; at the time a
        itself where a = b.

        Both integrals are closed: exp(-beta d) over time, and the normal density over a cell.
        """
        s = self._strengths()
        n = int(history.lengths[0])
        pulled = self._pulled(
            history.when[0, :n], history.marks[0, :n], history.places[0, :n], a, b, cells, s
        )
        if paths is not None and paths.places is not None and len(paths):
            arrays = (paths.times, paths.mark_ids, paths.places)
            times, marks, places = (torch.from_numpy(np.array(x)) for x in arrays)
            pulled = pulled + self._pulled(times, marks, places, a, b, cells, s) / len(paths)
        base = s.baseline * self._mean_factor(history, a, b)
        return base * self.grid.in_cells(cells) + pulled @ s.branching.T

    def _mean_factor(
        self, history: SpatialHawkesHistory, a: float, b: float
    ) -> Float[Tensor, " M"] | float:
        """The mean over [a, b] of what calendar and covariates multiply the background by."""
        if self.effects is None:
            return 1.0
        low, high = (torch.tensor([x], dtype=torch.float64) for x in (a, b))
        if b <= a:
            return self.effects.values(low[:, None], history.context)[0, 0].exp()
        cuts = self.effects.cuts(low, high, history.context).clamp(a, b)
        edges = torch.cat([low[:, None], cuts, high[:, None]], 1).sort(1).values
        x, weights = gauss_legendre(NODES)
        width = edges.diff(dim=1)
        nodes = edges[:, :-1, None] + width[..., None] * x
        values = self.effects.values(nodes, history.context)[0].exp()
        return torch.einsum("hqm,q,h->m", values, weights, width[0]) / (b - a)

    def _pulled(
        self,
        when: Tensor,
        marks: Tensor,
        places: Tensor,
        a: float,
        b: float,
        cells: Cells,
        s: Strengths,
    ) -> Float[Tensor, "C M"]:
        """The mean over [a, b] and over each cell of the kernels of events, summed by exciting
        type.
        """
        begin = when.clamp(min=a)
        if b > a:
            over_time = (
                torch.exp(-s.decay * (begin - when))
                * -torch.expm1(-s.decay * (b - begin))
                / (b - a)
            )
        else:
            over_time = s.decay * torch.exp(-s.decay * (begin - when))
        total = when.new_zeros(len(cells), self.marks.count)
        for mark in range(self.marks.count):
            for some in torch.nonzero(marks == mark)[:, 0].split(EVENTS):
                weight = over_time[some]
                sides = []
                for axis in cells.hidden:
                    edges = torch.tensor(
                        [self.box.low[axis], self.box.high[axis]], dtype=torch.float64
                    )
                    weight = weight * _normal_in(places[some, axis], s.spread[axis], edges)[:, 0]
                for axis, ends in zip(cells.shown, cells.edges, strict=True):
                    edges = torch.from_numpy(ends)
                    sides.append(
                        _normal_in(places[some, axis], s.spread[axis], edges) / edges.diff()
                    )
                first = weight[:, None] * sides[0]
                total[:, mark] += (
                    first.sum(0) if len(sides) == 1 else (first.T @ sides[1]).flatten()
                )
        return total

    # ------------------------------------------------------------------ formulas, for any strengths

    def _strengths(self) -> Strengths:
        logs = (self.log_baseline, self.log_branching, self.log_decay, self.log_spread)
        baseline, branching, decay, spread = (x.exp() for x in logs)
        weight = None if self.effects is None else self.effects.weight
        return Strengths(baseline, branching, decay, spread, self.grid.log_share, weight)

    def _detached(self) -> Strengths:
        with torch.no_grad():
            s = self._strengths()
        weight = None if s.weight is None else s.weight.detach()
        return replace(s, log_share=s.log_share.detach(), weight=weight)

    def _log_likelihood(
        self, batch: Batch, s: Strengths, convention: str = "window"
    ) -> Float[Tensor, " B"]:
        """With effects of calendar and covariates: without the integral of the background."""
        history = self._encode(batch, s)
        B, N = batch.times.shape
        position = torch.arange(N + 1).expand(B, N + 1)
        logs = self._local(
            history, batch.times[..., None], history.places[:, :, None], position[:, :-1], s
        )[:, :, 0]
        own = logs.gather(2, batch.marks[..., None])[..., 0]
        left = batch.edges[:, :-1]
        right = batch.edges[:, 1:]
        seen = position
        exposure = batch.scored_exposure
        if exposure is not None:
            left, right, seen = exposed_pieces(batch, exposure)
        integral = self._triggered(history, left, right, seen, s).sum(2)
        if self.effects is None:
            integral = integral + (right - left) * s.baseline.sum()
        if exposure is not None:
            integral = integral * exposure.at(left)[..., 0]
        scored = batch.scored
        kept = torch.ones_like(seen, dtype=torch.bool)
        if convention == "gaps":
            scored = scored & (position[:, :-1] > 0)
            kept = (seen > 0) & (seen < batch.lengths[:, None])
        events = torch.where(scored, own + log_exposure(batch), 0.0)
        return events.sum(1) - torch.where(kept, integral, 0.0).sum(1)

    def _encode(self, batch: Batch, s: Strengths) -> SpatialHawkesHistory:
        places = places_of(batch)
        own = (
            nn.functional.one_hot(batch.marks, self.marks.count).to(s.decay)
            * self._mass(places, s)[..., None]
        )
        driven = torch.where(batch.valid[..., None], own, 0.0)[:, :, None, None]
        times = torch.cat([batch.start[:, None], batch.times], 1)
        rate = torch.complex(-s.decay, torch.zeros_like(s.decay)).reshape(1, 1)
        rest = scan(rate, times.diff(dim=1), driven.to(rate.dtype)).real[:, :, 0, 0]
        excitation = torch.cat([rest.new_zeros(len(rest), 1, rest.shape[2]), rest], 1)
        return SpatialHawkesHistory(
            times,
            batch.start,
            batch.lengths,
            excitation,
            batch.times,
            batch.marks,
            places,
            context=self.known_context(batch),
        )

    def _mass(self, places: Float[Tensor, "*S k"], s: Strengths) -> Float[Tensor, "*S"]:
        """The share of an event's offspring that fall inside the box."""
        low, high = (places.new_tensor(edge) for edge in (self.box.low, self.box.high))
        ends = (torch.special.ndtr((edge - places) / s.spread) for edge in (high, low))
        upper, lower = ends
        return (upper - lower).prod(-1)

    def _log_base(
        self, times: Float[Tensor, "B ..."], context: BatchContext | None, s: Strengths
    ) -> Float[Tensor, "B ... M"]:
        """log of the background's rate of every type in the whole box."""
        flat = s.baseline.log().expand(*times.shape, -1)
        if self.effects is None:
            return flat
        return flat + self.effects.values(times, context, weight=s.weight)

    def _log_background(
        self, times: Tensor, places: Tensor, context: BatchContext | None, s: Strengths
    ) -> Float[Tensor, "B G Q M"]:
        """log of the background at places, per unit of time and volume."""
        return self._log_base(times, context, s) + self.grid.log_densities(s.log_share, places)

    def _ground(
        self, h: SpatialHawkesHistory, times: Tensor, seen: Tensor | None, s: Strengths
    ) -> Float[Tensor, "B G Q M"]:
        return self._log_base(times, h.context, s).exp() + self._faded(h, times, seen, s)

    def _faded(
        self, h: SpatialHawkesHistory, times: Tensor, seen: Tensor | None, s: Strengths
    ) -> Float[Tensor, "B G Q M"]:
        """What past events add to the rate in the whole box."""
        anchor, excitation = _at(h, seen)
        jump = s.decay * excitation @ s.branching.T
        faded = torch.exp(-s.decay * (times - anchor[..., None]))
        return faded[..., None] * jump[:, :, None]

    def _integral(
        self, h: SpatialHawkesHistory, a: Tensor, b: Tensor, seen: Tensor | None, s: Strengths
    ) -> Float[Tensor, "B G M"]:
        return (b - a)[..., None] * s.baseline + self._triggered(h, a, b, seen, s)

    def _triggered(
        self, h: SpatialHawkesHistory, a: Tensor, b: Tensor, seen: Tensor | None, s: Strengths
    ) -> Float[Tensor, "B G M"]:
        """The integral of what past events add."""
        anchor, excitation = _at(h, seen)
        mass = torch.exp(-s.decay * (a - anchor)) * -torch.expm1(-s.decay * (b - a))
        return mass[..., None] * (excitation @ s.branching.T)

    def _local(
        self,
        h: SpatialHawkesHistory,
        times: Tensor,
        places: Tensor,
        seen: Tensor | None,
        s: Strengths,
    ) -> Float[Tensor, "B G Q M"]:
        B, G, Q = times.shape
        index = torch.arange(G).expand(B, G) if seen is None else seen
        background = self._log_background(times, places, h.context, s)
        piece = G
        if not torch.is_grad_enabled():
            piece = max(1, PAIRS // max(1, B * Q * h.when.shape[1]))
        groups = zip(*(x.split(piece, 1) for x in (times, places, index, background)), strict=True)
        return torch.cat([self._some(h, t, x, i, f, s) for t, x, i, f in groups], 1)

    def _some(
        self,
        h: SpatialHawkesHistory,
        times: Tensor,
        places: Tensor,
        index: Tensor,
        background: Tensor,
        s: Strengths,
    ) -> Tensor:
        seen = (torch.arange(h.when.shape[1]) < index[..., None])[:, :, None]
        age = torch.where(seen, times[..., None] - h.when[:, None, None], 0.0)
        distance = (places[..., None, :] - h.places[:, None, None]) / s.spread
        off = distance.square().sum(-1)
        peak = s.decay / (s.spread * math.sqrt(2 * math.pi)).prod()
        each = torch.where(seen, peak * torch.exp(-s.decay * age - off / 2), 0.0)
        return torch.log(
            background.exp() + torch.einsum("bgqn,bnm->bgqm", each, s.branching.T[h.marks])
        )


class _Background:
    """The integral of a background with effects of calendar and covariates over the observed time,
    and the penalty of their weights, which a Poisson process with the same effects chooses.
    """

    def __init__(self, data: Dataset, effects: Effects) -> None:
        alone = fit_effects(data, effects.spec)
        with torch.no_grad():
            effects.weight.copy_(torch.from_numpy(alone.weight))
        self.spec = effects.spec
        self.design = integral_design(data, effects.spec, merged=True)
        self.penalty = penalty_of(effects.spec, alone.penalties)
        self.nodes = torch.from_numpy(np.ascontiguousarray(self.design.nodes[:, 1:]))
        self.widths = torch.from_numpy(self.design.weights)

    def integral(self, s: Strengths) -> Float[Tensor, ""]:
        """Over all sequences and types."""
        assert s.weight is not None
        return (self.widths @ (self.nodes @ s.weight).exp()) @ s.baseline

    def penalised(self, s: Strengths) -> Float[Tensor, ""]:
        """Half of the quadratic penalty."""
        assert s.weight is not None
        penalty = torch.from_numpy(self.penalty[1:, 1:])
        return (s.weight * (penalty @ s.weight)).sum() / 2

    @torch.no_grad()
    def centre(self, level: Tensor, weight: Tensor) -> None:
        """Let ``level`` be the logarithm of the mean rates."""
        moved = centred(
            self.spec, self.design, level.detach().numpy().copy(), weight.detach().numpy().copy()
        )
        level.copy_(torch.from_numpy(moved[0]))
        weight.copy_(torch.from_numpy(moved[1]))


def _nearest(data: Dataset, box: Box) -> float:
    """The median distance, as a share of the box, from an event to the nearest of those just before
    it; 0 where there are too few.
    """
    found = []
    for sequence in data[:LOOKED]:
        if sequence.places is not None and len(sequence) > 1:
            u = (sequence.places[:LOOKED] - np.array(box.low)) / np.subtract(box.high, box.low)
            apart = np.abs(u[:, None] - u[None]).max(-1)
            earlier = np.where(np.tri(len(u), k=-1, dtype=bool), apart, np.inf)[1:]
            found.append(earlier.min(1))
    return float(np.median(np.concatenate(found))) if found else 0.0


def _at(
    h: SpatialHawkesHistory, seen: Int[Tensor, "B G"] | None
) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M"]]:
    if seen is None:
        return h.times, h.excitation
    row = torch.arange(len(seen))[:, None]
    return h.times[row, seen], h.excitation[row, seen]


def _normal_in(
    middle: Float[Tensor, " E"], spread: Float[Tensor, ""], edges: Float[Tensor, " n"]
) -> Float[Tensor, "E m"]:
    """The probability of every interval between neighbouring ``edges`` under normal laws around
    ``middle``.
    """
    return torch.special.ndtr((edges - middle[:, None]) / spread).diff(dim=1)


def _uniform(count: int, random: torch.Generator) -> Float[Tensor, " E"]:
    return torch.rand(count, dtype=torch.float64, generator=random)


def _wider(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_zeros(x.shape[0], 1, *x.shape[2:])], 1)
