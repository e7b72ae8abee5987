"""The log-likelihood: by hand in both conventions, the same block by block, and with an honest
error of its integral.
"""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from variants import without_closed_form

from fourpoint.data.synthetic import PROCESSES, process, simulate
from fourpoint.events import Batch, Context, Dataset, Sequence, UserError
from fourpoint.inference import likelihood
from fourpoint.inference.evaluation import evaluate
from fourpoint.inference.likelihood import (
    gap_log_likelihoods,
    log_likelihood,
    log_likelihoods,
    sampled_log_likelihood,
)
from fourpoint.models import (
    DAPP,
    NHP,
    RMTPP,
    SAHP,
    THP,
    DeepDAPP,
    Hawkes,
    Poisson,
    SelfCorrecting,
    SplinePoisson,
)
from fourpoint.models.base import PointProcess
from fourpoint.models.bumps import Bumps
from fourpoint.models.deep_layer import DeepHistory
from fourpoint.models.effects import EffectsSpec


def ragged(marks: int = 1, seed: int = 0, lengths: tuple[int, ...] = (30, 3, 0, 17, 8)) -> Dataset:
    rng = np.random.default_rng(seed)
    sequences = []
    for i, n in enumerate(lengths):
        start, stop = 10.0 * i, 10.0 * i + 5 + n / 4
        t = np.sort(rng.uniform(start, stop, n))
        t[4:6] = t[4:5]
        sequences.append(
            Sequence(t, rng.integers(0, marks, n), start=start, stop=stop, space=marks)
        )
    return Dataset.from_sequences(sequences)


def poisson(*rates: float) -> Poisson:
    model = Poisson(len(rates) if len(rates) > 1 else None)
    with torch.no_grad():
        model.log_rate.copy_(torch.tensor(rates, dtype=torch.float64).log())
    return model


# ---------------------------------------------------------------------- by hand


def test_poisson_in_both_conventions_by_hand() -> None:
    batch = Sequence([1.0, 2.5, 4.0], [0, 1, 1], start=0.5, stop=6.0, space=2).batch()
    model = poisson(2.0, 0.5)
    window, gaps = (log_likelihood(model, batch, convention=c) for c in ("window", "gaps"))
    assert window.value.item() == pytest.approx(
        math.log(2) + 2 * math.log(0.5) - 2.5 * 5.5, rel=1e-14
    )
    assert window.integral.item() == pytest.approx(2.5 * 5.5) and window.events.tolist() == [3]
    assert gaps.value.item() == pytest.approx(2 * math.log(0.5) - 2.5 * 3.0, rel=1e-14)
    assert gaps.integral.item() == pytest.approx(2.5 * 3.0) and gaps.events.tolist() == [2]
    assert gaps.per_event == pytest.approx(gaps.value.item() / 2)


def test_hawkes_in_both_conventions_by_hand() -> None:
    times, start, stop = [1.0, 1.5, 4.0], 0.0, 5.0
    mu, alpha, beta = 0.7, 0.4, 2.0
    model = Hawkes(baseline=mu, branching=alpha, decay=beta)
    batch = Sequence(times, start=start, stop=stop).batch()

    def rate(i: int) -> float:
        return mu + sum(alpha * beta * math.exp(-beta * (times[i] - s)) for s in times[:i])

    def integral(a: float, b: float) -> float:
        grown = sum(
            alpha * (math.exp(-beta * max(a - s, 0)) - math.exp(-beta * (b - s)))
            for s in times
            if s < b
        )
        return mu * (b - a) + grown

    for hidden in (model, without_closed_form(model)):
        tolerance = 1e-9
        window, gaps = (
            log_likelihood(hidden, batch, convention=c, tolerance=tolerance)
            for c in ("window", "gaps")
        )
        assert window.value.item() == pytest.approx(
            sum(math.log(rate(i)) for i in range(3)) - integral(start, stop), abs=1e-8
        )
        assert gaps.value.item() == pytest.approx(
            sum(math.log(rate(i)) for i in (1, 2)) - integral(1.0, 4.0), abs=1e-8
        )


def test_ties_are_scored_by_position_and_the_gap_between_them_counts_nothing() -> None:
    mu, alpha, beta = 0.7, 0.4, 2.0
    model = Hawkes(baseline=mu, branching=alpha, decay=beta)
    batch = Sequence([1.0, 1.0, 1.0], start=0.0, stop=2.0).batch()
    logs = sum(math.log(mu + k * alpha * beta) for k in range(3))
    expected = logs - 2 * mu - 3 * alpha * (1 - math.exp(-beta))
    for hidden in (model, without_closed_form(model)):
        assert log_likelihood(hidden, batch, tolerance=1e-10).value.item() == pytest.approx(
            expected, abs=1e-9
        )
    gaps = log_likelihood(model, batch, convention="gaps")
    assert gaps.value.item() == pytest.approx(logs - math.log(mu)) and gaps.integral.item() == 0


def test_empty_sequences_are_evidence() -> None:
    batch = Dataset.from_sequences(
        [Sequence([], start=0, stop=4), Sequence([], start=1, stop=2)]
    ).batch()
    for model in (
        poisson(0.5),
        without_closed_form(poisson(0.5)),
        SplinePoisson(knots=3),
        DAPP(features=4, eval_features=8).eval(),
    ):
        window, gaps = (log_likelihood(model, batch, convention=c) for c in ("window", "gaps"))
        assert (
            (window.value < 0).all()
            and window.events.tolist() == [0, 0]
            and math.isfinite(window.per_event)
        )
        assert (
            gaps.value.tolist() == [0, 0] and gaps.events.tolist() == [0, 0] and gaps.per_event == 0
        )
    assert log_likelihood(poisson(0.5), batch).value.tolist() == [-2.0, -0.5]


def test_one_event_has_no_gap_to_score() -> None:
    batch = Sequence([1.0], start=0.0, stop=4.0).batch()
    gaps = log_likelihood(poisson(0.5), batch, convention="gaps")
    assert gaps.value.item() == 0 and gaps.events.tolist() == [0]


def test_fast_decay_after_the_last_event_of_a_short_sequence() -> None:
    """A long empty end must not overflow in the padding, in either convention."""
    long = Sequence(np.linspace(1, 99, 9), start=0, stop=100)
    data = Dataset.from_sequences([Sequence([1.0, 2.0], start=0, stop=100), long])
    model = Hawkes(baseline=1.0, branching=0.5, decay=50.0)
    for convention in ("window", "gaps"):
        together = log_likelihood(model, data.batch(), convention=convention).value
        alone = log_likelihood(model, data[:1].batch(), convention=convention).value
        assert together.isfinite().all() and together[0].item() == pytest.approx(
            alone.item(), rel=1e-12
        )


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(
        UserError, match="expected convention 'window' or 'gaps'; received 'easy'. Choose one"
    ):
        log_likelihood(poisson(1.0), Sequence([1.0], stop=2.0).batch(), convention="easy")


# ---------------------------------------------------------------------- block by block

LONG = {
    "dapp": lambda m: DAPP(
        m,
        heads=2,
        features=4,
        eval_features=8,
        generator=(4,),
        knots=3,
        base="spline",
        drift="spline",
    ),
    "dapp-ratio": lambda m: DAPP(
        m, heads=2, features=4, eval_features=8, generator=(4,), normalise="ratio", values="affine"
    ),
    "hawkes": Hawkes,
    "poisson": Poisson,
    "spline-poisson": lambda m: SplinePoisson(m, knots=3),
}


def built(name: str, marks: int, data: Dataset) -> Any:
    model = LONG[name](marks)
    model.initialise(data)
    return model.double().eval()


@pytest.mark.parametrize("hide", [False, True], ids=["closed", "quadrature"])
@pytest.mark.parametrize("convention", ["window", "gaps"])
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize("name", LONG)
def test_blocks_equal_the_whole(
    name: str, marks: int, convention: Any, hide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ragged(marks)
    model = built(name, marks, data)
    model = without_closed_form(model) if hide else model
    whole = log_likelihood(model, data.batch(), convention=convention, tolerance=1e-9)
    monkeypatch.setattr(likelihood, "BLOCK", 8)
    blocks = log_likelihood(model, data.batch(), convention=convention, tolerance=1e-9)
    assert torch.equal(blocks.events, whole.events)
    assert torch.allclose(blocks.value, whole.value, rtol=0, atol=1e-7)
    assert ((blocks.integral - whole.integral).abs() <= blocks.error + whole.error + 1e-12).all()


def test_models_that_cannot_carry_on_are_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ragged()
    model = (
        DAPP(heads=1, features=4, eval_features=8, generator=(4,), normalise="softmax")
        .double()
        .eval()
    )
    whole = log_likelihood(model, data.batch()).value
    monkeypatch.setattr(likelihood, "BLOCK", 8)
    assert torch.equal(log_likelihood(model, data.batch()).value, whole)


def test_sampled_blocks_of_a_poisson_equal_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant rate integrates to the same number from any nodes."""
    data, model = ragged(3), poisson(0.5, 1.0, 2.0)
    exact = log_likelihood(model, data.batch()).value
    for block in (2048, 8):
        monkeypatch.setattr(likelihood, "BLOCK", block)
        model.zero_grad()
        sampled = sampled_log_likelihood(model, data.batch(), 2, torch.Generator().manual_seed(0))
        assert torch.allclose(sampled, exact, rtol=1e-12)
        sampled.sum().backward()
        counts = torch.from_numpy(np.bincount(data.mark_ids, minlength=3)).double()
        assert torch.allclose(
            model.baseline.log_base.grad[:, 0],
            counts - model.log_rate.detach().exp() * data.durations.sum(),
            rtol=1e-11,
        )


@pytest.mark.parametrize("name", LONG)
def test_sampled_blocks_equal_the_whole_from_the_same_nodes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With midpoints in place of random nodes, values and all gradients agree."""
    data = ragged(2)
    model = built(name, 2, data).train()

    def midpoints(a: Tensor, b: Tensor, nodes: int, random: torch.Generator) -> Tensor:
        return a[..., None] + (b - a)[..., None] * (torch.arange(nodes) + 0.5) / nodes

    monkeypatch.setattr(likelihood, "stratified", midpoints)
    found = []
    for block in (2048, 8):
        monkeypatch.setattr(likelihood, "BLOCK", block)
        model.zero_grad()
        value = sampled_log_likelihood(model, data.batch(), 3, torch.Generator())
        value.sum().backward()
        found.append(
            [value.detach(), *(p.grad.clone() for p in model.parameters() if p.requires_grad)]
        )
    for whole, blocks in zip(*found, strict=True):
        assert torch.allclose(blocks, whole, rtol=1e-10, atol=1e-10)


def test_the_sampled_likelihood_is_unbiased() -> None:
    data, model = ragged(), Hawkes(baseline=1.0, branching=0.8, decay=3.0)
    exact = log_likelihood(model, data.batch()).value
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        draws = torch.stack(
            [sampled_log_likelihood(model, data.batch(), 2, random) for _ in range(800)]
        )
    assert ((draws.mean(0) - exact).abs() <= 4 * draws.std(0) / math.sqrt(len(draws)) + 1e-12).all()


# ---------------------------------------------------------------------- the error is an upper
# estimate

TRUTHS = {
    "hawkes": (process("hawkes").truth(), simulate("hawkes", 40, seed=1)),
    "hawkes-fast": (
        Hawkes(baseline=1.0, branching=0.9, decay=40.0),
        ragged(lengths=(30, 3, 1, 17, 60)),
    ),
    "hawkes-marks": (Hawkes(3, baseline=1.0, branching=0.9, decay=5.0), ragged(3)),
    "self-correcting": (
        process("self_correcting").truth(),
        simulate("self_correcting", 40, seed=2),
    ),
    "self-correcting-slow": (SelfCorrecting(drift=-0.5, correction=0.1), ragged()),
    "nonhomogeneous1": (
        process("nonhomogeneous1").truth(),
        simulate("nonhomogeneous1", 40, seed=3),
    ),
    "nonhomogeneous2": (
        process("nonhomogeneous2").truth(),
        simulate("nonhomogeneous2", 40, seed=4),
    ),
    "sharp-bumps": (Bumps([(20.0, 9.0, 2.0), (10.0, 3.0, 7.0)]), ragged(lengths=(5, 0, 2, 9))),
    "poisson": (poisson(3.0), ragged()),
    "space-time-hawkes": (
        process("space_time_hawkes").truth(),
        simulate("space_time_hawkes", 6, seed=5),
    ),
}


@pytest.mark.parametrize("convention", ["window", "gaps"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("name", TRUTHS)
def test_the_reported_error_is_an_upper_estimate_of_the_true_one(
    name: str, tolerance: float, convention: Any
) -> None:
    truth, data = TRUTHS[name]
    exact = log_likelihood(truth, data.batch(), convention=convention)
    found = log_likelihood(
        without_closed_form(truth), data.batch(), convention=convention, tolerance=tolerance
    )
    assert ((found.integral - exact.integral).abs() <= found.error + exact.error).all()
    assert float(found.error.sum()) <= tolerance * max(1, int(found.events.sum()))
    assert torch.allclose(found.value + found.integral, exact.value + exact.integral, rtol=1e-13)


def test_every_process_is_among_them() -> None:
    assert {name.replace("_", "-") for name in PROCESSES} <= set(TRUTHS)


@pytest.mark.parametrize("name", ["poisson", "hawkes", "rmtpp", "nhp", "dapp"])
def test_the_sampled_likelihood_has_both_conventions(name: str) -> None:
    """The mean of many estimates is the refined value, whichever part of the window counts; closed
    forms are it at once.
    """
    from fourpoint.inference.likelihood import quick_log_likelihood, sampled_log_likelihood
    from fourpoint.models import MODELS

    rng = np.random.default_rng(4)
    sequences = [
        Sequence(
            np.sort(rng.uniform(1, 9, n)), rng.integers(0, 2, n), start=0.0, stop=10.0, space=2
        )
        for n in (6, 0, 1, 9)
    ]
    data = Dataset.from_sequences(sequences)
    model = MODELS[name](data.marks)
    model.initialise(data)
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(2), dtype=parameter.dtype
            )
        for convention in ("window", "gaps"):
            exact = log_likelihood(model, data.batch(), convention=convention, tolerance=1e-8).value
            quick = quick_log_likelihood(model, data.batch(), 64, convention=convention)
            assert torch.allclose(quick, exact, atol=1e-4)
            random = torch.Generator().manual_seed(1)
            draws = torch.stack(
                [
                    sampled_log_likelihood(model, data.batch(), 2, random, convention=convention)
                    for _ in range(400)
                ]
            )
            assert ((draws.mean(0) - exact).abs() <= 4.5 * draws.std(0) / 20 + 1e-7).all()


# ---------------------------------------------------------------------- quiet sequences

SMALL: dict[str, Any] = {
    "dapp": lambda: DAPP(heads=2, features=8, eval_features=16, generator=(8,)),
    "deep-dapp": lambda: DeepDAPP(width=8, modes=4),
    "nhp": lambda: NHP(hidden=8),
    "sahp": lambda: SAHP(hidden=8, layers=1, heads=2),
    "thp": lambda: THP(hidden=8, layers=1, heads=2),
    "rmtpp": lambda: RMTPP(hidden=8),
}


def with_fitted_weights(name: str, unit: float = 1.0) -> Any:
    """A float32 model with weights as far from its first ones as those of a fit, for times in this
    unit.
    """
    sequences = [
        Sequence(unit * s.times, start=unit * s.start, stop=unit * s.stop)
        for s in simulate("hawkes", 20)
    ]
    data, model, random = (
        Dataset.from_sequences(sequences),
        SMALL[name](),
        torch.Generator().manual_seed(1),
    )
    model.initialise(data)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(
                0.3 * torch.randn(weight.shape, generator=random) * (weight.abs().mean() + 0.1)
            )
    model.fix_features()
    return model.eval()


def quiet(events: tuple[int, ...], start: float, length: float) -> Dataset:
    """64 sequences with so many events in turn, all within one unit of time."""
    rng = np.random.default_rng(0)
    counts = [events[i % len(events)] for i in range(64)]
    times = [start + np.sort(rng.uniform(0, 1, n)) for n in counts]
    return Dataset.from_sequences([Sequence(t, start=start, stop=start + length) for t in times])


@pytest.mark.parametrize(("start", "length"), [(0.0, 1.0), (0.0, 100.0), (1e9, 1.0)])
@pytest.mark.parametrize(
    "events", [(0,), (1,), (0, 5, 3, 0, 8, 4, 6, 0, 2, 7)], ids=["empty", "one", "silent"]
)
@pytest.mark.parametrize("name", SMALL)
def test_quiet_sequences_settle_and_state_their_rounding(
    name: str, events: tuple[int, ...], start: float, length: float
) -> None:
    """float32 against the same weights in float64: no less is stated than the true error, and
    little of the integral.
    """
    model, batch = with_fitted_weights(name), quiet(events, start, length).batch()
    found = log_likelihood(model, batch)
    exact = log_likelihood(copy.deepcopy(model).double(), batch, tolerance=1e-7)
    assert ((found.value - exact.value).abs() <= found.error + exact.error).all()
    assert ((found.integral - exact.integral).abs() <= found.error + exact.error).all()
    assert float(found.error.sum()) <= 1e-4 * 64 * max(events) + 64e-4 + 1e-3 * float(
        found.integral.sum()
    )


def _deep_on_uneven_rows() -> tuple[DeepDAPP, Batch]:
    data = simulate("hawkes", 12, seed=1)
    model = DeepDAPP(width=16, modes=8).eval()
    model.initialise(data)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (model.since.weight, model.read.weight):
            weight.add_(0.05 * torch.randn(weight.shape, generator=random))
    return model, data.batch()


def test_one_rule_in_log_time_agrees_with_pieces_and_with_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch = _deep_on_uneven_rows()
    at_once = log_likelihoods(model, batch)["window"]
    monkeypatch.setattr(DeepDAPP, "log_time_rule", lambda self: None)
    in_pieces = log_likelihoods(model, batch)["window"]
    monkeypatch.setattr(DeepHistory, "at_positions", lambda self, rows, positions: None)
    by_rows = log_likelihoods(model, batch)["window"]
    for other in (in_pieces, by_rows):
        allowed = at_once.error + other.error
        assert ((at_once.integral - other.integral).abs() <= allowed).all()
    assert float(at_once.error.sum()) <= 2e-4 * int(batch.lengths.sum())


def test_few_times_per_gap_settle_deep_dapp(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = _deep_on_uneven_rows()
    asked: list[int] = []
    plain = DeepDAPP.total_intensity

    def counted(self: DeepDAPP, history: DeepHistory, times: Tensor, seen: object = None) -> Tensor:
        asked.append(times.numel())
        return plain(self, history, times, seen)

    monkeypatch.setattr(DeepDAPP, "total_intensity", counted)
    log_likelihoods(model, batch)
    assert sum(asked) < 100 * int(batch.lengths.sum() + len(batch.lengths))
    all_at_once = max(asked)
    asked.clear()
    monkeypatch.setattr("fourpoint.inference.likelihood.CACHED", 200 * model.numbers_per_time)
    log_likelihoods(model, batch)
    assert max(asked) <= 200 < all_at_once


def test_deep_dapp_is_scored_without_forming_queries_at_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel of the total rate states an error that holds for the model in float64."""
    monkeypatch.setattr("fourpoint.kernels.conditions.RATE_WORK", 0)
    model, batch = _deep_on_uneven_rows()
    exact = log_likelihoods(copy.deepcopy(model).double(), batch, tolerance=1e-7)["window"]
    formed: list[int] = []
    plain = DeepDAPP._queries

    def counted(self: DeepDAPP, history: DeepHistory, times: Tensor, seen: object) -> Tensor:
        formed.append(times.numel())
        return plain(self, history, times, seen)

    monkeypatch.setattr(DeepDAPP, "_queries", counted)
    found = log_likelihoods(model, batch)["window"]
    assert sum(formed) == batch.times.numel()  # the events alone
    assert ((found.value - exact.value).abs() <= found.error + exact.error).all()
    assert float(found.error.sum()) <= 1.1e-4 * int(batch.lengths.sum())


@pytest.mark.parametrize("model", [NHP(hidden=4), DAPP(normalise="ratio"), DeepDAPP(width=8)])
def test_five_calls_lead_from_evaluate_to_the_rate(
    model: PointProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = simulate("hawkes", 2, seed=1)
    model.initialise(data)
    longest: list[list[str]] = []
    plain = type(model).total_intensity

    def traced(self: PointProcess, *given: Tensor) -> Tensor:
        frames = [frame for frame in inspect.stack() if "/fourpoint/" in frame.filename]
        names = [frame.function for frame in reversed(frames)]
        longest.append(names[names.index("evaluate") + 1 :])
        return plain(self, *given)

    monkeypatch.setattr(type(model), "total_intensity", traced)
    evaluate(model, data, tolerance=1e-2)
    assert longest
    for calls in longest:
        assert len(calls) <= 3, calls  # then total_intensity, and log_intensity at most


def test_jumps_of_the_calendar_do_not_hide_in_the_rounding_of_dates() -> None:
    """Many quiet customers over a year, with a rate for each day of the week: the limit at midnight
    from the left was looked at so near to it that seconds since 1970 were rounded to midnight, and
    integrals seemed unsettled.
    """
    random = np.random.default_rng(0)
    origin = 1_735_689_600.0
    known = Context(origin=np.array([origin]))
    quiet = [
        Sequence(np.sort(365 * random.random(3)), start=0.0, stop=365.0, context=known)
        for _ in range(200)
    ]
    data = Dataset.from_sequences(quiet, unit="days")
    model = Poisson()
    model.add_effects(EffectsSpec(("weekday", "trend"), seconds=86400.0, trend=(origin, 3e7, 1.0)))
    assert model.effects is not None
    with torch.no_grad():
        model.log_rate.fill_(-4.8)
        model.effects.weight.copy_(torch.linspace(-0.8, 0.8, len(model.effects.weight))[:, None])
    _, over_gaps = gap_log_likelihoods(model, data.batch(list(range(200))), tolerance=1e-5)
    assert float(over_gaps.sum(1).std()) < 1e-6  # all customers have the same window
