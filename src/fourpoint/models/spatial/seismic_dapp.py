r"""Seismic DAPP: ETAS with a learned spectrum of time and space scales, and attention that updates
what past events contribute.

    lambda(t, x) = mu(x, t) + sum_{t_j < t} v_j(t) k_j(t - t_j, x - x_j)                        (1)
    k_j(s, x) = kappa_j [ w_0 g(s) f(x; m_j)
                          + sum_kl W_kl b_jk e^(-s / tau_k) / tau_k N(A x; h_l^2 D_j) ]

with kappa_j = K exp(alpha delta_j), b_jk = exp(beta_k delta_j), D_j = exp(gamma delta_j) and
delta_j = m_j - m_c; g and f are those of ETAS (`models.etas`). As in DAPP the kernel is given by a
spectrum: a mixture of exponentials in time and of normal densities in space, whose Fourier
transforms are normal as well, with one non-negative weight W_kl for every pair of a time scale
tau_k and a length h_l. A power law has a power-law spectrum; the learned one need be neither a
power law nor the product of one in time and one in space. The corrections are

    spectrum        W_kl, learned by maximum likelihood, a concave problem
    beta_k          magnitude-dependent Omori decay: beta log10(tau_k), centred
    A               anisotropy: a linear map of determinant 1, from the directions of offspring
    v_j(t)          productivity of single events and swarms, by attention
    mu(x, t)        the background's kernels include events after training, each with its
                    probability of being background

ETAS is the member with w_0 = 1, W = 0 and v_j = 1. An event at (t_i, x_i) attends to those before
it with the weights v_j k_j / lambda, the posterior probabilities that j triggered it. Its sums N_j
update the contribution of event j as in a gamma-Poisson model,

    v_j(t) = (a_j p_j + N_j(t)) / (a_j + Lambda_j(t)),    a_j = a exp(growth delta_j)           (2)

with Lambda_j(t) = int k_j up to t over the region, the number of offspring expected so far. An
event with more offspring than expected has its rate raised, and one with fewer has it lowered. An
event inherits p_i = exp(inherit sum_j weight_ij log v_j): in a swarm the productivity of parents is
passed on. The rate of j is (a_j p_j + N_j) Lambda_j' / (a_j + Lambda_j), which has the closed
integral (a_j p_j + N_j) log(a_j + Lambda_j) and falls between events.

Attention weights below .001, and those that are not among the largest :data:`ATTENDED` of an event,
are dropped. Loops over pairs are those of `kernels.numba_seismic`.

Axes: B sequences, N events, K time scales, L lengths, R attention weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.kernels import numba_seismic, numba_seismic_groups
from fourpoint.models import fit_limits
from fourpoint.models.base import box_of, place_or_nothing, which_happened
from fourpoint.models.etas import ETAS, EXPLODED, ETASHistory, Shape
from fourpoint.models.spatial.hawkes import Clusters
from fourpoint.models.spatial.seismic_groups import chosen, groups_of, pays
from fourpoint.ops import omori, regions
from fourpoint.ops.quadrature import gauss_legendre

ATTENDED = 16  # attention weights of an event that are kept
ATTENTION = ("owner", "share", "given", "origin", "rates")  # what a history has beyond ETAS
Array = NDArray[np.float64]


@dataclass(frozen=True)
class SeismicHistory(ETASHistory):
    """Events with their attention: to which events before, with what weights, the prior p_i and the
    probability of being background.
    """

    owner: Int[Tensor, "B N R"]
    share: Float[Tensor, "B N R"]
    given: Float[Tensor, "B N"]
    origin: Float[Tensor, "B N"]
    rates: Float[Tensor, "B N"]  # at the events themselves, per unit of time and km^2


class Kernels(NamedTuple):
    """Events of one sequence as the loops take them; (1)."""

    times: Array
    places: Array
    moved: Array
    kappa: Array
    spread: Array
    narrow: Array
    boost: Array
    inside: Array
    ground: Array


class SeismicDAPP(ETAS):
    """ETAS with a learned spectrum, anisotropy, magnitude-dependent decay, an updated background,
    and attention that updates the productivity of past events.

    Args:
        marks: a mark space of one type with a box, in km.
        etas: w_0, the weight of the ETAS kernel.
        time_scales, length_scales: of the spectrum; set by the fit.
        strength: a of the attention's update; None for none.
        growth: of a_j with the magnitude.
        inherit: of the productivity of parents, from 0 to 1.

    The other arguments are those of :class:`ETAS`.

    :meth:`maximum_likelihood` fits ETAS first, then the corrections; where there is a dev split,
    `fit` keeps those that raise its log-likelihood, down to ETAS itself.

    >>> from fourpoint.events import Box, Sequence
    >>> space = MarkSpace(box=Box(("x", "y"), (0, 0), (10, 10)))
    >>> model = SeismicDAPP(space, baseline=1.0, productivity=0.5, strength=2.0)
    >>> events = Sequence([1.0, 1.1], start=0.0, stop=3.0, space=space, places=[[5, 5], [5, 5]])
    >>> history = model.encode(events.batch())
    >>> bool(history.share[0, 1, 0] > 0.9)  # the second event attends to the first
    True
    """

    spectrum: Float[Tensor, "K L"]
    scales: Float[Tensor, " K"]
    lengths: Float[Tensor, " L"]
    tilt: Float[Tensor, " K"]
    stretch: Float[Tensor, "2 2"]
    attention: Float[Tensor, " three"]
    kernel_weight: Float[Tensor, ""]
    evidence: Float[Tensor, " two"]

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
        etas: float = 1.0,
        time_scales: int = 0,
        length_scales: int = 0,
        strength: float | None = None,
        growth: float = 0.0,
        inherit: float = 0.0,
    ) -> None:
        box_of(MarkSpace.of(marks), "seismic-dapp")
        super().__init__(
            marks,
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
            region=region,
            sources=sources,
        )
        if etas < 0 or (strength is not None and strength <= 0):
            raise UserError(
                "a weight etas of 0 or more and a positive strength",
                f"{etas} and {strength}",
                "Raise them.",
            )
        first = 0.0 if strength is None else strength
        self.stages: dict[str, dict[str, Tensor]] = {}  # of the last fit, for `keep_best`
        self.stage_values: dict[str, float] = {}  # their log-likelihoods per event on dev
        K, L = time_scales, length_scales
        for name, value in (
            ("spectrum", torch.zeros(K, L)),
            ("scales", torch.ones(K)),
            ("lengths", torch.ones(L)),
            ("tilt", torch.zeros(K)),
            ("stretch", torch.eye(2)),
            ("attention", torch.tensor([first, growth, inherit])),
            ("kernel_weight", torch.tensor(etas)),
            # the sum of the weights of the background's kernels, 0 if it is not updated, and when
            # training ended
            ("evidence", torch.zeros(2)),
        ):
            self.register_buffer(name, value.double())

    @property
    def corrected(self) -> bool:
        """Whether there is any correction of ETAS."""
        return bool(
            self.spectrum.numel()
            or self.kernel_weight != 1
            or self.attention[0] > 0
            or self.evidence[0] > 0
        )

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        K, L = self.spectrum.shape
        strength, growth, inherit = self.attention.tolist()
        return {
            **super().settings(),
            "etas": float(self.kernel_weight),
            "time_scales": K,
            "length_scales": L,
            "strength": strength or None,
            "growth": growth,
            "inherit": inherit,
        }

    def shown(self) -> dict[str, Any]:
        """The parameters of ETAS, and the corrections."""
        found = dict(super().shown())
        if self.corrected:
            strength, growth, inherit = self.attention.tolist()
            found |= {
                "etas": float(self.kernel_weight),
                "spectrum": self.spectrum.numpy(),
                "strength": strength,
                "growth": growth,
                "inherit": inherit,
            }
        return found

    def correct(self, **values: Tensor) -> None:
        """Set buffers of the corrections by name, or the background's rates; the spectrum may
        change its size.
        """
        for name, value in values.items():
            if name == "log_background":
                with torch.no_grad():
                    self.log_background.copy_(value)
            else:
                setattr(self, name, value.detach().clone().to(torch.float64))

    # ------------------------------------------------------------------ fitting

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit ETAS, then the corrections (`models.spatial.seismic_fit`)."""
        from fourpoint.models.spatial.seismic_fit import fit_corrections

        none = type(self)(self.marks).corrections()
        none.pop("log_background")
        self.correct(**none)
        limits = fit_limits.current()
        with limits.part(0.0, 0.5, 0.5):
            notes = super().maximum_likelihood(data)
        self.stages = {"etas": self.corrections()}
        with limits.part(0.5, 1.0):
            return notes + fit_corrections(self, data)

    def corrections(self) -> dict[str, Tensor]:
        """The buffers that :meth:`correct` sets, and the rate of the background."""
        names = (
            "spectrum",
            "scales",
            "lengths",
            "tilt",
            "stretch",
            "attention",
            "kernel_weight",
            "evidence",
            "log_background",
        )
        return {name: getattr(self, name).detach().clone() for name in names}

    def keep_best(self, dev: Dataset) -> list[str]:
        """Keep the stage of the last fit that has the highest log-likelihood on ``dev``."""
        from fourpoint.models.spatial.seismic_fit import keep_best

        return keep_best(self, dev)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: ETASHistory | None = None) -> ETASHistory:
        """The events with their attention; as ETAS without corrections."""
        if not self.corrected:
            return super().encode(batch, before)
        if before is not None:
            raise UserError(
                "a linear form to go on from a history",
                "a seismic DAPP",
                "Encode the whole sequence.",
            )
        return self.encode_from(batch, 0)

    def encode_from(self, batch: Batch, first: int) -> SeismicHistory:
        """As :meth:`encode`, with rates from event number ``first`` on alone where those of earlier
        events do not matter: attention, and the background's updates after training, need them.
        """
        history = self._blank(super().encode(batch))
        earliest = 0 if self.attention[0] > 0 else first
        for b in range(len(batch.times)):
            begin = earliest
            if self.evidence[0] > 0:
                n = int(batch.lengths[b])
                times = batch.times[b, :n].numpy()
                begin = min(begin, self._events_in_training(times))
            self._sweep(history, b, begin)
        return history

    def _events_in_training(self, times: Array) -> int:
        """How many of the events happened before training ended."""
        end = float(self.evidence[1])
        return int(np.searchsorted(times, end, side="right"))

    def extend(
        self,
        history: ETASHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> ETASHistory:
        """One event more, which attends to those before it."""
        if not isinstance(history, SeismicHistory):
            return super().extend(history, time, mark, active, place, features)
        happened = which_happened(mark, active)
        where = place_or_nothing(place, happened, 2)
        s = self.strengths()
        own, delta, _ = self._one(len(time), mark, features, s)
        lengths = history.lengths + happened
        room = int(lengths.max()) - history.when.shape[1]
        h = _padded(history, max(0, room))
        assert h.places is not None  # the model has a box
        length = h.lengths[:, None]
        keep = happened[:, None]
        number = torch.arange(h.when.shape[1])
        slot = (number == length) & keep
        wide_slot = slot[..., None]
        position = torch.arange(h.times.shape[1])
        after = (position > length) & keep
        now = time[:, None]
        attention = {name: getattr(h, name).clone() for name in ATTENTION}
        longer = replace(
            h,
            times=torch.where(after, now, h.times),
            lengths=lengths,
            when=torch.where(slot, now, h.when),
            features=torch.where(wide_slot, own[:, None], h.features),
            delta=torch.where(slot, delta[:, None], h.delta),
            places=torch.where(wide_slot, where[:, None], h.places),
            **attention,
        )
        for b in torch.nonzero(happened)[:, 0].tolist():
            self._sweep(longer, b, int(h.lengths[b]))
        return longer

    def log_rates_at_events(self, history: ETASHistory, batch: Batch) -> Float[Tensor, "B N"]:
        """log lambda at every event, which the pass over attention has found."""
        if isinstance(history, SeismicHistory) and torch.equal(batch.times, history.when):
            return history.rates.log()
        return super().log_rates_at_events(history, batch)

    def log_intensity(
        self,
        history: ETASHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log of the rate in the whole region."""
        if not isinstance(history, SeismicHistory):
            return super().log_intensity(history, times, seen)
        triggered = self._answer(history, numba_seismic.IN_REGION, times, None, None, seen)
        rate = self._background_rate() + triggered
        return rate.log()[..., None]

    def log_intensity_at(
        self,
        history: ETASHistory,
        times: Float[Tensor, "B G Q"],
        places: Float[Tensor, "B G Q k"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda(t, x), per unit of time and km^2."""
        if not isinstance(history, SeismicHistory):
            return super().log_intensity_at(history, times, places, seen)
        found = self._answer(history, numba_seismic.AT_PLACE, times, None, places, seen)
        return found.log()[..., None]

    def closed_integral(
        self,
        history: ETASHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b over the whole region, in closed form."""
        if not isinstance(history, SeismicHistory):
            return super().closed_integral(history, a, b, seen)
        times = a[..., None]
        ends = b[..., None]
        triggered = self._answer(history, numba_seismic.INTEGRAL, times, ends, None, seen)
        duration = (b - a)[..., None]
        return self._background_rate() * duration + triggered

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
        if not isinstance(history, SeismicHistory):
            return super().draw_places(history, time, mark, random)
        rows = []
        for b in range(len(time)):
            rows.append(self._draw_place(history, b, float(time[b]), random))
        return torch.stack(rows)

    @torch.no_grad()
    def draw_paths(
        self,
        history: ETASHistory,
        start: Float[Tensor, " B"],
        stop: Float[Tensor, " B"],
        random: torch.Generator,
        limit: int,
    ) -> Clusters | None:
        """All events on [start, stop) of one path per row, exactly; None where a path has more than
        ``limit``. As a branching process without corrections, else by thinning with a bound for
        every event (`kernels.numba_seismic`).
        """
        if not isinstance(history, SeismicHistory):
            return super().draw_paths(history, start, stop, random, limit)
        keys = _keys(len(start), random)
        shared = all(torch.equal(x, x[:1].expand_as(x)) for x in (history.lengths, history.when))
        every = np.arange(len(start))
        groups = [every] if shared else np.split(every, len(every))
        begins = start.numpy()
        ends = stop.numpy()
        parts = []
        for rows in groups:
            first = int(rows[0])
            part = self._simulate(history, first, begins[rows], ends[rows], keys[rows], limit)
            if part is None:
                return None
            path = torch.from_numpy(rows)[part.row]
            parts.append(Clusters(path, part.time, part.mark, part.place, part.features))
        return Clusters.joined(parts)

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
        """``count`` independent paths on [start, stop) given the events of one sequence before;
        ``history`` is that of a sequence which begins with these events.

        Raises :class:`UserError` where a path has more than `etas.EXPLODED` events.
        """
        if not self.corrected:
            return super().draw_catalogues(batch, start, stop, count, random)
        whole = self.encode(batch) if history is None else history
        assert isinstance(whole, SeismicHistory)
        keys = _keys(count, random)
        begins = np.full(count, start)
        ends = np.full(count, stop)
        past = _beginning(whole, int(batch.lengths[0]))
        found = self._simulate(past, 0, begins, ends, keys, EXPLODED)
        if found is None:
            raise UserError(
                "a process whose rate stays finite",
                f"more than {EXPLODED:,} events per path",
                "Shorten the window, or fit the model again.",
            )
        return found

    def _simulate(
        self,
        history: SeismicHistory,
        b: int,
        start: Array,
        stop: Array,
        keys: NDArray[np.uint64],
        limit: int,
    ) -> Clusters | None:
        """Paths after the history of row ``b``, numbered in the order of ``keys``."""
        n, known = self._row(history, b)
        first, kernel, base = self._fresh(known.times, known.places)
        fresh = first if self.evidence[0] > 0 else 2**62
        drawn, features = self._drawn()
        sources = self.sources.detach().numpy()
        centres = self.sources[:, :2]
        variances = self.sources[:, 2]
        inside = regions.mass(centres, variances, self.corners).numpy()
        area = 2 * math.pi * sources[:, 2]
        peaks = sources[:, 3] / (area * inside)
        nodes = torch.stack(gauss_legendre(regions.NODES), 1).double().numpy()
        stretch = self.stretch.numpy()
        corners = (self.corners @ self.stretch.T).numpy()
        room = 256
        total = room * len(keys)
        kept = _attention(history, b, n)
        while True:
            wide = [_room(x, room) for x in known]
            count = np.zeros(total, dtype=np.int64)
            found = np.zeros((total, 3))
            chosen = np.zeros(total, dtype=np.int64)
            used = numba_seismic.load().simulate(
                keys,
                start,
                stop,
                n,
                *wide,
                fresh,
                _room(kernel, room),
                base,
                _room(self.shapes(history.delta[b, :n]), room),
                float(self.attention[2]),
                *self.laws(),
                np.zeros(n + room),
                *(_room(x, room) for x in kept),
                _room(self._counts(history, b, n, n), room),
                drawn,
                stretch,
                np.linalg.inv(stretch),
                self.corners.numpy(),
                np.ascontiguousarray(corners),
                sources,
                peaks,
                sources[:, 3].cumsum(),
                nodes,
                count,
                found,
                chosen,
            )
            if used >= 0:
                break
            if room > limit:
                return None
            room *= 4
            total *= 4
        own = torch.from_numpy(count[:used].copy())
        if used and int(torch.bincount(own).max()) > limit:
            return None
        drawn_features = None
        if features is not None:
            rows = torch.from_numpy(chosen[:used])
            drawn_features = features[rows]
        return Clusters(
            own,
            torch.from_numpy(found[:used, 0]),
            torch.zeros_like(own),
            torch.from_numpy(found[:used, 1:].copy()),
            drawn_features,
        )

    def _drawn(self) -> tuple[Array, Float[Tensor, "R F"] | None]:
        """What simulated events take from training events (see `numba_seismic.simulate`), and the
        features of these.
        """
        s = self.strengths()
        features = None
        delta = torch.zeros(1).double()
        factor = torch.ones(1).double()
        if self.event_features is not None:
            features = self.event_features.table
            delta = features[:, self.magnitude_column] - self.mc
            standardised = self.event_features.standardised(features)
            factor = self._factors(standardised, s)
        width = torch.exp(s.gamma * delta)
        columns = [
            delta,
            s.productivity * factor,
            torch.exp(s.log_width) * width,
            1 / width,
            torch.from_numpy(self.shapes(delta)),
        ]
        boost = torch.exp(delta[:, None] * self.tilt)
        table = torch.cat([torch.stack(columns, 1), boost], 1)
        return np.ascontiguousarray(table.numpy()), features

    # ------------------------------------------------------------------ parts

    def _blank(self, plain: ETASHistory) -> SeismicHistory:
        """A history without attention, and without the states of exponentials of ETAS."""
        values = {field.name: getattr(plain, field.name) for field in fields(ETASHistory)}
        B, N = plain.when.shape
        values["states"] = plain.states[..., :0]
        return SeismicHistory(
            **values,
            owner=torch.full((B, N, ATTENDED), -1, dtype=torch.int64),
            share=torch.zeros(B, N, ATTENDED, dtype=torch.float64),
            given=torch.ones(B, N, dtype=torch.float64),
            origin=torch.zeros(B, N, dtype=torch.float64),
            rates=torch.ones(B, N, dtype=torch.float64),
        )

    @torch.no_grad()
    def kernels(
        self,
        times: Float[Tensor, " N"],
        places: Float[Tensor, "N 2"],
        delta: Float[Tensor, " N"],
        features: Float[Tensor, "N F"],
    ) -> Kernels:
        """What the loops need to know of events."""
        s = self.strengths()
        kappa = s.productivity * self._factors(features, s)
        width = torch.exp(s.gamma * delta)
        decay = torch.exp(delta[:, None] * self.tilt)
        boost = kappa[:, None] * decay
        moved = places @ self.stretch.T
        inside = kappa * self._inside(places, delta, s)
        corners = self.corners @ self.stretch.T
        ground = torch.zeros(len(times), len(self.scales), dtype=torch.float64)
        for scale in range(len(self.lengths)):
            square = self.lengths[scale].square()
            share = regions.mass(moved, square * width, corners)
            inside_region = boost * share[:, None]
            ground += inside_region * self.spectrum[:, scale]
        spread = torch.exp(s.log_width) * width
        parts = (times, places, moved, kappa, spread, 1 / width, boost, inside, ground)
        return Kernels(*(np.ascontiguousarray(x.detach().numpy()) for x in parts))

    def laws(self) -> tuple[Array, Array, Array, Array, Array]:
        """As the loops take them: w_0, c, p, q, 1 / tau and g(0); decays and masses of the
        exponentials of g, none where w_0 is 0; 1 / tau_k; h_l^2; and W.
        """
        s = self.strengths()
        omega = torch.zeros_like(s.c)
        if s.taper is not None:
            omega = 1 / s.taper
        log_factor = omori.log_normaliser(s.p, s.c, s.taper)
        log_peak = log_factor - s.p * s.c.log()
        scalars = (self.kernel_weight, s.c, s.p, s.q, omega, log_peak.exp())
        etas = [float(x.detach()) for x in scalars]
        tail = np.zeros((0, 2))
        if self.kernel_weight > 0:
            weights, decays = s.mixture()
            masses = weights / decays
            tail = torch.stack([decays, masses], 1).detach().numpy()
        decays_of_spectrum = 1 / self.scales
        variances = self.lengths.square()
        return (
            np.array(etas),
            tail,
            decays_of_spectrum.numpy(),
            variances.numpy(),
            self.spectrum.numpy(),
        )

    def shapes(self, delta: Float[Tensor, " N"]) -> Array:
        """a_j of every event, infinite where attention updates nothing."""
        strength, growth, _ = self.attention
        if strength == 0:
            return np.full(len(delta), np.inf)
        shapes = strength * torch.exp(growth * delta)
        return shapes.detach().numpy()

    def _row(self, history: SeismicHistory, b: int) -> tuple[int, Kernels]:
        events = history.sources(b)
        assert events.places is not None  # the model has a box
        known = self.kernels(events.times, events.places, events.delta, events.features)
        return len(events.times), known

    def _background_rate(self) -> Float[Tensor, ""]:
        """mu in the whole region, without gradient."""
        return self.strengths().background.detach().sum()

    def _static(self, places: Float[Tensor, "N 2"]) -> Array:
        """The density of the background's kernels."""
        if not len(self.sources):
            return np.zeros(len(places))
        return np.ascontiguousarray(self.kernel_density(places).detach().numpy())

    def _fresh(self, times: Array, places: Array) -> tuple[int, Array, Array]:
        """The first event after training, the variance of each event's kernel in the background
        (that of the nearest source) and its share in the region, and the constants of
        `numba_seismic.background_at`.
        """
        level = self.strengths().background.tolist()
        uniform = level[0]
        kernels = 0.0
        first = len(times)
        weight = float(self.evidence[0])
        updated = weight > 0
        if len(self.sources):
            kernels = level[1]
            if updated:
                first = self._events_in_training(times)
        kernel = np.ones((len(times), 2))
        if first < len(times):
            later = places[first:]
            variance = self._nearest(later)
            inside = regions.mass(torch.from_numpy(later), torch.from_numpy(variance), self.corners)
            kernel[first:, 0] = variance
            kernel[first:, 1] = inside.numpy()
        if not updated:
            weight = 1.0
        base = np.array([uniform / self.area, kernels, weight, uniform])
        return first, kernel, base

    def _nearest(self, places: Array) -> Array:
        from scipy.spatial import cKDTree

        known = self.sources.detach().numpy()
        _, index = cKDTree(known[:, :2]).query(places)
        return np.asarray(known[index, 2])

    def _sweep(self, history: SeismicHistory, b: int, begin: int) -> None:
        """Rates and attention of the events from number ``begin`` on of row b, into the
        history.
        """
        n, known = self._row(history, b)
        assert history.places is not None  # the model has a box
        first, kernel, base = self._fresh(known.times, known.places)
        static = np.zeros(n)
        swept = history.places[b, begin:n]
        static[begin:] = self._static(swept)
        counts = self._counts(history, b, begin, n)
        if pays((n - begin) * n):
            after = (static, first, kernel, base)
            self._sweep_groups(history, b, begin, known, after, counts)
            return
        numba_seismic.load().sweep(
            begin,
            *known,
            static,
            first,
            kernel,
            base,
            self.shapes(history.delta[b, :n]),
            float(self.attention[2]),
            *self.laws(),
            history.rates[b, :n].numpy(),
            *_attention(history, b, n),
            counts,
        )

    def _sweep_groups(
        self,
        history: SeismicHistory,
        b: int,
        begin: int,
        known: Kernels,
        ground: tuple[Array, int, Array, Array],
        counts: Array,
    ) -> None:
        """As :meth:`_sweep`, with distant events in groups. ``ground`` is the density of the
        background's kernels at the events and what :meth:`_fresh` returns.
        """
        n = len(known.times)
        static, first, kernel, base = ground
        events = history.sources(b)
        groups = groups_of(self, known, events.delta, events.features)
        memory = []
        for size in (n, len(groups.times) - n):
            memory += [np.ones(size), np.full(size, -np.inf)]
        attention = _attention(history, b, n)
        which = np.arange(begin, n)
        kernels = base[1] * static[begin:]
        level = base[0] + kernels
        later = numba_seismic_groups.later(known.places, min(first, n), kernel)
        for low, high, *plan in chosen(self, groups, which, level):
            numba_seismic_groups.load().group_sweep(
                begin + low,
                begin + high,
                n,
                *plan,
                *groups.links,
                groups.omega,
                *memory,
                *groups.kernels,
                known.inside,
                known.ground,
                static,
                later,
                kernel,
                base,
                self.shapes(history.delta[b, :n]),
                float(self.attention[2]),
                *self.laws(),
                history.rates[b, :n].numpy(),
                *attention,
                counts,
            )

    def _counts(self, history: SeismicHistory, b: int, position: int, size: int) -> Array:
        """N_j after the first ``position`` events."""
        owner = history.owner[b, :position].numpy().ravel()
        share = history.share[b, :position].numpy().ravel()
        kept = owner >= 0
        counts = np.bincount(owner[kept], share[kept], size)
        return counts.astype(np.float64)

    @torch.no_grad()
    def _answer(
        self,
        history: SeismicHistory,
        kind: int,
        times: Float[Tensor, "B G Q"],
        ends: Float[Tensor, "B G Q"] | None,
        places: Float[Tensor, "B G Q 2"] | None,
        seen: Int[Tensor, "B G"] | None,
    ) -> Float[Tensor, "B G Q"]:
        B, G, Q = times.shape
        position = seen
        if position is None:
            position = torch.arange(G).expand(B, G)
        position = torch.minimum(position, history.lengths[:, None])
        size = G * Q
        everywhere = kind != numba_seismic.AT_PLACE
        found = torch.zeros(B, size, dtype=torch.float64)
        for b in range(B):
            n, known = self._row(history, b)
            after = position[b].repeat_interleave(Q)
            asked = times[b].reshape(-1)
            until = asked
            if ends is not None:
                until = ends[b].reshape(-1)
            if everywhere and self.kernel_weight == 0 and pays(size * n):
                summed = self._running(history, b, known, kind, asked, until, after)
                if summed is not None:
                    found[b] = summed
                    continue
            first, kernel, base = self._fresh(known.times, known.places)
            order = torch.argsort(after, stable=True)
            where = torch.zeros(size, 2, dtype=torch.float64)
            static = np.zeros(size)
            if places is not None:
                where = places[b].reshape(-1, 2)[order]
                static = self._static(where)
            moved = where @ self.stretch.T
            queries = (asked[order], until[order], where, moved)
            values = np.zeros(size)
            numba_seismic.load().answer(
                kind,
                *(np.ascontiguousarray(x.numpy()) for x in queries),
                static,
                after[order].numpy(),
                *known,
                first,
                kernel,
                base,
                self.shapes(history.delta[b, :n]),
                *self.laws(),
                *_attention(history, b, n),
                np.zeros(n),
                values,
            )
            found[b, order] = torch.from_numpy(values)
        return found.reshape(B, G, Q)

    def _running(
        self,
        history: SeismicHistory,
        b: int,
        known: Kernels,
        kind: int,
        asked: Float[Tensor, " J"],
        until: Float[Tensor, " J"],
        after: Int[Tensor, " J"],
    ) -> Float[Tensor, " J"] | None:
        """Rates in the region or integrals by running sums; None unless queries, put in order,
        follow each other in time, with the events that they see between them.
        """
        n = len(known.times)
        order = np.lexsort((asked.numpy(), after.numpy()))
        begin, end, seen = (np.ascontiguousarray(x.numpy()[order]) for x in (asked, until, after))
        positions = np.append(-np.inf, known.times)
        latest = positions[seen]
        ends = end[:-1]
        fresh = np.diff(seen) > 0
        follows = begin[1:] >= ends
        following = np.minimum(seen[:-1], n - 1)
        newest = known.times[following]
        between = ~fresh | (newest >= ends)
        ordered = np.all(follows) and np.all(between)
        if not (ordered and np.all(begin >= latest)):
            return None
        values = np.zeros(len(begin))
        etas, tail, fast, _, _ = self.laws()
        numba_seismic_groups.load().running(
            kind,
            begin,
            end,
            seen,
            known.times,
            known.inside,
            known.ground,
            self.shapes(history.delta[b, :n]),
            history.given[b, :n].numpy(),
            etas,
            tail,
            fast,
            *(x[b, :n].numpy() for x in (history.owner, history.share)),
            np.zeros(n),
            values,
        )
        found = torch.zeros(len(begin), dtype=torch.float64)
        found[torch.from_numpy(order)] = torch.from_numpy(values)
        return found

    def _draw_place(
        self, history: SeismicHistory, b: int, time: float, random: torch.Generator
    ) -> Float[Tensor, " 2"]:
        n, known = self._row(history, b)
        etas, tail, fast, _, _ = self.laws()
        lag = time - known.times
        counts = self._counts(history, b, n, n)
        shape = self.shapes(history.delta[b, :n])
        decays = tail[:, 0]
        masses = tail[:, 1]
        fade = _fade(lag, decays)
        decay = _fade(lag, fast)
        weight = etas[0] * known.inside
        passed = (1 - fade) @ masses
        of_scales = known.ground * (1 - decay)
        due = weight * passed + of_scales.sum(1)
        density = fade @ (decays * masses)
        power = weight * density
        by_scale = known.ground * decay * fast
        finite = np.isfinite(shape)
        given = history.given[b, :n].numpy()
        found = shape * given + counts
        expected = shape + due
        factor = np.ones(n)
        factor[finite] = found[finite] / expected[finite]
        kernels = np.column_stack([power, by_scale])
        table = kernels * factor[:, None]
        background = float(self._background_rate())
        total = background + table.sum()
        coin = _coin(random) * total
        if coin < background or not n:
            return self._draw_background_place(history, b, known, random)
        height = coin - background
        cell = int(np.searchsorted(table.cumsum(), height, side="right"))
        last = table.size - 1
        j, k = divmod(min(cell, last), table.shape[1])
        return self._draw_offspring(history, b, j, k - 1, random)

    def _draw_offspring(
        self, history: SeismicHistory, b: int, j: int, scale: int, random: torch.Generator
    ) -> Float[Tensor, " 2"]:
        """A place around event j, from the power law (scale -1) or the normal densities of a time
        scale, inside the region.
        """
        assert history.places is not None  # the model has a box
        delta = history.delta[b, j : j + 1]
        s = self.strengths()
        back = torch.linalg.inv(self.stretch)
        width = torch.exp(s.gamma * delta)
        while True:
            if scale < 0:
                away = self._scatter(delta, s, random)[0]
            else:
                own = torch.multinomial(self.spectrum[scale], 1, generator=random)[0]
                sd = self.lengths[own] * width[0].sqrt()
                noise = torch.randn(2, dtype=torch.float64, generator=random)
                away = back @ (sd * noise)
            place = history.places[b, j] + away
            if bool(regions.inside(place[None], self.corners)[0]):
                return place.detach()

    def _draw_background_place(
        self, history: SeismicHistory, b: int, known: Kernels, random: torch.Generator
    ) -> Float[Tensor, " 2"]:
        first, kernel, base = self._fresh(known.times, known.places)
        weight = history.origin[b, first : len(known.times)]
        total = float(weight.sum())
        level = self.strengths().background
        newer = 0.0
        if total and len(self.sources):
            by_kernel = float(level[1] / level.sum())
            newer = by_kernel * total / (base[2] + total)
        if _coin(random) >= newer:
            return self.draw_background(1, random)[0]
        j = first + int(torch.multinomial(weight, 1, generator=random))
        centre = torch.from_numpy(known.places[j])
        deviation = math.sqrt(kernel[j, 0])
        while True:
            noise = torch.randn(2, dtype=torch.float64, generator=random)
            place = centre + deviation * noise
            if bool(regions.inside(place[None], self.corners)[0]):
                return place


def _room(values: NDArray[Any], room: int) -> NDArray[Any]:
    """An array with room for as many rows more."""
    size = len(values)
    wider = np.zeros((size + room, *values.shape[1:]), dtype=values.dtype)
    wider[:size] = values
    return wider


def _keys(count: int, random: torch.Generator) -> NDArray[np.uint64]:
    """A key of the random numbers of every path."""
    keys = torch.randint(2**62, (count,), generator=random)
    return keys.numpy().astype(np.uint64)


def _coin(random: torch.Generator) -> float:
    """A uniform random number."""
    return float(torch.rand((), dtype=torch.float64, generator=random))


def _fade(lag: Array, decays: Array) -> Array:
    """What is left of exponentials with these decays, (N, K)."""
    exponent = lag[:, None] * decays
    return np.exp(-np.minimum(exponent, 700.0))


def _attention(history: SeismicHistory, b: int, n: int) -> list[NDArray[Any]]:
    """Prior, attention and probability of being background of the events of row ``b``."""
    parts = (history.given, history.owner, history.share, history.origin)
    return [part[b, :n].numpy() for part in parts]


def _beginning(history: SeismicHistory, events: int) -> SeismicHistory:
    """What was known of the only row after so many events."""
    assert history.places is not None  # the model has a box
    changed = {name: getattr(history, name)[:, :events] for name in ATTENTION}
    return replace(
        history,
        times=history.times[:, : events + 1],
        lengths=torch.full_like(history.lengths, events),
        states=history.states[:, : events + 1],
        when=history.when[:, :events],
        features=history.features[:, :events],
        delta=history.delta[:, :events],
        places=history.places[:, :events],
        **changed,
    )


def _padded(history: SeismicHistory, room: int) -> SeismicHistory:
    """The history with room for as many events more."""
    if not room:
        return history
    changed: dict[str, Any] = {}
    for name in ("times", "states"):
        value = getattr(history, name)
        last = value[:, -1:]
        more = last.repeat_interleave(room, 1)
        changed[name] = torch.cat([value, more], 1)
    for name in ("when", "features", "delta", "places", *ATTENTION):
        value = getattr(history, name)
        empty = -1 if name == "owner" else 0
        rows, _, *shape = value.shape
        more = value.new_full((rows, room, *shape), empty)
        changed[name] = torch.cat([value, more], 1)
    return replace(history, **changed)
