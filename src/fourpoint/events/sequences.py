"""Events, and the only door through which they enter.

A :class:`Sequence` is what one observer wrote down: times, marks and the observation window
``[start, stop)`` in which an event would have been seen. The window belongs to the data, because an
empty stretch before the first event and after the last is evidence. A :class:`Dataset` is many
sequences stored flat, with offsets, and a :class:`Batch` is a few of them padded into tensors.
Everything that can be wrong with event data is refused here
(:mod:`fourpoint.events.validation`), so that nothing downstream has to look again: models,
likelihoods and samplers trust what they get.

Two events may carry one time. They stay in file order, event i sees events 1..i-1 by position, and
the gap is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Ordered
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fourpoint.errors import EventDataError, UserError
from fourpoint.events.batching import (
    Batch,
    flat_places,
    group_by_length,
    known_at,
    known_rows,
    offsets_of,
    pad,
    shares,
)
from fourpoint.events.context import Context, Steps
from fourpoint.events.dates import SECONDS, Dates, Moment, shown, time_at
from fourpoint.events.marks import Box, MarkSpace
from fourpoint.events.ties import Ties, apply_ties
from fourpoint.events.validation import SPLITS, as_marks, as_places, as_times, check_events, inner
from fourpoint.log_format import LogFormat
from fourpoint.sanitising import console_text

__all__ = [
    "SPLITS",
    "Batch",
    "Box",
    "Dataset",
    "EventDataError",
    "MarkSpace",
    "Sequence",
    "Ties",
    "UserError",
    "all_sequences",
    "inferred_window",
    "known_at",
    "only_sequence",
]


@dataclass(frozen=True, eq=False)
class Sequence:
    """One observed sequence of events in the window ``[start, stop)``, in the user's time unit.

    ``times`` are non-decreasing float64, ``marks`` integers below ``space.count``. ``inferred``
    says that the window was taken from the events; an event may then be at ``stop``. ``places`` (N,
    k) are the locations of the events, in the box of ``space``, by default the box around them;
    None if events have no locations. ``features`` (N, F) are numbers that describe every event (a
    magnitude, an amount). ``context`` holds the covariates, exposure and origin of the sequence
    (:mod:`fourpoint.events.context`), with one row. ``dates`` converts its times to dates, if the
    sequence belongs to a data set that was read from timestamps.

    >>> s = Sequence([0.5, 2.0], start=0.0, stop=4.0)
    >>> len(s), s.duration
    (2, 4.0)
    >>> Sequence([2.0, 0.5], start=0.0, stop=4.0)
    Traceback (most recent call last):
      ...
    fourpoint.events.EventDataError: expected non-decreasing times; received 0.5 after 2.0 at ...
    """

    times: NDArray[np.float64]
    marks: NDArray[np.int64]
    start: float
    stop: float
    space: MarkSpace
    id: str
    inferred: bool
    places: NDArray[np.float64] | None
    features: NDArray[np.float64] | None
    context: Context | None
    dates: Dates | None

    def __init__(
        self,
        times: ArrayLike,
        marks: ArrayLike | None = None,
        *,
        start: float | None = None,
        stop: float | None = None,
        space: MarkSpace | int | None = None,
        id: str = "0",
        places: ArrayLike | None = None,
        features: ArrayLike | None = None,
        context: Context | None = None,
    ) -> None:
        t = as_times(times)
        if marks is None:
            m = np.zeros(len(t), dtype=np.int64)
            guess = MarkSpace()
        else:
            m = as_marks(marks)
            guess = MarkSpace.categorical(int(m.max(initial=0)) + 1)
        known_space = guess if space is None else MarkSpace.of(space)
        where = None if places is None else as_places(places, len(t))
        numbers = None if features is None else as_places(features, len(t))
        if where is not None and known_space.box is None:
            axes = [f"x{i + 1}" for i in range(where.shape[1])]
            finite = where[np.isfinite(where).all(1)]
            known_space = replace(known_space, box=Box.around(finite, axes))
        low, high = inferred_window(t)
        known = Dataset(
            times=t,
            mark_ids=m,
            offsets=np.array([0, len(t)]),
            starts=np.array([low if start is None else start], dtype=np.float64),
            stops=np.array([high if stop is None else stop], dtype=np.float64),
            marks=known_space,
            ids=(id,),
            inferred=stop is None,
            places=where,
            features=numbers,
            context=context,
        )[0]
        for name in Sequence.__dataclass_fields__:
            object.__setattr__(self, name, getattr(known, name))

    def __len__(self) -> int:
        return len(self.times)

    @property
    def duration(self) -> float:
        """Length of the window, in the user's time unit."""
        return self.stop - self.start

    def before(self, time: float) -> Sequence:
        """The events strictly before ``time``, observed on ``[start, time)``."""
        n = self._first_at(time)
        return self.piece(slice(n), self.start, float(time), inferred=False)

    def after(self, time: float) -> Sequence:
        """The events at or after ``time``, observed on ``[time, stop)``; those before are not
        known.
        """
        n = self._first_at(time)
        return self.piece(slice(n, None), float(time), self.stop, inferred=self.inferred)

    def _first_at(self, time: float) -> int:
        """The number of the first event at or after ``time``."""
        return int(np.searchsorted(self.times, time, side="left"))

    def scored_after(self, time: float) -> Sequence:
        """The same sequence, scored from ``time`` on: what came before is history, which conditions
        the rates but is not scored.
        """
        known = self.context or Context()
        begin = max(float(time), self.start)
        if known.scored_from is not None:
            begin = max(begin, float(known.scored_from[0]))
        context = replace(known, scored_from=np.array([begin]))
        return self.with_values(context=context)

    def with_values(self, **changed: object) -> Sequence:
        """The same sequence with other values of some of its fields, which are not checked."""
        values = {name: getattr(self, name) for name in Sequence.__dataclass_fields__}
        values |= changed
        return _trusted_sequence(**values)

    def until(self, at: Moment | None = None) -> Sequence:
        """The events that are known at time ``at``: those up to and including it, observed on
        ``[start, at]``.

        ``at`` is the end of the window by default, and may be a date where the sequence has dates.
        This is the past that forecasts, explanations and maps look at. Raises :class:`UserError`
        where ``at`` lies outside the window.

        >>> s = Sequence([0.5, 2.0, 2.0, 3.0], start=0.0, stop=4.0)
        >>> len(s.until(2.0)), len(s.before(2.0)), len(s.until())
        (3, 1, 4)
        """
        now = self.stop
        if at is not None:
            now = time_at(self.dates, at)
        if not self.start <= now <= self.stop:
            edges = f"{shown(self.dates, self.start)}, {shown(self.dates, self.stop)}"
            raise UserError(
                f"a time inside the window [{edges}] of sequence {self.id}",
                f"at={shown(self.dates, now)}",
                "Choose a time at which the sequence was observed.",
            )
        known = known_at(self.times, now)
        n = int(np.count_nonzero(known))
        return self.piece(slice(n), self.start, now, inferred=True)

    def piece(
        self, kept: slice | NDArray[np.bool_], start: float, stop: float, *, inferred: bool
    ) -> Sequence:
        """The events ``kept``, observed on ``[start, stop)``."""
        return _trusted_sequence(
            times=self.times[kept],
            marks=self.marks[kept],
            start=start,
            stop=stop,
            space=self.space,
            id=self.id,
            inferred=inferred,
            places=known_rows(self.places, kept),
            features=known_rows(self.features, kept),
            context=self.context,
            dates=self.dates,
        )

    def batch(self) -> Batch:
        """This sequence alone, as a batch of one."""
        import torch

        times = torch.from_numpy(np.array(self.times))
        marks = torch.from_numpy(np.array(self.marks))
        valid = torch.ones_like(marks, dtype=torch.bool)
        places = None
        if self.places is not None:
            places = torch.from_numpy(np.array(self.places))[None]
        features = None
        if self.features is not None:
            features = torch.from_numpy(np.array(self.features))[None]
        context = None
        if self.context is not None:
            context = self.context.batch(np.arange(1))
        return Batch(
            times=times[None],
            marks=marks[None],
            valid=valid[None],
            start=torch.tensor([self.start], dtype=torch.float64),
            stop=torch.tensor([self.stop], dtype=torch.float64),
            places=places,
            features=features,
            context=context,
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """Many sequences, stored flat: sequence i owns events ``offsets[i]:offsets[i + 1]``.

    The constructor validates all arrays and raises :class:`EventDataError` with sequence, event and
    value. ``splits`` names the part of each sequence ("train", "dev" or "test") or is None;
    ``unit`` is a label for axes. ``log`` describes the columns from which the events were read and
    the meaning of their times, if known.

    >>> data = Dataset.from_sequences(
    ...     [Sequence([1.0, 2.0], start=0, stop=3), Sequence([], start=0, stop=3)]
    ... )
    >>> len(data), data.events, data[0].times.tolist()
    (2, 2, [1.0, 2.0])
    """

    times: NDArray[np.float64]
    mark_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    starts: NDArray[np.float64]
    stops: NDArray[np.float64]
    marks: MarkSpace = MarkSpace()
    ids: tuple[str, ...] = ()
    splits: NDArray[np.str_] | None = None
    inferred: bool = False
    unit: str = ""
    name: str = ""
    places: NDArray[np.float64] | None = None  # (events, k), where ``marks`` has a box of k axes
    log: LogFormat | None = None  # how the events were read
    features: NDArray[np.float64] | None = None  # (events, F), numbers known of every event
    feature_names: tuple[str, ...] = ()  # F of them
    context: Context | None = None  # what else is known of the sequences

    def __post_init__(self) -> None:
        if not self.ids:
            ids = tuple(str(i) for i in range(len(self)))
            object.__setattr__(self, "ids", ids)
        box = self.marks.box
        if self.places is None and box is not None and not len(self.times):
            nowhere = np.zeros((0, box.dimension))
            object.__setattr__(self, "places", nowhere)
        check_events(self)
        for array in (self.times, self.mark_ids, self.offsets, self.starts, self.stops):
            array.setflags(write=False)
        for extra in (self.places, self.features):
            if extra is not None:
                extra.setflags(write=False)

    @staticmethod
    def from_sequences(sequences: Ordered[Sequence], *, unit: str = "", name: str = "") -> Dataset:
        """Lay sequences end to end. They must share one mark space."""
        spaces = {s.space for s in sequences}
        if len(spaces) > 1:
            raise EventDataError(
                "sequences of one mark space",
                f"{len(spaces)} spaces",
                "Pass space= to each Sequence.",
            )
        no_marks = np.zeros(0, dtype=np.int64)
        places = None
        if any(s.space.box for s in sequences):
            places = np.concatenate([s.places for s in sequences if s.places is not None])
        features = None
        if any(s.features is not None for s in sequences):
            features = np.concatenate([s.features for s in sequences if s.features is not None])
        return Dataset(
            times=np.concatenate([np.zeros(0), *(s.times for s in sequences)]),
            mark_ids=np.concatenate([no_marks, *(s.marks for s in sequences)]),
            offsets=offsets_of([len(s) for s in sequences]),
            starts=np.array([s.start for s in sequences], dtype=np.float64),
            stops=np.array([s.stop for s in sequences], dtype=np.float64),
            marks=spaces.pop() if spaces else MarkSpace(),
            ids=_distinct(tuple(s.id for s in sequences)),
            inferred=any(s.inferred for s in sequences),
            unit=unit,
            name=name,
            places=places,
            features=features,
            context=Context.join([s.context for s in sequences]),
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def events(self) -> int:
        """Number of events over all sequences."""
        return len(self.times)

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Which events are scored: all but those of history periods."""
        if self.context is None or self.context.scored_from is None:
            return np.ones(self.events, dtype=bool)
        begin = np.repeat(self.context.scored_from, self.lengths)
        return self.times >= begin

    @property
    def scored_lengths(self) -> NDArray[np.int64]:
        """Events of each sequence that are scored."""
        scored = offsets_of(self.scored)
        return np.diff(scored[self.offsets])

    @property
    def scored_starts(self) -> NDArray[np.float64]:
        """When each sequence begins to be scored: its start, or the end of its history period."""
        if self.context is None or self.context.scored_from is None:
            return self.starts
        return np.maximum(self.starts, self.context.scored_from)

    @property
    def scored_events(self) -> int:
        """Number of events that are scored, over all sequences."""
        return int(np.count_nonzero(self.scored))

    @property
    def scored_exposure(self) -> Steps | None:
        """The weight of time in the likelihood: the exposure, and 0 in history periods; None where
        all time counts once.
        """
        if self.context is None:
            return None
        return self.context.scored_exposure(len(self))

    @property
    def exposed_times(self) -> NDArray[np.float64]:
        """The integral of the exposure over the scored part of each window: its length, where
        nothing else is known.
        """
        weight = self.scored_exposure
        if weight is None:
            return self.durations
        return weight.integrals(self.starts, self.stops)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Events per sequence."""
        return np.diff(self.offsets)

    @property
    def durations(self) -> NDArray[np.float64]:
        """Window lengths, in the user's time unit."""
        return self.stops - self.starts

    @property
    def gaps(self) -> NDArray[np.float64]:
        """Times between neighbouring events of one sequence, all sequences together."""
        return np.diff(self.times)[inner(self)]

    @property
    def tied(self) -> float:
        """Share of gaps that are exactly 0."""
        gaps = self.gaps
        if not len(gaps):
            return 0.0
        return float(np.mean(gaps == 0))

    @overload
    def __getitem__(self, index: int | str) -> Sequence: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | str | slice) -> Sequence | Dataset:
        """One sequence by its number or its id, or those of a slice."""
        if isinstance(index, str):
            return self.find(index)
        if isinstance(index, slice):
            return self.select(range(*index.indices(len(self))))
        i = range(len(self))[index]
        own = self.row(i)
        context = None
        if self.context is not None:
            context = self.context.select(np.array([i]))
        return _trusted_sequence(
            times=self.times[own],
            marks=self.mark_ids[own],
            start=float(self.starts[i]),
            stop=float(self.stops[i]),
            space=self.marks,
            id=self.ids[i],
            inferred=self.inferred,
            places=known_rows(self.places, own),
            features=known_rows(self.features, own),
            context=context,
            dates=self.dates(i),
        )

    def row(self, index: int) -> slice:
        """Where the events of sequence number ``index`` are in the flat arrays.

        >>> two = Dataset.from_sequences([Sequence([1.0, 2.0], start=0, stop=3)] * 2)
        >>> two.row(1)
        slice(2, 4, None)
        """
        first = int(self.offsets[index])
        end = int(self.offsets[index + 1])
        return slice(first, end)

    def dates(self, row: int) -> Dates | None:
        """The dates of sequence number ``row``; None where its origin or the unit of time is not
        known. Without a log they are those of UTC.
        """
        context = self.context
        if context is None or context.origin is None or self.unit not in SECONDS:
            return None
        origin = float(context.origin[row])
        if self.log is None:
            return Dates(origin, self.unit, "UTC")
        return Dates(origin, self.unit, self.log.zone)

    def __iter__(self) -> Iterator[Sequence]:
        return (self[i] for i in range(len(self)))

    def find(self, id: str) -> Sequence:
        """The sequence with this id."""
        if id not in self.ids:
            from difflib import get_close_matches

            near = get_close_matches(id, self.ids, n=3) or list(self.ids[:3])
            raise EventDataError(
                "the id of a sequence",
                f"{id!r}",
                f"Ids here are like {', '.join(map(repr, near))}.",
            )
        return self[self.ids.index(id)]

    def select(self, rows: Ordered[int] | NDArray[np.int64]) -> Dataset:
        """The sequences at these rows, in this order."""
        rows = np.asarray(rows, dtype=np.int64)
        first = self.offsets[rows]
        flat, offsets = flat_places(first, self.lengths[rows])
        splits = None
        if self.splits is not None:
            splits = self.splits[rows]
        context = None
        if self.context is not None:
            context = self.context.select(rows)
        return replace(
            self,
            times=self.times[flat],
            mark_ids=self.mark_ids[flat],
            offsets=offsets,
            starts=self.starts[rows],
            stops=self.stops[rows],
            ids=tuple(self.ids[i] for i in rows),
            splits=splits,
            places=known_rows(self.places, flat),
            features=known_rows(self.features, flat),
            context=context,
        )

    def without_places(self) -> Dataset:
        """The same events, of which it is not known where they were."""
        return replace(self, marks=self.marks.types, places=None)

    def in_box(self, box: Box) -> Dataset:
        """The same events as observed in another box, that of a fitted model, say. Fails where one
        lies outside it.
        """
        marks = replace(self.marks, box=box)
        return replace(self, marks=marks)

    def part(self, name: str) -> Dataset:
        """The sequences of one split: "train", "dev", "test", or "all"."""
        if name == "all":
            return self
        rows = np.zeros(0, dtype=np.int64)
        have = "no split column"
        if self.splits is not None:
            rows = np.flatnonzero(self.splits == name)
            have = f"splits {sorted(set(self.splits.tolist()))}"
        if name not in SPLITS or not len(rows):
            raise EventDataError(
                f"a split called {name!r}",
                have,
                "Use --split all, or add a `split` column of train/dev/test.",
            )
        return self.select(rows)

    def split(
        self,
        fractions: Ordered[float] = (0.8, 0.1, 0.1),
        *,
        by: Literal["given", "sequence", "time"] = "given",
        seed: int = 0,
    ) -> tuple[Dataset, ...]:
        """Parts of the data: train, dev and test, or as many as there are ``fractions``.

        ``by="given"`` uses the data's own split column and falls back to "sequence"; "sequence"
        shuffles whole sequences with ``seed``; "time" puts earlier windows into earlier parts.
        Where there are fewer sequences than parts, every window is cut at the same shares of its
        length, and later parts keep the earlier events as history, as in :meth:`split_at`.
        """
        if by == "given" and self.splits is not None:
            given = [name for name in SPLITS if (self.splits == name).any()]
            return tuple(self.part(name) for name in given)
        if abs(sum(fractions) - 1) > 1e-9 or min(fractions) <= 0:
            raise EventDataError(
                "positive fractions that sum to 1",
                f"{tuple(fractions)}",
                "Pass (0.8, 0.1, 0.1), say.",
            )
        count = len(self)
        if count < len(fractions):
            reached = np.cumsum(fractions)[:-1]
            cuts = self.starts[:, None] + reached * self.durations[:, None]
            return self._cut(cuts)
        if by == "time":
            order = np.argsort(self.starts, kind="stable")
        else:
            order = np.random.default_rng(seed).permutation(count)
        parts = shares(order, fractions)
        return tuple(self.select(np.sort(rows)) for rows in parts)

    def split_at(self, times: Ordered[Moment]) -> tuple[Dataset, ...]:
        """Parts of the data before, between and after ``times``, which rise: one more than there
        are times. They are numbers, or dates where the data has dates.

        Every sequence is cut. A later part keeps the earlier events of its sequences as history:
        they condition the rates but are not scored (``Context.scored_from``). Sequences that were
        not observed in a part are left out of it. An event at one of the times belongs to the part
        that begins there. Raises :class:`EventDataError` where times do not rise or no sequence was
        observed in a part.

        >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 5.0], start=0.0, stop=8.0)])
        >>> train, test = data.split_at([4.0])
        >>> [
        ...     (part[0].start, part[0].stop, len(part[0]), part.scored_events)
        ...     for part in (train, test)
        ... ]
        [(0.0, 4.0, 2, 2), (0.0, 8.0, 3, 1)]
        """
        cuts = [self.times_at(time) for time in times]
        edges = np.array(cuts).T
        if not cuts or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
            raise EventDataError(
                "one or more rising times to cut at",
                f"{list(times)}",
                "Sort them.",
            )
        return self._cut(edges)

    def between(self, begin: Moment | None = None, end: Moment | None = None) -> Dataset:
        """The data of which the time from ``begin`` to ``end`` is scored: earlier events of the
        same sequences are history, later ones are left out, and so are sequences that were not
        observed in between. None is the beginning, or the end, of every sequence.

        >>> data = Dataset.from_sequences([Sequence([1.0, 2.0, 5.0], start=0.0, stop=8.0)])
        >>> data.between(1.5, 4.0).events, data.between(1.5, 4.0).scored_events
        (2, 1)
        """
        lows = np.full(len(self), -np.inf)
        if begin is not None:
            lows = self.times_at(begin)
        highs = np.full(len(self), np.inf)
        if end is not None:
            highs = self.times_at(end)
        found = self._between(lows, highs)
        if found is None:
            raise EventDataError(
                f"a part of the time that was observed, {self._span()}",
                f"from {begin or 'the beginning'} to {end or 'the end'}",
                "Choose other times.",
            )
        return found

    def times_at(self, moment: Moment) -> NDArray[np.float64]:
        """A time, or a date where the data has dates, in the time of every sequence, (S,)."""
        times = [time_at(self.dates(i), moment) for i in range(len(self))]
        return np.array(times)

    def extent(self) -> tuple[float, float]:
        """From when to when anything was observed, in the time of the first sequence."""
        shift = np.zeros(len(self))
        context = self.context
        if context is not None and context.origin is not None and self.unit in SECONDS:
            since = context.origin - context.origin[0]
            shift = since / SECONDS[self.unit]
        first = (shift + self.starts).min()
        last = (shift + self.stops).max()
        return float(first), float(last)

    def _span(self) -> str:
        """From when to when anything was observed, in words."""
        if not len(self):
            return "of no sequence"
        dates = self.dates(0)
        first, last = self.extent()
        return f"from {shown(dates, first)} to {shown(dates, last)}"

    def _cut(self, cuts: NDArray[np.float64]) -> tuple[Dataset, ...]:
        """The parts of :meth:`split_at` with cuts (S, K) of each sequence."""
        endless = np.full((len(self), 1), np.inf)
        edges = np.hstack([-endless, cuts, endless]).T
        parts: list[Dataset] = []
        for low, high in pairwise(edges):
            part = self._between(low, high)
            if part is None:
                said = []
                if len(self):
                    said = [shown(self.dates(0), cut) for cut in cuts[0].tolist()]
                raise EventDataError(
                    f"times to cut at inside the windows, {self._span()}",
                    f"{' and '.join(said)}, so that nothing was observed in part {len(parts) + 1}",
                    "Choose times in between.",
                )
            parts.append(part)
        return tuple(parts)

    def _between(self, lows: NDArray[np.float64], highs: NDArray[np.float64]) -> Dataset | None:
        """As :meth:`between`, with times of every sequence; None where none was observed then."""
        pieces = []
        for s, low, high in zip(self, lows.tolist(), highs.tolist(), strict=True):
            begin = max(s.start, low)
            end = min(s.stop, high)
            if end <= begin:
                continue
            piece = s
            if high <= s.stop:
                kept = slice(int(np.searchsorted(s.times, end)))
                piece = s.piece(kept, s.start, end, inferred=False)
            if low > -np.inf:
                piece = piece.scored_after(begin)
            pieces.append(piece)
        if not pieces:
            return None
        part = Dataset.from_sequences(pieces, unit=self.unit, name=self.name)
        return replace(part, log=self.log, feature_names=self.feature_names)

    def with_ties(self, policy: Ties, seed: int = 0) -> Dataset:
        """Apply a policy to events that share a time with the one before.

        "keep" changes nothing; "error" refuses; "drop" keeps the first of equals; "jitter" spreads
        equals evenly and at random over the time to the next distinct event (or the window's end),
        in file order. At the very end of a window that was inferred there is no such time, and they
        are spread back towards the event before.
        """
        return apply_ties(self, policy, seed)

    def some(self, events: int, seed: int) -> Dataset:
        """Sequences drawn at random, in their order, with about ``events`` scored events; all of
        them where there are no more.

        >>> data = Dataset.from_sequences([Sequence([1.0, 2.0], start=0, stop=3)] * 10)
        >>> len(data.some(5, seed=0)), len(data.some(20, seed=0))
        (3, 10)
        """
        if self.scored_events <= events or len(self) < 2:
            return self
        order = np.random.default_rng(seed).permutation(len(self))
        drawn = np.cumsum(self.scored_lengths[order])
        enough = int(np.searchsorted(drawn, events)) + 1
        rows = np.sort(order[:enough])
        return self.select(rows)

    def batch(self, rows: Ordered[int] | NDArray[np.int64] | None = None) -> Batch:
        """The sequences at ``rows`` (all by default), padded to one length."""
        if rows is None:
            rows = range(len(self))
        return pad(self, np.asarray(rows, dtype=np.int64))

    def batches(
        self,
        size: int,
        *,
        seed: int | None = None,
        padded: int = 131072,
        mixed: bool = False,
    ) -> list[NDArray[np.int64]]:
        """Rows of each batch: sequences of like length together, at most ``size`` of them and
        ``padded`` slots.

        With a ``seed`` the order inside a length and the order of the batches are shuffled; where
        also ``mixed``, batches hold sequences of all lengths, which costs padding but does not sort
        them by what is to be learned.
        """
        return group_by_length(self.lengths, size, padded, seed, mixed)

    def __str__(self) -> str:
        window = self.durations
        if len(window) and np.ptp(window) < 1e-9 * window[0]:
            span = f"windows of {window[0]:g}"
        else:
            span = "windows of many lengths"
        return (
            f"{len(self):,} sequences, {self.events:,} events, {self.marks}, {span} "
            f"{console_text(self.unit)}"
        ).rstrip()

    def __repr__(self) -> str:
        return f"Dataset({self})"


def only_sequence(events: Sequence | Dataset) -> Sequence:
    """A sequence, or the only one of a data set; :class:`UserError` where there are more or none.

    >>> only_sequence(Dataset.from_sequences([Sequence([1.0], start=0, stop=3)])).stop
    3.0
    """
    if isinstance(events, Sequence):
        return events
    if not isinstance(events, Dataset):
        raise UserError(
            "a sequence of events",
            f"{type(events).__name__}",
            "Pass data[0] or data['ID'], or build a Sequence.",
        )
    if len(events) != 1:
        received = f"a data set of {len(events):,} sequences"
        if len(events):
            received += f", with ids like {', '.join(map(repr, events.ids[:3]))}"
        raise UserError("one sequence", received, "Choose one: data[0], or data['ID'] by its id.")
    return events[0]


def all_sequences(events: Sequence | Dataset) -> Dataset:
    """A data set, or one that holds a sequence alone.

    >>> len(all_sequences(Sequence([1.0], start=0, stop=3)))
    1
    """
    if isinstance(events, Dataset):
        return events
    if not isinstance(events, Sequence):
        raise UserError(
            "a data set or a sequence",
            f"{type(events).__name__}",
            "Read events with fp.read, or build a Sequence.",
        )
    return Dataset.from_sequences([events])


def inferred_window(times: NDArray[np.float64]) -> tuple[float, float]:
    """The window that events imply where none is given: from min(0, t_1) to t_N."""
    if not len(times):
        return 0.0, 1.0
    low = min(0.0, float(times[0]))
    high = float(times[-1])
    if high <= low:
        high = low + 1.0
    return low, high


def _trusted_sequence(**values: object) -> Sequence:
    """A sequence of parts that have been checked already."""
    sequence = object.__new__(Sequence)
    for name, value in values.items():
        object.__setattr__(sequence, name, value)
    return sequence


def _distinct(ids: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(ids)) == len(ids):
        return ids
    numbers = range(len(ids))
    return tuple(str(i) for i in numbers)
