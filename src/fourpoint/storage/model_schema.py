"""What `model.json` and the weights beside it must be, before anything is built from them.

A folder may come from anywhere, and a hash says only that weights and JSON belong together. So
every entry is checked: types and ranges of the settings against the constructor's signature, the
number of elements that building the model asks for against those in the file, and then names,
shapes, dtypes and values of the tensors against the new model's.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Sequence as Ordered
from dataclasses import fields
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, Union, get_args, get_origin

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fourpoint.events import Box, MarkSpace, UserError
from fourpoint.models.base import PointProcess
from fourpoint.models.calibration import Calibration
from fourpoint.models.effects import EffectsSpec, RateRatio
from fourpoint.models.event_features import MOST_ROWS, EventFeatures, EventFeaturesSpec
from fourpoint.ops.profiles import Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENTRIES = {
    *("format", "fourpoint", "torch", "weights", "sha256"),
    *("model", "settings", "marks", "box", "about", "errors", "profiles", "effects"),
    "event_features",
    "calibration",
}
LARGEST = 2**20  # of any whole number in the settings that is not listed here
LONGEST = 256  # of lists of whole numbers, such as the widths of a network's layers
LIMITS = {
    "heads": 2**12,
    "generator": 2**16,
    "layers": 2**10,
    "exponentials": 2**8,
    "order": 2**10,
    "frequencies": 2**12,
    "cells": 2**14,
    "sources": 2**24,
    "time_scales": 2**10,
    "length_scales": 2**10,
    "eval_features": 2**24,
    "keep": 2**40,
    "seed": 2**63 - 1,
}
SMALLEST = {  # of others 1
    **dict.fromkeys(("inner", "sources", "time_scales", "length_scales"), 0),
    **dict.fromkeys(("sinusoids", "rhythms"), 0),
    "seed": -(2**63),
}
CONTINUOUS = (  # numbers, of which 3 is a case, and not counts
    *("baseline", "branching", "decay", "spread", "drift", "correction"),
    *("productivity", "alpha", "c", "p", "taper", "distance", "q", "gamma", "mc", "b", "region"),
    *("etas", "strength", "growth", "inherit"),
)
SHARES = ("dropout", "event_dropout", "mark_dropout")  # from 0 to below 1
POSITIVE = ("time_scale", "length", "window", "scales", "fastest")  # tensors that are above 0
LEAST = 2**24  # elements that any model may ask for while it is built
REMEDY = "The folder is damaged or not written by Fourpoint: copy it again, or fit again."


class SchemaError(UserError):
    """An entry of `model.json`, or a tensor, that no model has."""


def read_marks(info: dict[str, Any]) -> MarkSpace:
    """The mark space in ``info``: distinct names, and a box of finite bounds."""
    names = info.get("marks")
    if not _are_texts(names):
        raise _refused("marks as a list of names", names)
    if len(set(names)) < len(names):
        raise _refused("marks with different names", names)
    box = None
    if "box" in info:
        box = _box(info["box"])
    return MarkSpace(tuple(names), box)


def check_settings(build: Callable[..., Any], settings: object) -> dict[str, Any]:
    """``settings`` if the constructor ``build`` takes each of them, by name, type and range.

    >>> def build(marks=None, *, heads: int = 4, link: Literal["exp", "softplus"] = "exp"): ...
    >>> check_settings(build, {"heads": 2})
    {'heads': 2}
    >>> check_settings(build, {"heads": True})
    Traceback (most recent call last):
      ...
    fourpoint.storage.model_schema.SchemaError: expected the setting heads as int; received ...
    """
    if not isinstance(settings, dict):
        raise _refused("settings as an object", settings)
    known = signature(build, eval_str=True).parameters
    for name, value in settings.items():
        parameter = known.get(name)
        unknown = parameter is None or parameter.kind == Parameter.VAR_KEYWORD
        if unknown or name == "marks":
            raise _refused(f"settings among {', '.join(known)}", name)
        kind = known[name].annotation
        if not _is(value, kind):
            raise _refused(f"the setting {name} as {_named(kind)}", value)
        _check_range(name, value)
    return settings


def build_bounded(
    build: Callable[..., Any],
    marks: MarkSpace,
    settings: dict[str, Any],
    tensors: dict[str, Tensor],
    effects: EffectsSpec | None = None,
    features: EventFeaturesSpec | None = None,
) -> PointProcess:
    """The new model, built without asking for many more elements than its ``tensors`` have."""
    total = sum(tensor.numel() for tensor in tensors.values())
    _check_tables(marks, settings, tensors)
    with _Bounded(4 * total + LEAST):
        model: PointProcess = build(marks, **settings)
        if effects is not None:
            model.add_effects(effects)
        if features is not None:
            if not model.takes_event_features or len(features.rows) != marks.count:
                expected = f"event features of a model that takes them, with {marks}"
                received = f"{type(model).__name__} and rows of {len(features.rows)} marks"
                raise SchemaError(expected, received, REMEDY)
            model.event_features = EventFeatures(features)
    return model


def read_calibration(found: object) -> Calibration:
    """The calibration of a model's prediction regions, as `model.json` holds it."""
    try:
        return Calibration.from_dict(found)
    except (TypeError, ValueError, KeyError) as error:
        raise _refused("levels of a calibration", str(error)) from error


def read_effects(found: object) -> tuple[EffectsSpec, list[RateRatio]]:
    """Effects of calendar and covariates, and rate ratios, as `model.json` holds them."""
    parts = _object("effects with 'spec' and 'rate_ratios'", found, {"spec", "rate_ratios"})
    spec = parts["spec"]
    kinds = {
        "calendar": str,
        "covariates": str,
        "mean": float,
        "scale": float,
        "holidays": int,
        "trend": float,
    }
    if isinstance(spec, dict):
        spec = {"trend": [], **spec}  # models that were saved before there were trends
    spec = _object("known entries of the effects", spec, {*kinds, "zone", "seconds", "origin"})
    _check_lists("the effects", spec, kinds)
    zone = spec["zone"]
    if zone is not None and not isinstance(zone, str):
        raise _refused("a time zone of the effects", zone)
    _check_numbers("seconds", [spec["seconds"]], float)
    if spec["origin"] is not None:
        _check_numbers("origin", [spec["origin"]], float)
    _check_scales("covariates", spec["scale"])
    ratios = _read_ratios(parts["rate_ratios"])
    return EffectsSpec.from_dict(spec), ratios


def read_event_features(found: object) -> tuple[EventFeaturesSpec, list[RateRatio]]:
    """Event features and their ratios, as `model.json` holds them."""
    parts = _object("event features with 'spec' and 'ratios'", found, {"spec", "ratios"})
    kinds = {
        "names": str,
        "mean": float,
        "scale": float,
        "rows": int,
    }
    spec = _object("known entries of the event features", parts["spec"], set(kinds))
    _check_lists("the event features", spec, kinds)
    sizes = [len(spec[name]) for name in ("names", "mean", "scale")]
    if min(sizes) < 1 or min(sizes) != max(sizes):
        raise _refused("a mean and a scale of every event feature", sizes)
    _check_scales("event features", spec["scale"])
    rows = spec["rows"]
    if any(not 0 <= size <= MOST_ROWS for size in rows) or not sum(rows):
        expected = f"rows of event features from 0 to {MOST_ROWS} for each mark, and one at least"
        raise _refused(expected, rows)
    ratios = _read_ratios(parts["ratios"])
    return EventFeaturesSpec.from_dict(spec), ratios


def _object(expected: str, found: object, entries: set[str]) -> dict[str, Any]:
    """``found``, if it is an object with just these entries."""
    if not isinstance(found, dict) or set(found) != entries:
        raise _refused(expected, found)
    return found


def _check_lists(owner: str, spec: dict[str, Any], kinds: dict[str, type]) -> None:
    """Refuse entries of ``spec`` that are not lists of values of their ``kinds``."""
    for name, kind in kinds.items():
        values = spec[name]
        if not isinstance(values, list) or len(values) > LARGEST:
            raise _refused(f"{name} of {owner} as a list", values)
        _check_numbers(name, values, kind)


def _check_scales(what: str, scales: list[float]) -> None:
    if any(not scale > 0 for scale in scales):
        raise _refused(f"scales of {what} above 0", scales)


def _read_ratios(ratios: object) -> list[RateRatio]:
    names = ("name", "mark", "ratio", "low", "high")
    expected = "rate ratios as a list of lists"
    if not isinstance(ratios, list):
        raise _refused(expected, ratios)
    for one in ratios:
        if not isinstance(one, list) or len(one) != len(names):
            raise _refused(expected, ratios)
        _check_numbers("rate_ratios", one[:2], str)
        _check_numbers("rate_ratios", one[2:], float)
    return [RateRatio(*one) for one in ratios]


def _check_numbers(name: str, values: list[Any], kind: type) -> None:
    for value in values:
        whole = type(value) is int
        right = type(value) is kind or (kind is float and whole)
        if right and kind is not str:
            right = math.isfinite(value)
        if not right:
            raise _refused(f"{name} of type {kind.__name__}", value)


def check_tensors(model: PointProcess, tensors: dict[str, Tensor]) -> None:
    """Raise :class:`SchemaError` unless ``tensors`` are a state of ``model``, with finite values.

    All floating-point tensors may be float64, as after ``model.double()``. A tensor that is not
    finite in a new model (a rate without an upper limit, say) need not be finite here.
    """
    expected = model.state_dict()
    missing = sorted(set(expected) - set(tensors))
    unknown = sorted(set(tensors) - set(expected))
    if missing or unknown:
        received = f"unknown ones: {unknown[:3]}"
        if missing:
            received = f"none of {missing[:3]}"
        raise SchemaError("settings and weights that belong together", received, REMEDY)
    floating = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    double = all(tensor.dtype == torch.float64 for tensor in floating)
    for name, new in expected.items():
        found = tensors[name]
        dtype = new.dtype
        if double and new.is_floating_point():
            dtype = torch.float64
        if found.shape != new.shape or found.dtype != dtype:
            raise SchemaError(
                f"settings and weights that belong together, {name} with the shape "
                f"{tuple(new.shape)} and {dtype}",
                f"the shape {tuple(found.shape)} and {found.dtype}",
                REMEDY,
            )
        _check_values(name, found, new)


def read_errors(found: object, estimates: dict[str, Any]) -> dict[str, Any]:
    """Standard errors as `model.json` holds them, null for NaN, in the shapes of ``estimates``."""
    import numpy as np

    if not isinstance(found, dict) or not set(found) <= set(estimates):
        raise _refused(f"standard errors of {', '.join(estimates)}", found)
    errors = {}
    for name, rows in found.items():
        described = f"standard errors of {name}"
        value = _numbers(described, rows)
        shape = estimates[name].shape
        possible = not np.isinf(value).any() and not (value < 0).any()
        if value.shape != shape or not possible:
            raise _refused(f"{described}, not negative, with {shape}", rows)
        errors[name] = value
    return errors


def read_profiles(found: object, estimates: dict[str, Any]) -> dict[str, Profile]:
    """Shapes of profile log-likelihoods as `model.json` holds them, null for NaN, in the shapes of
    ``estimates``; there may be none, in models of earlier versions.
    """
    if not isinstance(found, dict) or (found and set(found) != set(estimates)):
        raise _refused(f"profile log-likelihoods of {', '.join(estimates)}", found)
    profiles = {}
    for name, parts in found.items():
        shape = estimates[name].shape
        profiles[name] = _profile(name, parts, shape)
    return profiles


def _profile(name: str, parts: object, shape: tuple[int, ...]) -> Profile:
    import numpy as np

    names = {one.name for one in fields(Profile)}
    expected = f"a profile log-likelihood of {name} with {', '.join(sorted(names))}"
    found = _object(expected, parts, names)
    logarithmic = found["logarithmic"]
    if type(logarithmic) is not bool:
        raise _refused(f"true or false for the scale of {name}", logarithmic)
    tables = {}
    for part in sorted(names - {"logarithmic"}):
        described = f"the {part} of the profile of {name}"
        table = _numbers(described, found[part])
        if table.shape != shape or np.isinf(table).any():
            raise _refused(f"{described}, finite, with {shape}", found[part])
        tables[part] = table
    if (tables["estimate"] < 0).any() or (tables["curvature"] < 0).any():
        raise _refused(f"estimate and curvature of the profile of {name} of 0 or more", parts)
    return Profile(**tables, logarithmic=logarithmic)


def _numbers(described: str, rows: object) -> NDArray[np.float64]:
    """A table of numbers, with NaN for null."""
    import numpy as np

    try:
        return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _refused(f"{described} as numbers", rows) from error


def _box(found: object) -> Box:
    expected = "a box of names, low and high"
    if not isinstance(found, dict):
        raise _refused(expected, found)
    names = found.get("names")
    low = found.get("low")
    high = found.get("high")
    if not (isinstance(names, list) and isinstance(low, list) and isinstance(high, list)):
        raise _refused(expected, found)
    if not _are_texts(names):
        raise _refused("axes of a box with names", names)
    if not all(_is(bound, float) for bound in (*low, *high)):
        raise _refused("bounds of a box as finite numbers", (low, high))
    return Box(tuple(names), tuple(low), tuple(high))


def _are_texts(found: object) -> TypeGuard[list[str]]:
    """Whether ``found`` is a list of text alone."""
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _is(value: object, kind: object) -> bool:
    """Whether ``value``, read from JSON, is of the type ``kind``; numbers are finite."""
    origin = get_origin(kind)
    parts = get_args(kind)
    found = type(value)
    if kind is Any or kind is Parameter.empty:
        return _is(value, float | bool | str | None | Ordered[Any])
    if origin in (Union, types.UnionType):
        return any(_is(value, part) for part in parts)
    if origin is Literal:
        return any(value == part and found is type(part) for part in parts)
    if isinstance(origin, type) and issubclass(origin, Ordered):
        inner = next(part for part in parts if part is not Ellipsis)
        return isinstance(value, list) and all(_is(one, inner) for one in value)
    if kind is None or kind is type(None):
        return value is None
    if kind is not float:
        return found is kind
    if isinstance(value, float):
        return found is float and math.isfinite(value)
    return found is int


def _named(kind: object) -> str:
    if isinstance(kind, type):
        return kind.__name__
    return str(kind).replace("typing.", "")


def _check_range(name: str, value: object) -> None:
    """Refuse numbers that no model has: negative sizes, and such as would fill the memory."""
    if name in SHARES:
        share = isinstance(value, int | float) and 0 <= value < 1
        if not share:
            raise _refused(f"the setting {name} from 0 to below 1", value)
    if _is_continuous(name):
        return
    sizes = value if isinstance(value, list) else [value]
    if len(sizes) > LONGEST:
        expected = f"at most {LONGEST} numbers in the setting {name}"
        raise SchemaError(expected, f"{len(sizes):,}", REMEDY)
    low = SMALLEST.get(name, 1)
    high = LIMITS.get(name, LARGEST)
    for size in sizes:
        if type(size) is int and not low <= size <= high:
            raise _refused(f"the setting {name} from {low} to {high:,}", value)


def _is_continuous(name: str) -> bool:
    """Whether a setting is a number, of which 3 is a case, and not a count."""
    return name in (*CONTINUOUS, *SHARES)


def _check_tables(
    marks: MarkSpace,
    settings: dict[str, Any],
    tensors: dict[str, Tensor],
) -> None:
    """Sizes of tables that are not made by torch, and so not counted while a model is built."""
    branching = tensors.get("log_branching")
    if branching is not None:
        received = branching.numel()
        size = settings.get("exponentials", 1) * marks.count**2
        if received != size:
            expected = f"branching ratios of {marks} ({size:,})"
            raise SchemaError(expected, f"{received:,}", REMEDY)
    numbers = tensors.get("numbers")
    highest = settings.get("frequencies")
    if numbers is None or highest is None or marks.box is None:
        return
    chosen = len(numbers)
    tried = (2 * highest + 1) ** marks.box.dimension
    if tried > 16 * chosen + 64:
        raise SchemaError(f"frequencies={highest} with its lattice", f"{chosen}", REMEDY)


def _check_values(name: str, found: Tensor, new: Tensor) -> None:
    if not found.is_floating_point():
        return
    finite = found.isfinite()
    if not finite.all() and (found.isnan().any() or new.isfinite().all()):
        bad = found[~finite].flatten()[0].item()
        raise SchemaError(
            f"finite weights, for {name} too",
            f"{bad}",
            "Fit the model again, or copy it again.",
        )
    kind = name.rpartition(".")[2]
    if kind in POSITIVE and not (found > 0).all():
        raise SchemaError(f"{name} above 0", f"{found.min().item():g}", REMEDY)
    if kind == "tick" and not (found >= 0).all():
        raise SchemaError(f"{name} of 0 or more", f"{found.min().item():g}", REMEDY)


def _refused(expected: str, value: object) -> SchemaError:
    """The error that says that ``value`` was found in place of what was expected."""
    return SchemaError(expected, _shown(value), REMEDY)


def _shown(value: object) -> str:
    """The beginning of a value, as Python writes it."""
    text = repr(value)
    if len(text) <= 100:
        return text
    return text[:97] + "..."


class _Bounded(TorchDispatchMode):
    """While this is on, torch makes no tensor of more than ``limit`` elements, nor more in all."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.made = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [*args, *kwargs.values()]
        asked = max([_elements(one) for one in given], default=0)
        if not any(isinstance(one, Tensor) for one in given):
            counts = [abs(one) for one in given if type(one) is int]  # of `arange`, say
            asked = max([asked, *counts])
            self.made += asked
        most = max(asked, self.made)
        if most > self.limit:
            raise SchemaError(
                f"settings of a model with at most {self.limit:,} numbers, as its weights are",
                f"such as ask for {most:,}",
                REMEDY,
            )
        return func(*args, **kwargs)


def _elements(given: object) -> int:
    """How many elements an argument of an operation stands for: a tensor, or a shape."""
    if isinstance(given, Tensor):
        return given.numel()
    if isinstance(given, list | tuple) and all(type(one) is int for one in given):
        return math.prod(abs(one) for one in given)
    return 0
