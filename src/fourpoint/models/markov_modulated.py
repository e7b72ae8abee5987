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

from collections.abc import Iterator
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
from fourpoint.models.level_chain import (
    Knowledge,
    LevelChain,
    Timeline,
    carried,
    filter_steps,
)
from fourpoint.models.level_chain_fit import Blocks, improve, starting_chain
from fourpoint.models.path_counts import explosion, integrals
from fourpoint.models.positions import Positions, last_time
from fourpoint.models.time_pieces import constant_cubics, exposure_of, pieces_until
from fourpoint.ops.chain import FLOOR, filtered
from fourpoint.ops.quadrature import gauss_legendre

NODES = 8  # of the integral of the rate between neighbouring cuts, which are at most an hour apart
BLOCKS = (900.0, 3600.0, 21600.0, 86400.0)  # seconds that a block may have, with a calendar
LEAST_EVENTS = 1.0  # per block on average
LAST_PHASED = 21600.0  # the longest block with phases of the day
ROUNDS, INNER = 12, 6  # of effects, and of EM for the chain within each
ENOUGH = 0.005  # the largest change of a log level in a round that ends EM
FIRST_INNER = 16
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
        start = starting_chain(states, phases or 1)
        self.log_level = nn.Parameter(torch.zeros_like(start.log_level))
        self.log_transition = nn.Parameter(start.log_transition)
        self.log_shape = nn.Parameter(start.log_shape)
        self.logit_forgets = nn.Parameter(start.logit_forgets)
        self.register_buffer("seconds", torch.ones((), dtype=kind))  # in the unit of time

    def settings(self) -> dict[str, Any]:
        """States, blocks and phases as they are now."""
        return {"states": self.states, "block": self.block, "phases": len(self.log_level)}

    def shown(self) -> dict[str, Any]:
        """Settings, the share of time in each state and its level, averaged over phases."""
        chain = self._fixed_chain
        share = chain.stationary.numpy()
        level = chain.mean_level.numpy()
        return {**self.settings(), "share": share, "level": level}

    @property
    def chain(self) -> LevelChain:
        """The hidden chain with its parameters."""
        return LevelChain(
            log_level=self.log_level,
            log_transition=self.log_transition,
            log_shape=self.log_shape,
            logit_forgets=self.logit_forgets,
        )

    @property
    def _fixed_chain(self) -> LevelChain:
        """The same parameters, apart from the graph of gradients."""
        return LevelChain(
            log_level=self.log_level.detach(),
            log_transition=self.log_transition.detach(),
            log_shape=self.log_shape.detach(),
            logit_forgets=self.logit_forgets.detach(),
        )

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
        self._start_chain()
        chain = self._fixed_chain
        spec = self._spec()
        found = fit_effects(data, spec, least=LEAST)
        for turn in range(ROUNDS):
            before = chain.log_level.clone()
            self._take(found)
            blocks = self._blocks_of(data)
            mean = improve(chain, blocks)
            for _ in range((FIRST_INNER if turn == 0 else INNER) - 1):
                mean = improve(chain, blocks)
            weighted = self._weighted(data, blocks, mean)
            found = fit_effects(weighted, spec, least=LEAST, start=found)
            change = (chain.log_level - before).abs().max()
            if float(change) < ENOUGH:
                break
        self._take(found)
        blocks = self._blocks_of(data)
        for _ in range(INNER):
            improve(chain, blocks)
        self.rate_ratios = found.rate_ratios
        return [self._levels_in_words(), *found.notes]

    def _levels_in_words(self) -> str:
        share = self._fixed_chain.stationary.numpy()
        level = self._fixed_chain.mean_level.numpy()
        mean = share @ level
        parts = [f"{level[k] / mean:.3g} ({share[k]:.0%})" for k in np.argsort(level)]
        return f"level over its mean, and share of the time: {', '.join(parts)}"

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
            divides_day = block <= LAST_PHASED and abs(per_day - round(per_day)) < 1e-9
            long_enough = observed >= 14 * DAY
            phases = round(per_day) if dated and divides_day and long_enough else 1
        self.block = float(block)
        start = starting_chain(self.states, phases)
        self.log_level = nn.Parameter(torch.zeros_like(start.log_level))
        self.logit_forgets = nn.Parameter(start.logit_forgets)
        with torch.no_grad():
            self.seconds.fill_(unit)

    def _start_chain(self) -> None:
        """The parameters of the chain at which EM begins."""
        start = starting_chain(self.states, len(self.log_level))
        with torch.no_grad():
            self.log_level.copy_(start.log_level)
            self.log_transition.copy_(start.log_transition)
            self.log_shape.copy_(start.log_shape)
            self.logit_forgets.copy_(start.logit_forgets)

    def _blocks_of(self, data: Dataset) -> Blocks:
        """Events, F and phase of every block, for all sequences."""
        rows = np.arange(len(data))
        context = None if data.context is None else data.context.batch(rows)
        start, stop = (torch.from_numpy(x.copy()) for x in (data.starts, data.stops))
        line = self._timeline(torch.stack([start, stop], 1), context)
        end = line.passed[:, 1:]
        block_ends = torch.cat([line.at_starts[:, 1:], end], 1)
        mass = torch.minimum(block_ends, end) - line.at_starts.clamp(min=0.0)
        starts = line.starts.numpy()
        counts = np.zeros(starts.shape)
        for i in rows:
            times = data.times[data.offsets[i] : data.offsets[i + 1]]
            block = np.searchsorted(starts[i], times, "right") - 1
            np.add.at(counts[i], np.maximum(block, 0), 1.0)
        return Blocks(
            events=torch.from_numpy(counts),
            mass=mass.clamp(min=0.0),
            phase=self._phase(line.starts, context),
            starts=line.starts,
        )

    def _weighted(self, data: Dataset, blocks: Blocks, mean: Float[Tensor, "B J"]) -> Dataset:
        """The data with the expected level as a factor of the exposure."""
        known = Context() if data.context is None else data.context
        all_times = []
        all_values = []
        for i in range(len(data)):
            start, stop = data.starts[i], data.stops[i]
            block_starts = blocks.starts[i].numpy()
            block_ends = np.append(block_starts[1:], np.inf)
            touched = np.flatnonzero((block_starts < stop) & (block_ends > start))
            times = np.maximum(block_starts[touched], start)
            values = mean[i].numpy()[touched]
            if known.exposure is not None:
                begins = times
                own = slice(*known.exposure.offsets[i : i + 2])
                times = np.unique(np.concatenate([begins, known.exposure.times[own]]))
                times = times[(times >= start) & (times < stop)]
                block = np.searchsorted(begins, times, "right") - 1
                exposure = known.exposure.at(i, times)[:, 0]
                values = values[np.maximum(block, 0)] * exposure
            all_times.append(times)
            all_values.append(values)
        lengths = [len(times) for times in all_times]
        steps = Steps(
            times=np.concatenate(all_times),
            values=np.concatenate(all_values)[:, None],
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            names=("exposure",),
        )
        return replace(data, context=replace(known, exposure=steps))

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: ChainHistory | None = None) -> ChainHistory:
        context = self.known_context(batch, before)
        chain = self.chain
        if before is None:
            first = start = batch.start
            earlier = torch.zeros_like(batch.lengths)
            belief = chain.stationary.expand(len(first), -1)
            count = mass = torch.zeros_like(first)
        else:
            last = before.latest()
            first, start, earlier = last.times[:, 0], last.start, last.earlier
            belief, count, mass = last.belief[:, 0], last.count[:, 0], last.mass[:, 0]
        known = torch.where(batch.valid, batch.times.detach(), first[:, None])
        times = torch.cat([first[:, None], known], 1).cummax(1).values
        line = self._timeline(times, context)
        steps = filter_steps(line, times, batch.valid)
        counts, masses = steps.totals(count, mass)
        log_factors = steps.log_factors(line, counts, masses, chain.shape)
        moves = torch.where(steps.end, line.phase.gather(1, steps.block), -1)
        beliefs = filtered(belief, log_factors.exp(), moves, chain.transitions)
        # Positions are the start and the events; padding repeats the last of them.
        at = torch.cat([torch.zeros_like(batch.lengths)[:, None], 1 + steps.place], 1)
        position = torch.arange(at.shape[1], device=first.device).expand_as(at)
        at = at.gather(1, position.minimum(batch.lengths[:, None]))
        wide = at[..., None].expand(-1, -1, self.states)
        return ChainHistory(
            times,
            start,
            batch.lengths,
            earlier,
            belief=beliefs.gather(1, wide),
            count=counts.gather(1, at),
            mass=masses.gather(1, at),
            context=context,
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
        chain = self.chain
        there, _ = carried(known, passed, block, at_a, block_a, line, chain)
        _, log_survival = carried(there, at_a, block_a, at_b, block_b, line, chain)
        each = line.each[:, G + 1 :: 2] - line.each[:, G::2]
        total = each.sum(-1)
        exposed = at_b - at_a
        level = there.levels(line.levels_of(block_a), chain.shape)
        unexposed = (there.belief * level).sum(-1) * total
        ratio = total / torch.where(exposed > 0, exposed, 1.0)
        whole = torch.where(exposed > 0, -log_survival * ratio, unexposed)
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
        at_a, block_a = passed[:, 1:2], block[:, 1:2]
        chain = self.chain
        there, _ = carried(known, passed[:, :1], block[:, :1], at_a, block_a, line, chain)
        level = there.levels(line.levels_of(block_a), chain.shape)
        mean = (there.belief * level).sum(-1)[:, 0]
        number = torch.arange(line.level.shape[1], device=a.device)
        later = (number > block_a) & (number <= block[:, 2:3])
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
        now, end = wanted.edges[:, 0], wanted.edges[:, -1]
        history = self.encode(batch).latest()
        known = self.move(history, torch.from_numpy(now.copy()))
        line = self._timeline(torch.from_numpy(wanted.edges[:, [0, -1]].copy()), batch.context)
        starts = line.starts.numpy()
        cubics = constant_cubics(self.log_rate)
        pieces = pieces_until(cubics, self.effects, batch, now, end)
        exposure = exposure_of(batch)
        rows, columns = wanted.edges.shape
        shape = (rows, columns - 1, self.marks.count, wanted.paths)
        found = np.zeros(shape, dtype=np.int32)
        for r in range(rows):
            edges = wanted.edges[r]
            inside = starts[r][(starts[r] > edges[0]) & (starts[r] < edges[-1])]
            cuts = np.unique(np.concatenate([edges, inside]))
            means = integrals(r, cuts, pieces, exposure)
            block = np.searchsorted(starts[r], cuts[:-1], side="right") - 1
            column = np.searchsorted(edges, cuts[:-1], side="right") - 1
            random = np.random.Generator(np.random.Philox(key=int(wanted.keys[r])))
            levels = self._drawn_levels(random, r, known, line, block, wanted.paths)
            for i, level in enumerate(levels):
                mean = means[i][:, None] * level
                if not (mean < wanted.limit).all():
                    raise explosion(f"{float(mean.max()):.3g} expected events in one interval")
                found[r, column[i]] += random.poisson(mean).astype(np.int32)
        return found

    def _drawn_levels(
        self,
        random: np.random.Generator,
        r: int,
        known: ChainHistory,
        line: Timeline,
        block: NDArray[np.int64],
        paths: int,
    ) -> Iterator[Float[ndarray, " paths"]]:
        """The level of every path of row ``r`` in each interval, of which ``block`` is the block
        and ``known`` what is known at its beginning. It is drawn as the intervals are asked for.
        """
        shape = self._fixed_chain.shape.numpy()
        cumulative = self._fixed_chain.transitions.cumsum(2).numpy()
        level = line.level[r].numpy()
        phase = line.phase[r].numpy()
        belief = known.belief[r, 0].numpy()
        count, mass = known.count[r, 0].numpy(), known.mass[r, 0].numpy()
        state = _drawn(random, belief.cumsum()[None].repeat(paths, 0))
        gamma_rate = shape[state] + level[max(0, block[0]), state] * mass
        factor = random.gamma(shape[state] + count) / gamma_rate
        for i in range(len(block)):
            if i and block[i] > block[i - 1]:
                state = _drawn(random, cumulative[phase[block[i] - 1], state])
                factor = random.gamma(shape[state]) / shape[state]
            yield level[max(0, block[i]), state] * factor

    # ------------------------------------------------------------------ the chain

    def _anchors(
        self, history: ChainHistory, seen: Int[Tensor, "B G"] | None
    ) -> tuple[Float[Tensor, "B G"], Knowledge]:
        """Time, and what is known, at positions ``seen``, or at all of them."""
        if seen is None:
            return history.times, Knowledge(history.belief, history.count, history.mass)
        wide = seen[..., None].expand(-1, -1, history.belief.shape[-1])
        known = Knowledge(
            belief=history.belief.gather(1, wide),
            count=history.count.gather(1, seen),
            mass=history.mass.gather(1, seen),
        )
        return history.times.gather(1, seen), known

    def _carried(
        self,
        history: ChainHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> tuple[Knowledge, Float[Tensor, "B X K"]]:
        """What is known at ``times`` without an event since the position, and expected levels."""
        start, known = self._anchors(history, seen)
        G, Q = times.shape[1:]
        line = self._timeline(torch.cat([start, times.flatten(1)], 1), history.context)

        def each(part: Tensor) -> Tensor:
            return part[:, :G].repeat_interleave(Q, 1)

        wide = Knowledge(each(known.belief), each(known.count), each(known.mass))
        chain = self.chain
        block = line.block[:, G:]
        there, _ = carried(
            wide, each(line.passed), each(line.block), line.passed[:, G:], block, line, chain
        )
        return there, there.levels(line.levels_of(block), chain.shape)

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

    def _timeline(self, times: Float[Tensor, "B X"], context: BatchContext | None) -> Timeline:
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
        return Timeline(
            starts=starts,
            at_starts=passed[:, X:],
            level=self.log_level.exp()[phase],
            phase=phase,
            passed=passed[:, :X],
            block=block.clamp(min=0),
            each=each[:, :X],
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


def _drawn(random: np.random.Generator, cumulative: Float[ndarray, "P K"]) -> ndarray:
    """One state for each row of cumulative probabilities."""
    uniform = random.random(len(cumulative))[:, None]
    return np.minimum((uniform >= cumulative).sum(1), cumulative.shape[1] - 1)
