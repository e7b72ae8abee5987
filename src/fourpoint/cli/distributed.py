"""`fourpoint fit` in several processes: started here with --processes, or by torchrun.

All processes run the same command. The first one, of rank 0, prints and writes. A group that is
started again after one of them died resumes from the last validation.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import typer

from fourpoint.cli.checks import check_folder
from fourpoint.errors import UserError

OUTCOME = "FOURPOINT_OUTCOME"  # the file in which a process leaves its exit code
OPTION = "--processes"


def run_in_processes(processes: int, output: Path, resume: bool) -> None:
    """Run the command that was typed in so many processes."""
    from fourpoint.training.team import launch

    if processes < 1:
        raise UserError("at least one process", f"{OPTION} {processes}", "Type --processes 2, say.")
    if os.environ.get("RANK") is not None:
        raise UserError(
            "--processes or torchrun",
            "both",
            "Leave out --processes: torchrun has started the processes.",
        )
    check_folder(output, resume)
    code = launch(processes, _without_option(sys.argv[1:]))
    if code:
        raise typer.Exit(code)


def resumes(output: Path, resume: bool) -> bool:
    """Whether a fit goes on from what is in the folder: as asked for, or because its processes were
    started again.
    """
    from fourpoint.training.team import started_again

    if started_again():
        return True
    if os.environ.get("RANK", "0") == "0":
        check_folder(output, resume)
    return resume


@contextmanager
def only_the_first_speaks() -> Iterator[None]:
    """Notices and results are those of the first process; errors are everyone's."""
    if os.environ.get("RANK", "0") == "0":
        yield
        return
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def told_to_parent(code: int) -> int:
    """The exit code of an error that the user can correct. In a process that was started with
    --processes it is left to the one that started it, which does not start again what would fail
    again.
    """
    place = os.environ.get(OUTCOME)
    if place is None or code != 2:
        return code
    Path(place).write_text(str(code))
    return 0


def _without_option(words: list[str]) -> list[str]:
    """The words of a command without ``--processes N``.

    >>> _without_option(["fit", "a", "--processes", "2", "-o", "m", "--processes=4"])
    ['fit', 'a', '-o', 'm']
    """
    found = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == OPTION:
            skip = True
        elif not word.startswith(f"{OPTION}="):
            found.append(word)
    return found
