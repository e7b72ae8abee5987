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
SHORTEST, LONGEST = 1e-30, 1e30
SCALE_REMEDY = "Use another unit of time, or look for an outlier."


def check_events(d: Dataset) -> None:
    """Refuse a data set with anything wrong in it: lengths, times, windows, marks, places and
    splits, in this order.
    """
    _check_lengths(d)
    bad = np.flatnonzero(~np.isfinite(d.times))
    if len(bad):
        received = f"{d.times[bad[0]]} at {place_of(d, bad[0])}"
        raise EventDataError("finite times", received, "Remove or correct the row.")
    _check_windows(d)
    _check_scale(d)
    _check_order(d)
    _check_inside(d)
    unknown = np.flatnonzero((d.mark_ids < 0) | (d.mark_ids >= d.marks.count))
    if len(unknown):
        i = int(unknown[0])
        received = f"{d.mark_ids[i]} at {place_of(d, i)}"
        remedy = "Correct the mark, or declare more types."
        raise EventDataError(f"marks from 0 to {d.marks.count - 1}", received, remedy)
    _check_places(d)
    _check_features(d)
    _check_context(d)
    if d.splits is not None and not np.isin(d.splits, SPLITS).all():
        odd = next(s for s in d.splits.tolist() if s not in SPLITS)
        remedy = "Rename the values of the split column."
        raise EventDataError("splits called train, dev or test", f"{odd!r}", remedy)


def _check_lengths(d: Dataset) -> None:
    """Refuse arrays that do not belong together."""
    per_sequence = {len(d.offsets) - 1, len(d.starts), len(d.stops), len(d.ids)}
    if d.splits is not None:
        per_sequence.add(len(d.splits))
    if len(d.times) != len(d.mark_ids) or len(per_sequence) > 1:
        received = (
            f"{len(d.times)} times, {len(d.mark_ids)} marks, {len(d.offsets)} offsets, "
            f"{len(d.starts)} starts, {len(d.stops)} stops"
        )
        expected = "one mark per time and one window per sequence"
        raise EventDataError(expected, received, "Make the lengths equal.")
    complete = d.offsets[0] == 0 and d.offsets[-1] == len(d.times)
    if not complete or (np.diff(d.offsets) < 0).any():
        expected = "offsets that rise from 0 to the number of events"
        raise EventDataError(expected, f"{d.offsets.tolist()[:8]}", "Count the events again.")


def _check_windows(d: Dataset) -> None:
    finite = np.isfinite(d.starts) & np.isfinite(d.stops)
    wrong = np.flatnonzero(~(finite & (d.stops > d.starts)))
    if len(wrong):
        i = wrong[0]
        received = f"[{d.starts[i]}, {d.stops[i]}) of sequence {d.ids[i]}"
        remedy = "Correct its start and stop."
        raise EventDataError("a finite window with start < stop", received, remedy)


def _check_order(d: Dataset) -> None:
    back = np.flatnonzero((np.diff(d.times) < 0) & inner(d))
    if len(back):
        i = int(back[0]) + 1
        received = f"{d.times[i]} after {d.times[i - 1]} at {place_of(d, i)}"
        remedy = "Sort the rows, or read with sort=True."
        raise EventDataError("non-decreasing times", received, remedy)


def _check_inside(d: Dataset) -> None:
    """Refuse events outside their window; one at the end of an inferred window is inside."""
    row = np.repeat(np.arange(len(d)), d.lengths)
    starts = d.starts[row]
    stops = d.stops[row]
    late = d.times > stops if d.inferred else d.times >= stops
    out = np.flatnonzero((d.times < starts) | late)
    if len(out):
        i = int(out[0])
        expected = f"times inside the window [{starts[i]}, {stops[i]})"
        received = f"{d.times[i]} at {place_of(d, i)}"
        raise EventDataError(expected, received, "Widen the window or drop the event.")


def _check_scale(d: Dataset) -> None:
    """Refuse times whose squares or reciprocals overflow float32, which would give likelihoods of
    NaN.
    """
    edges = np.concatenate([d.starts, d.stops])
    largest = float(np.abs(edges).max(initial=0.0))
    if largest > LONGEST:
        raise EventDataError(
            f"times from {-LONGEST:g} to {LONGEST:g}", f"{largest:g}", SCALE_REMEDY
        )
    lengths = d.stops - d.starts
    short = np.flatnonzero(lengths < SHORTEST)
    if len(short):
        i = int(short[0])
        received = f"{lengths[i]:g} for sequence {d.ids[i]}"
        raise EventDataError(
            f"windows of at least {SHORTEST:g} units of time", received, SCALE_REMEDY
        )


def as_times(times: ArrayLike) -> NDArray[np.float64]:
    """Times as one row of float64."""
    try:
        return np.array(times, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise EventDataError(
            "numbers for times", f"{str(times)[:80]!r}", "Convert the times to numbers."
        ) from error


def as_marks(marks: ArrayLike) -> NDArray[np.int64]:
    """Marks as one row of whole numbers.

    >>> as_marks([0.0, 2.0]).tolist()
    [0, 2]
    """
    values = np.asarray(marks).reshape(-1)
    whole = values.dtype.kind in "iub" or (
        values.dtype.kind == "f" and bool(np.all(values == np.floor(values)))
    )
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
        raise EventDataError(
            "numbers for places", f"{str(places)[:80]!r}", "Convert the places to numbers."
        ) from error
    if found.size and found.ndim == 1 and events and len(found) == events:
        found = found.reshape(events, -1)
    if not events and not found.size:
        axes = found.shape[1] if found.ndim == 2 else 1
        return found.reshape(0, max(1, axes))
    if found.ndim != 2 or len(found) != events:
        expected = f"places as {events} rows of one number per axis"
        raise EventDataError(expected, f"an array of shape {found.shape}", "Give each event a row.")
    return found


def inner(data: Dataset) -> NDArray[np.bool_]:
    """True where neighbours i, i + 1 of the flat array belong to one sequence."""
    same = np.ones(max(data.events - 1, 0), dtype=bool)
    cuts = data.offsets[1:-1]
    same[cuts[(cuts > 0) & (cuts < data.events)] - 1] = False
    return same


def place_of(data: Dataset, event: int) -> str:
    """Where flat event number ``event`` stands, in words."""
    i = int(np.searchsorted(data.offsets, event, side="right")) - 1
    return f"event {event - int(data.offsets[i])} of sequence {data.ids[i]}"


def _check_places(d: Dataset) -> None:
    if d.marks.box is None and d.places is None:
        return
    box = d.marks.box
    if box is None or d.places is None or d.places.shape != (len(d.times), box.dimension):
        shape = "no places" if d.places is None else f"places of shape {d.places.shape}"
        if box is None:
            wanted = "a box for places"
        else:
            wanted = f"{len(d.times)} places of {box.dimension} numbers ({', '.join(box.names)})"
        raise EventDataError(wanted, shape, "Give every event a place, and the mark space its box.")
    for axis, name in enumerate(box.names):
        x = d.places[:, axis]
        low = box.low[axis]
        high = box.high[axis]
        inside = (x >= low) & (x <= high)  # a NaN is in no box
        out = np.flatnonzero(~inside)
        if len(out):
            i = int(out[0])
            expected = f"{name} from {low:g} to {high:g}"
            raise EventDataError(
                expected,
                f"{x[i]:g} at {place_of(d, i)}",
                "Widen the box (bounds=), or drop the event.",
            )


def _check_features(d: Dataset) -> None:
    """Refuse features that are not one finite number per event and name."""
    if d.features is None:
        return
    if len(d.features) != len(d.times) or d.features.ndim != 2:
        expected = f"{len(d.times)} rows of event features"
        remedy = "Give every event its features."
        raise EventDataError(expected, f"an array of shape {d.features.shape}", remedy)
    if d.feature_names and len(d.feature_names) != d.features.shape[1]:
        expected = f"{d.features.shape[1]} names of event features"
        raise EventDataError(expected, f"{list(d.feature_names)}", "Name every column.")
    bad = np.flatnonzero(~np.isfinite(d.features).all(1))
    if len(bad):
        i = int(bad[0])
        received = f"{d.features[i].tolist()} at {place_of(d, i)}"
        raise EventDataError(
            "finite event features", received, "Correct the value, or drop the row."
        )


def _check_context(d: Dataset) -> None:
    """Refuse a context of other sequences, values that are not finite, and events that happened
    while nothing was recorded.
    """
    if d.context is None:
        return
    c = d.context
    counts = {
        "origin": None if c.origin is None else len(c.origin),
        "scored_from": None if c.scored_from is None else len(c.scored_from),
        "covariates": None if c.covariates is None else len(c.covariates.offsets) - 1,
        "exposure": None if c.exposure is None else len(c.exposure.offsets) - 1,
    }
    for name, count in counts.items():
        if count is not None and count != len(d):
            expected = f"the {name} of {len(d)} sequences"
            raise EventDataError(expected, f"{count}", "Give one for every sequence.")
    for steps in (c.covariates, c.exposure):
        if steps is not None and not np.isfinite(steps.values).all():
            j, k = (int(i) for i in np.argwhere(~np.isfinite(steps.values))[0])
            received = f"{steps.values[j, k]} in column {steps.names[k]} from {steps.times[j]:g} on"
            remedy = "Fill in the value, or name an imputation."
            raise EventDataError("finite values", received, remedy)
    if c.exposure is not None:
        _check_exposure(d, c.exposure)


def _check_exposure(d: Dataset, exposure: Steps) -> None:
    if (exposure.values < 0).any():
        j = int(np.argmax((exposure.values < 0).any(1)))
        received = f"{exposure.values[j, 0]:g} from {exposure.times[j]:g} on"
        raise EventDataError("an exposure of at least 0", received, "Correct the value.")
    for i in range(len(d)):
        a = int(d.offsets[i])
        own = d.times[a : int(d.offsets[i + 1])]
        lost = np.flatnonzero(exposure.at(i, own)[:, 0] == 0)
        if len(lost):
            received = f"{own[lost[0]]:g} at {place_of(d, a + int(lost[0]))}"
            remedy = "Correct the intervals, or drop the event."
            raise EventDataError("events at times that were observed", received, remedy)
