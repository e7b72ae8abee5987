r"""A multivariate Hawkes process whose excitation decays as a power law.

    lambda_m(t) = mu_m + sum_{t_i < t} alpha_{m m_i} g(t - t_i),   g(s) = (p - 1) c^(p-1) (s + c)^-p

g, a Lomax density, is a mixture of 80 exponentials (`ops.omori`), so that the cost is linear in the
number of events and the state has a constant size. The relative error of the mixture is measured by
`ops.omori.mixture_error`; the fit prints it for the longest window.

Axes: B sequences, P positions, N events, M marks, J exponentials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.models.base import (
    History,
    PointProcess,
    exposed_pieces,
    log_exposure,
    own_mark,
    space_without_places,
)
from fourpoint.models.poisson import mean_rates
from fourpoint.ops import omori
from fourpoint.ops.recurrence import recur

STEPS = 60  # of L-BFGS


@dataclass(frozen=True)
class PowerLawHistory(History):
    """Positions with the states of all exponentials, by exciting type."""

    states: Float[Tensor, "B P M J"]

    def latest(self) -> PowerLawHistory:
        """The last position."""
        row = torch.arange(len(self.start))
        return replace(
            self,
            times=self.times[row, self.lengths][:, None],
            lengths=torch.zeros_like(self.lengths),
            states=self.states[row, self.lengths][:, None],
        )

    def at_positions(
        self, rows: Int[Tensor, " R"], positions: Int[Tensor, " R"]
    ) -> PowerLawHistory:
        """R positions as rows of one position each."""
        return PowerLawHistory(
            self.times[rows, positions][:, None],
            self.start[rows],
            torch.zeros_like(positions),
            self.states[rows, positions][:, None],
        )


class PowerLawHawkes(PointProcess[PowerLawHistory]):
    """Hawkes process with power-law excitation.

    Arguments
        marks: the types.
        baseline: mu per unit of time.
        branching: alpha, shared out evenly over types.
        c: in the unit of time, and p > 1: of the decay.

    They are starting values; :meth:`maximum_likelihood` estimates all of them.

    >>> PowerLawHawkes(2, branching=0.4).alpha().sum(0).tolist()
    [0.4, 0.4]
    """

    linear = True
    has_closed_integral = True
    has_upper_bound = True
    fits_in_closed_form = True

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        baseline: float = 1.0,
        branching: float = 0.3,
        c: float = 0.1,
        p: float = 1.5,
    ) -> None:
        super().__init__()
        self.marks = space_without_places(marks, "power-law-hawkes")
        if min(baseline, branching, c) <= 0 or p <= 1:
            raise UserError(
                "positive numbers, and p above 1",
                f"{baseline}, {branching}, {c}, p={p}",
                "Correct the settings.",
            )
        M = self.marks.count
        kind = torch.float64
        self._settings = dict(baseline=baseline, branching=branching, c=c, p=p)
        self.log_baseline = nn.Parameter(torch.full((M,), math.log(baseline), dtype=kind))
        even = math.log(branching / M)
        self.log_branching = nn.Parameter(torch.full((M, M), even, dtype=kind))
        self.log_c = nn.Parameter(torch.tensor(math.log(c), dtype=kind))
        self.log_p = nn.Parameter(torch.tensor(math.log(p - 1), dtype=kind))

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    @torch.no_grad()
    def shown(self) -> dict[str, Any]:
        """The parameters as they are now."""
        arrays = dict(baseline=self.log_baseline.exp(), branching=self.alpha())
        values = {name: value.numpy() for name, value in arrays.items()}
        return {**values, "c": float(self.log_c.exp()), "p": 1 + float(self.log_p.exp())}

    @torch.no_grad()
    def alpha(self) -> Float[Tensor, "M M"]:
        """Mean direct offspring of type m of an event of type n."""
        return self.log_branching.exp()

    @torch.no_grad()
    def initialise(self, data: Dataset) -> list[str]:
        """Half of the mean rate as baseline, a branching ratio of .3, and c of half a mean gap."""
        gaps = data.gaps
        time = float(data.exposed_times.sum())
        gap = float(gaps.mean()) if len(gaps) and gaps.mean() > 0 else time / max(1, data.events)
        self.log_baseline.copy_((mean_rates(data, self.marks) / 2).log())
        self.log_branching.fill_(math.log(0.3 / self.marks.count))
        self.log_c.fill_(math.log(gap / 2))
        self.log_p.fill_(math.log(0.5))
        return []

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit all parameters by L-BFGS from :meth:`initialise`."""
        self.initialise(data)
        batches = [data.batch(rows) for rows in data.batches(64, padded=2**14)]
        search = torch.optim.LBFGS(
            self.parameters(), max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            search.zero_grad()
            total = sum((self.exact_log_likelihood(one).sum() for one in batches), torch.zeros(()))
            value = -total / max(1, data.scored_events)
            value.backward()
            return value

        search.step(loss)
        shown = self.shown()
        with torch.no_grad():
            ratio = float(torch.linalg.eigvals(self.alpha()).abs().max())
            p, c = 1 + self.log_p.exp(), self.log_c.exp()
            error = omori.mixture_error(p, c, float(data.durations.max()))
        return [
            f"branching ratio {ratio:.3g}, c {shown['c']:.4g}, p {shown['p']:.4g}; the mixture of "
            f"exponentials differs from the power law by at most {error:.1e} of it"
        ]

    def exact_log_likelihood(self, batch: Batch) -> Float[Tensor, " B"]:
        """The closed form over the scored time, with gradient."""
        history = self.encode(batch)
        own = self.log_rates_at_events(history, batch) + log_exposure(batch)
        events = torch.where(batch.scored, own, 0.0).sum(1)
        exposure = batch.scored_exposure
        if exposure is None:
            gaps = self.closed_integral(history, batch.edges[:, :-1], batch.edges[:, 1:])
            return events - gaps.sum((1, 2))
        left, right, seen = exposed_pieces(batch, exposure)
        found = self.closed_integral(history, left, right, seen).sum(2)
        return events - (found * exposure.at(left)[..., 0]).sum(1)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: PowerLawHistory | None = None) -> PowerLawHistory:
        """States at every position."""
        _, decays = self._mixture()
        first = batch.start[:, None] if before is None else before.times[:, -1:]
        times = torch.cat([first, batch.times], 1)
        fade = torch.exp(-decays * times.diff(dim=1)[..., None])[:, :, None]
        own = nn.functional.one_hot(batch.marks, self.marks.count).to(decays)
        own = torch.where(batch.valid[..., None], own, 0.0)
        driven = own[..., None].expand(*own.shape, len(decays))
        start = decays.new_zeros(len(times), 1, self.marks.count, len(decays))
        if before is not None:
            start = before.states[:, -1:]
            if driven.shape[1]:
                head = driven[:, :1] + fade[:, :1] * start
                driven = torch.cat([head, driven[:, 1:]], 1)
        states = driven
        if driven.shape[1]:
            states = recur(fade.expand_as(driven), driven)
        known = batch.start if before is None else before.start
        return PowerLawHistory(times, known, batch.lengths, torch.cat([start, states], 1))

    def extend(
        self,
        history: PowerLawHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> PowerLawHistory:
        """One event more; the last position alone."""
        happened = torch.ones_like(mark, dtype=torch.bool) if active is None else active
        _, decays = self._mixture()
        last = history.latest()
        at = torch.where(happened, time, last.times[:, 0])
        own = nn.functional.one_hot(mark, self.marks.count).to(decays)
        own = torch.where(happened[:, None], own, 0.0)[..., None]
        fade = torch.exp(-decays * (at - last.times[:, 0])[:, None])[:, None]
        new = fade * last.states[:, 0] + own
        return replace(last, times=at[:, None], states=new[:, None])

    def log_intensity(
        self,
        history: PowerLawHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda of every type."""
        weights, decays = self._mixture()
        anchor, states = _at(history, seen)
        lag = (times - anchor[..., None])[..., None]
        excited = torch.einsum("bgqj,bgnj->bgqn", torch.exp(-decays * lag) * weights, states)
        return (self.log_baseline.exp() + excited @ self.log_branching.exp().T).log()

    def log_rates_at_events(self, history: PowerLawHistory, batch: Batch) -> Float[Tensor, "B N"]:
        """log lambda at every event, of its own type."""
        rows, events = batch.times.shape
        position = torch.arange(events).expand(rows, events)
        return own_mark(
            self.log_intensity(history, batch.times[..., None], position)[:, :, 0], batch.marks
        )

    def closed_integral(
        self,
        history: PowerLawHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b per type."""
        weights, decays = self._mixture()
        anchor, states = _at(history, seen)
        began = torch.exp(-decays * (a - anchor)[..., None])
        passed = -torch.expm1(-decays * (b - a)[..., None]) * (weights / decays)
        excited = torch.einsum("bgj,bgnj->bgn", began * passed, states)
        return (b - a)[..., None] * self.log_baseline.exp() + excited @ self.log_branching.exp().T

    @torch.no_grad()
    def shortest_time(self, history: PowerLawHistory) -> Float[Tensor, " B"]:
        """c."""
        return torch.full_like(history.start, float(self.log_c.exp()))

    def upper_bound(
        self, history: PowerLawHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """The rate at a: it decays while nothing happens."""
        logs = self.log_intensity(history, a[:, None, None], history.lengths[:, None])
        return logs.exp().sum((1, 2, 3)) * (1 + 1e-12)

    def _mixture(self) -> tuple[Float[Tensor, " J"], Float[Tensor, " J"]]:
        return omori.mixture(1 + self.log_p.exp(), self.log_c.exp())


def _at(
    h: PowerLawHistory, seen: Int[Tensor, "B G"] | None
) -> tuple[Float[Tensor, "B G"], Float[Tensor, "B G M J"]]:
    if seen is None:
        return h.times, h.states
    row = torch.arange(len(seen))[:, None]
    return h.times[row, seen], h.states[row, seen]
