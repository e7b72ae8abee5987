r"""Text from data, made safe for the place where it is shown: one function per kind of output.

Marks, ids, names of columns and files, units and messages of other programs may hold anything. Each
output has its own characters with a meaning, and none of them may be reached by data:

    console_text   terminals: control characters, and those that change the direction of text or
                   cannot be seen
    plot_text      matplotlib: `$` begins mathematics, a leading underscore hides a label, a long
                   one pushes the axes away
    html_text      HTML: `<`, `>`, `&` and quotes
    markup_text    the markup of :mod:`fourpoint.report.page` and Markdown: emphasis, code, links,
                   headings, tags
    csv_cell       spreadsheets: a cell that begins with `=`, `+`, `-` or `@` is a formula

Rich's own markup (`[bold]`) needs no function: :mod:`fourpoint.report.printing` shows text as text.
JSON is written with ``ensure_ascii`` and needs none either.
"""

from __future__ import annotations

import html
import re

# Control characters (C0, DEL, C1), lone surrogates, line and paragraph separators, and formatting
# characters that are invisible or change the direction of text. The zero-width joiners U+200C and
# U+200D stay: Persian and emoji need them.
_HIDDEN = (
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_ANY_HIDDEN = re.compile(f"[{_HIDDEN}]")
_HIDDEN_BUT_LINES = re.compile(f"(?![\n\t])[{_HIDDEN}]")
_MARKUP = re.compile(r"[\\`*_\[\]()<>#!~&]|^(?=[-+]\s)")
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
LONGEST_NAME = 24  # characters of a name beside the axes of a plot


def console_text(text: object) -> str:
    r"""One line for a terminal: characters that control it, hide or reverse text are written as
    escapes.

    >>> console_text("a\x1b[31mb\u202ec\n")
    'a\\x1b[31mb\\u202ec\\n'
    """
    return _ANY_HIDDEN.sub(_escape, str(text))


def console_lines(text: object) -> str:
    r"""The same for text of several lines, whose line ends and tabs are its author's.

    >>> console_lines("a\nb\x9b")
    'a\nb\\x9b'
    """
    return _HIDDEN_BUT_LINES.sub(_escape, str(text))


def plot_text(text: object, longest: int = 200) -> str:
    r"""A label for matplotlib that is drawn as it stands, cut after ``longest`` characters.

    >>> plot_text(r"$\frac{1$"), plot_text("_a"), plot_text("abcdef", longest=4)
    ('\\$\\frac{1\\$', '\u200c_a', 'abc…')
    """
    shown = console_text(text)
    if len(shown) > longest:
        shown = shown[: longest - 1] + "\u2026"
    if shown.startswith("_"):
        # matplotlib leaves labels that begin with an underscore out of legends.
        shown = "\u200c" + shown
    return shown.replace("$", r"\$")


def plot_name(name: object) -> str:
    """The same for a name of a mark, a model or a unit, which must leave room for the axes."""
    return plot_text(name, LONGEST_NAME)


def html_text(text: object) -> str:
    """Text for HTML, also inside the quotes of an attribute.

    >>> html_text('"><script>')
    '&quot;&gt;&lt;script&gt;'
    """
    return html.escape(console_lines(text), quote=True)


def markup_text(text: object) -> str:
    r"""Text for a page's or Markdown's markup, every character of which stands for itself.

    >>> markup_text("[a](x) *b*")
    '\\[a\\]\\(x\\) \\*b\\*'
    """
    return _MARKUP.sub(lambda found: "\\" + found[0], console_text(text))


def csv_cell(value: object) -> object:
    """A cell for a file that a spreadsheet may open: numbers as they are, text that would be a
    formula behind an apostrophe.

    >>> csv_cell("=1+1"), csv_cell("-1.5"), csv_cell(-1.5), csv_cell("dapp")
    ("'=1+1", '-1.5', -1.5, 'dapp')
    """
    if not isinstance(value, str):
        return value
    shown = console_text(value)
    if not shown.lstrip().startswith(_FORMULA) or _is_number(shown):
        return shown
    return "'" + shown


def _escape(found: re.Match[str]) -> str:
    r"""The character as Python writes it: \n, \x1b, \u202e."""
    return found[0].encode("unicode_escape").decode("ascii")


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+](inf|nan)", text) is not None
