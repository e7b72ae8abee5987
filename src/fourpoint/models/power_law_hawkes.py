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
    which_happened,
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
        return self.at_positions(row, self.lengths)

    def at_positions(
        self, rows: Int[Tensor, " R"], positions: Int[Tensor, " R"]
    ) -> PowerLawHistory:
        """R positions as rows of one position each."""
        times = self.times[rows, positions]
        states = self.states[rows, positions]
        return PowerLawHistory(
            times[:, None],
            self.start[rows],
            torch.zeros_like(positions),
            states[:, None],
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
        smallest = min(baseline, branching, c)
        if smallest <= 0 or p <= 1:
            raise UserError(
                "positive numbers, and p above 1",
                f"{baseline}, {branching}, {c}, p={p}",
                "Correct the settings.",
            )
        M = self.marks.count
        kind = torch.float64
        self._settings = dict(baseline=baseline, branching=branching, c=c, p=p)
        log_baseline = torch.full((M,), math.log(baseline), dtype=kind)
        even = math.log(branching / M)
        log_branching = torch.full((M, M), even, dtype=kind)
        log_c = torch.tensor(math.log(c), dtype=kind)
        log_p = torch.tensor(math.log(p - 1), dtype=kind)
        self.log_baseline = nn.Parameter(log_baseline)
        self.log_branching = nn.Parameter(log_branching)
        self.log_c = nn.Parameter(log_c)
        self.log_p = nn.Parameter(log_p)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    @torch.no_grad()
    def shown(self) -> dict[str, Any]:
        """The parameters as they are now."""
        p, c = self._decay()
        return {
            "baseline": self.log_baseline.exp().numpy(),
            "branching": self.alpha().numpy(),
            "c": float(c),
            "p": float(p),
        }

    @torch.no_grad()
    def alpha(self) -> Float[Tensor, "M M"]:
        """Mean direct offspring of type m of an event of type n."""
        return self.log_branching.exp()

    @torch.no_grad()
    def initialise(self, data: Dataset) -> list[str]:
        """Half of the mean rate as baseline, a branching ratio of .3, and c of half a mean gap."""
        gaps = data.gaps
        time = float(data.exposed_times.sum())
        gap = time / max(1, data.events)
        if len(gaps) and gaps.mean() > 0:
            gap = float(gaps.mean())
        baseline = mean_rates(data, self.marks) / 2
        even = 0.3 / self.marks.count
        self.log_baseline.copy_(baseline.log())
        self.log_branching.fill_(math.log(even))
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
        events = max(1, data.scored_events)

        def loss() -> Tensor:
            search.zero_grad()
            total = torch.zeros(())
            for batch in batches:
                total = total + self.exact_log_likelihood(batch).sum()
            value = -total / events
            value.backward()
            return value

        search.step(loss)
        longest = float(data.durations.max())
        with torch.no_grad():
            eigenvalues = torch.linalg.eigvals(self.alpha())
            ratio = float(eigenvalues.abs().max())
            p, c = self._decay()
            error = omori.mixture_error(p, c, longest)
        return [
            f"branching ratio {ratio:.3g}, c {float(c):.4g}, p {float(p):.4g}; the mixture of "
            f"exponentials differs from the power law by at most {error:.1e} of it"
        ]

    def exact_log_likelihood(self, batch: Batch) -> Float[Tensor, " B"]:
        """The closed form over the scored time, with gradient."""
        history = self.encode(batch)
        rates = self.log_rates_at_events(history, batch)
        own = rates + log_exposure(batch)
        events = torch.where(batch.scored, own, 0.0).sum(1)
        exposure = batch.scored_exposure
        if exposure is None:
            left = batch.edges[:, :-1]
            right = batch.edges[:, 1:]
            gaps = self.closed_integral(history, left, right)
            return events - gaps.sum((1, 2))
        left, right, seen = exposed_pieces(batch, exposure)
        found = self.closed_integral(history, left, right, seen).sum(2)
        observed = exposure.at(left)[..., 0]
        exposed = found * observed
        return events - exposed.sum(1)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: PowerLawHistory | None = None) -> PowerLawHistory:
        """States at every position."""
        _, decays = self._mixture()
        begins = batch.start
        first = begins[:, None]
        start = decays.new_zeros(len(first), 1, self.marks.count, len(decays))
        if before is not None:
            begins = before.start
            first = before.times[:, -1:]
            start = before.states[:, -1:]
        times = torch.cat([first, batch.times], 1)
        gaps = times.diff(dim=1)
        width = decays * gaps[..., None]
        fade = torch.exp(-width)[:, :, None]
        own = self._one_hot(batch.marks, batch.valid)
        driven = own.expand(*own.shape[:-1], len(decays))
        if before is not None:
            carried = fade[:, :1] * start
            head = driven[:, :1] + carried
            driven = torch.cat([head, driven[:, 1:]], 1)
        states = driven
        if driven.shape[1]:
            states = recur(fade.expand_as(driven), driven)
        every = torch.cat([start, states], 1)
        return PowerLawHistory(times, begins, batch.lengths, every)

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
        happened = which_happened(mark, active)
        _, decays = self._mixture()
        last = history.latest()
        before = last.times[:, 0]
        at = torch.where(happened, time, before)
        own = self._one_hot(mark, happened)
        passed = (at - before)[:, None]
        fade = torch.exp(-decays * passed)[:, None]
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
        anchor, states = history.at_seen(seen, history.states)
        lag = times - anchor[..., None]
        age = decays * lag[..., None]
        fade = torch.exp(-age)
        excited = torch.einsum("bgqj,bgnj->bgqn", fade * weights, states)
        triggered = excited @ self.log_branching.exp().T
        rate = self.log_baseline.exp() + triggered
        return rate.log()

    def log_rates_at_events(self, history: PowerLawHistory, batch: Batch) -> Float[Tensor, "B N"]:
        """log lambda at every event, of its own type."""
        rows, events = batch.times.shape
        position = torch.arange(events).expand(rows, events)
        logs = self.log_intensity(history, batch.times[..., None], position)
        return own_mark(logs[:, :, 0], batch.marks)

    def closed_integral(
        self,
        history: PowerLawHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b per type."""
        weights, decays = self._mixture()
        anchor, states = history.at_seen(seen, history.states)
        lag = (a - anchor)[..., None]
        duration = (b - a)[..., None]
        began = torch.exp(-decays * lag)
        masses = weights / decays
        passed = -torch.expm1(-decays * duration) * masses
        mass = began * passed
        excited = torch.einsum("bgj,bgnj->bgn", mass, states)
        triggered = excited @ self.log_branching.exp().T
        return duration * self.log_baseline.exp() + triggered

    @torch.no_grad()
    def shortest_time(self, history: PowerLawHistory) -> Float[Tensor, " B"]:
        """c."""
        _, c = self._decay()
        return torch.full_like(history.start, float(c))

    def upper_bound(
        self, history: PowerLawHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """The rate at a: it decays while nothing happens."""
        times = a[:, None, None]
        seen = history.lengths[:, None]
        rates = self.log_intensity(history, times, seen).exp()
        return rates.sum((1, 2, 3)) * (1 + 1e-12)

    def _decay(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """p and c."""
        return 1 + self.log_p.exp(), self.log_c.exp()

    def _mixture(self) -> tuple[Float[Tensor, " J"], Float[Tensor, " J"]]:
        """Weights and decays of the exponentials that g is a mixture of."""
        p, c = self._decay()
        return omori.mixture(p, c)

    def _one_hot(
        self, marks: Int[Tensor, "*S"], happened: Bool[Tensor, "*S"]
    ) -> Float[Tensor, "*S M 1"]:
        """1 at the type of every event that happened."""
        one_hot = nn.functional.one_hot(marks, self.marks.count)
        own = one_hot.to(self.log_baseline)
        counted = torch.where(happened[..., None], own, 0.0)
        return counted[..., None]
