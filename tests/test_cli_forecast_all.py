"""The command that forecasts all sequences into a file, from files as users have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import csv, parquet
from test_cli_forecast import call, refused

import fourpoint as fp
from fourpoint.events import Dataset, MarkSpace, Sequence
from fourpoint.models import Hawkes
from fourpoint.storage.checkpoints import save

MARKS = MarkSpace.categorical(["fire", "medical"])
COLUMNS = "sequence mark start stop mean q05 q50 q95 p_any".split()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A marked data set in hours, and a model of its kind."""
    rng = np.random.default_rng(0)
    sequences = [
        Sequence(
            np.sort(rng.uniform(0, 10, 12)),
            rng.integers(0, 2, 12),
            start=0,
            stop=10,
            space=MARKS,
            id=f"day-{i}",
        )
        for i in range(5)
    ]
    fp.write(Dataset.from_sequences(sequences, unit="hours"), tmp_path / "calls.parquet")
    about = {"unit": "hours", "start": 0.0, "stop": 10.0}
    save(Hawkes(MARKS, baseline=0.5, branching=0.2, decay=1.0), tmp_path / "model", about=about)
    return tmp_path


def test_all_sequences_are_forecast_into_a_file(place: Path) -> None:
    words = (place / "model", place / "calls.parquet", "--horizon", "150min", "--by", "1h")
    told = call("forecast", *words, "--all", "-o", place / "all.parquet").stdout
    assert "45 rows, 5 sequences, 200 paths each" in told.replace("\n", " ")
    table = parquet.read_table(place / "all.parquet")
    assert table.column_names == COLUMNS and table.num_rows == 5 * 3 * 3
    assert table.column("mark").to_pylist()[:3] == ["", "fire", "medical"]
    assert table.column("stop").to_pylist()[:9:3] == [11.0, 12.0, 12.5]
    data = fp.read(place / "calls.parquet")
    model = fp.restore(place / "model")
    assert fp.forecasts(model, data, "150min", by="1h").to_pydict() == table.to_pydict()
    call("forecast", *words, "--sequence", "day-3", "-o", place / "one.csv")
    one = csv.read_csv(place / "one.csv").to_pydict()
    rows = table.slice(27, 9).to_pydict()
    assert one["mean"] == rows["mean"] and one["sequence"] == ["day-3"] * 9


def test_options_of_the_table_are_heeded(place: Path) -> None:
    words = ("forecast", place / "model", place / "calls.parquet", "--horizon", 2, "--all")
    more = ("--quantiles", ".1,.9", "--paths", 7, "--at", 4, "--seed", 3, "--json")
    said = json.loads(call(*words, *more, "-o", place / "a.parquet").stdout)
    assert said["rows"] == 15 and said["paths"] == 7 and said["sequences"] == 5
    table = parquet.read_table(place / "a.parquet")
    assert table.column_names == [*COLUMNS[:5], "q10", "q90", "p_any"]
    assert set(table.column("start").to_pylist()) == {4.0}
    shares = 7 * np.array(table.column("p_any").to_pylist())
    assert np.allclose(shares, np.rint(shares))


def test_a_log_with_dates_gives_dates(tmp_path: Path) -> None:
    """One command from a CSV with local times, across the change of clocks in spring."""
    rng = np.random.default_rng(2)
    seconds = np.sort(rng.uniform(0, 28 * 86400, 300)).astype(np.int64)
    stamps = np.datetime64("2025-03-01T00:00:00") + seconds.astype("timedelta64[s]")
    stamps = stamps[(stamps < np.datetime64("2025-03-29")) | (stamps > np.datetime64("2025-04-01"))]
    who = rng.choice(["ann", "bob", "cid"], len(stamps))
    lines = [
        f"{name},{str(stamp).replace('T', ' ')}" for name, stamp in zip(who, stamps, strict=True)
    ]
    log = tmp_path / "buys.csv"
    log.write_text("\n".join(["customer,when", *lines]) + "\n")
    columns = ("--time", "when", "--timezone", "Europe/Berlin", "--time-unit", "days")
    call("fit", log, *columns, "--sequence", "customer", "--model", "hawkes", "-o", tmp_path / "m")
    words = ("forecast", tmp_path / "m", log, *columns, "--group-by", "customer")
    more = ("--all", "--at", "2025-03-28", "--horizon", "4d", "--by", "1d", "--paths", 20)
    call(*words, *more, "-o", tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.field("start").type.tz == "Europe/Berlin"
    rows = table.filter(np.array(table.column("sequence").to_pylist()) == "bob").to_pylist()
    assert [row["start"].isoformat() for row in rows] == [
        "2025-03-28T00:00:00+01:00",
        "2025-03-29T00:00:00+01:00",
        "2025-03-30T00:00:00+01:00",
        "2025-03-31T00:00:00+02:00",
    ]
    call(*words, *more, "-o", tmp_path / "out.csv")
    text = (tmp_path / "out.csv").read_text().splitlines()
    assert text[0].replace('"', "") == ",".join(COLUMNS) and len(text) == 1 + 3 * 4


def test_what_does_not_go_together_is_refused(place: Path) -> None:
    words = ("forecast", place / "model", place / "calls.parquet", "--horizon", 2)
    out = ("-o", place / "x.parquet")
    cases: list[tuple[tuple[Any, ...], str]] = [
        (("--all",), "--all without -o"),
        (("--all", "--sequence", "day-1", *out), "--sequence"),
        (("--all", "--plot", place / "x.png", *out), "--plot"),
        (("--all", "--windows", 3, *out), "--windows"),
        (("--all", "-o", place / "x.txt"), "x.txt"),
        (("--all", "-o", place / "none" / "x.csv"), "existing folder"),
        (("--all", "--quantiles", "a,b", *out), "--quantiles"),
        (("--all", "--by", "0h", *out), "0h"),
        (("--all", "--by", "1x", *out), "a unit of time"),
        (("--all", "--at", -1, *out), "at=-1"),
        (("--all", "--at", "2025-01-01", *out), "no dates"),
        (("--all", "--paths", 0, *out), "paths=0"),
        (("--all", "--by", "1h", "--group-by", "x", "--time", "no", *out), "no"),
        (("--sequence", "day-1", "--by", "45min"), "--by 45min"),
        (("--sequence", "day-1", "--by", "1h", "--windows", 2), "--windows"),
        (("--sequence", "day-1", "--quantiles", ".5"), "--quantiles"),
        (("--sequence", "nobody", *out), "nobody"),
        (out, "5 sequences"),
    ]
    for more, text in cases:
        assert text in refused(place, *words, *more).replace("\n", " "), more
    assert "horizon" in refused(place, *words[:3], "--horizon", 0, "--all", *out)


def test_intervals_of_a_printed_forecast(place: Path) -> None:
    words = ("forecast", place / "model", place / "calls.parquet", "--sequence", "day-1")
    found = json.loads(call(*words, "--horizon", "2h", "--by", "30min", "--json").stdout)
    assert [part["stop"] for part in found["counts"]] == [10.5, 11.0, 11.5, 12.0]
