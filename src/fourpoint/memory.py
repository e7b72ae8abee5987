"""How much memory there is, and how much one step may take: a number that is checked before memory
is asked for.

The limit is half of what is free, by the machine, the process's control groups (versions 1 and 2)
and its own limit of address space, whichever leaves least. The environment variable
``FOURPOINT_MEMORY_LIMIT`` and the option ``--memory-limit`` of the command set another, such as
``500M`` or ``16G``.
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar
from pathlib import Path

from fourpoint.errors import UserError

VARIABLE = "FOURPOINT_MEMORY_LIMIT"
UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
UNKNOWN = 2**34  # bytes taken to be free where the system does not say
SHARE = 0.5  # of the free memory, since what is read is often held twice for a moment
_chosen: ContextVar[int | None] = ContextVar("memory limit", default=None)


def memory_limit() -> int:
    """Bytes that a file may expand into, or a model and its training may take."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        return parse_size(text, VARIABLE)
    return int(SHARE * free_memory())


def set_memory_limit(size: int | str | None) -> None:
    """Set the limit for this thread or task, in bytes or as text such as "4G"; None returns to the
    environment or the default.

    >>> set_memory_limit("2G")
    >>> memory_limit()
    2000000000
    >>> set_memory_limit(None)
    """
    if isinstance(size, str):
        size = parse_size(size, "a memory limit")
    _chosen.set(size)


def parse_size(text: str, name: str) -> int:
    """A number of bytes as people write it.

    >>> parse_size("1.5 GiB", "--memory-limit"), parse_size("20000000", "--memory-limit")
    (1610612736, 20000000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]?I?)B?", text.strip().upper())
    size = int(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if size <= 0:
        raise UserError(
            f"{name} as a positive size such as 500M or 16G",
            f"{text!r}",
            "Write a number and a unit.",
        )
    return size


def readable_size(size: float) -> str:
    """A size for people.

    >>> readable_size(5_100_000_000), readable_size(800)
    ('5.1 GB', '800 bytes')
    """
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            number = size / unit
            form = ",.3g" if size < 1000 * unit else ",.0f"
            return f"{number:{form}} {name}"
    return f"{size:.0f} bytes"


def require_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse ``what`` where it needs more bytes than the limit."""
    limit = memory_limit()
    if needed > limit:
        raise UserError(
            f"{what} that fits into {readable_size(limit)} of memory",
            f"one that needs {readable_size(needed)} or more",
            f"{remedy} Or raise the limit with --memory-limit or {VARIABLE}.",
        )


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the least that machine, control groups and address
    space leave.

    ``root`` is where the system's files are, for tests.
    """
    found = [_machine(root), *_control_groups(root), _address_space(root)]
    known = [size for size in found if size is not None]
    if not known:
        return UNKNOWN
    return max(0, min(known))


def _machine(root: Path) -> int | None:
    found = re.search(r"MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"))
    if found:
        return 1024 * int(found[1])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _control_groups(root: Path) -> list[int]:
    """What each control group that holds the process leaves, from its own to the outermost."""
    mount = root / "sys/fs/cgroup"
    left = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            base = mount
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = mount / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container the path may be that of the host, and the group itself is the mount.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts), -1, -1):
            left += _left(base.joinpath(*parts[:depth]), *names)
    return left


def _left(group: Path, limit_file: str, usage_file: str, cache: str) -> list[int]:
    limit = _number(_text(group / limit_file))
    if limit is None or limit >= 2**62:
        return []
    usage = _number(_text(group / usage_file)) or 0
    statistics = _text(group / "memory.stat")
    # Pages of files that were not used lately are dropped when memory is needed.
    found = re.search(rf"^{cache} (\d+)", statistics, re.MULTILINE)
    cached = int(found[1]) if found else 0
    return [limit - usage + cached]


def _address_space(root: Path) -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit in (resource.RLIM_INFINITY, -1):
        return None
    pages = _number((_text(root / "proc/self/statm").split() or [""])[0]) or 0
    return limit - pages * resource.getpagesize()


def _number(text: str) -> int | None:
    if not text.strip().isdigit():
        return None
    return int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError):
        return ""
