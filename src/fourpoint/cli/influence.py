"""The command ``fourpoint influence``: which type of event leads to which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fourpoint.atomic import check_new_file
from fourpoint.cli.checks import check_picture, one_of
from fourpoint.cli.console import print_all, print_notice, save_plot
from fourpoint.cli.options import ReadingOptions
from fourpoint.cli.reading import open_with_model

CORRECTIONS: tuple[Literal["by", "bh"], ...] = ("by", "bh")


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    fdr: float
    correction: str
    level: float
    horizon: str | None
    seed: int
    json: bool
    plot: Path | None
    output: Path | None


def run_influence(folder: Path, source: str, reading: ReadingOptions, asked: Asked) -> None:
    """Read, compute, print, draw and write."""
    check_picture(asked.plot)
    if asked.output is not None:
        check_new_file(asked.output, (".csv",), "a table as CSV", "influence.csv")
    correction = one_of("--correction", asked.correction, CORRECTIONS)
    from fourpoint.events.dates import in_units
    from fourpoint.inference.influences import influence
    from fourpoint.inference.uncertainties import Uncertainty
    from fourpoint.models import Hawkes

    model, events = open_with_model(folder, source, reading)
    horizon = None if asked.horizon is None else in_units(asked.horizon, events.unit)
    draws = None
    if not isinstance(model, Hawkes):
        if Uncertainty.beside(folder):
            draws = Uncertainty.restore(folder)
        else:
            print_notice(
                "parameters are treated as known, so that tiny effects are edges too: run "
                "`fourpoint uncertainty` on the model and the data first to include theirs"
            )
    found = influence(
        model,
        events,
        level=asked.level,
        fdr=asked.fdr,
        correction=correction,
        horizon=horizon,
        uncertainty=draws,
        seed=asked.seed,
        progress=True,
    )
    print_all(found.to_dict(), [found], asked.json)
    if asked.plot is not None:
        import matplotlib.pyplot as plt

        from fourpoint.plots.charts import look

        size = min(3.6 + 0.26 * len(found.names), 10.0)
        with look():
            _, (left, right) = plt.subplots(1, 2, figsize=(2.2 * size, size), layout="constrained")
            found.plot(left)
            found.plot_graph(right)
        save_plot(left, asked.plot)
    if asked.output is not None:
        found.write(asked.output)
        print_notice(f"table: {asked.output}")
