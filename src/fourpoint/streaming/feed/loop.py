"""The loop of a feed: take lines, score them, write what came of them, and now and then the state.

Three rules make it exact. Lines are scored and written whole: a batch at a time, in their order,
one call of ``write`` each. A state is written only between batches, after the output is on disk.
And where anything failed in the middle of a batch no state is written at all, so that the next run
takes it from the last good one.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fourpoint.events import UserError
from fourpoint.events.dates import Dates
from fourpoint.streaming.feed.beside import CarriedForward
from fourpoint.streaming.feed.encoding import Scores, rows_of
from fourpoint.streaming.feed.events import Columns, Event, Scorer
from fourpoint.streaming.feed.lines import Block, Line, Lines
from fourpoint.streaming.feed.plausibility import Reached, TimeCheck
from fourpoint.streaming.feed.reading import EventReader
from fourpoint.streaming.feed.saving import EntitySaver
from fourpoint.streaming.feed.state import FeedState, Output, Tally, digest, write_state

Found = Event | UserError | None  # what a line is; None: blank, or the header
EVERY = 1000  # lines between two states
SHARE = 0.05  # of the time that writing states may take; else they are written less often
FIRST = 64  # lines of the first batch, before it is known how long they take
PATIENCE = 0.05  # seconds that a batch may take
POLL = 0.1  # seconds between two looks at a feed on which nothing comes
# seconds without a line after which the state is written, so that a kill then costs nothing
QUIET = 1.0


@dataclass(frozen=True)
class Ended:
    """How a run ended: what was done in all runs and in this one, its seconds, and the exit code.

    The code is 0 after the end of the input and after a SIGTERM while following, 1 where the output
    or the state could not be written or more than the allowed share of lines was skipped, and 128 +
    the signal's number where a signal came before the end.
    """

    tally: Tally
    events: int
    seconds: float
    code: int

    def __str__(self) -> str:
        done = self.tally
        now = f" ({self.events:,} in this run)" if self.events != done.events else ""
        mean = f"{done.log_likelihood / done.events:.4f}" if done.events else "none"
        return (
            f"{_number(done.events, 'event')}{now}, {_number(done.skipped, 'line')} skipped, "
            f"{_number(done.alarms, 'alarm')}; "
            f"log-likelihood per event {mean}; {self.events / max(self.seconds, 1e-9):,.0f} "
            "events per second"
        )


@dataclass
class Loop:
    """A feed that is open: where lines come from and go to, what scores them, and what was done
    before this run.
    """

    lines: Lines
    output: Output
    scorer: Scorer
    reader: EventReader
    state: Path | None
    settings: dict[str, Any]
    every: int | None
    follow: bool
    tell: Callable[[str], None]
    tally: Tally
    plausible: TimeCheck | None = None
    saver: EntitySaver | None = None  # writes the state of many entities in the background
    dates: Dates | None = None  # of alarms, where all times have one origin
    carried: CarriedForward | None = None  # tells when events come after the end of a table
    max_skipped: float = 1.0  # share of the lines that may be skipped without a failure
    done: int = 0  # bytes of the input whose lines are scored and written
    unsaved: int = 0  # lines since the last state
    saved: float = 0.0  # when the last state was written
    cost: float = 0.0  # seconds that it took

    def to_the_end(self, told: list[int], show: Callable[[int], None]) -> Ended:
        """Score all there is, until the input ends or a signal comes; the summary is told however
        it ends.
        """
        began = time.monotonic()
        first = self.tally.events
        code = 1
        self.done = self.lines.offset
        try:
            # Before any output, so that a file of scores never lacks the state that belongs to it.
            self._save(must=True)
            try:
                self._loop(told, show)
            finally:
                # Where a line was taken but not scored, the last good state stays.
                if self.done == self.lines.offset:
                    self._save(must=True)
            code = self._code(told)
        except OSError as error:
            self.tell(_cannot_write(error, self.state))
        finally:
            events = self.tally.events - first
            seconds = time.monotonic() - began
            ended = Ended(replace(self.tally), events, seconds, code)
            self.tell(str(ended))
        return ended

    def _code(self, told: list[int]) -> int:
        """The exit code of a run that was written whole."""
        if told and not (self.follow and told[0] == signal.SIGTERM):
            return 128 + told[0]
        skipped = self.tally.skipped
        lines = self.tally.events + skipped
        if skipped <= self.max_skipped * lines:
            return 0
        expected = f"at most {100 * self.max_skipped:g}% of the lines to be skipped"
        received = f"{skipped:,} of {_number(lines, 'line')} ({100 * skipped / lines:.3g}%)"
        remedy = "Repair what the messages above name, or allow more with --max-skipped."
        self.tell(str(UserError(expected, received, remedy)))
        return 1

    def _loop(self, told: list[int], show: Callable[[int], None]) -> None:
        most = min(self.scorer.batch, self.every or self.scorer.batch)
        limit = min(most, FIRST)
        heard = time.monotonic()
        while not told:
            fewer = None if self.saver is None else self.saver.most_lines
            at_once = min(limit, fewer or limit, self.scorer.most_lines or limit)
            block = self.lines.block(at_once)
            if block.contents:
                began = time.monotonic()
                self._score(block)
                heard = time.monotonic()
                limit = _next_limit(limit, len(block.contents), heard - began, most)
                self._save_if_due(heard)
                show(self.lines.offset)
            elif self.lines.ended:
                self._score_unfinished()
                return
            else:
                if self.unsaved and time.monotonic() > heard + QUIET:
                    self._save()
                self.lines.wait(POLL)

    def _score(self, block: Block) -> None:
        """Score lines as one batch, and write what came of them in their order."""
        columns, found = self._events_of(block)
        if self.carried is not None and columns.times:
            for note in self.carried(max(columns.times)):
                self.tell(note)
        scores = self.scorer.observe(columns)
        numbers: Sequence[int] = block.numbers()
        skipped = 0
        if found is not None or scores.refused:
            lines = block.lines()
            each: Sequence[Found] = columns.events() if found is None else found
            skipped = self._tell_faults(lines, each, scores.refused)
            numbers = [
                line.number
                for line, event in zip(lines, each, strict=True)
                if isinstance(event, Event)
            ]
        rows = self._rows(numbers, columns, scores)
        if rows:
            self.output.write("".join(rows).encode())
        self._count(scores, skipped)
        self.unsaved += len(block.contents)
        self.done = self.lines.offset

    def _events_of(self, block: Block) -> tuple[Columns, list[Found] | None]:
        """The events of lines. Where some are none, or have a time that cannot be right, also what
        each line is.
        """
        columns = None if block.odd else self.reader.columns(block.contents)
        if columns is None:
            found = self._plausible_of(self.reader.read(block.lines()))
        else:
            faults = [] if self.plausible is None else self.plausible(columns.times)
            if not any(faults):
                return columns, None
            found = [fault or event for fault, event in zip(faults, columns.events(), strict=True)]
        events = [event for event in found if isinstance(event, Event)]
        return Columns.of(events, many=self.scorer.many), found

    def _tell_faults(
        self, lines: list[Line], found: Sequence[Found], refused: dict[int, UserError]
    ) -> int:
        """Tell what is wrong with lines and with events that were refused, in their order; how many
        they are.
        """
        skipped, place = 0, 0
        for line, event in zip(lines, found, strict=True):
            fault = event if isinstance(event, UserError) else None
            if isinstance(event, Event):
                fault = refused.get(place)
                place += 1
            if fault is not None:
                skipped += 1
                self.tell(f"line {line.number}: {fault}")
        return skipped

    def _rows(self, numbers: Sequence[int], events: Columns, scores: Scores) -> list[str]:
        """The lines of output of events that were not refused."""
        if self.dates is not None:
            for alarm in (alarm for raised in scores.alarms for alarm in raised):
                alarm["date"] = self.dates.text(float(alarm["time"]))
        rows = rows_of(
            numbers, events.times, events.marks, events.entities, scores, self.scorer.names
        )
        if not scores.refused:
            return rows
        return [row for place, row in enumerate(rows) if place not in scores.refused]

    def _plausible_of(self, found: list[Found]) -> list[Found]:
        """The same, with an error instead of each event whose time cannot be right."""
        if self.plausible is None:
            return found
        events = [one for one in found if isinstance(one, Event)]
        faults = self.plausible([event.at for event in events])
        if not any(faults):
            return found
        checked = iter([fault or event for fault, event in zip(faults, events, strict=True)])
        return [next(checked) if isinstance(one, Event) else one for one in found]

    def _count(self, scores: Scores, skipped: int) -> None:
        """What is written counts; an event that could not happen, whose log-density JSON cannot
        hold, counts as minus infinity.
        """
        densities = scores.log_density
        alarms = scores.alarms
        if scores.refused:
            kept = [i for i in range(len(densities)) if i not in scores.refused]
            densities = [densities[i] for i in kept]
            alarms = [alarms[i] for i in kept]
        self.tally.skipped += skipped
        self.tally.events += len(densities)
        self.tally.alarms += sum(map(len, alarms))
        total = self.tally.log_likelihood
        if densities:
            # One after the other, so that the sum does not depend on the batches.
            sums = np.array([total, *densities])
            sums[np.isnan(sums)] = -math.inf
            with np.errstate(invalid="ignore"):
                total = float(np.add.accumulate(sums)[-1])
        self.tally.log_likelihood = total if total < math.inf else -math.inf

    def _score_unfinished(self) -> None:
        """The bytes after the last line end: an event if they are a whole one; else, with a state,
        left for the next run.

        A whole JSON object is complete even if the file grows; a row of columns may not be.
        """
        line = self.lines.unfinished()
        if line is None or (line.content is not None and not line.content.strip()):
            return
        if self.state is not None and not self.reader.is_whole(line):
            self.tell(f"line {line.number} has no end yet, and is left for the next run")
            return
        self.lines.accept(line)
        self._score(Block.of_line(line))

    def _save_if_due(self, now: float) -> None:
        enough_lines = self.unsaved >= (self.every or EVERY)
        enough_time = self.every is not None or now - self.saved >= self.cost / SHARE
        due = enough_lines and enough_time
        if self.saver is None or self.every:
            if due or (self.saver is not None and self.saver.pressing):
                self._save()
        elif self.saver.pressing:
            if self.saver.has_room():
                self._save()
        elif due:
            self._save()

    def _save(self, must: bool = False) -> None:
        """Write the state. Where that fails the old one stays; it is told and tried again later,
        unless it ``must`` succeed.
        """
        if self.state is None:
            return
        may_wait = not must and not self.every
        if may_wait and self.saver is not None and self.saver.busy and not self.saver.pressing:
            return  # it is saved at the next turn
        began = time.monotonic()
        if self.saver is None:
            self.output.sync()
        found = FeedState(
            line=self.lines.number,
            offset=self.lines.offset,
            input_tail=digest(self.lines.tail()),
            written=self.output.written,
            output_tail=digest(self.output.tail()),
            settings=self.settings,
            tally=self.tally,
            reached=Reached() if self.plausible is None else self.plausible.reached,
            header=self.reader.header,
            stream=self.scorer.state(),
        )
        try:
            if self.saver is None:
                write_state(self.state, found)
            else:
                self.saver.save(found, self.output.sync, wait=must)
        except OSError as error:
            if must:
                raise
            self.tell(
                _cannot_write(error, self.state, " Scoring goes on, and the state is tried again.")
            )
        self.unsaved, self.saved = 0, time.monotonic()
        self.cost = self.saved - began


def _next_limit(limit: int, taken: int, seconds: float, most: int) -> int:
    """How many lines to take at once: as many as are scored within ``PATIENCE``, since none is
    written before all are.

    >>> (
    ...     _next_limit(64, 64, 0.001, 4096),
    ...     _next_limit(64, 10, 0.001, 4096),
    ...     _next_limit(64, 64, 0.1, 4096),
    ... )
    (128, 64, 32)
    """
    if seconds > PATIENCE:
        return max(1, limit // 2)
    if taken == limit and seconds < PATIENCE / 4:
        return min(most, 2 * limit)
    return limit


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _cannot_write(error: OSError, state: Path | None, more: str = "") -> str:
    """Three clauses for a file that fails while the feed runs."""
    if isinstance(error, BrokenPipeError):
        remedy = "Start again to score the rest."
        fault = UserError("a process that reads the output", "a pipe that was closed", remedy)
        return str(fault)
    remedy = f"Free space, or check the disk.{more}"
    if state is not None and not more:
        remedy += f" Run the same command again: it goes on from {state}."
    return str(UserError("room and permission to write", str(error), remedy))
