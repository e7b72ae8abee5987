"""States whose checksum is right and whose content is not: refused in three clauses, whatever was
changed, and never believed.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from test_laws import build

from fourpoint.events import UserError
from fourpoint.models import Hawkes
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.feed.feed import score_feed
from fourpoint.streaming.state import LAYOUT, MAGIC, VERSION, from_tensors, pack, to_tensors, unpack
from fourpoint.streaming.stream import Stream

Change = Callable[[dict[str, Any], dict[str, Any]], object]
NAN, INF = float("nan"), float("inf")


def sealed(body: bytes, version: int = VERSION) -> bytes:
    return MAGIC + LAYOUT.pack(version, len(body), hashlib.sha256(body).digest()) + body


def tampered(state: bytes, change: Change) -> bytes:
    """The state with its content changed and its checksum made right again."""
    header, arrays = from_tensors(state[len(MAGIC) + LAYOUT.size :])
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(header, arrays)
    return sealed(to_tensors(header, arrays))


def put(name: str, value: Any) -> Change:
    return lambda header, arrays: header.__setitem__(name, value)


def filled(name: str, value: Any) -> Change:
    return lambda header, arrays: arrays.__setitem__(name, np.full_like(arrays[name], value))


def made(name: str, make: Callable[[Any], Any]) -> Change:
    return lambda header, arrays: arrays.__setitem__(name, make(arrays[name]))


def without(name: str) -> Change:
    return lambda header, arrays: (header.pop(name, None), arrays.pop(name, None))


def unarrayed(name: str) -> Change:
    return lambda header, arrays: arrays.pop(name)


def monitor(**values: Any) -> Change:
    return lambda header, arrays: header["monitor"].update(values)


HEADERS: dict[str, Change] = {
    **{
        f"no {name}": without(name)
        for name in (
            "start",
            "time",
            "count",
            "log_likelihood",
            "open",
            "recent",
            "top",
            "kind",
            "model",
        )
    },
    "start as text": put("start", "0"),
    "start NaN": put("start", NAN),
    "start null": put("start", None),
    "time infinite": put("time", INF),
    "time before the start": put("time", -5.0),
    "time moved": put("time", 1e6),
    "time as a list": put("time", [1.0]),
    "count negative": put("count", -1),
    "count a fraction": put("count", 1.5),
    "count true": put("count", True),
    "count huge": put("count", 10**400),
    "count other": put("count", 100),
    "likelihood NaN": put("log_likelihood", NAN),
    "likelihood as text": put("log_likelihood", "0"),
    "likelihood whole": put("log_likelihood", 0),
    "open negative": put("open", -1.0),
    "open NaN": put("open", NAN),
    "open beyond floats": put("open", 10**400),
    "monitor's sums beyond floats": monitor(sums=[[10**400, 0, 0.0], [0.0, 0, 0.0]]),
    "keep huge": put("keep", 10**15),
    "keep negative": put("keep", -3),
    "keep as text": put("keep", "many"),
    "recent zero": put("recent", 0),
    "recent huge": put("recent", 10**15),
    "top huge": put("top", 10**15),
    "top negative": put("top", -1),
    "an entry more": put("path", "../../etc/passwd"),
    "no monitor's numbers": put("monitor", None),
    "monitor a list": put("monitor", [1, 2]),
    "monitor empty": put("monitor", {}),
    "monitor's alarms": monitor(alarms=2.0),
    "monitor's sums short": monitor(sums=[[0.0, 0]]),
    "monitor's sums text": monitor(sums=[["a", 0, 0.0], [0.0, 0, 0.0]]),
    "monitor's sums NaN": monitor(sums=[[NAN, 0, 0.0], [0.0, 0, 0.0]]),
    "monitor seen negative": monitor(seen=-4),
    "monitor seen huge": monitor(seen=10**12),
    "monitor told": monitor(told="yes"),
    "no gaps": unarrayed("monitor"),
    "gaps NaN": filled("monitor", NAN),
    "gaps negative": filled("monitor", -1.0),
    "gaps of two axes": made("monitor", lambda a: a[None]),
    "gaps as integers": made("monitor", lambda a: a.astype(np.int64)),
    "a gap more": made("monitor", lambda a: np.append(a, 1.0)),
    "recent NaN": filled("recent.times", NAN),
    "recent fewer": made("recent.times", lambda a: a[:-1]),
    "recent as float32": made("recent.rates", lambda a: a.astype(np.float32)),
    "no recent": without("recent.times"),
    "marks beyond": filled("recent.marks", 77),
    "marks negative": filled("recent.marks", -1),
    "marks as floats": made("recent.marks", lambda a: a.astype(float)),
}
MODELS: dict[str, Callable[[], tuple[Any, int | None]]] = {
    "hawkes": lambda: (build("hawkes", 3), None),
    "dapp": lambda: (build("sum", 3), None),
    "keep": lambda: (build("sum", 3), 3),
    "softmax": lambda: (build("softmax", 3), None),
}


def saved(kind: str) -> tuple[Any, bytes]:
    model, keep = MODELS[kind]()
    stream = Stream(model, keep=keep)
    for i in range(5):
        stream.observe(0.5 * i, i % 3)
    return model, stream.state()


def refused(restore: Callable[[], object]) -> None:
    with pytest.raises(UserError) as caught:
        restore()
    error = caught.value
    assert error.expected and error.received and error.remedy and len(str(error)) < 600


@pytest.fixture(scope="module")
def hawkes() -> tuple[Any, bytes]:
    return saved("hawkes")


@pytest.mark.parametrize("case", HEADERS)
def test_a_tampered_stream_is_refused(case: str, hawkes: tuple[Any, bytes]) -> None:
    model, state = hawkes
    assert tampered(state, lambda header, arrays: None) == state
    refused(lambda: Stream.restore(model, tampered(state, HEADERS[case])))


@pytest.mark.parametrize("kind", MODELS)
def test_every_array_of_a_tampered_stream_is_checked(kind: str) -> None:
    model, state = saved(kind)
    assert Stream.restore(model, state).state() == state
    names = list(from_tensors(state[len(MAGIC) + LAYOUT.size :])[1])
    for name in names:
        changes = [
            unarrayed(name),
            made(name, lambda a: a[None]),
            made(name, lambda a: a.real.astype(np.int16)),
        ]
        changes.append(made(name, lambda a: np.concatenate([a, a]) if a.ndim else np.full(3, a)))
        array = from_tensors(state[len(MAGIC) + LAYOUT.size :])[1][name]
        if array.dtype.kind in "fc" and array.size:
            changes += [filled(name, NAN), filled(name, INF)]
        for change in changes:
            refused(lambda change=change: Stream.restore(model, tampered(state, change)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00" * 4,
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        (4).to_bytes(8, "little") + b"null",
        b"".join(
            [
                (60).to_bytes(8, "little"),
                json.dumps({"__metadata__": {"fourpoint": "[1]"}}).ljust(60).encode(),
            ]
        ),
        b"".join(
            [
                (60).to_bytes(8, "little"),
                json.dumps({"__metadata__": {"fourpoint": "{"}}).ljust(60).encode(),
            ]
        ),
        b"".join(
            [
                (99).to_bytes(8, "little"),
                b'{"x":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}}'.ljust(
                    99
                ),
            ]
        ),
        b"".join([(8 * 10**4).to_bytes(8, "little"), b"[" * (8 * 10**4)]),
    ],
)
def test_safetensors_that_are_none_are_refused(body: bytes, hawkes: tuple[Any, bytes]) -> None:
    refused(lambda: Stream.restore(hawkes[0], sealed(body)))


def test_a_state_of_the_last_version_is_refused_with_a_way_on(hawkes: tuple[Any, bytes]) -> None:
    with pytest.raises(
        UserError,
        match=(
            r"a state of version 2; received version 1. Use the version of Fourpoint that wrote "
            r"it, or start"
        ),
    ):
        Stream.restore(hawkes[0], sealed(hawkes[1][len(MAGIC) + LAYOUT.size :], version=1))


BANKS: dict[str, Change] = {
    "names repeated": put("entities", ["a", "a"]),
    "names of another kind": put("entities", ["a", 7]),
    "an empty name": put("entities", ["a", ""]),
    "fewer names": put("entities", ["a"]),
    "more names": put("entities", ["a", "b", "c"]),
    "names as text": put("entities", "ab"),
    "no names": without("entities"),
    "no monitors": without("monitors"),
    "fewer monitors": put("monitors", [None]),
    "sizes": put("sizes", [1, -1]),
    "sizes huge": put("sizes", [10**12, 1]),
    "monitors of two axes": made("monitors", lambda a: a[None]),
    "start NaN": put("start", NAN),
    "start later": put("start", 50.0),
    "alarms": put("alarms", 5),
    "alarms as text": put("alarms", "often"),
    "count negative": filled("count", -1),
    "at NaN": filled("at", NAN),
    "open negative": filled("open", -0.5),
    "likelihood NaN": filled("likelihood", NAN),
    "no count": without("count"),
    "a row less": made("at", lambda a: a[:1]),
    "count as floats": made("count", lambda a: a.astype(float)),
    "memory NaN": filled("excitation", NAN),
    "memory wider": made("excitation", lambda a: np.repeat(a, 2, axis=-1)),
    "an array more": lambda header, arrays: arrays.__setitem__("x", np.zeros(2)),
}


@pytest.mark.parametrize("case", BANKS)
def test_a_tampered_bank_is_refused(case: str) -> None:
    model = build("hawkes", 3)
    bank = StreamBank(model, alarms=0.1)
    bank.observe(["a", "b", "a"], [1.0, 2.0, 3.0], [0, 1, 2])
    state = bank.state()
    assert StreamBank.restore(model, state).state() == state
    refused(lambda: StreamBank.restore(model, tampered(state, BANKS[case])))


# ---------------------------------------------------------------------- the state of a feed


def feed(folder: Path, **options: Any) -> None:
    (folder / "feed").write_text(
        "".join(json.dumps({"time": i / 2, "who": "ab"[i % 2]}) + "\n" for i in range(1, 11))
    )
    files = {"input": folder / "feed", "output": folder / "scores", "state": folder / "state"}
    score_feed(Hawkes(), **files, tell=lambda text: None, **options)


def resealed(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The state of a feed with another header, and the hash that belongs to it."""
    header, arrays = unpack("feed", "", content)
    values = {name: value for name, value in header.items() if name not in ("kind", "model")}
    changed = change(values)
    return pack("feed", "", changed if isinstance(changed, dict) else values, arrays)


def entry(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values.__setitem__(name, value)


def part(name: str, **more: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values[name].update(more)


FEEDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a list": entry("line", [1]),
    "nothing": lambda values: {},
    **{
        f"no {name}": lambda values, name=name: values.pop(name) and None
        for name in ("settings", "tally", "reached", "output_tail")
    },
    "an entry more": entry("path", "/etc/passwd"),
    "line negative": entry("line", -1),
    "line as text": entry("line", "3"),
    "line true": entry("line", True),
    "offset huge": entry("offset", 10**30),
    "offset beyond": entry("offset", 10**9),
    "written negative": entry("written", -5),
    "written beyond": entry("written", 10**9),
    "tail null": entry("input_tail", None),
    "settings a list": entry("settings", []),
    "settings nested": entry("settings", {"keep": {"a": 1}}),
    "tally a number": entry("tally", 3),
    "tally negative": part("tally", events=-3),
    "tally more": part("tally", other=1),
    "tally NaN": part("tally", log_likelihood=NAN),
    "reached NaN": part("reached", latest=NAN),
    "reached beyond floats": part("reached", latest=10**400),
    "reached as text": part("reached", doubts="x"),
    "header as text": entry("header", "time,mark"),
    "header short": entry("header", {"separator": ","}),
    "header beyond": entry(
        "header", {"separator": ",", "line": "a", "width": 1, "time": 7, "mark": None, "by": None}
    ),
}


STREAMS: dict[str, dict[str, Any]] = {
    "no stream": {},
    "numbers for bytes": {"stream": np.zeros(3)},
    "another array": {"stream": np.zeros(3, dtype=np.uint8), "x": np.zeros(2)},
    "no stream's bytes": {"stream": np.zeros(3, dtype=np.uint8)},
}


@pytest.mark.parametrize("case", STREAMS)
def test_a_state_of_a_feed_with_other_arrays_is_refused(case: str, tmp_path: Path) -> None:
    feed(tmp_path)
    state = tmp_path / "state"
    header, _ = unpack("feed", "", state.read_bytes())
    values = {name: value for name, value in header.items() if name not in ("kind", "model")}
    state.write_bytes(pack("feed", "", values, STREAMS[case]))
    refused(lambda: feed(tmp_path))


@pytest.mark.parametrize("case", FEEDS)
def test_a_tampered_state_of_a_feed_is_refused_and_nothing_is_touched(
    case: str, tmp_path: Path
) -> None:
    feed(tmp_path)
    state = tmp_path / "state"
    good = state.read_bytes()
    assert resealed(good, lambda values: None) == good
    state.write_bytes(resealed(good, FEEDS[case]))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused(lambda: feed(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def in_store(folder: Path, *statements: str) -> None:
    connection = sqlite3.connect(folder / "state")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def rewritten(folder: Path, change: Change) -> None:
    """Change the row of entity a, and make its hash right again."""
    connection = sqlite3.connect(folder / "state")
    body = connection.execute("SELECT body FROM entities WHERE name = ?", (b"a",)).fetchone()[0]
    header, arrays = from_tensors(body)
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(header, arrays)
    body = to_tensors(header, arrays)
    digest = hashlib.sha256((1).to_bytes(8, "little") + b"a" + body).digest()
    connection.execute(
        "UPDATE entities SET body = ?, digest = ? WHERE name = ?", (body, digest, b"a")
    )
    connection.commit()
    connection.close()


ROWS: dict[str, Change] = {
    "count negative": filled("count", -1),
    "at NaN": filled("at", NAN),
    "at before the start": filled("at", -9.0),
    "memory NaN": filled("excitation", NAN),
    "memory gone": without("excitation"),
    "two rows": made("at", lambda a: np.repeat(a, 2)),
    "wider": made("excitation", lambda a: np.repeat(a, 9, axis=-1)),
    "as floats": made("count", lambda a: a.astype(float)),
    "monitor gone": put("monitor", None),
    "monitor's gaps": filled("monitor", NAN),
}
TABLES: dict[str, tuple[str, ...]] = {
    "an entity less": ("DELETE FROM entities WHERE name = x'61'",),
    "no feed": ("DELETE FROM texts",),
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON entities BEGIN DELETE FROM entities; END",),
    "a view": ("CREATE VIEW v AS SELECT * FROM entities",),
    "another table": ("CREATE TABLE more (x)",),
    "no table": ("DROP TABLE entities",),
    "a hash": ("UPDATE entities SET digest = x'00' WHERE name = x'61'",),
    "numbers for bytes": ("UPDATE entities SET body = 7 WHERE name = x'61'",),
    "text for bytes": ("UPDATE entities SET digest = 'abc' WHERE name = x'61'",),
    "bodies exchanged": (
        (
            "UPDATE entities SET (digest, body) = (SELECT digest, body FROM entities WHERE name "
            "= x'62') WHERE name = x'61'"
        ),
    ),
    "a feed of numbers": ("UPDATE texts SET body = 5",),
}


@pytest.mark.parametrize("case", [*ROWS, *TABLES])
def test_a_tampered_state_of_entities_is_refused(case: str, tmp_path: Path) -> None:
    feed(tmp_path, by="who")
    if case in ROWS:
        rewritten(tmp_path, ROWS[case])
    else:
        in_store(tmp_path, *TABLES[case])
    with (tmp_path / "feed").open("a") as file:
        file.write('{"time": 9, "who": "a"}\n')
    files = {"input": tmp_path / "feed", "output": tmp_path / "scores", "state": tmp_path / "state"}
    told: list[str] = []

    def run() -> None:
        ended = score_feed(Hawkes(), **files, by="who", tell=told.append)
        # An entity is read when it is named: its line is refused, and the others are scored.
        if ended.events == 0 and ended.tally.skipped == 1:
            raise UserError(
                *next(line for line in told if line.startswith("line 11: expected")).partition("; ")
            )

    refused(run)


@pytest.mark.parametrize("damage", [slice(0, 3000), slice(0, 16), slice(20, None)])
def test_a_damaged_file_of_entities_is_refused(damage: slice, tmp_path: Path) -> None:
    feed(tmp_path, by="who")
    content = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(content[damage])
    refused(lambda: feed(tmp_path, by="who"))


def test_arrays_are_written_as_the_library_reads_them() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "state": (rng.normal(size=(1, 5)) + 1j * rng.normal(size=(1, 5))).astype(np.complex64),
        "wide": rng.normal(size=(3, 4)).T + 1j,
        "count": np.array([3]),
        "told": np.array([True, False, True]),
        "none": np.zeros((0, 3), dtype=np.int16),
        'a "name" of \u00fc': rng.normal(size=4).astype(np.float32),
        "number": np.array(2.5),
    }
    header = {"monitor": {"sums": [[1.5, 2, 3.0]], "told": False}, "text": 'a "\u00fc"'}
    body = to_tensors(header, arrays)
    read = safetensors.numpy.load(body)
    assert {name: array.shape for name, array in read.items()} == {
        name: (*array.shape, 2) if array.dtype.kind == "c" else array.shape
        for name, array in arrays.items()
    }
    found, again = from_tensors(body)
    assert found == header and set(again) == set(arrays)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype and np.array_equal(again[name], array), name
    size = int.from_bytes(body[:8], "little")
    assert size % 8 == 0  # contents are aligned
