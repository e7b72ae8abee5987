r"""Integrals of rates that depend on time and context alone: those of a Poisson process with
effects of calendar and covariates, of the baseline of a Hawkes process, and of a population of
sequences.

    int_a^b e(t) exp(log_rate_m(t)) dt

by a Gauss rule between the times at which the effects are not smooth (an hour, where a spline of
the day or the week is among them) or the exposure e steps.

Sequences that have one origin, and neither covariates nor an exposure, have the same rate as a
function of time. Where their windows overlap it is integrated once, on one grid for all of them:
thousands of sequences that each span the whole log cost no more than one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fourpoint.events import Batch, BatchContext, Context
from fourpoint.models.base import PointProcess, ScoredGaps
from fourpoint.models.effects import Effects
from fourpoint.models.effects_fit import PIECE
from fourpoint.ops.quadrature import ROUNDING, gauss_legendre

NODES = 12  # of the integral between neighbouring cuts
FEWER = 8  # of a rule whose difference from it bounds the error

LogRates = Callable[[Float[Tensor, "B H Q"], BatchContext | None], Float[Tensor, "B H Q M"]]


def integrals_between(
    log_rates: LogRates,
    effects: Effects | None,
    a: Float[Tensor, "B Q"],
    b: Float[Tensor, "B Q"],
    context: BatchContext | None,
    nodes: int = NODES,
) -> tuple[Float[Tensor, "B Q"], Float[Tensor, "B Q M"]]:
    """int_a^b e lambda, all marks together, and int_a^b lambda of every mark; ``log_rates`` are
    log lambda at times of the rows of ``context``, which jump or bend where ``effects`` do.
    """
    if context is not None and cheaper_together(a, b, context):
        first = context.select(torch.zeros(1, dtype=torch.int64, device=a.device))
        flat = a.reshape(1, -1), b.reshape(1, -1)
        total, each = integrals_between(log_rates, effects, *flat, first, nodes)
        return total.reshape(a.shape), each.reshape(*a.shape, -1)
    exposure = None if context is None else context.exposure
    times = torch.cat([a, b], 1).detach()  # no gradient in times is asked for
    low = times.amin(1, keepdim=True)
    high = times.amax(1, keepdim=True)
    parts = [low, high]
    if effects is not None:
        parts.append(effects.cuts(low[:, 0], high[:, 0], context, PIECE))
    if exposure is not None:
        parts.append(exposure.times)
    # Pieces do not depend on the times of events, and so nothing depends on later ones.
    grid = torch.cat(parts, 1).clamp(low, high).sort(1).values
    back = None
    if len(times) == 1:
        distinct, back = times[0].unique(return_inverse=True)
        times = distinct[None]
    piece = torch.searchsorted(grid, times.contiguous(), right=True) - 1
    begin = torch.cat([grid[:, :-1], grid.gather(1, piece)], 1)
    end = torch.cat([grid[:, 1:], times], 1)
    width = end - begin
    x, weights = (part.to(grid) for part in gauss_legendre(nodes))
    places = begin[..., None] + width[..., None] * x
    rates = log_rates(places, context).exp()
    each = torch.einsum("bhqm,q,bh->bhm", rates, weights, width)
    total = each.sum(-1)
    if exposure is not None:
        middle = begin + width / 2
        total = total * exposure.at(middle)[..., 0]
    pieces = grid.shape[1] - 1
    until = nn.functional.pad(total[:, :pieces].cumsum(1), (1, 0))
    until_each = nn.functional.pad(each[:, :pieces].cumsum(1), (0, 0, 1, 0))
    of_each = piece[..., None].expand(-1, -1, each.shape[-1])
    passed = until.gather(1, piece) + total[:, pieces:]
    passed_each = until_each.gather(1, of_each) + each[:, pieces:]
    if back is not None:
        passed, passed_each = passed[:, back], passed_each[:, back]
    Q = a.shape[1]
    return passed[:, Q:] - passed[:, :Q], passed_each[:, Q:] - passed_each[:, :Q]


def share_one_rate(context: Context | BatchContext) -> bool:
    """Whether a rate with effects is the same function of time for all sequences: they have one
    origin, and neither covariates nor an exposure.
    """
    if context.origin is None or context.covariates is not None or context.exposure is not None:
        return False
    return bool((context.origin == context.origin[0]).all())


def cheaper_together(
    a: Float[Tensor, "B Q"],
    b: Float[Tensor, "B Q"],
    context: BatchContext,
) -> bool:
    """Whether several rows share one rate, and one grid for all of them is not longer than grids
    for each, since their windows overlap.
    """
    if len(a) < 2 or not a.shape[1] or not share_one_rate(context):
        return False
    low = torch.minimum(a, b).amin(1)
    high = torch.maximum(a, b).amax(1)
    return bool(high.max() - low.min() <= (high - low).sum())


@torch.no_grad()
def scored_together(
    model: PointProcess,
    batch: Batch,
    tolerance: float,
    log_base: Float[Tensor, " M"],
    triggered: Callable[[], Float[Tensor, "B G"]] | None = None,
) -> ScoredGaps | None:
    """Both terms of the log-likelihood of a model whose rate is exp(``log_base`` + effects), plus
    what earlier events have ``triggered``, in closed form over the gaps. None where the sequences
    do not share the first part, or its integrals are not certain to ``tolerance``.
    """
    effects = model.effects
    context = batch.context
    left = batch.edges[:, :-1]
    right = batch.edges[:, 1:]
    if effects is None or context is None or not cheaper_together(left, right, context):
        return None

    def log_rates(
        times: Float[Tensor, "B H Q"], own: BatchContext | None
    ) -> Float[Tensor, "B H Q M"]:
        return log_base + effects.values(times, own)

    fine, _ = integrals_between(log_rates, effects, left, right, context)
    rough, _ = integrals_between(log_rates, effects, left, right, context, FEWER)
    # Integrals are differences of sums from the first window's start on.
    largest = fine.sum(1).amax()
    rounding = ROUNDING * torch.finfo(fine.dtype).eps * (fine.abs() + largest)
    error = (fine - rough).abs() + rounding
    if float(error.sum()) > tolerance:
        return None
    integral = fine if triggered is None else fine + triggered()
    logs = model.log_rates_at_events(model.encode(batch), batch)
    return ScoredGaps(logs, integral, error)
