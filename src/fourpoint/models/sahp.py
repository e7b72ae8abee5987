r"""SAHP, the self-attentive Hawkes process: attention says where the rate jumps, where it goes from
there, and how fast.

With h_i the state of a causal transformer after event i (`models.transformer`), per mark m,

    eta, mu  = gelu(W_eta h_i + b_eta), gelu(W_mu h_i + b_mu)
        gamma = softplus(W_gamma h_i + b_gamma)
    lambda_m(t) = r_m g_m(mu_m + (eta_m - mu_m) exp(-gamma_m (t - t_i))),    t_i < t <= t_{i+1},

so that the rate starts at g(eta) after the event and goes to g(mu), up or down; g_m is the softplus
of learned scale (`neural_start`) and r_m mark m's mean rate in the training data, which lets rare
marks and frequent ones begin alike. An event's token is a vector for its mark plus the time-shifted
encoding, sines and cosines of

    w_k i + omega_k t_i + xi_k (t_i - t_{i-1}),       w_k = 10000^(-2k/D), omega_k and xi_k learned,

times in mean gaps since the window's start. The state at the start is learned and covers [start,
t_1]. Each mark is monotone between events (their sum need not be): that is the bound for sampling.
The integral is numeric.

Source: Zhang, Lipani, Kirnap and Yilmaz, "Self-attentive Hawkes process" (ICML 2020). Its printed
rate has a softmax for the
softplus and an exponent that grows; this is the form that its text describes. It prints the shift
as omega_k t_i, its authors' code as xi_k (t_i - t_{i-1}); here are both.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, gelu, softplus

from fourpoint.events import Batch, Dataset, MarkSpace
from fourpoint.kernels.autograd import Context
from fourpoint.models.base import space_without_places
from fourpoint.models.neural_start import ScaledSoftplus, time_scale_of
from fourpoint.models.poisson import mean_rates
from fourpoint.models.transformer import (
    Encoded,
    Encoder,
    FromEncoder,
    frequencies,
    refuse_to_go_on,
    sinusoids,
)

# gelu of it is log(e - 1), where a softplus of scale 1 is 1: rates begin at their means
FIRST_END = 0.710927
FASTEST_SHIFT = 2.0  # of xi_k at first, in radians per mean gap, either sign


class SAHP(FromEncoder):
    """Self-attentive Hawkes process.

    Args:
        marks: the mark space of the data (`data.marks`), a number of types, or None.
        hidden: the size of a state.
        layers: the number of attention layers.
        heads: the number of heads of each layer.
        inner: the width of a network after each attention; 0 for none, as in the paper's
            equations.
        dropout: the share of outputs that are set to 0 in training.
        seed: of the initial weights.

    ``recipe`` holds the default settings of `fit` for this model. Raises :class:`UserError` if
    sizes do not fit together.

    >>> from fourpoint.events import Sequence
    >>> model, batch = SAHP(hidden=8, heads=2).eval(), Sequence([1.0], start=0.0, stop=2.0).batch()
    >>> tuple(
    ...     model.intensity(
    ...         model.encode(batch), torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    ...     ).shape
    ... )
    (1, 2, 1)
    """

    step: Tensor

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 4,
        inner: int = 0,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.marks = space_without_places(marks, "sahp")
        self._settings = dict(
            hidden=hidden,
            layers=layers,
            heads=heads,
            inner=inner,
            dropout=dropout,
            seed=seed,
        )
        M = self.marks.count
        random = torch.Generator().manual_seed(seed)
        self.encoder = Encoder(
            hidden,
            layers=layers,
            heads=heads,
            inner=inner,
            dropout=dropout,
            random=random,
        )
        self.tokens = nn.Parameter(0.1 * torch.randn(M, hidden, generator=random))
        self.frequency = nn.Parameter(_first_frequencies(hidden // 2, 100.0))
        self.readout = nn.Parameter(torch.zeros(3 * M, hidden))
        self.shift = nn.Parameter(
            torch.tensor([FIRST_END, FIRST_END, math.log(math.e - 1)]).repeat_interleave(M)
        )
        self.link = ScaledSoftplus(M)
        self.register_buffer(
            "step",
            frequencies(hidden // 2, 10_000.0 ** (2 / hidden - 1)),
            persistent=False,
        )
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("log_rate", torch.zeros(M, dtype=torch.float64))

    def initialise(self, data: Dataset) -> list[str]:
        """Count time in mean gaps, begin at the mean rate of every mark, and spread omega from a
        mean gap to the longest window.
        """
        scale = time_scale_of(data)
        rates = mean_rates(data, self.marks)
        longest = float(data.durations.max()) / scale
        with torch.no_grad():
            self.time_scale.fill_(scale)
            self.log_rate.copy_(rates.log())
            self.frequency.copy_(_first_frequencies(self.frequency.shape[1], longest))
        unit = data.unit or "time units"
        return [f"time scale: {scale:.4g} {unit} (the mean gap)"]

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: Encoded | None = None) -> Encoded:
        """States at all positions."""
        if before is not None:
            refuse_to_go_on()
        tokens = self._tokens(batch.marks, *_clocks(batch))
        return self.encoder.encode(batch, tokens)

    def extend(
        self,
        history: Encoded,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> Encoded:
        """One event more, against the keys and values of those before."""
        last = history.last()
        if active is not None:
            time = torch.where(active, time, last)
        since = time - history.start
        token = self._tokens(mark, since, time - last, history.lengths + 1)
        return self.encoder.append(history, token, time, active)

    @torch.no_grad()
    def upper_bound(
        self,
        history: Encoded,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """An upper bound of the total rate on [a, b], seen from the last position and with no event
        in between.

        It is the sum over marks of the larger end. There is an allowance for rounding, since it is
        the rounded rate that must
        stay below: z is off by a few units in the last place of eta and mu, and the link magnifies
        that by at most 1 / s.
        """
        ends = torch.stack([a, b], 1)[:, None]
        logs = self.log_intensity(history, ends, history.lengths[:, None])
        logs = logs[:, 0].amax(1).to(torch.float64)
        _, states = history.at(history.lengths[:, None])
        eta, mu, _ = self._curves(states)
        eps = torch.finfo(eta.dtype).eps
        size = (eta.abs() + mu.abs())[:, 0]
        magnified = size * (-self.link.log_scale).exp()
        rounding = 16 * eps * (1 + logs.abs() + self.log_rate.abs() + magnified)
        return (logs + rounding).exp().sum(-1)

    def shortest_time(self, history: Encoded) -> Float[Tensor, " B"]:
        """One over the fastest gamma."""
        _, states = history.at(None)
        _, _, gamma = self._curves(states)
        fastest = gamma.amax((1, 2)).to(torch.float64)
        tiny = torch.finfo(fastest.dtype).tiny
        return self.time_scale / fastest.clamp(min=tiny)

    # ------------------------------------------------------------------ parts

    def _tokens(
        self,
        marks: Int[Tensor, "*S"],
        since: Float[Tensor, "*S"],
        gaps: Float[Tensor, "*S"],
        index: Int[Tensor, "*S"],
    ) -> Float[Tensor, "*S D"]:
        """What an event says to the encoder: its mark, and its time."""
        own = self.tokens if self.marks.count == 1 else embedding(marks, self.tokens)
        return own + self._sinusoids(since, gaps, index)

    def _sinusoids(
        self,
        since: Float[Tensor, "*S"],
        gaps: Float[Tensor, "*S"],
        index: Int[Tensor, "*S"],
    ) -> Float[Tensor, "*S D"]:
        """What an event's time says: when it was, how long after the one before, and the how
        manieth it is.
        """
        kind = since.dtype
        each = torch.stack([since, gaps, index.to(kind)], -1)
        of_times = self.frequency.to(kind) / self.time_scale
        of_index = self.step.to(kind)[None]
        pace = torch.cat([of_times, of_index]) / (2 * math.pi)
        return sinusoids(each @ pace, self.tokens.dtype)

    def _inside(
        self,
        history: Encoded,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None,
    ) -> Float[Tensor, "B G Q M"]:
        """What the link is applied to: mu + (eta - mu) exp(-gamma lag)."""
        anchor, states = history.at(seen)
        lag = (times - anchor[..., None]) / self.time_scale
        eta, mu, gamma = self._curves(states)
        return _Slide.apply(eta, mu, gamma, lag.to(states))

    def _curves(
        self,
        states: Float[Tensor, "B G D"],
    ) -> tuple[Float[Tensor, "B G M"], Float[Tensor, "B G M"], Float[Tensor, "B G M"]]:
        """eta, mu and gamma after each position, from products laid out so that each of them is
        contiguous for one mark.
        """
        M = self.marks.count
        B, G, D = states.shape
        out = torch.addmm(self.shift[:, None], self.readout, states.reshape(-1, D).T)
        eta, mu = gelu(out[: 2 * M]).chunk(2)
        gamma = softplus(out[2 * M :])
        return (
            eta.view(M, B, G).permute(1, 2, 0),
            mu.view(M, B, G).permute(1, 2, 0),
            gamma.view(M, B, G).permute(1, 2, 0),
        )


class _Slide(torch.autograd.Function):
    """mu + (eta - mu) exp(-gamma lag), with its gradient written out: a third of the passes over
    memory.
    """

    @staticmethod
    def forward(
        ctx: Context,
        eta: Float[Tensor, "B G M"],
        mu: Float[Tensor, "B G M"],
        gamma: Float[Tensor, "B G M"],
        lag: Float[Tensor, "B G Q"],
    ) -> Float[Tensor, "B G Q M"]:
        fade = (gamma[:, :, None] * -lag[..., None]).exp_()
        drop = eta - mu
        ctx.save_for_backward(fade, drop, gamma, lag)
        return torch.addcmul(mu[:, :, None], drop[:, :, None], fade)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *outside: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        fade, drop, gamma, lag = ctx.saved_tensors
        faded = outside[0] * fade
        to_eta = faded.sum(2)
        to_mu = outside[0].sum(2) - to_eta
        to_lag = None
        if ctx.needs_input_grad[3]:
            per_lag = (drop * gamma)[:, :, None]
            to_lag = -(faded * per_lag).sum(-1)
        by_lag = faded.mul_(lag[..., None]).sum(2)
        to_gamma = -by_lag * drop
        return to_eta, to_mu, to_gamma, to_lag


def _clocks(batch: Batch) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"], Int[Tensor, "B N"]]:
    """When each event was, since the window's start; how long after the one before; and the how
    manieth it is.
    """
    since = batch.times - batch.start[:, None]
    gaps = batch.edges[:, :-1].diff(dim=1)
    number = torch.arange(1, batch.times.shape[1] + 1, device=batch.times.device)
    return since, gaps, number.expand(batch.times.shape)


def _first_frequencies(count: int, length: float) -> Float[Tensor, "2 F"]:
    """omega, then xi: half of the sinusoids begin with the time alone, from 1 to 1 / length, the
    others with the gap alone.
    """
    half = count // 2
    omega = frequencies(half, 1 / max(length, 2.0))
    xi = torch.linspace(-FASTEST_SHIFT, FASTEST_SHIFT, count - half)
    return torch.block_diag(omega.float()[None], xi[None])
