"""The formats of the field: exact round trips, files as others write them, guesses, and refusal of
everything else.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from fourpoint.data.datasets import load
from fourpoint.data.formats import (
    FORMATS,
    convert,
    du,
    easytpp,
    guess_source,
    guess_target,
    hotpp,
    pickles,
    tick,
)
from fourpoint.events import SPLITS, Dataset, EventDataError, MarkSpace, Sequence, UserError

FILES = {
    "easytpp": "a.json",
    "pickle": "a.pkl",
    "du": "time-a.txt",
    "tick": "a.npz",
    "hotpp": "a.parquet",
    "fourpoint": "a.parquet",
}
FOLDERS = ("easytpp", "pickle", "du", "hotpp")


def small(**fields: Any) -> Dataset:
    """Two sequences of three named types, one of them without events."""
    space = MarkSpace.categorical(["fire", "flood", "ruhe & öl"])
    first = Sequence(
        [0.1, 0.1, 1 / 3, 2.0], [2, 0, 1, 2], start=-1.5, stop=3.0, space=space, id="mon"
    )
    second = Sequence([], start=0.0, stop=4.0, space=space, id="tue")
    return replace(Dataset.from_sequences([first, second], unit="hours", name="small"), **fields)


def same(one: Dataset, two: Dataset) -> None:
    for name in ("times", "mark_ids", "offsets", "starts", "stops"):
        assert (
            getattr(one, name).tobytes()
            == getattr(two, name).astype(getattr(one, name).dtype).tobytes()
        ), name
    for name in ("ids", "marks", "inferred", "unit", "name"):
        assert getattr(one, name) == getattr(two, name), name
    assert (None if one.splits is None else one.splits.tolist()) == (
        None if two.splits is None else two.splits.tolist()
    )


# Round trips


@st.composite
def anything(draw: st.DrawFn) -> Dataset:
    """A data set with any ids, windows, marks, ties and splits; splits in the order in which
    folders are read.
    """
    ids = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    names = draw(
        st.one_of(
            st.none(),
            st.lists(st.text("abcö ,\"'\n", max_size=4), min_size=1, max_size=3, unique=True),
        )
    )
    space, inferred = MarkSpace.of(names), draw(st.booleans())
    sequences = []
    for id in ids:
        # Of times next to 0 the window that they imply is too short to be taken.
        any_time = st.floats(-1e9, 1e9).filter(lambda t: t == 0 or abs(t) > 1e-12)
        times = sorted(
            draw(
                st.lists(
                    st.sampled_from([0.0, 0.5, -0.25, 7.0]) | any_time,
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
    return replace(
        data, splits=None if splits is None else np.array(sorted(splits, key=SPLITS.index))
    )


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40)
@given(data=anything())
def test_a_round_trip_through_a_file_is_exact(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: Dataset
) -> None:
    path = tmp_path_factory.mktemp("trip") / FILES[name]
    read, write = FORMATS[name].read, FORMATS[name].write
    write(data, path)
    same(read(path), data)


@pytest.mark.parametrize("name", FOLDERS)
@settings(max_examples=25)
@given(data=anything())
def test_a_round_trip_through_a_folder_is_exact(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: Dataset
) -> None:
    path = tmp_path_factory.mktemp("trip") / "folder"
    read, write = FORMATS[name].read, FORMATS[name].write
    write(data, path)
    same(read(path), data)


@settings(max_examples=40)
@given(data=anything())
def test_a_round_trip_through_rows_in_memory_is_exact(data: Dataset) -> None:
    rows = easytpp.to_rows(data)
    same(easytpp.from_rows(rows), data)
    same(easytpp.from_rows(pa.Table.from_pylist(rows)), data)


@settings(max_examples=40)
@given(data=anything())
def test_a_round_trip_through_tick_in_memory_keeps_times_and_names(data: Dataset) -> None:
    timestamps, ends = tick.to_tick(
        replace(data, starts=data.starts - data.starts, inferred=True)
        if (data.times >= 0).all()
        else data,
        True,
    )
    assert (
        len(timestamps) == len(data)
        and ends.tolist() == (data.stops - (0 if (data.times >= 0).all() else data.starts)).tolist()
    )
    for sequence, cells in zip(data, timestamps, strict=True):
        for mark, cell in enumerate(cells):
            shift = 0.0 if (data.times >= 0).all() else sequence.start
            assert cell.tolist() == (sequence.times[sequence.marks == mark] - shift).tolist()


def test_real_sets_survive_every_format(tmp_path: Path) -> None:
    data = load("nyc_delays")
    order = (
        np.argsort([SPLITS.index(s) for s in data.splits.tolist()], kind="stable")
        if data.splits is not None
        else range(len(data))
    )
    data = data.select(order)
    for name, file in FILES.items():
        read, write = FORMATS[name].read, FORMATS[name].write
        write(data, tmp_path / file)
        same(read(tmp_path / file), data)


def test_without_the_annex_windows_are_inferred_and_types_numbered(tmp_path: Path) -> None:
    data = small(splits=np.array(["train", "test"]))
    easytpp.write(data, tmp_path / "a.json")
    rows = [json.loads(line) for line in (tmp_path / "a.json").read_text().splitlines()]
    assert list(rows[0]) == [
        "dim_process",
        "seq_idx",
        "seq_len",
        "time_since_start",
        "time_since_last_event",
        "type_event",
        "fourpoint",
    ]
    for row in rows:
        del row["fourpoint"]
    (tmp_path / "b.json").write_text(json.dumps(rows))
    again = easytpp.read(tmp_path / "b.json")
    assert (
        again.inferred
        and again.starts.tolist() == [0, 0]
        and again.stops.tolist() == [2.0, 1.0]
        and again.splits is None
    )
    assert (
        again.marks.names == ("0", "1", "2")
        and again.times.tolist() == data.times.tolist()
        and again.ids == ("0", "1")
    )


def test_an_annex_that_no_longer_fits_is_refused(tmp_path: Path) -> None:
    easytpp.write(small(), tmp_path / "a.json")
    rows = [json.loads(line) for line in (tmp_path / "a.json").read_text().splitlines()]
    (tmp_path / "a.json").write_text(json.dumps(rows[:1]))
    with pytest.raises(
        EventDataError,
        match=(
            "2 sequences with 4 events, as the annex says; received .*a.json: 1 sequences with 4 "
            "events"
        ),
    ):
        easytpp.read(tmp_path / "a.json")
    for text in (
        "{",
        "[]",
        '{"ids":["a"]}',
        '{"ids":["a","b"],"starts":[1,2,3],"stops":0,"marks":[],"splits":null}',
    ):
        (tmp_path / "a.json").write_text(json.dumps([rows[0] | {"fourpoint": text}, rows[1]]))
        with pytest.raises(
            EventDataError, match="an annex that fourpoint wrote; received .*a.json: a damaged one"
        ):
            easytpp.read(tmp_path / "a.json")


# EasyTPP

ROWS = [
    {
        "dim_process": 3,
        "seq_idx": 4,
        "seq_len": 2,
        "time_since_start": [0, 0.5],
        "time_since_last_event": [0, 0.5],
        "type_event": [2, 0],
    },
    {
        "dim_process": 3,
        "seq_idx": 9,
        "seq_len": 1,
        "time_since_start": [1.25],
        "time_since_last_event": [1.25],
        "type_event": [1],
    },
]


def test_easytpp_files_as_others_write_them(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(json.dumps(ROWS).encode()))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet", row_group_size=1)
    for name in ("list.json", "lines.json", "packed.json.gz", "rows.parquet"):
        data = easytpp.read(tmp_path / name)
        assert (
            data.times.tolist() == [0, 0.5, 1.25]
            and data.mark_ids.tolist() == [2, 0, 1]
            and data.offsets.tolist() == [0, 2, 3]
        )
        assert (
            data.ids == ("4", "9")
            and data.marks.names == ("0", "1", "2")
            and data.inferred
            and data.splits is None
        )


def test_easytpp_folders_of_splits(tmp_path: Path) -> None:
    for name in ("train", "validation", "test"):
        (tmp_path / f"{name}.json").write_text(json.dumps(ROWS))
    data = easytpp.read(tmp_path)
    assert (
        data.splits is not None
        and data.splits.tolist() == ["train"] * 2 + ["dev"] * 2 + ["test"] * 2
    )
    assert data.ids == ("train-4", "train-9", "dev-4", "dev-9", "test-4", "test-9")
    (tmp_path / "valid.json").write_text(json.dumps(ROWS))
    with pytest.raises(
        EventDataError,
        match=(
            "one file each for train, dev and test; received .*validation.json, besides valid.json"
        ),
    ):
        easytpp.read(tmp_path)


def test_rows_by_split_in_memory() -> None:
    data = easytpp.from_rows({"train": ROWS, "validation": pa.Table.from_pylist(ROWS)})
    assert data.splits is not None and data.splits.tolist() == ["train", "train", "dev", "dev"]
    assert easytpp.from_rows({"time_since_start": [[1.0]], "type_event": [[0]]}).times.tolist() == [
        1.0
    ]
    with pytest.raises(
        EventDataError, match="splits called train, dev or test; received rows: 'extra'"
    ):
        easytpp.from_rows({"extra": ROWS})
    with pytest.raises(
        EventDataError,
        match="rows, a table or a Hugging Face data set; received rows: a value of type int",
    ):
        easytpp.from_rows(3)


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no rows": ([], "at least one event; received FILE: no sequences"),
    "number": ([3], "received FILE: a value of type int at row 0"),
    "no times": (
        [{"type_event": [1]}],
        "a list 'time_since_start' in every row; received FILE: no such field at row 0",
    ),
    "text": (
        [ROWS[0], {"time_since_start": "1", "type_event": [1]}],
        "received FILE: a value of type str at row 1",
    ),
    "text inside": (
        [{"time_since_start": ["1"], "type_event": [1]}],
        "numbers in 'time_since_start'; received FILE: a value of type str",
    ),
    "true": (
        [{"time_since_start": [True], "type_event": [1]}],
        "received FILE: a value of type bool at row 0",
    ),
    "null": (
        [{"time_since_start": [None], "type_event": [1]}],
        "received FILE: a value of type NoneType at row 0",
    ),
    "lengths": (
        [{"time_since_start": [1, 2], "type_event": [1]}],
        "'type_event' to agree with the number of times; received FILE: 1 for 2",
    ),
    "stated": (
        [ROWS[0] | {"seq_len": 7}],
        "'seq_len' to agree with the number of times; received FILE: 7 for 2 times at row 0",
    ),
    "half type": (
        [{"time_since_start": [1.0], "type_event": [0.5]}],
        "whole numbers for type_event; received FILE: 0.5 at event 0 of",
    ),
    "negative": (
        [{"time_since_start": [1.0], "type_event": [-1]}],
        "marks from 0 to 0; received FILE: -1 at event 0 of sequence 0",
    ),
    "beyond": (
        [{"time_since_start": [1.0], "type_event": [3], "dim_process": 3}],
        "marks from 0 to 2; received FILE: 3 at event 0",
    ),
    "many": (
        [{"time_since_start": [1.0], "type_event": [10**9]}],
        "between 1 and 1,000,000 types; received FILE: 1,000,000,001",
    ),
    "huge": (
        [{"time_since_start": [10**400], "type_event": [0]}],
        "received FILE: one too large for a float",
    ),
    "dims": (
        [ROWS[0], ROWS[1] | {"dim_process": 4}],
        "one value of 'dim_process' in all rows; received FILE: [3, 4]",
    ),
    "dim": (
        [ROWS[0] | {"dim_process": 0}],
        "a whole number from 1 for 'dim_process'; received FILE",
    ),
    "unsorted": (
        [{"time_since_start": [2.0, 1.0], "type_event": [0, 0]}],
        "non-decreasing times; received FILE: 1.0 after 2.0 at event 1",
    ),
    "gaps": (
        [ROWS[0] | {"time_since_last_event": [0, 5.0]}],
        (
            "'time_since_last_event' to be the differences of 'time_since_start'; received FILE: "
            "5.0 where the times differ by 0.5, at event 1"
        ),
    ),
    "no events": (
        [{"time_since_start": [], "type_event": []}],
        "at least one event; received FILE: only empty sequences, without windows",
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_refused(tmp_path: Path, case: str) -> None:
    rows, text = BAD_ROWS[case]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    with pytest.raises(EventDataError) as caught:
        easytpp.read(tmp_path / "rows.json")
    assert text.replace("FILE", str(tmp_path / "rows.json")) in str(caught.value)


def test_json_faults_have_a_line(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text(json.dumps(ROWS[0]) + "\n{]\n")
    with pytest.raises(EventDataError, match="lines.jsonl, which cannot be read as one .line 2: "):
        easytpp.read(tmp_path / "lines.jsonl")
    (tmp_path / "nan.json").write_text('[{"time_since_start": [NaN], "type_event": [0]}]')
    with pytest.raises(
        EventDataError, match="finite times; received .*nan.json: nan at event 0 of sequence 0"
    ):
        easytpp.read(tmp_path / "nan.json")
    (tmp_path / "deep.json").write_text(
        '[{"time_since_start": ' + "[" * 100_000 + "]" * 100_000 + "}]"
    )
    with pytest.raises(EventDataError, match="deep.json, which cannot be read as one .*recursion"):
        easytpp.read(tmp_path / "deep.json")


def test_columns_of_parquet_rows(tmp_path: Path) -> None:
    cases = {
        "columns 'time_since_start' and 'type_event'; received .*: no 'type_event'": {
            "time_since_start": [[1.0]]
        },
        "a list of numbers in every row of column 'type_event'; received .*int64": {
            "time_since_start": [[1.0]],
            "type_event": [1],
        },
        "a list in every row of column 'type_event'; received .*: none at row 1": {
            "time_since_start": [[1.0], [2.0]],
            "type_event": [[1], None],
        },
        "lists of numbers in column 'type_event'; received .*lists of string": {
            "time_since_start": [[1.0]],
            "type_event": [["a"]],
        },
        "lists without holes in column 'time_since_start'; received .*: 1 null": {
            "time_since_start": [[1.0, None]],
            "type_event": [[1, 1]],
        },
    }
    for text, columns in cases.items():
        pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
        with pytest.raises(EventDataError, match=text):
            easytpp.read(tmp_path / "rows.parquet")


EASY = os.environ.get("FOURPOINT_EASYTPP_PYTHON", "")


def easytpp_python() -> str:
    """A Python that has easy-tpp: this one, or the one that FOURPOINT_EASYTPP_PYTHON names."""
    import importlib.util
    import sys

    if EASY:
        return EASY
    if importlib.util.find_spec("easy_tpp") is None:
        pytest.skip(
            "easy-tpp is not installed here; set FOURPOINT_EASYTPP_PYTHON to a Python that "
            "has it (extra: bench)"
        )
    return sys.executable


LOADER = """
import json, sys
from easy_tpp.config_factory import DataConfig
from easy_tpp.preprocess.data_loader import TPPDataLoader
folder, ending, types = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = {"train_dir": "train", "valid_dir": "dev", "test_dir": "test"}
files = {name: f"{folder}/{split}.{ending}" for name, split in names.items()}
specs = {"num_event_types": types, "pad_token_id": types, "padding_side": "right"}
config = files | {"data_format": ending, "data_specs": specs}
loader = TPPDataLoader(DataConfig.parse_from_yaml_config(config), batch_size=4)
found = {}
for split in ("train", "dev", "test"):
    data = loader.build_input(loader.data_config.get_data_dir(split), ending, split)
    found[split] = {key: [list(map(float, s)) for s in values] for key, values in data.items()}
    batches = loader.get_loader(split)
    found[split]["batches"] = [int(batch["type_seqs"].shape[0]) for batch in batches]
print("JSON" + json.dumps(found))
"""


@pytest.mark.parametrize(("name", "format"), [("easytpp", "json"), ("pickle", "pkl")])
def test_what_we_write_loads_in_easytpp(tmp_path: Path, name: str, format: str) -> None:
    python = easytpp_python()
    data = load("nyc_delays").select([0, 1, 2, 3, 4, 5])
    data = replace(data, splits=np.array(["train", "train", "train", "dev", "test", "test"]))
    FORMATS[name].write(data, tmp_path / "set")
    environment = os.environ | {
        "HF_HOME": str(tmp_path / "cache"),
        "HF_DATASETS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [python, "-c", LOADER, str(tmp_path / "set"), format, str(data.marks.count)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.split("JSON", 1)[1])
    for split in SPLITS:
        part = data.part(split)
        assert found[split]["time_seqs"] == [s.times.tolist() for s in part]
        assert found[split]["type_seqs"] == [s.marks.tolist() for s in part]
        assert sum(found[split]["batches"]) == len(part)
        assert found[split]["time_delta_seqs"] == [
            np.diff(s.times, prepend=s.start).tolist() for s in part
        ]


WRITER = """
import sys, datasets
from easy_tpp.utils import save_pickle
from fourpoint.data.formats import easytpp
folder = sys.argv[1]
rows = [
    {
        "dim_process": 3,
        "seq_idx": i,
        "seq_len": 2,
        "time_since_start": [0.0, 0.1 + i],
        "time_since_last_event": [0.0, 0.1 + i],
        "type_event": [2, i % 3],
    }
    for i in range(5)
]
found = datasets.Dataset.from_list(rows)
found.to_json(f"{folder}/train.json")
found.to_parquet(f"{folder}/test.parquet")
keys = ("time_since_start", "time_since_last_event", "type_event")
events = [[dict(zip(keys, values)) for values in zip(*(row[key] for key in keys))] for row in rows]
save_pickle(f"{folder}/dev.pkl", {"dim_process": 3, "dev": events})
times = [t for row in rows for t in row["time_since_start"]]
assert easytpp.from_rows(found).times.tolist() == times
both = datasets.DatasetDict(train=found, validation=found)
assert set(easytpp.from_rows(both).splits) == {"train", "dev"}
"""


def test_what_easytpp_and_hugging_face_write_loads_here(tmp_path: Path, root: Path) -> None:
    environment = os.environ | {
        "HF_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(root / "src"),
        "OMP_NUM_THREADS": "1",
    }
    command = [easytpp_python(), "-c", WRITER, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    for file, split, read in (
        ("train.json", "train", easytpp.read),
        ("test.parquet", "test", easytpp.read),
        ("dev.pkl", "dev", pickles.read),
    ):
        data = read(tmp_path / file)
        assert (
            data.times.tolist() == [t for i in range(5) for t in (0.0, 0.1 + i)]
            and data.marks.count == 3
        )
        assert data.mark_ids.tolist() == [m for i in range(5) for m in (2, i % 3)]
        assert data.splits is not None and set(data.splits.tolist()) == {split}


def test_easytpp_notes() -> None:
    import tempfile

    notes = easytpp.write(
        small(splits=np.array(["train", "test"])), Path(tempfile.mkdtemp()) / "a.json"
    )
    assert [note.split(":")[0] for note in notes] == [
        "EasyTPP reads only times and types",
        "EasyTPP takes a file as one split",
        "1 sequences have no events, which EasyTPP's models cannot take",
    ]


# Du et al.


def pair(folder: Path, name: str, times: str, events: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"time-{name}.txt").write_text(times)
    (folder / f"event-{name}.txt").write_text(events)
    return folder / f"time-{name}.txt"


def test_du_files_as_du_writes_them(tmp_path: Path) -> None:
    path = pair(
        tmp_path,
        "1-train",
        "0 0.2307692307692308 0.2884615384615384 \n0 3.634615384615385 \r\n",
        "2 2 12 \n14 14 \n",
    )
    data = du.read(path)
    assert data.times.tolist() == [
        0,
        0.2307692307692308,
        0.2884615384615384,
        0,
        3.634615384615385,
    ] and data.offsets.tolist() == [0, 3, 5]
    assert [data.marks.names[i] for i in data.mark_ids] == [
        "2",
        "2",
        "12",
        "14",
        "14",
    ] and data.marks.names[0] == "1"
    assert data.splits is not None and data.splits.tolist() == ["train", "train"] and data.inferred
    same(du.read(tmp_path / "event-1-train.txt"), replace(data, name="event-1-train"))


def test_du_types_from_zero(tmp_path: Path) -> None:
    data = du.read(pair(tmp_path, "x", "1 2\n", "0 1\n"))
    assert data.marks.names == ("0", "1") and data.mark_ids.tolist() == [0, 1]


def test_du_folders(tmp_path: Path) -> None:
    folder = tmp_path / "so"
    pair(folder, "1-train", "1 2\n", "1 2\n")
    pair(folder, "1-test", "1\n3\n", "3\n1\n")
    data = du.read(folder)
    assert (
        data.splits is not None
        and data.splits.tolist() == ["train", "test", "test"]
        and data.marks.names == ("1", "2", "3")
    )
    pair(folder, "2-train", "1 2\n", "1 2\n")
    with pytest.raises(
        EventDataError,
        match="one pair per split; received .*time-1-test.txt, time-1-train.txt, time-2-train.txt",
    ):
        du.read(folder)
    same(du.read(folder / "time-1-*.txt"), replace(data, name="time-1-*"))
    with pytest.raises(EventDataError, match="which holds none"):
        du.read(folder / "time-9-*.txt")


def test_du_faults_have_a_line(tmp_path: Path) -> None:
    cases = {
        ("1 2\n3 x\n", "1 1\n1 1\n"): "a file of times: finite numbers; received FILE, line 2: 'x'",
        ("1 2\n3 nan\n", "1 1\n1 1\n"): "finite numbers; received FILE, line 2: 'nan'",
        (
            "1 2\n\n3\n",
            "1 1\n\n1 1\n",
        ): "as many types as times in every line; received 1 times and 2 types in line 3 of FILE",
        ("1 2\n", "1 1\n1\n"): "with equally many lines; received 1 lines in FILE and 2 in",
        ("1 \xe4\n", "1 1\n"): "a file of times; received FILE, line 1: the byte",
        (
            "1 2\n",
            "1 1.5\n",
        ): "whole numbers for types in event-a.txt; received FILE: 1.5 at event 1 of sequence 0",
        (
            "2 1\n",
            "1 1\n",
        ): "non-decreasing times; received FILE: 1.0 after 2.0 at event 1 of sequence 0",
        ("\n\n", "\n\n"): "at least one event; received FILE: only empty sequences",
    }
    for (times, events), text in cases.items():
        path = pair(tmp_path, "a", times, events)
        with pytest.raises(EventDataError) as caught:
            du.read(path)
        assert text.replace("FILE", str(path)) in str(caught.value)
    (tmp_path / "event-a.txt").unlink()
    with pytest.raises(EventDataError, match="event-a.txt, which does not exist"):
        du.read(tmp_path / "time-a.txt")
    (tmp_path / "other.txt").write_text("1")
    with pytest.raises(EventDataError, match="a name that begins with time or event"):
        du.read(tmp_path / "other.txt")


# tick


def test_tick_files_as_users_save_them(tmp_path: Path) -> None:
    one = [np.array([0.5, 2.0]), np.array([1.25])]
    many = [one, [np.array([]), np.array([0.75])]]
    np.savez(tmp_path / "one.npz", *one)
    ragged = np.empty(2, dtype=object)
    ragged[:] = many
    np.save(tmp_path / "many.npy", ragged)
    np.savez(tmp_path / "many.npz", timestamps=ragged, end_times=np.array([3.0, 4.0]))
    (tmp_path / "many.pkl").write_bytes(pickle.dumps(many))
    data = tick.read(tmp_path / "one.npz")
    assert (
        data.times.tolist() == [0.5, 1.25, 2.0]
        and data.mark_ids.tolist() == [0, 1, 0]
        and data.inferred
        and data.stops.tolist() == [2.0]
    )
    for name in ("many.npy", "many.npz", "many.pkl"):
        data = tick.read(tmp_path / name)
        assert (
            data.times.tolist() == [0.5, 1.25, 2.0, 0.75]
            and data.mark_ids.tolist() == [0, 1, 0, 1]
            and data.lengths.tolist() == [3, 1]
        )
    assert (
        tick.read(tmp_path / "many.npz").stops.tolist() == [3.0, 4.0]
        and not tick.read(tmp_path / "many.npz").inferred
    )


def test_tick_in_memory() -> None:
    timestamps, ends = tick.to_tick(small(), shift=True)
    assert [[len(cell) for cell in one] for one in timestamps] == [
        [1, 1, 2],
        [0, 0, 0],
    ] and ends.tolist() == [4.5, 4.0]
    with pytest.raises(
        UserError,
        match=(
            "windows that start at 0, as tick takes them; received -1.5 for sequence mon. Pass "
            "shift=True"
        ),
    ):
        tick.to_tick(small())
    data = tick.from_tick([[np.array([1.0]), np.array([1.0])]], names=["a", "b"])
    assert data.mark_ids.tolist() == [0, 1] and data.marks.names == ("a", "b")
    with pytest.raises(
        EventDataError,
        match="one end time per realisation; received timestamps: 2 for 1 realisations",
    ):
        tick.from_tick([[np.array([1.0])]], end_times=[1.0, 2.0])
    for bad in (
        [],
        3,
        [[np.array([1.0])], []],
        [[np.array(["a"])]],
        [[["a"]]],
        [3.0],
        [[np.array([1.0])], 3],
    ):
        with pytest.raises(EventDataError, match="tick's realisations"):
            tick.from_tick(bad)


def test_tick_files_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"

    def saved(**arrays: Any) -> Path:
        with path.open("wb") as file:
            np.savez(file, **arrays)
        return path

    good: dict[str, Any] = dict(
        timestamps=np.array([1.0, 2.0]),
        realisation=np.array([0, 1]),
        type=np.array([1, 0]),
        types=np.array(2),
    )
    good |= dict(end_times=np.array([3.0, 4.0]))
    assert tick.read(saved(**good)).mark_ids.tolist() == [1, 0] and tick.read(
        saved(**good)
    ).stops.tolist() == [3.0, 4.0]
    for change in (
        dict(realisation=np.array([1, 0])),
        dict(realisation=np.array([0, 2])),
        dict(realisation=np.array([-1, 0])),
        dict(realisation=np.array([0.0, 1.0])),
        dict(realisation=np.array([0])),
        dict(type=np.array([0, 2])),
        dict(types=np.array(0)),
        dict(types=np.array([2, 2])),
        dict(types=np.array(2.0)),
        dict(end_times=np.array([0.5, 4.0])),
        dict(end_times=np.array([[3.0, 4.0]])),
        dict(timestamps=np.array(["a", "b"])),
        dict(fourpoint=np.array("{")),
    ):
        with pytest.raises(EventDataError, match="a.npz"):
            tick.read(saved(**(good | change)))


def header(shape: str, dtype: str = "<f8") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "member",
    [
        header("(1000000000000,)"),
        header("(1000000000000000, 0)"),
        header("(-1, 0)"),
        header("(2,)", "<V8"),
        b"\x93NUMPY\x09\x09",
        b"",
    ],
)
def test_arrays_that_announce_more_than_they_have(tmp_path: Path, member: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("arr_0.npy", member)
    (tmp_path / "a.npy").write_bytes(member or b"\x93NUMPY")
    for name in ("a.npz", "a.npy"):
        with pytest.raises(EventDataError, match=name):
            tick.read(tmp_path / name)


@pytest.fixture
def frugal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mebibyte is all that a small file may unfold into, so that a bomb can be a small one."""
    monkeypatch.setenv("FOURPOINT_MEMORY_LIMIT", "1MiB")


def test_an_archive_that_unfolds_without_end(tmp_path: Path, frugal: None) -> None:
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("arr_0.npy", "w") as member,
    ):
        member.write(bytes(2**22))
    with pytest.raises(EventDataError, match="a.npz, whose .* expand into 4.19 MB or more"):
        tick.read(tmp_path / "a.npz")


# HoTPP


def test_hotpp_files_as_hotpp_writes_them(tmp_path: Path) -> None:
    table = pa.table(
        {"id": [7, 8], "timestamps": [[1.0, 2.5], [0.5]], "labels": [[1, 0], [1]], "target": [0, 1]}
    )
    pq.write_table(table, tmp_path / "one.parquet")
    data = hotpp.read(tmp_path / "one.parquet")
    assert (
        data.ids == ("7", "8")
        and data.times.tolist() == [1.0, 2.5, 0.5]
        and data.mark_ids.tolist() == [1, 0, 1]
        and data.inferred
    )
    folder = tmp_path / "set"
    for name in ("train.parquet", "val.parquet", "test.parquet"):
        (folder / name).mkdir(parents=True)
        for part in range(2):
            pq.write_table(table.slice(part, 1), folder / name / f"part-0000{part}.snappy.parquet")
        (folder / name / "_SUCCESS").touch()
    data = hotpp.read(folder)
    assert (
        data.splits is not None
        and data.splits.tolist() == ["train"] * 2 + ["dev"] * 2 + ["test"] * 2
    )
    assert data.ids == ("train-7", "train-8", "dev-7", "dev-8", "test-7", "test-8")
    dev = hotpp.read(folder / "val.parquet")
    assert dev.splits is not None and dev.splits.tolist() == ["dev", "dev"]


def test_hotpp_faults(tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "columns id, timestamps and labels; received .*: no column 'labels'": {
            "id": [1],
            "timestamps": [[1.0]],
        },
        "one label per timestamp; received .*: 1 timestamps and 2 labels at row 0": {
            "id": [1],
            "timestamps": [[1.0]],
            "labels": [[1, 2]],
        },
        "whole numbers for labels; received .*: 0.5 at event 0 of sequence 0": {
            "id": [1],
            "timestamps": [[1.0]],
            "labels": [[0.5]],
        },
    }
    for text, columns in cases.items():
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        with pytest.raises(EventDataError, match=text):
            hotpp.read(tmp_path / "a.parquet")
    with pytest.raises(EventDataError, match="which holds none"):
        (tmp_path / "empty").mkdir()
        hotpp.read(tmp_path / "empty")


def test_a_table_that_unfolds_without_end(tmp_path: Path, frugal: None) -> None:
    zeros = pa.ListArray.from_arrays(
        pa.array([0, 1_000_000], pa.int32()), pa.array(np.zeros(1_000_000))
    )
    pq.write_table(
        pa.table({"id": [1], "timestamps": zeros, "labels": [[0]]}),
        tmp_path / "a.parquet",
        compression="zstd",
    )
    assert (tmp_path / "a.parquet").stat().st_size < 40_000
    with pytest.raises(EventDataError, match="a.parquet, whose .* expand into .* MB or more"):
        hotpp.read(tmp_path / "a.parquet")


# Guessing and converting


def test_formats_are_guessed_by_content(tmp_path: Path) -> None:
    data = small(splits=np.array(["train", "test"]))
    for name, file in FILES.items():
        folder = tmp_path / name
        folder.mkdir()
        FORMATS[name].write(data, folder / file)
        assert guess_source(folder / file) == name
        disguised = folder / "x.bin"
        if name != "du":
            (folder / file).rename(disguised)
            assert guess_source(disguised) == name
    for name in FOLDERS:
        FORMATS[name].write(data, tmp_path / f"{name}-folder")
        assert guess_source(tmp_path / f"{name}-folder") == name
    assert [guess_target(Path(file)) for file in FILES.values()] == [
        "easytpp",
        "pickle",
        "du",
        "tick",
        "fourpoint",
        "fourpoint",
    ]
    with pytest.raises(UserError, match="the extension of its format"):
        guess_target(Path("out"))
    with pytest.raises(EventDataError, match="a folder of event files"):
        (tmp_path / "none").mkdir()
        guess_source(tmp_path / "none")


@pytest.mark.parametrize("first", FILES)
@pytest.mark.parametrize("second", FILES)
def test_every_pair_of_formats(tmp_path: Path, first: str, second: str) -> None:
    data = small(splits=np.array(["train", "test"]))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    FORMATS[first].write(data, tmp_path / "a" / FILES[first])
    done = convert(tmp_path / "a" / FILES[first], tmp_path / "b" / FILES[second], to=second)
    assert (done.from_, done.to) == (first, second) and done.notes[0].endswith(
        f"is read as {first}"
    )
    same(FORMATS[second].read(tmp_path / "b" / FILES[second]), data)
    assert sorted(p.name for p in (tmp_path / "b").iterdir() if p.name.startswith(".")) == []


def test_convert_says_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(ROWS))
    done = convert(tmp_path / "train.json", tmp_path / "out.npz", from_="easytpp")
    assert [note.split(":")[0] for note in done.notes] == [
        "no windows in the file",
        "tick takes a list of arrays per realisation",
    ]
    with pytest.raises(
        UserError,
        match=(
            "a format to write: fourpoint, .*easytpp, .*; received 'eazytpp'. "
            "Did you mean 'easytpp'"
        ),
    ):
        convert(tmp_path / "train.json", tmp_path / "x.json", to="eazytpp")
    with pytest.raises(
        UserError,
        match="a format or source to read: .*mimic.*; received 'mimik'. Did you mean 'mimic'",
    ):
        convert(tmp_path / "train.json", tmp_path / "x.json", from_="mimik")
    with pytest.raises(UserError, match="settings for a source"):
        convert(tmp_path / "train.json", tmp_path / "x.json", settings={"mark": "site"})
    with pytest.raises(UserError, match="a path in an existing folder"):
        convert(tmp_path / "train.json", tmp_path / "no" / "x.json")


def test_a_csv_of_events_is_converted_too(tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text("time,mark\n1.5,fire\n2.5,flood\n")
    done = convert(tmp_path / "calls.csv", tmp_path / "calls.json")
    assert (
        done.from_ == "fourpoint"
        and done.data.marks.names == ("fire", "flood")
        and (tmp_path / "calls.json").exists()
    )


def test_writing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Dataset(
        np.zeros(0),
        np.zeros(0, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.zeros(0),
        np.zeros(0),
    )
    for name in FOLDERS:
        with pytest.raises(EventDataError, match="at least one sequence to write"):
            FORMATS[name].write(empty, tmp_path / "folder")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    for name, file in FILES.items():
        with pytest.raises(OSError, match="disk full"):
            FORMATS[name].write(small(), tmp_path / file)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


# Files that are none


def readers_of(folder: Path) -> dict[str, Any]:
    return {
        name: (folder / file, FORMATS[name].read)
        for name, file in (FILES | {"hotpp": "h.parquet", "fourpoint": "f.parquet"}).items()
    }


def refused(path: Path, read: Any) -> None:
    """Reading gives events or an EventDataError that names the file (or, for Du's pairs, the other
    file).
    """
    try:
        read(path)
    except EventDataError as error:
        assert path.name in str(error) or path.name.replace("time", "event") in str(error), error


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=80)
@given(content=st.binary(max_size=200))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    path, read = readers_of(folder)[name]
    starts = {
        "tick": b"PK\x03\x04",
        "hotpp": b"PAR1",
        "fourpoint": b"PAR1",
        "easytpp": b"[",
        "pickle": b"\x80\x04",
        "du": b"1 2\n",
    }
    for data in (content, starts[name] + content):
        path.write_bytes(data)
        if name == "du":
            (folder / "event-a.txt").write_bytes(data)
        refused(path, read)


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=80)
@given(drawn=st.data())
def test_cut_and_damaged_files(
    tmp_path_factory: pytest.TempPathFactory, name: str, drawn: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path, read = readers_of(folder)[name]
    FORMATS[name].write(small(), path)
    content = bytearray(path.read_bytes())
    for _ in range(drawn.draw(st.integers(0, 4))):
        content[drawn.draw(st.integers(0, len(content) - 1))] = drawn.draw(st.integers(0, 255))
    path.write_bytes(content[: drawn.draw(st.integers(0, len(content)))])
    refused(path, read)


@pytest.mark.parametrize("name", ("easytpp", "pickle"))
@settings(max_examples=100)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "train",
                        "dev",
                        "time_since_start",
                        "type_event",
                        "dim_process",
                        "x",
                        "fourpoint",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_values_of_the_wrong_shape(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: Any
) -> None:
    path, read = readers_of(tmp_path_factory.mktemp("shape"))[name]
    path.write_bytes(pickle.dumps(value) if name == "pickle" else json.dumps([value]).encode())
    refused(path, read)
    path.write_bytes(
        pickle.dumps([value, [value]]) if name == "pickle" else json.dumps(value).encode()
    )
    refused(path, read)


def test_a_cell_of_a_million_characters(tmp_path: Path) -> None:
    long = "9" * 1_000_000
    pair(tmp_path, "a", f"1 {long}x\n", "1 1\n")
    (tmp_path / "a.json").write_text('[{"time_since_start": ["' + long + '"], "type_event": [0]}]')
    (tmp_path / "b.json").write_text('[{"time_since_start": [' + long + '], "type_event": [0]}]')
    (tmp_path / "a.pkl").write_bytes(b"L" + long.encode() + b"L\n.")
    for path, read in (
        ("time-a.txt", du.read),
        ("a.json", easytpp.read),
        ("b.json", easytpp.read),
        ("a.pkl", pickles.read),
    ):
        with pytest.raises(EventDataError) as caught:
            read(tmp_path / path)
        assert path in str(caught.value) and len(str(caught.value)) < 600


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "empty.json").touch()
    (tmp_path / "event.json").write_text("[]")
    for name, format in FORMATS.items():
        with pytest.raises(EventDataError, match="which does not exist"):
            format.read(tmp_path / f"time-{name}.xyz")
        with pytest.raises(EventDataError):
            format.read(tmp_path)
    with pytest.raises(EventDataError, match="which is empty .0 bytes."):
        easytpp.read(tmp_path / "empty.json")
    with pytest.raises(EventDataError, match="which does not exist. Did you mean event.json"):
        easytpp.read(tmp_path / "events.json")


def test_gzip_that_unfolds_without_end_or_is_cut(tmp_path: Path, frugal: None) -> None:
    (tmp_path / "a.json").write_bytes(gzip.compress(b" " * 2**24))
    with pytest.raises(EventDataError, match="a.json, whose .* expand into .* or more"):
        easytpp.read(tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes(gzip.compress(json.dumps(ROWS * 100).encode())[:-20])
    with pytest.raises(EventDataError, match="b.json, which cannot be read after"):
        easytpp.read(tmp_path / "b.json")
