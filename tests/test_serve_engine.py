"""The engine of the service: what was acknowledged is there after a crash, once each, and the state
is that of an uninterrupted run, bit for bit; with SQLite and with PostgreSQL.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourpoint.errors import UserError
from fourpoint.events import MarkSpace
from fourpoint.log_format import LogFormat
from fourpoint.models.base import PointProcess
from fourpoint.models.dapp import DAPP
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson
from fourpoint.serve.databases import StoreError, database, without_password
from fourpoint.serve.engine import Engine, Receipt, Request, Served
from fourpoint.serve.settings import Keeping, Limits, Scoring, Settings
from fourpoint.serve.store import SqlStore
from fourpoint.streaming.feed.training_window import Trained

ENTITIES = 12
SQLITE, POSTGRES = "sqlite", "postgres"
BOTH = pytest.mark.parametrize("url", [SQLITE, POSTGRES], indirect=True)
Make = Callable[..., Engine]


def hawkes(decay: float = 2.0) -> Hawkes:
    return Hawkes(MarkSpace.categorical(2), baseline=0.5, branching=0.2, decay=decay)


def served(model: PointProcess) -> Served:
    return Served(Path("model"), model, Trained(start=0.0, stop=10.0, events=100, sequences=2))


def some_events(count: int = 600, seed: int = 0) -> list[dict[str, Any]]:
    """Events in the order of time, with a burst of one entity that raises alarms."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(0.08, count)
    gaps[count // 2 : count // 2 + 60] *= 0.02
    times = np.cumsum(gaps)
    found = []
    for i, time in enumerate(times.tolist()):
        entity = int(rng.integers(ENTITIES))
        if count // 2 <= i < count // 2 + 60:
            entity = 3
        mark = str(int(rng.integers(2)))
        found.append({"id": f"e{i}", "entity": f"n{entity}", "time": time, "mark": mark})
    return found


def batches_of(events: Sequence[Any], seed: int) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, len(events)), 25, replace=False)).tolist()
    return [list(events[a:b]) for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]


def settings(
    lateness: float = 0.0, snapshot_events: int = 50, limit: int | None = None, **limits: Any
) -> Settings:
    return Settings(
        scoring=Scoring(by="entity", lateness=lateness, limit=limit),
        keeping=Keeping(snapshot_events=snapshot_events),
        limits=Limits(**limits),
    )


@pytest.fixture(scope="session")
def postgres(root: Path) -> Iterator[Any]:
    """A private server; tests that need it are skipped where PostgreSQL is missing."""
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    spec = importlib.util.spec_from_file_location(
        "service_processes", root / "benchmarks" / "service_processes.py"
    )
    assert spec is not None and spec.loader is not None
    servers = importlib.util.module_from_spec(spec)
    sys.modules["service_processes"] = servers
    spec.loader.exec_module(servers)
    if servers.postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    server = servers.Postgres(durable=False)
    yield server
    server.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store: of SQLite, unless a test is run with both."""
    if getattr(request, "param", SQLITE) == SQLITE:
        return f"sqlite:///{tmp_path}/state.db"
    server = request.getfixturevalue("postgres")
    store = SqlStore(database(server.url))
    with store.transaction():
        for table in ("events", "batches", "slots", "states", "alarms", "offsets"):
            store._writing.execute(f"DELETE FROM {table}")
        store._writing.execute("DELETE FROM texts WHERE name <> 'schema'")
    store.close()
    return str(server.url)


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """Makes engines on one store; the one before is dropped as a crash does."""
    made: list[Engine] = []

    def build(
        model: PointProcess | Served | None = None,
        with_settings: Settings | None = None,
        shadow: PointProcess | None = None,
    ) -> Engine:
        if made:
            made[-1].store.close()
        store = SqlStore(database(url))
        try:
            engine = Engine(
                model if isinstance(model, Served) else served(model or hawkes()),
                store,
                with_settings or settings(),
                shadow=None if shadow is None else served(shadow),
            )
        except BaseException:
            store.close()
            raise
        made.append(engine)
        return engine

    yield build
    if made:
        made[-1].store.close()


def send(engine: Engine, events: Sequence[Any]) -> Receipt:
    return engine.accept([Request(events)])[0]


def digest_of(events: Sequence[Any], tmp_path: Path, model: PointProcess, own: Settings) -> str:
    """Of an uninterrupted run, one event at a time."""
    store = SqlStore(database(f"sqlite:///{tmp_path}/plain.db"))
    engine = Engine(served(model), store, own)
    for first in range(0, len(events), 7):
        send(engine, events[first : first + 7])
    found = engine.digest()
    store.close()
    return found


# ---------------------------------------------------------------------- durability


@BOTH
@pytest.mark.parametrize("limit", [None, 5])
def test_a_killed_engine_goes_on_bit_for_bit(make: Make, tmp_path: Path, limit: int | None) -> None:
    events = some_events()
    own = settings(limit=limit)
    expected = digest_of(events, tmp_path, hawkes(), own)
    alarms: list[Any] = []
    for n, batch in enumerate(batches_of(events, 1)):
        if n % 3 == 0:
            engine = make(with_settings=own)
        receipt = send(engine, batch)
        assert receipt.accepted == len(batch)
        alarms += receipt.alarms
    assert engine.counters.events == len(events)
    assert engine.digest() == expected
    assert make(with_settings=own).digest() == expected
    stored = make(with_settings=own).store.alarms(100)
    assert [a.alarm for a in stored][::-1] == [a["id"] for a in alarms]
    assert any(a["kind"] == "burst" for a in alarms)


def test_other_models_go_on_bit_for_bit(make: Make, tmp_path: Path) -> None:
    events = some_events(200)
    model = DAPP(MarkSpace.categorical(2), heads=2, width=4, seed=0).double()
    expected = digest_of(events, tmp_path, model, settings())
    for batch in batches_of(events, 2):
        engine = make(model)
        send(engine, batch)
    assert engine.digest() == expected
    assert make(model).digest() == expected


@BOTH
def test_events_sent_again_count_once(make: Make) -> None:
    events = some_events(120)
    engine = make()
    send(engine, events)
    once = engine.digest()
    for _ in range(2):
        again = send(make(), [*events[::-1], *events])
        assert (again.accepted, again.duplicates) == (0, 240)
    twice_in_one = send(make(), [{"id": "x", "entity": "n1", "time": 50.0, "mark": "0"}] * 3)
    assert (twice_in_one.accepted, twice_in_one.duplicates) == (1, 2)
    engine = make()
    assert engine.counters.events == 121 and engine.counters.duplicates == 482
    assert engine.digest() != once


@BOTH
def test_shuffled_events_within_the_lateness_are_put_in_order(make: Make, tmp_path: Path) -> None:
    events = some_events()
    own = settings(lateness=2.0)
    end = [{"id": "end", "entity": "n0", "time": events[-1]["time"] + 5.0, "mark": "0"}]
    expected = digest_of([*events, *end], tmp_path, hawkes(), own)
    delays = np.random.default_rng(3).uniform(0, 1.99, len(events))
    order = np.argsort(np.array([event["time"] for event in events]) + delays)
    shuffled = [events[i] for i in order]
    late = 0
    for n, batch in enumerate(batches_of(shuffled, 4)):
        if n % 4 == 0:
            engine = make(with_settings=own)
        late += send(engine, batch).late
    assert len(engine.watermark) > 0 and late == 0
    engine = make(with_settings=own)
    send(engine, end)
    assert engine.digest() == expected
    assert make(with_settings=own).digest() == expected


def test_later_events_are_stored_and_reported(make: Make) -> None:
    engine = make()
    send(engine, [{"id": "0", "entity": "x", "time": 1.0, "mark": "0"}])
    send(engine, [{"id": "a", "entity": "x", "time": 5.0, "mark": "0"}])
    before = engine.digest()
    found = send(engine, [{"id": "b", "entity": "x", "time": 4.0, "mark": "1"}])
    assert (found.accepted, found.late) == (1, 1)
    assert engine.digest() == before
    assert [event.id for event in engine.store.late(10)] == ["b"]
    assert make().digest() == before
    other = send(make(), [{"id": "c", "entity": "y", "time": 4.5, "mark": "1"}])
    assert (other.accepted, other.late) == (1, 0)  # its own entity has not been later


def test_waiting_events_leave_when_the_lateness_changes(make: Make) -> None:
    events = some_events(100)
    engine = make(with_settings=settings(lateness=100.0))
    send(engine, events)
    assert engine.live.totals.events == 0 and len(engine.watermark) == 100
    engine = make(with_settings=settings())
    assert engine.live.totals.events == 100
    plain = engine.digest()
    assert make().digest() == plain


@BOTH
def test_what_is_not_committed_does_not_count(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = some_events(300)
    expected = digest_of(events, tmp_path, hawkes(), settings())
    engine = make()
    send(engine, events[:200])
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise StoreError("database or disk is full (SQLite)")

        patch.setattr(engine.store, "put_batch", full)
        with pytest.raises(StoreError, match="full"):
            send(engine, events[200:])
        assert engine.degraded is not None
    assert engine.store.counts()["events"] == 200
    found = send(engine, events[200:])
    assert (found.accepted, found.duplicates, engine.degraded) == (100, 0, None)
    assert engine.digest() == expected
    assert make().digest() == expected


@BOTH
def test_idle_time_finishes_snapshots_and_old_rows_go(make: Make) -> None:
    engine = make(with_settings=settings(snapshot_events=20))
    send(engine, [{"entity": "once", "time": 0.0, "mark": "0"}])
    for batch in batches_of(some_events(), 5):
        send(engine, batch)
    engine.save()
    while engine.idle():
        pass
    versions = engine.store._ask("SELECT name, count(*) FROM states GROUP BY name")
    assert len(versions) == ENTITIES + 1
    assert max(count for _, count in versions) == 1
    digest = engine.digest()
    engine = make()
    assert engine.replayed == 0 and engine.digest() == digest


@BOTH
def test_old_events_are_forgotten_after_their_snapshot(make: Make) -> None:
    own = replace(settings(snapshot_events=50), keeping=Keeping(50, retention=5.0))
    engine = make(with_settings=own)
    events = some_events()
    for batch in batches_of(events, 6):
        send(engine, batch)
    engine.save()
    while engine.idle():
        pass
    digest = engine.digest()
    latest = events[-1]["time"]
    kept = sum(event["time"] >= latest - 5.0 for event in events)
    assert engine.store.counts()["events"] == kept < len(events)
    engine = make(with_settings=own)
    assert engine.digest() == digest and engine.counters.events == len(events)


@BOTH
def test_offsets_are_committed_with_the_events(make: Make) -> None:
    engine = make()
    engine.accept([Request(some_events(3), [("stream", "0", "17-0")])])
    assert make().store.offset("stream", "0") == "17-0"
    assert make().store.offsets("stream") == {"0": "17-0"}
    assert make().store.offset("stream", "1") is None


# ---------------------------------------------------------------------- life cycle of models


def test_a_new_model_goes_through_the_stored_events(make: Make, tmp_path: Path) -> None:
    events = some_events()
    other = hawkes(decay=3.0)
    expected = digest_of(events, tmp_path, other, settings())
    engine = make()
    send(engine, events[:400])
    following = engine.candidate(served(other))
    assert following is not None
    following.replay()
    send(engine, events[400:500])  # events that come meanwhile
    engine.replace_live(served(other), following)
    send(engine, events[500:])
    assert engine.digest() == expected
    assert engine.candidate(served(other)) is None
    assert [slot.role for slot in engine.store.slots()] == ["live"]
    assert make(other).digest() == expected
    assert make(hawkes()).digest() != expected  # the former model, from the events


def test_a_shadow_model_is_compared_and_promoted(make: Make, tmp_path: Path) -> None:
    events = some_events(700)
    better = hawkes(decay=2.5)
    poisson = Poisson(MarkSpace.categorical(2))
    engine = make(poisson, shadow=better)
    for n, batch in enumerate(batches_of(events, 7)):
        if n % 5 == 0:
            engine = make(poisson, shadow=better)
        send(engine, batch)
    assert engine.shadow is not None
    totals, live = engine.shadow.totals, engine.live.totals
    gain = engine.paired.gain()
    assert gain["events"] == 700
    exact = (totals.log_likelihood - live.log_likelihood) / 700
    assert gain["gain"] == pytest.approx(exact, rel=1e-9)
    assert gain["low"] < gain["gain"] < gain["high"]
    engine.promote()
    assert engine.shadow is None and engine.live.model is better
    expected = digest_of(events, tmp_path, better, settings())
    assert engine.digest() == expected
    assert make(better).digest() == expected


def test_a_store_of_another_log_is_refused(make: Make) -> None:
    send(make(), some_events(3))
    with pytest.raises(UserError, match="a model of the log in the store, with marks"):
        make(Hawkes(MarkSpace(("a", "b"))))


# ---------------------------------------------------------------------- input


def test_events_are_checked_as_the_readers_do(make: Make) -> None:
    engine = make(with_settings=settings(name=10, entities=2))
    found = send(
        engine,
        [
            {"id": 7, "entity": 5, "time": 1.0, "mark": 1},
            {"id": "a", "entity": "x", "time": "noon", "mark": "0"},
            {"id": "b", "entity": "x", "time": float("nan"), "mark": "0"},
            {"id": "c", "entity": "x", "time": 1.0, "mark": "2"},
            {"id": "d", "time": 1.0, "mark": "0"},
            {"id": "long" * 9, "entity": "x", "time": 1.0, "mark": "0"},
            {"id": "e", "entity": "long" * 9, "time": 1.0, "mark": "0"},
            {"id": ["f"], "entity": "x", "time": 1.0, "mark": "0"},
            "text",
            None,
            {"id": "g", "entity": "x", "time": 1e9, "mark": "0"},
        ],
    )
    assert (found.accepted, [refusal["index"] for refusal in found.refused]) == (
        1,
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    )
    assert all(
        "expected" in refusal["error"] and "received" in refusal["error"]
        for refusal in found.refused
    )
    more = [{"entity": name, "time": 2.0, "mark": "0"} for name in ("y", "z", "y")]
    assert [refusal["index"] for refusal in send(engine, more).refused] == [1]
    assert len(engine.live) == 2


@BOTH
def test_strange_names_are_kept_as_they_are(make: Make) -> None:
    names = ["'; DROP TABLE events; --", "<script>alert(1)</script>", "../../etc", "a\0b", "é\n"]
    engine = make()
    events = [
        {"id": name, "entity": name, "time": 1.0 + i, "mark": "0"} for i, name in enumerate(names)
    ]
    assert send(engine, events).accepted == len(names)
    engine = make()
    assert send(engine, events).duplicates == len(names)
    assert engine.live.entities is not None
    assert set(engine.live.entities.bank.entities) == set(names)
    assert [event.entity for event in engine.store.recent(10)] == names


def test_the_clock_of_the_engine_never_goes_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    first = engine.wall()
    monkeypatch.setattr("fourpoint.serve.engine.clocks.time", lambda: first - 86_400.0 * 40)
    assert engine.wall() >= first
    send(engine, some_events(2))
    assert make().wall() >= first


@BOTH
def test_one_process_has_a_store(make: Make, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    monkeypatch.setattr("fourpoint.serve.databases.LOCK_WAIT", 0.1)
    with pytest.raises(UserError, match="for this process alone"):
        SqlStore(database(url))
    SqlStore(database(url), writable=False).close()


def test_passwords_are_not_shown() -> None:
    assert "secret" not in without_password("postgresql://u:secret@h/db?password=secret")
    with pytest.raises(UserError) as found:
        database("mysql://u:secret@h/db")
    assert "secret" not in str(found.value)


# ---------------------------------------------------------------------- the present and silences


NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def dated(*, zoned: bool) -> Served:
    """A model of two entities with an event an hour each, from 12:00 on."""
    origin = NOON.isoformat() if zoned else NOON.replace(tzinfo=None).isoformat()
    log = LogFormat("time", sequence="entity", clock="stamps", zoned=zoned, origin=origin)
    trained = Trained(start=0.0, stop=1.0, events=100, sequences=2, unit="hours", log=log)
    return Served(Path("model"), Poisson(), trained)


def at(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    """Set the wall clock to so many hours after noon in UTC."""
    monkeypatch.setattr(Engine, "wall", lambda self: NOON.timestamp() + 3600 * hours)


def test_silences_raise_alarms_while_they_last(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def events(*hours: float) -> Request:
        stamps = [(NOON + timedelta(hours=hour)).isoformat() for hour in hours]
        return Request([{"entity": n, "time": stamp} for stamp in stamps for n in ("a", "b")])

    engine = make(dated(zoned=True))
    at(monkeypatch, 4.01)
    assert engine.accept([events(1.0, 2.0, 3.0, 4.0)])[0].accepted == 8
    digest = engine.digest()
    at(monkeypatch, 8.0)
    assert not engine.note_silences()
    at(monkeypatch, 50.0)  # also where the last event is older than a day
    assert engine.now() == pytest.approx(50.0)
    assert engine.note_silences() and not engine.note_silences()
    found = [engine.alarm_fields(alarm) for alarm in engine.store.alarms(10)]
    assert sorted(alarm["name"] for alarm in found) == ["a", "b"]
    assert {(alarm["kind"], alarm["direction"]) for alarm in found} == {("silence", "fewer")}
    assert engine.digest() == digest  # of events alone
    engine = make(dated(zoned=True))
    assert engine.digest() == digest and not engine.note_silences()
    receipt = engine.accept([events(50.0)])[0]
    assert not [alarm for alarm in receipt.alarms if alarm["of"] == "entity"]
    at(monkeypatch, 120.0)
    assert engine.note_silences() and engine.counters.alarms == len(engine.store.alarms(10))


@pytest.mark.parametrize("hours", [-5.0, 5.5])
def test_logs_in_local_time_without_a_zone(
    make: Make, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    engine = make(dated(zoned=False))
    at(monkeypatch, 1.01 - hours)
    engine.accept([Request([{"entity": "a", "time": "2026-03-02T13:00:00"}])])
    assert engine.now() == pytest.approx(1.01)
    at(monkeypatch, 3.0 - hours)
    assert engine.now() == pytest.approx(3.0)


def test_the_present_of_a_replay_is_its_last_event(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(dated(zoned=True))
    at(monkeypatch, 1000.0)
    engine.accept([Request([{"entity": "a", "time": "2026-03-02T13:00:00+00:00"}])])
    assert engine.now() == 1.0 and not engine.is_live and not engine.note_silences()
