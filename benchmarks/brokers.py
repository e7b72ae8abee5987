"""Consumer groups: how fast one worker is, and whether each event counts once while workers, and
Redis itself, are killed.

    python benchmarks/brokers.py [--only speed service redis kafka outage] [--events 1000000]
                                 [--entities 10000] [--workers 3] [--changes 10] [--rate 10000]
                                 [--model dapp|hawkes] [--store sqlite|postgresql://...]

The events are a Hawkes process of two types per entity, merged by time. **speed**: Redis Streams
hold ``--speed-events`` events, and one worker scores all of them; events per second by the clock
and of the processor. **service**: the same with the engine of `fourpoint serve --redis`, which
stores every event (--snapshot-events 200000). **redis**, **kafka**: ``--workers`` processes of
`fourpoint stream --group` score events that come at ``--rate`` per second; at ``--changes`` random
moments one of them is killed with SIGKILL, or one is added. Then the scores in the store are
compared with those of one process of `fourpoint stream` on a file of the same events: each entity
must have the same events in the same order with the same digits. Redis is Debian's server, Kafka is
the broker that librdkafka brings for tests, which keeps 5 MB per partition, so that the producer
waits for the group. **outage**: Redis itself is killed and started again while a worker and a
producer are using it; the producer sends what was not confirmed again, and events carry ids. All
servers listen on free ports of the loopback interface.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
from records import Record, figure, options
from service_processes import Redis

from fourpoint.events import MarkSpace
from fourpoint.inference.sampling import sample
from fourpoint.models import DAPP, Hawkes
from fourpoint.models.base import PointProcess
from fourpoint.serve.brokers.feeding import BrokerFeed
from fourpoint.serve.brokers.group_store import GroupStore
from fourpoint.serve.brokers.redis_source import partition_of
from fourpoint.serve.brokers.stream_group import (
    Broker,
    GroupOptions,
    export_scores,
    stream_group,
)
from fourpoint.serve.service import Service
from fourpoint.serve.settings import Keeping, Scoring, Settings
from fourpoint.storage.checkpoints import save
from fourpoint.streaming.feed.feed import score_feed, short_collections
from fourpoint.training.fitting import fit

PARTS = ("speed", "service", "redis", "kafka", "outage")
PARTITIONS = 16
WANTED = 20_000
SNAPSHOT = 200_000  # events between two snapshots of the service: --snapshot-events
BEHIND = 25_000  # events that the producer may be ahead of the group, all in one partition at worst
COMMAND = [sys.executable, "-m", "fourpoint"]
Event = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--speed-events", type=int, default=600_000)
    parser.add_argument("--outage-events", type=int, default=200_000)
    parser.add_argument("--entities", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--changes", type=int, default=10, help="workers killed or added")
    parser.add_argument("--outages", type=int, default=3, help="kills of Redis")
    parser.add_argument("--rate", type=float, default=10_000.0, help="events per second produced")
    parser.add_argument("--model", choices=("dapp", "hawkes"), default="dapp")
    parser.add_argument("--store", default="sqlite", help="sqlite, or a URL of PostgreSQL")
    parser.add_argument("--lease", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options(parser)
    given = parser.parse_args()
    record = Record(
        "brokers",
        "Consumer groups on Redis Streams and Kafka: events per second, and exactly-once scores "
        "while workers and servers are killed.",
        given.quick,
    )
    with tempfile.TemporaryDirectory() as place:
        model = scoring_model(given.model)
        save(model, Path(place, "model"))
        for part in given.only:
            missing = unavailable(part)
            if missing:
                record.missing(part, part, missing)
                print(f"{part}: {missing}")
                continue
            folder = Path(place, part)
            folder.mkdir()
            MEASURES[part](given, record, model, folder)
            shutil.rmtree(folder)
    print(f"wrote {record.write(given.results)}")


def unavailable(part: str) -> str:
    """Why a part cannot be measured; empty if it can."""
    try:
        if part == "kafka":
            import confluent_kafka  # noqa: F401
        else:
            import redis  # noqa: F401
    except ImportError as error:
        return str(error)
    if part != "kafka" and shutil.which("redis-server") is None:
        return "redis-server is not installed"
    return ""


# ---------------------------------------------------------------------- events and model


def scoring_model(name: str) -> PointProcess:
    """The true process, or a small DAPP that is fitted to it for two seconds."""
    if name == "hawkes":
        return truth()
    data = sample(truth(), 0.0, 30.0, 200, seed=7)
    model = DAPP(data.marks, heads=2, features=64)
    fit(model, data, time_budget=2.0, progress=False)
    return model


def truth() -> Hawkes:
    """Two types, of which one excites the other: .6 and .25 events per unit of time at first."""
    marks = MarkSpace(("order", "return"))
    return Hawkes(marks, baseline=[0.6, 0.25], branching=[[0.3, 0.2], [0.1, 0.2]], decay=1.5)


def events_of(count: int, entities: int, seed: int) -> list[Event]:
    """The first ``count`` events of ``entities`` processes, merged by time."""
    per_unit = float(sample(truth(), 0.0, 50.0, 20, seed=3).lengths.sum()) / (20 * 50.0)
    stop = 1.15 * count / entities / per_unit + 1.0
    data = sample(truth(), 0.0, stop, entities, seed=seed)
    times = np.concatenate([sequence.times for sequence in data])
    marks = np.concatenate([sequence.marks for sequence in data])
    whose = np.repeat(np.arange(entities), [len(sequence) for sequence in data])
    order = np.argsort(times, kind="stable")[:count]
    if len(order) < count:
        raise SystemExit(f"{len(order):,} of {count:,} events were simulated")
    names = truth().marks.names
    return [
        {"time": float(times[i]), "mark": names[marks[i]], "entity": f"c{whose[i]:05}", "id": k}
        for k, i in enumerate(order)
    ]


def reference(model: PointProcess, events: list[Event], folder: Path) -> Path:
    """The scores of one process of `fourpoint stream`, in a file."""
    feed = folder / "events.jsonl"
    feed.write_text("".join(json.dumps(event) + "\n" for event in events))
    scores = folder / "reference.jsonl"
    score_feed(
        model, input=feed, output=scores, by="entity", start=0.0, max_gap="none", tell=_quiet
    )
    return scores


def _quiet(text: str) -> None:
    pass


def by_entity(file: Path) -> dict[str, list[tuple[str, ...]]]:
    """The scores of each entity in order, as they are written: equal text means equal bits."""
    found = defaultdict[str, list[tuple[str, ...]]](list)
    with file.open() as lines:
        for line in lines:
            body = line.partition('"time": ')[2].partition(', "alarms"')[0]
            time_of, _, rest = body.partition(", ")
            mark, _, rest = rest.partition(', "entity": ')
            entity, _, scores = rest.partition(', "log_density": ')
            found[entity].append((time_of, mark, scores))
    return found


def compared(expected: Path, scores: Path) -> dict[str, int]:
    """Events that are missing, too many or different."""
    one, other = by_entity(expected), by_entity(scores)
    missing = sum(max(0, len(one[name]) - len(other.get(name, []))) for name in one)
    repeated = sum(max(0, len(other[name]) - len(one.get(name, []))) for name in other)
    different = sum(
        mine != theirs
        for name in one
        for mine, theirs in zip(one[name], other.get(name, []), strict=False)
    )
    return dict(
        events=sum(map(len, other.values())),
        entities=len(other),
        missing=missing,
        repeated=repeated,
        different=different,
    )


# ---------------------------------------------------------------------- servers


@contextmanager
def redis_server(folder: Path) -> Iterator[Redis]:
    server = Redis(folder)
    try:
        yield server
    finally:
        server.kill()


def produce_redis(
    client: Any, events: list[Event], rate: float, wait: Callable[[int], None]
) -> None:
    """Append events to their streams, 500 at a time, at ``rate`` per second."""
    began = time.monotonic()
    for first in range(0, len(events), 500):
        pipe = client.pipeline(transaction=False)
        for event in events[first : first + 500]:
            part = partition_of(event["entity"], PARTITIONS)
            pipe.xadd(f"events:{part}", {"event": json.dumps(event)})
        pipe.execute()
        wait(first)
        _keep_rate(first, began, rate)


def produce_kafka(
    producer: Any, events: list[Event], rate: float, wait: Callable[[int], None]
) -> None:
    """The same with entities as keys."""
    began = time.monotonic()
    for number, event in enumerate(events):
        producer.produce("events", key=event["entity"], value=json.dumps(event))
        if number % 500 == 0:
            producer.poll(0)
            wait(number)
            _keep_rate(number, began, rate)
    producer.flush()


def _keep_rate(done: int, began: float, rate: float) -> None:
    ahead = began + done / rate - time.monotonic()
    if ahead > 0:
        time.sleep(ahead)


# ---------------------------------------------------------------------- measures


def store_url(given: argparse.Namespace, folder: Path) -> str:
    return f"sqlite:///{folder}/group.db" if given.store == "sqlite" else given.store


def speed(given: argparse.Namespace, record: Record, model: PointProcess, folder: Path) -> None:
    """One worker, and as many events as Redis holds."""
    events = events_of(given.speed_events, given.entities, given.seed)
    clock, processor = [], []
    with redis_server(folder) as server:
        produce_redis(server.client(), events, 1e9, lambda done: None)
        broker = Broker(redis=server.url)
        for repeat in range(given.repeats + 1):
            group = f"speed-{os.getpid()}-{repeat}"
            terms = GroupOptions(
                group, store_url(given, folder), broker, "entity", start="0", until_end=True
            )
            busy = time.process_time()
            done = stream_group(model, terms, tell=_quiet)
            if done.events != len(events):
                raise SystemExit(f"{done.events:,} of {len(events):,} events were scored")
            if repeat:  # the first one compiles
                clock.append(done.events / done.seconds)
                processor.append(done.events / (time.process_time() - busy))
    one = figure(clock, "events/s")
    two = figure(processor, "events/s of processor")
    name = f"one worker, Redis Streams, {given.entities:,} entities, {given.model}"
    record.row("speed", name, **{"events/s": one, "per second of processor": two})
    print(f"{name}: {one['median']:,.0f} events/s, {two['median']:,.0f} per second of processor")
    record.bar("events per second from Redis Streams, one worker", one, least=WANTED)


def service(given: argparse.Namespace, record: Record, model: PointProcess, folder: Path) -> None:
    """The service as the reader of Redis Streams, as `fourpoint serve --redis` runs it."""
    events = events_of(given.speed_events, given.entities, given.seed)
    settings = Settings(
        scoring=Scoring(by="entity", start="0", max_gap="none"),
        keeping=Keeping(snapshot_events=SNAPSHOT),
    )
    clock, processor = [], []
    with redis_server(folder) as server:
        produce_redis(server.client(), events, 1e9, lambda done: None)
        broker = Broker(redis=server.url)
        for repeat in range(given.repeats + 1):
            store = f"sqlite:///{folder}/service-{repeat}.db"
            served = Service(folder.parent / "model", store, settings)
            served.start()
            feed = BrokerFeed(served, "redis", lambda: broker.source("fourpoint", _quiet))
            busy, began = time.process_time(), time.monotonic()
            with short_collections():  # as the command has them
                feed.start()
                while feed.events < len(events):
                    time.sleep(0.01)
            seconds = time.monotonic() - began
            used = time.process_time() - busy
            feed.close()
            stored = served.store.counts()["events"]
            served.close()
            if stored != len(events):
                raise SystemExit(f"{stored:,} of {len(events):,} events were stored")
            if repeat:  # the first one compiles
                clock.append(len(events) / seconds)
                processor.append(len(events) / used)
    one = figure(clock, "events/s")
    two = figure(processor, "events/s of processor")
    name = f"service, Redis Streams, {given.entities:,} entities, {given.model}"
    record.row("speed", name, **{"events/s": one, "per second of processor": two})
    print(f"{name}: {one['median']:,.0f} events/s, {two['median']:,.0f} per second of processor")
    record.bar("events per second from Redis Streams, the service", one, least=WANTED)


def killed_redis(
    given: argparse.Namespace, record: Record, model: PointProcess, folder: Path
) -> None:
    """Workers of a group on Redis Streams, killed and added."""
    with redis_server(folder) as server:
        _killed(
            given,
            record,
            model,
            folder,
            "redis",
            ["--redis", server.url],
            lambda events, wait: produce_redis(server.client(), events, given.rate, wait),
        )


def killed_kafka(
    given: argparse.Namespace, record: Record, model: PointProcess, folder: Path
) -> None:
    """Workers of a group on librdkafka's mock broker, killed and added."""
    from confluent_kafka import Producer

    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    about = producer.list_topics("events", timeout=10)
    servers = ",".join(f"{one.host}:{one.port}" for one in about.brokers.values())
    _killed(
        given,
        record,
        model,
        folder,
        "kafka",
        ["--kafka", servers],
        lambda events, wait: produce_kafka(producer, events, given.rate, wait),
    )


def _killed(
    given: argparse.Namespace,
    record: Record,
    model: PointProcess,
    folder: Path,
    name: str,
    broker: list[str],
    produce: Callable[[list[Event], Callable[[int], None]], None],
) -> None:
    events = events_of(given.events, given.entities, given.seed)
    expected = reference(model, events, folder)
    url = store_url(given, folder)
    group = f"{name}-{os.getpid()}"
    watching = GroupStore(url, group)
    words = [*COMMAND, "stream", str(folder.parent / "model"), "--group", group, "--store", url]
    words += [*broker, "--by", "entity", "--start", "0", "--max-gap", "none"]
    words += ["--lease", str(given.lease)]
    rng = np.random.default_rng(given.seed)
    began = time.monotonic()
    with ExitStack() as ended:
        ended.callback(watching.close)
        workers = Workers(words, folder / "workers.log")
        ended.callback(workers.end)
        for _ in range(given.workers):
            workers.add()

        def wait(done: int) -> None:
            while done - progress[0] > BEHIND:
                time.sleep(0.05)

        progress = [0]
        producer = threading.Thread(target=produce, args=(events, wait), daemon=True)
        producer.start()
        due = [round((k + 1) * len(events) / (given.changes + 1)) for k in range(given.changes)]
        changes: list[str] = []
        while progress[0] < len(events):
            time.sleep(0.1)
            progress[0] = watching.events()
            workers.check()
            if due and progress[0] >= due[0]:
                due.pop(0)
                changes.append(workers.change(rng, given.workers))
                print(f"  {progress[0]:>9,} events: {changes[-1]}", flush=True)
        producer.join()
        seconds = time.monotonic() - began
        workers.end()
        export_scores(url, group, folder / "scores.jsonl")
        owners = sum(lease.token for part, lease in watching.leases().items() if part >= 0)
    found = compared(expected, folder / "scores.jsonl")
    faults = found["missing"] + found["repeated"] + found["different"]
    kills = sum("killed" in change for change in changes)
    about = dict(**found, kills=kills, added=len(changes) - kills, takeovers=owners)
    row = {key: float(value) for key, value in about.items()}
    record.row("killed workers", name, **row, seconds=round(seconds, 1))
    print(f"{name}: " + ", ".join(f"{value:,} {key}" for key, value in about.items()))
    record.bar(f"events missing, repeated or different, {name}", float(faults), most=0)


class Workers:
    """Processes of `fourpoint stream --group`; what they print goes to ``log``."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._words, self._log = words, log
        self._running: list[Popen[bytes]] = []
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._environment = environment

    def add(self) -> None:
        with self._log.open("ab") as log:
            self._running.append(Popen(self._words, stdout=log, stderr=log, env=self._environment))

    def change(self, rng: np.random.Generator, usual: int) -> str:
        """Kill a worker or add one, at random, with at least one and at most two more than usual
        at the end; what was done.
        """
        count = len(self._running)
        if count > 1 and (count >= usual + 2 or rng.uniform() < 0.5):
            victim = self._running.pop(int(rng.integers(count)))
            victim.kill()
            victim.wait()
            return f"one of {count} workers killed"
        self.add()
        return f"a worker added to {count}"

    def check(self) -> None:
        """End the run where a worker has ended by itself."""
        for worker in self._running:
            if worker.poll() is not None:
                tail = self._log.read_text()[-2000:]
                raise SystemExit(f"a worker ended with code {worker.returncode}: {tail}")

    def end(self) -> None:
        for worker in self._running:
            worker.send_signal(signal.SIGTERM)
        for worker in self._running:
            worker.wait()
        self._running = []


def outage(given: argparse.Namespace, record: Record, model: PointProcess, folder: Path) -> None:
    """Redis is killed and started again; the producer sends again what was not confirmed."""
    import redis

    events = events_of(given.outage_events, given.entities, given.seed)
    expected = reference(model, events, folder)
    url = store_url(given, folder)
    group = f"outage-{os.getpid()}"
    sent_again = 0
    with redis_server(folder) as server, ExitStack() as ended:
        told: list[int] = []
        terms = GroupOptions(
            *(group, url, Broker(redis=server.url), "entity"), start="0", max_gap="none", id="id"
        )
        worker = threading.Thread(
            target=stream_group, args=(model, terms), kwargs=dict(told=told, tell=_quiet)
        )
        worker.start()
        ended.callback(worker.join)
        ended.callback(lambda: told.append(1))
        watching = ended.enter_context(closing(GroupStore(url, group)))
        kills = {round((k + 1) * len(events) / (given.outages + 1)) for k in range(given.outages)}
        client = server.client()
        first = 0
        while first < len(events):
            some = events[first : first + 500]
            due = [kill for kill in kills if first <= kill < first + 500]
            killer = threading.Timer(0.002, server.kill) if due else None
            if killer is not None:
                killer.start()
            try:
                produce_redis(client, some, 1e9, lambda done: None)
                first += 500
            except redis.ConnectionError:
                sent_again += len(some)
            if killer is not None:
                killer.join()
                kills -= set(due)
                server.start()
        until = time.monotonic() + 600
        while watching.events() < len(events) and time.monotonic() < until:
            time.sleep(0.1)
            if not worker.is_alive():
                raise SystemExit("the worker has ended")
        told.append(1)
        worker.join()
        export_scores(url, group, folder / "scores.jsonl")
    found = compared(expected, folder / "scores.jsonl")
    faults = found["missing"] + found["repeated"] + found["different"]
    about = dict(**found, kills=given.outages, sent_again=sent_again)
    record.row("Redis killed", "outage", **{key: float(value) for key, value in about.items()})
    print("outage: " + ", ".join(f"{value:,} {key}" for key, value in about.items()))
    record.bar("events missing, repeated or different after Redis was killed", faults, most=0)


MEASURES = {
    "speed": speed,
    "service": service,
    "redis": killed_redis,
    "kafka": killed_kafka,
    "outage": outage,
}

if __name__ == "__main__":
    main()
