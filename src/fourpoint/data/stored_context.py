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
    levels = {} if data.log is None else {k: list(v) for k, v in data.log.levels.items()}
    if data.context is None and not levels:
        return None
    context = data.context or Context()
    stored = {
        "zone": "UTC" if data.log is None else data.log.zone,
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
            _array(stored["origin"], sequences),
            _array(stored["scored_from"], sequences),
            _steps(stored["covariates"], sequences),
            _steps(stored["exposure"], sequences),
        )
        log = LogFormat.from_dict(values)
    except DAMAGE as error:
        raise columns.error(
            "a context of the sequences in the metadata", f"a damaged one ({error!r:.200})", REMEDY
        ) from error
    known = (context.origin, context.scored_from, context.covariates, context.exposure)
    return (None if all(part is None for part in known) else context), log


def _numbers(values: NDArray[np.float64] | None) -> list[float] | None:
    return None if values is None else values.tolist()


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
    count = len(steps.offsets) - 1
    each = len(steps.times) // max(count, 1)
    shared = count > 1 and bool((np.diff(steps.offsets) == each).all())
    if shared:
        times = steps.times.reshape(count, each)
        values = steps.values.reshape(count, each, -1)
        shared = bool((times == times[0]).all() and (values == values[0]).all())
    kept = slice(each) if shared else slice(None)
    return {
        "names": list(steps.names),
        "times": steps.times[kept].tolist(),
        "values": steps.values[kept].tolist(),
        "offsets": None if shared else steps.offsets.tolist(),
    }


def _steps(stored: Any, count: int) -> Steps | None:
    if stored is None:
        return None
    names = tuple(str(name) for name in stored["names"])
    times = np.array(stored["times"], dtype=np.float64)
    values = np.array(stored["values"], dtype=np.float64).reshape(len(times), len(names))
    if stored["offsets"] is None:
        offsets = len(times) * np.arange(count + 1)
        return Steps(names, np.tile(times, count), np.tile(values, (count, 1)), offsets)
    offsets = np.array(stored["offsets"], dtype=np.int64)
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != len(times):
        raise ValueError(f"offsets {offsets.tolist()[:4]} of {count} sequences")
    return Steps(names, times, values, offsets)
