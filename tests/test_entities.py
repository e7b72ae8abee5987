"""Windows and covariates of sequences, from a table of entities or from columns of the events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data.inspecting import inspect
from fourpoint.events import EventDataError, UserError

PURCHASES = {
    "customer": ["a", "b", "a"],
    "when": ["2024-01-03 12:00", "2024-01-05 12:00", "2024-01-09 00:00"],
    "joined": ["2024-01-02", "2024-01-04", "2024-01-02"],
}
CUSTOMERS = {
    "Customer": ["c", "b", "a"],
    "plan": ["basic", "pro", "basic"],
    "first": ["2024-01-10", "2024-01-04", "2024-01-02"],
    "gone": ["2024-01-20", "2024-01-30", "2024-01-30"],
}


def purchases(**options: Any) -> fp.Dataset:
    return fp.read(PURCHASES, **{"sequence": "customer", "time_unit": "days", **options})


def test_a_window_may_begin_at_a_column_of_the_events() -> None:
    data = purchases(window=("Joined", "2024-02-01"))
    assert data.starts.tolist() == [0.0, 2.0] and data.stops.tolist() == [30.0, 30.0]
    assert data.times.tolist() == [1.5, 7.0, 3.5] and not data.inferred


def test_a_table_of_entities_adds_those_without_events() -> None:
    data = purchases(entities=CUSTOMERS, window=("first", "gone"), sequence_covariates="plan")
    assert data.ids == ("a", "b", "c") and data.lengths.tolist() == [2, 1, 0]
    assert data.starts.tolist() == [0.0, 2.0, 8.0] and data.stops.tolist() == [28.0, 28.0, 18.0]
    assert data.context is not None and data.context.covariates is not None
    assert data.context.covariates.names == ("plan=pro",)
    assert data.context.covariates.values[:, 0].tolist() == [0.0, 1.0, 0.0]


def test_the_first_column_of_entities_names_that_of_the_events() -> None:
    data = fp.read(PURCHASES, entities=CUSTOMERS, window=("first", "gone"))
    assert data.ids == ("a", "b", "c")


def test_numbers_have_windows_of_entities_too() -> None:
    visits = {"unit": [1, 2, 1], "t": [1.0, 2.0, 3.0], "since": [0.5, 1.0, 0.5]}
    data = fp.read(visits, time="t", sequence="unit", window=("since", 5))
    assert data.starts.tolist() == [0.5, 1.0] and data.stops.tolist() == [5.0, 5.0]
    units = {"unit": [3, 1, 2], "start": [1.0, 0.0, 0.0], "stop": [4.0, 5.0, 6.0]}
    data = fp.read(visits, time="t", sequence="unit", entities=units)
    assert data.ids == ("1", "2", "3")
    assert data.starts.tolist() == [0.0, 0.0, 1.0] and data.stops.tolist() == [5.0, 6.0, 4.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": ("joined", "gone")}, "a value of column 'joined' .* c, which has no events"),
        ({"entities": {"x": [1]}}, "a column 'customer' in the table of entities"),
        ({"entities": {"id": ["a", "b", "a"]}}, "one row for each value of 'id'.*'a' again at row"),
        ({"entities": {"id": ["a", "c"]}}, "a row in the table of entities .*none for 'b'"),
        ({"sequence": "day"}, "events with a column of sequences, for a table of entities"),
        ({"window": ("first", "2024-01-04 12:00")}, "start < stop; .* of sequence c"),
    ],
)
def test_faults_of_entities_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((EventDataError, UserError), match=words):
        purchases(**{"entities": CUSTOMERS, **options})


def test_a_window_of_columns_needs_sequences() -> None:
    with pytest.raises(EventDataError, match="a column of sequences, for windows of sequences"):
        purchases(sequence="none", window=("joined", "2024-02-01"))


def test_observed_intervals_bound_the_window_of_each_sequence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A forecast begins where the observation of a patient ended, not at the last event of all."""
    observed = {
        "customer": ["a", "b", "z"],
        "start": ["2024-01-01", "2024-01-04", "2024-01-01"],
        "stop": ["2024-01-10", "2024-01-06", "2024-01-02"],
    }
    data = purchases(observed=observed)
    assert (data.stops - data.starts).tolist() == [9.0, 2.0] and not data.inferred
    assert "1 of its sequences, such as z, have no events and are left out" in (
        capsys.readouterr().err
    )
    observed["stop"][0] = "2024-01-08"
    with pytest.raises(EventDataError, match=r"2024-01-09.* at event 1 of sequence a \(row 2\)"):
        purchases(observed=observed)


def test_inspect_tells_times_of_entities_from_covariates() -> None:
    notes = " ".join(inspect(PURCHASES).reading.notes)
    assert "--sequence customer" in notes
    notes = " ".join(inspect({**PURCHASES, "user": PURCHASES["customer"]}).reading.notes)
    assert "'joined' is a time of each 'user'" in notes and "--window joined 2024-01-10" in notes
    assert "--sequence-covariates joined" not in notes


def test_a_model_remembers_windows_and_covariates_of_sequences(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = ["unit,when"]
    units = ["unit,size,installed"]
    for k in range(40):
        units.append(f"u{k},{k % 3},2024-01-{1 + k % 9:02d}")
        days = np.sort(rng.uniform(10, 60, rng.poisson(3)))
        rows += [f"u{k},{np.datetime64('2024-01-01') + int(day)}" for day in days]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "units.csv").write_text("\n".join(units) + "\n")
    log, model = str(tmp_path / "log.csv"), str(tmp_path / "model")
    entities = ["--entities", str(tmp_path / "units.csv")]
    window = ["--window", "installed", "2024-04-01", "--sequence-covariates", "size"]
    fit = ["fit", log, "--sequence", "unit", *entities, *window, "--model", "frailty"]
    ended = CliRunner().invoke(app, [*fit, "--calendar", "none", "-o", model])
    assert ended.exit_code == 0, ended.output
    table = tmp_path / "out.csv"
    again = ["forecast", model, log, *entities, "--all", "--horizon", "30d", "-o", str(table)]
    ended = CliRunner().invoke(app, again)
    assert ended.exit_code == 0, ended.output
    assert "window: installed to 2024-04-01, as in training" in ended.output
    assert len(table.read_text().splitlines()) == 41
    ended = CliRunner().invoke(app, [word for word in again if word not in entities])
    assert ended.exit_code == 2 and "size, as the model was fitted to" in ended.output
