"""Models that somebody changed: whatever `model.json` and the weights say, with a valid hash, the
answer is an error in three clauses, and nothing large is allocated."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save as to_bytes
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.events import Box, MarkSpace
from fourpoint.models import MODELS, DeepDAPP
from fourpoint.storage.checkpoints import CheckpointError, about, restore, save

AXES = Box(("x", "y"), (0.0, 0.0), (1.0, 2.0))
SMALL: dict[str, dict[str, Any]] = {
    "dapp": dict(heads=2, features=4, eval_features=8, generator=(4,), knots=3),
    "deep-dapp": dict(layers=1, width=8, modes=4),
    "spatial-dapp": dict(heads=2, frequencies=2, generator=(4,), knots=3),
    "nhp": dict(hidden=4, embedding=2),
    "rmtpp": dict(hidden=4),
    "sahp": dict(hidden=8, layers=1, heads=2),
    "thp": dict(hidden=8, layers=1, heads=2),
    "spline-poisson": dict(knots=4),
}
Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


def new(name: str) -> Any:
    names = () if name in ("self-correcting", "etas", "seismic-dapp") else ("a", "b")
    placed = name.startswith("spatial-") or name == "seismic-dapp"
    marks = MarkSpace(names, AXES if placed else None)
    return MODELS[name](marks, **SMALL.get(name, {}))


def rewrite(folder: Path, change: Change) -> None:
    """Change JSON and tensors of a saved model, and make the hash fit."""
    description = folder / "model.json"
    info = json.loads(description.read_text())
    old = folder / info["weights"]
    tensors = load(old.read_bytes())
    before = info["weights"]
    change(info, tensors)
    content = to_bytes(tensors)
    digest = hashlib.sha256(content).hexdigest()
    old.unlink()
    if info.get("weights") == before:
        info["weights"] = f"model-{digest[:12]}.safetensors"
    (folder / f"model-{digest[:12]}.safetensors").write_bytes(content)
    if "sha256" in info:
        info["sha256"] = digest
    description.write_text(json.dumps(info))


def entry(*path: str, to: Any) -> Change:
    """Put ``to`` under the keys ``path``."""

    def change(info: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for key in path[:-1]:
            info = info[key]
        info[path[-1]] = to

    return change


def without(*path: str) -> Change:
    def change(info: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for key in path[:-1]:
            info = info[key]
        del info[path[-1]]

    return change


def tensor(name: str, by: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(info: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = by(tensors[name]).contiguous().clone()

    return change


def settings(**values: Any) -> Change:
    return lambda info, tensors: info["settings"].update(values)


def removed(name: str) -> Change:
    return lambda info, tensors: tensors.pop(name)


def added(name: str, value: torch.Tensor) -> Change:
    return lambda info, tensors: tensors.update({name: value})


def one(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same tensor with one number replaced."""

    def change(found: torch.Tensor) -> torch.Tensor:
        flat = found.clone().flatten()
        flat[-1] = value
        return flat.reshape(found.shape)

    return change


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def profile_tables(**changes: Any) -> dict[str, Any]:
    """Profile log-likelihoods of a Hawkes process of two types, with changes in its baseline."""
    found: dict[str, Any] = {}
    for name, value in (("branching", [[0.1, 0.1], [0.1, 0.1]]), ("decay", 1.0)):
        parts = dict.fromkeys(("estimate", "gradient", "curvature", "third"), value)
        found[name] = parts | {"logarithmic": False}
    baseline = dict.fromkeys(("estimate", "gradient", "curvature", "third"), [1.0, 1.0])
    found["baseline"] = baseline | {"logarithmic": False} | changes
    return found


NAN, INF = math.nan, math.inf
CASES: dict[str, tuple[str, Change]] = {
    # the head
    "format missing": ("dapp", without("format")),
    "format as text": ("dapp", entry("format", to="1")),
    "format true": ("dapp", entry("format", to=True)),
    "format a fraction": ("dapp", entry("format", to=1.0)),
    "hash missing": ("dapp", without("sha256")),
    "weights missing": ("dapp", without("weights")),
    "weights a number": ("dapp", entry("weights", to=3)),
    "weights null": ("dapp", entry("weights", to=None)),
    "weights a list": ("dapp", entry("weights", to=["model-0123456789ab.safetensors"])),
    "weights empty": ("dapp", entry("weights", to="")),
    "weights the folder": ("dapp", entry("weights", to=".")),
    "weights above": ("dapp", entry("weights", to="../model-0123456789ab.safetensors")),
    "weights far above": ("dapp", entry("weights", to="a/../../../etc/passwd")),
    "weights absolute": ("dapp", entry("weights", to="/etc/passwd")),
    "weights with a backslash": ("dapp", entry("weights", to="..\\model-0123456789ab.safetensors")),
    "weights with a zero byte": ("dapp", entry("weights", to="model\0.safetensors")),
    "weights very long": ("dapp", entry("weights", to="m" * 5000)),
    "weights with a line break": ("dapp", entry("weights", to="model-0123456789ab.safetensors\n")),
    "an unknown entry": ("dapp", entry("script", to="rm")),
    # the model
    "model missing": ("dapp", without("model")),
    "model a number": ("dapp", entry("model", to=1)),
    "model a list": ("dapp", entry("model", to=["dapp"])),
    "model an object": ("dapp", entry("model", to={"dapp": 1})),
    "another model": ("dapp", entry("model", to="hawkes")),
    "a relative of the model": ("dapp", entry("model", to="dapp-paper")),
    # marks and boxes
    "marks missing": ("dapp", without("marks")),
    "marks null": ("dapp", entry("marks", to=None)),
    "marks text": ("dapp", entry("marks", to="ab")),
    "marks a number": ("dapp", entry("marks", to=2)),
    "marks numbers": ("dapp", entry("marks", to=[1, 2])),
    "marks nested": ("dapp", entry("marks", to=[["a"], ["b"]])),
    "marks repeated": ("dapp", entry("marks", to=["a", "a"])),
    "marks one too many": ("dapp", entry("marks", to=["a", "b", "c"])),
    "marks none": ("dapp", entry("marks", to=[])),
    "marks very many": ("hawkes", entry("marks", to=[str(i) for i in range(200_000)])),
    "a box for a model without": ("dapp", entry("box", to=dict(names=["x"], low=[0], high=[1]))),
    "box missing": ("spatial-dapp", without("box")),
    "box null": ("spatial-dapp", entry("box", to=None)),
    "box a list": ("spatial-dapp", entry("box", to=[0, 1])),
    "box without bounds": ("spatial-dapp", without("box", "low")),
    "box of text": ("spatial-dapp", entry("box", "low", to=["0", "0"])),
    "box with a number for a list": ("spatial-dapp", entry("box", "low", to=0)),
    "box with NaN": ("spatial-dapp", entry("box", "low", to=[NAN, 0.0])),
    "box without end": ("spatial-dapp", entry("box", "high", to=[INF, 1.0])),
    "box upside down": ("spatial-dapp", entry("box", "high", to=[-1.0, 1.0])),
    "box of one axis": ("spatial-dapp", entry("box", to=dict(names=["x"], low=[0], high=[1]))),
    "box with axes of one name": ("spatial-dapp", entry("box", "names", to=["x", "x"])),
    "box with numbers for names": ("spatial-dapp", entry("box", "names", to=[1, 2])),
    # settings
    "settings missing": ("dapp", without("settings")),
    "settings null": ("dapp", entry("settings", to=None)),
    "settings a list": ("dapp", entry("settings", to=[["heads", 2]])),
    "settings text": ("dapp", entry("settings", to="heads=2")),
    "an unknown setting": ("dapp", settings(speed=3)),
    "marks among the settings": ("dapp", settings(marks=2)),
    "heads missing": ("dapp", without("settings", "heads")),
    "heads as text": ("dapp", settings(heads="2")),
    "heads true": ("dapp", settings(heads=True)),
    "heads a fraction": ("dapp", settings(heads=2.0)),
    "heads null": ("dapp", settings(heads=None)),
    "heads a list": ("dapp", settings(heads=[2])),
    "heads an object": ("dapp", settings(heads={"n": 2})),
    "heads 0": ("dapp", settings(heads=0)),
    "heads negative": ("dapp", settings(heads=-2)),
    "heads another": ("dapp", settings(heads=3)),
    "heads NaN": ("dapp", settings(heads=NAN)),
    "heads huge": ("dapp", settings(heads=10**9)),
    "heads beyond any number": ("dapp", settings(heads=10**40)),
    "features huge": ("dapp", settings(features=10**12, eval_features=None)),
    "heads and features large": ("dapp", settings(heads=4096, eval_features=2**24)),
    "knots large": ("dapp", settings(base="spline", knots=10**6)),
    "generator deep": ("dapp", settings(generator=[4] * 10_000)),
    "generator wide": ("dapp", settings(generator=[2**16, 2**16])),
    "generator text": ("dapp", settings(generator="44")),
    "generator nested": ("dapp", settings(generator=[[4]])),
    "generator deeply nested": ("dapp", settings(generator=nested(200))),
    "generator a number": ("dapp", settings(generator=4)),
    "generator negative": ("dapp", settings(generator=[-4])),
    "generator empty": ("dapp", settings(generator=[])),
    "an unknown choice": ("dapp", settings(link="cube")),
    "a choice as a list": ("dapp", settings(link=["exp"])),
    "an unknown activation": ("dapp", settings(activation="eval")),
    "choices that exclude each other": ("dapp", settings(normalise="softmax", form="scan")),
    "keep 0": ("dapp", settings(keep=0)),
    "keep negative": ("dapp", settings(keep=-0.5)),
    "keep NaN": ("dapp", settings(keep=NAN)),
    "seed as text": ("dapp", settings(seed="0")),
    "seed huge": ("dapp", settings(seed=10**30)),
    "layers huge": ("deep-dapp", settings(layers=10**7)),
    "layers many": ("deep-dapp", settings(layers=1000, width=1024)),
    "width 0": ("deep-dapp", settings(width=0)),
    "width large": ("deep-dapp", settings(width=10**6)),
    "modes large": ("deep-dapp", settings(modes=2**20)),
    "sinusoids huge": ("deep-dapp", settings(sinusoids=10**10)),
    "dropout above 1": ("deep-dapp", settings(dropout=1.5)),
    "dropout negative": ("deep-dapp", settings(dropout=-0.1)),
    "dropout infinite": ("deep-dapp", settings(dropout=INF)),
    "heads that do not divide": ("thp", settings(heads=3)),
    "no heads": ("thp", settings(heads=0)),
    "hidden huge": ("nhp", settings(hidden=10**6)),
    "hidden negative": ("rmtpp", settings(hidden=-4)),
    "frequencies many": ("spatial-dapp", settings(frequencies=3000)),
    "order huge": ("spatial-dapp", settings(order=10**6)),
    "exponentials huge": ("hawkes", settings(exponentials=10**9)),
    "exponentials as text": ("hawkes", settings(exponentials="1")),
    "a baseline of text": ("hawkes", settings(baseline="high")),
    "a baseline below 0": ("hawkes", settings(baseline=-1.0)),
    "a baseline of NaN": ("hawkes", settings(baseline=NAN)),
    "a ragged table": ("hawkes", settings(branching=[[0.1, 0.2], [0.3]])),
    "a table of objects": ("hawkes", settings(branching=[[{}, 1], [1, 1]])),
    "a table nested deeply": ("hawkes", settings(branching=nested(300))),
    "a decay of infinity": ("hawkes", settings(decay=INF)),
    "cells huge": ("spatial-hawkes", settings(cells=10**6)),
    "knots negative": ("spline-poisson", settings(knots=-1)),
    "drift of text": ("self-correcting", settings(drift="fast")),
    "marks for a model of one": ("self-correcting", entry("marks", to=["a", "b"])),
    # tensors
    "NaN weights": ("dapp", tensor("readout", one(NAN))),
    "infinite weights": ("dapp", tensor("readout", one(INF))),
    "weights of minus infinity": ("dapp", tensor("modes.log_decay", one(-INF))),
    "a NaN buffer": ("dapp", tensor("time_scale", one(NAN))),
    "an infinite buffer": ("dapp", tensor("rate.baseline.length", one(INF))),
    "a buffer of 0": ("dapp", tensor("time_scale", one(0.0))),
    "a negative buffer": ("nhp", tensor("time_scale", one(-1.0))),
    "a NaN buffer that may be infinite": ("deep-dapp", tensor("fastest", one(NAN))),
    "a negative tick": ("deep-dapp", tensor("tick", one(-1.0))),
    "NaN in a Hawkes process": ("hawkes", tensor("log_branching", one(NAN))),
    "NaN in a Poisson process": ("poisson", tensor("baseline.log_base", one(NAN))),
    "a tensor missing": ("dapp", removed("readout")),
    "a tensor too many": ("dapp", added("extra", torch.ones(2))),
    "no tensors": ("poisson", removed("baseline.log_base")),
    "another shape": ("dapp", tensor("readout", lambda x: x[:, :1])),
    "another dimension": ("dapp", tensor("readout", lambda x: x[None])),
    "a transposed tensor": ("dapp", tensor("modes.mark_key", lambda x: x.transpose(0, 1))),
    "half precision": ("dapp", tensor("readout", lambda x: x.half())),
    "one of double precision": ("dapp", tensor("readout", lambda x: x.double())),
    "whole numbers": ("dapp", tensor("readout", lambda x: x.long())),
    "a rate in single precision": ("poisson", tensor("baseline.log_base", lambda x: x.float())),
    "numbers for a switch": ("deep-dapp", tensor("narrow", lambda x: x.float())),
    # what stands beside
    "about null": ("dapp", entry("about", to=None)),
    "about a list": ("dapp", entry("about", to=[1])),
    "a start of text": ("dapp", entry("about", to=dict(start="noon"))),
    "a start of NaN": ("dapp", entry("about", to=dict(start=NAN))),
    "a unit of numbers": ("dapp", entry("about", to=dict(unit=7))),
    "a recipe of text": ("dapp", entry("about", to=dict(recipe="fast"))),
    # standard errors
    "errors of another model": ("dapp", entry("errors", to=dict(baseline=[1.0, 1.0]))),
    "errors a list": ("hawkes", entry("errors", to=[1.0])),
    "errors of nothing known": ("hawkes", entry("errors", to=dict(height=[1.0]))),
    "errors of another shape": ("hawkes", entry("errors", to=dict(baseline=[1.0]))),
    "errors ragged": ("hawkes", entry("errors", to=dict(branching=[[1.0], [1.0, 2.0]]))),
    "errors of text": ("hawkes", entry("errors", to=dict(baseline=["a", "b"]))),
    "errors negative": ("hawkes", entry("errors", to=dict(baseline=[-1.0, 1.0]))),
    "errors infinite": ("hawkes", entry("errors", to=dict(baseline=[INF, 1.0]))),
    # profile log-likelihoods
    "profiles of another model": ("dapp", entry("profiles", to={})),
    "profiles a list": ("hawkes", entry("profiles", to=[1.0])),
    "profiles of some": ("hawkes", entry("profiles", to=dict(baseline={}))),
    "profiles empty": ("hawkes", entry("profiles", to=dict(decay={}, baseline={}, branching={}))),
    "profiles of another shape": ("hawkes", entry("profiles", to=profile_tables(estimate=[1.0]))),
    "profiles infinite": ("hawkes", entry("profiles", to=profile_tables(third=[INF, 1.0]))),
    "profiles negative": ("hawkes", entry("profiles", to=profile_tables(curvature=[-1.0, 1.0]))),
    "profiles of text": ("hawkes", entry("profiles", to=profile_tables(gradient=["a", "b"]))),
    "profiles on no scale": ("hawkes", entry("profiles", to=profile_tables(logarithmic=1))),
}


@pytest.mark.parametrize("case", CASES)
def test_a_tampered_model_is_refused_in_three_clauses(case: str, tmp_path: Path) -> None:
    name, change = CASES[case]
    save(new(name), tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(CheckpointError) as caught:
        restore(tmp_path)
    error = caught.value
    assert error.expected and error.received and error.remedy.endswith(".")
    assert len(str(error)) < 2000


def test_there_are_cases_enough() -> None:
    assert len(CASES) >= 74


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"format": 1, "model": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}",
        '{"format": ' + "9" * 10_000 + "}",
        "",
        "null",
        "\x00",
    ],
    ids=["nested lists", "nested objects", "a long number", "empty", "null", "a zero byte"],
)
def test_json_that_is_none_or_too_deep(content: str, tmp_path: Path) -> None:
    save(new("dapp"), tmp_path)
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(CheckpointError):
        restore(tmp_path)
    with pytest.raises(CheckpointError):
        about(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        (2**62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (60).to_bytes(8, "little")
        + b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}'.ljust(60)
        + b"\0" * 4,
        (80).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,4]}}'.ljust(80)
        + b"\0" * 4,
    ],
    ids=["empty", "zeros", "a huge header", "a list", "an unknown dtype", "a huge shape"],
)
def test_weights_that_are_not_safetensors(content: bytes, tmp_path: Path) -> None:
    save(new("poisson"), tmp_path)
    info = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / info["weights"]).write_bytes(content)
    info["sha256"] = hashlib.sha256(content).hexdigest()
    (tmp_path / "model.json").write_text(json.dumps(info))
    with pytest.raises(CheckpointError, match="expected weights in the format safetensors"):
        restore(tmp_path)


def test_links(tmp_path: Path) -> None:
    """A link to a file is followed, as in the cache of a model hub; anything else is refused."""
    folder = tmp_path / "model"
    save(new("poisson"), folder)
    weights = next(folder.glob("*.safetensors"))
    blob = tmp_path / "blob"
    weights.rename(blob)
    weights.symlink_to(blob)
    restore(folder)
    for target in (tmp_path, tmp_path / "nowhere", weights, Path("/etc/hostname")):
        weights.unlink()
        weights.symlink_to(target)
        with pytest.raises(CheckpointError):
            restore(folder)
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(CheckpointError, match="which is not a file"):
        restore(folder)


def test_settings_that_ask_for_much_are_refused_before_it_is_allocated(tmp_path: Path) -> None:
    import tracemalloc

    save(new("hawkes"), tmp_path)
    rewrite(tmp_path, entry("marks", to=[str(i) for i in range(20_000)]))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="expected branching ratios of 20000 types"):
            restore(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back_from_its_folder(name: str, tmp_path: Path) -> None:
    model = new(name)
    save(model, tmp_path)
    found: Any = restore(tmp_path)
    expected = model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in found.state_dict().items())
    save(model.double(), tmp_path)
    found = restore(tmp_path)
    assert all(p.dtype == torch.float64 for p in found.parameters())


def test_models_with_an_unlimited_buffer_come_back(tmp_path: Path) -> None:
    model = DeepDAPP(2, **SMALL["deep-dapp"])
    assert float(model.fastest) == math.inf
    save(model, tmp_path)
    restored = restore(tmp_path)
    assert isinstance(restored, DeepDAPP)
    assert float(restored.fastest) == math.inf


def test_the_command_ends_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    """NaN weights were loaded, scored nothing and ended with code 0."""
    save(new("hawkes"), tmp_path / "model", about=dict(start=0.0))
    rewrite(tmp_path / "model", tensor("baseline.log_base", one(NAN)))
    feed = tmp_path / "feed.jsonl"
    feed.write_text('{"time": 1.0, "mark": "a"}\n{"time": 2.0, "mark": "b"}\n')
    done = CliRunner().invoke(app, ["stream", str(tmp_path / "model"), "--input", str(feed)])
    assert done.exit_code == 2, done.output
    assert (
        "finite weights, for baseline.log_base too" in done.output and "what to do" in done.output
    )
