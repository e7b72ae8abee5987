"""The text files of Du et al.: ``time-train.txt`` and ``event-train.txt``, one sequence per line,
numbers between spaces.

    time-train.txt     0 0.2307692307692308 0.2884615384615384
    event-train.txt    2 2 12

Line by line the two files belong together. Types are numbered from 1 (from 0 if a 0 occurs), and
are called by those numbers. The files hold nothing else: windows, names, splits and ids go to
``fourpoint-train.json`` beside them, without which they are inferred, numbered and lost.

Source: Du et al., "Recurrent Marked Temporal Point Processes", 2016, and the data of
github.com/dunan/NeuralPointProcess.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import check_file, check_target, contents, write_whole
from fourpoint.data.formats.annex import Part, assemble, pack, parts_of, whole_numbers
from fourpoint.data.formats.folders import make_folder, split_of
from fourpoint.data.sample import Sample
from fourpoint.events import Dataset, EventDataError
from fourpoint.events.batching import offsets_of

WHAT = "Du et al.'s time and event files"


def matches(sample: Sample) -> bool:
    """Whether a file, folder or pattern looks like Du et al.'s text files."""
    names = sample.names
    if names is not None:
        return any(name.startswith("time") and name.endswith(".txt") for name in names)
    name = sample.path.name
    is_pair = name.startswith(("time", "event")) and name.endswith(".txt")
    return sample.is_text and is_pair


def read(path: str | Path) -> Dataset:
    """Read a pair of files by the name of either, a folder of pairs, or pairs by a pattern such as
    ``mimic2/time-1-*.txt``.

    Args:
        path: a file whose name begins with time or event, a folder, or a pattern in quotes.

    Returns: The sequences, by split in the order train, dev, test. Fails with
        :class:`EventDataError` that names file and line, and where a folder holds two pairs for one
        split (Du's five folds).
    """
    source = Path(path)
    parts = [_read_pair(times) for times in _time_files(source)]
    from_one = all(part.marks.min(initial=1) >= 1 for part in parts)
    first = 1 if from_one else 0
    return assemble([replace(part, first=first) for part in parts], source.stem)


def write(data: Dataset, path: str | Path) -> list[str]:
    """Write pairs into a folder, or one pair where the path is ``time-NAME.txt``. Times keep every
    bit; types count from 1.
    """
    target = Path(path)
    pairs = {}
    if target.suffix:
        times = _times_name(target)
        check_target(times)
        pairs[times] = data
    else:
        make_folder(target)
        for split, part in parts_of(data).items():
            pairs[target / f"time-{split or 'events'}.txt"] = part
    for times, part in pairs.items():
        lines = [_line(sequence.times.tolist()) for sequence in part]
        write_whole(times, "".join(lines).encode())
        lines = [_line((sequence.marks + 1).tolist()) for sequence in part]
        write_whole(_beside(times, "event"), "".join(lines).encode())
        write_whole(_beside(times, "fourpoint", ".json"), pack(part).encode())
    return [
        (
            "the text files hold times and numbers of types: windows, names and ids are in "
            "fourpoint-*.json beside them; move them together"
        )
    ]


def _time_files(source: Path) -> list[Path]:
    """The files of times to read, by split."""
    if "*" in source.name or "?" in source.name:
        matching = sorted(source.parent.glob(source.name))
        found = [path for path in matching if path.name.startswith("time")]
    elif source.is_dir():
        matching = sorted(source.glob("time*.txt"))
        found = [path for path in matching if _beside(path, "event").is_file()]
    else:
        return [_times_name(check_file(source, WHAT))]
    if not found:
        raise EventDataError(
            f"{WHAT}, such as time-train.txt and event-train.txt",
            f"{source}, which holds none",
            "Check the path.",
        )
    splits = [split_of(path) for path in found]
    if len(found) > 1 and (None in splits or len(set(splits)) < len(splits)):
        names = ", ".join(path.name for path in found[:6])
        if len(found) > 6:
            names += ", ..."
        remedy = "Name one of them, or a pattern such as 'time-1-*.txt' for the splits of one fold."
        raise EventDataError(f"{WHAT}: one pair per split", f"{source} with {names}", remedy)
    order = ("train", "dev", "test")
    return sorted(found, key=lambda path: order.index(split_of(path) or "train"))


def _read_pair(times_file: Path) -> Part:
    events_file = _beside(times_file, "event")
    times, offsets = numbers_by_line(times_file, "a file of times")
    marks, of_marks = numbers_by_line(events_file, "a file of event types")
    counts = np.diff(offsets)
    others = np.diff(of_marks)
    if len(counts) != len(others):
        received = f"{len(counts):,} lines in {times_file} and {len(others):,} in {events_file}"
        raise EventDataError(
            f"{WHAT} with equally many lines", received, "Check that they belong together."
        )
    bad = np.flatnonzero(counts != others)
    if len(bad):
        i = int(bad[0])
        received = f"{counts[i]} times and {others[i]} types in line {i + 1} of {times_file}"
        raise EventDataError(
            "as many types as times in every line",
            received,
            "Check that the two files belong together.",
        )
    sidecar = _beside(times_file, "fourpoint", ".json")
    annex = None
    if sidecar.is_file():
        annex = contents(sidecar, "the annex of a file of times").decode("utf-8", "replace")
    part = Part(
        times_file,
        times,
        np.zeros(0, dtype=np.int64),
        offsets,
        split=split_of(times_file),
        annex=annex,
    )
    return replace(part, marks=whole_numbers(part, marks, f"types in {events_file.name}"))


def _beside(times_file: Path, word: str, ending: str | None = None) -> Path:
    """The file that belongs to a file of times: its name with another first word and perhaps
    another ending.
    """
    stem = times_file.stem.removeprefix("time")
    if ending is None:
        ending = times_file.suffix
    return times_file.with_name(f"{word}{stem}{ending}")


def _times_name(path: Path) -> Path:
    """The file of times of the pair that a path names."""
    if not path.name.startswith(("time", "event")):
        raise EventDataError(
            f"{WHAT}: a name that begins with time or event",
            f"{path}",
            "Rename the pair, such as time-train.txt.",
        )
    if path.name.startswith("time"):
        return path
    return path.with_name("time" + path.name.removeprefix("event"))


def _line(values: list[float]) -> str:
    """Numbers between spaces, by the encoder that writes the shortest text which reads back as the
    same float.
    """
    numbers = json.dumps(values)[1:-1]
    return numbers.replace(",", "") + "\n"


def numbers_by_line(path: Path, what: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The numbers of a file end to end, and the offsets of its lines; an empty line is a sequence
    without events.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "time-train.txt"
    >>> _ = file.write_text("0 1.5 2 \\n\\n7\\n")
    >>> values, offsets = numbers_by_line(file, "times")
    >>> values.tolist(), offsets.tolist()
    ([0.0, 1.5, 2.0, 7.0], [0, 3, 3, 4])
    """
    text = contents(path, what)
    # Words of two characters become views, words and numbers, of 40 bytes in all.
    spaces = text.count(b" ") + text.count(b"\n")
    Expansion(path, what).check(len(text) + 40 * spaces)
    if not text.isascii():
        at = next(i for i, byte in enumerate(text) if byte > 127)
        line = text.count(b"\n", 0, at) + 1
        raise EventDataError(
            what,
            f"{path}, line {line}: the byte {text[at : at + 1]!r}, which is part of no number",
            "Check the file.",
        )
    lines = pc.ascii_trim_whitespace(_lines(text))
    words = pc.ascii_split_whitespace(lines)
    lengths = np.asarray(pc.list_value_length(words))
    # An empty line splits into one empty word.
    filled = np.asarray(pc.greater(pc.binary_length(lines), 0))
    offsets = offsets_of(np.where(filled, lengths, 0))
    flat = words.flatten()
    flat = flat.filter(pc.greater(pc.binary_length(flat), 0))
    return _floats(flat, offsets, path, what), offsets


def _lines(text: bytes) -> pa.LargeStringArray:
    """The lines of a text, as one array over its bytes; a newline at the very end closes the last
    line and opens none.
    """
    characters = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(characters == ord("\n"))
    if not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    edges = np.concatenate([[0], ends + 1]).astype(np.int64)
    edges[-1] = min(edges[-1], len(text))
    offsets = pa.py_buffer(edges)
    return pa.LargeStringArray.from_buffers(len(ends), offsets, pa.py_buffer(text))


def _floats(
    words: pa.Array, offsets: NDArray[np.int64], path: Path, what: str
) -> NDArray[np.float64]:
    try:
        values = np.array(pc.cast(words, pa.float64()))
        bad = np.flatnonzero(~np.isfinite(values))
    except pa.ArrowInvalid:
        is_number = pc.match_substring_regex(words, r"^[-]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
        bad = np.flatnonzero(~np.asarray(is_number))
    if len(bad):
        i = int(bad[0])
        line = int(np.searchsorted(offsets, i, side="right"))
        raise EventDataError(
            f"{what}: finite numbers",
            f"{path}, line {line}: {words[i].as_py()[:40]!r}",
            "Remove or correct it.",
        )
    return values
