"""The HTTP interface: events in, and everything the service knows out, as JSON.

    POST /v1/events   one event, an array, or one per line;  {"id": "a1", "time": 12.5, ...}
    GET  /v1/entities, /v1/entities/{id}, /v1/forecast, /v1/explain, /v1/alarms, /live
    GET  /healthz, /readyz, /metrics, /openapi.json

:func:`create_app` makes the application, :func:`serve` runs it. Errors are objects with one text of
three clauses: ``{"error": "expected ...; received ... . ..."}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

import fourpoint
from fourpoint.errors import UserError
from fourpoint.serve import schemas
from fourpoint.serve.databases import StoreError, StoreFull
from fourpoint.serve.guard import Guard, Statistics, problem
from fourpoint.serve.metrics import metrics_text
from fourpoint.serve.questions import Unknown, explain_fields, forecast_fields
from fourpoint.serve.service import Busy, Service
from fourpoint.serve.settings import Settings
from fourpoint.serve.tokens import Tokens
from fourpoint.serve.views import add_dashboard
from fourpoint.streaming.feed.encoding import loader

JSON_TYPES = ("application/json",)
LINE_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
WAIT = 30.0  # seconds within which events are committed, or the client is told to try again
ASKED_AT_ONCE = 2  # forecasts and explanations that are computed at the same time
ANYONE = "anyone"  # who acknowledges alarms where there are no tokens

_bearer = HTTPBearer(auto_error=False, description="A token made by `fourpoint token`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.Problem, "description": "The request cannot be read."},
    401: {"model": schemas.Problem, "description": "No token, or an unknown one."},
    403: {"model": schemas.Problem, "description": "A token without the scope."},
    429: {"model": schemas.Problem, "description": "Too many requests."},
    503: {"model": schemas.Problem, "description": "Temporarily unavailable: try again."},
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {
    404: {"model": schemas.Problem, "description": "Unknown."}
}
EVENTS_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "oneOf": [
                    {"$ref": "#/components/schemas/EventIn"},
                    {"type": "array", "items": {"$ref": "#/components/schemas/EventIn"}},
                ]
            },
            "example": [{"id": "a1", "entity": "north", "time": "2024-05-01T09:30:00"}],
        },
        "application/x-ndjson": {"schema": {"type": "string", "description": "One per line."}},
    },
}


def create_app(service: Service, settings: Settings) -> FastAPI:
    """The application that serves ``service``, which must have been started."""
    app = FastAPI(
        title="Fourpoint",
        version=fourpoint.__version__,
        summary="A point process as a service: events in; rates, forecasts and alarms out.",
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    statistics = Statistics()
    app.state.service = service
    app.state.settings = settings
    app.state.statistics = statistics
    app.state.tokens = None if settings.tokens is None else Tokens.read(settings.tokens)
    app.state.questions = asyncio.Semaphore(ASKED_AT_ONCE)
    add_errors(app)
    _add_events(app, service, settings)
    _add_questions(app, service, settings)
    _add_alarms(app, service)
    _add_models(app, service)
    _add_health(app, service, statistics)
    add_dashboard(app, service, need("read"))
    app.add_middleware(Guard, settings=settings, statistics=statistics)
    _describe_events(app)
    return app


def _describe_events(app: FastAPI) -> None:
    """Add the shape of an event, whose body is read here and not by FastAPI, to the description."""
    template = "#/components/schemas/{model}"
    shape = schemas.EventIn.model_json_schema(ref_template=template)
    app.openapi()["components"]["schemas"]["EventIn"] = shape


def need(scope: Literal["read", "write", "admin"]) -> Callable[..., str]:
    """A dependency: the name of a token with ``scope``; anyone where the service has no tokens."""

    def check(request: Request, given: Credentials = None) -> str:
        tokens: Tokens | None = request.app.state.tokens
        if tokens is None:
            return ANYONE
        found = None if given is None else tokens.find(given.credentials)
        if found is None:
            raise HTTPException(
                401,
                f"expected a known token; received {'none' if given is None else 'another'}. "
                "Send it as Authorization: Bearer TOKEN.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not found.allows(scope):
            raise HTTPException(
                403,
                f"expected a token with the scope {scope}; received one with "
                f"{', '.join(sorted(found.scopes))}. Use another token.",
            )
        return found.name

    return check


Reader = Annotated[str, Depends(need("read"))]
Writer = Annotated[str, Depends(need("write"))]
Admin = Annotated[str, Depends(need("admin"))]


def add_errors(app: FastAPI) -> None:
    """Every error as an object with one text."""

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        text = str(error.detail)
        if not text.startswith("expected"):  # a path or a method that no handler has
            expected = "a path" if error.status_code == 404 else "a method"
            text = str(
                UserError(
                    f"{expected} of this interface",
                    f"{request.method:.20} {request.url.path:.80}",
                    "GET /openapi.json lists them.",
                )
            )
        return JSONResponse({"error": text}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return problem(
            400, UserError(f"a valid {where!r}", str(first["msg"])[:200], "See /openapi.json.")
        )

    @app.exception_handler(UserError)
    async def wrong(request: Request, error: UserError) -> JSONResponse:
        return problem(400, error)

    @app.exception_handler(Unknown)
    async def unknown(request: Request, error: Unknown) -> JSONResponse:
        return problem(
            404,
            UserError(
                "an entity with events", f"{str(error)!r:.80}", "GET /v1/entities lists them."
            ),
        )

    @app.exception_handler(StoreError)
    async def not_stored(request: Request, error: StoreError) -> JSONResponse:
        return problem(
            503,
            UserError(
                "a store that can be written",
                "one whose disk is full"
                if isinstance(error, StoreFull)
                else "one that cannot at present",
                "Nothing was acknowledged: send the same events again, with their ids.",
            ),
        )

    @app.exception_handler(TimeoutError)
    async def too_slow(request: Request, error: TimeoutError) -> JSONResponse:
        return problem(
            503,
            UserError(
                f"an answer within {WAIT:g} s",
                "none yet",
                "Send the same events again, with their ids: none counts twice.",
            ),
        )

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return problem(
            503, UserError("room in the queue", str(error), "Wait a second and send again.")
        )


def _add_events(app: FastAPI, service: Service, settings: Settings) -> None:
    @app.post(
        "/v1/events",
        response_model=schemas.Receipt,
        tags=["events"],
        openapi_extra={"requestBody": EVENTS_BODY},
        responses={
            413: {"model": schemas.Problem, "description": "Too large."},
            415: {"model": schemas.Problem, "description": "Neither JSON nor NDJSON."},
            422: {"model": schemas.Receipt, "description": "All events were refused."},
        },
    )
    async def post_events(request: Request, who: Writer) -> JSONResponse:
        """Send events: one object, an array, or one object per line. They are acknowledged once
        they are stored. An event whose ``id`` is known already is counted as a duplicate.
        """
        content = await read_body(request, settings)
        events = parsed_events(content, request.headers.get("content-type", ""), settings)
        receipt = await asyncio.wait_for(
            asyncio.shield(asyncio.wrap_future(service.submit(events))), WAIT
        )
        nothing = not receipt.accepted and not receipt.duplicates and receipt.refused
        return JSONResponse(receipt.to_dict(), 422 if nothing else 200)

    @app.get("/v1/events", response_model=schemas.Events, tags=["events"])
    async def get_events(
        who: Reader,
        entity: str | None = None,
        late: bool = False,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> dict[str, Any]:
        """The last stored events, of one entity or of all; ``late``: those that came too late to be
        scored.
        """
        engine = service.engine
        names = engine.served.model.marks.names

        def read() -> list[dict[str, Any]]:
            rows = service.store.late(limit) if late else service.store.recent(limit, entity)
            return [
                {
                    "id": event.id,
                    "entity": event.entity,
                    "time": engine.shown(event.moment),
                    "mark": names[event.mark] if names else None,
                    "late": event.late,
                }
                for event in rows
            ]

        return {"events": await run_in_threadpool(read)}


async def read_body(request: Request, settings: Settings) -> bytes:
    """The body of a request, which must be whole in time and not too large."""
    most = settings.limits.body
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.limits.patience):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise HTTPException(
                        413,
                        f"expected a body of at most {most:,} bytes; received more. Send fewer "
                        "events.",
                    )
                parts.append(part)
    except TimeoutError:
        raise HTTPException(
            408,
            f"expected a whole body within {settings.limits.patience:g} s; received {size:,} "
            "bytes. Send it faster, or in parts.",
        ) from None
    return b"".join(parts)


def parsed_events(content: bytes, kind: str, settings: Settings) -> list[object]:
    """The events of a body: an object, an array of them, or one per line.

    >>> parsed_events(b'{"time": 1}', "application/json", Settings())
    [{'time': 1}]
    >>> parsed_events(b'{"time": 1}\\n{"time": 2}\\n', "application/x-ndjson", Settings())
    [{'time': 1}, {'time': 2}]
    """
    media = kind.partition(";")[0].strip().lower()
    if media not in (*JSON_TYPES, *LINE_TYPES):
        raise HTTPException(
            415,
            f"expected the type application/json or application/x-ndjson; received {media!r:.60}. "
            "Set the header Content-Type: application/json.",
        )
    loads = loader()
    events: list[object]
    if media in JSON_TYPES:
        try:
            found = loads(content)
        except (ValueError, RecursionError) as error:
            raise UserError(
                "JSON: an event or an array of events",
                f"{content[:60]!r} ({str(error)[:80]})",
                "Repair it; for one event per line send application/x-ndjson.",
            ) from None
        events = found if isinstance(found, list) else [found]
    else:
        events = [_line(line, loads) for line in content.split(b"\n") if line.strip()]
    most = settings.limits.events
    if not events or len(events) > most:
        raise UserError(
            f"1 to {most:,} events in a request", f"{len(events):,}", "Send them in parts."
        )
    return events


def _line(line: bytes, loads: Callable[[bytes], Any]) -> object:
    """The value of a line; text where it is no JSON, which is refused as an event."""
    try:
        return loads(line)
    except (ValueError, RecursionError):
        return line[:80].decode(errors="replace")


def _add_questions(app: FastAPI, service: Service, settings: Settings) -> None:
    @app.get("/v1/entities", response_model=schemas.Entities, tags=["entities"])
    async def get_entities(
        who: Reader,
        sort: Literal["surprise", "events", "recent", "id"] = "surprise",
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        offset: Annotated[int, Query(ge=0)] = 0,
    ) -> dict[str, Any]:
        """Entities with their rates now; by default the most surprising first. Surprise is the
        largest statistic of an entity's watches over its threshold: 1 raises an alarm.
        """
        return await asyncio.wrap_future(service.entities(sort, limit, offset))

    @app.get(
        "/v1/entities/{id:path}",
        response_model=schemas.Entity,
        tags=["entities"],
        responses=NOT_FOUND,
    )
    async def get_entity(who: Reader, id: str) -> dict[str, Any]:
        """One entity: events known, rate now, last event and surprise."""
        found = await asyncio.wrap_future(service.entity(id))
        if found is None:
            raise Unknown(id)
        return found

    @app.get(
        "/v1/forecast", response_model=schemas.Forecast, tags=["questions"], responses=NOT_FOUND
    )
    async def get_forecast(
        request: Request,
        who: Reader,
        horizon: Annotated[str, Query(max_length=40)],
        entity: str | None = None,
        paths: Annotated[int, Query(ge=10)] = 500,
        seed: Annotated[int, Query(ge=0)] = 0,
    ) -> dict[str, Any]:
        """Counts until ``horizon`` (4h, 30d, or a number in the model's unit), the next event, and
        a band of the rate.
        """
        most = min(paths, settings.limits.paths)
        async with request.app.state.questions:
            return await run_in_threadpool(
                lambda: forecast_fields(service, horizon, entity, paths=most, seed=seed)
            )

    @app.get(
        "/v1/explain", response_model=schemas.Explanation, tags=["questions"], responses=NOT_FOUND
    )
    async def get_explain(
        request: Request,
        who: Reader,
        entity: str | None = None,
        top: Annotated[int, Query(ge=1, le=500)] = 20,
    ) -> dict[str, Any]:
        """What each past event adds to the rate now, the largest effect first."""
        async with request.app.state.questions:
            return await run_in_threadpool(lambda: explain_fields(service, entity, top))


def _add_alarms(app: FastAPI, service: Service) -> None:
    @app.get("/v1/alarms", response_model=schemas.Alarms, tags=["alarms"])
    async def get_alarms(
        who: Reader,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=0)] = None,
        open: bool = False,
    ) -> dict[str, Any]:
        """The last alarms, the latest first; ``open``: those that nobody has acknowledged."""
        rows = await run_in_threadpool(lambda: service.store.alarms(limit, before, unseen=open))
        return {"alarms": [service.engine.alarm_fields(row) for row in rows]}

    @app.post(
        "/v1/alarms/{id}/ack", response_model=schemas.Alarm, tags=["alarms"], responses=NOT_FOUND
    )
    async def acknowledge(who: Writer, id: int) -> dict[str, Any]:
        """Acknowledge an alarm."""
        found = await asyncio.wrap_future(service.call(lambda engine: engine.acknowledge(id, who)))
        if found is None:
            raise HTTPException(
                404, f"expected the number of an alarm; received {id}. See GET /v1/alarms."
            )
        service.live.publish("alarm", found)
        return found

    async def live(request: Request, who: Reader) -> StreamingResponse:
        """Events, alarms and the status as they come, as server-sent events; with the header
        Last-Event-ID those that were missed come first.
        """
        last = request.headers.get("last-event-id")
        return StreamingResponse(
            service.live.listen(last),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    stream: dict[str, Any] = {
        "response_class": StreamingResponse,
        "responses": {200: {"content": {"text/event-stream": {}}}},
        "tags": ["alarms"],
    }
    app.get("/v1/live", **stream)(live)
    app.get("/live", include_in_schema=False, **stream)(live)


def _add_models(app: FastAPI, service: Service) -> None:
    @app.post("/v1/model/reload", response_model=schemas.Model, tags=["models"])
    async def reload(who: Admin) -> dict[str, Any]:
        """Follow the model that is in the service's folder now, after a refit. It goes through the
        stored events while further ones are accepted.
        """
        return await run_in_threadpool(service.reload)

    @app.post("/v1/model/promote", response_model=schemas.Model, tags=["models"])
    async def promote(who: Admin) -> dict[str, Any]:
        """Make the shadow model the live one, with the state that it has."""
        return await run_in_threadpool(service.promote)

    @app.get("/v1/digest", response_model=schemas.Digest, tags=["models"])
    async def digest(who: Admin) -> dict[str, Any]:
        """A hash of the state of all entities: equal for equal events, however they came and
        however often the service was restarted.
        """
        return await asyncio.wrap_future(
            service.call(
                lambda engine: {"digest": engine.digest(), "events": engine.counters.events}
            )
        )


def _add_health(app: FastAPI, service: Service, statistics: Statistics) -> None:
    @app.get("/healthz", response_model=schemas.Health, tags=["health"])
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", response_model=schemas.Health, tags=["health"])
    async def readyz() -> JSONResponse:
        """Whether events are accepted and stored."""
        ready = service.is_ready
        return JSONResponse({"status": "ok" if ready else "not ready"}, 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["health"])
    async def get_metrics(who: Reader) -> PlainTextResponse:
        """Statistics as Prometheus reads them."""
        text = await run_in_threadpool(lambda: metrics_text(service, statistics))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
