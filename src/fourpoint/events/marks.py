"""What a mark may be: nothing, one of M types, a place in a box, or a type and a place.

An event is a time and a mark. The space of marks carries the measure that an intensity is a density
of: counting for types, Lebesgue for a box. Models, readers and plots all take it from the data.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fourpoint.errors import EventDataError, UserError
from fourpoint.sanitising import console_text

WIDTHS = (1e-30, 1e30)  # what models compute in float32


@dataclass(frozen=True)
class Box:
    """A closed box in R^k: the range of continuous marks such as longitude and latitude, or a
    magnitude.

    >>> box = Box(("longitude", "latitude"), (-10.0, 40.0), (30.0, 60.0))
    >>> box.dimension, box.volume, str(box)
    (2, 800.0, 'longitude -10 to 30, latitude 40 to 60')
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        for field in ("low", "high"):
            bounds = tuple(float(x) for x in getattr(self, field))
            object.__setattr__(self, field, bounds)
        object.__setattr__(self, "names", tuple(str(n) for n in self.names))
        complete = len(self.names) == len(self.low) == len(self.high)
        if not complete or not self.names or len(set(self.names)) < len(self.names):
            raise EventDataError(
                "one name, low and high for every axis of a box, all names different",
                f"names {self.names}, low {self.low}, high {self.high}",
                "Make them as many.",
            )
        axes = list(zip(self.names, self.low, self.high, strict=True))
        for name, low, high in axes:
            finite = np.isfinite(low) and np.isfinite(high)
            if not finite or low >= high:
                raise EventDataError(
                    "finite bounds with low < high on every axis",
                    f"{low:g} to {high:g} for {name!r}",
                    "Correct the bounds.",
                )
        narrowest, farthest = WIDTHS
        for name, low, high in axes:
            largest = max(abs(low), abs(high))
            if high - low < narrowest or largest > farthest:
                raise EventDataError(
                    f"bounds within {farthest:g} of 0, at least {narrowest:g} apart",
                    f"{low:g} to {high:g} for {name!r}",
                    "Use another unit, or look for an outlier.",
                )

    @staticmethod
    def around(places: NDArray[np.float64], names: Ordered[str]) -> Box:
        """The smallest box around ``places`` (N, k) whose bounds have two digits or so: what data
        implies where no bounds are given.

        >>> Box.around(np.array([[-179.7, -61.3], [179.9, 77.1]]), ("longitude", "latitude"))
        Box(names=('longitude', 'latitude'), low=(-180.0, -70.0), high=(180.0, 80.0))
        """
        low = np.zeros(len(names))
        high = np.ones(len(names))
        if len(places):
            low = places.min(axis=0)
            high = places.max(axis=0)
        width = np.where(high > low, high - low, 1.0)
        step = 10.0 ** (np.floor(np.log10(width)) - 1)
        first = np.floor(low / step)
        last = np.ceil(high / step)
        last = np.maximum(last, first + 1)
        digits = np.maximum(0, 1 - np.log10(step)).astype(int)
        lows = []
        highs = []
        for a, b, s, d in zip(first, last, step, digits, strict=True):
            lows.append(round(a * s, d))
            highs.append(round(b * s, d))
        return Box(tuple(names), tuple(lows), tuple(highs))

    @property
    def dimension(self) -> int:
        """k, the number of axes."""
        return len(self.names)

    @property
    def volume(self) -> float:
        """Its Lebesgue measure, in the units of its axes."""
        widths = np.subtract(self.high, self.low)
        return float(np.prod(widths))

    def __str__(self) -> str:
        axes = zip(self.names, self.low, self.high, strict=True)
        return ", ".join(f"{console_text(name)} {low:g} to {high:g}" for name, low, high in axes)


@dataclass(frozen=True)
class MarkSpace:
    """The values that a mark can take: none, one of M named types, a location in a box, or both.

    >>> MarkSpace.categorical(["fire", "medical"]).count
    2
    >>> MarkSpace().count, MarkSpace().names
    (1, ())
    >>> str(MarkSpace(("fire", "medical"), Box(("x",), (0,), (1,))))
    '2 types in x 0 to 1'
    """

    names: tuple[str, ...] = ()
    box: Box | None = None

    @staticmethod
    def categorical(types: int | Ordered[str]) -> MarkSpace:
        """A space of named types; a number M gives the names "0" to "M-1"."""
        if isinstance(types, int):
            names = tuple(str(i) for i in range(types))
        else:
            names = tuple(str(n) for n in types)
        if len(set(names)) != len(names) or not names:
            raise EventDataError(
                "at least one mark name, all different",
                f"{list(names)[:8]}",
                "Rename the repeated or missing names.",
            )
        return MarkSpace(names)

    @staticmethod
    def of(marks: MarkSpace | int | Ordered[str] | None) -> MarkSpace:
        """Accept a space, a number of types, a list of names, or None for no marks."""
        if marks is None:
            return MarkSpace()
        if isinstance(marks, MarkSpace):
            return marks
        return MarkSpace.categorical(marks)

    @property
    def count(self) -> int:
        """M, the number of types; 1 where there are no marks."""
        return max(1, len(self.names))

    @property
    def types(self) -> MarkSpace:
        """The space without its box."""
        if self.box is None:
            return self
        return MarkSpace(self.names)

    def __str__(self) -> str:
        if not self.names:
            return "no marks" if self.box is None else f"places in {self.box}"
        types = f"{self.count} types"
        if self.box is None:
            return types
        return f"{types} in {self.box}"


MOST_LISTED = 4  # names that an error lists


def check_marks(model_marks: MarkSpace, data_marks: MarkSpace) -> None:
    """Refuse data whose mark space differs from that of the model that is to be applied to it.

    The numbers of types must be equal, the names must be the same in the same order, and the boxes
    of locations must be equal. Names are compared only where both sides have them: a space without
    marks, or with the default names "0" to "M-1", has none. Raises :class:`UserError`.

    >>> check_marks(MarkSpace.of(["fire", "flood"]), MarkSpace.of(2))
    >>> check_marks(MarkSpace.of(["fire", "flood"]), MarkSpace.of(["fire", "storm"]))
    Traceback (most recent call last):
      ...
    fourpoint.events.UserError: expected data with the types 'fire', 'flood', as the model has;
    received 2 types: 'storm' is unknown to the model, 'flood' is missing. Read the data with ...
    """
    _check_box(model_marks.box, data_marks.box)
    expected = _chosen_names(model_marks)
    received = _chosen_names(data_marks)
    if expected and received and expected != received:
        raise UserError(
            f"data with the types {_listed(expected)}, as the model has",
            f"{len(received)} types: {_difference(expected, received)}",
            "Read the data with marks=model.marks.names, or fit a model with marks=data.marks.",
        )
    if model_marks.count != data_marks.count:
        raise UserError(
            f"data with {model_marks.types}, as the model has",
            f"{data_marks.types}",
            "Use data of the same kind, or fit a model with marks=data.marks.",
        )


def _chosen_names(marks: MarkSpace) -> tuple[str, ...]:
    """The names of the types, empty where they are the default ones."""
    default = tuple(str(i) for i in range(len(marks.names)))
    if marks.names == default:
        return ()
    return marks.names


def _difference(expected: tuple[str, ...], received: tuple[str, ...]) -> str:
    """How two lists of names differ, in words."""
    known = set(expected)
    found = set(received)
    unknown = [name for name in received if name not in known]
    missing = [name for name in expected if name not in found]
    parts = []
    if unknown:
        parts.append(f"{_listed(unknown)} {_is(unknown)} unknown to the model")
    if missing:
        parts.append(f"{_listed(missing)} {_is(missing)} missing")
    if not parts:
        parts.append(f"the same names in another order, {_listed(received)}")
    return ", ".join(parts)


def _is(names: Ordered[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _listed(names: Ordered[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:MOST_LISTED])
    more = len(names) - MOST_LISTED
    if more <= 0:
        return shown
    return f"{shown} and {more:,} more"


def _check_box(expected: Box | None, received: Box | None) -> None:
    """Refuse events that were observed in another box than the model's, in one where the model has
    none, or in none where the model has one.
    """
    if expected == received:
        return
    wanted = "events without places"
    found = "events without places"
    remedy = "Read the data without place=, or fit a model with places."
    if received is not None:
        found = f"places in {received}"
    if expected is not None:
        wanted = f"events with places in {expected}"
        axes = zip(expected.names, expected.low, expected.high, strict=True)
        bounds = ", ".join(f"'{name}': ({low:g}, {high:g})" for name, low, high in axes)
        remedy = (
            f"Read it with place={expected.names} and bounds={{{bounds}}}, or use "
            "data.in_box(model.marks.box)."
        )
    raise UserError(f"{wanted}, as the model has", found, remedy)
