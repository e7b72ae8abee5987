r"""DAPP, the deep attention point process: a rate driven by attention to past events through a
learned Fourier kernel.

For an event x = (t, m) and heads k = 1..K,

    A_k(x)      = sum_i weight_k(x, x_i) v_ki                 attention to the past, `ops.attention`
    lambda(x)  = mu_m(t) + g(b_m + drift_m(t) + sum_k r_km A_k(x))  equation (5),
        t counted from the window's start

with the kernel of `ops.fourier` as score. :meth:`DAPP.paper` is the paper's model to the letter:
two heads, weights that sum to 1 (softmax), values linear in (t, m), softplus, a constant mu, random
phases. The plain :class:`DAPP` differs where measuring said so. Its weights are not normalised,
since a mean cannot count events and a sum can: an exponential Hawkes process and a self-correcting
one are then both inside the family. Its values are one constant per mark, the softplus has a
learned scale, so that events may add to the rate or multiply it (`models.rate`), there is a drift
in time inside it, and modes may decay (`models.modes`), which keeps a stream's state bounded.

Source: Zhu, Zhang, Ding and Xie, "Deep Fourier kernel for self-attentive point processes" (2021).

The choices a DAPP leaves open, and which of them contradict each other.

With bounded memory (ODAPP) each head keeps the events that `ops.selection` chooses. In a batch
every
position sees its own active sets: a mask over the events for dense forms, and for linear ones
states
from which each dropped event is subtracted at the moment it is dropped, so that training costs no
more than DAPP's. A stream holds the active sets alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint import kernels
from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.events.draws import rows_of_all
from fourpoint.kernels.path_terms import Wanted
from fourpoint.models.base import (
    Gradients,
    PointProcess,
    ScoredGaps,
    position_before,
    space_without_places,
    which_happened,
)
from fourpoint.models.baseline import BaselineValues, parted
from fourpoint.models.dapp_gradients import Values, sampled_gradients
from fourpoint.models.dapp_history import DAPPHistory, Parts, last_state, require, spectrum_of
from fourpoint.models.dapp_scoring import scored_gaps
from fourpoint.models.dapp_start import embedded, initialise
from fourpoint.models.modes import Modes, PairScore
from fourpoint.models.past import Memory, Past, appended, blank, joined, memory_of, past_of
from fourpoint.models.path_counts import Modes as PathModes, dapp_counts, dapp_events
from fourpoint.models.rate import Rate
from fourpoint.ops import attention, bounds, fourier, selection
from fourpoint.ops.fourier import ACTIVATIONS
from fourpoint.ops.lookup import looked_up
from fourpoint.ops.quadrature import uniform
from fourpoint.ops.scores import Projection, scores


class DAPP(PointProcess[DAPPHistory]):
    """Deep attention point process.

    Args:
        marks: the mark space of the data (`data.marks`), a number of types, or None.
        heads: K, the number of attention heads.
        features: D, modes drawn from the spectrum for every minibatch in training.
        eval_features: modes of the one set used for evaluation, sampling and streams; None picks
            the smallest of 128 to 1,024 that keeps each past event's effect inside the link within
            .005, after training.
        normalise: "none" (a sum), "ratio" or "softmax" (weights that sum to 1).
        phase: "paired" (cosine and sine) or "random", as in the paper's (7); random needs the dense
            form.
        values: "mark" (a constant per mark), "linear" in (t, m) as in the paper, or "affine".
        score: "fourier" (the learned spectrum), "dot" (a product of projected events) or "neural"
            (a network on them).
        keep: eta, the number of past events that each head remembers (ODAPP, `ops.selection`), or a
            share of the longest training sequence such as .5; None for all events.
        link: "exp", "softplus" (with a learned scale) or "identity" (everything non-negative: a
            Hawkes process).
        base: mu, "constant" per mark, "spline" in time, or "auto": a spline where all windows have
            one length.
        drift: the same for the term inside the link: "spline", "none" or "auto".
        decay: whether modes may decay.
        generator: widths of the hidden layers of the networks that generate the spectrum.
        noise, embedding: q and r, the dimensions of the noise and of the key embedding W_u x.
        width: p, the dimension of the value embedding; it costs nothing at run time.
        knots: intervals of the splines.
        form: "scan" (linear), "dense", or "auto": scan wherever it exists.
        draw: "even" (a shifted Sobol set) or "independent" noise.
        seed: of the initial weights.

    Raises :class:`UserError` if a value is unknown or two values contradict each other.

    >>> from fourpoint.events import Sequence
    >>> model = DAPP(features=8, eval_features=64).eval()
    >>> batch = Sequence([0.2, 0.5], start=0.0, stop=1.0).batch()
    >>> tuple(
    ...     model.intensity(
    ...         model.encode(batch), torch.tensor([[0.1, 0.3, 0.9]], dtype=torch.float64)
    ...     ).shape
    ... )
    (1, 3, 1)
    """

    has_attention = True
    scored_by_kernels = True

    time_scale: Tensor
    gain: Tensor

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        heads: int = 4,
        features: int = 32,
        eval_features: int | None = None,
        normalise: Literal["none", "ratio", "softmax"] = "none",
        phase: Literal["paired", "random"] = "paired",
        values: Literal["mark", "affine", "linear"] = "mark",
        score: Literal["fourier", "dot", "neural"] = "fourier",
        keep: int | float | None = None,
        link: Literal["exp", "softplus", "identity"] = "softplus",
        learn_scale: bool = True,
        base: Literal["auto", "constant", "spline"] = "auto",
        drift: Literal["auto", "none", "spline"] = "auto",
        decay: bool = True,
        generator: Sequence[int] = (64, 64),
        noise: int = 1,
        embedding: int | None = None,
        width: int = 1,
        knots: int = 12,
        activation: str = "tanh",
        form: Literal["auto", "dense", "scan"] = "auto",
        draw: Literal["even", "independent"] = "even",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.marks = space_without_places(marks, "dapp")
        M = self.marks.count
        embedding = embedding or (2 if M == 1 else 8)
        drift = "none" if link == "identity" and drift == "auto" else drift
        self.options: dict[str, Any] = dict(
            heads=heads,
            features=features,
            eval_features=eval_features,
            normalise=normalise,
            phase=phase,
            values=values,
            score=score,
            keep=keep,
            link=link,
            learn_scale=learn_scale,
            base=base,
            drift=drift,
            decay=decay,
            generator=tuple(generator),
            noise=noise,
            embedding=embedding,
            width=width,
            knots=knots,
            activation=activation,
            form=form,
            draw=draw,
            seed=seed,
        )
        check_choices(self.options)
        random = torch.Generator().manual_seed(seed)
        self.modes: Modes | PairScore
        if score == "fourier":
            self.modes = Modes(
                heads,
                M,
                features=features,
                stored=eval_features or SIZES[0],
                noise=noise,
                embedding=embedding,
                generator=generator,
                activation=activation,
                decay=decay,
                random_phase=phase == "random",
                even=draw == "even",
                seed=seed,
            )
        else:
            self.modes = PairScore(
                score,
                heads,
                M,
                embedding=embedding,
                generator=generator,
                activation=activation,
                seed=seed,
            )
        self.rate = Rate(M, link=link, learn_scale=learn_scale, base=base, drift=drift, knots=knots)
        inputs = {"mark": M, "affine": M + 1, "linear": 1 + (M if M > 1 else 0)}[values]
        self.value_weight = nn.Parameter(
            torch.randn(heads, width, inputs, generator=random) / math.sqrt(width)
        )
        self.value_readout = nn.Parameter(torch.ones(heads, width), requires_grad=width > 1)
        self.readout = nn.Parameter(torch.ones(heads, M), requires_grad=M > 1)
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("gain", torch.ones(heads))

    @staticmethod
    def paper(
        marks: MarkSpace | int | None = None,
        *,
        heads: int = 2,
        features: int = 20,
        eval_features: int = 10_000,
        normalise: Literal["ratio", "softmax"] = "softmax",
        score: Literal["fourier", "dot", "neural"] = "fourier",
        keep: int | float | None = None,
        generator: Sequence[int] = (128, 256, 128),
        noise: int = 2,
        embedding: int = 2,
        width: int = 8,
        seed: int = 0,
    ) -> DAPP:
        """The paper's model: softmax weights, linear values, softplus, constant mu, random phases,
        no decay, no drift.

        ``normalise="ratio"`` reads (3) as printed; it needs paired phases, which are then used.
        ``score`` and ``keep`` give the ablations and the online forms of the paper's Table 1, which
        keeps half of the longest sequence.

        >>> DAPP.paper().settings()["phase"], DAPP.paper().settings()["features"]
        ('random', 20)
        """
        return DAPP(
            marks,
            heads=heads,
            features=features,
            eval_features=eval_features,
            normalise=normalise,
            score=score,
            keep=keep,
            values="linear",
            link="softplus",
            learn_scale=False,
            base="constant",
            drift="none",
            phase="random" if normalise == "softmax" and score == "fourier" else "paired",
            decay=False,
            generator=generator,
            noise=noise,
            embedding=embedding,
            width=width,
            draw="independent",
            seed=seed,
        )

    @property
    def scannable(self) -> bool:
        """Whether the sum has a linear form, and the dense one was not asked for."""
        s = self.options
        return (
            s["form"] != "dense"
            and s["normalise"] != "softmax"
            and s["phase"] == "paired"
            and s["score"] == "fourier"
        )

    @property
    def scanned(self) -> bool:
        """Whether the states of the modes are all that is remembered."""
        return self.scannable and self.options["keep"] is None

    @property
    def linear(self) -> bool:
        """Whether a history can be gone on from in constant memory: the linear forms, and bounded
        memories.
        """
        return self.scanned or self.options["keep"] is not None

    @property
    def rounded_products(self) -> bool:
        """Whether training on a CUDA device may round what is multiplied: a network on all pairs is
        all products.
        """
        return self.options["score"] == "neural"

    def keeping(self, keep: int) -> DAPP:
        """The same model, weights shared, remembering at most ``keep`` events per head.

        >>> DAPP(features=8).keeping(100).settings()["keep"]
        100
        """
        other = copy.copy(self)
        other.options = {
            **self.options,
            "keep": keep,
            "form": "auto" if self.options["form"] == "scan" else self.options["form"],
        }
        check_choices(other.options)
        return other

    @property
    def laplace_parameters(self) -> tuple[str, ...]:
        """Values and readout of the heads, decays, level and scale of the rate, and the curves of
        time that are not flat. The network that generates the spectrum is taken as known.
        """
        wanted = ["value_weight", "readout", "modes.log_decay", "rate.baseline.bias"]
        wanted += ["rate.log_scale", "effects.weight"]
        own = dict(self.named_parameters())
        for name in ("rate.baseline.log_base", "rate.baseline.drift", "rate.baseline.mark_drift"):
            curve = own.get(name)
            if curve is not None and bool((curve != curve[..., :1]).any()):
                wanted.append(name)
        return tuple(name for name in wanted if name in own and own[name].requires_grad)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``, as JSON can hold them."""
        size = self.options["eval_features"]
        if size is not None and isinstance(self.modes, Modes):
            size = self.modes.noise.shape[1]
        return {
            **self.options,
            "generator": list(self.options["generator"]),
            "eval_features": size,
        }

    # ------------------------------------------------------------------ what comes from the data

    def initialise(self, data: Dataset) -> list[str]:
        """Time scale, base rates and the spread of frequencies from ``data``; drift and base where
        left to it (`models.dapp_start`).
        """
        return initialise(self, data)

    def embedded(self, closed_form: PointProcess) -> dict[str, Tensor] | None:
        """Weights with which this model is nearly the given Poisson or Hawkes process; None if
        there are none.
        """
        return embedded(self, closed_form)

    # ------------------------------------------------------------------ the spectrum

    def redraw(self, random: torch.Generator) -> None:
        """Draw the modes of the next minibatch."""
        self.modes.redraw(random)

    def spectrum(self, *, fixed: bool = False) -> fourier.Spectrum:
        """The modes now in use: the last ones drawn while training, else (or where ``fixed``) the
        evaluation's one set.
        """
        if not isinstance(self.modes, Modes):
            raise UserError(
                "a Fourier score",
                f"score={self.options['score']!r}, which has no spectrum",
                "Use score='fourier'.",
            )
        modes = self.modes(fixed=fixed)
        if self.options["normalise"] == "ratio":
            return fourier.with_constant(modes)
        return fourier.non_negative(modes) if self.options["link"] == "identity" else modes

    def _parts(self) -> Parts:
        return Parts(
            self.spectrum() if isinstance(self.modes, Modes) else self.modes(),
            self.rate.baseline.curves(),
        )

    def kernel(
        self, lags: Float[Tensor, " L"], mark: int = 0, past_mark: int = 0
    ) -> Float[Tensor, "K L"]:
        """The score kappa_k at ``lags`` in the user's unit, per head."""
        return fourier.kernel(
            self.spectrum(), (lags / self.time_scale).to(self.readout), mark, past_mark
        )

    def draw_training_features(self) -> None:
        """Use few features for the validations of a training run; :meth:`fix_features` ends
        that.
        """
        self.modes.store(min(self.options["eval_features"] or SIZES[0], SIZES[0]))

    def fix_features(self, features: int | None = None) -> list[str]:
        """Fix the evaluation's features: ``features``, or those asked for when the model was made,
        or as few as are enough (`models.dapp`).
        """
        notes = settle(self, features)
        if self.event_features is not None:
            notes += [
                f"one unit more of {name} multiplies what an event adds by {ratio:.3g}"
                for name, ratio in self.event_features.per_unit().items()
            ]
        return notes

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: DAPPHistory | None = None) -> DAPPHistory:
        """States after every event of the batch (linear forms), with the events kept for the dense
        form.
        """
        if before is not None and not self.linear:
            raise UserError(
                "a linear form to go on from a history",
                f"normalise={self.options['normalise']!r}",
                "Encode the whole sequence.",
            )
        parts = self._parts() if before is None else before.parts
        start = batch.start if before is None else before.start
        anchor = batch.start[:, None] if before is None else before.times[:, -1:]
        times = torch.cat([anchor, batch.times], 1)
        values = self.event_values(self.elapsed(batch.times, start), batch.marks)
        factors = self.event_factors(batch)
        if factors is not None:
            values = values * factors[..., None].to(values)
        past = past_of(batch.times, batch.marks, values)
        context = self.known_context(batch, before)
        history = DAPPHistory(times, start, batch.lengths, parts, None, past, context=context)
        if self.options["keep"] is not None:
            return select(self, history, batch, None if before is None else require(before.memory))
        if not self.scanned or (before is None and self._at_once(batch)):
            return history
        driven = attention.drive(
            spectrum_of(parts), batch.marks, self.channels(values), batch.valid
        )
        return self.scan(history, driven, None if before is None else require(before.state)[:, -1])

    def scan(
        self,
        history: DAPPHistory,
        driven: Complex[Tensor, "B N K D C"],
        before: Complex[Tensor, "B K D C"] | None,
    ) -> DAPPHistory:
        """The history with states at every position, from what each event adds to them."""
        first = driven.new_zeros(len(driven), *driven.shape[2:]) if before is None else before
        rest = attention.scan(
            spectrum_of(history.parts).rate, self._gaps(history.times), driven, before
        )
        return replace(history, state=torch.cat([first[:, None], rest], 1))

    def kept_events(self) -> int:
        keep = self.options["keep"]
        if isinstance(keep, float):
            raise UserError(
                "keep as a number of events",
                f"the share {keep:g} of sequences not yet seen",
                "Fit the model, or pass a number.",
            )
        return int(keep)

    def extend(
        self,
        history: DAPPHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> DAPPHistory:
        """One event more. Linear forms and bounded memories keep the last position only: constant
        memory.
        """
        happened = which_happened(mark, active)
        old_time = history.times.gather(1, history.lengths[:, None])[:, 0]
        time = torch.where(happened, time, old_time)
        value = self.event_values(self.elapsed(time[:, None], history.start), mark[:, None])
        if self.event_features is not None:
            factors = self.event_features.factors_of(mark, features)
            value = value * factors[:, None, None].to(value)
        if not self.linear:
            return self._append(history, time, mark, value[:, 0], happened)
        moved = DAPPHistory(
            time[:, None],
            history.start,
            torch.zeros_like(history.lengths),
            history.parts,
            None,
            None,
            context=history.context,
        )
        if self.options["keep"] is not None:
            memory = admit(self, history, time, mark, value[:, 0], happened)
            return replace(moved, past=memory.past(), memory=memory)
        spectrum = spectrum_of(history.parts)
        driven = attention.drive(spectrum, mark[:, None], self.channels(value), happened[:, None])[
            :, 0
        ]
        gap = ((time - old_time) / self.time_scale).to(self.readout)
        return replace(
            moved, state=attention.step(spectrum.rate, last_state(history), gap, driven)[:, None]
        )

    def _append(
        self, h: DAPPHistory, time: Tensor, mark: Tensor, value: Tensor, happened: Tensor
    ) -> DAPPHistory:
        slot = h.lengths + happened
        if int(slot.max()) < h.times.shape[1]:
            times = h.times
        else:
            times = torch.cat([h.times, h.times[:, -1:]], 1)
        after = torch.arange(times.shape[1], device=time.device) >= slot[:, None]
        times = torch.where(after & (slot > 0)[:, None], torch.maximum(times, time[:, None]), times)
        times = torch.where(
            torch.arange(times.shape[1], device=time.device) == slot[:, None], time[:, None], times
        )
        return replace(
            h,
            times=times,
            lengths=slot,
            past=appended(require(h.past), h.lengths, time, mark, value, happened),
        )

    @torch.no_grad()
    def move(self, history: DAPPHistory, time: Float[Tensor, " B"]) -> DAPPHistory:
        """The last position, its states moved on to ``time`` with no event in between; nothing
        moves in dense forms.
        """
        if not self.scanned:
            return history
        lag = (time - history.times.gather(1, history.lengths[:, None])[:, 0]) / self.time_scale
        state = bounds.moved(spectrum_of(history.parts), last_state(history), lag.to(self.readout))[
            :, None
        ]
        return DAPPHistory(
            time[:, None],
            history.start,
            torch.zeros_like(history.lengths),
            history.parts,
            state,
            None,
            context=history.context,
        )

    @property
    def effect_curves(self) -> int:
        """log mu of every mark, and what is added inside the link for every mark."""
        return 2 * self.marks.count

    @property
    def takes_event_features(self) -> bool:
        """For sums of all past events: their values are multiplied by the factors."""
        return self.options["normalise"] == "none" and self.options["keep"] is None

    def effects_at(
        self, history: DAPPHistory, times: Float[Tensor, "B ..."]
    ) -> BaselineValues | None:
        """The effects of calendar and covariates on both parts of the baseline; None without."""
        if self.effects is None:
            return None
        values = self.effects.values(times, history.context, self.readout.dtype)
        return parted(values, self.marks.count)

    def log_intensity(
        self,
        history: DAPPHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log(mu + g(z)), the logarithm taken before anything can overflow."""
        z = torch.einsum(
            "bgqkm,km->bgqm", self.attend(history, times, seen), self.readout_weights()
        )
        since = times - history.start[:, None, None]
        effects = self.effects_at(history, times)
        logs = self.rate.log_rate(z, since, history.parts.curves, effects=effects)
        return logs - self.time_scale.log().to(z)

    def attend(
        self,
        history: DAPPHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q K M"]:
        """A_k at ``times``, before the read-out."""
        B, G, _ = times.shape
        if history.state is None and self.scanned:
            return self._attend_at_once(history, times)
        if history.state is None:
            index = torch.arange(G, device=times.device).expand(B, G) if seen is None else seen
            past = require(history.past)
            query = self.elapsed(times, history.start)
            events = self.elapsed(past.times, history.start)
            return attention.dense(
                history.parts.score,
                query,
                past.mask(index),
                events,
                past.marks,
                past.values,
                self.options["normalise"],
            )
        anchor = history.times
        state = require(history.state)
        if seen is not None and not state.shape[1] == seen.shape[1] == 1:
            anchor = anchor.gather(1, seen)
            state = state[torch.arange(B, device=times.device)[:, None], seen]
        lag = ((times - anchor[:, :, None]) / self.time_scale).to(self.readout)
        sums = attention.read(spectrum_of(history.parts), state, lag)
        if self.options["normalise"] == "none":
            return sums[..., 0]
        return attention.divide(sums[..., 0], sums[..., 1])

    def gradients(
        self,
        batch: Batch,
        nodes: int,
        random: torch.Generator,
        convention: str,
        share: float,
        unit: int = 8,
    ) -> tuple[float, Gradients] | None:
        """The sum of `likelihood.sampled_log_likelihood`, and the gradients of ``share`` times it
        in what is learned, by a kernel that sums ``unit`` sequences at once; None if unsupported.
        """
        if self.event_features is not None:
            return None
        settings = self.options
        sweep = kernels.DAPP_LOSS.choose(
            self.readout,
            batch.times,
            modes=len(self.readout) * settings["features"],
            nodes=nodes,
            marks=self.marks.count,
            training=self.training,
            scanned=self.scanned and isinstance(self.modes, Modes),
            normalise=settings["normalise"],
            values=settings["values"],
            sequences=rows_of_all(batch.times, random),
        )
        if sweep is None or not isinstance(self.modes, Modes):
            return None
        totals, found = sampled_gradients(
            sweep,
            self.modes,
            Values(self.value_weight, self.value_readout, self.gain),
            self.readout,
            self.rate,
            batch,
            uniform(batch.edges[:, 1:], nodes, random),
            self.time_scale,
            convention == "gaps",
            share,
            unit,
            self.effects,
        )
        return float(totals.sum()), found

    @torch.no_grad()
    def scored_gaps(self, batch: Batch, tolerance: float) -> ScoredGaps | None:
        """Log rates at events, and integrals over gaps with their errors, by a kernel; None if
        unsupported.
        """
        plain = self.effects is None and self.event_features is None
        if not isinstance(self.modes, Modes) or not plain:
            return None
        score = kernels.DAPP_SCORE.choose(
            self.readout,
            batch.times,
            scanned=self.scanned,
            normalise=self.options["normalise"],
            modes=self.modes.noise[..., 0].numel(),
        )
        if score is None:
            return None
        marks = torch.arange(self.marks.count)[None]
        ages = torch.stack([torch.zeros_like(marks), torch.ones_like(marks)]).double()
        constant, later = (self.event_values(age, marks)[0] for age in ages)
        return scored_gaps(
            score,
            self.spectrum(),
            constant,
            later - constant,
            self.readout_weights(),
            self.rate,
            batch,
            float(self.time_scale),
            tolerance,
        )

    def _at_once(self, batch: Batch) -> bool:
        """Whether scan and read-out are one kernel, for training steps on a CUDA device."""
        return self._kernel(batch.times) is not None

    def _kernel(self, times: Float[Tensor, "B N"]) -> Callable[..., Tensor] | None:
        attended: Callable[..., Tensor] | None = kernels.ATTENTION.choose(
            self.readout,
            times,
            heads=len(self.readout),
            features=self.options["features"],
            marks=self.marks.count,
            differentiated=self.training and torch.is_grad_enabled(),
            normalise=self.options["normalise"],
        )
        return attended

    def _attend_at_once(
        self, history: DAPPHistory, times: Float[Tensor, "B G Q"]
    ) -> Float[Tensor, "B G Q K M"]:
        attended = kernels.ATTENTION.load()
        s = spectrum_of(history.parts)
        past = require(history.past)
        lags = ((times - history.times[..., None]) / self.time_scale).to(self.readout)
        decay = torch.zeros_like(s.frequency) if s.decay is None else s.decay
        return attended(
            s.frequency,
            decay,
            s.shift,
            s.weight,
            lags,
            self._gaps(history.times),
            past.values,
            past.marks[..., 0],
        )

    def contributions(
        self,
        history: DAPPHistory,
        times: Float[Tensor, "B Q"],
        seen: Int[Tensor, "B Q"] | None = None,
    ) -> Float[Tensor, "B Q N M"]:
        """What each past event adds to z = sum_k r_km A_k, the argument of the link, for each mark;
        0 for the future.

        Times are seen from the positions ``seen``; from all events strictly before them where None.
        """
        past = require(history.past)
        seen = position_before(history, times) if seen is None else seen
        query = self.elapsed(times[..., None], history.start)
        events = self.elapsed(past.times, history.start)
        w = attention.weights(
            history.parts.score,
            query,
            past.mask(seen),
            events,
            past.marks,
            self.options["normalise"],
        )
        return torch.einsum("bkgqmn,bnk,km->bgnm", w, past.values, self.readout_weights())

    def without(
        self,
        history: DAPPHistory,
        times: Float[Tensor, "B Q"],
        seen: Int[Tensor, "B Q"] | None = None,
    ) -> Float[Tensor, "B Q N M"] | None:
        """The intensities at ``times`` with each past event left out in turn, in O(N); None where
        weights depend on each other.

        Times are seen from the positions ``seen``; from all events strictly before them where None.
        """
        if self.options["normalise"] != "none" or self.options["keep"] is not None:
            return None
        seen = position_before(history, times) if seen is None else seen
        each = self.contributions(history, times, seen)
        z = (
            torch.einsum(
                "bgqkm,km->bgm",
                self.attend(history, times[..., None], seen),
                self.readout_weights(),
            )[:, :, None]
            - each
        )
        since = (times - history.start[:, None])[..., None].expand(each.shape[:3])
        effects = self.effects_at(history, times[..., None])
        logs = self.rate.log_rate(z, since, history.parts.curves, effects=effects)
        return (logs - self.time_scale.log().to(z)).exp()

    def attended(
        self, history: DAPPHistory, time: Float[Tensor, " B"], mark: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B N K"], Int[Tensor, "B N K"], Float[Tensor, "B N K"]]:
        """Times, marks and weights of the events that each head sees from the last position for an
        event (time, mark); times are NaN and weights 0 where a slot holds none.
        """
        past = require(history.past)
        mask = past.mask(history.lengths[:, None])[:, 0]
        mask = (mask[..., None] if mask.ndim == 2 else mask).expand_as(past.values)
        now = self.elapsed(time[:, None], history.start)
        events = self.elapsed(past.times, history.start)
        nu = scores(history.parts.score, now, events, past.marks, mark[:, None])[:, :, 0, 0]
        weights = attention.normalised(
            nu, mask.transpose(1, 2), self.options["normalise"]
        ).transpose(1, 2)
        return torch.where(mask, past.times, torch.nan), past.marks.expand_as(past.values), weights

    @property
    def has_upper_bound(self) -> bool:
        """Whether :meth:`bound` can certify this model: all but an unnormalised sum of neural
        scores.
        """
        return self.options["score"] != "neural" or self.options["normalise"] != "none"

    @torch.no_grad()
    def upper_bound(
        self, history: DAPPHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """An upper bound of the total rate on [a, b], seen from the last position and with no event
        in between.

        z <= b_m + max drift + the attention's bound (`ops.bounds`), and link and sum over marks
        are monotone. It has an allowance for rounding, since it is the rounded rate that must stay
        below.
        """
        if not self.has_upper_bound:
            raise UserError(
                "a score with a certified bound",
                "a sum of neural scores, which has none",
                "Sample by inversion.",
            )
        eps = torch.finfo(self.readout.dtype).eps
        z, rounding = attention_bound(self, history, a, b)
        low, high = ((x - history.start).to(z) for x in (a, b))
        effects = None
        if self.effects is not None:
            bound = self.effects.upper_bound(a, b, history.context, z.dtype)
            effects = parted(bound.to(z), self.marks.count)
        logs = (
            self.rate.log_bound(z + rounding, low, high, history.parts.curves, effects=effects)
            - self.time_scale.log().to(z)
        ).to(torch.float64)
        return (logs + 16 * eps * (1 + logs.abs())).exp().sum(-1)

    def draw_counts(self, batch: Batch, wanted: Wanted) -> NDArray[np.int32] | None:
        """By a kernel, for linear forms whose weights are not normalised and whose values are
        constant.
        """
        s = self.options
        if not self.scanned or s["normalise"] != "none" or s["values"] != "mark":
            return None
        if self.event_features is not None:
            return None
        return dapp_counts(self.path_modes(), self.rate, self.effects, batch, wanted)

    def draw_events(
        self, batch: Batch, wanted: Wanted, most: int | None
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]] | None:
        """By the kernel of :meth:`draw_counts`, where that applies."""
        s = self.options
        if not self.scanned or s["normalise"] != "none" or s["values"] != "mark":
            return None
        if self.event_features is not None:
            return None
        return dapp_events(self.path_modes(), self.rate, self.effects, batch, wanted, most)

    def path_modes(self) -> PathModes:
        """The evaluation's modes as the sampler of paths needs them, where values are constant."""
        every_mark = torch.arange(self.marks.count)[None]
        values = self.event_values(torch.zeros_like(every_mark, dtype=torch.float64), every_mark)
        scale = float(self.time_scale)
        return PathModes(self.spectrum(fixed=True), values[0], self.readout_weights(), scale)

    def knots(self, history: DAPPHistory) -> Float[Tensor, "B J"] | None:
        """Times at which a spline's third derivative jumps: integrals are cut there."""
        return self.rate.baseline.knots(history.start)

    def shortest_time(self, history: DAPPHistory) -> Float[Tensor, " B"] | None:
        """One over the fastest turn or decay of a mode; None for scores that have no modes."""
        if not isinstance(history.parts.score, fourier.Spectrum):
            return None
        fastest = history.parts.score.frequency.abs().amax()
        if history.parts.score.decay is not None:
            fastest = fastest + history.parts.score.decay.amax()
        return torch.full_like(history.start, float(self.time_scale / fastest.clamp(min=1e-30)))

    # ------------------------------------------------------------------ parts

    def elapsed(
        self, times: Float[Tensor, "B ..."], start: Float[Tensor, " B"]
    ) -> Float[Tensor, "B ..."]:
        """Time since the window's start, in mean gaps, float64."""
        return (times - start.reshape(-1, *[1] * (times.ndim - 1))) / self.time_scale

    def _gaps(self, times: Float[Tensor, "B P"]) -> Float[Tensor, "B N"]:
        return (times.diff(dim=1) / self.time_scale).to(self.readout)

    def event_values(
        self, elapsed: Float[Tensor, "B N"], marks: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B N K"]:
        """v_ki = W_k' W_v x_i: one number per head and event, in units of ``gain``, one over the
        events a head sums at once.
        """
        s = self.options
        M = self.marks.count
        weight = self._value_weights()
        if s["values"] == "mark":
            return looked_up(weight.T, marks)
        value = elapsed.to(weight)[..., None] * weight[:, 0]
        if s["values"] == "linear" and M == 1:
            return value
        return value + looked_up(weight[:, 1:].T, marks)

    def _value_weights(self) -> Float[Tensor, "K I"]:
        """What values are linear in, times ``gain``: a constant per mark, or a trend before
        them.
        """
        weight = torch.einsum("kp,kpi->ki", self.value_readout, self.value_weight)
        return self.gain[:, None] * (
            nn.functional.softplus(weight) if self.options["link"] == "identity" else weight
        )

    def readout_weights(self) -> Float[Tensor, "K M"]:
        """r_km, how much each mark heeds each head; never negative where the link is the identity,
        as the rate must not be.
        """
        return self.readout.abs() if self.options["link"] == "identity" else self.readout

    def channels(self, values: Float[Tensor, "B N K"]) -> Float[Tensor, "B N K C"]:
        if self.options["normalise"] == "none":
            return values[..., None]
        return torch.stack([values, torch.ones_like(values)], -1)


CHOICES = {
    "normalise": ("none", "ratio", "softmax"),
    "phase": ("paired", "random"),
    "values": ("mark", "affine", "linear"),
    "score": ("fourier", "dot", "neural"),
    "link": ("exp", "softplus", "identity"),
    "base": ("auto", "constant", "spline"),
    "drift": ("auto", "none", "spline"),
    "form": ("auto", "dense", "scan"),
    "draw": ("even", "independent"),
    "activation": tuple(ACTIVATIONS),
}


def check_choices(s: dict[str, Any]) -> None:
    """Raise :class:`UserError` for an unknown choice, a number below 1, or two choices that cannot
    hold together.
    """
    for name, allowed in CHOICES.items():
        if s[name] not in allowed:
            raise UserError(
                f"{name} to be one of {', '.join(allowed)}", f"{s[name]!r}", "Choose one of them."
            )
    for name in ("heads", "features", "noise", "embedding", "width", "knots"):
        if s[name] < 1:
            raise UserError(f"{name} of at least 1", f"{s[name]}", "Raise it.")
    keep = s["keep"]
    if keep is not None and not (keep >= 1 if isinstance(keep, int) else 0 < keep <= 1):
        raise UserError(
            "keep as a number of events from 1, or a share above 0 and up to 1.0",
            f"{keep}",
            "Choose one, or None for all.",
        )
    if s["score"] != "fourier" and (s["normalise"] == "ratio" or s["link"] == "identity"):
        raise UserError(
            "a score that is never negative with normalise='ratio' or link='identity'",
            f"score={s['score']!r}",
            "Use score='fourier'.",
        )
    if s["form"] == "scan" and (s["score"] != "fourier" or keep is not None):
        raise UserError(
            "a Fourier score and keep=None with form='scan'",
            f"score={s['score']!r}, keep={keep}",
            "Use form='auto'.",
        )
    if s["normalise"] == "ratio" and s["phase"] == "random":
        raise UserError(
            "paired phases with normalise='ratio'",
            "phase='random', whose scores can be negative",
            "Use phase='paired' or 'softmax'.",
        )
    if s["form"] == "scan" and s["normalise"] == "softmax":
        raise UserError(
            "a normalisation that a scan can carry",
            "normalise='softmax' with form='scan'",
            "Use form='dense', or normalise='none' or 'ratio'.",
        )
    if s["form"] == "scan" and s["phase"] == "random":
        raise UserError(
            "paired phases with form='scan'",
            "phase='random'",
            "Use form='dense' or phase='paired'.",
        )
    if s["link"] == "identity" and (
        s["normalise"] != "none"
        or s["values"] != "mark"
        or s["drift"] == "spline"
        or s["phase"] == "random"
    ):
        raise UserError(
            (
                "link='identity' with an unnormalised sum, values='mark', paired phases and no "
                "drift, so that the rate cannot be negative"
            ),
            (
                f"normalise={s['normalise']!r}, values={s['values']!r}, phase={s['phase']!r}, "
                f"drift={s['drift']!r}"
            ),
            "Use link='exp' or 'softplus' for those.",
        )


def attention_bound(
    model: DAPP, history: DAPPHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M"]]:
    """A bound of sum_k r_km A_km on [a, b], and how far rounding may carry the sum itself."""
    eps = torch.finfo(model.readout.dtype).eps
    score = history.parts.score
    normalise = model.options["normalise"]
    readout = model.readout_weights()
    if history.state is not None:
        last = history.times.gather(1, history.lengths[:, None])[:, 0]
        if normalise != "none":
            return _convex(*_value_corners(model, history, last), readout)
        lag, reach = (((x - last) / model.time_scale).to(model.readout) for x in (a, b))
        state = bounds.moved(spectrum_of(history.parts), last_state(history), lag)[..., 0]
        width = ((b - a) / model.time_scale).to(model.readout) * (1 + 4 * eps)
        top, size, speed = bounds.sum_bound(spectrum_of(history.parts), state, width, readout)
        return top, eps * (32 * size + 4 * reach[:, None] * speed)
    past = require(history.past)
    mask = past.mask(history.lengths[:, None])[:, 0]
    mask = mask[..., None] if mask.ndim == 2 else mask
    if normalise != "none":
        return _convex(past.values, mask, readout)
    values = torch.where(mask, past.values, 0.0)
    if isinstance(score, Projection):
        return _linear_bound(model, history, a, b, values)
    now = model.elapsed(a, history.start)
    events = model.elapsed(past.times, history.start)
    spectrum = spectrum_of(history.parts)
    state = bounds.gathered(spectrum, now, events, past.marks, past.values, mask)
    width = ((b - a) / model.time_scale).to(model.readout) * (1 + 4 * eps)
    top, _, _ = bounds.sum_bound(spectrum, state, width, readout)
    elapsed = model.elapsed(b, history.start).to(model.readout)
    fastest = spectrum.rate.abs().amax() * elapsed
    size = values.abs().sum(1) @ readout.abs()
    return top, eps * (64 + 8 * fastest)[:, None] * size


def _linear_bound(
    model: DAPP, history: DAPPHistory, a: Tensor, b: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """An unnormalised sum of dot products is linear in time: the larger end bounds it."""
    past = require(history.past)
    score = history.parts.score
    ends = torch.stack([a, b], 1)
    both = torch.einsum(
        "bgqkm,km->bqm",
        model.attend(history, ends[:, None], history.lengths[:, None]),
        model.readout_weights(),
    )
    query = model.elapsed(ends, history.start)
    events = model.elapsed(past.times, history.start)
    sizes = scores(score, query, events, past.marks).abs()
    reach = torch.einsum(
        "bkqmn,bnk,km->bqm", sizes, values.abs(), model.readout_weights().abs()
    ).amax(1)
    return both.amax(1), 1024 * torch.finfo(model.readout.dtype).eps * reach


def _value_corners(
    model: DAPP, history: DAPPHistory, last: Float[Tensor, " B"]
) -> tuple[Float[Tensor, "B N K"], Bool[Tensor, "B N 1"]]:
    """The extreme values that events up to ``last`` can have, where the events themselves are
    forgotten.
    """
    M = model.marks.count
    ends = torch.stack(
        [torch.zeros_like(last), model.elapsed(last, history.start)], 1
    ).repeat_interleave(M, 1)
    values = model.event_values(
        ends, torch.arange(M, device=last.device).repeat(2).expand(len(last), -1)
    )
    some = last_state(history)[..., 1].abs().amax((1, 2)) > 0
    return values, some[:, None, None].expand(-1, 2 * M, 1)


def _convex(
    values: Tensor, mask: Tensor, readout: Tensor
) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M"]]:
    """Weights that sum to 1: the largest value bounds their mean, and the largest size its
    rounding.
    """
    sizes = bounds.convex_bound(values.abs(), mask, readout.abs())
    return bounds.convex_bound(values, mask, readout), 1024 * torch.finfo(readout.dtype).eps * sizes


EFFECT_ERROR = (
    0.005  # how far the evaluation's features may move what one past event adds inside the link
)
SIZES = (128, 256, 512, 1024)  # numbers of evaluation features tried, in order, against REFERENCE
REFERENCE = 8192


@torch.no_grad()
def settle(model: DAPP, features: int | None) -> list[str]:
    """Fix the evaluation's features: ``features``, or those asked for when the model was made, or
    the fewest of SIZES that keep each event's effect, sum_k kappa_k v_k, within EFFECT_ERROR of
    what REFERENCE features give.
    """
    asked = features or model.options["eval_features"]
    if not isinstance(model.modes, Modes):
        return []
    if asked is not None:
        model.options["eval_features"] = asked
        model.modes.store(asked)
        return []
    lags = torch.linspace(0, 1, 257).to(model.readout) * (
        model.rate.baseline.length / model.time_scale
    ).to(model.readout)
    pairs = [
        (m, n) for m in range(min(model.marks.count, 4)) for n in range(min(model.marks.count, 4))
    ]
    value = [
        model.event_values(lags[None], torch.full((1, len(lags)), n))[0].T
        for n in range(min(model.marks.count, 4))
    ]
    effects = []
    for size in (REFERENCE, *SIZES):
        model.modes.store(size)
        spectrum = model.spectrum(fixed=True)
        parts = [
            fourier.kernel(spectrum, lags, m, n) * value[n] * model.readout_weights()[:, m, None]
            for m, n in pairs
        ]
        effects.append(torch.stack(parts).sum(1))
        error = float((effects[-1] - effects[0]).abs().max())
        if size != REFERENCE and error <= EFFECT_ERROR:
            break
    model.options["eval_features"] = size
    return [
        (
            f"evaluation features: {size} per head, within {error:.2g} of an event's effect on "
            "the log-rate"
        )
    ]


def select(model: DAPP, history: DAPPHistory, batch: Batch, before: Memory | None) -> DAPPHistory:
    """The history with what each head has let go of masked, and the active sets at its end.

    Where the score has a linear form, states are scanned all the same: what is dropped is taken out
    of them.
    """
    new = require(history.past)
    memory = (
        blank(batch.times, len(model.readout), new.values) if before is None else before.by_age()
    )
    past = new if before is None else joined(memory, new)
    active, gone = _chosen(model, past, history, batch, memory)
    dropped = selection.dropped_at(gone, past.times.shape[1])
    if before is not None:
        dropped = torch.cat(
            [
                torch.where(memory.active.valid, dropped[:, : memory.times.shape[1]], 0),
                dropped[:, memory.times.shape[1] :],
            ],
            1,
        )
    history = replace(history, past=replace(past, dropped=dropped), memory=memory_of(past, active))
    return _scan_without(model, history, batch, memory, past, gone) if model.scannable else history


@torch.no_grad()
def admit(
    model: DAPP, h: DAPPHistory, time: Tensor, mark: Tensor, value: Tensor, happened: Tensor
) -> Memory:
    """The active sets with one event more."""
    memory = require(h.memory).widened(model.kept_events())
    now = model.elapsed(time[:, None], h.start)
    events = model.elapsed(memory.times, h.start)
    nu = scores(h.parts.score, now, events, memory.marks, mark[:, None])[:, :, 0, 0].transpose(1, 2)
    weights = selection.shares(nu, memory.active.valid, model.options["normalise"])
    index = memory.active.index.amax((1, 2)) + 1
    active, slot, _ = selection.admit(memory.active, weights, index, happened)
    return memory.admitted(active, slot, time, mark, value, happened)


@torch.no_grad()
def _chosen(
    model: DAPP, past: Past, history: DAPPHistory, batch: Batch, memory: Memory
) -> tuple[selection.Active, Int[Tensor, "B N K"]]:
    """Run the selection over the batch's events: the active sets at its end, and what was dropped
    for each event.
    """
    first = memory.times.shape[1]
    keep = model.kept_events()
    now = model.elapsed(batch.times, history.start)
    events = model.elapsed(past.times, history.start)
    nu = scores(history.parts.score, now, events, past.marks, batch.marks)[:, :, :, 0]
    active = memory.active
    slots = min(keep, first + batch.times.shape[1])
    if slots > first:
        extra = selection.empty(len(now), slots - first, nu.shape[1], nu)
        active = selection.Active(
            *(torch.cat(pair, 1) for pair in zip(active.tensors(), extra.tensors(), strict=True))
        )
    return selection.run(active, nu, batch.valid, model.options["normalise"], first)


def _scan_without(
    model: DAPP,
    history: DAPPHistory,
    batch: Batch,
    memory: Memory,
    past: Past,
    gone: Int[Tensor, "B N K"],
) -> DAPPHistory:
    spectrum = spectrum_of(history.parts)
    K = len(model.readout)
    first = memory.times.shape[1]
    driven = attention.drive(
        spectrum, batch.marks, model.channels(past.values[:, first:]), batch.valid
    )
    if gone.is_cuda or bool(
        (gone >= 0).any()
    ):  # a device is not asked: that would cost more than what it might save
        old = gone.clamp(min=0)
        times, marks, values = (
            x.expand(-1, -1, K).gather(1, old) for x in (past.times, past.marks, past.values)
        )
        lag = ((batch.times[..., None] - times) / model.time_scale).to(model.readout)
        lost = attention.drive(spectrum, marks, model.channels(values), gone >= 0)
        driven = driven - attention.faded(spectrum.rate, torch.where(gone >= 0, lag, 0.0), lost)
    if not first:
        return model.scan(history, driven, None)
    lag = ((history.times[:, :1, None] - memory.times) / model.time_scale).to(model.readout)
    held = attention.drive(
        spectrum, memory.marks, model.channels(memory.values), memory.active.valid
    )
    return model.scan(
        history,
        driven,
        attention.faded(spectrum.rate, torch.where(memory.active.valid, lag, 0.0), held).sum(1),
    )
