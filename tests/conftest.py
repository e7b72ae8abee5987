"""Settings of the test run: no windows on a screen, one thread per worker, and the same examples
each time.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# This file comes before any test module, hence before torch and matplotlib. Each worker of
# pytest-xdist has one core, unless another number of threads is asked for.
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# No example fails for the time that it, or the making of it, takes: that is the machine's.
settings.register_profile(
    "fourpoint",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
    print_blob=False,
)
settings.load_profile("fourpoint")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository, which is never part of it."""
    folder = ROOT.parent / "shared" / "data"
    if not any(folder.glob("*.parquet")):
        pytest.skip("the real data sets are not beside this repository (../shared/data)")
    return folder
