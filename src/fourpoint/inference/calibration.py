r"""Calibration: prediction regions of a fitted model that cover as often as they promise.

A model's 90% interval covers 90% of what follows only if the model is right. :func:`calibrate`
looks at data that was not in training, at where the observations fell in the model's own predictive
distributions, and keeps with the model the levels that cover as promised (`ops.conformal`):

    next time     u = F(y) / F(stop), F the distribution function of the next event's time, given
                  that it is seen before the window's end; quantiles of the level p become those of
                  the level q(p), so that one-sided bounds cover
    central       abs(2 u - 1): the interval between equal tails
    shortest      s = probability of the times at which the density is higher than at y
    pair          the same for time and mark together
    counts        u = mid-distribution function of the number of events in a window at the observed
                  one, from sampled paths; beyond the largest path u goes on by 1 per standard
                  deviation

Sequences that are exchangeable (customers, patients, windows in random order) have split conformal
levels: a random event of a new sequence is covered with at least the stated probability, whatever
the model and however few the sequences. One long log, or a few, has adaptive levels: the share of
covered events differs from the stated one by at most a bound that shrinks as the log grows, and a
stream goes on adapting them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Dataset, Sequence, UserError, all_sequences, check_marks
from fourpoint.events.dates import in_units
from fourpoint.inference.forecasts import Plan, interval_counts, planned
from fourpoint.inference.next_events import (
    ChosenEvents,
    by_sequence,
    laws_before,
    place,
    region_sizes,
)
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.base import PointProcess
from fourpoint.models.calibration import KINDS, SHOWN, Calibration, CountLevels
from fourpoint.ops.conformal import AdaptiveLevels, Levels, SplitLevels, count_score
from fourpoint.report.printing import Printed, bar, text_table
from fourpoint.storage.trained_on import overlap
from fourpoint.strict_json import plain

if TYPE_CHECKING:
    from rich.table import Table

Floats = NDArray[np.float64]
Method = Literal["auto", "split", "adaptive"]
EXCHANGEABLE = 20  # sequences from which on "auto" takes them for exchangeable
EVENTS = 4000
ORIGINS = 400
PATHS = 500
NUMBERS = 2**22  # rates of the laws that are computed together
NODES = 512  # of the law of one event, about


def calibrate(
    model: PointProcess,
    data: Dataset | Sequence,
    *,
    method: Method = "auto",
    horizon: float | str | None = None,
    windows: int = 1,
    events: int = EVENTS,
    origins: int = ORIGINS,
    paths: int = PATHS,
    seed: int = 0,
    progress: bool = False,
) -> Calibration:
    """Find the levels at which the regions of ``model`` have the stated coverage, and store them as
    ``model.calibration``.

    `forecast`, `forecasts`, `prediction_scores` and streams then use them, and `save` saves them.
    To remove them, fit the model again or set ``model.calibration = None``.

    Args:
        data: sequences that were not in training: the dev part, or another one. It must not be the
            part on which coverage is measured afterwards.
        method: "split" for exchangeable sequences, "adaptive" for one long log, "auto": split from
            20 sequences on.
        horizon, windows: also calibrate the number of events in this many equal windows of a
            horizon, a number in the data's unit of time or a duration such as "7d".
        events, origins: the largest number of events, and of forecasts of counts, to use.
        paths: futures of each forecast of counts.

    With fewer sequences than a level needs (9 for 90%), split levels are 1, and regions contain all
    times.

    Raises :class:`UserError` where the data was in training, has no events, or has no window as
    long as the horizon.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> wrong = Hawkes(baseline=5.0, branching=0.2)
    >>> found = calibrate(wrong, simulate("hawkes", 40), events=400)
    >>> found.method, wrong.calibration is found, found.time_level(0.95) != 0.95
    ('split', True, True)
    """
    data = all_sequences(data)
    check_marks(model.marks, data.marks)
    chosen_method = _method(method, data)
    seen = overlap(model, data)
    if seen is not None:
        raise UserError(
            "data that was not in training",
            f"{seen.events:,} of {seen.of_events:,} events that were",
            "Keep a part for it when fitting (--split-at .8 .1 .1), or use later data.",
        )
    rng = np.random.default_rng(seed)
    with eval_mode(model):
        chosen = _chosen(data, chosen_method, events, rng)
        placed = [place(events) for _, events in _laws(model, data, chosen, progress)]
        counts: tuple[CountLevels, ...] = ()
        if horizon is not None:
            counts = (
                _count_levels(
                    *(model, data, chosen_method, horizon, windows),
                    *(origins, paths, seed, progress),
                ),
            )
    owner = np.searchsorted(data.offsets, chosen, side="right") - 1
    time, central, shortest, pair = (
        _found(chosen_method, np.concatenate([part.scores(kind) for part in placed]), owner)
        for kind in ("before", *KINDS)
    )
    looked_at = (len(np.unique(owner)), len(chosen))
    found = Calibration(time, central, shortest, pair, counts, *looked_at)
    model.calibration = found
    return found


def _method(method: str, data: Dataset) -> Literal["split", "adaptive"]:
    filled = int((data.scored_lengths > 0).sum())
    if filled == 0:
        raise UserError("data with at least one event", f"{data}", "Calibrate with other data.")
    if method == "adaptive" or (method == "auto" and filled < EXCHANGEABLE):
        return "adaptive"
    if method not in ("auto", "split"):
        raise UserError(
            "method to be one of auto, split, adaptive", f"{method!r}", "Choose one of them."
        )
    return "split"


def _found(method: str, scores: Floats, owner: NDArray[np.int64]) -> Levels:
    if method == "split":
        return SplitLevels.of(scores, owner)
    return AdaptiveLevels.new().after(scores)


# ---------------------------------------------------------------------- coverage


@dataclass(frozen=True)
class RegionScores:
    """How often regions of one kind covered, with the calibration and without it (``plain_``).

    ``coverage`` is the mean over sequences of the share of covered events, to which the guarantee
    of split levels applies, ``of_events`` the share of all events, ``size`` the mean size in the
    user's unit of time (NaN for one-sided bounds).
    """

    coverage: float
    of_events: float
    size: float
    plain_coverage: float
    plain_of_events: float
    plain_size: float


@dataclass(frozen=True, repr=False)
class Coverage(Printed):
    """What :func:`coverage` found for each kind of region."""

    level: float
    events: int
    regions: dict[str, RegionScores]

    def to_dict(self) -> dict[str, Any]:
        """All numbers under the names of the regions."""
        return plain(
            {
                "level": self.level,
                "events": self.events,
                "regions": {name: asdict(scores) for name, scores in self.regions.items()},
            }
        )

    def __rich__(self) -> Table:
        title = f"Regions of {self.level:.0%} for {self.events:,} next events"
        table = text_table(title, title_justify="left", box=None, pad_edge=False)
        table.add_column("region", style="bold", no_wrap=True)
        for name in ("covers", "of all events", "mean size", "uncalibrated", "mean size"):
            table.add_column(name, justify="right")
        for name, own in self.regions.items():
            table.add_row(
                name,
                f"{own.coverage:.1%}",
                f"{own.of_events:.1%}",
                _size_text(own.size),
                f"{own.plain_coverage:.1%}",
                _size_text(own.plain_size),
            )
        return table


def _size_text(size: float) -> str:
    if math.isfinite(size):
        return f"{size:.4g}"
    return ""


def coverage(
    model: PointProcess,
    data: Dataset | Sequence,
    *,
    level: float = SHOWN,
    events: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Coverage:
    """How often the regions of a calibrated model cover the next events of ``data``, and how large
    they are, beside those of the model without calibration.

    Adaptive levels go on adapting from event to event, as in a stream; sizes are at the levels of
    the first event of each group of events that are computed together.

    Args:
        level: the stated probability.
        events: the number of events to use, drawn at random (the first ones, if levels are
            adaptive); all by default.

    Raises :class:`UserError` where the model is not calibrated.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> model = Hawkes(baseline=5.0, branching=0.2)
    >>> data = simulate("hawkes", 80)
    >>> _ = calibrate(model, data[:40])
    >>> 0.8 < coverage(model, data[40:]).regions["central"].coverage < 1
    True
    """
    data = all_sequences(data)
    check_marks(model.marks, data.marks)
    known = model.calibration
    if known is None:
        raise UserError(
            "a calibrated model", f"{type(model).__name__} without calibration", "Calibrate it."
        )
    chosen = np.flatnonzero(data.scored)
    if known.method == "adaptive":
        chosen = chosen[:events]
    elif events is not None:
        chosen = np.sort(np.random.default_rng(seed).permutation(chosen)[:events])
    levels: dict[str, Levels] = {"before": known.next_time}
    levels |= {"central": known.central, "shortest": known.shortest, "pair": known.pair}
    found: dict[str, list[Floats]] = {kind: [] for kind in levels}
    with eval_mode(model):
        for _, some in _laws(model, data, chosen, progress):
            now = [min(1.0, max(0.0, levels[kind].upper(level))) for kind in KINDS]
            own, stated = region_sizes(some, *now), region_sizes(some, level, level, level)
            placed = place(some)
            for kind in levels:
                scores = placed.scores(kind)
                hits, levels[kind] = _hits(levels[kind], scores, level)
                columns = [hits, own.of(kind), scores <= level, stated.of(kind)]
                found[kind].append(np.stack(columns).astype(np.float64))
    owner = np.searchsorted(data.offsets, chosen, side="right") - 1
    regions = {
        kind: _region_scores(np.concatenate(parts, axis=1), owner) for kind, parts in found.items()
    }
    return Coverage(level, len(chosen), regions)


def _region_scores(columns: Floats, owner: NDArray[np.int64]) -> RegionScores:
    """Means of (4, F): hits, sizes, and both of the plain model, of the sequences ``owner``."""
    counts = np.bincount(owner)
    some = counts > 0

    def mean_share(hits: Floats) -> float:
        covered = np.bincount(owner, hits)
        return float((covered[some] / counts[some]).mean())

    hits, size, plain_hits, plain_size = columns
    return RegionScores(
        coverage=mean_share(hits),
        of_events=float(hits.mean()),
        size=float(size.mean()),
        plain_coverage=mean_share(plain_hits),
        plain_of_events=float(plain_hits.mean()),
        plain_size=float(plain_size.mean()),
    )


def _hits(levels: Levels, scores: Floats, level: float) -> tuple[Floats, Levels]:
    """Which scores are within the level, and the levels after them."""
    if isinstance(levels, SplitLevels):
        return (scores <= levels.upper(level)).astype(np.float64), levels
    hits = np.empty(len(scores))
    for i, score in enumerate(scores.tolist()):
        hits[i] = score <= levels.upper(level)
        levels = levels.after([score])
    return hits, levels


# ---------------------------------------------------------------------- next events


def _chosen(data: Dataset, method: str, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which events to look at: about as many of each sequence, at random; of a log the last."""
    scored = np.flatnonzero(data.scored)
    if method == "adaptive":
        return scored[-most:]
    owner = np.searchsorted(data.offsets, scored, side="right") - 1
    order = rng.permutation(len(scored))
    by_owner = np.argsort(owner[order], kind="stable")
    grouped = order[by_owner]
    counts = np.bincount(owner, minlength=len(data))
    first = np.repeat(np.cumsum(counts) - counts, counts)
    rank = np.arange(len(scored)) - first  # of an event among those of its sequence
    priority = rng.permutation(len(data))  # which sequences come first
    tie = priority[owner[grouped]]
    taken = np.lexsort((tie, rank))[:most]
    return np.sort(scored[grouped[taken]])


def _laws(
    model: PointProcess, data: Dataset, chosen: NDArray[np.int64], progress: bool
) -> Iterator[tuple[NDArray[np.int64], ChosenEvents]]:
    """The laws before the events ``chosen``, as many at once as memory allows."""
    done = 0
    with bar("laws of next events", len(chosen), show=progress) as step:
        for some in _groups(model, data, chosen):
            yield some, laws_before(model, data, *by_sequence(data, some))
            done += len(some)
            step(done)


def _groups(
    model: PointProcess, data: Dataset, chosen: NDArray[np.int64]
) -> Iterable[NDArray[np.int64]]:
    """Events whose laws are computed together: their number follows from the marks. Padding makes
    the events of each sequence in a group as many as those of the sequence with the most.
    """
    together = max(1, NUMBERS // (NODES * model.marks.count))
    owner = np.searchsorted(data.offsets, chosen, side="right") - 1
    first = 0
    while first < len(chosen):
        last = first
        rows = most = run = 0
        previous = -1
        while last < len(chosen):
            run = run + 1 if owner[last] == previous else 1
            rows += owner[last] != previous
            previous = owner[last]
            most = max(most, run)
            if last > first and rows * most > together:
                break
            last += 1
        yield chosen[first:last]
        first = last


# ---------------------------------------------------------------------- counts


def _count_levels(
    model: PointProcess,
    data: Dataset,
    method: str,
    horizon: float | str,
    windows: int,
    origins: int,
    paths: int,
    seed: int,
    progress: bool,
) -> CountLevels:
    """Levels of counts in ``windows`` parts of a horizon, from forecasts at times in the data."""
    length = in_units(horizon, data.unit) if isinstance(horizon, str) else float(horizon)
    if not (math.isfinite(length) and length > 0) or windows < 1:
        raise UserError(
            "a positive horizon and at least one window",
            f"horizon={horizon}, windows={windows}",
            "Pass a number in the data's unit of time, or a duration such as 7d.",
        )
    starts = data.scored_starts
    room = data.stops - starts - length
    fitting = np.flatnonzero(room >= 0)
    if not len(fitting):
        raise UserError(
            "windows longer than the horizon",
            f"a horizon of {horizon} and windows of at most {float((data.stops - starts).max()):g}",
            "Shorten the horizon.",
        )
    rng = np.random.default_rng(seed)
    if method == "adaptive":
        rows, at = _origins_in_order(starts, room, fitting, length, origins)
    else:
        each = max(1, origins // len(fitting))
        rows = np.repeat(rng.permutation(fitting)[:origins], each)
        at = starts[rows] + rng.random(len(rows)) * room[rows]
    scores = np.empty((len(rows), windows))
    with bar("calibrating counts", len(rows), show=progress) as step:
        for i, (row, now) in enumerate(zip(rows.tolist(), at.tolist(), strict=True)):
            one = data.select(np.array([row]))
            plan = planned(model, one, length, length / windows, now, paths, seed + i)
            scores[i] = _count_scores(model, plan)
            step(i + 1)
    return CountLevels(length, tuple(_found(method, scores[:, w], rows) for w in range(windows)))


def _origins_in_order(
    starts: Floats, room: Floats, fitting: NDArray[np.int64], length: float, most: int
) -> tuple[NDArray[np.int64], Floats]:
    """Origins one horizon apart in each log, from the first time on, and the last ``most``."""
    rows = []
    at = []
    for row in fitting.tolist():
        count = int(room[row] / length) + 1
        rows.append(np.full(count, row))
        at.append(starts[row] + length * np.arange(count))
    return np.concatenate(rows)[-most:], np.concatenate(at)[-most:]


def _count_scores(model: PointProcess, plan: Plan) -> Floats:
    """The score of the observed number of events in each window of one forecast."""
    edges, counts = interval_counts(model, plan)
    up_to = np.searchsorted(plan.data.times, edges, side="right")
    observed = np.diff(up_to)
    ordered = np.sort(counts.sum(1), axis=-1).astype(np.float64)  # (W, paths)
    scores = np.empty(len(observed))
    for w, number in enumerate(observed):
        scores[w] = count_score(ordered[w], float(number))
    return scores
