"""What a stream remembers, as bytes: a name, a version, a hash, a JSON header and raw arrays, and nothing that could run.

    "fourpoint state\\n"  version  length  SHA-256 of the rest  header length  header  arrays end to end

The header holds the model's fingerprint, a hash of its kind, settings, marks and weights: a memory means nothing to another
model. :func:`unpack` refuses what is foreign, cut short, damaged, of another version or of another model, each with its own
words. A model's history goes in and out by the names of its fields (:func:`arrays_of`, :func:`history_from`). Used by
`streaming` and `streaming.bank`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import UserError

MAGIC, VERSION = b"fourpoint state\n", 1
LAYOUT = struct.Struct("<IQ32s")  # version, bytes after this, their hash
Arrays = dict[str, NDArray[Any]]


def pack(kind: str, owner: str, header: dict[str, Any], arrays: Arrays) -> bytes:
    """``header`` (JSON) and ``arrays`` as bytes; ``kind`` says whose memory it is, ``owner`` is the model's :func:`fingerprint`.

    >>> header, arrays = unpack("stream", "ab12", pack("stream", "ab12", {"count": 3}, {"x": np.arange(2.0)}))
    >>> header["count"], arrays["x"].tolist()
    (3, [0.0, 1.0])
    """
    listed = [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]
    head = json.dumps({"kind": kind, "model": owner, "arrays": listed, **header}).encode()
    body = b"".join([struct.pack("<Q", len(head)), head, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())])
    return MAGIC + LAYOUT.pack(VERSION, len(body), hashlib.sha256(body).digest()) + body


def unpack(kind: str, owner: str, state: bytes) -> tuple[dict[str, Any], Arrays]:
    """What :func:`pack` was given. Raises :class:`UserError` for any other bytes, and for those of another model."""
    first, remedy = len(MAGIC) + LAYOUT.size, "Pass what state() returned, unchanged."
    if not isinstance(state, bytes | bytearray | memoryview):
        raise UserError(f"the bytes of a {kind}'s state", type(state).__name__, remedy)
    state = bytes(state)
    if not state.startswith(MAGIC[: len(state)]) or not state:
        raise UserError(f"the bytes of a {kind}'s state", f"{len(state):,} bytes that begin with {state[:16]!r}", remedy)
    if len(state) < first:
        raise UserError(f"the whole of a {kind}'s state", f"its first {len(state):,} bytes", remedy)
    version, size, digest = LAYOUT.unpack_from(state, len(MAGIC))
    if version != VERSION:
        raise UserError(f"a state of version {VERSION}", f"version {version}", "Use the version of Fourpoint that wrote it.")
    body = state[first:]
    if len(body) != size:
        raise UserError(
            f"a state of {first + size:,} bytes", f"{len(state):,} of them", "It was cut short or added to: use the last good one."
        )
    if hashlib.sha256(body).digest() != digest:
        raise UserError("a state with its own hash", "another hash: bytes in it have changed", "Use the last good one.")
    header = json.loads(body[8 : 8 + struct.unpack_from("<Q", body)[0]])
    if header["kind"] != kind:
        raise UserError(f"the state of a {kind}", f"that of a {header['kind']}", f"Restore it as a {header['kind']}.")
    if header["model"] != owner:
        received = f"a state of model {header['model'][:12]}"
        raise UserError(f"a state of this model ({owner[:12]})", received, "Restore it with the model that it was written for.")
    return header, _arrays(header, body, 8 + struct.unpack_from("<Q", body)[0])


def fingerprint(model: Any) -> str:
    """A hash of the model's kind, settings, marks and weights."""
    settings = json.dumps([type(model).__name__, model.settings(), model.marks.names], sort_keys=True, default=str)
    found = hashlib.sha256(settings.encode())
    for name, value in sorted(model.state_dict().items()):
        array = value.detach().cpu().contiguous().numpy()
        found.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def arrays_of(history: Any, prefix: str = "history") -> Arrays:
    """The tensors of a history by their fields' names; what all sequences share (a spectrum) is not part of it."""
    found: Arrays = {}
    for field in dataclasses.fields(history):
        value, name = getattr(history, field.name), f"{prefix}.{field.name}"
        if isinstance(value, Tensor):
            found[name] = value.detach().cpu().numpy()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            found |= arrays_of(value, name)
    return found


def history_from(template: Any, arrays: Arrays, prefix: str = "history") -> Any:
    """``template``, any history of the same model, with the tensors of :func:`arrays_of`; those it did not have become None."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(template):
        value, name = getattr(template, field.name), f"{prefix}.{field.name}"
        if name in arrays:
            changed[field.name] = torch.from_numpy(arrays[name].copy())
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inside = any(other.startswith(f"{name}.") for other in arrays)
            changed[field.name] = history_from(value, arrays, name) if inside else None
        elif isinstance(value, Tensor):
            changed[field.name] = None
    return dataclasses.replace(template, **changed)


def _arrays(header: dict[str, Any], body: bytes, offset: int) -> Arrays:
    found: Arrays = {}
    for name, kind, shape in header["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        found[name] = np.frombuffer(body, dtype=np.dtype(kind), count=count, offset=offset).reshape(shape)
        offset += found[name].nbytes
    return found
