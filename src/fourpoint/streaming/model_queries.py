"""Intensities at the end of a history and their integrals from there, for any model, by the methods
of `models.base`.

Histories have B rows, and every question is asked from the last position of each. Streams work in
float64, whatever the model's precision, since rounding must not stand in the way of an integral to
six digits: :func:`in_float64` is the model they follow.

What is known besides the events, a calendar, covariates and an exposure, is in the history's
context. An exposure e(t) multiplies the rate: log-rates have log e(t) added, and integrals are
those of e(t) times the rate.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch, BatchContext, BatchSteps, Context, UserError
from fourpoint.inference.sampling import remember, select_rows
from fourpoint.models.base import History, PointProcess, pieces
from fourpoint.ops.quadrature import integrate

Floats = NDArray[np.float64]
TOLERANCE = 1e-6  # of a gap's integral, absolute and relative


def in_float64(model: PointProcess) -> Any:
    """A copy of ``model`` in float64 and evaluation mode."""
    return copy.deepcopy(model).double().eval()


def stream_context(model: PointProcess, known: Context | None) -> Context | None:
    """What streams of ``model`` know besides events: the covariates of the model in its order, an
    exposure, and the clock of the training data where ``known`` has no origin; None for nothing.

    ``known`` is the context of one sequence, which holds for all streams. Raises
    :class:`UserError` where covariates of the model are missing, and for those that it does not
    know.
    """
    given = Context() if known is None else known.without("scored_from")
    covariates = given.covariates
    names = () if model.effects is None else model.effects.spec.covariates
    have = () if covariates is None else covariates.names
    if not names and have:
        raise UserError(
            "no covariates, since the model was fitted without any",
            f"a table with {', '.join(have)}",
            "Leave it out (--covariates), or fit a model with covariates.",
        )
    missing = [name for name in names if name not in have]
    if missing:
        raise UserError(
            f"the covariates {', '.join(names)}, which the model was fitted to",
            f"none called {', '.join(missing)}" if have else "no covariates",
            "Give them with --covariates FILE (context=), or fit a model without covariates.",
        )
    if covariates is not None and have != names:
        order = [have.index(name) for name in names]
        values = covariates.values[:, order]
        covariates = replace(covariates, names=names, values=values)
        given = replace(given, covariates=covariates)
    if given.origin is None and model.effects is not None and model.effects.spec.calendar:
        calendar = replace(model.effects.spec, covariates=(), mean=(), scale=())
        clock = calendar.training_clock(1)
        given = replace(given, origin=clock.origin)
    if given.origin is None and covariates is None and given.exposure is None:
        return None
    return given


@torch.no_grad()
def empty_history(
    model: PointProcess, start: float, rows: int = 1, context: Context | None = None
) -> Any:
    """The history of windows that open at ``start``, without events, in the form that ``extend``
    gives; ``context`` (:func:`stream_context`) is that of all of them.
    """
    none = torch.zeros(rows, 0, dtype=torch.int64)
    edge = torch.full((rows,), start, dtype=torch.float64)
    known: BatchContext | None = None
    if context is not None:
        known = context.batch(np.zeros(1, dtype=np.int64))
        known = known.select(torch.zeros(rows, dtype=torch.int64))
    batch = Batch(
        times=none.double(),
        marks=none,
        valid=none.bool(),
        start=edge,
        stop=edge,
        context=known,
    )
    return remember(model, batch)


@torch.no_grad()
def log_intensities(model: PointProcess, history: History, times: Floats) -> Floats:
    """log lambda per mark just before ``times``, one for each row, (B, M); with an exposure, of the
    rate that is observed, minus infinity where nothing is.
    """
    at = torch.from_numpy(times)[:, None]
    last = history.lengths[:, None]
    logs = model.log_intensity(history, at[:, None], last)[:, 0, 0]
    context = history.context
    if context is not None and context.exposure is not None:
        exposure = context.exposure.at(at)[:, 0]
        logs = logs + exposure.log()
    return np.asarray(logs.detach().numpy())


def check_recorded(history: History, times: Floats) -> None:
    """Refuse events at times of exposure 0, when nothing is recorded."""
    if history.context is None or history.context.exposure is None:
        return
    exposure = history.context.exposure.at(torch.from_numpy(times)[:, None])[:, 0, 0]
    lost = np.flatnonzero(exposure.numpy() == 0)
    if len(lost):
        raise UserError(
            "no event while the exposure is 0, when nothing is recorded",
            f"one at {float(times[lost[0]])!r}",
            "Correct the table of the exposure, or drop the event.",
        )


def integrals(model: PointProcess, history: History, at: Floats, times: Floats) -> Floats:
    """The integral of the total rate from ``at`` to ``times`` in each row, (B,), times the exposure
    where there is one.

    Raises `ops.quadrature.Unconverged` where that does not settle.
    """
    if history.context is None or history.context.exposure is None:
        return _integrals(model, history, at, times)
    exposure = history.context.exposure
    owner, left, right = _between_steps(exposure, at, times)
    begins = torch.from_numpy(left)[:, None]
    factor = exposure.select(owner).at(begins)[:, 0, 0].numpy()
    total = np.zeros(len(at))
    kept = np.flatnonzero(factor > 0)
    if len(kept):
        own = owner[kept]
        histories = select_rows(history, own)
        found = _integrals(model, histories, left[kept], right[kept])
        np.add.at(total, own.numpy(), factor[kept] * found)
    return total


def _between_steps(
    exposure: BatchSteps, at: Floats, times: Floats
) -> tuple[Tensor, Floats, Floats]:
    """The pieces from ``at`` to ``times`` on which the exposure of each row is constant: their
    rows, and where they begin and end.
    """
    rows: list[int] = []
    left: list[float] = []
    right: list[float] = []
    for row, (begin, end) in enumerate(zip(at.tolist(), times.tolist(), strict=True)):
        # All streams share one exposure.
        steps = exposure.times[0 if exposure.shared else row].numpy()
        inner = steps[(steps > begin) & (steps < end)].tolist()
        left += [begin, *inner]
        right += [*inner, end]
        rows += [row] * (len(inner) + 1)
    return torch.tensor(rows), np.array(left), np.array(right)


@torch.no_grad()
def _integrals(model: PointProcess, history: History, at: Floats, times: Floats) -> Floats:
    """The integral of the model's total rate, in closed form or refined between knots."""
    a = torch.from_numpy(at)[:, None]
    b = torch.from_numpy(times)[:, None]
    last = history.lengths[:, None]
    if model.has_closed_integral:
        exact = model.closed_integral(history, a, b, last).sum((1, 2))
        return np.asarray(exact.detach().numpy())
    edges = torch.cat([a, b], 1)
    left, right, nodes = pieces(model, history, edges)
    wide = (right > left).any(0)
    if not bool(wide.any()):
        return np.zeros(len(at))

    def rate(t: Tensor, which: Tensor) -> Tensor:
        logs = model.log_intensity(history, t, last.expand_as(which))
        return logs.exp().sum(-1)

    mean_rate = rate(edges[:, None], last)[:, 0].mean(1)
    rough = torch.nan_to_num((b - a)[:, 0] * mean_rate, nan=0.0, posinf=0.0)
    size = float((1 + rough).sum())
    found, _ = integrate(
        rate,
        left[:, wide],
        right[:, wide],
        tolerance=TOLERANCE * size,
        **nodes,
    )
    return np.asarray(found.sum(1).numpy())
