"""Tables as plain text: what ``print`` shows of a report that has a rich table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable, RichCast


def as_text(shown: ConsoleRenderable | RichCast, width: int = 100) -> str:
    """``shown`` as lines of at most ``width`` characters, with neither colours nor a last empty line.

    >>> from rich.table import Table
    >>> table = Table("events", show_edge=False)
    >>> table.add_row("3")
    >>> [line.strip() for line in as_text(table, width=20).splitlines()][::2]
    ['events', '3']
    """
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as capture:
        console.print(shown)
    return capture.get().rstrip()
