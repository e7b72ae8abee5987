"""The cells of a page: its fenced blocks of Python and shell, run in order in one process.

A comment on the line before a block changes what is done with it:

    <!-- no-run -->            the block is shown and not run
    <!-- hidden -->            the block is run; neither it nor its output is shown
    <!-- folded: title -->     the block is run and shown folded, below this title
    <!-- quiet -->             the block is run; its output is not shown
    <!-- figure: text -->      the text describes the figure that the block draws
    <!-- drawn: text -->       the same, and the block itself is not shown
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("execute.py")
PROCESSES = 2
LIMIT = 600.0  # seconds of one page
COLUMN = 7.2  # inches of a page's text at 96 pixels per inch
WIDE = 10.0  # of a page without navigation at its sides
SHORT = 40  # characters of a line that is never wrapped
TABULAR = re.compile(r" {2,}|[\u2500-\u259f]")  # aligned columns, frames, bars
FENCE = re.compile(
    r"(?:^<!-- (?P<directive>no-run|hidden|quiet|folded|figure|drawn)"
    r"(?:: (?P<text>[^\n]*?))? -->\n)?"
    r"^```(?P<kind>python|sh)\n(?P<body>.*?)^```[ ]*$\n?",
    re.MULTILINE | re.DOTALL,
)


class BrokenCell(Exception):
    """A cell of a page failed."""


@dataclass(frozen=True)
class Executed:
    """What the cells of a page printed and drew, and the folder with the figures."""

    outputs: list[list[dict[str, Any]]]
    folder: Path
    seconds: float


def cells_of(text: str) -> list[dict[str, Any]]:
    """The cells of a page that are run, in order."""
    found = []
    for match in FENCE.finditer(text):
        if match["directive"] != "no-run":
            line = text.count("\n", 0, match.start("body")) + 1
            found.append({"kind": match["kind"], "source": match["body"], "line": line})
    return found


def run_pages(pages: dict[str, str], into: Path) -> dict[str, Executed]:
    """Run the cells of pages (name to text), one process for each page, two at a time."""
    with ThreadPoolExecutor(PROCESSES) as pool:
        runs = {name: pool.submit(run_page, name, text, into) for name, text in pages.items()}
        return {name: run.result() for name, run in runs.items()}


def run_page(name: str, text: str, into: Path) -> Executed:
    """Run the cells of one page in an empty working directory.

    With the variable FOURPOINT_DOCS_REUSE (`make docs-serve`) outputs of the same cells are used
    again, whatever has changed in the package since.
    """
    folder = into / name.removesuffix(".md")
    asked = folder / "cells.json"
    outcome = folder / "outputs.json"
    inches = WIDE if text.startswith("---\nhide:") else COLUMN
    wanted = json.dumps({"page": f"docs/{name}", "inches": inches, "cells": cells_of(text)})
    again = "FOURPOINT_DOCS_REUSE" in os.environ and outcome.exists()
    if again and _sources(asked.read_text(encoding="utf-8")) == _sources(wanted):
        return Executed(json.loads(outcome.read_text(encoding="utf-8")), folder, 0.0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    asked.write_text(wanted, encoding="utf-8")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fourpoint-docs-") as workspace:
        try:
            done = subprocess.run(
                [sys.executable, str(RUNNER), str(asked), str(folder)],
                cwd=workspace,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            raise BrokenCell(f"docs/{name} took more than {LIMIT:.0f} seconds") from None
    if done.returncode:
        raise BrokenCell(done.stderr.strip())
    outputs = json.loads(outcome.read_text(encoding="utf-8"))
    return Executed(outputs, folder, time.monotonic() - began)


def _sources(cells: str) -> list[tuple[str, str]]:
    return [(cell["kind"], cell["source"]) for cell in json.loads(cells)["cells"]]


def environment() -> dict[str, str]:
    """The environment of cells: this tree, one thread, plain text of 84 columns."""
    mine = dict(os.environ)
    source = str(ROOT / "src")
    mine["PYTHONPATH"] = os.pathsep.join(filter(None, [source, mine.get("PYTHONPATH", "")]))
    mine["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), mine.get("PATH", "")])
    mine |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "84", "TERM": "dumb"}
    mine |= {"MPLBACKEND": "Agg", "FOURPOINT_CLONE": str(ROOT)}
    return mine


def with_outputs(text: str, done: Executed, pictures: str) -> str:
    """The page with each cell's output below it; figures are files in the folder ``pictures``."""
    remaining = iter(done.outputs)

    def shown(match: re.Match[str]) -> str:
        directive = match["directive"]
        code = f"```{match['kind']}\n{match['body']}```\n"
        if directive == "no-run":
            return code
        outputs = next(remaining)
        if directive == "hidden":
            return ""
        if directive == "quiet":
            return code
        description = match["text"] if directive in ("figure", "drawn") else ""
        below = "\n".join(_output(one, pictures, description or "") for one in outputs)
        if directive == "drawn":
            code = ""
        elif directive == "folded":
            inner = "".join(f"    {line}\n" if line else "\n" for line in code.splitlines())
            code = f'??? example "{match["text"]}"\n\n{inner}'
        return f"{code}\n{below}\n"

    return FENCE.sub(shown, text)


def _output(output: dict[str, Any], pictures: str, description: str) -> str:
    if output["kind"] == "image":
        text = html.escape(description, quote=True)
        caption = f"<figcaption>{text}</figcaption>" if text else ""
        return (
            f'<figure class="drawn"><div tabindex="0"><img src="{pictures}/{output["name"]}" '
            f'alt="{text}" width="{output["width"]}" height="{output["height"]}"></div>'
            f"{caption}</figure>\n"
        )
    lines = [_line(line) for line in output["text"].split("\n")]
    body = "\n".join(lines).replace("\n\n", "\n&#8203;\n")
    return f'<pre class="output" tabindex="0"><code>{body}</code></pre>\n'


def _line(line: str) -> str:
    """A line of output: a long sentence may be wrapped, a row of a table may not."""
    text = html.escape(line)
    if len(line) <= SHORT or TABULAR.search(line):
        return text
    return f'<span class="sentence">{text}</span>'
