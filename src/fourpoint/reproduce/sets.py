"""The data of each cell: drawn from a process whose truth is known, embedded, or read from a folder
of stand-ins.

What is done to the real files is written down beside each, and kept with every record: which window
is taken, whether marks are used, and how ties are spread. The paper calls all real sets but traffic
temporal, so that only traffic has marks here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.datasets import load
from fourpoint.data.readers import read
from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, MarkSpace, UserError
from fourpoint.events.batching import offsets_of
from fourpoint.reproduce.plan import SYNTHETIC, TRANSFORMED, Setting

TEST_SEED = 1_000_003  # of the fresh sequences that all models and seeds are scored on


class NoData(UserError):
    """The file of a stand-in that was not given."""


class Parts(NamedTuple):
    """What a cell trains on, stops by and is scored on, and how it was prepared."""

    train: Dataset
    dev: Dataset
    test: Dataset
    about: str


@dataclass(frozen=True)
class Preparation:
    """How a real file is read: its window (None: from each sequence's own first or to its own last
    event), marks, ties.
    """

    window: tuple[float, float] | None
    marks: bool
    zeroed: bool
    words: str


PREPARED: dict[str, Preparation] = {
    "bookorder_w50": Preparation(
        None,
        False,
        False,
        "times only; windows of 50 events, from the event before them to the last",
    ),
    "memetracker": Preparation(
        None,
        False,
        True,
        "times only; hours since the first mention, which is given and not scored",
    ),
    "pems_congestion": Preparation(
        (0.0, 24.0), True, False, "16 freeway directions; a day is [0, 24) hours"
    ),
    "nyc_delays": Preparation((0.0, 24.0), True, False, "6 types; a day is [0, 24) hours"),
    "nyc_times": Preparation((0.0, 24.0), False, False, "times only; a day is [0, 24) hours"),
    "readmission": Preparation(
        None, False, False, "times only; days, windows end at the last visit"
    ),
    TRANSFORMED: Preparation((0.0, 2.0), False, False, "times only; window [0, 2)"),
}
EMBEDDED = {"nyc_delays": "nyc_delays", "nyc_times": "nyc_delays"}


def parts_of(name: str, setting: Setting, seed: int, folder: Path | None) -> Parts:
    """The data called ``name``; ``seed`` draws synthetic training data. Raises :class:`NoData`
    where a file is not there.
    """
    if name in SYNTHETIC:
        return _drawn(name, setting, seed)
    how = PREPARED[name]
    data = prepared(_read(name, folder), how)
    sizes = {
        "train": setting.real_train,
        "dev": setting.real_train // 4,
        "test": setting.real_test,
    }
    parts = [_some(data.part(split), size, setting.longest) for split, size in sizes.items()]
    about = how.words
    if data.tied:
        share = f"{100 * data.tied:.1f}%"
        about += f"; {share} of gaps are ties, spread evenly up to the next event"
    counts = " + ".join(f"{len(part):,}" for part in parts)
    most = max(int(part.lengths.max(initial=0)) for part in parts)
    about += f"; {counts} sequences, at most {most:,} events"
    train, dev, test = (part.with_ties("jitter", seed=0) for part in parts)
    return Parts(train, dev, test, about)


def _drawn(name: str, setting: Setting, seed: int) -> Parts:
    """Sequences of a process whose truth is known; the last tenth of them is for early stopping."""
    count = setting.sequences
    held = max(1, count // 10)
    cut = count - held
    drawn = simulate(name, count, seed=seed)
    test = simulate(name, setting.test, seed=TEST_SEED)
    about = f"{cut:,} + {held:,} sequences drawn with seed {seed}, {len(test):,} fresh ones"
    return Parts(drawn[:cut], drawn[cut:], test, about)


def prepared(data: Dataset, how: Preparation) -> Dataset:
    """``data`` with the window and the marks of ``how``; where ``zeroed``, each first event becomes
    the start and is not scored.
    """
    data = replace(data, places=None)
    if how.zeroed:
        data = _from_first(data)
    if how.window is not None:
        start, stop = how.window
        starts = np.full(len(data), start)
        stops = np.full(len(data), stop)
        data = replace(data, starts=starts, stops=stops, inferred=False)
    if how.marks:
        return replace(data, marks=MarkSpace(data.marks.names))
    unmarked = np.zeros(data.events, dtype=np.int64)
    return replace(data, mark_ids=unmarked, marks=MarkSpace())


def _read(name: str, folder: Path | None) -> Dataset:
    if name in EMBEDDED:
        return load(EMBEDDED[name])
    expected = f"the file {name}.parquet"
    remedy = "Name its folder with --real DIR."
    if folder is None:
        raise NoData(expected, "no --real", remedy)
    file = folder / f"{name}.parquet"
    if not file.is_file():
        raise NoData(expected, f"no {name}.parquet in {folder}", remedy)
    return read(file)


def _from_first(data: Dataset) -> Dataset:
    """Each sequence counted from its first event, which is the start of the window and no longer
    one of the events.
    """
    first = data.times[data.offsets[:-1]]
    last = data.times[data.offsets[1:] - 1]
    row, position = _positions(data)
    kept = position > 0
    return replace(
        data,
        times=(data.times - first[row])[kept],
        mark_ids=data.mark_ids[kept],
        offsets=data.offsets - np.arange(len(data) + 1),
        starts=np.zeros(len(data)),
        stops=last - first,
        inferred=True,
    )


def _some(data: Dataset, size: int, longest: int) -> Dataset:
    """At most ``size`` sequences (0: all), drawn with seed 0; where windows end at the last event,
    each is cut after ``longest``.
    """
    if size and len(data) > size:
        order = np.random.default_rng(0).permutation(len(data))
        data = data.select(np.sort(order[:size]))
    lengths = np.minimum(data.lengths, longest)
    if not data.inferred or not (data.lengths > longest).any():
        return data
    _, position = _positions(data)
    kept = position < longest
    times = data.times[kept]
    offsets = offsets_of(lengths)
    last = times[offsets[1:] - 1]
    stops = np.where(data.lengths > longest, last, data.stops)
    return replace(data, times=times, mark_ids=data.mark_ids[kept], offsets=offsets, stops=stops)


def _positions(data: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sequence of each event, and its place in it."""
    row = np.repeat(np.arange(len(data)), data.lengths)
    first = data.offsets[row]
    return row, np.arange(data.events) - first
