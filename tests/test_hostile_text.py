"""Text from data is shown as it stands in every output: consoles, plots, pages, Markdown,
spreadsheets and JSON.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.errors import UserError
from fourpoint.report.page import Page
from fourpoint.report.printing import as_text, text_table
from fourpoint.sanitising import (
    console_lines,
    console_text,
    csv_cell,
    html_text,
    markup_text,
    plot_text,
)

HOSTILE = (
    "[/x]",
    "[closed]",
    ":bell: [red]",
    "\x1b[31mred\x1b]0;title\x07",
    "c1\x9b2J",
    "\u202egnp.exe",
    r"$\frac{1$",
    "$a_b$ $",
    '=cmd|"/c calc"!A1',
    "+1+1",
    "@SUM(A1)",
    "\ttab\rreturn",
    "two\nlines",
    '`"onmouseover=alert(1)`',
    "[x`](https://e.org/`) <b onclick=alert(1)>",
    "<script>alert('&')</script>",
    "_hidden",
    "\ud800 alone",
    "x" * 300,
)
# Arrow holds UTF-8, which has no lone surrogates.
MARKS = tuple(
    mark
    for mark in HOSTILE
    if mark.isprintable() or mark.encode("utf-8", "replace").decode() == mark
)
FILE = "log [closed] \x1b[1m\u202e.parquet"
TIME, MARK, SEQUENCE = "when [/x]\x1b[7m", "what [bold]$x$", "who\u202e"
IDS = ("[/a]\x1b[31m", "=b\u202e")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A log whose marks, ids, columns and file name are hostile, and a Poisson model that was
    fitted to it.
    """
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    count = 400
    times = np.concatenate([np.sort(rng.uniform(0, 50, count // 2)) for _ in IDS])
    marks = [MARKS[i % len(MARKS)] for i in range(count)]
    ids = [name for name in IDS for _ in range(count // 2)]
    file = folder / FILE
    pq.write_table(pa.table({TIME: times, MARK: marks, SEQUENCE: ids}), file)
    words = ["--time", TIME, "--mark", MARK]
    said = command(
        "fit", file, *words, "--sequence", SEQUENCE, "--model", "poisson", "-o", folder / "model"
    )
    return file, folder / "model", words, said


def command(*words: object) -> Any:
    """Run a command to its end and check that nothing it prints controls a terminal."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    for stream in (result.stdout, result.stderr):
        assert stream == console_lines(stream), "characters that control a terminal"
    return result


def joined(text: str) -> str:
    """Text without the spaces and line ends that a table puts into it."""
    return re.sub(r"\s", "", text)


def shown(mark: str) -> str:
    return joined(console_text(mark))


# ---------------------------------------------------------------------- the functions themselves


def test_a_console_gets_no_character_that_controls_hides_or_turns_text() -> None:
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN"}
    kept = "\u200c\u200d"
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        category = unicodedata.category(char)
        risky = category in ("Cc", "Cs", "Zl", "Zp") or (
            category == "Cf" and unicodedata.bidirectional(char) in turning
        )
        if code < 0x3000 and risky and char not in kept:
            assert console_text(char).isascii(), hex(code)
    assert (
        console_text("émigré 日本 שלום 👩\u200d👧 a\u00a0b")
        == "émigré 日本 שלום 👩\u200d👧 a\u00a0b"
    )


@pytest.mark.parametrize("mark", HOSTILE)
def test_each_output_shows_a_hostile_mark_as_it_stands(mark: str) -> None:
    table = text_table("a " + mark, box=None)
    table.add_column(mark)
    table.add_row(mark)
    text = as_text(table, width=2000)
    assert console_text(mark) in text and text == console_lines(text)

    class Texts(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.held = ""

        def handle_starttag(self, tag: str, attributes: Any) -> None:
            self.tags.append(tag)

        def handle_data(self, data: str) -> None:
            self.held += data

    plain, quoted, marked = Texts(), Texts(), Texts()
    plain.feed(html_text(mark))
    quoted.feed(f'<a title="{html_text(mark)}">')
    assert plain.tags == [] and plain.held == console_lines(mark) and quoted.tags == ["a"]
    page = Page("", markup_text(mark)).html()
    marked.feed(page.split('<p class="lead">')[1].split("</p>")[0])
    assert marked.tags == [] and marked.held == console_text(mark)
    written = io.StringIO()
    csv.writer(written).writerow([csv_cell(mark)])
    assert not next(csv.reader(io.StringIO(written.getvalue())))[0].startswith(
        ("=", "+", "-", "@", "\t", "\r")
    )


def test_numbers_stay_numbers_in_spreadsheets() -> None:
    for number in ("-1.5", "+2", "-.5e-3", "-inf", -1.5, 3, None):
        assert csv_cell(number) == number


@pytest.mark.parametrize(
    "text",
    [
        '[a`" onclick="alert(1)`](https://e.org/)',
        '[a](https://e.org/`"onmouseover=alert(1)`)',
        '[`"`](#x) [b](/`" x="`)',
        '**[x](`"a`)** *[y](./`">`)*',
    ],
)
def test_code_inside_a_link_stays_inside_its_attribute(text: str) -> None:
    class Attributes(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            allowed = {"a": {"href"}, "p": {"class"}, "html": {"lang"}}
            if tag not in ("meta", "style"):
                assert {name for name, _ in attributes} <= allowed.get(tag, set()), (
                    tag,
                    attributes,
                )

    parser = Attributes()
    parser.feed(Page("t", text).html())


def test_errors_are_printed_without_control_characters() -> None:
    assert "\x1b" not in str(UserError("a", "\x1b[31mred", "b"))


# ---------------------------------------------------------------------- every command


def test_fit_and_data_print_hostile_names_as_they_stand(hostile: Any) -> None:
    file, _, words, said = hostile
    assert "saved poisson" in said.stdout
    summary = command("data", file, *words, "--sequence", SEQUENCE).stdout
    assert shown("[closed]") in joined(summary) and shown("[/a]\x1b[31m") in joined(summary)


def test_inspect_prints_and_draws_hostile_names(hostile: Any, tmp_path: Path) -> None:
    file, _, words, _ = hostile
    seen = command(
        "data", "inspect", file, *words, "--sequence", SEQUENCE, "--plot", tmp_path / "a.png"
    )
    for mark in ("[closed]", "[/x]", "\x1b[31mred\x1b]0;title\x07"):
        assert shown(mark) in joined(seen.stdout)
    assert (tmp_path / "a.png").stat().st_size > 0
    answer = json.loads(
        command("data", "inspect", file, *words, "--sequence", SEQUENCE, "--json").stdout
    )
    assert set(answer["marks"]) == set(MARKS)


def test_evaluate_prints_and_draws_hostile_marks(hostile: Any, tmp_path: Path) -> None:
    file, model, words, _ = hostile
    options = [*words, "--sequence", SEQUENCE]
    seen = command("evaluate", model, file, *options, "--plot", tmp_path / "a.svg").stdout
    assert shown("[closed]") in joined(seen) and shown("[/x]") in joined(seen)
    json.loads(command("evaluate", model, file, *options, "--json").stdout)


@pytest.mark.parametrize("verb", ["forecast", "explain"])
def test_forecast_and_explain_print_and_draw_hostile_marks(
    verb: str, hostile: Any, tmp_path: Path
) -> None:
    file, model, words, _ = hostile
    options = [*words, "--by", SEQUENCE, "--sequence", IDS[0]]
    if verb == "forecast":
        options += ["--horizon", "5", "--paths", "20"]
    else:  # past events have no effect in a Poisson process
        model = tmp_path / "hawkes"
        fp.save(fp.Hawkes(fp.restore(hostile[1]).marks, branching=0.01), model)
    seen = command(verb, model, file, *options, "--plot", tmp_path / "a.svg").stdout
    assert sum(shown(mark) in joined(seen) for mark in MARKS) >= 3
    assert "</svg>" in (tmp_path / "a.svg").read_text()
    answer = command(verb, model, file, *options, "--json").stdout
    assert answer.isascii() and "[closed]" in str(json.loads(answer))


def test_a_missing_sequence_and_a_missing_file_are_named_without_control_characters(
    hostile: Any, tmp_path: Path
) -> None:
    file, model, words, _ = hostile
    for source, name in ((file, "\x1b[2Jnone\u202e"), (tmp_path / "\x1b[2J\u202e.csv", "a")):
        options = [*words, "--by", SEQUENCE, "--sequence", name, "--horizon", "5"]
        result = CliRunner().invoke(app, ["forecast", str(model), str(source), *options])
        assert result.exit_code == 2 and "expected" in result.stderr
        assert result.stderr == console_lines(result.stderr)


def test_a_stream_writes_hostile_marks_and_entities(hostile: Any, tmp_path: Path) -> None:
    _, model, _, _ = hostile
    rows = [{"time": 1.0 + i, "mark": mark, "who": mark} for i, mark in enumerate(MARKS)]
    rows += [{"time": 99.0, "mark": "\x9bunknown\u202e", "who": "a"}]
    source = tmp_path / "in.jsonl"
    source.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    result = CliRunner().invoke(
        app,
        [
            "stream",
            str(model),
            "--input",
            str(source),
            "--by",
            "who",
            "-o",
            str(tmp_path / "out.jsonl"),
        ],
    )
    assert result.stderr == console_lines(result.stderr)
    written = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert written == console_lines(written)
    assert len([json.loads(line) for line in written.splitlines()]) >= len(MARKS)


def test_plots_draw_every_hostile_name_unit_and_title() -> None:
    import matplotlib.pyplot as plt

    from fourpoint.plots import charts as plots
    from fourpoint.plots.forecast import counts_plot, forecast_plot, qq_plot
    from fourpoint.plots.maps import map_plot, profile_plot

    n = len(HOSTILE)
    t = np.linspace(1, 2, 9)
    unit = r"$\frac{1$\x1b"

    def ax() -> Any:
        return plt.figure(dpi=20).subplots()

    drawn = [
        plots.intensity_plot(
            t,
            np.ones((9, n)),
            events=t,
            names=HOSTILE,
            truth=t,
            truth_name=unit,
            unit=unit,
            ax=ax(),
        ),
        plots.kernel_plot(t, np.ones((n, 9)), names=HOSTILE, label=unit, unit=unit, ax=ax()),
        plots.spectrum_plot(np.ones((n, 9)), np.ones((n, 9)), names=HOSTILE, unit=unit, ax=ax()),
        plots.learning_curve_plot(t, t, t, references=dict.fromkeys(HOSTILE, 1.0), ax=ax()),
        plots.attention_plot(t, np.ones((9, 9)), label=unit, ax=ax()),
        plots.comparison_plot(list(HOSTILE), np.arange(n), ax=ax()),
        forecast_plot(t, t, t, t, names=HOSTILE, unit=unit, ax=ax()),
        counts_plot([0, 1, 2], [3.0, 4.0], [1, 1], [6, 8], unit=unit, ax=ax()),
        qq_plot(t, t, t, t, title=unit, ax=ax()),
        map_plot(
            [0.25, 0.75],
            [0.5],
            [[1.0], [2.0]],
            names=(unit, HOSTILE[6]),
            label=unit,
            title=unit,
            ax=ax(),
        ),
        profile_plot([0.25, 0.75], [1.0, 2.0], name=unit, label=unit, title=unit, ax=ax()),
        # In a figure of its own: many long names leave room for the axes.
        plots.attention_plot(
            np.arange(n), np.ones(n), event_marks=np.arange(n), names=HOSTILE, label=unit, unit=unit
        ),
    ]
    for one in drawn:
        one.figure.canvas.draw()
    plt.close("all")
    legend = plots.attention_plot(
        [1.0, 2.0], [1.0, 1.0], event_marks=[0, 1], names=("_a", "b")
    ).get_legend()
    assert legend is not None and [
        text.get_text().lstrip("\u200c") for text in legend.get_texts()
    ] == ["_a", "b"]
    plt.close("all")
    assert plot_text("a$b") == r"a\$b"


def test_the_demo_page_holds_hostile_marks_as_text(tmp_path: Path) -> None:
    from dataclasses import replace

    from fourpoint.cli.demo import run_demo

    rng = np.random.default_rng(1)
    marks = ("<img src=x onerror=alert(1)>", r"$\frac{1$", " ")
    space = fp.MarkSpace(marks)
    ids = (
        "[/x]",
        "[a](javascript:x)",
        "\x1b[31m",
        "<script>alert(1)</script>",
        '`"`',
        "[b`](https://e.org/`)",
    )
    days = [
        fp.Sequence(
            np.sort(rng.uniform(0, 24, 12)),
            np.arange(12) % 3,
            start=0.0,
            stop=24.0,
            space=space,
            id=name,
        )
        for name in ids
    ]
    splits = np.array(["train"] * 3 + ["dev"] + ["test"] * 2)
    data = replace(fp.Dataset.from_sequences(days, unit='"><u>$x$', name="[/x]\x1b"), splits=splits)
    path = run_demo(tmp_path / "demo", data=data, steps=1, time_budget=math.inf, progress=True)
    page = path.read_text(encoding="utf-8")
    assert page == console_lines(page)
    assert not re.search(r"<(img|script|u|b onclick)\b", page)
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', page))
    with (path.parent / "comparison.csv").open() as file:
        assert not [
            cell
            for row in csv.reader(file)
            for cell in row
            if re.match(r"[=@\t\r]|[+-][^\d.]", cell)
        ]


def test_the_reproduction_report_holds_hostile_reasons_as_text(tmp_path: Path) -> None:
    from fourpoint.reproduce.cells import DONE, FAILED, write_results
    from fourpoint.reproduce.plan import SETTINGS
    from fourpoint.reproduce.report import write_report

    records = [
        dict(
            id=f"{i}",
            kind="fit",
            model=mark,
            data=mark,
            seed=i,
            setting="quick",
            status=status,
            reason=mark,
            tables=[],
            metrics={},
            settings={"data": mark},
            machine=mark,
            commit=mark,
            versions={"python": mark, "torch": mark},
            command=mark + "```",
        )
        for i, mark in enumerate(HOSTILE[:-2])
        for status in (FAILED, DONE)
    ]
    write_results(tmp_path, records)
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    page = write_report(tmp_path, SETTINGS["quick"], records, [], "fourpoint reproduce").read_text(
        encoding="utf-8"
    )
    assert page == console_lines(page)
    assert not re.search(r"<script|<b onclick|<a href=\"https://e", page)
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert markdown == console_lines(markdown)
    assert not re.search(r"(?<!\\)<script", markdown.split("```")[0])


def test_the_command_reproduce_report_reads_hostile_records(tmp_path: Path) -> None:
    from fourpoint.reproduce.cells import FAILED, write_text

    record = dict(
        id="fit[/x]",
        kind="fit",
        model="[/x]",
        data="\x1b[31m",
        seed=0,
        setting="quick",
        status=FAILED,
        tables=[],
        metrics={},
    )
    record |= dict(reason="=1+1 <script> [closed]", seconds=0.0)
    write_text(tmp_path / "cells" / "a.json", json.dumps(record))
    result = command("reproduce", "report", "--quick", "-o", tmp_path)
    assert "[/x]" in result.stderr and "[closed]" in result.stderr
    assert "'=1+1" in (tmp_path / "results.csv").read_text()
    assert "<script" not in (tmp_path / "report.html").read_text()
