"""Models that were saved before the code was restructured give the same likelihoods, samples,
forecasts and streams as then.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from reference import regression

import fourpoint as fp

FIGURES: dict[str, Any] = json.loads(regression.FIGURES.read_text())
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


def compare(
    found: dict[str, list[float]], expected: dict[str, list[float]], tolerance: float
) -> None:
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        scale = max(1.0, float(np.max(np.abs(values))))
        np.testing.assert_allclose(
            found[key], values, rtol=0.0, atol=tolerance * scale, err_msg=key
        )


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", regression.BUILD)
def test_saved_model_gives_the_recorded_results(name: str, kind: str) -> None:
    model = fp.restore(regression.MODELS / name)
    if kind == "float64":
        model = model.double()
    found = regression.record(model, name, precise=kind == "float64")
    compare(found, FIGURES[kind][name], TOLERANCE[kind])


def test_fits_with_fixed_seeds_give_the_recorded_likelihoods() -> None:
    compare(regression.fitted(), FIGURES["fits"], TOLERANCE["float32"])
