"""Memory that is freed stays with the process, so that the next step need not ask the system for it
again.

By default the C library of Linux gives every block of more than some megabytes back at once, and
each page of the next one costs a fault. A training step allocates the same large tensors over and
over: keeping them makes large steps twice as fast, and their cost linear in their size. The process
holds on to what it needed at its peak. Other systems are left as they are.
"""

from __future__ import annotations

import ctypes
from functools import cache

TRIM, MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
LARGEST_MAP = 2**30  # bytes: blocks above this are still given back at once
LARGEST_TOP = 2**31 - 1  # so much may lie free at the end of the heap


@cache
def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory; whether it could be asked.

    >>> keep_freed_memory() in (True, False)
    True
    """
    try:
        ask = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(ask(MAP, LARGEST_MAP)) and bool(ask(TRIM, LARGEST_TOP))
