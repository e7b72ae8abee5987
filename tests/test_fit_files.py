"""The files of a fit: killed at any point it goes on, one fit at a time writes into a folder, and a
run resumes on its own data only."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fourpoint.cli.checks import check_folder
from fourpoint.cli.main import app
from fourpoint.data.readers import write
from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, UserError
from fourpoint.models import DAPP, RMTPP, Hawkes, Poisson
from fourpoint.storage import checkpoints
from fourpoint.storage.checkpoints import restore, save
from fourpoint.training import run as training_run
from fourpoint.training.fitting import TrainingError, fit
from fourpoint.training.run import fingerprint

SHORT: dict[str, Any] = dict(
    steps=2,
    batch_size=16,
    warmup=1,
    nodes=2,
    validate_every=1,
    patience=9,
    progress=False,
    baselines=False,
)
KILLED = 77


def tiny_dapp() -> DAPP:
    return DAPP(heads=1, features=2, eval_features=4, generator=(2,), knots=2)


def tiny_rmtpp() -> RMTPP:
    return RMTPP(hidden=4)


def data(seed: int = 1) -> Dataset:
    return simulate("hawkes", 8, seed=seed)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_process(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a Python of its own."""
    source = Path(checkpoints.__file__).parents[2]
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


# ---------------------------------------------------------------------- kills


def test_a_fit_killed_at_any_point_ends_with_the_weights_of_an_unbroken_one(tmp_path: Path) -> None:
    """Each rename and each removal of a file is a point: the process ends before it or after it."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_fit_files"
    )
    done = in_process(f"{script}; test_fit_files.kill_everywhere()", tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "points of a kill, all resumed" in done.stdout


def kill_everywhere() -> None:
    """Fit in forked processes, each of which is killed at another point and resumed by a second.

    This process fits once itself, so that the forked ones need compile nothing.
    """
    torch.set_num_threads(1)
    os.fsync = lambda file: None  # what a killed process has written stays, on disk or not
    folder = Path(sys.argv[1])
    plans = [
        (tiny_dapp, 2, False, ("replace",), False),
        (tiny_rmtpp, 1, False, ("replace", "unlink"), True),
        (tiny_rmtpp, 1, True, ("replace",), False),
    ]
    points = 0
    for number, (build, steps, over, functions, after) in enumerate(plans):
        whole, older = folder / f"whole{number}", folder / f"older{number}"
        fit(build(), data(), folder=whole, **{**SHORT, "steps": steps})
        fit(build(), data(), folder=older, **{**SHORT, "steps": steps}, seed=1)
        call, code = 0, KILLED
        while code == KILLED:
            call += 1
            place = folder / f"{number} {call}"
            if over:
                _copy(older, place)
            killing = partial(_die, functions, after, call)
            code = _forked(build, steps, place, False, killing)
            where = f"{build.__name__}, {functions}, call {call}, {code}"
            if over and not (place / "training.json").exists() and code == KILLED:
                # It was killed before it left anything: the older model is whole.
                assert _same(place, older), where
                continue
            assert _forked(build, steps, place, True) == 0, f"not resumed: {where}, {names(place)}"
            assert _same(place, whole) and names(place) == names(whole), where
            points += code == KILLED
        assert code == 0
        print(f"{build.__name__}, {functions}: {call - 1} points")
    assert points > 40
    print(f"{points} points of a kill, all resumed")


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


def _same(left: Path, right: Path) -> bool:
    found, expected = restore(left).state_dict(), restore(right).state_dict()
    return all(torch.equal(found[name], expected[name]) for name in expected)


def _die(functions: tuple[str, ...], after: bool, call: int) -> None:
    """End this process at the ``call``-th call of one of ``functions`` of `os`."""
    calls: list[str] = []
    for name in functions:
        real = getattr(os, name)

        def killing(*given: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            calls.append(str(given[0]))
            if len(calls) == call and not after:
                os._exit(KILLED)
            try:
                return real(*given, **named)
            finally:
                if len(calls) == call:
                    os._exit(KILLED)

        setattr(os, name, killing)


def _forked(
    build: Callable[[], Any],
    steps: int,
    folder: Path,
    resume: bool,
    before: Callable[[], None] = lambda: None,
) -> int:
    """Fit in a forked process as the command does; its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        before()
        check_folder(folder, resume)
        fit(build(), data(), folder=folder, resume=resume, **{**SHORT, "steps": steps})
        code = 0
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


KILLED_BEFORE_ANY_MODEL = """
import os, sys, test_fit_files
from pathlib import Path
test_fit_files._die(("replace",), False, 1)
test_fit_files.fit(test_fit_files.Poisson(), test_fit_files.data(), folder=sys.argv[1])
"""


def test_the_command_goes_on_in_a_folder_without_a_model_that_a_killed_fit_left(
    tmp_path: Path,
) -> None:
    file, folder = tmp_path / "data.parquet", tmp_path / "model"
    write(data(), file)
    folder.mkdir()
    (folder / ".fourpoint-0123456789abcdef.tmp").write_bytes(b"half of it")
    (folder / "model-0123456789ab.safetensors").write_bytes(b"weights without a name")
    (folder / ".fit.lock").touch()
    words = ["fit", str(file), "--model", "poisson", "-o", str(folder)]
    done = CliRunner().invoke(app, [*words, "--resume"])
    assert done.exit_code == 0, done.output
    assert [name.split("-")[0] for name in names(folder)] == ["history.csv", "model", "model.json"]
    restore(folder)


@pytest.mark.parametrize("name", ["thesis.tex", "history.csv", "model-letter.safetensors", ".tmp"])
def test_the_command_writes_into_no_folder_of_others(name: str, tmp_path: Path) -> None:
    file, folder = tmp_path / "data.parquet", tmp_path / "model"
    write(data(), file)
    folder.mkdir()
    (folder / name).write_text("mine")
    done = CliRunner().invoke(app, ["fit", str(file), "--model", "poisson", "-o", str(folder)])
    assert done.exit_code == 2 and "a new or empty folder, or one with a model" in done.output
    assert names(folder) == [name]


# ---------------------------------------------------------------------- one at a time


def test_a_second_fit_into_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = tmp_path / "data.parquet", tmp_path / "model"
    write(data(), file)
    tried: list[Any] = []
    original = training_run.Run.maximise

    def meanwhile(run: training_run.Run, shown: Dataset, *further: Any) -> training_run.Fit:
        words = ["fit", str(file), "--model", "poisson", "-o", str(folder), "--seed", "5"]
        tried.append(CliRunner().invoke(app, words))
        with pytest.raises(UserError) as caught:
            fit(Poisson(), data(), folder=folder, progress=False)
        tried.append(caught.value)
        return original(run, shown, *further)

    monkeypatch.setattr(training_run.Run, "maximise", meanwhile)
    fit(Hawkes(), data(), folder=folder, progress=False)
    command, error = tried
    assert command.exit_code == 2 and "one that another process is using" in command.output
    assert error.expected == f"the folder {folder} for this process alone"
    assert error.remedy == "Wait until that fit has ended, or choose another folder."
    assert isinstance(restore(folder), Hawkes) and not (folder / ".fit.lock").exists()


def test_the_lock_of_a_killed_fit_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    assert in_process(script + KILLED_BEFORE_ANY_MODEL, folder).returncode == KILLED
    assert (folder / ".fit.lock").exists()
    fit(Poisson(), data(), folder=folder, progress=False)
    assert not [name for name in names(folder) if name.startswith(".")]


def test_a_fit_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        fit(Poisson(), data(), steps=0, folder=tmp_path / "a" / "b")
    assert names(tmp_path) == []


def test_models_saved_at_once_are_each_whole(tmp_path: Path) -> None:
    """Processes that save into one folder at the same time never leave a name without weights."""
    code = """
import sys, torch
from fourpoint.storage.checkpoints import save
from fourpoint.models import Poisson
model = Poisson()
for step in range(20):
    with torch.no_grad():
        model.log_rate.fill_(step + 100 * int(sys.argv[2]))
    save(model, sys.argv[1])
"""
    source = Path(checkpoints.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command, read = [sys.executable, "-c", code, str(tmp_path)], 0
    with (
        subprocess.Popen([*command, "1"], env=environment) as one,
        subprocess.Popen([*command, "2"], env=environment) as two,
    ):
        while one.poll() is None or two.poll() is None:
            if (tmp_path / "model.json").exists():
                restore(tmp_path)
                read += 1
    assert (one.returncode, two.returncode) == (0, 0) and read
    restore(tmp_path)
    assert len(names(tmp_path)) == 2


def test_weights_that_are_replaced_while_a_model_is_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Poisson(), tmp_path)
    original, other = checkpoints._read_json, Poisson()
    with torch.no_grad():
        other.log_rate.fill_(3.0)
    calls: list[Path] = []

    def replaced_meanwhile(path: Path) -> dict[str, Any]:
        found = original(path)
        calls.append(path)
        if len(calls) == 1:
            save(other, tmp_path)
        return found

    monkeypatch.setattr(checkpoints, "_read_json", replaced_meanwhile)
    assert float(restore(tmp_path).log_rate.detach()) == 3.0


# ---------------------------------------------------------------------- its own data


def test_resuming_on_other_data_with_equal_counts_is_refused(tmp_path: Path) -> None:
    first = data()
    moved = dataclasses.replace(first, times=first.times * 0.999)
    assert moved.events == first.events and len(moved) == len(first)
    for number, build in enumerate((tiny_rmtpp, Hawkes)):
        folder = tmp_path / str(number)
        fit(build(), first, first, folder=folder, **SHORT)
        before = (folder / "model.json").read_bytes()
        with pytest.raises(
            TrainingError,
            match=r"expected the training data of the run to resume, with the fingerprint .*; "
            r"received other data, with the fingerprint .*\. Pass the data of the first call",
        ):
            fit(build(), moved, first, folder=folder, resume=True, **SHORT)
        with pytest.raises(TrainingError, match="expected the development data of the run to"):
            fit(build(), first, moved, folder=folder, resume=True, **SHORT)
        assert (folder / "model.json").read_bytes() == before
        fit(build(), first, first, folder=folder, resume=True, **SHORT)


def test_a_run_that_was_killed_is_not_resumed_on_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(BaseException):
        """Stands for a kill."""

    def stop(self: training_run.Run) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(training_run.Run, "finish", stop)
        with pytest.raises(Stop):
            fit(tiny_rmtpp(), data(), data(2), folder=tmp_path, **SHORT)
    moved = dataclasses.replace(data(), stops=data().stops + 1.0)
    with pytest.raises(TrainingError, match="expected the training data of the run to resume"):
        fit(tiny_rmtpp(), moved, data(2), folder=tmp_path, resume=True, **SHORT)
    fit(tiny_rmtpp(), data(), data(2), folder=tmp_path, resume=True, **SHORT)


def test_a_fingerprint_knows_times_marks_windows_and_who_has_which_event() -> None:
    first = simulate("hawkes", 4, seed=0)
    one = first.times.copy()
    one[3] = np.nextafter(one[3], np.inf)
    offsets = first.offsets.copy()
    offsets[1] -= 1
    others = [
        dataclasses.replace(first, times=one),
        dataclasses.replace(first, starts=first.starts - 1e-9),
        dataclasses.replace(first, stops=first.stops + 1e-9),
        first.select([1, 0, 2, 3]),
        first.select([0, 1, 2]),
    ]
    known = {fingerprint(data) for data in (first, *others)}
    assert len(known) == 1 + len(others)
    assert fingerprint(dataclasses.replace(first, name="again", unit="h")) in known
