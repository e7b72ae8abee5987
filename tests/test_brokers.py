"""Consumer groups on Redis Streams and Kafka: each event counts once, whoever is killed, and scores
do not depend on who computes them; alarms reach their sinks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker_servers import kafka_broker, postgres_server, redis_server, wait_until
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.errors import UserError
from fourpoint.events import MarkSpace
from fourpoint.models import Hawkes
from fourpoint.serve.brokers import sign, verify
from fourpoint.serve.brokers.group_store import Commit, Delivery, GroupAlarm, GroupStore, Refusal
from fourpoint.serve.brokers.partition import Messages
from fourpoint.serve.brokers.redis_source import RedisSource, partition_of, publish
from fourpoint.serve.brokers.sinks import KafkaSink, Outbox, RedisSink, sink_at
from fourpoint.serve.brokers.stream_group import (
    Broker,
    GroupOptions,
    export_scores,
    stream_group,
)
from fourpoint.serve.brokers.webhook import SIGNATURE, Webhook
from fourpoint.serve.databases import StoreError
from fourpoint.storage.checkpoints import save
from fourpoint.streaming.feed.feed import score_feed

RUN = CliRunner()
SECRET = b"a secret of some length"
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
def store(tmp_path: Path) -> Iterator[GroupStore]:
    with closing(GroupStore(f"sqlite:///{tmp_path}/group.db", "watch", retry=0.0)) as found:
        yield found


def hawkes() -> Hawkes:
    marks = MarkSpace(("order", "return"))
    return Hawkes(marks, baseline=[0.6, 0.3], branching=[[0.3, 0.2], [0.1, 0.2]], decay=1.5)


def shop(count: int, entities: int = 30, seed: int = 0) -> list[Event]:
    """Orders and returns of customers, in the order of time."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, count / entities, count))
    return [
        {
            "id": f"event-{i}",
            "time": float(time),
            "mark": ("order", "return")[int(rng.integers(2))],
            "customer": f"c{int(rng.integers(entities))}",
        }
        for i, time in enumerate(times)
    ]


def send(server: Any, events: list[Event], partitions: int = 4) -> None:
    with closing(server.client()) as client:
        publish(client, "events", partitions, "customer", events)


def options(store: str, broker: Broker, **more: Any) -> GroupOptions:
    terms = GroupOptions("watch", store, broker, by="customer", start="0", max_gap="none")
    return replace(terms, until_end=True, lease=1.0, **more)


def alone(events: list[Event], tmp_path: Path) -> dict[str, list[Event]]:
    """The scores of each entity by one process that reads a file."""
    feed, scores = tmp_path / "feed.jsonl", tmp_path / "alone.jsonl"
    feed.write_text("".join(json.dumps(event) + "\n" for event in events))
    score_feed(
        hawkes(),
        input=feed,
        output=scores,
        by="customer",
        start=0.0,
        max_gap="none",
        tell=lambda text: None,
    )
    return by_entity(scores)


def by_entity(file: Path) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        for name in ("line", "partition", "alarms"):
            row.pop(name, None)
        found.setdefault(row["entity"], []).append(row)
    return found


def in_group(url: str, tmp_path: Path, group: str = "watch") -> dict[str, list[Event]]:
    export_scores(url, group, tmp_path / "group.jsonl")
    return by_entity(tmp_path / "group.jsonl")


# ---------------------------------------------------------------------- the store


def test_a_worker_that_was_thought_dead_cannot_write(store: GroupStore) -> None:
    first = store.claim([0], "one", 10.0)[0]
    assert store.claim([0], "two", 10.0) == {}
    second = store.claim([0], "two", 10.0, force=True)[0]
    assert second.token > first.token
    late = Commit(0, first, "7", b"head", lines=b"x\n", events=1)
    assert store.commit([late]) == {0}
    assert store.events() == 0 and store.positions() == {}
    assert store.commit([Commit(0, second, "7", b"head", lines=b"x\n", events=1)]) == set()
    assert store.events() == 1 and store.positions() == {0: "7"}
    assert store.beat("one", 10.0, {0: first.token}) == (["one"], {0})
    assert store.beat("two", 10.0, {0: second.token}) == (["one", "two"], set())


def test_commit_that_is_tried_again_is_written_once(store: GroupStore) -> None:
    """The connection may be lost after the database has committed and before it has said so."""
    held = store.claim([0], "one", 10.0)[0]
    alarm = GroupAlarm("watch-0-3-0", {"kind": "burst"})
    commit = Commit(0, held, "7", b"head", lines=b"x\n", events=1, alarms=[alarm])
    assert store.commit([commit], ["sink"]) == set()
    assert store.commit([commit], ["sink"]) == set()
    assert store.events() == 1 and store.alarms() == [alarm] and len(store.due(9)) == 1


def test_leases_run_out_and_a_clock_that_was_wrong_is_not_waited_for(
    store: GroupStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(store, "now", lambda: now[0])
    assert store.claim([0], "one", 10.0)
    assert store.beat("one", 10.0)[0] == ["one"]
    assert store.beat("two", 10.0)[0] == ["one", "two"]
    now[0] += 9.0
    assert not store.claim([0], "two", 10.0)
    now[0] += 2.0
    assert store.claim([0], "two", 10.0)
    assert store.beat("two", 10.0)[0] == ["two"]
    now[0] -= 500.0  # clocks are set back: the lease seems to end in the far future
    assert store.claim([0], "three", 10.0)
    assert store.beat("three", 10.0)[0] == ["three"]
    store.leave("three")
    assert store.claim([0], "four", 10.0)


def test_settings_of_the_first_worker_count(store: GroupStore) -> None:
    assert store.settle({"by": "customer", "start": 0.5}) == {"by": "customer", "start": 0.5}
    assert store.settle({"by": "shop", "keep": None})["by"] == "customer"
    assert store.settings() == {"by": "customer", "start": 0.5, "keep": None}


def test_store_that_stays_away_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "group.db").write_bytes(b"not a database, but a text of some length" * 50)
    with pytest.raises(StoreError, match="SQLite"):
        GroupStore(f"sqlite:///{tmp_path}/group.db", "watch", retry=0.0)


# ---------------------------------------------------------------------- Redis Streams


def test_one_worker_scores_as_one_process_does(redis: Any, tmp_path: Path) -> None:
    events = shop(600)
    send(redis, events)
    url = f"sqlite:///{tmp_path}/group.db"
    terms = options(url, Broker(redis=redis.url, partitions=4))
    done = stream_group(hawkes(), terms, tell=lambda text: None)
    assert (done.events, done.refused) == (600, 0)
    assert in_group(url, tmp_path) == alone(events, tmp_path)
    again = stream_group(hawkes(), terms, tell=lambda text: None)
    assert again.events == 0
    with closing(redis.client()) as client:
        groups = [client.xinfo_groups(f"events:{part}")[0] for part in range(4)]
    assert [group["name"] for group in groups] == [b"watch"] * 4
    assert sum(group["lag"] for group in groups) == 0


class Killed(BaseException):
    """Ends a worker as SIGKILL would: nothing more is committed."""


class Mortal(RedisSource):
    """A source whose worker is killed after so many polls."""

    def __init__(self, *given: Any, polls: int, **terms: Any) -> None:
        super().__init__(*given, **terms)
        self._left = polls

    def poll(self, seconds: float) -> list[Messages]:
        self._left -= 1
        if self._left < 0:
            raise Killed
        return super().poll(seconds)


def test_killed_workers_leave_nothing_behind_and_lose_nothing(
    redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers come and go while events arrive; what they had scored and not committed is scored
    again by others.
    """
    events = shop(3000, 60)
    url = f"sqlite:///{tmp_path}/group.db"
    terms = options(url, Broker(redis=redis.url, partitions=4), every=0.0)
    monkeypatch.setattr(GroupStore, "leave", lambda self, worker: None)  # no farewell

    def killed(polls: int) -> None:
        class Own(Broker):
            def source(self, group: str, tell: Any) -> Any:
                return Mortal(redis.url, "events", 4, group, count=40, polls=polls)

        with pytest.raises(Killed):
            stream_group(
                hawkes(),
                replace(terms, broker=Own(redis=redis.url, partitions=4), until_end=False),
                told=[],
                tell=lambda text: None,
            )

    threads = [threading.Thread(target=killed, args=(3 + 4 * k,)) for k in range(3)]
    for k, thread in enumerate(threads):
        send(redis, events[1000 * k : 1000 * (k + 1)])
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    stream_group(hawkes(), terms, tell=lambda text: None)
    assert in_group(url, tmp_path) == alone(events, tmp_path)


def test_partitions_move_to_a_worker_that_is_added_and_back(redis: Any, tmp_path: Path) -> None:
    events = shop(1200, 40)
    url = f"sqlite:///{tmp_path}/group.db"
    terms = options(url, Broker(redis=redis.url, partitions=4))
    told: dict[str, list[int]] = {"one": [], "two": []}

    def start(name: str) -> threading.Thread:
        thread = threading.Thread(
            target=stream_group,
            args=(hawkes(), replace(terms, until_end=False)),
            kwargs=dict(told=told[name], tell=lambda text: None),
        )
        thread.start()
        return thread

    with closing(GroupStore(url, "watch")) as watching:

        def owners() -> Sequence[str | None]:
            return sorted({lease.owner or "" for lease in watching.leases().values()})

        one = start("one")
        send(redis, events[:400])
        wait_until(lambda: watching.events() == 400)
        two = start("two")
        wait_until(lambda: len(owners()) == 2 and "" not in owners())
        send(redis, events[400:800])
        wait_until(lambda: watching.events() == 800)
        told["one"].append(1)
        one.join()
        send(redis, events[800:])
        wait_until(lambda: watching.events() == 1200)
        assert len(owners()) == 1
        told["two"].append(1)
        two.join()
    assert in_group(url, tmp_path) == alone(events, tmp_path)


def test_redis_is_killed_and_events_are_sent_again(tmp_path: Path) -> None:
    """A producer that got no answer sends events again, and each counts once by its id."""
    events = shop(900)
    url = f"sqlite:///{tmp_path}/group.db"
    with redis_server(tmp_path) as server:
        send(server, events[:300])
        terms = options(url, Broker(redis=server.url, partitions=4), id="id")
        told: list[int] = []
        thread = threading.Thread(
            target=stream_group,
            args=(hawkes(), replace(terms, until_end=False)),
            kwargs=dict(told=told, tell=lambda text: None),
        )
        thread.start()
        with closing(GroupStore(url, "watch")) as watching:
            wait_until(lambda: watching.events() == 300)
            server.kill()
            server.start()
            send(server, events[200:600])
            send(server, events[550:])
            wait_until(lambda: watching.events() >= 900)
        told.append(1)
        thread.join()
    assert in_group(url, tmp_path) == alone(events, tmp_path)


def test_messages_that_are_no_events_are_kept_with_the_reason(redis: Any, tmp_path: Path) -> None:
    with closing(redis.client()) as client:
        client.xadd("events", {"event": '{"time": 1.0, "mark": "order", "customer": "a"}'})
        client.xadd("events", {"event": "no JSON"})
        client.xadd("events", {"event": ""})
        client.xadd("events", {"time": "2.5", "mark": "return", "customer": "a"})  # by fields
        client.xadd("events", {"time": "2.0", "mark": "order", "customer": "a"})
        client.xadd("events", {"time": "3.0", "mark": "refund", "customer": "a"})
    url = f"sqlite:///{tmp_path}/group.db"
    told: list[str] = []
    terms = options(url, Broker(redis=redis.url, partitions=1))
    done = stream_group(hawkes(), terms, tell=told.append)
    assert (done.events, done.refused) == (2, 4)
    with closing(GroupStore(url, "watch")) as watching:
        refusals = [refusal for _, refusal in watching.refusals()]
    assert [refusal.line for refusal in refusals] == [2, 3, 5, 6]
    assert isinstance(refusals[0], Refusal) and refusals[0].content == b"no JSON"
    assert "the last one of 'a'" in refusals[2].reason
    assert 'a "mark" among order, return' in refusals[3].reason
    assert sum("partition 0" in text for text in told) == 4


def test_entity_in_two_partitions_is_refused(redis: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/group.db"
    terms = options(url, Broker(redis=redis.url, partitions=2))
    with closing(redis.client()) as client:
        client.xadd("events:0", {"event": '{"time": 1.0, "mark": "order", "customer": "a"}'})
        stream_group(hawkes(), terms, tell=lambda text: None)
        client.xadd("events:1", {"event": '{"time": 2.0, "mark": "order", "customer": "a"}'})
    done = stream_group(hawkes(), terms, tell=lambda text: None)
    assert (done.events, done.refused) == (0, 1)
    with closing(GroupStore(url, "watch")) as watching:
        assert "events of 'a' in partitions 0 and 1" in watching.refusals()[0][1].reason


def test_entries_that_were_deleted_before_they_were_read_are_told(
    redis: Any, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/group.db"
    terms = options(url, Broker(redis=redis.url, partitions=1))
    send(redis, shop(20), 1)
    stream_group(hawkes(), terms, tell=lambda text: None)
    send(redis, shop(40)[20:], 1)
    with closing(redis.client()) as client:
        client.xtrim("events", maxlen=5, approximate=False)
    told: list[str] = []
    stream_group(hawkes(), terms, tell=told.append)
    assert [text for text in told if "15 entries of events" in text and "deleted" in text]


def test_partition_of_an_entity_is_that_of_the_documentation() -> None:
    assert [partition_of(name, 16) for name in ("north", "Zürich", "")] == [2, 14, 0]


# ---------------------------------------------------------------------- Kafka


def test_kafka_workers_score_as_one_process_does(tmp_path: Path) -> None:
    """One worker ends in the middle, and another goes on from the offsets in the store."""
    events = shop(800)
    url = f"sqlite:///{tmp_path}/group.db"
    with kafka_broker("events") as (producer, servers):
        terms = options(url, Broker(kafka=servers))
        for some in (events[:400], events[400:]):
            for event in some:
                producer.produce("events", key=event["customer"], value=json.dumps(event))
            producer.flush(60)
            done = stream_group(hawkes(), terms, tell=lambda text: None)
            assert (done.events, done.refused) == (400, 0)
    assert in_group(url, tmp_path) == alone(events, tmp_path)


# ---------------------------------------------------------------------- PostgreSQL


def test_group_in_postgresql(redis: Any, tmp_path: Path) -> None:
    """The server is killed while a worker runs: it goes on when the server is back."""
    events = shop(600)
    with postgres_server() as database:
        terms = options(database.url, Broker(redis=redis.url, partitions=4))
        told: list[int] = []
        said: list[str] = []
        thread = threading.Thread(
            target=stream_group,
            args=(hawkes(), replace(terms, until_end=False)),
            kwargs=dict(told=told, tell=said.append),
        )
        thread.start()
        send(redis, events[:300])
        with closing(GroupStore(database.url, "watch")) as watching:
            wait_until(lambda: watching.events() == 300)
            database.kill()
            send(redis, events[300:])
            database.start()
            wait_until(lambda: watching.events() == 600)
        told.append(1)
        thread.join()
        assert in_group(database.url, tmp_path) == alone(events, tmp_path)


# ---------------------------------------------------------------------- alarms


class _Receiver(BaseHTTPRequestHandler):
    """Answers with the statuses in turn, the last one from then on, and keeps what came."""

    statuses: list[int] = []
    came: list[tuple[dict[str, str], bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).came.append((dict(self.headers), body))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[_Receiver]]]:
    handler = type("Receiver", (_Receiver,), {"statuses": [200], "came": []})
    with HTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/alarms", handler
        listening.shutdown()
        thread.join()


def with_alarm(store: GroupStore, sink: str) -> None:
    held = store.claim([0], "one", 10.0)[0]
    alarm = GroupAlarm("watch-0-3-0", {"kind": "burst", "size": 2.5})
    store.commit([Commit(0, held, "7", b"head", alarms=[alarm])], [sink])


def test_webhook_is_signed_and_tried_again(
    store: GroupStore, receiver: tuple[str, type[_Receiver]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = receiver
    handler.statuses = [500, 302, 200]
    with_alarm(store, url)
    outbox = Outbox(store, {url: Webhook(url, SECRET)}, "one", 10.0)
    now = [store.now()]
    monkeypatch.setattr(store, "now", lambda: now[0])
    assert outbox.send_due() == 0 and outbox.send_due() == 0  # it is not due again yet
    assert store.unsent() == [("watch-0-3-0", url, 1, "HTTP status 500")]
    now[0] += 1.0
    assert outbox.send_due() == 0  # a redirection is not followed
    now[0] += 1.0
    assert outbox.send_due() == 0
    now[0] += 1.0
    assert outbox.send_due() == 1 and store.unsent() == []
    assert len(handler.came) == 3
    for headers, body in handler.came:
        assert verify(SECRET, body, headers[SIGNATURE])
        assert not verify(b"another", body, headers[SIGNATURE])
        assert headers["Idempotency-Key"] == "watch-0-3-0"
        assert json.loads(body) == {"id": "watch-0-3-0", "kind": "burst", "size": 2.5}


def test_signatures_are_valid_for_their_body_and_time_alone() -> None:
    signature = sign(SECRET, b"body", 1000)
    assert verify(SECRET, b"body", signature, now=1299.0)
    assert not verify(SECRET, b"body", signature, now=1301.0)
    assert not verify(SECRET, b"body", signature.replace("t=1000", "t=1200"), now=1200.0)
    for broken in ("", "t=,v1=", "t=x,v1=00", "v1=00", "t=²,v1=0", signature[:-1], "t=" + "9" * 99):
        assert not verify(SECRET, b"body", broken, now=1000.0)


def test_alarm_is_in_a_stream_of_redis_once(redis: Any, store: GroupStore) -> None:
    sink = sink_at(f"{redis.url}?stream=alarms", None)
    assert isinstance(sink, RedisSink)
    for _ in range(2):
        sink.send("watch-0-3-0", b'{"kind": "burst"}')
    sink.close()
    with closing(redis.client()) as client:
        rows = client.xrange("alarms")
    assert [row[1] for row in rows] == [{b"id": b"watch-0-3-0", b"alarm": b'{"kind": "burst"}'}]
    redis_away = sink_at("redis://127.0.0.1:1/0?stream=alarms", None)
    with pytest.raises(OSError, match="Redis"):
        redis_away.send("watch-0-3-0", b"{}")
    redis_away.close()


def test_alarm_in_a_topic_of_kafka_has_its_id_as_key() -> None:
    kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    with kafka_broker("alarms") as (_, servers):
        sink = sink_at(f"kafka://{servers}/alarms", None)
        assert isinstance(sink, KafkaSink)
        sink.send("watch-0-3-0", b'{"kind": "burst"}')
        consumer = kafka.Consumer({"bootstrap.servers": servers, "group.id": "test"})
        parts = range(len(consumer.list_topics("alarms", timeout=60).topics["alarms"].partitions))
        consumer.assign([kafka.TopicPartition("alarms", part, 0) for part in parts])
        message = consumer.poll(60.0)
        consumer.close()
    assert (message.key(), message.value()) == (b"watch-0-3-0", b'{"kind": "burst"}')


def test_alarms_of_a_group_are_sent(
    redis: Any, receiver: tuple[str, type[_Receiver]], tmp_path: Path
) -> None:
    """A burst that no Hawkes process of this kind explains."""
    url, handler = receiver
    calm = shop(200, 2)
    burst = [
        {"time": 100.0 + 0.001 * i, "mark": "order", "customer": "c0", "id": i} for i in range(300)
    ]
    send(redis, [*calm, *burst])
    store = f"sqlite:///{tmp_path}/group.db"
    terms = options(store, Broker(redis=redis.url, partitions=4), alarms_to=(url,), secret=SECRET)
    done = stream_group(hawkes(), terms, tell=lambda text: None)
    assert done.alarms > 0 and len(handler.came) == done.alarms
    with closing(GroupStore(store, "watch")) as watching:
        assert watching.unsent() == []
        raised = {alarm.id: alarm.body for alarm in watching.alarms()}
    sent = [json.loads(body) for _, body in handler.came]
    assert {one.pop("id"): one for one in sent} == raised
    assert any(one["kind"] == "burst" and one["name"] == "c0" for one in sent)


def test_sink_that_no_worker_knows_is_left_for_one_that_does(store: GroupStore) -> None:
    with_alarm(store, "https://example.org/alarms")
    outbox = Outbox(store, {}, "one", 10.0)
    assert outbox.send_due() == 0
    assert store.unsent()[0][3] == "no worker with this sink"
    assert isinstance(store.due(1), list) and not store.due(1)
    assert Delivery(GroupAlarm("a", {}), "b", 1).attempts == 1


# ---------------------------------------------------------------------- the command


def test_command_scores_and_exports(redis: Any, tmp_path: Path) -> None:
    events = shop(200)
    send(redis, events)
    save(hawkes(), tmp_path / "model")
    words = ["stream", tmp_path / "model", "--group", "watch", "--redis", redis.url]
    words += ["--store", f"sqlite:///{tmp_path}/group.db", "--partitions", 4, "--by", "customer"]
    words += ["--start", 0, "--max-gap", "none"]
    done = RUN.invoke(app, [*map(str, words), "--until-end"])
    assert done.exit_code == 0, done.output
    assert "200 events in" in done.stderr
    scores = tmp_path / "scores.jsonl"
    written = RUN.invoke(app, [*map(str, words), "--export", "--output", str(scores)])
    assert written.exit_code == 0 and "200 events in" in written.stdout
    assert by_entity(scores) == alone(events, tmp_path)
    other = RUN.invoke(app, [*map(str, words), "--until-end", "--keep", "3"])
    assert other.exit_code == 2 and "as the group 'watch' began with" in other.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--redis redis://localhost/0", "--group NAME with --redis"),
        ("--group g --redis redis://localhost/0", "--store with --group"),
        ("--group g --store sqlite:///{}/g.db", "one broker for --group"),
        ("--group g --store sqlite:///{}/g.db --redis a --kafka b", "one broker for --group"),
        ("--group g --store mysql://x --redis redis://localhost/0 --by c", "--store as sqlite"),
        ("--group g --store sqlite:///{}/g.db --redis ftp://x --by c", "redis://HOST:PORT"),
        ("--group g --store sqlite:///{}/g.db --kafka x --partitions 3", "--partitions as the"),
        ("--group g --store sqlite:///{}/g.db --kafka x --from now", "--from first or last"),
        ("--group g --store sqlite:///{}/g.db --redis redis://x -o y", "a shared store with"),
        ("--group g --store sqlite:///{}/g.db --redis redis://x --start first", "a time for"),
        ("--group g --store sqlite:///{}/g.db --redis redis://x --by none", "--by COLUMN"),
        ("--group g --store sqlite:///{}/g.db --redis redis://x --lease 0", "--lease from"),
        ("--group g --store sqlite:///{}/none.db --export -o y", "a group that has worked"),
    ],
)
def test_options_that_do_not_go_together(words: str, expected: str, tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="the package redis is not installed (fourpoint[redis])")
    save(hawkes(), tmp_path / "model")
    found = RUN.invoke(app, ["stream", str(tmp_path / "model"), *words.format(tmp_path).split()])
    assert found.exit_code == 2, found.output
    assert expected in found.stderr and "Traceback" not in found.stderr


def test_missing_packages_name_their_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    for module, broker, extra in (
        ("redis", Broker(redis="redis://localhost/0"), "fourpoint[redis]"),
        ("confluent_kafka", Broker(kafka="localhost"), "fourpoint[kafka]"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UserError, match="an installation without it") as error:
            broker.source("watch", lambda text: None)
        assert extra in str(error.value)
