r"""Fitting a model: one visible loop.

Every step takes one batch, redraws the model's Fourier features, estimates the log-likelihood with random nodes in every
gap and moves the weights by AdamW under a warm-up and a cosine decay. The loss of a batch is divided by the *expected*
number of events of a batch, not by its own, so that batches of short sequences do not count for more than they should.
Every ``validate_every`` steps the likelihood of the development data is computed; the best weights are kept, and after
``patience`` validations without a better one the loop ends. Scores that differ from the best by less than half of the
standard error of that difference (sequence by sequence) are a draw, and a draw goes to the later weights, which have seen
a smaller learning rate. Models with a likelihood that can be maximised directly
(Poisson, Hawkes) have a verb ``maximum_likelihood`` and skip the loop.

All randomness of step s comes from (seed, s) alone. That is why a killed run, resumed from its last validation, ends
with the very weights of an unbroken one.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fourpoint import checkpoints
from fourpoint.events import Dataset, UserError
from fourpoint.likelihood import CONVENTIONS, Convention, quick_log_likelihood, sampled_log_likelihood

VALIDATION_EVENTS = 20_000  # at most so many events of the development data are scored at each validation
NETWORK_PACE = 0.03
COLUMNS = ("step", "epoch", "seconds", "train_log_likelihood", "dev_log_likelihood", "events_per_second", "learning_rate")


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


RECIPE: dict[str, Any] = dict(
    steps=3000, batch_size=64, learning_rate=2e-2, weight_decay=1e-3, warmup=100, clip=1.0, nodes=4, validate_every=100, patience=20,
    mixed=False,
)  # fmt: skip


def fit(
    model: Any,
    train: Dataset,
    dev: Dataset | None = None,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    warmup: int | None = None,
    clip: float | None = None,
    nodes: int | None = None,
    validate_every: int | None = None,
    patience: int | None = None,
    mixed: bool | None = None,
    convention: Convention = "window",
    seed: int = 0,
    time_budget: float | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Fit:
    """Fit ``model`` to ``train``, keeping the weights that are best on ``dev`` (a tenth of ``train`` where None).

    Arguments
        steps: most optimiser steps. ``time_budget`` (seconds) ends the schedule earlier where it is shorter.
        batch_size, learning_rate, weight_decay, warmup (steps, at most a tenth of all), clip (of the gradient): AdamW, cosine schedule.
        nodes: random nodes per gap for the integral.
        validate_every (steps), patience (validations without a better one).
        mixed: sequences of all lengths in a batch, rather than of like length, which saves padding.
        convention: of the likelihood that is maximised; "gaps" for comparisons with tables that leave out both ends of the window.
        folder: where the best model, `history.csv` and the state of the run are written at every validation.
        resume: go on from the state in ``folder``.

    What is None comes from the model's own ``recipe`` where it has one, else from `training.RECIPE`.

    Returns a :class:`Fit`; ``model`` holds the best weights and is in evaluation mode. Raises :class:`TrainingError` where
    the loss is not finite, naming the step, the sequences of the batch and the parameter; the last good model stays.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.poisson import Poisson
    >>> model = Poisson()
    >>> fit(model, simulate("hawkes", 100), progress=False).stopped
    'maximum likelihood'
    """
    given = dict(
        steps=steps, batch_size=batch_size, learning_rate=learning_rate, weight_decay=weight_decay, warmup=warmup, clip=clip, nodes=nodes,
        validate_every=validate_every, patience=patience, mixed=mixed,
    )  # fmt: skip
    recipe = Recipe(**{**RECIPE, **getattr(model, "recipe", {}), **{k: v for k, v in given.items() if v is not None}})
    _check_fit(model, train, dev, recipe, time_budget)
    if convention not in CONVENTIONS:
        raise TrainingError("convention 'window' or 'gaps'", f"{convention!r}", "Choose one of the two.")
    torch.manual_seed(seed)
    if dev is None:
        train, dev = train.split((0.9, 0.1), by="sequence", seed=seed)
    terms = dict(**recipe._asdict(), convention=convention, seed=seed, events=train.events, sequences=len(train), model=model.settings())
    run = _Run(model, train, dev, Path(folder) if folder else None, seed, recipe, terms)
    if resume and run.finished():
        return run.fit
    run.fit.notes += model.initialise(train)
    if hasattr(model, "maximum_likelihood"):
        return run.maximise()
    optimiser = run.optimiser = torch.optim.AdamW(_groups(model, recipe), betas=(0.9, 0.99), fused=True)
    step = run.load() if resume else 0
    if hasattr(model, "rehearse"):
        model.rehearse()
    warmup = max(1, min(recipe.warmup, recipe.steps // 10))
    began = time.monotonic() - (run.fit.history[-1]["seconds"] if run.fit.history else 0.0)
    with _bar(progress, recipe.steps) as bar:
        losses: list[float] = []
        seen, clock = 0, time.monotonic()
        while step < recipe.steps:
            share = max(step / recipe.steps, (time.monotonic() - began) / time_budget if time_budget else 0.0)
            if share >= 1 or run.stale() >= recipe.patience:
                run.fit.stopped = "time budget" if share >= 1 else "no better validation"
                break
            rate = recipe.learning_rate * min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * share))
            for group in optimiser.param_groups:
                group["lr"] = rate * group["pace"]
            rows = run.rows(step)
            losses.append(_step(model, optimiser, train, rows, run.mean_events, recipe, convention, seed, step))
            seen += int(train.lengths[rows].sum())
            step += 1
            if step % recipe.validate_every == 0 or step == recipe.steps:
                speed = seen / max(1e-9, time.monotonic() - clock)
                row = dict(
                    step=step, epoch=step / run.per_epoch, seconds=time.monotonic() - began, events_per_second=speed, learning_rate=rate
                )
                run.validate(row, -float(np.mean(losses)))
                bar(step, row)
                losses, seen, clock = [], 0, time.monotonic()
            else:
                bar(step, None)
    return run.finish(step)


def _step(
    model: Any,
    optimiser: torch.optim.Optimizer,
    train: Dataset,
    rows: np.ndarray,
    mean_events: float,
    recipe: Recipe,
    convention: Convention,
    seed: int,
    step: int,
) -> float:
    """One step of the optimiser; returns the loss in nats per event."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + step)
    model.train()
    if hasattr(model, "redraw"):
        model.redraw(random)
    batch = train.batch(rows)
    loss = -sampled_log_likelihood(model, batch, recipe.nodes, random, convention=convention).sum() / (mean_events * len(rows))
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if not (math.isfinite(loss.item()) and math.isfinite(float(norm))):
        raise _not_finite(model, train, rows, loss.item(), step)
    nn.utils.clip_grads_with_norm_(model.parameters(), recipe.clip, norm)
    optimiser.step()
    return loss.item()


class _Run:
    """The state of one fit: what is validated, kept, written and read again."""

    def __init__(
        self, model: Any, train: Dataset, dev: Dataset, folder: Path | None, seed: int, recipe: Recipe, terms: dict[str, Any]
    ) -> None:
        self.model, self.train, self.folder, self.seed, self.terms = model, train, folder, seed, terms
        self.batch_size, self.mixed, self.convention = recipe.batch_size, recipe.mixed, terms["convention"]
        self.dev = _sample(dev, seed)
        self.fit = Fit()
        self.best: dict[str, torch.Tensor] = {}
        self.peak, self.scores = 0, torch.zeros(0, dtype=torch.float64)
        self.optimiser: torch.optim.Optimizer | None = None
        self.per_epoch = len(train.batches(self.batch_size, seed=0, mixed=self.mixed))
        self.mean_events = max(1.0, train.events / max(1, len(train)))
        self._epoch: tuple[int, list[np.ndarray]] = (-1, [])

    def rows(self, step: int) -> np.ndarray:
        """The sequences of step ``step``: epochs are reshuffled, each from its own seed."""
        epoch, position = divmod(step, self.per_epoch)
        if self._epoch[0] != epoch:
            batches = self.train.batches(self.batch_size, seed=self.seed * 1_000_003 + epoch, mixed=self.mixed)
            self._epoch = (epoch, [batches[i % len(batches)] for i in range(self.per_epoch)])
        return self._epoch[1][position]

    def validate(self, row: dict[str, float], train_score: float) -> None:
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
        self.write(state=int(row["step"]))

    def stale(self) -> int:
        """Validations since the highest one."""
        return sum(row["step"] > self.peak for row in self.fit.history)

    def maximise(self) -> Fit:
        began = time.monotonic()
        self.fit.notes += self.model.maximum_likelihood(self.train)
        score, train_score = (_score(self.model, data, self.convention) for data in (self.dev, _sample(self.train, self.seed)))
        seconds = time.monotonic() - began
        self.fit.history.append(dict(zip(COLUMNS, (1, 1.0, seconds, train_score, score, self.train.events / seconds, 0.0), strict=True)))
        self.fit.best, self.fit.best_step, self.fit.stopped = score, 1, "maximum likelihood"
        self.write(model=True)
        return self.fit

    def finish(self, step: int) -> Fit:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.best.get(name, parameter))
        self.model.eval()
        self.fit.stopped = self.fit.stopped or "all steps done"
        self.fit.notes += self.model.settle() if hasattr(self.model, "settle") else []
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
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
        self.best = {k.removeprefix("best."): v for k, v in tensors.items() if k.startswith("best.")}
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
                recipe=self.terms,
                notes=self.fit.notes,
                best_step=self.fit.best_step,
                stopped=self.fit.stopped,
            )
            checkpoints.save(self.model, self.folder, about=about)
        if state is not None and self.optimiser is not None:
            tensors = {f"model.{k}": v for k, v in self.model.named_parameters()} | {f"best.{k}": v for k, v in self.best.items()}
            tensors["scores"] = self.scores
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
        checkpoints._replace(self.folder / "history.csv", self.fit.csv().encode())


def _score(model: Any, data: Dataset, convention: Convention = "window") -> float:
    """Log-likelihood in nats per event."""
    return float(_scores(model, data, convention).sum()) / max(1, data.events)


def _scores(model: Any, data: Dataset, convention: Convention = "window") -> torch.Tensor:
    """Log-likelihood of each sequence, in a fixed order."""
    model.eval()
    return torch.cat([quick_log_likelihood(model, data.batch(rows), convention=convention) for rows in data.batches(128)]).to(torch.float64)


def _standard_error(differences: torch.Tensor) -> float:
    """Of the sum of independent differences."""
    return float(differences.std(correction=0)) * math.sqrt(len(differences))


def _sample(data: Dataset, seed: int) -> Dataset:
    """All of ``data``, or a seeded draw of its sequences with about VALIDATION_EVENTS events."""
    if data.events <= VALIDATION_EVENTS or len(data) < 2:
        return data
    order = np.random.default_rng(seed).permutation(len(data))
    enough = int(np.searchsorted(np.cumsum(data.lengths[order]), VALIDATION_EVENTS)) + 1
    return data.select(np.sort(order[:enough]))


def _groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Networks move NETWORK_PACE times as fast as rates, scales and splines, which have far to go; only they are decayed.

    A model with a recipe of its own is a network as a whole: its matrices are decayed, and all moves at one pace.
    """
    if hasattr(model, "recipe"):
        split = [[p for p in model.parameters() if p.requires_grad and (p.ndim > 1) == matrix] for matrix in (True, False)]
        decays = (recipe.weight_decay, 0.0)
        return [dict(params=some, lr=recipe.learning_rate, pace=1.0, weight_decay=d) for some, d in zip(split, decays, strict=True)]
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    networks = [p for n, p in named if ".weights." in n or ".biases." in n]
    rest = [p for n, p in named if ".weights." not in n and ".biases." not in n]
    return [
        dict(params=networks, lr=recipe.learning_rate * NETWORK_PACE, pace=NETWORK_PACE, weight_decay=recipe.weight_decay),
        dict(params=rest, lr=recipe.learning_rate, pace=1.0, weight_decay=0.0),
    ]


def _check_fit(model: Any, train: Dataset, dev: Dataset | None, recipe: Recipe, time_budget: float | None) -> None:
    if train.events == 0:
        raise TrainingError("training data with events", f"{len(train)} sequences without one", "Check the split and the window.")
    for data in (train, dev):
        if data is not None and data.marks.count != model.marks.count:
            raise TrainingError(f"data with {model.marks}, as the model has", f"{data.marks}", "Build the model with marks=data.marks.")
    if recipe.steps < 1 or recipe.batch_size < 1 or (time_budget is not None and time_budget <= 0):
        received = f"{recipe.steps}, {recipe.batch_size}, {time_budget}"
        raise TrainingError("positive steps, batch_size and time_budget", received, "Raise them above 0.")


def _not_finite(model: nn.Module, train: Dataset, rows: np.ndarray, loss: float, step: int) -> TrainingError:
    culprit = next((n for n, p in model.named_parameters() if p.grad is not None and not bool(torch.isfinite(p.grad).all())), None)
    where = f"the gradient of {culprit} is not finite" if culprit else "all gradients are finite"
    ids = ", ".join(train.ids[i] for i in rows[:5])
    return TrainingError(
        "a finite loss",
        f"{loss} at step {step} on sequences {ids}{', ...' if len(rows) > 5 else ''}; {where}",
        "Lower learning_rate, use link='softplus', or look at those sequences; the best model so far is kept.",
    )


@contextmanager
def _bar(show: bool, steps: int) -> Iterator[Any]:
    """A progress bar with likelihood, speed and time left; called with the step and, at validations, its row."""
    if not show:
        yield lambda step, row: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fitting", total=steps)

        def update(step: int, row: dict[str, float] | None) -> None:
            bar.update(task, completed=step)
            if row is not None:
                text = f"dev {row['dev_log_likelihood']:.4f} nats/event, {row['events_per_second']:,.0f} events/s"
                bar.update(task, description=text)

        yield update
