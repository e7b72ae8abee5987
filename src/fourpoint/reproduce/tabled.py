r"""The paper's form with 10,000 features, evaluated at the cost of a few: its scores are read off a
table.

Products of random-phase cosines are sums of two functions of one number each,

    nu_k(x, x') = f_k(t - t') + h_k(t + t'),
    f(d) = sum_j w_j cos(theta_j d + psi_j - psi'_j),
    h(s) = sum_j w_j cos(theta_j s + psi_j + psi'_j + 2 b_j),

one pair of them for each pair of marks. Both are tabulated with their derivatives and read by cubic
Hermite interpolation, whose error is at most h^4 / 384 sum_j w_j theta_j^4 for a grid of width h;
the grid keeps it below ``ERROR``. So evaluation costs the same for any number of features, and
every query gets the sum that the direct evaluation forms. The model itself is not changed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fourpoint.events import Batch
from fourpoint.models import DAPP
from fourpoint.models.base import PointProcess, position_before
from fourpoint.models.dapp_history import DAPPHistory, Parts, require
from fourpoint.models.past import memory_of, past_of
from fourpoint.ops import attention, selection

ERROR = 1e-6
CELLS = 2**20  # of a table at most, over all pairs of marks; beyond it the direct sum is used
PIECE, LARGE = 2**21, 2**25  # numbers formed at once, on a CPU and on other devices


def tabled(model: PointProcess, longest: float) -> PointProcess:
    """``model`` with tabled scores for windows up to ``longest`` (the user's unit), or ``model``
    itself where that has no use.

    That is the case for all but random-phase Fourier scores, and for windows that would need more
    than ``CELLS`` cells.
    """
    if not isinstance(model, DAPP):
        return model
    settings = model.settings()
    if settings["phase"] != "random" or settings["score"] != "fourier":
        return model
    reach = longest / float(model.time_scale)
    with torch.no_grad():
        spectrum = model.spectrum(fixed=True)
        fourth = float((spectrum.weight * spectrum.frequency**4).sum(1).max())
    cells = int(reach * (fourth / (384 * ERROR)) ** 0.25) + 1
    return model if cells * model.marks.count**2 > CELLS else Tabled(model, reach, cells)


class Tabled(PointProcess[DAPPHistory]):
    """A DAPP whose intensity is computed from tables, for likelihoods and intensities.

    Weights and their device are those of the model when this one is made.
    """

    lags: Tensor
    sums: Tensor

    @torch.no_grad()
    def __init__(self, model: DAPP, reach: float, cells: int) -> None:
        super().__init__()
        self.model = model
        self.marks = model.marks
        s = model.spectrum(fixed=True)
        self.parts = Parts(s, model.rate.baseline.curves())
        self.width = reach / cells
        phase = 0.0 if s.phase is None else s.phase.double()[..., None, None]
        psi = s.shift.double()
        turns = (
            psi[..., :, None] - psi[..., None, :],
            psi[..., :, None] + psi[..., None, :] + 2 * phase,
        )
        theta = s.frequency.double()
        weight = s.weight.double()
        tables = [
            _table(theta, weight, turn.flatten(2), self.width, n * cells)
            for n, turn in enumerate(turns, 1)
        ]
        for name, table in zip(("lags", "sums"), tables, strict=True):  # (K, M M, cells, 4)
            self.register_buffer(name, table.to(model.readout), persistent=False)

    @property
    def linear(self) -> bool:
        """As the model itself."""
        return self.model.linear

    def settings(self) -> dict[str, Any]:
        """Those of the model itself."""
        return self.model.settings()

    def encode(self, batch: Batch, before: DAPPHistory | None = None) -> DAPPHistory:
        """The model's own history; where memory is bounded, events are chosen by tabled scores
        too.
        """
        model = self.model
        if before is not None:
            return model.encode(batch, before)
        times = torch.cat([batch.start[:, None], batch.times], 1)
        elapsed = model.elapsed(batch.times, batch.start)
        past = past_of(batch.times, batch.marks, model.event_values(elapsed, batch.marks))
        history = DAPPHistory(times, batch.start, batch.lengths, self.parts, None, past)
        if model.settings()["keep"] is None:
            return history
        heads = len(model.readout)
        events = batch.times.shape[1]
        own = batch.marks[:, None, :, None, None].expand(-1, heads, -1, 1, events)
        nu = self._scores(elapsed, elapsed, batch.marks).gather(3, own)[:, :, :, 0]
        none = selection.empty(len(nu), min(model.kept_events(), nu.shape[2]), nu.shape[1], nu)
        active, gone = selection.run(none, nu, batch.valid, model.settings()["normalise"])
        past = replace(past, dropped=selection.dropped_at(gone, nu.shape[2]))
        return replace(history, past=past, memory=memory_of(past, active))

    def log_intensity(
        self, history: DAPPHistory, times: Tensor, seen: Tensor | None = None
    ) -> Tensor:
        """log lambda at ``times`` (B, G, Q), as the model computes it, its scores read off the
        tables.
        """
        model, (B, G, Q) = self.model, times.shape
        index = torch.arange(G, device=times.device).expand(B, G) if seen is None else seen
        past = require(history.past)
        query = model.elapsed(times, history.start)
        events = model.elapsed(past.times, history.start)
        mask = attention.per_head(past.mask(index))[:, :, :, None, None]
        sums = []
        most = PIECE if times.device.type == "cpu" else LARGE
        size = max(1, most // max(1, B * G * past.times[0].numel() * model.readout.numel()))
        for first in range(0, Q, size):
            some = query[:, :, first : first + size].flatten(1)
            nu = self._scores(some, events, past.marks).unflatten(2, (G, -1))
            weights = attention.normalised(nu, mask, model.settings()["normalise"])
            sums.append(
                torch.einsum("bkgqmn,bnk,km->bgqm", weights, past.values, model.readout_weights())
            )
        z = torch.cat(sums, 2)
        since = times - history.start[:, None, None]
        log_rate = model.rate.log_rate(z, since, history.parts.curves)
        return log_rate - model.time_scale.log().to(z)

    def intensity(self, history: DAPPHistory, times: Tensor) -> Tensor:
        """lambda per mark at any times."""
        seen = position_before(history, times)
        return self.log_intensity(history, times[..., None], seen)[:, :, 0].exp()

    def knots(self, history: DAPPHistory) -> Tensor | None:
        """The model's own."""
        return self.model.knots(history)

    def _scores(self, query: Tensor, events: Tensor, marks: Tensor) -> Tensor:
        """nu_k for every query (B, Q), mark and event (B, N) or (B, N, K), as (B, K, Q, M, N)."""
        K, M = self.model.readout.shape
        if events.ndim == 2:
            events = events[..., None]
            marks = marks[..., None]
        now = query[:, None, :, None, None]
        then = events.permute(0, 2, 1)[:, :, None, None]
        pair = (
            torch.arange(M, device=marks.device)[:, None] * M
            + marks.permute(0, 2, 1)[:, :, None, None]
        )
        head = torch.arange(K, device=marks.device)[:, None, None, None]
        lag = (now - then).clamp(min=0)
        total = now + then
        return _read(self.lags, self.width, head, pair, lag) + _read(
            self.sums, self.width, head, pair, total
        )


def _table(theta: Tensor, weight: Tensor, turn: Tensor, width: float, cells: int) -> Tensor:
    """The cubic of each cell, in u from 0 to 1, of sum_j w_j cos(theta_j x + turn_jp) from x = 0
    on: (K, P, cells, 4).

    Every point is a coarse step and a fine one, cos(a + b) = cos a cos b - sin a sin b, so that the
    sums over modes are products of two small matrices and the cosines number 2 sqrt(cells) per
    mode.
    """
    side = math.isqrt(cells) + 1
    fine, coarse = (
        torch.arange(side, dtype=torch.float64, device=theta.device) * step
        for step in (width, side * width)
    )
    curves = []
    for k in range(len(theta)):
        angle = (coarse[:, None] * theta[k] + turn[k].T[:, None]).flatten(0, 1)  # (P side, D)
        left = [weight[k] * angle.cos(), weight[k] * angle.sin()]
        right = [(theta[k][:, None] * fine).cos(), (theta[k][:, None] * fine).sin()]  # (D, side)
        speed = theta[k][:, None]
        value = left[0] @ right[0] - left[1] @ right[1]
        derivative = -(left[1] @ (speed * right[0])) - left[0] @ (speed * right[1])
        both = torch.stack([value, width * derivative])
        curves.append(both.reshape(2, turn.shape[2], -1)[..., : cells + 1])
    value, derivative = torch.stack(curves, 1)
    rise = value.diff(dim=-1)
    low = derivative[..., :-1]
    high = derivative[..., 1:]
    quadratic = 3 * rise - 2 * low - high
    cubic = low + high - 2 * rise
    return torch.stack([value[..., :-1], low, quadratic, cubic], -1)


def _read(table: Tensor, width: float, head: Tensor, pair: Tensor, x: Tensor) -> Tensor:
    place = x / width
    cell = place.long().clamp(max=table.shape[2] - 1)
    u = (place - cell).to(table)
    shape = torch.broadcast_shapes(cell.shape, pair.shape, head.shape)
    row = ((head * table.shape[1] + pair) * table.shape[2] + cell).expand(shape)
    a = table.reshape(-1, 4)[row]
    return a[..., 0] + u * (a[..., 1] + u * (a[..., 2] + u * a[..., 3]))
