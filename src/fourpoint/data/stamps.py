"""Text to timestamps: ISO 8601, and dates with slashes, dots or dashes where day and month can be
told apart.

A whole column is parsed at once by Arrow. What it does not take at first is tidied (spaces, "UTC",
a comma before the fraction) and tried again, and what then fails is named with its row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fourpoint.events import UserError

Fault = Callable[[str, int, object, str], UserError]
"""Makes an error from what was expected, the row, its value, and what to do."""

ISO = re.compile(r"\s*\d{4}[-/]\d{1,2}[-/]\d{1,2}(?!\d)")
ZONE = re.compile(r"\d[:\d.,]*\s*(Z|UTC|GMT|[+-]\d{2}(:?\d{2})?)\s*$", re.IGNORECASE)
SPLIT_DATE = re.compile(
    r"\s*\d{1,2}([-/.])\d{1,2}\1(\d{4}|\d{2})(?:[ T]+(\d{1,2}:\d{2}(:\d{2})?)\s*([AaPp][Mm])?)?\s*$"
)
LONGEST = 100  # letters of a time
NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
REMEDY = "Write times as 2024-05-01T09:30:00+02:00, or as numbers in one unit."


def parse_stamps(column: pa.ChunkedArray, notes: list[str], fault: Fault) -> pa.ChunkedArray:
    """A column of text without nulls as timestamps: in UTC where the text names zones, else as it
    stands.

    >>> parse_stamps(pa.chunked_array([["2024-05-01 09:30"]]), [], fault=ValueError).type
    TimestampType(timestamp[us])
    """
    _check_lengths(column, fault)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not len(column):
        return column.cast(pa.timestamp("us"))
    first = str(column[0])
    if ISO.match(first):
        return _parse_iso(column, first, fault)
    if SPLIT_DATE.match(first):
        return _parse_split(column, first, notes, fault)
    if re.fullmatch(NUMBER, first):
        row = int(pc.index(pc.match_substring_regex(column, f"^{NUMBER}$"), False).as_py())
        if row >= 0:
            raise fault("numbers", row, str(column[row]), "Correct or remove the row.")
    raise fault("numbers or timestamps", 0, first, REMEDY)


def _check_lengths(column: pa.ChunkedArray, fault: Fault) -> None:
    """Refuse text far longer than a time. Of words that are kept once each it need not be written
    out to be seen.
    """
    row = 0
    for chunk in column.chunks:
        coded = pa.types.is_dictionary(chunk.type)
        long = pc.greater(pc.binary_length(chunk.dictionary if coded else chunk), LONGEST)
        found = pc.index(long.take(chunk.indices) if coded else long, True).as_py()
        if found >= 0:
            raise fault(
                "numbers or timestamps", row + found, f"{str(chunk[found])[:40]}...", REMEDY
            )
        row += len(chunk)


def _parse_iso(column: pa.ChunkedArray, first: str, fault: Fault) -> pa.ChunkedArray:
    zone = "UTC" if has_zone(first) else None
    for tidy in (_as_is, tidied):
        for unit in ("us", "ns"):
            try:
                return tidy(column).cast(pa.timestamp(unit, zone))
            except pa.ArrowInvalid:
                continue
    row = first_bad(column, lambda part: tidied(part).cast(pa.timestamp("us", zone)))
    value = str(column[row])
    if ISO.match(value) and has_zone(value) != (zone is not None):
        raise fault(
            f"a zone at every time, or at none: the first is {first!r}",
            row,
            value,
            "Write all times in one way.",
        )
    raise fault("a time as ISO 8601 writes it", row, value, "Correct or remove the row.")


def has_zone(text: str) -> bool:
    """Whether a time in text names its zone or its distance from UTC."""
    return ZONE.search(re.sub(r"^\s*[\d/-]+(?=[T ]|$)", "", text)) is not None


def _as_is(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column


def tidied(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates with dashes, two digits each; no spaces around; Z for UTC; a point before the
    fraction.
    """
    text = pc.utf8_trim_whitespace(column)
    text = pc.replace_substring_regex(text, r"\s*(?i:UTC|GMT|z)$", "Z")
    text = pc.replace_substring_regex(text, r"\s+([+-]\d{2}:?\d{0,2})$", r"\1")
    text = pc.replace_substring_regex(text, r"^(\d{4})[-/](\d{1,2})[-/](\d{1,2})", r"\1-0\2-0\3")
    text = pc.replace_substring_regex(text, r"^(\d{4})-0?(\d{2})-0?(\d{2})(\D|$)", r"\1-\2-\3\4")
    text = pc.replace_substring_regex(text, r"^(.{10})[ T]+(\d):", r"\1T0\2:")
    text = pc.replace_substring_regex(text, r"(:\d{2}),(\d)", r"\1.\2")
    return pc.replace_substring_regex(text, r"(\.\d{9})\d+", r"\1")


def _parse_split(
    column: pa.ChunkedArray, first: str, notes: list[str], fault: Fault
) -> pa.ChunkedArray:
    """Dates such as 5/1/2024: which part is the month follows from one part being above 12 in some
    row.
    """
    found = SPLIT_DATE.match(first)
    if found is None:
        raise fault("numbers or timestamps", 0, first, REMEDY)
    between = found[1]
    year = "%Y" if len(found[2]) == 4 else "%y"
    if not found[3]:
        hours = ""
    else:
        hours = (
            (" %I:%M" if found[5] else " %H:%M")
            + (":%S" if found[4] else "")
            + (" %p" if found[5] else "")
        )
    text = pc.replace_substring_regex(pc.utf8_upper(pc.utf8_trim_whitespace(column)), r"[ T]+", " ")
    text = pc.replace_substring_regex(text, r"(\d)([AP]M)$", r"\1 \2")
    american, european = (
        pc.strptime(text, f"{date.replace('/', between)}{year}{hours}", "us", error_is_null=True)
        for date in ("%m/%d/", "%d/%m/")
    )
    if american.null_count and european.null_count:
        best = min(american, european, key=lambda parsed: parsed.null_count)
        row = int(pc.index(best.is_null(), True).as_py())
        raise fault(
            f"times all written as {first!r} is",
            row,
            str(column[row]),
            "Correct or remove the row.",
        )
    if american.null_count or european.null_count:
        parsed = european if american.null_count else american
    elif found[5] or between == ".":
        parsed = american if found[5] else european
        order = "month first, as with AM and PM" if found[5] else "day first, as with points"
        notes.append(f"times such as {first!r} are read {order}")
    else:
        raise fault(
            "dates in which day and month can be told apart", 0, first, "Write them as 2024-05-01."
        )
    # strptime takes "2024-02-31" for the second of March.
    return _checked(parsed, text, column, american is parsed, fault)


def _checked(
    parsed: pa.ChunkedArray,
    text: pa.ChunkedArray,
    column: pa.ChunkedArray,
    month_first: bool,
    fault: Fault,
) -> pa.ChunkedArray:
    parts = pc.extract_regex(text, r"^(?P<a>\d+)\D(?P<b>\d+)")
    day = pc.cast(pc.struct_field(parts, "b" if month_first else "a"), pa.int64())
    wrong = pc.index(pc.not_equal(pc.day(parsed), day), True).as_py()
    if wrong >= 0:
        raise fault("dates that exist", wrong, str(column[wrong]), "Correct or remove the row.")
    return parsed


def first_bad(column: pa.Array | pa.ChunkedArray, parse: Callable[[Any], object]) -> int:
    """The first row that ``parse`` does not take, by halving; the last if it takes all before.

    >>> first_bad(pa.array(["1", "2", "x", "4"]), lambda part: part.cast(pa.int64()))
    2
    """
    low = 0
    high = len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(column.slice(low, middle - low))
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
    return low
