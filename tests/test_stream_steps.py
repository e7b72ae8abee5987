"""DAPP stepped by its kernel and by its verbs is one model; what streams read off tables is what it
says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_laws import data
from test_streaming import lively

from fourpoint.data.synthetic import simulate
from fourpoint.kernels import numba_dapp_stream as dapp_loops
from fourpoint.kernels.score_table import ERROR, largest
from fourpoint.models import DAPP
from fourpoint.models.dapp_step import Steps, supports
from fourpoint.models.following import Events, Numbers, Scored
from fourpoint.ops.quadrature import Unconverged
from fourpoint.streaming.kept import ByActiveSets
from fourpoint.streaming.steppers import ByHistory, ByStates, score_table
from fourpoint.streaming.stream import Stream


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"decay": False},
        {"link": "exp"},
        {"link": "identity"},
        {"values": "affine"},
        {"base": "spline", "drift": "none"},
        {"base": "constant", "drift": "spline"},
    ],
    ids=str,
)
@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize("double", [True, False])
def test_stepping_by_the_kernel_equals_the_verbs(
    settings: dict[str, Any], marks: int, double: bool
) -> None:
    model = lively(marks, **settings)
    if double:
        model.double()
    assert supports(model)
    sequence = data(marks)[2] if marks > 1 else simulate("hawkes", 3)[1]
    relative = 1e-10 if double else 1e-5
    fast, plain, batch = ByStates(model), ByHistory(model), sequence.batch()
    with torch.no_grad():
        seen = torch.arange(len(sequence))[None]
        own = (
            model.log_intensity(model.encode(batch), batch.times[..., None], seen)[0, :, 0]
            .double()
            .numpy()
        )
    for one in (fast, plain):
        one.restart(sequence.start)
    for t, m, expected in zip(sequence.times.tolist(), sequence.marks.tolist(), own, strict=True):
        (logs, integral), (others, exact) = fast.score(t), plain.score(t)
        allowed = relative * (1 + np.abs(expected).max())
        assert np.allclose(logs, expected, rtol=0, atol=allowed) and np.allclose(
            logs, others, rtol=0, atol=allowed
        )
        assert integral == pytest.approx(exact, abs=(2e-6 if double else 6e-6) * (1 + exact))
        assert np.allclose(fast.logs(t + 0.5), plain.logs(t + 0.5), rtol=0, atol=2 * allowed)
        for one in (fast, plain):
            one.absorb(t, m)
    assert type(Stream(model)._stepper) is ByStates


def test_a_gap_is_integrated_to_its_tolerance_however_long_and_however_fast_the_rate_falls() -> (
    None
):
    model = lively().double()
    with torch.no_grad():
        model.modes.log_decay += 2.0
        model.modes.log_frequency += 1.5
    steps = Steps(model)
    state = steps.added(np.zeros(1), np.zeros(1, dtype=np.int64)) * 5
    for gap in 10.0 ** np.arange(-6, 1.0):
        found = steps.reach(state, np.full(1, 0.01), np.full(1, gap))
        pieces = np.unique(
            np.concatenate(
                [
                    np.geomspace(1e-5 * gap, gap, 2000),
                    np.linspace(0, gap, 2001),
                    np.arange(1, 13) / 12 - 0.01,
                ]
            )
        )
        pieces = pieces[(pieces >= 0) & (pieces <= gap)]
        x, w = np.polynomial.legendre.leggauss(5)
        middle, half = (pieces[1:] + pieces[:-1])[:, None] / 2, np.diff(pieces)[:, None] / 2
        at = (middle + half * x).ravel()
        rates = np.concatenate(
            [
                np.exp(steps.logs(steps.moved(np.repeat(state, len(t), 0), t), 0.01 + t)).sum(1)
                for t in np.array_split(at, 20)
            ]
        )
        exact = float((half * w * rates.reshape(-1, 5)).sum())
        assert float(found.integral[0]) == pytest.approx(exact, abs=1e-6 * (1 + exact))


def test_rows_stepped_together_equal_rows_stepped_alone() -> None:
    model = lively(3)
    rng = np.random.default_rng(0)
    for kind, relative in ((np.float64, 1e-12), (np.float32, 2e-5)):
        steps = Steps(model, kind)
        since, gap, mark = rng.uniform(0, 12, 40), rng.exponential(2.0, 40), rng.integers(0, 3, 40)
        state = steps.added(since, mark) * 3 + steps.added(since, (mark + 1) % 3)
        together, one = steps.reach(state, since, gap), Steps(model)
        for i in range(40):
            alone = one.reach(
                state[i : i + 1].astype(np.complex128), since[i : i + 1], gap[i : i + 1]
            )
            assert np.allclose(together.logs[i], alone.logs[0], rtol=0, atol=relative * 10)
            assert float(together.integral[i]) == pytest.approx(
                float(alone.integral[0]), rel=max(relative, 5e-6), abs=1e-6
            )


@pytest.mark.parametrize(
    "settings", [{}, {"decay": False}, {"values": "affine"}, {"link": "identity"}], ids=str
)
@pytest.mark.parametrize("keep", [1, 4, 30])
def test_active_sets_are_those_of_the_verbs(
    settings: dict[str, Any], keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fourpoint.streaming.kept.ANEW", 16)
    model = lively(3, **settings).double().keeping(keep)
    rng = np.random.default_rng(1)
    fast, plain = ByActiveSets(model), ByHistory(model)
    for t, m in zip(
        np.cumsum(rng.exponential(0.5, 26)).tolist(), rng.integers(0, 3, 26).tolist(), strict=True
    ):
        assert np.allclose(fast.logs(t), plain.logs(t), rtol=0, atol=1e-10)
        mine, theirs = (
            one.weights(t, m, np.zeros(0), np.zeros(0, dtype=np.int64), 999)
            for one in (fast, plain)
        )
        assert mine is not None and theirs is not None
        for k in range(4):
            a, b = (
                {
                    time: w
                    for time, w in zip(x[0][k].tolist(), x[2][k].tolist(), strict=True)
                    if time == time
                }
                for x in (mine, theirs)
            )
            assert a == pytest.approx(b, abs=1e-10)
        for one in (fast, plain):
            one.score(t)
            one.absorb(t, m)
    here, there = fast.history(), plain.history()
    later = torch.tensor([[[t + 1.0]]], dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(
            *(model.log_intensity(h, later, h.lengths[:, None]) for h in (here, there)), rtol=1e-10
        )


def test_the_score_table_is_as_exact_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (
        lively(3),
        lively(3, decay=False),
        lively(3, link="identity"),
        lively(2, normalise="ratio"),
    ):
        table, rng = score_table(model.double()), np.random.default_rng(1)
        lags = np.concatenate([np.zeros(1), 10.0 ** rng.uniform(-5, 3, 2000)])
        marks = rng.integers(0, model.marks.count, len(lags))
        with torch.no_grad():
            each = np.stack(
                [
                    model.kernel(torch.from_numpy(lags), 1, m).numpy()
                    for m in range(model.marks.count)
                ]
            )  # (M, K, N)
        exact = each[marks, :, np.arange(len(lags))].T
        assert np.abs(table.scores(lags, marks, 1) - exact).max() <= ERROR
        scored = table.scores(lags, marks, 1)
        named = [table.largest(lags, marks, 1, 5), largest(scored, 5)]
        best = np.sort(np.abs(exact), 1)[:, :-6:-1]
        for places, scores in named:
            assert np.abs(np.abs(scores) - best).max() <= ERROR
            assert np.allclose(np.take_along_axis(scored, places, 1), scores, rtol=0, atol=1e-12)
        monkeypatch.setattr("fourpoint.kernels.score_table.BYTES", 0)
        few = score_table(model)
        few.scores(lags[:2], np.zeros(2, dtype=np.int64), 1)
        assert (
            few.pairs == 1
            and np.abs(few.scores(lags, marks, 1) - exact).max() <= ERROR
            and few.pairs == 1
        )
        monkeypatch.undo()


def test_a_rate_that_explodes_or_jumps_is_refused_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = DAPP(heads=1, eval_features=8, link="exp", base="constant", drift="none").double()
    model.initialise(simulate("hawkes", 20))
    steps = Steps(model.eval())
    since, gap = np.array([0.1, 0.2, 0.3]), np.full(3, 0.1)
    state = steps.added(np.zeros(3), np.zeros(3, dtype=np.int64))
    state[1] *= 1e6
    with pytest.raises(
        Unconverged,
        match=r"expected a finite rate; received (inf|nan) between 0.2 and 0.3 after the start",
    ):
        steps.reach(state, since, gap)
    monkeypatch.setattr("fourpoint.models.dapp_step.TOLERANCE", -1.0)  # which nothing meets
    with pytest.raises(
        Unconverged,
        match=(
            r"expected a rate that can be integrated; received "
            r"one that jumps between 0.1 and 0.1"
        ),
    ):
        Steps(model).reach(state[:1], since[:1], gap[:1])


@pytest.mark.parametrize(("kind", "close"), [(np.float64, 1e-15), (np.float32, 5e-7)])
def test_sinusoids_are_exponentials(kind: Any, close: float) -> None:
    rng = np.random.default_rng(0)
    frequency, decay = (
        rng.normal(size=40) * 3,
        np.concatenate([np.zeros(10), 10.0 ** rng.uniform(-3, 6, 30)]),
    )
    sinusoids, found = dapp_loops.sinusoids(frequency, decay, kind), np.empty((2, 40), dtype=kind)
    for d in (0.0, 1e-9, 0.3, 1.7, 50.0):
        with np.errstate(all="ignore"):
            dapp_loops.turns(d, sinusoids, 0, found[0], found[1])
        assert np.allclose(
            found[0] + 1j * found[1],
            np.exp((-decay + 1j * frequency) * d),
            rtol=0,
            atol=close * (3 + 20 * d),
        )
    part = np.empty((2, 5), dtype=kind)
    dapp_loops.turns(50.0, sinusoids, 35, part[0], part[1])
    assert np.array_equal(part, found[:, 35:])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_integral_alone_is_that_of_a_step(kind: Any) -> None:
    model = lively(2)
    model = model if kind == np.float32 else model.double()
    steps, random = Steps(model, kind), np.random.default_rng(3)
    state = steps.blank(40)
    since = np.zeros(40)
    for _ in range(4):
        gap = random.exponential(size=40) * steps.scale
        ahead = steps.reach(state, since, gap, np.arange(40))
        since = since + gap
        steps.absorb(state, np.arange(40), ahead.state, since, random.integers(0, 2, 40))
    rows = random.permutation(40)[:25]
    gap = random.exponential(size=25) * 3 * steps.scale
    whole = steps.reach(state, since[rows], gap, rows)
    alone = steps.integral(state, since[rows], gap, rows)
    np.testing.assert_allclose(alone, whole.integral, rtol=1e-6 if kind == np.float32 else 1e-12)


def test_float32_turns_are_those_of_float64() -> None:
    """Sinusoids formed from 32 bits and fewer terms agree with those of 64 bits to a few float32
    roundings of the lag.
    """
    random = np.random.default_rng(5)
    frequency, decay = random.normal(size=200) * 5, random.exponential(size=200)
    found = np.empty((2, 200), dtype=np.float32)
    for lag in (0.0, 1e-3, 0.37, 2.9, 40.0):
        dapp_loops.turns(
            lag, dapp_loops.sinusoids(frequency, decay, np.float32), 0, found[0], found[1]
        )
        exact = np.exp((-decay + 1j * frequency) * lag)
        bound = (
            np.abs(exact) * np.finfo(np.float32).eps * (4 + 2 * lag * (np.abs(frequency) + decay))
            + 1e-36
        )
        assert (np.abs(found[0] + 1j * found[1] - exact) <= bound).all()


@pytest.mark.parametrize(
    "settings",
    [{}, {"decay": False}, {"link": "exp"}, {"link": "identity"}, {"base": "constant"}],
    ids=str,
)
def test_series_in_float32_give_the_integrals_of_float64(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps within one piece of the series, over several pieces and beyond the last are integrated
    to the stated tolerance; read-outs by Chebyshev series are those of the states."""
    model, random = lively(2, **settings), np.random.default_rng(8)
    quick = Steps(model, np.float32)
    ends = quick._loop_numbers[3].ends
    assert len(ends) > 2
    monkeypatch.setattr("fourpoint.models.dapp_step.TOLERANCE", 1e-11)
    exact = Steps(model.double())
    marks = random.integers(0, 2, 60)
    since = random.uniform(0, 14, 60)
    state = quick.added(since, marks) * 2 + quick.added(since, 1 - marks)
    upto = random.choice([ends[1] / 9, ends[1], ends[2], ends[-1], 2 * ends[-1]], 60)
    gap = random.uniform(0, 1, 60) * upto * quick.scale
    found = quick.integral(state, since, gap, np.arange(60))
    expected = exact.reach(state.astype(np.complex128), since, gap).integral
    assert (np.abs(found - expected) <= 2.5e-7 + quick.loose * expected).all()
    stepped = Steps(model.float(), np.float32).reach(state, since, gap).integral
    assert np.allclose(found, stepped, rtol=1e-5, atol=1e-6)


def test_kept_coefficients_change_no_bit() -> None:
    """An integral is the same whether the entity was looked at before or not."""
    steps, random = Steps(lively(2), np.float32), np.random.default_rng(9)
    rows = np.arange(30)
    since = random.uniform(0, 5, 30)
    state = steps.added(since, np.zeros(30, dtype=np.int64)) * 2
    gaps = [random.exponential(size=30) * size * steps.scale for size in (0.2, 1.0, 8.0, 0.5)]
    kept = steps.kept(30)
    for gap in gaps:
        looked = steps.integral(state, since, gap, rows, kept)
        assert np.array_equal(looked, steps.integral(state, since, gap, rows))
    assert (kept.ready > 0).all()


@pytest.mark.parametrize("marks", [1, 2])
def test_series_formed_after_an_event_are_those_formed_before_the_next(marks: int) -> None:
    """A table forms the series of an entity as soon as its event is absorbed; one that comes from
    a file forms it when it is needed. Both give the same scores, to the last bit.
    """
    steps, random = Steps(lively(marks), np.float32), np.random.default_rng(7)
    entities, events = 6, 90
    rows = random.integers(0, entities, events)
    sizes = np.array([0.2, 1.0, 6.0])[random.integers(0, 3, events)]
    times = np.cumsum(random.exponential(size=events) * sizes) * steps.scale / entities
    kinds = random.integers(0, marks, events)
    found = []
    for at_once in (events, 1):
        state, kept = steps.blank(entities), steps.kept(entities)
        numbers = Numbers(*np.zeros((3, entities)), np.zeros(entities, dtype=np.int64))
        scored = []
        for first in range(0, events, at_once):
            some = slice(first, first + at_once)
            into = Scored.empty(at_once)
            given = Events(times[some], kinds[some])
            assert steps.follow(state, rows[some], numbers, 0.0, given, into, kept) is None
            assert (kept.ready[rows[some]] == 1).all()
            if at_once == 1:
                kept.ready[:] = 0  # as after a restart
            scored.append(np.stack([into.density, into.gap, into.rate]))
        found.append((np.concatenate(scored, 1), state))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])


def test_a_short_gap_of_the_default_model_takes_one_product_with_few_rows() -> None:
    """Panels of nine nodes take 8 complex products of each mode with a number and a read-out, 6
    multiplications each: the first piece, as long as two of them, takes a third of that."""
    model = DAPP()
    model.initialise(simulate("hawkes", 50))
    steps = Steps(model.eval(), np.float32)
    series = steps._loop_numbers[3]
    size = len(steps.frequency) // steps.heads
    multiplications = 2 * size * int(series.terms[0].sum())
    panels = float(np.ceil(series.ends[1] * steps.scale * steps.speed))
    by_panels = 8 * 6 * len(steps.frequency) * panels
    assert multiplications <= by_panels / 3
