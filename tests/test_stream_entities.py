"""Many entities: a bounded number in memory, states that write only what has changed, and no
waiting for the disk.
"""

from __future__ import annotations

import gc
import json
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_laws import build
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.events import UserError
from fourpoint.models import Hawkes
from fourpoint.storage.checkpoints import save
from fourpoint.streaming.entity_table import EntityTable
from fourpoint.streaming.feed import events as feed_events
from fourpoint.streaming.feed.feed import score_feed
from fourpoint.streaming.feed.loop import Ended
from fourpoint.streaming.feed.saving import MOST_WAITING, EntitySaver
from fourpoint.streaming.feed.state import read_state
from fourpoint.streaming.monitor_table import MonitorCopies, MonitorTable
from fourpoint.streaming.store import Store

LIMIT = (
    600.0  # seconds: longer than any machine takes, so that only what never happens is a failure
)


def feed_text(lines: int, entities: int, seed: int = 0, begin: float = 0.0) -> str:
    draw, now, text = random.Random(seed), begin, []
    for _ in range(lines):
        now += draw.expovariate(5.0)
        text.append(json.dumps({"time": now, "who": f"customer {draw.randrange(entities)}"}))
    return "\n".join(text) + "\n"


class Place:
    """A folder with a feed of many entities; :meth:`run` scores it."""

    def __init__(self, folder: Path, model: Any = None) -> None:
        self.input, self.output, self.state = folder / "feed", folder / "scores", folder / "state"
        self.model = model or Hawkes(baseline=0.2, branching=0.4, decay=2.0)
        self.told: list[str] = []

    def run(self, **options: Any) -> Ended:
        self.told = []
        known = {
            "input": self.input,
            "output": self.output,
            "state": self.state,
            "by": "who",
            "tell": self.told.append,
        }
        return score_feed(self.model, **{**known, **options})

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def alone(self) -> list[dict[str, Any]]:
        """The rows of a run without a limit or a state."""
        file = self.output.with_name("alone")
        file.unlink(missing_ok=True)
        self.run(output=file, state=None, limit=10**6)
        return [json.loads(line) for line in file.read_text().splitlines()]


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert {key: one[key] for key in ("line", "time", "entity")} == {
            key: other[key] for key in ("line", "time", "entity")
        }
        assert one["log_density"] == pytest.approx(other["log_density"], abs=1e-9) and one[
            "gap"
        ] == pytest.approx(other["gap"], abs=1e-9)
        # Silences are told at the next look at all entities, or with the entity's next event while
        # some are on disk.
        told = [
            [alarm["kind"] for alarm in row["alarms"] if alarm["kind"] != "silence"]
            for row in (one, other)
        ]
        assert told[0] == told[1]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.input.write_text(feed_text(600, 150))
    return found


@pytest.mark.parametrize("stated", [False, True])
def test_a_limit_bounds_the_entities_in_memory_and_changes_no_score(
    stated: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = place.alone()
    monkeypatch.setattr(feed_events.Entities, "batch", 16)
    most, assign = [0], EntityTable.assign

    def counted(table: EntityTable, entities: Any) -> Any:
        found = assign(table, entities)
        most[0] = max(most[0], len(table.row))
        return found

    monkeypatch.setattr(EntityTable, "assign", counted)
    place.run(limit=20, every=16, **({} if stated else {"state": None}))
    waiting = 16 * (MOST_WAITING + 1) if stated else 0
    assert most[0] <= 20 + 16 + waiting, (
        "beyond the limit are those of a call, and those that are being written"
    )
    same(place.rows(), expected)
    assert "about 3.8 kB of memory per entity; at most 20 entities stay in memory" in place.told[0]


def test_the_command_has_a_limit_by_default(tmp_path: Path) -> None:
    save(Hawkes(), tmp_path / "model", about={"start": 0.0})
    (tmp_path / "feed").write_text(feed_text(20, 5))
    line = [
        "stream",
        str(tmp_path / "model"),
        str(tmp_path / "feed"),
        "--by",
        "who",
        "-o",
        str(tmp_path / "scores"),
    ]
    result = CliRunner().invoke(app, line)
    assert (
        result.exit_code == 0
        and "entities stay in memory, the others on disk (--limit)" in result.stderr
    )
    refused = CliRunner().invoke(app, [*line, "--limit", "0"])
    assert refused.exit_code == 2 and "--limit of at least 1" in refused.stderr


def test_a_model_that_remembers_every_event_takes_no_limit(tmp_path: Path) -> None:
    place = Place(tmp_path, build("softmax", 1))
    place.input.write_text(feed_text(40, 5))
    with pytest.raises(UserError, match="a model of constant memory for --limit; received DAPP"):
        place.run(limit=3)
    whole = place.input.read_text().splitlines(keepends=True)
    for there in (13, 26, 40):
        place.input.write_text("".join(whole[:there]))
        place.run()
    assert "more with every event" in place.told[0]
    place.run(output=tmp_path / "alone", state=None)
    same(place.rows(), [json.loads(line) for line in (tmp_path / "alone").read_text().splitlines()])


def test_a_state_writes_only_the_entities_that_have_changed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[str]] = []
    write = Store.write

    def noted(store: Store, rows: Any, texts: Any = None) -> None:
        listed = list(rows)
        written.append([name for name, _, _ in listed])
        write(store, listed, texts)

    monkeypatch.setattr(Store, "write", noted)
    place.run()
    assert len({name for names in written for name in names}) == len(
        {row["entity"] for row in place.rows()}
    )
    size = place.state.stat().st_size
    written.clear()
    with place.input.open("a") as file:
        file.write(
            "".join(json.dumps({"time": 500.0, "who": f"customer {i}"}) + "\n" for i in range(10))
        )
    place.run()
    assert sorted(name for names in written for name in names) == sorted(
        f"customer {i}" for i in range(10)
    )
    assert place.state.stat().st_size < 1.2 * size, "rows are replaced, not added"


def test_a_restart_reads_an_entity_when_it_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run()
    read: list[str] = []
    real = Store.read

    def noted(store: Store, names: Any) -> Any:
        read.extend(names)
        return real(store, names)

    monkeypatch.setattr(Store, "read", noted)
    with place.input.open("a") as file:
        file.write('{"time": 500.0, "who": "customer 7"}\n{"time": 500.0, "who": "new"}\n')
    place.run()
    assert read == ["customer 7", "new"]
    same(place.rows(), place.alone())


def test_scoring_goes_on_while_a_state_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes as long as it takes until all lines are scored; then the state is that of the
    end.
    """
    monkeypatch.setattr(feed_events.Entities, "batch", 16)
    monkeypatch.setattr("fourpoint.streaming.feed.loop.EVERY", 16)
    monkeypatch.setattr("fourpoint.streaming.feed.loop.SHARE", 1e12)
    first_written, begun, free = threading.Event(), threading.Event(), threading.Event()
    calls, saves = [0], [0]
    write, save_state = Store.write, EntitySaver.save

    def slow(store: Store, rows: Any, texts: Any = None) -> None:
        calls[0] += 1
        if calls[0] == 2:
            begun.set()
            assert free.wait(LIMIT), "nothing was scored while the state was written"
        write(store, rows, texts)
        first_written.set()

    def counted(saver: EntitySaver, *given: Any, **named: Any) -> None:
        saves[0] += 1
        save_state(saver, *given, **named)

    observe = feed_events.Entities.observe

    def noted(scorer: Any, events: Any) -> Any:
        # The second state is handed over while lines are left, and its writing has begun when the
        # next lines are scored, however slow the thread that writes is.
        if saves[0] == 1:
            assert first_written.wait(LIMIT)
        elif saves[0] > 1:
            assert begun.wait(LIMIT)
        found = observe(scorer, events)
        if begun.is_set() and events.times and events.times[-1] == last:
            free.set()
        return found

    last = json.loads(place.input.read_text().splitlines()[-1])["time"]
    monkeypatch.setattr(Store, "write", slow)
    monkeypatch.setattr(EntitySaver, "save", counted)
    monkeypatch.setattr(feed_events.Entities, "observe", noted)
    assert place.run().code == 0
    state = read_state(place.state)
    assert state is not None and state.line == 600 and calls[0] >= 3
    same(place.rows(), place.alone())


@pytest.mark.parametrize("fails", [{2}, {2, 3, 4}])
def test_what_could_not_be_written_is_written_with_the_next_state(
    fails: set[int], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_events.Entities, "batch", 16)
    calls, write = [0], Store.write

    def full(store: Store, rows: Any, texts: Any = None) -> None:
        calls[0] += 1
        if calls[0] in fails:
            raise OSError(28, "No space left on device")
        write(store, rows, texts)

    whole = place.input.read_text().splitlines(keepends=True)
    place.input.write_text("".join(whole[:400]))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", full)
        assert place.run(every=50, limit=10).code == 0
    assert calls[0] > max(fails) and sum("No space left" in text for text in place.told) <= len(
        fails
    )
    state = read_state(place.state)
    assert state is not None and state.line == 400
    place.input.write_text("".join(whole))
    place.run(limit=10)
    same(place.rows(), place.alone())


def test_a_last_state_that_fails_ends_with_code_1_and_is_made_good(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, write = [0], Store.write

    def full(store: Store, rows: Any, texts: Any = None) -> None:
        calls[0] += 1
        if calls[0] > 1:
            raise OSError(28, "No space left on device")
        write(store, rows, texts)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", full)
        assert place.run().code == 1
    state = read_state(place.state)
    assert state is not None and state.line == 0
    assert place.run().code == 0
    same(place.rows(), place.alone())


def test_a_store_left_by_a_killed_process_is_whole(tmp_path: Path) -> None:
    """Rows that were written and not committed are gone; those that were committed are there."""
    import os
    import signal
    import subprocess
    import sys

    script = (
        "import os, sys, signal, numpy as np\n"
        "from fourpoint.streaming.store import Store, pack_entity\n"
        "store = Store(sys.argv[1], durable=True)\n"
        "store.write([('a', {}, {'x': np.ones(3)})], {'feed': b'one'})\n"
        "store.write([('b', {}, {'x': np.ones(3)})], {'feed': b'two'})\n"
        "store._writing.execute('BEGIN IMMEDIATE')\n"
        "store._writing.execute('INSERT OR REPLACE INTO entities VALUES (?, ?, ?)', "
        "pack_entity('c', {}, {'x': np.ones(9)}))\n"
        "store._writing.execute('PRAGMA cache_spill = 1')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")], env=environment, timeout=LIMIT
    )
    assert ended.returncode == -signal.SIGKILL
    store = Store(tmp_path / "store", durable=True)
    assert sorted(store.names()) == ["a", "b"] and store.text("feed") == b"two"
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_names_may_hold_anything(tmp_path: Path) -> None:
    import numpy as np

    names = ["../../etc/passwd", "a'; DROP TABLE entities; --", "\x00", "ü", "\ud800", "x" * 10_000]
    store = Store(tmp_path / "store", durable=False)
    store.write((name, {"i": i}, {"x": np.full(2, i)}) for i, name in enumerate(names))
    assert [store.read(names)[name][0]["i"] for name in names] == list(range(len(names)))
    assert set(store.names()) == set(names) and len(store) == len(names)
    store.close()


def test_after_a_burst_batches_are_small_and_none_waits_for_a_whole_state(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New entities come faster than the disk takes them: each batch is small then, and scoring goes
    on although no state that was handed over is written.
    """
    place.input.write_text(
        "".join(json.dumps({"time": float(i), "who": f"new {i}"}) + "\n" for i in range(400))
    )
    monkeypatch.setattr(feed_events.Entities, "batch", 16)
    for name, value in (("MOST_CHANGED", 16), ("MOST_UNSAVED", 10**6), ("PAUSE", 0.0), ("FEW", 4)):
        monkeypatch.setattr(f"fourpoint.streaming.feed.saving.{name}", value)
    free, write, observe = threading.Event(), Store.write, feed_events.Entities.observe
    batches: list[int] = []
    calls = [0]

    def slow(store: Store, rows: Any, texts: Any = None) -> None:
        calls[0] += 1
        if calls[0] > 1:
            assert free.wait(LIMIT), "scoring waited for a state to be written"
        write(store, rows, texts)

    def noted(scorer: Any, events: Any) -> Any:
        batches.append(len(events.times))
        if sum(batches) > 300:
            free.set()
        return observe(scorer, events)

    monkeypatch.setattr(Store, "write", slow)
    monkeypatch.setattr(feed_events.Entities, "observe", noted)
    assert place.run().code == 0
    # The first state may be written at once, MOST_WAITING + 1 wait, and one more batch follows.
    states = 16 * (MOST_WAITING + 3)
    sums = [sum(batches[: i + 1]) for i in range(len(batches))]
    crowded = [size for size, done in zip(batches, sums, strict=True) if states < done <= 300]
    assert crowded and max(crowded) <= 4
    monkeypatch.undo()
    same(place.rows(), place.alone())


def test_copies_for_a_state_take_no_call_per_entity_in_the_loop(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Monitors are packed by the thread that writes, not by the one that scores."""
    packed, states = set[int](), MonitorCopies.states

    def noted(copies: MonitorCopies) -> Any:
        packed.add(threading.get_ident())
        yield from states(copies)

    monkeypatch.setattr(MonitorCopies, "states", noted)
    assert place.run(alarms=1e-3).code == 0
    assert packed and threading.get_ident() not in packed


def test_copies_of_monitors_have_their_states_and_no_more_of_their_windows() -> None:
    table = MonitorTable(1e-3)
    table.grow(300)
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.integers(0, 50, 400), np.full(600, 7)])
    table.observe(rows, rng.exponential(size=1000), np.arange(1000.0))
    few = np.array([3, 60, 4])
    copies = table.copied(few)
    assert copies.windows.shape[1] == table.seen[few].max() < 30
    for some in (few, np.array([7, 60, 8])):
        for row, state in zip(some.tolist(), table.copied(some).states(), strict=True):
            monitor = table[row]
            if monitor is None:
                assert state is None
                continue
            numbers, gaps = monitor.state()
            assert state is not None and state[0] == numbers
            assert json.dumps(state[0]) == json.dumps(numbers)
            assert state[1].tolist() == gaps.tolist()


def test_no_collection_visits_all_objects_while_a_feed_is_scored(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A garbage collection of all objects would stop every thread for a good part of a second."""
    observe, frozen = feed_events.Entities.observe, []

    def noted(scorer: Any, events: Any) -> Any:
        if not frozen:  # all of them are counted, which takes its time
            frozen.append(gc.get_freeze_count())
            thresholds.append(gc.get_threshold()[0])
        return observe(scorer, events)

    thresholds: list[int] = []
    usual = gc.get_threshold()
    monkeypatch.setattr(feed_events.Entities, "observe", noted)
    assert place.run().code == 0
    assert frozen[0] > 10_000 and gc.get_freeze_count() == 0
    assert thresholds[0] > 4 * feed_events.Entities.batch  # a batch is not visited while it is used
    assert gc.get_threshold() == usual
