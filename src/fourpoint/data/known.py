"""What a file says of its sequences besides their events: ids, windows, splits, names of types,
unit and name, as JSON.

Without it sequences that have no events, and the silence before the first event and after the last,
would be lost. Our own Parquet keeps it in its metadata (:mod:`fourpoint.data.stored`); into the
formats of the field it goes as an annex (:mod:`fourpoint.data.formats.annex`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.events import Dataset

DAMAGE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What reading JSON that we did not write, or that was changed since, may raise."""


@dataclass(frozen=True)
class Known:
    """Every sequence of a file in order, also those without events; ``events`` is how many there
    were in all.
    """

    ids: tuple[str, ...]
    starts: NDArray[np.float64]
    stops: NDArray[np.float64]
    splits: NDArray[np.str_] | None
    inferred: bool
    events: int
    unit: str
    name: str
    marks: tuple[str, ...]


def describe(data: Dataset) -> dict[str, Any]:
    """What is known of ``data``, for JSON, without the names of its types.

    >>> from fourpoint.events import Sequence
    >>> describe(Dataset.from_sequences([Sequence([1.0], start=0, stop=2, id="a")]))["stops"]
    2.0
    """
    return {
        "ids": list(data.ids),
        "starts": _short(data.starts),
        "stops": _short(data.stops),
        "splits": None if data.splits is None else data.splits.tolist(),
        "inferred": data.inferred,
        "events": data.events,
        "unit": data.unit,
        "name": data.name,
    }


def recall(stored: Mapping[str, Any]) -> Known:
    """The inverse of :func:`describe`, with the names of the types under "marks"; raises one of
    ``DAMAGE`` where it is none.
    """
    ids = tuple(str(i) for i in stored["ids"])
    splits = stored["splits"]
    # One value stands for all sequences.
    starts = np.broadcast_to(np.array(stored["starts"], dtype=np.float64), len(ids))
    stops = np.broadcast_to(np.array(stored["stops"], dtype=np.float64), len(ids))
    parts = None
    if splits is not None:
        parts = np.array(np.broadcast_to(np.array(splits, dtype=np.str_), len(ids)))
    return Known(
        ids,
        np.array(starts),
        np.array(stops),
        parts,
        bool(stored["inferred"]),
        int(stored["events"]),
        str(stored["unit"]),
        str(stored["name"]),
        tuple(str(name) for name in stored["marks"]),
    )


def _short(values: NDArray[np.float64]) -> float | list[float]:
    """The values, or one number where all are the same."""
    if len(values) and (values == values[0]).all():
        return float(values[0])
    return values.tolist()
