r"""A hidden Markov chain of levels over blocks of time, and what events tell of its state.

A block is in the state z with level v_z, times a gamma factor of mean 1 and shape a_z, independent
of all other blocks. At the end of a block of phase d the chain moves by

    T_d = (1 - rho_d) T + rho_d 1 pi^T,

pi being the stationary distribution of T. Given the past, p is the distribution of the state, n the
number of events since the block began, and F the integral of the population's rate since then. The
factor is gamma distributed with shape a_k + n and rate a_k + v_k F, so that the expected level is

    w_k = v_k (a_k + n) / (a_k + v_k F)

in the state k. While nothing happens and F grows by G, p_k is multiplied by

    P(no event | k) = (1 + w_k G / (a_k + n))^-(a_k + n);

an event multiplies it by w_k, and the end of a block applies T_d.

Axes: B sequences, P positions, X times, J blocks, S steps, K states, D phases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fourpoint.ops.chain import FLOOR


@dataclass(frozen=True)
class LevelChain:
    """Parameters of the chain: log v by phase, log T, log a and logit rho."""

    log_level: Float[Tensor, "D K"]
    log_transition: Float[Tensor, "K K"]
    log_shape: Float[Tensor, " K"]
    logit_forgets: Float[Tensor, " D"]

    @property
    def shape(self) -> Float[Tensor, " K"]:
        """a."""
        return self.log_shape.exp()

    @property
    def transition(self) -> Float[Tensor, "K K"]:
        """T: the probabilities of the next state by the present one, without forgetting."""
        return self.log_transition.softmax(1)

    @property
    def forgets(self) -> Float[Tensor, " D"]:
        """rho: the probability that the state is forgotten at the end of a block, by its phase."""
        return self.logit_forgets.sigmoid()

    @property
    def transitions(self) -> Float[Tensor, "D K K"]:
        """T_d of every phase."""
        T = self.transition
        rho = self.forgets[:, None, None]
        return (1 - rho) * T + rho * stationary(T)

    @property
    def stationary(self) -> Float[Tensor, " K"]:
        """pi."""
        return stationary(self.transition)

    @property
    def mean_level(self) -> Float[Tensor, " K"]:
        """v, averaged over phases."""
        return self.log_level.exp().mean(0)


def stationary(T: Float[Tensor, "K K"]) -> Float[Tensor, " K"]:
    """The distribution that a chain with transition matrix ``T`` has in the long run."""
    identity = torch.eye(len(T), dtype=T.dtype, device=T.device)
    system = identity - T + torch.ones_like(T)
    found = torch.linalg.solve(system.T, torch.ones_like(T[0]))
    found = found.clamp(min=0.0)
    return found / found.sum()


@dataclass(frozen=True)
class Timeline:
    """Blocks that touch an interval of every row, and F at times in it.

    ``starts``: when each block begins, with F until then (``at_starts``), its levels and its phase.
    ``passed``, ``block``: F at the times that were asked for, and their blocks. ``each``: the
    integral of each mark's rate until then, without exposure.
    """

    starts: Float[Tensor, "B J"]
    at_starts: Float[Tensor, "B J"]
    level: Float[Tensor, "B J K"]
    phase: Int[Tensor, "B J"]
    passed: Float[Tensor, "B X"]
    block: Int[Tensor, "B X"]
    each: Float[Tensor, "B X M"]

    def levels_of(self, block: Int[Tensor, "B X"]) -> Float[Tensor, "B X K"]:
        """The levels of the given blocks."""
        wide = block[..., None].expand(-1, -1, self.level.shape[-1])
        return self.level.gather(1, wide)


@dataclass(frozen=True)
class Knowledge:
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
        gamma_shape = shape + self.count[..., None]
        gamma_rate = shape + level * self.mass[..., None]
        return level * gamma_shape / gamma_rate

    def log_silence(
        self,
        more: Float[Tensor, "B X"],
        level: Float[Tensor, "B X K"],
        shape: Float[Tensor, " K"],
    ) -> Float[Tensor, "B X K"]:
        """log P(no event while F grows by ``more`` in the block) in every state."""
        gamma_shape = shape + self.count[..., None]
        gamma_rate = shape + level * self.mass[..., None]
        growth = level * more[..., None] / gamma_rate
        return -gamma_shape * growth.log1p()


def carried(
    known: Knowledge,
    passed: Float[Tensor, "B X"],
    block: Int[Tensor, "B X"],
    until: Float[Tensor, "B X"],
    last: Int[Tensor, "B X"],
    line: Timeline,
    chain: LevelChain,
) -> tuple[Knowledge, Float[Tensor, "B X"]]:
    """What is known when F has grown from ``passed`` in ``block`` to ``until`` in the block
    ``last`` without an event, and the logarithm of the probability of that.
    """
    T = chain.transitions
    shape = chain.shape
    log_survival = torch.zeros_like(passed)
    most_blocks = int((last - block).max().clamp(min=0)) + 1
    for _ in range(most_blocks):
        crosses = block < last
        following = (block + 1).clamp(max=line.starts.shape[1] - 1)
        end_of_block = line.at_starts.gather(1, following)
        end = torch.where(crosses, end_of_block, until)
        more = (end - passed).clamp(min=0.0)
        silence = known.log_silence(more, line.levels_of(block), shape).exp()
        left = known.belief * silence
        chance = left.sum(-1, keepdim=True).clamp(min=FLOOR)
        log_survival = log_survival + chance[..., 0].log()
        belief = left / chance
        of_block = T[line.phase.gather(1, block)]
        moved = torch.einsum("bxk,bxkl->bxl", belief, of_block)
        known = Knowledge(
            belief=torch.where(crosses[..., None], moved, belief),
            count=torch.where(crosses, 0.0, known.count),
            mass=torch.where(crosses, 0.0, known.mass + more),
        )
        passed = end
        block = torch.where(crosses, block + 1, block)
    return known, log_survival


@dataclass(frozen=True)
class FilterSteps:
    """The steps of the filter of every row in the order of time: ends of blocks and events.

    ``event`` and ``end`` say what a step is; a step that is neither is padding. F grows by ``more``
    before a step, which is in ``block``. ``place`` is the step of every event.
    """

    event: Bool[Tensor, "B S"]
    end: Bool[Tensor, "B S"]
    more: Float[Tensor, "B S"]
    block: Int[Tensor, "B S"]
    place: Int[Tensor, "B N"]

    def log_factors(
        self,
        line: Timeline,
        count: Float[Tensor, "B P"],
        mass: Float[Tensor, "B P"],
        shape: Float[Tensor, " K"],
    ) -> Float[Tensor, "B S K"]:
        """log of the likelihood of every step by state, the largest being 0; ``count`` and ``mass``
        are those of :meth:`totals`.
        """
        level = line.levels_of(self.block)
        before = Knowledge(level, count[:, :-1], mass[:, :-1])
        silence = before.log_silence(self.more, level, shape)
        at_step = replace(before, mass=before.mass + self.more)
        raised = at_step.levels(level, shape).log()
        log_factor = silence + torch.where(self.event[..., None], raised, 0.0)
        log_factor = log_factor - log_factor.amax(-1, keepdim=True)
        real = self.event | self.end
        return torch.where(real[..., None], log_factor, 0.0)

    def totals(
        self, count: Float[Tensor, " B"], mass: Float[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B P"]]:
        """Events and growth of F since the block began, at first (``count``, ``mass``) and after
        every step.
        """
        events = self._since_block(self.event.to(self.more), count)
        return events, self._since_block(self.more, mass)

    def _since_block(
        self, parts: Float[Tensor, "B S"], first: Float[Tensor, " B"]
    ) -> Float[Tensor, "B P"]:
        total = first[:, None] + parts.cumsum(1)
        begun = torch.where(self.end, total, 0.0).cummax(1).values
        return torch.cat([first[:, None], total - begun], 1)


def filter_steps(
    line: Timeline, times: Float[Tensor, "B P"], valid: Bool[Tensor, "B N"]
) -> FilterSteps:
    """The steps between the first of ``times`` and the last, the others being times of events.

    An event at the end of a block belongs to the next one. ``line`` holds ``times``.
    """
    ends = line.starts[:, 1:]
    first = times[:, :1]
    last = times[:, -1:].maximum(first)
    inside = (ends > first) & (ends <= last)
    when = torch.cat([torch.where(inside, ends, torch.inf), times[:, 1:]], 1)
    order = torch.sort(when + 0.0, dim=1, stable=True).indices

    def in_order(of_ends: Tensor, of_events: Tensor) -> Tensor:
        return torch.cat([of_ends, of_events], 1).gather(1, order)

    event = in_order(torch.zeros_like(inside), valid)
    end = in_order(inside, torch.zeros_like(valid))
    start = line.passed[:, :1]
    passed = in_order(line.at_starts[:, 1:], line.passed[:, 1:])
    passed = torch.where(event | end, passed, start)
    passed = torch.cat([start, passed], 1).cummax(1).values
    number = torch.arange(ends.shape[1], device=times.device)
    before_end = number.expand_as(ends)  # the block before each end
    place = torch.empty_like(order)
    step = torch.arange(order.shape[1], device=times.device)
    place.scatter_(1, order, step.expand_as(order))
    return FilterSteps(
        event=event,
        end=end,
        more=passed.diff(dim=1),
        block=in_order(before_end, line.block[:, 1:]),
        place=place[:, ends.shape[1] :],
    )
