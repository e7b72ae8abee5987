"""Pickles read as data, never run: in another process, by an unpickler that can import nothing.

A pickle is a program for a small stack machine, and Python's loader lets it import and call
anything. ``unpickling_child.py`` runs :class:`pickle.Unpickler` with a list of the few names that
data needs, in a process that is limited in memory and time; what it finds comes back as JSON and
raw bytes, and is decoded here. A pickle that breaks the unpickler breaks that process alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import contents
from fourpoint.data.formats import unpickling_child
from fourpoint.events import EventDataError

WHAT = "a pickle of containers, numbers, text and numpy arrays"
CHILD = str(Path(unpickling_child.__file__).resolve())
SECONDS = 60  # far more than data takes
SECONDS_PER_MEGABYTE = 1


def load(path: Path) -> tuple[Any, int]:
    """What a pickle file holds, and how many bytes it took.

    A pickle may name one list a million times at two bytes each, so that who walks through it must
    stop somewhere: after as many things as there are bytes. Fails with :class:`EventDataError`,
    naming the file, on anything but data; nothing of the file is run.
    """
    data = contents(path, WHAT)
    return loads(data, path), len(data)


def loads(data: bytes, source: Path) -> Any:
    """The same for bytes; ``source`` is named in errors.

    >>> import pickle
    >>> loads(pickle.dumps({"train": [[1, 2.5, "a"]]}), Path("x.pkl"))
    {'train': [[1, 2.5, 'a']]}
    >>> loads(pickle.dumps(print), Path("x.pkl"))
    Traceback (most recent call last):
      ...
    fourpoint.events.EventDataError: expected a pickle of ... which asks for builtins.print. ...
    """
    expansion = Expansion(source, WHAT)
    seconds = SECONDS + SECONDS_PER_MEGABYTE * len(data) // 10**6
    command = [sys.executable, "-I", "-S", CHILD, str(expansion.limit), str(seconds)]
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=seconds, cwd=tempfile.gettempdir()
        )
    except subprocess.TimeoutExpired:
        raise _refused(source, f"was not read within {seconds} seconds") from None
    if done.returncode == unpickling_child.NO_MEMORY:
        raise expansion.error(expansion.limit)
    if done.returncode != 0:
        raise _refused(source, f"ended the process that read it (exit code {done.returncode})")
    return decoded(done.stdout, source)


def decoded(answer: bytes, source: Path) -> Any:
    """What the child found, from its answer; :class:`EventDataError` if it refused the pickle."""
    size = int.from_bytes(answer[:8], "little")
    end = 8 + size
    header = json.loads(answer[8:end])
    if "refused" in header:
        raise _refused(source, header["refused"])
    return _Decoder(answer[end:]).decode(header["value"])


def _refused(source: Path, fault: str) -> EventDataError:
    remedy = (
        "None of it was run. If you trust it, load it with Python and write the events as "
        "Parquet or JSON."
    )
    return EventDataError(WHAT, f"{source}, which {fault}", remedy)


class _Decoder:
    """The child's answer as Python's containers and numpy's arrays; ``raw`` are its bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.seen: list[Any] = []  # containers and arrays, by their number

    def decode(self, node: object) -> Any:
        """The value of a node of the answer."""
        if not isinstance(node, list):
            return node
        kind, *rest = node
        if kind == "int":
            return int(rest[0], 16)
        if kind == "bytes":
            return self._bytes(*rest)
        if kind == "scalar":
            return self._numbers(*rest)[0].item()
        if kind == "again":
            return self.seen[rest[0]]
        number = len(self.seen)
        if kind in ("list", "dict"):
            return self._container(kind, rest)
        self.seen.append(None)
        if kind == "tuple":
            self.seen[number] = tuple([self.decode(item) for item in rest[0]])
        elif kind == "objects":
            self.seen[number] = self.decode(rest[0])
        elif kind == "numbers":
            self.seen[number] = self._numbers(*rest[0]).tolist()
        elif kind == "records":
            keys, columns = rest
            rows = zip(*(self._numbers(*column).tolist() for column in columns), strict=True)
            self.seen[number] = [dict(zip(keys, row, strict=True)) for row in rows]
        else:
            code, shape, fortran, *place = rest
            values = self._numbers(code, *place)
            self.seen[number] = values.reshape(shape, order="F" if fortran else "C")
        return self.seen[number]

    def _container(self, kind: str, parts: list[Any]) -> list[Any] | dict[Any, Any]:
        """A list or a dict, which may hold itself: it is known by its number before its items."""
        if kind == "list":
            items: list[Any] = []
            self.seen.append(items)
            items.extend(self.decode(item) for item in parts[0])
            return items
        entries: dict[Any, Any] = {}
        self.seen.append(entries)
        keys = [self.decode(key) for key in parts[0]]
        entries.update(zip(keys, map(self.decode, parts[1]), strict=True))
        return entries

    def _bytes(self, start: int, size: int) -> bytes:
        return self.raw[start : start + size]

    def _numbers(self, code: str, start: int, size: int) -> NDArray[Any]:
        """Values of one type, in the byte order of this machine."""
        dtype = np.dtype(code)
        count = size // dtype.itemsize
        found = np.frombuffer(self.raw, dtype=dtype, count=count, offset=start)
        return found.astype(dtype.newbyteorder("="))
