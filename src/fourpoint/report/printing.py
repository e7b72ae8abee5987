"""Text on terminals: consoles that take text as text, tables whose cells are never markup, and one
progress bar.

Rich reads `[bold]` and `:bell:` in any string as markup. Names that come from data may look like
that, so consoles are made here with both switched off, and tables hold :class:`rich.text.Text`,
which is safe in a console of the user's own too.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from fourpoint.report.html import render
from fourpoint.sanitising import console_lines, console_text

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable, RichCast
    from rich.progress import Progress, TextColumn


SOON = 1.0  # seconds after which a bar is shown


def plain_console(stderr: bool = False, **options: Any) -> Console:
    """A console that shows strings as they stand; ``options`` are rich's.

    >>> plain_console(width=20).print("[closed] :bell:")
    [closed] :bell:
    """
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, **options)


def text_table(title: str | None = None, caption: str | None = None, **options: Any) -> Table:
    """A table for a terminal whose title, header, cells and caption are text, made safe by
    :mod:`fourpoint.sanitising`.

    >>> table = text_table("[b]Two", box=None)
    >>> table.add_column("mark")
    >>> table.add_row("[/x]")
    >>> [line.strip() for line in as_text(table).splitlines()]
    ['[b]Two', 'mark', '[/x]']
    """
    return TextTable(title=title, caption=caption, **options)


class TextTable(Table):
    """A table whose strings are shown as they stand, control characters as escapes."""

    def add_column(
        self, header: RenderableType = "", footer: RenderableType = "", **options: Any
    ) -> None:
        """As rich's; line ends in a header are kept, since they are the author's."""
        super().add_column(_as_lines(header), _as_lines(footer), **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """As rich's; strings become text of one line each."""
        super().add_row(*map(_as_cell, cells), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if isinstance(self.title, str) and self.title:
            style = str(self.title_style or "table.title")
            self.title = Text(console_lines(self.title), style=style)
        if isinstance(self.caption, str) and self.caption:
            style = str(self.caption_style or "table.caption")
            self.caption = Text(console_lines(self.caption), style=style)
        yield from super().__rich_console__(console, options)


def _as_cell(cell: RenderableType | None) -> RenderableType | None:
    if not isinstance(cell, str):
        return cell
    return Text(console_text(cell))


def _as_lines(header: RenderableType) -> RenderableType:
    if not isinstance(header, str) or not header:
        return header
    return Text(console_lines(header))


def text_column(template: str = "{task.description}") -> TextColumn:
    """A column of a progress bar that shows text as it stands."""
    from rich.progress import TextColumn

    return TextColumn(template, markup=False)


class Step(Protocol):
    """Moves a bar on: how much of its total is done, and the text beside it from now on."""

    def __call__(self, done: float, text: str | None = None) -> None:
        """Show that ``done`` of the total is done."""


class Printed(ABC):
    """A result with a table (``__rich__``): its text for consoles, and its HTML, escaped, for
    notebooks.
    """

    @abstractmethod
    def __rich__(self) -> ConsoleRenderable:
        """The table."""

    def __str__(self) -> str:
        return as_text(self, width=110)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def as_text(shown: ConsoleRenderable | RichCast, width: int = 100) -> str:
    """``shown`` as lines of at most ``width`` characters, with neither colours nor a last empty
    line.

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


def as_html(shown: ConsoleRenderable | RichCast | str, width: int = 110) -> str:
    """The text of ``shown`` as one preformatted block of HTML; whatever a name holds is escaped.

    >>> as_html("a < b")
    '<pre>a &lt; b</pre>'
    """
    text = shown if isinstance(shown, str) else as_text(shown, width)
    return render("preformatted.html", text=text)


@contextmanager
def bar(what: str, total: float, *, show: bool) -> Iterator[Step]:
    """A progress bar on stderr for work that is still going on after a second; yields the function
    that moves it on.

    Args:
        what: the words before the bar.
        total: what is done in the end.
        show: False draws nothing, whatever the function is told.

    >>> with bar("sampling", 10, show=False) as step:
    ...     step(5)
    """
    began = time.monotonic()
    said = what
    drawn: Progress | None = None

    def step(done: float, text: str | None = None) -> None:
        nonlocal drawn, said
        said = text or said
        if not show:
            return
        if drawn is None and time.monotonic() - began >= SOON:
            drawn = _drawn(said, total)
            drawn.start()
        if drawn is not None:
            drawn.update(drawn.task_ids[0], completed=min(done, total), description=said)

    try:
        yield step
    finally:
        if drawn is not None:
            drawn.stop()


def _drawn(what: str, total: float) -> Progress:
    drawn = progress_bar()
    drawn.add_task(what, total=total)
    return drawn


def progress_bar() -> Progress:
    """A bar on stderr, without tasks yet, that leaves nothing behind."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        text_column(),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=plain_console(stderr=True), transient=True)
