r"""The exponential Hawkes process: every event raises the rate at once, and the rise fades.

    lambda_m(t) = mu_m + sum_{t_i < t} sum_j alpha_{j, m, m_i} beta_j exp(-beta_j (t - t_i))

alpha is the branching ratio: the mean number of direct offspring, of type m, of an event of type
m_i. With event features every term of the sum has the event's factor (`models.event_features`), and
alpha is the branching ratio of an event with mean features. mu is in events
per unit of time, beta per unit of time. There is one exponential (J = 1) unless more are asked for;
their sum fades fast at first and slowly later. All of mu, alpha and beta are found by maximum
likelihood from the closed form

    log L = sum_i log lambda_{m_i}(t_i) - sum_m mu_m T - sum_i sum_{j m} alpha_{j, m, m_i} (1 -
    exp(-beta_j (stop - t_i))),

in O(n J M) by the recursion R_j(t_i) = exp(-beta_j (t_i - t_{i-1})) (R_j(t_{i-1}) + 1):
`models.hawkes_fit` searches, `ops.excitation` has the sums. Labelled HP in the paper's tables.
Source: Hawkes, "Spectra of some self-exciting and mutually exciting point processes" (1971).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from fourpoint.events import Batch, Dataset, MarkSpace, UserError
from fourpoint.events.dates import SECONDS, suiting_unit
from fourpoint.kernels.path_terms import Wanted
from fourpoint.memory import require_memory
from fourpoint.models.base import (
    History,
    PointProcess,
    ScoredGaps,
    exposed_pieces,
    log_exposure,
    position_before,
    space_without_places,
)
from fourpoint.models.baseline import Baseline
from fourpoint.models.effects import Effects, EffectsSpec
from fourpoint.models.effects_fit import ratio_notes
from fourpoint.models.hawkes_effects import estimate_with_effects
from fourpoint.models.hawkes_fit import Estimate, estimate
from fourpoint.models.path_counts import Factors, factors_of, hawkes_counts, hawkes_events
from fourpoint.models.poisson import mean_rates
from fourpoint.models.time_integrals import scored_together
from fourpoint.models.time_pieces import Cubics, baseline_cubics
from fourpoint.ops.attention import scan
from fourpoint.ops.profiles import Profile

SPREAD = 10.0  # ratio of neighbouring decays before any data are seen
# what an estimate of 0 is stored as, since logarithms are: of the mean rate, or of one offspring
FLOOR = 1e-12
UNEXCITED = 1e-6  # branching ratio below which events trigger nothing
EXPLODES = "the branching ratio {:.3f} is 1 or more: forecasts beyond the training window explode"


@dataclass(frozen=True)
class HawkesHistory(History):
    """R per decay and past type at each position: the events so far, each weighted by exp(-beta
    age).
    """

    excitation: Float[Tensor, "B P J M"]

    def latest(self) -> HawkesHistory:
        """The last position alone: all that is needed to go on."""
        return HawkesHistory(
            times=self.times[:, -1:],
            start=self.start,
            lengths=torch.zeros_like(self.lengths),
            excitation=self.excitation[:, -1:],
            context=self.context,
        )

    def at_positions(self, rows: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> HawkesHistory:
        """R positions of any rows, each a row of its own."""
        times = self.times[rows, positions]
        excitation = self.excitation[rows, positions]
        return HawkesHistory(
            times=times[:, None],
            start=self.start[rows],
            lengths=torch.zeros_like(positions),
            excitation=excitation[:, None],
            context=None if self.context is None else self.context.select(rows),
        )


class Hawkes(PointProcess[HawkesHistory]):
    """Exponential Hawkes process with J decays that are shared by all pairs of types.

    Args:
        marks: the mark space.
        baseline: mu in events per unit of time, one number or one per type.
        branching: alpha, the expected offspring of one event: one number, divided evenly over types
            and decays, or a table (M, M), for several decays (J, M, M), with the exciting type as
            the last axis.
        decay: beta per unit of time: one number, around which several decays lie a factor of 10
            apart, or J numbers.
        exponentials: J.

    These are starting values of the parameters; :meth:`maximum_likelihood` estimates them.
    Afterwards ``errors`` contains their standard errors, with the names and shapes of
    ``estimates``, and :meth:`intervals` returns their confidence intervals. Both are saved with the
    model. Raises :class:`UserError` for values that are not positive or tables of another shape.

    >>> from fourpoint.events import Sequence
    >>> model = Hawkes(baseline=1.0, branching=0.5, decay=2.0)
    >>> batch = Sequence([1.0], start=0.0, stop=2.0).batch()
    >>> model.intensity(
    ...     model.encode(batch), torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    ... ).flatten().tolist()
    [1.0, 1.3678794411714423]
    >>> {name: value.shape for name, value in Hawkes(3, exponentials=2).estimates.items()}
    {'baseline': (3,), 'branching': (2, 3, 3), 'decay': (2,)}
    """

    linear = True
    has_upper_bound = True
    fits_in_closed_form = True
    takes_event_features = True

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
        if exponentials < 1:
            raise UserError(
                "at least one exponential",
                f"exponentials={exponentials}",
                "Pass exponentials=1, say.",
            )
        if min(np.min(baseline), np.min(branching), np.min(decay)) <= 0:
            raise UserError(
                "positive baseline, branching and decay",
                f"{baseline}, {branching}, {decay}",
                f"Raise them above 0; {FLOOR:g} is next to nothing.",
            )
        self.marks = space_without_places(marks, "hawkes")
        M = self.marks.count
        J = exponentials
        # Branching ratios of all pairs, and in the fit their gradients and one more copy.
        require_memory(
            3 * 8 * J * M * M,
            f"a Hawkes process with {M:,} x {M:,} branching ratios",
            "Merge rare types, or use --model dapp or deep-dapp, which have no parameter for "
            "every pair.",
        )
        several = () if J == 1 else (J,)
        self.baseline = Baseline(M, base="constant", inside=False, dtype=torch.float64)
        with torch.no_grad():
            self.log_baseline.copy_(_logarithms("baseline", baseline, 1.0, (M,)))
        self.log_branching = _logarithms("branching", branching, 1 / (M * J), (*several, M, M))
        self.log_decay = _logarithms("decay", decay, _spread(J), several)
        self._settings = {
            "baseline": np.asarray(baseline).tolist(),
            "branching": np.asarray(branching).tolist(),
            "decay": np.asarray(decay).tolist(),
            "exponentials": J,
        }
        self.errors: dict[str, NDArray[np.float64]] = {}
        self.profiles: dict[str, Profile] = {}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for ``marks``."""
        return dict(self._settings)

    def shown(self) -> dict[str, Any]:
        """The parameters as they are now."""
        return {**self.estimates, "exponentials": self._settings["exponentials"]}

    @property
    def log_baseline(self) -> Float[Tensor, " M"]:
        """The logarithm of the baseline of every mark."""
        return self.baseline.log_base[:, 0]

    @property
    def estimates(self) -> dict[str, NDArray[np.float64]]:
        """baseline mu (M,), branching alpha (M, M) with the exciting type last, and decay beta, in
        the user's unit of time.

        With J exponentials branching is (J, M, M) and decay (J,), by rising decay once they are
        fitted.
        """
        logarithms = {
            "baseline": self.log_baseline,
            "branching": self.log_branching,
            "decay": self.log_decay,
        }
        found = {}
        for name, value in logarithms.items():
            found[name] = np.asarray(value.detach().exp().numpy())
        return found

    def intervals(self, level: float = 0.95) -> dict[str, NDArray[np.float64]]:
        """Confidence intervals of all parameters: under the names of ``estimates`` and in their
        shapes, with one axis more for the lower and the upper limit, in their units.

        An interval holds the values whose profile likelihood ratio is at most the ``level``
        quantile of chi-squared, from the observed information with skewness (`ops.profiles`).
        Branching ratios near 0 have 0 as lower limit; the curvature is that of a process whose
        ratios could be negative, since intervals given that an estimate is exactly 0 are too
        short. NaN
        where the data do not determine a parameter: types that never happen, decays of a process
        without excitation. Raises :class:`UserError` for a process that was not fitted or has too
        many types for standard errors, and for a level that is not between 0 and 1.

        >>> from fourpoint.data.synthetic import simulate
        >>> model = Hawkes()
        >>> notes = model.maximum_likelihood(simulate("hawkes", 50, seed=1))
        >>> low, high = model.intervals()["branching"].ravel()
        >>> bool(0 <= low < model.estimates["branching"].item() < high)
        True
        """
        if not 0 < level < 1:
            raise UserError("a level between 0 and 1", f"{level}", "Pass level=0.95, say.")
        if not self.profiles:
            raise UserError(
                "a fitted Hawkes process with standard errors",
                f"{self!r}, which has none",
                "Fit it with fp.fit or maximum_likelihood; where there are too many types for "
                "standard errors, merge rare ones.",
            )
        found = {}
        for name, value in self.estimates.items():
            limits = self.profiles[name].interval(level)
            highest_low = np.where(value > FLOOR, value, 0.0)
            low = np.minimum(limits[..., 0], highest_low)
            high = np.maximum(limits[..., 1], value)
            found[name] = np.stack([low, high], -1)
        return found

    @property
    def spectral_radius(self) -> float:
        """The branching ratio of the whole process, over all exponentials and with the mean factor
        of event features; at 1 or more it explodes as time goes on.
        """
        return _radius(self.mean_branching)

    @property
    def mean_branching(self) -> NDArray[np.float64]:
        """Direct offspring of type m of an event of type n, (M, M), over all exponentials and the
        features of training events.
        """
        ratios = self._branching().sum(0).detach().numpy()
        if self.event_features is None:
            return ratios
        factor = self.event_features.mean_factor().detach().numpy()
        return np.asarray(ratios * factor)

    def initialise(self, data: Dataset) -> list[str]:
        """Half of the mean rate per type as baseline, a branching ratio of a half, and one fade per
        four mean gaps.
        """
        gaps = data.gaps
        if len(gaps) and gaps.mean() > 0:
            gap = float(gaps.mean())
        else:
            gap = float(data.exposed_times.sum()) / max(data.scored_events, 1)
        rates = mean_rates(data, self.marks)
        branching = 0.5 / self.log_branching.numel() * self.marks.count
        decay = _spread(self.log_decay.numel()) / (4 * gap)
        with torch.no_grad():
            self.log_baseline.copy_((rates / 2).log())
            self.log_branching.fill_(float(np.log(branching)))
            _assign(self.log_decay, torch.from_numpy(np.log(decay)))
        return []

    def maximum_likelihood(self, data: Dataset) -> list[str]:
        """Fit mu, alpha and beta to ``data``, whatever they were before, with standard errors from
        the observed information.

        Returns remarks: the estimates in a line, a warning where the branching ratio is 1 or more,
        and what the data leave open.
        An estimate of 0 is stored as next to nothing, and its standard error is NaN. Raises
        :class:`UserError` where there are no sequences or they have other marks than the model.
        """
        if not len(data):
            raise UserError(
                "at least one sequence",
                "a data set without any",
                "Read or select some.",
            )
        rates = mean_rates(data, self.marks)
        if self.event_features is not None:
            self.event_features.check_names(data)
        if self.effects is not None or self.event_features is not None:
            return self._fit_with_effects(data)
        found = estimate(data, self.log_decay.numel())
        baseline = torch.from_numpy(found.baseline).maximum(FLOOR * rates)
        branching = torch.from_numpy(np.maximum(found.branching, FLOOR))
        with torch.no_grad():
            self.log_baseline.copy_(baseline.log())
            _assign(self.log_branching, branching.log())
            _assign(self.log_decay, torch.from_numpy(found.decay).log())
        self._keep_errors(found.errors)
        self._keep_profiles(found.profiles)
        radius = _radius(found.branching.sum(0))
        notes = [_in_a_line(found, radius, data.unit), *found.notes]
        if radius >= 1:
            notes.append(EXPLODES.format(radius))
        return notes

    def _fit_with_effects(self, data: Dataset) -> list[str]:
        """The fit with calendar, covariates and event features (`hawkes_effects`)."""
        spec = EffectsSpec() if self.effects is None else self.effects.spec
        features = None
        if self.event_features is not None and data.features is not None:
            raw = torch.from_numpy(np.array(data.features))
            features = self.event_features.standardised(raw).numpy()
        standard = replace(data, features=features)
        found = estimate_with_effects(standard, spec, self.log_decay.numel())
        lowest = (FLOOR * mean_rates(data, self.marks)).log()
        branching = torch.from_numpy(np.maximum(found.branching, FLOOR))
        with torch.no_grad():
            self.log_baseline.copy_(torch.from_numpy(found.level).maximum(lowest))
            _assign(self.log_branching, branching.log())
            _assign(self.log_decay, torch.from_numpy(found.decay).log())
            if self.effects is not None:
                self.effects.weight.copy_(torch.from_numpy(found.weight))
            if self.event_features is not None:
                self.event_features.weight.copy_(torch.from_numpy(found.feature_weight))
        baseline = self.estimates["baseline"]
        errors = dict(found.errors)
        errors["baseline"] = baseline * errors["level"]
        self._keep_errors(errors)
        profiles = dict(found.profiles)
        if profiles:
            profiles["baseline"] = profiles.pop("level")
        self._keep_profiles(profiles)
        self.rate_ratios = found.ratios
        at_mean = _radius(found.branching.sum(0))
        shown = Estimate(baseline, found.branching, found.decay, errors)
        notes = [_in_a_line(shown, at_mean, data.unit), *found.notes]
        notes += ratio_notes(found.ratios)
        notes += self._said_of_features(found.errors["feature_weight"], at_mean)
        radius = self.spectral_radius
        if radius >= 1:
            notes.append(EXPLODES.format(radius))
        return notes

    def _keep_errors(self, errors: dict[str, NDArray[np.float64]]) -> None:
        """Keep the standard errors of all estimates, in their shapes."""
        self.errors = {}
        for name, value in self.estimates.items():
            self.errors[name] = errors[name].reshape(value.shape)

    def _keep_profiles(self, profiles: dict[str, Profile]) -> None:
        estimates = self.estimates
        self.profiles = {}
        for name, profile in profiles.items():
            self.profiles[name] = profile.reshape(estimates[name].shape)

    def _said_of_features(self, errors: NDArray[np.float64], at_mean: float) -> list[str]:
        """The ratios per unit of every event feature, and which branching ratio was printed."""
        if self.event_features is None:
            return []
        names = ", ".join(self.event_features.spec.names)
        self.feature_ratios = []
        if at_mean < UNEXCITED:
            return [f"no event triggers others: the data do not determine what {names} would scale"]
        self.feature_ratios = self.event_features.ratios(errors)
        notes = []
        for one in self.feature_ratios:
            notes.append(
                f"an event with one unit more of {one.name} triggers {one.ratio:.3g} times as many "
                f"(95% interval {one.low:.3g} to {one.high:.3g})"
            )
        notes.append(
            f"the branching ratio {at_mean:.4g} is that of an event with the mean {names}; over "
            f"all training events it is {self.spectral_radius:.4g}"
        )
        return notes

    @property
    def laplace_parameters(self) -> tuple[str, ...]:
        """All parameters but the weights of event features."""
        names = ("baseline.log_base", "log_branching", "log_decay")
        return names if self.effects is None else (*names, "effects.weight")

    @property
    def effect_curves(self) -> int:
        """log mu of every mark."""
        return self.marks.count

    @property
    def has_closed_integral(self) -> bool:
        """Without effects of calendar and covariates."""
        return self.effects is None

    def training_log_likelihood(
        self,
        batch: Batch,
        nodes: int,
        random: torch.Generator,
        convention: str,
    ) -> Float[Tensor, " B"] | None:
        """The exact log-likelihood; None with effects of calendar and covariates."""
        if self.effects is not None:
            return None
        return self.exact_log_likelihood(batch, convention)

    def _log_mu(
        self,
        history: HawkesHistory,
        times: Float[Tensor, "B G Q"],
    ) -> Float[Tensor, "B G Q M"]:
        if self.effects is None:
            return self.log_baseline.expand(*times.shape, -1)
        return self.log_baseline + self.effects.values(times, history.context)

    def exact_log_likelihood(self, batch: Batch, convention: str = "window") -> Float[Tensor, " B"]:
        """The closed form above, with gradient; "gaps" leaves out the first event and both ends of
        the window.
        """
        history = self.encode(batch)
        B, N = batch.times.shape
        place = torch.arange(N + 1, device=batch.times.device).expand(B, N + 1)
        logs = self.log_intensity(history, batch.times[..., None], place[:, :-1])[:, :, 0]
        own = logs.gather(2, batch.marks[..., None])[..., 0]
        left = batch.edges[:, :-1]
        right = batch.edges[:, 1:]
        seen = place
        exposure = batch.scored_exposure
        if exposure is not None:
            left, right, seen = exposed_pieces(batch, exposure)
        integral = self.closed_integral(history, left, right, seen).sum(2)
        if exposure is not None:
            integral = integral * exposure.at(left)[..., 0]
        scored = batch.scored
        kept = torch.ones_like(seen, dtype=torch.bool)
        if convention == "gaps":
            scored = scored & (place[:, :-1] > 0)
            kept = (seen > 0) & (seen < batch.lengths[:, None])
        events = torch.where(scored, own + log_exposure(batch), 0.0)
        integral = torch.where(kept, integral, 0.0)
        return events.sum(1) - integral.sum(1)

    # ------------------------------------------------------------------ the verbs

    def encode(self, batch: Batch, before: HawkesHistory | None = None) -> HawkesHistory:
        """R at every position, by one scan."""
        decay = self._decay()
        J = len(decay)
        M = self.marks.count
        if before is None:
            start = batch.start
            anchor = batch.start[:, None]
            first = torch.zeros(len(batch.start), J, M, dtype=torch.float64)
        else:
            start = before.start
            anchor = before.times[:, -1:]
            first = before.excitation[:, -1]
        times = torch.cat([anchor, batch.times], 1)
        own = nn.functional.one_hot(batch.marks, M).to(torch.float64)
        factors = self.event_factors(batch)
        if factors is not None:
            own = own * factors[..., None]
        driven = torch.where(batch.valid[..., None], own, 0.0)
        driven = driven[:, :, None, None].expand(-1, -1, 1, J, -1)
        rate = torch.complex(-decay, torch.zeros_like(decay))[None]
        states = scan(
            rate,
            times.diff(dim=1),
            driven.to(rate.dtype),
            first[:, None].to(rate.dtype),
        )
        after = states.real[:, :, 0]
        return HawkesHistory(
            times=times,
            start=start,
            lengths=batch.lengths,
            excitation=torch.cat([first[:, None], after], 1),
            context=self.known_context(batch, before),
        )

    def extend(
        self,
        history: HawkesHistory,
        time: Float[Tensor, " B"],
        mark: Int[Tensor, " B"],
        active: Bool[Tensor, " B"] | None = None,
        place: Float[Tensor, "B k"] | None = None,
        features: Float[Tensor, "B F"] | None = None,
    ) -> HawkesHistory:
        """One event more; only the last position is kept."""
        if active is None:
            active = torch.ones_like(mark, dtype=torch.bool)
        row = torch.arange(len(time))
        last = history.times[row, history.lengths]
        old = history.excitation[row, history.lengths]
        gap = torch.where(active, time - last, 0.0)
        one_hot = nn.functional.one_hot(mark, self.marks.count)
        own = torch.where(active[:, None], one_hot, 0)
        if self.event_features is not None:
            factors = self.event_features.factors_of(mark, features)
            own = own * factors[:, None]
        fade = torch.exp(-self._decay() * gap[:, None])
        new = fade[..., None] * old + own[:, None]
        return HawkesHistory(
            times=torch.where(active, time, last)[:, None],
            start=history.start,
            lengths=torch.zeros_like(history.lengths),
            excitation=new[:, None],
            context=history.context,
        )

    def log_intensity(
        self,
        history: HawkesHistory,
        times: Float[Tensor, "B G Q"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G Q M"]:
        """log lambda per type."""
        anchor, excitation = history.at_seen(seen, history.excitation)
        decay = self._decay()
        weight = decay[:, None, None] * self._branching()
        jump = torch.einsum("bgjn,jmn->bgjm", excitation, weight)
        age = times - anchor[..., None]
        fade = torch.exp(-decay * age[..., None])
        rise = fade[..., None] * jump[:, :, None]
        excited = rise[:, :, :, 0] if len(decay) == 1 else rise.sum(3)
        return torch.log(self._log_mu(history, times).exp() + excited)

    def without(
        self,
        history: HawkesHistory,
        times: Float[Tensor, "B Q"],
        seen: Int[Tensor, "B Q"] | None = None,
    ) -> Float[Tensor, "B Q N M"] | None:
        """The rates at ``times`` with each past event left out in turn, in O(N): the rate less what
        the event adds to it.
        """
        seen = position_before(history, times) if seen is None else seen
        decay = self._decay()
        gaps = history.times.diff(dim=1)
        fade = torch.exp(-decay * gaps[..., None])[..., None]
        before = history.excitation[:, :-1]
        after = history.excitation[:, 1:]
        own = after - fade * before  # of each event
        age = (times[:, :, None] - history.times[:, None, 1:]).clamp(min=0)
        left = torch.exp(-decay * age[..., None])
        weight = decay[:, None, None] * self._branching()
        each = torch.einsum("bqnj,bnjp,jmp->bqnm", left, own, weight)
        position = torch.arange(1, history.times.shape[1], device=times.device)
        past = position <= seen[..., None]
        added = torch.where(past[..., None], each, 0.0)
        whole = self.log_intensity(history, times[..., None], seen).exp()
        return (whole - added).clamp(min=0)

    def closed_integral(
        self,
        history: HawkesHistory,
        a: Float[Tensor, "B G"],
        b: Float[Tensor, "B G"],
        seen: Int[Tensor, "B G"] | None = None,
    ) -> Float[Tensor, "B G M"]:
        """int_a^b lambda per type, in closed form."""
        anchor, excitation = history.at_seen(seen, history.excitation)
        decay = self._decay()
        lag = (a - anchor)[..., None] * decay
        width = (b - a)[..., None] * decay
        mass = torch.exp(-lag) * -torch.expm1(-width)
        base = (b - a)[..., None] * self.log_baseline.exp()
        return base + torch.einsum("bgj,bgjn,jmn->bgm", mass, excitation, self._branching())

    def scored_gaps(self, batch: Batch, tolerance: float) -> ScoredGaps | None:
        """With effects, where sequences share the baseline: one integral of it for all of them."""

        def triggered() -> Float[Tensor, "B G"]:
            left = batch.edges[:, :-1]
            right = batch.edges[:, 1:]
            of_all = self.closed_integral(self.encode(batch), left, right).sum(2)
            return of_all - (right - left) * self.log_baseline.exp().sum()

        return scored_together(self, batch, tolerance, self.log_baseline, triggered)

    @torch.no_grad()
    def upper_bound(
        self,
        history: HawkesHistory,
        a: Float[Tensor, " B"],
        b: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """The largest total rate on [a, b] seen from the last position: excitation fades, so that
        it is the rate at a, but for effects of the calendar on the baseline.
        """
        now = a[:, None, None]
        rates = self.log_intensity(history, now, history.lengths[:, None])
        total = rates.exp().sum((1, 2, 3))
        if self.effects is None:
            return total
        bound = self.effects.upper_bound(a, b, history.context, self.log_baseline.dtype)
        base = self._log_mu(history, now).exp().sum((1, 2, 3))
        highest_base = (self.log_baseline + bound).exp().sum(-1)
        triggered = (total - base).clamp(min=0)
        return triggered * (1 + 1e-12) + highest_base

    def draw_counts(self, batch: Batch, wanted: Wanted) -> NDArray[np.int32] | None:
        """By a kernel."""
        return hawkes_counts(*self._tables(batch), batch, wanted)

    def draw_events(
        self,
        batch: Batch,
        wanted: Wanted,
        most: int | None,
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]] | None:
        """By a kernel."""
        return hawkes_events(*self._tables(batch), batch, wanted, most)

    def _tables(self, batch: Batch) -> tuple[Cubics, Effects | None, Tensor, Tensor, Factors]:
        """What the kernels need: cubics of the baseline, effects, branching ratios, decays and the
        factors of events.
        """
        cubics = baseline_cubics(self.baseline)
        factors = factors_of(batch, self.marks.count, self.event_features)
        return cubics, self.effects, self._branching(), self._decay(), factors

    def shortest_time(self, history: HawkesHistory) -> Float[Tensor, " B"]:
        """One over the fastest decay."""
        return torch.full_like(history.start, 1 / float(self._decay().max()))

    def _branching(self) -> Float[Tensor, "J M M"]:
        return self.log_branching.exp().reshape(-1, self.marks.count, self.marks.count)

    def _decay(self) -> Float[Tensor, " J"]:
        return self.log_decay.exp().reshape(-1)


def _assign(parameter: Tensor, values: Tensor) -> None:
    """Copy ``values`` into ``parameter``, in its shape."""
    parameter.copy_(values.reshape(parameter.shape))


def _in_a_line(found: Estimate, radius: float, unit: str) -> str:
    """The estimates, with the standard errors of those that are single numbers. In a known unit of
    time, decays are given as the mean delays of what an event triggers, 1 / beta.
    """
    mu = found.errors["baseline"]
    alpha = found.errors["branching"]
    beta = found.errors["decay"]
    baseline = _with_error(found.baseline.sum(), mu[0] if len(mu) == 1 else np.nan)
    ratio = _with_error(radius, alpha.item() if alpha.size == 1 else np.nan)
    if unit in SECONDS:
        fading = "mean delay"
        delays = [
            _delay_with_error(1 / value, error / value**2, unit)
            for value, error in zip(found.decay, beta, strict=True)
        ]
    else:
        fading = "decay"
        delays = [_with_error(*pair) for pair in zip(found.decay, beta, strict=True)]
    line = (
        f"baseline {baseline} per unit of time, branching ratio {ratio}, "
        f"{fading} {' and '.join(delays)}"
    )
    if "(" in line:
        line += "; standard errors in brackets"
    return line


def _with_error(value: float, error: float) -> str:
    if np.isfinite(error):
        return f"{value:.4g} ({error:.2g})"
    return f"{value:.4g}"


def _delay_with_error(value: float, error: float, unit: str) -> str:
    """A delay in the unit that suits it, with its standard error.

    >>> _delay_with_error(1 / 4272, 1e-5, "days")
    '20.22 (0.86) seconds'
    """
    name = suiting_unit(value, unit)
    factor = SECONDS[unit] / SECONDS[name]
    return f"{_with_error(factor * value, factor * error)} {name}"


def _radius(branching: NDArray[np.float64]) -> float:
    eigenvalues = np.linalg.eigvals(branching)
    return float(np.abs(eigenvalues).max())


def _spread(count: int) -> NDArray[np.float64]:
    """Factors around 1, each SPREAD times the one before."""
    return np.power(SPREAD, np.arange(count) - (count - 1) / 2, dtype=np.float64)


def _logarithms(name: str, value: Any, even: Any, shape: tuple[int, ...]) -> nn.Parameter:
    """The parameter from a table of its shape, or from one number times ``even``."""
    given = np.asarray(value, dtype=np.float64)
    if given.ndim and given.shape != shape:
        raise UserError(
            f"{name} as one number or with the shape {shape}",
            f"the shape {given.shape}",
            "Give as many values.",
        )
    table = given
    if not given.ndim:
        table = (given * even).reshape(shape if np.ndim(even) else ())
    full = np.broadcast_to(table, shape).copy()
    return nn.Parameter(torch.from_numpy(full).log())
