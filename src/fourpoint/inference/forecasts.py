r"""Forecasts of many sequences at once: events per sequence, interval and type, as one table.

For each sequence ``paths`` futures are drawn from the model, given its events up to and including
the time of the forecast. The paths are exact draws (`models.path_counts`, `inference.sampling`),
and a row of the table summarises the counts n_1, ..., n_P of an interval over them,

    mean = sum_p n_p / P,  q = the quantile of the mid-distribution (`mid_quantile`), or the
    smallest n with at least the share q of the n_p at or below it,
    p_any = the share of paths with n_p >= 1,

so that each column has the Monte Carlo error of P draws: that of the mean is its standard deviation
over sqrt(P). Where the law of the counts is known (`PointProcess.count_law`: Poisson processes,
with and without a frailty) the mean and p_any are those of the law. The random numbers of a
sequence follow from the seed and its id, and for models with a kernel of their own a forecast is
the same whichever sequences are forecast beside it.

Sequences are taken in batches, in their order, so that memory does not grow with their number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence as Ordered
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from fourpoint.atomic import check_new_file, write_atomic
from fourpoint.data.event_files import Chunk, EventFiles
from fourpoint.data.readers import read
from fourpoint.events import Batch, Dataset, Sequence, UserError, check_marks, known_at
from fourpoint.events.dates import (
    Dates,
    Moment,
    as_number,
    edges_of,
    in_units,
    length_after,
    shown,
    time_at,
)
from fourpoint.inference.forecasting import (
    carried_forward,
    nearly_equal,
    path_limit,
    simulated_until,
)
from fourpoint.inference.sampling import advance, eval_mode, remember, select_rows
from fourpoint.kernels.compiling import threads_for_loops
from fourpoint.kernels.path_terms import CountLaw, Wanted
from fourpoint.log_format import STAMPS, LogFormat
from fourpoint.memory import require_memory
from fourpoint.models.base import PointProcess
from fourpoint.models.path_counts import explosion
from fourpoint.ops.conformal import Levels, count_quantile
from fourpoint.report.printing import bar
from fourpoint.workers import Executor, run_all

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Counts = NDArray[np.int32]
LEVELS = (0.05, 0.5, 0.95)
PATHS = 200
ROWS = 1024  # sequences of a batch, at most
NUMBERS = 2**24  # counts of a batch, unless one sequence has more
PADDED = 2**17  # events of a batch with padding, unless one sequence has more
PLAIN_PATHS = 4096  # that are sampled together without a kernel
ENDINGS = (".parquet", ".csv")
UNCALIBRATED = (
    "quantiles are not calibrated: intervals have different lengths, and the model is calibrated "
    "for equal ones, as from a time that --at names"
)
POOLED_UNCALIBRATED = "quantiles are not calibrated: they are those of several models together"


@dataclass(frozen=True)
class Plan:
    """What is to be forecast: of which sequences, from when, in which intervals, how often."""

    data: Dataset
    at: Floats  # (S,), until when events are known
    begin: Floats  # (S,), from when events are counted, ``at`` or later
    horizon: float | str
    by: float | str | None
    levels: tuple[float, ...]
    paths: int
    seed: int
    whole: bool = False  # whether quantiles are whole numbers
    interval: float | None = None  # the probability of the interval from low to high
    on_clock: bool = False  # whether intervals end at full hours or days, as `by` says
    pooled: tuple[PointProcess, ...] = ()  # further models, with an equal share of the paths each


class Interval(NamedTuple):
    """One group of sequences with as many intervals each."""

    rows: Integers  # (R,)
    edges: Floats  # (R, W + 1)


def forecasts(
    model: PointProcess,
    data: Dataset | Sequence | object,
    horizon: float | str,
    by: float | str | None = None,
    at: Moment | None = None,
    paths: int = PATHS,
    seed: int = 0,
    *,
    quantiles: Ordered[float] = LEVELS,
    whole: bool = False,
    interval: float | None = None,
    pooled: Ordered[PointProcess] = (),
    progress: bool = False,
    **reading: Any,
) -> pa.Table:
    """Expected events of every sequence up to a horizon, per interval and type.

    Args:
        data: a data set, a sequence, or a table of events in memory or in a file (pandas, polars,
            Arrow, ``__arrow_c_stream__``, a path), which is read with :func:`fourpoint.read` and
            the options ``reading``; pass time_unit= as for training if the unit of time was chosen.
        horizon: how far to look: a number in the data's unit of time, or a duration such as "30d".
        by: length of the intervals in which events are counted; the last one is cut at the
            horizon. None: one interval. Where the data has dates and ``at`` is None, "1h" means
            full hours of the clock, "1d" days from midnight and "1w" weeks from Monday: the first
            interval, which begins at the end of the sequence, is then cut too.
        at: from when, a number or a date; by default the end of each sequence. Events up to and
            including it are known. It may lie after the end: what happens until then is part of the
            futures that are drawn, and is not counted.
        paths: futures drawn for each sequence; ``seed`` of those.
        quantiles: levels between 0 and 1; 0.05 is the column q05.
        whole: give quantiles as whole numbers, the smallest count that at least this share of the
            paths do not exceed, instead of those of the mid-distribution, which are interpolated.
        interval: a probability, 0.9 say: also give whole numbers low and high between which, both
            included, the count lies with a probability as near to it as whole numbers allow.
        pooled: further models of the same types of events. Each model draws an equal share of the
            paths, so that the forecast is the average of the models' distributions (a linear pool).
            Such averages are often better than each model alone.
        progress: whether to show a bar with the time left on stderr.

    Returns an Arrow table with the columns sequence, mark, start, stop, mean, q05, q50, q95 and
    p_any. The rows with mark "" are about all types together. Start and stop are timestamps where
    the data has dates. It has the Arrow interchange protocol: ``polars.DataFrame(table)``,
    ``table.to_pandas()``.

    Raises :class:`UserError` where a number is out of range, ``at`` lies before the window of a
    sequence, the marks are not the model's, or the model explodes before the horizon.

    >>> from fourpoint.models.poisson import Poisson
    >>> table = forecasts(Poisson(), Sequence([0.5], start=0.0, stop=2.0), horizon=3.0, by=2.0)
    >>> table.column_names
    ['sequence', 'mark', 'start', 'stop', 'mean', 'q05', 'q50', 'q95', 'p_any']
    >>> table.column("start").to_pylist(), table.column("stop").to_pylist()
    ([2.0, 4.0], [4.0, 5.0])
    """
    known = as_dataset(model, data, reading)
    plan = planned(model, known, horizon, by, at, paths, seed, quantiles)
    plan = replace(plan, whole=whole, interval=checked_interval(interval))
    plan = plan_with(plan, pooled)
    parts = list(forecast_parts(model, plan, progress=progress))
    return pa.concat_tables([schema_of(plan).empty_table(), *parts])


def write_forecasts(model: PointProcess, plan: Plan, path: Path, *, progress: bool = False) -> int:
    """Write the table to ``path``, Parquet or CSV by its ending, part by part; the file appears
    whole or not at all. Returns the number of rows.
    """
    parts = forecast_parts(model, plan, progress=progress)
    return write_parts(path, schema_of(plan), parts)


def write_parts(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> int:
    """Write the ``parts`` of a table to ``path``, Parquet or CSV by its ending; the file appears
    whole or not at all. Returns the number of rows.
    """
    check_table_file(path)
    rows = 0

    def write(draft: Path) -> None:
        nonlocal rows
        with _writer(draft, path.suffix.lower(), schema) as file:
            for part in parts:
                file.write_table(part)
                rows += part.num_rows

    write_atomic(path, write)
    return rows


def check_table_file(path: Path) -> None:
    """Refuse a file that cannot be written before anything is computed."""
    endings = " or ".join(ENDINGS)
    stem = path.stem or "forecast"
    check_new_file(
        path,
        ENDINGS,
        f"a file with the extension {endings}",
        f"{stem}.parquet",
    )


def planned(
    model: PointProcess,
    data: Dataset,
    horizon: float | str,
    by: float | str | None = None,
    at: Moment | None = None,
    paths: int = PATHS,
    seed: int = 0,
    quantiles: Ordered[float] = LEVELS,
) -> Plan:
    """The plan of a forecast, with everything that was asked for checked."""
    check_marks(model.marks, data.marks)
    if paths < 1:
        raise UserError("at least one path", f"paths={paths}", "Raise it.")
    levels = tuple(float(level) for level in quantiles)
    for level in levels:
        if not 0 < level < 1:
            raise UserError(
                "quantiles between 0 and 1", f"{level:g}", "Choose some such as 0.05, 0.5 and 0.95."
            )
    names = [level_name(level) for level in levels]
    if len(set(names)) < len(names):
        raise UserError("different quantiles", f"{list(levels)}", "Remove the duplicates.")
    if not len(data):
        raise UserError("at least one sequence", "a data set without any", "Read or select some.")
    begin = times_of(data, at, ahead=True)
    known = np.minimum(begin, data.stops)
    plan = Plan(data, known, begin, horizon, by, levels, paths, seed, on_clock=at is None)
    first = _edges(plan, 0)
    most = (len(first) - 1) * data.marks.count * paths
    require_memory(
        16 * most,
        f"a sequence of {len(first) - 1:,} intervals and {paths:,} paths",
        "Use longer intervals or fewer paths.",
    )
    return plan


def plan_with(plan: Plan, pooled: Ordered[PointProcess]) -> Plan:
    """The plan with further models, checked."""
    for model in pooled:
        check_marks(model.marks, plan.data.marks)
    models = 1 + len(pooled)
    if plan.paths < models:
        raise UserError(
            "at least one path of every model",
            f"paths={plan.paths} for {models} models",
            "Raise the number of paths.",
        )
    return replace(plan, pooled=tuple(pooled))


def level_name(level: float) -> str:
    """The column of a quantile.

    >>> level_name(0.05), level_name(0.5), level_name(0.975)
    ('q05', 'q50', 'q975')
    """
    digits = f"{level:.10f}".rstrip("0")
    decimals = digits.partition(".")[2]
    return "q" + decimals.ljust(2, "0")


def checked_interval(interval: float | None) -> float | None:
    """The probability of an interval, which must lie between 0 and 1."""
    if interval is not None and not 0 < interval < 1:
        raise UserError(
            "an interval with a probability between 0 and 1", f"{interval:g}", "Use 0.9."
        )
    return interval


def count_interval(ordered: Counts, level: float) -> tuple[Floats, Floats]:
    """The ends of an interval of whole numbers for the counts in each row, which are in order.

    The lower end leaves out a share of the counts as near to (1 - level) / 2 as it can be, and the
    upper end one as near as it can be to what is left of 1 - level. Where a count of 0 is frequent
    nothing lies below the interval, and one between the quantiles at (1 - level) / 2 and
    (1 + level) / 2 would hold the count more often than ``level``.

    >>> low, high = count_interval(np.array([[0, 0, 0, 0, 0, 1, 1, 1, 2, 3]]), 0.9)
    >>> low.tolist(), high.tolist()
    ([0.0], [2.0])
    """
    R, P = ordered.shape
    lower_tail = (1 - level) / 2 * P
    both_tails = (1 - level) * P
    low, below = _nearest(ordered, np.full(R, lower_tail))
    upper_tail = np.maximum(both_tails - below, 0.0)
    descending = -ordered[:, ::-1]
    high, _ = _nearest(descending, upper_tail)
    smallest = ordered[:, 0]
    high = np.maximum(-high, smallest)
    return low.astype(np.float64), high.astype(np.float64)


def _nearest(ordered: Counts, wanted: Floats) -> tuple[Counts, Integers]:
    """The number of each row for which as nearly as possible ``wanted`` others are smaller, and how
    many are.
    """
    R, P = ordered.shape
    row = np.arange(R)
    place = np.minimum(wanted.astype(np.int64), P - 1)
    value = ordered[row, place]
    below, up_to = _ranks(ordered, value)
    missing = wanted - below
    surplus = up_to - wanted
    further = (surplus < missing) & (up_to < P)
    next_place = np.minimum(up_to, P - 1)
    next_value = ordered[row, next_place]
    nearest = np.where(further, next_value, value)
    return nearest, np.where(further, up_to, below)


def whole_quantile(ordered: Counts, level: float) -> Floats:
    """The smallest count in each row, whose counts are in order, that at least the share ``level``
    of them do not exceed.

    >>> whole_quantile(np.array([[0, 0, 1, 2]]), 0.5).tolist()
    [0.0]
    """
    place = _place_of(level, ordered.shape[1])
    return ordered[:, place].astype(np.float64)


def _place_of(level: float, paths: int) -> int:
    """Where the smallest of so many counts in order stands that at least the share ``level`` of
    them do not exceed.
    """
    needed = math.ceil(level * paths - 1e-9)
    return min(paths - 1, max(0, needed - 1))


def mid_quantile(ordered: Counts, level: float) -> Floats:
    """The quantile of the mid-distribution of counts in each row, which are in order.

    The mid-distribution function counts half of those that equal a value, and is interpolated
    between neighbouring values. An interval between two such quantiles holds a count about as often
    as it says, while one between the usual quantiles of small counts holds too many. Source: Ma,
    Genton and Parzen, "Asymptotic properties of sample quantiles of discrete distributions" (2011).

    >>> mid_quantile(np.array([[0, 0, 1, 2]]), 0.5).tolist()  # middles at 1/4, 5/8 and 7/8
    [0.6666666666666666]
    """
    R, P = ordered.shape
    row = np.arange(R)
    wanted = level * P
    value = ordered[:, _place_of(level, P)]
    below, above = _ranks(ordered, value)
    middle = (below + above) / 2
    higher = np.minimum(above, P - 1)
    lower = np.maximum(below - 1, 0)
    neighbour_place = np.where(wanted > middle, higher, lower)
    neighbour = ordered[row, neighbour_place]
    neighbour_below, neighbour_above = _ranks(ordered, neighbour)
    neighbour_middle = (neighbour_below + neighbour_above) / 2
    alone = neighbour == value
    apart = np.where(alone, 1.0, neighbour_middle - middle)
    share = np.where(alone, 0.0, (wanted - middle) / apart)
    return value + share * (neighbour - value)


def _ranks(ordered: Counts, value: Counts) -> tuple[Integers, Integers]:
    """How many numbers of each row are below a value, and how many are not above it."""
    column = value[:, None]
    below = (ordered < column).sum(1)
    up_to = (ordered <= column).sum(1)
    return below, up_to


def schema_of(plan: Plan) -> pa.Schema:
    """The columns of the table."""
    dates = plan.data.dates(0)
    number = pa.float64()
    text = pa.string()
    time = number
    if dates is not None:
        time = pa.timestamp("us", dates.zone)
    columns = {
        "sequence": text,
        "mark": text,
        "start": time,
        "stop": time,
        "mean": number,
    }
    for level in plan.levels:
        columns[level_name(level)] = number
    if plan.interval is not None:
        columns |= {"low": number, "high": number}
    columns["p_any"] = number
    return pa.schema(columns)


def notes_of(model: PointProcess, plan: Plan) -> list[str]:
    """What a reader of the forecast should know: that curves of time, covariates or exposure end
    before the horizon, for the sequence that is forecast the longest after its start.
    """
    row = int(np.argmax(plan.begin - plan.data.starts))
    dates = plan.data.dates(row)
    edges = _edges(plan, row)
    end = float(edges[-1])
    notes = carried_forward(plan.data[row], end)
    late = int(np.argmax(plan.begin - plan.at))
    known_until = float(plan.at[late])
    counted_from = float(plan.begin[late])
    if counted_from > known_until:
        simulated = simulated_until(plan.data.dates(late), known_until, counted_from)
        notes.append(simulated)
    if model.calibration is not None:
        if plan.pooled:
            notes.append(POOLED_UNCALIBRATED)
        elif not nearly_equal(np.diff(edges)):
            notes.append(UNCALIBRATED)
    batch = events_until(plan.data, plan.at, np.array([row]))
    last_knots = [_last_knot(each, batch) for each in (model, *plan.pooled)]
    last_knot = min(last_knots)
    if end <= last_knot + 1e-9:
        return notes
    when = shown(dates, last_knot)
    curves = f"the model's functions of time end at {when}; after it they keep their last value"
    return [curves, *notes]


def _last_knot(model: PointProcess, batch: Batch) -> float:
    """Where the functions of time of ``model`` end for the first row of ``batch``."""
    with eval_mode(model):
        knots = model.knots(remember(model, batch))
    return float("inf") if knots is None else float(knots[0, -1])


def forecast_parts(
    model: PointProcess, plan: Plan, *, progress: bool = False
) -> Iterator[pa.Table]:
    """The table in parts, a batch of sequences each."""
    done = 0
    with ExitStack() as modes, bar("forecasting", len(plan.data), show=progress) as step:
        for each in (model, *plan.pooled):
            modes.enter_context(eval_mode(each))
        for group in _batches(plan):
            counts = _pooled_counts(model, plan, group)
            law = _law(model, plan, group)
            levels = count_levels(model, plan, group)
            yield _summary(plan, group, counts, levels, law)
            done += len(group.rows)
            step(done)


def forecast_in_tasks(
    executor: Executor,
    model: PointProcess,
    events: Dataset | EventFiles,
    plan_of: Callable[[Dataset], Plan],
    *,
    progress: bool = False,
) -> Iterator[pa.Table]:
    """The table in parts, in the order of the sequences, by tasks of an ``executor`` that calls
    :func:`forecast_task`: a chunk of files each, or a batch of sequences.

    The numbers are those of :func:`forecast_parts`. ``plan_of`` must travel to other processes.
    """
    tasks: list[Any] = []
    long: list[list[Chunk]] = []
    if isinstance(events, EventFiles):
        long = events.long_sequences()
        whole = [piece for piece in events.pieces_in_use() if piece.whole]
        tasks = [(model, events.alone(piece), plan_of) for piece in whole]
    else:
        tasks = [(model, part, None) for part in _plans(plan_of(events))]
    with bar("forecasting", len(tasks), show=progress) as step:
        yield from run_all(executor, tasks, ended=step)
    if isinstance(events, EventFiles) and long:
        rows = np.array([pieces[0].begin for pieces in long])
        kept = np.zeros_like(events.kept)
        kept[rows] = True
        yield from forecast_files(model, replace(events, kept=kept), plan_of)


def forecast_task(
    task: tuple[PointProcess, Plan | EventFiles, Callable[[Dataset], Plan] | None],
) -> pa.Table:
    """One task of :func:`forecast_in_tasks`."""
    model, what, plan_of = task
    if isinstance(what, Plan):
        return pa.concat_tables(forecast_parts(model, what))
    assert plan_of is not None  # it comes with files
    return pa.concat_tables(forecast_files(model, what, plan_of))


def _plans(plan: Plan) -> Iterator[Plan]:
    """The plan of each batch of sequences."""
    for group in _batches(plan):
        rows = group.rows
        yield replace(
            plan,
            data=plan.data.select(rows),
            at=plan.at[rows],
            begin=plan.begin[rows],
        )


def forecast_files(
    model: PointProcess,
    files: EventFiles,
    plan_of: Callable[[Dataset], Plan],
    *,
    progress: bool = False,
) -> Iterator[pa.Table]:
    """The table of all sequences in files, in parts; ``plan_of`` a chunk of them says what is to be
    forecast. Of a sequence that is read in parts, what the model remembers is carried from one to
    the next.
    """
    done = 0
    with eval_mode(model), bar("forecasting", len(files), show=progress) as step:
        for chunk in files.chunks():
            yield from forecast_parts(model, plan_of(chunk))
            done += len(chunk)
            step(done)
        for pieces in files.long_sequences():
            part = files.part_of(pieces[-1])
            plan = plan_of(part)
            group = next(_batches(plan))
            drawn = []
            for each, own in _shares(model, plan):
                past = _remembered(each, files, pieces)
                wanted, ahead = _wanted(own, group, part.batch())
                drawn.append(counts_after(each, past, wanted)[:, int(ahead) :])
            counts = np.concatenate(drawn, axis=-1)
            yield _summary(plan, group, counts, count_levels(model, plan, group), None)
            done += 1
            step(done)


def _remembered(model: PointProcess, files: EventFiles, pieces: Ordered[Chunk]) -> Any:
    """What ``model`` remembers of a sequence in several ``pieces``."""
    past = None
    with eval_mode(model):
        for piece in pieces:
            past = remember(model, files.part_of(piece).batch(), past)
    return past


def interval_counts(model: PointProcess, plan: Plan) -> tuple[Floats, Counts]:
    """The ends of the intervals and the counts per interval, mark and path, (W, M, paths), of a
    plan for one sequence.
    """
    group = next(_batches(plan))
    counts = _counts(model, plan, group)
    return group.edges[0], counts[0]


def counts_of_all(model: PointProcess, plan: Plan) -> tuple[Floats, Integers]:
    """The ends of the intervals and the counts of all sequences together per interval, mark and
    path, (W, M, paths), of a plan in which all sequences have the same intervals.
    """
    total = np.zeros(0, dtype=np.int64)
    edges = np.zeros(0)
    for group in _batches(plan):
        counts = _counts(model, plan, group)
        own = counts.sum(0, dtype=np.int64)
        if len(total):
            total = total + own
        else:
            total = own
        edges = group.edges[0]
    return edges, total


# ---------------------------------------------------------------------- what is asked for


def as_dataset(model: PointProcess, data: object, reading: dict[str, Any]) -> Dataset:
    """The events as a data set, read with the options ``reading`` where they are a table."""
    if isinstance(data, Dataset | Sequence):
        if reading:
            raise UserError(
                "options for reading together with a table of events",
                f"{', '.join(reading)} with a {type(data).__name__}",
                "Leave them out: the events are read already.",
            )
        if isinstance(data, Dataset):
            return data
        return _alone(data)
    names = tuple(model.marks.names)
    return read(data, **({"marks": names} if names else {}) | reading)


def _alone(sequence: Sequence) -> Dataset:
    """A data set of one sequence, which keeps its dates."""
    data = Dataset.from_sequences([sequence])
    dates = sequence.dates
    if dates is None:
        return data
    log = LogFormat("time", clock=STAMPS, zone=dates.zone, zoned=dates.zone is not None)
    return replace(data, unit=dates.unit, log=log)


def times_of(data: Dataset, at: Moment | None, *, ahead: bool = False) -> Floats:
    """When each forecast begins; after the end of a sequence only if it may look ``ahead``."""
    if at is None:
        return np.array(data.stops)
    first_dates = data.dates(0)
    if first_dates is None or as_number(at) is not None:
        found = np.full(len(data), time_at(first_dates, at))
    else:
        found = np.array([time_at(data.dates(row), at) for row in range(len(data))])
    inside = found >= data.starts
    if ahead:
        inside &= np.isfinite(found)
    else:
        inside &= found <= data.stops
    outside = np.flatnonzero(~inside)
    if len(outside):
        row = int(outside[0])
        dates = data.dates(row)
        start = shown(dates, data.starts[row])
        stop = shown(dates, data.stops[row])
        asked = shown(dates, float(found[row]))
        raise UserError(
            f"a time inside the window [{start}, {stop}] of sequence {data.ids[row]}",
            f"at={asked}, outside of the windows of {len(outside):,} of {len(data):,} sequences",
            "Choose a time at which all are observed, state their window, or leave it out.",
        )
    return found


def _edges(plan: Plan, row: int) -> Floats:
    """The ends of the intervals of one sequence."""
    dates = plan.data.dates(row)
    unit = plan.data.unit
    now = float(plan.begin[row])
    length = length_after(dates, now, plan.horizon, unit)
    if not (math.isfinite(length) and length > 0):
        raise UserError(
            "a positive horizon",
            f"{plan.horizon}",
            "Pass a number in the data's unit of time, or a duration such as 30d.",
        )
    stop = now + length
    if not stop > now:
        raise UserError(
            "a horizon that the times of the data can resolve",
            f"{plan.horizon} after {now:g}",
            "Pass a longer one.",
        )
    if plan.by is None:
        return np.array([now, stop])
    edges = edges_of(dates, now, stop, plan.by, unit, on_clock=plan.on_clock)
    # What is left of the horizon after the last whole interval is one more, unless it is rounding.
    if len(edges) > 2 and edges[-1] - edges[-2] <= 1e-9 * length:
        edges = np.delete(edges, -2)
    return edges


def _batches(plan: Plan) -> Iterator[Interval]:
    """Sequences in their order, as many together as have equal numbers of intervals and fit."""
    data = plan.data
    known: dict[tuple[float, Dates | None], Floats] = {}
    rows: list[int] = []
    edges: list[Floats] = []
    longest = 0
    for row in range(len(data)):
        key = (float(plan.begin[row]), data.dates(row))
        if key not in known:
            if len(known) >= ROWS:
                known.clear()
            known[key] = _edges(plan, row)
        own = known[key]
        length = int(data.lengths[row])
        longest = max(longest, length)
        intervals = len(own) - 1
        counts = intervals * (data.marks.count + 1) * plan.paths
        together = len(rows) + 1
        full = together > ROWS or together * counts > NUMBERS or together * longest > PADDED
        if rows and (full or len(own) != len(edges[0])):
            yield Interval(np.array(rows), np.stack(edges))
            rows = []
            edges = []
            longest = length
        rows.append(row)
        edges.append(own)
    yield Interval(np.array(rows), np.stack(edges))


def events_until(data: Dataset, at: Floats, rows: Integers) -> Batch:
    """The events of ``rows`` that are known at their times ``at``."""
    batch = data.batch(rows)
    now = torch.from_numpy(at[rows])
    known = batch.valid & known_at(batch.times, now[:, None])
    most = max(1, int(known.sum(1).max()))
    places = batch.places
    if places is not None:
        places = places[:, :most]
    features = batch.features
    if features is not None:
        features = features[:, :most]
    return replace(
        batch,
        times=batch.times[:, :most],
        marks=batch.marks[:, :most],
        valid=known[:, :most],
        stop=now,
        places=places,
        features=features,
    )


# ---------------------------------------------------------------------- counts


def _pooled_counts(model: PointProcess, plan: Plan, group: Interval) -> Counts:
    """Events of every sequence per interval, mark and path, (R, W, M, paths), of the model and of
    those that are pooled with it.
    """
    counts = [_counts(each, own, group) for each, own in _shares(model, plan)]
    return np.concatenate(counts, axis=-1)


def _shares(model: PointProcess, plan: Plan) -> Iterator[tuple[PointProcess, Plan]]:
    """The model and those pooled with it, each with its share of the paths."""
    models = (model, *plan.pooled)
    share, left = divmod(plan.paths, len(models))
    for number, each in enumerate(models):
        yield each, replace(plan, paths=share + (number < left))


def _counts(model: PointProcess, plan: Plan, group: Interval) -> Counts:
    """Events of every sequence per interval, mark and path, (R, W, M, paths)."""
    batch = events_until(plan.data, plan.at, group.rows)
    wanted, ahead = _wanted(plan, group, batch)
    try:
        with threads_for_loops(True):
            counts = model.draw_counts(batch, wanted)
        if counts is None:
            counts = plain_counts(model, batch, wanted)
    except UserError as error:
        first = plan.data.ids[group.rows[0]]
        last = plan.data.ids[group.rows[-1]]
        which = f"sequence {first}"
        if len(group.rows) > 1:
            which = f"sequences {first} to {last}"
        received = f"{error.received} ({which})"
        raise UserError(error.expected, received, error.remedy) from error
    if ahead:
        return counts[:, 1:]
    return counts


@torch.no_grad()
def _law(model: PointProcess, plan: Plan, group: Interval) -> CountLaw | None:
    """The law of the counts of a group's intervals; None where it has no closed form."""
    if plan.pooled:
        return None
    batch = events_until(plan.data, plan.at, group.rows)
    wanted, ahead = _wanted(plan, group, batch)
    law = model.count_law(batch, wanted.edges)
    if law is not None and ahead:
        return CountLaw(law.mean[:, 1:], law.shape)
    return law


def _wanted(plan: Plan, group: Interval, batch: Batch) -> tuple[Wanted, bool]:
    """The paths to be drawn for a group, and whether they have an interval before the first one, in
    which events are drawn but not counted.
    """
    keys = np.empty(len(group.rows), dtype=np.uint64)
    for i, row in enumerate(group.rows):
        keys[i] = key_of(plan.seed, plan.data.ids[row])
    known = plan.at[group.rows]
    edges = group.edges
    ahead = bool((known < edges[:, 0]).any())
    if ahead:
        edges = np.column_stack([known, edges])
    events = batch.valid.sum(1).tolist()
    past = known - plan.data.starts[group.rows]
    future = edges[:, -1] - known
    limits = map(path_limit, events, past.tolist(), future.tolist())
    return Wanted(edges, keys, plan.paths, max(limits)), ahead


def key_of(seed: int, id: str) -> int:
    """64 bits that depend on the seed and on a sequence's id alone.

    >>> key_of(0, "a") == key_of(0, "a"), key_of(0, "a") == key_of(1, "a")
    (True, False)
    """
    text = f"{seed}:{id}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "little")


def plain_counts(model: PointProcess, batch: Batch, wanted: Wanted) -> Counts:
    """The counts of paths that are sampled by `sampling.advance`: what every model can do."""
    past = remember(model, batch)
    return counts_after(model, past, wanted)


def counts_after(model: PointProcess, past: Any, wanted: Wanted) -> Counts:
    """The same, after what the model remembers."""
    rows, columns = wanted.edges.shape
    paths = wanted.paths
    counts = np.zeros((rows, columns - 1, model.marks.count, paths), dtype=np.int32)
    size = max(1, PLAIN_PATHS // paths)
    for some in torch.arange(rows).split(size):
        first = int(some[0])
        histories = select_rows(past, some.repeat_interleave(paths))
        edges = wanted.edges[some.numpy()].repeat(paths, axis=0)
        start = torch.from_numpy(edges[:, 0].copy())
        stop = torch.from_numpy(edges[:, -1].copy())
        random = torch.Generator()
        random.manual_seed(int(wanted.keys[first]) % 2**63)
        try:
            drawn = advance(
                model,
                histories,
                start,
                stop,
                random,
                limit=wanted.limit,
            ).data
        except UserError as error:
            raise explosion(error.received) from error
        path = np.repeat(np.arange(len(drawn)), drawn.lengths)
        inner = edges[path, 1:-1]
        window = (inner <= drawn.times[:, None]).sum(1)
        row = first + path // paths
        place = (row, window, drawn.mark_ids, path % paths)
        np.add.at(counts, place, 1)
    return counts


def count_levels(model: PointProcess, plan: Plan, group: Interval) -> tuple[Levels, ...] | None:
    """The calibrated levels of the intervals; None if the model has none for such intervals."""
    if model.calibration is None or plan.pooled:
        return None
    ahead = (plan.at < plan.begin).any()
    lengths = np.diff(group.edges, axis=1)
    if ahead or not nearly_equal(lengths):
        return None
    horizon = in_units(plan.horizon, plan.data.unit)
    return model.calibration.count_levels(horizon, lengths.shape[1])


def _summary(
    plan: Plan,
    group: Interval,
    counts: Counts,
    calibrated: tuple[Levels, ...] | None,
    law: CountLaw | None,
) -> pa.Table:
    """The rows of the table for a group of sequences: per sequence and interval all types together
    first, then each of them. Quantiles of all types together are calibrated where the model is;
    means are those of the ``law`` of the counts where it is known.
    """
    names = tuple(plan.data.marks.names)
    counts = _with_total(counts, names)
    R, W, K, P = counts.shape
    counts = np.sort(counts, axis=-1)
    ordered = counts.reshape(-1, P)
    values: dict[str, Any] = {"mean": ordered.mean(1)}
    for level in plan.levels:
        if plan.whole:
            found = whole_quantile(ordered, level)
        else:
            found = mid_quantile(ordered, level)
        if calibrated is not None:
            all_types = found.reshape(R, W, K)[:, :, 0]
            draws = counts[:, :, 0].astype(np.float64)
            for w, levels in enumerate(calibrated):
                if level >= 0.5:
                    score = levels.upper(level)
                else:
                    score = levels.lower(level)
                all_types[:, w] = [count_quantile(row, score) for row in draws[:, w]]
        values[level_name(level)] = found
    if plan.interval is not None:
        low, high = count_interval(ordered, plan.interval)
        values |= {"low": low, "high": high}
    if law is None:
        values["p_any"] = (ordered > 0).mean(1)
    else:
        mean = _with_total(law.mean, names)
        values["mean"] = mean.ravel()
        values["p_any"] = law.any_event(mean).ravel()
    schema = schema_of(plan)
    ids = [plan.data.ids[row] for row in group.rows.tolist()]
    which = np.repeat(np.arange(R, dtype=np.int32), W * K)
    kind = np.tile(np.arange(K, dtype=np.int32), R * W)
    columns = {
        "sequence": _repeated(which, ids),
        "mark": _repeated(kind, ["", *names]),
    }
    bounds = {
        "start": group.edges[:, :-1],
        "stop": group.edges[:, 1:],
    }
    for name, edges in bounds.items():
        times = as_times(plan.data, group.rows, edges)
        column = pa.array(np.repeat(times.ravel(), K))
        columns[name] = column.cast(schema.field(name).type)
    return pa.table(columns | values, schema=schema)


def _with_total(values: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
    """All types together before each of them along the third axis; the total alone where types
    have no names.
    """
    total = values.sum(2, keepdims=True, dtype=values.dtype)
    if names:
        return np.concatenate([total, values], 2)
    return total


def _repeated(which: Counts, words: Ordered[str]) -> pa.Array:
    dictionary = pa.array(list(words), pa.string())
    encoded = pa.DictionaryArray.from_arrays(which, dictionary)
    return encoded.cast(pa.string())


def as_times(data: Dataset, rows: Integers, edges: Floats) -> NDArray[Any]:
    """Times as microseconds since 1970 where the data has dates, else as they are."""
    if data.dates(0) is None:
        return edges
    found = np.empty(edges.shape, dtype=np.int64)
    for place, row in enumerate(rows.tolist()):
        dates = data.dates(row)
        assert dates is not None  # all sequences have dates, or none
        found[place] = dates.microseconds(edges[place])
    return found


def _writer(draft: Path, ending: str, schema: pa.Schema) -> Any:
    """A writer of tables, part by part."""
    if ending == ".csv":
        from pyarrow import csv

        return csv.CSVWriter(draft, schema)
    from pyarrow import parquet

    return parquet.ParquetWriter(draft, schema)
