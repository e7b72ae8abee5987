r"""Sequences that do not look like the others: a p-value for each whole sequence.

Time rescaling turns the events of a sequence into a Poisson process of rate 1 on [0, V] if the
model is right, where V is the integral of the rate over its window. With the spacings w_0, ..., w_N
between its rescaled events and the ends of [0, V], each sequence has three statistics,

    N, 3S = sum_i w_i^2 / V,     KS = max_v | (events up to v) / N - v / V |   (0 without events)

The first is a Poisson variable of mean V. The second is small for events that are too regular and
large for clusters and silences; the third sees a rate that is wrong in one part of the window. 3S
is compared with draws of the Poisson process on [0, V], KS with draws of N events in it; tests of N
and 3S are two-sided, and the p-value of the sequence is min(1, 3 min(p_N, p_3S, p_KS)). ``q`` is
its Benjamini-Hochberg value: among the sequences with q <= .1 the expected share of false ones is
at most 10% if sequences are independent.

Whether a sequence has gone quiet is a question of its own. With w_N the integral of its rate since
its last event, a silence as long as this has the probability exp(-w_N) under the model, and
``q_silence`` is the Benjamini-Hochberg value of these.

Source: Shchur, Turkmen, Januschowski, Gasthaus and Gunnemann, "Detecting anomalous event sequences
with temporal point processes" (2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fourpoint.events import Dataset, Sequence, UserError, all_sequences, check_marks
from fourpoint.events.dates import span_words
from fourpoint.inference.goodness import gap_integrals, with_exact_times
from fourpoint.inference.sampling import eval_mode
from fourpoint.models.base import PointProcess
from fourpoint.ops.discovery import adjusted
from fourpoint.report.printing import Printed, bar, text_table

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable
    from rich.table import Table

Floats = NDArray[np.float64]
BATCH = 64
DRAWS = 999
MOST_DRAWS = 200_000
DOUBTFUL = 0.05  # p-values up to which a sequence is compared with more draws
NUMBERS = 2**22  # spacings that are drawn together
SHOWN = 10
COLUMNS_TEXT = """
    events expected spacings p_count p_spacings p_ks p q silence p_silence q_silence
"""
COLUMNS = COLUMNS_TEXT.split()  # of the table, beside ids and reasons
RATE = 0.1  # false discovery rate of the printed list


@dataclass(frozen=True, repr=False)
class Anomalies(Printed):
    """What :func:`anomalies` found, one number per sequence; prints the most anomalous ones."""

    ids: tuple[str, ...]
    events: NDArray[np.int64]
    expected: Floats
    spacings: Floats  # 3S
    p_count: Floats
    p_spacings: Floats
    p_ks: Floats
    p: Floats
    q: Floats
    silence: Floats  # time since the last event, or since the start
    p_silence: Floats
    q_silence: Floats
    unit: str = ""
    note: str = ""

    @property
    def order(self) -> NDArray[np.int64]:
        """The sequences, the most anomalous first."""
        surplus = np.abs(self.events - self.expected)
        return np.lexsort((-surplus, self.p))

    def reason(self, i: int) -> str:
        """What is unusual about sequence ``i``, by the smallest of its three p-values."""
        p_count = self.p_count[i]
        p_spacings = self.p_spacings[i]
        least = min(p_count, p_spacings, self.p_ks[i])
        if p_count == least:
            more = self.events[i] > self.expected[i]
            return "more events than expected" if more else "fewer events than expected"
        if p_spacings == least:
            total = max(float(self.expected[i]), 1e-9)
            usual = 2 + 2 * np.expm1(-total) / total  # the mean of 3S under the model
            return "clusters and silences" if self.spacings[i] > usual else "too regular"
        return "concentrated in a part of the window"

    def table(self) -> pa.Table:
        """All sequences, the most anomalous first, as an Arrow table."""
        rows = self.order
        columns: dict[str, Any] = {"sequence": [self.ids[i] for i in rows.tolist()]}
        for name in COLUMNS:
            columns[name] = getattr(self, name)[rows]
        columns["reason"] = [self.reason(i) for i in rows.tolist()]
        return pa.table(columns)

    def to_dict(self) -> dict[str, Any]:
        """The number of sequences with q of at most .1, and all of them, the most anomalous
        first.
        """
        return {
            "sequences": len(self.ids),
            "false_discovery_rate": RATE,
            "anomalous": int((self.q <= RATE).sum()),
            "quiet": int((self.q_silence <= RATE).sum()),
            "note": self.note,
            "ranking": self.table().to_pylist(),
        }

    def __rich__(self) -> ConsoleRenderable:
        from rich.console import Group

        if not (self.q_silence <= RATE).any():
            return self._ranking()
        return Group(self._ranking(), "", self._quiet())

    def _quiet(self) -> Table:
        """The sequences that have gone quiet, the least probable silence first."""
        quiet = np.flatnonzero(self.q_silence <= RATE)
        title = f"{len(quiet):,} sequences have gone quiet (false discovery rate 10%)"
        table = _list_of_sequences(
            title,
            "events",
            "silent for",
            "probability of such a silence",
        )
        order = np.argsort(self.p_silence[quiet], kind="stable")
        for i in quiet[order[:SHOWN]].tolist():
            table.add_row(
                self.ids[i],
                f"{self.events[i]:,}",
                span_words(float(self.silence[i]), self.unit),
                f"{self.p_silence[i]:.2g}",
            )
        hidden = len(quiet) - SHOWN
        if hidden > 0:
            table.caption = f"{hidden:,} more: -o FILE writes all"
        return table

    def _ranking(self) -> Table:
        count = int((self.q <= RATE).sum())
        title = f"{count:,} of {len(self.ids):,} sequences are anomalous (false discovery rate 10%)"
        table = _list_of_sequences(title, "events", "expected", "p", "q")
        table.add_column("what is unusual")
        most = max(SHOWN, min(count, 2 * SHOWN))
        shown = self.order[:most].tolist()
        for i in shown:
            table.add_row(
                self.ids[i],
                f"{self.events[i]:,}",
                f"{self.expected[i]:.1f}",
                f"{self.p[i]:.3g}",
                f"{self.q[i]:.3g}",
                self.reason(i) if self.q[i] <= RATE else "",
            )
        notes = []
        hidden = count - len(shown)
        if hidden > 0:
            notes.append(f"{hidden:,} more: -o FILE writes all")
        if self.note:
            notes.append(self.note)
        table.caption = "; ".join(notes) or None
        return table


def _list_of_sequences(title: str, *numbers: str) -> Table:
    """An empty table with a column for the sequence and one for each of these numbers."""
    table = text_table(title, title_justify="left", box=None, pad_edge=False)
    table.add_column("sequence", style="bold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def anomalies(
    model: PointProcess,
    data: Dataset | Sequence,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: bool = False,
) -> Anomalies:
    """Compute how unlikely each whole sequence is under a fitted model, and which have gone quiet.

    Args:
        draws: of the Poisson process that each sequence is compared with. Sequences whose p-value
            is at most 5% are compared again with 100 draws per sequence of the data, so that one
            among many can be found.
        seed: of the draws, and of dequantised times where timestamps are coarse.

    Raises :class:`UserError` where the marks are not the model's, there are no sequences, or the
    rate changes within the resolution of the timestamps in a way that cannot be tested.

    >>> from fourpoint.models.poisson import Poisson
    >>> shifts = np.arange(9) % 4 * 0.3
    >>> usual = [
    ...     Sequence(np.arange(5) * 2.1 + x, stop=10.0, id=f"{k}") for k, x in enumerate(shifts)
    ... ]
    >>> burst = Sequence(5 + np.arange(60) / 100, stop=10.0, id="burst")
    >>> found = anomalies(Poisson(), Dataset.from_sequences([*usual, burst]))
    >>> found.ids[found.order[0]], bool(found.q.min() < 0.1)
    ('burst', True)
    """
    data = all_sequences(data)
    check_marks(model.marks, data.marks)
    if not len(data):
        raise UserError("at least one sequence", "a data set without any", "Read or select some.")
    if draws < 1:
        raise UserError("at least one draw", f"draws={draws}", "Raise it.")
    tested, note = with_exact_times(model, data, seed)
    spacings = _spacings(model, tested, progress)
    rng = np.random.default_rng(seed)
    count = len(spacings)
    totals = np.array([own.sum() for own in spacings])
    p_spacings = np.ones(count)
    p_ks = np.ones(count)
    statistics = np.zeros(count)
    more = min(MOST_DRAWS, 100 * count)
    with bar("comparing sequences", count, show=progress) as step:
        for i, own in enumerate(spacings):
            if totals[i] > 0:
                statistics[i], p_spacings[i], p_ks[i] = _p_values(own, draws, rng)
                doubtful = min(p_spacings[i], p_ks[i]) <= DOUBTFUL
                if doubtful and more > draws:
                    _, p_spacings[i], p_ks[i] = _p_values(own, more, rng)
            step(i + 1)
    events = np.array([max(0, len(own) - 1) for own in spacings])
    p_count = _count_p_values(events, totals)
    least = np.minimum(p_count, np.minimum(p_spacings, p_ks))
    p = np.minimum(1.0, 3 * least)
    since_last = np.array([own[-1] for own in spacings])
    p_silence = np.exp(-since_last)
    return Anomalies(
        ids=tuple(tested.ids),
        events=events,
        expected=totals,
        spacings=statistics,
        p_count=p_count,
        p_spacings=p_spacings,
        p_ks=p_ks,
        p=p,
        q=adjusted(p),
        silence=_silences(tested),
        p_silence=p_silence,
        q_silence=adjusted(p_silence),
        unit=data.unit,
        note=note,
    )


def _silences(data: Dataset) -> Floats:
    """The time from the last event of each sequence, or its start, to the end of its window."""
    last = data.starts.copy()
    some = data.lengths > 0
    ends = data.offsets[1:][some]
    last[some] = data.times[ends - 1]
    return data.stops - last


def _count_p_values(counts: NDArray[np.int64], totals: Floats) -> Floats:
    """Two-sided p-values of Poisson counts with these means."""
    from scipy.special import pdtr, pdtrc

    at_most = pdtr(counts, totals)
    at_least = np.where(counts > 0, pdtrc(counts - 1.0, totals), 1.0)
    p = 2 * np.minimum(at_most, at_least)
    return np.asarray(np.minimum(1.0, p))


def _share(hits: NDArray[np.bool_]) -> float:
    """A p-value by Monte Carlo, which counts the observation itself."""
    count = int(hits.sum())
    return (1 + count) / (1 + len(hits))


def _spacings(model: PointProcess, data: Dataset, progress: bool) -> list[Floats]:
    """The integral of the rate over every gap of each sequence; what is not scored counts for
    nothing.
    """
    device = next(iter(model.parameters())).device
    found: list[Floats] = [np.zeros(0)] * len(data)
    done = 0
    with eval_mode(model), bar("rescaling", len(data), show=progress) as step:
        for rows in data.batches(BATCH):
            batch = data.batch(rows).to(device)
            integrals = gap_integrals(model, batch)[0]
            values = integrals.cpu().double().numpy()
            for k, s in enumerate(rows.tolist()):
                length = int(data.lengths[s])
                history = length - int(data.scored_lengths[s])
                own = np.maximum(values[k, : length + 1], 0.0)
                # Gaps of a history period have no integral; the first scored event ends one gap.
                first = own[: history + 1].sum()
                found[s] = np.concatenate([[first], own[history + 1 :]])
            done += len(rows)
            step(done)
    return found


def _p_values(own: Floats, draws: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """3S of the spacings of a sequence, and the p-values of 3S and KS from so many draws."""
    total = float(own.sum())
    squares = float(np.square(own).sum() / total)
    null_squares = _null_squares(total, draws, rng)
    above = _share(null_squares >= squares)
    below = _share(null_squares <= squares)
    p_spacings = min(1.0, 2 * min(above, below))
    events = len(own) - 1
    p_ks = 1.0
    if events > 0:
        distance = _distance(np.cumsum(own))
        null_distances = _null_distances(events, draws, rng)
        p_ks = _share(null_distances >= distance)
    return squares, p_spacings, p_ks


def _distance(places: Floats) -> float:
    """The Kolmogorov-Smirnov distance of rescaled events, at least one, whose window ends at the
    last place, from a constant rate.
    """
    shares = places[:-1] / places[-1]
    return float(_deviations(shares).max())


def _deviations(shares: Floats) -> Floats:
    """Of N shares in order along the last axis, how far the empirical distribution function is from
    the uniform one at each.
    """
    count = shares.shape[-1]
    ranks = np.arange(count)
    before = shares - ranks / count
    after = (ranks + 1) / count - shares
    return np.maximum(before, after)


def _null_squares(total: float, draws: int, rng: np.random.Generator) -> Floats:
    """3S of ``draws`` Poisson processes of rate 1 on [0, total]."""
    found: list[Floats] = []
    most = total + 10 * np.sqrt(total) + 10
    for some in _parts(draws, most):
        counts = rng.poisson(total, size=some)[:, None]
        width = int(counts.max()) + 1
        places = rng.random((some, width)) * total
        unused = np.arange(width) >= counts
        places[unused] = total
        places.sort(axis=1)
        spacings = np.diff(places, axis=1, prepend=0.0)
        squares = np.square(spacings).sum(1)
        found.append(squares / total)
    return np.concatenate(found)


def _null_distances(count: int, draws: int, rng: np.random.Generator) -> Floats:
    """KS of ``draws`` sets of ``count`` events that are uniform in the window."""
    found: list[Floats] = []
    for some in _parts(draws, count):
        shares = np.sort(rng.random((some, count)), axis=1)
        found.append(_deviations(shares).max(1))
    return np.concatenate(found)


def _parts(draws: int, size: float) -> Iterator[int]:
    """Numbers of draws of this size that are made together."""
    together = max(1, int(NUMBERS / size))
    for first in range(0, draws, together):
        yield min(together, draws - first)
