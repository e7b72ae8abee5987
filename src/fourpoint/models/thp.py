r"""THP, the transformer Hawkes process: a state after each event, and from there a straight line
inside a softplus.

With h_i the state of a causal transformer after event i (`models.transformer`), per mark m,

    lambda_m(t) = r_m g_m(alpha_m (t - t_i) / c + w_m' h_i + b_m),       t_i < t <= t_{i+1},

g_m the softplus of learned scale (`neural_start`), c the mean gap of the training data and r_m mark
m's mean rate there, which lets rare marks and frequent ones begin alike. An event's token is a
vector for its mark plus sines and cosines of theta_k t_i, t_i in mean gaps since the window's start
and theta_k from 1 down to one radian per longest window. The state at the start is learned and
covers [start, t_1]. Each mark is monotone between events: that is the bound for sampling. The
integral is numeric.

Source: Zuo, Jiang, Li, Zhao and Zha, "Transformer Hawkes process" (ICML 2020). It divides t - t_i
by t_i, which is a division by
0 for an event at the window's start (its authors' code adds 1, of whatever unit), and makes the
same pattern mean another thing an hour later; here it is divided by c. That code also goes wrong in
two ways that raise the score it reports: event i is scored from h_i, which has seen it, and the
integral covers the type that happened and no other. Here event i is scored from h_{i-1}, and the
integral is over all types.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from fourpoint.events import Batch, Dataset, MarkSpace
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


class THP(FromEncoder):
    """Transformer Hawkes process.

    Args:
        marks: the mark space of the data (`data.marks`), a number of types, or None.
        hidden: the size of a state.
        layers: the number of attention layers.
        heads: the number of heads of each layer.
        inner: the width of the network after each attention; None for twice ``hidden``.
        dropout: the share of outputs that are set to 0 in training.
        seed: of the initial weights.

    ``recipe`` holds the default settings of `fit` for this model. Raises :class:`UserError` if
    sizes do not fit together.

    >>> from fourpoint.events import Sequence
    >>> model, batch = THP(hidden=8, heads=2).eval(), Sequence([1.0], start=0.0, stop=2.0).batch()
    >>> tuple(
    ...     model.intensity(
    ...         model.encode(batch), torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    ...     ).shape
    ... )
    (1, 2, 1)
    """

    frequency: Tensor

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 4,
        inner: int | None = None,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.marks = space_without_places(marks, "thp")
        inner = 2 * hidden if inner is None else inner
        self._settings = dict(
            hidden=hidden, layers=layers, heads=heads, inner=inner, dropout=dropout, seed=seed
        )
        M = self.marks.count
        random = torch.Generator().manual_seed(seed)
        self.encoder = Encoder(
            hidden, layers=layers, heads=heads, inner=inner, dropout=dropout, random=random
        )
        self.tokens = nn.Parameter(0.1 * torch.randn(M, hidden, generator=random))
        self.readout = nn.Parameter(torch.zeros(M, hidden))
        self.base = nn.Parameter(torch.full((M,), math.log(math.e - 1)))
        self.time_weight = nn.Parameter(torch.zeros(M))
        self.link = ScaledSoftplus(M)
        self.register_buffer("frequency", frequencies(hidden // 2, 0.01))
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("log_rate", torch.zeros(M, dtype=torch.float64))

    def initialise(self, data: Dataset) -> list[str]:
        """Count time in mean gaps, begin at the mean rate of every mark, and spread theta from a
        mean gap to the longest window.
        """
        scale = time_scale_of(data)
        self.time_scale.fill_(scale)
        self.log_rate.copy_(mean_rates(data, self.marks).log())
        self.frequency.copy_(
            frequencies(len(self.frequency), 1 / max(float(data.durations.max()) / scale, 2.0))
        )
        return [f"time scale: {scale:.4g} {data.unit or 'time units'} (the mean gap)"]

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: Encoded | None = None) -> Encoded:
        """States at all positions."""
        if before is not None:
            refuse_to_go_on()
        return self.encoder.encode(
            batch, self._tokens(batch.marks, batch.times - batch.start[:, None])
        )

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
        time = time if active is None else torch.where(active, time, history.last())
        return self.encoder.append(history, self._tokens(mark, time - history.start), time, active)

    @torch.no_grad()
    def upper_bound(
        self, history: Encoded, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """An upper bound of the total rate on [a, b], seen from the last position and with no event
        in between.

        It is the sum over marks of the larger end. There is an allowance for rounding, since it is
        the rounded rate that must
        stay below: z is off by a few units in the last place of its two parts, and the link
        magnifies that by at most 1 / s.
        """
        anchor, states = history.at(history.lengths[:, None])
        ends = torch.stack([a, b], 1)
        logs = (
            self.log_intensity(history, ends[:, None], history.lengths[:, None])[:, 0]
            .amax(1)
            .to(torch.float64)
        )
        eps = torch.finfo(states.dtype).eps
        reach = ((b[:, None] - anchor) / self.time_scale).to(states)
        size = linear(states, self.readout, self.base)[:, 0].abs() + reach * self.time_weight.abs()
        rounding = (
            16 * eps * (1 + logs.abs() + self.log_rate.abs() + size * (-self.link.log_scale).exp())
        )
        return (logs + rounding).exp().sum(-1)

    def shortest_time(self, history: Encoded) -> Float[Tensor, " B"]:
        """How long the steepest line takes to cross the bend of its link."""
        fastest = (self.time_weight.abs() * (-self.link.log_scale).exp()).max().to(torch.float64)
        return (self.time_scale / fastest.clamp(min=torch.finfo(fastest.dtype).tiny)).expand_as(
            history.start
        )

    # ------------------------------------------------------------------ parts

    def _inside(
        self, history: Encoded, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None
    ) -> Float[Tensor, "B G Q M"]:
        """What the link is applied to: a straight line in the time since the last event."""
        anchor, states = history.at(seen)
        lag = ((times - anchor[..., None]) / self.time_scale).to(states)
        return torch.addcmul(
            linear(states, self.readout, self.base)[:, :, None], lag[..., None], self.time_weight
        )

    def _tokens(
        self, marks: Int[Tensor, "*S"], since: Float[Tensor, "*S"]
    ) -> Float[Tensor, "*S D"]:
        """What an event says to the encoder: its mark, and when it was."""
        own = self.tokens if self.marks.count == 1 else embedding(marks, self.tokens)
        return own + self._sinusoids(since)

    def _sinusoids(self, since: Float[Tensor, "*S"]) -> Float[Tensor, "*S D"]:
        """What its time says."""
        return sinusoids(
            since[..., None] * (self.frequency.to(since.dtype) / (2 * math.pi * self.time_scale)),
            self.tokens.dtype,
        )
