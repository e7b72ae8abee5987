"""What the repository contains: source, and no path of the machine that something was made on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fourpoint.cli.main import app
from fourpoint.reproduce import commands

# Folders that exist on one machine only. "/path/to/x" and "/dev/null" in an example are none.
# The pattern is written so that this file does not contain what it searches for.
MACHINE_PATH = re.compile(
    rb"""(?<![\w.)}\]$*-])
    (?: /(?:root|home|Users|work|workspace|tmp|mnt|private|scratch)/[\w.~-]
      | /[r]oot\b
      | [A-Za-z]:[\\/]+Users[\\/] )""",
    re.VERBOSE,
)


def tracked(root: Path) -> list[Path]:
    """The files that git knows, less those that are deleted in the working tree."""
    try:
        found = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this copy of the source is not a git repository")
    names = [name for name in found.stdout.decode().split("\0") if name]
    return [root / name for name in names if (root / name).is_file()]


def test_no_tracked_file_names_a_folder_of_a_machine(root: Path) -> None:
    found = []
    for file in tracked(root):
        content = file.read_bytes()
        for match in MACHINE_PATH.finditer(content):
            line = content.count(b"\n", 0, match.start()) + 1
            found.append(f"{file.relative_to(root)}:{line} {match[0].decode()}")
    assert not found


@pytest.mark.parametrize(
    ("before", "path"),
    [
        ("--real ", "/{}/shared/data"),
        ("file://", "/{}/x"),
        ('"', "/{}/me/events.csv"),
        ("=", "/{}/y"),
    ],
)
@pytest.mark.parametrize("folder", ["root", "home", "Users", "work", "tmp", "mnt"])
def test_paths_of_machines_are_recognised(before: str, path: str, folder: str) -> None:
    assert MACHINE_PATH.search((before + path.format(folder)).encode())
    assert MACHINE_PATH.search("open('C:{}me')".format("\\Users\\").encode())


@pytest.mark.parametrize(
    "text", ["/path/to/python3.11", "/dev/null", "#!/usr/bin/env", "../shared/data", "docs/home/x"]
)
def test_other_paths_are_allowed(text: str) -> None:
    assert not MACHINE_PATH.search(text.encode())


def test_results_are_one_report_and_its_tables(root: Path) -> None:
    files = [file.relative_to(root) for file in tracked(root)]
    results = {file.name for file in files if file.parts[0] == "results"}
    assert results == {"report.md", "results.csv", "table1.csv", "table2.csv"}
    assert {file.suffix for file in files if file.parts[:2] == ("benchmarks", "results")} == {
        ".json"
    }


def test_records_of_reproduction_hold_no_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is recorded with DIR in place of folders of this machine."""
    told: list[str] = []
    monkeypatch.setattr(commands, "reproduce", lambda *given: told.append(given[-1]))
    words = ["reproduce", "report", "--real", str(tmp_path), f"--output={tmp_path}", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["fourpoint", *words])
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert told == ["fourpoint reproduce report --real DIR --output=DIR --seeds 2"]
