r"""Where the steps of a fit take their sequences from: data in memory, or Parquet files.

A source names the sequences of every step. It depends on (seed, epoch) alone, so that a resumed
run, and every process of a parallel one, takes the same steps. In memory all sequences are
shuffled. Files are read in an order that is drawn for each epoch; as many chunks as fit into a
buffer are in memory together and are shuffled with each other:

    chunks in random order -> buffer -> batches of like length in random order -> steps

What an epoch takes from the files is known from their index, before anything is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.event_files import BUFFER, Chunk, EventFiles, joined
from fourpoint.events import Batch, Context, Dataset
from fourpoint.events.batching import group_by_length, pad
from fourpoint.events.windows import cut_long, repeated_windows

Integers = NDArray[np.int64]
LONG = 4096  # events; a sequence with more is cut into pieces
PIECE = 1024  # events of a piece
HISTORY = 256  # events before a piece that condition it
PADDED = 131072  # slots of a batch


class Selected(NamedTuple):
    """The sequences of a step: ``rows`` of ``data``, with so many scored events."""

    data: Dataset
    rows: Integers
    scored: int

    @property
    def lengths(self) -> Integers:
        """Events of each."""
        offsets = self.data.offsets
        return offsets[self.rows + 1] - offsets[self.rows]

    def batch(self, places: Integers) -> Batch:
        """Some of these sequences, padded to the length of the longest of all."""
        longest = int(self.lengths.max(initial=0))
        return pad(self.data, self.rows[places], longest)


class Source(Protocol):
    """Sequences for every step of a run."""

    per_epoch: int  # steps
    mean_events: float  # scored events of a sequence

    def at(self, step: int) -> Selected:
        """The sequences of a step; epochs are reshuffled, each from its own seed."""


def cut_into_pieces(train: Dataset, *, with_history: bool) -> Dataset:
    """What steps are taken on: the data, with very long sequences cut into pieces that have the
    events before them as history.

    Windows that repeat each other stay whole, since a model may have curves of the time since their
    start. On a CUDA device pieces have no history, since the kernels there score all of a piece.
    """
    longest = int(train.lengths.max(initial=0))
    if longest <= LONG or repeated_windows(train):
        return train
    return cut_long(train, PIECE, history=HISTORY if with_history else 0)


class InMemory:
    """Steps from a data set."""

    def __init__(self, data: Dataset, batch_size: int, mixed: bool, seed: int) -> None:
        self.data = data
        self.batch_size = batch_size
        self.mixed = mixed
        self.seed = seed
        self.scored_lengths = data.scored_lengths
        self.per_epoch = len(data.batches(batch_size, seed=0, mixed=mixed))
        self.mean_events = max(1.0, data.scored_events / max(1, len(data)))
        self._epoch = -1
        self._batches: list[Integers] = []

    def rows(self, step: int) -> Integers:
        """The numbers of the sequences of a step."""
        epoch, position = divmod(step, self.per_epoch)
        if self._epoch != epoch:
            seed = _seed_of_epoch(self.seed, epoch)
            self._batches = self.data.batches(self.batch_size, seed=seed, mixed=self.mixed)
            self._epoch = epoch
        return self._batches[position % len(self._batches)]

    def at(self, step: int) -> Selected:
        rows = self.rows(step)
        return Selected(self.data, rows, int(self.scored_lengths[rows].sum()))


def _seed_of_epoch(seed: int, epoch: int) -> int:
    return seed * 1_000_003 + epoch


class Streamed:
    """Steps from Parquet files, of which at most ``buffer`` events are in memory, or one chunk if
    that has more.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fourpoint.data.event_files import scan
    >>> from fourpoint.data.readers import write
    >>> from fourpoint.data.synthetic import simulate
    >>> file = Path(tempfile.mkdtemp()) / "events.parquet"
    >>> write(simulate("hawkes", 10), file)
    >>> steps = Streamed(scan(file), seed=0).prepare(batch_size=4, mixed=False)
    >>> steps.per_epoch, sorted(steps.at(0).rows.tolist() + steps.at(1).rows.tolist())[:1]
    (3, [...])
    """

    def __init__(
        self, files: EventFiles, *, seed: int, buffer: int = BUFFER, with_history: bool = True
    ) -> None:
        self.files = files
        self.seed = seed
        self.buffer = buffer
        self.history = HISTORY if with_history else 0
        self.chunks = files.pieces_in_use()
        long = int(files.lengths.max(initial=0)) > LONG
        in_parts = any(not chunk.whole for chunk in self.chunks)
        self.cut = in_parts or (long and not files.repeated_windows)
        self.lengths = [self._lengths(chunk) for chunk in self.chunks]
        self.longest = max((int(own.max(initial=0)) for own in self.lengths), default=0)
        self.mean_events = max(1.0, files.scored_events / max(1, len(self)))
        self.batch_size = 1
        self.mixed = False
        self.per_epoch = 0
        self._epoch = -1
        self._buffers: list[tuple[int, ...]] = []
        self._steps: list[tuple[int, Integers]] = []
        self._held: tuple[int, ...] = ()  # the chunks of the buffer in memory
        self._buffer: Dataset | None = None
        self._scored_lengths: Integers = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return sum(map(len, self.lengths))

    @property
    def scored_events(self) -> int:
        """Events that an epoch scores."""
        return self.files.scored_events

    def prepare(self, batch_size: int, mixed: bool) -> Streamed:
        """The same, with so many sequences in a step."""
        self.batch_size = batch_size
        self.mixed = mixed
        _, steps = self._plan(0)
        self.per_epoch = len(steps)
        return self

    def at(self, step: int) -> Selected:
        epoch, position = divmod(step, self.per_epoch)
        if self._epoch != epoch:
            self._epoch = epoch
            self._buffers, self._steps = self._plan(epoch)
        number, rows = self._steps[position % len(self._steps)]
        data = self._data(self._buffers[number])
        scored = self._scored_lengths[rows]
        return Selected(data, rows, int(scored.sum()))

    def _plan(self, epoch: int) -> tuple[list[tuple[int, ...]], list[tuple[int, Integers]]]:
        """The chunks of each buffer, and for every step its buffer and rows in it."""
        seed = _seed_of_epoch(self.seed, epoch)
        order = np.random.default_rng(seed).permutation(len(self.chunks))
        buffers: list[list[int]] = []
        held = self.buffer
        for chunk in order.tolist():
            size = int(self.lengths[chunk].sum())
            if held + size > self.buffer:
                buffers.append([])
                held = 0
            buffers[-1].append(chunk)
            held += size
        steps = []
        for number, chunks in enumerate(buffers):
            batches = group_by_length(
                np.concatenate([self.lengths[chunk] for chunk in chunks]),
                self.batch_size,
                PADDED,
                seed + 7919 * number,
                self.mixed,
            )
            for rows in batches:
                steps.append((number, rows))
        return [tuple(chunks) for chunks in buffers], steps

    def _data(self, chunks: tuple[int, ...]) -> Dataset:
        """The sequences of a buffer."""
        data = self._buffer
        if data is None or self._held != chunks:
            data = self._buffer = None  # the old buffer goes before the new one comes
            data = joined([self._load(self.chunks[one]) for one in chunks])
            self._buffer = data
            self._held = chunks
            self._scored_lengths = data.scored_lengths
        return data

    def _load(self, chunk: Chunk) -> Dataset:
        """The sequences of a chunk, long ones in pieces."""
        if chunk.whole:
            data = self.files.chunk(chunk)
        else:
            data = self.files.part_of(chunk, self.history)
        if not self.cut:
            return data
        pieces = cut_long(data, PIECE, history=self.history)
        return _with_scored_from(pieces)

    def _lengths(self, chunk: Chunk) -> Integers:
        """Events of the sequences of a chunk, which is read only if some of them are cut."""
        own = slice(chunk.begin, chunk.end)
        kept = self.files.kept[own]
        lengths = self.files.lengths_of_all[own][kept]
        if not self.cut:
            return lengths
        longest = int(lengths.max(initial=0))
        if chunk.whole and longest <= PIECE:
            return lengths
        return self._load(chunk).lengths


def _with_scored_from(data: Dataset) -> Dataset:
    """Pieces with and without a history period are joined only if all of them say where scoring
    begins.
    """
    context = data.context or Context()
    if context.scored_from is not None:
        return data
    context = replace(context, scored_from=data.starts.copy())
    return replace(data, context=context)
