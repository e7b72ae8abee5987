"""Table 1: the mean square error of the intensity on the four synthetic sets.

The error is the mean over fresh sequences and 200 midpoints of the window of (lambda - lambda*)^2,
as `fourpoint evaluate --truth` has it. The oracle scores 0, and the best constant rate about the
variance of the true intensity.
"""

from __future__ import annotations

from pathlib import Path

from fourpoint.reproduce.cells import Record, write_table
from fourpoint.reproduce.plan import LABELS, SYNTHETIC
from fourpoint.reproduce.published import TABLE1
from fourpoint.reproduce.tallies import tally

CAPTION = (
    "Mean square error of the intensity; lower is better, bold is lowest. Beside each the "
    "number that the paper prints, whose windows and "
    "normalisation it does not state. The variance of the true intensity is what a constant "
    "rate scores."
)


def table1(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: models down, data sets across, each with the paper's number."""
    header = ["model"] + [word for data in SYNTHETIC for word in (data, "paper")]
    rows = []
    tallies = {(m, d): tally(records, m, d, "intensity_mse") for m in LABELS for d in SYNTHETIC}
    best = {
        d: min((t.mean for (_, data), t in tallies.items() if data == d and t.values), default=None)
        for d in SYNTHETIC
    }
    for model, label in LABELS.items():
        row = [label]
        for data in SYNTHETIC:
            found, printed = tallies[model, data], TABLE1[data].get(model)
            text = found.text()
            row += [
                f"**{text}**" if found.values and found.mean == best[data] else text,
                "" if printed is None else f"{printed:,g}",
            ]
        rows.append(row)
    variances = [tally(records, "poisson", d, "intensity_variance") for d in SYNTHETIC]
    rows.append(
        ["variance of the true intensity", *(word for v in variances for word in (v.text(), ""))]
    )
    rows.append(["oracle", *("0", "") * len(SYNTHETIC)])
    return header, rows


def write_table1(folder: Path, records: list[Record]) -> None:
    """``table1.csv``: one row per model and data set, with mean, interval and the paper's
    number.
    """
    rows = []
    for data in SYNTHETIC:
        for model in LABELS:
            found = tally(records, model, data, "intensity_mse")
            printed = TABLE1[data].get(model, "")
            rows.append(
                [
                    data,
                    model,
                    *(_plain(v) for v in (found.mean, found.half)),
                    len(found.values),
                    printed,
                    "done" if found.values else found.status,
                ]
            )
    write_table(
        folder / "table1.csv",
        ["data", "model", "intensity_mse", "half_width", "seeds", "paper", "status"],
        rows,
    )


def _plain(value: float) -> str:
    return "" if value != value else repr(value)
