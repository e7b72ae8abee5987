"""Settings as text: ``key=value`` pairs become keyword arguments, read by the types that a
signature declares.

The command line's ``--set`` knows no list of settings. Whatever a model's constructor and ``fit``
take by keyword can be set, and an error names the nearest key that exists.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from math import isfinite
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from fourpoint.events import UserError
from fourpoint.former_names import FORMER_SETTINGS, FORMER_VALUES

OWN_OPTIONS = {
    "seed": "--seed",
    "time_budget": "--time-budget",
    "folder": "-o",
    "resume": "--resume",
    "device": "--device",
    "calendar": "--calendar",
}
NOT_SETTINGS = ("marks", "model", "train", "dev", "progress")


def parse_settings(
    pairs: list[str], build: Callable[..., Any], train: Callable[..., Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings given as ``key=value``, sorted into those of the model's constructor and those of
    training.

    Values are read by the type of the argument they set: whole numbers, numbers, true/false, text,
    lists such as 64,64. An unknown key is an error that names the nearest valid one.

    >>> def build(marks=None, *, heads: int = 4, generator: tuple[int, ...] = (64, 64)): ...
    >>> def train(model, *, learning_rate: float = 1e-2): ...
    >>> parse_settings(["heads=2", "generator=8,8", "learning_rate=.1"], build, train)
    ({'heads': 2, 'generator': (8, 8)}, {'learning_rate': 0.1})
    """
    known = (parameters(build), parameters(train))
    chosen: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not any(key in names for names in known):
            raise _unknown_key(key if equals else pair, {**known[0], **known[1]}, bool(equals))
        for names, settings in zip(known, chosen, strict=True):
            if key in names:
                settings[key] = _parsed(key, text.strip(), names[key])
    return chosen


def current_pairs(
    pairs: Sequence[str],
    former: Mapping[str, str],
    former_values: Mapping[str, Mapping[str, str]] = {},
) -> tuple[list[str], list[str]]:
    """Settings given as ``key=value`` under the names that they have now, and a notice for each
    setting or value that was called by a former name.

    >>> current_pairs(["waves=2", "width=8"], {"waves": "sinusoids"})
    (['sinusoids=2', 'width=8'], ['--set waves is now called sinusoids'])
    >>> current_pairs(["background=waves"], {}, {"background": {"waves": "sinusoids"}})
    (['background=sinusoids'], ['--set background=waves is now called background=sinusoids'])
    """
    found, notices = [], []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        name, value = key.strip(), text.strip()
        now = former.get(name, name)
        value_now = former_values.get(now, {}).get(value, value)
        if now != name:
            notices.append(f"--set {name} is now called {now}")
        if value_now != value:
            notices.append(f"--set {now}={value} is now called {now}={value_now}")
        changed = (now, value_now) != (name, value)
        found.append(f"{now}{equals}{value_now}" if changed else pair)
    return found, notices


def with_former_names(model: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator of the constructor of ``model``, whose keyword arguments, or values of them, had
    other names: those are accepted, with a warning.
    """
    former, former_values = FORMER_SETTINGS.get(model, {}), FORMER_VALUES.get(model, {})

    def decorate(construct: Callable[..., None]) -> Callable[..., None]:
        @wraps(construct)
        def constructed(self: object, *given: Any, **named: Any) -> None:
            for name in sorted(set(named) & set(former)):
                text = f"{name} is now called {former[name]}; the old name will be removed"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                named[former[name]] = named.pop(name)
            for name, values in former_values.items():
                value = named.get(name)
                if isinstance(value, str) and value in values:
                    now = values[value]
                    text = f"{name}={value!r} is now called {now!r}; the old name will be removed"
                    warnings.warn(text, DeprecationWarning, stacklevel=2)
                    named[name] = now
            construct(self, *given, **named)

        return constructed

    return decorate


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword arguments that a user may set, with their types."""
    found = signature(function, eval_str=True).parameters.values()
    named = [
        p
        for p in found
        if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        and p.name not in NOT_SETTINGS
    ]
    return {
        p.name: type(p.default) if p.annotation is Parameter.empty else p.annotation for p in named
    }


def _unknown_key(key: str, known: Mapping[str, Any], has_value: bool) -> UserError:
    if not has_value:
        return UserError("--set key=value", f"{key!r}", f"Write --set {key}=..., with a value.")
    names = [name for name in known if name not in OWN_OPTIONS]
    near = get_close_matches(key, names, n=1, cutoff=0.0)
    hint = f"Did you mean {near[0]!r}?" if near else "It takes none."
    return UserError(f"a setting among {', '.join(sorted(names))}", f"--set {key}", hint)


def _parsed(key: str, text: str, kind: object) -> Any:
    if key in OWN_OPTIONS:
        raise UserError(
            f"{key} as an option of its own",
            f"--set {key}={text}",
            f"Use {OWN_OPTIONS[key]} instead.",
        )
    try:
        return _value(text, kind)
    except ValueError:
        raise UserError(
            f"{key} to be {_in_words(kind)}",
            f"{text!r}",
            f"Write --set {key}=VALUE with such a value.",
        ) from None


def _value(text: str, kind: object) -> Any:
    """``text`` as a value of type ``kind``; ValueError where it is none."""
    options = _inner(kind)
    if get_origin(kind) is Literal:
        return _look_up(text, {str(choice): choice for choice in options})
    if kind is bool:
        return _look_up(
            text.lower(),
            dict.fromkeys(("true", "yes", "on", "1"), True)
            | dict.fromkeys(("false", "no", "off", "0"), False),
        )
    if kind is NoneType:
        return _look_up(text.lower(), {"none": None})
    if kind in (int, float):
        number = kind(text)
        return _look_up("finite" if isfinite(number) else "not", {"finite": number})
    if kind is str or not options:
        return text
    if _is_list(kind):
        return tuple(
            _value(part.strip(), options[0])
            for part in text.strip("()[]").split(",")
            if part.strip()
        )
    for option in sorted(options, key=lambda a: a is not NoneType):
        try:
            return _value(text, option)
        except ValueError:
            continue
    raise ValueError(text)


def _inner(kind: object) -> list[Any]:
    return [a for a in get_args(kind) if a is not Ellipsis]


def _is_list(kind: object) -> bool:
    return get_origin(kind) in (tuple, list, Sequence)


def _look_up(text: str, table: Mapping[str, Any]) -> Any:
    if text not in table:
        raise ValueError(text)
    return table[text]


def _in_words(kind: object) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        NoneType: "none",
    }
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if kind in words:
        return words[kind]
    if _is_list(kind):
        return f"{_in_words(_inner(kind)[0])} or several with commas, such as 64,64"
    return " or ".join(_in_words(a) for a in _inner(kind)) or str(kind)
