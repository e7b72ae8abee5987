"""One self-contained HTML page from parts: numbers, tables, figures and text, in the order they are
added.

The page needs nothing but itself: its style sheet is inline and every figure is inline SVG, so it
can be mailed, archived
and printed. Figures follow the reader's light or dark setting where ``dark`` maps their colours to
twins (``fourpoint.plots.charts.DARK`` for ours): each mapped colour becomes a CSS variable. It knows no
model and no data.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fourpoint.atomic import make_folder, write_atomic
from fourpoint.sanitising import html_text

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
        self.title, self.lead, self.kicker, self.footer = title, lead, kicker, footer
        self.dark = {k.lower(): v for k, v in (dark or {}).items()}
        self._parts: list[str] = []
        self._figures = 0
        self._tables = 0

    def numbers(self, items: Sequence[tuple[str, str, str]]) -> Page:
        """A strip of key numbers: (label, value, note) each."""
        cells = "".join(
            (
                "<div "
                f'class="number"><dt>{_inline(label)}</dt><dd><b>{_inline(value)}</b><span>{_inline(note)}</span></dd></div>'
            )
            for label, value, note in items
        )
        return self._add(f'<dl class="numbers">{cells}</dl>')

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
        right = [bool(rows) and all(_numeric(row[i]) for row in rows) for i in range(len(header))]
        head = "".join(
            _cell("th", name, flag, ' scope="col"')
            for name, flag in zip(header, right, strict=True)
        )
        body = ""
        for r, row in enumerate(rows):
            cells = "".join(_cell("td", cell, flag) for cell, flag in zip(row, right, strict=True))
            body += f'<tr class="best">{cells}</tr>' if r == best_row else f"<tr>{cells}</tr>"
        self._tables += 1
        label = (
            f'<figcaption><b class="tag">Table {self._tables}</b> {_inline(caption)}</figcaption>'
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return self._add(
            f'<figure class="table">{label}{_scrolling(table, f"Table {self._tables}")}</figure>'
        )

    def figure(
        self, drawing: Axes | Figure, caption: str, *, title: str = "", half: bool = False
    ) -> Page:
        """A figure (or the figure of an Axes) as inline SVG, with a caption; two neighbours with
        ``half`` stand side by side.
        """
        self._figures += 1
        svg = _svg(drawing, f"f{self._figures}", title or caption, self.dark)
        heading = f"<h3>{_inline(title)}</h3>" if title else ""
        label = (
            f'<figcaption><b class="tag">Figure {self._figures}</b> {_inline(caption)}</figcaption>'
        )
        kind = "plot half" if half else "plot"
        shown = _scrolling(svg, f"Figure {self._figures}")
        return self._add(f'<figure class="{kind}">{heading}{shown}{label}</figure>')

    def text(self, markup: str) -> Page:
        r"""Paragraphs separated by blank lines; ``## heading``, ``- item``, ``**bold**``,
        ``*stress*``, ```code```, ``[text](link)``.

        A backslash takes the meaning from the character behind it, which is how
        :func:`fourpoint.sanitising.markup_text` keeps text from data as it stands.
        """
        return self._add(
            "\n".join(
                _block(block) for block in re.split(r"\n\s*\n", markup.strip()) if block.strip()
            )
        )

    def code(self, text: str, title: str = "") -> Page:
        """Lines to type, set in a block of their own."""
        head = f'<p class="code-title">{_inline(title)}</p>' if title else ""
        return self._add(
            f'<div class="code">{head}<pre><code>{html_text(text.strip())}</code></pre></div>'
        )

    def html(self) -> str:
        """The whole page as text."""
        kicker = f'<p class="kicker">{_inline(self.kicker)}</p>' if self.kicker else ""
        footer = f"<footer>{_inline(self.footer)}</footer>" if self.footer else ""
        return _FRAME.format(
            title=html_text(self.title),
            scheme="light dark" if self.dark else "light",
            css=_style_sheet(self.dark),
            head=f'{kicker}<h1>{_inline(self.title)}</h1><p class="lead">{_inline(self.lead)}</p>',
            body="\n".join(self._parts),
            footer=footer,
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to ``path``, so that a reader never sees half a page."""
        path = Path(path)
        text = self.html()
        make_folder(path.parent)
        write_atomic(path, text)
        return path

    def _add(self, part: str) -> Page:
        self._parts.append(part)
        return self

    def __repr__(self) -> str:
        return f"Page({self.title!r}, {len(self._parts)} parts)"


def _scrolling(content: str, name: str) -> str:
    """A part that scrolls sideways where it is wider than the screen, also by keyboard; shadows
    show that there is more.
    """
    return (
        f'<div class="scroll" role="region" aria-label="{html_text(name)}" '
        f'tabindex="0">{content}</div>'
    )


def _cell(tag: str, text: str, right: bool, more: str = "") -> str:
    side = ' class="right"' if right else ""
    return f"<{tag}{more}{side}>{_inline(text)}</{tag}>"


def _numeric(text: str) -> bool:
    """A number, perhaps with a sign, thousands, a unit of few letters, a spread or a remark in
    brackets; or a dash for "none".
    """
    text = re.sub(r"\*\*|\u00b1.*|\(.*\)", "", text)
    return (
        re.fullmatch(
            r"[+\-\u2212\u2013<~\u2248 ]*[\d.,\u202f ]*(e[+-]?\d+)?\s*[%a-z]{0,3}",
            text.strip(),
            re.IGNORECASE,
        )
        is not None
    )


_MARKUP = re.compile(
    r"""\\(?P<escaped>[!-/:-@\[-`{-~])
      | `(?P<code>[^`]+)`
      | \[(?P<shown>(?:\\.|`[^`]*`|[^\]\\`])+)\]\((?P<link>(?:https?:|\#|\.?/)?[^)\s"<>:\\`]*(?:/[^)\s"<>\\`]*)?)\)
      | \*\*(?P<strong>(?:\\.|[^\\])+?)\*\*
      | (?<![\w*])\*(?P<stress>[^*\s](?:[^*]*[^*\s])?)\*(?![\w*])
    """,
    re.VERBOSE | re.DOTALL,
)


def _inline(text: str) -> str:
    """The small markup inside a line. Each piece of text is escaped where it is written, also
    inside links and code.
    """
    out, at = [], 0
    for found in _MARKUP.finditer(text):
        out.append(html_text(text[at : found.start()]))
        out.append(_element(found))
        at = found.end()
    return "".join(out) + html_text(text[at:])


def _element(found: re.Match[str]) -> str:
    if found["escaped"] is not None:
        return html_text(found["escaped"])
    if found["code"] is not None:
        return f"<code>{html_text(found['code'])}</code>"
    if found["shown"] is not None:
        return f'<a href="{html_text(found["link"])}">{_inline(found["shown"])}</a>'
    if found["strong"] is not None:
        return f"<strong>{_inline(found['strong'])}</strong>"
    return f"<em>{_inline(found['stress'])}</em>"


def _block(block: str) -> str:
    lines = block.strip().splitlines()
    heading = re.match(r"(#{2,3}) +(.*)", lines[0])
    if heading:
        rest = "\n".join(lines[1:]).strip()
        level = len(heading[1])
        return f"<h{level}>{_inline(heading[2])}</h{level}>" + (_block(rest) if rest else "")
    if all(line.lstrip().startswith("- ") for line in lines):
        return (
            "<ul>" + "".join(f"<li>{_inline(line.lstrip()[2:])}</li>" for line in lines) + "</ul>"
        )
    return f"<p>{_inline(' '.join(line.strip() for line in lines))}</p>"


def _svg(drawing: Axes | Figure, prefix: str, label: str, dark: Mapping[str, str]) -> str:
    """The figure as an SVG element that scales with the page, takes its font, and whose ids are its
    own.
    """
    import matplotlib

    buffer = io.StringIO()
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": prefix}
    figure: Any = getattr(drawing, "figure", None) or drawing
    with matplotlib.rc_context(settings):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", buffer.getvalue(), flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for light in dark:
        svg = re.sub(re.escape(light), f"var({_variable(light)})", svg, flags=re.IGNORECASE)
    width, height = (72 * inches for inches in figure.get_size_inches())
    size = f'viewBox="0 0 {width:g} {height:g}" style="--natural:{width * 4 / 3:.0f}px"'
    opening = (
        f'<svg {size} role="img" aria-label="{html_text(label)}" '
        'xmlns="http://www.w3.org/2000/svg">'
    )
    return re.sub(r"^.*?<svg[^>]*>", lambda _: opening, svg, count=1, flags=re.DOTALL)


def _variable(colour: str) -> str:
    return f"--c{colour.lstrip('#')}"


def _style_sheet(dark: Mapping[str, str]) -> str:
    light = "".join(f"{_variable(c)}:{c};" for c in dark)
    night = "".join(f"{_variable(c)}:{d};" for c, d in dark.items())
    sheet = f":root{{{_LIGHT}{light}}}\n{_CSS}"
    if dark:
        sheet += f"\n@media screen and (prefers-color-scheme:dark){{:root{{{_NIGHT}{night}}}}}"
    return sheet


_LIGHT = (
    "--ground:#f6f7f9;--card:#fff;--ink:#1d2733;--soft:#5c6875;--line:#dfe4ea;--accent:#0068b8;--tint:#e9f2fb;--code:#f0f3f6;--edge:rgba(20,30,45,.22);"
    "--shadow:0 1px 2px rgba(20,30,45,.05),0 6px 20px rgba(20,30,45,.05);"
)
_NIGHT = (
    "--ground:#0d131a;--card:#141b24;--ink:#e8edf3;--soft:#9aa7b5;--line:#2c3744;--accent:#58a9f0;--tint:#16293d;--code:#0f161e;--edge:rgba(0,0,0,.75);"
    "--shadow:0 0 0 1px #1e2833;"
)
_CSS = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);
 font:16px/1.6 Inter,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:56px 28px 72px;display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:22px}
main>*{grid-column:1/-1;margin:0}
header{padding:0 0 10px}
.kicker{margin:0 0 14px;color:var(--accent);font-size:13px;font-weight:650;letter-spacing:.09em;text-transform:uppercase}
h1{margin:0 0 16px;font-size:clamp(30px,4.6vw,46px);line-height:1.1;letter-spacing:-.022em;font-weight:720;max-width:22ch;text-wrap:balance}
.lead{margin:0;font-size:clamp(17px,2vw,20px);line-height:1.55;color:var(--soft);max-width:66ch}
.lead strong{color:var(--ink);font-weight:620}
h2{margin:30px 0 -6px;font-size:25px;line-height:1.25;letter-spacing:-.014em;font-weight:690}
h2+p{margin-top:16px}
h3{margin:0 0 10px;font-size:16.5px;line-height:1.35;font-weight:660;letter-spacing:-.005em}
p,li{max-width:70ch}
main>p,main>ul{margin:0}
ul{padding-left:1.2em}
li{margin:.3em 0}
a{color:var(--accent);text-underline-offset:.18em}
strong{font-weight:640}
code{font-family:ui-monospace,"SF Mono","JetBrains Mono",Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace;font-size:.88em;
 background:var(--code);border-radius:4px;padding:.12em .34em}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));background:var(--card);border-radius:14px;box-shadow:var(--shadow);overflow:hidden}
.number{padding:20px 24px 18px;box-shadow:-1px 0 0 var(--line),0 -1px 0 var(--line)}
.number dt{color:var(--soft);font-size:13.5px;font-weight:560}
.number dd{margin:3px 0 0}
.number b{display:block;font-size:31px;line-height:1.2;font-weight:700;letter-spacing:-.025em;font-variant-numeric:tabular-nums}
.number span{display:block;margin-top:3px;color:var(--soft);font-size:13.5px;line-height:1.4}
.number:first-child b{color:var(--accent)}
figure{background:var(--card);border-radius:14px;box-shadow:var(--shadow);padding:22px 24px 20px;min-width:0;break-inside:avoid}
figure.half{grid-column:span 1;display:flex;flex-direction:column}
figcaption{margin:12px 0 0;color:var(--soft);font-size:14.5px;line-height:1.52;max-width:84ch}
figure.table figcaption{margin:0 0 12px}
.tag{color:var(--ink);font-weight:640;margin-right:.25em}
.scroll{overflow-x:auto;overflow-y:hidden;-webkit-overflow-scrolling:touch;
 background:linear-gradient(90deg,var(--card) 30%,transparent) 0 0/48px 100% no-repeat local,
 linear-gradient(270deg,var(--card) 30%,transparent) 100% 0/48px 100% no-repeat local,
 linear-gradient(90deg,var(--edge),transparent) 0 0/16px 100% no-repeat scroll,
 linear-gradient(270deg,var(--edge),transparent) 100% 0/16px 100% no-repeat scroll}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
svg{display:block;width:100%;max-width:calc(var(--natural)*1.25);height:auto;overflow:visible;margin:0 auto}
svg [style*="font-weight: 700"]{font-weight:640!important}
table{border-collapse:collapse;width:100%;font-size:15px;font-variant-numeric:tabular-nums}
th{color:var(--soft);font-size:13px;font-weight:600;text-align:left;vertical-align:bottom;line-height:1.3}
th,td{padding:10px 14px;border-bottom:1px solid var(--line)}
tbody tr:last-child td{border-bottom:0}
td:first-child{font-weight:560}
.right{text-align:right;white-space:nowrap}
tr.best td{background:var(--tint);font-weight:660}
tr.best td:first-child{border-radius:8px 0 0 8px}
tr.best td:last-child{border-radius:0 8px 8px 0}
.code{background:var(--card);border-radius:14px;box-shadow:var(--shadow);overflow:hidden;min-width:0}
.code-title{margin:0;padding:14px 24px 0;color:var(--soft);font-size:13.5px;font-weight:600}
pre{margin:0;padding:16px 24px 20px;overflow-x:auto;font-size:14.5px;line-height:1.65}
pre code{background:none;padding:0;font-size:inherit}
footer{color:var(--soft);font-size:13.5px;border-top:1px solid var(--line);padding-top:18px}
@media (max-width:760px){main{padding:34px 16px 48px;gap:16px}figure.half{grid-column:1/-1}figure{padding:18px 16px}
 .number{padding:16px 18px}svg{min-width:min(var(--natural),620px)}figure.half svg{min-width:0}
 table{width:max-content;min-width:100%}th,td{padding:9px 10px;max-width:46vw}
 th:first-child,td:first-child{position:sticky;left:0;background:var(--card);max-width:30vw}
 tr.best td:first-child{background:var(--tint)}pre,.code-title{padding-left:18px;padding-right:18px}}
@media print{body{background:#fff;font-size:11pt}
 main{padding:0;max-width:none;gap:14px}figure,.numbers,.code{box-shadow:none;border:1px solid #dfe4ea}
 h2{break-after:avoid}.code{break-inside:avoid}pre{white-space:pre-wrap}}
"""
_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{scheme}">
<title>{title}</title>
<style>
{css}
</style>
</head>
<body>
<main>
<header>{head}</header>
{body}
{footer}
</main>
</body>
</html>
"""
