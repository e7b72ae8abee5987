"""numpy's ``.npy`` and ``.npz`` files, read without running anything and without trusting a
header's sizes.

``np.load`` either refuses arrays of objects or unpickles them, and sets aside what a header asks
for before it looks for the data. Here a header is compared with the bytes that follow it, the
members of an archive with what the archive says of them, and objects go through ``unpickling.py``.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import check_file, contents, unreadable
from fourpoint.data.formats.pickled_arrays import Array, sound
from fourpoint.data.formats.unpickling import loads
from fourpoint.events import EventDataError

MAGIC = b"\x93NUMPY"


def read_arrays(path: Path, what: str) -> tuple[dict[str, Any], int]:
    """The arrays of an ``.npz`` by name, or that of an ``.npy`` under ``arr_0``, and how many bytes
    they take unpacked.

    An array of objects comes as a list.
    """
    check_file(path, what)
    with path.open("rb") as file:
        start = file.read(6)
    if start == MAGIC:
        data = contents(path, what)
        return {"arr_0": _array(data, path, what)}, len(data)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            Expansion(path, what).check(size)
            odd = next(
                (
                    m
                    for m in members
                    if m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                ),
                None,
            )
            if odd is not None:
                raise unreadable(
                    path, what, f"{odd.filename[:40]} is packed in a way that numpy does not use"
                )
            return {
                member.filename.removesuffix(".npy"): _array(archive.read(member), path, what)
                for member in members
            }, size
    except EventDataError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        KeyError,
    ) as error:
        raise unreadable(path, what, error) from error


def _array(data: bytes, path: Path, what: str) -> Any:
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = header(stream)
    except (ValueError, SyntaxError, TypeError, EOFError, RecursionError, MemoryError) as error:
        raise unreadable(path, what, error) from error
    body = data[stream.tell() :]
    if dtype.hasobject:
        held = loads(body, path)
        return held.value if isinstance(held, Array) else held
    if (
        dtype.kind not in "biufU"
        or not dtype.itemsize
        or not sound(shape)
        or len(body) != prod(shape) * dtype.itemsize
    ):
        raise unreadable(
            path, what, f"an array of {dtype} and shape {shape} in {len(body):,} bytes"
        )
    return np.frombuffer(body, dtype=dtype).reshape(shape, order="F" if fortran else "C")
