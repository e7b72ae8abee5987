"""What a file or folder shows at first sight: its name, its first bytes and its columns.

Each format and source has a function ``matches`` that recognises its files by such a sample, so
that ``fourpoint.data.formats.convert`` can guess what the user does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fourpoint.data.files import blocks, check_file
from fourpoint.events import EventDataError

PARQUET = b"PAR1"
SAMPLED = 65536  # first bytes of a file


@dataclass(frozen=True)
class Sample:
    """A path, and what is known of it without reading it all.

    ``names`` are the files of a folder or a pattern, and None for a file; ``head`` are the first
    bytes of a file, unpacked if they are gzip; ``columns`` are those of a Parquet file, or of the
    first one in a folder.
    """

    path: Path
    names: tuple[str, ...] | None = None
    head: bytes = b""
    columns: frozenset[str] = frozenset()

    def has_file(self, *endings: str) -> bool:
        """Whether a folder holds a file with one of these endings."""
        return any(name.endswith(endings) for name in self.names or ())

    @property
    def is_text(self) -> bool:
        """Whether this is a file of text other than JSON, by its first bytes."""
        known = (PARQUET, b"PK\x03\x04", b"\x93NUMPY", b"\x80")
        if self.names is not None or self.head.startswith(known):
            return False
        return self.head.lstrip()[:1] not in (b"[", b"{")


Matches = Callable[[Sample], bool]


def sample_of(path: Path) -> Sample:
    """A first look at a file, a folder, or a pattern of files such as ``time-*.txt``."""
    if "*" in path.name:
        return Sample(path, tuple(p.name for p in sorted(path.parent.glob(path.name))))
    if path.is_dir():
        names = tuple(p.name for p in sorted(path.iterdir()))
        tables = [path / name for name in names if name.endswith(".parquet")]
        columns = _columns(tables[0]) if tables else frozenset[str]()
        return Sample(path, names, columns=columns)
    head = _first_bytes(check_file(path, "a file of events"))
    columns = _columns(path) if head.startswith(PARQUET) else frozenset[str]()
    return Sample(path, head=head, columns=columns)


def _first_bytes(path: Path) -> bytes:
    try:
        return next(blocks(path, "a file of events", SAMPLED), b"")
    except EventDataError:  # The reader of its format explains what is damaged.
        with path.open("rb") as file:
            return file.read(SAMPLED)


def _columns(path: Path) -> frozenset[str]:
    """The columns of a Parquet file, or of the first one in a folder; none if it is not one."""
    file = next(iter(sorted(path.glob("*.parquet"))), path) if path.is_dir() else path
    try:
        return frozenset(pq.read_schema(file).names)
    except (pa.ArrowException, OSError, ValueError):
        return frozenset()
