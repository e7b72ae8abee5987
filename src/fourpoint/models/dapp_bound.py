"""Certified upper bounds of what DAPP's attention says on a window, for every score and
normalisation (`ops.bounds`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fourpoint.models.dapp_history import DAPPHistory, last_state, require, spectrum_of
from fourpoint.ops import bounds
from fourpoint.ops.scores import Projection, scores

if TYPE_CHECKING:
    from fourpoint.models.dapp import DAPP


def attention_bound(
    model: DAPP, history: DAPPHistory, a: Float[Tensor, " B"], b: Float[Tensor, " B"]
) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M"]]:
    """A bound of sum_k r_km A_km on [a, b], and how far rounding may carry the sum itself."""
    eps, score = torch.finfo(model.readout.dtype).eps, history.parts.score
    normalise, readout = model._settings["normalise"], model._readout()
    if history.state is not None:
        last = history.times.gather(1, history.lengths[:, None])[:, 0]
        if normalise != "none":
            return _convex(*_value_corners(model, history, last), readout)
        lag, reach = (((x - last) / model.time_scale).to(model.readout) for x in (a, b))
        state = bounds.moved(spectrum_of(history.parts), last_state(history), lag)[..., 0]
        width = ((b - a) / model.time_scale).to(model.readout) * (1 + 4 * eps)
        top, size, speed = bounds.sum_bound(spectrum_of(history.parts), state, width, readout)
        return top, eps * (32 * size + 4 * reach[:, None] * speed)
    past = require(history.past)
    mask = past.mask(history.lengths[:, None])[:, 0]
    mask = mask[..., None] if mask.ndim == 2 else mask
    if normalise != "none":
        return _convex(past.values, mask, readout)
    values = torch.where(mask, past.values, 0.0)
    if isinstance(score, Projection):
        return _linear_bound(model, history, a, b, values)
    now, events = model._elapsed(a, history.start), model._elapsed(past.times, history.start)
    state = bounds.gathered(spectrum_of(history.parts), now, events, past.marks, past.values, mask)
    width = ((b - a) / model.time_scale).to(model.readout) * (1 + 4 * eps)
    top, _, _ = bounds.sum_bound(spectrum_of(history.parts), state, width, readout)
    fastest = spectrum_of(history.parts).rate.abs().amax() * model._elapsed(b, history.start).to(
        model.readout
    )
    return top, eps * (64 + 8 * fastest)[:, None] * (values.abs().sum(1) @ readout.abs())


def _linear_bound(
    model: DAPP, history: DAPPHistory, a: Tensor, b: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """An unnormalised sum of dot products is linear in time: the larger end bounds it."""
    past, score = require(history.past), history.parts.score
    ends = torch.stack([a, b], 1)
    both = torch.einsum(
        "bgqkm,km->bqm",
        model.attend(history, ends[:, None], history.lengths[:, None]),
        model._readout(),
    )
    query, events = model._elapsed(ends, history.start), model._elapsed(past.times, history.start)
    sizes = scores(score, query, events, past.marks).abs()
    reach = torch.einsum("bkqmn,bnk,km->bqm", sizes, values.abs(), model._readout().abs()).amax(1)
    return both.amax(1), 1024 * torch.finfo(model.readout.dtype).eps * reach


def _value_corners(
    model: DAPP, history: DAPPHistory, last: Float[Tensor, " B"]
) -> tuple[Float[Tensor, "B N K"], Bool[Tensor, "B N 1"]]:
    """The extreme values that events up to ``last`` can have, where the events themselves are
    forgotten.
    """
    M = model.marks.count
    ends = torch.stack(
        [torch.zeros_like(last), model._elapsed(last, history.start)], 1
    ).repeat_interleave(M, 1)
    values = model._values(
        ends, torch.arange(M, device=last.device).repeat(2).expand(len(last), -1)
    )
    some = last_state(history)[..., 1].abs().amax((1, 2)) > 0
    return values, some[:, None, None].expand(-1, 2 * M, 1)


def _convex(
    values: Tensor, mask: Tensor, readout: Tensor
) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M"]]:
    """Weights that sum to 1: the largest value bounds their mean, and the largest size its
    rounding.
    """
    sizes = bounds.convex_bound(values.abs(), mask, readout.abs())
    return bounds.convex_bound(values, mask, readout), 1024 * torch.finfo(readout.dtype).eps * sizes
