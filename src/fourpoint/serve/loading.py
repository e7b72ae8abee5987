"""Events that a service begins with: the past that the model should know, read as `fit` reads it.

Each event gets an id from what it says (entity, time, type, and which of several equal ones it is),
so that a file which is given again, or has grown, counts once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

import numpy as np

from fourpoint.events import Dataset
from fourpoint.events.dates import SECONDS
from fourpoint.report.printing import bar
from fourpoint.serve.engine import Engine, Given, Receipt, Request
from fourpoint.streaming.feed.events import Event

AT_ONCE = 4096


def load_events(engine: Engine, data: Dataset, *, progress: bool = False) -> Receipt:
    """Hand the events of ``data``, which are in the unit and with the types of the model, to the
    engine, in the order of their times.
    """
    total = Receipt()
    known = Counter[tuple[str, float, int]]()
    waiting: list[Given] = []
    count = len(data.times)
    with bar("reading events", count, show=progress) as step:
        for done, event in enumerate(_in_order(engine, data), start=1):
            key = (event.entity or "", event.at, event.mark)
            known[key] += 1
            waiting.append(Given(_id(*key, known[key]), event))
            if len(waiting) == AT_ONCE or done == count:
                found = engine.accept([Request(waiting)])[0]
                total.accepted += found.accepted
                total.duplicates += found.duplicates
                total.late += found.late
                total.refused += found.refused
                waiting = []
                step(done)
    return total


def _in_order(engine: Engine, data: Dataset) -> Iterator[Event]:
    """The events of all sequences in the order of their times on the clock of the log."""
    lengths = np.diff(data.offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    moments = data.times
    if engine.times.calendar is not None and data.context is not None:
        origin = data.context.origin
        if origin is not None:
            moments = data.times + origin[rows] / SECONDS[engine.times.unit]
    several = engine.by is not None
    for i in np.argsort(moments, kind="stable").tolist():
        features = () if data.features is None else tuple(data.features[i].tolist())
        entity = data.ids[rows[i]] if several else None
        yield Event(
            float(data.times[i]), int(data.mark_ids[i]), entity, float(moments[i]), features
        )


def _id(entity: str, moment: float, mark: int, number: int) -> str:
    text = f"{entity}\0{moment!r}\0{mark}\0{number}".encode("utf-8", "surrogatepass")
    return f"file-{hashlib.sha256(text).hexdigest()[:32]}"
