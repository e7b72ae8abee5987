r"""Search for a model and settings under a time budget, by the likelihood of the development data.

The first fit is the default model with its own settings and its own schedule, as `fit` makes it.
Where the model is left open ("auto"), the other models of AUTO follow in the same way, since the
choice of the model matters more than any setting. Each of these first fits has at most half of the
budget.

Each trial then changes one to three settings of the best fit so far and has as long a schedule as
that fit, so that the two scores can be compared and the trial is itself a result. Values are
proposed by a tree-structured Parzen estimator. From a quarter of its schedule on, a trial ends
early where its score is below the median of the fits of the same model at the same share of their
schedules. At the end the settings of the best fit are fitted again with a longer schedule, if the
time that is left is at least half as long again as that fit took; trials leave so much time for it,
and up to three times as long where that is at most a third of the budget.

The result is the fit with the highest log-likelihood per event on dev among all, the first
included, so that it is never worse there than the default. A fit whose simulated paths run away is
not chosen. A score that was chosen among many is too high by the choice: beside the gain on dev,
with its paired interval, stands the gain corrected for the choice (`ops.pairing.chosen_gain`).

Everything that was tried is in a journal, from which a search that was killed goes on. Needs
optuna, the extra ``tune``. Source: Bergstra, Bardenet, Bengio and Kegl (2011).
"""

from __future__ import annotations

import csv
import io
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint.atomic import make_folder, write_atomic
from fourpoint.events import Dataset, UserError
from fourpoint.inference.differences import unit_log_likelihoods
from fourpoint.models import MODELS
from fourpoint.models.base import PointProcess
from fourpoint.ops.pairing import Gain, chosen_gain, paired_gain
from fourpoint.report.printing import Printed, text_table
from fourpoint.storage.checkpoints import about, restore, save
from fourpoint.strict_json import plain
from fourpoint.training.fitting import RECIPE, fit
from fourpoint.training.run import fingerprint
from fourpoint.workers import Executor, Failure, Numbered, open_executor

if TYPE_CHECKING:
    from optuna import Study, Trial
    from rich.table import Table

AUTO = ("dapp", "deep-dapp")  # models that are tried where none is named; the first is the default
FIRST_SHARE = 1 / 2  # of the budget, for each model with its own settings, at most
LAST_SHARE = 1 / 3  # of the budget, that is kept for the longer fit at the end, at most
LONGER = 3.0  # the same, in seconds of the best fit
WORTH = 1.5  # seconds of a longer fit at least, in those of the best fit
TRIAL_TIMES = 1.5  # seconds of a trial, in those of the best fit: other sizes take longer
STARTUP = 4  # trials that are drawn at random
EARLIEST = 0.25  # share of a schedule before which no trial ends early
COMPARED = 2  # fits of the same model that a trial is compared with, at least
CHANGES = 3  # settings in which a trial differs from the best before it, at most
LONGEST = 1e4  # passes through the data: more than a budget allows, so that the budget ends a fit
JOURNAL = "journal.log"
SCORES = "scores"  # folder with the log-likelihoods of the units of dev under each fit
SCHEME = 2  # how a journal is to be read
LEAST_BUDGET = 1.0  # seconds
SHOWN = 8
POINTS = 20  # of a schedule at which trials are compared
Floats = NDArray[np.float64]


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
    kind: str  # "default", "model" (another one with its own settings), "trial" or "longer"
    model: str
    settings: dict[str, Any]
    score: float | None  # nats per event on dev; None where the fit ended early or failed
    seconds: float
    ended: str


@dataclass(repr=False)
class Tuning(Printed):
    """What :func:`tune` tried and found; prints as a table.

    ``paired`` is the gain over the default on dev, with a bootstrap interval over sequences, and
    ``corrected`` the same after a correction for the choice of the best by the same data.
    """

    name: str
    model: PointProcess
    best: Tried
    default: Tried
    paired: Gain
    corrected: Gain
    tried: list[Tried] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Nats per event on dev over the default."""
        return (self.best.score or 0.0) - (self.default.score or 0.0)

    @property
    def sentence(self) -> str:
        """What was gained, in words."""
        if self.best is self.default:
            return f"Nothing was better on dev than {self.default.model} with its own settings."
        return (
            f"{self.best.model}: {self.gain:+.4f} nats per event on dev over {self.default.model} "
            f"with its own settings ({_interval(self.paired)}); corrected for the choice among "
            f"{len(self.tried)} fits {self.corrected.mean:+.4f} ({_interval(self.corrected)})."
        )

    def to_dict(self) -> dict[str, Any]:
        """The best settings, and everything that was tried."""
        return plain(
            {
                "model": self.best.model,
                "default": self.default.score,
                "best": self.best.score,
                "gain": self.gain,
                "paired": asdict(self.paired),
                "corrected": asdict(self.corrected),
                "settings": self.best.settings,
                "tried": [vars(one) for one in self.tried],
            }
        )

    def __rich__(self) -> Table:
        table = text_table(self.sentence, title_justify="left", box=None, pad_edge=False)
        table.add_column("fit", style="bold", no_wrap=True)
        table.add_column("model", no_wrap=True)
        table.add_column("dev", justify="right")
        table.add_column("seconds", justify="right")
        table.add_column("settings")
        scored = [one for one in self.tried if one.score is not None]
        for one in sorted(scored, key=lambda one: -(one.score or 0.0))[:SHOWN]:
            own = ", ".join(f"{name}={shown(value)}" for name, value in one.settings.items())
            kind = f"{one.kind} {one.number}"
            score, seconds = f"{one.score:.4f}", f"{one.seconds:.0f}"
            table.add_row(kind, one.model, score, seconds, own or "its own")
        return table


def csv_of(tried: list[Tried]) -> str:
    """Everything that was tried, one line each."""
    names = sorted({name for one in tried for name in one.settings})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["number", "kind", "model", "score", "seconds", "ended", *names])
    for one in tried:
        score = "" if one.score is None else f"{one.score:.6f}"
        own = [one.settings.get(name, "") for name in names]
        seconds = f"{one.seconds:.1f}"
        writer.writerow([one.number, one.kind, one.model, score, seconds, one.ended, *own])
    return out.getvalue()


def _interval(gain: Gain) -> str:
    return f"{gain.low:+.4f} to {gain.high:+.4f}"


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
    """Search for a model and settings that are better on ``dev`` than the default.

    Args:
        name: the model whose settings are searched, or "auto": DAPP is the default, and Deep DAPP
            is tried as well.
        budget: seconds in all, those of an earlier part of the same search included.
        folder: where the journal, `trials.csv` and the best model (in ``model``) are kept. A search
            in a folder with a journal is continued.
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
    if name != "auto" and name not in SPACES:
        raise UserError(
            f"'auto' or a model to tune among {', '.join(SPACES)}",
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
    """What a process needs to fit with some settings; ``curves`` are those of earlier fits of the
    same model.
    """

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


class Scored(NamedTuple):
    """A fitted model, the log-likelihoods of the units of dev under it, and their events."""

    model: PointProcess
    about: dict[str, Any]
    scores: Floats
    events: Floats

    @property
    def per_event(self) -> float:
        """Nats per event on dev."""
        return float(self.scores.sum() / max(1.0, self.events.sum()))


class TrialEnd(NamedTuple):
    """How a fit ended, its scores by the share of the schedule, and what was fitted: None where it
    ended early, failed or is explosive.
    """

    ended: str
    curve: tuple[float, ...]
    found: Scored | None = None


def fit_trial(task: TrialTask) -> TrialEnd:
    """Fit with the settings of a trial, and score it on the development data."""
    curve: list[float] = []
    of_model = {name: value for name, value in task.settings.items() if name not in RECIPE}
    of_training = {name: value for name, value in task.settings.items() if name in RECIPE}
    default = task.kind == "default"
    with tempfile.TemporaryDirectory() as place:
        try:
            found = fit(
                MODELS[task.name](task.train.marks, **of_model),
                task.train,
                task.dev,
                **of_training,
                epochs=LONGEST if task.kind == "longer" else None,
                baselines=default,
                calendar=task.calendar,
                device=task.device,
                seed=task.seed,
                time_budget=task.seconds,
                folder=place,
                progress=task.progress,
                keep_going=_noting(curve, task.curves if task.kind == "trial" else ()),
            )
        except UserError as error:
            if default:
                raise
            return TrialEnd(f"failed: {error.received}", tuple(curve))
        if found.stopped == "stopped from outside":
            return TrialEnd("ended early", tuple(curve))
        if found.explosive and not default:
            return TrialEnd(f"explosive: {found.explosive}", tuple(curve))
        units = unit_log_likelihoods(found.model, task.dev)
        scored = Scored(found.model, about(Path(place)), *units)
        return TrialEnd(found.stopped, tuple(curve), scored)


def _noting(
    curve: list[float], curves: tuple[tuple[float, ...], ...]
) -> Callable[[float, float], bool]:
    """A function that notes the score at each share of the schedule in ``curve``, and whether the
    fit goes on: its score is not below the median of ``curves`` at the same share.
    """

    def keep_going(share: float, score: float) -> bool:
        place = min(POINTS - 1, int(POINTS * share))
        curve.extend([score] * (place + 1 - len(curve)))
        others = sorted(other[place] for other in curves if len(other) > place)
        if share < EARLIEST or len(others) < COMPARED:
            return True
        return score >= others[(len(others) - 1) // 2]

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
        self.models = AUTO if name == "auto" else (name,)
        self.budget, self.calendar, self.device = budget, calendar, device
        self.seed, self.progress = seed, progress
        make_folder(folder)
        make_folder(folder / SCORES)
        self.study = _study(folder / JOURNAL, seed)
        self._check_journal()
        self.spent = sum(one.seconds for one in self._tried())
        self.over = 0.0  # seconds that a fit took beyond those it was given, at most

    def run(self) -> Tuning:
        """First fits, trials, and the last fit, as far as they are not in the journal."""
        for name in self.models:
            kind = "default" if name == self.models[0] else "model"
            known = any(one.kind == kind and one.model == name for one in self._tried())
            if not known and (kind == "default" or self._left() > LEAST_BUDGET):
                self._fit(kind, name, {}, min(FIRST_SHARE * self.budget, self._left()))
        if not any(one.kind == "longer" for one in self._tried()):
            self._trials(keep=True)
            best = self._best()
            if self._left() >= max(LEAST_BUDGET, WORTH * best.seconds):
                self._fit("longer", best.model, best.settings, self._left())
        self._trials(keep=False)
        return self._found()

    def _trials(self, *, keep: bool) -> None:
        """Trials for as long as there is time for the schedule of the best fit, one after the other
        or many at once. With ``keep`` they leave time for a longer fit.
        """
        if self.jobs is None and self.ray is None:
            while seconds := self._trial_seconds(keep):
                trial = self.study.ask()
                name, settings = self._proposed(trial)
                self._fit("trial", name, settings, seconds, trial)
            return
        gpus = 1.0 if self.device.startswith("cuda") else 0.0
        with open_executor(
            Numbered(fit_trial), jobs=self.jobs or 1, ray=self.ray, gpus=gpus
        ) as executor:
            while seconds := self._trial_seconds(keep):
                self._round(executor, seconds)

    def _left(self) -> float:
        return self.budget - self.spent

    def _trial_seconds(self, keep: bool) -> float:
        """Seconds of a trial; 0 where there is no time for the schedule of the best fit so far."""
        own = max(self._best().seconds, LEAST_BUDGET)
        kept = max(WORTH * own, min(LAST_SHARE * self.budget, LONGER * own)) if keep else 0.0
        available = self._left() - kept
        return min(TRIAL_TIMES * own, available) if available >= own else 0.0

    # ------------------------------------------------------------------ fits

    def _proposed(self, trial: Trial) -> tuple[str, dict[str, Any]]:
        """The model and the settings of the best fit so far, with some of these changed."""
        best = self._best()
        space = SPACES[best.model]
        rng = np.random.default_rng((self.seed, trial.number))
        changed = rng.choice(sorted(space), rng.integers(1, CHANGES + 1), replace=False)
        own = {
            name: space[name].propose(trial, f"{best.model}.{name}") for name in map(str, changed)
        }
        return best.model, best.settings | own

    def _fit(
        self,
        kind: str,
        name: str,
        settings: dict[str, Any],
        seconds: float,
        trial: Trial | None = None,
    ) -> None:
        """Fit with ``settings``, note the result in the journal, and keep the model if it is the
        best so far.
        """
        own = trial if trial is not None else self.study.ask(fixed_distributions={})
        began = time.monotonic()
        given = max(LEAST_BUDGET, seconds - self.over)
        ended = fit_trial(self._trial_task(kind, name, settings, given))
        taken = time.monotonic() - began
        self.over = max(self.over, taken - given)
        self._note(own, kind, name, settings, ended, taken)

    def _trial_task(
        self, kind: str, name: str, settings: dict[str, Any], seconds: float
    ) -> TrialTask:
        return TrialTask(
            name,
            self.train,
            self.dev,
            kind,
            settings,
            seconds,
            self.calendar,
            self.device,
            self.seed,
            self.progress,
            self._curves(name),
        )

    def _round(self, executor: Executor, seconds: float) -> None:
        """As many trials at once as there are workers. They cost the time of the longest."""
        asked = []
        for _ in range(max(1, executor.free())):
            trial = self.study.ask()
            asked.append((trial, *self._proposed(trial)))
        began = time.monotonic()
        running = {}
        for trial, name, settings in asked:
            task = self._trial_task("trial", name, settings, seconds)
            running[trial.number] = (trial, name, settings)
            executor.submit((trial.number, task))
        while executor.busy():
            for (number, _), result in executor.wait():
                if isinstance(result, Failure):
                    result = TrialEnd(f"failed: {result.reason}", ())
                taken = (time.monotonic() - began) / len(asked)
                trial, name, settings = running[number]
                self._note(trial, "trial", name, settings, result, taken)

    def _note(
        self,
        own: Trial,
        kind: str,
        name: str,
        settings: dict[str, Any],
        result: TrialEnd,
        taken: float,
    ) -> None:
        """Note how a fit ended, and keep its model if it is the best so far."""
        import optuna

        score = None
        state = optuna.trial.TrialState.PRUNED
        if result.found is not None:
            score = result.found.per_event
            state = optuna.trial.TrialState.COMPLETE
            written = io.BytesIO()
            np.save(written, np.stack([result.found.scores, result.found.events]))
            write_atomic(self.folder / SCORES / f"{own.number}.npy", written.getvalue())
            others = [one.score for one in self._tried() if one.score is not None]
            if score > max(others, default=-np.inf):
                save(result.found.model, self.folder / "model", about=result.found.about)
        self.spent += taken
        own.set_user_attr("kind", kind)
        own.set_user_attr("model", name)
        own.set_user_attr("settings", settings)
        own.set_user_attr("seconds", taken)
        own.set_user_attr("ended", result.ended)
        own.set_user_attr("curve", list(result.curve))
        self.study.tell(own, score, state=state)
        write_atomic(self.folder / "trials.csv", csv_of(self._tried()).encode())

    # ------------------------------------------------------------------ the journal

    def _check_journal(self) -> None:
        """Refuse to go on with a search of another model or of other data."""
        own = {
            "scheme": SCHEME,
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
        what = {
            "scheme": "a search of an earlier version",
            "train": "a search with other training data",
            "dev": "a search with other development data",
        }
        for name, value in own.items():
            if known.get(name) != value:
                received = what.get(name, f"a search with {name} {known.get(name)}")
                raise UserError(
                    f"a new folder, or one of the same search ({JOURNAL})",
                    f"{self.folder}, {received}",
                    "Choose another folder with -o.",
                )

    def _curves(self, name: str) -> tuple[tuple[float, ...], ...]:
        """The scores of fits of a model by the share of their schedules, but for longer ones."""
        return tuple(
            tuple(one.user_attrs["curve"])
            for one in self.study.trials
            if one.state.is_finished()
            and one.user_attrs.get("model") == name
            and one.user_attrs["kind"] != "longer"
        )

    def _tried(self) -> list[Tried]:
        """All fits in the journal that have ended; what was killed is left out."""
        found = []
        for one in self.study.trials:
            known = one.user_attrs
            if not one.state.is_finished() or "kind" not in known:
                continue
            score = one.value if one.values else None
            what = (one.number, known["kind"], known["model"], known["settings"])
            found.append(Tried(*what, score, known["seconds"], known["ended"]))
        return found

    def _scored(self) -> list[Tried]:
        return [one for one in self._tried() if one.score is not None]

    def _best(self) -> Tried:
        """The best fit so far."""
        return max(self._scored(), key=lambda one: one.score or 0.0)

    def _found(self) -> Tuning:
        scored = self._scored()
        best = max(scored, key=lambda one: one.score or 0.0)
        default = next(one for one in scored if one.kind == "default")
        units = [np.load(self.folder / SCORES / f"{one.number}.npy") for one in scored]
        scores, events = np.stack([one[0] for one in units]), units[0][1]
        reference = scored.index(default)
        apart = scores[scored.index(best)] - scores[reference]
        return Tuning(
            self.name,
            restore(self.folder / "model"),
            best,
            default,
            paired_gain(apart, events, self.seed),
            chosen_gain(scores, events, reference, self.seed),
            self._tried(),
        )


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
