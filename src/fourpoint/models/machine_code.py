"""Loops in plain Python made into machine code, where numba is installed (the extra ``fast``). Used by RMTPP, SAHP and THP.

Functions are made anew in a namespace that holds the machine code of those they call, so that the plain ones stay plain.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

OPTIONS: dict[str, Any] = dict(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy")


def machine_code(
    modules: Sequence[ModuleType], apart: Sequence[Callable[..., Any]], merged: Sequence[Callable[..., Any]] = ()
) -> dict[str, Callable[..., Any]] | None:
    """The functions ``apart`` by name, compiled at their first call and kept on disk between runs where that can be; None without numba.

    ``modules`` hold them and all that they use. Functions ``merged`` become part of their callers: where many arrays are handed over,
    that takes longer than a short loop.
    """
    try:
        from numba import njit
    except ImportError:
        return None
    try:
        return _built(modules, apart, merged, partial(njit, cache=True, **OPTIONS))
    except RuntimeError:  # no folder to keep machine code in
        return _built(modules, apart, merged, partial(njit, **OPTIONS))


def _built(
    modules: Sequence[ModuleType], apart: Sequence[Callable[..., Any]], merged: Sequence[Callable[..., Any]], build: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """numba keeps code under a function's name and asks whether the function's own file has changed; here the name says it of all."""
    edition = zlib.crc32("".join(inspect.getsource(module) for module in modules).encode())
    space: dict[str, Any] = {}
    for module in modules:
        space |= vars(module)
    for f in (*apart, *merged):
        plain: Any = inspect.unwrap(f)
        moved = FunctionType(plain.__code__, space, f"{plain.__name__}_{edition}")
        space[plain.__name__] = build(moved, inline="always" if f in merged else "never")
    return {f.__name__: space[f.__name__] for f in apart}
