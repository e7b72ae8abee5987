"""What a stream remembers, as bytes: a name, a version, a checksum, and safetensors with a JSON
header; nothing that could run.

    "fourpoint state\\n"  version  length  SHA-256 of the rest  safetensors

The header, in the metadata of the safetensors, holds the model's fingerprint, a hash of its kind,
settings, marks and weights: a memory means nothing to another model. :func:`unpack` refuses what is
foreign, cut short, damaged, of another version or of another model, each with its own words. A
checksum does not make content true: whoever restores a state also checks every number and array in
it (:func:`whole`, :func:`number`, :func:`check_arrays`). A model's history goes in and out by the
names of its fields (:func:`arrays_of`, :func:`history_from`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import BatchContext, UserError
from fourpoint.former_names import FORMER_STREAM_FIELDS
from fourpoint.models.base import History, PointProcess

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")

MAGIC = b"fourpoint state\n"
VERSION = 2
LAYOUT = struct.Struct("<IQ32s")  # version, bytes after this, their hash
KEY = "fourpoint"  # of the metadata under which the header stands
COMPACT: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}
# Types of numbers by kind and bytes, as safetensors name them.
TYPES = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u1": "U8",
    "b1": "BOOL",
}
LARGEST_FLOAT = 1.7e308
Arrays = dict[str, NDArray[Any]]
FAULTS = (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError, AttributeError)


def pack(kind: str, owner: str, header: dict[str, Any], arrays: Arrays) -> bytes:
    """``header`` (JSON) and ``arrays`` as bytes; ``kind`` says whose memory it is, ``owner`` is the
    model's :func:`fingerprint`.

    >>> header, arrays = unpack(
    ...     "stream", "ab12", pack("stream", "ab12", {"count": 3}, {"x": np.arange(2.0)})
    ... )
    >>> header["count"], arrays["x"].tolist()
    (3, [0.0, 1.0])
    """
    about = {"kind": kind, "model": owner, **header}
    body = to_tensors(about, arrays)
    digest = hashlib.sha256(body).digest()
    return MAGIC + LAYOUT.pack(VERSION, len(body), digest) + body


def unpack(kind: str, owner: str, state: bytes) -> tuple[dict[str, Any], Arrays]:
    """What :func:`pack` was given. Raises :class:`UserError` for any other bytes, and for those of
    another model.
    """
    first = len(MAGIC) + LAYOUT.size
    remedy = "Pass what state() returned, unchanged."
    if not isinstance(state, bytes | bytearray | memoryview):
        raise UserError(f"the bytes of a {kind}'s state", type(state).__name__, remedy)
    state = bytes(state)
    if not state.startswith(MAGIC[: len(state)]) or not state:
        raise UserError(
            f"the bytes of a {kind}'s state",
            f"{len(state):,} bytes that begin with {state[:16]!r}",
            remedy,
        )
    if len(state) < first:
        raise UserError(f"the whole of a {kind}'s state", f"its first {len(state):,} bytes", remedy)
    version, size, digest = LAYOUT.unpack_from(state, len(MAGIC))
    if version != VERSION:
        remedy = "Use the version of Fourpoint that wrote it, or start again without it."
        raise UserError(f"a state of version {VERSION}", f"version {version}", remedy)
    body = state[first:]
    if len(body) != size:
        raise UserError(
            f"a state of {first + size:,} bytes",
            f"{len(state):,} of them",
            "It was cut short or added to: use the last good one.",
        )
    if hashlib.sha256(body).digest() != digest:
        raise UserError(
            "a state with its own hash",
            "another hash: bytes in it have changed",
            "Use the last good one.",
        )
    header, arrays = from_tensors(body)
    found = text(header, "kind")
    model = text(header, "model")
    if found != kind:
        raise UserError(
            f"the state of a {kind}", f"that of a {found[:40]}", f"Restore it as a {found[:40]}."
        )
    if model != owner:
        received = f"a state of model {model[:12]}"
        raise UserError(
            f"a state of this model ({owner[:12]})",
            received,
            "Restore it with the model that it was written for.",
        )
    return header, arrays


def to_tensors(header: dict[str, Any], arrays: Arrays) -> bytes:
    """Arrays as safetensors, with ``header`` as JSON in their metadata. Complex numbers are pairs
    in a last axis.

    The library's own writer takes four times as long for arrays of few numbers, and holds the
    interpreter's lock meanwhile: a feed that writes thousands of entities in the background would
    wait for it.
    """
    shapes = [(name, array.dtype, array.shape) for name, array in arrays.items()]
    order, described, pairs = _layout(tuple(shapes))
    own_header = json.dumps({**header, "complex": pairs})
    metadata = json.dumps({KEY: own_header}, **COMPACT)
    text = f'{{"__metadata__":{metadata}{described}}}'.encode()
    text += b" " * (-len(text) % 8)
    size = len(text).to_bytes(8, "little")
    contents = [arrays[name].tobytes() for name in order]
    return b"".join([size, text, *contents])


@lru_cache(maxsize=256)
def _layout(
    shapes: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...],
) -> tuple[list[str], str, list[str]]:
    """Names in the order of their contents, which are aligned so, the arrays' description in the
    header of safetensors, and which of them are complex.
    """
    described: list[tuple[int, str, dict[str, Any]]] = []
    pairs = []
    for name, kind, shape in shapes:
        axes = list(shape)
        size = kind.itemsize
        number = kind.kind
        if number == "c":
            pairs.append(name)
            axes.append(2)
            size //= 2
            number = "f"
        about: dict[str, Any] = {"dtype": TYPES[f"{number}{size}"], "shape": axes}
        described.append((-size, name, about))
    described.sort(key=lambda one: one[:2])
    order = []
    text = ""
    end = 0
    for size, name, about in described:
        begin = end
        end -= size * math.prod(about["shape"])
        about = {**about, "data_offsets": [begin, end]}
        entry = json.dumps({name: about}, **COMPACT)
        text += f",{entry[1:-1]}"
        order.append(name)
    return order, text, sorted(pairs)


def from_tensors(body: bytes) -> tuple[dict[str, Any], Arrays]:
    """What :func:`to_tensors` was given. Raises :class:`UserError` for other bytes."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        size = int.from_bytes(body[:8], "little")
        if size > len(body) - 8:
            raise ValueError("the header is cut short")
        listed = json.loads(body[8 : 8 + size])
        header = json.loads(listed["__metadata__"][KEY])
        arrays = load(body)
        pairs = header.pop("complex")
        for name in pairs:
            arrays[name] = _as_complex(arrays[name])
    except (SafetensorError, RecursionError, *FAULTS) as error:
        raise damaged("safetensors with a header", f"others ({_reason(error)})") from None
    return header, arrays


def damaged(expected: str, received: str) -> UserError:
    """The error for a state whose content cannot be right, though its checksum is."""
    return UserError(
        f"a state with {expected}", received, "Use the last good state, or start again without it."
    )


def number(
    header: dict[str, Any], name: str, *, least: float = -math.inf, most: float = math.inf
) -> float:
    """A finite number of a header, within bounds."""
    value: Any = header.get(name)
    if is_finite(value) and least <= float(value) <= most:
        return float(value)
    expected = f"a finite number {name!r}"
    if math.isfinite(least):
        expected += f" of at least {least:g}"
    raise damaged(expected, _shown(header, name))


def is_finite(value: object) -> bool:
    """Whether a value of a header is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST_FLOAT


def whole(header: dict[str, Any], name: str, *, least: int = 0, most: int = 2**62) -> int:
    """A whole number of a header, within bounds."""
    value = header.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    expected = f"a whole number {name!r} from {least:,} to {most:,}"
    raise damaged(expected, _shown(header, name))


def text(header: dict[str, Any], name: str) -> str:
    """A text of a header."""
    value = header.get(name)
    if not isinstance(value, str):
        raise damaged(f"a text {name!r}", _shown(header, name))
    return value


def check_arrays(arrays: Arrays, like: Arrays, *, fixed: bool, marks: int) -> None:
    """Refuse arrays that no stream of the model can have.

    ``like`` are those of a stream without events; where memory is ``fixed`` shapes are the same for
    ever. Every number must be finite, and marks must be among the model's.
    """
    names = ", ".join(sorted(like))
    missing = sorted(set(like) - set(arrays))
    if missing:
        raise damaged(f"arrays {names}", f"none called {missing[0][:60]!r}")
    unknown = sorted(set(arrays) - set(like))
    if fixed and unknown:
        raise damaged(f"arrays {names}", f"also one called {unknown[0][:60]!r}")
    for name, array in arrays.items():
        model = like.get(name)
        if model is not None:
            _check_shape(name, array, model, fixed)
        if array.dtype.kind in "fc" and not bool(np.isfinite(array).all()):
            raise damaged(f"finite numbers in {name!r}", "others")
        if name.endswith("marks") and array.size:
            least = array.min()
            most = array.max()
            if least < 0 or most >= marks:
                expected = f"marks from 0 to {marks - 1} in {name!r}"
                raise damaged(expected, f"{least} to {most}")


def _check_shape(name: str, array: NDArray[Any], model: NDArray[Any], fixed: bool) -> None:
    if array.dtype != model.dtype or array.ndim != model.ndim:
        expected = f"{model.dtype} of {model.ndim} axes in {name!r}"
        raise damaged(expected, f"{array.dtype} of {array.ndim}")
    if fixed and array.shape != model.shape:
        raise damaged(f"the shape {model.shape} of {name!r}", f"{array.shape}")


def _as_complex(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype not in (np.float32, np.float64) or array.shape[-1] != 2:
        raise ValueError("pairs of numbers expected")
    real = array[..., 0]
    imaginary = array[..., 1]
    return real + 1j * imaginary


def _shown(header: dict[str, Any], name: str) -> str:
    if name not in header:
        return "none"
    return repr(header[name])[:80]


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def fingerprint(model: PointProcess) -> str:
    """A hash of the model's kind, settings, marks and weights."""
    about = [type(model).__name__, model.settings(), model.marks.names]
    settings = json.dumps(about, sort_keys=True, default=str)
    found = hashlib.sha256(settings.encode())
    for name, value in sorted(model.state_dict().items()):
        array = value.detach().cpu().contiguous().numpy()
        title = f"{name} {array.dtype.str} {array.shape}"
        found.update(title.encode())
        found.update(array.tobytes())
    return found.hexdigest()


CONTEXT = "context"  # the field of a history for what is known besides events


def arrays_of(history: DataclassInstance, prefix: str = "history") -> Arrays:
    """The tensors of a history by their fields' names; what all sequences share (a spectrum, and
    what is known besides events) is not part of it.
    """
    found: Arrays = {}
    for field in dataclasses.fields(history):
        value = getattr(history, field.name)
        if isinstance(value, BatchContext):
            continue
        name = f"{prefix}.{field.name}"
        if isinstance(value, Tensor):
            found[name] = value.detach().cpu().numpy()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            found |= arrays_of(value, name)
    return found


def history_from(template: D, arrays: Arrays, prefix: str = "history") -> D:
    """``template``, any history of the same model, with the tensors of :func:`arrays_of`; those it
    did not have become None. What is known besides events stays that of the template.
    """
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(template):
        own = field.name
        if own == CONTEXT and isinstance(template, History):
            continue
        value = getattr(template, own)
        name = f"{prefix}.{own}"
        former = f"{prefix}.{FORMER_STREAM_FIELDS.get(own, own)}"
        if name not in arrays and former in arrays:
            name = former
        if name in arrays:
            changed[own] = torch.from_numpy(arrays[name].copy())
        elif isinstance(value, Tensor):
            changed[own] = None
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed[own] = None
            if any(other.startswith(f"{name}.") for other in arrays):
                changed[own] = history_from(value, arrays, name)
    return dataclasses.replace(template, **changed)
