r"""DAPP, the deep attention point process: a rate driven by attention to past events through a learned Fourier kernel.

For an event x = (t, m) and heads k = 1..K,

    A_k(x)      = sum_i weight_k(x, x_i) v_ki                        attention to the past, `maths.attention`
    lambda(x)   = mu_m(t) + g(b_m + drift_m(t) + sum_k r_km A_k(x))  equation (5), t counted from the window's start

with the kernel of `maths.fourier` as score. :meth:`DAPP.paper` is the paper's model to the letter: two heads, weights
that sum to 1 (softmax), values linear in (t, m), softplus, a constant mu, random phases. The plain :class:`DAPP` differs
where measuring said so. Its weights are not normalised, since a mean cannot count events and a sum can: an exponential
Hawkes process and a self-correcting one are then both inside the family. Its values are one constant per mark, the
softplus has a learned scale, so that events may add to the rate or multiply it (`models.rate`), there is a drift in time
inside it, and modes may decay (`models.modes`), which keeps a stream's state bounded.

Source: Zhu, Zhang, Ding and Xie, "Deep Fourier kernel for self-attentive point processes" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.maths import attention, bounds, fourier
from fourpoint.models import protocol
from fourpoint.models.choices import check_choices
from fourpoint.models.modes import Modes
from fourpoint.models.poisson import mean_rates
from fourpoint.models.rate import Rate

EFFECT_ERROR = 0.005  # how far the evaluation's features may move what one past event adds inside the link
SIZES = (128, 256, 512, 1024)  # numbers of evaluation features tried, in order, against REFERENCE
REFERENCE = 8192


@dataclass(frozen=True)
class DAPPHistory:
    """What DAPP remembers: states of the modes at each position (linear forms) and the events themselves (dense)."""

    times: Float[Tensor, "B P"]
    start: Float[Tensor, " B"]
    lengths: Int[Tensor, " B"]
    spectrum: fourier.Spectrum
    state: Complex[Tensor, "B P K D C"] | None
    marks: Int[Tensor, "B N"] | None
    values: Float[Tensor, "B N K"] | None

    def latest(self) -> DAPPHistory:
        """The last position alone: all that a linear form needs to go on."""
        state = None if self.state is None else self.state[:, -1:]
        return DAPPHistory(self.times[:, -1:], self.start, torch.zeros_like(self.lengths), self.spectrum, state, None, None)


class DAPP(nn.Module):
    """Deep attention point process.

    Arguments
        marks: the mark space of the data (`data.marks`), a number of types, or None.
        heads: K, the number of attention heads.
        features: D, modes drawn from the spectrum for every minibatch in training.
        eval_features: modes of the one set used for evaluation, sampling and streams; None picks the smallest of 128
            to 1,024 that keeps each past event's effect inside the link within .005, after training.
        normalise: "none" (a sum), "ratio" or "softmax" (weights that sum to 1).
        phase: "paired" (cosine and sine) or "random", as in the paper's (7); random needs the dense form.
        values: "mark" (a constant per mark), "linear" in (t, m) as in the paper, or "affine".
        link: "exp", "softplus" (with a learned scale) or "identity" (everything non-negative: a Hawkes process).
        base: mu, "constant" per mark, "spline" in time, or "auto": a spline where all windows have one length.
        drift: the same for the term inside the link: "spline", "none" or "auto".
        decay: whether modes may decay.
        generator: widths of the hidden layers of the networks that generate the spectrum.
        noise, embedding: q and r, the dimensions of the noise and of the key embedding W_u x.
        width: p, the dimension of the value embedding; it costs nothing at run time.
        knots: intervals of the splines.
        form: "scan" (linear), "dense", or "auto": scan wherever it exists.
        draw: "even" (a shifted Sobol set) or "independent" noise.
        seed: of the initial weights.

    Fails with :class:`UserError` where a choice is unknown or where two of them contradict each other.

    >>> from fourpoint.events import Sequence
    >>> model = DAPP(features=8, eval_features=64).eval()
    >>> batch = Sequence([0.2, 0.5], start=0.0, stop=1.0).batch()
    >>> tuple(model.intensity(model.encode(batch), torch.tensor([[0.1, 0.3, 0.9]], dtype=torch.float64)).shape)
    (1, 3, 1)
    """

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
        self.marks = MarkSpace.of(marks)
        M = self.marks.count
        embedding = embedding or (2 if M == 1 else 8)
        drift = "none" if link == "identity" and drift == "auto" else drift
        self._settings: dict[str, Any] = dict(
            heads=heads, features=features, eval_features=eval_features, normalise=normalise, phase=phase, values=values, link=link,
            learn_scale=learn_scale, base=base, drift=drift, decay=decay, generator=tuple(generator), noise=noise,
            embedding=embedding, width=width, knots=knots, activation=activation, form=form, draw=draw, seed=seed,
        )  # fmt: skip
        check_choices(self._settings)
        self.linear = form != "dense" and normalise != "softmax" and phase == "paired"
        random = torch.Generator().manual_seed(seed)
        self.modes = Modes(
            heads, M, features=features, stored=eval_features or SIZES[0], noise=noise, embedding=embedding, generator=generator,
            activation=activation, decay=decay, random_phase=phase == "random", even=draw == "even", seed=seed,
        )  # fmt: skip
        self.rate = Rate(M, link=link, learn_scale=learn_scale, base=base, drift=drift, knots=knots)
        inputs = {"mark": M, "affine": M + 1, "linear": 1 + (M if M > 1 else 0)}[values]
        self.value_weight = nn.Parameter(torch.randn(heads, width, inputs, generator=random) / math.sqrt(width))
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
        generator: Sequence[int] = (128, 256, 128),
        noise: int = 2,
        embedding: int = 2,
        width: int = 8,
        seed: int = 0,
    ) -> DAPP:
        """The paper's model: softmax weights, linear values, softplus, constant mu, random phases, no decay, no drift.

        ``normalise="ratio"`` reads (3) as printed; it needs paired phases, which are then used.

        >>> DAPP.paper().settings()["phase"], DAPP.paper().settings()["features"]
        ('random', 20)
        """
        return DAPP(
            marks, heads=heads, features=features, eval_features=eval_features, normalise=normalise, values="linear",
            link="softplus", learn_scale=False, phase="random" if normalise == "softmax" else "paired", base="constant",
            drift="none", decay=False, generator=generator, noise=noise, embedding=embedding, width=width,
            draw="independent", seed=seed,
        )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``, as JSON can hold them."""
        size = None if self._settings["eval_features"] is None else self.modes.noise.shape[1]
        return {**self._settings, "generator": list(self._settings["generator"]), "eval_features": size}

    # ------------------------------------------------------------------ what comes from the data

    def initialise(self, data: Dataset) -> list[str]:
        """Time scale, base rates and the spread of frequencies from ``data``; drift and base where left to it."""
        s, notes = self._settings, []
        durations = data.durations
        even = bool(np.ptp(durations) <= 1e-9 * durations.max())
        why = "all windows have one length" if even else "windows have different lengths"
        for name, other in (("drift", "none"), ("base", "constant")):
            if s[name] == "auto":
                s[name] = "spline" if even else other
                notes.append(f"{name}: {s[name]} ({why})")
        gap = data.gaps.mean() if len(data.gaps) else 0.0
        scale = gap if gap > 0 else float(durations.sum()) / max(data.events, 1)
        self.time_scale.fill_(scale)
        self.rate.length.fill_(float(durations.max()))
        notes.append(f"time scale: {scale:.4g} {data.unit or 'time units'} (the mean gap)")
        self.rate.build(s["base"], s["drift"])
        self.rate.start_at((mean_rates(data, self.marks) * scale).to(self.readout))
        self._start_values(float(durations.mean()) / scale, data.events / max(len(data), 1))
        return notes

    @torch.no_grad()
    def _start_values(self, length: float, events: float) -> None:
        """Spread the heads over time scales, and begin with a small effect of either sign, whatever a head sums over."""
        rates = self.modes.spread(length)
        if self._settings["normalise"] == "none":
            self.gain.copy_(1 / (1 / rates).clamp(1.0, max(1.0, events)))
        sign = torch.where(torch.arange(len(rates)) % 2 == 0, 1.0, -1.0)
        value = torch.full_like(self.value_weight, 0.3 / self.value_weight.shape[1]) * sign[:, None, None]
        if self._settings["values"] != "mark":
            value = self.value_weight * 0.3
            value[..., 0] /= max(1.0, length)  # the slope in time: over the window a value stays of one size
        if self._settings["link"] == "identity":
            value = torch.log(torch.expm1(value.abs() / self.readout.numel()))  # every head adds to the rate of every mark
        self.value_weight.copy_(value)

    # ------------------------------------------------------------------ the spectrum

    def redraw(self, random: torch.Generator) -> None:
        """Draw the modes of the next minibatch."""
        self.modes.redraw(random)

    def spectrum(self, *, fixed: bool = False) -> fourier.Spectrum:
        """The modes now in use: the last ones drawn while training, else (or where ``fixed``) the evaluation's one set."""
        modes = self.modes(fixed=fixed)
        if self._settings["normalise"] == "ratio":
            return fourier.with_constant(modes)
        return fourier.non_negative(modes) if self._settings["link"] == "identity" else modes

    def kernel(self, lags: Float[Tensor, " L"], mark: int = 0, past_mark: int = 0) -> Float[Tensor, "K L"]:
        """The score kappa_k at ``lags`` in the user's unit, per head."""
        return fourier.kernel(self.spectrum(), (lags / self.time_scale).to(self.readout), mark, past_mark)

    def rehearse(self) -> None:
        """Use few features for the validations of a training run; :meth:`settle` ends that."""
        self.modes.store(min(self._settings["eval_features"] or SIZES[0], SIZES[0]))

    @torch.no_grad()
    def settle(self, features: int | None = None) -> list[str]:
        """Fix the evaluation's features: ``features``, or those asked for when the model was made, or the fewest of
        SIZES that keep each event's effect, sum_k kappa_k v_k, within EFFECT_ERROR of what REFERENCE features give."""
        asked = features or self._settings["eval_features"]
        if asked is not None:
            self._settings["eval_features"] = asked
            self.modes.store(asked)
            return []
        lags = torch.linspace(0, 1, 257).to(self.readout) * (self.rate.length / self.time_scale).to(self.readout)
        pairs = [(m, n) for m in range(min(self.marks.count, 4)) for n in range(min(self.marks.count, 4))]
        value = [self._values(lags[None], torch.full((1, len(lags)), n))[0].T for n in range(min(self.marks.count, 4))]
        effects = []
        for size in (REFERENCE, *SIZES):
            self.modes.store(size)
            spectrum = self.spectrum(fixed=True)
            parts = [fourier.kernel(spectrum, lags, m, n) * value[n] * self._readout()[:, m, None] for m, n in pairs]
            effects.append(torch.stack(parts).sum(1))
            error = float((effects[-1] - effects[0]).abs().max())
            if size != REFERENCE and error <= EFFECT_ERROR:
                break
        self._settings["eval_features"] = size
        return [f"evaluation features: {size} per head, within {error:.2g} of an event's effect on the log-rate"]

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: DAPPHistory | None = None) -> DAPPHistory:
        """States after every event of the batch (linear forms), with the events kept for the dense form."""
        spectrum = self.spectrum() if before is None else before.spectrum
        start = batch.start if before is None else before.start
        anchor = batch.start[:, None] if before is None else before.times[:, -1:]
        times = torch.cat([anchor, batch.times], 1)
        values = self._values(self._elapsed(batch.times, start), batch.marks)
        state = None
        if self.linear:
            driven = attention.drive(spectrum, batch.marks, self._channels(values), batch.valid)
            first = driven.new_zeros(len(driven), *driven.shape[2:]) if before is None else _have(before.state)[:, -1]
            rest = attention.scan(spectrum.rate, self._gaps(times), driven, None if before is None else first)
            state = torch.cat([first[:, None], rest], 1)
        elif before is not None:
            raise UserError(
                "a linear form to go on from a history", f"normalise={self._settings['normalise']!r}", "Encode the whole sequence."
            )
        return DAPPHistory(times, start, batch.lengths, spectrum, state, batch.marks, values)

    def extend(
        self, history: DAPPHistory, time: Float[Tensor, " B"], mark: Int[Tensor, " B"], active: Bool[Tensor, " B"] | None = None
    ) -> DAPPHistory:
        """One event more. Linear forms keep the last position only: constant memory."""
        active = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        if not self.linear:
            return self._append(history, time, mark, active)
        old_time, old = _last(history)
        values = self._values(self._elapsed(time[:, None], history.start), mark[:, None])
        driven = attention.drive(history.spectrum, mark[:, None], self._channels(values), active[:, None])[:, 0]
        gap = torch.where(active, (time - old_time) / self.time_scale, 0.0).to(self.readout)
        state = attention.step(history.spectrum.rate, old, gap, driven)[:, None]
        moved = torch.where(active, time, old_time)[:, None]
        return DAPPHistory(moved, history.start, torch.zeros_like(history.lengths), history.spectrum, state, None, None)

    @torch.no_grad()
    def move(self, history: DAPPHistory, time: Float[Tensor, " B"]) -> DAPPHistory:
        """The last position alone, its states moved on to ``time`` with no event in between (linear forms)."""
        old_time, old = _last(history)
        state = bounds.moved(history.spectrum, old, ((time - old_time) / self.time_scale).to(self.readout))[:, None]
        return DAPPHistory(time[:, None], history.start, torch.zeros_like(history.lengths), history.spectrum, state, None, None)

    def _append(self, h: DAPPHistory, time: Tensor, mark: Tensor, active: Tensor) -> DAPPHistory:
        slot = h.lengths + active
        if int(slot.max()) >= h.times.shape[1]:
            last = h.times.gather(1, h.lengths[:, None])
            grown = torch.cat([h.times, torch.maximum(h.times[:, -1:], last)], 1)
            h = replace(h, times=grown, marks=_widen(_have(h.marks)), values=_widen(_have(h.values)))
        value = self._values(self._elapsed(time[:, None], h.start), mark[:, None])
        here = (torch.arange(h.times.shape[1] - 1, device=time.device) == h.lengths[:, None]) & active[:, None]
        times = torch.where(here, time[:, None], h.times[:, 1:])
        times = torch.where(torch.arange(times.shape[1], device=time.device) >= slot[:, None], torch.maximum(times, time[:, None]), times)
        return replace(
            h,
            times=torch.cat([h.times[:, :1], times], 1),
            marks=torch.where(here, mark[:, None], _have(h.marks)),
            values=torch.where(here[..., None], value, _have(h.values)),
            lengths=slot,
        )

    def log_intensity(
        self, history: DAPPHistory, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None = None
    ) -> Float[Tensor, "B G Q M"]:
        """log(mu + g(z)), the logarithm taken before anything can overflow."""
        z = torch.einsum("bgqkm,km->bgqm", self.attend(history, times, seen), self._readout())
        return self.rate.log_rate(z, times - history.start[:, None, None]) - self.time_scale.log().to(z)

    def attend(
        self, history: DAPPHistory, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None = None
    ) -> Float[Tensor, "B G Q K M"]:
        """A_k at ``times``, before the read-out."""
        B, G, _ = times.shape
        index = torch.arange(G, device=times.device).expand(B, G) if seen is None else seen
        if not self.linear:
            query = self._elapsed(times, history.start)
            events = self._elapsed(history.times[:, 1:], history.start)
            marks, values = _have(history.marks), _have(history.values)
            return attention.dense(history.spectrum, query, index, events, marks, values, self._settings["normalise"])
        anchor, state = history.times, _have(history.state)
        if seen is not None and not state.shape[1] == seen.shape[1] == 1:
            anchor = anchor.gather(1, seen)
            state = state[torch.arange(B, device=times.device)[:, None], seen]
        lag = ((times - anchor[:, :, None]) / self.time_scale).to(self.readout)
        sums = attention.read(history.spectrum, state, lag)
        return sums[..., 0] if self._settings["normalise"] == "none" else attention.divide(sums[..., 0], sums[..., 1])

    def intensity(self, history: DAPPHistory, times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        """lambda per mark at any times, in events per unit of the user's time."""
        return protocol.intensity(self, history, times)

    def contributions(self, history: DAPPHistory, times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q N M"]:
        """What each past event adds to z = sum_k r_km A_k, the argument of the link, for each mark; 0 for the future."""
        seen = protocol.position_before(history, times)
        query = self._elapsed(times[..., None], history.start)
        events = self._elapsed(history.times[:, 1:], history.start)
        w = attention.weights(history.spectrum, query, seen, events, _have(history.marks), self._settings["normalise"])
        return torch.einsum("bkgqmn,bnk,km->bgnm", w, _have(history.values), self._readout())

    @torch.no_grad()
    def bound(self, history: DAPPHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """An upper bound of the total rate on [a, b], seen from the last position and with no event in between.

        z <= b_m + max drift + the attention's bound (`maths.bounds`), and link and sum over marks are monotone. It has an
        allowance for rounding, since it is the rounded rate that must stay below.
        """
        eps = torch.finfo(self.readout.dtype).eps
        z, rounding = self._attention_bound(history, a, b)
        low, high = ((x - history.start).to(z) for x in (a, b))
        logs = (self.rate.log_bound(z + rounding, low, high) - self.time_scale.log().to(z)).to(torch.float64)
        return (logs + 16 * eps * (1 + logs.abs())).exp().sum(-1)

    def _attention_bound(
        self, history: DAPPHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M"]]:
        """A bound of sum_k r_km A_km on [a, b], and how far rounding may carry the sum itself."""
        eps, events = torch.finfo(self.readout.dtype).eps, history.times[:, 1:]
        last = history.times.gather(1, history.lengths[:, None])[:, 0]
        visible = attention.visible(history.lengths[:, None], events.shape[1])[:, 0]
        width = ((b - a) / self.time_scale).to(self.readout) * (1 + 4 * eps)
        if self._settings["normalise"] != "none":
            values, visible = (_have(history.values), visible) if history.state is None else self._value_corners(history, last)
            sizes = bounds.convex_bound(values.abs(), visible, self._readout().abs())
            return bounds.convex_bound(values, visible, self._readout()), 1024 * eps * sizes
        if history.state is not None:
            lag, reach = (((x - last) / self.time_scale).to(self.readout) for x in (a, b))
            state = bounds.moved(history.spectrum, _last(history)[1], lag)[..., 0]
            top, size, speed = bounds.sum_bound(history.spectrum, state, width, self._readout())
            return top, eps * (32 * size + 4 * reach[:, None] * speed)
        now, past = self._elapsed(a, history.start), self._elapsed(events, history.start)
        state = bounds.gathered(history.spectrum, now, past, _have(history.marks), _have(history.values), visible)
        top, _, _ = bounds.sum_bound(history.spectrum, state, width, self._readout())
        sizes = torch.where(visible[..., None], _have(history.values).abs(), 0.0).sum(1) @ self._readout().abs()
        fastest = history.spectrum.rate.abs().amax() * self._elapsed(b, history.start).to(self.readout)
        return top, eps * (64 + 8 * fastest)[:, None] * sizes

    def _value_corners(self, history: DAPPHistory, last: Float[Tensor, " B"]) -> tuple[Float[Tensor, "B N K"], Bool[Tensor, "B N"]]:
        """The extreme values that events up to ``last`` can have, where the events themselves are forgotten."""
        M = self.marks.count
        ends = torch.stack([torch.zeros_like(last), self._elapsed(last, history.start)], 1).repeat_interleave(M, 1)
        values = self._values(ends, torch.arange(M, device=last.device).repeat(2).expand(len(last), -1))
        some = _last(history)[1][..., 1].abs().amax((1, 2)) > 0
        return values, some[:, None].expand(-1, 2 * M)

    def knots(self, history: DAPPHistory) -> Float[Tensor, "B J"] | None:
        """Times at which a spline's third derivative jumps: integrals are cut there."""
        return self.rate.knots(history.start)

    # ------------------------------------------------------------------ parts

    def _elapsed(self, times: Float[Tensor, "B ..."], start: Float[Tensor, " B"]) -> Float[Tensor, "B ..."]:
        """Time since the window's start, in mean gaps, float64."""
        return (times - start.reshape(-1, *[1] * (times.ndim - 1))) / self.time_scale

    def _gaps(self, times: Float[Tensor, "B P"]) -> Float[Tensor, "B N"]:
        return (times.diff(dim=1) / self.time_scale).to(self.readout)

    def _values(self, elapsed: Float[Tensor, "B N"], marks: Int[Tensor, "B N"]) -> Float[Tensor, "B N K"]:
        """v_ki = W_k' W_v x_i: one number per head and event, in units of ``gain``, one over the events a head sums at once."""
        s, M = self._settings, self.marks.count
        weight = torch.einsum("kp,kpi->ki", self.value_readout, self.value_weight)
        if s["link"] == "identity":
            weight = nn.functional.softplus(weight)
        weight = self.gain[:, None] * weight
        if s["values"] == "mark":
            return weight.T[marks]
        value = elapsed.to(weight)[..., None] * weight[:, 0]
        return value if s["values"] == "linear" and M == 1 else value + weight[:, 1:].T[marks]

    def _readout(self) -> Float[Tensor, "K M"]:
        """r_km, how much each mark heeds each head; never negative where the link is the identity, as the rate must not be."""
        return self.readout.abs() if self._settings["link"] == "identity" else self.readout

    def _channels(self, values: Float[Tensor, "B N K"]) -> Float[Tensor, "B N K C"]:
        if self._settings["normalise"] == "none":
            return values[..., None]
        return torch.stack([values, torch.ones_like(values)], -1)


def _have(kept: Tensor | None) -> Tensor:
    """What this form of the model always keeps."""
    if kept is None:
        raise UserError("a history with its events", "one that has been extended", "Encode the whole sequence instead.")
    return kept


def _last(history: DAPPHistory) -> tuple[Float[Tensor, " B"], Complex[Tensor, "B K D C"]]:
    """When the last real position begins, and the states there; without a copy where it is the only one."""
    if history.times.shape[1] == 1:
        return history.times[:, 0], _have(history.state)[:, 0]
    row = torch.arange(len(history.lengths), device=history.times.device)
    return history.times[row, history.lengths], _have(history.state)[row, history.lengths]


def _widen(x: Tensor) -> Tensor:
    return torch.cat([x, torch.zeros_like(x[:, :1])], 1) if x.shape[1] else x.new_zeros(x.shape[0], 1, *x.shape[2:])
