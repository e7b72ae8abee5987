"""Scores of a batch as lines of JSON, and lines of JSON as values; by orjson where it is installed,
else by the standard library.

    {"line": 1, "time": 12.5, "mark": "fire", "log_density": -1.2, "gap": 0.4, "rate": 2.1,
    "alarms": []}

Numbers are formatted a column at a time, which is what takes the time; a number that is not finite
becomes null. Both libraries write the shortest digits that read back as the same number; their
exponents may look different (1e-5, 1e-05).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import repeat
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any, NamedTuple

from fourpoint.events import UserError
from fourpoint.strict_json import plain


class Scores(NamedTuple):
    """What a scorer says of a batch of events, by columns; numbers of ``refused`` events mean
    nothing.

    ``attended`` is None where it was not asked for.
    """

    log_density: list[float]
    gap: list[float]
    rate: list[float]
    alarms: list[list[dict[str, Any]]]
    refused: dict[int, UserError]
    attended: list[Any] | None = None


@cache
def fast_json() -> Any:
    """The module orjson; None where it is not installed."""
    try:
        import orjson
    except ImportError:
        return None
    return orjson


def loader() -> Callable[[bytes], Any]:
    """What gives the value of a line of JSON, and ValueError for anything else."""
    library = fast_json()
    return _plain_loads if library is None else library.loads


def _plain_loads(content: bytes) -> Any:
    return json.loads(content.decode())


def number_texts(values: Sequence[float]) -> list[str]:
    """Each number as JSON.

    >>> number_texts([0.5, float("inf"), 3.0])
    ['0.5', 'null', '3.0']
    """
    library = fast_json()
    if library is None:
        return [repr(value) if isfinite(value) else "null" for value in values]
    return library.dumps(values)[1:-1].decode().split(",") if values else []


def rows_of(
    lines: Sequence[int],
    times: Sequence[float],
    marks: Sequence[int],
    entities: Sequence[str | None] | None,
    found: Scores,
    names: Sequence[str],
) -> list[str]:
    """One line of JSON per event: ``lines`` are their numbers in the input, and ``names`` the
    marks' names as JSON.

    ``entities`` is None where there is one stream.
    """
    columns = [number_texts(values) for values in (times, found.log_density, found.gap, found.rate)]
    kinds = [names[mark] for mark in marks]
    ends: Iterable[str] = repeat('"alarms": []', len(kinds))
    if any(found.alarms):
        ends = [
            '"alarms": []' if not raised else f'"alarms": {as_json(raised)}'
            for raised in found.alarms
        ]
    if found.attended is not None:
        ends = [
            f'"attended": {as_json(heads)}, {end}'
            for end, heads in zip(ends, found.attended, strict=True)
        ]
    if entities is None:
        return [
            (
                f'{{"line": {line}, "time": {time}, "mark": {kind}, "log_density": {density}, '
                f'"gap": {gap}, "rate": {rate}, {end}}}\n'
            )
            for line, kind, end, time, density, gap, rate in zip(
                lines, kinds, ends, *columns, strict=True
            )
        ]
    whose = quoted([entity or "" for entity in entities])
    return [
        f'{{"line": {line}, "time": {time}, "mark": {kind}, "entity": {entity}, '
        f'"log_density": {density}, "gap": {gap}, '
        f'"rate": {rate}, {end}}}\n'
        for line, kind, end, entity, time, density, gap, rate in zip(
            lines, kinds, ends, whose, *columns, strict=True
        )
    ]


def quoted(names: list[str]) -> list[str]:
    r"""Names as JSON in ASCII.

    >>> quoted(["north", 'the "old" mill'])
    ['"north"', '"the \\"old\\" mill"']
    """
    if not names:
        return []
    letters = "".join(names)
    needs_escapes = '"' in letters or "\\" in letters
    if needs_escapes or not letters.isascii() or not letters.isprintable():
        return [encode_basestring_ascii(name) for name in names]
    return ('"' + '"\n"'.join(names) + '"').split("\n")  # no name holds a line end


def as_json(value: object) -> str:
    """Any value as JSON in ASCII, with null for numbers that are not finite."""
    try:
        return _ENCODE(value)
    except ValueError:  # a number that is not finite, which JSON does not have
        return _ENCODE(plain(value))


_ENCODE: Callable[[Any], str] = json.JSONEncoder(
    allow_nan=False, ensure_ascii=True, check_circular=False
).encode
