"""Goodness of fit on rounded times: the true model passes as often as stated, however fast its
excitation fades; others do not.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

import fourpoint as fp
from fourpoint.inference.dequantising import change_within_ticks, dequantise, first_events
from fourpoint.inference.sampling import sample
from fourpoint.models import THP, Hawkes, Poisson


def rounded(model: Any, sequences: int, seed: int, stop: float = 10.5) -> fp.Dataset:
    """Events of a model in ticks of 1, whose windows begin and end with a tick."""
    exact = sample(model, 0.5, stop, sequences, seed=seed)
    return replace(exact, times=np.round(exact.times))


@pytest.mark.parametrize("decay", [0.25, 2.0, 10.0, 300.0])
def test_the_true_model_passes_whatever_its_decay_within_a_tick(decay: float) -> None:
    model = Hawkes(baseline=0.5, branching=0.5, decay=decay)
    found = fp.goodness_of_fit(model, rounded(model, 150, seed=1))
    total = found.total
    assert found.dequantised == "model" and not found.inapplicable
    assert total.count > 1000 and min(total.ks_p, total.uniform_p, total.ljung_box_p) > 1e-3


def test_the_true_model_is_rejected_as_often_as_stated() -> None:
    model = Hawkes(baseline=0.5, branching=0.5, decay=10.0)
    everything, sets = rounded(model, 40 * 30, seed=2, stop=4.5), 30
    p = [
        fp.goodness_of_fit(model, everything[40 * i : 40 * (i + 1)]).total.ks_p for i in range(sets)
    ]
    assert sum(x < 0.05 for x in p) <= binom.ppf(0.999, sets, 0.05)
    assert sum(x > 0.95 for x in p) <= binom.ppf(0.999, sets, 0.05)


def test_wrong_models_are_rejected() -> None:
    data = rounded(Hawkes(baseline=0.5, branching=0.5, decay=10.0), 60, seed=3)
    constant = Poisson()
    constant.initialise(data)
    assert fp.goodness_of_fit(constant, data).total.ks_p < 1e-6
    assert (
        fp.goodness_of_fit(Hawkes(baseline=0.5, branching=0.5, decay=0.3), data).total.ks_p < 1e-6
    )
    steady = rounded(Poisson(), 60, seed=4)
    assert (
        fp.goodness_of_fit(Hawkes(baseline=0.5, branching=0.5, decay=10.0), steady).total.ks_p
        < 1e-6
    )


def test_marks_excite_each_other_within_a_tick() -> None:
    model = Hawkes(2, baseline=[0.3, 0.1], branching=[[0.2, 0.4], [0.3, 0.3]], decay=8.0)
    found = fp.goodness_of_fit(model, rounded(model, 150, seed=5))
    assert all(v.ks_p > 1e-3 for v in (found.total, *found.marks.values()))


def test_latent_times_stay_in_their_ticks_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourpoint.inference.dequantising.SEGMENT", 16)
    model = Hawkes(baseline=2.0, branching=0.5, decay=20.0)
    data = rounded(model, 3, seed=6, stop=20.5)
    latent = dequantise(model, data, 1.0, seed=0)
    assert data.lengths.min() > 3 * 16
    assert (np.abs(latent.times - data.times) <= 0.5).all()
    assert all((np.diff(s.times) >= 0).all() for s in latent)
    assert np.array_equal(latent.times, dequantise(model, data, 1.0, seed=0).times)
    assert not np.array_equal(latent.times, dequantise(model, data, 1.0, seed=1).times)


def test_two_events_have_the_models_law_in_their_ticks() -> None:
    """Two events in neighbouring ticks under a rate that decays: their joint law is known up to a
    constant.
    """
    model = Hawkes(baseline=1e-6, branching=2.0, decay=3.0)
    data = fp.Dataset.from_sequences([fp.Sequence([0.0, 1.0], start=0.0, stop=1.5 + 1e-9)] * 1000)
    latent = dequantise(model, data, 1.0, seed=0)
    first, second = latent.times.reshape(-1, 2).T
    # The density of both times is proportional to lambda(second) exp(-int lambda), here on a fine
    # grid.
    s, t = np.meshgrid(np.linspace(0, 0.5, 400), np.linspace(0.5, 1.5, 400), indexing="ij")
    late = 2 * 3 * np.exp(-3 * (t - s))
    silent = 2 * (1 - np.exp(-3 * (1.5 - s))) + 2 * (1 - np.exp(-3 * (1.5 - t)))
    weight = late * np.exp(-silent)
    weight /= weight.sum()
    for draws, grid in ((first, s), (second, t)):
        mean = float((weight * grid).sum())
        spread = float(np.sqrt((weight * (grid - mean) ** 2).sum()))
        assert abs(draws.mean() - mean) < 5 * spread / np.sqrt(len(draws)) + 0.01 * spread


def test_uniform_where_the_rate_does_not_change_within_a_tick() -> None:
    slow = Hawkes(baseline=0.5, branching=0.5, decay=1e-3)
    data = rounded(slow, 50, seed=7)
    assert (
        change_within_ticks(slow, data, 1.0)
        < 1e-3
        < 0.1
        < change_within_ticks(Hawkes(decay=2.0), data, 1.0)
    )
    found = fp.goodness_of_fit(slow, data)
    assert found.dequantised == "uniform" and not found.inapplicable and found.total.ks_p > 1e-3


def test_the_report_says_where_the_test_does_not_apply() -> None:
    data = rounded(Hawkes(baseline=0.5, branching=0.5, decay=5.0), 20, seed=8)
    model = THP()
    model.initialise(data)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    found = fp.goodness_of_fit(model, data)
    assert "the rate changes within the resolution" in found.inapplicable
    assert np.isnan(found.total.ks_p)
    assert found.total.ks > 0 and found.total.expected > 0
    assert "The test does not apply" in " ".join(str(found).split())
    assert json.loads(json.dumps(found.to_dict()))["inapplicable"] == found.inapplicable


def test_a_model_without_closed_integrals_is_dequantised_by_its_law_too() -> None:
    class Open(Hawkes):
        """A Hawkes process whose closed forms are not known."""

        has_closed_integral = False

    model, closed = (kind(baseline=0.5, branching=0.5, decay=10.0) for kind in (Open, Hawkes))
    assert not model.has_closed_integral
    found = fp.goodness_of_fit(model, rounded(closed, 100, seed=9))
    assert found.dequantised == "model" and found.total.ks_p > 1e-3


def test_the_first_events_of_much_data() -> None:
    data = fp.Dataset.from_sequences([fp.Sequence(np.arange(100.0), start=0.0, stop=100.0)] * 3)
    assert first_events(data, 250).events == 200 and first_events(data, 300) is data
    cut = first_events(data, 40)
    assert len(cut) == 1 and cut.events == 40 and cut.stops[0] == 39.5
