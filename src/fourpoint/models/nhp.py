r"""The neural Hawkes process: a recurrent network whose memory cells go on moving between events.

At event i, of mark k_i at time t_i, with h the left limit h(t_i) and sigma the logistic function,

    i, i', f, f', o = sigma(W k_i + U h + d)  delta = log(1 + exp(W k_i + U h + d))
        z = tanh(W k_i + U h + d)
    c_i = f c(t_i) + i z                          c'_i = f' c'_{i-1} + i' z

(W, U and d are different for each of the seven) and until the next event every cell slides from c_i
to its target c'_i:

    c(t) = c'_i + (c_i - c'_i) exp(-delta_i (t - t_i)),  h(t) = o_i tanh(c(t)),
        lambda_m(t) = g_m(w_m' h(t) + b_m),

g_m the softplus of scale s_m (`neural_start`), time in mean gaps. The state at the window's start
is learned and covers the time before the first event. In training a share of each sequence's cells
is silent (dropout on o, one draw per sequence).

The loop over events has its gradient written out: what does not depend on the event before is done
for all events at once, ahead of the loop or after it, so that a step is one matrix product and a
handful of small operations.
Source: Mei and Eisner, "The Neural Hawkes Process" (NeurIPS 2017), equations (4) to (7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.kernels.autograd import Context
from fourpoint.models.base import History, PointProcess, space_without_places
from fourpoint.models.neural_start import ScaledSoftplus, time_scale_of
from fourpoint.models.poisson import mean_rates

SLOWEST, FASTEST = 0.05, 5.0  # the cells' first decays, per mean gap


@dataclass(frozen=True, eq=False)
class NHPHistory(History):
    """The cells just after each position: c, their targets c', the output gates o and the decays
    delta, side by side.
    """

    state: Float[Tensor, "B P H4"]

    def latest(self) -> NHPHistory:
        """The last real position alone: all that is needed to go on."""
        time, state = _last(self)
        return NHPHistory(
            times=time[:, None],
            start=self.start,
            lengths=torch.zeros_like(self.lengths),
            state=state[:, None],
        )

    def at_positions(self, rows: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> NHPHistory:
        """R positions of any rows, each a row of its own."""
        times = self.times[rows, positions]
        states = self.state[rows, positions]
        return NHPHistory(
            times=times[:, None],
            start=self.start[rows],
            lengths=torch.zeros_like(positions),
            state=states[:, None],
        )


class NHP(PointProcess[NHPHistory]):
    """Neural Hawkes process.

    Args:
        marks: the mark space of the data (`data.marks`), a number of types, or None.
        hidden: H, the number of cells.
        embedding: the size of the embedding of a mark.
        dropout: the share of cells that are set to 0 for a whole sequence in training.
        seed: of the initial weights.

    ``recipe`` holds the default settings of `fit` for this model. Raises :class:`UserError` if a
    size is below 1 or the dropout is not a share.

    >>> from fourpoint.events import Sequence
    >>> model, batch = NHP(hidden=4).eval(), Sequence([1.0], start=0.0, stop=2.0).batch()
    >>> model.intensity(
    ...     model.encode(batch), torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    ... ).flatten()
    tensor([0.6931, 0.6931], grad_fn=<ViewBackward0>)
    """

    linear = True
    has_upper_bound = True
    recipe: ClassVar[dict[str, Any]] = dict(
        steps=1500,
        step_events=4096,
        learning_rate=5e-3,
        weight_decay=0.1,
        mixed=True,
    )
    time_scale: Tensor

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        hidden: int = 64,
        embedding: int = 32,
        dropout: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(hidden, embedding) < 1:
            raise UserError(
                "hidden and embedding of at least 1",
                f"{hidden} and {embedding}",
                "Pass hidden=64, embedding=32, say.",
            )
        if not 0 <= dropout < 1:
            raise UserError(
                "dropout from 0 to below 1",
                f"{dropout}",
                "Pass the share of cells to silence, 0.2 say.",
            )
        self.marks = space_without_places(marks, "nhp")
        self._settings: dict[str, Any] = dict(
            hidden=hidden,
            embedding=embedding,
            dropout=dropout,
            seed=seed,
        )
        self._draw = seed
        self._random: torch.Generator | None = None
        M = self.marks.count
        random = torch.Generator().manual_seed(seed)
        scale = 1 / math.sqrt(embedding + hidden)
        marked = torch.randn(M, embedding, generator=random)
        to_gates = torch.randn(embedding, 7 * hidden, generator=random)
        recurrent = torch.randn(hidden, 7 * hidden, generator=random)
        decay = torch.logspace(math.log10(SLOWEST), math.log10(FASTEST), hidden)
        slow = decay.expm1().log()
        bias = torch.zeros(7 * hidden)
        bias[5 * hidden : 6 * hidden] = slow
        first = torch.zeros(4 * hidden)
        first[3 * hidden :] = slow
        self.embedding = nn.Parameter(marked)
        self.input = nn.Parameter(scale * to_gates)
        self.recurrent = nn.Parameter(scale * recurrent)
        self.bias = nn.Parameter(bias)
        self.first = nn.Parameter(first)
        self.readout = nn.Parameter(torch.zeros(M, hidden))
        self.base = nn.Parameter(torch.zeros(M))
        self.link = ScaledSoftplus(M)
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    def initialise(self, data: Dataset) -> list[str]:
        """Count time in mean gaps, and begin at the mean rate of every mark, whatever the past."""
        scale = time_scale_of(data)
        rates = mean_rates(data, self.marks)
        with torch.no_grad():
            self.time_scale.fill_(scale)
            self.base.copy_(self.link.inverse(rates * scale))
        unit = data.unit or "time units"
        return [f"time scale: {scale:.4g} {unit} (the mean gap)"]

    def redraw(self, random: torch.Generator) -> None:
        """Choose anew which cells are silent in which sequence of the next batch."""
        if random.device.type == "cuda":
            self._random = random
        else:
            self._random = None
            self._draw = int(torch.randint(2**62, (), generator=random))

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: NHPHistory | None = None) -> NHPHistory:
        """The cells at all positions, event after event."""
        kept = self._output_dropout(len(batch.start))
        if before is None:
            start = anchor = batch.start
            first = self._first(kept)
        else:
            start = before.start
            anchor, first = _last(before)
        times = torch.cat([anchor[:, None], batch.times], 1)
        gaps = self._in_mean_gaps(times.diff(dim=1).T)
        states = self._states(batch.marks.T, gaps, first, kept)
        return NHPHistory(
            times=times,
            start=start,
            lengths=batch.lengths,
            state=states.transpose(0, 1).contiguous(),
        )

    def extend(
        self,
        history: NHPHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> NHPHistory:
        """One event more; only the last position is kept."""
        if active is None:
            active = torch.ones_like(mark, dtype=torch.bool)
        last, old = _last(history)
        gap = self._in_mean_gaps(torch.where(active, time - last, 0.0))
        kept = self._output_dropout(len(mark))
        new = self._states(mark[None], gap[None], old, kept)[1]
        moved = torch.where(active, time, last)
        state = torch.where(active[:, None], new, old)
        return NHPHistory(
            times=moved[:, None],
            start=history.start,
            lengths=torch.zeros_like(history.lengths),
            state=state[:, None],
        )

    def log_intensity(
        self,
        history: NHPHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda per mark, formed without overflow."""
        return self._log_rate(self._inside(history, times, seen))

    def rates_in_gaps(
        self,
        history: NHPHistory,
        nodes: Float[Tensor, "B G Q"],
        ends: Float[Tensor, "B G"],
        weights: Float[Tensor, " Q"] | None = None,
    ) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M"]]:
        """The mean total rate at each gap's ``nodes``, by ``weights`` (None: all alike), and log
        lambda per mark at its end.
        """
        times = torch.cat([nodes, ends[..., None]], 2)
        z = self._inside(history, times, None)
        log_scale = self.time_scale.log().to(z)
        return self.link.in_gaps(z, -log_scale.expand(self.marks.count), weights)

    @torch.no_grad()
    def upper_bound(
        self,
        history: NHPHistory,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """An upper bound of the total rate on [a, b], seen from the last position and with no event
        in between.

        Every cell slides one way, so that h_j stays between its values at the two ends and w_mj h_j
        below the larger of theirs; link and sum over marks are monotone. It has an allowance for
        rounding, since it is the rounded rate that must stay below.
        """
        eps = torch.finfo(self.readout.dtype).eps
        last, state = _last(history)
        ends = self._in_mean_gaps(torch.stack([a, b], 1) - last[:, None])
        at_ends = _Output.apply(state[:, None], ends[:, None])[:, 0]
        at_a, at_b = at_ends.unbind(1)
        c, target, _, _ = state.chunk(4, -1)
        largest = c.abs() + target.abs()
        rounding = eps * (32 + self.readout.shape[1] + 8 * largest)
        spread = (at_b - at_a).abs() / 2 + rounding
        base = self.base + 8 * eps * self.base.abs()
        middle = nn.functional.linear((at_a + at_b) / 2, self.readout, base)
        above = spread @ self.readout.abs().T
        logs = self._log_rate(middle + above).to(torch.float64)
        allowance = 16 * eps * (1 + logs.abs() + self.time_scale.log().abs())
        return (logs + allowance).exp().sum(-1)

    def shortest_time(self, history: NHPHistory) -> Float[Tensor, " B"]:
        """One over the fastest decay of a cell."""
        _, _, _, decay = history.state.chunk(4, -1)
        fastest = decay.amax((1, 2)).to(torch.float64)
        tiny = torch.finfo(fastest.dtype).tiny
        return self.time_scale / fastest.clamp(min=tiny)

    # ------------------------------------------------------------------ parts

    def _in_mean_gaps(self, gaps: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return (gaps / self.time_scale).to(self.bias)

    def _inside(
        self,
        history: NHPHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None,
    ) -> Float[Tensor, "B G Q M"]:
        """What the link is applied to: w_m' h + b_m."""
        anchor, state = history.at_seen(seen, history.state)
        lag = self._in_mean_gaps(times - anchor[..., None])
        h = _Output.apply(state, lag)
        return nn.functional.linear(h, self.readout, self.base)

    def _log_rate(self, z: Float[Tensor, "*S M"]) -> Float[Tensor, "*S M"]:
        """log g(z), per unit of the user's time."""
        return self.link(z) - self.time_scale.log().to(z)

    def _output_dropout(self, sequences: int) -> Float[Tensor, "B H"]:
        """Factors of the output gates: while training some are 0, and the others make up for it."""
        share = self._settings["dropout"]
        shape = (sequences, self._settings["hidden"])
        if not (self.training and share):
            return self.bias.new_ones(shape)
        random = self._random or torch.Generator().manual_seed(self._draw)
        kept = torch.rand(shape, generator=random, device=random.device) >= share
        return kept.to(self.bias) / (1 - share)

    def _first(self, kept: Float[Tensor, "B H"]) -> Float[Tensor, "B H4"]:
        """The learned state at the window's start."""
        parts = [part.expand_as(kept) for part in self.first.chunk(4)]
        c, target, o, slow = parts
        output = o.sigmoid() * kept
        decay = nn.functional.softplus(slow)
        return torch.cat([c, target, output, decay], -1)

    def _states(
        self,
        marks: Int[Tensor, "N B"],
        gaps: Float[Tensor, "N B"],
        first: Float[Tensor, "B H4"],
        kept: Float[Tensor, "B H"],
    ) -> Float[Tensor, "P B H4"]:
        """``first``, and the state after each event. W k + d comes from a table with one row per
        mark.
        """
        table = torch.addmm(self.bias, self.embedding, self.input)
        return _Cells.apply(table, marks, gaps, first, self.recurrent, kept)


class _Cells(torch.autograd.Function):
    """The states at all positions: the loop over events, with its gradient written out.

    Gates lie side by side as i, i', f, f', o, delta, z (``table`` is what they get from each mark,
    ``weight`` is U); states as c, c', o, delta; ``kept`` are factors of o.
    """

    @staticmethod
    def forward(
        ctx: Context,
        table: Float[Tensor, "M H7"],
        marks: Int[Tensor, "N B"],
        gaps: Float[Tensor, "N B"],
        first: Float[Tensor, "B H4"],
        weight: Float[Tensor, "H H7"],
        kept: Float[Tensor, "B H"],
    ) -> Float[Tensor, "P B H4"]:
        N, B = gaps.shape
        H = len(weight)
        gates = table.new_empty(N, B, 7 * H)
        states = table.new_empty(N + 1, B, 4 * H)
        states[0] = first
        # exp(-delta gap), and the left limits of c, tanh c and h
        fade, cell, bent, output = table.new_empty(4, N, B, H)
        inputs = gates[..., : 2 * H].unflatten(-1, (2, H))
        forgets = gates[..., 2 * H : 4 * H]
        logistic = gates[..., : 5 * H]
        last_three = gates[..., 4 * H :]
        both_cells = states[1:, :, : 2 * H].unflatten(-1, (2, H))
        old = _steps(*states[:-1].chunk(4, -1))
        new = _steps(*states[1:].chunk(4, -1), both_cells)
        left = _steps(-gaps[..., None], fade, cell, bent, output)
        whole = _steps(marks, gates, logistic)
        gate = _steps(inputs, *forgets.chunk(2, -1), *last_three.chunk(3, -1))
        for at_old, at_new, at_left, of_event, of_gate in zip(
            old,
            new,
            left,
            whole,
            gate,
            strict=True,
        ):
            c0, k0, o0, d0 = at_old
            c, k, o, d, both = at_new
            wait, e, a, u, h = at_left
            mark, g, five = of_event
            i, f, f_, out, slow, z = of_gate
            torch.mul(d0, wait, out=e).exp_()
            torch.lerp(k0, c0, e, out=a)
            torch.tanh(a, out=u)
            torch.mul(o0, u, out=h)
            torch.index_select(table, 0, mark, out=g)
            g.addmm_(h, weight)
            five.sigmoid_()
            torch.mul(f, a, out=c)
            torch.mul(f_, k0, out=k)
            both.addcmul_(i, z.tanh_()[:, None])
            torch.mul(out, kept, out=o)
            d.copy_(nn.functional.softplus(slow))
        ctx.save_for_backward(
            table, marks, gaps, gates, states, fade, cell, bent, output, weight, kept
        )
        return states

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Context,
        *outside: Tensor,
    ) -> tuple[Tensor, None, Tensor | None, Tensor, Tensor, None]:
        table, marks, gaps, gates, states, fade, cell, bent, output, weight, kept = (
            ctx.saved_tensors
        )
        B = gaps.shape[1]
        H = len(weight)
        c, k, o, d = states[:-1].chunk(4, -1)
        inputs = gates[..., : 2 * H].unflatten(-1, (2, H))
        forgets = gates[..., 2 * H : 4 * H]
        logistic = gates[..., : 5 * H]
        decays = gates[..., 5 * H : 6 * H]
        z = gates[..., 6 * H :]
        # Each gate's derivative times what the gate multiplies; the loop makes it the gradient of
        # the gate's argument.
        inward = torch.empty_like(gates)
        torch.addcmul(logistic, logistic, logistic, value=-1, out=inward[..., : 5 * H])
        to_inputs = inward[..., : 2 * H].unflatten(-1, (2, H))
        to_f, to_f_, to_out, to_slow, to_z = inward[..., 2 * H :].chunk(5, -1)
        to_inputs.mul_(z[:, :, None])
        to_f.mul_(cell)
        to_f_.mul_(k)
        to_out.mul_(kept)
        torch.sigmoid(decays, out=to_slow)
        steep = inputs * (1 - z * z)[:, :, None]
        bend = o * (1 - bent * bent)
        share = torch.stack([fade, 1 - fade], 2)
        rush = (k - c) * fade
        total = outside[0].clone(memory_format=torch.contiguous_format)
        reach = torch.empty_like(cell)
        across = weight.T.contiguous()
        parts = total.unflatten(-1, (4, H))
        pair = gates.new_empty(B, 2, H)
        gh = gates.new_empty(B, H)
        after = parts[1:]
        earlier = parts[:-1]
        both_cells = after[:, :, :2]
        output_and_decay = after[:, :, 2:]
        first_four = inward[..., : 4 * H].unflatten(-1, (2, 2, H))
        next_two = inward[..., 4 * H : 6 * H].unflatten(-1, (2, H))
        new = _steps(both_cells, after[:, :, None, :2], output_and_decay, *both_cells.unbind(2))
        old = _steps(earlier[:, :, :2], *earlier[:, :, 1:].unbind(2))
        gate = _steps(inward, first_four, next_two, to_z)
        derivatives = _steps(steep, bend, share, rush * gaps[..., None], bent)
        forget = _steps(*forgets.chunk(2, -1))
        cells = _steps(reach, reach[:, :, None])
        steps = list(zip(new, old, gate, derivatives, forget, cells, strict=True))
        for at_new, at_old, of_gate, derivative, of_forget, of_cell in reversed(steps):
            both, twice, od, gc, gk = at_new
            both0, gk0, go0, gd0 = at_old
            g, g4, g2, gz = of_gate
            zs, b, s, r, u = derivative
            f, f_ = of_forget
            ga, wide = of_cell
            g4.mul_(twice)
            g2.mul_(od)
            torch.mul(both, zs, out=pair)
            torch.sum(pair, 1, out=gz)
            torch.mm(g, across, out=gh)
            torch.mul(gh, b, out=ga)
            ga.addcmul_(gc, f)
            both0.addcmul_(wide, s)
            gk0.addcmul_(gk, f_)
            go0.addcmul_(gh, u)
            gd0.addcmul_(ga, r)
        to_gaps = None
        if ctx.needs_input_grad[2]:
            to_gaps = (reach * rush * d).sum(-1)
        flat = inward.flatten(0, 1)
        if len(table) > 1:
            to_table = torch.zeros_like(table)
            to_table.index_add_(0, marks.flatten(), flat)
        else:
            to_table = flat.sum(0, keepdim=True)
        to_weight = output.flatten(0, 1).T @ flat
        return to_table, None, to_gaps, total[0], to_weight, None


class _Output(torch.autograd.Function):
    """h = o tanh(c' + (c - c') exp(-delta lag)) at every lag, with its gradient written out: a
    third of the passes over memory.
    """

    @staticmethod
    def forward(
        ctx: Context,
        state: Float[Tensor, "B G H4"],
        lag: Float[Tensor, "B G Q"],
    ) -> Float[Tensor, "B G Q H"]:
        c, k, o, d = state[:, :, None].chunk(4, -1)
        fade = (d * -lag[..., None]).exp_()
        bent = torch.lerp(k, c, fade).tanh_()
        h = o * bent
        ctx.save_for_backward(state, lag, fade, bent, h)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *outside: Tensor) -> tuple[Tensor, Tensor | None]:
        state, lag, fade, bent, h = ctx.saved_tensors
        c, k, o, d = state.chunk(4, -1)
        difference = k - c
        to_cell = torch.addcmul(o[:, :, None], h, bent, value=-1)
        to_cell.mul_(outside[0])
        to_both = to_cell.sum(2)
        faded = to_cell.mul_(fade)
        to_c = faded.sum(2)
        to_lag = None
        if ctx.needs_input_grad[1]:
            per_lag = (difference * d)[:, :, None]
            to_lag = (faded * per_lag).sum(-1)
        to_d = faded.mul_(lag[..., None]).sum(2)
        to_d.mul_(difference)
        torch.mul(outside[0], bent, out=faded)
        to_o = faded.sum(2)
        return torch.cat([to_c, to_both - to_c, to_o, to_d], -1), to_lag


def _steps(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The parts of event 1, of event 2, ...: views, made all at once since making them one by one
    costs as much as the sums.
    """
    return zip(*(part.unbind(0) for part in parts), strict=True)


def _last(history: NHPHistory) -> tuple[Float[Tensor, " B"], Float[Tensor, "B H4"]]:
    """When the last real position begins, and the state there."""
    row = torch.arange(len(history.lengths), device=history.times.device)
    return history.times[row, history.lengths], history.state[row, history.lengths]
