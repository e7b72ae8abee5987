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

TIMES = 6  # times s_k that gaps are compared with
TURNS = 4  # of the fastest rhythm in one piece of an integral
NODES_PER_HALF_TURN = 1.65  # of the fastest sinusoid of log-time, in a rule for a whole gap
MOST_CUTS = 1024  # of a window
PIECE = 2**24  # numbers held at once, per mark and event
CYCLES = (5.0, 1.0)  # of the modes that show the time since the start, in a window
SEVERAL = 20  # sequences: in fewer, what belongs to a time since the start cannot be told
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

    @with_former_names("deep-dapp")
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
        # The buffer `tick` as it was read last.
        self._known: tuple[Tensor | None, int, float] = (None, 0, 0.0)
        M = self.marks.count
        K = TIMES + 2 * sinusoids
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.ModuleList(DeepLayer(width, modes, gated=gated) for _ in range(layers))
            # The marks, the start and a mark that is hidden.
            self.tokens = nn.Parameter(torch.randn(M + 2, width))
            self.gap = nn.Linear(K, width)
            self.norm = Norm(width)
            self.context = nn.Linear(width, width)
            self.read = nn.Linear(2 * modes * layers, width)
            self.since = nn.Linear(K, width, bias=False)
            self.query_norm = Norm(width)
            self.up = nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, width)
            self.rate = nn.Linear(width, 1)
            self.share = nn.Linear(width, M)
        self.log_scale = nn.Parameter(torch.zeros(()))
        gain = math.sqrt(K / TIMES)
        with torch.no_grad():
            for head in (self.rate, self.share):
                head.weight.mul_(0.1)
                head.bias.zero_()
            # As if there were no sinusoids, whose weights begin at 0.
            for part in (self.gap, self.since):
                part.weight.mul_(gain)
                part.weight[:, TIMES:] = 0
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
        found = []
        for name, parameter in self.named_parameters():
            if name in wanted and parameter.requires_grad:
                found.append(name)
        return tuple(sorted(found, key=wanted.index))

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    @torch.no_grad()
    def initialise(self, data: Dataset) -> list[str]:
        """Take time scales, rhythms and mean rates from the data.

        Two slow modes show the time since the start of the window, with which rates may change.
        """
        scale = time_scale_of(data)
        gaps = data.gaps[data.gaps > 0]
        window = float(np.mean(data.durations))
        longest = max(window, 4 * scale)
        shortest = scale / 10
        if len(gaps):
            shortest = float(np.quantile(gaps, SHORTEST))
        shortest = min(shortest, scale / 4)
        # Gaps below the rounding of the times are ties.
        rounding = np.finfo(np.float64).eps * scale
        shortest = max(shortest, rounding)
        rhythms = peaks(data.times, data.offsets, most=self._settings["rhythms"])
        period = math.inf
        if len(rhythms):
            period = 2 * math.pi / max(rhythms)
        low = math.log10(shortest / scale)
        high = math.log10(longest / scale)
        self.time_scale.fill_(scale)
        self.fastest.fill_(period)
        self.scales.copy_(torch.logspace(low, high, TIMES))
        given = np.concatenate([rhythms, _of_the_window(data, longest)])
        frequencies = torch.from_numpy(given * scale)
        slowest = scale / longest
        fastest = scale / shortest
        for layer in self._stack():
            layer.spread(slowest, fastest, frequencies)
        rates = mean_rates(data, self.marks) * scale
        total = rates.sum()
        self.log_scale.fill_(math.log(fastest))
        relative = total / self.log_scale.exp()
        shares = rates / total
        self.rate.bias.copy_(relative.expm1().log())
        self.share.bias.copy_(shares.log())
        unit = data.unit or "time units"
        said = [
            f"time scale: {scale:.4g} {unit} (the mean gap), modes from {shortest:.4g} to "
            f"{longest:.4g}"
        ]
        if len(rhythms):
            periods = ", ".join(f"{2 * np.pi / w:.4g}" for w in rhythms)
            said.append(f"periods found in the data, with separate modes: {periods} {unit}")
        self.tick.fill_(coarse_resolution(gaps))
        return said

    def redraw(self, random: torch.Generator) -> None:
        """Choose anew what is dropped in the next batch; a source on a CUDA device is drawn from in
        every pass instead.
        """
        self._random = None
        if random.device.type == "cuda":
            self._random = random
        else:
            self._draw = int(torch.randint(2**62, (), generator=random))

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
            start = batch.start
            first = start[:, None]
            begin = marks.new_full(first.shape, self.marks.count)
            marks = torch.cat([begin, marks], 1)
            times = torch.cat([first, batch.times], 1)
            gaps = times.diff(dim=1, prepend=first)
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
        if active is None:
            active = torch.ones_like(mark, dtype=torch.bool)
        happened = active[:, None]
        old = history.latest()
        times = torch.where(happened, time[:, None], old.times)
        gap = self._in_mean_gaps(times - old.times)
        new = self._run(mark[:, None], gap, old, self._noise(time.device))
        summary, state, pace = new
        wide = happened[..., None]
        widest = wide[..., None]
        return DeepHistory(
            times,
            old.start,
            torch.zeros_like(old.lengths),
            summary=torch.where(wide, summary, old.summary),
            state=torch.where(widest, state, old.state),
            pace=torch.where(widest, pace, old.pace),
            context=old.context,
        )

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
        scores = self.share(q)
        logits = self._logits(history, times)
        if logits is not None:
            scores = scores + logits
        log_shares = scores.log_softmax(-1)
        return total[..., None] + log_shares

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
            positions = _positions(at, self.read.bias)
            found = arguments(self._rate_model(), positions, lags.numpy())
            scores = torch.from_numpy(found).view(times.shape)
            total = self._log_softplus(scores)
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
        number = torch.arange(times.shape[1], device=times.device)
        seen = number.expand_as(times)
        asked = times[..., None]
        q = self._queries(history, asked, seen)[:, :, 0]
        logits = self._logits(history, times)
        shares = self._log_shares(q, batch.marks, logits)
        total = self._log_rate(q) + self._log_factor(history, times)
        return total + shares

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
        at_events = ends[:, :-1]
        logits = self._logits(history, at_events)
        q_at_events = q[:, :-1, -1]
        shares = self._log_shares(q_at_events, batch.marks, logits)
        total = logs[:, :-1, -1]
        own = total + shares
        rates = logs[:, :, :-1].exp()
        mean = weighted_mean(rates, weights)
        gaps = ends - batch.edges[:, :-1]
        return own, mean * gaps.to(mean)

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
            _, features = self.since.weight.shape
            return 2 * features
        settings = self._settings
        modes = settings["modes"] * settings["layers"]
        return 2 * max(settings["width"], modes)

    def extent(self) -> tuple[float, float]:
        """The shortest and the longest time that the read-out can tell apart, in the user's
        unit.
        """
        unit = float(self.time_scale)
        shortest = float(self.scales[0])
        longest = float(self.scales[-1])
        return unit * shortest, unit * REACH * longest

    def log_time_rule(self) -> LogTimeRule | None:
        """Nodes for the fastest sinusoid of log-time; None without any or with narrow peaks."""
        sinusoids = self._settings["sinusoids"]
        if not sinusoids or self.narrow or self.effects is not None:
            return None
        octaves = sinusoids - 1
        density = NODES_PER_HALF_TURN * 2**octaves
        shortest, _ = self.extent()
        longest = float(TURNS * self.fastest)
        return LogTimeRule(shortest, density, longest)

    def longest_panel(self, elapsed: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """How much of the time after ``elapsed`` 16 nodes may cover: the Fourier features of
        log-time turn several times while the elapsed time grows fourfold.
        """
        longest = super().longest_panel(elapsed)
        if not self._settings["sinusoids"]:
            return longest
        shortest, _ = self.extent()
        panel = PANEL * (elapsed + shortest)
        return torch.minimum(longest, panel)

    def cuts(self, history: DeepHistory) -> Float[Tensor, "B E"] | None:
        """Where integrals are cut: at parts of the elapsed time, where there are sinusoids of it or
        narrow peaks, and so that no piece holds many turns of the data's fastest rhythm; None
        without any.
        """
        peaks = None
        if self._settings["sinusoids"] or self.narrow:
            peaks = super().cuts(history)
        if not bool(self.fastest.isfinite()):
            return peaks
        first = history.times[:, :1]
        last = history.times.amax(1, keepdim=True)
        span = 1.25 * (last - first)
        piece = TURNS * self.fastest
        pieces = int(span.max() / piece)
        count = min(MOST_CUTS, pieces + 1)
        number = torch.arange(1, count + 1, device=span.device)
        turns = first + span * number / count
        if peaks is None:
            return turns
        return torch.cat([peaks, turns], 1)

    @torch.no_grad()
    def mode_effects(self, history: DeepHistory, time: float) -> list[dict[str, Any]]:
        """What the total rate at ``time``, seen from the last position of one sequence, would lose
        without each mode's state.

        One entry per mode: its layer (from 1), how long it takes to fade to a half and to turn once
        at its present pace (infinite where it
        does not), both in the user's unit, and the effect in events per unit of time.
        """
        at = history.latest()
        lag = self._in_mean_gaps(time - at.times[..., None])
        parts = self._moved(at, lag)[0, 0, 0]
        since = self.since(self._features(lag))[0, 0, 0]
        whole = self.read(parts) + at.summary[0, 0] + since
        # Of each mode, its real and imaginary part together.
        numbers = self.read.weight * parts
        added = numbers.unflatten(1, (-1, 2)).sum(2).T
        without = whole - added
        asked = torch.cat([whole[None], without])
        q = self._answered(asked[None, None], None)
        rates = self._log_rate(q).exp()[0, 0]
        losses = rates[0] - rates[1:]
        span = float(self.time_scale)
        by_layer = losses.chunk(len(self.layers))
        found = []
        for i, layer in enumerate(self._stack()):
            pace = at.pace[0, 0, i]
            fade = layer.decay * pace
            turn = layer.frequency * pace
            half_lives = math.log(2) / fade
            periods = 2 * math.pi / turn.abs()
            for half_life, period, effect in zip(half_lives, periods, by_layer[i], strict=True):
                mode = dict(
                    layer=i + 1,
                    half_life=half_life.item() * span,
                    period=period.item() * span,
                    effect=effect.item(),
                )
                found.append(mode)
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
        dense = self._settings["form"] == "dense"
        tokens = embedding(marks, self.tokens)
        x = tokens + self.gap(self._features(gaps))
        moments = []
        for i, layer in enumerate(self._stack()):
            known = before and before.layer(i)
            x, moment = layer(x, gaps, known, noise, dense=dense)
            moments.append(moment)
        summary = self.context(self.norm(x))
        by_layer = [torch.stack(parts, 2) for parts in zip(*moments, strict=True)]
        return summary, *by_layer

    def _stack(self) -> Iterator[DeepLayer]:
        return (cast(DeepLayer, layer) for layer in self.layers)

    def _queries(
        self, history: DeepHistory, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None
    ) -> Float[Tensor, "B G Q H"]:
        """q at every time."""
        at = history.at(seen)
        lag = self._in_mean_gaps(times - at.times[..., None])
        states = self.read(self._moved(at, lag))
        since = self.since(self._features(lag))
        summary = at.summary[:, :, None]
        before = states + summary + since
        noise = self._noise(times.device, 1)
        return self._answered(before, noise)

    def _moved(self, at: DeepHistory, lag: Float[Tensor, "B G Q"]) -> Float[Tensor, "B G Q R"]:
        """The states of all layers after the time ``lag`` without an event."""
        parts = []
        for i, layer in enumerate(self._stack()):
            moved = layer.moved(at.layer(i), lag)
            parts.append(side_by_side(moved))
        return torch.cat(parts, -1)

    def _answered(
        self, before: Float[Tensor, "B G Q H"], noise: Noise | None
    ) -> Float[Tensor, "B G Q H"]:
        """q from the sum inside its first gelu."""
        q = gelu(before)
        inner = gelu(self.up(self.query_norm(q)))
        if noise is not None:
            # One for all times of a gap, so that the rate stays smooth in between.
            rows, positions, _, width = inner.shape
            inner = noise.drop(inner, noise.dropout, (rows, positions, 1, width))
        return q + self.down(inner)

    def _log_rate(self, q: Float[Tensor, "*S H"]) -> Float[Tensor, "*S"]:
        """log s + log log(1 + e^z), per unit of the user's time."""
        score = linear(q, self.rate.weight, self.rate.bias)
        return self._log_softplus(score[..., 0])

    def _log_softplus(self, z: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        log_unit = self.time_scale.log().to(z)
        return log_softplus(z) + self.log_scale - log_unit

    def _rate_model(self) -> RateModel:
        """What the kernel of the total rate is given of the model."""
        layers = list(self._stack())
        read = self.read.weight.T  # real and imaginary parts in turn
        rate = self.rate.weight[0]
        up = self.down.weight.T @ rate
        shared = rate @ self.down.bias
        rate_bias = float(self.rate.bias[0] + shared)
        decay = torch.cat([layer.decay for layer in layers])
        frequency = torch.cat([layer.frequency for layer in layers])
        norm = self.query_norm
        longest = float(self.scales[-1])
        return RateModel(
            decay=_array(decay),
            frequency=_array(frequency),
            read=_array(torch.cat([read[::2], read[1::2], self.since.weight.T])),
            scales=_array(self.scales),
            reach=np.float32(REACH * longest),
            norm=_array(torch.stack([norm.weight, norm.bias])),
            norm_eps=np.float32(norm.eps),
            up=_array(self.up.weight.T),
            up_bias=_array(self.up.bias),
            rate=_array(rate),
            rate_up=_array(up),
            rate_bias=np.float32(rate_bias),
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
        flat_marks = marks.flatten()
        if logits is not None:
            scores = self.share(q) + logits
            scores = scores.flatten(0, -2)
            losses = cross_entropy(scores, flat_marks, reduction="none")
            return -losses.view(marks.shape)
        rows = max(1, PIECE // self.marks.count)
        flat = q.flatten(0, -2)
        again = len(flat) > rows and torch.is_grad_enabled()
        found = [q.new_zeros(0)]
        for piece in zip(flat.split(rows), flat_marks.split(rows), strict=True):
            if again:
                logs = checkpoint(
                    self._log_share, *piece, use_reentrant=False, preserve_rng_state=False
                )
            else:
                logs = self._log_share(*piece)
            found.append(logs)
        return torch.cat(found).view(marks.shape)

    def _log_share(self, q: Float[Tensor, "R H"], marks: Int[Tensor, " R"]) -> Float[Tensor, " R"]:
        scores = self.share(q)
        return -cross_entropy(scores, marks, reduction="none")

    def _features(self, gaps: Float[Tensor, "*S"]) -> Float[Tensor, "*S K"]:
        return features(gaps, self.scales, self._settings["sinusoids"])

    def _in_mean_gaps(self, gaps: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        in_mean_gaps = gaps / self.time_scale
        return in_mean_gaps.clamp(max=FARTHEST).to(self.tokens)

    def _noise(self, device: torch.device, more: int = 0) -> Noise | None:
        """What is dropped in this pass; the same draw for the same batch, and another one for its
        queries (``more`` = 1).
        """
        dropout = self._settings["dropout"]
        event_dropout = self._settings["event_dropout"]
        mark_dropout = self._settings["mark_dropout"]
        drops = dropout or event_dropout or mark_dropout
        if not self.training or not drops:
            return None
        random = self._random
        if random is None:
            seed = self._draw + more
            random = torch.Generator(device).manual_seed(seed)
        return Noise(dropout, event_dropout, random)

    def _hidden(self, marks: Int[Tensor, "B N"], noise: Noise | None) -> Int[Tensor, "B N"]:
        """Marks, some of them replaced by one that says nothing."""
        share = self._settings["mark_dropout"]
        if noise is None or share == 0:
            return marks
        level = torch.rand(marks.shape, device=marks.device, generator=noise.random)
        hidden = self.marks.count + 1
        return torch.where(level < share, hidden, marks)


def _array(x: Tensor) -> NDArray[np.float32]:
    return x.detach().contiguous().numpy()


def _positions(history: DeepHistory, bias: Float[Tensor, " H"]) -> Positions:
    """All positions of a history, for the kernel of the total rate; ``bias`` is that of the
    read-out.
    """
    states = history.state.flatten(2).flatten(0, 1)
    paces = history.pace.flatten(2).flatten(0, 1)
    summaries = history.summary.flatten(0, 1)
    return Positions(
        real=_array(states.real),
        imaginary=_array(states.imag),
        pace=_array(paces),
        summary=_array(summaries + bias),
    )


def _of_the_window(data: Dataset, window: float) -> NDArray[np.float64]:
    """Angular frequencies of slow modes, which begin with the window of every sequence."""
    if len(data) < SEVERAL:
        return np.zeros(0)
    return 2 * np.pi * np.array(CYCLES) / window


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
    shares = (dropout, event_dropout, mark_dropout)
    if not all(0 <= share < 1 for share in shares):
        received = f"dropout={dropout}, event_dropout={event_dropout}, mark_dropout={mark_dropout}"
        raise UserError(
            "dropout, event_dropout and mark_dropout from 0 to below 1",
            received,
            "Pass shares such as 0.1.",
        )
    if form not in ("scan", "dense"):
        raise UserError("form 'scan' or 'dense'", f"{form!r}", "Choose one of the two.")
