"""The benchmarks' common form: figures, exponents and bars, failures and missing peers, and a page
that is what the results say.
"""

from __future__ import annotations

import argparse
import doctest
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fourpoint.events import Dataset, Sequence

NAMES = (
    "records",
    "page",
    "run",
    "easytpp_training",
    "training",
    "oracle",
    "scaling",
    "deep",
    "costs",
)


@pytest.fixture(scope="module")
def bench(root: Path) -> Any:
    """The files of benchmarks/ as modules; they import each other by their plain names, as scripts
    do.
    """
    sys.path.insert(0, str(root / "benchmarks"))
    before = set(sys.modules)
    yield argparse.Namespace(**{name: _module(root, name) for name in NAMES})
    sys.path.remove(str(root / "benchmarks"))
    for name in set(sys.modules) - before:
        if name in NAMES or name == "easytpp_models":
            del sys.modules[name]


# ---------------------------------------------------------------------- records


def test_figure_is_a_median_with_its_spread_and_all_repeats(bench: Any) -> None:
    found = bench.records.figure([5.0, 1.0, 2.0, 4.0], "s")
    assert found == dict(median=3.0, min=1.0, max=5.0, repeats=[5.0, 1.0, 2.0, 4.0], unit="s")
    with pytest.raises(ValueError, match="at least one repeat"):
        bench.records.figure([])


def test_ratios_are_taken_round_by_round(bench: Any) -> None:
    fast, slow = bench.records.figure([10.0, 100.0, 30.0]), bench.records.figure([1.0, 50.0, 10.0])
    assert bench.records.ratios(fast, slow)["repeats"] == [10.0, 2.0, 3.0]
    assert bench.records.ratios(fast, slow)["median"] == 3.0 != fast["median"] / slow["median"] + 1
    with pytest.raises(ValueError):
        bench.records.ratios(fast, bench.records.figure([1.0]))


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_exponent_of_a_power_law(bench: Any, power: float) -> None:
    sizes = [10.0, 31.0, 100.0, 1000.0]
    assert bench.records.exponent(sizes, [7 * n**power for n in sizes]) == pytest.approx(
        power, abs=1e-12
    )


def test_exponent_of_a_fixed_cost_and_a_slope_lies_between(bench: Any) -> None:
    small = bench.records.exponent([10, 100], [1000 + n for n in (10, 100)])
    large = bench.records.exponent([10**6, 10**7], [1000 + n for n in (10**6, 10**7)])
    assert 0 < small < 0.1 < 0.99 < large < 1


def test_record_is_written_and_read_again(bench: Any, tmp_path: Path) -> None:
    record = _record(bench)
    file = record.write(tmp_path, {"gpu": "a card"})
    found = bench.records.read(tmp_path)
    assert (
        list(found) == ["training"]
        and file.name == "training.json"
        and not list(tmp_path.glob("*.part"))
    )
    kept = found["training"]
    assert kept["rows"] == record.rows and kept["bars"] == record.bars and kept["quick"] is False
    assert kept["machine"]["gpu"] == "a card" and kept["machine"]["cores"] >= 1
    assert (
        kept["machine"]["packages"]["torch"] == torch.__version__.split("+")[0]
        or "torch" in kept["machine"]["packages"]
    )
    assert {"command", "commit", "date", "seconds", "about"} <= set(kept)


def test_bars_say_met_not_met_and_not_measured(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record = bench.records.Record("some", "About.")
    record.bar("fast", bench.records.figure([4.0, 6.0, 5.0]), least=5)
    record.bar("slow", bench.records.figure([4.0, 6.0, 4.9]), least=5)
    record.bar("linear", 1.06, most=1.05)
    record.bar("absent", None, least=5, reason="no data given")
    assert [bar["met"] for bar in record.bars] == [True, False, False, None]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "BAR fast: 5 (at least 5): met"
    assert said[2] == "BAR linear: 1.06 (at most 1.05): NOT MET"
    assert said[3].endswith("not measured (no data given)")


def test_command_does_not_name_folders_of_this_machine(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, results, data = (
        str(tmp_path / name) for name in ("benchmarks/deep.py", "results", "data")
    )
    words = [script, "--results", results, "--data", data, "--rounds", "3"]
    monkeypatch.setattr(sys, "argv", words)
    assert bench.records.command() == "python benchmarks/deep.py --data DIR --rounds 3"


def test_examples_in_the_docstrings(bench: Any) -> None:
    for module in (bench.records, bench.page):
        assert doctest.testmod(module).failed == 0
        assert doctest.testmod(module).attempted > 0


# ---------------------------------------------------------------------- the page


def test_page_of_a_small_fixture(bench: Any, tmp_path: Path) -> None:
    _record(bench).write(tmp_path)
    written = json.loads((tmp_path / "training.json").read_text())
    written |= dict(command="python benchmarks/training.py", commit="abc", date="2030-01-02")
    written["machine"] = dict(cpu="A processor", cores=2, packages={"torch": "2.13.0"})
    found = bench.page.page({"training": written})
    promises = found.split("## Promises\n")[1].split("\n## ")[0]
    assert promises == (
        "| promise | wanted | found | verdict |\n|---|---|---|---|\n"
        "| DAPP beside THP | at least 5 | 6 (5 to 7) | kept |\n"
        "| linear | at most 1.05 | 1.2 | **not kept** |\n"
        "| absent | at least 5 | no data given | not measured |\n"
    )
    section = found.split("## Training throughput\n")[1].split("\n## ")[0]
    assert section.split("\n\n", 1)[1] == (
        "`python benchmarks/training.py` at commit abc, 2030-01-02; A processor, 2 cores, "
        "torch 2.13.0.\n\n"
        "**default settings**\n\n"
        "|  | events/s | epochs |\n|---|---|---|\n"
        "| Fourpoint dapp | 2,000 (1,500 to 2,500) | 3 |\n"
        "| EasyTPP THP | missing: No module named 'easy_tpp' |  |\n"
        "\n**other**\n\n"
        "|  | seconds |\n|---|---|\n"
        "| a \\| b | not reached |\n"
    )
    assert found.split("## On a GPU\n")[1].rstrip().endswith("Not measured.")


def test_gpu_records_of_any_name_have_sections(bench: Any, tmp_path: Path) -> None:
    _record(bench).write(tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    record["machine"]["gpu"] = "One card"
    found = bench.page.page({"gpu": record, "gpu_deep": record})
    assert "## On a GPU\n" in found and "## GPU: deep\n" in found and "One card" in found


def test_failed_benchmark_is_recorded_and_the_next_one_runs(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "benchmarks"
    here.mkdir()
    (here / "costs.py").write_text("raise RuntimeError('no luck | today')")
    (here / "deep.py").write_text(
        "import sys; open(sys.argv[2] + '/deep.args', 'w').write(' '.join(sys.argv[3:]))"
    )
    monkeypatch.setattr(bench.run, "HERE", here)
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "run.py",
            "--quick",
            "--only",
            "costs",
            "deep",
            "--results",
            str(tmp_path),
            "--data",
            str(tmp_path),
        ],
    )
    assert bench.run.main() == 1
    assert (tmp_path / "deep.args").read_text() == f"--quick --data {tmp_path}"
    assert (
        bench.records.read(tmp_path)["costs"]["failed"]
        == "exit code 1: RuntimeError: no luck | today"
    )
    assert (
        "The run failed: exit code 1: RuntimeError: no luck \\| today"
        in (tmp_path / "performance.md").read_text()
    )


def test_every_benchmark_is_planned_and_has_a_section(bench: Any, root: Path) -> None:
    alone = {
        "records",
        "page",
        "run",
        "easytpp_training",
        "easytpp_models",
        "hotpp_metrics",
        "leaderboard",
        "budget",
        "gpu",
        "counts",
        "horizon",
        "conformal",
        "bands",
        "influence",
        "interval_coverage",
        "simulated_logs",
        "seismic",
        "etas",
        "brokers",
        "serve",
        "serve_faults",
        "service_processes",
        "scale",
    }
    scripts = {file.stem for file in (root / "benchmarks").glob("*.py")} - alone
    assert (
        scripts - {file for file in scripts if file.startswith("gpu")}
        == set(bench.run.PLANS)
        == set(bench.page.SECTIONS) - {"gpu"}
    )


def test_full_run_is_planned_for_about_forty_minutes_and_the_quick_one_for_five(bench: Any) -> None:
    assert sum(plan.seconds for plan in bench.run.PLANS.values()) <= 45 * 60
    assert sum(plan.quick_seconds for plan in bench.run.PLANS.values()) <= 7 * 60


def test_planned_arguments_are_understood(bench: Any, root: Path) -> None:
    for name, plan in bench.run.PLANS.items():
        text = (root / "benchmarks" / f"{name}.py").read_text()
        for word in [*plan.full.split(), *plan.quick.split()]:
            assert not word.startswith("--") or f'"{word}"' in text, (name, word)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (12345.6, "12,346"),
        (3, "3"),
        (-0.0, "0"),
        (1.23456, "1.235"),
        (0.0123456, "0.0123"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_of_the_page(bench: Any, value: float, words: str) -> None:
    assert bench.page.number(value) == words


def test_committed_page_is_what_the_results_say(bench: Any, root: Path) -> None:
    records = bench.records.read(root / "benchmarks" / "results")
    assert (root / "docs" / "performance.md").read_text(encoding="utf-8") == bench.page.page(
        records
    )


def test_committed_results_are_full_runs_without_failures(bench: Any, root: Path) -> None:
    for name, record in bench.records.read(root / "benchmarks" / "results").items():
        assert (
            record["name"] == name
            and not record.get("quick")
            and "failed" not in record
            and record["rows"]
        )
        for row in record["rows"]:
            assert row["part"] and row["name"] and (row["figures"] or row["missing"])


# ---------------------------------------------------------------------- what is measured


def test_history_of_a_run_tells_when_it_arrived(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Dataset.from_sequences([Sequence([1.0, 2.0, 3.0], stop=4.0), Sequence([1.0], stop=4.0)])
    monkeypatch.setattr(bench.oracle, "sets", lambda: (data, data))
    monkeypatch.setattr(bench.oracle, "POLL", 0.0)
    rows = [
        (8, -0.9, 2.0),
        (16, -0.255, 4.0),
        (24, -0.25, 4.0),
    ]  # events, nats per event of all four, events per second
    head = (
        "step,epoch,seconds,train_log_likelihood,dev_log_likelihood,events_per_second,"
        "learning_rate\n"
    )
    (tmp_path / "history.csv").write_text(
        head + "".join(f"{s},1,99,0,{score},{speed},0\n" for s, score, speed in rows)
    )
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    found = bench.oracle.watched(process, tmp_path, oracle=-0.5, limit=60.0)
    assert found[:4] == (
        3.0,
        -0.51,
        3.0,
        2,
    )  # two gaps are scored, hence twice as much each; validations, the 99 seconds, do not count
    never = bench.oracle.watched(process, tmp_path, oracle=-0.1, limit=60.0)
    assert never.reached is None and never.score == -0.5 and never.seconds == 4.0
    late = bench.oracle.watched(process, tmp_path, oracle=-0.5, limit=2.5)
    assert late.reached is None


def test_verdict_compares_dapp_with_the_best_peer_and_says_where_none_arrived(bench: Any) -> None:
    given, record = argparse.Namespace(limit=50.0), bench.records.Record("oracle", "About.")
    bench.oracle.verdict(
        record,
        {"dapp": 1.0, "dapp, other": 0.5, "sahp": 0.1},
        {"EasyTPP A": None, "EasyTPP B": 20.0},
        given,
    )
    bench.oracle.verdict(record, {"dapp": 6.0}, {"EasyTPP A": None}, given)
    bench.oracle.verdict(record, {"dapp": 6.0}, {}, given)
    bench.oracle.verdict(record, {"dapp": None, "sahp": 0.1}, {"EasyTPP A": 1.0}, given)
    assert [(bar["found"], bar["met"]) for bar in record.bars] == [
        (0.05, True),
        (0.12, False),
        (None, None),
        (None, None),
    ]
    assert "no EasyTPP model arrived in 50 s" in record.bars[1]["bar"]


@pytest.mark.parametrize("axis", ["n", "marks", "features", "batch", "deep"])
def test_scaling_steps_have_the_size_they_claim(bench: Any, axis: str) -> None:
    step = bench.scaling.case(axis, 12)
    cells = dict(
        zip(
            step.__code__.co_freevars,
            (cell.cell_contents for cell in step.__closure__),
            strict=True,
        )
    )
    data, model = cells["data"], cells["model"]
    assert data.events == {"n": 12, "deep": 12, "batch": 12 * 32}.get(axis, 8 * 32)
    assert data.marks.count == (12 if axis == "marks" else 1)
    if axis != "deep":
        assert model.settings()["features"] == (12 if axis == "features" else 20)
    step()
    assert any(p.grad is not None and bool((p.grad != 0).any()) for p in model.parameters())


def test_scaling_report_takes_the_top_decade(bench: Any) -> None:
    record = bench.records.Record("scaling", "About.")
    found = [
        dict(size=n, seconds=[1e-3 + n * 1e-6, 2e-3 + 2 * n * 1e-6], mb=1.0)
        for n in (10, 10**5, 10**6)
    ]
    bench.scaling.report(record, "n", found)
    assert record.bars[0]["met"] is True and 0.99 < record.bars[0]["found"]["median"] < 1.0
    assert "from 100,000 to 1,000,000" in record.bars[0]["bar"]
    bench.scaling.report(
        record, "n", [dict(size=n, seconds=[n**1.2, n**1.2], mb=1.0) for n in (10, 100)]
    )
    assert record.bars[1]["met"] is False
    bench.scaling.report(record, "batch", found)
    assert (
        len(record.bars) == 2
        and 0.99 < record.rows[-1]["figures"]["exponent from the row above"]["median"] < 1.0
    )


def test_deep_without_data_says_so(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["deep.py", "--results", str(tmp_path)])
    bench.deep.main()
    kept = bench.records.read(tmp_path)["deep"]
    assert {row["missing"] for row in kept["rows"]} == {"no data given"} and len(kept["rows"]) == 4
    assert all(bar["met"] is None for bar in kept["bars"])


def test_parameters_count_complex_numbers_twice(bench: Any) -> None:
    module = torch.nn.Module()
    module.a, module.b = (
        torch.nn.Parameter(torch.zeros(3)),
        torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64)),
    )
    module.c = torch.nn.Parameter(torch.zeros(9), requires_grad=False)
    assert bench.deep.parameters(module) == 3 + 4


def test_missing_peer_is_a_row_of_the_table(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "easy_tpp.config_factory", None)
    record, data = (
        bench.records.Record("training", "About."),
        Dataset.from_sequences([Sequence([1.0, 2.0], stop=3.0)]),
    )
    given = argparse.Namespace(ours=["dapp"], theirs=["THP"])
    found = bench.training.contenders(record, "default settings, 1 thread", data, False, given)
    assert list(found) == ["Fourpoint dapp", "Fourpoint dapp, K=2, D=20"]
    assert record.rows[0]["name"] == "EasyTPP THP" and "easy_tpp" in record.rows[0]["missing"]


def test_training_speed_comes_from_whole_epochs_of_the_fit(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Dataset.from_sequences([Sequence([1.0, 2.0], stop=3.0)] * 130)
    calls: list[dict[str, Any]] = []

    def fit(model: Any, *sets: Any, **terms: Any) -> Any:
        calls.append(terms)
        return argparse.Namespace(history=[dict(events_per_second=7.0)])

    monkeypatch.setattr(bench.training.fp, "fit", fit, raising=False)
    run = bench.training.fourpoint("dapp", data, {}, 10)
    assert [run(1.0), run(160.0)] == [7.0, 7.0]
    per_epoch = len(data.batches(64))
    assert [call["steps"] for call in calls] == [
        per_epoch,
        round(160 * 7 / data.events) * per_epoch,
    ]
    assert all(call["steps"] == call["validate_every"] and call["nodes"] == 10 for call in calls)


@pytest.mark.parametrize("name", ["RMTPP", "NHP", "SAHP", "THP", "S2P2", "AttNHP"])
def test_easytpp_trains_and_its_honest_score_settles(bench: Any, name: str) -> None:
    pytest.importorskip("easy_tpp", reason="easy-tpp is not installed (the extra bench)")
    rng = np.random.default_rng(0)
    data = Dataset.from_sequences(
        [Sequence(np.cumsum(rng.exponential(size=6)), start=0.0, stop=40.0) for _ in range(8)]
    )
    trainer = bench.easytpp_training.Trainer(name, data, nodes=4, rate=1e-2)
    tolerance = (
        0.5 if name == "S2P2" else 0.01
    )  # S2P2's fast modes oscillate between the points of its grid, which its loss does not see
    before = trainer.score(data, tolerance)
    assert all(trainer.epoch() > 0 for _ in range(10)) and trainer.throughput(0.0) > 0
    assert math.isfinite(before) and trainer.score(data, tolerance) > before


def test_integral_that_does_not_settle_is_refused_with_its_numbers(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([-1.0, -1.2, -1.1, -1.15, -1.14])
    monkeypatch.setattr(bench.easytpp_training, "_with_rule", lambda *given: next(scores))
    with pytest.raises(
        bench.easytpp_training.Unsettled, match="settles to 0.0001.*change of 0.01 at 128 nodes"
    ) as caught:
        bench.easytpp_training.honest(None, None)
    assert caught.value.score == -1.14 and caught.value.change == pytest.approx(0.01)


def test_model_that_arrives_only_sometimes_has_no_time(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, given = bench.records.Record("oracle", "About."), argparse.Namespace(repeats=3)
    runs = [
        bench.oracle.Arrival(2.0, -1.005, 2.0, 4),
        bench.oracle.Arrival(None, -1.03, 9.0, 9),
        bench.oracle.Arrival(3.0, -1.0, 3.0, 5),
    ]
    assert bench.oracle.repeated(record, "one", -1.0, given, lambda seed: runs[seed]) is None
    assert (
        bench.oracle.repeated(record, "two", -1.0, given, lambda seed: runs[2 - seed % 2 * 2])
        == 3.0
    )
    assert bench.oracle.repeated(record, "three", -1.0, given, lambda seed: runs[1 - seed]) is None
    words = [row["figures"]["seconds"] for row in record.rows]
    assert (
        words[0] == "not reached by 1 of 3 runs: best 0.0300 below the oracle after 9 s of training"
    )
    assert words[1]["repeats"] == [3.0, 2.0, 3.0]
    assert words[2] == "not reached: best 0.0300 below the oracle after 9 s of training"


def _record(bench: Any) -> Any:
    record = bench.records.Record("training", "About.")
    speed = bench.records.figure([1500.0, 2000.0, 2500.0])
    record.row("default settings", "Fourpoint dapp", **{"events/s": speed, "epochs": 3, "no": None})
    record.missing("default settings", "EasyTPP THP", ImportError("No module named 'easy_tpp'"))
    record.row("other", "a | b", seconds="not reached")
    record.bar("DAPP beside THP", bench.records.figure([5.0, 7.0, 6.0]), least=5)
    record.bar("linear", 1.2, most=1.05)
    record.bar("absent", None, least=5, reason="no data given")
    return record


def _module(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
