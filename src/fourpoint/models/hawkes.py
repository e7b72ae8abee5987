r"""The exponential Hawkes process: every event raises the rate at once, and the rise fades.

    lambda_m(t) = mu_m + sum_{t_i < t} alpha_{m, m_i} beta exp(-beta (t - t_i))

alpha is the branching ratio: the mean number of direct offspring, of type m, of an event of type m_i. mu is in events
per unit of time, beta per unit of time. All of mu, alpha and beta are found by maximum likelihood from the closed form

    log L = sum_i log lambda_{m_i}(t_i) - sum_m mu_m T - sum_i sum_m alpha_{m, m_i} (1 - exp(-beta (stop - t_i))),

in O(n M) by the recursion R(t_i) = exp(-beta (t_i - t_{i-1})) R(t_{i-1}) + 1. Labelled HP in the paper's tables.
Source: Hawkes, "Spectra of some self-exciting and mutually exciting point processes" (1971).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.maths.attention import scan
from fourpoint.models import protocol
from fourpoint.models.poisson import mean_rates


@dataclass(frozen=True)
class HawkesHistory:
    """R per past type at each position: the events so far, each weighted by exp(-beta age)."""

    times: Float[Tensor, "B P"]
    start: Float[Tensor, " B"]
    lengths: Int[Tensor, " B"]
    excitation: Float[Tensor, "B P M"]

    def latest(self) -> HawkesHistory:
        """The last position alone: all that is needed to go on."""
        return HawkesHistory(self.times[:, -1:], self.start, torch.zeros_like(self.lengths), self.excitation[:, -1:])


class Hawkes(nn.Module):
    """Exponential Hawkes process with one decay for all pairs of types.

    Arguments: ``marks``, the mark space; ``baseline`` mu in events per unit of time; ``branching`` alpha; ``decay`` beta
    per unit of time. They are starting values of parameters that :meth:`maximum_likelihood` estimates; ``errors`` holds
    their standard errors afterwards.

    >>> from fourpoint.events import Sequence
    >>> model = Hawkes(baseline=1.0, branching=0.5, decay=2.0)
    >>> batch = Sequence([1.0], start=0.0, stop=2.0).batch()
    >>> model.intensity(model.encode(batch), torch.tensor([[0.5, 1.5]], dtype=torch.float64)).flatten().tolist()
    [1.0, 1.3678794411714423]
    """

    linear = True

    def __init__(self, marks: MarkSpace | int | None = None, *, baseline: float = 1.0, branching: float = 0.3, decay: float = 1.0) -> None:
        super().__init__()
        if min(baseline, branching, decay) <= 0:
            raise UserError("positive baseline, branching and decay", f"{baseline}, {branching}, {decay}", "Raise them above 0.")
        self.marks = MarkSpace.of(marks)
        self._settings = dict(baseline=baseline, branching=branching, decay=decay)
        M, kind = self.marks.count, torch.float64
        self.log_baseline = nn.Parameter(torch.full((M,), baseline, dtype=kind).log())
        self.log_branching = nn.Parameter(torch.full((M, M), branching / M, dtype=kind).log())
        self.log_decay = nn.Parameter(torch.tensor(decay, dtype=kind).log())
        self.errors: dict[str, NDArray[np.float64]] = {}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    @property
    def estimates(self) -> dict[str, NDArray[np.float64]]:
        """mu (M,), alpha (M, M) with the past type second, and beta, in the user's unit of time."""
        values = dict(baseline=self.log_baseline, branching=self.log_branching, decay=self.log_decay)
        return {name: np.asarray(v.detach().exp().numpy()) for name, v in values.items()}

    @property
    def spectral_radius(self) -> float:
        """The branching ratio of the whole process; at 1 or more it explodes as time goes on."""
        return float(np.abs(np.linalg.eigvals(self.estimates["branching"])).max())

    def initialise(self, data: Dataset) -> list[str]:
        """Half of the mean rate per type as baseline, a branching ratio of a half, and one fade per four mean gaps."""
        gap = self._mean_gap(data)
        with torch.no_grad():
            self.log_baseline.copy_((mean_rates(data, self.marks) / 2).log())
            self.log_branching.fill_(float(np.log(0.5 / self.marks.count)))
            self.log_decay.fill_(-float(np.log(4 * gap)))
        return []

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit mu, alpha and beta, with standard errors from the observed information.

        For a given beta the likelihood is concave in (mu, alpha) and falls apart into one problem per type, so beta is
        searched alone, on a grid and then by Brent's method, over the best (mu, alpha) for each.
        """
        found = _Profile(self, data)
        beta = found.search(1 / (4 * float(data.durations.max())), 30 / self._mean_gap(data))
        with torch.no_grad():
            table = torch.from_numpy(found.table)
            self.log_baseline.copy_(table[:, 0].log())
            self.log_branching.copy_(table[:, 1:].log())
            self.log_decay.fill_(float(np.log(beta)))
        self.errors = found.errors(beta)
        radius = self.spectral_radius
        notes = [f"baseline {found.table[:, 0].sum():.4g} per unit of time, branching ratio {radius:.4g}, decay {beta:.4g}"]
        if radius >= 1:
            notes.append(f"the branching ratio {radius:.3f} is 1 or more: forecasts beyond the training window explode")
        return notes

    def _mean_gap(self, data: Dataset) -> float:
        gaps = data.gaps
        return float(gaps.mean()) if len(gaps) and gaps.mean() > 0 else float(data.durations.sum()) / max(data.events, 1)

    def exact_log_likelihood(self, batch: Batch) -> Float[Tensor, " B"]:
        """The closed form above, with gradient."""
        history = self.encode(batch)
        B, N = batch.times.shape
        seen = torch.arange(N).expand(B, N)
        logs = self.log_intensity(history, batch.times[..., None], seen)[:, :, 0].gather(2, batch.marks[..., None])[..., 0]
        edges = batch.edges
        integral = self.integral(history, edges[:, :-1], edges[:, 1:]).sum((1, 2))
        return torch.where(batch.valid, logs, 0.0).sum(1) - integral

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: HawkesHistory | None = None) -> HawkesHistory:
        """R at every position, by one scan."""
        anchor = batch.start[:, None] if before is None else before.times[:, -1:]
        times = torch.cat([anchor, batch.times], 1)
        own = nn.functional.one_hot(batch.marks, self.marks.count).to(torch.float64)
        driven = torch.where(batch.valid[..., None], own, 0.0)[:, :, None, None]
        first = torch.zeros_like(driven[:, 0]) if before is None and driven.shape[1] else None
        if first is None:
            first = (
                torch.zeros(len(times), 1, 1, self.marks.count, dtype=torch.float64)
                if before is None
                else before.excitation[:, -1, None, None]
            )
        rate = torch.complex(-self.log_decay.exp(), torch.zeros_like(self.log_decay)).reshape(1, 1)
        rest = scan(rate, times.diff(dim=1), driven.to(rate.dtype), first.to(rate.dtype)).real
        return HawkesHistory(
            times, batch.start if before is None else before.start, batch.lengths, torch.cat([first[:, None], rest], 1)[:, :, 0, 0]
        )

    def extend(
        self, history: HawkesHistory, time: Float[Tensor, " B"], mark: Int[Tensor, " B"], active: Bool[Tensor, " B"] | None = None
    ) -> HawkesHistory:
        """One event more; only the last position is kept."""
        active = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        row = torch.arange(len(time))
        last, old = history.times[row, history.lengths], history.excitation[row, history.lengths]
        faded = torch.exp(-self.log_decay.exp() * (time - last))[:, None] * old + nn.functional.one_hot(mark, self.marks.count)
        new = torch.where(active[:, None], faded, old)
        return HawkesHistory(torch.where(active, time, last)[:, None], history.start, torch.zeros_like(history.lengths), new[:, None])

    def log_intensity(
        self, history: HawkesHistory, times: Float[Tensor, "B G Q"], seen: Int[Tensor, "B G"] | None = None
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda per type."""
        anchor, excitation = _at(history, seen)
        fade = torch.exp(-self.log_decay.exp() * (times - anchor[..., None]))
        jump = self.log_decay.exp() * torch.einsum("bgn,mn->bgm", excitation, self.log_branching.exp())
        return torch.log(self.log_baseline.exp() + fade[..., None] * jump[:, :, None])

    def intensity(self, history: HawkesHistory, times: Float[Tensor, "B Q"]) -> Float[Tensor, "B Q M"]:
        """lambda per type at any times."""
        return protocol.intensity(self, history, times)

    def integral(
        self, history: HawkesHistory, a: Float[Tensor, "B G"], b: Float[Tensor, "B G"], seen: Int[Tensor, "B G"] | None = None
    ) -> Float[Tensor, "B G M"]:
        """int_a^b lambda per type, in closed form."""
        anchor, excitation = _at(history, seen)
        beta = self.log_decay.exp()
        faded = torch.exp(-beta * (a - anchor)) * -torch.expm1(-beta * (b - a))
        return (b - a)[..., None] * self.log_baseline.exp() + faded[..., None] * torch.einsum(
            "bgn,mn->bgm", excitation, self.log_branching.exp()
        )

    @torch.no_grad()
    def bound(self, history: HawkesHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The largest total rate on [a, b] seen from the last position: it fades, so that it is the rate at a."""
        return self.log_intensity(history, a[:, None, None], history.lengths[:, None]).exp().sum((1, 2, 3))


def _at(history: HawkesHistory, seen: Int[Tensor, "B G"] | None) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M"]]:
    if seen is None:
        return history.times, history.excitation
    row = torch.arange(len(seen))[:, None]
    return history.times[row, seen], history.excitation[row, seen]


class _Profile:
    """The likelihood of all data as a function of beta, each time at its best (mu, alpha); one row of ``table`` per type."""

    def __init__(self, model: Hawkes, data: Dataset) -> None:
        self.model, self.events = model, max(1, data.events)
        self.batches = [data.batch(rows) for rows in data.batches(64)]
        self.total = float(data.durations.sum())
        self.marks = np.concatenate([b.marks[b.valid].numpy() for b in self.batches])
        self.left = np.concatenate([(b.stop[:, None] - b.times)[b.valid].numpy() for b in self.batches])
        estimates = model.estimates
        self.table = np.concatenate([estimates["baseline"][:, None], estimates["branching"]], 1)

    def search(self, slowest: float, fastest: float) -> float:
        """The beta of highest likelihood."""
        from scipy.optimize import minimize_scalar

        grid = np.linspace(np.log(slowest), np.log(fastest), 12)
        best = int(np.argmin([self.loss(x) for x in grid]))
        low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
        beta = float(np.exp(minimize_scalar(self.loss, bounds=(low, high), method="bounded", options={"xatol": 1e-7}).x))
        self.loss(np.log(beta))
        return beta

    def loss(self, log_beta: float) -> float:
        """Minus the log-likelihood per event at the best (mu, alpha), which ``table`` then holds."""
        from scipy.optimize import minimize

        design, cost = self._design(float(np.exp(log_beta)))
        total = 0.0
        for row, x in zip(self.table, design, strict=True):

            def one(theta: NDArray[np.float64], x: NDArray[np.float64] = x) -> tuple[float, NDArray[np.float64]]:
                rate = x @ theta
                return (cost @ theta - np.log(rate).sum()) / self.events, (cost - x.T @ (1 / rate)) / self.events

            bounds = [(1e-12, None)] * len(row)
            found = minimize(one, row, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-10})
            row[:] = found.x
            total += float(found.fun)
        return total

    def errors(self, beta: float) -> dict[str, NDArray[np.float64]]:
        """Standard errors: the inverse of the observed information over the parameters that are not at 0 (NaN for those).

        The block of (mu, alpha) is exact; what involves beta comes from central differences in beta.
        """
        step = 1e-4 * beta
        here, above, below = (self._gradient(b) for b in (beta, beta + step, beta - step))
        M, width = self.table.shape
        information = np.zeros((M * width + 1, M * width + 1))
        for m, x in enumerate(self._design(beta)[0]):
            scaled = x / (x @ self.table[m])[:, None]
            information[m * width : (m + 1) * width, m * width : (m + 1) * width] = scaled.T @ scaled
        information[-1, :-1] = information[:-1, -1] = -(above[1] - below[1]) / (2 * step)
        information[-1, -1] = -(above[0] - 2 * here[0] + below[0]) / step**2
        free = np.append(self.table.ravel() > 1e-8, True)
        variance = np.full(len(free), np.nan)
        variance[free] = np.linalg.pinv(information[np.ix_(free, free)], hermitian=True).diagonal()
        error = np.sqrt(np.where(variance >= 0, variance, np.nan))
        table = error[:-1].reshape(M, width)
        return {"baseline": table[:, 0], "branching": table[:, 1:], "decay": error[-1]}

    def _gradient(self, beta: float) -> tuple[float, NDArray[np.float64]]:
        """Log-likelihood and its slope in (mu, alpha) at ``table``."""
        design, cost = self._design(beta)
        rates = [x @ row for x, row in zip(design, self.table, strict=True)]
        value = sum(float(np.log(r).sum()) - float(cost @ row) for r, row in zip(rates, self.table, strict=True))
        return value, np.concatenate([x.T @ (1 / r) - cost for x, r in zip(design, rates, strict=True)])

    def _design(self, beta: float) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """What multiplies (mu, alpha) in the rate at each event, one matrix per type, and in the integral."""
        with torch.no_grad():
            self.model.log_decay.fill_(float(np.log(beta)))
            parts = []
            for b in self.batches:
                fade = torch.exp(-beta * b.edges.diff(dim=1)[:, :-1])
                parts.append((self.model.encode(b).excitation[:, :-1] * fade[..., None])[b.valid].numpy())
        rise = np.concatenate([np.ones((len(self.marks), 1)), beta * np.concatenate(parts)], 1)
        mass = [-np.expm1(-beta * self.left[self.marks == n]).sum() for n in range(len(self.table))]
        return [rise[self.marks == m] for m in range(len(self.table))], np.array([self.total, *mass])
