"""`fourpoint predict`: the predictions with the least expected loss, printed or in a file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from fourpoint.cli.console import print_all, print_notice
from fourpoint.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table

    from fourpoint.events import Dataset
    from fourpoint.models.base import PointProcess

SHOWN = 20  # rows that are printed


@dataclass(frozen=True)
class PredictionOptions:
    """What was typed."""

    score: str
    steps: int
    horizon: str | None
    at: str | None
    output: Path | None
    paths: int
    insert: float | None
    delete: float | None
    delta: float | None
    time_budget: float | None
    seed: int

    def check(self) -> None:
        """Refuse what cannot be right before anything is read."""
        from fourpoint.inference.forecasts import check_table_file
        from fourpoint.inference.predicting import SCORES

        if self.score not in SCORES:
            raise UserError(
                f"a score out of {', '.join(SCORES)}",
                f"--score {self.score}",
                "Choose one of them.",
            )
        others = {
            "--insert": (self.insert, "otd"),
            "--delete": (self.delete, "otd"),
            "--delta": (self.delta, "tmap"),
        }
        for option, (given, score) in others.items():
            if given is not None and self.score != score:
                raise UserError(
                    f"--score {score} for {option}", f"--score {self.score}", "Leave it out."
                )
        if self.output is not None:
            check_table_file(self.output)


def print_predictions(
    model: PointProcess,
    events: Dataset,
    sequence: str | None,
    options: PredictionOptions,
    json: bool,
) -> None:
    """Predict one sequence or all of ``events``, and print or write the table."""
    from fourpoint.cli.reading import chosen_sequence
    from fourpoint.inference.predicting import (
        mean_gap,
        notes_on,
        planned_prediction,
        prediction_parts,
        prediction_schema,
        write_predictions,
    )

    gap = mean_gap(events)
    if sequence is not None:
        events = events.select([events.ids.index(chosen_sequence(events, sequence).id)])
    plan = planned_prediction(
        model,
        events,
        options.score,
        steps=options.steps,
        horizon=options.horizon,
        at=options.at,
        paths=options.paths,
        insert=options.insert,
        delete=options.delete,
        delta=options.delta,
        seed=options.seed,
        time_budget=options.time_budget,
        gap=gap,
    )
    for note in notes_on(plan):
        print_notice(note)
    began = monotonic()
    if options.output is not None:
        rows = write_predictions(model, plan, options.output, progress=True)
        numbers = {
            "file": str(options.output),
            "score": options.score,
            "sequences": len(events),
            "rows": rows,
            "seconds": round(monotonic() - began, 3),
        }
        print_all(numbers, [f"{options.output}: {rows:,} rows, {len(events):,} sequences"], json)
        return
    import pyarrow as pa

    parts = list(prediction_parts(model, plan, progress=True))
    table = pa.concat_tables([prediction_schema(plan).empty_table(), *parts])
    found = {"score": options.score, "predictions": _as_rows(table)}
    print_all(found, [_shown(table, options.score)], json)


def _as_rows(table: pa.Table) -> list[dict[str, object]]:
    """Rows with dates as text."""
    rows = table.to_pylist()
    return [
        {
            name: value.isoformat() if isinstance(value, date) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _shown(table: pa.Table, score: str) -> Table:
    """The first rows for a terminal."""
    from fourpoint.report.printing import text_table

    rest = table.num_rows - SHOWN
    caption = f"{rest:,} more rows: write them with -o FILE" if rest > 0 else None
    shown = text_table(f"Predictions for {score}", caption=caption, box=None, pad_edge=False)
    for name in table.column_names:
        shown.add_column(name)
    for row in _as_rows(table.slice(0, SHOWN)):
        shown.add_row(*(_cell(value) for value in row.values()))
    return shown


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
