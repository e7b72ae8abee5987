"""A bank of streams equals its streams one by one, forgets nothing on disk, and changes nothing
where it refuses.
"""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_laws import build
from test_streaming import lively

from fourpoint.data.synthetic import simulate
from fourpoint.events import UserError
from fourpoint.models import DAPP, Hawkes, Poisson
from fourpoint.models.following import Events, Scored, Stop
from fourpoint.ops.quadrature import Unconverged
from fourpoint.streaming.bank import BankObservation, StreamBank
from fourpoint.streaming.rows import ExcitationRows
from fourpoint.streaming.store import Store
from fourpoint.streaming.stream import Stream

MODELS: dict[str, Any] = {
    "dapp": lambda: lively(3).double(),
    "dapp-float32": lambda: lively(3),
    "hawkes": lambda: Hawkes(3, baseline=0.2),
    "spline-poisson": lambda: build("spline-poisson", 3),
    "ratio": lambda: build("ratio", 3),
    "softmax": lambda: build("softmax", 3),
    "keep": lambda: build("keep", 3),
}
every_kind = pytest.mark.parametrize("kind", MODELS)


def events(
    seed: int = 0, count: int = 60, entities: int = 7, marks: int = 3
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Events of several entities in order of time, some of them tied."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(1.0, 15.0, count))
    times[10:13] = times[10]
    return [f"e{i}" for i in rng.integers(0, entities, count)], times, rng.integers(0, marks, count)


def alone(
    model: Any, names: list[str], times: np.ndarray, marks: np.ndarray, start: float = 1.0
) -> BankObservation:
    """The same by one stream per entity."""
    streams: dict[str, Stream] = {}
    found = []
    for name, t, m in zip(names, times.tolist(), marks.tolist(), strict=True):
        stream = streams.setdefault(name, Stream(model, start=start, top=0, alarms=0.2))
        found.append(stream.observe(t, m))
    each = (np.array([getattr(o, key) for o in found]) for key in ("log_density", "gap", "rate"))
    return BankObservation(*each, [o.alarms for o in found])


def agree(a: BankObservation, b: BankObservation, relative: float) -> None:
    for key in ("log_density", "gap", "rate"):
        assert np.allclose(getattr(a, key), getattr(b, key), rtol=relative, atol=relative), key


@every_kind
def test_a_bank_equals_its_streams(kind: str) -> None:
    model = MODELS[kind]()
    names, times, marks = events()
    expected = alone(model, names, times, marks)
    for size in (1, 7, 60):
        bank = StreamBank(model, start=1.0, alarms=0.2)
        parts = [
            bank.observe(names[i : i + size], times[i : i + size], marks[i : i + size])
            for i in range(0, 60, size)
        ]
        each = (
            np.concatenate([getattr(p, key) for p in parts])
            for key in ("log_density", "gap", "rate")
        )
        found = BankObservation(*each, [a for p in parts for a in p.alarms])
        agree(found, expected, 2e-5 if kind == "dapp-float32" else 4e-6)
        assert [[a.kind for a in one] for one in found.alarms] == [
            [a.kind for a in one] for one in expected.alarms
        ]
        assert (
            len(bank) == 7
            and sorted(bank.entities) == [f"e{i}" for i in range(7)]
            and "e3" in bank
            and "x" not in bank
        )
        mine = [i for i, name in enumerate(names) if name == "e3"]
        assert bank.count("e3") == len(mine)
        assert bank.log_likelihood("e3") == pytest.approx(
            float(found.log_density[mine].sum()), abs=1e-9
        )


@every_kind
def test_silence_and_intensity_are_those_of_a_stream(kind: str) -> None:
    model = MODELS[kind]()
    names, times, marks = events(count=20, entities=3)
    bank, stream = (
        StreamBank(model, start=1.0, alarms=1e-3),
        Stream(model, start=1.0, top=0, alarms=1e-3),
    )
    bank.observe(names, times, marks)
    for name, t, m in zip(names, times.tolist(), marks.tolist(), strict=True):
        if name == "e1":
            stream.observe(t, m)
    close = 2e-5 if kind == "dapp-float32" else 4e-6
    assert np.allclose(bank.intensity("e1", 15.5), stream.intensity(15.5), rtol=close)
    fresh = Stream(model, start=1.0).intensity(2.0)
    assert (
        np.allclose(bank.intensity("never seen", 2.0), fresh, rtol=close)
        and "never seen" not in bank
    )
    assert bank.advance(16.0) == [] and stream.advance(16.0) == ()
    loud = dict(bank.advance(400.0))
    quiet = stream.advance(400.0)
    assert set(loud) == {"e0", "e1", "e2"} and loud["e1"].kind == quiet[0].kind == "silence"
    assert bank.log_likelihood("e1") == pytest.approx(stream.log_likelihood, rel=close)
    assert bank.observe(["e1"], [401.0], [0]).gap[0] == pytest.approx(
        stream.observe(401.0, 0).gap, rel=close
    )


@every_kind
def test_a_restored_bank_goes_on_as_if_nothing_had_been_between(kind: str) -> None:
    model = MODELS[kind]()
    names, times, marks = events()
    bank = StreamBank(model, start=1.0, alarms=0.2)
    bank.observe(names[:40], times[:40], marks[:40])
    saved = bank.state()
    again = StreamBank.restore(model, saved)
    assert again.state() == saved
    a, b = (one.observe(names[40:], times[40:], marks[40:]) for one in (bank, again))
    agree(a, b, 1e-13)
    assert a.alarms == b.alarms and len(bank) == len(again)


@pytest.mark.parametrize("kind", ["dapp", "dapp-float32", "hawkes", "ratio"])
def test_entities_over_the_limit_come_back_from_disk_as_they_were(
    kind: str, tmp_path: Path
) -> None:
    model = MODELS[kind]()
    names, times, marks = events(count=200, entities=12)
    free, tight = (
        StreamBank(model, start=1.0, alarms=0.2),
        StreamBank(model, start=1.0, alarms=0.2, limit=3, spill=tmp_path),
    )
    for i in range(0, 200, 5):
        a, b = (
            one.observe(names[i : i + 5], times[i : i + 5], marks[i : i + 5])
            for one in (free, tight)
        )
        agree(a, b, 1e-13)
        assert (
            a.alarms == b.alarms
            and len(tight.table.row) <= max(3, len(set(names[i : i + 5])))
            and len(tight) == len(free)
        )
        assert len(tight.table.on_disk) == len(tight) - len(tight.table.row)
    assert sorted(tight.entities) == sorted(free.entities)
    assert tight.log_likelihood("e5") == free.log_likelihood("e5") and tight.count(
        "e0"
    ) == free.count("e0")
    whole = StreamBank.restore(model, tight.state())
    last = float(times[-1]) + 1
    agree(
        *(
            one.observe(sorted(free.entities), np.full(12, last), np.zeros(12, dtype=int))
            for one in (free, whole)
        ),
        1e-13,
    )
    again = StreamBank.restore(model, tight.state(), limit=2, spill=tmp_path / "other")
    assert len(again.table.row) == 2 and len(again) == 12 and len(again.table.on_disk) == 10
    tight.reset(1.0)
    assert len(tight) == 0 and tight.entities == []


def test_the_least_recently_seen_go_first(tmp_path: Path) -> None:
    bank = StreamBank(Poisson(), limit=2, spill=tmp_path)
    for i, name in enumerate(["a", "b", "a", "c"]):
        bank.observe([name], [float(i)])
    assert set(bank.table.row) == {"a", "c"}
    bank.observe(["b", "d", "e"], [9.0, 9.0, 9.0])  # a call's own stay until the next
    assert set(bank.table.row) == {"b", "d", "e"} and len(bank) == 5
    bank.observe(["f"], [9.0])
    assert len(bank.table.row) == 2 and "f" in bank.table.row and len(bank) == 6


def test_large_tables_grow_to_the_limit_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a burst of new entities does not wait for copies of a large table."""
    sizes: list[int] = []
    grow = ExcitationRows.grow

    def noted(rows: ExcitationRows, count: int) -> None:
        sizes.append(count)
        grow(rows, count)

    monkeypatch.setattr(ExcitationRows, "grow", noted)
    bank = StreamBank(Hawkes(), limit=40_000, spill=tmp_path, alarms=1e-3)
    for first in range(0, 40_000, 1000):
        bank.observe([f"e{first + i}" for i in range(1000)], np.full(1000, 0.5))
    assert sizes == sorted(sizes) and [size for size in sizes if size > 1024] == [41_024]


def test_a_full_disk_or_a_damaged_file_is_an_error_that_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = StreamBank(Poisson(), limit=1, spill=tmp_path)
    bank.observe(["a"], [1.0])

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", full)
        with pytest.raises(
            UserError,
            match=(
                r"a folder to spill to with room for more; received \[Errno 28\] No space left "
                r"on device"
            ),
        ):
            bank.observe(["b"], [1.0])
    assert set(bank.table.row) == {"a"} and bank.count("a") == 1
    bank.observe(["b"], [1.0])
    bank.observe(["c"], [2.0])
    with sqlite3.connect(tmp_path / "entities.sqlite") as other:
        good = other.execute("SELECT body FROM entities WHERE name = ?", (b"a",)).fetchone()[0]
        other.execute("UPDATE entities SET body = ? WHERE name = ?", (good[:-4], b"a"))
    with pytest.raises(UserError, match="entity 'a' with its own hash"):
        bank.observe(["c", "a"], [3.0, 3.0])
    assert bank.count("c") == 1
    with sqlite3.connect(tmp_path / "entities.sqlite") as other:
        other.execute("UPDATE entities SET body = ? WHERE name = ?", (good, b"a"))
    assert bank.observe(["a"], [3.0]).gap.tolist() == [2.0]


@pytest.mark.parametrize("kind", ["dapp", "hawkes"])
def test_what_is_wrong_is_refused_and_changes_nothing(kind: str) -> None:
    model = MODELS[kind]()
    bank = StreamBank(model, start=1.0, alarms=0.1)
    bank.observe(["a", "b"], [2.0, 12.5], [0, 1])
    before = bank.state()
    for names, times, marks, words in (
        (
            ["a", "b"],
            [3.0, 11.0],
            [0, 0],
            r"expected a time of at least 12.5, the last one of 'b'; received 11.0",
        ),
        (
            ["c", "a", "c"],
            [5.0, 6.0, 4.0],
            [0, 0, 0],
            r"a time of at least 5.0, the last one of 'c'; received 4.0",
        ),
        (["c"], [0.5], [0], r"a time of at least 1.0, the last one of 'c'"),
        (["a", "c"], [3.0, math.nan], [0, 0], "finite times; received nan at event 1 of the call"),
        (["a"], ["soon"], [0], "numbers for times"),
        (["a", "c"], [3.0, 3.0], [0, 3], "a mark that the model knows, one of 0, 1, 2; received 3"),
        (
            ["a", "c"],
            [3.0, 3.0],
            np.array([0, -1]),
            "a mark that the model knows, one of 0, 1, 2; received -1",
        ),
        (["a", "c"], [3.0, 3.0], [0, "fire"], "received 'fire'"),
        (["a"], [3.0], None, "received None"),
        (
            ["a"],
            [3.0, 4.0],
            [0, 0],
            "one time and one mark per event; received 1 entities, 2 times and 2 marks",
        ),
    ):
        with pytest.raises(UserError, match=words):
            bank.observe(names, times, marks)
        assert bank.state() == before and len(bank) == 2
    with pytest.raises(UserError, match="at least 12.5, the last one of 'b'"):
        bank.advance(5.0)
    with pytest.raises(UserError, match="at least 12.5, the last one of 'b'"):
        bank.intensity("b", 5.0)
    with pytest.raises(UserError, match="an entity of this bank; received 'z'"):
        bank.log_likelihood("z")
    assert bank.state() == before
    assert bank.observe([], [], []).gap.tolist() == []
    assert bank.observe(["a", "b"], [3.0, 13.0], ["1", "2"]).rate.shape == (2,)


def test_a_rate_that_explodes_in_a_later_round_undoes_the_earlier_ones() -> None:
    model = DAPP(eval_features=8, heads=1, link="exp", base="constant", drift="none")
    model.initialise(simulate("hawkes", 20))
    with torch.no_grad():
        model.value_weight.fill_(30.0)
    bank = StreamBank(model.double(), alarms=0.1)
    bank.observe(["a", "b"], [0.01, 0.01])
    before = bank.state()
    with pytest.raises(UserError, match="expected (rates that can be integrated|finite rates)"):
        bank.observe(["a", *["b"] * 900], [0.02, *(0.02 + 1e-3 * np.arange(900))])
    assert bank.state() == before


def one_by_one(
    bank: StreamBank, names: list[str], times: np.ndarray, marks: np.ndarray
) -> tuple[dict[int, str], list[BankObservation | None]]:
    """Each event in a call of its own: the errors of those refused, and what was found of all."""
    refused: dict[int, str] = {}
    found: list[BankObservation | None] = []
    for i, name in enumerate(names):
        try:
            found.append(bank.observe([name], times[i : i + 1], marks[i : i + 1]))
        except UserError as error:
            refused[i] = str(error)
            found.append(None)
    return refused, found


@every_kind
def test_events_refused_in_a_block_change_nothing_and_the_others_are_scored(kind: str) -> None:
    model = MODELS[kind]()
    names, times, marks = events(count=80)
    times[[20, 41, 42]] = times[[8, 20, 30]] - 0.5  # before the last events of most entities
    times[50], marks[60] = np.nan, 9
    names[70], times[70] = "never", 0.5  # before the start
    options: dict[str, Any] = {"start": 1.0, "alarms": 0.2, "fleet": True}
    single, block = StreamBank(model, **options), StreamBank(model, **options)
    expected, each = one_by_one(single, names, times, marks)
    assert {50, 60, 70} < set(expected)
    close = 0.0 if block._memories.follows else 4e-6  # rows of histories share their nodes
    done = 0
    while done < 80:
        some = slice(done, min(80, done + min(33, block.until_look or 33)))
        found = block.observe_many(names[some], times[some], marks[some])
        for i in range(some.start, some.stop):
            one = each[i]
            place = i - some.start
            if one is None:
                first_words = expected[i].split(" at event")[0]  # whose number is that of its call
                assert str(found.refused[place]).startswith(first_words)
                assert np.isnan(found.gap[place]) and found.alarms[place] == ()
                continue
            assert place not in found.refused and found.alarms[place] == one.alarms[0]
            for key in ("log_density", "gap", "rate"):
                own = float(getattr(one, key)[0])
                assert getattr(found, key)[place] == pytest.approx(own, rel=close, abs=close)
        done = some.stop
    assert "never" not in block and sorted(block.entities) == sorted(single.entities)
    last = {name: single.log_likelihood(name) for name in single.entities}
    total = {name: block.log_likelihood(name) for name in last}
    assert total == pytest.approx(last, rel=close, abs=20 * close)


def test_a_rate_that_explodes_in_a_block_refuses_that_event_alone() -> None:
    model = DAPP(eval_features=8, heads=1, link="exp", base="constant", drift="none")
    model.initialise(simulate("hawkes", 20))
    with torch.no_grad():
        model.value_weight.fill_(30.0)
    rng = np.random.default_rng(0)
    names = [f"e{i}" for i in rng.integers(0, 3, 2400)]
    times = np.sort(rng.uniform(0.0, 0.8, 2400))
    times[rng.integers(0, 2400, 40)] -= 0.05
    times = np.maximum(times, 0.0)
    marks = np.zeros(2400, dtype=np.int64)
    single, block = (StreamBank(model.double(), alarms=0.1) for _ in range(2))
    expected, each = one_by_one(single, names, times, marks)
    found = block.observe_many(names, times, marks)
    exploded = [i for i, words in expected.items() if "last one" not in words]
    assert 0 < len(exploded) < len(expected) < 2400
    assert {i: str(error) for i, error in found.refused.items()} == expected
    scored = [(one.gap[0], gap) for one, gap in zip(each, found.gap, strict=True) if one]
    assert all(one == gap for one, gap in scored)
    assert block.state() == single.state()


def test_blocks_of_a_feed_copy_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies by which a call can be undone take as long as a quarter of its scores."""
    bank = StreamBank(lively(3), start=1.0)
    follow, copies = bank._memories.follow, []

    def noting(*arguments: Any) -> Any:
        copies.append(arguments[-1] is not None)
        return follow(*arguments)

    monkeypatch.setattr(bank._memories, "follow", noting)
    names, times, marks = events()
    bank.observe_many(names[:30], times[:30], marks[:30])
    bank.observe(names[30:], times[30:], marks[30:])
    assert copies == [False, True]


@every_kind
def test_a_call_that_fails_midway_is_undone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[kind]()
    names, times, marks = events()
    bank, other = StreamBank(model, start=1.0), StreamBank(model, start=1.0)
    for one in (bank, other):
        one.observe(names[:10], times[:10], marks[:10])
    score, calls = bank._memories.score, [0]

    def failing(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 6:
            raise UserError("a sixth round", "none", "Go on.")
        return score(*arguments)

    def stopping(rows: Any, numbers: Any, block: Any, into: Any, first: Any) -> Stop:
        few = slice(5)
        follow(
            rows[few],
            numbers,
            Events(block.times[few], block.marks[few]),
            Scored(*(values[few] for values in into)),
            first[first < 5],
        )
        return Stop(5, Unconverged("expected a sixth round; received none. Go on."))

    follow = bank._memories.follow
    with monkeypatch.context() as patch:
        patch.setattr(bank._memories, "score", failing)
        if bank._memories.follows:
            patch.setattr(bank._memories, "follow", stopping)
        with pytest.raises(UserError, match="a sixth round"):
            bank.observe(names[10:], times[10:], marks[10:])
    assert sorted(bank.entities) == sorted(other.entities) and bank.count("e0") == other.count("e0")
    agree(*(one.observe(names[10:], times[10:], marks[10:]) for one in (bank, other)), 1e-12)


def test_foreign_states_and_wrong_settings_are_refused(tmp_path: Path) -> None:
    bank = StreamBank(Hawkes(2))
    bank.observe(["a"], [1.0], [0])
    good = bank.state()
    stream = Stream(Hawkes(2))
    for state, words in (
        (good[:-1], "a state of .* bytes; received"),
        (b"something", "the bytes of a bank's state"),
        (stream.state(), "the state of a bank; received that of a stream"),
    ):
        with pytest.raises(UserError, match=words):
            StreamBank.restore(Hawkes(2), state)
    with pytest.raises(UserError, match="a state of this model"):
        StreamBank.restore(Hawkes(3), good)
    with pytest.raises(
        UserError,
        match="a limit of at least 1 and a folder to spill to; received limit=5, spill=None",
    ):
        StreamBank(Hawkes(2), limit=5)
    with pytest.raises(UserError, match="a model of constant memory to spill; received DAPP"):
        StreamBank(build("softmax", 1), limit=5, spill=tmp_path)
    assert len(StreamBank.restore(Hawkes(2), StreamBank(Hawkes(2)).state())) == 0


def test_threads_change_nothing() -> None:
    model = lively()
    rng = np.random.default_rng(2)
    names = [f"e{i}" for i in range(700)]
    banks = [StreamBank(model, threads=n) for n in (1, 2, 3)]
    at = np.zeros(700)
    for _ in range(3):
        at += rng.exponential(size=700) * 0.06
        first, *others = (bank.observe(names, at) for bank in banks)
        for other in others:
            agree(first, other, 1e-6)
