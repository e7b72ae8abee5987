"""The short way through a feed (bulk lines, fast JSON) against the plain one: same lines, same
events, same output.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourpoint.events import UserError
from fourpoint.streaming.feed import encoding
from fourpoint.streaming.feed.encoding import Scores, fast_json, number_texts, quoted, rows_of
from fourpoint.streaming.feed.lines import LONGEST, Line, Lines
from fourpoint.streaming.feed.reading import Asked, EventReader
from fourpoint.streaming.feed.times import TimeReader

CONTENTS = [
    b'{"time": 1.5, "mark": "fire", "who": "a"}',
    b'{"time": 2, "mark": 7, "who": 12, "more": [1, {"x": null}]}',
    b' {"mark": "fire", "time": 1e3, "who": "b\\u00e4"} ',
    '{"time": 3, "mark": "fire", "who": "ä"}'.encode(),
    b'{"time": 1, "time": 4, "mark": "fire", "who": "a"}',
    (
        b'{"time": 123456789012345678901234567890, "mark": "fire", "who": '
        b"123456789012345678901234567890}"
    ),
    b'{"time": true, "mark": "fire", "who": "a"}',
    b'{"time": NaN, "mark": "fire", "who": "a"}',
    b'{"time": 1e999, "mark": "fire", "who": "a"}',
    b'{"time": 1, "mark": ["fire"], "who": "a"}',
    b'{"time": 1, "mark": "flood", "who": "a"}',
    b'{"time": 1, "mark": "fire", "who": ""}',
    b'{"time": 1, "mark": "fire", "who": "\\ud800"}',
    b'{"time": 1, "mark": "fire", "who": 1.5}',
    b'{"time": 1, "mark": "fire"',
    b"[1, 2]",
    b'"time"',
    b"\xff{}",
    b"  ",
    b"",
    b'{"when": 1}',
    b"[" * 5000,
]


def readers(by: str | None) -> tuple[EventReader, EventReader]:
    """Two that have read their first line."""
    found = []
    for _ in range(2):
        reader = EventReader({"fire": 0, "7": 1}, Asked(by=by), TimeReader(None, ""))
        reader(Line(1, CONTENTS[0], len(CONTENTS[0])))
        found.append(reader)
    return found[0], found[1]


@pytest.mark.parametrize("by", [None, "who"])
@pytest.mark.parametrize("plain", [False, True])
def test_lines_read_in_bulk_are_those_read_one_by_one(
    by: str | None, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        monkeypatch.setattr(encoding, "fast_json", lambda: None)
    bulk, single = readers(by)
    lines = [Line(i + 2, content, len(content)) for i, content in enumerate(CONTENTS)]
    lines.append(Line(99, None, LONGEST + 1))
    lines.append(Line(100, CONTENTS[0], len(CONTENTS[0]), rest=True))
    for found, expected in zip(bulk.read(lines), [single(line) for line in lines], strict=True):
        assert type(found) is type(expected) and str(found) == str(expected)
    assert sum(isinstance(one, UserError) for one in bulk.read(lines)) > 8


def scores() -> Scores:
    alarm = {"time": 1.0, "kind": "burst", "size": math.inf, "statistic": 2.0, "threshold": 1.0}
    return Scores(
        [-1.25, -math.inf, 1e-7], [0.1, 2.0, 1e22], [3.5, 1 / 3, math.nan], [[], [alarm], []], {}
    )


@pytest.mark.parametrize(
    "attended", [None, [[[]], [], [[{"time": 1.0, "mark": None, "weight": math.nan}]]]]
)
@pytest.mark.parametrize("entities", [None, ["a", 'b"\n', "ä\x1b"]])
@pytest.mark.parametrize("plain", [False, True])
def test_rows_are_json_whatever_writes_them(
    plain: bool, entities: list[str] | None, attended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        monkeypatch.setattr(encoding, "fast_json", lambda: None)
    found = scores()._replace(attended=attended)
    rows = rows_of([1, 3, 4], [0.5, 2.0, 1e-9], [0, 1, 0], entities, found, ['"fire"', '"7"'])
    assert all(row.isascii() and row.endswith("}\n") and row.count("\n") == 1 for row in rows)
    parsed = [json.loads(row) for row in rows]
    middle = [] if entities is None else ["entity"]
    end = ["alarms"] if attended is None else ["attended", "alarms"]
    assert [list(row) for row in parsed] == [
        ["line", "time", "mark", *middle, "log_density", "gap", "rate", *end]
    ] * 3
    assert [row["log_density"] for row in parsed] == [-1.25, None, 1e-7]
    assert [row["gap"] for row in parsed] == [0.1, 2.0, 1e22] and [
        row["rate"] for row in parsed
    ] == [3.5, 1 / 3, None]
    assert [row["mark"] for row in parsed] == ["fire", "7", "fire"]
    assert parsed[1]["alarms"][0]["size"] is None and parsed[0]["alarms"] == []
    if entities is not None:
        assert [row["entity"] for row in parsed] == entities
    if attended is not None:
        assert parsed[2]["attended"] == [[{"time": 1.0, "mark": None, "weight": None}]]


def test_numbers_read_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    values = (random.normal(size=500) * 10.0 ** random.integers(-300, 300, 500)).tolist()
    assert [float(text) for text in number_texts(values)] == values
    monkeypatch.setattr(encoding, "fast_json", lambda: None)
    assert [float(text) for text in number_texts(values)] == values and number_texts([]) == []


def test_the_standard_library_serves_where_orjson_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    fast_json.cache_clear()
    try:
        assert fast_json() is None and encoding.loader()(b'{"time": 1}') == {"time": 1}
    finally:
        monkeypatch.undo()
        fast_json.cache_clear()


@pytest.mark.parametrize("by", [None, "who"])
@pytest.mark.parametrize("plain", [False, True])
def test_columns_are_the_events_of_the_lines(
    by: str | None, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        monkeypatch.setattr(encoding, "fast_json", lambda: None)
    bulk, single = readers(by)
    good = [b'{"time": %d.5, "mark": "fire", "who": "a%d"}' % (i, i % 3) for i in range(40)]
    good += [b'{"time": 41, "mark": 7, "who": 12}', b'{"who": "b", "time": 5e1, "mark": "7"}']
    found = bulk.columns(good)
    assert found is not None, "plain objects take the short way"
    expected = [single(Line(i, content, len(content))) for i, content in enumerate(good)]
    assert found.events() == expected
    for content in CONTENTS:
        found = bulk.columns([*good, content, *good])
        alone = single(Line(3, content, len(content)))
        assert found is None or found.events()[len(good)] == alone


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "contents",
    [
        [b'{"time": 1}, {"time": 2}', b'{"time": [{}', b'{}], "time": 3}'],
        [b'{"time": 1', b'"mark": 2}'],
        [b'{"time": 1, "who": "a', b'b"}'],
        [b'{"time": 1}', b"", b'{"time": 2}'],
        [b'{"time": 1}]', b'[{"time": 2}'],
        [b'{"time": 1},', b'{"time": 2}'],
    ],
)
def test_lines_that_form_json_only_together_are_not_events(
    contents: list[bytes], plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        monkeypatch.setattr(encoding, "fast_json", lambda: None)
    reader = EventReader({}, Asked(), TimeReader(None, ""))
    reader(Line(1, b'{"time": 0}', 11))
    assert reader.columns([b'{"time": 0.5}', b'{"time": 0.75}']) is not None
    assert reader.columns(contents) is None
    assert reader.columns([b'{"time": 1, "mark": "fire"}']) is None, "the model has no marks"


def test_a_block_gives_the_lines_that_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    path.write_bytes(b"\n".join([b"one", b"x" * (LONGEST + 1), b"", b"four", b""]))
    lines = Lines(path)
    block = lines.block(10)
    assert block.contents == [b"one", b"", b"", b"four"] and list(block.odd) == [1]
    expected = [
        Line(1, b"one", 3),
        Line(2, None, LONGEST + 1),
        Line(3, b"", 0),
        Line(4, b"four", 4),
    ]
    assert block.lines() == expected
    lines.close()


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_lines_taken_in_bulk_are_those_of_the_file(limit: int, tmp_path: Path) -> None:
    contents = [b"x" * n for n in (1, 0, 5, 2, LONGEST, LONGEST + 1, 3, 0, 0, 7)] * 3
    path = tmp_path / "feed"
    path.write_bytes(b"\n".join(contents) + b"\nlast")
    lines, found = Lines(path), []
    while taken := lines.take(limit):
        assert len(taken) <= limit
        found += taken
        assert lines.number == found[-1].number and lines.offset == sum(
            line.size + 1 for line in found
        )
    assert [line.number for line in found] == list(range(1, 31))
    assert [line.content for line in found] == [None if len(c) > LONGEST else c for c in contents]
    assert lines.ended and lines.unfinished() == Line(31, b"last", 4)
    assert lines.tail() == path.read_bytes()[: lines.offset][-4096:]
    lines.close()


def test_a_pipe_hands_over_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    lines = Lines(None)
    monkeypatch.setattr(lines, "_file", reading)
    try:
        os.write(writing, b"one\ntwo\nthr")
        assert [line.content for line in lines.take(4096)] == [b"one", b"two"]
        assert lines.take(4096) == [] and not lines.ended
        os.write(writing, b"ee\n")
        assert [line.content for line in lines.take(4096)] == [b"three"]
    finally:
        os.close(writing)
        os.close(reading)


def test_names_of_entities_are_quoted_as_the_standard_library_does() -> None:
    odd = [
        'a "quote"',
        "back\\slash",
        "tab\t",
        "line\nend",
        "\x7f",
        "\u00e4",
        "\U0001f600",
        "",
        "a,b",
    ]
    for names in ([], [""], ["plain"], ["a b", "c,d", "e:f"], odd, *([name] for name in odd)):
        assert quoted(names) == [json.dumps(name) for name in names]
