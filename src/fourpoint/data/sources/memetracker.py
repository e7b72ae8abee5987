"""SNAP's MemeTracker: each meme a sequence, each post that mentions it an event.

Reads the raw months ``quotes_*.txt.gz``, where a meme is a phrase word for word, and the file of
phrase clusters, where it is a cluster of variants. Times are hours since the meme's first mention.
The collection went on after a meme's last mention, and that silence is evidence: a window ends
where the collection does, at the last post of the files that were read (``window="mentions"`` ends
it at the meme's last mention instead). The paper samples 22,003 memes of 24 mentions on average.

Raw phrases, one record per post, a letter and a tab before each line, an empty line between
records:

    P   http://example.com/post.html        the post
    T   2008-09-09 22:35:24                 when it was published
    Q   that's not change                   a phrase it quotes; any number of them
    L   http://example.com/other.html       a link; any number of them, not needed here

Phrase clusters, nested by tabs:

    2   8   root phrase   2131865           phrases, mentions, root and id of a cluster
        3   2   a variant   489007          mentions, urls, phrase and id of a variant
            2008-11-26 01:27:13   1   B   http://example.com/
                                            time, mentions there, B(log) or M(edia), url

Files are read in blocks that end where a record ends, and the lines of a block are one Arrow array
over its bytes. Text is bytes in any encoding, and is compared as such.

Where the files come from and under which terms: docs/sources/memetracker.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fourpoint.data.files import blocks
from fourpoint.data.sample import Sample
from fourpoint.data.sources.sheets import grouped, named
from fourpoint.events import Dataset, EventDataError, MarkSpace, UserError

Mark = Literal["none", "site", "media"]
Window = Literal["collection", "mentions"]
MEDIA = {"B": "blog", "M": "mainstream media"}


def matches(sample: Sample) -> bool:
    """Whether a file or folder looks like MemeTracker's."""
    if sample.names is not None:
        return any(name.startswith("quotes_") for name in sample.names)
    if not sample.is_text:
        return False
    cluster = rb"^\d+\t\d+\t[^\n]*\t\d+\r?\n\s*\t\d+\t\d+\t"
    post = re.match(rb"P\thttps?:", sample.head)
    return bool(post or re.search(cluster, sample.head, re.MULTILINE))


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

    Returns: The memes in order of their first appearance, in hours, and notes. Fails
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
    code = np.searchsorted(kept, found.codes[rows])
    seconds = found.seconds[rows]
    first = np.full(len(kept), np.iinfo(np.int64).max)
    np.minimum.at(first, code, seconds)
    times = (seconds - first[code]) / 3600
    order, offsets, _ = grouped(code, times, len(kept))
    marks, space = _marks(found, mark, types, rows)
    last = times[order][offsets[1:] - 1]
    if window == "collection":
        # Stamps are whole seconds, so that the collection saw its last second to the end.
        stops = (found.latest + 1 - first) / 3600
    else:
        stops = np.where(last > 0, last, 1.0)
    data = Dataset(
        times[order],
        marks[order],
        offsets,
        np.zeros(len(kept)),
        stops,
        space,
        ids=_names(found, kept),
        inferred=window == "mentions",
        unit="hours",
        name="memetracker",
    )
    if window == "mentions":
        end = ""
    else:
        end = "; windows end with the last post of the files (--set window=mentions)"
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
    if mark == "none":
        labels = None
    else:
        labels = pa.chunked_array([part.sites if mark == "site" else part.media for part in parts])
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
    memes = int((counts > 0).sum())
    kept = np.flatnonzero(counts >= least)
    if not len(kept):
        raise EventDataError(
            f"memes with at least {least} mentions",
            f"{path}: {memes:,} with at most {counts.max()}",
            "Lower least.",
        )
    if found.repeats:
        notes = [f"{found.repeats:,} mentions repeat a meme in one post and count once"]
    else:
        notes = []
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


WHAT = "a MemeTracker file of posts (P, T, Q and L lines) or of phrase clusters"
BLOCK, LONGEST = 2**25, 2**27  # bytes read at a time, and the longest record
HEADER = r"^\s*(format:?)?\s*(<\w+>\s*)*$"  # lines that name a clusters file's fields
STAMP = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"
HOST = r"^[A-Za-z]+://(?:[wW]{3}\.)?(?P<host>[^/:?#\s]+)"
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Mentions:
    """One block's mentions, one per meme and post: the meme, the second since 1970, the site, and
    blog or media.

    ``latest`` is the last second of all posts, also of those that quote nothing; ``repeats`` counts
    mentions of a meme that the same post had mentioned before, and ``skipped`` lines that are not
    in the format.
    """

    memes: pa.DictionaryArray
    seconds: NDArray[np.int64]
    sites: pa.DictionaryArray
    media: pa.DictionaryArray | None
    latest: int
    repeats: int
    skipped: int


def mentions(path: Path, skip: bool) -> Iterator[Mentions]:
    """The mentions of a file, block by block. With ``skip`` lines that are not in the format are
    counted, else refused.
    """
    line, parse = 1, None
    for block in _records(path):
        lines = _Lines(block, line, path, skip)
        parse = parse or (_posts if _is_raw(block) else _clusters)
        yield parse(lines)
        line += len(lines.starts)


def _is_raw(text: bytes) -> bool:
    return text.lstrip(b"\r\n").startswith(b"P\t")


def _records(path: Path) -> Iterator[bytes]:
    """The file in blocks that end before a record begins: a line of P, or one without a tab before
    it.
    """
    rest, last_start = b"", None
    for block in blocks(path, WHAT, BLOCK):
        rest += block
        last_start = last_start or (_last_post if _is_raw(rest) else _last_cluster)
        at = last_start(rest)
        if at > 0:
            yield rest[:at]
            rest = rest[at:]
        elif len(rest) > LONGEST:
            raise EventDataError(
                WHAT,
                f"{path}: a record of more than {LONGEST:,} bytes",
                "Check that it is such a file.",
            )
    if rest:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def _last_post(text: bytes) -> int:
    return text.rfind(b"\nP\t") + 1


def _last_cluster(text: bytes) -> int:
    data = np.frombuffer(text, dtype=np.uint8)
    starts = np.flatnonzero(data[:-1] == 10) + 1
    heads = starts[~np.isin(data[starts], (9, 10, 13))]
    return int(heads[-1]) if len(heads) else 0


class _Lines:
    """The lines of a block: an Arrow array over its bytes, where each begins, and its number in the
    file.
    """

    def __init__(self, block: bytes, first: int, path: Path, skip: bool) -> None:
        self.data = np.frombuffer(block, dtype=np.uint8)
        edges = np.concatenate([[0], np.flatnonzero(self.data == 10) + 1]).astype(np.int64)
        self.starts = edges[:-1]
        self.first = first
        self.path = path
        self.skip = skip
        self.skipped = 0
        # Text in any encoding: Arrow's ascii_ functions look at bytes, and nothing here asks for
        # more.
        self.texts = pa.LargeStringArray.from_buffers(
            len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(block)
        )
        self.filled = np.asarray(
            pc.greater(pc.binary_length(pc.ascii_trim_whitespace(self.texts)), 0)
        )

    def byte(self, place: int) -> NDArray[np.uint8]:
        """The byte at a place of each line; one of the next line where the line is shorter."""
        return self.data[np.minimum(self.starts + place, len(self.data) - 1)]

    def trimmed(self, rows: NDArray[np.int64]) -> pa.Array:
        """These lines without the spaces, tabs and newlines around."""
        return pc.ascii_trim_whitespace(self.texts.take(pa.array(rows)))

    def content(self, rows: NDArray[np.int64]) -> pa.Array:
        """What follows the letter and the tab of these lines."""
        return pc.ascii_trim_whitespace(
            pc.ascii_ltrim(self.texts.take(pa.array(rows)), characters="PTQL")
        )

    def refuse(self, bad: NDArray[np.int64], expected: str) -> None:
        """Raise for the first of these lines, or count them where the user asked to pass over
        them.
        """
        if not len(bad):
            return
        if self.skip:
            self.skipped += len(bad)
            return
        text = self.texts[int(bad[0])].cast(pa.large_binary()).as_py()[:60]
        remedy = "Correct the line, or pass over such lines with --set skip=true; they are counted."
        raise EventDataError(
            expected, f"{self.path}, line {self.first + int(bad[0])}: {text!r}", remedy
        )

    def seconds(self, texts: pa.Array, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stamps as seconds since 1970; NEVER where one is none."""
        try:
            return np.asarray(
                pc.cast(pc.cast(pc.cast(texts, pa.string()), pa.timestamp("s")), pa.int64())
            )
        except pa.ArrowInvalid:
            parsed = pc.strptime(
                pc.if_else(pc.match_substring_regex(texts, STAMP), texts, ""),
                "%Y-%m-%d %H:%M:%S",
                "s",
                error_is_null=True,
            )
        # The parser takes February 31st for March 2nd; only what is written back the same is a
        # time.
        good = np.asarray(
            pc.fill_null(
                pc.equal(
                    pc.strftime(parsed, "%Y-%m-%d %H:%M:%S"), pc.cast(texts, pa.large_binary())
                ),
                False,
            )
        )
        self.refuse(rows[~good], "a time such as 2008-09-09 22:35:24")
        return np.where(good, np.asarray(pc.fill_null(pc.cast(parsed, pa.int64()), NEVER)), NEVER)


def _posts(lines: _Lines) -> Mentions:
    letter = lines.byte(0)
    tabbed = lines.byte(1) == 9
    is_post, is_time, is_quote, is_link = ((letter == ord(c)) & tabbed for c in "PTQL")
    lines.refuse(
        np.flatnonzero(lines.filled & ~is_post & ~is_time & ~is_quote & ~is_link),
        "a line of P, T, Q or L and a tab",
    )
    post = np.cumsum(is_post) - 1
    lines.refuse(
        np.flatnonzero((is_time | is_quote) & (post < 0)), "a line of P before those of T and Q"
    )
    rows = np.flatnonzero(is_time & (post >= 0))
    times = np.full(int(is_post.sum()), NEVER)
    times[post[rows]] = lines.seconds(lines.content(rows), rows)
    quotes = np.flatnonzero(is_quote & (post >= 0))
    lines.refuse(quotes[times[post[quotes]] == NEVER], "a line of T after that of P")
    quotes = quotes[times[post[quotes]] != NEVER]
    sites = _sites(lines.content(np.flatnonzero(is_post))).take(pa.array(post[quotes]))
    phrases = lines.content(quotes).dictionary_encode()
    return _once(
        lines,
        phrases,
        post[quotes],
        times[post[quotes]],
        sites,
        None,
        int(times.max(initial=NEVER)),
    )


def _clusters(lines: _Lines) -> Mentions:
    indented = lines.byte(0) == 9
    twice = indented & (lines.byte(1) == 9)
    depth = indented.astype(np.int64) + twice
    filled = lines.filled.copy()
    top = max(0, 8 - lines.first)  # the names of the fields stand at the very top
    filled[:top] &= ~np.asarray(pc.match_substring_regex(lines.texts[:top], HEADER))
    heads, ids = _fields(
        lines,
        np.flatnonzero(filled & (depth == 0)),
        "a cluster: size, mentions, root and id, with tabs between",
    )
    cluster = np.searchsorted(heads, np.arange(len(depth)), side="right") - 1
    rows = np.flatnonzero(filled & (depth == 2))
    lines.refuse(rows[cluster[rows] < 0], "a cluster before its mentions")
    rows, found = _fields(
        lines,
        rows[cluster[rows] >= 0],
        "a mention: time, number, B or M, and url, with tabs between",
    )
    seconds = lines.seconds(found[0], rows)
    good = np.flatnonzero(seconds != NEVER)
    urls = found[3].take(pa.array(good))
    media = found[2].take(pa.array(good)).dictionary_encode()
    memes = ids[3].take(pa.array(cluster[rows[good]])).dictionary_encode()
    posts = np.asarray(urls.dictionary_encode().indices).astype(np.int64)
    return _once(
        lines, memes, posts, seconds[good], _sites(urls), media, int(seconds.max(initial=NEVER))
    )


def _fields(
    lines: _Lines, rows: NDArray[np.int64], expected: str
) -> tuple[NDArray[np.int64], list[pa.Array]]:
    """The rows that have at least four fields between tabs, and their first three and last."""
    parts = pc.split_pattern(lines.trimmed(rows), "\t")
    lengths = np.asarray(pc.list_value_length(parts)).astype(np.int64)
    lines.refuse(rows[lengths < 4], expected)
    kept = lengths >= 4
    values = parts.filter(pa.array(kept)).flatten()
    ends = np.cumsum(lengths[kept])
    starts = ends - lengths[kept]
    return rows[kept], [
        values.take(pa.array(place)) for place in (starts, starts + 1, starts + 2, ends - 1)
    ]


def _sites(urls: pa.Array) -> pa.DictionaryArray:
    """The site of each address, without www; "unknown" where there is none."""
    hosts = pc.ascii_lower(pc.struct_field(pc.extract_regex(urls, HOST), "host"))
    return pc.fill_null(hosts, pa.scalar("unknown", hosts.type)).dictionary_encode()


def _once(
    lines: _Lines,
    memes: pa.DictionaryArray,
    posts: NDArray[np.int64],
    seconds: NDArray[np.int64],
    sites: pa.DictionaryArray,
    media: pa.DictionaryArray | None,
    latest: int,
) -> Mentions:
    """Each meme once per post: a block holds whole records, so that no repeat is in another
    block.
    """
    codes = np.asarray(memes.indices).astype(np.int64)
    pairs = codes * (int(posts.max(initial=0)) + 1) + posts
    first = np.sort(np.unique(pairs, return_index=True)[1])
    rows = pa.array(first)
    kept_media = None if media is None else media.take(rows)
    return Mentions(
        memes.take(rows),
        seconds[first],
        sites.take(rows),
        kept_media,
        latest,
        len(codes) - len(first),
        lines.skipped,
    )
