r"""How good a model's predictions are: of the next event, and of everything up to a horizon.

**Next event**, from the conditional density by quadrature, at events drawn from the data. With S(t)
the model's probability of no event up to t and a the event before,

    time RMSE    of the mean, a + int S    CRPS    (y - a) - 2 int_a^y S + int S^2, in units of time
    time MAE     of the median                    coverage    share of y inside the 90% interval

where the interval is that of an event seen before the window's end, as every y is, at the level of
the model's calibration if it has one. For marks, given
the true time: accuracy of the likeliest and log-loss of all.

**Horizon**, from exactly sampled paths that start at random times: the CRPS of the number of events
per window, and the optimal-transport distance between sampled and true events: each event of one is
matched with one of the same type of the other at a cost |t - t'|, or added or removed at a fixed
cost (half of the horizon, as in HoTPP), at the least total.
Sources: Gneiting and Raftery (2007); Mei, Qin and Eisner (2019); Karpukhin, Shipilov and Savchenko
(2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Dataset, Sequence, UserError, all_sequences, check_marks, known_at
from fourpoint.inference.next_events import ChosenEvents, by_sequence, laws_before
from fourpoint.inference.sampling import advance, eval_mode, remember, select_rows
from fourpoint.models.base import PointProcess
from fourpoint.report.printing import Printed, Step, bar, text_table

if TYPE_CHECKING:
    from rich.table import Table

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
BATCH = 64
LEVEL = 0.9  # of the interval for the next time
EVENTS, ORIGINS, PATHS, WINDOWS = 500, 50, 50, 4


@dataclass(frozen=True)
class NextScores:
    """Scores of the next event over ``events`` of them; times in the user's unit, marks None where
    there is one type.
    """

    events: int
    rmse: float
    mae: float
    crps: float
    coverage: float
    accuracy: float | None
    log_loss: float | None


@dataclass(frozen=True)
class HorizonScores:
    """Scores over a horizon from ``origins`` starts: CRPS of the count in each window, and
    optimal-transport distance.
    """

    origins: int
    horizon: float
    cost: float
    count_crps: Floats
    otd: float


@dataclass(frozen=True, repr=False)
class Predictions(Printed):
    """What :func:`prediction_scores` found; ``horizon`` is None where no window is long enough.
    Prints as a table.
    """

    next_event: NextScores
    horizon: HorizonScores | None

    def to_dict(self) -> dict[str, Any]:
        """All scores under the names of the command line's JSON."""
        n = self.next_event
        h = self.horizon
        scores: dict[str, Any] = {
            "events": n.events,
            "time_rmse": n.rmse,
            "time_mae": n.mae,
            "time_crps": n.crps,
            "coverage_90": n.coverage,
        }
        if n.accuracy is not None:
            scores |= {"mark_accuracy": n.accuracy, "mark_log_loss": n.log_loss}
        if h is not None:
            scores |= {
                "origins": h.origins,
                "horizon": h.horizon,
                "count_crps": h.count_crps.tolist(),
                "otd": h.otd,
                "otd_cost": h.cost,
            }
        for name, value in scores.items():
            if isinstance(value, float) and not np.isfinite(value):
                scores[name] = None
        return scores

    def __rich__(self) -> Table:
        n = self.next_event
        h = self.horizon
        title = f"Predictions of the next event ({n.events:,} of them)"
        table = text_table(title, title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(justify="right")
        table.add_row("time RMSE", f"{n.rmse:.4g}")
        table.add_row("time MAE", f"{n.mae:.4g}")
        table.add_row("time CRPS", f"{n.crps:.4g}")
        table.add_row("90% interval covers", f"{n.coverage:.1%}")
        if n.accuracy is not None:
            table.add_row("mark accuracy", f"{n.accuracy:.1%}")
            table.add_row("mark log-loss", f"{n.log_loss:.4f}")
        if h is not None:
            windows = f"{len(h.count_crps)} windows up to {h.horizon:.4g}"
            crps = [f"{score:.3g}" for score in h.count_crps]
            table.add_row(f"count CRPS in {windows}", ", ".join(crps))
            table.add_row(f"transport distance (cost {h.cost:.4g})", f"{h.otd:.4g}")
        return table


def prediction_scores(
    model: PointProcess,
    data: Dataset | Sequence,
    *,
    events: int = EVENTS,
    horizon: float | None = None,
    windows: int = WINDOWS,
    origins: int = ORIGINS,
    paths: int = PATHS,
    cost: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Predictions:
    """Score the predictions of ``model`` on ``data``.

    Args:
        events: how many next events to score, drawn at random with ``seed``; all where there are
            fewer.
        horizon: how far to look from each of ``origins`` random times, in the user's unit; ten mean
            gaps by default, or half of the longest window where that is shorter.
        windows, paths: parts of the horizon in which events are counted, and futures sampled from
            each origin.
        cost: of adding or removing an event in the transport distance; half of the horizon by
            default.
        progress: whether to show bars on stderr.

    Raises :class:`UserError` where the marks are not the model's, there is no event, or the model
    explodes.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> scores = prediction_scores(
    ...     Hawkes(baseline=10.0, branching=1.0), simulate("hawkes", 50), events=300, origins=5
    ... )
    >>> 0.8 < scores.next_event.coverage < 0.98
    True
    """
    data = all_sequences(data)
    check_marks(model.marks, data.marks)
    scored = np.flatnonzero(data.scored)
    if not len(scored):
        raise UserError(
            "data with at least one event", f"{data}", "Score another part of the data."
        )
    if horizon is not None and not horizon > 0:
        raise UserError(
            "a positive horizon", f"{horizon}", "Pass horizon=2.0, say, in the data's unit of time."
        )
    rng = np.random.default_rng(seed)
    with eval_mode(model):
        with bar("next events", min(events, len(scored)), show=progress) as step:
            chosen = np.sort(scored[rng.permutation(len(scored))[:events]])
            following = _next_scores(model, data, chosen, step)
        reach = horizon or _default_horizon(data)
        price = reach / 2 if cost is None else cost
        with bar("predictions up to a horizon", origins, show=progress) as step:
            far = _horizon_scores(model, data, reach, windows, origins, paths, price, rng, step)
    return Predictions(following, far)


def crps_of_sample(draws: Floats, truth: Floats) -> Floats:
    """E|X - y| - E|X - X'|/2 from draws (S, ...) of X, without the bias of counting a draw against
    itself.

    >>> crps_of_sample(np.array([[1.0], [3.0]]), np.array([2.0])).tolist()
    [0.0]
    """
    n = len(draws)
    x = np.sort(draws, axis=0)
    one_column = (n,) + (1,) * (x.ndim - 1)
    rank = 2 * np.arange(n) - n + 1
    weighted = rank.reshape(one_column) * x
    spread = weighted.sum(0) / (n * max(n - 1, 1))
    error = np.abs(draws - truth).mean(0)
    return np.asarray(error - spread)


def transport_distance(
    a: Floats, a_marks: Integers, b: Floats, b_marks: Integers, cost: float
) -> float:
    """The least cost of turning events ``a`` into events ``b``: |t - t'| to move one, ``cost`` to
    add or remove one.

    >>> transport_distance(
    ...     np.array([1.0, 5.0]), np.array([0, 1]), np.array([1.5]), np.array([0]), cost=2.0
    ... )
    2.5
    """
    total = 0.0
    for mark in np.union1d(a_marks, b_marks):
        own_a = a[a_marks == mark]
        own_b = b[b_marks == mark]
        total += _aligned(own_a, own_b, cost)
    return total


def _aligned(a: Floats, b: Floats, cost: float) -> float:
    """Dynamic programming over prefixes; a row is found at once, since adding events is a running
    minimum along it.
    """
    steps = cost * np.arange(len(b) + 1)
    row = steps.copy()
    for t in a:
        best = row + cost
        moved = row[:-1] + np.abs(t - b)
        best[1:] = np.minimum(best[1:], moved)
        row = np.minimum.accumulate(best - steps) + steps
    return float(row[-1])


def _no_bar(done: float, text: str | None = None) -> None:
    """Progress that is not shown."""


def _next_scores(
    model: PointProcess, data: Dataset, chosen: Integers, step: Step = _no_bar
) -> NextScores:
    """Scores at the events ``chosen`` (flat indices), a few sequences at a time."""
    time_scores = []
    mark_scores = []
    done = 0
    rows, own = by_sequence(data, chosen)
    for k in range(0, len(rows), BATCH):
        some = slice(k, k + BATCH)
        events = laws_before(model, data, rows[some], own[some])
        times, marks = _score_batch(model, events)
        time_scores.append(times)
        mark_scores.append(marks)
        done += len(times)
        step(done)
    times = np.concatenate(time_scores)
    rmse = np.sqrt(np.square(times[:, 0]).mean())
    mae, crps, coverage = times[:, 1:].mean(0).tolist()
    accuracy = None
    log_loss = None
    if data.marks.count > 1:
        accuracy, log_loss = np.concatenate(mark_scores).mean(0).tolist()
    return NextScores(len(times), float(rmse), mae, crps, coverage, accuracy, log_loss)


def _score_batch(model: PointProcess, events: ChosenEvents) -> tuple[Floats, Floats]:
    """Error of mean and median, CRPS and coverage; then hit and log-loss of the mark: one row per
    chosen event.
    """
    law = events.law
    truth = events.truth
    ends = torch.stack([truth, events.stop], 1)
    below, seen = (1 - torch.exp(-law.integral_at(ends))).unbind(1)
    level = LEVEL
    if model.calibration is not None:
        level = model.calibration.region_level("central", LEVEL)
    tail = (1 - level) / 2
    covered = (below >= tail * seen) & (below <= (1 - tail) * seen)
    median = law.quantiles([0.5])[:, 0]
    error_of_mean = law.mean() - truth
    error_of_median = (median - truth).abs()
    crps = law.crps(truth)
    times = torch.stack([error_of_mean, error_of_median, crps, covered.double()], 1)
    rates = events.rates(truth[:, None])[:, 0].double()
    of_mark = rates.gather(1, events.marks[:, None])[:, 0]
    log_loss = rates.sum(1).log() - of_mark.log()
    hit = rates.argmax(1) == events.marks
    marks = torch.stack([hit.double(), log_loss], 1)
    real = events.real
    return times.cpu()[real].numpy(), marks.cpu()[real].numpy()


def _default_horizon(data: Dataset) -> float:
    gap = float(data.exposed_times.sum()) / data.scored_events
    longest = float((data.stops - data.scored_starts).max())
    return min(10 * gap, longest / 2)


def _horizon_scores(
    model: PointProcess,
    data: Dataset,
    horizon: float,
    windows: int,
    origins: int,
    paths: int,
    cost: float,
    rng: np.random.Generator,
    step: Step,
) -> HorizonScores | None:
    starts = data.scored_starts
    durations = data.stops - starts
    long = np.flatnonzero(durations >= horizon)
    if not len(long) or origins < 1:
        return None
    rows = np.sort(rng.choice(long, origins))
    at = starts[rows] + rng.random(origins) * (durations[rows] - horizon)
    shares = np.linspace(0, 1, windows + 1)
    scores = []
    distances = []
    for k in range(0, origins, BATCH):
        some = rows[k : k + BATCH]
        now = at[k : k + BATCH]
        seed = int(rng.integers(2**31))
        drawn = _futures(model, data, some, now, horizon, paths, seed, _part(step, k, len(some)))
        for i, (s, begin) in enumerate(zip(some, now, strict=True)):
            whole = data[int(s)]
            ahead = ~known_at(whole.times, begin) & (whole.times < begin + horizon)
            times = whole.times[ahead]
            marks = whole.marks[ahead]
            edges = begin + horizon * shares
            own = [drawn[j] for j in range(i * paths, (i + 1) * paths)]
            counts = np.stack([_counts(path.times, edges) for path in own])
            scores.append(crps_of_sample(counts, _counts(times, edges)))
            costs = [transport_distance(path.times, path.marks, times, marks, cost) for path in own]
            distances.append(np.mean(costs))
    return HorizonScores(
        origins=origins,
        horizon=float(horizon),
        cost=float(cost),
        count_crps=np.mean(scores, 0),
        otd=float(np.mean(distances)),
    )


def _counts(times: Floats, edges: Floats) -> Floats:
    counts, _ = np.histogram(times, edges)
    return counts.astype(np.float64)


def _part(step: Step, first: int, count: int) -> Step:
    """Moves a bar on from ``first`` to ``first + count`` as a share goes from 0 to 1."""
    return lambda done, text=None: step(first + count * done, text)


def _futures(
    model: PointProcess,
    data: Dataset,
    rows: Integers,
    now: Floats,
    horizon: float,
    paths: int,
    seed: int,
    step: Step,
) -> Dataset:
    """``paths`` sampled futures for each origin, one after the other."""
    whole = data.batch(rows)
    at = torch.from_numpy(now)
    past = select_rows(
        remember(model, whole.until(at)), torch.arange(len(rows)).repeat_interleave(paths)
    )
    start = at.repeat_interleave(paths)
    random = torch.Generator().manual_seed(seed)
    return advance(model, past, start, start + horizon, random, step=step).data
