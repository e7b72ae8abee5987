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
            given = Given(_id(*key, known[key]), event)
            waiting.append(given)
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
    rows = np.repeat(np.arange(len(data)), data.lengths)
    moments = data.times
    context = data.context
    if engine.times.calendar is not None and context is not None and context.origin is not None:
        unit = SECONDS[engine.times.unit]
        moments = data.times + context.origin[rows] / unit
    for i in np.argsort(moments, kind="stable").tolist():
        entity = None
        if engine.by is not None:
            entity = data.ids[rows[i]]
        features: tuple[float, ...] = ()
        if data.features is not None:
            features = tuple(data.features[i].tolist())
        yield Event(
            float(data.times[i]),
            int(data.mark_ids[i]),
            entity,
            float(moments[i]),
            features,
        )


def _id(entity: str, moment: float, mark: int, number: int) -> str:
    text = f"{entity}\0{moment!r}\0{mark}\0{number}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    return f"file-{digest.hexdigest()[:32]}"
