"""A first look: the roles, the counts, the pictures, and a command that works when typed."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from click.testing import Result
from numpy.typing import NDArray
from rich.console import Console
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.data import datasets
from fourpoint.data.facts import facts, table_of
from fourpoint.data.inspecting import PATTERNS, Histogram, Inspection, inspect
from fourpoint.data.readers import Asked
from fourpoint.events import EventDataError


def printed(found: Inspection) -> str:
    out = io.StringIO()
    Console(width=200, file=out).print(found)
    return out.getvalue()


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Forty days of calls to the minute, more of them by day than by night, the newest first."""
    rng = np.random.default_rng(0)
    hours = np.clip(rng.normal(13, 4, 900), 0, 23.99)
    minutes = np.sort(1440 * rng.integers(0, 40, 900) + (60 * hours).astype(int))[::-1]
    stamps = (np.datetime64("2024-05-01T00:00") + minutes).astype(str)
    lines = [
        f"F{i},{stamp}:00+02:00,{kind}"
        for i, (stamp, kind) in enumerate(
            zip(stamps, rng.choice(["Fire", "Medical"], 900), strict=True)
        )
    ]
    path = tmp_path / "my calls.csv"
    path.write_text("\n".join(["Incident Number,Received At,Call Type", *lines]) + "\n")
    return path


def test_a_look_says_what_there_is(calls: Path) -> None:
    text = printed(inspect(calls))
    for line in (
        "a log with a daily pattern",
        "'Received At': 2024-05-0",
        "1 minute",
        "900",
        "of gaps are zero",
        "'Call Type', 2 types: ",
        "rows are not in order of time: --sort sorts them",
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
        "none",
        "--sort",
        "--time-budget",
        "60",
        "-o",
        "model",
    ]
    data = fp.read(calls, time=words[4], mark=words[6], sequence=words[8], sort=True)
    assert data.events == 900 and len(data) == 1
    again = inspect(
        calls,
        Asked(
            sequence="day",
            timezone="Europe/Berlin",
            window=("2024-04-01", "2024-07-01"),
            ties="drop",
        ),
    )
    assert (
        "--timezone Europe/Berlin --window 2024-04-01 2024-07-01 --ties drop --sort"
        in again.command
    )


def test_a_table_in_memory_gets_a_call(calls: Path) -> None:
    found = inspect({"time": [1.0, 2.5, 4.0], "user": ["a", "a", "b"]})
    assert found.command == "fp.read(source, time='time', mark='none', sequence='user')"
    assert inspect({"t": [1.0, 2.0], "seq_id": [0, 0]}).command == "fp.read(source)"


def stamps(seconds: NDArray[np.float64]) -> dict[str, NDArray[np.int64]]:
    return {"time": 1_714_521_600 + np.sort(seconds).astype(np.int64)}


@pytest.mark.parametrize(
    ("period", "periods", "unit"),
    [
        (86400, 40, "day"),
        (604_800, 20, "week"),
        (3600, 30, "hour"),
        (86400, 5, None),
        (5011, 60, None),
    ],
)
def test_rhythms_are_named_and_logs_stay_whole(period: int, periods: int, unit: str | None) -> None:
    """The first third of each period has two thirds of the events."""
    rng = np.random.default_rng(1)
    phase = np.where(
        rng.random(30 * periods) < 0.5, rng.random(30 * periods) / 3, rng.random(30 * periods)
    )
    found = inspect(stamps(period * (rng.integers(0, periods, 30 * periods) + phase)))
    assert "sequence='none'" in found.command
    pattern = f"a log with {PATTERNS[unit]} pattern" if unit else ""
    assert found.kind == (pattern or "one long log without a calendar pattern")


@pytest.mark.parametrize("days", [9, 40, 400])
def test_steady_and_bursty_logs_are_one_sequence(days: int) -> None:
    rng = np.random.default_rng(days)
    steady = rng.uniform(0, 86400 * days, 2000)
    shocks = np.concatenate(
        [start + rng.exponential(20_000, 100) for start in rng.uniform(0, 86400 * (days - 1), 12)]
    )
    for times in (steady, shocks, np.linspace(0, 86400 * days, 900)):
        assert "sequence='none'" in inspect(stamps(times)).command


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"time": ["2024-05-01", "2024-05-03", "2024-05-04"]}, "1 day"),
        ({"time": ["2024-05-01 10:00", "2024-05-01 10:15", "2024-05-01 11:00"]}, "15 minutes"),
        (
            {
                "time": [
                    "2024-05-01T10:00:00.250Z",
                    "2024-05-01T10:00:01.500Z",
                    "2024-05-01T10:00:03Z",
                ]
            },
            "250 milliseconds",
        ),
        ({"time": [0.5, 1.25, 1.5, 8.0]}, "0.25"),
        ({"time": [0.123, 1.7717, 3.14159]}, "none found"),
        ({"time": [1.0]}, "none found"),
    ],
)
def test_resolution_is_named(table: dict[str, list[object]], words: str) -> None:
    found = inspect(table).to_dict()["resolution"]
    assert found.partition(";")[0] == words


def test_coarse_resolution_is_said() -> None:
    whole = stamps(60 * np.random.default_rng(0).integers(0, 5000, 3000))
    assert (
        inspect(whole)
        .to_dict()["resolution"]
        .startswith("1 minute; a quarter of all gaps is at most 10 times that")
    )


def test_remarks_on_other_columns_and_on_ties() -> None:
    rng = np.random.default_rng(5)
    second = np.sort(rng.integers(0, 30 * 86400, 900))
    when = np.concatenate([second, second[:300]])  # a third of the events twice
    table = {"time": 1_714_521_600 + np.sort(when), "priority": rng.choice(["low", "high"], 1200)}
    notes = " ".join(inspect(table).reading.notes)
    suggestion = "'priority' (2 values) could be types of events, for example with --mark priority"
    assert suggestion in notes
    assert "25.0% of gaps are zero, where chance explains about 0.0" in notes
    patients = np.repeat(np.arange(100), 12)
    days = rng.integers(0, 400, 1200)
    order = np.argsort(days, kind="stable")
    visits = {
        "time": (np.datetime64("2024-01-01") + days[order]).astype(str),
        "patient_id": patients[order],
        "smoker": np.where(patients[order] % 3, "no", "yes"),
    }
    notes = " ".join(inspect(visits).reading.notes)
    assert "'smoker' is constant for each 'patient_id': --sequence-covariates smoker" in notes
    assert "could be types" not in notes  # a column is not both
    assert "copies" not in notes  # two visits on one day, as often as by chance


# ---------------------------------------------------------------------- the commands, typed as they
# are printed


def csv(path: Path, head: str, rows: list[str]) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def quakes(folder: Path) -> Path:
    """The first 120 events of the embedded catalogue."""
    rows = []
    for day in fp.load("earthquakes"):
        for time, mark, (x, y) in zip(day.times, day.marks, day.places, strict=True):
            stamp = np.datetime64(f"{day.id}T00:00:00.000") + np.timedelta64(
                int(3_600_000 * time), "ms"
            )
            rows.append(f"{stamp},{x:.4f},{y:.4f},{day.space.names[mark]}")
    return csv(folder / "quakes.csv", "time,longitude,latitude,magnitude_class", sorted(rows)[:120])


def office(folder: Path) -> Path:
    """Thirty days of calls by day, to the second."""
    rng = np.random.default_rng(2)
    seconds = 86400 * rng.integers(0, 30, 600) + (
        3600 * np.clip(rng.normal(13, 3, 600), 0, 23.9)
    ).astype(int)
    when = np.datetime64("2024-01-01T00:00:00") + np.sort(seconds)
    return csv(
        folder / "calls.csv",
        "received_at,call_type",
        [f"{w},{rng.choice(['fire', 'medical'])}" for w in when],
    )


def customers(folder: Path) -> Path:
    """Many customers with few purchases each, to the day; the last one at the end of the window."""
    rng = np.random.default_rng(3)
    rows = [
        (int(day), c) for c in range(80) for day in np.cumsum(rng.exponential(60, 5)) if day < 365
    ]
    rows.append((365, 7))
    lines = [
        f"C{c:03d},{np.datetime64('2023-01-01') + day},{rng.choice(['a', 'b'])}"
        for day, c in sorted(rows)
    ]
    return csv(folder / "customers.csv", "customer_id,date,product_category", lines)


def alerts(folder: Path) -> Path:
    """One bursty log to the millisecond."""
    drawn = fp.sample(fp.Hawkes(baseline=0.5, branching=0.6, decay=2.0), 0.0, 150.0, 1, seed=4)
    when = np.datetime64("2024-02-01T00:00:00.000") + (600_000 * drawn.times).astype(np.int64)
    return csv(
        folder / "alerts.csv",
        "timestamp,label",
        [f"{w},{'disk' if i % 3 else 'cpu'}" for i, w in enumerate(when)],
    )


def minutes(folder: Path) -> Path:
    """One steady log to the minute, with ties."""
    when = np.datetime64("2024-02-01T00:00") + np.sort(
        np.random.default_rng(5).integers(0, 10 * 1440, 500)
    )
    return csv(folder / "minutes.csv", "time,kind", [f"{w},x" for w in when])


KINDS = {
    quakes: ("a catalogue with places, one long sequence", "1 millisecond", "none"),
    office: ("a log with a daily pattern", "1 second", "none"),
    customers: ("many short sequences", "1 day", "customer_id"),
    alerts: ("one long log without a calendar pattern", "1 millisecond", "none"),
    minutes: ("one long log without a calendar pattern", "1 minute", "none"),
}


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_recommended_commands_run_to_their_end(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inspect, then what it says comes next, then what that says; only the budget of seconds is
    smaller here.
    """
    kind, resolution, sequence = KINDS[make]
    source = make(tmp_path)
    monkeypatch.chdir(tmp_path)
    looked = run_command("data", "inspect", source.name, "--json")
    numbers = json.loads(looked.stdout)
    assert numbers["kind"] == kind and numbers["resolution"].partition(";")[0] == resolution
    fitting = next_command(looked.stderr)
    assert (
        fitting == shlex.split(numbers["next"])
        and fitting[fitting.index("--sequence") + 1] == sequence
    )
    fitting[fitting.index("--time-budget") + 1] = "1"
    fitted = run_command(*fitting[1:])
    scored = run_command(*next_command(fitted.stderr)[1:], "--json")
    found = json.loads(scored.stdout)
    again = "fitted again to all of the data" in fitted.stderr
    said = "were in the training data" if again else "held out from training"
    assert said in scored.stderr and found["events"] > 0
    assert again or found["events"] < numbers["events"] / 2
    assert np.isfinite(found["log_likelihood_per_event"]) and found["integral_error"] < 1e-3
    expected = found["goodness"]["total"]["expected"]
    assert found["events"] / 4 < expected < 4 * found["events"]


def run_command(*words: str) -> Result:
    found = CliRunner().invoke(app, [*words])
    assert found.exit_code == 0, found.output
    return found


def next_command(printed: str) -> list[str]:
    lines = [
        line.removeprefix("next: ") for line in printed.splitlines() if line.startswith("next: ")
    ]
    assert len(lines) == 1 and lines[0].startswith("fourpoint ")
    return shlex.split(lines[0])


def test_our_own_files_need_no_roles() -> None:
    source = Path(datasets.__file__).with_name("nyc_delays.parquet")
    found = inspect(source)
    text = printed(found)
    assert found.command == f"fourpoint fit {source} --time-budget 60 -o model"
    assert all(words in text for words in ("train (", "EWR 1-2 h", "24 hours"))
    assert found.over_time.counts.sum() == 27058


def test_numbers_come_as_json(calls: Path) -> None:
    numbers = json.loads(json.dumps(inspect(calls).to_dict()))
    assert (
        numbers["events"] == 900
        and numbers["columns"]["time"] == "Received At"
        and not numbers["sorted"]
    )
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
    with pytest.raises(
        EventDataError,
        match="expected a column of times; received .*a.csv: none among 'a', 'b' looks like one",
    ):
        inspect(tmp_path / "a.csv")


def test_the_facts_of_a_data_set_in_the_words_it_has() -> None:
    days = [
        fp.Sequence(
            [1.0, 2.0, 2.0],
            [0, 1, 1],
            start=0,
            stop=4,
            space=fp.MarkSpace(("[red]", "b")),
            id=f"[day {i}]",
        )
        for i in range(2)
    ]
    lines = dict(facts(fp.Dataset.from_sequences(days, unit="hours")))
    assert (
        lines["sequences"] == "2 ([day 0] ... [day 1])"
        and lines["events"] == "6 (3 to 3 a sequence, median 3)"
    )
    assert (
        lines["window"] == "4 hours"
        and lines["ties"] == "50.0% of gaps are zero"
        and lines["marks"] == "b (4), [red] (2)"
    )
    out = io.StringIO()
    Console(width=80, file=out).print(table_of("[bold]x", list(lines.items())))
    assert all(word in out.getvalue() for word in ("[bold]x", "[day 0]", "[red] (2)")), (
        "words in brackets are no markup"
    )


def test_rows_that_were_exported_twice_are_told() -> None:
    rows = [(f"2025-01-06 08:{i:02d}:00", i) for i in range(40)]
    table = {"ts": [t for t, _ in rows], "id": [i for _, i in rows]}
    assert not any("copies" in note for note in inspect(table).reading.notes)
    twice = {name: values + values[:15] for name, values in table.items()}
    assert any("15 rows are exact copies" in note for note in inspect(twice).reading.notes)


def test_copies_that_chance_explains_are_not_told() -> None:
    rng = np.random.default_rng(3)
    minutes = np.sort(rng.integers(0, 20_000, 4_000))  # about 400 have a minute in common
    table = {"time": 1_714_521_600 + 60 * minutes, "station": rng.choice(["a", "b"], 4_000)}
    assert len(np.unique(minutes)) < 3_700
    assert not any("copies" in note for note in inspect(table).reading.notes)
    copied = rng.choice(4_000, 1_000, replace=False)
    rows = np.sort(np.concatenate([np.arange(4_000), copied]))
    twice = {name: values[rows] for name, values in table.items()}
    assert any("rows are exact copies" in note for note in inspect(twice).reading.notes)


def test_words_of_other_languages_for_the_type_are_known() -> None:
    times = ["2024-05-01 09:30", "2024-05-01 10:30", "2024-05-02 09:30"]
    for name in ("Art", "Catégorie", "tipo", "alert"):
        assert inspect({"Zeit": times, name: ["a", "b", "a"]}).reading.roles.mark == name


def test_times_that_step_back_an_hour_may_be_a_change_of_clocks() -> None:
    """Sorting would mix the two hours from 02:00 to 03:00."""
    stamps = [
        f"2025-10-26 {hour:02d}:{minute:02d}" for hour in (1, 2) for minute in range(0, 60, 5)
    ]
    stamps += [
        f"2025-10-26 {hour:02d}:{minute:02d}" for hour in (2, 3) for minute in range(2, 60, 5)
    ]
    said = dict(inspect({"when": stamps})._facts())
    assert "set back" in said["order"] and "--timezone" in said["order"]
    mixed = stamps[::-1]
    assert "--sort sorts them" in dict(inspect({"when": mixed})._facts())["order"]
    known = inspect({"when": stamps}, Asked(timezone="Europe/Berlin"))
    assert "order" not in dict(known._facts())


def test_a_column_of_times_of_day_is_told() -> None:
    days = [f"{day:02d}.01.2025" for day in range(6, 31)]
    clock = [f"{day % 24:02d}:15" for day in range(25)]
    joined = inspect({"Datum": days, "Uhrzeit": clock, "Betrag": [1.5] * 25})
    assert joined.reading.roles.time == "Datum+Uhrzeit"
    found = inspect({"Datum": days, "Uhrzeit von": clock, "Uhrzeit bis": clock})
    said = "'Uhrzeit von' holds times of day, which are not used: --time 'Datum+Uhrzeit von'"
    assert any(note.startswith(said) for note in found.reading.notes)


def test_a_column_of_magnitudes_is_told() -> None:
    table = {"time": ["2024-05-01", "2024-05-02", "2024-05-04"], "Mag": [2.5, 3.1, 2.7]}
    said = " ".join(inspect(table).reading.notes)
    assert "'Mag' may be the magnitude of earthquakes: fit --model etas" in said
    words = {**table, "Mag": ["low", "high", "low"]}
    assert "etas" not in " ".join(inspect(words).reading.notes)


def test_a_catalogue_with_magnitudes_is_fitted_with_aftershocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    when = np.sort(rng.random(60) * 300)
    path = tmp_path / "quakes.csv"
    rows = [f"{t:.4f},{130 + t / 99:.3f},{30 + t / 99:.3f},{3 + t % 1:.1f}" for t in when]
    path.write_text("\n".join(["time,longitude,latitude,Magnitude", *rows]))
    command = inspect(path).command
    assert "--event-features Magnitude --model etas --time-budget" in command
    plain = tmp_path / "thefts.csv"
    plain.write_text("\n".join(["time,longitude,latitude,amount", *rows]))
    assert "etas" not in inspect(plain).command


def test_codes_are_types_before_entities() -> None:
    rng = np.random.default_rng(3)
    table = {
        "time": (1_714_521_600 + np.sort(rng.integers(0, 10**6, 300))).tolist(),
        "host": rng.choice(["a", "b", "c"], 300).tolist(),
        "status": rng.choice([404, 500], 300).tolist(),
        "qty": rng.choice([1, 2], 300).tolist(),
    }
    notes = " ".join(inspect(table).reading.notes)
    said = "'status' (2 values) or 'host' (3 values) could be types of events, for example with"
    assert f"{said} --mark status" in notes


def test_a_column_of_customers_is_told() -> None:
    stamps = [f"2025-01-06 08:{i:02d}:00" for i in range(40)]
    names = [f"c{i % 7}" for i in range(40)]
    found = inspect({"customer": names, "date": stamps})
    if found.reading.roles.sequence is None:
        assert any("--sequence customer" in note for note in found.reading.notes)


def test_the_type_of_each_machine_is_no_type_of_event() -> None:
    random = np.random.default_rng(0)
    machine = random.integers(0, 12, 120)
    days = np.sort(random.integers(0, 1000, 120))
    table = {
        "failed": (np.datetime64("2022-01-01") + days).astype(str).tolist(),
        "machine": [f"M{k}" for k in machine],
        "type": ["A" if k < 6 else "B" for k in machine],
    }
    found = inspect(table)
    assert found.reading.roles.mark is None
    assert "--sequence-covariates type uses that" in printed(found)
    table["type"] = random.choice(["A", "B"], 120).tolist()
    assert inspect(table).reading.roles.mark == "type"
