"""Commands that start processes of their own, which may outlive them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 300.0  # seconds after which a command is taken for one that does not end


@dataclass
class Session:
    """A running command. Its output goes to files: a pipe would stay open, and whoever reads it
    would wait, for as long as any descendant of the command lives.
    """

    process: subprocess.Popen[bytes]
    folder: Path

    def wait(self) -> int:
        """The exit code; raises TimeoutExpired with what was printed until then."""
        try:
            return self.process.wait(LONGEST)
        except subprocess.TimeoutExpired as error:
            raise subprocess.TimeoutExpired(
                error.cmd, error.timeout, self.stdout.encode(), self.stderr.encode()
            ) from None

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")


@contextlib.contextmanager
def session(words: list[str], **settings: Any) -> Iterator[Session]:
    """Start a command in a session of its own; all processes of that session are killed at the
    end of the block.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
                **settings,
            )
        try:
            yield Session(process, folder)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
