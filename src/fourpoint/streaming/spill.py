"""Entities that are not in memory: one file each, written so that it is there whole or not at all. Used by `streaming.bank`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fourpoint.atomic import write_atomic
from fourpoint.events import UserError
from fourpoint.streaming.state import Arrays, pack, unpack


class Spill:
    """A folder of memories by name; ``owner`` is the fingerprint of the model that they belong to."""

    def __init__(self, folder: Path | str, owner: str) -> None:
        self.folder, self.owner = Path(folder), owner
        self.names: set[str] = set()

    def write(self, name: str, header: dict[str, Any], arrays: Arrays) -> None:
        """Put a memory away. Raises :class:`UserError` where it cannot be written; the memory is then where it was."""
        path = self._path(name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, pack("entity", self.owner, {**header, "entity": name}, arrays), sync=False)
        except OSError as error:
            raise UserError(f"a folder to spill to with room for {name!r}", f"{error}", "Make room, or raise the limit.") from error
        self.names.add(name)

    def read(self, name: str) -> tuple[dict[str, Any], Arrays]:
        """The memory of ``name``, which stays in its file. Raises :class:`UserError` where that is gone or damaged."""
        try:
            content = self._path(name).read_bytes()
        except OSError as error:
            raise UserError(f"the file of entity {name!r} in {self.folder}", f"{error}", "Restore the bank from its last state.") from error
        return unpack("entity", self.owner, content)

    def forget(self, name: str) -> None:
        """Delete a memory."""
        self.names.discard(name)
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        """Names may hold anything, so that files are called by their hash."""
        return self.folder / f"{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}.state"
