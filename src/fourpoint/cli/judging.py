"""The commands ``fourpoint difference`` and ``fourpoint anomalies``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fourpoint.cli.checks import check_picture
from fourpoint.cli.console import print_all, print_notice, save_plot, short_unit
from fourpoint.cli.options import ReadingOptions
from fourpoint.cli.reading import default_split, open_with_model, scored_part

if TYPE_CHECKING:
    from fourpoint.events import Dataset
    from fourpoint.models.base import PointProcess


def run_difference(
    folders: tuple[Path, Path],
    source: str,
    reading: ReadingOptions,
    split: str | None,
    seed: int,
    json: bool,
    plot: Path | None,
) -> None:
    """Score two saved models on the same data and print their difference."""
    check_picture(plot)
    from fourpoint.inference.differences import difference
    from fourpoint.storage.checkpoints import restore

    first, data = open_with_model(folders[0], source, reading)
    second = restore(folders[1])
    part = scored_part(first, data, split)
    found = difference(first, second, part, seed=seed, progress=True)
    save_plot(found.plot(unit=short_unit(data.unit)) if plot else None, plot)
    print_all(found.to_dict(), [found], json)


def run_anomalies(
    folder: Path,
    source: str,
    reading: ReadingOptions,
    split: str | None,
    output: Path | None,
    seed: int,
    json: bool,
) -> None:
    """Rank the sequences of a data set by how unlikely they are, and write the ranking."""
    from fourpoint.inference.anomalies import anomalies
    from fourpoint.inference.forecasts import check_table_file, write_parts

    if output is not None:
        check_table_file(output)
    model, data = open_with_model(folder, source, reading)
    part = _ranked_part(model, data, split)
    found = anomalies(model, part, seed=seed, progress=True)
    if output is not None:
        table = found.table()
        write_parts(output, table.schema, [table])
        print_notice(f"table: {output}")
    print_all(found.to_dict(), [found], json)


def _ranked_part(model: PointProcess, data: Dataset, split: str | None) -> Dataset:
    """The sequences to rank: the split that is asked for, or the test split, else all of them; a
    notice gives the number of those that the model was trained on.
    """
    from fourpoint.storage.trained_on import overlap

    cut = data.log is not None and bool(data.log.split_at)
    if split is not None or cut or default_split(data, "test") == "test":
        return scored_part(model, data, split)
    seen = overlap(model, data)
    if seen is not None:
        print_notice(
            f"{seen.sequences:,} of {len(data):,} sequences were in the training data, so that "
            "unusual ones among them seem a little more usual; --split held-out ranks the others "
            "alone"
        )
    return data
