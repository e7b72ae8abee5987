r"""DAPP, the deep attention point process: a rate driven by attention to past events through a learned Fourier kernel.

For an event x = (t, m) and heads k = 1..K,

    A_k(x)      = sum_i weight_k(x, x_i) v_ki                        attention to the past, `maths.attention`
    lambda(x)   = mu_m(t) + g(b_m + drift_m(t) + sum_k r_km A_k(x))  equation (5), t counted from the window's start

with the kernel of `maths.fourier` as score. :meth:`DAPP.paper` is the paper's model to the letter: two heads, weights
that sum to 1 (softmax), values linear in (t, m), softplus, a constant mu, random phases. The plain :class:`DAPP` differs
where measuring said so. Its weights are not normalised, since a mean cannot count events and a sum can: an exponential
Hawkes process and a self-correcting one are then both inside the family. Its values are one constant per mark, its
link is exp, it has a drift in time inside the link, and its modes may decay, which keeps a stream's state bounded.

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
from fourpoint.maths.spline import spline, spline_knots, spline_max
from fourpoint.models import protocol

CHOICES = {
    "normalise": ("none", "ratio", "softmax"),
    "phase": ("paired", "random"),
    "values": ("mark", "affine", "linear"),
    "link": ("exp", "softplus", "identity"),
    "base": ("auto", "constant", "spline"),
    "drift": ("auto", "none", "spline"),
    "form": ("auto", "dense", "scan"),
    "draw": ("even", "independent"),
    "activation": tuple(fourier.ACTIVATIONS),
}
EFFECT_ERROR = 0.005  # how far the evaluation's features may move what one past event adds inside the link
SLOWEST, FASTEST = 0.3, 3.0  # spread of the heads' first frequencies and decays: per window, per mean gap
import os
SCALE0 = float(os.environ.get("SCALE0","1"))
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
    length: Tensor
    eval_noise: Tensor
    eval_phase: Tensor

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
        link: Literal["exp", "softplus", "identity"] = "exp",
        learn_scale: bool = True,
        base: Literal["auto", "constant", "spline"] = "auto",
        drift: Literal["auto", "none", "spline"] = "auto",
        decay: bool = True,
        generator: Sequence[int] = (64, 64),
        noise: int = 1,
        embedding: int | None = None,
        width: int = 1,
        knots: int = 20,
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
            heads=heads, features=features, eval_features=eval_features, normalise=normalise, phase=phase, values=values, link=link, learn_scale=learn_scale,
            base=base, drift=drift, decay=decay, generator=tuple(generator), noise=noise, embedding=embedding, width=width,
            knots=knots, activation=activation, form=form, draw=draw, seed=seed,
        )  # fmt: skip
        _check_settings(self._settings)
        self.linear = form != "dense" and normalise != "softmax" and phase == "paired"
        random = torch.Generator().manual_seed(seed)
        self.generator = fourier.Generator(heads, noise, generator, embedding + int(decay), activation=activation, seed=seed)
        self.time_key = nn.Parameter(torch.randn(heads, embedding, generator=random))
        self.mark_key = nn.Parameter(torch.randn(heads, embedding, M, generator=random) * (0.5 if M > 1 else 0.0), requires_grad=M > 1)
        self.log_decay = nn.Parameter(torch.zeros(heads), requires_grad=decay)
        inputs = {"mark": M, "affine": M + 1, "linear": 1 + (M if M > 1 else 0)}[values]
        self.value_weight = nn.Parameter(torch.randn(heads, width, inputs, generator=random) / math.sqrt(width))
        self.value_readout = nn.Parameter(torch.ones(heads, width), requires_grad=width > 1)
        self.readout = nn.Parameter(torch.ones(heads, M), requires_grad=M > 1)
        self.bias = nn.Parameter(torch.zeros(M), requires_grad=link != "identity")
        self.log_scale = nn.Parameter(torch.zeros(M), requires_grad=link == "softplus" and learn_scale)
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("length", torch.ones((), dtype=torch.float64))
        self._build_time_parts()
        self._store_noise(eval_features or SIZES[0])
        self._drawn: tuple[Tensor, Tensor] | None = None

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
            marks, heads=heads, features=features, eval_features=eval_features, normalise=normalise, values="linear", link="softplus", learn_scale=False,
            phase="random" if normalise == "softmax" else "paired", base="constant", drift="none", decay=False, generator=generator,
            noise=noise, embedding=embedding, width=width, draw="independent", seed=seed,
        )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``, as JSON can hold them."""
        size = None if self._settings["eval_features"] is None else self.eval_noise.shape[1]
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
        self.length.fill_(float(durations.max()))
        notes.append(f"time scale: {scale:.4g} {data.unit or 'time units'} (the mean gap)")
        self._build_time_parts()
        with torch.no_grad():
            counts = np.bincount(data.mark_ids, minlength=self.marks.count) + 0.5
            self._start_at(torch.from_numpy(counts * scale / durations.sum()).to(self.bias))
            self._spread_modes(float(durations.mean()) / scale, data.events / max(len(data), 1))
        return notes

    def _start_at(self, rate: Float[Tensor, " M"]) -> None:
        """Begin with half of the mean rate in mu and half in g(b) (all of it in mu where the link is the identity)."""
        whole = self._settings["link"] == "identity"
        self.log_base.copy_((rate if whole else rate / 2).log()[:, None].expand_as(self.log_base))
        if self._settings["link"] == "exp":
            self.bias.copy_((rate / 2).log())
        elif self._settings["link"] == "softplus":
            if self._settings["learn_scale"]:
                self.log_scale.copy_((rate * SCALE0).log())
            self.bias.copy_(self.log_scale + torch.expm1(rate / 2 / self.log_scale.exp()).log())

    def _spread_modes(self, length: float, events: float) -> None:
        """Cover frequencies from one per window to one per mean gap, and decays alike; each head its own part."""
        heads = self.time_key.shape[0]
        rates = torch.logspace(math.log10(SLOWEST / max(length, 2.0)), math.log10(FASTEST), heads)
        self.time_key.mul_((rates / self.time_key.norm(dim=1))[:, None])
        self.log_decay.copy_(rates.log())
        size = 0.3 / max(1.0, events) if self._settings["normalise"] == "none" else 0.3
        sign = torch.where(torch.arange(heads) % 2 == 0, 1.0, -1.0)
        value = torch.full_like(self.value_weight, size / self.value_weight.shape[1]) * sign[:, None, None]
        if self._settings["values"] != "mark":
            value = self.value_weight * size
            value[..., 0] /= max(1.0, length)  # the slope in time: over the window a value stays of one size
        if self._settings["link"] == "identity":
            value = torch.log(torch.expm1(value.abs() / self.marks.count))  # every event adds to the rate of every mark
        self.value_weight.copy_(value)

    def _build_time_parts(self) -> None:
        s, M = self._settings, self.marks.count
        splined = s["base"] == "spline"
        self.log_base = nn.Parameter(torch.zeros(M, s["knots"] + 3 if splined else 1))
        if s["drift"] == "spline":
            self.drift = nn.Parameter(torch.zeros(1, s["knots"] + 3))
            self.mark_drift = nn.Parameter(torch.zeros(M, s["knots"] + 3), requires_grad=M > 1)

    # ------------------------------------------------------------------ the spectrum

    def redraw(self, random: torch.Generator) -> None:
        """Draw the noise of the next minibatch."""
        s = self._settings
        draw = fourier.even_noise if s["draw"] == "even" else fourier.independent_noise
        noise = draw(s["heads"], s["features"], s["noise"], random)
        phase = 2 * math.pi * torch.rand(s["heads"], s["features"], generator=random)
        self._drawn = (noise.to(self.bias), phase.to(self.bias))

    def spectrum(self, noise: Float[Tensor, "K D q"] | None = None, phase: Float[Tensor, "K D"] | None = None) -> fourier.Spectrum:
        """The modes now in use: those of the last :meth:`redraw` while training, else the evaluation's one set."""
        if noise is None or phase is None:
            if self.training and self._drawn is None:
                self.redraw(torch.Generator().manual_seed(self._settings["seed"]))
            noise, phase = self._drawn if self.training and self._drawn is not None else (self.eval_noise, self.eval_phase)
        modes = self.generator(noise.to(self.bias))
        omega = modes[..., : self.time_key.shape[1]]
        out = fourier.Spectrum(
            torch.einsum("kdr,kr->kd", omega, self.time_key),
            torch.exp(modes[..., -1] + self.log_decay[:, None]) if self._settings["decay"] else None,
            torch.einsum("kdr,krm->kdm", omega, self.mark_key),
            torch.full_like(modes[..., 0], 1 / modes.shape[1]),
            phase.to(self.bias) if self._settings["phase"] == "random" else None,
        )
        if self._settings["normalise"] == "ratio":
            return fourier.with_constant(out)
        return fourier.non_negative(out) if self._settings["link"] == "identity" else out

    def kernel(self, lags: Float[Tensor, " L"], mark: int = 0, past_mark: int = 0) -> Float[Tensor, "K L"]:
        """The score kappa_k at ``lags`` in the user's unit, per head."""
        return fourier.kernel(self.spectrum(), (lags / self.time_scale).to(self.bias), mark, past_mark)

    def rehearse(self) -> None:
        """Use few features for the validations of a training run; :meth:`settle` ends that."""
        self._store_noise(min(self._settings["eval_features"] or SIZES[0], SIZES[0]))

    @torch.no_grad()
    def settle(self, features: int | None = None) -> list[str]:
        """Fix the evaluation's features: ``features``, or those asked for when the model was made, or the fewest of
        SIZES that keep each event's effect, sum_k kappa_k v_k, within EFFECT_ERROR of what REFERENCE features give."""
        asked = features or self._settings["eval_features"]
        if asked is not None:
            self._settings["eval_features"] = asked
            self._store_noise(asked)
            return []
        lags = torch.linspace(0, 1, 257).to(self.bias) * (self.length / self.time_scale).to(self.bias)
        pairs = [(m, n) for m in range(min(self.marks.count, 4)) for n in range(min(self.marks.count, 4))]
        value = [self._values(lags[None], torch.full((1, len(lags)), n))[0].T for n in range(min(self.marks.count, 4))]
        effects = []
        for size in (REFERENCE, *SIZES):
            self._store_noise(size)
            spectrum = self.spectrum(self.eval_noise, self.eval_phase)
            parts = [fourier.kernel(spectrum, lags, m, n) * value[n] * self._readout()[:, m, None] for m, n in pairs]
            effects.append(torch.stack(parts).sum(1))
            error = float((effects[-1] - effects[0]).abs().max())
            if size != REFERENCE and error <= EFFECT_ERROR:
                break
        self._settings["eval_features"] = size
        return [f"evaluation features: {size} per head, within {error:.2g} of an event's effect on the log-rate"]

    def _store_noise(self, features: int) -> None:
        s = self._settings
        random = torch.Generator().manual_seed(s["seed"] + 1)
        if s["draw"] == "independent":
            noise = fourier.independent_noise(s["heads"], features, s["noise"], random)
        else:
            noise = fourier.fixed_noise(features, s["noise"], s["seed"]).expand(s["heads"], -1, -1)
        phase = 2 * math.pi * torch.rand(s["heads"], features, generator=random)
        self.register_buffer("eval_noise", noise.to(self.bias).contiguous())
        self.register_buffer("eval_phase", phase.to(self.bias))

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
            first = driven.new_zeros(len(driven), *driven.shape[2:]) if before is None else before.state[:, -1]
            rest = attention.scan(spectrum.rate, self._gaps(times), driven, None if before is None else first)
            state = torch.cat([first[:, None], rest], 1)
        elif before is not None:
            raise UserError("a linear form to go on from a history", f"normalise={self._settings['normalise']!r}", "Encode the whole sequence.")
        return DAPPHistory(times, start, batch.lengths, spectrum, state, batch.marks, values)

    def extend(
        self, history: DAPPHistory, time: Float[Tensor, " B"], mark: Int[Tensor, " B"], active: Bool[Tensor, " B"] | None = None
    ) -> DAPPHistory:
        """One event more. Linear forms keep the last position only: constant memory."""
        active = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        if not self.linear:
            return self._append(history, time, mark, active)
        row = torch.arange(len(time), device=time.device)
        old_time, old = history.times[row, history.lengths], history.state[row, history.lengths]
        values = self._values(self._elapsed(time[:, None], history.start), mark[:, None])
        driven = attention.drive(history.spectrum, mark[:, None], self._channels(values), active[:, None])[:, 0]
        gap = torch.where(active, (time - old_time) / self.time_scale, 0.0).to(self.bias)
        state = attention.step(history.spectrum.rate, old, gap, driven)[:, None]
        moved = torch.where(active, time, old_time)[:, None]
        return DAPPHistory(moved, history.start, torch.zeros_like(history.lengths), history.spectrum, state, None, None)

    def _append(self, h: DAPPHistory, time: Tensor, mark: Tensor, active: Tensor) -> DAPPHistory:
        slot = h.lengths + active
        if int(slot.max()) >= h.times.shape[1]:
            last = h.times.gather(1, h.lengths[:, None])
            grown = torch.cat([h.times, torch.maximum(h.times[:, -1:], last)], 1)
            h = replace(h, times=grown, marks=_widen(h.marks), values=_widen(h.values))
        value = self._values(self._elapsed(time[:, None], h.start), mark[:, None])
        here = (torch.arange(h.times.shape[1] - 1, device=time.device) == h.lengths[:, None]) & active[:, None]
        times = torch.where(here, time[:, None], h.times[:, 1:])
        times = torch.where(torch.arange(times.shape[1], device=time.device) >= slot[:, None], torch.maximum(times, time[:, None]), times)
        return replace(
            h,
            times=torch.cat([h.times[:, :1], times], 1),
            marks=torch.where(here, mark[:, None], h.marks),
            values=torch.where(here[..., None], value, h.values),
            lengths=slot,
        )

    def log_intensity(
        self, history: DAPPHistory, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None = None
    ) -> Float[Tensor, "B G Q M"]:
        """log(mu + g(z)), the logarithm taken before anything can overflow."""
        s = self._settings
        z = torch.einsum("bgqkm,km->bgqm", self.attend(history, times, seen), self._readout())
        since = times - history.start[:, None, None]
        log_base = self._log_base(since)
        if s["link"] == "identity":
            return torch.log(log_base.exp() + z) - self.time_scale.log().to(z)
        z = z + self.bias
        if s["drift"] == "spline":
            z = z + spline(self.drift + self.mark_drift, since.to(z), self.length.to(z))
        if s["link"] == "softplus":
            z = self.log_scale + _log_softplus(z - self.log_scale)
        return torch.logaddexp(log_base, z) - self.time_scale.log().to(z)

    def attend(
        self, history: DAPPHistory, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None = None
    ) -> Float[Tensor, "B G Q K M"]:
        """A_k at ``times``, before the read-out."""
        B, G, _ = times.shape
        index = torch.arange(G, device=times.device).expand(B, G) if seen is None else seen
        if not self.linear:
            query = self._elapsed(times, history.start)
            events = self._elapsed(history.times[:, 1:], history.start)
            return attention.dense(history.spectrum, query, index, events, history.marks, history.values, self._settings["normalise"])
        anchor, state = history.times, history.state
        if seen is not None:
            anchor = anchor.gather(1, seen)
            state = state[torch.arange(B, device=times.device)[:, None], seen]
        lag = ((times - anchor[:, :, None]) / self.time_scale).to(self.bias)
        sums = attention.read(history.spectrum, state, lag)
        return sums[..., 0] if self._settings["normalise"] == "none" else attention.divide(sums[..., 0], sums[..., 1])

    def intensity(self, history: DAPPHistory, times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        """lambda per mark at any times, in events per unit of the user's time."""
        return protocol.intensity(self, history, times)

    def contributions(self, history: DAPPHistory, times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q N M"]:
        """What each past event adds to z = sum_k r_km A_k, the argument of the link, for each mark; 0 for the future."""
        if history.marks is None or history.values is None:
            raise UserError("a history with its events", "one that has been extended", "Encode the whole sequence instead.")
        seen = protocol.position_before(history, times)
        query = self._elapsed(times[..., None], history.start)
        events = self._elapsed(history.times[:, 1:], history.start)
        w = attention.weights(history.spectrum, query, seen, events, history.marks, self._settings["normalise"])
        return torch.einsum("bkgqmn,bnk,km->bgnm", w, history.values, self._readout())

    @torch.no_grad()
    def bound(self, history: DAPPHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """An upper bound of the total rate on [a, b], seen from the last position and with no event in between.

        z <= b_m + max drift + the attention's bound (`maths.bounds`), and link and sum over marks are monotone. It has an
        allowance for rounding, since it is the rounded rate that must stay below.
        """
        s, eps = self._settings, torch.finfo(self.bias.dtype).eps
        z, rounding = self._attention_bound(history, a, b)
        low, high = ((x - history.start).to(self.bias) for x in (a, b))
        length = self.length.to(self.bias)
        log_base = spline_max(self.log_base, low, high, length) if s["base"] == "spline" else self.log_base[:, 0]
        z = z + rounding
        if s["link"] != "identity":
            z = z + self.bias + 16 * eps * self.bias.abs()
            if s["drift"] == "spline":
                curve = self.drift + self.mark_drift
                z = z + spline_max(curve, low, high, length) + 16 * eps * curve.abs().amax()
        if s["link"] == "softplus":
            z = self.log_scale + _log_softplus(z - self.log_scale)
        logs = torch.log(log_base.exp() + z) if s["link"] == "identity" else torch.logaddexp(log_base, z)
        logs = (logs - self.time_scale.log().to(z)).to(torch.float64)
        return (logs + 16 * eps * (1 + logs.abs())).exp().sum(-1)

    def _attention_bound(
        self, history: DAPPHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M"]]:
        """A bound of sum_k r_km A_km on [a, b], and how far rounding may carry the sum itself."""
        eps, row = torch.finfo(self.bias.dtype).eps, torch.arange(len(a), device=a.device)
        events, last = history.times[:, 1:], history.times[row, history.lengths]
        visible = attention.visible(history.lengths[:, None], events.shape[1])[:, 0]
        width = ((b - a) / self.time_scale).to(self.bias) * (1 + 4 * eps)
        if self._settings["normalise"] != "none":
            values, visible = (history.values, visible) if history.state is None else self._value_corners(history, last)
            sizes = bounds.convex_bound(values.abs(), visible, self._readout().abs())
            return bounds.convex_bound(values, visible, self._readout()), 1024 * eps * sizes
        if history.state is not None:
            reach = ((b - last) / self.time_scale).to(self.bias)
            state = bounds.moved(history.spectrum, history.state[row, history.lengths][..., 0], ((a - last) / self.time_scale).to(self.bias))
            top, size, speed = bounds.sum_bound(history.spectrum, state, width, self._readout())
            return top, eps * (32 * size + 4 * reach[:, None] * speed)
        now, past = self._elapsed(a, history.start), self._elapsed(events, history.start)
        state = bounds.gathered(history.spectrum, now, past, history.marks, history.values, visible)
        top, _, _ = bounds.sum_bound(history.spectrum, state, width, self._readout())
        sizes = torch.where(visible[..., None], history.values.abs(), 0.0).sum(1) @ self._readout().abs()
        fastest = history.spectrum.rate.abs().amax() * self._elapsed(b, history.start).to(self.bias)
        return top, eps * (64 + 8 * fastest)[:, None] * sizes

    def _value_corners(self, history: DAPPHistory, last: Float[Tensor, " B"]) -> tuple[Float[Tensor, "B N K"], Bool[Tensor, "B N"]]:
        """The extreme values that events up to ``last`` can have, where the events themselves are forgotten."""
        M = self.marks.count
        ends = torch.stack([torch.zeros_like(last), self._elapsed(last, history.start)], 1).repeat_interleave(M, 1)
        values = self._values(ends, torch.arange(M, device=last.device).repeat(2).expand(len(last), -1))
        some = history.state[torch.arange(len(last), device=last.device), history.lengths][..., 1].abs().amax((1, 2)) > 0
        return values, some[:, None].expand(-1, 2 * M)

    def knots(self, history: DAPPHistory) -> Float[Tensor, "B J"] | None:
        """Times at which a spline's third derivative jumps: integrals are cut there."""
        if "spline" not in (self._settings["base"], self._settings["drift"]):
            return None
        return history.start[:, None] + spline_knots(self.length, self._settings["knots"]).to(history.start)

    # ------------------------------------------------------------------ parts

    def _elapsed(self, times: Float[Tensor, "B ..."], start: Float[Tensor, " B"]) -> Float[Tensor, "B ..."]:
        """Time since the window's start, in mean gaps, float64."""
        return (times - start.reshape(-1, *[1] * (times.ndim - 1))) / self.time_scale

    def _gaps(self, times: Float[Tensor, "B P"]) -> Float[Tensor, "B N"]:
        return (times.diff(dim=1) / self.time_scale).to(self.bias)

    def _values(self, elapsed: Float[Tensor, "B N"], marks: Int[Tensor, "B N"]) -> Float[Tensor, "B N K"]:
        """v_ki = W_k' W_v x_i: one number per head and event."""
        s, M = self._settings, self.marks.count
        weight = torch.einsum("kp,kpi->ki", self.value_readout, self.value_weight)
        if s["link"] == "identity":
            weight = nn.functional.softplus(weight)
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

    def _log_base(self, since: Float[Tensor, "B G Q"]) -> Float[Tensor, "B G Q M"] | Float[Tensor, " M"]:
        if self._settings["base"] == "spline":
            return spline(self.log_base, since.to(self.bias), self.length.to(self.bias))
        return self.log_base[:, 0]


def _log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + e^x)), which is x - e^x/2 + ... far below 0."""
    low = x < -15
    return torch.where(low, x, nn.functional.softplus(torch.where(low, 0.0, x)).log())


def _widen(x: Tensor) -> Tensor:
    return torch.cat([x, torch.zeros_like(x[:, :1])], 1) if x.shape[1] else x.new_zeros(x.shape[0], 1, *x.shape[2:])


def _check_settings(s: dict[str, Any]) -> None:
    for name, allowed in CHOICES.items():
        if s[name] not in allowed:
            raise UserError(f"{name} to be one of {', '.join(allowed)}", f"{s[name]!r}", "Choose one of them.")
    for name in ("heads", "features", "noise", "embedding", "width", "knots"):
        if s[name] < 1:
            raise UserError(f"{name} of at least 1", f"{s[name]}", "Raise it.")
    if s["normalise"] == "ratio" and s["phase"] == "random":
        raise UserError("paired phases with normalise='ratio'", "phase='random', whose scores can be negative", "Use phase='paired' or 'softmax'.")
    if s["form"] == "scan" and s["normalise"] == "softmax":
        raise UserError("a normalisation that a scan can carry", "normalise='softmax' with form='scan'", "Use form='dense', or normalise='none' or 'ratio'.")
    if s["form"] == "scan" and s["phase"] == "random":
        raise UserError("paired phases with form='scan'", "phase='random'", "Use form='dense' or phase='paired'.")
    if s["link"] == "identity" and (s["normalise"] != "none" or s["values"] != "mark" or s["drift"] == "spline" or s["phase"] == "random"):
        raise UserError(
            "link='identity' with an unnormalised sum, values='mark', paired phases and no drift, so that the rate cannot be negative",
            f"normalise={s['normalise']!r}, values={s['values']!r}, phase={s['phase']!r}, drift={s['drift']!r}",
            "Use link='exp' or 'softplus' for those.",
        )
