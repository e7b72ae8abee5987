"""DAPP: the paper's structure, Hawkes inside the family, choices that come from the data, and
choices that are refused.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

import fourpoint as fp
from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models import DAPP, Hawkes, dapp as module
from fourpoint.models.dapp import CHOICES

SMALL: dict[str, Any] = dict(heads=2, features=6, eval_features=16, generator=(8,), knots=4)


def uneven(marks: int = 1) -> Dataset:
    rng = np.random.default_rng(0)
    spans = ((0.0, 10.0, 9), (5.0, 25.0, 14), (1.0, 2.0, 0))
    return Dataset.from_sequences(
        [
            Sequence(
                np.sort(rng.uniform(a, b, n)),
                rng.integers(0, marks, n),
                start=a,
                stop=b,
                space=marks,
            )
            for a, b, n in spans
        ]
    )


def inverse_softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.expm1(x))


# ---------------------------------------------------------------------- reductions


@pytest.mark.parametrize("form", ["scan", "dense"])
def test_one_still_mode_is_an_exponential_hawkes_process(form: Any) -> None:
    mu, alpha, beta = 0.6, 0.5, 1.3
    data = uneven()
    model = DAPP(**{**SMALL, "heads": 1}, link="identity", base="constant", form=form)
    model.initialise(data)
    model.double().eval()
    scale = float(model.time_scale)
    with torch.no_grad():
        model.gain.fill_(1.0)
        model.modes.time_key.zero_()
        model.modes.mark_key.zero_()
        for parts in (model.modes.generator.weights, model.modes.generator.biases):
            parts[-1][..., -1] = 0.0
        model.modes.log_decay.fill_(math.log(beta * scale))
        model.rate.baseline.log_base.fill_(math.log(mu * scale))
        model.value_weight.copy_(
            inverse_softplus(torch.full_like(model.value_weight, alpha * beta * scale))
        )
    assert torch.allclose(
        model.kernel(torch.tensor([0.0, 2.0])), torch.tensor([[1.0, math.exp(-beta * 2)]]).double()
    )
    hawkes = Hawkes(baseline=mu, branching=alpha, decay=beta)
    ours, theirs = (log_likelihood(m, data.batch(), tolerance=1e-9) for m in (model, hawkes))
    assert torch.allclose(ours.value, theirs.value, rtol=0, atol=1e-7)
    times = torch.linspace(0, 5, 40, dtype=torch.float64) + torch.tensor(data.starts)[:, None]
    assert torch.allclose(
        *(m.intensity(m.encode(data.batch()), times) for m in (model, hawkes)), rtol=1e-12
    )


def test_two_heads_and_marks_are_a_multivariate_hawkes_process() -> None:
    """alpha_mn beta = sum_k r_km v_kn; past types are told apart by the values, present ones by the
    read-out.
    """
    beta, data = 0.9, uneven(3)
    random = torch.Generator().manual_seed(1)
    read, value = (torch.rand(2, 3, generator=random, dtype=torch.float64) + 0.1 for _ in range(2))
    model = DAPP(3, **SMALL, link="identity", base="constant")
    model.initialise(data)
    model.double().eval()
    scale = float(model.time_scale)
    with torch.no_grad():
        model.gain.fill_(1.0)
        model.modes.time_key.zero_()
        model.modes.mark_key.zero_()
        for parts in (model.modes.generator.weights, model.modes.generator.biases):
            parts[-1][..., -1] = 0.0
        model.modes.log_decay.fill_(math.log(beta * scale))
        model.rate.baseline.log_base.fill_(math.log(0.4 * scale))
        model.readout.copy_(read)
        model.value_weight.copy_(inverse_softplus(value * scale)[:, None])
    hawkes = Hawkes(3, baseline=0.4, decay=beta)
    with torch.no_grad():
        hawkes.log_branching.copy_(torch.log(torch.einsum("km,kn->mn", read, value) / beta))
    ours, theirs = (log_likelihood(m, data.batch(), tolerance=1e-9) for m in (model, hawkes))
    assert torch.allclose(ours.value, theirs.value, rtol=0, atol=1e-7)


def test_the_identity_link_stays_positive_whatever_the_weights() -> None:
    model = DAPP(3, **SMALL, link="identity").double().eval()
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(3 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    batch = uneven(3).batch()
    rate = model.intensity(
        model.encode(batch), batch.start[:, None] + torch.linspace(0, 20, 200, dtype=torch.float64)
    )
    assert rate.isfinite().all() and (rate > 0).all()


def test_a_sum_counts_and_a_mean_does_not() -> None:
    """Ten events at one time weigh ten times as much in a sum, and no more than one in a mean."""
    for normalise, factor in (("none", 10.0), ("ratio", 1.0), ("softmax", 1.0)):
        model = DAPP(**SMALL, normalise=normalise).double().eval()
        one, ten = (Sequence([1.0] * n, start=0.0, stop=3.0).batch() for n in (1, 10))
        a, b = (
            model.attend(model.encode(x), torch.tensor([[[2.0]]]).double(), x.lengths[:, None])
            for x in (one, ten)
        )
        assert torch.allclose(b, factor * a, rtol=1e-10)


def test_contributions_add_up_to_the_argument_of_the_link() -> None:
    for settings in (
        {},
        dict(normalise="ratio"),
        dict(normalise="softmax", phase="random", decay=False),
    ):
        model = DAPP(3, **{**SMALL, **settings}).double().eval()
        batch = uneven(3).batch()
        history = model.encode(batch)
        times = batch.start[:, None] + torch.linspace(0.5, 9, 7, dtype=torch.float64)
        each = model.contributions(history, times)
        seen = (batch.times[:, None] < times[..., None]) & batch.valid[:, None]
        assert (each[~seen] == 0).all()
        whole = torch.einsum(
            "bgqkm,km->bgm", model.attend(history, times[..., None], seen.sum(-1)), model.readout
        )
        assert torch.allclose(each.sum(2), whole, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------- the paper


def test_the_paper_has_the_papers_structure() -> None:
    model = DAPP.paper()
    settings = model.settings()
    expected = dict(
        heads=2,
        features=20,
        eval_features=10_000,
        normalise="softmax",
        phase="random",
        values="linear",
        link="softplus",
        base="constant",
        drift="none",
        decay=False,
        generator=[128, 256, 128],
        draw="independent",
    )
    assert {name: settings[name] for name in expected} == expected
    assert [tuple(w.shape) for w in model.modes.generator.weights] == [
        (2, 2, 128),
        (2, 128, 256),
        (2, 256, 128),
        (2, 128, 2),
    ]
    assert (
        model.modes.noise.shape == (2, 10_000, 2)
        and not model.linear
        and not hasattr(model.rate, "drift")
    )
    assert (
        not model.modes.log_decay.requires_grad
        and model.spectrum().decay is None
        and model.spectrum().phase is not None
    )


def test_the_papers_ratio_uses_paired_phases() -> None:
    model = DAPP.paper(normalise="ratio", eval_features=64)
    assert model.settings()["phase"] == "paired" and model.linear
    lags = torch.linspace(0, 50, 500)
    assert model.kernel(lags).min() >= 0 and torch.allclose(
        model.kernel(lags[:1]), torch.ones(2, 1)
    )


def test_linear_values_have_no_constant() -> None:
    """(4): phi(x) = W_v x, so an event at the window's start counts nothing without marks."""
    model = DAPP.paper(features=6, eval_features=16, generator=(8,)).double().eval()
    batch = Sequence([0.0], start=0.0, stop=2.0).batch()
    assert (
        model.attend(model.encode(batch), torch.tensor([[[1.0]]]).double(), torch.tensor([[1]]))
        == 0
    ).all()


# ---------------------------------------------------------------------- what comes from the data


@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        dict(link="softplus"),
        dict(link="identity"),
        dict(normalise="ratio"),
        dict(normalise="softmax", link="softplus"),
    ],
)
def test_it_starts_near_the_mean_rate_of_the_data(settings: dict[str, Any], marks: int) -> None:
    plain = simulate("hawkes", 50, seed=3)
    ids = (
        np.random.default_rng(4).choice(3, plain.events, p=[0.7, 0.2, 0.1])
        if marks == 3
        else plain.mark_ids
    )
    space = MarkSpace.of(3) if marks == 3 else MarkSpace()
    data = Dataset(
        60 * plain.times, ids, plain.offsets, plain.starts, 60 * plain.stops, marks=space
    )
    model = DAPP(space if marks == 3 else None, **{**SMALL, **settings})
    model.initialise(data)
    found = log_likelihood(model.eval(), data.batch(), tolerance=1e-3)
    assert float(found.integral.mean()) == pytest.approx(data.events / len(data), rel=0.25)
    rate = model.intensity(model.encode(data.batch()), data.batch().start[:, None] + 0.01)[0, 0]
    counts = np.bincount(ids, minlength=marks)
    assert rate.tolist() == pytest.approx((counts / data.durations.sum()).tolist(), rel=0.3)


def test_the_paper_starts_near_the_mean_rate_too() -> None:
    data = simulate("hawkes", 50, seed=3)
    model = DAPP.paper(eval_features=100)
    model.initialise(data)
    assert float(log_likelihood(model.eval(), data.batch()).integral.mean()) == pytest.approx(
        data.events / len(data), rel=0.25
    )


def test_drift_and_base_follow_the_windows() -> None:
    even, odd = DAPP(**SMALL), DAPP(**SMALL)
    said, other = even.initialise(simulate("hawkes", 5)), odd.initialise(uneven())
    assert even.settings()["drift"] == even.settings()["base"] == "spline"
    assert (
        "drift: spline (all windows have one length)" in said
        and "base: spline (all windows have one length)" in said
    )
    assert (odd.settings()["drift"], odd.settings()["base"]) == ("none", "constant")
    assert (
        "drift: none (windows have different lengths)" in other
        and "base: constant (windows have different lengths)" in other
    )
    fixed = DAPP(**SMALL, drift="none", base="constant")
    assert not any("windows" in note for note in fixed.initialise(simulate("hawkes", 5)))
    assert (fixed.settings()["drift"], fixed.settings()["base"]) == ("none", "constant")
    hawkes_like = DAPP(**SMALL, link="identity")
    hawkes_like.initialise(simulate("hawkes", 5))
    assert hawkes_like.settings()["drift"] == "none"


def test_the_time_scale_is_the_mean_gap_and_is_said() -> None:
    data = uneven()
    model = DAPP(**SMALL)
    notes = model.initialise(data)
    assert (
        float(model.time_scale) == pytest.approx(data.gaps.mean())
        and float(model.rate.baseline.length) == 20.0
    )
    assert f"time scale: {data.gaps.mean():.3g} units of time (the mean gap)" in notes


def test_data_without_gaps_still_has_a_time_scale() -> None:
    data = Dataset.from_sequences(
        [Sequence([1.0], start=0, stop=4), Sequence([2.0], start=0, stop=4)]
    )
    model = DAPP(**SMALL)
    model.initialise(data)
    assert float(model.time_scale) == 4.0
    assert math.isfinite(log_likelihood(model.eval(), data.batch()).per_event)


def test_splines_are_constant_outside_the_window() -> None:
    data = simulate("hawkes", 5)
    model = DAPP(**SMALL, base="spline", drift="spline")
    model.initialise(data)
    model.double().eval()
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in (model.rate.baseline.log_base, model.rate.baseline.drift):
            parameter += torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    history = model.encode(Sequence([], start=0.0, stop=1.0).batch())
    rate = model.intensity(history, torch.tensor([[0.2, 0.9, 1.0, 1.5, 40.0]]).double())[0, :, 0]
    assert rate[2] == rate[3] == rate[4] and rate[0] != rate[1]
    assert torch.allclose(model.knots(history), torch.linspace(0, 1, 5, dtype=torch.float64)[None])


# ---------------------------------------------------------------------- features for training and
# for evaluation


def test_settle_picks_features_and_says_its_error() -> None:
    model = DAPP(heads=2, features=6, generator=(8,))
    model.initialise(simulate("hawkes", 20))
    assert model.settings()["eval_features"] is None
    (note,) = model.fix_features()
    size = model.settings()["eval_features"]
    assert size in module.SIZES and model.modes.noise.shape[1] == size
    said = re.match(rf"evaluation features: {size} per head, \D*(\d[\d.e+-]*)", note)
    assert said is not None and 0 <= float(said[1]) < 1
    assert model.fix_features() == [] and model.settings()["eval_features"] == size


def test_settle_keeps_what_was_asked_for() -> None:
    model = DAPP(**SMALL)
    model.draw_training_features()
    assert model.fix_features() == [] and model.modes.noise.shape[1] == 16


def test_rehearsals_use_few_features_and_settle_ends_them() -> None:
    model = DAPP.paper(generator=(8,), eval_features=1000)
    before = model.modes.noise.clone()
    model.draw_training_features()
    assert model.modes.noise.shape[1] < 1000
    model.fix_features()
    assert torch.equal(model.modes.noise, before)


def test_training_redraws_and_evaluation_does_not() -> None:
    model, batch = DAPP(**SMALL), uneven().batch()
    random = torch.Generator().manual_seed(6)
    shown = []
    for _ in range(2):
        model.redraw(random)
        shown.append((model.train().spectrum().frequency, model.eval().spectrum().frequency))
    assert not torch.equal(shown[0][0], shown[1][0]) and torch.equal(shown[0][1], shown[1][1])
    assert shown[0][0].shape == (2, 6) and shown[0][1].shape == (2, 16)
    assert torch.equal(
        *(model.intensity(model.encode(batch), batch.stop[:, None]) for _ in range(2))
    )


def test_seeds_make_models() -> None:
    one, same, other = (DAPP(**SMALL, seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(one[k], same[k]) for k in one) and not torch.equal(
        one["modes.time_key"], other["modes.time_key"]
    )


# ---------------------------------------------------------------------- what is refused

REFUSED: list[tuple[dict[str, Any], str]] = (
    [
        (
            {name: "nonsense"},
            rf"expected {name} to be one of .*; received 'nonsense'\. Choose one of them\.",
        )
        for name in CHOICES
    ]
    + [
        ({name: 0}, rf"expected {name} of at least 1; received 0\. Raise it\.")
        for name in ("heads", "features", "noise", "width", "knots")
    ]
    + [
        (
            dict(normalise="ratio", phase="random"),
            r"expected paired phases with normalise='ratio'; received phase='random'.*\. Use ",
        ),
        (
            dict(normalise="softmax", form="scan"),
            (
                r"expected a normalisation that a scan can carry; received normalise='softmax' "
                r".*\. Use "
            ),
        ),
        (
            dict(phase="random", form="scan"),
            r"expected paired phases with form='scan'; received phase='random'\. Use ",
        ),
        (
            dict(link="identity", normalise="ratio"),
            r"expected link='identity' with .*; received normalise='ratio', .*\. Use ",
        ),
        (
            dict(link="identity", values="affine"),
            r"expected link='identity' with .*; received .*values='affine', .*\. Use ",
        ),
        (
            dict(link="identity", phase="random"),
            r"expected link='identity' with .*; received .*phase='random', .*\. Use ",
        ),
        (
            dict(link="identity", drift="spline"),
            r"expected link='identity' with .*; received .*drift='spline'\. Use ",
        ),
    ]
)


@pytest.fixture
def as_users_run_it() -> Iterator[None]:
    """Without the type checks of the test run, which would refuse a wrong word first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("settings", "message"),
    REFUSED,
    ids=[",".join(f"{k}={v}" for k, v in s.items()) for s, _ in REFUSED],
)
def test_choices_that_are_refused(
    settings: dict[str, Any], message: str, as_users_run_it: None
) -> None:
    with pytest.raises(UserError, match=message):
        DAPP(**settings)


def test_a_query_before_what_is_remembered_is_refused() -> None:
    model = DAPP(**SMALL).eval()
    batch = uneven().batch()
    history = model.extend(model.encode(batch), batch.stop, batch.marks[:, 0])
    early = (
        r"expected query times at or after 10, the earliest that is remembered; received 9 \(row "
        r"0, query 0\)\. Encode"
    )
    with pytest.raises(UserError, match=early):
        model.intensity(history, batch.stop[:, None] - 1)
    with pytest.raises(
        UserError,
        match="expected a history with its events; received one that has been extended. Encode",
    ):
        model.contributions(history, batch.stop[:, None])


# ---------------------------------------------------------------------- a Hawkes process as first
# guess


@pytest.mark.parametrize("marks", [1, 3])
def test_where_events_excite_each_other_the_first_guess_is_their_hawkes_process(marks: int) -> None:
    truth = Hawkes(baseline=0.5, branching=0.5, decay=2.0)
    plain = fp.sample(truth, 0.0, 20.0, 300, seed=1)
    rng = np.random.default_rng(0)
    data = dataclasses.replace(
        plain,
        mark_ids=rng.integers(marks, size=plain.events),
        marks=MarkSpace(tuple("abc"[:marks]) if marks > 1 else ()),
    )
    model = DAPP(data.marks)
    assert any(note.startswith("initial fit: a Hawkes process") for note in model.initialise(data))
    assert model.first_guess is not None
    model.load_state_dict(model.first_guess, strict=False)
    other = fp.sample(truth, 0.0, 20.0, 20, seed=2)
    times = torch.linspace(0.1, 19.9, 100, dtype=torch.float64).expand(20, -1)
    ours = (
        model.eval()
        .intensity(model.encode(dataclasses.replace(other, marks=data.marks).batch()), times)
        .sum(-1)
    )
    wanted = truth.intensity(truth.encode(other.batch()), times).sum(-1)
    assert float((ours / wanted - 1).detach().abs().mean()) < 0.08


@pytest.mark.parametrize("name", ["nonhomogeneous1", "nonhomogeneous2", "self_correcting"])
def test_no_such_guess_where_events_come_by_the_clock_or_hinder_each_other(name: str) -> None:
    model = DAPP()
    assert not any(
        note.startswith("initial fit") for note in model.initialise(simulate(name, 1000, seed=1))
    )
    assert model.first_guess is None
