"""``fourpoint serve --group``: a worker of a consumer group with an HTTP interface.

    POST /v1/events           events are checked and published to the partitions of their entities
    GET  /v1/entities, /v1/entities/{id}, /v1/alarms, /v1/group
    GET  /healthz, /readyz, /metrics

Any worker answers for all entities: what it says of one is read from the shared store, as of the
last commit of whichever worker owns it. An event is acknowledged once the broker has it; it is
scored by the owner of its partition.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

import fourpoint
from fourpoint.errors import UserError
from fourpoint.models.base import PointProcess
from fourpoint.serve.app import ERRORS, Reader, Writer, add_errors, parsed_events, read_body
from fourpoint.serve.brokers.group import Progress
from fourpoint.serve.brokers.group_store import GroupStore
from fourpoint.serve.brokers.kafka_source import client_module
from fourpoint.serve.brokers.redis_source import FIELD, connect, partition_of
from fourpoint.serve.brokers.stream_group import (
    PARTITIONS,
    START,
    Broker,
    GroupOptions,
    stream_group,
)
from fourpoint.serve.guard import Guard, Statistics
from fourpoint.serve.questions import Unknown
from fourpoint.serve.settings import Settings
from fourpoint.serve.tokens import Tokens
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.feed.events import Event
from fourpoint.streaming.feed.feed import alarm_level, entity_column
from fourpoint.streaming.feed.reading import Asked, EventReader
from fourpoint.streaming.feed.state import Header
from fourpoint.streaming.feed.times import TimeReader
from fourpoint.streaming.feed.training_window import Trained
from fourpoint.streaming.store import Row

ALL = "all"  # the mark of a model without marks


class Publisher(Protocol):
    """Where posted events go."""

    def publish(self, events: Sequence[tuple[str, bytes]]) -> None:
        """Send events, each with its entity; raises OSError where the broker has not got all."""

    def close(self) -> None:
        """End the connection."""


class RedisPublisher:
    """Appends events to the streams that their entities choose."""

    def __init__(self, broker: Broker) -> None:
        self._client = connect(broker.redis or "")
        self._stream = broker.topic
        self._partitions = broker.partitions or PARTITIONS

    def publish(self, events: Sequence[tuple[str, bytes]]) -> None:
        """All of them or none."""
        import redis

        pipe = self._client.pipeline(transaction=True)
        for entity, content in events:
            part = partition_of(entity, self._partitions)
            key = self._stream if self._partitions == 1 else f"{self._stream}:{part}"
            pipe.xadd(key, {FIELD: content})
        try:
            pipe.execute()
        except redis.RedisError as error:
            raise OSError(f"{error} (Redis)") from None

    def close(self) -> None:
        """End the connection."""
        self._client.close()


class KafkaPublisher:
    """Sends events with their entities as keys."""

    def __init__(self, broker: Broker) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.kafka,
            "enable.idempotence": True,
            "message.timeout.ms": 10_000,
            "log_level": 0,
            **broker.client_options(),
        }
        self._producer = client_module().Producer(settings)
        self._topic = broker.topic

    def publish(self, events: Sequence[tuple[str, bytes]]) -> None:
        """Send events, and wait until the broker has them."""
        failed: list[str] = []

        def note(error: object, message: object) -> None:
            if error is not None:
                failed.append(str(error))

        for entity, content in events:
            self._producer.produce(self._topic, key=entity, value=content, on_delivery=note)
        left = self._producer.flush(15.0)
        if failed or left:
            raise OSError(f"{failed[0] if failed else 'no answer'} (Kafka)")

    def close(self) -> None:
        """Nothing waits between two requests."""


class _OneEntity:
    """The state of one entity, for a bank."""

    def __init__(self, name: str, row: Row) -> None:
        self._name, self._row = name, row

    def __len__(self) -> int:
        return 1

    def __contains__(self, name: str) -> bool:
        return name == self._name

    def names(self) -> Iterable[str]:
        return [self._name]

    def names_after(self, name: str | None, most: int) -> list[str]:
        return [self._name] if name is None or name < self._name else []

    def read(self, names: Sequence[str]) -> dict[str, Row]:
        return {self._name: self._row} if self._name in names else {}

    def write(self, rows: object) -> None:
        raise UserError(
            "a state that is only read", "a bank that writes it", "Please report this error."
        )

    def clear(self) -> None:
        self.write([])


@dataclass
class GroupService:
    """A worker of a group in a thread, and questions about the group."""

    model: PointProcess
    trained: Trained
    options: GroupOptions
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self.times = TimeReader(self.trained.log, self.trained.unit)
        self.by = entity_column(self.trained.log, self.options.by, self.times, lambda text: None)
        self.level = alarm_level(self.options.alarms)
        self.failed: BaseException | None = None
        self.at_failure: Callable[[], None] = lambda: None
        self.progress: Progress | None = None
        self._told: list[int] = []
        self._lock = threading.Lock()
        self._store = GroupStore(self.options.store, self.options.group)
        broker = self.options.broker
        self._publisher: Publisher = (
            KafkaPublisher(broker) if broker.redis is None else RedisPublisher(broker)
        )
        names = {name: i for i, name in enumerate(self.model.marks.names)}
        features = self.model.event_features
        self._reader = EventReader(
            names,
            Asked(self.options.time, self.options.mark, self.by),
            self.times,
            header=Header(),
            features=() if features is None else features.spec.names,
        )
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether the worker is at work."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Commit what was scored, leave the group, and end."""
        self._told.append(1)
        if self._thread.is_alive():
            self._thread.join()
        self._publisher.close()
        self._store.close()

    def _run(self) -> None:
        try:
            self.progress = stream_group(
                self.model, self.options, self.trained, told=self._told, tell=self.tell
            )
        except BaseException as error:
            self.failed = error
            self.tell(f"the worker has ended: {error}")
            self.at_failure()

    # ------------------------------------------------------------------ requests

    def publish(self, events: Sequence[object]) -> dict[str, Any]:
        """Check events and send them to the broker: how many were accepted, and what was refused.

        Raises OSError where the broker does not answer; then none of them may be there.
        """
        kept: list[tuple[str, bytes]] = []
        refused: list[dict[str, Any]] = []
        for index, fields in enumerate(events):
            found = self._checked(fields)
            if isinstance(found, UserError):
                refused.append({"index": index, "error": str(found)})
            else:
                kept.append(found)
        if kept:
            with self._lock:
                self._publisher.publish(kept)
        return {
            "accepted": len(kept),
            "duplicates": 0,
            "late": 0,
            "refused": refused,
            "alarms": [],
        }

    def _checked(self, fields: object) -> tuple[str, bytes] | UserError:
        if not isinstance(fields, dict):
            received = f"{type(fields).__name__} {fields!r:.60}"
            return UserError("an event as an object", received, "Send objects.")
        if self.by is not None and self.by not in fields and "entity" in fields:
            fields = {**fields, self.by: fields["entity"]}
        event = self._reader.event(fields)
        if not isinstance(event, Event):
            return event
        return event.entity or "", json.dumps(fields).encode()

    def entity(self, name: str) -> dict[str, Any] | None:
        """One entity as of its last commit; None if it has none."""
        with self._lock:
            part = self._store.part_of(name)
            rows = {} if part is None else self._store.entity_rows(part, [name])
            begin = self._begin()
        if part is None or name not in rows:
            return None
        followed = self.model
        if self.options.keep is not None:
            followed = self.model.keeping(self.options.keep)
        bank = StreamBank(
            followed,
            start=begin,
            alarms=self.level,
            threads=1,
            store=_OneEntity(name, rows[name]),
        )
        places, _ = bank.table.assign([name])
        last = bank.table.numbers["at"][places]
        rates = bank.rates(places, last)[0]
        marks = bank.model.marks.names or (ALL,)
        dates = self.times.dates()
        return {
            "id": name,
            "partition": part,
            "events": bank.count(name),
            "rate": float(rates.sum()),
            "rates": dict(zip(marks, rates.tolist(), strict=True)),
            "last_event": float(last[0]) if dates is None else dates.iso(float(last[0])),
            "surprise": float(bank.surprise(places)[0]),
        }

    def _begin(self) -> float:
        settled = self._store.settings()
        begin = settled.get("start")
        if begin is None:
            begin = settled.get(START)
        return float(begin or 0.0)

    def entities(self, limit: int, after: str) -> dict[str, Any]:
        """Names of entities in order."""
        with self._lock:
            names = self._store.names(after, limit)
            return {"total": self._store.total_entities(), "entities": names}

    def alarms(self, limit: int) -> dict[str, Any]:
        """The last alarms by their times, the latest first."""
        with self._lock:
            found = self._store.alarms()
        found.sort(key=lambda alarm: float(alarm.body["time"]), reverse=True)
        return {"alarms": [{"id": alarm.id, **alarm.body} for alarm in found[:limit]]}

    def group(self) -> dict[str, Any]:
        """Who owns what, and how far it is."""
        with self._lock:
            leases = self._store.leases()
            positions = self._store.positions()
            workers = self._store.workers()
            events = self._store.events()
            refused = self._store.refused()
            unsent = len(self._store.unsent())
        return {
            "group": self.options.group,
            "workers": workers,
            "events": events,
            "refused": refused,
            "unsent_alarms": unsent,
            "partitions": [
                {"partition": part, "owner": lease.owner, "position": positions.get(part)}
                for part, lease in sorted(leases.items())
                if part >= 0
            ],
        }


def create_group_app(service: GroupService, settings: Settings) -> FastAPI:
    """The application around a worker."""
    app = FastAPI(
        title="Fourpoint, a worker of a consumer group",
        version=fourpoint.__version__,
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    statistics = Statistics()
    app.state.tokens = None if settings.tokens is None else Tokens.read(settings.tokens)
    add_errors(app)
    app.add_middleware(Guard, settings=settings, statistics=statistics)

    @app.post("/v1/events", tags=["events"])
    async def post_events(request: Request, who: Writer) -> JSONResponse:
        """Publish events to the partitions of their entities; they are acknowledged once the
        broker has them.
        """
        content = await read_body(request, settings)
        events = parsed_events(content, request.headers.get("content-type", ""), settings)
        try:
            receipt = await run_in_threadpool(service.publish, events)
        except OSError:
            return JSONResponse(
                {
                    "error": "expected a broker that responds; received none. Send the same events "
                    "again, with their ids."
                },
                503,
            )
        nothing = not receipt["accepted"] and receipt["refused"]
        return JSONResponse(receipt, 422 if nothing else 200)

    @app.get("/v1/entities", tags=["entities"])
    async def get_entities(
        who: Reader,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        after: Annotated[str, Query(max_length=256)] = "",
    ) -> dict[str, Any]:
        """Names of entities after a name, in order."""
        return await run_in_threadpool(service.entities, limit, after)

    @app.get("/v1/entities/{id:path}", tags=["entities"])
    async def get_entity(who: Reader, id: str) -> dict[str, Any]:
        """One entity after its last committed event, whichever worker owns it."""
        found = await run_in_threadpool(service.entity, id)
        if found is None:
            raise Unknown(id)
        return found

    @app.get("/v1/alarms", tags=["alarms"])
    async def get_alarms(
        who: Reader, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> dict[str, Any]:
        """The last alarms of the whole group, the latest first."""
        return await run_in_threadpool(service.alarms, limit)

    @app.get("/v1/group", tags=["health"])
    async def get_group(who: Reader) -> dict[str, Any]:
        """The workers of the group, and the owner and the position of each partition."""
        return await run_in_threadpool(service.group)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"])
    async def readyz() -> JSONResponse:
        """Whether the worker is at work."""
        ready = service.is_ready
        return JSONResponse({"status": "ok" if ready else "not ready"}, 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["health"])
    async def get_metrics(who: Reader) -> PlainTextResponse:
        """Statistics of the group as Prometheus reads them."""
        found = await run_in_threadpool(service.group)
        numbers = {
            "events_total": found["events"],
            "refused_total": found["refused"],
            "unsent_alarms": found["unsent_alarms"],
            "workers": len(found["workers"]),
            "ready": int(service.is_ready),
        }
        lines = [f"fourpoint_group_{name} {value}" for name, value in numbers.items()]
        return PlainTextResponse("\n".join(lines) + "\n")

    return app
