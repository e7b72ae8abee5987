r"""Maximum likelihood for a Hawkes process with effects of calendar and covariates in its baseline
and with event features.

    mu_m(t) = exp(level_m + f_m(t)),   excitation alpha_jmn w_i beta_j exp(-beta_j (t - t_i)),
    w_i = exp(sum_f gamma_f (x_if - mean_f) / sd_f)

The search for decays is on a grid, on a part of the log; from the best of them scoring steps (with
the information of the events instead of the curvature) go on with all events in all parameters
together, branching ratios held at 0 or more. Effects are penalised as by `models.effects_fit`, with
the strengths that a Poisson process with the same effects chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from fourpoint import kernels
from fourpoint.events import Context, Dataset
from fourpoint.events.windows import beginning
from fourpoint.kernels.numba_hawkes_effects import Points
from fourpoint.models.effects import Effects, EffectsSpec, RateRatio
from fourpoint.models.effects_fit import (
    Design,
    centred,
    fit_effects,
    integral_design,
    penalty_of,
    rate_ratios,
)
from fourpoint.ops.profiles import Profile

SEARCH = 12_000  # scored events of the part on which decays are searched for
SPACING = 1.4  # of the grid of log decays
STEPS = 40  # scoring steps at most
ENOUGH = 1e-7  # nats per event that a last step may gain
FIRST_BRANCHING = 0.2
LARGEST_INFORMATION = 1500  # parameters with an information matrix


@dataclass(frozen=True)
class HawkesEffects:
    """Levels (M,), weights (K, M), branching (J, M, M), decays (J,), feature weights (F,), standard
    errors by name, rate ratios, remarks and shapes of profile log-likelihoods (`ops.profiles`; that
    of "level" is of the mean baseline). ``value`` is the log-likelihood without penalty.
    """

    level: Float[ndarray, " M"]
    weight: Float[ndarray, "K M"]
    branching: Float[ndarray, "J M M"]
    decay: Float[ndarray, " J"]
    feature_weight: Float[ndarray, " F"]
    value: float
    errors: dict[str, ndarray]
    ratios: list[RateRatio]
    notes: list[str] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)


@dataclass(frozen=True)
class _Problem:
    """Points of a log, nodes of the integral of the baseline, and the penalty."""

    points: Points
    design: Design
    penalty: Float[ndarray, "K K"]
    marks: int
    events: int


@dataclass(frozen=True)
class _At:
    """Parameters: theta (K, M) with the level first, alpha (J, M, M), u (J,), gamma (F,)."""

    theta: Float[ndarray, "K M"]
    alpha: Float[ndarray, "J M M"]
    u: Float[ndarray, " J"]
    gamma: Float[ndarray, " F"]

    def flat(self) -> Float[ndarray, " P"]:
        return np.concatenate([x.ravel() for x in (self.theta, self.alpha, self.u, self.gamma)])

    def like(self, flat: Float[ndarray, " P"]) -> _At:
        parts = []
        first = 0
        for x in (self.theta, self.alpha, self.u, self.gamma):
            parts.append(flat[first : first + x.size].reshape(x.shape))
            first += x.size
        return _At(*parts)


def estimate_with_effects(
    data: Dataset,
    spec: EffectsSpec,
    exponentials: int = 1,
) -> HawkesEffects:
    """The penalised maximum likelihood estimate. Event features are used as they are: they should
    be standardised.
    """
    poisson = fit_effects(data, spec)
    whole = _problem(data, spec, poisson.penalties)
    theta = np.concatenate([poisson.level[None], poisson.weight])
    part = _part_of(data)
    search = whole if part is data else _problem(part, spec, poisson.penalties)
    low, high = _span(data)
    alpha = np.zeros((0, data.marks.count, data.marks.count))
    gamma = np.zeros(0 if data.features is None else data.features.shape[1])
    best = _At(theta, alpha, np.zeros(0), gamma)
    for _ in range(exponentials):
        best = _with_one_more(search, best, low, high)
    found, value = _climb(whole, best, low, high, STEPS)
    return _result(whole, found, value, spec, data, (low, high))


def _with_one_more(problem: _Problem, at: _At, low: float, high: float) -> _At:
    """The best point with one decay more, from a grid of them."""
    M = problem.marks
    grid = np.linspace(low, high, 2 + int((high - low) / SPACING))
    tried = []
    for v in grid:
        alpha = np.concatenate([at.alpha, np.full((1, M, M), FIRST_BRANCHING / M)])
        start = _At(_lowered(at), alpha, np.append(at.u, v), at.gamma)
        tried.append(_climb(problem, start, low, high, 4, held=True))
    order = np.argsort([-value for _, value in tried])[:2]
    refined = [_climb(problem, tried[i][0], low, high, STEPS) for i in order]
    return max(refined, key=lambda pair: pair[1])[0]


def _lowered(at: _At) -> Float[ndarray, "K M"]:
    """theta with the level lowered to make room for excitation."""
    theta = at.theta.copy()
    theta[0] += np.log(1 - FIRST_BRANCHING)
    return theta


# ---------------------------------------------------------------------- scoring steps


def _evaluate(
    problem: _Problem, at: _At, *, second: bool
) -> tuple[float, Float[ndarray, " P"], Float[ndarray, "P P"]]:
    """The penalised log-likelihood, its gradient, and the penalised information (empty unless
    ``second``).
    """
    size = len(at.flat())
    gradient = np.zeros(size)
    information = np.zeros((size, size) if second else (0, 0))
    sweep = kernels.HAWKES_EFFECTS.choose()
    if sweep is None:
        from fourpoint.kernels.numba_hawkes_effects import sweep as plain

        sweep = plain
    value = sweep(problem.points, at.theta, at.alpha, np.exp(at.u), at.gamma, gradient, information)
    K, M = at.theta.shape
    rates = problem.design.weights[:, None] * np.exp(
        np.minimum(problem.design.nodes @ at.theta, 700.0)
    )
    value -= float(rates.sum())
    by_theta = gradient[: K * M].reshape(K, M)
    by_theta -= problem.design.nodes.T @ rates
    by_theta -= problem.penalty @ at.theta
    value -= float(np.sum(at.theta * (problem.penalty @ at.theta))) / 2
    if second:
        for m in range(M):
            block = np.arange(K) * M + m
            information[np.ix_(block, block)] += problem.penalty
    return value, gradient, information


def _climb(
    problem: _Problem, at: _At, low: float, high: float, steps: int, *, held: bool = False
) -> tuple[_At, float]:
    """Scoring steps with a line search; the last decay stays where it is if ``held``."""
    K, M = at.theta.shape
    first_alpha = K * M
    first_u = first_alpha + at.alpha.size
    after_u = first_u + at.u.size
    second = len(at.flat()) <= LARGEST_INFORMATION
    value, gradient, information = _evaluate(problem, at, second=second)
    scale = None
    for _ in range(steps):
        flat = at.flat()
        free = np.ones(len(flat), dtype=bool)
        alpha = flat[first_alpha:first_u]
        free[first_alpha:first_u] = (alpha > 0) | (gradient[first_alpha:first_u] > 0)
        u = flat[first_u:after_u]
        by_u = gradient[first_u:after_u]
        free[first_u:after_u] = ~(((u <= low) & (by_u < 0)) | ((u >= high) & (by_u > 0)))
        if held:
            free[after_u - 1] = False
        step = np.zeros(len(flat))
        if second:
            matrix = information[np.ix_(free, free)]
            matrix[np.diag_indices_from(matrix)] += 1e-8 * (1 + matrix.diagonal())
            step[free] = np.linalg.solve(matrix, gradient[free])
        else:
            scale = np.maximum(np.abs(gradient), 1.0) if scale is None else scale
            step[free] = gradient[free] / scale[free]
        step[first_u:after_u] = np.clip(step[first_u:after_u], -1.0, 1.0)
        gain = float(gradient @ step)
        length = 1.0
        moved = False
        while length > 1e-4:
            new = flat + length * step
            new[first_alpha:first_u] = np.maximum(new[first_alpha:first_u], 0.0)
            new[first_u:after_u] = np.clip(new[first_u:after_u], low, high)
            there = at.like(new)
            try:
                found = _evaluate(problem, there, second=second)
            except (ZeroDivisionError, ValueError, OverflowError):
                length /= 2
                continue
            if np.isfinite(found[0]) and found[0] >= value + 1e-4 * length * max(gain, 0.0) * (
                length == 1.0
            ):
                moved = found[0] > value
                break
            length /= 2
        if not moved:
            break
        improved = found[0] - value
        at, (value, gradient, information) = there, found
        if improved < ENOUGH * max(problem.events, 1):
            break
    return at, value


# ---------------------------------------------------------------------- the problem


def _problem(data: Dataset, spec: EffectsSpec, penalties: dict[str, float]) -> _Problem:
    design = integral_design(data, spec, merged=True)
    penalty = penalty_of(spec, penalties)
    points = points_of(data, spec)
    return _Problem(points, design, penalty, data.marks.count, data.scored_events)


def points_of(data: Dataset, spec: EffectsSpec) -> Points:
    """Events, and the boundaries at which time begins or ceases to be scored or its exposure
    changes.
    """
    context = Context() if data.context is None else data.context
    effects = Effects(spec, 1)
    row = np.repeat(np.arange(len(data)), data.lengths)
    index, share = sparse_basis(effects, context, data.times, row)
    every_time = [data.times]
    every_row = [row]
    every_event = [np.arange(data.events)]
    low = data.starts if context.scored_from is None else context.scored_from
    boundaries = [(data.starts, np.arange(len(data))), (data.stops, np.arange(len(data)))]
    boundaries.append((np.clip(low, data.starts, data.stops), np.arange(len(data))))
    if context.exposure is not None:
        steps = context.exposure
        owner = np.repeat(np.arange(len(data)), np.diff(steps.offsets))
        inside = (steps.times > data.starts[owner]) & (steps.times < data.stops[owner])
        boundaries.append((steps.times[inside], owner[inside]))
    for times, rows in boundaries:
        every_time.append(times)
        every_row.append(rows)
        every_event.append(np.full(len(times), -1))
    times = np.concatenate(every_time)
    rows = np.concatenate(every_row)
    events = np.concatenate(every_event)
    # A boundary comes before an event at the same time; events keep their order.
    order = np.lexsort((events, times, rows))
    times = times[order]
    rows = rows[order]
    events = events[order]
    exposure = np.ones(len(times))
    if context.exposure is not None:
        for s in range(len(data)):
            own = rows == s if len(data) > 1 else slice(None)
            exposure[own] = context.exposure.at(s, times[own])[:, 0]
    exposure[times < low[rows]] = 0.0
    event = events >= 0
    chosen = np.maximum(events, 0)
    scored = np.zeros(len(times), dtype=np.bool_)
    scored[event] = data.scored[events[event]]
    wide = np.zeros((len(times), 0))
    if data.features is not None and data.events:
        wide = np.where(event[:, None], data.features[chosen], 0.0)
    empty = data.events == 0
    return Points(
        np.searchsorted(rows, np.arange(len(data) + 1)),
        times,
        np.where(event, 0 if empty else data.mark_ids[chosen], -1),
        exposure,
        scored,
        np.zeros((len(times), 1), dtype=np.int64) if empty else index[chosen],
        np.zeros((len(times), 1)) if empty else share[chosen],
        np.ascontiguousarray(wide),
    )


def sparse_basis(
    effects: Effects, context: Context, times: Float[ndarray, " T"], rows: ndarray
) -> tuple[ndarray, Float[ndarray, "T L"]]:
    """1 and the basis functions that are not 0 at ``times``, by number, and their values."""
    indices, shares = [], []
    for first in range(0, max(1, len(times)), 100_000):
        piece = slice(first, first + 100_000)
        own = context.at_each(rows[piece], times[piece])
        at = torch.from_numpy(times[piece].copy())
        index = np.zeros((len(at), 1), dtype=np.int64)
        share = np.ones((len(at), 1))
        if effects.spec.calendar:
            found, value = effects.active(effects.local_seconds(at, own))
            index = np.concatenate([index, 1 + found.numpy()], 1)
            share = np.concatenate([share, value.numpy()], 1)
        if effects.spec.covariates:
            values = effects.covariates(at, own).numpy()
            columns = 1 + effects.fixed + np.arange(values.shape[1])
            index = np.concatenate([index, np.broadcast_to(columns, values.shape)], 1)
            share = np.concatenate([share, values], 1)
        indices.append(index)
        shares.append(share)
    return np.concatenate(indices), np.concatenate(shares)


def _part_of(data: Dataset) -> Dataset:
    """A part of the log with about SEARCH events: some of the sequences, or their beginnings."""
    some = data.some(SEARCH, seed=0)
    return some if some.events <= 2 * SEARCH else beginning(some, SEARCH)


def _span(data: Dataset) -> tuple[float, float]:
    """Logarithms of the slowest and the fastest decay that are tried."""
    longest = float(data.durations.max(initial=1.0))
    gaps = data.gaps
    gaps = gaps[gaps > np.finfo(np.float64).eps * longest]
    low = -float(np.log(longest / 2))
    high = float(np.log(5 / np.quantile(gaps, 0.02))) if len(gaps) else 0.0
    return low, max(high, low + 2 * SPACING)


# ---------------------------------------------------------------------- the result


def _level_errors(
    design: Design, theta: Float[ndarray, "K M"], covariance: Float[ndarray, "M K K"]
) -> Float[ndarray, " M"]:
    """Standard errors of the logarithms of the mean baselines over the exposed time."""
    rates = design.weights[:, None] * np.exp(np.minimum(design.nodes @ theta, 700.0))
    total = rates.sum(0)
    share = np.divide(rates, total, out=np.zeros_like(rates), where=total > 0)
    gradient = share.T @ design.nodes
    variance = np.einsum("mk,mkl,ml->m", gradient, covariance, gradient)
    return np.sqrt(np.maximum(variance, 0.0))


def _result(
    problem: _Problem,
    at: _At,
    value: float,
    spec: EffectsSpec,
    data: Dataset,
    span: tuple[float, float],
) -> HawkesEffects:
    K, M = at.theta.shape
    J = len(at.u)
    size = len(at.flat())
    errors = np.full(size, np.nan)
    covariance = np.full((1, K, K), np.nan)
    notes: list[str] = []
    profiles: dict[str, Profile] = {}
    order = np.argsort(at.u)
    first_u = K * M + at.alpha.size
    if size <= LARGEST_INFORMATION:
        _, gradient, information = _evaluate(problem, at, second=True)
        edge = np.zeros(size, dtype=bool)
        edge[K * M : first_u] = at.alpha.ravel() <= 0
        edge[first_u : first_u + J] = (at.u <= span[0]) | (at.u >= span[1])
        free = ~edge
        inverse = np.linalg.pinv(information[np.ix_(free, free)], hermitian=True)
        errors[free] = np.sqrt(np.maximum(inverse.diagonal(), 0.0))
        place = np.full(size, -1)
        place[free] = np.arange(int(free.sum()))
        blocks = [place[np.arange(K) * M + m] for m in range(M)]
        covariance = np.stack([inverse[np.ix_(block, block)] for block in blocks])
        edge[K * M : first_u] = False
        profiles = _profiles(at, gradient, information, ~edge, order)
    penalised = float(np.sum(at.theta * (problem.penalty @ at.theta))) / 2
    spread = at.like(errors)
    decay = np.exp(at.u[order])
    names = data.marks.names if M > 1 else ("",)
    ratios = rate_ratios(spec, at.theta[1:], covariance, tuple(names))
    level, weight = centred(spec, problem.design, at.theta[0], at.theta[1:])
    if len(covariance) == M:
        spread.theta[0] = _level_errors(problem.design, at.theta, covariance)
    if profiles:
        flat = np.zeros(M)
        with np.errstate(divide="ignore"):
            information_of_level = 1 / spread.theta[0] ** 2
        profiles["level"] = Profile(
            np.exp(level), flat, information_of_level, flat, logarithmic=True
        )
    return HawkesEffects(
        level,
        weight,
        at.alpha[order],
        decay,
        at.gamma,
        value + penalised,
        {
            "level": spread.theta[0],
            "branching": spread.alpha[order],
            "decay": decay * spread.u[order],
            "feature_weight": spread.gamma,
        },
        ratios,
        notes,
        profiles,
    )


def _profiles(
    at: _At,
    gradient: Float[ndarray, " P"],
    information: Float[ndarray, "P P"],
    free: ndarray,
    order: ndarray,
) -> dict[str, Profile]:
    """Shapes of the profiles of branching ratios and decays, without their skewness: at the
    estimates, or for ratios of 0 where they would be if they could be negative, to first order.
    """
    size = len(gradient)
    inverse = np.linalg.pinv(information[np.ix_(free, free)], hermitian=True)
    moved = np.zeros(size)
    moved[free] = inverse @ gradient[free]
    curvature = np.full(size, np.nan)
    variance = inverse.diagonal()
    with np.errstate(divide="ignore"):
        curvature[free] = np.where(variance > 0, 1 / variance, np.nan)
    centre = at.like(at.flat() + moved)
    shape = at.like(curvature)
    alpha = np.where(at.alpha > 0, at.alpha, centre.alpha)
    edge = np.minimum(alpha, 0.0)
    parts = (alpha - edge, edge * shape.alpha, shape.alpha, np.zeros_like(edge))
    flat = np.zeros(len(at.u))
    turns = (np.exp(at.u), flat, shape.u, flat)
    branching = Profile(*(x[order] for x in parts))
    return {"branching": branching, "decay": Profile(*(x[order] for x in turns), logarithmic=True)}
