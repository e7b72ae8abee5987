"""Figures of the theory: unbiased estimates, the largest error against D with its bound, and what
models remember.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fourpoint.reproduce.cells import DONE, Record, write_table
from fourpoint.reproduce.drawing import Drawn
from fourpoint.reproduce.pictures import canvas, error_plot, means_plot, memory_plot
from fourpoint.reproduce.plan import LABELS, REMEMBERING

Experiments = dict[str, Record]


def draw_propositions(output: Path, records: list[Record]) -> Drawn | None:
    """Proposition 1 on the left for two spectra, Proposition 2 on the right; None where they were
    not run.
    """
    done = {r["data"]: r for r in records if r["kind"] == "theory" and r["status"] == DONE}
    if not {"proposition1", "proposition2"} <= set(done):
        return None
    one, two = done["proposition1"]["arrays"], done["proposition2"]["metrics"]["rows"]
    figure, panels = canvas(1, 3, 13, 4)
    for ax, spectrum in zip(panels[0, :2], ("gaussian", "cauchy"), strict=True):
        means = {
            f"{phase} phases": (
                one[f"{spectrum}_{phase}_mean"],
                one[f"{spectrum}_{phase}_standard_error"],
            )
            for phase in ("paired", "random")
        }
        means_plot(
            ax, f"Proposition 1: {spectrum} spectrum", one["lag"], one[f"{spectrum}_exact"], means
        )
    measured = {
        f"{phase} phases": [row[f"{phase}_95"] for row in two] for phase in ("paired", "random")
    }
    bound = [np.nan if row["bound"] is None else row["bound"] for row in two]
    error_plot(panels[0, 2], "Proposition 2", [row["features"] for row in two], measured, bound)
    write_table(
        output / "figures" / "theory.csv", list(two[0]), [list(row.values()) for row in two]
    )
    columns = list(one)
    write_table(
        output / "figures" / "theory-means.csv",
        columns,
        [list(row) for row in zip(*(one[c] for c in columns), strict=True)],
    )
    caption = (
        "Left and middle: the mean of estimates with 20 features each, over the kernel it "
        "estimates. Right: the largest error over the "
        "window, 95% quantile over draws, for both phases, and the bound, which is stated "
        "for paired phases."
    )
    return Drawn("theory", "Propositions 1 and 2", caption, figure)


def draw_memory(output: Path, records: list[Record]) -> Drawn | None:
    """What each model remembers of the first event; None where it was not run."""
    done = [
        r
        for r in records
        if r["kind"] == "claim" and r["data"].startswith("memory-") and r["status"] == DONE
    ]
    if not done:
        return None
    counts = sorted({int(r["metrics"]["events"]) for r in done})
    found = {
        (r["model"], int(r["metrics"]["events"])): float(r["metrics"]["remembered"]) for r in done
    }
    lines = {
        LABELS[m]: [found.get((m, n), np.nan) for n in counts]
        for m in REMEMBERING
        if any(key[0] == m for key in found)
    }
    figure, panels = canvas(1, 1, 8, 4)
    memory_plot(panels[0, 0], "A far event: who remembers it?", counts, lines)
    rows: list[list[Any]] = [[m, n, value] for (m, n), value in sorted(found.items())]
    write_table(output / "figures" / "memory.csv", ["model", "events_between", "remembered"], rows)
    caption = (
        "The first event is an A or a B; after it come events that tell nothing; and from .6 "
        "of the window on the rate of D depends on "
        "the first event alone. Shown is the log ratio of the two rates that a model gives, "
        "as a share of the true one: 1 is all of it, "
        "0 is forgotten."
    )
    return Drawn("memory", "A far event", caption, figure)
