"""Intensities at the end of a history and their integrals from there, for any model, by the methods
of `models.base`.

Histories have B rows, and every question is asked from the last position of each. Streams work in
float64, whatever the model's precision, since rounding must not stand in the way of an integral to
six digits: :func:`in_float64` is the model they follow.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch, UserError
from fourpoint.inference.sampling import remember
from fourpoint.models.base import History, PointProcess, pieces
from fourpoint.ops.quadrature import integrate

Floats = NDArray[np.float64]
TOLERANCE = 1e-6  # of a gap's integral, absolute and relative


def in_float64(model: PointProcess) -> Any:
    """A copy of ``model`` in float64 and evaluation mode."""
    return copy.deepcopy(model).double().eval()


def refuse_event_features(model: PointProcess) -> None:
    """Refuse a model whose rate depends on event features: a stream's events have none."""
    if model.event_features is None:
        return
    names = ", ".join(model.event_features.spec.names)
    raise UserError(
        "a model without event features for a stream",
        f"{type(model).__name__} with the event features {names}",
        "Follow a model fitted without --event-features, or forecast from the log with them.",
    )


@torch.no_grad()
def empty_history(model: PointProcess, start: float, rows: int = 1) -> Any:
    """The history of windows that open at ``start``, without events, in the form that ``extend``
    gives.
    """
    none = torch.zeros(rows, 0, dtype=torch.int64)
    edge = torch.full((rows,), start, dtype=torch.float64)
    context = None
    if model.effects is not None:
        context = model.effects.spec.training_clock(rows).batch(np.arange(rows))
    return remember(model, Batch(none.double(), none, none.bool(), edge, edge, context=context))


@torch.no_grad()
def log_intensities(model: PointProcess, history: History, times: Floats) -> Floats:
    """log lambda per mark just before ``times``, one for each row, (B, M)."""
    at = torch.from_numpy(times)[:, None, None]
    return np.asarray(
        model.log_intensity(history, at, history.lengths[:, None])[:, 0, 0].detach().numpy()
    )


@torch.no_grad()
def integrals(model: PointProcess, history: History, at: Floats, times: Floats) -> Floats:
    """The integral of the total rate from ``at`` to ``times`` in each row, (B,), in closed form or
    refined between knots.

    Raises `ops.quadrature.Unconverged` where that does not settle.
    """
    a = torch.from_numpy(at)[:, None]
    b = torch.from_numpy(times)[:, None]
    last = history.lengths[:, None]
    if model.has_closed_integral:
        return np.asarray(model.closed_integral(history, a, b, last).sum((1, 2)).detach().numpy())
    left, right, nodes = pieces(model, history, torch.cat([a, b], 1))
    wide = (right > left).any(0)
    if not bool(wide.any()):
        return np.zeros(len(at))
    left = left[:, wide]
    right = right[:, wide]

    def rate(t: Tensor, which: Tensor) -> Tensor:
        return model.log_intensity(history, t, last.expand_as(which)).exp().sum(-1)

    ends = rate(torch.cat([a, b], 1)[:, None], last)[:, 0].mean(1)
    rough = torch.nan_to_num((b - a)[:, 0] * ends, nan=0.0, posinf=0.0)
    found, _ = integrate(rate, left, right, tolerance=TOLERANCE * float((1 + rough).sum()), **nodes)
    return np.asarray(found.sum(1).numpy())
