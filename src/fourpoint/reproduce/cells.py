"""Records of cells: one JSON file each under ``cells/``, written whole or not at all.

A record holds what was run (kind, table, model, data, seed), how it ended (``done``, ``failed``
with its reason, or ``no data given``), its numbers, the settings, and where it ran: command, when
it ended, commit, machine, versions, seconds. Records of one setting in one folder belong together,
whichever machine made them: copying ``cells/`` folders into each other merges runs.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import subprocess
from functools import cache, partial
from pathlib import Path
from typing import Any

from fourpoint.atomic import make_folder, write_atomic
from fourpoint.events import UserError
from fourpoint.reproduce.plan import STANDS_FOR, SYNTHETIC, Cell
from fourpoint.sanitising import csv_cell

Record = dict[str, Any]
DONE, FAILED, NO_DATA = "done", "failed", "no data given"
# The environment variable that names the commit where the source is not in a git repository.
COMMIT = "FOURPOINT_COMMIT"


def record_of(cell: Cell, setting: str, status: str, *, reason: str = "", **found: Any) -> Record:
    """The record of a cell that ended with ``status``; ``found`` holds metrics, settings, seconds
    and further arrays.
    """
    head = dict(
        id=cell.id,
        kind=cell.kind,
        tables=_tables(cell),
        model=cell.model,
        data=cell.data,
        seed=cell.seed,
        setting=setting,
    )
    return {**head, "status": status, "reason": reason, **found, **whereabouts()}


def write_record(folder: Path, record: Record) -> None:
    """Write ``record`` under a temporary name and rename it, so that a killed run leaves no half of
    one.
    """
    write_text(
        folder / "cells" / f"{record['id']}.json",
        json.dumps(record, indent=1, allow_nan=False) + "\n",
    )


def read_records(folder: Path, setting: str) -> dict[str, Record]:
    """All records of ``folder`` by id. Raises :class:`UserError` where one is of another setting,
    or is not readable.
    """
    found: dict[str, Record] = {}
    for file in sorted((folder / "cells").glob("*.json")):
        try:
            record = json.loads(file.read_text())
            name = record["id"]
            kind = record["setting"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                "a record of a cell",
                f"{file}: {error}",
                "Delete the file; the next run fills it again.",
            ) from error
        if kind != setting:
            remedy = "Choose another folder with --output, or delete this one."
            raise UserError(
                f"results of the {setting} setting in {folder}",
                f"{file.name} of the {kind} setting",
                remedy,
            )
        found[name] = record
    return found


def write_results(folder: Path, records: list[Record]) -> None:
    """``results.json`` with all records (curves and arrays stay with the cells) and ``results.csv``
    with their numbers.
    """
    slim = [{key: value for key, value in record.items() if key != "arrays"} for record in records]
    write_text(folder / "results.json", json.dumps(slim, indent=1, allow_nan=False) + "\n")
    names = ["id", "kind", "model", "data", "seed", "setting"]
    names += ["status", "reason", "seconds", "commit"]
    metrics: set[str] = set()
    for record in records:
        numbers = record.get("metrics", {})
        metrics |= {key for key, value in numbers.items() if not isinstance(value, list | dict)}
    columns = sorted(metrics)
    rows = []
    for record in slim:
        numbers = record.get("metrics", {})
        rows.append(
            [record.get(name, "") for name in names] + [numbers.get(name, "") for name in columns]
        )
    write_table(folder / "results.csv", [*names, *columns], rows)


def write_table(file: Path, header: list[str], rows: list[list[Any]]) -> None:
    """A CSV file, whole or not at all."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([csv_cell(value) for value in row] for row in [header, *rows])
    write_text(file, out.getvalue())


def write_text(file: Path, text: str) -> None:
    """Text, whole or not at all, in a folder that is made where it is missing."""
    make_folder(file.parent)
    write_atomic(file, text)


@cache
def whereabouts() -> Record:
    """The commit of the source, the machine and the versions of what counts."""
    import numpy
    import torch

    import fourpoint

    processor = _processor()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if processor:
        machine += f", {processor}"
    versions = dict(
        fourpoint=fourpoint.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=numpy.__version__,
    )
    return dict(commit=_commit(), machine=machine, versions=versions)


def _tables(cell: Cell) -> list[str]:
    if cell.kind != "fit":
        return []
    found = []
    if cell.data in SYNTHETIC:
        found.append("table1")
    ablation = cell.model.endswith(("-dot", "-nn"))
    if (cell.data in SYNTHETIC or cell.data in STANDS_FOR) and not ablation:
        found.append("table2")
    return found


def _commit() -> str:
    """The commit of the repository that this file is in, with + where files differ from it; outside
    a repository the value of FOURPOINT_COMMIT.
    """
    package = Path(__file__).parents[1]
    git = partial(subprocess.run, cwd=package, capture_output=True, text=True, timeout=10)
    try:
        name = git(["git", "rev-parse", "--short=12", "HEAD"])
        changed = git(["git", "status", "--porcelain", "--", "."])
    except (OSError, subprocess.TimeoutExpired):
        return os.environ.get(COMMIT, "")
    if name.returncode != 0:
        return os.environ.get(COMMIT, "")
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
