"""Which terms of the calendar a model gets: those that a user names, or those that explain held-out
data better.

With "auto" terms are added one at a time, from coarse to fine, to a Poisson process. A term is kept
if its gain on held-out time is larger than chance explains
(`training.closed_forms.clearly_positive`). Held out are blocks of the training time in turn, and
the development data. Terms are tried only if the training data cover at least two of their periods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fourpoint.events import Dataset
from fourpoint.models.effects import EffectsSpec, effects_of, seconds_per_unit
from fourpoint.models.effects_fit import blocks_of, held_out_scores
from fourpoint.training.closed_forms import clearly_positive

AUTO = "auto"
NONE = "none"
# Terms that are tried, in this order, and the seconds of data that each needs at least.
TRIED = {
    "hour": 2 * 86400.0,
    "weekday": 14 * 86400.0,
    "week": 21 * 86400.0,
    "month": 1.5 * 365.25 * 86400.0,
}
FEWEST = 30  # events below which nothing is tried
MOST_EVENTS = 100_000  # training events that are looked at
UNITS, FOLDS = 60, 5  # blocks of time, and parts of them that are held out together
DEV_UNITS = 20


@dataclass
class Chosen:
    """The effects of a model, and what to say about the choice."""

    spec: EffectsSpec
    notes: list[str] = field(default_factory=list)


def choose_effects(train: Dataset, dev: Dataset, calendar: str | Sequence[str]) -> Chosen:
    """The effects for ``calendar``: "auto", "none", or names of terms, as a list or separated by
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
    """Terms that gain on held-out time, tried one after the other."""
    assert train.context is not None and train.context.origin is not None
    unit = seconds_per_unit(train)
    begin = train.context.origin + train.starts * unit
    end = train.context.origin + train.stops * unit
    covered = float(end.max() - begin.min())
    tried = [name for name, needed in TRIED.items() if covered >= needed]
    if not tried:
        return Chosen(effects_of(train))
    whole = effects_of(train, tried)
    blocks = blocks_of(train.some(MOST_EVENTS, seed=0), whole, UNITS)
    other = blocks_of(dev, whole, DEV_UNITS) if dev.scored_events else None
    events = len(blocks.of_events) + (0 if other is None else len(other.of_events))
    before = held_out_scores(blocks, whole, effects_of(train), FOLDS, other)
    names: list[str] = []
    said = []
    for name in tried:
        spec = effects_of(train, [*names, name])
        scores = held_out_scores(blocks, whole, spec, FOLDS, other)
        gain = scores - before
        if clearly_positive(torch.from_numpy(gain)):
            names.append(name)
            before = scores
            said.append(f"{name} (+{float(np.sum(gain)) / events:.4f} nats per held-out event)")
    if not names:
        return Chosen(effects_of(train), ["calendar: no term is better than chance"])
    return Chosen(effects_of(train, names), [f"calendar: {', '.join(said)}"])
