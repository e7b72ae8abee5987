"""What one fit knows: its history, the best weights, and the files from which a killed run goes on.

A run validates the model now and then, keeps the best weights (of the running mean where the recipe asks for one) and writes
everything that the next step depends on, so that a resumed run ends with the very weights of an unbroken one. Used by `training`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import numpy as np
import torch
from torch import nn

from fourpoint import checkpoints
from fourpoint.atomic import locked, make_folder, write_atomic
from fourpoint.events import Dataset, UserError
from fourpoint.likelihood import Convention, quick_log_likelihood
from fourpoint.narrow_peaks import look_for_narrow_peaks

VALIDATION_EVENTS = 20_000  # at most so many events of the development data are scored at each validation
DATA = dict(train="training data", dev="development data")  # whose fingerprints a run keeps
COLUMNS = ("step", "epoch", "seconds", "train_log_likelihood", "dev_log_likelihood", "events_per_second", "learning_rate")
IN_USE = "Wait until that fit has ended, or choose another folder."
P = ParamSpec("P")


class TrainingError(UserError):
    """Training that cannot go on; it names the step, the batch and the parameter."""


@dataclass
class Fit:
    """What a fit did: one row of history per validation (nats per event), the best step, and remarks in words."""

    history: list[dict[str, float]] = field(default_factory=list)
    best_step: int = 0
    best: float = -math.inf
    notes: list[str] = field(default_factory=list)
    stopped: str = ""

    def csv(self) -> str:
        """The history as CSV text."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.history)
        return out.getvalue()


class Recipe(NamedTuple):
    """How a model is trained; see :func:`fit`."""

    steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    warmup: int
    clip: float
    nodes: int
    validate_every: int
    patience: int
    mixed: bool
    epochs: float
    average: float
    spread: bool


class Run:
    """The state of one fit: what is validated, kept, written and read again."""

    def __init__(
        self, model: Any, train: Dataset, dev: Dataset, folder: Path | None, seed: int, recipe: Recipe, terms: dict[str, Any]
    ) -> None:
        self.model, self.train, self.folder, self.seed, self.terms = model, train, folder, seed, terms
        self.batch_size, self.mixed, self.convention = recipe.batch_size, recipe.mixed, terms["convention"]
        self.dev = dev.some(VALIDATION_EVENTS, seed)
        self.fit = Fit()
        self.best: dict[str, torch.Tensor] = {}
        self.guess: dict[str, torch.Tensor] = {}  # weights that training has to beat, and their scores
        self.guess_scores = torch.zeros(0, dtype=torch.float64)
        self.peak, self.scores = 0, torch.zeros(0, dtype=torch.float64)
        self.optimiser: torch.optim.Optimizer | None = None
        self.average, self.mean = recipe.average, list[torch.Tensor]()
        self.per_epoch = len(train.batches(self.batch_size, seed=0, mixed=self.mixed))
        self.mean_events = max(1.0, train.events / max(1, len(train)))
        self.tick = 0.0  # inside which events are moved about
        self._epoch: tuple[int, list[np.ndarray]] = (-1, [])

    def rows(self, step: int) -> np.ndarray:
        """The sequences of step ``step``: epochs are reshuffled, each from its own seed."""
        epoch, position = divmod(step, self.per_epoch)
        if self._epoch[0] != epoch:
            batches = self.train.batches(self.batch_size, seed=self.seed * 1_000_003 + epoch, mixed=self.mixed)
            self._epoch = (epoch, [batches[i % len(batches)] for i in range(self.per_epoch)])
        return self._epoch[1][position]

    def begin_mean(self) -> None:
        """The running mean begins at the first weights, or goes on from a killed run's."""
        if self.average and not self.mean:
            self.mean = [p.detach().clone() for p in self.model.parameters()]

    def move_mean(self, step: int) -> None:
        """One step of the running mean, which is a plain mean at first."""
        if self.mean:
            share = 1 - min(self.average, (step + 1) / (step + 10))
            torch._foreach_lerp_(self.mean, [p.detach() for p in self.model.parameters()], share)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model at the running mean, and afterwards where it was."""
        own = [p.detach().clone() for p in self.model.parameters()] if self.mean else []
        _copy(self.model, self.mean)
        yield
        _copy(self.model, own)

    def validate(self, row: dict[str, float], train_score: float) -> None:
        with self.averaged():
            self._validate(row, train_score)
        self.write(state=int(row["step"]))

    def _validate(self, row: dict[str, float], train_score: float) -> None:
        scores = _scores(self.model, self.dev, self.convention)
        score = float(scores.sum()) / max(1, self.dev.events)
        row["train_log_likelihood"], row["dev_log_likelihood"] = train_score, score
        self.fit.history.append({name: row[name] for name in COLUMNS})
        draw = len(self.scores) > 0 and score >= self.fit.best - 0.5 * _standard_error(scores - self.scores) / max(1, self.dev.events)
        if score > self.fit.best:
            self.fit.best, self.peak, self.scores = score, int(row["step"]), scores
        if score >= self.fit.best or draw:
            self.fit.best_step = int(row["step"])
            self.best = {k: v.detach().clone() for k, v in self.model.named_parameters()}
            self.write(model=True)

    def score_guess(self, guess: dict[str, torch.Tensor]) -> None:
        """Score a first guess of the weights, as step 0; training begins where it would have begun."""
        row = dict(step=0, epoch=0.0, seconds=0.0, events_per_second=0.0, learning_rate=0.0)
        own = [p.detach().clone() for p in self.model.parameters()]
        _copy(self.model, [guess[name] for name, _ in self.model.named_parameters()])
        self._validate(row, _score(self.model, self.train.some(VALIDATION_EVENTS, self.seed), self.convention))
        _copy(self.model, own)
        self.guess, self.guess_scores = dict(self.best), self.scores

    def _or_the_guess(self) -> None:
        """Keep the first guess where the best weights are ahead of it by less than a draw."""
        gain = self.scores - self.guess_scores if self.guess else self.scores
        if self.guess and (self.fit.best_step == 0 or float(gain.sum()) <= 0.5 * _standard_error(gain)):
            self.best, self.fit.best_step = self.guess, 0
            self.fit.notes.append("training found nothing clearly better than the first guess, which is kept")

    def stale(self) -> int:
        """Validations since the highest one."""
        return sum(row["step"] > self.peak for row in self.fit.history)

    def begin(self, resume: bool) -> None:
        """Write what is fitted before the first checkpoint, so that a run killed any time after can be resumed.

        An older model in the folder stays until the first validation, but is no longer what ``resume`` goes on from.
        """
        if self.folder is not None and not (resume and (self.folder / "training.json").is_file()):
            checkpoints.write_tensors(self.folder, "training", {}, dict(step=0, recipe=self.terms))

    def maximise(self, shown: Dataset) -> Fit:
        """A fit without gradient steps, to the training data as they are ``shown`` to the model."""
        began = time.monotonic()
        self.fit.notes += self.model.maximum_likelihood(shown)
        score, train_score = (
            _score(self.model, data, self.convention) for data in (self.dev, self.train.some(VALIDATION_EVENTS, self.seed))
        )
        seconds = max(1e-9, time.monotonic() - began)
        self.fit.history.append(dict(zip(COLUMNS, (1, 1.0, seconds, train_score, score, self.train.events / seconds, 0.0), strict=True)))
        self.fit.best, self.fit.best_step, self.fit.stopped = score, 1, "maximum likelihood"
        self.write(model=True)
        if self.folder:
            checkpoints.remove_tensors(self.folder, "training")
        return self.fit

    def finish(self, step: int) -> Fit:
        self._or_the_guess()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.best.get(name, parameter))
        self.model.to("cpu").eval()
        self.fit.stopped = self.fit.stopped or "all steps done"
        self.fit.notes += self.model.settle() if hasattr(self.model, "settle") else []
        self.fit.notes += look_for_narrow_peaks(self.model, self.train) if hasattr(self.model, "narrow") else []
        self.write(model=True)
        if self.folder:
            checkpoints.remove_tensors(self.folder, "training")
        return self.fit

    def finished(self) -> bool:
        """Whether the folder holds a finished run of the same recipe; its weights are then taken over."""
        if self.folder is None or not (self.folder / "model.json").is_file() or (self.folder / "training.json").is_file():
            return False
        done = checkpoints.about(self.folder)
        if not done.get("stopped"):
            return False
        self._same(done.get("recipe", {}))
        kept: Any = checkpoints.restore(self.folder)
        self.model.initialise(self.train)
        if hasattr(self.model, "settle"):
            self.model.settle(kept.settings()["eval_features"])
        self.model.load_state_dict(kept.state_dict())
        self.model.eval()
        checkpoints.remove_tensors(self.folder, "training")  # left where it was killed at the very end
        self.fit.notes.append("nothing to resume: the run in this folder had ended")
        self.fit.best_step, self.fit.stopped = done["best_step"], done["stopped"]
        return True

    def load(self) -> int:
        """Take up the state of a killed run; the step to go on from (0 where there is none)."""
        if self.folder is None or self.optimiser is None or not (self.folder / "training.json").is_file():
            self.fit.notes.append("nothing to resume: starting from the beginning")
            return 0
        tensors, info = checkpoints.read_tensors(self.folder, "training")
        self._same(info["recipe"])
        if info["step"] == 0:
            self.fit.notes.append("nothing to resume: starting from the beginning")
            return 0
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
        place = next(self.model.parameters()).device
        self.best = {k.removeprefix("best."): v.to(place) for k, v in tensors.items() if k.startswith("best.")}
        self.guess = {k.removeprefix("guess."): v.to(place) for k, v in tensors.items() if k.startswith("guess.")}
        self.guess_scores = tensors["guess_scores"]
        self.mean = [tensors[f"mean.{k}"].to(place) for k, _ in self.model.named_parameters()] if self.average else []
        state = self.optimiser.state_dict()
        for key, value in tensors.items():
            if key.startswith("adam."):
                _, index, name = key.split(".")
                state["state"].setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict(state)
        self.fit.history, self.fit.best, self.fit.best_step = info["history"], info["best"], info["best_step"]
        self.peak, self.scores = info["peak"], tensors["scores"]
        self.fit.notes.append(f"resumed at step {info['step']}")
        return int(info["step"])

    def _same(self, recipe: dict[str, Any]) -> None:
        for name, value in self.terms.items():
            if recipe.get(name) != value and name in DATA:
                raise TrainingError(
                    f"the {DATA[name]} of the run to resume, with the fingerprint {recipe.get(name)}",
                    f"other data, with the fingerprint {value}",
                    "Pass the data of the first call, or choose another folder.",
                )
            if recipe.get(name) != value:
                raise TrainingError(
                    f"{name}={recipe.get(name)}, as in the run to resume",
                    f"{value}",
                    "Repeat the first call with --resume, or choose another folder.",
                )

    def write(self, *, model: bool = False, state: int | None = None) -> None:
        if self.folder is None:
            return
        if model:
            windows = dict(start=float(self.train.starts.min()), stop=float(self.train.starts.min() + self.train.durations.max()))
            about = dict(
                unit=self.train.unit,
                data=self.train.name,
                **windows,
                events=self.train.events,
                sequences=len(self.train),
                log=None if self.train.log is None else self.train.log.to_dict(),
                recipe=self.terms,
                notes=self.fit.notes,
                best_step=self.fit.best_step,
                stopped=self.fit.stopped,
            )
            checkpoints.save(self.model, self.folder, about=about)
        if state is not None and self.optimiser is not None:
            tensors = {f"model.{k}": v for k, v in self.model.named_parameters()} | {f"best.{k}": v for k, v in self.best.items()}
            tensors |= {f"mean.{k}": v for (k, _), v in zip(self.model.named_parameters(), self.mean, strict=False)}
            tensors |= {f"guess.{k}": v for k, v in self.guess.items()}
            tensors |= dict(scores=self.scores, guess_scores=self.guess_scores)
            moments = self.optimiser.state_dict()["state"]
            tensors |= {f"adam.{i}.{k}": torch.as_tensor(v) for i, m in moments.items() for k, v in m.items()}
            info = dict(
                step=state,
                recipe=self.terms,
                settings=self.model.settings(),
                history=self.fit.history,
                best=self.fit.best,
                peak=self.peak,
                best_step=self.fit.best_step,
                notes=self.fit.notes,
            )
            checkpoints.write_tensors(self.folder, "training", tensors, info)
        write_atomic(self.folder / "history.csv", self.fit.csv())


def one_fit_at_a_time(fit: Callable[P, Fit]) -> Callable[P, Fit]:
    """``fit``, holding a lock on its ``folder``: a second fit into the same folder is refused.

    The lock ends with the process. A folder that is made for a fit that is refused is removed.
    """

    @wraps(fit)
    def alone(*arguments: P.args, **options: P.kwargs) -> Fit:
        given: Any = options.get("folder")
        if not given:
            return fit(*arguments, **options)
        folder = Path(given)
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        make_folder(folder)
        try:
            with locked(folder / ".fit.lock", f"the folder {folder}", IN_USE):
                return fit(*arguments, **options)
        finally:
            for made in missing:
                if any(made.iterdir()):
                    break
                made.rmdir()

    return alone


def fingerprint(data: Dataset) -> str:
    """A hash of times, marks, places and windows, by which data are known again.

    >>> from fourpoint.data.synthetic import simulate
    >>> a, b = simulate("hawkes", 2, seed=0), simulate("hawkes", 2, seed=1)
    >>> fingerprint(a) == fingerprint(a.select([0, 1])), fingerprint(a) == fingerprint(b)
    (True, False)
    """
    digest = hashlib.sha256(repr((data.marks.names, data.marks.box)).encode())
    for array in (data.times, data.mark_ids, data.lengths, data.starts, data.stops, data.places):
        if array is not None:
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _copy(model: nn.Module, values: list[torch.Tensor]) -> None:
    """Put ``values`` into the model's parameters; nothing where there are none."""
    with torch.no_grad():
        for parameter, value in zip(model.parameters() if values else (), values, strict=True):
            parameter.copy_(value)


def _score(model: Any, data: Dataset, convention: Convention = "window") -> float:
    """Log-likelihood in nats per event."""
    return float(_scores(model, data, convention).sum()) / max(1, data.events)


def _scores(model: Any, data: Dataset, convention: Convention = "window") -> torch.Tensor:
    """Log-likelihood of each sequence, in a fixed order."""
    model.eval()
    place = next(model.parameters()).device
    parts = [quick_log_likelihood(model, data.batch(rows).to(place), convention=convention) for rows in data.batches(128)]
    return torch.cat(parts).to("cpu", torch.float64)


def _standard_error(differences: torch.Tensor) -> float:
    """Of the sum of independent differences."""
    return float(differences.std(correction=0)) * math.sqrt(len(differences))
