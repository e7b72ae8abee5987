"""Formulas in TeX as MathML, which browsers draw without a script or a font of ours.

``$...$`` is a formula in a line and ``$$...$$`` one of its own. Code is left alone.
"""

from __future__ import annotations

import re

from latex2mathml.converter import convert

CODE = re.compile(r"^```.*?^```[ ]*$|`[^`\n]+`|^ {4}[^\n]*$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^\$\$\n?(.+?)\n?\$\$[ ]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\\$\w])\$(?=[^\s$])([^$\n]+?)(?<=[^\s\\])\$(?![\w$])")


def with_formulas(text: str) -> str:
    """The page with its formulas as MathML.

    >>> with_formulas("the rate $x$ and `$HOME`").startswith("the rate <math xmlns=")
    True
    """
    parts = []
    end = 0
    for code in CODE.finditer(text):
        parts += [_converted(text[end : code.start()]), code[0]]
        end = code.end()
    parts.append(_converted(text[end:]))
    return "".join(parts)


def _converted(text: str) -> str:
    text = BLOCK.sub(lambda found: f"\n{_math(found[1], 'block')}\n", text)
    return INLINE.sub(lambda found: _math(found[1], "inline"), text)


def _math(tex: str, display: str) -> str:
    formula = convert(" ".join(tex.split()), display=display)
    if display == "block":
        return f'<div class="formula" tabindex="0">{formula}</div>'
    return formula
