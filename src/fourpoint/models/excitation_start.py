"""A first guess from a Hawkes process: how strongly, and for how long, do events call for more of them?

The exponential Hawkes process lambda(t) = mu + alpha beta sum_i exp(-beta (t - t_i)), fitted to all events as one type in closed form
(`hawkes_fit`), takes a fraction of a second, and where events excite each other a network that begins there has little left to learn.
A rate that rises and falls at the same times in every window looks like excitation too. So where all windows have one length, excitation
must also be there in a time that runs as fast as events come on average. Used by DAPP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fourpoint.events import Dataset, MarkSpace
from fourpoint.models.hawkes_fit import estimate
from fourpoint.models.modes import Modes
from fourpoint.models.poisson import mean_rates

if TYPE_CHECKING:
    from fourpoint.models.dapp import DAPP

ENOUGH = 100  # events below which nothing is guessed
MOST = 50_000  # events that are looked at
LEAST, MOST_BRANCHING, CERTAIN = 0.05, 2.0, 4.0  # branching ratios, and how many of their standard errors, that count as excitation
OTHER_HEADS = 0.1  # of their first values, where one head is a Hawkes process
BINS = 24  # of a window, in each of which events come at one rate on average


class Excitation(NamedTuple):
    """mu per unit of the user's time, alpha (events that one event calls for), beta per unit of time."""

    baseline: float
    branching: float
    decay: float


@torch.no_grad()
def hawkes_guess(model: DAPP, data: Dataset) -> tuple[dict[str, Tensor] | None, list[str]]:
    """The excitation in ``data`` as weights of ``model``, which stays as it is, and a remark; None where there is none.

    One head is the kernel and the link is linear. Training does not begin there, since from a linear link it ends in worse places
    where events multiply the rate.
    """
    found = excitation_of(data, model.settings()["seed"])
    if found is None or not isinstance(model.modes, Modes):
        return None, []
    before, scale = _weights(model), float(model.time_scale)
    rates = mean_rates(data, model.marks).to(model.readout)
    jump = model.rate.start_linear(found.baseline * scale * rates / rates.sum())
    head = model.modes.exponential(found.decay * scale)
    model.value_weight.mul_(OTHER_HEADS)
    model.value_weight[head] = found.branching * found.decay * scale / jump / (model.gain[head] * model.value_weight.shape[1])
    guess = _weights(model)
    model.load_state_dict(before, strict=False)
    unit = data.unit or "time units"
    return guess, [f"first guess: a Hawkes process, an event calls for {found.branching:.2g} others in {1 / found.decay:.3g} {unit}"]


def _weights(model: DAPP) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def excitation_of(data: Dataset, seed: int = 0) -> Excitation | None:
    """The excitation in ``data``; None where there is none to speak of, or where there are few events.

    >>> from fourpoint.data.synthetic import simulate
    >>> [excitation_of(simulate(name, 1000, seed=1)) is None for name in ("hawkes", "nonhomogeneous2")]
    [False, True]
    """
    some = data.some(MOST, seed)
    if some.events < ENOUGH:
        return None
    some = replace(some, mark_ids=np.zeros_like(some.mark_ids), marks=MarkSpace())
    found = _fitted(some)
    even = np.ptp(some.durations) <= 1e-9 * some.durations.max()
    if found is None or (even and len(some) > 1 and _fitted(_evened(some)) is None):
        return None
    return found


def _fitted(data: Dataset) -> Excitation | None:
    found = estimate(data)
    branching, error = float(found.branching.sum()), float(found.errors["branching"].sum())
    certain = LEAST <= branching <= MOST_BRANCHING and branching >= CERTAIN * error
    return Excitation(float(found.baseline[0]), branching, float(found.decay[0])) if certain else None


def _evened(data: Dataset) -> Dataset:
    """The same events in a time in which they come at one rate on average over all sequences."""
    since = data.times - np.repeat(data.starts, data.lengths)
    length = float(data.durations.max())
    edges = np.linspace(0, length, BINS + 1)
    passed = np.append(0.0, np.cumsum(np.histogram(since, edges)[0] + 1e-3)) / len(data)
    zero = np.zeros(len(data))
    return replace(data, times=np.interp(since, edges, passed), starts=zero, stops=zero + passed[-1], inferred=False)
