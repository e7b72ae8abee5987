"""Checks of the built site: links and anchors lead somewhere, and no page loads from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class Found(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the attributes that matter."""
        given = dict(attrs)
        canonical = given.get("rel") in ("canonical", "next", "prev")
        for name in ("href", "src"):
            value = given.get(name)
            if value is None:
                continue
            self.links.add(value)
            if (tag, name) in LOADED and not canonical:
                self.loaded.add(value)
        for name in ("id", "name"):
            if given.get(name):
                self.anchors.add(str(given[name]))


def faults(site: Path) -> list[str]:
    """What is wrong with the links of a site, one line each."""
    pages = {path: Found(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found = []
    for page, content in pages.items():
        here = page.relative_to(site).as_posix()
        found += [f"{here} loads {url}" for url in sorted(content.loaded) if _outside(url)]
        for link in sorted(content.links):
            if not _outside(link) and not _leads_somewhere(link, page, pages, site):
                found.append(f"{here} links to {link}, which does not exist")
    return found


def _outside(link: str) -> bool:
    return bool(urlsplit(link).scheme) or link.startswith("//")


def _leads_somewhere(link: str, page: Path, pages: dict[Path, Found], site: Path) -> bool:
    parts = urlsplit(link)
    path = unquote(parts.path)
    target = page
    if path:
        target = (site / path[1:] if path.startswith("/") else page.parent / path).resolve()
    if target.is_dir():
        target = target / "index.html"
    if not target.exists():
        return page.name == "404.html"  # whose links are relative to the site's root
    anchor = unquote(parts.fragment)
    known = pages.get(target)
    return not anchor or anchor.startswith("__") or known is None or anchor in known.anchors
