r"""EM for a hidden Markov chain of levels: forwards and backwards over blocks.

Given the parameters, the distribution q_j of the state of every block j follows from the counts n_j
and masses F_j of all blocks, whose likelihoods are negative binomial. Given q, transitions follow
from expected numbers of moves, log levels from penalised Poisson regressions, and log shapes from
Newton's method under a normal prior.

Axes: B sequences, J blocks, K states, D phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fourpoint.models.level_chain import Knowledge, LevelChain
from fourpoint.ops.chain import FLOOR, filtered

STAYS = 0.94  # probability that a state stays, at the start of EM and a priori
PRIOR = 1.0  # transitions from every state that are known a priori
FORGETS = 0.02  # rho at the start of EM
KEPT = 5.0  # ends of blocks of every phase at which the chain is known a priori not to forget
LEAST_FORGOTTEN = 1e-6  # of rho
LOWEST, HIGHEST = -1.0, 1.2  # log levels of the states at the start of EM
SMOOTH, RIDGE = 10.0, 0.02  # penalties of differences between phases, and of log levels
LONGEST_STEP = 1.0  # of Newton's method in a log level
LOG_SHAPE = 2.0  # at the start of EM, and the mean of its normal prior with variance 1
LEAST_SHAPE, MOST_SHAPE = -2.0, 6.0  # of log shapes; counts are nearly Poisson at the latter
SHAPE_STEP = 0.5  # the longest of Newton's method in a log shape


@dataclass(frozen=True)
class Blocks:
    """Events, F and phase of the blocks of all sequences, and when they begin."""

    events: Float[Tensor, "B J"]
    mass: Float[Tensor, "B J"]
    phase: Int[Tensor, "B J"]
    starts: Float[Tensor, "B J"]

    def levels(self, chain: LevelChain) -> Float[Tensor, "B J K"]:
        """v of every state in the phase of every block."""
        level = chain.log_level.exp()
        return level[self.phase]

    def means(self, chain: LevelChain) -> Float[Tensor, "B J K"]:
        """Expected events of every block in every state."""
        return self.mass[..., None] * self.levels(chain)

    def known(self, state: Float[Tensor, "B J K"]) -> Knowledge:
        """What is known at the ends of the blocks, given the distributions of their states."""
        return Knowledge(state, self.events, self.mass)


def starting_chain(states: int, phases: int) -> LevelChain:
    """The chain at which EM begins.

    >>> [round(x, 6) for x in starting_chain(3, 1).log_level[0].tolist()]
    [-1.0, 0.1, 1.2]
    """
    kind = torch.float64
    spread = torch.linspace(LOWEST, HIGHEST, states, dtype=kind)
    share = FORGETS if phases > 1 else LEAST_FORGOTTEN
    forgets = torch.full((phases,), share, dtype=kind)
    transition = _mostly_staying(states, kind)
    return LevelChain(
        log_level=spread.repeat(phases, 1),
        log_transition=transition.log(),
        log_shape=torch.full((states,), LOG_SHAPE, dtype=kind),
        logit_forgets=forgets.logit(),
    )


def _mostly_staying(states: int, kind: torch.dtype) -> Float[Tensor, "K K"]:
    identity = torch.eye(states, dtype=kind)
    elsewhere = (1 - STAYS) / states
    return identity * STAYS + elsewhere


@torch.no_grad()
def improve(chain: LevelChain, blocks: Blocks) -> Float[Tensor, "B J"]:
    """One round of EM, which changes the parameters in place; the expected level of every block."""
    phase = blocks.phase
    logs = _log_chances(chain, blocks)
    largest = logs.amax(-1, keepdim=True)
    evidence = (logs - largest).exp()
    T = chain.transitions
    first = chain.stationary.expand(len(evidence), -1)
    ahead = filtered(first, evidence, phase, T)
    forward = ahead[:, :-1] * evidence
    last = torch.ones_like(evidence[:, 0])
    before = phase.roll(1, 1)  # of the block before each
    reversed_evidence = evidence.flip(1)
    behind = filtered(last, reversed_evidence, before.flip(1), T.mT)
    backward = behind[:, :-1].flip(1)
    joint = forward * backward
    total = joint.sum(-1, keepdim=True)
    state = joint / total.clamp(min=FLOOR)
    weighted = evidence * backward
    left = forward[:, :-1]
    right = weighted[:, 1:]
    _improve_transitions(chain, left, right, phase[:, :-1])
    _improve_levels(chain, blocks, state)
    _improve_shapes(chain, blocks, state)
    level = blocks.levels(chain)
    expected = blocks.known(state).levels(level, chain.shape)
    return (state * expected).sum(-1)


def _improve_transitions(
    chain: LevelChain,
    forward: Float[Tensor, "B J K"],
    after: Float[Tensor, "B J K"],
    phase: Int[Tensor, "B J"],
) -> None:
    """T and rho from expected numbers of transitions, of which some are due to forgetting."""
    T = chain.transitions
    rho = chain.forgets
    stationary = chain.stationary
    prior = _mostly_staying(len(stationary), T.dtype)
    moved = PRIOR * prior
    forgotten = torch.zeros_like(rho)
    for d in range(len(T)):
        own = phase == d
        left = forward[own]
        right = after[own]
        expected = left @ T[d]
        joint = expected * right
        chance = joint.sum(-1, keepdim=True)
        left = left / chance.clamp(min=FLOOR)
        together = left.T @ right
        pairs = T[d] * together
        forgetting = pairs * rho[d] * stationary
        by_chance = forgetting / T[d]
        moved = moved + pairs - by_chance
        ends = pairs.sum() + KEPT
        forgotten[d] = by_chance.sum() / ends
    total = moved.sum(1, keepdim=True)
    transition = moved / total
    chain.log_transition.copy_(transition.log())
    if len(T) > 1:  # otherwise T alone says as much
        inside = forgotten.clamp(LEAST_FORGOTTEN, 1 - LEAST_FORGOTTEN)
        chain.logit_forgets.copy_(inside.logit())


def _improve_levels(chain: LevelChain, blocks: Blocks, state: Float[Tensor, "B J K"]) -> None:
    """A step of Newton's method for the log levels, whose differences between phases are
    penalised.
    """
    level = blocks.levels(chain)
    expected_levels = blocks.known(state).levels(level, chain.shape)
    factor = expected_levels / level
    events_of_state = state * blocks.events[..., None]
    weight = state * factor
    mass_of_state = weight * blocks.mass[..., None]
    counts = _by_phase(chain, blocks, events_of_state)
    mass = _by_phase(chain, blocks, mass_of_state)
    phases, states = chain.log_level.shape
    penalty = _level_penalty(phases)
    for k in range(states):
        own = chain.log_level[:, k]
        expected = mass[:, k] * own.exp()
        pull = penalty @ own
        gradient = counts[:, k] - expected - pull
        curvature = expected.diag() + penalty
        step = torch.linalg.solve(curvature, gradient)
        own += step.clamp(-LONGEST_STEP, LONGEST_STEP)


def _by_phase(
    chain: LevelChain, blocks: Blocks, values: Float[Tensor, "B J K"]
) -> Float[Tensor, "D K"]:
    """Sums of ``values`` over the blocks of each phase."""
    total = torch.zeros(chain.log_level.shape, dtype=torch.float64)
    phase = blocks.phase.flatten()
    total.index_add_(0, phase, values.flatten(0, 1))
    return total


def _level_penalty(phases: int) -> Float[Tensor, "D D"]:
    """The matrix of the quadratic penalty on the log levels of a state."""
    identity = torch.eye(phases, dtype=torch.float64)
    penalty = RIDGE * identity
    if phases > 1:
        difference = identity - identity.roll(1, 0)
        smoothing = SMOOTH * difference.T @ difference
        penalty = penalty + smoothing
    return penalty


def _improve_shapes(chain: LevelChain, blocks: Blocks, state: Float[Tensor, "B J K"]) -> None:
    """A step of Newton's method for every log shape under its prior.

    In terms of q = a + mean, the negative binomial log-probability of n has the derivatives

        psi(a + n) - psi(a) + log(a / q) + 1 - (a + n) / q,
        psi'(a + n) - psi'(a) + 1 / a - 2 / q + (a + n) / q^2

    in a. Digamma functions are computed once for each distinct count.
    """
    shape = chain.shape
    mean = blocks.means(chain)
    q = shape + mean
    total = shape + blocks.events[..., None]
    distinct, which = blocks.events.unique(return_inverse=True)
    table = distinct[:, None] + shape
    digamma = table.digamma() - shape.digamma()
    trigamma = torch.polygamma(1, table) - torch.polygamma(1, shape)
    log_ratio = (shape / q).log()
    share = total / q
    change = total / q**2
    first = digamma[which] + log_ratio + 1 - share
    second = trigamma[which] + 1 / shape - 2 / q + change
    first = (state * first).sum((0, 1))
    second = (state * second).sum((0, 1))
    score = shape * first
    bend = shape**2 * second
    from_prior = chain.log_shape - LOG_SHAPE
    gradient = score - from_prior
    curvature = -(bend + score - 1.0)
    step = gradient / curvature.clamp(min=1.0)
    short = step.clamp(-SHAPE_STEP, SHAPE_STEP)
    moved = chain.log_shape + short
    inside = moved.clamp(LEAST_SHAPE, MOST_SHAPE)
    chain.log_shape.copy_(inside)


def _log_chances(chain: LevelChain, blocks: Blocks) -> Float[Tensor, "B J K"]:
    """Negative binomial log-probabilities of the counts of blocks, without the term that does not
    depend on the state.
    """
    shape = chain.shape
    mean = blocks.means(chain)
    distinct, which = blocks.events.unique(return_inverse=True)
    total = distinct[:, None] + shape
    gammas = total.lgamma() - shape.lgamma()
    table = gammas + shape * shape.log()
    counts = blocks.events[..., None]
    log_mean = mean.clamp(min=FLOOR).log()
    log_rate = (shape + mean).log()
    exponent = shape + counts
    powers = counts * log_mean - exponent * log_rate
    return table[which] + powers
