r"""Search for settings under a time budget, by the likelihood of the development data.

The first fit is the model as it is, with a third of the budget. Trials have a sixteenth each. The
first of them has the model's own settings, and each further one changes one to three settings of
the best trial so far: a short schedule compares neighbours fairly, and settings far from the
model's own are rarely better. Values are proposed by a tree-structured Parzen estimator, and a
trial ends early where its score is below the median of the trials before it at the same share of
their schedules. The settings of the best trial are fitted again, with a schedule as long as the
rest of the budget. The result is the fit with the highest log-likelihood per event on dev among
all, the first included, so that it is never worse there than the model as it is. A score that was
chosen among many is too high by the choice: judge the result on other data.

Everything that was tried is in a journal, from which a search that was killed goes on. Needs
optuna, the extra ``tune``. Source: Bergstra, Bardenet, Bengio and Kegl (2011).
"""

from __future__ import annotations

import csv
import io
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fourpoint.atomic import make_folder, write_atomic
from fourpoint.events import Dataset, UserError
from fourpoint.inference.evaluation import evaluate
from fourpoint.models import MODELS
from fourpoint.models.base import PointProcess
from fourpoint.report.printing import Printed, text_table
from fourpoint.storage.checkpoints import about, restore, save
from fourpoint.training.fitting import RECIPE, fit
from fourpoint.training.run import TrainingError, fingerprint
from fourpoint.workers import Executor, Failure, Numbered, open_executor

if TYPE_CHECKING:
    from optuna import Study, Trial
    from rich.table import Table

FIRST_SHARE = 1 / 3
TRIAL_SHARE = 1 / 16
LAST_SHARE = 1 / 3
STARTUP = 4  # trials that are drawn at random
CHANGES = 3  # settings in which a trial differs from the best before it, at most
LONGEST = 1e4  # passes through the data: more than a budget allows, so that the budget ends a fit
JOURNAL = "journal.log"
LEAST_BUDGET = 1.0  # seconds
SHOWN = 8
POINTS = 20  # of a schedule at which trials are compared


@dataclass(frozen=True)
class Choice:
    """One setting: a list to choose from, or a range on a logarithmic scale."""

    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0

    def propose(self, trial: Trial, name: str) -> Any:
        """A value for ``trial``."""
        if self.values:
            return trial.suggest_categorical(name, self.values)
        return trial.suggest_float(name, self.low, self.high, log=True)


TRAINING = {
    "learning_rate": Choice(low=1e-3, high=1e-1),
    "weight_decay": Choice(low=1e-6, high=1e-1),
    "average": Choice((0.0, 0.99, 0.998)),
}
SPACES: dict[str, dict[str, Choice]] = {
    "dapp": {
        "heads": Choice((2, 4, 8)),
        "features": Choice((16, 32, 64)),
        "embedding": Choice((2, 4, 8, 16)),
        "knots": Choice((6, 12, 24)),
        "link": Choice(("softplus", "exp")),
        **TRAINING,
    },
    "deep-dapp": {
        "layers": Choice((1, 2, 3)),
        "width": Choice((32, 64, 96)),
        "modes": Choice((16, 32, 64)),
        "dropout": Choice((0.0, 0.1, 0.3, 0.5)),
        "event_dropout": Choice((0.0, 0.1, 0.3)),
        "mark_dropout": Choice((0.0, 0.1, 0.3)),
        **TRAINING | {"learning_rate": Choice(low=5e-4, high=2e-2)},
    },
    "rmtpp": {"hidden": Choice((16, 32, 64, 128)), **TRAINING},
    "nhp": {"hidden": Choice((16, 32, 64, 128)), **TRAINING},
    "sahp": {"hidden": Choice((16, 32, 64)), "layers": Choice((1, 2, 3)), **TRAINING},
    "thp": {"hidden": Choice((16, 32, 64)), "layers": Choice((1, 2, 3)), **TRAINING},
}


@dataclass(frozen=True)
class Tried:
    """One fit of a search: settings that differ from the model's own, and the score on dev."""

    number: int
    kind: str  # "default", "trial" or "final"
    settings: dict[str, Any]
    score: float | None  # nats per event on dev; None where the fit ended early or failed
    seconds: float
    ended: str


@dataclass(repr=False)
class Tuning(Printed):
    """What :func:`tune` tried and found; prints as a table."""

    name: str
    model: PointProcess
    best: Tried
    default: Tried
    tried: list[Tried] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Nats per event on dev over the model as it is."""
        return (self.best.score or 0.0) - (self.default.score or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The best settings, and everything that was tried."""
        return {
            "model": self.name,
            "default": self.default.score,
            "best": self.best.score,
            "gain": self.gain,
            "settings": self.best.settings,
            "tried": [vars(one) for one in self.tried],
        }

    def csv(self) -> str:
        """Everything that was tried, one line each."""
        names = sorted({name for one in self.tried for name in one.settings})
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["number", "kind", "score", "seconds", "ended", *names])
        for one in self.tried:
            score = "" if one.score is None else f"{one.score:.6f}"
            own = [one.settings.get(name, "") for name in names]
            writer.writerow([one.number, one.kind, score, f"{one.seconds:.1f}", one.ended, *own])
        return out.getvalue()

    def __rich__(self) -> Table:
        title = f"{self.name}: {self.gain:+.4f} nats per event on dev over its own settings"
        table = text_table(title, title_justify="left", box=None, pad_edge=False)
        table.add_column("fit", style="bold", no_wrap=True)
        table.add_column("dev", justify="right")
        table.add_column("seconds", justify="right")
        table.add_column("settings")
        scored = [one for one in self.tried if one.score is not None]
        for one in sorted(scored, key=lambda one: -(one.score or 0.0))[:SHOWN]:
            own = ", ".join(f"{name}={shown(value)}" for name, value in one.settings.items())
            kind = f"{one.kind} {one.number}"
            table.add_row(kind, f"{one.score:.4f}", f"{one.seconds:.0f}", own or "its own")
        return table


def shown(value: object) -> str:
    """A setting as it is typed.

    >>> shown(0.00123456), shown("exp"), shown(8)
    ('0.00123', 'exp', '8')
    """
    return f"{value:.3g}" if isinstance(value, float) else f"{value}"


def tune(
    name: str,
    train: Dataset,
    dev: Dataset,
    *,
    budget: float,
    folder: str | Path,
    calendar: str = "auto",
    device: str = "cpu",
    seed: int = 0,
    progress: bool = False,
    jobs: int | None = None,
    ray: str | None = None,
) -> Tuning:
    """Search for settings of the model ``name`` that are better on ``dev`` than its own.

    Args:
        budget: seconds in all, those of an earlier part of the same search included.
        folder: where the journal, `trials.csv` and the best model (in ``model``) are kept. A search
            in a folder with a journal goes on.
        calendar, device: as for `fit`.
        seed: of the proposals and the fits.
        jobs, ray: fit as many trials at once as there are processes, or processors of the Ray
            cluster at this address. One after the other by default.

    Returns a :class:`Tuning`. Raises :class:`UserError` where optuna is missing, the model has
    nothing to tune, or the journal in ``folder`` is of another search.

    >>> import tempfile
    >>> from fourpoint.data.synthetic import simulate
    >>> data = simulate("hawkes", 12)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     found = tune("rmtpp", data[:8], data[8:], budget=1.0, folder=place)
    >>> found.gain >= 0, found.tried[0].kind
    (True, 'default')
    """
    if name not in SPACES:
        raise UserError(
            f"a model to tune among {', '.join(SPACES)}",
            f"{name!r}",
            "Other models are fitted in closed form, or have no settings to choose.",
        )
    if not budget >= LEAST_BUDGET:
        raise UserError("a budget of at least a second", f"{budget:g}", "Type --budget 10m, say.")
    search = _Search(
        *(name, train, dev, budget, Path(folder), calendar, device, seed, progress, jobs, ray)
    )
    return search.run()


class TrialTask(NamedTuple):
    """What a process needs to fit with some settings; ``curves`` are those of earlier trials."""

    name: str
    train: Dataset
    dev: Dataset
    kind: str
    settings: dict[str, Any]
    seconds: float
    calendar: str
    device: str
    seed: int
    progress: bool
    curves: tuple[tuple[float, ...], ...]


class TrialEnd(NamedTuple):
    """How a fit ended: its score on dev in nats per event, None where it ended early or failed."""

    score: float | None
    ended: str
    curve: tuple[float, ...]
    model: PointProcess | None = None
    about: dict[str, Any] | None = None


def fit_trial(task: TrialTask) -> TrialEnd:
    """Fit with the settings of a trial, and score it on the development data."""
    curve: list[float] = []
    of_model = {name: value for name, value in task.settings.items() if name not in RECIPE}
    of_training = {name: value for name, value in task.settings.items() if name in RECIPE}
    trial = task.kind == "trial"
    with tempfile.TemporaryDirectory() as place:
        try:
            found = fit(
                MODELS[task.name](task.train.marks, **of_model),
                task.train,
                task.dev,
                **of_training,
                epochs=LONGEST if task.kind == "final" else None,
                baselines=not trial,
                calendar=task.calendar,
                device=task.device,
                seed=task.seed,
                time_budget=task.seconds,
                folder=place,
                progress=task.progress,
                keep_going=_promising(curve, task.curves) if trial else None,
            )
        except TrainingError as error:
            return TrialEnd(None, f"failed: {error.received}", tuple(curve))
        if found.stopped == "stopped from outside":
            return TrialEnd(None, found.stopped, tuple(curve))
        score = evaluate(found.model, task.dev).scores["window"].per_event
        return TrialEnd(score, found.stopped, tuple(curve), found.model, about(Path(place)))


def _promising(
    curve: list[float], curves: tuple[tuple[float, ...], ...]
) -> Callable[[float, float], bool]:
    """Whether a trial goes on: its score is not below the median of those before it at the same
    share of their schedules.
    """

    def keep_going(share: float, score: float) -> bool:
        place = min(POINTS - 1, int(POINTS * share))
        curve.extend([score] * (place + 1 - len(curve)))
        others = sorted(other[place] for other in curves if len(other) > place)
        return len(others) < STARTUP or score >= others[len(others) // 2]

    return keep_going


class _Search:
    """The state of one search."""

    def __init__(
        self,
        name: str,
        train: Dataset,
        dev: Dataset,
        budget: float,
        folder: Path,
        calendar: str,
        device: str,
        seed: int,
        progress: bool,
        jobs: int | None = None,
        ray: str | None = None,
    ) -> None:
        self.jobs, self.ray = jobs, ray
        self.name, self.train, self.dev, self.folder = name, train, dev, folder
        self.budget, self.calendar, self.device = budget, calendar, device
        self.seed, self.progress = seed, progress
        make_folder(folder)
        self.study = _study(folder / JOURNAL, seed)
        self._check_journal()
        self.spent = sum(one.seconds for one in self._tried())
        self.curves = [list(curve) for curve in self._attributes("curve")]

    def run(self) -> Tuning:
        """The first fit, trials, and the last fit, as far as they are not in the journal."""
        kinds = [one.kind for one in self._tried()]
        if "default" not in kinds:
            self._fit("default", {}, FIRST_SHARE * self.budget)
        self._trials()
        if "final" not in kinds and self._left() > LEAST_BUDGET:
            self._fit("final", self._best_trial() or {}, self._left())
        return self._found()

    def _trials(self) -> None:
        """Trials until it is time for the last fit, one after the other or many at once."""
        enough = (LAST_SHARE + TRIAL_SHARE) * self.budget
        if self.jobs is None and self.ray is None:
            while self._left() > enough:
                self._trial()
            return
        gpus = 1.0 if self.device.startswith("cuda") else 0.0
        with open_executor(
            Numbered(fit_trial), jobs=self.jobs or 1, ray=self.ray, gpus=gpus
        ) as executor:
            if self._best_trial() is None and self._left() > enough:
                self._trial()  # the model's own settings, which others start from
            while self._left() > enough:
                self._round(executor)

    def _left(self) -> float:
        return self.budget - self.spent

    # ------------------------------------------------------------------ fits

    def _trial(self) -> None:
        trial = self.study.ask()
        self._fit("trial", self._proposed(trial), TRIAL_SHARE * self.budget, trial)

    def _proposed(self, trial: Trial) -> dict[str, Any]:
        """The model's own settings first, then the best ones so far with some of them changed."""
        settings = self._best_trial()
        if settings is None:
            return {}
        space = SPACES[self.name]
        rng = np.random.default_rng((self.seed, trial.number))
        changed = rng.choice(sorted(space), rng.integers(1, CHANGES + 1), replace=False)
        return settings | {name: space[name].propose(trial, name) for name in map(str, changed)}

    def _fit(
        self, kind: str, settings: dict[str, Any], seconds: float, trial: Trial | None = None
    ) -> None:
        """Fit with ``settings``, note the result in the journal, and keep the model if it is the
        best so far.
        """
        own = trial if trial is not None else self.study.ask(fixed_distributions={})
        began = time.monotonic()
        ended = fit_trial(self._trial_task(kind, settings, seconds))
        self._note(own, kind, settings, ended, time.monotonic() - began)

    def _trial_task(self, kind: str, settings: dict[str, Any], seconds: float) -> TrialTask:
        curves = tuple(tuple(curve) for curve in self.curves)
        return TrialTask(
            self.name,
            self.train,
            self.dev,
            kind,
            settings,
            max(seconds, LEAST_BUDGET),
            self.calendar,
            self.device,
            self.seed,
            self.progress,
            curves,
        )

    def _round(self, executor: Executor) -> None:
        """As many trials at once as there are workers. They cost the time of the longest."""
        asked = []
        for _ in range(max(1, executor.free())):
            trial = self.study.ask()
            asked.append((trial, self._proposed(trial)))
        began = time.monotonic()
        running = {}
        for trial, settings in asked:
            task = self._trial_task("trial", settings, TRIAL_SHARE * self.budget)
            running[trial.number] = (trial, settings)
            executor.submit((trial.number, task))
        while executor.busy():
            for (number, _), result in executor.wait():
                trial, settings = running[number]
                if isinstance(result, Failure):
                    result = TrialEnd(None, f"failed: {result.reason}", ())
                taken = (time.monotonic() - began) / len(asked)
                self._note(trial, "trial", settings, result, taken)

    def _note(
        self, own: Trial, kind: str, settings: dict[str, Any], result: TrialEnd, taken: float
    ) -> None:
        """Note how a fit ended, and keep its model if it is the best so far."""
        import optuna

        best = self._best_score()
        score = result.score
        if score is not None and result.model is not None and (best is None or score > best):
            save(result.model, self.folder / "model", about=result.about)
        self.spent += taken
        own.set_user_attr("kind", kind)
        own.set_user_attr("settings", settings)
        own.set_user_attr("seconds", taken)
        own.set_user_attr("ended", result.ended)
        if kind == "trial":
            own.set_user_attr("curve", list(result.curve))
            self.curves.append(list(result.curve))
        state = optuna.trial.TrialState.COMPLETE
        if score is None:
            state = optuna.trial.TrialState.PRUNED
        self.study.tell(own, score, state=state)
        write_atomic(self.folder / "trials.csv", self._found().csv().encode())

    # ------------------------------------------------------------------ the journal

    def _check_journal(self) -> None:
        """Refuse to go on with a search of another model or of other data."""
        own = {
            "model": self.name,
            "train": fingerprint(self.train),
            "dev": fingerprint(self.dev),
            "calendar": self.calendar,
        }
        known = self.study.user_attrs
        if not known:
            for name, value in own.items():
                self.study.set_user_attr(name, value)
            return
        for name, value in own.items():
            if known.get(name) != value:
                what = {"train": "other training data", "dev": "other development data"}
                raise UserError(
                    f"a new folder, or one of the same search ({JOURNAL})",
                    f"{self.folder}, a search with {what.get(name, f'{name} {known.get(name)}')}",
                    "Choose another folder with -o.",
                )

    def _attributes(self, name: str) -> list[Any]:
        return [t.user_attrs[name] for t in self.study.trials if name in t.user_attrs]

    def _tried(self) -> list[Tried]:
        """All fits in the journal that have ended; what was killed is left out."""
        found = []
        for one in self.study.trials:
            known = one.user_attrs
            if not one.state.is_finished() or "kind" not in known:
                continue
            score = one.value if one.values else None
            numbers = (one.number, known["kind"], known["settings"], score, known["seconds"])
            found.append(Tried(*numbers, known["ended"]))
        return found

    def _best_score(self) -> float | None:
        scores = [one.score for one in self._tried() if one.score is not None]
        return max(scores, default=None)

    def _best_trial(self) -> dict[str, Any] | None:
        trials = [one for one in self._tried() if one.kind == "trial" and one.score is not None]
        return max(trials, key=lambda one: one.score or 0.0).settings if trials else None

    def _found(self) -> Tuning:
        tried = self._tried()
        scored = [one for one in tried if one.score is not None]
        if not scored:
            raise UserError(
                "at least one fit that ends",
                f"{len(tried)} that failed",
                "Check the data with `fourpoint data inspect`, or raise --budget.",
            )
        best = max(scored, key=lambda one: one.score or 0.0)
        default = next((one for one in tried if one.kind == "default"), best)
        return Tuning(self.name, restore(self.folder / "model"), best, default, tried)


def _study(journal: Path, seed: int) -> Study:
    """The search in ``journal``, or a new one."""
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            "the package optuna", f"{error}", "Install it: pip install 'fourpoint[tune]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from optuna.storages.journal import JournalFileBackend

    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))),
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
    )
    # A search that goes on must not propose again what it has tried.
    own = seed + len(study.trials)
    study.sampler = optuna.samplers.TPESampler(seed=own, n_startup_trials=STARTUP)
    return study
