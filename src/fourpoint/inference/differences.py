r"""Two fitted models on the same data: by how much one is better, and where.

Both models are scored at every event. With d_i the difference of what the gap before event i
contributes to the log-likelihood, log lambda(t_i) - int lambda, and of the CRPS of the next event's
time, differences are summed by unit and divided by the number of events; the interval is from a
bootstrap over units. Units are sequences, or, where there are fewer than 20 of them, blocks of
consecutive events of each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Dataset, Sequence, UserError, all_sequences, check_marks
from fourpoint.events.dates import Dates
from fourpoint.inference.likelihood import gap_log_likelihoods
from fourpoint.inference.next_events import by_sequence, laws_before
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.base import PointProcess
from fourpoint.ops.pairing import Gain, paired_gain
from fourpoint.report.printing import Printed, bar, text_table
from fourpoint.strict_json import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

Floats = NDArray[np.float64]
BATCH = 64
EVENTS = 500
FEWEST = 20  # sequences that are units by themselves
BLOCKS = 40  # of all logs together, where sequences are fewer
SHOWN = 8


@dataclass(frozen=True, repr=False)
class Difference(Printed):
    """What :func:`difference` found: first model less second. Prints as a table."""

    log_likelihood: Gain  # nats per event; positive: the first is better
    crps: Gain  # units of time per event; negative: the first is better
    crps_events: int
    by_mark: dict[str, float]  # nats per event of each type
    units: int
    unit_name: str
    ids: tuple[str, ...]
    per_sequence: Floats  # nats, (S,)
    events: NDArray[np.int64]  # (S,)
    times: Floats  # of all gaps' ends, in the order of the data
    gains: Floats  # nats of each gap
    dates: Dates | None

    def to_dict(self) -> dict[str, Any]:
        """All numbers, with one entry for each sequence."""
        sequences = [
            {"sequence": name, "events": int(count), "difference": float(own)}
            for name, count, own in zip(self.ids, self.events, self.per_sequence, strict=True)
        ]
        return plain(
            {
                "log_likelihood_per_event": asdict(self.log_likelihood),
                "crps": asdict(self.crps) | {"events": self.crps_events},
                "by_mark": self.by_mark,
                "units": self.units,
                "unit_name": self.unit_name,
                "sequences": sequences,
            }
        )

    @property
    def sentence(self) -> str:
        """Which model is better, if that is clear."""
        gain = self.log_likelihood
        low, high = f"{gain.low:+.4f}", f"{gain.high:+.4f}"
        if gain.low > 0:
            return f"The first model is better: {gain.mean:+.4f} nats per event ({low} to {high})."
        if gain.high < 0:
            return f"The second model is better: {gain.mean:+.4f} nats per event ({low} to {high})."
        return f"Neither is clearly better: {gain.mean:+.4f} nats per event ({low} to {high})."

    def plot(self, ax: Axes | None = None, unit: str = "") -> Axes:
        """Where one model wins: of one log the difference added up over time, of many sequences the
        difference of each, in order.
        """
        from fourpoint.plots.differences import log_difference_plot, sequence_difference_plot

        if len(self.ids) == 1:
            return log_difference_plot(self.times, self.gains, unit=unit, dates=self.dates, ax=ax)
        per_event = self.per_sequence / np.maximum(self.events, 1)
        return sequence_difference_plot(per_event, ax=ax)

    def __rich__(self) -> Table:
        table = text_table(
            self.sentence, title_justify="left", box=None, pad_edge=False, show_header=False
        )
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, gain, what in (
            ("log-likelihood", self.log_likelihood, "nats per event"),
            ("CRPS of the next time", self.crps, f"per event, {self.crps_events:,} events"),
        ):
            interval = f"{gain.low:+.4g} to {gain.high:+.4g}"
            table.add_row(name, f"{gain.mean:+.4g} ({interval}) {what}")
        ordered = sorted(self.by_mark.items(), key=lambda item: -abs(item[1]))[:SHOWN]
        if ordered:
            table.add_row("by type", ", ".join(f"{name} {gain:+.4f}" for name, gain in ordered))
        wins = int((self.per_sequence > 0).sum())
        if len(self.ids) > 1:
            table.add_row("first is better in", f"{wins:,} of {len(self.ids):,} sequences")
        table.add_row("interval", f"95%, bootstrap over {self.units:,} {self.unit_name}")
        return table


def difference(
    first: PointProcess,
    second: PointProcess,
    data: Dataset | Sequence,
    *,
    events: int = EVENTS,
    tolerance: float = 1e-4,
    seed: int = 0,
    progress: bool = False,
) -> Difference:
    """Compare ``first`` with ``second`` on the same data, which neither was trained on.

    Args:
        events: at how many events, drawn at random, the CRPS of the next time is compared.
        tolerance: error of the integral allowed, in nats per event.
        seed: of the draw and of the bootstrap.

    Raises :class:`UserError` where the marks of the models and the data differ, or there is no
    event to score.

    >>> from fourpoint.data.synthetic import simulate
    >>> from fourpoint.models.hawkes import Hawkes
    >>> from fourpoint.models.poisson import Poisson
    >>> data = simulate("hawkes", 60)
    >>> found = difference(Hawkes(baseline=10.0, branching=1.0), Poisson(), data, events=50)
    >>> found.log_likelihood.low > 0, found.unit_name
    (True, 'sequences')
    """
    data = all_sequences(data)
    for model in (first, second):
        check_marks(model.marks, data.marks)
    scored = np.flatnonzero(data.scored)
    if not len(scored):
        raise UserError(
            "data with at least one event", f"{data}", "Score another part of the data."
        )
    gaps = _gaps(first, data, tolerance, progress)
    owner, marks, times = gaps.sequences, gaps.marks, gaps.ends
    gains = gaps.nats - _gaps(second, data, tolerance, progress).nats
    unit, unit_name = _units(data, owner)
    count = int(unit.max()) + 1
    is_event = marks >= 0
    in_unit = np.bincount(unit[is_event], minlength=count).astype(np.float64)
    by_unit = np.bincount(unit, gains, count).astype(np.float64)
    filled = (in_unit > 0) | (by_unit != 0)
    likelihood = paired_gain(by_unit[filled], in_unit[filled], seed)
    rng = np.random.default_rng(seed)
    chosen = np.sort(scored[rng.permutation(len(scored))[:events]])
    apart = _crps_differences(first, second, data, chosen, progress)
    of_event = np.full(data.events, -1, dtype=np.int64)
    of_event[scored] = unit[is_event]
    own = of_event[chosen]
    number = np.bincount(own, minlength=count).astype(np.float64)
    apart_by_unit = np.bincount(own, apart, count).astype(np.float64)
    crps = paired_gain(apart_by_unit[number > 0], number[number > 0], seed)
    by_mark = {
        name: float(gains[marks == m].mean())
        for m, name in enumerate(data.marks.names)
        if (marks == m).any()
    }
    per_sequence = np.bincount(owner, gains, len(data)).astype(np.float64)
    head = (likelihood, crps, len(chosen), by_mark, int(filled.sum()), unit_name)
    counts = np.asarray(data.scored_lengths, dtype=np.int64)
    return Difference(*head, tuple(data.ids), per_sequence, counts, times, gains, data.dates(0))


def unit_log_likelihoods(
    model: PointProcess, data: Dataset, *, tolerance: float = 1e-4
) -> tuple[Floats, Floats]:
    """The log-likelihood (window convention) of each unit of ``data`` in nats, and its events.

    Units are those of :func:`difference`, the same for all models; the sum over units is that of
    all data. Scores of two models are compared by `ops.pairing`.
    """
    gaps = _gaps(model, data, tolerance, False)
    unit, _ = _units(data, gaps.sequences)
    nats = np.bincount(unit, gaps.nats).astype(np.float64)
    events = np.bincount(unit, gaps.marks >= 0).astype(np.float64)
    return nats, events


class _Gaps(NamedTuple):
    """Every scored gap of a data set, in its order: what it contributes to the log-likelihood, its
    sequence, the mark of the event at its end (-1: the window's end) and that end.
    """

    nats: Floats
    sequences: NDArray[np.int64]
    marks: NDArray[np.int64]
    ends: Floats


def _gaps(model: PointProcess, data: Dataset, tolerance: float, progress: bool) -> _Gaps:
    """The scored gaps of ``data`` under ``model``."""
    nats: list[Floats] = []
    owner: list[NDArray[np.int64]] = []
    marks: list[NDArray[np.int64]] = []
    ends: list[Floats] = []
    done = 0
    place = next(model.parameters()).device
    with eval_mode(model), bar("scoring", len(data), show=progress) as step:
        for rows in data.batches(BATCH):
            batch = data.batch(rows).to(place)
            logs, integral = gap_log_likelihoods(model, batch, tolerance=tolerance)
            values = (logs - integral).double().cpu().numpy()
            for k, s in enumerate(rows.tolist()):
                n = int(data.lengths[s])
                history = n - int(data.scored_lengths[s])
                some = slice(int(data.offsets[s]) + history, int(data.offsets[s + 1]))
                nats.append(values[k, history : n + 1])
                owner.append(np.full(n + 1 - history, s))
                marks.append(np.append(data.mark_ids[some], -1))
                ends.append(np.append(data.times[some], data.stops[s]))
            done += len(rows)
            step(done)
    order = np.argsort([int(part[0]) for part in owner], kind="stable")
    parts = ([kind[i] for i in order] for kind in (nats, owner, marks, ends))
    joined = [np.concatenate(part) for part in parts]
    return _Gaps(*joined)


def _units(data: Dataset, owner: NDArray[np.int64]) -> tuple[NDArray[np.int64], str]:
    """The unit of every gap, from 0 on."""
    if int((data.scored_lengths > 0).sum()) >= FEWEST:
        return owner, "sequences"
    size = max(1, int(np.ceil(len(owner) / BLOCKS)))
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    key = owner * (len(owner) + 1) + place // size
    return np.unique(key, return_inverse=True)[1].astype(np.int64), "blocks of a log"


def _crps_differences(
    first: PointProcess,
    second: PointProcess,
    data: Dataset,
    chosen: NDArray[np.int64],
    progress: bool,
) -> Floats:
    """The difference of the CRPS of the next time at each of the events ``chosen``."""
    rows, own = by_sequence(data, chosen)
    parts: list[Floats] = []
    with eval_mode(first), eval_mode(second), bar("next times", len(rows), show=progress) as step:
        for k in range(0, len(rows), BATCH):
            scores = []
            for model in (first, second):
                events = laws_before(model, data, rows[k : k + BATCH], own[k : k + BATCH])
                scores.append(events.law.crps(events.truth).cpu()[events.real].double().numpy())
            parts.append(scores[0] - scores[1])
            step(min(len(rows), k + BATCH))
    return np.concatenate(parts)
