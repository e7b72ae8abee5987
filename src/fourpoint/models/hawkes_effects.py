r"""Maximum likelihood for a Hawkes process with effects of calendar and covariates in its baseline
and with event features.

    mu_m(t) = exp(level_m + f_m(t)),   excitation alpha_jmn w_i beta_j exp(-beta_j (t - t_i)),
    w_i = exp(sum_f gamma_f (x_if - mean_f) / sd_f)

The search for decays is on a grid, on a part of the log; from the best of them scoring steps (with
the information of the events instead of the curvature) go on with all events in all parameters
together, branching ratios held at 0 or more. Effects are penalised as by `models.effects_fit`, with
the strengths that a Poisson process with the same effects chooses.

Only excitation is taken over from the part: effects begin at those of the Poisson process of the
whole log, since a part need not contain every hour or weekday, and what it does not contain it does
not determine. The model contains this Poisson process, and at the maximum every type has as many
expected events as it has events; a fit where one of both does not hold is repeated from the Poisson
process (:func:`_checked`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import NDArray

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
MOST_TRIGGERED = 0.9  # share of the events that the first baseline may leave to excitation
FAR = 0.02  # share of the events of a type by which its expected ones may differ, or one event
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
        return np.concatenate([part.ravel() for part in self.parts])

    def like(self, flat: Float[ndarray, " P"]) -> _At:
        parts = []
        first = 0
        for part in self.parts:
            own = flat[first : first + part.size]
            parts.append(own.reshape(part.shape))
            first += part.size
        return _At(*parts)

    @property
    def parts(self) -> tuple[ndarray, ...]:
        """All parameters, in the order of :meth:`flat`."""
        return self.theta, self.alpha, self.u, self.gamma

    @property
    def alpha_columns(self) -> slice:
        """Where the branching ratios are in :meth:`flat`."""
        return slice(self.theta.size, self.theta.size + self.alpha.size)

    @property
    def u_columns(self) -> slice:
        """Where the logarithms of the decays are in :meth:`flat`."""
        first = self.theta.size + self.alpha.size
        return slice(first, first + self.u.size)


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
    part = _part_of(data)
    search = whole if part is data else _problem(part, spec, poisson.penalties)
    low, high = _span(data)
    features = 0 if data.features is None else data.features.shape[1]
    theta = np.concatenate([poisson.level[None], poisson.weight])
    best = _At(
        theta=theta,
        alpha=np.zeros((0, data.marks.count, data.marks.count)),
        u=np.zeros(0),
        gamma=np.zeros(features),
    )
    for _ in range(exponentials):
        best = _with_one_more(search, best, low, high)
    simple = _At(theta, np.zeros_like(best.alpha), best.u, best.gamma)
    if search is not whole:
        best = _on_all(whole, theta, best)
    found, value = _climb(whole, best, low, high, STEPS)
    found, value, notes = _checked(whole, simple, found, value, (low, high))
    result = _result(whole, found, value, spec, data, (low, high))
    return replace(result, notes=notes)


def _with_one_more(problem: _Problem, at: _At, low: float, high: float) -> _At:
    """The best point with one decay more, from a grid of them."""
    M = problem.marks
    grid = np.linspace(low, high, 2 + int((high - low) / SPACING))
    theta = _lowered(at)
    fresh = np.full((1, M, M), FIRST_BRANCHING / M)
    alpha = np.concatenate([at.alpha, fresh])
    tried, heights = [], []
    for v in grid:
        start = _At(theta, alpha, np.append(at.u, v), at.gamma)
        point, value = _climb(problem, start, low, high, 4, held=True)
        tried.append(point)
        heights.append(-value)
    order = np.argsort(heights)[:2]
    refined = [_climb(problem, tried[i], low, high, STEPS) for i in order]
    best, _ = max(refined, key=lambda pair: pair[1])
    return best


def _lowered(at: _At) -> Float[ndarray, "K M"]:
    """theta with the level lowered to make room for excitation."""
    theta = at.theta.copy()
    theta[0] += np.log(1 - FIRST_BRANCHING)
    return theta


def _on_all(whole: _Problem, theta: Float[ndarray, "K M"], part: _At) -> _At:
    """Where the climb on the whole log begins: the excitation of the ``part``, and the effects of
    the Poisson process, ``theta``, with levels that leave room for it.
    """
    counts = _counts(whole)
    triggered = part.alpha.sum(0) @ counts
    share = np.minimum(triggered / np.maximum(counts, 1.0), MOST_TRIGGERED)
    lowered = theta.copy()
    lowered[0] += np.log1p(-share)
    return replace(part, theta=lowered)


def _checked(
    problem: _Problem,
    simple: _At,
    found: _At,
    value: float,
    span: tuple[float, float],
) -> tuple[_At, float, list[str]]:
    """The fit, or where it is below the ``simple`` one, which it contains, or does not expect as
    many events as there are, the best of fits that begin there; with what to say of it.
    """
    least, _, _ = _evaluate(problem, simple, second=False)
    if value >= least and not _far(problem, found).any():
        return found, value, []
    M = problem.marks
    room = replace(
        simple,
        theta=_lowered(simple),
        alpha=np.full_like(simple.alpha, FIRST_BRANCHING / (M * len(simple.u))),
    )
    notes = ["the first fit was no maximum, and was repeated from a fit without excitation"]
    for start in (simple, room):
        again, height = _climb(problem, start, *span, 2 * STEPS)
        if height > value:
            found, value = again, height
    far = _far(problem, found)
    if far.any():
        _, gradient, _ = _evaluate(problem, found, second=False)
        expected = _counts(problem) + _excess(problem, found, gradient)
        notes.append(
            f"the fit is not at its maximum: it expects {expected.sum():,.0f} events in the "
            f"training data, which have {problem.events:,}; choose fewer terms with --calendar"
        )
    return found, value, notes


def _far(problem: _Problem, at: _At) -> NDArray[np.bool_]:
    """Of which types the expected events are far from those in the data."""
    _, gradient, _ = _evaluate(problem, at, second=False)
    allowed = np.maximum(FAR * _counts(problem), 1.0)
    return np.abs(_excess(problem, at, gradient)) > allowed


def _excess(problem: _Problem, at: _At, gradient: Float[ndarray, " P"]) -> Float[ndarray, " M"]:
    """Expected less observed events of each type. The log rate of every event rises by 1 if the
    baseline and the branching ratios of its type do, so that derivatives towards that are the
    difference.
    """
    M = problem.marks
    of_alpha = gradient[at.alpha_columns].reshape(at.alpha.shape)
    return -gradient[:M] - np.sum(at.alpha * of_alpha, axis=(0, 2))


def _counts(problem: _Problem) -> Float[ndarray, " M"]:
    """Scored events of each type."""
    marks = problem.points.marks[problem.points.scored]
    return np.bincount(marks, minlength=problem.marks).astype(np.float64)


# ---------------------------------------------------------------------- scoring steps


def _evaluate(
    problem: _Problem,
    at: _At,
    *,
    second: bool,
) -> tuple[float, Float[ndarray, " P"], Float[ndarray, "Q Q"]]:
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
    design = problem.design
    log_rates = np.minimum(design.nodes @ at.theta, 700.0)
    rates = design.weights[:, None] * np.exp(log_rates)
    value -= float(rates.sum())
    pull = problem.penalty @ at.theta
    by_theta = gradient[: K * M].reshape(K, M)
    by_theta -= design.nodes.T @ rates
    by_theta -= pull
    value -= float(np.sum(at.theta * pull)) / 2
    if second:
        for m in range(M):
            block = np.arange(K) * M + m
            information[np.ix_(block, block)] += problem.penalty
    return value, gradient, information


def _climb(
    problem: _Problem,
    at: _At,
    low: float,
    high: float,
    steps: int,
    *,
    held: bool = False,
) -> tuple[_At, float]:
    """Scoring steps with a line search; the last decay stays where it is if ``held``."""
    of_u = at.u_columns
    second = len(at.flat()) <= LARGEST_INFORMATION
    enough = ENOUGH * max(problem.events, 1)
    value, gradient, information = _evaluate(problem, at, second=second)
    scale = None
    for _ in range(steps):
        free = _free(at, gradient, low, high)
        if held:
            free[of_u.stop - 1] = False
        if second:
            step = _scoring_step(information, gradient, free)
        else:
            if scale is None:
                scale = np.maximum(np.abs(gradient), 1.0)
            step = np.where(free, gradient / scale, 0.0)
        found = _moved(problem, at, value, gradient, step, (low, high))
        if found is None and second and float(gradient @ step) > enough:
            # Far more events are expected than there are, and the information of those there are
            # says nothing of that.
            further = information + _of_integral(problem, at)
            step = _scoring_step(further, gradient, free)
            found = _moved(problem, at, value, gradient, step, (low, high))
        if found is None:
            break
        at, (higher, gradient, information) = found
        improved = higher - value
        value = higher
        if improved < enough:
            break
    return at, value


def _scoring_step(
    information: Float[ndarray, "P P"],
    gradient: Float[ndarray, " P"],
    free: ndarray,
) -> Float[ndarray, " P"]:
    """The step to the maximum of the quadratic form, in the ``free`` parameters."""
    step = np.zeros(len(gradient))
    matrix = information[np.ix_(free, free)]
    matrix[np.diag_indices_from(matrix)] += 1e-8 * (1 + matrix.diagonal())
    step[free] = np.linalg.solve(matrix, gradient[free])
    return step


def _moved(
    problem: _Problem,
    at: _At,
    value: float,
    gradient: Float[ndarray, " P"],
    step: Float[ndarray, " P"],
    span: tuple[float, float],
) -> tuple[_At, tuple[float, Float[ndarray, " P"], Float[ndarray, "Q Q"]]] | None:
    """The first higher point on the way of the step, halved until there is one, and what
    :func:`_evaluate` finds there; None if there is none.
    """
    of_alpha = at.alpha_columns
    of_u = at.u_columns
    second = len(step) <= LARGEST_INFORMATION
    step[of_u] = np.clip(step[of_u], -1.0, 1.0)
    gain = max(float(gradient @ step), 0.0)
    flat = at.flat()
    length = 1.0
    while length > 1e-4:
        new = flat + length * step
        new[of_alpha] = np.maximum(new[of_alpha], 0.0)
        new[of_u] = np.clip(new[of_u], *span)
        there = at.like(new)
        try:
            found = _evaluate(problem, there, second=second)
        except (ZeroDivisionError, ValueError, OverflowError):
            length /= 2
            continue
        # A whole step must gain enough, a shorter one must not lose.
        wanted = value + 1e-4 * gain if length == 1.0 else value
        if np.isfinite(found[0]) and found[0] >= wanted:
            return (there, found) if found[0] > value else None
        length /= 2
    return None


def _of_integral(problem: _Problem, at: _At) -> Float[ndarray, "P P"]:
    """The curvature of the integral of the baseline."""
    design = problem.design
    K, M = at.theta.shape
    size = len(at.flat())
    found = np.zeros((size, size))
    log_rates = np.minimum(design.nodes @ at.theta, 700.0)
    rates = design.weights[:, None] * np.exp(log_rates)
    for m in range(M):
        own = np.arange(K) * M + m
        found[np.ix_(own, own)] = design.nodes.T @ (rates[:, m, None] * design.nodes)
    return found


def _free(at: _At, gradient: Float[ndarray, " P"], low: float, high: float) -> ndarray:
    """Which parameters may move: ratios of 0 and decays at an end only inwards."""
    free = np.ones(len(gradient), dtype=bool)
    of_alpha = at.alpha_columns
    of_u = at.u_columns
    free[of_alpha] = (at.alpha.ravel() > 0) | (gradient[of_alpha] > 0)
    outwards_below = (at.u <= low) & (gradient[of_u] < 0)
    outwards_above = (at.u >= high) & (gradient[of_u] > 0)
    free[of_u] = ~(outwards_below | outwards_above)
    return free


# ---------------------------------------------------------------------- the problem


def _problem(data: Dataset, spec: EffectsSpec, penalties: dict[str, float]) -> _Problem:
    return _Problem(
        points=points_of(data, spec),
        design=integral_design(data, spec, merged=True),
        penalty=penalty_of(spec, penalties),
        marks=data.marks.count,
        events=data.scored_events,
    )


def points_of(data: Dataset, spec: EffectsSpec) -> Points:
    """Events, and the boundaries at which time begins or ceases to be scored or its exposure
    changes.
    """
    context = data.context or Context()
    effects = Effects(spec, 1)
    S = len(data)
    row = np.repeat(np.arange(S), data.lengths)
    index, share = sparse_basis(effects, context, data.times, row)
    low = data.starts if context.scored_from is None else context.scored_from
    every_time = [data.times]
    every_row = [row]
    every_event = [np.arange(data.events)]
    for boundary_times, boundary_rows in _boundaries(data, context, low):
        every_time.append(boundary_times)
        every_row.append(boundary_rows)
        every_event.append(np.full(len(boundary_times), -1))
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
        for s in range(S):
            own = rows == s if S > 1 else slice(None)
            exposure[own] = context.exposure.at(s, times[own])[:, 0]
    exposure[times < low[rows]] = 0.0
    is_event = events >= 0
    chosen = np.maximum(events, 0)
    scored = np.zeros(len(times), dtype=np.bool_)
    scored[is_event] = data.scored[events[is_event]]
    if data.events:
        marks = np.where(is_event, data.mark_ids[chosen], -1)
        index = index[chosen]
        share = share[chosen]
    else:
        marks = np.where(is_event, 0, -1)
        index = np.zeros((len(times), 1), dtype=np.int64)
        share = np.zeros((len(times), 1))
    features = np.zeros((len(times), 0))
    if data.features is not None and data.events:
        features = np.where(is_event[:, None], data.features[chosen], 0.0)
    return Points(
        np.searchsorted(rows, np.arange(S + 1)),
        times,
        marks,
        exposure,
        scored,
        index,
        share,
        np.ascontiguousarray(features),
    )


def _boundaries(
    data: Dataset,
    context: Context,
    low: Float[ndarray, " S"],
) -> list[tuple[ndarray, ndarray]]:
    """Times and sequences of the ends of windows, of ``low``, from which time is scored, and of
    changes of the exposure.
    """
    every = np.arange(len(data))
    scored_from = np.clip(low, data.starts, data.stops)
    found = [(data.starts, every), (data.stops, every), (scored_from, every)]
    if context.exposure is not None:
        steps = context.exposure
        owner = np.repeat(every, np.diff(steps.offsets))
        inside = (steps.times > data.starts[owner]) & (steps.times < data.stops[owner])
        found.append((steps.times[inside], owner[inside]))
    return found


def sparse_basis(
    effects: Effects,
    context: Context,
    times: Float[ndarray, " T"],
    rows: ndarray,
) -> tuple[ndarray, Float[ndarray, "T L"]]:
    """1 and the basis functions that are not 0 at ``times``, by number, and their values."""
    indices, shares = [], []
    for first in range(0, max(1, len(times)), 100_000):
        piece = slice(first, first + 100_000)
        own = context.at_each(rows[piece], times[piece])
        at = torch.from_numpy(times[piece].copy())
        index = [np.zeros((len(at), 1), dtype=np.int64)]
        share = [np.ones((len(at), 1))]
        if effects.spec.calendar:
            local = effects.local_seconds(at, own)
            found, value = effects.active(local)
            index.append(1 + found.numpy())
            share.append(value.numpy())
        if effects.spec.covariates:
            values = effects.covariates(at, own).numpy()
            columns = 1 + effects.fixed + np.arange(values.shape[1])
            index.append(np.broadcast_to(columns, values.shape))
            share.append(values)
        indices.append(np.concatenate(index, 1))
        shares.append(np.concatenate(share, 1))
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
    high = 0.0
    if len(gaps):
        shortest = np.quantile(gaps, 0.02)
        high = float(np.log(5 / shortest))
    return low, max(high, low + 2 * SPACING)


# ---------------------------------------------------------------------- the result


def _level_errors(
    design: Design,
    theta: Float[ndarray, "K M"],
    covariance: Float[ndarray, "M K K"],
) -> Float[ndarray, " M"]:
    """Standard errors of the logarithms of the mean baselines over the exposed time."""
    log_rates = np.minimum(design.nodes @ theta, 700.0)
    rates = design.weights[:, None] * np.exp(log_rates)
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
    size = len(at.flat())
    errors = np.full(size, np.nan)
    covariance = np.full((1, K, K), np.nan)
    profiles: dict[str, Profile] = {}
    order = np.argsort(at.u)
    if size <= LARGEST_INFORMATION:
        _, gradient, information = _evaluate(problem, at, second=True)
        low, high = span
        edge = np.zeros(size, dtype=bool)
        edge[at.alpha_columns] = at.alpha.ravel() <= 0
        edge[at.u_columns] = (at.u <= low) | (at.u >= high)
        free = ~edge
        inverse = np.linalg.pinv(information[np.ix_(free, free)], hermitian=True)
        errors[free] = np.sqrt(np.maximum(inverse.diagonal(), 0.0))
        covariance = _covariances(inverse, free, K, M)
        edge[at.alpha_columns] = False
        profiles = _profiles(at, gradient, information, ~edge, order)
    penalty = float(np.sum(at.theta * (problem.penalty @ at.theta))) / 2
    spread = at.like(errors)
    decay = np.exp(at.u[order])
    names = data.marks.names if M > 1 else ("",)
    ratios = rate_ratios(spec, at.theta[1:], covariance, tuple(names))
    level, weight = centred(spec, problem.design, at.theta[0], at.theta[1:])
    level_errors = spread.theta[0]
    if len(covariance) == M:
        level_errors = _level_errors(problem.design, at.theta, covariance)
    if profiles:
        flat = np.zeros(M)
        with np.errstate(divide="ignore"):
            curvature = 1 / level_errors**2
        profiles["level"] = Profile(np.exp(level), flat, curvature, flat, logarithmic=True)
    return HawkesEffects(
        level=level,
        weight=weight,
        branching=at.alpha[order],
        decay=decay,
        feature_weight=at.gamma,
        value=value + penalty,
        errors={
            "level": level_errors,
            "branching": spread.alpha[order],
            "decay": decay * spread.u[order],
            "feature_weight": spread.gamma,
        },
        ratios=ratios,
        profiles=profiles,
    )


def _covariances(
    inverse: Float[ndarray, "Q Q"],
    free: ndarray,
    K: int,
    M: int,
) -> Float[ndarray, "M K K"]:
    """The covariance of theta of every mark, from that of all ``free`` parameters."""
    place = np.full(len(free), -1)
    place[free] = np.arange(int(free.sum()))
    covariances = []
    for m in range(M):
        block = place[np.arange(K) * M + m]
        covariances.append(inverse[np.ix_(block, block)])
    return np.stack(covariances)


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
    return {
        "branching": Profile(*(part[order] for part in parts)),
        "decay": Profile(*(part[order] for part in turns), logarithmic=True),
    }
