r"""The log-likelihood of event sequences, which counts everything that was observed.

    log L = sum_i log lambda_{m_i}(t_i)  -  sum_m int_start^stop lambda_m(t) dt                  (1)

Where events have places, the first sum is of log lambda_m(t_i, x_i), per unit of time and volume,
and lambda_m(t) is the integral over
the box: closed, or by a tensor Gauss rule whose order is raised until the change is below the
tolerance, which joins the error.
The integral runs over all of the window: before the first event, in every gap, and after the last.
Training uses random
nodes in every gap, since a model learns to keep its rate low on a fixed grid; evaluation uses
Gauss-Legendre rules that are refined until they settle, and reports how far they may still be off.
Closed forms are used where a model has one. Event i is scored from the events before it by
position, never from itself.

Where sequences have a context (`events.context`) the observed rate is e(t) lambda(t): with w(t) the
exposure e(t), and 0 in history periods, which condition the rates but are not scored,

    log L = sum over scored events of log e(t_i) + log lambda_{m_i}(t_i)  -  int w(t) lambda(t) dt.

Evaluation cuts the integral at the steps of w; training places its nodes at random in the exposed
time, W(t) = int w, so that none lies where w is 0.

Two conventions, always named beside a number: "window" is (1); "gaps" scores events 2..N on [t_1,
t_N] given the first, as most published tables do, and divides by the events scored. Everything is
in the user's time unit.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fourpoint.events import Batch, BatchSteps, UserError
from fourpoint.events.dequantise import dequantised_gaps
from fourpoint.memory import require_memory
from fourpoint.models.base import (
    History,
    PointProcess,
    ScoredGaps,
    exposed_pieces,
    log_exposure,
    pieces,
    seen_from,
)
from fourpoint.ops import quadrature
from fourpoint.ops.quadrature import (
    ROUNDING,
    Unconverged,
    early,
    gauss_legendre,
    integrating,
    integrating_in_log_time,
    negligible,
    stratified,
    uniform,
)

Convention = Literal["window", "gaps"]
CONVENTIONS: tuple[Convention, ...] = ("window", "gaps")
# nodes per axis of a box, coarse to fine
ORDERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
# events of one sequence held at once; longer ones go block by block through models that can carry
# on
BLOCK = 2048
NUMBER = 4  # bytes of a rate
# of gaps whose integrals are refined together: memory and the work on a hopeless one are bounded
PIECES = 2**12
# numbers of one kind held at once: in a processor's cache, and on a CUDA device
CACHED, LARGE = 2**19, 2**26
COPIES = 32  # intermediate results of a rate, at most
UNCHECKED = 2**28  # bytes that every machine has: the free memory is not asked for

# Arrays by their axes: B sequences with N events, G gaps, H pieces of these, and Q nodes in each.
PerSequence = Float[Tensor, " B"]
Column = Float[Tensor, "B 1"]
Counts = Int[Tensor, " B"]
PerEvent = Float[Tensor, "B N"]
PerGap = Float[Tensor, "B G"]
PerPiece = Float[Tensor, "B H"]
Nodes = Float[Tensor, "B G Q"]
NodeWeights = Float[Tensor, "*B Q"]  # of each gap, or the same for all
Span = tuple[Column, Column]  # the first and the last event of every sequence
Sums = dict[Convention, list[Tensor]]


@dataclass(frozen=True)
class LogLikelihood:
    """Per sequence: the log-likelihood, the events it scores, the integral, and an upper estimate
    of the error of both: that of the integration, and rounding in the dtype in which the model
    computes.
    """

    value: PerSequence
    events: Counts
    integral: PerSequence
    error: PerSequence

    @property
    def per_event(self) -> float:
        """Nats per scored event over the whole batch."""
        events = self.events.sum().clamp(min=1)
        return float(self.value.sum() / events)


def log_likelihood(
    model: PointProcess, batch: Batch, *, convention: Convention = "window", tolerance: float = 1e-4
) -> LogLikelihood:
    """Log-likelihood of each sequence, its integral refined to ``tolerance`` nats per event, or per
    sequence that has none to score.

    Raises `ops.quadrature.Unconverged` where the integral does not settle or is not finite.

    >>> from fourpoint.events import Sequence
    >>> from fourpoint.models.poisson import Poisson
    >>> sequence = Sequence([0.5, 1.5], start=0.0, stop=4.0)
    >>> round(
    ...     log_likelihood(Poisson(), sequence.batch()).per_event, 6
    ... )  # a rate of 1: (0 + 0 - 4) / 2
    -2.0
    """
    if convention not in CONVENTIONS:
        raise UserError(
            "convention 'window' or 'gaps'", f"{convention!r}", "Choose one of the two."
        )
    return log_likelihoods(model, batch, tolerance=tolerance)[convention]


@dataclass
class Carried:
    """What goes from one part of a sequence to the next, for a sequence that does not fit into
    memory: what the model remembers, how many events there were, and whether the next part is the
    last.
    """

    history: History | None = None
    events: int = 0
    closes: bool = False

    def span(self, batch: Batch) -> Span:
        """The first and the last event of the sequence, infinite where they are in other parts."""
        endless = torch.full_like(batch.start[:, None], torch.inf)
        first = -endless if self.events else batch.edges[:, 1:2]
        last = _last_event(batch) if self.closes else endless
        return first, last


@torch.no_grad()
def log_likelihoods(
    model: PointProcess, batch: Batch, *, tolerance: float = 1e-4, carried: Carried | None = None
) -> dict[Convention, LogLikelihood]:
    """Both conventions from one pass: "gaps" leaves out the first event and what lies before it or
    after the last.

    With ``carried`` the batch is the next part of one sequence, observed from the last event of the
    part before it, and the result is what this part adds. Raises :class:`UserError` for models
    whose rates need all events at once.
    """
    check_places(model, batch)
    scored = scored_events(batch)
    counted = scored["gaps"].clamp(min=1)
    budget = tolerance * int(counted.sum())
    zero = torch.zeros_like(batch.start)
    sums: Sums = {name: [zero, zero, zero] for name in CONVENTIONS}
    if carried is None:
        compiled = _compiled(model, batch, budget)
        carried = Carried()
        span = _span(batch, "gaps")
        assert span is not None  # only that of the whole window is None
    else:
        compiled = None
        span = carried.span(batch)
        _check_linear(model)
        if carried.events:
            scored["gaps"] = scored["window"]
    if compiled is not None:
        logs, rounding = _of_events(model, batch, compiled.logs)
        left = batch.edges[:, :-1]
        right = batch.edges[:, 1:]
        gaps = Integrals(left, right, compiled.integral, compiled.error)
        _add(sums, span, 0, logs, rounding, gaps)
        return _found(sums, scored)
    for block, offset in blocks_of(model, batch):
        check_memory(model, block.edges.numel(), 0)
        history = model.encode(block, carried.history)
        carried.history = history.latest()
        if only_history(block):
            continue
        logs, rounding = _of_events(model, block, model.log_rates_at_events(history, block))
        found = integrals(model, history, block, budget * _share(block, batch))
        _add(sums, span, carried.events + offset, logs, rounding, found)
    carried.events += batch.times.shape[1]
    return _found(sums, scored)


def _check_linear(model: PointProcess) -> None:
    """Refuse a model that cannot go on from what it remembers."""
    if not model.linear:
        raise UserError(
            "a model that can go on from what it remembers (dapp, deep-dapp, hawkes, nhp, rmtpp)",
            f"{type(model).__name__}, for a sequence that is read in parts",
            "Choose another model, or cut the sequence.",
        )


@torch.no_grad()
def log_totals_at_events(model: PointProcess, batch: Batch) -> PerSequence:
    """The sum over the scored events of each sequence of log of the rate of all types in the whole
    box just before the event. What is left of the log rates at events is the log density of place
    and type given the time.
    """
    found = torch.zeros_like(batch.start)
    carried = None
    for block, _ in blocks_of(model, batch):
        history = model.encode(block, carried)
        carried = history.latest()
        rows, events = block.times.shape
        position = torch.arange(events, device=block.times.device).expand(rows, events)
        logs = model.log_total(history, block.times[..., None], position)[..., 0]
        counted = torch.where(block.scored, logs.to(found), 0.0)
        found += counted.sum(1)
    return found


@torch.no_grad()
def gap_log_likelihoods(
    model: PointProcess, batch: Batch, *, tolerance: float = 1e-4
) -> tuple[PerGap, PerGap]:
    """What each gap contributes to :func:`log_likelihood` (window convention): the log rate of the
    event at its end, 0 if there is none or it is not scored, and the integral over the gap, refined
    to ``tolerance`` nats per event. Gap g of a sequence ends at its event g, the last one at the
    window's end.
    """
    check_places(model, batch)
    counted = scored_events(batch)["window"].clamp(min=1)
    budget = tolerance * int(counted.sum())
    compiled = None
    if batch.scored_exposure is None:
        compiled = model.scored_gaps(batch, budget)
    if compiled is not None:
        logs, _ = _of_events(model, batch, compiled.logs)
        by_gap = nn.functional.pad(logs, (0, 1))
        return by_gap, compiled.integral.to(torch.float64)
    found = torch.zeros_like(batch.edges[:, 1:])
    over_gaps = torch.zeros_like(found)
    carried = None
    for block, offset in blocks_of(model, batch):
        check_memory(model, block.edges.numel(), 0)
        history = model.encode(block, carried)
        carried = history.latest()
        if only_history(block):
            continue
        logs, _ = _of_events(model, block, model.log_rates_at_events(history, block))
        events = slice(offset, offset + logs.shape[1])
        found[:, events] += logs
        left, right, value, _ = integrals(model, history, block, budget * _share(block, batch))
        value = torch.where(right > left, value, 0.0).to(torch.float64)
        gap = offset + seen_from(block, left)
        over_gaps.scatter_add_(1, gap, value)
    return found, over_gaps


def _share(block: Batch, batch: Batch) -> float:
    """The share of a batch's events that a block of it has."""
    events = max(1, block.times.shape[1])
    return events / max(1, batch.times.shape[1])


def _compiled(model: PointProcess, batch: Batch, budget: float) -> ScoredGaps | None:
    """What the model's kernel finds, if it has one. Integrals of a history period are 0; that of
    the gap in which it ends is less by the integral up to there, from a second run. None where
    there is an exposure.
    """
    context = batch.context
    if context is not None and context.exposure is not None:
        return None
    found = model.scored_gaps(batch, budget)
    if found is None or context is None or context.scored_from is None:
        return found
    end = context.scored_from.clamp(batch.start, batch.stop)
    early = batch.until(end)
    earlier = model.scored_gaps(early, budget)
    if earlier is None:
        return None
    gap = torch.arange(found.integral.shape[1], device=end.device)
    last = early.lengths[:, None]
    ending = gap == last
    later = gap > last
    rest = (found.integral - earlier.integral).clamp(min=0)
    value = torch.where(ending, rest, 0.0)
    error = torch.where(ending, found.error + earlier.error, 0.0)
    return ScoredGaps(
        logs=found.logs,
        integral=torch.where(later, found.integral, value),
        error=torch.where(later, found.error, error),
    )


class Integrals(NamedTuple):
    """Integrals over H pieces of the window of each sequence, and upper estimates of their
    errors.
    """

    left: PerPiece
    right: PerPiece
    value: PerPiece
    error: PerPiece


def _add(
    sums: Sums,
    span: Span,
    offset: int,
    logs: PerEvent,
    rounding: PerEvent,
    integrals: Integrals,
) -> None:
    """Add what a block has, ``offset`` events after the first of its sequences, to the sums of log
    rates, integrals and errors. The ``span`` is from the first event to the last.
    """
    first, last = span
    inner = (integrals.left >= first) & (integrals.right <= last)
    for name in CONVENTIONS:
        begin = 1 if name == "gaps" and offset == 0 else 0
        kept = torch.ones_like(inner) if name == "window" else inner
        value = torch.where(kept, integrals.value, 0.0).sum(1)
        error = torch.where(kept, integrals.error, 0.0).sum(1)
        log_rates, integral, off = sums[name]
        sums[name] = [
            log_rates + logs[:, begin:].sum(1),
            integral + value,
            off + (error + rounding[:, begin:].sum(1)),
        ]


def _found(sums: Sums, scored: dict[Convention, Counts]) -> dict[Convention, LogLikelihood]:
    found = {}
    for name, (logs, integral, error) in sums.items():
        found[name] = LogLikelihood(logs - integral, scored[name], integral, error)
    return found


def scored_events(batch: Batch) -> dict[Convention, Counts]:
    """How many events of each sequence are scored: those that are not history, and in "gaps" not
    the first event of the sequence.
    """
    scored = batch.scored
    later = scored[:, 1:]
    return {"window": scored.sum(1), "gaps": later.sum(1)}


def only_history(block: Batch) -> bool:
    """Whether nothing of a block is scored."""
    context = block.context
    if context is None or context.scored_from is None:
        return False
    over = block.stop <= context.scored_from
    return bool(over.all()) and not bool(block.scored.any())


def sampled_log_likelihood(
    model: PointProcess,
    batch: Batch,
    nodes: int,
    random: torch.Generator,
    *,
    convention: Convention = "window",
) -> PerSequence:
    """An unbiased estimate of each sequence's log-likelihood, with gradient: ``nodes`` stratified
    draws in every gap, closer together soon after an event for models with ``early_nodes``; exact
    for models with a closed form. The ends of gaps are dequantised where the model has a
    ``gap_resolution``.
    """
    check_places(model, batch)
    check_memory(model, batch.edges.numel(), nodes)
    exposure = batch.scored_exposure
    if exposure is None:
        found = model.training_log_likelihood(batch, nodes, random, convention)
        if found is not None:
            return found
    total = torch.zeros_like(batch.start)
    carried = None
    span = _span(batch, convention)
    blocks = list(blocks_of(model, batch))
    for block, offset in blocks:
        left = block.edges[:, :-1]
        right = block.edges[:, 1:]
        resolution = model.gap_resolution()
        if resolution:
            right = dequantised_gaps(block, resolution, random)
        low = left
        high = right
        exposed = None
        if exposure is not None:
            exposed = exposure.exposed_time(block.start, block.stop)
            low = exposed.until(left)
            high = exposed.until(right)
        if model.early_nodes:
            times, weights = early(low, high, uniform(right, nodes, random))
        else:
            times = stratified(low, high, nodes, random)
            weights = None
        if exposed is not None:
            inside = exposed.inverse(times)
            times = inside.clamp(left[..., None], right[..., None])
        if len(blocks) == 1:
            return _sampled(model, block, right, times, None, span, offset, weights)[0]
        part, carried = checkpoint(
            _sampled,
            model,
            block,
            right,
            times,
            carried,
            span,
            offset,
            weights,
            use_reentrant=False,
        )
        total = total + part
    return total


@torch.no_grad()
def quick_log_likelihood(
    model: PointProcess, batch: Batch, nodes: int = 12, *, convention: Convention = "window"
) -> PerSequence:
    """Each sequence's log-likelihood by one Gauss-Legendre rule of ``nodes`` per gap, unrefined:
    for validations only.
    """
    return quick_gap_terms(model, batch, nodes, convention=convention).sum(1)


@torch.no_grad()
def quick_gap_terms(
    model: PointProcess, batch: Batch, nodes: int = 12, *, convention: Convention = "window"
) -> PerGap:
    """What each gap contributes to :func:`quick_log_likelihood`: the log-intensity of the event at
    its end, if there is one, less the integral over the gap.

    The rule is one for the square root of the time since the gap's left end, where rates change
    fastest.
    """
    carried = None
    span = _span(batch, convention)
    parts = []
    x, weights = (part.to(batch.times) for part in gauss_legendre(nodes))
    exposure = batch.scored_exposure
    blocks = list(blocks_of(model, batch))
    for block, offset in blocks:
        if len(blocks) > 1 and only_history(block):
            carried = model.encode(block, carried).latest()
            parts.append(torch.zeros_like(block.edges[:, 1:]))
            continue
        left = block.edges[:, :-1]
        right = block.edges[:, 1:]
        if exposure is None:
            times = _in_gaps(block.edges, x**2)
        else:
            exposed = exposure.exposed_time(block.start, block.stop)
            passed = exposed.until(block.edges)
            times = exposed.inverse(_in_gaps(passed, x**2))
            times = times.clamp(left[..., None], right[..., None])
        part, carried = _gap_terms(
            model, block, right, times, carried, span, offset, 2 * x * weights
        )
        parts.append(part)
    # A block ends at its last event: the gap behind it is empty, and the next block begins with the
    # real one.
    *whole, final = parts
    real = [part[:, :-1] for part in whole]
    return torch.cat([*real, final], 1)


def _in_gaps(edges: Float[Tensor, "B E"], shares: Float[Tensor, " Q"]) -> Nodes:
    """Times in every gap between ``edges``, from their ``shares`` of its length."""
    left = edges[:, :-1, None]
    width = edges.diff(dim=1)
    return left + width[..., None] * shares


def _span(batch: Batch, convention: Convention) -> Span | None:
    """The first and the last event of every sequence, where only what lies between them counts;
    None for the whole window.
    """
    if convention == "window":
        return None
    some = batch.lengths > 0
    first = torch.where(some, batch.edges[:, 1], batch.stop)
    return first[:, None], _last_event(batch)


def _last_event(batch: Batch) -> Column:
    """The time of the last event of every sequence, its start where there is none."""
    return batch.edges.gather(1, batch.lengths[:, None])


def _sampled(
    model: PointProcess,
    block: Batch,
    ends: PerGap,
    nodes: Nodes,
    before: History | None,
    span: Span | None = None,
    offset: int = 0,
    weights: NodeWeights | None = None,
) -> tuple[PerSequence, Any]:
    """The sum of :func:`_gap_terms` over the gaps of each sequence, and the history to go on
    from.
    """
    terms, after = _gap_terms(model, block, ends, nodes, before, span, offset, weights)
    return terms.sum(1), after


def _gap_terms(
    model: PointProcess,
    block: Batch,
    ends: PerGap,
    nodes: Nodes,
    before: History | None,
    span: Span | None = None,
    offset: int = 0,
    weights: NodeWeights | None = None,
) -> tuple[PerGap, Any]:
    """One pass over a block: each gap's nodes (of equal weight by default), and the events, which
    are at the gaps' ``ends``.

    With a ``span`` the first event is not scored, nor is what lies outside.
    """
    check_memory(model, block.edges.numel(), nodes.shape[2])
    history = model.encode(block, before)
    edges, scored = block.edges, block.scored
    own, integral = model.gap_terms(history, block, ends, nodes, weights)
    exposure = block.scored_exposure
    if exposure is not None:
        own = own + log_exposure(block).to(own)
        integral = _exposed(model, history, block, ends, exposure, integral)
    if span is not None:
        first, last = span
        gap = torch.arange(offset, offset + integral.shape[1], device=scored.device)
        later = gap > 0  # the first event may be at the window's start
        within = (edges[:, :-1] >= first) & (edges[:, 1:] <= last)
        integral = torch.where(later & within, integral, 0.0)
        scored = scored & later[:-1]
    events = nn.functional.pad(torch.where(scored, own, 0.0), (0, 1))
    return events - integral, history.latest()


def _exposed(
    model: PointProcess,
    history: History,
    block: Batch,
    ends: PerGap,
    exposure: BatchSteps,
    integral: PerGap,
) -> PerGap:
    """The integral over every gap weighted by the ``exposure``: closed, or from an ``integral`` by
    nodes that were placed in exposed time, whose mean rate holds for the exposed time of the gap.
    """
    if model.has_closed_integral:
        left, right, seen = exposed_pieces(block, exposure)
        found = model.closed_integral(history, left, right, seen).sum(2)
        weight = exposure.at(left)[..., 0]
        weighted = (found * weight.to(found)).to(integral)
        return torch.zeros_like(integral).scatter_add(1, seen, weighted)
    left = block.edges[:, :-1]
    exposed = exposure.exposed_time(block.start, block.stop)
    share = _mean(exposed.until(ends) - exposed.until(left), ends - left)
    return torch.where(share > 0, integral * share.to(integral), 0.0)


def _mean(integral: PerGap, width: PerGap) -> PerGap:
    """Integrals over the ``width`` of their gaps; where that is 0 the integral is too."""
    divisor = torch.where(width > 0, width, 1.0)
    return integral / divisor


def check_memory(model: PointProcess, slots: int, nodes: int) -> None:
    """Refuse rates of all marks that do not fit into memory, before they are computed, and say how
    much they need.

    A model forms the rate of every mark at every one of ``slots`` events, and where it has no form
    of its own for the gap before an event, at its ``nodes`` too. Models that sum over marks as they
    go (``log_total``) are not limited by this.
    """
    if model.sums_over_marks:
        return
    marks = model.marks.count
    moments = 1 if model.has_closed_integral else nodes + 1
    needed = NUMBER * slots * moments * marks
    if needed > UNCHECKED:
        what = f"a batch with the rates of {marks:,} types at {slots:,} events"
        remedy = (
            "Merge rare types, use a smaller batch (--set batch_size=4), or --model deep-dapp, "
            "which needs less for many types."
        )
        require_memory(needed, what, remedy)


def blocks_of(model: PointProcess, batch: Batch) -> list[tuple[Batch, int]]:
    """The batch in blocks of events that are held at once, each with the number of events before
    it; one block where a model needs all.
    """
    n = batch.times.shape[1]
    if n <= BLOCK or not model.linear:
        return [(batch, 0)]
    blocks = []
    for first in range(0, n, BLOCK):
        last = min(first + BLOCK, n)
        blocks.append((batch.columns(first, last), first))
    return blocks


def _of_events(model: PointProcess, block: Batch, logs: PerEvent) -> tuple[PerEvent, PerEvent]:
    """log e lambda at every scored event, 0 at the others, and its rounding error."""
    eps = max(torch.finfo(logs.dtype).eps, precision(model))
    scored = block.scored
    logs = torch.where(scored, logs, 0.0).to(torch.float64)
    size = 1 + logs.abs()
    rounding = torch.where(scored, ROUNDING * eps * size, 0.0)
    return logs + log_exposure(block), rounding


def check_places(model: PointProcess, batch: Batch) -> None:
    """Refuse events with places for a model that has no box, and the other way round."""
    box = model.marks.box
    if (box is None) != (batch.places is None):
        have = "events without places" if batch.places is None else "events with places"
        wanted = "events without places"
        if box is not None:
            wanted = f"events with places ({', '.join(box.names)})"
        raise UserError(
            f"{wanted}, as the model was made for",
            have,
            "Read the data with or without place=, or fit another model.",
        )


def integrals(model: PointProcess, history: History, block: Batch, budget: float) -> Integrals:
    """Integrals of the rate, times the exposure where there is one, over pieces that cover the
    block's window: closed, or by rules that are refined until the errors sum to ``budget``.
    """
    exposure = block.scored_exposure
    largest = 1.0
    if exposure is not None:
        known = exposure.times < block.stop[:, None]
        inside = torch.where(known[..., None], exposure.values, 0.0)
        tiny = torch.finfo(torch.float64).tiny
        largest = max(float(inside.max()), tiny)
    if model.has_closed_integral:
        found = _closed(model, history, block)
    else:
        over_box = model.order is not None and model.marks.box is not None
        ask = _asking_over_box if over_box else _asking
        asking = ask(model, history, block, budget / largest)
        asked = next(asking)
        while True:
            process, own, times, seen = asked
            rates = process.total_intensity(own, times, seen)
            try:
                asked = asking.send(rates)
            except StopIteration as done:
                found = done.value
                break
    if exposure is None:
        return found
    weight = exposure.at(found.left)[..., 0]
    value = weight * found.value
    error = weight * found.error
    return Integrals(found.left, found.right, value, error)


def _closed(model: PointProcess, history: History, block: Batch) -> Integrals:
    """Integrals in closed form over gaps, or over pieces between the steps of the exposure."""
    left = block.edges[:, :-1]
    right = block.edges[:, 1:]
    seen = None
    exposure = block.scored_exposure
    if exposure is not None:
        left, right, seen = exposed_pieces(block, exposure)
    by_mark = model.closed_integral(history, left, right, seen)
    exact = by_mark.sum(2).to(torch.float64)
    error = closed_form_error(model, exact, right - left)
    return Integrals(left, right, exact, error)


def closed_form_error(model: PointProcess, integral: PerGap, width: PerGap) -> PerGap:
    """The rounding error of integrals in closed form over gaps of this ``width``: as that of rates,
    plus a few more operations.
    """
    size = integral.abs()
    mean = _mean(size, width)
    logs = torch.xlogy(mean, mean).abs()
    terms = width * (mean + logs)
    of_rates = ROUNDING * precision(model) * terms
    eps = torch.finfo(integral.dtype).eps
    return of_rates + 64 * eps * size


def precision(model: PointProcess) -> float:
    """The largest eps of the dtypes that the model's weights have: its rates are no more
    precise.
    """
    largest = torch.finfo(torch.float64).eps
    for weight in model.parameters():
        if weight.is_floating_point():
            largest = max(largest, torch.finfo(weight.dtype).eps)
    return largest


# A computation that asks for total rates, of a model with a history at times seen from positions,
# is sent them, and returns integrals.
Question = tuple[PointProcess, History, Nodes, Int[Tensor, "B G"] | None]
Asking = Generator[Question, Tensor, Integrals]


def _asking_over_box(model: PointProcess, history: History, block: Batch, budget: float) -> Asking:
    """Integrals of a model that integrates over a box by a rule, whose order is raised until that
    changes little.

    What the last step changed bounds the error of the finer rule, and is added to the error over
    time.
    """
    order = model.order
    assert order is not None  # otherwise the caller integrates over time alone
    lower = max(n for n in ORDERS if n < max(order, 3))
    coarse = model.with_order(lower)
    rough = yield from _asking(coarse, history, block, budget / 2)
    while True:
        fine = yield from _asking(model.with_order(order), history, block, budget / 2)
        change = (fine.value - rough.value).abs()
        summed = float(change.sum())
        if summed <= budget / 2:
            return Integrals(fine.left, fine.right, fine.value, fine.error + change)
        if order >= model.finest:
            raise Unconverged(
                f"expected integrals over the box settled to {budget / 2:.3g}; received a "
                f"summed change of {summed:.3g} at "
                f"{order} nodes per axis. Raise the tolerance."
            )
        rough = fine
        order = min(n for n in ORDERS if n > order)


def _asking(model: PointProcess, history: History, block: Batch, budget: float) -> Asking:
    """Integrals by refined rules: over whole gaps where one rule in log-time settles them, and over
    pieces between events and the model's cuts elsewhere.
    """
    edges, exposure = block.edges, block.scored_exposure
    left, right, rule = pieces(model, history, edges, exposure)
    seen = seen_from(block, left)
    rows, columns = torch.nonzero(right > left, as_tuple=True)
    position = seen[rows, columns]
    if history.at_positions(rows[:1], position[:1]) is None:
        value, error = yield from _by_rows(
            model, history, seen, integrating(left, right, tolerance=budget, **rule)
        )
        return Integrals(left, right, value[..., 0], error)
    whole, whole_error = yield from _in_log_time(model, history, edges, exposure, budget / 2)
    settled = whole_error < torch.inf
    whole = torch.where(settled, whole, 0.0)
    whole_error = torch.where(settled, whole_error, 0.0)
    rest = max(budget - float(whole_error.sum()), budget / 2)
    needed = (right > left) & ~settled.gather(1, seen)
    rows, columns = torch.nonzero(needed, as_tuple=True)
    shortest = rule.pop("shortest")
    integral = torch.zeros_like(left)
    error = torch.zeros_like(left)
    if shortest is not None:
        shortest = shortest.expand_as(left)
    for first in range(0, len(rows), PIECES):
        some = slice(first, first + PIECES)
        own = rows[some]
        place = own, columns[some]
        refined = integrating(
            left[place][None],
            right[place][None],
            tolerance=rest * len(own) / len(rows),
            shortest=None if shortest is None else shortest[place][None],
            **rule,
        )
        value, doubt = yield from _by_pieces(model, history, own, seen[place], refined)
        integral[place] = value[0, :, 0]
        error[place] = doubt[0]
    return Integrals(
        left=torch.cat([edges[:, :-1], left], 1),
        right=torch.cat([edges[:, 1:], right], 1),
        value=torch.cat([whole, integral], 1),
        error=torch.cat([whole_error, error], 1),
    )


def _in_log_time(
    model: PointProcess,
    history: History,
    edges: Float[Tensor, "B E"],
    exposure: BatchSteps | None,
    budget: float,
) -> Generator[Question, Tensor, tuple[PerGap, PerGap]]:
    """The integrals over those gaps that one rule in log-time settles, so that their errors sum to
    at most ``budget``, and the errors, infinite for all other gaps and those with a step of the
    exposure inside.
    """
    left = edges[:, :-1]
    right = edges[:, 1:]
    value = torch.zeros_like(left)
    error = torch.full_like(left, torch.inf)
    rule = model.log_time_rule()
    if rule is None:
        return value, error
    width = right - left
    tried = (width > 0) & (width <= rule.longest)
    if exposure is not None:
        steps = exposure.times.contiguous()
        passed = torch.searchsorted(steps, left.contiguous(), right=True)
        reached = torch.searchsorted(steps, right.contiguous())
        weight = exposure.at(left)[..., 0]
        tried = tried & (passed == reached) & (weight > 0)
    place = rows, gaps = torch.nonzero(tried, as_tuple=True)
    since = history.times[place]
    by_rule = integrating_in_log_time(
        left[place], right[place], since, scale=rule.scale, density=rule.density
    )
    found, doubt = yield from _by_pieces(model, history, rows, gaps, by_rule)
    settled = doubt <= negligible(doubt, budget)
    value[place] = found
    error[place] = torch.where(settled, doubt, torch.inf)
    return value, error


def _by_rows(
    model: PointProcess, history: History, seen: Int[Tensor, "B H"], asking: quadrature.Asking
) -> Generator[Question, Tensor, tuple[Tensor, Tensor]]:
    """Integrals over pieces of all rows, at equally many times in each."""
    times, which = next(asking)
    while True:
        rates = yield model, history, times, seen.gather(1, which)
        try:
            times, which = asking.send(rates[..., None])
        except StopIteration as done:
            value, error = done.value
            return value, error


def _by_pieces(
    model: PointProcess,
    history: History,
    rows: Int[Tensor, " R"],
    seen: Int[Tensor, " R"],
    asking: quadrature.Asking,
) -> Generator[Question, Tensor, tuple[Tensor, Tensor]]:
    """Integrals over pieces of any rows, seen from these positions, a part of them at a time."""
    most = times_at_once(model, history.times.device)
    answer: Tensor | None = None
    while True:
        try:
            times, which = next(asking) if answer is None else asking.send(answer)
        except StopIteration as done:
            value, error = done.value
            return value, error
        nodes = times.shape[-1]
        some = max(1, most // nodes)
        parts = times.reshape(-1, nodes).split(some)
        owners = which.flatten().split(some)
        found = []
        for own_times, own in zip(parts, owners, strict=True):
            part = history.at_positions(rows[own], seen[own])
            assert part is not None  # otherwise the caller asks row by row
            rates = yield model, part, own_times[:, None], None
            found.append(rates[:, 0])
        answer = torch.cat(found).view(times.shape)
        if times.ndim == 3:
            answer = answer[..., None]


def times_at_once(model: PointProcess, device: torch.device) -> int:
    """At how many times rates are asked for at once, so that the numbers fit into a processor's
    cache, or into a part of the free memory of a CUDA device.
    """
    held = CACHED
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = min(LARGE, free // (NUMBER * COPIES))
    return max(1, held // model.numbers_per_time)
