"""THP: its formula, its start, closed forms it contains, no leak, a bound that dominates, and
samples that follow it.
"""

from __future__ import annotations

import math

import torch
from test_attentive import hawkes, lively
from test_laws import data

from fourpoint.events import Batch, Sequence
from fourpoint.inference.likelihood import log_likelihood
from fourpoint.inference.sampling import last_rates, remember
from fourpoint.models.poisson import Poisson
from fourpoint.models.thp import THP
from fourpoint.training.fitting import fit

FALSE_ALARM = 1e-3  # of each test of a p-value; seeds are fixed, so that a pass stays a pass


def test_the_rate_is_the_formula() -> None:
    model, batch = lively(THP), data(3).batch()
    history = model.encode(batch)
    times = torch.full((4, 1), 20.0, dtype=torch.float64)
    for b in range(4):
        h = history.states[b, history.lengths[b]]
        z = (
            model.time_weight * (20.0 - history.last()[b]) / model.time_scale
            + model.readout @ h
            + model.base
        )
        s = model.link.log_scale.exp()
        expected = model.log_rate.exp() * s * torch.log1p(torch.exp(z / s))
        assert torch.allclose(model.intensity(history, times)[b, 0], expected, rtol=1e-10)


def test_a_straight_line_has_the_integral_of_its_closed_form() -> None:
    """With a tiny scale the link is the identity where z > 0: lambda = r (b + alpha lag) after
    every event.
    """
    model, events = THP(1, hidden=8, heads=2).double().eval(), data(1)
    model.initialise(events)
    with torch.no_grad():
        model.link.log_scale.fill_(math.log(1e-3))
        model.base.fill_(1.5)
        model.time_weight.fill_(0.25)
    batch = events.batch()
    r, gaps = float(model.log_rate.exp()), batch.edges.diff(dim=1) / model.time_scale
    exact = (r * model.time_scale * (1.5 * gaps + 0.25 * gaps**2 / 2)).sum(1)
    assert torch.allclose(log_likelihood(model, batch, tolerance=1e-7).integral, exact, rtol=1e-6)


def test_the_integral_is_over_all_types_whichever_happened() -> None:
    """Renaming the types of the events leaves the integral as it is where the state does not depend
    on them.
    """
    model, batch = lively(THP), data(3).batch()
    with torch.no_grad():
        model.tokens.fill_(0.2)
    renamed = Batch(batch.times, (batch.marks + 1) % 3, batch.valid, batch.start, batch.stop)
    plain, other = (log_likelihood(model, b, tolerance=1e-7) for b in (batch, renamed))
    assert torch.allclose(plain.integral, other.integral, rtol=1e-9)
    grid = torch.linspace(0, 1, 20001, dtype=torch.float64)
    times = batch.start[:, None] + (batch.stop - batch.start)[:, None] * grid
    rates = model.intensity(model.encode(batch), times).sum(
        -1
    )  # the sum over all types, by trapezoids over the whole window
    rough = torch.trapezoid(rates, times, dim=1)
    assert torch.allclose(plain.integral, rough, rtol=1e-3)


def test_a_late_event_keeps_the_digits_of_its_time() -> None:
    """A million mean gaps after the start the tokens of float32 still agree with those of
    float64.
    """
    marks, since = (
        torch.zeros(1, 2, dtype=torch.int64),
        torch.tensor([[1.0e6, 1.0e6 + 0.3]], dtype=torch.float64),
    )
    single, double = lively(THP, 1, torch.float32), lively(THP, 1, torch.float32).double()
    coarse, fine = (m._tokens(marks, since) for m in (single, double))
    assert torch.allclose(coarse.double(), fine, rtol=0, atol=1e-5)


def test_the_bound_holds_where_the_link_changes_form() -> None:
    """log_softplus falls by 1.5e-7 where it goes over to its other form, at z = -15 s; monotone it
    is but for that.
    """
    model = THP(1, hidden=8, heads=2).double().eval()
    with torch.no_grad():
        model.base.fill_(-15.001)
        model.time_weight.fill_(1.0)
        past = remember(model, Sequence([], start=0.0, stop=1.0).batch())
        a = torch.zeros(1, dtype=torch.float64)
        for end in (1e-3 + 1e-12, 1e-3 + 1e-9, 1e-3 + 1e-8, 2e-3):
            grid = torch.linspace(0, end, 100_001, dtype=torch.float64)[None]
            assert bool(
                (
                    last_rates(model, past, grid).sum(-1)
                    <= model.upper_bound(past, a, a + end)[:, None]
                ).all()
            )


def test_it_learns_what_a_constant_rate_cannot() -> None:
    train, dev, test = (hawkes(n, seed) for n, seed in ((300, 1), (60, 2), (200, 3)))
    model, constant = THP(hidden=16, heads=2), Poisson()
    fit(model, train, dev, steps=100, validate_every=50, progress=False)
    fit(constant, train, dev, progress=False)
    ours, theirs = (log_likelihood(m, test.batch()).per_event for m in (model, constant))
    assert ours > theirs + 0.02
