"""The service under load: events acknowledged per second over HTTP, how long a batch waits, and
memory.

    python benchmarks/serve.py [--entities 10000] [--batch 100] [--rate 2000] [--seconds 60]
    [--clients 4] [--memory-events 3000000] [--flood 1000000]
    [--max-entities 100000] [--soak 30] [--store sqlite|postgres] [--quick]

One process of `fourpoint serve` with a Hawkes process, entities and dates, and a store on disk.
First events come at ``--rate`` per second in batches of ``--batch`` for ``--seconds``; a batch
counts from the moment at which it was due, so that a service which falls behind is seen. Then
``--clients`` send as fast as they are answered. ``--memory-events`` events are sent on top, and the
memory of the process is compared between the middle third and the last. ``--soak MINUTES`` sends
half of the rate for so long, with a kill -9 every minute, and compares the state with that of an
uninterrupted run. ``--flood`` sends an event of each of so many further entities; the service
follows ``--max-entities`` and refuses the others; then a known entity must be served as before. All
other events have ids, and are sent again until they are acknowledged.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from records import Record, options
from service_processes import Client, Postgres, Service, batch_of_events, save_model

ORIGIN = datetime.now(UTC).replace(microsecond=0) - timedelta(days=60)
PART = "fourpoint serve"
FLOOD = 1000  # events of a request of the flood


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entities", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=100, help="events of a request")
    parser.add_argument("--rate", type=float, default=2000.0, help="events per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load; 0 for none")
    parser.add_argument("--clients", type=int, default=4, help="that send as fast as they can")
    parser.add_argument("--memory-events", type=int, default=0, help="3000000 for the full test")
    parser.add_argument("--flood", type=int, default=0, help="further entities; 1000000")
    parser.add_argument("--max-entities", type=int, default=100_000, help="of the service")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    options(parser)
    asked = parser.parse_args()
    if asked.quick:
        asked.entities, asked.seconds, asked.batch = 50, 1.0, 20
        asked.rate, asked.memory_events = 200.0, min(asked.memory_events, 400)
    record = Record("serve", "a service under load, one worker, over HTTP", asked.quick)
    with tempfile.TemporaryDirectory() as folder:
        run(asked, record, Path(folder))
    record.write(asked.results)
    return 1 if any(bar["met"] is False for bar in record.bars) and not asked.quick else 0


def run(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    server = None if asked.store == "sqlite" else Postgres(durable=True)
    url = f"sqlite:///{folder}/load.db" if server is None else server.url
    save_model(folder / "model", ORIGIN.isoformat(), per_entity(asked))
    service = Service(folder / "model", url, "--max-entities", str(asked.max_entities))
    try:
        if asked.seconds or asked.memory_events or asked.flood:
            service.start()
        source = Source(asked)
        if asked.seconds:
            steady_load(asked, record, service, source)
            fastest_load(asked, record, service, source)
        if asked.memory_events:
            memory(asked, record, service, source)
        if asked.flood:
            flood(asked, record, service, source)
        service.stop()
        if asked.soak:
            soak(asked, record, folder)
    finally:
        service.close()
        if server is not None:
            server.close()


def per_entity(asked: argparse.Namespace) -> float:
    """Events per hour and entity: all entities together have 1,000 events a minute."""
    return 60_000.0 / asked.entities


class Source:
    """Batches of the stream of events, in order, for several threads."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._next = 0
        self._lock = threading.Lock()

    def take(self) -> list[dict[str, Any]]:
        """The next batch."""
        with self._lock:
            first = self._next
            self._next += self._asked.batch
        per_hour = per_entity(self._asked) * self._asked.entities
        return batch_of_events(ORIGIN, first, self._asked.batch, self._asked.entities, per_hour)


def send(client: Client, batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Send a batch once; it must be acknowledged."""
    status, receipt = client.post("/v1/events", batch)
    if status != 200 or receipt["accepted"] + receipt["duplicates"] != len(batch):
        raise RuntimeError(f"{status}: {receipt}")
    return receipt


def steady_load(
    asked: argparse.Namespace, record: Record, service: Service, source: Source
) -> None:
    """Batches that are due at fixed times."""
    client = Client(service.port)
    waits: list[float] = []
    count = max(2, round(asked.rate * asked.seconds / asked.batch))
    batches = [source.take() for _ in range(count)]
    before = service.processor_seconds()
    began = time.monotonic()
    for n, batch in enumerate(batches):
        due = began + n * asked.batch / asked.rate
        time.sleep(max(0.0, due - time.monotonic()))
        send(client, batch)
        waits.append(time.monotonic() - due)
    spent = time.monotonic() - began
    used = service.processor_seconds() - before
    client.close()
    rate = count * asked.batch / max(spent, 1e-9)
    p50, p99 = statistics.median(waits), quantile(waits, 0.99)
    record.row(
        PART,
        f"{asked.rate:,.0f} events/s for {asked.seconds:g} s in batches of {asked.batch}",
        **{
            "events/s": rate,
            "p50 (ms)": 1e3 * p50,
            "p99 (ms)": 1e3 * p99,
            "processor (s)": used,
            "memory (MB)": service.resident_mb(),
        },
    )
    record.bar("events per second, acknowledged and scored", rate, least=0.99 * asked.rate)
    record.bar("p99 of a batch, in ms", 1e3 * p99, most=250)


def fastest_load(
    asked: argparse.Namespace, record: Record, service: Service, source: Source
) -> None:
    """Several clients, each of which sends as soon as it is answered."""
    waits: list[float] = []
    until = time.monotonic() + asked.seconds / 2
    began = time.monotonic()

    def work() -> None:
        client = Client(service.port)
        while time.monotonic() < until:
            batch = source.take()
            sent = time.monotonic()
            send(client, batch)
            waits.append(time.monotonic() - sent)
        client.close()

    threads = [threading.Thread(target=work) for _ in range(asked.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = len(waits) * asked.batch / (time.monotonic() - began)
    record.row(
        PART,
        f"{asked.clients} clients, as fast as they are answered",
        **{
            "events/s": rate,
            "p50 (ms)": 1e3 * statistics.median(waits),
            "p99 (ms)": 1e3 * quantile(waits, 0.99),
            "memory (MB)": service.resident_mb(),
        },
    )
    print(f"{rate:,.0f} events/s with {asked.clients} clients")


def memory(asked: argparse.Namespace, record: Record, service: Service, source: Source) -> None:
    """Memory of the process while many events come."""
    client = Client(service.port)
    found: list[float] = []
    steps = max(3, asked.memory_events // (100 * asked.batch))
    each = max(1, asked.memory_events // (steps * asked.batch))
    began = time.monotonic()
    for step in range(steps):
        for _ in range(each):
            until_acknowledged(client, source.take())
        found.append(service.resident_mb())
        if step % max(1, steps // 20) == 0:
            print(f"{(step + 1) * each * asked.batch:,} events: {found[-1]:.0f} MB", flush=True)
    client.close()
    third = len(found) // 3
    early, late = statistics.median(found[third : 2 * third]), statistics.median(found[-third:])
    record.row(
        PART,
        f"{steps * each * asked.batch:,} further events",
        **{
            "events/s": steps * each * asked.batch / (time.monotonic() - began),
            "memory in the middle (MB)": early,
            "memory at the end (MB)": late,
        },
    )
    record.bar("growth of memory from the middle third to the last, in MB", late - early, most=20)


def flood(asked: argparse.Namespace, record: Record, service: Service, source: Source) -> None:
    """One event of each of many further entities."""
    client = Client(service.port)
    before = source.take()
    send(client, before)
    followed = client.get("/v1/entities?limit=1")[1]["total"]
    memory_before = most_memory = service.resident_mb()
    when, known = before[-1]["time"], before[-1]["entity"]
    accepted = refused = 0
    waits: list[float] = []
    began = time.monotonic()
    for first in range(0, asked.flood, FLOOD):
        some = range(first, min(first + FLOOD, asked.flood))
        sent = time.monotonic()
        found = client.post(
            "/v1/events", [{"entity": f"flood-{i}", "time": when, "mark": "fire"} for i in some]
        )[1]
        waits.append(time.monotonic() - sent)
        accepted += found["accepted"]
        refused += len(found["refused"])
        most_memory = max(most_memory, service.resident_mb())
        if first // FLOOD % max(1, asked.flood // FLOOD // 10) == 0:
            seen = f"{accepted:,} accepted, {refused:,} refused, {service.resident_mb():.0f} MB"
            print(f"{some[-1] + 1:,} further entities: {seen}", flush=True)
    spent = time.monotonic() - began
    after = client.post(
        "/v1/events", {"id": "after", "entity": known, "time": when, "mark": "fire"}
    )
    status = client.get(f"/v1/entities/{known}")[0]
    ready = client.get("/readyz")[0]
    total = client.get("/v1/entities?limit=1")[1]["total"]
    client.close()
    record.row(
        PART,
        f"{asked.flood:,} further entities",
        **{
            "accepted": float(accepted),
            "refused": float(refused),
            "events/s": asked.flood / spent,
            "p99 (ms)": 1e3 * quantile(waits, 0.99),
            "memory before (MB)": memory_before,
            "most memory (MB)": most_memory,
            "memory (MB)": service.resident_mb(),
        },
    )
    alive = float(status == ready == 200 and after[1]["accepted"] == 1)
    record.bar("the service is alive after the flood", alive, least=1)
    unanswered = float(asked.flood - accepted - refused)
    record.bar("events of the flood neither accepted nor refused", unanswered, most=0)
    wrong = float(total - followed - accepted)
    record.bar("entities that are followed and were not accepted", wrong, most=0)
    record.bar("entities that are followed", float(total), most=asked.max_entities)


def soak(asked: argparse.Namespace, record: Record, folder: Path) -> None:
    """Half of the rate for a long time, with a kill every minute."""
    source = Source(asked)
    service = Service(folder / "model", f"sqlite:///{folder}/soak.db")
    service.start()
    client = Client(service.port)
    began = killed = time.monotonic()
    kills = sent = 0
    sizes: list[float] = []
    every = min(60.0, asked.soak * 60.0 / 3)
    while time.monotonic() < began + asked.soak * 60.0:
        due = began + sent * asked.batch / (asked.rate / 2)
        time.sleep(max(0.0, due - time.monotonic()))
        batch = source.take()
        if time.monotonic() > killed + every:
            sizes.append(service.resident_mb())
            kill_during(client, service, batch)
            killed, kills = time.monotonic(), kills + 1
        until_acknowledged(client, batch)
        sent += 1
    found = service.get("/v1/digest")[1]
    client.close()
    service.stop()
    plain = Service(folder / "model", f"sqlite:///{folder}/plain.db")
    plain.start()
    again, client = Source(asked), Client(plain.port)
    for _ in range(sent):
        send(client, again.take())
    expected = client.get("/v1/digest")[1]
    client.close()
    plain.close()
    service.close()
    record.row(
        PART,
        f"soak of {asked.soak:g} minutes at {asked.rate / 2:,.0f} events/s",
        **{
            "kills": float(kills),
            "events": float(found["events"]),
            "memory (MB)": max(sizes, default=0.0),
        },
    )
    wrong = abs(found["events"] - sent * asked.batch)
    record.bar("events lost or counted twice", wrong, most=0)
    record.bar("state differs from an uninterrupted run", float(found != expected), most=0)


def kill_during(client: Client, service: Service, batch: list[dict[str, Any]]) -> None:
    """Kill the service while it works on a batch, and start it again."""
    thread = threading.Thread(target=service.kill)
    thread.start()
    with contextlib.suppress(OSError):
        client.post("/v1/events", batch)
    thread.join()
    service.start()


def until_acknowledged(client: Client, batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Send a batch until it is acknowledged."""
    while True:
        try:
            return send(client, batch)
        except (OSError, RuntimeError):
            time.sleep(0.05)


def quantile(values: list[float], level: float) -> float:
    """The value below which a share of ``level`` lies."""
    return sorted(values)[min(len(values) - 1, int(level * len(values)))]


if __name__ == "__main__":
    sys.exit(main())
