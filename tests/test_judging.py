"""Paired differences of two models, and sequences that are unlikely under one."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.main import app
from fourpoint.events import UserError
from fourpoint.inference.anomalies import _distance, _null_distances, _null_squares

TRUTH = {"baseline": 1.0, "branching": 0.5, "decay": 2.0}


@pytest.fixture(scope="module")
def clustered():
    return fp.sample(fp.Hawkes(**TRUTH), 0.0, 20.0, 150, seed=1)


@pytest.fixture(scope="module")
def constant(clustered):
    model = fp.Poisson()
    fp.fit(model, clustered, clustered, progress=False)
    return model


# ---------------------------------------------------------------------- differences


def test_the_difference_is_that_of_the_likelihoods(clustered, constant):
    truth = fp.Hawkes(**TRUTH)
    found = fp.difference(truth, constant, clustered, events=2000)
    own, other = (
        fp.evaluate(model, clustered).scores["window"].log_likelihood for model in (truth, constant)
    )
    assert found.per_sequence.sum() == pytest.approx(own - other, abs=0.05)
    assert found.log_likelihood.mean == pytest.approx((own - other) / clustered.events, rel=1e-3)
    assert found.log_likelihood.low > 0 > found.crps.high
    assert found.units == 150 and found.unit_name == "sequences"
    assert "first model is better" in found.sentence
    assert "second model is better" in fp.difference(constant, truth, clustered, events=5).sentence


def test_a_model_does_not_differ_from_itself(clustered):
    truth = fp.Hawkes(**TRUTH)
    found = fp.difference(truth, truth, clustered[:30], events=20)
    assert found.log_likelihood.mean == found.crps.mean == 0
    assert "Neither is clearly better" in found.sentence


def test_a_long_log_is_cut_into_blocks(constant):
    """The second half of the log is constant, where the constant rate is the better model."""
    first = fp.sample(fp.Hawkes(**TRUTH), 0.0, 300.0, 1, seed=2)[0]
    later = np.sort(np.random.default_rng(3).uniform(300, 600, 600))
    log = fp.Sequence(np.concatenate([first.times, later]), start=0.0, stop=600.0)
    found = fp.difference(fp.Hawkes(**TRUTH), constant, log, events=50)
    assert found.unit_name == "blocks of a log" and 30 <= found.units <= 41
    half = found.times < 300
    assert found.gains[half].sum() > 0 > found.gains[~half].sum()
    axes = found.plot(unit="h")
    line = axes.lines[-1].get_ydata()
    assert line[-1] == pytest.approx(found.per_sequence[0])


def test_types_and_history_periods_are_told_apart():
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 50, 200))
    marks = (rng.random(200) < 0.9).astype(int)
    data = fp.Dataset.from_sequences(
        [fp.Sequence(times, marks, start=0.0, stop=50.0, space=fp.MarkSpace.categorical("ab"))]
    )
    first, second = fp.Poisson(data.marks), fp.Poisson(data.marks)
    fp.fit(first, data, data, progress=False)
    whole = fp.difference(first, second, data, events=20)
    assert set(whole.by_mark) == {"a", "b"}
    assert whole.by_mark["a"] != whole.by_mark["b"]
    later = fp.difference(first, second, data[0].scored_after(25.0), events=20)
    assert later.events.sum() == (times >= 25).sum()
    assert len(later.gains) == later.events.sum() + 1


def test_plot_of_many_sequences(clustered, constant):
    found = fp.difference(fp.Hawkes(**TRUTH), constant, clustered[:25], events=10)
    assert found.plot().get_ylabel() == "first minus second (nats per event)"
    assert len(found.to_dict()["sequences"]) == 25


def test_differences_without_events_are_refused(constant):
    empty = fp.Sequence([], start=0.0, stop=1.0)
    with pytest.raises(UserError, match="at least one event"):
        fp.difference(constant, constant, empty)


# ---------------------------------------------------------------------- anomalies


def test_p_values_of_the_true_model_are_uniform(clustered):
    found = fp.anomalies(fp.Hawkes(**TRUTH), clustered, draws=199)
    for p in (found.p_count, found.p_spacings, found.p_ks):
        for level in (0.1, 0.5, 0.9):
            assert abs((p <= level).mean() - level) < 3.5 * np.sqrt(level * (1 - level) / 150)
    assert (found.q <= 0.1).sum() <= 2
    np.testing.assert_array_equal(found.events, clustered.lengths)


@pytest.mark.parametrize("kind", ["burst", "silence", "regular", "stop"])
def test_what_is_injected_is_found_first(clustered, kind):
    usual = clustered[:60]
    times = {
        "burst": np.sort(np.concatenate([usual[0].times, np.linspace(10, 10.5, 40)])),
        "silence": np.array([0.1, 19.9]),
        "regular": np.linspace(0.25, 19.75, 40),
        "stop": np.sort(np.random.default_rng(0).uniform(0, 8, 60)),
    }[kind]
    odd = fp.Sequence(times, start=0.0, stop=20.0, id="odd")
    data = fp.Dataset.from_sequences([*usual, odd])
    found = fp.anomalies(fp.Hawkes(**TRUTH), data)
    assert found.ids[found.order[0]] == "odd"
    assert found.q[-1] <= 0.1
    table = found.table()
    assert table.column("sequence")[0].as_py() == "odd"
    assert found.to_dict()["ranking"][0]["sequence"] == "odd"
    words = {
        "burst": "concentrated in a part of the window",
        "silence": "fewer events than expected",
        "regular": "too regular",
        "stop": "concentrated in a part of the window",
    }
    assert table.column("reason")[0].as_py() == words[kind]


def test_distance_and_draws_agree_with_scipy():
    from scipy.stats import kstest

    rng = np.random.default_rng(5)
    for count in (1, 2, 30):
        places = np.sort(rng.uniform(0, 7, count))
        assert _distance(np.append(places, 7.0)) == pytest.approx(kstest(places / 7, "uniform")[0])
    squares, distances = _null_squares(50.0, 4000, rng), _null_distances(50, 4000, rng)
    # 3S of a Poisson process: E sum w^2 / V = 2 - 2 (1 - exp(-V)) / V.
    assert squares.mean() == pytest.approx(2 - 2 / 50, abs=0.05)
    assert np.median(distances * np.sqrt(50)) == pytest.approx(0.81, abs=0.05)


def test_sequences_that_have_gone_quiet_are_listed():
    """Customers with rates of their own: a long silence is unusual of one who bought often."""
    rng = np.random.default_rng(3)
    rates = rng.gamma(1.0, 0.1, 300)
    ends = np.full(300, 400.0)
    ends[:15] = 200.0
    rates[:15] = 0.2
    rows = []
    for i, (rate, end) in enumerate(zip(rates, ends, strict=True)):
        times = np.sort(rng.uniform(0, end, rng.poisson(rate * end)))
        rows.append(fp.Sequence(times, start=0.0, stop=400.0, id=f"c{i}"))
    data = fp.Dataset.from_sequences(rows, unit="days")
    model = fp.Frailty()
    fp.fit(model, data, progress=False)
    found = fp.anomalies(model, data, draws=19)
    quiet = np.flatnonzero(found.q_silence <= 0.1)
    assert set(range(15)) <= set(quiet.tolist()) and len(quiet) <= 17
    assert f"{len(quiet)} sequences have gone quiet" in str(found)
    last = data[0].times[-1]
    assert found.silence[0] == 400.0 - last
    times = np.linspace(last, 400.0, 4001)
    rate = fp.intensity(model, data[0], (times[1:] + times[:-1]) / 2)[:, 0]
    expected = np.exp(-np.sum(rate * np.diff(times)))
    assert found.p_silence[0] == pytest.approx(expected, rel=1e-3)


def test_sequences_without_events_and_bad_settings():
    data = fp.Dataset.from_sequences([fp.Sequence([], start=0.0, stop=9.0, id="quiet")])
    found = fp.anomalies(fp.Poisson(), data)
    assert found.events.tolist() == [0] and found.p_ks[0] == 1.0
    assert found.p_spacings[0] < 0.01  # 2 exp(-9)
    with pytest.raises(UserError, match="at least one draw"):
        fp.anomalies(fp.Poisson(), data, draws=0)


def test_the_commands(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["customer,time"]
    for customer in range(40):
        rows += [f"c{customer},{t:.4f}" for t in np.sort(rng.uniform(0, 10, 8))]
    rows += [f"odd,{t:.4f}" for t in np.linspace(4, 4.3, 40)]
    file = tmp_path / "visits.csv"
    file.write_text("\n".join(rows) + "\n")
    run = CliRunner().invoke
    common = [str(file), "--sequence", "customer", "--time", "time", "--window", "0", "10"]
    for name in ("poisson", "hawkes"):
        made = run(app, ["fit", *common, "--model", name, "-o", str(tmp_path / name)])
        assert made.exit_code == 0, made.output
    both = [str(tmp_path / "hawkes"), str(tmp_path / "poisson")]
    picture = tmp_path / "where.png"
    words = ["--split", "all", "--json", "--plot", str(picture)]
    found = run(app, ["difference", *both, *common, *words])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["log_likelihood_per_event"]["mean"] > 0
    assert picture.stat().st_size > 1000
    table = tmp_path / "odd.csv"
    words = ["-o", str(table), "--json"]
    ranked = run(app, ["anomalies", both[1], *common, *words])
    assert ranked.exit_code == 0, ranked.output
    assert json.loads(ranked.stdout)["ranking"][0]["sequence"] == "odd"
    assert table.read_text().splitlines()[1].startswith('"odd"')
    assert len(table.read_text().splitlines()) == 42
    # A model that kept some of the sequences for early stopping ranks all of them too.
    quick = ["--set", "steps=1", "-o", str(tmp_path / "dapp")]
    assert run(app, ["fit", *common, "--model", "dapp", *quick]).exit_code == 0
    ranked = run(app, ["anomalies", str(tmp_path / "dapp"), *common])
    assert "1 of 41 sequences are anomalous" in " ".join(ranked.output.split())
    assert "sequences were in the training data" in ranked.output
    wrong = run(app, ["anomalies", both[1], *common, "-o", str(tmp_path / "x.txt")])
    assert wrong.exit_code == 2 and ".parquet" in wrong.output
