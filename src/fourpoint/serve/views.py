"""What the dashboard asks for: its page and files, and read-only questions about the recent past.

    GET /                  the page; /assets/... its files
    GET /v1/status         model, clock, counts, goodness of fit of the last day, shadow model
    GET /v1/history        rates, events, and observed against expected counts of the last hours
    GET /v1/outlook        sampled futures of one entity, or of all together
    GET /v1/model          kernel, calendar and parameters

Answers are computed from the scored events that the engine keeps in memory, in a thread of their
own, and are kept for a moment, so that many viewers cost as much as one.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time as clocks
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from fourpoint.errors import UserError
from fourpoint.events import Context
from fourpoint.events.dates import SECONDS
from fourpoint.models.base import PointProcess
from fourpoint.serve.engine import ALL, Engine, Scored, Served
from fourpoint.serve.recent import (
    MOST_AHEAD,
    Picture,
    Track,
    averaged,
    calendar,
    kernel,
    outlook,
    picture,
    verdict,
)
from fourpoint.serve.service import Service
from fourpoint.streaming.model_queries import in_float64, stream_context
from fourpoint.streaming.state import fingerprint
from fourpoint.strict_json import plain

FILES = Path(__file__).parent / "dashboard"
MOST_TRACKS = 64  # entities whose rates are computed from the model
MOST_SHOWN = 2000  # events of a history that are sent one by one
MOST_PAST = 2000  # events of an entity that its rate is computed from
HOUR = 3600.0  # seconds
# Lengths of history that may be offered, in hours: a minute to a year.
WINDOWS = (1 / 60, 1 / 6, 1.0, 6.0, 24.0, 72.0, 168.0, 720.0, 2160.0, 8760.0)
OFFERED = 4  # windows that the page offers
WANTED = 40.0  # events that the first of them should have
# Seconds for which an answer is used again: while no event has come, and in any case.
AGE = {
    "history": (0.8, 0.2),
    "outlook": (3.0, 1.0),
    "goodness": (8.0, 1.0),
    "model": (600.0, 600.0),
}
REST = 4.0  # times as long as an answer took, it is used again: a fifth of a core at most
PATHS = 200  # sampled futures
FEWEST_PATHS = 40
SAMPLED = 40_000  # events of all of them, about
LEVELS = (0.05, 0.5, 0.95)
Key = tuple[Hashable, ...]  # of an answer: its kind, and what was asked


class Goodness(BaseModel):
    """Whether the events of the last day agree with the model."""

    p_value: float | None
    events: int
    verdict: str | None = Field(description="consistent, deviates, or null: no verdict.")
    histogram: list[int] = Field(description="Rescaled gaps by decile of the law of the model.")
    reason: str | None = Field(description="Why there is no verdict.")


class Status(BaseModel):
    """Where the service stands."""

    model: str
    version: str
    folder: str
    marks: list[str]
    unit: str
    dated: bool
    timezone: str | None
    now: str | float | None
    events: int
    entities: int
    watermark: str | float | None
    lateness: float
    started: float
    drift: bool
    alarm_level: float | None = Field(description="False alarms per 1,000 events, at most.")
    windows: list[float] = Field(description="Lengths of history that suit the rate, in hours.")
    window: float
    goodness: Goodness
    shadow: dict[str, float | int | None] | None


class Happened(BaseModel):
    """An event of a history."""

    time: str | float | None
    mark: str
    entity: str


class History(BaseModel):
    """The last hours."""

    now: str | float | None
    start: str | float | None
    times: list[str | float | None]
    rates: dict[str, list[float]] = Field(description="Per mark, events per unit of time.")
    approximate: bool = Field(description="Rates are averages over gaps: there are many entities.")
    events: list[Happened] = Field(description="The last 2,000.")
    total: int
    counts: dict[str, int]
    bins: list[str | float | None] = Field(description="Edges.")
    observed: list[int]
    expected: list[float]


class Quantiles(BaseModel):
    """A number of events."""

    mean: float
    q05: float
    q50: float
    q95: float
    p_any: float


class Band(BaseModel):
    """The total rate: its mean over futures and a 90% band."""

    times: list[str | float | None]
    mean: list[float]
    low: list[float]
    high: list[float]


class Ahead(BaseModel):
    """Sampled futures."""

    at: str | float | None
    horizon: float
    total: Quantiles | None
    counts: dict[str, Quantiles]
    bands: Band | None
    reason: str | None = Field(description="Why nothing was sampled.")


class Learned(BaseModel):
    """What the model has learned."""

    kernel: dict[str, Any] | None
    calendar: dict[str, dict[str, Any]]
    parameters: dict[str, str | float]


def add_dashboard(app: FastAPI, service: Service, reader: Callable[..., str]) -> None:
    """The page at ``/``, and the questions it asks, which need the dependency ``reader``."""
    views = Views(service)
    router = APIRouter(prefix="/v1", dependencies=[Depends(reader)], tags=["dashboard"])

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(FILES / "index.html", media_type="text/html")

    @router.get("/status", response_model=Status)
    async def get_status() -> dict[str, Any]:
        """Where the service stands, with the goodness of fit of the last day."""
        return await views.status()

    @router.get("/history", response_model=History)
    async def get_history(
        hours: Annotated[float, Query(gt=0, le=1e6)] = 6.0,
        entity: str | None = None,
    ) -> dict[str, Any]:
        """Rates and counts of the last hours, of one entity or of all; where the model's times have
        no unit, an hour is one unit.
        """
        return await views.history(hours, entity or None)

    @router.get("/outlook", response_model=Ahead)
    async def get_outlook(
        hours: Annotated[float, Query(gt=0, le=1e6)] = 1.0,
        entity: str | None = None,
    ) -> dict[str, Any]:
        """Sampled futures of one entity, or of all together where there are at most 16."""
        return await views.outlook(hours, entity or None)

    @router.get("/model", response_model=Learned)
    async def get_model() -> dict[str, Any]:
        """Kernel, calendar and parameters of the model."""
        return await views.model()

    app.include_router(router)
    app.mount("/assets", StaticFiles(directory=FILES), name="assets")


@dataclass(frozen=True)
class Seen:
    """The present of an engine, as its own thread sees it."""

    recent: list[Scored]
    now: float | None
    begin: float | None
    events: int


@dataclass(frozen=True)
class Subject:
    """A model to ask, in float64, and what is known besides events; ``served`` is what it is a copy
    of.
    """

    served: Served
    model: PointProcess
    context: Context | None
    name: str
    version: str
    parameters: dict[str, str | float]


class Views:
    """Answers the questions of the dashboard."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._kept: dict[Key, tuple[float, float, int, Any]] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._known: Subject | None = None
        # One answer of each kind at a time, so that events are not kept waiting.
        self._computing = {kind: threading.Lock() for kind in AGE}

    # ------------------------------------------------------------------ the present

    async def _seen(self) -> Seen:
        def look(engine: Engine) -> Seen:
            begin = engine.live.slot.begin
            return Seen(list(engine.recent), engine.now(), begin, engine.counters.events)

        return await asyncio.wrap_future(self.service.call(look))

    def _subject(self) -> Subject:
        """The live model, copied once; a model that is loaded anew is copied again."""
        engine = self.service.engine
        served = engine.served
        known = self._known
        if known is None or known.served is not served:
            model = in_float64(served.model)
            begin = engine.live.slot.begin
            beside = engine.settings.scoring.beside.context(engine.times, begin or 0.0)
            known = Subject(
                served,
                model,
                stream_context(model, beside),
                type(served.model).__name__,
                fingerprint(served.model)[:8],
                _parameters(served.model),
            )
            self._known = known
        return known

    async def _kept_for(self, key: Key, events: int, work: Callable[[], Any]) -> Any:
        """What ``work`` returns in another thread, or what it returned a moment ago; ``events`` is
        the number of events that it knows.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        kind = str(key[0])
        quiet, always = AGE[kind]
        async with lock:
            if key in self._kept:
                at, rest, known, value = self._kept[key]
                if clocks.monotonic() - at < max(rest, quiet if known == events else always):
                    return value

            def run() -> Any:
                with self._computing[kind]:
                    return plain(work())

            began = clocks.monotonic()
            value = await run_in_threadpool(run)
            ended = clocks.monotonic()
            self._kept[key] = (ended, REST * (ended - began), events, value)
            self._forget()
            return value

    def _forget(self) -> None:
        """Answers that are too old to be used again."""
        now = clocks.monotonic()
        stale = [
            key
            for key, (at, rest, *_) in self._kept.items()
            if now - at > max(rest, AGE[str(key[0])][0])
        ]
        for key in stale:
            self._kept.pop(key, None)
            lock = self._locks.get(key)
            if lock is not None and not lock.locked():
                del self._locks[key]

    @property
    def _per_hour(self) -> float:
        """Units of the model's time in an hour; 1 where the unit is not known."""
        unit = self.service.engine.times.unit
        return HOUR / SECONDS[unit] if unit in SECONDS else 1.0

    # ------------------------------------------------------------------ answers

    async def status(self) -> dict[str, Any]:
        """Where the service stands."""
        seen = await self._seen()
        engine = self.service.engine
        subject = await run_in_threadpool(self._subject)
        windows, first = self._windows(seen)
        dates = engine.dates
        shadow = engine.shadow
        brief = self.service.brief()
        return plain(
            {
                **{key: brief[key] for key in ("now", "events", "entities", "watermark")},
                "model": subject.name,
                "version": subject.version,
                "folder": engine.served.folder.name,
                "marks": list(engine.served.model.marks.names) or [ALL],
                "unit": engine.times.unit,
                "dated": dates is not None,
                "timezone": None if dates is None else dates.zone or "UTC",
                "lateness": engine.lateness,
                "started": self.service.started,
                "drift": engine.counters.drifts > 0,
                "alarm_level": engine.settings.scoring.alarms,
                "windows": windows,
                "window": first,
                "goodness": await self._goodness(seen, subject),
                "shadow": None if shadow is None else engine.paired.gain(),
            }
        )

    def _windows(self, seen: Seen) -> tuple[list[float], float]:
        """Lengths of history, in hours, that have some events but not too many, and the one to
        begin with.
        """
        if seen.now is None or len(seen.recent) < 2:
            return list(WINDOWS[2 : 2 + OFFERED]), WINDOWS[3]
        length = (seen.now - min(one.event.moment for one in seen.recent)) / self._per_hour
        rate = len(seen.recent) / max(length, 1e-9)
        enough = next((i for i, w in enumerate(WINDOWS) if w * rate >= WANTED), len(WINDOWS) - 1)
        first = min(max(0, enough - 1), len(WINDOWS) - OFFERED)
        return list(WINDOWS[first : first + OFFERED]), WINDOWS[enough]

    async def _goodness(self, seen: Seen, subject: Subject) -> Any:
        """The verdict on the last day; one day is one unit where the unit is not known."""
        now = seen.now

        def work() -> dict[str, Any]:
            nothing: dict[str, Any] = {
                "p_value": None,
                "events": 0,
                "verdict": None,
                "histogram": [],
            }
            if now is None or seen.begin is None:
                return {**nothing, "reason": "no events"}
            start = max(now - 24 * self._per_hour, seen.begin)
            tracks = _tracks(seen, None, start)
            if len(tracks) > MOST_TRACKS:
                tracks = sorted(tracks, key=lambda track: -len(track.times))[:MOST_TRACKS]
            try:
                return verdict(subject.model, tracks, start, now, context=subject.context)
            except UserError as error:
                return {**nothing, "reason": str(error)}

        return await self._kept_for(("goodness",), seen.events, work)

    async def history(self, hours: float, entity: str | None) -> dict[str, Any]:
        """The last hours of one entity or of all."""
        seen = await self._seen()
        subject = await run_in_threadpool(self._subject)
        found = await self._kept_for(
            ("history", hours, entity),
            seen.events,
            lambda: self._history(seen, subject, hours, entity),
        )
        return dict(found)

    def _history(
        self, seen: Seen, subject: Subject, hours: float, entity: str | None
    ) -> dict[str, Any]:
        engine = self.service.engine
        names = list(engine.served.model.marks.names) or [ALL]
        if seen.now is None or seen.begin is None:
            empty: dict[str, list[float]] = {name: [] for name in names}
            return {
                **dict.fromkeys(("now", "start")),
                **{key: [] for key in ("times", "events", "bins", "observed", "expected")},
                "rates": empty,
                "approximate": False,
                "total": 0,
                "counts": dict.fromkeys(names, 0),
            }
        now = seen.now
        start = now - hours * self._per_hour
        own = [one for one in seen.recent if entity is None or one.event.entity == entity]
        inside = [one.event for one in own if start <= one.event.moment <= now]
        seen_from = min(max(start, seen.begin), now)
        found, approximate = self._picture(replace(seen, recent=own), subject, seen_from, now)
        shown = engine.shown
        rates = found.rates
        return {
            "now": shown(now),
            "start": shown(start),
            "times": [shown(time) for time in found.times.tolist()],
            "rates": {name: rates[:, m] for m, name in enumerate(names)},
            "approximate": approximate,
            "events": [
                {"time": shown(e.moment), "mark": names[e.mark], "entity": e.entity}
                for e in inside[-MOST_SHOWN:]
            ],
            "total": len(inside),
            "counts": {name: int(found.counts[m]) for m, name in enumerate(names)},
            "bins": [shown(time) for time in found.edges.tolist()],
            "observed": found.observed,
            "expected": found.expected,
        }

    def _picture(
        self, seen: Seen, subject: Subject, start: float, now: float
    ) -> tuple[Picture, bool]:
        """Rates of the entities by the model, or from the scores where they are many."""
        if len({one.event.entity for one in seen.recent}) > MOST_TRACKS:
            events = [one.event for one in seen.recent]
            gaps = np.array([one.gap for one in seen.recent])
            count = subject.model.marks.count
            return averaged(
                [event.entity for event in events],
                np.array([event.moment for event in events]),
                np.array([event.mark for event in events], dtype=np.int64),
                gaps,
                count,
                start,
                now,
            ), True
        tracks = _tracks(seen, None, start)
        return picture(subject.model, tracks, start, now, context=subject.context), False

    async def outlook(self, hours: float, entity: str | None) -> dict[str, Any]:
        """The next hours of one entity or of all."""
        seen = await self._seen()
        subject = await run_in_threadpool(self._subject)
        found = await self._kept_for(
            ("outlook", hours, entity),
            seen.events,
            lambda: self._outlook(seen, subject, hours, entity),
        )
        return dict(found)

    def _outlook(
        self, seen: Seen, subject: Subject, hours: float, entity: str | None
    ) -> dict[str, Any]:
        engine = self.service.engine
        horizon = hours * self._per_hour
        nothing: dict[str, Any] = {
            "at": engine.shown(seen.now),
            "horizon": horizon,
            "total": None,
            "counts": {},
            "bands": None,
        }
        if seen.now is None or seen.begin is None:
            return {**nothing, "reason": "no events"}
        tracks = _tracks(seen, entity, seen.now)
        if not tracks or len(tracks) > MOST_AHEAD:
            few = f"futures are sampled for at most {MOST_AHEAD} entities together"
            return {**nothing, "reason": few if tracks else "no recent events"}
        if engine.times.calendar is not None:
            return {**nothing, "reason": "the model is fitted to calendar windows"}
        paths = _affordable_paths(seen, entity, horizon)
        if paths < FEWEST_PATHS:
            return {**nothing, "reason": "too many events are expected until then"}
        try:
            found = outlook(
                subject.model, tracks, seen.now, horizon, context=subject.context, paths=paths
            )
        except UserError as error:
            return {**nothing, "reason": str(error)}
        low, high = np.quantile(found.rates, (LEVELS[0], LEVELS[2]), axis=0)
        names = list(engine.served.model.marks.names) or [ALL]
        return {
            **nothing,
            "total": _quantiles(found.counts.sum(1)),
            "counts": {name: _quantiles(found.counts[:, m]) for m, name in enumerate(names)},
            "bands": {
                "times": [engine.shown(time) for time in found.times.tolist()],
                "mean": found.rates.mean(0),
                "low": low,
                "high": high,
            },
            "reason": None,
        }

    async def model(self) -> dict[str, Any]:
        """What the model has learned."""
        seen = await self._seen()
        subject = await run_in_threadpool(self._subject)

        def work() -> dict[str, Any]:
            begin = 0.0 if seen.begin is None else seen.begin
            at = begin if seen.now is None else max(begin, seen.now)
            if self.service.engine.times.calendar is not None:
                begin = at = 0.0
            try:
                effect = kernel(subject.model, at, begin=begin, context=subject.context)
            except UserError:
                effect = None
            return {
                "kernel": effect,
                "calendar": calendar(subject.model),
                "parameters": subject.parameters,
            }

        # Before the first event there is no time at which to ask.
        key = ("model", subject.version, seen.now is None)
        return dict(await self._kept_for(key, seen.events, work))


def _tracks(seen: Seen, entity: str | None, start: float) -> list[Track]:
    """The events of entities, those before ``start`` up to 2,000 of each."""
    begin = 0.0 if seen.begin is None else seen.begin
    groups: dict[tuple[str, float], list[Scored]] = {}
    for one in seen.recent:
        if entity is None or one.event.entity == entity:
            shift = one.event.moment - one.event.time
            groups.setdefault((one.event.entity, shift), []).append(one)
    found = []
    for (name, shift), events in groups.items():
        events.sort(key=lambda one: (one.event.moment, one.event.seq))
        times = np.array([one.event.moment for one in events])
        marks = np.array([one.event.mark for one in events], dtype=np.int64)
        features = None
        if events[0].event.features is not None:
            features = np.array([np.frombuffer(one.event.features or b"") for one in events])
        kept = slice(max(0, int(np.searchsorted(times, start)) - MOST_PAST), None)
        opened = shift if shift else begin
        own = None if features is None else features[kept]
        found.append(Track(name, times[kept], marks[kept], opened, shift, own))
    return found


def _affordable_paths(seen: Seen, entity: str | None, horizon: float) -> int:
    """How many futures have not too many events together, by the events of the recent past and by
    the rates just before the last of them.
    """
    own = [one for one in seen.recent if entity is None or one.event.entity == entity]
    if seen.now is None or not own:
        return PATHS
    length = max(seen.now - own[0].event.moment, 1e-9)
    rates = {one.event.entity: one.rate for one in own}
    rate = max(len(own) / length, sum(rates.values()))
    return int(min(PATHS, SAMPLED / max(rate * horizon, 1e-9)))


def _quantiles(counts: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, float]:
    low, median, high = np.quantile(counts, LEVELS, method="inverted_cdf").tolist()
    return {
        "mean": float(counts.mean()),
        "q05": low,
        "q50": median,
        "q95": high,
        "p_any": float((counts > 0).mean()),
    }


def _parameters(model: PointProcess) -> dict[str, str | float]:
    """The settings of a model that are one number or one word."""
    found: dict[str, str | float] = {}
    for name, value in model.shown().items():
        if isinstance(value, bool | str):
            found[name] = str(value)
        elif isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)
    return found
