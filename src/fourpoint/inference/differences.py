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
Integers = NDArray[np.int64]
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
    events: Integers  # (S,)
    times: Floats  # of all gaps' ends, in the order of the data
    gains: Floats  # nats of each gap
    dates: Dates | None

    def to_dict(self) -> dict[str, Any]:
        """All numbers, with one entry for each sequence."""
        sequences = []
        for row, name in enumerate(self.ids):
            own = {
                "sequence": name,
                "events": int(self.events[row]),
                "difference": float(self.per_sequence[row]),
            }
            sequences.append(own)
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
        if gain.low > 0:
            which = "The first model is better"
        elif gain.high < 0:
            which = "The second model is better"
        else:
            which = "Neither is clearly better"
        interval = f"{gain.low:+.4f} to {gain.high:+.4f}"
        return f"{which}: {gain.mean:+.4f} nats per event ({interval})."

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
            self.sentence,
            title_justify="left",
            box=None,
            pad_edge=False,
            show_header=False,
        )
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        nats = _with_interval(self.log_likelihood)
        table.add_row("log-likelihood", f"{nats} nats per event")
        crps = _with_interval(self.crps)
        table.add_row("CRPS of the next time", f"{crps} per event, {self.crps_events:,} events")
        by_size = sorted(self.by_mark.items(), key=lambda item: -abs(item[1]))
        largest = [f"{name} {gain:+.4f}" for name, gain in by_size[:SHOWN]]
        if largest:
            table.add_row("by type", ", ".join(largest))
        if len(self.ids) > 1:
            wins = int((self.per_sequence > 0).sum())
            table.add_row("first is better in", f"{wins:,} of {len(self.ids):,} sequences")
        table.add_row("interval", f"95%, bootstrap over {self.units:,} {self.unit_name}")
        return table


def _with_interval(gain: Gain) -> str:
    return f"{gain.mean:+.4g} ({gain.low:+.4g} to {gain.high:+.4g})"


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
    other_gaps = _gaps(second, data, tolerance, progress)
    gains = gaps.nats - other_gaps.nats
    unit, unit_name = _units(data, gaps.sequences)
    count = int(unit.max()) + 1
    is_event = gaps.marks >= 0
    in_unit = _sums(unit[is_event], None, count)
    by_unit = _sums(unit, gains, count)
    filled = (in_unit > 0) | (by_unit != 0)
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(scored))[:events]
    chosen = np.sort(scored[drawn])
    apart = _crps_differences(first, second, data, chosen, progress)
    unit_of_event = np.full(data.events, -1, dtype=np.int64)
    unit_of_event[scored] = unit[is_event]
    own = unit_of_event[chosen]
    chosen_in_unit = _sums(own, None, count)
    apart_by_unit = _sums(own, apart, count)
    some = chosen_in_unit > 0
    by_mark = {}
    for mark, name in enumerate(data.marks.names):
        of_mark = gaps.marks == mark
        if of_mark.any():
            by_mark[name] = float(gains[of_mark].mean())
    return Difference(
        log_likelihood=paired_gain(by_unit[filled], in_unit[filled], seed),
        crps=paired_gain(apart_by_unit[some], chosen_in_unit[some], seed),
        crps_events=len(chosen),
        by_mark=by_mark,
        units=int(filled.sum()),
        unit_name=unit_name,
        ids=tuple(data.ids),
        per_sequence=_sums(gaps.sequences, gains, len(data)),
        events=np.asarray(data.scored_lengths, dtype=np.int64),
        times=gaps.ends,
        gains=gains,
        dates=data.dates(0),
    )


def _sums(group: Integers, values: Floats | None, count: int) -> Floats:
    """The sum of the values in each of ``count`` groups, or how many there are."""
    return np.bincount(group, values, count).astype(np.float64)


def unit_log_likelihoods(
    model: PointProcess, data: Dataset, *, tolerance: float = 1e-4
) -> tuple[Floats, Floats]:
    """The log-likelihood (window convention) of each unit of ``data`` in nats, and its events.

    Units are those of :func:`difference`, the same for all models; the sum over units is that of
    all data. Scores of two models are compared by `ops.pairing`.
    """
    gaps = _gaps(model, data, tolerance, False)
    unit, _ = _units(data, gaps.sequences)
    count = int(unit.max(initial=-1)) + 1
    is_event = gaps.marks >= 0
    return _sums(unit, gaps.nats, count), _sums(unit[is_event], None, count)


class _Gaps(NamedTuple):
    """Every scored gap of a data set, in its order: what it contributes to the log-likelihood, its
    sequence, the mark of the event at its end (-1: the window's end) and that end.
    """

    nats: Floats
    sequences: Integers
    marks: Integers
    ends: Floats


def _gaps(model: PointProcess, data: Dataset, tolerance: float, progress: bool) -> _Gaps:
    """The scored gaps of ``data`` under ``model``."""
    found: list[_Gaps] = []
    done = 0
    device = next(model.parameters()).device
    with eval_mode(model), bar("scoring", len(data), show=progress) as step:
        for rows in data.batches(BATCH):
            batch = data.batch(rows).to(device)
            logs, integral = gap_log_likelihoods(model, batch, tolerance=tolerance)
            values = (logs - integral).double().cpu().numpy()
            for k, s in enumerate(rows.tolist()):
                length = int(data.lengths[s])
                count = int(data.scored_lengths[s])
                last = int(data.offsets[s + 1])
                some = slice(last - count, last)
                own = _Gaps(
                    nats=values[k, length - count : length + 1],
                    sequences=np.full(count + 1, s),
                    marks=np.append(data.mark_ids[some], -1),
                    ends=np.append(data.times[some], data.stops[s]),
                )
                found.append(own)
            done += len(rows)
            step(done)
    found.sort(key=lambda own: int(own.sequences[0]))
    return _Gaps(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _units(data: Dataset, owner: Integers) -> tuple[Integers, str]:
    """The unit of every gap, from 0 on."""
    with_events = int((data.scored_lengths > 0).sum())
    if with_events >= FEWEST:
        return owner, "sequences"
    gaps = len(owner)
    size = max(1, int(np.ceil(gaps / BLOCKS)))
    place = np.arange(gaps) - np.searchsorted(owner, owner)
    block = place // size
    key = owner * (gaps + 1) + block
    _, unit = np.unique(key, return_inverse=True)
    return unit.astype(np.int64), "blocks of a log"


def _crps_differences(
    first: PointProcess,
    second: PointProcess,
    data: Dataset,
    chosen: Integers,
    progress: bool,
) -> Floats:
    """The difference of the CRPS of the next time at each of the events ``chosen``."""
    rows, places = by_sequence(data, chosen)
    parts: list[Floats] = []
    with eval_mode(first), eval_mode(second), bar("next times", len(rows), show=progress) as step:
        for begin in range(0, len(rows), BATCH):
            some = slice(begin, begin + BATCH)
            scores = []
            for model in (first, second):
                events = laws_before(model, data, rows[some], places[some])
                crps = events.law.crps(events.truth).cpu()
                scores.append(crps[events.real].double().numpy())
            parts.append(scores[0] - scores[1])
            step(min(len(rows), begin + BATCH))
    return np.concatenate(parts)
