"""Events, and the only door through which they enter.

A :class:`Sequence` is what one observer wrote down: times, marks and the observation window ``[start, stop)`` in which
an event would have been seen. The window belongs to the data, because an empty stretch before the first event and after
the last is evidence. A :class:`Dataset` is many sequences stored flat, with offsets, and a :class:`Batch` is a few of
them padded into tensors. Everything that can be wrong with event data is refused here, so that nothing downstream has
to look again: models, likelihoods and samplers trust what they get.

Two events may carry one time. They stay in file order, event i sees events 1..i-1 by position, and the gap is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Ordered
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import torch

Ties = Literal["keep", "error", "jitter", "drop"]
SPLITS = ("train", "dev", "test")


class UserError(ValueError):
    """An error a user can mend: what was expected, what came and where, and what to do.

    >>> str(UserError("a positive horizon", "-1.0", "Pass horizon=2.0, say."))
    'expected a positive horizon; received -1.0. Pass horizon=2.0, say.'
    """

    def __init__(self, expected: str, received: str, remedy: str) -> None:
        super().__init__(f"expected {expected}; received {received}. {remedy}")
        self.expected, self.received, self.remedy = expected, received, remedy


class EventDataError(UserError):
    """Data that is not a set of event sequences. It names the sequence, the event and the value."""


@dataclass(frozen=True)
class MarkSpace:
    """The values a mark may take: none (no names), or one of M named types.

    >>> MarkSpace.categorical(["fire", "medical"]).count
    2
    >>> MarkSpace().count, MarkSpace().names
    (1, ())
    """

    names: tuple[str, ...] = ()

    @staticmethod
    def categorical(types: int | Ordered[str]) -> MarkSpace:
        """A space of named types; a number M gives the names "0" to "M-1"."""
        names = tuple(str(i) for i in range(types)) if isinstance(types, int) else tuple(str(n) for n in types)
        if len(set(names)) != len(names) or not names:
            raise EventDataError("at least one mark name, all different", f"{list(names)[:8]}", "Rename the repeated or missing names.")
        return MarkSpace(names)

    @staticmethod
    def of(marks: MarkSpace | int | Ordered[str] | None) -> MarkSpace:
        """Accept a space, a number of types, a list of names, or None for no marks."""
        if isinstance(marks, MarkSpace):
            return marks
        return MarkSpace() if marks is None else MarkSpace.categorical(marks)

    @property
    def count(self) -> int:
        """M, the number of types; 1 where there are no marks."""
        return max(1, len(self.names))

    def __str__(self) -> str:
        return f"{self.count} types" if self.names else "no marks"


@dataclass(frozen=True, eq=False)
class Sequence:
    """One observed sequence of events in the window ``[start, stop)``, in the user's time unit.

    ``times`` are non-decreasing float64, ``marks`` integers below ``space.count``. ``inferred`` says that the window was
    read off the events themselves, and then an event may sit at ``stop``.

    >>> s = Sequence([0.5, 2.0], start=0.0, stop=4.0)
    >>> len(s), s.duration
    (2, 4.0)
    >>> Sequence([2.0, 0.5], start=0.0, stop=4.0)
    Traceback (most recent call last):
      ...
    fourpoint.events.EventDataError: expected non-decreasing times; received 0.5 after 2.0 at event 1 of sequence 0. ...
    """

    times: NDArray[np.float64]
    marks: NDArray[np.int64]
    start: float
    stop: float
    space: MarkSpace
    id: str
    inferred: bool

    def __init__(
        self,
        times: ArrayLike,
        marks: ArrayLike | None = None,
        *,
        start: float | None = None,
        stop: float | None = None,
        space: MarkSpace | int | None = None,
        id: str = "0",
    ) -> None:
        t = _as_floats(times)
        m = np.zeros(len(t), dtype=np.int64) if marks is None else _as_integers(marks)
        guess = MarkSpace() if marks is None else MarkSpace.categorical(int(m.max(initial=0)) + 1)
        low, high = inferred_window(t)
        known = Dataset(
            t,
            m,
            np.array([0, len(t)]),
            np.array([low if start is None else start], dtype=np.float64),
            np.array([high if stop is None else stop], dtype=np.float64),
            guess if space is None else MarkSpace.of(space),
            ids=(id,),
            inferred=stop is None,
        )[0]
        for name in ("times", "marks", "start", "stop", "space", "id", "inferred"):
            object.__setattr__(self, name, getattr(known, name))

    def __len__(self) -> int:
        return len(self.times)

    @property
    def duration(self) -> float:
        """Length of the window, in the user's time unit."""
        return self.stop - self.start

    def before(self, time: float) -> Sequence:
        """The events strictly before ``time``, observed on ``[start, time)``."""
        n = int(np.searchsorted(self.times, time, side="left"))
        return _trusted_sequence(self.times[:n], self.marks[:n], self.start, float(time), self.space, self.id, False)

    def batch(self) -> Batch:
        """This sequence alone, as a batch of one."""
        return Dataset.from_sequences([self]).batch([0])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Many sequences, stored flat: sequence i owns events ``offsets[i]:offsets[i + 1]``.

    Construction checks everything and raises :class:`EventDataError` with sequence, event and value. ``splits`` names
    each sequence's part ("train", "dev" or "test") or is None; ``unit`` is a label for axes.

    >>> data = Dataset.from_sequences([Sequence([1.0, 2.0], start=0, stop=3), Sequence([], start=0, stop=3)])
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

    def __post_init__(self) -> None:
        if not self.ids:
            object.__setattr__(self, "ids", tuple(str(i) for i in range(len(self.starts))))
        _check(self)
        for array in (self.times, self.mark_ids, self.offsets, self.starts, self.stops):
            array.setflags(write=False)

    @staticmethod
    def from_sequences(sequences: Ordered[Sequence], *, unit: str = "", name: str = "") -> Dataset:
        """Lay sequences end to end. They must share one mark space."""
        spaces = {s.space for s in sequences}
        if len(spaces) > 1:
            raise EventDataError("sequences of one mark space", f"{len(spaces)} spaces", "Pass space= to each Sequence.")
        return Dataset(
            np.concatenate([np.zeros(0), *(s.times for s in sequences)]),
            np.concatenate([np.zeros(0, dtype=np.int64), *(s.marks for s in sequences)]),
            np.concatenate([[0], np.cumsum([len(s) for s in sequences], dtype=np.int64)]).astype(np.int64),
            np.array([s.start for s in sequences], dtype=np.float64),
            np.array([s.stop for s in sequences], dtype=np.float64),
            spaces.pop() if spaces else MarkSpace(),
            ids=_distinct(tuple(s.id for s in sequences)),
            inferred=any(s.inferred for s in sequences),
            unit=unit,
            name=name,
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def events(self) -> int:
        """Number of events over all sequences."""
        return len(self.times)

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
        return np.diff(self.times)[self._inner()]

    @property
    def tied(self) -> float:
        """Share of gaps that are exactly 0."""
        gaps = self.gaps
        return float(np.mean(gaps == 0)) if len(gaps) else 0.0

    def _inner(self) -> NDArray[np.bool_]:
        """True where neighbours i, i + 1 of the flat array belong to one sequence."""
        inner = np.ones(max(self.events - 1, 0), dtype=bool)
        cuts = self.offsets[1:-1]
        inner[cuts[(cuts > 0) & (cuts < self.events)] - 1] = False
        return inner

    @overload
    def __getitem__(self, index: int) -> Sequence: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | slice) -> Sequence | Dataset:
        if isinstance(index, slice):
            return self.select(range(*index.indices(len(self))))
        i = range(len(self))[index]
        a, b = self.offsets[i], self.offsets[i + 1]
        return _trusted_sequence(
            self.times[a:b], self.mark_ids[a:b], float(self.starts[i]), float(self.stops[i]), self.marks, self.ids[i], self.inferred
        )

    def __iter__(self) -> Iterator[Sequence]:
        return (self[i] for i in range(len(self)))

    def find(self, id: str) -> Sequence:
        """The sequence with this id."""
        if id not in self.ids:
            from difflib import get_close_matches

            near = get_close_matches(id, self.ids, n=3) or list(self.ids[:3])
            raise EventDataError("the id of a sequence", f"{id!r}", f"Ids here are like {', '.join(map(repr, near))}.")
        return self[self.ids.index(id)]

    def select(self, rows: Ordered[int] | NDArray[np.int64]) -> Dataset:
        """The sequences at these rows, in this order."""
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        flat = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return replace(
            self,
            times=self.times[flat],
            mark_ids=self.mark_ids[flat],
            offsets=offsets,
            starts=self.starts[rows],
            stops=self.stops[rows],
            ids=tuple(self.ids[i] for i in rows),
            splits=None if self.splits is None else self.splits[rows],
        )

    def part(self, name: str) -> Dataset:
        """The sequences of one split: "train", "dev", "test", or "all"."""
        if name == "all":
            return self
        if self.splits is None or name not in SPLITS or not (self.splits == name).any():
            have = "no split column" if self.splits is None else f"splits {sorted(set(self.splits.tolist()))}"
            raise EventDataError(f"a split called {name!r}", have, "Use --split all, or add a `split` column of train/dev/test.")
        return self.select(np.flatnonzero(self.splits == name))

    def split(
        self,
        fractions: Ordered[float] = (0.8, 0.1, 0.1),
        *,
        by: Literal["given", "sequence", "time"] = "given",
        seed: int = 0,
    ) -> tuple[Dataset, ...]:
        """Parts of the data: train, dev and test, or as many as there are ``fractions``.

        ``by="given"`` uses the data's own split column and falls back to "sequence"; "sequence" shuffles whole
        sequences with ``seed``; "time" puts earlier windows into earlier parts, and cuts a lone sequence at times.
        """
        if by == "given" and self.splits is not None:
            return tuple(self.part(name) for name in SPLITS if (self.splits == name).any())
        if abs(sum(fractions) - 1) > 1e-9 or min(fractions) <= 0:
            raise EventDataError("positive fractions that sum to 1", f"{tuple(fractions)}", "Pass (0.8, 0.1, 0.1), say.")
        if len(self) < len(fractions):
            return self._cut(fractions)
        order = np.argsort(self.starts, kind="stable") if by == "time" else np.random.default_rng(seed).permutation(len(self))
        sizes = np.maximum(1, np.round(np.array(fractions[1:]) * len(self))).astype(int)
        edges = len(self) - np.cumsum(sizes[::-1])[::-1]
        return tuple(self.select(np.sort(rows)) for rows in np.split(order, edges))

    def _cut(self, fractions: Ordered[float]) -> tuple[Dataset, ...]:
        """Cut every window at the same shares of its length; each piece keeps the events that fall into it."""
        edges = np.concatenate([[0.0], np.cumsum(fractions)])
        edges[-1] = 1.0
        parts = []
        for k, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            pieces = []
            for s in self:
                last = k == len(fractions) - 1
                a, b = s.start + low * s.duration, s.stop if last else s.start + high * s.duration
                keep = (s.times >= a) & ((s.times < b) | last)
                pieces.append(_trusted_sequence(s.times[keep], s.marks[keep], a, b, s.space, s.id, s.inferred and last))
            parts.append(Dataset.from_sequences(pieces, unit=self.unit, name=self.name))
        return tuple(parts)

    def with_ties(self, policy: Ties, seed: int = 0) -> Dataset:
        """Apply a policy to events that share a time with the one before.

        "keep" changes nothing; "error" refuses; "drop" keeps the first of equals; "jitter" spreads equals evenly and at
        random over the time to the next distinct event (or the window's end), in file order. At the very end of a window
        that was inferred there is no such time, and they are spread back towards the event before.
        """
        if policy not in get_args(Ties):
            raise EventDataError("a tie policy keep, error, jitter or drop", f"{policy!r}", "Use one of the four.")
        tie = np.concatenate([[False], (np.diff(self.times) == 0) & self._inner()]) if self.events else np.zeros(0, bool)
        if policy == "keep" or not tie.any():
            return self
        if policy == "error":
            i = int(np.flatnonzero(tie)[0])
            received = f"a repeated time {self.times[i]} at {_place(self, i)}"
            raise EventDataError("distinct times", received, "Use ties='keep', 'jitter' or 'drop'.")
        if policy == "drop":
            kept = np.concatenate([[0], np.cumsum(~tie)])
            return replace(self, times=self.times[~tie], mark_ids=self.mark_ids[~tie], offsets=kept[self.offsets])
        return replace(self, times=_spread(self, tie, seed))

    def batch(self, rows: Ordered[int] | NDArray[np.int64] | None = None) -> Batch:
        """The sequences at ``rows`` (all by default), padded to one length."""
        import torch

        rows = np.arange(len(self)) if rows is None else np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        column = np.arange(int(lengths.max(initial=0)))
        valid = column < lengths[:, None]
        flat = np.where(valid, self.offsets[rows][:, None] + column, 0)
        times = self.times[flat] if self.events else np.zeros(flat.shape)
        marks = self.mark_ids[flat] if self.events else np.zeros(flat.shape, dtype=np.int64)
        return Batch(*(torch.from_numpy(a) for a in (times, marks, valid, self.starts[rows].copy(), self.stops[rows].copy())))

    def batches(self, size: int, *, seed: int | None = None, padded: int = 131072, mixed: bool = False) -> list[NDArray[np.int64]]:
        """Rows of each batch: sequences of like length together, at most ``size`` of them and ``padded`` slots.

        With a ``seed`` the order inside a length and the order of the batches are shuffled; where also ``mixed``, batches hold
        sequences of all lengths, which costs padding but does not sort them by what is to be learned.
        """
        rng = np.random.default_rng(seed)
        lengths = self.lengths
        key = lengths + (rng.random(len(self)) * (1 + 0.1 * lengths) if seed is not None else 0)
        order = rng.permutation(len(self)) if mixed and seed is not None else np.argsort(key, kind="stable")
        batches, first = [], 0
        while first < len(order):
            stop = min(first + size, len(order))
            while stop - first > 1 and (stop - first) * (1 + lengths[order[first:stop]].max()) > padded:
                stop = first + max(1, (stop - first) // 2)
            batches.append(order[first:stop])
            first = stop
        return [batches[i] for i in rng.permutation(len(batches))] if seed is not None else batches

    def __str__(self) -> str:
        window = self.durations
        span = f"windows of {window[0]:g}" if len(window) and np.ptp(window) < 1e-9 * window[0] else "windows of many lengths"
        return f"{len(self):,} sequences, {self.events:,} events, {self.marks}, {span} {self.unit}".rstrip()

    def __repr__(self) -> str:
        return f"Dataset({self})"


@dataclass(frozen=True, eq=False)
class Batch:
    """B sequences padded to N events. ``valid`` is True for real events; padded slots hold ``stop`` and mark 0.

    Construction overwrites whatever the padding held, so that a NaN there cannot reach a sum.
    """

    times: torch.Tensor  # (B, N) float64, the user's unit
    marks: torch.Tensor  # (B, N) int64
    valid: torch.Tensor  # (B, N) bool
    start: torch.Tensor  # (B,) float64
    stop: torch.Tensor  # (B,) float64

    def __post_init__(self) -> None:
        import torch

        object.__setattr__(self, "times", torch.where(self.valid, self.times, self.stop[:, None]))
        object.__setattr__(self, "marks", torch.where(self.valid, self.marks, 0))

    @property
    def lengths(self) -> torch.Tensor:
        """Events per sequence, (B,)."""
        return self.valid.sum(1)

    @property
    def edges(self) -> torch.Tensor:
        """start, t_1, ..., t_N, stop: the N + 1 gaps lie between neighbours, (B, N + 2); padded gaps have length 0."""
        import torch

        return torch.cat([self.start[:, None], self.times, self.stop[:, None]], 1)

    def columns(self, first: int, stop: int) -> Batch:
        """Events ``first:stop`` of every sequence, watched from the event before the first up to the last of them.

        So neighbouring blocks of columns share out the window; the last block goes on to the window's end.
        """
        last = min(stop, self.times.shape[1])
        start = self.times[:, first - 1] if first else self.start
        end = self.times[:, last - 1] if stop < self.times.shape[1] else self.stop
        return Batch(self.times[:, first:last], self.marks[:, first:last], self.valid[:, first:last], start, end)

    def to(self, device: str | torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(*(x.to(device) for x in (self.times, self.marks, self.valid, self.start, self.stop)))


def inferred_window(times: NDArray[np.float64]) -> tuple[float, float]:
    """The window that events imply where none is given: from min(0, t_1) to t_N."""
    if not len(times):
        return 0.0, 1.0
    low, high = min(0.0, float(times[0])), float(times[-1])
    return low, high if high > low else low + 1.0


def _trusted_sequence(
    times: NDArray[np.float64], marks: NDArray[np.int64], start: float, stop: float, space: MarkSpace, id: str, inferred: bool
) -> Sequence:
    sequence = object.__new__(Sequence)
    values = dict(times=times, marks=marks, start=start, stop=stop, space=space, id=id, inferred=inferred)
    for name, value in values.items():
        object.__setattr__(sequence, name, value)
    return sequence


def _distinct(ids: tuple[str, ...]) -> tuple[str, ...]:
    return ids if len(set(ids)) == len(ids) else tuple(str(i) for i in range(len(ids)))


def _as_floats(times: ArrayLike) -> NDArray[np.float64]:
    try:
        return np.array(times, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise EventDataError("numbers for times", f"{str(times)[:80]!r}", "Convert the times to numbers.") from error


def _as_integers(marks: ArrayLike) -> NDArray[np.int64]:
    values = np.asarray(marks).reshape(-1)
    whole = values.dtype.kind in "iub" or (values.dtype.kind == "f" and bool(np.all(values == np.floor(values))))
    if len(values) and not whole:
        raise EventDataError("marks as integers 0..M-1", f"{values[0]!r}", "Number the types, or read them with fp.read.")
    return values.astype(np.int64)


def _place(data: Dataset, event: int) -> str:
    """Where flat event number ``event`` stands, in words."""
    i = int(np.searchsorted(data.offsets, event, side="right")) - 1
    return f"event {event - int(data.offsets[i])} of sequence {data.ids[i]}"


def _check(d: Dataset) -> None:
    counts = f"{len(d.times)} times, {len(d.mark_ids)} marks, {len(d.offsets)} offsets, {len(d.starts)} starts, {len(d.stops)} stops"
    per_sequence = {len(d.offsets) - 1, len(d.starts), len(d.stops), len(d.ids), len(d.starts if d.splits is None else d.splits)}
    if len(d.times) != len(d.mark_ids) or len(per_sequence) > 1:
        raise EventDataError("one mark per time and one window per sequence", counts, "Make the lengths equal.")
    if d.offsets[0] != 0 or d.offsets[-1] != len(d.times) or (np.diff(d.offsets) < 0).any():
        raise EventDataError("offsets that rise from 0 to the number of events", f"{d.offsets.tolist()[:8]}", "Count the events again.")
    bad = np.flatnonzero(~np.isfinite(d.times))
    if len(bad):
        raise EventDataError("finite times", f"{d.times[bad[0]]} at {_place(d, bad[0])}", "Remove or mend the row.")
    wrong = np.flatnonzero(~(np.isfinite(d.starts) & np.isfinite(d.stops) & (d.stops > d.starts)))
    if len(wrong):
        i = wrong[0]
        received = f"[{d.starts[i]}, {d.stops[i]}) of sequence {d.ids[i]}"
        raise EventDataError("a finite window with start < stop", received, "Mend its start and stop.")
    back = np.flatnonzero((np.diff(d.times) < 0) & d._inner())
    if len(back):
        i = int(back[0]) + 1
        received = f"{d.times[i]} after {d.times[i - 1]} at {_place(d, i)}"
        raise EventDataError("non-decreasing times", received, "Sort the rows, or read with sort=True.")
    row = np.repeat(np.arange(len(d)), d.lengths)
    late = d.times > d.stops[row] if d.inferred else d.times >= d.stops[row]
    out = np.flatnonzero((d.times < d.starts[row]) | late)
    if len(out):
        i = int(out[0])
        expected = f"times inside the window [{d.starts[row[i]]}, {d.stops[row[i]]})"
        raise EventDataError(expected, f"{d.times[i]} at {_place(d, i)}", "Widen the window or drop the event.")
    unknown = np.flatnonzero((d.mark_ids < 0) | (d.mark_ids >= d.marks.count))
    if len(unknown):
        i = int(unknown[0])
        received = f"{d.mark_ids[i]} at {_place(d, i)}"
        raise EventDataError(f"marks from 0 to {d.marks.count - 1}", received, "Mend the mark, or declare more types.")
    if d.splits is not None and not np.isin(d.splits, SPLITS).all():
        odd = next(s for s in d.splits.tolist() if s not in SPLITS)
        raise EventDataError("splits called train, dev or test", f"{odd!r}", "Rename the values of the split column.")


def _spread(data: Dataset, tie: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    """Times with each run of equals spread, in order, over the time up to the next distinct event."""
    row = np.repeat(np.arange(len(data)), data.lengths)
    heads = np.flatnonzero(~tie)
    size = np.diff(np.append(heads, data.events))
    following = np.append(heads[1:], -1)
    same = (following >= 0) & (row[following] == row[heads])
    limit = np.where(same, data.times[following], data.stops[row[heads]])
    # Equals at the end of an inferred window have nothing ahead: they take the second half of the time behind them.
    before = np.where(np.append(-1, row[heads[:-1]]) == row[heads], data.times[heads - 1], data.starts[row[heads]])
    middle = (before + data.times[heads]) / 2
    stuck = (limit <= data.times[heads]) & (size > 1)
    limit = np.where(np.append(stuck[1:], False) & same, np.append(middle[1:], 0.0), limit)
    room = np.repeat(np.where(stuck, middle, limit) - data.times[heads], size)
    position = np.arange(data.events) - np.repeat(heads, size)
    position = np.where(np.repeat(stuck, size), np.repeat(size - 1, size) - position, position)
    share = (position + np.random.default_rng(seed).random(data.events) * (position > 0)) / np.repeat(size, size)
    return data.times + room * np.minimum(share, 1 - 1e-9)
