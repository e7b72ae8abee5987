"""Which format a file is in, by its first bytes, its columns and at last its name.

Used by ``convert`` where the user does not say. A guess is named aloud, and what cannot be told
apart is asked for.
"""

from __future__ import annotations

import re
from pathlib import Path

from fourpoint.data.files import blocks, check_file
from fourpoint.data.formats.lists import column_names
from fourpoint.events import EventDataError, UserError

TARGETS = {
    ".parquet": "fourpoint",
    ".json": "easytpp",
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".npz": "tick",
}
LOBSTER = re.compile(r"_\d{4}-\d\d-\d\d_\d+_\d+_message_\d+\.csv(\.gz)?$")


def guess_source(path: Path) -> str:
    """The name of the format or source that a file or folder is in.

    Falls back to "fourpoint", whose reader takes tables of events and says what it misses.
    """
    if "*" in path.name or path.is_dir():
        return _guess_folder(path)
    head = _first_bytes(check_file(path, "a file of events"))
    if head.startswith(b"PAR1"):
        return _by_columns(path)
    if head.startswith((b"PK\x03\x04", b"\x93NUMPY")):
        return "tick"
    if re.match(rb"\x80[\x02-\x05]", head) or path.suffix.lower() in (".pkl", ".pickle"):
        return "pickle"
    if head.lstrip()[:1] in (b"[", b"{"):
        return "easytpp" if b"time_since_start" in head else "fourpoint"
    if path.name.startswith(("time", "event")) and path.suffix == ".txt":
        return "du"
    return _by_text(head, path)


def guess_target(path: Path) -> str:
    """The name of the format to write, by the ending."""
    name = path.name
    if name.startswith("time") and name.endswith(".txt"):
        return "du"
    found = TARGETS.get(path.suffix.lower())
    if found is None:
        known = ", ".join(f"{ending} ({format})" for ending, format in TARGETS.items())
        raise UserError(
            f"a target with an ending that says its format: {known}",
            f"{path}",
            "Rename it, or say which with --to.",
        )
    return found


def _guess_folder(path: Path) -> str:
    names = [
        p.name for p in sorted(path.parent.glob(path.name) if "*" in path.name else path.iterdir())
    ]
    if any(name.startswith("time") and name.endswith(".txt") for name in names):
        return "du"
    if any(LOBSTER.search(name) for name in names):
        return "lobster"
    if any(name.startswith("quotes_") for name in names):
        return "memetracker"
    for endings, format in (((".pkl", ".pickle"), "pickle"), ((".json", ".jsonl"), "easytpp")):
        if any(name.endswith(endings) for name in names):
            return format
    tables = [name for name in names if name.endswith(".parquet")]
    if tables and "*" not in path.name:
        one = path / tables[0]
        return _by_columns(next(iter(sorted(one.glob("*.parquet"))), one) if one.is_dir() else one)
    raise EventDataError(
        "a folder of event files",
        f"{path}, with {', '.join(names[:5]) or 'nothing'}",
        "Say what it is with --from.",
    )


def _first_bytes(path: Path, size: int = 65536) -> bytes:
    """The first bytes, unpacked if they are gzip."""
    try:
        return next(blocks(path, "a file of events", size), b"")
    except EventDataError:  # a damaged one is for its format's reader to explain
        with path.open("rb") as file:
            return file.read(size)


def _by_columns(path: Path) -> str:
    names = set(column_names(path))
    if {"timestamps", "labels"} <= names:
        return "hotpp"
    return "easytpp" if "time_since_start" in names else "fourpoint"


def _by_text(head: bytes, path: Path) -> str:
    first = head.split(b"\n", 1)[0].lower()
    if b"subject_id" in first and b"admittime" in first:
        return "mimic"
    if LOBSTER.search(path.name):
        return "lobster"
    if re.match(rb"P\thttps?:", head) or re.search(
        rb"^\d+\t\d+\t[^\n]*\t\d+\r?\n\s*\t\d+\t\d+\t", head, re.MULTILINE
    ):
        return "memetracker"
    return "fourpoint"
