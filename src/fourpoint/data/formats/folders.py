"""One file per split: the folders that EasyTPP, the Neural Hawkes pickles, Du et al. and HoTPP hand
out.

A file's split is a word of its name: ``train``, ``dev`` (or ``valid``, ``validation``, ``val``) or
``test``.
"""

from __future__ import annotations

import re
from pathlib import Path

from fourpoint.data.formats.annex import ALIASES, parts_of
from fourpoint.events import Dataset, EventDataError, UserError


def split_of(path: Path) -> str | None:
    """The split that a file's name says, or None.

    >>> (
    ...     split_of(Path("time-1-train.txt")),
    ...     split_of(Path("val.parquet")),
    ...     split_of(Path("events.json")),
    ... )
    ('train', 'dev', None)
    """
    words = re.split(r"[^a-z]+", path.name.lower())
    found = {ALIASES[word] for word in words if word in ALIASES}
    return found.pop() if len(found) == 1 else None


def split_files(folder: Path, endings: tuple[str, ...], what: str) -> list[tuple[str | None, Path]]:
    """The files of a folder with one of these endings, by split in the order train, dev, test; a
    lone file may have any name.

    Fails with :class:`EventDataError` where there are none, two of one split, or one whose name
    says no split: nothing in the folder is left out silently.
    """
    files = [
        p
        for p in sorted(folder.iterdir())
        if p.name.lower().endswith(endings) and not p.name.startswith(".")
    ]
    if len(files) == 1:
        return [(split_of(files[0]), files[0])]
    found: dict[str, Path] = {}
    for path in files:
        split = split_of(path)
        if split is None or split in found:
            other = f"besides {found[split].name}" if split else "whose name says no split"
            raise EventDataError(
                f"{what}: one file each for train, dev and test",
                f"{path}, {other}",
                "Name the one file to read, or move the others.",
            )
        found[split] = path
    if not found:
        raise EventDataError(
            f"{what}: files such as train{endings[0]}",
            f"{folder}, which holds none",
            "Check the path.",
        )
    return [(split, found[split]) for split in ("train", "dev", "test") if split in found]


def split_targets(
    data: Dataset, target: Path, ending: str, names: dict[str, str] | None = None
) -> list[tuple[Path, Dataset]]:
    """Which file gets which part: ``target`` itself gets all where it has a suffix, else it is a
    folder, made if need be.

    In a folder each split gets ``train``, ``dev`` and ``test`` (or what ``names`` says) with
    ``ending``, and data without splits goes to ``events`` with it.
    """
    parts = parts_of(data)
    if target.suffix and not target.is_dir():
        return [(target, data)]
    make_folder(target)
    called = names or {}
    return [
        (target / f"{called.get(split, split) or 'events'}{ending}", part)
        for split, part in parts.items()
    ]


def make_folder(target: Path) -> None:
    """Make a folder to write into; its own folder must exist, and it must not be a file."""
    if target.exists() and not target.is_dir():
        raise UserError(
            "a folder, or a path where one can be made",
            f"{target}, which is a file",
            "Choose another name.",
        )
    if not target.absolute().parent.is_dir():
        raise UserError("a path in an existing folder", f"{target}", "Make the folder first.")
    target.mkdir(exist_ok=True)
