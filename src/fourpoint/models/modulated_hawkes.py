r"""A Hawkes process whose whole rate follows the calendar: background and excitation alike.

    lambda_m(t) = exp(f_m(t)) (mu_m + sum_{t_i < t} sum_j alpha_{j, m, m_i} beta_j
                               exp(-beta_j (t - t_i)))

f are effects of calendar and covariates (`models.effects`) with mean(exp f) = 1 over the observed
time. In `models.hawkes` they act on the background alone, and an event raises the rate by the same
amount at night as at noon. Here a busy spell multiplies the rhythm of the day: delays, calls or
orders that come in waves, each of which fades when the day's demand does. alpha is the offspring of
an event at the mean level of the calendar. Slow exponentials carry the level of the last days.

All parameters are found together by penalised maximum likelihood, with the penalties that a
Poisson process with the same effects chooses. Between neighbouring events and breakpoints of f,
exp(f) is taken as linear, and its product with the exponentials is integrated exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from fourpoint.events import Batch, Context, Dataset, MarkSpace, UserError
from fourpoint.models.base import PointProcess, space_without_places
from fourpoint.models.effects import MONTHDAY, PERIODIC, Effects, EffectsSpec
from fourpoint.models.effects_fit import (
    PIECE,
    exposed_segments,
    fit_effects,
    penalty_of,
)
from fourpoint.models.hawkes import FLOOR, Hawkes, HawkesHistory
from fourpoint.models.hawkes_effects import sparse_basis
from fourpoint.models.poisson import mean_rates
from fourpoint.ops.attention import scan

APART = 8.0  # ratio of neighbouring decays at the start of a fit
FIRST, STEPS = 25, 250  # LBFGS steps from every start, and from the best one
STARTS = (0.125, 1.0, 8.0)  # of decays, times that of the data
FIRST_BRANCHING = 0.6
FINER = 2.0  # pieces per hour, on which exp(f) is taken as linear
FASTER = 4.0  # mean gaps in which the excitation fades at the start


class ModulatedHawkes(PointProcess[HawkesHistory]):
    """Exponential Hawkes process times effects of calendar and covariates.

    The arguments are those of :class:`Hawkes`: starting values of parameters that
    :meth:`maximum_likelihood` estimates, and the number of exponentials.

    >>> from fourpoint.events import Sequence
    >>> model = ModulatedHawkes(baseline=1.0, branching=0.5, decay=2.0)
    >>> history = model.encode(Sequence([1.0], start=0.0, stop=2.0).batch())
    >>> times = torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    >>> model.intensity(history, times).flatten().tolist()
    [1.0, 1.3678794411714423]
    """

    linear = True
    has_upper_bound = True
    fits_in_closed_form = True

    def __init__(
        self,
        marks: MarkSpace | int | None = None,
        *,
        baseline: float | Sequence[float] = 1.0,
        branching: float | Sequence[Any] = 0.3,
        decay: float | Sequence[float] = 1.0,
        exponentials: int = 1,
    ) -> None:
        super().__init__()
        self.marks = space_without_places(marks, "modulated-hawkes")
        self.hawkes = Hawkes(
            self.marks,
            baseline=baseline,
            branching=branching,
            decay=decay,
            exponentials=exponentials,
        )

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return self.hawkes.settings()

    def shown(self) -> dict[str, Any]:
        """The parameters as they are now."""
        return self.hawkes.shown()

    @property
    def estimates(self) -> dict[str, ndarray]:
        """baseline, branching and decay, as those of :class:`Hawkes`, at the mean level of the
        calendar.
        """
        return self.hawkes.estimates

    @property
    def effect_curves(self) -> int:
        """log of the rate of every mark."""
        return self.marks.count

    @property
    def has_closed_integral(self) -> bool:
        """Without effects of calendar and covariates."""
        return self.effects is None

    # ------------------------------------------------------------------ fitting

    def initialise(self, data: Dataset) -> list[str]:
        """Start as a Hawkes process does."""
        return self.hawkes.initialise(data)

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit all parameters to ``data``, whatever they were before. Returns remarks."""
        if self.effects is None:
            return self.hawkes.maximum_likelihood(data)
        if not len(data):
            raise UserError(
                "at least one sequence",
                "a data set without any",
                "Read or select some.",
            )
        inner = self.hawkes
        found = _Fit(data, self.effects.spec, inner.log_decay.numel()).run()
        lowest = (FLOOR * mean_rates(data, self.marks)).log()
        log_alpha = found.log_alpha.clamp(min=float(np.log(FLOOR)))
        with torch.no_grad():
            inner.log_baseline.copy_(found.log_mu.maximum(lowest))
            inner.log_branching.copy_(log_alpha.reshape(inner.log_branching.shape))
            inner.log_decay.copy_(found.log_beta.reshape(inner.log_decay.shape))
            self.effects.weight.copy_(found.weight)
        fitted = np.atleast_1d(self.estimates["decay"])
        decays = ", ".join(f"{decay:.4g}" for decay in fitted)
        share = inner.spectral_radius
        return [f"branching ratio {share:.3f} at the mean level of the calendar, decay {decays}"]

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: HawkesHistory | None = None) -> HawkesHistory:
        history = self.hawkes.encode(batch, before)
        return replace(history, context=self.known_context(batch, before))

    def extend(
        self,
        history: HawkesHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> HawkesHistory:
        return self.hawkes.extend(history, time, mark, active, place)

    def log_intensity(
        self,
        history: HawkesHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        found = self.hawkes.log_intensity(history, times, seen)
        if self.effects is None:
            return found
        return found + self.effects.values(times, history.context)

    def closed_integral(
        self,
        history: HawkesHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """As that of a Hawkes process: there are no effects."""
        return self.hawkes.closed_integral(history, a, b, seen)

    @torch.no_grad()
    def upper_bound(
        self,
        history: HawkesHistory,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """The excitation fades, so that each mark's rate without effects is largest at a; that
        times a bound of the effects.
        """
        now = a[:, None, None]
        found = self.hawkes.log_intensity(history, now, history.lengths[:, None])
        each = found[:, 0, 0]
        if self.effects is not None:
            each = each + self.effects.upper_bound(a, b, history.context, each.dtype)
        total = each.exp().sum(-1)
        return total * (1 + 1e-12)

    def shortest_time(self, history: HawkesHistory) -> Float[Tensor, " B"]:
        """One over the fastest decay."""
        return self.hawkes.shortest_time(history)


# ---------------------------------------------------------------------- the fit


@dataclass
class _Point:
    """log mu (M,), log alpha (J, M, M), log beta (J,) and the weights of effects (K, M)."""

    log_mu: Tensor
    log_alpha: Tensor
    log_beta: Tensor
    weight: Tensor

    def parts(self) -> list[Tensor]:
        return [self.log_mu, self.log_alpha, self.log_beta, self.weight]

    def copied(self) -> _Point:
        return _Point(*(x.detach().clone() for x in self.parts()))


class _Fit:
    """Everything of the data that the likelihood needs: events and pieces of time with the basis of
    the effects at them, and the penalty.
    """

    def __init__(self, data: Dataset, spec: EffectsSpec, exponentials: int) -> None:
        poisson = fit_effects(data, spec)
        effects = Effects(spec, 1, torch.float64)
        context = data.context or Context()
        self.marks = data.marks.count
        self.exponentials = exponentials
        self.batch = data.batch(np.arange(len(data)))
        self.scored = self.batch.scored & self.batch.valid
        row = np.repeat(np.arange(len(data)), data.lengths)
        self.at_events = _Basis(effects, context, data.times, row)
        pieces = _pieces(data, effects)
        self.exposure = torch.from_numpy(pieces.exposure)
        self.left = torch.from_numpy(pieces.left)
        self.width = torch.from_numpy(pieces.right - pieces.left)
        self.owner = torch.from_numpy(pieces.owner)
        self.seen = torch.from_numpy(pieces.seen)
        # Effects may jump at the end of a piece: their values just before it belong to the piece.
        before = np.nextafter(pieces.right, -np.inf)
        self.at_left = _Basis(effects, context, pieces.left, pieces.owner)
        self.at_right = _Basis(effects, context, before, pieces.owner)
        penalty = penalty_of(spec, poisson.penalties)[1:, 1:]
        self.penalty = torch.from_numpy(penalty)
        self.columns = _level_columns(spec)
        self.first_weight = torch.from_numpy(np.array(poisson.weight))
        self.rates = mean_rates(data, data.marks)
        gaps = data.gaps
        positive = gaps[gaps > 0]
        if len(positive):
            mean_gap = float(positive.mean())
        else:
            mean_gap = float(data.durations.mean())
        self.first_decay = 1 / (FASTER * mean_gap)

    def run(self) -> _Point:
        """The best point from several starts."""
        tried = [self._climbed(self._start(scale), FIRST) for scale in STARTS]
        best, _ = max(tried, key=lambda pair: pair[1])
        found, _ = self._climbed(best, STEPS)
        return self._centred(found)

    def _start(self, scale: float) -> _Point:
        J = self.exponentials
        M = self.marks
        position = torch.arange(J, dtype=torch.float64)
        share = FIRST_BRANCHING * 0.25**position
        alpha = share / share.sum() * FIRST_BRANCHING / M
        beta = self.first_decay * scale / APART**position
        mu = (1 - FIRST_BRANCHING) * self.rates
        start = _Point(
            log_mu=mu.log(),
            log_alpha=alpha[:, None, None].expand(J, M, M).log(),
            log_beta=beta.log(),
            weight=self.first_weight,
        )
        return start.copied()

    def _climbed(self, start: _Point, steps: int) -> tuple[_Point, float]:
        point = start.copied()
        for part in point.parts():
            part.requires_grad_()
        search = torch.optim.LBFGS(
            point.parts(),
            max_iter=steps,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        events = max(1, int(self.scored.sum()))

        def loss() -> Tensor:
            search.zero_grad()
            value = -self.value(point) / events
            value.backward()
            return value

        search.step(loss)
        with torch.no_grad():
            return point.copied(), float(self.value(point))

    def value(self, point: _Point) -> Tensor:
        """The penalised log-likelihood."""
        batch = self.batch
        beta = point.log_beta.exp()
        alpha = point.log_alpha.exp()
        shift = self._shift(point)
        excitation = self._states(beta)
        times = torch.cat([batch.start[:, None], batch.times], 1)
        # Events: the state after the event before, faded until the event.
        gaps = times.diff(dim=1)
        fade = torch.exp(-beta * gaps[..., None])
        faded = fade[..., None] * excitation[:, :-1]
        rise = torch.einsum("bnjk,jmk,j->bnm", faded, alpha, beta)
        rates = point.log_mu.exp() + rise
        own = rates.gather(2, batch.marks[..., None])[..., 0]
        marks = batch.marks[batch.valid]
        effects = self.at_events.values(point.weight).gather(1, marks[:, None])[:, 0]
        effects = effects - shift[marks]
        logs = torch.where(self.scored, own, 1.0).log().sum()
        logs = logs + torch.where(self.scored[batch.valid], effects, 0.0).sum()
        # Pieces: exp(f) is linear from left to right, times mu and the fading exponentials.
        at_left = (self.at_left.values(point.weight) - shift).exp()
        at_right = (self.at_right.values(point.weight) - shift).exp()
        width = self.width[:, None]
        state = excitation[self.owner, self.seen]
        since = self.left - times[self.owner, self.seen]
        fade = torch.exp(-beta * since[:, None])
        state = fade[..., None] * state
        x = beta * width
        constant = -torch.expm1(-x)  # beta times the integral of exp(-beta s)
        rising = torch.where(x > 1e-4, constant / x - torch.exp(-x), x / 2)  # of beta s / width
        left_mass = torch.einsum("qj,qjk,jmk->qm", constant - rising, state, alpha)
        right_mass = torch.einsum("qj,qjk,jmk->qm", rising, state, alpha)
        background = point.log_mu.exp() * width / 2
        mass = at_left * (background + left_mass) + at_right * (background + right_mass)
        integral = (self.exposure[:, None] * mass).sum()
        penalty = (point.weight * (self.penalty @ point.weight)).sum() / 2
        return logs - integral - penalty

    def _shift(self, point: _Point) -> Tensor:
        """log of the mean of exp(f) over the observed time, (M,)."""
        observed = self.exposure * self.width
        factor = self.at_left.values(point.weight).exp()
        summed = (factor * observed[:, None]).sum(0)
        mean = summed / observed.sum()
        return mean.log()

    def _states(self, beta: Tensor) -> Float[Tensor, "B P J M"]:
        """The excitation after every event, and 0 at the start, by one scan."""
        batch = self.batch
        own = nn.functional.one_hot(batch.marks, self.marks).to(torch.float64)
        driven = torch.where(batch.valid[..., None], own, 0.0)[:, :, None, None]
        driven = driven.expand(-1, -1, 1, len(beta), -1)
        rate = torch.complex(-beta, torch.zeros_like(beta))[None]
        times = torch.cat([batch.start[:, None], batch.times], 1)
        states = scan(rate, times.diff(dim=1), driven.to(rate.dtype))
        after = states.real[:, :, 0]
        return nn.functional.pad(after, (0, 0, 0, 0, 1, 0))

    def _centred(self, point: _Point) -> _Point:
        """The same rates, with effects whose exponential has mean 1 where a term of the calendar
        can take the shift, else with levels that contain it.
        """
        shift = self._shift(point)
        weight = point.weight.clone()
        if self.columns is not None:
            weight[self.columns] -= shift
            return _Point(point.log_mu, point.log_alpha, point.log_beta, weight)
        log_alpha = point.log_alpha - shift[:, None]
        return _Point(point.log_mu - shift, log_alpha, point.log_beta, weight)


class _Basis:
    """Basis functions of the effects at some times: which are not 0, and their values."""

    def __init__(
        self,
        effects: Effects,
        context: Context,
        times: Float[ndarray, " T"],
        rows: ndarray,
    ) -> None:
        index, share = sparse_basis(effects, context, times, rows)
        # The first column is the constant, which the levels of the Hawkes process stand for.
        self.index = torch.from_numpy(index[:, 1:] - 1)
        self.share = torch.from_numpy(share[:, 1:])

    def values(self, weight: Float[Tensor, "K M"]) -> Float[Tensor, "T M"]:
        """f at the times."""
        return nn.functional.embedding_bag(
            self.index,
            weight,
            mode="sum",
            per_sample_weights=self.share,
        )


class _Pieces(NamedTuple):
    """Pieces of scored time between neighbouring events, breakpoints of the effects and changes of
    the exposure: their ends, the exposure, the sequence, and the number of events before.
    """

    left: Float[ndarray, " Q"]
    right: Float[ndarray, " Q"]
    exposure: Float[ndarray, " Q"]
    owner: ndarray
    seen: ndarray


def _pieces(data: Dataset, effects: Effects) -> _Pieces:
    """The pieces of all sequences."""
    starts, stops, factor, owner = exposed_segments(data)
    parts = []
    for i in range(len(data)):
        own = np.flatnonzero(owner == i)
        if not len(own):
            continue
        events = data.times[data.offsets[i] : data.offsets[i + 1]]
        begins = starts[own]
        ends = stops[own]
        low = float(begins.min())
        high = float(ends.max())
        cuts = _cuts(data, effects, i, low, high)
        edges = np.unique(np.concatenate([begins, ends, cuts, events]))
        edges = edges[(edges >= low) & (edges <= high)]
        middle = (edges[:-1] + edges[1:]) / 2
        segment = own[np.searchsorted(begins, middle, side="right") - 1]
        inside = middle < stops[segment]
        left = edges[:-1][inside]
        part = _Pieces(
            left=left,
            right=edges[1:][inside],
            exposure=factor[segment][inside],
            owner=np.full(len(left), i),
            seen=np.searchsorted(events, left, side="right"),
        )
        parts.append(part)
    return _Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _cuts(
    data: Dataset,
    effects: Effects,
    row: int,
    low: float,
    high: float,
) -> Float[ndarray, " C"]:
    """Breakpoints of the effects of one sequence."""
    context = None
    if data.context is not None:
        context = data.context.batch(np.array([row]))
    first, last = torch.tensor([[low], [high]], dtype=torch.float64)
    found = effects.cuts(first, last, context, PIECE / FINER)[0].numpy()
    return found[(found > low) & (found < high)]


def _level_columns(spec: EffectsSpec) -> slice | None:
    """The columns of a term of the calendar, which sum to 1, so that it can take a constant."""
    for name, columns in spec.columns.items():
        if name in PERIODIC or name == MONTHDAY:
            return columns
    return None
