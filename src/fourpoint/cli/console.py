"""What the commands print: results on stdout, notices and errors on stderr, tables and pictures.

An error that the user can correct is printed in its three clauses, without a traceback. Heavy
imports stay inside the functions, so that ``fourpoint --help`` starts fast.
"""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fourpoint.atomic import write_atomic
from fourpoint.errors import UserError
from fourpoint.report.printing import plain_console, text_table
from fourpoint.sanitising import console_lines, console_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import RenderableType
    from rich.table import Table

NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)
# The three clauses of an error in the mathematics, which is not a UserError.
CLAUSES = re.compile(r"expected (.*?); received (.*?)\. ([A-Z].*)", re.DOTALL)


def print_result(what: RenderableType) -> None:
    """Print a result, on stdout; text is not wrapped, so that pipes get whole lines."""
    if isinstance(what, str):
        sys.stdout.write(console_lines(what) + "\n")
        return
    plain_console().print(what)


def print_notice(line: str, style: str = "dim") -> None:
    """Print a notice of one line, on stderr."""
    plain_console(stderr=True).print(console_text(line), style=style, soft_wrap=True)


def open_standard_streams() -> None:
    """Make sure that input, output and errors are open, as a shell may have closed them (``2>&-``).

    A closed one leaves its number to the next file that is opened, and messages of libraries would
    end up in that file. Input and errors become the null device. Output that is closed is refused
    before anything is computed, as results have nowhere to go.
    """
    closed = set()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            closed.add(name)
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            raw = io.FileIO(number, "r" if name == "stdin" else "w", closefd=False)
            buffer = io.BufferedReader(raw) if name == "stdin" else io.BufferedWriter(raw)
            text = io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace")
            setattr(sys, name, text)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not Unicode
    if "stdout" in closed:
        report_error(
            UserError(
                "a standard output for results",
                "a closed one",
                "Redirect it to a file, or to /dev/null.",
            )
        )
        raise SystemExit(2)


def abandon_stdout() -> None:
    """Discard what could not be written: Python would try again at exit, and print an error."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def report_error(error: Exception) -> int | None:
    """Print an error that has a message for the user; returns its exit code, or None for a fault
    of the program.
    """
    known = _as_user_error(error)
    if known is not None:
        print_notice(f"  expected: {known.expected}", style="")
        print_notice(f"  received: {known.received}", style="")
        print_notice(f"what to do: {known.remedy}", style="bold")
        return 2
    if isinstance(error, ArithmeticError):
        print_notice(f"{type(error).__name__}: {error}", style="red")
        return 1
    return None


def _as_user_error(error: Exception) -> UserError | None:
    """The error in three clauses, if it is one that the user can do something about."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError):
        remedy = "Check the path, its permissions and free space."
        return UserError("files and folders that can be read and written", f"{error}", remedy)
    out_of_memory = isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))
    if isinstance(error, MemoryError) or out_of_memory:
        received = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = (
            "Use fewer events or types, a smaller batch or model (--set), or a machine with more "
            "memory."
        )
        return UserError("data and a model that fit into memory", received, remedy)
    if isinstance(error, ArithmeticError):
        # An integral that does not converge, or a rate that explodes.
        clauses = CLAUSES.fullmatch(str(error))
        return None if clauses is None else UserError(*clauses.groups())
    return None


def print_all(numbers: Mapping[str, object], blocks: Sequence[RenderableType], json: bool) -> None:
    """The numbers as strict JSON, or the blocks as tables with a line between them."""
    from fourpoint.strict_json import dumps

    if json:
        print_result(dumps(numbers))
        return
    for n, block in enumerate(blocks):
        if n:
            print_result("")
        print_result(block)


def save_plot(ax: Axes | None, file: Path | None) -> None:
    """Write a picture; a file is never half of one."""
    if ax is None or file is None:
        return
    import matplotlib.pyplot as plt

    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("expected axes of a figure; received axes that were removed from theirs")
    kind = file.suffix.removeprefix(".").lower()
    draw = partial(figure.savefig, format=kind, bbox_inches="tight", dpi=200)
    try:
        with warnings.catch_warnings():
            # Characters that the font does not have are drawn as boxes; a warning would not help.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            write_atomic(file, draw)
    finally:
        plt.close(figure)
    print_notice(f"picture: {file}")


def short_unit(unit: str) -> str:
    """A unit as axes write it."""
    return {"hours": "h", "minutes": "min", "seconds": "s", "days": "d"}.get(unit, unit)


def catalogue() -> list[Table]:
    """What comes with Fourpoint: the embedded data sets, and the processes whose truth is known."""
    from fourpoint.data.datasets import available
    from fourpoint.data.synthetic import PROCESSES

    bold: dict[str, Any] = dict(title_justify="left", title_style="bold", box=None, pad_edge=False)
    sets = text_table("Embedded data sets", **bold)
    sets.add_column("name", style="cyan", no_wrap=True)
    sets.add_column("what it is")
    for name, line in available().items():
        sets.add_row(name, line)
    processes = text_table("\nProcesses with a known truth", **bold)
    processes.add_column("name", style="cyan", no_wrap=True)
    processes.add_column("rate, on [0, 1) unless stated")
    processes.add_column("mean count", justify="right")
    for process in PROCESSES.values():
        processes.add_row(
            process.name,
            process.description,
            "" if process.mean_count is None else f"{process.mean_count:.1f}",
        )
    return [sets, processes]
