"""What must hold for event data, checked once: lengths, finite times in order and in their window,
marks and places in their space.

Everything that can be wrong is refused with the sequence, the event and the value, so that nothing
downstream looks again. A :class:`fourpoint.events.Sequence` and a :class:`fourpoint.events.Dataset`
are checked when they are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.errors import EventDataError

if TYPE_CHECKING:
    from fourpoint.events import Dataset, Steps

SPLITS = ("train", "dev", "test")
# Units of time: models compute in float32, with room for squares of rates.
SHORTEST = 1e-30
LONGEST = 1e30
SCALE_REMEDY = "Use another unit of time, or look for an outlier."


def check_events(d: Dataset) -> None:
    """Refuse a data set with anything wrong in it: lengths, times, windows, marks, places and
    splits, in this order.
    """
    _check_lengths(d)
    i = _first(~np.isfinite(d.times))
    if i is not None:
        received = f"{d.times[i]} at {place_of(d, i)}"
        raise EventDataError("finite times", received, "Remove or correct the row.")
    _check_windows(d)
    _check_scale(d)
    _check_order(d)
    _check_inside(d)
    _check_marks(d)
    _check_places(d)
    _check_features(d)
    _check_context(d)
    if d.splits is not None and not np.isin(d.splits, SPLITS).all():
        odd = next(s for s in d.splits.tolist() if s not in SPLITS)
        remedy = "Rename the values of the split column."
        raise EventDataError("splits called train, dev or test", f"{odd!r}", remedy)


def _first(wrong: NDArray[np.bool_] | np.bool_) -> int | None:
    """The first place at which something is wrong, or None."""
    places = np.flatnonzero(wrong)
    if not len(places):
        return None
    return int(places[0])


def _check_lengths(d: Dataset) -> None:
    """Refuse arrays that do not belong together."""
    per_sequence = {len(d.offsets) - 1, len(d.starts), len(d.stops), len(d.ids)}
    if d.splits is not None:
        per_sequence.add(len(d.splits))
    if len(d.times) != len(d.mark_ids) or len(per_sequence) > 1:
        raise EventDataError(
            "one mark per time and one window per sequence",
            f"{len(d.times)} times, {len(d.mark_ids)} marks, {len(d.offsets)} offsets, "
            f"{len(d.starts)} starts, {len(d.stops)} stops",
            "Make the lengths equal.",
        )
    complete = d.offsets[0] == 0 and d.offsets[-1] == len(d.times)
    if not complete or (np.diff(d.offsets) < 0).any():
        raise EventDataError(
            "offsets that rise from 0 to the number of events",
            f"{d.offsets.tolist()[:8]}",
            "Count the events again.",
        )


def _check_windows(d: Dataset) -> None:
    finite = np.isfinite(d.starts) & np.isfinite(d.stops)
    proper = finite & (d.stops > d.starts)
    i = _first(~proper)
    if i is not None:
        raise EventDataError(
            "a finite window with start < stop",
            f"[{d.starts[i]}, {d.stops[i]}) of sequence {d.ids[i]}",
            "Correct its start and stop.",
        )


def _check_order(d: Dataset) -> None:
    back = np.diff(d.times) < 0
    i = _first(back & inner(d))
    if i is not None:
        before = d.times[i]
        after = d.times[i + 1]
        raise EventDataError(
            "non-decreasing times",
            f"{after} after {before} at {place_of(d, i + 1)}",
            "Sort the rows, or read with sort=True.",
        )


def _check_inside(d: Dataset) -> None:
    """Refuse events outside their window; one at the end of an inferred window is inside."""
    full = np.flatnonzero(d.lengths > 0)
    # Times are in order: the first and the last of each sequence are the outermost.
    first = d.times[d.offsets[full]]
    last = d.times[d.offsets[full + 1] - 1]
    stops = d.stops[full]
    beyond = last > stops if d.inferred else last >= stops
    j = _first((first < d.starts[full]) | beyond)
    if j is not None:
        k = int(full[j])
        start = d.starts[k]
        stop = d.stops[k]
        own = d.times[d.row(k)]
        late = own > stop if d.inferred else own >= stop
        i = int(d.offsets[k] + np.argmax((own < start) | late))
        raise EventDataError(
            f"times inside the window [{start}, {stop})",
            f"{d.times[i]} at {place_of(d, i)}",
            "Widen the window or drop the event.",
        )


def _check_marks(d: Dataset) -> None:
    i = _first((d.mark_ids < 0) | (d.mark_ids >= d.marks.count))
    if i is not None:
        raise EventDataError(
            f"marks from 0 to {d.marks.count - 1}",
            f"{d.mark_ids[i]} at {place_of(d, i)}",
            "Correct the mark, or declare more types.",
        )


def _check_scale(d: Dataset) -> None:
    """Refuse times whose squares or reciprocals overflow float32, which would give likelihoods of
    NaN.
    """
    edges = np.concatenate([d.starts, d.stops])
    largest = float(np.abs(edges).max(initial=0.0))
    if largest > LONGEST:
        expected = f"times from {-LONGEST:g} to {LONGEST:g}"
        raise EventDataError(expected, f"{largest:g}", SCALE_REMEDY)
    lengths = d.stops - d.starts
    i = _first(lengths < SHORTEST)
    if i is not None:
        expected = f"windows of at least {SHORTEST:g} units of time"
        received = f"{lengths[i]:g} for sequence {d.ids[i]}"
        raise EventDataError(expected, received, SCALE_REMEDY)


def as_times(times: ArrayLike) -> NDArray[np.float64]:
    """Times as one row of float64."""
    try:
        return np.array(times, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        received = f"{str(times)[:80]!r}"
        remedy = "Convert the times to numbers."
        raise EventDataError("numbers for times", received, remedy) from error


def as_marks(marks: ArrayLike) -> NDArray[np.int64]:
    """Marks as one row of whole numbers.

    >>> as_marks([0.0, 2.0]).tolist()
    [0, 2]
    """
    values = np.asarray(marks).reshape(-1)
    kind = values.dtype.kind
    whole = kind in "iub"
    if kind == "f":
        whole = bool(np.all(values == np.floor(values)))
    if len(values) and not whole:
        raise EventDataError(
            "marks as integers 0..M-1",
            f"{values[0]!r}",
            "Number the types, or read them with fp.read.",
        )
    return values.astype(np.int64)


def as_places(places: ArrayLike, events: int) -> NDArray[np.float64]:
    """Places as ``events`` rows of one number per axis.

    >>> as_places([5.0, 6.0], events=2).tolist()
    [[5.0], [6.0]]
    """
    try:
        found = np.array(places, dtype=np.float64)
    except (TypeError, ValueError) as error:
        received = f"{str(places)[:80]!r}"
        remedy = "Convert the places to numbers."
        raise EventDataError("numbers for places", received, remedy) from error
    if not events and not found.size:
        axes = found.shape[1] if found.ndim == 2 else 1
        return found.reshape(0, max(1, axes))
    if found.ndim == 1 and events == len(found):
        found = found.reshape(events, -1)
    if found.ndim != 2 or len(found) != events:
        raise EventDataError(
            f"places as {events} rows of one number per axis",
            f"an array of shape {found.shape}",
            "Give each event a row.",
        )
    return found


def inner(data: Dataset) -> NDArray[np.bool_]:
    """True where neighbours i, i + 1 of the flat array belong to one sequence."""
    same = np.ones(max(data.events - 1, 0), dtype=bool)
    cuts = data.offsets[1:-1]
    between_events = (cuts > 0) & (cuts < data.events)
    same[cuts[between_events] - 1] = False
    return same


def place_of(data: Dataset, event: int) -> str:
    """Where flat event number ``event`` stands, in words."""
    i = int(np.searchsorted(data.offsets, event, side="right")) - 1
    number = event - int(data.offsets[i])
    return f"event {number} of sequence {data.ids[i]}"


def _check_places(d: Dataset) -> None:
    box = d.marks.box
    places = d.places
    if box is None and places is None:
        return
    remedy = "Give every event a place, and the mark space its box."
    received = "no places"
    if places is not None:
        received = f"places of shape {places.shape}"
    if box is None:
        raise EventDataError("a box for places", received, remedy)
    if places is None or places.shape != (len(d.times), box.dimension):
        expected = f"{len(d.times)} places of {box.dimension} numbers ({', '.join(box.names)})"
        raise EventDataError(expected, received, remedy)
    for axis, name in enumerate(box.names):
        x = places[:, axis]
        low = box.low[axis]
        high = box.high[axis]
        inside = (x >= low) & (x <= high)  # a NaN is in no box
        i = _first(~inside)
        if i is not None:
            raise EventDataError(
                f"{name} from {low:g} to {high:g}",
                f"{x[i]:g} at {place_of(d, i)}",
                "Widen the box (bounds=), or drop the event.",
            )


def _check_features(d: Dataset) -> None:
    """Refuse features that are not one finite number per event and name."""
    features = d.features
    if features is None:
        return
    if len(features) != len(d.times) or features.ndim != 2:
        raise EventDataError(
            f"{len(d.times)} rows of event features",
            f"an array of shape {features.shape}",
            "Give every event its features.",
        )
    columns = features.shape[1]
    if d.feature_names and len(d.feature_names) != columns:
        raise EventDataError(
            f"{columns} names of event features",
            f"{list(d.feature_names)}",
            "Name every column.",
        )
    i = _first(~np.isfinite(features).all(1))
    if i is not None:
        raise EventDataError(
            "finite event features",
            f"{features[i].tolist()} at {place_of(d, i)}",
            "Correct the value, or drop the row.",
        )


def _check_context(d: Dataset) -> None:
    """Refuse a context of other sequences, values that are not finite, and events that happened
    while nothing was recorded.
    """
    context = d.context
    if context is None:
        return
    _check_count(d, "origin", context.origin)
    _check_count(d, "scored_from", context.scored_from)
    for name, steps in (("covariates", context.covariates), ("exposure", context.exposure)):
        if steps is not None:
            _check_count(d, name, steps.offsets[1:])
            _check_finite(steps)
    if context.exposure is not None:
        _check_exposure(d, context.exposure)


def _check_count(d: Dataset, name: str, values: NDArray[np.generic] | None) -> None:
    if values is not None and len(values) != len(d):
        raise EventDataError(
            f"the {name} of {len(d)} sequences",
            f"{len(values)}",
            "Give one for every sequence.",
        )


def _check_finite(steps: Steps) -> None:
    finite = np.isfinite(steps.values)
    if finite.all():
        return
    step, column = np.argwhere(~finite)[0]
    value = steps.values[step, column]
    raise EventDataError(
        "finite values",
        f"{value} in column {steps.names[column]} from {steps.times[step]:g} on",
        "Fill in the value, or name an imputation.",
    )


def _check_exposure(d: Dataset, exposure: Steps) -> None:
    step = _first((exposure.values < 0).any(1))
    if step is not None:
        raise EventDataError(
            "an exposure of at least 0",
            f"{exposure.values[step, 0]:g} from {exposure.times[step]:g} on",
            "Correct the value.",
        )
    for i in range(len(d)):
        events = d.row(i)
        own = d.times[events]
        lost = _first(exposure.at(i, own)[:, 0] == 0)
        if lost is not None:
            raise EventDataError(
                "events at times that were observed",
                f"{own[lost]:g} at {place_of(d, events.start + lost)}",
                "Correct the intervals, or drop the event.",
            )
