"""The service over HTTP: what clients send and get, who may do what, and what is refused while the
service lives on.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

import uvicorn

from fourpoint.cli.options import ReadingOptions
from fourpoint.cli.serve import run_service
from fourpoint.errors import UserError
from fourpoint.events import MarkSpace
from fourpoint.log_format import LogFormat
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson
from fourpoint.serve.app import create_app
from fourpoint.serve.databases import StoreError, database
from fourpoint.serve.engine import Served
from fourpoint.serve.refit import refit
from fourpoint.serve.server import Server, configuration, listen, serve
from fourpoint.serve.service import Service
from fourpoint.serve.settings import Limits, Scoring, Settings
from fourpoint.serve.store import SqlStore
from fourpoint.serve.tokens import Tokens, add_token
from fourpoint.storage.checkpoints import save

ORIGIN = datetime.now(UTC).replace(microsecond=0, second=0) - timedelta(days=3)
LIMITS = Limits(body=20_000, events=200, entities=40, patience=0.5)
MARKS = MarkSpace(("fire", "medical"))


def save_model(folder: Path, model: Any = None) -> Path:
    log = LogFormat(
        "when",
        mark="kind",
        sequence="station",
        clock="stamps",
        zone="Europe/Berlin",
        zoned=True,
        origin=ORIGIN.isoformat(),
    )
    about = dict(unit="hours", start=0.0, stop=2.0, events=100, sequences=5, log=log.to_dict())
    made = Hawkes(MARKS, baseline=1.0, branching=0.2, decay=2.0) if model is None else model
    return save(made, folder, about=about)


def stamp(hours: float) -> str:
    return (ORIGIN + timedelta(hours=hours)).isoformat()


def events(count: int = 60, first: float = 0.0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    times = first + np.cumsum(rng.exponential(0.1, count))
    return [
        {
            "id": f"{first}-{i}",
            "entity": f"s{i % 5}",
            "time": stamp(time),
            "mark": MARKS.names[i % 2],
        }
        for i, time in enumerate(times.tolist())
    ]


class Web:
    """A served application on a port, and a client of it."""

    def __init__(self, service: Service, port: int) -> None:
        self.service, self.port = service, port

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        token: str | None = None,
        **headers: str,
    ) -> tuple[int, Any, dict[str, str]]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            content = answer.read()
        found = dict(answer.getheaders())
        is_json = "json" in found.get("content-type", "")
        return answer.status, json.loads(content) if is_json else content.decode(), found

    def get(self, path: str, token: str | None = None) -> Any:
        status, found, _ = self.ask("GET", path, token=token)
        assert status == 200, found
        return found

    def post(self, content: object, token: str | None = None) -> tuple[int, Any]:
        body = json.dumps(content).encode()
        return self.ask("POST", "/v1/events", body, token, content_type="application/json")[:2]


@contextmanager
def served(folder: Path, settings: Settings, model: Path) -> Iterator[Web]:
    service = Service(model, f"sqlite:///{folder}/state.db", settings)
    app = create_app(service, settings)
    service.start()
    server = uvicorn.Server(configuration(app, settings))
    listening = listen(replace(settings, port=0))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield Web(service, listening.getsockname()[1])
    finally:
        server.should_exit = True
        service.live.close()
        thread.join()
        service.close()
        listening.close()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A service without tokens that has some events."""
    with served_events(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture
def web_of_one_test(tmp_path: Path) -> Iterator[Web]:
    """The same for one test alone: no other test has sent events to it."""
    with served_events(tmp_path) as found:
        yield found


@contextmanager
def served_events(folder: Path) -> Iterator[Web]:
    settings = Settings(limits=LIMITS, scoring=Scoring(start="0"))
    with served(folder, settings, save_model(folder / "model")) as found:
        assert found.post(events())[0] == 200
        yield found


# ---------------------------------------------------------------------- events and questions


def test_events_come_alone_in_arrays_and_in_lines(web: Web) -> None:
    one = {"id": "one", "station": "s1", "when": stamp(7.0), "kind": "fire"}
    assert web.post(one) == (
        200,
        {"accepted": 1, "duplicates": 0, "late": 0, "refused": [], "alarms": []},
    )
    assert web.post([one, one])[1]["duplicates"] == 2
    lines = [
        {"id": f"l{i}", "entity": "s2", "time": stamp(7.0 + i), "mark": "fire"} for i in (0, 1)
    ]
    body = "\n".join([json.dumps(lines[0]), "", "{broken", json.dumps(lines[1]), ""])
    status, found, _ = web.ask(
        "POST", "/v1/events", body.encode(), content_type="application/x-ndjson"
    )
    assert (status, found["accepted"], [r["index"] for r in found["refused"]]) == (200, 2, [1])
    status, found = web.post({"id": "bad", "entity": "s1", "time": "2024-13-01", "mark": "fire"})
    assert status == 422 and found["refused"][0]["error"].startswith("expected a timestamp")
    assert web.post({"entity": "s1", "time": stamp(9.0)[:-6], "mark": "fire"})[0] == 422


def test_entities_are_listed_with_their_rates(web: Web) -> None:
    found = web.get("/v1/entities?sort=id&limit=3")
    assert found["total"] >= 5 and [e["id"] for e in found["entities"]] == ["s0", "s1", "s2"]
    assert web.get("/v1/entities?sort=id&limit=1&offset=1")["entities"][0]["id"] == "s1"
    surprise = [e["surprise"] for e in web.get("/v1/entities")["entities"]]
    assert surprise == sorted(surprise, reverse=True) or len(set(surprise)) > 1
    one = web.get("/v1/entities/s0")
    assert one["events"] == 12 and one["rate"] > 0
    assert set(one["rates"]) == {"fire", "medical"}
    last = [e for e in events() if e["entity"] == "s0"][-1]["time"]
    assert datetime.fromisoformat(one["last_event"]) == datetime.fromisoformat(last)
    status, problem, _ = web.ask("GET", "/v1/entities/nobody")
    assert status == 404 and "expected an entity with events" in problem["error"]


def test_the_future_and_its_reasons(web: Web) -> None:
    found = web.get("/v1/forecast?horizon=4h&entity=s0&paths=200")
    assert found["horizon"] == pytest.approx(4.0) and found["unit"] == "hours"
    # A stationary rate of baseline / (1 - branching) per mark would give about 10 of both.
    assert 5 < found["total"]["mean"] < 20
    assert found["counts"]["fire"]["q05"] <= found["counts"]["fire"]["q95"]
    assert found["next"]["low"] < found["next"]["median"] < found["next"]["high"]
    assert len(found["bands"]["times"]) == len(found["bands"]["mean"])
    every = web.get("/v1/forecast?horizon=4h&paths=100")
    known = web.get("/v1/entities")["total"]
    assert 4 * 2 * known < every["total"]["mean"] < 4 * 3 * known  # 2.5 an hour in the long run
    assert every["next"]["low"] < every["next"]["median"] < every["next"]["high"]
    assert every["next"]["never"] < 1e-6 and len(every["bands"]["mean"]) == 40
    assert sum(every["next"]["marks"].values()) == pytest.approx(1.0)
    reasons = web.get("/v1/explain?entity=s0&top=5")
    assert len(reasons["events"]) == 5 and reasons["past_events"] == 12
    assert reasons["rate"] >= reasons["baseline"] > 0
    for path in ("/v1/forecast?horizon=soon&entity=s0", "/v1/explain?entity=s0&top=0"):
        status, problem, _ = web.ask("GET", path)
        assert status == 400 and "expected" in problem["error"]
    assert web.ask("GET", "/v1/forecast?horizon=1h&entity=nobody")[0] == 404


def test_long_horizons_cost_seconds_at_most(web: Web) -> None:
    found = web.get("/v1/forecast?horizon=6000&entity=s0&paths=2000")
    assert 10_000 < found["total"]["mean"] < 20_000  # 2.5 an hour, more than 10,000 of one path
    assert "band is that of events per unit" in found["notes"][0]
    assert "futures, since the horizon has many events" in found["notes"][1]
    for path in ("?horizon=1e300&entity=s0", "?horizon=1e300"):
        status, problem, _ = web.ask("GET", f"/v1/forecast{path}")
        assert status == 400
        assert problem["error"].startswith("expected a horizon in which at most 20,000 events are")
    for horizon in ("nan", "inf", "-1", "0"):
        status, problem, _ = web.ask("GET", f"/v1/forecast?horizon={horizon}&entity=s0")
        assert status == 400 and "a positive horizon" in problem["error"]


def test_paths_may_have_the_version_or_leave_it_out(web: Web) -> None:
    for path in ("/entities/s0", "/events", "/alarms", "/forecast?horizon=1h&entity=s0"):
        assert web.ask("GET", path)[0] == web.ask("GET", f"/v1{path}")[0] == 200
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert web.ask("GET", path)[0] == web.ask("GET", f"/v1{path}")[0] == 200
    status, problem, _ = web.ask("GET", "/v2/events")
    assert status == 404 and problem["error"].startswith("expected a path of this interface; rec")
    status, problem, found = web.ask("DELETE", "/v1/events")
    assert status == 405 and problem["error"].startswith("expected a method of this interface; r")


def test_a_burst_raises_an_alarm_that_is_acknowledged(web: Web) -> None:
    burst = [
        {"id": f"b{i}", "entity": "s3", "time": stamp(25 + i / 3600), "mark": "fire"}
        for i in range(80)
    ]
    raised = web.post(burst)[1]["alarms"]
    raised = [alarm for alarm in raised if alarm["kind"] == "burst" and alarm["name"] == "s3"]
    assert raised and raised[0]["size"] > 5
    listed = web.get("/v1/alarms?open=true")["alarms"]
    assert {a["id"] for a in raised} <= {a["id"] for a in listed}
    number = raised[0]["id"]
    status, found, _ = web.ask("POST", f"/v1/alarms/{number}/ack")
    assert status == 200 and found["acknowledged"]["by"] == "anyone"
    assert number not in {a["id"] for a in web.get("/v1/alarms?open=true")["alarms"]}
    assert number in {a["id"] for a in web.get("/v1/alarms?limit=1000")["alarms"]}
    assert web.ask("POST", "/v1/alarms/99999/ack")[0] == 404


def test_live_messages_come_and_are_sent_again(web: Web) -> None:
    def listen(last: str | None, until: str) -> tuple[list[str], str]:
        with closing(socket.create_connection(("127.0.0.1", web.port), timeout=60)) as client:
            resume = "" if last is None else f"Last-Event-ID: {last}\r\n"
            client.sendall(f"GET /live HTTP/1.1\r\nHost: localhost\r\n{resume}\r\n".encode())
            text = client.recv(65_536).decode()
            web.post({"id": f"live-{until}", "entity": "s4", "time": stamp(30), "mark": "fire"})
            while until not in text:
                text += client.recv(65_536).decode()
        ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
        return ids, text

    ids, text = listen(None, "live-first")
    assert "event: events" in text and "text/event-stream" in text
    again, text = listen(ids[-1], "live-second")
    assert not set(ids) & set(again)
    _, text = listen("of-another-start-7", "live-third")
    assert "live-first" in text and "live-third" in text


def test_small_answers_are_sent_at_once() -> None:
    """The body of an answer does not wait for the acknowledgement of its head."""
    found = []

    async def connect() -> None:
        listening = listen(Settings(port=0))
        accepted = asyncio.Event()

        class Noting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                own = transport.get_extra_info("socket")
                found.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                accepted.set()

        server = await asyncio.get_running_loop().create_server(Noting, sock=listening)
        _, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
        await accepted.wait()
        writer.close()
        server.close()

    asyncio.run(connect())
    assert found == [1]


def test_garbage_collections_are_short_while_it_serves(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection that visits all objects of torch would stop every thread for .1 s and more."""
    seen = []
    monkeypatch.setattr(Server, "run", lambda self, sockets: seen.append(gc.get_freeze_count()))
    settings = Settings(port=0)
    serve(create_app(web.service, settings), settings)
    assert seen[0] > 100_000


def test_health_and_metrics(web: Web) -> None:
    assert web.get("/healthz") == web.get("/readyz") == {"status": "ok"}
    text = web.get("/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["fourpoint_events_total"]) >= 60
    assert float(values["fourpoint_ready"]) == 1
    count = float(values["fourpoint_request_seconds_count"])
    assert float(values['fourpoint_request_seconds_bucket{le="+Inf"}']) == count > 0
    assert 'path="/v1/events"' in text
    for method in ("FOURPOINT", "TETRAPOINT"):  # counted together: clients choose the names
        assert web.ask(method, "/")[0] == 405
    assert "POINT" not in web.get("/metrics")


def test_the_store_that_fails_is_told_and_comes_back(
    web_of_one_test: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = web_of_one_test
    event = {"id": "unlucky", "entity": "s1", "time": stamp(7.0), "mark": "fire"}

    def full(*_: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(web.service.store, "put_text", full)
        status, found = web.post(event)
        assert status == 503 and "send the same events again" in found["error"]
        assert web.ask("GET", "/readyz")[0] == 503 and web.ask("GET", "/healthz")[0] == 200
    assert web.post(event)[1]["accepted"] == 1
    assert web.ask("GET", "/readyz")[0] == 200
    assert web.post(event)[1]["duplicates"] == 1


def test_a_full_disk_is_named_and_nothing_counts_until_it_has_room(
    web_of_one_test: Web,
) -> None:
    web = web_of_one_test
    events = [
        {"id": f"full{i}", "entity": "s1", "time": stamp(7.0), "mark": "fire"} for i in range(200)
    ]
    before = web.service.store.counts()["events"]

    def limit(pages: int) -> None:
        """SQLite itself reports a full disk where its file may have no further page."""
        execute = web.service.store._writing.execute
        web.service.call(lambda _: execute(f"PRAGMA max_page_count = {pages}")).result()

    limit(1)  # as many as it has
    try:
        for _ in range(2):
            status, found = web.post(events)
            assert status == 503 and "disk is full" in found["error"]
            assert "send the same events again" in found["error"]
        assert web.ask("GET", "/healthz")[0] == 200
        assert web.service.store.counts()["events"] == before
    finally:
        limit(2**30)
    receipt = web.post(events)[1]
    assert (receipt["accepted"], receipt["duplicates"], receipt["refused"]) == (200, 0, [])
    assert web.service.store.counts()["events"] == before + 200
    assert web.ask("GET", "/readyz")[0] == 200


# ---------------------------------------------------------------------- the description


def test_the_openapi_description_says_what_the_service_does(web: Web) -> None:
    found = web.get("/openapi.json")
    assert found["openapi"].startswith("3.")
    issued = {
        ("post", "/v1/events"),
        ("get", "/v1/entities"),
        ("get", "/v1/entities/{id}"),
        ("get", "/v1/forecast"),
        ("get", "/v1/explain"),
        ("get", "/v1/alarms"),
        ("post", "/v1/alarms/{id}/ack"),
        ("get", "/v1/live"),
        ("post", "/v1/model/reload"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/metrics"),
    }
    described = {(m, path) for path, methods in found["paths"].items() for m in methods}
    assert issued <= described
    schemas = found["components"]["schemas"]
    for method, path in described:
        operation = found["paths"][path][method]
        assert operation.get("description"), path
        for reference in _references(operation):
            assert reference.removeprefix("#/components/schemas/") in schemas
    body = found["paths"]["/v1/events"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "application/x-ndjson"}
    assert set(schemas["EventIn"]["properties"]) == {"id", "entity", "time", "mark"}
    # What is described is what comes.
    for path, name in (("/v1/entities/s0", "Entity"), ("/v1/entities", "Entities")):
        answer = web.get(path)
        assert set(answer) == set(schemas[name]["properties"])
    forecast = web.get("/v1/forecast?horizon=1h&entity=s0&paths=20")
    assert set(schemas["Forecast"]["required"]) <= set(forecast)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [r for one in value.values() for r in _references(one)]
    if isinstance(value, list):
        return [r for one in value for r in _references(one)]
    return []


# ---------------------------------------------------------------------- security


def test_bodies_that_are_too_large_or_no_events_are_refused(web: Web) -> None:
    status, found, _ = web.ask(
        "POST", "/v1/events", b"[" + b"1," * 20_000 + b"1]", content_type="application/json"
    )
    assert status == 413 and "at most 20,000 bytes" in found["error"]
    chunks = (b"[" + b" " * 15_000, b" " * 15_000, b"]")
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
        connection.request(
            "POST",
            "/v1/events",
            iter(chunks),
            {"Content-Type": "application/json"},
            encode_chunked=True,
        )
        assert connection.getresponse().status == 413
    assert web.post([{"time": 1}] * 201)[0] == 400
    assert web.post([])[0] == 400
    for body in (b"", b"{", b"[" * 5000, b"\xff\xfe", b'{"time": NaN}', b"null", b"3"):
        status, found, _ = web.ask("POST", "/v1/events", body, content_type="application/json")
        assert status in (400, 422), (body[:10], found)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        status, found, _ = web.ask("POST", "/v1/events", b'{"time": 1}', content_type=kind)
        assert status == 415
    assert web.ask("GET", "/readyz")[0] == 200


def test_a_slow_client_is_disconnected(web: Web) -> None:
    slow = []
    for head in (
        b"GET / HT",
        b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
        b"Content-Type: application/json\r\n\r\n{",
    ):
        client = socket.create_connection(("127.0.0.1", web.port), timeout=60)
        client.sendall(head)
        slow.append(client)
    assert web.ask("GET", "/healthz")[0] == 200  # others are served meanwhile
    answers = [client.recv(4096) for client in slow]
    for client in slow:
        client.close()
    assert answers[0] == b"" or answers[0].startswith(b"HTTP/1.1 4")
    assert answers[1].startswith(b"HTTP/1.1 408")


def test_a_client_that_becomes_slow_is_disconnected(web: Web) -> None:
    """After an answer, bytes of a head that never ends do not keep the connection open."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=60) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.settimeout(0.1)
        client.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(300):
            try:
                if client.recv(4096) == b"":
                    break
            except TimeoutError:
                client.sendall(b"X-Slow: 1\r\n")
            except ConnectionResetError:
                break
        else:
            raise AssertionError("the connection stays open")


def test_strange_names_stay_text(web: Web) -> None:
    names = [
        "<script>alert(1)</script>",
        "'; DROP TABLE events; --",
        "../../etc/passwd",
        "a/b?c#d",
        "%2e%2e",
    ]
    sent = [{"id": name, "entity": name, "time": stamp(50.0), "mark": "fire"} for name in names]
    assert web.post(sent)[1]["accepted"] == len(names)
    assert web.post(sent)[1]["duplicates"] == len(names)
    for name in names:
        status, found, headers = web.ask("GET", f"/v1/entities/{quote(name, safe='')}")
        assert (status, found["id"], found["events"]) == (200, name, 1)
        assert headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"
        listed = web.get(f"/v1/events?entity={quote(name, safe='')}")["events"]
        assert [event["id"] for event in listed] == [name]


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/static/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/%2e%2e%2f%2e%2e%2fengine.py",
        "/dashboard/..%2f..%2fengine.py",
        "//etc/passwd",
        "/v1/entities/../../../etc/passwd",
    ],
)
def test_no_path_leads_to_files(web: Web, path: str) -> None:
    status, found, _ = web.ask("GET", path)
    assert status in (400, 404), found
    assert "root:" not in str(found) and "class Engine" not in str(found)


def test_every_answer_has_security_headers(web: Web) -> None:
    for path in ("/healthz", "/v1/entities", "/nothing", "/v1/forecast"):
        headers = web.ask("GET", path)[2]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    assert web.ask("GET", "/v1/entities")[2]["cache-control"] == "no-store"
    # A page of another site that has pointed its own name at this machine.
    assert web.ask("GET", "/v1/entities", host="evil.example")[0] == 421


def test_new_entities_over_the_limit_are_refused(web: Web) -> None:
    flood = [{"entity": f"new{i}", "time": stamp(60.0), "mark": "fire"} for i in range(100)]
    status, found = web.post(flood)
    assert len(found["refused"]) >= 60
    assert "at most 40 entities" in found["refused"][0]["error"]
    known = web.get("/v1/entities")["total"]
    assert known <= 40
    stored = web.service.store.counts()["events"]
    for first in range(0, 2000, 100):
        flood = [
            {"entity": f"flood{first + i}", "time": stamp(60.0), "mark": "fire"} for i in range(100)
        ]
        status, found = web.post(flood)
        assert (status, found["accepted"], len(found["refused"])) == (422, 0, 100)
    assert web.get("/v1/entities")["total"] == known
    assert web.service.store.counts()["events"] == stored
    assert web.post({"id": "known", "entity": "s1", "time": stamp(61.0), "mark": "fire"})[0] == 200
    assert web.ask("GET", "/readyz")[0] == 200


def test_too_many_requests_are_refused(tmp_path: Path) -> None:
    settings = Settings(limits=replace(LIMITS, requests=5.0))
    with served(tmp_path, settings, save_model(tmp_path / "model")) as web:
        found = [web.ask("GET", "/healthz")[0] for _ in range(30)]
    assert found[:10] == [200] * 10 and 429 in found


def test_tokens_and_their_scopes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tokens"
    secrets = {scope: add_token(file, f"{scope}er", scope) for scope in ("read", "write", "admin")}
    settings = Settings(tokens=file, limits=LIMITS, scoring=Scoring(start="0"))
    routes: Sequence[tuple[str, str, str, bytes | None]] = (
        ("read", "GET", "/v1/entities", None),
        ("read", "GET", "/v1/entities/s0", None),
        ("read", "GET", "/v1/forecast?horizon=1h&entity=s0&paths=10", None),
        ("read", "GET", "/v1/explain?entity=s0", None),
        ("read", "GET", "/v1/alarms", None),
        ("read", "GET", "/v1/events", None),
        ("read", "GET", "/metrics", None),
        ("write", "POST", "/v1/events", json.dumps(events(3, 9.0)).encode()),
        ("write", "POST", "/v1/alarms/1/ack", b""),
        ("admin", "GET", "/v1/digest", None),
        ("admin", "POST", "/v1/model/reload", b""),
        ("admin", "POST", "/v1/model/promote", b""),
    )
    order = ("read", "write", "admin")
    caplog.set_level(logging.DEBUG)
    with served(tmp_path, settings, save_model(tmp_path / "model")) as web:
        assert web.post(events(), secrets["write"])[0] == 200
        for needed, method, path, body in routes:
            for token in (None, "", "fp_wrong", secrets["read"] + "x"):
                status, found, headers = web.ask(
                    method, path, body, token, content_type="application/json"
                )
                assert status == 401 and headers["www-authenticate"] == "Bearer", path
                assert "s0" not in str(found)
            for scope in order:
                status, found, _ = web.ask(
                    method, path, body, secrets[scope], content_type="application/json"
                )
                allowed = order.index(scope) >= order.index(needed)
                assert (status == 403) != allowed, (path, scope, found)
        with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
            connection.request("GET", "/live")
            assert connection.getresponse().status == 401
        for path in ("/healthz", "/readyz"):
            assert web.ask("GET", path)[0] == 200
    texts = caplog.text + file.read_text()
    assert not any(secret in texts for secret in secrets.values())


def test_a_service_for_others_needs_tokens(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    service = Service(model, f"sqlite:///{tmp_path}/state.db", Settings())
    try:
        app = create_app(service, Settings())
        with pytest.raises(UserError, match="expected tokens for a service that others can reach"):
            configuration(app, Settings(host="0.0.0.0"))
        with pytest.raises(UserError, match="expected a certificate with its key"):
            configuration(app, Settings(certificate=tmp_path / "x.pem"))
        assert configuration(app, Settings()).host == "127.0.0.1"
    finally:
        service.close()


def test_without_the_extra_the_command_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fourpoint.serve.app", "fourpoint.serve.server"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    url = f"sqlite:///{tmp_path}/state.db"
    with pytest.raises(UserError, match=r"Install fourpoint\[serve\]"):
        run_service(tmp_path, url, Settings(), None, ReadingOptions())
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_is_told_before_anything_is_written(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(port=taken.getsockname()[1])
        with pytest.raises(UserError, match="expected an address and a port to listen on"):
            run_service(model, f"sqlite:///{tmp_path}/state.db", settings, None, ReadingOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_files_of_tokens_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    secret = add_token(file, "one", "read,write")
    assert file.stat().st_mode & 0o077 == 0
    assert secret not in file.read_text()
    with pytest.raises(UserError, match="a name that"):
        add_token(file, "one", "read")
    with pytest.raises(UserError, match="scopes among read, write, admin"):
        add_token(file, "two", "root")
    file.write_text(f"one read {secret}\n")
    file.chmod(0o600)
    with pytest.raises(UserError) as found:
        Tokens.read(file)
    assert secret not in str(found.value) and "line 1" in str(found.value)
    file.write_text("one read sha256:" + "0" * 64)
    file.chmod(0o622)
    with pytest.raises(UserError, match="others may write"):
        Tokens.read(file)


# ---------------------------------------------------------------------- life cycle of models


def test_a_refitted_model_is_loaded_while_events_come(tmp_path: Path) -> None:
    """Events of a Poisson process with three times the rate of the model: the refit finds it."""
    model = save_model(tmp_path / "model", Poisson(MARKS))
    settings = Settings(scoring=Scoring(start="0", alarms=None))
    rng = np.random.default_rng(5)
    times = np.sort(rng.uniform(0, 60.0, 60 * 6 * 2))
    sent = [
        {"id": str(i), "entity": f"s{i % 2}", "time": stamp(t), "mark": MARKS.names[i // 2 % 2]}
        for i, t in enumerate(times.tolist())
    ]
    with served(tmp_path, settings, model) as web:
        for first in range(0, len(sent), 200):
            assert web.post(sent[first : first + 200])[0] == 200
        before = web.get("/v1/entities/s0")
        store = SqlStore(database(f"sqlite:///{tmp_path}/state.db"), writable=False)
        found = refit(Served.load(model), store, model, settings={"progress": False})
        store.close()
        assert found.events == len(sent) and found.gain is not None
        assert found.gain.log_likelihood.low > 0
        status, reloaded, _ = web.ask("POST", "/v1/model/reload")
        assert status == 200 and reloaded["changed"] and reloaded["events"] == len(sent)
        after = web.get("/v1/entities/s0")
        assert after["events"] == before["events"]
        assert before["rate"] == pytest.approx(2.0)
        assert after["rate"] == pytest.approx(6.0, rel=0.1)
        assert web.ask("POST", "/v1/model/reload")[1]["changed"] is False
        assert web.ask("POST", "/v1/model/promote")[0] == 400
        more = {"id": "more", "entity": "s0", "time": stamp(61.0), "mark": "fire"}
        assert web.post(more)[1]["accepted"] == 1
        digest = web.get("/v1/digest")
    with served(tmp_path, settings, model) as web:
        assert web.get("/v1/digest") == digest


def test_windows_of_the_calendar_are_entities(tmp_path: Path) -> None:
    log = LogFormat("time", calendar="day", clock="stamps")
    about = dict(unit="hours", start=0.0, stop=24.0, events=100, sequences=5, log=log.to_dict())
    model = save(Poisson(), tmp_path / "model", about=about)
    day = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
    sent = [
        {"id": str(i), "time": (day + timedelta(hours=float(i))).isoformat()} for i in range(40)
    ]
    with served(tmp_path, Settings(), model) as web:
        assert web.post(sent)[1]["accepted"] == 40
        found = web.get("/v1/entities?sort=id")["entities"]
        assert [(e["events"], e["last_event"]) for e in found] == [
            (24, sent[23]["time"]),
            (16, sent[39]["time"]),
        ]
        assert found[0]["id"] == f"{day:%Y-%m-%d}"
        forecast = web.get("/v1/forecast?horizon=2h&paths=50")  # of the last day
        assert forecast["entity"] == found[1]["id"] and forecast["at"] == sent[39]["time"]
        digest = web.get("/v1/digest")
    with served(tmp_path, Settings(), model) as web:
        assert web.get("/v1/digest") == digest
