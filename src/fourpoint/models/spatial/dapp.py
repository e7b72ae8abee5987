r"""DAPP over x = (t, m, place): attention to past events through a learned Fourier kernel in time
and space.

    kappa_k(x, x') = exp(-gamma_k d) sum_j w_kj cos(omega_j' (u - u')),  d = t - t',
        u the place in its box, from 0 to 1
    A_k(x)         = sum_i kappa_k(x, x_i) v_k(m_i)
    lambda(x)  = mu_m(t) exp(f_m(u)) + g(b_m + drift_m(t) + sum_k r_km A_k(x))  equation (5),
        per unit of time and volume

The paper draws omega from a generator network. In two or three dimensions a few hundred draws leave
a kernel that is mostly noise a tenth of the box away, so here the frequencies are a lattice
(`ops.sinusoids`) and what is learned is the spectrum on it: w_k is a Gaussian of its own width on
every axis, times the exponential of a network of omega, and sums to 1. Every head has its own decay
gamma_k. So
attention to places is linear too: with phi_j(u) = exp(i omega_j'u),

    S_kj  <-  exp(-gamma_k (t_i - t_{i-1})) S_kj + conj(phi_j(u_i)) v_k(m_i),
    A_k(x) = sum_j w_kj exp(-gamma_k (t - t_last)) Re[phi_j(u) S_kj].

Base and drift in time are those of `models.rate`; the background f is a field of the same
sinusoids. With a small scale of the softplus it is the space-time Hawkes process of
`models.spatial.hawkes` in the limit. Integrals over the box are tensor Gauss rules whose error is
known from coarser ones (`likelihood`). In training attention is read at one random place in every
cell of a grid, drawn anew for every step, since a model would overfit a fixed rule; the background,
the same for all times, is always integrated by a rule FINER times as fine.

What a DAPP with places remembers and shares between sequences, and which choices it has.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.kernels.constants import FADED
from fourpoint.models.base import History, PointProcess, box_of, place_or_nothing, places_of
from fourpoint.models.baseline import BaselineValues, Curves, added, parted
from fourpoint.models.dapp_history import require
from fourpoint.models.dapp_start import start_rate
from fourpoint.models.modes import FASTEST, SLOWEST
from fourpoint.models.rate import Rate
from fourpoint.models.spatial.cells import Cells
from fourpoint.ops import sinusoids
from fourpoint.ops.fourier import Generator
from fourpoint.settings import with_former_names

ENVELOPE = {1: 64, 2: 32, 3: 10}  # cells per axis with bounds of their own, by dimension
# times as many nodes per axis for the background as for attention: it costs once, not at every time
FINER = 4


class Fields(NamedTuple):
    """What all sequences of a history share: spectrum, splines in time, background in space."""

    weight: Float[Tensor, "K F"]
    curves: Curves | None
    background: Float[Tensor, "M F"] | None
    numbers: Float[Tensor, "D k"]


class Shared(Fields):
    """The same, with what is found once: the background's largest values and its integrals."""

    @cached_property
    def tops(self) -> Float[Tensor, "M C"]:
        """Upper bounds of the background in every cell of the box, with an allowance for rounding;
        0 where there is none.
        """
        field = self.background
        if field is None:
            return torch.zeros(1, 1, dtype=torch.float64)
        eps = torch.finfo(field.dtype).eps
        amplitudes = sinusoids.amplitudes(field.double())
        rounding = 64 * eps * amplitudes.sum(1, keepdim=True)
        cells = ENVELOPE[self.numbers.shape[1]]
        largest = sinusoids.largest(self.numbers, field, cells)
        return largest + rounding.detach()

    @cached_property
    def top_rates(self) -> Float[Tensor, "M C"]:
        """The exponentials of ``tops``."""
        return self.tops.exp()

    @cached_property
    def _tilts(self) -> dict[int, Tensor]:
        return {}

    def tilt(self, order: int) -> Float[Tensor, " M"]:
        """The mean of exp(f_m) over the box, by a rule of FINER times ``order`` nodes per axis."""
        if self.background is None:
            return self.weight.new_ones(1)
        if order not in self._tilts:
            places, weights = sinusoids.box_rule(self.numbers.shape[1], FINER * order)
            phi = sinusoids.features(self.numbers.double(), places).to(self.weight)
            factor = torch.exp(phi @ self.background.T)
            self._tilts[order] = factor.T @ weights.to(self.weight)
        return self._tilts[order]


@dataclass(frozen=True)
class SpatialDAPPHistory(History):
    """States of all sinusoids at each position, real: cosines and sines."""

    shared: Shared
    state: Float[Tensor, "B K P F"]

    def latest(self) -> SpatialDAPPHistory:
        """The last position alone: all that is needed to go on."""
        return replace(
            self,
            times=self.times[:, -1:],
            lengths=torch.zeros_like(self.lengths),
            state=self.state[:, :, -1:],
        )


def last_time(history: SpatialDAPPHistory) -> Float[Tensor, " B"]:
    """When the last real position begins."""
    return history.times.gather(1, history.lengths[:, None])[:, 0]


def check_choices(s: dict[str, Any]) -> None:
    """Raise :class:`UserError` for an unknown choice or a number that is too small."""
    allowed = {
        "link": ("softplus", "exp"),
        "base": ("auto", "constant", "spline"),
        "drift": ("auto", "none", "spline"),
        "background": ("sinusoids", "constant"),
    }
    for name, choices in allowed.items():
        if s[name] not in choices:
            raise UserError(
                f"{name} to be one of {', '.join(choices)}",
                f"{s[name]!r}",
                "Choose one of them.",
            )
    lowest = {"heads": 1, "frequencies": 1, "knots": 1, "order": 2, "cells": 1}
    for name, least in lowest.items():
        if s[name] < least:
            raise UserError(f"{name} of at least {least}", f"{s[name]}", "Raise it.")


# the highest number of sinusoids over PERIOD boxes along an axis, by dimension
HIGHEST = {1: 16, 2: 8, 3: 4}
ORDER = {1: 32, 2: 16, 3: 8}  # Gauss nodes per axis of evaluations, to begin with
FINEST = {1: 256, 2: 96, 3: 24}
CELLS = {1: 16, 2: 8, 3: 4}  # per axis, each with one random place in training
# first widths of the heads' kernels: share of the box, and over the highest frequency
WIDEST = 0.4
NARROWEST = 4.0
PIECE = 2**22  # numbers of a map held at once
NUMBERS = 2**18  # held at once while a rule over the box is applied without gradient


class SpatialDAPP(PointProcess[SpatialDAPPHistory]):
    """Deep attention point process for events with places.

    Args:
        marks: the mark space of the data (`data.marks`), with a box of one to three axes.
        heads: K, each with its own decay in time and its own spectrum in space.
        frequencies: the highest number of sinusoids along an axis; None: 16, 8 or 4 in one, two or
            three dimensions. The kernel resolves distances down to about 1 / frequencies of the
            box.
        link: "softplus" (with a learned scale) or "exp".
        base, drift: in time, as in `DAPP`: "auto" is a spline where all windows have one length.
        background: f, "sinusoids" for a smooth field in space, or "constant".
        generator: widths of the hidden layers of the networks that generate the spectra.
        knots: intervals of the splines in time.
        order: Gauss nodes per axis for integrals over the box; None: 32, 16 or 8. Evaluations
            double it until it suffices.
        cells: per axis, for the random places of training; None: 16, 8 or 4.

    >>> from fourpoint.events import Box, Sequence
    >>> square = MarkSpace(box=Box(("x", "y"), (0, 0), (1, 1)))
    >>> model = SpatialDAPP(square, frequencies=3).eval()
    >>> history = model.encode(
    ...     Sequence([0.2], start=0.0, stop=1.0, space=square, places=[[0.5, 0.5]]).batch()
    ... )
    >>> tuple(model.intensity(history, torch.tensor([[0.1, 0.9]]).double()).shape)
    (1, 2, 1)
    """

    linear = True
    has_upper_bound = True
    recipe = dict(steps=600, batch_size=16, nodes=2, validate_every=50, patience=6)
    time_scale: Tensor
    gain: Tensor
    numbers: Tensor
    order: int

    @with_former_names("spatial-dapp")
    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        heads: int = 4,
        frequencies: int | None = None,
        link: Literal["softplus", "exp"] = "softplus",
        base: Literal["auto", "constant", "spline"] = "auto",
        drift: Literal["auto", "none", "spline"] = "auto",
        background: Literal["sinusoids", "constant"] = "sinusoids",
        generator: Sequence[int] = (32, 32),
        knots: int = 12,
        order: int | None = None,
        cells: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.marks = MarkSpace.of(marks)
        self.box = box_of(self.marks, "spatial-dapp")
        k = self.box.dimension
        M = self.marks.count
        if k not in HIGHEST:
            raise UserError(
                "places of one to three numbers",
                f"{k} ({', '.join(self.box.names)})",
                "Name fewer columns, or use poisson.",
            )
        frequencies = frequencies or HIGHEST[k]
        order = order or ORDER[k]
        cells = cells or CELLS[k]
        self.options: dict[str, Any] = dict(
            heads=heads,
            frequencies=frequencies,
            link=link,
            base=base,
            drift=drift,
            background=background,
            generator=tuple(generator),
            knots=knots,
            order=order,
            cells=cells,
            seed=seed,
        )
        check_choices(self.options)
        self.order = order
        self.finest = max(order, FINEST[k])
        self._drawn: Float[Tensor, "S k"] | None = None
        self.register_buffer("numbers", sinusoids.lattice(k, frequencies))
        F = 2 * len(self.numbers)
        self.rate = Rate(M, link=link, learn_scale=True, base=base, drift=drift, knots=knots)
        self.log_decay = nn.Parameter(torch.zeros(heads))
        self.log_width = nn.Parameter(torch.full((heads, k), math.log(WIDEST)))
        self.generator = Generator(heads, k, generator, 1, seed=seed)
        with torch.no_grad():
            self.generator.weights[-1].zero_()
            self.generator.biases[-1].zero_()
        self.generator.biases[-1].requires_grad_(False)  # a constant cancels where weights sum to 1
        self.value_weight = nn.Parameter(torch.ones(heads, M))
        self.readout = nn.Parameter(torch.ones(heads, M), requires_grad=M > 1)
        learned = background == "sinusoids"
        self.background = nn.Parameter(torch.zeros(M, F), requires_grad=learned)
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("gain", torch.ones(heads))

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``, as JSON can hold them."""
        settings = dict(self.options)
        settings["generator"] = list(settings["generator"])
        return settings

    def with_order(self, order: int) -> SpatialDAPP:
        """The same model, weights shared, that integrates over the box with ``order`` nodes per
        axis.

        >>> from fourpoint.events import Box
        >>> SpatialDAPP(MarkSpace(box=Box(("x",), (0,), (1,)))).with_order(64).order
        64
        """
        other = copy.copy(self)
        other.order = order
        return other

    # ------------------------------------------------------------------ what comes from the data

    def initialise(self, data: Dataset) -> list[str]:
        """Time scale, base rates and the spread of decays and widths from ``data``; drift and base
        in time where left to it.
        """
        notes = start_rate(self, data)
        length = float(data.durations.mean() / self.time_scale)
        events = data.events / max(len(data), 1)
        self._spread(length, events)
        size = f"{len(self.numbers)} frequencies, {self.order} nodes per axis"
        return [*notes, f"places: {self.box}; {size}"]

    @torch.no_grad()
    def _spread(self, length: float, events: float) -> None:
        """Heads from slow to fast, alternately narrow and wide, of either sign, with a small effect
        whatever they sum over.
        """
        K = len(self.log_decay)
        slowest = math.log10(SLOWEST / max(length, 2.0))
        fastest = math.log10(FASTEST)
        rates = torch.logspace(slowest, fastest, K + 2)[1:-1].to(self.readout)
        highest = 2 * math.pi * self.options["frequencies"]
        narrowest = min(WIDEST / 2, NARROWEST * sinusoids.PERIOD / highest)
        is_wide = torch.arange(K) % 2 == 0
        widths = torch.where(is_wide, WIDEST / 2, narrowest).to(self.readout)
        self.log_decay.copy_(rates.log())
        self.log_width.copy_(widths.log()[:, None].expand_as(self.log_width))
        reach = (math.sqrt(2 * math.pi) * widths).clamp(max=1.0)
        covered = reach**self.box.dimension  # the share of the box that a kernel covers
        summed = (covered / rates).clamp(1.0, max(1.0, events))
        self.gain.copy_(1 / summed)
        self.value_weight.fill_(0.3)

    def redraw(self, random: torch.Generator) -> None:
        """Draw the places of the next step's integrals: one in every cell of a grid."""
        self._drawn = sinusoids.scattered(self.box.dimension, self.options["cells"], random)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: SpatialDAPPHistory | None = None) -> SpatialDAPPHistory:
        """States after every event of the batch."""
        phi, values = self._driving(places_of(batch), batch.marks, batch.valid)
        if before is None:
            shared = self._shared()
            start = batch.start
            first = batch.start[:, None]
            held = phi.new_zeros(len(phi), values.shape[2], phi.shape[2])
        else:
            shared = before.shared
            start = before.start
            first = before.times[:, -1:]
            held = before.state[:, :, -1]
        times = torch.cat([first, batch.times], 1)
        lags = self._lag(times.diff(dim=1))
        decay = self.log_decay.exp()
        states = sinusoids.fading_states(decay, lags, values, phi, held)
        return SpatialDAPPHistory(
            times=times,
            start=start,
            lengths=batch.lengths,
            shared=shared,
            state=states,
            context=self.known_context(batch, before),
        )

    def extend(
        self,
        history: SpatialDAPPHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> SpatialDAPPHistory:
        """One event more; only the last position is kept."""
        happened = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        where = place_or_nothing(place, happened, self.box.dimension)
        phi, values = self._driving(where[:, None], mark[:, None], happened[:, None])
        now = torch.where(happened, time, last_time(history))
        moved = self.move(history, now)
        added = values[:, 0, :, None, None] * phi[:, None]
        return replace(moved, state=moved.state + added)

    def move(self, history: SpatialDAPPHistory, time: Float[Tensor, " B"]) -> SpatialDAPPHistory:
        """The last position, its states moved on to ``time`` with no event in between."""
        if history.state.shape[2] > 1:
            state = history.state[torch.arange(len(time)), :, history.lengths]
        else:
            state = history.state[:, :, 0]
        fade = self._fade(self._lag(time - last_time(history)))
        return replace(
            history,
            times=time[:, None],
            lengths=torch.zeros_like(history.lengths),
            state=(fade[..., None] * state)[:, :, None],
        )

    def log_intensity(
        self,
        history: SpatialDAPPHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log of the rate of every type in the whole box: at random places while training, by the
        Gauss rule of ``order`` else.
        """
        if self.training and self._drawn is not None:
            places = self._drawn
            weights = torch.full((len(places),), 1 / len(places))
        else:
            places, weights = sinusoids.box_rule(self.box.dimension, self.order)
        phi = self._features(places)
        basis = history.shared.weight[..., None] * phi.T
        weights = weights.to(self.readout)
        B, G, Q = times.shape
        of_a_group = B * Q * len(phi) * self.marks.count
        piece = max(1, NUMBERS // max(1, of_a_group))
        if torch.is_grad_enabled() or G <= piece:
            return self._over(history, times, seen, basis, weights)
        index = torch.arange(G).expand(B, G) if seen is None else seen
        parts = []
        for some, index_of_some in zip(times.split(piece, 1), index.split(piece, 1), strict=True):
            parts.append(self._over(history, some, index_of_some, basis, weights))
        return torch.cat(parts, 1)

    def log_intensity_at(
        self,
        history: SpatialDAPPHistory,
        times: Float[Tensor, "B G Q"],
        places: Float[Tensor, "B G Q k"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda_m(t, x), per unit of time and volume."""
        phi = self._features(self._inside(places))
        state, lag = self._seen(history, times, seen)
        shared = history.shared
        if phi.shape[2] == 1:
            read = torch.matmul(state * phi[:, None, :, 0], shared.weight[..., None])
        else:
            weighted = state * shared.weight[:, None]
            read = torch.matmul(phi[:, None], weighted[..., None]).squeeze(-1)
        sums = read.permute(0, 2, 3, 1) * self._fade(lag)
        tilt = None
        if shared.background is not None:
            tilt = phi @ shared.background.T
        since = times - history.start[:, None, None]
        effects = self._effects_at(history, times)
        logs = self.rate.log_rate(sums @ self.readout, since, shared.curves, tilt, effects)
        return logs - self.time_scale.log().to(logs) - math.log(self.box.volume)

    @torch.no_grad()
    def in_cells(
        self,
        history: SpatialDAPPHistory,
        times: Float[Tensor, "B T"],
        seen: Int[Tensor, "B T"],
        cells: Cells,
    ) -> Float[Tensor, "C M"]:
        """The rate of every type in the cells of a map, per unit of time and of what it shows: the
        mean over all rows and ``times``.

        The states of a row and time are summed over heads once, and one product with the features
        of all cells reads them everywhere.
        """
        places, weights = cells.places
        phi = self._features(self._inside(places.flatten(0, 1)))
        state, lag = self._seen(history, times[..., None], seen)
        shared = history.shared
        fade = self._fade(lag[..., 0])
        read = torch.einsum("btk,bktf,kf,km->btmf", fade, state, shared.weight, self.readout)
        read = read.flatten(0, 1)
        log_base, inner = self._baseline(history, times)
        log_base = log_base.flatten(0, 1)
        inner = inner.flatten(0, 1)
        tilt = torch.zeros(1, dtype=phi.dtype)
        if shared.background is not None:
            tilt = phi @ shared.background.T
        raised = phi.new_zeros(len(phi), self.marks.count, dtype=torch.float64)
        piece = max(1, PIECE // raised.numel())
        for some, within in zip(read.split(piece), inner.split(piece), strict=True):
            z = (some @ phi.T + within[..., None]).transpose(1, 2)
            if self.rate.link == "exp":
                raised += z.exp_().sum(0)
            else:
                log_scale = self.rate.log_scale
                bent = nn.functional.softplus(z - log_scale)
                raised += log_scale.exp() * bent.sum(0)
        rate = log_base.exp().mean(0) * tilt.exp() + raised / len(read)
        at_places = rate.unflatten(0, places.shape[:2]).double()
        in_cells = torch.einsum("csm,s->cm", at_places, weights)
        return in_cells / (self.time_scale * self.box.volume)

    def upper_bound(
        self,
        history: SpatialDAPPHistory,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """An upper bound of the rate in the box on [a, b], all types together: the mean of
        :meth:`envelope`.
        """
        return self.envelope(history, a, b).mean(1)

    @torch.no_grad()
    def envelope(
        self,
        history: SpatialDAPPHistory,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, "B C"]:
        """The volume times an upper bound of the rate in each of C equal cells of the box on [a,
        b], all types together.

        The background has its own bound in every cell. A sum of sinusoids is at most the sum of
        their amplitudes: at a, the heads' sinusoids of one frequency are summed first; until b,
        head k can add at most the part 1 - exp(-gamma_k (b - a)) of its own amplitudes that fades
        away.
        """
        shared = history.shared
        eps = torch.finfo(self.readout.dtype).eps
        held = self.move(history, a).state[:, :, 0] * shared.weight
        sizes = sinusoids.amplitudes(held).sum(-1)
        summed = torch.einsum("bkf,km->bmf", held, self.readout)
        together = sinusoids.amplitudes(summed).sum(-1)
        decayed = self.log_decay.exp() * self._lag(b - a)[:, None]
        lost = -torch.expm1(-decayed) * sizes
        readout = self.readout.abs()
        apart = sizes @ readout
        z = torch.minimum(together + lost @ readout, apart)
        z = z + 64 * eps * apart
        low = (a - history.start).to(z)
        high = (b - history.start).to(z)
        nothing = torch.full_like(z[0], -torch.inf)
        effects = None
        if self.effects is not None:
            bound = self.effects.upper_bound(a, b, history.context, z.dtype)
            effects = parted(bound.to(z), self.marks.count)
        raised = self.rate.log_bound(z, low, high, shared.curves, nothing, effects).double()
        raised = raised + 16 * eps * (1 + raised.abs())
        highest = self.rate.baseline.upper_bound(low, high, shared.curves, low.dtype)
        base = added(highest, effects).log_base.double()
        base = base + 16 * eps * (1 + base.abs())
        allowed = (1 + 16 * eps) / self.time_scale
        tops = shared.top_rates.expand(self.marks.count, -1)
        excited = raised.exp().sum(1, keepdim=True)
        return torch.addmm(allowed * excited, allowed * base.exp(), tops)

    def knots(self, history: SpatialDAPPHistory) -> Float[Tensor, "B J"] | None:
        """Times at which a spline's third derivative jumps: integrals are cut there."""
        return self.rate.baseline.knots(history.start)

    def shortest_time(self, history: SpatialDAPPHistory) -> Float[Tensor, " B"]:
        """One over the fastest decay of a head."""
        fastest = self.log_decay.exp().max()
        return torch.full_like(history.start, float(self.time_scale / fastest))

    def kernel(
        self,
        lags: Float[Tensor, " L"],
        distances: Float[Tensor, " R"],
        axis: int = 0,
    ) -> Float[Tensor, "K L R"]:
        """kappa_k at time lags and distances along one axis, in the user's units."""
        offset = torch.zeros(len(distances), self.box.dimension, dtype=torch.float64)
        width = self.box.high[axis] - self.box.low[axis]
        offset[:, axis] = distances / width
        F = len(self.numbers)
        cosine = self._features(offset)[:, :F]
        space = self._weight()[:, :F] @ cosine.T
        fade = self._fade(self._lag(lags.double()))
        return fade.T[..., None] * space[:, None]

    def _features(self, shares: Float[Tensor, "*S k"]) -> Float[Tensor, "*S F"]:
        """phi at places that are shares of the box."""
        return sinusoids.features(self.numbers.double(), shares).to(self.readout)

    # ------------------------------------------------------------------ parts

    def _baseline(
        self,
        history: SpatialDAPPHistory,
        times: Float[Tensor, "B ..."],
    ) -> tuple[Float[Tensor, "B ... M"], Float[Tensor, "B ... M"]]:
        """log mu, and what is added inside the link."""
        since = times - history.start.reshape(-1, *[1] * (times.ndim - 1))
        values = self.rate.baseline.values(since, history.shared.curves)
        values = added(values, self._effects_at(history, times))
        return values.log_base, require(values.inside)

    @property
    def effect_curves(self) -> int:
        """log mu of every mark, and what is added inside the link for every mark."""
        return 2 * self.marks.count

    def _effects_at(
        self,
        history: SpatialDAPPHistory,
        times: Float[Tensor, "B ..."],
    ) -> BaselineValues | None:
        """The effects of calendar and covariates on both parts of the baseline; None without."""
        if self.effects is None:
            return None
        values = self.effects.values(times, history.context, self.readout.dtype)
        return parted(values, self.marks.count)

    def _shared(self) -> Shared:
        field = None
        if self.options["background"] == "sinusoids":
            # Steps of one size on every coefficient would make a rough field; the constant term
            # belongs to mu.
            damp = 1 / (1 + self.numbers.norm(dim=1)).to(self.readout)
            without_constant = torch.cat([torch.zeros_like(damp[:1]), damp[1:]])
            field = without_constant.repeat(2) * self.background
        return Shared(
            weight=self._weight(),
            curves=self.rate.baseline.curves(),
            background=field,
            numbers=self.numbers,
        )

    def _weight(self) -> Float[Tensor, "K F"]:
        """w_kj, once for the cosine and once for the sine of each frequency; a pair of opposites
        counts twice.
        """
        numbers = self.numbers.to(self.readout)
        omega = numbers * (2 * math.pi / sinusoids.PERIOD)
        width = self.log_width.exp()[:, None]
        gaussian = -(width * omega).square().sum(-1) / 2
        scaled = numbers / self.options["frequencies"]
        shape = self.generator(scaled.expand(len(self.log_decay), -1, -1))[..., 0]
        is_pair = torch.arange(len(numbers)) > 0
        pairs = torch.where(is_pair, math.log(2.0), 0.0).to(numbers)
        return torch.softmax(gaussian + shape + pairs, -1).repeat(1, 2)

    def _driving(
        self,
        places: Float[Tensor, "B N k"],
        marks: Int[Tensor, "B N"],
        valid: Bool[Tensor, "B N"],
    ) -> tuple[Float[Tensor, "B N F"], Float[Tensor, "B N K"]]:
        """Features and values of events, whose product each adds to the states; values are 0 where
        it is padding.
        """
        where = torch.where(valid[..., None], places, 0.0)
        phi = self._features(self._inside(where))
        table = self.gain[:, None] * self.value_weight
        values = table.T[marks]
        return phi, torch.where(valid[..., None], values, 0.0)

    def _inside(self, places: Float[Tensor, "*S k"]) -> Float[Tensor, "*S k"]:
        """Places as shares of the box."""
        low = torch.tensor(self.box.low, dtype=torch.float64)
        high = torch.tensor(self.box.high, dtype=torch.float64)
        return (places - low) / (high - low)

    def _lag(self, times: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return (times / self.time_scale).to(self.readout)

    def _fade(self, lag: Float[Tensor, "*S"]) -> Float[Tensor, "*S K"]:
        exponent = -self.log_decay.exp() * lag[..., None]
        return torch.exp(exponent.clamp(min=FADED))

    def _seen(
        self,
        history: SpatialDAPPHistory,
        times: Tensor,
        seen: Tensor | None,
    ) -> tuple[Float[Tensor, "B K G F"], Float[Tensor, "B G Q"]]:
        """The state that each group sees, and the time since."""
        anchor = history.times
        state = history.state
        if seen is None:
            anchor = anchor[:, : times.shape[1]]
            state = state[:, :, : times.shape[1]]
        elif not state.shape[2] == seen.shape[1] == 1:
            _, K, _, F = state.shape
            index = seen[:, None, :, None].expand(-1, K, -1, F)
            anchor = anchor.gather(1, seen)
            state = state.gather(2, index)
        return state, self._lag(times - anchor[..., None])

    def _over(
        self,
        history: SpatialDAPPHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None,
        basis: Float[Tensor, "K F S"],
        weights: Float[Tensor, " S"],
    ) -> Float[Tensor, "B G Q M"]:
        """The log of the sum over places of the rates there, times their weights.

        With a softplus nothing overflows, and the sum is formed as it stands; with an exponential,
        from logarithms.
        """
        state, lag = self._seen(history, times, seen)
        B, K, G, _ = state.shape
        S = len(weights)
        of_heads = torch.bmm(state.transpose(0, 1).flatten(1, 2), basis)
        spread = of_heads.reshape(K, B, G, S).permute(1, 2, 0, 3)
        faded = self._fade(lag)[..., None] * self.readout
        read = faded.transpose(3, 4).flatten(2, 3)  # (B, G, Q M, K)
        z = torch.matmul(read, spread).unflatten(2, (lag.shape[2], -1))  # (B, G, Q, M, S)
        log_base, inner = self._baseline(history, times)
        tilt = history.shared.tilt(self.order)
        if self.rate.link == "exp":
            excited = torch.logsumexp(z + inner[..., None] + weights.log(), -1)
            logs = torch.logaddexp(log_base + tilt.log(), excited)
        else:
            log_scale = self.rate.log_scale
            bent = nn.functional.softplus(z + (inner - log_scale)[..., None])
            raised = bent @ weights
            logs = torch.log(log_base.exp() * tilt + log_scale.exp() * raised)
        return logs - self.time_scale.log().to(logs)
