"""A feed of events scored line by line, exactly once: what ``fourpoint stream`` runs.

    {"time": 12.5, "mark": "fire"}  ->  {"line": 1, "time": 12.5, "mark": "fire", "log_density":
    -1.2, "gap": 0.4, ...}

Each event is scored by a :class:`~fourpoint.streaming.stream.Stream` before it is absorbed; with
``by`` there is one stream per entity, and what is there to be read is stepped as one batch. With a
state the run may be killed at any moment and started again: the output ends as if it had never been
interrupted. A line that is no event is told, skipped and counted.
"""

from __future__ import annotations

import gc
import math
import signal
import sys
import threading
import time as clocks
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fourpoint.atomic import check_place
from fourpoint.events import UserError
from fourpoint.events.dates import unit_named
from fourpoint.log_format import LogFormat
from fourpoint.models.base import PointProcess
from fourpoint.report.printing import plain_console, text_column
from fourpoint.sanitising import console_lines
from fourpoint.streaming.feed.beside import Beside, CarriedForward
from fourpoint.streaming.feed.events import ALARMS, Entities, Event, Scorer, Single
from fourpoint.streaming.feed.lines import LONGEST, Line, Lines
from fourpoint.streaming.feed.loop import Ended, Loop
from fourpoint.streaming.feed.plausibility import SLACK, Reached, TimeCheck
from fourpoint.streaming.feed.reading import Asked, EventReader
from fourpoint.streaming.feed.saving import EntitySaver
from fourpoint.streaming.feed.state import Output, Tally, locked_state, read_state
from fourpoint.streaming.feed.times import TimeReader
from fourpoint.streaming.feed.training_window import Trained, first_time, inferred_start
from fourpoint.streaming.store import Store

FEWEST_COLLECTED = 50_000  # new objects after which garbage is collected
MAX_SKIPPED = 0.05  # share of the lines that may be skipped without a failure


def score_feed(
    model: PointProcess,
    *,
    input: Path | None = None,
    output: Path | None = None,
    state: Path | None = None,
    keep: int | None = None,
    by: str | None = None,
    start: float | str | None = 0.0,
    alarms: float | str | None = ALARMS,
    every: int | None = None,
    follow: bool = False,
    max_gap: float | str = "auto",
    max_skipped: float = MAX_SKIPPED,
    trained: Trained | None = None,
    time: str | None = None,
    mark: str | None = None,
    time_unit: str | None = None,
    timezone: str | None = None,
    attended: bool = False,
    limit: int | None = None,
    beside: Beside | None = None,
    tell: Callable[[str], None] | None = None,
) -> Ended:
    """Score each line of ``input`` with ``model`` and write one line to ``output``; both are pipes
    where None.

    Arguments: ``state``, the file that makes restarts exact, which needs a file as output;
    ``keep``, the number of past events that each head remembers (all by default); ``by``, the field
    that names an event's entity, each with a stream of its own ("none": one stream; by default as
    in training, where each sequence was an entity or a window of the calendar); ``start``, when the
    observation began, in the model's unit of time or as a timestamp ("first": with the first event;
    None: by the rule of `streaming.feed.training_window`); ``alarms``, the largest mean number of
    false alarms per 1,000 events, of entities, types and the fleet together (None or "none": no
    alarms); ``every``, the lines between two states (1,000 by default, and more where writing them
    takes more than a twentieth of the time); ``follow``, to wait for more at the end of a file;
    ``max_gap``, the longest gap that is believed, in the model's unit of time ("auto": by the rule
    of `streaming.feed.plausibility`; "none": any); ``max_skipped``, the share of lines that may be
    skipped without a failure; ``trained``, what is known of the data that the model was fitted to;
    ``time`` and ``mark``, the columns of times and types (as in the training log by default);
    ``time_unit`` and ``timezone``, which must be those of the training data; ``attended``, to name
    the past events with the largest weights, per head (not with ``by``); ``limit``, how many
    entities stay in memory, the others on disk (as many as fit 512 MiB by default); ``beside``,
    tables of covariates and of an exposure (`streaming.feed.beside`); ``tell``, what to do with
    notices (stderr by default). Event features of the model are fields of the lines.

    SIGTERM and SIGINT end the run after the line or batch in hand, with the state written. Raises
    :class:`~fourpoint.events.UserError` for options that do not go together, for a state that is
    foreign, damaged, in use or not of this model, input and output, and where the input is cut or
    moved away while it is followed.

    >>> import json, tempfile
    >>> from fourpoint.models.hawkes import Hawkes
    >>> with tempfile.TemporaryDirectory() as place:
    ...     feed, scores = Path(place, "feed.jsonl"), Path(place, "scores.jsonl")
    ...     _ = feed.write_text('{"time": 1.0}\\n{"time": 1.5}\\n')
    ...     ended = score_feed(Hawkes(), input=feed, output=scores, tell=lambda text: None)
    ...     ended.tally.events, json.loads(scores.read_text().splitlines()[0])["log_density"]
    (2, -1.0)
    """
    tell = tell or to_stderr
    trained = trained or Trained()
    _check_options(input, output, state, keep, by, every, limit)
    check_clock(trained, time_unit, timezone)
    times = TimeReader(trained.log, trained.unit)
    by = entity_column(trained.log, by, times, tell)
    if attended and by is not None:
        remedy = "Leave --attended out, or type --by none: entities are scored together."
        raise UserError("one stream for --attended", f"one per {by}", remedy)
    longest = longest_gap(max_gap)
    level = alarm_level(alarms)
    _check_share(max_skipped)
    with ExitStack() as files:
        told = files.enter_context(collected_signals())
        lines = files.enter_context(closing(Lines(input, follow=follow)))
        before = None
        if state is not None:
            state = state.resolve()
            files.enter_context(locked_state(state))
            before = read_state(state)
        names = {name: i for i, name in enumerate(model.marks.names)}
        asked = Asked(time, mark, by)
        features = () if model.event_features is None else model.event_features.spec.names
        header = before.header if before else None
        reader = EventReader(names, asked, times, lines.name, header, features)

        def trial() -> EventReader:
            """A reader whose findings about the input do not count."""
            clock = TimeReader(trained.log, trained.unit)
            return EventReader(names, asked, clock, lines.name, None, features)

        if before is None and input is not None:
            _try_first_lines(input, trial())
        if start is None and before is not None:
            saved = before.settings.get("start")
            begin = float(saved) if isinstance(saved, int | float) else 0.0
        elif start is None or start == "first":
            first = None if times.calendar is not None else first_time(lines, trial(), told)
            rate = usual_rate(model, trained, pooled=False)
            begin = inferred_start(trained, first, rate, tell, at_first=start == "first")
        else:
            begin = start_time(start, times)
        settings = {
            "keep": keep,
            "by": by,
            "start": begin,
            "max_gap": max_gap,
            "time": time,
            "mark": mark,
            "attended": attended or None,
            "alarms": level,
        }
        tables = beside or Beside()
        settings |= tables.settings()
        if before is not None:
            _check_settings(before.settings, settings, state)
        context = tables.context(times, begin)
        if trained.log is not None and trained.log.exposure and tables.exposure is None:
            tell(
                "warning: the model was fitted with an exposure, and this feed has none: it is "
                "assumed to be 1 (--exposure FILE)"
            )
        memory = None if before is None else before.stream
        store = None if by is None or state is None else Store(state, durable=True)
        if store is not None:
            files.callback(store.close)
        scorer: Scorer
        if by is None:
            scorer = Single(
                model, keep, begin, memory, attended=attended, alarms=level, context=context
            )
        else:
            scorer = Entities(
                model,
                keep,
                begin,
                memory,
                store,
                limit,
                alarms=level,
                fleet=times.calendar is None,
                context=context,
            )
            tell(scorer.memory)
        if before is not None:
            lines.resume(before)
            tell(f"continuing after line {before.line:,} of {lines.name}")
        scores = files.enter_context(closing(Output(output, before)))
        tally = before.tally if before else Tally()
        loop = Loop(lines, scores, scorer, reader, state, settings, every, follow, tell, tally)
        loop.max_skipped = max_skipped
        loop.dates = times.dates()
        loop.carried = CarriedForward(context)
        if store is not None and isinstance(scorer, Entities):
            loop.saver = files.enter_context(closing(EntitySaver(scorer.bank, store)))
        if max_gap != "none":
            reached = before.reached if before else None
            loop.plausible = time_check(model, trained, times, begin, by, longest, reached)
        with _progress(lines) as show, short_collections():
            return loop.to_the_end(told, show)


def _check_options(
    input: Path | None,
    output: Path | None,
    state: Path | None,
    keep: int | None,
    by: str | None,
    every: int | None,
    limit: int | None,
) -> None:
    for name, number in (("--keep", keep), ("--every", every), ("--limit", limit)):
        if number is not None and number < 1:
            raise UserError(f"{name} of at least 1", f"{number}", f"Raise {name}, or leave it out.")
    if by in ("time", "mark", ""):
        raise UserError(
            "--by with the field that names an event's entity",
            f"{by!r}",
            "Name another field of the input.",
        )
    named = [path.resolve() for path in (input, output, state) if path is not None]
    if len(set(named)) < len(named):
        raise UserError(
            "different files for --input, --output and --state",
            ", ".join(map(str, named)),
            "Rename one of them.",
        )
    for path in (output, state):
        if path is not None:
            check_place(path)
    if state is not None and (output is None or (output.exists() and not output.is_file())):
        raise UserError(
            (
                "--output FILE with --state, since a restart cuts the output back to what the "
                "state knows"
            ),
            "standard output" if output is None else f"{output}, which is not a file",
            "Name a file with --output, or leave --state out.",
        )


def longest_gap(typed: float | str) -> float | None:
    """--max-gap as a number; None for "auto" and "none"."""
    if typed in ("auto", "none"):
        return None
    try:
        gap = float(typed)
    except ValueError:
        gap = math.nan
    if not gap > 0:
        expected = "--max-gap as a positive number of the model's unit of time, auto or none"
        raise UserError(expected, f"{typed!r}", "Leave --max-gap out, or type --max-gap 24, say.")
    return gap


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise UserError(
            "--max-skipped as a share from 0 to 1",
            f"{share}",
            "Type --max-skipped 0.05 for 5%, say.",
        )


def check_clock(trained: Trained, time_unit: str | None, timezone: str | None) -> None:
    """Refuse a unit or a zone other than those of the training data."""
    remedy = "Leave the option out, or fit a model with it."
    if time_unit is not None and unit_named(time_unit) != trained.unit:
        if trained.unit:
            expected = f"--time-unit {trained.unit}, as in training"
        else:
            expected = "no --time-unit, since the model's unit has no name"
        raise UserError(expected, f"--time-unit {time_unit}", remedy)
    zone = None if trained.log is None else trained.log.zone
    if timezone is not None and timezone != zone:
        if zone is None:
            expected = "no --timezone, as in training"
        else:
            expected = f"--timezone {zone}, as in training"
        raise UserError(expected, f"--timezone {timezone}", remedy)


def entity_column(
    log: LogFormat | None, by: str | None, times: TimeReader, tell: Callable[[str], None]
) -> str | None:
    """The column of the entities, or the unit of the calendar; None for one stream."""
    if times.calendar is not None:
        if by not in (None, times.calendar):
            expected = f"--by {times.calendar}, since the model was fitted to each {times.calendar}"
            raise UserError(
                expected,
                f"--by {by}",
                "Leave --by out, or fit a model to sequences of that column.",
            )
        return times.calendar
    if by == "none":
        return None
    if by is None and log is not None and log.sequence is not None:
        tell(f"one stream per {log.sequence!r}, as in training (--by none for one stream)")
        return log.sequence
    return by


def start_time(start: float | str, times: TimeReader) -> float:
    """When the observation began, in the model's unit of time."""
    try:
        begin = float(start)
    except ValueError:
        begin = times.text(str(start)).time
    if not math.isfinite(begin):
        raise UserError(
            "a finite --start", f"{start}", "Type a number of the model's unit of time."
        )
    return begin


def _try_first_lines(input: Path, reader: EventReader) -> None:
    """Read the first lines of a file before anything is written, so that a feed of another kind is
    refused.
    """
    if not input.is_file():
        return
    with input.open("rb") as file:
        first = file.read(2 * LONGEST)
    for number, content in enumerate(first.split(b"\n")[:-1], start=1):
        if isinstance(
            reader(Line(number, content if len(content) <= LONGEST else None, len(content))), Event
        ):
            return


def time_check(
    model: PointProcess,
    trained: Trained,
    times: TimeReader,
    start: float,
    by: str | None,
    longest: float | None,
    reached: Reached | None,
) -> TimeCheck:
    """The check of times: with the rate of the training data, or of the model before any event
    where that is unknown.
    """
    rate = usual_rate(model, trained, pooled=by is not None and times.calendar is None)
    since = start if trained.ended is None else trained.ended
    clock = times.wall_clock()
    if clock is not None and times.calendar is None and clock.ahead(since) > SLACK:
        clock = (
            None  # the training data itself lies in the future: its clock is not that of the wall
        )
    begin = -math.inf if times.calendar is not None else start
    return TimeCheck(begin, since, rate, most=longest, calendar=clock, reached=reached)


def usual_rate(model: PointProcess, trained: Trained, *, pooled: bool) -> float:
    """Events per unit of time: of the training data, or of the model before any event where that is
    unknown.
    """
    rate = trained.rate(pooled=pooled)
    if rate is None:
        from fourpoint.streaming.stream import Stream

        rate = float(Stream(model, top=0, alarms=None).intensity(0.0).sum())
    return rate


def alarm_level(typed: float | str | None) -> float | None:
    """--alarms as a number; None for no alarms."""
    if typed is None or typed == "none":
        return None
    try:
        level = float(typed)
    except ValueError:
        level = math.nan
    if not 0 < level < 1:
        expected = "--alarms as a number of false alarms per 1,000 events between 0 and 1, or none"
        raise UserError(expected, f"{typed!r}", "Type --alarms 0.001, say.")
    return level


def _check_settings(before: dict[str, Any], now: dict[str, Any], state: Path | None) -> None:
    for name, value in now.items():
        if before.get(name) != value:
            raise UserError(
                f"{_option(name, before.get(name))}, as when {state} was written",
                _option(name, value),
                "Use the same options, or another --state and --output to start again.",
            )


def _option(name: str, value: object) -> str:
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return option
    return f"no {option}" if value is None else f"{option} {value}"


@contextmanager
def short_collections() -> Iterator[None]:
    """Take the objects that exist now out of garbage collection, and collect less often.

    Those of torch alone are hundreds of thousands, and to visit all of them stops every thread for
    up to a second on a busy machine. A batch has thousands of objects, none of them in a cycle, and
    with the interpreter's default of 700 they are visited several times before they go.
    """
    usual = gc.get_threshold()
    frozen = gc.get_freeze_count() > 0
    if not frozen:
        gc.freeze()
    if usual[0] > 0:  # 0: the user has turned it off
        gc.set_threshold(max(usual[0], FEWEST_COLLECTED), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        if not frozen:
            gc.unfreeze()


@contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collects SIGTERM and SIGINT instead of dying of them; a second one finds the handlers that
    were there before.
    """
    told: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def note(number: int, frame: object) -> None:
        told.append(number)
        give_back()

    for number in before:
        signal.signal(number, note)
    try:
        yield told
    finally:
        give_back()


@contextmanager
def _progress(lines: Lines) -> Iterator[Callable[[int], None]]:
    """A bar with the time left, called with the bytes done; nothing for a feed without a known end,
    or without a terminal.
    """
    total = lines.size
    if total is None or sys.stderr is None or not sys.stderr.isatty():
        yield lambda offset: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        text_column(),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=plain_console(stderr=True), transient=True) as bar:
        task = bar.add_task("scoring", total=total, completed=lines.offset)
        shown = 0.0

        def update(offset: int) -> None:
            nonlocal shown
            if clocks.monotonic() > shown + 0.1:
                shown = clocks.monotonic()
                bar.update(task, completed=offset)

        yield update


def to_stderr(text: str) -> None:
    """Print a notice for the user."""
    with suppress(OSError):  # scoring goes on where nobody reads the notices
        sys.stderr.write(console_lines(text) + "\n")
        sys.stderr.flush()
