"""The command ``fourpoint tune``: a model that is better on dev, within a time budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from fourpoint.cli.console import print_all, print_notice
from fourpoint.cli.options import ReadingOptions
from fourpoint.cli.reading import cut_by_time, open_events, train_and_dev

if TYPE_CHECKING:
    from fourpoint.report.page import Page
    from fourpoint.training.tuning import Tuning


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    model: str
    budget: str
    output: Path
    split: str | None
    split_at: str | None
    calendar: str
    device: str
    seed: int
    json: bool
    jobs: int | None = None
    ray: str | None = None


def run_tuning(source: str, reading: ReadingOptions, asked: Asked) -> None:
    """Read, search, print, and write a page of what was tried."""
    began = monotonic()
    from fourpoint.training.tuning import tune

    seconds = budget_seconds(asked.budget)
    print_notice(f"this takes at most {seconds:g} seconds (--budget)")
    data = open_events(source, reading)
    if asked.split_at is None:
        train, dev, _ = train_and_dev(data, asked.split, asked.seed)
    else:
        train, dev = cut_by_time(data, asked.split_at)
    assert dev is not None  # only closed forms have none
    found = tune(
        asked.model,
        train,
        dev,
        budget=max(seconds - (monotonic() - began), 0.0),
        folder=asked.output,
        calendar=asked.calendar,
        device=asked.device,
        seed=asked.seed,
        progress=True,
        jobs=asked.jobs,
        ray=asked.ray,
    )
    page = asked.output / "tune.html"
    page_of(found, source).write(page)
    print_all(found.to_dict(), [found], asked.json)
    print_notice(f"model: {asked.output / 'model'}; page: {page}")


def budget_seconds(text: str) -> float:
    """A duration, or a number of seconds.

    >>> budget_seconds("10m"), budget_seconds("90")
    (600.0, 90.0)
    """
    from fourpoint.events.dates import in_units

    return in_units(text, "seconds")


def page_of(found: Tuning, source: str) -> Page:
    """The search as one page."""
    from fourpoint.plots.charts import DARK
    from fourpoint.report.page import Page
    from fourpoint.sanitising import markup_text
    from fourpoint.training.tuning import shown

    page = Page(
        f"Search for a model of {markup_text(Path(source).name)}",
        f"{found.sentence} Scores are of the development data, by which the best was chosen.",
        dark=DARK,
        kicker="fourpoint tune",
        footer=f"Written by fourpoint tune in {sum(o.seconds for o in found.tried):.0f} seconds.",
    )
    page.numbers(
        [
            ("best on dev", f"{found.best.score:.4f}", "nats per event"),
            (f"default ({found.default.model})", f"{found.default.score:.4f}", "nats per event"),
            ("fits", f"{len(found.tried):,}", "the first is the default"),
        ]
    )
    rows = []
    for one in found.tried:
        own = ", ".join(f"{name} {shown(value)}" for name, value in one.settings.items())
        score = "\u2013" if one.score is None else f"{one.score:.4f}"
        seconds = f"{one.seconds:.0f}"
        rows.append([f"{one.number}", one.kind, one.model, score, seconds, one.ended, own or "own"])
    place = found.tried.index(found.best)
    page.table(
        ["fit", "kind", "model", "nats per event on dev", "seconds", "ended", "settings"],
        rows,
        "A fit that ended early was below the median of others of the same model at the same share "
        "of their schedules. The highlighted row is the model that was kept.",
        best_row=place,
    )
    return page
