"""Brokers as sources of the service, its alarms sent to sinks, and a service that is a worker of a
consumer group.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker_servers import kafka_broker, redis_server, wait_until

pytest.importorskip("fastapi", reason="fastapi is not installed (fourpoint[serve])")

from fourpoint.errors import UserError
from fourpoint.events import MarkSpace
from fourpoint.models import Hawkes
from fourpoint.serve.brokers import verify
from fourpoint.serve.brokers.feeding import AlarmSender, BrokerFeed
from fourpoint.serve.brokers.group_app import GroupService, create_group_app
from fourpoint.serve.brokers.redis_source import publish
from fourpoint.serve.brokers.stream_group import Broker, GroupOptions
from fourpoint.serve.brokers.webhook import SIGNATURE, Webhook
from fourpoint.serve.databases import StoreError, database
from fourpoint.serve.engine import Engine, Request, Served
from fourpoint.serve.service import Service
from fourpoint.serve.settings import Scoring, Settings
from fourpoint.serve.store import SqlStore
from fourpoint.storage.checkpoints import save
from fourpoint.streaming.feed.training_window import Trained
from fourpoint.streaming.stream import Stream

SECRET = b"a secret of some length"
SETTINGS = Settings(scoring=Scoring(by="customer", start="0", max_gap="none"))
Event = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


@pytest.fixture
def redis(server: Any) -> Any:
    with closing(server.client()) as client:
        client.flushall()
    return server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(hawkes(), tmp_path / "model")
    return tmp_path / "model"


def hawkes() -> Hawkes:
    marks = MarkSpace(("order", "return"))
    return Hawkes(marks, baseline=[0.6, 0.3], branching=[[0.3, 0.2], [0.1, 0.2]], decay=1.5)


def shop(count: int, entities: int = 20) -> list[Event]:
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, count / entities, count)).tolist()
    return [
        {
            "id": f"event-{i}",
            "time": time,
            "mark": ("order", "return")[int(rng.integers(2))],
            "customer": f"c{int(rng.integers(entities))}",
        }
        for i, time in enumerate(times)
    ]


def send(server: Any, events: list[Event]) -> None:
    with closing(server.client()) as client:
        publish(client, "events", 4, "customer", events)


def uninterrupted(events: list[Event], tmp_path: Path) -> str:
    """The state of a service that got all events at once."""
    store = SqlStore(database(f"sqlite:///{tmp_path}/alone.db"))
    with closing(store):
        engine = Engine(Served(Path("model"), hawkes(), Trained()), store, SETTINGS)
        engine.accept([Request(events)])
        return entities_of(engine)


def entities_of(engine: Engine) -> str:
    """Events, log-likelihood and next rates of every entity: those of types and of the fleet depend
    on the order in which partitions are read.
    """
    entities = engine.live.entities
    assert entities is not None
    bank = entities.bank
    names = sorted(bank.entities)
    return json.dumps(
        [
            (name, bank.count(name), bank.log_likelihood(name), bank.intensity(name, 1e3).tolist())
            for name in names
        ]
    )


@contextmanager
def fed(model: Path, url: str, broker: Broker) -> Iterator[tuple[Service, BrokerFeed]]:
    service = Service(model, url, SETTINGS)
    service.start()
    feed = BrokerFeed(service, "events", lambda: broker.source("fourpoint", lambda text: None))
    feed.start()
    try:
        yield service, feed
    finally:
        feed.close()
        service.close()


def test_service_reads_redis_and_goes_on_after_a_restart(
    redis: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit fails in the middle, and the service is stopped and started again."""
    events = shop(900)
    url = f"sqlite:///{tmp_path}/serve.db"
    broker = Broker(redis=redis.url, partitions=4)
    send(redis, events[:300])
    with fed(model, url, broker) as (service, feed):
        wait_until(lambda: feed.events == 300)
        append, failed = SqlStore.append, []

        def fails_once(self: SqlStore, rows: Any) -> None:
            append(self, rows)
            if not failed:
                failed.append(1)
                raise StoreError("the disk is full (SQLite)")

        monkeypatch.setattr(SqlStore, "append", fails_once)
        send(redis, events[300:600])
        wait_until(lambda: feed.events == 600)
        assert failed and service.store.counts()["events"] == 600
    send(redis, events[600:])
    with fed(model, url, broker) as (service, feed):
        wait_until(lambda: feed.events == 300)
        assert service.store.counts()["events"] == 900
        assert entities_of(service.engine) == uninterrupted(events, tmp_path)


def test_service_reads_kafka_and_tells_what_is_no_event(model: Path, tmp_path: Path) -> None:
    events = shop(200)
    told: list[str] = []
    with kafka_broker("events") as (producer, servers):
        for event in events:
            producer.produce("events", key=event["customer"], value=json.dumps(event))
        producer.produce("events", key="c1", value="no JSON")
        producer.flush(60)
        service = Service(model, f"sqlite:///{tmp_path}/serve.db", SETTINGS)
        service.start()
        broker = Broker(kafka=servers)
        feed = BrokerFeed(
            service, "kafka", lambda: broker.source("fourpoint", told.append), told.append
        )
        feed.start()
        wait_until(lambda: service.engine.counters.events == 200)
        wait_until(lambda: service.engine.counters.refused == 1)
        feed.close()
        positions = service.store.offsets("kafka")
        service.close()
    assert sum(map(int, positions.values())) == 201
    assert [text for text in told if text.startswith("partition") and "no JSON" in text]


class _Receiver(BaseHTTPRequestHandler):
    statuses: list[int] = []
    came: list[tuple[dict[str, str], bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).came.append((dict(self.headers), body))
        self.send_response(self.statuses.pop(0) if self.statuses else 200)
        self.end_headers()

    def log_message(self, *given: Any) -> None:
        pass


def test_alarms_of_the_service_are_sent_in_order(model: Path, tmp_path: Path) -> None:
    handler = type("Receiver", (_Receiver,), {"statuses": [500], "came": []})
    burst = [
        {"time": 101.0 + 0.001 * i, "mark": "order", "customer": "c0", "id": i} for i in range(400)
    ]
    url = f"sqlite:///{tmp_path}/serve.db"
    with HTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        hook = f"http://127.0.0.1:{listening.server_port}/"
        service = Service(model, url, SETTINGS)
        service.start()
        sender = AlarmSender(service, {hook: Webhook(hook, SECRET)})
        sender.start()
        service.submit([*shop(200, 2), *burst]).result()
        raised = service.engine.counters.alarms
        assert raised > 0
        wait_until(lambda: len(handler.came) == raised + 1)
        wait_until(lambda: service.store.text(f"alarms sent to {hook}") == str(raised))
        sender.close()
        service.close()
        listening.shutdown()
        thread.join()
    sent = [json.loads(body) for _, body in handler.came]
    assert [one["id"] for one in sent] == [
        f"alarm-{number}" for number in (1, *range(1, raised + 1))
    ]
    assert all(verify(SECRET, body, headers[SIGNATURE]) for headers, body in handler.came)


# ---------------------------------------------------------------------- a worker that serves


@contextmanager
def serving(url: str, broker: Broker) -> Iterator[tuple[GroupService, str]]:
    """A worker of a group with its HTTP interface."""
    import uvicorn

    from fourpoint.serve.server import configuration

    options = GroupOptions(
        *("watch", url, broker), by="customer", start="0", max_gap="none", id="id", lease=1.0
    )
    service = GroupService(hawkes(), Trained(), options, lambda text: None)
    config = configuration(create_group_app(service, SETTINGS), SETTINGS)
    config.port = 0
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    service.start()
    thread.start()
    wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield service, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        service.close()


def ask(address: str, path: str, events: object = None) -> tuple[int, Any]:
    body = None if events is None else json.dumps(events).encode()
    request = urllib.request.Request(
        address + path, data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
            status = answer.status
    except urllib.error.HTTPError as error:
        content, status = error.read(), error.code
        error.close()
    return status, json.loads(content) if content.startswith(b"{") else content.decode()


def owners(address: str) -> set[str]:
    """The workers that own partitions, which may be free for a moment while they move."""
    partitions = ask(address, "/v1/group")[1]["partitions"]
    return {row["owner"] for row in partitions if row["owner"] is not None}


def test_workers_that_serve_share_entities(redis: Any, tmp_path: Path) -> None:
    """Events posted to either worker are scored once, and either answers for all entities, also
    after one of them has ended.
    """
    events = shop(400)
    url = f"sqlite:///{tmp_path}/group.db"
    broker = Broker(redis=redis.url, partitions=4)
    with serving(url, broker) as (one, first):
        with serving(url, broker) as (two, second):
            wait_until(lambda: len(ask(first, "/v1/group")[1]["workers"]) == 2)
            assert ask(first, "/v1/events", events[:100])[1]["accepted"] == 100
            assert ask(second, "/v1/events", events[50:200])[1]["accepted"] == 150
            wait_until(lambda: ask(second, "/v1/group")[1]["events"] == 200)
            wait_until(lambda: len(owners(first)) == 2)
            assert one.is_ready and two.is_ready
        wait_until(lambda: len(ask(first, "/v1/group")[1]["workers"]) == 1)
        assert ask(first, "/v1/events", events[200:])[1]["accepted"] == 200
        wait_until(lambda: ask(first, "/v1/group")[1]["events"] == 400)
        status, found = ask(first, "/v1/entities/c3")
        own = [event for event in events if event["customer"] == "c3"]
        stream = Stream(hawkes(), alarms=None)
        for event in own:
            stream.observe(event["time"], event["mark"])
        assert status == 200 and found["events"] == len(own)
        assert found["last_event"] == own[-1]["time"]
        assert found["rate"] == pytest.approx(
            float(stream.intensity(own[-1]["time"]).sum()), rel=1e-12
        )
        assert ask(first, "/v1/entities?limit=3")[1] == {
            "total": 20,
            "entities": ["c0", "c1", "c10"],
        }
        assert ask(first, "/v1/entities/nobody")[0] == 404
        status, refused = ask(first, "/v1/events", [{"time": 1.0, "customer": "c3"}, 5])
        assert status == 422 and [one["index"] for one in refused["refused"]] == [0, 1]
        assert ask(first, "/healthz")[0] == ask(first, "/readyz")[0] == 200
        assert "fourpoint_group_events_total 400" in ask(first, "/metrics")[1]
        assert ask(first, "/v1/alarms")[0] == 200


def test_events_are_not_acknowledged_while_the_broker_is_away(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        url = f"sqlite:///{tmp_path}/group.db"
        broker = Broker(redis=server.url, partitions=1)
        with serving(url, broker) as (_, address):
            assert ask(address, "/v1/events", shop(5))[0] == 200
            server.kill()
            assert ask(address, "/v1/events", shop(5))[0] == 503
            server.start()
            wait_until(lambda: ask(address, "/v1/events", shop(5))[0] == 200)
            wait_until(lambda: ask(address, "/v1/group")[1]["events"] == 5)  # once, by their ids


def test_worker_that_cannot_work_is_not_ready(redis: Any, tmp_path: Path) -> None:
    broker = Broker(redis=redis.url, partitions=1)
    options = GroupOptions(
        "watch", f"sqlite:///{tmp_path}/group.db", broker, by="customer", lease=0.0
    )
    told: list[str] = []
    service = GroupService(hawkes(), Trained(), options, told.append)
    service.start()
    wait_until(lambda: not service.is_ready)
    service.close()
    assert isinstance(service.failed, UserError) and "--lease from" in told[-1]
    assert time.monotonic() > 0
