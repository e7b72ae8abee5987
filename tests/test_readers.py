"""Reading and writing Parquet: grouping, windows, marks, splits, the text of every error, and exact
round trips.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from fourpoint.data.grouping import group, number, stable_order
from fourpoint.data.readers import Asked, describe_choices, read, read_with_notes, write
from fourpoint.events import SPLITS, Dataset, EventDataError, MarkSpace, Sequence, UserError

Columns = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Writes columns, and metadata if given, to a file and returns its path."""

    def write_columns(
        columns: Columns, metadata: dict[str, Any] | None = None, name: str = "events.parquet"
    ) -> Path:
        table = pa.table(columns)
        if metadata:
            table = table.replace_schema_metadata(
                {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
            )
        pq.write_table(table, tmp_path / name)
        return tmp_path / name

    return write_columns


# Grouping


def test_rows_of_one_sequence_need_not_be_neighbours(store: Any) -> None:
    data = read(
        store({"seq_id": ["b", "a", "b", "a"], "t": [1.0, 2.0, 3.0, 4.0], "mark": [0, 1, 2, 3]})
    )
    assert data.ids == ("b", "a") and [s.times.tolist() for s in data] == [[1.0, 3.0], [2.0, 4.0]]
    assert [s.marks.tolist() for s in data] == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([7, 7, -1], pa.int64()),
        pa.array([7, 7, 9], pa.uint8()),
        pa.array(["x", "x", "y"], pa.large_string()),
    ],
)
def test_ids_may_be_numbers_or_text(store: Any, ids: pa.Array) -> None:
    assert read(store({"seq_id": ids, "t": [1, 2, 3]})).ids == tuple(
        str(i) for i in dict.fromkeys(ids.to_pylist())
    )


def test_stored_dictionaries_may_hold_unused_values_in_any_order(store: Any) -> None:
    ids = pa.DictionaryArray.from_arrays(pa.array([2, 2, 0]), pa.array(["late", "unused", "early"]))
    marks = pa.DictionaryArray.from_arrays(pa.array([1, 0, 0]), pa.array(["b", "a"]))
    data = read(store({"seq_id": ids, "t": [1.0, 2.0, 3.0], "mark": marks}))
    assert (
        data.ids == ("early", "late")
        and data.marks.names == ("a", "b")
        and data.mark_ids.tolist() == [0, 1, 1]
    )


def test_many_row_groups(tmp_path: Path) -> None:
    table = pa.table(
        {
            "seq_id": [f"s{i // 3}" for i in range(30)],
            "t": [float(i) for i in range(30)],
            "mark": [f"m{i % 4}" for i in range(30)],
        }
    )
    pq.write_table(table, tmp_path / "groups.parquet", row_group_size=4)
    data = read(tmp_path / "groups.parquet")
    assert (
        len(data) == 10
        and data.times.tolist() == list(range(30))
        and data.mark_ids.tolist() == [i % 4 for i in range(30)]
    )


def test_a_column_called_index_or_x_is_no_concern(store: Any) -> None:
    assert read(store({"x": [1], "seq_id": [0], "t": [1.0], "place": ["here"]})).events == 1


def test_sort_is_asked_for_and_stable(store: Any) -> None:
    path = store({"seq_id": [0, 1, 0, 0], "t": [5.0, 1.0, 2.0, 2.0], "mark": [0, 1, 2, 3]})
    with pytest.raises(EventDataError) as caught:
        read(path)
    expected = (
        "non-decreasing times; received {}: 2.0 after 5.0 at event 1 of sequence 0. Sort the "
        "rows, or read with sort=True."
    )
    assert str(caught.value) == "expected " + expected.format(path)
    data = read(path, sort=True)
    assert data[0].times.tolist() == [2.0, 2.0, 5.0] and data[0].marks.tolist() == [2, 3, 0]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=40
    )
)
def test_reading_equals_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("loop") / "rows.parquet"
    pq.write_table(
        pa.table(
            {
                "seq_id": [r[0] for r in rows],
                "t": [r[1] for r in rows],
                "mark": [r[2] for r in rows],
            }
        ),
        path,
        row_group_size=7,
    )
    data = read(path, sort=True, window=(0, 10))
    assert data.ids == tuple(str(i) for i in dict.fromkeys(r[0] for r in rows))
    for s in data:
        mine = sorted((r for r in rows if str(r[0]) == s.id), key=lambda r: r[1])
        assert s.times.tolist() == [r[1] for r in mine] and s.marks.tolist() == [r[2] for r in mine]


def test_the_order_by_radix_is_numpys_stable_order() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 7, 65536, 65537, 200_000, 2**31 - 1):
        code = rng.integers(0, count, 3000).astype(np.int32)
        assert stable_order(code, count).tolist() == np.argsort(code, kind="stable").tolist()


@settings(max_examples=100)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.sampled_from(["int8", "int64", "uint64", "far"]),
    st.booleans(),
)
def test_numbering_equals_a_plain_loop(values: list[int], kind: str, grouped: bool) -> None:
    if grouped:
        values = sorted(values, key=lambda v: (v * 5) % 7)
    column = np.array(values, dtype=np.int64) * (
        10**12 if kind == "far" else 42 if kind == "int8" else 1
    )
    column = column + 3 if kind == "uint64" else column
    column = column.astype("int64" if kind == "far" else kind)
    numbered = number(column)
    distinct = list(dict.fromkeys(column.tolist()))
    assert numbered.distinct.tolist() == distinct
    assert numbered.code().tolist() == [distinct.index(v) for v in column.tolist()]
    arrangement, _ = group(numbered, len(distinct) + 2)
    assert np.diff(arrangement.offsets).tolist() == [column.tolist().count(v) for v in distinct] + [
        0,
        0,
    ]
    assert arrangement.arrange(column).tolist() == sorted(column.tolist(), key=distinct.index)


def test_grouped_rows_are_not_moved(store: Any) -> None:
    numbered = number(np.repeat([9, 2, 5], 1000))
    arrangement, moved = group(numbered, 3, np.tile(np.arange(1000.0), 3))
    assert (
        arrangement.order is None
        and not moved
        and arrangement.offsets.tolist() == [0, 1000, 2000, 3000]
    )


# Windows


def test_a_log_far_from_zero_begins_at_its_first_event() -> None:
    """Serial dates of a spreadsheet: 45,292 days before the first event were not observed."""
    days = 45_292.0 + np.arange(60) / 3
    found = read_with_notes({"time": days})
    assert found.data.starts.tolist() == [45_292.0] and found.data.stops.tolist() == [days[-1]]
    assert found.notes[-1].startswith("no window in the file: events are further from 0 than from")
    assert read({"time": days - 45_290.0}).starts.tolist() == [0.0]
    assert read({"time": days[:10]}).starts.tolist() == [0.0]
    two = {"time": np.tile(days, 2), "seq_id": np.repeat([0, 1], 60)}
    assert read(two, time="time", sequence="seq_id").starts.tolist() == [0.0, 0.0]


def test_a_tiny_share_of_ties_is_not_said_to_be_none() -> None:
    times = np.append(np.arange(9000.0), 8999.0)
    assert describe_choices(read({"time": times}, window=(0, 9000))) == [
        "0.01% of gaps are zero (ties kept; --ties error|jitter|drop)"
    ]


def test_windows_are_inferred_and_said(store: Any) -> None:
    data = read(store({"seq_id": [0, 0, 1, 2, 2], "t": [1.0, 4.0, 0.0, -2.0, 3.0]}))
    assert data.inferred and data.starts.tolist() == [0, 0, -2] and data.stops.tolist() == [4, 1, 3]
    assert describe_choices(data) == [
        (
            "no windows in the file: each sequence is taken as observed from min(0, first event) "
            "to its last event; --window A B overrides"
        ),
        "1 of 3 sequences have all events at the window's start: their windows are 1 long",
    ]


def test_windows_from_columns(store: Any) -> None:
    columns = {
        "seq_id": [0, 1, 0],
        "t": [1.0, 2.0, 3.0],
        "start": [0, -1, 0],
        "stop": [5.0, 6.0, 5.0],
    }
    data = read(store(columns))
    assert (
        data.starts.tolist() == [0, -1]
        and data.stops.tolist() == [5, 6]
        and not data.inferred
        and describe_choices(data) == []
    )


def test_a_window_overrides_all(store: Any) -> None:
    metadata = {"fourpoint.windows": {"ids": ["0", "1"], "starts": 0.0, "stops": 9.0}}
    data = read(
        store({"seq_id": [0], "t": [1.0], "start": [0.0], "stop": [5.0]}, metadata), window=(-1, 24)
    )
    assert (
        data.starts.tolist() == [-1, -1] and data.stops.tolist() == [24, 24] and not data.inferred
    )


def test_metadata_wins_over_columns_and_keeps_empty_sequences(store: Any) -> None:
    metadata = {
        "fourpoint.windows": {
            "ids": ["0", "1"],
            "starts": [0, 0],
            "stops": [7, 8],
            "splits": ["train", "dev"],
            "inferred": False,
        }
    }
    data = read(store({"seq_id": [1], "t": [1.0], "start": [0.0], "stop": [5.0]}, metadata))
    assert (
        data.lengths.tolist() == [0, 1]
        and data.stops.tolist() == [7, 8]
        and data.splits is not None
        and data.splits.tolist() == ["train", "dev"]
    )


def test_a_table_without_rows_needs_windows(store: Any) -> None:
    columns = {"seq_id": pa.array([], pa.int32()), "t": pa.array([], pa.float64())}
    data = read(store(columns, {"fourpoint.windows": {"ids": ["a"], "starts": 0, "stops": 2}}))
    assert len(data) == 1 and data.events == 0


# Marks and ties


def test_integer_marks(store: Any) -> None:
    assert read(
        store({"seq_id": [0, 0], "t": [1.0, 2.0], "mark": [0, 3]})
    ).marks == MarkSpace.categorical(4)
    assert read(store({"seq_id": [0, 0], "t": [1.0, 2.0], "mark": [0, 0]})).marks == MarkSpace()
    named = read(
        store(
            {"seq_id": [0, 0], "t": [1.0, 2.0], "mark": [0, 0]},
            {"fourpoint.marks": ["fire", "flood"]},
        )
    )
    assert named.marks.names == ("fire", "flood")


def test_text_marks_are_sorted_unless_the_file_names_them(store: Any) -> None:
    columns = {"seq_id": [0, 0, 0], "t": [1.0, 2.0, 3.0], "mark": ["b", "a", "b"]}
    assert (read(store(columns)).marks.names, read(store(columns)).mark_ids.tolist()) == (
        ("a", "b"),
        [1, 0, 1],
    )
    named = read(store(columns, {"fourpoint.marks": ["c", "b", "a"]}))
    assert named.marks.names == ("c", "b", "a") and named.mark_ids.tolist() == [1, 2, 1]


def test_tie_policies(store: Any) -> None:
    path = store({"seq_id": [0] * 6, "t": [1.0, 1.0, 2.0, 3.0, 4.0, 5.0]})
    assert describe_choices(read(path, window=(0, 9))) == [
        "20.0% of gaps are zero (ties kept; --ties error|jitter|drop)"
    ]
    assert read(path, ties="drop").events == 5 and read(path, ties="jitter").tied == 0
    assert describe_choices(read(path, ties="drop", window=(0, 9)), "drop") == []
    with pytest.raises(
        EventDataError,
        match=(
            r"expected distinct times; received .*events.parquet: a repeated time 1.0 at event 1 "
            r"of sequence 0"
        ),
    ):
        read(path, ties="error")


# Roles


ROLES = [
    ("Received At|Call Type|Zip", "Received At", "Call Type", None),
    ("eventTime|userId|eventType", "eventTime", "eventType", "userId"),
    ("TIMESTAMP|CATEGORY", "TIMESTAMP", "CATEGORY", None),
    ("date|t|kind", "t", "kind", None),
    ("opened_on|label|session", "opened_on", "label", "session"),
    ("time_since_start|type_event|seq_idx", "time_since_start", "type_event", "seq_idx"),
]


@pytest.mark.parametrize(("names", "time", "mark", "sequence"), ROLES)
def test_roles_are_guessed_from_names(
    names: str, time: str, mark: str, sequence: str | None
) -> None:
    columns: Columns = {name: [1, 1, 2] for name in names.split("|")} | {time: [1.0, 2.0, 3.0]}
    found = read_with_notes(columns, Asked(window=(0, 9)))
    assert (found.roles.time, found.roles.mark, found.roles.sequence) == (time, mark, sequence)
    assert (
        found.notes[0].startswith(f"columns: time {time!r}, mark {mark!r}, ")
        and "--time --mark --sequence" in found.notes[0]
    )


def test_a_number_of_the_row_is_no_sequence_and_a_remark_no_mark() -> None:
    rows: Columns = {
        "id": [1, 2, 3, 4],
        "time": [1.0, 2.0, 3.0, 4.0],
        "event": ["w", "x", "y", "z"],
    }
    assert (len(read(rows)), read(rows).marks.count) == (1, 1)
    repeated: Columns = rows | {"id": [1, 1, 2, 2], "event": ["w", "w", "z", "z"]}
    assert (len(read(repeated)), read(repeated).marks.names) == (2, ("w", "z"))


def patients(values: list[str]) -> Columns:
    """A log of admissions, one for each of these patients."""
    return {"patient": values, "time": np.arange(len(values), dtype=np.float64).tolist()}


def test_a_column_that_is_different_in_almost_every_row_groups_no_events() -> None:
    log = patients([f"p{i}" for i in range(1500)])
    found = read_with_notes(log)
    assert len(found.data) == 1 and found.roles.sequence is None
    assert (
        "column 'patient' is different in almost every row, so it does not group events: pass "
        "--sequence patient if each is an entity"
    ) in found.notes
    asked_for = read_with_notes(log, Asked(sequence="patient"))
    assert len(asked_for.data) == 1500
    assert "different in almost" not in " ".join(asked_for.notes)
    few = patients([f"p{i}" for i in range(1500)] + ["p3", "p7", "p9"])
    assert len(read_with_notes(few).data) == 1
    short = patients([f"p{i}" for i in range(6)])
    assert len(read_with_notes(short).data) == 6  # as few rows say nothing


def test_the_next_column_that_groups_events_is_taken() -> None:
    log = patients([f"p{i}" for i in range(60)]) | {"device": [f"d{i % 5}" for i in range(60)]}
    found = read_with_notes(log)
    assert found.roles.sequence == "device"


def test_entities_with_few_events_each_are_grouped() -> None:
    """Half of the customers bought once; the first thousand rows are of different customers."""
    once = [f"c{i}" for i in range(1842)]
    again = once[::2] + once[::8]
    assert len(read_with_notes(patients(once + again)).data) == 1842
    readmitted = [f"p{i}" for i in range(500)] + [f"p{i}" for i in range(0, 500, 12)]
    assert len(read_with_notes(patients(readmitted)).data) == 500
    one_often = [f"p{i}" for i in range(500)] + ["p3"] * 5
    assert len(read_with_notes(patients(one_often)).data) == 500


def test_a_table_of_entities_makes_each_row_an_entity() -> None:
    """Patients with one admission at most, and those without any."""
    log = patients([f"p{i}" for i in range(40)])
    table = {"id": [f"p{i}" for i in range(50)]}
    assert len(read_with_notes(log, Asked(entities=table, window=(0, 50))).data) == 50


def test_numbers_with_decimal_commas_are_read(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text("time;customer;amount\n1;a;80,61\n2;b;1.020,5\n3;a;7\n4;b;1,234\n")
    asked = Asked(window=(0, 5), event_features=("amount",))
    found = read_with_notes(str(path), asked)
    assert found.data.features is not None
    assert found.data.features[:, 0].tolist() == [80.61, 1020.5, 7.0, 1.234]
    assert "numbers of 'amount' are read with decimal commas" in found.notes
    constant = {
        "time": [1.0, 2.0, 3.0],
        "user": ["a", "b", "a"],
        "plan": ["2,5", "3,75", "2,5"],
    }
    of_users = read_with_notes(constant, Asked(window=(0, 5), sequence_covariates=("plan",))).data
    assert of_users.context is not None and of_users.context.covariates is not None
    assert of_users.context.covariates.values[:, 0].tolist() == [2.5, 3.75]


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ("80,61 abc 7", "received {}: 'abc' at line 3. Convert it to numbers, or choose another"),
        ("1,234 2 17", "received {}: '1,234' at line 2. Write all numbers with a decimal point"),
        ("1,5 2 2.5", "received {}: '1,5' at line 2. Write all numbers with a decimal point"),
    ],
)
def test_text_in_place_of_numbers_is_refused(tmp_path: Path, amounts: str, message: str) -> None:
    path = tmp_path / "shop.csv"
    rows = [f"{i};{amount}" for i, amount in enumerate(amounts.split())]
    path.write_text("\n".join(["time;amount", *rows, ""]))
    with pytest.raises(EventDataError) as refused:
        read_with_notes(str(path), Asked(event_features=("amount",)))
    expected = f"expected numbers in column 'amount'; {message.format(path)}"
    assert str(refused.value).startswith(expected)


def test_a_table_without_rows_is_said_to_have_none(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("a,b\n")
    with pytest.raises(EventDataError, match="at least one event.*without rows"):
        read_with_notes(str(path))


def test_roles_can_be_named_in_any_spelling_and_taken_away() -> None:
    rows: Columns = {"User ID": [1, 1, 2], "Seen At": [1.0, 2.0, 3.0], "Type": ["a", "b", "a"]}
    assert len(read(rows, time="seen_at", sequence="user id")) == 2
    alone = read_with_notes(rows, Asked(time="Seen At", mark="none", sequence="none"))
    assert (
        len(alone.data) == 1
        and alone.data.marks.count == 1
        and not any("columns:" in note for note in alone.notes)
    )
    with pytest.raises(
        EventDataError,
        match=(
            "expected a column 'sen_at' for the time; received the table: only .* Did you mean "
            "'Seen At'?"
        ),
    ):
        read(rows, time="sen_at")
    with pytest.raises(
        EventDataError, match="expected a column 'dya' for the sequence; .* Did you mean 'day'?"
    ):
        read(rows, sequence="dya")
    with pytest.raises(
        EventDataError, match="expected a column 'x' for the mark; .*Name one of them with mark="
    ):
        read(rows, mark="x")


def test_notes_are_printed_for_tables_of_others_alone(
    store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    read(store(GOOD | {"t": [1.0, 1.0, 3.0]}))
    assert capsys.readouterr() == ("", "")
    read({"time": [1.0, 1.0, 3.0]}, window=(0, 4))
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        "columns: time 'time', no mark, one sequence (guessed; --time --mark --sequence to choose)",
        "50.0% of gaps are zero (ties kept; --ties error|jitter|drop)",
    ]


def test_our_own_numbers_are_never_taken_for_epochs(store: Any) -> None:
    far = [1.7e9, 1.8e9, 1.9e9]
    assert read(store(GOOD | {"t": far}), window=(0, 2e9)).times.tolist() == far
    assert read({"time": far}).unit == "days"
    raw = read({"time": far}, time_unit="as given", window=(0, 2e9))
    assert raw.times.tolist() == far and raw.unit == ""


def test_our_own_columns_may_hold_stamps(store: Any) -> None:
    data = read(store(GOOD | {"t": pa.array([0, 1800, 3600], pa.timestamp("s"))}))
    assert data.times.tolist() == [0, 30, 60] and data.unit == "minutes" and data.ids == ("0", "1")
    assert data.starts.tolist() == [0, 0] and data.stops.tolist() == [60, 60] and data.inferred


def test_whole_numbers_of_others_are_names_unless_they_count_from_0() -> None:
    def names(marks: list[Any]) -> tuple[str, ...]:
        return read({"time": [float(i) for i in range(len(marks))], "mark": marks}).marks.names

    assert names([0, 1, 2, 1]) == ("0", "1", "2") and names([0, 0]) == ()
    assert names([10, 9, 200, 9]) == ("9", "10", "200") and names([-1, 3]) == ("-1", "3")
    assert names([True, False]) == ("false", "true") and names([2.0, 1.0]) == ("1", "2")


def test_marks_as_a_model_knows_them() -> None:
    rows: Columns = {"time": [1.0, 2.0], "mark": ["fire", "fire"]}
    assert read(rows, marks=["air", "fire", "sea"]).mark_ids.tolist() == [1, 1]
    assert read(rows | {"mark": [5, 7]}, marks=["7", "5"]).mark_ids.tolist() == [1, 0]
    with pytest.raises(
        EventDataError,
        match=(
            "marks that the file names; received the table: 'fire' at row 0. Did you mean 'fires'?"
        ),
    ):
        read(rows, marks=["fires"])


def test_our_own_marks_go_before_those_asked_for(store: Any) -> None:
    named = store(GOOD | {"mark": [0, 1, 1]}, {"fourpoint.marks": ["fire", "flood"]})
    assert read(named, marks=["a", "b", "c"]).marks.names == ("fire", "flood")
    assert read(store(GOOD | {"mark": [0, 0, 0]}), marks=["a", "b"]).marks == MarkSpace(), (
        "no marks are not all of the first type"
    )
    assert read(store(GOOD), marks=["a", "b"]).marks == MarkSpace()
    assert read(store(GOOD | {"mark": ["b", "b", "b"]}), marks=["a", "b"]).mark_ids.tolist() == [
        1,
        1,
        1,
    ]
    with pytest.raises(
        EventDataError,
        match=(
            "expected a column of types, for 2 marks; received the table: none. Name it with mark="
        ),
    ):
        read({"time": [1.0]}, marks=["a", "b"])


def test_windows_for_all_or_each() -> None:
    rows: Columns = {"user": ["a", "b", "b"], "time": [2.0, 1.0, 5.0]}
    both = read(rows, window="all")
    assert both.starts.tolist() == [0, 0] and both.stops.tolist() == [5, 5] and both.inferred
    each = read({"user": ["a", "a", "b", "b"], "time": [2.0, 3.0, 1.0, 5.0]}, window="each")
    assert each.starts.tolist() == [2, 1] and each.stops.tolist() == [3, 5]
    with pytest.raises(UserError, match="two numbers or times, 'each' or 'all'; received 'every'"):
        read(rows, window="every")
    with pytest.raises(UserError, match="expected a window in numbers, as the times are"):
        read(rows, window=("2024-01-01", "2024-02-01"))


def test_splits_of_others_count_where_they_are_ours() -> None:
    rows: Columns = {
        "user": ["a", "a", "b"],
        "time": [1.0, 2.0, 1.0],
        "Split": ["train", "train", "dev"],
    }
    assert (
        read(rows).splits is not None
        and read(rows | {"Split": ["left", "left", "right"]}).splits is None
    )


# Errors

GOOD: Columns = {"seq_id": [0, 0, 1], "t": [1.0, 2.0, 3.0]}
BAD: list[tuple[str, Columns, dict[str, Any] | None, str]] = [
    (
        "nan",
        GOOD | {"t": [1.0, float("nan"), 3.0]},
        None,
        (
            "expected finite numbers in column 't'; received FILE: nan at row 1. Remove or correct "
            "the row."
        ),
    ),
    ("inf", GOOD | {"t": [1.0, 2.0, float("-inf")]}, None, "received FILE: -inf at row 2."),
    (
        "null time",
        GOOD | {"t": [1.0, None, 3.0]},
        None,
        "a value in every row of column 't'; received FILE: 1 null, the first at row 1. Remove or",
    ),
    (
        "null id",
        GOOD | {"seq_id": [0, None, None]},
        None,
        "column 'seq_id'; received FILE: 2 null, the first at row 1.",
    ),
    (
        "null mark",
        GOOD | {"mark": [0, 1, None]},
        None,
        "column 'mark'; received FILE: 1 null, the first at row 2.",
    ),
    (
        "null split",
        GOOD | {"split": [None, "dev", "dev"]},
        None,
        "column 'split'; received FILE: 1 null, the first at row 0.",
    ),
    (
        "text time",
        GOOD | {"t": ["1", "2", "3"]},
        None,
        (
            "expected numbers in column 't'; received FILE: values of type string. Convert it to "
            "numbers"
        ),
    ),
    (
        "float id",
        GOOD | {"seq_id": [0.5, 1.0, 2.0]},
        None,
        "expected whole numbers or text in column 'seq_id'; received FILE: values of type double.",
    ),
    (
        "float mark",
        GOOD | {"mark": [0.5, 1.0, 2.0]},
        None,
        "expected whole numbers or text in column 'mark'; received FILE: values of type double.",
    ),
    (
        "number split",
        GOOD | {"split": [0, 0, 1]},
        None,
        "expected text in column 'split'; received FILE: whole numbers. Use train, dev and test.",
    ),
    (
        "no time",
        {"seq_id": [0], "a": ["x"]},
        None,
        (
            "expected a column of times; received FILE: none among 'seq_id', 'a' looks like one. "
            "Name it, for example with time='seq_id'"
        ),
    ),
    (
        "neither",
        {"a": [0], "b": [1.0]},
        None,
        (
            "expected a column of times; received FILE: none among 'a', 'b' looks like one. Name "
            "it, for example with time='b'"
        ),
    ),
    (
        "no rows",
        {"seq_id": pa.array([], pa.int32()), "t": pa.array([], pa.float64())},
        None,
        "expected at least one event; received FILE: a table without",
    ),
    (
        "negative mark",
        GOOD | {"mark": [0, -1, 2]},
        None,
        "expected marks from 0 to 999999; received FILE: -1 at row 1. Number the types from 0",
    ),
    (
        "huge mark",
        GOOD | {"mark": pa.array([0, 1, 2**63], pa.uint64())},
        None,
        "received FILE: 9223372036854775808 at row 2.",
    ),
    (
        "unnamed mark",
        GOOD | {"mark": [0, 1, 2]},
        {"fourpoint.marks": ["a", "b"]},
        "expected marks from 0 to 1; received FILE: 2 at row 2. Correct the mark",
    ),
    (
        "unnamed text",
        GOOD | {"mark": ["fire", "fier", "x"]},
        {"fourpoint.marks": ["fire"]},
        "the file names; received FILE: 'fier' at row 1. Did you mean",
    ),
    (
        "split name",
        GOOD | {"split": ["train", "train", "valid"]},
        None,
        "train, dev or test; received FILE: 'valid' at row 2. Rename it to 'dev'.",
    ),
    (
        "split case",
        GOOD | {"split": ["Train", "Train", "dev"]},
        None,
        "received FILE: 'Train' at row 0. Rename it to 'train'.",
    ),
    (
        "split mixed",
        GOOD | {"split": ["train", "dev", "dev"]},
        None,
        "one value of column 'split' in each sequence; received FILE: train and dev in sequence 0",
    ),
    (
        "start mixed",
        GOOD | {"start": [0, -1, 0], "stop": [9, 9, 9]},
        None,
        "column 'start' in each sequence; received FILE: 0.0 and -1.0 in sequence 0 (row 1).",
    ),
    (
        "stop mixed",
        GOOD | {"start": [0, 0, 0], "stop": [9, 8, 9]},
        None,
        "column 'stop' in each sequence; received FILE: 9.0 and 8.0 in sequence 0 (row 1).",
    ),
    (
        "start alone",
        GOOD | {"start": [0, 0, 0]},
        None,
        "expected columns 'start' and 'stop' together; received FILE: only 'start'. Add the other",
    ),
    (
        "stop before start",
        GOOD | {"start": [5, 5, 0], "stop": [4, 4, 9]},
        None,
        "start < stop; received FILE: [5.0, 4.0) of sequence 0.",
    ),
    (
        "outside",
        GOOD | {"start": [0, 0, 0], "stop": [2, 2, 9]},
        None,
        "inside the window [0.0, 2.0); received FILE: 2.0 at event 1 of sequence 0. Widen",
    ),
    (
        "unsorted",
        GOOD | {"t": [2.0, 1.0, 3.0]},
        None,
        (
            "expected non-decreasing times; received FILE: 1.0 after 2.0 at event 1 of sequence "
            "0. Sort the rows"
        ),
    ),
    (
        "metadata",
        GOOD,
        {"fourpoint.windows": "{"},
        "expected a table of windows in the metadata; received FILE: a damaged one",
    ),
    (
        "metadata keys",
        GOOD,
        {"fourpoint.windows": {"ids": ["0"]}},
        "received FILE: a damaged one (KeyError('starts')). Write the file again",
    ),
    (
        "metadata length",
        GOOD,
        {"fourpoint.windows": {"ids": ["0"], "starts": [0, 0], "stops": 9}},
        "received FILE: a damaged one",
    ),
    (
        "metadata id",
        GOOD,
        {"fourpoint.windows": {"ids": ["0"], "starts": 0, "stops": 9}},
        "a window for every sequence; received FILE: none for sequence 1.",
    ),
    (
        "metadata twice",
        GOOD,
        {"fourpoint.windows": {"ids": ["0", "0", "1"], "starts": 0, "stops": 9}},
        "received FILE: 3 windows for 2 ids.",
    ),
    (
        "mark names",
        GOOD,
        {"fourpoint.marks": ["a", "a"]},
        "expected a list of mark names in the metadata 'fourpoint.marks'; received FILE: ",
    ),
    (
        "mark names text",
        GOOD,
        {"fourpoint.marks": "fire"},
        "expected a list of mark names in the metadata 'fourpoint.marks'; received FILE: b'fire'",
    ),
]


@pytest.mark.parametrize(
    ("columns", "metadata", "text"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_bad_files_are_refused(
    store: Any, columns: Columns, metadata: dict[str, Any] | None, text: str
) -> None:
    path = store(columns, metadata)
    with pytest.raises(EventDataError) as caught:
        read(path)
    message = str(caught.value)
    assert text.replace("FILE", str(path)) in message
    assert message.startswith("expected ") and caught.value.remedy.endswith((".", "?"))


def test_what_is_not_a_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "text.parquet").write_text("seq_id,t\n0,1.0\n" * 20)
    (tmp_path / "short.parquet").write_text("x")
    cases = {
        "calls.parquet": "which does not exist. Check the path.",
        "tent.parquet": "which does not exist. Did you mean text.parquet?",
        "empty.parquet": "which is empty (0 bytes). Write or download it again.",
        "text.parquet": "which cannot be read as one (Parquet magic bytes not found",
        "short.parquet": "which cannot be read as one (",
    }
    for name, text in cases.items():
        with pytest.raises(EventDataError) as caught:
            read(str(tmp_path / name))
        assert f"expected a Parquet file; received {tmp_path / name}, {text}" in str(caught.value)
    with pytest.raises(
        EventDataError,
        match="which is a folder without any. Name one file in it, or write the events as Parquet.",
    ):
        (tmp_path / "folder").mkdir()
        read(tmp_path / "folder")


def test_a_damaged_parquet_file(store: Any) -> None:
    path = store(
        {"seq_id": np.zeros(5000, dtype=int), "t": np.random.default_rng(0).random(5000).cumsum()}
    )
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(EventDataError, match="which cannot be read as one"):
        read(path)


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_arrays(
            [pa.array([0]), pa.array([1.0]), pa.array([2.0])], names=["seq_id", "t", "t"]
        ),
        tmp_path / "two.parquet",
    )
    with pytest.raises(
        EventDataError,
        match=(
            "expected one column 't'; received .*two.parquet: 2 of them. Rename or drop the others."
        ),
    ):
        read(tmp_path / "two.parquet")


@pytest.mark.parametrize("window", [(2, 1), (0, float("inf")), (1, 1), (float("nan"), 1)])
def test_a_window_is_two_numbers_in_order(store: Any, window: tuple[float, float]) -> None:
    with pytest.raises(
        UserError,
        match=(
            r"expected a window of two finite numbers, start < stop; received \(.*Pass "
            r"window=\(0, 24\), say"
        ),
    ):
        read(store(GOOD), window=window)


def test_events_outside_the_given_window(store: Any) -> None:
    with pytest.raises(
        EventDataError,
        match=(
            r"times inside the window \[0.0, 2.5\); received .*events.parquet: 3.0 at event 0 of "
            r"sequence 1"
        ),
    ):
        read(store(GOOD), window=(0, 2.5))


def test_an_unknown_tie_policy(store: Any) -> None:
    with pytest.raises(
        EventDataError,
        match="expected a tie policy keep, error, jitter or drop; received .*'shake'",
    ):
        read(store(GOOD), ties="shake")


def test_rows_removed_behind_our_back(tmp_path: Path) -> None:
    write(
        Dataset.from_sequences(
            [
                Sequence([1.0, 2.0], start=0, stop=3, id="a"),
                Sequence([1.0], start=0, stop=3, id="b"),
            ]
        ),
        tmp_path / "all.parquet",
    )
    table = pq.read_table(tmp_path / "all.parquet")
    pq.write_table(table.slice(0, 2), tmp_path / "some.parquet")
    with pytest.raises(
        EventDataError,
        match=(
            "expected 3 rows, as the file's table of windows says; received .*some.parquet: 2 "
            "rows. Write the file again"
        ),
    ):
        read(tmp_path / "some.parquet")


# Writing


@st.composite
def anything(draw: st.DrawFn) -> Dataset:
    """A data set with any ids, windows, marks and splits."""
    ids = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
            min_size=1,
            max_size=6,
            unique=True,
        )
    )
    names = draw(
        st.one_of(
            st.none(),
            st.lists(st.text("abcö ,\"'", max_size=4), min_size=1, max_size=3, unique=True),
        )
    )
    space = MarkSpace.of(names)
    inferred = draw(st.booleans())
    sequences = []
    for id in ids:
        times = sorted(
            draw(
                st.lists(
                    st.floats(-1e9, 1e9).filter(lambda t: t == 0 or abs(t) > 1e-12),
                    min_size=int(inferred),
                    max_size=6,
                )
            )
        )
        marks = draw(
            st.lists(st.integers(0, space.count - 1), min_size=len(times), max_size=len(times))
        )
        window: dict[str, float] = (
            {} if inferred else dict(start=-1e9, stop=draw(st.floats(1.1e9, 1e12)))
        )
        sequences.append(Sequence(times, marks, space=space, id=id, **window))
    data = Dataset.from_sequences(
        sequences, unit=draw(st.sampled_from(["", "hours"])), name="drawn"
    )
    splits = draw(
        st.one_of(
            st.none(), st.lists(st.sampled_from(SPLITS), min_size=len(ids), max_size=len(ids))
        )
    )
    object.__setattr__(data, "splits", None if splits is None else np.array(splits))
    return data


@settings(max_examples=60)
@given(anything())
def test_a_round_trip_is_exact(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> None:
    path = tmp_path_factory.mktemp("trip") / "data.parquet"
    write(data, path)
    again = read(path)
    for name in ("times", "mark_ids", "offsets", "starts", "stops"):
        assert (
            getattr(again, name).tobytes()
            == getattr(data, name).astype(getattr(again, name).dtype).tobytes()
        ), name
    for name in ("ids", "marks", "inferred", "unit", "name"):
        assert getattr(again, name) == getattr(data, name), name
    assert (again.splits is None) == (data.splits is None)
    assert again.splits is None or again.splits.tolist() == (
        data.splits.tolist() if data.splits is not None else None
    )


def test_what_is_written_is_plain_parquet(tmp_path: Path) -> None:
    data = Dataset.from_sequences(
        [
            Sequence([1.0, 2.0], [1, 0], start=0, stop=3, id="a", space=2),
            Sequence([], start=0, stop=4, id="b", space=2),
        ]
    )
    write(data, tmp_path / "data.parquet")
    table = pq.read_table(tmp_path / "data.parquet")
    assert table.to_pydict() == {"seq_id": ["a", "a"], "t": [1.0, 2.0], "mark": [1, 0]}
    windows = json.loads(table.schema.metadata[b"fourpoint.windows"])
    assert (
        windows["ids"] == ["a", "b"] and windows["starts"] == 0.0 and windows["stops"] == [3.0, 4.0]
    )
    assert json.loads(table.schema.metadata[b"fourpoint.marks"]) == ["0", "1"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset.from_sequences([Sequence([1.0], start=0, stop=2)])
    write(data, tmp_path / "data.parquet")
    before = (tmp_path / "data.parquet").read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(data, tmp_path / "data.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["data.parquet"] and (
        tmp_path / "data.parquet"
    ).read_bytes() == before


def test_write_errors(tmp_path: Path) -> None:
    data = Dataset.from_sequences([Sequence([1.0], start=0, stop=2)])
    with pytest.raises(
        UserError, match="expected a path in an existing folder; received .*Make the folder first"
    ):
        write(data, tmp_path / "no" / "data.parquet")
    with pytest.raises(
        UserError, match="expected the path of a file; received .*which is a folder"
    ):
        write(data, tmp_path)
    with pytest.raises(
        EventDataError,
        match=(
            "expected sequences with distinct ids; received 2 sequences with 1 ids. Give each "
            "its own id"
        ),
    ):
        write(data.select([0, 0]), tmp_path / "data.parquet")
    assert list(tmp_path.iterdir()) == []


# Real data


def test_real_files_are_read(shared_data: Path) -> None:
    sizes = {
        "taxi": (2000, 74078),
        "retweet": (4000, 433986),
        "pems_congestion": (37, 1101),
        "readmission": (99, 353),
    }
    for path in sorted(shared_data.glob("*.parquet")):
        if path.stem in ("japan_25", "sanjac_10"):  # one long log, whose parts are split by event
            log = read(path)
            assert log.splits is None and log.log is not None and len(log.log.split_at) == 2
            assert 0 < log.scored_events < log.events
            continue
        data = read(path)
        assert data.name == path.stem and data.splits is not None and data.inferred
        assert [len(data.part(name)) > 0 for name in SPLITS] == [True] * 3
        if path.stem in sizes:
            assert (len(data), data.events) == sizes[path.stem]


def test_real_ties_and_marks(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "pems_congestion.parquet").exists():
        pytest.skip("pems_congestion is not among the real data sets")
    data = read(shared_data / "pems_congestion.parquet")
    assert data.marks.count == 16 and 0.15 < data.tied < 0.25 and len(describe_choices(data)) >= 2
    assert read(shared_data / "pems_congestion.parquet", ties="jitter").tied == 0
    write(data, tmp_path / "again.parquet")
    again = read(tmp_path / "again.parquet")
    assert (again.times == data.times).all() and again.ids == data.ids and again.inferred


def test_a_log_of_one_time_asks_for_its_period() -> None:
    notes = read_with_notes({"time": ["2024-03-01 10:00:00"]}).notes
    assert "taken as observed for 1 second, since all events have one time" in "".join(notes)


def test_a_missing_type_in_encoded_columns_is_named() -> None:
    rows = range(300)
    kinds = [None if i % 11 == 0 else "abc"[i % 3] for i in rows]
    table = pa.table(
        {
            "time": np.arange(300.0),
            "user": pa.array([f"u{i % 30}" for i in rows]).dictionary_encode(),
            "type": pa.array(kinds).dictionary_encode(),
        }
    )
    with pytest.raises(EventDataError, match="a value in every row of column 'type'"):
        read(table)
