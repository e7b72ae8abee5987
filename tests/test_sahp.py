"""SAHP: its formula, its start, closed forms it contains, no leak, a bound that dominates, and
samples that follow it.
"""

from __future__ import annotations

import math

import torch
from test_attentive import hawkes, lively
from test_laws import data
from torch.nn.functional import gelu, softplus

from fourpoint.inference.likelihood import log_likelihood
from fourpoint.models.poisson import Poisson
from fourpoint.models.sahp import SAHP
from fourpoint.training.fitting import fit

FALSE_ALARM = 1e-3  # of each test of a p-value; seeds are fixed, so that a pass stays a pass


def test_the_rate_is_the_formula() -> None:
    model, batch = lively(SAHP), data(3).batch()
    history = model.encode(batch)
    times = torch.full((4, 1), 20.0, dtype=torch.float64)
    for b in range(4):
        h = history.states[b, history.lengths[b]]
        raw = model.readout @ h + model.shift
        eta, mu, gamma = gelu(raw[:3]), gelu(raw[3:6]), softplus(raw[6:])
        lag = (20.0 - history.last()[b]) / model.time_scale
        z, s = mu + (eta - mu) * torch.exp(-gamma * lag), model.link.log_scale.exp()
        expected = model.log_rate.exp() * s * torch.log1p(torch.exp(z / s))
        assert torch.allclose(model.intensity(history, times)[b, 0], expected, rtol=1e-10)


def test_an_exponential_decay_has_the_integral_of_its_closed_form() -> None:
    """With a tiny scale the link is the identity: lambda = r (mu + (eta - mu) exp(-gamma lag))
    after every event.
    """
    model, events = SAHP(1, hidden=8, heads=2).double().eval(), data(1)
    model.initialise(events)
    with torch.no_grad():
        model.link.log_scale.fill_(math.log(1e-3))
        model.shift.copy_(torch.tensor([3.0, 1.0, 0.2]))
    batch = events.batch()
    eta, mu, gamma = (
        gelu(torch.tensor(3.0)).item(),
        gelu(torch.tensor(1.0)).item(),
        softplus(torch.tensor(0.2)).item(),
    )
    r, gaps = float(model.log_rate.exp()), batch.edges.diff(dim=1) / model.time_scale
    fade = gamma * gaps
    exact = (r * model.time_scale * (mu * gaps + (eta - mu) * -torch.expm1(-fade) / gamma)).sum(1)
    assert torch.allclose(log_likelihood(model, batch, tolerance=1e-7).integral, exact, rtol=1e-6)


def test_a_late_event_keeps_the_digits_of_its_time() -> None:
    """A million mean gaps after the start the tokens of float32 still agree with those of
    float64.
    """
    marks, index = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[1, 2]])
    since = torch.tensor([[1.0e6, 1.0e6 + 0.3]], dtype=torch.float64)
    single = lively(SAHP, 1, torch.float32)
    double = lively(SAHP, 1, torch.float32).double()
    coarse, fine = (
        m._tokens(marks, since, since.diff(prepend=since[:, :1]), index) for m in (single, double)
    )
    assert torch.allclose(coarse.double(), fine, rtol=0, atol=1e-5)


def test_it_learns_what_a_constant_rate_cannot() -> None:
    train, dev, test = (hawkes(n, seed) for n, seed in ((300, 1), (60, 2), (200, 3)))
    model, constant = SAHP(hidden=16, heads=2), Poisson()
    fit(model, train, dev, steps=100, validate_every=50, progress=False)
    fit(constant, train, dev, progress=False)
    ours, theirs = (log_likelihood(m, test.batch()).per_event for m in (model, constant))
    assert ours > theirs + 0.04
