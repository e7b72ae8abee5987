"""Checkpoints: what is saved comes back, and a folder that is damaged, foreign or half written is
refused or harmless.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fourpoint
from fourpoint.data.synthetic import simulate
from fourpoint.events import Box, Dataset, MarkSpace, Sequence
from fourpoint.models import DAPP, MODELS, Poisson
from fourpoint.storage import checkpoints
from fourpoint.storage.checkpoints import (
    CheckpointError,
    about,
    read_tensors,
    remove_tensors,
    restore,
    save,
    write_tensors,
)

SMALL: dict[str, dict[str, Any]] = {
    "dapp": dict(heads=2, features=6, generator=(8,), knots=4),
    "dapp-paper": dict(features=6, eval_features=24, generator=(8,)),
    "spline-poisson": dict(knots=4),
}
NAMED = MarkSpace.categorical(["fire", "médical", "a b"])


def typed() -> Dataset:
    return Dataset.from_sequences(
        [Sequence([0.5, 1.0, 2.5], [0, 2, 1], start=0.0, stop=3.0, space=NAMED)]
    )


def in_a_box() -> Dataset:
    space = MarkSpace(NAMED.names, Box(("east",), (-1.0,), (4.5,)))
    return Dataset.from_sequences(
        [
            Sequence(
                [0.5, 1.0, 2.5],
                [0, 2, 1],
                start=0.0,
                stop=3.0,
                space=space,
                places=[-1.0, 4.5, 0.25],
            )
        ]
    )


def in_a_plane() -> Dataset:
    space = MarkSpace((), Box(("x", "y"), (-1.0, 0.0), (4.5, 2.0)))
    random = np.random.default_rng(3)
    times, places = np.sort(random.uniform(0, 3, 30)), random.uniform((-1, 0), (4.5, 2), (30, 2))
    return Dataset.from_sequences(
        [Sequence(times, start=0.0, stop=3.0, space=space, places=places)]
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back(name: str, tmp_path: Path) -> None:
    marked = name not in ("self-correcting", "etas", "seismic-dapp")
    placed = name.startswith("spatial-")
    if name == "seismic-dapp":
        data = in_a_plane()
    elif not marked:
        data = simulate("hawkes", 3)
    else:
        data = in_a_box() if placed else typed()
    model = MODELS[name](data.marks, **SMALL.get(name, {}))
    model.initialise(data)
    model.fix_features()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01
    assert save(model, tmp_path) == tmp_path
    other = restore(tmp_path)
    assert type(other) is type(model) and not other.training
    assert other.settings() == model.settings() and other.marks == model.marks
    assert other.state_dict().keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert (
            torch.equal(other.state_dict()[key], value)
            and other.state_dict()[key].dtype == value.dtype
        ), key
    flags = [[(n, p.requires_grad) for n, p in m.named_parameters()] for m in (model, other)]
    assert flags[0] == flags[1]
    batch = data.batch()
    model.eval()
    assert torch.equal(
        *(m.log_intensity(m.encode(batch), batch.edges[:, 1:, None]) for m in (model, other))
    )
    names = json.loads((tmp_path / "model.json").read_text())["marks"]
    assert names == (list(NAMED.names) if marked else [])


def test_a_restored_model_can_be_trained_on(tmp_path: Path) -> None:
    model = DAPP(**SMALL["dapp"])
    save(model, tmp_path)
    other = restore(tmp_path).train()
    other.log_intensity(
        other.encode(typed_plain := simulate("hawkes", 2).batch()), typed_plain.edges[:, 1:, None]
    ).sum().backward()
    assert all(p.grad is not None for p in other.parameters() if p.requires_grad)


def test_what_was_said_beside_the_model(tmp_path: Path) -> None:
    save(Poisson(), tmp_path, about={"unit": "hours", "notes": ["one"]})
    assert about(tmp_path) == {"unit": "hours", "notes": ["one"]}
    info = json.loads((tmp_path / "model.json").read_text())
    assert (
        info["fourpoint"] == fourpoint.__version__
        and info["model"] == "poisson"
        and info["format"] == checkpoints.FORMAT
    )
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".safetensors"]


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    model = Poisson()
    for rate in (1.0, 2.0):
        with torch.no_grad():
            model.log_rate.fill_(rate)
        save(model, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 and restore(tmp_path).log_rate.item() == 2.0


@pytest.mark.parametrize("moment", ["weights", "json"])
def test_an_interrupted_write_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    model = Poisson()
    save(model, tmp_path)
    old = model.log_rate.item()
    with torch.no_grad():
        model.log_rate.fill_(5.0)
    replace = os.replace

    def stop(source: Path, target: Path) -> None:
        if Path(target).suffix == (".json" if moment == "json" else ".safetensors"):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as m:
        m.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            save(model, tmp_path)
    assert restore(tmp_path).log_rate.item() == old
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    save(model, tmp_path)
    assert restore(tmp_path).log_rate.item() == 5.0 and len(list(tmp_path.iterdir())) == 2


# ---------------------------------------------------------------------- what is refused


def saved(tmp_path: Path) -> tuple[Path, Path]:
    save(DAPP(**SMALL["dapp"], eval_features=8), tmp_path)
    return tmp_path / "model.json", next(tmp_path.glob("*.safetensors"))


def refused(tmp_path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        restore(tmp_path)


def test_damaged_weights(tmp_path: Path) -> None:
    _, weights = saved(tmp_path)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    refused(
        tmp_path,
        (
            r"expected weights with the hash in model.json; received .* with another hash: it is "
            r"damaged\. Copy the folder again"
        ),
    )
    weights.write_bytes(content[: len(content) // 2])
    refused(tmp_path, "it is damaged")


def test_missing_files(tmp_path: Path) -> None:
    description, weights = saved(tmp_path)
    weights.unlink()
    refused(
        tmp_path,
        r"expected weights in model-.*; received no such file in .*\. Copy the whole folder",
    )
    description.unlink()
    refused(
        tmp_path,
        (
            r"expected a folder written by `fourpoint fit`; received .* without model.json\. "
            r"Check the path"
        ),
    )
    refused(tmp_path / "nowhere", "without model.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"format": 1, "weights"',
            r"expected JSON; received .*model.json: .*\. The folder is damaged",
        ),
        (b"\xff\xfe\x00", r"expected JSON; received .*model.json: "),
        (
            "[1, 2]",
            (
                r"expected a JSON object; received list in .*\. The folder was not written by "
                r"Fourpoint"
            ),
        ),
        (
            '{"a": 1}',
            (
                r"expected a folder written by Fourpoint .format 1.; received format None in "
                r".*\. Point to a folder"
            ),
        ),
        (
            '{"format": 99, "weights": "x"}',
            r"expected a folder written by Fourpoint .format 1.; received format 99",
        ),
    ],
)
def test_foreign_json(tmp_path: Path, content: str | bytes, message: str) -> None:
    description, _ = saved(tmp_path)
    description.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(tmp_path, message)


def changed(tmp_path: Path, **entries: Any) -> None:
    description, _ = saved(tmp_path)
    info = json.loads(description.read_text())
    description.write_text(json.dumps({**info, **entries}))


def test_a_model_of_another_version(tmp_path: Path) -> None:
    changed(tmp_path, model="transformer")
    refused(
        tmp_path, r"expected a model among dapp, .*; received 'transformer' in .*\. Use the version"
    )


def test_settings_that_do_not_fit_the_weights(tmp_path: Path) -> None:
    changed(tmp_path, settings={"heads": 3})
    refused(
        tmp_path,
        (
            r"expected settings and weights that belong together; received .*copy it again, or "
            r"fit again\."
        ),
    )
    changed(tmp_path, settings={"speed": 3})
    refused(tmp_path, "expected settings among .*; received 'speed' in ")
    changed(tmp_path, sha256=None)
    refused(tmp_path, "it is damaged")


def test_models_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"expected one of Fourpoint's models; received Linear\. Known are dapp, ",
    ):
        save(torch.nn.Linear(1, 1), tmp_path)
    assert not list(tmp_path.iterdir())


def test_tensors_of_any_kind_can_be_kept_beside_a_model(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(3),
        "b": torch.tensor(2.5, dtype=torch.float64),
        "c": torch.eye(2)[:, :1],
    }
    save(Poisson(), tmp_path)
    write_tensors(tmp_path, "training", tensors, {"step": 4})
    found, info = read_tensors(tmp_path, "training")
    assert info["step"] == 4 and all(torch.equal(found[k], tensors[k]) for k in tensors)
    remove_tensors(tmp_path, "training")
    assert len(list(tmp_path.iterdir())) == 2
    restore(tmp_path)


def test_settings_of_earlier_versions_have_the_names_of_this_one(root: Path) -> None:
    folder = root / "tests" / "reference" / "models" / "deep-dapp"
    former = json.loads((folder / "model.json").read_text())["settings"]
    model = restore(folder)
    assert former["waves"] == model.settings()["sinusoids"]
    assert former["unheard"] == model.settings()["event_dropout"]
    assert former["unmarked"] == model.settings()["mark_dropout"]
