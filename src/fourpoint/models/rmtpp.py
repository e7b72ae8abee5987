r"""The recurrent marked temporal point process: a recurrent network sums up the past, and time
since the last event only tilts.

    h_i  = tanh(e(m_i) + F f(d_i) + U h_{i-1}),  f(d) = (log(1 + d), d / (1 + d)),
        d_i = t_i - t_{i-1}
    lambda(t)   = exp(v' h_i + w (t - t_i) + b)                               for t_i < t <= t_{i+1}
    lambda_m(t) = lambda(t) softmax(V h_i + c)_m

d is in mean gaps, e(m) a vector per mark, w one number of either sign. Before the first event v'
h_0 + b and V h_0 + c are constants; they are learned as such, and h_0 as what the network begins
from. The rate is an exponential in t, so that its integral and the inverse of that have closed
forms,

    int_a^b lambda = lambda(a) (exp(w (b - a)) - 1) / w,       (b - a) lambda(a) where w = 0,

and a sampler can draw the next event exactly. With w < 0 the integral stays finite: "no event ever"
is a possible draw.
Source: Du, Dai, Trivedi, Upadhyay, Gomez-Rodriguez and Song, "Recurrent Marked Temporal Point
Processes" (KDD 2016),
equations (8) to (13).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.kernels.autograd import Context
from fourpoint.models.base import History, PointProcess, space_without_places
from fourpoint.models.neural_start import time_scale_of
from fourpoint.models.poisson import mean_rates
from fourpoint.ops.quadrature import Unconverged


@dataclass(frozen=True, eq=False)
class RMTPPHistory(History):
    """The network's state at each position, and the log-rate per mark just after it, per mean
    gap.
    """

    state: Float[Tensor, "B P H"]
    level: Float[Tensor, "B P M"]

    def latest(self) -> RMTPPHistory:
        """The last real position alone: all that is needed to go on."""
        time, state, level = _last(self)
        return RMTPPHistory(
            times=time[:, None],
            start=self.start,
            lengths=torch.zeros_like(self.lengths),
            state=state[:, None],
            level=level[:, None],
        )


class RMTPP(PointProcess[RMTPPHistory]):
    """Recurrent marked temporal point process.

    Args:
        marks: the mark space of the data (`data.marks`), a number of types, or None.
        hidden: the size of the network's state.
        seed: of the initial weights.

    ``recipe`` holds the default settings of `fit` for this model. Raises :class:`UserError` if
    ``hidden`` is below 1.

    >>> from fourpoint.events import Sequence
    >>> model, batch = RMTPP(hidden=4), Sequence([1.0], start=0.0, stop=2.0).batch()
    >>> model.intensity(
    ...     model.encode(batch), torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    ... ).flatten().tolist()
    [1.0, 1.0]
    """

    linear = True
    has_closed_integral = True
    has_upper_bound = True
    has_inverse = True
    one_thread = True  # trained so on a CPU: its operations are small
    recipe: ClassVar[dict[str, Any]] = dict(
        steps=1500,
        step_events=4096,
        learning_rate=1e-2,
        weight_decay=0.1,
    )
    time_scale: Tensor

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        hidden: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if hidden < 1:
            raise UserError(
                "a state of at least 1 number",
                f"hidden={hidden}",
                "Pass hidden=64, say.",
            )
        self.marks = space_without_places(marks, "rmtpp")
        self._settings = dict(hidden=hidden, seed=seed)
        M = self.marks.count
        random = torch.Generator().manual_seed(seed)
        embedding = torch.randn(M, hidden, generator=random)
        gap_weight = torch.randn(2, hidden, generator=random)
        recurrent = 2 * torch.rand(hidden, hidden, generator=random) - 1
        self.embedding = nn.Parameter(embedding / math.sqrt(hidden))
        self.gap_weight = nn.Parameter(gap_weight / math.sqrt(2))
        self.recurrent = nn.Parameter(recurrent / math.sqrt(hidden))
        self.first = nn.Parameter(torch.zeros(hidden))
        # In many data sets every window opens with an event, whose likelihood has no maximum: it
        # must not pull at v, V, b and c.
        self.first_level = nn.Parameter(torch.zeros(M))
        # Row 0 is v' h + b; the others are the marks' V h + c, of which one mark alone needs none.
        outputs = M + 1 if M > 1 else 1
        self.readout = nn.Parameter(torch.zeros(hidden, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.time_weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    def initialise(self, data: Dataset) -> list[str]:
        """Count time in mean gaps, and begin at the mean rate of every mark whatever the past."""
        scale = time_scale_of(data)
        rates = mean_rates(data, self.marks) * scale
        total = rates.sum()
        log_shares = (rates / total).log()
        with torch.no_grad():
            self.time_scale.fill_(scale)
            self.first_level.copy_(rates.log())
            self.bias[0] = total.log()
            self.bias[1:] = log_shares[: len(self.bias) - 1]
        unit = data.unit or "time units"
        return [f"time scale: {scale:.4g} {unit} (the mean gap)"]

    def training_log_likelihood(
        self,
        batch: Batch,
        nodes: int,
        random: torch.Generator,
        convention: str,
    ) -> Float[Tensor, " B"]:
        """The exact log-likelihood."""
        return self.exact_log_likelihood(batch, convention)

    def exact_log_likelihood(self, batch: Batch, convention: str = "window") -> Float[Tensor, " B"]:
        """Each sequence's log-likelihood in closed form, with gradient: training needs no random
        nodes.

        In the convention "gaps" the first event and what lies before it or after the last do not
        count.
        """
        gaps = self._in_mean_gaps(batch.edges.diff(dim=1).T.contiguous())
        first, opening = self._opening(len(batch.start))
        states = self._states(gaps[:-1], batch.marks.T, first)
        scored = batch.valid.T.clone(memory_format=torch.contiguous_format)
        if convention == "gaps":
            scored[:1] = False
            gaps = torch.where(pad(scored, (0, 0, 0, 1)), gaps, 0.0)
        value = _Score.apply(
            self._after_events(states), opening, self.time_weight, batch.marks.T, gaps, scored
        )
        return value - scored.sum(0) * self.time_scale.log().to(value)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: RMTPPHistory | None = None) -> RMTPPHistory:
        """The states at all positions, event after event."""
        if before is None:
            start = anchor = batch.start
            first, opening = self._opening(len(batch.start))
        else:
            start = before.start
            anchor, first, opening = _last(before)
        times = torch.cat([anchor[:, None], batch.times], 1)
        gaps = self._in_mean_gaps(times.diff(dim=1).T)
        states = self._states(gaps, batch.marks.T, first)
        level = self._levels(states, opening)
        return RMTPPHistory(
            times=times,
            start=start,
            lengths=batch.lengths,
            state=states.transpose(0, 1),
            level=level.transpose(0, 1).contiguous(),
        )

    def extend(
        self,
        history: RMTPPHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> RMTPPHistory:
        """One event more; only the last position is kept."""
        if active is None:
            active = torch.ones_like(mark, dtype=torch.bool)
        last, old, level = _last(history)
        gap = self._in_mean_gaps(torch.where(active, time - last, 0.0))
        states = self._states(gap[None], mark[None], old)
        levels = self._levels(states, level)
        state = torch.where(active[:, None], states[1], states[0])
        level = torch.where(active[:, None], levels[1], levels[0])
        moved = torch.where(active, time, last)
        return RMTPPHistory(
            times=moved[:, None],
            start=history.start,
            lengths=torch.zeros_like(history.lengths),
            state=state[:, None],
            level=level[:, None],
        )

    def log_intensity(
        self,
        history: RMTPPHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda per mark: a straight line in the time since the last event."""
        anchor, level = history.at_seen(seen, history.level)
        lag = ((times - anchor[..., None]) / self.time_scale).to(level)
        at_event = level - self.time_scale.log().to(level)
        trend = self.time_weight * lag
        return at_event[:, :, None] + trend[..., None]

    def closed_integral(
        self,
        history: RMTPPHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b lambda per mark in closed form, in float64. Raises :class:`Unconverged` where it
        exceeds every float.

        With a gradient it is infinite there instead: training then says at which step.
        """
        anchor, level = history.at_seen(seen, history.level)
        lag = (a - anchor) / self.time_scale
        width = (b - a) / self.time_scale
        mean = _LogMeanExp.apply(self.time_weight * width)
        trend = self.time_weight * lag + mean
        logs = level.double() + trend[..., None]
        width = width[..., None]
        mass = width * torch.where(width > 0, logs, 0.0).exp()
        finite = mass.isfinite()
        if not (mass.requires_grad or bool(finite.all())):
            row, group = (int(i) for i in torch.nonzero(~finite)[0, :2])
            received = float(mass[row, group].sum())
            left = float(a[row, group])
            right = float(b[row, group])
            raise Unconverged(
                f"expected a finite integral of the intensity; received {received} over "
                f"[{left:g}, {right:g}] of row {row}: the rate grows by a factor of "
                f"exp({float(self.time_weight):.3g}) per mean gap. Train longer or with a lower "
                "learning rate, or cut long windows."
            )
        return mass

    @torch.no_grad()
    def inverse(
        self,
        history: RMTPPHistory,
        a: Float[Tensor, " B"],
        mass: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """When the integral of the total rate from ``a``, seen from the last position, reaches
        ``mass``; inf where it never does.

            t = a + log(1 + w mass / lambda(a)) / w,        in mean gaps

        With ``mass`` a unit exponential this is the next event. float64.

        >>> from fourpoint.events import Sequence
        >>> model, past = (
        ...     RMTPP(hidden=4),
        ...     RMTPP(hidden=4).encode(Sequence([], start=0.0, stop=2.0).batch()),
        ... )
        >>> model.inverse(past, torch.tensor([0.5]).double(), torch.tensor([2.0]).double()).tolist()
        [2.5]
        """
        last, _, level = _last(history)
        time_weight = self.time_weight.double()
        trend = time_weight * (a - last) / self.time_scale
        log_rate = level.double().logsumexp(-1) + trend
        flat = mass * (-log_rate).exp()  # how long it would take at the rate at a
        change = time_weight * flat
        never = change <= -1
        slowed = _log1p_over(torch.where(never, 0.0, change))
        wait = torch.where(never, torch.inf, flat * slowed)
        return a + self.time_scale * wait

    @torch.no_grad()
    def upper_bound(
        self,
        history: RMTPPHistory,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """The largest total rate on [a, b] seen from the last position, at one of the ends, with an
        allowance for rounding.
        """
        times = torch.stack([a, b], 1)[:, None]
        ends = self.log_intensity(history, times, history.lengths[:, None])
        ends = ends[:, 0].double()
        eps = torch.finfo(self.time_weight.dtype).eps
        _, _, level = _last(history)
        largest = level.double().abs().amax(1)
        size = largest + self.time_scale.log().abs()
        allowance = 16 * eps * (1 + ends.abs() + size[:, None, None])
        return (ends + allowance).exp().sum(-1).amax(1)

    # ------------------------------------------------------------------ parts

    def _in_mean_gaps(self, gaps: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return (gaps / self.time_scale).to(self.time_weight)

    def _states(
        self,
        gaps: Float[Tensor, "N B"],
        marks: Int[Tensor, "N B"],
        first: Float[Tensor, "B H"],
    ) -> Float[Tensor, "P B H"]:
        """h_0, which is ``first``, and h_1 to h_N."""
        saturating = gaps / (1 + gaps)
        features = torch.stack([torch.log1p(gaps), saturating], -1)
        return _Recurrence.apply(
            self.embedding, marks, features, self.gap_weight, first, self.recurrent
        )

    def _opening(self, sequences: int) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B M"]]:
        """h_0 and the level before the first event."""
        return self.first.expand(sequences, -1), self.first_level.expand(sequences, -1)

    def _levels(
        self,
        states: Float[Tensor, "P B H"],
        opening: Float[Tensor, "B M"],
    ) -> Float[Tensor, "P B M"]:
        """The log-rate per mark at lag 0, per mean gap: ``opening`` at the first position, from the
        states after it.
        """
        return torch.cat([opening[None], self._after_events(states)[1:]])

    def _after_events(self, states: Float[Tensor, "P B H"]) -> Float[Tensor, "P B M"]:
        """The log-rate per mark at lag 0, per mean gap, that each of ``states`` stands for."""
        flat = torch.addmm(self.bias, states.flatten(0, 1), self.readout)
        level = flat.unflatten(0, states.shape[:2])
        if self.marks.count > 1:
            log_shares = level[..., 1:].log_softmax(-1)
            level = level[..., :1] + log_shares
        return level


class _Recurrence(torch.autograd.Function):
    """h_n = tanh(e(m_n) + F f_n + U h_{n-1}) for n = 1..N, h_0 before them, with the gradient
    written out: two small operations per event in each direction.

    In the loop stands s_n = (1 + h_n) / 2, the logistic function of twice the argument of tanh,
    which torch computes several times faster than tanh:

        s_n = sigmoid(2 (e(m_n) + F f_n) - 2 U 1 + 4 U s_{n-1}).
    """

    @staticmethod
    def forward(
        ctx: Context,
        table: Float[Tensor, "M H"],
        marks: Int[Tensor, "N B"],
        features: Float[Tensor, "N B F"],
        across: Float[Tensor, "F H"],
        first: Float[Tensor, "B H"],
        weight: Float[Tensor, "H H"],
    ) -> Float[Tensor, "P B H"]:
        own = table[0] if len(table) == 1 else table[marks.flatten()]
        flat = features.flatten(0, 1)
        shifted = own - weight.sum(0)
        states = table.new_empty(len(marks) + 1, *first.shape)
        torch.add(0.5, first, alpha=0.5, out=states[0])
        torch.mm(flat, across, out=states[1:].flatten(0, 1)).add_(shifted).mul_(2.0)
        state, *rows = states.unbind(0)
        four = 4 * weight
        for row in rows:
            state = row.addmm_(state, four).sigmoid_()
        states.mul_(2.0).sub_(1.0)
        states[0] = first
        ctx.save_for_backward(table, marks, flat, across, states, weight)
        return states

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Context,
        *outside: Tensor,
    ) -> tuple[Tensor, None, Tensor | None, Tensor, Tensor, Tensor]:
        table, marks, features, across, states, weight = ctx.saved_tensors
        total = outside[0].clone(memory_format=torch.contiguous_format)
        transposed = weight.T.contiguous()
        later = states[1:]
        tanh_gradient = torch.addcmul(weight.new_ones(()), later, later, value=-1)
        *earlier, row = total.unbind(0)
        factors = tanh_gradient.unbind(0)
        for factor, row_before in zip(reversed(factors), reversed(earlier), strict=True):
            row.mul_(factor)
            row = row_before.addmm_(row, transposed)
        inward = total[1:].flatten(0, 1)
        if len(table) > 1:
            to_table = torch.zeros_like(table)
            to_table.index_add_(0, marks.flatten(), inward)
        else:
            to_table = inward.sum(0, keepdim=True)
        to_features = None
        if ctx.needs_input_grad[2]:
            to_features = (inward @ across.T).unflatten(0, marks.shape)
        to_across = features.T @ inward
        to_weight = states[:-1].flatten(0, 1).T @ inward
        return to_table, None, to_features, to_across, total[0], to_weight


class _Score(torch.autograd.Function):
    """sum_i log lambda(t_i) - int lambda per sequence, in mean gaps, from the log-rates per mark at
    lag 0: ``opening`` at the first position, ``level`` at the others. Events count where ``valid``;
    ``gaps`` are 0 where they do not count. The gradient is written out.
    """

    @staticmethod
    def forward(
        ctx: Context,
        level: Float[Tensor, "P B M"],
        opening: Float[Tensor, "B M"],
        time_weight: Float[Tensor, ""],
        marks: Int[Tensor, "N B"],
        gaps: Float[Tensor, "P B"],
        valid: Bool[Tensor, "N B"],
    ) -> Float[Tensor, " B"]:
        level = torch.cat([opening[None], level[1:]])
        if level.shape[2] == 1:
            total = level[..., 0]
            own = total[:-1]
        else:
            total = level.logsumexp(-1)
            own = level[:-1].gather(2, marks[..., None])[..., 0]
        tilt = time_weight * gaps
        log_mean = torch.where(gaps > 0, total + _log_mean_exp(tilt), 0.0)
        mass = gaps * log_mean.exp_()
        shares = (level - total[..., None]).exp_() if level.shape[2] > 1 else None
        ctx.save_for_backward(mass, tilt, gaps, valid, marks, shares)
        logs = torch.where(valid, own + tilt[:-1], 0.0)
        return logs.sum(0) - mass.sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *outside: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        mass, tilt, gaps, valid, marks, shares = ctx.saved_tensors
        to_own = torch.where(valid, outside[0], 0.0)
        to_total = mass * -outside[0]
        by_events = torch.dot(to_own.flatten(), gaps[:-1].flatten())
        by_integral = (to_total * gaps).mul_(_log_mean_exp_derivative(tilt)).sum()
        if shares is None:
            to_level = to_total
            to_level[:-1] += to_own
            to_level = to_level[..., None]
        else:
            to_level = shares * to_total[..., None]
            to_level[:-1].scatter_add_(2, marks[..., None], to_own[..., None])
        to_opening = to_level[0].clone()
        to_level[0] = 0.0
        return to_level, to_opening, by_events + by_integral, None, None, None


class _LogMeanExp(torch.autograd.Function):
    """:func:`_log_mean_exp` with a gradient that is exact near 0."""

    @staticmethod
    def forward(ctx: Context, x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        ctx.save_for_backward(x)
        return _log_mean_exp(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *outside: Tensor) -> Tensor:
        return outside[0] * _log_mean_exp_derivative(*ctx.saved_tensors)


def _log_mean_exp(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """log((e^x - 1) / x), the logarithm of the mean of e^s over s from 0 to x, without overflow.

    >>> _log_mean_exp(torch.tensor([0.0, 1.0, 1000.0], dtype=torch.float64)).tolist()
    [0.0, 0.5413248546129181, 993.0922447210179]
    """
    tiny = torch.finfo(x.dtype).tiny
    less = x.abs().clamp_(min=tiny).neg_()
    mean = torch.expm1(less).div_(less)
    return mean.log_().add_(x.relu())


def _log_mean_exp_derivative(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """1 / (1 - e^-x) - 1 / x, which is 1/2 + x / 12 - x^3 / 720 near 0."""
    small = x.abs() < 1e-2
    y = torch.where(small, 1.0, x)
    near = (x * x).mul_(-1 / 720).add_(1 / 12).mul_(x).add_(0.5)
    far = torch.expm1(-y).reciprocal_().neg_().sub_(y.reciprocal())
    return torch.where(small, near, far)


def _last(
    history: RMTPPHistory,
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B H"], Float[Tensor, "B M"]]:
    """When the last real position begins, the state there, and the level."""
    row = torch.arange(len(history.lengths), device=history.times.device)
    return (
        history.times[row, history.lengths],
        history.state[row, history.lengths],
        history.level[row, history.lengths],
    )


def _log1p_over(x: Tensor) -> Tensor:
    """log(1 + x) / x, which is 1 at x = 0.

    >>> _log1p_over(torch.tensor([0.0, 1e-9, 1.0, torch.inf], dtype=torch.float64)).tolist()
    [1.0, 0.9999999995, 0.6931471805599453, 0.0]
    """
    small = x.abs() < 1e-4
    y = torch.where(small | x.isinf(), 1.0, x)
    near = 1 - x / 2 + x * x / 3 - x**3 / 4
    far = torch.where(x.isinf(), 0.0, torch.log1p(y) / y)
    return torch.where(small, near, far)
