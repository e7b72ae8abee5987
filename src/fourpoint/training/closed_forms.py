"""Closed-form models that every fit is compared with: constant rate, spline in time, Hawkes
process.

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
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fourpoint.events import Dataset, MarkSpace
from fourpoint.events.windows import beginning, repeated_windows
from fourpoint.inference.likelihood import Convention, quick_gap_terms
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import EffectsSpec
from fourpoint.models.event_features import EventFeatures
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson, SplinePoisson

FEW_SEQUENCES = 30  # below this number sequences are cut into blocks of gaps
UNITS = 60  # blocks of gaps in all, where sequences are few
# quantile of Student's t that a gain has to exceed; weights are the best of many validations
LEVEL = 0.995
MOST_EVENTS = 1_000_000  # training events that a Hawkes process is fitted to
CALENDAR = "poisson with calendar and covariates"  # name of a closed-form model
MOST_PAIRS = 2e8  # events times types squared, beyond which no Hawkes process is fitted


class ClosedForm(NamedTuple):
    """A fitted closed-form model: its name, its remarks and its scores on the development data."""

    name: str
    model: PointProcess
    notes: list[str]
    scores: Tensor


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

    Arguments
        marks: the mark space of the model that they are compared with.
        shown: training data.
        score: the scores of a model on the development data, see :func:`unit_scores`.
        time_left: whether the next model may still be fitted; the constant rate always is.
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
    builders: dict[str, Callable[[], Any]] = {"poisson": lambda: Poisson(marks)}
    if effects is not None:
        builders[CALENDAR] = lambda: _with(effects, Poisson(marks))
    if repeated_windows(shown):
        builders["spline-poisson"] = lambda: SplinePoisson(marks)
    if marks.box is None and shown.events * marks.count**2 <= MOST_PAIRS:
        builders["hawkes"] = lambda: _with(effects, Hawkes(marks), features)
    found: list[ClosedForm] = []
    for name, build in builders.items():
        if found and not time_left():
            break
        model = build()
        some = beginning(shown.some(MOST_EVENTS, seed=0), MOST_EVENTS)
        notes = model.maximum_likelihood(some)
        found.append(ClosedForm(name, model.eval(), notes, score(model)))
    return found


def _with(
    effects: EffectsSpec | None, model: PointProcess, features: EventFeatures | None = None
) -> PointProcess:
    if effects is not None:
        model.add_effects(effects)
    model.event_features = deepcopy(features)
    return model


def unit_scores(model: PointProcess, data: Dataset, convention: Convention) -> Tensor:
    """Log-likelihoods of the units of ``data`` in a fixed order, in float64; their sum is that of
    all data.

    Units are the sequences where there are FEW_SEQUENCES or more of them, else blocks of
    consecutive gaps, about UNITS of them in all. Gaps of history periods belong to no block.
    """
    model.eval()
    place = next(model.parameters()).device
    per_sequence = 1 if len(data) >= FEW_SEQUENCES else math.ceil(UNITS / max(1, len(data)))
    sums = []
    for rows in data.batches(128):
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
    return torch.cat(sums) if sums else torch.zeros(0, dtype=torch.float64)


def standard_error(differences: Tensor) -> float:
    """Standard error of the sum of independent differences; infinite for fewer than two."""
    if len(differences) < 2:
        return math.inf
    return float(differences.std()) * math.sqrt(len(differences))


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
