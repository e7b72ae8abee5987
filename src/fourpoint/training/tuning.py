r"""Search for settings under a time budget, by the likelihood of the development data.

The first trial is the model as it is, with a third of the budget. Further trials have a sixteenth
each; their settings are proposed by a tree-structured Parzen estimator, and a trial ends early
where its score is below the median of the trials before it at the same share of their schedules.
The best of them is fitted again with the rest of the budget. The result is the fit with the highest
log-likelihood per event on dev among all, the first included, so that it is never worse there than
the model as it is. A score that was chosen among many is too high by the choice: judge the result
on other data.

Everything that was tried is in a journal, from which a search that was killed goes on. Needs
optuna, the extra ``tune``. Source: Bergstra, Bardenet, Bengio and Kegl (2011).
"""

from __future__ import annotations

import csv
import io
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fourpoint.atomic import make_folder, write_atomic
from fourpoint.events import Dataset, UserError
from fourpoint.inference.evaluation import evaluate
from fourpoint.models import MODELS
from fourpoint.models.base import PointProcess
from fourpoint.report.printing import Printed, text_table
from fourpoint.storage.checkpoints import about, restore, save
from fourpoint.training.fitting import RECIPE, fit
from fourpoint.training.run import TrainingError, fingerprint

if TYPE_CHECKING:
    from optuna import Study, Trial
    from rich.table import Table

FIRST_SHARE = 1 / 3
TRIAL_SHARE = 1 / 16
LAST_SHARE = 1 / 4
STARTUP = 4  # trials that are drawn at random
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


def shown(value: Any) -> str:
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
) -> Tuning:
    """Search for settings of the model ``name`` that are better on ``dev`` than its own.

    Arguments
        budget: seconds in all, those of an earlier part of the same search included.
        folder: where the journal, `trials.csv` and the best model (in ``model``) are kept. A search
            in a folder with a journal goes on.
        calendar, device: as for `fit`.
        seed: of the proposals and the fits.

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
    search = _Search(name, train, dev, budget, Path(folder), calendar, device, seed, progress)
    return search.run()


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
    ) -> None:
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
        while self._left() > (LAST_SHARE + TRIAL_SHARE) * self.budget:
            self._trial()
        settings = self._best_trial()
        if "final" not in kinds and settings is not None and self._left() > LEAST_BUDGET:
            self._fit("final", settings, self._left())
        return self._found()

    def _left(self) -> float:
        return self.budget - self.spent

    # ------------------------------------------------------------------ fits

    def _trial(self) -> None:
        trial = self.study.ask()
        space = SPACES[self.name]
        settings = {name: choice.propose(trial, name) for name, choice in space.items()}
        self._fit("trial", settings, TRIAL_SHARE * self.budget, trial)

    def _fit(
        self, kind: str, settings: dict[str, Any], seconds: float, trial: Trial | None = None
    ) -> None:
        """Fit with ``settings``, note the result in the journal, and keep the model if it is the
        best so far.
        """
        import optuna

        began = time.monotonic()
        own = trial if trial is not None else self.study.ask(fixed_distributions={})
        curve: list[float] = []
        score: float | None = None
        build = MODELS[self.name]
        place = self.folder / "fit"
        shutil.rmtree(place, ignore_errors=True)
        of_model = {name: value for name, value in settings.items() if name not in RECIPE}
        of_training = {name: value for name, value in settings.items() if name in RECIPE}
        try:
            model = build(self.train.marks, **of_model)
            found = fit(
                model,
                self.train,
                self.dev,
                **of_training,
                baselines=kind != "trial",
                calendar=self.calendar,
                device=self.device,
                seed=self.seed,
                time_budget=max(seconds, LEAST_BUDGET),
                folder=place,
                progress=self.progress,
                keep_going=self._promising(curve) if kind == "trial" else None,
            )
            ended = found.stopped
            if ended != "stopped from outside":
                report = evaluate(found.model, self.dev)
                score = report.scores["window"].per_event
        except TrainingError as error:
            ended = f"failed: {error.received}"
        best = self._best_score()
        if score is not None and (best is None or score > best):
            save(found.model, self.folder / "model", about=about(place))
        shutil.rmtree(place, ignore_errors=True)
        taken = time.monotonic() - began
        self.spent += taken
        own.set_user_attr("kind", kind)
        own.set_user_attr("settings", settings)
        own.set_user_attr("seconds", taken)
        own.set_user_attr("ended", ended)
        if kind == "trial":
            own.set_user_attr("curve", curve)
            self.curves.append(curve)
        state = optuna.trial.TrialState.COMPLETE
        if score is None:
            state = optuna.trial.TrialState.PRUNED
        self.study.tell(own, score, state=state)
        write_atomic(self.folder / "trials.csv", self._found().csv().encode())

    def _promising(self, curve: list[float]) -> Any:
        """Whether a trial goes on: its score is not below the median of those before it at the same
        share of their schedules.
        """

        def keep_going(share: float, score: float) -> bool:
            place = min(POINTS - 1, int(POINTS * share))
            curve.extend([score] * (place + 1 - len(curve)))
            others = sorted(other[place] for other in self.curves if len(other) > place)
            return len(others) < STARTUP or score >= others[len(others) // 2]

        return keep_going

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
