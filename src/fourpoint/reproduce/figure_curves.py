"""The paper's figure of learning curves: test log-likelihood per event against epochs, on each real
stand-in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fourpoint.reproduce.cells import DONE, Record, write_table
from fourpoint.reproduce.drawing import Drawn
from fourpoint.reproduce.pictures import canvas, curves_plot, one_legend
from fourpoint.reproduce.plan import CURVES, LABELS, STANDS_FOR, Setting
from fourpoint.reproduce.tallies import tally


def draw(output: Path, setting: Setting, records: list[Record], real: Path | None) -> Drawn:
    """One panel per stand-in; HP, which is fitted without epochs, is a dotted line."""
    found = {
        (r["model"], r["data"]): r for r in records if r["kind"] == "curve" and r["status"] == DONE
    }
    sets = [data for data in STANDS_FOR if any(key[1] == data for key in found)]
    figure, panels = canvas(
        (max(1, len(sets)) + 1) // 2, 2, 11, 3.6 * ((max(1, len(sets)) + 1) // 2) + 0.8
    )
    rows: list[list[Any]] = []
    for data, ax in zip(sets, panels.flat, strict=False):
        curves = {}
        for model in CURVES:
            if (model, data) in found:
                arrays = found[model, data]["arrays"]
                curves[LABELS[model]] = (arrays["epoch"], arrays["log_likelihood_per_event"])
                rows += [
                    [data, model, *point]
                    for point in zip(
                        arrays["epoch"], arrays["log_likelihood_per_event"], strict=True
                    )
                ]
        level = tally(
            [r for r in records if r["seed"] == 0], "hawkes", data, "log_likelihood_per_event"
        )
        curves_plot(
            ax,
            f"{data} (stands in for {STANDS_FOR[data]})",
            curves,
            {"HP": level.mean} if level.values else {},
        )
    for ax in list(panels.flat)[len(sets) :]:
        ax.set_visible(False)
    one_legend(figure, list(panels.flat)[: len(sets)])
    write_table(
        output / "figures" / "learning-curves.csv",
        ["data", "model", "epoch", "log_likelihood_per_event"],
        rows,
    )
    caption = (
        "Test log-likelihood while training, first seed: the fit of the tables trained again "
        "with nothing chosen by the test data. During "
        "training integrals have twelve nodes per gap and the paper's forms 128 features, so "
        "that the ends differ a little from the tables."
    )
    return Drawn("learning-curves", "Test likelihood against epochs", caption, figure)
