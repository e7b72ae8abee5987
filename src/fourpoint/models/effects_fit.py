r"""Penalised maximum likelihood of calendar and covariate effects: Poisson regression in continuous
time.

    maximise  sum_i log lambda_{m_i}(t_i) - sum_m int e(t) lambda_m(t) dt - penalty / 2,
    lambda_m(t) = exp(level_m + sum_k basis_k(t) weight_km)

The integral is a Gauss rule between the breakpoints of the terms. A spline is penalised by its
squared second differences, a trend by its squared first differences (a random walk, which
continues at its last level) and a step function by its squares; the strength of each penalty is
chosen by its marginal likelihood (the update of Wood and Fasiolo, 2017). Covariates and holidays
are not penalised. With several marks, a pooled fit comes first, and the weights of each mark are
shrunk towards it: those of splines and steps by a strength that is chosen in the same way, those of
covariates and holidays by a prior of standard deviation 1, which a few dozen events outweigh, so
that intervals of the rate ratios of a rare mark cover its own ratio and not the pooled one.

Standard errors are from the inverse of the penalised information.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import NDArray

from fourpoint.events import Context, Dataset
from fourpoint.models.effects import (
    HOLIDAYS,
    MONTHDAY,
    PERIODIC,
    TREND,
    WEEK,
    Effects,
    EffectsSpec,
    RateRatio,
)
from fourpoint.ops.quadrature import gauss_legendre

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NODES = 3  # of the Gauss rule on each piece
PIECE = 3600.0  # seconds between cuts of splines of the day and of the week
PIECE_TIMES = 100_000  # whose basis functions are found at once
MOST_NODES = 400_000  # beyond them pieces are drawn at random, with weights
MOST_MARKS = 40  # that have weights of their own
TINY = 1e-4  # of the ridge that makes level and terms identifiable
STEPS, ROUNDS = 30, 12  # of Newton's method, and of the choice of penalties
DENSE = 64  # columns of a design up to which it is not stored as a sparse matrix
DAY, FEWEST_DAYS = 86400.0, 7  # from which on held-out blocks of time are whole days
MOST_SAID = 20  # rate ratios in words
NORMAL = 1.959963984540054  # the 97.5% quantile of the normal distribution


@dataclass(frozen=True)
class EffectsFit:
    """The fit: log rates at weights of 0, (M,), weights (K, M), the penalised covariance of (level,
    weights) of every mark, or of the pooled fit, (M or 1, K + 1, K + 1), (level, weights) of the
    pooled fit, and what to say.
    """

    level: Float[ndarray, " M"]
    weight: Float[ndarray, "K M"]
    covariance: Float[ndarray, "C P P"]
    pooled: Float[ndarray, " P"]
    penalties: dict[str, float]
    rate_ratios: list[RateRatio]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Design:
    """Basis functions at events and at nodes of the integral, with their weights; the first column
    is 1.
    """

    events: Float[ndarray, "N P"]
    marks: ndarray
    nodes: Float[ndarray, "Q P"]
    weights: Float[ndarray, " Q"]


def fit_effects(
    data: Dataset,
    spec: EffectsSpec,
    factor: Float[ndarray, " S"] | None = None,
    least: Mapping[str, float] | None = None,
    start: EffectsFit | None = None,
) -> EffectsFit:
    """Fit levels and weights of ``spec`` to ``data``; ``factor`` multiplies the rate of every
    sequence, and ``least`` are lower bounds of the strengths of penalties, by term. A fit of the
    same ``spec`` to similar data is a good ``start``.
    """
    design = integral_design(data, spec, factor, merged=True)
    M = data.marks.count
    sums = event_sums(data, spec)
    pooled = _fit(sums.sum(0), design, _blocks(spec, least), None, start=start)
    counts = sums[:, 0]
    share = np.maximum(counts, 0.5) / max(1.0, counts.sum())
    level = pooled.point[0] + np.log(share)
    weight = np.repeat(pooled.point[1:, None], M, 1)
    covariance = pooled.covariance[None]
    own = 1 < M <= MOST_MARKS
    if own:
        covariance = _fit_each_mark(spec, design, sums, pooled, level, weight)
    level, weight = centred(spec, design, level, weight)
    if own:
        ratios = rate_ratios(spec, weight, covariance, tuple(data.marks.names))
    else:
        ratios = rate_ratios(spec, weight[:, :1], covariance, ("",))
    return EffectsFit(
        level=level,
        weight=weight,
        covariance=covariance,
        pooled=pooled.point,
        penalties=pooled.penalties,
        rate_ratios=ratios,
        notes=ratio_notes(ratios),
    )


def _fit_each_mark(
    spec: EffectsSpec,
    design: Design,
    sums: Float[ndarray, "M P"],
    pooled: _Found,
    level: Float[ndarray, " M"],
    weight: Float[ndarray, "K M"],
) -> Float[ndarray, "M P P"]:
    """Replace ``level`` and ``weight``, in place, by those of every mark, shrunk to the pooled
    ones; the covariances.
    """
    shrunk = _shrunk(spec)
    deviation = _deviation(shrunk)
    # What is not known of the pooled weights is not known of those shrunk to them either.
    near = np.append(False, shrunk)
    inherited = np.where(np.outer(near, near), pooled.covariance, 0.0)
    covariances = []
    for m in range(len(sums)):
        if sums[m, 0] == 0:
            covariances.append(pooled.covariance)
            continue
        around = np.append(level[m], pooled.point[1:])
        found = _fit(sums[m], design, deviation, around, ~shrunk)
        level[m] = found.point[0]
        weight[:, m] = found.point[1:]
        covariances.append(found.covariance + inherited)
    return np.stack(covariances)


# ---------------------------------------------------------------------- the design


def event_sums(data: Dataset, spec: EffectsSpec) -> Float[ndarray, "M P"]:
    """The sums of 1 and of every basis function over the scored events of each mark."""
    effects = Effects(spec, 1, torch.float64)
    context = _context_of(data)
    kept, owner = _scored_events(data)
    width = effects.size + 1
    sums = np.zeros(data.marks.count * width)
    for piece in _pieces(len(kept)):
        some = kept[piece]
        own = context.at_each(owner[piece], data.times[some])
        times = torch.from_numpy(data.times[some].copy())
        place = data.mark_ids[some] * width
        sums += np.bincount(place, minlength=len(sums))
        if spec.calendar:
            local = effects.local_seconds(times, own)
            index, share = effects.active(local)
            flat = (place[:, None] + 1 + index.numpy()).ravel()
            sums += np.bincount(flat, share.numpy().ravel(), len(sums))
        if spec.covariates:
            values = effects.covariates(times, own).numpy()
            columns = 1 + effects.fixed + np.arange(values.shape[1])
            flat = (place[:, None] + columns).ravel()
            sums += np.bincount(flat, values.ravel(), len(sums))
    return sums.reshape(-1, width)


def integral_design(
    data: Dataset,
    spec: EffectsSpec,
    factor: Float[ndarray, " S"] | None = None,
    *,
    merged: bool = False,
) -> Design:
    """The basis at nodes of the integral over scored and exposed time, without events. Where
    ``merged``, nodes of one time of the week are one, with the sum of their weights, if nothing but
    rhythms of day and week matters.
    """
    effects = Effects(spec, 1, torch.float64)
    context = _context_of(data)
    times, weights, owner = integral_nodes(data, effects, factor)
    if merged and _weekly(spec):
        times, weights, owner = _merged(effects, context, times, weights, owner)
    return Design(
        events=np.zeros((0, effects.size + 1)),
        marks=np.zeros(0, dtype=np.int64),
        nodes=_rows(effects, context, times, owner),
        weights=weights,
    )


def _context_of(data: Dataset) -> Context:
    """The context of ``data``, empty where it has none."""
    return data.context or Context()


def _scored_events(data: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which events are scored, and the sequence of each of them."""
    row = np.repeat(np.arange(len(data)), data.lengths)
    kept = np.flatnonzero(data.scored)
    return kept, row[kept]


def _pieces(count: int) -> Iterator[slice]:
    """Slices of at most PIECE_TIMES that cover ``count`` times."""
    for first in range(0, count, PIECE_TIMES):
        yield slice(first, first + PIECE_TIMES)


def _weekly(spec: EffectsSpec) -> bool:
    """Whether the effects repeat themselves every week."""
    if spec.covariates or not spec.calendar:
        return False
    return all(name in PERIODIC and PERIODIC[name].period <= WEEK for name in spec.calendar)


def _merged(
    effects: Effects,
    context: Context,
    times: Float[ndarray, " Q"],
    weights: Float[ndarray, " Q"],
    owner: ndarray,
) -> tuple[Float[ndarray, " U"], Float[ndarray, " U"], ndarray]:
    """One node for each local time of the week, to a thousandth of a second."""
    phase = _week_phases(effects, context, times, owner)
    _, shown, which = np.unique(phase, return_index=True, return_inverse=True)
    summed = np.bincount(which, weights)
    return times[shown], summed, owner[shown]


def _week_phases(
    effects: Effects,
    context: Context,
    times: Float[ndarray, " Q"],
    owner: ndarray,
) -> ndarray:
    """Local times of the week, in whole milliseconds."""
    local = _local_seconds(effects, context, times, owner)
    phase = np.remainder(local, WEEK)
    return np.round(phase * 1e3).astype(np.int64)


def _local_days(
    effects: Effects,
    context: Context,
    times: Float[ndarray, " Q"],
    owner: ndarray,
) -> ndarray:
    """Local days, numbered."""
    local = _local_seconds(effects, context, times, owner)
    return np.floor(local / DAY).astype(np.int64)


def _local_seconds(
    effects: Effects,
    context: Context,
    times: Float[ndarray, " Q"],
    owner: ndarray,
) -> Float[ndarray, " Q"]:
    """Seconds of local time at ``times`` of the sequences ``owner``."""
    local = np.zeros(len(times))
    for piece in _pieces(len(times)):
        own = context.at_each(owner[piece], times[piece])
        at = torch.from_numpy(times[piece].copy())
        local[piece] = effects.local_seconds(at, own).numpy()
    return local


def sequence_scores(
    data: Dataset,
    effects: Effects,
    theta: Float[ndarray, " P"],
    factor: Float[ndarray, " S"],
) -> Float[ndarray, "S P"]:
    """The gradient of every sequence's log-likelihood in (level, weights), all marks pooled, with
    these factors of its rate.
    """
    context = _context_of(data)
    kept, owner = _scored_events(data)
    scores = np.zeros((len(data), len(theta)))
    events = _rows(effects, context, data.times[kept], owner)
    np.add.at(scores, owner, events)
    times, weights, owner = integral_nodes(data, effects, factor, shared=False)
    nodes = _rows(effects, context, times, owner)
    mass = weights * np.exp(np.minimum(nodes @ theta, 700.0))
    np.add.at(scores, owner, -mass[:, None] * nodes)
    return scores


def centred(
    spec: EffectsSpec,
    design: Design,
    level: Float[ndarray, " M"],
    weight: Float[ndarray, "K M"],
) -> tuple[Float[ndarray, " M"], Float[ndarray, "K M"]]:
    """The same rates, with levels that are the logarithms of the mean rates over the exposed time.

    The basis functions of a term of the calendar sum to 1, so that a constant can be moved from
    them to the level. Without such a term nothing changes.
    """
    terms = [name for name in spec.calendar if not name.startswith(HOLIDAYS)]
    if not terms or not len(design.weights):
        return level, weight
    log_factor = design.nodes[:, 1:] @ weight
    factor = np.exp(np.minimum(log_factor, 700.0))
    mean = design.weights @ factor / design.weights.sum()
    shift = np.log(mean)
    moved = weight.copy()
    moved[spec.columns[terms[0]]] -= shift
    return level + shift, moved


def penalty_of(spec: EffectsSpec, penalties: dict[str, float]) -> Float[ndarray, "P P"]:
    """The matrix of the quadratic penalty of (level, weights) with these strengths."""
    ridge = np.full(1 + _size(spec), TINY)
    ridge[0] = 0.0
    return _penalty(ridge, _blocks(spec), penalties)


def _size(spec: EffectsSpec) -> int:
    """The number of basis functions of all terms."""
    return sum(part.stop - part.start for part in spec.columns.values())


def _penalty(
    ridge: Float[ndarray, " P"],
    blocks: list[_Block],
    strength: dict[str, float],
) -> Float[ndarray, "P P"]:
    """The matrix of the quadratic penalty: a ridge, and a block for each term."""
    penalty = np.diag(ridge)
    for block in blocks:
        own = block.columns
        penalty[own, own] += strength[block.name] * block.matrix
    return penalty


def _rows(
    effects: Effects,
    context: Context,
    times: Float[ndarray, " T"],
    rows: ndarray,
) -> Float[ndarray, "T P"]:
    """1 and the basis at ``times`` of the sequences ``rows``."""
    parts = [np.zeros((0, effects.size + 1))]
    for piece in _pieces(len(times)):
        own = context.at_each(rows[piece], times[piece])
        at = torch.from_numpy(times[piece].copy())
        basis = effects.basis(at, own).numpy()
        level = np.ones((len(basis), 1))
        parts.append(np.concatenate([level, basis], 1))
    return np.concatenate(parts)


def integral_nodes(
    data: Dataset,
    effects: Effects,
    multiple: Float[ndarray, " S"] | None = None,
    *,
    shared: bool = True,
) -> tuple[Float[ndarray, " Q"], Float[ndarray, " Q"], ndarray]:
    """Times, weights and sequences of the nodes of the integral over scored, exposed time.

    Sequences with the same origin and the same covariates share their nodes, unless not ``shared``.
    """
    context = data.context
    left, right, factor, owner = exposed_segments(data)
    if multiple is not None:
        factor = factor * multiple[owner]
    group = alike(data) if shared else np.arange(len(data))
    times, weights, rows = [], [], []
    for own in by_group(group[owner]):
        row = int(owner[own[0]])
        begins = left[own]
        ends = right[own]
        cuts = fit_cuts(effects, context, row, float(begins.min()), float(ends.max()))
        nodes, mass = nodes_of_group(begins, ends, factor[own], cuts)
        times.append(nodes)
        weights.append(mass)
        rows.append(np.full(nodes.size, row))
    return _thinned(
        np.concatenate(times),
        np.concatenate(weights),
        np.concatenate(rows),
    )


def by_group(group: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The places of the members of every group."""
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(group.max(initial=0) + 2))
    for first, last in itertools.pairwise(bounds.tolist()):
        if last > first:
            yield order[first:last]


def nodes_of_group(
    begins: Float[ndarray, " S"],
    ends: Float[ndarray, " S"],
    factors: Float[ndarray, " S"],
    cuts: Float[ndarray, " J"],
) -> tuple[Float[ndarray, " Q"], Float[ndarray, " Q"]]:
    """Nodes of a Gauss rule between ``cuts`` and ends of segments, and weights that are the sum of
    those of all segments: their factors are added up before nodes are placed.
    """
    x, w = (part.numpy() for part in gauss_legendre(NODES))
    edges = np.unique(np.concatenate([begins, ends, cuts]))
    change = np.zeros(len(edges))
    np.add.at(change, np.searchsorted(edges, begins), factors)
    np.add.at(change, np.searchsorted(edges, ends), -factors)
    level = np.cumsum(change)[:-1]
    full = level > 1e-9 * max(1e-300, float(factors.max()))
    start = edges[:-1][full]
    width = np.diff(edges)[full]
    nodes = start[:, None] + width[:, None] * x
    mass = (level[full] * width)[:, None] * w
    return nodes.ravel(), mass.ravel()


def exposed_segments(
    data: Dataset,
) -> tuple[Float[ndarray, " S"], Float[ndarray, " S"], Float[ndarray, " S"], ndarray]:
    """Left and right ends of segments of scored time with constant, positive exposure, the
    exposure, and the sequence of each.
    """
    context = data.context
    low = _scored_starts(data)
    if context is None or context.exposure is None:
        rows = np.arange(len(data))
        return low, data.stops, np.ones(len(data)), rows
    steps = context.exposure
    firsts = steps.offsets[:-1]
    lasts = steps.offsets[1:] - 1
    row = np.repeat(np.arange(len(data)), np.diff(steps.offsets))
    begin = steps.times.copy()
    begin[firsts] = -np.inf
    end = np.append(steps.times[1:], np.inf)
    end[lasts] = np.inf
    left = np.maximum(begin, low[row])
    right = np.minimum(end, data.stops[row])
    exposure = steps.values[:, 0]
    full = (right > left) & (exposure > 0)
    return left[full], right[full], exposure[full], row[full]


def _scored_starts(data: Dataset) -> Float[ndarray, " S"]:
    """When scoring of every sequence begins."""
    if data.context is None or data.context.scored_from is None:
        return data.starts
    return np.maximum(data.starts, data.context.scored_from)


def alike(data: Dataset) -> NDArray[np.int64]:
    """A number for each sequence, the same for those with the same origin and covariates."""
    context = data.context
    found = np.zeros(len(data), dtype=np.int64)
    if context is None:
        return found
    numbers: dict[tuple[float, bytes, bytes], int] = {}
    steps = context.covariates
    for i in range(len(data)):
        origin = 0.0
        if context.origin is not None:
            origin = float(context.origin[i])
        times = values = b""
        if steps is not None:
            own = steps.row(i)
            times = steps.times[own].tobytes()
            values = steps.values[own].tobytes()
        key = (origin, times, values)
        found[i] = numbers.setdefault(key, len(numbers))
    return found


def fit_cuts(
    effects: Effects,
    context: Context | None,
    row: int,
    low: float,
    high: float,
) -> Float[ndarray, " J"]:
    """Cuts of the integral of a fit over one sequence, inside (low, high)."""
    if context is None:
        return np.zeros(0)
    own = context.batch(np.array([row]))
    first = torch.tensor([low], dtype=torch.float64)
    last = torch.tensor([high], dtype=torch.float64)
    cuts = effects.cuts(first, last, own, PIECE)[0].numpy()
    return cuts[(cuts > low) & (cuts < high)]


def _thinned(
    times: Float[ndarray, " Q"],
    weights: Float[ndarray, " Q"],
    rows: ndarray,
) -> tuple[Float[ndarray, " Q"], Float[ndarray, " Q"], ndarray]:
    """All nodes, or about MOST_NODES of them drawn at random with larger weights."""
    if len(times) <= MOST_NODES:
        return times, weights, rows
    share = MOST_NODES / len(times)
    random = np.random.default_rng(0)
    kept = random.random(len(times)) < share
    return times[kept], weights[kept] / share, rows[kept]


# ---------------------------------------------------------------------- held-out scores


@dataclass(frozen=True)
class Blocks:
    """A design cut into blocks of time: the block of every event and of every node, and the times
    of the week of nodes, numbered, if there are dates.
    """

    design: Design
    of_events: ndarray
    of_nodes: ndarray
    count: int
    phase: ndarray | None

    def part(self, chosen: ndarray, columns: ndarray, *, weekly: bool) -> Design:
        """The design of the blocks for which ``chosen`` (count,) is true, with these columns. Where
        these are ``weekly``, nodes of one time of the week are one, with the sum of their weights.
        """
        d = self.design
        events = chosen[self.of_events]
        nodes = np.flatnonzero(chosen[self.of_nodes])
        weights = d.weights[nodes]
        if weekly and self.phase is not None:
            phase = self.phase[nodes]
            _, shown, which = np.unique(phase, return_index=True, return_inverse=True)
            weights = np.bincount(which, weights)
            nodes = nodes[shown]
        return Design(
            events=d.events[events][:, columns],
            marks=d.marks[events],
            nodes=d.nodes[nodes][:, columns],
            weights=weights,
        )

    def scores(self, point: Float[ndarray, " P"], columns: ndarray) -> Float[ndarray, " count"]:
        """The log-likelihood of every block, all marks pooled."""
        d = self.design
        log_rates = d.events[:, columns] @ point
        log_rates_at_nodes = d.nodes[:, columns] @ point
        expected = d.weights * np.exp(np.minimum(log_rates_at_nodes, 700.0))
        gained = np.bincount(self.of_events, log_rates, self.count)
        lost = np.bincount(self.of_nodes, expected, self.count)
        return gained - lost


def blocks_of(data: Dataset, spec: EffectsSpec, count: int) -> Blocks:
    """The design of ``data`` in blocks of time: ``count`` of equal length, or at most so many of
    whole local days where the data have dates and cover FEWEST_DAYS or more.

    The level of a day is then never known from another part of the same day: terms such as the day
    of the week would otherwise gain on held-out blocks where only the levels of days differ.
    """
    effects = Effects(spec, 1, torch.float64)
    context = _context_of(data)
    node_times, weights, node_owner = integral_nodes(data, effects)
    kept, owner = _scored_events(data)
    times = data.times[kept]
    design = Design(
        events=_rows(effects, context, times, owner),
        marks=data.mark_ids[kept],
        nodes=_rows(effects, context, node_times, node_owner),
        weights=weights,
    )
    origin = np.zeros(len(data)) if context.origin is None else context.origin
    first = float(np.min(origin + _scored_starts(data) * spec.seconds))
    last = float(np.max(origin + data.stops * spec.seconds))
    length = last - first
    if context.origin is not None and length >= FEWEST_DAYS * DAY:
        days = _local_days(effects, context, times, owner)
        node_days = _local_days(effects, context, node_times, node_owner)
        begin = int(node_days.min())
        covered = int(node_days.max()) + 1 - begin
        share = (days - begin) / covered
        node_share = (node_days - begin) / covered
        count = min(count, covered)
    else:
        share = (origin[owner] + times * spec.seconds - first) / length
        node_share = (origin[node_owner] + node_times * spec.seconds - first) / length
    phase = None
    if context.origin is not None and spec.calendar:
        phase = _week_phases(effects, context, node_times, node_owner)
    return Blocks(
        design=design,
        of_events=_block_numbers(share, count),
        of_nodes=_block_numbers(node_share, count),
        count=count,
        phase=phase,
    )


def _block_numbers(share: Float[ndarray, " T"], count: int) -> NDArray[np.int64]:
    """The block of times at these shares of the observed time."""
    number = np.floor(share * count + 1e-9).astype(np.int64)
    return np.clip(number, 0, count - 1)


def held_out_scores(
    blocks: Blocks,
    whole: EffectsSpec,
    spec: EffectsSpec,
    folds: int,
    other: Blocks | None = None,
) -> Float[ndarray, " count"]:
    """Scores of every block under a fit to the blocks of other folds, and those of ``other`` blocks
    under a fit to all. The design is that of ``whole``, of which ``spec`` has a part.
    """
    parts = [np.zeros(1, dtype=np.int64)]
    for own in _part_of(whole, spec).values():
        parts.append(1 + np.arange(own.start, own.stop))
    columns = np.concatenate(parts)
    penalties = _blocks(spec)
    weekly = _weekly(spec)
    number = np.arange(blocks.count)
    scores = np.zeros(blocks.count)
    for fold in range(folds):
        held = number % folds == fold
        rest = blocks.part(~held, columns, weekly=weekly)
        if not len(rest.events):
            continue
        found = _fit(rest.events.sum(0), rest, penalties, None)
        scores[held] = blocks.scores(found.point, columns)[held]
    if other is None:
        return scores
    everything = blocks.part(number >= 0, columns, weekly=weekly)
    found = _fit(everything.events.sum(0), everything, penalties, None)
    return np.concatenate([scores, other.scores(found.point, columns)])


def _part_of(whole: EffectsSpec, spec: EffectsSpec) -> dict[str, slice]:
    """The columns of the terms of ``spec`` in the design of ``whole``."""
    columns = whole.columns
    return {name: columns[name] for name in spec.columns}


# ---------------------------------------------------------------------- penalties


@dataclass(frozen=True)
class _Block:
    """The penalty of one term: its columns and the matrix of its quadratic form, with its rank."""

    name: str
    columns: slice
    matrix: Float[ndarray, "K K"]
    rank: int
    least: float = 1e-3  # the lowest strength


def _blocks(spec: EffectsSpec, least: Mapping[str, float] | None = None) -> list[_Block]:
    found = []
    bounds = {} if least is None else least
    for name, columns in spec.columns.items():
        if name in spec.covariates or name.startswith(HOLIDAYS):
            continue
        size = columns.stop - columns.start
        identity = np.eye(size)
        if name == TREND:
            first = np.diff(identity, axis=0)
            matrix = first.T @ first
        elif name != MONTHDAY and PERIODIC[name].smooth:
            second = np.roll(identity, 1, 1) - 2 * identity + np.roll(identity, -1, 1)
            matrix = second.T @ second
        else:
            matrix = identity - 1 / size
        block = _Block(
            name=name,
            columns=slice(1 + columns.start, 1 + columns.stop),
            matrix=matrix,
            rank=size - 1,
        )
        if name in bounds:
            block = replace(block, least=bounds[name])
        found.append(block)
    return found


def _shrunk(spec: EffectsSpec) -> NDArray[np.bool_]:
    """Which weights are of splines and steps; (K,). The others are reported as rate ratios."""
    found = np.ones(_size(spec), dtype=bool)
    for name, columns in spec.columns.items():
        if name in spec.covariates or name.startswith(HOLIDAYS):
            found[columns] = False
    return found


def _deviation(shrunk: NDArray[np.bool_]) -> list[_Block]:
    """The penalty of deviations of a mark's splines and steps from the pooled ones."""
    if not shrunk.any():
        return []
    block = _Block(
        name="deviation",
        columns=slice(1, 1 + len(shrunk)),
        matrix=np.diag(shrunk.astype(float)),
        rank=int(shrunk.sum()),
    )
    return [block]


@dataclass(frozen=True)
class _Found:
    point: Float[ndarray, " P"]
    covariance: Float[ndarray, "P P"]
    penalties: dict[str, float]


def _fit(
    sums: Float[ndarray, " P"],
    design: Design,
    blocks: list[_Block],
    around: Float[ndarray, " P"] | None,
    weak: NDArray[np.bool_] | None = None,
    start: EffectsFit | None = None,
) -> _Found:
    """Newton's method and the update of penalties in turn. ``sums`` are those of the basis over
    events; with ``around`` deviations from it are penalised, those of the ``weak`` columns by a
    prior of standard deviation 1. Begins at the pooled weights and penalties of ``start``.
    """
    size = len(sums)
    ridge = np.full(size, TINY)
    ridge[0] = 0.0
    if weak is not None:
        ridge[1:][weak] = 1.0
    centre = np.zeros(size) if around is None else around
    point = centre.copy()
    strength = {block.name: max(10.0, block.least) for block in blocks}
    if start is not None:
        point = start.pooled
        strength = dict(start.penalties)
    elif around is None:
        events = max(sums[0], 0.5)
        exposure = max(design.weights.sum(), 1e-300)
        point[0] = np.log(events / exposure)
    for _ in range(ROUNDS):
        penalty = _penalty(ridge, blocks, strength)
        point, information = _newton(sums, design, penalty, centre, point)
        covariance = np.linalg.inv(information + penalty)
        change = 0.0
        for block in blocks:
            before = strength[block.name]
            after = _updated_strength(block, before, point - centre, covariance)
            strength[block.name] = after
            change = max(change, abs(np.log(after / before)))
        if change < 0.1:
            break
    return _Found(point, covariance, strength)


def _updated_strength(
    block: _Block,
    strength: float,
    deviation: Float[ndarray, " P"],
    covariance: Float[ndarray, "P P"],
) -> float:
    """The update of Wood and Fasiolo: unused degrees of freedom over the squared deviation."""
    own = block.columns
    off = deviation[own]
    squared = float(off @ block.matrix @ off)
    used = float(np.sum(covariance[own, own] * block.matrix) * strength)
    unused = max(block.rank - used, 1e-3)
    return float(np.clip(unused / max(squared, 1e-8), block.least, 1e8))


def _newton(
    sums: Float[ndarray, " P"],
    design: Design,
    penalty: Float[ndarray, "P P"],
    centre: Float[ndarray, " P"],
    point: Float[ndarray, " P"],
) -> tuple[Float[ndarray, " P"], Float[ndarray, "P P"]]:
    """The maximum of the penalised likelihood, and the information there."""
    from scipy.sparse import csr_array

    # At one time few of the basis functions of many terms are not 0.
    nodes = csr_array(design.nodes) if len(sums) > DENSE else design.nodes

    def value(at: Float[ndarray, " P"]) -> tuple[float, Float[ndarray, " Q"]]:
        log_rates = np.minimum(nodes @ at, 700.0)
        rates = design.weights * np.exp(log_rates)
        off = at - centre
        log_likelihood = sums @ at - rates.sum()
        return float(log_likelihood - off @ penalty @ off / 2), rates

    here, rates = value(point)
    for _ in range(STEPS):
        gradient = sums - nodes.T @ rates - penalty @ (point - centre)
        information = _information(nodes, rates)
        step = np.linalg.solve(information + penalty, gradient)
        gain = float(gradient @ step)
        length = 1.0
        while True:
            there, new_rates = value(point + length * step)
            enough = here + 1e-4 * length * gain
            if there >= enough or length < 1e-6:
                break
            length /= 2
        if length < 1e-6:
            break
        point = point + length * step
        here = there
        rates = new_rates
        if gain < 1e-8 * (1 + abs(here)):
            break
    return point, _information(nodes, rates)


def _information(
    nodes: Float[ndarray, "Q P"] | csr_array,
    rates: Float[ndarray, " Q"],
) -> Float[ndarray, "P P"]:
    """The sum over nodes of rate times the outer product of the basis with itself."""
    if isinstance(nodes, np.ndarray):
        weighted = nodes * rates[:, None]
        return weighted.T @ nodes
    weighted = nodes.multiply(rates[:, None])
    return (nodes.T @ weighted).toarray()


# ---------------------------------------------------------------------- what is reported


def ratio_notes(ratios: list[RateRatio]) -> list[str]:
    """Rate ratios in words, and how many are left out of a long list."""
    notes = [f"rate ratio of {ratio}" for ratio in ratios[:MOST_SAID]]
    left_out = len(ratios) - MOST_SAID
    if left_out > 0:
        notes.append(f"{left_out} rate ratios more are in model.rate_ratios")
    return notes


def rate_ratios(
    spec: EffectsSpec,
    weight: Float[ndarray, "K C"],
    covariance: Float[ndarray, "C P P"],
    names: tuple[str, ...],
) -> list[RateRatio]:
    """Rate ratios of holidays and covariates, with 95% intervals."""
    found = []
    scales = dict(zip(spec.covariates, spec.scale, strict=True))
    holidays = [name for name in spec.calendar if name.startswith(HOLIDAYS)]
    for name in (*holidays, *spec.covariates):
        k = spec.columns[name].start
        scale = scales.get(name, 1.0)
        for c, mark in enumerate(names):
            middle = weight[k, c] / scale
            variance = covariance[c, 1 + k, 1 + k]
            error = NORMAL * np.sqrt(variance) / scale
            ratios = np.exp([middle, middle - error, middle + error])
            ratio, low, high = (float(r) for r in ratios)
            found.append(RateRatio(name, str(mark), ratio, low, high))
    return found
