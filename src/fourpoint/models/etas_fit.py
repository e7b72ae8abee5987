r"""Maximum likelihood for ETAS: gradients, the background, and standard errors.

    log L = sum over scored events of log lambda(t_j, x_j) - int over the scored time and the region

The integral is a sum over events: the background times the scored time, and K exp(alpha (m_i -
m_c)) times the share of g in the scored time and of f in the region. With s_j the gradient of log
lambda(t_j, x_j) in the parameters, sum_j s_j s_j' estimates the information (Ogata 1978). It is the
first matrix of a quasi-Newton method with a trust region and bounds, which takes some ten to
thirty passes over the events, and its inverse at the end is the covariance of the estimates.

Parameters are logarithms but for gamma and the weights of features. Each has bounds from the data
(`bounds_of`): a catalogue from far outside what ETAS describes ends there, and the fit says so.
Sums over groups of distant events (`ops.triggering.Planned`) hold near the parameters at which the
groups were chosen; they are chosen anew when the parameters have moved, and a move that the new
sums do not confirm is taken back.

A background of kernels is found in turn with the parameters, as in stochastic declustering: the
weight of event i is the probability mu(x_i) / lambda(t_i, x_i) that it is background, given the
parameters. The density of kernels at a training event leaves out the event itself; otherwise the
likelihood would grow without bound as bandwidths shrink. The rank of the neighbour whose distance
is the bandwidth is chosen by that leave-one-out likelihood. These rounds, and a first search
without them, look at :data:`MOST` scored events at most; the last search looks at all of them.

Axes: N events, J scored events, S sources, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, UserError
from fourpoint.models import fit_limits
from fourpoint.ops import omori, regions
from fourpoint.ops.smoothing import smoothed
from fourpoint.ops.triggering import (
    TOLERANCE,
    Planned,
    Queries,
    Sources,
    grouped_sums,
    planned,
    sums_with_derivatives,
    tree_error,
    trigger_sums,
)

if TYPE_CHECKING:
    from fourpoint.models.etas import ETAS, Strengths

Array = NDArray[np.float64]
ROUNDS = 12  # of parameters and background in turn
STEPS = 5  # of the search in each of them but the first, which has three times as many
LAST_STEPS = 100  # of the search over all events
SETTLED = 2e-4  # nats per event by which the last round differs
MOST = 12_000  # scored events that the rounds look at
ROUGH = 1e-4  # tolerance of sums over groups in the rounds
WEIGHT_STEPS = 20  # of the background's weights and rates in each round, at most
WEIGHTS_SETTLED = 1e-3  # mean change of a weight at the end
NEIGHBOURS = (5, 10, 20, 40, 80, 160)
TRIED = 1000  # events that the choice among them looks at
NARROWEST = 1e-4  # bandwidth, as a share of the region's width
CONVERGED = 1e-3  # nats that are left to gain: estimates are within .05 standard errors
FURTHEST = 1.0  # that a parameter goes in one step, in units of `Bounds`
MOVED = 0.5  # in the same units: groups of events are chosen anew
CURVED = 0.2  # steps below, in the same units, update the matrix of the search
DIFFERENCE = 1e-4  # of parameters, for the derivatives of estimates
RECENT = 30  # events before each one that the first distance looks at
ALIKE = 0.01  # share of events at the place of another one from which places count as rounded


def maximise(model: ETAS, data: Dataset) -> list[str]:
    """Fit ``model`` to ``data``; what was found, in lines. It ends early, and says so, where
    `fit_limits` leaves no more time.

    Raises :class:`UserError` where nothing is scored or an event lies outside the region.
    """
    _check(model, data)
    bounds = bounds_of(model, data)
    put_parameters(model, bounds.inside(flat_parameters(model)))
    logs = [Log(model, data.batch([row])) for row in range(len(data))]
    notes = []
    last = 0.0
    if model.box is not None and model.background == "kernel":
        last = 0.6
        with fit_limits.current().part(0.0, last, 0.6):
            notes += _background_in_turn(model, logs, data)
        bounds = bounds_of(model, data)
    elif data.scored_events > 2 * MOST:
        for log in logs:
            log.look_at(max(1, MOST // len(logs)), ROUGH)
        last = 0.3
        with fit_limits.current().part(0.0, last):
            climb(model, logs, bounds, LAST_STEPS, CONVERGED * 100)
    for log in logs:
        log.look_at(len(log.scored), TOLERANCE)
    with fit_limits.current().part(last, 1.0):
        found = climb(model, logs, bounds, LAST_STEPS, CONVERGED)
    model.errors = standard_errors(model, found, bounds)
    estimates = []
    for name, value in model.estimates().items():
        said = f"{name} {value:.4g}"
        if name in model.errors:
            said += f" ({model.errors[name]:.2g})"
        estimates.append(said)
    notes = [
        f"{', '.join(estimates)} (standard errors in brackets)",
        *notes,
        f"maximum likelihood: {found}",
    ]
    notes += bounds.said(model)
    for log in logs:
        notes += log.said(model)
    ratio = model.branching_ratio()
    notes.append(f"branching ratio {ratio:.3g}")
    if ratio >= 1:
        notes.append(f"the branching ratio {ratio:.3f} is 1 or more: forecasts explode")
    return notes


class Log:
    """One sequence, as the likelihood needs it. ``density`` is that of the background's kernels at
    the events ``used``, without the event itself; each of these counts for ``weight`` scored ones.
    """

    def __init__(self, model: ETAS, batch: Batch) -> None:
        n = int(batch.lengths[0])
        places = None
        if model.box is not None:
            assert batch.places is not None  # the model has a box
            places = batch.places[0, :n]
        self.sources = Sources(
            batch.times[0, :n],
            places,
            model.magnitudes_above(batch)[0, :n],
            model.standardised(batch)[0, :n],
        )
        self.scored = torch.nonzero(batch.scored[0, :n])[:, 0]
        self.pieces = scored_pieces(batch)
        self.density: Float[Tensor, " J"] | None = None
        self.plan: Planned | None = None
        self.look_at(len(self.scored), TOLERANCE)

    def look_at(self, most: int, tolerance: float) -> None:
        """Use at most so many scored events, spread evenly, with sums over groups of this
        tolerance.
        """
        count = len(self.scored)
        used = self.scored
        if most < count:
            used = self.scored[torch.linspace(0, count - 1, most, dtype=torch.float64).long()]
        places = None if self.sources.places is None else self.sources.places[used]
        self.used = used
        self.weight = count / max(1, len(used))
        self.tolerance = tolerance
        self.queries = Queries(self.sources.times[used], places, used)
        self.plan = None

    @torch.no_grad()
    def floor(self, model: ETAS) -> Float[Tensor, " J"]:
        """The background at the events used, in the units of the sums of `ops.triggering`."""
        s = model.strengths()
        background = self.background(model) @ s.background
        return background / s.log_factor(self.sources.places is not None).exp()

    @torch.no_grad()
    def make_plan(self, model: ETAS) -> None:
        """Sum distant events in groups from now on, chosen at the parameters as they are."""
        theta = model.strengths().theta()
        floor = self.floor(model)
        self.plan = planned(self.sources, self.queries, theta, floor, self.tolerance)

    @torch.no_grad()
    def said(self, model: ETAS) -> list[str]:
        """How far sums over groups of events are from full ones, in words; nothing without them."""
        if self.plan is None:
            return []
        bias, size = tree_error(self.plan, model.strengths().theta(), self.floor(model))
        return [
            f"distant events are summed in groups ({self.plan.entries:,.0f} terms per event): log "
            f"rates differ from full sums by {bias:.1e} on average, {size:.1e} in size"
        ]

    def background(self, model: ETAS) -> Float[Tensor, "J A"]:
        """The densities that the rates of the background multiply."""
        count = len(self.used)
        if self.sources.places is None:
            return torch.ones(count, 1, dtype=torch.float64)
        uniform = torch.full((count,), 1 / model.area, dtype=torch.float64)
        if self.density is None:
            return uniform[:, None]
        return torch.stack([uniform, self.density], 1)

    @torch.no_grad()
    def triggered(self, s: Strengths) -> Float[Tensor, " J"]:
        """The triggered part of the rate at the events used."""
        if self.plan is None:
            sums = trigger_sums(self.sources, self.queries, s.theta())
        else:
            sums = self.plan(s.theta())
        return s.log_factor(self.sources.places is not None).exp() * sums

    def log_rates(self, model: ETAS, s: Strengths) -> tuple[Tensor, Tensor]:
        """log lambda at the events used (J,) and its derivatives (J, P) in the free parameters."""
        spatial = self.sources.places is not None
        level = s.log_factor(spatial)
        theta = s.theta()
        sums, by_theta = sums_with_derivatives(self.sources, self.queries, theta, self.plan)
        columns = self.background(model)
        factor = level.detach().exp()
        triggered = factor * sums
        background = columns @ s.background.detach()
        rate = background + triggered
        # lambda depends on the parameters by the rates of the background, `level` and `theta`.
        outer = torch.cat([columns, triggered[:, None], factor * by_theta], 1)
        inner = torch.cat([s.background, level[None], theta])
        free = free_parameters(model)
        gradients = [_flat_gradient(one, free) for one in inner]
        by_parameter = outer @ torch.stack(gradients)
        return rate.log(), by_parameter / rate[:, None]

    def integral(self, model: ETAS, s: Strengths) -> Tensor:
        """The expected number of scored events, with gradient."""
        times, places, delta, features = self.sources
        share = torch.zeros_like(times)
        time = 0.0
        for a, b, exposure in self.pieces:
            until_end = (b - times).clamp(min=0)
            until_begin = (a - times).clamp(min=0)
            late = omori.cumulative(until_end, s.p, s.c, s.taper)
            soon = omori.cumulative(until_begin, s.p, s.c, s.taper)
            share = share + exposure * (late - soon)
            time += exposure * (b - a)
        factor = (features @ s.weight).exp()
        if places is not None:
            width = torch.exp(s.log_width + s.gamma * delta)
            inside = regions.mass(places, width, model.corners, s.q)
            factor = factor * inside
        background = s.background.sum() * time
        triggered = (factor * share).sum()
        return background + s.productivity * triggered


class Value(NamedTuple):
    """The log-likelihood, its gradient (P,) and the information (P, P)."""

    value: float
    gradient: Array
    information: Array


def evaluated(model: ETAS, logs: list[Log]) -> Value:
    """The log-likelihood of all sequences with gradient and information in the free parameters."""
    free = free_parameters(model)
    value = 0.0
    size = sum(p.numel() for p in free)
    gradient = torch.zeros(size, dtype=torch.float64)
    information = torch.zeros(size, size, dtype=torch.float64)
    for log in logs:
        with torch.enable_grad():
            s = model.strengths()
            rates, scores = log.log_rates(model, s)
            integral = log.integral(model, s)
            value += log.weight * float(rates.sum()) - float(integral.detach())
            gradient += log.weight * scores.sum(0) - _flat_gradient(integral, free)
            information += log.weight * scores.T @ scores
    return Value(value, gradient.numpy(), information.numpy())


def log_likelihood(model: ETAS, logs: list[Log]) -> float:
    """The log-likelihood of all sequences."""
    return evaluated(model, logs).value


def free_parameters(model: ETAS) -> list[nn.Parameter]:
    """Those that are fitted."""
    return [p for p in model.parameters() if p.requires_grad]


def _flat_gradient(value: Tensor, free: list[nn.Parameter]) -> Float[Tensor, " P"]:
    """The gradient of ``value`` in the parameters, in one row."""
    if not value.requires_grad:
        size = sum(p.numel() for p in free)
        return torch.zeros(size, dtype=torch.float64)
    parts = torch.autograd.grad(
        value,
        free,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return torch.cat([part.flatten() for part in parts])


def flat_parameters(model: ETAS) -> Tensor:
    """The fitted parameters in one row."""
    return torch.cat([p.detach().flatten() for p in free_parameters(model)]).clone()


@torch.no_grad()
def put_parameters(model: ETAS, point: Tensor) -> None:
    """Set the fitted parameters from one row."""
    free = free_parameters(model)
    for value, parameter in zip(point.split([p.numel() for p in free]), free, strict=True):
        parameter.copy_(value.reshape(parameter.shape))


# -------------------------------------------------------------------- bounds


@dataclass(frozen=True)
class Bounds:
    """Bounds (P,) of the free parameters, the unit of a step in each, and their names."""

    names: list[str]
    low: Array
    high: Array
    unit: Array

    def inside(self, point: Tensor) -> Tensor:
        """The nearest point within the bounds."""
        return torch.from_numpy(np.clip(point.numpy(), self.low, self.high))

    def at(self, point: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which parameters are at their lower bound, and which at the upper one."""
        x = point.numpy()
        margin = 1e-6 * self.unit
        below = x <= self.low + margin
        above = x >= self.high - margin
        return below, above

    def said(self, model: ETAS) -> list[str]:
        """A warning for each parameter at a bound."""
        below, above = self.at(flat_parameters(model))
        notes = []
        for name, low, high in zip(self.names, below, above, strict=True):
            if name == "log_background" or not (low or high):
                continue  # a part of the background may vanish
            shown, why = AT_BOUND.get(name, ("the weight of an event feature", ""))
            side = "lower" if low else "upper"
            reason = why if isinstance(why, str) else why[bool(high)]
            notes.append(f"warning: {shown} is at its {side} bound{reason and ': '}{reason}")
        return notes


AT_BOUND: dict[str, tuple[str, str | tuple[str, str]]] = {
    "log_productivity": ("K", ("the events do not trigger each other", "")),
    "log_c": ("c", ("times may be rounded or out of order", "the decay begins late, if at all")),
    "log_p": ("p", "the decay is not a power law over the lags of the data"),
    "log_taper": ("tau", ("", "the data do not show where the decay ends")),
    "log_distance": ("d", ("distances below the resolution of places decide it", "")),
    "log_q": ("q", ("", "distances fall off faster than a power law")),
    "gamma": ("gamma", ("distances do not grow with the magnitude", "")),
    "event_features.weight": ("alpha, or the weight of another event feature", ""),
}


def bounds_of(model: ETAS, data: Dataset) -> Bounds:
    """Bounds of the free parameters from the rate, length, region, and features of ``data``.

    c lies between 1e-6 and 1,000 mean gaps, and below a tenth of the longest window; tau between
    the mean gap and ten windows; p between .4 and 4 (1.001 and 4 without a taper); d between the
    resolution of places and half of the region's width; q between 1.02 and 10; a standard
    deviation of the magnitude multiplies D by a factor of 1 to e^2.5, and that of any feature the
    productivity by one of e^-3 to e^3.
    """
    events = max(1, data.scored_events)
    time = max(float(data.exposed_times.sum()), 1e-300)
    gap = time / events
    longest = float(data.durations.max())
    deviation = 1.0
    if model.event_features is not None:
        deviation = model.event_features.spec.scale[model.magnitude_column]
    background = math.log(events / time)
    latest = max(min(1e3 * gap, longest / 10), 1e-5 * gap)
    limits = {
        "log_background": (background - 16.0, background + 2.0, 1.0),
        "log_productivity": _logs(1e-6, 50.0),
        "log_c": _logs(1e-6 * gap, latest),
        "log_p": _logs(1e-3, 3.0),
        "log_taper": _logs(min(gap, longest), 10 * longest),
        "log_q": _logs(0.02, 9.0),
        "gamma": (0.0, 2.5 / deviation, 0.5 / deviation),
    }
    if model.log_taper is not None:
        limits["log_p"] = _logs(0.4, 4.0, unit=0.3)
    if model.box is not None and data.places is not None:
        width = math.sqrt(model.area)
        finest = max(1e-5 * width, place_resolution(data.places) / 2)
        limits["log_distance"] = _logs(min(finest, width / 4), width / 2)
    names = []
    rows = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own = limits.get(name, (-3.0, 3.0, 0.5))
            names += [name] * parameter.numel()
            rows += [own] * parameter.numel()
    low, high, unit = np.array(rows).T
    return Bounds(names, low, high, unit)


def _logs(low: float, high: float, unit: float = 1.0) -> tuple[float, float, float]:
    """Bounds of the logarithm of a parameter, and the unit of a step in it."""
    return math.log(low), math.log(high), unit


def place_resolution(places: NDArray[np.float64]) -> float:
    """The distance between neighbouring places of rounded coordinates, in their unit: the first
    percentile of distances to the nearest other place; 0 unless events share places.

    >>> round(place_resolution(np.random.default_rng(0).uniform(0, 5, (2000, 2)).round(1)), 6)
    0.1
    """
    from scipy.spatial import cKDTree

    unique = np.unique(places, axis=0)
    if len(places) - len(unique) < ALIKE * len(places) or len(unique) < 2:
        return 0.0
    distance, _ = cKDTree(unique).query(unique, k=2)
    return float(np.quantile(distance[:, 1], 0.01))


def first_distance(places: NDArray[np.float64]) -> float:
    """The median distance of an event to the nearest of the :data:`RECENT` events before it, from
    which a fit begins; 0 for fewer than two events.
    """
    count = len(places)
    near = np.full(count, np.inf)
    for lag in range(1, min(RECENT, count - 1) + 1):
        x, y = (places[lag:] - places[:-lag]).T
        away = np.hypot(x, y)
        near[lag:] = np.minimum(near[lag:], away)
    known = near[np.isfinite(near)]
    if not len(known):
        return 0.0
    return float(np.median(known))


# -------------------------------------------------------------------- the search


class Found(NamedTuple):
    """The end of a search: its steps, the value there and what is left to gain, in nats."""

    here: Value
    steps: int
    left: float
    in_time: bool

    def __str__(self) -> str:
        if not self.in_time:
            return (
                f"stopped by the time budget after {self.steps} steps, with {self.left:.2g} nats "
                "left to gain"
            )
        return f"{self.steps} quasi-Newton steps, {self.left:.1e} nats left to gain"


def climb(model: ETAS, logs: list[Log], bounds: Bounds, steps: int, enough: float) -> Found:
    """Maximise over the free parameters, from where they are, until at most ``enough`` nats are
    left to gain by the quadratic model of the log-likelihood.
    """
    limits = fit_limits.current()
    events = max(1, sum(len(log.scored) for log in logs))
    x = bounds.inside(flat_parameters(model)).numpy()
    put_parameters(model, torch.from_numpy(x))
    here = _planned_value(model, logs)
    anchor = here  # where groups of events were chosen
    centre = x
    matrix = here.information
    damping = 1e-3
    radius = FURTHEST
    left = math.inf
    taken = 0
    in_time = True
    grouped = any(log.plan is not None for log in logs)
    for taken in range(steps):
        newton = _move(here.gradient, matrix, 0.0, x, bounds, math.inf)
        left = _gain(here.gradient, matrix, newton)
        limits.report(f"{here.value / events:.4f} nats/event", taken / steps)
        in_time = limits.left > 0
        if left < enough or radius < 1e-5 or not in_time:
            break
        move = _move(here.gradient, matrix, damping, x, bounds, radius)
        expected = _gain(here.gradient, matrix, move)
        length = float(np.abs(move / bounds.unit).max())
        put_parameters(model, torch.from_numpy(x + move))
        there = evaluated(model, logs)
        gain = there.value - here.value
        if not math.isfinite(there.value) or gain < 1e-3 * expected:
            damping = max(10 * damping, 1e-2)
            radius = length / 3
            matrix = here.information
            put_parameters(model, torch.from_numpy(x))
            continue
        if gain > 0.5 * expected:
            damping = damping / 10
            radius = min(FURTHEST, max(radius, 2 * length))
        matrix = _updated(matrix, move, here.gradient - there.gradient)
        if length > CURVED:
            matrix = there.information
        x = x + move
        here = there
        away = float(np.abs((x - centre) / bounds.unit).max())
        if away > MOVED and grouped:
            plans = [log.plan for log in logs]
            here = _planned_value(model, logs)
            if here.value < anchor.value:
                x = centre
                here = anchor
                matrix = anchor.information
                radius = away / 4
                for log, plan in zip(logs, plans, strict=True):
                    log.plan = plan
                put_parameters(model, torch.from_numpy(x))
                continue
            anchor = here
            centre = x
    return Found(here, taken, left, in_time)


def _planned_value(model: ETAS, logs: list[Log]) -> Value:
    for log in logs:
        log.make_plan(model)
    return evaluated(model, logs)


def _move(
    gradient: Array, matrix: Array, damping: float, x: Array, bounds: Bounds, radius: float
) -> Array:
    """The step to the highest point of the quadratic model inside bounds and trust region."""
    from scipy.optimize import lsq_linear

    unit = bounds.unit
    scaled = matrix * unit * unit[:, None]
    diagonal = np.diag(scaled)
    largest = max(float(diagonal.max()), 1e-300)
    ridge = damping * diagonal + 1e-9 * largest
    lower = np.linalg.cholesky(scaled + np.diag(ridge))
    goal = np.linalg.solve(lower, gradient * unit)
    low = np.maximum((bounds.low - x) / unit, -radius)
    high = np.minimum((bounds.high - x) / unit, radius)
    room = (low - 1e-15, high + 1e-15)
    found = lsq_linear(lower.T, goal, room, method="bvls")
    move = np.clip(found.x, low, high) * unit
    return np.asarray(move)


def _gain(gradient: Array, matrix: Array, move: Array) -> float:
    return float(gradient @ move - 0.5 * move @ matrix @ move)


def _updated(matrix: Array, move: Array, change: Array) -> Array:
    """The matrix after a damped BFGS update (Powell 1978), which keeps it positive definite."""
    pushed = matrix @ move
    curvature = float(move @ pushed)
    along = float(move @ change)
    if curvature <= 0:
        return matrix
    if along < 0.2 * curvature:
        share = 0.8 * curvature / (curvature - along)
        change = share * change + (1 - share) * pushed
        along = float(move @ change)
    return matrix - np.outer(pushed, pushed) / curvature + np.outer(change, change) / along


@torch.no_grad()
def standard_errors(model: ETAS, found: Found, bounds: Bounds) -> dict[str, float]:
    """Standard errors of :meth:`ETAS.estimates` from the information, by the delta method; none for
    parameters at a bound, or in which the log-likelihood is flat.

    A background of kernels counts as known.
    """
    centre = flat_parameters(model)
    names = list(model.estimates())
    jacobian = np.zeros((len(names), len(centre)))
    for k in range(len(centre)):
        step = torch.zeros_like(centre)
        step[k] = DIFFERENCE
        above = _estimates_at(model, centre + step)
        below = _estimates_at(model, centre - step)
        jacobian[:, k] = (above - below) / (2 * DIFFERENCE)
    put_parameters(model, centre)
    at_low, at_high = bounds.at(centre)
    information = found.here.information
    used = (np.diag(information) > 0) & ~at_low & ~at_high
    inverse = np.linalg.pinv(information[used][:, used], hermitian=True)
    derivatives = jacobian[:, used]
    variances = ((derivatives @ inverse) * derivatives).sum(1)
    errors = {}
    for name, variance in zip(names, variances.tolist(), strict=True):
        if variance > 0:
            errors[name] = math.sqrt(variance)
    return errors


def _estimates_at(model: ETAS, point: Tensor) -> Array:
    """The estimates with these free parameters, which stay in the model."""
    put_parameters(model, point)
    return np.array(list(model.estimates().values()))


def _check(model: ETAS, data: Dataset) -> None:
    if not data.scored_events:
        raise UserError("events to fit to", "data without scored events", "Read or select some.")
    if model.box is None or data.places is None:
        return
    good = regions.inside(torch.from_numpy(np.array(data.places)), model.corners, margin=1e-9)
    if not bool(good.all()):
        i = int(torch.nonzero(~good)[0, 0])
        x, y = data.places[i]
        raise UserError(
            "events inside the region",
            f"({x:g}, {y:g}) at event {i}",
            "Leave out the events outside it, or enlarge the region.",
        )


def scored_pieces(batch: Batch) -> list[tuple[float, float, float]]:
    """The scored time of a sequence, as intervals with their exposure."""
    low, high = float(batch.start[0]), float(batch.stop[0])
    exposure = batch.scored_exposure
    if exposure is None:
        return [(low, high, 1.0)]
    inside = [t for t in exposure.times[0].tolist() if low < t < high]
    edges = sorted({low, *inside, high})
    begins = torch.tensor([edges[:-1]], dtype=torch.float64)
    values = exposure.at(begins)[0, :, 0].tolist()
    pieces = zip(edges[:-1], edges[1:], values, strict=True)
    return [piece for piece in pieces if piece[2] > 0]


# -------------------------------------------------------------------- the background


def _background_in_turn(model: ETAS, logs: list[Log], data: Dataset) -> list[str]:
    """Kernels and parameters in turn until the likelihood settles. The first kernels have equal
    weights. The last round is the fixed point of declustering; the likelihood of training events
    may be higher in earlier ones, whose weights follow these events too closely.
    """
    limits = fit_limits.current()
    rank = NEIGHBOURS[len(NEIGHBOURS) // 2]
    most = max(1, MOST // len(logs))
    for log in logs:
        log.look_at(most, ROUGH)
    weights = [torch.ones_like(log.sources.times) for log in logs]
    places = _places(logs)
    _place_kernels(model, logs, weights, bandwidths(model, places, rank).square())
    events = max(1, data.scored_events)
    last = -math.inf
    count = 0
    for count in range(ROUNDS):
        triggered = [triggered_rates(model, log, ROUGH) for log in logs]
        weights = _settled_weights(model, logs, triggered, rank)
        if count < 2:
            before, rank = rank, _best_rank(model, logs, weights, NEIGHBOURS)
            if rank != before:
                _settled_weights(model, logs, triggered, rank)
        bounds = bounds_of(model, data)
        steps = STEPS if count else 3 * STEPS
        with limits.part(count / ROUNDS, (count + 1) / ROUNDS):
            value = climb(model, logs, bounds, steps, CONVERGED * 100).here.value / events
        if abs(value - last) < SETTLED or limits.left <= 0:
            break
        last = value
    for log in logs:
        log.look_at(len(log.scored), TOLERANCE)
    _put_densities(model, logs)
    with torch.no_grad():
        level = model.strengths().background
        share = float(level[1] / level.sum())
    return [
        f"background: kernels around {len(model.sources):,} events with the distance to neighbour "
        f"{rank} as bandwidth ({share:.0%}), and a uniform part, after {count + 1} rounds"
    ]


@torch.no_grad()
def background_probabilities(
    model: ETAS, log: Log, tolerance: float = TOLERANCE
) -> Float[Tensor, " N"]:
    """The probability that each event is background, mu(x) / lambda(t, x), events of a history
    period included; sums over groups have this ``tolerance``.
    """
    background = _background_rates(model, log)
    return background / (background + triggered_rates(model, log, tolerance))


@torch.no_grad()
def triggered_rates(model: ETAS, log: Log, tolerance: float) -> Float[Tensor, " N"]:
    """The triggered part of the rate at all events."""
    s = model.strengths()
    times, places, _, _ = log.sources
    every = Queries(times, places, torch.arange(len(times)))
    factor = s.log_factor(places is not None).exp()
    floor = _background_rates(model, log) / factor
    sums = grouped_sums(log.sources, every, s.theta(), floor, tolerance)
    return factor * sums


def _background_rates(model: ETAS, log: Log) -> Float[Tensor, " N"]:
    if log.sources.places is None:
        return model.strengths().background.detach().sum().expand(len(log.sources.times))
    return model.background_density(log.sources.places)


@torch.no_grad()
def _settled_weights(
    model: ETAS, logs: list[Log], triggered: list[Tensor], rank: int
) -> list[Tensor]:
    """Weights of the kernels and rates of the background for these ``triggered`` rates at all
    events, by expectation-maximisation; both are put into the model.
    """
    time = sum(exposure * (b - a) for log in logs for a, b, exposure in log.pieces)
    places = _places(logs)
    variances = bandwidths(model, places, rank).square()
    before = torch.zeros(len(places), dtype=torch.float64)
    weights: list[Tensor] = []
    for _ in range(WEIGHT_STEPS):
        weights = []
        for log, rate in zip(logs, triggered, strict=True):
            background = _background_rates(model, log)
            probability = background / (background + rate)
            weights.append(probability)
        _place_kernels(model, logs, weights, variances)
        level = model.strengths().background
        due = torch.zeros_like(level)
        for log, rate in zip(logs, triggered, strict=True):
            parts = log.background(model) * level
            total = parts.sum(1) + rate[log.used]
            shares = parts / total[:, None]
            due += log.weight * shares.sum(0)
        least = 1e-6 * due.sum()
        rates = due.clamp(min=least) / time
        model.log_background.copy_(rates.log())
        now = torch.cat(weights)
        change = float((now - before).abs().mean())
        before = now
        if change < WEIGHTS_SETTLED:
            break
    return weights


def _place_kernels(
    model: ETAS, logs: list[Log], weights: list[Tensor], variances: Float[Tensor, " N"]
) -> None:
    """Kernels of all events in the model, and their density at the events that are used."""
    places = _places(logs)
    every = torch.cat(weights)
    sources = torch.cat([places, variances[:, None], every[:, None]], 1)
    sources[:, 3] /= sources[:, 3].sum()
    if len(model.sources) != len(sources):
        model.set_background(sources)
    model.sources = sources
    _put_densities(model, logs)


def _put_densities(model: ETAS, logs: list[Log]) -> None:
    """The density of the model's kernels at the events that are used, each without its own."""
    offset = 0
    for log in logs:
        log.density = leave_one_out(model, model.sources, offset + log.used)
        offset += len(log.sources.times)


def _best_rank(model: ETAS, logs: list[Log], weights: list[Tensor], ranks: tuple[int, ...]) -> int:
    """The rank with the highest leave-one-out likelihood of some events, other parameters as they
    are.
    """
    with torch.no_grad():
        s = model.strengths()
        triggered = torch.cat([log.triggered(s) for log in logs])
        total = float(s.background.sum())
    places = _places(logs)
    every = torch.cat(weights)
    used = []
    offset = 0
    for log in logs:
        used.append(log.used + offset)
        offset += len(log.sources.times)
    index = torch.cat(used)
    count = len(index)
    some = torch.linspace(0, count - 1, min(count, TRIED)).long()
    index = index[some]
    triggered = triggered[some]
    best = (-math.inf, ranks[0])
    for rank in ranks:
        if rank >= len(places):
            break
        variances = bandwidths(model, places, rank).square()
        shares = every / every.sum()
        sources = torch.cat([places, variances[:, None], shares[:, None]], 1)
        density = leave_one_out(model, sources, index)
        for share in (0.5, 0.8, 0.95):
            uniform = (1 - share) / model.area
            rate = total * (share * density + uniform) + triggered
            value = float(rate.log().sum())
            best = max(best, (value, rank))
    return best[1]


def _places(logs: list[Log]) -> Float[Tensor, "N 2"]:
    """Where the events of all sequences are."""
    return torch.cat([log.sources.places for log in logs if log.sources.places is not None])


def bandwidths(model: ETAS, places: Float[Tensor, "N 2"], rank: int) -> Float[Tensor, " N"]:
    """The distance of every place to its neighbour number ``rank``, in km."""
    from scipy.spatial import cKDTree

    points = places.numpy()
    rank = min(rank, len(points) - 1)
    tree = cKDTree(points)
    distance, _ = tree.query(points, k=rank + 1)
    furthest = np.atleast_2d(distance)[:, -1]
    narrowest = NARROWEST * math.sqrt(model.area)
    return torch.from_numpy(np.maximum(furthest, narrowest))


def leave_one_out(
    model: ETAS, sources: Float[Tensor, "S 4"], index: Int[Tensor, " J"]
) -> Float[Tensor, " J"]:
    """The density of kernels at the centres of those at ``index``, each without its own."""
    centres = sources[:, :2]
    variances = sources[:, 2]
    weights = sources[:, 3]
    inside = regions.mass(centres, variances, model.corners)
    shares = weights / inside
    every = smoothed(centres[index], centres, variances, shares)
    peaks = shares / (2 * math.pi * variances)
    others = (every - peaks[index]).clamp(min=0)
    left = (1 - weights[index]).clamp(min=1e-9)
    return others / left
