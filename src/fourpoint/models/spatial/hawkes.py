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
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fourpoint.events import Batch, Box, Dataset, MarkSpace, UserError
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
from fourpoint.models.poisson import mean_rates
from fourpoint.models.spatial.cells import Cells
from fourpoint.models.spatial.grid import SpatialGrid
from fourpoint.ops.attention import scan
from fourpoint.ops.minimise import minimise
from fourpoint.ops.thinning import draw_marks

PAIRS = 2**22  # pairs of a query and an event that are compared at once without gradient
EVENTS = 2**15  # whose kernels are integrated over all cells at once
SHORT = 64  # sequences of a batch while fitting
LOOKED = 256  # sequences, and events of each, that the first guess of the spread looks at


class Strengths(NamedTuple):
    """The parameters as they enter the rate, in the user's units."""

    baseline: Float[Tensor, " M"]
    branching: Float[Tensor, "M M"]
    decay: Float[Tensor, ""]
    spread: Float[Tensor, " k"]
    log_share: Float[Tensor, "M C"]


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
    has_closed_integral = True
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

        def loss(point: Tensor) -> Tensor:
            values = [
                x.reshape(p.shape)
                for x, p in zip(point.split([p.numel() for p in free]), free, strict=True)
            ]
            share = values[4] if len(values) > 4 else self.grid.log_share.detach()
            baseline, branching, decay, spread = (v.exp() for v in values[:4])
            s = Strengths(baseline, branching, decay, spread, share)
            total = sum(
                (
                    checkpoint(self._log_likelihood, batch, s, use_reentrant=False).sum()
                    for batch in batches
                ),
                torch.zeros(()),
            )
            return (-total - torch.log_softmax(share, 1).mean(1).sum()) / max(1, data.scored_events)

        found = minimise(loss, torch.cat([p.detach().flatten() for p in free]), steps=200)
        with torch.no_grad():
            for value, parameter in zip(
                found.point.split([p.numel() for p in free]), free, strict=True
            ):
                parameter.copy_(value.reshape(parameter.shape))
        s = Strengths(*(x.detach() for x in self._strengths()))
        ratio = float(torch.linalg.eigvals(s.branching).abs().max())
        where = ", ".join(
            f"{name} {float(x):.4g}" for name, x in zip(self.box.names, s.spread, strict=True)
        )
        line = (
            f"baseline {float(s.baseline.sum()):.4g} per unit of time, branching ratio "
            f"{ratio:.3g}, decay {float(s.decay):.4g}"
        )
        notes = [f"{line}, spread {where}", f"maximum likelihood: {found}"]
        if ratio >= 1:
            return [*notes, f"the branching ratio {ratio:.3f} is 1 or more: forecasts explode"]
        return notes

    def training_log_likelihood(
        self, batch: Batch, nodes: int, random: torch.Generator, convention: str
    ) -> Float[Tensor, " B"]:
        """The exact log-likelihood."""
        return self.exact_log_likelihood(batch, convention)

    def exact_log_likelihood(self, batch: Batch, convention: str = "window") -> Float[Tensor, " B"]:
        """The closed form, with gradient; "gaps" leaves out the first event and both ends of the
        window.
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
        """The largest rate in the box on [a, b] seen from the last position: it fades, so that it
        is the rate at a.
        """
        return self.log_intensity(history, a[:, None, None], history.lengths[:, None]).exp().sum(
            (1, 2, 3)
        ) * (1 + 1e-12)

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
        shares = torch.cat([s.baseline[mark][:, None], torch.where(seen, pull, 0.0)], 1).cumsum(1)
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
        own = torch.poisson(s.baseline.sum() * (stop - start), generator=random).long()
        first = rows.repeat_interleave(own)
        times = start[first] + (stop - start)[first] * _uniform(len(first), random)
        marks = draw_marks(s.baseline.expand(len(first), -1), random)
        immigrants = Clusters(first, times, marks, self.grid.draw(marks, random))
        newest = Clusters.joined([immigrants, self._offspring(parents, start, stop, s, random)])
        found = [newest]
        count = torch.bincount(newest.row, minlength=len(start))
        while len(newest.row) and int(count.max()) <= limit:
            newest = self._offspring(newest, start, stop, s, random)
            count = count + torch.bincount(newest.row, minlength=len(start))
            found.append(newest)
        return Clusters.joined(found) if int(count.max()) <= limit else None

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
        return s.baseline * self.grid.in_cells(cells) + pulled @ s.branching.T

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
        return Strengths(baseline, branching, decay, spread, self.grid.log_share)

    def _log_likelihood(
        self, batch: Batch, s: Strengths, convention: str = "window"
    ) -> Float[Tensor, " B"]:
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
        integral = self._integral(history, left, right, seen, s).sum(2)
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
            times, batch.start, batch.lengths, excitation, batch.times, batch.marks, places
        )

    def _mass(self, places: Float[Tensor, "*S k"], s: Strengths) -> Float[Tensor, "*S"]:
        """The share of an event's offspring that fall inside the box."""
        low, high = (places.new_tensor(edge) for edge in (self.box.low, self.box.high))
        ends = (torch.special.ndtr((edge - places) / s.spread) for edge in (high, low))
        upper, lower = ends
        return (upper - lower).prod(-1)

    def _ground(
        self, h: SpatialHawkesHistory, times: Tensor, seen: Tensor | None, s: Strengths
    ) -> Float[Tensor, "B G Q M"]:
        anchor, excitation = _at(h, seen)
        jump = s.decay * excitation @ s.branching.T
        faded = torch.exp(-s.decay * (times - anchor[..., None]))
        return s.baseline + faded[..., None] * jump[:, :, None]

    def _integral(
        self, h: SpatialHawkesHistory, a: Tensor, b: Tensor, seen: Tensor | None, s: Strengths
    ) -> Float[Tensor, "B G M"]:
        anchor, excitation = _at(h, seen)
        width = b - a
        mass = torch.exp(-s.decay * (a - anchor)) * -torch.expm1(-s.decay * width)
        triggered = mass[..., None] * (excitation @ s.branching.T)
        return width[..., None] * s.baseline + triggered

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
        background = s.baseline.log() + self.grid.log_densities(s.log_share, places)
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
