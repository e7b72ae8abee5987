r"""Rounded times dequantised by a model's own law: latent times inside the ticks, drawn from their
posterior.

Times that were rounded to a resolution r say in which tick [t - r/2, t + r/2) each event fell, and
nothing about where in it. If latent times are drawn from the model's law given all ticks, and the
model is true, they have the law of the times before rounding, so that every test of exact times
applies to them (randomised residuals). A uniform position has that property only if the rate hardly
changes within a tick.

The draw is made by a particle filter, all sequences side by side. A particle is a latent history.
Event j, one of those in the tick that ends at b, is proposed with k events of the tick still to
come,

    q(t) ~ lambda_m(t) (int_t^b lambda)^k       on cells that grow geometrically after the left end,

which is the law of the first of k + 1 events of a Poisson process with the rate that the particle
expects. The weight corrects for the difference, with the excitation by the event itself in R =
int_t^b lambda(. | event at t):

    w = lambda_m(t) exp(-int_c^t lambda) psi_j / (q(t) psi_{j-1}),        psi_j = R^k / k! exp(-R),

where c is the end of the tick before, so that the silence between two ticks counts, or the event
before in the same tick, and psi is 1 before the first event of a tick. Particles are resampled when
their effective number falls below half; one of the last particles, drawn by weight, is the answer.
With finitely many particles it is an approximation, whose error falls as one over their number and
is the smaller, the less an event's place in its tick matters for the events after it. The order of
events in one tick is that of the data.

Sources: Brillinger, "Some statistical methods for random process data" (1988), for randomised
residuals; Gordon, Salmond and Smith,
"Novel approach to nonlinear/non-Gaussian Bayesian state estimation" (1993).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch, Dataset
from fourpoint.events.dequantise import dequantised, ticks as ticks_of
from fourpoint.inference.evaluation import device_of
from fourpoint.inference.likelihood import blocks_of
from fourpoint.inference.sampling import eval_mode, remember, select_rows
from fourpoint.models.base import History, PointProcess
from fourpoint.ops.quadrature import gauss_legendre

FINE = (
    32,
    13,
    2,
)  # particles, octaves and cells per octave, for models whose integrals are closed forms
ROUGH = (8, 10, 1)  # the same for all others, whose rates cost more
PANELS = (
    0.0,
    2.0**-10,
    2.0**-7,
    2.0**-4,
    0.5,
    1.0,
)  # of an integral, each with three nodes; events are followed by fast changes
SEGMENT = 256  # events of a sequence that are followed by one set of particles
MOST_CLOSED, MOST = (
    20_000,
    2_000,
)  # events: for models whose integrals are closed forms, and for all others
ROWS = 4096  # particles of all sequences that are stepped at once
CRITICAL = 0.9  # the most offspring of an event that a proposal reckons with
MARKS = 64  # types up to which a proposal looks at the rate of the event's own type


def reason_against(model: PointProcess) -> str | None:
    """Why rounded times cannot be dequantised by the law of ``model`` at a reasonable cost; None if
    they can.
    """
    if model.linear:
        return None
    return (
        f"{type(model).__name__} depends on every past event, and drawing times within the "
        "resolution from its distribution is too expensive"
    )


def most_events(model: PointProcess) -> int:
    """How many events are dequantised by the law of ``model`` at a reasonable cost."""
    return MOST_CLOSED if model.has_closed_integral else MOST


@torch.no_grad()
def change_within_ticks(model: PointProcess, data: Dataset, resolution: float) -> float:
    """How much an event's place in its tick matters: the mean over events of int_t^{t + r}
    |lambda(s) - lambda(t-)| ds.

    That is the mean change of the compensator, in events, by what happens within a ``resolution`` r
    after an event. Where it is far below 1 the rate is constant in a tick for all that a test could
    see, and a uniform place is the model's own law.
    """
    some = data.some(MOST, seed=0)
    total, events = 0.0, 0
    nodes, weights = gauss_legendre(4)
    with eval_mode(model):
        for rows in some.batches(16):
            batch = some.batch(rows).to(device_of(model))
            carried = None
            for block, _ in blocks_of(model, batch):
                history = model.encode(block, carried)
                seen = torch.arange(block.times.shape[1], device=block.times.device).expand_as(
                    block.times
                )
                before = model.total_intensity(history, block.times[..., None], seen)
                after = model.total_intensity(
                    history,
                    block.times[..., None] + resolution * nodes.to(block.times),
                    seen + 1,
                )
                change = resolution * (
                    (after - before).abs().double() * weights.to(block.times)
                ).sum(-1)
                total += float(torch.where(block.valid, change, 0.0).sum())
                events += int(block.valid.sum())
                carried = history.latest()
                if events >= MOST:
                    return total / events
    return total / max(1, events)


def dequantise(
    model: PointProcess,
    data: Dataset,
    resolution: float,
    seed: int,
    *,
    particles: int | None = None,
) -> Dataset:
    """The same events at latent times, drawn from the law of ``model`` given the ticks, in the same
    order.

    Args:
        resolution: of the timestamps, in the data's unit of time: an event at t fell into [t -
            resolution/2, t + resolution/2), and into its window.
        particles: per sequence, and per 256 events of a longer one; None: 32 for models whose
            integrals are closed forms, else 8.

    Call it only if :func:`reason_against` returns None.

    >>> from fourpoint.events import Sequence
    >>> from fourpoint.models.poisson import Poisson
    >>> data = Dataset.from_sequences([Sequence([1.0, 1.0, 4.0], start=0.0, stop=9.0)])
    >>> latent = dequantise(Poisson(), data, 1.0, seed=0).times
    >>> bool((np.abs(latent - data.times) <= 0.5).all() and (np.diff(latent) >= 0).all())
    True
    """
    model = copy.deepcopy(model).to("cpu")  # rows are few and steps are many
    uniform = dequantised(data, resolution, seed)
    random = torch.Generator().manual_seed(seed)
    times = uniform.times.copy()
    ticks = _Ticks.of(data, resolution)
    particles = particles or _rule(model)[0]
    with eval_mode(model):
        for group in _groups(data, ticks, max(1, ROWS // particles)):
            past = _stack([_before(model, uniform, piece) for piece in group])
            columns = _Columns.of(data, ticks, group)
            found = _filtered(model, past, columns, particles, random).numpy()
            for row, piece in zip(found, group, strict=True):
                times[piece.first : piece.last] = row[: piece.last - piece.first]
    row = np.repeat(np.arange(len(data)), data.lengths)
    return replace(data, times=times[np.lexsort((times, row))])


def first_events(data: Dataset, most: int) -> Dataset:
    """The first sequences with at most ``most`` events; a longer one is watched up to an earlier
    time, between two distinct times.

    >>> from fourpoint.events import Sequence
    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 2.0, 7.0], start=0.0, stop=9.0)] * 3)
    >>> (
    ...     len(first_events(data, 8)),
    ...     first_events(data, 2)[0].times.tolist(),
    ...     first_events(data, 2)[0].stop,
    ... )
    (2, [1.0], 1.5)
    """
    if data.events <= most:
        return data
    whole = int(np.searchsorted(np.cumsum(data.lengths), most, side="right"))
    if whole:
        return data.select(np.arange(whole))
    only = data[0]
    distinct = np.flatnonzero(np.diff(only.times[: most + 1]) > 0)
    if not len(distinct):
        return data.select(np.arange(1))
    cut = int(distinct[-1])
    stop = (only.times[cut] + only.times[cut + 1]) / 2
    return Dataset.from_sequences([only.before(float(stop))], unit=data.unit, name=data.name)


# ------------------------------------------------------------------ ticks and segments


@dataclass(frozen=True)
class _Ticks:
    """Per event: its tick cut to the window, whether it is the first one there, and how many follow
    it there.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    first: NDArray[np.bool_]
    remaining: NDArray[np.int64]

    @staticmethod
    def of(data: Dataset, resolution: float) -> _Ticks:
        row = np.repeat(np.arange(len(data)), data.lengths)
        low, high = ticks_of(data, resolution)
        apart = (np.diff(data.times) > resolution / 2) | (np.diff(row) > 0)
        first = np.concatenate([np.ones(min(1, data.events), dtype=bool), apart])
        heads = np.flatnonzero(first)
        ends = np.append(heads[1:], data.events)
        number = np.cumsum(first) - 1
        remaining = ends[number] - 1 - np.arange(data.events)
        # One interval for all events of a tick: rounding errors of their times must not order them.
        return _Ticks(low[heads][number], high[heads][number], first, remaining.astype(np.int64))


@dataclass(frozen=True)
class _Segment:
    """Events ``first`` to ``last`` of the flat data, of one sequence, whose survival is watched
    from ``start`` to ``stop``.
    """

    sequence: int
    first: int
    last: int
    start: float
    stop: float


def _groups(data: Dataset, ticks: _Ticks, size: int) -> Iterator[list[_Segment]]:
    """Segments of similar length, ``size`` at a time, which end between ticks."""
    found = []
    for s in range(len(data)):
        begin = int(data.offsets[s])
        end = int(data.offsets[s + 1])
        cuts = [begin]
        while cuts[-1] + SEGMENT < end:
            heads = np.flatnonzero(ticks.first[cuts[-1] + SEGMENT : end])
            if not len(heads):
                break
            cuts.append(cuts[-1] + SEGMENT + int(heads[0]))
        cuts.append(end)
        for a, b in zip(cuts[:-1], cuts[1:], strict=True):
            start = float(data.starts[s]) if a == begin else float(ticks.high[a - 1])
            stop = float(data.stops[s]) if b == end else float(ticks.low[b])
            if b > a:
                found.append(_Segment(s, a, b, start, stop))
    found.sort(key=lambda piece: piece.last - piece.first)
    for i in range(0, len(found), size):
        yield found[i : i + size]


def _before(model: PointProcess, data: Dataset, piece: _Segment) -> Any:
    """The history of one sequence before a segment, from times dequantised uniformly."""
    begin = int(data.offsets[piece.sequence])
    rows = slice(begin, piece.first)
    times = torch.from_numpy(data.times[rows].copy())[None]
    marks = torch.from_numpy(data.mark_ids[rows].copy())[None]
    places = None if data.places is None else torch.from_numpy(data.places[rows].copy())[None]
    start = torch.tensor([data.starts[piece.sequence]], dtype=torch.float64)
    stop = torch.tensor([piece.start], dtype=torch.float64)
    features = None if data.features is None else torch.from_numpy(data.features[rows].copy())[None]
    context = None
    if data.context is not None:
        context = data.context.batch(np.array([piece.sequence]))
    valid = torch.ones_like(marks, dtype=torch.bool)
    return remember(model, Batch(times, marks, valid, start, stop, places, features, context))


def _stack(histories: list[Any]) -> Any:
    """Histories of one row each as one history; what all share stays shared."""
    first = histories[0]
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(first):
        values = [getattr(history, field.name) for history in histories]
        if isinstance(values[0], Tensor):
            changed[field.name] = torch.cat(values)
        elif dataclasses.is_dataclass(values[0]) and not isinstance(values[0], type):
            changed[field.name] = _stack(values)
    return replace(first, **changed)


@dataclass(frozen=True)
class _Columns:
    """The ticks of S segments, padded to N events; a row each."""

    low: Float[Tensor, "S N"]
    high: Float[Tensor, "S N"]
    first: Bool[Tensor, "S N"]
    remaining: Int[Tensor, "S N"]
    marks: Int[Tensor, "S N"]
    valid: Bool[Tensor, "S N"]
    places: Float[Tensor, "S N k"] | None
    features: Float[Tensor, "S N F"] | None
    start: Float[Tensor, " S"]
    stop: Float[Tensor, " S"]

    @staticmethod
    def of(data: Dataset, ticks: _Ticks, group: list[_Segment]) -> _Columns:
        begin = np.array([piece.first for piece in group])
        size = np.array([piece.last - piece.first for piece in group])
        column = np.arange(int(size.max()))
        valid = column < size[:, None]
        flat = np.where(valid, begin[:, None] + column, begin[:, None])
        places = None if data.places is None else torch.from_numpy(data.places[flat])
        features = None if data.features is None else torch.from_numpy(data.features[flat])
        taken = (ticks.low, ticks.high, ticks.first, ticks.remaining, data.mark_ids)
        low, high, first, remaining, marks = (torch.from_numpy(x[flat]) for x in taken)
        start = torch.tensor([piece.start for piece in group], dtype=torch.float64)
        stop = torch.tensor([piece.stop for piece in group], dtype=torch.float64)
        known = torch.from_numpy(valid)
        return _Columns(low, high, first, remaining, marks, known, places, features, start, stop)


# ------------------------------------------------------------------ the filter


def _filtered(
    model: PointProcess, past: History, ticks: _Columns, particles: int, random: torch.Generator
) -> Float[Tensor, "S N"]:
    """One latent path for each segment, by a filter with ``particles`` for each."""
    S, N = ticks.low.shape
    owner = torch.arange(S).repeat_interleave(particles)
    history = select_rows(past, owner)
    paths = torch.zeros(S * particles, N, dtype=torch.float64)
    weights = torch.zeros(S, particles, dtype=torch.float64)  # logarithms
    reached = ticks.start[owner]  # the end of the last tick: no event from the last one up to here
    time, expected = reached.clone(), torch.zeros_like(reached)  # the last event, and log psi there
    offspring = torch.zeros_like(
        reached
    )  # what an event was last seen to add to the events of its tick
    for j in range(N):
        low, high, first, after, mark, active = (
            x[:, j][owner]
            for x in (ticks.low, ticks.high, ticks.first, ticks.remaining, ticks.marks, ticks.valid)
        )
        place = None if ticks.places is None else ticks.places[:, j][owner]
        # A row without events left asks for rates where it stands: earlier ones, of a fast decay,
        # may overflow.
        high = torch.where(active, high, reached)
        left = torch.where(active, torch.where(first, low, time), reached)
        since = torch.where(active & ~first, time, reached)
        proposal = _propose(model, history, since, left, high, mark, after, offspring, random)
        logs = _log_rate(model, history, proposal.time, mark, place)
        features = None if ticks.features is None else ticks.features[:, j][owner]
        history = _extended(model, history, proposal.time, mark, active, place, features)
        rest = _survival(model, history, proposal.time, high)
        jump = torch.where(active, rest - proposal.rest, offspring).clamp(0, CRITICAL)
        offspring = (
            jump.reshape(S, particles).mean(1, keepdim=True).expand(S, particles).reshape(-1)
        )
        ahead = _log_count(after, rest, offspring) - rest
        gain = (
            logs
            - proposal.integral
            + ahead
            - proposal.log_density
            - torch.where(first, 0.0, expected)
        )
        weights = weights + torch.where(active, gain, 0.0).reshape(S, particles)
        time = torch.where(active, proposal.time, time)
        expected = torch.where(active, ahead, expected)
        reached = torch.where(active, high, reached)
        paths[:, j] = time
        weights = torch.where(torch.isfinite(weights).any(1, keepdim=True), weights, 0.0)
        weights = weights - weights.logsumexp(1, keepdim=True)
        poor = (2 * weights).logsumexp(1).neg().exp() < particles / 2
        if bool(poor.any()):
            rows = _resampled(weights, poor, random)
            history = select_rows(history, rows)
            paths = paths[rows]
            time = time[rows]
            expected = expected[rows]
            weights = torch.where(poor[:, None], 0.0, weights)
    weights = weights - _survival(model, history, reached, ticks.stop[owner]).reshape(S, particles)
    chosen = torch.multinomial(weights.softmax(1), 1, generator=random)[:, 0]
    return paths[torch.arange(S) * particles + chosen]


@dataclass(frozen=True)
class _Proposal:
    """Where each particle puts the event, the logarithm of the density there, and the integral of
    the rate up to there.
    """

    time: Float[Tensor, " R"]
    log_density: Float[Tensor, " R"]
    integral: Float[Tensor, " R"]
    rest: Float[Tensor, " R"]  # the integral from there to the end of the tick, without the event


def _propose(
    model: PointProcess,
    history: History,
    reached: Float[Tensor, " R"],
    left: Float[Tensor, " R"],
    right: Float[Tensor, " R"],
    mark: Int[Tensor, " R"],
    after: Int[Tensor, " R"],
    offspring: Float[Tensor, " R"],
    random: torch.Generator,
) -> _Proposal:
    """An event of ``mark`` in [left, right], with ``after`` more to come there; no event from
    ``reached`` to ``left``.
    """
    edges = _edges(model)
    share = edges.diff()
    middle = edges[:-1] + share / 2
    width = (right - left).clamp(min=1e-300)
    total, own = _rates(model, history, left[:, None] + width[:, None] * middle, mark)
    silence = _survival(model, history, reached, left)
    mass = width[:, None] * share * total
    before = mass.cumsum(1) - mass
    whole = mass.sum(1, keepdim=True)
    later = _log_count(after[:, None], whole - before - mass / 2, offspring[:, None])
    score = torch.log((own * share).clamp(min=1e-300)) + later
    chance = score.log_softmax(1)
    cell = torch.multinomial(chance.exp(), 1, generator=random)
    inside = torch.rand(cell.shape, generator=random, dtype=torch.float64)
    place = (
        edges[:-1].expand_as(mass).gather(1, cell) + share.expand_as(mass).gather(1, cell) * inside
    )[:, 0]
    density = (chance - torch.log(share)).gather(1, cell)[:, 0] - torch.log(width)
    passed = (before.gather(1, cell) + mass.gather(1, cell) * inside)[:, 0]
    return _Proposal(
        torch.minimum(left + width * place, right), density, silence + passed, whole[:, 0] - passed
    )


def _log_count(
    count: Int[Tensor, "*R"], mean: Float[Tensor, "*R"], offspring: Float[Tensor, "*R"]
) -> Float[Tensor, "*R"]:
    """log of mean (mean + eta k)^(k - 1) / k!, exp(-mean) left out: k events of a cluster process
    (Borel and Tanner's law).
    """
    base = mean.clamp(min=1e-300)
    found = (
        torch.log(base)
        + (count - 1) * torch.log(base + offspring * count)
        - torch.lgamma(count + 1.0)
    )
    return torch.where(count > 0, found, 0.0)


def _survival(
    model: PointProcess, history: History, left: Float[Tensor, " R"], right: Float[Tensor, " R"]
) -> Float[Tensor, " R"]:
    """The integral of the total rate from ``left`` to ``right``: closed, or by a rule that is fine
    soon after ``left``.
    """
    end = torch.maximum(left, right)
    if model.has_closed_integral:
        return (
            model.closed_integral(history, left[:, None], end[:, None], history.lengths[:, None])
            .sum((1, 2))
            .double()
        )
    x, w = gauss_legendre(3)
    panels = torch.tensor(PANELS, dtype=torch.float64)
    lengths = panels.diff()[:, None]
    nodes = (panels[:-1, None] + lengths * x).flatten()
    weights = (lengths * w).flatten()
    width = end - left
    times = left[:, None] + width[:, None] * nodes
    return width * (_total(model, history, times) * weights).sum(1)


def _rates(
    model: PointProcess, history: History, times: Float[Tensor, "R Q"], mark: Int[Tensor, " R"]
) -> tuple[Float[Tensor, "R Q"], Float[Tensor, "R Q"]]:
    """The total rate and that of ``mark`` from the last position; the total for both if there are
    many types.
    """
    if model.marks.count == 1 or model.marks.count > MARKS:
        total = _total(model, history, times)
        return total, total
    logs = model.log_intensity(history, times[:, None], history.lengths[:, None])[:, 0]
    each = logs.double().exp()
    of_mark = mark[:, None, None].expand(-1, times.shape[1], 1)
    return each.sum(-1), each.gather(2, of_mark)[..., 0]


def _total(
    model: PointProcess, history: History, times: Float[Tensor, "R Q"]
) -> Float[Tensor, "R Q"]:
    return model.total_intensity(history, times[:, None], history.lengths[:, None])[:, 0].double()


def _log_rate(
    model: PointProcess,
    history: History,
    time: Float[Tensor, " R"],
    mark: Int[Tensor, " R"],
    place: Float[Tensor, "R k"] | None,
) -> Float[Tensor, " R"]:
    """log lambda of an event's own type, and place, just before it."""
    at = time[:, None, None]
    last = history.lengths[:, None]
    if place is None:
        logs = model.log_intensity(history, at, last)
    else:
        logs = model.log_intensity_at(history, at, place[:, None, None], last)
    return logs[:, 0, 0].double().gather(1, mark[:, None])[:, 0]


def _extended(
    model: PointProcess,
    history: History,
    time: Tensor,
    mark: Tensor,
    active: Tensor,
    place: Tensor | None,
    features: Tensor | None,
) -> Any:
    if place is None and features is None:
        return model.extend(history, time, mark, active)
    return model.extend(history, time, mark, active, place, features)


def _resampled(
    weights: Float[Tensor, "S P"], poor: Bool[Tensor, " S"], random: torch.Generator
) -> Int[Tensor, " R"]:
    """The row from which each particle goes on: systematic resampling of ``poor`` sets, all others
    as they are.
    """
    S, P = weights.shape
    points = (torch.arange(P) + torch.rand(S, 1, generator=random, dtype=torch.float64)) / P
    chosen = torch.searchsorted(
        weights.softmax(1).cumsum(1).contiguous(), points.contiguous()
    ).clamp(max=P - 1)
    kept = torch.where(poor[:, None], chosen, torch.arange(P))
    return (kept + P * torch.arange(S)[:, None]).reshape(-1)


def _rule(model: PointProcess) -> tuple[int, int, int]:
    return FINE if model.has_closed_integral else ROUGH


def _edges(model: PointProcess) -> Float[Tensor, " C"]:
    """Ends of the cells of an interval, from 0 to 1, with the shortest cell at 0."""
    _, octaves, parts = _rule(model)
    powers = torch.arange(-octaves * parts, 1, dtype=torch.float64) / parts
    return torch.cat([torch.zeros(1, dtype=torch.float64), torch.exp2(powers)])
