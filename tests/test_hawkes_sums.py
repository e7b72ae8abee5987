"""Sums of exponentials are found as well with effects and event features as without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fourpoint as fp
from fourpoint.inference.likelihood import log_likelihood


def test_two_exponentials_are_found_with_event_features() -> None:
    """Features without effect leave the likelihood of the plain fit, which has its own search."""
    truth = fp.Hawkes(baseline=0.5, branching=[[[0.3]], [[0.1]]], decay=[1.0, 30.0], exponentials=2)
    data = fp.sample(truth, 0.0, 1000.0, 1, seed=2)
    plain = fp.Hawkes(exponentials=2)
    plain.maximum_likelihood(data)
    noise = np.random.default_rng(0).normal(size=(data.events, 1))
    featured = replace(data, features=noise, feature_names=("noise",))
    model = fp.Hawkes(exponentials=2)
    model.add_event_features(featured)
    model.maximum_likelihood(featured)
    by_plain = float(log_likelihood(plain, data.batch(np.array([0]))).value.sum())
    by_features = float(log_likelihood(model, featured.batch(np.array([0]))).value.sum())
    assert by_plain - 0.01 < by_features < by_plain + 5
    assert model.estimates["decay"] == pytest.approx(plain.estimates["decay"], rel=0.3)
