"""The hooks of the site: navigation, executed pages, generated references and formulas.

Navigation lists the known pages in order; a page that is listed nowhere goes to the section of its
folder, so that a new file needs no change here.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cells import ROOT, BrokenCell, Executed, run_pages, with_outputs  # noqa: E402
from formulas import with_formulas  # noqa: E402
from links import faults  # noqa: E402
from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402
from reference_pages import GROUPS, api_pages, command_pages  # noqa: E402

log = logging.getLogger("mkdocs.hooks.fourpoint")

EXECUTED = (
    "index.md",
    "get-started.md",
    "gallery.md",
    "tutorials/*.md",
    "concepts/*.md",
    "models/index.md",
)
BUILD = ROOT / "build" / "docs"
REPORT = ROOT / "results" / "full"
# Links out of the documentation folder, and where the site has these files.
MOVED = (
    ("../results/full/", "results/"),
    ("../CONTRIBUTING.md", "contributing.md"),
    ("../CHANGELOG.md", "changelog.md"),
)

# Title of a section, its pages in order, and patterns of the pages that are listed nowhere.
SECTIONS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "Tutorials",
        (
            "tutorials/index.md",
            "tutorials/calls.md",
            "tutorials/alerts.md",
            "tutorials/customers.md",
            "tutorials/earthquakes.md",
            "tutorials/research.md",
            "tutorials/dapp.md",
            "tutorials/own-model.md",
        ),
        ("tutorials/*.md",),
    ),
    (
        "How-to guides",
        (
            "howto.md",
            "reading.md",
            "real-logs.md",
            "compare.md",
            "forecasting.md",
            "predictions.md",
            "calibration.md",
            "uncertainty.md",
            "influence.md",
            "streaming.md",
            "serve.md",
            "brokers.md",
            "dashboard.md",
            "places.md",
            "tuning.md",
            "scale.md",
            "formats.md",
            "data.md",
        ),
        ("*.md", "sources/*.md"),
    ),
    (
        "Concepts",
        (
            "concepts/index.md",
            "concepts/intensity.md",
            "concepts/integrals.md",
            "likelihood.md",
            "concepts/fourier-kernels.md",
            "concepts/linear-attention.md",
            "concepts/thinning.md",
            "concepts/time-rescaling.md",
            "concepts/resolution.md",
            "concepts/conformal.md",
            "concepts/streams.md",
        ),
        ("concepts/*.md",),
    ),
    (
        "Models",
        ("models/index.md", "model.md", "models/deep-dapp.md", "models/hawkes.md"),
        ("models/*.md",),
    ),
    ("Gallery", ("gallery.md",), ()),
    (
        "Benchmarks",
        ("leaderboard.md", "performance.md", "reproduce.md", "results/report.md", "figures.md"),
        (),
    ),
    ("API reference", ("api/index.md", *(f"api/{g.page}.md" for g in GROUPS)), ("api/*.md",)),
    ("Command line", ("commands.md",), ("cli/*.md",)),
    ("Project", ("changelog.md", "release-0.2.md", "contributing.md"), ("release-*.md",)),
)
FIRST = ("index.md", "get-started.md")

_executed: dict[str, Executed] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the navigation from the pages that exist."""
    docs = Path(config.docs_dir)
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    pages |= set(_generated())
    used = set(FIRST)
    listed = {page for _, known, _ in SECTIONS for page in known} | used
    nav: list[Any] = [{"Home": "index.md"}, {"Get started": "get-started.md"}]
    for title, known, patterns in SECTIONS:
        here = [page for page in known if page in pages]
        free = sorted(pages - listed - used)
        here += [page for page in free if _matches(page, patterns)]
        used |= set(here)
        if len(here) == 1:
            nav.append({title: here[0]})
        elif here:
            nav.append({title: here})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, run the executed ones, and add their figures."""
    for path, text in _generated().items():
        files.append(File.generated(config, path, content=text))
    for table in sorted(REPORT.glob("*.csv")):
        files.append(File.generated(config, f"results/{table.name}", abs_src_path=str(table)))
    pages = {
        file.src_uri: Path(str(file.abs_src_path)).read_text(encoding="utf-8")
        for file in files.documentation_pages()
        if _matches(file.src_uri, EXECUTED) and file.abs_src_path
    }
    try:
        _executed.update(run_pages(pages, BUILD))
    except BrokenCell as error:
        raise PluginError(str(error)) from None
    for name, done in sorted(_executed.items()):
        log.info("%s: cells ran in %.0f seconds", name, done.seconds)
        for picture in sorted(done.folder.glob("*.png")):
            uri = posixpath.join("drawn", name.removesuffix(".md"), picture.name)
            files.append(File.generated(config, uri, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the outputs of cells and convert formulas."""
    name = page.file.src_uri
    if name in _executed:
        drawn = posixpath.join("drawn", name.removesuffix(".md"))
        pictures = posixpath.relpath(drawn, posixpath.dirname(name) or ".")
        markdown = with_outputs(markdown, _executed[name], pictures)
    if _matches(name, EXECUTED):
        markdown = with_formulas(markdown)
    for outside, inside in MOVED:
        markdown = markdown.replace(f"]({outside}", f"]({_up(name)}{inside}")
    return re.sub(r"^<!-- no-run -->\n", "", markdown, flags=re.MULTILINE)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Names for screen readers: that of the theme's search dialog is missing, and on wide screens
    the table of contents is there twice.
    """
    dialog = 'data-md-component="search" role="dialog"'
    contents = '<nav class="md-nav md-nav--secondary" aria-label="Table of contents"'
    named = output.replace(dialog, f'{dialog} aria-label="Search"', 1)
    return named.replace(contents, contents.replace("Table of contents", "On this page"), 1)


def on_post_build(config: MkDocsConfig) -> None:
    """Check the links of the built pages, and that nothing is loaded from another host."""
    found = faults(Path(config.site_dir).resolve())
    if found:
        raise PluginError("\n".join(found))


def _up(name: str) -> str:
    return "../" * name.count("/")


def _generated() -> dict[str, str]:
    """Pages that are not files of the documentation."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return {
        **dict(api_pages()),
        **dict(command_pages()),
        "changelog.md": _moved(changes),
        "contributing.md": _moved((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")),
        "results/report.md": (REPORT / "report.md").read_text(encoding="utf-8"),
    }


def _moved(text: str) -> str:
    """A page of the repository's root as a page of the documentation."""
    return re.sub(r"\]\(docs/", "](", text)


def _matches(page: str, patterns: tuple[str, ...]) -> bool:
    """Whether a page matches a pattern; a star does not stand for a slash."""
    return any(fnmatch(page, p) and page.count("/") == p.count("/") for p in patterns)
