r"""The branching ratios of a Hawkes process: which type of event leads to which.

    alpha_{m, n} = mean number of events of type m that one event of type n leads to directly

The sum over all decays is shown. The spectral radius of the matrix is the branching ratio of the
whole
process: the mean number of direct offspring in the long run, below 1 in a process that does not
explode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.models import Hawkes, SpatialHawkes
from fourpoint.models.base import PointProcess
from fourpoint.report.printing import as_text, text_table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

WHOLE, WITH_INTERVALS = 8, 4  # types of which the whole matrix is shown
NOTHING = 1e-6  # a branching ratio below it is shown as 0
SHOWN = 20  # entries that are shown of a larger one
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BranchingRatios:
    """The matrix ``ratios`` (M, M), the exciting type last, with standard errors, 95% ``intervals``
    (M, M, 2) and its spectral radius.

    With event features they are means over those of training events. ``errors`` and ``intervals``
    are None where there are none: a process with several decays, with places or event features, or
    one that was not fitted. An error is NaN where an estimate lies on the edge of what is possible.
    Prints as a table; :meth:`to_dict` is for machines.
    """

    names: tuple[str, ...]
    ratios: Floats
    errors: Floats | None
    spectral_radius: float
    intervals: Floats | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it but for NaN; rows are the excited types."""
        errors = None if self.errors is None else self.errors.tolist()
        intervals = None if self.intervals is None else self.intervals.tolist()
        return {
            "types": list(self.names),
            "ratios": self.ratios.tolist(),
            "standard_errors": errors,
            "intervals": intervals,
            "spectral_radius": self.spectral_radius,
        }

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        whole = len(self.names) <= (WHOLE if self.intervals is None else WITH_INTERVALS)
        which = "" if whole else f", the {SHOWN} largest of {self.ratios.size:,}"
        title = f"Branching ratios{which}: events that one event leads to directly"
        below = f"spectral radius {_ratio(self.spectral_radius, 4)}"
        if self.intervals is not None:
            below += "; 95% intervals in brackets"
        elif self.errors is not None:
            below += "; standard errors in brackets"
        table = self._matrix() if whole else self._largest()
        return Group(Text(title), table, Text(below))

    def __str__(self) -> str:
        return as_text(self, width=110)

    def _matrix(self) -> Table:
        """One column for each exciting type."""
        table = text_table(box=None, pad_edge=False)
        table.add_column("of type", style="bold", no_wrap=True)
        for name in self.names:
            table.add_column(f"from {name}", justify="right")
        for m, name in enumerate(self.names):
            table.add_row(name, *(self._cell(m, n) for n in range(len(self.names))))
        return table

    def _largest(self) -> Table:
        table = text_table(box=None, pad_edge=False)
        for title in ("from type", "of type"):
            table.add_column(title, style="bold", no_wrap=True)
        table.add_column("ratio", justify="right")
        for place in np.argsort(-self.ratios, axis=None, kind="stable")[:SHOWN]:
            m, n = (int(i) for i in np.unravel_index(place, self.ratios.shape))
            table.add_row(self.names[n], self.names[m], self._cell(m, n))
        return table

    def _cell(self, m: int, n: int) -> str:
        value = _ratio(float(self.ratios[m, n]))
        if self.intervals is not None:
            low, high = self.intervals[m, n]
            return f"{value} ({low:.2g} to {high:.2g})" if np.isfinite(high) else value
        if self.errors is None or not np.isfinite(self.errors[m, n]):
            return value
        return f"{value} ({self.errors[m, n]:.2g})"


def _ratio(value: float, digits: int = 3) -> str:
    """A branching ratio. What is below NOTHING stands for zero, whose logarithm no model holds.

    >>> _ratio(1e-12), _ratio(0.2994), _ratio(0.2994, 2)
    ('0', '0.299', '0.3')
    """
    return "0" if value < NOTHING else f"{value:.{digits}g}"


def branching_ratios(model: PointProcess) -> BranchingRatios | None:
    """The branching ratios of a Hawkes process, None for any other model.

    >>> from fourpoint.models import Poisson
    >>> branching_ratios(Hawkes(2, branching=[[0.5, 0.1], [0.2, 0.3]])).ratios[0].round(3).tolist()
    [0.5, 0.1]
    >>> branching_ratios(Poisson()) is None
    True
    """
    if not isinstance(model, Hawkes | SpatialHawkes):
        return None
    types = model.marks.count
    tables = model.log_branching.detach().cpu().double().exp().numpy().reshape(-1, types, types)
    ratios = tables.sum(0)
    errors = None
    intervals = None
    features = None if isinstance(model, SpatialHawkes) else model.event_features
    if features is not None:
        ratios = model.mean_branching
    elif isinstance(model, Hawkes) and len(tables) == 1 and "branching" in model.errors:
        errors = np.asarray(model.errors["branching"]).reshape(types, types)
        if model.profiles:
            intervals = model.intervals()["branching"].reshape(types, types, 2)
    radius = float(np.abs(np.linalg.eigvals(ratios)).max())
    names = model.marks.names or ("event",)
    return BranchingRatios(names, ratios, errors, radius, intervals)
