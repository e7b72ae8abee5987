"""A first look: the roles, the counts, the pictures, and a command that works when typed."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from rich.console import Console

import fourpoint as fp
from fourpoint.data import datasets
from fourpoint.data.facts import facts, table_of
from fourpoint.data.inspecting import Histogram, Inspection, inspect
from fourpoint.data.readers import Asked
from fourpoint.events import EventDataError


def printed(found: Inspection) -> str:
    out = io.StringIO()
    Console(width=200, file=out).print(found)
    return out.getvalue()


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Forty days of calls to the minute, the newest first."""
    rng = np.random.default_rng(0)
    minutes = np.sort(rng.integers(0, 40 * 1440, 900))[::-1]
    stamps = (np.datetime64("2024-05-01T00:00") + minutes).astype(str)
    lines = [
        f"F{i},{stamp}:00+02:00,{kind}" for i, (stamp, kind) in enumerate(zip(stamps, rng.choice(["Fire", "Medical"], 900), strict=True))
    ]
    path = tmp_path / "my calls.csv"
    path.write_text("\n".join(["Incident Number,Received At,Call Type", *lines]) + "\n")
    return path


def test_a_look_says_what_there_is(calls: Path) -> None:
    text = printed(inspect(calls))
    for line in (
        "'Received At': 2024-04-30 22:",
        "900",
        "of gaps are zero",
        "'Call Type', 2 types: ",
        "rows are not in order of time: --sort puts them so",
        "(guessed; --time --mark --sequence to choose)",
        "ties kept; --ties error|jitter|drop",
    ):
        assert line in text, text
    assert sum(character in "▁▂▃▄▅▆▇█" for character in text) > 60


def test_the_command_reads_the_file(calls: Path) -> None:
    words = shlex.split(inspect(calls).command)
    assert words == [
        "fourpoint",
        "fit",
        str(calls),
        "--time",
        "Received At",
        "--mark",
        "Call Type",
        "--sequence",
        "day",
        "--sort",
        "-o",
        "model",
    ]
    data = fp.read(calls, time=words[4], mark=words[6], sequence=words[8], sort=True)
    assert data.events == 900 and 40 <= len(data) <= 41
    again = inspect(calls, Asked(sequence="day", timezone="Europe/Berlin", window=("2024-04-01", "2024-07-01"), ties="drop"))
    assert "--timezone Europe/Berlin --window 2024-04-01 2024-07-01 --ties drop --sort" in again.command


def test_a_table_in_memory_gets_a_call(calls: Path) -> None:
    found = inspect({"time": [1.0, 2.5, 4.0], "user": ["a", "a", "b"]})
    assert found.command == "fp.read(source, time='time', mark='none', sequence='user')"
    assert inspect({"t": [1.0, 2.0], "seq_id": [0, 0]}).command == "fp.read(source)"


@pytest.mark.parametrize(
    ("span", "events", "unit"),
    [(40 * 86400, 900, "day"), (40 * 86400, 30, "day"), (86400, 200, "hour"), (3600, 100, None), (86400, 3, None)],
)
def test_windows_are_suggested_by_span(span: int, events: int, unit: str | None) -> None:
    times = np.linspace(1_714_521_600, 1_714_521_600 + span, events).astype(np.int64)
    assert (f"sequence='{unit}'" in inspect({"time": times}).command) == (unit is not None)


def test_our_own_files_need_no_roles() -> None:
    source = Path(datasets.__file__).with_name("nyc_delays.parquet")
    found = inspect(source)
    text = printed(found)
    assert found.command == f"fourpoint fit {source} -o model" and "train (" in text and "EWR 1-2 h" in text and "24 hours" in text
    assert found.over_time.counts.sum() == 27058


def test_numbers_come_as_json(calls: Path) -> None:
    numbers = json.loads(json.dumps(inspect(calls).to_dict()))
    assert numbers["events"] == 900 and numbers["columns"]["time"] == "Received At" and not numbers["sorted"]
    assert sum(numbers["marks"].values()) == 900 and numbers["next"].startswith("fourpoint fit ")


def test_a_picture(calls: Path, tmp_path: Path) -> None:
    axes = inspect(calls).plot()
    assert axes.get_title(loc="left") == "my calls.csv: 900 events" and len(axes.patches) == 60
    axes.figure.savefig(tmp_path / "look.png")
    assert (tmp_path / "look.png").stat().st_size > 1000
    own = plt.subplots()[1]
    assert inspect({"time": [1.0]}).plot(own) is own
    inspect({"time": [1.0]}).plot()
    plt.close("all")


@pytest.mark.parametrize("times", [[1.0], [1.0, 1.0], [0.0, 1e-9], [1.0, 2.0, 3.0], [-5.0, 1e6]])
def test_small_tables(times: list[float]) -> None:
    found = inspect({"time": times})
    assert found.over_time.counts.sum() == len(times) and "over time" in printed(found)
    if found.gaps is not None:
        assert found.gaps.counts.sum() == (np.diff(times) > 0).sum()


def test_blocks_show_every_event() -> None:
    assert Histogram(np.array([0, 1, 1000]), np.arange(4.0), "", "").line() == " ▁█"
    assert Histogram(np.zeros(3, dtype=np.int64), np.arange(4.0), "", "").line() == "   "


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\nx,y\n")
    with pytest.raises(EventDataError, match="expected a column of times; received .*a.csv: none among 'a', 'b' looks like one"):
        inspect(tmp_path / "a.csv")


def test_the_facts_of_a_data_set_in_the_words_it_has() -> None:
    days = [fp.Sequence([1.0, 2.0, 2.0], [0, 1, 1], start=0, stop=4, space=fp.MarkSpace(("[red]", "b")), id=f"[day {i}]") for i in range(2)]
    lines = dict(facts(fp.Dataset.from_sequences(days, unit="hours")))
    assert lines["sequences"] == "2 ([day 0] ... [day 1])" and lines["events"] == "6 (3 to 3 a sequence, median 3)"
    assert lines["window"] == "4 hours" and lines["ties"] == "50.0% of gaps are zero" and lines["marks"] == "b (4), [red] (2)"
    out = io.StringIO()
    Console(width=80, file=out).print(table_of("[bold]x", list(lines.items())))
    assert all(word in out.getvalue() for word in ("[bold]x", "[day 0]", "[red] (2)")), "words in brackets are no markup"
