r"""Events in many Parquet files, of which a part at a time is in memory.

:func:`scan` opens a folder, a file or a URL (``s3://``, ``gs://``, ``hdfs://``, anything that
pyarrow or fsspec knows) and reads through it once. What stays in memory is an index: for each
sequence its length, window, split and a hash of its events, about 50 bytes. Events themselves are
read chunk by chunk, where a chunk holds the sequences that begin in one row group:

    scan -> EventFiles -> chunks() -> Dataset, Dataset, ...

The rows of a sequence stand next to each other, in order of time; `fourpoint data partition`
regroups files in which they do not. A sequence of more than ``LONG`` events is read in parts, and
what a model remembers is carried from one to the next. Memory therefore depends on the size of row
groups and on the buffer that training shuffles, but not on the number of events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence as Ordered
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.clocks import check_zone
from fourpoint.data.date_time import parts_of, with_joined_columns
from fourpoint.data.entities import SequenceColumns
from fourpoint.data.opened import HEAD, Table, progress, row_number
from fourpoint.data.parquet_files import Store
from fourpoint.data.readers import GUESS, Asked, Reading, listed, read_opened
from fourpoint.data.roles import Roles, choose_roles
from fourpoint.data.stored import WINDOWS
from fourpoint.events import SPLITS, Context, Dataset, EventDataError, MarkSpace, UserError
from fourpoint.events.batching import known_rows, offsets_of, shares
from fourpoint.events.windows import REMEMBERED
from fourpoint.log_format import LogFormat
from fourpoint.models.base import PointProcess
from fourpoint.storage.trained_on import Overlap, TrainedOn, sequence_hashes

IN_MEMORY = 5_000_000  # rows up to which the commands read a folder whole
BUFFER = 2_000_000  # events that training shuffles in memory
LONG = 2**20  # events of a sequence that is read in parts
CHUNK = 2**17  # rows of a chunk, where row groups are smaller
BESIDE = ("gaps", "observed", "exposure", "covariates", "entities", "covariates_as_of")
PARTITION = "fourpoint data partition SOURCE -o FOLDER"


@dataclass(frozen=True)
class Chunk:
    """Rows ``first`` to ``last`` of all files, which hold the sequences ``begin`` to ``end``.

    ``opens`` and ``closes`` say whether the first and the last event of a sequence that is read in
    parts are here; ``before`` is the time of the event before, if ``opens`` is false.
    """

    first: int
    last: int
    begin: int
    end: int
    opens: bool = True
    closes: bool = True
    before: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether the chunk holds whole sequences."""
        return self.opens and self.closes


def scan(source: str | Path, asked: Asked = GUESS, **reading: Any) -> EventFiles:
    """Open the Parquet files of a folder or URL, to be read chunk by chunk.

    Args:
        source: a folder (with all folders in it), a file, or a URL that pyarrow or fsspec knows.
            Names such as ``user=17`` of folders are columns.
        asked, reading: how columns are read, as in :func:`fourpoint.read`. Tables beside the
            events, calendar windows (``sequence="day"``) and ``ties`` other than "keep" need data
            in memory.

    Returns :class:`EventFiles`, which `fit`, `evaluate` and `forecasts` take in place of a data
    set. Raises :class:`EventDataError` where there are no Parquet files, their columns differ, or
    the rows of a sequence do not stand next to each other.

    >>> import tempfile
    >>> from fourpoint.data.readers import write
    >>> from fourpoint.data.synthetic import simulate
    >>> folder = Path(tempfile.mkdtemp())
    >>> for part in range(2):
    ...     data = simulate("hawkes", 3, seed=part)
    ...     write(replace(data, ids=tuple(f"{part}-{i}" for i in range(3))), folder / f"{part}.pq")
    >>> files = scan(folder)
    >>> len(files), [len(chunk) for chunk in files.chunks()]
    (6, [3, 3])
    """
    if reading:
        asked = replace(asked, **reading)
    _check_asked(asked)
    store = Store.open(str(source))
    scanning = _Scanning(store, asked)
    return scanning.run()


@dataclass(frozen=True, eq=False)
class EventFiles:
    """Sequences in Parquet files: what is known of each, and its events on demand.

    The arrays have a value for each of the S sequences of the files; ``kept`` says which of them
    belong to this object, as after :meth:`part` and :meth:`split`.
    """

    store: Store
    roles: Roles
    asked: Asked
    pieces: tuple[Chunk, ...]
    lengths_of_all: NDArray[np.int64]
    starts_of_all: NDArray[np.float64]
    stops_of_all: NDArray[np.float64]
    hashes_of_all: NDArray[np.uint64]
    splits_of_all: NDArray[np.str_] | None
    kept: NDArray[np.bool_]
    marks: MarkSpace
    unit: str
    name: str
    log: LogFormat | None
    notes: tuple[str, ...]
    frame: tuple[float, float] | None = None  # the window of every sequence, where they share one

    def __len__(self) -> int:
        return int(np.count_nonzero(self.kept))

    @property
    def rows(self) -> NDArray[np.int64]:
        """The numbers of the sequences in the files."""
        return np.flatnonzero(self.kept)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Events per sequence."""
        return self.lengths_of_all[self.kept]

    @property
    def starts(self) -> NDArray[np.float64]:
        """When the windows begin, in the user's unit."""
        return self.starts_of_all[self.kept]

    @property
    def stops(self) -> NDArray[np.float64]:
        """When the windows end, in the user's unit."""
        return self.stops_of_all[self.kept]

    @property
    def durations(self) -> NDArray[np.float64]:
        """Window lengths, in the user's unit."""
        return self.stops - self.starts

    @property
    def events(self) -> int:
        """Number of events."""
        return int(self.lengths.sum())

    @property
    def scored_events(self) -> int:
        """Number of events that are scored: all."""
        return self.events

    @property
    def splits(self) -> NDArray[np.str_] | None:
        """The part that each sequence belongs to, where the files say."""
        if self.splits_of_all is None:
            return None
        return self.splits_of_all[self.kept]

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """A hash of the id and the events of each sequence; 0 for those without events, and for
        those that are read in parts.
        """
        return self.hashes_of_all[self.kept]

    @property
    def repeated_windows(self) -> bool:
        """As `events.windows.repeated_windows`."""
        durations = self.durations
        if len(durations) < 2:
            return False
        return bool(np.ptp(durations) <= 1e-9 * durations.max())

    def __str__(self) -> str:
        paths = len(self.store.paths)
        many = f"{len(self):,} sequences, {self.events:,} events, {self.marks}"
        return f"{many}, in {paths:,} Parquet files"

    def select(self, rows: NDArray[np.int64]) -> EventFiles:
        """The sequences at these places among those that are kept."""
        chosen = self.rows[rows]
        kept = np.zeros_like(self.kept)
        kept[chosen] = True
        return replace(self, kept=kept)

    def part(self, name: str) -> EventFiles:
        """The sequences of one split, or "all"."""
        if name == "all":
            return self
        rows = np.zeros(0, dtype=np.int64)
        have = "no split column"
        splits = self.splits
        if splits is not None:
            rows = np.flatnonzero(splits == name)
            have = f"splits {sorted(set(splits.tolist()))}"
        if name not in SPLITS or not len(rows):
            raise EventDataError(
                f"a split called {name!r}",
                have,
                "Use --split all, or add a `split` column of train/dev/test.",
            )
        return self.select(rows)

    def split(self, fractions: Ordered[float], *, seed: int = 0) -> tuple[EventFiles, ...]:
        """Parts by whole sequences, drawn with ``seed`` as by `Dataset.split`. A single sequence
        that is read in parts is cut in two between them.
        """
        count = len(self)
        pieces = self.pieces_in_use()
        if count == 1 and len(fractions) == 2 and len(pieces) > 1:
            last = max(1, round(fractions[1] * len(pieces)))
            train = self._with_pieces(pieces[:-last])
            dev = self._with_pieces(pieces[-last:])
            return train, dev
        if count < len(fractions):
            raise UserError(
                f"at least {len(fractions)} sequences to split",
                f"{count} in {self.store.source}",
                "Pass development data of its own, or more sequences.",
            )
        order = np.random.default_rng(seed).permutation(count)
        return tuple(self.select(rows) for rows in shares(order, fractions))

    def _with_pieces(self, pieces: list[Chunk]) -> EventFiles:
        """Some of the parts of a single sequence, observed from the first of them to the last."""
        opening = pieces[0]
        closing = pieces[-1]
        row = opening.begin
        lengths = self.lengths_of_all.copy()
        starts = self.starts_of_all.copy()
        stops = self.stops_of_all.copy()
        lengths[row] = sum(one.last - one.first for one in pieces)
        if not opening.opens:
            starts[row] = opening.before
        if not closing.closes:
            following = next(one for one in self.pieces if one.first == closing.last)
            stops[row] = following.before
        return replace(
            self,
            pieces=(*pieces[:-1], replace(closing, closes=True)),
            lengths_of_all=lengths,
            starts_of_all=starts,
            stops_of_all=stops,
        )

    def fingerprint(self) -> str:
        """A hash by which the same sequences are known again."""
        digest = hashlib.sha256(repr(self.marks).encode())
        for array in (self.lengths, self.starts, self.stops, self.hashes):
            contiguous = np.ascontiguousarray(array)
            digest.update(contiguous.data)
        return digest.hexdigest()[:32]

    # ------------------------------------------------------------------ events

    def pieces_in_use(self) -> list[Chunk]:
        """The chunks that hold a sequence of this object."""
        before = offsets_of(self.kept)
        return [one for one in self.pieces if before[one.end] > before[one.begin]]

    def chunks(self, pieces: Iterable[Chunk] | None = None) -> Iterator[Dataset]:
        """Data sets of whole sequences, a chunk each; sequences that are read in parts are left
        to :meth:`parts_of`.
        """
        if pieces is None:
            pieces = self.pieces_in_use()
        for piece in pieces:
            if piece.whole:
                yield self.chunk(piece)

    def chunk(self, piece: Chunk) -> Dataset:
        """The sequences of this object in a chunk of whole sequences."""
        data = self._read(piece.first, piece.last)
        kept = self.kept[piece.begin : piece.end]
        if kept.all():
            return data
        return data.select(np.flatnonzero(kept))

    def alone(self, piece: Chunk) -> EventFiles:
        """The same files with the index of one chunk only, which travels to other processes."""
        own = slice(piece.begin, piece.end)
        splits = self.splits_of_all
        if splits is not None:
            splits = splits[own]
        return replace(
            self,
            pieces=(replace(piece, begin=0, end=piece.end - piece.begin),),
            lengths_of_all=self.lengths_of_all[own],
            starts_of_all=self.starts_of_all[own],
            stops_of_all=self.stops_of_all[own],
            hashes_of_all=self.hashes_of_all[own],
            splits_of_all=splits,
            kept=self.kept[own],
        )

    def long_sequences(self) -> list[list[Chunk]]:
        """For each sequence that is read in parts, its parts in order."""
        found: dict[int, list[Chunk]] = {}
        for piece in self.pieces_in_use():
            if not piece.whole:
                found.setdefault(piece.begin, []).append(piece)
        return list(found.values())

    def part_of(self, piece: Chunk, history: int = 0) -> Dataset:
        """A part of a long sequence, observed from the event before it to its last event; the last
        part to the end of the window.

        With a ``history`` so many events before it are there too, as a history period.
        """
        past = 0
        start = float(self.starts_of_all[piece.begin])
        if not piece.opens:
            past = min(history, piece.first - self._first_row(piece) - 1)
            start = piece.before
        earlier = past + 1 if past else 0
        data = self._read(piece.first - earlier, piece.last)
        stop = float(data.times[-1])
        if piece.closes:
            stop = float(self.stops_of_all[piece.begin])
        context = data.context
        if past:
            scored_from = np.nextafter(piece.before, np.inf)
            context = replace(context or Context(), scored_from=np.array([scored_from]))
            start = float(data.times[0])
            data = _without_first(data)
        latest = max(stop, np.nextafter(start, np.inf))
        return replace(
            data,
            starts=np.array([start]),
            stops=np.array([latest]),
            inferred=True,
            context=context,
        )

    def load(self) -> Dataset:
        """All events, in memory."""
        return joined(list(self.chunks()))

    def sample(self, events: int, seed: int) -> Dataset:
        """Sequences drawn at random with about ``events`` events, in memory; of a sequence that is
        read in parts its beginning.
        """
        order = np.random.default_rng(seed).permutation(len(self))
        drawn = np.cumsum(self.lengths[order])
        enough = int(np.searchsorted(drawn, events)) + 1
        chosen = self.select(order[:enough])
        found = list(chosen.chunks())
        left = events - sum(part.events for part in found)
        for pieces in chosen.long_sequences():
            wanted = max(1, left // LONG) if found else 1
            for piece in pieces[:wanted]:
                found.append(self.part_of(piece, REMEMBERED))
        return joined(found)

    def trained_on(self, dev: Dataset | EventFiles) -> TrainedOn:
        """The fingerprints of training and development data, for the model."""
        of_train = self.hashes[self.hashes > 0]
        if isinstance(dev, EventFiles):
            of_dev = dev.hashes[dev.hashes > 0]
        else:
            of_dev = sequence_hashes(dev)
        return TrainedOn(np.unique(of_train), np.unique(of_dev))

    def _in_training(self, model: PointProcess) -> NDArray[np.bool_]:
        """Which sequences were in the training data of ``model``."""
        known = model.trained_on
        hashes = self.hashes
        if known is None:
            return np.zeros(len(self), dtype=bool)
        return np.isin(hashes, known.train) & (hashes > 0)

    def overlap(self, model: PointProcess) -> Overlap | None:
        """How much of the files the model was trained on; None where that is nothing, or is not
        known.
        """
        seen = self._in_training(model)
        if not seen.any():
            return None
        sequences = int(seen.sum())
        events = int(self.lengths[seen].sum())
        return Overlap(sequences, events, len(self), self.events)

    def held_out(self, model: PointProcess) -> EventFiles | None:
        """The sequences that were not in training; None unless others were."""
        seen = self._in_training(model)
        if not seen.any() or seen.all():
            return None
        return self.select(np.flatnonzero(~seen))

    def _first_row(self, piece: Chunk) -> int:
        for one in self.pieces:
            if one.begin == piece.begin and one.opens:
                return one.first
        return piece.first - LONG  # parts before are not among those in use

    def _read(self, first: int, last: int) -> Dataset:
        reading = read_rows(self.store, first, last, self.roles, self.asked)
        return in_frame(reading.data, self.frame)


def joined(parts: Ordered[Dataset]) -> Dataset:
    """Several data sets of one kind as one.

    >>> from fourpoint.data.synthetic import simulate
    >>> both = joined([simulate("hawkes", 2, seed=0), simulate("hawkes", 3, seed=1)])
    >>> len(both), int(both.lengths.sum()) == both.events
    (5, True)
    """
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise UserError("at least one sequence", "none", "Check the split and the source.")
    ids = [id for part in parts for id in part.ids]
    if len(set(ids)) < len(ids):
        ids = [str(i) for i in range(len(ids))]
    return replace(
        parts[0],
        times=np.concatenate([part.times for part in parts]),
        mark_ids=np.concatenate([part.mark_ids for part in parts]),
        offsets=offsets_of(np.concatenate([part.lengths for part in parts])),
        starts=np.concatenate([part.starts for part in parts]),
        stops=np.concatenate([part.stops for part in parts]),
        ids=tuple(ids),
        splits=_end_to_end([part.splits for part in parts]),
        inferred=any(part.inferred for part in parts),
        places=_end_to_end([part.places for part in parts]),
        features=_end_to_end([part.features for part in parts]),
        context=Context.join([part.context for part in parts]),
    )


def _end_to_end(arrays: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    """The arrays of all parts, or None where parts have none."""
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays):
        return None
    return np.concatenate(known)


def _without_first(data: Dataset) -> Dataset:
    """A single sequence without its first event."""
    later = slice(1, None)
    return replace(
        data,
        times=data.times[later],
        mark_ids=data.mark_ids[later],
        offsets=np.array([0, data.events - 1]),
        places=known_rows(data.places, later),
        features=known_rows(data.features, later),
    )


def in_frame(data: Dataset, frame: tuple[float, float] | None) -> Dataset:
    """The data observed in the window that all sequences of the files share."""
    if frame is None:
        return data
    start, stop = frame
    starts = np.full(len(data), start)
    stops = np.full(len(data), stop)
    return replace(data, starts=starts, stops=stops, inferred=True)


class Shared(NamedTuple):
    """What all chunks of files share: the columns, how they are read, and the window of every
    sequence, where they share one.
    """

    roles: Roles
    asked: Asked
    frame: tuple[float, float] | None
    notes: tuple[str, ...]

    def columns(self, store: Store) -> list[str]:
        """All columns that have to be read."""
        names = list(self.roles.columns())
        for extras in (self.asked.sequence_covariates, self.asked.event_features):
            names += [name for name in listed(extras) if name in store.schema.names]
        return list(dict.fromkeys(names))


def columns_of_files(store: Store, asked: Asked) -> Shared:
    """Choose columns, and find the types, the unit of time and the shared window of all files."""
    scanning = _Scanning(store, asked)
    scanning.settle_columns()
    roles = scanning.roles
    notes: tuple[str, ...] = ()
    if roles.guessed and not roles.own:
        notes = (roles.line(),)
    return Shared(roles, scanning.asked, scanning.frame, notes)


def read_files(source: str | Path, asked: Asked = GUESS) -> Reading:
    """All events of a folder or URL in memory, as `readers.read_with_notes` reads a file.

    Rows may be in any order. Files of our own keep what each says of its windows.
    """
    store = Store.open(str(source))
    table = with_joined_columns(store.whole())
    roles = choose_roles(table, asked.time, asked.mark, asked.sequence, asked.place)
    if not roles.own or len(store.paths) == 1 or not _have_windows(store):
        return read_opened(table, roles, asked)
    parts = []
    for first, last in store.bounds():
        parts.append(read_rows(store, first, last, roles, asked))
    data = joined([part.data for part in parts])
    return replace(parts[0], data=data)


def read_rows(store: Store, first: int, last: int, roles: Roles, asked: Asked) -> Reading:
    """Rows ``first`` to ``last`` of files as the readers read them. Those of a whole file of our
    own carry what it says of its windows.
    """
    opened = store.opened(first, last, store.path_of(first))
    return read_opened(opened, roles, asked)


def _have_windows(store: Store) -> bool:
    """Whether every file is one of ours that describes its windows."""
    numbers = range(len(store.paths))
    return all(WINDOWS in store.metadata(number) for number in numbers)


def _check_asked(asked: Asked) -> None:
    """Refuse options that need all events at once."""
    if asked.timezone is not None:
        check_zone(asked.timezone)
    options = [name for name in BESIDE if getattr(asked, name) is not None]
    if asked.ties != "keep":
        options.append("ties")
    if asked.sequence in ("hour", "day", "week"):
        options.append(f"sequence={asked.sequence}")
    if options:
        raise UserError(
            "files that are read chunk by chunk with columns of their own only",
            f"the option {', '.join(options)}",
            f"Leave it out, prepare the files once with `{PARTITION}`, or read fewer into memory.",
        )


def _check_window(columns: SequenceColumns, asked: Asked) -> None:
    """Refuse a window that names columns: chunks have a window in common, or each row its own."""
    if isinstance(asked.window, tuple) and any(map(columns.named, asked.window)):
        raise UserError(
            "a window of two numbers or times, for files that are read chunk by chunk",
            f"the columns {', '.join(map(str, asked.window))}",
            "Call the columns start and stop in the files, and leave out window= (--window).",
        )


# ---------------------------------------------------------------------- the first pass


class _Scanning:
    """The pass through all files that makes the index."""

    def __init__(self, store: Store, asked: Asked) -> None:
        self.store = store
        first = store.opened(0, min(store.rows, HEAD), store.paths[0])
        whole = replace(first, schema=store.schema)
        self.roles = choose_roles(
            whole, asked.time, asked.mark, asked.sequence, asked.place, complete=False
        )
        if parts_of(store.schema.names, self.roles.time) is not None:
            raise UserError(
                "one column of times, for files that are read chunk by chunk",
                f"the columns {self.roles.time.replace('+', ' and ')}",
                "Join them into one column of timestamps when the files are written.",
            )
        _check_window(SequenceColumns(whole), asked)
        # A head of the table decides what columns are; their names are fixed from then on.
        self.asked = asked
        self.frame: tuple[float, float] | None = None
        self.pieces: list[Chunk] = []
        self.found: list[tuple[NDArray[Any], ...]] = []
        self.splits: list[NDArray[np.str_]] = []
        self.ids: list[NDArray[np.uint64]] = []
        self.marks: MarkSpace | None = None
        self.first: Reading | None = None
        self.sequences = 0
        self.own = self.roles.own and _have_windows(store)

    def run(self) -> EventFiles:
        store = self.store
        if not store.rows and not self.own:
            raise EventDataError(
                "at least one event",
                f"{store.source}: files without rows",
                "Check the query or program that wrote them.",
            )
        with progress(Path(store.source).name, store.rows) as advance:
            if self.own:
                for first, last in store.bounds():
                    self._add(first, last)
                    if advance is not None:
                        advance(last - first)
            else:
                self.settle_columns()
                self._walk(advance)
        columns = zip(*self.found, strict=True)
        lengths, starts, stops, hashes = (np.concatenate(column) for column in columns)
        self._check_distinct()
        assert self.first is not None  # there is at least one chunk
        known = self.first.data
        files = EventFiles(
            store=store,
            roles=self.roles,
            asked=self.asked,
            pieces=tuple(self.pieces),
            lengths_of_all=lengths,
            starts_of_all=starts,
            stops_of_all=stops,
            hashes_of_all=hashes,
            splits_of_all=np.concatenate(self.splits) if self.splits else None,
            kept=np.ones(len(lengths), dtype=bool),
            marks=known.marks,
            unit=known.unit,
            name=known.name,
            log=known.log,
            notes=self._notes(),
            frame=self.frame,
        )
        store.held.clear()
        return files

    def _notes(self) -> tuple[str, ...]:
        assert self.first is not None  # as above
        paths = len(self.store.paths)
        plural = "s" if paths != 1 else ""
        notes = [f"{self.store.source}: {paths:,} Parquet file{plural}, read chunk by chunk"]
        if not self.roles.own:
            notes += [note for note in self.first.notes if "gaps are zero" not in note]
        return tuple(notes)

    # ------------------------------------------------------------------ what all chunks share

    def settle_columns(self) -> None:
        """Fix what a chunk alone would not tell: the names of types, the unit of time, and the
        window from the first event of all to the last.
        """
        time = self.roles.time
        mark = self.roles.mark
        wanted = [time]
        if mark is not None and self.asked.marks is None:
            wanted.append(mark)
        types: list[pa.Array] = []
        edges: list[Any] = []
        for number in range(len(self.store.groups)):
            table = self.store.group(number, wanted)
            times = table[time]
            edges.append(pc.min(times).as_py())
            edges.append(pc.max(times).as_py())
            if mark in wanted[1:]:
                own = pc.unique(table[mark]).drop_null()
                types = [pc.unique(pa.concat_arrays([*types, own]))]
        known = [edge for edge in edges if edge is not None]
        if types:
            self._settle_marks(types[0])
        if known:
            kind = self.store.schema.field(time).type
            self._settle_clock(pa.array([min(known), max(known)], kind))

    def _settle_marks(self, types: pa.Array) -> None:
        """Types as the readers order them: words by the alphabet, numbers by their size."""
        if pa.types.is_dictionary(types.type):
            types = types.dictionary_decode()
        values = types.to_pylist()
        if pa.types.is_integer(types.type):
            values = sorted(values)
            if self.roles.own or values == list(range(len(values))):
                high = max(values, default=0)
                if high == 0 and min(values, default=0) == 0:
                    return
                self.asked = replace(self.asked, marks=tuple(map(str, range(high + 1))))
                return
        elif all(isinstance(value, str) for value in values):
            values = sorted(values)
        else:
            return
        self.asked = replace(self.asked, marks=tuple(map(str, values)))

    def _settle_clock(self, edges: pa.Array) -> None:
        """The unit of time and the shared window, where times are timestamps."""
        time = self.roles.time
        table = pa.table({time: edges})
        asked = replace(self.asked, time=time, mark="none", sequence="none", marks=None, place=None)
        asked = replace(asked, sequence_covariates=(), event_features=())
        roles = replace(self.roles, mark=None, sequence=None, split=None, window=None, places=())
        opened = Table(
            self.store.source,
            "",
            table.schema,
            table.select,
            table.select,
            row_number,
        )
        reading = read_opened(opened, roles, asked)
        log = reading.data.log
        if reading.clock is None or log is None:
            return
        noon = self.asked.known_noon
        if noon is None:
            noon = log.noon
        self.asked = replace(
            self.asked,
            time_unit=reading.data.unit,
            known_zone=self.asked.known_zone or log.zone,
            known_origin=self.asked.known_origin or log.origin,
            known_noon=noon,
        )
        if self.asked.window is None and self.roles.window is None:
            start = float(reading.data.starts[0])
            stop = float(reading.data.stops[0])
            self.frame = start, stop

    # ------------------------------------------------------------------ chunks

    def _walk(self, advance: Any) -> None:
        """Cut the rows into chunks of whole sequences, and parts of long ones."""
        store = self.store
        begin = 0
        open_part = False
        last_group = len(store.groups) - 1
        for number in range(len(store.groups)):
            start = int(store.offsets[number])
            end = int(store.offsets[number + 1])
            is_last = number == last_group
            if advance is not None:
                advance(end - start)
            if not is_last and end - begin < CHUNK:
                continue
            if open_part:
                finish = self._end_of_open(begin, end)
                done = finish < end or is_last
                self._add_part(begin, finish, opens=False, closes=done)
                open_part = not done
                begin = finish
                if not done or begin == end:
                    continue
            cut = end if is_last else self._last_sequence(begin, end)
            if cut > begin:
                self._add(begin, cut)
                begin = cut
            elif end - begin >= LONG:
                self._add_part(begin, end, opens=True, closes=False)
                begin = end
                open_part = True
        if begin < store.rows:
            self._add(begin, store.rows)
        if open_part:
            self._close_last()

    def _last_sequence(self, begin: int, end: int) -> int:
        """The first of the rows at the end that belong to one sequence."""
        name = self.roles.sequence
        if name is None:
            return begin
        column = self.store.table(begin, end, [name])[name]
        same = pc.equal(column, column[-1]).to_numpy().astype(bool)
        other = np.flatnonzero(~same)
        if not len(other):
            return begin
        return begin + int(other[-1]) + 1

    def _end_of_open(self, begin: int, end: int) -> int:
        """Where the sequence ends that was open before row ``begin``."""
        name = self.roles.sequence
        if name is None:
            return end
        column = self.store.table(begin - 1, end, [name])[name]
        same = pc.equal(column, column[0]).to_numpy().astype(bool)
        if same.all():
            return end
        return begin - 1 + int(np.argmin(same))

    def _add(self, first: int, last: int) -> None:
        """A chunk of whole sequences."""
        data = self._read(first, last)
        count = len(data)
        begin = self.sequences
        self.pieces.append(Chunk(first, last, begin, begin + count))
        hashes = np.zeros(count, dtype=np.uint64)
        hashes[data.lengths > 0] = sequence_hashes(data)
        self._add_sequences(data, hashes)

    def _read(self, first: int, last: int) -> Dataset:
        """Rows of the files, which must be like the first ones."""
        reading = read_rows(self.store, first, last, self.roles, self.asked)
        self._check_like_first(reading, first)
        return in_frame(reading.data, self.frame)

    def _add_sequences(self, data: Dataset, hashes: NDArray[np.uint64]) -> None:
        """Put the sequences of a chunk into the index."""
        self.found.append((data.lengths, data.starts, data.stops, hashes))
        if data.splits is not None:
            self.splits.append(data.splits)
        self.ids.append(_id_hashes(data.ids))
        self.sequences += len(data)

    def _add_part(self, first: int, last: int, *, opens: bool, closes: bool) -> None:
        """A part of a long sequence."""
        if first >= last:
            self._close_last()
            return
        data = self._read(first, last)
        number = self.sequences
        if opens:
            self.pieces.append(Chunk(first, last, number, number + 1, opens=True, closes=closes))
            self._add_sequences(data, np.zeros(1, dtype=np.uint64))
            self.latest = float(data.times[-1])
            return
        if float(data.times[0]) < self.latest:
            raise EventDataError(
                "times in order within a sequence",
                f"{self.store.path_of(first)}: {data.times[0]:g} after {self.latest:g}",
                f"Regroup the rows: {PARTITION}.",
            )
        piece = Chunk(
            first,
            last,
            begin=number - 1,
            end=number,
            opens=False,
            closes=closes,
            before=self.latest,
        )
        self.pieces.append(piece)
        lengths, starts, stops, hashes = self.found[-1]
        later = stops if self.frame is not None else data.stops
        self.found[-1] = (lengths + data.lengths, starts, np.maximum(stops, later), hashes)
        self.latest = float(data.times[-1])

    def _close_last(self) -> None:
        last = self.pieces[-1]
        self.pieces[-1] = replace(last, closes=True)

    # ------------------------------------------------------------------ checks

    def _check_like_first(self, reading: Reading, row: int) -> None:
        """Refuse files with other types, units or extras than the first."""
        if self.first is None:
            self.first = reading
            return
        data = reading.data
        known = self.first.data
        for what, own, wanted in (
            ("types", data.marks, known.marks),
            ("unit of time", data.unit, known.unit),
            ("event features", data.feature_names, known.feature_names),
            ("splits, or none", data.splits is None, known.splits is None),
        ):
            if own != wanted:
                raise EventDataError(
                    f"the same {what} in all files, {wanted}",
                    f"{self.store.path_of(row)}: {own}",
                    f"Write them alike, or once again with `{PARTITION}`.",
                )

    def _check_distinct(self) -> None:
        """Refuse a sequence that appears in two chunks."""
        ids = np.concatenate(self.ids)
        order = np.argsort(ids, kind="stable")
        same = np.flatnonzero(np.diff(ids[order].view(np.int64)) == 0)
        if not len(same):
            return
        i = int(same[0])
        first, second = sorted(order[i : i + 2].tolist())
        before = self._chunk_of(first)
        again = self._chunk_of(second)
        data = read_rows(self.store, again.first, again.last, self.roles, self.asked).data
        id = data.ids[second - again.begin]
        path = self.store.path_of(before.first)
        other = self.store.path_of(again.first)
        where = f"twice in {path}"
        if other != path:
            where = f"in {path} and again in {other}"
        raise EventDataError(
            "the rows of a sequence next to each other",
            f"sequence {id!r} {where}",
            f"Regroup them once: {PARTITION}.",
        )

    def _chunk_of(self, sequence: int) -> Chunk:
        return next(one for one in self.pieces if one.begin <= sequence < one.end)


def _id_hashes(ids: Iterable[str]) -> NDArray[np.uint64]:
    digests = []
    for id in ids:
        text = id.encode("utf-8", "surrogatepass")
        digests.append(hashlib.blake2b(text, digest_size=8).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
