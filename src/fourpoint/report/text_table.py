"""Rich's table with text in place of markup, which
:func:`fourpoint.report.printing.text_table` makes.

It is a module of its own so that rich is imported only when a table is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from fourpoint.sanitising import console_lines, console_text


class TextTable(Table):
    """A table whose strings are shown as they stand, control characters as escapes."""

    def add_column(self, header: Any = "", footer: Any = "", **options: Any) -> None:
        """As rich's; line ends in a header are kept, since they are the author's."""
        super().add_column(_as_lines(header), _as_lines(footer), **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """As rich's; strings become text of one line each."""
        super().add_row(*map(_as_cell, cells), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        self.title = _as_lines(self.title, str(self.title_style or "table.title"))
        self.caption = _as_lines(self.caption, str(self.caption_style or "table.caption"))
        yield from super().__rich_console__(console, options)


def _as_cell(cell: Any) -> RenderableType | None:
    if not isinstance(cell, str):
        return cell
    return Text(console_text(cell))


def _as_lines(text: Any, style: str = "") -> Any:
    if not isinstance(text, str) or not text:
        return text
    return Text(console_lines(text), style=style)
