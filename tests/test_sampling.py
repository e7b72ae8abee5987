"""Samples follow the model: bounds dominate, rescaled samples are unit exponential, counts equal
integrals, caps are told.
"""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from test_laws import BOXED, BUILD, CASES, build, data

from fourpoint.data.synthetic import simulate
from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.forecasting import forecast
from fourpoint.inference.goodness import goodness_of_fit
from fourpoint.inference.sampling import last_rates, remember, sample, sample_paths, select_rows
from fourpoint.models import DAPP, DeepDAPP, Hawkes, Poisson
from fourpoint.models.bumps import Bumps, FilteredBumps

FALSE_ALARM = 1e-3  # of each test of a p-value; seeds are fixed, so that a pass stays a pass
# Without a history there are no covariates: models called "-clock" have a calendar alone.
SAMPLED = [
    name for name in BUILD if name not in ("sum-scan", "many-noises") and "-calendar" not in name
]
TRUTHS = {
    "bumps": lambda: Bumps([(30.0, 3.0, 2.0), (20.0, 1.0, 6.0)]),
    "filtered-bumps": lambda: FilteredBumps([(40.0, 2.0, 3.0)]),
}


def lively(name: str) -> Any:
    """The model of the laws, with attention strong enough to matter."""
    model = build(name, 3 if (name, 3) in CASES + BOXED else 1)
    if isinstance(model, DAPP):
        with torch.no_grad():
            model.value_weight *= 3.0
    return model.eval()


@pytest.mark.parametrize(("name", "marks"), CASES + BOXED)
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_the_bound_dominates(name: str, marks: int, kind: torch.dtype) -> None:
    model = build(name, marks)
    if not model.has_upper_bound:
        # Sampling inverts the compensator. These models lose speed if they lose their bound.
        assert not name.startswith(("sum", "ratio", "softmax", "hawkes", "poisson", "nhp", "thp"))
        pytest.skip(f"{name} has no upper bound")
    if isinstance(model, DAPP):
        exact = {key: buffer.clone() for key, buffer in model.named_buffers() if buffer.ndim == 0}
        model.to(kind)
        # The time scale and the length stay in double precision, as they always do.
        for key, buffer in exact.items():
            place, _, last = key.rpartition(".")
            setattr(model.get_submodule(place), last, buffer)
        with torch.no_grad():
            model.value_weight *= 5.0
    model.eval()
    batch, random = data(marks, name=name).batch(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        past = remember(model, batch)
        last = past.times.gather(1, past.lengths[:, None])[:, 0]
        for _ in range(40):
            lag, width = (
                10.0 ** (3 * torch.rand(len(last), generator=random, dtype=torch.float64) - 2)
                for _ in range(2)
            )
            a = last + lag * (torch.rand(1, generator=random) > 0.2)
            grid = a[:, None] + width[:, None] * torch.linspace(0, 1, 50, dtype=torch.float64)
            top = model.upper_bound(past, a, a + width)
            assert bool(
                (last_rates(model, past, grid).sum(-1).double() <= top[:, None] * (1 + 1e-9)).all()
            )


def test_the_bound_is_tight_on_short_windows() -> None:
    model = lively("sum")
    with torch.no_grad():
        past = remember(model, data(3).batch())
        a = past.times[:, 0] + 0.5
        rate = last_rates(model, past, a[:, None]).sum((1, 2))
        slack = [
            float((model.upper_bound(past, a, a + h) / rate).max()) - 1 for h in (1e-1, 1e-2, 1e-3)
        ]
    assert slack[0] < 0.5 and slack[1] < 0.02 and slack[2] < 0.002


@pytest.mark.parametrize("name", [*SAMPLED, *TRUTHS])
def test_rescaled_samples_are_unit_exponential(name: str) -> None:
    model = TRUTHS[name]() if name in TRUTHS else lively(name)
    drawn = sample(model, 1.0, 11.0, 250, seed=1)
    total = goodness_of_fit(model, drawn).total
    assert total.count > 300
    assert min(total.ks_p, total.uniform_p, total.ljung_box_p) > FALSE_ALARM
    assert abs(total.count - total.expected) < 4 * np.sqrt(total.expected)


@pytest.mark.parametrize("name", ["sum", "softmax", "hawkes", "self-correcting"])
def test_inversion_and_thinning_draw_from_one_law(name: str) -> None:
    model = lively(name)
    thinned, inverted = (
        sample(model, 0.0, 8.0, 200, seed=7, method=method) for method in ("thinning", "inversion")
    )
    assert ks_2samp(thinned.times, inverted.times).pvalue > FALSE_ALARM
    assert ks_2samp(thinned.gaps, inverted.gaps).pvalue > FALSE_ALARM
    spread = np.sqrt(thinned.lengths.var() + inverted.lengths.var()) / np.sqrt(200)
    assert abs(thinned.lengths.mean() - inverted.lengths.mean()) < 4 * spread
    assert goodness_of_fit(model, inverted).total.ks_p > FALSE_ALARM


def test_marks_follow_the_rates() -> None:
    model = Poisson(3)
    with torch.no_grad():
        model.log_rate.copy_(torch.tensor([0.5, 1.0, 3.0]).log())
    drawn = sample(model, 0.0, 10.0, 300, seed=1)
    share = np.bincount(drawn.mark_ids, minlength=3) / drawn.events
    assert share == pytest.approx([1 / 9, 2 / 9, 6 / 9], abs=0.015)
    assert drawn.marks == model.marks


def test_hawkes_counts_and_acceptance() -> None:
    paths = sample_paths(Hawkes(baseline=10.0, branching=1.0, decay=1.0), 0.0, 1.0, 4000, seed=3)
    counts = paths.data.lengths
    assert abs(counts.mean() - 15.0) < 4 * counts.std() / np.sqrt(4000)
    assert paths.acceptance > 0.9 and "thinning" in str(paths) and not len(paths.capped)


def test_history_goes_on() -> None:
    """With a long memory the past decides: the mean count from a history equals the closed form of
    a Hawkes process.
    """
    model = Hawkes(baseline=0.5, branching=0.5, decay=1.0)
    past = Sequence([0.2, 0.9, 1.0, 1.1], start=0.0, stop=1.2)
    counts = sample(model, 1.2, 3.2, 4000, seed=4, history=past).lengths
    excess = float(np.exp(-(1.2 - past.times)).sum()) * 0.5
    # dE[rate]/dt = -(rate - mu) + alpha rate, so that E[rate](s) = 1 + (rate_0 - 1) exp(-s / 2) for
    # mu = alpha = 1/2.
    expected = 2 + (0.5 + excess - 1) * 2 * (1 - np.exp(-1))
    assert abs(counts.mean() - expected) < 4 * counts.std() / np.sqrt(4000)


@pytest.mark.parametrize("name", ["sum", "ratio", "softmax", "hawkes", "spline-drift"])
def test_one_history_per_path(name: str) -> None:
    model = lively(name)
    events = data(3)
    cut = Dataset.from_sequences([s.before(9.0) for s in events])
    alone = [sample(model, 9.0, 12.0, 1, seed=6, history=s) for s in cut]
    together = sample(model, 9.0, 12.0, 4, seed=6, history=cut)
    assert len(together) == 4 and together.starts.tolist() == [9.0] * 4
    assert all(len(a) == 1 and a.starts[0] == 9.0 for a in alone)
    with torch.no_grad():
        whole = remember(model, cut.batch())
        for i, s in enumerate(cut):
            own = remember(model, s.batch())
            query = torch.tensor([[9.5, 11.0]], dtype=torch.float64)
            rows = select_rows(whole, torch.tensor([i]))
            assert torch.allclose(
                last_rates(model, rows, query), last_rates(model, own, query), rtol=1e-9
            )


def test_long_histories_go_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = lively("sum"), data(3).batch()
    query = torch.full((4, 1), 30.0, dtype=torch.float64)
    with torch.no_grad():
        whole = last_rates(model, remember(model, batch), query)
        monkeypatch.setattr("fourpoint.inference.sampling.BLOCK", 3)
        assert torch.allclose(last_rates(model, remember(model, batch), query), whole, rtol=1e-10)


def test_samples_are_seeded_and_the_model_is_left_as_it_was() -> None:
    model = build("sum", 3).train()
    first, again, other = (sample(model, 0.0, 5.0, 20, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first.times, again.times) and not np.array_equal(first.times, other.times)
    assert model.training


def test_a_cap_is_told() -> None:
    model = Hawkes(baseline=10.0, branching=1.0)
    with pytest.warns(UserWarning, match="of 50 paths reached most=5 events and end there"):
        data = sample(model, 0.0, 1.0, 50, most=5)
    paths = sample_paths(model, 0.0, 1.0, 50, most=5)
    assert data.lengths.max() == 5 and "paths capped" in str(paths)
    capped = np.flatnonzero(data.lengths == 5)
    assert np.array_equal(paths.capped, capped)
    assert all(
        data[int(i)].stop < 1.0 and data[int(i)].times[-1] < data[int(i)].stop for i in capped
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(model, 0.0, 1.0, 5, most=1000)


def test_explosions_are_errors() -> None:
    model = DAPP(eval_features=8, heads=1, link="exp", base="constant", drift="none")
    model.initialise(simulate("hawkes", 20))
    with torch.no_grad():
        model.value_weight.fill_(1.0)
    with pytest.raises(UserError, match="expected a process whose rate stays finite"):
        sample(model, 0.0, 100.0, 2)
    with pytest.raises(
        UserError, match="expected a process (whose rate stays finite|that does not explode)"
    ):
        forecast(model, Sequence([0.1], start=0.0, stop=1.0), horizon=100.0, paths=5)


def test_wrong_calls_are_refused() -> None:
    model = Hawkes(2)
    past = Sequence([0.5], [1], start=0.0, stop=1.0, space=2)
    for arguments, words in (
        (dict(stop=0.0), "start < stop"),
        (dict(sequences=0), "at least one sequence"),
        (
            dict(history=past, start=0.4, stop=2.0),
            "a history up to the start at 0.4; received an event or a window at 0.5",
        ),
        (
            dict(history=Sequence([0.5], start=0.0, stop=1.0), start=1.0, stop=2.0),
            "data with 2 types, .* received no marks",
        ),
        (
            dict(history=Dataset.from_sequences([past] * 3), start=1.0, stop=2.0),
            "one for each of 2 paths; received 3",
        ),
        (dict(method="magic"), "method to be one of"),
    ):
        with pytest.raises(UserError, match=words):
            sample(model, **{"start": 0.0, "stop": 1.0, "sequences": 2, **arguments})
    named = Hawkes(MarkSpace.categorical(["a", "b"]))
    with pytest.raises(
        UserError, match="the types 'a', 'b', .* received 2 types: 'x', 'y' are unknown"
    ):
        sample(
            named,
            1.0,
            2.0,
            1,
            history=Sequence([0.5], [1], start=0, stop=1, space=MarkSpace.categorical(["x", "y"])),
        )


class Boundless(Hawkes):
    """A Hawkes process without its bound."""

    has_upper_bound = False


def test_models_without_a_bound_are_inverted() -> None:
    paths = sample_paths(Boundless(baseline=5.0), 0.0, 1.0, 10)
    assert paths.method == "inversion" and np.isnan(paths.acceptance)
    with pytest.raises(UserError, match="a model with a bound for method='thinning'"):
        sample(Boundless(), 0.0, 1.0, 1, method="thinning")


def test_a_sum_of_neural_scores_has_no_certificate_and_is_inverted() -> None:
    model = build("neural", 1)
    assert sample_paths(model, 0.0, 1.0, 3, seed=1).method == "inversion"
    with pytest.raises(ValueError, match="expected a model with a bound for method='thinning'"):
        sample_paths(model, 0.0, 1.0, 3, seed=1, method="thinning")
    with pytest.raises(ValueError, match="expected a score with a certified bound"):
        model.upper_bound(model.encode(data(1).batch()), torch.zeros(4), torch.ones(4))


def test_inversion_reads_the_marks_at_events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels read the total rate, a few of 17 times for each event (no panel is longer than the
    time since the last event, or it would be rejected); the marks are read where an event or a
    window ends.
    """
    reads = {"_queries": 0, "share": 0}
    model = DeepDAPP(3, width=8, modes=4).eval()
    queries, share = model._queries, model.share.forward
    monkeypatch.setattr(
        model,
        "_queries",
        lambda h, t, seen: (
            reads.update(_queries=reads["_queries"] + t.numel()) or queries(h, t, seen)
        ),
    )
    monkeypatch.setattr(
        model.share,
        "forward",
        lambda q: reads.update(share=reads["share"] + q.shape[:-1].numel()) or share(q),
    )
    drawn = sample(model, 0.0, 60.0, 50, seed=2)
    assert drawn.events > 1000
    assert reads["_queries"] < 6 * 17 * drawn.events
    assert reads["share"] < 3 * drawn.events
