"""Closed-form models that every fit is compared with: constant rate, spline in time, rates that
differ between sequences, Hawkes process, a level that changes from day to day.

They are maximum-likelihood fits that take seconds and have few parameters. A network that does not
beat them on held-out data has learned nothing, and on small data it usually does not.
`training.fit` therefore fits them first and returns the best of them if the trained model stays
below it.

Whether one model is better than another is decided on units of the development data (sequences, or
blocks of consecutive gaps where sequences are few) by the paired difference of their
log-likelihoods and the standard error of its sum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourpoint.events import Dataset, MarkSpace
from fourpoint.events.windows import beginning, repeated_windows
from fourpoint.inference.likelihood import Convention, quick_gap_terms
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import DAY, EffectsSpec
from fourpoint.models.event_features import EventFeatures
from fourpoint.models.frailty import Frailty
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.markov_modulated import MarkovModulated
from fourpoint.models.poisson import Poisson, SplinePoisson
from fourpoint.training.held_out import (
    LEAST_DAYS,
    Fold,
    days_of,
    scored_starts,
    shape_of_days,
)
from fourpoint.training.team import Team

FEW_SEQUENCES = 30  # below this number sequences are cut into blocks of gaps
SOME_SEQUENCES = 5  # from which on their rates may be said to differ
UNITS = 60  # blocks of gaps in all, where sequences are few
# quantile of Student's t that a gain has to exceed; weights are the best of many validations
LEVEL = 0.995
# Nats per event below a Poisson process on training data. These are not quite what the model was
# fitted to: timestamps are as they were recorded, and of many events the first ones are scored.
FAILED = 0.5
# Nats that levels of days must gain, and by which they must gain more than excitation. In 120
# simulated Hawkes processes with mean delays of 10 minutes to 3 days they gained 1.6 more at most,
# and 15 or more where the levels of days had a standard deviation of 35%.
CLEAR_NATS = 5.0
SLOWEST = 0.1  # of the length of a log: a longer mean delay is not told apart from a drift
TRIGGERED = 0.03  # share of the events, above which excitation matters
MOST_BESIDE_DAYS = 200_000  # events that levels of days are tried on
MOST_EVENTS = 1_000_000  # training events that a Hawkes process is fitted to
CALENDAR = "poisson with calendar and covariates"  # name of a closed-form model
MOST_PAIRS = 2e8  # events times types squared, beyond which no Hawkes process is fitted


@dataclass(frozen=True)
class ClosedForm:
    """A fitted closed-form model: its name, its remarks, its scores on the development data, and
    the seconds that the fit took.
    """

    name: str
    model: PointProcess
    notes: list[str]
    scores: Tensor
    seconds: float = 0.0


def fit_closed_forms(
    marks: MarkSpace,
    shown: Dataset,
    score: Callable[[Any], Tensor],
    *,
    time_left: Callable[[], bool],
    effects: EffectsSpec | None = None,
    features: EventFeatures | None = None,
) -> list[ClosedForm]:
    """Fit the closed-form models that suit ``shown``, as long as there is ``time_left``.

    Args:
        marks: the mark space of the model that they are compared with.
        shown: training data.
        score: the scores of a model on the development data, see :func:`unit_scores`.
        time_left: whether the next model may still be fitted; Poisson processes always are.
        effects: of calendar and covariates, which the Hawkes process and a second Poisson process
            have too.
        features: of events, which scale what they trigger in the Hawkes process too.

    >>> from fourpoint.data.synthetic import simulate
    >>> data = simulate("nonhomogeneous2", 100, seed=1)
    >>> found = fit_closed_forms(
    ...     data.marks,
    ...     data,
    ...     lambda model: unit_scores(model, data, "window"),
    ...     time_left=lambda: True,
    ... )
    >>> max(found, key=lambda one: float(one.scores.sum())).name
    'spline-poisson'
    """
    names = ["poisson"]
    if effects is not None:
        names.append(CALENDAR)
    if repeated_windows(shown):
        names.append("spline-poisson")
    if marks.box is None and features is None and len(shown) >= SOME_SEQUENCES:
        names.append("frailty")
    if marks.box is None and shown.events * marks.count**2 <= MOST_PAIRS:
        names.append("hawkes")
    if marks.box is None and features is None and _spans_many_days(shown, effects):
        names.append("markov-modulated")
    found: list[ClosedForm] = []
    for name in names:
        if name not in ("poisson", CALENDAR) and not time_left():
            break
        began = time.monotonic()
        model, notes = fit_closed_form(name, marks, shown, effects, features)
        seconds = time.monotonic() - began
        found.append(ClosedForm(name, model, notes, score(model), seconds))
    return found


def fit_closed_form(
    name: str,
    marks: MarkSpace,
    shown: Dataset,
    effects: EffectsSpec | None = None,
    features: EventFeatures | None = None,
) -> tuple[PointProcess, list[str]]:
    """The closed-form model of that name, fitted to ``shown``, and remarks on the fit."""
    build: dict[str, Callable[[], PointProcess]] = {
        "poisson": lambda: Poisson(marks),
        CALENDAR: lambda: _with(effects, Poisson(marks)),
        "spline-poisson": lambda: SplinePoisson(marks),
        "frailty": lambda: _with(effects, Frailty(marks)),
        "hawkes": lambda: _with(effects, Hawkes(marks), features),
        "markov-modulated": lambda: _with(effects, MarkovModulated(marks)),
    }
    model = build[name]()
    some = beginning(shown.some(MOST_EVENTS, seed=0), MOST_EVENTS)
    notes = model.maximum_likelihood(some)
    return model.eval(), notes


def _spans_many_days(data: Dataset, effects: EffectsSpec | None) -> bool:
    """Whether these are one long log with dates, or a few, whose days may have levels of their own.

    Where there are many sequences, rates that differ between them come first.
    """
    if effects is None or not effects.calendar or len(data) >= SOME_SEQUENCES:
        return False
    return float(data.durations.max(initial=0)) * effects.seconds >= LEAST_DAYS * DAY


def beside_poisson(
    model: PointProcess,
    shown: Dataset,
    some: Dataset,
    convention: Convention,
    nats: float,
) -> list[str]:
    """What to say of a maximum-likelihood fit to ``shown`` beside a Poisson process with the same
    effects, which models with a history contain: that it has failed if it scores ``nats`` per event
    on ``some`` of the data, FAILED or more below; that the excitation of a Hawkes process is as
    slow as a drift of the level, or explains less than levels of whole days.

    >>> from fourpoint.data.synthetic import simulate
    >>> data = simulate("hawkes", 20)
    >>> beside_poisson(Hawkes(), data, data, "window", -5.0)[0][:32]
    'the fit has failed: on its train'
    """
    if isinstance(model, Poisson | SplinePoisson) or model.marks.box is not None:
        return []
    effects = None if model.effects is None else model.effects.spec
    simple = _with(effects, Poisson(model.marks))
    simple.maximum_likelihood(shown)
    simple.eval()
    scores = unit_scores(simple, some, convention)
    of_simple = float(scores.sum()) / max(1, some.scored_events)
    if nats < of_simple - FAILED:
        same = "" if effects is None else " with the same effects"
        return [
            f"the fit has failed: on its training data it scores {nats:.4g} nats per event, and a "
            f"Poisson process{same} {of_simple:.4g}; use --model poisson"
        ]
    if isinstance(model, Hawkes) and _drifts(model, shown):
        return [
            "events follow others after a mean delay of more than a tenth of the log: this is not "
            "told apart from a level of the rate that changes slowly; see fourpoint compare"
        ]
    if isinstance(model, Hawkes) and _days_explain_more(model, simple, shown):
        return [
            "a level of its own for every day explains these data better than events that lead to "
            "further ones: the branching ratios may come from busy days; see fourpoint compare"
        ]
    return []


def _drifts(model: Hawkes, data: Dataset) -> bool:
    """Whether there is excitation in few logs, and all of it after a delay of more than SLOWEST of
    the longest.
    """
    if not len(data) or len(data) >= FEW_SEQUENCES or model.spectral_radius < TRIGGERED:
        return False
    fastest = float(np.max(model.estimates["decay"]))
    return 1 / fastest > SLOWEST * float(data.exposed_times.max())


def _days_explain_more(model: Hawkes, simple: PointProcess, data: Dataset) -> bool:
    """Whether levels of days gain more over the ``simple`` model on the data of the fit than the
    excitation does; False without dates, for short logs and for many events.
    """
    if not len(data) or len(data) >= SOME_SEQUENCES or data.events > MOST_BESIDE_DAYS:
        return False
    days = days_of(data, scored_starts(data))
    if days is None:
        return False
    ends = [[own[0], own[-1]] for own in days]
    events = data.scored_lengths.astype(np.float64)
    whole = Fold(data, data, edges=np.array(ends), events=events, days=days)
    found = whole.by_day(simple)
    if found is None:
        return False
    of_days = float(found.gains(shape_of_days([found])).sum())
    if of_days < CLEAR_NATS:
        return False
    excited = unit_scores(model, data, "window")
    calm = unit_scores(simple, data, "window")
    return of_days > float(excited.sum() - calm.sum()) + CLEAR_NATS


def _with(
    effects: EffectsSpec | None, model: PointProcess, features: EventFeatures | None = None
) -> PointProcess:
    if effects is not None:
        model.add_effects(effects)
    model.event_features = deepcopy(features)
    return model


def unit_scores(
    model: PointProcess, data: Dataset, convention: Convention, team: Team | None = None
) -> Tensor:
    """Log-likelihoods of the units of ``data`` in a fixed order, in float64; their sum is that of
    all data. The processes of a ``team`` share the work.

    Units are the sequences where there are FEW_SEQUENCES or more of them, else blocks of
    consecutive gaps, about UNITS of them in all. Gaps of history periods belong to no block.
    """
    model.eval()
    place = next(model.parameters()).device
    per_sequence = 1 if len(data) >= FEW_SEQUENCES else math.ceil(UNITS / max(1, len(data)))
    team = team or Team()
    found: list[list[Tensor]] = []
    for rows in team.mine(data.batches(128)):
        sums: list[Tensor] = []
        found.append(sums)
        batch = data.batch(rows).to(place)
        terms = quick_gap_terms(model, batch, convention=convention).to("cpu", torch.float64)
        gaps = data.lengths[rows] + 1
        history = (batch.valid & ~batch.scored).sum(1)
        for one, count, first in zip(terms, gaps.tolist(), history.tolist(), strict=True):
            if per_sequence == 1:
                sums.append(one.sum()[None])
                continue
            blocks = min(per_sequence, count - first)
            place_of = (torch.arange(len(one)) - first) * blocks // (count - first)
            block = torch.clamp(place_of, 0, blocks - 1)
            sums.append(torch.zeros(blocks, dtype=torch.float64).index_add(0, block, one))
    units = [one for sums in team.gather(found) for one in sums]
    return torch.cat(units) if units else torch.zeros(0, dtype=torch.float64)


def standard_error(differences: Tensor) -> float:
    """Standard error of the sum of independent differences; infinite for fewer than two."""
    if len(differences) < 2:
        return math.inf
    return float(differences.std()) * math.sqrt(len(differences))


def simplest_as_good(found: list[ClosedForm]) -> ClosedForm:
    """The simplest of models that come from simple to complex: a more complex one has to gain more
    on the development data than the standard error of its gain. With fewer than two units, by which
    no standard error can be found, the best one.
    """
    if any(len(one.scores) < 2 for one in found):
        return max(found, key=lambda one: float(one.scores.sum()))
    chosen = found[0]
    for one in found[1:]:
        gain = one.scores - chosen.scores
        if float(gain.sum()) > standard_error(gain):
            chosen = one
    return chosen


def clearly_positive(differences: Tensor) -> bool:
    """Whether the sum of paired differences exceeds what chance explains: Student's t at LEVEL,
    one-sided.

    >>> (
    ...     clearly_positive(torch.tensor([1.0, 1.1, 0.9])),
    ...     clearly_positive(torch.tensor([3.0, -2.0, 1.0])),
    ... )
    (True, False)
    >>> clearly_positive(torch.tensor([5.0]))
    False
    """
    from scipy.special import stdtrit

    if len(differences) < 2:
        return False
    quantile = float(stdtrit(len(differences) - 1, LEVEL))
    return float(differences.sum()) > quantile * standard_error(differences)
