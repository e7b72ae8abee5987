"""Refusals of what was typed, before anything is computed or written: exit code 2 and three
clauses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from fourpoint.atomic import check_new_file
from fourpoint.cli.console import print_notice
from fourpoint.errors import UserError

Choice = TypeVar("Choice", bound=str)
WINDOW_WORDS = ("each", "all")  # windows without two edges of their own
MOST_VALUES = 3  # of an option with several values
VALUE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([T ].*)?|[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")
PICTURES = (".png", ".svg", ".pdf")


def one_of(option: str, text: str, allowed: Sequence[Choice]) -> Choice:
    """The text, if it is allowed for this option; else an error with the nearest that is.

    >>> one_of("--ties", "keep", ("keep", "error", "jitter", "drop"))
    'keep'
    """
    from difflib import get_close_matches

    for choice in allowed:
        if text == choice:
            return choice
    near = get_close_matches(text, allowed, n=1, cutoff=0.4)
    remedy = f"Did you mean {near[0]!r}?" if near else "Choose one of them."
    raise UserError(f"{option} to be one of {', '.join(allowed)}", f"{text!r}", remedy)


def joined_values(words: Sequence[str], option: str) -> list[str]:
    """What was typed, with the numbers, shares and dates after ``option`` joined into one word.

    >>> joined_values(["fit", "--split-at", "2025-05-01", "2025-06-01", "x.csv"], "--split-at")
    ['fit', '--split-at', '2025-05-01,2025-06-01', 'x.csv']
    """
    found: list[str] = []
    place = 0
    while place < len(words):
        found.append(words[place])
        place += 1
        if found[-1] != option:
            continue
        first = place
        while place < len(words) and place < first + MOST_VALUES and VALUE.fullmatch(words[place]):
            place += 1
        if place > first:
            found.append(",".join(words[first:place]))
    return found


def with_both_edges(words: Sequence[str]) -> list[str]:
    """What was typed, with the one word after ``--window`` that stands for both edges repeated.

    >>> with_both_edges(["fit", "--window", "each", "x.csv"])
    ['fit', '--window', 'each', 'each', 'x.csv']
    """
    found: list[str] = []
    for place, word in enumerate(words):
        found.append(word)
        of_window = place > 0 and words[place - 1] == "--window"
        if of_window and word in WINDOW_WORDS and list(words[place + 1 : place + 2]) != [word]:
            found.append(word)
    return found


def check_applies(what: str, option: str, fine: bool) -> None:
    """Refuse an option that would be ignored."""
    if not fine:
        raise UserError(f"options that {what} has", option, f"Leave {option} out.")


def check_picture(file: Path | None) -> None:
    """Refuse what cannot be drawn or written before anything is computed."""
    if file is None:
        return
    check_new_file(
        file, PICTURES, f"a picture with the extension {', '.join(PICTURES)}", f"{file.stem}.png"
    )


def check_folder(folder: Path, resume: bool) -> None:
    """A folder for a model must be new, empty, or a model's: nothing else is written into or
    over.
    """
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        fault = "cannot be written to" if nearest.is_dir() else "is a file"
        raise UserError(
            "a folder for the model",
            f"{folder}: {nearest} {fault}",
            "Choose another place with -o.",
        )
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    from fourpoint.storage.checkpoints import left_by_a_fit

    if (folder / "model.json").is_file():
        if not resume:
            print_notice(
                f"{folder} holds a model already: it is replaced once the new one has been "
                "validated"
            )
        return
    if not (folder / "training.json").is_file() and not left_by_a_fit(folder):
        raise UserError(
            "a new or empty folder, or one with a model",
            f"{folder}, which holds other files",
            "Choose another name with -o.",
        )
