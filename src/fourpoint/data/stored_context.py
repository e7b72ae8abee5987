"""The context of sequences as our own Parquet keeps it: JSON in the metadata ``fourpoint.context``.

It holds what :class:`fourpoint.events.Context` holds (origins, history periods, covariates,
exposure), the time zone of the dates, and the levels of covariates that were read from words. Step
functions that are the same for all sequences are written once.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.columns import Columns
from fourpoint.data.expansion import Expansion
from fourpoint.data.known import DAMAGE
from fourpoint.events import Context, Dataset, Steps
from fourpoint.log_format import LogFormat

CONTEXT = b"fourpoint.context"
REMEDY = "Write the file again with fourpoint.write, or remove the metadata 'fourpoint.context'."


def context_metadata(data: Dataset) -> str | None:
    """The context of ``data`` as JSON, or None where there is none.

    >>> from fourpoint.events import Sequence
    >>> context_metadata(Dataset.from_sequences([Sequence([1.0], start=0, stop=2)]))
    """
    zone: str | None = "UTC"
    levels: dict[str, list[str]] = {}
    if data.log is not None:
        zone = data.log.zone
        levels = {name: list(words) for name, words in data.log.levels.items()}
    if data.context is None and not levels:
        return None
    context = data.context or Context()
    stored = {
        "zone": zone,
        "levels": levels,
        "origin": _numbers(context.origin),
        "scored_from": _numbers(context.scored_from),
        "covariates": _described(context.covariates),
        "exposure": _described(context.exposure),
    }
    return json.dumps(stored, separators=(",", ":"))


def stored_context(columns: Columns, sequences: int) -> tuple[Context | None, LogFormat | None]:
    """What :func:`context_metadata` wrote for so many sequences: the context, and a log with its
    zone and levels; a damaged one is refused.
    """
    text = columns.metadata(CONTEXT)
    if text is None:
        return None, None
    Expansion(columns.table.label).check_json(text)
    try:
        stored = json.loads(text)
        values = {"time": "t", "zone": stored["zone"], "levels": stored["levels"]}
        context = Context(
            origin=_array(stored["origin"], sequences),
            scored_from=_array(stored["scored_from"], sequences),
            covariates=_steps(stored["covariates"], sequences),
            exposure=_steps(stored["exposure"], sequences),
        )
        log = LogFormat.from_dict(values)
    except DAMAGE as error:
        raise columns.error(
            "a context of the sequences in the metadata",
            f"a damaged one ({error!r:.200})",
            REMEDY,
        ) from error
    known = (context.origin, context.scored_from, context.covariates, context.exposure)
    if all(part is None for part in known):
        return None, log
    return context, log


def _numbers(values: NDArray[np.float64] | None) -> list[float] | None:
    if values is None:
        return None
    return values.tolist()


def _array(values: Any, count: int) -> NDArray[np.float64] | None:
    if values is None:
        return None
    found = np.array(values, dtype=np.float64)
    if found.shape != (count,) or not np.isfinite(found).all():
        raise ValueError(f"{found.shape} numbers for {count} sequences")
    return found


def _described(steps: Steps | None) -> dict[str, Any] | None:
    if steps is None:
        return None
    times = steps.times
    values = steps.values
    offsets: list[int] | None = steps.offsets.tolist()
    if _is_shared(steps):
        own = steps.row(0)
        times = times[own]
        values = values[own]
        offsets = None
    return {
        "names": list(steps.names),
        "times": times.tolist(),
        "values": values.tolist(),
        "offsets": offsets,
    }


def _is_shared(steps: Steps) -> bool:
    """Whether several sequences have the same step function."""
    lengths = np.diff(steps.offsets)
    if len(lengths) < 2 or (lengths != lengths[0]).any():
        return False
    times = steps.times.reshape(len(lengths), -1)
    values = steps.values.reshape(*times.shape, -1)
    return bool((times == times[0]).all() and (values == values[0]).all())


def _steps(stored: Any, count: int) -> Steps | None:
    if stored is None:
        return None
    names = tuple(str(name) for name in stored["names"])
    times = np.array(stored["times"], dtype=np.float64)
    rows = len(times)
    values = np.array(stored["values"], dtype=np.float64).reshape(rows, len(names))
    if stored["offsets"] is None:
        return Steps(
            names,
            times=np.tile(times, count),
            values=np.tile(values, (count, 1)),
            offsets=rows * np.arange(count + 1),
        )
    offsets = np.array(stored["offsets"], dtype=np.int64)
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != rows:
        raise ValueError(f"offsets {offsets.tolist()[:4]} of {count} sequences")
    return Steps(names, times, values, offsets)
