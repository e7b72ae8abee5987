r"""Maximum likelihood for ETAS: gradients, the background, and standard errors.

    log L = sum over scored events of log lambda(t_j, x_j) - int over the scored time and the region

The integral is a sum over events: the background times the scored time, and K exp(alpha (m_i -
m_c)) times the share of g in the scored time and of f in the region. Parameters are found by
L-BFGS. A background of kernels is found in turn with them, as in stochastic declustering: the
weight of event i is the probability mu(x_i) / lambda(t_i, x_i) that it is background, given the
parameters. The density of kernels at a training event leaves out the event itself; otherwise the
likelihood would grow without bound as bandwidths shrink. The rank of the neighbour whose distance
is the bandwidth is chosen by that leave-one-out likelihood.

Axes: N events, J scored events, S sources.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, UserError
from fourpoint.ops import omori, regions
from fourpoint.ops.minimise import Minimum
from fourpoint.ops.smoothing import smoothed
from fourpoint.ops.triggering import (
    Planned,
    Queries,
    Sources,
    planned,
    tree_error,
    trigger_sums,
)

if TYPE_CHECKING:
    from fourpoint.models.etas import ETAS, Strengths

ROUNDS = 12  # of parameters and background in turn
STEPS = 10  # of L-BFGS in each of them but the first and the last
SETTLED = 2e-4  # nats per event that a round gains at the end
NEIGHBOURS = (5, 10, 20, 40, 80, 160)
TRIED = 1000  # events that the choice among them looks at
NARROWEST = 1e-4  # bandwidth, as a share of the region's width
FURTHEST = 6.0  # that a parameter, mostly a logarithm, goes from its start
DIFFERENCE = 1e-4  # of parameters, for second derivatives


def maximise(model: ETAS, data: Dataset) -> list[str]:
    """Fit ``model`` to ``data``; what was found, in lines.

    Raises :class:`UserError` where nothing is scored or an event lies outside the region.
    """
    _check(model, data)
    logs = [Log(model, data.batch([row])) for row in range(len(data))]
    notes = []
    if model.box is not None and model.background == "kernel":
        _climb(model, logs, data, 2 * STEPS)
        notes += _background_in_turn(model, logs, data)
    found = _climb(model, logs, data, 300)
    model.errors = standard_errors(model, logs)
    values = model.estimates()
    said = ", ".join(
        f"{name} {value:.4g}" + (f" ({model.errors[name]:.2g})" if name in model.errors else "")
        for name, value in values.items()
    )
    notes = [f"{said} (standard errors in brackets)", *notes, f"maximum likelihood: {found}"]
    notes += [line for log in logs for line in log.said(model)]
    ratio = model.branching_ratio()
    notes.append(f"branching ratio {ratio:.3g}")
    if ratio >= 1:
        notes.append(f"the branching ratio {ratio:.3f} is 1 or more: forecasts explode")
    return notes


class Log:
    """One sequence, as the likelihood needs it; ``density`` is that of the background's kernels at
    scored events, without the event itself.
    """

    def __init__(self, model: ETAS, batch: Batch) -> None:
        history = model.encode(batch)
        n = int(batch.lengths[0])
        places = None if history.places is None else history.places[0, :n]
        self.sources = Sources(
            history.when[0, :n].detach(),
            places,
            history.delta[0, :n].detach(),
            history.features[0, :n].detach(),
        )
        scored = torch.nonzero(batch.scored[0, :n])[:, 0]
        self.scored = scored
        self.queries = Queries(
            self.sources.times[scored], None if places is None else places[scored], scored
        )
        self.pieces = scored_pieces(batch)
        self.density: Float[Tensor, " J"] | None = None
        self.plan: Planned | None = None

    @torch.no_grad()
    def floor(self, model: ETAS) -> Float[Tensor, " J"]:
        """The background at scored events, in the units of the sums of `ops.triggering`."""
        s = model.strengths()
        background = self._background(model, s)
        return background / s.log_factor(self.sources.places is not None).exp()

    @torch.no_grad()
    def make_plan(self, model: ETAS) -> None:
        """Sum distant events in groups from now on, chosen at the parameters as they are."""
        theta = model.strengths().theta()
        self.plan = planned(self.sources, self.queries, theta, self.floor(model))

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

    def _background(self, model: ETAS, s: Strengths) -> Float[Tensor, " J"]:
        count = len(self.scored)
        if self.sources.places is None:
            return s.background.sum().expand(count)
        uniform = (s.background[0] / model.area).expand(count)
        return uniform if self.density is None else uniform + s.background[1] * self.density

    def rates(self, model: ETAS, s: Strengths) -> tuple[Tensor, Tensor]:
        """The background's part of the rate at scored events, and the triggered one."""
        if self.plan is None:
            sums = trigger_sums(self.sources, self.queries, s.theta())
        else:
            sums = self.plan(s.theta())
        triggered = s.log_factor(self.sources.places is not None).exp() * sums
        return self._background(model, s), triggered

    def integral(self, model: ETAS, s: Strengths) -> Tensor:
        """The expected number of scored events."""
        share = torch.zeros_like(self.sources.times)
        time = 0.0
        for a, b, exposure in self.pieces:
            late = omori.cumulative((b - self.sources.times).clamp(min=0), s.p, s.c, s.taper)
            soon = omori.cumulative((a - self.sources.times).clamp(min=0), s.p, s.c, s.taper)
            share = share + exposure * (late - soon)
            time += exposure * (b - a)
        factor = (self.sources.features @ s.weight).exp()
        if self.sources.places is not None:
            width = torch.exp(s.log_width + s.gamma * self.sources.delta)
            factor = factor * regions.mass(self.sources.places, width, model.corners, s.q)
        return s.background.sum() * time + s.productivity * (factor * share).sum()


def log_likelihood(model: ETAS, logs: list[Log]) -> Tensor:
    """The log-likelihood of all sequences, with gradient in the model's parameters."""
    s = model.strengths()
    total = torch.zeros((), dtype=torch.float64)
    for log in logs:
        background, triggered = log.rates(model, s)
        total = total + (background + triggered).log().sum() - log.integral(model, s)
    return total


def free_parameters(model: ETAS) -> list[nn.Parameter]:
    """Those that are fitted."""
    return [p for p in model.parameters() if p.requires_grad]


def _climb(model: ETAS, logs: list[Log], data: Dataset, steps: int) -> Minimum:
    """Maximise over the parameters, from where they are."""
    from scipy.optimize import minimize

    for log in logs:
        log.make_plan(model)
    first = flat_parameters(model).numpy()
    events = max(1, data.scored_events)

    def value_and_gradient(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        put_parameters(model, torch.from_numpy(point))
        value, gradient = _value_and_gradient(model, logs)
        if not math.isfinite(value):
            return 1e10, np.zeros_like(point)
        return -value / events, -gradient.numpy() / events

    bounds = [(x - FURTHEST, x + FURTHEST) for x in first.tolist()]
    options = {"maxiter": steps, "maxcor": 30, "ftol": 1e-13, "gtol": 1e-7}
    found = minimize(
        value_and_gradient, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    point = torch.from_numpy(found.x)
    put_parameters(model, point)
    return Minimum(point, float(found.fun), int(found.nit), float(abs(found.jac).max(initial=0.0)))


def _value_and_gradient(model: ETAS, logs: list[Log]) -> tuple[float, Tensor]:
    free = free_parameters(model)
    with torch.enable_grad():
        value = log_likelihood(model, logs)
        parts = torch.autograd.grad(value, free, allow_unused=True)
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(free, parts, strict=True)]
    return float(value.detach()), torch.cat([g.flatten() for g in flat])


def flat_parameters(model: ETAS) -> Tensor:
    """The fitted parameters in one row."""
    return torch.cat([p.detach().flatten() for p in free_parameters(model)]).clone()


@torch.no_grad()
def put_parameters(model: ETAS, point: Tensor) -> None:
    """Set the fitted parameters from one row."""
    free = free_parameters(model)
    for value, parameter in zip(point.split([p.numel() for p in free]), free, strict=True):
        parameter.copy_(value.reshape(parameter.shape))


def standard_errors(model: ETAS, logs: list[Log]) -> dict[str, float]:
    """Standard errors of :meth:`ETAS.estimates` from the curvature of the log-likelihood, by the
    delta method; none for parameters in which it is flat.

    The Hessian is a central difference of exact gradients. A background of kernels counts as known.
    """
    centre = flat_parameters(model)
    size = len(centre)
    hessian = torch.zeros(size, size, dtype=torch.float64)
    names = list(model.estimates())
    jacobian = torch.zeros(len(names), size, dtype=torch.float64)
    for k in range(size):
        step = torch.zeros_like(centre)
        step[k] = DIFFERENCE
        ends = []
        for sign in (1.0, -1.0):
            put_parameters(model, centre + sign * step)
            values = torch.tensor(list(model.estimates().values()), dtype=torch.float64)
            ends.append((_value_and_gradient(model, logs)[1], values))
        hessian[k] = (ends[0][0] - ends[1][0]) / (2 * DIFFERENCE)
        jacobian[:, k] = (ends[0][1] - ends[1][1]) / (2 * DIFFERENCE)
    put_parameters(model, centre)
    information = -(hessian + hessian.T) / 2
    used = information.diagonal() > 0
    inverse = torch.linalg.pinv(information[used][:, used], hermitian=True)
    variances = ((jacobian[:, used] @ inverse) * jacobian[:, used]).sum(1)
    return {
        name: math.sqrt(float(variance))
        for name, variance in zip(names, variances, strict=True)
        if variance > 0
    }


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
    return [
        (a, b, value)
        for a, b, value in zip(edges[:-1], edges[1:], values, strict=True)
        if value > 0
    ]


# -------------------------------------------------------------------- the background


def _background_in_turn(model: ETAS, logs: list[Log], data: Dataset) -> list[str]:
    """Kernels and parameters in turn until the likelihood settles."""
    best = -math.inf
    rank = 0
    for count in range(ROUNDS):
        weights = [background_probabilities(model, log) for log in logs]
        if count < 2:
            rank = _best_rank(model, logs, weights, NEIGHBOURS)
        _place_kernels(model, logs, weights, rank)
        found = _climb(model, logs, data, STEPS)
        if -found.value < best + SETTLED:
            break
        best = -found.value
    with torch.no_grad():
        level = model.strengths().background
        share = float(level[1] / level.sum())
    return [
        f"background: kernels around {len(model.sources):,} events with the distance to neighbour "
        f"{rank} as bandwidth ({share:.0%}), and a uniform part, after {count + 1} rounds"
    ]


@torch.no_grad()
def background_probabilities(model: ETAS, log: Log) -> Float[Tensor, " N"]:
    """The probability that each event is background, mu(x) / lambda(t, x), events of a history
    period included.
    """
    s = model.strengths()
    n = len(log.sources.times)
    every = Queries(log.sources.times, log.sources.places, torch.arange(n))
    if log.sources.places is None:
        background = s.background.sum().expand(n)
    else:
        background = model.background_density(log.sources.places)
    factor = s.log_factor(log.sources.places is not None).exp()
    plan = planned(log.sources, every, s.theta(), background / factor)
    if plan is None:
        triggered = factor * trigger_sums(log.sources, every, s.theta())
    else:
        triggered = factor * plan(s.theta())
    return background / (background + triggered)


def _place_kernels(model: ETAS, logs: list[Log], weights: list[Tensor], rank: int) -> None:
    """Kernels of all events in the model, and their density at scored events."""
    places = torch.cat([log.sources.places for log in logs if log.sources.places is not None])
    every = torch.cat(weights)
    sources = torch.cat(
        [places, bandwidths(model, places, rank).square()[:, None], every[:, None]], 1
    )
    sources[:, 3] /= sources[:, 3].sum()
    if len(model.sources) != len(sources):
        model.set_background(sources)
    model.sources = sources
    found = leave_one_out(model, sources, torch.arange(len(sources)))
    offset = 0
    for log in logs:
        log.density = found[offset + log.scored]
        offset += len(log.sources.times)


def _best_rank(model: ETAS, logs: list[Log], weights: list[Tensor], ranks: tuple[int, ...]) -> int:
    """The rank with the highest leave-one-out likelihood of some events, other parameters as they
    are.
    """
    with torch.no_grad():
        s = model.strengths()
        triggered = torch.cat([log.rates(model, s)[1] for log in logs])
        total = float(s.background.sum())
    places = torch.cat([log.sources.places for log in logs if log.sources.places is not None])
    every = torch.cat(weights)
    begins = np.cumsum([0, *(len(log.sources.times) for log in logs)])
    index = torch.cat([log.scored + int(k) for log, k in zip(logs, begins[:-1], strict=True)])
    some = torch.linspace(0, len(index) - 1, min(len(index), TRIED)).long()
    index, triggered = index[some], triggered[some]
    best = (-math.inf, ranks[0])
    for rank in ranks:
        if rank >= len(places):
            break
        width = bandwidths(model, places, rank).square()[:, None]
        sources = torch.cat([places, width, every[:, None] / every.sum()], 1)
        density = leave_one_out(model, sources, index)
        for share in (0.5, 0.8, 0.95):
            rate = total * (share * density + (1 - share) / model.area) + triggered
            best = max(best, (float(rate.log().sum()), rank))
    return best[1]


def bandwidths(model: ETAS, places: Float[Tensor, "N 2"], rank: int) -> Float[Tensor, " N"]:
    """The distance of every place to its neighbour number ``rank``, in km."""
    from scipy.spatial import cKDTree

    points = places.numpy()
    rank = min(rank, len(points) - 1)
    distance, _ = cKDTree(points).query(points, k=rank + 1)
    narrowest = NARROWEST * math.sqrt(model.area)
    return torch.from_numpy(np.maximum(np.atleast_2d(distance)[:, -1], narrowest))


def leave_one_out(
    model: ETAS, sources: Float[Tensor, "S 4"], index: Int[Tensor, " J"]
) -> Float[Tensor, " J"]:
    """The density of kernels at the centres of those at ``index``, each without its own."""
    inside = regions.mass(sources[:, :2], sources[:, 2], model.corners)
    weight = sources[:, 3] / inside
    every = smoothed(sources[index, :2], sources[:, :2], sources[:, 2], weight)
    own = (weight / (2 * math.pi * sources[:, 2]))[index]
    return (every - own).clamp(min=0) / (1 - sources[index, 3]).clamp(min=1e-9)
