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
        out: dict[str, Any] = {
            "events": n.events,
            "time_rmse": n.rmse,
            "time_mae": n.mae,
            "time_crps": n.crps,
            "coverage_90": n.coverage,
        }
        out |= (
            {} if n.accuracy is None else {"mark_accuracy": n.accuracy, "mark_log_loss": n.log_loss}
        )
        if h is not None:
            out |= {
                "origins": h.origins,
                "horizon": h.horizon,
                "count_crps": h.count_crps.tolist(),
                "otd": h.otd,
                "otd_cost": h.cost,
            }
        return {
            k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in out.items()
        }

    def __rich__(self) -> Table:
        n = self.next_event
        h = self.horizon
        title = f"Predictions of the next event ({n.events:,} of them)"
        table = text_table(title, title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(justify="right")
        rows = {
            "time RMSE": f"{n.rmse:.4g}",
            "time MAE": f"{n.mae:.4g}",
            "time CRPS": f"{n.crps:.4g}",
        }
        rows["90% interval covers"] = f"{n.coverage:.1%}"
        if n.accuracy is not None:
            rows |= {"mark accuracy": f"{n.accuracy:.1%}", "mark log-loss": f"{n.log_loss:.4f}"}
        if h is not None:
            rows[f"count CRPS in {len(h.count_crps)} windows up to {h.horizon:.4g}"] = ", ".join(
                f"{c:.3g}" for c in h.count_crps
            )
            rows[f"transport distance (cost {h.cost:.4g})"] = f"{h.otd:.4g}"
        for name, text in rows.items():
            table.add_row(name, text)
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
    rank = (2 * np.arange(n) - n + 1).reshape(one_column)
    spread = (rank * x).sum(0) / (n * max(n - 1, 1))
    return np.asarray(np.abs(draws - truth).mean(0) - spread)


def transport_distance(
    a: Floats, a_marks: NDArray[np.int64], b: Floats, b_marks: NDArray[np.int64], cost: float
) -> float:
    """The least cost of turning events ``a`` into events ``b``: |t - t'| to move one, ``cost`` to
    add or remove one.

    >>> transport_distance(
    ...     np.array([1.0, 5.0]), np.array([0, 1]), np.array([1.5]), np.array([0]), cost=2.0
    ... )
    2.5
    """
    total = 0.0
    for m in np.union1d(a_marks, b_marks):
        total += _aligned(a[a_marks == m], b[b_marks == m], cost)
    return total


def _aligned(a: Floats, b: Floats, cost: float) -> float:
    """Dynamic programming over prefixes; a row is found at once, since adding events is a running
    minimum along it.
    """
    steps = cost * np.arange(len(b) + 1)
    row = steps.copy()
    for t in a:
        best = row + cost
        best[1:] = np.minimum(best[1:], row[:-1] + np.abs(t - b))
        row = np.minimum.accumulate(best - steps) + steps
    return float(row[-1])


def _no_bar(done: float, text: str | None = None) -> None:
    """Progress that is not shown."""


def _next_scores(
    model: PointProcess, data: Dataset, chosen: NDArray[np.int64], step: Step = _no_bar
) -> NextScores:
    """Scores at the events ``chosen`` (flat indices), a few sequences at a time."""
    sums = []
    marked = []
    rows, own = by_sequence(data, chosen)
    for k in range(0, len(rows), BATCH):
        some = slice(k, k + BATCH)
        times, marks = _score_batch(model, laws_before(model, data, rows[some], own[some]))
        sums.append(times)
        marked.append(marks)
        step(sum(map(len, sums)))
    t = np.concatenate(sums)
    m = np.concatenate(marked)
    rmse = float(np.sqrt(np.square(t[:, 0]).mean()))
    mae, crps, coverage = (float(x) for x in t[:, 1:].mean(0))
    accuracy, log_loss = (None, None) if data.marks.count == 1 else (float(x) for x in m.mean(0))
    return NextScores(len(t), rmse, mae, crps, coverage, accuracy, log_loss)


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
    covered = ((below >= tail * seen) & (below <= (1 - tail) * seen)).double()
    median = law.quantiles([0.5])[:, 0]
    errors = [law.mean() - truth, (median - truth).abs(), law.crps(truth), covered]
    times = torch.stack(errors, 1)
    at = events.rates(truth[:, None])[:, 0].double()
    log_loss = at.sum(1).log() - at.gather(1, events.marks[:, None])[:, 0].log()
    marks = torch.stack([(at.argmax(1) == events.marks).double(), log_loss], 1)
    return times.cpu()[events.real].numpy(), marks.cpu()[events.real].numpy()


def _default_horizon(data: Dataset) -> float:
    gap = float(data.exposed_times.sum()) / data.scored_events
    return min(10 * gap, float((data.stops - data.scored_starts).max()) / 2)


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
            true = data[int(s)]
            edges = begin + horizon * shares
            inside = ~known_at(true.times, begin) & (true.times < begin + horizon)
            counts = np.stack(
                [np.histogram(drawn[j].times, edges)[0] for j in range(i * paths, (i + 1) * paths)]
            )
            scores.append(
                crps_of_sample(
                    counts.astype(np.float64),
                    np.histogram(true.times[inside], edges)[0].astype(np.float64),
                )
            )
            pairs = (drawn[j] for j in range(i * paths, (i + 1) * paths))
            distances.append(
                np.mean(
                    [
                        transport_distance(
                            p.times, p.marks, true.times[inside], true.marks[inside], cost
                        )
                        for p in pairs
                    ]
                )
            )
    return HorizonScores(
        origins, float(horizon), float(cost), np.mean(scores, 0), float(np.mean(distances))
    )


def _part(step: Step, first: int, count: int) -> Step:
    """Moves a bar on from ``first`` to ``first + count`` as a share goes from 0 to 1."""
    return lambda done, text=None: step(first + count * done, text)


def _futures(
    model: PointProcess,
    data: Dataset,
    rows: NDArray[np.int64],
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
