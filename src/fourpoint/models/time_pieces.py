"""Terms of the rate that depend on time alone, as arrays of cubics for samplers of paths
(`kernels.path_terms.Pieces`), and the exposure likewise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Batch
from fourpoint.kernels.path_terms import Exposure, Pieces
from fourpoint.models.baseline import Baseline

Floats = NDArray[np.float64]


class Cubics(NamedTuple):
    """One curve for each mark outside the link and one inside it: piece p from ``left[p]`` up to
    the next one, the last one without end. Coefficients multiply powers of the time since
    ``left[p]``.
    """

    left: Floats  # (P,)
    outside: Floats  # (P, M, 4): log mu
    inside: Floats  # (P, M, 4)


@torch.no_grad()
def baseline_cubics(baseline: Baseline) -> Cubics:
    """A baseline by the time since the window's start.

    >>> baseline_cubics(Baseline(2, base="spline", knots=3)).outside.shape
    (4, 2, 4)
    """
    M = baseline.marks
    curves = baseline.curves()
    if curves is None:
        left = np.zeros(1)
        tables = None
    else:
        by_interval = curves.cubics.double().cpu().numpy()  # (J, curves, 4)
        intervals = len(by_interval)
        cell = float(baseline.length) / intervals
        left = cell * np.arange(intervals + 1)
        end = np.zeros_like(by_interval[:1])
        end[:, :, 0] = by_interval[-1:].sum(-1)  # past the last knot a curve is constant
        tables = np.concatenate([by_interval / cell ** np.arange(4), end])
    outside, inside = np.zeros((2, len(left), M, 4))
    if tables is not None and baseline.splined_base:
        outside += tables[:, :M]
    else:
        outside[:, :, 0] = baseline.log_base.double().cpu().numpy()[:, 0]
    if baseline.bias is not None:
        inside[:, :, 0] = baseline.bias.double().cpu().numpy()
    if tables is not None and baseline.splined_drift:
        inside += tables[:, -M:]
    return Cubics(left, outside, inside)


def pieces_of(sets: list[Cubics], which: NDArray[np.int64], anchor: Floats) -> Pieces:
    """Row r has the curves ``sets[which[r]]``, with times counted from ``anchor[r]``."""
    left = np.concatenate([one.left for one in sets])
    outside = np.concatenate([one.outside for one in sets])
    inside = np.concatenate([one.inside for one in sets])
    sizes = [len(one.left) for one in sets]
    first = np.concatenate([[0], np.cumsum(sizes)])
    widths = np.concatenate([np.diff(one.left, append=np.inf) for one in sets])
    return Pieces(
        which.astype(np.int64),
        np.ascontiguousarray(anchor, dtype=np.float64),
        first.astype(np.int64),
        left,
        outside,
        inside,
        largest_values(outside, widths),
        largest_values(inside, widths),
    )


def largest_values(cubics: Floats, widths: Floats) -> Floats:
    """Upper bounds of cubics on pieces of these widths, the largest of their Bernstein
    coefficients, (P, M); a piece without end has to be constant, or its bound is infinite.

    >>> largest_values(np.array([[[0.0, 1.0, -1.0, 0.0]]]), np.ones(1)).tolist()
    [[0.3333333333333333]]
    """
    width = np.where(np.isinf(widths), 0.0, widths)[:, None]
    c0, c1, c2, c3 = (cubics[..., k] * width**k for k in range(4))
    points = np.stack([c0, c0 + c1 / 3, c0 + (2 * c1 + c2) / 3, c0 + c1 + c2 + c3])
    rising = np.isinf(widths)[:, None] & (cubics[..., 1:] != 0).any(-1)
    return np.asarray(np.where(rising, np.inf, points.max(0)))


def exposure_of(batch: Batch) -> Exposure:
    """The exposure of every row, 1 where none is known."""
    rows = len(batch.start)
    context = batch.context
    if context is None or context.exposure is None:
        return Exposure(np.arange(rows + 1), np.zeros(rows), np.ones(rows))
    times = context.exposure.times.cpu().numpy()
    values = context.exposure.values[..., 0].cpu().numpy()
    first = np.arange(rows + 1) * times.shape[1]
    return Exposure(
        first, np.ascontiguousarray(times.ravel()), np.ascontiguousarray(values.ravel())
    )
