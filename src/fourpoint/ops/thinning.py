r"""The next event, drawn exactly: thinning under a certified bound, or inversion of the
compensator.

**Thinning** (Ogata, 1981). On a window [a, b] let the rate stay below a constant L. Candidates of a
Poisson process of rate L, a + e_1/L, a + (e_1 + e_2)/L, ... with e ~ Exp(1), are accepted with
probability lambda(t) / L; the first that is accepted is the next event. Where none is, time moves
on to b, or to the last candidate looked at, and a new window begins. All paths do this side by
side, each in a window of its own length: longer while the bound is close to the rate, shorter where
it is loose. The length depends on the past alone, so that the draw stays exact.

**Inversion.** Without a bound, solve int_a^t lambda = E with E ~ Exp(1) by `compensator.reach`. No
bound, and no bias beyond its tolerance.

Nothing is clamped: a rate above its bound raises. Axes: B paths, Q candidates, M marks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fourpoint.ops.compensator import TOLERANCE, Longest, Rates, reach

Bound = Callable[[Float[Tensor, " B"], Float[Tensor, " B"]], Float[Tensor, " B"]]

# relative; models whose rate is rounded more coarsely have their own allowance in the bound
ROUNDING = 1e-9
FEW, MANY = 0.5, 4.0  # candidates expected in a window, at least and at most
# shares of the bound that the rate fills: windows grow above the first, shrink below the other
TIGHT, LOOSE = 0.8, 0.6


class BoundViolated(ArithmeticError):
    """A rate above the bound that was to dominate it: ``rate``, ``bound`` and ``time`` say where
    and by how much.
    """

    def __init__(self, rate: float, bound: float, time: float) -> None:
        super().__init__(
            f"expected a rate of at most {bound:.9g}, its certified bound; received "
            f"{rate:.9g} at time {time:.9g}. "
            "The model's bound is wrong: sample with method='inversion', and report it."
        )
        self.rate = rate
        self.bound = bound
        self.time = time


class ExplosiveRate(ArithmeticError):
    """A rate that no finite bound dominates on any window that still advances time."""


@dataclass
class Tally:
    """What thinning cost: candidates that were decided on, those accepted, and windows opened."""

    proposals: int = 0
    accepted: int = 0
    windows: int = 0

    @property
    def acceptance(self) -> float:
        """The share of candidates accepted; NaN where there was none."""
        return self.accepted / self.proposals if self.proposals else float("nan")


class Round(NamedTuple):
    """One window of every path: the event where ``hit``, else how far time has moved on without
    one.
    """

    hit: Bool[Tensor, " B"]
    time: Float[Tensor, " B"]
    intensities: Float[Tensor, "B M"]  # at ``time`` where hit
    width: Float[Tensor, " B"]  # for the next window


def thin(
    rates: Rates,
    bound: Bound,
    a: Float[Tensor, " B"],
    stop: Float[Tensor, " B"],
    width: Float[Tensor, " B"],
    random: torch.Generator,
    *,
    candidates: int = 1,
    tally: Tally | None = None,
) -> Round:
    """Open one window at ``a`` in every path and look at up to ``candidates`` points in it.

    Args:
        rates: intensities per mark at (B, Q) times; seen from the past at ``a``, with no event
            since.
        bound: ``bound(a, b)``, a constant above the total rate on [a, b].
        stop: where each path ends; paths with a >= stop stay where they are.
        width: length of the window to try, in units of time.
        tally: counts to add to.

    Raises :class:`BoundViolated` with rate, bound and time, and :class:`ExplosiveRate` where no
    bound is finite.
    """
    paths = len(a)
    going = a < stop
    b, top = _window(bound, a, stop, width)
    steps = unit_exponentials((paths, candidates), random).cumsum(1)
    times = a[:, None] + steps / top[:, None]
    inside = (times < b[:, None]) & going[:, None]
    coin = torch.rand(paths, candidates, dtype=a.dtype, device=a.device, generator=random)
    # where time moves on to without a candidate, so that a state asked there has arrived
    outside = torch.where(going, b, a)
    asked = torch.where(inside, times, outside[:, None])
    intensities = rates(asked).to(a.dtype)
    rate = intensities.sum(-1)
    _check(rate, top, times, inside)
    accepted = inside & (coin * top[:, None] < rate)
    hit = accepted.any(1)
    which = accepted.to(torch.int64).argmax(1, keepdim=True)
    looked_at = torch.arange(candidates, device=a.device) <= which
    decided = inside & (looked_at | ~hit[:, None])
    if tally is not None:
        tally.proposals += int(decided.sum())
        tally.accepted += int(hit.sum())
        tally.windows += int(going.sum())
    last = torch.where(inside[:, -1], times[:, -1], outside)
    time = torch.where(hit, times.gather(1, which)[:, 0], last)
    chosen = which[..., None].expand(-1, -1, intensities.shape[-1])
    at = intensities.gather(1, chosen)[:, 0]
    following = _next_width(width, b - a, top, rate, decided)
    return Round(hit, time, at, following)


def next_by_thinning(
    rates: Rates,
    bound: Bound,
    start: Float[Tensor, " B"],
    stop: Float[Tensor, " B"],
    width: Float[Tensor, " B"],
    random: torch.Generator,
    *,
    tally: Tally | None = None,
) -> Float[Tensor, " B"]:
    """The next event of every path; infinite where none comes before ``stop``.

    >>> zero, random = torch.zeros(4000, dtype=torch.float64), torch.Generator().manual_seed(0)
    >>> times = next_by_thinning(
    ...     lambda t: torch.full((*t.shape, 1), 2.0),
    ...     lambda a, b: a * 0 + 3,
    ...     zero,
    ...     zero + 99,
    ...     zero + 1,
    ...     random,
    ... )
    >>> abs(times.mean().item() - 0.5) < 0.025
    True
    """
    at = start.clone()
    found = torch.full_like(start, torch.inf)
    while bool(((at < stop) & found.isinf()).any()):
        end = torch.where(found.isinf(), stop, at)
        step = thin(rates, bound, at, end, width, random, tally=tally)
        found = torch.where(step.hit, step.time, found)
        at = step.time
        width = step.width
    return found


def next_by_inversion(
    rates: Rates,
    start: Float[Tensor, " B"],
    stop: Float[Tensor, " B"],
    width: Float[Tensor, " B"],
    random: torch.Generator,
    *,
    longest: Longest | None = None,
    shortest: Float[Tensor, " B"] | None = None,
    tolerance: float = TOLERANCE,
) -> Float[Tensor, " B"]:
    """The next event of every path, without a bound; infinite where none comes before ``stop``.

    ``width``, ``longest`` and ``shortest`` are those of `compensator.march`.

    >>> zero, random = torch.zeros(4000, dtype=torch.float64), torch.Generator().manual_seed(0)
    >>> times = next_by_inversion(
    ...     lambda t: 2 * t[..., None], zero, zero + 99, zero + 0.1, random
    ... )  # mean sqrt(pi)/2
    >>> abs(times.mean().item() - 0.886) < 0.025
    True
    """
    goal = unit_exponentials(start.shape, random)
    return reach(
        rates, start, stop, goal, width, longest=longest, shortest=shortest, tolerance=tolerance
    )


def draw_marks(intensities: Float[Tensor, "B M"], random: torch.Generator) -> Int[Tensor, " B"]:
    """One mark per row, with probabilities in proportion to the intensities; never the largest by
    rule.
    """
    running = intensities.cumsum(1)
    place = running.device
    unit = torch.rand(len(running), 1, dtype=running.dtype, device=place, generator=random)
    coin = unit * running[:, -1:]
    mark = torch.searchsorted(running, coin, right=True)[:, 0]
    return mark.clamp(max=running.shape[1] - 1)


def unit_exponentials(shape: Sequence[int], random: torch.Generator) -> Float[Tensor, "*S"]:
    """Unit exponentials from 53 random bits each: the same in every build, where
    Tensor.exponential_ may use another generator.
    """
    place = random.device
    uniform = torch.rand(*shape, dtype=torch.float64, device=place, generator=random)
    return -torch.log1p(-uniform)


def _window(
    bound: Bound, a: Float[Tensor, " B"], stop: Float[Tensor, " B"], width: Float[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """The window's right end and the bound on it: shortened until no more than a few candidates are
    to be expected.
    """
    b = torch.maximum(torch.minimum(a + width, stop), a)
    while True:
        top = bound(a, b).to(a.dtype)
        expected = torch.where(b > a, top * (b - a), 0.0)
        crowded = ~(expected <= 2 * MANY)
        if not bool(crowded.any()):
            return b, top
        share = torch.where(torch.isfinite(expected), MANY / expected, 0.01)
        nearer = a + (b - a) * share.clamp(0.01, 0.5)
        shorter = torch.where(crowded, nearer, b)
        stuck = crowded & ~(shorter > a)
        if bool(stuck.any()):
            i = int(torch.nonzero(stuck)[0])
            raise ExplosiveRate(
                "expected a rate with a finite bound; received a bound of "
                f"{float(top[i]):.3g} at time {float(a[i]):g} on path {i}. "
                "The model explodes at that time: shorten the horizon, or fit it again."
            )
        b = shorter


def _check(
    rate: Float[Tensor, "B Q"],
    top: Float[Tensor, " B"],
    times: Float[Tensor, "B Q"],
    inside: Bool[Tensor, "B Q"],
) -> None:
    over = inside & ~(rate <= top[:, None] * (1 + ROUNDING))
    if bool(over.any()):
        i, q = (int(v) for v in torch.nonzero(over)[0])
        raise BoundViolated(float(rate[i, q]), float(top[i]), float(times[i, q]))


def _next_width(
    width: Float[Tensor, " B"],
    used: Float[Tensor, " B"],
    top: Float[Tensor, " B"],
    rate: Float[Tensor, "B Q"],
    decided: Bool[Tensor, "B Q"],
) -> Float[Tensor, " B"]:
    """Longer where the rate filled the bound or no candidate came, shorter where the bound was
    loose.
    """
    seen = decided.sum(1)
    bounds = (top * seen).clamp(min=torch.finfo(top.dtype).tiny)
    filled = torch.where(decided, rate, 0.0).sum(1) / bounds
    tight = (seen == 0) | (filled > TIGHT)
    not_tight = torch.where(filled < LOOSE, 0.6, 1.0)
    factor = torch.where(tight, 1.5, not_tight)
    longer = torch.maximum(used * factor, FEW / top)
    fitted = torch.minimum(longer, MANY / top)
    wanted = torch.where(top > 0, fitted, 2 * width)
    return torch.where(used > 0, wanted, width)
