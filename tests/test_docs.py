"""The documentation is true: Python blocks run but for those with a reason in NOT_RUN, which
compile, and links lead somewhere.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```\s*$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN = {
    "docs/places.md": (
        "a DAPP with places is fitted to a catalogue of earthquakes, which takes minutes"
    )
}
# Pages that are run by `make docs`; scripts/site/hooks.py has the same list.
EXECUTED = ("index.md", "get-started.md", "gallery.md", "tutorials/*.md", "concepts/*.md")
# Files that the build of the site makes; it checks the links to them.
GENERATED = ("docs/api/", "docs/cli/", "docs/results/", "docs/changelog.md", "docs/contributing.md")
TYPED = ("docs/formats.md",)  # whose commands are run
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|(?:src|href)=\"([^\"]+)\"")


@dataclass
class Block:
    """One fenced block of a page; ``line`` is that of its first line of code."""

    page: Path
    line: int
    kind: str
    source: str
    run: bool

    def compiled(self) -> Any:
        """The code, with line numbers of the page."""
        return compile("\n" * (self.line - 1) + self.source, str(self.page), "exec")


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page. ``<!-- no-run -->`` on the line before a block keeps it from
    being run.
    """
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        above = text[: match.start()].rstrip("\n").rsplit("\n", 1)[-1].strip()
        line = text.count("\n", 0, match.start("body")) + 1
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        found.append(Block(page, line, match["kind"], body, above != "<!-- no-run -->"))
    return found


def save_a_model(folder: Path) -> None:
    """What `docs/forecasting.md` restores: a model of the embedded delays, quickly fitted to some
    of the days.
    """
    days = fp.load("nyc_delays").part("train")[:40]
    fp.fit(fp.Hawkes(days.marks), days, folder=folder / "model", progress=False)


def write_calls(folder: Path) -> None:
    """The file that `docs/reading.md` reads."""
    rows = ["2024-01-01 09:15:00,fire", "2024-01-01 17:40:30,medical", "2024-01-02 00:05:00,fire"]
    (folder / "calls.csv").write_text("\n".join(["received_at,call_type", *rows]) + "\n")


PREPARED = {
    "docs/calibration.md": save_a_model,
    "docs/forecasting.md": save_a_model,
    "docs/reading.md": write_calls,
}  # what a page takes as given


def has_python(page: Path, *, run: bool) -> bool:
    return any(block.kind == "python" and block.run == run for block in blocks(page))


def at_build(page: Path) -> bool:
    """Whether a page is run when the site is built (`make docs`), and not here."""
    name = page.relative_to(ROOT).as_posix()
    return name.startswith("docs/") and any(
        fnmatch(name, f"docs/{pattern}") for pattern in EXECUTED
    )


RUN = [
    str(page.relative_to(ROOT))
    for page in PAGES
    if has_python(page, run=True) and not at_build(page)
]


@pytest.mark.parametrize("page", RUN)
def test_python_blocks_run_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PREPARED.get(page, lambda folder: None)(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(ROOT / page):
        if block.kind == "python" and block.run:
            exec(block.compiled(), namespace)


def test_blocks_that_are_not_run_have_a_reason() -> None:
    not_run = {str(page.relative_to(ROOT)) for page in PAGES if has_python(page, run=False)}
    assert not_run == set(NOT_RUN)
    assert set(PREPARED) <= set(RUN)


@pytest.mark.parametrize("page", TYPED)
def test_commands_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / page):
        lines = block.source.splitlines() if block.kind == "sh" and block.run else []
        for line in lines:
            command, *words = shlex.split(line, comments=True)
            assert command == "fourpoint"
            found = CliRunner().invoke(app, words)
            assert found.exit_code == 0, f"{line}\n{found.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "python":
            block.compiled()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        file, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / file).resolve() if file else page
        if there.suffix == ".html" and there.is_relative_to(ROOT / "docs"):
            there = there.with_suffix(".md")  # of which the site makes this page
        if there.is_relative_to(ROOT) and str(there.relative_to(ROOT)).startswith(GENERATED):
            continue
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(there)
        ):
            broken.append(target)
    assert not broken, f"{page.relative_to(ROOT)} links to what does not exist: {broken}"


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get: lower case, punctuation dropped, spaces as
    hyphens.
    """
    headings = re.findall(
        r"^#+ +(.+?) *$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_map_of_the_code_is_true() -> None:
    """Files, packages and functions that CONTRIBUTING.md names exist."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "fourpoint"
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|json|md))`", text)
    assert len(named) > 20
    gone = [
        f for f in named if "NAME" not in f and not any((r / f).exists() for r in (source, ROOT))
    ]
    assert not gone, f"CONTRIBUTING.md names files that do not exist: {gone}"
    table = text.partition("| package | contents |")[2].partition("\n\n")[0]
    described = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in words(row)}
    packages = {folder.parent.name for folder in source.glob("*/__init__.py")}
    assert packages <= described, packages - described
    path = text.partition("## The path of one event")[2].partition("\n## ")[0]
    calls = re.findall(r"`((?:\w+\.)+\w+)`", path.replace("`calls.csv`", ""))
    assert len(calls) > 15
    everything = "\n".join(file.read_text(encoding="utf-8") for file in source.rglob("*.py"))
    unknown = [call for call in calls if not defined(call.rpartition(".")[2], everything)]
    assert not unknown, f"CONTRIBUTING.md names functions that do not exist: {unknown}"


def words(row: str) -> list[str]:
    return re.findall(r"`(\w+)`", row)


def defined(name: str, source: str) -> bool:
    if re.search(rf"^ *(?:def|class) {name}\b", source, re.MULTILINE):
        return True
    return (ROOT / "src" / "fourpoint" / "ops" / f"{name}.py").exists()


def test_the_list_of_executed_pages_is_that_of_the_build() -> None:
    hooks = (ROOT / "scripts" / "site" / "hooks.py").read_text(encoding="utf-8")
    listed = re.search(r"^EXECUTED = \((.*?)\)", hooks, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert set(EXECUTED) <= set(re.findall(r'"([^"]+)"', listed[1]))


def test_a_block_may_opt_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text.\n\n<!-- no-run -->\n```python\nraise SystemExit\n```\n\n```python\nx = "
        "1\n```\n\n```sh\nls\n```\n"
    )
    assert [(b.kind, b.run, b.line) for b in blocks(page)] == [
        ("python", False, 5),
        ("python", True, 9),
        ("sh", True, 13),
    ]
