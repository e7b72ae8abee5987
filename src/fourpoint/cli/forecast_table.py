"""`fourpoint forecast -o FILE`: forecasts of one sequence or of all as a table in a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from fourpoint.cli.checks import check_applies
from fourpoint.cli.console import print_all, print_notice
from fourpoint.cli.options import ReadingOptions
from fourpoint.errors import UserError

if TYPE_CHECKING:
    from fourpoint.data.event_files import EventFiles
    from fourpoint.events import Dataset
    from fourpoint.inference.forecasts import Plan
    from fourpoint.models.base import PointProcess

QUANTILES = "0.05,0.5,0.95"
WINDOWS = 4  # of a horizon, without a table
A_TABLE = "a table of forecasts (-o)"


@dataclass(frozen=True)
class TableOptions:
    """What was typed for a table: the file, from when and how far, and how events are counted."""

    output: Path | None
    everything: bool
    horizon: str
    by: str | None
    at: str | None
    paths: int | None
    quantiles: str | None
    seed: int
    probability: float | None = None
    pooled: tuple[Path, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether a table is asked for."""
        return self.everything or self.output is not None

    def check(self, sequence: str | None, others: dict[str, bool]) -> None:
        """Refuse what does not go together; ``others`` are options that only a forecast without a
        table has, and whether they were left out.
        """
        if not self.wanted:
            check_applies("a forecast without -o FILE", "--quantiles", self.quantiles is None)
            check_applies("a forecast without -o FILE", "--interval", self.probability is None)
            check_applies("a forecast without -o FILE", "--pool", not self.pooled)
            return
        if self.output is None:
            raise UserError(
                "a file for the forecasts of all sequences",
                "--all without -o",
                "Add -o forecasts.parquet, or .csv.",
            )
        check_applies(
            "a forecast of all sequences", "--sequence", not self.everything or not sequence
        )
        for option, left_out in others.items():
            check_applies(A_TABLE, option, left_out)
        from fourpoint.inference.forecasts import check_table_file, checked_interval

        checked_interval(self.probability)
        check_table_file(self.output)
        self.levels()

    def check_intervals(self, events: Dataset, length: float, windows: int | None) -> None:
        """Refuse intervals of a printed forecast that do not divide its horizon, ``length``."""
        from fourpoint.events.dates import in_units

        if self.by is None:
            return
        check_applies("a forecast with --by", "--windows", windows is None)
        interval = in_units(self.by, events.unit)
        count = round(length / interval) if interval > 0 else 0
        if count < 1 or abs(count * interval - length) > 1e-9 * length:
            raise UserError(
                "intervals that divide the horizon",
                f"--by {self.by} with --horizon {self.horizon}",
                "Choose another length, or write a table with -o FILE.",
            )

    def printed_by(self, events: Dataset) -> float | str | None:
        """``--by`` of a printed forecast: a number in the unit of ``events`` without dates."""
        from fourpoint.events.dates import in_units

        if self.by is None or events.dates(0) is not None:
            return self.by
        return in_units(self.by, events.unit)

    def models(self) -> tuple[PointProcess, ...]:
        """The models of ``--pool``."""
        from fourpoint.storage.checkpoints import restore

        return tuple(restore(folder) for folder in self.pooled)

    def plan(
        self, model: PointProcess, pooled: tuple[PointProcess, ...], paths: int, events: Dataset
    ) -> Plan:
        """What is to be forecast of ``events``."""
        from fourpoint.inference.forecasts import plan_with, planned

        found = planned(
            model, events, self.horizon, self.by, self.at, paths, self.seed, self.levels()
        )
        return plan_with(replace(found, interval=self.probability), pooled)

    def levels(self) -> tuple[float, ...]:
        """The quantiles as numbers."""
        words = (self.quantiles or QUANTILES).split(",")
        try:
            return tuple(float(word) for word in words)
        except ValueError:
            raise UserError(
                "quantiles as numbers with commas between them",
                f"--quantiles {self.quantiles!r}",
                f"Type --quantiles {QUANTILES}, say.",
            ) from None


def interval_or_column(
    by: str | None, reading: ReadingOptions
) -> tuple[str | None, ReadingOptions]:
    """``--by`` is the length of an interval (1d, 6h, 2.5). A word that is no length names the
    column that tells sequences apart, as ``--group-by`` does.

    >>> interval_or_column("1d", ReadingOptions())[0]
    '1d'
    >>> interval_or_column("customer", ReadingOptions())[1].sequence
    'customer'
    """
    if by is None or by.strip()[:1].isdigit() or by.strip()[:1] in ("", ".", "+", "-"):
        return by, reading
    if reading.sequence is not None:
        raise UserError(
            "the length of an interval with --by",
            f"--by {by!r} beside --group-by {reading.sequence!r}",
            "Type a length such as --by 1d.",
        )
    return None, replace(reading, sequence=by)


def write_table(
    model: PointProcess,
    events: Dataset | EventFiles,
    sequence: str | None,
    options: TableOptions,
    json: bool,
    jobs: int | None = None,
    ray: str | None = None,
) -> None:
    """Forecast one sequence or all of ``events`` and write the table, in this process, in ``jobs``
    processes or on a Ray cluster.
    """
    from fourpoint.cli.reading import chosen_sequence
    from fourpoint.data.event_files import EventFiles
    from fourpoint.inference.forecasts import (
        PATHS,
        forecast_files,
        forecast_in_tasks,
        forecast_parts,
        forecast_task,
        notes_of,
        schema_of,
        write_parts,
    )
    from fourpoint.workers import Numbered, open_executor

    assert options.output is not None  # `TableOptions.check` asks
    paths = PATHS if options.paths is None else options.paths
    pooled = options.models()
    plan_of = partial(options.plan, model, pooled, paths)
    if isinstance(events, EventFiles):
        first = plan_of(events.sample(1, options.seed))
        parts = forecast_files(model, events, plan_of, progress=True)
    else:
        if not options.everything:
            row = events.ids.index(chosen_sequence(events, sequence).id)
            events = events.select([row])
        first = plan_of(events)
        parts = forecast_parts(model, first, progress=True)
    for note in notes_of(model, first):
        print_notice(note)
    began = monotonic()
    schema = schema_of(first)
    if jobs is None and ray is None:
        rows = write_parts(options.output, schema, parts)
    else:
        with open_executor(Numbered(forecast_task), jobs=jobs or 1, ray=ray) as executor:
            tables = forecast_in_tasks(executor, model, events, plan_of, progress=True)
            rows = write_parts(options.output, schema, tables)
    numbers = {
        "file": str(options.output),
        "sequences": len(events),
        "rows": rows,
        "paths": paths,
        "seconds": round(monotonic() - began, 3),
    }
    counted = f"{_counted(rows, 'row')}, {_counted(len(events), 'sequence')}"
    said = f"{options.output}: {counted}, {_counted(paths, 'path')} each"
    if pooled:
        numbers["models"] = 1 + len(pooled)
        said = f"{said}, drawn from {1 + len(pooled)} models in equal shares"
    print_all(numbers, [said], json)


def _counted(count: int, what: str) -> str:
    """A number of things.

    >>> _counted(1, "row"), _counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
