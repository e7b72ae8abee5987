"""Faults of the service, each with its result: nothing that was acknowledged is lost, nothing is
counted twice, and the state is that of an uninterrupted run, bit for bit.

    python benchmarks/serve_faults.py [--faults kills-sqlite kills-postgres postgres redis disk
    clock delivery] [--kills 100] [--events 20000] [--disk mount|limit] [--quick]

    kills-sqlite     kill -9 of the service ``--kills`` times while three clients send
    kills-postgres   the same with PostgreSQL
    postgres         kill -9 of PostgreSQL and all its processes, five times, under load
    redis            kill -9 of Redis, from whose stream the service reads, and of the service, five
                     times each
    disk             the file system of the store is full for a while, five times (a small tmpfs,
                     which needs root; without it, or with --disk limit, a limit on the size of
                     files)
    clock            the machine's clock goes back 40 days (a clock of this process alone)
    delivery         every event twice, and out of order within the lateness, to a killed service

Clients send a batch until it is acknowledged (by Redis, where events go there), so that some
batches come twice. At the end the hash
of all entities (GET /v1/digest) is compared with that of a service that got every event once, in
order, without a fault, and every event is looked for in the store.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from records import Record, options
from service_processes import (
    Client,
    Postgres,
    Redis,
    Service,
    batch_of_events,
    postgres_programs,
    save_model,
)

from fourpoint.serve.databases import database
from fourpoint.serve.store import SqlStore

ORIGIN = datetime.now(UTC).replace(microsecond=0) - timedelta(days=5)
ENTITIES = 500
PER_HOUR = 50_000.0
BATCH = 50
CLIENTS = 3
LATENESS = timedelta(minutes=5)
DISK = 24  # MB of the small file system
REFUSALS = 10  # requests that are sent while the disk is full, after the first that was refused
CLOCK = """
import sys, time
real = time.time
began = time.monotonic()
def moved():
    return real() - (40 * 86400.0 if time.monotonic() - began > {after} else 0.0)
time.time = moved
from fourpoint.cli.main import main
main()
"""
LEAST = 1  # kills in the quick form
Batch = list[dict[str, Any]]


@dataclass
class Found:
    """What came of a fault."""

    faults: int = 0
    acknowledged: set[str] = field(default_factory=set)
    refused: int = 0
    retried: int = 0
    restart: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", nargs="+", choices=tuple(FAULTS), default=list(FAULTS))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--disk", choices=("auto", "mount", "limit"), default="auto")
    options(parser)
    asked = parser.parse_args()
    if asked.quick:
        asked.kills, asked.events = LEAST, 600
    record = Record("serve_faults", "faults of the service and what was lost", asked.quick)
    for name in asked.faults:
        with tempfile.TemporaryDirectory() as folder:
            save_model(Path(folder) / "model", ORIGIN.isoformat(), PER_HOUR / ENTITIES)
            try:
                FAULTS[name](asked, record, Path(folder))
            except Missing as error:
                record.missing("faults", name, error)
                print(f"{name}: not measured ({error})", flush=True)
    record.write(asked.results)
    return 1 if any(bar["met"] is False for bar in record.bars) else 0


class Missing(Exception):
    """What a fault needs and is not there."""


def events_of(asked: argparse.Namespace) -> list[Batch]:
    """All batches, in order."""
    return [
        batch_of_events(ORIGIN, first, BATCH, ENTITIES, PER_HOUR)
        for first in range(0, asked.events, BATCH)
    ]


def uninterrupted(folder: Path, batches: list[Batch], *options: str) -> dict[str, Any]:
    """Digest and number of events of a service that got everything once, in order."""
    service = Service(folder / "model", f"sqlite:///{folder}/plain.db", *options)
    service.start()
    client = Client(service.port)
    for batch in batches:
        status, receipt = client.post("/v1/events", batch)
        assert status == 200 and receipt["accepted"] == len(batch), receipt
    found = client.get("/v1/digest")[1]
    client.close()
    service.close()
    return dict(found)


def sent_alone(port: int, batch: Batch, found: Found) -> None:
    """Send a batch by a connection of its own."""
    with contextlib.closing(Client(port)) as client:
        until_acknowledged(batch, found, client)


def until_acknowledged(batch: Batch, found: Found, client: Client) -> None:
    """Send a batch until it is acknowledged, and note it."""
    while True:
        try:
            status, receipt = client.post("/v1/events", batch)
        except OSError:
            found.retried += 1
            time.sleep(0.02)
            continue
        if status == 200 and receipt["accepted"] + receipt["duplicates"] == len(batch):
            found.acknowledged.update(event["id"] for event in batch)
            return
        found.refused += 1
        time.sleep(0.05)


def under_load(
    service: Service,
    batches: list[Batch],
    found: Found,
    fault: Callable[[Callable[[], None]], None],
    faults: int,
) -> None:
    """Send batches in order, ``faults`` of them with the fault, which is given a function that
    sends the batch. One client sends them, one after the other, so that they stay in order; two
    further clients send batches again that were acknowledged.
    """
    client = Client(service.port)
    again: list[Batch] = []
    stop = threading.Event()

    def repeat() -> None:
        own = Client(service.port)
        rng = np.random.default_rng(threading.get_ident() % 2**32)
        while not stop.is_set():
            if again:
                with contextlib.suppress(OSError):
                    own.post("/v1/events", again[int(rng.integers(len(again)))])
            time.sleep(0.01)
        own.close()

    threads = [threading.Thread(target=repeat) for _ in range(CLIENTS - 1)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    chosen = set(rng.choice(len(batches), size=min(faults, len(batches)), replace=False).tolist())
    try:
        for n, batch in enumerate(batches):
            if n in chosen:
                sending = threading.Thread(
                    target=sent_alone, args=(service.port, batch, found), daemon=True
                )
                pause = float(rng.random()) * 0.02

                def begin(sending: threading.Thread = sending, pause: float = pause) -> None:
                    sending.start()
                    time.sleep(pause)

                fault(begin)
                found.faults += 1
                sending.join()
            else:
                until_acknowledged(batch, found, client)
            again.append(batch)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        client.close()


def judged(
    record: Record, name: str, service: Service, found: Found, expected: dict[str, Any]
) -> None:
    """Compare with an uninterrupted run, also after one more kill, and look for every event."""
    digest = service.get("/v1/digest")[1]
    if not record.quick:
        service.kill()
        service.start()
    again = service.get("/v1/digest")[1]
    store = SqlStore(database(service.store), writable=False)
    stored = store.known(sorted(found.acknowledged))
    rows = store.counts()["events"]
    store.close()
    record.row(
        "faults",
        name,
        **{
            "faults": float(found.faults),
            "events acknowledged": float(len(found.acknowledged)),
            "events stored": float(rows),
            "requests without an answer": float(found.retried),
            "requests refused": float(found.refused),
            "longest restart (s)": max(found.restart, default=None),
        },
    )
    lost = len(found.acknowledged - stored)
    twice = max(rows, again["events"]) - len(found.acknowledged)
    record.bar(f"{name}: acknowledged events that are lost", lost, most=0)
    record.bar(f"{name}: events that are counted twice", twice, most=0)
    differs = float(digest != expected or again != expected)
    record.bar(f"{name}: state differs from an uninterrupted run", differs, most=0)


def kills(asked: argparse.Namespace, record: Record, folder: Path, name: str, url: str) -> None:
    """kill -9 of the service under load."""
    batches = events_of(asked)
    expected = uninterrupted(folder, batches)
    service = Service(folder / "model", url, "--snapshot-events", "1000")
    found = Found()
    service.start()

    def fault(begin: Callable[[], None]) -> None:
        begin()
        service.kill()
        found.restart.append(service.start())
        if found.faults % 10 == 9:
            print(f"{name}: {found.faults + 1} kills", flush=True)

    try:
        under_load(service, batches, found, fault, asked.kills)
        judged(record, name, service, found, expected)
    finally:
        service.close()


def kills_sqlite(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    kills(asked, record, folder, "kills-sqlite", f"sqlite:///{folder}/state.db")


def kills_postgres(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    with private_postgres() as server:
        kills(asked, record, folder, "kills-postgres", server.url)


def postgres(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    """kill -9 of PostgreSQL under load."""
    batches = events_of(asked)
    expected = uninterrupted(folder, batches)
    with private_postgres() as server:
        service = Service(folder / "model", server.url, "--snapshot-events", "1000")
        found = Found()
        service.start()

        def fault(begin: Callable[[], None]) -> None:
            begin()
            server.kill()
            time.sleep(0.3)
            began = time.monotonic()
            server.start()
            found.restart.append(time.monotonic() - began)

        try:
            under_load(service, batches, found, fault, min(5, asked.kills))
            judged(record, "postgres", service, found, expected)
        finally:
            service.close()


def redis(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    """kill -9 of Redis, from which the service reads, and of the service."""
    if shutil.which("redis-server") is None:
        raise Missing("redis-server is not installed")
    batches = events_of(asked)
    expected = uninterrupted(folder, batches)
    (folder / "redis").mkdir()
    server = Redis(folder / "redis")
    broker = ("--redis", server.url, "--partitions", "1", "--snapshot-events", "1000")
    service = Service(folder / "model", f"sqlite:///{folder}/state.db", *broker)
    found = Found()
    service.start()
    rng = np.random.default_rng(0)
    count = min(2 * min(5, asked.kills), len(batches))
    chosen = rng.choice(len(batches), size=count, replace=False).tolist()
    try:
        for n, batch in enumerate(batches):
            if n not in chosen:
                append(server, batch, found)
                continue
            sending = threading.Thread(target=append, args=(server, batch, found), daemon=True)
            sending.start()
            time.sleep(float(rng.random()) * 0.02)
            if chosen.index(n) % 2:
                service.kill()
                found.restart.append(service.start())
            else:
                server.kill()
                time.sleep(0.3)
                server.start()
            found.faults += 1
            sending.join()
        until = time.monotonic() + 600.0
        while service.get("/v1/digest")[1]["events"] < asked.events and time.monotonic() < until:
            time.sleep(0.1)
        judged(record, "redis", service, found, expected)
    finally:
        service.close()
        server.kill()


def append(server: Redis, batch: Batch, found: Found) -> None:
    """Append a batch to the stream until Redis has confirmed it, and note it."""
    import redis

    while True:
        try:
            with contextlib.closing(server.client()) as client:
                pipe = client.pipeline(transaction=False)
                for event in batch:
                    pipe.xadd("events", {"event": json.dumps(event)})
                pipe.execute()
        except redis.RedisError:
            found.retried += 1
            time.sleep(0.02)
            continue
        found.acknowledged.update(event["id"] for event in batch)
        return


def disk(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    """A file system that is full for a while. Batches are sent in order; once the disk is full they
    go on until one is refused: SQLite first writes over the parts of its log that it does not
    need any more. That one is sent again while the disk is still full, and after it has room.
    """
    batches = events_of(asked)
    expected = uninterrupted(folder, batches)
    fills = min(5, asked.kills)
    chosen = {round(len(batches) * (0.1 + 0.8 * n / fills)) for n in range(fills)}
    found = Found()
    accepted_while_refusing = not_alive = refusals = unclear = 0
    with limited_disk(folder / "disk", asked.disk) as place:
        service = Service(folder / "model", f"sqlite:///{place.folder}/state.db")
        service.start()
        client = Client(service.port)
        process = service.process
        is_full = False
        try:
            for n, batch in enumerate(batches):
                if n in chosen:
                    place.fill(service)
                    is_full = True
                    found.faults += 1
                while True:
                    status, receipt = client.post("/v1/events", batch)
                    if status == 200:
                        break
                    found.refused += 1
                    if not is_full:
                        time.sleep(0.05)
                        continue
                    refusals += 1
                    unclear += status != 503 or "send the same events again" not in str(receipt)
                    print(f"disk: {status} {receipt}", flush=True)
                    statuses = [client.post("/v1/events", batch)[0] for _ in range(REFUSALS)]
                    found.refused += sum(status != 200 for status in statuses)
                    accepted_while_refusing += statuses.count(200)
                    ready, alive = client.get("/readyz")[0], client.get("/healthz")[0]
                    not_alive += alive != 200 or ready != 503 or service.process != process
                    place.free(service)
                    is_full = False
                    began = time.monotonic()
                    until_acknowledged(batch, found, client)
                    found.restart.append(time.monotonic() - began)
                    break
                found.acknowledged.update(event["id"] for event in batch)
            place.free(service)
            judged(record, "disk", service, found, expected)
        finally:
            client.close()
            service.close()
    record.bar("disk: times it was full without a refusal", found.faults - refusals, most=0)
    record.bar("disk: acknowledged while it was refusing", accepted_while_refusing, most=0)
    record.bar("disk: refusals that say nothing of sending again", unclear, most=0)
    record.bar("disk: times the service was not alive, or said ready", not_alive, most=0)


def clock(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    """The wall clock goes back while events come."""
    batches = events_of(asked)
    expected = uninterrupted(folder, batches)
    service = Service(folder / "model", f"sqlite:///{folder}/state.db")
    service.words = [service.words[0], "-c", CLOCK.format(after=4), *service.words[3:]]
    found = Found()
    service.start()

    def fault(begin: Callable[[], None]) -> None:
        time.sleep(4.5)  # the clock has gone back by now
        begin()

    try:
        under_load(service, batches, found, fault, 1)
        service.kill()
        service.words = [service.words[0], "-c", CLOCK.format(after=-1), *service.words[3:]]
        service.start()
        judged(record, "clock", service, found, expected)
    finally:
        service.close()


def delivery(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    """Every event twice, out of order within the lateness."""
    batches = events_of(asked)
    events = [event for batch in batches for event in batch]
    latest = datetime.fromisoformat(events[-1]["time"])
    last = [{**events[-1], "id": "last", "time": (latest + 2 * LATENESS).isoformat()}]
    lateness = ("--lateness", f"{LATENESS.total_seconds():g}s")
    expected = uninterrupted(folder, [*batches, last], *lateness)
    rng = np.random.default_rng(1)
    arrival = [
        (
            datetime.fromisoformat(event["time"]) + rng.random() * 0.99 * LATENESS,
            event,
        )
        for event in events
        for _ in range(2)
    ]
    shuffled = [event for _, event in sorted(arrival, key=lambda pair: pair[0])]
    mixed = [shuffled[i : i + BATCH] for i in range(0, len(shuffled), BATCH)]
    service = Service(folder / "model", f"sqlite:///{folder}/state.db", *lateness)
    found = Found()
    service.start()

    def fault(begin: Callable[[], None]) -> None:
        begin()
        service.kill()
        found.restart.append(service.start())

    try:
        under_load(service, [*mixed, last], found, fault, min(10, asked.kills))
        judged(record, "delivery", service, found, expected)
    finally:
        service.close()


@contextlib.contextmanager
def private_postgres() -> Iterator[Postgres]:
    """PostgreSQL in a folder of its own."""
    if postgres_programs() is None:
        raise Missing("PostgreSQL is not installed")
    server = Postgres(durable=True)
    try:
        yield server
    finally:
        server.close()


class MountedDisk:
    """A small file system in memory, which a file fills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, service: Service) -> None:
        """Leave no free block."""
        for size in (2**20, 4096):
            with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as file:
                while file.write(bytes(size)) == size:
                    pass

    def free(self, service: Service) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)


class LimitedFiles:
    """A folder in which the service may write the first page of a file alone (RLIMIT_FSIZE), where
    no file system can be mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, service: Service) -> None:
        """Let nothing be written after the first page."""
        self._limit(service, 4096)

    def free(self, service: Service) -> None:
        """Remove the limit."""
        self._limit(service, resource.RLIM_INFINITY)

    def _limit(self, service: Service, size: int) -> None:
        hard = resource.prlimit(service.process, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(service.process, resource.RLIMIT_FSIZE, (size, hard))


@contextlib.contextmanager
def limited_disk(folder: Path, kind: str) -> Iterator[MountedDisk | LimitedFiles]:
    """A folder whose space can be taken away: a small file system, or one of limited files."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(folder)]
    mounted = False
    if kind != "limit":
        with contextlib.suppress(OSError):
            mounted = subprocess.run(words, check=False, capture_output=True).returncode == 0
    if not mounted and kind == "mount":
        raise Missing("a small file system cannot be mounted")
    print(f"disk: {f'tmpfs of {DISK} MB' if mounted else 'RLIMIT_FSIZE'}", flush=True)
    try:
        yield MountedDisk(folder) if mounted else LimitedFiles(folder)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


FAULTS: dict[str, Callable[[argparse.Namespace, Record, Path], None]] = {
    "kills-sqlite": kills_sqlite,
    "kills-postgres": kills_postgres,
    "postgres": postgres,
    "redis": redis,
    "disk": disk,
    "clock": clock,
    "delivery": delivery,
}


if __name__ == "__main__":
    sys.exit(main())
