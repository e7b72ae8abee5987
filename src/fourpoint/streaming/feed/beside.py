"""Tables beside a feed: covariates and the exposure, known when it starts.

They are read as `fit` reads them (`data.context_tables`), with the columns and words of the
training log, for one window that opens when the observation begins. Values hold from their time on
until the next row; the last ones are carried forward, and the first event after the end of a table
is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fourpoint.data.context_tables import Impute, Tables, sequence_column, with_tables
from fourpoint.events import Context, Dataset, Sequence, Steps, UserError
from fourpoint.log_format import LogFormat
from fourpoint.streaming.feed.times import TimeReader


@dataclass(frozen=True)
class Beside:
    """Files of covariates and of an exposure, as typed; None where there are none."""

    covariates: Path | None = None
    exposure: Path | None = None
    impute: Impute | None = None

    def settings(self) -> dict[str, bool | None]:
        """Which tables there are, as a state keeps it: a run that goes on must have them too."""
        given = {"covariates": self.covariates, "exposure": self.exposure}
        return {name: None if path is None else True for name, path in given.items()}

    def context(self, times: TimeReader, begin: float) -> Context | None:
        """What the tables say of a feed that is observed from ``begin`` on; None without tables.

        Raises :class:`UserError` for a model of windows of the calendar, each of which has a time 0
        of its own, and for tables with rows about single entities.
        """
        paths = {"covariates": self.covariates, "exposure": self.exposure}
        given = {name: path for name, path in paths.items() if path is not None}
        if not given:
            return None
        if times.calendar is not None:
            raise UserError(
                f"a model of one long log for --{next(iter(given))}",
                f"one that was fitted to each {times.calendar}",
                "Fit it with --sequence none, or score whole files with fourpoint evaluate.",
            )
        log = times.log if times.known else LogFormat("time")
        for name, path in given.items():
            column = sequence_column(path, log)
            if column is not None:
                raise UserError(
                    f"a table for --{name} that holds for all streams",
                    f"a column {column!r} in {path}",
                    "Leave the column out, or score whole files with fourpoint evaluate.",
                )
        origin = None
        dates = times.dates()
        if dates is not None:
            origin = Context(origin=np.array([dates.origin]))
        # Only its begin matters: the end of a feed is not known.
        window = Sequence([], start=begin, stop=begin + 1e-6 * (1 + abs(begin)), context=origin)
        empty = replace(Dataset.from_sequences([window], unit=times.unit), log=log)
        tables = Tables(
            exposure=self.exposure,
            covariates=self.covariates,
            impute=self.impute,
            levels=log.levels,
            timezone=log.zone,
            covariates_as_of=log.as_of if self.covariates is not None else None,
        )
        return with_tables(empty, tables)[0].context


class CarriedForward:
    """Tells once for each table that events have come after its end.

    >>> steps = Steps.constant(("rain",), [[1.0]])
    >>> carried = CarriedForward(Context(covariates=steps))
    >>> carried(0.0), carried(2.0), carried(3.0)
    ([], ['covariates: the table ends before the event at 2; its last values are carried ...'], [])
    """

    def __init__(self, context: Context | None) -> None:
        self._ends: dict[str, float] = {}
        if context is None:
            return
        for name, steps in (("covariates", context.covariates), ("exposure", context.exposure)):
            if steps is not None:
                self._ends[name] = _end(steps)

    def __call__(self, time: float) -> list[str]:
        """Notes about the tables that end before ``time`` and were not told of yet."""
        over = [name for name, end in self._ends.items() if time > end]
        for name in over:
            del self._ends[name]
        return [
            f"{name}: the table ends before the event at {time:g}; its last values are carried "
            "forward"
            for name in over
        ]


def _end(steps: Steps) -> float:
    """Until when the last row of a table is expected to hold: as long as rows do otherwise."""
    usual = float(np.median(np.diff(steps.times))) if len(steps.times) > 1 else 0.0
    return float(steps.times[-1]) + usual
