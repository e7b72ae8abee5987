"""Catalogue forecasts: our tests against pyCSEP's, and files that it reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fourpoint.events import UserError
from fourpoint.inference import csep
from fourpoint.inference.csep import Catalogues, Grid
from fourpoint.ops.regions import project

CENTRE = (-116.5, 33.5)
ORIGIN = np.datetime64("2016-01-01T00:00:00")
MAGNITUDES = np.arange(1.0, 4.0, 0.1)
DEGREES = 0.1  # of a cell


def forecast(seed: int = 0) -> tuple[Catalogues, np.ndarray]:
    """Catalogues in a square of a degree, the last one empty, with longitudes and latitudes."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(6, 40)
    counts[[3, 39]] = 0
    owner = np.repeat(np.arange(40), counts)
    spread = rng.normal(0, 0.12, (len(owner), 2))
    degrees = np.clip(np.array(CENTRE) + spread, (-116.99, 33.01), (-116.01, 33.99))
    places = project(*degrees.T, CENTRE)
    size = 1.0 + np.round(rng.exponential(0.45, len(owner)), 2)
    times = rng.uniform(10, 11, len(owner))
    return Catalogues(times, places, np.minimum(size, 3.9), owner, 40, 10.0, 11.0), degrees


def test_files_and_tests_agree_with_pycsep(tmp_path: Path) -> None:
    pycsep = pytest.importorskip("csep", reason="the extra csep is not installed")
    from csep.core import catalog_evaluations, catalogs, poisson_evaluations, regions

    drawn, degrees = forecast()
    path = tmp_path / "etas_2016-01-11T00-00-00-000000.csv"
    csep.write_csep(drawn, path, origin=ORIGIN, centre=CENTRE)
    edges = np.arange(10) * DEGREES
    origins = np.array([[x - 117, y + 33] for x in edges for y in edges])
    region = regions.CartesianGrid2D.from_origins(origins, dh=DEGREES, magnitudes=MAGNITUDES)
    loaded = pycsep.load_catalog_forecast(
        str(path), region=region, n_cat=40, filter_spatial=False, apply_filters=False
    )
    assert [one.event_count for one in loaded] == drawn.counts().tolist()
    rng = np.random.default_rng(9)
    seen = np.clip(np.array(CENTRE) + rng.normal(0, 0.1, (8, 2)), (-116.9, 33.1), (-116.1, 33.9))
    sizes = np.array([1.05, 1.25, 1.35, 1.15, 2.05, 1.55, 1.05, 1.95])
    rows = [
        (str(i), i, y, x, 0.0, m) for i, ((x, y), m) in enumerate(zip(seen, sizes, strict=True))
    ]
    observed = catalogs.CSEPCatalog(data=rows, region=region)

    number = catalog_evaluations.number_test(loaded, observed)
    assert number.quantile == pytest.approx(csep.number_test(drawn, 8)[1:])

    grid = Grid(np.linspace(-117, -116, 11), np.linspace(33, 34, 11))
    by_degree = Catalogues(
        drawn.times, degrees, drawn.magnitudes, drawn.catalogue, 40, drawn.start, drawn.stop
    )
    counts = by_degree.gridded(grid)
    own = np.bincount(grid.cell_of(seen), minlength=grid.cells)
    for ours, theirs in (
        (csep.spatial_test(counts, own), catalog_evaluations.spatial_test(loaded, observed)),
        (
            csep.pseudo_likelihood_test(counts, own),
            catalog_evaluations.pseudolikelihood_test(loaded, observed),
        ),
        (
            csep.magnitude_test(drawn, sizes, MAGNITUDES),
            catalog_evaluations.magnitude_test(loaded, observed),
        ),
    ):
        assert ours is not None
        assert ours.observed == pytest.approx(theirs.observed_statistic, rel=1e-6)
        assert ours[1:] == pytest.approx(theirs.quantile, abs=1e-9)

    first, second = rng.uniform(0.5, 3, (2, 60))
    gain = csep.information_gain(np.log(first), np.log(second), 61.0, 58.0)
    theirs = poisson_evaluations._t_test_ndarray(first, second, 60, 61.0, 58.0)
    assert gain.gain == pytest.approx(theirs["information_gain"])
    assert (gain.low, gain.high) == pytest.approx((theirs["ig_lower"], theirs["ig_upper"]))
    assert gain.t_statistic == pytest.approx(theirs["t_statistic"])
    ranks = poisson_evaluations._w_test_ndarray(np.log(first) - np.log(second), 3.0 / 60)
    assert gain.w_statistic == pytest.approx(ranks["z_statistic"])
    assert gain.w_p == pytest.approx(ranks["probability"])


def test_what_cannot_be_tested_is_none_or_refused() -> None:
    drawn, _ = forecast()
    nothing = np.zeros(9, dtype=np.int64)
    assert csep.spatial_test(np.ones((3, 9), dtype=np.int64), nothing) is None
    assert csep.pseudo_likelihood_test(np.ones((3, 9), dtype=np.int64), nothing) is None
    assert csep.magnitude_test(drawn, np.zeros(0), MAGNITUDES) is None
    with pytest.raises(UserError, match="log rates of two models at the same two or more events"):
        csep.information_gain(np.zeros(1), np.zeros(1), 1.0, 1.0)
