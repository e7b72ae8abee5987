r"""Fitting a model: one visible loop.

Every step takes one batch, redraws the model's Fourier features, estimates the log-likelihood with
random nodes in every gap and moves the weights by AdamW under a warm-up and a cosine decay. The
loss of a batch is divided by the *expected* number of events of a batch, not by its own, so that
batches of short sequences do not count for more than they should. Every ``validate_every`` steps
the likelihood of the development data is computed; the best weights are kept, and after
``patience`` validations without a better one the loop ends. Scores that differ from the best by
less than half of the standard error of that difference (sequence by sequence) are a draw, and a
draw goes to the later weights, which have seen a smaller learning rate. A model with a first guess
(DAPP: the fitted Hawkes process, where events excite each other) has it scored before the first
step, and ends there where training does no better than a draw with it. With ``average`` the weights
that are validated and kept are a running mean of those the steps went through, which is smoother
than any one of them. Models with a likelihood that can be maximised directly (Poisson, Hawkes) have
a verb ``maximum_likelihood`` and skip the loop.

All randomness of step s comes from (seed, s) alone. That is why a killed run, resumed from its last
validation, ends with the very weights of an unbroken one.

Memory that is freed stays with the process, so that the next step need not ask the system for it
again.

By default the C library of Linux gives every block of more than some megabytes back at once, and
each page of the next one costs a fault. A training step allocates the same large tensors over and
over: keeping them makes large steps twice as fast, and their cost linear in their size. The process
holds on to what it needed at its peak. Other systems are left as they are.
"""

from __future__ import annotations

import ctypes
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fourpoint.data.event_files import BUFFER, EventFiles
from fourpoint.events import Dataset, check_marks
from fourpoint.events.dates import span_words
from fourpoint.events.dequantise import dequantised, stamped_ahead
from fourpoint.inference.likelihood import BLOCK, CONVENTIONS, Convention, check_memory
from fourpoint.kernels.compiling import one_blas_thread, threads_for_loops
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import TREND, effects_of
from fourpoint.models.event_features import feature_names
from fourpoint.models.fit_limits import FitLimits
from fourpoint.ops.periodogram import COARSE, coarse_resolution
from fourpoint.report.printing import progress_bar
from fourpoint.storage.trained_on import TrainedOn
from fourpoint.training.calendar import AUTO, begun_or_ended, choose_effects
from fourpoint.training.closed_forms import ClosedForm, fit_closed_form, fit_closed_forms
from fourpoint.training.cuda import CapturedSteps
from fourpoint.training.filling import fill_gaps
from fourpoint.training.outages import find_outages, say, without
from fourpoint.training.run import Fit, Recipe, Run, TrainingError, fingerprint, one_fit_at_a_time
from fourpoint.training.sources import InMemory, Source, Streamed, cut_into_pieces
from fourpoint.training.steps import Steps
from fourpoint.training.team import local_device, team_of

VALIDATIONS = 40  # in a run whose recipe leaves it open, or in a time budget
NETWORK_PACE = 0.03


LARGEST_BATCH = 64  # sequences of a step
STEP_EVENTS = 600  # events of a step on a processor, where the recipe leaves the batch size open
DEVICE_EVENTS, FEWEST_STEPS = 4096, 4  # the same on an accelerator, and steps of an epoch at least
SAMPLE = 1_000_000  # events of files that first fits and checks look at
DEV_SAMPLE = 100_000  # events of development data in files that are held in memory
SMALL = 500  # training events below which a model is kept at its start unless it is clearly better
SMALL_VALIDATE = 10  # steps between validations then
BASELINE_SHARE = 0.25  # of a time budget: no further closed-form model is begun after it
CLOSING_SHARE, CLOSING_SECONDS = 0.08, 8.0  # of a time budget, for what follows the last step
CLOSED_FORM_SHARE = 0.8  # of a time budget, for a model that is fitted in closed form
BAR_STEPS = 100  # of the progress of such a fit
REFIT_SHARE = 0.2  # of a time budget, at most, for fitting a closed form again to all of the data
# Of a time budget, by which such a fit may exceed it: without it the end of the log is left out.
REFIT_OVERRUN = 0.1
RECIPE: dict[str, Any] = dict(
    steps=3000,
    batch_size=None,
    learning_rate=3e-2,
    weight_decay=1e-3,
    warmup=100,
    clip=1.0,
    nodes=3,
    validate_every=100,
    patience=20,
    mixed=False,
    epochs=5.0,
    average=0.0,
    dequantise=True,
)


@one_fit_at_a_time
def fit(
    model: PointProcess,
    train: Dataset | EventFiles,
    dev: Dataset | EventFiles | None = None,
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
    epochs: float | None = None,
    average: float | None = None,
    dequantise: bool | None = None,
    spread: bool | None = None,
    baselines: bool = True,
    calendar: str | Sequence[str] = AUTO,
    outages: Literal["auto", "none"] = "auto",
    fill: Literal["none", "sample"] = "none",
    everything: Dataset | None = None,
    device: str = "cpu",
    convention: Convention = "window",
    seed: int = 0,
    time_budget: float | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    keep_going: Callable[[float, float], bool] | None = None,
    buffer: int = BUFFER,
) -> Fit:
    """Fit ``model`` to ``train``, keeping the weights that are best on ``dev`` (by default a tenth
    of ``train``).

    A model that is fitted in closed form (Poisson, spline Poisson, Hawkes, self-correcting) is
    fitted to all of ``train``; ``dev`` is scored if it is given.

    Args:
        train, dev: data sets, or files opened by `fourpoint.scan`, of which one part at a time is
            in memory. Initial fits and checks then use a sample of a million events, and
            validations a sample of the development data.
        steps: most optimiser steps. Where only the recipe says so, as many as ``epochs`` passes
            through the data take if that is more.
        time_budget: seconds from the call to its return; ends the schedule earlier where it is
            shorter.
        batch_size: sequences of a step. Where a model's recipe says None, as many as have 600
            events together (1,200 for Deep DAPP) on a processor; on an accelerator a quarter of
            them, or 4,096 events. At most 64 either way. learning_rate, weight_decay, warmup
            (steps, at most a tenth of all), clip (of the gradient): AdamW, cosine schedule.
        nodes: random nodes per gap for the integral. validate_every (steps; 0: forty times in all;
            a time budget has as many at least), patience (validations without a better one).
        average: weight of the past in the running mean of the weights, 0.995 say; 0 keeps the
            weights themselves.
        dequantise: whether events are dequantised in every step: placed anywhere within the
            resolution of their timestamps, where gaps are few multiples of it (whole minutes, say).
            If they are not, a rate overfits the resolution. ``spread`` is the former name.
        fill: "sample" draws the events of recording gaps (exposure 0) from a Hawkes process that is
            fitted to the training data in turn, five rounds, and fits the model to the filled data;
            "none" takes the observed events for all of the past.
        everything: data to which a closed-form model is fitted again where it is returned in place
            of the trained one: that of which ``train`` and ``dev`` are parts, if ``dev`` is kept
            for this choice alone. It is ``train`` where ``dev`` is None.
        device: "cpu", "cuda", "mps", or "auto", the first of cuda, mps and cpu that is there. The
            fitted model is back on the CPU.
        mixed: sequences of all lengths in a batch, rather than of like length, which saves padding.
        baselines: whether closed-form models (constant rate, spline, Hawkes, levels that change
            from day to day) are fitted first and the simplest of them that no other exceeds by more
            than the standard error of its gain is returned as ``Fit.model``, unless the trained
            model exceeds the best of them by more than that on dev; or a stable one where the
            trained model is explosive. ``model`` itself is trained anyway; on fewer than 500
            events it keeps its first weights unless the trained ones are clearly better on dev.
        calendar: terms of the calendar in the baseline (`models.effects`): names among hour,
            weekday, week, month, monthday and holidays:COUNTRY, "auto" (those that gain on dev, for
            data with dates), or "none". Covariates of the data are always used, and event features
            scale what an event triggers (hawkes, and dapp without normalisation).
        outages: "auto" takes silences that the rate of a log with dates cannot explain as time in
            which nothing was recorded (`training.outages`); "none" counts them as observed.
        convention: of the likelihood that is maximised; "gaps" for comparisons with tables that
            leave out both ends of the window.
        folder: where the best model, `history.csv` and the state of the run are written at every
            validation.
        resume: go on from the state in ``folder``.
        keep_going: is called after every validation with the share of the schedule that is done
            and the best score on dev so far, in nats per event; training ends where it is false.
        buffer: events of files that are in memory together and shuffled with each other.

    What is None comes from the model's own ``recipe`` where it has one, else from
    `training.RECIPE`.

    Returns a :class:`Fit`; ``model`` holds the best weights and is in evaluation mode. Raises
    :class:`TrainingError` where the loss is not finite, naming the step, the sequences of the batch
    and the parameter; the last good model stays.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.poisson import Poisson
    >>> model = Poisson()
    >>> fit(model, simulate("hawkes", 100), progress=False).stopped
    'maximum likelihood'
    """
    began = time.monotonic()
    if spread is not None:
        warnings.warn(
            "spread is now called dequantise; the old name will be removed",
            DeprecationWarning,
            stacklevel=3,
        )
        dequantise = spread
    given = dict(
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        warmup=warmup,
        clip=clip,
        nodes=nodes,
        validate_every=validate_every,
        patience=patience,
        mixed=mixed,
        epochs=epochs,
        average=average,
        dequantise=dequantise,
    )
    place = _device(local_device(device))
    with_history = place.type != "cuda"
    _check_choices(convention, fill)
    files: EventFiles | None = None
    streamed: Streamed | None = None
    if isinstance(train, EventFiles):
        _check_files(model, train, fill)
        files, dev = _files_and_dev(train, dev, seed)
        train = files.sample(SAMPLE, seed)
        streamed = Streamed(files, seed=seed, buffer=buffer, with_history=with_history)
    elif isinstance(dev, EventFiles):
        dev = dev.sample(DEV_SAMPLE, seed)
    pieces = cut_into_pieces(train, with_history=with_history)
    recipe = _chosen_recipe(
        model, given, pieces if streamed is None else streamed, place, few=baselines
    )
    _check_fit(model, train, dev, recipe, time_budget)
    _check_step_memory(model, pieces, recipe)
    keep_freed_memory()
    torch.manual_seed(seed)
    if dev is None:
        everything = train
    with team_of(place) as team:
        parts = _Parts(*_train_and_dev(model, train, dev, seed))
        parts.add_event_features(model)
        parts.add_effects(model, calendar)
        if outages == "auto" and files is None:
            parts.leave_out_outages(model)
        if fill == "sample":
            parts.fill_gaps(model, seed)
        if parts.train is not train:
            pieces = cut_into_pieces(parts.train, with_history=with_history)
        source: Source
        if streamed is None:
            source = InMemory(pieces, recipe.batch_size, recipe.mixed, seed)
        else:
            source = streamed.prepare(recipe.batch_size, recipe.mixed)
        recipe = _in_full(recipe, source, often=files is None or validate_every is not None)
        if files is None:
            model.trained_on = TrainedOn.of(parts.observed, parts.dev)
        else:
            model.trained_on = files.trained_on(parts.dev)
        model.calibration = None  # that of other weights
        size = parts.train if files is None else files
        terms = _terms(model, parts, size, recipe, convention, seed)
        where = Path(folder) if folder else None
        run = Run(model, parts.train, parts.dev, where, seed, recipe, terms, source, size, team)
        if resume and team.agree(run.finished()):
            return run.fit
        run.begin(resume)
        # Gradients of attention are summed per thread, so that they depend on the number of
        # threads; these models are small.
        one_thread = place.type == "cpu" and model.one_thread
        alone = threads_for_loops(one_thread)
        with one_blas_thread(), alone, _bar(progress and team.first) as bar:
            bar.say("preparing")
            said = _timestamp_resolution(run, recipe)
            shown = parts.train
            if run.resolution:
                shown = dequantised(shown, run.resolution, seed)
            run.fit.notes += parts.notes + model.initialise(shown) + said
            if model.fits_in_closed_form:
                until = math.inf
                if time_budget is not None:
                    # The scores that follow take a part of it.
                    until = began + CLOSED_FORM_SHARE * time_budget
                bar.expect(BAR_STEPS, math.inf)
                return run.maximise(shown, FitLimits(until, bar.share))
            if baselines:
                if everything is not None and fill == "none":
                    run.refit = _refit(run, everything, outages)
                bar.say("fitting closed-form models")
                _fit_baselines(run, shown, began, time_budget)
            limits = _Limits(began, time_budget, keep_going or (lambda share, score: True))
            return _train(run, recipe, convention, place, limits, resume, bar)


def _chosen_recipe(
    model: PointProcess,
    given: dict[str, Any],
    pieces: Dataset | Streamed,
    place: torch.device,
    *,
    few: bool,
) -> Recipe:
    """What was ``given``, the model's own recipe and RECIPE, in this order; with ``few``, few
    training events are validated on often.
    """
    given = {name: value for name, value in given.items() if value is not None}
    chosen = {**RECIPE, **(model.recipe or {}), **given}
    if "steps" in given and "epochs" not in given:
        chosen["epochs"] = 0.0
    step_events = chosen.pop("step_events", STEP_EVENTS)
    if chosen["batch_size"] is None:
        chosen["batch_size"] = _batch_for(pieces, step_events, place)
    if few and pieces.scored_events < SMALL and "validate_every" not in given:
        chosen["validate_every"] = min(chosen["validate_every"] or SMALL_VALIDATE, SMALL_VALIDATE)
    return Recipe(**chosen)


def _files_and_dev(
    train: EventFiles, dev: Dataset | EventFiles | None, seed: int
) -> tuple[EventFiles, Dataset]:
    """Files to train on, and development data in memory: a sample of those given, or of a tenth of
    the sequences.
    """
    if isinstance(dev, Dataset):
        return train, dev
    if dev is None:
        train, dev = train.split((0.9, 0.1), seed=seed)
    return train, dev.sample(DEV_SAMPLE, seed)


def _train_and_dev(
    model: PointProcess, train: Dataset, dev: Dataset | None, seed: int
) -> tuple[Dataset, Dataset]:
    """The data that is fitted to and that which is scored, where ``dev`` is not given."""
    if dev is not None:
        return train, dev
    if model.fits_in_closed_form:
        return train, train.select([])  # a closed form has no early stopping to keep data for
    kept, held_out = train.split((0.9, 0.1), by="sequence", seed=seed)
    return kept, held_out


@dataclass
class _Parts:
    """The data of a fit, which is prepared step by step, and remarks on what was done.

    ``observed`` are the recorded events of ``train``, without those that fill gaps.
    """

    train: Dataset
    dev: Dataset
    observed: Dataset = field(init=False)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.observed = self.train

    def add_event_features(self, model: PointProcess) -> None:
        """Features of events scale what they trigger, where the data has features."""
        if self.train.features is not None and model.event_features is None:
            model.add_event_features(self.train)
        if model.event_features is not None:
            model.event_features.check_names(self.train)
            model.event_features.check_names(self.dev)

    def add_effects(self, model: PointProcess, calendar: str | Sequence[str]) -> None:
        """Effects of calendar and covariates, unless the model has some."""
        self.notes += _add_effects(model, self.train, self.dev, calendar)
        if model.effects is None or TREND not in model.effects.spec.calendar:
            self.notes += begun_or_ended(self.train)

    def leave_out_outages(self, model: PointProcess) -> None:
        """Silences that a rate with a calendar cannot explain count as not recorded."""
        if model.effects is None or not model.effects.spec.calendar:
            return
        found = find_outages(self.train, model.effects.spec)
        self.notes += say(self.train, found)
        self.train = without(self.train, found)
        self.dev = without(self.dev, find_outages(self.dev, model.effects.spec))
        self.observed = self.train

    def fill_gaps(self, model: PointProcess, seed: int) -> None:
        """Events of recording gaps, drawn from a Hawkes process."""
        self.train, said = fill_gaps(model, self.train, seed)
        self.notes += said


def _terms(
    model: PointProcess,
    parts: _Parts,
    size: Dataset | EventFiles,
    recipe: Recipe,
    convention: Convention,
    seed: int,
) -> dict[str, Any]:
    """What a run depends on: only a run with the same terms is resumed."""
    effects = None if model.effects is None else model.effects.spec.to_dict()
    return dict(
        **asdict(recipe),
        convention=convention,
        seed=seed,
        events=size.events,
        sequences=len(size),
        model=model.settings(),
        effects=effects,
        event_features=list(feature_names(parts.train)),
        train=size.fingerprint() if isinstance(size, EventFiles) else fingerprint(size),
        dev=fingerprint(parts.dev),
    )


def _fit_baselines(run: Run, shown: Dataset, began: float, time_budget: float | None) -> None:
    """Fit closed-form models, which the trained one is compared with, within their share of the
    time budget.
    """
    model = run.model
    limit = math.inf if time_budget is None else BASELINE_SHARE * time_budget
    found = fit_closed_forms(
        model.marks,
        shown,
        run.score,
        time_left=lambda: bool(run.team.agree(time.monotonic() - began < limit)),
        effects=None if model.effects is None else model.effects.spec,
        features=model.event_features,
    )
    run.compare_with(found)


def _refit(run: Run, everything: Dataset, outages: str) -> Callable[[ClosedForm], ClosedForm]:
    """A function that fits a closed-form model again, to ``everything``, with the same terms of the
    calendar.
    """
    model = run.model

    def refit(one: ClosedForm) -> ClosedForm:
        data = everything
        effects = None
        if model.effects is not None:
            spec = model.effects.spec
            effects = effects_of(data, spec.calendar, seconds=spec.seconds, zone=spec.zone)
            if outages == "auto" and spec.calendar:
                data = without(data, find_outages(data, effects))
        shown = dequantised(data, run.resolution, run.seed) if run.resolution else data
        again, notes = fit_closed_form(one.name, model.marks, shown, effects, model.event_features)
        again.trained_on = TrainedOn.of(everything, everything.select([]))
        return replace(one, model=again, notes=notes)

    return refit


def _add_effects(
    model: PointProcess, train: Dataset, dev: Dataset, calendar: str | Sequence[str]
) -> list[str]:
    """Give the model effects of calendar and covariates, unless it has some; what was chosen."""
    if model.effects is not None:
        return []
    if not model.effect_curves and calendar == AUTO:
        unused = train.context is not None and train.context.covariates is not None
        if unused:
            model.add_effects(effects_of(train))  # raises: the covariates would be ignored
        return []
    chosen = choose_effects(train, dev, calendar)
    if not chosen.spec.empty:
        model.add_effects(chosen.spec)
    return chosen.notes


@dataclass(frozen=True)
class _Limits:
    """When training ends before its last step."""

    began: float
    time_budget: float | None
    keep_going: Callable[[float, float], bool]


def _train(
    run: Run,
    recipe: Recipe,
    convention: Convention,
    place: torch.device,
    limits: _Limits,
    resume: bool,
    bar: _Bar,
) -> Fit:
    """The loop of optimiser steps and validations."""
    model = run.model
    began, time_budget, keep_going = limits.began, limits.time_budget, limits.keep_going
    guesses = _guesses(run)
    model.to(place)
    optimiser = run.optimiser = torch.optim.AdamW(
        _groups(model, recipe), betas=(0.9, 0.99), fused=True, capturable=place.type == "cuda"
    )
    step = run.share_state(run.load() if resume else 0)
    model.draw_training_features()
    run.begin_mean()
    if guesses and step == 0:
        run.score_guess(guesses)
    kind = CapturedSteps if CapturedSteps.able(run, place) else Steps
    taker = kind(run, optimiser, recipe, convention)
    warmup = max(1, min(recipe.warmup, recipe.steps // 10))
    began -= run.fit.history[-1]["seconds"] if run.fit.history else 0.0
    if time_budget is None:
        limit = math.inf
    else:
        closing = min(CLOSING_SHARE * time_budget, CLOSING_SECONDS)
        limit = time_budget - closing - min(REFIT_SHARE * time_budget, run.reserved())
    until = limit
    bar.expect(recipe.steps, until)
    if time_budget is not None:
        run.time_left = lambda seconds: time.monotonic() - began + seconds < time_budget
        run.refit_allowance = REFIT_OVERRUN * time_budget

    def time_now() -> float:
        """The time; that of the first process, where a budget makes decisions depend on it."""
        now = time.monotonic()
        return now if time_budget is None else began + run.team.agree(now - began)

    seen = 0
    clock = time_now()
    pause = until / VALIDATIONS
    first, ready = step, clock - began  # preparation has no share of the schedule
    now = clock
    while step < recipe.steps:
        passed = (now - began - ready) / (until - ready) if ready < until else 1.0
        share = max(step / recipe.steps, passed)
        if (share >= 1 and (step > first or guesses)) or run.stale() >= recipe.patience:
            run.fit.stopped = "time budget" if share >= 1 else "no better validation"
            break
        warmed = min(1.0, (step + 1) / warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        rate = recipe.learning_rate * warmed * cosine
        seen += taker.take(step, rate)
        run.move_mean(step)
        step += 1
        now = time_now()
        over = step == recipe.steps or now - began >= until
        if step % recipe.validate_every == 0 or over or now - clock >= pause:
            losses = taker.drain()
            now = time_now()
            speed = seen / max(1e-9, now - clock)
            row = dict(
                step=step,
                epoch=step / run.per_epoch,
                seconds=time.monotonic() - began,
                events_per_second=speed,
                learning_rate=rate,
            )
            run.validate(row, -float(np.mean(losses)))
            bar.update(step, time.monotonic() - began, row)
            if not run.team.agree(keep_going(share, run.fit.best)):
                run.fit.stopped = "stopped from outside"
                break
            seen = 0
            clock = time_now()
            validated = clock - now
            now = clock
            # The last validation and the score of the model that is kept take as long.
            until = limit - 2 * validated
            pause = max(pause, 3 * validated)  # most of a budget is for training
        else:
            bar.update(step, now - began, None)
    run.fit.notes += taker.close()
    run.fit.notes += _remarks(run, recipe, step)
    bar.say("checking the fitted model")
    return run.finish()


def _remarks(run: Run, recipe: Recipe, steps: int) -> list[str]:
    """Remarks on training that ended after so many steps."""
    found = []
    if run.fit.stopped == "time budget" and steps < recipe.steps / 4:
        found.append(
            f"the time budget ended training after {steps:,} of {recipe.steps:,} steps: a "
            "longer budget may improve the result"
        )
    if run.closed_forms and run.train.scored_events < SMALL:
        few = f"{run.train.scored_events:,} training events are few for a neural model"
        found.append(f"{few}: it keeps its initial weights unless others are clearly better on dev")
    return found


def _guesses(run: Run) -> list[dict[str, torch.Tensor]]:
    """Weights that training has to beat: the model's own first guess, closed-form models that it
    contains, and on small data its start, which has the data's mean rates and is next to a constant
    rate.
    """
    found = []
    if run.model.first_guess:
        found.append(run.model.first_guess)
    inside = [run.model.embedded(one.model) for one in run.closed_forms]
    found += [weights for weights in inside if weights is not None]
    if run.closed_forms and run.train.scored_events < SMALL:
        found.append({name: p.detach().clone() for name, p in run.model.named_parameters()})
    return found


def _batch_for(train: Dataset | Streamed, step_events: int, place: torch.device) -> int:
    """Sequences of a step. On a processor many small steps learn more from as many events than few
    large ones; on an accelerator a step costs about the same whatever its size."""
    mean = max(1, train.scored_events) / max(1, len(train))
    if place.type == "cpu":
        return int(min(LARGEST_BATCH, max(1, round(step_events / mean))))
    quarter = math.ceil(len(train) / FEWEST_STEPS)
    return int(min(LARGEST_BATCH, max(1, quarter, int(DEVICE_EVENTS / mean))))


def _in_full(recipe: Recipe, source: Source, *, often: bool) -> Recipe:
    """The recipe with steps and validations counted out for this data. Unless validations are
    ``often``, there are about forty of them however many steps there are.
    """
    steps = max(recipe.steps, math.ceil(recipe.epochs * source.per_epoch))
    spread = max(20, steps // VALIDATIONS)
    validate_every = recipe.validate_every or spread
    if not often:
        validate_every = max(validate_every, spread)
    return replace(recipe, steps=steps, validate_every=validate_every)


def _timestamp_resolution(run: Run, recipe: Recipe) -> list[str]:
    """Find the resolution within which events are dequantised, by the run or by a model that does
    so itself; a note if there is one.
    """
    train = run.train
    resolution = coarse_resolution(train.gaps[train.gaps > 0])
    if run.model.dequantises_gaps:
        run.model.dequantise = recipe.dequantise
    elif recipe.dequantise:
        run.resolution = resolution
        run.stamped_ahead = stamped_ahead(train, resolution)
    if not resolution:
        return []
    found = (
        f"timestamps have a resolution of {span_words(resolution, train.unit)}, and a quarter of "
        f"all gaps is at most {COARSE} times that: "
    )
    if recipe.dequantise:
        return [found + "events are dequantised in training; compare models by resolution_score"]
    return [
        found + "a rate can overfit the resolution, and the density is unbounded; compare models "
        "by resolution_score, or leave dequantise=True"
    ]


def _device(name: str) -> torch.device:
    """The device of that name; it must be there."""
    there = dict(cuda=torch.cuda.is_available(), mps=torch.backends.mps.is_available(), cpu=True)
    if name == "auto":
        return torch.device(next(kind for kind, usable in there.items() if usable))
    if not there.get(name.split(":")[0], False):
        usable = ", ".join(kind for kind, found in there.items() if found)
        raise TrainingError(
            "an available device",
            f"{name!r} (available: {usable})",
            "Choose one of those, or 'auto'.",
        )
    return torch.device(name)


def _groups(model: PointProcess, recipe: Recipe) -> list[dict[str, Any]]:
    """Networks move NETWORK_PACE times as fast as rates, scales and splines, which have far to go;
    only they are decayed.

    A model with a recipe of its own is a network as a whole: its matrices are decayed, and all
    moves at one pace.
    """
    if model.recipe is not None:
        split = [
            [p for p in model.parameters() if p.requires_grad and (p.ndim > 1) == matrix]
            for matrix in (True, False)
        ]
        decays = (recipe.weight_decay, 0.0)
        return [
            dict(params=some, lr=recipe.learning_rate, pace=1.0, weight_decay=d)
            for some, d in zip(split, decays, strict=True)
        ]
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    networks = [p for n, p in named if ".weights." in n or ".biases." in n]
    rest = [p for n, p in named if ".weights." not in n and ".biases." not in n]
    return [
        dict(
            params=networks,
            lr=recipe.learning_rate * NETWORK_PACE,
            pace=NETWORK_PACE,
            weight_decay=recipe.weight_decay,
        ),
        dict(params=rest, lr=recipe.learning_rate, pace=1.0, weight_decay=0.0),
    ]


def _check_fit(
    model: PointProcess,
    train: Dataset,
    dev: Dataset | None,
    recipe: Recipe,
    time_budget: float | None,
) -> None:
    if train.scored_events == 0:
        raise TrainingError(
            "training data with events",
            f"{len(train)} sequences without one",
            "Check the split and the window.",
        )
    for data in (train, dev):
        if data is not None:
            check_marks(model.marks, data.marks)
    if recipe.steps < 1 or recipe.batch_size < 1 or (time_budget is not None and time_budget <= 0):
        received = f"{recipe.steps}, {recipe.batch_size}, {time_budget}"
        raise TrainingError(
            "positive steps, batch_size and time_budget", received, "Raise them above 0."
        )


def _check_choices(convention: str, fill: str) -> None:
    """Raise :class:`TrainingError` for an unknown name."""
    if convention not in CONVENTIONS:
        raise TrainingError(
            "convention 'window' or 'gaps'", f"{convention!r}", "Choose one of the two."
        )
    if fill not in ("none", "sample"):
        raise TrainingError("fill 'none' or 'sample'", f"{fill!r}", "Choose one of the two.")


def _check_files(model: PointProcess, train: EventFiles, fill: str) -> None:
    """Refuse what needs all events in memory."""
    if fill != "none" or model.fits_in_closed_form:
        what = "fill" if fill != "none" else f"the model {type(model).__name__}"
        raise TrainingError(
            "a model that is trained in steps, without filled gaps, for files that are read chunk "
            "by chunk",
            what,
            "Fit a sample: scan(...).sample(1_000_000, seed=0), or choose --model dapp.",
        )
    if len(train) == 0:
        raise TrainingError("training data with events", "no sequence", "Check the split.")


def _check_step_memory(model: PointProcess, pieces: Dataset, recipe: Recipe) -> None:
    """Raise an error if a step does not fit into memory."""
    sequences = min(recipe.batch_size, len(pieces))
    longest = int(min(pieces.lengths.max(initial=0), BLOCK)) + 1
    check_memory(model, sequences * longest, recipe.nodes)


class _Bar:
    """Progress of a fit; does nothing by itself."""

    def say(self, text: str) -> None:
        """What is being done, for as long as the number of steps is unknown."""

    def expect(self, steps: int, seconds: float) -> None:
        """So many steps, or so many seconds, are to come."""

    def update(self, step: int, seconds: float, row: dict[str, float] | None) -> None:
        """After a step, and at validations with their row."""

    def share(self, text: str, done: float) -> None:
        """What a fit in closed form is doing, and the share of it that is done."""


class _RichBar(_Bar):
    """A progress bar with likelihood, speed and time left."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar
        self.task = bar.add_task("preparing", total=None)
        self.steps = 1
        self.seconds = math.inf

    def say(self, text: str) -> None:
        self.bar.update(self.task, description=text)

    def expect(self, steps: int, seconds: float) -> None:
        self.steps, self.seconds = steps, seconds
        self.bar.reset(self.task, description="fitting", total=steps)

    def update(self, step: int, seconds: float, row: dict[str, float] | None) -> None:
        done = max(step, int(self.steps * min(1.0, seconds / self.seconds)))
        self.bar.update(self.task, completed=done)
        if row is not None:
            text = (
                f"dev {row['dev_log_likelihood']:.4f} nats/event, "
                f"{row['events_per_second']:,.0f} events/s"
            )
            self.bar.update(self.task, description=text)

    def share(self, text: str, done: float) -> None:
        self.bar.update(self.task, completed=int(self.steps * done), description=text)


@contextmanager
def _bar(show: bool) -> Iterator[_Bar]:
    """A progress bar on standard error, or none."""
    if not show:
        yield _Bar()
        return
    with progress_bar() as bar:
        yield _RichBar(bar)


TRIM, MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
LARGEST_MAP = 2**30  # bytes: blocks above this are still given back at once
LARGEST_TOP = 2**31 - 1  # so much may lie free at the end of the heap


@cache
def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory; whether it could be asked.

    >>> keep_freed_memory() in (True, False)
    True
    """
    try:
        ask = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(ask(MAP, LARGEST_MAP)) and bool(ask(TRIM, LARGEST_TOP))
