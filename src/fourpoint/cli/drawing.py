"""Sequences drawn from a saved model: in its training window, or between numbers or dates, with
what the model needs to know of that time (calendar, covariates, exposure).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fourpoint.cli.console import print_notice
from fourpoint.cli.options import ReadingOptions
from fourpoint.errors import UserError

if TYPE_CHECKING:
    from fourpoint.events import Dataset, MarkSpace
    from fourpoint.events.dates import Dates
    from fourpoint.log_format import LogFormat


def draw_from_model(
    folder: Path,
    sequences: int,
    start: str | None,
    stop: str | None,
    seed: int,
    most: int | None,
    tables: ReadingOptions,
) -> tuple[Dataset, str]:
    """Sequences of a saved model, in its training window by default, and a line about them.

    Where the model was fitted to dates, so are the sequences: times count from the origin of the
    training log, or from a date given as ``start`` where its sequences had origins of their own.
    """
    import numpy as np

    from fourpoint.events.dates import as_number, time_at
    from fourpoint.inference.sampling import sample_paths
    from fourpoint.log_format import LogFormat
    from fourpoint.storage.checkpoints import about, restore

    model = restore(folder)
    known = about(folder)
    stored = known.get("log")
    log = LogFormat("time") if stored is None else LogFormat.from_dict(stored)
    unit = str(known.get("unit") or "")
    dates = _dates(log, unit, start)
    begin = known.get("start") if start is None else time_at(dates, start)
    end = known.get("stop") if stop is None else time_at(dates, stop)
    if stop is None and start is not None and as_number(start) is None and begin is not None:
        length = float(known["stop"]) - float(known["start"])
        end = float(begin) + length
    if begin is None or end is None:
        raise UserError(
            "a window to simulate",
            f"none was saved in {folder}",
            "Give it with --start and --stop.",
        )
    window = (float(begin), float(end))
    empty = _surroundings(window, dates, unit, log, tables, model.marks)
    history = None if empty.context is None else empty
    found = sample_paths(model, *window, sequences, seed, history=history, most=most, progress=True)
    drawn = replace(found.data, unit=unit)
    if empty.context is not None:
        every = empty.context.select(np.zeros(sequences, dtype=np.int64))
        drawn = replace(drawn, context=every, log=empty.log)
    return drawn, str(found)


def _dates(log: LogFormat, unit: str, start: str | None) -> Dates | None:
    """The dates of the sequences to draw; None where the model was fitted to numbers, or nothing
    says when its time 0 should be.
    """
    import numpy as np

    from fourpoint.events.dates import SECONDS, Dates, as_number

    if unit not in SECONDS:
        return None
    if log.origin is not None:
        since = np.datetime64(log.origin, "us").astype(np.int64)
        return Dates(float(since) / 1e6, unit, log.zone)
    if start is None or as_number(start) is not None:
        return None
    return Dates(Dates(0.0, "seconds", log.zone).time(start), unit, log.zone)


def _surroundings(
    window: tuple[float, float],
    dates: Dates | None,
    unit: str,
    log: LogFormat,
    tables: ReadingOptions,
    marks: MarkSpace,
) -> Dataset:
    """One sequence without events that has the context of the window."""
    import numpy as np

    from fourpoint.cli.reading import asked, with_known_covariates
    from fourpoint.data.context_tables import with_tables
    from fourpoint.events import Context, Dataset

    given = asked(tables)
    period = given.covariates_as_of
    if period is None and given.covariates is not None:
        period = log.as_of
    given = replace(given, levels=log.levels, known_zone=log.zone, covariates_as_of=period)
    empty = Dataset(
        np.zeros(0),
        np.zeros(0, dtype=np.int64),
        np.array([0, 0]),
        np.array([window[0]]),
        np.array([window[1]]),
        marks,
        unit=unit,
        log=log,
        context=None if dates is None else Context(origin=np.array([dates.origin])),
    )
    found, notes = with_tables(empty, given.tables())
    for note in notes:
        print_notice(note)
    return with_known_covariates(found, log.covariates)
