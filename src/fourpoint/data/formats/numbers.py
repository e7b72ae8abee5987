"""Text files with one sequence per line and numbers between spaces, read without a Python object
per number.

Used by ``du.py``. The bytes become an Arrow array of lines, the lines one of words and the words
numbers; each step works on the whole file. A word that is no number is an error with file, line and
word.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import contents
from fourpoint.events import EventDataError


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
    Expansion(path, what).check(len(text) + 40 * (text.count(b" ") + text.count(b"\n")))
    if not text.isascii():
        at = next(i for i, byte in enumerate(text) if byte > 127)
        line = text.count(b"\n", 0, at) + 1
        raise EventDataError(
            what,
            f"{path}, line {line}: the byte {text[at : at + 1]!r}, which is part of no number",
            "Check the file.",
        )
    lines = _lines(text)
    words = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(lines))
    lengths = np.asarray(pc.list_value_length(words))
    # An empty line splits into one empty word.
    empty = np.asarray(pc.equal(pc.binary_length(pc.ascii_trim_whitespace(lines)), 0))
    flat = words.flatten()
    flat = flat.filter(pc.greater(pc.binary_length(flat), 0))
    offsets = np.concatenate([[0], np.cumsum(np.where(empty, 0, lengths))]).astype(np.int64)
    return _floats(flat, offsets, path, what), offsets


def _lines(text: bytes) -> pa.LargeStringArray:
    """The lines of a text, as one array over its bytes; a newline at the very end closes the last
    line and opens none.
    """
    ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == 10)
    if not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    edges = np.concatenate([[0], ends + 1]).astype(np.int64)
    edges[-1] = min(edges[-1], len(text))
    return pa.LargeStringArray.from_buffers(len(ends), pa.py_buffer(edges), pa.py_buffer(text))


def _floats(
    words: pa.Array, offsets: NDArray[np.int64], path: Path, what: str
) -> NDArray[np.float64]:
    try:
        values = np.array(pc.cast(words, pa.float64()))
        bad = np.flatnonzero(~np.isfinite(values))
    except pa.ArrowInvalid:
        bad = np.flatnonzero(
            ~np.asarray(pc.match_substring_regex(words, r"^[-]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"))
        )
    if len(bad):
        i = int(bad[0])
        line = int(np.searchsorted(offsets, i, side="right"))
        raise EventDataError(
            f"{what}: finite numbers",
            f"{path}, line {line}: {words[i].as_py()[:40]!r}",
            "Remove or mend it.",
        )
    return values
