r"""A Poisson process whose level is a hidden Markov chain: calm, busy and exceptional times.

    lambda_m(t) = exp(r_m + f_m(t)) u(t),    u(t) = v[phase of block, z(block)] g(block)

Time is cut into blocks of equal length (an hour, say). The state z of a block follows a Markov
chain, and u is constant in a block: it depends on the state and, where events have dates and blocks
divide the day, on the time of day (``phase``). At the end of a block of phase d the chain moves by

    T_d = (1 - rho_d) T + rho_d 1 pi^T,

pi being the stationary distribution of T: with probability rho_d the state is forgotten, as it is
at midnight where the levels of days are independent. Without phases of the day nothing is
forgotten. The factor g of a block is gamma distributed with mean 1 and shape a[z], independently of
all other blocks, so that the count of a block, given its state, is negative binomial: counts vary
more than a Poisson number does even where the chain has few states. f are effects of calendar and
covariates (`models.effects`). A chain with several states makes the level of the next day uncertain
and skewed, as weather does with delays or incidents with calls, where a Hawkes process explains
every busy spell by the events before it.

Neither state nor factor is observed. Given the past, the distribution p of the state is known (the
forward filter). With n events in the block so far, and F the integral of e(t) sum_m exp(r_m + f_m)
since the block began, the factor is gamma distributed with shape a_k + n and rate a_k + v_k F, and
the process has the rate

    lambda_m(t | past) = exp(r_m + f_m(t)) sum_k p_k(t) v_k (a_k + n) / (a_k + v_k F).

While nothing happens and F grows from F to F', p_k changes by the factor
((a_k + v_k F) / (a_k + v_k F'))^(a_k + n); an event multiplies it by v_k (a_k + n) / (a_k + v_k F),
and the end of a block by T_d. All parameters are found by EM: forwards and backwards over blocks,
penalised Poisson regressions for v and f, and Newton's method for a. In it, rho is drawn towards 0.

Axes: B sequences, P positions, J blocks, K states, D phases, M marks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, BatchContext, Context, Dataset, MarkSpace, Steps, UserError
from fourpoint.kernels.path_terms import Wanted
from fourpoint.models.base import PointProcess, space_without_places
from fourpoint.models.effects import DAY, TREND, EffectsSpec, zone_offsets
from fourpoint.models.effects_fit import PIECE, EffectsFit, fit_effects
from fourpoint.models.path_counts import explosion, integrals
from fourpoint.models.positions import Positions, last_time
from fourpoint.models.time_pieces import constant_cubics, exposure_of, pieces_until
from fourpoint.ops.chain import FLOOR, filtered
from fourpoint.ops.quadrature import gauss_legendre

NODES = 8  # of the integral of the rate between neighbouring cuts, which are at most an hour apart
BLOCKS = (900.0, 3600.0, 21600.0, 86400.0)  # seconds that a block may have, with a calendar
LEAST_EVENTS = 1.0  # per block on average
LAST_PHASED = 21600.0  # the longest block with phases of the day
STAYS = 0.94  # probability that a state stays, at the start of EM and a priori
PRIOR = 1.0  # transitions from every state that are known a priori
FORGETS = 0.02  # rho at the start of EM
KEPT = 5.0  # ends of blocks of every phase at which the chain is known a priori not to forget
LEAST_FORGOTTEN = 1e-6  # of rho
LOWEST, HIGHEST = -1.0, 1.2  # log levels of the states at the start of EM
ROUNDS, INNER = 12, 6  # of effects, and of EM for the chain within each
ENOUGH = 0.005  # the largest change of a log level in a round that ends EM
FIRST_INNER = 16
SMOOTH, RIDGE = 10.0, 0.02  # penalties of differences between phases, and of log levels
LONGEST_STEP = 1.0  # of Newton's method in a log level
LOG_SHAPE = 2.0  # at the start of EM, and the mean of its normal prior with variance 1
LEAST_SHAPE, MOST_SHAPE = -2.0, 6.0  # of log shapes; counts are nearly Poisson at the latter
SHAPE_STEP = 0.5  # the longest of Newton's method in a log shape
# The chain has the swings of the level within weeks: a trend is a random walk with a standard
# deviation of at most .1 from knot to knot.
LEAST = {TREND: 100.0}


@dataclass(frozen=True, eq=False)
class ChainHistory(Positions):
    """Positions, and the distribution of the state at each, given all events up to it; the number
    of events in its block so far, and F since the block began.
    """

    belief: Float[Tensor, "B P K"]
    count: Float[Tensor, "B P"]
    mass: Float[Tensor, "B P"]

    def latest(self) -> ChainHistory:
        """The last position alone."""
        last = self.lengths[:, None]
        wide = last[..., None].expand(-1, -1, self.belief.shape[-1])
        return replace(
            self,
            times=self.times.gather(1, last),
            belief=self.belief.gather(1, wide),
            count=self.count.gather(1, last),
            mass=self.mass.gather(1, last),
            earlier=self.earlier + self.lengths,
            lengths=torch.zeros_like(self.lengths),
        )


@dataclass(frozen=True)
class _Knowledge:
    """What the past tells at X times of every row: the distribution of the state, the number of
    events in the block so far, and F since the block began.
    """

    belief: Float[Tensor, "B X K"]
    count: Float[Tensor, "B X"]
    mass: Float[Tensor, "B X"]

    def levels(
        self, level: Float[Tensor, "B X K"], shape: Float[Tensor, " K"]
    ) -> Float[Tensor, "B X K"]:
        """The expected level in every state, whose mean is ``level`` at the start of a block."""
        known = shape + self.count[..., None]
        return level * known / (shape + level * self.mass[..., None])

    def log_silence(
        self,
        more: Float[Tensor, "B X"],
        level: Float[Tensor, "B X K"],
        shape: Float[Tensor, " K"],
    ) -> Float[Tensor, "B X K"]:
        """log P(no event while F grows by ``more`` in the block) in every state."""
        grown = level * more[..., None] / (shape + level * self.mass[..., None])
        return -(shape + self.count[..., None]) * grown.log1p()


@dataclass(frozen=True)
class _Timeline:
    """Blocks that touch an interval of every row: when each begins, F until then, and the levels;
    F at the times that were asked for, and their blocks; the integral of each mark's rate without
    exposure at these times.
    """

    starts: Float[Tensor, "B J"]
    at_starts: Float[Tensor, "B J"]
    level: Float[Tensor, "B J K"]
    phase: Int[Tensor, "B J"]
    passed: Float[Tensor, "B X"]
    block: Int[Tensor, "B X"]
    each: Float[Tensor, "B X M"]


class MarkovModulated(PointProcess[ChainHistory]):
    """A Poisson process with calendar and covariates, times a level that is a hidden Markov chain.

    Args:
        states: levels of the chain.
        block: how long a state lasts at least, in seconds with a calendar, else in the data's unit
            of time; None: chosen from the data, an hour where that holds an event on average.
        phases: blocks of the day that have levels of their own; None: chosen with ``block``.

    >>> from fourpoint.events import Sequence
    >>> model = MarkovModulated(states=2, block=1.0)
    >>> with torch.no_grad():
    ...     _ = model.log_level.copy_(torch.tensor([[1e-9, 2.0]]).double().log())
    >>> history = model.encode(Sequence([0.5], start=0.0, stop=3.0).batch())
    >>> times = torch.tensor([[0.0, 0.75]], dtype=torch.float64)  # an event shows the upper state
    >>> [round(x, 6) for x in model.intensity(history, times).flatten().tolist()]
    [1.0, 1.887502]
    """

    seconds: Tensor
    linear = True
    has_closed_integral = True
    has_upper_bound = True
    past_shows = "how high the hidden level of the rate is"
    fits_in_closed_form = True

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        states: int = 5,
        block: float | None = None,
        phases: int | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= states <= 64:
            raise UserError("1 to 64 states", f"{states}", "Pass states=5, say.")
        if block is not None and not block > 0:
            raise UserError("a positive length of blocks", f"{block}", "Pass block=3600, say.")
        if phases is not None and phases < 1:
            raise UserError("at least one phase", f"{phases}", "Leave phases out.")
        self.marks = space_without_places(marks, "markov-modulated")
        self.states = states
        self.chosen_block = block
        self.chosen_phases = phases
        self.block = 1.0 if block is None else float(block)
        kind = torch.float64
        self.log_rate = nn.Parameter(torch.zeros(self.marks.count, dtype=kind))
        self.log_level = nn.Parameter(torch.zeros(phases or 1, states, dtype=kind))
        stays = torch.eye(states, dtype=kind) * STAYS + (1 - STAYS) / states
        self.log_transition = nn.Parameter(stays.log())
        self.log_shape = nn.Parameter(torch.full((states,), LOG_SHAPE, dtype=kind))
        self.logit_forgets = nn.Parameter(torch.full((phases or 1,), _logit(FORGETS), dtype=kind))
        self.register_buffer("seconds", torch.ones((), dtype=kind))  # in the unit of time

    def settings(self) -> dict[str, Any]:
        """States, blocks and phases as they are now."""
        return {"states": self.states, "block": self.block, "phases": len(self.log_level)}

    def shown(self) -> dict[str, Any]:
        """Settings, the share of time in each state and its level, averaged over phases."""
        share = _stationary(self.log_transition.detach().softmax(1))
        level = self.log_level.detach().exp().mean(0)
        return {**self.settings(), "share": share.numpy(), "level": level.numpy()}

    @property
    def transition(self) -> Float[Tensor, "K K"]:
        """T: the probabilities of the next state by the present one, without forgetting."""
        return self.log_transition.softmax(1)

    @property
    def forgets(self) -> Float[Tensor, " D"]:
        """rho: the probability that the state is forgotten at the end of a block, by its phase."""
        return self.logit_forgets.sigmoid()

    def _transitions(self) -> Float[Tensor, "D K K"]:
        """The matrix of every phase."""
        T, rho = self.transition, self.forgets[:, None, None]
        return (1 - rho) * T + rho * _stationary(T)

    @property
    def effect_curves(self) -> int:
        """log of the rate of every mark."""
        return self.marks.count

    def known_context(
        self, batch: Batch, before: ChainHistory | None = None
    ) -> BatchContext | None:
        """All of it: dates place the blocks, and F counts observed time only."""
        return batch.context if before is None else before.context

    # ------------------------------------------------------------------ fitting

    def initialise(self, data: Dataset) -> list[str]:
        """Choose blocks and phases, and start at the mean rates."""
        self._choose_blocks(data)
        self._take(fit_effects(data, self._spec(), least=LEAST))
        return []

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit all parameters to ``data`` by EM, whatever they were before. Returns remarks.

        History periods are scored too: they tell of the chain as all other time does.
        """
        if not len(data) or not data.events:
            raise UserError("at least one event", "a data set without any", "Read or select some.")
        if data.context is not None:
            data = replace(data, context=data.context.without("scored_from"))
        self._choose_blocks(data)
        spread = torch.linspace(LOWEST, HIGHEST, self.states, dtype=torch.float64)
        with torch.no_grad():
            self.log_level.copy_(spread.expand_as(self.log_level))
            stays = torch.eye(self.states, dtype=torch.float64) * STAYS
            self.log_transition.copy_((stays + (1 - STAYS) / self.states).log())
            self.log_shape.fill_(LOG_SHAPE)
            several = len(self.logit_forgets) > 1
            self.logit_forgets.fill_(_logit(FORGETS if several else LEAST_FORGOTTEN))
        found = fit_effects(data, self._spec(), least=LEAST)
        for turn in range(ROUNDS):
            before = self.log_level.detach().clone()
            self._take(found)
            blocks = self._blocks_of(data)
            mean = None
            for _ in range(FIRST_INNER if turn == 0 else INNER):
                mean = self._improve(blocks)
            assert mean is not None
            found = fit_effects(self._weighted(data, blocks, mean), self._spec(), least=LEAST)
            if float((self.log_level.detach() - before).abs().max()) < ENOUGH:
                break
        self._take(found)
        for _ in range(INNER):
            self._improve(self._blocks_of(data))
        self.rate_ratios = found.rate_ratios
        share = _stationary(self.log_transition.detach().softmax(1)).numpy()
        level = self.log_level.detach().exp().mean(0).numpy()
        order = np.argsort(level)
        each = ", ".join(f"{level[k] / (share @ level):.3g} ({share[k]:.0%})" for k in order)
        return [f"level over its mean, and share of the time: {each}", *found.notes]

    def _spec(self) -> EffectsSpec:
        return EffectsSpec() if self.effects is None else self.effects.spec

    def _take(self, found: EffectsFit) -> None:
        with torch.no_grad():
            self.log_rate.copy_(torch.from_numpy(found.level))
            if self.effects is not None:
                self.effects.weight.copy_(torch.from_numpy(found.weight))

    def _choose_blocks(self, data: Dataset) -> None:
        """The length of blocks, and phases of the day where they divide it."""
        spec = self._spec()
        dated = bool(spec.calendar)
        unit = spec.seconds if dated else 1.0
        observed = float(data.durations.sum()) * unit
        rate = max(1, data.events) / observed
        if self.chosen_block is not None:
            block = self.chosen_block
        elif dated:
            full = [length for length in BLOCKS if rate * length >= LEAST_EVENTS]
            block = full[0] if full else BLOCKS[-1]
        else:
            block = 2 * LEAST_EVENTS / rate
        phases = self.chosen_phases
        if phases is None:
            per_day = DAY / block
            even = block <= LAST_PHASED and abs(per_day - round(per_day)) < 1e-9
            long_enough = observed >= 14 * DAY
            phases = round(per_day) if dated and even and long_enough else 1
        self.block = float(block)
        self.log_level = nn.Parameter(torch.zeros(phases, self.states, dtype=torch.float64))
        start = torch.full((phases,), _logit(FORGETS), dtype=torch.float64)
        self.logit_forgets = nn.Parameter(start)
        with torch.no_grad():
            self.seconds.fill_(unit)

    def _blocks_of(self, data: Dataset) -> _Blocks:
        """Events, F and phase of every block, for all sequences."""
        rows = np.arange(len(data))
        context = None if data.context is None else data.context.batch(rows)
        start, stop = (torch.from_numpy(x.copy()) for x in (data.starts, data.stops))
        line = self._timeline(torch.stack([start, stop], 1), context)
        ends = torch.cat([line.at_starts[:, 1:], line.passed[:, 1:]], 1)
        mass = torch.minimum(ends, line.passed[:, 1:]) - line.at_starts.clamp(min=0.0)
        row = np.repeat(rows, data.lengths)
        starts = line.starts.numpy()
        counts = np.zeros(starts.shape)
        place = np.concatenate(
            [
                np.searchsorted(
                    starts[i], data.times[data.offsets[i] : data.offsets[i + 1]], "right"
                )
                for i in rows
            ]
        )
        np.add.at(counts, (row, np.maximum(place - 1, 0)), 1.0)
        phase = self._phase(line.starts, context)
        return _Blocks(torch.from_numpy(counts), mass.clamp(min=0.0), phase, line.starts)

    @torch.no_grad()
    def _improve(self, blocks: _Blocks) -> Float[Tensor, "B J"]:
        """One round of EM for transitions, levels and shapes; the expected level of every block."""
        level = self.log_level.exp()[blocks.phase]  # (B, J, K)
        logs = _log_chances(blocks.events, blocks.mass[..., None] * level, self.log_shape.exp())
        evidence = (logs - logs.amax(-1, keepdim=True)).exp()
        T, phase = self._transitions(), blocks.phase
        first = _stationary(self.transition).expand(len(evidence), -1)
        ahead = filtered(first, evidence, phase, T)[:, :-1]
        forward = ahead * evidence
        ones = torch.ones_like(evidence[:, 0])
        before = phase.roll(1, 1)  # of the block before each
        backward = filtered(ones, evidence.flip(1), before.flip(1), T.mT)[:, :-1].flip(1)
        state = forward * backward
        state = state / state.sum(-1, keepdim=True).clamp(min=FLOOR)
        self._improve_transitions(forward[:, :-1], evidence[:, 1:] * backward[:, 1:], phase[:, :-1])
        self._improve_levels(blocks, state)
        self._improve_shapes(blocks, state)
        level = self.log_level.exp()[blocks.phase]
        known = _Knowledge(state, blocks.events, blocks.mass)
        return (state * known.levels(level, self.log_shape.exp())).sum(-1)

    def _improve_transitions(
        self,
        forward: Float[Tensor, "B J K"],
        after: Float[Tensor, "B J K"],
        phase: Int[Tensor, "B J"],
    ) -> None:
        """T and rho from expected numbers of transitions, of which some are due to forgetting."""
        T, rho = self._transitions(), self.forgets
        stationary = _stationary(self.transition)
        stays = torch.eye(self.states, dtype=T.dtype) * STAYS + (1 - STAYS) / self.states
        moved = PRIOR * stays
        forgotten = torch.zeros_like(rho)
        for d in range(len(T)):
            left, right = forward[phase == d], after[phase == d]
            chance = ((left @ T[d]) * right).sum(-1, keepdim=True).clamp(min=FLOOR)
            pairs = T[d] * ((left / chance).T @ right)
            by_chance = pairs * rho[d] * stationary / T[d]
            moved = moved + pairs - by_chance
            forgotten[d] = by_chance.sum() / (pairs.sum() + KEPT)
        self.log_transition.copy_((moved / moved.sum(1, keepdim=True)).log())
        if len(T) > 1:  # otherwise T alone says as much
            forgotten = forgotten.clamp(LEAST_FORGOTTEN, 1 - LEAST_FORGOTTEN)
            self.logit_forgets.copy_(torch.logit(forgotten))

    def _improve_levels(self, blocks: _Blocks, state: Float[Tensor, "B J K"]) -> None:
        """A step of Newton's method for the log levels, whose differences between phases are
        penalised.
        """
        D = len(self.log_level)
        level = self.log_level.exp()[blocks.phase]
        known = _Knowledge(state, blocks.events, blocks.mass)
        factor = known.levels(level, self.log_shape.exp()) / level
        flat = blocks.phase.flatten()
        shape = (D, self.states)
        counts = torch.zeros(shape, dtype=torch.float64)
        counts.index_add_(0, flat, (state * blocks.events[..., None]).flatten(0, 1))
        mass = torch.zeros(shape, dtype=torch.float64)
        mass.index_add_(0, flat, (state * factor * blocks.mass[..., None]).flatten(0, 1))
        penalty = RIDGE * torch.eye(D, dtype=torch.float64)
        if D > 1:
            around = torch.eye(D, dtype=torch.float64)
            first = around - around.roll(1, 0)
            penalty = penalty + SMOOTH * first.T @ first
        for k in range(self.states):
            own = self.log_level[:, k]
            expected = mass[:, k] * own.exp()
            gradient = counts[:, k] - expected - penalty @ own
            step = torch.linalg.solve(expected.diag() + penalty, gradient)
            self.log_level[:, k] += step.clamp(-LONGEST_STEP, LONGEST_STEP)

    def _improve_shapes(self, blocks: _Blocks, state: Float[Tensor, "B J K"]) -> None:
        """A step of Newton's method for every log shape under its prior.

        In terms of q = a + mean, the negative binomial log-probability of n has the derivatives

            psi(a + n) - psi(a) + log(a / q) + 1 - (a + n) / q,
            psi'(a + n) - psi'(a) + 1 / a - 2 / q + (a + n) / q^2

        in a. Digamma functions are computed once for each distinct count.
        """
        events = blocks.events[..., None]
        mean = blocks.mass[..., None] * self.log_level.exp()[blocks.phase]
        shape = self.log_shape.exp()
        q = shape + mean
        distinct, which = blocks.events.unique(return_inverse=True)
        table = distinct[:, None] + shape
        first = (torch.digamma(table) - torch.digamma(shape))[which]
        second = (torch.polygamma(1, table) - torch.polygamma(1, shape))[which]
        slope = first + (shape / q).log() + 1 - (shape + events) / q
        curvature = second + 1 / shape - 2 / q + (shape + events) / q**2
        slope, curvature = ((state * part).sum((0, 1)) for part in (slope, curvature))
        gradient = shape * slope - (self.log_shape - LOG_SHAPE)
        downwards = -(shape**2 * curvature + shape * slope - 1.0)
        step = gradient / downwards.clamp(min=1.0)
        moved = self.log_shape + step.clamp(-SHAPE_STEP, SHAPE_STEP)
        self.log_shape.copy_(moved.clamp(LEAST_SHAPE, MOST_SHAPE))

    def _weighted(self, data: Dataset, blocks: _Blocks, mean: Float[Tensor, "B J"]) -> Dataset:
        """The data with the expected level as a factor of the exposure."""
        known = Context() if data.context is None else data.context
        tables = []
        for i in range(len(data)):
            starts = blocks.starts[i].numpy()
            ends = np.append(starts[1:], np.inf)
            real = np.flatnonzero((starts < data.stops[i]) & (ends > data.starts[i]))
            begins = np.maximum(starts[real], data.starts[i])
            if known.exposure is None:
                times = begins
                values = mean[i].numpy()[real]
            else:
                own = slice(*known.exposure.offsets[i : i + 2])
                times = np.unique(np.concatenate([begins, known.exposure.times[own]]))
                times = times[(times >= data.starts[i]) & (times < data.stops[i])]
                place = np.maximum(np.searchsorted(begins, times, "right") - 1, 0)
                values = mean[i].numpy()[real][place] * known.exposure.at(i, times)[:, 0]
            tables.append((times, values))
        offsets = np.concatenate([[0], np.cumsum([len(times) for times, _ in tables])])
        steps = Steps(
            times=np.concatenate([times for times, _ in tables]),
            values=np.concatenate([values for _, values in tables])[:, None],
            offsets=offsets,
            names=("exposure",),
        )
        return replace(data, context=replace(known, exposure=steps))

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: ChainHistory | None = None) -> ChainHistory:
        context = self.known_context(batch, before)
        T = self._transitions()
        K = self.states
        if before is None:
            first, start = batch.start, batch.start
            earlier = torch.zeros_like(batch.lengths)
            belief = _stationary(self.transition).expand(len(first), -1)
            count = mass = torch.zeros_like(first)
        else:
            first, start = last_time(before), before.start
            earlier = before.earlier + before.lengths
            wide = before.lengths[:, None, None].expand(-1, -1, K)
            belief = before.belief.gather(1, wide)[:, 0]
            here = before.lengths[:, None]
            count = before.count.gather(1, here)[:, 0]
            mass = before.mass.gather(1, here)[:, 0]
        known = torch.where(batch.valid, batch.times.detach(), first[:, None])
        times = torch.cat([first[:, None], known], 1).cummax(1).values
        line = self._timeline(times, context)
        # Steps of the filter: the ends of blocks and the events, in the order of time. An event at
        # the end of a block belongs to the next one.
        starts = line.starts[:, 1:]
        last = times[:, -1:].maximum(times[:, :1])
        inside = (starts > times[:, :1]) & (starts <= last)
        when = torch.cat([torch.where(inside, starts, torch.inf), times[:, 1:]], 1)
        is_event = torch.cat([torch.zeros_like(inside), batch.valid], 1)
        is_end = torch.cat([inside, torch.zeros_like(batch.valid)], 1)
        order = torch.sort(when + 0.0, dim=1, stable=True).indices
        passed = torch.cat([line.at_starts[:, 1:], line.passed[:, 1:]], 1).gather(1, order)
        real = (is_event | is_end).gather(1, order)
        passed = torch.where(real, passed, line.passed[:, :1])
        passed = torch.cat([line.passed[:, :1], passed], 1).cummax(1).values
        more = passed.diff(dim=1)
        J = line.starts.shape[1]
        ends = torch.arange(J - 1, device=first.device).expand(
            len(first), -1
        )  # the block before each end
        block = torch.cat([ends, line.block[:, 1:]], 1).gather(1, order)
        wide_block = block[..., None].expand(-1, -1, K)
        level = line.level.gather(1, wide_block)
        event = is_event.gather(1, order)
        end = is_end.gather(1, order)
        now = _within_blocks(event, end, more, count, mass)
        shape = self.log_shape.exp()
        start_of_step = _Knowledge(level, now.count[:, :-1], now.mass[:, :-1])
        log_factor = start_of_step.log_silence(more, level, shape)
        at_event = replace(start_of_step, mass=start_of_step.mass + more)
        raised = at_event.levels(level, shape).log()
        log_factor = log_factor + torch.where(event[..., None], raised, 0.0)
        log_factor = log_factor - log_factor.amax(-1, keepdim=True)
        factor = torch.where(real[..., None], log_factor.exp(), 1.0)
        moves = torch.where(end, line.phase.gather(1, block), -1)
        beliefs = filtered(belief, factor, moves, T)  # (B, 1 + steps, K)
        place = torch.empty_like(order)
        number = torch.arange(order.shape[1], device=first.device)
        place.scatter_(1, order, number.expand_as(order))
        at_events = 1 + place[:, J - 1 :]
        at = torch.cat([torch.zeros_like(batch.lengths)[:, None], at_events], 1)
        # Padding repeats the last belief.
        position = torch.arange(at.shape[1], device=first.device).expand_as(at)
        at = at.gather(1, position.minimum(batch.lengths[:, None]))
        belief = beliefs.gather(1, at[..., None].expand(-1, -1, K))
        count, mass = now.count.gather(1, at), now.mass.gather(1, at)
        return ChainHistory(
            times, start, batch.lengths, earlier, belief, count, mass, context=context
        )

    def extend(
        self,
        history: ChainHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> ChainHistory:
        happened = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        at = torch.where(happened, time, last_time(history))
        now, level = self._carried(history, at[:, None, None], history.lengths[:, None])
        raised = now.belief * torch.where(happened[:, None, None], level, 1.0)
        raised = raised / raised.sum(-1, keepdim=True).clamp(min=FLOOR)
        return ChainHistory(
            at[:, None],
            history.start,
            torch.zeros_like(history.lengths),
            history.earlier + history.lengths + happened,
            raised,
            now.count + happened[:, None],
            now.mass,
            context=history.context,
        )

    def move(self, history: ChainHistory, time: Float[Tensor, " B"]) -> ChainHistory:
        """The belief at ``time``, so that blocks until then need not be passed again."""
        at = torch.maximum(time, last_time(history))
        now, _ = self._carried(history, at[:, None, None], history.lengths[:, None])
        return ChainHistory(
            at[:, None],
            history.start,
            torch.zeros_like(history.lengths),
            history.earlier + history.lengths,
            now.belief,
            now.count,
            now.mass,
            context=history.context,
        )

    def log_intensity(
        self,
        history: ChainHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        if not times.numel():
            return self._log_population(times, history.context)
        now, level = self._carried(history, times, seen)
        mean = (now.belief * level).sum(-1).view(times.shape)
        return self._log_population(times, history.context) + mean.clamp(min=FLOOR).log()[..., None]

    def closed_integral(
        self,
        history: ChainHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b lambda per mark, for an exposure that is constant between a and b: minus the
        logarithm of the probability that nothing happens, over the exposure. The sum over marks is
        exact; its parts are shared out like the population's.
        """
        if not a.numel():
            return a[..., None] * self.log_rate
        start, known = self._anchors(history, seen)
        both = torch.stack([a, b], 2).flatten(1)
        line = self._timeline(torch.cat([start, both], 1), history.context)
        G = a.shape[1]
        passed, block = line.passed[:, :G], line.block[:, :G]
        at_a, at_b = (line.passed[:, G + side :: 2] for side in (0, 1))
        block_a, block_b = (line.block[:, G + side :: 2] for side in (0, 1))
        T, shape = self._transitions(), self.log_shape.exp()
        there, _ = _carry(known, passed, block, at_a, block_a, line, T, shape)
        _, survival = _carry(there, at_a, block_a, at_b, block_b, line, T, shape)
        each = line.each[:, G + 1 :: 2] - line.each[:, G::2]
        total = each.sum(-1)
        exposed = at_b - at_a
        level = line.level.gather(1, block_a[..., None].expand(-1, -1, line.level.shape[-1]))
        unexposed = (there.belief * there.levels(level, shape)).sum(-1) * total
        ratio = total / torch.where(exposed > 0, exposed, 1.0)
        whole = torch.where(exposed > 0, -survival * ratio, unexposed)
        share = each / torch.where(total > 0, total, 1.0)[..., None]
        return share * whole[..., None]

    def jumps(
        self, history: ChainHistory, low: Float[Tensor, " B"], high: Float[Tensor, " B"]
    ) -> Float[Tensor, "B J"] | None:
        """Those of the effects, and the ends of blocks."""
        ends = self._block_starts(low, high, history.context)
        own = super().jumps(history, low, high)
        return ends if own is None else torch.cat([own, ends], 1)

    @torch.no_grad()
    def upper_bound(
        self, history: ChainHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """The population's bound times the expected level at a, which falls within a block while
        nothing happens; from the next block on times the largest level.
        """
        start, known = self._anchors(history, history.lengths[:, None])
        line = self._timeline(torch.cat([start, a[:, None], b[:, None]], 1), history.context)
        passed, block = line.passed, line.block
        T, shape = self._transitions(), self.log_shape.exp()
        there, _ = _carry(
            known, passed[:, :1], block[:, :1], passed[:, 1:2], block[:, 1:2], line, T, shape
        )
        own = line.level.gather(1, block[:, 1:2, None].expand(-1, -1, line.level.shape[-1]))
        mean = (there.belief * there.levels(own, shape)).sum(-1)[:, 0]
        number = torch.arange(line.level.shape[1], device=a.device)
        later = (number > block[:, 1:2]) & (number <= block[:, 2:3])
        largest = torch.where(later, line.level.amax(-1), 0.0).amax(1)
        bound = self.log_rate.expand(len(a), -1)
        if self.effects is not None:
            bound = bound + self.effects.upper_bound(a, b, history.context, self.log_rate.dtype)
        return bound.exp().sum(-1) * torch.maximum(mean, largest) * (1 + 1e-9)

    @torch.no_grad()
    def draw_counts(self, batch: Batch, wanted: Wanted) -> NDArray[np.int32] | None:
        """Paths of the chain and factors of its blocks from their distribution given the past, and
        Poisson numbers given both.
        """
        history = self.encode(batch).latest()
        now = torch.from_numpy(wanted.edges[:, 0].copy())
        moved = self.move(history, now)
        belief, counted, mass = (
            part[:, 0].numpy() for part in (moved.belief, moved.count, moved.mass)
        )
        shape = self.log_shape.exp().numpy()
        line = self._timeline(torch.from_numpy(wanted.edges[:, [0, -1]].copy()), batch.context)
        starts, level = line.starts.numpy(), line.level.numpy()
        cubics = constant_cubics(self.log_rate)
        pieces = pieces_until(cubics, self.effects, batch, wanted.edges[:, 0], wanted.edges[:, -1])
        exposure = exposure_of(batch)
        cumulative = self._transitions().detach().cumsum(2).numpy()
        phase = line.phase.numpy()
        rows, columns = wanted.edges.shape
        found = np.zeros((rows, columns - 1, self.marks.count, wanted.paths), dtype=np.int32)
        for r in range(rows):
            random = np.random.Generator(np.random.Philox(key=int(wanted.keys[r])))
            edges = wanted.edges[r]
            inside = starts[r][(starts[r] > edges[0]) & (starts[r] < edges[-1])]
            cuts = np.unique(np.concatenate([edges, inside]))
            means = integrals(r, cuts, pieces, exposure)
            block = np.searchsorted(starts[r], cuts[:-1], side="right") - 1
            column = np.searchsorted(edges, cuts[:-1], side="right") - 1
            state = _drawn(random, belief[r].cumsum()[None].repeat(wanted.paths, 0))
            known = shape[state] + counted[r]
            own = level[r, max(0, block[0]), state]
            factor = random.gamma(known) / (shape[state] + own * mass[r])
            for i in range(len(means)):
                if i and block[i] > block[i - 1]:
                    state = _drawn(random, cumulative[phase[r, block[i] - 1], state])
                    factor = random.gamma(shape[state]) / shape[state]
                mean = means[i][:, None] * level[r, max(0, block[i]), state] * factor
                if not (mean < wanted.limit).all():
                    raise explosion(f"{float(mean.max()):.3g} expected events in one interval")
                found[r, column[i]] += random.poisson(mean).astype(np.int32)
        return found

    # ------------------------------------------------------------------ the chain

    def _anchors(
        self, history: ChainHistory, seen: Int[Tensor, "B G"] | None
    ) -> tuple[Float[Tensor, "B G"], _Knowledge]:
        """Time, and what is known, at positions ``seen``, or at all of them."""
        if seen is None:
            return history.times, _Knowledge(history.belief, history.count, history.mass)
        wide = seen[..., None].expand(-1, -1, history.belief.shape[-1])
        known = _Knowledge(
            history.belief.gather(1, wide),
            history.count.gather(1, seen),
            history.mass.gather(1, seen),
        )
        return history.times.gather(1, seen), known

    def _carried(
        self,
        history: ChainHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> tuple[_Knowledge, Float[Tensor, "B X K"]]:
        """What is known at ``times`` without an event since the position, and expected levels."""
        start, known = self._anchors(history, seen)
        G, Q = times.shape[1:]
        line = self._timeline(torch.cat([start, times.flatten(1)], 1), history.context)

        def each(part: Tensor) -> Tensor:
            return part[:, :G].repeat_interleave(Q, 1)

        wide = _Knowledge(each(known.belief), each(known.count), each(known.mass))
        shape = self.log_shape.exp()
        there, _ = _carry(
            wide,
            each(line.passed),
            each(line.block),
            line.passed[:, G:],
            line.block[:, G:],
            line,
            self._transitions(),
            shape,
        )
        level = line.level.gather(1, line.block[:, G:, None].expand(-1, -1, line.level.shape[-1]))
        return there, there.levels(level, shape)

    def _log_population(
        self, times: Float[Tensor, "B ..."], context: BatchContext | None
    ) -> Float[Tensor, "B ... M"]:
        flat = self.log_rate.expand(*times.shape, -1)
        return flat if self.effects is None else flat + self.effects.values(times, context)

    def _origin(
        self, like: Float[Tensor, " B"], context: BatchContext | None
    ) -> Float[Tensor, " B"]:
        """Seconds since 1970 at time 0 of every row; 0 without a calendar."""
        if not self._spec().calendar or context is None or context.origin is None:
            return torch.zeros_like(like)
        return context.origin

    def _phase(
        self, starts: Float[Tensor, "B J"], context: BatchContext | None
    ) -> Int[Tensor, "B J"]:
        """The phase of the local day in the middle of every block."""
        phases = len(self.log_level)
        if phases == 1:
            return torch.zeros(starts.shape, dtype=torch.int64, device=starts.device)
        origin = self._origin(starts[:, 0], context)[:, None]
        finite = torch.where(starts.isfinite(), starts, 0.0)
        seconds = origin + finite * float(self.seconds) + self.block / 2
        zone = self._spec().zone
        if zone is not None:
            changes, offsets = (torch.from_numpy(x).to(starts) for x in zone_offsets(zone))
            place = torch.searchsorted(changes, seconds.contiguous(), right=True) - 1
            seconds = seconds + offsets[place.clamp(min=0)]
        phase = torch.remainder(seconds, DAY) / DAY * phases
        return phase.floor().clamp(max=phases - 1).to(torch.int64)

    def _block_starts(
        self, low: Float[Tensor, " B"], high: Float[Tensor, " B"], context: BatchContext | None
    ) -> Float[Tensor, "B J"]:
        """When the blocks that touch [low, high] begin, with one more on both sides."""
        origin = self._origin(low, context)
        unit = float(self.seconds)
        first = torch.floor((origin + low * unit) / self.block)
        count = int((torch.floor((origin + high * unit) / self.block) - first).max()) + 3
        number = first[:, None] - 1 + torch.arange(count, dtype=low.dtype, device=low.device)
        return (number * self.block - origin[:, None]) / unit

    def _timeline(self, times: Float[Tensor, "B X"], context: BatchContext | None) -> _Timeline:
        """Blocks and integrals from the earliest to the latest of the ``times`` of every row."""
        times = times.detach()
        # Padding may be anything.
        lowest = torch.where(times.isfinite(), times, torch.inf).amin(1, keepdim=True)
        times = torch.where(times.isfinite(), times, lowest)
        low, high = times.amin(1), times.amax(1)
        starts = self._block_starts(low, high, context)
        block = torch.searchsorted(starts.contiguous(), times.contiguous(), right=True) - 1
        # What a row does not reach counts as after its end.
        within = starts.clamp(low[:, None], high[:, None])
        wanted = torch.cat([times, within], 1)
        passed, each = self._passed(wanted, low, high, context)
        X = times.shape[1]
        phase = self._phase(starts, context)
        return _Timeline(
            starts,
            passed[:, X:],
            self.log_level.exp()[phase],
            phase,
            passed[:, :X],
            block.clamp(min=0),
            each[:, :X],
        )

    def _passed(
        self,
        wanted: Float[Tensor, "B X"],
        low: Float[Tensor, " B"],
        high: Float[Tensor, " B"],
        context: BatchContext | None,
    ) -> tuple[Float[Tensor, "B X"], Float[Tensor, "B X M"]]:
        """The integrals of e sum_m exp(r_m + f_m), and of exp(r_m + f_m), from ``low`` on."""
        exposure = None if context is None else context.exposure
        if self.effects is None and exposure is None:
            each = (wanted - low[:, None])[..., None] * self.log_rate.exp()
            return each.sum(-1), each
        parts = [wanted]
        if self.effects is not None:
            parts.append(self.effects.cuts(low, high, context, PIECE))
        if exposure is not None:
            parts.append(exposure.times)
        grid = torch.cat(parts, 1).clamp(low[:, None], high[:, None]).sort(1).values
        width = grid.diff(dim=1)
        x, weights = (part.to(grid) for part in gauss_legendre(NODES))
        nodes = grid[:, :-1, None] + width[..., None] * x
        rates = self._log_population(nodes, context).exp()
        each = torch.einsum("bhqm,q,bh->bhm", rates, weights, width)
        total = each.sum(-1)
        if exposure is not None:
            total = total * exposure.at(grid[:, :-1] + width / 2)[..., 0]
        passed = nn.functional.pad(total.cumsum(1), (1, 0))
        passed_each = nn.functional.pad(each.cumsum(1), (0, 0, 1, 0))
        place = torch.searchsorted(grid, wanted.contiguous())
        wide = place[..., None].expand(-1, -1, self.marks.count)
        return passed.gather(1, place), passed_each.gather(1, wide)


@dataclass(frozen=True)
class _Totals:
    """Events and F since the block began, at first and after every step."""

    count: Float[Tensor, "B P"]
    mass: Float[Tensor, "B P"]


@dataclass(frozen=True)
class _Blocks:
    """Events, F and phase of the blocks of all sequences, and when they begin."""

    events: Float[Tensor, "B J"]
    mass: Float[Tensor, "B J"]
    phase: Int[Tensor, "B J"]
    starts: Float[Tensor, "B J"]


def _logit(chance: float) -> float:
    return float(np.log(chance / (1 - chance)))


def _stationary(T: Float[Tensor, "K K"]) -> Float[Tensor, " K"]:
    """The distribution that the chain has in the long run."""
    K = len(T)
    system = torch.eye(K, dtype=T.dtype, device=T.device) - T + torch.ones_like(T)
    found = torch.linalg.solve(system.T, torch.ones_like(T[0])).clamp(min=0.0)
    return found / found.sum()


def _carry(
    known: _Knowledge,
    passed: Float[Tensor, "B X"],
    block: Int[Tensor, "B X"],
    until: Float[Tensor, "B X"],
    last: Int[Tensor, "B X"],
    line: _Timeline,
    T: Float[Tensor, "D K K"],
    shape: Float[Tensor, " K"],
) -> tuple[_Knowledge, Float[Tensor, "B X"]]:
    """What is known when F has grown from ``passed`` in ``block`` to ``until`` in the block
    ``last`` without an event, and the logarithm of the probability of that.
    """
    K = known.belief.shape[-1]
    log_survival = torch.zeros_like(passed)
    for _ in range(int((last - block).max().clamp(min=0)) + 1):
        crosses = block < last
        following = (block + 1).clamp(max=line.starts.shape[1] - 1)
        end = torch.where(crosses, line.at_starts.gather(1, following), until)
        level = line.level.gather(1, block[..., None].expand(-1, -1, K))
        more = (end - passed).clamp(min=0.0)
        left = known.belief * known.log_silence(more, level, shape).exp()
        chance = left.sum(-1, keepdim=True).clamp(min=FLOOR)
        log_survival = log_survival + chance[..., 0].log()
        belief = left / chance
        moved = torch.einsum("bxk,bxkl->bxl", belief, T[line.phase.gather(1, block)])
        known = _Knowledge(
            torch.where(crosses[..., None], moved, belief),
            torch.where(crosses, 0.0, known.count),
            torch.where(crosses, 0.0, known.mass + more),
        )
        passed = end
        block = torch.where(crosses, block + 1, block)
    return known, log_survival


def _within_blocks(
    event: Bool[Tensor, "B S"],
    end: Bool[Tensor, "B S"],
    more: Float[Tensor, "B S"],
    count: Float[Tensor, " B"],
    mass: Float[Tensor, " B"],
) -> _Totals:
    """Events and growth of F since the block began, at first (``count``, ``mass``) and after every
    step, which is an event, the end of a block or neither, while F grows by ``more`` before it.
    """

    def since(parts: Float[Tensor, "B S"], first: Float[Tensor, " B"]) -> Float[Tensor, "B P"]:
        total = first[:, None] + parts.cumsum(1)
        begun = torch.where(end, total, 0.0).cummax(1).values
        return torch.cat([first[:, None], total - begun], 1)

    return _Totals(since(event.to(more), count), since(more, mass))


def _log_chances(
    events: Float[Tensor, "B J"], mean: Float[Tensor, "B J K"], shape: Float[Tensor, " K"]
) -> Float[Tensor, "B J K"]:
    """Negative binomial log-probabilities of the counts of blocks, but for a term that does not
    depend on the state.
    """
    distinct, which = events.unique(return_inverse=True)
    table = torch.lgamma(distinct[:, None] + shape) - torch.lgamma(shape) + shape * shape.log()
    counts = events[..., None]
    powers = counts * mean.clamp(min=FLOOR).log() - (shape + counts) * (shape + mean).log()
    return table[which] + powers


def _drawn(random: np.random.Generator, cumulative: Float[ndarray, "P K"]) -> ndarray:
    """One state for each row of cumulative probabilities."""
    uniform = random.random(len(cumulative))[:, None]
    return np.minimum((uniform >= cumulative).sum(1), cumulative.shape[1] - 1)
