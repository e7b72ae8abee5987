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
from fourpoint.models.hawkes_fit import Estimate, estimate
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
        share = s["keep"]
        longest = int(data.lengths.max()) if len(data) else 0
        s["keep"] = max(1, math.ceil(share * longest))
        notes.append(
            f"keep: {s['keep']} events per head ({share:g} of the longest sequence's {longest})"
        )
    notes = start_rate(model, data) + notes
    length = float(data.durations.mean() / model.time_scale)
    events = data.events / max(len(data), 1)
    _start_values(model, length, events)
    model.first_guess = None
    if contains_hawkes(model):
        model.first_guess, said = hawkes_guess(model, data)
        notes += said
    return notes


def contains_hawkes(model: DAPP) -> bool:
    """Whether an exponential Hawkes process is a limit of this model: a sum of decaying modes, one
    value per mark, and a softplus with a learned scale.
    """
    s = model.options
    return bool(
        s["normalise"] == "none"
        and s["values"] == "mark"
        and s["score"] == "fourier"
        and s["decay"]
        and s["link"] == "softplus"
        and s["learn_scale"]
    )


def embedded(model: DAPP, other: PointProcess) -> dict[str, Tensor] | None:
    """Weights with which ``model`` is nearly the closed-form model ``other``; None if it has
    none.
    """
    if not contains_hawkes(model):
        return None
    if isinstance(other, Hawkes) and other.log_decay.numel() == 1:
        M = model.marks.count
        found = other.estimates
        excitation = Excitation(
            baseline=found["baseline"],
            branching=found["branching"].reshape(M, M),
            decay=float(found["decay"]),
        )
        weights = embedded_hawkes(model, excitation, _effects_of(other))
        if weights is None or model.event_features is None or other.event_features is None:
            return weights
        return {**weights, "event_features.weight": other.event_features.weight.detach()}
    if isinstance(other, Poisson):
        level = other.log_rate.detach()
        weights = embedded_poisson(model, lambda since: level.expand(len(since), -1))
        return with_effects(model, weights, _effects_of(other))
    if isinstance(other, SplinePoisson) and model.rate.baseline.splined_base:
        coefficients = other.coefficients.detach()
        return embedded_poisson(model, lambda since: spline(coefficients, since, other.length))
    return None


def _effects_of(other: PointProcess) -> Tensor | None:
    """The weights of effects on log mu of a closed-form model; None without any."""
    return None if other.effects is None else other.effects.weight.detach()


def with_effects(
    model: DAPP | SpatialDAPP,
    weights: dict[str, Tensor],
    outside: Tensor | None,
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
    even = repeated_windows(data)
    why = "all windows have one length" if even else "windows have different lengths"
    if len(data) < 2:
        why = "there is one window only"
    for name, other in (("drift", "none"), ("base", "constant")):
        if s[name] == "auto":
            s[name] = "spline" if even else other
            notes.append(f"{name}: {s[name]} ({why})")
    scale = data.gaps.mean() if len(data.gaps) else 0.0
    if not scale > 0:
        scale = float(data.exposed_times.sum()) / max(data.scored_events, 1)
    baseline = model.rate.baseline
    model.time_scale.fill_(scale)
    baseline.length.fill_(float(data.durations.max()))
    baseline.build(s["base"], s["drift"])
    rates = mean_rates(data, model.marks)
    if model.effects is not None:
        fitted = fit_effects(data, model.effects.spec)
        rates = torch.from_numpy(fitted.level).exp()
        model.effects.weight.copy_(torch.from_numpy(fitted.weight).repeat(1, 2))
        model.rate_ratios = fitted.rate_ratios
    model.rate.start_at((rates * scale).to(model.readout))
    notes.append(f"time scale: {span_words(scale, data.unit)} (the mean gap)")
    return notes


@torch.no_grad()
def _start_values(model: DAPP, length: float, events: float) -> None:
    """Spread the heads over time scales, and begin with a small effect of either sign, whatever a
    head sums over.
    """
    s = model.options
    rates = model.modes.spread(length)
    if s["normalise"] == "none":
        summed = (1 / rates).clamp(1.0, max(1.0, events))
        model.gain.copy_(1 / summed)
    if s["values"] == "mark":
        is_even = torch.arange(len(rates)) % 2 == 0
        sign = torch.where(is_even, 1.0, -1.0)
        size = 0.3 / model.value_weight.shape[1]
        value = torch.full_like(model.value_weight, size) * sign[:, None, None]
    else:
        value = model.value_weight * 0.3
        value[..., 0] /= max(1.0, length)  # the trend: over the window a value stays of one size
    if s["link"] == "identity":  # every head adds to the rate of every mark
        share = value.abs() / model.readout.numel()
        value = torch.log(torch.expm1(share))
    model.value_weight.copy_(value)


ENOUGH = 100  # events below which nothing is guessed
MOST = 50_000  # events that are looked at
# branching ratios, and how many of their standard errors, that count as excitation
LEAST = 0.05
MOST_BRANCHING = 2.0
CERTAIN = 4.0
TYPES = 32  # types up to which each pair has a branching ratio of its own
# of the mean baseline of all types: a link that is linear needs a rate above 0
SMALLEST_BASELINE = 0.02
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
    data: Dataset,
    spec: EffectsSpec,
) -> tuple[Excitation | None, Tensor | None]:
    """The excitation that calendar and covariates do not explain, and the weights of their effects
    beside it; None where there is none to speak of, or where there are few events or many types.
    """
    some = beginning(data.some(MOST, 0), MOST)
    if some.events < ENOUGH or some.marks.count > TYPES:
        return None, None
    found = estimate_with_effects(replace(some, features=None), spec)
    branching = found.branching.sum(0)
    variance = np.nansum(found.errors["branching"] ** 2)
    error = variance**0.5 / len(branching)
    rates = mean_rates(some, some.marks.types).numpy()
    mean = float(np.average(branching.sum(0), weights=rates))
    if not _is_excitation(mean, error):
        return None, None
    excitation = Excitation(
        baseline=np.exp(found.level),
        branching=branching,
        decay=float(found.decay[0]),
    )
    return excitation, torch.from_numpy(found.weight)


def _is_excitation(branching: float, error: float) -> bool:
    """Whether a branching ratio with this standard error is neither noise nor out of range."""
    return bool(LEAST <= branching <= MOST_BRANCHING and branching >= CERTAIN * error)


@torch.no_grad()
def embedded_hawkes(
    model: DAPP,
    found: Excitation,
    outside: Tensor | None = None,
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
    smallest = SMALLEST_BASELINE * found.baseline.mean()
    baseline = np.maximum(found.baseline, smallest)
    in_base = SMALL_BASE if model.effects is None else 1 - SMALL_BASE
    rates = torch.from_numpy(baseline * scale).to(model.readout)
    jump = model.rate.start_linear(rates, in_base)
    decay = found.decay * scale
    matrix = torch.from_numpy(found.branching * found.decay * scale).to(jump) / jump[:, None]
    left, size, right = torch.linalg.svd(matrix)
    needed = int((size > NEGLIGIBLE * size[0]).sum())
    heads = modes.exponential(decay, min(len(model.gain), needed))
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
    rate = model.rate
    scale = float(model.time_scale)
    length = float(rate.baseline.length)
    grid = torch.linspace(0, length, CURVE, dtype=torch.float64)
    wanted = log_rate(grid) + math.log(scale)
    rate.start_at(wanted.exp().mean(0).to(model.readout))
    columns = rate.baseline.log_base.shape[1]
    if columns == 1:
        basis = torch.ones_like(grid)[:, None]
    else:
        each = torch.eye(columns, dtype=torch.float64)
        basis = spline(each, grid, length)
    coefficients = torch.linalg.lstsq(basis, wanted).solution
    rate.baseline.log_base.copy_(coefficients.T)
    rate.bias.copy_(rate.log_scale + wanted.mean(0) + math.log(NEGLIGIBLE))
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
        return _summed(estimate(some))
    rates = mean_rates(some, some.marks).numpy()
    share = rates / rates.sum()
    of_every_type = np.outer(share, np.ones_like(share))
    return Excitation(
        baseline=found.baseline * share,
        branching=of_every_type * found.branching,
        decay=found.decay,
    )


def _fitted(data: Dataset) -> Excitation | None:
    found = estimate(data)
    branching = float(found.branching.sum())
    error = float(found.errors["branching"].sum())
    if not _is_excitation(branching, error):
        return None
    return _summed(found)


def _summed(found: Estimate) -> Excitation:
    """The fit as an excitation of one decay."""
    return Excitation(
        baseline=found.baseline,
        branching=found.branching.sum(0),
        decay=float(found.decay[0]),
    )


def _evened(data: Dataset) -> Dataset:
    """The same events in a time in which they come at one rate on average over all sequences, which
    makes up for any exposure that all share.
    """
    since = data.times - np.repeat(data.starts, data.lengths)
    length = float(data.durations.max())
    edges = np.linspace(0, length, BINS + 1)
    counts, _ = np.histogram(since, edges)
    passed = np.append(0.0, np.cumsum(counts + 1e-3)) / len(data)
    zero = np.zeros(len(data))
    return replace(
        data,
        times=np.interp(since, edges, passed),
        starts=zero,
        stops=zero + passed[-1],
        context=None,
    )
