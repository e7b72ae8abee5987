"""Events with places: the door, readers and files, likelihoods against brute force, samples,
forecasts, maps and refusals.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

import fourpoint as fp
from fourpoint.data.inspecting import inspect
from fourpoint.data.synthetic import process
from fourpoint.events import (
    Batch,
    Box,
    Context,
    Dataset,
    EventDataError,
    MarkSpace,
    Sequence,
    Steps,
    UserError,
)
from fourpoint.inference.forecasting import _joined
from fourpoint.inference.likelihood import (
    log_likelihood,
    quick_log_likelihood,
    sampled_log_likelihood,
)
from fourpoint.inference.sampling import sample_paths
from fourpoint.models import CATALOGUE, MODELS, Poisson, SpatialDAPP, SpatialHawkes
from fourpoint.models.base import PLACED
from fourpoint.models.effects import effects_of

SQUARE = MarkSpace(box=Box(("x", "y"), (0.0, 0.0), (1.0, 1.0)))
TYPED = MarkSpace(("a", "b"), Box(("lon", "lat"), (-10.0, 40.0), (30.0, 60.0)))
TABLE: dict[str, Any] = {
    "time": [1.0, 2.0, 3.5],
    "Longitude": [1.0, 2.0, 3.0],
    "Latitude": [4.0, 5.0, 7.1],
    "kind": ["a", "b", "a"],
}


def events(n: int = 9, space: MarkSpace = TYPED, seed: int = 0, stop: float = 10.0) -> Sequence:
    rng = np.random.default_rng(seed)
    assert space.box is not None
    places = rng.uniform(space.box.low, space.box.high, (n, space.box.dimension))
    return Sequence(
        np.sort(rng.uniform(0, stop, n)),
        rng.integers(0, space.count, n),
        start=0.0,
        stop=stop,
        space=space,
        places=places,
    )


def small_dapp(
    space: MarkSpace = TYPED, data: Dataset | None = None, seed: int = 0, **settings: Any
) -> SpatialDAPP:
    """A model whose parameters are all off their starting values, in float64."""
    model = SpatialDAPP(
        space,
        **{**dict(heads=2, frequencies=3, generator=(8,), knots=3, order=8, cells=4), **settings},
    )
    model.initialise(
        data
        if data is not None
        else Dataset.from_sequences([events(space=space, seed=s) for s in range(3)])
    )
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape, generator=random)
    return model.double().eval()


# ---------------------------------------------------------------------- the door


def test_a_box_knows_its_measure_and_refuses_nonsense() -> None:
    assert TYPED.box is not None and TYPED.box.volume == 800 and TYPED.box.dimension == 2
    assert (
        str(TYPED) == "2 types in lon -10 to 30, lat 40 to 60"
        and str(SQUARE) == "places in x 0 to 1, y 0 to 1"
    )
    for names, low, high in (
        (("x",), (1.0,), (1.0,)),
        (("x", "x"), (0, 0), (1, 1)),
        ((), (), ()),
        (("x",), (math.nan,), (1.0,)),
    ):
        with pytest.raises(EventDataError, match="expected .* (axis|axes)"):
            Box(names, low, high)


@pytest.mark.parametrize("value", [math.nan, math.inf, 61.0, 39.9])
def test_a_place_outside_its_box_is_refused_by_sequence_and_event(value: float) -> None:
    good = events()
    places = np.array(good.places)
    places[4, 1] = value
    with pytest.raises(
        EventDataError,
        match=(
            r"expected lat from 40 to 60; received .* at event 4 of sequence seven\. Widen the "
            r"box"
        ),
    ):
        Sequence(good.times, good.marks, start=0, stop=10, space=TYPED, places=places, id="seven")


def test_places_need_a_box_and_a_box_needs_places() -> None:
    with pytest.raises(EventDataError, match="3 places of 2 numbers"):
        Sequence([1.0, 2.0, 3.0], [0, 1, 0], start=0, stop=4, space=TYPED)
    with pytest.raises(EventDataError, match="rows of one number per axis"):
        Sequence([1.0, 2.0, 3.0], start=0, stop=4, places=[[1.0, 2.0]])
    around = Sequence([1.0, 2.0], start=0, stop=4, places=[[1.02, -7.0], [2.98, 44.0]])
    assert around.space.box == Box(("x1", "x2"), (1.0, -7.0), (3.0, 44.0))


def test_places_follow_their_events_everywhere() -> None:
    data = Dataset.from_sequences(
        [events(seed=1), Sequence([], start=0, stop=10, space=TYPED), events(4, seed=2)]
    )
    assert data.places is not None and data.places.shape == (13, 2)
    assert (data.select([2, 0]).places == np.concatenate([data[2].places, data[0].places])).all()
    assert (data[0].before(5.0).places == data[0].places[data[0].times < 5.0]).all()
    first, second = Dataset.from_sequences([data[0]]).split((0.5, 0.5))
    assert first.places is not None and second.places is not None
    later = second.places[second.scored]
    assert (np.concatenate([first.places, later]) == data[0].places).all()
    assert (second.places == data[0].places).all()
    tied = Sequence(
        [1.0, 1.0, 2.0], start=0, stop=3, space=SQUARE, places=[[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]]
    )
    assert Dataset.from_sequences([tied]).with_ties("drop").places[:, 0].tolist() == [0.1, 0.3]
    batch = data.batch()
    assert (
        batch.places is not None
        and batch.places.shape == (3, 9, 2)
        and (batch.places[1] == 0).all()
        and (batch.places[2, 4:] == 0).all()
    )
    assert torch.equal(batch.columns(2, 5).places, batch.places[:, 2:5])
    plain = data.without_places()
    assert (
        plain.places is None
        and plain.marks == MarkSpace(("a", "b"))
        and plain.batch().places is None
    )
    with pytest.raises(EventDataError, match="lon from 0 to 1"):
        data.in_box(Box(("lon", "lat"), (0, 40), (1, 60)))


def test_a_batch_overwrites_what_padding_held() -> None:
    good = Dataset.from_sequences([events(2), events(5)]).batch()
    assert good.places is not None
    poisoned = Batch(
        good.times,
        good.marks,
        good.valid,
        good.start,
        good.stop,
        torch.where(good.valid[..., None], good.places, torch.nan),
    )
    assert torch.equal(poisoned.places, good.places)


# ---------------------------------------------------------------------- readers and files


def test_read_places_with_a_box_read_off_or_given(capsys: pytest.CaptureFixture[str]) -> None:
    data = fp.read(TABLE, place=("longitude", "latitude"), window=(0, 4))
    assert (
        data.places is not None
        and data.places[:, 0].tolist() == [1.0, 2.0, 3.0]
        and data.marks.names == ("a", "b")
    )
    assert data.marks.box == Box(("Longitude", "Latitude"), (1.0, 4.0), (3.0, 7.1))
    assert "places: Longitude 1 to 3, Latitude 4 to 7.1" in capsys.readouterr().err
    given = fp.read(
        TABLE, place=("Longitude", "Latitude"), bounds={"Longitude": (-180, 180)}, window=(0, 4)
    )
    assert given.marks.box is not None and given.marks.box.low == (-180.0, 4.0)
    both = fp.read(TABLE, place=["Longitude", "Latitude"], bounds=[(0, 9), (0, 8)], window=(0, 4))
    assert both.marks.box == Box(("Longitude", "Latitude"), (0, 0), (9, 8))
    alone = fp.read(TABLE, place="Longitude", mark="none", window=(0, 4))
    assert alone.marks == MarkSpace(box=Box(("Longitude",), (1.0,), (3.0,)))


def test_places_follow_rows_that_are_sorted_and_grouped() -> None:
    rows = {
        "user": ["p", "q", "p", "q"],
        "time": [3.0, 1.0, 2.0, 4.0],
        "x": [30.0, 10.0, 20.0, 40.0],
    }
    data = fp.read(rows, time="time", sequence="user", place="x", sort=True, window=(0, 5))
    assert [s.places[:, 0].tolist() for s in data if s.places is not None] == [
        [20.0, 30.0],
        [10.0, 40.0],
    ]


def test_faults_of_places_name_the_row() -> None:
    with pytest.raises(
        EventDataError,
        match=(
            r"expected Latitude from 0 to 6; received the table: 7.1 at event 2 of sequence 0 "
            r"\(row 2\)"
        ),
    ):
        fp.read(TABLE, place=("Longitude", "Latitude"), bounds=[(0, 6), (0, 6)], window=(0, 4))
    with pytest.raises(EventDataError, match="expected a column 'lng' for the place"):
        fp.read(TABLE, place=("lng", "Latitude"))
    with pytest.raises(EventDataError, match="expected numbers in column 'kind'"):
        fp.read(TABLE, place="kind", mark="none")
    with pytest.raises(EventDataError, match="finite numbers in column 'x'"):
        fp.read({"time": [1.0, 2.0], "x": [0.5, math.nan]}, place="x")
    with pytest.raises(UserError, match="names of columns for the place"):
        fp.read(TABLE, place=("Longitude", "Longitude"))
    with pytest.raises(EventDataError, match="expected bounds of Longitude; received 'depth'"):
        fp.read(TABLE, place="Longitude", bounds={"depth": (0, 1)})


def test_our_parquet_gives_places_back_exactly(tmp_path: Path) -> None:
    data = Dataset.from_sequences(
        [events(seed=3), Sequence([], start=0, stop=10, space=TYPED), events(2, seed=4)]
    )
    fp.write(data, tmp_path / "p.parquet")
    back = fp.read(tmp_path / "p.parquet")
    assert (
        back.marks == data.marks
        and (back.places == data.places).all()
        and (back.times == data.times).all()
    )
    assert fp.read(tmp_path / "p.parquet", place="none").marks == MarkSpace(("a", "b"))
    wider = Box(("lon", "lat"), (-180, -90), (180, 90))
    assert fp.read(tmp_path / "p.parquet", bounds=wider).marks.box == wider


def test_inspect_takes_longitude_and_latitude_for_a_place_and_read_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = inspect(TABLE)
    assert found.command == (
        "fp.read(source, time='time', mark='kind', place=('Longitude', 'Latitude'), "
        "sequence='none')"
    )
    assert found.to_dict()["columns"]["place"] == ["Longitude", "Latitude"] and found.to_dict()[
        "box"
    ]["Longitude"] == [1.0, 3.0]
    assert fp.read(TABLE).places is None
    assert (
        "'Longitude' and 'Latitude' look like a place, which is not used (--place Longitude "
        "--place Latitude)"
    ) in capsys.readouterr().err


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize("name", [n for n in MODELS if n not in (*PLACED, *CATALOGUE)])
def test_models_without_a_box_refuse_one_and_name_those_that_take_it(name: str) -> None:
    with pytest.raises(
        UserError,
        match=(
            r"expected events without places for .*; received 2 types in lon.*Use spatial-dapp, "
            r"spatial-hawkes, poisson"
        ),
    ):
        MODELS[name](TYPED)


@pytest.mark.parametrize("name", ["spatial-dapp", "spatial-hawkes"])
def test_models_with_a_box_refuse_none(name: str) -> None:
    with pytest.raises(
        UserError, match=f"expected events with places for {name}; received 2 types"
    ):
        MODELS[name](2)


def test_poisson_with_places_is_uniform_or_counts_cells() -> None:
    data = Dataset.from_sequences(
        [
            Sequence(
                [1.0, 2.0, 3.0],
                start=0,
                stop=4,
                space=SQUARE,
                places=[[0.1, 0.1], [0.2, 0.3], [0.9, 0.9]],
            )
        ]
    )
    even = Poisson(data.marks)
    even.maximum_likelihood(data)
    assert log_likelihood(even, data.batch()).value.item() == pytest.approx(3 * math.log(0.75) - 3)
    cells = Poisson(data.marks, cells=2)
    cells.maximum_likelihood(data)
    shares = (
        np.array([2.25, 1.25]) / 4 * 4
    )  # one event more, a quarter in each cell; density is four times the share
    expected = 3 * math.log(0.75) - 3 + 2 * math.log(shares[0]) + math.log(shares[1])
    assert log_likelihood(cells, data.batch()).value.item() == pytest.approx(expected)
    with pytest.raises(UserError, match="events with places for cells"):
        Poisson(cells=4)


def test_hawkes_with_places_is_its_formula() -> None:
    """Against the sum written out, at places and over the square."""
    truth = process("space_time_hawkes").truth()
    s = events(12, SQUARE, seed=5, stop=4.0)
    assert s.places is not None
    history = truth.encode(s.batch())
    t, x = 3.0, np.array([0.3, 0.6])
    before = s.times < t
    bumps = np.exp(-((x - s.places[before]) ** 2).sum(1) / 0.02) / (2 * math.pi * 0.01)
    expected = 5 + (0.5 * np.exp(-(t - s.times[before])) * bumps).sum()
    at = torch.tensor([[[t]]], dtype=torch.float64)
    found = truth.log_intensity_at(
        history, at, torch.from_numpy(x)[None, None, None], torch.tensor([[int(before.sum())]])
    )
    assert found.exp().item() == pytest.approx(expected)


@pytest.mark.parametrize("space", [TYPED, SQUARE, MarkSpace(box=Box(("depth",), (0.0,), (700.0,)))])
def test_the_integral_over_time_and_space_is_within_its_stated_error_of_brute_force(
    space: MarkSpace,
) -> None:
    """Midpoints on a fine grid of time and space, by the rate at places alone; and the stated error
    is what was asked for.
    """
    model, s = small_dapp(space), events(6, space, seed=9, stop=6.0)
    batch = s.batch()
    found = log_likelihood(model, batch, tolerance=1e-5)
    history = model.encode(batch)
    assert space.box is not None
    k, n, moments = space.box.dimension, {1: 600, 2: 40}[space.box.dimension], 40
    u = (
        torch.stack(
            torch.meshgrid(*[torch.arange(n, dtype=torch.float64)] * k, indexing="ij"), -1
        ).reshape(-1, k)
        + 0.5
    ) / n
    grid = (
        torch.tensor(space.box.low)
        + (torch.tensor(space.box.high) - torch.tensor(space.box.low)) * u
    )
    total = 0.0
    with torch.no_grad():
        for g, (a, b) in enumerate(zip(batch.edges[0, :-1], batch.edges[0, 1:], strict=True)):
            times = (
                a + (b - a) * (torch.arange(moments, dtype=torch.float64) + 0.5) / moments
            ).expand(1, 1, -1)
            for some in times.split(6, 2):
                asked = some[..., None].expand(-1, -1, -1, len(grid)).flatten(2)
                rates = (
                    model.log_intensity_at(
                        history,
                        asked,
                        grid.repeat(some.shape[2], 1)[None, None],
                        torch.tensor([[g]]),
                    )
                    .exp()
                    .sum()
                )
                total += float(rates) * space.box.volume / len(grid) * float(b - a) / moments
    assert float(found.error) <= 1e-5 * 6
    assert abs(float(found.integral) - total) <= float(found.error) + 1e-3 * total, (
        "1e-3 is the midpoints' own error"
    )


def test_the_error_over_space_is_an_upper_estimate() -> None:
    model, batch = (
        small_dapp(order=4),
        Dataset.from_sequences([events(seed=s) for s in range(3)]).batch(),
    )
    fine = log_likelihood(model, batch, tolerance=1e-8)
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-5):
        rough = log_likelihood(model, batch, tolerance=tolerance)
        assert ((rough.integral - fine.integral).abs() <= rough.error + fine.error).all()
        assert float(rough.error.sum()) <= tolerance * 27


def test_the_sampled_likelihood_with_places_is_unbiased() -> None:
    model, batch = small_dapp(), Dataset.from_sequences([events(seed=s) for s in range(3)]).batch()
    exact = log_likelihood(model, batch, tolerance=1e-7).value
    assert torch.allclose(quick_log_likelihood(model, batch, 32), exact, atol=1e-3)
    random = torch.Generator().manual_seed(0)
    model.train()
    draws = []
    with torch.no_grad():
        for _ in range(150):
            model.redraw(random)
            draws.append(sampled_log_likelihood(model, batch, 2, random))
    found = torch.stack(draws)
    assert ((found.mean(0) - exact).abs() <= 4.5 * found.std(0) / math.sqrt(150) + 1e-3).all()


def test_a_narrow_scale_makes_dapp_the_space_time_hawkes_process() -> None:
    """One head of the truth's decay and width, a link that is all but linear: the oracle's
    likelihood to a thousandth of a nat.
    """
    truth, data = process("space_time_hawkes").truth(), fp.simulate("space_time_hawkes", 3, seed=3)
    model = SpatialDAPP(data.marks, heads=1, base="constant", drift="none", background="constant")
    model.initialise(data)
    scale = float(model.time_scale)
    with torch.no_grad():
        model.log_decay.fill_(math.log(scale))
        model.log_width.fill_(math.log(0.1))
        model.gain.fill_(1.0)
        small = 1e-3  # g(z) = s log(1 + e^z / s) is s z - s log s far above log s
        model.value_weight.fill_(0.5 / (2 * math.pi * 0.01) * scale / small)
        model.rate.baseline.log_base.fill_(math.log(1e-9))
        model.rate.log_scale.fill_(math.log(small))
        model.rate.bias.fill_(5.0 * scale / small + math.log(small))
    model.double().eval()
    found, exact = (log_likelihood(m, data.batch()).per_event for m in (model, truth))
    assert found == pytest.approx(exact, abs=2e-3)


def test_a_short_fit_comes_near_the_oracle() -> None:
    """Not the bar, which takes minutes (docs/places.md), but most of the way from the uniform
    Poisson process to the oracle.
    """
    truth = process("space_time_hawkes")
    train, dev, test = (truth.simulate(n, seed, 10.0) for n, seed in ((60, 1), (6, 2), (20, 3)))
    model = SpatialDAPP(
        train.marks,
        heads=2,
        frequencies=6,
        cells=5,
        order=8,
        base="constant",
        drift="none",
        background="constant",
    )
    fp.fit(
        model,
        train,
        dev,
        steps=50,
        batch_size=8,
        learning_rate=0.04,
        validate_every=25,
        progress=False,
    )
    even = Poisson(train.marks)
    even.maximum_likelihood(train)
    scores = [
        fp.evaluate(m, test, tolerance=1e-3).to_dict()["log_likelihood_per_event"]
        for m in (model, even, truth.truth())
    ]
    assert scores[2] - scores[0] < 0.5 * (scores[2] - scores[1])


def test_hawkes_with_places_finds_its_parameters() -> None:
    data = process("space_time_hawkes").simulate(24, 8, 8.0)
    model = SpatialHawkes(data.marks)
    notes = model.maximum_likelihood(data)
    assert notes[0].startswith("baseline") and "largest gradient left" in notes[1]
    assert model.log_branching.exp().item() == pytest.approx(0.5, rel=0.3)
    assert model.log_decay.exp().item() == pytest.approx(1.0, rel=0.4)
    assert model.log_spread.exp().tolist() == pytest.approx([0.1, 0.1], rel=0.25)


# ---------------------------------------------------------------------- samples


@pytest.mark.parametrize("method", ["thinning", "inversion"])
@pytest.mark.parametrize("name", ["dapp", "poisson", "hawkes"])
def test_samples_have_the_models_law_in_time_and_in_space(name: str, method: Any) -> None:
    """Counts and rescaled gaps (`goodness`), and events per cell against the integral of the rate
    there.
    """
    space = TYPED
    model: Any = small_dapp(space, link="softplus") if name == "dapp" else Poisson(space, cells=3)
    if name == "hawkes":
        model = SpatialHawkes(space, baseline=1.0, branching=0.6, decay=2.0, spread=0.15)
    if name == "poisson":
        model.maximum_likelihood(Dataset.from_sequences([events(40)]))
    paths = sample_paths(
        model, 0.0, 4.0, 120 if method == "thinning" else 60, seed=4, method=method
    )
    data, box = paths.data, space.box
    assert box is not None and data.marks == space and data.places is not None
    verdict = fp.goodness_of_fit(model, data, tolerance=1e-3)
    assert (
        min(verdict.total.ks_p, verdict.total.uniform_p, *(v.ks_p for v in verdict.marks.values()))
        > 1e-3
    )
    assert abs(verdict.total.count - verdict.total.expected) < 4 * math.sqrt(verdict.total.expected)
    n = 4
    u = (
        np.stack(np.meshgrid(np.arange(24), np.arange(24), indexing="ij"), -1).reshape(-1, 2) + 0.5
    ) / 24
    grid = torch.from_numpy(np.array(box.low) + np.subtract(box.high, box.low) * u)
    expected = np.zeros((n, n))
    with torch.no_grad():
        for s in data[:30]:
            history = model.encode(s.batch())
            times = (torch.arange(16, dtype=torch.float64) + 0.5) / 4
            seen = torch.searchsorted(torch.from_numpy(np.array(s.times)), times)[None]
            rates = model.log_intensity_at(
                history,
                times[None, :, None].expand(-1, -1, len(grid)),
                grid.expand(1, 16, -1, -1),
                seen,
            ).exp()
            cell = rates[0].sum(-1).mean(0).reshape(n, 6, n, 6).sum((1, 3)).numpy()
            expected += 4.0 * cell * box.volume / 576
    some = data[:30]
    assert some.places is not None
    observed = np.histogramdd(some.places, n, range=list(zip(box.low, box.high, strict=True)))[0]
    assert (((observed - expected) ** 2 / expected).sum() - 16) / math.sqrt(32) < 5


def test_the_bound_dominates_the_rate_everywhere() -> None:
    model, random = small_dapp(seed=3), torch.Generator().manual_seed(1)
    box = TYPED.box
    assert box is not None
    past = model.encode(Dataset.from_sequences([events(12, seed=s) for s in range(5)]).batch())
    for width in (0.0, 0.01, 0.3, 5.0):
        a = torch.full((5,), 10.0, dtype=torch.float64)
        envelope = model.envelope(past, a, a + width)
        assert torch.equal(envelope.mean(1), model.upper_bound(past, a, a + width))
        times = a[:, None] + width * torch.rand(5, 400, generator=random, dtype=torch.float64)
        u, side = (
            torch.rand(5, 400, 2, generator=random, dtype=torch.float64),
            math.isqrt(envelope.shape[1]),
        )
        cell = (u[..., 0] * side).long() * side + (u[..., 1] * side).long()
        places = torch.tensor(box.low) + (torch.tensor(box.high) - torch.tensor(box.low)) * u
        rate = box.volume * model.log_intensity_at(
            past, times[:, None], places[:, None], past.lengths[:, None]
        ).exp().sum(-1)
        assert (rate[:, 0] <= envelope.gather(1, cell)).all()


# ---------------------------------------------------------------------- what users do with it


def test_forecast_explain_and_maps_with_places() -> None:
    model, s = small_dapp(), events(10)
    found = fp.forecast(model, s, 2.0, 30, at=8.0)
    assert (
        found.paths.places is not None
        and found.counts.mean.shape == (4, 2)
        and np.isfinite(found.rate.mean).all()
    )
    expected = fp.expected_map(model, found, cells=16)
    band = np.trapezoid(found.rate.mean.sum(1), found.rate.times) / (
        found.rate.times[-1] - found.rate.times[0]
    )
    assert expected.rate.mean() * 800 == pytest.approx(band, rel=0.25)
    now = fp.intensity_map(model, s, 8.0, cells=40)
    assert now.rate.shape == (40, 40) and now.rate.mean() * 800 == pytest.approx(
        fp.intensity(model, s, [8.0]).sum(), rel=2e-3
    )
    assert (
        now.plot(unit="h").get_xlabel() == "lon"
        and fp.plot_map(model, s).get_title(loc="left") == "Intensity at 10"
    )
    line = fp.intensity_map(model, s, 8.0, axes=(1,))
    assert (
        line.rate.mean() * 20 == pytest.approx(now.rate.mean() * 800, rel=1e-3)
        and line.plot().get_xlabel() == "lat"
    )
    why = fp.explain(model, s, 8.0)
    without = Sequence(
        s.times[1:], s.marks[1:], start=0, stop=10, space=TYPED, places=np.array(s.places)[1:]
    )
    np.testing.assert_allclose(
        why.effects[0], why.rate - fp.intensity(model, without, [8.0])[0], atol=1e-9
    )
    scores = fp.prediction_scores(model, Dataset.from_sequences([s]), events=5, origins=2, paths=10)
    assert scores.next_event.events == 5


def test_the_map_of_a_hawkes_process_is_its_rate_in_every_cell() -> None:
    """Against the rate at many places of each cell, and over the horizon against the closed
    integral over the whole box.
    """
    box = Box(("lon", "lat"), (0, 0), (4, 2))
    space = MarkSpace(("a", "b"), box)
    model = SpatialHawkes(space, baseline=3.0, branching=0.6, decay=1.5, spread=0.05, cells=3)
    with torch.no_grad():
        model.grid.log_share.copy_(
            torch.randn(
                model.grid.log_share.shape, generator=torch.Generator().manual_seed(0)
            ).double()
        )
    s = Sequence([0.3, 1.0], [0, 1], start=0, stop=2, space=space, places=[[0.5, 0.5], [3.1, 1.2]])
    history = model.encode(s.batch())
    fine = torch.cartesian_prod(
        *(
            torch.linspace(low, high, 2 * 6 * 20 + 1, dtype=torch.float64)[1::2]
            for low, high in ((0, 4), (0, 2))
        )
    )
    now = torch.full((1, 1, len(fine)), 1.2, dtype=torch.float64)
    exact = (
        model.log_intensity_at(history, now, fine[None, None], torch.tensor([[2]]))
        .exp()
        .sum(-1)
        .reshape(6, 20, 6, 20)
        .mean((1, 3))
    )
    np.testing.assert_allclose(
        fp.intensity_map(model, s, 1.2, cells=6).rate, exact.detach(), rtol=2e-3
    )
    turned = fp.intensity_map(model, s, 1.2, cells=6, axes=(1, 0)).rate
    np.testing.assert_allclose(turned.T, exact.detach(), rtol=2e-3)
    along = fp.intensity_map(model, s, 1.2, cells=6, axes=(0,)).rate
    np.testing.assert_allclose(along, 2 * exact.detach().mean(1), rtol=2e-3)
    found = fp.forecast(model, s, 2.0, 2, seed=3)
    whole = fp.expected_map(model, found, cells=3)
    total = 0.0
    for row in range(2):
        with torch.no_grad():
            history = model.encode(_joined(found.past, found.paths.batch([row])))
            total += float(model.closed_integral(history, *_pieces(found, row)).sum())
    assert whole.rate.mean() * 8 * 2.0 == pytest.approx(total / 2, rel=1e-9)


def _pieces(found: Any, row: int) -> tuple[Any, Any, Any]:
    """Ends of the gaps of a future, and from which position each is seen."""
    inner = found.paths[row].times
    edges = torch.tensor([found.at, *inner, found.at + found.horizon], dtype=torch.float64)[None]
    return edges[:, :-1], edges[:, 1:], len(found.past) + torch.arange(len(inner) + 1)[None]


def test_clusters_have_the_law_of_thinning() -> None:
    """Counts, times, marks and places of paths drawn cluster by cluster and one event after the
    other, from the same past.
    """
    box = Box(("x", "y"), (0, 0), (1, 1))
    space = MarkSpace(("a", "b"), box)
    model = SpatialHawkes(space, baseline=1.0, branching=1.2, decay=2.0, spread=0.3)
    past = Sequence(
        [0.1, 0.4, 0.4],
        [0, 1, 0],
        start=0,
        stop=0.5,
        space=space,
        places=[[0.1, 0.1], [0.9, 0.9], [0.5, 0.5]],
    )
    paths = [
        fp.sample_paths(model, 0.5, 2.0, 3000, 5, history=past, method=method)
        for method in ("auto", "thinning")
    ]
    assert [one.method for one in paths] == ["clusters", "thinning"]
    drawn = [one.data for one in paths]
    counts = [one.lengths for one in drawn]
    gap = counts[0].mean() - counts[1].mean()
    assert abs(gap) < 4 * np.sqrt((counts[0].var() + counts[1].var()) / 3000)
    assert counts[0].std() == pytest.approx(counts[1].std(), rel=0.1)
    for values in (lambda d: d.times, lambda d: d.places[:, 0], lambda d: d.places[:, 1]):
        assert ks_2samp(values(drawn[0]), values(drawn[1])).pvalue > 1e-4
    shares = [one.mark_ids.mean() for one in drawn]
    assert shares[0] == pytest.approx(shares[1], abs=0.03)
    with pytest.warns(UserWarning, match="reached most=2"):
        assert fp.sample(model, 0.5, 2.0, 50, history=past, most=2).lengths.max() == 2


@pytest.mark.parametrize("name", ["spatial-hawkes", "spatial-dapp"])
def test_maps_of_two_seeds_agree_on_earthquakes(name: str) -> None:
    data = fp.load("earthquakes")
    model, paths = fp.MODELS[name](marks=data.marks), 500
    if name == "spatial-hawkes":
        model.initialise(data)
    else:
        fp.fit(
            model, data.part("train"), data.part("dev"), steps=5, validate_every=5, progress=False
        )
        paths = 30
    today = data.part("test")[0]
    maps = [
        fp.expected_map(model, fp.forecast(model, today, 0.5, paths, seed, at=12.0), cells=24).rate
        for seed in (1, 2)
    ]
    assert np.corrcoef(maps[0].ravel(), maps[1].ravel())[0, 1] > 0.95


def test_a_map_takes_all_paths_that_were_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    model, s = small_dapp(), events(10)
    found = fp.forecast(model, s, 2.0, 150, at=8.0)
    asked = []
    real = SpatialDAPP.in_cells
    monkeypatch.setattr(
        SpatialDAPP,
        "in_cells",
        lambda self, h, t, seen, c: asked.append(t.shape) or real(self, h, t, seen, c),
    )
    fp.expected_map(model, found, cells=4)
    assert sum(rows for rows, _ in asked) == 150
    assert all(moments >= 4 for _, moments in asked)


def test_another_box_is_refused_with_the_models() -> None:
    model = small_dapp()
    other = MarkSpace(("a", "b"), Box(("lon", "lat"), (-10.0, 40.0), (30.0, 61.0)))
    with pytest.raises(
        UserError,
        match=r"places in lon -10 to 30, lat 40 to 60, as .*received places in .*61.*data.in_box",
    ):
        fp.evaluate(model, Dataset.from_sequences([events(space=other)]))
    with pytest.raises(UserError, match="received events without places"):
        fp.forecast(model, Sequence([1.0], [0], start=0, stop=2, space=MarkSpace(("a", "b"))), 1.0)
    with pytest.raises(
        UserError,
        match="expected events with places .*; received events without places, as a stream has",
    ):
        fp.Stream(model)
    with pytest.raises(UserError, match="a model of events with places"):
        fp.plot_map(Poisson(), Sequence([1.0], start=0, stop=2))
    with pytest.raises(UserError, match="a place for every event"):
        model.extend(
            model.encode(events().batch()), torch.tensor([11.0]).double(), torch.tensor([0])
        )


# ---------------------------------------------------------------------- the embedded earthquakes


def test_earthquakes_are_what_their_page_says() -> None:
    data = fp.load("earthquakes")
    assert (len(data), data.events, data.unit, data.name) == (7, 1679, "hours", "earthquakes")
    assert data.marks == MarkSpace(
        ("below 1", "1 to 2.5", "2.5 to 4.5", "4.5 and up"),
        Box(("longitude", "latitude"), (-180, -90), (180, 90)),
    )
    assert np.bincount(data.mark_ids).tolist() == [708, 674, 212, 85] and data.tied == 0
    assert (
        data.ids[0] == "2018-01-31"
        and (data.stops == 24).all()
        and [len(part) for part in data.split()] == [5, 1, 1]
    )


def test_the_script_makes_the_earthquakes_from_a_feed(root: Path, tmp_path: Path) -> None:
    import json
    import tarfile

    def quake(kind: str, time: int, mag: float, place: list[float]) -> dict[str, Any]:
        return {
            "properties": {"type": kind, "time": time, "mag": mag},
            "geometry": {"coordinates": place},
        }

    end = 1517968154000
    feed = {
        "metadata": {"generated": end},
        "features": [
            quake("earthquake", end - 3_600_000, 4.5, [1.0, 2.0, 3.0]),
            quake("explosion", end - 7_200_000, 1.0, [0.0, 0.0, 0.0]),
            quake("earthquake", end - 7 * 86_400_000, 0.2, [-179.0, 60.5, 10.0]),
        ],
    }
    (tmp_path / "earthquakes.json").write_text(json.dumps(feed))
    with tarfile.open(tmp_path / "p.tgz", "w:gz") as archive:
        archive.add(tmp_path / "earthquakes.json", "package/data/earthquakes.json")
    spec = importlib.util.spec_from_file_location(
        "make_earthquakes", root / "scripts" / "make_earthquakes.py"
    )
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    data = script.build(tmp_path / "p.tgz")
    assert (
        data.times.tolist() == [0.0, 23.0]
        and data.mark_ids.tolist() == [0, 3]
        and data.lengths.tolist() == [1, 0, 0, 0, 0, 0, 1]
    )
    assert data.places.tolist() == [[-179.0, 60.5], [1.0, 2.0]]


def test_the_former_name_of_a_background_is_taken_with_a_warning(root: Path) -> None:
    with pytest.warns(DeprecationWarning, match="is now called 'sinusoids'"):
        model = SpatialDAPP(SQUARE, frequencies=2, background="waves")
    assert model.settings()["background"] == "sinusoids"
    assert model.background.requires_grad
    saved = fp.restore(root / "tests" / "reference" / "models" / "dapp-places")
    assert saved.settings()["background"] == "sinusoids"


# ---------------------------------------------------------------------- calendar and covariates


def rainy_days(days: int, seed: int) -> Context:
    """Midnight at time 0, and rain on every other day."""
    rain = np.random.default_rng(seed).permutation(np.arange(days) % 2).astype(float)
    steps = Steps(("rain",), 24.0 * np.arange(days), rain[:, None], np.array([0, days]))
    return Context(origin=np.zeros(1), covariates=steps)


def rhythmic_hawkes(context: Context, days: int, ratio: float) -> tuple[SpatialHawkes, Dataset]:
    """A process whose background follows the time of day and rain, and events drawn from it."""
    past = Sequence(
        [], start=0.0, stop=24.0 * days, space=SQUARE, places=np.zeros((0, 2)), context=context
    )
    empty = replace(Dataset.from_sequences([past]), unit="hours")
    truth = SpatialHawkes(SQUARE, baseline=0.6, branching=0.4, decay=2.0, spread=0.05)
    truth.add_effects(effects_of(empty, ("hour",)))
    assert truth.effects is not None
    with torch.no_grad():
        hours = torch.arange(24, dtype=torch.float64)
        truth.effects.weight[:24, 0] = torch.sin(2 * math.pi * hours / 24)
        truth.effects.weight[24, 0] = math.log(ratio) * truth.effects.spec.scale[0]
    drawn = sample_paths(truth, 0.0, 24.0 * days, 1, seed=days, history=past.before(0.0)).data
    return truth, replace(drawn, unit="hours", context=context)


def test_a_spatial_hawkes_process_follows_calendar_and_covariates() -> None:
    context = rainy_days(30, seed=1)
    truth, data = rhythmic_hawkes(context, 30, ratio=2.5)
    expected = 30 * 24 * 0.6 / (1 - 0.4)
    assert data.events > 0.8 * expected
    flat, model = SpatialHawkes(SQUARE), SpatialHawkes(SQUARE)
    fp.fit(flat, replace(data, context=None), progress=False)
    done = fp.fit(model, data, calendar=("hour",), progress=False)
    assert any("rain" in note for note in done.notes)
    (rain,) = model.rate_ratios
    assert rain.name == "rain" and rain.low < 2.5 < rain.high and rain.high / rain.low < 3.0
    found, biased = (float(one.log_branching.detach().exp().sum()) for one in (model, flat))
    assert abs(found - 0.4) < 0.1 and biased > found + 0.05
    assert model.effects is not None and truth.effects is not None
    curves = [one.effects.weight[:24, 0].detach().numpy() for one in (model, truth)]
    assert np.corrcoef(*curves)[0, 1] > 0.9
    # The likelihood of the fit is that of the model: its terms and its integral.
    gain = fp.evaluate(model, data).scores["window"].per_event
    assert gain > fp.evaluate(flat, data).scores["window"].per_event + 0.05


def test_counts_of_a_spatial_hawkes_process_follow_the_clock() -> None:
    """Paths that are drawn cluster by cluster, and the integral of the rate, agree."""
    context = rainy_days(2, seed=1)
    model, _ = rhythmic_hawkes(context, 2, ratio=2.5)
    with torch.no_grad():
        model.log_branching.fill_(-20.0)
    past = Sequence(
        [], start=0.0, stop=24.0, space=SQUARE, places=np.zeros((0, 2)), context=context
    )
    paths = sample_paths(model, 0.0, 24.0, 400, seed=0, history=past.before(0.0)).data
    counts = np.histogram(paths.times, np.arange(25))[0] / 400
    times = torch.arange(0.5, 24.0, dtype=torch.float64)[None]
    rates = model.intensity(model.encode(past.before(0.0).batch()), times)[0, :, 0]
    errors = (counts - rates.detach().numpy()) / np.sqrt(rates.detach().numpy() / 400)
    assert np.abs(errors).max() < 4.5 and counts.max() > 4 * counts.min()
