"""The files of a feed that outlive its process: what was scored, and where to go on after a crash.

A state names a point of the input and the point of the output that belongs to it, beside the
stream's own memory. It is written in this order, and each step is on disk before the next begins:

    output up to here (fsync)  ->  temporary file (fsync)  ->  rename onto the old state  ->  its
    folder (fsync)

The rename is the moment at which the new state exists. A process killed before it leaves the old
state, killed after it the new one; in both cases the output holds at least what the state speaks
of, and a restart cuts off the rest. So every line is scored exactly once. The state of one stream
is such a file; that of a bank is a store (`streaming.store`), in which only the entities that have
changed are written, and whose commit takes the place of the rename. Only one process may do so: it
holds a lock beside the state, and one on the output.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fourpoint.atomic import hold, locked, sync_folder, write_all, write_atomic
from fourpoint.events import UserError
from fourpoint.streaming.feed.plausibility import Reached
from fourpoint.streaming.state import is_finite, pack, unpack
from fourpoint.streaming.store import Store, is_store

OLD = b"fourpoint-feed "  # how states of earlier versions begin
FEED = "feed"  # the kind of this state, and its name among the texts of a store
REMEDY = (
    "Check the path; put back a copy of the state, or remove it together with the output to start "
    "anew."
)
TAIL = 4096  # bytes before a point of a file by which it is known again


@dataclass
class Tally:
    """What a feed has done so far: events scored, lines skipped, alarms raised, and the events'
    log-likelihood.
    """

    events: int = 0
    skipped: int = 0
    alarms: int = 0
    log_likelihood: float = 0.0


@dataclass(frozen=True)
class Header:
    """The first line of a feed in columns: its separator, the line, and where the columns are;
    empty for JSON Lines.
    """

    separator: str = ""
    line: str = ""
    width: int = 0
    time: int = 0
    mark: int | None = None
    by: int | None = None
    features: tuple[int, ...] = ()  # of a model with event features


@dataclass(frozen=True)
class FeedState:
    """A point of the input, the point of the output that belongs to it, and the stream's memory
    there.

    ``line`` and ``offset`` are the lines and bytes of the input that are done, ``written`` the
    bytes of output that they gave; ``input_tail`` and ``output_tail`` are the hashes of the last
    4,096 bytes before those points. ``settings`` are the options that shape the output, ``reached``
    how far the times have come, ``header`` the first line of a feed in columns (None: not read
    yet), and ``stream`` what ``state()`` of the stream returned.

    >>> state = FeedState(
    ...     2, 30, "a", 99, "b", {"keep": None}, Tally(events=2), Reached(), None, b"memory"
    ... )
    >>> FeedState.from_bytes(state.to_bytes(), "scores.state") == state
    True
    >>> FeedState.from_bytes(state.to_bytes()[:-1], "scores.state")
    Traceback (most recent call last):
      ...
    fourpoint.events.UserError: expected a state of ... bytes; received ... in scores.state. ...
    """

    line: int
    offset: int
    input_tail: str
    written: int
    output_tail: str
    settings: dict[str, Any]
    tally: Tally
    reached: Reached
    header: Header | None
    stream: bytes

    def to_bytes(self) -> bytes:
        """As `streaming.state` packs it: safetensors with a header and a checksum."""
        header = {name: value for name, value in vars(self).items() if name in _ENTRIES}
        header["tally"] = asdict(self.tally)
        header["reached"] = asdict(self.reached)
        header["header"] = None if self.header is None else asdict(self.header)
        if self.header is not None:
            header["header"]["features"] = list(self.header.features)
        return pack(FEED, "", header, {"stream": np.frombuffer(self.stream, dtype=np.uint8)})

    @staticmethod
    def from_bytes(content: bytes, source: str) -> FeedState:
        """What :meth:`to_bytes` wrote; raises where it is foreign, of another version, cut short or
        damaged.
        """
        if content.startswith(OLD):
            version = content[len(OLD) :].split(b" ", 1)[0][:20].decode("ascii", errors="replace")
            raise UserError(
                "a state in safetensors",
                f"one of version {version} in {source}, from an earlier Fourpoint",
                "Use the Fourpoint that wrote it, or remove it together with the output to start "
                "anew.",
            )
        try:
            values, arrays = unpack(FEED, "", content)
        except UserError as error:
            raise UserError(error.expected, f"{error.received} in {source}", REMEDY) from None
        del values["kind"], values["model"]
        if set(values) != set(_ENTRIES):
            raise _unsound(source, "the entries of a feed's state", "others")
        for name, is_sound in _ENTRIES.items():
            if not is_sound(values[name]):
                raise _unsound(source, f"{name!r} as a feed has it", f"{values[name]!r}"[:80])
        stream = arrays.get("stream")
        if stream is None or len(arrays) > 1 or stream.dtype != np.uint8:
            raise _unsound(source, "the bytes of a stream", "others")
        header = values.pop("header")
        tally = values.pop("tally")
        reached = values.pop("reached")
        return FeedState(
            **values,
            tally=Tally(**tally),
            reached=Reached(**reached),
            header=None if header is None else _header(header),
            stream=stream.tobytes(),
        )


def _header(values: dict[str, Any]) -> Header:
    return Header(**{**values, "features": tuple(values.get("features", ()))})


def _unsound(source: str, expected: str, received: str) -> UserError:
    return UserError(f"a state with {expected}", f"{received} in {source}", REMEDY)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_hash(value: object) -> bool:
    return isinstance(value, str)


def _is_settings(value: object) -> bool:
    kinds = str | int | float | None
    return isinstance(value, dict) and all(isinstance(one, kinds) for one in value.values())


def _is_tally(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {field.name for field in fields(Tally)}:
        return False
    total = value["log_likelihood"]
    counts = all(_is_count(value[name]) for name in ("events", "skipped", "alarms"))
    return counts and (is_finite(total) or total == -math.inf)


def _is_reached(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {field.name for field in fields(Reached)}:
        return False
    times = (value["first"], value["latest"], value["doubted"])
    return _is_count(value["doubts"]) and all(time is None or is_finite(time) for time in times)


def _is_header(value: object) -> bool:
    if value is None:
        return True
    names = {field.name for field in fields(Header)}
    if not isinstance(value, dict) or set(value) | {"features"} != names:
        return False
    width = value["width"]
    features = value.get("features", [])
    if not isinstance(features, list) or not all(map(_is_count, features)):
        return False
    places = (value["time"], value["mark"], value["by"], *features)
    if (
        not isinstance(value["separator"], str)
        or not isinstance(value["line"], str)
        or not _is_count(width)
    ):
        return False
    inside = all(place is None or (_is_count(place) and place < max(width, 1)) for place in places)
    return len(value["separator"]) <= 1 and value["time"] is not None and inside


_ENTRIES: dict[str, Callable[[object], bool]] = {
    "line": _is_count,
    "offset": _is_count,
    "input_tail": _is_hash,
    "written": _is_count,
    "output_tail": _is_hash,
    "settings": _is_settings,
    "tally": _is_tally,
    "reached": _is_reached,
    "header": _is_header,
}


def digest(tail: bytes) -> str:
    """The hash by which a file is known again."""
    return hashlib.sha256(tail).hexdigest()


def read_state(path: Path) -> FeedState | None:
    """The state in ``path``, of one stream or of a bank; None where there is no such file."""
    try:
        content = _of_store(path) if is_store(path) else path.read_bytes()
    except FileNotFoundError:
        return None
    return FeedState.from_bytes(content, str(path))


def _of_store(path: Path) -> bytes:
    """The state of a feed that is kept beside its entities."""
    with closing(Store(path, durable=True)) as store:
        found = store.text(FEED)
    if found is None:
        remedy = "Remove it together with the output to start again."
        raise UserError("a state written by `fourpoint stream`", f"{path} without one", remedy)
    return found


def write_state(path: Path, state: FeedState) -> None:
    """Replace what ``path`` holds by ``state``, all of it or none.

    Raises OSError where the disk is full, say; then the old state stays, and nothing else.
    """
    write_atomic(path, state.to_bytes())


@contextmanager
def locked_state(path: Path) -> Iterator[None]:
    """Holds the lock of the state in ``path``, a file of its own since the state is replaced
    whenever it is written.
    """
    with locked(path.with_name(f".{path.name}.lock"), f"--state {path}"):
        yield


class Output:
    """Where scores are written: a file that can be cut back and made durable, or a pipe.

    ``path`` is None for standard output. A file must be new or empty, unless a state says how much
    of it to keep.
    """

    def __init__(self, path: Path | None, before: FeedState | None) -> None:
        self.written = before.written if before else 0
        self._path = path
        self._file = 1 if path is None else self._open(path, before)

    def write(self, content: bytes) -> None:
        """Whole lines, handed to the operating system before this returns."""
        write_all(self._file, content)
        self.written += len(content)

    def sync(self) -> None:
        """Returns once all that was written would survive a loss of power."""
        os.fsync(self._file)

    def tail(self) -> bytes:
        """The last bytes that were written."""
        size = min(TAIL, self.written)
        return os.pread(self._file, size, self.written - size)

    def close(self) -> None:
        """Let go of the file and its lock."""
        if self._path is not None:
            os.close(self._file)

    def _open(self, path: Path, before: FeedState | None) -> int:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            return os.open(path, os.O_WRONLY)
        new = not path.exists()
        if new and self.written:
            raise self._too_short(f"no file {path}")
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            hold(file, f"--output {path}")
            self._check(file, path, before)
            os.ftruncate(file, self.written)
            os.lseek(file, self.written, os.SEEK_SET)
            if new:
                sync_folder(path.parent)
        except BaseException:
            os.close(file)
            raise
        return file

    def _check(self, file: int, path: Path, before: FeedState | None) -> None:
        """Refuse to cut or overwrite anything but what this feed wrote."""
        size = os.fstat(file).st_size
        if before is None:
            if size:
                remedy = (
                    "Remove it, choose another name, or go on with the --state that belongs to it."
                )
                raise UserError(
                    "a new or empty file for --output", f"{path} of {size:,} bytes", remedy
                )
            return
        if size < self.written:
            raise self._too_short(f"{path} of {size:,} bytes")
        length = min(TAIL, self.written)
        if digest(os.pread(file, length, self.written - length)) != before.output_tail:
            raise UserError(
                f"the --output that belongs to the state, as it was after {self.written:,} bytes",
                f"{path} with other content there",
                "Name the file that was written with this state, or remove both to start again.",
            )

    def _too_short(self, received: str) -> UserError:
        expected = f"an --output of at least the {self.written:,} bytes recorded in the state"
        return UserError(
            expected, received, "Put the file back, or remove it and the state to start again."
        )
