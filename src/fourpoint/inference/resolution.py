r"""The probability of the timestamps themselves: a score that narrow peaks of a rate cannot raise.

Times that are multiples of a resolution r, whole seconds say, have no density: a model can overfit
the timestamp resolution with ever narrower peaks, and its likelihood is unbounded. What has a
probability is the timestamp. With S the probability of no event since the last one,

    log p_i = log [ S(t_i - r/2) - S(t_i + r/2) ] + log [ lambda_m(t_i) / lambda(t_i) ],

m being the event's mark. It is at most 0, has no unit of time, and is a proper score of rounded
times: no model has a higher expected score than the law of the timestamps. Events 2..N of each
sequence are scored, each given those before it, but for events of a history period. The rate is
multiplied by the exposure where there is one.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fourpoint.events import (
    Batch,
    BatchSteps,
    Dataset,
    Sequence,
    UserError,
    all_sequences,
    check_marks,
)
from fourpoint.inference.evaluation import device_of, sequences_at_once
from fourpoint.inference.likelihood import blocks_of, only_history, scored_events
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.base import History, PointProcess, filled, log_exposure, rule
from fourpoint.ops.periodogram import timestamp_resolution
from fourpoint.ops.quadrature import integrate

RARE = 1e-30  # an integral over a tick, below which float32 may have lost all of it


def resolution_of(data: Dataset) -> float:
    """The resolution that all gaps of ``data`` are multiples of, in its unit of time; 0 if there is
    none.

    >>> from fourpoint.events import Sequence
    >>> resolution_of(
    ...     Dataset.from_sequences([Sequence([1.0, 3.0, 3.0, 9.0], start=0.0, stop=10.0)])
    ... )
    2.0
    """
    gaps = data.gaps[data.gaps > 0]
    return timestamp_resolution(np.asarray(gaps)) if len(gaps) else 0.0


def resolution_score(
    model: PointProcess,
    data: Dataset | Sequence,
    resolution: float | None = None,
    *,
    tolerance: float = 1e-4,
) -> float:
    """The mean log-probability of the timestamp and the mark of an event, in nats per event: events
    2..N, each given those before it.

    Args:
        resolution: of the timestamps, in the data's unit; the one that all gaps are multiples of if
            None.
        tolerance: of the integrals, in nats per event.

    Raises :class:`UserError` if there is no resolution or the mark spaces differ, `Unconverged` if
    an integral does not converge.

    >>> import math
    >>> from fourpoint.events import Sequence
    >>> from fourpoint.models.poisson import Poisson
    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 4.0, 5.0], start=0.0, stop=6.0)])
    >>> by_hand = (
    ...     2 * math.log(math.exp(-0.5) - math.exp(-1.5))
    ...     + math.log(math.exp(-1.5) - math.exp(-2.5))
    ... ) / 3  # a rate of 1
    >>> abs(resolution_score(Poisson(), data) - by_hand) < 1e-9
    True
    """
    data = all_sequences(data)
    check_marks(model.marks, data.marks)
    own = resolution_of(data) if resolution is None else resolution
    if not own > 0:
        unknown = "gaps that are not multiples of a common resolution"
        raise UserError(
            "the resolution of the timestamps",
            unknown if resolution is None else f"{resolution}",
            "Pass resolution=1.0, say, in the data's unit of time.",
        )
    total = 0.0
    events = 0
    place = device_of(model)
    with eval_mode(model):
        for rows in data.batches(sequences_at_once(place)):
            found = _log_probabilities(model, data.batch(rows).to(place), own, tolerance)
            total = total + float(found.sum())
            events = events + int(scored_events(data.batch(rows))["gaps"].sum())
    return total / max(1, events)


def tick_score(
    model: PointProcess,
    data: Dataset | Sequence,
    tick: float | None = None,
    *,
    tolerance: float = 1e-4,
) -> float:
    """The former name of :func:`resolution_score`, until the next release."""
    warnings.warn(
        "tick_score is now called resolution_score; the old name will be removed",
        DeprecationWarning,
        stacklevel=2,
    )
    return resolution_score(model, data, tick, tolerance=tolerance)


def _log_probabilities(
    model: PointProcess, batch: Batch, resolution: float, tolerance: float
) -> Float[Tensor, " B"]:
    """The sum of log p_i over events 2..N of each sequence."""
    total = torch.zeros_like(batch.start)
    carried = None
    if batch.times.shape[1] < 2:  # no event comes after another
        return total
    for block, offset in blocks_of(model, batch):
        history = model.encode(block, carried)
        seen = torch.arange(block.times.shape[1], device=block.times.device).expand_as(block.times)
        before = history.times[:, : seen.shape[1]]
        gap = torch.where(block.valid, block.times - before, 0.0)
        if only_history(block):
            carried = history.latest()
            continue
        exposure = None if block.context is None else block.context.exposure
        until, within = _masses(model, history, before, gap, resolution, seen, tolerance, exposure)
        total_there = _log_total(model, history, block.times, seen)
        rare = (
            total_there
            + log_exposure(block)
            + (gap + resolution / 2 - (gap - resolution / 2).clamp(min=0)).log()
        )  # a rate too low to be told from 0 once exp is taken
        logs = torch.where(within > RARE, torch.log(-torch.expm1(-within)), rare)
        logs = logs - until + model.log_rates_at_events(history, block).double() - total_there
        counted = block.scored & (seen + offset > 0)
        total = total + torch.where(counted, logs, 0.0).sum(1)
        carried = history.latest()
    return total


def _log_total(
    model: PointProcess, history: History, times: Float[Tensor, "B N"], seen: Int[Tensor, "B N"]
) -> Float[Tensor, "B N"]:
    return model.log_total(history, times[..., None], seen)[..., 0].double()


def _masses(
    model: PointProcess,
    history: History,
    before: Float[Tensor, "B N"],
    gap: Float[Tensor, "B N"],
    resolution: float,
    seen: Int[Tensor, "B N"],
    tolerance: float,
    exposure: BatchSteps | None = None,
) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]]:
    """The integral of the total rate from ``before`` to half a resolution less than the ``gap``
    after it, and over the resolution from there.

    Pieces end where the event was, since a rate that overfits the resolution has its peak there,
    and a rule looks at the ends of pieces.
    """
    low = (gap - resolution / 2).clamp(min=0)
    high = gap + resolution / 2
    if model.has_closed_integral and exposure is None:
        ends = (before, before + low, before + high)
        first, second = (
            model.closed_integral(history, a, b, seen).sum(-1).double()
            for a, b in zip(ends, ends[1:], strict=False)
        )
        return first, second
    cuts = model.cut_lags(before.device).expand(*low.shape, -1)
    if exposure is not None:
        steps = exposure.times[:, None] - before[..., None]
        cuts = torch.cat([cuts, steps.clamp(min=0)], -1)
    inner = torch.minimum(cuts, high[..., None])
    lags = (
        torch.cat([torch.stack([torch.zeros_like(low), low, gap, high], -1), inner], -1)
        .sort(-1)
        .values
    )
    left, right = (
        (before[..., None] + part).flatten(1) for part in (lags[..., :-1], lags[..., 1:])
    )
    order = filled(left, right)
    left = left.gather(1, order)
    right = right.gather(1, order)
    owner = order // (lags.shape[-1] - 1)

    def rate(times: Float[Tensor, "B H Q"], which: Int[Tensor, "B H"]) -> Float[Tensor, "B H Q"]:
        return model.total_intensity(history, times, owner.gather(1, which))

    value, _ = integrate(
        rate, left, right, tolerance=tolerance * max(1, low.numel()), **rule(model, history)
    )
    if exposure is not None:
        value = value * exposure.at(left)[..., 0]
    early = (lags[..., 1:] <= low[..., None]).flatten(1).gather(1, order)
    until, within = (
        torch.zeros_like(low).scatter_add(1, owner, torch.where(part, value, 0.0))
        for part in (early, ~early)
    )
    return until, within
