"""Forecasts of many sequences: counts by kernels against paths of the plain sampler, closed forms
and integrals, and the table that comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet

import fourpoint as fp
from fourpoint import kernels
from fourpoint.events import Box, Context, Dataset, MarkSpace, Sequence, UserError
from fourpoint.events.context import Steps
from fourpoint.inference import forecasts as module
from fourpoint.inference.forecasts import (
    forecasts,
    key_of,
    level_name,
    mid_quantile,
    plain_counts,
    planned,
    write_forecasts,
)
from fourpoint.inference.sampling import eval_mode, last_rates, remember
from fourpoint.kernels.path_terms import Wanted
from fourpoint.models import (
    DAPP,
    MODELS,
    Frailty,
    Hawkes,
    MarkovModulated,
    Poisson,
    SplinePoisson,
)
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import EffectsSpec

MARKS = MarkSpace.categorical(["red", "blue"])
SUNDAY = 1743206400.0  # 2025-03-29 00:00 UTC; clocks of Berlin change on the 30th at 01:00 UTC


def histories(marks: int, stop: float = 10.0) -> Dataset:
    rng = np.random.default_rng(1)
    found = []
    for i, count in enumerate((0, 3, 14, 30)):
        times = np.sort(rng.uniform(0, stop, count))
        kinds = rng.integers(0, marks, count)
        space = marks if marks > 1 else MarkSpace()
        found.append(Sequence(times, kinds, start=0.0, stop=stop, space=space, id=f"s{i}"))
    return Dataset.from_sequences(found)


def dapp(marks: int, link: str, data: Dataset) -> DAPP:
    """A DAPP whose events excite and inhibit, with splines."""
    options: dict[str, Any] = {"base": "spline", "drift": "spline"}
    if link == "identity":
        options = {}
    model = DAPP(marks, heads=2, eval_features=16, link=link, **options)
    model.initialise(data)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=random)
        if link != "identity":
            model.readout *= 1.5 * torch.randn(model.readout.shape, generator=random)
    return model.eval()


def asked(data: Dataset, length: float, windows: int, paths: int) -> Wanted:
    edges = np.linspace(data.stops, data.stops + length, windows + 1, axis=1)
    keys = np.array([key_of(0, id) for id in data.ids], dtype=np.uint64)
    return Wanted(edges, keys, paths, 10_000)


def by_kernel(model: PointProcess, data: Dataset, wanted: Wanted) -> Any:
    with torch.no_grad():
        counts = model.draw_counts(data.batch(), wanted)
    assert counts is not None
    return counts


def markov(marks: int) -> MarkovModulated:
    """Three levels that differ by much, in blocks that do not match the intervals."""
    model = MarkovModulated(marks, states=3, block=0.7)
    with torch.no_grad():
        model.log_level.copy_(torch.tensor([[0.2, 1.0, 4.0]]).log())
    return model


CASES: dict[str, Callable[[], tuple[PointProcess, Dataset]]] = {
    "dapp-softplus": lambda: (dapp(2, "softplus", histories(2)), histories(2)),
    "dapp-exp": lambda: (dapp(1, "exp", histories(1)), histories(1)),
    "dapp-identity": lambda: (dapp(2, "identity", histories(2)), histories(2)),
    "hawkes": lambda: (
        Hawkes(2, baseline=0.4, branching=0.5, decay=2.0, exponentials=2),
        histories(2),
    ),
    "poisson": lambda: (Poisson(2), histories(2)),
    "frailty": lambda: (Frailty(2, variance=0.5), histories(2)),
    "markov": lambda: (markov(2), histories(2)),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_of_a_kernel_have_the_law_of_sampled_paths(name: str) -> None:
    """Means, variances and shares of small counts within 4.5 standard errors; there are fewer than
    200 comparisons, so that a right kernel fails with probability below .002.
    """
    model, data = CASES[name]()
    wanted = asked(data, 3.0, 3, 2000)
    found = by_kernel(model, data, wanted).astype(float)
    with eval_mode(model):
        plain = plain_counts(model, data.batch(), wanted).astype(float)
    paths = wanted.paths
    for one, other in ((found, plain), (found.sum((1, 2)), plain.sum((1, 2)))):
        error = np.sqrt((one.var(-1) + other.var(-1)) / paths) + 1e-9
        assert (np.abs(one.mean(-1) - other.mean(-1)) < 4.5 * error).all()
    total, other = found.sum((1, 2)), plain.sum((1, 2))
    for most in (0, 1, 2, 4, 8):
        a, b = (total <= most).mean(-1), (other <= most).mean(-1)
        error = np.sqrt((a * (1 - a) + b * (1 - b)) / paths) + 1e-9
        assert (np.abs(a - b) < 4.5 * error).all(), most
    spread = np.sqrt(2.0 / paths) * 4.5 * np.maximum(total.var(-1), other.var(-1)) * 1.5
    assert (np.abs(total.var(-1) - other.var(-1)) < spread).all()


def test_mean_counts_of_a_hawkes_process_are_those_of_the_closed_form() -> None:
    """d/dt E[lambda] = beta (mu - (1 - alpha) E[lambda]) from the rate after the history on."""
    mu, alpha, beta, length = 0.8, 0.6, 1.5, 5.0
    model = Hawkes(baseline=mu, branching=alpha, decay=beta)
    data = histories(1)
    wanted = asked(data, length, 5, 20_000)
    counts = by_kernel(model, data, wanted).sum(2)
    with eval_mode(model):
        first = last_rates(model, remember(model, data.batch()), data.batch().stop[:, None])
    level, speed = mu / (1 - alpha), beta * (1 - alpha)
    edges = wanted.edges - wanted.edges[:, :1]
    extra = (first[:, 0].numpy() - level) / speed
    expected = level * np.diff(edges) - extra * np.diff(np.exp(-speed * edges))
    error = counts.std(-1) / np.sqrt(wanted.paths)
    assert (np.abs(counts.mean(-1) - expected) < 4.5 * error).all()
    assert np.abs(expected - level * np.diff(edges)).max() > 20 * error.max()


def test_counts_with_a_frailty_are_negative_binomial_given_the_past() -> None:
    """Given N events where Lambda were expected, the factor is gamma (a + N, a + Lambda)."""
    data = histories(1)
    model = Frailty(variance=0.5)
    wanted = asked(data, 3.0, 1, 20_000)
    counts = by_kernel(model, data, wanted)[:, 0, 0]
    shape, expected = 2.0 + data.lengths, 2.0 + 10.0
    mean = 3.0 * shape / expected
    variance = mean + mean**2 / shape
    assert (np.abs(counts.mean(1) - mean) < 4.5 * np.sqrt(variance / wanted.paths)).all()
    assert (np.abs(counts.var(1) / variance - 1) < 0.08).all()


def dated(data: Dataset, *, covariates: bool) -> Dataset:
    """The same from a Saturday on, hours as unit, with exposure, and a covariate if wanted."""
    count = len(data)
    steps = np.tile([0.0, 12.0, 17.5], count)
    offsets = 3 * np.arange(count + 1)
    exposure = Steps(("exposure",), steps, np.tile([1.0, 0.0, 2.0], count)[:, None], offsets)
    weather = Steps(("rain",), steps, np.tile([0.0, 1.0, 3.0], count)[:, None], offsets)
    origin = SUNDAY + 3600.0 * np.arange(count)
    context = Context(origin=origin, exposure=exposure, covariates=weather if covariates else None)
    return replace(data, context=context, unit="hours")


def with_effects(model: PointProcess, *, covariates: bool) -> PointProcess:
    names = ("rain",) if covariates else ()
    spec = EffectsSpec(
        ("hour", "weekday", "month"),
        zone="Europe/Berlin",
        seconds=3600.0,
        covariates=names,
        mean=(1.0,) * len(names),
        scale=(2.0,) * len(names),
    )
    model.add_effects(spec)
    assert model.effects is not None
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        model.effects.weight += 0.4 * torch.randn(model.effects.weight.shape, generator=random)
    return model


def without_excitation() -> DAPP:
    model = dapp(2, "softplus", histories(2))
    with torch.no_grad():
        model.readout.zero_()
    return model


@pytest.mark.parametrize("covariates", [False, True])
@pytest.mark.parametrize("build", [lambda: Poisson(2), without_excitation])
def test_counts_without_excitation_have_the_integral_as_mean(
    build: Callable[[], PointProcess], covariates: bool
) -> None:
    """With a calendar across a change of clocks, an exposure that is 0 for hours, and steps of a
    covariate: the mean is the integral of exposure times rate, and the variance is the mean.
    """
    data = dated(histories(2), covariates=covariates)
    model = with_effects(build(), covariates=covariates).eval()
    wanted = asked(data, 20.0, 8, 3000)
    counts = by_kernel(model, data, wanted)
    with eval_mode(model):
        history = remember(model, data.batch())
        fine = np.linspace(wanted.edges[:, 0], wanted.edges[:, -1], 8 * 2000 + 1, axis=1)
        middle = torch.from_numpy((fine[:, :-1] + fine[:, 1:]) / 2)
        rates = last_rates(model, history, middle).double().numpy()
    exposure = data.batch().context.exposure.at(middle).numpy()
    width = (20.0 / 8 / 2000) * exposure * rates
    expected = width.reshape(len(data), 8, 2000, 2).sum(2)
    assert expected.max() > 5 * expected[expected > 0].min()
    error = np.sqrt(expected / wanted.paths) + 1e-3 * expected + 1e-9
    assert (np.abs(counts.mean(-1) - expected) < 4.5 * error).all()
    total = counts.sum((1, 2))
    assert np.abs(total.var(-1) / total.mean(-1) - 1).max() < 5 * np.sqrt(2 / wanted.paths)


@pytest.mark.parametrize(
    "build",
    [
        lambda: dapp(2, "softplus", histories(2)),
        lambda: Hawkes(2, baseline=0.5, branching=0.5, decay=2.0),
        lambda: Frailty(2, variance=0.5),
    ],
)
def test_calendar_covariates_and_exposure_act_as_in_the_plain_sampler(
    build: Callable[[], PointProcess],
) -> None:
    data = dated(histories(2), covariates=True)
    model = with_effects(build(), covariates=True).eval()
    wanted = asked(data, 10.0, 4, 500)
    found = by_kernel(model, data, wanted).astype(float)
    with eval_mode(model):
        plain = plain_counts(model, data.batch(), wanted).astype(float)
    error = np.sqrt((found.var(-1) + plain.var(-1)) / wanted.paths) + 1e-9
    assert (np.abs(found.mean(-1) - plain.mean(-1)) < 4.5 * error).all()


# ---------------------------------------------------------------------- the table


def test_a_forecast_depends_on_seed_and_sequence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = histories(2)
    model = dapp(2, "softplus", data)
    table = forecasts(model, data, 3.0, by=1.0, paths=60)
    was = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert forecasts(model, data, 3.0, by=1.0, paths=60) == table
    finally:
        torch.set_num_threads(was)
    monkeypatch.setattr(module, "ROWS", 1)
    assert forecasts(model, data, 3.0, by=1.0, paths=60).combine_chunks() == table.combine_chunks()
    backwards = data.select([3, 2, 1, 0])
    per_sequence = 3 * 3
    turned = forecasts(model, backwards, 3.0, by=1.0, paths=60)
    assert turned.slice(0, per_sequence).to_pydict() == table.slice(27).to_pydict()
    alone = forecasts(model, data["s2"], 3.0, by=1.0, paths=60)
    assert alone.to_pydict() == table.slice(18, per_sequence).to_pydict()
    assert forecasts(model, data, 3.0, by=1.0, paths=60, seed=1) != table


def test_batches_are_bounded_in_counts_and_in_events(monkeypatch: pytest.MonkeyPatch) -> None:
    data = histories(1)
    plan = planned(Poisson(), data, 2.0, paths=10)

    def sizes() -> list[int]:
        return [len(group.rows) for group in module._batches(plan)]

    assert sizes() == [4]
    monkeypatch.setattr(module, "NUMBERS", 60)
    assert sizes() == [3, 1]
    monkeypatch.setattr(module, "NUMBERS", 1)
    assert sizes() == [1, 1, 1, 1]
    monkeypatch.setattr(module, "NUMBERS", 2**20)
    monkeypatch.setattr(module, "PADDED", 45)
    assert sizes() == [3, 1]


def test_rows_are_sequences_intervals_and_types_with_the_total_first() -> None:
    data = replace(histories(2), marks=MARKS)
    model = Hawkes(MARKS, baseline=0.5, branching=0.3, decay=1.0)
    table = forecasts(model, data, 2.5, by=1.0, paths=200)
    assert table.column_names == "sequence mark start stop mean q05 q50 q95 p_any".split()
    rows = table.to_pylist()
    assert [row["mark"] for row in rows[:4]] == ["", "red", "blue", ""]
    assert [row["sequence"] for row in rows[::9]] == ["s0", "s1", "s2", "s3"]
    assert [(row["start"], row["stop"]) for row in rows[:9:3]] == [
        (10.0, 11.0),
        (11.0, 12.0),
        (12.0, 12.5),
    ]
    for i in range(0, len(rows), 3):
        total, red, blue = rows[i : i + 3]
        assert total["mean"] == pytest.approx(red["mean"] + blue["mean"])
        assert max(red["p_any"], blue["p_any"]) <= total["p_any"] <= red["p_any"] + blue["p_any"]
        for row in (total, red, blue):
            assert 0 <= row["q05"] <= row["q50"] <= row["q95"]
            assert (row["q50"] > 0) == (row["p_any"] > 0)  # half of no events count as less


def test_quantiles_are_those_of_the_counts() -> None:
    data = histories(1)
    model = Hawkes(baseline=2.0, branching=0.5, decay=1.0)
    table = forecasts(model, data, 2.0, paths=333, quantiles=(0.1, 0.25, 0.975))
    counts = by_kernel(model, data, asked(data, 2.0, 1, 333))[:, 0, 0]
    for level in (0.1, 0.25, 0.975):
        exact = []
        for row in counts:
            values, repeats = np.unique(row, return_counts=True)
            middles = (np.cumsum(repeats) - repeats / 2) / len(row)
            exact.append(np.interp(level, middles, values))
        assert table.column(level_name(level)).to_pylist() == pytest.approx(exact)
    assert table.column("p_any").to_pylist() == (counts > 0).mean(1).tolist()
    assert "q10" in table.column_names and "q25" in table.column_names
    assert "q975" in table.column_names


def test_intervals_of_small_counts_hold_about_as_many_as_they_say() -> None:
    """The usual quantiles of counts of 2 to 14 hold 94%, those of the mid-distribution 91%."""
    random = np.random.default_rng(0)
    covered = []
    for mean in np.geomspace(2, 14, 40):
        drawn = np.sort(random.poisson(mean, (1, 2000)), axis=1).astype(np.int32)
        low, high = (mid_quantile(drawn, level)[0] for level in (0.05, 0.95))
        seen = random.poisson(mean, 2000)
        covered.append(np.mean((seen >= low) & (seen <= high)))
    assert 0.89 < np.mean(covered) < 0.925


@pytest.mark.parametrize(
    ("by", "edges"),
    [(None, [0, 5]), (7.0, [0, 5]), (2.0, [0, 2, 4, 5]), (5.0, [0, 5]), (2.5, [0, 2.5, 5])],
)
def test_intervals_cover_the_horizon_whatever_their_length(by: Any, edges: list[float]) -> None:
    table = forecasts(Poisson(), histories(1), 5.0, by=by, paths=5)
    count = len(edges) - 1
    assert table.num_rows == 4 * count
    starts = table.column("start").to_pylist()[:count]
    stops = table.column("stop").to_pylist()[:count]
    assert np.allclose([*starts, stops[-1]], 10.0 + np.array(edges))
    assert starts[1:] == stops[:-1]


def test_events_after_the_time_of_the_forecast_are_not_known() -> None:
    data = histories(2)
    model = dapp(2, "softplus", data)
    early = Dataset.from_sequences([sequence.until(6.0) for sequence in data])
    assert forecasts(model, data, 3.0, at=6.0, paths=50) == forecasts(model, early, 3.0, paths=50)


def test_dates_in_dates_out_across_a_change_of_clocks() -> None:
    stamps = pa.array(
        ["2025-03-28T09:00:00+01:00", "2025-03-28T21:00:00+01:00", "2025-03-29T12:00:00+01:00"]
    )
    log = pa.table({"when": stamps})
    data = fp.read(log, timezone="Europe/Berlin", time_unit="hours")
    table = forecasts(Poisson(), data, "3d", by="1d", at="2025-03-29 00:00", paths=10)
    start = table.schema.field("start").type
    assert pa.types.is_timestamp(start) and start.tz == "Europe/Berlin"
    shown = [value.isoformat() for value in table.column("stop").to_pylist()]
    assert shown == [
        "2025-03-30T00:00:00+01:00",
        "2025-03-31T00:00:00+02:00",
        "2025-04-01T00:00:00+02:00",
    ]
    one = forecasts(Poisson(), data[0], "3d", by="1d", at="2025-03-29 00:00", paths=10)
    assert one.column("stop") == table.column("stop")


def test_intervals_after_the_end_of_a_log_are_those_of_the_clock() -> None:
    stamps = ["2025-10-24T09:00:00+02:00", "2025-10-25T23:31:00+02:00"]
    data = fp.read(pa.table({"when": stamps}), timezone="Europe/Berlin", time_unit="hours")
    table = forecasts(Poisson(), data, "5h", by="1h", paths=10)
    shown = [value.isoformat()[11:16] for value in table.column("start").to_pylist()]
    assert shown == ["23:31", "00:00", "01:00", "02:00", "02:00", "03:00"]  # clocks go back
    printed = fp.forecast(Poisson(), data[0], "5h", by="1h", paths=10)
    assert printed.counts.edges.tolist()[:-1] == pytest.approx([38.51666, 39, 40, 41, 42, 43], 1e-5)
    # A time that is asked for is where intervals begin.
    table = forecasts(Poisson(), data, "2h", by="1h", at="2025-10-25 23:31", paths=10)
    shown = [value.isoformat()[11:16] for value in table.column("start").to_pylist()]
    assert shown == ["23:31", "00:31"]
    printed = fp.forecast(Poisson(), data[0], "2h", by="1h", at="2025-10-25 23:31", paths=10)
    assert np.allclose(np.diff(printed.counts.edges), 1.0)


def test_tables_of_pandas_polars_and_arrow_go_in_and_come_out() -> None:
    columns = {"who": ["a", "a", "b"], "t": [1.0, 4.0, 2.5], "what": ["red", "blue", "red"]}
    model = Hawkes(MARKS, baseline=0.5, branching=0.3, decay=1.0)
    options: dict[str, Any] = dict(time="t", mark="what", sequence="who", window=(0.0, 5.0))
    expected = forecasts(model, pa.table(columns), 2.0, paths=20, **options)
    assert expected.column("sequence").to_pylist() == ["a"] * 3 + ["b"] * 3
    assert pa.RecordBatchReader.from_stream(expected).read_all() == expected
    pandas = pytest.importorskip("pandas")
    assert forecasts(model, pandas.DataFrame(columns), 2.0, paths=20, **options) == expected
    assert expected.to_pandas()["mean"].tolist() == expected.column("mean").to_pylist()
    polars = pytest.importorskip("polars")
    assert forecasts(model, polars.DataFrame(columns), 2.0, paths=20, **options) == expected
    assert polars.DataFrame(expected)["mean"].to_list() == expected.column("mean").to_pylist()


@pytest.mark.parametrize("name", ["odapp", "nhp", "rmtpp", "thp", "spatial-hawkes"])
def test_models_without_a_kernel_forecast_by_the_plain_sampler(name: str) -> None:
    data = histories(1)
    if name.startswith("spatial"):
        box = Box(names=("x", "y"), low=(0.0, 0.0), high=(1.0, 1.0))
        places = np.random.default_rng(0).uniform(size=(data.events, 2))
        data = replace(data, marks=MarkSpace(box=box), places=places)
    model = MODELS[name](marks=data.marks)
    model.initialise(data)
    assert model.draw_counts(data.batch(), asked(data, 1.0, 1, 5)) is None
    table = forecasts(model, data, 1.0, by=0.5, paths=20)
    assert table.num_rows == 8 and all(value >= 0 for value in table.column("mean").to_pylist())
    assert forecasts(model, data, 1.0, by=0.5, paths=20) == table


def test_files_are_written_whole_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 3)
    data = histories(1)
    model = Hawkes(baseline=0.5, branching=0.3, decay=1.0)
    plan = planned(model, data, 2.0, by=1.0, paths=20)
    table = forecasts(model, data, 2.0, by=1.0, paths=20).combine_chunks()
    assert write_forecasts(model, plan, tmp_path / "a.parquet") == 8
    assert parquet.read_table(tmp_path / "a.parquet").combine_chunks() == table
    assert parquet.ParquetFile(tmp_path / "a.parquet").num_row_groups == 2
    write_forecasts(model, plan, tmp_path / "a.csv")
    read = csv.read_csv(tmp_path / "a.csv")
    assert read.column_names == table.column_names
    assert read.column("mean").to_pylist() == table.column("mean").to_pylist()
    explosive = Hawkes(baseline=5.0, branching=30.0, decay=9.0)
    with pytest.raises(UserError, match="does not explode"):
        write_forecasts(explosive, planned(explosive, data, 9.0), tmp_path / "a.csv")
    assert csv.read_csv(tmp_path / "a.csv") == read
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.csv", "a.parquet"]


@pytest.mark.parametrize("name", ["poisson", "hawkes", "dapp", "nhp"])
def test_tables_of_intervals_after_the_end(name: str) -> None:
    """The futures are those of a forecast from the end; the intervals before ``at`` are left
    out.
    """
    torch.manual_seed(0)
    small = {"features": 4, "eval_features": 8} if name == "dapp" else {}
    model = MODELS[name](**small).double().eval()
    data = Dataset.from_sequences([Sequence([1.0, 2.5], start=0.0, stop=3.0, id="a")])
    whole = forecasts(model, data, horizon=4.0, by=2.0, paths=50)
    part = forecasts(model, data, horizon=2.0, by=2.0, at=5.0, paths=50)
    assert part.column("start").to_pylist() == [5.0]
    for column in ("mean", "q05", "q95", "p_any"):
        assert part.column(column).to_pylist() == whole.column(column).to_pylist()[1:]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"horizon": 0.0}, "a positive horizon"),
        ({"horizon": float("nan")}, "a positive horizon"),
        ({"horizon": "3x"}, "a unit of time"),
        ({"horizon": 1.0, "by": 0.0}, "intervals of positive length"),
        ({"horizon": 1.0, "by": 1e-9}, "intervals"),
        ({"horizon": 1.0, "at": -1.0}, r"inside the window \[0, 10\] of sequence s0"),
        ({"horizon": 1.0, "at": "2025-01-01"}, "as a number"),
        ({"horizon": 1.0, "paths": 0}, "at least one path"),
        ({"horizon": 1.0, "quantiles": (0.5, 1.0)}, "between 0 and 1"),
        ({"horizon": 1.0, "quantiles": (0.5, 0.5)}, "different quantiles"),
        ({"horizon": 1.0, "time": "t"}, "options for reading"),
    ],
)
def test_what_cannot_be_forecast_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        forecasts(Poisson(), histories(1), **options)


def test_many_events_are_no_explosion() -> None:
    """A stationary process with more than 10,000 events before the horizon is forecast."""
    past = Sequence(np.arange(0.0, 10.0, 0.004), start=0.0, stop=10.0)
    model = Hawkes(baseline=150.0, branching=0.4, decay=10.0)  # 250 in the long run
    found = fp.forecast(model, past, horizon=60.0, paths=4)
    assert found.whole.mean[0].item() == pytest.approx(15_000, rel=0.05)
    table = forecasts(model, past, horizon=60.0, by=30.0, paths=4)
    assert sum(table.column("mean").to_pylist()) == pytest.approx(15_000, rel=0.05)


def test_a_model_that_explodes_is_refused_with_its_sequence() -> None:
    for model in (
        Hawkes(baseline=5.0, branching=30.0, decay=9.0),
        SplinePoisson(),
        dapp(1, "exp", histories(1)),
    ):
        if isinstance(model, SplinePoisson):
            with torch.no_grad():
                model.coefficients.fill_(30.0)
        if isinstance(model, DAPP):
            with torch.no_grad():
                model.value_weight.fill_(40.0)
                model.readout.fill_(40.0)
        with pytest.raises(UserError, match="does not explode before the horizon.*sequence"):
            forecasts(model, histories(1), 9.0, paths=20)


def test_without_a_compiler_the_plain_sampler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "installed", lambda compiler: False)
    kernels.report_missing.cache_clear()
    try:
        with pytest.warns(kernels.MissingCompiler):
            table = forecasts(Hawkes(), histories(1), 1.0, paths=10)
    finally:
        kernels.report_missing.cache_clear()
    assert table.num_rows == 4


def test_modes_that_fade_at_once_do_not_overflow_in_long_horizons() -> None:
    data = histories(1)
    model = dapp(1, "softplus", data)
    horizon = 4000.0
    rate = float(forecasts(model, data, 1.0, paths=300).column("mean")[0].as_py())
    table = forecasts(model, data[:1], horizon, by=horizon / 4, paths=3)
    assert all(0 < value < 20 * rate * horizon for value in table.column("mean").to_pylist())


@pytest.mark.parametrize("name", ["poisson", "frailty"])
def test_means_and_chances_are_those_of_the_law_where_it_is_known(name: str) -> None:
    """Two paths are enough for the mean and the probability of an event, for rare ones too."""
    data = histories(2)
    model = Frailty(2, variance=0.5) if name == "frailty" else Poisson(2)
    with torch.no_grad():
        model.log_rate.copy_(torch.tensor([1.0, 1e-3]).log())
    few = forecasts(model, data, 3.0, by=1.5, at=14.0, paths=2)
    many = forecasts(model, data, 3.0, by=1.5, at=14.0, paths=20_000)
    for column in ("mean", "p_any"):
        exact, again = (np.array(table[column].to_pylist()) for table in (few, many))
        assert np.array_equal(exact, again)
    plan = module.planned(model, data, 3.0, by=1.5, at=14.0, paths=20_000)
    drawn = module.interval_counts(model, plan)[1].astype(float)  # of the first sequence
    total = np.concatenate([drawn.sum(1, keepdims=True), drawn], 1).reshape(-1, 20_000)
    first = many.slice(0, len(total))
    error = total.std(1) / np.sqrt(20_000) + 1e-3
    assert (np.abs(total.mean(1) - np.array(first["mean"].to_pylist())) < 4.5 * error).all()
    share = (total > 0).mean(1)
    wide = np.sqrt(share * (1 - share) / 20_000) + 1e-3
    assert (np.abs(share - np.array(first["p_any"].to_pylist())) < 4.5 * wide).all()
    rare = [row["p_any"] for row in few.to_pylist() if row["mark"] == "1"]
    assert 1e-4 < min(rare) < 0.01


def test_pooled_forecasts_are_the_average_of_distributions() -> None:
    """Each model draws its share of the paths, as it does alone."""
    data = histories(2)
    slow = Hawkes(MARKS, baseline=0.1, branching=0.3, decay=1.0)
    fast = Hawkes(MARKS, baseline=4.0, branching=0.3, decay=1.0)
    pooled = forecasts(slow, data, 2.0, paths=41, pooled=[fast], whole=True, quantiles=[0.25, 0.75])
    for row in range(len(data)):
        one = data.select(np.array([row]))
        parts = []
        for model, paths in ((slow, 21), (fast, 20)):
            _, counts = module.interval_counts(model, planned(model, one, 2.0, paths=paths))
            parts.append(counts[0].sum(0))
        drawn = np.concatenate(parts)
        place = row * (1 + len(MARKS.names))
        assert pooled.column("mark")[place].as_py() == ""
        assert pooled.column("mean")[place].as_py() == pytest.approx(drawn.mean())
        assert pooled.column("p_any")[place].as_py() == pytest.approx((drawn > 0).mean())
        low, high = (pooled.column(name)[place].as_py() for name in ("q25", "q75"))
        assert parts[0].mean() < parts[1].mean() and low < high


def test_models_that_cannot_be_pooled_are_refused() -> None:
    data = histories(2)
    model = Hawkes(MARKS)
    with pytest.raises(UserError, match="at least one path of every model"):
        forecasts(model, data, 1.0, paths=1, pooled=[Hawkes(MARKS)])
    with pytest.raises(UserError, match="type"):
        forecasts(model, data, 1.0, pooled=[Hawkes(MarkSpace.categorical(["green"]))])
