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
from fourpoint.models.effects import HOLIDAYS, PERIODIC, TREND, Effects
from fourpoint.ops import rescaling

Floats = NDArray[np.float64]
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
    marks: NDArray[np.int64]
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
    observed: NDArray[np.int64]
    expected: Floats
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class Outlook:
    """Sampled futures: the total rates of the first 100 at ``times`` (Q,), (100, Q), and the events
    per mark of all until the horizon, (P, M).
    """

    times: Floats
    rates: Floats
    counts: NDArray[np.int64]


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
    times = [track.times for track in tracks]
    marks = [track.marks for track in tracks]
    every = np.concatenate([np.zeros(0), *times])
    kinds = np.concatenate([np.zeros(0, dtype=np.int64), *marks])
    inside = (every >= start) & (every <= now)
    # An event at the very time counts, so that the rate now includes the latest event.
    after = np.nextafter(uniform, np.inf)
    grid = np.union1d(after, edges)
    jumps = np.unique(every[inside])
    if (len(grid) + 2 * len(jumps)) * max(1, len(tracks)) * M <= MOST_VALUES:
        grid = np.union1d(grid, np.concatenate([jumps, np.nextafter(jumps, np.inf)]))
    rates = rates_at(model, tracks, grid, context)
    total = rates.sum(1)
    areas = np.diff(grid) * (total[1:] + total[:-1]) / 2
    integral = np.concatenate([[0.0], np.cumsum(areas)])
    expected = np.diff(np.interp(edges, grid, integral))
    return Picture(
        uniform,
        rates[np.searchsorted(grid, after)],
        edges,
        np.histogram(every[inside], edges)[0],
        expected,
        np.bincount(kinds[inside], minlength=M),
    )


def averaged(
    entities: Ordered[str],
    times: Floats,
    marks: NDArray[np.int64],
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
    own = own[times[own] > times[before[own]]]
    rate = gaps[own] / (times[own] - times[before[own]])
    ends = times[own].copy()
    ends[np.isin(own, list(last.values()))] = now
    steps = np.concatenate([times[before[own]], ends])
    order = np.argsort(steps, kind="stable")
    level = np.cumsum(np.concatenate([rate, -rate])[order])
    knots = np.concatenate([[-np.inf], steps[order]])
    level = np.maximum(np.concatenate([[0.0], level]), 0.0)
    uniform = np.linspace(start, now, points + 1)
    total = level[np.searchsorted(knots, uniform, side="left") - 1]
    total[0] = level[np.searchsorted(knots, uniform[0], side="right") - 1]
    edges = np.linspace(start, now, bins + 1)
    bounds = np.union1d(edges, steps[(steps > start) & (steps < now)])
    middle = (bounds[1:] + bounds[:-1]) / 2
    areas = np.diff(bounds) * level[np.searchsorted(knots, middle) - 1]
    integral = np.concatenate([[0.0], np.cumsum(areas)])
    inside = (times >= start) & (times <= now)
    shares = np.bincount(marks, minlength=count) / max(1, len(marks))
    return Picture(
        uniform,
        total[:, None] * shares,
        edges,
        np.histogram(times[inside], edges)[0],
        np.diff(np.interp(edges, bounds, integral)),
        np.bincount(marks[inside], minlength=count),
    )


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
        data = Dataset.from_sequences([_sequence(model, t, stop, context) for t in some])
        shifts = np.array([track.shift for track in some])[:, None]
        begins = np.array([track.begin for track in some])[:, None]
        asked = torch.from_numpy(np.maximum(times, begins) - shifts)
        with eval_mode(model), torch.no_grad():
            history = model.encode(data.batch(np.arange(len(some))))
            found = model.intensity(history, asked)
            found = exposed_rates(history, asked, found).double()
        yield from np.where((times >= begins)[..., None], found.numpy(), 0.0)


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
    kept = track.times < end
    known = context
    if scored_from is not None:
        given = Context() if context is None else context
        begin = np.array([max(scored_from, track.begin) - track.shift])
        known = Context(given.origin, begin, given.covariates, given.exposure)
    return Sequence(
        track.times[kept] - track.shift,
        track.marks[kept],
        start=min(track.begin, float(track.times[:1].min(initial=np.inf))) - track.shift,
        stop=float(end) - track.shift,
        space=model.marks,
        id=track.entity,
        features=None if track.features is None else track.features[kept],
        context=known,
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
    parts = []
    with eval_mode(model), torch.no_grad():
        here = remember(model, past.batch())
        for first in range(0, count, AT_ONCE):
            rows = np.arange(first, min(count, first + AT_ONCE))
            history = follow(model, here, past, paths, rows)
            asked = torch.from_numpy(times).expand(len(rows), -1)
            found = exposed_rates(history, asked, model.intensity(history, asked))
            parts.append(found.double().sum(2).numpy())
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
    seen = [
        _sequence(model, track, now, context, start)
        for track in tracks
        if now > max(start, track.begin)
    ]
    events = sum(int(((t.times >= start) & (t.times <= now)).sum()) for t in tracks)
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
    gaps = rescaling.end_to_end(places, owner, totals)
    p_value = min(1.0, 2 * min(judged.ks_p, judged.uniform_p))
    shares = np.clip(-np.expm1(-gaps), 0.0, 1.0)
    return {
        "p_value": p_value,
        "events": len(places),
        "verdict": "consistent" if p_value >= LEVEL else "deviates",
        "histogram": np.histogram(shares, HISTOGRAM, (0.0, 1.0))[0].tolist(),
        "reason": None,
    }


def _rescaled(model: PointProcess, data: Dataset) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Per scored event its compensator since its sequence began to be scored, and its sequence; the
    whole compensators of the sequences.
    """
    places = np.zeros(data.events)
    totals = np.zeros(len(data))
    with eval_mode(model):
        for rows in data.batches(AT_ONCE):
            found = compensators(model, data.batch(rows)).sum(2).cumsum(1).cpu().numpy()
            for k, s in enumerate(rows):
                n = int(data.lengths[s])
                places[data.offsets[s] : data.offsets[s + 1]] = found[k, :n]
                totals[s] = found[k, -1]
    owner = np.repeat(np.arange(len(data)), data.lengths)
    return places[data.scored], owner[data.scored], totals


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
    tracks += [Track("", np.array([at]), np.array([mark]), begin) for mark in range(M)]
    base = float(rates_at(model, tracks[:1], np.array([at]), context).sum())
    scale = 1 / base if base > 0 else 1.0
    far = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 160) * scale])
    effects = _effects(model, tracks, at, far, context)
    size = np.abs(effects).sum((1, 2))
    areas = np.diff(far) * (size[1:] + size[:-1]) / 2
    if not np.isfinite(areas).all() or areas.sum() <= 1e-9:
        return None
    reached = np.searchsorted(np.cumsum(areas), REACH * areas.sum())
    longest = float(far[min(reached + 1, len(far) - 1)])
    lags = np.linspace(0.0, longest, LAGS + 1)
    sums = effects.sum(2)
    offspring = (np.diff(far)[:, None] * (sums[1:] + sums[:-1]) / 2).sum(0)
    effects = _effects(model, tracks, at, lags, context)
    names = model.marks.names
    if M == 1:
        curves = {"an event": effects[:, 0, 0]}
    elif M == 2:
        curves = {f"{names[a]} → {names[b]}": effects[:, a, b] for a in range(M) for b in range(M)}
    else:
        order = np.argsort(-np.abs(effects).sum((0, 2)), kind="stable")[:MOST_CURVES]
        curves = {f"{names[a]} → any": effects[:, a].sum(1) for a in order.tolist()}
    return {
        "lags": lags.tolist(),
        "values": {name: values.tolist() for name, values in curves.items()},
        "offspring": dict(zip(names or ("an event",), offspring.tolist(), strict=True)),
    }


def _effects(
    model: PointProcess, tracks: list[Track], at: float, lags: Floats, context: Context | None
) -> Floats:
    """(lags, M, M): what an event of each mark adds to the rate of each mark."""
    times = np.nextafter(at, np.inf) + lags
    without = rates_at(model, tracks[:1], times, context)
    return np.stack([rates_at(model, [t], times, context) - without for t in tracks[1:]], 1)


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
    """The log of one periodic term's factor in the middle of each of its intervals."""
    periodic = PERIODIC[term]
    cells = (np.arange(periodic.intervals) + 0.5) / periodic.intervals
    local = torch.from_numpy(periodic.origin + periodic.period * cells)
    index, share = effects.active(local)
    columns = effects.spec.columns[term]
    own = (index >= columns.start) & (index < columns.stop)
    weight = effects.weight.detach().double().mean(1)
    return np.asarray(torch.where(own, share * weight[index], 0.0).sum(-1).numpy())
