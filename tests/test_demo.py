"""The demo in miniature: a few days and a few steps give every file, and the page says what the
numbers say.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fourpoint
from fourpoint.cli import demo
from fourpoint.cli.demo import removal_effects, run_demo
from fourpoint.events import Dataset, Sequence


def few_days(marks: tuple[str, ...]) -> Dataset:
    """Fourteen windows of 24 hours whose rate peaks in the afternoon."""
    rng = np.random.default_rng(1)
    space = fourpoint.MarkSpace(marks)
    days = []
    for i in range(14):
        times = np.sort(np.clip(rng.normal(15.0, 3.0, 12), 0.0, 23.9))
        kinds = rng.integers(0, len(marks), 12) if marks else None
        days.append(Sequence(times, kinds, start=0.0, stop=24.0, space=space, id=f"day {i}"))
    splits = np.array(["train"] * 10 + ["dev"] * 2 + ["test"] * 2)
    return replace(Dataset.from_sequences(days, unit="hours", name="few"), splits=splits)


@pytest.mark.parametrize("marks", [("EWR late", "JFK late"), ()], ids=["marks", "no marks"])
def test_the_demo_writes_page_model_and_numbers_that_agree(
    marks: tuple[str, ...], tmp_path: Path
) -> None:
    data = few_days(marks)
    path = run_demo(tmp_path / "demo", data=data, steps=4, time_budget=math.inf, progress=False)
    assert path == tmp_path / "demo" / "report.html"
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "comparison.csv",
        "comparison.json",
        "model",
        "report.html",
    ]
    rows = json.loads((path.parent / "comparison.json").read_text())
    assert [row["model"] for row in rows] == ["Poisson", "Spline Poisson", "Hawkes", "DAPP"]
    assert all(row["convention"] == "window" and row["integral_error"] < 1e-3 for row in rows)
    table = list(csv.DictReader((path.parent / "comparison.csv").read_text().splitlines()))
    assert [float(row["log_likelihood_per_event"]) for row in table] == [
        row["log_likelihood_per_event"] for row in rows
    ]
    assert rows[1]["gain_over_poisson"] == pytest.approx(
        rows[1]["log_likelihood_per_event"] - rows[0]["log_likelihood_per_event"]
    )

    model = fourpoint.restore(path.parent / "model")
    report = fourpoint.evaluate(model, data.part("test")).to_dict("window")
    assert report["log_likelihood_per_event"] == pytest.approx(
        rows[3]["log_likelihood_per_event"], abs=1e-6
    )

    page = path.read_text()
    best = max(rows, key=lambda row: row["log_likelihood_per_event"])["model"]
    assert (
        f'<tr class="best"><td>{best}</td>' in page
        and f"<strong>{best}</strong> predicts best" in page
    )
    assert page.count("<svg") == 9 and page.count('class="plot half"') == 4
    assert (
        f"on {demo._count(torch.get_num_threads(), 'CPU thread')}, best" in page
        and "1 CPU threads" not in page
    )
    forecast = page.split("What comes next?")[1].split("Does the model fit?")[0]
    assert re.search(
        r"expected <strong>\d+</strong> delays within the next 3 hours, and \d+ to \d+ of them",
        forecast,
    )
    assert (
        "A forecast with its interval" in forecast
        and "the 90% interval of the next delay" in forecast
    )
    check = page.split("Does the model fit?")[1].split("What was learned")[0]
    shown = fourpoint.goodness_of_fit(model, data.part("test")).total.ks_p
    assert "A check of the fit" in check and f"p = {demo._p_value(shown)}" in check
    assert "NaN" not in page and "nan nats" not in page


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log as the page describes it: a timestamp and a type."""
    rng = np.random.default_rng(0)
    seconds = np.sort(
        86400 * rng.integers(0, 30, 300)
        + (3600 * np.clip(rng.normal(14, 3, 300), 0, 23.9)).astype(int)
    )
    stamps = np.datetime64("2024-01-01T00:00:00") + seconds
    (tmp_path / "calls.csv").write_text(
        "ts,kind\n" + "".join(f"{stamp},{'ab'[i % 2]}\n" for i, stamp in enumerate(stamps))
    )
    monkeypatch.chdir(tmp_path)


def test_the_commands_of_the_page_run(calls: None) -> None:
    from typer.testing import CliRunner

    from fourpoint.cli.main import app

    for line in demo.COMMANDS.strip().splitlines():
        words = shlex.split(line.replace("--time-budget 60", "--time-budget 1"))
        found = CliRunner().invoke(app, words[1:])
        assert words[0] == "fourpoint" and found.exit_code == 0, f"{line}\n{found.output}"


def test_the_script_of_the_page_runs_with_what_is_installed(
    calls: None, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(demo.SCRIPT.replace("time_budget=60", "time_budget=1, progress=False"), {})
    assert "log likelihood per event" in capsys.readouterr().out


def test_make_help_counts_the_baselines(root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    assert "beside three baselines" in makefile and "two baselines" not in makefile


def test_the_effect_of_a_past_event_is_what_the_rate_loses_without_it() -> None:
    hawkes = fourpoint.Hawkes(baseline=1.0, branching=0.5, decay=2.0)
    day = Sequence([0.5, 1.0, 1.0, 3.5], start=0.0, stop=4.0)
    effects = removal_effects(hawkes, day, 2.0, chunk=2)
    np.testing.assert_allclose(
        effects[:, 0], 0.5 * 2.0 * np.exp(-2.0 * (2.0 - np.array([0.5, 1.0, 1.0]))), rtol=1e-12
    )
    assert removal_effects(hawkes, day, 0.2).shape == (0, 1)


def test_the_demo_command_hands_its_options_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from fourpoint.cli.main import app

    seen: dict[str, object] = {}
    monkeypatch.setattr(
        "fourpoint.cli.demo.run_demo",
        lambda folder, **options: seen.update(folder=folder, **options),
    )
    result = CliRunner().invoke(
        app, ["demo", "-o", str(tmp_path), "--seed", "4", "--time-budget", "7"]
    )
    assert result.exit_code == 0 and seen == {"folder": tmp_path, "seed": 4, "time_budget": 7.0}
