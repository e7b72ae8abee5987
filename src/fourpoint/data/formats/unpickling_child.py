"""The program that reads one pickle in a process of its own: pickle on stdin, plain data on stdout.

``unpickling.py`` starts it as ``python -I -S unpickling_child.py LIMIT SECONDS`` and decodes its
answer. It imports the standard library alone, so that it starts in about 20 milliseconds.

:class:`pickle.Unpickler` builds containers, numbers and text. A global is found only in ``GLOBALS``
below, whose entries describe numpy's arrays, dtypes and scalars and call nothing of numpy:
``dtype.__setstate__`` trusts flags from the file that decide whether bytes are taken for pointers.
Limits on memory, processor time, files and processes hold before the first byte is interpreted.

The answer is eight bytes (the length of a header), the header as JSON, then raw bytes of arrays.
Containers that the pickle names more than once are written once and referred to by number, so that
an answer is never much longer than the pickle.
"""

from __future__ import annotations

import array
import io
import json
import os
import pickle
import re
import sys
from collections.abc import Iterable
from math import prod
from typing import Any, TypeGuard

DEEPEST = 64  # levels of containers inside one another
NO_MEMORY = 3  # the exit code of a process that ran out of memory
KEYS = frozenset({str, int, float, bytes, bool})


class Refused(Exception):
    """Why a pickle is refused, as the end of a sentence that begins "which"."""


class Dtype:
    """A dtype of booleans, numbers or text such as "<f8", or "O" for objects, which are a list."""

    __slots__ = ("code",)

    def __init__(self, *arguments: Any) -> None:
        code = arguments[0] if arguments else None
        if type(code) is not str:
            raise Refused("holds an array of unknown type")
        if not re.fullmatch(r"[<>=|]?(b1|\?|[iu][1248]|f[248]|[SU]\d{1,5}|O8?)", code):
            raise Refused(f"holds an array of {code[:20]!r}, not of numbers or text")
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Take the byte order; fields and subarrays are refused."""
        if not isinstance(state, tuple) or len(state) < 5:
            raise Refused("holds an array whose type has no state")
        if any(part is not None for part in state[2:5]):
            raise Refused("holds an array with fields")
        if state[1] not in ("<", ">", "=", "|"):
            raise Refused("holds an array of unknown byte order")
        self.code = state[1] + self.code.lstrip("<>=|")

    @property
    def itemsize(self) -> int:
        """Bytes of one value; text has four per character."""
        kind = self.code.lstrip("<>=|")
        if kind == "?":
            return 1
        size = int(kind[1:])
        return 4 * size if kind[0] == "U" else size


class Array:
    """An array, whose content may come later in the pickle: raw bytes, or a list of objects."""

    __slots__ = ("code", "content", "fortran", "shape")

    code: str
    content: bytes | list[Any] | None
    shape: tuple[int, ...]
    fortran: bool

    def __init__(self, *_: object) -> None:
        self.content = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise Refused("holds an array whose state is not one")
        _, shape, dtype, fortran, raw = state
        self.fill(raw, dtype, shape, bool(fortran))

    def fill(self, raw: object, dtype: object, shape: object, fortran: bool) -> Array:
        """Take the content, if it is as long as the shape says."""
        if not isinstance(dtype, Dtype):
            raise Refused("holds an array whose state is not one")
        if not is_sound(shape):
            raise Refused("holds an array of impossible shape")
        self.code = dtype.code
        self.shape = shape
        self.fortran = fortran
        if "O" in dtype.code:
            if not isinstance(raw, list) or len(raw) != prod(shape) or len(shape) > 2:
                raise Refused("holds an array of objects of impossible shape")
            self.content = raw if len(shape) < 2 else _rows(raw, shape[1])
            return self
        if isinstance(raw, str):  # Python 2 has raw text
            raw = raw.encode("latin-1")
        if not isinstance(raw, bytes | bytearray):
            raise Refused("holds an array without bytes")
        if not dtype.itemsize or len(raw) != prod(shape) * dtype.itemsize:
            raise Refused(f"holds an array of shape {shape} in {len(raw):,} bytes")
        self.content = bytes(raw)
        return self


class Scalar:
    """One number or text of numpy's, as its bytes."""

    __slots__ = ("code", "content")

    def __init__(self, *arguments: Any) -> None:
        if len(arguments) != 2 or type(arguments[0]) is not Dtype or "O" in arguments[0].code:
            raise Refused("holds a scalar that is no number")
        made = Array().fill(arguments[1], arguments[0], (1,), False)
        if not isinstance(made.content, bytes):
            raise Refused("holds a scalar that is no number")
        self.code = made.code
        self.content = made.content


class Name:
    """A class that stands among arguments and is never called."""

    __slots__ = ()


class Function:
    """A function of ours in place of one that a pickle names; without attributes to change."""

    __slots__ = ()


class FromBuffer(Function):
    """numpy's ``_frombuffer(bytes, dtype, shape, order)``."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> Array:
        """The array."""
        if len(arguments) != 4:
            raise Refused("holds an array whose state is not one")
        raw, dtype, shape, order = arguments
        return Array().fill(raw, dtype, shape, order == "F")


class Encode(Function):
    """``_codecs.encode(text, "latin1")``, as protocols 0 to 2 write bytes."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> bytes:
        """The bytes."""
        if len(arguments) != 2 or arguments[1] not in ("latin1", "latin-1"):
            raise Refused("holds text in an unknown encoding")
        if not isinstance(arguments[0], str):
            raise Refused("holds text in an unknown encoding")
        return arguments[0].encode("latin-1")


class NoBytes(Function):
    """``bytes()`` without arguments, as protocols 0 to 2 write bytes of length 0."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> bytes:
        """No bytes."""
        if arguments:
            raise Refused("calls bytes with a length")
        return b""


class NewDict(Function):
    """An OrderedDict or defaultdict, as a dict; its items follow as for any dict."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> dict[Any, Any]:
        """An empty dict."""
        if any(type(argument) in (list, tuple, dict) for argument in arguments):
            raise Refused("fills a dict in a way that is not read")
        return {}


GLOBALS: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": Array,
    "numpy._core.multiarray._reconstruct": Array,
    "numpy.core.multiarray.scalar": Scalar,
    "numpy._core.multiarray.scalar": Scalar,
    "numpy.core.numeric._frombuffer": FromBuffer(),
    "numpy._core.numeric._frombuffer": FromBuffer(),
    "numpy.dtype": Dtype,
    "_codecs.encode": Encode(),
    "builtins.bytes": NoBytes(),
    "__builtin__.bytes": NoBytes(),
    "collections.OrderedDict": NewDict(),
    "collections.defaultdict": NewDict(),
    "numpy.ndarray": Name(),
    "builtins.list": Name(),
    "__builtin__.list": Name(),
    "builtins.dict": Name(),
    "builtins.int": Name(),
    "builtins.float": Name(),
}


class Unpickler(pickle.Unpickler):
    """Python's unpickler with ``GLOBALS`` for every name; nothing is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name, if it is one of ``GLOBALS``."""
        found = GLOBALS.get(f"{module}.{name}")
        if found is None:
            raise Refused(f"asks for {module}.{name}"[:120])
        return found


def unpickle(data: bytes) -> Any:
    """What a pickle holds, with the classes above for numpy's; :class:`Refused` if it is not data.

    >>> unpickle(pickle.dumps([1, 2.5, "a"]))
    [1, 2.5, 'a']
    """
    try:
        return Unpickler(io.BytesIO(data), encoding="latin-1").load()
    except (Refused, MemoryError):
        raise
    except Exception as error:  # A damaged file may raise anything: the unpickler trusts its input.
        raise Refused(f"is damaged or is not data ({type(error).__name__})") from None


def _rows(values: list[Any], width: int) -> list[list[Any]]:
    return [values[i : i + width] for i in range(0, len(values), width)]


def is_sound(shape: object) -> TypeGuard[tuple[int, ...]]:
    """Whether a shape is whole numbers, and not an empty one of many rows, which would be walked
    along.
    """
    if not isinstance(shape, tuple) or len(shape) > 8:
        return False
    if not all(type(n) is int and 0 <= n < 2**62 for n in shape):
        return False
    return len(shape) < 2 or prod(shape) > 0


class Answer:
    """Plain data as JSON with references into ``parts``, the raw bytes that follow it.

    Numbers, text, booleans and None are themselves; all else is a list that begins with its kind.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.numbers: dict[int, int] = {}  # of containers and arrays, by their id

    def encode(self, value: object, depth: int = 0) -> Any:
        """``value`` as JSON can hold it; :class:`Refused` if it is anything but data."""
        if value is None or isinstance(value, bool | float | str):
            return value
        if isinstance(value, int):
            return value if -(2**63) <= value < 2**63 else ["int", hex(value)]
        if isinstance(value, bytes | bytearray):
            return ["bytes", *self._place(bytes(value))]
        if isinstance(value, Scalar):
            return ["scalar", value.code, *self._place(value.content)]
        if depth > DEEPEST:
            raise Refused(f"has more than {DEEPEST} levels of containers inside one another")
        if id(value) in self.numbers:
            return ["again", self.numbers[id(value)]]
        self.numbers[id(value)] = len(self.numbers)
        if isinstance(value, Array):
            return self._array(value, depth)
        if isinstance(value, list):
            return self._columns(value) or ["list", self._items(value, depth)]
        if isinstance(value, tuple):
            return ["tuple", self._items(value, depth)]
        if isinstance(value, dict):
            if not {*map(type, value)} <= KEYS:
                raise Refused("has a dict with a key that is neither text nor a number")
            return ["dict", self._items(value, depth), self._items(value.values(), depth)]
        raise Refused(f"holds a value of type {type(value).__name__}")

    def _items(self, values: Iterable[object], depth: int) -> list[Any]:
        return [self.encode(value, depth + 1) for value in values]

    def _array(self, value: Array, depth: int) -> list[Any]:
        if value.content is None:
            raise Refused("holds an array without content")
        if isinstance(value.content, list):
            return ["objects", self.encode(value.content, depth + 1)]
        return ["array", value.code, value.shape, value.fortran, *self._place(value.content)]

    def _columns(self, values: list[Any]) -> list[Any] | None:
        """A list of numbers, or of dicts of numbers with the same keys, as columns; else None."""
        kinds = {*map(type, values)}
        if kinds == {dict}:
            keys = [*values[0]]
            if not keys or {*map(type, keys)} != {str} or any([*one] != keys for one in values):
                return None
            columns = [self._column([one[key] for one in values]) for key in keys]
            return None if None in columns else ["records", keys, columns]
        column = self._column(values)
        return None if column is None else ["numbers", column]

    def _column(self, values: list[Any]) -> list[Any] | None:
        """Numbers of one type as the raw bytes of an array; None if they are not."""
        kinds = {*map(type, values)}
        if kinds == {float}:
            return ["=f8", *self._place(array.array("d", values).tobytes())]
        if kinds == {int}:
            try:
                return ["=i8", *self._place(array.array("q", values).tobytes())]
            except OverflowError:
                return None
        if kinds == {Scalar} and len({one.code for one in values}) == 1:
            return [values[0].code, *self._place(b"".join(one.content for one in values))]
        return None

    def _place(self, content: bytes) -> tuple[int, int]:
        """Where raw bytes are put: their start and size."""
        start = self.size
        self.parts.append(content)
        self.size += len(content)
        return start, len(content)


def answer(data: bytes) -> bytes:
    """The whole answer for a pickle: its data, or why it is refused."""
    found = Answer()
    try:
        header = {"value": found.encode(unpickle(data))}
    except Refused as error:
        header = {"refused": str(error)}
        found = Answer()
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *found.parts])


def limit_resources(memory: int, seconds: int) -> None:
    """Leave this process so many bytes and seconds more, and no files or processes to make."""
    try:
        import resource
    except ImportError:  # Windows
        return
    chosen = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_AS: address_space() + memory,
        resource.RLIMIT_NPROC: 0,
    }
    for which, size in chosen.items():
        hard = resource.getrlimit(which)[1]
        soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
        try:
            resource.setrlimit(which, (soft, hard))
        except (ValueError, OSError):  # A system without this limit.
            continue


def address_space() -> int:
    """Bytes of addresses that this process has taken."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)
        pages = int(os.read(file, 64).split()[0])
        os.close(file)
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # A system without such a file.
        return 2**28


def main() -> None:
    """Read stdin and write the answer to stdout; exit with ``NO_MEMORY`` without enough memory."""
    data = sys.stdin.buffer.read()
    limit_resources(int(sys.argv[1]), int(sys.argv[2]))
    try:
        content = answer(data)
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except (MemoryError, RecursionError):
        sys.exit(NO_MEMORY)


if __name__ == "__main__":
    main()
