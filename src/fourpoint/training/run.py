"""What one fit knows: its history, the best weights, and the files from which a killed run goes on.

A run validates the model now and then, keeps the best weights (of the running mean where the recipe
asks for one) and writes everything that the next step depends on, so that a resumed run ends with
the very weights of an unbroken one.

Whether a fitted model is explosive: a short simulation from it, beside the data.

A self-exciting model can have a good likelihood and still run away when it is simulated, since the
likelihood only looks at histories that were observed. A dozen sampled paths over a stretch of time
like that of the data show it: paths of a stable model have about as many events as the data, those
of
an explosive one reach any cap.

Whether a fitted rate has peaks so narrow that a rule for integrals might miss them.

Where times are whole seconds, say, a flexible model overfits the resolution. No rule finds a peak
between its nodes, and its error estimate knows nothing of it either. A model that can have such
peaks (`models.narrow`) is looked at once, when it is fitted: a few gaps are integrated by one rule
as it stands, and then with cuts at ticks and as many nodes as it takes. Where the two differ, the
model asks for those cuts from then on, in likelihoods, checks, samples and forecasts.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, cast

import numpy as np
import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fourpoint.atomic import locked, make_folder, write_atomic
from fourpoint.data.event_files import EventFiles
from fourpoint.events import Dataset, Sequence, UserError
from fourpoint.events.dequantise import dequantised
from fourpoint.events.windows import beginning
from fourpoint.inference.likelihood import Convention, log_likelihoods
from fourpoint.inference.sampling import sample_paths
from fourpoint.models import Hawkes
from fourpoint.models.base import PointProcess
from fourpoint.models.fit_limits import FitLimits
from fourpoint.models.narrow import NarrowPeaks
from fourpoint.ops.quadrature import Unconverged
from fourpoint.storage import checkpoints
from fourpoint.training.closed_forms import (
    ClosedForm,
    beside_poisson,
    clearly_positive,
    simplest_as_good,
    standard_error,
    unit_scores,
)
from fourpoint.training.sources import InMemory, Source
from fourpoint.training.team import Team

VALIDATION_EVENTS = (
    20_000  # at most so many events of the development data are scored at each validation
)
DATA = dict(train="training data", dev="development data")  # whose fingerprints a run keeps
COLUMNS = (
    "step",
    "epoch",
    "seconds",
    "train_log_likelihood",
    "dev_log_likelihood",
    "events_per_second",
    "learning_rate",
)
NEGLIGIBLE = 1e-4  # nats per event, which are none even if every block of time has them
MATTERS = 0.002  # nats per event, up to which two models are as good
REFIT_MARGIN = 1.5  # times the first fit of a closed form that fitting it again may take
IN_USE = "Wait until that fit has ended, or choose another folder."
P = ParamSpec("P")


class TrainingError(UserError):
    """Training that cannot go on; it names the step, the batch and the parameter."""


@dataclass
class Fit:
    """What a fit did: one row of history per validation (nats per event), the best step, and
    remarks in words.

    ``model`` is the model to use: the one that was trained, or the best closed-form model where
    that is better on the development data, and then ``name`` says which. ``closed_forms`` are their
    scores on the development data, in nats per event. ``explosive`` says why simulated paths of
    ``model`` run away, where they do and no stable model was found.
    """

    history: list[dict[str, float]] = field(default_factory=list)
    best_step: int = 0
    best: float = -math.inf
    notes: list[str] = field(default_factory=list)
    stopped: str = ""
    model: Any = None
    name: str = ""
    closed_forms: dict[str, float] = field(default_factory=dict)
    explosive: str = ""

    def csv(self) -> str:
        """The history as CSV text."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.history)
        return out.getvalue()


@dataclass(frozen=True)
class Recipe:
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
    dequantise: bool


class Run:
    """The state of one fit: what is validated, kept, written and read again."""

    def __init__(
        self,
        model: PointProcess,
        train: Dataset,
        dev: Dataset,
        folder: Path | None,
        seed: int,
        recipe: Recipe,
        terms: dict[str, Any],
        source: Source | None = None,
        size: Dataset | EventFiles | None = None,
        team: Team | None = None,
    ) -> None:
        self.model = model
        self.team = team or Team()
        self.folder = folder if self.team.first else None  # one process writes
        self.seed = seed
        self.terms = terms
        # Where steps come from, and all training data, of which ``train`` is a part in memory if
        # they are in files.
        self.source = source or InMemory(train, recipe.batch_size, recipe.mixed, seed)
        self.size = train if size is None else size
        self.convention = terms["convention"]
        self.whole = train  # before long sequences are cut into pieces, which steps are taken on
        self.until = float(np.max(dev.stops, initial=-np.inf))  # when the development data end
        self.dev = beginning(dev.some(VALIDATION_EVENTS, seed), VALIDATION_EVENTS)
        self.fit = Fit(model=model)
        self.best: dict[str, torch.Tensor] = {}
        self.guess: dict[
            str, torch.Tensor
        ] = {}  # weights that training has to beat, and their scores
        self.guess_scores = torch.zeros(0, dtype=torch.float64)
        self.closed_forms: list[ClosedForm] = []
        self.peak = 0
        self.scores = torch.zeros(0, dtype=torch.float64)
        self.optimiser: torch.optim.Optimizer | None = None
        self.average = recipe.average
        self.mean = list[torch.Tensor]()
        self.per_epoch = self.source.per_epoch
        self.mean_events = self.source.mean_events
        self.resolution = 0.0  # of the timestamps that are dequantised; 0 for none
        # fits a closed-form model again, to the training and development data together
        self.refit: Callable[[ClosedForm], ClosedForm] | None = None
        self.stamped_ahead = False  # whether these are dates of whole days
        # whether so many seconds of a time budget are left for what follows the last step
        self.time_left: Callable[[float], bool] = lambda seconds: True
        # seconds that a closed form may take to be fitted again although no time is left
        self.refit_allowance = 0.0
        self._scored: Dataset | None = None  # the development data as models are scored on it

    @property
    def train(self) -> Dataset:
        """What steps are taken on, or what stands for it where the data are in files."""
        return self.source.data if isinstance(self.source, InMemory) else self.whole

    def begin_mean(self) -> None:
        """The running mean begins at the first weights, or goes on from a killed run's."""
        if self.average and not self.mean:
            self.mean = [p.detach().clone() for p in self.model.parameters()]

    def move_mean(self, step: int) -> None:
        """One step of the running mean, which is a plain mean at first."""
        if self.mean:
            update = get_ema_multi_avg_fn(min(self.average, (step + 1) / (step + 10)))
            update(self.mean, [p.detach() for p in self.model.parameters()], step)

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
        scores = self.score(self.model)
        score = float(scores.sum()) / max(1, self.dev.scored_events)
        row["train_log_likelihood"], row["dev_log_likelihood"] = train_score, score
        self.fit.history.append({name: row[name] for name in COLUMNS})
        draw = len(self.scores) > 0 and score >= self.fit.best - 0.5 * standard_error(
            scores - self.scores
        ) / max(1, self.dev.scored_events)
        if score > self.fit.best:
            self.fit.best, self.peak, self.scores = score, int(row["step"]), scores
        if score >= self.fit.best or draw:
            self.fit.best_step = int(row["step"])
            self.best = {k: v.detach().clone() for k, v in self.model.named_parameters()}
            self.write(model=True)

    def score(self, model: PointProcess) -> torch.Tensor:
        """Log-likelihoods of ``model`` on the units of the development data.

        Rounded timestamps are dequantised, in the same way for all models: an event that shares its
        timestamp with another one would favour whichever model has the narrowest peak after events.
        """
        if self._scored is None:
            self._scored = self.dev
            if self.resolution:
                self._scored = dequantised(self.dev, self.resolution, self.seed)
        return unit_scores(model, self._scored, self.convention, self.team)

    def reserved(self) -> float:
        """Seconds that fitting a closed-form model again may take at the end."""
        if self.refit is None:
            return 0.0
        return REFIT_MARGIN * max((one.seconds for one in self.closed_forms), default=0.0)

    def compare_with(self, found: list[ClosedForm]) -> None:
        """Closed-form models that the trained model is compared with at the end."""
        events = max(1, self.dev.scored_events)
        self.closed_forms = found
        self.fit.closed_forms = {one.name: float(one.scores.sum()) / events for one in found}

    def score_guess(self, guesses: list[dict[str, torch.Tensor]]) -> None:
        """Score first guesses of the weights and keep the best, as step 0; training begins where it
        would have begun."""
        own = [p.detach().clone() for p in self.model.parameters()]
        names = [name for name, _ in self.model.named_parameters()]
        for guess in guesses:
            _copy(self.model, [guess[name] for name in names])
            scores = self.score(self.model)
            if not self.guess or float(scores.sum()) > float(self.guess_scores.sum()):
                self.guess = {name: p.detach().clone() for name, p in self.model.named_parameters()}
                self.guess_scores = scores
        _copy(self.model, [self.guess[name] for name in names])
        some = beginning(self.whole.some(VALIDATION_EVENTS, self.seed), VALIDATION_EVENTS)
        train_score = _score(self.model, some, self.convention, self.team)
        self.best = dict(self.guess)
        self.scores = self.guess_scores
        self.fit.best = float(self.scores.sum()) / max(1, self.dev.scored_events)
        row = (0, 0.0, 0.0, train_score, self.fit.best, 0.0, 0.0)
        self.fit.history.append(dict(zip(COLUMNS, row, strict=True)))
        self.write(model=True)
        _copy(self.model, own)

    def _or_the_guess(self) -> None:
        """Keep the first guess unless the best weights are clearly better."""
        if not self.guess:
            return
        if self.fit.best_step == 0 or not clearly_positive(self.scores - self.guess_scores):
            self.best, self.fit.best_step = self.guess, 0
            self.fit.notes.append(
                "training found nothing clearly better than the initial fit, which is kept"
            )

    def stale(self) -> int:
        """Validations since the highest one."""
        return sum(row["step"] > self.peak for row in self.fit.history)

    def begin(self, resume: bool) -> None:
        """Write what is fitted before the first checkpoint, so that a run killed any time after can
        be resumed.

        An older model in the folder stays until the first validation, but is no longer what
        ``resume`` goes on from.
        """
        if self.folder is not None and not (resume and (self.folder / "training.json").is_file()):
            checkpoints.write_tensors(self.folder, "training", {}, dict(step=0, recipe=self.terms))

    def maximise(self, shown: Dataset, limits: FitLimits) -> Fit:
        """A fit without gradient steps, to the training data as they are ``shown`` to the model,
        within ``limits`` where the model heeds them.
        """
        began = time.monotonic()
        with limits.part(0.0, 0.75, 0.75):
            self.fit.notes += self.model.maximum_likelihood(shown)
        if len(self.dev):
            with limits.part(0.75, 1.0):
                self.fit.notes += self.model.keep_best(self.dev)
        some = beginning(self.whole.some(VALIDATION_EVENTS, self.seed), VALIDATION_EVENTS)
        train_score = _score(self.model, some, self.convention)
        self.fit.notes += beside_poisson(self.model, shown, some, self.convention, train_score)
        score = _score(self.model, self.dev, self.convention) if len(self.dev) else math.nan
        seconds = max(1e-9, time.monotonic() - began)
        self.fit.history.append(
            dict(
                zip(
                    COLUMNS,
                    (1, 1.0, seconds, train_score, score, self.train.events / seconds, 0.0),
                    strict=True,
                )
            )
        )
        self.fit.best = score if len(self.dev) else train_score
        self.fit.best_step, self.fit.stopped = 1, "maximum likelihood"
        self.write(model=True)
        if self.folder:
            checkpoints.remove_tensors(self.folder, "training")
        return self.fit

    def finish(self) -> Fit:
        """Choose what is returned: the trained weights, the first guess, or a closed-form model.

        That is the best of them on the development data, unless simulated paths of it run away and
        those of another do not. Processes other than the first keep the trained weights.
        """
        self._or_the_guess()
        self._take(self.best)
        first = self.team.first
        self.team = Team()  # the others do not take part from here on
        self.fit.stopped = self.fit.stopped or "all steps done"
        if not first:
            return self.fit
        self._look_for_peaks()
        others = sorted(self.closed_forms, key=lambda one: -float(one.scores.sum()))
        why = self._why_a_closed_form(others)
        if why:
            simple = simplest_as_good(self.closed_forms)
            if simple is not others[0]:
                why = f"simpler than {others[0].name} and as good, which is {why}"
                others = [simple, *(one for one in others if one is not simple)]
        if why and not self._explosive(others[0].model):
            self._return(others[0], why)
        else:
            self._look_for_a_stable_one(others)
        self.write(model=True)
        if self.folder:
            checkpoints.remove_tensors(self.folder, "training")
        return self.fit

    def _why_a_closed_form(self, others: list[ClosedForm]) -> str:
        """Why the best of the closed forms, the first of ``others``, is returned; "" if it is not.

        The trained model has to gain more on dev than the standard error of its gain: its forecasts
        of many events ahead can be worse where the likelihoods of the next event are equal. A model
        that kept its first weights is no better than what they stand for, unless they are clearly
        better on dev: what can be fitted again to all of the data is preferred.
        """
        if not others:
            return ""
        own = self._own_scores()
        if float(others[0].scores.sum()) > float(own.sum()):
            return "better on dev than the trained model"
        untrained = self.refit is not None and bool(self.guess) and self.fit.best_step == 0
        gain = own - others[0].scores
        total, events = float(gain.sum()), max(1, self.dev.scored_events)
        no_better = total <= MATTERS * events and not clearly_positive(gain)
        if untrained and (no_better or total <= NEGLIGIBLE * events):
            return "as good on dev as the initial fit"
        if len(gain) > 1 and total <= standard_error(gain):
            return "simpler than the trained model and as good on dev"
        return ""

    def _look_for_peaks(self) -> None:
        if isinstance(self.model, NarrowPeaks):
            self.fit.notes += look_for_narrow_peaks(self.model, self.whole)

    def _own_scores(self) -> torch.Tensor:
        """The log-likelihoods of the model on the development data, whose sum is noted beside those
        of the closed forms.
        """
        scores = self.score(self.model)
        total = float(scores.sum())
        events = max(1, self.dev.scored_events)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in self.fit.closed_forms.items())
        self.fit.notes.append(f"nats per event on dev: {total / events:.4f}; closed forms: {shown}")
        return scores

    def _explosive(self, model: PointProcess) -> str:
        """Why ``model`` counts as explosive, as far as the time budget allows to find out."""
        cut = False

        def time_left() -> bool:
            nonlocal cut
            cut = cut or not self.time_left(0.0)
            return not cut

        found = explosive(model, self.whole, self.seed, time_left)
        if cut and not found:
            self.fit.notes.append(
                "the time budget ended the search for explosive paths before it was complete"
            )
        return found

    def _look_for_a_stable_one(self, others: list[ClosedForm]) -> None:
        """Keep the trained model if it is stable; else the first guess, or the best of the
        closed-form models that is.
        """
        runaway = self._explosive(self.model)
        if runaway and self.guess and self.fit.best_step > 0:
            self._take(self.guess)
            if not self._explosive(self.model):
                self.fit.notes.append(
                    f"the trained model is explosive ({runaway}): the initial fit, which is "
                    "stable, is kept"
                )
                self.best, self.fit.best_step = self.guess, 0
                self._look_for_peaks()
                return
            self._take(self.best)
        if not runaway:
            return
        self.fit.notes.append(f"the trained model is explosive: {runaway}")
        stable = next((one for one in others if not self._explosive(one.model)), None)
        if stable is not None:
            self._return(stable, "stable, unlike the trained model")
        else:
            self.fit.explosive = runaway

    def _return(self, one: ClosedForm, why: str) -> None:
        """The closed-form model ``one`` in place of the trained one, fitted again to all of the
        data if the development data was only kept for this choice.
        """
        self.fit.best = float(one.scores.sum()) / max(1, self.dev.scored_events)
        one.model.trained_on = self.model.trained_on
        note = f"the closed-form model {one.name} is {why}, and is returned instead"
        if self.refit is not None:
            if self.time_left(one.seconds) or one.seconds <= self.refit_allowance:
                one = self.refit(one)
                note += ", fitted again to all of the data"
            else:
                note += "; the time budget does not allow fitting it again to all of the data"
        self.fit.model, self.fit.name = one.model, one.name
        self.fit.notes += [*one.notes, note]

    def _take(self, weights: dict[str, torch.Tensor]) -> None:
        """Put the weights into the model, in evaluation mode and with the features of
        evaluation.
        """
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights.get(name, parameter))
        self.model.to("cpu").eval()
        said = self.model.fix_features()
        self.fit.notes = [
            note for note in self.fit.notes if not note.startswith("evaluation features")
        ] + said

    def finished(self) -> bool:
        """Whether the folder holds a finished run of the same recipe; its weights are then taken
        over.
        """
        if (
            self.folder is None
            or not (self.folder / "model.json").is_file()
            or (self.folder / "training.json").is_file()
        ):
            return False
        done = checkpoints.about(self.folder)
        if not done.get("stopped"):
            return False
        self._same(done.get("recipe", {}))
        kept: Any = checkpoints.restore(self.folder)
        self.fit.model = kept
        self.fit.notes.append("nothing to resume: the run in this folder had ended")
        self.fit.best_step, self.fit.stopped = done["best_step"], done["stopped"]
        checkpoints.remove_tensors(
            self.folder, "training"
        )  # left where it was killed at the very end
        if type(kept) is not type(self.model):  # a closed-form model was better
            self.fit.name = str(done.get("closed_form", ""))
            return True
        self.model.initialise(self.whole)
        self.model.fix_features(kept.settings().get("eval_features"))
        self.model.load_state_dict(kept.state_dict())
        if isinstance(kept, Hawkes):
            cast(Hawkes, self.model).errors = kept.errors
            cast(Hawkes, self.model).profiles = kept.profiles
        self.model.rate_ratios = kept.rate_ratios
        self.model.feature_ratios = kept.feature_ratios
        self.fit.model = self.model.eval()
        return True

    def load(self) -> int:
        """Take up the state of a killed run; the step to go on from (0 where there is none)."""
        if (
            self.folder is None
            or self.optimiser is None
            or not (self.folder / "training.json").is_file()
        ):
            self.fit.notes.append("nothing to resume: starting from the beginning")
            return 0
        tensors, info = checkpoints.read_tensors(self.folder, "training")
        self._same(info["recipe"])
        if info["step"] == 0:
            self.fit.notes.append("nothing to resume: starting from the beginning")
            return 0
        self._restore(tensors, info)
        self.fit.notes.append(f"resumed at step {info['step']}")
        return int(info["step"])

    def share_state(self, step: int) -> int:
        """Give all processes the weights and the state of the first; the step to go on from."""
        if self.team.size == 1:
            return step
        state = None
        if self.team.first:
            buffers = {name: value.cpu() for name, value in self.model.named_buffers()}
            tensors, info = self._state(step)
            state = {k: v.detach().cpu() for k, v in tensors.items()}, info, buffers
        tensors, info, buffers = self.team.tell(state)
        if not self.team.first:
            self._restore(tensors, info)
            with torch.no_grad():
                for name, value in self.model.named_buffers():
                    value.copy_(buffers[name])
        return int(info["step"])

    def _restore(self, tensors: dict[str, torch.Tensor], info: dict[str, Any]) -> None:
        """Take up the state of a run."""
        assert self.optimiser is not None  # it is made before the first state
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
        place = next(self.model.parameters()).device
        self.best = {
            k.removeprefix("best."): v.to(place)
            for k, v in tensors.items()
            if k.startswith("best.")
        }
        self.guess = {
            k.removeprefix("guess."): v.to(place)
            for k, v in tensors.items()
            if k.startswith("guess.")
        }
        self.guess_scores = tensors["guess_scores"]
        if self.average and info["step"]:
            self.mean = [tensors[f"mean.{k}"].to(place) for k, _ in self.model.named_parameters()]
        else:
            self.mean = []
        state = self.optimiser.state_dict()
        for key, value in tensors.items():
            if key.startswith("adam."):
                _, index, name = key.split(".")
                state["state"].setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict(state)
        self.fit.history, self.fit.best, self.fit.best_step = (
            info["history"],
            info["best"],
            info["best_step"],
        )
        self.peak = info["peak"]
        self.scores = tensors["scores"]

    def _same(self, recipe: dict[str, Any]) -> None:
        # The seed draws the development data, and other terms follow from the data: first things
        # first.
        for name in dict.fromkeys(["seed", *DATA, *self.terms]):
            was = recipe.get(name)
            value = self.terms[name]
            if was != value and name in DATA:
                raise TrainingError(
                    f"the {DATA[name]} of the run to resume, with the fingerprint {was}",
                    f"other data, with the fingerprint {value}",
                    "Pass the data of the first call, or choose another folder.",
                )
            if was != value:
                raise TrainingError(
                    f"{name}={was}, as in the run to resume",
                    f"{value}",
                    "Repeat the first call with --resume, or choose another folder.",
                )

    def _state(self, step: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything that the next step depends on."""
        tensors = {f"model.{k}": v for k, v in self.model.named_parameters()} | {
            f"best.{k}": v for k, v in self.best.items()
        }
        tensors |= {
            f"mean.{k}": v
            for (k, _), v in zip(self.model.named_parameters(), self.mean, strict=False)
        }
        tensors |= {f"guess.{k}": v for k, v in self.guess.items()}
        tensors |= dict(scores=self.scores, guess_scores=self.guess_scores)
        moments = self.optimiser.state_dict()["state"] if self.optimiser else {}
        tensors |= {
            f"adam.{i}.{k}": torch.as_tensor(v) for i, m in moments.items() for k, v in m.items()
        }
        info = dict(
            step=step,
            recipe=self.terms,
            settings=self.model.settings(),
            history=self.fit.history,
            best=self.fit.best,
            peak=self.peak,
            best_step=self.fit.best_step,
            notes=self.fit.notes,
        )
        return tensors, info

    def write(self, *, model: bool = False, state: int | None = None) -> None:
        if self.folder is None:
            return
        if model:
            begin = float(self.size.starts.min())
            end = begin + float(self.size.durations.max())
            windows = dict(start=begin, stop=end, until=max(end, self.until))
            about = dict(
                unit=self.train.unit,
                data=self.train.name,
                **windows,
                events=self.size.events,
                sequences=len(self.size),
                log=None if self.whole.log is None else self.whole.log.to_dict(),
                recipe=self.terms,
                notes=self.fit.notes,
                best_step=self.fit.best_step,
                stopped=self.fit.stopped,
                closed_form=self.fit.name,
            )
            checkpoints.save(self.fit.model, self.folder, about=about)
        if state is not None and self.optimiser is not None:
            tensors, info = self._state(state)
            checkpoints.write_tensors(self.folder, "training", tensors, info)
        write_atomic(self.folder / "history.csv", self.fit.csv())


def one_fit_at_a_time(fit: Callable[P, Fit]) -> Callable[P, Fit]:
    """``fit``, holding a lock on its ``folder``: a second fit into the same folder is refused.

    The lock ends with the process. A folder that is made for a fit that is refused is removed.
    """

    @wraps(fit)
    def alone(*arguments: P.args, **options: P.kwargs) -> Fit:
        given: Any = options.get("folder")
        if not given or os.environ.get("RANK", "0") != "0":  # others do not write
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
    arrays = [data.times, data.mark_ids, data.lengths, data.starts, data.stops, data.places]
    arrays.append(data.features)
    if data.context is not None:
        context = data.context
        arrays += [context.origin, context.scored_from]
        for steps in (context.covariates, context.exposure):
            if steps is not None:
                digest.update(repr(steps.names).encode())
                arrays += [steps.times, steps.values, steps.offsets]
    for array in arrays:
        if array is not None:
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _copy(model: PointProcess, values: list[torch.Tensor]) -> None:
    """Put ``values`` into the model's parameters; nothing where there are none."""
    with torch.no_grad():
        for parameter, value in zip(model.parameters() if values else (), values, strict=True):
            parameter.copy_(value)


def _score(
    model: PointProcess,
    data: Dataset,
    convention: Convention = "window",
    team: Team | None = None,
) -> float:
    """Log-likelihood in nats per scored event."""
    return float(unit_scores(model, data, convention, team).sum()) / max(1, data.scored_events)


PATHS = 12
STRETCH = 150  # expected events of a stretch, where windows have more
REMEMBERED = 500  # past events that a stretch inside a long window begins with
EXCESS, LARGEST_CAP = 5, 1500  # a path is capped at EXCESS times the largest observed count
TOLERATED = 0.1  # share of capped paths up to which a model counts as stable


def explosive(
    model: PointProcess, data: Dataset, seed: int = 0, time_left: Callable[[], bool] | None = None
) -> str:
    """Why ``model`` counts as explosive on stretches like those of ``data``; "" if it does not.

    Where ``time_left`` says no, the simulation ends: paths that have more events by then than were
    observed in a whole stretch count as explosive, the others as stable.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> data = simulate("hawkes", 50, seed=0)
    >>> explosive(Hawkes(baseline=10.0, branching=1.0, decay=1.0), data)
    ''
    >>> explosive(Hawkes(baseline=10.0, branching=20.0, decay=1.0), data)
    '12 of 12 simulated paths reach ... events, where at most ... were observed in as much time'
    """
    if not data.events or data.marks.box is not None:
        return ""
    start, stop, past = _stretch(data)
    largest = largest_count(data, stop - start)
    least = int(1.2 * largest + 10)
    cap = max(least, min(EXCESS * largest + 50, LARGEST_CAP))
    try:
        paths = sample_paths(
            model, start, stop, PATHS, seed, history=past, most=cap, time_left=time_left
        )
    except UserError as error:
        return str(error)
    if len(paths.unfinished):
        cap = least
    runaway = int((paths.data.lengths >= cap).sum())
    if runaway <= TOLERATED * PATHS:
        return ""
    reached = f"{runaway} of {PATHS} simulated paths reach {cap:,} events"
    return f"{reached}, where at most {largest:,} were observed in as much time"


def _stretch(data: Dataset) -> tuple[float, float, Sequence | None]:
    """Start and end of a stretch to simulate, and what came before it: a whole window with an
    empty past, which has the dates and covariates of a sequence, where windows are short; else a
    part of the longest one.
    """
    row = int(np.argmax(data.lengths))
    sequence = data[row]
    if data.events / len(data) <= STRETCH:
        start = float(data.starts[row])
        past = None if data.context is None else sequence.before(start)
        return start, start + float(np.median(data.durations)), past
    first = min(REMEMBERED, len(sequence) // 2)
    start = float(np.nextafter(sequence.times[first - 1], np.inf)) if first else sequence.start
    stop = start + STRETCH * sequence.duration / len(sequence)
    return start, stop, sequence.before(start)


def largest_count(data: Dataset, length: float) -> int:
    """The largest number of events that any sequence has in a stretch of ``length``.

    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 2.5, 9.0], start=0.0, stop=10.0)])
    >>> largest_count(data, 1.6)
    3
    """
    most = 0
    for first, last in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        times = data.times[first:last]
        counts = np.searchsorted(times, times + length, side="right") - np.arange(len(times))
        most = max(most, int(counts.max(initial=0)))
    return most


SEQUENCES, EVENTS = 8, 16  # at most so many sequences, and of each so many of its first events
# of the integral per event: fast swings that a rule sees in part make less of a difference
ALIKE = 1e-2
ANY = 1e6  # nats per event: a tolerance that every rule keeps


@torch.no_grad()
def look_for_narrow_peaks(model: NarrowPeaks, data: Dataset) -> list[str]:
    """Set ``model.narrow`` from some sequences of ``data``, and say so where it is true."""
    every_nth = max(1, -(-len(data) // SEQUENCES))
    whole = data.batch(list(range(0, len(data), every_nth)))
    some = (whole.columns(0, EVENTS) if whole.times.shape[1] else whole).to(model.narrow.device)
    training = model.training
    model.eval()
    model.narrow.fill_(False)
    try:
        plain = log_likelihoods(model, some, tolerance=ANY)["window"].integral
        model.narrow.fill_(True)
        fine = log_likelihoods(model, some, tolerance=ALIKE / 10)["window"].integral
        model.narrow.fill_(
            bool((fine - plain).abs().sum() > ALIKE * max(1, int(some.lengths.sum())))
        )
    except Unconverged:
        model.narrow.fill_(True)
    model.train(training)
    if not model.narrow:
        return []
    return [
        (
            "the rate has narrow peaks, as where times are whole seconds: its integrals are cut "
            "where peaks can be, and take longer"
        )
    ]
