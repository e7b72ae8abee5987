"""The self-correcting process: pressure builds with time and every event releases some of it.

    lambda(t) = exp(base + drift (t - start) - correction N(t)),
        N(t) = number of events strictly before t

The base is the log of the rate at the start, per unit of time; it is 0 in the process of the
literature, whose rate is therefore 1 there in whatever unit time is measured. A constant rate is
the case drift = correction = 0.

Between events the rate is an exponential, so that its integral has a closed form,

    int_a^b lambda = (b - a) exp(base + drift (a - start) - correction N) E(drift (b - a)),
        E(x) = (exp(x) - 1) / x,

and the log-likelihood is concave in (base, drift, correction). Isham and Westcott (1979). One mark
only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fourpoint.events import Dataset, MarkSpace, UserError
from fourpoint.models.base import exposed_pieces, space_without_places
from fourpoint.models.positions import FromPositions, Positions, counts
from fourpoint.ops.minimise import Minimum, newton_minimum


class SelfCorrecting(FromPositions):
    """Rate ``exp(base + drift (t - start) - correction N(t))``; ``drift`` is per unit of time,
    ``correction`` per event, and ``base`` is the log of the rate at the start.

    >>> from fourpoint.events import Sequence
    >>> model = SelfCorrecting(drift=2.0, correction=1.0)
    >>> history = model.encode(Sequence([1.0], start=0.0, stop=3.0).batch())
    >>> model.intensity(history, torch.tensor([[0.0, 1.0, 1.5]]).double()).log().flatten().tolist()
    [0.0, 2.0, 2.0]
    """

    has_closed_integral = True
    has_upper_bound = True
    fits_in_closed_form = True

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        drift: float = 1.0,
        correction: float = 1.0,
        base: float = 0.0,
    ) -> None:
        super().__init__()
        self.marks = space_without_places(marks, "self-correcting")
        if self.marks.count > 1:
            raise UserError(
                "a single type of event",
                f"{self.marks}",
                "Fit one SelfCorrecting per type, or a model with marks.",
            )
        self.drift = nn.Parameter(torch.tensor(float(drift), dtype=torch.float64))
        self.correction = nn.Parameter(torch.tensor(float(correction), dtype=torch.float64))
        self.base = nn.Parameter(torch.tensor(float(base), dtype=torch.float64))

    def settings(self) -> dict[str, Any]:
        """Drift, correction and base as they are now."""
        return {
            "drift": self.drift.item(),
            "correction": self.correction.item(),
            "base": self.base.item(),
        }

    def initialise(self, data: Dataset) -> list[str]:
        """Set the base to the data's mean rate, and the drift so that it balances the correction
        there.
        """
        rate = _mean_rate(data)
        with torch.no_grad():
            self.base.fill_(math.log(rate))
            self.drift.copy_(self.correction * rate)
        return [f"drift {self.drift.item():.4g} per unit of time, to balance {rate:.4g} events"]

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit base, drift and correction by Newton's method on the exact likelihood, from the
        constant rate of a Poisson process, below whose likelihood it does not end.

        The search is in log lambda = c_0 + c_1 s / unit + c_2 (rate s - N) with the mean rate and
        the mean length of a window as the unit, s since the start: the time and the number of
        events alone are nearly proportional in a long log, and the units of time would matter.
        """
        rate = _mean_rate(data)
        unit = float(data.durations.mean()) or 1.0
        left, length, before, weight = _pieces(data)
        scored = data.scored
        times = data.times - np.repeat(data.starts, data.lengths)
        since = float(times[scored].sum())
        earlier = np.arange(data.events) - np.repeat(data.offsets[:-1], data.lengths)
        pairs = float(earlier[scored].sum())
        sums = torch.tensor(
            [data.scored_events, since / unit, rate * since - pairs], dtype=torch.float64
        )

        def loss(c: Tensor) -> Tensor:
            drift = c[1] / unit + c[2] * rate
            first = weight * (c[0] + drift * left - c[2] * before).exp()
            integral = (first * length * _growth(drift * length)).sum()
            return (integral - c @ sums) / max(data.scored_events, 1)

        first = torch.tensor([math.log(rate), 0.0, 0.0], dtype=torch.float64)
        if not data.scored_events:
            found = Minimum(first, float(loss(first)), 0, 0.0)
        else:
            found = newton_minimum(loss, first)
        with torch.no_grad():
            self.base.copy_(found.point[0])
            self.drift.copy_(found.point[1] / unit + found.point[2] * rate)
            self.correction.copy_(found.point[2])
        said = ", ".join(f"{name} {value:.4g}" for name, value in self.settings().items())
        return [
            f"{said} by maximum likelihood: {found.steps} steps of Newton's method, largest "
            f"gradient left {found.gradient:.1e}"
        ]

    def log_intensity(
        self,
        history: Positions,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q 1"]:
        count = counts(history, seen)[..., None]
        return self._log_rate(history, times, count)[..., None]

    def closed_integral(
        self,
        history: Positions,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G 1"]:
        """Expected events in [a, b] while no event intervenes, in closed form."""
        count = counts(history, seen)[..., None]
        first = self._log_rate(history, a[..., None], count)
        growth = _growth(self.drift * (b - a))
        return (b - a)[..., None] * first.exp() * growth[..., None]

    @torch.no_grad()
    def upper_bound(
        self,
        history: Positions,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """The largest rate on [a, b] seen from the last position: it is monotone, so that one of
        the ends has it.
        """
        ends = torch.stack([a, b], 1)[:, None]
        logs = self.log_intensity(history, ends, history.lengths[:, None])
        return logs.exp().amax((1, 2, 3))

    def _log_rate(
        self,
        history: Positions,
        times: Float[Tensor, "B G Q"],
        count: Int[Tensor, "B G 1"],
    ) -> Float[Tensor, "B G Q"]:
        since = times - history.start[:, None, None]
        return self.base + self.drift * since - self.correction * count.to(times.dtype)


def _mean_rate(data: Dataset) -> float:
    """Events per unit of observed time; half an event where there is none."""
    return max(data.scored_events, 0.5) / float(data.exposed_times.sum())


def _growth(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """E(x) = (exp(x) - 1) / x, by its series near 0 so that the gradient keeps its digits."""
    small = x.abs() < 1e-3
    series = 1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5)))
    safe = torch.where(small, 1.0, x)
    exact = torch.expm1(safe) / safe
    return torch.where(small, series, exact)


def _pieces(
    data: Dataset,
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, " R"]]:
    """Every gap of the data, from start to stop, cut at the steps of the exposure: its left end
    since the start, its length, the events before it, and its exposure.
    """
    found = []
    for rows in data.batches(256):
        batch = data.batch(rows)
        exposure = batch.scored_exposure
        left = batch.edges[:, :-1]
        right = batch.edges[:, 1:]
        seen = torch.arange(left.shape[1]).expand_as(left)
        weight = torch.ones_like(left)
        if exposure is not None:
            left, right, seen = exposed_pieces(batch, exposure)
            weight = exposure.at(left)[..., 0]
        since = left - batch.start[:, None]
        kept = right > left
        parts = (since, right - left, seen.double(), weight)
        found.append([part[kept] for part in parts])
    since, length, before, weights = (torch.cat(parts) for parts in zip(*found, strict=True))
    return since, length, before, weights
