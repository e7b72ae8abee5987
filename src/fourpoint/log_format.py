"""How a log was read: which column was what, and what its times mean. It is kept with a data set
and saved with a model.

A model's time is a number. Where it came from a timestamp, the number is

    t = (timestamp - origin) / unit,

and only the origin, the unit and the way the timestamps are written make it possible to score
further rows of the same log. `fourpoint.streaming.feed` converts them so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from fourpoint.errors import UserError

NUMBERS, STAMPS, EPOCH, DATES = "numbers", "stamps", "epoch", "dates"
CLOCKS = (NUMBERS, STAMPS, EPOCH, DATES)


@dataclass(frozen=True)
class LogFormat:
    """The columns of a log and its clock.

    Args:
        time, mark, sequence: names of columns; None where there is none.
        calendar: "hour", "day" or "week" where each sequence is such a window.
        clock: "numbers" in the data's unit, "stamps" (text or timestamps), "epoch" (numbers since
            1970) or "dates" (whole numbers such as 20240501).
        per_second: how many epoch numbers make a second.
        zone: the time zone of the calendar and of stamps that name none.
        zoned: whether the stamps name their zone or offset.
        day_first: whether dates such as 5/1/2024 begin with the day; None where they are written
            otherwise.
        covariates: the columns of covariates, words as indicators such as "plan=pro".
        features: the columns of event features.
        exposure: whether there was an exposure other than 0 and 1.
        noon: whether dates without a time of day are read as noon of the day.
        levels: the values of each covariate that was read from words, the reference first.
        split_at: where `fit` cut the log into training, development and test data: timestamps as
            ISO 8601 in UTC (or without a zone, as the log), or numbers in the data's unit.
        constant: the columns of covariates of sequences.
        window: start and stop of the window of each sequence, at least one of which is a column;
            none otherwise.
        projected: the columns of longitude and latitude that were projected to km; none otherwise.
        centre: longitude and latitude of the centre of that projection.
        as_of: the period at whose beginning covariates of time were taken to be known ("1d"), if
            one was named.
        origin: the timestamp of time 0, as ISO 8601, in UTC where the log has a zone; None where
            time has no common origin.

    >>> LogFormat.from_dict(
    ...     LogFormat("when", clock="stamps", origin="2024-05-01T00:00:00").to_dict()
    ... ).time
    'when'
    """

    time: str
    mark: str | None = None
    sequence: str | None = None
    calendar: str | None = None
    clock: str = NUMBERS
    per_second: int = 1
    zone: str | None = None
    zoned: bool = False
    day_first: bool | None = None
    origin: str | None = None
    covariates: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    exposure: bool = False
    noon: bool = False
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    split_at: tuple[str | float, ...] = ()
    constant: tuple[str, ...] = ()
    window: tuple[str, ...] = ()
    projected: tuple[str, ...] = ()
    centre: tuple[float, ...] = ()
    as_of: str | None = None

    @property
    def in_use(self) -> tuple[str, ...]:
        """Columns beside time, mark and sequence that were used."""
        return (*self.features, *self.constant, *self.window)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_dict(values: object) -> LogFormat:
        """What :meth:`to_dict` gave; raises :class:`UserError` for anything else."""
        remedy = "Fit the model again."
        if not isinstance(values, Mapping):
            raise UserError("the columns of the training log", f"{type(values).__name__}", remedy)
        unknown = sorted(set(values) - {field.name for field in fields(LogFormat)})
        if unknown:
            raise UserError(
                "the columns of the training log", f"unknown entries {unknown[:3]}", remedy
            )
        for name, value in values.items():
            if not isinstance(value, _KINDS[name]) or (
                name == "per_second" and type(value) is not int
            ):
                raise UserError(
                    f"{name!r} of the training log of its own type", f"{value!r}", remedy
                )
        found = LogFormat(**{"time": "", **values})
        words = [*found.levels.values(), found.covariates, found.features, found.projected]
        words += [found.constant, found.window]
        cuts = found.split_at
        degrees = all(type(x) is float for x in found.centre) and len(found.centre) in (0, 2)
        good = all(isinstance(cut, str | float) for cut in cuts) and degrees
        if not all(map(_are_words, words)) or not good:
            raise UserError("words and times of the training log", f"{dict(values)!r:.200}", remedy)
        found = replace(
            found,
            levels={str(name): tuple(known) for name, known in found.levels.items()},
            covariates=tuple(found.covariates),
            features=tuple(found.features),
            split_at=tuple(cuts),
            constant=tuple(found.constant),
            window=tuple(found.window),
            projected=tuple(found.projected),
            centre=tuple(found.centre),
        )
        if not found.time or found.clock not in CLOCKS or found.per_second < 1:
            raise UserError(
                "a time column and a known clock of the training log",
                f"{dict(values)!r}"[:200],
                remedy,
            )
        return found


def _are_words(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(word, str) for word in values)


_TEXT = (str, type(None))
_KINDS: dict[str, tuple[type, ...]] = {
    "time": (str,),
    "mark": _TEXT,
    "sequence": _TEXT,
    "calendar": _TEXT,
    "clock": (str,),
    "per_second": (int,),
    "zone": _TEXT,
    "zoned": (bool,),
    "day_first": (bool, type(None)),
    "origin": _TEXT,
    "covariates": (list, tuple),
    "features": (list, tuple),
    "exposure": (bool,),
    "noon": (bool,),
    "levels": (Mapping,),
    "split_at": (list, tuple),
    "constant": (list, tuple),
    "window": (list, tuple),
    "projected": (list, tuple),
    "centre": (list, tuple),
    "as_of": _TEXT,
}
