"""Events in many Parquet files: chunk by chunk they are what they are in memory, and so are fits,
scores and forecasts of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data import event_files, partitioning
from fourpoint.data.event_files import joined, scan
from fourpoint.data.partitioning import partition
from fourpoint.data.readers import Asked, read_with_notes
from fourpoint.data.synthetic import simulate
from fourpoint.errors import UserError
from fourpoint.events import Dataset, EventDataError, MarkSpace, Sequence
from fourpoint.inference.forecasts import forecast_files, planned
from fourpoint.inference.likelihood import Carried, log_likelihoods
from fourpoint.models import DAPP, SAHP, Hawkes
from fourpoint.training.sources import Streamed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of our own with seven sequences each, two types and a split."""
    place = tmp_path / "events"
    place.mkdir()
    for number in range(3):
        fp.write(_part(number), place / f"part-{number}.parquet")
    return place


def _part(number: int, count: int = 7) -> Dataset:
    rng = np.random.default_rng(number)
    found = []
    for i in range(count):
        times = np.sort(rng.random(rng.integers(3, 30)) * 9)
        found.append(
            Sequence(
                times,
                rng.integers(2, size=len(times)),
                start=0,
                stop=10,
                space=2,
                id=f"{number}-{i}",
            )
        )
    data = Dataset.from_sequences(found)
    return replace(data, splits=np.array(["train"] * (count - 2) + ["dev", "test"]))


def _rows(data: Dataset) -> dict[str, list[object]]:
    """A table as another program would write it."""
    row = np.repeat(np.arange(len(data)), data.lengths)
    return {
        "user": [data.ids[i] for i in row],
        "time": data.times.tolist(),
        "kind": [f"k{m}" for m in data.mark_ids],
    }


def _same(one: Dataset, other: Dataset) -> None:
    assert one.ids == other.ids
    for name in ("times", "mark_ids", "lengths", "starts", "stops"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_chunks_of_our_own_files_are_the_files(folder: Path) -> None:
    files = scan(folder)
    whole = joined([_part(number) for number in range(3)])
    assert (len(files), files.events, files.marks) == (21, whole.events, whole.marks)
    _same(files.load(), whole)
    _same(fp.read(folder), whole)
    assert set(files.part("dev").load().ids) == {"0-5", "1-5", "2-5"}
    own, theirs = (data.split((0.9, 0.1), seed=4) for data in (files, replace(whole, splits=None)))
    for one, other in zip(own, theirs, strict=True):
        _same(one.load(), other)
    some = files.sample(100, seed=1)
    assert 100 <= some.events < 160
    assert files.fingerprint() != files.part("dev").fingerprint()


def test_tables_of_other_programs_are_read_as_one_file_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Row groups of 10 rows: sequences go on in the next one, and in the next file.
    whole = joined([_part(number) for number in range(3)])
    table = pa.table(_rows(whole))
    pq.write_table(table, tmp_path / "all.parquet")
    place = tmp_path / "parts"
    place.mkdir()
    for number, first in enumerate(range(0, len(table), 150)):
        pq.write_table(table.slice(first, 150), place / f"{number:02d}.parquet", row_group_size=10)
    monkeypatch.setattr(event_files, "CHUNK", 40)
    files = scan(place, Asked(sequence="user"))
    assert len(files.pieces) > 4
    expected = fp.read(tmp_path / "all.parquet", sequence="user")
    _same(files.load(), expected)
    assert files.marks == expected.marks == MarkSpace.categorical(["k0", "k1"])


def test_timestamps_share_the_window_and_the_unit_of_all_files(tmp_path: Path) -> None:
    place = tmp_path / "parts"
    place.mkdir()
    for number in range(2):
        hours = np.arange(4) + 30 * number
        stamps = np.datetime64("2024-03-01T00:00:00") + hours.astype("timedelta64[h]")
        rows = {"user": [f"u{number}"] * 4, "when": pa.array(stamps), "kind": ["a", "b", "a", "a"]}
        pq.write_table(pa.table(rows), place / f"{number}.parquet")
    files = scan(place, Asked(sequence="user"))
    expected = fp.read(place, sequence="user")
    _same(files.load(), expected)
    assert files.unit == expected.unit
    np.testing.assert_array_equal(files.load().context.origin, expected.context.origin)


def test_folders_named_after_values_are_columns(tmp_path: Path) -> None:
    for user in (3, 17):
        place = tmp_path / f"user={user}"
        place.mkdir()
        pq.write_table(pa.table({"time": [1.0, 2.0]}), place / "a.parquet")
    files = scan(tmp_path, Asked(sequence="user"))
    assert files.load().ids == ("17", "3")


def test_urls_of_fsspec(folder: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    _same(scan("memory://bucket").load(), scan(folder).load())
    _same(scan(f"file://{folder}").load(), scan(folder).load())


def test_what_cannot_be_read_in_chunks_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(words: str, source: Path | str, **asked: object) -> None:
        with pytest.raises((UserError, EventDataError), match=words):
            scan(source, Asked(**asked))

    refused("which does not exist", tmp_path / "missing")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused("a folder without any", empty)
    refused("the option covariates", folder, covariates="weather.csv")
    refused("sequence=day", folder, sequence="day")
    refused("can open", "nowhere://bucket/x")
    (empty / "a.parquet").write_bytes(b"PAR1 and then nothing")
    refused("cannot be read as one", empty)
    monkeypatch.setattr(event_files, "CHUNK", 1)
    interleaved = tmp_path / "interleaved"
    interleaved.mkdir()
    for number in range(2):
        pq.write_table(
            pa.table({"user": ["a", "b"], "time": [number + 0.1, number + 0.2]}),
            interleaved / f"{number}.parquet",
        )
    refused("fourpoint data partition", interleaved, sequence="user")
    fp.write(simulate("hawkes", 2), folder / "part-9.parquet")
    refused("the columns t, mark, seq_id, split in every file", folder)


def test_partition_brings_the_rows_of_a_sequence_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "days"
    place.mkdir()
    rng = np.random.default_rng(0)
    for day in range(4):
        rows = {
            "user": rng.integers(9, size=40).astype(str),
            "time": np.sort(day + rng.random(40)),
            "kind": rng.choice(["x", "y"], 40),
        }
        pq.write_table(pa.table(rows), place / f"day-{day}.parquet", row_group_size=16)
    monkeypatch.setattr(partitioning, "WAITING", 50)
    found = partition(place, tmp_path / "grouped", Asked(sequence="user"), files=3)
    expected = fp.read(place, sequence="user")
    assert (found.sequences, found.events) == (len(expected), expected.events)
    grouped = scan(tmp_path / "grouped").load()
    for sequence in expected:
        own = grouped[sequence.id]
        np.testing.assert_array_equal(own.times, sequence.times)
        np.testing.assert_array_equal(own.marks, sequence.marks)
        assert (own.start, own.stop) == (sequence.start, sequence.stop)
    with pytest.raises(UserError, match="which exists"):
        partition(place, tmp_path / "grouped", Asked(sequence="user"))
    with pytest.raises(EventDataError, match="a column of sequences"):
        partition(place, tmp_path / "other", Asked(sequence="none"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["days", "grouped"]


# ---------------------------------------------------------------------- long sequences


@pytest.fixture
def long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Dataset]:
    """A log of 700 events that is read in parts of about 170, between two short sequences."""
    monkeypatch.setattr(event_files, "LONG", 150)
    monkeypatch.setattr(event_files, "CHUNK", 160)
    rng = np.random.default_rng(3)
    sequences = []
    for id, count in (("a", 5), ("long", 700), ("z", 8)):
        times, kinds = np.cumsum(rng.exponential(1.0, count)), rng.integers(2, size=count)
        sequences.append(Sequence(times, kinds, start=0.0, space=2, id=id))
    data = Dataset.from_sequences(sequences)
    place = tmp_path / "log"
    place.mkdir()
    table = pa.table(_rows(data))
    for number, first in enumerate(range(0, len(table), 250)):
        pq.write_table(table.slice(first, 250), place / f"{number}.parquet", row_group_size=85)
    return place, data


def test_long_sequences_are_scored_and_forecast_as_in_memory(
    long_log: tuple[Path, Dataset], tmp_path: Path
) -> None:
    place, data = long_log
    files = scan(place, Asked(sequence="user"))
    (parts,) = files.long_sequences()
    assert len(parts) >= 3 and [one.closes for one in parts] == [False] * (len(parts) - 1) + [True]
    assert files.lengths.tolist() == data.lengths.tolist()
    hawkes = Hawkes(data.marks, baseline=0.4, branching=0.3)
    own, whole = (fp.evaluate(hawkes, one).scores for one in (files, data))
    for name in ("window", "gaps"):
        assert own[name].events == whole[name].events
        assert own[name].sequences == whole[name].sequences == 3
        assert own[name].log_likelihood == pytest.approx(whole[name].log_likelihood, abs=1e-8)
    # DAPP, with a coarse tolerance, by the path of long sequences in both cases.
    model = DAPP(data.marks, heads=1, features=4, seed=0).eval()
    pieces = [(files.part_of(one), one.closes) for one in parts]
    totals = [_carried(model, some) for some in (pieces, [(data.select([1]), True)])]
    assert totals[0] == pytest.approx(totals[1], abs=0.5)
    with pytest.raises(UserError, match="can go on from what it remembers"):
        fp.evaluate(SAHP(data.marks), files)
    tables = list(forecast_files(hawkes, files, lambda one: planned(hawkes, one, 5.0, paths=400)))
    (mean,) = (
        table.column("mean")[0].as_py()
        for table in tables
        if table.column("sequence")[0].as_py() == "long"
    )
    expected = fp.forecasts(hawkes, data["long"], 5.0, paths=400).column("mean")[0].as_py()
    assert mean == pytest.approx(expected, rel=0.2)


def _carried(model: DAPP, parts: list[tuple[Dataset, bool]]) -> float:
    carried = Carried()
    total = 0.0
    for part, closes in parts:
        carried.closes = closes
        found = log_likelihoods(model, part.batch(), carried=carried, tolerance=1e-2)
        total += float(found["gaps"].value)
    return total


def test_long_sequences_are_trained_on_in_pieces(long_log: tuple[Path, Dataset]) -> None:
    place, data = long_log
    files = scan(place, Asked(sequence="user"))
    steps = Streamed(files, seed=0, buffer=1500).prepare(batch_size=4, mixed=False)
    assert steps.cut
    scored = sum(steps.at(step).scored for step in range(steps.per_epoch))
    assert scored == data.events
    assert steps.longest <= 1024 + 256


def test_a_single_log_is_cut_between_its_parts(long_log: tuple[Path, Dataset]) -> None:
    place, data = long_log
    only = scan(place, Asked(sequence="user")).select(np.array([1]))
    train, dev = only.split((0.9, 0.1))
    assert train.events + dev.events == 700 and 100 < dev.events < 200
    later = dev.sample(100, seed=0)
    assert later.scored_events == dev.events < later.events
    assert train.stops[0] == dev.starts[0] == data["long"].times[train.events - 1]
    steps = Streamed(train, seed=0).prepare(batch_size=4, mixed=False)
    assert sum(steps.at(step).scored for step in range(steps.per_epoch)) == train.events


# ---------------------------------------------------------------------- training


def test_an_epoch_takes_every_sequence_once_within_the_buffer(folder: Path) -> None:
    files = scan(folder)
    steps = Streamed(files, seed=5, buffer=200).prepare(batch_size=4, mixed=False)
    for epoch in range(2):
        taken: list[str] = []
        for step in range(epoch * steps.per_epoch, (epoch + 1) * steps.per_epoch):
            data, rows, scored = steps.at(step)
            assert data.events <= max(200, max(len(part.times) for part in files.chunks()))
            assert scored == int(data.lengths[rows].sum())
            taken += [data.ids[i] for i in rows]
        assert sorted(taken) == sorted(files.load().ids)
    again = Streamed(files, seed=5, buffer=200).prepare(batch_size=4, mixed=False)
    last = 2 * steps.per_epoch - 1
    assert [again.at(last).data.ids[i] for i in again.at(last).rows] == taken[-len(rows) :]


def test_a_fit_of_files_resumes_to_the_same_weights(folder: Path, tmp_path: Path) -> None:
    files = scan(folder)
    train, dev = files.part("train"), files.part("dev")

    def fitted(place: Path, stop_at: int = 99, resume: bool = False) -> DAPP:
        seen = iter(range(stop_at))
        model = DAPP(files.marks, heads=2, features=8, seed=0)
        fp.fit(
            model,
            train,
            dev,
            steps=9,
            batch_size=4,
            validate_every=3,
            buffer=100,
            baselines=False,
            folder=place,
            resume=resume,
            progress=False,
            keep_going=lambda share, score: next(seen, None) is not None,
        )
        return model

    one = fitted(tmp_path / "one")
    state = {}

    class Killed(Exception):
        pass

    def kill(share: float, score: float) -> bool:
        state["share"] = share
        if share > 0.5:
            raise Killed
        return True

    model = DAPP(files.marks, heads=2, features=8, seed=0)
    options = dict(steps=9, batch_size=4, validate_every=3, buffer=100, baselines=False)
    with pytest.raises(Killed):
        fp.fit(
            model, train, dev, **options, folder=tmp_path / "two", keep_going=kill, progress=False
        )
    two = fitted(tmp_path / "two", resume=True)
    for name, value in one.named_parameters():
        assert torch.equal(value, dict(two.named_parameters())[name]), name
    known = one.trained_on
    assert known is not None and len(known.train) == 15
    report = fp.evaluate(one, files)
    assert report.trained_on is not None and report.trained_on.sequences == 15
    with pytest.raises(UserError, match="trained in steps"):
        fp.fit(Hawkes(files.marks), train, progress=False)


def test_commands_read_folders_chunk_by_chunk(folder: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "model")
    quick = ["--set", "steps=4", "--set", "heads=2", "--set", "baselines=false"]
    run = CliRunner().invoke
    fitted = run(app, ["fit", str(folder), "-o", place, "--buffer", "150", *quick])
    assert fitted.exit_code == 0, fitted.output
    assert "read chunk by chunk" in fitted.output
    numbers = []
    for more in ([], ["--buffer", "150"]):
        words = ["evaluate", place, str(folder), "--no-fit-check", "--split", "test", "--json"]
        found = run(app, [*words, *more])
        assert found.exit_code == 0, found.output
        numbers.append(json.loads(found.stdout))
    for name, value in numbers[0].items():
        assert numbers[1][name] == pytest.approx(value, abs=1e-5), name
    tables = []
    for number, more in enumerate(([], ["--buffer", "150"])):
        out = tmp_path / f"{number}.parquet"
        words = ["forecast", place, str(folder), "--all", "--horizon", "2", "-o", str(out)]
        found = run(app, [*words, "--paths", "20", *more])
        assert found.exit_code == 0, found.output
        tables.append(pq.read_table(out))
    assert tables[0].equals(tables[1])
    wrong = run(app, ["fit", str(folder), "-o", place + "2", "--buffer", "0"])
    assert wrong.exit_code == 2 and "at least one event" in wrong.output


def test_notes_of_files_name_them(folder: Path) -> None:
    assert "3 Parquet files, read chunk by chunk" in scan(folder).notes[0]
    assert read_with_notes(str(folder)).data.events == scan(folder).events
