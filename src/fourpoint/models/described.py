"""How a model shows itself in a shell and in a notebook: its name, its marks, and its settings or
fitted parameters.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any

import numpy as np

from fourpoint.events import MarkSpace
from fourpoint.report.printing import as_html

LARGEST = 12  # numbers of a table that are written out


class Described(ABC):
    """Gives a model ``repr`` in one line, and the same, escaped, as HTML.

    >>> from fourpoint.models.poisson import Poisson
    >>> Poisson(2)
    Poisson(2 types, rate=[1, 1])
    """

    marks: MarkSpace

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``, as JSON can hold them; enough to build the
        model again.
        """
        return {}

    def shown(self) -> Mapping[str, Any]:
        """What is written between the brackets: the settings, unless a model has something that
        says more.
        """
        return self.settings()

    def __repr__(self) -> str:
        parts = (f"{name}={_short(value)}" for name, value in self.shown().items())
        return f"{type(self).__name__}({', '.join([str(self.marks), *parts])})"

    def _repr_html_(self) -> str:
        return as_html(repr(self))


def _short(value: Any) -> str:
    """A value in a few characters: numbers to four digits, large tables by their shape."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, np.ndarray | list | tuple):
        table = np.asarray(value)
        if table.dtype.kind not in "fiu":
            return str(value)
        if table.size == 1:
            return f"{table.item():.4g}"
        if table.size > LARGEST:
            return f"table of {' x '.join(map(str, table.shape))}"
        return _nested(table.tolist())
    return repr(value)


def _nested(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_nested, value))}]"
    return f"{value:.4g}"
