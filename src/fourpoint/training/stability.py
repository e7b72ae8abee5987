"""Whether a fitted model is explosive: a short simulation from it, beside the data.

A self-exciting model can have a good likelihood and still run away when it is simulated, since the
likelihood only looks at histories that were observed. A dozen sampled paths over a stretch of time
like that of the data show it: paths of a stable model have about as many events as the data, those
of
an explosive one reach any cap.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fourpoint.events import Dataset, Sequence, UserError
from fourpoint.inference.sampling import sample_paths
from fourpoint.models.base import PointProcess

PATHS = 12
STRETCH = 150  # expected events of a stretch, where windows have more
REMEMBERED = 500  # past events that a stretch inside a long window begins with
EXCESS, LARGEST_CAP = 5, 1500  # a path is capped at EXCESS times the largest observed count
TOLERATED = 0.1  # share of capped paths up to which a model counts as stable


def explosive(
    model: PointProcess, data: Dataset, seed: int = 0, time_left: Callable[[], bool] | None = None
) -> str:
    """Why ``model`` counts as explosive on stretches like those of ``data``; "" if it does not.

    Where ``time_left`` says no, the simulation ends: paths that have more events by then than were
    observed in a whole stretch count as explosive, the others as stable.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> data = simulate("hawkes", 50, seed=0)
    >>> explosive(Hawkes(baseline=10.0, branching=1.0, decay=1.0), data)
    ''
    >>> explosive(Hawkes(baseline=10.0, branching=20.0, decay=1.0), data)
    '12 of 12 simulated paths reach ... events, where at most ... were observed in as much time'
    """
    if not data.events or data.marks.box is not None:
        return ""
    start, stop, past = _stretch(data)
    largest = largest_count(data, stop - start)
    least = int(1.2 * largest + 10)
    cap = max(least, min(EXCESS * largest + 50, LARGEST_CAP))
    try:
        paths = sample_paths(
            model, start, stop, PATHS, seed, history=past, most=cap, time_left=time_left
        )
    except UserError as error:
        return str(error)
    if len(paths.unfinished):
        cap = least
    runaway = int((paths.data.lengths >= cap).sum())
    if runaway <= TOLERATED * PATHS:
        return ""
    reached = f"{runaway} of {PATHS} simulated paths reach {cap:,} events"
    return f"{reached}, where at most {largest:,} were observed in as much time"


def _stretch(data: Dataset) -> tuple[float, float, Sequence | None]:
    """Start and end of a stretch to simulate, and what came before it: a whole window without a
    past where windows are short, else a part of the longest one.
    """
    row = int(np.argmax(data.lengths))
    if data.events / len(data) <= STRETCH:
        start = float(data.starts[row])
        return start, start + float(np.median(data.durations)), None
    sequence = data[row]
    first = min(REMEMBERED, len(sequence) // 2)
    start = float(np.nextafter(sequence.times[first - 1], np.inf)) if first else sequence.start
    stop = start + STRETCH * sequence.duration / len(sequence)
    return start, stop, sequence.before(start)


def largest_count(data: Dataset, length: float) -> int:
    """The largest number of events that any sequence has in a stretch of ``length``.

    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 2.5, 9.0], start=0.0, stop=10.0)])
    >>> largest_count(data, 1.6)
    3
    """
    most = 0
    for first, last in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        times = data.times[first:last]
        counts = np.searchsorted(times, times + length, side="right") - np.arange(len(times))
        most = max(most, int(counts.max(initial=0)))
    return most
