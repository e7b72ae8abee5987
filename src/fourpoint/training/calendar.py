"""Which terms of the calendar a model gets: those that a user names, or those that explain held-out
data better.

With "auto" terms are added one at a time, from coarse to fine, to a Poisson process. A term is kept
if its gain on held-out time exceeds the standard error of that gain: rhythms are penalised, so that
one without an effect costs little, and one that is left out costs what it explains. A trend, which
continues at its last level, the quarters of an hour, which are 96 numbers, and the days of the
month are kept only if their gain is larger than chance explains
(`training.closed_forms.clearly_positive`). Held out are blocks of the training time in turn, whole
days where the log is long enough, and the development data; for the days of the month, blocks of
about a month (:func:`monthly_gain`). Terms are tried only if the training data cover at least two
of their periods, and one number for every quarter of an hour or hour of the week only if there are
events enough.
`training.comparing` uses the same terms (:func:`tried_terms`), all of them but for a trend that
gains nothing (:func:`drifts`) and days of the month that do not clearly gain
(:func:`recurs_monthly`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Dataset
from fourpoint.events.dates import shown
from fourpoint.models.effects import (
    MONTHDAY,
    PERIODIC,
    TREND,
    Effects,
    EffectsSpec,
    effects_of,
    seconds_per_unit,
)
from fourpoint.models.effects_fit import blocks_of, held_out_scores
from fourpoint.training.closed_forms import clearly_positive, standard_error

Floats = NDArray[np.float64]

AUTO = "auto"
NONE = "none"
# Terms that are tried, in this order, and the seconds of data that each needs at least.
TRIED = {
    "hour": 2 * 86400.0,
    "weekday": 14 * 86400.0,
    "week": 21 * 86400.0,
    "weekhour": 21 * 86400.0,
    "quarterhour": 2 * 86400.0,
    "month": 1.5 * 365.25 * 86400.0,
    TREND: 28 * 86400.0,
    MONTHDAY: 90 * 86400.0,  # the training part of a log of about four months
}
FINE = ("weekhour", "quarterhour")
SELDOM = (
    TREND,
    "quarterhour",
    MONTHDAY,
)  # that are kept only if their gain is larger than chance explains
# events of each type, on average, per quarter of an hour or hour of the week, from which each has a
# number
PER_SLOT = 10
LONGER = 4.0  # a silence of a type at an end of a log, by its longest other one
SILENT = 20  # events that would be expected in it
MOST_SLOTS = 10_000  # quarters of an hour of a log whose weeks differ (covariates, months)
FEWEST = 30  # events below which nothing is tried
MOST_EVENTS = 100_000  # training events that are looked at
STEPS = (86400.0, 43200.0, 21600.0, 14400.0, 7200.0)  # resolutions coarser than an hour
LOOKED_AT = 20_000  # events whose times are looked at
NEARLY_ALL = 0.98  # of them
UNITS = 60  # blocks of time
MONTH = 365.2425 * 86400.0 / 12
FOLDS = 5  # parts of them that are held out together
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
    tried = tried_terms(train)
    if not tried:
        return Chosen(effects_of(train))
    rhythms = [name for name in tried if name != MONTHDAY]
    whole = effects_of(train, rhythms)
    seen = train.some(MOST_EVENTS, seed=0)
    blocks = blocks_of(seen, whole, UNITS)
    events = len(blocks.of_events)
    other = None
    if dev.scored_events:
        other = blocks_of(dev, whole, DEV_UNITS)
        events += len(other.of_events)
    before = held_out_scores(blocks, whole, effects_of(train), FOLDS, other)
    names: list[str] = []
    said = []
    for name in rhythms:
        spec = effects_of(train, [*names, name])
        scores = held_out_scores(blocks, whole, spec, FOLDS, other)
        gain = scores - before
        if _worthwhile(name, torch.from_numpy(gain)):
            names.append(name)
            before = scores
            said.append(_gained(name, gain, events))
    if MONTHDAY in tried:
        gain = monthly_gain(train)
        if _worthwhile(MONTHDAY, torch.from_numpy(gain)):
            names.append(MONTHDAY)
            said.append(_gained(MONTHDAY, gain, seen.scored_events))
    if TREND in tried and TREND not in names and begun_or_ended(train):
        # The rates of types change, which the sum over types need not show.
        names.append(TREND)
        said.append("trend (types begin or end within the log)")
    if not names:
        return Chosen(effects_of(train), ["calendar: no term is better than chance"])
    return Chosen(effects_of(train, names), [f"calendar: {', '.join(said)}"])


def _gained(name: str, gain: Floats, events: int) -> str:
    """A term with the gain for each held-out event."""
    return f"{name} (+{float(np.sum(gain)) / events:.4f} nats per held-out event)"


def _worthwhile(name: str, gain: torch.Tensor) -> bool:
    """Whether a term with these gains on blocks of held-out time is kept."""
    if name in SELDOM:
        return clearly_positive(gain)
    return float(gain.sum()) > standard_error(gain)


def begun_or_ended(data: Dataset) -> list[str]:
    """Remarks on types of one log that began long after its start or ended long before its end: in
    a model whose rates do not change in the long run, their rates are means over the whole window.

    A silence at an end of the window counts if it is LONGER times the longest gap between two
    events of the type, and SILENT or more events would be expected in it at the rate of the rest.
    """
    found: list[str] = []
    if len(data) != 1 or data.marks.count < 2:
        return found
    sequence = data[0]
    dates = data.dates(0)
    for mark, name in enumerate(data.marks.names):
        times = sequence.times[sequence.marks == mark]
        if len(times) < SILENT:
            continue
        first = float(times[0])
        last = float(times[-1])
        longest = float(np.diff(times).max())
        rate = len(times) / (last - first + longest)
        for silence, word, at in (
            (first - sequence.start, "first", first),
            (sequence.stop - last, "last", last),
        ):
            if silence > LONGER * longest and silence * rate >= SILENT:
                found.append(
                    f"the {word} event of {name} is at {shown(dates, at)}: without a term trend, "
                    "its rate is the mean over the whole window (--window states a part of the log)"
                )
    return found


def drifts(data: Dataset) -> bool:
    """Whether a trend gains on held-out blocks of time, by more than its standard error, beside the
    rhythms of day and week.
    """
    rhythms = [name for name in tried_terms(data) if name in ("hour", "weekday")]
    whole = effects_of(data, [*rhythms, TREND], covariates=False)
    plain = effects_of(data, rhythms, covariates=False)
    blocks = blocks_of(data.some(MOST_EVENTS, seed=0), whole, UNITS)
    with_trend = held_out_scores(blocks, whole, whole, FOLDS, None)
    without = held_out_scores(blocks, whole, plain, FOLDS, None)
    gain = torch.from_numpy(with_trend - without)
    return float(gain.sum()) > standard_error(gain)


def monthly_gain(data: Dataset, *, covariates: bool = True) -> Floats:
    """What the days of the month gain on held-out blocks of time, each of which has about a month,
    beside the days of the week and, unless not ``covariates``, covariates.

    Every FOLDS-th block is held out in turn. Blocks of a few days would hold out the same days of
    all months together, whose levels would then be known from nowhere; and a gain that is made on
    two days of a month is seen in every block of a month, but in few blocks of two days.
    """
    whole = effects_of(data, ("weekday", MONTHDAY), covariates=covariates)
    plain = effects_of(data, ("weekday",), covariates=covariates)
    months = max(2, min(UNITS, round(covered_seconds(data) / MONTH)))
    blocks = blocks_of(data.some(MOST_EVENTS, seed=0), whole, months)
    with_days = held_out_scores(blocks, whole, whole, FOLDS)
    return with_days - held_out_scores(blocks, whole, plain, FOLDS)


def recurs_monthly(data: Dataset) -> bool:
    """Whether the days of the month gain more on held-out months than chance explains."""
    return clearly_positive(torch.from_numpy(monthly_gain(data, covariates=False)))


def covered_seconds(data: Dataset) -> float:
    """From the first start of a sequence with dates to the last stop."""
    assert data.context is not None and data.context.origin is not None
    unit = seconds_per_unit(data)
    begin = data.context.origin + data.starts * unit
    end = data.context.origin + data.stops * unit
    return float(end.max() - begin.min())


def tried_terms(data: Dataset) -> list[str]:
    """The terms of TRIED that data with dates cover, that are not finer than the resolution of
    their timestamps, and that have events enough.

    Where the rate jumps, as at opening hours, splines would leave the jumps to excitation:
    ``weekhour`` takes the place of ``week`` where there are events enough to see them.
    """
    covered = covered_seconds(data)
    finest = timestamp_step(data)
    names = []
    for name, needed in TRIED.items():
        if covered >= needed and term_resolution(name) >= finest:
            names.append(name)
    context = data.context
    varying = "month" in names or (context is not None and context.covariates is not None)
    too_long = varying and covered >= MOST_SLOTS * 900
    each = data.scored_events / data.marks.count  # every type has numbers of its own
    left_out = ["week"]
    if each < PER_SLOT * PERIODIC["weekhour"].intervals:
        left_out = ["weekhour"]
    if too_long or each < PER_SLOT * PERIODIC["quarterhour"].intervals:
        left_out.append("quarterhour")
    return [name for name in names if name not in left_out]


def term_resolution(name: str) -> float:
    """Seconds within which a term of the calendar tells times apart."""
    if name in (MONTHDAY, TREND):
        return 86400.0
    term = PERIODIC[name]
    return term.period / term.intervals


def timestamp_step(data: Dataset) -> float:
    """The coarsest of STEPS, in seconds, of which nearly all local times of events are multiples; 0
    if there is none.

    Where a log holds dates without times of day, a term of the time of day would explain all of
    them by their midnight, and its likelihood would grow without bound.
    """
    assert data.context is not None and data.context.origin is not None
    spec = effects_of(data, ("hour",), covariates=False)
    row = np.repeat(np.arange(len(data)), data.lengths)
    spread = np.linspace(0, data.events - 1, min(data.events, LOOKED_AT))
    some = np.unique(spread.astype(np.int64))
    times = data.times[some].copy()
    known = data.context.without("covariates", "exposure").at_each(row[some], times)
    seconds = Effects(spec, 1).local_seconds(torch.from_numpy(times), known)
    local = seconds.numpy()
    for step in STEPS:
        off = np.abs(local - step * np.round(local / step))
        if np.mean(off < 0.5) >= NEARLY_ALL:
            return step
    return 0.0
