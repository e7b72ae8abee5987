"""Which terms of the calendar a model gets: those that a user names, or those that explain held-out
data better.

With "auto" terms are added one at a time, in an order from coarse to fine, to a Poisson process
that is fitted to the training data and scored on the development data. A term is kept if its gain
there is larger than chance explains (`training.closed_forms.clearly_positive`). Terms are tried
only if the training data cover at least two of their periods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fourpoint.events import Dataset
from fourpoint.models.effects import EffectsSpec, effects_of, seconds_per_unit
from fourpoint.models.poisson import Poisson
from fourpoint.training.closed_forms import clearly_positive, unit_scores

AUTO = "auto"
NONE = "none"
# Terms that auto tries, in this order, with the seconds of data that each needs at least.
TRIED = (("hour", 2 * 86400.0), ("weekday", 14 * 86400.0), ("week", 21 * 86400.0))
YEARLY = ("month", 1.5 * 365.25 * 86400.0)
FEWEST = 30  # events below which nothing is tried
MOST_EVENTS = 200_000  # training events that are looked at


@dataclass
class Chosen:
    """The effects of a model, and what to say about the choice."""

    spec: EffectsSpec
    notes: list[str] = field(default_factory=list)


def choose_effects(train: Dataset, dev: Dataset, calendar: str | Sequence[str]) -> Chosen:
    """The effects for ``calendar``: "auto", "none", or names of terms, together or separated by
    commas; covariates of the data are always used.
    """
    names = calendar.split(",") if isinstance(calendar, str) else list(calendar)
    names = [name.strip() for name in names if name.strip()]
    if names in ([], [NONE]):
        return Chosen(effects_of(train))
    if names != [AUTO]:
        return Chosen(effects_of(train, names))
    context = train.context
    if context is None or context.origin is None or train.scored_events < FEWEST:
        return Chosen(effects_of(train))
    return _automatic(train, dev)


def _automatic(train: Dataset, dev: Dataset) -> Chosen:
    """Terms that gain on the development data, tried one after the other."""
    assert train.context is not None and train.context.origin is not None
    unit = seconds_per_unit(train)
    begin = train.context.origin + train.starts * unit
    end = train.context.origin + train.stops * unit
    covered = float(end.max() - begin.min())
    scored = dev
    if not dev.scored_events:  # a closed form has no development data: its last fifth is used
        train, scored = train.split((0.8, 0.2), by="time")
    some = train.some(MOST_EVENTS, seed=0)
    events = max(1, scored.scored_events)
    best = _fitted(some, effects_of(train))
    before = unit_scores(best, scored, "window")
    names: list[str] = []
    said = []
    for name, needed in (*TRIED, YEARLY):
        if covered < needed:
            continue
        spec = effects_of(train, [*names, name])
        scores = unit_scores(_fitted(some, spec), scored, "window")
        gain = scores - before
        if clearly_positive(gain):
            names.append(name)
            before = scores
            said.append(f"{name} (+{float(gain.sum()) / events:.4f} nats per event on dev)")
    if not names:
        return Chosen(effects_of(train), ["calendar: no term is better than chance on dev"])
    return Chosen(effects_of(train, names), [f"calendar: {', '.join(said)}"])


def _fitted(data: Dataset, spec: EffectsSpec) -> Poisson:
    model = Poisson(data.marks.types)
    model.add_effects(spec)
    model.maximum_likelihood(data if data.marks.box is None else data.without_places())
    return model


def has_dates(data: Dataset) -> bool:
    """Whether it is known when the events of ``data`` happened."""
    return data.context is not None and data.context.origin is not None


def covers_days(data: Dataset) -> bool:
    """Whether sequences with dates are longer than a day, so that the time since their start is not
    the time of day.
    """
    if not has_dates(data) or not len(data):
        return False
    return bool(np.max(data.durations) * seconds_per_unit(data) > 1.5 * 86400.0)
