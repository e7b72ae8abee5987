"""Docstrings as Markdown: examples become blocks of code, and roles such as ``:class:`X``` code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")


class Markdown(Extension):
    """Prepares docstrings before they are parsed."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of every object that is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring in Google style, with its examples fenced.

    >>> print(as_markdown("Add.\\n\\n>>> 1 + 1\\n2").replace("`", "'"))
    Add.
    <BLANKLINE>
    '''pycon
    >>> 1 + 1
    2
    '''
    """
    lines: list[str] = []
    fence = ""  # the indentation of the example that is open
    inside = False
    for line in ROLE.sub(r"`\1`", text).splitlines():
        stripped = line.lstrip()
        if not inside and stripped.startswith(">>> "):
            fence = line[: len(line) - len(stripped)]
            if lines and lines[-1].strip():
                lines.append("")
            lines.append(f"{fence}```pycon")
            inside = True
        elif inside and not stripped:
            lines.append(f"{fence}```")
            inside = False
        lines.append(line)
    if inside:
        lines.append(f"{fence}```")
    return "\n".join(lines)
