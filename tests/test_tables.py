"""Any table, any file: the same events from each, messy text and all, and errors that name the file
and the line.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from counted import counted
from hypothesis import given, settings, strategies as st

from fourpoint.data.lines import line_of_record
from fourpoint.data.opened import Table
from fourpoint.data.readers import Asked, read, read_with_notes
from fourpoint.data.roles import choose_roles
from fourpoint.data.tables import open_table
from fourpoint.events import Dataset, EventDataError

ROWS = {
    "User": ["a", "a", "b", "a"],
    "Time": [0.5, 1.25, 2.0, 2.5],
    "Type": ["x", "y", "x", "x"],
    "note": ["", "é", "z", "ü"],
}
TABLE = pa.table(ROWS)


def same(data: Dataset) -> bool:
    """Whether the events are those of ROWS."""
    mine = [(s.id, s.times.tolist(), s.marks.tolist()) for s in data]
    return mine == [("a", [0.5, 1.25, 2.5], [0, 1, 0]), ("b", [2.0], [0])] and data.marks.names == (
        "x",
        "y",
    )


def as_csv(separator: str = ",") -> bytes:
    out = io.BytesIO()
    pc.write_csv(TABLE, out, pc.WriteOptions(delimiter=separator))
    return out.getvalue()


def as_json() -> bytes:
    return "\n".join(json.dumps(row) for row in TABLE.to_pylist()).encode()


def as_arrow(opener: Callable[..., Any]) -> bytes:
    out = io.BytesIO()
    with opener(out, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return out.getvalue()


def as_parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(TABLE, out, row_group_size=3)
    return out.getvalue()


def as_feather() -> bytes:
    out = io.BytesIO()
    pyarrow.feather.write_feather(TABLE, out, compression="zstd")
    return out.getvalue()


def packed(content: bytes, codec: str) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(content)
    return out.getvalue().to_pybytes()


FILES: dict[str, Callable[[], bytes]] = {
    "a.csv": as_csv,
    "a.CSV": as_csv,
    "a.tsv": lambda: as_csv("\t"),
    "semicolon.csv": lambda: as_csv(";"),
    "pipe.csv": lambda: as_csv("|"),
    "tab.csv": lambda: as_csv("\t"),
    "a.csv.gz": lambda: gzip.compress(as_csv()),
    "a.csv.zst": lambda: packed(as_csv(), "zstd"),
    "a.csv.bz2": lambda: bz2.compress(as_csv()),
    "a.tsv.gz": lambda: gzip.compress(as_csv("\t")),
    "a.jsonl": as_json,
    "a.ndjson": as_json,
    "a.json": as_json,
    "a.jsonl.gz": lambda: gzip.compress(as_json()),
    "a.jsonl.zst": lambda: packed(as_json(), "zstd"),
    "a.parquet": as_parquet,
    "a.pq": as_parquet,
    "a.arrow": lambda: as_arrow(pa.ipc.new_file),
    "stream.arrow": lambda: as_arrow(pa.ipc.new_stream),
    "a.feather": as_feather,
    "csv_without_ending": as_csv,
    "gz_without_ending": lambda: gzip.compress(as_csv()),
    "parquet_without_ending": as_parquet,
    "arrow_without_ending": lambda: as_arrow(pa.ipc.new_file),
    "stream_without_ending": lambda: as_arrow(pa.ipc.new_stream),
    "json_without_ending": as_json,
    "a.txt": as_csv,
    "bom.csv": lambda: b"\xef\xbb\xbf" + as_csv(),
    "utf16.csv": lambda: as_csv().decode().encode("utf-16"),
    "windows.csv": lambda: as_csv().replace(b"\n", b"\r\n"),
    "old_mac.csv": lambda: as_csv().replace(b"\n", b"\r"),
    "blank_lines.csv": lambda: b"\n\n" + as_csv().replace(b"\n", b"\n\r\n\n"),
    "bom_and_blank.csv": lambda: b"\xef\xbb\xbf\n" + as_csv(),
    "no_last_line_end.csv": lambda: as_csv().rstrip(b"\n"),
    "bom.jsonl": lambda: b"\xef\xbb\xbf" + as_json(),
    "blank_lines.jsonl": lambda: as_json().replace(b"\n", b"\n\r\n\n"),
    "quoted_lines.csv": lambda: as_csv().replace(
        "é".encode(), "several\nlines, and more é".encode()
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_events(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name]())
    data = read(tmp_path / name)
    assert same(data), data
    assert data.name == name.split(".")[0]


class Interchange:
    """A table that speaks the data frame interchange protocol and nothing else."""

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        return TABLE.__dataframe__(nan_as_null, allow_copy)


class Stream:
    """A table that speaks the Arrow stream and nothing else."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


FRAMES: dict[str, Callable[[], Any]] = {
    "mapping": lambda: ROWS,
    "table": lambda: TABLE,
    "batch": lambda: TABLE.combine_chunks().to_batches()[0],
    "reader": lambda: TABLE.to_reader(),
    "stream": Stream,
    "interchange": Interchange,
    "views": lambda: TABLE.set_column(2, "Type", TABLE["Type"].cast(pa.string_view())),
    "dictionaries": lambda: TABLE.set_column(0, "User", TABLE["User"].dictionary_encode()),
}


@pytest.mark.parametrize("name", FRAMES)
def test_every_table_in_memory_gives_the_same_events(name: str) -> None:
    assert same(read(FRAMES[name]()))


def test_pandas() -> None:
    pandas = pytest.importorskip(
        "pandas", reason="pandas is not installed: data frames of pandas are not tested"
    )
    frame = pandas.DataFrame(ROWS)
    assert same(read(frame))
    assert same(read(frame.astype({"Type": "category"}).assign(odd=[object(), 1, "x", None])))
    stamped = frame.set_index(
        pandas.DatetimeIndex(pandas.to_datetime(frame["Time"], unit="h", utc=True), name="when")
    ).drop(columns="Time")
    found = read(stamped, time_unit="hours", sequence="User")
    assert np.allclose(found.times, [0, 0.75, 2.0, 1.5]) and found.unit == "hours"
    with pytest.raises(
        EventDataError,
        match=(
            "expected a value in every row of column 'Time'; received the pandas DataFrame: 1 null"
        ),
    ):
        read(frame.assign(Time=[0.5, np.nan, 2.0, 2.5]))


def test_polars() -> None:
    polars = pytest.importorskip(
        "polars", reason="polars is not installed: data frames of polars are not tested"
    )
    frame = polars.DataFrame(ROWS)
    assert same(read(frame)) and same(
        read(frame.with_columns(polars.col("Type").cast(polars.Categorical)))
    )
    with pytest.raises(EventDataError, match="Collect it first"):
        read(frame.lazy())


@pytest.mark.parametrize(
    "source",
    [None, 3, 2.5, [1, 2], object(), {"time": [1.0], "mark": [1, 2]}],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_table_is_refused(source: object) -> None:
    with pytest.raises(EventDataError, match="expected a (path or a )?table; received "):
        read(source)


def test_only_the_columns_in_use_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"time,remark\n1,caf\xe9\n2,\xff\xfe\n")
    assert read(tmp_path / "a.csv").times.tolist() == [1, 2]
    assert open_table(TABLE).load(["Time"]).column_names == ["Time"]


# Messy text


MESSY = """\ufeff
Incident ID,Received_AT,Call TYPE,Remark

1,2024-05-01T23:30:00-04:00,"Fire, small","He said ""now""
and left"
2,2024-05-02T00:00:00-04:00,Medical,

3,2024-05-02T00:00:00-04:00,"Fire, small",x

"""


def test_a_messy_csv_is_read_in_one_call(tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text(MESSY, encoding="utf-8")
    found = read_with_notes(
        tmp_path / "calls.csv", Asked(sequence="day", timezone="America/New_York")
    )
    data = found.data
    assert data.ids == ("2024-05-01", "2024-05-02") and data.marks.names == (
        "Fire, small",
        "Medical",
    )
    assert (
        [s.times.tolist() for s in data] == [[23.5], [0.0, 0.0]]
        and data.stops.tolist() == [24, 24]
        and data.unit == "hours"
    )
    assert found.notes[0] == (
        "columns: time 'Received_AT', mark 'Call TYPE', one sequence per day (guessed; "
        "--time --mark to choose)"
    )
    assert found.notes[-1] == "100.0% of gaps are zero (ties kept; --ties error|jitter|drop)"


FAULTS = {
    "word.csv": (
        b"time,mark\n1,a\n\nnoon,b\n",
        "expected numbers in column 'time'; received FILE: 'noon' at line 4.",
    ),
    "ragged.csv": (
        b"time,mark\n1,a\n\n2\n3,b\n",
        "received FILE: Expected 2 columns, got 1: 2 at line 4.",
    ),
    "gap.csv": (
        b'time,mark\n1,"x\ny"\n,b\n',
        "a value in every row of column 'time'; received FILE: 1 null, the first at line 4.",
    ),
    "nan.csv": (
        b"time,mark\n\n1,a\nnan,b\n",
        "expected finite numbers in column 'time'; received FILE: nan at line 4.",
    ),
    "unsorted.csv": (
        b"time,mark\n1,a\n\n3,a\n2,b\n",
        "received FILE: 2.0 after 3.0 at event 2 of sequence 0 (line 5). Sort the rows, or",
    ),
    "latin.csv": (
        b"time,mark\n1,a\n2,caf\xe9\n",
        "expected text in UTF-8 in column 'mark'; received FILE: b'caf\\xe9' at line 3.",
    ),
    "headless.csv": (
        b"1.5,2\n2.5,3\n",
        "expected a header line; received FILE: values such as '1.5' in line 1.",
    ),
    "title.csv": (
        b"Report of May\n\ntime,mark\n2024-05-01,a\n",
        "none among 'Report of May' looks like one. Remove what stands above the header line, or",
    ),
    "headless_words.csv": (
        b"2024-01-01 00:24,fire\n2024-01-01 00:31,fire\n",
        "expected a header line; received FILE: '2024-01-01 00:24' as the name of a column. Put",
    ),
    "headless_epochs.csv": (
        b"1704068640,fire\n1704068700,fire\n",
        "expected a header line; received FILE: '1704068640' as the name of a column. Put the",
    ),
    "latin_header.csv": (
        b"Zeit;St\xf6rung\n01.02.2024 10:00;a\n",
        "codec can't decode byte 0xf6 in position 2: invalid start byte). Save the file as UTF-8.",
    ),
    "book.xlsx": (
        b"PK\x03\x04 and so on",
        "which is a ZIP archive, such as an Excel workbook. Save the sheet of a workbook as CSV",
    ),
    "book.csv": (b"\xd0\xcf\x11\xe0 and so on", "which is an Excel workbook. Save the sheet"),
    "blank.csv": (b"\n\n\n", "expected a header line; received FILE: blank lines alone."),
    "rowless.csv": (
        b"time,mark\n",
        "expected at least one event; received FILE: a table without rows.",
    ),
    "twice.csv": (b"time,time\n1,2\n", "expected one column 'time'; received FILE: 2 of them."),
    "mark.csv": (
        b"time,mark\n1,a\n2,\n",
        (
            "expected a value in every row of column 'mark'; received FILE: 1 null, the first at "
            "line 3."
        ),
    ),
    "clock.csv": (
        b"time,mark\n10:30:00,a\n",
        "expected a column of times; received FILE: none among 'time', 'mark'",
    ),
    "bad_gzip.csv.gz": (
        b"time,mark\n1,a\n",
        "expected a CSV file; received FILE, which cannot be read as one (",
    ),
    "word.jsonl": (
        b'{"time": 1}\n\n{"time": "x"}\n',
        "expected a file of JSON Lines; received FILE: ",
    ),
    "list.json": (b'[{"time": 1}]', "received FILE: line 1 is not an object but a list."),
    "null.jsonl": (b'{"time": 1}\nnull\n', "received FILE: line 2 is not an object but null."),
    "behind.jsonl": (b'{"time": 1} null\n', "received FILE: line 1 is not JSON (Extra data"),
    "cut.jsonl": (
        b'{"time": 1}\n{"time": \n',
        "received FILE: line 2 is not JSON (Expecting value",
    ),
    "blank.jsonl": (b"\n\n", "received FILE: blank lines alone."),
    "bad.arrow": (
        b"ARROW1\x00\x00 and so on",
        "expected an Arrow file; received FILE, which cannot be read as one (",
    ),
    "old.feather": (
        b"FEA1....FEA1",
        "expected an Arrow file; received FILE, which is Feather of version 1.",
    ),
    "bad.parquet": (
        b"PAR1 and so on PAR1",
        "expected a Parquet file; received FILE, which cannot be read as one (",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_errors_name_file_and_line(name: str, tmp_path: Path) -> None:
    content, text = FAULTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EventDataError) as caught:
        read(tmp_path / name)
    assert text.replace("FILE", str(tmp_path / name)) in str(caught.value)


def test_faults_beyond_the_first_rows_name_their_line(tmp_path: Path) -> None:
    good = '{"time": 1, "mark": "a}b"}\n'
    for bad, text in {
        "null": "line 3001 does not begin with a brace",
        '{"time": 1} null': "line 3001 is not one object (Extra data",
        '{"time": "x"}': "string in column 'time', where there was number before at line 3001",
        '{"time": 1,}': "at line 3001",
    }.items():
        (tmp_path / "a.jsonl").write_text(good * 3000 + bad + "\n" + good)
        with pytest.raises(EventDataError) as caught:
            read(tmp_path / "a.jsonl")
        assert f"{tmp_path / 'a.jsonl'}: " in str(caught.value) and text in str(caught.value)
    (tmp_path / "a.csv").write_text("time,mark\n" + "1,a\n\n" * 30000 + "1,a,b\n")
    with pytest.raises(
        EventDataError,
        match="a.csv: Expected 2 columns, got 3: 1,a,b at line 60002. Correct or remove that line.",
    ):
        read(tmp_path / "a.csv")


def test_numbers_may_become_fractions_or_words_late_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"time": 1}\n' * 3000 + '{"time": 2.5}\n')
    assert read(tmp_path / "a.jsonl").times[-1] == 2.5
    (tmp_path / "a.csv").write_text("time,mark\n" + "1,1\n" * 500_000 + "2.5,late\n")
    late = read(tmp_path / "a.csv")
    assert late.times[-1] == 2.5 and late.marks.names == ("1", "late")


def test_a_csv_keeps_the_offsets_of_its_times(tmp_path: Path) -> None:
    rows = [f"2024-{month:02d}-05T10:00:00+0{1 + (4 <= month <= 10)}:00" for month in range(1, 13)]
    file = tmp_path / "orders.csv"
    file.write_text("ordered_at,amount\n" + "".join(f"{row},1.5\n" for row in rows))
    found = read_with_notes(file)
    assert found.clock is not None and found.clock.zone == "Europe/Berlin"
    assert any("change as those of Europe/Berlin do" in note for note in found.notes)
    hours = found.data.times * {"days": 24.0, "hours": 1.0}[found.data.unit] + 10
    assert sorted(set(np.round(hours % 24).tolist())) == [9.0, 10.0]  # 9 is summer, of elapsed time


def test_short_rows_of_text_are_read_without_a_loop(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "user,time,mark\n" + "".join(f"u{i % 977},{i},m{i % 7}\n" for i in range(200_000))
    )
    with counted() as work:
        data = read(tmp_path / "a.csv")
    assert (len(data), data.events, data.marks.count) == (
        977,
        200_000,
        7,
    ) and work.lines < 50_000, "none for each row"


# Lines


@settings(max_examples=200)
@given(
    st.lists(
        st.lists(st.text('ab"\n, ;', max_size=4), min_size=2, max_size=3), min_size=1, max_size=8
    ),
    st.data(),
)
def test_lines_of_records_are_those_of_the_csv_module(
    records: list[list[str]], data: st.DataObject
) -> None:
    out = io.StringIO()
    starts, line = [], 1
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for record in records:
        blank = data.draw(st.integers(0, 2))
        out.write("\n" * blank)
        line += blank
        starts.append(line)
        writer.writerow(record)
        line = out.getvalue().count("\n") + 1
    wanted = data.draw(st.integers(0, len(records) - 1))
    # A comma or line end beside a quote inside a field cannot be told from the field's own edge
    # without parsing it all.
    if not any(
        edge in field
        for record in records
        for field in record
        for edge in ('",', ',"', '"\n', '\n"', '""')
        if '"' in field
    ):
        assert line_of_record(io.BytesIO(out.getvalue().encode()), wanted, ",") == starts[wanted]


def test_lines_are_counted_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourpoint.data.lines.BLOCK", 7)
    text = b'a,b\n\n1,"x\ny"\r\n\r\n' + b"2,z\n" * 50
    assert [line_of_record(io.BytesIO(text), k, ",") for k in (0, 1, 2, 51)] == [1, 3, 6, 55]


# Hostile files


def refused_or_read(path: Path) -> None:
    """Reading ends after little work, with events or with an error that names the file."""
    with suppress(EventDataError):  # modules that the first call imports are not counted
        read(path)
    with counted() as work:
        try:
            read(path)
        except EventDataError as error:
            assert str(path) in str(error)
    assert work.lines < 50_000


ENDINGS = ["csv", "tsv", "jsonl", "parquet", "arrow", "csv.gz", "csv.zst", "jsonl.gz", "bin"]


@settings(max_examples=150)
@given(st.binary(max_size=400), st.sampled_from(ENDINGS))
def test_random_bytes(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"random.{ending}"
    path.write_bytes(content)
    refused_or_read(path)


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(
            [
                "null",
                "[",
                "{",
                "}",
                '"',
                "\n",
                ",",
                "1e999",
                "NaN",
                "\x00",
                "\r",
                "2024-05-01",
                "time",
                "mark",
                ":",
                "1",
                "x",
                ";",
                '{"time":1}',
            ]
        )
    ),
    st.sampled_from(["csv", "tsv", "jsonl"]),
)
def test_random_words(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], ending: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"words.{ending}"
    path.write_text("".join(words), newline="")
    refused_or_read(path)


@settings(max_examples=100)
@given(
    st.sampled_from(
        ["a.parquet", "a.arrow", "stream.arrow", "a.csv.gz", "a.csv.zst", "a.jsonl.gz"]
    ),
    st.data(),
)
def test_truncated_and_damaged_files(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    content = bytearray(FILES[name]())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(1, len(content) - 1))]
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / f"damaged.{name}"
    path.write_bytes(content)
    refused_or_read(path)


CELLS = [1, -1.5, True, None, "x", "1", "2024-05-01", b"raw", [1], {"a": 1}, 10**15, float("inf")]


@settings(max_examples=150)
@given(
    st.sampled_from(CELLS),
    st.sampled_from(CELLS),
    st.sampled_from(["parquet", "arrow", "jsonl", "memory"]),
)
def test_wrong_types(
    tmp_path_factory: pytest.TempPathFactory, when: Any, what: Any, ending: str
) -> None:
    try:
        table = pa.table({"time": [when, when], "mark": [what, what], "user": [what, what]})
    except pa.ArrowException:
        return
    if ending == "memory":
        try:
            read(table)
        except EventDataError as error:
            assert "the table" in str(error)
        return
    path = tmp_path_factory.getbasetemp() / f"types.{ending}"
    if ending == "jsonl":
        path.write_text("\n".join(json.dumps(row, default=str) for row in table.to_pylist()))
    elif ending == "parquet":
        pq.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, path, compression="uncompressed")
    refused_or_read(path)


LONG = "x" * 10**6


@pytest.mark.parametrize("column", ["time", "mark", "user", "remark"])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_cells_of_a_million_letters(column: str, ending: str, tmp_path: Path) -> None:
    rows = [{"time": "1", "mark": "a", "user": "u", "remark": "r"} for _ in range(6)]
    for row in rows[2:5]:
        row[column] = LONG
    path = tmp_path / f"long.{ending}"
    names = list(rows[0])
    if ending == "csv":
        path.write_text(
            "\n".join([",".join(names), *(",".join(row[name] for name in names) for row in rows)])
            + "\n"
        )
    elif ending == "jsonl":
        path.write_text(
            "\n".join(json.dumps(row | ({"time": 1} if column != "time" else {})) for row in rows)
        )
    else:
        pq.write_table(
            pa.Table.from_pylist(
                [row | ({"time": 1.0} if column != "time" else {}) for row in rows]
            ),
            path,
        )
    before = pa.default_memory_pool().max_memory()
    if column == "time":
        with pytest.raises(EventDataError) as caught:
            read(path)
        assert str(path) in str(caught.value) and len(str(caught.value)) < 500
    else:
        assert read(path).events == 6
    assert pa.default_memory_pool().max_memory() - before < 200e6


@pytest.mark.parametrize(
    "line",
    [b"x" * 30_000_000, b'time,mark\n1,"' + b"x" * 30_000_000, b"a," * 30_000],
    ids=["header", "quote", "columns"],
)
@pytest.mark.parametrize("ending", ["csv.gz", "jsonl.gz"])
def test_endless_lines_are_refused(line: bytes, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"endless.{ending}"
    path.write_bytes(gzip.compress(line, 1))
    with pytest.raises(EventDataError) as caught:
        read(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.zst", "a.parquet"])
def test_what_unpacks_beyond_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(FILES[name]())
    monkeypatch.setenv("FOURPOINT_MEMORY_LIMIT", "50")
    with pytest.raises(
        EventDataError,
        match=(
            "that expands into at most 50 bytes; received .* expand into .* or more. If you "
            "trust it"
        ),
    ):
        read(tmp_path / name)


def test_long_words_that_repeat_take_no_room(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(np.zeros(20_000, dtype=np.int32), pa.array([LONG]))
    pq.write_table(
        pa.table({"time": np.arange(20_000.0), "mark": words, "when": words}),
        tmp_path / "bomb.parquet",
    )
    before = pa.default_memory_pool().max_memory()
    assert read(tmp_path / "bomb.parquet").events == 20_000
    with pytest.raises(
        EventDataError,
        match="expected numbers or timestamps in column 'when'; received .*: 'xxx.* at row 0.",
    ):
        read(tmp_path / "bomb.parquet", time="when")
    assert pa.default_memory_pool().max_memory() - before < 500e6, "twenty gigabytes if written out"


def test_deep_json_is_read_past_or_refused(tmp_path: Path) -> None:
    deep = "[" * 200_000 + "]" * 200_000
    (tmp_path / "late.jsonl").write_text('{"time": 1}\n' * 2000 + f'{{"time": 1, "z": {deep}}}\n')
    assert read(tmp_path / "late.jsonl").events == 2001
    (tmp_path / "first.jsonl").write_text(f'{{"time": 1, "z": {deep}}}\n')
    with pytest.raises(EventDataError, match="first.jsonl: line 1 is not JSON"):
        read(tmp_path / "first.jsonl")


# The bar


def test_a_bar_is_drawn_on_a_terminal_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.csv", "a.csv.gz", "a.parquet", "a.jsonl"):
        (tmp_path / name).write_bytes(FILES[name]())
    clock = iter(np.arange(0.0, 1e6, 2.0))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        "fourpoint.data.opened.time", SimpleNamespace(monotonic=lambda: float(next(clock)))
    )
    for name in ("a.csv", "a.csv.gz", "a.parquet", "a.jsonl"):
        assert same(read(tmp_path / name))
        assert f"reading {name}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_beginning_of_a_long_log_shows_that_sequences_come_back(
    kind: str, tmp_path: Path
) -> None:
    """Of 5,000 machines none comes back in the first rows that are looked at; the whole column
    need not be read to see that they do, and is where the beginning does not show it.
    """
    loaded: list[list[str]] = []

    def opened(machines: list[int]) -> Table:
        file = tmp_path / f"log.{kind}"
        frame = pa.table({"time": pa.array(np.arange(len(machines))), "machine": machines})
        (pc.write_csv if kind == "csv" else pq.write_table)(frame, file)
        table = open_table(file)

        def load(columns: list[str]) -> pa.Table:
            loaded.append(columns)
            return table.load(columns)

        return replace(table, load=load)

    again = opened([row % 5000 for row in range(30_000)])
    assert choose_roles(again, "time", None, None, None).sequence == "machine"
    assert not loaded
    alone = opened(list(range(30_000)))
    assert choose_roles(alone, "time", None, None, None).sequence is None
    assert loaded == [["machine"]]
