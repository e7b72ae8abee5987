"""A page stands alone, escapes what it is given, and appears whole or not at all."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fourpoint.plots import charts as plots
from fourpoint.report.page import Page


class Checker(HTMLParser):
    """Collects ids and links, and insists that tags close in order."""

    void = {"meta", "br", "use", "path", "rect", "stop", "circle", "line", "image"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attributes if name == "id"]
        self.links += [
            value or "" for name, value in attributes if name in ("href", "src", "xlink:href")
        ]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


def full_page(dark: bool = True) -> Page:
    import matplotlib.pyplot as plt

    lags = np.linspace(0, 3, 20)
    page = Page(
        "Delays & <more>",
        "A **lead** with `code`.",
        dark=plots.DARK if dark else None,
        kicker="demo",
        footer="made here",
    )
    page.numbers([("best", "\u22121.10", "nats per event")])
    page.table(
        ["model", "value", "words"],
        [["DAPP", "\u22121.1", "good"], ["Poisson", "\u22121.4", "fair"]],
        "Two models.",
        best_row=0,
    )
    page.figure(plots.kernel_plot(lags, np.exp(-lags)), "A kernel.", title="Memory", half=True)
    page.figure(plots.kernel_plot(lags, np.cos(lags)).figure, "Another.", half=True)
    page.text(
        "## Heading\n\nOne *word* and\none [link](https://example.org/a_b).\n\n- first\n- second"
    )
    page.code("a < b")
    plt.close("all")
    return page


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere() -> None:
    html = full_page().html()
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids), "two figures share an id"
    outside = [link for link in checker.links if not link.startswith(("#", "data:"))]
    assert outside == ["https://example.org/a_b"], "only the link in the text leads outside"
    assert not re.search(r"@import|<script|<link|url\((?!#)", html)
    inside = {link[1:] for link in checker.links if link.startswith("#")} | set(
        re.findall(r"url\(#([^)]+)\)", html)
    )
    assert inside <= set(checker.ids)


def test_markup_is_turned_and_everything_else_is_escaped() -> None:
    html = full_page().html()
    assert "<title>Delays &amp; &lt;more&gt;</title>" in html
    assert "<strong>lead</strong> with <code>code</code>" in html
    assert (
        "<h2>Heading</h2>" in html
        and "<em>word</em> and one <a href" in html
        and "<li>second</li>" in html
    )
    assert "<pre><code>a &lt; b</code></pre>" in html
    assert Page("t", "<img src=x onerror=y> [x](javascript:alert(1))").html().count("<img") == 0
    assert 'href="javascript' not in Page("t", "[x](javascript:alert(1))").html()


def test_tables_set_numbers_right_and_mark_the_best() -> None:
    html = full_page().html()
    assert (
        '<tr class="best"><td>DAPP</td><td class="right">\u22121.1</td><td>good</td></tr>' in html
    )
    assert "<tr><td>Poisson</td>" in html


def test_figures_follow_light_and_dark() -> None:
    dark, light = full_page().html(), full_page(dark=False).html()
    assert "prefers-color-scheme:dark" in dark and "prefers-color-scheme" not in light
    figures = re.findall(r"<svg.*?</svg>", dark, re.DOTALL)
    assert len(figures) == 2
    assert plots.INK not in "".join(figures) and f"var(--c{plots.COLOURS[0][1:]})" in figures[0]
    assert "font-family" not in figures[0] and 'role="img" aria-label="Memory"' in figures[0]


def test_the_same_parts_give_the_same_bytes() -> None:
    assert full_page().html() == full_page().html()


def test_write_renames_a_finished_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "report.html"
    assert full_page().write(target) == target
    assert [p.name for p in target.parent.iterdir()] == ["report.html"]
    monkeypatch.setattr(Page, "html", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        full_page().write(target)
    assert target.read_text().startswith("<!doctype html>")


def test_what_is_wider_than_a_phone_scrolls_and_shows_it() -> None:
    page = Page("Wide", "A table.").table(["a", "b"], [["1", "2"]], "A caption.").html()
    assert '<div class="scroll" role="region" aria-label="Table 1" tabindex="0"><table>' in page
    phone = page.split("@media (max-width:760px)")[1]
    assert "table{width:max-content;min-width:100%}" in phone and "position:sticky" in phone


class Tags(HTMLParser):
    """Collects the tags of a page with the names of their attributes."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self.feed(page.html())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attributes]))


def page_of(word: str) -> Page:
    """A page with one text in every place that takes any."""
    import matplotlib.pyplot as plt

    page = Page(word, word, kicker=word, footer=word)
    page.numbers([(word, word, word)])
    page.table([word, word], [[word, word]], word)
    figure, _ = plt.subplots()
    page.figure(figure, word, title=word)
    page.code(word, word).text(f"## {word}\n\n{word}\n\n- {word}")
    plt.close("all")
    return page


@pytest.mark.parametrize(
    "hostile",
    [
        "</style><script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onmouseover='alert(1)",
        "{{ 7 * 7 }} {% raw %} {# x #}",
        "</title></code></pre></svg><b>",
    ],
)
def test_no_place_of_a_page_lets_text_become_html(hostile: str) -> None:
    page = page_of(hostile)
    assert Tags(page).found == Tags(page_of("harmless words")).found
    assert "{{ 7 * 7 }}" in page.html() or "{{" not in hostile


def test_hidden_characters_are_shown_in_every_place() -> None:
    html = page_of("turned \u202e round \x9b").html()
    assert "\u202e" not in html and "\x9b" not in html
    assert r"turned \u202e round \x9b" in html
