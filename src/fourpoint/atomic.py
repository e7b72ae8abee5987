"""Files that appear whole or not at all, and locks that end with the process that holds them.

A file is written in this order, and each step is on disk before the next begins:

    temporary file in the same folder (fsync)  ->  rename onto the path  ->  the folder (fsync)

The rename is the moment at which the new content exists. A process that is killed before it leaves
the old file and an orphaned temporary file, which the next process that writes into the folder
removes. A temporary file is known by its name, and an orphaned one by its lock: its writer holds
that until the rename, and the operating system frees it when the writer ends.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import select
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fourpoint.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: there are no such locks, and orphaned temporary files stay.
    fcntl = None  # type: ignore[assignment]

TEMPORARY = re.compile(r"\.fourpoint-[0-9a-f]{16}\.tmp")
# What network file systems without locks answer.
UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EBADF}

# Folders (device, inode) from which this process has removed orphaned files.
_swept: set[tuple[int, int]] = set()
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_swept.clear)


def write_atomic(
    path: str | os.PathLike[str],
    content: bytes | str | Callable[[Path], object],
    *,
    sync: bool = True,
) -> None:
    """Replace what ``path`` holds by ``content``: all of it or nothing.

    Args:
        content: bytes, text (written as UTF-8), or a function that writes to the path it is given.
        sync: whether the file is on disk, safe from a loss of power, when this returns. False is
            for files that nothing depends on once the process has ended.

    The folder must exist. A path that leads to a device or a pipe is written to directly. Raises
    OSError where the disk is full, say; the old file then stays, and no temporary one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(Path(folder) / "a.txt", "one")
    ...     write_atomic(Path(folder) / "a.txt", "two")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'two')]
    """
    path = Path(path)
    if _is_special(path):
        _write_special(path, content)
        return
    _remove_orphans(path.parent)
    draft, file = _new_temporary(path.parent)
    try:
        if callable(content):
            content(draft)
        else:
            write_all(file, _as_bytes(content))
        if sync:
            os.fsync(file)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
        os.close(file)
    if sync:
        sync_folder(path.parent)


def check_new_file(path: Path, endings: Collection[str], expected: str, example: str) -> None:
    """Raise :class:`UserError` for a file that cannot be written: without one of the ``endings``,
    or in a folder that does not exist.

    ``expected`` describes a file with such an ending, and ``example`` is a name that would do.
    """
    if path.suffix.lower() not in endings:
        raise UserError(expected, f"{path}", f"Choose another name, such as {example}.")
    check_place(path)


def check_place(path: Path) -> None:
    """Raise :class:`UserError` for a file in a folder that does not exist, or for a folder."""
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise UserError(
            "a file in an existing folder",
            f"{path}",
            "Make the folder first, or choose another name.",
        )


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Make ``folder`` and those above it where they are missing, and make their names durable."""
    folder = Path(folder)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)
    return folder


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A draft of the folder ``target``, which gets its name when the block ends without an error
    and is removed otherwise. ``target`` must not exist, and its parent must.

    >>> with tempfile.TemporaryDirectory() as place:
    ...     with new_folder(Path(place) / "made") as draft:
    ...         _ = (draft / "a.txt").write_text("one")
    ...     sorted(path.name for path in Path(place).rglob("*"))
    ['a.txt', 'made']
    """
    parent = target.absolute().parent
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=parent))
    try:
        yield draft
        draft.chmod(0o755)
        sync_folder(draft)
        draft.rename(target)
        sync_folder(parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_all(file: int, content: bytes) -> None:
    """Write every byte to an open file, however many the system takes at a time."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(file, rest) :]
        except BlockingIOError:
            select.select([], [file], [])


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the file system can."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(file)


def hold(file: int, what: str, remedy: str = "End it, or choose another file.") -> None:
    """Lock an open file for this process alone; the lock ends with the process, however it ends.

    Raises :class:`UserError` where another process holds it. Where the file system has no locks,
    nothing is refused.
    """
    if _lock(file) is False:
        raise UserError(
            f"{what} for this process alone", "one that another process is using", remedy
        )


@contextmanager
def locked(
    lock: Path, what: str, remedy: str = "End it, or choose another file."
) -> Iterator[None]:
    """Holds the lock file ``lock``, which is made and afterwards removed.

    Raises :class:`UserError` where another process has it. It is removed while it is held, and
    whoever gets it looks whether it is still there: so nobody holds a lock that is gone.
    """
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        hold(file, what, remedy)
        while not _is_file(file, lock):
            os.close(file)
            file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            hold(file, what, remedy)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(file)


@contextmanager
def locked_in_turn(lock: Path) -> Iterator[None]:
    """Holds the lock file ``lock`` once no other process or thread does.

    Where the file system has no locks, nothing is held: those who write at once then have no order.
    """
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(file, wait=True)
            if _is_file(file, lock):
                try:
                    yield
                    return
                finally:
                    lock.unlink(missing_ok=True)
        finally:
            os.close(file)


def _as_bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _is_special(path: Path) -> bool:
    """Whether ``path`` leads to something that a rename must not replace: a device, a pipe."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _write_special(path: Path, content: bytes | str | Callable[[Path], object]) -> None:
    if callable(content):
        content(path)
        return
    file = os.open(path, os.O_WRONLY)
    try:
        write_all(file, _as_bytes(content))
    finally:
        os.close(file)


def _new_temporary(folder: Path) -> tuple[Path, int]:
    """A new file in ``folder``, open and locked."""
    while True:  # between opening and locking another process may take it for an orphan
        draft = folder / f".fourpoint-{secrets.token_hex(8)}.tmp"
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if _lock(file) is not False and _is_file(file, draft):
            return draft, file
        os.close(file)


def _remove_orphans(folder: Path) -> None:
    """Remove the temporary files of processes that are gone, once for each process and folder."""
    status = folder.stat()
    key = (status.st_dev, status.st_ino)
    if fcntl is None or key in _swept:
        return
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name):
            _remove_if_orphaned(path)
    _swept.add(key)


def _remove_if_orphaned(draft: Path) -> None:
    try:
        no_links = getattr(os, "O_NOFOLLOW", 0)  # which Windows does not have
        file = os.open(draft, os.O_RDWR | no_links)
    except OSError:  # renamed meanwhile, or of another user
        return
    try:
        if _lock(file):
            draft.unlink(missing_ok=True)
    finally:
        os.close(file)


def _lock(file: int, *, wait: bool = False) -> bool | None:
    """Lock an open file: True, False where another process holds it, None without locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return None
        raise
    return True


def _is_file(file: int, path: Path) -> bool:
    """Whether an open file is the one that ``path`` leads to now."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
