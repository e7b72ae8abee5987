"""ETAS: the likelihood against a double sum, gradients, regions, simulation and commands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import Box, Context, Dataset, MarkSpace, UserError
from fourpoint.inference.likelihood import log_likelihoods
from fourpoint.inference.sampling import sample_paths
from fourpoint.kernels import conditions
from fourpoint.models import fit_limits
from fourpoint.models.etas import ETAS
from fourpoint.models.etas_fit import (
    Log,
    bounds_of,
    evaluated,
    flat_parameters,
    place_resolution,
    put_parameters,
)
from fourpoint.ops import omori, regions
from fourpoint.ops.triggering import SHARE, Planned, Queries, Sources, sums_with_derivatives

SQUARE = MarkSpace(box=Box(("x", "y"), (0.0, 0.0), (60.0, 40.0)))
TRUTH = dict(
    baseline=4.0, productivity=0.25, alpha=1.2, c=0.02, p=1.3, distance=0.8, q=1.8, gamma=0.9,
    mc=2.0, b=1.0, background="uniform", taper=None,
)  # fmt: skip


def model(space: MarkSpace | None = SQUARE, **changed: object) -> ETAS:
    return ETAS(space, **{**TRUTH, **changed})


def catalogue(stop: float = 60.0, seed: int = 0, history: float = 10.0) -> Dataset:
    """Events of the model above, of which the first are history."""
    drawn = sample_paths(model(), 0.0, stop, 1, seed).data
    return replace(drawn, context=Context(scored_from=np.array([history])), unit="days")


def double_sum(m: ETAS, data: Dataset) -> float:
    """The log-likelihood from the formula, pair by pair, with integrals over the box on a grid of
    exact one-dimensional integrals.
    """
    e = m.estimates()
    t, where, delta = data.times, data.places, data.features[:, 0] - float(m.mc)
    begin, stop = float(data.scored_starts[0]), float(data.stops[0])
    area = 60.0 * 40.0
    logs = 0.0
    for j in np.flatnonzero(data.scored):
        s = t[j] - t[:j]
        g = (e["p"] - 1) * e["c"] ** (e["p"] - 1) * (s + e["c"]) ** -e["p"]
        width = e["d"] ** 2 * np.exp(e["gamma"] * delta[:j])
        r2 = ((where[j] - where[:j]) ** 2).sum(1)
        f = (e["q"] - 1) / (math.pi * width) * (1 + r2 / width) ** -e["q"]
        logs += math.log(e["mu"] / area + (e["K"] * np.exp(e["alpha"] * delta[:j]) * g * f).sum())
    late = 1 - (1 + (stop - t) / e["c"]) ** (1 - e["p"])
    soon = 1 - (1 + np.maximum(begin - t, 0) / e["c"]) ** (1 - e["p"])
    kappa = e["K"] * np.exp(e["alpha"] * delta)
    width = e["d"] ** 2 * np.exp(e["gamma"] * delta)
    share = np.array([in_box(where[i], width[i], e["q"]) for i in range(len(t))])
    return logs - e["mu"] * (stop - begin) - float((kappa * (late - soon) * share).sum())


def in_box(place: np.ndarray, width: float, q: float) -> float:
    """The share of the spatial kernel inside the box, by quadrature over y of the closed integral
    over x of a Student density.
    """
    from scipy import integrate, stats

    nu = 2 * q - 1

    def across(y: float) -> float:
        scale = width + (y - place[1]) ** 2
        spread = math.sqrt(scale / nu)
        inner = stats.t.cdf((60 - place[0]) / spread, nu) - stats.t.cdf(-place[0] / spread, nu)
        peak = (q - 1) / math.pi * width ** (q - 1) * scale ** (0.5 - q)
        return peak * math.sqrt(math.pi) * math.gamma(q - 0.5) / math.gamma(q) * inner

    knots = sorted({0.0, 40.0, *np.clip(place[1] + np.array([-5, -1, 0, 1, 5]), 0, 40)})
    pieces = zip(knots[:-1], knots[1:], strict=True)
    return sum(integrate.quad(across, a, b, epsabs=1e-11)[0] for a, b in pieces)


def test_the_likelihood_is_the_double_sum() -> None:
    data = catalogue(stop=20.0)
    m = model()
    assert 30 < data.scored_events < 600
    found = log_likelihoods(m, data.batch())["window"]
    assert float(found.value) == pytest.approx(double_sum(m, data), abs=1e-6 * data.scored_events)


def test_gradients_are_derivatives() -> None:
    data = catalogue(stop=20.0)
    for space, tapered in ((SQUARE, None), (SQUARE, 30.0), (MarkSpace(), None)):
        own = data if space is SQUARE else data.without_places()
        m = model(space, taper=tapered)
        logs = [Log(m, own.batch())]
        centre = flat_parameters(m)
        gradient = evaluated(m, logs).gradient
        for k in range(len(centre)):
            ends = []
            for sign in (1, -1):
                step = torch.zeros_like(centre)
                step[k] = sign * 1e-5
                put_parameters(m, centre + step)
                ends.append(evaluated(m, logs).value)
            put_parameters(m, centre)
            assert float(gradient[k]) == pytest.approx(
                (ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-4
            )


def test_shares_of_polygons() -> None:
    square = regions.rectangle((0.0, 0.0), (60.0, 40.0))
    rng = np.random.default_rng(0)
    where = torch.from_numpy(rng.uniform((0, 0), (60, 40), (20, 2)))
    where[0] = torch.tensor([1e-7, 20.0])
    width = torch.from_numpy(np.exp(rng.uniform(-6, 3, 20)))
    q = torch.tensor(1.6, dtype=torch.float64)
    found = regions.mass(where, width, square, q)
    exact = [in_box(x, w, 1.6) for x, w in zip(where.numpy(), width.tolist(), strict=True)]
    np.testing.assert_allclose(found, exact, atol=1e-7)
    assert regions.mass_error(where, width, square, q) < 1e-4
    # Cut into triangles, a square keeps its mass; the edge between them adds nothing.
    corners = square.numpy()
    parts = (regions.polygon(corners[[0, 1, 2]]), regions.polygon(corners[[0, 2, 3]]))
    halves = sum(regions.mass(where, width, part, q) for part in parts)
    np.testing.assert_allclose(found, halves, atol=1e-7)
    with pytest.raises(UserError, match="a polygon of three or more corners"):
        regions.polygon(np.zeros((2, 2)))


def test_projection_keeps_distances_from_the_centre_and_wraps() -> None:
    rng = np.random.default_rng(1)
    longitude = 180 + rng.uniform(-3, 3, 50)
    latitude = rng.uniform(-20, -15, 50)
    centre = regions.middle(longitude, latitude)
    whole = regions.project(longitude, latitude, centre)
    wrapped = regions.project((longitude + 180) % 360 - 180, latitude, centre)
    np.testing.assert_allclose(whole, wrapped, atol=1e-8)
    a, b = np.radians([centre[0], centre[1]]), np.radians(np.column_stack([longitude, latitude]))
    angle = np.arccos(
        np.sin(a[1]) * np.sin(b[:, 1]) + np.cos(a[1]) * np.cos(b[:, 1]) * np.cos(b[:, 0] - a[0])
    )
    np.testing.assert_allclose(np.hypot(*whole.T), regions.EARTH * angle, rtol=1e-9)


def test_simulated_counts_have_the_mean_of_the_integral() -> None:
    m = model()
    past = catalogue(stop=20.0)
    drawn = m.draw_catalogues(past[0].batch(), 20.0, 30.0, 4000, torch.Generator().manual_seed(0))
    counts = np.bincount(drawn.row.numpy(), minlength=4000)
    # The first generation of offspring and the background have a closed mean.
    weak = model(productivity=1e-9)
    none = weak.draw_catalogues(past[0].batch(), 20.0, 30.0, 4000, torch.Generator().manual_seed(1))
    expected = weak.estimates()["mu"] * 10
    assert len(none.time) / 4000 == pytest.approx(expected, abs=3 * math.sqrt(expected / 4000))
    by_clusters = sample_paths(m, 20.0, 30.0, 4000, 2, history=past[0]).data.lengths
    error = math.hypot(counts.std(), by_clusters.std()) / math.sqrt(4000)
    assert abs(counts.mean() - by_clusters.mean()) < 4 * error
    assert bool(regions.inside(drawn.place, m.corners).all())


def test_paths_rescaled_by_the_integral_are_unit_exponential() -> None:
    from scipy import stats

    m = model(baseline=20.0)
    data = sample_paths(m, 0.0, 40.0, 1, 3).data
    batch = data.batch()
    with torch.no_grad():
        gaps = m.closed_integral(m.encode(batch), batch.edges[:, :-1], batch.edges[:, 1:])
    assert stats.kstest(gaps[0, :-1, 0].numpy(), "expon").pvalue > 0.001
    assert data.events > 500


def test_tapered_decay_is_a_density() -> None:
    p, c, tau = (torch.tensor(x, dtype=torch.float64) for x in (0.9, 0.01, 20.0))
    lag = torch.logspace(-5, 3, 4001, dtype=torch.float64)
    middle = (lag[1:] + lag[:-1]) / 2
    summed = (omori.density(middle, p, c, tau) * lag.diff()).cumsum(0)
    found = omori.cumulative(lag[1:], p, c, tau)
    assert float((summed - found).abs().max()) < 2e-3
    assert float(found[-1]) == pytest.approx(1.0, abs=1e-8)
    level = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    back = omori.cumulative(omori.inverse(level, p, c, tau), p, c, tau)
    assert torch.allclose(back, level, atol=1e-9)


def test_a_fit_recovers_the_truth_and_reports_errors() -> None:
    data = catalogue(stop=150.0, seed=5)
    m = ETAS(SQUARE, background="uniform", taper=None)
    notes = fp.fit(m, data, progress=False).notes
    truth = dict(mu=4.0, K=0.25, alpha=1.2, c=0.02, p=1.3, d=0.8, q=1.8, gamma=0.9)
    found = m.estimates()
    assert set(m.errors) == set(found) == set(truth)
    away = {name: abs(found[name] - truth[name]) / m.errors[name] for name in truth}
    assert max(away.values()) < 4, away
    assert "branching ratio" in " ".join(notes)


def scattered(seed: int = 0) -> tuple[ETAS, Dataset]:
    """A process in a wide region whose background is concentrated in a few places, as that of a
    subduction zone, and a catalogue of it with magnitudes of one decimal.
    """
    wide = MarkSpace(box=Box(("x", "y"), (0.0, 0.0), (2500.0, 2500.0)))
    truth = ETAS(
        wide, baseline=3.0, productivity=0.1, alpha=1.4, c=0.01, p=1.1, distance=6.0, q=1.9,
        gamma=0.5, mc=4.0, b=1.0, background="uniform", taper=500.0,
    )  # fmt: skip
    random = np.random.default_rng(seed)
    centres = np.array([400.0, 900.0]) + random.uniform(0, 1, (40, 1)) * np.array([1600.0, 1200.0])
    kernels = np.column_stack([centres, np.full(40, 40.0**2), np.full(40, 1 / 40)])
    truth.set_background(torch.from_numpy(kernels))
    with torch.no_grad():
        truth.log_background.copy_(torch.tensor([math.log(0.3), math.log(2.7)]))
    drawn = sample_paths(truth, 0.0, 200.0, 1, seed).data
    assert drawn.features is not None
    return truth, replace(
        drawn,
        features=np.round(drawn.features, 1),
        context=Context(scored_from=np.array([20.0])),
        unit="days",
    )


@pytest.mark.filterwarnings("error")
def test_a_fit_in_a_wide_region_does_not_run_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over groups of events hold near the parameters at which the groups were chosen; the
    search begins far from the truth.
    """
    monkeypatch.setattr(conditions, "TREE_WORK", 1)
    truth, data = scattered()
    assert 600 < data.scored_events < 1500
    m = ETAS(data.marks)
    notes = fp.fit(m, data, progress=False).notes
    assert "summed in groups" in " ".join(notes)
    batch = data.batch()
    with torch.no_grad():
        best, found = (
            float(log_likelihoods(one, batch)["window"].value) / data.scored_events
            for one in (truth, m)
        )
    assert found > best - 0.1
    e = m.estimates()
    assert 0.7 < e["alpha"] < 2.1 and 0.9 < e["p"] < 1.4 and 2 < e["d"] < 20
    assert abs(m.branching_ratio() - truth.branching_ratio()) < 0.25


def test_parameters_stay_within_bounds_and_the_fit_says_where_they_end() -> None:
    data = catalogue(stop=40.0)
    assert data.places is not None
    rounded = replace(data, places=np.round(np.array(data.places) / 5) * 5)
    assert place_resolution(rounded.places) == pytest.approx(5.0)
    assert place_resolution(data.places) == 0.0
    m = ETAS(SQUARE, background="uniform", taper=None)
    notes = " ".join(fp.fit(m, rounded, progress=False).notes)
    assert "warning: d is at its lower bound" in notes
    assert m.estimates()["d"] == pytest.approx(2.5, rel=1e-5)
    assert "d" not in m.errors and {"mu", "alpha"} <= set(m.errors)
    bounds = bounds_of(m, rounded)
    point = flat_parameters(m)
    assert bool((bounds.inside(point) == point).all())


def test_sums_over_groups_have_exact_derivatives_where_gamma_is_zero() -> None:
    data = catalogue(stop=40.0)
    m = model(gamma=0.0)
    log = Log(m, data.batch())
    theta = m.strengths().theta().detach()
    full, by_full = sums_with_derivatives(log.sources, log.queries, theta)
    plan = Planned(log.sources, log.queries, theta, log.floor(m), share=0.0)
    some, by_some = sums_with_derivatives(log.sources, log.queries, theta, plan)
    torch.testing.assert_close(some, full, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(by_some[:, 4], by_full[:, 4], rtol=1e-2, atol=1e-4)


@pytest.fixture(scope="module")
def long_log() -> tuple[Log, ETAS]:
    m = model(baseline=8.0)
    return Log(m, sample_paths(m, 0.0, 700.0, 1, 7).data.batch()), m


def last_of(log: Log, events: int, count: int) -> tuple[Sources, Queries]:
    """The first ``events`` of a log, and ``count`` queries at the last quarter of them."""
    sources = log.sources
    assert sources.places is not None
    some = Sources(*(part[:events] for part in sources))
    rows = torch.linspace(0.75 * events, events - 1, count).long()
    return some, Queries(sources.times[rows], sources.places[rows], rows)


def test_terms_per_event_grow_with_the_logarithm(long_log: tuple[Log, ETAS]) -> None:
    """A past of n events has log2(n / 32) blocks, each with a bounded number of terms."""
    log, m = long_log
    theta = m.strengths().theta().detach()
    most = len(log.sources.times)
    assert most > 9_000
    terms, blocks = [], []
    for events in (most // 16, most // 4, most):
        sources, queries = last_of(log, events, 200)
        floor = log.floor(m)[queries.seen]
        terms.append(Planned(sources, queries, theta, floor).entries)
        blocks.append(math.log2(events / 32))
    for k in range(2):
        assert terms[k + 1] / terms[k] < 1.15 * blocks[k + 1] / blocks[k]
    assert terms[2] < 0.02 * most


def test_draws_from_groups_have_no_bias(long_log: tuple[Log, ETAS]) -> None:
    log, m = long_log
    theta = m.strengths().theta().detach()
    sources, queries = last_of(log, len(log.sources.times), 1000)
    floor = log.floor(m)[queries.seen]
    exact, by_exact = sums_with_derivatives(sources, queries, theta)
    plan = Planned(sources, queries, theta, floor)
    found, by_found = sums_with_derivatives(sources, queries, theta, plan)
    change = ((found + floor) / (exact + floor)).log()
    assert 1e-5 < float(change.std()) < 3e-3 and float(change.abs().max()) < SHARE
    assert abs(float(change.mean())) < 4 * float(change.std()) / math.sqrt(1000)
    # The scores decide how far estimates are from those with full sums: here, in units of their
    # standard errors.
    used = [0, 1, 3, 4, 5, 6]
    scores = (by_exact / (exact + floor)[:, None])[:, used]
    off = (by_found / (found + floor)[:, None])[:, used] - scores
    information = scores.T @ scores
    shift = (
        torch.linalg.solve(information, off.sum(0)) / torch.linalg.inv(information).diag().sqrt()
    )
    assert float(shift.abs().max()) < 0.05


def test_a_fit_ends_in_time_and_reports_progress() -> None:
    data = catalogue(stop=20.0)
    said: list[tuple[str, float]] = []
    m = ETAS(SQUARE)
    m.add_event_features(data)
    m.initialise(data)
    with fit_limits.limited(fit_limits.FitLimits(report=lambda *one: said.append(one))):
        m.maximum_likelihood(data)
    shares = [share for _, share in said]
    assert shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 1 and len(shares) > 5
    assert all("nats/event" in text for text, _ in said)
    for background in ("uniform", "kernel"):
        hasty = ETAS(SQUARE, background=background)
        notes = " ".join(fp.fit(hasty, data, progress=False, time_budget=1e-9).notes)
        assert "stopped by the time budget" in notes
        assert all(math.isfinite(value) for value in hasty.estimates().values())


def write_catalogue(folder: Path, *, degrees: bool = False) -> Path:
    """A simulated catalogue as those of EarthquakeNPP: our columns with splits, or a CSV of dates
    with longitude and latitude alone.
    """
    data = catalogue(stop=120.0, seed=3)
    assert data.places is not None and data.features is not None
    size = data.features[:, 0]
    if degrees:
        lon, lat = regions.unproject(data.places - (30.0, 20.0), (179.9, -40.0))
        stamps = np.datetime64("2010-01-01", "us") + (data.times * 86400e6).astype(
            "timedelta64[us]"
        )
        path = folder / "catalogue.csv"
        rows = zip(stamps, lon, lat, size, strict=True)
        lines = [f"{t},{x:.6f},{y:.6f},{m:.2f}" for t, x, y, m in rows]
        path.write_text("\n".join(["time,longitude,latitude,magnitude", *lines]) + "\n")
        return path
    edges = np.array([15.0, 80.0, 100.0])
    parts = np.array(["history", "train", "dev", "test"])[np.searchsorted(edges, data.times)]
    table = pa.table(
        {
            "seq_id": np.zeros(data.events, dtype=np.int32),
            "t": data.times,
            "magnitude": size,
            "x": data.places[:, 0],
            "y": data.places[:, 1],
            "split": parts,
        }
    )
    path = folder / "catalogue.parquet"
    pq.write_table(table, path)
    return path


def test_commands_read_a_catalogue_and_print_both_parts(tmp_path: Path) -> None:
    path = write_catalogue(tmp_path)
    made = run("fit", str(path), "--model", "etas", "-o", str(tmp_path / "m"))
    assert made.exit_code == 0, made.output
    assert "event features: magnitude" in made.stderr and "history" in made.stderr
    words = ("evaluate", str(tmp_path / "m"), str(path), "--split", "test", "--json")
    scored = run(*words, "--no-fit-check")
    assert scored.exit_code == 0, scored.output
    found = json.loads(scored.stdout)
    parts = [found[f"{part}_log_likelihood_per_event"] for part in ("temporal", "spatial")]
    assert sum(parts) == pytest.approx(found["log_likelihood_per_event"], abs=1e-9)
    truth = evaluate_truth(path)
    assert found["log_likelihood_per_event"] > truth - 0.4
    assert found["events"] == truth_events(path)


def evaluate_truth(path: Path) -> float:
    """The score of the process that made the catalogue, on its test part."""
    return fp.evaluate(model(), scored_last(path)).to_dict()["log_likelihood_per_event"]


def truth_events(path: Path) -> int:
    return scored_last(path).scored_events


def scored_last(path: Path) -> Dataset:
    data = fp.read(path, place=("x", "y"), event_features="magnitude", bounds=SQUARE.box)
    assert data.log is not None
    return data.between(data.log.split_at[1], None)


def test_degrees_are_projected_across_the_date_line(tmp_path: Path) -> None:
    path = write_catalogue(tmp_path, degrees=True)
    cuts = ("--split-at", "2010-01-16,2010-03-22,2010-04-11")
    made = run("fit", str(path), "--model", "etas", "-o", str(tmp_path / "m"), *cuts)
    assert made.exit_code == 0, made.output
    assert "projected to km about longitude" in made.stderr and "history:" in made.stderr
    scored = run(
        "evaluate", str(tmp_path / "m"), str(path), "--split", "test", "--json", "--no-fit-check"
    )
    assert scored.exit_code == 0, scored.output
    assert json.loads(scored.stdout)["spatial_log_likelihood_per_event"] > -math.log(80 * 60)


def test_a_page_of_every_catalogue(tmp_path: Path) -> None:
    write_catalogue(tmp_path)
    out = tmp_path / "out"
    made = run("reproduce", "earthquakes", "--real", str(tmp_path), "--quick", "-o", str(out))
    assert made.exit_code == 0, made.output
    text = (out / "catalogue.html").read_text()
    assert "Omori-Utsu decay" in text and text.count("<svg") == 6
    table = (out / "earthquakes.csv").read_text()
    assert "number_test_passed" in table
    refused = run("reproduce", "earthquakes", "--real", str(out), "-o", str(out))
    assert refused.exit_code == 2 and "a folder with catalogues" in refused.stderr


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))
