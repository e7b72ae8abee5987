r"""Sums over pairs of a query and an earlier event, the costly part of an ETAS likelihood.

    sum_{i < seen_j} exp(a' z_i) (s_ij + c)^-p exp(-omega s_ij) D_i^-1 (1 + r_ij^2 / D_i)^-q,
    s_ij = t_j - t_i,    r_ij = |x_j - x_i|,    D_i = exp(l + gamma delta_i)

without the last two factors where events have no places. Gradients are those in
theta = (c, p, omega, l, gamma, q, a); times and places are data.

:func:`trigger_sums` chooses the compiled loop (`kernels.TRIGGERING`), which forms the sums and
their derivatives in one pass; :func:`plain_trigger_sums` is the definition.

Axes: J queries, N sources, F features, T = 6 + F parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fourpoint import kernels
from fourpoint.kernels.autograd import Context

SCALARS = 6  # c, p, omega, l, gamma, q
TOLERANCE = 2e-6  # of the fourth-order term of a group of events, as a share of the rate
SHARE = 0.02  # of the rate: most that a group of which one event is drawn can contribute
QUERIES = 16_384  # whose groups are held at once by :func:`grouped_sums`
PAIRS = 2**22  # compared at once by the plain function


class Sources(NamedTuple):
    """Events that trigger others: when (N,), where (N, 2) or None, delta (N,) and z (N, F)."""

    times: Float[Tensor, " N"]
    places: Float[Tensor, "N 2"] | None
    delta: Float[Tensor, " N"]
    features: Float[Tensor, "N F"]


class Queries(NamedTuple):
    """Times and places at which the rate is asked for; query j sees the sources before number
    ``seen[j]``, in their order.
    """

    times: Float[Tensor, " J"]
    places: Float[Tensor, "J 2"] | None
    seen: Int[Tensor, " J"]


def trigger_sums(
    sources: Sources, queries: Queries, theta: Float[Tensor, " T"]
) -> Float[Tensor, " J"]:
    """The sums for every query, with gradient in ``theta``.

    >>> one = torch.ones(1).double()
    >>> sources = Sources(0 * one, None, 0 * one, one[:, None])
    >>> queries = Queries(one, None, torch.ones(1, dtype=torch.int64))
    >>> theta = torch.tensor([1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]).double()
    >>> trigger_sums(sources, queries, theta).item()  # (1 + 1)^-2
    0.25
    """
    loop = kernels.TRIGGERING.choose(_pairs(sources, queries), theta.device.type)
    if loop is None:
        return plain_trigger_sums(sources, queries, theta)
    found: Tensor = _Compiled.apply(theta, sources, queries, loop)
    return found


def _pairs(sources: Sources, queries: Queries) -> int:
    """The number of pairs of a query and a source."""
    return len(queries.times) * len(sources.times)


def _some_queries(queries: Queries, rows: Int[Tensor, " R"]) -> Queries:
    """Some of the queries."""
    places = None if queries.places is None else queries.places[rows]
    return Queries(queries.times[rows], places, queries.seen[rows])


def plain_trigger_sums(
    sources: Sources, queries: Queries, theta: Float[Tensor, " T"]
) -> Float[Tensor, " J"]:
    """As :func:`trigger_sums`, from all pairs."""
    count = max(1, PAIRS // max(1, len(sources.times)))
    found = []
    every = torch.arange(len(queries.times), device=theta.device)
    for rows in every.split(count):
        found.append(_some(sources, _some_queries(queries, rows), theta))
    return torch.cat(found) if found else theta.new_zeros(0)


def _some(sources: Sources, queries: Queries, theta: Float[Tensor, " T"]) -> Float[Tensor, " J"]:
    c, p, omega, level, gamma, q = theta[:SCALARS]
    index = torch.arange(len(sources.times), device=theta.device)
    known = index < queries.seen[:, None]
    lag = torch.where(known, queries.times[:, None] - sources.times, 1.0)
    productivity = sources.features @ theta[SCALARS:]
    logs = productivity - p * (lag + c).log() - omega * lag
    if sources.places is not None and queries.places is not None:
        log_width = level + gamma * sources.delta
        apart = (queries.places[:, None] - sources.places).square().sum(-1)
        ratio = apart * torch.exp(-log_width)
        logs = logs - log_width - q * torch.log1p(ratio)
    return torch.where(known, logs.exp(), 0.0).sum(1)


def sums_with_derivatives(
    sources: Sources, queries: Queries, theta: Float[Tensor, " T"], plan: Planned | None = None
) -> tuple[Float[Tensor, " J"], Float[Tensor, "J T"]]:
    """The sums for every query, by a plan where there is one, and their derivatives in ``theta``.

    >>> one = torch.ones(1).double()
    >>> sources = Sources(0 * one, None, 0 * one, one[:, None])
    >>> queries = Queries(one, None, torch.ones(1, dtype=torch.int64))
    >>> theta = torch.tensor([1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]).double()
    >>> sums_with_derivatives(sources, queries, theta)[1][0, 0].item()  # of (1 + c)^-2 at c = 1
    -0.25
    """
    theta = theta.detach()
    if plan is not None:
        values, derivatives = plan.run(theta, differentiated=True)
        return torch.from_numpy(values), torch.from_numpy(derivatives)
    loop = kernels.TRIGGERING.choose(_pairs(sources, queries), theta.device.type)
    if loop is not None:
        values, derivatives = loop(*_arrays(sources, queries), theta.numpy(), True)
        return torch.from_numpy(values), torch.from_numpy(derivatives)
    with torch.enable_grad():
        point = theta.clone().requires_grad_()
        sums = plain_trigger_sums(sources, queries, point)
        # The product of the Jacobian's transpose with v is linear in v; its derivatives in v are
        # the columns of the Jacobian.
        v = torch.ones_like(sums, requires_grad=True)
        (product,) = torch.autograd.grad(sums, point, v, create_graph=True)
        columns = [torch.autograd.grad(one, v, retain_graph=True)[0] for one in product]
    return sums.detach(), torch.stack(columns, 1)


class Planned:
    """The sums of queries by groups of events: a plan made at ``theta``, whose sums have exact
    gradients in the parameters.

    Arguments
        floor: a lower bound (J,) of each query's rate in the units of the sums: the background over
            the factor of the sums.
        tolerance: of the fourth-order term of a group, as a share of the rate.
        share: largest possible contribution of a group of which one event is drawn in its place, as
            a share of the rate; 0 for sums without draws.
    """

    def __init__(
        self,
        sources: Sources,
        queries: Queries,
        theta: Float[Tensor, " T"],
        floor: Float[Tensor, " J"],
        tolerance: float = TOLERANCE,
        share: float = SHARE,
    ) -> None:
        self.sources = sources
        self.queries = queries
        self.loops = kernels.TRIGGER_TREE.load()
        from fourpoint.kernels.numba_trigger_tree import Asked, Events, make_plan

        times, places, delta, features, at, where, seen = _arrays(sources, queries)
        events = Events(times, places, delta, features)
        asked = Asked(at, where, seen, floor.detach().numpy())
        point = theta.detach().numpy()
        self.plan = make_plan(self.loops, events, asked, point, tolerance, share)

    @property
    def entries(self) -> float:
        """Events and groups per query."""
        return float(self.plan.offsets[-1]) / max(1, len(self.queries.times))

    def run(
        self, theta: Float[Tensor, " T"], *, differentiated: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The sums at other parameters and their derivatives, which are 0 unless
        ``differentiated``.
        """
        from fourpoint.kernels.numba_trigger_tree import run

        arrays = _arrays(self.sources, self.queries)
        features, at, where = arrays[3], arrays[4], arrays[5]
        point = theta.detach().numpy()
        return run(self.loops, self.plan, features, at, where, point, differentiated)

    def __call__(self, theta: Float[Tensor, " T"]) -> Float[Tensor, " J"]:
        """The sums at other parameters."""
        found: Tensor = _ByPlan.apply(theta, self)
        return found


def planned(
    sources: Sources,
    queries: Queries,
    theta: Float[Tensor, " T"],
    floor: Float[Tensor, " J"],
    tolerance: float = TOLERANCE,
) -> Planned | None:
    """A plan, where there are so many pairs that it pays; None where full sums are quicker."""
    if kernels.TRIGGER_TREE.choose(_pairs(sources, queries), theta.device.type) is None:
        return None
    return Planned(sources, queries, theta, floor, tolerance)


@torch.no_grad()
def grouped_sums(
    sources: Sources,
    queries: Queries,
    theta: Float[Tensor, " T"],
    floor: Float[Tensor, " J"],
    tolerance: float = TOLERANCE,
) -> Float[Tensor, " J"]:
    """The sums once, without gradient, with distant events in groups that are chosen for some
    queries after the other; from all pairs where that is quicker.
    """
    if kernels.TRIGGER_TREE.choose(_pairs(sources, queries), theta.device.type) is None:
        return trigger_sums(sources, queries, theta)
    from fourpoint.kernels import numba_trigger_tree as trees

    loops = kernels.TRIGGER_TREE.load()
    times, places, delta, features, at, where, seen = _arrays(sources, queries)
    point = theta.detach().numpy()
    events = trees.Events(times, places, delta, features)
    grouped = trees.group(loops, events, point)
    level = floor.detach().numpy()
    found = np.zeros(len(at))
    for low in range(0, len(at), QUERIES):
        some = slice(low, low + QUERIES)
        asked = trees.Asked(at[some], where[some], seen[some], level[some])
        plan = trees.plan_of(loops, grouped, asked, tolerance, SHARE, delta)
        found[some], _ = trees.run(loops, plan, features, at[some], where[some], point, False)
    return torch.from_numpy(found)


@torch.no_grad()
def tree_error(
    plan: Planned, theta: Float[Tensor, " T"], floor: Float[Tensor, " J"], count: int = 400
) -> tuple[float, float]:
    """The mean and the mean absolute error of the logarithm of rates by a plan, against full sums
    at ``count`` queries spread evenly.
    """
    last = len(plan.queries.times) - 1
    rows = torch.linspace(0, last, count).long().unique()
    some = _some_queries(plan.queries, rows)
    exact = trigger_sums(plan.sources, some, theta) + floor[rows]
    grouped = plan(theta)[rows] + floor[rows]
    change = (grouped / exact).log()
    return float(change.mean()), float(change.abs().mean())


class _ByPlan(torch.autograd.Function):
    """The sums of a plan."""

    @staticmethod
    def forward(ctx: Context, theta: Tensor, plan: Planned) -> Tensor:
        values, derivatives = plan.run(theta, differentiated=ctx.needs_input_grad[0])
        ctx.save_for_backward(torch.from_numpy(derivatives))
        return torch.from_numpy(values)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None]:
        (derivatives,) = ctx.saved_tensors
        return grad @ derivatives, None


class _Compiled(torch.autograd.Function):
    """The compiled loop, which finds values and derivatives together."""

    @staticmethod
    def forward(
        ctx: Context, theta: Tensor, sources: Sources, queries: Queries, loop: kernels.Loop
    ) -> Tensor:
        point = theta.detach().numpy()
        values, derivatives = loop(*_arrays(sources, queries), point, ctx.needs_input_grad[0])
        ctx.save_for_backward(torch.from_numpy(derivatives))
        return torch.from_numpy(values)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (derivatives,) = ctx.saved_tensors
        return grad @ derivatives, None, None, None


def _arrays(sources: Sources, queries: Queries) -> tuple[NDArray[Any], ...]:
    """What the loop takes: sources, then queries; places of 0 columns where there are none."""
    found: list[NDArray[Any]] = []
    for part in (*sources, *queries):
        if part is None:
            found.append(np.zeros((0, 2)))
        else:
            found.append(np.ascontiguousarray(part.detach().numpy()))
    return tuple(found)
