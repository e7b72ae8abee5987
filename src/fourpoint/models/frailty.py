r"""A Poisson process with a gamma frailty: sequences differ in their rate, and a sequence's own
events tell by how much.

    rate of sequence s:  u_s lambda_m(t),   u_s ~ gamma with mean 1 and variance v = 1 / a,

lambda being the rate of a Poisson process with effects of calendar and covariates. Given its N(t-)
events before t, the expected u_s is (a + N(t-)) / (a + Lambda(t-)), where Lambda is the integral of
e(t) lambda over the observed past, so that the process has the rate

    lambda_m(t | past) = lambda_m(t) (a + N(t-)) / (a + Lambda(t-)),

which is all that is computed here. A sequence with few events is drawn towards the population
(partial pooling), and a new one has the population's rate. All parameters are found by maximum
marginal likelihood: rates and effects by EM, and a by a search in one dimension,

    log L_s = sum_i log lambda(t_i) + log Gamma(a + N) - log Gamma(a) + a log a
              - (a + N) log(a + Lambda).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, BatchContext, Dataset, MarkSpace, UserError
from fourpoint.kernels.path_terms import CountLaw, Wanted
from fourpoint.models.base import PointProcess, space_without_places, which_happened
from fourpoint.models.effects import Effects, EffectsSpec, RateRatio
from fourpoint.models.effects_fit import (
    NORMAL,
    EffectsFit,
    fit_effects,
    penalty_of,
    rate_ratios,
    ratio_notes,
    sequence_scores,
)
from fourpoint.models.path_counts import poisson_counts, poisson_law
from fourpoint.models.positions import Positions, counts, last_time
from fourpoint.models.time_integrals import integrals_between, share_one_rate
from fourpoint.models.time_pieces import constant_cubics

ROUNDS, ENOUGH = 25, 1e-4  # of EM, and the change of log a and of log rates that ends it
MISSED = 10.0  # sequences without events that are expected, from which their absence is told
LOWEST, HIGHEST = -7.0, 9.0  # of log a


@dataclass(frozen=True, eq=False)
class FrailtyHistory(Positions):
    """Positions, and Lambda at each."""

    passed: Float[Tensor, "B P"]

    def latest(self) -> FrailtyHistory:
        """The last position alone."""
        last = self.lengths[:, None]
        return replace(
            self,
            times=self.times.gather(1, last),
            passed=self.passed.gather(1, last),
            earlier=self.earlier + self.lengths,
            lengths=torch.zeros_like(self.lengths),
        )


class Frailty(PointProcess[FrailtyHistory]):
    """A Poisson process whose rate has a gamma factor per sequence, with ``variance``.

    >>> from fourpoint.events import Sequence
    >>> model = Frailty(variance=1.0)
    >>> history = model.encode(Sequence([0.5, 0.6], start=0.0, stop=4.0).batch())
    >>> times = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    >>> model.intensity(history, times).flatten().tolist()  # (1 + 0) / (1 + 0), (1 + 2) / (1 + 1)
    [1.0, 1.5]
    """

    linear = True
    has_closed_integral = True
    has_upper_bound = True
    fits_in_closed_form = True
    past_shows = "how high the rate of their sequence is"

    def __init__(self, marks: MarkSpace | int | None = None, *, variance: float = 1.0) -> None:
        super().__init__()
        if not variance > 0:
            raise UserError("a variance above 0", f"{variance}", "Pass variance=1.0, say.")
        self.marks = space_without_places(marks, "frailty")
        self.log_rate = nn.Parameter(torch.zeros(self.marks.count, dtype=torch.float64))
        self.log_shape = nn.Parameter(torch.tensor(-np.log(variance), dtype=torch.float64))
        self.variance_interval: tuple[float, float] | None = None  # 95%, of the last fit

    @property
    def variance(self) -> float:
        """The variance of the factor between sequences."""
        return float(torch.exp(-self.log_shape.detach()))

    def settings(self) -> dict[str, Any]:
        """The variance as it is now."""
        return {"variance": self.variance}

    def shown(self) -> dict[str, Any]:
        """Rates and variance."""
        rates = self.log_rate.detach().exp()
        return {"rate": rates.numpy(), "variance": self.variance}

    @property
    def effect_curves(self) -> int:
        """log of the rate of every mark."""
        return self.marks.count

    def known_context(
        self,
        batch: Batch,
        before: FrailtyHistory | None = None,
    ) -> BatchContext | None:
        """All of it: Lambda counts observed time only."""
        if before is not None:
            return before.context
        return batch.context

    # ------------------------------------------------------------------ fitting

    def initialise(self, data: Dataset) -> list[str]:
        """Start at the mean rates."""
        spec = EffectsSpec() if self.effects is None else self.effects.spec
        self._take(fit_effects(data, spec))
        return []

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Rates, effects and variance by maximum marginal likelihood.

        History periods are scored too: what they say of a sequence's factor is needed anyway.
        Raises :class:`UserError` for fewer than two sequences.
        """
        if len(data) < 2:
            raise UserError(
                "at least two sequences for a frailty",
                f"{len(data)}",
                "Use poisson, or read the log with a column that tells sequences apart.",
            )
        if data.context is not None:
            data = replace(data, context=data.context.without("scored_from"))
        spec = EffectsSpec() if self.effects is None else self.effects.spec
        factor: Float[ndarray, " S"] = np.ones(len(data))
        events = data.lengths.astype(np.float64)
        before = np.full(self.marks.count + 1, np.inf)
        found = fit_effects(data, spec)
        for _ in range(ROUNDS):
            found = fit_effects(data, spec, factor, start=found)
            self._take(found)
            expected = self._expected(data)
            shape = _best_shape(events, expected)
            factor = (shape + events) / (shape + expected)
            here = np.append(found.level, np.log(shape))
            if np.abs(here - before).max() < ENOUGH:
                break
            before = here
        with torch.no_grad():
            self.log_shape.fill_(float(np.log(shape)))
        self.rate_ratios = self._ratios(data, spec, factor, found)
        log_variance = -np.log(shape)
        spread = NORMAL * _shape_error(events, expected, shape)
        low = float(np.exp(log_variance - spread))
        high = float(np.exp(log_variance + spread))
        self.variance_interval = (low, high)
        return [
            f"sequences differ in their rate by a factor of variance {self.variance:.4g} (95% "
            f"interval {low:.4g} to {high:.4g})",
            *ratio_notes(self.rate_ratios),
            *_silent_notes(events, expected, float(shape)),
        ]

    def _ratios(
        self,
        data: Dataset,
        spec: EffectsSpec,
        factor: Float[ndarray, " S"],
        found: EffectsFit,
    ) -> list[RateRatio]:
        """Rate ratios with intervals from the information of sequences: the sum of the outer
        products of their marginal scores, so that differences between sequences count.
        """
        if not spec.covariates:
            return found.rate_ratios
        effects = Effects(spec, 1, torch.float64)
        level = np.log(np.exp(found.level).sum())
        pooled = np.append(level, found.weight.mean(1))
        scores = sequence_scores(data, effects, pooled, factor)
        information = scores.T @ scores + penalty_of(spec, found.penalties)
        covariance = np.linalg.inv(information)[None]
        shared = found.weight.mean(1, keepdims=True)
        return rate_ratios(spec, shared, covariance, ("",))

    def _take(self, found: EffectsFit) -> None:
        with torch.no_grad():
            self.log_rate.copy_(torch.from_numpy(found.level))
            if self.effects is not None:
                self.effects.weight.copy_(torch.from_numpy(found.weight))

    @torch.no_grad()
    def _expected(self, data: Dataset) -> Float[ndarray, " S"]:
        """Lambda of every sequence over its whole window."""
        whole = data.context
        if whole is not None and share_one_rate(whole):
            # The rate of the population is integrated once for all sequences.
            start = torch.from_numpy(data.starts[None].copy())
            stop = torch.from_numpy(data.stops[None].copy())
            first = whole.batch(np.zeros(1, dtype=np.int64))
            total, _ = self._mass(start, stop, first)
            return total[0].numpy()
        parts = []
        for rows in np.array_split(np.arange(len(data)), max(1, len(data) // 256)):
            context = None if whole is None else whole.batch(rows)
            start = torch.from_numpy(data.starts[rows].copy())[:, None]
            stop = torch.from_numpy(data.stops[rows].copy())[:, None]
            total, _ = self._mass(start, stop, context)
            parts.append(total[:, 0].numpy())
        return np.concatenate(parts)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: FrailtyHistory | None = None) -> FrailtyHistory:
        context = self.known_context(batch, before)
        if before is None:
            start = first = batch.start
            earlier = torch.zeros_like(batch.lengths)
            passed = torch.zeros_like(first)[:, None]
        else:
            start = before.start
            first = last_time(before)
            earlier = before.earlier + before.lengths
            passed = before.passed.gather(1, before.lengths[:, None])
        times = torch.cat([first[:, None], batch.times], 1)
        more, _ = self._mass(times[:, :-1], times[:, 1:], context)
        return FrailtyHistory(
            times=times,
            start=start,
            lengths=batch.lengths,
            earlier=earlier,
            passed=torch.cat([passed, passed + more.cumsum(1)], 1),
            context=context,
        )

    def extend(
        self,
        history: FrailtyHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> FrailtyHistory:
        happened = which_happened(mark, active)
        last = last_time(history)
        now = torch.where(happened, time, last)[:, None]
        more, _ = self._mass(last[:, None], now, history.context)
        passed = history.passed.gather(1, history.lengths[:, None])
        return FrailtyHistory(
            times=now,
            start=history.start,
            lengths=torch.zeros_like(history.lengths),
            earlier=history.earlier + history.lengths + happened,
            passed=passed + more,
            context=history.context,
        )

    def log_intensity(
        self,
        history: FrailtyHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        events, anchor, passed = _at(history, seen)
        since = anchor[..., None].expand_as(times)
        more, _ = self._mass(since.flatten(1), times.flatten(1), history.context)
        shape = self.log_shape.exp()
        level = shape + passed[..., None] + more.view(times.shape)
        factor = (shape + events)[..., None] / level
        population = self._log_population(times, history.context)
        return population + factor.log()[..., None]

    def closed_integral(
        self,
        history: FrailtyHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b lambda per mark, for an exposure that is constant between a and b: with x the
        growth of Lambda over a + Lambda(a), the factor's mean is its value at a times log(1 + x) /
        x. The sum over marks is exact; its parts are shared out like the population's.
        """
        events, anchor, passed = _at(history, seen)
        before, _ = self._mass(anchor, a, history.context)
        more, each = self._mass(a, b, history.context)
        shape = self.log_shape.exp()
        level = shape + passed + before
        x = more / level
        large = x > 1e-8
        exact = torch.log1p(x) / torch.where(large, x, 1.0)
        mean = torch.where(large, exact, 1 - x / 2)
        factor = (shape + events) / level * mean
        return each * factor[..., None]

    @torch.no_grad()
    def upper_bound(
        self,
        history: FrailtyHistory,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """The population's bound times the factor at a, which falls while nothing happens."""
        events, anchor, passed = _at(history, history.lengths[:, None])
        more, _ = self._mass(anchor, a[:, None], history.context)
        shape = self.log_shape.exp()
        factor = (shape + events) / (shape + passed + more)
        bound = self.log_rate.expand(len(a), -1)
        if self.effects is not None:
            bound = bound + self.effects.upper_bound(a, b, history.context, self.log_rate.dtype)
        return bound.exp().sum(-1) * factor[:, 0] * (1 + 1e-12)

    @torch.no_grad()
    def draw_counts(self, batch: Batch, wanted: Wanted) -> NDArray[np.int32] | None:
        """Poisson numbers given the factor of each path, which is gamma distributed given the
        past.
        """
        known = self._factor(batch, wanted.edges)
        cubics = constant_cubics(self.log_rate)
        return poisson_counts(cubics, self.effects, batch, wanted, known)

    @torch.no_grad()
    def count_law(self, batch: Batch, edges: NDArray[np.float64]) -> CountLaw:
        """Negative binomial numbers."""
        cubics = constant_cubics(self.log_rate)
        return poisson_law(cubics, self.effects, batch, edges, self._factor(batch, edges))

    def _factor(self, batch: Batch, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shape and rate of the gamma law of every row's factor at its first edge, (2, B)."""
        now = torch.from_numpy(edges[:, :1].copy())
        passed, _ = self._mass(batch.start[:, None], now, batch.context)
        shape = self.log_shape.exp()
        return torch.stack([shape + batch.lengths, shape + passed[:, 0]]).numpy()

    # ------------------------------------------------------------------ the population

    def _log_population(
        self,
        times: Float[Tensor, "B ..."],
        context: BatchContext | None,
    ) -> Float[Tensor, "B ... M"]:
        flat = self.log_rate.expand(*times.shape, -1)
        if self.effects is None:
            return flat
        return flat + self.effects.values(times, context)

    def _mass(
        self,
        a: Float[Tensor, "B Q"],
        b: Float[Tensor, "B Q"],
        context: BatchContext | None,
    ) -> tuple[Float[Tensor, "B Q"], Float[Tensor, "B Q M"]]:
        """int_a^b e lambda, all marks together, and int_a^b lambda of every mark."""
        exposure = None if context is None else context.exposure
        if (self.effects is None and exposure is None) or not a.shape[1]:
            each = (b - a)[..., None] * self.log_rate.exp()
            return each.sum(-1), each
        return integrals_between(self._log_population, self.effects, a, b, context)


def _at(
    history: FrailtyHistory,
    seen: Int[Tensor, "B G"] | None,
) -> tuple[Int[Tensor, "B G"], Float[Tensor, "B G"], Float[Tensor, "B G"]]:
    """Events so far, the time and Lambda at positions ``seen``, or at all of them."""
    if seen is None:
        events = counts(history).expand_as(history.times)
        return events, history.times, history.passed
    times = history.times.gather(1, seen)
    passed = history.passed.gather(1, seen)
    return counts(history, seen), times, passed


# ---------------------------------------------------------------------- the shape


def _profile(
    log_shape: float,
    events: Float[ndarray, " S"],
    expected: Float[ndarray, " S"],
) -> float:
    """The part of the marginal log-likelihood that depends on the shape a."""
    from scipy.special import gammaln

    a = np.exp(log_shape)
    after = a + events
    each = gammaln(after) - gammaln(a) + a * log_shape - after * np.log(a + expected)
    return float(np.sum(each))


def _silent_notes(
    events: Float[ndarray, " S"],
    expected: Float[ndarray, " S"],
    shape: float,
) -> list[str]:
    """That sequences without events are missing, where the model expects some and none is there:
    logs have no rows of customers who bought nothing.
    """
    without_events = (shape / (shape + expected)) ** shape
    silent = float(without_events.sum())
    if silent < MISSED or (events == 0).any():
        return []
    return [
        f"no sequence is without events, though about {silent:,.0f} of {len(events):,} should be: "
        "if those without events are missing from the file, rates are too high and rate ratios "
        "and the variance too small; a table of all sequences adds them (--entities FILE, "
        "entities=)"
    ]


def _best_shape(events: Float[ndarray, " S"], expected: Float[ndarray, " S"]) -> float:
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda x: -_profile(x, events, expected),
        bounds=(LOWEST, HIGHEST),
        method="bounded",
    )
    return float(np.exp(found.x))


def _shape_error(
    events: Float[ndarray, " S"],
    expected: Float[ndarray, " S"],
    shape: float,
) -> float:
    """The standard error of log a, from the curvature of the profile."""
    step = 1e-2
    x = np.log(shape)
    below = _profile(x - step, events, expected)
    middle = _profile(x, events, expected)
    above = _profile(x + step, events, expected)
    curvature = -(below - 2 * middle + above) / step**2
    return float(1 / np.sqrt(curvature)) if curvature > 0 else float("inf")
