"""The command ``fourpoint calibrate``: levels at which a saved model's intervals cover as they say,
kept in its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fourpoint.cli.checks import one_of
from fourpoint.cli.console import print_all, print_notice
from fourpoint.cli.options import ReadingOptions
from fourpoint.cli.reading import open_with_model, scored_part

if TYPE_CHECKING:
    from fourpoint.events import Dataset
    from fourpoint.inference.calibration import Method

METHODS: tuple[Method, ...] = ("auto", "split", "adaptive")


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    split: str | None
    method: str
    horizon: str | None
    windows: int
    events: int
    check: str | None
    seed: int
    json: bool


def run_calibration(folder: Path, source: str, reading: ReadingOptions, asked: Asked) -> None:
    """Calibrate, save and print."""
    from fourpoint.inference.calibration import calibrate, coverage
    from fourpoint.storage.checkpoints import about, save

    method = one_of("--method", asked.method, METHODS)
    model, data = open_with_model(folder, source, reading)
    part = scored_part(model, data, asked.split or _default_part(data))
    found = calibrate(
        model,
        part,
        method=method,
        horizon=asked.horizon,
        windows=asked.windows,
        events=asked.events,
        seed=asked.seed,
        progress=True,
    )
    numbers: dict[str, Any] = found.summary()
    blocks: list[Any] = [found]
    if asked.check is not None:
        scored = scored_part(model, data, asked.check)
        scores = coverage(model, scored, seed=asked.seed, progress=True)
        numbers["coverage"] = scores.to_dict()
        blocks.append(scores)
    save(model, folder, about=about(folder))
    print_all(numbers, blocks, asked.json)
    print_notice(f"kept in {folder}: forecasts and streams of this model use it")


def _default_part(data: Dataset) -> str | None:
    """The dev part where the data has parts, or was cut by time; else what `fit` kept."""
    cut = data.log is not None and bool(data.log.split_at)
    return "dev" if data.splits is not None or cut else None
