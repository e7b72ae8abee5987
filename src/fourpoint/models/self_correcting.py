"""The self-correcting process: pressure builds with time and every event releases some of it.

    lambda(t) = exp(drift (t - start) - correction N(t)),  N(t) = number of events strictly before t

Between events the rate is an exponential, so that its integral has a closed form,

    int_a^b lambda = (b - a) exp(drift (a - start) - correction N) E(drift (b - a)),
        E(x) = (exp(x) - 1) / x,

and the log-likelihood is concave in (drift, correction). Isham and Westcott (1979). One mark only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fourpoint.events import Dataset, MarkSpace, UserError
from fourpoint.models.base import exposed_pieces, space_without_places
from fourpoint.models.positions import FromPositions, Positions, counts
from fourpoint.ops.minimise import minimise


class SelfCorrecting(FromPositions):
    """Rate ``exp(drift (t - start) - correction N(t))``; ``drift`` is per unit of time,
    ``correction`` per event.

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

    def settings(self) -> dict[str, Any]:
        """Drift and correction as they are now."""
        return {"drift": self.drift.item(), "correction": self.correction.item()}

    def initialise(self, data: Dataset) -> list[str]:
        """Set the drift so that it balances the correction at the data's mean rate."""
        rate = data.scored_events / float(data.exposed_times.sum())
        with torch.no_grad():
            self.drift.copy_(self.correction * rate)
        return [f"drift {self.drift.item():.4g} per unit of time, to balance {rate:.4g} events"]

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit drift and correction by L-BFGS on the exact likelihood, from a constant rate of 1."""
        unit = float(data.durations.mean()) or 1.0
        left, length, before, weight = _pieces(data)
        scored = data.scored
        events = max(data.scored_events, 1)
        times = data.times - np.repeat(data.starts, data.lengths)
        since = torch.from_numpy(times)[scored].sum()
        earlier = np.arange(data.events) - np.repeat(data.offsets[:-1], data.lengths)
        pairs = float(earlier[scored].sum())

        def loss(c: Tensor) -> Tensor:
            drift = c[0] / unit
            correction = c[1]
            first = weight * (drift * left - correction * before).exp()
            growth = _growth(drift * length)
            integral = (first * length * growth).sum()
            return (integral - drift * since + correction * pairs) / events

        found = minimise(loss, torch.zeros(2))
        with torch.no_grad():
            self.drift.copy_(found.point[0] / unit)
            self.correction.copy_(found.point[1])
        drift = self.drift.item()
        correction = self.correction.item()
        return [f"drift {drift:.4g} and correction {correction:.4g} by maximum likelihood: {found}"]

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
        return self.drift * since - self.correction * count.to(times.dtype)


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
