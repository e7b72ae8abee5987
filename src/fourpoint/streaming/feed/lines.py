"""The lines of a feed, each with its number, from a file, a file that grows, or a pipe.

Memory is bounded whatever comes: a line of more than ``LONGEST`` bytes is read to its end and
dropped, and told as such. A point of the input is known again by the bytes before it, so that a
restart goes on in the file that it left and in no other. A followed file that is cut, rewritten or
moved away while it is read is an error, never a guess.
"""

from __future__ import annotations

import os
import select
import stat
import time
from pathlib import Path
from typing import NamedTuple

from fourpoint.events import UserError
from fourpoint.streaming.feed.state import TAIL, FeedState, digest

LONGEST = 65_536  # bytes of a line
CHUNK = 262_144  # bytes read at a time
OVERLAP = 64  # bytes read again, to see that the file is still the one they came from


class Line(NamedTuple):
    """A line without its end. ``content`` is None where it is too long; ``rest`` says that its
    beginning was a line before.
    """

    number: int
    content: bytes | None
    size: int
    rest: bool = False


class Block(NamedTuple):
    """Lines that follow each other: the number of the first, their contents, and by place those
    that are out of the ordinary.

    An ordinary line has a content, and is none whose beginning was a line before.
    """

    first: int
    contents: list[bytes]
    odd: dict[int, Line]

    @staticmethod
    def of_line(line: Line) -> Block:
        """One line alone."""
        return Block(line.number, [line.content or b""], {0: line})

    def numbers(self) -> range:
        """Those of the lines, where all are ordinary."""
        return range(self.first, self.first + len(self.contents))

    def lines(self) -> list[Line]:
        """Each of them."""
        found = []
        number = self.first
        for place, content in enumerate(self.contents):
            line = self.odd.get(place) or Line(number, content, len(content))
            found.append(line)
            number = line.number + 1
        return found


class Lines:
    """Complete lines of ``path``, or of standard input where it is None.

    ``number`` and ``offset`` are the lines and bytes taken so far. ``ended`` says that no more will
    come; of a file that is followed (``follow``) more may always come.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     feed = Path(place, "feed")
    ...     _ = feed.write_bytes(b"one\\ntwo\\nthr")
    ...     lines = Lines(feed)
    ...     (
    ...         [line.content for line in lines.take(9)],
    ...         lines.offset,
    ...         lines.ended,
    ...         lines.unfinished().content,
    ...     )
    ([b'one', b'two'], 8, True, b'thr')
    """

    def __init__(self, path: Path | None, *, follow: bool = False) -> None:
        self.number = 0
        self.offset = 0
        self.ended = False
        self.name = "standard input" if path is None else str(path)
        self._path, self._follow = path, follow
        self._file = 0 if path is None else os.open(path, os.O_RDONLY)
        kind = os.fstat(self._file).st_mode
        self._regular = path is not None and stat.S_ISREG(kind)
        self._data = (
            b""  # what was read, from `_base` on: the tail of what was taken, then what was not
        )
        self._base = 0
        self._scanned = 0  # bytes of `_data` in which no further line end is
        self._kept = b""  # the tail, while a line too long pushes it out of `_data`
        self._open = False  # the last line was taken without its end
        if stat.S_ISDIR(kind) or (follow and not self._regular):
            self.close()
            if stat.S_ISDIR(kind):
                remedy = "Name a file."
            else:
                remedy = "Leave --follow out: a pipe is read until its writer closes it."
            raise UserError(
                f"a file{' that can grow' if follow else ''} for --input", self.name, remedy
            )

    @property
    def size(self) -> int | None:
        """Bytes to read, where they are known."""
        return os.fstat(self._file).st_size if self._regular and not self._follow else None

    def resume(self, state: FeedState) -> None:
        """Go on where ``state`` left off: a file at its offset, a pipe (which must send all again)
        after as many bytes.
        """
        if self._regular:
            self._base = max(0, state.offset - TAIL)
            self._data = os.pread(self._file, state.offset - self._base, self._base)
        else:
            while self._base + len(self._data) < state.offset and not self.ended:
                self.offset = self._base + len(self._data)
                if not self._fill(state.offset - self.offset):
                    self.wait(0.1)
        there = self._base + len(self._data)
        if there < state.offset:
            received = (
                f"{self.name} of {os.fstat(self._file).st_size if self._regular else there:,} bytes"
            )
            raise UserError(
                f"the --input that was read up to byte {state.offset:,}", received, _OTHER_INPUT
            )
        self.number, self.offset, self._scanned = state.line, state.offset, len(self._data)
        if digest(self.tail()) != state.input_tail:
            raise UserError(
                f"the --input whose first {state.line:,} lines were scored",
                f"{self.name}, which differs before there",
                _OTHER_INPUT,
            )
        self._open = bool(self._data) and not self._data.endswith(b"\n")

    def take(self, limit: int) -> list[Line]:
        """At most ``limit`` lines that are there now; none where one has to wait, or after the end.

        Where reading fails after some lines, they are returned, and the next call raises.
        """
        return self.block(limit).lines()

    def block(self, limit: int) -> Block:
        """The same without an object for each line, which takes its time."""
        block = Block(self.number + 1, [], {})
        contents = block.contents
        while len(contents) < limit:
            contents += self._whole(limit - len(contents))
            if len(contents) == limit:
                break
            line = self._next()
            if line is not None:
                if line.content is None or line.rest:
                    block.odd[len(contents)] = line
                contents.append(line.content or b"")
                continue
            try:
                if not self._fill():
                    break
            except (UserError, OSError):
                if not contents:
                    raise
                break
        return block

    def ahead(self) -> list[bytes]:
        """Complete lines that come next, without taking them; none where one has to wait, or after
        the end.
        """
        unread = self._data[self.offset - self._base :]
        if len(unread) <= LONGEST and self._fill():
            unread = self._data[self.offset - self._base :]
        return unread.split(b"\n")[:-1]

    def unfinished(self) -> Line | None:
        """The bytes after the last line end, if any, which :meth:`take` does not return."""
        size = self._base + len(self._data) - self.offset
        begin = self.offset - self._base
        if not size or self._open:
            return None
        return Line(
            self.number + 1, self._data[begin:] if 0 <= begin and size <= LONGEST else None, size
        )

    def accept(self, line: Line) -> None:
        """Take the unfinished line as a whole one."""
        self.number = line.number
        self.offset = self.offset + line.size
        self._open = True

    def tail(self) -> bytes:
        """The last bytes of what was taken."""
        end = self.offset - self._base
        return self._data[max(0, end - TAIL) : end] if end >= 0 else self._kept

    def wait(self, seconds: float) -> None:
        """Until something may have come, or so long."""
        if self._regular:
            time.sleep(seconds)
        else:
            select.select([self._file], [], [], seconds)

    def close(self) -> None:
        """Let go of the file."""
        if self._path is not None:
            os.close(self._file)

    def _whole(self, limit: int) -> list[bytes]:
        """At most ``limit`` lines of those that have been read to their end, where none of them is
        out of the ordinary.
        """
        begin = self.offset - self._base
        if self._open or begin < 0 or self._scanned != begin:
            return []
        *contents, rest = self._data[begin:].split(b"\n", limit)
        if not contents or len(max(contents, key=len)) > LONGEST:
            return []
        self.number += len(contents)
        self._scanned = len(self._data) - len(rest)
        self.offset = self._base + self._scanned
        return contents

    def _next(self) -> Line | None:
        end = self._data.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._data)
            return None
        begin = self.offset - self._base
        size = self._base + end - self.offset
        content = self._data[begin:end] if begin >= 0 and size <= LONGEST else None
        self.offset = self._base + end + 1
        self._scanned = end + 1
        if self._open:
            self._open = False
            return Line(self.number, content, size, rest=True)
        self.number += 1
        return Line(self.number, content, size)

    def _fill(self, most: int = CHUNK) -> bool:
        """Read on; whether anything came."""
        begin = self.offset - self._base
        too_long = len(self._data) - begin > LONGEST
        if begin >= 0 and too_long:
            self._kept = self.tail()
        used = len(self._data) if too_long else begin
        drop = max(0, used - TAIL)
        self._data = self._data[drop:]
        self._base = self._base + drop
        if self._regular:
            chunk = self._read_file(min(most, CHUNK))
        else:
            chunk = self._read_pipe(min(most, CHUNK))
        self._scanned = len(self._data)
        self._data += chunk
        return bool(chunk)

    def _read_file(self, most: int) -> bytes:
        back = min(OVERLAP, len(self._data))
        end = self._base + len(self._data)
        found = os.pread(self._file, most + back, end - back)
        if found[:back] != self._data[len(self._data) - back :]:
            what = "cut to fewer bytes" if len(found) < back else "rewritten"
            raise UserError(
                f"an --input that only grows after byte {end:,}",
                f"{self.name}, which was {what}",
                _ROTATED,
            )
        if len(found) == back:
            self.ended = not self._follow
            if self._follow and not self._same():
                raise UserError(
                    "an --input that stays in its place",
                    f"{self.name}, which was moved or replaced",
                    _ROTATED,
                )
        return found[back:]

    def _read_pipe(self, most: int) -> bytes:
        if self.ended or not select.select([self._file], [], [], 0)[0]:
            return b""
        found = os.read(self._file, most)
        self.ended = not found
        return found

    def _same(self) -> bool:
        """Whether the path still leads to the file that is read."""
        try:
            if self._path is None:
                return False
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False


_OTHER_INPUT = (
    "Name the file that was read with this state (a pipe must send its lines again from the "
    "first), or remove the state."
)
_ROTATED = (
    "Its lines up to there are scored. Append to one file while it is followed, and give a new "
    "file a state of its own."
)
