"""The command line: the words of the issue, three-clause errors with exit code 2, and nothing
written after an error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fourpoint
from fourpoint.cli.main import app
from fourpoint.events import Dataset, Sequence
from fourpoint.settings import parse_settings

RUN = CliRunner()


def call(*words: object, code: int = 0) -> Any:
    result = RUN.invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    return result


def table(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Forty sequences of a steady process in [0, 10), with splits."""
    rng = np.random.default_rng(0)
    sequences = [
        Sequence(np.sort(rng.uniform(0, 10, rng.poisson(8) + 1)), start=0, stop=10, id=str(i))
        for i in range(40)
    ]
    splits = np.array(["train"] * 30 + ["dev"] * 5 + ["test"] * 5)
    fourpoint.write(
        replace(Dataset.from_sequences(sequences), splits=splits), tmp_path / "calls.parquet"
    )
    return tmp_path / "calls.parquet"


# ---------------------------------------------------------------------- what works


def test_data_lists_sets_and_processes_and_summarises_one() -> None:
    listing = call("data").stdout
    assert "nyc_delays" in listing and "self_correcting" in listing
    summary = call("data", "nyc_delays", "--split", "test").stdout
    assert "72" in summary and "24 hours" in summary and "EWR 1-2 h" in summary


def test_simulate_writes_the_same_file_for_the_same_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        call(
            "simulate", "hawkes", "--sequences", 20, "--seed", 3, "-o", tmp_path / f"{name}.parquet"
        )
    a, b = (fourpoint.read(tmp_path / f"{name}.parquet") for name in ("a", "b"))
    assert len(a) == 20 and a.times.tolist() == b.times.tolist()
    random = call(
        "simulate",
        "nonhomogeneous1",
        "--sequences",
        5,
        "--amplitude",
        "random",
        "-o",
        tmp_path / "c.parquet",
    )
    assert "next: fourpoint fit" in random.stderr


def test_fit_then_evaluate_prints_json_alone_on_stdout(calls: Path, tmp_path: Path) -> None:
    fitted = call("fit", calls, "--model", "poisson", "-o", tmp_path / "model")
    assert "saved poisson" in fitted.stdout and "next: fourpoint evaluate" in fitted.stderr
    numbers = json.loads(call("evaluate", tmp_path / "model", calls, "--json").stdout)
    keys = {
        "events",
        "sequences",
        "convention",
        "log_likelihood_per_event",
        "log_likelihood_per_sequence",
        "integral_error",
    }
    assert keys <= set(numbers) and numbers["sequences"] == 5 and numbers["convention"] == "window"
    everything = json.loads(
        call(
            "evaluate",
            tmp_path / "model",
            calls,
            "--json",
            "--split",
            "all",
            "--convention",
            "gaps",
        ).stdout
    )
    assert everything["sequences"] == 40 and everything["convention"] == "gaps"
    assert "log likelihood per event" in call("evaluate", tmp_path / "model", calls).stdout


def test_evaluate_against_a_truth_adds_oracle_and_regret(tmp_path: Path) -> None:
    call("simulate", "nonhomogeneous2", "--sequences", 40, "-o", tmp_path / "f.parquet")
    call("fit", tmp_path / "f.parquet", "--model", "poisson", "-o", tmp_path / "model")
    numbers = json.loads(
        call(
            "evaluate",
            tmp_path / "model",
            tmp_path / "f.parquet",
            "--truth",
            "nonhomogeneous2",
            "--json",
        ).stdout
    )
    assert {
        "oracle_log_likelihood_per_event",
        "regret_per_event",
        "intensity_mse",
        "intensity_variance",
    } <= set(numbers)
    assert 0.03 < numbers["regret_per_event"] < 0.15


def test_fit_takes_settings_of_model_and_training(calls: Path, tmp_path: Path) -> None:
    settings = [
        "heads=1",
        "features=4",
        "eval_features=16",
        "generator=4,4",
        "decay=false",
        "steps=2",
        "validate-every=1",
        "batch_size=8",
    ]
    settings.append("baselines=false")
    words = [word for pair in settings for word in ("--set", pair)]
    result = call("fit", calls, "--model", "dapp", *words, "--seed", 5, "-o", tmp_path / "model")
    stored = json.loads((tmp_path / "model" / "model.json").read_text())["settings"]
    assert (stored["heads"], stored["generator"], stored["decay"], stored["seed"]) == (
        1,
        [4, 4],
        False,
        5,
    )
    assert result.stderr.count("drift: spline") == 1, "a choice is said aloud, once"
    again = call(
        "fit", calls, "--model", "dapp", *words, "--seed", 5, "-o", tmp_path / "model", "--resume"
    )
    assert "nothing to resume" in again.stderr


def test_former_names_of_settings_are_taken_with_a_notice(calls: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    sizes = ["width=4", "modes=2", "layers=1", "steps=1", "unheard=0.25", "waves = 1"]
    words = [word for pair in sizes for word in ("--set", pair)]
    told = call("fit", calls, "--model", "deep-dapp", *words, "-o", folder).stderr
    assert "--set waves is now called sinusoids" in told
    assert "--set unheard is now called event_dropout" in told and "width is now" not in told
    saved = json.loads((folder / "model.json").read_text())["settings"]
    assert saved["sinusoids"] == 1 and saved["event_dropout"] == 0.25 and "waves" not in saved


def test_windows_and_ties_are_said_once_and_can_be_set(tmp_path: Path) -> None:
    file = table(tmp_path / "ties.parquet", seq_id=["a", "a", "a", "b"], t=[1.0, 1.0, 2.0, 3.0])
    noisy = call("data", file).stderr
    assert noisy.count("no windows in the file") == 1 and noisy.count("gaps are zero") == 1
    quiet = call("data", file, "--window", "0", "4", "--ties", "drop")
    assert quiet.stderr == "" and "window" in quiet.stdout and "4" in quiet.stdout
    assert "repeated time" in call("data", file, "--ties", "error", code=2).stderr
    early = call("data", file, "--window", "-5", "4").stdout
    assert next(line for line in early.splitlines() if line.startswith("window")).split()[1] == "9"


def test_without_splits_a_seeded_tenth_is_kept_for_stopping(tmp_path: Path) -> None:
    call("simulate", "hawkes", "--sequences", 20, "-o", tmp_path / "h.parquet")
    network = [
        "--model",
        "rmtpp",
        *(word for pair in ("hidden=2", "steps=1", "baselines=false") for word in ("--set", pair)),
    ]
    said = call("fit", tmp_path / "h.parquet", *network, "-o", tmp_path / "m").stderr
    assert "2 of 20 sequences, drawn with seed 0" in said
    table(tmp_path / "one.parquet", seq_id=["a"] * 30, t=np.arange(30.0) + 0.5)
    alone = call(
        "fit", tmp_path / "one.parquet", "--window", 0, 30, *network, "-o", tmp_path / "one"
    )
    assert "the last tenth of the window is held out" in alone.stderr


def test_version_and_usage_errors() -> None:
    assert call("--version").stdout.strip() == f"fourpoint {fourpoint.__version__}"
    module = subprocess.run(
        [sys.executable, "-m", "fourpoint", "--version"], capture_output=True, text=True, check=True
    )
    assert module.stdout.strip() == f"fourpoint {fourpoint.__version__}"
    call("fit", code=2)
    call("nonsense", code=2)


HELP = """
import atexit, runpy, sys
heavy = {"torch", "numpy", "matplotlib", "pyarrow", "scipy", "pandas", "numba"}
atexit.register(lambda: print(sorted(heavy & set(sys.modules)), len(sys.modules), file=sys.stderr))
sys.argv = ["fourpoint", "--help"]
runpy.run_module("fourpoint.cli.main", run_name="__main__")
"""


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, fourpoint.cli.main; print(sorted({'torch', 'numpy', 'matplotlib', 'pyarrow', "
        "'scipy'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
    shown = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    heavy, modules = shown.stderr.rsplit(maxsplit=1)
    assert "Usage" in shown.stdout and heavy == "[]" and int(modules) < 450, (
        "modules, which is what the time of a short command goes to"
    )


def test_an_interruption_is_one_line_and_exit_code_130(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fourpoint.inference.evaluation.evaluate", interrupted)
    call("fit", calls, "--model", "poisson", "-o", tmp_path / "model")
    result = call("evaluate", tmp_path / "model", calls, code=130)
    assert len(result.stderr.strip().splitlines()) == 1 and "interrupted" in result.stderr


# ---------------------------------------------------------------------- what is refused


def refused(tmp_path: Path, *words: object) -> str:
    """The error, after checking that it has three clauses, exit code 2, no traceback, and that
    nothing was written.
    """
    before = sorted(tmp_path.rglob("*"))
    result = call(*words, code=2)
    lines = result.stderr.strip().splitlines()
    assert [line.split(":")[0].strip() for line in lines[-3:]] == [
        "expected",
        "received",
        "what to do",
    ], result.stderr
    assert all(line.split(":", 1)[1].strip() for line in lines[-3:])
    assert "Traceback" not in result.stderr and result.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before, "something was written"
    return result.stderr


BAD_TABLES: dict[str, tuple[dict[str, list[object]], list[str]]] = {
    "nan": ({"seq_id": ["a", "a"], "t": [1.0, float("nan")]}, ["finite", "nan", "row 1"]),
    "infinite": ({"seq_id": ["a", "a"], "t": [1.0, float("inf")]}, ["finite", "inf"]),
    "unsorted": (
        {"seq_id": ["a", "a"], "t": [2.0, 1.0]},
        ["non-decreasing", "1.0 after 2.0", "event 1", "sort"],
    ),
    "outside": (
        {"seq_id": ["a", "a"], "t": [1.0, 9.0], "start": [0.0, 0.0], "stop": [5.0, 5.0]},
        ["window", "9.0", "sequence a"],
    ),
    "mark": ({"seq_id": ["a", "a"], "t": [1.0, 2.0], "mark": [0, -1]}, ["mark", "-1"]),
    "empty table": ({"seq_id": [], "t": []}, ["at least one event"]),
    "column": ({"a": ["x"], "b": [1.0]}, ["a column of times", "'a', 'b'"]),
    "words": ({"seq_id": ["a"], "t": ["noon"]}, ["numbers", "'noon'"]),
    "split": (
        {"seq_id": ["a"], "t": [1.0], "split": ["training"]},
        ["train, dev or test", "training"],
    ),
}


@pytest.mark.parametrize("fault", BAD_TABLES)
@pytest.mark.parametrize("command", ["fit", "data"])
def test_bad_data_is_refused(fault: str, command: str, tmp_path: Path) -> None:
    columns, expected = BAD_TABLES[fault]
    types = {"seq_id": pa.string(), "t": pa.float64()} if fault == "empty table" else {}
    file = tmp_path / "bad.parquet"
    pq.write_table(pa.table({k: pa.array(v, types.get(k)) for k, v in columns.items()}), file)
    more = ["--model", "poisson", "-o", tmp_path / "model"] if command == "fit" else []
    error = refused(tmp_path, command, file, *more)
    assert "bad.parquet" in error and all(word in error for word in expected), error


def test_files_that_are_not_parquet_are_refused(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("seq_id,t\na,1.0\n")
    (tmp_path / "empty.parquet").write_bytes(b"")
    for source, word in (
        ("text.parquet", "read_csv"),
        ("empty.parquet", "0 bytes"),
        ("cals.parquet", "calls.parquet"),
    ):
        assert word in refused(tmp_path, "fit", tmp_path / source, "-o", tmp_path / "model")
    assert "nyc_delays" in refused(tmp_path, "fit", "nyc_delay", "-o", tmp_path / "model")


def test_an_event_outside_the_window_option_is_refused(calls: Path, tmp_path: Path) -> None:
    assert "window [0.0, 5.0)" in refused(
        tmp_path, "fit", calls, "--window", "0", "5", "-o", tmp_path / "model"
    )
    assert "start < stop" in refused(tmp_path, "data", "nyc_delays", "--window", "5", "5")


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("head=2", ["--set head", "Did you mean 'heads'?"]),
        ("learningrate=1", ["Did you mean 'learning_rate'?"]),
        ("heads=two", ["heads to be a whole number", "'two'"]),
        ("learning_rate=fast", ["learning_rate to be a number"]),
        ("learning_rate=nan", ["learning_rate to be a number"]),
        ("decay=perhaps", ["true or false"]),
        ("link=cubic", ["exp, softplus, identity", "'cubic'"]),
        ("generator=64,wide", ["such as 64,64"]),
        ("heads=0", ["heads of at least 1"]),
        ("heads", ["--set key=value"]),
        ("seed=3", ["Use --seed instead"]),
    ],
)
def test_bad_settings_are_refused(pair: str, words: list[str], calls: Path, tmp_path: Path) -> None:
    error = refused(tmp_path, "fit", calls, "--set", pair, "-o", tmp_path / "model")
    assert all(word in error for word in words), error


def test_bad_names_and_choices_are_refused(calls: Path, tmp_path: Path) -> None:
    out = ["-o", tmp_path / "model"]
    assert "Did you mean 'dapp'?" in refused(tmp_path, "fit", calls, "--model", "dap", *out)
    assert "keep, error, jitter, drop" in refused(tmp_path, "fit", calls, "--ties", "kep", *out)
    assert "split" in refused(tmp_path, "fit", calls, "--split", "valid", *out)
    assert "Did you mean 'hawkes'?" in refused(
        tmp_path, "simulate", "hawks", "-o", tmp_path / "h.parquet"
    )
    assert "at least one sequence" in refused(
        tmp_path, "simulate", "hawkes", "--sequences", 0, "-o", tmp_path / "h.parquet"
    )
    assert "existing folder" in refused(
        tmp_path, "simulate", "hawkes", "-o", tmp_path / "no" / "h.parquet"
    )


def test_a_folder_that_is_no_model_is_refused_and_kept(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("words")
    assert "holds other files" in refused(
        tmp_path, "fit", calls, "--model", "poisson", "-o", tmp_path / "thesis"
    )
    assert "is a file" in refused(
        tmp_path, "fit", calls, "--model", "poisson", "-o", calls / "inside"
    )
    assert "fourpoint fit" in refused(tmp_path, "evaluate", tmp_path / "thesis", calls)


def test_evaluate_refuses_what_does_not_fit(calls: Path, tmp_path: Path) -> None:
    call("fit", calls, "--model", "poisson", "-o", tmp_path / "model")
    assert "window, gaps" in refused(
        tmp_path, "evaluate", tmp_path / "model", calls, "--convention", "gap"
    )
    assert "6 types" in refused(tmp_path, "evaluate", tmp_path / "model", "nyc_delays")
    assert "process" in refused(
        tmp_path, "evaluate", tmp_path / "model", calls, "--truth", "hawking"
    )


# ---------------------------------------------------------------------- settings as text


def test_settings_are_read_by_the_type_they_set() -> None:
    def build(
        marks: None = None,
        *,
        size: int | None = 3,
        widths: tuple[int, ...] = (),
        name: str = "",
        flag: bool = False,
    ) -> None: ...
    def train(model: None, *, rate: float = 0.1, size: float = 1.0) -> None: ...

    pairs = ["size=4", "widths=(8, 16)", "name=none", "flag=Yes", "rate=1e-3"]
    assert parse_settings(pairs, build, train) == (
        {"size": 4, "widths": (8, 16), "name": "none", "flag": True},
        {"rate": 0.001, "size": 4.0},
    )
    assert parse_settings(["size=none"], build, build) == ({"size": None}, {"size": None})


@pytest.mark.parametrize("model", ["poisson", "hawkes"])
def test_a_fit_in_closed_form_names_no_step(model: str, tmp_path: Path) -> None:
    call("simulate", "hawkes", "--sequences", 20, "-o", tmp_path / "events.parquet")
    told = call("fit", tmp_path / "events.parquet", "--model", model, "-o", tmp_path / "model")
    assert f"saved {model} in {tmp_path / 'model'}/ (closed form)" in told.stdout
