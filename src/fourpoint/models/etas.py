r"""ETAS, the epidemic-type aftershock sequence: every earthquake triggers others, the more the
larger it is.

    lambda(t, x) = mu(x) + sum_{t_i < t} K exp(alpha (m_i - m_c)) g(t - t_i) f(x - x_i; m_i)
    g(s) = (p - 1) c^(p-1) (s + c)^-p                                      Omori-Utsu decay
    f(r; m) = (q - 1) / (pi D) (1 + r^2 / D)^-q,   D = d^2 exp(gamma (m - m_c))

g and f are densities, so that K is the mean number of direct offspring of an event of magnitude
m_c, anywhere and at any later time. With a taper g has the factor exp(-s / tau) and is normalised
again. The rate is that inside a region: a box or a polygon in km. What an event would trigger
outside is not observed; its rate inside is f whatever lies beyond. Integrals over the region are
sums over its edges (`ops.regions`). The background is uniform, or a mixture of a uniform density
and normal densities around training events, each with the distance to a near neighbour as its
bandwidth and the probability that the event is background as its weight.

Without places the process is the temporal ETAS model, mu + sum_i K exp(alpha (m_i - m_c)) g(t -
t_i), with a state of constant size: g is a mixture of exponentials (`ops.omori`).

Magnitudes are an event feature called magnitude, mag or m, or the first one; m_c is the smallest in
the training data. Further features scale what an event triggers as well.

Sources: Ogata, "Space-time point-process models for earthquake occurrences" (1998); Zhuang, Ogata
and Vere-Jones, "Stochastic declustering of space-time earthquake occurrences" (2002).

Axes: B sequences, P positions, N events, J exponentials, F features, S sources of the background.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.models.base import History, PointProcess, place_or_nothing, places_of, which_happened
from fourpoint.models.event_features import EventFeatures, EventFeaturesSpec
from fourpoint.models.spatial.cells import Cells
from fourpoint.models.spatial.hawkes import Clusters
from fourpoint.ops import omori, regions
from fourpoint.ops.recurrence import recur
from fourpoint.ops.smoothing import smoothed
from fourpoint.ops.triggering import Queries, Sources, grouped_sums, trigger_sums

MAGNITUDES = ("magnitude", "mag", "m")  # names of the feature that is the magnitude
QUANTILES = 1000  # magnitudes of a Gutenberg-Richter law that simulations draw from
EXPLODED = 10**5  # events of a simulated path that count as explosive
FULL_SUMS = 2**28  # pairs of events up to which rates at events are sums over all of them
Shape = Literal["uniform", "kernel"]


class Strengths(NamedTuple):
    """The parameters as they enter the rate: events, the unit of time, and km."""

    background: Float[Tensor, " A"]  # events per unit of time: uniform, and by kernels
    productivity: Float[Tensor, ""]  # offspring of an event with the mean features of training
    c: Float[Tensor, ""]
    p: Float[Tensor, ""]
    taper: Float[Tensor, ""] | None
    log_width: Float[Tensor, ""]  # log d^2
    gamma: Float[Tensor, ""]
    q: Float[Tensor, ""]
    weight: Float[Tensor, " F"]  # of the standardised features

    def theta(self) -> Float[Tensor, " T"]:
        """As `ops.triggering` takes them."""
        omega = torch.zeros_like(self.c)
        if self.taper is not None:
            omega = 1 / self.taper
        scalars = torch.stack([self.c, self.p, omega, self.log_width, self.gamma, self.q])
        return torch.cat([scalars, self.weight])

    def mixture(self) -> tuple[Float[Tensor, " J"], Float[Tensor, " J"]]:
        """Weights and decays of the exponentials that g is a mixture of."""
        return omori.mixture(self.p, self.c, self.taper)

    def share_until(self, lag: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
        """The share of offspring up to ``lag`` after an event: the integral of g."""
        return omori.cumulative(lag, self.p, self.c, self.taper)

    def width(self, delta: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """D, in km^2, of events this much above m_c."""
        log_width = self.log_width + self.gamma * delta
        return torch.exp(log_width)

    def log_factor(self, spatial: bool) -> Float[Tensor, ""]:
        """What the sums of `ops.triggering` are multiplied by, as a logarithm."""
        in_time = omori.log_normaliser(self.p, self.c, self.taper)
        logs = self.productivity.log() + in_time
        if not spatial:
            return logs
        peak = (self.q - 1) / math.pi
        return logs + peak.log()


@dataclass(frozen=True)
class ETASHistory(History):
    """Positions with states of exponentials, and the events, where the model has places."""

    states: Float[Tensor, "B P J"]
    when: Float[Tensor, "B N"]
    features: Float[Tensor, "B N F"]  # standardised
    delta: Float[Tensor, "B N"]  # magnitude above m_c
    places: Float[Tensor, "B N 2"] | None

    def sources(self, b: int) -> Sources:
        """The events of row ``b``, of a model with places, as `ops.triggering` takes them."""
        n = int(self.lengths[b])
        assert self.places is not None
        return Sources(
            self.when[b, :n],
            self.places[b, :n],
            self.delta[b, :n],
            self.features[b, :n],
        )

    def known(self) -> Bool[Tensor, "B N"]:
        """Which of the events are real; later ones are padding."""
        number = torch.arange(self.when.shape[1])
        return number < self.lengths[:, None]

    def latest(self) -> ETASHistory:
        """The last position; all events where there are places."""
        if self.places is not None:
            return self
        row = torch.arange(len(self.start))
        times = self.times[row, self.lengths]
        states = self.states[row, self.lengths]
        none = self.when[:, :0]
        return replace(
            self,
            times=times[:, None],
            lengths=torch.zeros_like(self.lengths),
            states=states[:, None],
            when=none,
            features=self.features[:, :0],
            delta=none,
        )

    def at_positions(
        self, rows: Int[Tensor, " R"], positions: Int[Tensor, " R"]
    ) -> ETASHistory | None:
        """R positions as rows of one position each, without places."""
        if self.places is not None:
            return None
        none = self.when[rows, :0]
        times = self.times[rows, positions]
        states = self.states[rows, positions]
        return ETASHistory(
            times[:, None],
            self.start[rows],
            torch.zeros_like(positions),
            states[:, None],
            none,
            self.features[rows, :0],
            none,
            None,
        )


class ETAS(PointProcess[ETASHistory]):
    """Epidemic-type aftershock sequence, in time, or in time and space where the marks have a box.

    Args:
        marks: a mark space of one type; its box, in km, is the observed region.
        baseline: mu, events per unit of time in the whole region.
        productivity: K, mean number of direct offspring of an event of magnitude m_c.
        alpha: of magnitudes in the productivity.
        c: in the unit of time, and p: of the Omori-Utsu decay; p > 1 unless there is a taper.
        taper: tau in the unit of time, to begin with; None for no taper.
        distance: d in km; q > 1 and gamma: of the spatial kernel.
        mc: m_c; None for the smallest magnitude of the training data.
        b: the b-value of the Gutenberg-Richter law above m_c that simulated magnitudes follow;
            None: they are drawn from those of training events, and there are none before a fit.
        background: its density in space, "uniform" or "kernel" (fitted by
            :meth:`maximum_likelihood`).
        region: corners (x, y) of a polygon inside the box, in km; None for the box.
        sources: events that the background is made of; set by the fit.

    They are starting values; :meth:`maximum_likelihood` estimates all but m_c, b and the region.

    >>> from fourpoint.events import Sequence
    >>> model = ETAS(baseline=1.0, productivity=0.5, c=0.1, p=1.5, taper=None)
    >>> history = model.encode(Sequence([1.0], start=0.0, stop=3.0).batch())
    >>> round(model.intensity(history, torch.tensor([[1.1]]).double()).item(), 3)
    1.884
    """

    has_closed_integral = True
    has_upper_bound = True
    fits_in_closed_form = True
    takes_event_features = True

    sources: Float[Tensor, "S 4"]
    corners: Float[Tensor, "V 2"]
    mc: Float[Tensor, ""]

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        baseline: float = 1.0,
        productivity: float = 0.2,
        alpha: float = 1.5,
        c: float = 0.01,
        p: float = 1.2,
        taper: float | None = 1000.0,
        distance: float = 1.0,
        q: float = 1.7,
        gamma: float = 1.0,
        mc: float | None = None,
        b: float | None = None,
        background: Shape = "kernel",
        region: Ordered[Ordered[float]] | None = None,
        sources: int = 0,
    ) -> None:
        super().__init__()
        self.marks = MarkSpace.of(marks)
        if self.marks.count > 1:
            raise UserError(
                "events of one type for etas",
                f"{self.marks}",
                "Read the events without types (--mark none).",
            )
        self.box = self.marks.box
        if self.box is not None and self.box.dimension != 2:
            raise UserError("places with two axes, in km", f"{self.box}", "Pass place=('x', 'y').")
        _check_settings(baseline, productivity, c, distance, p, q, taper)
        outline = None
        if region is not None:
            outline = [[float(x) for x in corner] for corner in region]
        self._settings = dict(
            baseline=baseline,
            productivity=productivity,
            alpha=alpha,
            c=c,
            p=p,
            taper=taper,
            distance=distance,
            q=q,
            gamma=gamma,
            mc=mc,
            b=b,
            background=background,
            region=outline,
            sources=sources,
        )
        self.background = background
        self.alpha = alpha  # to begin with
        self.draws_places = self.box is not None
        self.draws_paths = "clusters" if self.draws_places else ""
        self.errors: dict[str, float] = {}  # standard errors of the last fit, by `estimates`
        level = [baseline]
        if sources:
            level = [baseline / 2, baseline / 2]
        self.log_background = _parameter([math.log(x) for x in level])
        self.log_productivity = _parameter(math.log(productivity))
        self.log_c = _parameter(math.log(c))
        least_p = 1.0 if taper is None else 0.0
        self.log_p = _parameter(math.log(p - least_p))
        self.log_taper: nn.Parameter | None = None
        if taper is not None:
            self.log_taper = _parameter(math.log(taper))
        self.log_distance: nn.Parameter | None = None
        self.log_q: nn.Parameter | None = None
        self.gamma: nn.Parameter | None = None
        if self.box is not None:
            self.log_distance = _parameter(math.log(distance))
            self.log_q = _parameter(math.log(q - 1))
            self.gamma = _parameter(gamma)
            self.gamma.requires_grad_(b is not None)  # without magnitudes it has no effect
        kind = torch.float64
        self.register_buffer("sources", torch.zeros(sources, 4, dtype=kind))
        self.register_buffer("mc", torch.tensor(mc or 0.0, dtype=kind))
        self.register_buffer("corners", self._corners(region), persistent=False)
        if b is not None:
            self._add_magnitudes(b, alpha)

    def _corners(self, region: Ordered[Ordered[float]] | None) -> Float[Tensor, "V 2"]:
        if self.box is None:
            return torch.zeros(0, 2, dtype=torch.float64)
        if region is None:
            low = np.array(self.box.low)
            high = np.array(self.box.high)
            return regions.rectangle(low, high)
        outline = np.array(region, dtype=np.float64)
        return regions.polygon(outline)

    def _add_magnitudes(self, b: float, alpha: float) -> None:
        """Magnitudes of the Gutenberg-Richter law, by its quantiles."""
        smallest = float(self.mc)
        number = np.arange(QUANTILES) + 0.5
        level = number / QUANTILES
        decay = b * math.log(10)
        log_tail = np.log1p(-level[:, None])
        above = -log_tail / decay
        table = smallest + above
        mean = float(table.mean())
        scale = float(table.std())
        spec = EventFeaturesSpec(
            names=(MAGNITUDES[0],), mean=(mean,), scale=(scale,), rows=(QUANTILES,)
        )
        self.event_features = EventFeatures(spec, table)
        mean_effect = alpha * (mean - smallest)
        with torch.no_grad():
            self.event_features.weight.fill_(alpha * scale)
            self.log_productivity.add_(mean_effect)

    @property
    def linear(self) -> bool:
        """Without places the state has a constant size."""
        return self.box is None

    @property
    def area(self) -> float:
        """Of the region, in km^2."""
        return regions.area(self.corners)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return {**self._settings, "sources": len(self.sources)}

    @torch.no_grad()
    def estimates(self) -> dict[str, float]:
        """The parameters in the units of the formula, as they are now: mu in events per unit of
        time, K at the magnitude m_c.
        """
        s = self.strengths()
        found = {"mu": float(s.background.sum())}
        found["K"] = float(s.productivity)
        features = self.event_features
        if features is not None:
            at = self.magnitude_column
            spec = features.spec
            alpha = float(s.weight[at]) / spec.scale[at]
            below_mean = float(self.mc) - spec.mean[at]
            found["K"] *= math.exp(alpha * below_mean)
            found["alpha"] = alpha
        found["c"] = float(s.c)
        found["p"] = float(s.p)
        if s.taper is not None:
            found["tau"] = float(s.taper)
        if self.box is not None:
            found["d"] = math.exp(float(s.log_width) / 2)
            found["q"] = float(s.q)
            if features is not None:
                found["gamma"] = float(s.gamma)
        return found

    def shown(self) -> dict[str, Any]:
        """The parameters as they are now."""
        found: dict[str, Any] = dict(self.estimates())
        if self.box is not None:
            found["background"] = self.background
            found["sources"] = len(self.sources)
        return found

    @torch.no_grad()
    def branching_ratio(self) -> float:
        """The mean number of direct offspring of an event with features like those of training
        events; of 1 or more, the process is explosive.
        """
        s = self.strengths()
        if self.event_features is None:
            return float(s.productivity)
        mean_factor = self.event_features.mean_factor().mean()
        return float(s.productivity * mean_factor)

    def strengths(self) -> Strengths:
        """The parameters as they enter the rate."""
        zero = torch.zeros_like(self.log_c)
        p = self.log_p.exp()
        taper = None
        if self.log_taper is None:
            p = 1 + p
        else:
            taper = self.log_taper.exp()
        log_width = gamma = q = zero
        if self.log_distance is not None and self.log_q is not None and self.gamma is not None:
            log_width = 2 * self.log_distance
            q = 1 + self.log_q.exp()
            gamma = self.gamma
        weight = zero.new_zeros(0)
        if self.event_features is not None:
            weight = self.event_features.weight.to(zero)
        return Strengths(
            background=self.log_background.exp(),
            productivity=self.log_productivity.exp(),
            c=self.log_c.exp(),
            p=p,
            taper=taper,
            log_width=log_width,
            gamma=gamma,
            q=q,
            weight=weight,
        )

    # ------------------------------------------------------------------ fitting

    def add_event_features(self, data: Dataset) -> None:
        """Features of ``data``; the magnitude begins with ``alpha``, and m_c is the smallest one
        unless it was given.
        """
        super().add_event_features(data)
        assert self.event_features is not None and data.features is not None
        at = self.magnitude_column
        with torch.no_grad():
            start = self.alpha * self.event_features.spec.scale[at]
            self.event_features.weight[at] = start
            if self._settings["mc"] is None:
                smallest = data.features[:, at].min()
                self.mc.fill_(float(smallest))

    def initialise(self, data: Dataset) -> list[str]:
        """Half of the mean rate as background, a branching ratio of .5, c of a tenth of the mean
        gap, a taper of the longest window, and a distance, at the mean magnitude, of the median of
        those to the nearest of the 30 events before, at most a twentieth of the region's width.
        """
        events = max(1, data.scored_events)
        time = float(data.exposed_times.sum())
        gap = time / events
        gaps = data.gaps
        if len(gaps) and gaps.mean() > 0:
            gap = float(gaps.mean())
        with torch.no_grad():
            mean_rate = events / max(time, 1e-300)
            parts = len(self.log_background)
            self.log_background.fill_(math.log(mean_rate / 2))
            self.log_background.sub_(math.log(parts))
            factor = 1.0
            if self.event_features is not None:
                factor = float(self.event_features.mean_factor().mean())
            self.log_productivity.fill_(math.log(0.5 / factor))
            self.log_c.fill_(math.log(gap / 10))
            if self.log_taper is not None:
                longest = float(data.durations.max())
                self.log_taper.fill_(math.log(longest))
            if self.log_distance is not None:
                self.log_distance.fill_(self._first_log_distance(data))
        return []

    def _first_log_distance(self, data: Dataset) -> float:
        """log d that a fit begins with."""
        from fourpoint.models.etas_fit import first_distance

        width = math.sqrt(self.area)
        near = 0.0
        if data.places is not None:
            places = np.array(data.places)
            near = first_distance(places)
        near = max(near, 1e-4 * width)
        near = min(near, width / 20)
        found = math.log(near)
        if self.event_features is None or self.gamma is None:
            return found
        mean = self.event_features.spec.mean[self.magnitude_column]
        above = mean - float(self.mc)
        gamma = float(self.gamma.detach())
        return found - gamma * above / 2

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit all parameters, and the background where it is "kernel" (`models.etas_fit`)."""
        from fourpoint.models.etas_fit import maximise

        if self.gamma is not None:
            self.gamma.requires_grad_(self.event_features is not None)
        return maximise(self, data)

    def training_log_likelihood(
        self, batch: Batch, nodes: int, random: torch.Generator, convention: str
    ) -> None:
        """None: the general one, which is exact for closed forms, has the gradient."""
        return

    def set_background(self, sources: Float[Tensor, "S 4"]) -> None:
        """Make the background of these sources: x, y, variance and weight, which sum to 1. Their
        share of the background is half at first.
        """
        self.sources = sources.detach().clone()
        with torch.no_grad():
            total = self.log_background.exp().sum()
            half = total.log() - math.log(2)
            halves = torch.stack([half, half])
            self.log_background = nn.Parameter(halves)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: ETASHistory | None = None) -> ETASHistory:
        """States of the exponentials at every position, and the events."""
        s = self.strengths()
        if before is not None and self.box is not None:
            raise UserError(
                "a linear form to go on from a history",
                "an ETAS process with places",
                "Encode the whole sequence.",
            )
        features = self.standardised(batch)
        delta = self.magnitudes_above(batch)
        driven = self._factors(features, s)
        places = None
        if self.box is not None:
            places = places_of(batch)
            driven = driven * self._inside(places, delta, s)
        driven = torch.where(batch.valid, driven, 0.0)
        _, decays = s.mixture()
        exponentials = len(decays)
        begins = batch.start
        first = begins[:, None]
        start = decays.new_zeros(len(first), 1, exponentials)
        if before is not None:
            begins = before.start
            first = before.times[:, -1:]
            start = before.states[:, -1:]
        times = torch.cat([first, batch.times], 1)
        gaps = times.diff(dim=1)
        fade = torch.exp(-decays * gaps[..., None])
        driven = driven[..., None].expand(*driven.shape, exponentials)
        if before is not None:
            carried = fade[:, :1] * start
            head = driven[:, :1] + carried
            driven = torch.cat([head, driven[:, 1:]], 1)
        states = driven
        if driven.shape[1]:
            states = recur(fade, driven)
        return ETASHistory(
            times,
            begins,
            batch.lengths,
            torch.cat([start, states], 1),
            batch.times,
            features,
            delta,
            places,
        )

    def extend(
        self,
        history: ETASHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> ETASHistory:
        """One event more."""
        happened = which_happened(mark, active)
        s = self.strengths()
        h = history
        count = len(time)
        row = torch.arange(count)
        own, delta, driven = self._one(count, mark, features, s)
        where = None
        if self.box is not None:
            where = place_or_nothing(place, happened, 2)
            driven = driven * self._inside(where, delta, s)
        latest = h.times[row, h.lengths]
        state = h.states[row, h.lengths]
        at = torch.where(happened, time, latest)
        _, decays = s.mixture()
        passed = (at - latest)[:, None]
        fade = torch.exp(-decays * passed)
        new = fade * state + driven[:, None]
        keep = happened[:, None]
        now = at[:, None]
        if self.box is None:
            kept = torch.where(keep, new, state)
            return replace(
                h,
                times=torch.where(keep, now, latest[:, None]),
                lengths=torch.zeros_like(h.lengths),
                states=kept[:, None],
                when=h.when[:, :0],
                features=h.features[:, :0],
                delta=h.delta[:, :0],
            )
        longer = h.lengths + happened
        if int(longer.max()) > h.when.shape[1]:
            h = _wider(h)
        length = h.lengths[:, None]
        number = torch.arange(h.when.shape[1])
        slot = (number == length) & keep
        position = torch.arange(h.times.shape[1])
        after = (position > length) & keep
        wide_slot = slot[..., None]
        wide_after = after[..., None]
        assert h.places is not None and where is not None  # the model has a box
        return replace(
            h,
            times=torch.where(after, now, h.times),
            lengths=longer,
            states=torch.where(wide_after, new[:, None], h.states),
            when=torch.where(slot, now, h.when),
            features=torch.where(wide_slot, own[:, None], h.features),
            delta=torch.where(slot, delta[:, None], h.delta),
            places=torch.where(wide_slot, where[:, None], h.places),
        )

    def log_intensity(
        self,
        history: ETASHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log of the rate in the whole region."""
        s = self.strengths()
        anchor, states = _at(history, seen)
        weights, decays = s.mixture()
        lag = times - anchor[..., None]
        age = decays * lag[..., None]
        fade = torch.exp(-age)
        faded = fade * states[:, :, None]
        triggered = faded @ weights
        rate = s.background.sum() + s.productivity * triggered
        return rate.log()[..., None]

    def log_intensity_at(
        self,
        history: ETASHistory,
        times: Float[Tensor, "B G Q"],
        places: Float[Tensor, "B G Q k"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda(t, x), per unit of time and km^2."""
        s = self.strengths()
        B, G, Q = times.shape
        index = seen
        if index is None:
            index = torch.arange(G).expand(B, G)
        index = torch.minimum(index, history.lengths[:, None])
        flat_places = places.reshape(-1, 2)
        background = self._background_density(flat_places, s).reshape(B, G * Q)
        factor = s.log_factor(spatial=True).exp()
        theta = s.theta()
        rows = []
        for b in range(B):
            position = index[b][:, None].expand(G, Q)
            asked = Queries(
                times[b].reshape(-1),
                places[b].reshape(-1, 2),
                position.reshape(-1),
            )
            sums = trigger_sums(history.sources(b), asked, theta)
            rows.append(background[b] + factor * sums)
        rates = torch.stack(rows)
        return rates.log().reshape(B, G, Q, 1)

    def log_rates_at_events(self, history: ETASHistory, batch: Batch) -> Float[Tensor, "B N"]:
        """log lambda at every event. Above :data:`FULL_SUMS` pairs, and without gradients, distant
        events are summed in groups (`ops.triggering.grouped_sums`).
        """
        most = 0
        if len(history.lengths):
            most = int(history.lengths.max())
        if self.box is None or torch.is_grad_enabled() or most**2 <= FULL_SUMS:
            return super().log_rates_at_events(history, batch)
        s = self.strengths()
        theta = s.theta()
        factor = s.log_factor(spatial=True).exp()
        found = torch.zeros_like(batch.times)
        places = places_of(batch)
        for b in range(len(found)):
            n = int(history.lengths[b])
            when = batch.times[b, :n]
            where = places[b, :n]
            asked = Queries(when, where, torch.arange(n))
            background = self._background_density(where, s)
            floor = background / factor
            sums = grouped_sums(history.sources(b), asked, theta, floor)
            rates = background + factor * sums
            found[b, :n] = rates.log()
        return found

    def closed_integral(
        self,
        history: ETASHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b over the whole region; the triggered part from the mixture of exponentials."""
        s = self.strengths()
        anchor, states = _at(history, seen)
        weights, decays = s.mixture()
        duration = b - a
        lag = a - anchor
        age = decays * lag[..., None]
        width = decays * duration[..., None]
        began = torch.exp(-age)
        passed = -torch.expm1(-width)
        integrals = began * passed * states
        masses = weights / decays
        triggered = integrals @ masses
        background = s.background.sum() * duration
        total = background + s.productivity * triggered
        return total[..., None]

    @torch.no_grad()
    def shortest_time(self, history: ETASHistory) -> Float[Tensor, " B"]:
        """c."""
        c = float(self.log_c.exp())
        return torch.full_like(history.start, c)

    def upper_bound(
        self, history: ETASHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """The rate at a: it decays while nothing happens."""
        times = a[:, None, None]
        seen = history.lengths[:, None]
        rates = self.log_intensity(history, times, seen).exp()
        return rates.sum((1, 2, 3)) * (1 + 1e-12)

    # ------------------------------------------------------------------ sampling

    @torch.no_grad()
    def draw_places(
        self,
        history: ETASHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        random: torch.Generator,
    ) -> Float[Tensor, "B k"]:
        """Where events of known time are: from the background, or around one of the events before,
        inside the region.
        """
        s = self.strengths()
        h = history
        assert h.places is not None  # the model has a box
        B = len(time)
        known = h.known()
        since = time[:, None] - h.when
        lag = torch.where(known, since, 0.0)
        decay = omori.density(lag, s.p, s.c, s.taper)
        factors = self._factors(h.features, s)
        pull = factors * decay
        inside = self._inside(h.places, h.delta, s)
        pull = s.productivity * pull * inside
        triggered = torch.where(known, pull, 0.0)
        background = s.background.sum().expand(B, 1)
        rates = torch.cat([background, triggered], 1)
        shares = rates.cumsum(1)
        total = shares[:, -1:]
        coin = _uniform(B, random)[:, None] * total
        chosen = torch.searchsorted(shares, coin, right=True)[:, 0]
        last = shares.shape[1] - 1
        parent = chosen.clamp(max=last) - 1
        found = self.draw_background(B, random)
        waiting = torch.nonzero(parent >= 0)[:, 0]
        while len(waiting):
            own = parent[waiting]
            centre = h.places[waiting, own]
            delta = h.delta[waiting, own]
            drawn = centre + self._scatter(delta, s, random)
            good = regions.inside(drawn, self.corners)
            placed = waiting[good]
            found[placed] = drawn[good]
            waiting = waiting[~good]
        return found

    @torch.no_grad()
    def draw_background(self, count: int, random: torch.Generator) -> Float[Tensor, "E 2"]:
        """Places of background events."""
        low = self.corners.min(0).values
        high = self.corners.max(0).values
        level = self.strengths().background
        found = low.new_zeros(count, 2)
        by_kernel = torch.zeros(count, 1, dtype=torch.bool)
        source = torch.zeros(count, dtype=torch.int64)
        if len(self.sources):
            share = level[1] / level.sum()
            coin = _uniform(count, random)[:, None]
            by_kernel = coin < share
            total = self.sources[:, 3].cumsum(0)
            height = _uniform(count, random) * total[-1]
            last = len(total) - 1
            chosen = torch.searchsorted(total, height)
            source = chosen.clamp(max=last)
        waiting = torch.arange(count)
        for _ in range(10_000):
            if not len(waiting):
                return found
            size = len(waiting)
            unit = _uniform(2 * size, random).reshape(size, 2)
            drawn = low + (high - low) * unit
            if len(self.sources):
                index = source[waiting]
                own = self.sources[index]
                centre = own[:, :2]
                deviation = own[:, 2:3].sqrt()
                away = torch.randn(size, 2, dtype=torch.float64, generator=random)
                near = centre + deviation * away
                drawn = torch.where(by_kernel[waiting], near, drawn)
            good = regions.inside(drawn, self.corners)
            placed = waiting[good]
            found[placed] = drawn[good]
            waiting = waiting[~good]
        return found

    @torch.no_grad()
    def draw_paths(
        self,
        history: ETASHistory,
        start: Float[Tensor, " B"],
        stop: Float[Tensor, " B"],
        random: torch.Generator,
        limit: int,
    ) -> Clusters | None:
        """All events on [start, stop) of one path per row, generation by generation, exactly; None
        where a path has more than ``limit``.
        """
        s = self.strengths()
        assert history.places is not None  # the model has a box
        B = len(start)
        rows = torch.arange(B)
        known = history.known()
        owner = rows[:, None].expand_as(known)
        parents = _Parents(
            owner[known],
            history.when[known],
            history.places[known],
            history.delta[known],
            self._factors(history.features[known], s),
        )
        duration = stop - start
        due = s.background.sum() * duration
        own = torch.poisson(due, generator=random).long()
        first = rows.repeat_interleave(own)
        since = duration[first] * _uniform(len(first), random)
        times = start[first] + since
        places = self.draw_background(len(first), random)
        fresh = self._with_features(first, times, places, s, random)
        triggered = self._offspring(parents, start, stop, s, random)
        newest = _Parents.joined(fresh, triggered)
        found = [newest]
        count = torch.bincount(newest.row, minlength=B)
        while len(newest.row) and int(count.max()) <= limit:
            newest = self._offspring(newest, start, stop, s, random)
            count = count + torch.bincount(newest.row, minlength=B)
            found.append(newest)
        if int(count.max()) > limit:
            return None
        return _Parents.joined(*found).clusters()

    @torch.no_grad()
    def draw_catalogues(
        self,
        batch: Batch,
        start: float,
        stop: float,
        count: int,
        random: torch.Generator,
        history: ETASHistory | None = None,
    ) -> Clusters:
        """``count`` independent paths on [start, stop) given the events of one sequence before:
        as :meth:`draw_paths`, with the first generation of all paths drawn together. ``history``
        is that of a sequence which begins with these events, for models that need one.

        Raises :class:`UserError` where a path has more than :data:`EXPLODED` events.
        """
        s = self.strengths()
        if self.box is None:
            raise UserError("a model with places", "etas in time alone", "Fit it with places.")
        places = places_of(batch)[0]
        when = batch.times[0]
        delta = self.magnitudes_above(batch)[0]
        features = self.standardised(batch)
        factor = self._factors(features, s)[0]
        until_start = (start - when).clamp(min=0)
        until_stop = (stop - when).clamp(min=0)
        low = s.share_until(until_start)
        high = s.share_until(until_stop)
        in_window = high - low
        offspring = s.productivity * factor * in_window
        mean = torch.where(batch.valid[0], offspring, 0.0)
        each = mean.cumsum(0)
        total = torch.zeros(1, dtype=torch.float64)
        if len(each):
            total = each[-1:]
        size = int(torch.poisson(count * total, generator=random))
        level = _uniform(size, random) * total
        last = len(each) - 1
        parent = torch.searchsorted(each, level).clamp(max=last)
        level = _uniform(size, random)
        share = low[parent] + in_window[parent] * level
        lag = omori.inverse(share, s.p, s.c, s.taper)
        times = (when[parent] + lag).clamp(start, stop)
        away = self._scatter(delta[parent], s, random)
        where = places[parent] + away
        row = torch.randint(count, (size,), generator=random)
        inside = regions.inside(where, self.corners)
        triggered = self._with_features(row[inside], times[inside], where[inside], s, random)
        duration = stop - start
        due = count * duration * s.background.sum()
        own = int(torch.poisson(due, generator=random))
        since = duration * _uniform(own, random)
        born = start + since
        rows = torch.randint(count, (own,), generator=random)
        born_at = self.draw_background(own, random)
        fresh = self._with_features(rows, born, born_at, s, random)
        newest = _Parents.joined(fresh, triggered)
        begins = torch.full((count,), start, dtype=torch.float64)
        ends = torch.full((count,), stop, dtype=torch.float64)
        found = [newest]
        events = len(newest.row)
        while len(newest.row):
            newest = self._offspring(newest, begins, ends, s, random)
            found.append(newest)
            events += len(newest.row)
            if events > EXPLODED * count:
                raise UserError(
                    "a process whose rate stays finite",
                    f"more than {EXPLODED:,} events per path",
                    "Shorten the window, or fit the model again.",
                )
        return _Parents.joined(*found).clusters()

    def _offspring(
        self,
        parents: _Parents,
        start: Tensor,
        stop: Tensor,
        s: Strengths,
        random: torch.Generator,
    ) -> _Parents:
        """The direct offspring of ``parents`` inside the region and the window of their row."""
        begin = torch.maximum(parents.time, start[parents.row])
        until_end = stop[parents.row] - parents.time
        low = s.share_until(begin - parents.time)
        high = s.share_until(until_end.clamp(min=0))
        in_span = high - low
        offspring = s.productivity * parents.factor
        mean = offspring * in_span.clamp(min=0)
        counts = torch.poisson(mean, generator=random).long()
        number = torch.arange(len(begin))
        index = number.repeat_interleave(counts)
        level = _uniform(len(index), random)
        share = low[index] + in_span[index] * level
        lag = omori.inverse(share, s.p, s.c, s.taper)
        times = parents.time[index] + lag
        away = self._scatter(parents.delta[index], s, random)
        places = parents.place[index] + away
        row = parents.row[index]
        begun = times >= start[row]
        in_window = begun & (times < stop[row])
        inside = regions.inside(places, self.corners)
        kept = inside & in_window
        return self._with_features(row[kept], times[kept], places[kept], s, random)

    def _with_features(
        self, row: Tensor, time: Tensor, place: Tensor, s: Strengths, random: torch.Generator
    ) -> _Parents:
        """Events with features drawn for them."""
        if self.event_features is None:
            none = time.new_zeros(len(time))
            return _Parents(row, time, place, none, none + 1)
        marks = torch.zeros_like(row)
        drawn = self.event_features.draw(marks, random)
        delta = drawn[:, self.magnitude_column] - self.mc
        standardised = self.event_features.standardised(drawn)
        factors = self._factors(standardised, s)
        return _Parents(row, time, place, delta, factors, drawn)

    def _scatter(
        self, delta: Float[Tensor, " E"], s: Strengths, random: torch.Generator
    ) -> Float[Tensor, "E 2"]:
        """How far offspring fall from parents of these magnitudes, in km."""
        count = len(delta)
        level = _uniform(count, random)
        log_tail = torch.log1p(-level)
        power = -log_tail / (s.q - 1)
        square = s.width(delta) * torch.expm1(power)
        distance = square.sqrt()
        turn = _uniform(count, random)
        angle = 2 * math.pi * turn
        direction = torch.stack([angle.cos(), angle.sin()], 1)
        return distance[:, None] * direction

    # ------------------------------------------------------------------ maps

    @torch.no_grad()
    def expected_in_cells(
        self, history: ETASHistory, paths: Dataset | None, a: float, b: float, cells: Cells
    ) -> Float[Tensor, "C M"] | None:
        """The mean rate in the cells of a map over [a, b], given the events of ``history`` (one
        row) and, on average over ``paths``, those that follow; at the time a itself where a = b.
        """
        if cells.hidden or self.box is None or self._settings["region"] is not None:
            return None
        s = self.strengths()
        past = history.sources(0)
        total = self._pulled(past, (a, b), cells, s)
        if paths is not None and paths.places is not None and len(paths):
            following = self._as_sources(paths, a, b)
            pulled = self._pulled(following, (a, b), cells, s)
            total = total + pulled / len(paths)
        middles, _ = cells.places
        places = middles[:, 0]
        background = self._background_density(places, s)
        density = background + total
        return density[:, None]

    def _as_sources(self, paths: Dataset, a: float, b: float) -> Sources:
        """The events of all paths together."""

        def row(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.array(values))[None]

        assert paths.places is not None  # the model has a box
        places = row(paths.places)
        batch = Batch(
            row(paths.times),
            row(paths.mark_ids),
            torch.ones(1, paths.events, dtype=torch.bool),
            torch.tensor([a], dtype=torch.float64),
            torch.tensor([b], dtype=torch.float64),
            places,
            None if paths.features is None else row(paths.features),
        )
        delta = self.magnitudes_above(batch)
        features = self.standardised(batch)
        return Sources(batch.times[0], places[0], delta[0], features[0])

    def _pulled(
        self,
        sources: Sources,
        span: tuple[float, float],
        cells: Cells,
        s: Strengths,
    ) -> Float[Tensor, " C"]:
        """The mean over [a, b] and each cell of what events trigger, per km^2."""
        a, b = span
        assert sources.places is not None  # the model has a box
        when = sources.times
        begin = when.clamp(min=a)
        if b > a:
            high = s.share_until(b - when)
            low = s.share_until(begin - when)
            over_time = (high - low) / (b - a)
        else:
            over_time = omori.density(begin - when, s.p, s.c, s.taper)
        factors = self._factors(sources.features, s)
        weight = s.productivity * factors * over_time
        kept = weight > 1e-9 * weight.sum()
        weight = weight[kept]
        places = sources.places[kept]
        width = s.width(sources.delta)[kept]
        found = []
        columns, rows = cells.edges
        for left, right in itertools.pairwise(columns):
            for bottom, top in itertools.pairwise(rows):
                corners = regions.rectangle((left, bottom), (right, top))
                size = (right - left) * (top - bottom)
                share = regions.mass(places, width, corners, s.q, nodes=8)
                pulled = share * weight
                found.append(pulled.sum() / size)
        return torch.stack(found)

    # ------------------------------------------------------------------ parts of the rate

    @property
    def magnitude_column(self) -> int:
        """Which of the event features is the magnitude."""
        if self.event_features is None:
            return 0
        names = self.event_features.spec.names
        for name in MAGNITUDES:
            if name in names:
                return names.index(name)
        return 0

    def standardised(self, batch: Batch) -> Float[Tensor, "B N F"]:
        """Features of events in units of their standard deviation in training."""
        known = self.event_features
        if known is None:
            return batch.times.new_zeros(*batch.times.shape, 0)
        if batch.features is None:
            if bool(batch.valid.any()):
                raise known.missing("events without them")
            return batch.times.new_zeros(*batch.times.shape, len(known.spec.names))
        known.check_width(batch.features.shape[-1])
        mean = batch.features.new_tensor(known.spec.mean)
        features = torch.where(batch.valid[..., None], batch.features, mean)
        return known.standardised(features)

    def magnitudes_above(self, batch: Batch) -> Float[Tensor, "B N"]:
        """Magnitudes above m_c; 0 where events have none."""
        if self.event_features is None or batch.features is None:
            return torch.zeros_like(batch.times)
        magnitudes = batch.features[..., self.magnitude_column]
        return torch.where(batch.valid, magnitudes - self.mc, 0.0)

    def _factors(self, features: Float[Tensor, "*S F"], s: Strengths) -> Float[Tensor, "*S"]:
        log_factors = features @ s.weight
        return log_factors.exp()

    def _one(
        self,
        count: int,
        mark: Int[Tensor, " B"],
        features: Float[Tensor, "B F"] | None,
        s: Strengths,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Standardised features, magnitude above m_c and factor of one event in each row."""
        known = self.event_features
        if known is None:
            none = s.c.new_zeros(count)
            return s.c.new_zeros(count, 0), none, none + 1
        at = self.magnitude_column
        if features is None:
            own = s.c.new_zeros(count, len(known.spec.names))
            mean = known.spec.mean[at] - self.mc
            return own, mean.expand(count), known.mean_factor()[mark]
        own = known.standardised(features)
        delta = features[:, at] - self.mc
        return own, delta, self._factors(own, s)

    def _inside(
        self, places: Float[Tensor, "*S 2"], delta: Float[Tensor, "*S"], s: Strengths
    ) -> Float[Tensor, "*S"]:
        """The share of each event's offspring that falls into the region."""
        width = s.width(delta).reshape(-1)
        flat_places = places.reshape(-1, 2)
        flat = regions.mass(flat_places, width, self.corners, s.q)
        return flat.reshape(delta.shape)

    def _background_density(
        self, places: Float[Tensor, "N 2"], s: Strengths
    ) -> Float[Tensor, " N"]:
        """mu(x), per unit of time and km^2."""
        level = s.background[0] / self.area
        uniform = level.expand(len(places))
        if not len(self.sources):
            return uniform
        kernels = self.kernel_density(places)
        return uniform + s.background[1] * kernels

    @torch.no_grad()
    def background_density(self, places: Float[Tensor, "N 2"]) -> Float[Tensor, " N"]:
        """mu(x) at ``places``, per unit of time and km^2."""
        return self._background_density(places, self.strengths())

    def kernel_density(self, places: Float[Tensor, "N 2"]) -> Float[Tensor, " N"]:
        """The density of the background's kernels, which integrates to 1 over the region."""
        centres = self.sources[:, :2]
        variances = self.sources[:, 2]
        weights = self.sources[:, 3]
        inside = regions.mass(centres, variances, self.corners)
        return smoothed(places, centres, variances, weights / inside)


class _Parents(NamedTuple):
    """Events of several paths: which path, when, where, magnitude above m_c, factor, features."""

    row: Int[Tensor, " E"]
    time: Float[Tensor, " E"]
    place: Float[Tensor, "E 2"]
    delta: Float[Tensor, " E"]
    factor: Float[Tensor, " E"]
    features: Float[Tensor, "E F"] | None = None

    @staticmethod
    def joined(*parts: _Parents) -> _Parents:
        """All of them."""
        features = [part.features for part in parts if part.features is not None]
        return _Parents(
            row=torch.cat([part.row for part in parts]),
            time=torch.cat([part.time for part in parts]),
            place=torch.cat([part.place for part in parts]),
            delta=torch.cat([part.delta for part in parts]),
            factor=torch.cat([part.factor for part in parts]),
            features=torch.cat(features) if features else None,
        )

    def clusters(self) -> Clusters:
        """As the sampler returns them, of one type."""
        marks = torch.zeros_like(self.row)
        return Clusters(self.row, self.time, marks, self.place, self.features)


def _parameter(value: float | list[float]) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value, dtype=torch.float64))


def _check_settings(
    baseline: float,
    productivity: float,
    c: float,
    distance: float,
    p: float,
    q: float,
    taper: float | None,
) -> None:
    fade = 1.0 if taper is None else taper
    positive = (baseline, productivity, c, distance, p, q, fade)
    finite_mass = p > 1 or taper is not None
    if min(positive) <= 0 or q <= 1 or not finite_mass:
        raise UserError(
            "positive numbers, q above 1, and p above 1 without a taper",
            f"{positive}",
            "Correct the settings.",
        )


def _at(
    h: ETASHistory, seen: Int[Tensor, "B G"] | None
) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G J"]]:
    if seen is not None:
        last = h.times.shape[1] - 1
        seen = seen.clamp(max=last)
    return h.at_seen(seen, h.states)


def _wider(h: ETASHistory) -> ETASHistory:
    """Room for one event more."""
    assert h.places is not None  # otherwise events are not kept

    def more(x: Tensor) -> Tensor:
        none = torch.zeros_like(x[:, :1])
        return torch.cat([x, none], 1)

    return replace(
        h,
        times=torch.cat([h.times, h.times[:, -1:]], 1),
        states=torch.cat([h.states, h.states[:, -1:]], 1),
        when=more(h.when),
        features=more(h.features),
        delta=more(h.delta),
        places=more(h.places),
    )


def _uniform(count: int, random: torch.Generator) -> Float[Tensor, " E"]:
    return torch.rand(count, dtype=torch.float64, generator=random)
