"""SNAP's MemeTracker: each meme a sequence, each post that mentions it an event.

Reads the raw months ``quotes_*.txt.gz``, where a meme is a phrase word for word, and the file of
phrase clusters, where it is a cluster of variants. Times are hours since the meme's first mention.
The collection went on after a meme's last mention, and
that silence is evidence: a window ends where the collection does, at the last post of the files
that were read
(``window="mentions"`` ends it at the meme's last mention instead). The paper samples 22,003 memes
of 24 mentions on average.

Where the files come from and under which terms: docs/sources/memetracker.md. Their format:
``memes.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fourpoint.data.sources.memes import NEVER, WHAT, Mentions, mentions
from fourpoint.data.sources.sheets import grouped, named
from fourpoint.events import Dataset, EventDataError, MarkSpace, UserError

Mark = Literal["none", "site", "media"]
Window = Literal["collection", "mentions"]
MEDIA = {"B": "blog", "M": "mainstream media"}


def read(
    path: str | Path,
    /,
    *,
    mark: Mark = "none",
    least: int = 2,
    types: int = 50,
    sample: int = 0,
    seed: int = 0,
    window: Window = "collection",
    skip: bool = False,
) -> tuple[Dataset, list[str]]:
    """Read one file, or a folder or pattern of months (``quotes_*.txt.gz``), plain or gzip.

    Args:
        path: the file, folder or pattern. A meme that goes on into the next month goes on here if
        that file is read too.
        mark: "none" (as in the paper), "site" (where the post stands) or, for clusters, "media"
        (blog or mainstream media).
        least: memes with fewer mentions are left out, and counted.
        types: with "site", how many of the most frequent are kept apart; the rest are "other".
        sample: draw this many memes with ``seed``; 0 keeps all.
        seed: of the draw.
        window: "collection" ends windows at the last post of the files, "mentions" at the meme's
        last mention.
        skip: pass over lines that are not in the format, and count them, instead of refusing them.

    Returns: The memes in order of their first appearance, in hours, and what should be said. Fails
        with :class:`EventDataError` that names the file and the line.
    """
    _check(mark, window, least, types, sample)
    found = _gather(_files(Path(path)), mark, skip)
    if not len(found.codes):
        raise EventDataError(
            WHAT, f"{path}: no mention of any phrase", "Check that it is such a file."
        )
    kept, notes = _chosen(found, least, sample, seed, path)
    rows = np.flatnonzero(np.isin(found.codes, kept))
    code, seconds = np.searchsorted(kept, found.codes[rows]), found.seconds[rows]
    first = np.full(len(kept), np.iinfo(np.int64).max)
    np.minimum.at(first, code, seconds)
    times = (seconds - first[code]) / 3600
    order, offsets, _ = grouped(code, times, len(kept))
    marks, space = _marks(found, mark, types, rows)
    last = times[order][offsets[1:] - 1]
    data = Dataset(
        times[order],
        marks[order],
        offsets,
        np.zeros(len(kept)),
        # Stamps are whole seconds, so that the collection saw its last second to the end.
        (found.latest + 1 - first) / 3600
        if window == "collection"
        else np.where(last > 0, last, 1.0),
        space,
        ids=_names(found, kept),
        inferred=window == "mentions",
        unit="hours",
        name="memetracker",
    )
    end = (
        ""
        if window == "mentions"
        else "; windows end with the last post of the files (--set window=mentions)"
    )
    return data, [*notes, f"hours since each meme's first mention, which is an event at 0{end}"]


@dataclass(frozen=True)
class _Found:
    """All mentions of all files: memes by number, with their names, and what the mark is made
    of.
    """

    codes: NDArray[np.int64]
    names: pa.Array
    seconds: NDArray[np.int64]
    labels: pa.ChunkedArray | None
    latest: int
    repeats: int
    skipped: int


def _check(mark: str, window: str, least: int, types: int, sample: int) -> None:
    for what, value, known in (
        ("mark", mark, get_args(Mark)),
        ("window", window, get_args(Window)),
    ):
        if value not in known:
            raise UserError(f"{what} {', '.join(known)}", f"{value!r}", "Use one of them.")
    if least < 1 or types < 1 or sample < 0:
        raise UserError(
            "least and types from 1, sample from 0", f"{least}, {types}, {sample}", "Raise them."
        )


def _files(source: Path) -> list[Path]:
    if not source.is_dir() and "*" not in source.name:
        return [source]
    found = sorted(source.glob("quotes_*") if source.is_dir() else source.parent.glob(source.name))
    if not found:
        raise EventDataError(
            "files such as quotes_2008-08.txt.gz", f"{source}, which holds none", "Check the path."
        )
    return found


def _gather(files: list[Path], mark: Mark, skip: bool) -> _Found:
    parts: list[Mentions] = [part for file in files for part in mentions(file, skip)]
    if mark == "media" and any(part.media is None for part in parts):
        raise UserError(
            "a file of phrase clusters for mark=media",
            "raw posts, which do not say",
            "Use mark=site.",
        )
    memes = pa.chunked_array([part.memes for part in parts]).unify_dictionaries() if parts else None
    chunks = memes.chunks if memes is not None else []
    labels = (
        None
        if mark == "none"
        else pa.chunked_array([part.sites if mark == "site" else part.media for part in parts])
    )
    return _Found(
        np.concatenate(
            [np.zeros(0, dtype=np.int64), *(np.asarray(chunk.indices) for chunk in chunks)]
        ).astype(np.int64),
        chunks[0].dictionary if chunks else pa.array([], pa.large_string()),
        np.concatenate([np.zeros(0, dtype=np.int64), *(part.seconds for part in parts)]),
        labels,
        max((part.latest for part in parts), default=NEVER),
        sum(part.repeats for part in parts),
        sum(part.skipped for part in parts),
    )


def _chosen(
    found: _Found, least: int, sample: int, seed: int, path: str | Path
) -> tuple[NDArray[np.int64], list[str]]:
    """The memes to keep, and what was left out."""
    counts = np.bincount(found.codes, minlength=len(found.names))
    memes, kept = int((counts > 0).sum()), np.flatnonzero(counts >= least)
    if not len(kept):
        raise EventDataError(
            f"memes with at least {least} mentions",
            f"{path}: {memes:,} with at most {counts.max()}",
            "Lower least.",
        )
    notes = (
        [f"{found.repeats:,} mentions repeat a meme in one post and count once"]
        if found.repeats
        else []
    )
    if found.skipped:
        notes.append(f"{found.skipped:,} lines are not in the format and were passed over")
    notes.append(
        f"{len(kept):,} of {memes:,} memes have at least {least} mentions; the others are "
        "left out (--set least=N)"
    )
    if 0 < sample < len(kept):
        kept = np.sort(np.random.default_rng(seed).choice(kept, sample, replace=False))
        notes.append(f"{sample:,} of them are drawn with seed {seed}")
    return kept, notes


def _marks(
    found: _Found, mark: Mark, types: int, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], MarkSpace]:
    if found.labels is None:
        return np.zeros(len(rows), dtype=np.int64), MarkSpace()
    texts = found.labels.cast(pa.large_string()).combine_chunks().take(pa.array(rows))
    if mark == "site":
        return named(texts, types)
    return named(pa.array([MEDIA.get(text, text) for text in texts.to_pylist()], pa.large_string()))


def _names(found: _Found, kept: NDArray[np.int64]) -> tuple[str, ...]:
    """The memes' names; bytes that are no UTF-8 are written as escapes."""
    texts = found.names.take(pa.array(kept)).cast(pa.large_binary()).to_pylist()
    return tuple(text.decode("utf-8", "backslashreplace") for text in texts)
