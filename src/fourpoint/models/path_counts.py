"""Counts of events on sampled paths, drawn by kernels for whole batches of sequences without
storing a path (`kernels.numba_dapp_paths`, `kernels.numba_hawkes_paths`), and Poisson counts; and
the events of such paths themselves.

What a kernel does not support is sampled by `inference.sampling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourpoint import kernels
from fourpoint.events import Batch, UserError
from fourpoint.kernels.numba_dapp_paths import (
    FINE,
    LINKS,
    TERMS,
    Grid,
    Kernel,
    Link,
    Loops,
    cell_powers,
    grid_of,
    kernel_of,
    levels_of,
    parts_matrix,
)
from fourpoint.kernels.numba_dapp_stream import sinusoids
from fourpoint.kernels.numba_hawkes_paths import Factors, Loops as HawkesLoops
from fourpoint.kernels.path_terms import (
    ABOVE_BOUND,
    EXPLOSIVE,
    CountLaw,
    Exposure,
    Kept,
    Pieces,
    Wanted,
    every_row,
    nothing_kept,
)
from fourpoint.models.effects import Effects
from fourpoint.models.event_features import EventFeatures
from fourpoint.models.rate import Rate
from fourpoint.models.time_pieces import Cubics, baseline_cubics, exposure_of, pieces_until
from fourpoint.ops.fourier import Spectrum

Floats = NDArray[np.float64]
Counts = NDArray[np.int32]  # (B, W, M, paths)
Events = tuple[Floats, NDArray[np.int32], NDArray[np.int32]]  # times, marks, number of each path
NODES = 8  # of the integral of a rate over a piece of time
ROOM = 32  # events of a path for which there is room at first


class Modes:
    """The modes of a linear DAPP with a constant value for each mark, per unit of the user's time:
    what a kernel needs to know of its attention.

    Args:
        spectrum: of the evaluation.
        values: v_kn, what an event of type n adds to head k, (M, K).
        readout: r_km, (K, M).
        scale: the model's unit of time in the user's.
    """

    @torch.no_grad()
    def __init__(self, spectrum: Spectrum, values: Tensor, readout: Tensor, scale: float) -> None:
        weight = _numbers(spectrum.weight)  # (K, D)
        frequency = _numbers(spectrum.frequency)
        decay = np.zeros_like(weight)
        if spectrum.decay is not None:
            decay = _numbers(spectrum.decay)
        angle = _numbers(spectrum.shift).transpose(2, 0, 1)  # (M, K, D)
        turn: NDArray[np.complex128] = np.exp(1j * angle)
        power = (-decay + 1j * frequency) / scale
        by_mark = _numbers(readout).T[:, :, None]
        driven = _numbers(values)[:, :, None]
        self.scale = scale
        self.weight = weight
        self.power = power.astype(np.complex128)
        self.sinusoids = sinusoids(frequency.ravel(), decay.ravel(), np.float64)
        self.read: NDArray[np.complex128] = turn * weight * by_mark
        self.drive = turn.conj() * driven

    def numbers(self, grid: Grid) -> int:
        """Numbers in the tables that a grid needs."""
        marks = len(self.read)
        cells = int(grid.first[-1])
        by_mode = 2 * self.power.size
        by_mark = marks * (1 + FINE * levels_of(FINE * cells) / TERMS)
        return int(cells * marks * TERMS * (by_mode + by_mark))


class DAPPTables(NamedTuple):
    """The rate of every row after its history, as the kernel reads it."""

    past: Floats  # (B, C, M, TERMS): z0
    grid: Grid
    kernel: Kernel
    link: Link
    pieces: Pieces


@torch.no_grad()
def dapp_counts(
    modes: Modes,
    rate: Rate,
    effects: Effects | None,
    batch: Batch,
    wanted: Wanted,
) -> Counts | None:
    """Counts of paths of a DAPP after the events of ``batch``; None if its tables are too large."""
    grid = _grid(modes, wanted)
    loops = kernels.DAPP_PATHS.choose(numbers=modes.numbers(grid))
    if loops is None:
        return None
    tables = dapp_tables(loops, modes, rate, effects, batch, wanted)
    counts = _no_counts(batch, wanted, rate.marks)
    given = (wanted, *tables, exposure_of(batch), parts_matrix(), counts, nothing_kept())
    _check(every_row(len(counts), partial(_drawn, loops.draw, given)))
    return counts


@torch.no_grad()
def dapp_events(
    modes: Modes,
    rate: Rate,
    effects: Effects | None,
    batch: Batch,
    wanted: Wanted,
    most: int | None,
) -> Events | None:
    """Events of paths of a DAPP up to the last edge or the first ``most`` of them; None if its
    tables are too large.
    """
    grid = _grid(modes, wanted)
    loops = kernels.DAPP_PATHS.choose(numbers=modes.numbers(grid))
    if loops is None:
        return None
    tables = dapp_tables(loops, modes, rate, effects, batch, wanted)
    rest = (wanted, *tables, exposure_of(batch), parts_matrix())
    return _kept_events(loops.draw, rest, len(batch.start), wanted, most)


@torch.no_grad()
def dapp_tables(
    loops: Loops,
    modes: Modes,
    rate: Rate,
    effects: Effects | None,
    batch: Batch,
    wanted: Wanted,
) -> DAPPTables:
    """z0, phi and the terms of time up to the horizon."""
    grid = _grid(modes, wanted)
    J = modes.power.size
    M = len(modes.read)
    powers = cell_powers(grid, modes.power.ravel())  # (C, TERMS, J)
    read = modes.read.reshape(M, J)[:, None] * powers[:, None]  # (C, M, TERMS, J)
    parts = np.ascontiguousarray(np.stack([read.real, -read.imag], 3))  # (C, M, TERMS, 2, J)
    drive = modes.drive.reshape(M, J)
    driven = np.ascontiguousarray(np.stack([drive.real, drive.imag], 1))  # (M, 2, J)
    times, marks, offsets = _events(batch)
    past = np.empty((len(batch.start), len(parts), M, TERMS))
    start = np.ascontiguousarray(wanted.edges[:, 0])
    rest = (times, marks, offsets, start, modes.scale, modes.sinusoids, driven, parts, past)
    every_row(len(past), lambda first, step, fault: loops.history(first, step, *rest))
    pieces = _pieces(_dapp_cubics(rate, modes.scale), effects, batch, wanted)
    if rate.link == "identity":  # nothing but attention is inside the link
        pieces.inside.fill(0.0)
        pieces.most_inside.fill(0.0)
    return DAPPTables(
        past=past,
        grid=grid,
        kernel=kernel_of(np.einsum("ndj,cmtdj->ncmt", driven, parts)),
        link=_link(rate, modes.scale),
        pieces=pieces,
    )


def _grid(modes: Modes, wanted: Wanted) -> Grid:
    """Lags up to the longest horizon."""
    horizons = wanted.edges[:, -1] - wanted.edges[:, 0]
    return grid_of(modes.power, modes.weight, float(horizons.max()))


def _no_counts(batch: Batch, wanted: Wanted, marks: int) -> Counts:
    shape = (len(batch.start), wanted.edges.shape[1] - 1, marks, wanted.paths)
    return np.zeros(shape, dtype=np.int32)


def _link(rate: Rate, scale: float) -> Link:
    size = np.ones(rate.marks)
    if rate.link == "softplus":
        size = np.exp(_numbers(rate.log_scale))
    return Link(LINKS.index(rate.link), size / scale)


def _dapp_cubics(rate: Rate, scale: float) -> Cubics:
    """The baseline; a softplus has its scale subtracted from its argument."""
    cubics = baseline_cubics(rate.baseline)
    outside = cubics.outside.copy()
    inside = cubics.inside.copy()
    outside[..., 0] -= math.log(scale)
    if rate.link == "softplus":
        inside[..., 0] -= _numbers(rate.log_scale)
    return Cubics(cubics.left, outside, inside)


@torch.no_grad()
def factors_of(batch: Batch, marks: int, features: EventFeatures | None) -> Factors:
    """The factors of event features; all 1 without ``features``."""
    known = np.ones(int(batch.valid.sum()))
    if features is None:
        first = np.zeros(marks, dtype=np.int64)
        return Factors(known, first, first + 1, np.ones(1))
    if len(known):
        if batch.features is None:
            raise features.missing("events without them")
        of_events = batch.features[batch.valid]
        known = _numbers(features.factor(of_events))
    first, last = (end.cpu().numpy() for end in features.bounds())
    in_table = _numbers(features.factor(features.table))
    return Factors(known, first, last, in_table)


@torch.no_grad()
def hawkes_counts(
    cubics: Cubics,
    effects: Effects | None,
    branching: Tensor,
    decay: Tensor,
    factors: Factors,
    batch: Batch,
    wanted: Wanted,
) -> Counts | None:
    """Counts of paths of a Hawkes process after the events of ``batch``: (J, M, M) ``branching``
    with the exciting type last, (J,) ``decay``, and ``factors`` of the events.
    """
    loops = kernels.HAWKES_PATHS.choose()
    if loops is None:
        return None
    jump, fade = excitation_tables(branching, decay)
    past = _hawkes_past(loops, jump, fade, factors, batch, wanted)
    pieces = _pieces(cubics, effects, batch, wanted)
    counts = _no_counts(batch, wanted, jump.shape[2])
    given = (wanted, past, jump, fade, factors, pieces, exposure_of(batch), counts, nothing_kept())
    _check(every_row(len(past), partial(_drawn, loops.draw, given)))
    return counts


@torch.no_grad()
def hawkes_events(
    cubics: Cubics,
    effects: Effects | None,
    branching: Tensor,
    decay: Tensor,
    factors: Factors,
    batch: Batch,
    wanted: Wanted,
    most: int | None,
) -> Events | None:
    """Events of paths of a Hawkes process, with the arguments of :func:`hawkes_counts`, up to the
    last edge or the first ``most`` of them.
    """
    loops = kernels.HAWKES_PATHS.choose()
    if loops is None:
        return None
    jump, fade = excitation_tables(branching, decay)
    past = _hawkes_past(loops, jump, fade, factors, batch, wanted)
    pieces = _pieces(cubics, effects, batch, wanted)
    given = (wanted, past, jump, fade, factors, pieces, exposure_of(batch))
    return _kept_events(loops.draw, given, len(past), wanted, most)


def _hawkes_past(
    loops: HawkesLoops,
    jump: Floats,
    fade: Floats,
    factors: Factors,
    batch: Batch,
    wanted: Wanted,
) -> Floats:
    """The excitation of every row at its first edge, (B, J, M)."""
    times, marks, offsets = _events(batch)
    start = np.ascontiguousarray(wanted.edges[:, 0])
    past = np.empty((len(start), *jump.shape[1:]))
    loops.history(0, 1, times, marks, offsets, start, jump, fade, factors, past)
    return past


def _drawn(
    draw: Callable[..., int],
    given: tuple[Any, ...],
    first: int,
    step: int,
    fault: Floats,
) -> int:
    """One thread's share of the rows."""
    return draw(first, step, *given, fault)


def _kept_events(
    draw: Callable[..., int],
    given: tuple[Any, ...],
    rows: int,
    wanted: Wanted,
    most: int | None,
) -> Events:
    """The events of all paths. Without ``most``, the paths are drawn again, the same ones, with
    twice the room where a path filled it.
    """
    room = ROOM if most is None else most
    no_counts = np.zeros((rows, 1, 1, 0), dtype=np.int32)
    while True:
        shape = (rows, wanted.paths, room)
        kept = Kept(
            np.empty(shape),
            np.empty(shape, dtype=np.int32),
            np.zeros(shape[:2], dtype=np.int32),
        )
        _check(every_row(rows, partial(_drawn, draw, (*given, no_counts, kept))))
        longest = int(kept.counts.max(initial=0))
        if most is not None or longest < room:
            break
        if room >= wanted.limit:
            raise explosion(f"a path with {room:,} events")
        room = min(2 * room, wanted.limit)
    real = np.arange(room) < kept.counts[..., None]
    return kept.times[real], kept.marks[real], kept.counts


def excitation_tables(branching: Tensor, decay: Tensor) -> tuple[Floats, Floats]:
    """What an event of each type adds to the rates, (N, J, M), and the decays, (J,)."""
    fade = _numbers(decay)
    jump = (_numbers(branching) * fade[:, None, None]).transpose(2, 0, 1)
    return np.ascontiguousarray(jump), fade


def poisson_law(
    cubics: Cubics,
    effects: Effects | None,
    batch: Batch,
    edges: Floats,
    frailty: Floats | None = None,
) -> CountLaw:
    """The law of the counts of :func:`poisson_counts` between ``edges`` (B, W + 1)."""
    exposure = exposure_of(batch)
    pieces = pieces_until(cubics, effects, batch, edges[:, 0], edges[:, -1])
    means = [integrals(row, own, pieces, exposure) for row, own in enumerate(edges)]
    mean = np.stack(means)
    if frailty is None:
        return CountLaw(mean, np.full(len(edges), np.inf))
    shape, rate = frailty
    factor = shape / rate
    return CountLaw(mean * factor[:, None, None], shape)


def poisson_counts(
    cubics: Cubics,
    effects: Effects | None,
    batch: Batch,
    wanted: Wanted,
    frailty: Floats | None = None,
) -> Counts:
    """Counts of a Poisson process with rate exp(outside): independent Poisson numbers, whose means
    are integrals.

    With a ``frailty`` the rate of each path has a factor of its own: gamma variables of this shape
    and rate for every row, (2, B).
    """
    exposure = exposure_of(batch)
    pieces = _pieces(cubics, effects, batch, wanted)
    counts = _no_counts(batch, wanted, cubics.outside.shape[1])
    for r, edges in enumerate(wanted.edges):
        mean = integrals(r, edges, pieces, exposure)
        if not (mean < wanted.limit).all():
            raise explosion(f"{float(mean.max()):.3g} expected events in one interval")
        random = np.random.Generator(np.random.Philox(key=int(wanted.keys[r])))
        factor = np.ones(1)
        if frailty is not None:
            shape, rate = frailty[:, r]
            factor = random.gamma(shape, 1 / rate, wanted.paths)
        counts[r] = random.poisson(mean[..., None] * factor, counts.shape[1:])
    return counts


def integrals(row: int, edges: Floats, pieces: Pieces, exposure: Exposure) -> Floats:
    """The integral of exposure times exp(outside) of one row between neighbouring edges, (W, M), by
    Gauss and Legendre's rule between all times at which something changes.
    """
    steps = slice(exposure.first[row], exposure.first[row + 1])
    changes = exposure.left[steps]
    curves = pieces.which[row]
    own = slice(pieces.first[curves], pieces.first[curves + 1])
    begins = pieces.left[own] + pieces.anchor[row]
    known = np.concatenate([edges, begins, changes])
    inside = (known >= edges[0]) & (known <= edges[-1])
    cuts = np.unique(known[inside])
    width = np.diff(cuts)
    middle = cuts[:-1] + width / 2
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    piece = np.maximum(_interval(begins, middle), 0)
    offset = (middle - begins[piece])[:, None]
    u = offset + width[:, None] * nodes / 2  # (I, NODES)
    u = u[..., None]
    coefficients = pieces.outside[own][piece][:, None]
    c0, c1, c2, c3 = (coefficients[..., k] for k in range(4))
    rates = np.exp(c0 + u * (c1 + u * (c2 + u * c3)))  # (I, NODES, M)
    step = np.maximum(_interval(changes, middle), 0)
    factor = exposure.value[steps][step] * width / 2
    parts = np.einsum("i,q,iqm->im", factor, weights, rates)
    found = np.zeros((len(edges) - 1, parts.shape[1]))
    np.add.at(found, _interval(edges, middle), parts)
    return found


def _interval(edges: Floats, times: Floats) -> NDArray[np.int64]:
    """The number of the last of ``edges`` at or before each time; -1 before the first."""
    return np.searchsorted(edges, times, side="right") - 1


def _pieces(cubics: Cubics, effects: Effects | None, batch: Batch, wanted: Wanted) -> Pieces:
    """The terms of time of every row up to its last edge."""
    return pieces_until(cubics, effects, batch, wanted.edges[:, 0], wanted.edges[:, -1])


def _events(batch: Batch) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Times and marks of all rows laid end to end, and where each row begins."""
    valid = batch.valid
    times = batch.times[valid].cpu().numpy()
    marks = batch.marks[valid].cpu().numpy()
    lengths = batch.lengths.cpu().numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return times, marks, offsets


def _check(fault: Floats | None) -> None:
    """Raise the error that a fault of a kernel stands for."""
    if fault is None:
        return
    kind, row, time, rate = fault.tolist()
    where = f"{time:g} after the start of the forecast, in sequence {int(row)} of the batch"
    if kind == ABOVE_BOUND:
        raise ArithmeticError(
            f"expected a rate below its bound; received {rate:.9g} at {where}. The bound of the "
            "kernel is wrong: please report it"
        )
    if kind == EXPLOSIVE:
        raise explosion(f"a rate of up to {rate:.3g} at {where}")
    raise explosion(f"too many events up to {where}")


def explosion(received: str) -> UserError:
    """The error for a process that explodes before the horizon."""
    return UserError(
        "a process that does not explode before the horizon",
        received,
        "Shorten the horizon, or fit the model again.",
    )


def _numbers(tensor: Tensor) -> Floats:
    return np.ascontiguousarray(tensor.detach().cpu().double().numpy())
