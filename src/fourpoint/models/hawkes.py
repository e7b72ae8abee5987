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

    def __init__(
        self, marks: MarkSpace | int | None = None, *, baseline: float = 1.0, branching: float = 0.3, decay: float = 1.0
    ) -> None:
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
        duration = float(data.durations.sum())
        counts = np.bincount(data.mark_ids, minlength=self.marks.count) + 0.5
        gap = data.gaps.mean() if len(data.gaps) and data.gaps.mean() > 0 else duration / max(data.events, 1)
        with torch.no_grad():
            self.log_baseline.copy_(torch.from_numpy(counts / duration / 2).log())
            self.log_branching.fill_(float(np.log(0.5 / self.marks.count)))
            self.log_decay.fill_(-float(np.log(4 * gap)))
        return []

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit mu, alpha and beta by L-BFGS on the closed form, with standard errors from the observed information."""
        from scipy.optimize import minimize

        batches = [data.batch(rows) for rows in data.batches(1024)]
        parameters = [self.log_baseline, self.log_branching, self.log_decay]

        def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            with torch.no_grad():
                nn.utils.vector_to_parameters(torch.from_numpy(flat), parameters)
            self.zero_grad()
            loss = -sum(self.exact_log_likelihood(b).sum() for b in batches) / max(data.events, 1)
            loss.backward()
            return loss.item(), np.concatenate([p.grad.numpy().ravel() for p in parameters])

        flat = nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
        found = minimize(objective, flat, jac=True, method="L-BFGS-B", bounds=[(-30.0, 30.0)] * len(flat), options=dict(maxiter=1000, ftol=1e-13, gtol=1e-8))
        objective(found.x)
        self.zero_grad()
        self._standard_errors(batches)
        radius = self.spectral_radius
        notes = [f"baseline {self.estimates['baseline'].sum():.4g} per unit of time, branching ratio {radius:.4g}, decay {float(self.estimates['decay']):.4g}"]
        if radius >= 1:
            notes.append(f"the branching ratio {radius:.3f} is 1 or more: forecasts beyond the training window explode")
        return notes

    def exact_log_likelihood(self, batch: Batch) -> Float[Tensor, " B"]:
        """The closed form above, with gradient."""
        history = self.encode(batch)
        B, N = batch.times.shape
        seen = torch.arange(N).expand(B, N)
        logs = self.log_intensity(history, batch.times[..., None], seen)[:, :, 0].gather(2, batch.marks[..., None])[..., 0]
        edges = batch.edges
        integral = self.integral(history, edges[:, :-1], edges[:, 1:]).sum((1, 2))
        return torch.where(batch.valid, logs, 0.0).sum(1) - integral

    def _standard_errors(self, batches: list[Batch]) -> None:
        """sqrt of the diagonal of the inverse Hessian, taken in the logarithms and carried over by the delta method."""
        names = ("log_baseline", "log_branching", "log_decay")
        shapes = [getattr(self, n).shape for n in names]
        sizes = [s.numel() for s in shapes]
        flat = nn.utils.parameters_to_vector([getattr(self, n) for n in names]).detach()

        def loss(v: Tensor) -> Tensor:
            parts = {n: x.reshape(s) for n, x, s in zip(names, v.split(sizes), shapes, strict=True)}
            return -sum(torch.func.functional_call(self, parts, (b,)).sum() for b in batches)

        if len(flat) > 200:
            return
        information = torch.autograd.functional.hessian(loss, flat)
        variance = torch.linalg.pinv(information, hermitian=True).diagonal().clamp(min=0)
        error = (variance.sqrt() * flat.exp()).split(sizes)
        self.errors = {n.removeprefix("log_"): e.reshape(s).numpy() for n, e, s in zip(names, error, shapes, strict=True)}

    def forward(self, batch: Batch) -> Float[Tensor, " B"]:
        """The exact log-likelihood of each sequence."""
        return self.exact_log_likelihood(batch)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: HawkesHistory | None = None) -> HawkesHistory:
        """R at every position, by one scan."""
        anchor = batch.start[:, None] if before is None else before.times[:, -1:]
        times = torch.cat([anchor, batch.times], 1)
        own = nn.functional.one_hot(batch.marks, self.marks.count).to(torch.float64)
        driven = torch.where(batch.valid[..., None], own, 0.0)[:, :, None, None]
        first = torch.zeros_like(driven[:, 0]) if before is None and driven.shape[1] else None
        if first is None:
            first = torch.zeros(len(times), 1, 1, self.marks.count, dtype=torch.float64) if before is None else before.excitation[:, -1, None, None]
        rate = torch.complex(-self.log_decay.exp(), torch.zeros_like(self.log_decay)).reshape(1, 1)
        rest = scan(rate, times.diff(dim=1), driven.to(rate.dtype), first.to(rate.dtype)).real
        return HawkesHistory(times, batch.start if before is None else before.start, batch.lengths, torch.cat([first[:, None], rest], 1)[:, :, 0, 0])

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
        return (b - a)[..., None] * self.log_baseline.exp() + faded[..., None] * torch.einsum("bgn,mn->bgm", excitation, self.log_branching.exp())

    @torch.no_grad()
    def bound(self, history: HawkesHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The largest total rate on [a, b] seen from the last position: it fades, so that it is the rate at a."""
        return self.log_intensity(history, a[:, None, None], history.lengths[:, None]).exp().sum((1, 2, 3))


def _at(history: HawkesHistory, seen: Int[Tensor, "B G"] | None) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M"]]:
    if seen is None:
        return history.times, history.excitation
    row = torch.arange(len(seen))[:, None]
    return history.times[row, seen], history.excitation[row, seen]
