"""Every figure of docs/figures.md has a command, and a commit of this history."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "docs" / "figures.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Seven or more hexadecimal digits with a letter among them: a number has none.
COMMIT = re.compile(r"(?<![\w./#-])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,40}(?!\w)")
SCRIPT = re.compile(r"\bbenchmarks/(\w+\.py)")
# Scripts that a page explains, and quotes no figure of.
EXPLAINED = {
    "leaderboard.md": {"easytpp_models.py"},
    "model.md": {"budget.py", "memory.py"},
    "performance.md": {"page.py"},
    "reading.md": {"reading.py"},
    "scale.md": {"leaderboard.py"},
}


def rows() -> list[list[str]]:
    """Cells of the table: figure, pages, command, commit."""
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def in_column(cell: str) -> list[str]:
    """The commits in a cell of the last column, where a number is one too."""
    return re.findall(r"\b[0-9a-f]{7,40}\b(?!\*)", cell)


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def history() -> None:
    """Skip where the history is not at hand."""
    if not (ROOT / ".git").exists():
        pytest.skip("this copy of the source is not a git repository, so its history is unknown")
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip(
            "this clone is shallow: run `git fetch --unshallow` to check commits of figures"
        )


def test_every_row_has_pages_a_command_and_a_commit() -> None:
    assert len(rows()) > 40
    for row in rows():
        assert len(row) == 4, row
        figure, pages, command, commit = row
        assert "](" in pages, figure
        assert "`" in command, figure
        assert in_column(commit) or commit == "at every commit", figure
        for script in re.findall(r"\b(?:benchmarks|tests)/\w+\.py", command):
            assert (ROOT / script).is_file(), f"{figure}: {script}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_benchmarks_that_a_page_quotes_are_listed(page: Path) -> None:
    name = page.relative_to(ROOT / "docs" if page.is_relative_to(ROOT / "docs") else ROOT)
    quoted = set(SCRIPT.findall(page.read_text(encoding="utf-8")))
    listed = {
        s for row in rows() if f"]({name.as_posix()})" in row[1] for s in SCRIPT.findall(row[2])
    }
    assert page == LIST or quoted <= listed | EXPLAINED.get(name.as_posix(), set())


def test_commits_of_figures_are_in_the_history(history: None) -> None:
    named = {c: page for page in PAGES for c in COMMIT.findall(page.read_text(encoding="utf-8"))}
    named |= {commit: LIST for row in rows() for commit in in_column(row[3])}
    assert len(named) > 20
    lost = [
        f"{page.relative_to(ROOT)}: {commit}"
        for commit, page in sorted(named.items())
        if git("merge-base", "--is-ancestor", commit, "HEAD").returncode
    ]
    assert not lost, f"expected commits of the history of HEAD; received {lost}"
