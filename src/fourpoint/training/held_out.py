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
    unit: NDArray[np.int64]  # (E,)

    def first_order(self, simple: Scores) -> Floats:
        r"""By unit, the derivative of the log-likelihood as one moves from a ``simple`` model's
        rate towards this one's,

            d/dx log L((1 - x) lambda_0 + x lambda) at x = 0
                = sum_i (lambda / lambda_0 - 1) - int (lambda - lambda_0).

        Its mean is 0 if the simple model is true. If the other one is, its mean is about twice
        their difference in log-likelihood, with about the same standard deviation: it sees weak
        effects that the difference itself does not.
        """
        ratio = np.expm1(np.minimum(self.logs - simple.logs, MOST_RATIO))
        gained = np.bincount(self.unit, ratio, len(self.total))
        return np.asarray(gained - (self.integral - simple.integral))


@dataclass(frozen=True)
class Days:
    """Of D days: the events that a model without memory expects, those observed, and the unit."""

    expected: Floats  # (D,)
    observed: NDArray[np.int64]  # (D,)
    unit: NDArray[np.int64]  # (D,)

    def gains(self, shape: float) -> Floats:
        r"""The logarithm of the likelihood ratio of every day, for a gamma factor of its rate with
        mean 1 and this shape, of which the earlier events of the day tell:

            log Gamma(a + N) - log Gamma(a) + a log a - (a + N) log(a + Lambda) + Lambda.
        """
        from scipy.special import gammaln

        a, N, mass = shape, self.observed, self.expected
        gamma = gammaln(a + N) - gammaln(a) - N * np.log(a)
        return np.asarray(gamma - (a + N) * np.log1p(mass / a) + mass)


def shape_of_days(parts: list[Days]) -> float:
    """The shape of the gamma factor under which the days of ``parts`` are the most likely."""
    from scipy.optimize import minimize_scalar

    def loss(log_shape: float) -> float:
        return -sum(float(part.gains(float(np.exp(log_shape))).sum()) for part in parts)

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 12.0), method="bounded").x))


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
        count = self._units_per_sequence
        total = np.zeros((len(self.test), count))
        integral = np.zeros((len(self.test), count))
        logs: list[Floats] = [np.zeros(0)] * len(self.test)
        units: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)] * len(self.test)
        for rows in self.test.batches(AT_ONCE):
            batch = self.test.batch(rows)
            found = gap_log_likelihoods(model, batch, tolerance=TOLERANCE)
            own_logs, own_integrals = (part.numpy() for part in found)
            ends = batch.edges[:, 1:].numpy()
            scored = np.pad(batch.scored.numpy(), ((0, 0), (0, 1)))
            for i, row in enumerate(rows.tolist()):
                unit = self._unit_of(row, ends[i])
                np.add.at(total[row], unit, own_logs[i] - own_integrals[i])
                np.add.at(integral[row], unit, own_integrals[i])
                logs[row] = own_logs[i][scored[i]]
                units[row] = row * count + unit[scored[i]]
        return Scores(total.ravel(), integral.ravel(), np.concatenate(logs), np.concatenate(units))

    def by_day(self, model: PointProcess) -> Days | None:
        """Expected and observed events of the days of the part under a model whose counts have a
        law; None where the part does not consist of days.
        """
        if self.days is None or self.edges is None:
            return None
        expected, observed, units = [], [], []
        for row, (sequence, edges) in enumerate(zip(self.test, self.days, strict=True)):
            law = model.count_law(sequence.batch(), edges[None])
            if law is None:
                return None
            expected.append(law.mean[0].sum(1))
            times = sequence.times[sequence.times >= edges[0]]
            observed.append(np.bincount(block_of(edges, times), minlength=len(edges) - 1))
            middle = (edges[1:] + edges[:-1]) / 2
            units.append(row * self._units_per_sequence + block_of(self.edges[row], middle))
        parts = (np.concatenate(part) for part in (expected, observed, units))
        return Days(*parts)

    def beginning(self, most: int) -> tuple[Fold, NDArray[np.bool_]]:
        """The fold with the first units of its part, about ``most`` events in all, and which units
        they are.
        """
        total = float(self.events.sum())
        if total <= most:
            return self, np.ones(len(self.events), dtype=bool)
        if self.edges is None:
            kept = np.cumsum(self.events) <= most
            kept[0] = True
            chosen = np.flatnonzero(kept)
            return replace(self, test=self.test.select(chosen), events=self.events[kept]), kept
        count = self._units_per_sequence
        table = self.events.reshape(-1, count)
        last = max(1, int(np.count_nonzero(np.cumsum(table.sum(0)) <= most)))
        low = self.edges[:, 0]
        high = self.edges[:, last]
        part = replace(
            self,
            test=between(self.test, low, high),
            edges=self.edges[:, : last + 1],
            events=table[:, :last].ravel(),
            days=None,
        )
        kept = np.broadcast_to(np.arange(count) < last, table.shape).ravel()
        return part, kept

    @property
    def _units_per_sequence(self) -> int:
        return 1 if self.edges is None else self.edges.shape[1] - 1

    def _unit_of(self, row: int, times: Floats) -> NDArray[np.int64]:
        if self.edges is None:
            return np.zeros(len(times), dtype=np.int64)
        return block_of(self.edges[row], times)


def block_of(edges: Floats, times: Floats) -> NDArray[np.int64]:
    """The block that each time lies in; times outside belong to the nearest."""
    found = np.searchsorted(edges, times, side="right") - 1
    return np.clip(found, 0, len(edges) - 2)


def folds_of(data: Dataset, seed: int) -> list[Fold]:
    """The folds of ``data``, the last one first: of a log it is its end."""
    if data.splits is not None and (data.splits == "test").any():
        kept = data.select(np.flatnonzero(data.splits != "test"))
        if len(kept):
            return [_by_sequence(kept, data.part("test"))]
    if len(data) >= FEW_SEQUENCES:
        return list(_dealt(data, seed))
    return list(_cut(data))


def _dealt(data: Dataset, seed: int) -> Iterator[Fold]:
    """Folds of whole sequences."""
    order = np.random.default_rng(seed).permutation(len(data))
    parts = [np.sort(part) for part in np.array_split(order, FOLDS)]
    for k in reversed(range(FOLDS)):
        others = np.sort(np.concatenate(parts[:k] + parts[k + 1 :]))
        yield _by_sequence(data.select(others), data.select(parts[k]))


def _by_sequence(train: Dataset, test: Dataset) -> Fold:
    return Fold(train, test, None, test.scored_lengths.astype(np.float64))


def _cut(data: Dataset) -> Iterator[Fold]:
    """Folds of parts of time."""
    blocks = max(2, round(UNITS / FOLDS / len(data)))
    begin = data.starts
    if data.context is not None and data.context.scored_from is not None:
        begin = np.maximum(begin, data.context.scored_from)
    days = days_of(data, begin)
    for k in reversed(range(FOLDS)):
        own = None
        if days is None:
            width = (data.stops - begin) / FOLDS
            low = begin + k * width
            high = data.stops if k == FOLDS - 1 else begin + (k + 1) * width
            shares = np.linspace(0.0, 1.0, blocks + 1)
            edges = low[:, None] + (high - low)[:, None] * shares
        else:
            own = tuple(_share(ends, FOLDS, k) for ends in days)
            low, high = (np.array([ends[side] for ends in own]) for side in (0, -1))
            count = min(blocks, *(len(ends) - 1 for ends in own))
            edges = np.stack([ends[_cuts(len(ends) - 1, count)] for ends in own])
        test = between(data, low, high)
        parts = [between(data, begin, low)] if k > 0 else []
        if k < FOLDS - 1:
            parts.append(between(data, high, data.stops))
        events = np.zeros((len(data), edges.shape[1] - 1))
        for row, sequence in enumerate(test):
            times = sequence.times[sequence.times >= low[row]]
            np.add.at(events[row], block_of(edges[row], times), 1.0)
        yield Fold(_joined(parts, data), test, edges, events.ravel(), own)


def days_of(data: Dataset, begin: Floats) -> tuple[Floats, ...] | None:
    """The ends of the local days of every sequence from ``begin`` on; None without dates, or where
    a sequence has fewer than LEAST_DAYS.
    """
    found = []
    for row in range(len(data)):
        dates = data.dates(row)
        if dates is None:
            return None
        ends = dates.clock_edges(float(begin[row]), float(data.stops[row]), "1d")
        if ends is None or len(ends) <= LEAST_DAYS:
            return None
        found.append(ends)
    return tuple(found)


def _share(ends: Floats, parts: int, k: int) -> Floats:
    """The ends of the days in part ``k`` of so many."""
    cuts = _cuts(len(ends) - 1, parts)
    return ends[cuts[k] : cuts[k + 1] + 1]


def _cuts(count: int, parts: int) -> NDArray[np.int64]:
    """Where ``count`` things are cut into parts of about equal size."""
    return np.round(np.linspace(0, count, parts + 1)).astype(np.int64)


def between(data: Dataset, low: Floats, high: Floats) -> Dataset:
    """Every sequence from ``low`` to ``high``, with the events before ``low`` as history."""
    found = []
    for sequence, begin, end in zip(data, low.tolist(), high.tolist(), strict=True):
        found.append(_piece(sequence, begin, end))
    return _joined_sequences(found, data)


def _piece(sequence: Sequence, begin: float, end: float) -> Sequence:
    times = sequence.times
    whole = end >= sequence.stop
    last = len(times) if whole else int(np.searchsorted(times, end))
    first = max(0, int(np.searchsorted(times, begin)) - REMEMBERED)
    start = sequence.start if first == 0 else float(times[first - 1])
    inferred = sequence.inferred and whole
    stop = sequence.stop if whole else end
    return sequence.piece(slice(first, last), start, stop, inferred=inferred).scored_after(begin)


def _joined(parts: list[Dataset], like: Dataset) -> Dataset:
    return _joined_sequences([one for part in parts for one in part], like)


def _joined_sequences(sequences: list[Sequence], like: Dataset) -> Dataset:
    found = Dataset.from_sequences(sequences, unit=like.unit, name=like.name)
    return replace(found, log=like.log, feature_names=like.feature_names)


# ---------------------------------------------------------------------- paired differences


def z_score(values: Floats) -> float:
    """The sum of independent values in units of its standard error, 0 if all are equal.

    >>> round(z_score(np.array([1.0, 3.0, 2.0, 2.0])), 2)
    4.9
    """
    if len(values) < 2:
        return 0.0
    error = float(np.std(values, ddof=1) * np.sqrt(len(values)))
    return float(values.sum()) / error if error > 0 else 0.0


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
    place = np.arange(data.events) - np.repeat(data.offsets[:-1], data.lengths)
    last = np.repeat(data.lengths, data.lengths) - 1
    first = np.flatnonzero((place % 2 == 0) & (place + 2 <= last))
    a, b = gaps[first], gaps[first + 1]
    some = a + b > 0
    if not some.any():
        return 1.0, np.inf
    share = (a[some] - b[some]) / (a[some] + b[some])  # uniform on (-1, 1) if a and b are alike
    return float(3 * np.mean(share**2)), float(np.sqrt(0.8 / some.sum()))


def with_levels(data: Dataset, levels: list[tuple[tuple[Floats, ...] | None, Floats]]) -> Dataset:
    """The data with an exposure of its days: ``levels`` are the ends of days of every sequence in
    parts of the data, in any order, and the level of each day of a part, row after row.
    """
    known = data.context
    parts = []
    for row in range(len(data)):
        times, values = [], []
        for ends, level in levels:
            assert ends is not None
            first = sum(len(own) - 1 for own in ends[:row])
            times.append(ends[row][:-1])
            values.append(level[first : first + len(ends[row]) - 1])
        begins, value = np.concatenate(times), np.concatenate(values)
        order = np.argsort(begins)
        begins, value = begins[order], value[order]
        every = begins
        exposure = np.ones(len(begins))
        if known is not None and known.exposure is not None:
            own = known.exposure.row(row)
            every = np.union1d(begins, known.exposure.times[own])
            exposure = known.exposure.at(row, every)[:, 0]
        place = np.maximum(np.searchsorted(begins, every, side="right") - 1, 0)
        joint = (exposure * value[place])[:, None]
        parts.append(Steps(("exposure",), every, joint, np.array([0, len(every)])))
    context = Context() if known is None else known
    return replace(data, context=replace(context, exposure=Steps.join(parts)))


def one_type(data: Dataset) -> Dataset:
    """The same events, all of one type."""
    nothing = np.zeros(data.events, dtype=np.int64)
    return replace(data, mark_ids=nothing, marks=MarkSpace())
