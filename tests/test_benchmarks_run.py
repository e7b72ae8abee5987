"""Every benchmark runs to its end at a tiny size on the CPU, in this process, and leaves a record
of what it measured.

Peers (EasyTPP, tick, HawkesPyLib, polars) are optional: where one is not installed, its row must
say so.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import fourpoint as fp
from fourpoint.events import Batch, Dataset, Sequence
from fourpoint.models import DeepDAPP, Hawkes

SHARED = (
    "records",
    "page",
    "run",
    "easytpp_training",
    "easytpp_models",
    "hotpp_metrics",
    "service_processes",
)  # what the benchmarks import
PEERS = {
    "EasyTPP": "easy_tpp",
    "tick": "tick",
    "HawkesPyLib": "HawkesPyLib",
    "Prophet": "prophet",
    "statsforecast": "statsforecast",
    "Poisson GLM": "statsmodels",
}
FORECASTERS = ("pandas", "prophet", "statsforecast", "statsmodels")
ARGUMENTS = {
    "bands": "--quick --steps 1",
    "brokers": (
        "--only speed service redis outage --events 3000 --speed-events 600 --outage-events 600 "
        "--entities 40 --workers 2 --changes 1 --outages 1 --rate 1000 --model hawkes --repeats 1"
    ),
    "budget": "--budget 0.3 --sets calls --models dapp --seeds 1",
    "conformal": "--data {data} --sets taxi --model poisson --budget 1 --events 20",
    "costs": "--repeats 1",
    "counts": "--quick --paths 4",
    "deep": "--data {data} --sets taxi --rounds 1 --batch 2",
    "etas": (
        "--quick --data {data} --events 400 --catalogues 1 --sizes 200 300 --repeats 1 --days 2"
    ),
    "exactness": "--gaps 40 --forecasts 2",
    "forecast_all": "--sequences 6 --plain 2 --paths 4 --seconds .05 --repeats 1",
    "gpu": "--quick --device cpu --data {data}",
    "hawkes": "--events 400 --repeats 1 --coverage 2 --calendar 100",
    "influence": "--quick",
    "interval_coverage": "--quick",
    "horizon": "--data {data} --models hawkes poisson --paths 4 --undecoded",
    "leaderboard": (
        "--data {data} --sets taxi --models rmtpp easytpp-nhp --seeds 1 --budget 0.2 --most 20 "
        "--output {results}/cells.jsonl"
    ),
    "memory": "--processes hawkes --steps 2 --more 1 --train .5 --sequences 2",
    "oracle": "--limit 5 --repeats 1 --threads 1 --ours dapp --theirs NHP",
    "peers": "--models thp --epochs 1",
    "precision": "--quick",
    "reading": "--rows 400 --repeats 1",
    "sampling": "--paths 4 --seconds .05 --theirs 2 --repeats 1",
    "scale": ("--quick --parts steps --files 2 --sequences 12 --steps 1 --batch 4"),
    "scaling": "--quick --repeats 1",
    "simulated_logs": "--quick --parts features silent gaps scores",
    "serve": "--quick --flood 3000 --max-entities 1000",
    "serve_faults": "--quick --faults kills-sqlite disk",
    "seismic": "--quick",
    "streaming": (
        "--events 60 --keep-events 40 --entities 8 --streams 4 --seconds .05 --command-events 12 "
        "--command-entities 3 --repeats 1 --burst 20 --singles 3 --days 0.05 --changes 1"
    ),
    "training": "--rounds 1 --seconds 0 --threads 1 --ours dapp --theirs THP",
}


def test_no_benchmark_hides_a_package(root: Path) -> None:
    """The folder of a script comes first on its path: coverage.py would hide what numba imports."""
    names = {file.stem for file in (root / "benchmarks").glob("*.py")}
    assert not names & {"coverage", "numba", "torch", "numpy", "scipy", *sys.stdlib_module_names}


def test_every_benchmark_has_a_run_here(root: Path) -> None:
    scripts = {file.stem for file in (root / "benchmarks").glob("*.py")}
    assert scripts - set(SHARED) == set(ARGUMENTS)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_benchmark_runs_to_its_end(
    name: str, script: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script(name)
    _make_small(name, module, monkeypatch)
    _write_events(tmp_path)
    results = tmp_path / "results"
    results.mkdir()
    words = ARGUMENTS[name].format(data=tmp_path, results=results).split()
    if name != "leaderboard":
        words += ["--results", str(results)]
    _call(module, words, monkeypatch)
    if name == "leaderboard":
        cells = [json.loads(line) for line in (results / "cells.jsonl").read_text().splitlines()]
        assert not [cell for cell in cells if "failed" in cell]
        rows = [
            dict(name=cell["model"], figures=cell, missing=cell.get("missing")) for cell in cells
        ]
    else:
        rows = json.loads((results / f"{name}.json").read_text())["rows"]
    measured = [row for row in rows if row["figures"] and not row.get("missing")]
    assert measured or name in ("reading",)
    for row in rows:
        if row in measured:
            continue
        _check_reason(name, row, tmp_path)


def test_gpu_benchmark_calls_the_kernels_as_they_are_written(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without triton the kernels cannot run, but what surrounds them is plain torch, and their
    arguments can be checked.
    """
    module = script("gpu")
    with _importable_kernels(monkeypatch) as deep_cuda:
        real = deep_cuda.log_likelihoods

        def plain(*given: Any, **named: Any) -> torch.Tensor:
            bound = inspect.signature(real).bind(*given, **named).arguments
            assert bound["gaps"] is False
            events = bound["batch"]
            valid = torch.arange(events.times.shape[1]) < events.lengths[:, None]
            batch = Batch(events.times, events.marks, valid, events.start, events.stop)
            return module._deep_value(models[-1], batch, bound["drawn"].where)

        models: list[DeepDAPP] = []
        kernel_model = DeepDAPP.kernel_model

        def remembered(self: DeepDAPP) -> Any:
            models.append(self)
            return kernel_model(self)

        monkeypatch.setattr(DeepDAPP, "kernel_model", remembered)
        monkeypatch.setattr(deep_cuda, "log_likelihoods", plain)
        monkeypatch.setattr(module, "with_kernels", lambda device: True)
        value, gradient = module.deep_agrees("cpu", 4)
    assert 0 <= value < 1e-5 and 0 < gradient < 1e-3


def test_gpu_benchmark_agrees_in_tritons_interpreter(script: Callable[[str], ModuleType]) -> None:
    pytest.importorskip(
        "triton", reason="triton is not installed; torch brings it where there is a CUDA device"
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no CUDA device, and TRITON_INTERPRET=1 was not set before the start")
    module = script("gpu")
    for compare in (module.dapp_agrees, module.deep_agrees):
        value, gradient = compare(device, 2)
        assert value < 1e-4 and gradient < 2e-3


# ---------------------------------------------------------------------- a benchmark as a module,
# and its processes in this one


@pytest.fixture
def script(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Loads a file of benchmarks/ as a module; the files import each other by their plain names, as
    scripts do.
    """
    monkeypatch.setattr(sys, "path", [str(root / "benchmarks"), *sys.path])
    before, threads = set(sys.modules), torch.get_num_threads()

    def load(name: str) -> ModuleType:
        found = importlib.import_module(name)
        assert Path(found.__file__ or "").parent == root / "benchmarks"
        return found

    yield load
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if name in ARGUMENTS or name in SHARED:
            del sys.modules[name]


def _call(module: ModuleType, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run ``main`` with these arguments; what it starts in processes of its own runs in this
    one.
    """
    if hasattr(module, "subprocess"):
        stand_in = MagicMock(wraps=subprocess)
        stand_in.run = partial(_run_here, module, monkeypatch)
        stand_in.Popen = partial(_start_here, module, monkeypatch)
        for constant in ("TimeoutExpired", "PIPE", "DEVNULL"):
            setattr(stand_in, constant, getattr(subprocess, constant))
        monkeypatch.setattr(module, "subprocess", stand_in)
    monkeypatch.setattr(sys, "argv", [str(module.__file__), *words])
    assert module.main() in (None, 0)


def _run_here(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, words: list[str], **terms: Any
) -> Any:
    if str(module.__file__) not in words:  # another program, such as `fourpoint --help`
        return subprocess.run(words, **terms)
    printed = io.StringIO()
    before = sys.argv
    with contextlib.redirect_stdout(printed), monkeypatch.context() as own:
        own.setattr(sys, "argv", words[words.index(str(module.__file__)) :])
        try:
            module.main()
        except ImportError as error:
            return subprocess.CompletedProcess(
                words, 1, printed.getvalue(), f"ModuleNotFoundError: {error}"
            )
    assert sys.argv is before
    return subprocess.CompletedProcess(words, 0, printed.getvalue(), "")


def _start_here(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, words: list[str], **terms: Any
) -> Any:
    if str(module.__file__) not in words:  # another program, such as `fourpoint stream`
        return subprocess.Popen(words, **terms)
    _run_here(module, monkeypatch, words)
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    return ended


# ---------------------------------------------------------------------- small sizes


def _make_small(name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    few = _sample(12)
    if name == "budget":
        monkeypatch.setattr(module, "STEPS", 2)
        monkeypatch.setattr(module, "TRAIN_SEQUENCES", 8)
        monkeypatch.setattr(module, "TEST_SEQUENCES", 3)
        monkeypatch.setattr(module, "call_log", lambda: few)
    if name == "costs":
        monkeypatch.setattr(module, "hawkes_data", lambda sequences, seed: few)
        monkeypatch.setattr(module, "STEPS", 2)
        monkeypatch.setattr(module, "MIXED", module.MIXED_QUICK)
        monkeypatch.setattr(module, "TRAINED", ("dapp",))
        monkeypatch.setattr(module, "PEERS", ("THP",))
    if name == "counts":
        monkeypatch.setattr(module, "OURS", {"calendar Poisson": module.OURS["calendar Poisson"]})
        monkeypatch.setattr(module, "THEIRS", module.THEIRS if not _installed(*FORECASTERS) else {})
    if name == "exactness":
        monkeypatch.setattr(module, "DRAWS", 50)
        monkeypatch.setattr(module, "FIRST", 20)
        shown = {
            model: build
            for model, build in module.MODELS.items()
            if model in ("DAPP none, exp", "ODAPP none", "rmtpp", "Hawkes")
        }
        monkeypatch.setattr(module, "MODELS", shown)
    if name in ("memory", "sampling", "streaming"):
        monkeypatch.setattr(
            module, "process", lambda which: SimpleNamespace(simulate=lambda *given, **terms: few)
        )
    if name == "memory":
        monkeypatch.setattr(module, "SHARES", (0.5, 1.0))
    if name == "oracle":
        monkeypatch.setattr(module, "sets", lambda: (few, few))
        monkeypatch.setattr(module, "STEPS", 2)
    if name in ("peers", "training", "gpu"):
        monkeypatch.setattr(fp, "sample", lambda *given, **terms: few)
    if name == "gpu":
        monkeypatch.setattr(module, "SETS", ("taxi",))
    if name == "precision":
        monkeypatch.setattr(module, "SEQUENCES", 2)
        monkeypatch.setattr(fp, "load", lambda which: _split(few))
    if name == "scaling":
        axes = {axis: {**terms, "quick": (2, 4)} for axis, terms in module.AXES.items()}
        monkeypatch.setattr(module, "AXES", axes)
        monkeypatch.setattr(module, "EVENTS", 4)
    if name == "streaming":
        monkeypatch.setattr(module, "LAST", 20)
        monkeypatch.setattr(module, "FIRST", 20)
        monkeypatch.setattr(module, "OBSERVED", 40)
        monkeypatch.setattr(module, "WARM_UP", 10)
        for window, stop in (("WATCHED", 10.0), ("DOUBLED", 5.0), ("SEEN", 10.0)):
            monkeypatch.setattr(module, window, stop)
    if name == "leaderboard":
        monkeypatch.setattr(module, "EVENTS", 3)
    if name == "horizon":
        sizes = {"EVERY": 2, "FOLLOWING": 2, "STEPS": 2, "SLOTS": 4, "ALONE": 3}
        for constant, small in sizes.items():
            monkeypatch.setattr(module, constant, small)


def _sample(sequences: int) -> Dataset:
    return fp.sample(Hawkes(baseline=0.5, branching=0.5, decay=1.0), 0.0, 10.0, sequences, seed=1)


def _split(data: Dataset) -> Dataset:
    """The same sequences as train, dev and test in turn."""
    parts = ("train", "dev", "test", "train")
    return replace(data, splits=np.array([parts[i % 4] for i in range(len(data))]))


def _write_events(folder: Path) -> None:
    """A set of the names that `deep`, `gpu` and `leaderboard` look for, with three splits and two
    types.
    """
    from fourpoint.data.readers import write

    rng = np.random.default_rng(0)
    made = []
    for _ in range(12):
        times = np.cumsum(rng.exponential(size=6))
        made.append(
            Sequence(
                times, rng.integers(2, size=6), start=0.0, stop=float(times[-1]) + 1.0, space=2
            )
        )
    data = _split(Dataset.from_sequences(made))
    for name in ("taxi", "stackoverflow_easytpp"):
        write(data, folder / f"{name}.parquet")


# ---------------------------------------------------------------------- what cannot be measured
# here


def _installed(*modules: str) -> bool:
    """Whether one of them is installed: peers that fit at every midnight are not run here."""
    return any(importlib.util.find_spec(module) is not None for module in modules)


def _check_reason(name: str, row: dict[str, Any], data: Path) -> None:
    """A row without figures names the package or the file that is missing, and it is missing."""
    file, _, rest = row["missing"].partition(" ")
    if rest == "is not in the folder --data":
        assert file.startswith(row["name"]) and not (data / file).exists(), row
        return
    module = (
        "polars"
        if name == "reading"
        else next(package for peer, package in PEERS.items() if peer.lower() in row["name"].lower())
    )
    assert module in row["missing"], row
    assert importlib.util.find_spec(module) is None, (
        f"{module} is installed, but its row says {row['missing']}"
    )


@contextlib.contextmanager
def _importable_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`deep_cuda`, with a stand-in for triton where it is not installed; the modules that saw the
    stand-in are forgotten afterwards.
    """
    if importlib.util.find_spec("triton") is not None:
        yield importlib.import_module("fourpoint.kernels.triton_deep_dapp.loss")
        return
    before = set(sys.modules)
    triton, language = ModuleType("triton"), MagicMock()
    triton.jit = lambda *given, **terms: given[0] if given else triton.jit  # type: ignore[attr-defined]
    triton.language = language  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    try:
        yield importlib.import_module("fourpoint.kernels.triton_deep_dapp.loss")
    finally:
        for name in set(sys.modules) - before:
            if name.startswith("fourpoint.") and name.endswith("_cuda"):
                parent, _, own = name.rpartition(".")
                delattr(sys.modules[parent], own)
                del sys.modules[name]
