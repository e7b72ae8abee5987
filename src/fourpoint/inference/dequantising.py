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
from itertools import pairwise
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

# Particles, octaves, and cells per octave.
FINE = (32, 13, 2)  # for models whose integrals are closed forms
ROUGH = (8, 10, 1)  # for all others, whose rates cost more
# Panels of an integral, each with three nodes; events are followed by fast changes.
PANELS = (0.0, 2.0**-10, 2.0**-7, 2.0**-4, 0.5, 1.0)
SEGMENT = 256  # events of a sequence that are followed by one set of particles
MOST_CLOSED = 20_000  # events, for models whose integrals are closed forms
MOST = 2_000  # events, for all others
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
    device = device_of(model)
    nodes, weights = gauss_legendre(4)
    total = 0.0
    events = 0
    with eval_mode(model):
        for rows in some.batches(16):
            batch = some.batch(rows).to(device)
            carried = None
            for block, _ in blocks_of(model, batch):
                history = model.encode(block, carried)
                times = block.times[..., None]
                later = times + resolution * nodes.to(times)
                events_before = torch.arange(block.times.shape[1], device=device)
                events_before = events_before.expand_as(block.times)
                before = model.total_intensity(history, times, events_before)
                after = model.total_intensity(history, later, events_before + 1)
                difference = (after - before).abs().double()
                change = resolution * (difference * weights.to(times)).sum(-1)
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
    together = max(1, ROWS // particles)
    with eval_mode(model):
        for group in _groups(data, ticks, together):
            past = _stack([_before(model, uniform, piece) for piece in group])
            columns = _Columns.of(data, ticks, group)
            found = _filtered(model, past, columns, particles, random)
            for row, piece in enumerate(group):
                count = piece.last - piece.first
                times[piece.first : piece.last] = found[row, :count].numpy()
    row_of_event = np.repeat(np.arange(len(data)), data.lengths)
    order = np.lexsort((times, row_of_event))
    return replace(data, times=times[order])


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
    up_to = np.cumsum(data.lengths)
    whole = int(np.searchsorted(up_to, most, side="right"))
    if whole:
        return data.select(np.arange(whole))
    only = data[0]
    gaps = np.diff(only.times[: most + 1])
    distinct = np.flatnonzero(gaps > 0)
    if not len(distinct):
        return data.select(np.arange(1))
    cut = int(distinct[-1])
    stop = (only.times[cut] + only.times[cut + 1]) / 2
    part = only.before(float(stop))
    return Dataset.from_sequences([part], unit=data.unit, name=data.name)


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
        low, high = ticks_of(data, resolution)
        row = np.repeat(np.arange(len(data)), data.lengths)
        next_tick = np.diff(data.times) > resolution / 2
        next_sequence = np.diff(row) > 0
        first = np.ones(data.events, dtype=bool)
        first[1:] = next_tick | next_sequence
        heads = np.flatnonzero(first)
        ends = np.append(heads[1:], data.events)
        tick = np.cumsum(first) - 1
        last = ends[tick] - 1
        remaining = last - np.arange(data.events)
        # One interval for all events of a tick: rounding errors of their times must not order them.
        head = heads[tick]
        return _Ticks(
            low=low[head],
            high=high[head],
            first=first,
            remaining=remaining.astype(np.int64),
        )


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
        cuts = _cuts(ticks, begin, end)
        for a, b in pairwise(cuts):
            start = data.starts[s]
            if a > begin:
                start = ticks.high[a - 1]
            stop = data.stops[s]
            if b < end:
                stop = ticks.low[b]
            if b > a:
                piece = _Segment(s, a, b, float(start), float(stop))
                found.append(piece)
    found.sort(key=lambda piece: piece.last - piece.first)
    for i in range(0, len(found), size):
        yield found[i : i + size]


def _cuts(ticks: _Ticks, begin: int, end: int) -> list[int]:
    """Where the events from ``begin`` to ``end`` are cut into segments: at the first tick after
    every SEGMENT events, and at both ends.
    """
    cuts = [begin]
    least = begin + SEGMENT
    while least < end:
        heads = np.flatnonzero(ticks.first[least:end])
        if not len(heads):
            break
        cut = least + int(heads[0])
        cuts.append(cut)
        least = cut + SEGMENT
    return [*cuts, end]


def _before(model: PointProcess, data: Dataset, piece: _Segment) -> Any:
    """The history of one sequence before a segment, from times dequantised uniformly."""
    begin = int(data.offsets[piece.sequence])
    rows = slice(begin, piece.first)

    def row_of(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values[rows].copy())[None]

    places = None
    if data.places is not None:
        places = row_of(data.places)
    features = None
    if data.features is not None:
        features = row_of(data.features)
    context = None
    if data.context is not None:
        context = data.context.batch(np.array([piece.sequence]))
    marks = row_of(data.mark_ids)
    batch = Batch(
        times=row_of(data.times),
        marks=marks,
        valid=torch.ones_like(marks, dtype=torch.bool),
        start=torch.tensor([data.starts[piece.sequence]], dtype=torch.float64),
        stop=torch.tensor([piece.start], dtype=torch.float64),
        places=places,
        features=features,
        context=context,
    )
    return remember(model, batch)


def _stack(histories: list[Any]) -> Any:
    """Histories of one row each as one history; what all share stays shared."""
    first = histories[0]
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(first):
        name = field.name
        values = [getattr(history, name) for history in histories]
        own = values[0]
        if isinstance(own, Tensor):
            changed[name] = torch.cat(values)
        elif dataclasses.is_dataclass(own) and not isinstance(own, type):
            changed[name] = _stack(values)
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
        begin = np.array([piece.first for piece in group])[:, None]
        size = np.array([piece.last - piece.first for piece in group])
        column = np.arange(int(size.max()))
        valid = column < size[:, None]
        event = np.where(valid, begin + column, begin)

        def table(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values[event])

        places = None
        if data.places is not None:
            places = table(data.places)
        features = None
        if data.features is not None:
            features = table(data.features)
        starts = [piece.start for piece in group]
        stops = [piece.stop for piece in group]
        return _Columns(
            low=table(ticks.low),
            high=table(ticks.high),
            first=table(ticks.first),
            remaining=table(ticks.remaining),
            marks=table(data.mark_ids),
            valid=torch.from_numpy(valid),
            places=places,
            features=features,
            start=torch.tensor(starts, dtype=torch.float64),
            stop=torch.tensor(stops, dtype=torch.float64),
        )

    def column(self, j: int, owner: Int[Tensor, " R"]) -> _Column:
        """Event ``j`` of the segment that each particle belongs to."""
        place = None
        if self.places is not None:
            place = self.places[:, j][owner]
        features = None
        if self.features is not None:
            features = self.features[:, j][owner]
        return _Column(
            low=self.low[:, j][owner],
            high=self.high[:, j][owner],
            first=self.first[:, j][owner],
            remaining=self.remaining[:, j][owner],
            mark=self.marks[:, j][owner],
            active=self.valid[:, j][owner],
            place=place,
            features=features,
        )


@dataclass(frozen=True)
class _Column:
    """The ticks of event j of every segment; a row for each particle."""

    low: Float[Tensor, " R"]
    high: Float[Tensor, " R"]
    first: Bool[Tensor, " R"]
    remaining: Int[Tensor, " R"]
    mark: Int[Tensor, " R"]
    active: Bool[Tensor, " R"]
    place: Float[Tensor, "R k"] | None
    features: Float[Tensor, "R F"] | None


# ------------------------------------------------------------------ the filter


def _filtered(
    model: PointProcess, past: History, ticks: _Columns, particles: int, random: torch.Generator
) -> Float[Tensor, "S N"]:
    """One latent path for each segment, by a filter with ``particles`` for each."""
    S, N = ticks.low.shape
    owner = torch.arange(S).repeat_interleave(particles)
    history = select_rows(past, owner)
    paths = torch.zeros(S * particles, N, dtype=torch.float64)
    log_weights = torch.zeros(S, particles, dtype=torch.float64)
    reached = ticks.start[owner]  # the end of the last tick: no event from the last one up to here
    time = reached.clone()  # the last event
    expected = torch.zeros_like(reached)  # log psi there
    # What an event was last seen to add to the events of its tick.
    offspring = torch.zeros_like(reached)
    for j in range(N):
        tick = ticks.column(j, owner)
        active = tick.active
        # A row without events left asks for rates where it stands: earlier ones, of a fast decay,
        # may overflow.
        high = torch.where(active, tick.high, reached)
        earliest = torch.where(tick.first, tick.low, time)
        left = torch.where(active, earliest, reached)
        since = torch.where(active & ~tick.first, time, reached)
        proposal = _propose(
            model,
            history,
            since,
            left,
            high,
            tick.mark,
            tick.remaining,
            offspring,
            random,
        )
        log_rate = _log_rate(model, history, proposal.time, tick.mark, tick.place)
        history = _extended(model, history, proposal.time, tick)
        rest = _survival(model, history, proposal.time, high)
        jump = torch.where(active, rest - proposal.rest, offspring)
        jump = jump.clamp(0, CRITICAL).reshape(S, particles)
        mean_jump = jump.mean(1, keepdim=True)
        offspring = mean_jump.expand(S, particles).reshape(-1)
        ahead = _log_count(tick.remaining, rest, offspring) - rest
        gain = log_rate - proposal.integral + ahead - proposal.log_density
        gain = gain - torch.where(tick.first, 0.0, expected)
        gain = torch.where(active, gain, 0.0)
        log_weights = log_weights + gain.reshape(S, particles)
        time = torch.where(active, proposal.time, time)
        expected = torch.where(active, ahead, expected)
        reached = torch.where(active, high, reached)
        paths[:, j] = time
        possible = torch.isfinite(log_weights).any(1, keepdim=True)
        log_weights = torch.where(possible, log_weights, 0.0)
        log_weights = log_weights - log_weights.logsumexp(1, keepdim=True)
        effective = (2 * log_weights).logsumexp(1).neg().exp()
        poor = effective < particles / 2
        if bool(poor.any()):
            rows = _resampled(log_weights, poor, random)
            history = select_rows(history, rows)
            paths = paths[rows]
            time = time[rows]
            expected = expected[rows]
            log_weights = torch.where(poor[:, None], 0.0, log_weights)
    silence = _survival(model, history, reached, ticks.stop[owner])
    log_weights = log_weights - silence.reshape(S, particles)
    chosen = torch.multinomial(log_weights.softmax(1), 1, generator=random)
    first = torch.arange(S) * particles
    return paths[first + chosen[:, 0]]


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
    times = left[:, None] + width[:, None] * middle
    total, own = _rates(model, history, times, mark)
    silence = _survival(model, history, reached, left)
    mass = width[:, None] * share * total
    before = mass.cumsum(1) - mass
    whole = mass.sum(1, keepdim=True)
    rest = whole - before - mass / 2
    later = _log_count(after[:, None], rest, offspring[:, None])
    own_mass = (own * share).clamp(min=1e-300)
    score = torch.log(own_mass) + later
    log_chance = score.log_softmax(1)
    cell = torch.multinomial(log_chance.exp(), 1, generator=random)

    def of_cell(values: Float[Tensor, "R C"]) -> Float[Tensor, "R 1"]:
        return values.gather(1, cell)

    inside = torch.rand(cell.shape, generator=random, dtype=torch.float64)
    begin = of_cell(edges[:-1].expand_as(mass))
    length = of_cell(share.expand_as(mass))
    place = (begin + length * inside)[:, 0]
    density = of_cell(log_chance - torch.log(share))[:, 0]
    passed = (of_cell(before) + of_cell(mass) * inside)[:, 0]
    return _Proposal(
        time=torch.minimum(left + width * place, right),
        log_density=density - torch.log(width),
        integral=silence + passed,
        rest=whole[:, 0] - passed,
    )


def _log_count(
    count: Int[Tensor, "*R"], mean: Float[Tensor, "*R"], offspring: Float[Tensor, "*R"]
) -> Float[Tensor, "*R"]:
    """log of mean (mean + eta k)^(k - 1) / k!, exp(-mean) left out: k events of a cluster process
    (Borel and Tanner's law).
    """
    base = mean.clamp(min=1e-300)
    with_offspring = base + offspring * count
    log_power = (count - 1) * torch.log(with_offspring)
    log_factorial = torch.lgamma(count + 1.0)
    found = torch.log(base) + log_power - log_factorial
    return torch.where(count > 0, found, 0.0)


def _survival(
    model: PointProcess, history: History, left: Float[Tensor, " R"], right: Float[Tensor, " R"]
) -> Float[Tensor, " R"]:
    """The integral of the total rate from ``left`` to ``right``: closed, or by a rule that is fine
    soon after ``left``.
    """
    end = torch.maximum(left, right)
    if model.has_closed_integral:
        last = history.lengths[:, None]
        exact = model.closed_integral(history, left[:, None], end[:, None], last)
        return exact.sum((1, 2)).double()
    x, w = gauss_legendre(3)
    panels = torch.tensor(PANELS, dtype=torch.float64)
    begins = panels[:-1, None]
    lengths = panels.diff()[:, None]
    nodes = (begins + lengths * x).flatten()
    weights = (lengths * w).flatten()
    width = end - left
    times = left[:, None] + width[:, None] * nodes
    rates = _total(model, history, times)
    return width * (rates * weights).sum(1)


def _rates(
    model: PointProcess, history: History, times: Float[Tensor, "R Q"], mark: Int[Tensor, " R"]
) -> tuple[Float[Tensor, "R Q"], Float[Tensor, "R Q"]]:
    """The total rate and that of ``mark`` from the last position; the total for both if there are
    many types.
    """
    marks = model.marks.count
    if marks == 1 or marks > MARKS:
        total = _total(model, history, times)
        return total, total
    last = history.lengths[:, None]
    log_rates = model.log_intensity(history, times[:, None], last)[:, 0]
    rates = log_rates.double().exp()
    of_mark = mark[:, None, None].expand(-1, times.shape[1], 1)
    own = rates.gather(2, of_mark)[..., 0]
    return rates.sum(-1), own


def _total(
    model: PointProcess, history: History, times: Float[Tensor, "R Q"]
) -> Float[Tensor, "R Q"]:
    last = history.lengths[:, None]
    total = model.total_intensity(history, times[:, None], last)
    return total[:, 0].double()


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
    own = logs[:, 0, 0].double().gather(1, mark[:, None])
    return own[:, 0]


def _extended(
    model: PointProcess, history: History, time: Float[Tensor, " R"], tick: _Column
) -> Any:
    if tick.place is None and tick.features is None:
        return model.extend(history, time, tick.mark, tick.active)
    return model.extend(
        history,
        time,
        tick.mark,
        tick.active,
        tick.place,
        tick.features,
    )


def _resampled(
    weights: Float[Tensor, "S P"], poor: Bool[Tensor, " S"], random: torch.Generator
) -> Int[Tensor, " R"]:
    """The row from which each particle goes on: systematic resampling of ``poor`` sets, all others
    as they are.
    """
    S, P = weights.shape
    offset = torch.rand(S, 1, generator=random, dtype=torch.float64)
    points = (torch.arange(P) + offset) / P
    reached = weights.softmax(1).cumsum(1)
    chosen = torch.searchsorted(reached.contiguous(), points.contiguous())
    chosen = chosen.clamp(max=P - 1)
    kept = torch.where(poor[:, None], chosen, torch.arange(P))
    first = P * torch.arange(S)[:, None]
    return (kept + first).reshape(-1)


def _rule(model: PointProcess) -> tuple[int, int, int]:
    if model.has_closed_integral:
        return FINE
    return ROUGH


def _edges(model: PointProcess) -> Float[Tensor, " C"]:
    """Ends of the cells of an interval, from 0 to 1, with the shortest cell at 0."""
    _, octaves, parts = _rule(model)
    cells = octaves * parts
    powers = torch.arange(-cells, 1, dtype=torch.float64) / parts
    zero = torch.zeros(1, dtype=torch.float64)
    return torch.cat([zero, torch.exp2(powers)])
