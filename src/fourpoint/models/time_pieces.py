"""Terms of the rate that depend on time alone, as arrays of cubics for samplers of paths
(`kernels.path_terms.Pieces`), and the exposure likewise.

The baseline is a cubic between the knots of its splines. Effects of the calendar and of covariates
are cubics between the ends of the intervals of their terms, changes of daylight saving and steps of
covariates: there four values determine them. Both are added on the pieces that the union of these
times makes.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fourpoint.events import Batch, BatchContext, UserError
from fourpoint.kernels.path_terms import Exposure, Pieces
from fourpoint.models.baseline import Baseline
from fourpoint.models.effects import (
    DAY,
    HOLIDAYS,
    MONTHDAY,
    PERIODIC,
    TREND,
    Effects,
    EffectsSpec,
    offset_at,
    zone_offsets,
)

Floats = NDArray[np.float64]
PLACES = np.array([0.125, 0.375, 0.625, 0.875])  # in a piece, where a cubic is read
SHORTEST = 1e-10  # of the horizon: shorter pieces are rounding


class Cubics(NamedTuple):
    """One curve for each mark outside the link and one inside it: piece p from ``left[p]`` up to
    the next one, the last one up to ``stop``. Coefficients multiply powers of the time since
    ``left[p]``.
    """

    left: Floats  # (P,)
    outside: Floats  # (P, M, 4): log mu
    inside: Floats  # (P, M, 4)
    stop: float = math.inf


@torch.no_grad()
def baseline_cubics(baseline: Baseline) -> Cubics:
    """A baseline by the time since the window's start.

    >>> baseline_cubics(Baseline(2, base="spline", knots=3)).outside.shape
    (4, 2, 4)
    """
    M = baseline.marks
    curves = baseline.curves()
    if curves is None:
        left: Floats = np.zeros(1)
        tables = None
    else:
        by_interval = _array(curves.cubics)  # (J, curves, 4)
        intervals = len(by_interval)
        cell = float(baseline.length) / intervals
        number = np.arange(intervals + 1, dtype=np.float64)
        left = cell * number
        last = by_interval[-1:]
        end = np.zeros_like(last)
        end[:, :, 0] = last.sum(-1)  # past the last knot a curve is constant
        powers = cell ** np.arange(4)
        scaled = by_interval / powers
        tables = np.concatenate([scaled, end])
    outside = np.zeros((len(left), M, 4))
    inside = np.zeros((len(left), M, 4))
    if tables is not None and baseline.splined_base:
        outside += tables[:, :M]
    else:
        outside[:, :, 0] = _array(baseline.log_base)[:, 0]
    if baseline.bias is not None:
        inside[:, :, 0] = _array(baseline.bias)
    if tables is not None and baseline.splined_drift:
        inside += tables[:, -M:]
    return Cubics(left, outside, inside)


def constant_cubics(log_rate: torch.Tensor) -> Cubics:
    """A constant rate per mark, (M,)."""
    outside = np.zeros((1, len(log_rate), 4))
    outside[0, :, 0] = _array(log_rate)
    inside = np.zeros_like(outside)
    return Cubics(np.zeros(1), outside, inside)


def _array(x: torch.Tensor) -> Floats:
    return x.detach().double().cpu().numpy()


def pieces_until(
    cubics: Cubics,
    effects: Effects | None,
    batch: Batch,
    low: Floats,
    high: Floats,
) -> Pieces:
    """The curves ``cubics`` of the time since each window's start, with effects of calendar and
    covariates added, from ``low`` to ``high`` in every row.

    Rows of the same times and dates share one set of pieces if there are no covariates.
    """
    start = batch.start.cpu().numpy()
    rows = len(start)
    if effects is None:
        return pieces_of([cubics], np.zeros(rows, dtype=np.int64), start)
    context = batch.context
    origin = np.zeros(rows)
    if context is not None and context.origin is not None:
        origin = context.origin.cpu().numpy()
    elif effects.spec.calendar:
        raise UserError(
            "data with dates for a model with a calendar",
            "times without an origin",
            "Read the log with its timestamps, or fit without --calendar.",
        )
    own = np.zeros(rows)
    if effects.spec.covariates:
        own = np.arange(rows, dtype=np.float64)
    keys = np.stack([own, start, low, high, origin])
    _, shown, which = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    chosen = None if context is None else context.select(torch.from_numpy(shown))
    steps = None
    if effects.spec.covariates and chosen is not None and chosen.covariates is not None:
        steps = chosen.covariates.times.cpu().numpy()
    lefts = []
    for place, row in enumerate(shown.tolist()):
        of_calendar = effect_cuts(effects.spec, low[row], high[row], origin[row])
        of_baseline = start[row] + cubics.left
        cuts = [of_calendar, of_baseline]
        if steps is not None:
            cuts.append(steps[place])
        every = np.concatenate(cuts)
        lefts.append(_between(every, low[row], high[row]))
    added = _effects(effects, lefts, high[shown], chosen)
    sets = []
    for row, left, curves in zip(shown.tolist(), lefts, added, strict=True):
        base = _moved(cubics, left - start[row])
        marks = base.outside.shape[1]
        outside = base.outside + curves[:, :marks]
        inside = base.inside
        if curves.shape[1] > marks:
            inside = inside + curves[:, marks:]
        sets.append(Cubics(left, outside, inside, float(high[row])))
    return pieces_of(sets, which.reshape(-1), np.zeros(rows))


def effect_cuts(spec: EffectsSpec, low: float, high: float, origin: float) -> Floats:
    """Times between ``low`` and ``high`` between which the effects of the calendar are cubics."""
    steps = []
    for name in spec.calendar:
        if name.startswith(HOLIDAYS) or name == MONTHDAY:
            steps.append((DAY, 0.0))
        elif name == TREND:
            steps.append((spec.trend[1], spec.trend[0]))
        else:
            term = PERIODIC[name]
            length = term.period / term.intervals
            steps.append((length, term.origin))
    first = origin + low * spec.seconds
    last = origin + high * spec.seconds
    starts, offsets = zone_offsets(spec.zone)
    inside = (starts > first) & (starts < last)
    changes = starts[inside]
    edges = [float(first), *changes.tolist(), float(last)]
    found = [changes]
    for a, b in itertools.pairwise(edges):
        shift = offset_at(starts, offsets, a)
        for step, phase in steps:
            begin = (a + shift - phase) / step
            end = (b + shift - phase) / step
            lowest = math.ceil(begin)
            highest = math.floor(end)
            number = np.arange(lowest, highest + 1)
            local = number * step + phase
            found.append(local - shift)
    seconds = np.concatenate(found) - origin
    return np.asarray(seconds / spec.seconds)


def _between(cuts: Floats, low: float, high: float) -> Floats:
    """Left ends of pieces from ``low`` on, without those that rounding has doubled."""
    inside = (cuts > low) & (cuts < high)
    left = np.append(low, np.unique(cuts[inside]))
    shortest = SHORTEST * (high - low)
    lengths = np.diff(left, prepend=-np.inf)
    long_enough = lengths > shortest
    return np.asarray(left[long_enough])


@torch.no_grad()
def _effects(
    effects: Effects,
    lefts: list[Floats],
    high: Floats,
    context: BatchContext | None,
) -> list[Floats]:
    """The effects on the pieces of each set, (P, R, 4), from four values on every piece."""
    longest = max(len(left) for left in lefts)
    padded = []
    widths = []
    for left, end in zip(lefts, high.tolist(), strict=True):
        missing = (0, longest - len(left))
        width = np.diff(left, append=end)
        padded.append(np.pad(left, missing, mode="edge"))
        widths.append(np.pad(width, missing, constant_values=1.0))
    begin = np.stack(padded)[..., None]
    width = np.stack(widths)[..., None]
    since = width * PLACES
    times = begin + since
    values = effects.values(torch.from_numpy(times), context, torch.float64)
    power = np.arange(4)
    to_values = PLACES[:, None] ** power
    to_powers = np.linalg.inv(to_values)
    found = np.einsum("nq,spqr->sprn", to_powers, values.cpu().numpy())
    found /= width[..., None] ** power
    return [own[: len(left)] for own, left in zip(found, lefts, strict=True)]


def _moved(cubics: Cubics, since: Floats) -> Cubics:
    """The curves on pieces that begin at ``since``, none of which has one of the old ends
    inside.
    """
    ends = since[1:]
    middle = since.copy()
    middle[:-1] += ends
    middle[:-1] /= 2
    place = np.searchsorted(cubics.left, middle, side="right") - 1
    piece = np.maximum(place, 0)
    shift = since - cubics.left[piece]
    d = shift[:, None]
    outside = _shifted(cubics.outside[piece], d)
    inside = _shifted(cubics.inside[piece], d)
    return Cubics(since, outside, inside)


def _shifted(table: Floats, d: Floats) -> Floats:
    """The coefficients of the same cubics in powers of the time less ``d``."""
    c0, c1, c2, c3 = np.moveaxis(table, -1, 0)
    quadratic = c2 + d * c3
    linear = c1 + d * quadratic
    value = c0 + d * linear
    cubic = 3 * d * c3
    inner = 2 * c2 + cubic
    first = c1 + d * inner
    second = c2 + cubic
    return np.stack([value, first, second, c3], -1)


def pieces_of(
    sets: list[Cubics],
    which: NDArray[np.int64],
    anchor: Floats,
) -> Pieces:
    """Row r has the curves ``sets[which[r]]``, with times counted from ``anchor[r]``."""
    left = np.concatenate([one.left for one in sets])
    outside = np.concatenate([one.outside for one in sets])
    inside = np.concatenate([one.inside for one in sets])
    widths = np.concatenate([np.diff(one.left, append=one.stop) for one in sets])
    sizes = [len(one.left) for one in sets]
    first = np.concatenate([[0], np.cumsum(sizes)])
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
    endless = np.isinf(widths)[:, None]
    width = np.where(endless, 0.0, widths[:, None])
    c0, c1, c2, c3 = (cubics[..., k] * width**k for k in range(4))
    second = c0 + c1 / 3
    weighted = 2 * c1 + c2
    third = c0 + weighted / 3
    last = c0 + c1 + c2 + c3
    points = np.stack([c0, second, third, last])
    coefficients = cubics[..., 1:]
    moving = (coefficients != 0).any(-1)
    rising = endless & moving
    bounds = np.where(rising, np.inf, points.max(0))
    return np.asarray(bounds)


def exposure_of(batch: Batch) -> Exposure:
    """The exposure of every row, 1 where none is known."""
    rows = len(batch.start)
    row = np.arange(rows + 1)
    context = batch.context
    if context is None or context.exposure is None:
        return Exposure(row, np.zeros(rows), np.ones(rows))
    times = context.exposure.times.cpu().numpy()
    values = context.exposure.values[..., 0].cpu().numpy()
    first = row * times.shape[1]
    return Exposure(first, times.ravel(), values.ravel())
