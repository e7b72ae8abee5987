"""What `fourpoint reproduce` does: plan the cells, run those that are missing, and write tables,
figures and the report.

Everything goes to one folder: ``cells/`` (a record each), ``models/`` (fits of the first seed),
``results.json``, ``results.csv``, ``table1.csv``, ``table2.csv``, ``figures/`` (PNG, and the data
of each as CSV), ``report.md`` and ``report.html``. The report is of all records in the folder,
whichever command or machine made them.
"""

from __future__ import annotations

import math
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PureWindowsPath

from fourpoint.atomic import write_atomic
from fourpoint.events import UserError
from fourpoint.report.printing import plain_console
from fourpoint.reproduce import experiments
from fourpoint.reproduce.cells import (
    DONE,
    NO_DATA,
    Record,
    read_records,
    record_of,
    write_record,
    write_results,
)
from fourpoint.reproduce.figures import DRAWINGS, Drawn, draw_memory, draw_propositions
from fourpoint.reproduce.fitting import curve_cell, fit_cell
from fourpoint.reproduce.pace import Pace
from fourpoint.reproduce.plan import FIGURES, SETTINGS, Cell, Setting, cells_of
from fourpoint.reproduce.report import write_report
from fourpoint.reproduce.running import run_cells
from fourpoint.reproduce.tables import write_table1, write_table2
from fourpoint.sanitising import console_text

WHAT = ("table1", "table2", "figure", "theory", "all", "report")
# Experiments that look at a fitted model, and come after the fits.
LOOKING = ("features", "proposition2")


@dataclass(frozen=True)
class Options:
    """How to run: the setting's name, seeds, where results go and real files lie, what is selected,
    with how many processes and, in seconds, for how long at most (the report comes on top of that).
    """

    setting: str = "full"
    seeds: int = 3
    output: Path = Path("results")
    real: Path | None = None
    only: tuple[str, ...] = ()
    jobs: int = 1
    device: str = "cpu"
    fresh: bool = False
    progress: bool = True
    time_limit: float | None = None
    ray: str | None = None  # address of a cluster that takes the place of processes


@dataclass(frozen=True)
class Work:
    """What a worker needs to run a cell; it travels to fresh processes."""

    setting: Setting
    output: Path
    real: Path | None
    device: str

    def __call__(self, cell: Cell) -> Record:
        """Run one cell and return what it found."""
        if cell.kind == "fit":
            return fit_cell(cell, self.setting, self.output, self.real, self.device)
        if cell.kind == "curve":
            return curve_cell(cell, self.setting, self.real, self.device)
        if cell.data == "proposition1":
            return experiments.proposition1(self.setting)
        if cell.data == "proposition2":
            return experiments.proposition2(self.setting, self.output)
        if cell.data == "features":
            return experiments.features(self.setting, self.output)
        if cell.data == "thinning":
            return experiments.thinning(self.setting)
        return experiments.memory(cell, self.setting, self.device)


def portable_command(words: Sequence[str]) -> str:
    """The command as typed, with DIR in place of each absolute path, for records that are shared.

    >>> portable_command(["reproduce", "table1", "--real", "/data/sets", "--output=/data/out"])
    'fourpoint reproduce table1 --real DIR --output=DIR'
    """
    shared = ["fourpoint"]
    for word in words:
        option, equals, value = word.rpartition("=")
        absolute = value.startswith(("/", "~")) or PureWindowsPath(value).is_absolute()
        shared.append(f"{option}{equals}DIR" if absolute else word)
    return shlex.join(shared)


def reproduce(
    what: str, figure: str = "", options: Options | None = None, command: str = ""
) -> list[Record]:
    """Run what is missing of ``what`` (one of ``WHAT``; ``figure`` names a figure) and write
    everything; returns the records it needs.

    A record that is done, of the same setting, is kept; failed ones, and those that had no data,
    are tried again. With ``fresh`` those selected are run again in any case. Raises
    :class:`UserError` where an argument is unknown or a folder holds other results.
    """
    began = time.monotonic()
    options = options or Options()
    command = command or f"fourpoint reproduce {what}"
    setting = _check(what, figure, options)
    records = read_records(options.output, setting.name)
    cells: list[Cell] = []
    if what != "report":
        cells = cells_of(what, figure, options.seeds, options.real is not None, setting)
    chosen = [cell for cell in cells if cell.matches(list(options.only))]
    if options.only and not chosen and what != "report":
        raise UserError(
            "--only to match a cell",
            ", ".join(options.only),
            "Use names of models or data, MODEL/DATA, and * for anything.",
        )
    if options.fresh:
        _forget(options.output, chosen)
        records = read_records(options.output, setting.name)
    missing = [cell for cell in chosen if records.get(cell.id, {}).get("status") != DONE]
    work = Work(setting, options.output, options.real, options.device)

    def keep(cell: Cell, outcome: Record) -> None:
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        record = record_of(cell, setting.name, command=command, ended=ended, **outcome)
        write_record(options.output, record)

    pace = Pace()
    left: list[Cell] = []
    until = began + (math.inf if options.time_limit is None else options.time_limit)
    for stage in (False, True):
        some = [cell for cell in missing if (cell.data in LOOKING) is stage]
        left += run_cells(
            some,
            work,
            keep,
            jobs=options.jobs,
            progress=options.progress,
            until=until,
            pace=pace,
            ray=options.ray,
            gpus=1.0 if options.device.startswith("cuda") else 0.0,
        )
    records = read_records(options.output, setting.name)
    everything = [records[name] for name in sorted(records)]
    asked = FIGURES if what in ("all", "report") else (figure,)
    _write_all(options, setting, everything, asked, command)
    if left and options.progress:
        _print_notice(
            f"{len(left):,} cells were left for lack of time: run the same command again to fill "
            "them"
        )
    if what == "report":
        return everything
    return [records[cell.id] for cell in chosen if cell.id in records]


def _check(what: str, figure: str, options: Options) -> Setting:
    for name, value, allowed in (
        ("WHAT", what, WHAT),
        ("the setting", options.setting, tuple(SETTINGS)),
    ):
        if value not in allowed:
            raise UserError(
                f"{name} to be one of {', '.join(allowed)}", f"{value!r}", "Choose one of them."
            )
    if what == "figure" and figure not in FIGURES:
        raise UserError(
            f"a figure among {', '.join(FIGURES)}", f"{figure!r}", "Choose one of them."
        )
    if what != "figure" and figure:
        raise UserError(f"nothing after {what}", f"{figure!r}", "Leave it out.")
    if options.seeds < 1 or options.jobs < 0:
        raise UserError(
            "at least one seed and no negative number of jobs",
            f"--seeds {options.seeds} --jobs {options.jobs}",
            "Raise them.",
        )
    if options.time_limit is not None and options.time_limit <= 0:
        raise UserError(
            "a time limit above 0 seconds",
            f"--time-limit {options.time_limit:g}",
            "Raise it, or leave it out.",
        )
    if options.real is not None and not options.real.is_dir():
        raise UserError("a folder of Parquet files", f"--real {options.real}", "Check the path.")
    if options.output.exists() and not options.output.is_dir():
        raise UserError(
            "a folder for the results",
            f"{options.output}, which is a file",
            "Choose another name with --output.",
        )
    return SETTINGS[options.setting]


def _forget(output: Path, cells: list[Cell]) -> None:
    for cell in cells:
        (output / "cells" / f"{cell.id}.json").unlink(missing_ok=True)
        shutil.rmtree(output / "models" / cell.id, ignore_errors=True)


def _write_all(
    options: Options, setting: Setting, records: list[Record], asked: tuple[str, ...], command: str
) -> None:
    import matplotlib.pyplot as plt

    output = options.output
    write_results(output, records)
    write_table1(output, records)
    write_table2(output, records)
    drawn = _draw_all(options, setting, records, asked)
    for one in drawn:
        draw = partial(one.figure.savefig, format="png", dpi=150)
        write_atomic(output / "figures" / f"{one.name}.png", draw)
    page = write_report(output, setting, records, drawn, command)
    plt.close("all")
    if options.progress:
        _print_summary(records, page)


def _draw_all(
    options: Options, setting: Setting, records: list[Record], asked: tuple[str, ...]
) -> list[Drawn]:
    """The figures asked for and those drawn before, as far as there is something to draw."""
    drawn: list[Drawn | None] = []
    there = {
        (r["kind"], r["model"], r["data"])
        for r in records
        if r["status"] == DONE and r["seed"] == 0
    }
    folder = options.output / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        needed = {
            (c.kind, c.model, c.data)
            for given in (True, False)
            for c in cells_of("figure", name, 1, given, setting)
        }
        if needed & there and (name in asked or (folder / f"{name}.png").is_file()):
            drawn.append(DRAWINGS[name](options.output, setting, records, options.real))
    drawn += [draw_propositions(options.output, records), draw_memory(options.output, records)]
    return [one for one in drawn if one is not None]


def _print_summary(records: list[Record], page: Path) -> None:
    done = sum(r["status"] == DONE for r in records)
    for record in records:
        if record["status"] not in (DONE, NO_DATA):
            _print_notice(f"failed: {record['id']}: {record['reason']}", "yellow")
    without = sum(r["status"] == NO_DATA for r in records)
    more = f", {without} without data (--real DIR)" if without else ""
    _print_notice(f"{done:,} of {len(records):,} cells done{more}; the report: {page}")


def _print_notice(text: str, style: str = "") -> None:
    plain_console(stderr=True).print(console_text(text), style=style or None, soft_wrap=True)
