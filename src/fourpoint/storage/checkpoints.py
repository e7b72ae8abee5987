"""A fitted model as a folder: weights in safetensors, everything else in JSON, never pickle.

`model.json` holds the model's name and settings, the mark names, Fourpoint's version and the name
and SHA-256 of the weights file. Weights are written first under a name made of their hash, and
`model.json` is renamed into place last: that rename is the moment at which the new model exists, so
a folder is never half of one model and half of another.

Weights of models that earlier versions saved, under the names that they have now.

Until 0.1 the base rate and the drift were parameters of the models themselves; they belong to
`models.baseline.Baseline` now.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourpoint.atomic import TEMPORARY, locked_in_turn, make_folder, write_atomic
from fourpoint.events import UserError
from fourpoint.former_names import (
    ADDED_TENSORS,
    FORMER_CONSTANT_RATES,
    FORMER_MODELS,
    FORMER_SETTINGS,
    FORMER_TENSORS,
    FORMER_VALUES,
)
from fourpoint.models import MODELS, Hawkes
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import EffectsSpec, RateRatio
from fourpoint.models.event_features import EventFeaturesSpec
from fourpoint.storage import model_schema
from fourpoint.storage.trained_on import TrainedOn
from fourpoint.strict_json import plain

FORMAT = 1
FILES = re.compile(
    r"(model|training|uncertainty)(\.json|-[0-9a-f]{12}\.safetensors)|history\.csv|\.(fit|save)\.lock"
)


# What the library itself uses of what stands beside a model.
ABOUT: dict[str, tuple[type, ...]] = {
    "unit": (str,),
    "data": (str,),
    "start": (int, float),
    "stop": (int, float),
    "recipe": (dict,),
    "notes": (list,),
    "best_step": (int,),
    "stopped": (str,),
}
FAULTS = (
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    AttributeError,
)


class CheckpointError(UserError):
    """A folder that is not a model, or not a whole one."""


def save(model: PointProcess, folder: str | Path, *, about: dict[str, Any] | None = None) -> Path:
    """Save ``model`` in ``folder``, together with ``about`` (unit, data, training window).

    >>> import tempfile
    >>> from fourpoint.models.poisson import Poisson
    >>> with tempfile.TemporaryDirectory() as place:
    ...     restore(save(Poisson(), place)).marks.count
    1
    """
    name = next(
        (n for n, kind in MODELS.items() if kind is type(model)),
        None,
    )
    if name is None:
        raise CheckpointError(
            "one of Fourpoint's models", type(model).__name__, f"Known are {', '.join(MODELS)}."
        )
    known = model.trained_on
    beside = (about or {}) | ({} if known is None else {"trained_on": known.to_dict()})
    info = {
        "model": name,
        "settings": model.settings(),
        "marks": list(model.marks.names),
        "about": beside,
    }
    if model.marks.box is not None:
        info["box"] = {
            "names": model.marks.box.names,
            "low": model.marks.box.low,
            "high": model.marks.box.high,
        }
    if isinstance(model, Hawkes) and model.errors:
        info["errors"] = {name: plain(error) for name, error in model.errors.items()}
        info["profiles"] = {name: plain(asdict(one)) for name, one in model.profiles.items()}
    if model.calibration is not None:
        info["calibration"] = model.calibration.to_dict()
    if model.effects is not None:
        info["effects"] = {
            "spec": model.effects.spec.to_dict(),
            "rate_ratios": [list(asdict(one).values()) for one in model.rate_ratios],
        }
    if model.event_features is not None:
        info["event_features"] = {
            "spec": model.event_features.spec.to_dict(),
            "ratios": [list(asdict(one).values()) for one in model.feature_ratios],
        }
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    write_tensors(folder, "model", weights, info)
    return Path(folder)


def restore(folder: str | Path) -> PointProcess:
    """Load the model saved in ``folder``, in evaluation mode.

    Raises :class:`CheckpointError` if the folder is damaged or was not written by Fourpoint.

    >>> import tempfile
    >>> import fourpoint as fp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fp.save(fp.Hawkes(baseline=0.5, branching=0.4, decay=2.0), folder)
    ...     model = restore(folder)
    >>> type(model).__name__
    'Hawkes'
    """
    tensors, info = read_tensors(folder, "model")
    name = info.get("model")
    if isinstance(name, str):
        name = FORMER_MODELS.get(name, name)
    if not isinstance(name, str) or name not in MODELS:
        raise CheckpointError(
            f"a model among {', '.join(MODELS)}",
            f"{name!r:.100} in {folder}",
            "Use the version of Fourpoint that wrote it.",
        )
    try:
        info["settings"] = current_settings(name, info.get("settings"))
        model = _built(MODELS[name], info, current_names(name, tensors))
    except FAULTS as error:
        if isinstance(error, UserError):
            received = f"{error.received} in {folder}"
        else:
            received = f"{error} in {folder}"
        if isinstance(error, UserError):
            expected = error.expected
        else:
            expected = "settings and weights that belong together"
        remedy = error.remedy if isinstance(error, UserError) else "Fit the model again."
        raise CheckpointError(expected, received, remedy) from error
    model.trained_on = TrainedOn.from_dict(_about(info, folder).get("trained_on"))
    return model.eval()


def _built(
    build: Callable[..., PointProcess], info: dict[str, Any], tensors: dict[str, Tensor]
) -> PointProcess:
    """The model that ``info`` describes, with ``tensors`` as its weights; each part is checked
    before it is used.
    """
    unknown = sorted(set(info) - model_schema.ENTRIES)
    if unknown:
        raise model_schema.SchemaError("known entries", f"{unknown[:3]}", model_schema.REMEDY)
    marks = model_schema.read_marks(info)
    settings = model_schema.check_settings(build, info.get("settings"))
    effects: EffectsSpec | None = None
    ratios: list[RateRatio] = []
    if "effects" in info:
        effects, ratios = model_schema.read_effects(info["effects"])
    features: EventFeaturesSpec | None = None
    feature_ratios: list[RateRatio] = []
    if "event_features" in info:
        features, feature_ratios = model_schema.read_event_features(info["event_features"])
    model = model_schema.build_bounded(build, marks, settings, tensors, effects, features)
    model.rate_ratios = ratios
    model.feature_ratios = feature_ratios
    model_schema.check_tensors(model, tensors)
    model.load_state_dict(tensors, assign=True)
    if "calibration" in info:
        model.calibration = model_schema.read_calibration(info["calibration"])
    if "errors" in info or "profiles" in info:
        if not isinstance(model, Hawkes):
            raise model_schema.SchemaError(
                "standard errors of a Hawkes process", type(model).__name__, model_schema.REMEDY
            )
        model.errors = model_schema.read_errors(info.get("errors", {}), model.estimates)
        model.profiles = model_schema.read_profiles(info.get("profiles", {}), model.estimates)
    return model


def about(folder: str | Path) -> dict[str, Any]:
    """What was saved beside the model: the data's unit, the training window, the notes of the
    fit.
    """
    return _about(_read_json(Path(folder) / "model.json"), folder)


def _about(info: dict[str, Any], folder: str | Path) -> dict[str, Any]:
    """What stands beside the model, where the entries that the library itself uses are of their
    types.
    """
    found = info.get("about", {})
    if not isinstance(found, dict):
        raise CheckpointError(
            "an object under 'about'", f"{found!r:.100} in {folder}", model_schema.REMEDY
        )
    for name, kinds in ABOUT.items():
        value = found.get(name)
        if value is None:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, kinds)
            or (isinstance(value, float) and not math.isfinite(value))
        ):
            expected = f"{name!r} under 'about' as {' or '.join(kind.__name__ for kind in kinds)}"
            raise CheckpointError(expected, f"{value!r:.100} in {folder}", model_schema.REMEDY)
    return dict(found)


def write_tensors(
    folder: str | Path, name: str, tensors: dict[str, Tensor], info: dict[str, Any]
) -> None:
    """Write ``tensors`` and ``info`` as ``name``-HASH.safetensors and ``name``.json so that both
    appear at once.
    """
    from safetensors.torch import save as to_bytes

    import fourpoint

    folder = make_folder(folder)
    content = to_bytes({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()})
    digest = hashlib.sha256(content).hexdigest()
    weights = f"{name}-{digest[:12]}.safetensors"
    head = {
        "format": FORMAT,
        "fourpoint": fourpoint.__version__,
        "torch": torch.__version__,
        "weights": weights,
        "sha256": digest,
    }
    with locked_in_turn(folder / ".save.lock"):
        _write_both(folder, name, weights, content, head | info)


def _write_both(
    folder: Path, name: str, weights: str, content: bytes, info: dict[str, Any]
) -> None:
    """Weights first, then the JSON that names them; weights that it no longer names go."""
    write_atomic(folder / weights, content)
    write_atomic(folder / f"{name}.json", json.dumps(info, indent=1))
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != weights:
            old.unlink(missing_ok=True)


def read_tensors(folder: str | Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`write_tensors` wrote, checked against its hash.

    Between reading the JSON and the weights that it names, another process may have written new
    ones and removed those: then both are read again.
    """
    folder = Path(folder)
    while True:
        info = _read_json(folder / f"{name}.json")
        try:
            return _read_weights(folder, name, info), info
        except CheckpointError:
            if _read_json(folder / f"{name}.json") == info:
                raise


def _read_weights(folder: Path, name: str, info: dict[str, Any]) -> dict[str, Tensor]:
    """The weights that ``info`` names, if it is one of ours and they have its hash."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    if type(info.get("format")) is not int or info["format"] != FORMAT or "weights" not in info:
        raise CheckpointError(
            f"a folder written by Fourpoint (format {FORMAT})",
            f"format {info.get('format')!r:.100} in {folder}",
            "Point to a folder that `fit` or `save` wrote.",
        )
    weights = info["weights"]
    if not isinstance(weights, str) or not re.fullmatch(
        rf"{name}-[0-9a-f]{{12}}\.safetensors", weights
    ):
        raise CheckpointError(
            f"weights in a file of this folder called {name}-HASH.safetensors",
            f"{weights!r:.100} in {folder}",
            model_schema.REMEDY,
        )
    path = folder / weights
    content = _read_file(path)
    if hashlib.sha256(content).hexdigest() != info.get("sha256"):
        raise CheckpointError(
            f"weights with the hash in {name}.json",
            f"{path} with another hash: it is damaged",
            "Copy the folder again, or fit again.",
        )
    try:
        return from_bytes(content)
    except (SafetensorError, *FAULTS) as error:
        raise CheckpointError(
            "weights in the format safetensors", f"{path}: {error}", model_schema.REMEDY
        ) from error


def _read_file(path: Path) -> bytes:
    """The content of a regular file, or of one that a link leads to, as in the cache of a model
    hub.
    """
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(
                f"weights in the file {path.name}",
                f"{path}, which is not a file",
                model_schema.REMEDY,
            )
        return path.read_bytes()
    except OSError as error:
        received = "no such file" if isinstance(error, FileNotFoundError) else f"{error}"
        raise CheckpointError(
            f"weights in {path.name}",
            f"{received} in {path.parent}",
            "Copy the whole folder, or fit again.",
        ) from error


def remove_tensors(folder: str | Path, name: str) -> None:
    """Delete what :func:`write_tensors` wrote under ``name``."""
    (Path(folder) / f"{name}.json").unlink(missing_ok=True)
    for path in Path(folder).glob(f"{name}-*.safetensors"):
        path.unlink(missing_ok=True)


def left_by_a_fit(folder: Path) -> bool:
    """Whether a folder without a model holds what a fit has left that was killed before its first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     left_by_a_fit(Path(place))
    False
    """
    names = {path.name for path in folder.iterdir()}
    ours = {name for name in names if FILES.fullmatch(name) or TEMPORARY.fullmatch(name)}
    return names == ours and bool(ours - {"history.csv"})


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(
            "a folder written by `fourpoint fit`",
            f"{path.parent} without {path.name}",
            "Check the path, or fit a model first.",
        )
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            "JSON", f"{path}: {error}", "The folder is damaged: copy it again, or fit again."
        ) from error
    if not isinstance(found, dict):
        raise CheckpointError(
            "a JSON object",
            f"{type(found).__name__} in {path}",
            "The folder was not written by Fourpoint.",
        )
    return found


def current_settings(model: str, settings: Any) -> Any:
    """The settings of a saved model called ``model``, renamed if an earlier version saved them.

    >>> current_settings("deep-dapp", {"waves": 4, "width": 8})
    {'sinusoids': 4, 'width': 8}
    >>> current_settings("spatial-dapp", {"background": "waves"})
    {'background': 'sinusoids'}
    """
    if not isinstance(settings, dict):
        return settings  # which the schema refuses
    former = FORMER_SETTINGS.get(model, {})
    found = {former.get(name, name): value for name, value in settings.items()}
    for name, values in FORMER_VALUES.get(model, {}).items():
        if isinstance(found.get(name), str):
            found[name] = values.get(found[name], found[name])
    return found


def current_names(model: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a saved model called ``model``, renamed if an earlier version saved them.

    >>> found = current_names("poisson", {"log_rate": torch.zeros(2)})
    >>> {name: tuple(tensor.shape) for name, tensor in found.items()}
    {'baseline.log_base': (2, 1), 'baseline.length': ()}
    """
    old = FORMER_CONSTANT_RATES.get(model)
    if old in tensors:
        others = {name: tensor for name, tensor in tensors.items() if name != old}
        length = torch.ones((), dtype=torch.float64)
        return others | {"baseline.log_base": tensors[old][..., None], "baseline.length": length}
    former = FORMER_TENSORS.get(model, {})
    found = {former.get(name, name): tensor for name, tensor in tensors.items()}
    for name, value in ADDED_TENSORS.get(model, {}).items():
        found.setdefault(name, torch.tensor(value, dtype=torch.float64))
    return found
