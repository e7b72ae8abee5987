"""Where DAPP begins: time scale, base rates and the spread of frequencies, all from the data. Used
by DAPP with and without places.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fourpoint.events import Dataset
from fourpoint.events.windows import repeated_windows
from fourpoint.models.base import PointProcess
from fourpoint.models.excitation_start import (
    Excitation,
    embedded_hawkes,
    embedded_poisson,
    hawkes_guess,
)
from fourpoint.models.hawkes import Hawkes
from fourpoint.models.poisson import Poisson, SplinePoisson, mean_rates
from fourpoint.ops.spline import spline

if TYPE_CHECKING:
    from fourpoint.models.dapp import DAPP
    from fourpoint.models.spatial.dapp import PlacedDAPP


def initialise(model: DAPP, data: Dataset) -> list[str]:
    """Time scale, base rates and the spread of frequencies from ``data``; drift and base where left
    to it.
    """
    s, notes = model._settings, []
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
    s = model._settings
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
        return embedded_hawkes(
            model, Excitation(found["baseline"], branching, float(found["decay"]))
        )
    if isinstance(other, Poisson):
        return embedded_poisson(model, lambda since: other.log_rate.detach().expand(len(since), -1))
    if isinstance(other, SplinePoisson) and model.rate.baseline.splined_base:
        return embedded_poisson(
            model, lambda since: spline(other.coefficients.detach(), since, other.length)
        )
    return None


@torch.no_grad()
def start_rate(model: DAPP | PlacedDAPP, data: Dataset) -> list[str]:
    """The mean gap as the unit of time, drift and base in time where left to the data, and rates at
    the data's mean; what was chosen.
    """
    s, notes, durations = model._settings, [], data.durations
    even = repeated_windows(data)
    why = "all windows have one length" if even else "windows have different lengths"
    if len(data) < 2:
        why = "there is one window only"
    for name, other in (("drift", "none"), ("base", "constant")):
        if s[name] == "auto":
            s[name] = "spline" if even else other
            notes.append(f"{name}: {s[name]} ({why})")
    gap = data.gaps.mean() if len(data.gaps) else 0.0
    scale = gap if gap > 0 else float(durations.sum()) / max(data.events, 1)
    model.time_scale.fill_(scale)
    model.rate.baseline.length.fill_(float(durations.max()))
    model.rate.baseline.build(s["base"], s["drift"])
    model.rate.start_at((mean_rates(data, model.marks) * scale).to(model.readout))
    return [*notes, f"time scale: {scale:.4g} {data.unit or 'time units'} (the mean gap)"]


@torch.no_grad()
def _start_values(model: DAPP, length: float, events: float) -> None:
    """Spread the heads over time scales, and begin with a small effect of either sign, whatever a
    head sums over.
    """
    rates = model.modes.spread(length)
    if model._settings["normalise"] == "none":
        model.gain.copy_(1 / (1 / rates).clamp(1.0, max(1.0, events)))
    sign = torch.where(torch.arange(len(rates)) % 2 == 0, 1.0, -1.0)
    value = (
        torch.full_like(model.value_weight, 0.3 / model.value_weight.shape[1]) * sign[:, None, None]
    )
    if model._settings["values"] != "mark":
        value = model.value_weight * 0.3
        value[..., 0] /= max(
            1.0, length
        )  # the slope in time: over the window a value stays of one size
    if model._settings["link"] == "identity":
        value = torch.log(
            torch.expm1(value.abs() / model.readout.numel())
        )  # every head adds to the rate of every mark
    model.value_weight.copy_(value)
