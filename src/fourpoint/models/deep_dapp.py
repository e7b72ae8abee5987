r"""Deep DAPP: layers of Fourier attention with learned, decaying spectra; attention and diagonal
state-space model in one.

Position p = 0 is the window's start and p = 1, 2, ... are the events. A token is made of the
event's mark and of the gap before it, and L layers (`deep_layer`) pass it on, each leaving states
S_l that turn and fade until the next event. At a time t after position p, with all states moved to
t,

    q  = gelu(W [S_1(t), ..., S_L(t)] + U norm(x_p) + T features(t - t_p)),
        q <- q + V_2 gelu(V_1 norm(q)),
    lambda(t) = s log(1 + exp(w'q + b)),           lambda_m(t) = lambda(t) softmax_m(R q + c),

features(d) = log(1 + d / s_k) for times s_k from the shortest to the longest in the data, and
sinusoids of log(1 + d / s_1), so that a rate can change within a small share of the time since the
last event (`deep_layer.features`). The total rate has a head of its own, so
that integrals never touch the M marks: thousands of them cost no more than one at the nodes of an
integral. Everything is linear in
the number of events, and a stream needs the last position alone.

In training, activations, marks and whole events are dropped at random, and events are dequantised
where gaps are few multiples of the timestamp resolution. Time is counted in mean gaps.
Rates are not bounded between events, so samples come from inverting the integral.
Sources: Zhu et al. (DAPP; the kernel), Chang et al., "Deep continuous-time state-space models for
marked event sequences" (NeurIPS
2025; S2P2), Gu and Dao, "Mamba" (2023; gates).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, gelu, linear
from torch.utils.checkpoint import checkpoint

from fourpoint import kernels
from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.kernels.constants import REACH
from fourpoint.kernels.numba_deep_dapp_rate import Model as RateModel, Positions
from fourpoint.kernels.triton_deep_dapp.given import Events, Model
from fourpoint.models.base import LogTimeRule, space_without_places, weighted_mean
from fourpoint.models.deep_layer import (
    DeepHistory,
    DeepLayer,
    Noise,
    Norm,
    features,
    side_by_side,
)
from fourpoint.models.narrow import NarrowPeaks
from fourpoint.models.neural_start import time_scale_of
from fourpoint.models.poisson import mean_rates
from fourpoint.models.rate import log_softplus
from fourpoint.ops.periodogram import coarse_resolution, peaks
from fourpoint.settings import with_former_names

FORMER_SETTINGS = {
    "waves": "sinusoids",
    "unheard": "event_dropout",
    "unmarked": "mark_dropout",
}  # until 0.1
TIMES = 6  # times s_k that gaps are compared with
TURNS = 4  # of the fastest rhythm in one piece of an integral
NODES_PER_HALF_TURN = 1.65  # of the fastest sinusoid of log-time, in a rule for a whole gap
MOST_CUTS = 1024  # of a window
PIECE = 2**24  # numbers held at once, per mark and event
FARTHEST = 1e18  # mean gaps: angles of longer ones are no numbers
SHORTEST = 0.02  # quantile of the positive gaps that counts as the shortest
PANEL = 3.0  # of the elapsed time, which a panel of 16 nodes may cover


class DeepDAPP(NarrowPeaks[DeepHistory]):
    """Deep DAPP.

    Args:
        marks: the mark space of the data (`data.marks`), a number of types, or None.
        layers, width: L layers on tokens of H numbers.
        modes: J modes per layer.
        gated: whether events control how much of the past state is kept and how fast it evolves.
        rhythms: the largest number of frequencies taken from the data.
        sinusoids: octaves of sinusoids in the logarithm of elapsed time; 0 for none.
        dropout: the share of activations that is dropped while training.
        event_dropout, mark_dropout: in training, the share of events that are dropped from the
            states, and the share of events whose mark is dropped.
        form: "scan" in O(n), or "dense" from all pairs, for short sequences and for tests.
        seed: of the initial weights.

    ``recipe`` holds the default settings of `fit` for this model. Raises :class:`UserError` if a
    size is below 1 or a share is not between 0 and 1.

    >>> from fourpoint.events import Sequence
    >>> model, batch = (
    ...     DeepDAPP(width=8, modes=4).eval(),
    ...     Sequence([1.0], start=0.0, stop=2.0).batch(),
    ... )
    >>> tuple(
    ...     model.intensity(
    ...         model.encode(batch), torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    ...     ).shape
    ... )
    (1, 2, 1)
    """

    linear = True
    sums_over_marks = True
    scored_by_kernels = True
    dequantises_gaps = True
    early_nodes = True  # nodes lie closer together soon after events
    rounded_products = True  # while training on a CUDA device
    # the ends of gaps in training, with the past as it is; `fit` may switch it off
    dequantise = True
    recipe: ClassVar[dict[str, Any]] = dict(
        steps=1200,
        epochs=20,
        batch_size=None,
        step_events=1200,
        learning_rate=3e-3,
        weight_decay=0.3,
        nodes=4,
        validate_every=0,
        patience=10,
        mixed=True,
        average=0.995,
    )
    time_scale: Tensor
    scales: Tensor
    fastest: Tensor  # period of the fastest rhythm, in the user's unit

    @with_former_names(FORMER_SETTINGS)
    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        layers: int = 2,
        width: int = 64,
        modes: int = 32,
        gated: bool = True,
        rhythms: int = 8,
        sinusoids: int = 4,
        dropout: float = 0.3,
        event_dropout: float = 0.1,
        mark_dropout: float = 0.1,
        form: str = "scan",
        seed: int = 0,
    ) -> None:
        super().__init__()
        _check(layers, width, modes, rhythms, sinusoids, dropout, event_dropout, mark_dropout, form)
        self.marks = space_without_places(marks, "deep-dapp")
        self._settings: dict[str, Any] = dict(
            layers=layers,
            width=width,
            modes=modes,
            gated=gated,
            rhythms=rhythms,
            sinusoids=sinusoids,
            dropout=dropout,
            event_dropout=event_dropout,
            mark_dropout=mark_dropout,
            form=form,
            seed=seed,
        )
        self._draw = seed
        self._random: torch.Generator | None = None
        self._known: tuple[Tensor | None, int, float] = (
            None,
            0,
            0.0,
        )  # the buffer `tick` as it was read last
        M = self.marks.count
        K = TIMES + 2 * sinusoids
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.ModuleList(DeepLayer(width, modes, gated=gated) for _ in range(layers))
            self.tokens = nn.Parameter(
                torch.randn(M + 2, width)
            )  # the marks, the start and a mark that is hidden
            self.gap = nn.Linear(K, width)
            self.norm, self.context = Norm(width), nn.Linear(width, width)
            self.read, self.since = (
                nn.Linear(2 * modes * layers, width),
                nn.Linear(K, width, bias=False),
            )
            self.query_norm, self.up, self.down = (
                Norm(width),
                nn.Linear(width, 2 * width),
                nn.Linear(2 * width, width),
            )
            self.rate, self.share = nn.Linear(width, 1), nn.Linear(width, M)
        self.log_scale = nn.Parameter(torch.zeros(()))
        with torch.no_grad():
            for head in (self.rate, self.share):
                head.weight.mul_(0.1)
                head.bias.zero_()
            # As if there were no sinusoids, whose weights begin at 0.
            for part in (self.gap, self.since):
                part.weight.mul_(math.sqrt(K / TIMES))[:, TIMES:] = 0
        self.share.requires_grad_(M > 1)
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("fastest", torch.full((), torch.inf, dtype=torch.float64))
        self.register_buffer("scales", torch.logspace(-2, 2, TIMES))
        self.register_buffer("narrow", torch.zeros((), dtype=torch.bool))
        self.register_buffer("tick", torch.zeros((), dtype=torch.float64))

    @property
    def laplace_parameters(self) -> tuple[str, ...]:
        """The head of the total rate, the levels of the marks, and effects of the calendar; the
        layers below are taken as known.
        """
        wanted = ("rate.weight", "rate.bias", "share.bias", "effects.weight")
        own = dict(self.named_parameters())
        return tuple(name for name in wanted if name in own and own[name].requires_grad)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    @torch.no_grad()
    def initialise(self, data: Dataset) -> list[str]:
        """Take time scales, rhythms and mean rates from the data."""
        scale = time_scale_of(data)
        gaps = data.gaps[data.gaps > 0]
        longest = max(float(np.mean(data.durations)), 4 * scale)
        shortest = min(float(np.quantile(gaps, SHORTEST)) if len(gaps) else scale / 10, scale / 4)
        shortest = max(
            shortest, np.finfo(np.float64).eps * scale
        )  # gaps below the rounding of the times are ties
        rhythms = peaks(data.times, data.offsets, most=self._settings["rhythms"])
        self.time_scale.fill_(scale)
        self.fastest.fill_(2 * math.pi / max(rhythms) if len(rhythms) else math.inf)
        self.scales.copy_(
            torch.logspace(math.log10(shortest / scale), math.log10(longest / scale), TIMES)
        )
        for layer in self._stack():
            layer.spread(scale / longest, scale / shortest, torch.from_numpy(rhythms * scale))
        rates = mean_rates(data, self.marks) * scale
        self.log_scale.fill_(math.log(scale / shortest))
        self.rate.bias.copy_(torch.log(torch.expm1(rates.sum() / self.log_scale.exp())))
        self.share.bias.copy_((rates / rates.sum()).log())
        unit = data.unit or "time units"
        said = [
            (
                f"time scale: {scale:.4g} {unit} (the mean gap), modes from {shortest:.4g} to "
                f"{longest:.4g}"
            )
        ]
        if len(rhythms):
            said.append(
                "periods found in the data, with separate modes: "
                f"{', '.join(f'{2 * np.pi / w:.4g}' for w in rhythms)} {unit}"
            )
        self.tick.fill_(coarse_resolution(gaps))
        return said

    def redraw(self, random: torch.Generator) -> None:
        """Choose anew what is dropped in the next batch; a source on a CUDA device is drawn from in
        every pass instead.
        """
        self._random = random if random.device.type == "cuda" else None
        self._draw = self._draw if self._random else int(torch.randint(2**62, (), generator=random))

    def gap_resolution(self) -> float:
        """The timestamp resolution within which the ends of gaps are dequantised in this pass, in
        the user's unit; 0 for none.
        """
        if not (self.training and self.dequantise):
            return 0.0
        version = self.tick._version
        if self._known[0] is not self.tick or self._known[1] != version:
            self._known = (self.tick, version, float(self.tick))
        return self._known[2]

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: DeepHistory | None = None) -> DeepHistory:
        """The moments of all layers at all positions."""
        noise = self._noise(batch.times.device)
        marks = self._hidden(batch.marks, noise)
        if before is None:
            anchor = batch.start
            marks = torch.cat([torch.full_like(batch.marks[:, :1], self.marks.count), marks], 1)
            start = batch.start
            if not batch.marks.shape[1]:
                marks = torch.full_like(batch.lengths[:, None], self.marks.count)
            times = torch.cat([anchor[:, None], batch.times], 1)
            gaps = torch.cat([torch.zeros_like(anchor[:, None]), times.diff(dim=1)], 1)
        else:
            before = before.latest()
            if not batch.times.shape[1]:
                return before
            start = before.start
            times = torch.cat([before.times, batch.times], 1)
            gaps = times.diff(dim=1)
        new = self._run(marks, self._in_mean_gaps(gaps), before, noise)
        if before is not None:
            old = (before.summary, before.state, before.pace)
            new = tuple(torch.cat(pair, 1) for pair in zip(old, new, strict=True))
        context = self.known_context(batch, before)
        return DeepHistory(times, start, batch.lengths, *new, context=context)

    def extend(
        self,
        history: DeepHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> DeepHistory:
        """One event more; only the last position is kept."""
        active = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        old = history.latest()
        gap = torch.where(active, time - old.times[:, 0], 0.0)
        new = self._run(
            mark[:, None], self._in_mean_gaps(gap)[:, None], old, self._noise(time.device)
        )
        was = (old.summary, old.state, old.pace)
        kept = (
            torch.where(active.view(-1, *[1] * (x.ndim - 1)), x, y)
            for x, y in zip(new, was, strict=True)
        )
        times = torch.where(active[:, None], time[:, None], old.times)
        last = torch.zeros_like(old.lengths)
        return DeepHistory(times, old.start, last, *kept, context=old.context)

    @property
    def effect_curves(self) -> int:
        """A factor of the total rate, and with several marks the logits of their shares."""
        marks = self.marks.count
        return 1 if marks == 1 else 1 + marks

    def _log_factor(self, history: DeepHistory, times: Tensor) -> Tensor | float:
        """What calendar and covariates add to the log of the total rate."""
        if self.effects is None:
            return 0.0
        return self.effects.values(times, history.context)[..., 0]

    def _logits(self, history: DeepHistory, times: Tensor) -> Tensor | None:
        """What calendar and covariates add to the logits of the marks; None without any."""
        if self.effects is None or self.marks.count == 1:
            return None
        return self.effects.values(times, history.context)[..., 1:]

    def log_intensity(
        self,
        history: DeepHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda per mark."""
        q = self._queries(history, times, seen)
        total = self._log_rate(q) + self._log_factor(history, times)
        logits = self._logits(history, times)
        shares = self.share(q) if logits is None else self.share(q) + logits
        return total[..., None] + shares.log_softmax(-1)

    def log_total(
        self,
        history: DeepHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q"]:
        """log of the total rate, without a look at the marks."""
        arguments = kernels.DEEP_DAPP_RATE.choose(
            self.tokens,
            times,
            differentiated=torch.is_grad_enabled(),
            training=self.training,
        )
        if arguments is None:
            total = self._log_rate(self._queries(history, times, seen))
        else:
            at = history.at(seen)
            gaps = (times - at.times[..., None]) / self.time_scale
            lags = gaps.clamp(max=FARTHEST).double().flatten(0, 1).contiguous()
            found = arguments(self._rate_model(), _positions(at, self.read.bias), lags.numpy())
            total = self._log_softplus(torch.from_numpy(found).view(times.shape))
        return total + self._log_factor(history, times)

    def total_intensity(
        self,
        history: DeepHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q"]:
        """The total rate, without a number per mark."""
        return self.log_total(history, times, seen).exp()

    def log_rates_at_events(self, history: DeepHistory, batch: Batch) -> Float[Tensor, "B N"]:
        """log lambda of each event's own mark, event i seen from position i - 1."""
        times = batch.times
        seen = torch.arange(times.shape[1], device=times.device).expand_as(times)
        q = self._queries(history, times[..., None], seen)[:, :, 0]
        shares = self._log_shares(q, batch.marks, self._logits(history, times))
        return self._log_rate(q) + self._log_factor(history, times) + shares

    def gap_terms(
        self,
        history: DeepHistory,
        batch: Batch,
        ends: Float[Tensor, "B G"],
        nodes: Float[Tensor, "B G Q"],
        weights: Float[Tensor, "*B Q"] | None,
    ) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B G"]]:
        """Both in one pass over the states of all gaps."""
        times = torch.cat([nodes, ends[..., None]], 2)
        q = self._queries(history, times, None)
        logs = self._log_rate(q) + self._log_factor(history, times)
        logits = self._logits(history, ends[:, :-1])
        own = logs[:, :-1, -1] + self._log_shares(q[:, :-1, -1], batch.marks, logits)
        mean = weighted_mean(logs[:, :, :-1].exp(), weights)
        return own, mean * (ends - batch.edges[:, :-1]).to(mean)

    def training_log_likelihood(
        self, batch: Batch, nodes: int, random: torch.Generator, convention: str
    ) -> Float[Tensor, " B"] | None:
        """The sampled log-likelihood of each sequence by kernels, for training; None if
        unsupported.
        """
        loss = kernels.DEEP_DAPP_LOSS.choose(
            self.tokens,
            batch.times,
            width=self._settings["width"],
            modes=self._settings["modes"],
            features=self.since.weight.shape[1],
            nodes=nodes,
            gated=self._settings["gated"],
            form=self._settings["form"],
            spatial=batch.places is not None,
        )
        if loss is None or self.effects is not None:
            return None
        if random.device.type != "cuda":
            seed = int(torch.randint(2**62, (), generator=random))
            random = torch.Generator(batch.times.device).manual_seed(seed)
        model = self.kernel_model()
        events = Events(batch.times, batch.marks, batch.start, batch.stop, batch.lengths)
        drawn = loss.draw(model, events, nodes, random)
        found: Tensor = loss.log_likelihoods(model, events, drawn, gaps=convention == "gaps")
        return found

    def kernel_model(self) -> Model:
        """What the kernels of `kernels.triton_deep_dapp` are given of the model."""
        settings = self._settings
        return Model(
            parameters=dict(self.named_parameters()),
            buffers=dict(self.named_buffers()),
            layers=settings["layers"],
            width=settings["width"],
            marks=self.marks.count,
            training=self.training,
            dropout=settings["dropout"],
            event_dropout=settings["event_dropout"],
            mark_dropout=settings["mark_dropout"],
            resolution=self.gap_resolution(),
            log_shares=self._log_shares,
        )

    @property
    def numbers_per_time(self) -> int:
        """Few where the kernel applies, else two of each mode and of each number of a token."""
        if self.tokens.device.type == "cpu" and self.tokens.dtype == torch.float32:
            return 2 * self.since.weight.shape[1]
        return 2 * max(self._settings["width"], self._settings["modes"] * self._settings["layers"])

    def extent(self) -> tuple[float, float]:
        """The shortest and the longest time that the read-out can tell apart, in the user's
        unit.
        """
        unit = float(self.time_scale)
        return unit * float(self.scales[0]), unit * REACH * float(self.scales[-1])

    def log_time_rule(self) -> LogTimeRule | None:
        """Nodes for the fastest sinusoid of log-time; None without any or with narrow peaks."""
        sinusoids = self._settings["sinusoids"]
        if not sinusoids or self.narrow or self.effects is not None:
            return None
        density = NODES_PER_HALF_TURN * 2 ** (sinusoids - 1)
        return LogTimeRule(self.extent()[0], density, float(TURNS * self.fastest))

    def longest_panel(self, elapsed: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """How much of the time after ``elapsed`` 16 nodes may cover: the Fourier features of
        log-time turn several times while the elapsed time grows fourfold.
        """
        longest = super().longest_panel(elapsed)
        if not self._settings["sinusoids"]:
            return longest
        return torch.minimum(longest, PANEL * (elapsed + self.extent()[0]))

    def cuts(self, history: DeepHistory) -> Float[Tensor, "B E"] | None:
        """Where integrals are cut: at parts of the elapsed time, where there are sinusoids of it or
        narrow peaks, and so that no piece holds many turns of the data's fastest rhythm; None
        without any.
        """
        peaks = super().cuts(history) if self._settings["sinusoids"] or self.narrow else None
        if not bool(self.fastest.isfinite()):
            return peaks
        first = history.times[:, :1]
        span = 1.25 * (history.times.amax(1, keepdim=True) - first)
        count = min(MOST_CUTS, int(span.max() / (TURNS * self.fastest)) + 1)
        turns = first + span * torch.arange(1, count + 1, device=span.device) / count
        return turns if peaks is None else torch.cat([peaks, turns], 1)

    @torch.no_grad()
    def mode_effects(self, history: DeepHistory, time: float) -> list[dict[str, Any]]:
        """What the total rate at ``time``, seen from the last position of one sequence, would lose
        without each mode's state.

        One entry per mode: its layer (from 1), how long it takes to fade to a half and to turn once
        at its present pace (infinite where it
        does not), both in the user's unit, and the effect in events per unit of time.
        """
        at = history.latest()
        lag = self._in_mean_gaps(torch.full_like(at.times, time)[..., None] - at.times[..., None])
        parts = torch.cat(
            [side_by_side(layer.moved(at.layer(i), lag)) for i, layer in enumerate(self._stack())],
            -1,
        )[0, 0, 0]
        whole = self.read(parts) + at.summary[0, 0] + self.since(self._features(lag))[0, 0, 0]
        added = (
            (self.read.weight * parts).unflatten(1, (-1, 2)).sum(2).T
        )  # of each mode, its real and imaginary part together
        rates = self._log_rate(
            self._answered(torch.cat([whole[None], whole - added])[None, None], None)
        ).exp()[0, 0]
        found = []
        for i, layer in enumerate(self._stack()):
            pace = at.pace[0, 0, i]
            span = float(self.time_scale)
            half = math.log(2) / (layer.decay * pace)
            turn = 2 * math.pi / (layer.frequency * pace).abs()
            losses = rates[0] - rates[1 + i * len(half) : 1 + (i + 1) * len(half)]
            rows = zip(half.tolist(), turn.tolist(), losses.tolist(), strict=True)
            found += [
                dict(layer=i + 1, half_life=h * span, period=p * span, effect=e) for h, p, e in rows
            ]
        return found

    # ------------------------------------------------------------------ parts

    def _run(
        self,
        marks: Int[Tensor, "B P"],
        gaps: Float[Tensor, "B P"],
        before: DeepHistory | None,
        noise: Noise | None,
    ) -> tuple[Tensor, ...]:
        """Tokens through all layers: context, states and paces."""
        x = embedding(marks, self.tokens) + self.gap(self._features(gaps))
        moments = []
        for i, layer in enumerate(self._stack()):
            x, moment = layer(
                x, gaps, before and before.layer(i), noise, dense=self._settings["form"] == "dense"
            )
            moments.append(moment)
        return self.context(self.norm(x)), *(
            torch.stack(parts, 2) for parts in zip(*moments, strict=True)
        )

    def _stack(self) -> Iterator[DeepLayer]:
        return (cast(DeepLayer, layer) for layer in self.layers)

    def _queries(
        self, history: DeepHistory, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None
    ) -> Float[Tensor, "B G Q H"]:
        """q at every time."""
        at = history.at(seen)
        lag = self._in_mean_gaps(times - at.times[..., None])
        parts = [
            side_by_side(layer.moved(at.layer(i), lag)) for i, layer in enumerate(self._stack())
        ]
        before = (
            self.read(torch.cat(parts, -1))
            + at.summary[:, :, None]
            + self.since(self._features(lag))
        )
        return self._answered(before, self._noise(times.device, 1))

    def _answered(
        self, before: Float[Tensor, "B G Q H"], noise: Noise | None
    ) -> Float[Tensor, "B G Q H"]:
        """q from the sum inside its first gelu."""
        q = gelu(before)
        inner = gelu(self.up(self.query_norm(q)))
        one_for_all = (
            *inner.shape[:2],
            1,
            inner.shape[3],
        )  # all times of a gap, so that the rate stays smooth in between
        return q + self.down(
            inner if noise is None else noise.drop(inner, noise.dropout, one_for_all)
        )

    def _log_rate(self, q: Float[Tensor, "*S H"]) -> Float[Tensor, "*S"]:
        """log s + log log(1 + e^z), per unit of the user's time."""
        return self._log_softplus(linear(q, self.rate.weight, self.rate.bias)[..., 0])

    def _log_softplus(self, z: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return log_softplus(z) + self.log_scale - self.time_scale.log().to(z)

    def _rate_model(self) -> RateModel:
        """What the kernel of the total rate is given of the model."""
        layers = list(self._stack())
        read = self.read.weight.T  # real and imaginary parts in turn
        rate = self.rate.weight[0]
        up = self.down.weight.T @ rate
        shared = rate @ self.down.bias
        return RateModel(
            decay=_array(torch.cat([layer.decay for layer in layers])),
            frequency=_array(torch.cat([layer.frequency for layer in layers])),
            read=_array(torch.cat([read[::2], read[1::2], self.since.weight.T])),
            scales=_array(self.scales),
            reach=np.float32(REACH * float(self.scales[-1])),
            norm=_array(torch.stack([self.query_norm.weight, self.query_norm.bias])),
            norm_eps=np.float32(self.query_norm.eps),
            up=_array(self.up.weight.T),
            up_bias=_array(self.up.bias),
            rate=_array(rate),
            rate_up=_array(up),
            rate_bias=np.float32(float(self.rate.bias[0] + shared)),
        )

    def _log_shares(
        self,
        q: Float[Tensor, "*S H"],
        marks: Int[Tensor, "*S"],
        logits: Float[Tensor, "*S M"] | None = None,
    ) -> Float[Tensor, "*S"]:
        """log of each mark's share of the rate. Marks are summed over in pieces of events, so that
        memory does not grow with events times marks; with ``logits`` of the calendar it does.
        """
        if logits is not None:
            shares = (self.share(q) + logits).flatten(0, -2)
            return -cross_entropy(shares, marks.flatten(), reduction="none").view(marks.shape)
        rows = max(1, PIECE // self.marks.count)
        flat = q.flatten(0, -2)
        pieces = zip(flat.split(rows), marks.flatten().split(rows), strict=True)
        if len(flat) <= rows or not torch.is_grad_enabled():
            return torch.cat([q.new_zeros(0), *(self._log_share(*piece) for piece in pieces)]).view(
                marks.shape
            )
        again = (
            checkpoint(self._log_share, *piece, use_reentrant=False, preserve_rng_state=False)
            for piece in pieces
        )
        return torch.cat(list(again)).view(marks.shape)

    def _log_share(self, q: Float[Tensor, "R H"], marks: Int[Tensor, " R"]) -> Float[Tensor, " R"]:
        return -cross_entropy(self.share(q), marks, reduction="none")

    def _features(self, gaps: Float[Tensor, "*S"]) -> Float[Tensor, "*S K"]:
        return features(gaps, self.scales, self._settings["sinusoids"])

    def _in_mean_gaps(self, gaps: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return (gaps / self.time_scale).clamp(max=FARTHEST).to(self.tokens)

    def _noise(self, device: torch.device, more: int = 0) -> Noise | None:
        """What is dropped in this pass; the same draw for the same batch, and another one for its
        queries (``more`` = 1).
        """
        dropout = self._settings["dropout"]
        event_dropout = self._settings["event_dropout"]
        if not self.training or not (dropout or event_dropout or self._settings["mark_dropout"]):
            return None
        return Noise(
            dropout,
            event_dropout,
            self._random or torch.Generator(device).manual_seed(self._draw + more),
        )

    def _hidden(self, marks: Int[Tensor, "B N"], noise: Noise | None) -> Int[Tensor, "B N"]:
        """Marks, some of them replaced by one that says nothing."""
        share = self._settings["mark_dropout"]
        if noise is None or share == 0:
            return marks
        hide = torch.rand(marks.shape, device=marks.device, generator=noise.random) < share
        return torch.where(hide, self.marks.count + 1, marks)


def _array(x: Tensor) -> NDArray[np.float32]:
    return x.detach().contiguous().numpy()


def _positions(history: DeepHistory, bias: Float[Tensor, " H"]) -> Positions:
    """All positions of a history, for the kernel of the total rate; ``bias`` is that of the
    read-out.
    """
    states = history.state.flatten(2).flatten(0, 1)
    return Positions(
        real=_array(states.real),
        imaginary=_array(states.imag),
        pace=_array(history.pace.flatten(2).flatten(0, 1)),
        summary=_array(history.summary.flatten(0, 1) + bias),
    )


def _check(
    layers: int,
    width: int,
    modes: int,
    rhythms: int,
    sinusoids: int,
    dropout: float,
    event_dropout: float,
    mark_dropout: float,
    form: str,
) -> None:
    if min(layers, width, modes) < 1 or min(rhythms, sinusoids) < 0:
        received = (
            f"layers={layers}, width={width}, modes={modes}, rhythms={rhythms}, "
            f"sinusoids={sinusoids}"
        )
        wanted = "layers, width and modes of at least 1, rhythms and sinusoids of at least 0"
        raise UserError(wanted, received, "Use layers=2, width=64, modes=32, say.")
    if not all(0 <= share < 1 for share in (dropout, event_dropout, mark_dropout)):
        received = f"dropout={dropout}, event_dropout={event_dropout}, mark_dropout={mark_dropout}"
        raise UserError(
            "dropout, event_dropout and mark_dropout from 0 to below 1",
            received,
            "Pass shares such as 0.1.",
        )
    if form not in ("scan", "dense"):
        raise UserError("form 'scan' or 'dense'", f"{form!r}", "Choose one of the two.")
