"""Forecasts: the next event from the survival function, counts and rates from paths, coverage, and
errors.
"""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from test_laws import build, data

from fourpoint.events import Dataset, MarkSpace, Sequence, UserError
from fourpoint.inference.explaining import explain
from fourpoint.inference.forecasting import forecast, window_counts
from fourpoint.inference.sampling import sample
from fourpoint.models import MODELS, Hawkes, Poisson, SplinePoisson
from fourpoint.streaming import Stream

HAWKES = Hawkes(baseline=1.0, branching=0.6, decay=2.0)


def test_next_event_of_a_poisson_process() -> None:
    model = Poisson(2)
    with torch.no_grad():
        model.log_rate.copy_(torch.tensor([1.0, 3.0]).log())
    f = forecast(
        model,
        Sequence([0.5, 1.5], [0, 1], start=0.0, stop=2.0, space=2),
        horizon=2.0,
        paths=2000,
        seed=1,
    )
    n = f.next_event
    assert n.mean == pytest.approx(2.25, abs=1e-6) and n.median == pytest.approx(
        2 + np.log(2) / 4, abs=1e-6
    )
    assert n.interval == pytest.approx([2 - np.log(0.95) / 4, 2 - np.log(0.05) / 4], abs=1e-6)
    assert n.marks.tolist() == pytest.approx([0.25, 0.75], abs=1e-7) and n.never < 1e-6
    assert n.density == pytest.approx(4 * np.exp(-4 * (n.times - 2)), rel=1e-5)
    assert f.counts.edges.tolist() == [2.0, 2.5, 3.0, 3.5, 4.0]
    assert f.counts.mean == pytest.approx(np.tile([0.5, 1.5], (4, 1)), abs=0.1)
    assert f.counts.total_low.tolist() == [0] * 4 and set(f.counts.total_high.tolist()) <= {4, 5}
    assert f.rate.mean == pytest.approx(np.tile([1.0, 3.0], (100, 1)), rel=1e-7)
    assert len(f.paths) == 2000 and f.paths.starts[0] == 2.0 and f.acceptance == 1.0


@pytest.mark.parametrize("name", ["sum", "sum-softplus", "ratio", "softmax", "hawkes"])
def test_paths_agree_with_the_survival_function(name: str) -> None:
    model = build(name, 3)
    f = forecast(model, data(3)[2], horizon=6.0, paths=1500, seed=2, at=8.0)
    first = np.array([s.times[0] if len(s) else np.inf for s in f.paths])
    for level, time in f.next_event.quantiles.items():
        if time < 14.0:
            assert np.mean(first <= time) == pytest.approx(
                level, abs=4 * np.sqrt(level * (1 - level) / 1500)
            )
    expected = np.trapezoid(
        np.concatenate([f.rate.mean[:1], f.rate.mean]).sum(1), np.concatenate([[8.0], f.rate.times])
    )
    assert f.counts.total_mean.sum() == pytest.approx(expected, rel=0.1)


def test_coverage_of_the_next_event() -> None:
    """The 90% interval covers the truth in 9 of 10 cases, when the model is the truth."""
    cases = sample(HAWKES, 0.0, 30.0, 120, seed=3)
    inside = []
    for s in cases:
        future = s.times[s.times >= 5.0]
        low, high = forecast(HAWKES, s, horizon=1.0, paths=1, at=5.0).next_event.interval
        inside.append(low <= (future[0] if len(future) else np.inf) <= high)
    assert np.mean(inside) == pytest.approx(0.9, abs=3 * np.sqrt(0.09 / 120))


def test_a_forecast_between_times_after_the_end() -> None:
    """ "How many next Tuesday from 14 to 18 h": what happens before is part of the futures."""
    s = Sequence([1.0, 4.9], start=0.0, stop=5.0)
    whole = forecast(HAWKES, s, horizon=6.0, paths=400, windows=3, seed=1)
    part = forecast(HAWKES, s, horizon=4.0, paths=400, windows=2, seed=1, at=7.0)
    np.testing.assert_allclose(part.counts.edges, [7.0, 9.0, 11.0])
    np.testing.assert_array_equal(part.counts.total_mean, whole.counts.total_mean[1:])
    assert part.at == 5.0
    # The next event is the first one after 7, over what may happen before: here from all paths.
    following = part.next_event
    after = [times[times >= 7.0][:1] for times in (path.times for path in part.paths)]
    first = np.array([times[0] if len(times) else np.inf for times in after])
    assert np.quantile(first, 0.5) == pytest.approx(following.median, abs=0.1)
    assert np.mean(first <= following.quantiles[0.25]) == pytest.approx(0.25, abs=0.08)
    assert 7.0 < following.interval[0] < following.median < following.interval[1]
    assert following.times[0] == 7.0 and following.regions.before > following.median
    mass = np.trapezoid(following.density, following.times)
    assert mass == pytest.approx(0.99, abs=0.02)
    assert "events are known until 5; what happens between then and 7 is simulated" in part.notes
    assert "Forecast from 7 to 11" in str(part)
    total = window_counts(part.paths, np.array([7.0, 11.0])).sum((1, 2))
    low, high = np.quantile(total, (0.05, 0.95), method="inverted_cdf")
    known = part.to_dict()["whole"]
    assert (known["start"], known["stop"]) == (7.0, 11.0)
    assert known["total"] == {"mean": total.mean(), "low": low, "high": high}
    assert f"events in all {total.mean():.2f} expected, 90%" in " ".join(str(part).split())
    # Parts vary more than their sum: the ends of their intervals do not add up.
    assert known["total"]["high"] < part.counts.total_high.sum()


def test_the_interval_of_the_whole_horizon_covers_a_poisson_count() -> None:
    s = Sequence([0.5], start=0.0, stop=1.0)
    found = forecast(Poisson(), s, horizon=100.0, paths=4000)  # a rate of 1: 100 with deviation 10
    assert abs(found.whole.total_mean[0] - 100) < 1
    assert abs(found.whole.total_low[0] - 84) <= 1 and abs(found.whole.total_high[0] - 117) <= 1
    alone = forecast(Poisson(), s, horizon=100.0, paths=50, windows=1)
    assert "events in [" not in str(alone)


def test_only_the_past_counts() -> None:
    s = Sequence([1.0, 2.0, 2.5, 3.5], start=0.0, stop=5.0)
    changed = Sequence([1.0, 2.0, 4.0], start=0.0, stop=5.0)
    one, two = (forecast(HAWKES, x, horizon=1.0, paths=50, at=2.2).to_dict() for x in (s, changed))
    assert one == two
    assert forecast(HAWKES, s, 1.0, paths=5).at == 5.0


@pytest.mark.parametrize("name", ["hawkes", "dapp", "deep-dapp", "nhp", "dapp-paper"])
def test_an_event_at_the_time_of_asking_is_known(name: str) -> None:
    """Whether ``at`` is inside the window, its stop or the last event of an inferred one makes no
    difference.
    """
    torch.manual_seed(0)
    small = {"features": 4, "eval_features": 8} if name.startswith("dapp") else {}
    model = MODELS[name](**small).double().eval()
    inside = Sequence([1.0, 2.0, 3.0, 4.0], start=0.0, stop=5.0)
    inferred, a_moment_later = (
        Sequence([1.0, 2.0, 3.0]),
        Sequence([1.0, 2.0, 3.0], start=0.0, stop=3.0 + 1e-9),
    )
    found = [
        forecast(model, inside, 1.0, paths=3, at=3.0),
        forecast(model, inferred, 1.0, paths=3, at=3.0),
    ]
    found += [
        forecast(model, inferred, 1.0, paths=3),
        forecast(model, a_moment_later, 1.0, paths=3),
    ]
    assert {len(one.past) for one in found} == {3}
    medians = [one.next_event.median for one in found]
    assert medians == pytest.approx(medians[:1] * 4, abs=1e-6)
    why = [explain(model, inside, 3.0), explain(model, inferred), explain(model, a_moment_later)]
    for one in why[1:]:
        np.testing.assert_allclose(one.rate, why[0].rate, rtol=1e-6)
        np.testing.assert_allclose(one.effects, why[0].effects, atol=1e-6)
    assert why[0].times.tolist() == [1.0, 2.0, 3.0]
    drawn = [sample(model, 3.0, 4.0, 3, history=one) for one in (inferred, inside.until(3.0))]
    assert drawn[0].times.tolist() == drawn[1].times.tolist()


def test_streams_and_predictions_know_the_event_at_the_time_of_asking() -> None:
    stream = Stream(HAWKES)
    for time in (1.0, 2.0, 3.0):
        stream.observe(time)
    ours = forecast(
        HAWKES, Sequence([1.0, 2.0, 3.0, 4.0], start=0.0, stop=5.0), 1.0, paths=3, at=3.0
    )
    assert stream.forecast(1.0, paths=3).next_event.median == pytest.approx(
        ours.next_event.median, abs=1e-9
    )
    data = Dataset.from_sequences([Sequence([1.0, 2.0, 3.0, 4.0], start=0.0, stop=5.0)])
    known = data.batch().until(torch.tensor([3.0], dtype=torch.float64))
    assert known.lengths.tolist() == [3]
    assert known.stop.tolist() == [3.0]


def test_an_inferred_window_ends_with_a_seen_event() -> None:
    s = Sequence([1.0, 2.0])
    assert s.inferred and s.stop == 2.0
    shown = Sequence([1.0, 2.0], start=0.0, stop=2.0 + 1e-12)
    ours, theirs = (forecast(HAWKES, x, 1.0, paths=2).next_event.mean for x in (s, shown))
    assert ours == pytest.approx(theirs, abs=1e-9)


def test_nothing_has_happened_yet() -> None:
    f = forecast(HAWKES, Sequence([], start=0.0, stop=3.0), horizon=1.0, paths=20, at=0.0)
    assert f.next_event.mean == pytest.approx(1.0, abs=1e-5) and len(f.past_times) == 0
    plt.close(f.plot().figure)


def test_prints_plots_and_json() -> None:
    model = Hawkes(MarkSpace.categorical(["fire", "medical"]), baseline=1.0, branching=0.5)
    s = sample(model, 0.0, 6.0, 1, seed=1)[0]
    f = forecast(model, s, horizon=2.0, paths=50)
    known = json.loads(json.dumps(f.to_dict(), allow_nan=False))
    assert known["at"] == 6.0 and set(known["next_event"]["mark_probabilities"]) == {
        "fire",
        "medical",
    }
    assert len(known["counts"]) == 4 and set(known["counts"][0]["marks"]["fire"]) == {
        "mean",
        "low",
        "high",
    }
    assert "fire" in str(f) and "90% interval" in str(f)
    ax = f.plot(unit="h")
    assert ax.get_xlabel() == "time (h)"
    plt.close(ax.figure)


def test_the_end_of_a_spline_is_noted() -> None:
    model = SplinePoisson(knots=4)
    model.initialise(Dataset.from_sequences([Sequence([1.0, 2.0], start=0, stop=4)]))
    s = Sequence([1.0], start=0.0, stop=4.0)
    assert forecast(model, s, 1.0, paths=2, at=2.0).notes == ()
    assert "keep their last value" in forecast(model, s, 5.0, paths=2, at=2.0).notes[0]


def test_window_counts() -> None:
    first, empty = (
        Sequence([1.0, 2.0, 3.0], [0, 1, 1], start=0, stop=4, space=2),
        Sequence([], start=0, stop=4, space=2),
    )
    events = Dataset.from_sequences([first, empty])
    assert window_counts(events, np.array([0.0, 2.0, 4.0])).tolist() == [
        [[1, 0], [0, 2]],
        [[0, 0], [0, 0]],
    ]


def test_wrong_calls_are_refused() -> None:
    s = Sequence([1.0], start=0.0, stop=2.0)
    for horizon in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(UserError, match=f"expected a positive horizon; received {horizon}"):
            forecast(HAWKES, s, horizon)
    for at in (-0.1, np.inf):
        with pytest.raises(
            UserError,
            match=rf"expected a time inside the window \[0, 2\] of sequence 0; received at={at}",
        ):
            forecast(HAWKES, s, 1.0, at=at)
    with pytest.raises(UserError, match="expected data with 3 types, .* received no marks"):
        forecast(Hawkes(3), s, 1.0)
    with pytest.raises(UserError, match="at least one path"):
        forecast(HAWKES, s, 1.0, paths=0)
