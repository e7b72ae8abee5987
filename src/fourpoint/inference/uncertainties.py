r"""What was learned, and how surely: draws of a model's parameters, and bands from them.

A draw is a set of weights that the data allow for, by a Laplace approximation or by a bootstrap
(`training.uncertainty`). The band of anything that a model computes (a rate, the effect of an
event, a curve of the calendar) lies, at each point, between quantiles over draws.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import ArrayLike
from torch import Tensor

from fourpoint.events import Dataset, Sequence, UserError, check_marks, only_sequence
from fourpoint.inference.evaluation import intensity
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.base import PointProcess
from fourpoint.storage.checkpoints import read_tensors, write_tensors

NAME = "uncertainty"  # of the files beside a model
REMEDY = "Compute them with fourpoint uncertainty MODEL DATA, or fp.uncertainty and its save."


@dataclass(frozen=True)
class Band:
    """Lower and upper limits at ``level``, and the mean over draws, in the shape of what was asked
    for.
    """

    low: Float[ndarray, "*any"]
    high: Float[ndarray, "*any"]
    mean: Float[ndarray, "*any"]
    level: float


@dataclass(frozen=True)
class Uncertainty:
    """Draws of a model's parameters: ``draws`` by name, (D, ...) each, and the ``method`` that they
    come from, "laplace" or "bootstrap"; ``notes`` are remarks.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> model = Hawkes(baseline=1.0, branching=0.5, decay=2.0)
    >>> rates = torch.tensor([[[0.0]], [[0.1]], [[0.2]]], dtype=torch.float64)
    >>> found = Uncertainty("laplace", {"baseline.log_base": rates})
    >>> band = found.intensity(model, Sequence([], start=0.0, stop=1.0), [0.5], level=0.9)
    >>> band.mean.round(4).tolist(), band.low.round(4).tolist()
    ([[1.1089]], [[1.0]])
    """

    method: str
    draws: dict[str, Tensor]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.draws.values()), ()))

    def __repr__(self) -> str:
        numbers = sum(draws[0].numel() for draws in self.draws.values())
        count = f"{len(self)} draws of {numbers:,} parameters"
        return f"Uncertainty({count} by {self.method})"

    def members(self, model: PointProcess, most: int | None = None) -> Iterator[PointProcess]:
        """``model`` with the parameters of each draw in turn, of ``most`` draws at most, evenly
        chosen. It is one copy whose parameters change: use each before the next. Raises
        :class:`UserError` if the draws are of another model.
        """
        own = model.state_dict()
        for name, draws in self.draws.items():
            if name not in own or own[name].shape != draws.shape[1:]:
                raise UserError(
                    "draws of this model's parameters", f"{name} of another one", REMEDY
                )
        member = copy.deepcopy(model).eval()
        count = len(self)
        if most is not None:
            count = min(most, count)
        chosen = np.linspace(0, len(self) - 1, count).round().astype(int)
        for k in chosen.tolist():
            parameters = {name: draws[k] for name, draws in self.draws.items()}
            member.load_state_dict(parameters, strict=False)
            yield member

    def band(
        self,
        model: PointProcess,
        computed: Callable[[PointProcess], ArrayLike],
        level: float = 0.9,
    ) -> Band:
        """The band of whatever ``computed`` finds for a model."""
        if not 0 < level < 1:
            raise UserError("a level between 0 and 1", f"{level}", "Pass level=0.9, say.")
        found = []
        for member in self.members(model):
            with eval_mode(member):
                found.append(np.asarray(computed(member), dtype=np.float64))
        every = np.stack(found)
        # Quantiles with k / (D + 1) at the k-th of D draws, so that few draws are not too narrow.
        levels = ((1 - level) / 2, (1 + level) / 2)
        low, high = np.quantile(every, levels, axis=0, method="weibull")
        return Band(low, high, every.mean(0), level)

    def intensity(
        self,
        model: PointProcess,
        sequence: Sequence | Dataset,
        times: ArrayLike,
        level: float = 0.9,
    ) -> Band:
        """The band of the rate of every mark at ``times`` (Q,), given the events of ``sequence``
        before each: (Q, M), in events per unit of time.
        """
        check_marks(model.marks, only_sequence(sequence).space)
        return self.band(model, lambda member: intensity(member, sequence, times), level)

    def kernel(
        self, model: PointProcess, lags: ArrayLike, mark: int = 0, level: float = 0.9
    ) -> Band:
        """The band of what one event of type ``mark``, alone in its window, adds to the rate of
        every mark after ``lags`` (L,): (L, M), in events per unit of time.
        """
        return self.band(model, lambda member: event_effect(member, lags, mark), level)

    def calendar(
        self, model: PointProcess, sequence: Sequence, times: ArrayLike, level: float = 0.9
    ) -> Band:
        """The band of the effects of calendar and covariates at ``times`` (Q,) of ``sequence``, on
        a logarithmic scale: (Q, curves). Raises :class:`UserError` without effects.
        """
        return self.band(model, lambda member: calendar_effect(member, sequence, times), level)

    def save(self, folder: str | Path) -> None:
        """Write the draws beside the model in ``folder``, which must be the one they belong to."""
        info = {
            "method": self.method,
            "notes": list(self.notes),
            "model_sha256": _weights_hash(folder),
        }
        write_tensors(folder, NAME, self.draws, info)

    @staticmethod
    def beside(folder: str | Path) -> bool:
        """Whether there are draws beside the model in ``folder``."""
        return (Path(folder) / f"{NAME}.json").is_file()

    @staticmethod
    def restore(folder: str | Path) -> Uncertainty:
        """The draws beside the model in ``folder``. Raises :class:`UserError` if there are none,
        they are damaged, or the model was fitted again since.
        """
        if not Uncertainty.beside(folder):
            raise UserError("draws of the model's parameters", f"none in {folder}", REMEDY)
        tensors, info = read_tensors(folder, NAME)
        if info.get("model_sha256") != _weights_hash(folder):
            raise UserError(
                "draws of the parameters of the model beside them",
                f"those of another model in {folder}",
                REMEDY,
            )
        method = info.get("method")
        notes = info.get("notes")
        sizes = {len(draws) if draws.ndim else 0 for draws in tensors.values()}
        if not isinstance(method, str) or not isinstance(notes, list) or len(sizes) != 1:
            raise UserError("draws as fp.uncertainty saves them", f"others in {folder}", REMEDY)
        for draws in tensors.values():
            if not draws.is_floating_point() or not draws.isfinite().all():
                raise UserError("finite draws", f"others in {folder}", REMEDY)
        return Uncertainty(method, tensors, tuple(str(note) for note in notes))


def event_effect(model: PointProcess, lags: ArrayLike, mark: int = 0) -> Float[ndarray, "L M"]:
    """What one event of type ``mark``, at the start of its window and alone in it, adds to the rate
    of every mark after ``lags``.

    >>> from fourpoint.models.hawkes import Hawkes
    >>> model = Hawkes(baseline=1.0, branching=0.5, decay=2.0)
    >>> event_effect(model, [0.0, 1.0]).round(4).tolist()  # .5 * 2 * exp(-2 lag)
    [[1.0], [0.1353]]
    """
    asked = np.asarray(lags, dtype=np.float64).reshape(-1)
    stop = float(asked.max(initial=1.0))
    times = np.nextafter(asked, np.inf)
    alone = Sequence([0.0], [mark], start=0.0, stop=stop, space=model.marks)
    empty = Sequence([], start=0.0, stop=stop, space=model.marks)
    with_event = intensity(model, alone, times)
    without = intensity(model, empty, times)
    return with_event - without


def calendar_effect(
    model: PointProcess, sequence: Sequence, times: ArrayLike
) -> Float[ndarray, "Q R"]:
    """The effects of calendar and covariates at ``times`` of ``sequence``, as logarithms of
    factors.
    """
    if model.effects is None:
        raise UserError(
            "a model with calendar or covariates",
            f"{type(model).__name__} without",
            "Fit it with calendar=..., or read covariates.",
        )
    asked = torch.as_tensor(np.asarray(times, dtype=np.float64).reshape(1, -1))
    with eval_mode(model):
        found = model.effects.values(asked, sequence.batch().context)
    return np.asarray(found[0].double().numpy())


def _weights_hash(folder: str | Path) -> str:
    """The hash of the weights of the model in ``folder``."""
    file = Path(folder) / "model.json"
    if not file.is_file():
        raise UserError("a folder with a model", f"{folder}", "Save the model there first.")
    info = json.loads(file.read_text())
    return str(info.get("sha256"))
