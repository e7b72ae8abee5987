"""HTML from the templates of this package, with jinja2; every value is escaped.

Values are also freed of the characters that :func:`fourpoint.sanitising.console_lines` names, which
a browser would hide or use to change the direction of text.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from fourpoint.sanitising import console_lines

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> str:
    """The text of a template, a file in ``templates``, with these values.

    >>> render("preformatted.html", text="a < b")
    '<pre>a &lt; b</pre>'
    """
    return templates().get_template(template).render(values)


@cache
def templates() -> Environment:
    """The environment of the templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("fourpoint.report"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _visible(value: object) -> object:
    """A value without hidden characters; HTML that a template made is left as it is."""
    from markupsafe import Markup

    return value if isinstance(value, Markup) else console_lines(value)
