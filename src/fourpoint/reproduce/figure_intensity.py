"""The paper's figure of recovered intensities: every model on one fresh sequence of each synthetic
set, over the true rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fourpoint.data.synthetic import process
from fourpoint.reproduce.cells import Record, write_table
from fourpoint.reproduce.drawing import Drawn, kept_model, middle_sequence
from fourpoint.reproduce.fitting import rates
from fourpoint.reproduce.pictures import canvas, one_legend, recovered_plot
from fourpoint.reproduce.plan import LABELS, SYNTHETIC, Setting
from fourpoint.reproduce.sets import parts_of

POINTS = 401
OURS = ("dapp", "odapp", "spline-poisson", "poisson")


def draw(output: Path, setting: Setting, records: list[Record], real: Path | None) -> Drawn:
    """Eight panels: for each set the paper's models on the left and ours on the right."""
    figure, panels = canvas(len(SYNTHETIC), 2, 11, 13.5)
    rows: list[list[Any]] = []
    for data, pair in zip(SYNTHETIC, panels, strict=True):
        sequence = middle_sequence(parts_of(data, setting, 0, None).test)
        times = np.linspace(sequence.start, sequence.stop, POINTS)[1:]
        truth = rates(process(data).truth(), sequence, times)
        lines = {}
        for model in LABELS:
            fitted = kept_model(output, model, data, sequence.duration)
            if fitted is not None:
                lines[model] = rates(fitted, sequence, times)
        for name, side, ax in (
            ("the paper's models", False, pair[0]),
            ("ours, and Poisson", True, pair[1]),
        ):
            mine = {LABELS[m]: y for m, y in lines.items() if (m in OURS) == side}
            recovered_plot(ax, f"{data}: {name}", times, mine, truth, sequence.times)
        rows += [
            [data, "truth", *point] for point in zip(times.tolist(), truth.tolist(), strict=True)
        ]
        rows += [
            [data, model, *point]
            for model, y in lines.items()
            for point in zip(times.tolist(), y.tolist(), strict=True)
        ]
        rows += [[data, "event", t, ""] for t in sequence.times.tolist()]
    one_legend(figure, list(panels.flat))
    write_table(output / "figures" / "intensity.csv", ["data", "line", "time", "rate"], rows)
    caption = (
        "Rates recovered on the fresh sequence of median length of each set, each computed "
        "from the events before it alone. The broad grey "
        "line is the truth; triangles are events."
    )
    return Drawn("intensity", "Recovered intensities", caption, figure)
