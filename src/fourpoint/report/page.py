"""One self-contained HTML page from parts: numbers, tables, figures and text, in the order they are
added.

The page needs no other file: its style sheet is inline and every figure is inline SVG, so that it
can be mailed, archived and printed. Figures follow the reader's light or dark setting where
``dark`` maps their colours to twins (``fourpoint.plots.charts.DARK`` for ours): each mapped colour
becomes a CSS variable. The HTML itself is in the templates of this package
(:mod:`fourpoint.report.html`).

>>> page = Page("Delays", "Two models of one year of delays.")
>>> page.numbers([("best", "-1.10", "nats per event")]).text("Read **this** first.").code(
...     "fourpoint demo"
... )
Page('Delays', 3 parts)
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fourpoint.atomic import make_folder, write_atomic
from fourpoint.report.html import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Page:
    """A page under construction; every method adds a part and returns the page.

    ``title`` and ``lead`` (a paragraph in the small markup of :meth:`text`) open it; ``dark`` maps
    light hex colours in figures to dark ones, and without it the page is light only; ``kicker`` is
    a line above the title, ``footer`` one at the end. All text is escaped.
    """

    def __init__(
        self,
        title: str,
        lead: str,
        *,
        dark: Mapping[str, str] | None = None,
        kicker: str = "",
        footer: str = "",
    ) -> None:
        self.title = title
        self.lead = lead
        self.kicker = kicker
        self.footer = footer
        self.dark = {light.lower(): twin for light, twin in (dark or {}).items()}
        self._parts: list[Numbers | Table | Picture | Text | Code] = []
        self._figures = 0
        self._tables = 0

    def numbers(self, items: Sequence[tuple[str, str, str]]) -> Page:
        """A strip of key numbers: (label, value, note) each."""
        cells = [tuple(parse_inline(word) for word in item) for item in items]
        self._parts.append(Numbers(cells))
        return self

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        caption: str,
        best_row: int | None = None,
    ) -> Page:
        """A table; columns that hold numbers are set right, and ``best_row`` (from 0) stands
        out.
        """
        self._tables += 1
        right = [False] * len(header)
        if rows:
            right = [all(_numeric(row[i]) for row in rows) for i in range(len(header))]
        part = Table(
            name=f"Table {self._tables}",
            caption=parse_inline(caption),
            header=[parse_inline(name) for name in header],
            rows=[[parse_inline(cell) for cell in row] for row in rows],
            right=right,
            best_row=best_row,
        )
        self._parts.append(part)
        return self

    def figure(
        self, drawing: Axes | Figure, caption: str, *, title: str = "", half: bool = False
    ) -> Page:
        """A figure (or the figure of an Axes) as inline SVG, with a caption; two neighbours with
        ``half`` stand side by side.
        """
        self._figures += 1
        part = Picture(
            name=f"Figure {self._figures}",
            caption=parse_inline(caption),
            title=parse_inline(title),
            label=title or caption,
            svg=_svg(drawing, f"f{self._figures}", self.dark),
            half=half,
        )
        self._parts.append(part)
        return self

    def text(self, markup: str) -> Page:
        r"""Paragraphs separated by blank lines; ``## heading``, ``- item``, ``**bold**``,
        ``*stress*``, ```code```, ``[text](link)``.

        A backslash takes the meaning from the character behind it, which is how
        :func:`fourpoint.sanitising.markup_text` keeps text from data as it stands.
        """
        self._parts.append(Text(parse_blocks(markup)))
        return self

    def code(self, text: str, title: str = "") -> Page:
        """Lines to type, set in a block of their own."""
        self._parts.append(Code(text.strip(), parse_inline(title)))
        return self

    def html(self) -> str:
        """The whole page as text."""
        text = render(
            "page.html",
            title=self.title,
            heading=parse_inline(self.title),
            lead=parse_inline(self.lead),
            kicker=parse_inline(self.kicker),
            footer=parse_inline(self.footer),
            dark=[(_variable(light), light, twin) for light, twin in self.dark.items()],
            parts=self._parts,
        )
        return text + "\n"

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to ``path``, so that a reader never sees half a page."""
        path = Path(path)
        text = self.html()
        make_folder(path.parent)
        write_atomic(path, text)
        return path

    def __repr__(self) -> str:
        return f"Page({self.title!r}, {len(self._parts)} parts)"


@dataclass(frozen=True)
class Piece:
    """A stretch of a line of markup: plain text or code, or an element around other pieces."""

    kind: str
    text: str = ""
    inner: Sequence[Piece] = ()
    link: str = ""


Line = Sequence[Piece]


@dataclass(frozen=True)
class Block:
    """A heading (``h2`` or ``h3``), a ``paragraph`` of one line, or the ``items`` of a list."""

    kind: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Numbers:
    """Key numbers: label, value and note of each."""

    kind: ClassVar[str] = "numbers"
    cells: Sequence[tuple[Line, ...]]


@dataclass(frozen=True)
class Table:
    """A table with its name and caption; ``right`` is True for columns that are set right."""

    kind: ClassVar[str] = "table"
    name: str
    caption: Line
    header: Sequence[Line]
    rows: Sequence[Sequence[Line]]
    right: Sequence[bool]
    best_row: int | None


@dataclass(frozen=True)
class Svg:
    """A drawing: its size in points, and what stands between ``<svg>`` and ``</svg>``."""

    width: float
    height: float
    body: str


@dataclass(frozen=True)
class Picture:
    """A figure with its name, caption and title; ``label`` is for screen readers."""

    kind: ClassVar[str] = "figure"
    name: str
    caption: Line
    title: Line
    label: str
    svg: Svg
    half: bool


@dataclass(frozen=True)
class Text:
    """Headings, paragraphs and lists."""

    kind: ClassVar[str] = "text"
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Code:
    """Lines to type, with a title."""

    kind: ClassVar[str] = "code"
    text: str
    title: Line


_MARKUP = re.compile(
    r"""\\(?P<escaped>[!-/:-@\[-`{-~])
      | `(?P<code>[^`]+)`
      | \[(?P<shown>(?:\\.|`[^`]*`|[^\]\\`])+)\]
        \((?P<link>(?:https?:|\#|\.?/)?[^)\s"<>:\\`]*(?:/[^)\s"<>\\`]*)?)\)
      | \*\*(?P<strong>(?:\\.|[^\\])+?)\*\*
      | (?<![\w*])\*(?P<stress>[^*\s](?:[^*]*[^*\s])?)\*(?![\w*])
    """,
    re.VERBOSE | re.DOTALL,
)


def parse_inline(text: str) -> list[Piece]:
    """The small markup inside a line.

    >>> [piece.kind for piece in parse_inline("A **bold** `word`.")]
    ['text', 'strong', 'text', 'code', 'text']
    """
    pieces: list[Piece] = []
    end = 0
    for found in _MARKUP.finditer(text):
        if found.start() > end:
            pieces.append(Piece("text", text[end : found.start()]))
        pieces.append(_piece(found))
        end = found.end()
    if end < len(text):
        pieces.append(Piece("text", text[end:]))
    return pieces


def _piece(found: re.Match[str]) -> Piece:
    if found["escaped"] is not None:
        return Piece("text", found["escaped"])
    if found["code"] is not None:
        return Piece("code", found["code"])
    if found["shown"] is not None:
        return Piece("link", inner=parse_inline(found["shown"]), link=found["link"])
    if found["strong"] is not None:
        return Piece("strong", inner=parse_inline(found["strong"]))
    return Piece("stress", inner=parse_inline(found["stress"]))


def parse_blocks(markup: str) -> list[Block]:
    """Headings, lists and paragraphs, which blank lines separate.

    >>> [block.kind for block in parse_blocks("## Title\\nWords.\\n\\n- one\\n- two")]
    ['h2', 'paragraph', 'items']
    """
    blocks: list[Block] = []
    for text in re.split(r"\n\s*\n", markup.strip()):
        lines = text.strip().splitlines()
        while lines:
            heading = re.match(r"(#{2,3}) +(.*)", lines[0])
            if heading is None:
                blocks.append(_words(lines))
                break
            blocks.append(Block(f"h{len(heading[1])}", [parse_inline(heading[2])]))
            lines = lines[1:]
    return blocks


def _words(lines: Sequence[str]) -> Block:
    lines = [line.strip() for line in lines]
    if all(line.startswith("- ") for line in lines):
        return Block("items", [parse_inline(line[2:]) for line in lines])
    return Block("paragraph", [parse_inline(" ".join(lines))])


def _numeric(text: str) -> bool:
    """A number, perhaps with a sign, thousands, a unit of few letters, a spread or a remark in
    brackets; or a dash for "none".
    """
    plain = re.sub(r"\*\*|\u00b1.*|\(.*\)", "", text).strip()
    number = r"[+\-\u2212\u2013<~\u2248 ]*[\d.,\u202f ]*(e[+-]?\d+)?\s*[%a-z]{0,3}"
    return re.fullmatch(number, plain, re.IGNORECASE) is not None


def _svg(drawing: Axes | Figure, prefix: str, dark: Mapping[str, str]) -> Svg:
    """The figure as SVG that takes the font of the page, and whose ids are its own."""
    import matplotlib
    from matplotlib.axes import Axes

    figure = drawing.get_figure(root=True) if isinstance(drawing, Axes) else drawing
    if figure is None:
        raise ValueError("expected axes of a figure; received axes that were removed from theirs")
    buffer = io.StringIO()
    unstated = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=unstated)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", buffer.getvalue(), flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for light in dark:
        svg = re.sub(re.escape(light), f"var({_variable(light)})", svg, flags=re.IGNORECASE)
    body = re.sub(r"^.*?<svg[^>]*>", "", svg, count=1, flags=re.DOTALL)
    width, height = (72 * inches for inches in figure.get_size_inches())
    return Svg(width, height, body.rpartition("</svg>")[0])


def _variable(colour: str) -> str:
    return f"--c{colour.lstrip('#')}"
