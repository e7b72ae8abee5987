r"""Does one type of event lead to another? Likelihood-ratio tests of branching ratios.

At fixed decays the rate of type m is linear in non-negative coefficients,

    lambda_m(t) = a_m mu_m(t) + sum_j sum_n alpha_jmn beta_j R_jn(t),

and log L is concave in them, one problem per type. For each pair, D = 2 (log L - log L_0), where
L_0 is the maximum with alpha_jmn = 0 for all j. 0 is the edge of what is possible, so that D is not
chi-squared if it is the truth: with one decay it is 0 with probability 1/2 and chi-squared with one
degree of freedom otherwise, and the p-value is P(chi-squared_1 > D) / 2. With J decays the degrees
of freedom are taken as binomial(J, 1/2). Other ratios at 0 make the test conservative.
Source: Self and Liang, "Asymptotic properties of maximum likelihood estimators and likelihood ratio
tests under nonstandard conditions" (1987).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from fourpoint.events import Batch, Dataset
from fourpoint.models.base import exposed_pieces
from fourpoint.models.effects_fit import integral_design
from fourpoint.models.hawkes import Hawkes, HawkesHistory
from fourpoint.ops.excitation import Derivatives
from fourpoint.ops.newton import Point, climb

MOST_NUMBERS = 4e7  # of the designs of all types
ENOUGH = 1e-4  # nats that a maximum may miss


@dataclass(frozen=True)
class Designs:
    """What multiplies the coefficients of each type: at its events, ``columns[m]`` (W, n), and in
    the integral, ``costs`` (M, W): mu_m first, then the past of all types, decay by decay.
    """

    columns: list[ndarray]
    costs: Float[ndarray, "M W"]

    def with_more(self, columns: list[ndarray], costs: Float[ndarray, "M C"]) -> Designs:
        """The same with C more coefficients per type: at its events (C, n), and in the integral."""
        both = [np.concatenate(pair) for pair in zip(self.columns, columns, strict=True)]
        all_costs = np.concatenate([self.costs, costs], 1)
        return Designs(both, all_costs)

    def without(self, left_out: ndarray) -> Designs:
        """The same without some of the coefficients."""
        every = np.arange(self.costs.shape[1])
        kept = np.delete(every, left_out)
        columns = [column[kept] for column in self.columns]
        return Designs(columns, self.costs[:, kept])

    def derivatives(self, theta: Float[ndarray, "M W"]) -> Derivatives:
        """log L of every type with gradient and curvature."""
        M, W = theta.shape
        values = np.zeros(M)
        gradient = np.zeros((M, W))
        curvature = np.zeros((M, W, W))
        for m, x in enumerate(self.columns):
            rate = theta[m] @ x
            if x.shape[1] and rate.min() <= 0:
                values[m] = -np.inf
                continue
            scaled = x / rate
            cost = self.costs[m]
            log_rates = np.log(rate)
            integral = theta[m] @ cost
            values[m] = log_rates.sum() - integral
            gradient[m] = scaled.sum(1) - cost
            curvature[m] = -(scaled @ scaled.T)
        return Derivatives(values, gradient, curvature)


@dataclass(frozen=True)
class EdgeTests:
    """D and its p-value for every pair (M, M), the exciting type last; NaN for types that never
    happen. ``gain`` is the rise of log L from the coefficients of the model to those of the data.
    ``errors`` are the standard errors of the branching ratios (J, M, M) at the decays and the shape
    of the baselines of the model.
    """

    deviance: Float[ndarray, "M M"]
    p_values: Float[ndarray, "M M"]
    gain: float
    errors: Float[ndarray, "J M M"]


def edge_tests(
    model: Hawkes,
    data: Dataset,
    shared: tuple[list[ndarray], Float[ndarray, "M C"]] | None = None,
) -> EdgeTests | None:
    """Test whether each type leads to each, given the others, on ``data``, with the decays (and the
    shape of the baselines) of ``model``; None where that takes too much memory. ``shared`` are
    further functions of time that the rate of each type may follow, with coefficients of 0 or more:
    their values at the events of each type (C, n) and their integrals.

    >>> from fourpoint.data.synthetic import simulate
    >>> data = simulate("hawkes", 50, seed=1)
    >>> model = Hawkes()
    >>> notes = model.maximum_likelihood(data)
    >>> bool(edge_tests(model, data).p_values.item() < 1e-6)
    True
    """
    M = model.marks.count
    J = model.log_decay.numel()
    if data.events * M * J > MOST_NUMBERS:
        return None
    designs = designs_of(model, data)
    branching = model.log_branching.detach().exp().numpy()
    by_decay = branching.reshape(J, M, M)
    alpha = by_decay.transpose(1, 0, 2).reshape(M, -1)
    ones = np.ones((M, 1))
    own = np.concatenate([ones, alpha], 1)
    counts = np.array([columns.shape[1] for columns in designs.columns])
    happens = counts[:, None] > 0
    positive = np.where(happens, own, 1.0)
    before = designs.derivatives(positive).values
    start = np.where(happens, own, 0.0)
    best = _maximum(designs, start)
    gains = best.here.values - before
    positive = np.where(happens, best.theta, 1.0)
    errors = _errors(designs, positive)
    if shared is not None:
        designs = designs.with_more(*shared)
        _, costs = shared
        more = np.where(happens, 0.1, np.zeros_like(costs))
        start = np.concatenate([best.theta, more], 1)
        best = _maximum(designs, start)
    deviance = np.zeros((M, M))
    for n in range(M):
        first_of_decay = M * np.arange(J)
        left_out = 1 + n + first_of_decay
        fewer = designs.without(left_out)
        # The baseline is raised, so that every event has a rate.
        start = np.delete(best.theta, left_out, axis=1)
        raised = np.maximum(start[:, :1], 1e-3)
        start[:, :1] = np.where(happens, raised, 0.0)
        found = _maximum(fewer, start)
        lost = best.here.values - found.here.values
        deviance[:, n] = 2 * lost
    sources = np.bincount(data.mark_ids, minlength=M)
    unknown = ~happens | (sources == 0)
    deviance = np.maximum(deviance, 0.0)
    deviance[unknown] = np.nan
    end = 1 + J * M
    excitation = best.theta[:, 1:end].reshape(M, J, M)
    any_excitation = excitation.max(1) > 0
    without_excitation = np.where(unknown, np.nan, 1.0)
    with_excitation = _p_values(deviance, J)
    p_values = np.where(any_excitation, with_excitation, without_excitation)
    gain = np.sum(gains[counts > 0])
    return EdgeTests(deviance, p_values, float(gain), errors)


def _errors(designs: Designs, theta: Float[ndarray, "M W"]) -> Float[ndarray, "J M M"]:
    """Standard errors of the branching ratios from the curvature at ``theta``."""
    M = len(theta)
    variances = []
    for curvature in designs.derivatives(theta).curvature:
        inverse = np.linalg.pinv(-curvature, hermitian=True)
        variances.append(inverse.diagonal())
    variance = np.stack(variances)[:, 1:]
    errors = np.sqrt(np.maximum(variance, 0.0))
    by_type = errors.reshape(M, -1, M)
    return by_type.transpose(1, 0, 2)


def _maximum(designs: Designs, start: Float[ndarray, "M W"]) -> Point:
    """The best coefficients that are not negative."""
    nothing = np.zeros(0)
    return climb(
        lambda theta, _: designs.derivatives(theta),
        start,
        nothing,
        0.0,
        0.0,
        enough=ENOUGH,
    )


def _p_values(deviance: Float[ndarray, "M M"], J: int) -> Float[ndarray, "M M"]:
    """Of the mixture of chi-squared distributions with 0 to J degrees of freedom."""
    from scipy.special import chdtrc

    parts = []
    for k in range(1, J + 1):
        share = comb(J, k) / 2**J
        beyond = chdtrc(k, deviance)
        parts.append(share * beyond)
    return np.sum(parts, axis=0)


@torch.no_grad()
def designs_of(model: Hawkes, data: Dataset) -> Designs:
    """The designs of all types for ``data``, with calendar, covariates, exposure, history periods
    and event features.
    """
    M = model.marks.count
    beta = model.log_decay.detach().exp().reshape(-1)
    J = len(beta)
    nothing = np.zeros((1 + J * M, 0))
    parts: list[list[ndarray]] = [[nothing] for _ in range(M)]
    past = np.zeros((J, M))
    exposed = 0.0
    for rows in data.batches(64):
        batch = data.batch(rows)
        history = model.encode(batch)
        before = history.times[:, :-1]
        gaps = batch.times - before
        lag = gaps[..., None] * beta
        fade = beta * torch.exp(-lag)
        excitation = history.excitation[:, :-1]
        rise = fade[..., None] * excitation
        log_mu = model.log_baseline.expand(*batch.times.shape, M)
        if model.effects is not None:
            effects = model.effects.values(batch.times, history.context)
            log_mu = log_mu + effects
        for m in range(M):
            mine = batch.scored & (batch.marks == m)
            base = log_mu[mine][:, m].exp()
            excited = rise[mine].reshape(-1, J * M)
            column = torch.cat([base[None], excited.T])
            parts[m].append(column.numpy())
        mass, duration = _integrals(batch, history, beta)
        past += mass
        exposed += duration
    mu = model.log_baseline.detach().exp().numpy()
    base_cost = mu * exposed
    if model.effects is not None:
        design = integral_design(data, model.effects.spec, merged=True)
        weights = model.effects.weight.detach().numpy()
        levels = np.log(mu)[None]
        theta = np.concatenate([levels, weights])
        log_rates = np.minimum(design.nodes @ theta, 700.0)
        rates = np.exp(log_rates)
        base_cost = design.weights @ rates
    of_past = np.tile(past.ravel(), (M, 1))
    costs = np.concatenate([base_cost[:, None], of_past], 1)
    columns = [np.concatenate(part, 1) for part in parts]
    return Designs(columns, costs)


def _integrals(
    batch: Batch,
    history: HawkesHistory,
    beta: Float[Tensor, " J"],
) -> tuple[Float[ndarray, "J M"], float]:
    """The integrals of beta_j R_jn over scored, exposed time, and that time itself."""
    left = batch.edges[:, :-1]
    right = batch.edges[:, 1:]
    seen = torch.arange(left.shape[1]).expand(left.shape)
    weight = torch.ones_like(left)
    exposure = batch.scored_exposure
    if exposure is not None:
        left, right, seen = exposed_pieces(batch, exposure)
        weight = exposure.at(left)[..., 0]
    seen = torch.minimum(seen, batch.lengths[:, None])
    row = torch.arange(len(left))[:, None]
    duration = right - left
    lag = left - history.times[row, seen]
    since = lag[..., None] * beta
    width = duration[..., None] * beta
    fade = torch.exp(-since)
    passed = -torch.expm1(-width)
    in_gap = fade * passed
    mass = in_gap * weight[..., None]
    excitation = history.excitation[row, seen]
    total = torch.einsum("bgj,bgjn->jn", mass, excitation)
    exposed = (duration * weight).sum()
    return total.numpy(), float(exposed)
