r"""One layer of Deep DAPP: Fourier attention whose modes forget as the events tell them to.

Tokens x_p stand at positions p = 0 (the window's start), 1, 2, ... (the events). With u = norm(x)
and J modes, each with a decay gamma_j and a frequency theta_j,

    S_p,j   = f_p,j exp((-gamma_j + i theta_j) r_{p-1,j} (t_p - t_{p-1})) S_{p-1,j} + (B u_p)_j
    x_p    <- x_p + O [ gelu(C S_p + D u_p) * sigmoid(G u_p) ],         x_p <- x_p + MLP(norm(x_p)),

where f = sigmoid(F u + 4) is what an event leaves of the past and r = softplus(E u + .54) the pace
at which a mode's time runs after
it: both begin near 1, and with both at 1 the layer is attention with the kernel sum_j C_j
exp(-gamma_j d) cos(theta_j d) B_j.
Between events a state only turns and fades, so that its value at any time t is known from the last
position alone.

Modes begin with decays in equal ratios from the longest time in the data to the shortest gaps, and
with slow turns; some are given the frequencies at which the data keep time (`ops.periodogram`),
hardly fade, and keep to the clock: r = 1. Pace changes decay and frequency together, since a fast
mode that an event could keep from fading would oscillate at length and be a rate that no integral
resolves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, softplus

from fourpoint.kernels.autograd import Context
from fourpoint.kernels.constants import FADED, REACH
from fourpoint.models.base import History
from fourpoint.ops.recurrence import pairwise, recur

KEPT = 4.0  # the forget gate's first argument: 98% of the past stays
PACE = math.log(math.e - 1)  # softplus is 1 here
SLOW_TURNS = 0.3  # first frequencies, in units of the mode's decay
LINGER = 0.1  # decay of the modes that keep the data's rhythms, in units of the slowest
SHARE = 4  # at most one mode in so many keeps a rhythm


class Moment(NamedTuple):
    """What a layer knows just after each position: its states, and the pace at which they will turn
    and fade.
    """

    state: Complex[Tensor, "B P J"]
    pace: Float[Tensor, "B P J"]


@dataclass(frozen=True, eq=False)
class DeepHistory(History):
    """What every layer knows just after each position, and U norm(x_p)."""

    summary: Float[Tensor, "B P H"]
    state: Complex[Tensor, "B P L J"]
    pace: Float[Tensor, "B P L J"]

    def latest(self) -> DeepHistory:
        """The last real position alone: all that is needed to go on."""
        return self.at(self.lengths[:, None])

    def at(self, seen: Int[Tensor, "B G"] | None) -> DeepHistory:
        """The positions ``seen`` (all where None), as a history whose last one is the last of
        them.
        """
        if seen is None:
            return self
        row = torch.arange(len(seen), device=seen.device)[:, None]
        last = seen.shape[1] - 1
        return DeepHistory(
            times=self.times[row, seen],
            start=self.start,
            lengths=torch.full_like(self.lengths, last),
            summary=self.summary[row, seen],
            state=self.state[row, seen],
            pace=self.pace[row, seen],
            context=self.context,
        )

    def at_positions(self, rows: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> DeepHistory:
        """R positions of any rows, each a row of its own."""
        rows = rows[:, None]
        positions = positions[:, None]
        context = self.context
        if context is not None:
            context = context.select(rows[:, 0])
        return DeepHistory(
            times=self.times[rows, positions],
            start=self.start[rows[:, 0]],
            lengths=torch.zeros_like(positions[:, 0]),
            summary=self.summary[rows, positions],
            state=self.state[rows, positions],
            pace=self.pace[rows, positions],
            context=context,
        )

    def layer(self, i: int) -> Moment:
        """What layer ``i`` knows."""
        return Moment(self.state[:, :, i], self.pace[:, :, i])


class Noise(NamedTuple):
    """What is dropped while training: the share of activations, of events' effects on later ones,
    and where from.
    """

    dropout: float
    event_dropout: float
    random: torch.Generator

    def drop(self, x: Tensor, share: float, shape: tuple[int, ...]) -> Tensor:
        """``x`` with a ``share`` of it at 0 and the rest larger, one draw per element of
        ``shape``.
        """
        if share == 0:
            return x
        kept = x.new_empty(shape)
        kept.bernoulli_(1 - share, generator=self.random)
        kept.div_(1 - share)
        return x * kept


class Norm(nn.LayerNorm):
    """Layer normalisation whose gradients on a CPU do not depend on the number of threads.

    torch sums the gradients of weight and bias per thread; here each of their elements is one sum
    over all rows.
    """

    def forward(self, x: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """``x`` with mean 0 and variance 1 along its last dimension, times the weight, plus the
        bias.
        """
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            return super().forward(x)
        return _Norm.apply(x, self.weight, self.bias, self.eps)


class _Norm(torch.autograd.Function):
    """torch's layer normalisation, with gradients of weight and bias by :func:`torch.sum`."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        normed, mean, scale = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, scale)
        return normed

    @staticmethod
    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (grad,) = gradients
        x, weight, mean, scale = ctx.saved_tensors
        wanted = [True, False, False]
        of_input, _, _ = torch.ops.aten.native_layer_norm_backward(
            grad, x, weight.shape, mean, scale, weight, None, wanted
        )
        normed = (x - mean) * scale
        of_weight = (grad * normed).flatten(0, -2).sum(0)
        of_bias = grad.flatten(0, -2).sum(0)
        return of_input, of_weight, of_bias, None


class DeepLayer(nn.Module):
    """The layer above on tokens of ``width`` numbers with ``modes`` = J modes; time is in the
    model's own unit.

    Without being ``gated`` every event leaves the past as it was, and time runs at one pace: f = r
    = 1.
    """

    first_decay: Tensor
    steady: Tensor

    def __init__(self, width: int, modes: int, *, gated: bool = True) -> None:
        super().__init__()
        self.log_decay = nn.Parameter(torch.zeros(modes))
        self.turns = nn.Parameter(SLOW_TURNS * torch.randn(modes))
        self.register_buffer("first_decay", torch.ones(modes))
        # Modes whose time runs at one pace.
        self.register_buffer("steady", torch.zeros(modes, dtype=torch.bool))
        self.norm = Norm(width)
        self.inner_norm = Norm(width)
        self.drive = nn.Linear(width, 2 * modes)
        self.gates = nn.Linear(width, 2 * modes) if gated else None
        self.read = nn.Linear(2 * modes, width)
        self.skip = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        if self.gates is not None:
            nn.init.zeros_(self.gates.weight)
            nn.init.constant_(self.gates.bias[:modes], KEPT)
            nn.init.constant_(self.gates.bias[modes:], PACE)

    @torch.no_grad()
    def spread(self, slowest: float, fastest: float, rhythms: Float[Tensor, " R"]) -> None:
        """Decays from ``slowest`` to ``fastest`` in equal ratios, and some modes for the angular
        frequencies ``rhythms``.
        """
        modes = len(self.log_decay)
        first = math.log10(slowest)
        last = math.log10(fastest)
        decay = torch.logspace(first, last, modes).to(self.log_decay)
        given = rhythms[: modes // SHARE].to(decay)
        where = torch.linspace(0, modes - 1, len(given)).long()
        lingering = LINGER * slowest
        decay[where] = lingering
        self.turns[where] = given / lingering
        self.steady.zero_()
        self.steady[where] = True
        self.first_decay.copy_(decay)
        self.log_decay.copy_(decay.log())

    @property
    def decay(self) -> Float[Tensor, " J"]:
        """gamma_j."""
        return self.log_decay.exp()

    @property
    def frequency(self) -> Float[Tensor, " J"]:
        """theta_j, learned in units of the mode's first decay: slow modes change theirs slowly."""
        return self.turns * self.first_decay

    def forward(
        self,
        x: Float[Tensor, "B P H"],
        gaps: Float[Tensor, "B P"],
        before: Moment | None,
        noise: Noise | None,
        *,
        dense: bool = False,
    ) -> tuple[Float[Tensor, "B P H"], Moment]:
        """New tokens, and the moments after each. ``gaps[:, p]`` is the time since the position
        before, which for the first is ``before`` (one position) or nothing at all.
        """
        u = self.norm(x)
        lost, pace = self._gated(u)
        if before is None:
            last = pace[:, :1]
        else:
            last = before.pace
        earlier_pace = torch.cat([last, pace[:, :-1]], 1)
        lag = earlier_pace * gaps[..., None]
        fade = self.decay * lag + lost
        angle = self.frequency * lag
        driven = self._driven(u, noise)
        if before is not None:
            carried = turned(before.state[:, 0], fade[:, 0], angle[:, 0])
            first = driven[:, :1] + carried[:, None]
            driven = torch.cat([first, driven[:, 1:]], 1)
        if dense:
            state = pairwise(fade, angle, driven)
        else:
            state = recur(_factor(fade, angle), driven)
        return self._read_out(x, u, state, noise), Moment(state, pace)

    def _gated(
        self, u: Float[Tensor, "B P H"]
    ) -> tuple[Float[Tensor, "B P J"] | float, Float[Tensor, "B P J"]]:
        """-log f and r at every position."""
        if self.gates is None:
            steady = torch.ones_like(self.log_decay)
            return 0.0, steady.expand(*u.shape[:2], -1)
        kept, pace = self.gates(u).chunk(2, -1)
        pace = torch.where(self.steady, 1.0, softplus(pace))
        return softplus(-kept), pace

    def _driven(self, u: Float[Tensor, "B P H"], noise: Noise | None) -> Complex[Tensor, "B P J"]:
        """B u, and nothing from events that are dropped."""
        driven = self.drive(u)
        if noise is not None:
            one_per_event = (*u.shape[:2], 1)
            driven = noise.drop(driven, noise.event_dropout, one_per_event)
        real, imaginary = driven.chunk(2, -1)
        return torch.complex(real, imaginary)

    def _read_out(
        self,
        x: Float[Tensor, "B P H"],
        u: Float[Tensor, "B P H"],
        state: Complex[Tensor, "B P J"],
        noise: Noise | None,
    ) -> Float[Tensor, "B P H"]:
        def drop(y: Tensor) -> Tensor:
            if noise is None:
                return y
            return noise.drop(y, noise.dropout, tuple(y.shape))

        skip, gate = self.skip(u).chunk(2, -1)
        read = self.read(side_by_side(state))
        gated = gelu(read + skip) * gate.sigmoid()
        x = x + drop(self.out(gated))
        inner = self.up(self.inner_norm(x))
        inner = drop(gelu(inner))
        return x + drop(self.down(inner))

    def moved(self, moment: Moment, lag: Float[Tensor, "B P Q"]) -> Complex[Tensor, "B P Q J"]:
        """The states ``lag`` after each position."""
        own = moment.pace[:, :, None] * lag[..., None]
        fade = self.decay * own
        angle = self.frequency * own
        return turned(moment.state[:, :, None], fade, angle)


def features(
    gaps: Float[Tensor, "*S"], scales: Float[Tensor, " K"], sinusoids: int
) -> Float[Tensor, "*S F"]:
    """What is told of elapsed times: log(1 + d / s_k) - 1 for the K ``scales``, and cos and sin of
    2^j pi log(1 + d / s_1), j < ``sinusoids``.

    Past REACH times the longest scale nothing changes, so that a rate does not fall for ever and
    the next event always comes.

    The logarithms alone are so smooth that a network needs long to make anything narrow of them.
    Sinusoids resolve a share of the time that
    has passed, whatever the unit: fine just after an event, ever coarser later, so that they follow
    no clock beyond its first ticks.

    >>> features(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 10.0]), 1).shape
    torch.Size([2, 4])
    """
    within_reach = torch.minimum(gaps, REACH * scales[-1])
    logs = torch.log1p(within_reach[..., None] / scales)
    octaves = torch.arange(sinusoids, dtype=logs.dtype, device=logs.device)
    angles = logs[..., :1] * math.pi * octaves.exp2()
    return torch.cat([logs - 1, angles.cos(), angles.sin()], -1)


def turned(
    state: Complex[Tensor, "*#S J"], fade: Float[Tensor, "*S J"], angle: Float[Tensor, "*S J"]
) -> Complex[Tensor, "*S J"]:
    """exp(-fade + i angle) S."""
    return _factor(fade, angle) * state


def side_by_side(state: Complex[Tensor, "*S J"]) -> Float[Tensor, "*S J2"]:
    """Real and imaginary parts in turn, as a matrix reads them."""
    return torch.view_as_real(state).flatten(-2)


def _factor(fade: Float[Tensor, "*S J"], angle: Float[Tensor, "*S J"]) -> Complex[Tensor, "*S J"]:
    size = torch.exp((-fade).clamp(min=FADED))
    return torch.complex(size * angle.cos(), size * angle.sin())
