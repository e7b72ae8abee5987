"""numpy's arrays, dtypes and scalars as pickles describe them, built here rather than by what the
pickle names.

A pickled array is a call of ``_reconstruct`` followed by its state ``(version, shape, dtype,
fortran, bytes)``; a scalar is ``scalar(dtype, bytes)``; protocol 5 writes ``_frombuffer(bytes,
dtype, shape, order)``. The dtype is text such as ``"f8"`` with a byte order. Only booleans,
integers, floats and text are made, and only from bytes that are there: a shape is compared with the
bytes before numpy sees either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Refused(Exception):
    """Why a pickle is refused, as the end of a sentence that begins "which"."""


class Dtype:
    """A dtype: ``code`` such as "f8", and the byte order once its state is set. "O" is a list of
    things.
    """

    def __init__(self, code: str) -> None:
        if not re.fullmatch(r"[<>=|]?(b1|\?|[iu][1248]|f[248]|[SU]\d{1,5}|O8?)", code):
            raise Refused(f"holds an array of {code[:20]!r}, not of numbers or text")
        self.code = code

    def fill(self, state: Any) -> None:
        """Take the byte order from a dtype's state; fields and subarrays are refused."""
        if (
            type(state) is not tuple
            or len(state) < 5
            or any(part is not None for part in state[2:5])
        ):
            raise Refused("holds an array with fields")
        if state[1] not in ("<", ">", "=", "|"):
            raise Refused("holds an array of unknown byte order")
        self.code = state[1] + self.code.lstrip("<>=|")

    @property
    def is_object(self) -> bool:
        return "O" in self.code

    def array(self, raw: Any, shape: Any, fortran: bool) -> NDArray[Any] | list[Any]:
        """The array of these bytes; for objects the list of them."""
        if not sound(shape):
            raise Refused("holds an array of impossible shape")
        if self.is_object:
            if type(raw) is not list or len(raw) != prod(shape) or len(shape) > 2:
                raise Refused("holds an array of objects of impossible shape")
            return (
                raw
                if len(shape) < 2
                else [raw[i * shape[1] : (i + 1) * shape[1]] for i in range(shape[0])]
            )
        kind, data = np.dtype(self.code), _as_bytes(raw)
        if len(data) != prod(shape) * kind.itemsize:
            raise Refused(f"holds an array of shape {shape} in {len(data):,} bytes")
        values = np.frombuffer(data, dtype=kind).reshape(shape, order="F" if fortran else "C")
        return values.astype(kind.newbyteorder("="))


def sound(shape: Any) -> bool:
    """Whether a shape is one to trust: whole numbers, and no empty one with a side of any length,
    which would be walked along.
    """
    whole = (
        type(shape) is tuple
        and len(shape) <= 8
        and all(type(n) is int and 0 <= n < 2**62 for n in shape)
    )
    return whole and (len(shape) < 2 or prod(shape) > 0)


class Array:
    """An array whose state comes later in the pickle. ``value`` is a numpy array, or a list where
    it held objects.
    """

    def __init__(self, value: NDArray[Any] | list[Any] | None = None) -> None:
        self.value = value

    def fill(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 5 or not isinstance(state[2], Dtype):
            raise Refused("holds an array whose state is not one")
        self.value = state[2].array(state[4], state[1], bool(state[3]))


def _new_array(*_: Any) -> Array:
    return Array()


def _new_dtype(*arguments: Any) -> Dtype:
    if not arguments or type(arguments[0]) is not str:
        raise Refused("holds an array of unknown type")
    return Dtype(arguments[0])


def _scalar(*arguments: Any) -> Any:
    if len(arguments) != 2 or not isinstance(arguments[0], Dtype) or arguments[0].is_object:
        raise Refused("holds a scalar that is no number")
    value = arguments[0].array(arguments[1], (1,), False)
    return value[0].item() if isinstance(value, np.ndarray) else value[0]


def _from_buffer(*arguments: Any) -> Array:
    if len(arguments) != 4 or not isinstance(arguments[1], Dtype):
        raise Refused("holds an array whose state is not one")
    raw, kind, shape, order = arguments
    return Array(kind.array(raw, shape, order == "F"))


def _encoded(*arguments: Any) -> bytes:
    if (
        len(arguments) != 2
        or type(arguments[0]) is not str
        or arguments[1] not in ("latin1", "latin-1")
    ):
        raise Refused("holds text in an unknown encoding")
    return arguments[0].encode("latin-1")


def _no_bytes(*arguments: Any) -> bytes:
    """What protocols 0 to 2 write for bytes without any: a call of ``bytes`` without arguments."""
    if arguments:
        raise Refused("calls bytes with a length")
    return b""


def _new_dict(*arguments: Any) -> dict[Any, Any]:
    """An OrderedDict or defaultdict, as a dict: its items follow as for any dict."""
    if any(type(argument) in (list, tuple, dict) for argument in arguments):
        raise Refused("fills a dict in a way that is not read")
    return {}


def _as_bytes(raw: Any) -> bytes:
    if type(raw) is str:  # Python 2's raw bytes, kept by latin-1
        return raw.encode("latin-1")
    if type(raw) is not bytes:
        raise Refused("holds an array without bytes")
    return raw


MAKERS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": _new_array,
    "numpy._core.multiarray._reconstruct": _new_array,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy._core.numeric._frombuffer": _from_buffer,
    "numpy.dtype": _new_dtype,
    "_codecs.encode": _encoded,
    "builtins.bytes": _no_bytes,
    "__builtin__.bytes": _no_bytes,
    "collections.OrderedDict": _new_dict,
    "collections.defaultdict": _new_dict,
}
# Names that appear as arguments and are never called.
PLAIN_NAMES = frozenset(
    {
        "numpy.ndarray",
        "builtins.list",
        "__builtin__.list",
        "builtins.dict",
        "builtins.int",
        "builtins.float",
    }
)
