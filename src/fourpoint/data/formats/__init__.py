"""The formats of the field, both ways: one table with how each is read, written and recognised.

    fourpoint   our Parquet, and any table that ``fourpoint.read`` takes
    easytpp     EasyTPP's JSON rows, and Hugging Face rows in Parquet
    pickle      the Neural Hawkes and Transformer Hawkes pickles, read without running them
    du          Du et al.'s time-*.txt and event-*.txt
    tick        tick's lists of arrays, in .npz
    hotpp       HoTPP's Parquet: id, timestamps, labels

A round trip through each keeps times to the last bit and marks to the name, because what a format
has no room for travels in an annex (``annex.py``). A writer returns, in words, what the format's
own readers will not see. To add a format, write its module and add a line to ``FORMATS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from fourpoint.data import readers
from fourpoint.data.formats import du, easytpp, hotpp, pickles, tick
from fourpoint.data.sample import Matches, Sample, sample_of
from fourpoint.events import Context, Dataset, EventDataError, UserError

Read = Callable[[str | Path], Dataset]
Write = Callable[[Dataset, str | Path], list[str]]


def _read_own(path: str | Path) -> Dataset:
    return readers.read(path)


def _write_own(data: Dataset, path: str | Path) -> list[str]:
    readers.write(data, path)
    return []


def _matches_own(sample: Sample) -> bool:
    return {"seq_id", "t"} <= sample.columns


class Format(NamedTuple):
    """How files of a format are read, written and recognised.

    ``write`` returns notes on what other readers will not see. ``targets`` are patterns of the
    names of files that are written in this format unless the user says otherwise.
    """

    read: Read
    write: Write
    matches: Matches
    targets: tuple[str, ...] = ()


# The first format that recognises a file or folder wins; Du's folders hold a JSON file too.
FORMATS: dict[str, Format] = {
    "fourpoint": Format(_read_own, _write_own, _matches_own, ("*.parquet",)),
    "du": Format(du.read, du.write, du.matches, ("time*.txt",)),
    "easytpp": Format(easytpp.read, easytpp.write, easytpp.matches, ("*.json",)),
    "pickle": Format(pickles.read, pickles.write, pickles.matches, ("*.pkl", "*.pickle")),
    "tick": Format(tick.read, tick.write, tick.matches, ("*.npz",)),
    "hotpp": Format(hotpp.read, hotpp.write, hotpp.matches),
}


def guess_source(path: Path) -> str:
    """The name of the format or source that a file, folder or pattern is in.

    A file that no other recognises is a table for the format "fourpoint", whose reader says what is
    missing. Fails with :class:`EventDataError` for a folder that none recognises.
    """
    from fourpoint.data.sources import RECOGNISED

    sample = sample_of(path)
    tests = RECOGNISED | {name: format.matches for name, format in FORMATS.items()}
    for name, matches in tests.items():
        if matches(sample):
            return name
    if sample.names is None or sample.columns:
        return "fourpoint"
    raise EventDataError(
        "a folder of event files",
        f"{path}, with {', '.join(sample.names[:5]) or 'nothing'}",
        "Say what it is with --from.",
    )


def guess_target(path: Path) -> str:
    """The name of the format to write, by the name of the file."""
    for name, format in FORMATS.items():
        if any(fnmatch(path.name.lower(), pattern) for pattern in format.targets):
            return name
    known = ", ".join(
        f"{', '.join(f.targets)} ({name})" for name, f in FORMATS.items() if f.targets
    )
    raise UserError(
        f"a target with the extension of its format: {known}",
        f"{path}",
        "Rename it, or say which with --to.",
    )


@dataclass(frozen=True)
class Conversion:
    """What was converted: the events, the formats on either side, and notes for the user."""

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
        The events and notes: the guess, inferred windows, ties, what was left out and what the
        target's own readers will not see. Fails with :class:`EventDataError` before anything is
        written.

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
        data = found.data
        said = list(found.notes)
    else:
        data = FORMATS[read].read(source)
        said = readers.describe_choices(data)
    if data.marks.box is not None and written != "fourpoint":
        remedy = "Write a .parquet file, or drop the places with data.without_places() first."
        raise UserError(
            f"events without places, which {written} cannot hold", f"{data.marks}", remedy
        )
    if written != "fourpoint":
        said = said + _lost(data, written)
    notes += said + FORMATS[written].write(data, target)
    return Conversion(data, read, written, notes)


def _lost(data: Dataset, written: str) -> list[str]:
    """What a format of the field has no room for."""
    context = data.context or Context()
    parts = {
        "event features": data.features,
        "covariates": context.covariates,
        "exposure": context.exposure,
        "dates": context.origin,
        "history periods": context.scored_from,
    }
    lost = [name for name, part in parts.items() if part is not None]
    if not lost:
        return []
    return [f"left out, since {written} cannot hold them: {', '.join(lost)}"]


def _known(name: str | None, names: tuple[str, ...], what: str) -> str | None:
    if name is None or name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    raise UserError(
        f"{what}: {', '.join(names)}",
        f"{name!r}",
        f"Did you mean {near[0]!r}?" if near else "Choose one of them.",
    )
