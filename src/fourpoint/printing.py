"""Text on terminals: consoles that take text as text, and tables whose cells are never markup.

Rich reads `[bold]` and `:bell:` in any string as markup. Names that come from data may look like that, so consoles are made
here with both switched off, and tables hold :class:`rich.text.Text`, which is safe in a console of the user's own too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleRenderable, RichCast
    from rich.progress import TextColumn
    from rich.table import Table


def plain_console(stderr: bool = False, **options: Any) -> Console:
    """A console that shows strings as they stand; ``options`` are rich's.

    >>> plain_console(width=20).print("[closed] :bell:")
    [closed] :bell:
    """
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, **options)


def text_table(title: str = "", caption: str = "", **options: Any) -> Table:
    """A table for a terminal whose title, header, cells and caption are text, made safe by :mod:`fourpoint.sanitising`.

    >>> table = text_table("[b]Two", box=None)
    >>> table.add_column("mark")
    >>> table.add_row("[/x]")
    >>> [line.strip() for line in as_text(table).splitlines()]
    ['[b]Two', 'mark', '[/x]']
    """
    from fourpoint.text_table import TextTable

    return TextTable(title=title, caption=caption, **options)


def text_column(template: str = "{task.description}") -> TextColumn:
    """A column of a progress bar that shows text as it stands."""
    from rich.progress import TextColumn

    return TextColumn(template, markup=False)


def as_text(shown: ConsoleRenderable | RichCast, width: int = 100) -> str:
    """``shown`` as lines of at most ``width`` characters, with neither colours nor a last empty line.

    >>> table = text_table(show_edge=False)
    >>> table.add_column("events")
    >>> table.add_row("3")
    >>> [line.strip() for line in as_text(table, width=20).splitlines()][::2]
    ['events', '3']
    """
    console = plain_console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return capture.get().rstrip()
