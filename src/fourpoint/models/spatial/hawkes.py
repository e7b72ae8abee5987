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
        row = torch.cat([part.row for part in parts])
        time = torch.cat([part.time for part in parts])
        mark = torch.cat([part.mark for part in parts])
        place = torch.cat([part.place for part in parts])
        features = [part.features for part in parts if part.features is not None]
        every = None
        if features and len(features) == len(parts):
            every = torch.cat(features)
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
    draws_paths = "clusters"

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
        remedy = (
            "Merge rare types, or use --model spatial-dapp, which has no parameter for every pair."
        )
        require_memory(
            3 * 8 * M * M,
            f"a Hawkes process with {M:,} x {M:,} branching ratios",
            remedy,
        )
        self.grid = SpatialGrid(M, self.box, cells)
        self.baseline = Baseline(M, base="constant", inside=False, dtype=torch.float64)
        nn.init.constant_(self.baseline.log_base, math.log(baseline))
        self.log_branching = nn.Parameter(
            torch.full((M, M), math.log(branching / M), dtype=torch.float64)
        )
        self.log_decay = nn.Parameter(torch.tensor(math.log(decay), dtype=torch.float64))
        self.log_spread = nn.Parameter((spread * _widths(self.box)).log())
        self._settings = dict(
            baseline=baseline,
            branching=branching,
            decay=decay,
            spread=spread,
            cells=cells,
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
        s = self._detached()
        return {
            "baseline": s.baseline.cpu().numpy(),
            "branching": s.branching.cpu().numpy(),
            "decay": s.decay.cpu().numpy(),
            "spread": s.spread.cpu().numpy(),
            "cells": self.grid.cells,
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
        rates = mean_rates(data, self.marks)
        self.log_baseline.copy_((rates / 2).log())
        self.log_branching.fill_(math.log(0.3 / self.marks.count))
        self.log_decay.fill_(-math.log(4 * gap))
        nearest = _nearest(data, self.box)
        if nearest > 0:
            spread = nearest * _widths(self.box)
            self.log_spread.copy_(spread.log())
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
        background = None
        if self.effects is not None:
            background = _Background(data, self.effects)
        free = self._free_parameters()
        sizes = [parameter.numel() for parameter in free]

        def loss(point: Tensor) -> Tensor:
            s = self._strengths_at(point.split(sizes))
            total = torch.zeros(())
            for batch in batches:
                each = checkpoint(self._log_likelihood, batch, s, use_reentrant=False)
                total = total + each.sum()
            if background is not None:
                total = total - background.integral(s) - background.penalised(s)
            log_share = torch.log_softmax(s.log_share, 1)
            prior = log_share.mean(1).sum()
            return (-total - prior) / max(1, data.scored_events)

        start = torch.cat([parameter.detach().flatten() for parameter in free])
        found = minimise(loss, start, steps=200)
        with torch.no_grad():
            for value, parameter in zip(found.point.split(sizes), free, strict=True):
                parameter.copy_(value.reshape(parameter.shape))
        said: list[str] = []
        if background is not None and self.effects is not None:
            covariance = self._covariance(batches, background)
            background.centre(self.log_baseline, self.effects.weight)
            weight = self.effects.weight.detach().numpy()
            names = tuple(self.marks.names) or ("",)
            self.rate_ratios = rate_ratios(self.effects.spec, weight, covariance, names)
            said = ratio_notes(self.rate_ratios)
        return self._fit_notes(f"maximum likelihood: {found}", said)

    def _fit_notes(self, convergence: str, said: list[str]) -> list[str]:
        """The fitted parameters in words, with notes on convergence and on effects."""
        s = self._detached()
        ratio = float(torch.linalg.eigvals(s.branching).abs().max())
        spreads = []
        for name, spread in zip(self.box.names, s.spread, strict=True):
            spreads.append(f"{name} {float(spread):.4g}")
        baseline = float(s.baseline.sum())
        line = (
            f"baseline {baseline:.4g} per unit of time, branching ratio {ratio:.3g}, "
            f"decay {float(s.decay):.4g}, spread {', '.join(spreads)}"
        )
        notes = [line, convergence, *said]
        if ratio >= 1:
            notes.append(f"the branching ratio {ratio:.3f} is 1 or more: forecasts explode")
        return notes

    def _free_parameters(self) -> list[Tensor]:
        """The parameters that :meth:`maximum_likelihood` estimates."""
        free = [self.log_baseline, self.log_branching, self.log_decay, self.log_spread]
        if self.grid.cells > 1:
            free.append(self.grid.log_share)
        if self.effects is not None:
            free.append(self.effects.weight)
        return free

    def _strengths_at(self, point: tuple[Tensor, ...]) -> Strengths:
        """The strengths at values of the free parameters, each flattened."""
        values = []
        for value, parameter in zip(point, self._free_parameters(), strict=True):
            values.append(value.reshape(parameter.shape))
        weight = None
        if self.effects is not None:
            weight = values.pop()
        log_share = self.grid.log_share.detach()
        if self.grid.cells > 1:
            log_share = values.pop()
        baseline, branching, decay, spread = (value.exp() for value in values)
        return Strengths(baseline, branching, decay, spread, log_share, weight)

    def _covariance(self, batches: list[Batch], background: _Background) -> Float[ndarray, "M P P"]:
        """The covariance of the level and the weights of every type, from the outer products of the
        gradients of log lambda at the events. The other parameters are taken into account if they
        are few.
        """
        s = self._detached()
        at_events = self._at_scored_events(batches, s)
        others = self._other_derivatives(batches, s, len(at_events.log_rate))
        inverses, crosses = [], []
        rest = others.T @ others + 1e-9 * np.eye(others.shape[1])
        for m in range(self.marks.count):
            own = at_events.mark == m
            share = at_events.background_share[own, None]
            gradient = share * at_events.design[own]
            level = np.zeros_like(background.penalty)
            level[0, 0] = 1e-9  # a type without background
            information = gradient.T @ gradient + background.penalty + level
            inverse = np.linalg.inv(information)
            cross = inverse @ (gradient.T @ others[own])
            rest = rest - (others[own].T @ gradient) @ cross
            inverses.append(inverse)
            crosses.append(cross)
        remaining = np.linalg.pinv(rest)
        covariances = []
        for inverse, cross in zip(inverses, crosses, strict=True):
            covariances.append(inverse + cross @ remaining @ cross.T)
        return np.stack(covariances)

    def _other_derivatives(
        self,
        batches: list[Batch],
        s: Strengths,
        events: int,
    ) -> Float[ndarray, "N D"]:
        """Derivatives of log lambda at the events by the logarithms of branching, decay and spread;
        none (D = 0) where these are more than MOST_OTHERS.
        """
        parameters = {"branching": s.branching, "decay": s.decay, "spread": s.spread}
        count = sum(parameter.numel() for parameter in parameters.values())
        if count > MOST_OTHERS:
            return np.zeros((events, 0))
        columns = []
        for name, parameter in parameters.items():
            for index in range(parameter.numel()):
                ends = []
                for side in (DIFFERENCE, -DIFFERENCE):
                    moved = parameter.clone()
                    moved.view(-1)[index] *= math.exp(side)
                    there = replace(s, **{name: moved})
                    ends.append(self._at_scored_events(batches, there).log_rate)
                columns.append((ends[0] - ends[1]) / (2 * DIFFERENCE))
        return np.stack(columns, 1)

    @torch.no_grad()
    def _at_scored_events(self, batches: list[Batch], s: Strengths) -> _AtEvents:
        """Rates and basis functions at all scored events."""
        assert self.effects is not None
        logs, shares, rows, marks = [], [], [], []
        for batch in batches:
            history = self._encode(batch, s)
            B, N = batch.times.shape
            times = batch.times[..., None]
            places = history.places[:, :, None]
            position = torch.arange(N).expand(B, -1)
            own = batch.marks[..., None]
            total = self._local(history, times, places, position, s)[:, :, 0]
            total = total.gather(2, own)[..., 0]
            alone = self._log_background(times, places, history.context, s)[:, :, 0]
            alone = alone.gather(2, own)[..., 0]
            share = (alone - total).exp()
            basis = self.effects.basis(batch.times, batch.context)
            level = torch.ones_like(basis[..., :1])
            design = torch.cat([level, basis], -1)
            scored = batch.scored
            logs.append(total[scored])
            shares.append(share[scored])
            rows.append(design[scored])
            marks.append(batch.marks[scored])
        return _AtEvents(
            log_rate=torch.cat(logs).numpy(),
            background_share=torch.cat(shares).numpy(),
            design=torch.cat(rows).numpy(),
            mark=torch.cat(marks).numpy(),
        )

    def training_log_likelihood(
        self,
        batch: Batch,
        nodes: int,
        random: torch.Generator,
        convention: str,
    ) -> Float[Tensor, " B"] | None:
        """The exact log-likelihood; None with effects of calendar and covariates."""
        if self.effects is not None:
            return None
        return self.exact_log_likelihood(batch, convention)

    def exact_log_likelihood(self, batch: Batch, convention: str = "window") -> Float[Tensor, " B"]:
        """The closed form, with gradient, for a model without effects of calendar and covariates;
        "gaps" leaves out the first event and both ends of the window.
        """
        return self._log_likelihood(batch, self._strengths(), convention)

    # ------------------------------------------------------------------ the verbs

    def encode(
        self,
        batch: Batch,
        before: SpatialHawkesHistory | None = None,
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
        needed = int((h.lengths + happened).max())
        if needed > h.when.shape[1]:
            h = _with_one_slot_more(h)
        slot = torch.where(happened, h.lengths, 0)
        last = h.times[row, h.lengths]
        now = torch.where(happened, time, last)
        nothing = s.decay.new_zeros(len(time), self.marks.count)
        mass = self._mass(where, s)
        added = nothing.scatter(1, mark[:, None], mass[:, None])
        faded = torch.exp(-s.decay * (now - last))
        excitation = faded[:, None] * h.excitation[row, h.lengths] + added
        events = torch.arange(h.when.shape[1])
        here = (events == slot[:, None]) & happened[:, None]
        positions = torch.arange(h.times.shape[1])
        after = (positions > h.lengths[:, None]) & happened[:, None]
        return SpatialHawkesHistory(
            times=torch.where(after, now[:, None], h.times),
            start=h.start,
            lengths=h.lengths + happened,
            excitation=torch.where(after[..., None], excitation[:, None], h.excitation),
            when=torch.where(here, now[:, None], h.when),
            marks=torch.where(here, mark[:, None], h.marks),
            places=torch.where(here[..., None], where[:, None], h.places),
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
        self,
        history: SpatialHawkesHistory,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """The largest rate in the box on [a, b] seen from the last position: what events trigger
        fades, so that it is the rate at a, but for effects of the calendar on the background.
        """
        s = self._strengths()
        now = a[:, None, None]
        seen = history.lengths[:, None]
        triggered = self._faded(history, now, seen, s)[:, 0, 0]
        log_background = s.baseline.log()
        if self.effects is not None:
            bound = self.effects.upper_bound(a, b, history.context, s.baseline.dtype)
            log_background = log_background + bound
        total = (log_background.exp() + triggered).sum(-1)
        return total * (1 + 1e-12)

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
        branching = s.branching[mark[:, None], h.marks]
        decayed = torch.exp(-s.decay * age)
        pull = branching * s.decay * decayed * self._mass(h.places, s)
        log_base = self._log_base(time[:, None], h.context, s)[:, 0]
        base = log_base.gather(1, mark[:, None]).exp()
        causes = torch.cat([base, torch.where(seen, pull, 0.0)], 1)
        shares = causes.cumsum(1)
        coin = torch.rand(len(mark), 1, generator=random, dtype=torch.float64)
        cause = torch.searchsorted(shares, coin * shares[:, -1:], right=True)[:, 0]
        parent = cause.clamp(max=shares.shape[1] - 1) - 1
        if h.places.shape[1]:
            row = torch.arange(len(mark))
            centre = h.places[row, parent.clamp(min=0)]
        else:
            centre = self.grid.draw(mark, random)
        low, high = self._box_ends(centre)
        below = torch.special.ndtr((low - centre) / s.spread)
        above = torch.special.ndtr((high - centre) / s.spread)
        uniform = torch.rand(centre.shape, generator=random, dtype=torch.float64)
        level = below + (above - below) * uniform
        near = centre + s.spread * torch.special.ndtri(level)
        near = torch.minimum(torch.maximum(near, low), high)  # the last bit may be outside
        return torch.where((parent >= 0)[:, None], near, self.grid.draw(mark, random))

    @torch.no_grad()
    def draw_paths(
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
        paths = len(start)
        rows = torch.arange(paths)
        known = torch.arange(history.when.shape[1]) < history.lengths[:, None]
        parents = Clusters(
            row=rows[:, None].expand_as(known)[known],
            time=history.when[known],
            mark=history.marks[known],
            place=history.places[known],
        )
        immigrants = self._immigrants(history, start, stop, s, random)
        offspring = self._offspring(parents, start, stop, s, random)
        newest = Clusters.joined([immigrants, offspring])
        found = [newest]
        count = torch.bincount(newest.row, minlength=paths)
        while len(newest.row) and int(count.max()) <= limit:
            newest = self._offspring(newest, start, stop, s, random)
            count = count + torch.bincount(newest.row, minlength=paths)
            found.append(newest)
        if int(count.max()) > limit:
            return None
        return Clusters.joined(found)

    def _immigrants(
        self,
        history: SpatialHawkesHistory,
        start: Tensor,
        stop: Tensor,
        s: Strengths,
        random: torch.Generator,
    ) -> Clusters:
        """Events of the background: those of its upper bound, thinned."""
        log_bound = s.baseline.log().expand(len(start), -1)
        if self.effects is not None:
            context = history.context
            bound = self.effects.upper_bound(start, stop, context, log_bound.dtype)
            log_bound = log_bound + bound
        total = log_bound.exp().sum(1)
        duration = stop - start
        counts = torch.poisson(total * duration, generator=random).long()
        rows = torch.arange(len(start)).repeat_interleave(counts)
        times = start[rows] + duration[rows] * _uniform(len(rows), random)
        rates = s.baseline.expand(len(rows), -1)
        if self.effects is not None:
            first = torch.cumsum(counts, 0) - counts
            column = torch.arange(len(rows)) - first[rows]
            most = max(1, int(counts.max()))
            padded = start[:, None].repeat(1, most)
            padded[rows, column] = times
            log_rates = self._log_base(padded, history.context, s)
            rates = log_rates[rows, column].exp()
            kept = _uniform(len(rows), random) * total[rows] < rates.sum(1)
            rows = rows[kept]
            times = times[kept]
            rates = rates[kept]
        marks = draw_marks(rates, random)
        places = self.grid.draw(marks, random)
        return Clusters(rows, times, marks, places)

    def _offspring(
        self,
        parents: Clusters,
        start: Tensor,
        stop: Tensor,
        s: Strengths,
        random: torch.Generator,
    ) -> Clusters:
        """The direct offspring of ``parents`` inside the box and the window of their row."""
        begin = torch.maximum(parents.time, start[parents.row])
        waited = begin - parents.time
        ahead = stop[parents.row] - begin
        in_window = torch.exp(-s.decay * waited) * -torch.expm1(-s.decay * ahead)
        branching = s.branching.sum(0)[parents.mark]
        counts = torch.poisson(branching * in_window, generator=random).long()
        parent = torch.arange(len(begin)).repeat_interleave(counts)
        row = parents.row[parent]
        marks = draw_marks(s.branching.T[parents.mark[parent]], random)
        truncation = -torch.expm1(-s.decay * ahead[parent])
        level = truncation * _uniform(len(parent), random)
        times = begin[parent] - torch.log1p(-level) / s.decay
        shape = (len(parent), self.box.dimension)
        offset = torch.randn(shape, dtype=torch.float64, generator=random)
        places = parents.place[parent] + s.spread * offset
        low, high = self._box_ends(places)
        inside = ((places >= low) & (places <= high)).all(1)
        inside = inside & (times < stop[row])
        return Clusters(row[inside], times[inside], marks[inside], places[inside])

    @torch.no_grad()
    def expected_in_cells(
        self,
        history: SpatialHawkesHistory,
        paths: Dataset | None,
        a: float,
        b: float,
        cells: Cells,
    ) -> Float[Tensor, "C M"]:
        """The mean rate of every type in the cells of a map over [a, b], given the events of
        ``history`` (one row) and, on average over ``paths``, those that follow; at the time a
        itself where a = b.

        Both integrals are closed: exp(-beta d) over time, and the normal density over a cell.
        """
        s = self._strengths()
        n = int(history.lengths[0])
        when = history.when[0, :n]
        marks = history.marks[0, :n]
        places = history.places[0, :n]
        pulled = self._pulled(when, marks, places, a, b, cells, s)
        if paths is not None and paths.places is not None and len(paths):
            when = torch.from_numpy(np.array(paths.times))
            marks = torch.from_numpy(np.array(paths.mark_ids))
            places = torch.from_numpy(np.array(paths.places))
            ahead = self._pulled(when, marks, places, a, b, cells, s)
            pulled = pulled + ahead / len(paths)
        base = s.baseline * self._mean_factor(history, a, b)
        return base * self.grid.in_cells(cells) + pulled @ s.branching.T

    def _mean_factor(
        self,
        history: SpatialHawkesHistory,
        a: float,
        b: float,
    ) -> Float[Tensor, " M"] | float:
        """The mean over [a, b] of what calendar and covariates multiply the background by."""
        if self.effects is None:
            return 1.0
        context = history.context
        low = torch.tensor([a], dtype=torch.float64)
        if b <= a:
            return self.effects.values(low[:, None], context)[0, 0].exp()
        high = torch.tensor([b], dtype=torch.float64)
        cuts = self.effects.cuts(low, high, context).clamp(a, b)
        edges = torch.cat([low[:, None], cuts, high[:, None]], 1)
        edges = edges.sort(1).values
        x, weights = gauss_legendre(NODES)
        width = edges.diff(dim=1)
        nodes = edges[:, :-1, None] + width[..., None] * x
        factors = self.effects.values(nodes, context)[0].exp()
        return torch.einsum("hqm,q,h->m", factors, weights, width[0]) / (b - a)

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
        decayed = torch.exp(-s.decay * (begin - when))
        if b > a:
            in_window = -torch.expm1(-s.decay * (b - begin))
            over_time = decayed * in_window / (b - a)
        else:
            over_time = s.decay * decayed
        total = when.new_zeros(len(cells), self.marks.count)
        for mark in range(self.marks.count):
            own = torch.nonzero(marks == mark)[:, 0]
            for some in own.split(EVENTS):
                weight = over_time[some]
                near = places[some]
                for axis in cells.hidden:
                    ends = [self.box.low[axis], self.box.high[axis]]
                    edges = torch.tensor(ends, dtype=torch.float64)
                    weight = weight * _normal_in(near[:, axis], s.spread[axis], edges)[:, 0]
                sides = []
                for axis, shown in zip(cells.shown, cells.edges, strict=True):
                    edges = torch.from_numpy(shown)
                    inside = _normal_in(near[:, axis], s.spread[axis], edges)
                    sides.append(inside / edges.diff())
                first = weight[:, None] * sides[0]
                if len(sides) == 1:
                    total[:, mark] += first.sum(0)
                else:
                    total[:, mark] += (first.T @ sides[1]).flatten()
        return total

    # ------------------------------------------------------------------ formulas, for any strengths

    def _strengths(self) -> Strengths:
        return Strengths(
            baseline=self.log_baseline.exp(),
            branching=self.log_branching.exp(),
            decay=self.log_decay.exp(),
            spread=self.log_spread.exp(),
            log_share=self.grid.log_share,
            weight=None if self.effects is None else self.effects.weight,
        )

    def _detached(self) -> Strengths:
        with torch.no_grad():
            s = self._strengths()
        weight = None if s.weight is None else s.weight.detach()
        return replace(s, log_share=s.log_share.detach(), weight=weight)

    def _log_likelihood(
        self,
        batch: Batch,
        s: Strengths,
        convention: str = "window",
    ) -> Float[Tensor, " B"]:
        """With effects of calendar and covariates: without the integral of the background."""
        history = self._encode(batch, s)
        B, N = batch.times.shape
        position = torch.arange(N + 1).expand(B, N + 1)
        times = batch.times[..., None]
        places = history.places[:, :, None]
        logs = self._local(history, times, places, position[:, :-1], s)[:, :, 0]
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
        integral = torch.where(kept, integral, 0.0)
        return events.sum(1) - integral.sum(1)

    def _encode(self, batch: Batch, s: Strengths) -> SpatialHawkesHistory:
        places = places_of(batch)
        one_hot = nn.functional.one_hot(batch.marks, self.marks.count).to(s.decay)
        jump = one_hot * self._mass(places, s)[..., None]
        driven = torch.where(batch.valid[..., None], jump, 0.0)[:, :, None, None]
        times = torch.cat([batch.start[:, None], batch.times], 1)
        rate = torch.complex(-s.decay, torch.zeros_like(s.decay)).reshape(1, 1)
        states = scan(rate, times.diff(dim=1), driven.to(rate.dtype))
        after = states.real[:, :, 0, 0]
        before = after.new_zeros(len(after), 1, after.shape[2])
        return SpatialHawkesHistory(
            times=times,
            start=batch.start,
            lengths=batch.lengths,
            excitation=torch.cat([before, after], 1),
            when=batch.times,
            marks=batch.marks,
            places=places,
            context=self.known_context(batch),
        )

    def _mass(self, places: Float[Tensor, "*S k"], s: Strengths) -> Float[Tensor, "*S"]:
        """The share of an event's offspring that fall inside the box."""
        low, high = self._box_ends(places)
        upper = torch.special.ndtr((high - places) / s.spread)
        lower = torch.special.ndtr((low - places) / s.spread)
        return (upper - lower).prod(-1)

    def _box_ends(self, like: Tensor) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """The lower and the upper end of every axis of the box."""
        return like.new_tensor(self.box.low), like.new_tensor(self.box.high)

    def _log_base(
        self,
        times: Float[Tensor, "B ..."],
        context: BatchContext | None,
        s: Strengths,
    ) -> Float[Tensor, "B ... M"]:
        """log of the background's rate of every type in the whole box."""
        flat = s.baseline.log().expand(*times.shape, -1)
        if self.effects is None:
            return flat
        return flat + self.effects.values(times, context, weight=s.weight)

    def _log_background(
        self,
        times: Tensor,
        places: Tensor,
        context: BatchContext | None,
        s: Strengths,
    ) -> Float[Tensor, "B G Q M"]:
        """log of the background at places, per unit of time and volume."""
        return self._log_base(times, context, s) + self.grid.log_densities(s.log_share, places)

    def _ground(
        self,
        h: SpatialHawkesHistory,
        times: Tensor,
        seen: Tensor | None,
        s: Strengths,
    ) -> Float[Tensor, "B G Q M"]:
        return self._log_base(times, h.context, s).exp() + self._faded(h, times, seen, s)

    def _faded(
        self,
        h: SpatialHawkesHistory,
        times: Tensor,
        seen: Tensor | None,
        s: Strengths,
    ) -> Float[Tensor, "B G Q M"]:
        """What past events add to the rate in the whole box."""
        anchor, excitation = h.at_seen(seen, h.excitation)
        jump = s.decay * excitation @ s.branching.T
        elapsed = times - anchor[..., None]
        decayed = torch.exp(-s.decay * elapsed)
        return decayed[..., None] * jump[:, :, None]

    def _integral(
        self,
        h: SpatialHawkesHistory,
        a: Tensor,
        b: Tensor,
        seen: Tensor | None,
        s: Strengths,
    ) -> Float[Tensor, "B G M"]:
        return (b - a)[..., None] * s.baseline + self._triggered(h, a, b, seen, s)

    def _triggered(
        self,
        h: SpatialHawkesHistory,
        a: Tensor,
        b: Tensor,
        seen: Tensor | None,
        s: Strengths,
    ) -> Float[Tensor, "B G M"]:
        """The integral of what past events add."""
        anchor, excitation = h.at_seen(seen, h.excitation)
        decayed = torch.exp(-s.decay * (a - anchor))
        in_window = -torch.expm1(-s.decay * (b - a))
        mass = decayed * in_window
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
        events = torch.arange(h.when.shape[1])
        seen = (events < index[..., None])[:, :, None]
        age = torch.where(seen, times[..., None] - h.when[:, None, None], 0.0)
        offset = places[..., None, :] - h.places[:, None, None]
        distance = offset / s.spread
        squared = distance.square().sum(-1)
        volume = (s.spread * math.sqrt(2 * math.pi)).prod()
        peak = s.decay / volume
        kernel = peak * torch.exp(-s.decay * age - squared / 2)
        kernel = torch.where(seen, kernel, 0.0)
        triggered = torch.einsum("bgqn,bnm->bgqm", kernel, s.branching.T[h.marks])
        return torch.log(background.exp() + triggered)


class _AtEvents(NamedTuple):
    """What standard errors need to know of every scored event: log lambda, the share of the
    background in lambda, the level (1) and the basis functions, and the type.
    """

    log_rate: Float[ndarray, " N"]
    background_share: Float[ndarray, " N"]
    design: Float[ndarray, "N P"]
    mark: Int[ndarray, " N"]


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
        levels = level.detach().numpy().copy()
        weights = weight.detach().numpy().copy()
        levels, weights = centred(self.spec, self.design, levels, weights)
        level.copy_(torch.from_numpy(levels))
        weight.copy_(torch.from_numpy(weights))


def _widths(box: Box) -> Float[Tensor, " k"]:
    """The length of every axis of the box."""
    high = torch.tensor(box.high).double()
    low = torch.tensor(box.low).double()
    return high - low


def _nearest(data: Dataset, box: Box) -> float:
    """The median distance, as a share of the box, from an event to the nearest of those just before
    it; 0 where there are too few.
    """
    low = np.array(box.low)
    width = np.subtract(box.high, box.low)
    nearest = []
    for sequence in data[:LOOKED]:
        if sequence.places is None or len(sequence) < 2:
            continue
        shares = (sequence.places[:LOOKED] - low) / width
        apart = np.abs(shares[:, None] - shares[None]).max(-1)
        is_earlier = np.tri(len(shares), k=-1, dtype=bool)
        earlier = np.where(is_earlier, apart, np.inf)[1:]
        nearest.append(earlier.min(1))
    if not nearest:
        return 0.0
    return float(np.median(np.concatenate(nearest)))


def _with_one_slot_more(h: SpatialHawkesHistory) -> SpatialHawkesHistory:
    """The same history with room for one event more."""
    return replace(
        h,
        times=torch.cat([h.times, h.times[:, -1:]], 1),
        excitation=torch.cat([h.excitation, h.excitation[:, -1:]], 1),
        when=_wider(h.when),
        marks=_wider(h.marks),
        places=_wider(h.places),
    )


def _normal_in(
    middle: Float[Tensor, " E"],
    spread: Float[Tensor, ""],
    edges: Float[Tensor, " n"],
) -> Float[Tensor, "E m"]:
    """The probability of every interval between neighbouring ``edges`` under normal laws around
    ``middle``.
    """
    return torch.special.ndtr((edges - middle[:, None]) / spread).diff(dim=1)


def _uniform(count: int, random: torch.Generator) -> Float[Tensor, " E"]:
    return torch.rand(count, dtype=torch.float64, generator=random)


def _wider(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_zeros(x.shape[0], 1, *x.shape[2:])], 1)
