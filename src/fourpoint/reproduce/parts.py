"""What a report is made of, before it is HTML or Markdown."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["text", "numbers", "table", "figure", "code"]


class Part(NamedTuple):
    """One part: text in the small markup of `page`, numbers, a table (header and rows), a drawn
    figure, or lines to type.
    """

    kind: Kind
    content: Any
    caption: str = ""
    title: str = ""
