r"""Which explanation of a log the data support: a ladder of models, each with one explanation more.

    constant          a constant rate (of every type)
    calendar          the rhythm of day, week and year; "time" for windows without dates that
                      repeat each other: the time since their start
    covariates        what is known beside the events
    days              a level of its own for every day; for dates whose days differ by more than
                      chance. The model to use is a hidden Markov chain of levels
    excitation        past events raise the rate: a Hawkes process with all of this in its baseline
    slow-excitation   the rise fades fast at first and slowly later, as after earthquakes: a sum of
                      exponentials, scaled by the features of events where the data have some; only
                      if it predicts better than one exponential, and than levels of days
    cross-excitation  how much depends on which type excites which; for data with several types
    dapp, deep-dapp   neural models, whose baselines have calendar and covariates too

Every step is scored on data that it was not fitted to (`training.held_out`), and its gain over the
step before is given in nats per event with a paired bootstrap interval. Closed forms are fitted
once for every fold. A neural model is fitted once, on the fold that holds out the end of the log,
and its gain is measured there.

Rounded timestamps are dequantised once, in the same way for all models: events that share a minute
are not clustered by that alone.

The time budget is kept by measurement. Of a large data set a small part is compared first, which
says what an event costs on this machine at this moment, and so how many of them can be compared;
further folds, tables and neural models are tried only if what was measured so far leaves time for
them.

Levels of days that nobody knows look like excitation to a model that has none: events of a busy day
have many predecessors. Where such levels explain held-out days (a gamma factor of the rate of each
day, of which the earlier events of the day tell), excitation has to explain more than they do, or
to remain within days: in a Hawkes process with the levels of the days as a known factor. Slow
excitation, which looks like levels of days itself, takes their place only if it predicts better
than levels of days and fast excitation together.

There is clustering beyond the calendar if excitation has a gain whose interval lies above 0 and
which matters, or if the derivative of the likelihood towards excitation, which sees weaker effects,
is more than EVIDENCE standard errors above 0 and the share of events that follow from others
matters. Excitation after a mean delay of more than a tenth of the log, or of a few days where the
levels of days vary, is no evidence: a slowly changing level would give the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Context, Dataset, MarkSpace, UserError
from fourpoint.events.dates import span_words
from fourpoint.events.dequantise import dequantised
from fourpoint.events.windows import repeated_windows
from fourpoint.inference.resolution import resolution_of
from fourpoint.kernels.compiling import threads_for_loops
from fourpoint.models import MODELS
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import MONTHDAY, TREND, EffectsSpec, effects_of, seconds_per_unit
from fourpoint.models.frailty import Frailty
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.hawkes_effects import LARGEST_INFORMATION
from fourpoint.models.poisson import Poisson
from fourpoint.ops.pairing import Gain, paired_gain
from fourpoint.ops.periodogram import timestamp_resolution
from fourpoint.report.printing import Printed, bar, text_table
from fourpoint.settings import parameters
from fourpoint.training.calendar import AUTO, FINE, NONE, drifts, recurs_monthly, tried_terms
from fourpoint.training.closed_forms import SLOWEST, SOME_SEQUENCES, TRIGGERED
from fourpoint.training.fitting import fit
from fourpoint.training.held_out import (
    Days,
    Fold,
    Scores,
    between,
    folds_of,
    local_variation,
    one_type,
    shape_of_days,
    with_levels,
    z_score,
)
from fourpoint.training.outages import find_outages, say, without
from fourpoint.workers import Numbered, open_executor, run_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

Floats = NDArray[np.float64]
ClosedForm = TypeVar("ClosedForm", Poisson, Frailty, Hawkes)
Outages = Literal["auto", "none"]

CONSTANT, CALENDAR, TIME, COVARIATES = "constant", "calendar", "time", "covariates"
FRAILTY, DAYS, EXCITATION, CROSS = "frailty", "days", "excitation", "cross-excitation"
SLOW = "slow-excitation"
# Names that `models` takes, in the order of the ladder.
LADDER = ("poisson", "calendar", "frailty", "hawkes", "dapp", "deep-dapp")
NEURAL_SHARES = {"dapp": 0.4, "deep-dapp": 0.6}  # of the time that is left for neural models
TIME_BUDGET = 60.0
FEWEST = 20  # events below which nothing can be compared
NORMAL = 1.96  # standard errors of a gain in half of its interval
MATTERS = 0.002  # nats per event, above which a gain matters
EVIDENCE = 3.0  # standard errors (`Scores.first_order`) from which excitation is not chance
REGULAR, CLEARLY = 0.8, 4.0  # local variation, and standard errors below 1, of regular events
SLOWEST_DAYS = 3.0  # the same in days, where the levels of days vary
RECOMMENDED = 0.0005  # nats per event that a more complex model must gain to be recommended
MOST_TYPES = 12  # with a table of who excites whom
LEAST_SECONDS = 8.0  # for a neural model on an idle machine, besides its start; else it is left out
SCORING = 0.25  # of the time of a neural model: for its score
DAY = 86400.0
LN2 = math.log(2.0)  # mean delays within which half of the events of one exponential come
CLOSED_SHARE = 0.75  # of the time budget for closed forms, where neural models are asked for
FIRST_SHARE = 0.25  # of the time that is left for the first fold, at most
PILOT = 3000  # events that are compared first, to measure what an event costs
WARM_UP = 300  # events that are compared before that: what is loaded and compiled is not measured
# A Hawkes process with a table of types takes 2 to 16 times as long as one without types (logs of
# 3, 5 and 8 types, few and many terms of the calendar): about this times the number of types.
CROSS_COST = 2.5
EXPONENTIALS = 3  # of slow excitation
SLOW_COST = 4.0  # times a Hawkes process with one of them
MARGIN = 1.3  # by which a cost may exceed the one measured before
FEW_UNITS = 16  # sequences that say what one costs: windows may be long and events few
FEWEST_SCORED, MOST_SCORED = 400, 4000  # events that a neural model is scored on


@dataclass(frozen=True)
class Step:
    """One explanation: its name, the model that has it, its score, and its gain over the step
    before that it builds on with the ends of a 95% interval, all in nats per held-out event.
    """

    name: str
    model: str
    nats_per_event: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True)
class Comparison(Printed):
    """The steps of the ladder, the one to use, and whether there is clustering beyond the calendar.

    ``branching`` is the share of events that the Hawkes process ascribes to earlier events, and
    ``lag`` how long after them they come on average, in the data's unit of time. ``lags`` are the
    times within which half and nine tenths of them come, where the decay is ``slow``: a sum of
    exponentials predicts better than one of them, and the share is that of the sum. ``evidence`` is
    how many standard errors the derivative of the likelihood towards excitation lies above 0.
    ``units`` are the sequences or blocks of time that intervals are based on, ``held_out`` the
    events that were scored. ``harmful`` says that the calendar predicts worse than a constant rate:
    the steps after it do not have it, and the gain of the first of them is over the constant rate.
    ``days`` is the standard deviation of the levels of days in units of what is expected, 0 where
    days do not differ by more than chance.
    ``local_variation`` is that of the gaps (`training.held_out.local_variation`), and ``regular``
    says that it is clearly below the 1 of independent events.
    ``drifting`` says that what excitation explains is not told apart from a slowly changing level:
    ``lag`` is too long for the length of the log.
    """

    steps: tuple[Step, ...]
    recommended: str
    clustering_beyond_calendar: bool
    branching: float
    lag: float
    evidence: float
    calendar: tuple[str, ...]
    unit: str
    held_out: int
    units: int
    unit_name: str
    time_budget: float
    seconds: float
    notes: tuple[str, ...] = field(default=())
    harmful: bool = False
    local_variation: float = 1.0
    regular: bool = False
    days: float = 0.0
    slow: bool = False
    lags: tuple[float, float] = (math.nan, math.nan)
    drifting: bool = False

    def step(self, name: str) -> Step:
        """The step with this name."""
        for one in self.steps:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.steps)
        raise UserError("the name of a step", repr(name), f"Choose among {known}.")

    @property
    def sentences(self) -> list[str]:
        """The answer in words."""
        from fourpoint.training.comparison_words import sentences

        return sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "steps": [
                {
                    "name": one.name,
                    "model": one.model,
                    "nats_per_event": one.nats_per_event,
                    "gain": one.gain,
                    "gain_low": one.gain_low,
                    "gain_high": one.gain_high,
                }
                for one in self.steps
            ],
            "recommended": self.recommended,
            "clustering_beyond_calendar": self.clustering_beyond_calendar,
            "sentences": self.sentences,
            "calendar": list(self.calendar),
            "harmful": self.harmful,
            "branching": self.branching,
            "lag": self.lag,
            "slow": self.slow,
            "lags": list(self.lags),
            "drifting": self.drifting,
            "evidence": self.evidence,
            "days": self.days,
            "local_variation": self.local_variation,
            "regular": self.regular,
            "unit": self.unit,
            "held_out_events": self.held_out,
            "units": self.units,
            "unit_name": self.unit_name,
            "time_budget": self.time_budget,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }

    def __rich__(self) -> Table:
        table = text_table(
            f"{self.held_out:,} held-out events in {self.units:,} {self.unit_name}",
            title_justify="left",
        )
        table.add_column("explanation")
        table.add_column("model")
        table.add_column("nats per event", justify="right")
        table.add_column("gain", justify="right")
        table.add_column("95% interval", justify="right")
        for n, one in enumerate(self.steps):
            gain = f"{one.gain:+.4f}" if n else ""
            interval = f"{one.gain_low:+.4f} to {one.gain_high:+.4f}" if n else ""
            name = f"{one.name} *" if one.name == self.recommended else one.name
            table.add_row(name, one.model, f"{one.nats_per_event:.4f}", gain, interval)
        table.caption = "* recommended model"
        return table

    def plot(self, ax: Axes | None = None) -> Axes:
        """The gain of each step over the step before, with its interval."""
        from fourpoint.plots.charts import gains_plot

        later = self.steps[1:]
        return gains_plot(
            [one.name for one in later],
            [one.gain for one in later],
            [one.gain_low for one in later],
            [one.gain_high for one in later],
            ax=ax,
        )


def compare(
    data: Dataset,
    models: str | Sequence[str] = LADDER,
    *,
    calendar: str | Sequence[str] = AUTO,
    outages: Outages = "auto",
    time_budget: float = TIME_BUDGET,
    seed: int = 0,
    progress: bool = True,
    jobs: int | None = None,
    ray: str | None = None,
) -> Comparison:
    """Fit a sequence of nested models to ``data`` and score each on held-out data.

    Args:
        models: names among poisson, calendar, frailty, hawkes, dapp and deep-dapp, together or
            separated by commas. The constant rate is always there, and with dates so are calendar
            and excitation. Without dates calendar is the time since the start of repeated windows.
            Frailty comes before excitation for five sequences or more: customers whose rates differ
            look like customers whose events lead to further ones.
        calendar: terms of the calendar, as in :func:`fourpoint.fit`. With "auto" all terms of which
            the data cover enough periods: they are penalised, so that terms without an effect cost
            little, while a rhythm that is left out would look like clustering.
        outages: "auto" takes silences that the rate of a log with dates cannot explain as time in
            which nothing was recorded (`training.outages`): for a model they would look like
            clustering. "none" counts them as observed.
        time_budget: seconds that this takes at most. Closed forms come first; neural models share
            what is left, and are left out if that is too little.
        jobs, ray: fit the neural models at the same time, in processes of this machine or on the
            Ray cluster at this address; each of them has all of the time that is left.

    Raises :class:`UserError` for fewer than 20 events, unknown models, or a calendar for data
    without dates.

    >>> from fourpoint.data.synthetic import simulate
    >>> found = compare(simulate("hawkes", 200), "poisson,hawkes", progress=False)
    >>> [step.name for step in found.steps], found.clustering_beyond_calendar
    (['constant', 'frailty', 'excitation'], True)
    """
    began = time.monotonic()
    names = _checked_models(models)
    if not time_budget > 0:
        raise UserError("a positive time budget", f"{time_budget}", "Give it in seconds.")
    if data.scored_events < FEWEST:
        raise UserError(
            f"at least {FEWEST} events to compare models on",
            f"{data.scored_events}",
            "Collect more events, or join files.",
        )
    clock = _Clock(began, time_budget)
    with _ticking(clock, progress), threads_for_loops(True):
        ladder = _ladder(data, names, calendar, outages, seed, clock)
        ladder.jobs, ladder.ray = jobs, ray
        return ladder.climb()


class NeuralTask(NamedTuple):
    """What a process needs to fit a neural model within so many seconds."""

    name: str
    train: Dataset
    marks: MarkSpace
    effects: EffectsSpec | None
    seed: int
    seconds: float


def fit_neural(task: NeuralTask) -> PointProcess:
    """A neural model with the effects of calendar and covariates, fitted."""
    build = MODELS[task.name]
    settings = {}
    if "seed" in parameters(build):
        settings["seed"] = task.seed
    model: PointProcess = build(marks=task.marks, **settings)
    if task.effects is not None and model.effect_curves:
        model.add_effects(task.effects)
    fit(
        model,
        task.train,
        seed=task.seed,
        time_budget=task.seconds,
        progress=False,
        calendar=NONE,
    )
    return model


def _ladder(
    data: Dataset,
    names: tuple[str, ...],
    calendar: str | Sequence[str],
    outages: Outages,
    seed: int,
    clock: _Clock,
) -> _Ladder:
    """The comparison of as many events as the time allows. Of many events a part is compared
    first; where that took too long already, it is the comparison, its first fold done.
    """
    total = data.scored_events
    if total <= 2 * PILOT:
        return _Ladder(data, names, calendar, outages, seed, clock)
    clock.doing = "measuring"
    terms = _Ladder(data, names, calendar, "none", seed, clock, prepare_only=True).terms
    fixed = terms or NONE
    small = _latest(data, WARM_UP, seed)
    if small.scored_events >= FEWEST:
        _Ladder(small, names, fixed, "none", seed, clock).first_fold()
    before = clock.elapsed
    pilot = _Ladder(_latest(data, PILOT, seed), names, fixed, outages, seed, clock)
    pilot.first_fold()
    seconds = clock.elapsed - before
    # Half of what the pilot took is assumed not to grow with the events: terms of the calendar cost
    # the same however many there are.
    available = FIRST_SHARE * clock.left
    times = 2 * available / (MARGIN * seconds) - 1
    piloted = pilot.raw.scored_events
    affordable = times * piloted
    if affordable >= total:
        return _Ladder(data, names, calendar, outages, seed, clock)
    ladder = pilot
    if affordable > 2 * piloted:
        some = _latest(data, int(affordable), seed)
        ladder = _Ladder(some, names, fixed, outages, seed, clock)
    compared = ladder.raw.scored_events
    if compared < total:
        part = f"{compared:,} of {total:,} events are compared, as the time budget allows"
        ladder.notes.insert(0, part)
    return ladder


def _latest(data: Dataset, most: int, seed: int) -> Dataset:
    """Sequences with about ``most`` events, or the end of a log with so many."""
    some = data.some(most, seed=seed)
    if some.scored_events > 2 * most:
        share = most / some.scored_events
        low = some.stops - share * some.durations
        some = between(some, low, some.stops)
    return some


def _names(given: str | Sequence[str]) -> list[str]:
    """Names as a list, or as text with commas between them."""
    if isinstance(given, str):
        given = given.split(",")
    stripped = [name.strip() for name in given]
    return [name for name in stripped if name]


def _checked_models(models: str | Sequence[str]) -> tuple[str, ...]:
    names = _names(models)
    for name in names:
        if name not in LADDER:
            known = ", ".join(LADDER)
            raise UserError(f"models among {known}", repr(name), "Choose among these.")
    return tuple(name for name in LADDER if name in names)


class _Clock:
    """Seconds since the call, by ``now``, what is being done, and how busy the machine is, by the
    seconds of this process, ``worked``.
    """

    def __init__(
        self,
        began: float,
        budget: float,
        now: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.process_time,
    ) -> None:
        self.began = began
        self.budget = budget
        self.now = now
        self.worked = worked
        self.from_now = now()
        self.from_worked = worked()
        self.doing = "preparing"

    @property
    def load(self) -> float:
        """How many times longer than on an idle machine the work took so far; at least 1."""
        wall = self.now() - self.from_now
        worked = self.worked() - self.from_worked
        return max(1.0, wall / max(worked, 0.05))

    @property
    def elapsed(self) -> float:
        return self.now() - self.began

    @property
    def left(self) -> float:
        return self.budget - self.elapsed


@contextmanager
def _ticking(clock: _Clock, show: bool) -> Iterator[None]:
    """A progress bar of the time budget, moved on twice a second."""
    over = threading.Event()
    with bar("comparing", clock.budget, show=show) as step:

        def tick() -> None:
            while not over.wait(0.5):
                step(clock.elapsed, clock.doing)

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()


@dataclass
class _Rung:
    """A step while it is being scored: the log-likelihoods of the units of each fold, NaN for
    those that were left out.
    """

    name: str
    model: str
    scores: dict[int, Floats] = field(default_factory=dict)


class _Ladder:
    """The state of a comparison."""

    def __init__(
        self,
        data: Dataset,
        names: tuple[str, ...],
        calendar: str | Sequence[str],
        outages: Outages,
        seed: int,
        clock: _Clock,
        *,
        prepare_only: bool = False,
    ) -> None:
        self.names = names
        self.seed = seed
        self.clock = clock
        # Processes, or the address of a Ray cluster, for neural models.
        self.jobs: int | None = None
        self.ray: str | None = None
        self.notes: list[str] = []
        self.unit = data.unit
        self.seconds: float | None = None  # in the data's unit of time, where it has a known one
        self.features: tuple[Floats, tuple[str, ...]] | None = None
        self.raw = self._prepared(data)
        self.terms = self._terms(calendar)
        if prepare_only:
            return
        self.rhythm = self._effects(covariates=False) if self.terms else None
        if outages == AUTO and self.dated and self.rhythm is not None:
            coarse = [name for name in self.terms if name not in FINE]
            silences = find_outages(self.raw, effects_of(self.raw, coarse, covariates=False))
            self.notes += say(self.raw, silences)
            self.raw = without(self.raw, silences)
        whole = self._effects(covariates=True)
        self.whole = None if whole.empty else whole
        resolution = resolution_of(self.raw)
        self.shown = dequantised(self.raw, resolution, seed) if resolution else self.raw
        self.folds = folds_of(self.shown, seed)
        self.featured: list[Fold] = self.folds  # the same with event features
        if self.features is not None:
            values, columns = self.features
            with_features = replace(self.shown, features=values, feature_names=columns)
            self.featured = folds_of(with_features, seed)
        self.done = 0  # folds whose closed forms are scored
        self.slowest = 0.0  # seconds of the slowest of them
        self.harmful = False  # the calendar predicts worse than a constant rate
        self.excitation_seconds = 0.0  # of the last Hawkes process without types
        self.cross_seconds = 0.0  # and of that with types
        self.rungs: dict[str, _Rung] = {}
        self.found: list[Excitation] = []  # of each fold
        self.found_slow: dict[int, Excitation] = {}
        # What the same ascribe to earlier events within times that are told apart from a drift.
        self.found_fast: dict[int, Excitation] = {}
        self.found_cross: list[Excitation] = []
        # Of each fold, what the types of events add to the score of a model without types.
        self.beyond_pooled: dict[int, Floats] = {}
        self.evidence: list[Floats] = []  # of excitation, by unit (Scores.first_order)
        self.days: dict[int, Days] = {}  # of each fold, under the last model without excitation
        self.excited_days: dict[int, Days] = {}  # of each fold, blocks of days under excitation
        self.slow_days: dict[int, Days] = {}
        self.day_level = 0.0  # standard deviation of the levels of days
        self.within_days = False  # excitation remains where the levels of days are known
        self.found_within_days: list[Excitation] = []
        self.slow_is_days = False  # slow excitation is not told apart from levels of days

    # ------------------------------------------------------------------ the data

    def _prepared(self, data: Dataset) -> Dataset:
        """The data as all models see them: without places, and with dates for windows that repeat
        each other.
        """
        if data.marks.box is not None:
            data = data.without_places()
            self.notes.append("the places of events are left out: times and types are compared")
        if data.features is not None:
            self.notes.append(
                "the event features scale slow excitation alone: the other steps compare times and "
                "types"
            )
            self.features = data.features, data.feature_names
        data = replace(data, features=None, feature_names=())
        self.dated = data.context is not None and data.context.origin is not None
        if not self.dated and CALENDAR in self.names and repeated_windows(data):
            # A window is taken as a day of the calendar: the periodic spline of the day then has
            # the length of the window as its period.
            self.seconds = DAY / float(data.durations[0])
            known = data.context or Context()
            origin = -data.starts * self.seconds
            data = replace(data, unit="seconds", context=replace(known, origin=origin))
        return data

    def _effects(self, *, covariates: bool, calendar: bool = True) -> EffectsSpec:
        terms = self.terms if calendar else []
        return effects_of(self.raw, terms, covariates=covariates, seconds=self.seconds)

    def _terms(self, calendar: str | Sequence[str]) -> list[str]:
        """The terms of the calendar."""
        names = _names(calendar)
        if names == [NONE]:
            return []
        if names != [AUTO]:
            effects_of(self.raw, names)  # raises for unknown terms, or without dates
            return names
        context = self.raw.context
        if context is None or context.origin is None:
            return []
        if not self.dated:
            return ["hour"]
        names = tried_terms(self.raw)
        # A trend takes time: nodes of one time of the week are no longer the same.
        if TREND in names and not drifts(self.raw):
            names.remove(TREND)
        if MONTHDAY in names and not recurs_monthly(self.raw):
            names.remove(MONTHDAY)
        return names

    # ------------------------------------------------------------------ the steps

    def climb(self) -> Comparison:
        """Fit and score everything, and draw conclusions."""
        limit = self.clock.budget
        if any(name in self.names for name in NEURAL_SHARES):
            limit *= CLOSED_SHARE
        self.first_fold()
        while self.done < len(self.folds):
            if self.clock.elapsed + MARGIN * self.slowest > limit:
                break
            self._next_fold()
        done = self.done
        if done < len(self.folds):
            self.notes.append(
                f"the time budget allowed for {done} of {len(self.folds)} folds: a longer one "
                "gives narrower intervals"
            )
        self._neural()
        return self._concluded()

    def first_fold(self) -> None:
        """Fit and score the closed forms of the first fold, if that was not done before."""
        if not self.done:
            self._next_fold()

    def _next_fold(self) -> None:
        k = self.done
        self.clock.doing = f"closed forms, fold {k + 1} of {len(self.folds)}"
        before = self.clock.elapsed
        self._closed_forms(k, self.folds[k])
        seconds = self.clock.elapsed - before
        self.slowest = max(self.slowest, seconds)
        self.done = k + 1

    def _closed_forms(self, k: int, fold: Fold) -> None:
        marks = fold.train.marks
        calm = self._fitted(Poisson(marks), None, fold.train)
        best = fold.scores(calm)
        self._add(CONSTANT, "poisson", k, best.total)
        if self.rhythm is not None:
            name = CALENDAR if self.dated else TIME
            rhythm = self._fitted(Poisson(marks), self.rhythm, fold.train)
            found = fold.scores(rhythm)
            if k == 0 and TREND in self.terms and _worse(found, best):
                self._leave_out_trend()
                rhythm = self._fitted(Poisson(marks), self.rhythm, fold.train)
                found = fold.scores(rhythm)
            self._add(name, "poisson", k, found.total)
            if k == 0 and _worse(found, best):
                # Bursts can look like a rhythm: one that predicts worse than none would hide
                # excitation, and is left out of the later steps.
                self.harmful = True
                later = self._effects(covariates=True, calendar=False)
                self.whole = None if later.empty else later
            if not self.harmful:
                best = found
                calm = rhythm
        elif self.dated:  # too short a log for any rhythm: the step exists, and gains nothing
            self._add(CALENDAR, "poisson", k, best.total)
        if self.whole is not None and self.whole.covariates:
            calm = self._fitted(Poisson(marks), self.whole, fold.train)
            best = fold.scores(calm)
            self._add(COVARIATES, "poisson", k, best.total)
        found_days = fold.by_day(calm)
        if found_days is not None:
            self.days[k] = found_days
        past = "hawkes" in self.names or self.dated
        # Rates that differ between sequences look like excitation, which is never judged without.
        if ("frailty" in self.names or past) and len(fold.test) >= SOME_SEQUENCES:
            differing = self._fitted(Frailty(marks), self.whole, fold.train)
            scores = fold.scores(differing)
            self._add(FRAILTY, "frailty", k, scores.total)
        if past:
            self._excitation(k, fold, best)

    def _leave_out_trend(self) -> None:
        """A calendar without the trend: the last level of a peak or a lull is no forecast."""
        self.terms.remove(TREND)
        self.rhythm = self._effects(covariates=False)
        whole = self._effects(covariates=True)
        self.whole = None if whole.empty else whole

    def _excitation(self, k: int, fold: Fold, best: Scores) -> None:
        """A Hawkes process; of several types it has those of its baseline, independently of what
        the past events were, and the table of who excites whom is a step of its own.
        """
        marks = fold.train.marks
        types = marks.count
        before = self.clock.elapsed
        if types == 1:
            model = self._fitted(Hawkes(marks), self.whole, fold.train)
            excited = fold.scores(model)
            simple = best
        else:
            pooled = _pooled(fold)
            poisson = self._fitted(Poisson(), self.whole, pooled.train)
            model = self._fitted(Hawkes(), self.whole, pooled.train)
            excited = pooled.scores(model)
            simple = pooled.scores(poisson)
        total = best.total + excited.total - simple.total
        self.beyond_pooled[k] = best.total - simple.total
        self._add(EXCITATION, "hawkes", k, total)
        self.evidence.append(excited.first_order(simple))
        self.excited_days[k] = _blocks(fold, excited)
        self.found.append(Excitation.of(model))
        size = 1
        if self.whole is not None:
            size += _size(self.whole)
        parameters = size * types + types**2 + 1
        self.excitation_seconds = self.clock.elapsed - before
        self._slow_excitation(k, best, excited, simple)
        if types == 1 or "hawkes" not in self.names:
            return
        expected = CROSS_COST * types * self.excitation_seconds
        if k > 0 and CROSS not in self.rungs:
            return
        if self.clock.left < expected:
            self._note("the time budget is too short for a table of which type excites which")
            return
        if types > MOST_TYPES or parameters > LARGEST_INFORMATION:
            self._note(f"{types} types are too many for a table of which type excites which")
            return
        before = self.clock.elapsed
        model = self._fitted(Hawkes(marks), self.whole, fold.train)
        scores = fold.scores(model)
        self._add(CROSS, "hawkes", k, scores.total)
        counts = np.bincount(fold.train.mark_ids, minlength=types)
        self.found_cross.append(Excitation.of(model, counts))
        self.cross_seconds = self.clock.elapsed - before

    def _slow_excitation(self, k: int, best: Scores, excited: Scores, simple: Scores) -> None:
        """A Hawkes process with a sum of exponentials, of one type, if one of them explains
        something on the first fold, and the sum explains more.
        """
        if k == 0 and (_worse(excited, simple) or self.found[k].share < TRIGGERED):
            return
        if k > 0 and SLOW not in self.rungs:
            return
        if k == 0 and self.clock.left < SLOW_COST * self.excitation_seconds:
            self._note("the time budget is too short for excitation that decays slowly")
            return
        fold = self.featured[k]
        pooled = _pooled(fold)
        model = Hawkes(exponentials=EXPONENTIALS)
        if self.features is not None:
            model.add_event_features(pooled.train)
        fitted = self._fitted(model, self.whole, pooled.train)
        scores = pooled.scores(fitted)
        if k == 0 and _worse(scores, excited):
            return
        total = best.total + scores.total - simple.total
        self._add(SLOW, "hawkes", k, total)
        self.slow_days[k] = _blocks(fold, scores)
        self.found_slow[k] = Excitation.of(model)
        self.found_fast[k] = Excitation.of(model, longest=self._longest())

    def _neural(self) -> None:
        """Neural models, on the first fold, with what is left of the time."""
        asked = [name for name in NEURAL_SHARES if name in self.names]
        if asked and (self.jobs is not None or self.ray is not None):
            self._train_at_once(asked)
            return
        overrun = 1.0
        for n, name in enumerate(asked):
            rest = sum(NEURAL_SHARES[other] for other in asked[n:])
            seconds = 0.97 * self.clock.left * NEURAL_SHARES[name] / rest
            training = LEAST_SECONDS * self.clock.load
            needed = overrun * (training + self._start_seconds())
            if seconds < needed:
                self._note(
                    f"{name} is left out: {max(seconds, 0.0):.0f} s of the time budget were left "
                    f"for it, and it needs about {needed:.0f} s or more"
                )
                continue
            self.clock.doing = name
            before = self.clock.elapsed
            self._train(name, seconds)
            taken = self.clock.elapsed - before
            overrun = max(overrun, taken / seconds)

    def _start_seconds(self) -> float:
        """What the start of a neural model is expected to take: it is the fit of a Hawkes process
        with all types.
        """
        if self.cross_seconds:
            return self.cross_seconds
        types = self.raw.marks.count
        if types == 1:
            return self.excitation_seconds
        return CROSS_COST * types * self.excitation_seconds

    def _train(self, name: str, seconds: float) -> None:
        until = self.clock.elapsed + seconds
        fitting = (1 - SCORING) * seconds
        model = fit_neural(self._neural_task(name, fitting))
        self.clock.doing = f"scoring {name}"
        scores = self._scored_until(model, until)
        self._add(name, name, 0, scores)

    def _neural_task(self, name: str, seconds: float) -> NeuralTask:
        first = self.folds[0]
        if self.raw is not self.shown:
            first = folds_of(self.raw, self.seed)[0]
        return NeuralTask(name, first.train, self.raw.marks, self.whole, self.seed, seconds)

    def _train_at_once(self, names: list[str]) -> None:
        """Fit neural models at the same time, and score them one after the other."""
        seconds = 0.97 * self.clock.left
        listed = " and ".join(names)
        if seconds < LEAST_SECONDS + self._start_seconds():
            self._note(f"{listed} are left out: {max(seconds, 0.0):.0f} s are left")
            return
        self.clock.doing = listed
        fitting = (1 - SCORING) * seconds
        tasks = [self._neural_task(name, fitting) for name in names]
        work = Numbered(fit_neural)
        jobs = self.jobs or len(names)
        with open_executor(work, jobs=jobs, ray=self.ray) as executor:
            models = list(run_all(executor, tasks))
        waiting = len(names)
        for name, model in zip(names, models, strict=True):
            self.clock.doing = f"scoring {name}"
            share = self.clock.left / waiting
            waiting -= 1
            scores = self._scored_until(model, self.clock.elapsed + share)
            self._add(name, name, 0, scores)

    def _scored_until(self, model: PointProcess, until: float) -> Floats:
        """Scores of units of the first fold: of a few, which says what an event costs, and of as
        many as the time ``until`` then allows.
        """
        first = self.folds[0]
        before = self.clock.elapsed
        part, kept = first.beginning(FEWEST_SCORED, FEW_UNITS)
        found = part.scores(model).total
        now = self.clock.elapsed
        events = max(float(part.events.sum()), 1.0)
        each = max(MARGIN * (now - before) / events, 1e-9)
        affordable = max((until - now) / each, 1.0)
        most = min(MOST_SCORED, affordable)
        more, more_kept = first.beginning(int(most))
        if more_kept.sum() > kept.sum():
            found = more.scores(model).total
            kept = more_kept
        scores = np.full(len(kept), np.nan)
        scores[kept] = found
        return scores

    def _fitted(self, model: ClosedForm, spec: EffectsSpec | None, data: Dataset) -> ClosedForm:
        if spec is not None:
            model.add_effects(spec)
        model.maximum_likelihood(data)
        return model

    def _add(self, name: str, model: str, k: int, scores: Floats) -> None:
        rung = self.rungs.setdefault(name, _Rung(name, model))
        rung.scores[k] = scores

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # ------------------------------------------------------------------ conclusions

    def _gain(self, later: _Rung, earlier: _Rung) -> Gain:
        """The gain on the units that both were scored on."""
        gained = []
        counted = []
        for k in sorted(later.scores.keys() & earlier.scores.keys()):
            gained.append(later.scores[k] - earlier.scores[k])
            counted.append(self.folds[k].events)
        differences = np.concatenate(gained)
        events = np.concatenate(counted)
        both = np.isfinite(differences)
        return paired_gain(differences[both], events[both], self.seed)

    def _slow(self) -> bool:
        """Whether a sum of exponentials predicts better than one by more than its standard error:
        then the share that it ascribes to earlier events is nearer to the truth.
        """
        excited = self.rungs.get(EXCITATION)
        slow = self.rungs.get(SLOW)
        if excited is None or slow is None or len(self.found_slow) != self.done:
            return False
        return self._some_gain(slow, excited)

    def _levels_of_days(self) -> None:
        """Add the step of the levels of days, if they explain held-out days and are not themselves
        explained by excitation.
        """
        names = list(self.rungs)
        if EXCITATION not in names or FRAILTY in names:
            return  # expected events of days are those without factors of sequences
        if len(self.days) < self.done or not self.days:
            return
        before = self.rungs[names[names.index(EXCITATION) - 1]]
        if before.name == CALENDAR and self.harmful:
            before = self.rungs[CONSTANT]
        step = _with_levels_of_days(before, self.days)
        if not self._some_gain(step, before):
            return
        excited = self.rungs[EXCITATION]
        gain = self._gain(excited, step)
        both = _with_levels_of_days(excited, self.excited_days)
        if gain.clear and gain.mean > MATTERS and not self._some_gain(both, excited):
            return
        shape = shape_of_days(list(self.days.values()))
        rival = self._excitation_within_days(shape) or both
        if self._slow() and self._some_gain(self.rungs[SLOW], rival):
            self.within_days = False
            return  # after-effects of events predict better than levels of days
        self.slow_is_days = True
        if self.within_days:
            self.found = self.found_within_days
        self.day_level = 1 / math.sqrt(shape)
        first = names.index(EXCITATION)
        later = {name: self.rungs.pop(name) for name in names[first:]}
        self.rungs |= {DAYS: step} | later

    def _some_gain(self, later: _Rung, earlier: _Rung) -> bool:
        """Whether a gain matters and exceeds its standard error: a few odd days, such as holidays,
        explain much without a narrow interval.
        """
        gain = self._gain(later, earlier)
        standard_error = (gain.mean - gain.low) / NORMAL
        return gain.mean > max(MATTERS, standard_error)

    def _excitation_within_days(self, shape: float) -> _Rung | None:
        """Whether excitation remains where the expected level of every day is a known factor, and
        how much of it. Returns the step of this excitation with the level of each held-out day
        known from its events so far; None unless all folds are scored.
        """
        levels = []
        observed = []
        factors = []
        for k in sorted(self.days):
            days = self.days[k]
            factor = (shape + days.observed) / (shape + days.expected)
            levels.append((self.folds[k].days, factor))
            observed.append(days.observed)
            factors.append(factor)
        # Levels multiply the whole rate, and so the ratio of a process that has them as a factor.
        weights = np.concatenate(observed)
        busy = float(np.average(np.concatenate(factors), weights=weights))
        self.clock.doing = "excitation within days"
        found: list[Excitation] = []
        gained = []
        events = []
        evidence = []
        slowest = 0.0
        step = _Rung(DAYS, "hawkes")
        own_days: dict[int, Days] = {}
        data = one_type(self.shown)
        if self.done < len(self.folds):
            # Folds come from the end of the log: the levels of its last days are known.
            first = self.folds[min(self.days)].days
            assert first is not None
            low = np.array([ends[0] for ends in first])
            data = between(data, low, data.stops)
        for k, fold in enumerate(folds_of(with_levels(data, levels), self.seed)):
            before = self.clock.elapsed
            if found and before + MARGIN * slowest > self.clock.budget:
                break
            poisson = self._fitted(Poisson(), self.whole, fold.train)
            hawkes = self._fitted(Hawkes(), self.whole, fold.train)
            excited = fold.scores(hawkes)
            simple = fold.scores(poisson)
            gained.append(excited.total - simple.total)
            events.append(fold.events)
            evidence.append(excited.first_order(simple))
            one = Excitation.of(hawkes)
            found.append(Excitation(busy * one.share, one.lag, one.lags))
            if self.done == len(self.folds):
                own = self.folds[k]
                unknown = replace(own, test=one_type(own.test))
                scores = unknown.scores(hawkes)
                step.scores[k] = scores.total + self.beyond_pooled[k]
                own_days[k] = _blocks(fold, scores)
            seconds = self.clock.elapsed - before
            slowest = max(slowest, seconds)
        gain = paired_gain(np.concatenate(gained), np.concatenate(events), self.seed)
        branching = float(np.median([one.share for one in found]))
        score = z_score(np.concatenate(evidence))
        strong = score > EVIDENCE and branching > TRIGGERED
        if strong or (gain.clear and gain.mean > MATTERS):
            self.within_days = True
            self.found_within_days = found
        if len(step.scores) < len(self.folds):
            return None
        return _with_levels_of_days(step, own_days)

    def _concluded(self) -> Comparison:
        self._levels_of_days()
        slow = self._slow() and not self.slow_is_days
        drifting = self._drifts(self.found)
        found_slow = self.found_slow
        if slow and (drifting or self._drifts(self.found_slow.values())):
            found_slow = self.found_fast
            slow = self._gain(self.rungs[SLOW], self.rungs[EXCITATION]).clear
            slow = slow and np.median([one.share for one in found_slow.values()]) > TRIGGERED
        if not slow:
            self.rungs.pop(SLOW, None)
        rungs = list(self.rungs.values())
        events = np.concatenate([fold.events for fold in self.folds[: self.done]])
        held_out = float(events.sum())
        first = rungs[0]
        total = sum(float(scores.sum()) for scores in first.scores.values())
        nats = total / max(held_out, 1.0)
        steps = [Step(first.name, first.model, nats, 0.0, 0.0, 0.0)]
        for n, later in enumerate(rungs[1:]):
            before = 0 if n == 1 and self.harmful else n
            if later.name == CROSS:  # with one exponential
                before = [one.name for one in rungs].index(EXCITATION)
            gain = self._gain(later, rungs[before])
            nats = steps[before].nats_per_event + gain.mean
            steps.append(Step(later.name, later.model, nats, gain.mean, gain.low, gain.high))
        excitation = list(found_slow.values()) if slow else self.found
        if drifting and not slow and self.found_cross and not self._drifts(self.found_cross):
            excitation = self.found_cross
            drifting = False
        drifting = drifting and not slow
        branching = 0.0
        lag = math.nan
        lags = (math.nan, math.nan)
        if excitation:
            branching = float(np.median([one.share for one in excitation]))
            lag = float(np.median([one.lag for one in excitation]))
            if slow:
                half, most = np.median([one.lags for one in excitation], axis=0)
                lags = float(half), float(most)
            self._tell_of_doubles(branching, lag)
        evidence = 0.0
        if self.evidence:
            evidence = z_score(np.concatenate(self.evidence))
        few = self.folds[0].edges is None
        variation, error = local_variation(self.shown)
        clearly_regular = variation < 1 - CLEARLY * error
        return Comparison(
            tuple(steps),
            self._recommended(rungs, drifting),
            not drifting and self._clustered(branching, evidence),
            branching,
            lag,
            evidence,
            tuple(self.terms) if self.dated else (),
            self.unit,
            int(held_out),
            len(events),
            "sequences" if few else "blocks of time",
            self.clock.budget,
            self.clock.elapsed,
            tuple(self.notes),
            self.harmful,
            variation,
            variation < REGULAR and clearly_regular,
            self.day_level,
            slow,
            lags,
            drifting,
        )

    def _longest(self) -> float:
        """The longest mean delay of excitation that is told apart from a slowly changing level of
        the rate. Sequences that are units of their own have a level each.
        """
        if self.folds[0].edges is None:
            return math.inf
        longest = SLOWEST * float(self.shown.exposed_times.max())
        if self.day_level:
            day = DAY / seconds_per_unit(self.raw)
            longest = min(longest, SLOWEST_DAYS * day)
        return longest

    def _drifts(self, found: Iterable[Excitation]) -> bool:
        """Whether half of the events that follow others do so too late for that."""
        halves = [one.lags[0] for one in found]
        return bool(halves) and float(np.median(halves)) > LN2 * self._longest()

    def _tell_of_doubles(self, branching: float, lag: float) -> None:
        """Say that events which follow within the timestamp resolution may be the same ones."""
        gaps = self.raw.gaps
        positive = gaps[gaps > 0]
        width = 0.0
        if len(positive):
            width = timestamp_resolution(positive)
        if branching > TRIGGERED and lag < width:
            self.notes.append(
                "events follow earlier ones within the resolution of timestamps, "
                f"{span_words(width, self.unit)}: they may have been recorded twice, or arrive in "
                "batches; --ties drop keeps one of those at the same time"
            )

    def _recommended(self, rungs: list[_Rung], drifting: bool) -> str:
        """The simplest step that no later one clearly beats by enough to matter."""
        best = rungs[0]
        for rung in rungs[1:]:
            if rung.name == DAYS and self.within_days and not drifting:
                continue  # it has no excitation, which is there
            if drifting and rung.model == "hawkes":
                continue  # its excitation is no more than a changing level
            gain = self._gain(rung, best)
            if gain.clear and gain.mean > RECOMMENDED:
                best = rung
        return best.name

    def _clustered(self, branching: float, evidence: float) -> bool:
        """Whether past events explain what the steps before excitation do not."""
        names = list(self.rungs)
        if EXCITATION not in names:
            return False
        if self.within_days:
            return True
        # Levels of sequences and of days have the same first-order effect as excitation.
        if evidence > EVIDENCE and branching > TRIGGERED and not {FRAILTY, DAYS} & set(names):
            return True
        simpler = names[: names.index(EXCITATION)]
        compared = simpler if self.harmful else simpler[-1:]
        for name in (EXCITATION, CROSS):
            if name not in names:
                continue
            gains = [self._gain(self.rungs[name], self.rungs[other]) for other in compared]
            if all(gain.clear and gain.mean > MATTERS for gain in gains):
                return True
        return False


class Excitation(NamedTuple):
    """What a fitted Hawkes process of one type ascribes to earlier events: the share of the events,
    the mean lag, and the lags within which half and nine tenths of them come.
    """

    share: float
    lag: float
    lags: tuple[float, float]

    @staticmethod
    def of(
        model: Hawkes,
        counts: NDArray[np.int64] | None = None,
        longest: float = math.inf,
    ) -> Excitation:
        """From its branching ratios and decays; of several types, with one decay, by the events of
        each. Exponentials of one type with a mean delay above ``longest`` are left out.
        """
        decays = np.atleast_1d(model.estimates["decay"])
        parts = model.estimates["branching"].reshape(-1)
        weights = parts / parts.sum()
        ratios = model.mean_branching
        share = float(ratios.sum())
        if counts is not None:
            share = float(np.sum(ratios @ counts)) / max(1, int(counts.sum()))
        kept = 1 / decays <= longest
        if not kept.all():
            share *= float(weights[kept].sum())
            weights, decays = weights[kept], decays[kept]
            weights = weights / max(float(weights.sum()), 1e-300)
        if not share > 0:
            return Excitation(0.0, math.nan, (math.nan, math.nan))
        lag = float(np.sum(weights / decays))
        half = _quantile(weights, decays, 0.5)
        most = _quantile(weights, decays, 0.9)
        return Excitation(
            share,
            lag,
            (half, most),
        )


def _quantile(weights: Floats, decays: Floats, level: float) -> float:
    """Of a mixture of exponential distributions, by bisection."""
    slowest = float(decays.min())
    low = 0.0
    high = -math.log(1 - level) / slowest
    for _ in range(60):
        middle = (low + high) / 2
        passed = -np.expm1(-decays * middle)
        if float(np.sum(weights * passed)) < level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _pooled(fold: Fold) -> Fold:
    """The same events, all of one type."""
    return replace(fold, train=one_type(fold.train), test=one_type(fold.test))


def _blocks(fold: Fold, scores: Scores) -> Days:
    """Expected and observed events of every block of days of a fold."""
    observed = fold.events.astype(np.int64)
    number = np.arange(len(observed))
    return Days(scores.integral, observed, number)


def _with_levels_of_days(rung: _Rung, days: dict[int, Days]) -> _Rung:
    """The same with levels of days, the shape of whose law is that of the days of other folds."""
    step = _Rung(DAYS, "markov-modulated")
    for k, own in days.items():
        others = [other for j, other in days.items() if j != k]
        shape = shape_of_days(others or [own])
        scores = rung.scores[k]
        gains = np.bincount(own.unit, own.gains(shape), len(scores))
        step.scores[k] = scores + gains
    return step


def _worse(one: Scores, other: Scores) -> bool:
    return float(one.total.sum()) < float(other.total.sum())


def _size(spec: EffectsSpec) -> int:
    return sum(part.stop - part.start for part in spec.columns.values())
