"""Evaluation: the right keys, the right formulas, and a truth that regrets nothing."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from pretended import second_device

from fourpoint.data.synthetic import PROCESSES, process, simulate
from fourpoint.events import Dataset, Sequence, UserError
from fourpoint.inference.evaluation import MIDPOINTS, Report, device_of, evaluate, intensity
from fourpoint.inference.goodness import goodness_of_fit
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models import CATALOGUE, DAPP, MODELS, Hawkes, Poisson
from fourpoint.reproduce.experiments import first_matters
from fourpoint.reproduce.tabled import tabled

PLAIN = [
    "events",
    "sequences",
    "convention",
    "log_likelihood_per_event",
    "log_likelihood_per_sequence",
    "integral_error",
]
TRUTH = [
    "oracle_log_likelihood_per_event",
    "regret_per_event",
    "intensity_mse",
    "intensity_variance",
]


@pytest.mark.parametrize("convention", ["window", "gaps"])
def test_the_keys_of_a_report(convention: str) -> None:
    data = simulate("hawkes", 30, seed=1)
    plain, judged = evaluate(Poisson(), data), evaluate(Poisson(), data, truth="hawkes")
    assert (
        list(plain.to_dict(convention)) == PLAIN
        and list(judged.to_dict(convention)) == PLAIN + TRUTH
    )
    for report in (plain, judged):
        found = json.loads(json.dumps(report.to_dict(convention)))
        assert found["convention"] == convention and found["sequences"] == 30
        assert found["events"] == (
            data.events if convention == "window" else int(np.maximum(data.lengths - 1, 0).sum())
        )
        assert all(math.isfinite(value) for key, value in found.items() if key != "convention")


@pytest.mark.parametrize("convention", ["window", "gaps"])
def test_a_report_sums_the_likelihood(convention: str) -> None:
    """More sequences than one batch holds, one of them empty."""
    data = Dataset.from_sequences([*simulate("hawkes", 150, seed=2), Sequence([], start=0, stop=1)])
    model = Hawkes(baseline=12.0, branching=0.2, decay=3.0)
    parts = [log_likelihood(model, s.batch(), convention=convention) for s in data]
    total, events = (
        sum(float(p.value.sum()) for p in parts),
        sum(int(p.events.sum()) for p in parts),
    )
    found = evaluate(model, data).to_dict(convention)
    assert found["log_likelihood_per_event"] == pytest.approx(total / events, rel=1e-12)
    assert found["log_likelihood_per_sequence"] == pytest.approx(total / 151, rel=1e-12)
    assert found["events"] == events and found["sequences"] == 151
    assert 0 < found["integral_error"] < 1e-9


@pytest.mark.parametrize("name", [*PROCESSES, "nonhomogeneous2-random"])
def test_the_truth_regrets_nothing(name: str) -> None:
    data = process(name).simulate(20, seed=3)
    report = evaluate(process(name).truth(), data, truth=name)
    for convention in ("window", "gaps"):
        found = report.to_dict(convention)
        assert (
            found["regret_per_event"] == 0
            and found["oracle_log_likelihood_per_event"] == found["log_likelihood_per_event"]
        )
    assert found["intensity_mse"] == 0 and found["intensity_variance"] > 0


def test_a_model_that_is_wrong_regrets_it() -> None:
    data = simulate("nonhomogeneous2", 200, seed=4)
    flat = Poisson()
    flat.maximum_likelihood(data)
    found = evaluate(flat, data, truth="nonhomogeneous2").to_dict()
    assert 0.05 < found["regret_per_event"] < 0.15
    assert (
        found["intensity_mse"]
        == pytest.approx(found["intensity_variance"], rel=0.02)
        == pytest.approx(33.9, rel=0.02)
    )


def test_the_intensity_error_is_the_slow_sum() -> None:
    """Windows of different lengths and places, two marks whose rates are added."""
    rng = np.random.default_rng(5)
    spans = ((0, 2, 5), (1, 4, 9), (7, 8, 0))
    data = Dataset.from_sequences(
        [
            Sequence(np.sort(rng.uniform(a, b, n)), rng.integers(0, 2, n), start=a, stop=b, space=2)
            for a, b, n in spans
        ]
    )
    model, truth = (
        Hawkes(2, baseline=1.0, branching=0.3, decay=2.0),
        Hawkes(2, baseline=2.0, branching=0.7, decay=1.0),
    )

    def rate(m: Hawkes, s: Sequence, t: float) -> float:
        mu, alpha, beta = (m.estimates[k] for k in ("baseline", "branching", "decay"))
        past = [(u, n) for u, n in zip(s.times, s.marks, strict=True) if u < t]
        return float(
            mu.sum() + sum(alpha[:, n].sum() * beta * math.exp(-beta * (t - u)) for u, n in past)
        )

    times = [
        (s, s.start + (k + 0.5) / MIDPOINTS * s.duration) for s in data for k in range(MIDPOINTS)
    ]
    true = np.array([rate(truth, s, t) for s, t in times])
    errors = np.array([rate(model, s, t) for s, t in times]) - true
    found = evaluate(model, data, truth=truth).to_dict()
    assert MIDPOINTS == 200
    assert found["intensity_mse"] == pytest.approx(float((errors**2).mean()), rel=1e-10)
    assert found["intensity_variance"] == pytest.approx(float(true.var()), rel=1e-10)


def test_a_model_comes_back_as_it_was() -> None:
    model = DAPP(heads=1, features=4, eval_features=8, generator=(4,)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    first, second = (evaluate(model, simulate("hawkes", 5)).to_dict() for _ in range(2))
    assert model.training and first == second
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_marks_that_differ_are_refused() -> None:
    with pytest.raises(
        UserError,
        match="expected data with 3 types, as the model has; received no marks. Use data of",
    ):
        evaluate(Poisson(3), simulate("hawkes", 2))


def test_an_unknown_truth_is_refused() -> None:
    with pytest.raises(
        UserError, match="expected a process among .*; received 'hawks'. Did you mean 'hawkes'?"
    ):
        evaluate(Poisson(), simulate("hawkes", 2), truth="hawks")


def test_a_report_prints_as_a_table() -> None:
    report = evaluate(Poisson(), simulate("hawkes", 20), truth="hawkes")
    text = str(report)
    assert isinstance(report, Report)
    for words in (
        "window (everything)",
        "gaps (events 2..N)",
        "log likelihood per event",
        "integral error",
        "regret per event",
    ):
        assert words in text
    assert f"{report.to_dict()['log_likelihood_per_event']:.4f}" in text


CPU_ONLY = ("hawkes", "modulated-hawkes", "spatial-hawkes", "spatial-dapp", *CATALOGUE)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in CPU_ONLY])
def test_a_model_on_another_device_is_scored_there(name: str) -> None:
    """The same numbers as on the CPU; a tensor made on the wrong device would be an error (see
    `pretended`).
    """
    data = (
        simulate("hawkes", 3, seed=6) if name == "self-correcting" else first_matters(3, 3, seed=6)
    )
    sizes: dict[str, Any] = (
        dict(generator=(8, 8))
        if name.endswith(("-dot", "-nn"))
        else dict(eval_features=16)
        if "dapp" in name
        else {}
    )
    if name == "deep-dapp":
        sizes = dict(layers=1)
    model, truth = MODELS[name](data.marks, **sizes).eval(), Poisson(data.marks)
    model.initialise(data)
    here = evaluate(tabled(model, 1.0), data, truth=truth, tolerance=1e-2).to_dict()
    with second_device() as device:
        there = copy.deepcopy(model).to(device)
        assert device_of(there).type == device
        found = evaluate(tabled(there, 1.0), data, truth=truth, tolerance=1e-2).to_dict()
        rates = intensity(there, data[0], [0.5])
        verdict = goodness_of_fit(there, data).total
    assert found.pop("convention") == here.pop("convention") and found == pytest.approx(
        here, rel=1e-12
    )
    assert rates == pytest.approx(intensity(model, data[0], [0.5])) and verdict.ks == pytest.approx(
        goodness_of_fit(model, data).total.ks
    )


def test_the_second_device_refuses_what_a_gpu_refuses() -> None:
    with second_device() as device:
        there = torch.arange(3.0).to(device)
        with pytest.raises(RuntimeError, match="is on the CPU"):
            there + torch.ones(3)
        with pytest.raises(RuntimeError, match="is on the CPU"):
            torch.cat([there, torch.ones(1)])
        with pytest.raises(RuntimeError):
            there.numpy()
        assert (there + torch.tensor(1.0)).cpu().tolist() == [1.0, 2.0, 3.0] and there[
            torch.tensor([2])
        ].device.type == device
