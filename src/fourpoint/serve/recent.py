r"""What the last hours looked like under a model: rates, expected counts, goodness of fit, and what
the model has learned; plain functions of events and a model, for the dashboard.

The rate of many entities is the sum of theirs. Expected counts are integrals of it,

    E_b = int over bin b of sum over entities of lambda(t | events before t) dt,

by the trapezoidal rule on a grid that has both sides of every event among its points, since rates
jump there. The verdict lays the rescaled days of all entities end to end (`ops.rescaling`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Ordered
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.errors import UserError
from fourpoint.events import Context, Dataset, Sequence
from fourpoint.inference.forecasting import follow
from fourpoint.inference.goodness import compensators, with_exact_times
from fourpoint.inference.sampling import eval_mode, exposed_rates, remember, sample
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import HOLIDAYS, MONTHDAY, PERIODIC, TREND, Effects
from fourpoint.ops import rescaling

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
AT_ONCE = 64  # entities whose rates are computed together
MOST_VALUES = 400_000  # rates of one picture; beyond that the grid leaves events out
FEWEST_EVENTS = 20  # of a verdict
LEVEL = 0.01  # p-value below which the events deviate from the model
HISTOGRAM = 10  # bars of the rescaled gaps
LAGS = 120  # points of a kernel
REACH = 0.97  # share of an event's effect that the kernel's picture contains
MOST_CURVES = 8
MOST_AHEAD = 16  # entities whose futures are sampled together
BAND = 100  # futures whose rates are computed


class Track(NamedTuple):
    """The events of one entity: times and marks, in order; ``begin`` is when its observation
    began, and ``shift`` is taken off all times before the model sees them (the start of its window,
    for a model of windows of the calendar). ``features`` (N, F) are those of the events, if any.
    """

    entity: str
    times: Floats
    marks: Integers
    begin: float = 0.0
    shift: float = 0.0
    features: Floats | None = None


@dataclass(frozen=True)
class Picture:
    """Rates (Q, M) at ``times`` (Q,), events observed and expected in the bins with these edges,
    and the number of events per mark (M,).
    """

    times: Floats
    rates: Floats
    edges: Floats
    observed: Integers
    expected: Floats
    counts: Integers


@dataclass(frozen=True)
class Outlook:
    """Sampled futures: the total rates of the first 100 at ``times`` (Q,), (100, Q), and the events
    per mark of all until the horizon, (P, M).
    """

    times: Floats
    rates: Floats
    counts: Integers


def picture(
    model: PointProcess,
    tracks: Ordered[Track],
    start: float,
    now: float,
    *,
    context: Context | None = None,
    points: int = 240,
    bins: int = 24,
) -> Picture:
    """The rates of all tracks together from ``start`` to ``now``, and counts in ``bins`` equal
    intervals; times are in the model's unit.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> model = Hawkes(baseline=1.0, branching=0.5, decay=2.0)
    >>> tracks = [Track("a", np.array([1.0, 3.0]), np.zeros(2, dtype=np.int64))]
    >>> seen = picture(model, tracks, 0.0, 4.0, bins=2)
    >>> seen.observed.tolist(), seen.expected.round(3).tolist()
    ([1, 1], [2.432, 2.499])
    """
    M = model.marks.count
    uniform = np.linspace(start, now, points + 1)
    edges = np.linspace(start, now, bins + 1)
    times = np.concatenate([np.zeros(0), *(track.times for track in tracks)])
    none = np.zeros(0, dtype=np.int64)
    marks = np.concatenate([none, *(track.marks for track in tracks)])
    inside = (times >= start) & (times <= now)
    times = times[inside]
    # An event at the very time counts, so that the rate now includes the latest event.
    after = np.nextafter(uniform, np.inf)
    grid = np.union1d(after, edges)
    jumps = np.unique(times)
    values = (len(grid) + 2 * len(jumps)) * max(1, len(tracks)) * M
    if values <= MOST_VALUES:
        after_jumps = np.nextafter(jumps, np.inf)
        grid = np.union1d(grid, np.concatenate([jumps, after_jumps]))
    rates = rates_at(model, tracks, grid, context)
    areas = trapezoids(grid, rates.sum(1))
    integral = _cumulative(areas)
    return Picture(
        times=uniform,
        rates=rates[np.searchsorted(grid, after)],
        edges=edges,
        observed=np.histogram(times, edges)[0],
        expected=np.diff(np.interp(edges, grid, integral)),
        counts=np.bincount(marks[inside], minlength=M),
    )


def averaged(
    entities: Ordered[str],
    times: Floats,
    marks: Integers,
    gaps: Floats,
    count: int,
    start: float,
    now: float,
    *,
    points: int = 240,
    bins: int = 24,
) -> Picture:
    """The same as :func:`picture` from the scores alone, for many entities and any model: the rate
    of an entity between two of its events is the rescaled gap over the gap, which has the right
    integral. After its last event the rate stays what it was; the rates of the ``count`` marks have
    the proportions of all events.

    >>> seen = averaged(
    ...     ["a"] * 3,
    ...     np.array([0.0, 1.0, 3.0]),
    ...     np.zeros(3, np.int64),
    ...     np.ones(3),
    ...     1,
    ...     0.0,
    ...     4.0,
    ...     bins=2,
    ...     points=4,
    ... )
    >>> seen.expected.tolist(), seen.rates[:, 0].tolist()
    ([1.5, 1.0], [1.0, 1.0, 0.5, 0.5, 0.5])
    """
    last: dict[str, int] = {}
    before = np.full(len(times), -1)
    for i, name in enumerate(entities):
        before[i] = last.get(name, -1)
        last[name] = i
    own = np.flatnonzero(before >= 0)
    later = times[own] > times[before[own]]
    own = own[later]
    begins = times[before[own]]
    ends = times[own].copy()
    rate = gaps[own] / (ends - begins)
    latest = np.isin(own, list(last.values()))
    ends[latest] = now
    knots, level = _sum_of_steps(begins, ends, rate)
    uniform = np.linspace(start, now, points + 1)
    step = np.searchsorted(knots, uniform, side="left") - 1
    step[0] = np.searchsorted(knots, uniform[0], side="right") - 1
    total = level[step]
    edges = np.linspace(start, now, bins + 1)
    steps = knots[(knots > start) & (knots < now)]
    bounds = np.union1d(edges, steps)
    middle = (bounds[1:] + bounds[:-1]) / 2
    step = np.searchsorted(knots, middle) - 1
    integral = _cumulative(np.diff(bounds) * level[step])
    inside = (times >= start) & (times <= now)
    shares = np.bincount(marks, minlength=count) / max(1, len(marks))
    return Picture(
        times=uniform,
        rates=total[:, None] * shares,
        edges=edges,
        observed=np.histogram(times[inside], edges)[0],
        expected=np.diff(np.interp(edges, bounds, integral)),
        counts=np.bincount(marks[inside], minlength=count),
    )


def _sum_of_steps(begins: Floats, ends: Floats, rates: Floats) -> tuple[Floats, Floats]:
    """The sum of rates that are constant from their begins to their ends: the places where it
    changes, after -inf, and its level from each of them on.
    """
    changes = np.concatenate([begins, ends])
    order = np.argsort(changes, kind="stable")
    knots = np.concatenate([[-np.inf], changes[order]])
    jumps = np.concatenate([rates, -rates])
    level = _cumulative(jumps[order])
    return knots, np.maximum(level, 0.0)


def _cumulative(values: Floats) -> Floats:
    """Cumulative sums from 0 on."""
    return np.concatenate([[0.0], np.cumsum(values)])


def trapezoids(times: Floats, values: Floats) -> Floats:
    """The integrals of a function between neighbouring ``times`` by the trapezoidal rule."""
    return np.diff(times, axis=0) * (values[1:] + values[:-1]) / 2


def rates_at(
    model: PointProcess, tracks: Ordered[Track], times: Floats, context: Context | None = None
) -> Floats:
    """The sum of the tracks' intensities at ``times``, per mark: (Q, M). Each is given the events
    strictly before, and 0 before its observation began.
    """
    total = np.zeros((len(times), model.marks.count))
    for rates in each_rate(model, tracks, times, context):
        total += rates
    return total


def each_rate(
    model: PointProcess, tracks: Ordered[Track], times: Floats, context: Context | None = None
) -> Iterator[Floats]:
    """The intensity of each track at ``times``, per mark: (Q, M)."""
    stop = float(times[-1])
    for first in range(0, len(tracks), AT_ONCE):
        some = tracks[first : first + AT_ONCE]
        sequences = [_sequence(model, track, stop, context) for track in some]
        data = Dataset.from_sequences(sequences)
        shifts = np.array([[track.shift] for track in some])
        begins = np.array([[track.begin] for track in some])
        asked = torch.from_numpy(np.maximum(times, begins) - shifts)
        batch = data.batch(np.arange(len(some)))
        with eval_mode(model), torch.no_grad():
            history = model.encode(batch)
            rates = model.intensity(history, asked)
            rates = exposed_rates(history, asked, rates).double()
        observed = times >= begins
        yield from np.where(observed[..., None], rates.numpy(), 0.0)


def _sequence(
    model: PointProcess,
    track: Track,
    stop: float,
    context: Context | None,
    scored_from: float | None = None,
) -> Sequence:
    """The events of a track before ``stop``, as the model sees them."""
    # A window is not empty, and an event may be at its stop.
    end = max(np.nextafter(stop, np.inf), track.begin + 1e-6)
    start = min(track.begin, float(track.times[:1].min(initial=np.inf)))
    kept = track.times < end
    features = track.features
    if features is not None:
        features = features[kept]
    if scored_from is not None:
        given = context or Context()
        begin = max(scored_from, track.begin) - track.shift
        context = Context(given.origin, np.array([begin]), given.covariates, given.exposure)
    return Sequence(
        track.times[kept] - track.shift,
        track.marks[kept],
        start=start - track.shift,
        stop=float(end) - track.shift,
        space=model.marks,
        id=track.entity,
        features=features,
        context=context,
    )


# ------------------------------------------------------------------ what is expected


def outlook(
    model: PointProcess,
    tracks: Ordered[Track],
    now: float,
    horizon: float,
    *,
    context: Context | None = None,
    paths: int = 200,
    steps: int = 40,
    seed: int = 0,
) -> Outlook:
    """The future of all tracks together: ``paths`` sampled futures until ``now + horizon``, in each
    of which every entity has one of its own.

    >>> from fourpoint.models.poisson import Poisson
    >>> none = Track("a", np.zeros(0), np.zeros(0, dtype=np.int64))
    >>> found = outlook(Poisson(), [none, none._replace(entity="b")], 1.0, 3.0)
    >>> found.rates.shape, round(found.counts.sum(1).mean() / 6.0)  # a rate of 1 each
    ((100, 40), 1)
    """
    end = now + horizon
    grid = np.linspace(now, end, steps + 1)[1:]
    counts = np.zeros((paths, model.marks.count), dtype=np.int64)
    rates = np.zeros((min(paths, BAND), steps))
    for place, track in enumerate(tracks):
        past = _sequence(model, track, now, context)
        own = seed * MOST_AHEAD + place
        drawn = sample(model, past.stop, end - track.shift, paths, own, history=past)
        rows = np.repeat(np.arange(paths), drawn.lengths)
        np.add.at(counts, (rows, drawn.mark_ids), 1)
        rates += _rates_of_paths(model, past, drawn, grid - track.shift, len(rates))
    return Outlook(grid, rates, counts)


def _rates_of_paths(
    model: PointProcess, past: Sequence, paths: Dataset, times: Floats, count: int
) -> Floats:
    """The total rates of the first ``count`` paths that follow ``past``: (count, Q)."""
    every = torch.from_numpy(times)
    parts = []
    with eval_mode(model), torch.no_grad():
        here = remember(model, past.batch())
        for first in range(0, count, AT_ONCE):
            rows = np.arange(first, min(count, first + AT_ONCE))
            history = follow(model, here, past, paths, rows)
            asked = every.expand(len(rows), -1)
            rates = model.intensity(history, asked)
            rates = exposed_rates(history, asked, rates)
            total = rates.double().sum(2)
            parts.append(total.numpy())
    return np.concatenate(parts)


# ------------------------------------------------------------------ goodness of fit


def verdict(
    model: PointProcess,
    tracks: Ordered[Track],
    start: float,
    now: float,
    *,
    context: Context | None = None,
) -> dict[str, Any]:
    """Whether the events from ``start`` to ``now`` agree with the model.

    ``p_value`` is that of two tests together (Bonferroni): Kolmogorov and Smirnov's of the rescaled
    gaps against the unit exponential, and of the rescaled times against the uniform law, which sees
    rates that are too high or too low for a while. ``histogram`` counts the gaps by decile of the
    law that they should have. Without 20 events, or where the timestamps are too coarse,
    ``p_value`` and ``verdict`` are None.
    """
    seen = []
    events = 0
    for track in tracks:
        inside = (track.times >= start) & (track.times <= now)
        events += int(inside.sum())
        if now > max(start, track.begin):
            seen.append(_sequence(model, track, now, context, start))
    nothing: dict[str, Any] = {
        "p_value": None,
        "events": events,
        "verdict": None,
        "histogram": [],
        "reason": None,
    }
    if events < FEWEST_EVENTS:
        return {**nothing, "reason": f"fewer than {FEWEST_EVENTS} events"}
    try:
        data, _ = with_exact_times(model, Dataset.from_sequences(seen), seed=0)
    except UserError as error:
        return {**nothing, "reason": str(error.received)}
    places, owner, totals = _rescaled(model, data)
    judged = rescaling.judge(places, owner, totals)
    p_value = min(1.0, 2 * min(judged.ks_p, judged.uniform_p))
    gaps = rescaling.end_to_end(places, owner, totals)
    shares = np.clip(-np.expm1(-gaps), 0.0, 1.0)
    bars, _ = np.histogram(shares, HISTOGRAM, (0.0, 1.0))
    return {
        "p_value": p_value,
        "events": len(places),
        "verdict": "consistent" if p_value >= LEVEL else "deviates",
        "histogram": bars.tolist(),
        "reason": None,
    }


def _rescaled(model: PointProcess, data: Dataset) -> tuple[Floats, Integers, Floats]:
    """Per scored event its compensator since its sequence began to be scored, and its sequence; the
    whole compensators of the sequences.
    """
    places = np.zeros(data.events)
    totals = np.zeros(len(data))
    with eval_mode(model):
        for rows in data.batches(AT_ONCE):
            gaps = compensators(model, data.batch(rows)).sum(2)
            reached = gaps.cumsum(1).cpu().numpy()
            for k, s in enumerate(rows):
                first = data.offsets[s]
                last = data.offsets[s + 1]
                places[first:last] = reached[k, : last - first]
                totals[s] = reached[k, -1]
    owner = np.repeat(np.arange(len(data)), data.lengths)
    scored = data.scored
    return places[scored], owner[scored], totals


# ------------------------------------------------------------------ what the model has learned


def kernel(
    model: PointProcess, at: float, *, begin: float = 0.0, context: Context | None = None
) -> dict[str, Any] | None:
    r"""How one event at the time ``at`` changes the rate afterwards:

        g_ab(s) = lambda_b(at + s | one event of mark a at ``at``) - lambda_b(at + s | none),

    which needs no knowledge of the model's form. With more than two marks the sum over b is
    returned for each a. ``offspring`` is the integral of the sum over b: the events to which one of
    mark a leads directly. None where no event changes anything, as in a Poisson process.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> found = kernel(Hawkes(baseline=1.0, branching=0.5, decay=2.0), 0.0)
    >>> round(found["values"]["an event"][0], 3)
    1.0
    """
    M = model.marks.count
    none = np.zeros(0, dtype=np.int64)
    tracks = [Track("", np.zeros(0), none, begin)]
    for mark in range(M):
        track = Track("", np.array([at]), np.array([mark]), begin)
        tracks.append(track)
    base = float(rates_at(model, tracks[:1], np.array([at]), context).sum())
    scale = 1.0
    if base > 0:
        scale = 1 / base
    spread = np.geomspace(1e-3, 1e3, 160) * scale
    far = np.concatenate([[0.0], spread])
    effects = _effects(model, tracks, at, far, context)
    size = np.abs(effects).sum((1, 2))
    areas = trapezoids(far, size)
    area = areas.sum()
    if not np.isfinite(areas).all() or area <= 1e-9:
        return None
    reached = np.searchsorted(np.cumsum(areas), REACH * area)
    last = min(reached + 1, len(far) - 1)
    lags = np.linspace(0.0, float(far[last]), LAGS + 1)
    of_all_marks = effects.sum(2)
    offspring = trapezoids(far[:, None], of_all_marks).sum(0)
    curves = _curves(_effects(model, tracks, at, lags, context), model.marks.names)
    names = model.marks.names or ("an event",)
    return {
        "lags": lags.tolist(),
        "values": curves,
        "offspring": dict(zip(names, offspring.tolist(), strict=True)),
    }


def _curves(effects: Floats, names: tuple[str, ...]) -> dict[str, list[float]]:
    """The curves of the picture by name: every pair of marks where there are two, else the largest
    sums over the marks that an event changes.
    """
    M = effects.shape[1]
    if M == 1:
        return {"an event": effects[:, 0, 0].tolist()}
    curves = {}
    if M == 2:
        for a in range(M):
            for b in range(M):
                curves[f"{names[a]} → {names[b]}"] = effects[:, a, b].tolist()
        return curves
    size = np.abs(effects).sum((0, 2))
    largest_first = np.argsort(-size, kind="stable")
    for a in largest_first[:MOST_CURVES].tolist():
        curves[f"{names[a]} → any"] = effects[:, a].sum(1).tolist()
    return curves


def _effects(
    model: PointProcess, tracks: list[Track], at: float, lags: Floats, context: Context | None
) -> Floats:
    """(lags, M, M): what an event of each mark adds to the rate of each mark."""
    times = np.nextafter(at, np.inf) + lags
    without = rates_at(model, tracks[:1], times, context)
    effects = []
    for track in tracks[1:]:
        rates = rates_at(model, [track], times, context)
        effects.append(rates - without)
    return np.stack(effects, 1)


def calendar(model: PointProcess) -> dict[str, dict[str, Any]]:
    """The factors of the rate by hour, weekday and so on, with mean 1, and the ratio of the largest
    to the smallest; empty for a model without a calendar. Factors that differ between marks are
    averaged on the log scale.
    """
    effects = model.effects
    if effects is None:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for term in effects.spec.calendar:
        if term == TREND or term.startswith(HOLIDAYS):
            continue
        factors = np.exp(_term(effects, term))
        factors /= factors.mean()
        ratio = float(factors.max() / factors.min())
        found[term] = {"values": factors.tolist(), "ratio": ratio}
    return found


def _term(effects: Effects, term: str) -> Floats:
    """The log of one term's factor in the middle of each of its intervals."""
    columns = effects.spec.columns[term]
    weight = effects.weight.detach().double().mean(1)
    if term == MONTHDAY:
        return np.asarray(weight[columns].numpy())
    periodic = PERIODIC[term]
    cells = (np.arange(periodic.intervals) + 0.5) / periodic.intervals
    times = periodic.origin + periodic.period * cells
    index, share = effects.active(torch.from_numpy(times))
    own = (index >= columns.start) & (index < columns.stop)
    contribution = torch.where(own, share * weight[index], 0.0)
    return np.asarray(contribution.sum(-1).numpy())
