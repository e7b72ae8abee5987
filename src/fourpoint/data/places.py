"""Where events were: columns of numbers that together are a point in a box, such as longitude and
latitude.

A user names the columns, in order, and may give their bounds; without bounds the box is read off
the events, with a note. Our own Parquet keeps the columns as ``place.NAME`` and the bounds in its
metadata, under ``fourpoint.box``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Ordered

import numpy as np
from numpy.typing import NDArray

from fourpoint.data.columns import Columns
from fourpoint.events import Box, EventDataError, UserError

BOX = b"fourpoint.box"
NONE = "none"  # what a user writes for no place, where a file has one
OWN = "place."  # what the columns of our own files begin with
KM = ("x", "y")  # axes of projected places
PAIRS = (("longitude", "latitude"), ("lon", "lat"), ("lng", "lat"), ("long", "lat"), ("x", "y"))

Place = str | Ordered[str]
Bounds = Box | Mapping[str, tuple[float, float]] | Ordered[tuple[float, float]]


def place_names(place: Place | None) -> tuple[str, ...]:
    """The columns that a user names: one word, or several.

    >>> place_names("depth"), place_names(["lon", "lat"]), place_names(None)
    (('depth',), ('lon', 'lat'), ())
    """
    if place is None or place == NONE or tuple(place) == (NONE,):
        return ()
    names = (place,) if isinstance(place, str) else tuple(place)
    if (
        not names
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
    ):
        raise UserError(
            "names of columns for the place, all different",
            f"place={place!r}",
            "Pass place=('longitude', 'latitude'), say.",
        )
    return names


def guessed_places(plain: Mapping[str, str]) -> tuple[str, ...]:
    """Columns whose names, given with their plain spelling, are the usual ones of a place on a map;
    none where there are not two.

    >>> guessed_places({"Time": "time", "LAT": "lat", "Lon": "lon"})
    ('Lon', 'LAT')
    """
    known = {word: name for name, word in plain.items()}
    return next(((known[a], known[b]) for a, b in PAIRS if a in known and b in known), ())


def read_places(
    columns: Columns, names: tuple[str, ...], bounds: Bounds | None, own: bool
) -> tuple[NDArray[np.float64] | None, Box | None, list[str]]:
    """Each row's place, the box, and what was decided about it; nothing where no column is a
    place.
    """
    stored = stored_box(columns) if own else None
    if not names:
        if bounds is not None and not isinstance(bounds, Box):
            raise columns.error(
                "places, for bounds=",
                "no column of places",
                "Name the columns with place= (--place).",
            )
        return None, None, []
    if len(columns):
        places = np.column_stack([columns.floats(name) for name in names])
    else:
        places = np.zeros((0, len(names)))
    axes = tuple(name.removeprefix(OWN) for name in names) if own else names
    if stored is not None and bounds is None:
        return places, stored, []
    box = _box(places, axes, bounds)
    if isinstance(bounds, Box) or (
        isinstance(bounds, Mapping | Ordered) and len(bounds) == len(axes)
    ):
        return places, box, []
    return (
        places,
        box,
        [
            (
                f"places: {box} (the bounds that are not given are taken from the events; --bounds "
                "NAME=LOW:HIGH)"
            )
        ],
    )


def read_projected(
    columns: Columns,
    names: tuple[str, ...],
    bounds: Bounds | None,
    centre: tuple[float, float] | None,
) -> tuple[NDArray[np.float64], Box, list[str], tuple[float, float]]:
    """Longitude and latitude of each row projected to x and y in km, the box, what was decided, and
    the centre: that of the events where it is not given.
    """
    from fourpoint.ops.regions import middle, project

    if len(names) != 2:
        raise columns.error(
            "two columns, longitude and latitude, to project",
            f"{names or 'none'}",
            "Name them with place=('longitude', 'latitude').",
        )
    longitude, latitude = (columns.floats(name) for name in names)
    for name, values, low, high in zip(
        names, (longitude, latitude), (-360.0, -90.0), (360.0, 90.0), strict=True
    ):
        odd = np.flatnonzero(~((values >= low) & (values <= high)))
        if len(odd):
            raise columns.error(
                f"degrees from {low:g} to {high:g} in column {name!r}",
                f"{values[odd[0]]:g} at {columns.table.place(int(odd[0]))}",
                "Name longitude first, then latitude, or leave out the projection.",
            )
    at = middle(longitude, latitude) if centre is None else centre
    places = project(longitude, latitude, at)
    box = _box(places, KM, bounds)
    note = f"places: projected to km about longitude {at[0]:.4f}, latitude {at[1]:.4f}: {box}"
    return places, box, [note], (float(at[0]), float(at[1]))


def _box(places: NDArray[np.float64], axes: tuple[str, ...], bounds: Bounds | None) -> Box:
    if isinstance(bounds, Box):
        if len(bounds.names) != len(axes):
            raise EventDataError(
                f"places with {len(bounds.names)} axes ({', '.join(bounds.names)})",
                f"{axes}",
                "Name as many with place=.",
            )
        return bounds
    found = Box.around(places, axes)
    if bounds is None:
        return found
    if not isinstance(bounds, Mapping):
        if len(bounds) == len(axes):
            bounds = dict(zip(axes, bounds, strict=False))
        else:
            bounds = {f"{len(bounds)} pairs": (0.0, 0.0)}
    odd = [name for name in bounds if name not in axes]
    if odd:
        raise EventDataError(
            f"bounds of {', '.join(axes)}",
            f"{odd[0]!r}",
            "Give bounds by the names of the columns of the place.",
        )
    edges = [
        bounds.get(name, (low, high))
        for name, low, high in zip(axes, found.low, found.high, strict=True)
    ]
    return Box(axes, tuple(a for a, _ in edges), tuple(b for _, b in edges))


def stored_box(columns: Columns) -> Box | None:
    """The box in a file's metadata, or None; a damaged one is refused."""
    text = columns.metadata(BOX)
    if text is None:
        return None
    try:
        stored = json.loads(text)
        return Box(tuple(stored["names"]), tuple(stored["low"]), tuple(stored["high"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        remedy = "Write the file again with fourpoint.write, or remove that metadata."
        raise columns.error(
            "names and bounds of a box in the metadata 'fourpoint.box'",
            f"{text[:80]!r} ({error})",
            remedy,
        ) from error


def box_metadata(box: Box) -> str:
    """The box as its metadata has it.

    >>> box_metadata(Box(("x",), (0,), (1,)))
    '{"names":["x"],"low":[0.0],"high":[1.0]}'
    """
    return json.dumps({"names": box.names, "low": box.low, "high": box.high}, separators=(",", ":"))
