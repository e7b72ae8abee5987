"""Rates that are sums of normal bumps over the window: the non-homogeneous processes of the paper's
experiments.

    Bumps           lambda(t) = sum_b f_b(t),           f_b(t) = c_b phi(s_b (t - start - centre_b))
    FilteredBumps   lambda(t) = E[sum_b U_b f_b(t) | past],   U_b ~ U[0, 1] afresh in every sequence

phi is the standard normal density. Both are truths rather than models to fit: they have no
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fourpoint.events import Batch, Dataset, MarkSpace
from fourpoint.models.base import PointProcess
from fourpoint.models.positions import FromPositions, Positions, extended, positions_of

Bump = tuple[float, float, float]  # height c, speed s, centre


class Bumps(FromPositions):
    """A Poisson process whose rate is a sum of normal bumps, ``sum_b c_b phi(s_b (t - start -
    centre_b))``.

    ``bumps`` are triples (c, s, centre): rate at the top times sqrt(2 pi), speed per unit of time,
    place in the window.

    >>> from fourpoint.events import Sequence
    >>> model, nothing = Bumps([(100.0, 1.0, 0.5)]), Sequence([], start=0.0, stop=1.0).batch()
    >>> round(
    ...     model.closed_integral(
    ...         model.encode(nothing), nothing.start[:, None], nothing.stop[:, None]
    ...     ).item(),
    ...     2,
    ... )
    38.29
    """

    has_closed_integral = True
    has_upper_bound = True
    table: Tensor

    def __init__(self, bumps: tuple[Bump, ...] | list[Bump]) -> None:
        super().__init__()
        self.marks = MarkSpace()
        self.register_buffer("table", torch.tensor(bumps, dtype=torch.float64).reshape(-1, 3))

    def settings(self) -> dict[str, Any]:
        return {"bumps": self.table.tolist()}

    def initialise(self, data: Dataset) -> list[str]:
        return ["a known rate: nothing to take from the data"]

    def log_intensity(
        self,
        history: Positions,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q 1"]:
        since = times - history.start[:, None, None]
        return log_bumps(self.table, since).logsumexp(-1, keepdim=True)

    def closed_integral(
        self,
        history: Positions,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G 1"]:
        start = history.start[:, None]
        until_b = bump_integrals(self.table, b - start)
        until_a = bump_integrals(self.table, a - start)
        return (until_b - until_a).sum(-1, keepdim=True)

    def upper_bound(
        self,
        history: Positions,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """An upper bound of the rate on [a, b]: the sum of each bump's highest point there."""
        start = history.start
        return highest_bumps(self.table, a - start, b - start).sum(-1)


@dataclass(frozen=True, eq=False)
class Amplitudes(Positions):
    """Positions, and at each the log weight of every point of a grid of amplitudes, before the
    factor of no events.
    """

    scores: Float[Tensor, "B P A"]


def _with_scores(positions: Positions, scores: Float[Tensor, "B P A"]) -> Amplitudes:
    return Amplitudes(
        times=positions.times,
        start=positions.start,
        lengths=positions.lengths,
        earlier=positions.earlier,
        scores=scores,
    )


class FilteredBumps(PointProcess[Amplitudes]):
    """The rate of :class:`Bumps` with unknown amplitudes U_b ~ U[0, 1], given the past: ``E[sum_b
    U_b f_b(t) | past]``.

    On a Gauss-Legendre grid of amplitudes u, with F_b the integral of f_b from the start,

        log w_t(u) = log w_0(u) + sum_{t_i < t} log(sum_b u_b f_b(t_i)) - sum_b u_b F_b(t),
        lambda(t) = sum_u w_t(u) sum_b u_b f_b(t) / sum_u w_t(u),
            int_a^b lambda = log sum_u w_a(u) - log sum_u w_b(u).

    ``points`` per amplitude: 32 are exact to rounding for tens of events.

    >>> from fourpoint.events import Sequence
    >>> model, nothing = (
    ...     FilteredBumps([(100.0, 1.0, 0.5)]),
    ...     Sequence([], start=0.0, stop=1.0).batch(),
    ... )
    >>> rate = model.intensity(model.encode(nothing), torch.tensor([[0.0, 0.5]]).double())
    >>> [
    ...     round(x, 2) for x in rate.flatten().tolist()
    ... ]  # half of the full rate, and far less after silence
    [17.6, 2.08]
    """

    linear = True
    has_closed_integral = True
    has_upper_bound = True
    table: Tensor
    grid: Tensor
    prior: Tensor

    def __init__(self, bumps: tuple[Bump, ...] | list[Bump], points: int = 32) -> None:
        super().__init__()
        self.marks = MarkSpace()
        self.points = points
        B = len(bumps)
        table = torch.tensor(bumps, dtype=torch.float64).reshape(-1, 3)
        x, w = np.polynomial.legendre.leggauss(points)
        amplitudes = torch.from_numpy((x + 1) / 2)
        log_weights = torch.from_numpy(np.log(w / 2))
        grid = torch.cartesian_prod(*[amplitudes] * B).reshape(-1, B)
        prior = torch.cartesian_prod(*[log_weights] * B).reshape(-1, B)
        self.register_buffer("table", table)
        self.register_buffer("grid", grid.T.contiguous())
        self.register_buffer("prior", prior.sum(-1))

    def settings(self) -> dict[str, Any]:
        return {"bumps": self.table.tolist(), "points": self.points}

    def initialise(self, data: Dataset) -> list[str]:
        return ["a known rate: nothing to take from the data"]

    def encode(self, batch: Batch, before: Amplitudes | None = None) -> Amplitudes:
        positions = positions_of(batch, before)
        if before is None:
            first = self.prior.expand(len(batch.start), -1)
        else:
            first = _last(before)
        gains = self._log_rates(batch.times - positions.start[:, None])
        scores = torch.cat([first[:, None], gains], 1).cumsum(1)
        return _with_scores(positions, scores)

    def extend(
        self,
        history: Amplitudes,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> Amplitudes:
        after = extended(history, time, active)
        old = _last(history)
        since = time - history.start
        new = old + self._log_rates(since[:, None])[:, 0]
        if active is not None:
            new = torch.where(active[:, None], new, old)
        return _with_scores(after, new[:, None])

    def log_intensity(
        self,
        history: Amplitudes,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q 1"]:
        since = times - history.start[:, None, None]
        answers = []
        for b, x in enumerate(since):  # one sequence at a time, as the grid makes every query large
            scores = _scores(history, seen, b, len(x))
            log_weights = self._log_weights(scores[:, None], x)
            weighted = (log_weights + self._log_rates(x)).logsumexp(-1)
            answers.append(weighted - log_weights.logsumexp(-1))
        return torch.stack(answers)[..., None]

    def closed_integral(
        self,
        history: Amplitudes,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G 1"]:
        answers = []
        for row, start in enumerate(history.start):
            scores = _scores(history, seen, row, a.shape[1])
            left = self._log_weights(scores, a[row] - start)
            right = self._log_weights(scores, b[row] - start)
            answers.append(left.logsumexp(-1) - right.logsumexp(-1))
        return torch.stack(answers)[..., None]

    def upper_bound(
        self,
        history: Amplitudes,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """An upper bound of the rate on [a, b]: no amplitude is above 1."""
        start = history.start
        return highest_bumps(self.table, a - start, b - start).sum(-1)

    def _log_weights(
        self,
        scores: Float[Tensor, "*S A"],
        since: Float[Tensor, "*T"],
    ) -> Float[Tensor, "*T A"]:
        """log w at times since the start, for scores that broadcast against them."""
        return scores - bump_integrals(self.table, since) @ self.grid

    def _log_rates(self, since: Float[Tensor, "*S"]) -> Float[Tensor, "*S A"]:
        """log sum_b u_b f_b for every u of the grid."""
        logs = log_bumps(self.table, since)
        top = logs.amax(-1, keepdim=True)
        scaled = (logs - top).exp() @ self.grid
        return scaled.log() + top


def log_bumps(table: Float[Tensor, "bumps 3"], x: Float[Tensor, "*S"]) -> Float[Tensor, "*S bumps"]:
    """log f_b at x since the start."""
    height, speed, centre = table.unbind(-1)
    deviation = speed * (x[..., None] - centre)
    exponent = -0.5 * deviation.square()
    return height.log() + exponent - 0.5 * log(2 * pi)


def bump_integrals(
    table: Float[Tensor, "bumps 3"],
    x: Float[Tensor, "*S"],
) -> Float[Tensor, "*S bumps"]:
    """F_b(x), the integral of f_b from 0 to x since the start."""
    height, speed, centre = table.unbind(-1)
    until_x = torch.special.ndtr(speed * (x[..., None] - centre))
    at_start = torch.special.ndtr(-speed * centre)
    return height / speed * (until_x - at_start)


def highest_bumps(
    table: Float[Tensor, "bumps 3"],
    a: Float[Tensor, " B"],
    b: Float[Tensor, " B"],
) -> Float[Tensor, "B bumps"]:
    """The largest f_b on [a, b] since the start: at the centre, or at the end next to it."""
    centre = table[:, 2]
    nearest = torch.maximum(centre, a[:, None])
    nearest = torch.minimum(nearest, b[:, None])
    logs = log_bumps(table, nearest)
    return logs.diagonal(dim1=1, dim2=2).exp()


def _scores(history: Amplitudes, seen: Tensor | None, b: int, groups: int) -> Float[Tensor, "G A"]:
    if seen is None:
        return history.scores[b, :groups]
    return history.scores[b, seen[b]]


def _last(history: Amplitudes) -> Float[Tensor, "B A"]:
    row = torch.arange(len(history.lengths))
    return history.scores[row, history.lengths]
