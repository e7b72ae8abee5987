"""MIMIC-III's ``ADMISSIONS.csv``: each patient a sequence, each admission to hospital an event.

The paper takes "2,246 patients with at least three visits" and calls each visit an event, without
types. So does this converter by default; the type of admission or the diagnosis can be had as the
mark. Times are days since the patient's first admission (dates are shifted per patient, so that
only differences mean anything), hence every sequence has an event at 0 and
its window is inferred: from 0 to the last admission. When a patient stopped being followed is not
in the file.

Where the file comes from and under which terms: docs/sources/mimic.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.sample import Sample
from fourpoint.data.sources.sheets import Sheet, grouped, named, read_sheet
from fourpoint.events import Dataset, EventDataError, MarkSpace, UserError

WHAT = "MIMIC's ADMISSIONS.csv"
COLUMNS = {"subject_id": (), "admittime": (), "admission_type?": (), "diagnosis?": ()}
DAY = 86_400_000_000  # in microseconds
Mark = Literal["none", "type", "diagnosis"]


def matches(sample: Sample) -> bool:
    """Whether a file looks like MIMIC-III's admissions, by its header."""
    header = sample.head.split(b"\n", 1)[0].lower()
    return sample.is_text and b"subject_id" in header and b"admittime" in header


def read(
    path: str | Path, /, *, mark: Mark = "none", visits: int = 3, types: int = 20
) -> tuple[Dataset, list[str]]:
    """Read ``ADMISSIONS.csv`` (or MIMIC-IV's ``admissions.csv``), plain or gzip.

    Args:
        path: the file.
        mark: what the mark of a visit is: "none" (as in the paper), "type" (ADMISSION_TYPE) or
        "diagnosis" (DIAGNOSIS).
        visits: patients with fewer visits are left out, and counted.
        types: with "diagnosis", how many of the most frequent are kept apart; the rest are "other".

    Returns:
        The patients in order of first appearance, in days, and notes on them. Fails with
        :class:`EventDataError` that names the file and the line.
    """
    if mark not in get_args(Mark):
        raise UserError(f"mark {', '.join(get_args(Mark))}", f"{mark!r}", "Use one of them.")
    if visits < 1 or types < 1:
        raise UserError(
            "at least one visit and one type", f"visits={visits}, types={types}", "Raise them."
        )
    source = Path(path)
    sheet = read_sheet(source, WHAT, COLUMNS)
    encoded = sheet.texts("subject_id").dictionary_encode()
    codes = np.asarray(encoded.indices).astype(np.int64)
    ids = encoded.dictionary.to_pylist()
    stamps = sheet.stamps("admittime")
    first = np.full(len(ids), np.iinfo(np.int64).max)
    np.minimum.at(first, codes, stamps)
    times = (stamps - first[codes]) / DAY
    counts = np.bincount(codes, minlength=len(ids))
    kept = np.flatnonzero(counts >= visits)
    if not len(kept):
        received = f"{source}: {len(ids):,} patients with at most {counts.max()}"
        raise EventDataError(f"patients with at least {visits} visits", received, "Lower visits.")
    rows = np.flatnonzero(counts[codes] >= visits)
    code = np.searchsorted(kept, codes[rows])
    order, offsets, late = grouped(code, times[rows], len(kept))
    marks, space = _marks(sheet, mark, types, rows)
    last = times[rows][order][offsets[1:] - 1]
    data = Dataset(
        times[rows][order],
        marks[order],
        offsets,
        np.zeros(len(kept)),
        np.where(last > 0, last, 1.0),
        space,
        ids=tuple(str(ids[i]) for i in kept),
        inferred=True,
        unit="days",
        name="mimic",
    )
    return data, _notes(data, len(ids), visits, late)


def _marks(
    sheet: Sheet, mark: Mark, types: int, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], MarkSpace]:
    if mark == "none":
        return np.zeros(len(rows), dtype=np.int64), MarkSpace()
    column = "admission_type" if mark == "type" else "diagnosis"
    if column not in sheet.table.column_names:
        raise EventDataError(
            f"{WHAT} with a column {column!r}",
            f"{sheet.source}: none",
            "MIMIC-IV has no diagnoses there: use mark=type.",
        )
    return named(sheet.texts(column).take(rows), types if mark == "diagnosis" else None)


def _notes(data: Dataset, patients: int, visits: int, late: int) -> list[str]:
    notes = [
        (
            f"{len(data):,} of {patients:,} patients have at least {visits} visits; the others "
            "are left out (--set visits=N)"
        )
    ]
    if late:
        notes.append(
            f"{late:,} admissions came after a later one of the same patient and were "
            "sorted by time"
        )
    return [*notes, "days since each patient's first admission, which is an event at 0"]
