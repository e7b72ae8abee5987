"""The seismic DAPP: ETAS inside it, causality, integrals, sampling, saving, and its fit."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fourpoint.events import Batch, Box, Dataset, MarkSpace, Sequence
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.sampling import Method, sample, select_rows
from fourpoint.kernels import conditions, numba_seismic
from fourpoint.models import ETAS, SeismicDAPP
from fourpoint.models.etas import ETASHistory
from fourpoint.models.etas_fit import Log
from fourpoint.models.spatial import seismic_fit, seismic_groups
from fourpoint.models.spatial.seismic_dapp import SeismicHistory
from fourpoint.storage.checkpoints import restore, save
from fourpoint.training.fitting import fit

SPACE = MarkSpace(box=Box(("x", "y"), (0.0, 0.0), (20.0, 12.0)))
GIVEN = dict(
    baseline=2.0, productivity=0.25, alpha=0.9, c=0.02, p=1.3, distance=0.6, q=1.7, mc=1.0, b=1.0
)


def catalogue(seed: int = 1, stop: float = 40.0) -> Dataset:
    """A catalogue of an ETAS process."""
    return sample(ETAS(SPACE, **GIVEN, background="uniform", taper=None), 0.0, stop, 1, seed=seed)


def corrected(data: Dataset) -> SeismicDAPP:
    """A model with all corrections, and a background of kernels that later events update."""
    model = SeismicDAPP(SPACE, **GIVEN)
    places = torch.from_numpy(np.array(data.places))[:15]
    width = torch.full((len(places), 1), 1.5, dtype=torch.float64)
    weight = torch.full((len(places), 1), 1 / len(places), dtype=torch.float64)
    model.set_background(torch.cat([places, width, weight], 1))
    model.correct(
        spectrum=torch.tensor([[0.1, 0.2], [0.2, 0.05], [0.1, 0.1]]),
        scales=torch.tensor([0.01, 0.3, 9.0]),
        lengths=torch.tensor([0.4, 2.0]),
        tilt=torch.tensor([0.2, 0.0, -0.2]),
        stretch=torch.tensor([[1.25, 0.3], [0.3, (1 + 0.09) / 1.25]]),
        attention=torch.tensor([0.8, 0.5, 0.6]),
        kernel_weight=torch.tensor(0.3),
        evidence=torch.tensor([6.0, 12.0]),
    )
    return model


def first(data: Dataset, count: int) -> Batch:
    """The first events of a catalogue, in its whole window."""
    assert data.places is not None and data.features is not None
    sequence = Sequence(
        data.times[:count],
        start=0.0,
        stop=float(data.stops[0]),
        space=SPACE,
        places=data.places[:count],
        features=data.features[:count],
    )
    return sequence.batch()


@pytest.mark.parametrize("taper", [None, 30.0])
def test_zero_corrections_are_etas(taper: float | None) -> None:
    data = catalogue()
    etas = ETAS(SPACE, **GIVEN, taper=taper)
    model = SeismicDAPP(SPACE, **GIVEN, taper=taper)
    batch = data.batch([0])
    plain = float(log_likelihood(etas, batch).value)
    assert float(log_likelihood(model, batch).value) == pytest.approx(plain, abs=1e-9)
    model.correct(spectrum=torch.zeros(2, 2), scales=torch.ones(2), lengths=torch.ones(2))
    model.correct(tilt=torch.zeros(2))
    assert model.corrected  # through the loops of the corrections
    assert float(log_likelihood(model, batch).value) == pytest.approx(plain, abs=1e-9 * abs(plain))
    times = torch.linspace(0.5, 39.0, 6, dtype=torch.float64)[None, :, None]
    seen = torch.searchsorted(batch.times, times[..., 0])
    places = torch.rand(1, 6, 1, 2, generator=torch.Generator().manual_seed(0)).double() * 12
    for one, other in (
        (etas.log_intensity, model.log_intensity),
        (
            lambda h, t, s: etas.log_intensity_at(h, t, places, s),
            lambda h, t, s: model.log_intensity_at(h, t, places, s),
        ),
    ):
        expected = one(etas.encode(batch), times, seen)
        found = other(model.encode(batch), times, seen)
        assert torch.allclose(found, expected, atol=1e-9, rtol=0)


def test_the_future_does_not_change_the_past() -> None:
    data = catalogue()
    model = corrected(data)
    whole = model.encode(data.batch([0]))
    some = model.encode(first(data, 40))
    assert isinstance(whole, SeismicHistory) and isinstance(some, SeismicHistory)
    for name in ("rates", "share", "owner", "given", "origin"):
        assert torch.equal(getattr(whole, name)[:, :40], getattr(some, name))
    assert float(whole.share.sum(2).max()) <= 1
    assert float((whole.given - 1).abs().max()) > 0.05  # productivity is inherited


def test_encode_equals_extend_and_rates_at_events() -> None:
    data = catalogue()
    model = corrected(data)
    batch = first(data, 30)
    history = model.encode(first(data, 10))
    assert batch.features is not None and batch.places is not None
    for i in range(10, 30):
        history = model.extend(
            history,
            batch.times[:, i],
            batch.marks[:, i],
            None,
            batch.places[:, i],
            batch.features[:, i],
        )
    whole = model.encode(batch)
    assert isinstance(whole, SeismicHistory) and isinstance(history, SeismicHistory)
    assert torch.allclose(whole.rates, history.rates, rtol=1e-12)
    assert torch.allclose(whole.share, history.share, rtol=1e-9)
    position = torch.arange(30)[None]
    at = model.log_intensity_at(whole, batch.times[..., None], batch.places[:, :, None], position)
    assert torch.allclose(at[:, :, 0, 0], whole.rates.log(), atol=1e-12)


def test_integrals_in_time_and_space() -> None:
    data = catalogue()
    model = corrected(data)
    batch = first(data, 60)
    history = model.encode(batch)
    begin = float(batch.times[0, -1]) + 0.01
    seen = torch.tensor([[60]])
    ends = [torch.tensor([[x]], dtype=torch.float64) for x in (begin, begin + 2.0)]
    exact = float(model.closed_integral(history, *ends, seen))
    x, weight = np.polynomial.legendre.leggauss(200)
    u = np.log(0.01) + (np.log(2.01) - np.log(0.01)) * (x + 1) / 2
    nodes = torch.from_numpy(begin - 0.01 + np.exp(u))[None, None]
    step = weight * np.exp(u) * (np.log(2.01) - np.log(0.01)) / 2
    rates = model.log_intensity(history, nodes, seen).exp()[0, 0, :, 0].numpy()
    assert float(rates @ step) == pytest.approx(exact, rel=1e-7)

    side = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    grid = torch.cartesian_prod(20 * side, 12 * side)
    when = torch.full((1, 1, len(grid)), begin + 0.5, dtype=torch.float64)
    local = model.log_intensity_at(history, when, grid[None, None], seen).exp()
    mean = float(local.mean()) * 240
    total = float(model.log_intensity(history, when[..., :1], seen).exp())
    assert mean == pytest.approx(total, rel=2e-3)


def compensator(model: SeismicDAPP, batch: Batch, begin: float, end: float) -> float:
    """The integral from ``begin`` to ``end`` along a path."""
    history = model.encode(batch)
    inside = batch.times[0, (batch.times[0] > begin) & (batch.times[0] < end)]
    edges = torch.cat([inside.new_tensor([begin]), inside, inside.new_tensor([end])])
    seen = torch.searchsorted(batch.times[0], edges[:-1], right=True)[None]
    return float(model.closed_integral(history, edges[None, :-1], edges[None, 1:], seen).sum())


@pytest.mark.parametrize(("method", "count"), [("auto", 120), ("thinning", 15)])
def test_samples_agree_with_the_integral(method: Method, count: int) -> None:
    data = catalogue()
    model = corrected(data)
    model.event_features = ETAS(SPACE, **GIVEN).event_features
    known = data.between(None, 15.0)
    begin, end = 15.0, 17.0
    paths = sample(model, begin, end, count, seed=3, history=known, method=method)
    gaps = []
    for row in range(len(paths)):
        path = paths[row]
        joined = Sequence(
            np.concatenate([known.times, path.times]),
            start=0.0,
            stop=end,
            space=SPACE,
            places=np.concatenate([known.places, path.places]),
            features=np.concatenate([known.features, path.features]),
        )
        expected = compensator(model, joined.batch(), begin, end)
        gaps.append(len(path) - expected)
    error = np.std(gaps) / math.sqrt(len(gaps))
    assert abs(np.mean(gaps)) < 4 * error
    assert paths.places is not None and paths.features is not None
    assert bool(((paths.places >= 0) & (paths.places <= (20, 12))).all())


def test_draws_of_places_follow_the_rate() -> None:
    data = catalogue()
    model = corrected(data)
    batch = first(data, 60)
    history = model.encode(batch)
    when = float(batch.times[0, -1]) + 0.2
    random = torch.Generator().manual_seed(5)
    time, mark = torch.tensor([when], dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    drawn = torch.cat([model.draw_places(history, time, mark, random) for _ in range(200)])
    check_places(model, history, when, drawn)
    # the first events of paths that begin then
    many = select_rows(history, torch.zeros(2000, dtype=torch.int64))
    begin = torch.full((2000,), when, dtype=torch.float64)
    paths = model.draw_paths(many, begin, begin + 0.05, random, 1000)
    assert paths is not None
    first_of = torch.cat([torch.ones(1, dtype=torch.bool), paths.row.diff() > 0])
    check_places(model, history, when, paths.place[first_of])


def check_places(
    model: SeismicDAPP, history: ETASHistory, when: float, drawn: torch.Tensor
) -> None:
    """Whether places follow the rate at a time, by the chi-square test."""
    side = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    grid = torch.cartesian_prod(20 * side, 12 * side)
    at = torch.full((1, 1, len(grid)), when, dtype=torch.float64)
    local = model.log_intensity_at(history, at, grid[None, None], torch.tensor([[60]])).exp()
    density = (local[0, 0, :, 0] / local.sum()).reshape(4, 50, 4, 50).sum((1, 3)).flatten()
    cell = (drawn[:, 0] / 5).long() * 4 + (drawn[:, 1] / 3).long()
    counts = torch.bincount(cell, minlength=16).double()
    expected = len(drawn) * density
    statistic = float(((counts - expected).square() / expected.clamp(min=1)).sum())
    assert statistic < 45  # the 99.99% quantile of chi-square with 15 degrees of freedom is 44.3


def test_compiled_loops_equal_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    data = catalogue()
    model = corrected(data)
    batch = first(data, 25)
    fast = model.encode(batch)
    monkeypatch.setattr(numba_seismic, "load", numba_seismic.plain)
    slow = model.encode(batch)
    assert isinstance(fast, SeismicHistory) and isinstance(slow, SeismicHistory)
    assert torch.allclose(fast.rates, slow.rates, rtol=1e-10)
    assert torch.equal(fast.owner, slow.owner)


def test_saved_models_load(tmp_path: Path) -> None:
    data = catalogue()
    model = corrected(data)
    batch = first(data, 50)
    save(model, tmp_path / "model")
    again = restore(tmp_path / "model")
    before, after = (m.encode(batch) for m in (model, again))
    assert isinstance(before, SeismicHistory) and isinstance(after, SeismicHistory)
    assert torch.equal(before.rates, after.rates)


def swarms() -> Dataset:
    """Quiet times with a few swarms: many events close to one another within days."""
    random = np.random.default_rng(2)
    times = [random.uniform(0, 400, 300)]
    places = [random.uniform((0, 0), (20, 12), (300, 2))]
    for when in np.arange(15, 400, 25.0):
        count = 40 if int(when) % 2 else 12
        times.append(when + random.exponential(1.5, count))
        places.append(random.uniform((2, 2), (18, 10)) + 0.15 * random.normal(size=(count, 2)))
    order = np.argsort(np.concatenate(times))
    magnitudes = 1 + random.exponential(0.4, len(order))
    kept = np.concatenate(times)[order] < 400
    sequence = Sequence(
        np.concatenate(times)[order][kept],
        start=0.0,
        stop=400.0,
        space=SPACE,
        places=np.concatenate(places)[order][kept],
        features=magnitudes[:, None][kept],
    )
    return Dataset.from_sequences([sequence])


def test_a_fit_improves_on_etas_on_later_data() -> None:
    train, dev, test = swarms().split_at([200.0, 300.0])
    model = SeismicDAPP(SPACE)
    model.add_event_features(train)
    model.initialise(train)
    notes = model.maximum_likelihood(train)
    assert any(line.startswith("attention") for line in notes)
    notes = model.keep_best(dev)
    assert "kept" in notes[0]
    kept = seismic_fit.score(model, test) / test.scored_events
    # integrals by event and by gap are the same
    exact = float(log_likelihood(model, test.batch([0])).value) / test.scored_events
    assert kept == pytest.approx(exact, abs=1e-8)
    model.correct(**model.stages["etas"])
    assert not model.corrected
    assert kept > seismic_fit.score(model, test) / test.scored_events + 0.05


def test_without_time_corrections_are_left_out_and_the_fit_says_so() -> None:
    train, dev, _ = swarms().split_at([200.0, 300.0])
    model = SeismicDAPP(SPACE)
    found = fit(model, train, dev, progress=False, time_budget=1e-9)
    notes = " ".join(found.notes)
    assert "stopped by the time budget" in notes
    assert "ended before all corrections were tried" in notes
    assert set(model.stage_values) == {"etas"} and not model.corrected


def test_attention_of_no_effect_keeps_the_integral() -> None:
    """With a huge a_j the integral of what one event triggers is scale times Lambda_j."""
    one, none = np.ones(1), np.zeros(1)
    no_pairs = (np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(2, dtype=np.int64))
    total = numba_seismic.replay(
        0, 0, *no_pairs, none, one, 1.0, none, 0.7 * one, none, 1e18, 0.0, 0.0, 0.5,
        one.copy(), none.copy(), one.copy(),
    )  # fmt: skip
    assert total == pytest.approx(0.35)


def test_groups_of_events_agree_with_sums_over_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = catalogue(3, 150.0)
    model = corrected(data)
    model.correct(kernel_weight=torch.tensor(0.0), spectrum=3 * model.spectrum)
    batch = data.batch([0])
    position = torch.arange(data.events)[None]
    found = []
    # Pairs from which there are groups, and the share of groups of which one event is drawn.
    for work, share in ((2**62, 0.0), (0, 0.0), (0, seismic_groups.SHARE)):
        monkeypatch.setattr(conditions, "TREE_WORK", work)
        monkeypatch.setattr(seismic_groups, "SHARE", share)
        history = model.encode(batch)
        assert isinstance(history, SeismicHistory)
        integrals = model.closed_integral(history, batch.edges[:, :-1], batch.edges[:, 1:])
        rates = model.log_intensity(history, batch.times[..., None], position)
        found.append((history, integrals[0, :, 0], rates[0, :, 0, 0]))
    (full, exact, whole), (groups, integrals, rates), (drawn, *_) = found
    noise = (drawn.rates / full.rates).log()
    assert float(noise.abs().mean()) < 2e-3 and float(noise.abs().max()) < 0.02
    assert abs(float(noise.mean())) < 4 * float(noise.std()) / math.sqrt(data.events)
    assert float((drawn.given - full.given).abs().max()) < 0.02
    change = (groups.rates / full.rates).log()
    assert 0 < float(change.abs().mean()) < 1e-4 and float(change.abs().max()) < 0.01
    assert float((full.owner == groups.owner).double().mean()) > 0.999
    assert float(integrals.sum()) == pytest.approx(float(exact.sum()), rel=1e-4)
    assert torch.allclose(integrals, exact, rtol=0.02)
    assert float((rates - whole).abs().mean()) < 2e-3
    assert abs(float((rates - whole).mean())) < 2e-4


def test_columns_and_pairs_by_groups_agree_with_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = catalogue(3, 100.0)
    model = corrected(data)
    model.correct(kernel_weight=torch.tensor(0.0))
    model.sources = model.sources[:0]
    monkeypatch.setattr(seismic_groups, "SHARE", 0.0)
    found = []
    for work in (2**62, 0):
        monkeypatch.setattr(conditions, "TREE_WORK", work)
        with torch.no_grad():
            (row,) = seismic_fit.rows_of(model, [Log(model, data.batch([0]))])
        phi, _ = seismic_fit.columns(model, row)
        pairs = seismic_fit.list_pairs(model, row, 10)
        child = np.repeat(np.arange(data.events), np.diff(pairs.offsets))
        total = row.background + pairs.rest
        total += np.bincount(child, pairs.values, data.events)
        found.append((phi.sum(1), len(child), total[10:]))
    (phi, count, total), (by_groups, fewer, nearly) = found
    assert np.abs(by_groups - phi).mean() < 1e-4 * phi.mean()
    assert abs(count - fewer) <= 0.01 * count
    assert np.abs(np.log(nearly / total)).mean() < 1e-4


def test_daily_catalogues_follow_the_corrected_model() -> None:
    data = catalogue()
    model = corrected(data)
    model.event_features = ETAS(SPACE, **GIVEN).event_features
    whole = model.encode(data.batch([0]))
    past = data.between(None, 15.0)
    drawn = [
        model.draw_catalogues(
            past[0].batch(), 15.0, 15.5, 40, torch.Generator().manual_seed(1), history
        )
        for history in (None, whole)
    ]
    assert torch.equal(drawn[0].time, drawn[1].time) and torch.equal(drawn[0].row, drawn[1].row)
    # the first event of a path, whose probability the integral gives
    ends = (torch.tensor([[x]], dtype=torch.float64) for x in (15.0, 15.5))
    expected = model.closed_integral(model.encode(past.batch([0])), *ends)
    none = math.exp(-float(expected))
    many = model.draw_catalogues(past[0].batch(), 15.0, 15.5, 1000, torch.Generator(), whole)
    share = 1 - len(many.row.unique()) / 1000
    assert abs(share - none) < 4 * math.sqrt(none * (1 - none) / 1000)
