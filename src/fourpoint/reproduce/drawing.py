"""What the figures share: the kept models, the sequence that is shown, and what a drawn figure
is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fourpoint.events import Dataset, Sequence
from fourpoint.reproduce.plan import Cell
from fourpoint.reproduce.tabled import tabled
from fourpoint.storage.checkpoints import restore

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn(NamedTuple):
    """A figure with its name as a file, its title and its caption."""

    name: str
    title: str
    caption: str
    figure: Figure


def kept_plain(output: Path, model: str, data: str) -> Any | None:
    """The model of the first seed, or None where it was not fitted."""
    folder = output / "models" / Cell("fit", model, data, 0).id
    return restore(folder) if (folder / "model.json").is_file() else None


def kept_model(output: Path, model: str, data: str, longest: float) -> Any | None:
    """The same, with tabled scores where that is of use for windows up to ``longest``."""
    found = kept_plain(output, model, data)
    return None if found is None else tabled(found, longest)


def middle_sequence(data: Dataset) -> Sequence:
    """The sequence of median length, the first of equals."""
    return data[int(np.argsort(data.lengths, kind="stable")[len(data) // 2])]
