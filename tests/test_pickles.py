"""Pickles are data or they are refused: what the field writes is read, what could do harm is not
run.
"""

from __future__ import annotations

import collections
import io
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted import counted
from hypothesis import given, settings, strategies as st

from fourpoint.data.formats import pickles, tick, unpickling, unpickling_child as child
from fourpoint.data.formats.unpickling import decoded, loads
from fourpoint.events import EventDataError
from fourpoint.memory import set_memory_limit

HERE = Path("some.pkl")
# One event, {"time_since_start": 1.0, "type_event": 0}, in the code of a pickle.
EVENT = (
    b"}(X\x10\x00\x00\x00time_since_startG\x3f\xf0\x00\x00\x00\x00\x00\x00"
    b"X\x0a\x00\x00\x00type_eventK\x00u"
)


def events(times: list[float], types: list[int]) -> list[dict[str, Any]]:
    gaps = np.diff(times, prepend=0.0).tolist()
    keys = ("idx_event", "type_event", "time_since_start", "time_since_last_event")
    return [
        dict(zip(keys, values, strict=True))
        for values in zip(range(1, len(times) + 1), types, times, gaps, strict=True)
    ]


def stored(folder: Path, value: Any, protocol: int = 4) -> Path:
    path = folder / "some.pkl"
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol))
    return path


# What the field writes

SPLITS: dict[str, Any] = {
    "dim_process": 4,
    "train": [events([0.5, 2.0], [3, 0]), events([1.0], [1])],
    "dev": [],
    "test": [events([0.25], [2])],
    "args": None,
}


@pytest.mark.parametrize("protocol", range(6))
def test_neural_hawkes_files(tmp_path: Path, protocol: int) -> None:
    data = pickles.read(stored(tmp_path, SPLITS, protocol))
    assert (
        data.times.tolist() == [0.5, 2.0, 1.0, 0.25]
        and data.mark_ids.tolist() == [3, 0, 1, 2]
        and data.lengths.tolist() == [2, 1, 1]
    )
    assert data.marks.count == 4 and data.inferred
    assert data.splits is not None and data.splits.tolist() == ["train", "train", "test"]


@pytest.mark.parametrize("protocol", range(6))
def test_numpy_in_all_places(tmp_path: Path, protocol: int) -> None:
    made = [
        [
            {"time_since_start": np.float32(0.5), "type_event": np.int64(1)},
            {"time_since_start": np.float64(2.5), "type_event": np.uint8(0)},
        ],
        [{"time_since_start": np.float64(1e-3), "type_event": np.int16(2)}],
    ]
    data = pickles.read(stored(tmp_path, {"dim_process": np.int64(3), "train": made}, protocol))
    assert (
        data.times.tolist() == [0.5, 2.5, 1e-3]
        and data.mark_ids.tolist() == [1, 0, 2]
        and data.marks.count == 3
    )
    rows = [
        {"time_since_start": np.array([0.5, 1.0]), "type_event": np.array([1, 0], dtype=np.int32)}
    ] * 2
    assert pickles.read(stored(tmp_path, {"train": rows}, protocol)).times.tolist() == [
        0.5,
        1.0,
        0.5,
        1.0,
    ]
    assert pickles.read(stored(tmp_path, rows, protocol)).mark_ids.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_are_those_of_numpy(protocol: int) -> None:
    kinds = ["<f8", ">f8", "<f4", "f2", "<i8", ">i4", "u1", "?", "<U3", "S2"]
    arrays = [
        arrange(np.arange(4).astype(kind)[: int(np.prod(shape))].reshape(shape)).reshape(shape)
        for kind in kinds
        for shape in ((4,), (2, 2), (), (0,))
        for arrange in (np.ascontiguousarray, np.asfortranarray)
    ]
    made = loads(pickle.dumps([arrays, arrays], protocol=protocol), HERE)
    assert made[0] is made[1]
    for found, array in zip(made[0], arrays, strict=True):
        assert isinstance(found, np.ndarray) and found.shape == array.shape
        assert found.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, array)


def test_python_2_files(tmp_path: Path) -> None:
    # As Python 2 writes {"dim_process": 2, "train": [[{"time_since_start": 1.5, "type_event": 1}]]}
    # in protocols 0 and 2.
    text = (
        b"(dp0\nS'dim_process'\np1\nI2\nsS'train'\np2\n(lp3\n(lp4\n(dp5\n"
        b"S'time_since_start'\np6\nF1.5\nsS'type_event'\np7\nI1\nsaas."
    )
    assert pickles.read(stored(tmp_path, text)).times.tolist() == [1.5]
    binary = (
        b"\x80\x02}q\x00(U\x0bdim_processq\x01K\x02U\x05trainq\x02]q\x03]q\x04}q\x05(U\x10time_since_startq\x06"
        b"cnumpy.core.multiarray\nscalar\nq\x07cnumpy\ndtype\nq\x08U\x02f8K\x00K\x01\x87Rq\tK\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tbU\x08\x00\x00\x00\x00\x00\x00\xf8?\x86Rq\nU\ntype_eventq\x0bK\x01uaau."
    ).replace(b"K\x01\x87Rq\tK\x03U", b"K\x01\x87Rq\t(K\x03U")
    assert pickle.loads(binary, encoding="latin-1")["train"][0][0]["time_since_start"] == 1.5
    assert pickles.read(stored(tmp_path, binary)).times.tolist() == [1.5]


def test_other_containers(tmp_path: Path) -> None:
    ordered = collections.OrderedDict(SPLITS)
    assert pickles.read(stored(tmp_path, ordered)).events == 4
    by_default: Any = collections.defaultdict(list)
    by_default.update(SPLITS)
    assert pickles.read(stored(tmp_path, by_default)).events == 4
    tuples = {"train": tuple(tuple(sequence) for sequence in SPLITS["train"])}
    assert pickles.read(stored(tmp_path, tuples)).events == 3
    assert pickles.read(stored(tmp_path, SPLITS["train"])).events == 3


@settings(max_examples=200)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary(),
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner, inner)
            | st.tuples(inner)
            | st.dictionaries(st.text() | st.integers(), inner)
        ),
        max_leaves=20,
    ),
    st.integers(0, 5),
)
def test_plain_data_is_what_python_reads(value: Any, protocol: int) -> None:
    found = here(pickle.dumps(value, protocol=protocol))
    assert found == value and repr(found) == repr(value)


def test_the_other_process_gives_what_this_one_does() -> None:
    value = [
        SPLITS,
        {1: (True, None, 2**70, -(2**64)), 2.5: b"raw", b"key": "\ud800"},
        [float("inf"), -0.0],
        [[3, 2**63], [{"a": 1}, {"a": 2.0}], [{"a": 1}, {"b": 1}], [{}], [{1: 2}]],
    ]
    found = loads(pickle.dumps(value), HERE)
    assert found == value and repr(found) == repr(value)


def test_a_folder_of_splits(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        content = {"dim_process": 4, split: SPLITS["train"]} | {
            other: [] for other in ("train", "dev", "test") if other != split
        }
        (tmp_path / f"{split}.pkl").write_bytes(pickle.dumps(content))
    data = pickles.read(tmp_path)
    assert data.splits is not None and data.splits.tolist() == [
        "train",
        "train",
        "dev",
        "dev",
        "test",
        "test",
    ]


# What is no such file

BAD: dict[str, tuple[Any, str]] = {
    "number": (3, "a pickle of splits, sequences and events; received FILE: a value of type int"),
    "nothing": (
        {"dim_process": 3, "train": []},
        "train, dev or test with sequences in them; received FILE: keys 'dim_process', 'train'",
    ),
    "another split": (
        SPLITS | {"devtest": [events([1.0], [1])]},
        "received FILE: 'devtest' with 1 entries. Rename or remove the key",
    ),
    "number as key": ({10**5000: [[]]}, "received FILE: a value of type int with 1 entries"),
    "flat": (
        {"train": events([1.0], [1])},
        "a list 'time_since_start' in every row; received FILE: a value of type float at row 0",
    ),
    "mixed": (
        {"train": [events([1.0], [1]), 7]},
        "a list of events in every sequence; received FILE: a value of type int at sequence 1",
    ),
    "no time": (
        {"train": [[{"type_event": 1}]]},
        "a number 'time_since_start' in every event; received FILE: none at event 0 of sequence 0",
    ),
    "text": (
        {"train": [events([1.0], [1]), [{"time_since_start": "1", "type_event": 1}]]},
        "received FILE: a value of type str at event 0 of sequence 1",
    ),
    "truth": (
        {"train": [[{"time_since_start": True, "type_event": 1}]]},
        "received FILE: a value of type bool at event 0",
    ),
    "no event": (
        {"train": [[None]]},
        (
            "a number 'time_since_start' in every event; received FILE: a value of type NoneType "
            "at event 0"
        ),
    ),
    "huge": (
        {"train": [[{"time_since_start": 10**400, "type_event": 1}]]},
        "received FILE: a value of type int at event 0",
    ),
    "nan": (
        {"train": [[{"time_since_start": float("nan"), "type_event": 1}]]},
        "finite times; received FILE: nan at event 0",
    ),
    "type": (
        {"train": [[{"time_since_start": 1.0, "type_event": 1.5}]]},
        "whole numbers for type_event; received FILE: 1.5",
    ),
    "beyond": (
        {"dim_process": 2, "train": [events([1.0], [2])]},
        "marks from 0 to 1; received FILE: 2 at event 0 of sequence 0",
    ),
    "unsorted": (
        {"train": [events([2.0, 1.0], [0, 0])]},
        "non-decreasing times; received FILE: 1.0 after 2.0 at event 1 of sequence 0",
    ),
    "dims": (
        {"dim_process": 10**12, "train": [events([1.0], [0])]},
        "between 1 and 1,000,000 types; received FILE: 1,000,000,000,000",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_pickles_of_something_else(tmp_path: Path, case: str) -> None:
    value, text = BAD[case]
    path = stored(tmp_path, value)
    with pytest.raises(EventDataError) as caught:
        pickles.read(path)
    assert text.replace("FILE", str(path)) in str(caught.value)


# What would do harm


class Calls:
    """Pickles as a call of a function with arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Stateful:
    def __init__(self) -> None:
        self.x = 1


def hostile(marker: Path, deep: int = 300_000) -> dict[str, bytes]:
    """Pickles that would leave ``marker`` behind if anything of them were run, or hurt in another
    way, as by being ``deep``.
    """
    touch = f"touch {marker}"
    code = f"import os\nos.system({touch!r})".encode()
    system = b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n(S'os'\ntRS'system'\ntR"
    return {
        "os.system": pickle.dumps(Calls(os.system, touch)),
        "inside the events": pickle.dumps(
            {"train": [[{"time_since_start": Calls(os.system, touch), "type_event": 0}]]}
        ),
        "inside a scalar": pickle.dumps(
            {"train": [[{"time_since_start": Calls(eval, f"__import__('os').system({touch!r})")}]]}
        ),
        "subprocess": pickle.dumps(Calls(subprocess.Popen, touch)),
        "eval": pickle.dumps(Calls(eval, "1")),
        "nested reduce": system + b"(S'" + touch.encode() + b"'\ntR.",
        "a lambda's parts": b"ctypes\nFunctionType\n(ctypes\nCodeType\n)RtR.",
        "marshal": b"cmarshal\nloads\n(S'"
        + code.replace(b"\n", b";").replace(b"'", b'"')
        + b"'\ntR.",
        "inst": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + touch.encode() + b"'\no.",
        "newobj": pickle.dumps(Stateful(), protocol=2),
        "newobj ex": b"\x80\x04cos\nsystem\n)}\x92.",
        "build": b"c__main__\n__dict__\n}S'x'\nS'y'\nsb.",
        "build a list": b"](S'a'\nI1\ntb.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        "stack global of numbers": b"\x80\x04K\x01K\x02\x93.",
        "numpy's own loader": b"cnumpy\nload\n(S'x'\ntR.",
        "numpy's records": b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR.",
        "a call of ndarray": b"cnumpy\nndarray\n((I1000000000\nttR.",
        "a call of list": b"cbuiltins\nlist\n(]tR.",
        "codecs": b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        "codecs decode": b"c_codecs\ndecode\n(S'x'\nS'rot13'\ntR.",
        "persistent": b"Pid\n.",
        "binary persistent": b"K\x01Q.",
        "extension": b"\x82\x01.",
        "next buffer": b"\x97.",
        "a set": pickle.dumps({1, 2}),
        "a frozen set": pickle.dumps(frozenset({1})),
        "a class": pickle.dumps(Path),
        "a path": pickle.dumps(Path("x")),
        "a date": pickle.dumps(np.datetime64("2020-01-01")),
        "a date array": pickle.dumps(np.array(["2020-01-01"], dtype="M8[D]")),
        "a record array": pickle.dumps(np.zeros(2, dtype=[("a", "f8")])),
        "a complex": pickle.dumps(1j),
        "bytes of a number": pickle.dumps(Calls(bytes, 10**12)),
        "bytearray of a number": pickle.dumps(Calls(bytearray, 10**12)),
        "announced bytes": b"B\xff\xff\xff\x7fx.",
        "announced bytes, 8": b"\x8e" + (2**62).to_bytes(8, "little") + b".",
        "announced bytearray": b"\x96" + (2**40).to_bytes(8, "little") + b".",
        "announced text": b"X\xff\xff\xff\x7fx.",
        "announced integer": b"\x8b\xff\xff\xff\x7f.",
        "negative integer": b"\x8b\xff\xff\xff\xff.",
        "a memo far away": b"K\x01r\xff\xff\xff\x7f0j\xff\xff\xff\x7e.",
        "array without bytes": array_pickle((10**12,), b""),
        "array without rows": array_pickle((10**12, 0), b""),
        "array with a negative side": array_pickle((-1,), b""),
        "a deep key": b"}" + b")" + b"\x85" * (4 * deep) + b"K\x01s.",
        "a deep list": b"]" * deep + b"a" * (deep - 1) + b".",
        "a deep tuple": b")" + b"\x85" * deep + b".",
        "a list of itself": b"]q\x00h\x00a.",
        "a dict of itself": b"}q\x00K\x01h\x00s.",
        "marks without end": b"(" * deep + b".",
        "no stop": b"K\x01" * 1000,
        "empty stack": b"0.",
        "only a stop": b".",
    }


def array_pickle(shape: tuple[int, ...], raw: bytes) -> bytes:
    """An array of doubles with any shape and any bytes."""
    numbers = b"".join(b"I%d\n" % n for n in shape)
    dtype = b"cnumpy\ndtype\n(S'f8'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
    data = b"C" + bytes([len(raw)]) + raw
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntC\x01btR"
    return b"(lp0\n" + made + b"(I1\n(" + numbers + b"t" + dtype + b"I00\n" + data + b"tba."


@pytest.mark.parametrize("case", hostile(Path("x")))
def test_a_hostile_pickle_is_refused_with_nothing_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    marker = tmp_path / "ran"
    path, small = stored(tmp_path, hostile(marker)[case]), hostile(marker, deep=3000)[case]
    ran: list[Any] = []
    monkeypatch.setattr(os, "system", lambda *a: ran.append(a))
    for read in (pickles.read, tick.read):
        with pytest.raises(EventDataError) as caught:
            read(path)
        assert str(path) in str(caught.value)
    with counted() as work, suppress(EventDataError):
        here(small)
    assert work.lines < 100 * len(small) + 20_000, "work that grows faster than the file"
    assert not marker.exists() and not ran


def test_the_error_names_what_was_asked_for(tmp_path: Path) -> None:
    path = stored(tmp_path, Calls(os.system, "true"))
    with pytest.raises(EventDataError) as caught:
        pickles.read(path)
    assert f"received {path}, which asks for {os.system.__module__}.system. N" in str(caught.value)
    assert "None of it was run." in caught.value.remedy


def test_nothing_is_imported(tmp_path: Path) -> None:
    assert "antigravity" not in sys.modules
    for code in (
        b"cantigravity\nx\n.",
        b"\x80\x04\x8c\x0bantigravity\x8c\x01x\x93.",
        b"(iantigravity\nx\n.",
    ):
        with pytest.raises(EventDataError, match="some.pkl"):
            loads(code, HERE)
    assert "antigravity" not in sys.modules


def laughs(leaf: bytes, levels: int, width: int) -> bytes:
    """A list of lists of ... of one leaf, each level naming the one below ``width`` times: width **
    levels leaves.
    """
    code = leaf + b"q\x00"
    for level in range(levels):
        code += b"0](" + b"h%c" % level * width + b"eq%c" % (level + 1)
    return code + b"."


@pytest.mark.parametrize("levels", [2, 3, 6])
def test_the_same_list_a_billion_times(tmp_path: Path, levels: int) -> None:
    for leaf in (
        EVENT,
        b"G\x3f\xf0\x00\x00\x00\x00\x00\x00",
        array_pickle((2,), bytes(16))[5:-2],
        b"]",
    ):
        path = stored(tmp_path, laughs(leaf, levels, 3000))
        for read in (pickles.read, tick.read):
            with pytest.raises(EventDataError, match="some.pkl"):
                read(path)


def test_rows_that_share_one_long_list(tmp_path: Path) -> None:
    long = [0.0] * 2000
    for name in ("time_since_start", "type_event", "time_since_last_event"):
        row = {"time_since_start": [1.0], "type_event": [0], "time_since_last_event": [1.0]} | {
            name: long
        }
        with pytest.raises(
            EventDataError,
            match=(
                "at most one event per byte of a pickle; received .*some.pkl: .* events in .* bytes"
            ),
        ):
            pickles.read(stored(tmp_path, [row] * 20_000))


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickling, "SECONDS", 0)
    with pytest.raises(EventDataError, match="some.pkl, which was not read within 0 seconds"):
        loads(b"K\x010" * 1000 + b".", HERE)


def test_a_pickle_that_ends_its_process_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, hostile(tmp_path, deep=1_000_000)["a deep key"])
    with pytest.raises(EventDataError, match=f"{path}, which ended the process that read it"):
        pickles.read(path)


def test_memory_of_the_child_is_limited(tmp_path: Path) -> None:
    set_memory_limit("64M")
    try:
        with pytest.raises(EventDataError, match="expands into at most 64 MB"):
            loads(b"K\x01r\xff\xff\xff\x0f.", HERE)
    finally:
        set_memory_limit(None)


BOUNDED = """
import resource, sys
from pathlib import Path
from fourpoint.data.formats import pickles, tick
from fourpoint.events import EventDataError
resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
for path in map(Path, sys.argv[1:]):
    for read in (pickles.read, tick.read):
        try:
            read(path)
        except EventDataError as error:
            assert str(path) in str(error)
        else:
            raise SystemExit(f"{path} was read")
"""


def test_memory_stays_small(tmp_path: Path, root: Path) -> None:
    """All of them at once in a process that may take two gibibytes of addresses."""
    contents = hostile(tmp_path / "ran") | {
        "laughs": laughs(EVENT, 5, 3000),
        "array laughs": laughs(array_pickle((2,), bytes(16))[5:-2], 5, 3000),
    }
    paths = []
    for i, content in enumerate(contents.values()):
        paths.append(tmp_path / f"{i}.pkl")
        paths[-1].write_bytes(content)
    environment = os.environ | {
        "PYTHONPATH": str(root / "src"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-c", BOUNDED, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert run.returncode == 0, run.stdout[-500:] + run.stderr[-1500:]
    assert not (tmp_path / "ran").exists()


# Bytes from nowhere


@contextmanager
def little_memory() -> Iterator[None]:
    """Leaves this process half a gibibyte more, as the process that reads a pickle is limited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (child.address_space() + 2**29, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def here(data: bytes) -> Any:
    """As ``loads``, in this process: thousands of pickles in the time that processes would take
    for a hundred.
    """
    with little_memory():
        try:
            answer = child.answer(data)
        except MemoryError:
            raise EventDataError("less", "some.pkl", "Refused.") from None
    return decoded(answer, HERE)


@settings(max_examples=300)
@given(st.binary(max_size=80), st.integers(0, 5))
def test_random_bytes(content: bytes, protocol: int) -> None:
    for data in (content, b"\x80" + bytes([protocol]) + content + b"."):
        try:
            here(data)
        except EventDataError as error:
            assert "some.pkl" in str(error)


OPCODES = sorted(
    {ord(c) for c in "().0126789BCFGIJKLMNPQRSTUVX]abcdeghijlopqrstu}"} | set(range(0x80, 0x99))
)


@settings(max_examples=500)
@given(
    st.lists(
        st.sampled_from(OPCODES).map(lambda code: bytes([code]))
        | st.sampled_from([b"\x00", b"\x01", b"1\n", b"os\nsystem\n"]),
        max_size=40,
    )
)
def test_random_programs(parts: list[bytes]) -> None:
    try:
        here(b"".join(parts) + b".")
    except EventDataError as error:
        assert "some.pkl" in str(error)


@settings(max_examples=200)
@given(st.data())
def test_cut_and_changed_files(drawn: st.DataObject) -> None:
    made = {
        "dim_process": 2,
        "train": [events([0.5, 1.0], [1, 0])],
        "x": np.arange(3.0),
        "y": np.float32(2),
    }
    content = bytearray(pickle.dumps(made, protocol=drawn.draw(st.integers(0, 5))))
    for _ in range(drawn.draw(st.integers(0, 5))):
        content[drawn.draw(st.integers(0, len(content) - 1))] = drawn.draw(st.integers(0, 255))
    try:
        here(bytes(content[: drawn.draw(st.integers(0, len(content)))]))
    except EventDataError as error:
        assert "some.pkl" in str(error)


def test_what_we_write_is_plain(tmp_path: Path) -> None:
    data = pickles.read(stored(tmp_path, SPLITS))
    pickles.write(data, tmp_path / "out.pkl")

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise AssertionError(f"{module}.{name}")

    content = Plain(io.BytesIO((tmp_path / "out.pkl").read_bytes())).load()
    assert (
        content["train"] == SPLITS["train"]
        and content["test"] == SPLITS["test"]
        and content["dim_process"] == 4
    )
