"""Every kernel of the table against its plain counterpart, in values and gradients, within the
tolerance that the table states; and what happens without a compiler.

Triton kernels need a CUDA device, or TRITON_INTERPRET=1 set before the start.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fourpoint import kernels
from fourpoint.data.synthetic import simulate
from fourpoint.events import Batch, Context, Dataset, Sequence, Steps
from fourpoint.inference.likelihood import log_likelihoods, sampled_log_likelihood
from fourpoint.kernels import conditions, numba_decoding, numba_hawkes_effects
from fourpoint.kernels.path_terms import Wanted
from fourpoint.models.dapp import DAPP
from fourpoint.models.deep_dapp import DeepDAPP
from fourpoint.models.effects import effects_of
from fourpoint.models.following import Events, Numbers, Scored
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.hawkes_step import HawkesSteps
from fourpoint.models.path_counts import dapp_tables, excitation_tables, factors_of
from fourpoint.models.time_pieces import baseline_cubics, pieces_of
from fourpoint.ops import attention, excitation, recurrence, smoothing, triggering
from fourpoint.ops.ages import timeline
from fourpoint.ops.fourier import Spectrum
from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.monitor_table import MonitorTable
from fourpoint.streaming.steppers import (
    ByExcitation,
    ByHistory,
    ByStates,
    follow_by_steps,
    score_table,
)
from fourpoint.streaming.stream import Stream

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Found(NamedTuple):
    """What a kernel or a plain function gives."""

    values: list[Any]
    gradients: list[Any]


class Compared(NamedTuple):
    """One case of a kernel beside its plain counterpart in float64."""

    kernel: Found
    plain: Found


def sequences(marks: int) -> Dataset:
    """Of different lengths, with ties and an empty one."""
    rng, found = np.random.default_rng(3), []
    for i, n in enumerate((5, 0, 18, 1, 16, 2, 9, 3, 7, 4)):
        times = np.sort(rng.uniform(i, 8 + i, n))
        if n > 4:
            times[3:5] = times[2]
        kinds = rng.integers(0, marks, n)
        found.append(Sequence(times, kinds, start=float(i) - 0.5, stop=9.0 + i, space=marks))
    return Dataset.from_sequences(found)


def dapp_loss(monkeypatch: pytest.MonkeyPatch) -> Compared:
    """With effects of calendar and covariates, recording gaps and history periods."""
    monkeypatch.setattr(conditions, "DAPP_WORK", 0)
    plain = sequences(2)
    steps = Steps.join(
        [Steps(("x",), np.array([0.0, 5.0]), np.eye(2)[:, :1], np.array([0, 2]))] * 10
    )
    late = Steps(
        ("e",), np.array([0.0, 30.0, 40.0]), np.array([[2.0], [0.0], [1]]), np.array([0, 3])
    )
    known = Context(
        origin=np.full(10, 1736125200.0),
        scored_from=plain.starts + 1.5,
        covariates=steps,
        exposure=Steps.join([late] * 10),
    )
    data = replace(plain, context=known, unit="hours")
    model = DAPP(2, heads=2, features=5, generator=(6,))
    model.add_effects(effects_of(data, ("hour", "weekday")))
    model.initialise(data)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=random)
    twins = [deepcopy(model).train(), deepcopy(model).double().train()]
    for twin in twins:
        twin.redraw(torch.Generator().manual_seed(2))
    fast, exact = twins
    given = fast.gradients(data.batch(), 4, torch.Generator().manual_seed(0), "window", 1.0)
    assert given is not None
    by_parameter = {id(parameter): gradient for parameter, gradient in given[1]}
    learned = [p for p in fast.parameters() if p.requires_grad]
    random = torch.Generator().manual_seed(0)
    total = sampled_log_likelihood(exact, data.batch(), 4, random).sum()
    wanted = torch.autograd.grad(total, [p for p in exact.parameters() if p.requires_grad])
    return Compared(
        Found([given[0]], [by_parameter[id(p)] for p in learned]),
        Found([total.detach()], list(wanted)),
    )


def dapp_score(monkeypatch: pytest.MonkeyPatch) -> Compared:
    data = sequences(2)
    values: list[list[Any]] = [[], []]
    for settings in (
        dict(link="softplus", base="spline", drift="spline", values="affine"),
        dict(link="exp", base="constant", drift="spline", decay=False),
        dict(link="identity", base="spline"),
    ):
        model = DAPP(2, heads=2, features=5, eval_features=9, generator=(6,), **settings)
        model.initialise(data)
        for work, found in zip((0, 2**40), values, strict=True):
            monkeypatch.setattr(conditions, "SCORE_WORK", work)
            exact = deepcopy(model).double().eval()
            likelihoods = log_likelihoods(exact, data.batch(), tolerance=1e-11)
            found += [x for one in likelihoods.values() for x in (one.value, one.integral)]
    return Compared(*(Found(found, []) for found in values))


def sums_over_events(monkeypatch: pytest.MonkeyPatch) -> Compared:
    rng = np.random.default_rng(1)
    counts = np.array([40, 0, 25])
    times = np.concatenate([np.sort(rng.uniform(0, 10, n)) for n in counts])
    marks = rng.integers(0, 2, len(times))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    line = timeline(times, marks, offsets, np.zeros(3), np.full(3, 11.0), 2)
    theta, u = rng.uniform(0.1, 0.6, (2, 5)), np.array([-1.0, 0.7])
    monkeypatch.setattr(conditions, "EXCITATION_WORK", 0)
    kernel = excitation.derivatives(line, theta, u)
    plain = excitation.derivatives(line, theta, u, compiled=False)
    return Compared(
        Found([kernel.values], [kernel.gradient, kernel.curvature]),
        Found([plain.values], [plain.gradient, plain.curvature]),
    )


def hawkes_effects(monkeypatch: pytest.MonkeyPatch) -> Compared:
    rng = np.random.default_rng(1)
    n = 60
    marks = rng.integers(-1, 2, n)
    points = numba_hawkes_effects.Points(
        np.array([0, 25, n]),
        np.concatenate([np.sort(rng.uniform(0, 9, 25)), np.sort(rng.uniform(0, 9, n - 25))]),
        marks,
        rng.choice([0.0, 1.0, 2.5], n),
        (marks >= 0) & (rng.random(n) < 0.8),
        rng.integers(0, 5, (n, 3)),
        rng.random((n, 3)),
        rng.normal(size=(n, 2)),
    )
    theta, alpha = rng.normal(size=(5, 2)), rng.uniform(0.1, 0.4, (2, 2, 2))
    size = theta.size + alpha.size + 4
    found = []
    for sweep in (numba_hawkes_effects.load(), numba_hawkes_effects.sweep):
        gradient, information = np.zeros(size), np.zeros((size, size))
        gamma = np.array([0.3, -0.2])
        value = sweep(points, theta, alpha, np.array([0.5, 3.0]), gamma, gradient, information)
        found.append(Found([value], [gradient, information]))
    return Compared(*found)


def decoding(monkeypatch: pytest.MonkeyPatch) -> Compared:
    rng = np.random.default_rng(4)
    counts = rng.poisson(4, 24)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    times = np.concatenate([np.sort(rng.uniform(0, 10, n)) for n in counts])
    given = (times, rng.integers(0, 3, len(times)), offsets, 12, 3)
    other = (np.array([1.0, 2.0, 5.0]), np.array([0, 2, 2]), np.array([0, 2, 3]))
    found = []
    for loops in (numba_decoding.load(), numba_decoding):
        events, kinds = np.zeros((2, 3)), np.zeros((2, 3), dtype=np.int64)
        numbers, gains = np.zeros(2, dtype=np.int64), np.zeros(2)
        loops.transport(0, 1, *given, 3, 1.5, 0.4, 5, events, kinds, numbers, gains)
        confidence = np.zeros((2, 3, 6))
        loops.coverage(0, 1, *given, np.arange(6) * 1.7, 0.9, 6, 0.0, confidence)
        values = np.zeros(2)
        loops.values(numba_decoding.TRANSPORT, 1.5, *other, *given[:2], offsets[:3], 3, values)
        found.append(Found([events, kinds, numbers, gains, confidence, values], []))
    return Compared(*found)


def dapp_stream(monkeypatch: pytest.MonkeyPatch) -> Compared:
    model = DAPP(2, heads=2, eval_features=12).double()
    model.initialise(sequences(2))
    with torch.no_grad():
        model.readout += 0.5
    rng = np.random.default_rng(2)
    times, marks = np.cumsum(rng.exponential(size=30)), rng.integers(0, 2, 30)
    found = []
    for stepper in (ByStates(model.eval()), ByHistory(model)):
        numbers = Numbers(*np.zeros((3, 1)), np.zeros(1, dtype=np.int64))
        into = Scored.empty(30, 2)
        stop = stepper.follow(numbers, Events(times, marks), into)
        assert stop is None
        found.append(Found([*into, *numbers, stepper.logs(times[-1] + 0.4)], []))
    return Compared(*found)


def scores_by_lag(monkeypatch: pytest.MonkeyPatch) -> Compared:
    model = DAPP(3, heads=2, eval_features=12).double()
    model.initialise(sequences(3))
    model.eval()
    rng = np.random.default_rng(6)
    lags, marks = rng.exponential(5.0, 40), rng.integers(0, 3, 40)
    _, found = score_table(model).largest(lags, marks, 1, 4)
    with torch.no_grad():
        by_mark = [model.kernel(torch.from_numpy(lags), 1, m).numpy() for m in range(3)]
    exact = np.stack(by_mark)[marks, :, np.arange(40)].T
    order = np.argsort(-np.abs(exact), 1)[:, :4]
    return Compared(Found([found], []), Found([np.take_along_axis(exact, order, 1)], []))


def hawkes_stream(monkeypatch: pytest.MonkeyPatch) -> Compared:
    data = simulate("hawkes", 3)
    model = Hawkes(data.marks)
    model.initialise(data)
    times = np.cumsum(np.random.default_rng(0).exponential(size=60))
    events = Events(times, np.zeros(60, dtype=np.int64))
    found = []
    for follow in (ByExcitation(model).follow, None):
        numbers = Numbers(*np.zeros((3, 1)), np.zeros(1, dtype=np.int64))
        into = Scored.empty(60, 1)
        if follow is None:
            follow_by_steps(ByExcitation(model), numbers, events, into)
        else:
            assert HawkesSteps(model).compiled
            follow(numbers, events, into)
        found.append(Found([*into, *numbers], []))
    return Compared(*found)


def dapp_paths(monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Rates after a history and events of a path; `test_forecasts` compares the law of counts."""
    data = sequences(2)
    model = DAPP(2, heads=2, eval_features=12, base="spline", drift="spline")
    model.initialise(data)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=random)
    model = model.double().eval()
    batch = data.batch()
    start = batch.stop.numpy()
    wanted = Wanted(np.stack([start, start + 4.0], 1), np.zeros(len(start), np.uint64), 1, 10)
    loops = kernels.DAPP_PATHS.load()
    tables = dapp_tables(loops, model.path_modes(), model.rate, None, batch, wanted)
    times, marks, at = np.array([0.3, 0.9]), np.array([1, 0]), np.linspace(0.9, 4.0, 50)
    found, plain = [], []
    for row, sequence in enumerate(data):
        rates = np.empty((len(at), 2))
        loops.rates(row, times, marks, at, start[row], *tables, rates)
        found.append(rates)
        past = Sequence(
            [*sequence.times, *(start[row] + times)],
            [*sequence.marks, *marks],
            start=sequence.start,
            stop=start[row] + 5.0,
            space=2,
        )
        with torch.no_grad():
            history = model.encode(past.batch())
            rates = model.intensity(history, torch.from_numpy(start[row] + at + 1e-12)[None])[0]
        plain.append(rates.numpy())
    return Compared(Found(found, []), Found(plain, []))


def hawkes_paths(monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Rates after a history; `test_forecasts` compares the law of counts."""
    data = sequences(2)
    model = Hawkes(2, baseline=[0.3, 0.5], branching=0.6, decay=2.0, exponentials=2)
    batch = data.batch()
    start, at = batch.stop.numpy(), np.linspace(0.0, 4.0, 50)
    loops = kernels.HAWKES_PATHS.load()
    jump, decay = excitation_tables(
        model.log_branching.exp().reshape(2, 2, 2), model.log_decay.exp()
    )
    past = np.empty((len(data), *jump.shape[1:]))
    offsets = np.asarray(data.offsets)
    factors = factors_of(batch, 2, None)
    loops.history(0, 1, data.times, data.mark_ids, offsets, start, jump, decay, factors, past)
    pieces = pieces_of(
        [baseline_cubics(model.baseline)], np.zeros(len(data), np.int64), batch.start.numpy()
    )
    found, plain = [], []
    with torch.no_grad():
        history = model.encode(batch)
        times = torch.from_numpy(start[:, None] + at)[:, None]
        exact = model.log_intensity(history, times, batch.lengths[:, None])[:, 0].exp().numpy()
    for row in range(len(data)):
        rates = np.empty((len(at), 2))
        loops.rates(row, at, start[row], past, decay, pieces, rates)
        found.append(rates)
        plain.append(exact[row])
    return Compared(Found(found, []), Found(plain, []))


def monitor(monkeypatch: pytest.MonkeyPatch) -> Compared:
    rng = np.random.default_rng(7)
    rows = rng.permutation(np.repeat(np.arange(4), 300))
    gaps = rng.exponential(size=len(rows))
    gaps[rows == 1] *= 0.4  # bursts
    gaps[rows == 2] *= 2.5  # silences
    times, found = np.arange(len(rows)) * 1.0, []
    for plain in (False, True):
        table = MonitorTable(0.01, 1.0)
        table.grow(4)
        observe = table.observe_one_by_one if plain else table.observe
        alarms = observe(rows, gaps, times)
        states = [np.asarray(number, float) for row in range(4) for number in state(table, row)]
        sizes = [alarm.statistic for raised in alarms.values() for alarm in raised]
        found.append(Found([np.array(sorted(alarms)), np.array(sizes), *states], []))
        assert alarms
    return Compared(*found)


def state(table: MonitorTable, row: int) -> tuple[Any, ...]:
    found = table[row]
    assert found is not None
    return (*found.numbers(), found.window)


def attended(monkeypatch: pytest.MonkeyPatch) -> Compared:
    random = torch.Generator().manual_seed(4)
    B, N, K, D, M, Q = 3, 6, 2, 4, 3, 4
    shapes = ((K, D), (K, D), (K, D, M), (K, D), (B, N, K))
    given = [torch.rand(shape, generator=random) for shape in shapes]
    gaps = torch.rand(B, N, generator=random)
    lags = 3 * torch.rand(B, N + 1, Q, generator=random)
    gaps[0, 0], lags[1, -1] = 200.0, 300.0  # faded to nothing
    marks = torch.randint(M, (B, N), generator=random)
    outside = torch.randn(B, N + 1, Q, K, M, generator=random)
    kernel = kernels.ATTENTION.load()

    def plain(*inputs: Any) -> Any:
        frequency, decay, shift, weight, values = inputs
        spectrum = Spectrum(frequency, decay, shift, weight, None)
        every = torch.ones_like(marks, dtype=torch.bool)
        driven = attention.drive(spectrum, marks, values[..., None], every)
        states = attention.scan(spectrum.rate, gaps.double(), driven)
        states = torch.cat([torch.zeros_like(driven[:, :1]), states], 1)
        return attention.read(spectrum, states, lags.double())[..., 0]

    def fast(*inputs: Any) -> Any:
        *modes, values = inputs
        there = [x.to(DEVICE) for x in (lags, gaps)]
        return kernel(*modes, *there, values, marks.to(DEVICE))

    return differentiated(fast, plain, given, outside)


def differentiated(
    fast: Callable[..., Any], plain: Callable[..., Any], given: list[Any], outside: Any
) -> Compared:
    """Both with gradients in ``given``: float32 on the device, and float64 on the CPU; complex
    numbers likewise.
    """
    found = []
    for function, device, double in ((fast, DEVICE, False), (plain, "cpu", True)):
        inputs = [in_precision(x, double).to(device).requires_grad_() for x in given]
        value = function(*inputs)
        gradients = torch.autograd.grad(value, inputs, in_precision(outside, double).to(device))
        found.append(Found([value.detach().cpu()], [g.cpu() for g in gradients]))
    return Compared(*found)


def in_precision(x: torch.Tensor, double: bool) -> torch.Tensor:
    """A new tensor in single or double precision."""
    kind = torch.complex128 if x.is_complex() else torch.float64
    return x.clone().to(kind) if double else x.clone()


def recursion(monkeypatch: pytest.MonkeyPatch) -> Compared:
    random = torch.Generator().manual_seed(5)
    shape = (2, 40, 7)
    factor = torch.polar(
        torch.rand(shape, generator=random), 6 * torch.rand(shape, generator=random)
    )
    driven = torch.randn(shape, generator=random, dtype=torch.complex64)
    outside = torch.randn(shape, generator=random, dtype=torch.complex64)
    if DEVICE == "cpu":  # the interpreter has no CUDA tensors for the choice to see
        kernel = kernels.RECURRENCE.load()
        monkeypatch.setattr(kernels.conditions, "_elsewhere", lambda tensor, device: None)
        assert kernels.RECURRENCE.choose(factor, driven) is kernel

    def plain(factor: Any, driven: Any) -> Any:
        states = [driven[:, 0]]
        for i in range(1, driven.shape[1]):
            states.append(factor[:, i] * states[-1] + driven[:, i])
        return torch.stack(states, 1)

    compared = differentiated(recurrence.recur, plain, [factor, driven], outside)
    exact = recurrence.running(factor.to(torch.complex128), driven.to(torch.complex128))
    assert torch.allclose(exact, compared.plain.values[0])
    return compared


def deep_dapp_rate(monkeypatch: pytest.MonkeyPatch) -> Compared:
    monkeypatch.setattr(conditions, "RATE_WORK", 0)
    data = sequences(3)
    values: list[list[Any]] = [[], []]
    for settings in (dict(width=10, modes=5), dict(width=16, modes=8, layers=1, sinusoids=0)):
        model = DeepDAPP(3, **settings)
        model.initialise(data)
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.2 * torch.randn(parameter.shape, generator=random)
        for one, found in zip((model, deepcopy(model).double()), values, strict=True):
            batch = data.batch()
            left, width = batch.edges[:, :-1, None], batch.edges.diff(dim=1)[..., None]
            shares = torch.tensor([0.0, 1e-6, 0.2, 0.5, 1.0, 1e6], dtype=torch.float64)
            with torch.no_grad():
                history = one.eval().encode(batch)
                found.append(one.log_total(history, left + (0.1 + width) * shares))
                seen = batch.lengths[:, None]
                last = batch.edges.gather(1, seen)[..., None]
                found.append(one.log_total(history, last + shares, seen))
    return Compared(Found(values[0], []), Found(values[1], []))


def deep_dapp_loss(monkeypatch: pytest.MonkeyPatch) -> Compared:
    deep = import_module("test_deep_cuda")
    monkeypatch.setattr(deep.deep_rows_cuda, "PRECISION", "ieee")
    model, batch = deep._model(3).train(), deep._batch([5, 0, 3, 1], 3)
    drawn = deep.draw(model, batch, 3, torch.Generator(DEVICE).manual_seed(1))
    exact = deepcopy(model).double()
    found = []
    for one, function in ((model, deep.log_likelihoods), (exact, deep._plain)):
        values = function(one, batch, drawn, gaps=False)
        learned = [p for p in one.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(values.sum(), learned, allow_unused=True)
        kept = [g.cpu() for g in gradients if g is not None]
        found.append(Found([values.detach().cpu()], kept))
    return Compared(*found)


def pairs(seed: int, events: int) -> tuple[triggering.Sources, triggering.Queries]:
    """Clustered events with places and two features, asked for at themselves; some are tied."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.exponential(20.0, events).cumsum() % 300)
    times[5:8] = times[5]
    centre = rng.uniform(0, 50, (12, 2))
    places = centre[rng.integers(0, 12, events)] + rng.standard_t(3, (events, 2))
    delta = rng.exponential(0.4, events)
    features = np.column_stack([delta, rng.normal(size=events)])
    when, where, size, known = (torch.from_numpy(x) for x in (times, places, delta, features))
    sources = triggering.Sources(when, where, size, known)
    return sources, triggering.Queries(when, where, torch.arange(events))


THETA = torch.tensor([0.02, 1.1, 0.01, -1.0, 0.9, 1.6, 1.3, -0.2], dtype=torch.float64)


def by_theta(sums: Callable[[torch.Tensor], torch.Tensor]) -> Found:
    """Sums at THETA, and the gradient of a weighted total of their logarithms."""
    theta = THETA.clone().requires_grad_()
    found = sums(theta)
    weights = torch.linspace(0.5, 1.5, len(found), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weights * (found + 1e-3).log()).sum(), theta)
    return Found([found.detach()], [gradient])


def trigger_pairs(monkeypatch: pytest.MonkeyPatch) -> Compared:
    monkeypatch.setattr(conditions, "TRIGGER_WORK", 0)
    sources, queries = pairs(0, 300)
    return Compared(
        by_theta(lambda theta: triggering.trigger_sums(sources, queries, theta)),
        by_theta(lambda theta: triggering.plain_trigger_sums(sources, queries, theta)),
    )


def trigger_groups(monkeypatch: pytest.MonkeyPatch) -> Compared:
    sources, queries = pairs(1, 1500)
    floor = torch.full((1500,), 1e-3, dtype=torch.float64)
    plan = triggering.Planned(sources, queries, THETA, floor)
    assert plan.entries < 600  # of 750 events before on average
    return Compared(
        by_theta(plan),
        by_theta(lambda theta: triggering.plain_trigger_sums(sources, queries, theta)),
    )


def smoothing_cells(monkeypatch: pytest.MonkeyPatch) -> Compared:
    monkeypatch.setattr(conditions, "TRIGGER_WORK", 0)
    sources, _ = pairs(2, 400)
    assert sources.places is not None
    given = (sources.places[:50], sources.places, 0.01 + sources.delta, sources.delta)
    plain = smoothing.plain_smoothed(*given)
    return Compared(Found([smoothing.smoothed(*given)], []), Found([plain], []))


CASES: dict[str, Callable[[pytest.MonkeyPatch], Compared]] = {
    "dapp_loss": dapp_loss,
    "dapp_score": dapp_score,
    "dapp_stream": dapp_stream,
    "dapp_paths": dapp_paths,
    "hawkes_paths": hawkes_paths,
    "score_table": scores_by_lag,
    "excitation": sums_over_events,
    "hawkes_stream": hawkes_stream,
    "hawkes_effects": hawkes_effects,
    "monitor": monitor,
    "decoding": decoding,
    "triggering": trigger_pairs,
    "trigger_tree": trigger_groups,
    "smoothing": smoothing_cells,
    "attention": attended,
    "recurrence": recursion,
    "deep_dapp_rate": deep_dapp_rate,
    "deep_dapp_loss": deep_dapp_loss,
}


def same_signature(kernel: kernels.Kernel[Any]) -> Compared:
    """A kernel without gradients that takes the arguments of its plain counterpart: both with each
    of the ``examples`` in its module.
    """
    examples = import_module(f"fourpoint.kernels.{kernel.module}").examples()
    assert examples and kernel.gradients is None
    fast, plain = kernel.load(), plain_counterpart(kernel)
    return Compared(
        Found([fast(*given) for given in examples], []),
        Found([plain(*given) for given in examples], []),
    )


def plain_counterpart(kernel: kernels.Kernel[Any]) -> Callable[..., Any]:
    """The function that the table names."""
    package, _, rest = kernel.plain.removeprefix("fourpoint.").partition(".")
    module_name, _, attribute = rest.partition(".")
    found: Any = import_module(f"fourpoint.{package}.{module_name}")
    for part in attribute.split("."):
        found = getattr(found, part)
    assert callable(found)
    return found


@pytest.mark.parametrize("name", kernels.TABLE)
@pytest.mark.filterwarnings("ignore:invalid value encountered in add")
def test_a_kernel_agrees_with_its_plain_counterpart(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernels.TABLE[name]
    if not kernels.installed(kernel.compiler):
        pytest.skip(f"{kernel.compiler} is not installed")
    without_device = DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"
    if kernel.compiler == "triton" and without_device:
        pytest.skip("no CUDA device, and TRITON_INTERPRET=1 was not set before the start")
    found, plain = CASES[name](monkeypatch) if name in CASES else same_signature(kernel)
    assert apart(found.values, plain.values) <= kernel.values
    if kernel.gradients is None:
        assert not found.gradients
    else:
        assert found.gradients
        assert apart(found.gradients, plain.gradients) <= kernel.gradients


def apart(found: list[Any], plain: list[Any]) -> float:
    """The largest difference, relative to the largest number of each array."""
    worst = 0.0
    for one, other in zip(found, plain, strict=True):
        a, b = np.asarray(one), np.asarray(other)
        assert a.shape == b.shape and np.isfinite(b).all()
        if b.size:
            worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
    return worst


@pytest.mark.parametrize("name", kernels.TABLE)
def test_the_table_is_complete(name: str) -> None:
    kernel = kernels.TABLE[name]
    assert plain_counterpart(kernel)
    script = kernel.benchmark.partition(",")[0]
    assert script.startswith("benchmarks/") and script.endswith(".py")
    # Numbers of a row are formatted by the script, its words stand in the source.
    part = kernel.benchmark.partition(", ")[2].partition(":")[0].lstrip("0123456789, ")
    source = Path(__file__).parent.parent / script
    assert part.split(",")[0] in source.read_text(), "the benchmark has no such row"
    assert kernel.factor >= 1.5, "a kernel that gains less than half is not worth its code"


def test_without_a_compiler_the_plain_function_runs_and_the_program_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "installed", lambda compiler: False)
    monkeypatch.setattr(conditions, "DAPP_WORK", 0)
    kernels.report_missing.cache_clear()
    model, batch = DAPP(1).train(), sequences(1).batch()
    try:
        with pytest.warns(kernels.MissingCompiler, match="pip install numba"):
            assert gradients_of(model, batch) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert gradients_of(model, batch) is None
    finally:
        kernels.report_missing.cache_clear()


def test_streams_and_banks_without_a_compiler_use_the_plain_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = DAPP(1, heads=2, eval_features=8).double().eval()
    times = np.cumsum(np.random.default_rng(0).exponential(size=12))
    by_kernel = Stream(model).observe_many(times)
    monkeypatch.setattr(kernels, "installed", lambda compiler: False)
    kernels.report_missing.cache_clear()
    try:
        with pytest.warns(kernels.MissingCompiler, match="pip install numba"):
            stream = Stream(model)
        plain = stream.observe_many(times)
        assert isinstance(stream.observe(times[-1] + 1.0).gap, float)
        found = StreamBank(model).observe(["a"] * 12, times)
    finally:
        kernels.report_missing.cache_clear()
    np.testing.assert_allclose(plain.gap, by_kernel.gap, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.gap, by_kernel.gap, rtol=1e-5, atol=1e-6)


def gradients_of(model: DAPP, batch: Batch) -> Any:
    return model.gradients(batch, 2, torch.Generator().manual_seed(0), "window", 1.0)


def test_a_reason_is_given_if_a_kernel_does_not_apply() -> None:
    weight, times = torch.zeros(3), torch.zeros(2, 5, dtype=torch.float64)
    settings: dict[str, Any] = dict(
        modes=8, nodes=2, marks=1, training=True, scanned=True, normalise="none", values="mark"
    )
    reasons = [
        kernels.DAPP_LOSS.supports(weight, times, **settings | change)
        for change in (
            dict(training=False),
            dict(scanned=False),
            dict(normalise="softmax"),
            dict(values="affine"),
            dict(marks=99),
            {},
        )
    ]
    reasons.append(kernels.DAPP_LOSS.supports(weight.double(), times, **settings))
    reasons.append(kernels.RECURRENCE.supports(weight, weight))
    scoring: dict[str, Any] = dict(scanned=True, normalise="none", modes=2**20)
    assert kernels.DAPP_SCORE.supports(weight, times, **scoring) is None
    for change in (dict(scanned=False), dict(normalise="ratio"), dict(modes=8)):
        assert kernels.DAPP_SCORE.supports(weight, times, **scoring | change)
    asked, rating = torch.zeros(2, 50, 50), dict(differentiated=False, training=False)
    assert kernels.DEEP_DAPP_RATE.supports(weight, asked, **rating) is None
    for change in (dict(differentiated=True), dict(training=True)):
        assert kernels.DEEP_DAPP_RATE.supports(weight, asked, **rating | change)
    assert kernels.DEEP_DAPP_RATE.supports(weight.double(), asked, **rating)
    assert kernels.DEEP_DAPP_RATE.supports(weight, asked[:1, :2, :2], **rating)
    there = torch.zeros(2, 5, dtype=torch.float64, device="meta")
    assert kernels.DAPP_SCORE.supports(weight, there, **scoring) == "tensors on meta, not cpu"
    assert all(reasons) and len(set(reasons)) == len(reasons)
    assert kernels.DAPP_LOSS.supports(weight, times, **settings | dict(modes=2**20)) is None
    assert kernels.EXCITATION.supports(1) is not None
    assert kernels.EXCITATION.supports(2**20) is None
