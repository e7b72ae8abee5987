r"""The single prediction that a stated score asks for: `fp.predict`.

A forecast is a distribution; a decision often needs one list of events, one time, one number. Which
one is best depends on how it will be judged, and for a model with exact samples it can be computed:
the prediction with the least expected loss (`inference.decoding`).

    score      the prediction                                          compared with
    otd        the next ``steps`` events, or those up to a horizon     transport distance
    tmap       times per type up to a horizon, each with a confidence  T-mAP
    mae        the median of the next event's time, likeliest type     absolute error
    rmse       its mean, likeliest type                                squared error
    counts     events of each type up to a horizon: the median         absolute error
    smape      events of each type up to a horizon                     |n - n'| / (n + n')

The next event's law is integrated (`ops.compensator`) and not sampled; its type is the likeliest
one whenever the event comes. All others are decoded from sampled paths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch, Dataset, Sequence, UserError, check_marks
from fourpoint.events.dates import Moment, length_after
from fourpoint.inference.decoding import (
    SLOTS,
    least_transport,
    match_confidence,
    median_counts,
    smape_counts,
)
from fourpoint.inference.forecasts import (
    as_dataset,
    as_times,
    events_until,
    key_of,
    times_of,
    write_parts,
)
from fourpoint.inference.futures import Futures, draw_futures
from fourpoint.inference.sampling import eval_mode, last_rates, remember
from fourpoint.models.base import PointProcess
from fourpoint.models.path_counts import explosion
from fourpoint.ops.compensator import next_event_law
from fourpoint.report.printing import bar

Floats = NDArray[np.float64]
Score = Literal["otd", "tmap", "mae", "rmse", "counts", "smape"]
SCORES: tuple[Score, ...] = get_args(Score)
PATHS, STEPS = 500, 10
FEWEST = 32  # paths of a forecast, whatever the time budget
PILOT = 8  # forecasts of the first batch under a time budget
ROWS = 256  # forecasts of a batch
NUMBERS = 2**24  # of confidences or events of paths in a batch
CROWDED = 8.0  # a path ends at so many times the events that the fastest sequence has on average
FEW_EVENTS = 64  # a path does not end before, unless that is asked for
RARE = 0.01  # share of paths that may end so before a process counts as explosive
FAR = 8.0  # a path of ``steps`` events ends after so many times the time that it takes on average
TOLERANCE = 1e-5  # of the integral of the next event's law, on each panel


@dataclass(frozen=True)
class PredictionPlan:
    """What is to be predicted, with everything that was asked for checked and filled in. Times and
    costs are in the data's unit.
    """

    data: Dataset
    at: Floats  # (S,)
    score: Score
    steps: int
    lengths: Floats  # (S,): how far paths go
    exact: bool  # whether exactly ``steps`` events are predicted
    paths: int
    insert: float
    delete: float
    delta: float
    slots: int
    least: float
    seed: int
    time_budget: float | None


class Part(NamedTuple):
    """Predictions of some sequences, one row each."""

    rows: NDArray[np.int64]  # places of the sequences in the data
    times: Floats | None
    marks: NDArray[np.int64]
    values: NDArray[Any] | None


def predict(
    model: PointProcess,
    data: Dataset | Sequence | object,
    score: Score = "otd",
    *,
    steps: int = STEPS,
    horizon: float | str | None = None,
    at: Moment | None = None,
    paths: int = PATHS,
    insert: float | None = None,
    delete: float | None = None,
    delta: float | None = None,
    slots: int = SLOTS,
    least: float = 0.01,
    seed: int = 0,
    time_budget: float | None = None,
    progress: bool = False,
    **reading: Any,
) -> pa.Table:
    r"""The prediction of every sequence's future that minimises the expected loss of ``score``.

    With paths x_1, ..., x_P of the model after a sequence's events, it is the D with the least
    sum_p loss(D, x_p): exact for times and counts, a local minimum for "otd", and for "tmap" the
    greedy choice whose confidences are the probabilities to be a true positive.

    Args:
        data: a data set, a sequence, or a table of events in memory or in a file, which is read
            with :func:`fourpoint.read` and the options ``reading``.
        score: "otd", "tmap", "mae", "rmse", "counts" or "smape".
        steps: how many events "otd" predicts. With a ``horizon`` it predicts at most ``steps``
            events up to it, each only if it lowers the expected distance.
        horizon: how far "tmap", "counts" and "smape" look: a number in the data's unit of time, or
            a duration such as "30d". By default the time that ``steps`` events take on average.
        at: from when, a number or a date; by default the end of each sequence.
        paths: futures drawn for each sequence; ``seed`` of those. A path ends early at eight times
            the events that the fastest sequence has on average, at least 64.
        insert, delete: what "otd" counts for an event that was missed and for one that was
            predicted in vain, in the unit of time; the mean gap by default.
        delta: how far from an event a prediction of "tmap" may lie; two mean gaps by default.
        slots: times at which "tmap" predicts; predictions with a confidence below ``least`` are
            left out.
        time_budget: seconds; where they do not suffice, fewer paths are drawn, at least 32.
        progress: whether to show a bar on stderr.

    Returns an Arrow table. "otd": sequence, time, mark. "tmap": also confidence, the largest first.
    "mae" and "rmse": one row per sequence with time, mark and the probability of that mark.
    "counts" and "smape": sequence, mark, start, stop and count. Times are timestamps where the data
    has dates.

    Raises :class:`UserError` where a number is out of range, ``at`` lies outside the window of a
    sequence, the marks are not the model's, or the model explodes.

    >>> from fourpoint.models.poisson import Poisson
    >>> log = Sequence([0.5], start=0.0, stop=2.0)
    >>> table = predict(Poisson(), log, "mae")  # a rate of 1
    >>> table.column_names, round(table.column("time")[0].as_py(), 4)
    (['sequence', 'time', 'mark', 'probability'], 2.6931)
    >>> predict(Poisson(), log, "otd", steps=3, insert=1.0, delete=1.0).num_rows
    3
    """
    known = as_dataset(model, data, reading)
    plan = planned_prediction(
        model,
        known,
        score,
        steps=steps,
        horizon=horizon,
        at=at,
        paths=paths,
        insert=insert,
        delete=delete,
        delta=delta,
        slots=slots,
        least=least,
        seed=seed,
        time_budget=time_budget,
    )
    parts = list(prediction_parts(model, plan, progress=progress))
    return pa.concat_tables([prediction_schema(plan).empty_table(), *parts])


def write_predictions(
    model: PointProcess, plan: PredictionPlan, path: Path, *, progress: bool = False
) -> int:
    """Write the table to ``path``, Parquet or CSV by its ending; the file appears whole or not at
    all. Returns the number of rows.
    """
    parts = prediction_parts(model, plan, progress=progress)
    return write_parts(path, prediction_schema(plan), parts)


def planned_prediction(
    model: PointProcess,
    data: Dataset,
    score: str,
    *,
    steps: int = STEPS,
    horizon: float | str | None = None,
    at: Moment | None = None,
    paths: int = PATHS,
    insert: float | None = None,
    delete: float | None = None,
    delta: float | None = None,
    slots: int = SLOTS,
    least: float = 0.01,
    seed: int = 0,
    time_budget: float | None = None,
    gap: float | None = None,
) -> PredictionPlan:
    """The plan of a prediction; see :func:`predict`. The mean ``gap`` is that of ``data`` if it is
    not given, as it is for a part of some data.
    """
    check_marks(model.marks, data.marks)
    if score not in SCORES:
        raise UserError(f"a score out of {', '.join(SCORES)}", f"{score!r}", "Choose one of them.")
    chosen: Score = score
    if not len(data):
        raise UserError("at least one sequence", "a data set without any", "Read or select some.")
    for name, number in (("steps", steps), ("paths", paths), ("slots", slots)):
        if number < 1:
            raise UserError(f"at least one for {name}", f"{name}={number}", "Raise it.")
    if not 0 <= least < 1:
        raise UserError("a confidence from 0 to below 1", f"least={least}", "Pass least=0.01, say.")
    if time_budget is not None and not time_budget > 0:
        raise UserError(
            "a positive time budget", f"{time_budget}", "Pass seconds, or leave it out."
        )
    gap = mean_gap(data) if gap is None else gap
    lengths = {"insert": insert, "delete": delete, "delta": delta}
    for name, length in lengths.items():
        if length is not None and not (math.isfinite(length) and length > 0):
            raise UserError(
                f"a positive {name}", f"{name}={length}", f"Pass {name}={gap:.3g}, say."
            )
    begins = times_of(data, at)
    ahead = np.full(len(data), steps * gap)
    if horizon is not None:
        unit = data.unit
        found = (
            length_after(data.dates(row), float(begins[row]), horizon, unit)
            for row in range(len(data))
        )
        ahead = np.fromiter(found, dtype=np.float64)
    elif score == "otd":
        ahead = FAR * ahead
    if not (np.isfinite(ahead).all() and (ahead > 0).all()):
        raise UserError(
            "a positive horizon",
            f"{horizon}",
            "Pass a number in the data's unit of time, or a duration such as 30d.",
        )
    return PredictionPlan(
        data=data,
        at=begins,
        score=chosen,
        steps=steps,
        lengths=ahead,
        exact=horizon is None,
        paths=paths,
        insert=gap if insert is None else float(insert),
        delete=gap if delete is None else float(delete),
        delta=2 * gap if delta is None else float(delta),
        slots=slots,
        least=least,
        seed=seed,
        time_budget=time_budget,
    )


def mean_gap(data: Dataset) -> float:
    """The time observed per event, in the data's unit.

    >>> mean_gap(Dataset.from_sequences([Sequence([1.0, 2.0], start=0.0, stop=3.0)]))
    1.5
    """
    return float(data.exposed_times.sum()) / max(1, data.scored_events)


def notes_on(plan: PredictionPlan) -> list[str]:
    """What was filled in, for a reader of the prediction."""
    unit = plan.data.unit or "units of time"
    if plan.score == "otd":
        return [f"insertion costs {plan.insert:.4g} {unit} and deletion {plan.delete:.4g}"]
    if plan.score == "tmap":
        near = f"a prediction matches an event within {plan.delta:.4g} {unit}"
        return [f"{near}; horizon {float(plan.lengths[0]):.4g}"]
    if plan.score in ("counts", "smape"):
        return [f"events are counted over {float(plan.lengths[0]):.4g} {unit}"]
    return []


def prediction_schema(plan: PredictionPlan) -> pa.Schema:
    """The columns of the table."""
    dates = plan.data.dates(0)
    time = pa.float64() if dates is None else pa.timestamp("us", dates.zone)
    sequence, mark = ("sequence", pa.string()), ("mark", pa.string())
    if plan.score in ("counts", "smape"):
        return pa.schema([sequence, mark, ("start", time), ("stop", time), ("count", pa.int64())])
    columns = [sequence, ("time", time), mark]
    if plan.score == "tmap":
        columns.append(("confidence", pa.float64()))
    elif plan.score != "otd":
        columns.append(("probability", pa.float64()))
    return pa.schema(columns)


def prediction_parts(
    model: PointProcess, plan: PredictionPlan, *, progress: bool = False
) -> Iterator[pa.Table]:
    """The table in parts, a batch of sequences each."""
    count = len(plan.data)
    expected = int(CROWDED * plan.lengths.max() / mean_gap(plan.data))
    numbers = max(model.marks.count * plan.slots, plan.paths * max(expected, FEW_EVENTS))
    size = max(1, min(ROWS, NUMBERS // numbers))
    began = monotonic()
    paths = plan.paths
    done = 0
    worked = 0  # paths decoded
    with eval_mode(model), bar("predicting", count, show=progress) as step:
        while done < count:
            own = min(size, count - done)
            if plan.time_budget is not None:
                if done == 0:
                    own = min(PILOT, own)
                    paths = min(FEWEST, plan.paths)
                else:
                    each = (monotonic() - began) / worked
                    left = plan.time_budget - (monotonic() - began)
                    paths = int(max(0.0, left) / (each * (count - done)))
                    paths = min(plan.paths, max(min(FEWEST, plan.paths), paths))
            rows = np.arange(done, done + own)
            yield _table(plan, _predicted(model, plan, rows, paths))
            worked += own * paths
            done += own
            step(done)


# ---------------------------------------------------------------------- decoding


def _predicted(
    model: PointProcess, plan: PredictionPlan, rows: NDArray[np.int64], paths: int
) -> Part:
    batch = events_until(plan.data, plan.at, rows)
    at = plan.at[rows]
    if plan.score in ("mae", "rmse"):
        return _next(model, plan, batch, rows)
    types = model.marks.count
    futures = _paths(model, plan, batch, rows, paths)
    if plan.score == "otd":
        found = least_transport(
            futures, types, plan.steps, plan.insert, plan.delete, exact=plan.exact
        )
        row, _ = np.nonzero(found.marks >= 0)
        real = found.marks >= 0
        return Part(rows[row], at[row] + found.times[real], found.marks[real], None)
    if plan.score == "tmap":
        return _ranked(plan, futures, rows, types)
    counted = futures.counts(types)
    best = median_counts(counted) if plan.score == "counts" else smape_counts(counted)
    kinds = np.tile(np.arange(types), len(rows))
    return Part(np.repeat(rows, types), None, kinds, best.ravel())


def _paths(
    model: PointProcess,
    plan: PredictionPlan,
    batch: Batch,
    rows: NDArray[np.int64],
    paths: int,
) -> Futures:
    keys = np.array([key_of(plan.seed, plan.data.ids[row]) for row in rows], dtype=np.uint64)
    at = plan.at[rows]
    stop = at + plan.lengths[rows]
    counted = plan.score == "otd" and plan.exact
    most = plan.steps if counted else _crowd(plan, batch, rows)
    try:
        futures = draw_futures(model, batch, at, stop, paths, keys, most)
        crowded = (np.diff(futures.offsets) >= most).mean()
        if not counted and crowded > RARE:
            raise explosion(f"{crowded:.1%} of the paths with {most:,} events or more")
        return futures
    except UserError as error:
        ids = [plan.data.ids[row] for row in rows[[0, -1]]]
        received = f"{error.received} (sequences {ids[0]} to {ids[1]})"
        raise UserError(error.expected, received, error.remedy) from error


def _crowd(plan: PredictionPlan, batch: Batch, rows: NDArray[np.int64]) -> int:
    """The number of events at which a path up to a horizon ends: far more than the fastest sequence
    has. A fitted process may explode on a path in thousands, which then takes all the time.
    """
    spans = (batch.stop - batch.start).cpu().numpy()
    counts = batch.lengths.cpu().numpy()
    gap = mean_gap(plan.data)
    fastest = np.maximum(1 / gap, (counts / np.maximum(spans, gap)).max(initial=0.0))
    expected = float(fastest * plan.lengths[rows].max())
    return max(FEW_EVENTS, math.ceil(CROWDED * expected))


def _ranked(plan: PredictionPlan, futures: Futures, rows: NDArray[np.int64], types: int) -> Part:
    """Times and confidences of "tmap". Paths are scaled to one horizon, which sequences in calendar
    time need not share.
    """
    lengths = plan.lengths[rows]
    longest = float(lengths.max())
    grid = (np.arange(plan.slots) + 0.5) / plan.slots * longest
    confidence = match_confidence(futures, types, grid, plan.delta, plan.least)
    confidence[np.broadcast_to(grid >= lengths[:, None, None], confidence.shape)] = 0.0
    row, kind, slot = np.nonzero(confidence > 0)
    values = confidence[row, kind, slot]
    order = np.lexsort((slot, kind, -values, row))
    row, kind, slot, values = row[order], kind[order], slot[order], values[order]
    return Part(rows[row], plan.at[rows[row]] + grid[slot], kind, values)


def _next(model: PointProcess, plan: PredictionPlan, batch: Batch, rows: NDArray[np.int64]) -> Part:
    """Median or mean of the next event's time, its likeliest type and the probability of that."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    past = remember(model, batch.to(device))
    start = torch.from_numpy(plan.at[rows].copy()).to(device)
    exposure = None if past.context is None else past.context.exposure

    def rates(times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        found = last_rates(model, past, times)
        return found if exposure is None else found * exposure.at(times).to(found)

    now = rates(start[:, None]).sum((1, 2)).double()
    width = 0.25 / now.clamp(min=torch.finfo(now.dtype).tiny)
    law = next_event_law(
        rates,
        start,
        width,
        longest=model.longest_panel,
        shortest=model.shortest_time(past),
        tolerance=TOLERANCE,
    )
    times = law.quantiles([0.5])[:, 0] if plan.score == "mae" else law.mean()
    never = ~times.isfinite()
    if bool(never.any()):
        place = int(torch.nonzero(never)[0])
        raise UserError(
            f"a next event with a finite {'median' if plan.score == 'mae' else 'mean'}",
            f"none for sequence {plan.data.ids[int(rows[place])]}: with probability "
            f"{float(law.never[place]):.3g} no event comes",
            "Use score='counts', or 'mae' if more than half of the futures have an event.",
        )
    shares = law.marks().cpu()
    probability, marks = shares.max(1)
    return Part(rows, times.cpu().numpy(), marks.numpy(), probability.numpy())


# ---------------------------------------------------------------------- the table


def _table(plan: PredictionPlan, part: Part) -> pa.Table:
    schema = prediction_schema(plan)
    names = tuple(plan.data.marks.names) or ("",)
    columns: dict[str, Any] = {
        "sequence": pa.array([plan.data.ids[row] for row in part.rows.tolist()], pa.string()),
        "mark": pa.array([names[mark] for mark in part.marks.tolist()], pa.string()),
    }
    if part.times is not None:
        columns["time"] = _as_column(plan, part.rows, part.times, schema.field("time").type)
    else:
        begins = plan.at[part.rows]
        ends = begins + plan.lengths[part.rows]
        columns["start"] = _as_column(plan, part.rows, begins, schema.field("start").type)
        columns["stop"] = _as_column(plan, part.rows, ends, schema.field("stop").type)
    if part.values is not None:
        columns[schema.names[-1]] = pa.array(part.values, schema.field(schema.names[-1]).type)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _as_column(
    plan: PredictionPlan, rows: NDArray[np.int64], times: Floats, kind: pa.DataType
) -> pa.Array:
    """Times as timestamps where the data has dates."""
    return pa.array(as_times(plan.data, rows, times[:, None])[:, 0]).cast(kind)
