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
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, BatchContext, Context, Dataset, MarkSpace, Steps, UserError
from fourpoint.kernels.path_terms import Wanted
from fourpoint.models.base import PointProcess, space_without_places, which_happened
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
        known = self.knowledge(last)
        return replace(
            self,
            times=self.times.gather(1, last),
            belief=known.belief,
            count=known.count,
            mass=known.mass,
            earlier=self.earlier + self.lengths,
            lengths=torch.zeros_like(self.lengths),
        )

    def knowledge(self, seen: Int[Tensor, "B G"] | None) -> Knowledge:
        """What is known of the chain at positions ``seen``, or at all of them."""
        known = Knowledge(self.belief, self.count, self.mass)
        return known if seen is None else _gathered(known, seen)

    def followed_by(
        self,
        known: Knowledge,
        time: Float[Tensor, " B"],
        happened: Bool[Tensor, " B"] | None = None,
    ) -> ChainHistory:
        """One position at ``time``, where ``known`` is known, of as many events as here and those
        that ``happened`` then.
        """
        earlier = self.earlier + self.lengths
        if happened is not None:
            earlier = earlier + happened
        return ChainHistory(
            time[:, None],
            self.start,
            torch.zeros_like(self.lengths),
            earlier,
            known.belief,
            known.count,
            known.mass,
            context=self.context,
        )


class PathEvents(NamedTuple):
    """Events of several paths: which path, when and of what type."""

    row: Int[Tensor, " E"]
    time: Float[Tensor, " E"]
    mark: Int[Tensor, " E"]
    place: None = None
    features: None = None


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
    draws_paths = "hidden states first"

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
        self.block = float(block or 1.0)
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
        share, level = self._share_and_level()
        return {**self.settings(), "share": share, "level": level}

    def _share_and_level(self) -> tuple[Float[ndarray, " K"], Float[ndarray, " K"]]:
        """The share of time in each state, and its level, averaged over phases."""
        chain = self._fixed_chain
        return chain.stationary.numpy(), chain.mean_level.numpy()

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
        found = fit_effects(data, self._spec(), least=LEAST)
        self._take(found)
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
            inner = FIRST_INNER if turn == 0 else INNER
            for _ in range(inner):
                mean = improve(chain, blocks)
            weighted = self._weighted(data, blocks, mean)
            found = fit_effects(weighted, spec, least=LEAST, start=found)
            change = chain.log_level - before
            if float(change.abs().max()) < ENOUGH:
                break
        self._take(found)
        blocks = self._blocks_of(data)
        for _ in range(INNER):
            improve(chain, blocks)
        self.rate_ratios = found.rate_ratios
        return [self._levels_in_words(), *found.notes]

    def _levels_in_words(self) -> str:
        share, level = self._share_and_level()
        relative = level / (share @ level)
        parts = []
        for k in np.argsort(level):
            parts.append(f"{relative[k]:.3g} ({share[k]:.0%})")
        listed = ", ".join(parts)
        return f"level over its mean, and share of the time: {listed}"

    def _spec(self) -> EffectsSpec:
        return EffectsSpec() if self.effects is None else self.effects.spec

    def _take(self, found: EffectsFit) -> None:
        level = torch.from_numpy(found.level)
        weight = torch.from_numpy(found.weight)
        with torch.no_grad():
            self.log_rate.copy_(level)
            if self.effects is not None:
                self.effects.weight.copy_(weight)

    def _choose_blocks(self, data: Dataset) -> None:
        """The length of blocks, and phases of the day where they divide it."""
        spec = self._spec()
        dated = bool(spec.calendar)
        unit = spec.seconds if dated else 1.0
        duration = float(data.durations.sum())
        observed = duration * unit
        rate = max(1, data.events) / observed
        if self.chosen_block is not None:
            block = self.chosen_block
        elif dated:
            block = BLOCKS[-1]
            for length in reversed(BLOCKS):
                if rate * length >= LEAST_EVENTS:
                    block = length
        else:
            block = 2 * LEAST_EVENTS / rate
        phases = self.chosen_phases
        if phases is None:
            phases = 1
            per_day = DAY / block
            whole = round(per_day)
            divides_day = abs(per_day - whole) < 1e-9
            long_enough = observed >= 14 * DAY
            if dated and block <= LAST_PHASED and divides_day and long_enough:
                phases = whole
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
        windows = np.stack([data.starts, data.stops], 1)
        line = self._timeline(torch.from_numpy(windows), context)
        end = line.passed[:, 1:]
        at_starts = line.at_starts
        block_ends = torch.cat([at_starts[:, 1:], end], 1)
        within = torch.minimum(block_ends, end)
        mass = within - at_starts.clamp(min=0.0)
        starts = line.starts.numpy()
        counts = np.zeros(starts.shape)
        for i in range(len(data)):
            times = data.times[data.row(i)]
            place = np.searchsorted(starts[i], times, "right") - 1
            block = np.maximum(place, 0)
            np.add.at(counts[i], block, 1.0)
        return Blocks(
            events=torch.from_numpy(counts),
            mass=mass.clamp(min=0.0),
            phase=self._phase(line.starts, context),
            starts=line.starts,
        )

    def _weighted(self, data: Dataset, blocks: Blocks, mean: Float[Tensor, "B J"]) -> Dataset:
        """The data with the expected level as a factor of the exposure."""
        known = data.context or Context()
        all_times = []
        all_values = []
        for i in range(len(data)):
            start = data.starts[i]
            stop = data.stops[i]
            block_starts = blocks.starts[i].numpy()
            block_ends = np.append(block_starts[1:], np.inf)
            touched = (block_starts < stop) & (block_ends > start)
            times = np.maximum(block_starts[touched], start)
            level = mean[i].numpy()
            values = level[touched]
            exposure = known.exposure
            if exposure is not None:
                begins = times
                steps = exposure.times[exposure.row(i)]
                times = np.unique(np.concatenate([begins, steps]))
                inside = (times >= start) & (times < stop)
                times = times[inside]
                place = np.searchsorted(begins, times, "right") - 1
                block = np.maximum(place, 0)
                observed = exposure.at(i, times)[:, 0]
                values = values[block] * observed
            all_times.append(times)
            all_values.append(values)
        lengths = [len(times) for times in all_times]
        ends = np.cumsum(lengths)
        values = np.concatenate(all_values)
        weight = Steps(
            times=np.concatenate(all_times),
            values=values[:, None],
            offsets=np.concatenate([[0], ends]),
            names=("exposure",),
        )
        context = replace(known, exposure=weight)
        return replace(data, context=context)

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
            first = last.times[:, 0]
            start = last.start
            earlier = last.earlier
            belief = last.belief[:, 0]
            count = last.count[:, 0]
            mass = last.mass[:, 0]
        begin = first[:, None]
        events = torch.where(batch.valid, batch.times.detach(), begin)
        times = torch.cat([begin, events], 1).cummax(1).values
        line = self._timeline(times, context)
        steps = filter_steps(line, times, batch.valid)
        counts, masses = steps.totals(count, mass)
        log_factors = steps.log_factors(line, counts, masses, chain.shape)
        phase = line.phase.gather(1, steps.block)
        moves = torch.where(steps.end, phase, -1)
        beliefs = filtered(belief, log_factors.exp(), moves, chain.transitions)
        # Positions are the start and the events; padding repeats the last of them.
        at_start = torch.zeros_like(batch.lengths)[:, None]
        at = torch.cat([at_start, 1 + steps.place], 1)
        position = torch.arange(at.shape[1], device=first.device)
        real = torch.minimum(position, batch.lengths[:, None])
        at = at.gather(1, real)
        known = _gathered(Knowledge(beliefs, counts, masses), at)
        return ChainHistory(
            times,
            start,
            batch.lengths,
            earlier,
            known.belief,
            known.count,
            known.mass,
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
        happened = which_happened(mark, active)
        at = torch.where(happened, time, last_time(history))
        now, level = self._carried_from_last(history, at)
        factor = torch.where(happened[:, None, None], level, 1.0)
        raised = now.belief * factor
        total = raised.sum(-1, keepdim=True)
        known = Knowledge(
            belief=raised / total.clamp(min=FLOOR),
            count=now.count + happened[:, None],
            mass=now.mass,
        )
        return history.followed_by(known, at, happened)

    def move(self, history: ChainHistory, time: Float[Tensor, " B"]) -> ChainHistory:
        """The belief at ``time``, so that blocks until then need not be passed again."""
        at = torch.maximum(time, last_time(history))
        now, _ = self._carried_from_last(history, at)
        return history.followed_by(now, at)

    def log_intensity(
        self,
        history: ChainHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        if not times.numel():
            return self._log_population(times, history.context)
        now, level = self._carried(history, times, seen)
        mean = (now.belief * level).sum(-1)
        log_level = mean.view(times.shape).clamp(min=FLOOR).log()
        log_population = self._log_population(times, history.context)
        return log_population + log_level[..., None]

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
        times = torch.cat([start, a, b], 1)
        line = self._timeline(times, history.context)
        G = a.shape[1]
        passed, at_a, at_b = line.passed.split(G, 1)
        block, block_a, block_b = line.block.split(G, 1)
        _, each_at_a, each_at_b = line.each.split(G, 1)
        chain = self.chain
        there, _ = carried(known, passed, block, at_a, block_a, line, chain)
        _, log_survival = carried(there, at_a, block_a, at_b, block_b, line, chain)
        each = each_at_b - each_at_a
        total = each.sum(-1)
        exposure = at_b - at_a
        observed = exposure > 0
        mean = _mean_level(there, line.levels_of(block_a), chain)
        ratio = total / torch.where(observed, exposure, 1.0)
        from_survival = -log_survival * ratio
        whole = torch.where(observed, from_survival, mean * total)
        divisor = torch.where(total > 0, total, 1.0)
        share = each / divisor[..., None]
        return share * whole[..., None]

    def jumps(
        self, history: ChainHistory, low: Float[Tensor, " B"], high: Float[Tensor, " B"]
    ) -> Float[Tensor, "B J"] | None:
        """Those of the effects, and the ends of blocks."""
        ends = self._block_starts(low, high, history.context)
        own = super().jumps(history, low, high)
        if own is None:
            return ends
        return torch.cat([own, ends], 1)

    @torch.no_grad()
    def upper_bound(
        self, history: ChainHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """The population's bound times the expected level at a, which falls within a block while
        nothing happens; from the next block on times the largest level.
        """
        last = history.lengths[:, None]
        start, known = self._anchors(history, last)
        times = torch.cat([start, a[:, None], b[:, None]], 1)
        line = self._timeline(times, history.context)
        passed, at_a, _ = line.passed.split(1, 1)
        block, block_a, block_b = line.block.split(1, 1)
        chain = self.chain
        there, _ = carried(known, passed, block, at_a, block_a, line, chain)
        mean = _mean_level(there, line.levels_of(block_a), chain)[:, 0]
        blocks = line.level.shape[1]
        number = torch.arange(blocks, device=a.device)
        follows = number > block_a
        later = follows & (number <= block_b)
        highest = line.level.amax(-1)
        largest = torch.where(later, highest, 0.0).amax(1)
        log_rate = self.log_rate.expand(len(a), -1)
        if self.effects is not None:
            effects = self.effects.upper_bound(a, b, history.context, self.log_rate.dtype)
            log_rate = log_rate + effects
        bound = log_rate.exp().sum(-1)
        level_bound = torch.maximum(mean, largest)
        return bound * level_bound * (1 + 1e-9)

    @torch.no_grad()
    def draw_counts(self, batch: Batch, wanted: Wanted) -> NDArray[np.int32] | None:
        """Paths of the chain and factors of its blocks from their distribution given the past, and
        Poisson numbers given both.
        """
        now = wanted.edges[:, 0].copy()
        end = wanted.edges[:, -1]
        history = self.encode(batch).latest()
        known = self.move(history, torch.from_numpy(now))
        spans = np.stack([now, end], 1)
        line = self._timeline(torch.from_numpy(spans), batch.context)
        starts = line.starts.numpy()
        cubics = constant_cubics(self.log_rate)
        pieces = pieces_until(cubics, self.effects, batch, now, end)
        exposure = exposure_of(batch)
        rows, columns = wanted.edges.shape
        shape = (rows, columns - 1, self.marks.count, wanted.paths)
        found = np.zeros(shape, dtype=np.int32)
        for r, edges in enumerate(wanted.edges):
            begins = starts[r]
            begun = begins > now[r]
            inside = begun & (begins < end[r])
            times = np.concatenate([edges, begins[inside]])
            cuts = np.unique(times)
            means = integrals(r, cuts, pieces, exposure)
            left = cuts[:-1]
            block = np.searchsorted(begins, left, side="right") - 1
            column = np.searchsorted(edges, left, side="right") - 1
            key = int(wanted.keys[r])
            random = np.random.Generator(np.random.Philox(key=key))
            levels = self._drawn_levels(random, r, known, line, block, wanted.paths)
            for i, level in enumerate(levels):
                mean = means[i][:, None] * level
                if not (mean < wanted.limit).all():
                    most = float(mean.max())
                    raise explosion(f"{most:.3g} expected events in one interval")
                events = random.poisson(mean).astype(np.int32)
                found[r, column[i]] += events
        return found

    @torch.no_grad()
    def draw_paths(
        self,
        history: ChainHistory,
        start: Float[Tensor, " B"],
        stop: Float[Tensor, " B"],
        random: torch.Generator,
        limit: int,
    ) -> PathEvents | None:
        """Whole paths: block by block the state and the factor given the past, and given both the
        events of a Poisson process, by thinning. Their law is that of thinning event by event.
        """
        known = self.move(history, start)
        line = self._timeline(torch.stack([start, stop], 1), history.context)
        key = torch.randint(2**62, (1,), generator=random)
        draws = np.random.Generator(np.random.Philox(key=int(key)))
        chain = self._fixed_chain
        shape = chain.shape.numpy()
        cumulative = chain.transitions.cumsum(2).numpy()
        begins, level, phase = (x.numpy() for x in (line.starts, line.level, line.phase))
        rows = np.arange(len(start))
        first = line.block[:, 0].clamp(min=0).numpy()
        state = _drawn(draws, known.belief[:, 0].numpy().cumsum(1))
        own = shape[state]
        gamma_rate = own + level[rows, first, state] * known.mass[:, 0].numpy()
        factor = draws.gamma(own + known.count[:, 0].numpy()) / gamma_rate
        now, end = start.numpy(), stop.numpy()
        found: list[PathEvents] = []
        count = np.zeros(len(start), dtype=np.int64)
        last = begins.shape[1] - 1
        for j in range(int(first.min()), last + 1):
            entered = (j > first) & (begins[:, j] < end)
            if entered.any():
                passed = cumulative[phase[:, j - 1], state]
                state = np.where(entered, _drawn(draws, passed), state)
                own = shape[state]
                factor = np.where(entered, draws.gamma(own) / own, factor)
            a = np.where(j > first, begins[:, j], now)
            b = end if j == last else np.minimum(begins[:, j + 1], end)
            inside = (j >= first) & (a < b)
            a = np.where(inside, a, now)
            b = np.where(inside, b, now)
            height = np.where(inside, level[rows, j, state] * factor, 0.0)
            events = self._drawn_events(draws, a, b, height, history.context, limit)
            if events is None:
                return None
            found.append(events)
            count += np.bincount(events.row, minlength=len(start))
            if count.max(initial=0) > limit:
                return None
        return PathEvents(
            torch.cat([one.row for one in found]),
            torch.cat([one.time for one in found]),
            torch.cat([one.mark for one in found]),
        )

    def _drawn_events(
        self,
        draws: np.random.Generator,
        a: Float[ndarray, " B"],
        b: Float[ndarray, " B"],
        height: Float[ndarray, " B"],
        context: BatchContext | None,
        limit: int,
    ) -> PathEvents | None:
        """Events of Poisson processes on [a, b) whose rates are ``height`` times those of calendar
        and covariates; None where more than ``limit`` are to be expected.
        """
        low, high = torch.from_numpy(a), torch.from_numpy(b)
        log_bound = self.log_rate.expand(len(a), -1)
        if self.effects is not None:
            effects = self.effects.upper_bound(low, high, context, self.log_rate.dtype)
            log_bound = log_bound + effects
        bound = log_bound.exp().sum(-1).numpy()
        mean = bound * height * (b - a)
        if not (mean <= 2.0 * limit).all():
            return None
        number = draws.poisson(mean)
        row = np.repeat(np.arange(len(a)), number)
        place = np.arange(len(row)) - np.repeat(number.cumsum() - number, number)
        time = a[row] + (b - a)[row] * draws.random(len(row))
        times = np.repeat(a[:, None], int(number.max(initial=0)), 1)
        times[row, place] = time
        rates = self._log_population(torch.from_numpy(times), context).exp().numpy()[row, place]
        cumulative = rates.cumsum(-1)
        coin = draws.random(len(row)) * bound[row]
        kept = coin < cumulative[:, -1]
        mark = (coin[kept][:, None] >= cumulative[kept]).sum(1)
        return PathEvents(
            torch.from_numpy(row[kept]),
            torch.from_numpy(time[kept]),
            torch.from_numpy(mark),
        )

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
        chain = self._fixed_chain
        shape = chain.shape.numpy()
        cumulative = chain.transitions.cumsum(2).numpy()
        level = line.level[r].numpy()
        phase = line.phase[r].numpy()
        belief = known.belief[r, 0].numpy()
        count = known.count[r, 0].numpy()
        mass = known.mass[r, 0].numpy()
        below = np.tile(belief.cumsum(), (paths, 1))
        state = _drawn(random, below)
        before = max(0, block[0])
        own = shape[state]
        gamma_rate = own + level[before, state] * mass
        factor = random.gamma(own + count) / gamma_rate
        for place in block:
            now = max(0, place)
            if now > before:
                passed = phase[now - 1]
                state = _drawn(random, cumulative[passed, state])
                own = shape[state]
                factor = random.gamma(own) / own
            before = now
            yield level[now, state] * factor

    # ------------------------------------------------------------------ the chain

    def _anchors(
        self, history: ChainHistory, seen: Int[Tensor, "B G"] | None
    ) -> tuple[Float[Tensor, "B G"], Knowledge]:
        """Time, and what is known, at positions ``seen``, or at all of them."""
        known = history.knowledge(seen)
        times = history.times
        if seen is not None:
            times = times.gather(1, seen)
        return times, known

    def _carried_from_last(
        self, history: ChainHistory, time: Float[Tensor, " B"]
    ) -> tuple[Knowledge, Float[Tensor, "B 1 K"]]:
        """As :meth:`_carried`, from the last position to one time per row."""
        times = time[:, None, None]
        last = history.lengths[:, None]
        return self._carried(history, times, last)

    def _carried(
        self,
        history: ChainHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> tuple[Knowledge, Float[Tensor, "B X K"]]:
        """What is known at ``times`` without an event since the position, and expected levels."""
        start, known = self._anchors(history, seen)
        G, Q = times.shape[1:]
        wanted = torch.cat([start, times.flatten(1)], 1)
        line = self._timeline(wanted, history.context)

        def each(part: Tensor) -> Tensor:
            return part[:, :G].repeat_interleave(Q, 1)

        wide = Knowledge(
            belief=each(known.belief),
            count=each(known.count),
            mass=each(known.mass),
        )
        chain = self.chain
        passed = each(line.passed)
        block = each(line.block)
        at_times = line.passed[:, G:]
        their_block = line.block[:, G:]
        there, _ = carried(wide, passed, block, at_times, their_block, line, chain)
        levels = line.levels_of(their_block)
        return there, there.levels(levels, chain.shape)

    def _log_population(
        self, times: Float[Tensor, "B ..."], context: BatchContext | None
    ) -> Float[Tensor, "B ... M"]:
        flat = self.log_rate.expand(*times.shape, -1)
        if self.effects is None:
            return flat
        return flat + self.effects.values(times, context)

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
        first = starts[:, 0]
        origin = self._origin(first, context)[:, None]
        finite = torch.where(starts.isfinite(), starts, 0.0)
        since = finite * float(self.seconds)
        begins = origin + since
        seconds = begins + self.block / 2
        zone = self._spec().zone
        if zone is not None:
            changes, offsets = (torch.from_numpy(x).to(starts) for x in zone_offsets(zone))
            after = torch.searchsorted(changes, seconds.contiguous(), right=True)
            last = (after - 1).clamp(min=0)
            seconds = seconds + offsets[last]
        share = torch.remainder(seconds, DAY) / DAY
        phase = (share * phases).floor()
        return phase.clamp(max=phases - 1).to(torch.int64)

    def _block_starts(
        self, low: Float[Tensor, " B"], high: Float[Tensor, " B"], context: BatchContext | None
    ) -> Float[Tensor, "B J"]:
        """When the blocks that touch [low, high] begin, with one more on both sides."""
        origin = self._origin(low, context)
        unit = float(self.seconds)

        def block_at(times: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
            seconds = origin + times * unit
            return torch.floor(seconds / self.block)

        first = block_at(low)
        most = int((block_at(high) - first).max())
        index = torch.arange(most + 3, dtype=low.dtype, device=low.device)
        number = first[:, None] - 1 + index
        since_1970 = number * self.block
        seconds = since_1970 - origin[:, None]
        return seconds / unit

    def _timeline(self, times: Float[Tensor, "B X"], context: BatchContext | None) -> Timeline:
        """Blocks and integrals from the earliest to the latest of the ``times`` of every row."""
        times = times.detach()
        # Padding may be anything.
        finite = times.isfinite()
        lowest = torch.where(finite, times, torch.inf).amin(1, keepdim=True)
        times = torch.where(finite, times, lowest)
        low = times.amin(1)
        high = times.amax(1)
        starts = self._block_starts(low, high, context)
        after = torch.searchsorted(starts.contiguous(), times.contiguous(), right=True)
        block = after - 1
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
            since = wanted - low[:, None]
            each = since[..., None] * self.log_rate.exp()
            return each.sum(-1), each
        parts = [wanted]
        if self.effects is not None:
            cuts = self.effects.cuts(low, high, context, PIECE)
            parts.append(cuts)
        if exposure is not None:
            parts.append(exposure.times)
        every = torch.cat(parts, 1)
        within = every.clamp(low[:, None], high[:, None])
        grid = within.sort(1).values
        left = grid[:, :-1]
        width = grid.diff(dim=1)
        x, weights = (part.to(grid) for part in gauss_legendre(NODES))
        offset = width[..., None] * x
        nodes = left[..., None] + offset
        log_rates = self._log_population(nodes, context)
        each = torch.einsum("bhqm,q,bh->bhm", log_rates.exp(), weights, width)
        total = each.sum(-1)
        if exposure is not None:
            middle = left + width / 2
            observed = exposure.at(middle)[..., 0]
            total = total * observed
        sums = total.cumsum(1)
        sums_of_each = each.cumsum(1)
        passed = nn.functional.pad(sums, (1, 0))
        passed_each = nn.functional.pad(sums_of_each, (0, 0, 1, 0))
        place = torch.searchsorted(grid, wanted.contiguous())
        wide = place[..., None].expand(-1, -1, self.marks.count)
        each_until = passed_each.gather(1, wide)
        return passed.gather(1, place), each_until


def _drawn(random: np.random.Generator, cumulative: Float[ndarray, "P K"]) -> ndarray:
    """One state for each row of cumulative probabilities."""
    uniform = random.random(len(cumulative))[:, None]
    below = uniform >= cumulative
    last = cumulative.shape[1] - 1
    return np.minimum(below.sum(1), last)


def _mean_level(
    known: Knowledge, level: Float[Tensor, "B X K"], chain: LevelChain
) -> Float[Tensor, "B X"]:
    """The expected level, where ``level`` holds those of all states."""
    expected = known.levels(level, chain.shape)
    return (known.belief * expected).sum(-1)


def _gathered(known: Knowledge, seen: Int[Tensor, "B G"]) -> Knowledge:
    """What is known at some of the positions."""
    wide = seen[..., None].expand(-1, -1, known.belief.shape[-1])
    return Knowledge(
        belief=known.belief.gather(1, wide),
        count=known.count.gather(1, seen),
        mass=known.mass.gather(1, seen),
    )
