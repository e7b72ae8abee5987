"""The formats of the field, both ways: a plain dict from a name to how it is read and written.

    fourpoint   our Parquet, and any table that ``fourpoint.read`` takes
    easytpp     EasyTPP's JSON rows, and Hugging Face rows in Parquet
    pickle      the Neural Hawkes and Transformer Hawkes pickles, read without running them
    du          Du et al.'s time-*.txt and event-*.txt
    tick        tick's lists of arrays, in .npz
    hotpp       HoTPP's Parquet: id, timestamps, labels

A round trip through each keeps times to the last bit and marks to the name, because what a format
has no room for travels in an annex (``annex.py``). A writer returns, in words, what the format's
own readers will not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fourpoint.data import readers
from fourpoint.data.formats import du, easytpp, hotpp, pickles, tick
from fourpoint.data.formats.guessing import guess_source, guess_target
from fourpoint.events import Dataset, UserError

Read = Callable[[str | Path], Dataset]
Write = Callable[[Dataset, str | Path], list[str]]


def _read_own(path: str | Path) -> Dataset:
    return readers.read(path)


def _write_own(data: Dataset, path: str | Path) -> list[str]:
    readers.write(data, path)
    return []


FORMATS: dict[str, tuple[Read, Write]] = {
    "fourpoint": (_read_own, _write_own),
    "easytpp": (easytpp.read, easytpp.write),
    "pickle": (pickles.read, pickles.write),
    "du": (du.read, du.write),
    "tick": (tick.read, tick.write),
    "hotpp": (hotpp.read, hotpp.write),
}


@dataclass(frozen=True)
class Conversion:
    """What was converted: the events, the formats on either side, and what should be said aloud."""

    data: Dataset
    from_: str
    to: str
    notes: list[str]


def convert(
    source: str | Path,
    target: str | Path,
    from_: str | None = None,
    to: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Conversion:
    """Convert a file or folder of events into another format.

    Args:
        source: the file or folder to read; for Du et al.'s files also a pattern.
        target: the file or folder to write.
        from_: a name in ``FORMATS`` or ``fourpoint.data.sources.SOURCES``; guessed from the content
        where None.
        to: a name in ``FORMATS``; by the target's ending where None.
        settings: options of the source, such as ``{"mark": "site"}``; formats have none.

    Returns:
        The events and the notes to say aloud: the guess, inferred windows, ties, what was left out
        and what the target's
        own readers will not see. Fails with :class:`EventDataError` before anything is written.

    >>> import tempfile
    >>> from fourpoint.events import Sequence
    >>> folder = Path(tempfile.mkdtemp())
    >>> readers.write(
    ...     Dataset.from_sequences([Sequence([0.5, 2.0], [1, 0], start=0, stop=3)]),
    ...     folder / "a.parquet",
    ... )
    >>> convert(folder / "a.parquet", folder / "a.json").to
    'easytpp'
    >>> convert(folder / "a.json", folder / "b.parquet").data[0].stop
    3.0
    """
    from fourpoint.data.sources import SOURCES

    written = _known(to, tuple(FORMATS), "a format to write") or guess_target(Path(target))
    read = _known(from_, (*FORMATS, *SOURCES), "a format or source to read") or guess_source(
        Path(source)
    )
    notes = [] if from_ else [f"{source} is read as {read}"]
    if read in SOURCES:
        data, said = SOURCES[read](source, **(settings or {}))
        said = said + readers.describe_choices(data)
    elif settings:
        raise UserError(
            f"settings for a source ({', '.join(SOURCES)})",
            f"some for the format {read}",
            "Leave them out.",
        )
    elif read == "fourpoint":
        found = readers.read_with_notes(source)
        data, said = found.data, list(found.notes)
    else:
        data = FORMATS[read][0](source)
        said = readers.describe_choices(data)
    if data.marks.box is not None and written != "fourpoint":
        remedy = "Write a .parquet file, or drop the places with data.without_places() first."
        raise UserError(
            f"events without places, which {written} cannot hold", f"{data.marks}", remedy
        )
    notes += said + FORMATS[written][1](data, target)
    return Conversion(data, read, written, notes)


def _known(name: str | None, names: tuple[str, ...], what: str) -> str | None:
    if name is None or name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    raise UserError(
        f"{what}: {', '.join(names)}",
        f"{name!r}",
        f"Did you mean {near[0]!r}?" if near else "Choose one of them.",
    )
