r"""`fourpoint reproduce earthquakes`: ETAS on catalogues of the EarthquakeNPP benchmark.

Every Parquet or CSV file of a folder that has the columns x, y and magnitude and a column split of
history, train, dev and test is a catalogue. ETAS is fitted to its training years; the test years
are scored in nats per event as temporal plus spatial log-likelihood (days and km^2, earlier events
as history) and by CSEP's tests of daily forecasts. One page per catalogue shows the map, the Omori
decay and the productivity beside those of declustered events, residuals in time and space, and the
forecast of the day after the catalogue.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fourpoint.atomic import make_folder, write_atomic
from fourpoint.data.readers import Asked, read_with_notes
from fourpoint.data.tables import open_table
from fourpoint.events import Dataset, UserError
from fourpoint.inference.csep import DailyTests, Grid, daily_tests, simulated_catalogues
from fourpoint.inference.evaluation import evaluate
from fourpoint.models.etas import ETAS
from fourpoint.ops import omori
from fourpoint.plots.charts import DARK
from fourpoint.plots.earthquakes import (
    catalogue_plot,
    decay_plot,
    productivity_plot,
    residual_plot,
)
from fourpoint.plots.maps import map_plot
from fourpoint.report.page import Page
from fourpoint.training.fitting import fit

NEEDED = {"x", "y", "magnitude", "split"}
PUBLISHED = {"sanjac_10": ("-4.266", "1.133", "-5.398")}  # ETAS, EarthquakeNPP: TMLR 2026
QUERIES = 1500  # events whose parents are looked for
CATALOGUES = 200
QUICK_DAYS = 40


@dataclass(frozen=True)
class Declustered:
    """Expected direct offspring by lag and by magnitude of the parent, from the probabilities that
    pairs of events are parent and child.
    """

    lags: np.ndarray
    density: np.ndarray
    magnitudes: np.ndarray
    offspring: np.ndarray


def reproduce_earthquakes(folder: Path | None, output: Path, *, quick: bool = False) -> list[Path]:
    """Fit and test ETAS on every catalogue of ``folder``; the pages that were written.

    Raises :class:`UserError` where there is none.
    """
    sources = [] if folder is None or not folder.is_dir() else _catalogues(folder)
    if not sources:
        raise UserError(
            "a folder with catalogues: columns t, x, y, magnitude and split",
            f"{folder}",
            "Name one with --real DIR.",
        )
    make_folder(output)
    pages, rows = [], []
    for source in sources:
        page, row = _reproduce_one(source, output, quick=quick)
        pages.append(page)
        rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(output / "earthquakes.csv", table.getvalue())
    return pages


def _catalogues(folder: Path) -> list[Path]:
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".parquet", ".csv"):
            continue
        if set(open_table(path).schema.names) >= NEEDED:
            found.append(path)
    return found


def _reproduce_one(source: Path, output: Path, *, quick: bool) -> tuple[Path, dict[str, str]]:
    data = read_with_notes(source, Asked(place=("x", "y"), event_features="magnitude")).data
    cuts = () if data.log is None else data.log.split_at
    if len(cuts) != 2:
        raise UserError(
            f"splits history, train, dev and test in {source.name}",
            f"cuts at {cuts}",
            "Add a column split with these values, in the order of time.",
        )
    first, second = cuts
    train = data.between(None, first)
    dev = data.between(first, second)
    test = data.between(second, None)
    model = ETAS(data.marks)
    found = fit(model, train, dev, progress=True)
    report = evaluate(model, test).to_dict()
    most = QUICK_DAYS if quick else None
    tests = daily_tests(model, test, catalogues=CATALOGUES, most=most, progress=True)
    row = {
        "catalogue": source.stem,
        "model": "etas",
        "events": f"{report['events']}",
        "total": f"{report['log_likelihood_per_event']:.4f}",
        "temporal": f"{report['temporal_log_likelihood_per_event']:.4f}",
        "spatial": f"{report['spatial_log_likelihood_per_event']:.4f}",
        "forecasts": f"{tests.days}",
        "number_test_passed": f"{tests.number:.3f}",
        "spatial_test_passed": f"{tests.spatial:.3f}",
        "magnitude_test_passed": f"{tests.magnitude:.3f}",
        "pseudo_likelihood_test_passed": f"{tests.pseudo_likelihood:.3f}",
    }
    page = catalogue_page(source.stem, model, data, train, test, tests, found.notes, row)
    return page.write(output / f"{source.stem}.html"), row


def catalogue_page(
    name: str,
    model: ETAS,
    data: Dataset,
    train: Dataset,
    test: Dataset,
    tests: DailyTests,
    notes: list[str],
    row: dict[str, str],
) -> Page:
    """The page of one catalogue."""
    assert data.places is not None and data.features is not None and model.box is not None
    size = data.features[:, model.magnitude_column]
    unit = data.unit or "days"
    page = Page(
        f"ETAS on {name}",
        "An epidemic-type aftershock sequence, fitted to the training years and tested on later "
        "ones.",
        dark=DARK,
        kicker="Fourpoint",
    )
    page.numbers(
        [
            ("total", row["total"], "nats per test event"),
            ("temporal", row["temporal"], "nats per test event"),
            ("spatial", row["spatial"], "nats per test event"),
            ("branching ratio", f"{model.branching_ratio():.2f}", "direct offspring per event"),
        ]
    )
    found = model.estimates()
    lines = [
        [key, f"{value:.4g}", f"{model.errors[key]:.2g}" if key in model.errors else ""]
        for key, value in found.items()
    ]
    page.table(["parameter", "estimate", "standard error"], lines, f"Units: {unit} and km.")
    if name in PUBLISHED:
        total, temporal, spatial = PUBLISHED[name]
        page.table(
            ["model", "total", "temporal", "spatial"],
            [
                ["ETAS here", row["total"], row["temporal"], row["spatial"]],
                ["ETAS, EarthquakeNPP", total, temporal, spatial],
            ],
            "Log-likelihood per test event, days and km^2.",
        )
    page.figure(catalogue_plot(data.places, size), "All events; larger ones have larger marks.")
    declustered = decluster(model, train)
    s = model.strengths()
    with torch.no_grad():
        lag = torch.logspace(-5, math.log10(float(train.durations.max())), 200).double()
        decay = omori.density(lag, s.p, s.c, s.taper).numpy()
    page.figure(
        decay_plot(lag.numpy(), decay, declustered.lags, declustered.density, unit=unit),
        "Omori-Utsu decay: fitted (line), and of declustered pairs of training events (points).",
        half=True,
    )
    alpha = found.get("alpha", 0.0)
    levels = np.linspace(float(model.mc), float(size.max()), 50)
    page.figure(
        productivity_plot(
            levels,
            found["K"] * np.exp(alpha * (levels - float(model.mc))),
            declustered.magnitudes,
            declustered.offspring,
        ),
        "Direct offspring by magnitude: fitted over all time (line), declustered so far (points).",
        half=True,
    )
    batch = test.batch()
    with torch.no_grad():
        history = model.encode(batch)
        begin = float(test.scored_starts[0])
        position = int(
            torch.searchsorted(batch.times[0].contiguous(), torch.tensor(begin).double())
        )
        edges = batch.edges[:, position + 1 :].clone()
        ends = torch.cat([torch.tensor([[begin]], dtype=torch.float64), edges], 1)
        seen = torch.arange(position, position + ends.shape[1] - 1)[None]
        gaps = model.closed_integral(history, ends[:, :-1], ends[:, 1:], seen)[0, :, 0]
    times = ends[0, 1:-1].numpy()
    page.figure(
        residual_plot(times, gaps.cumsum(0)[:-1].numpy(), unit=unit),
        "Residuals in time on the test years, with a 95% band of a Poisson process.",
    )
    across, up = ((edge[1:] + edge[:-1]) / 2 for edge in (tests.grid.x, tests.grid.y))
    shape = (len(across), len(up))
    excess = (tests.observed_cells - tests.expected_cells) / np.sqrt(tests.expected_cells + 1)
    page.figure(
        map_plot(across, up, np.abs(excess).reshape(shape), label="size of the residual"),
        "Residuals in space: |observed less expected| over the root of 1 + expected, in each cell, "
        f"of {tests.days} daily forecasts.",
        half=True,
    )
    stop = float(data.stops[0])
    ahead = simulated_catalogues(model, data, stop, stop + 1.0, 2000, 0)
    grid = Grid(tests.grid.x, tests.grid.y)
    area = np.outer(np.diff(grid.x), np.diff(grid.y))
    mean = ahead.gridded(grid).mean(0).reshape(shape) / area
    page.figure(
        map_plot(across, up, mean, label="events per day and km^2"),
        f"Forecast of the day after the catalogue: {len(ahead.times) / 2000:.2f} events expected.",
        half=True,
    )
    page.text(f"CSEP tests: {tests}.")
    page.text("## Notes\n\n" + "\n".join(f"- {note}" for note in notes))
    return page


@torch.no_grad()
def decluster(model: ETAS, data: Dataset) -> Declustered:
    """Expected offspring by lag and by the parent's magnitude, from at most :data:`QUERIES` scored
    events spread evenly, each of which stands for as many as it was drawn from.
    """
    batch = data.batch([0])
    history = model.encode(batch)
    s = model.strengths()
    scored = torch.nonzero(batch.scored[0])[:, 0]
    spread = torch.linspace(0, len(scored) - 1, min(QUERIES, len(scored)))
    some = scored[spread.long().unique()]
    each = len(scored) / max(1, len(some))
    log_rates = model.log_rates_at_events(history, batch)[0]
    assert history.places is not None
    when = history.when[0]
    where = history.places[0]
    delta = history.delta[0]
    factor = s.productivity * (history.features[0] @ s.weight).exp()
    width = torch.exp(s.log_width + s.gamma * delta)
    longest = float(data.durations.max())
    bins = np.logspace(-5, math.log10(longest), 31)
    by_lag = np.zeros(30)
    children = torch.zeros_like(when)
    for j in some.tolist():
        lag = when[j] - when[:j]
        square = (where[j] - where[:j]).square().sum(1)
        apart = square / width[:j]
        near = (s.q - 1) / (math.pi * width[:j]) * (1 + apart) ** -s.q
        decay = omori.density(lag, s.p, s.c, s.taper)
        share = factor[:j] * decay * near / log_rates[j].exp()
        children[:j] += each * share
        counts, _ = np.histogram(lag.numpy(), bins, weights=share.numpy())
        by_lag += each * counts
    density = by_lag / np.diff(bins) / max(by_lag.sum(), 1e-300)
    used = density > 0
    lags = np.sqrt(bins[1:] * bins[:-1])
    sizes = (delta + model.mc).numpy()
    edges = np.linspace(float(model.mc), sizes.max() + 1e-9, 13)
    index = np.clip(np.digitize(sizes, edges) - 1, 0, 11)
    count = np.bincount(index, minlength=12)
    total = np.bincount(index, weights=children.numpy(), minlength=12)
    full = (count > 0) & (total > 0)
    middles = (edges[1:] + edges[:-1]) / 2
    return Declustered(
        lags=lags[used],
        density=density[used],
        magnitudes=middles[full],
        offspring=total[full] / count[full],
    )
