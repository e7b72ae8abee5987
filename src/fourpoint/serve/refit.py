"""A model fitted again, to the events that a service has stored.

The new model has the kind, settings and calendar of the old one. It is fitted twice: first to the
events before a cut, to be compared with the old one on the events after it, which neither has seen
if the old one was fitted before they came; then to all events, to be served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fourpoint.events import Context, Dataset, MarkSpace, Sequence, UserError
from fourpoint.events.dates import SECONDS
from fourpoint.inference.differences import Difference, difference
from fourpoint.log_format import LogFormat
from fourpoint.models.base import PointProcess
from fourpoint.serve.engine import Served
from fourpoint.serve.following import LIVE
from fourpoint.serve.store import SqlStore, StoredEvent
from fourpoint.streaming.feed.times import TimeReader
from fourpoint.training.fitting import fit

AT_ONCE = 50_000  # events that are read at once
FEWEST = 20  # events that a fit needs
WINDOWS = {"hour": 3600.0, "day": 86_400.0, "week": 604_800.0}  # in seconds


@dataclass(frozen=True)
class Refit:
    """A refitted model, how it compares with the old one after the cut (positive: it is better),
    and the notes of the fit.
    """

    model: PointProcess
    gain: Difference | None
    events: int
    notes: tuple[str, ...]


def refit(
    served: Served,
    store: SqlStore,
    output: Path,
    *,
    held_out: float = 0.2,
    seed: int = 0,
    time_budget: float | None = None,
    settings: dict[str, Any] | None = None,
) -> Refit:
    """Fit the model of ``served`` again to the events in ``store`` and save it in ``output``.

    Arguments
        held_out: share of the time at the end on which old and new model are compared; 0: they are
            not.
        seed: of the fits.
        time_budget: seconds for both fits together; None: as long as they take.
        settings: of training, as of :func:`fourpoint.fit`.

    Raises :class:`UserError` where the store has too few events.
    """
    if not 0 <= held_out < 1:
        raise UserError("a held-out share from 0 to 1", f"{held_out}", "Type --held-out 0.2, say.")
    data = stored_dataset(served, store)
    if data.events < FEWEST:
        raise UserError(
            f"at least {FEWEST} stored events to fit to",
            f"{data.events} in {store.url}",
            "Wait until more have come.",
        )
    options: dict[str, Any] = {
        "seed": seed,
        "calendar": _calendar(served.model),
        "time_budget": None if time_budget is None else time_budget / 2,
        **(settings or {}),
    }
    gain = None
    if held_out:
        cut = [one.stop - held_out * one.duration for one in data]
        before = _joined([one.before(at) for one, at in zip(data, cut, strict=True)], data)
        after = _joined([one.scored_after(at) for one, at in zip(data, cut, strict=True)], data)
        trial = fit(_new(served.model), before, **options).model
        gain = difference(trial, served.model, after)
    found = fit(_new(served.model), data, folder=output, **options)
    return Refit(found.model, gain, data.events, tuple(dict.fromkeys(found.notes)))


def stored_dataset(served: Served, store: SqlStore) -> Dataset:
    """The scored events of a store as a data set of the model's log: one sequence per entity, or
    per window of the calendar.
    """
    times = TimeReader(served.trained.log, served.trained.unit)
    slot = next((one for one in store.slots() if one.role == LIVE), None)
    begin = None if slot is None else slot.begin
    if begin is None:
        raise UserError(
            "stored events", f"none in {store.url}", "Send events to the service first."
        )
    rows: dict[str, list[StoredEvent]] = {}
    last = store.last_sequence()
    for first in range(1, last + 1, AT_ONCE):
        for event in store.events(first, min(first + AT_ONCE - 1, last)):
            if not event.late:
                rows.setdefault(event.entity, []).append(event)
    cut = store.text("compacted")
    if cut is not None and times.calendar is None:
        begin = max(begin, float(cut))
    batch = store.last_batch()
    latest = begin if batch is None or batch.moment is None else batch.moment
    sequences = [
        _sequence(name, events, times, served.model.marks, begin, latest)
        for name, events in sorted(rows.items())
    ]
    log = times.log if times.known else LogFormat("time")
    data = Dataset.from_sequences(sequences, unit=times.unit, name="stored events")
    names = () if served.model.event_features is None else served.model.event_features.spec.names
    return replace(data, log=replace(log, split_at=()), feature_names=names)


def _sequence(
    name: str,
    events: list[StoredEvent],
    times: TimeReader,
    marks: MarkSpace,
    begin: float,
    latest: float,
) -> Sequence:
    events.sort(key=lambda event: (event.time, event.seq))
    start, stop, origin = begin, latest, None
    dates = times.dates()
    if dates is not None:
        origin = dates.origin
    if times.calendar is not None:
        seconds = SECONDS[times.unit]
        offset = events[0].moment - events[0].time
        start, stop = 0.0, min(WINDOWS[times.calendar] / seconds, latest - offset)
        origin = offset * seconds
    features = None
    if events[0].features is not None:
        features = np.array([np.frombuffer(event.features or b"") for event in events])
    return Sequence(
        np.array([event.time for event in events]),
        np.array([event.mark for event in events]),
        start=start,
        stop=float(np.nextafter(max(stop, events[-1].time), np.inf)),
        space=marks,
        id=name,
        features=features,
        context=None if origin is None else Context(origin=np.array([origin])),
    )


def _joined(sequences: list[Sequence], like: Dataset) -> Dataset:
    whole = Dataset.from_sequences(sequences, unit=like.unit, name=like.name)
    return replace(whole, log=like.log, feature_names=like.feature_names)


def _new(model: PointProcess) -> PointProcess:
    """A model of the same kind with the same settings, before training."""
    build: Callable[..., PointProcess] = type(model)
    return build(marks=model.marks, **model.settings())


def _calendar(model: PointProcess) -> str | tuple[str, ...]:
    if model.effects is None or not model.effects.spec.calendar:
        return "none"
    return model.effects.spec.calendar
