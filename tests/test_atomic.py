"""Files appear whole or not at all, orphaned ones go, and a lock ends with its process."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fourpoint import atomic
from fourpoint.atomic import TEMPORARY, locked, make_folder, write_atomic
from fourpoint.events import UserError

SOURCE = Path(atomic.__file__).parents[1]


def run(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process of its own, which may be killed."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def orphans(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if TEMPORARY.fullmatch(path.name)]


KILLED_BEFORE_RENAME = """
import os, sys
from fourpoint.atomic import write_atomic
os.replace = lambda *paths: os._exit(9)
write_atomic(sys.argv[1], "new")
"""


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    assert run(KILLED_BEFORE_RENAME, target).returncode == 9
    assert target.read_text() == "old" and len(orphans(tmp_path)) == 1
    write_atomic(tmp_path / "b.txt", "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_files_of_a_writer_at_work_stay(tmp_path: Path) -> None:
    """One process is in the middle of a file when another first writes into the same folder."""

    def slow(draft: Path) -> None:
        draft.write_text("half")
        assert (
            run(
                "import sys; from fourpoint import atomic; atomic.write_atomic(sys.argv[1], 'b')",
                tmp_path / "b",
            ).returncode
            == 0
        )
        assert draft.read_text() == "half"
        draft.write_text("whole")

    write_atomic(tmp_path / "a", slow)
    assert sorted((path.name, path.read_text()) for path in tmp_path.iterdir()) == [
        ("a", "whole"),
        ("b", "b"),
    ]


def test_other_files_that_begin_with_a_point_stay(tmp_path: Path) -> None:
    for name in (".fourpoint-notes.tmp", ".hidden", ".fourpoint-0123456789abcdef.tmp.png"):
        (tmp_path / name).write_text("mine")
    write_atomic(tmp_path / "a", "x")
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    "content",
    [b"new", "new", lambda draft: draft.write_text("new")],
    ids=["bytes", "text", "function"],
)
def test_each_step_is_on_disk_before_the_next(
    content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def call(file: Any, *rest: Any) -> Any:
            path = (
                str(Path(f"/proc/self/fd/{file}").readlink())
                if isinstance(file, int)
                else str(file)
            )
            done.append(
                (name, "draft" if TEMPORARY.fullmatch(Path(path).name) else Path(path).name)
            )
            if name == "fsync" and done[-1][1] == "draft":
                assert Path(path).read_text() == "new", "content reaches the disk with this call"
            return real(file, *rest)

        monkeypatch.setattr(os, name, call)

    noted("fsync")
    noted("replace")
    write_atomic(tmp_path / "a", content)
    assert done == [("fsync", "draft"), ("replace", "draft"), ("fsync", tmp_path.name)]
    done.clear()
    write_atomic(tmp_path / "a", content, sync=False)
    assert done == [("replace", "draft")]


@pytest.mark.parametrize("name", ["write", "fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a"
    target.write_text("old")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(target, "new")
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_names_as_long_as_the_system_takes(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("n" * 255), "x")
    assert (tmp_path / ("n" * 255)).read_text() == "x"


def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_atomic(pipe, "through")
    reader.join()
    assert found == ["through"] and stat.S_ISFIFO(pipe.stat().st_mode)
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    write_atomic(link, lambda draft: draft.write_text("nowhere"))
    assert link.is_symlink() and not orphans(tmp_path)


def test_folders_are_made_and_their_names_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic, "sync_folder", synced.append)
    assert make_folder(tmp_path / "a" / "b").is_dir() and synced == [tmp_path, tmp_path / "a"]
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_a_lock_is_for_one_process_and_ends_with_it(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    imports = "import sys; from pathlib import Path; from fourpoint.atomic import locked\n"
    held = imports + "with locked(Path(sys.argv[1]), 'a folder'): "
    with locked(lock, "a folder", "Wait."):
        refused = run(held + "pass", lock)
        assert (
            refused.returncode == 1
            and "expected a folder for this process alone; received" in refused.stderr
        )
        with (
            pytest.raises(UserError, match=r"received one that another process is using\. Wait\."),
            locked(lock, "a folder", "Wait."),
        ):
            pass
    assert not lock.exists()
    assert run(held + "import os; os._exit(9)", lock).returncode == 9 and lock.exists()
    with locked(lock, "a folder"):
        pass
    assert not lock.exists()


def test_there_is_no_other_writer() -> None:
    """Renames and temporary names belong to `atomic`; others would be a second implementation."""
    pattern = re.compile(
        r"os\.(replace|rename)\(|\.rename\(|(draft|temporary|fresh)\.replace\(|"
        r"NamedTemporaryFile|mkstemp"
    )
    found = [
        f"{path.name}:{number}"
        for path in sorted((SOURCE / "fourpoint").rglob("*.py"))
        if path.name != "atomic.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found
