"""The command line with places: columns, bounds, the model chosen, maps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app

FAST = [
    word
    for pair in (
        "steps=4",
        "validate_every=2",
        "frequencies=2",
        "order=4",
        "cells=2",
        "baselines=false",
    )
    for word in ("--set", pair)
]


def call(*words: object, code: int = 0) -> Any:
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows as a user may have them: days, places, kinds."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("places") / "quakes.csv"
    when = np.sort(rng.uniform(0, 12 * 24, 120))
    stamps = np.datetime64("2024-05-01T00:00:00") + (when * 3600).astype("timedelta64[s]")
    rows = [
        f"{t},{x:.3f},{y:.3f},{k}"
        for t, x, y, k in zip(
            stamps,
            rng.uniform(-9, 9, 120),
            rng.uniform(40, 45, 120),
            rng.choice(["a", "b"], 120),
            strict=True,
        )
    ]
    path.write_text("Time,Longitude,Latitude,Kind\n" + "\n".join(rows) + "\n")
    return path


def test_from_a_table_to_a_map(table: Path, tmp_path: Path) -> None:
    seen = call("data", "inspect", table)
    assert (
        "--place Longitude --place Latitude" in seen.output and "Longitude -9 to 9" in seen.output
    )
    place = ["--place", "longitude", "--place", "Latitude"]
    fitted = call(
        "fit",
        table,
        "--time",
        "Time",
        "--sequence",
        "day",
        *place,
        "--bounds",
        "Longitude=-10:10",
        "-o",
        tmp_path / "m",
        *FAST,
    )
    assert (
        "model: spatial-dapp, since events have places (Longitude -10 to 10, Latitude"
        in fitted.output
        and "saved spatial-dapp" in fitted.output
    )
    judged = call(
        "evaluate",
        tmp_path / "m",
        table,
        "--time",
        "Time",
        "--sequence",
        "day",
        "--split",
        "all",
        "--json",
    )
    numbers = json.loads(judged.stdout[judged.stdout.index("{") :])
    assert numbers["events"] == 120 and numbers["goodness"]["total"]["count"] == 120
    call(
        "forecast",
        tmp_path / "m",
        table,
        "--time",
        "Time",
        "--by",
        "day",
        "--sequence",
        "2024-05-03",
        "--at",
        12,
        "--horizon",
        3,
        "--paths",
        20,
        "--map",
        tmp_path / "map.png",
    )
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    drawn = call("simulate", tmp_path / "m", "--sequences", 3, "-o", tmp_path / "s.parquet")
    assert (
        "2 types in Longitude -10 to 10" in drawn.output
        and fp.read(tmp_path / "s.parquet").places is not None
    )


def test_hawkes_and_poisson_with_places_and_without(table: Path, tmp_path: Path) -> None:
    common = [table, "--time", "Time", "--sequence", "day"]
    place = ["--place", "Longitude", "--place", "Latitude"]
    assert (
        "saved spatial-hawkes"
        in call(
            "fit", *common, *place, "--mark", "none", "--model", "hawkes", "-o", tmp_path / "h"
        ).output
    )
    assert (
        "saved poisson"
        in call(
            "fit", *common, *place, "--model", "poisson", "--set", "cells=4", "-o", tmp_path / "p"
        ).output
    )
    refused = call("fit", *common, *place, "--model", "nhp", "-o", tmp_path / "n", code=2)
    assert (
        "events without places for nhp" in refused.output
        and "spatial-dapp, spatial-hawkes" in refused.output
        and not (tmp_path / "n").exists()
    )
    assert (
        "saved hawkes in"
        in call("fit", *common, "--place", "none", "--model", "hawkes", "-o", tmp_path / "k").output
    )


@pytest.mark.parametrize("bounds", ["Longitude", "Longitude=a:b", "Longitude=1"])
def test_bounds_that_cannot_be_read(table: Path, tmp_path: Path, bounds: str) -> None:
    found = call(
        "fit", table, "--place", "Longitude", "--bounds", bounds, "-o", tmp_path / "m", code=2
    )
    assert "--bounds as COLUMN=LOW:HIGH" in found.output


def test_embedded_earthquakes_without_their_places(tmp_path: Path) -> None:
    call("fit", "earthquakes", "--place", "none", "--model", "poisson", "-o", tmp_path / "p")
    assert fp.restore(tmp_path / "p").marks.box is None
    assert (
        "saved poisson"
        in call("fit", "earthquakes", "--model", "poisson", "-o", tmp_path / "q").output
    )
    other = call("evaluate", tmp_path / "p", "earthquakes", code=2)
    assert "events without places, as the model has" in other.output


def test_other_formats_refuse_places(tmp_path: Path) -> None:
    fp.write(fp.simulate("space_time_hawkes", 2), tmp_path / "s.parquet")
    assert (
        "which easytpp cannot hold"
        in call("data", "convert", tmp_path / "s.parquet", tmp_path / "s.json", code=2).output
    )
    assert not (tmp_path / "s.json").exists()
