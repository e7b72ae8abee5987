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
PIECE = 2**21  # numbers formed at once on a CPU
LARGE = 2**25  # numbers formed at once on other devices


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
        fourth = spectrum.weight * spectrum.frequency**4
        largest = float(fourth.sum(1).max())
    cells = int(reach * (largest / (384 * ERROR)) ** 0.25) + 1
    pairs = model.marks.count**2
    if cells * pairs > CELLS:
        return model
    return Tabled(model, reach, cells)


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
        phase: Tensor | float = 0.0
        if s.phase is not None:
            phase = s.phase.double()[..., None, None]
        psi = s.shift.double()
        of_query = psi[..., :, None]
        of_event = psi[..., None, :]
        turns = {
            "lags": of_query - of_event,
            "sums": of_query + of_event + 2 * phase,
        }
        theta = s.frequency.double()
        weight = s.weight.double()
        reached = {"lags": cells, "sums": 2 * cells}
        for name, turn in turns.items():
            table = _table(theta, weight, turn.flatten(2), self.width, reached[name])
            table = table.to(model.readout)  # (K, M M, cells, 4)
            self.register_buffer(name, table, persistent=False)

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
        values = model.event_values(elapsed, batch.marks)
        past = past_of(batch.times, batch.marks, values)
        history = DAPPHistory(times, batch.start, batch.lengths, self.parts, None, past)
        settings = model.settings()
        if settings["keep"] is None:
            return history
        heads = len(model.readout)
        events = batch.times.shape[1]
        own = batch.marks[:, None, :, None, None]
        own = own.expand(-1, heads, -1, 1, events)
        nu = self._scores(elapsed, elapsed, batch.marks)
        nu = nu.gather(3, own)[:, :, :, 0]
        kept = min(model.kept_events(), events)
        none = selection.empty(len(nu), kept, heads, nu)
        active, gone = selection.run(none, nu, batch.valid, settings["normalise"])
        past = replace(past, dropped=selection.dropped_at(gone, events))
        return replace(history, past=past, memory=memory_of(past, active))

    def log_intensity(
        self,
        history: DAPPHistory,
        times: Tensor,
        seen: Tensor | None = None,
    ) -> Tensor:
        """log lambda at ``times`` (B, G, Q), as the model computes it, its scores read off the
        tables.
        """
        model = self.model
        B, G, Q = times.shape
        index = seen
        if index is None:
            index = torch.arange(G, device=times.device).expand(B, G)
        past = require(history.past)
        query = model.elapsed(times, history.start)
        events = model.elapsed(past.times, history.start)
        mask = attention.per_head(past.mask(index))[:, :, :, None, None]
        normalise = model.settings()["normalise"]
        readout = model.readout_weights()
        most = PIECE if times.device.type == "cpu" else LARGE
        per_query = B * G * past.times[0].numel() * readout.numel()
        size = max(1, most // max(1, per_query))
        sums = []
        for first in range(0, Q, size):
            some = query[:, :, first : first + size].flatten(1)
            nu = self._scores(some, events, past.marks).unflatten(2, (G, -1))
            weights = attention.normalised(nu, mask, normalise)
            summed = torch.einsum("bkgqmn,bnk,km->bgqm", weights, past.values, readout)
            sums.append(summed)
        z = torch.cat(sums, 2)
        since = times - history.start[:, None, None]
        log_rate = model.rate.log_rate(z, since, history.parts.curves)
        log_unit = model.time_scale.log().to(z)
        return log_rate - log_unit

    def intensity(self, history: DAPPHistory, times: Tensor) -> Tensor:
        """lambda per mark at any times."""
        seen = position_before(history, times)
        log_rate = self.log_intensity(history, times[..., None], seen)
        return log_rate[:, :, 0].exp()

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
        of_query = torch.arange(M, device=marks.device)[:, None]
        of_event = marks.permute(0, 2, 1)[:, :, None, None]
        pair = of_query * M + of_event
        head = torch.arange(K, device=marks.device)[:, None, None, None]
        lag = (now - then).clamp(min=0)
        total = now + then
        f = _read(self.lags, self.width, head, pair, lag)
        h = _read(self.sums, self.width, head, pair, total)
        return f + h


def _table(theta: Tensor, weight: Tensor, turn: Tensor, width: float, cells: int) -> Tensor:
    """The cubic of each cell, in u from 0 to 1, of sum_j w_j cos(theta_j x + turn_jp) from x = 0
    on: (K, P, cells, 4).

    Every point is a coarse step and a fine one, cos(a + b) = cos a cos b - sin a sin b, so that the
    sums over modes are products of two small matrices and the cosines number 2 sqrt(cells) per
    mode.
    """
    side = math.isqrt(cells) + 1
    steps = torch.arange(side, dtype=torch.float64, device=theta.device)
    fine = steps * width
    coarse = steps * (side * width)
    curves = []
    for k in range(len(theta)):
        speed = theta[k][:, None]
        begin = coarse[:, None] * theta[k]
        angle = (begin + turn[k].T[:, None]).flatten(0, 1)  # (P side, D)
        cos_a = weight[k] * angle.cos()
        sin_a = weight[k] * angle.sin()
        within = speed * fine  # (D, side)
        cos_b = within.cos()
        sin_b = within.sin()
        value = cos_a @ cos_b - sin_a @ sin_b
        derivative = -(sin_a @ (speed * cos_b)) - cos_a @ (speed * sin_b)
        both = torch.stack([value, width * derivative])
        points = both.reshape(2, turn.shape[2], -1)
        curves.append(points[..., : cells + 1])
    value, derivative = torch.stack(curves, 1)
    rise = value.diff(dim=-1)
    constant = value[..., :-1]
    low = derivative[..., :-1]
    high = derivative[..., 1:]
    quadratic = 3 * rise - 2 * low - high
    cubic = low + high - 2 * rise
    return torch.stack([constant, low, quadratic, cubic], -1)


def _read(table: Tensor, width: float, head: Tensor, pair: Tensor, x: Tensor) -> Tensor:
    _, pairs, cells, _ = table.shape
    place = x / width
    cell = place.long().clamp(max=cells - 1)
    u = (place - cell).to(table)
    shape = torch.broadcast_shapes(cell.shape, pair.shape, head.shape)
    row = (head * pairs + pair) * cells + cell
    coefficients = table.reshape(-1, 4)[row.expand(shape)]
    constant, linear, quadratic, cubic = coefficients.unbind(-1)
    return constant + u * (linear + u * (quadratic + u * cubic))
