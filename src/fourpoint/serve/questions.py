"""Questions about the future and the past that take longer than an event may wait: forecasts and
explanations.

They read an entity's events from the store, so that the engine goes on meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fourpoint.events import Context, Dataset, Sequence, UserError
from fourpoint.events.dates import length_after
from fourpoint.inference.explaining import explain
from fourpoint.inference.forecasting import Forecast, forecast
from fourpoint.inference.forecasts import counts_of_all, planned
from fourpoint.inference.sampling import eval_mode
from fourpoint.kernels.path_terms import Wanted
from fourpoint.log_format import LogFormat
from fourpoint.models.base import PointProcess
from fourpoint.serve.engine import ALL, Engine
from fourpoint.serve.recent import trapezoids
from fourpoint.serve.service import Service
from fourpoint.streaming.feed.events import Entities
from fourpoint.streaming.feed.feed import usual_rate
from fourpoint.strict_json import plain

MOST = 20_000  # past events of an entity that a question looks at
MOST_ENTITIES = 1000  # whose futures are sampled together
PAST_OF_ALL = 1000  # past events of each of them
STEPS = 40  # intervals of the horizon
NEXT_STEPS = 241  # times at which the rate before the next event is computed
EXPLAINED = 2000  # past events that an explanation looks at
FUTURE = 400_000  # events of all sampled futures of a forecast, about, where a kernel draws them
FUTURE_PLAIN = 20_000  # and for other models
STEPPED = 200.0  # expected events of one future that are drawn one by one, with their rates
FEWEST = 20  # sampled futures
FAINT = 1e-9  # share of the rate below which an effect is none
LEVELS = (0.05, 0.5, 0.95)


class Unknown(Exception):
    """An entity that the service has not seen."""


def past_of(service: Service, entity: str | None, most: int = MOST) -> Sequence:
    """The events of an entity up to now, as a sequence of the model's log.

    Raises :class:`Unknown` for an entity without events, and :class:`UserError` where there are
    several and none is named.
    """
    engine = service.engine
    name = _named(engine, entity)
    begin = engine.live.slot.begin
    events = [event for event in engine.store.recent(most, name) if not event.late]
    if not events or begin is None:
        raise Unknown(name)
    events.sort(key=lambda event: (event.time, event.seq))
    times = np.array([event.time for event in events])
    marks = np.array([event.mark for event in events])
    features = None
    if events[0].features is not None:
        features = np.array([np.frombuffer(event.features or b"") for event in events])
    stop = float(times[-1])
    now = engine.now()
    if now is not None and engine.times.calendar is None:
        stop = max(stop, now)
    return _sequence(engine, name, times, marks, features, begin, stop)


def _named(engine: Engine, entity: str | None) -> str:
    if engine.by is None:
        return ALL
    if entity is None and engine.times.calendar is not None:
        last = engine.store.recent(1)
        return last[0].entity if last else ALL
    if entity is None:
        count = len(engine.live)
        names = [] if engine.live.entities is None else list(engine.live.entities.bank.table.row)
        if count == 1 and names:
            return names[0]
        raise UserError(
            "the name of an entity",
            f"none, of {count:,} entities",
            f"Add entity={names[0] if names else 'NAME'}; /v1/entities lists them.",
        )
    return entity


def _sequence(
    engine: Engine,
    name: str,
    times: np.ndarray,
    marks: np.ndarray,
    features: np.ndarray | None,
    start: float,
    stop: float,
) -> Sequence:
    """A sequence with the dates and tables of the log."""
    clock = engine.times
    model = engine.served.model
    context = engine.settings.scoring.beside.context(clock, start)
    dates = clock.dates()
    if context is None and dates is not None:
        context = Context(origin=np.array([dates.origin]))
    one = Sequence(
        times,
        marks,
        start=start,
        stop=float(np.nextafter(stop, np.inf)),
        space=model.marks,
        id=name,
        features=features,
        context=context,
    )
    data = Dataset.from_sequences([one], unit=clock.unit)
    return replace(data, log=clock.log if clock.known else LogFormat("time"))[0]


def forecast_fields(
    service: Service,
    horizon: str,
    entity: str | None = None,
    *,
    paths: int = 500,
    seed: int = 0,
) -> dict[str, Any]:
    """What is expected until ``horizon`` from now: counts per mark, the next event and the rate."""
    engine = service.engine
    many = engine.by is not None and len(engine.live) > 1 and engine.times.calendar is None
    if entity is None and many:
        return _forecast_of_all(service, horizon, paths, seed)
    past = past_of(service, entity)
    length = length_after(past.dates, past.stop, horizon, engine.times.unit)
    _check_horizon(length, horizon)
    expected = _expected(engine, [past], length)
    if expected > STEPPED and engine.times.calendar is None:
        return _forecast_of(service, horizon, [past], past.id, paths, seed)
    some = _affordable(expected, FUTURE_PLAIN, horizon, paths)
    found = forecast(engine.served.model, past, length, some, seed, windows=1)
    fields = _forecast_fields(engine, past.id, found)
    return {**fields, "notes": fields["notes"] + _fewer(some, paths)}


def _check_horizon(length: float, horizon: str) -> None:
    if not 0 < length < math.inf:
        raise UserError("a positive horizon", f"{horizon!r:.40}", "Write it as 4h, say.")


def _expected(engine: Engine, pasts: list[Sequence], length: float) -> float:
    """How many events to expect within ``length``, from the rates of the past, to which the
    training data count as one event more.
    """
    usual = usual_rate(engine.served.model, engine.served.trained, pooled=False)
    total = 0.0
    for past in pasts:
        observed = past.stop - past.start
        total += (len(past) + 1) / (observed + 1 / usual)
    return total * length


def _affordable(expected: float, most: int, horizon: str, paths: int) -> int:
    """How many futures are sampled, with up to about ``most`` events in all, so that a question
    costs some seconds.
    """
    if not expected * FEWEST <= most:
        raise UserError(
            f"a horizon in which at most {most // FEWEST:,} events are expected",
            f"{horizon!r:.40}, with about {expected:,.3g}",
            "Ask for a shorter one, or use fourpoint forecast.",
        )
    affordable = int(most / max(expected, 1.0))
    return min(paths, max(FEWEST, affordable))


def _fewer(some: int, paths: int) -> list[str]:
    """What to say where fewer futures are sampled than were asked for."""
    if some == paths:
        return []
    return [f"quantiles are those of {some} futures, since the horizon has many events"]


def _forecast_of_all(service: Service, horizon: str, paths: int, seed: int) -> dict[str, Any]:
    """The same for all entities together: events of any of them."""
    count = len(service.engine.live)
    if count > MOST_ENTITIES:
        raise UserError(
            f"the name of an entity, or at most {MOST_ENTITIES:,} entities to forecast together",
            f"no name, and {count:,} entities",
            "Add entity=NAME; /v1/entities lists them.",
        )
    names = service.call(lambda engine: sorted(_entities(engine).bank.entities)).result()
    pasts = [past_of(service, name, PAST_OF_ALL) for name in names]
    return _forecast_of(service, horizon, pasts, ALL, paths, seed)


def _forecast_of(
    service: Service, horizon: str, pasts: list[Sequence], name: str, paths: int, seed: int
) -> dict[str, Any]:
    """A forecast of entities together, from the numbers of events in intervals."""
    engine = service.engine
    model = engine.served.model
    ids = [past.id for past in pasts]
    now, times, rates = service.call(lambda engine: _until_the_next(engine, ids)).result()
    data = Dataset.from_sequences(pasts, unit=engine.times.unit)
    data = replace(data, log=engine.times.log if engine.times.known else LogFormat("time"))
    length = length_after(pasts[0].dates, now, horizon, engine.times.unit)
    _check_horizon(length, horizon)
    most = FUTURE if _is_drawn_by_a_kernel(model, pasts[0]) else FUTURE_PLAIN
    some = _affordable(_expected(engine, pasts, length), most, horizon, paths)
    plan = planned(model, data, length, length / STEPS, paths=some, seed=seed)
    edges, counts = counts_of_all(model, plan)
    marks = model.marks.names or (ALL,)
    per_path = counts.sum(0).T
    lengths = np.diff(edges)
    per_time = counts.sum(1) / lengths[:, None]
    low, high = np.quantile(per_time, (LEVELS[0], LEVELS[2]), axis=1)
    middles = (edges[1:] + edges[:-1]) / 2
    note = "the band is that of events per unit of time in intervals"
    if len(pasts) > 1:
        note += ", of all entities together"
    return plain(
        {
            "entity": name,
            "at": engine.shown(now),
            "horizon": length,
            "unit": engine.times.unit or None,
            "total": _count_fields(per_path.sum(1)),
            "counts": {mark: _count_fields(per_path[:, m]) for m, mark in enumerate(marks)},
            "next": _next_fields(engine, times, rates, marks),
            "bands": {
                "times": [engine.shown(time) for time in middles.tolist()],
                "mean": per_time.mean(1),
                "low": low,
                "high": high,
            },
            "notes": [note, *_fewer(some, paths)],
        }
    )


def _is_drawn_by_a_kernel(model: PointProcess, past: Sequence) -> bool:
    """Whether events of this model are drawn by compiled loops."""
    edges = np.array([[past.stop, np.nextafter(past.stop, np.inf)]])
    keys = np.zeros(1, dtype=np.uint64)
    one = Wanted(edges, keys, paths=1, limit=1)
    with eval_mode(model):
        found = model.draw_counts(past.batch(), one)
    return found is not None


def _entities(engine: Engine) -> Entities:
    if engine.live.entities is None:
        raise Unknown(ALL)
    return engine.live.entities


def _until_the_next(engine: Engine, names: list[str]) -> tuple[float, np.ndarray, np.ndarray]:
    """Now, and the rates of entities together per mark at times from now on, as if nothing
    happened: enough of them to see when the next event comes.
    """
    now = engine.now()
    if now is None:
        raise Unknown(ALL)
    bank = _entities(engine).bank
    rows, _ = bank.table.assign(names)

    def rates(time: float) -> np.ndarray:
        return bank.rates(rows, np.full(len(rows), time)).sum(0)

    total = float(rates(now).sum())
    # Rates that fall in a silence to a tenth are followed for long enough.
    length = 60.0 / max(total, 1e-300)
    times = now + np.linspace(0.0, length, NEXT_STEPS)
    return now, times, np.array([rates(time) for time in times.tolist()])


def _next_fields(
    engine: Engine, times: np.ndarray, rates: np.ndarray, names: tuple[str, ...]
) -> dict[str, Any]:
    """The next event of a process whose rates per mark until then are given at ``times``."""
    total = rates.sum(1)
    areas = trapezoids(times, total)
    integral = np.concatenate([[0.0], np.cumsum(areas)])
    survival = np.exp(-integral)

    def quantile(level: float) -> str | float | None:
        needed = -math.log1p(-level)
        if integral[-1] < needed:
            return None
        time = np.interp(needed, integral, times)
        return engine.shown(float(time))

    mean = times[0] + float(trapezoids(times, survival).sum())
    density = rates * survival[:, None]
    chances = trapezoids(times[:, None], density).sum(0)
    shares = chances / chances.sum()
    return {
        "median": quantile(0.5),
        "mean": engine.shown(mean),
        "low": quantile(0.05),
        "high": quantile(0.95),
        "never": float(survival[-1]),
        "marks": dict(zip(names, shares.tolist(), strict=True)),
    }


def _forecast_fields(engine: Engine, entity: str, found: Forecast) -> dict[str, Any]:
    offset = _window_offset(engine, entity)

    def shown(time: float) -> str | float | None:
        return engine.shown(time + offset)

    names = found.marks.names or (ALL,)
    counts = _path_counts(found)
    per_mark = {name: _count_fields(counts[:, m]) for m, name in enumerate(names)}
    low, high = found.next_event.interval
    rate = found.rate
    return plain(
        {
            "entity": entity,
            "at": shown(found.at),
            "horizon": found.horizon,
            "unit": engine.times.unit or None,
            "total": _count_fields(counts.sum(1)),
            "counts": per_mark,
            "next": {
                "median": shown(found.next_event.median),
                "mean": shown(found.next_event.mean),
                "low": shown(low),
                "high": shown(high),
                "never": found.next_event.never,
                "marks": dict(zip(names, found.next_event.marks.tolist(), strict=True)),
            },
            "bands": {
                "times": [shown(float(time)) for time in rate.times],
                "mean": rate.mean.sum(1),
                "low": rate.low,
                "high": rate.high,
            },
            "notes": list(found.notes),
        }
    )


def _window_offset(engine: Engine, entity: str) -> float:
    """What to add to a time in an entity's window to have it on the clock of the log: 0, but for
    windows of the calendar.
    """
    if engine.times.calendar is None:
        return 0.0
    last = engine.store.recent(1, entity)
    return last[0].moment - last[0].time if last else 0.0


def _path_counts(found: Forecast) -> np.ndarray:
    """Events of each path and mark."""
    paths = found.paths
    rows = np.repeat(np.arange(len(paths)), paths.lengths)
    counts = np.zeros((len(paths), found.marks.count), dtype=np.int64)
    np.add.at(counts, (rows, paths.mark_ids), 1)
    return counts


def _count_fields(counts: np.ndarray) -> dict[str, float]:
    low, median, high = np.quantile(counts, LEVELS, method="inverted_cdf").tolist()
    return {
        "mean": float(counts.mean()),
        "q05": low,
        "q50": median,
        "q95": high,
        "p_any": float((counts > 0).mean()),
    }


def explain_fields(service: Service, entity: str | None = None, top: int = 20) -> dict[str, Any]:
    """Which past events the rate of an entity now comes from, the largest effect first."""
    engine = service.engine
    past = past_of(service, entity, EXPLAINED)
    offset = _window_offset(engine, past.id)
    found = explain(engine.served.model, past)
    rate = float(found.rate.sum())
    total = found.effects.sum(1)
    size = np.abs(total)
    order = np.argsort(-size, kind="stable")[:top]
    order = order[size[order] > FAINT * rate]
    names = engine.served.model.marks.names or (ALL,)
    events = []
    for i in order.tolist():
        time = float(found.times[i])
        effects = found.effects[i].tolist()
        event = {
            "time": engine.shown(time + offset),
            "mark": names[int(found.marks[i])],
            "effect": float(total[i]),
            "effects": dict(zip(names, effects, strict=True)),
        }
        events.append(event)
    return plain(
        {
            "entity": past.id,
            "at": engine.shown(found.at + offset),
            "rate": rate,
            "rates": dict(zip(names, found.rate.tolist(), strict=True)),
            "baseline": float(found.rate.sum() - total.sum()),
            "past_events": len(past),
            "events": events,
        }
    )
