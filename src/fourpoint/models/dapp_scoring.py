r"""DAPP's log-likelihood for evaluation by a kernel: arrays of the model in, tensors out.

The same numbers as by ``encode``, ``log_intensity`` and `ops.quadrature`, to the errors that both
state, many times faster (`kernels.DAPP_SCORE`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fourpoint.events import Batch
from fourpoint.kernels import numba_dapp_score as kernel
from fourpoint.models.base import ScoredGaps
from fourpoint.models.rate import Rate
from fourpoint.ops.fourier import Spectrum
from fourpoint.ops.spline import cubics

Floats = NDArray[np.float64]
LINKS = ("identity", "exp", "softplus")


def scored_gaps(
    score: Callable[..., kernel.Scored],
    spectrum: Spectrum,
    constant: Float[Tensor, "M K"],
    trend: Float[Tensor, "M K"],
    readout: Float[Tensor, "K M"],
    rate: Rate,
    batch: Batch,
    scale: float,
    tolerance: float,
) -> ScoredGaps | None:
    """Log rates at events, and integrals over gaps with their errors; None if an integral does not
    settle.

    ``score`` is the kernel. An event of mark m, t mean gaps after the window's start, is worth
    ``constant[m] + t trend[m]`` to each head, ``readout`` is how much each mark attends to each
    head, and ``scale`` is the mean gap. The errors sum to at most ``tolerance``, but for rounding.
    """
    gaps = int(batch.lengths.sum()) + len(batch.lengths)
    eps = torch.finfo(readout.dtype).eps
    care = kernel.Care(tolerance / max(1, gaps), eps, math.log(scale))
    modes = _modes(spectrum, constant, trend, readout)
    data = _data(batch, scale)
    longest = float(np.diff(data.edges, axis=1).max())
    expansion = kernel.expansion_of(*_powers(spectrum), longest, eps)
    link, baseline = _rate(rate, scale)
    found = score(data, modes, expansion, baseline, link, care)
    if not found.settled.all():
        return None
    logs, integral, error = (torch.from_numpy(x) for x in found[:3])
    return ScoredGaps(logs - math.log(scale), integral, error)


def _array(x: Tensor) -> Floats:
    return np.ascontiguousarray(x.detach().double().numpy())


def _data(batch: Batch, scale: float) -> kernel.Data:
    since = (batch.edges - batch.start[:, None]) / scale
    latest = torch.maximum(batch.start.abs(), batch.stop.abs())
    resolution = torch.finfo(latest.dtype).eps * latest / scale
    marks, lengths = (x.contiguous().numpy() for x in (batch.marks, batch.lengths))
    return kernel.Data(_array(since), marks, lengths, _array(resolution))


def _modes(
    spectrum: Spectrum,
    constant: Float[Tensor, "M K"],
    trend: Float[Tensor, "M K"],
    readout: Float[Tensor, "K M"],
) -> kernel.Modes:
    """All heads' modes in one row."""
    frequency, decay = _powers(spectrum)
    turn = np.exp(1j * _array(spectrum.shift)).transpose(2, 0, 1)  # mark, head, mode
    strength = _array(spectrum.weight) * _array(readout).T[:, :, None]
    read, first, later = (
        x.reshape(len(turn), -1)
        for x in (
            strength * turn,
            _array(constant)[..., None] * turn.conj(),
            _array(trend)[..., None] * turn.conj(),
        )
    )
    return kernel.modes_of(frequency, decay, read, first, later)


def _powers(spectrum: Spectrum) -> tuple[Floats, Floats]:
    """Frequency and decay of all heads' modes, in one row each."""
    frequency = _array(spectrum.frequency).ravel()
    none = np.zeros_like(frequency)
    return frequency, none if spectrum.decay is None else _array(spectrum.decay).ravel()


def _rate(rate: Rate, scale: float) -> tuple[kernel.Link, kernel.Baseline]:
    """The link, and the baseline as piecewise cubics of the time in units of ``scale``."""
    marks = rate.marks
    baseline = rate.baseline
    log_scale = _array(rate.log_scale) if rate.link == "softplus" else np.zeros(marks)
    breaks = np.array([[0.0, math.inf]])
    curves = baseline.curves()
    tables: list[Floats] = []
    if curves is not None:
        cell = float(baseline.length) / baseline.intervals / scale
        table = _array(cubics(curves.coefficients.double()))  # (P, curves, 4)
        last = np.zeros_like(table[:1])
        last[..., 0] = table[-1].sum(-1)  # past the last knot a curve is constant
        table = np.concatenate([table / cell ** np.arange(4), last])
        tables = np.split(table, table.shape[1] // marks, axis=1)
        breaks = np.append(cell * np.arange(baseline.intervals + 1), math.inf)[None]
    pieces = breaks.shape[1] - 1
    outside, inside = np.zeros((2, 1, pieces, marks, 4))
    if baseline.splined_base:
        outside[0] = tables[0]
    else:
        outside[0, :, :, 0] = _array(baseline.log_base)[:, 0]
    if rate.link != "identity":
        if baseline.splined_drift:
            inside[0] = tables[-1]
        inside[0, :, :, 0] += _array(rate.bias) - log_scale
    link = kernel.Link(LINKS.index(rate.link), log_scale)
    return link, kernel.Baseline(breaks, outside, inside)
