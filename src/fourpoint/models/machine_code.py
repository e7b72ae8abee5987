"""Loops in plain Python made into machine code, where numba is installed (the extra ``fast``). Used by DAPP, RMTPP, SAHP and
THP.

Functions are made anew in a namespace that holds the machine code of those they call, so that the plain ones stay plain.

Loops that share out their work among threads of their own ask :func:`threads` how many. torch's threads keep a processor busy for a while
after each of its operations, waiting for the next: where loops do the work, torch is to have one thread (:func:`threads_for_loops`).
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import torch

OPTIONS: dict[str, Any] = dict(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy")

_lent: list[int] = []  # the number of threads that torch had before it lent them


def threads() -> int:
    """How many threads compiled loops may use: torch's number."""
    return _lent[-1] if _lent else torch.get_num_threads()


@contextmanager
def threads_for_loops(wanted: bool) -> Iterator[None]:
    """Meanwhile, where ``wanted``, torch has one thread and compiled loops have those that it had."""
    if not wanted or torch.get_num_threads() == 1:
        yield
        return
    _lent.append(torch.get_num_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_lent.pop())


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
