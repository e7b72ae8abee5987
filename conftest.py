"""What tests and doctests of all folders share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

# Kernels need triton, which torch brings to machines with a CUDA device.
collect_ignore_glob = [] if find_spec("triton") else ["src/fourpoint/kernels/triton_*"]


@pytest.fixture(autouse=True)
def figures_are_closed() -> Iterator[None]:
    """Figures that an example leaves open would add up to a warning, which is an error here."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
