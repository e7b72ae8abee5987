"""Files opened and written with care, by every reader, format and source.

A path that is missing, a folder or empty is refused with the file's name before anything is read,
and a packed file is unpacked up to the limit of :mod:`fourpoint.data.expansion`. What is written
appears whole or not at all.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path

from fourpoint.atomic import write_atomic
from fourpoint.data.expansion import Expansion
from fourpoint.events import EventDataError, UserError

GZIP = b"\x1f\x8b"


def check_file(path: Path, what: str, likely: Callable[[Path], object] = Path.exists) -> Path:
    """The path, if there is a file with something in it; else :class:`EventDataError` with the
    nearest names of ``likely`` files.
    """
    try:
        if path.is_dir():
            raise EventDataError(what, f"{path}, which is a folder", "Name one file in it.")
        if not path.exists():
            if path.parent.is_dir():
                here = {p.stem: p.name for p in sorted(path.parent.iterdir()) if likely(p)}
            else:
                here = {}
            near = [here[stem] for stem in get_close_matches(path.stem, here, n=2)]
            remedy = f"Did you mean {' or '.join(near)}?" if near else "Check the path."
            raise EventDataError(what, f"{path}, which does not exist", remedy)
        if path.stat().st_size == 0:
            raise EventDataError(
                what, f"{path}, which is empty (0 bytes)", "Write or download it again."
            )
    except OSError as error:
        raise EventDataError(
            what,
            f"{path}, which cannot be opened ({error.strerror})",
            "Check the path and its permissions.",
        ) from error
    return path


def contents(path: Path, what: str) -> bytes:
    """All bytes of a file, unpacked if it is gzip.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt.gz"
    >>> _ = file.write_bytes(gzip.compress(b"0 1.5"))
    >>> contents(file, "a text file")
    b'0 1.5'
    """
    return b"".join(blocks(path, what))


def blocks(path: Path, what: str, size: int = 2**24) -> Iterator[bytes]:
    """The bytes of a file in blocks of at most ``size``, unpacked if it is gzip; never the whole
    file in memory.
    """
    check_file(path, what)
    expansion = Expansion(path, what)
    total = 0
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == GZIP
            plain.seek(0)
            with gzip.open(plain) if packed else plain as stream:
                # No more is unpacked at once than the limit allows.
                while block := stream.read(min(size, expansion.limit + 1)):
                    total += len(block)
                    if packed:
                        expansion.count(len(block))
                    yield block
    except (OSError, EOFError, zlib.error) as error:
        received = f"{path}, which cannot be read after {total:,} bytes ({error})"
        raise EventDataError(what, received, "Write or download it again.") from error


def unreadable(
    path: Path, what: str, error: Exception | str, remedy: str = "Write or download it again."
) -> EventDataError:
    """The error for a file that is not what it should be, with the reason in one line."""
    reason = (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")[:160]
    return EventDataError(what, f"{path}, which cannot be read as one ({reason})", remedy)


def check_target(path: Path) -> None:
    """Refuse a path that no file can be written to."""
    if not path.parent.is_dir():
        raise UserError("a path in an existing folder", f"{path}", "Make the folder first.")
    if path.is_dir():
        raise UserError("the path of a file", f"{path}, which is a folder", "Name a file in it.")


def write_whole(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Write bytes, or what a function writes to a path, to a path that can be written to: never
    half a file.
    """
    check_target(path)
    write_atomic(path, content)
