"""A fit and its numbers: what every cell of the tables and of the learning curves is.

The model is built and trained as the setting says, scored on test data with a refined integral over
the whole window and, where the truth is known, against it: regret per event and the mean squared
error of the intensity at 200 midpoints, all by `fourpoint.inference.evaluation`. The paper's forms
are scored with their full 10,000 features, whose sums are read off a table (`tabled.py`). The model
of seed 0 is kept for the figures; a killed fit continues from its last validation.
"""

from __future__ import annotations

from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Dataset, MarkSpace, Sequence
from fourpoint.inference.evaluation import evaluate, intensity
from fourpoint.models import MODELS
from fourpoint.models.base import PointProcess
from fourpoint.ops.quadrature import Unconverged
from fourpoint.reproduce.cells import Record
from fourpoint.reproduce.plan import SYNTHETIC, Cell, Setting
from fourpoint.reproduce.sets import parts_of
from fourpoint.reproduce.tabled import tabled
from fourpoint.training.fitting import RECIPE, Recipe, fit


def fit_cell(cell: Cell, setting: Setting, output: Path, real: Path | None, device: str) -> Record:
    """Train and score the model of ``cell``; returns its metrics and settings, and its learning
    curve.
    """
    parts = parts_of(cell.data, setting, cell.seed, real)
    model = build(cell, setting, parts.train.marks)
    options = setting.train(cell.model, cell.data)
    folder = output / "models" / cell.id
    found = fit(
        model,
        parts.train,
        parts.dev,
        seed=cell.seed,
        folder=folder,
        resume=True,
        device=device,
        baselines=False,
        progress=False,
        **options,
    )
    scored = ready(model, device, float(parts.test.durations.max()))
    truth = cell.data if cell.data in SYNTHETIC else None
    numbers = scores(scored, parts.test, truth, setting.tolerance)
    numbers["oracle_log_likelihood_per_sequence"] = _oracle(numbers)
    _tidy(folder, cell)
    settings = dict(
        model=model.settings(),
        training=_recipe(model, options),
        data=parts.about,
        test_sequences=len(parts.test),
        device=_name(device),
        evaluation="scores read off a table" if scored is not model else "direct",
        stopped=found.stopped,
        best_step=found.best_step,
        notes=[
            note for note in dict.fromkeys(found.notes) if not note.startswith("nothing to resume")
        ],
    )
    return dict(metrics={k: v for k, v in numbers.items() if v is not None}, settings=settings)


def ready(model: PointProcess, device: str, longest: float) -> PointProcess:
    """``model`` as it is scored: on ``device``, and with tabled scores where it has 10,000
    features. What is fitted in closed form stays on the CPU, where scoring it takes no time.
    """
    if not model.fits_in_closed_form:
        model.to(device)
    return tabled(model, longest)


def scores(
    model: PointProcess, test: Dataset, truth: str | None, tolerance: float
) -> dict[str, Any]:
    """The numbers of `evaluate`; where an integral does not converge to ``tolerance``, to ten or a
    hundred times as much.

    A fast sinusoid that hardly decays, over a gap of a thousand mean gaps, may need that.
    ``integral_tolerance`` is the tolerance that was reached, and ``integral_error`` the error left.
    """
    for factor in (1, 10, 100):
        wanted = factor * tolerance
        try:
            report = evaluate(model, test, truth=truth, tolerance=wanted)
        except Unconverged:
            if factor == 100:
                raise
        else:
            break
    return {**report.to_dict("window"), "integral_tolerance": wanted}


def curve_cell(cell: Cell, setting: Setting, real: Path | None, device: str) -> Record:
    """The likelihood of the test data at every validation of the fit that the tables report.

    The steps of a fit depend on (seed, step) alone. So training once more, with the test data
    instead of the dev data and without early stopping, goes through the same weights and scores
    them on the test data; nothing is chosen by it.
    """
    parts = parts_of(cell.data, setting, cell.seed, real)
    model = build(cell, setting, parts.train.marks)
    options = {**setting.train(cell.model, cell.data), "patience": 10**9}
    found = fit(
        model,
        parts.train,
        parts.test,
        seed=cell.seed,
        progress=False,
        baselines=False,
        device=device,
        **options,
    )
    epochs, values = (
        [float(row[key]) for row in found.history] for key in ("epoch", "dev_log_likelihood")
    )
    settings = dict(
        model=model.settings(),
        training=_recipe(model, options),
        data=parts.about,
        device=_name(device),
    )
    return dict(
        metrics=dict(last=values[-1], best=max(values)),
        settings=settings,
        arrays=dict(epoch=epochs, log_likelihood_per_event=values),
    )


def build(cell: Cell, setting: Setting, marks: MarkSpace) -> PointProcess:
    """The model of ``cell``, untrained."""
    constructor = MODELS[cell.model]
    seeded = {"seed": cell.seed} if "seed" in signature(constructor).parameters else {}
    return constructor(marks, **setting.build(cell.model), **seeded)


def rates(
    model: PointProcess, sequence: Sequence, times: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The total rate at ``times`` given the events of ``sequence`` before each, (Q,)."""
    return np.asarray(intensity(model, sequence, times).sum(1))


def _recipe(model: PointProcess, options: dict[str, Any]) -> dict[str, Any]:
    if model.fits_in_closed_form:
        return {"by": "maximum likelihood"}
    chosen = {**RECIPE, **(model.recipe or {}), **options}
    chosen.pop("step_events", None)  # it decides the batch size where that is left open
    return asdict(Recipe(**chosen))


def _oracle(numbers: dict[str, Any]) -> float | None:
    """The oracle's likelihood per sequence, from that per event."""
    best = numbers.get("oracle_log_likelihood_per_event")
    return None if best is None else best * numbers["events"] / max(1, numbers["sequences"])


def _name(device: str) -> str:
    """``device`` with the name of the card, where it is one."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


def _tidy(folder: Path, cell: Cell) -> None:
    """Keep the model of the first seed for the figures, and none of the others."""
    if cell.seed != 0:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
