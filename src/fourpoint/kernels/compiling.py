"""Loops in plain Python made into machine code by numba.

Functions are made anew in a namespace that holds the machine code of those they call, so that the
plain ones stay plain.

Loops that share out their work among threads of their own ask :func:`threads` how many. The threads
of torch and of numpy's BLAS keep a processor busy for a while after each of their operations,
waiting for the next: where loops do the work, both are to have one thread
(:func:`threads_for_loops`).
"""

from __future__ import annotations

import ctypes
import inspect
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

OPTIONS: dict[str, Any] = dict(
    nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy"
)

_lent: list[int] = []  # the number of threads that torch had before it lent them


def threads() -> int:
    """How many threads compiled loops may use: torch's number."""
    return _lent[-1] if _lent else torch.get_num_threads()


@contextmanager
def threads_for_loops(wanted: bool) -> Iterator[None]:
    """Meanwhile, where ``wanted``, torch and BLAS have one thread, and compiled loops have those
    that torch had.
    """
    own = torch.get_num_threads()
    if not wanted or own == 1:
        yield
        return
    _lent.append(own)
    torch.set_num_threads(1)
    try:
        with one_blas_thread():
            yield
    finally:
        torch.set_num_threads(_lent.pop())


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Meanwhile numpy's BLAS has one thread: matrices of fits are small, and for them its threads
    cost more than they save.
    """
    blas = blas_threads()
    own = 1 if blas is None else blas.now()
    if blas is None or own == 1:
        yield
        return
    blas.set(1)
    try:
        yield
    finally:
        blas.set(own)


class BlasThreads(NamedTuple):
    """Functions of numpy's OpenBLAS: its number of threads, and one that sets it."""

    now: Callable[[], int]
    set: Callable[[int], object]


@cache
def blas_threads() -> BlasThreads | None:
    """Those of the OpenBLAS that this process has loaded; None where there is none.

    >>> blas = blas_threads()
    >>> blas is None or blas.now() >= 1
    True
    """
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:  # another system than Linux, whose BLAS has no such threads
        return None
    files = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line and "/" in line}
    for file in sorted(files, key=lambda name: "numpy" not in name):
        for name in ("scipy_openblas_{}64_", "openblas_{}64_", "scipy_openblas_{}", "openblas_{}"):
            try:
                library = ctypes.CDLL(file)
                now = library[name.format("get_num_threads")]
                return BlasThreads(now, library[name.format("set_num_threads")])
            except (OSError, AttributeError):  # no library, or none with this name
                continue
    return None


def machine_code(
    modules: Sequence[ModuleType],
    entries: Sequence[Callable[..., Any]],
    helpers: Sequence[Callable[..., Any]] = (),
    merged: Sequence[Callable[..., Any]] = (),
    loops: Sequence[Callable[..., Any]] = (),
    **options: Any,
) -> dict[str, Callable[..., Any]]:
    """The ``entries`` by name, compiled at their first call and cached on disk where possible.

    ``modules`` hold the entries and everything they use. ``helpers`` and ``merged`` are the
    functions called by entries, in the order in which they call each other. ``merged`` are inlined
    before type inference: where many arrays are passed, the call takes longer than a short loop.
    ``loops`` are helpers too, called after ``helpers``. They make no arrays, and views inside them
    are not counted: numba counts the views of an array with locked instructions, two for each row
    that is taken from a table, at which a processor waits for its memory.
    ``options`` override :data:`OPTIONS`.

    An entry is one symbol: every helper is inlined into it, and only entries are cached. Otherwise
    the dynamic linker may
    replace the copy of a helper inside an entry by another copy that happens to be loaded, one that
    was compiled on its own or as part of another entry. The copies sum in different orders
    (``fastmath``), and results would depend on whether code was compiled in this process or read
    from the cache.
    """
    from numba import njit

    chosen = {**OPTIONS, **options}
    try:
        return _built(
            modules,
            entries,
            helpers,
            merged,
            loops,
            partial(njit, **chosen),
            partial(njit, cache=True, **chosen),
        )
    except RuntimeError:  # no folder to cache machine code in
        build = partial(njit, **chosen)
        return _built(modules, entries, helpers, merged, loops, build, build)


def _built(
    modules: Sequence[ModuleType],
    entries: Sequence[Callable[..., Any]],
    helpers: Sequence[Callable[..., Any]],
    merged: Sequence[Callable[..., Any]],
    loops: Sequence[Callable[..., Any]],
    build: Callable[..., Any],
    build_entry: Callable[..., Any],
) -> dict[str, Callable[..., Any]]:
    """Functions in a namespace of their own.

    numba caches code under a function's qualified name, and checks the function's own file and none
    of the compiler's options. So the name carries a checksum of all sources, this file included.
    """
    sources = [inspect.getsource(module) for module in (*modules, sys.modules[__name__])]
    edition = zlib.crc32("".join(sources).encode())
    space: dict[str, Any] = {}
    for module in modules:
        space |= vars(module)

    def moved(function: Callable[..., Any]) -> Any:
        plain: Any = inspect.unwrap(function)
        copied = FunctionType(plain.__code__, space)
        copied.__qualname__ = f"{plain.__name__}_{edition}"
        return copied

    for function in helpers:
        space[function.__name__] = build(moved(function), forceinline=True)
    for function in loops:
        space[function.__name__] = build(moved(function), forceinline=True, _nrt=False)
    for function in merged:
        space[function.__name__] = build(moved(function), inline="always")
    for function in entries:
        space[function.__name__] = build_entry(moved(function))
    return {function.__name__: space[function.__name__] for function in entries}
