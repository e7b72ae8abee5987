"""Held-out data with enough power to tell explanations apart: folds, units, and paired intervals.

Many sequences are dealt into FOLDS parts at random; a few long logs are cut into FOLDS parts of
equal length in time. Each part is scored by models that were fitted to the others, so that all of
the data are held out once. A part of a log keeps the events before it as its history period, and so
does what comes after it in the training data. Data with a split column of their own have one fold.

Scores are added up over units that can be taken as independent: sequences, or blocks of time of a
log, which are whole local days where the log has dates and is long enough: the levels of days often
differ by more than chance, and parts of one day are then not independent. The interval of a paired
difference is from a bootstrap over units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Context, Dataset, MarkSpace, Sequence
from fourpoint.events.context import Steps
from fourpoint.inference.likelihood import gap_log_likelihoods
from fourpoint.models.base import PointProcess

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FOLDS = 5
FEW_SEQUENCES = 30  # below this number sequences are cut by time
UNITS = 100  # blocks of time of all folds together
REMEMBERED = 4096  # events of a history period
TOLERANCE = 1e-5  # nats per event, of integrals
AT_ONCE = 128  # sequences that are scored together
LEAST_DAYS = 20  # local days of every log from which on blocks of time are whole days
MOST_RATIO = 3.0  # the logarithm of the largest ratio of two rates that counts in full


@dataclass(frozen=True)
class Scores:
    """Of U units: the log-likelihood and the integral of the rate; of E scored events: the log rate
    and the unit.
    """

    total: Floats  # (U,)
    integral: Floats  # (U,)
    logs: Floats  # (E,)
    unit: Integers  # (E,)

    def first_order(self, simple: Scores) -> Floats:
        r"""By unit, the derivative of the log-likelihood as one moves from a ``simple`` model's
        rate towards this one's,

            d/dx log L((1 - x) lambda_0 + x lambda) at x = 0
                = sum_i (lambda / lambda_0 - 1) - int (lambda - lambda_0).

        Its mean is 0 if the simple model is true. If the other one is, its mean is about twice
        their difference in log-likelihood, with about the same standard deviation: it sees weak
        effects that the difference itself does not.
        """
        log_ratio = self.logs - simple.logs
        excess = np.expm1(np.minimum(log_ratio, MOST_RATIO))
        gained = np.bincount(self.unit, excess, len(self.total))
        expected = self.integral - simple.integral
        return np.asarray(gained - expected)


@dataclass(frozen=True)
class Days:
    """Of D days: the events that a model without memory expects, those observed, and the unit."""

    expected: Floats  # (D,)
    observed: Integers  # (D,)
    unit: Integers  # (D,)

    def gains(self, shape: float) -> Floats:
        r"""The logarithm of the likelihood ratio of every day, for a gamma factor of its rate with
        mean 1 and this shape, of which the earlier events of the day tell:

            log Gamma(a + N) - log Gamma(a) + a log a - (a + N) log(a + Lambda) + Lambda.
        """
        from scipy.special import gammaln

        a = shape
        N = self.observed
        mass = self.expected
        gamma = gammaln(a + N) - gammaln(a)
        gamma = gamma - N * np.log(a)
        damping = (a + N) * np.log1p(mass / a)
        return np.asarray(gamma - damping + mass)


def shape_of_days(parts: list[Days]) -> float:
    """The shape of the gamma factor under which the days of ``parts`` are the most likely."""
    from scipy.optimize import minimize_scalar

    def loss(log_shape: float) -> float:
        shape = float(np.exp(log_shape))
        gains = [float(part.gains(shape).sum()) for part in parts]
        return -sum(gains)

    best = minimize_scalar(loss, bounds=(-3.0, 12.0), method="bounded")
    return float(np.exp(best.x))


@dataclass(frozen=True)
class Fold:
    """A part to score, and the data to fit to. ``edges`` are the blocks of time of each sequence of
    the part, or None where its sequences are the units; ``events`` are those scored in each unit.
    ``days`` are the ends of the local days of each sequence of the part, of which the blocks
    consist, or None where they do not.
    """

    train: Dataset
    test: Dataset
    edges: Floats | None  # (S, U + 1)
    events: Floats
    days: tuple[Floats, ...] | None = None

    def scores(self, model: PointProcess) -> Scores:
        """The scores of a model, by unit."""
        model.eval()
        sequences = len(self.test)
        count = self._units_per_sequence
        total = np.zeros((sequences, count))
        integral = np.zeros((sequences, count))
        logs: list[Floats] = [np.zeros(0)] * sequences
        units: list[Integers] = [np.zeros(0, dtype=np.int64)] * sequences
        for rows in self.test.batches(AT_ONCE):
            batch = self.test.batch(rows)
            found = gap_log_likelihoods(model, batch, tolerance=TOLERANCE)
            log_rates = found[0].numpy()
            integrals = found[1].numpy()
            gains = log_rates - integrals
            ends = batch.edges[:, 1:].numpy()
            scored = np.pad(batch.scored.numpy(), ((0, 0), (0, 1)))
            for i, row in enumerate(rows.tolist()):
                unit = self._unit_of(row, ends[i])
                np.add.at(total[row], unit, gains[i])
                np.add.at(integral[row], unit, integrals[i])
                own = scored[i]
                logs[row] = log_rates[i][own]
                units[row] = row * count + unit[own]
        return Scores(
            total=total.ravel(),
            integral=integral.ravel(),
            logs=np.concatenate(logs),
            unit=np.concatenate(units),
        )

    def by_day(self, model: PointProcess) -> Days | None:
        """Expected and observed events of the days of the part under a model whose counts have a
        law; None where the part does not consist of days.
        """
        if self.days is None or self.edges is None:
            return None
        expected = []
        observed = []
        units = []
        for row, sequence in enumerate(self.test):
            ends = self.days[row]
            law = model.count_law(sequence.batch(), ends[None])
            if law is None:
                return None
            expected.append(law.mean[0].sum(1))
            times = sequence.times
            day = block_of(ends, times[times >= ends[0]])
            observed.append(np.bincount(day, minlength=len(ends) - 1))
            middle = (ends[1:] + ends[:-1]) / 2
            unit = block_of(self.edges[row], middle)
            units.append(row * self._units_per_sequence + unit)
        return Days(
            expected=np.concatenate(expected),
            observed=np.concatenate(observed),
            unit=np.concatenate(units),
        )

    def beginning(self, most: int, sequences: int | None = None) -> tuple[Fold, NDArray[np.bool_]]:
        """The fold with the first units of its part, about ``most`` events in all, and which units
        they are. Where units are ``sequences``, there are at most so many of them.
        """
        total = float(self.events.sum())
        fewer = self.edges is None and sequences is not None and len(self.events) > sequences
        if total <= most and not fewer:
            return self, np.ones(len(self.events), dtype=bool)
        if self.edges is None:
            kept = np.cumsum(self.events) <= most
            kept[0] = True
            if sequences is not None:
                kept[sequences:] = False
            chosen = self.test.select(np.flatnonzero(kept))
            return replace(self, test=chosen, events=self.events[kept]), kept
        count = self._units_per_sequence
        table = self.events.reshape(-1, count)
        up_to = np.cumsum(table.sum(0))
        last = max(1, int(np.count_nonzero(up_to <= most)))
        low = self.edges[:, 0]
        high = self.edges[:, last]
        part = replace(
            self,
            test=between(self.test, low, high),
            edges=self.edges[:, : last + 1],
            events=table[:, :last].ravel(),
            days=None,
        )
        within = np.arange(count) < last
        kept = np.broadcast_to(within, table.shape)
        return part, kept.ravel()

    @property
    def _units_per_sequence(self) -> int:
        if self.edges is None:
            return 1
        return self.edges.shape[1] - 1

    def _unit_of(self, row: int, times: Floats) -> Integers:
        if self.edges is None:
            return np.zeros(len(times), dtype=np.int64)
        return block_of(self.edges[row], times)


def block_of(edges: Floats, times: Floats) -> Integers:
    """The block that each time lies in; times outside belong to the nearest."""
    last = len(edges) - 2
    found = np.searchsorted(edges, times, side="right") - 1
    return np.clip(found, 0, last)


def folds_of(data: Dataset, seed: int) -> list[Fold]:
    """The folds of ``data``, the last one first: of a log it is its end."""
    if data.splits is not None:
        held_out = data.splits == "test"
        if held_out.any() and not held_out.all():
            train = data.select(np.flatnonzero(~held_out))
            return [_by_sequence(train, data.part("test"))]
    if len(data) >= FEW_SEQUENCES:
        return list(_dealt(data, seed))
    return list(_cut(data))


def _dealt(data: Dataset, seed: int) -> Iterator[Fold]:
    """Folds of whole sequences."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(data))
    part_of = np.empty(len(data), dtype=np.int64)
    for k, part in enumerate(np.array_split(order, FOLDS)):
        part_of[part] = k
    for k in reversed(range(FOLDS)):
        held_out = part_of == k
        train = data.select(np.flatnonzero(~held_out))
        test = data.select(np.flatnonzero(held_out))
        yield _by_sequence(train, test)


def _by_sequence(train: Dataset, test: Dataset) -> Fold:
    events = test.scored_lengths.astype(np.float64)
    return Fold(train, test, edges=None, events=events)


def _cut(data: Dataset) -> Iterator[Fold]:
    """Folds of parts of time."""
    blocks = max(2, round(UNITS / FOLDS / len(data)))
    begin = scored_starts(data)
    days = days_of(data, begin)
    width = (data.stops - begin) / FOLDS
    for k in reversed(range(FOLDS)):
        if days is None:
            own = None
            low = begin + k * width
            high = begin + (k + 1) * width
            if k == FOLDS - 1:
                high = data.stops
            shares = np.linspace(0.0, 1.0, blocks + 1)
            lengths = (high - low)[:, None]
            edges = low[:, None] + lengths * shares
        else:
            own = tuple(_share(ends, FOLDS, k) for ends in days)
            edges = _blocks_of_days(own, blocks)
            low = edges[:, 0]
            high = edges[:, -1]
        test = between(data, low, high)
        train = []
        if k > 0:
            train.append(between(data, begin, low))
        if k < FOLDS - 1:
            train.append(between(data, high, data.stops))
        yield Fold(
            train=_joined(train, data),
            test=test,
            edges=edges,
            events=_events_of_blocks(test, edges),
            days=own,
        )


def scored_starts(data: Dataset) -> Floats:
    """From when on every sequence is scored."""
    if data.context is None or data.context.scored_from is None:
        return data.starts
    return np.maximum(data.starts, data.context.scored_from)


def _events_of_blocks(data: Dataset, edges: Floats) -> Floats:
    """How many events each block of each sequence has, one sequence after the other."""
    counts = []
    for row, sequence in enumerate(data):
        own = edges[row]
        times = sequence.times
        block = block_of(own, times[times >= own[0]])
        counts.append(np.bincount(block, minlength=len(own) - 1))
    return np.concatenate(counts).astype(np.float64)


def _blocks_of_days(days: tuple[Floats, ...], most: int) -> Floats:
    """The edges of blocks of whole days, at most ``most`` for each sequence: (S, U + 1)."""
    fewest = min(len(ends) - 1 for ends in days)
    count = min(most, fewest)
    found = []
    for ends in days:
        cuts = _cuts(len(ends) - 1, count)
        found.append(ends[cuts])
    return np.stack(found)


def days_of(data: Dataset, begin: Floats) -> tuple[Floats, ...] | None:
    """The ends of the local days of every sequence from ``begin`` on; None without dates, or where
    a sequence has fewer than LEAST_DAYS.
    """
    found = []
    for row, stop in enumerate(data.stops.tolist()):
        dates = data.dates(row)
        if dates is None:
            return None
        ends = dates.clock_edges(float(begin[row]), stop, "1d")
        if ends is None or len(ends) <= LEAST_DAYS:
            return None
        found.append(ends)
    return tuple(found)


def _share(ends: Floats, parts: int, k: int) -> Floats:
    """The ends of the days in part ``k`` of so many."""
    cuts = _cuts(len(ends) - 1, parts)
    first = cuts[k]
    last = cuts[k + 1]
    return ends[first : last + 1]


def _cuts(count: int, parts: int) -> Integers:
    """Where ``count`` things are cut into parts of about equal size."""
    exact = np.linspace(0, count, parts + 1)
    return np.round(exact).astype(np.int64)


def between(data: Dataset, low: Floats, high: Floats) -> Dataset:
    """Every sequence from ``low`` to ``high``, with the events before ``low`` as history."""
    found = []
    for row, sequence in enumerate(data):
        piece = _piece(sequence, float(low[row]), float(high[row]))
        found.append(piece)
    return _joined_sequences(found, data)


def _piece(sequence: Sequence, begin: float, end: float) -> Sequence:
    times = sequence.times
    start = sequence.start
    stop = sequence.stop
    last = len(times)
    whole = end >= stop
    if not whole:
        stop = end
        last = int(np.searchsorted(times, end))
    first = int(np.searchsorted(times, begin)) - REMEMBERED
    if first > 0:
        start = float(times[first - 1])
    part = sequence.piece(
        slice(max(0, first), last),
        start,
        stop,
        inferred=sequence.inferred and whole,
    )
    return part.scored_after(begin)


def _joined(parts: list[Dataset], like: Dataset) -> Dataset:
    sequences: list[Sequence] = []
    for part in parts:
        sequences.extend(part)
    return _joined_sequences(sequences, like)


def _joined_sequences(sequences: list[Sequence], like: Dataset) -> Dataset:
    found = Dataset.from_sequences(
        sequences,
        unit=like.unit,
        name=like.name,
    )
    return replace(
        found,
        log=like.log,
        feature_names=like.feature_names,
    )


# ---------------------------------------------------------------------- paired differences


def z_score(values: Floats) -> float:
    """The sum of independent values in units of its standard error, 0 if all are equal.

    >>> round(z_score(np.array([1.0, 3.0, 2.0, 2.0])), 2)
    4.9
    """
    if len(values) < 2:
        return 0.0
    deviation = np.std(values, ddof=1)
    error = float(deviation * np.sqrt(len(values)))
    if error > 0:
        return float(values.sum()) / error
    return 0.0


def local_variation(data: Dataset) -> tuple[float, float]:
    r"""How unevenly events are spaced, and the standard error that it has for independent events:

        3 * mean of ((a - b) / (a + b))^2

    over pairs of neighbouring gaps a and b that have no gap in common. It is 1 for a Poisson
    process whose rate hardly changes from one gap to the next, whatever it does in the long run,
    less for regular events and more for clustered ones. Source: Shinomoto, Shima and Tanji,
    "Differences in spiking patterns among cortical neurons" (2003).

    >>> regular = Dataset.from_sequences([Sequence([1.0, 2.0, 3.0, 4.0, 5.0])])
    >>> local_variation(regular)[0]
    0.0
    """
    gaps = np.diff(data.times)
    offset = np.repeat(data.offsets[:-1], data.lengths)
    place = np.arange(data.events) - offset
    last = np.repeat(data.lengths, data.lengths) - 1
    every_second = place % 2 == 0
    complete = place + 2 <= last  # both gaps end within the sequence
    first = np.flatnonzero(every_second & complete)
    a = gaps[first]
    b = gaps[first + 1]
    some = a + b > 0
    pairs = some.sum()
    if pairs == 0:
        return 1.0, np.inf
    a = a[some]
    b = b[some]
    share = (a - b) / (a + b)  # uniform on (-1, 1) if a and b are alike
    variation = float(3 * np.mean(share**2))
    error = float(np.sqrt(0.8 / pairs))
    return variation, error


def with_levels(data: Dataset, levels: list[tuple[tuple[Floats, ...] | None, Floats]]) -> Dataset:
    """The data with an exposure of its days: ``levels`` are the ends of days of every sequence in
    parts of the data, in any order, and the level of each day of a part, row after row.
    """
    context = data.context
    if context is None:
        context = Context()
    parts = []
    for row in range(len(data)):
        days, level = _levels_of_sequence(levels, row)
        times = days
        exposure = np.ones(len(days))
        if context.exposure is not None:
            own = context.exposure.row(row)
            times = np.union1d(days, context.exposure.times[own])
            exposure = context.exposure.at(row, times)[:, 0]
        day = np.searchsorted(days, times, side="right") - 1
        joint = exposure * level[np.maximum(day, 0)]
        offsets = np.array([0, len(times)])
        parts.append(Steps(("exposure",), times, joint[:, None], offsets))
    context = replace(context, exposure=Steps.join(parts))
    return replace(data, context=context)


def _levels_of_sequence(
    levels: list[tuple[tuple[Floats, ...] | None, Floats]], row: int
) -> tuple[Floats, Floats]:
    """The beginnings of the days of one sequence in the order of time, and their levels."""
    times = []
    values = []
    for ends, level in levels:
        assert ends is not None
        first = sum(len(own) - 1 for own in ends[:row])
        begins = ends[row][:-1]
        times.append(begins)
        values.append(level[first : first + len(begins)])
    days = np.concatenate(times)
    order = np.argsort(days)
    return days[order], np.concatenate(values)[order]


def one_type(data: Dataset) -> Dataset:
    """The same events, all of one type."""
    nothing = np.zeros(data.events, dtype=np.int64)
    return replace(data, mark_ids=nothing, marks=MarkSpace())
