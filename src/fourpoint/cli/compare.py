"""The command ``fourpoint compare``: which explanation of a log the data support, in sentences, a
table, JSON or one page.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

from fourpoint.atomic import check_new_file, write_atomic
from fourpoint.cli.checks import one_of
from fourpoint.cli.console import print_all, print_notice
from fourpoint.cli.options import ReadingOptions
from fourpoint.cli.reading import open_events
from fourpoint.errors import UserError
from fourpoint.strict_json import dumps

if TYPE_CHECKING:
    from fourpoint.report.page import Page
    from fourpoint.training.comparing import Comparison

LEAST_BUDGET = 1e-3  # seconds that are left to the comparison if reading took all of them
CLOSING_SECONDS = 1.0  # for the table and the page
PAGES = (".html", ".htm")
PAGE, TABLE = "report.html", "comparison.json"  # in a folder
OUTAGES: tuple[Literal["auto", "none"], ...] = ("auto", "none")


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    models: str
    calendar: str
    outages: str
    time_budget: float
    seed: int
    json: bool
    output: Path | None
    jobs: int | None = None
    ray: str | None = None


def run_comparison(source: str, reading: ReadingOptions, asked: Asked, began: float) -> None:
    """Read, compare and print; ``began`` is when the time budget began to count."""
    page, table = _files(asked.output)
    outages = one_of("--outages", asked.outages, OUTAGES)
    if not asked.time_budget > 0:
        raise UserError(
            "a positive --time-budget", f"{asked.time_budget:g}", "Give it in seconds, 60 say."
        )
    print_notice(f"this takes at most {asked.time_budget:g} seconds (--time-budget)")
    from fourpoint.training.comparing import compare

    data = open_events(source, reading)
    closing = min(CLOSING_SECONDS, 0.1 * asked.time_budget)
    left = asked.time_budget - (monotonic() - began) - closing
    found = compare(
        data,
        asked.models,
        calendar=asked.calendar,
        outages=outages,
        time_budget=max(left, LEAST_BUDGET),
        seed=asked.seed,
        jobs=asked.jobs,
        ray=asked.ray,
    )
    for note in found.notes:
        print_notice(note)
    print_all(found.to_dict(), [found, "\n".join(found.sentences)], asked.json)
    if page is not None:
        page_of(found, source).write(page)
        print_notice(f"page: {page}")
    if table is not None:
        write_atomic(table, dumps(found.to_dict(), indent=2) + "\n")
    if not asked.json:
        _print_next(found, source, reading)


def _files(output: Path | None) -> tuple[Path | None, Path | None]:
    """Where the page and the JSON go: a name with the ending .html is the page alone, and one
    without an ending, or that of a folder, is a folder with both. What cannot be written is refused
    before anything is computed.
    """
    if output is None:
        return None, None
    if output.suffix and not output.is_dir():
        expected = "a page with the extension .html, or a folder"
        check_new_file(output, PAGES, expected, f"{output.stem}.html")
        return output, None
    if output.exists() and not output.is_dir():
        raise UserError(
            "a page with the extension .html, or a folder",
            f"{output}, which is a file",
            f"Choose another name, such as {output.name}.html.",
        )
    return output / PAGE, output / TABLE


def _print_next(found: Comparison, source: str, reading: ReadingOptions) -> None:
    """The command that fits the recommended model."""
    from fourpoint.training.comparing import EXPONENTIALS, SLOW
    from fourpoint.training.comparison_words import CLOSED_FORMS

    step = found.step(found.recommended)
    model = step.model
    if found.regular and model in CLOSED_FORMS:
        model = "rmtpp"
    words = ["fourpoint", "fit", source, *reading.typed(), "--model", model]
    if step.name == SLOW and model == "hawkes":
        words += ["--set", f"exponentials={EXPONENTIALS}"]
    names = [one.name for one in found.steps]
    useful = "calendar" in names and found.step("calendar").gain > 0
    if found.calendar and useful and found.recommended != "constant":
        words += ["--calendar", ",".join(found.calendar)]
    words += ["-o", "model"]
    print_notice(f"next: {shlex.join(words)}")


def page_of(found: Comparison, source: str) -> Page:
    """The comparison as one page."""
    import matplotlib.pyplot as plt

    from fourpoint.plots.charts import DARK
    from fourpoint.report.page import Page
    from fourpoint.sanitising import markup_text

    words = [markup_text(sentence) for sentence in found.sentences]
    best = found.step(found.recommended)
    page = Page(
        f"What explains {markup_text(Path(source).name)}?",
        " ".join(words[:-1]),
        dark=DARK,
        kicker="fourpoint compare",
        footer=f"Written by fourpoint compare in {found.seconds:.0f} seconds.",
    )
    gain = best.nats_per_event - found.steps[0].nats_per_event
    clustering = "yes" if found.clustering_beyond_calendar else "no"
    page.numbers(
        [
            ("model to use", markup_text(found.recommended), best.model),
            ("gain over a constant rate", f"{gain:+.3f}", "nats per event"),
            ("clustering beyond the calendar", clustering, "at a level of 95%"),
            ("held-out events", f"{found.held_out:,}", f"in {found.units:,} {found.unit_name}"),
        ]
    )
    rows = []
    for n, one in enumerate(found.steps):
        interval = f"{one.gain_low:+.4f} to {one.gain_high:+.4f}" if n else "\u2013"
        change = f"{one.gain:+.4f}" if n else "\u2013"
        rows.append([one.name, one.model, f"{one.nats_per_event:.4f}", change, interval])
    header = ["explanation", "model", "nats per event", "gain", "95% interval of the gain"]
    chosen = [one.name for one in found.steps].index(found.recommended)
    page.table(
        header,
        rows,
        "Each explanation has all those above it. Its gain is over the one before, on data that "
        "no model was fitted to; the interval is from a paired bootstrap over "
        f"{found.unit_name}. The highlighted row is the recommended model.",
        best_row=chosen,
    )
    if len(found.steps) > 1:
        ax = found.plot()
        page.figure(
            ax,
            "The gain of each explanation over the one before, with its 95% interval. Blue: the "
            "interval lies above 0. The axis is linear around 0 and logarithmic further out.",
            title="What does each explanation add?",
        )
        figure = ax.get_figure(root=True)
        if figure is not None:
            plt.close(figure)
    page.text(f"## How to read this\n\n{words[-1]} {READING}")
    if found.notes:
        notes = "\n".join(f"- {markup_text(note)}" for note in found.notes)
        page.text(f"## Remarks\n\n{notes}")
    return page


READING = (
    "A nat is a difference of 1 in the logarithm of a probability. Calendar and covariates change "
    "the rate whatever happened before; excitation lets each event raise the rate for a while, "
    "which makes events come in clusters. A rhythm that is left out looks like clustering, which "
    "is why the calendar comes first."
)
