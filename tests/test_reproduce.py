"""`fourpoint reproduce` in miniature: every command, its numbers, and what becomes of cells that
fail, are killed or are there already.

The numbers below were made with these very settings. Three steps of training amplify nothing, so
that another machine or another
torch differs in the last digits only: the tolerance is 2 parts in 100 of an error and .01 nats of a
likelihood per event.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.events import UserError
from fourpoint.reproduce import commands, plan
from fourpoint.reproduce.cells import Record
from fourpoint.reproduce.commands import Options, reproduce
from fourpoint.reproduce.plan import QUICK, Cell, Setting, cells_of

_DAPP = dict(features=4, eval_features=16, heads=2)
TINY = replace(
    QUICK,
    sequences=20,
    test=4,
    real_train=6,
    real_test=2,
    longest=12,
    tolerance=1e-2,
    draws=20,
    features=(20, 50, 100),
    events=(3,),
    walks=100,
    building={
        "dapp": _DAPP,
        "odapp": _DAPP,
        **{f"{name}-nn": dict(generator=(4,)) for name in ("dapp-paper", "odapp-paper")},
        **dict.fromkeys(("dapp-paper", "odapp-paper"), dict(generator=(8,), eval_features=50)),
    },
    training={"*": dict(steps=3, batch_size=4, validate_every=2, nodes=2)},
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan.SETTINGS, "quick", TINY)


def options(
    folder: Path, *only: str, seeds: int = 1, fresh: bool = False, real: Path | None = None
) -> Options:
    return Options("quick", seeds, folder, real, only, jobs=0, fresh=fresh, progress=False)


def values(records: list[Record], metric: str) -> dict[str, float]:
    return {
        f"{r['model']}/{r['data']}": round(r["metrics"][metric], 4)
        for r in records
        if metric in r.get("metrics", {})
    }


ERRORS = {
    "hawkes/self_correcting": 46.155,
    "sahp/self_correcting": 41.767,
    "nhp/self_correcting": 46.7627,
    "rmtpp/self_correcting": 47.7465,
    "dapp-paper-dot/self_correcting": 57.4795,
    "odapp-paper-dot/self_correcting": 58.2507,
    "dapp-paper-nn/self_correcting": 55.0315,
    "odapp-paper-nn/self_correcting": 53.5589,
    "dapp-paper/self_correcting": 56.1049,
    "odapp-paper/self_correcting": 55.3078,
    "dapp/self_correcting": 45.2813,
    "odapp/self_correcting": 45.2815,
    "poisson/self_correcting": 47.0716,
    "spline-poisson/self_correcting": 42.5181,
}
LIKELIHOODS = {
    "hawkes/hawkes": 1.6951,
    "poisson/hawkes": 1.7042,
    "hawkes/self_correcting": 1.0445,
    "poisson/self_correcting": 1.0477,
    "hawkes/nonhomogeneous1": 2.7072,
    "poisson/nonhomogeneous1": 2.7073,
    "hawkes/nonhomogeneous2": 1.7806,
    "poisson/nonhomogeneous2": 1.7151,
    "hawkes/nyc_delays": -0.3504,
    "poisson/nyc_delays": -0.9839,
}


def test_table1(tmp_path: Path) -> None:
    records = reproduce("table1", options=options(tmp_path, "self_correcting"))
    assert [r["status"] for r in records] == ["done"] * len(plan.LABELS)
    found = values(records, "intensity_mse")
    assert found == pytest.approx(ERRORS, rel=0.02)
    rows = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    mine = {row["model"]: row for row in rows if row["data"] == "self_correcting"}
    assert float(mine["nhp"]["intensity_mse"]) == pytest.approx(
        found["nhp/self_correcting"], abs=1e-3
    )
    assert mine["nhp"]["paper"] == "25.8" and mine["dapp"]["paper"] == ""
    assert {row["status"] for row in rows if row["data"] == "hawkes"} == {"not run"}
    record = json.loads((tmp_path / "cells" / "fit__nhp__self_correcting__0.json").read_text())
    assert (
        record["tables"] == ["table1", "table2"]
        and record["setting"] == "quick"
        and record["seconds"] > 0
    )
    assert {"python", "torch", "numpy", "fourpoint"} <= set(record["versions"]) and record[
        "machine"
    ]
    assert (
        record["settings"]["training"]["steps"] == 3 and record["settings"]["test_sequences"] == 4
    )


def test_table2_fills_the_embedded_set_and_says_which_data_were_not_given(tmp_path: Path) -> None:
    records = reproduce("table2", options=options(tmp_path, "hawkes/*", "poisson/*"))
    ends = {f"{r['model']}/{r['data']}": r["status"] for r in records}
    assert ends["hawkes/nyc_delays"] == ends["poisson/hawkes"] == "done"
    assert ends["hawkes/memetracker"] == ends["poisson/readmission"] == "no data given"
    assert values(records, "log_likelihood_per_event") == pytest.approx(LIKELIHOODS, abs=0.01)
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    for report in (page, text):
        assert (
            "no data given" in report and "nyc_delays (traffic)" in report and "stand-in" in report
        )
    table = list(csv.DictReader((tmp_path / "table2.csv").read_text().splitlines()))
    row = next(r for r in table if r["data"] == "nyc_delays" and r["model"] == "hawkes")
    assert row["stands_for"] == "traffic" and row["paper_per_sequence"] == "313.8"


@pytest.mark.parametrize("name", plan.FIGURES)
def test_figures_come_as_a_picture_and_as_the_numbers_behind_it(name: str, tmp_path: Path) -> None:
    only = {
        "intensity": ("hawkes/*", "poisson/*"),
        "learning-curves": ("rmtpp/nyc_delays", "sahp/nyc_delays"),
        "score-visualization": (),
        "score-transformation": (),
    }[name]
    records = reproduce("figure", name, options(tmp_path, *only))
    assert {r["status"] for r in records} == {"done"}
    assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.reader((tmp_path / "figures" / f"{name}.csv").read_text().splitlines()))
    assert len(rows) > 4 and all(len(row) == len(rows[0]) for row in rows)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 1 and "Figure 1" in page
    if name == "score-transformation":
        assert "no 911 data given" in page


def test_theory_and_claims(tmp_path: Path) -> None:
    chosen = options(
        tmp_path, "proposition?", "features", "thinning", "rmtpp/memory-3", "dapp-paper/hawkes"
    )
    records = {r["id"]: r for r in reproduce("theory", options=chosen)}
    assert {r["status"] for r in records.values()} == {"done"}
    one = records["theory__none__proposition1__0"]["metrics"]
    assert all(value < 4.5 for key, value in one.items() if key.endswith("_largest_z"))
    two = records["theory__none__proposition2__0"]["metrics"]
    assert two["violations"] == 0 and two["rows"][0]["bound"] is None
    assert [row["features"] for row in two["rows"]] == [20, 50, 100]
    thinned = {row["data"]: row for row in records["claim__none__thinning__0"]["metrics"]["rows"]}
    assert (
        thinned["hawkes"]["printed"] < 1
        and abs(thinned["hawkes"]["turned"] - 15) < 4 * thinned["hawkes"]["turned_error"]
    )
    assert [row["features"] for row in records["claim__none__features__0"]["metrics"]["rows"]] == [
        20,
        100,
    ]
    assert (tmp_path / "figures" / "theory.png").is_file() and (
        tmp_path / "figures" / "memory.csv"
    ).is_file()
    page = (tmp_path / "report.html").read_text()
    assert (
        "Algorithm 2 samples from the model" in page
        and "Proposition 1: the estimated score is unbiased" in page
    )


def test_a_rerun_fills_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(tmp_path, "poisson/*", "hawkes/self_correcting")
    first = reproduce("table1", options=chosen)
    lost = tmp_path / "cells" / "fit__poisson__hawkes__0.json"
    lost.unlink()
    ran: list[str] = []
    true_work = commands.fit_cell

    def counted(cell: Cell, *rest: object) -> Record:
        ran.append(cell.id)
        return true_work(cell, *rest)

    monkeypatch.setattr(commands, "fit_cell", counted)
    second = reproduce("table1", options=chosen)
    assert ran == ["fit__poisson__hawkes__0"] and values(first, "intensity_mse") == values(
        second, "intensity_mse"
    )
    reproduce("table1", options=replace(chosen, fresh=True))
    assert len(ran) == 1 + len(first)


def test_a_cell_that_fails_is_shown_with_its_reason_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(tmp_path, "poisson/*")
    true_work = commands.fit_cell

    def diverges(cell: Cell, *rest: object) -> Record:
        if cell.data == "nonhomogeneous1":
            raise ArithmeticError("the loss is not finite at step 7")
        return true_work(cell, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(commands, "fit_cell", diverges)
        records = reproduce("table1", options=chosen)
    assert sorted(r["status"] for r in records) == ["done"] * 3 + ["failed"]
    assert (
        "ArithmeticError: the loss is not finite at step 7"
        in (tmp_path / "report.html").read_text()
    )
    assert "| poisson | nonhomogeneous1 | 0 | failed |" in (tmp_path / "report.md").read_text()
    summary = json.loads((tmp_path / "results.json").read_text())
    assert [r["reason"] for r in summary if r["status"] == "failed"] == [
        "ArithmeticError: the loss is not finite at step 7"
    ]
    assert {r["status"] for r in reproduce("table1", options=chosen)} == {"done"}


def test_a_run_that_is_stopped_leaves_whole_records_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(tmp_path, "poisson/*")
    true_work, seen = commands.fit_cell, []

    def stopped(cell: Cell, *rest: object) -> Record:
        seen.append(cell.id)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return true_work(cell, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(commands, "fit_cell", stopped)
        with pytest.raises(KeyboardInterrupt):
            reproduce("table1", options=chosen)
    assert len(list((tmp_path / "cells").iterdir())) == 2
    assert [r["status"] for r in reproduce("table1", options=chosen)] == ["done"] * 4
    assert len(seen) == 3


def test_results_of_two_settings_are_not_mixed(tmp_path: Path) -> None:
    reproduce("table1", options=options(tmp_path, "poisson/hawkes"))
    with pytest.raises(UserError, match="results of the full setting"):
        reproduce("table1", options=replace(options(tmp_path), setting="full"))
    (tmp_path / "cells" / "fit__poisson__hawkes__0.json").write_text("{")
    with pytest.raises(UserError, match="a record of a cell"):
        reproduce("report", options=options(tmp_path))


def test_folders_of_cells_merge_by_copying(tmp_path: Path) -> None:
    reproduce("table1", options=options(tmp_path / "a", "poisson/hawkes"))
    reproduce("table1", options=options(tmp_path / "b", "hawkes/hawkes"))
    for file in (tmp_path / "b" / "cells").iterdir():
        (tmp_path / "a" / "cells" / file.name).write_bytes(file.read_bytes())
    assert [r["model"] for r in reproduce("report", options=options(tmp_path / "a"))] == [
        "hawkes",
        "poisson",
    ]
    assert "HP is best on its own data" in (tmp_path / "a" / "report.md").read_text()


def test_the_report_stands_alone(tmp_path: Path) -> None:
    reproduce("table1", options=options(tmp_path, "poisson/hawkes"))
    page = (tmp_path / "report.html").read_text()
    assert (
        "<script" not in page
        and "src=" not in page
        and "@import" not in page
        and "<link" not in page
    )
    assert "NaN" not in page and ">nan" not in page


@pytest.mark.parametrize(
    "words, clause",
    [
        (["tables"], "WHAT to be one of"),
        (["figure"], "a figure among"),
        (["table1", "intensity"], "nothing after table1"),
        (["table1", "--seeds", "0"], "at least one seed"),
        (["table1", "--only", "no-such-model"], "--only to match a cell"),
        (["table1", "--fresh", "--resume"], "--resume"),
    ],
)
def test_the_command_says_what_is_wrong_and_writes_nothing(
    words: list[str], clause: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(
        app, ["reproduce", *words, "--quick", "--jobs", "0", "-o", str(tmp_path / "results")]
    )
    assert result.exit_code == 2 and clause in result.stderr
    assert not (tmp_path / "results").exists()


def test_the_command_runs(tmp_path: Path) -> None:
    words = [
        "reproduce",
        "table1",
        "--quick",
        "--only",
        "poisson/hawkes",
        "--jobs",
        "0",
        "-o",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "1 of 1 cells done" in result.stderr


def test_the_plan_covers_what_the_issue_of_the_paper_asks() -> None:
    full: Setting = plan.FULL
    cells = cells_of("all", "", 3, True, full)
    assert len(cells) == len(set(cells))
    first = [c for c in cells if c.kind == "fit" and c.data in plan.SYNTHETIC]
    assert len(first) == 3 * 4 * 14 and {c.seed for c in first} == {0, 1, 2}
    second = [c for c in cells if c.kind == "fit" and c.data in plan.STANDS_FOR]
    assert len(second) == 3 * 5 * 10 and set(plan.STANDS_FOR.values()) == {
        "stock",
        "meme",
        "traffic",
        "mimic-iii",
    }
    assert full.sequences == 5000 and set(full.building) == {
        "odapp"
    }  # the paper's forms have the published architecture
    assert Cell("fit", "dapp-paper", plan.TRANSFORMED, 0) in cells


@pytest.mark.parametrize(
    "patterns, wanted",
    [
        ((), True),
        (("dapp",), True),
        (("hawkes",), True),
        (("nhp",), False),
        (("dapp/h*",), True),
        (("!*-nn",), True),
        (("!dapp",), False),
    ],
)
def test_patterns_select_models_and_data(patterns: tuple[str, ...], wanted: bool) -> None:
    assert Cell("fit", "dapp", "hawkes", 0).matches(list(patterns)) == wanted
