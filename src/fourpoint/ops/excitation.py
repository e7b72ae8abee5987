r"""The log-likelihood of an exponential Hawkes process with its first and second derivatives, in
one pass over the events.

With types n, decays beta_j (j = 1..J) and theta_m = (mu_m, alpha_{j m n}), the rate of type m is
linear in theta_m,

    lambda_m(t) = mu_m + sum_j sum_n alpha_{j m n} beta_j R_jn(t),
    R_jn(t)     = sum_{t_i < t, m_i = n} exp(-beta_j (t - t_i)),
    log L = sum_i log lambda_{m_i}(t_i) - sum_m mu_m T - sum_{j m n} alpha_{j m n} (N_n - R_jn),

with N_n the events of type n and R_jn summed over the ends of all windows. Where time has a weight
w (`ops.ages`), T is the weighted time, N_n the sum of w at the events of type n, R_jn is summed
over the steps of w too, each times what w falls by there, and the first sum is over scored events.

Derivatives in u_j = log beta_j need two more moments of the ages, R' = sum (beta a) exp(-beta a)
and R'' = sum (beta a)^2 exp(-beta a): of beta R they are beta (R - R') and beta (R - 3 R' + R'').
All of them come from one recursion over the events. The pass is a compiled loop
(`kernels.numba_excitation`) where numba is installed and there is enough work to repay loading it,
and otherwise scans without a loop over events (`ops.ages`); both give the same numbers to
rounding.
Source: Ozaki, "Maximum likelihood estimation of Hawkes' self-exciting point processes" (1979).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from fourpoint import kernels
from fourpoint.ops.ages import LOOPED, Timeline, fades, inside, moment_blocks


@dataclass(frozen=True)
class Derivatives:
    """log L with its gradient and curvature: one row per type m; columns mu_m, alpha_{j m n} with j
    slowest, then u_j.

    log L is the sum over rows, and so are gradient and curvature in the columns of u, which hold
    what row m contributes. Where an event has no rate its row's value is -inf and the rest of the
    row means nothing. What was not asked for has no columns.
    """

    values: Float[ndarray, " M"]
    gradient: Float[ndarray, "M V"]
    curvature: Float[ndarray, "M C C"]

    @property
    def value(self) -> float:
        """log L."""
        return float(self.values.sum())


def log_likelihood(
    line: Timeline,
    mu: Float[ndarray, " M"],
    alpha: Float[ndarray, "J M M"],
    beta: Float[ndarray, " J"],
    *,
    compiled: bool | None = None,
) -> float:
    """log L; ``compiled`` insists on one of the two recursions, and None leaves the choice to the
    amount of work.

    >>> from fourpoint.ops.ages import timeline
    >>> one = timeline(
    ...     np.array([1.0]), np.array([0]), np.array([0, 1]), np.zeros(1), np.array([2.0]), 1
    ... )
    >>> log_likelihood(
    ...     one, np.array([2.0]), np.array([[[0.5]]]), np.array([1e3])
    ... )  # log 2 - 2 * 2 - 0.5
    -3.80685281944005...
    """
    theta = rows_of(mu, alpha)
    found = derivatives(line, theta, np.log(beta), order=0, compiled=compiled)
    return found.value


def rows_of(mu: Float[ndarray, " M"], alpha: Float[ndarray, "J M M"]) -> Float[ndarray, "M W"]:
    """theta: one row per type, mu_m and then alpha_{j m n} with j slowest."""
    jumps = alpha.transpose(1, 0, 2).reshape(len(mu), -1)
    return np.concatenate([mu[:, None], jumps], 1)


def derivatives(
    line: Timeline,
    theta: Float[ndarray, "M W"],
    u: Float[ndarray, " J"],
    *,
    order: int = 2,
    compiled: bool | None = None,
) -> Derivatives:
    """log L and its derivatives up to ``order`` (0, 1 or 2) in theta and u = log beta, in one pass.

    Work is O(n J M) for orders 0 and 1, and O(n (J M)^2), as sums of outer products, for order 2.

    >>> from fourpoint.ops.ages import timeline
    >>> line = timeline(
    ...     np.array([1.0, 3.0]),
    ...     np.array([0, 0]),
    ...     np.array([0, 2]),
    ...     np.zeros(1),
    ...     np.array([4.0]),
    ...     1,
    ... )
    >>> derivatives(line, np.array([[2.0, 0.0]]), np.zeros(1), order=1).gradient[
    ...     0, 0
    ... ]  # two events at a rate of 2, less 4
    np.float64(-3.0)
    """
    J = len(u)
    beta = np.exp(u)
    loops = None
    if compiled is None:
        loops = kernels.EXCITATION.choose(len(line.gaps) * J * line.types)
    elif compiled:
        loops = kernels.EXCITATION.load()
    sums = _nothing(theta, J, J, order)
    if loops is None:
        scan_events(sums, line, theta, beta, order)
    else:
        _loop_events(sums, line, theta, beta, order, *loops)
    return _less_integral(sums, line, theta, order)


def third_derivatives(
    line: Timeline,
    theta: Float[ndarray, "M W"],
    u: Float[ndarray, " J"],
    directions: Float[ndarray, "M D V"],
) -> Float[ndarray, "M D"]:
    r"""Third derivatives of each row's log-likelihood along ``directions`` in (theta_m, u).

    With lambda_1 and lambda_2 the first and second derivative of the rate along the direction,

        sum_i 2 (lambda_1 / lambda)^3 - 3 lambda_1 lambda_2 / lambda^2,

    where the sum over the third derivative of the rate less its integral, which has mean 0, is left
    out. Directions with NaN give NaN.

    >>> from fourpoint.ops.ages import timeline
    >>> line = timeline(
    ...     np.array([1.0, 3.0]),
    ...     np.array([0, 0]),
    ...     np.array([0, 2]),
    ...     np.zeros(1),
    ...     np.array([4.0]),
    ...     1,
    ... )
    >>> along_mu = np.array([[[1.0, 0.0, 0.0]]])
    >>> third_derivatives(line, np.array([[0.5, 0.0]]), np.zeros(1), along_mu)  # 2 * 2 / .5^3
    array([[32.]])
    """
    M, W = theta.shape
    J = len(u)
    beta = np.exp(u)
    found = np.zeros(directions.shape[:2])
    for block, moments, _ in moment_blocks(line, beta, 3):
        rises = _rises(beta, moments)
        for m, own in _scored_by_type(line, block):
            r0, r1, r2 = (x[..., own] for x in rises)
            r0 = r0.reshape(J * M, -1)
            alpha = theta[m, 1:].reshape(J, M)
            rate = theta[m, 0] + theta[m, 1:] @ r0
            along_mu = directions[m, :, :1]
            along_alpha = directions[m, :, 1:W]
            turns = directions[m, :, W:]
            gradient_u = np.einsum("jn,jni->ji", alpha, r1)
            bend_u = np.einsum("jn,jni->ji", alpha, r2)
            first = along_mu + along_alpha @ r0 + turns @ gradient_u
            shares = along_alpha.reshape(-1, J, M) * turns[..., None]
            mixed = shares.reshape(len(shares), -1) @ r1.reshape(J * M, -1)
            second = 2 * mixed + turns**2 @ bend_u
            ratio = first / rate
            each = 2 * ratio**3 - 3 * ratio * (second / rate)
            found[m] += each.sum(1)
    return found


class Design:
    """The likelihood at fixed decays, where it is concave in theta: what multiplies alpha at each
    event is formed once.
    """

    def __init__(self, line: Timeline, u: Float[ndarray, " J"]) -> None:
        J = len(u)
        M = line.types
        beta = np.exp(u)
        self.line = line
        self.left = np.zeros((1, J, M))
        found: list[list[ndarray]] = [[np.zeros((J, M, 0))] for _ in range(M)]
        for block, moments, at_stop in moment_blocks(line, beta, 1):
            self.left += at_stop
            (rise,) = _rises(beta, moments)
            for m, own in _scored_by_type(line, block):
                found[m].append(rise[..., own])
        self.rises = [np.concatenate(parts, -1) for parts in found]

    def derivatives(self, theta: Float[ndarray, "M W"]) -> Derivatives:
        """Value, gradient and curvature in theta alone."""
        sums = _nothing(theta, self.left.shape[1], 0, 2)
        sums.left = self.left
        for m, rise in enumerate(self.rises):
            _add_events(sums, m, theta[m], [rise], 2)
        return _less_integral(sums, self.line, theta, 2)


# ---------------------------------------------------------------------- sums over events


@dataclass
class _Sums:
    """What the events add to values, gradient and curvature, and the moments at the ends of
    windows.
    """

    values: Float[ndarray, " M"]
    gradient: Float[ndarray, "M V"]
    curvature: Float[ndarray, "M C C"]
    left: Float[ndarray, "K J M"]


def _nothing(theta: Float[ndarray, "M W"], decays: int, free: int, order: int) -> _Sums:
    """Sums before the first event; ``free`` of the decays have columns of their own."""
    M = len(theta)
    V = theta.shape[1] + free
    C = V if order > 1 else 0
    return _Sums(
        values=np.zeros(M),
        gradient=np.zeros((M, V)),
        curvature=np.zeros((M, C, C)),
        left=np.zeros((3, decays, M)),
    )


def _less_integral(
    sums: _Sums, line: Timeline, theta: Float[ndarray, "M W"], order: int
) -> Derivatives:
    """The sums over events less mu T + alpha (1 - exp(-beta (stop - t_i))) and its derivatives."""
    M, W = theta.shape
    left = sums.left
    free = sums.gradient.shape[1] > W
    alpha = theta[:, 1:].reshape(M, *left.shape[1:])
    masses = line.exposed - left[0]
    cost = np.concatenate([[line.duration], masses.ravel()])
    sums.gradient[:, :W] -= cost
    if free and order > 0:
        sums.gradient[:, W:] -= (alpha * left[1]).sum(2)
    if free and order > 1:
        mixed = -left[1]
        bend = left[1] - left[2]
        for m in range(M):
            _add_decay_terms(sums.curvature[m], W, mixed, -alpha[m] * bend)
    values = sums.values - theta @ cost
    return Derivatives(values, sums.gradient, sums.curvature)


def _add_decay_terms(
    curvature: Float[ndarray, "V V"],
    W: int,
    mixed: Float[ndarray, "J M"],
    pure: Float[ndarray, "J M"],
) -> None:
    """Second derivatives of what is linear in alpha: of alpha_{j n} with u_j, and of u_j twice."""
    J, M = mixed.shape
    for j in range(J):
        first = 1 + j * M
        own = slice(first, first + M)
        here = W + j
        curvature[own, here] += mixed[j]
        curvature[here, own] += mixed[j]
        curvature[here, here] += pure[j].sum()


def _loop_events(
    sums: _Sums,
    line: Timeline,
    theta: Float[ndarray, "M W"],
    beta: Float[ndarray, " J"],
    order: int,
    one_type: Any,
    many_types: Any,
) -> None:
    """Block by block through the compiled loops."""
    state = np.zeros_like(sums.left)
    gradient = sums.gradient
    curvature = sums.curvature
    left = sums.left
    for block, ages, fade in fades(line, beta, LOOPED):
        rates = np.empty(fade.shape[1])
        marks = line.marks[block]
        within = inside(line.last, block)
        ends = line.last[within] - block.start
        probes = (ends, line.tails[within], line.changes[within])
        scored = line.scored[block]
        if theta.shape == (1, 2) and order == 2:
            mu, alpha = theta[0]
            one_type(
                fade[0],
                ages[0],
                *probes,
                scored,
                mu,
                alpha,
                beta[0],
                state[:, 0, 0],
                rates,
                gradient[0],
                curvature[0],
                left[:, 0, 0],
            )
        else:
            many_types(
                fade,
                ages,
                *probes,
                scored,
                line.source[block],
                marks,
                theta,
                beta,
                order,
                state,
                rates,
                gradient,
                curvature,
                left,
            )
        if line.types == 1:
            sums.values += _log_sum(rates)
        else:
            with np.errstate(divide="ignore"):
                sums.values += np.bincount(marks, np.log(rates), line.types)


def scan_events(
    sums: _Sums,
    line: Timeline,
    theta: Float[ndarray, "M W"],
    beta: Float[ndarray, " J"],
    order: int,
) -> None:
    """Block by block through scans and matrix products."""
    for block, moments, at_stop in moment_blocks(line, beta, order + 1):
        sums.left[: order + 1] += at_stop
        rises = _rises(beta, moments)
        for m, own in _scored_by_type(line, block):
            at_events = [x[..., own] for x in rises]
            _add_events(sums, m, theta[m], at_events, order)


def _add_events(
    sums: _Sums,
    m: int,
    row: Float[ndarray, " W"],
    rises: list[Float[ndarray, "J M n"]],
    order: int,
) -> None:
    """Events of type m, at which the rate is row[0] + row[1:] rises[0]."""
    J, M, n = rises[0].shape
    W = len(row)
    alpha = row[1:].reshape(J, 1, M)
    rise = rises[0].reshape(J * M, n)
    rate = row[1:] @ rise + row[0]
    sums.values[m] += _log_sum(rate)
    if order == 0 or sums.values[m] == -np.inf:
        return
    weight = 1 / rate
    scaled = np.empty((sums.gradient.shape[1], n))
    scaled[0] = weight
    np.multiply(rise, weight, out=scaled[1:W])
    if len(rises) > 1:
        by_u = (alpha @ rises[1])[:, 0]
        np.multiply(by_u, weight, out=scaled[W:])
    sums.gradient[m] += scaled.sum(1)
    if order < 2:
        return
    sums.curvature[m] -= scaled @ scaled.T
    if len(rises) > 1:
        mixed = rises[1] @ weight
        pure = alpha[:, 0] * (rises[2] @ weight)
        _add_decay_terms(sums.curvature[m], W, mixed, pure)


def _rises(
    beta: Float[ndarray, " J"], moments: Float[ndarray, "K J M n"]
) -> list[Float[ndarray, "J M n"]]:
    """beta R and its first and second derivatives in log beta, as many as there are moments."""
    scaled = beta[:, None, None] * moments
    if len(moments) > 2:
        scaled[2] += scaled[0] - 3 * scaled[1]
    if len(moments) > 1:
        scaled[1] = scaled[0] - scaled[1]
    return list(scaled)


def _log_sum(rates: Float[ndarray, " n"]) -> float:
    if len(rates) and not rates.min() > 0:
        return -np.inf
    return float(np.log(rates).sum())


def _scored_by_type(line: Timeline, block: slice) -> Iterator[tuple[int, Any]]:
    """Each type with the places in the block of its scored events."""
    scored = line.scored[block]
    if scored.all():
        yield from _by_type(line.marks[block], line.types)
        return
    places = np.flatnonzero(scored)
    for m, own in _by_type(line.marks[block][places], line.types):
        yield m, places[own]


def _by_type(marks: Int[ndarray, " n"], types: int) -> Iterator[tuple[int, Any]]:
    """Each type with the places of its events."""
    if types == 1:
        yield 0, slice(None)
        return
    order = np.argsort(marks, kind="stable")
    edges = np.searchsorted(marks[order], np.arange(types + 1))
    for m in np.flatnonzero(np.diff(edges)).tolist():
        yield m, order[edges[m] : edges[m + 1]]
