"""Where DAPP begins: time scale, base rates and the spread of frequencies, all from the data. Used
by DAPP with and without places.

A first guess from a Hawkes process: how strongly, and for how long, do events call for more of
them?

The exponential Hawkes process lambda(t) = mu + alpha beta sum_i exp(-beta (t - t_i)), fitted to all
events as one type in closed form (`hawkes_fit`), takes a fraction of a second, and where events
excite each other a network that begins there has little left to learn. A rate that rises and falls
at the same times in every window looks like excitation too. So where all windows have one length,
excitation must also be there in a time that runs as fast as events come on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Dataset, MarkSpace
from fourpoint.events.dates import span_words
from fourpoint.events.windows import beginning, repeated_windows
from fourpoint.models.base import PointProcess
from fourpoint.models.effects import EffectsSpec
from fourpoint.models.effects_fit import fit_effects
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.hawkes_effects import estimate_with_effects
from fourpoint.models.hawkes_fit import estimate
from fourpoint.models.modes import Modes
from fourpoint.models.poisson import Poisson, SplinePoisson, mean_rates
from fourpoint.models.rate import SMALL_BASE
from fourpoint.ops.spline import spline

if TYPE_CHECKING:
    from fourpoint.models.dapp import DAPP
    from fourpoint.models.spatial.dapp import SpatialDAPP


def initialise(model: DAPP, data: Dataset) -> list[str]:
    """Time scale, base rates and the spread of frequencies from ``data``; drift and base where left
    to it.
    """
    s = model.options
    notes = []
    if isinstance(s["keep"], float):
        longest = int(data.lengths.max()) if len(data) else 0
        share, s["keep"] = s["keep"], max(1, math.ceil(s["keep"] * longest))
        notes.append(
            f"keep: {s['keep']} events per head ({share:g} of the longest sequence's {longest})"
        )
    notes = start_rate(model, data) + notes
    _start_values(
        model, float(data.durations.mean() / model.time_scale), data.events / max(len(data), 1)
    )
    model.first_guess, said = hawkes_guess(model, data) if contains_hawkes(model) else (None, [])
    return notes + said


def contains_hawkes(model: DAPP) -> bool:
    """Whether an exponential Hawkes process is a limit of this model: a sum of decaying modes, one
    value per mark, and a softplus with a learned scale.
    """
    s = model.options
    summed = (
        s["normalise"] == "none"
        and s["values"] == "mark"
        and s["score"] == "fourier"
        and s["decay"]
    )
    return bool(summed and s["link"] == "softplus" and s["learn_scale"])


def embedded(model: DAPP, other: PointProcess) -> dict[str, Tensor] | None:
    """Weights with which ``model`` is nearly the closed-form model ``other``; None if it has
    none.
    """
    if not contains_hawkes(model):
        return None
    if isinstance(other, Hawkes) and other.log_decay.numel() == 1:
        found = other.estimates
        branching = found["branching"].reshape(model.marks.count, model.marks.count)
        excitation = Excitation(found["baseline"], branching, float(found["decay"]))
        weights = embedded_hawkes(model, excitation, _effects_of(other))
        if weights is None or model.event_features is None or other.event_features is None:
            return weights
        return {**weights, "event_features.weight": other.event_features.weight.detach()}
    if isinstance(other, Poisson):
        level = other.log_rate.detach()
        weights = embedded_poisson(model, lambda since: level.expand(len(since), -1))
        return with_effects(model, weights, _effects_of(other))
    if isinstance(other, SplinePoisson) and model.rate.baseline.splined_base:
        return embedded_poisson(
            model, lambda since: spline(other.coefficients.detach(), since, other.length)
        )
    return None


def _effects_of(other: PointProcess) -> Tensor | None:
    """The weights of effects on log mu of a closed-form model; None without any."""
    return None if other.effects is None else other.effects.weight.detach()


def with_effects(
    model: DAPP | SpatialDAPP, weights: dict[str, Tensor], outside: Tensor | None
) -> dict[str, Tensor]:
    """``weights`` with effects on log mu of ``outside``, and none inside the link."""
    if model.effects is None:
        return weights
    found = torch.zeros_like(model.effects.weight)
    if outside is not None and len(outside) == len(found):
        found[:, : outside.shape[1]] = outside.to(found)
    return {**weights, "effects.weight": found}


@torch.no_grad()
def start_rate(model: DAPP | SpatialDAPP, data: Dataset) -> list[str]:
    """The mean gap as the unit of time, drift and base in time where left to the data, and rates at
    the data's mean; what was chosen.
    """
    s = model.options
    notes = []
    durations = data.durations
    even = repeated_windows(data)
    why = "all windows have one length" if even else "windows have different lengths"
    if len(data) < 2:
        why = "there is one window only"
    for name, other in (("drift", "none"), ("base", "constant")):
        if s[name] == "auto":
            s[name] = "spline" if even else other
            notes.append(f"{name}: {s[name]} ({why})")
    gap = data.gaps.mean() if len(data.gaps) else 0.0
    scale = gap if gap > 0 else float(data.exposed_times.sum()) / max(data.scored_events, 1)
    model.time_scale.fill_(scale)
    model.rate.baseline.length.fill_(float(durations.max()))
    model.rate.baseline.build(s["base"], s["drift"])
    rates = mean_rates(data, model.marks)
    if model.effects is not None:
        fitted = fit_effects(data, model.effects.spec)
        rates = torch.from_numpy(fitted.level).exp()
        model.effects.weight.copy_(torch.from_numpy(fitted.weight).repeat(1, 2))
        model.rate_ratios = fitted.rate_ratios
    model.rate.start_at((rates * scale).to(model.readout))
    return [*notes, f"time scale: {span_words(scale, data.unit)} (the mean gap)"]


@torch.no_grad()
def _start_values(model: DAPP, length: float, events: float) -> None:
    """Spread the heads over time scales, and begin with a small effect of either sign, whatever a
    head sums over.
    """
    rates = model.modes.spread(length)
    if model.options["normalise"] == "none":
        model.gain.copy_(1 / (1 / rates).clamp(1.0, max(1.0, events)))
    sign = torch.where(torch.arange(len(rates)) % 2 == 0, 1.0, -1.0)
    value = (
        torch.full_like(model.value_weight, 0.3 / model.value_weight.shape[1]) * sign[:, None, None]
    )
    if model.options["values"] != "mark":
        value = model.value_weight * 0.3
        value[..., 0] /= max(1.0, length)  # the trend: over the window a value stays of one size
    if model.options["link"] == "identity":
        value = torch.log(
            torch.expm1(value.abs() / model.readout.numel())
        )  # every head adds to the rate of every mark
    model.value_weight.copy_(value)


ENOUGH = 100  # events below which nothing is guessed
MOST = 50_000  # events that are looked at
LEAST, MOST_BRANCHING, CERTAIN = (
    0.05,
    2.0,
    4.0,
)  # branching ratios, and how many of their standard errors, that count as excitation
TYPES = 32  # types up to which each pair has a branching ratio of its own
SMALLEST_BASELINE = (
    0.02  # of the mean baseline of all types: a link that is linear needs a rate above 0
)
NEGLIGIBLE = 1e-3  # singular values below this share of the largest are left out
LEAST_OFFSPRING = 1e-6  # in all: below it there is no excitation
CURVE = 241  # points of a rate that a spline is laid through
OTHER_HEADS = 0.1  # of their first values, where one head is a Hawkes process
BINS = 24  # of a window, in each of which events come at one rate on average


class Excitation(NamedTuple):
    """A Hawkes process with one decay: mu (M,) per unit of the user's time, alpha (M, M), the
    direct offspring of type m of an event of type n, and beta per unit of time.
    """

    baseline: NDArray[np.float64]
    branching: NDArray[np.float64]
    decay: float


def hawkes_guess(model: DAPP, data: Dataset) -> tuple[dict[str, Tensor] | None, list[str]]:
    """The excitation in ``data`` as weights of ``model``, which stays as it is, and a remark; None
    where there is none.

    Training does not begin there, since from a linear link it ends in worse places where events
    multiply the rate.
    """
    outside = None
    if model.effects is None:
        found = excitation_of(data, model.settings()["seed"])
    else:
        found, outside = _excitation_beyond_effects(data, model.effects.spec)
    if found is None or not isinstance(model.modes, Modes):
        return None, []
    rates = mean_rates(data, model.marks).numpy()
    offspring = float(np.average(found.branching.sum(0), weights=rates))
    unit = data.unit or "time units"
    said = (
        f"initial fit: a Hawkes process with branching ratio {offspring:.2g}, decay time "
        f"{1 / found.decay:.3g} {unit}"
    )
    return embedded_hawkes(model, found, outside), [said]


def _excitation_beyond_effects(
    data: Dataset, spec: EffectsSpec
) -> tuple[Excitation | None, Tensor | None]:
    """The excitation that calendar and covariates do not explain, and the weights of their effects
    beside it; None where there is none to speak of, or where there are few events or many types.
    """
    some = beginning(data.some(MOST, 0), MOST)
    if some.events < ENOUGH or some.marks.count > TYPES:
        return None, None
    found = estimate_with_effects(replace(some, features=None), spec)
    offspring = found.branching.sum(0)
    error = np.nansum(found.errors["branching"] ** 2) ** 0.5
    rates = mean_rates(some, some.marks.types).numpy()
    mean = float(np.average(offspring.sum(0), weights=rates))
    if not (LEAST <= mean <= MOST_BRANCHING and mean >= CERTAIN * error / len(offspring)):
        return None, None
    excitation = Excitation(np.exp(found.level), offspring, float(found.decay[0]))
    return excitation, torch.from_numpy(found.weight)


@torch.no_grad()
def embedded_hawkes(
    model: DAPP, found: Excitation, outside: Tensor | None = None
) -> dict[str, Tensor] | None:
    """Weights with which ``model``, whose link is a scaled softplus, is nearly the Hawkes process
    ``found``, with the effects ``outside`` on its baseline.

    With a linear link of scale s_m, an event of mark n raises the rate of mark m by
    s_m sum_k r_km v_kn exp(-beta d). The matrix alpha_mn beta / s_m is factorised by its singular
    values, of which as many as there are heads are kept. None if no event excites another.
    """
    modes = model.modes
    scale = float(model.time_scale)
    if not isinstance(modes, Modes) or not float(found.branching.sum()) > LEAST_OFFSPRING:
        return None
    before = _weights(model)
    baseline = np.maximum(found.baseline, SMALLEST_BASELINE * found.baseline.mean())
    in_base = SMALL_BASE if model.effects is None else 1 - SMALL_BASE
    jump = model.rate.start_linear(torch.from_numpy(baseline * scale).to(model.readout), in_base)
    matrix = torch.from_numpy(found.branching * found.decay * scale).to(jump) / jump[:, None]
    left, size, right = torch.linalg.svd(matrix)
    rank = min(len(model.gain), int((size > NEGLIGIBLE * size[0]).sum()))
    heads = modes.exponential(found.decay * scale, rank)
    model.value_weight.mul_(OTHER_HEADS)
    for position, head in enumerate(heads):
        sign = torch.sign(left[:, position].sum())
        readout = sign * left[:, position] * float(size[position])
        values = sign * right[position]
        if model.marks.count == 1:  # the read-out of one mark is fixed at 1
            readout = torch.ones_like(readout)
            values = matrix[0]
        model.readout[head] = readout
        model.value_weight[head] = values / (model.gain[head] * model.value_weight.shape[1])
    guess = with_effects(model, _weights(model), outside)
    model.load_state_dict(before, strict=False)
    return guess


@torch.no_grad()
def embedded_poisson(model: DAPP, log_rate: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Weights with which ``model`` is nearly a Poisson process: its mu has nearly all of the rate
    exp(log_rate(t)) at time t since the window's start, and past events have no effect."""
    before = _weights(model)
    scale = float(model.time_scale)
    grid = torch.linspace(0, float(model.rate.baseline.length), CURVE, dtype=torch.float64)
    wanted = log_rate(grid) + math.log(scale)
    model.rate.start_at(wanted.exp().mean(0).to(model.readout))
    columns = model.rate.baseline.log_base.shape[1]
    each = torch.eye(columns, dtype=torch.float64)
    if columns == 1:
        basis = torch.ones_like(grid)[:, None]
    else:
        basis = spline(each, grid, float(model.rate.baseline.length))
    model.rate.baseline.log_base.copy_(torch.linalg.lstsq(basis, wanted).solution.T)
    model.rate.bias.copy_(model.rate.log_scale + wanted.mean(0) + math.log(NEGLIGIBLE))
    model.value_weight.zero_()
    guess = _weights(model)
    model.load_state_dict(before, strict=False)
    return guess


def _weights(model: DAPP) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def excitation_of(data: Dataset, seed: int = 0) -> Excitation | None:
    """The excitation in ``data``; None where there is none to speak of, or where there are few
    events.

    >>> from fourpoint.data.synthetic import simulate
    >>> [
    ...     excitation_of(simulate(name, 1000, seed=1)) is None
    ...     for name in ("hawkes", "nonhomogeneous2")
    ... ]
    [False, True]
    """
    some = beginning(data.some(MOST, seed), MOST)
    if some.events < ENOUGH:
        return None
    pooled = replace(some, mark_ids=np.zeros_like(some.mark_ids), marks=MarkSpace())
    found = _fitted(pooled)
    if found is None or (repeated_windows(some) and _fitted(_evened(pooled)) is None):
        return None
    if some.marks.count == 1:
        return found
    if some.marks.count <= TYPES:
        each = estimate(some)
        return Excitation(each.baseline, each.branching.sum(0), float(each.decay[0]))
    rates = mean_rates(some, some.marks).numpy()
    share = rates / rates.sum()
    return Excitation(
        found.baseline * share, np.outer(share, np.ones_like(share)) * found.branching, found.decay
    )


def _fitted(data: Dataset) -> Excitation | None:
    found = estimate(data)
    branching = float(found.branching.sum())
    error = float(found.errors["branching"].sum())
    certain = LEAST <= branching <= MOST_BRANCHING and branching >= CERTAIN * error
    if certain:
        return Excitation(found.baseline, found.branching.sum(0), float(found.decay[0]))
    return None


def _evened(data: Dataset) -> Dataset:
    """The same events in a time in which they come at one rate on average over all sequences, which
    makes up for any exposure that all share.
    """
    since = data.times - np.repeat(data.starts, data.lengths)
    length = float(data.durations.max())
    edges = np.linspace(0, length, BINS + 1)
    passed = np.append(0.0, np.cumsum(np.histogram(since, edges)[0] + 1e-3)) / len(data)
    zero = np.zeros(len(data))
    return replace(
        data,
        times=np.interp(since, edges, passed),
        starts=zero,
        stops=zero + passed[-1],
        context=None,
    )
