r"""DAPP, the deep attention point process: a rate driven by attention to past events through a
learned Fourier kernel.

For an event x = (t, m) and heads k = 1..K,

    A_k(x)      = sum_i weight_k(x, x_i) v_ki                        attention to the past, `ops.attention`
    lambda(x)   = mu_m(t) + g(b_m + drift_m(t) + sum_k r_km A_k(x))  equation (5), t counted from the window's start

with the kernel of `ops.fourier` as score. :meth:`DAPP.paper` is the paper's model to the letter:
two heads, weights that sum to 1 (softmax), values linear in (t, m), softplus, a constant mu, random
phases. The plain :class:`DAPP` differs where measuring said so. Its weights are not normalised,
since a mean cannot count events and a sum can: an exponential Hawkes process and a self-correcting
one are then both inside the family. Its values are one constant per mark, the softplus has a
learned scale, so that events may add to the rate or multiply it (`models.rate`), there is a drift
in time inside it, and modes may decay (`models.modes`), which keeps a stream's state bounded.

Source: Zhu, Zhang, Ding and Xie, "Deep Fourier kernel for self-attentive point processes" (2021).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.models.base import PointProcess, position_before, space_without_places
from fourpoint.models.choices import check_choices
from fourpoint.models.dapp_bound import attention_bound
from fourpoint.models.dapp_features import SIZES, settle
from fourpoint.models.dapp_history import DAPPHistory, Parts, last_state, require, spectrum_of
from fourpoint.models.dapp_online import admit, select
from fourpoint.models.dapp_start import embedded, initialise
from fourpoint.models.dapp_sweep import Values, swept_slopes, worth_sweeping
from fourpoint.models.modes import Modes
from fourpoint.models.pair_scores import PairScore
from fourpoint.models.past import appended, past_of
from fourpoint.models.rate import Rate
from fourpoint.ops import attention, bounds, fourier
from fourpoint.ops.lookup import looked_up
from fourpoint.ops.quadrature import uniform
from fourpoint.ops.scores import scores

MOST_FEATURES, MOST_MARKS, BLOCK = 128, 16, 2048  # of a step that is one kernel on a CUDA device


class DAPP(PointProcess[DAPPHistory]):
    """Deep attention point process.

    Arguments
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
        keep: eta, how many past events each head remembers (ODAPP, `ops.selection`): a number, or
            a share of the longest training sequence such as .5; None: all of them.
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

    Fails with :class:`UserError` where a choice is unknown or where two of them contradict each
    other.

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
        self._settings: dict[str, Any] = dict(
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
        check_choices(self._settings)
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
    def _scannable(self) -> bool:
        """Whether the sum has a linear form, and the dense one was not asked for."""
        s = self._settings
        return (
            s["form"] != "dense"
            and s["normalise"] != "softmax"
            and s["phase"] == "paired"
            and s["score"] == "fourier"
        )

    @property
    def scanned(self) -> bool:
        """Whether the states of the modes are all that is remembered."""
        return self._scannable and self._settings["keep"] is None

    @property
    def linear(self) -> bool:
        """Whether a history can be gone on from in constant memory: the linear forms, and bounded
        memories.
        """
        return self.scanned or self._settings["keep"] is not None

    @property
    def rounded_products(self) -> bool:
        """Whether training on a CUDA device may round what is multiplied: a network on all pairs is
        all products.
        """
        return self._settings["score"] == "neural"

    def keeping(self, keep: int) -> DAPP:
        """The same model, weights shared, remembering at most ``keep`` events per head.

        >>> DAPP(features=8).keeping(100).settings()["keep"]
        100
        """
        other = copy.copy(self)
        other._settings = {
            **self._settings,
            "keep": keep,
            "form": "auto" if self._settings["form"] == "scan" else self._settings["form"],
        }
        check_choices(other._settings)
        return other

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``, as JSON can hold them."""
        size = self._settings["eval_features"]
        if size is not None and isinstance(self.modes, Modes):
            size = self.modes.noise.shape[1]
        return {
            **self._settings,
            "generator": list(self._settings["generator"]),
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
                f"score={self._settings['score']!r}, which has no spectrum",
                "Use score='fourier'.",
            )
        modes = self.modes(fixed=fixed)
        if self._settings["normalise"] == "ratio":
            return fourier.with_constant(modes)
        return fourier.non_negative(modes) if self._settings["link"] == "identity" else modes

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
        """Use few features for the validations of a training run; :meth:`fix_features` ends that."""
        self.modes.store(min(self._settings["eval_features"] or SIZES[0], SIZES[0]))

    def fix_features(self, features: int | None = None) -> list[str]:
        """Fix the evaluation's features: ``features``, or those asked for when the model was made,
        or as few as are enough (`models.dapp_features`).
        """
        return settle(self, features)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: DAPPHistory | None = None) -> DAPPHistory:
        """States after every event of the batch (linear forms), with the events kept for the dense
        form.
        """
        if before is not None and not self.linear:
            raise UserError(
                "a linear form to go on from a history",
                f"normalise={self._settings['normalise']!r}",
                "Encode the whole sequence.",
            )
        parts = self._parts() if before is None else before.parts
        start = batch.start if before is None else before.start
        anchor = batch.start[:, None] if before is None else before.times[:, -1:]
        times = torch.cat([anchor, batch.times], 1)
        values = self._values(self._elapsed(batch.times, start), batch.marks)
        history = DAPPHistory(
            times, start, batch.lengths, parts, None, past_of(batch.times, batch.marks, values)
        )
        if self._settings["keep"] is not None:
            return select(self, history, batch, None if before is None else require(before.memory))
        if not self.scanned or (before is None and self._at_once(batch)):
            return history
        driven = attention.drive(
            spectrum_of(parts), batch.marks, self._channels(values), batch.valid
        )
        return self._scan(history, driven, None if before is None else require(before.state)[:, -1])

    def _scan(
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

    def _kept(self) -> int:
        keep = self._settings["keep"]
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
    ) -> DAPPHistory:
        """One event more. Linear forms and bounded memories keep the last position only: constant
        memory.
        """
        happened = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        old_time = history.times.gather(1, history.lengths[:, None])[:, 0]
        time = torch.where(happened, time, old_time)
        value = self._values(self._elapsed(time[:, None], history.start), mark[:, None])
        if not self.linear:
            return self._append(history, time, mark, value[:, 0], happened)
        moved = DAPPHistory(
            time[:, None],
            history.start,
            torch.zeros_like(history.lengths),
            history.parts,
            None,
            None,
        )
        if self._settings["keep"] is not None:
            memory = admit(self, history, time, mark, value[:, 0], happened)
            return replace(moved, past=memory.past(), memory=memory)
        spectrum = spectrum_of(history.parts)
        driven = attention.drive(spectrum, mark[:, None], self._channels(value), happened[:, None])[
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
        times = (
            h.times
            if int(slot.max()) < h.times.shape[1]
            else torch.cat([h.times, h.times[:, -1:]], 1)
        )
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
        )

    def log_intensity(
        self,
        history: DAPPHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log(mu + g(z)), the logarithm taken before anything can overflow."""
        z = torch.einsum("bgqkm,km->bgqm", self.attend(history, times, seen), self._readout())
        return self.rate.log_rate(
            z, times - history.start[:, None, None], history.parts.curves
        ) - self.time_scale.log().to(z)

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
            query, events = (
                self._elapsed(times, history.start),
                self._elapsed(past.times, history.start),
            )
            return attention.dense(
                history.parts.score,
                query,
                past.mask(index),
                events,
                past.marks,
                past.values,
                self._settings["normalise"],
            )
        anchor, state = history.times, require(history.state)
        if seen is not None and not state.shape[1] == seen.shape[1] == 1:
            anchor = anchor.gather(1, seen)
            state = state[torch.arange(B, device=times.device)[:, None], seen]
        lag = ((times - anchor[:, :, None]) / self.time_scale).to(self.readout)
        sums = attention.read(spectrum_of(history.parts), state, lag)
        return (
            sums[..., 0]
            if self._settings["normalise"] == "none"
            else attention.divide(sums[..., 0], sums[..., 1])
        )

    def gradients(
        self, batch: Batch, nodes: int, random: torch.Generator, convention: str, share: float
    ) -> tuple[float, list[tuple[nn.Parameter, NDArray[np.float32]]]] | None:
        """The sum of `likelihood.sampled_log_likelihood`, and the slopes of ``share`` times it in
        what is learned, in one compiled sweep; None where that is not to be had.
        """
        s, size = self._settings, len(self.readout) * self._settings["features"]
        plain = (
            self.training
            and self.scanned
            and s["normalise"] == "none"
            and s["values"] == "mark"
            and self.marks.count <= MOST_MARKS
        )
        fits = (
            plain
            and batch.times.shape[1] <= BLOCK
            and worth_sweeping(batch, self.readout, size, nodes)
        )
        if not fits or not isinstance(self.modes, Modes):
            return None
        draws, values = (
            uniform(batch.edges[:, 1:], nodes, random),
            Values(self.value_weight, self.value_readout, self.gain),
        )
        about = (batch, draws, self.time_scale, convention == "gaps", share)
        totals, slopes = swept_slopes(self.modes, values, self.readout, self.rate, *about)
        return float(totals.sum()), slopes

    def _at_once(self, batch: Batch) -> bool:
        """Whether scan and read-out are one kernel (`kernels.triton_attention`): for the steps of
        training on a CUDA device.
        """
        K, D, M = len(self.readout), self._settings["features"], self.marks.count
        fits = (
            D <= MOST_FEATURES and M <= MOST_MARKS and K > 0 and batch.times.shape[1] < BLOCK
        )  # else it may be the first of several
        there = (
            batch.times.is_cuda
            and self.training
            and torch.is_grad_enabled()
            and self.readout.dtype == torch.float32
        )
        return (
            there
            and fits
            and self._settings["normalise"] == "none"
            and find_spec("triton") is not None
        )

    def _attend_at_once(
        self, history: DAPPHistory, times: Float[Tensor, "B G Q"]
    ) -> Float[Tensor, "B G Q K M"]:
        from fourpoint.kernels.triton_attention import attended

        s, past = spectrum_of(history.parts), require(history.past)
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
        past, seen = (
            require(history.past),
            position_before(history, times) if seen is None else seen,
        )
        query, events = (
            self._elapsed(times[..., None], history.start),
            self._elapsed(past.times, history.start),
        )
        w = attention.weights(
            history.parts.score,
            query,
            past.mask(seen),
            events,
            past.marks,
            self._settings["normalise"],
        )
        return torch.einsum("bkgqmn,bnk,km->bgnm", w, past.values, self._readout())

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
        if self._settings["normalise"] != "none" or self._settings["keep"] is not None:
            return None
        seen = position_before(history, times) if seen is None else seen
        each = self.contributions(history, times, seen)
        z = (
            torch.einsum(
                "bgqkm,km->bgm", self.attend(history, times[..., None], seen), self._readout()
            )[:, :, None]
            - each
        )
        since = (times - history.start[:, None])[..., None].expand(each.shape[:3])
        return (
            self.rate.log_rate(z, since, history.parts.curves) - self.time_scale.log().to(z)
        ).exp()

    def attended(
        self, history: DAPPHistory, time: Float[Tensor, " B"], mark: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B N K"], Int[Tensor, "B N K"], Float[Tensor, "B N K"]]:
        """Times, marks and weights of the events that each head sees from the last position for an
        event (time, mark); times are NaN and weights 0 where a slot holds none.
        """
        past = require(history.past)
        mask = past.mask(history.lengths[:, None])[:, 0]
        mask = (mask[..., None] if mask.ndim == 2 else mask).expand_as(past.values)
        now, events = (
            self._elapsed(time[:, None], history.start),
            self._elapsed(past.times, history.start),
        )
        nu = scores(history.parts.score, now, events, past.marks, mark[:, None])[:, :, 0, 0]
        weights = attention.normalised(
            nu, mask.transpose(1, 2), self._settings["normalise"]
        ).transpose(1, 2)
        return torch.where(mask, past.times, torch.nan), past.marks.expand_as(past.values), weights

    @property
    def has_upper_bound(self) -> bool:
        """Whether :meth:`bound` can certify this model: all but an unnormalised sum of neural
        scores.
        """
        return self._settings["score"] != "neural" or self._settings["normalise"] != "none"

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
        logs = (
            self.rate.log_bound(z + rounding, low, high, history.parts.curves)
            - self.time_scale.log().to(z)
        ).to(torch.float64)
        return (logs + 16 * eps * (1 + logs.abs())).exp().sum(-1)

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

    def _elapsed(
        self, times: Float[Tensor, "B ..."], start: Float[Tensor, " B"]
    ) -> Float[Tensor, "B ..."]:
        """Time since the window's start, in mean gaps, float64."""
        return (times - start.reshape(-1, *[1] * (times.ndim - 1))) / self.time_scale

    def _gaps(self, times: Float[Tensor, "B P"]) -> Float[Tensor, "B N"]:
        return (times.diff(dim=1) / self.time_scale).to(self.readout)

    def _values(
        self, elapsed: Float[Tensor, "B N"], marks: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B N K"]:
        """v_ki = W_k' W_v x_i: one number per head and event, in units of ``gain``, one over the
        events a head sums at once.
        """
        s, M, weight = self._settings, self.marks.count, self._value_weights()
        if s["values"] == "mark":
            return looked_up(weight.T, marks)
        value = elapsed.to(weight)[..., None] * weight[:, 0]
        return (
            value
            if s["values"] == "linear" and M == 1
            else value + looked_up(weight[:, 1:].T, marks)
        )

    def _value_weights(self) -> Float[Tensor, "K I"]:
        """What values are linear in, times ``gain``: a constant per mark, or a slope in time before
        them.
        """
        weight = torch.einsum("kp,kpi->ki", self.value_readout, self.value_weight)
        return self.gain[:, None] * (
            nn.functional.softplus(weight) if self._settings["link"] == "identity" else weight
        )

    def _readout(self) -> Float[Tensor, "K M"]:
        """r_km, how much each mark heeds each head; never negative where the link is the identity,
        as the rate must not be.
        """
        return self.readout.abs() if self._settings["link"] == "identity" else self.readout

    def _channels(self, values: Float[Tensor, "B N K"]) -> Float[Tensor, "B N K C"]:
        if self._settings["normalise"] == "none":
            return values[..., None]
        return torch.stack([values, torch.ones_like(values)], -1)
